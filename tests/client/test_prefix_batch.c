/* Prefixes of many batches, when their time ends in the middle of it. */
#include "client/wide_rig.h"

enum { BATCHES = 30, PER_BATCH = 8, SHARDS = BATCHES * PER_BATCH };

/* Saves a prompt, while every look at the clock takes so long. */
static larder_move_t save(fix_t *f, larder_space_t *space, wide_t *e,
                          larder_key_t *keys, uint64_t tick_ns,
                          uint32_t timeout_ms)
{
    larder_move_t move = {.struct_bytes = sizeof(larder_move_t),
                          .keys = keys,
                          .tables = e->tables,
                          .end = e->tokens,
                          .timeout_ms = timeout_ms};

    model_keys(&e->model, space, keys, SHARDS);
    f->clock.tick_ns = tick_ns;
    assert_status(larder_prefix_save(space, e->layout, &move), LARDER_OK);
    f->clock.tick_ns = 0;
    return move;
}

/* The batch in which the deadline is passed is the last one. */
static void test_late_save(void **state)
{
    enum { TICK_NS = 50000 };
    /* As many pages as there may be: few shards are a batch. */
    const model_t m = {.seed = 7200,
                       .chunk_tokens = LARDER_IOV_MAX,
                       .group_count = 1,
                       .groups = {{.block_tokens = 1}}};
    fix_t *f = fix(state);
    larder_key_t keys[SHARDS];
    wide_t e;
    ldr_rand_t r;

    ldr_rand_seed(&r, 71);
    fix_open_sim(f, "dram=64M&ssd=64M&segment=1M");
    wide_make(&e, &m, SHARDS, 5, &r);
    wide_fill(&e, false);
    larder_space_t *space = model_space(f->lar, &e.model, 1);
    uint64_t begin_ns = f->clock.now_ns;
    larder_move_t all = save(f, space, &e, keys, TICK_NS, LARDER_FOREVER);
    uint64_t one_ns = (f->clock.now_ns - begin_ns) / SHARDS;
    assert_int_equal(all.shards, SHARDS);
    larder_space_close(&space);

    e.model.seed++; /* another prompt */
    space = model_space(f->lar, &e.model, 1);
    uint64_t time_ns = one_ns * PER_BATCH * 3 / 2;
    larder_move_t some =
        save(f, space, &e, keys, TICK_NS, (uint32_t)(time_ns / 1000000));
    assert_in_range(some.shards, 1, 2 * PER_BATCH - 1);
    assert_int_equal(some.shards + some.failed, SHARDS);
    assert_status(some.item, LARDER_E_DEADLINE);
    for (uint32_t i = 2 * PER_BATCH; i < SHARDS; i++) {
        larder_item_t item = {.key = &keys[i]};

        assert_status(larder_run(space, LARDER_OP_EXISTS, &item, 1, NULL), 0);
        assert_status(item.status, LARDER_MISS);
    }
    larder_space_close(&space);
    wide_free(&e);
}

/* Of one group that needs all, what was staged in time is a prefix. */
static void test_late_stage(void **state)
{
    enum { LONG = 64 };
    const model_t m = {.seed = 7300,
                       .chunk_tokens = 4,
                       .group_count = 1,
                       .groups = {{.block_tokens = 4}}};
    fix_t *f = fix(state);
    larder_key_t keys[LONG];
    larder_lease_t *lease = NULL;
    larder_match_t match = {.struct_bytes = sizeof(match)};
    wide_t e;
    ldr_rand_t r;

    ldr_rand_seed(&r, 73);
    fix_open_sim(f, "dram=64M&ssd=64M&segment=1M");
    wide_make(&e, &m, LONG, 1000, &r);
    larder_space_t *space = model_space(f->lar, &e.model, 1);
    larder_move_t move = {.struct_bytes = sizeof(larder_move_t),
                          .keys = keys,
                          .tables = e.tables,
                          .end = e.tokens};
    model_keys(&e.model, space, keys, LONG);
    assert_status(larder_prefix_save(space, e.layout, &move), LARDER_OK);
    uint64_t ms = 0;
    for (unsigned i = 0; i < 2; i++) { /* the first time it has enough */
        uint64_t begin_ns = f->clock.now_ns;

        f->clock.tick_ns = 1000000;
        assert_status(
            larder_prefix_stage(space, e.layout, keys, LONG, NULL,
                                i == 0 ? 100000 : (uint32_t)(ms * 3 / 4),
                                &lease, &match),
            LARDER_OK);
        f->clock.tick_ns = 0;
        ms = (f->clock.now_ns - begin_ns) / 1000000;
        assert_in_range(match.chunks, i == 0 ? LONG : 1, LONG - i);
        assert_int_equal(match.tier_chunks[LARDER_TIER_DRAM], match.chunks);
        assert_int_equal(match.cause,
                         i == 0 ? LARDER_CAUSE_NONE : LARDER_CAUSE_DEADLINE);
        assert_int_equal(stats_of(f->lar).dram_leased_chunks, match.chunks);
        larder_release(&lease);
    }
    larder_space_close(&space);
    wide_free(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        EMBED_ONE(test_late_save, "plain"),
        EMBED_ONE(test_late_stage, "plain"),
    };

    return cmocka_run_group_tests_name("client/prefix_batch", tests, NULL,
                                       NULL);
}
