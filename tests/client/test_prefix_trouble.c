/* Whole prefixes when they are long, when there is no room, no memory or no
 * time for them, when the node is gone, and from many threads. */
#include "client/wide_rig.h"

enum { SLACK_MS = 10000, PATIENCE_MS = 60000 };

/* ---- long ones ---- */

/* Saves in three parts what one engine has, loads it into another. */
static void move_all(larder_space_t *space, const wide_t *a, const wide_t *b,
                     larder_key_t *keys, larder_match_t *match)
{
    const uint32_t ends[] = {0, a->tokens / 7, a->tokens / 2 + 1, a->tokens};
    larder_move_t move = {.struct_bytes = sizeof(larder_move_t),
                          .keys = keys,
                          .tables = a->tables};
    uint8_t *loaded = malloc(b->memory_bytes);
    uint32_t shards = 0;

    model_keys(&a->model, space, keys, a->chunks);
    wide_fill(a, false);
    for (uint32_t part = 1; part < COUNT_OF(ends); part++) {
        move.begin = ends[part - 1];
        move.end = ends[part];
        assert_status(larder_prefix_save(space, a->layout, &move), LARDER_OK);
        assert_int_equal(move.failed + move.skipped + move.present, 0);
        shards += move.shards;
    }
    assert_int_equal(shards, a->model.group_count * a->chunks);
    assert_status(
        larder_prefix_match(space, b->layout, keys, a->chunks, 0, match), 0);
    assert_int_equal(match->chunks, a->chunks);
    move = (larder_move_t){.struct_bytes = sizeof(larder_move_t),
                           .keys = keys,
                           .tables = b->tables,
                           .end = a->tokens};
    assert_status(larder_prefix_load(space, b->layout, &move), LARDER_OK);
    assert_int_equal(move.shards, match->tier_chunks[LARDER_TIER_DRAM]);
    assert_int_equal(move.bytes, match->tier_bytes[LARDER_TIER_DRAM]);
    memcpy(loaded, b->memory, b->memory_bytes);
    memset(b->memory, 0, b->memory_bytes);
    wide_fill(b, true);
    assert_memory_equal(loaded, b->memory, b->memory_bytes);
    free(loaded);
}

/* More chunks than a batch has, in three groups, and a hole in the middle. */
static void test_many_chunks(void **state)
{
    enum { LONG = 1500 };
    const model_t m = {.seed = 7000,
                       .chunk_tokens = 4,
                       .group_count = 3,
                       .groups = {{.block_tokens = 2},
                                  {LARDER_RULE_TRAILING, 1, 2500, NULL, 0},
                                  {LARDER_RULE_LAST, 4, 0, NULL, 0}}};
    fix_t *f = fix(state);
    larder_key_t *keys = malloc(LONG * sizeof(*keys));
    larder_lease_t *lease = NULL;
    larder_match_t match = {.struct_bytes = sizeof(match)},
                   staged = {.struct_bytes = sizeof(staged)};
    wide_t a, b;
    ldr_rand_t r;

    ldr_rand_seed(&r, 29);
    fix_open_dram(f, "dram=320M");
    wide_make(&a, &m, LONG, 20, &r);
    wide_make(&b, &m, LONG, 20, &r);
    larder_space_t *space = model_space(f->lar, &m, 1);
    move_all(space, &a, &b, keys, &match);
    /* 6000 - 2500 + 1 tokens are out of the window. */
    assert_int_equal(match.tier_chunks[LARDER_TIER_DRAM],
                     1500 + (1500 - 3501 / 4) + 1);
    assert_status(larder_prefix_stage(space, b.layout, keys, LONG, NULL, 0,
                                      &lease, &staged),
                  LARDER_OK);
    assert_int_equal(staged.chunks, LONG);
    assert_int_equal(staged.tier_chunks[LARDER_TIER_DRAM],
                     match.tier_chunks[LARDER_TIER_DRAM]);
    larder_release(&lease);
    assert_int_equal(stats_of(f->lar).dram_leased_chunks, 0);
    /* The window of any longer prefix, up to 1250 + 624, has chunk 1250. */
    larder_item_t item = {.key = &keys[1250], .group = 1};
    assert_status(larder_run(space, LARDER_OP_REMOVE, &item, 1, NULL), 0);
    assert_status(larder_prefix_match(space, b.layout, keys, LONG, 0, &match),
                  LARDER_OK);
    assert_int_equal(match.chunks, 1250);
    larder_space_close(&space);
    wide_free(&a);
    wide_free(&b);
    free(keys);
}

/* Shards of as many pages as there may be: few of them fill a batch. */
static void test_many_pages(void **state)
{
    enum { LONG = 20 };
    const model_t m = {.seed = 7001,
                       .chunk_tokens = LARDER_IOV_MAX,
                       .group_count = 2,
                       .groups = {{.block_tokens = 1},
                                  {LARDER_RULE_TRAILING, 1, 10000, NULL, 0}}};
    fix_t *f = fix(state);
    larder_key_t keys[LONG];
    larder_match_t match = {.struct_bytes = sizeof(match)};
    wide_t a, b;
    ldr_rand_t r;

    ldr_rand_seed(&r, 31);
    fix_open_dram(f, "dram=64M");
    wide_make(&a, &m, LONG, 5, &r);
    wide_make(&b, &m, LONG, 5, &r);
    larder_space_t *space = model_space(f->lar, &m, 1);
    move_all(space, &a, &b, keys, &match);
    assert_int_equal(match.tier_chunks[LARDER_TIER_DRAM], LONG + 3);
    larder_space_close(&space);
    wide_free(&a);
    wide_free(&b);
}

/* ---- no room ---- */

/* More on disk than DRAM has room for: as much as fits, of every group. */
static void test_beyond_arena(void **state)
{
    enum { LONG = 20, BYTES = 512 << 10 };
    const model_t m = {.seed = 7002,
                       .chunk_tokens = 4,
                       .group_count = 2,
                       .groups = {{.block_tokens = 4}, {.block_tokens = 4}}};
    fix_t *f = fix(state);
    larder_key_t keys[LONG];
    larder_lease_t *lease = NULL;
    larder_match_t match = {.struct_bytes = sizeof(match)};
    wide_t a, b;
    ldr_rand_t r;

    ldr_rand_seed(&r, 37);
    fix_open(f, "dram=64M&ssd=128M");
    wide_make(&a, &m, LONG, BYTES, &r);
    wide_make(&b, &m, LONG, BYTES, &r);
    larder_space_t *space = model_space(f->lar, &m, 1);
    move_all(space, &a, &b, keys, &match);
    larder_space_close(&space);
    fix_close(f);
    fix_open(f, "dram=8M&ssd=128M");
    space = model_space(f->lar, &m, 1);
    assert_status(larder_prefix_match(space, b.layout, keys, LONG, 0, &match),
                  LARDER_OK);
    assert_int_equal(match.chunks, LONG);
    for (unsigned i = 0; i < 2; i++) {
        assert_status(larder_prefix_stage(space, b.layout, keys, LONG, NULL, 0,
                                          &lease, &match),
                      LARDER_OK);
        assert_in_range(match.chunks, 4, 8);
        assert_int_equal(match.cause, LARDER_CAUSE_FULL);
        assert_int_equal(match.tier_chunks[0] + match.tier_chunks[1],
                         2 * match.chunks);
        assert_non_null(lease);
        larder_release(&lease);
    }
    larder_move_t move = {.struct_bytes = sizeof(larder_move_t),
                          .keys = keys,
                          .tables = b.tables,
                          .end = b.tokens};
    assert_status(larder_prefix_load(space, b.layout, &move), LARDER_OK);
    larder_space_close(&space);
    wide_free(&a);
    wide_free(&b);
}

/* More than a bounce buffer has room for: what is staged leaves enough of it
 * to be loaded, one shard that is larger than half of it is staged all the
 * same, and what is present is still compared. */
static void test_beyond_window(void **state)
{
    enum { LONG = 40, BYTES = 128 << 10, LARGE = 1536 << 10 };
    const model_t m = {.seed = 7009,
                       .chunk_tokens = 4,
                       .group_count = 1,
                       .groups = {{.block_tokens = 4}}};
    fix_t *f = fix(state);
    bool strict = transport_is("strict");
    larder_key_t keys[LONG], large = key_of(1);
    larder_lease_t *lease, *other;
    larder_match_t match = {.struct_bytes = sizeof(match)};
    size_t bytes = 0;
    wide_t a, b;
    ldr_rand_t r;

    ldr_rand_seed(&r, 67);
    fix_open_dram(f, strict ? "dram=32M&strict_window=2M" : "dram=32M");
    wide_make(&a, &m, LONG, BYTES, &r);
    wide_make(&b, &m, LONG, BYTES, &r);
    larder_space_t *space = model_space(f->lar, &m, 1);
    move_all(space, &a, &b, keys, &match);
    assert_status(put_n(f->space, 1, LARGE), LARDER_OK);
    assert_status(larder_prefix_stage(space, b.layout, keys, LONG, NULL, 2000,
                                      &lease, &match),
                  LARDER_OK);
    uint8_t *memory = malloc(2 * LONG * BYTES);
    assert_status(larder_prefix_fetch(space, b.layout, lease, keys,
                                      match.chunks, memory, 2 * LONG * BYTES,
                                      2000, &bytes),
                  LARDER_OK);
    assert_int_equal(match.chunks, LONG);
    larder_move_t move = {.struct_bytes = sizeof(larder_move_t),
                          .keys = keys,
                          .tables = b.tables,
                          .end = match.chunks * m.chunk_tokens};
    memset(b.memory, 0, b.memory_bytes);
    assert_status(larder_prefix_place(b.layout, &move, memory, bytes),
                  LARDER_OK);
    for (uint32_t i = 0; i < match.chunks; i++) {
        assert_true(content_is(i, b.memory + b.ids[i] * b.stride, BYTES));
    }
    larder_op_params_t params = {.field_mask = LARDER_OP_FLAGS,
                                 .flags = LARDER_VERIFY_PUT};
    struct iovec wrong = {memory, BYTES};
    larder_item_t item = {.key = &keys[0], .iov = &wrong, .iov_count = 1};
    assert_status(larder_run(space, LARDER_OP_PUT, &item, 1, &params), 0);
    assert_status(item.status, LARDER_E_MISMATCH);
    assert_status(larder_stage(f->space, &large, 1, 0, 2000, &other, &match),
                  LARDER_OK);
    assert_int_equal(match.cause, LARDER_CAUSE_NONE);
    larder_release(&lease);
    larder_release(&other);
    assert_status(larder_stage(f->space, &large, 1, 0, 2000, &other, &match),
                  LARDER_OK);
    larder_release(&other);
    free(memory);
    larder_space_close(&space);
    wide_free(&a);
    wide_free(&b);
}

/* More chunks than a handle may hold: a status, and nothing is held. Their
 * shards, of which there are more, do not count. */
static void test_lease_limit(void **state)
{
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p));
    larder_lease_t *lease = NULL;
    larder_match_t none = {.struct_bytes = sizeof(none)},
                   m = {.struct_bytes = sizeof(m)};
    ldr_rand_t r;

    memset(&none, 0xee, sizeof(none));
    ldr_rand_seed(&r, 41);
    fix_open_dram(f, "dram=32M&leases=7");
    pair_fixed(p, f->lar, &r, 7003, 2);
    pair_save(p, 0);
    pair_save(p, 1);
    memset(&lease, 0xee, sizeof(lease));
    m = none;
    assert_status(larder_prefix_stage(p->space, p->to[0].layout, p->keys,
                                      CHUNKS, NULL, 0, &lease, &m),
                  LARDER_E_LIMIT);
    assert_memory_equal(&m, &none, sizeof(m)); /* set only on success */
    assert_null(lease);
    assert_int_equal(stats_of(f->lar).dram_leased_chunks, 0);
    assert_status(larder_prefix_stage(p->space, p->to[0].layout, p->keys, 5,
                                      NULL, 0, &lease, &m),
                  LARDER_OK);
    assert_int_equal(m.chunks, 5);
    larder_release(&lease);
    pair_free(p);
    free(p);
}

/* ---- no memory ---- */

static larder_status_t call(pair_t *p, unsigned which, larder_lease_t **lease_p)
{
    const larder_layout_t *layout = p->to[0].layout;
    larder_table_t tables[GROUPS];
    larder_match_t m = {.struct_bytes = sizeof(m)};

    if (which == 0) {
        return larder_prefix_match(p->space, layout, p->keys, CHUNKS, 0, &m);
    }
    if (which == 1) {
        return larder_prefix_stage(p->space, layout, p->keys, CHUNKS, NULL, 0,
                                   lease_p, &m);
    }
    larder_move_t move = {.struct_bytes = sizeof(larder_move_t),
                          .keys = p->keys,
                          .tables = tables,
                          .end = CHUNKS * 8};
    engine_t *e = which == 2 ? &p->from[0] : &p->to[0];
    if (which == 2) {
        engine_tables(e, tables);
    } else {
        engine_expect(e, 0, move.end, tables);
    }
    larder_status_t st = which == 2
                             ? larder_prefix_save(p->space, e->layout, &move)
                             : larder_prefix_load(p->space, e->layout, &move);
    if (st == LARDER_OK && which == 3) {
        engine_check(e);
    }
    return st;
}

static void test_no_memory(void **state)
{
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p));
    ldr_rand_t r;

    ldr_rand_seed(&r, 43);
    fix_open_dram(f, "dram=32M");
    pair_fixed(p, f->lar, &r, 7004, 1);
    pair_save(p, 0);
    engine_clear(&p->from[0]);
    engine_compute(&p->from[0], CHUNKS * 8);
    for (unsigned which = 0; which < 4; which++) {
        larder_status_t st;
        unsigned failures = 0;

        /* With something to look for. */
        larder_item_t item = {.key = &p->keys[CHUNKS - 1], .group = 1};
        larder_run(p->space, which < 2 ? LARDER_OP_REMOVE : LARDER_OP_EXISTS,
                   &item, 1, NULL);
        do {
            larder_lease_t *lease = NULL;

            ldr_fault_arm(LDR_FAULT_alloc, failures + 1, 1);
            st = call(p, which, &lease);
            ldr_fault_disarm_all();
            failures += st != LARDER_OK;
            assert_int_equal(lease != NULL, st == LARDER_OK && which == 1);
            larder_release(&lease);
            if (st != LARDER_OK) {
                assert_status(st, LARDER_E_NO_MEMORY);
            }
            assert_int_equal(stats_of(f->lar).dram_leased_chunks, 0);
        } while (st != LARDER_OK && failures < 30);
        assert_in_range(failures, 1, 20);
    }
    pair_free(p);
    free(p);
}

/* ---- no time, no node ---- */

static void test_closed(void **state)
{
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p));
    larder_lease_t *held = NULL, *lease = NULL;
    larder_match_t m = {.struct_bytes = sizeof(m)};
    ldr_rand_t r;

    ldr_rand_seed(&r, 47);
    fix_open_dram(f, "dram=32M");
    pair_fixed(p, f->lar, &r, 7005, 1);
    pair_save(p, 0);
    assert_status(larder_prefix_stage(p->space, p->to[0].layout, p->keys,
                                      CHUNKS, NULL, 0, &held, &m),
                  LARDER_OK);
    assert_status(transport_close(&f->lar, LARDER_FOREVER), LARDER_OK);
    for (unsigned which = 0; which < 4; which++) {
        assert_status(call(p, which, &lease), LARDER_E_CLOSED);
    }
    assert_null(lease);
    larder_release(&held);
    pair_free(p);
    free(p);
}

/* Time passes with every look at the clock: the calls end, with what came of
 * it, and what was not loaded is not taken for loaded. */
static void test_late(void **state)
{
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p));
    larder_table_t tables[GROUPS];
    unsigned late = 0;
    ldr_rand_t r;

    ldr_rand_seed(&r, 53);
    fix_open_sim(f, "dram=8M&ssd=64M&segment=1M");
    pair_fixed(p, f->lar, &r, 7006, 1);
    pair_save(p, 0);
    engine_clear(&p->from[0]);
    engine_compute(&p->from[0], CHUNKS * 8);
    for (uint64_t tick_ms = 1; tick_ms < 20; tick_ms++) {
        larder_move_t move = {.struct_bytes = sizeof(larder_move_t),
                              .keys = p->keys,
                              .tables = tables,
                              .end = CHUNKS * 8,
                              .timeout_ms = 15};

        uint32_t shards = engine_expect(&p->to[0], 0, move.end, tables);
        f->clock.tick_ns = tick_ms * 1000000;
        larder_status_t st =
            larder_prefix_load(p->space, p->to[0].layout, &move);
        f->clock.tick_ns = 0;
        if (st == LARDER_OK) {
            assert_int_equal(move.shards, shards);
            engine_check(&p->to[0]);
        } else {
            assert_true(move.failed > 0 && move.shards + move.failed <= shards);
            assert_status(st, LARDER_MISS);
            assert_int_equal(move.cause, LARDER_CAUSE_DEADLINE);
            late++;
        }
        pair_t *q = calloc(1, sizeof(*q)); /* to be saved: another prompt */
        pair_fixed(q, f->lar, &r, 7100 + tick_ms, 1);
        engine_compute(&q->from[0], CHUNKS * 8);
        engine_tables(&q->from[0], tables);
        move.keys = q->keys;
        f->clock.tick_ns = tick_ms * 1000000;
        st = larder_prefix_save(q->space, q->from[0].layout, &move);
        f->clock.tick_ns = 0;
        assert_status(st, LARDER_OK);
        assert_int_equal(move.shards + move.failed, 3 * CHUNKS);
        assert_status(move.item,
                      move.failed > 0 ? LARDER_E_DEADLINE : LARDER_OK);
        late += move.failed > 0;
        pair_free(q);
        free(q);
    }
    assert_true(late > 10);
    pair_free(p);
    free(p);
}

/* All four on a node that does not answer: nothing is found, nothing loaded,
 * and it takes no longer than it may. */
static void check_away(pair_t *p)
{
    enum { TIMEOUT_MS = 200 };
    engine_t *from = &p->from[0], *to = &p->to[0];
    larder_table_t tables[GROUPS];
    larder_lease_t *lease = NULL;
    larder_move_t move = {.struct_bytes = sizeof(larder_move_t),
                          .keys = p->keys,
                          .tables = tables,
                          .end = CHUNKS * 8,
                          .timeout_ms = TIMEOUT_MS};
    uint64_t begin_ms = transport_now_ms();
    larder_match_t m = {.struct_bytes = sizeof(m)};

    assert_status(larder_prefix_match(p->space, to->layout, p->keys, CHUNKS,
                                      TIMEOUT_MS, &m),
                  LARDER_OK);
    assert_int_equal(m.chunks + m.tier_chunks[0] + m.tier_chunks[1], 0);
    assert_true(m.cause == LARDER_CAUSE_DEADLINE ||
                m.cause == LARDER_CAUSE_OFFLINE);
    assert_status(larder_prefix_stage(p->space, to->layout, p->keys, CHUNKS,
                                      NULL, TIMEOUT_MS, &lease, &m),
                  LARDER_MISS);
    assert_int_equal(m.chunks, 0);
    assert_true(m.cause == LARDER_CAUSE_DEADLINE ||
                m.cause == LARDER_CAUSE_OFFLINE);
    assert_true(lease == NULL);
    engine_tables(from, tables);
    assert_status(larder_prefix_save(p->space, from->layout, &move), LARDER_OK);
    /* By shared memory some may get there without an answer. */
    assert_int_equal(move.shards + move.present + move.failed, 3 * CHUNKS);
    engine_expect(to, 0, move.end, tables);
    assert_status(larder_prefix_load(p->space, to->layout, &move), LARDER_MISS);
    assert_true(move.cause == LARDER_CAUSE_DEADLINE ||
                move.cause == LARDER_CAUSE_OFFLINE);
    assert_true(transport_now_ms() - begin_ms < 4 * TIMEOUT_MS + SLACK_MS);
}

static void test_away(void **state)
{
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p));
    uint64_t end_ms = transport_now_ms() + PATIENCE_MS;
    larder_match_t m = {.struct_bytes = sizeof(m)};
    ldr_rand_t r;

    if (f->embedded) {
        free(p);
        skip();
    }
    ldr_rand_seed(&r, 59);
    fix_open_dram(f, "dram=32M&breaker_ms=50");
    pair_fixed(p, f->lar, &r, 7007, 1);
    pair_save(p, 0);
    engine_clear(&p->from[0]);
    engine_compute(&p->from[0], CHUNKS * 8);
    daemon_freeze(&the_daemon);
    check_away(p);
    kill(the_daemon.pid, SIGCONT);
    while (m.chunks < CHUNKS && transport_now_ms() < end_ms) {
        assert_status(larder_prefix_match(p->space, p->to[0].layout, p->keys,
                                          CHUNKS, 1000, &m),
                      LARDER_OK);
        transport_pause();
    }
    assert_int_equal(m.chunks, CHUNKS);
    engine_load(&p->to[0], p->space, p->keys, 0, CHUNKS * 8);
    daemon_stop(&the_daemon, SIGKILL);
    check_away(p);
    larder_close(&the_daemon.admin, 0);
    daemon_clean(&the_daemon);
    pair_free(p);
    free(p);
}

/* ---- threads ---- */

typedef struct job {
    pair_t *pair;
    engine_t to;
    ldr_rand_t rand;
    const char *failed;
} job_t;

static void *job_main(void *arg)
{
    job_t *j = arg;
    pair_t *p = j->pair;

    for (unsigned i = 0; i < 30 && j->failed == NULL; i++) {
        uint32_t n = 1 + below(&j->rand, CHUNKS);
        larder_table_t tables[GROUPS];
        larder_lease_t *lease = NULL;
        larder_move_t move = {.struct_bytes = sizeof(larder_move_t),
                              .keys = p->keys,
                              .tables = tables,
                              .end = n * 8};
        larder_match_t m = {.struct_bytes = sizeof(m)};

        engine_expect(&j->to, 0, move.end, tables);
        if (larder_prefix_stage(p->space, j->to.layout, p->keys, n, NULL, 0,
                                &lease, &m) != LARDER_OK ||
            m.chunks != n) {
            j->failed = "stage";
        }
        if (larder_prefix_load(p->space, j->to.layout, &move) != LARDER_OK) {
            j->failed = "load";
        }
        larder_release(&lease);
        for (uint32_t k = 0; k < j->to.region_count; k++) {
            if (memcmp(j->to.regions[k].base, j->to.expected[k],
                       j->to.regions[k].bytes) != 0) {
                j->failed = "bytes";
            }
        }
    }
    return NULL;
}

static void test_threads(void **state)
{
    enum { JOBS = 4 };
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p));
    job_t *jobs = calloc(JOBS, sizeof(*jobs));
    pthread_t threads[JOBS];
    ldr_rand_t r;

    ldr_rand_seed(&r, 61);
    fix_open_dram(f, "dram=32M");
    pair_fixed(p, f->lar, &r, 7008, 1);
    pair_save(p, 0);
    for (uint32_t i = 0; i < JOBS; i++) {
        jobs[i].pair = p;
        ldr_rand_seed(&jobs[i].rand, 100 + i);
        engine_make(&jobs[i].to, &p->model, &jobs[i].rand, 0);
        assert_int_equal(pthread_create(&threads[i], NULL, job_main, &jobs[i]),
                         0);
    }
    engine_clear(&p->from[0]);
    engine_compute(&p->from[0], CHUNKS * 8);
    for (unsigned i = 0; i < 20; i++) { /* saves beside it */
        engine_save(&p->from[0], p->space, p->keys, 0, 0, 0);
    }
    for (uint32_t i = 0; i < JOBS; i++) {
        pthread_join(threads[i], NULL);
        if (jobs[i].failed != NULL) {
            print_error("thread %u: %s\n", i, jobs[i].failed);
        }
        assert_null(jobs[i].failed);
        engine_free(&jobs[i].to);
    }
    assert_int_equal(stats_of(f->lar).dram_leased_chunks, 0);
    pair_free(p);
    free(jobs);
    free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ONE(test_many_chunks, "plain"),
        ONE(test_many_pages, "plain"),
        BOTH(test_beyond_arena),
        ONE(test_beyond_window, "plain"),
        ONE(test_lease_limit, "plain"),
#if LDR_FAULTS
        EMBED_ONE(test_no_memory, "plain"),
#endif
        ONE(test_closed, "plain"),
        EMBED_ONE(test_late, "plain"),
        ONE(test_away, "plain"),
        ONE(test_threads, "plain"),
    };

    return cmocka_run_group_tests_name("client/prefix_trouble", tests, NULL,
                                       NULL);
}
