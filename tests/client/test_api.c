/* Putting, getting, asking and removing; what a restart leaves. */
#include "client/support.h"

#include <sys/mman.h>

#include "store/arena.h"

#define NODE "dram=16M&ssd=128M"

static const size_t sizes[] = {1,        4095,  4096,    4097,    65536,
                               1u << 20, 65537, 3145729, 3u << 20};

/* ---- one shard ---- */

static void test_sizes(void **state)
{
    fix_t *f = fix(state);

    fix_open(f, NODE);
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        assert_int_equal(get_n(f->space, i, sizes[i]).status, LARDER_MISS);
        assert_status(put_n(f->space, i, sizes[i]), LARDER_OK);
        larder_item_t item = get_n(f->space, i, sizes[i]);
        assert_status(item.status, LARDER_OK);
        assert_int_equal(item.cause, LARDER_CAUSE_NONE);
        item = exists_n(f->space, i);
        assert_status(item.status, LARDER_OK);
        assert_int_equal(item.length, sizes[i]);
    }
    assert_status(larder_flush(f->lar, LARDER_TIER_SSD, LARDER_FOREVER),
                  LARDER_OK);
    fix_close(f);

    fix_open(f, NODE);
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        /* Only on ssd now: whole blocks are known without reading. */
        larder_item_t item = exists_n(f->space, i);
        assert_status(item.status, LARDER_OK);
        assert_true(item.length >= sizes[i] && item.length < sizes[i] + 4096);
        assert_status(get_n(f->space, i, sizes[i]).status, LARDER_OK);
        assert_int_equal(exists_n(f->space, i).length, sizes[i]);
    }
    larder_stats_t s = stats_of(f->lar);
    assert_int_equal(s.loads_ssd, COUNT_OF(sizes));
    assert_int_equal(s.loads_dram, 0);
    assert_int_equal(s.io_uring, strcmp(f->engine, "uring") == 0);
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        assert_status(get_n(f->space, i, sizes[i]).status, LARDER_OK);
    }
    assert_true(stats_of(f->lar).loads_dram > 0);
}

/* Cuts a buffer into pieces of odd and random sizes. */
static uint32_t cut(uint8_t *data, size_t bytes, ldr_rand_t *r,
                    struct iovec *iov)
{
    uint32_t count = 0;

    for (size_t at = 0; at < bytes;) {
        size_t take = 1 + ldr_rand_below(r, count % 3 == 0 ? 9 : 5003);

        if (take > bytes - at || count == LARDER_IOV_MAX - 1) {
            take = bytes - at;
        }
        iov[count++] = (struct iovec){data + at, take};
        at += take;
    }
    return count;
}

static void test_scatter_gather(void **state)
{
    fix_t *f = fix(state);
    const char *env = getenv("LARDER_SEED");
    uint64_t seed = env != NULL ? strtoull(env, NULL, 0) : ldr_rand_entropy();
    struct iovec *iov = calloc(LARDER_IOV_MAX, sizeof(*iov));
    size_t room = 3145729 + 4096;
    uint8_t *from = malloc(room), *to = malloc(room);
    ldr_rand_t r;

    print_message("seed=%llu\n", (unsigned long long)seed);
    ldr_rand_seed(&r, seed);
    fix_open(f, "dram=32M&ssd=128M");
    for (unsigned pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < COUNT_OF(sizes); i++) {
            larder_key_t key = key_of(i);
            larder_item_t item = {.key = &key, .iov = iov};

            content(i, from, sizes[i]);
            if (pass == 0) {
                item.iov_count = cut(from, sizes[i], &r, iov);
                assert_status(larder_run(f->space, LARDER_OP_PUT, &item, 1, 0),
                              LARDER_OK);
                assert_status(item.status, LARDER_OK);
            }
            /* More room than needed: the rest stays as it was. */
            memset(to, 0x5a, sizes[i] + 4096);
            item.iov_count = cut(to, sizes[i] + 4096, &r, iov);
            assert_status(larder_run(f->space, LARDER_OP_GET, &item, 1, NULL),
                          LARDER_OK);
            assert_status(item.status, LARDER_OK);
            assert_int_equal(item.length, sizes[i]);
            assert_memory_equal(from, to, sizes[i]);
            for (size_t k = 0; k < 4096; k++) {
                assert_int_equal(to[sizes[i] + k], 0x5a);
            }
        }
        if (pass == 0) {
            fix_close(f);
            fix_open(f, "dram=32M&ssd=128M");
        }
    }
    free(iov);
    free(from);
    free(to);
}

static void test_too_small(void **state)
{
    fix_t *f = fix(state);
    uint8_t data[70000];

    fix_open(f, NODE);
    assert_status(put_n(f->space, 1, sizeof(data)), LARDER_OK);
    fix_close(f);
    fix_open(f, NODE);
    for (unsigned pass = 0; pass < 2; pass++) { /* from ssd, then from dram */
        memset(data, 0x77, sizeof(data));
        larder_item_t item =
            run_one(f->space, LARDER_OP_GET, 1, 0, data, sizeof(data) - 1);
        assert_status(item.status, LARDER_E_SIZE);
        assert_int_equal(item.length, sizeof(data));
        for (size_t i = 0; i < sizeof(data); i++) {
            assert_int_equal(data[i], 0x77);
        }
    }
    assert_status(get_n(f->space, 1, sizeof(data)).status, LARDER_OK);
}

/* A key that is present is answered without a look at the payload: here it
 * cannot be read at all. */
static void test_present_reads_nothing(void **state)
{
    fix_t *f = fix(state);
    void *never =
        mmap(NULL, 65536, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    assert_ptr_not_equal(never, MAP_FAILED);
    fix_open(f, NODE);
    assert_status(put_n(f->space, 1, 65536), LARDER_OK);
    assert_status(run_one(f->space, LARDER_OP_PUT, 1, 0, never, 65536).status,
                  LARDER_PRESENT);
    /* Also when it is only on ssd, and whatever its length. */
    fix_close(f);
    fix_open(f, NODE);
    assert_status(run_one(f->space, LARDER_OP_PUT, 1, 0, never, 4096).status,
                  LARDER_PRESENT);
    assert_status(get_n(f->space, 1, 65536).status, LARDER_OK);
    assert_int_equal(stats_of(f->lar).saves_present, 1);
    munmap(never, 65536);
}

static void test_verify_put(void **state)
{
    fix_t *f = fix(state);
    larder_op_params_t params = {.field_mask = LARDER_OP_FLAGS,
                                 .flags = LARDER_VERIFY_PUT};
    uint8_t data[100000];
    struct iovec iov = {data, sizeof(data)};
    larder_key_t key = key_of(1);
    larder_item_t item = {.key = &key, .iov = &iov, .iov_count = 1};

    content(1, data, sizeof(data));
    fix_open(f, NODE);
    for (unsigned pass = 0; pass < 2; pass++) { /* dram, then ssd */
        assert_status(larder_run(f->space, LARDER_OP_PUT, &item, 1, &params),
                      LARDER_OK);
        assert_status(item.status, pass == 0 ? LARDER_OK : LARDER_PRESENT);
        assert_status(larder_run(f->space, LARDER_OP_PUT, &item, 1, &params),
                      LARDER_OK);
        assert_status(item.status, LARDER_PRESENT);
        data[99999] ^= 1;
        assert_status(larder_run(f->space, LARDER_OP_PUT, &item, 1, &params),
                      LARDER_OK);
        assert_status(item.status, LARDER_E_MISMATCH);
        data[99999] ^= 1;
        iov.iov_len--;
        assert_status(larder_run(f->space, LARDER_OP_PUT, &item, 1, &params),
                      LARDER_OK);
        assert_status(item.status, LARDER_E_MISMATCH);
        iov.iov_len++;
        if (f->embedded) { /* a daemon has only told that it is present */
            assert_int_equal(stats_of(f->lar).saves_mismatch, 2);
        }
        /* The first bytes stand. */
        assert_status(get_n(f->space, 1, sizeof(data)).status, LARDER_OK);
        if (pass == 0) {
            fix_close(f);
            fix_open(f, NODE);
        }
    }
}

/* ---- batches ---- */

/* Many shards in one get, much more than the arena holds. */
static void test_get_beyond_arena(void **state)
{
    enum { ITEMS = 96, BYTES = 256 * 1024 + 1 };
    fix_t *f = fix(state);
    uint8_t *data = malloc((size_t)ITEMS * BYTES);
    larder_key_t keys[ITEMS];
    struct iovec iov[ITEMS];
    larder_item_t items[ITEMS];

    fix_open(f, "dram=8M&ssd=128M");
    memset(items, 0, sizeof(items));
    for (unsigned i = 0; i < ITEMS; i++) {
        keys[i] = key_of(i);
        iov[i] = (struct iovec){data + (size_t)i * BYTES, BYTES};
        items[i] =
            (larder_item_t){.key = &keys[i], .iov = &iov[i], .iov_count = 1};
    }
    /* Each flushed, so that none has to make room before it is written. */
    for (unsigned i = 0; i < ITEMS; i++) {
        content(i, iov[i].iov_base, BYTES);
        assert_status(larder_run(f->space, LARDER_OP_PUT, &items[i], 1, NULL),
                      LARDER_OK);
        assert_status(items[i].status, LARDER_OK);
        if (i % 8 == 7) {
            assert_status(larder_flush(f->lar, LARDER_TIER_SSD, LARDER_FOREVER),
                          LARDER_OK);
        }
    }
    for (unsigned pass = 0; pass < 2; pass++) {
        memset(data, 0, (size_t)ITEMS * BYTES);
        assert_status(larder_run(f->space, LARDER_OP_GET, items, ITEMS, NULL),
                      LARDER_OK);
        for (unsigned i = 0; i < ITEMS; i++) {
            assert_status(items[i].status, LARDER_OK);
            assert_true(content_is(i, iov[i].iov_base, BYTES));
        }
    }
    free(data);
}

/* The largest batch; the second half of it asks for the same again. */
static void test_full_batch(void **state)
{
    enum { ITEMS = LARDER_BATCH_MAX, KEYS = ITEMS / 2, BYTES = 500 };
    fix_t *f = fix(state);
    uint8_t *data = malloc((size_t)ITEMS * BYTES);
    larder_key_t *keys = malloc(KEYS * sizeof(*keys));
    struct iovec *iov = malloc(ITEMS * sizeof(*iov));
    larder_item_t *items = calloc(ITEMS, sizeof(*items));

    fix_open(f, "dram=128M&ssd=64M");
    for (unsigned i = 0; i < ITEMS; i++) {
        keys[i % KEYS] = key_of(i % KEYS);
        iov[i] = (struct iovec){data + (size_t)i * BYTES, BYTES};
        content(i % KEYS, iov[i].iov_base, BYTES);
        items[i] = (larder_item_t){
            .key = &keys[i % KEYS], .iov = &iov[i], .iov_count = 1};
    }
    assert_status(larder_run(f->space, LARDER_OP_PUT, items, ITEMS, NULL), 0);
    for (unsigned i = 0; i < ITEMS; i++) {
        assert_status(items[i].status, i < KEYS ? LARDER_OK : LARDER_PRESENT);
    }
    fix_close(f);
    fix_open(f, "dram=8M&ssd=64M");
    memset(data, 0, (size_t)ITEMS * BYTES);
    assert_status(larder_run(f->space, LARDER_OP_GET, items, ITEMS, NULL), 0);
    for (unsigned i = 0; i < ITEMS; i++) {
        assert_status(items[i].status, LARDER_OK);
        assert_true(content_is(i % KEYS, iov[i].iov_base, BYTES));
    }
    free(data);
    free(keys);
    free(iov);
    free(items);
}

/* Puts far faster than the disk writes: never an error, for nothing is
 * leased; what the arena still knows or the disk got is right. */
static void test_puts_never_full(void **state)
{
    fix_t *f = fix(state);
    uint64_t evicted;

    fix_open(f, "dram=8M&ssd=256M");
    for (unsigned i = 0; i < 150; i++) {
        assert_status(put_n(f->space, i, (1u << 20) - 5), LARDER_OK);
    }
    larder_status_t st = larder_flush(f->lar, LARDER_TIER_SSD, LARDER_FOREVER);
    larder_stats_t s = stats_of(f->lar);
    evicted = s.saves_dropped_evicted;
    assert_status(st, evicted > 0 ? LARDER_E_DROPPED : LARDER_OK);
    assert_int_equal(s.saves_stored, 150);
    unsigned found = 0;
    for (unsigned i = 0; i < 150; i++) {
        found += get_n(f->space, i, (1u << 20) - 5).status == LARDER_OK;
    }
    assert_int_equal(found, 150 - evicted);
}

/* After many puts that fail or find their key present nothing is kept. */
static void test_reservations_come_back(void **state)
{
    fix_t *f = fix(state);
    uint8_t data[8192];
    struct iovec iov = {data, sizeof(data)};
    bool stop = true;

    fix_open_dram(f, "dram=16M");
    content(0, data, sizeof(data));
    for (uint64_t i = 0; i < 100; i++) {
        assert_status(
            run_one(f->space, LARDER_OP_PUT, i, 0, data, sizeof(data)).status,
            LARDER_OK);
    }
    larder_stats_t before = stats_of(f->lar);
    for (uint64_t i = 0; i < 10000; i++) {
        larder_key_t key = key_of(i % 2 == 0 ? i % 100 : 100000 + i);
        larder_item_t item = {.key = &key, .iov = &iov, .iov_count = 1};

        if (i % 2 == 0) {
            assert_status(larder_run(f->space, LARDER_OP_PUT, &item, 1, NULL),
                          LARDER_OK);
            assert_status(item.status, LARDER_PRESENT);
        } else {
            /* Reserved, then stopped before the first page: canceled. */
            ldr_target_t t = {f->space->number, 1, &item};
            ldr_stop_t at = {&stop, UINT64_MAX};
            ldr_node_put(f->lar->node, &t, false, &at);
            assert_status(item.status, LARDER_E_CANCELED);
        }
    }
    larder_stats_t after = stats_of(f->lar);
    assert_int_equal(after.dram_used_bytes, before.dram_used_bytes);
    assert_int_equal(after.entries, before.entries);
    assert_int_equal(after.dram_leased_chunks, 0);
    assert_int_equal(after.saves_present, 5000);
    assert_int_equal(after.saves_canceled, 5000);
}

/* ---- chunks of several shards ---- */

static void test_shards(void **state)
{
    enum { SHARDS = 5, BYTES = 30000 };
    fix_t *f = fix(state);
    uint8_t data[BYTES];
    larder_match_t m = {.struct_bytes = sizeof(m)};

    fix_open(f, NODE);
    larder_space_t *wide = open_space(f->lar, "wide", SHARDS);
    larder_key_t keys[2] = {key_of(1), key_of(2)};
    for (uint64_t c = 1; c <= 2; c++) {
        for (uint16_t i = 0; i < SHARDS; i++) {
            assert_status(larder_match(wide, keys, 2, 0, &m), LARDER_OK);
            assert_int_equal(m.chunks, c - 1);
            assert_int_equal(m.cause, LARDER_CAUSE_ABSENT);
            content(c * 100 + i, data, BYTES - i);
            assert_status(
                run_one(wide, LARDER_OP_PUT, c, i, data, BYTES - i).status,
                LARDER_OK);
        }
    }
    for (unsigned pass = 0; pass < 2; pass++) {
        assert_status(larder_match(wide, keys, 2, 0, &m), LARDER_OK);
        assert_int_equal(m.chunks, 2);
        assert_int_equal(m.tier_chunks[pass == 0 ? 0 : 1], 2);
        assert_true(m.load_us > 0);
        /* Other groups are other chunks. */
        assert_status(larder_match(wide, keys, 2, 1, &m), LARDER_OK);
        assert_int_equal(m.chunks, 0);
        if (pass == 0) {
            larder_space_close(&wide);
            fix_close(f);
            fix_open(f, NODE);
            wide = open_space(f->lar, "wide", SHARDS);
        }
    }
    for (uint64_t c = 1; c <= 2; c++) {
        for (uint16_t i = 0; i < SHARDS; i++) {
            larder_item_t item =
                run_one(wide, LARDER_OP_GET, c, i, data, BYTES);
            assert_status(item.status, LARDER_OK);
            assert_int_equal(item.length, BYTES - i);
            assert_true(content_is(c * 100 + i, data, BYTES - i));
        }
    }
    /* Without one of its shards a chunk does not match. */
    assert_status(run_one(wide, LARDER_OP_REMOVE, 2, 3, NULL, 0).status,
                  LARDER_OK);
    assert_status(larder_match(wide, keys, 2, 0, &m), LARDER_OK);
    assert_int_equal(m.chunks, 1);
    /* Removing what is not there leaves its siblings alone. */
    assert_status(run_one(wide, LARDER_OP_PUT, 7, 0, data, 9).status, 0);
    assert_status(run_one(wide, LARDER_OP_REMOVE, 7, 1, NULL, 0).status,
                  LARDER_MISS);
    assert_status(run_one(wide, LARDER_OP_EXISTS, 7, 0, NULL, 0).status, 0);
    larder_space_close(&wide);
}

/* ---- restart, remove, reset ---- */

static void test_remove_is_durable(void **state)
{
    fix_t *f = fix(state);

    fix_open(f, NODE);
    for (uint64_t i = 0; i < 20; i++) {
        assert_status(put_n(f->space, i, 10000), LARDER_OK);
    }
    assert_status(larder_flush(f->lar, LARDER_TIER_SSD, LARDER_FOREVER),
                  LARDER_OK);
    for (uint64_t i = 0; i < 20; i += 2) {
        assert_status(run_one(f->space, LARDER_OP_REMOVE, i, 0, NULL, 0).status,
                      LARDER_OK);
        assert_status(run_one(f->space, LARDER_OP_REMOVE, i, 0, NULL, 0).status,
                      LARDER_MISS);
    }
    /* One is put again, with other bytes: a new shard. */
    uint8_t data[500];
    content(777, data, sizeof(data));
    assert_status(
        run_one(f->space, LARDER_OP_PUT, 4, 0, data, sizeof(data)).status, 0);
    for (unsigned pass = 0; pass < 2; pass++) {
        for (uint64_t i = 0; i < 20; i++) {
            if (i != 4) {
                assert_status(get_n(f->space, i, 10000).status,
                              i % 2 == 0 ? LARDER_MISS : LARDER_OK);
            }
        }
        larder_item_t item =
            run_one(f->space, LARDER_OP_GET, 4, 0, data, sizeof(data));
        assert_status(item.status, LARDER_OK);
        assert_int_equal(item.length, 500);
        assert_true(content_is(777, data, 500));
        fix_close(f);
        fix_open(f, NODE);
    }
}

static void test_reset_is_durable(void **state)
{
    fix_t *f = fix(state);

    fix_open(f, NODE);
    larder_space_t *other = open_space(f->lar, "other model", 1);
    for (uint64_t i = 0; i < 50; i++) {
        assert_status(put_n(f->space, i, 5000), LARDER_OK);
        assert_status(put_n(other, i, 5000), LARDER_OK);
    }
    assert_status(larder_flush(f->lar, LARDER_TIER_SSD, LARDER_FOREVER),
                  LARDER_OK);
    uint64_t written = stats_of(f->lar).disk[0].written_bytes;
    assert_status(larder_space_reset(f->space, 0), LARDER_OK);
    assert_int_equal(stats_of(f->lar).disk[0].written_bytes, written);
    assert_int_equal(get_n(f->space, 0, 5000).cause, LARDER_CAUSE_STALE);
    assert_status(put_n(f->space, 1, 5000), LARDER_OK); /* put anew */
    larder_space_close(&other);
    fix_close(f);

    fix_open(f, NODE);
    other = open_space(f->lar, "other model", 1);
    for (uint64_t i = 0; i < 50; i++) {
        assert_status(get_n(f->space, i, 5000).status,
                      i == 1 ? LARDER_OK : LARDER_MISS);
        assert_status(get_n(other, i, 5000).status, LARDER_OK);
    }
    larder_space_close(&other);
}

/* A node whose disk was made smaller, and larger, goes on with what fits. */
static void test_close_writes_down(void **state)
{
    fix_t *f = fix(state);

    fix_open(f, NODE);
    for (uint64_t i = 0; i < 10; i++) {
        assert_status(put_n(f->space, i, 300000), LARDER_OK);
    }
    fix_close(f); /* without a flush */
    fix_open(f, "dram=8M&ssd=256M");
    for (uint64_t i = 0; i < 10; i++) {
        assert_status(get_n(f->space, i, 300000).status, LARDER_OK);
    }
    /* Nobody waits for longer than told: the answer says what happened. */
    assert_status(put_n(f->space, 99, 1000), LARDER_OK);
    larder_space_close(&f->space);
    larder_status_t st = larder_close(&f->lar, 1);
    assert_true(st == LARDER_OK || st == LARDER_E_DEADLINE);
    assert_null(f->lar);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOTH(test_sizes),
        BOTH(test_scatter_gather),
        BOTH(test_too_small),
        BOTH(test_present_reads_nothing),
        BOTH(test_verify_put),
        BOTH(test_get_beyond_arena),
        BOTH(test_full_batch),
        BOTH(test_puts_never_full),
        EMBED_ONE(test_reservations_come_back, "plain"),
        BOTH(test_shards),
        BOTH(test_remove_is_durable),
        BOTH(test_reset_is_durable),
        BOTH(test_close_writes_down),
    };

    return cmocka_run_group_tests_name("client/api", tests, NULL, NULL);
}
