/*
 * How long a shard lives: TTL, soft pins and their budget, and room that only
 * comes when a write has landed. The calendar is the tests', so that nobody
 * waits for it.
 */
#include "client/support.h"

#define MIB ((size_t)1 << 20)

static larder_status_t put_with(larder_space_t *space, uint64_t n, size_t bytes,
                                uint32_t flags, uint32_t ttl_ms)
{
    uint8_t *data = malloc(bytes);
    struct iovec iov = {data, bytes};
    larder_key_t key = key_of(n);
    larder_item_t item = {.key = &key,
                          .iov = &iov,
                          .iov_count = 1,
                          .flags = flags,
                          .ttl_ms = ttl_ms};

    content(n, data, bytes);
    assert_status(larder_run(space, LARDER_OP_PUT, &item, 1, NULL), LARDER_OK);
    free(data);
    return item.status;
}

/* ---- TTL ---- */

static void set_wall(fix_t *f, uint64_t wall_s)
{
    __atomic_store_n(&f->clock.wall_s, wall_s, __ATOMIC_RELAXED);
}

static void test_ttl(void **state)
{
    fix_t *f = fix(state);

    for (unsigned pass = 0; pass < 2; pass++) { /* in DRAM, on disk */
        uint64_t start_s = f->clock.wall_s;

        fix_open_wall(f, "dram=8M&ssd=64M");
        assert_status(put_with(f->space, 1, 5000, 0, 1), LARDER_OK);
        assert_status(put_with(f->space, 2, 5000, 0, 10000), LARDER_OK);
        assert_status(put_with(f->space, 3, 5000, 0, 0), LARDER_OK);
        assert_status(put_with(f->space, 4, 5000, 0, UINT32_MAX), LARDER_OK);
        for (uint64_t i = 1; i <= 4; i++) {
            assert_status(get_n(f->space, i, 5000).status, LARDER_OK);
        }
        if (pass == 1) {
            assert_status(larder_flush(f->lar, LARDER_TIER_SSD, LARDER_FOREVER),
                          0);
            fix_close(f);
            fix_open_wall(f, "dram=8M&ssd=64M");
        }
        set_wall(f, start_s + 1); /* whole seconds, never too early */
        assert_int_equal(get_n(f->space, 1, 5000).cause, LARDER_CAUSE_STALE);
        set_wall(f, start_s + 9);
        assert_status(get_n(f->space, 2, 5000).status, LARDER_OK);
        set_wall(f, start_s + 10);
        assert_int_equal(exists_n(f->space, 2).cause, LARDER_CAUSE_STALE);
        /* What has expired may be put again. */
        assert_status(put_with(f->space, 1, 5000, 0, 0), LARDER_OK);
        assert_status(get_n(f->space, 1, 5000).status, LARDER_OK);
        set_wall(f, start_s + 4000000);
        assert_status(get_n(f->space, 4, 5000).status, LARDER_OK);
        set_wall(f, start_s + 4294968);
        assert_status(get_n(f->space, 4, 5000).status, LARDER_MISS);
        assert_status(get_n(f->space, 3, 5000).status, LARDER_OK);
        assert_status(larder_space_reset(f->space, 0), LARDER_OK);
        assert_status(larder_flush(f->lar, LARDER_TIER_SSD, LARDER_FOREVER), 0);
        fix_close(f);
    }
    /* Expired while nobody looked: not found when it is opened again. */
    fix_open_wall(f, "dram=8M&ssd=64M");
    assert_status(put_with(f->space, 7, 5000, 0, 5000), LARDER_OK);
    assert_status(larder_flush(f->lar, LARDER_TIER_SSD, LARDER_FOREVER), 0);
    fix_close(f);
    set_wall(f, f->clock.wall_s + 6);
    fix_open_wall(f, "dram=8M&ssd=64M");
    assert_status(get_n(f->space, 7, 5000).status, LARDER_MISS);
}

/* ---- pins ---- */

static unsigned present(larder_space_t *space, uint64_t first, uint64_t count)
{
    unsigned n = 0;

    for (uint64_t i = 0; i < count; i++) {
        n += exists_n(space, first + i).status == LARDER_OK;
    }
    return n;
}

static void test_pin_survives(void **state)
{
    fix_t *f = fix(state);

    fix_open_dram(f, "dram=16M&pin_max=4M");
    for (uint64_t i = 0; i < 4; i++) {
        assert_status(put_with(f->space, i, MIB, LARDER_PUT_PIN, 0), 0);
        assert_status(put_with(f->space, 100 + i, MIB, 0, 0), LARDER_OK);
    }
    assert_int_equal(stats_of(f->lar).pinned_bytes, 4 * MIB);
    for (uint64_t i = 0; i < 60; i++) {
        assert_status(put_n(f->space, 1000 + i, MIB), LARDER_OK);
    }
    assert_int_equal(present(f->space, 0, 4), 4);
    assert_int_equal(present(f->space, 100, 4), 0);
    for (uint64_t i = 0; i < 4; i++) {
        assert_status(get_n(f->space, i, MIB).status, LARDER_OK);
    }
    /* Removed or reset, it gives its budget back. */
    assert_status(run_one(f->space, LARDER_OP_REMOVE, 0, 0, NULL, 0).status, 0);
    assert_int_equal(stats_of(f->lar).pinned_bytes, 3 * MIB);
    assert_status(put_with(f->space, 50, MIB, LARDER_PUT_PIN, 0), LARDER_OK);
    assert_int_equal(stats_of(f->lar).pinned_bytes, 4 * MIB);
}

/* Beyond its budget a tenant's put works, and is simply not pinned. */
static void test_pin_budget(void **state)
{
    fix_t *f = fix(state);
    larder_space_params_t p = {.field_mask = LARDER_SPACE_TENANT,
                               .descriptor = "model",
                               .descriptor_bytes = 5,
                               .tenant = "somebody else"};
    larder_space_t *other = NULL;

    fix_open_dram(f, "dram=16M&pin_max=3M");
    assert_status(larder_space_open(f->lar, &p, &other), LARDER_OK);
    for (uint64_t i = 0; i < 6; i++) {
        assert_status(put_with(f->space, i, MIB, LARDER_PUT_PIN, 0), 0);
    }
    assert_int_equal(stats_of(f->lar).pinned_bytes, 3 * MIB);
    /* Each tenant has its own. */
    for (uint64_t i = 0; i < 6; i++) {
        assert_status(put_with(other, i, MIB, LARDER_PUT_PIN, 0), 0);
    }
    assert_int_equal(stats_of(f->lar).pinned_bytes, 6 * MIB);
    for (uint64_t i = 0; i < 60; i++) {
        assert_status(put_n(f->space, 1000 + i, MIB), LARDER_OK);
    }
    assert_int_equal(present(f->space, 0, 3), 3);
    assert_int_equal(present(f->space, 3, 3), 0);
    /* And what one evicts is its own. */
    assert_int_equal(present(other, 0, 6), 6);
    larder_space_close(&other);
}

/* The budget is for whole chunks, however many shards they come in. */
static void test_pin_shards(void **state)
{
    enum { SHARDS = 4 };
    fix_t *f = fix(state);
    uint8_t *data = calloc(1, MIB);
    struct iovec iov = {data, MIB};

    fix_open_dram(f, "dram=32M&pin_max=6M");
    larder_space_t *wide = open_space(f->lar, "wide", SHARDS);
    for (uint64_t c = 0; c < 4; c++) {
        for (uint16_t i = 0; i < SHARDS; i++) {
            larder_key_t key = key_of(c);
            larder_item_t item = {.key = &key,
                                  .shard = i,
                                  .iov = &iov,
                                  .iov_count = 1,
                                  .flags = LARDER_PUT_PIN};

            assert_status(larder_run(wide, LARDER_OP_PUT, &item, 1, NULL), 0);
            assert_status(item.status, LARDER_OK);
            assert_true(stats_of(f->lar).pinned_bytes <= 6 * MIB);
        }
    }
    assert_int_equal(stats_of(f->lar).pinned_bytes, SHARDS * MIB);
    for (uint64_t i = 0; i < 60; i++) {
        assert_status(put_n(f->space, 1000 + i, MIB), LARDER_OK);
    }
    assert_int_equal(present(wide, 0, 4), 1);
    free(data);
    larder_space_close(&wide);
}

/* Soft: where all is pinned the oldest pin makes room, no put fails. */
static void test_pin_is_soft(void **state)
{
    fix_t *f = fix(state);

    fix_open_dram(f, "dram=8M&pin_max=1G");
    for (uint64_t i = 0; i < 8; i++) {
        assert_status(put_with(f->space, i, MIB, LARDER_PUT_PIN, 0), 0);
    }
    assert_int_equal(stats_of(f->lar).pinned_bytes, 8 * MIB);
    assert_status(put_n(f->space, 100, MIB), LARDER_OK);
    assert_int_equal(present(f->space, 0, 1), 0);
    assert_int_equal(present(f->space, 1, 7), 7);
    for (uint64_t i = 0; i < 40; i++) {
        assert_status(put_with(f->space, 200 + i, MIB, LARDER_PUT_PIN, 0), 0);
    }
    assert_int_equal(stats_of(f->lar).pinned_bytes, 8 * MIB);
    assert_int_equal(present(f->space, 232, 8), 8);
}

/* ---- room ---- */

/* All of a small arena is being written down: a put waits for that, since
 * nothing is leased. */
static void test_room_comes_with_writes(void **state)
{
    fix_t *f = fix(state);
    unsigned waited = 0;

    fix_open_sim(f, "dram=8M&ssd=128M&segment=16M");
    ldr_node_t *node = f->lar->node;
    for (uint64_t i = 0; i < 8; i++) {
        /* Until the write is off, and before anybody notes that it landed. */
        while (node->store.queues[0].count > 0 && ldr_node_step(node)) {
        }
        waited += stats_of(f->lar).dram_leased_chunks == 1;
        assert_status(put_n(f->space, i, 8 * MIB), LARDER_OK);
    }
    assert_true(waited > 0); /* or the test has missed its point */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        EMBED_BOTH(test_ttl),
        ONE(test_pin_survives, "plain"),
        EMBED_ONE(test_pin_budget, "plain"),
        ONE(test_pin_shards, "plain"),
        ONE(test_pin_is_soft, "plain"),
        EMBED_ONE(test_room_comes_with_writes, "plain"),
    };

    return cmocka_run_group_tests_name("client/life", tests, NULL, NULL);
}
