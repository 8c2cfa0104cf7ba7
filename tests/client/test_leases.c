/* Staging, reading in place, and what leases keep others from. */
#include "client/support.h"

#include "store/arena.h"

#define MIB ((size_t)1 << 20)

/* Puts a chain of chunks with the contents of their numbers. */
static void put_chain(larder_space_t *space, uint64_t first, size_t count,
                      size_t bytes, larder_key_t *keys)
{
    uint8_t *data = malloc(bytes);

    for (size_t i = 0; i < count; i++) {
        struct iovec iov = {data, bytes};

        keys[i] = key_of(first + i);
        larder_item_t item = {.key = &keys[i],
                              .parent = i > 0 ? &keys[i - 1] : NULL,
                              .depth = (uint32_t)i,
                              .iov = &iov,
                              .iov_count = 1};
        content(first + i, data, bytes);
        assert_status(larder_run(space, LARDER_OP_PUT, &item, 1, NULL), 0);
        assert_status(item.status, LARDER_OK);
    }
    free(data);
}

/* The leased shard in place is the contents of number n. */
static void check_segments(const larder_lease_t *lease, uint32_t chunk,
                           uint16_t shard, uint64_t n, size_t bytes)
{
    struct iovec seg[64];
    uint32_t count = 0, again = 0;
    uint8_t *got = malloc(bytes);
    size_t at = 0;

    assert_status(
        larder_lease_segments(lease, chunk, shard, seg, COUNT_OF(seg), &count),
        LARDER_OK);
    assert_in_range(count, 1, ldr_arena_pages(bytes));
    for (uint32_t i = 0; i < count; i++) {
        assert_true(at + seg[i].iov_len <= bytes);
        memcpy(got + at, seg[i].iov_base, seg[i].iov_len);
        at += seg[i].iov_len;
    }
    assert_int_equal(at, bytes);
    assert_true(content_is(n, got, bytes));
    free(got);
    /* Room for fewer: the number that is needed, and how they begin. */
    struct iovec fewer[64];
    assert_status(
        larder_lease_segments(lease, chunk, shard, fewer, count - 1, &again),
        LARDER_E_SIZE);
    assert_int_equal(again, count);
    assert_status(larder_lease_segments(lease, chunk, shard, NULL, 0, &again),
                  LARDER_E_SIZE);
    assert_int_equal(again, count);
}

static void test_stage(void **state)
{
    enum { CHUNKS = 90 }; /* more than are looked ahead */
    const size_t bytes = 150001;
    fix_t *f = fix(state);
    larder_key_t keys[CHUNKS + 1];
    larder_lease_t *lease = NULL;
    larder_match_t m = {.struct_bytes = sizeof(m)};

    fix_open(f, "dram=32M&ssd=128M");
    put_chain(f->space, 0, CHUNKS, bytes, keys);
    keys[CHUNKS] = key_of(12345);
    for (unsigned pass = 0; pass < 2; pass++) { /* from dram, from ssd */
        larder_tier_t tier = pass == 0 ? LARDER_TIER_DRAM : LARDER_TIER_SSD;

        assert_status(
            larder_stage(f->space, keys, CHUNKS + 1, 0, 0, &lease, &m), 0);
        assert_non_null(lease);
        assert_int_equal(m.chunks, CHUNKS);
        assert_int_equal(m.tier_chunks[tier], CHUNKS);
        assert_int_equal(m.tier_bytes[tier], CHUNKS * bytes);
        assert_int_equal(m.cause, LARDER_CAUSE_ABSENT);
        for (uint32_t i = 0; i < CHUNKS; i++) {
            check_segments(lease, i, 0, i, bytes);
        }
        struct iovec seg;
        uint32_t n;
        assert_status(larder_lease_segments(lease, CHUNKS, 0, &seg, 1, &n), -1);
        assert_status(larder_lease_segments(lease, 0, 1, &seg, 1, &n), -1);
        assert_status(larder_lease_segments(lease, 0, 0, &seg, 1, NULL), -1);
        assert_status(larder_lease_segments(lease, 0, 0, NULL, 1, &n), -1);
        larder_release(&lease);
        assert_null(lease);
        larder_release(&lease);
        assert_status(larder_flush(f->lar, LARDER_TIER_SSD, LARDER_FOREVER),
                      LARDER_OK);
        assert_int_equal(stats_of(f->lar).dram_leased_chunks, 0);
        fix_close(f);
        fix_open(f, "dram=32M&ssd=128M");
    }
    /* Nothing to stage: no lease. */
    lease = (larder_lease_t *)keys;
    assert_status(larder_stage(f->space, &keys[CHUNKS], 1, 0, 0, &lease, &m),
                  LARDER_MISS);
    assert_null(lease);
    assert_int_equal(m.chunks, 0);
}

/* Chunks of several shards: whole ones are leased, halves given back. */
static void test_stage_shards(void **state)
{
    enum { CHUNKS = 40, SHARDS = 3 };
    fix_t *f = fix(state);
    larder_key_t keys[CHUNKS];
    uint8_t data[5000];
    larder_lease_t *lease = NULL;
    larder_match_t m = {.struct_bytes = sizeof(m)};

    fix_open(f, "dram=32M&ssd=128M");
    larder_space_t *wide = open_space(f->lar, "wide", SHARDS);
    for (uint64_t c = 0; c < CHUNKS; c++) {
        keys[c] = key_of(c);
        for (uint16_t i = 0; i < (c == 30 ? 2 : SHARDS); i++) {
            content(c * 8 + i, data, sizeof(data));
            assert_status(run_one(wide, LARDER_OP_PUT, c, i, data, 5000).status,
                          0);
        }
    }
    for (unsigned pass = 0; pass < 2; pass++) {
        assert_status(larder_stage(wide, keys, CHUNKS, 0, 0, &lease, &m), 0);
        assert_int_equal(m.chunks, 30);
        for (uint32_t i = 0; i < 30 * SHARDS; i++) {
            check_segments(lease, i / SHARDS, (uint16_t)(i % SHARDS),
                           i / SHARDS * 8 + i % SHARDS, 5000);
        }
        larder_release(&lease);
        larder_space_close(&wide);
        fix_close(f);
        fix_open(f, "dram=32M&ssd=128M");
        wide = open_space(f->lar, "wide", SHARDS);
    }
    larder_space_close(&wide);
}

/* The same bytes at the same place while the arena is turned over many
 * times, its space is reset and its key removed. */
static void test_held_under_pressure(void **state)
{
    enum { CHUNKS = 8 };
    const size_t bytes = 300000;
    fix_t *f = fix(state);
    larder_key_t keys[CHUNKS];
    larder_lease_t *lease = NULL, *second = NULL;
    larder_match_t m = {.struct_bytes = sizeof(m)};

    fix_open_dram(f, "dram=8M");
    put_chain(f->space, 0, CHUNKS, bytes, keys);
    assert_status(larder_stage(f->space, keys, CHUNKS, 0, 0, &lease, &m), 0);
    assert_status(larder_stage(f->space, keys, 3, 0, 0, &second, &m), 0);
    assert_int_equal(m.chunks, 3);
    for (uint64_t i = 0; i < 100; i++) {
        assert_status(put_n(f->space, 1000 + i, MIB), LARDER_OK);
    }
    assert_true(stats_of(f->lar).evicted_chunks > 90);
    for (uint32_t i = 0; i < CHUNKS; i++) {
        assert_status(get_n(f->space, i, bytes).status, LARDER_OK);
        check_segments(lease, i, 0, i, bytes); /* by TCP: fetched here */
    }
    larder_release(&second);
    assert_status(run_one(f->space, LARDER_OP_REMOVE, 2, 0, NULL, 0).status, 0);
    assert_status(larder_space_reset(f->space, 0), LARDER_OK);
    assert_status(get_n(f->space, 1, bytes).status, LARDER_MISS);
    assert_status(get_n(f->space, 2, bytes).status, LARDER_MISS);
    for (uint64_t i = 0; i < 100; i++) {
        assert_status(put_n(f->space, 2000 + i, MIB), LARDER_OK);
    }
    for (uint32_t i = 0; i < CHUNKS; i++) {
        check_segments(lease, i, 0, i, bytes);
    }
    larder_release(&lease);
    assert_int_equal(stats_of(f->lar).dram_leased_chunks, 0);
}

static void test_all_leased(void **state)
{
    enum { CHUNKS = 8 };
    fix_t *f = fix(state);
    larder_key_t keys[CHUNKS];
    larder_lease_t *lease = NULL;
    larder_match_t m = {.struct_bytes = sizeof(m)};

    fix_open(f, "dram=8M&ssd=64M");
    put_chain(f->space, 0, CHUNKS, MIB, keys);
    assert_status(larder_flush(f->lar, LARDER_TIER_SSD, LARDER_FOREVER), 0);
    assert_status(larder_stage(f->space, keys, CHUNKS, 0, 0, &lease, &m), 0);
    assert_int_equal(m.chunks, CHUNKS);
    /* At once, however long it would be allowed to wait. */
    uint8_t data[10] = {0};
    larder_key_t key = key_of(50);
    struct iovec iov = {data, sizeof(data)};
    larder_item_t item = {.key = &key, .iov = &iov, .iov_count = 1};
    larder_op_params_t forever = {.field_mask = LARDER_OP_TIMEOUT,
                                  .timeout_ms = LARDER_FOREVER};
    assert_status(larder_run(f->space, LARDER_OP_PUT, &item, 1, &forever), 0);
    assert_status(item.status, LARDER_E_FULL);
    assert_int_equal(stats_of(f->lar).saves_full, 1);
    /* What is there is still served. */
    assert_status(get_n(f->space, 3, MIB).status, LARDER_OK);
    larder_release(&lease);
    assert_status(larder_run(f->space, LARDER_OP_PUT, &item, 1, NULL), 0);
    assert_status(item.status, LARDER_OK);
}

/* The whole chain is on disk, and only a part of it fits into DRAM. */
static void test_stage_beyond_arena(void **state)
{
    enum { CHUNKS = 20 };
    fix_t *f = fix(state);
    larder_key_t keys[CHUNKS];
    larder_lease_t *lease = NULL, *none = NULL;
    larder_match_t m = {.struct_bytes = sizeof(m)};

    fix_open(f, "dram=32M&ssd=128M");
    put_chain(f->space, 0, CHUNKS, MIB, keys);
    fix_close(f);
    fix_open(f, "dram=8M&ssd=128M");
    assert_status(larder_stage(f->space, keys, CHUNKS, 0, 0, &lease, &m), 0);
    assert_int_equal(m.chunks, 8);
    assert_int_equal(m.cause, LARDER_CAUSE_FULL);
    for (uint32_t i = 0; i < 8; i++) {
        check_segments(lease, i, 0, i, MIB);
    }
    assert_status(larder_stage(f->space, keys + 10, 1, 0, 0, &none, &m),
                  LARDER_MISS);
    assert_int_equal(m.cause, LARDER_CAUSE_FULL);
    assert_int_equal(get_n(f->space, 10, MIB).cause, LARDER_CAUSE_FULL);
    larder_release(&lease);
    assert_status(larder_stage(f->space, keys + 8, 8, 0, 0, &lease, &m), 0);
    assert_int_equal(m.chunks, 8);
    larder_release(&lease);
}

/* What is read in place lies in the session's window: half of that is left to
 * loads and saves. */
static void test_stage_in_window(void **state)
{
    enum { CHUNKS = 40, BYTES = 64 << 10, PAGES = 32 };
    fix_t *f = fix(state);
    larder_key_t keys[CHUNKS];
    larder_lease_t *lease = NULL;
    larder_match_t m = {.struct_bytes = sizeof(m)};

    if (!transport_is("strict")) {
        return;
    }
    fix_open_dram(f, "dram=32M&strict_window=2M");
    put_chain(f->space, 0, CHUNKS, BYTES, keys);
    assert_status(larder_stage(f->space, keys, CHUNKS, 0, 0, &lease, &m), 0);
    assert_in_range(m.chunks, 2, PAGES / 2);
    assert_int_equal(m.cause, LARDER_CAUSE_FULL);
    assert_int_equal(m.found, CHUNKS);
    for (uint32_t i = 0; i < m.chunks; i++) {
        check_segments(lease, i, 0, i, BYTES);
    }
    assert_status(get_n(f->space, CHUNKS - 1, BYTES).status, LARDER_OK);
    assert_status(put_n(f->space, CHUNKS, BYTES), LARDER_OK);
    larder_release(&lease);
}

static void test_lease_limit(void **state)
{
    fix_t *f = fix(state);
    larder_key_t keys[10];
    larder_lease_t *a = NULL, *b = NULL;
    larder_match_t m = {.struct_bytes = sizeof(m)};

    fix_open_dram(f, "dram=8M&leases=10");
    put_chain(f->space, 0, 10, 1000, keys);
    assert_status(larder_stage(f->space, keys, 7, 0, 0, &a, &m), LARDER_OK);
    assert_status(larder_stage(f->space, keys, 4, 0, 0, &b, &m),
                  LARDER_E_LIMIT);
    assert_null(b);
    assert_non_null(strstr(larder_last_error(), "leases"));
    assert_status(larder_stage(f->space, keys, 3, 0, 0, &b, &m), LARDER_OK);
    larder_release(&a);
    assert_status(larder_stage(f->space, keys, 7, 0, 0, &a, &m), LARDER_OK);
    larder_release(&a);
    larder_release(&b);
    for (unsigned i = 0; i < 100; i++) { /* the count does not drift */
        assert_status(larder_stage(f->space, keys, 10, 0, 0, &a, &m), 0);
        larder_release(&a);
    }
}

/* A flipped bit ends the prefix where it is, and is not leased. */
static void test_stage_corrupt(void **state)
{
    enum { CHUNKS = 6 };
    fix_t *f = fix(state);
    larder_key_t keys[CHUNKS];
    larder_lease_t *lease = NULL;
    larder_match_t m = {.struct_bytes = sizeof(m)};
    struct iovec seg;
    uint32_t n;

    fix_open_dram(f, "dram=8M");
    put_chain(f->space, 0, CHUNKS, 60000, keys);
    assert_status(larder_stage(f->space, keys + 3, 1, 0, 0, &lease, &m), 0);
    assert_status(larder_lease_segments(lease, 0, 0, &seg, 1, &n), LARDER_OK);
    ((uint8_t *)seg.iov_base)[59999] ^= 128; /* the forbidden thing */
    larder_release(&lease);
    assert_status(larder_stage(f->space, keys, CHUNKS, 0, 0, &lease, &m), 0);
    assert_int_equal(m.chunks, 3);
    assert_int_equal(m.cause, LARDER_CAUSE_CORRUPT);
    assert_int_equal(stats_of(f->lar).misses[LARDER_CAUSE_CORRUPT], 1);
    larder_release(&lease);
    assert_int_equal(stats_of(f->lar).dram_leased_chunks, 0);
}

/* Stages a chain of which every chunk is there, while every look at the clock
 * takes a millisecond. Gives how many it took. */
static uint64_t stage_slowly(fix_t *f, const larder_key_t *keys, uint32_t count,
                             uint32_t timeout_ms, larder_lease_t **lease_p,
                             larder_match_t *m)
{
    uint64_t begin_ns = f->clock.now_ns;

    f->clock.tick_ns = 1000000;
    assert_status(
        larder_stage(f->space, keys, count, 0, timeout_ms, lease_p, m),
        LARDER_OK);
    f->clock.tick_ns = 0;
    return (f->clock.now_ns - begin_ns) / 1000000;
}

/* Its time ends while chunks are checked: those that were until then. */
static void test_stage_late(void **state)
{
    enum { LONG = 64 };
    fix_t *f = fix(state);
    larder_key_t keys[LONG];
    larder_lease_t *lease = NULL;
    larder_match_t m = {.struct_bytes = sizeof(m)};

    fix_open_sim(f, "dram=32M&ssd=64M&segment=1M");
    put_chain(f->space, 600, LONG, 1000, keys);
    uint64_t ms = stage_slowly(f, keys, LONG, 100000, &lease, &m);
    assert_int_equal(m.chunks, LONG);
    larder_release(&lease);
    stage_slowly(f, keys, LONG, (uint32_t)(ms * 3 / 4), &lease, &m);
    assert_in_range(m.chunks, 1, LONG - 1);
    assert_int_equal(m.cause, LARDER_CAUSE_DEADLINE);
    assert_int_equal(stats_of(f->lar).dram_leased_chunks, m.chunks);
    check_segments(lease, m.chunks - 1, 0, 600 + m.chunks - 1, 1000);
    larder_release(&lease);
    assert_int_equal(stats_of(f->lar).dram_leased_chunks, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOTH(test_stage),
        BOTH(test_stage_shards),
        ONE(test_held_under_pressure, "plain"),
        BOTH(test_all_leased),
        BOTH(test_stage_beyond_arena),
        ONE(test_stage_in_window, "plain"),
        ONE(test_lease_limit, "plain"),
        EMBED_ONE(test_stage_corrupt, "plain"),
        EMBED_ONE(test_stage_late, "plain"),
    };

    return cmocka_run_group_tests_name("client/leases", tests, NULL, NULL);
}
