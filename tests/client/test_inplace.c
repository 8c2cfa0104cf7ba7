/* Reserving room, filling it in place, committing; on every transport. */
#include "client/support.h"

#include "base/copy.h"
#include "store/arena.h"

#define NODE "dram=32M&ssd=128M"
#define BAD LARDER_E_INVALID

enum { ITEMS = 5 };

static const size_t lengths[ITEMS] = {1, 4096, 65536, 200001, 3u << 20};

typedef struct batch {
    larder_key_t keys[ITEMS];
    larder_item_t items[ITEMS];
} batch_t;

static void batch_init(batch_t *b, uint64_t first)
{
    for (uint64_t i = 0; i < ITEMS; i++) {
        b->keys[i] = key_of(first + i);
        b->items[i] = (larder_item_t){.key = &b->keys[i],
                                      .parent = i > 0 ? &b->keys[i - 1] : NULL,
                                      .depth = (uint32_t)i};
    }
}

/* Writes the contents of number n where item i goes; gives their checksum. */
static uint32_t fill_in_place(larder_lease_t *lease, size_t i, uint64_t n,
                              size_t bytes)
{
    struct iovec seg[64];
    uint32_t count = 0, again = 0;
    uint8_t *data = malloc(bytes);
    size_t at = 0;

    content(n, data, bytes);
    uint32_t crc = ldr_crc32c(0, data, bytes);
    assert_status(larder_reserve_segments(lease, i, NULL, 0, &again),
                  LARDER_E_SIZE);
    assert_status(larder_reserve_segments(lease, i, seg, COUNT_OF(seg), &count),
                  LARDER_OK);
    assert_int_equal(again, count);
    assert_in_range(count, 1, ldr_arena_pages(bytes));
    for (uint32_t k = 0; k < count; k++) {
        memcpy(seg[k].iov_base, data + at, seg[k].iov_len);
        at += seg[k].iov_len;
    }
    assert_int_equal(at, bytes);
    free(data);
    return crc;
}

/* Filled in place, without the caller's checksums where nobody else can write
 * there, and with them; read back from DRAM and, after a restart, from disk. */
static void test_round_trip(void **state)
{
    fix_t *f = fix(state);
    larder_lease_t *lease = NULL;
    larder_status_t statuses[ITEMS];
    uint32_t crcs[ITEMS];
    batch_t b;

    fix_open(f, NODE);
    for (uint64_t pass = 0; pass < 2; pass++) {
        batch_init(&b, 100 * pass);
        assert_status(
            larder_reserve(f->space, b.items, lengths, ITEMS, 0, &lease),
            LARDER_OK);
        assert_non_null(lease);
        for (uint64_t i = 0; i < ITEMS; i++) {
            assert_status(b.items[i].status, LARDER_OK);
            crcs[i] = fill_in_place(lease, i, 100 * pass + i, lengths[i]);
            /* Nobody sees it yet. */
            assert_status(exists_n(f->space, 100 * pass + i).status,
                          LARDER_MISS);
        }
        bool bare = pass == 0 && (f->embedded || !transport_is("shm"));
        assert_status(
            larder_commit(&lease, NULL, bare ? NULL : crcs, statuses, 0),
            LARDER_OK);
        assert_null(lease);
        for (uint64_t i = 0; i < ITEMS; i++) {
            assert_status(statuses[i], LARDER_OK);
            assert_status(get_n(f->space, 100 * pass + i, lengths[i]).status,
                          LARDER_OK);
        }
    }
    larder_stats_t s = stats_of(f->lar);
    assert_int_equal(s.saves_stored, 2 * ITEMS);
    assert_status(larder_flush(f->lar, LARDER_TIER_SSD, LARDER_FOREVER), 0);
    assert_int_equal(stats_of(f->lar).dram_leased_chunks, 0);
    fix_close(f);
    fix_open(f, NODE);
    for (uint64_t i = 0; i < ITEMS; i++) {
        assert_status(get_n(f->space, i, lengths[i]).status, LARDER_OK);
        assert_status(get_n(f->space, 100 + i, lengths[i]).status, LARDER_OK);
    }
}

/* A client may hold its room for a while before it fills it: that says nothing
 * about how fast dram is, which is what a match goes by. */
static void test_held(void **state)
{
    enum { MANY = 200, EACH = 65536, HELD_US = 200000, MOST_US = 5000000 };
    fix_t *f = fix(state);
    larder_lease_t *lease = NULL;
    larder_key_t keys[MANY];
    larder_item_t items[MANY];
    size_t bytes[MANY];
    uint32_t crcs[MANY];
    larder_match_t m = {.struct_bytes = sizeof(m)};

    fix_open_dram(f, "dram=32M");
    for (uint64_t i = 0; i < MANY; i++) {
        keys[i] = key_of(i);
        items[i] = (larder_item_t){.key = &keys[i],
                                   .parent = i > 0 ? &keys[i - 1] : NULL,
                                   .depth = (uint32_t)i};
        bytes[i] = EACH;
    }
    assert_status(larder_reserve(f->space, items, bytes, MANY, 0, &lease), 0);
    usleep(HELD_US);
    for (uint64_t i = 0; i < MANY; i++) {
        assert_status(items[i].status, LARDER_OK);
        crcs[i] = fill_in_place(lease, i, i, EACH);
    }
    assert_status(larder_commit(&lease, NULL, crcs, NULL, 0), LARDER_OK);
    assert_status(larder_match(f->space, keys, MANY, 0, &m), LARDER_OK);
    assert_int_equal(m.chunks, MANY);
    assert_in_range(m.load_us, 1, MOST_US);
}

/* Some are kept; a released reservation leaves nothing behind. */
static void test_keep_and_release(void **state)
{
    fix_t *f = fix(state);
    larder_lease_t *lease = NULL;
    larder_status_t statuses[ITEMS];
    const uint8_t keep[ITEMS] = {1, 0, 1, 0, 1};
    uint32_t crcs[ITEMS];
    batch_t b;

    fix_open_dram(f, "dram=32M");
    uint64_t used = stats_of(f->lar).dram_used_bytes;
    batch_init(&b, 0);
    for (unsigned round = 0; round < 20; round++) {
        assert_status(
            larder_reserve(f->space, b.items, lengths, ITEMS, 0, &lease),
            LARDER_OK);
        assert_non_null(lease);
        larder_release(&lease);
        assert_null(lease);
    }
    larder_stats_t s = stats_of(f->lar);
    assert_int_equal(s.dram_used_bytes, used);
    assert_int_equal(s.dram_leased_chunks, 0);
    assert_int_equal(s.entries, 0);
    assert_status(larder_reserve(f->space, b.items, lengths, ITEMS, 0, &lease),
                  LARDER_OK);
    for (uint64_t i = 0; i < ITEMS; i++) {
        crcs[i] = fill_in_place(lease, i, i, lengths[i]);
    }
    assert_status(larder_commit(&lease, keep, crcs, statuses, 0), LARDER_OK);
    for (uint64_t i = 0; i < ITEMS; i++) {
        assert_status(statuses[i], keep[i] ? LARDER_OK : LARDER_E_CANCELED);
        assert_status(get_n(f->space, i, lengths[i]).status,
                      keep[i] ? LARDER_OK : LARDER_MISS);
    }
    /* Those that are there get no room, the others do. */
    assert_status(larder_reserve(f->space, b.items, lengths, ITEMS, 0, &lease),
                  LARDER_OK);
    for (size_t i = 0; i < ITEMS; i++) {
        struct iovec seg;
        uint32_t n;

        assert_status(b.items[i].status, keep[i] ? LARDER_PRESENT : LARDER_OK);
        if (keep[i]) {
            assert_status(larder_reserve_segments(lease, i, &seg, 1, &n), BAD);
        }
    }
    assert_status(larder_commit(&lease, keep, crcs, statuses, 0), LARDER_OK);
    assert_status(statuses[0], LARDER_PRESENT);
    assert_status(statuses[1], LARDER_E_CANCELED);
    /* All of them: no lease at all. */
    for (unsigned i = 0; i < 2; i++) {
        b.items[2 * i] = b.items[4];
    }
    lease = (larder_lease_t *)&b;
    assert_status(larder_reserve(f->space, b.items, lengths, 1, 0, &lease), 0);
    assert_status(b.items[0].status, LARDER_PRESENT);
    assert_null(lease);
}

/* A checksum that is not that of the bytes: never served. */
static void test_wrong_checksum(void **state)
{
    fix_t *f = fix(state);
    larder_lease_t *lease = NULL;
    uint32_t crcs[ITEMS] = {1, 2, 3, 4, 5};
    larder_status_t statuses[ITEMS];
    batch_t b;

    fix_open_dram(f, "dram=32M");
    batch_init(&b, 0);
    assert_status(larder_reserve(f->space, b.items, lengths, ITEMS, 0, &lease),
                  LARDER_OK);
    for (uint64_t i = 0; i < ITEMS; i++) {
        fill_in_place(lease, i, i, lengths[i]);
    }
    assert_status(larder_commit(&lease, NULL, crcs, statuses, 0), LARDER_OK);
    for (uint64_t i = 0; i < ITEMS; i++) {
        /* Found at the commit or by whoever loads it. */
        larder_item_t item = get_n(f->space, i, lengths[i]);

        assert_status(item.status, LARDER_MISS);
        assert_true(statuses[i] == LARDER_E_CORRUPT ||
                    item.cause == LARDER_CAUSE_CORRUPT);
    }
}

/* By shared memory another process of the tenant could have written there
 * since, and a checksum of what lies there would make its bytes right. */
static void test_no_checksum(void **state)
{
    fix_t *f = fix(state);
    larder_lease_t *lease = NULL;
    larder_status_t statuses[ITEMS];
    uint32_t crcs[ITEMS];
    batch_t b;

    if (f->embedded || !transport_is("shm")) {
        skip();
    }
    fix_open_dram(f, "dram=32M");
    batch_init(&b, 0);
    assert_status(larder_reserve(f->space, b.items, lengths, ITEMS, 0, &lease),
                  LARDER_OK);
    for (uint64_t i = 0; i < ITEMS; i++) {
        fill_in_place(lease, i, i, lengths[i]);
    }
    assert_status(larder_commit(&lease, NULL, NULL, statuses, 0), BAD);
    assert_non_null(strstr(larder_last_error(), "larder_crc32c"));
    assert_null(lease);
    for (uint64_t i = 0; i < ITEMS; i++) {
        assert_status(statuses[i], BAD);
        assert_status(exists_n(f->space, i).status, LARDER_MISS);
    }
    assert_int_equal(stats_of(f->lar).dram_leased_chunks, 0);
    /* Somebody else writes there before the commit: a miss, not its bytes. */
    assert_status(larder_reserve(f->space, b.items, lengths, ITEMS, 0, &lease),
                  LARDER_OK);
    for (uint64_t i = 0; i < ITEMS; i++) {
        struct iovec seg[64];
        uint32_t n;

        crcs[i] = fill_in_place(lease, i, i, lengths[i]);
        assert_status(larder_reserve_segments(lease, i, seg, 64, &n), 0);
        ((uint8_t *)seg[n - 1].iov_base)[0] ^= 1;
    }
    assert_status(larder_commit(&lease, NULL, crcs, statuses, 0), LARDER_OK);
    for (uint64_t i = 0; i < ITEMS; i++) {
        assert_status(get_n(f->space, i, lengths[i]).status, LARDER_MISS);
    }
}

static void test_reset_meanwhile(void **state)
{
    fix_t *f = fix(state);
    larder_lease_t *lease = NULL;
    larder_status_t statuses[ITEMS];
    batch_t b;

    uint32_t crcs[ITEMS] = {0};

    need_arena(f); /* by TCP nothing is there before the commit */
    fix_open_dram(f, "dram=32M");
    batch_init(&b, 0);
    assert_status(larder_reserve(f->space, b.items, lengths, ITEMS, 0, &lease),
                  LARDER_OK);
    assert_status(larder_space_reset(f->space, 0), LARDER_OK);
    assert_status(larder_commit(&lease, NULL, crcs, statuses, 0), LARDER_OK);
    for (uint64_t i = 0; i < ITEMS; i++) {
        assert_status(statuses[i], LARDER_E_STALE);
        assert_status(exists_n(f->space, i).status, LARDER_MISS);
    }
    assert_int_equal(stats_of(f->lar).dram_leased_chunks, 0);
    assert_int_equal(stats_of(f->lar).dram_used_bytes, 0);
}

/* More than there is room for: the rest say so, and nothing is stuck. */
static void test_full(void **state)
{
    enum { MANY = 12 };
    fix_t *f = fix(state);
    larder_key_t keys[MANY];
    larder_item_t items[MANY];
    size_t bytes[MANY];
    larder_lease_t *lease = NULL;
    unsigned ok = 0, full = 0;

    need_arena(f);
    fix_open_dram(f, "dram=8M");
    for (uint64_t i = 0; i < MANY; i++) {
        keys[i] = key_of(i);
        items[i] = (larder_item_t){.key = &keys[i]};
        bytes[i] = 1u << 20;
    }
    bytes[3] = (8u << 20) + 1;
    assert_status(larder_reserve(f->space, items, bytes, MANY, 0, &lease), 0);
    for (unsigned i = 0; i < MANY; i++) {
        ok += items[i].status == LARDER_OK;
        full += items[i].status == LARDER_E_FULL;
    }
    assert_status(items[3].status, LARDER_E_SIZE);
    assert_int_equal(ok, 8);
    assert_int_equal(full, MANY - 9);
    larder_release(&lease);
    assert_status(put_n(f->space, 50, 8u << 20), LARDER_OK);
}

static void test_misuse(void **state)
{
    fix_t *f = fix(state);
    larder_lease_t *lease = NULL, *read = NULL;
    larder_match_t m = {.struct_bytes = sizeof(m)};
    struct iovec seg;
    uint32_t n;
    size_t length = 100;
    batch_t b;

    fix_open_dram(f, "dram=16M&leases=3");
    larder_space_t *s = f->space;
    batch_init(&b, 0);
    assert_status(larder_reserve(NULL, b.items, lengths, 1, 0, &lease), BAD);
    assert_status(larder_reserve(s, NULL, lengths, 1, 0, &lease), BAD);
    assert_status(larder_reserve(s, b.items, NULL, 1, 0, &lease), BAD);
    assert_status(larder_reserve(s, b.items, lengths, 0, 0, &lease), BAD);
    assert_status(larder_reserve(s, b.items, lengths, 1, 0, NULL), BAD);
    assert_status(larder_reserve(s, b.items, lengths, 4, 0, &lease),
                  LARDER_E_LIMIT);
    assert_null(lease);
    /* One bad item spares its siblings. */
    size_t three[3] = {0, 100, LARDER_VALUE_MAX + 1};
    b.items[1].key = NULL;
    assert_status(larder_reserve(s, b.items, three, 3, 0, &lease), LARDER_OK);
    assert_status(b.items[0].status, LARDER_E_SIZE);
    assert_status(b.items[1].status, LARDER_E_INVALID);
    assert_status(b.items[2].status, LARDER_E_SIZE);
    assert_null(lease);
    assert_status(larder_commit(NULL, NULL, NULL, NULL, 0), BAD);
    assert_status(larder_commit(&lease, NULL, NULL, NULL, 0), BAD);
    batch_init(&b, 0);
    assert_status(larder_reserve(s, b.items, &length, 1, 0, &lease), 0);
    assert_status(larder_reserve_segments(NULL, 0, &seg, 1, &n), BAD);
    assert_status(larder_reserve_segments(lease, 1, &seg, 1, &n), BAD);
    assert_status(larder_reserve_segments(lease, 0, NULL, 1, &n), BAD);
    assert_status(larder_reserve_segments(lease, 0, &seg, 1, NULL), BAD);
    /* Leases for writing and for reading are not each other. */
    assert_status(larder_lease_segments(lease, 0, 0, &seg, 1, &n), BAD);
    uint32_t crc = fill_in_place(lease, 0, 0, length);
    assert_status(larder_commit(&lease, NULL, &crc, NULL, 0), LARDER_OK);
    assert_status(get_n(s, 0, length).status, LARDER_OK);
    assert_status(larder_stage(s, b.keys, 1, 0, 0, &read, &m), LARDER_OK);
    assert_status(larder_reserve_segments(read, 0, &seg, 1, &n), BAD);
    assert_status(larder_commit(&read, NULL, NULL, NULL, 0), BAD);
    assert_non_null(read);
    larder_release(&read);
    /* After the handle's end. */
    assert_status(larder_reserve(s, b.items + 1, &length, 1, 0, &lease), 0);
    assert_status(transport_close(&f->lar, LARDER_FOREVER), LARDER_OK);
    assert_status(larder_reserve_segments(lease, 0, &seg, 1, &n),
                  LARDER_E_CLOSED);
    assert_status(larder_commit(&lease, NULL, NULL, NULL, 0), LARDER_E_CLOSED);
    assert_null(lease);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOTH(test_round_trip),
        ONE(test_held, "plain"),
        ONE(test_keep_and_release, "plain"),
        ONE(test_wrong_checksum, "plain"),
        ONE(test_no_checksum, "plain"),
        ONE(test_reset_meanwhile, "plain"),
        ONE(test_full, "plain"),
        ONE(test_misuse, "plain"),
    };

    return cmocka_run_group_tests_name("client/inplace", tests, NULL, NULL);
}
