/* Wrong arguments, wrong order, wrong process: a status, never a crash. */
#include "client/support.h"

#include <fcntl.h>
#include <sys/mman.h>

#define NODE "dram=8M&ssd=64M"
#define BAD LARDER_E_INVALID

/* ---- opening ---- */

static void test_bad_urls(void **state)
{
    static const char *const urls[] = {
        "",
        "embed",
        "http://x",
        "embed:/tmp/x?dram=",
        "embed:/tmp/x?dram=abc",
        "embed:/tmp/x?dram=1",
        "embed:/tmp/x?nonsense=1",
        "embed:/tmp/x?io=fast",
        "embed:/tmp/x?tickets=0",
        "embed:/tmp/x?dram=8M&dram",
    };
    larder_t *lar = NULL;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(urls); i++) {
        assert_status(larder_open(urls[i], NULL, &lar), LARDER_E_INVALID);
        assert_null(lar);
        assert_true(strlen(larder_last_error()) > 0);
    }
    assert_status(larder_open(NULL, NULL, &lar), LARDER_E_INVALID);
    assert_status(larder_open("embed:?dram=8M", NULL, NULL), LARDER_E_INVALID);
}

static bool is_locked(fix_t *f)
{
    larder_t *lar = NULL;

    return try_open(f, NODE, &lar) == LARDER_E_LOCKED && lar == NULL &&
           strstr(larder_last_error(), f->dir) != NULL;
}

static bool opens(fix_t *f)
{
    larder_t *lar = NULL;

    return try_open(f, NODE, &lar) == LARDER_OK &&
           larder_close(&lar, 0) == LARDER_OK;
}

static void test_locked(void **state)
{
    fix_t *f = fix(state);

    fix_open(f, NODE);
    assert_status(put_n(f->space, 1, 5000), LARDER_OK);
    assert_true(is_locked(f));
    if (!SANITIZED) { /* no threads in a child for them */
        in_child(is_locked, f);
    }
    /* The refusals changed nothing. */
    assert_status(get_n(f->space, 1, 5000).status, LARDER_OK);
    fix_close(f);
    if (!SANITIZED) {
        in_child(opens, f);
    }
    assert_true(opens(f));
    fix_open(f, NODE);
    assert_status(get_n(f->space, 1, 5000).status, LARDER_OK);
}

/* The version is the first number behind the magic; both copies say 999. */
static void test_version(void **state)
{
    fix_t *f = fix(state);
    uint8_t before[2 * LDR_SUPER_BYTES], after[2 * LDR_SUPER_BYTES];
    larder_t *lar = NULL;
    char path[256];

    assert_true(opens(f));
    snprintf(path, sizeof(path), "%s/larder.super", f->dir);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    uint32_t version = 999;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(
            pwrite(fd, &version, 4, (off_t)i * LDR_SUPER_BYTES + 8), 4);
    }
    assert_int_equal(pread(fd, before, sizeof(before), 0), sizeof(before));
    assert_status(try_open(f, NODE, &lar), LARDER_E_VERSION);
    assert_null(lar);
    assert_int_equal(pread(fd, after, sizeof(after), 0), sizeof(after));
    assert_memory_equal(before, after, sizeof(before));
    close(fd);
}

/* One damaged copy is made good from the other; of two nothing is touched. */
static void test_damaged_super(void **state)
{
    fix_t *f = fix(state);
    uint8_t before[2 * LDR_SUPER_BYTES], after[2 * LDR_SUPER_BYTES];
    larder_t *lar = NULL;
    char path[256];

    fix_open(f, NODE);
    assert_status(put_n(f->space, 1, 5000), LARDER_OK);
    fix_close(f);
    snprintf(path, sizeof(path), "%s/larder.super", f->dir);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pwrite(fd, "damage", 6, (off_t)i * LDR_SUPER_BYTES),
                         6);
        fix_open(f, NODE);
        assert_status(get_n(f->space, 1, 5000).status, LARDER_OK);
        assert_status(larder_space_reset(f->space, 0), LARDER_OK);
        assert_status(put_n(f->space, 1, 5000), LARDER_OK);
        fix_close(f);
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pwrite(fd, "damage", 6, (off_t)i * LDR_SUPER_BYTES),
                         6);
    }
    assert_int_equal(pread(fd, before, sizeof(before), 0), sizeof(before));
    assert_status(try_open(f, NODE, &lar), LARDER_E_CORRUPT);
    assert_null(lar);
    assert_non_null(strstr(larder_last_error(), f->dir));
    assert_int_equal(pread(fd, after, sizeof(after), 0), sizeof(after));
    assert_memory_equal(before, after, sizeof(before));
    close(fd);
}

/* io_uring is forbidden: threads take over; a log line and a metric say so. */
static void test_fallback(void **state)
{
    fix_t *f = fix(state);
    larder_t *lar = NULL;

    ldr_fault_arm(LDR_FAULT_io_uring_denied, 1, 0);
    f->engine = "uring";
    assert_status(try_open(f, NODE, &lar), LARDER_E_IO);
    assert_non_null(strstr(larder_last_error(), "io=plain"));
    f->engine = "auto";
    log_seen.about_uring = 0;
    fix_open(f, NODE);
    assert_int_equal(log_seen.about_uring, 1); /* one line tells it */
    assert_int_equal(stats_of(f->lar).io_uring, 0);
    assert_status(put_n(f->space, 1, 5000), LARDER_OK);
    fix_close(f);
    fix_open(f, NODE);
    assert_status(get_n(f->space, 1, 5000).status, LARDER_OK);
}

/* ---- items ---- */

static void test_bad_items(void **state)
{
    enum { GOOD = 0, ITEMS = 11 };
    fix_t *f = fix(state);
    uint8_t data[4096];
    struct iovec iov = {data, sizeof(data)};
    struct iovec empty = {data, 0}, null = {NULL, 10};
    struct iovec huge[2] = {{data, SIZE_MAX - 4096}, {data, 8192}};
    struct iovec over = {data, LARDER_VALUE_MAX + 1};
    larder_key_t key[ITEMS];
    larder_item_t items[ITEMS];

    fix_open(f, "dram=128M&ssd=64M");
    content(1, data, sizeof(data));
    for (int op = LARDER_OP_PUT; op <= LARDER_OP_GET; op++) {
        for (int i = 0; i < ITEMS; i++) {
            key[i] = key_of((uint64_t)i);
            items[i] = (larder_item_t){.key = &key[i],
                                       .iov = &iov,
                                       .iov_count = 1,
                                       .cause = LARDER_CAUSE_COUNT,
                                       .length = 999};
        }
        items[1].key = NULL;
        items[2].shard = 1;
        items[3].group = LARDER_GROUPS_MAX;
        items[4].iov = NULL;
        items[5].iov_count = 0;
        items[6].iov_count = LARDER_IOV_MAX + 1;
        items[7].iov = &empty;
        items[8].iov = &null;
        items[9].iov = huge;
        items[9].iov_count = 2;
        items[10].depth = UINT32_MAX;
        assert_status(larder_run(f->space, (larder_op_t)op, items, ITEMS, NULL),
                      LARDER_OK);
        assert_status(items[GOOD].status, LARDER_OK);
        for (int i = 1; i < ITEMS; i++) {
            assert_status(items[i].status,
                          i == 9 ? LARDER_E_SIZE : LARDER_E_INVALID);
            assert_int_equal(items[i].cause, LARDER_CAUSE_NONE);
            assert_int_equal(items[i].length, 0);
        }
    }
    assert_true(content_is(1, data, sizeof(data)));
    /* Oversize: known by the lengths, before a byte is read. */
    items[0] = (larder_item_t){.key = &key[5], .iov = &over, .iov_count = 1};
    items[1] = (larder_item_t){.key = &key[6], .iov = &iov, .iov_count = 1};
    assert_status(larder_run(f->space, LARDER_OP_PUT, items, 2, NULL), 0);
    assert_status(items[0].status, LARDER_E_SIZE);
    assert_status(items[1].status, LARDER_OK);
    larder_stats_t s = stats_of(f->lar);
    if (f->embedded) { /* a daemon does not hear of them */
        assert_int_equal(s.saves_failed, ITEMS - 1 + 1);
    }
    assert_int_equal(s.saves_stored, 2);
    /* exists and remove look at the name only. */
    for (int op = LARDER_OP_REMOVE; op >= LARDER_OP_EXISTS; op--) {
        items[0] = (larder_item_t){.key = &key[6]};
        items[1] = (larder_item_t){.key = NULL};
        items[2] = (larder_item_t){.key = &key[0]};
        items[3] = (larder_item_t){.key = &key[0], .shard = 9};
        assert_status(larder_run(f->space, (larder_op_t)op, items, 4, NULL),
                      LARDER_OK);
        larder_status_t want = op == LARDER_OP_REMOVE ? LARDER_OK : LARDER_MISS;
        assert_status(items[0].status, want);
        assert_status(items[1].status, LARDER_E_INVALID);
        assert_status(items[2].status, want);
        assert_status(items[3].status, LARDER_E_INVALID);
    }
}

/* A value that no arena of this size could hold. */
static void test_larger_than_dram(void **state)
{
    fix_t *f = fix(state);
    size_t bytes = (8u << 20) + 1;
    uint8_t *data = calloc(1, bytes);

    fix_open_dram(f, "dram=8M");
    assert_status(run_one(f->space, LARDER_OP_PUT, 1, 0, data, bytes).status,
                  LARDER_E_SIZE);
    assert_status(
        run_one(f->space, LARDER_OP_PUT, 1, 0, data, bytes - 1).status,
        LARDER_OK);
    assert_status(
        run_one(f->space, LARDER_OP_GET, 1, 0, data, bytes - 1).status,
        LARDER_OK);
    free(data);
}

static void test_overlap(void **state)
{
    fix_t *f = fix(state);
    uint8_t data[4096];
    struct iovec two[2] = {{data, 3000}, {data + 2999, 1000}};
    struct iovec many[40];
    larder_key_t key = key_of(1);
    larder_item_t item = {.key = &key, .iov = two, .iov_count = 2};

    fix_open_dram(f, "dram=8M");
    assert_status(put_n(f->space, 1, 100), LARDER_OK);
    memset(data, 1, sizeof(data));
    assert_status(larder_run(f->space, LARDER_OP_GET, &item, 1, NULL), 0);
    assert_status(item.status, LARDER_E_OVERLAP);
    two[1] = (struct iovec){data, 1};
    assert_status(larder_run(f->space, LARDER_OP_GET, &item, 1, NULL), 0);
    assert_status(item.status, LARDER_E_OVERLAP);
    two[1].iov_base = data + 3000; /* neighbours are fine */
    assert_status(larder_run(f->space, LARDER_OP_GET, &item, 1, NULL), 0);
    assert_status(item.status, LARDER_OK);
    for (size_t i = 0; i < COUNT_OF(many); i++) {
        many[i] = (struct iovec){data + i * 10, i == 38 ? 11 : 10};
    }
    item.iov = many;
    item.iov_count = COUNT_OF(many);
    assert_status(larder_run(f->space, LARDER_OP_GET, &item, 1, NULL), 0);
    assert_status(item.status, LARDER_E_OVERLAP);
    /* A put only reads: the same bytes twice are a value like any other. */
    key = key_of(2);
    assert_status(larder_run(f->space, LARDER_OP_PUT, &item, 1, NULL), 0);
    assert_status(item.status, LARDER_OK);
}

static void test_bad_batches(void **state)
{
    fix_t *f = fix(state);
    larder_item_t item = {.status = LARDER_PENDING};
    larder_ticket_t ticket = 77;
    larder_completion_t done;
    size_t count = 5;
    larder_match_t m = {.struct_bytes = sizeof(m)};
    larder_lease_t *lease = NULL;
    larder_key_t key = key_of(1);

    fix_open_dram(f, "dram=8M");
    larder_space_t *s = f->space;
    assert_status(larder_run(NULL, LARDER_OP_GET, &item, 1, NULL), BAD);
    assert_status(larder_run(s, LARDER_OP_GET, NULL, 1, NULL), BAD);
    assert_status(larder_run(s, LARDER_OP_GET, &item, 0, NULL), BAD);
    assert_status(
        larder_run(s, LARDER_OP_GET, &item, LARDER_BATCH_MAX + 1, NULL), BAD);
    assert_status(larder_run(s, LARDER_OP_COUNT, &item, 1, NULL), BAD);
    assert_status(larder_run(s, (larder_op_t)-1, &item, 1, NULL), BAD);
    assert_int_equal(item.status, LARDER_PENDING); /* was not looked at */
    assert_status(larder_submit(NULL, LARDER_OP_GET, &item, 1, NULL, &ticket),
                  BAD);
    assert_status(larder_submit(s, LARDER_OP_GET, &item, 1, NULL, NULL), BAD);
    assert_status(larder_submit(s, LARDER_OP_GET, NULL, 1, NULL, &ticket), BAD);
    assert_int_equal(ticket, 77);
    assert_status(larder_drain(NULL, &done, 1, 0, &count), BAD);
    assert_status(larder_drain(f->lar, NULL, 1, 0, &count), BAD);
    assert_status(larder_drain(f->lar, &done, 0, 0, &count), BAD);
    assert_status(larder_drain(f->lar, &done, 1, 0, NULL), BAD);
    assert_status(larder_cancel(NULL, 1), BAD);
    assert_status(larder_cancel(f->lar, 12345678), LARDER_MISS);
    assert_int_equal(larder_event_fd(NULL), BAD);
    assert_status(larder_match(NULL, &key, 1, 0, &m), BAD);
    assert_status(larder_match(s, NULL, 1, 0, &m), BAD);
    assert_status(larder_match(s, &key, 1, LARDER_GROUPS_MAX, &m), BAD);
    assert_status(larder_match(s, &key, 1, 0, NULL), BAD);
    assert_status(larder_match(s, NULL, 0, 0, &m), LARDER_OK);
    assert_int_equal(m.chunks, 0);
    assert_status(larder_stage(NULL, &key, 1, 0, 0, &lease, &m), BAD);
    assert_status(larder_stage(s, NULL, 1, 0, 0, &lease, &m), BAD);
    assert_status(larder_stage(s, &key, 0, 0, 0, &lease, &m), BAD);
    assert_status(larder_stage(s, &key, 1, 64, 0, &lease, &m), BAD);
    assert_status(larder_stage(s, &key, 1, 0, 0, NULL, &m), BAD);
    assert_status(larder_stage(s, &key, 1, 0, 0, &lease, NULL), BAD);
    assert_status(larder_lease_segments(NULL, 0, 0, NULL, 0, NULL), BAD);
    assert_status(larder_space_reset(NULL, 0), BAD);
    assert_status(larder_flush(NULL, LARDER_TIER_DRAM, 0), BAD);
    assert_status(larder_flush(f->lar, LARDER_TIER_COUNT, 0), BAD);
    assert_status(larder_flush(f->lar, LARDER_TIER_DRAM, 0), LARDER_OK);
    assert_status(larder_flush(f->lar, LARDER_TIER_SSD, 0), LARDER_E_TIER_OFF);
    assert_true(strlen(larder_status_text((larder_status_t)1234)) > 0);
    assert_true(strlen(larder_cause_text((larder_cause_t)99)) > 0);
    larder_release(NULL);
    larder_release(&lease);
    larder_space_close(NULL);
}

/* ---- after close ---- */

static void check_closed(larder_space_t *space, larder_lease_t *lease)
{
    larder_key_t key = key_of(1);
    larder_item_t item = {.key = &key};
    larder_ticket_t ticket;
    larder_match_t m = {.struct_bytes = sizeof(m)};
    uint32_t tokens[4] = {0}, n;
    size_t count;
    struct iovec seg;
    larder_lease_t *none = NULL;

    assert_status(larder_run(space, LARDER_OP_EXISTS, &item, 1, NULL),
                  LARDER_E_CLOSED);
    assert_status(larder_submit(space, LARDER_OP_EXISTS, &item, 1, 0, &ticket),
                  LARDER_E_CLOSED);
    assert_status(larder_match(space, &key, 1, 0, &m), LARDER_E_CLOSED);
    assert_status(larder_stage(space, &key, 1, 0, 0, &none, &m),
                  LARDER_E_CLOSED);
    assert_status(larder_space_reset(space, 0), LARDER_E_CLOSED);
    assert_status(larder_chain(space, tokens, 4, NULL, &key, 1, &count),
                  LARDER_E_CLOSED);
    assert_status(larder_lease_segments(lease, 0, 0, &seg, 1, &n),
                  LARDER_E_CLOSED);
    assert_null(none);
}

static void test_close(void **state)
{
    enum { TICKETS = 20, BYTES = 200000 };
    fix_t *f = fix(state);
    larder_key_t keys[TICKETS];
    larder_item_t items[TICKETS];
    struct iovec iov[TICKETS];
    uint8_t *data = malloc((size_t)TICKETS * BYTES);
    larder_lease_t *lease = NULL;
    larder_match_t m = {.struct_bytes = sizeof(m)};
    larder_ticket_t ticket;

    for (unsigned pass = 0; pass < 2; pass++) {
        /* The second time the tickets find their shards on disk only. */
        fix_open(f, NODE);
        for (unsigned i = 0; i < TICKETS; i++) {
            keys[i] = key_of(i);
            if (pass == 0) {
                assert_status(put_n(f->space, i, BYTES), LARDER_OK);
            }
        }
        assert_status(larder_stage(f->space, keys, 1, 0, 0, &lease, &m), 0);
        for (unsigned i = 0; i < TICKETS; i++) {
            iov[i] = (struct iovec){data + (size_t)i * BYTES, BYTES};
            items[i] = (larder_item_t){
                .key = &keys[i], .iov = &iov[i], .iov_count = 1};
            assert_status(larder_submit(f->space, LARDER_OP_GET, &items[i], 1,
                                        NULL, &ticket),
                          LARDER_OK);
        }
        assert_status(transport_close(&f->lar, 0), LARDER_OK);
        assert_null(f->lar);
        assert_status(larder_close(&f->lar, 0), LARDER_OK);
        assert_status(larder_close(NULL, 0), LARDER_OK);
        /* Every ticket has ended one way or the other, and nothing is
         * written to the buffers any more. */
        for (unsigned i = 0; i < TICKETS; i++) {
            assert_true(items[i].status == LARDER_OK ||
                        items[i].status == LARDER_E_CANCELED);
            if (items[i].status == LARDER_OK) {
                assert_true(content_is(i, iov[i].iov_base, BYTES));
            }
        }
        memset(data, 0, (size_t)TICKETS * BYTES);
        check_closed(f->space, lease);
        larder_release(&lease);
        assert_null(lease);
        larder_space_close(&f->space);
        assert_null(f->space);
    }
    free(data);
}

static void test_poisoned(void **state)
{
    fix_t *f = fix(state);
    larder_key_t key = key_of(1);
    larder_item_t item = {.key = &key};

    fix_open(f, NODE);
    ldr_check_remember();
    assert_false(ldr_broken("a test says so", __FILE__, __LINE__));
    assert_false(ldr_broken("and again", __FILE__, __LINE__));
    assert_status(larder_run(f->space, LARDER_OP_EXISTS, &item, 1, NULL),
                  LARDER_E_POISONED);
    assert_status(larder_flush(f->lar, LARDER_TIER_DRAM, 0), LARDER_E_POISONED);
    assert_non_null(strstr(larder_last_error(), "a test says so"));
    ldr_check_remember();
    ldr_check_abort();
    fix_close(f);
}

/* ---- after fork ---- */

static larder_lease_t *fork_lease;

static bool forked_answers(fix_t *f)
{
    larder_key_t key = key_of(1);
    larder_item_t item = {.key = &key};
    larder_ticket_t ticket;
    larder_completion_t done;
    larder_stats_t stats = {.struct_bytes = sizeof(stats)};
    larder_match_t m = {.struct_bytes = sizeof(m)};
    larder_space_t *space = NULL;
    larder_lease_t *lease = NULL;
    larder_space_params_t p = {.descriptor = "x", .descriptor_bytes = 1};
    size_t n;
    uint32_t segs;
    struct iovec seg;
    larder_t *own = NULL;
    const larder_status_t forked = LARDER_E_FORKED;

    bool ok =
        larder_run(f->space, LARDER_OP_EXISTS, &item, 1, NULL) == forked &&
        larder_submit(f->space, LARDER_OP_EXISTS, &item, 1, NULL, &ticket) ==
            forked &&
        larder_drain(f->lar, &done, 1, LARDER_FOREVER, &n) == forked &&
        larder_cancel(f->lar, 1) == forked &&
        larder_match(f->space, &key, 1, 0, &m) == forked &&
        larder_stage(f->space, &key, 1, 0, 0, &lease, &m) == forked &&
        larder_lease_segments(fork_lease, 0, 0, &seg, 1, &segs) == forked &&
        larder_space_open(f->lar, &p, &space) == forked &&
        larder_space_reset(f->space, 0) == forked &&
        larder_flush(f->lar, LARDER_TIER_DRAM, 0) == forked &&
        larder_stats(f->lar, &stats) == forked &&
        larder_metrics(f->lar, NULL, 0, &n) == forked &&
        larder_event_fd(f->lar) == -1 && strlen(larder_last_error()) > 0;

    larder_release(&fork_lease);
    larder_space_close(&f->space);
    ok = ok && larder_close(&f->lar, 0) == forked && f->lar == NULL;
    /* One of its own works. */
    return ok && larder_open("embed:?dram=8M", NULL, &own) == LARDER_OK &&
           larder_close(&own, 0) == LARDER_OK;
}

static void test_fork(void **state)
{
    fix_t *f = fix(state);
    larder_key_t key = key_of(1);
    larder_match_t m = {.struct_bytes = sizeof(m)};

    if (SANITIZED) {
        skip(); /* threads in a forked child are more than they promise */
    }
    fix_open(f, NODE);
    assert_status(put_n(f->space, 1, 5000), LARDER_OK);
    assert_status(larder_stage(f->space, &key, 1, 0, 0, &fork_lease, &m), 0);
    in_child(forked_answers, f);
    /* The parent's handle did not notice. */
    assert_status(get_n(f->space, 1, 5000).status, LARDER_OK);
    larder_release(&fork_lease);
}

/* ---- the small calls ---- */

static void test_stats_growth(void **state)
{
    fix_t *f = fix(state);
    larder_stats_t s;
    size_t small = offsetof(larder_stats_t, saves_mismatch);
    char text[64];
    size_t length = 0, again = 0;

    fix_open_dram(f, "dram=8M");
    assert_status(put_n(f->space, 1, 100), LARDER_OK);
    /* A program built with an older, smaller struct. */
    memset(&s, 0xee, sizeof(s));
    s.struct_bytes = small;
    assert_status(larder_stats(f->lar, &s), LARDER_OK);
    assert_int_equal(s.struct_bytes, small);
    assert_int_equal(s.saves_stored, 1);
    for (size_t i = small; i < sizeof(s); i++) {
        assert_int_equal(((uint8_t *)&s)[i], 0xee);
    }
    /* And one built with a newer, larger one. */
    struct {
        larder_stats_t s;
        uint64_t future;
    } large = {.future = 42};
    large.s.struct_bytes = sizeof(large);
    assert_status(larder_stats(f->lar, &large.s), LARDER_OK);
    assert_int_equal(large.s.struct_bytes, sizeof(s));
    assert_int_equal(large.future, 42);
    s.struct_bytes = 0;
    assert_status(larder_stats(f->lar, &s), LARDER_E_INVALID);
    assert_status(larder_stats(f->lar, NULL), LARDER_E_INVALID);
    assert_status(larder_stats(NULL, &s), LARDER_E_INVALID);
    /* The text is cut where the buffer ends, and the need is told. */
    assert_status(larder_metrics(f->lar, NULL, 0, &length), LARDER_OK);
    memset(text, 'x', sizeof(text));
    assert_status(larder_metrics(f->lar, text, 32, &again), LARDER_OK);
    if (f->embedded) { /* a daemon's grows with what is asked of it */
        assert_int_equal(length, again);
    }
    assert_int_equal(strlen(text), 31);
    assert_int_equal(text[32], 'x');
    assert_status(larder_metrics(f->lar, NULL, 9, &length), LARDER_E_INVALID);
    assert_status(larder_metrics(f->lar, text, 9, NULL), LARDER_E_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_urls),
        EMBED_BOTH(test_locked),
        EMBED_BOTH(test_version),
        EMBED_BOTH(test_damaged_super),
        EMBED_ONE(test_fallback, "plain"),
        BOTH(test_bad_items),
        ONE(test_larger_than_dram, "plain"),
        ONE(test_overlap, "plain"),
        ONE(test_bad_batches, "plain"),
        BOTH(test_close),
        EMBED_BOTH(test_poisoned),
        BOTH(test_fork),
        ONE(test_stats_growth, "plain"),
    };

    return cmocka_run_group_tests_name("client/misuse", tests, NULL, NULL);
}
