/* Prefixes by way of memory: fetched by one process of an engine, placed by
 * its ranks, whatever became of the node meanwhile. */
#include "client/fetch_rig.h"

enum { SLACK_MS = 10000, PATIENCE_MS = 60000 };

/* ---- fetched and placed ---- */

/* Every length of a prefix, from any token on, by each rank: as a load. */
static void check_pair(pair_t *p)
{
    const model_t *m = &p->model;

    for (uint32_t n = 1; n <= CHUNKS; n++) {
        fetched_t f = fetch_all(p, n);

        larder_release(&f.lease); /* placing does not need them */
        for (uint32_t i = 0; i < 3 * p->shards; i++) {
            engine_t *to = &p->to[i % p->shards];
            uint32_t steps = n * m->chunk_tokens / m->step;
            uint32_t begin =
                i < p->shards ? 0 : below(to->rand, steps + 1) * m->step;
            ldr_rand_t before = *to->rand;

            place(p, &f, (uint16_t)(i % p->shards), begin, n);
            *to->rand = before; /* the same tables, and the same bytes */
            engine_load(to, p->space, p->keys, begin, n * m->chunk_tokens);
        }
        free(f.memory);
    }
}

static void test_random(void **state)
{
    enum { PAIRS = 12 };
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p));
    ldr_rand_t r;

    ldr_rand_seed(&r, 61);
    fix_open_dram(f, "dram=64M");
    for (uint64_t seed = 0; seed < PAIRS; seed++) {
        uint32_t shards = 1 + (uint32_t)seed % SHARDS_MOST;

        if (seed < 2) {
            pair_fixed(p, f->lar, &r, 8000 + seed, shards);
        } else {
            pair_make(p, f->lar, &r, 8000 + seed, shards);
        }
        for (uint16_t i = 0; i < shards; i++) {
            pair_save(p, i);
        }
        check_pair(p);
        assert_int_equal(stats_of(f->lar).dram_leased_chunks, 0);
        pair_free(p);
    }
    free(p);
}

/* From disk: lengths are exact once it is staged, wherever it lies then. */
static void test_from_disk(void **state)
{
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p));
    ldr_rand_t r;

    ldr_rand_seed(&r, 67);
    fix_open(f, "dram=32M&ssd=64M");
    pair_fixed(p, f->lar, &r, 8100, 2);
    pair_save(p, 0);
    pair_save(p, 1);
    assert_status(larder_flush(f->lar, LARDER_TIER_SSD, LARDER_FOREVER), 0);
    larder_space_close(&p->space);
    fix_close(f);
    fix_open(f, "dram=32M&ssd=64M");
    pair_open(p, f->lar);
    check_pair(p);
    pair_free(p);
    free(p);
}

/* A prompt of more shards than go in one request. */
enum { LONG = 200, PAGE = 70 };

typedef struct many {
    larder_space_t *space;
    larder_layout_t *layout;
    larder_key_t keys[LONG];
    uint8_t pages[4 * LONG][PAGE];
    uint32_t ids[2 * LONG];
    larder_table_t tables[2];
} many_t;

static void many_make(many_t *m, larder_t *lar)
{
    const model_t model = {.seed = 8200, .chunk_tokens = 1, .group_count = 2};
    larder_region_t region = {"pages", m->pages, sizeof(m->pages)};
    larder_layer_t layer = {"layer", 0, 0, PAGE, PAGE};
    larder_group_t groups[2] = {{LARDER_RULE_ALL, 1, 0, &layer, 1},
                                {LARDER_RULE_TRAILING, 1, 90, &layer, 1}};
    larder_layout_params_t params = {.chunk_tokens = 1,
                                     .block_count = 4 * LONG,
                                     .regions = &region,
                                     .region_count = 1,
                                     .groups = groups,
                                     .group_count = 2};

    m->space = model_space(lar, &model, 2);
    model_keys(&model, m->space, m->keys, LONG);
    m->tables[0] = (larder_table_t){m->ids, 0, LONG};
    m->tables[1] = (larder_table_t){m->ids + LONG, 0, LONG};
    assert_status(larder_layout_create(&params, &m->layout), LARDER_OK);
}

static void many_save(many_t *m, uint16_t rank)
{
    larder_move_t move = {.struct_bytes = sizeof(larder_move_t),
                          .keys = m->keys,
                          .tables = m->tables,
                          .end = LONG,
                          .shard = rank};

    for (uint32_t i = 0; i < 2 * LONG; i++) {
        m->ids[i] = i;
        content(rank * 10000 + i, m->pages[i], PAGE);
    }
    assert_status(larder_prefix_save(m->space, m->layout, &move), LARDER_OK);
    assert_int_equal(move.shards, 2 * LONG);
}

/* Into other blocks: all of one group, 89 tokens of the other. */
static void many_place(many_t *m, const fetched_t *got, uint16_t rank)
{
    larder_move_t move = {.struct_bytes = sizeof(larder_move_t),
                          .tables = m->tables,
                          .end = LONG,
                          .shard = rank};

    memset(m->pages, 0, sizeof(m->pages));
    for (uint32_t i = 0; i < 2 * LONG; i++) {
        m->ids[i] = 4 * LONG - 1 - i;
    }
    assert_status(
        larder_prefix_place(m->layout, &move, got->memory, got->bytes),
        LARDER_OK);
    assert_int_equal(move.shards, LONG + 89);
    for (uint32_t i = 0; i < 2 * LONG; i++) {
        const uint8_t *page = m->pages[m->ids[i]];

        if (i < LONG || i >= LONG + LONG - 89) {
            assert_true(content_is(rank * 10000 + i, page, PAGE));
        } else {
            assert_int_equal(page[0] | page[PAGE - 1], 0);
        }
    }
}

static void test_many(void **state)
{
    fix_t *f = fix(state);
    many_t *m = calloc(1, sizeof(*m));
    larder_lease_t *lease = NULL;
    larder_match_t match = {.struct_bytes = sizeof(match)};
    fetched_t got = {0};

    fix_open_dram(f, transport_is("strict") ? "dram=64M&strict_window=128M"
                                            : "dram=64M");
    many_make(m, f->lar);
    many_save(m, 0);
    many_save(m, 1);
    assert_status(larder_prefix_stage(m->space, m->layout, m->keys, LONG, NULL,
                                      0, &lease, &match),
                  LARDER_OK);
    assert_int_equal(match.chunks, LONG);
    for (unsigned i = 0; i < 2; i++) {
        assert_status(larder_prefix_fetch(m->space, m->layout, lease, m->keys,
                                          LONG, got.memory, got.bytes, 0,
                                          &got.bytes),
                      LARDER_OK);
        got.memory = got.memory != NULL ? got.memory : room(got.bytes);
    }
    many_place(m, &got, 0);
    many_place(m, &got, 1);
    larder_release(&lease);
    larder_layout_destroy(&m->layout);
    larder_space_close(&m->space);
    free(got.memory);
    free(m);
}

/* ---- how much room ---- */

static void test_sizes(void **state)
{
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p));
    uint64_t payload = 0;
    size_t need = 0;
    ldr_rand_t r;

    ldr_rand_seed(&r, 71);
    fix_open_dram(f, "dram=32M");
    pair_fixed(p, f->lar, &r, 8300, 2);
    pair_save(p, 0);
    pair_save(p, 1);
    fetched_t got = fetch_all(p, CHUNKS);
    for (uint32_t g = 0; g < 3; g++) {
        for (uint32_t c = 0; c < CHUNKS; c++) {
            payload += needs_chunk(&p->model.groups[g], 8, FIXED, c)
                           ? 2 * model_shard_bytes(&p->model, g)
                           : 0;
        }
    }
    assert_true(got.bytes > payload);
    /* Less room than it needs: it says how much, and writes nothing. */
    for (size_t size = 0; size < got.bytes;
         size += size < 64 ? 1 : got.bytes / 7) {
        uint8_t *memory = room(size + 1);

        need = 0;
        assert_status(larder_prefix_fetch(p->space, p->to[0].layout, got.lease,
                                          p->keys, CHUNKS, memory, size, 0,
                                          &need),
                      LARDER_E_SIZE);
        assert_int_equal(need, got.bytes);
        for (size_t i = 0; i < size; i++) {
            assert_int_equal(memory[i], 0xa5);
        }
        free(memory);
    }
    /* More room: what is behind it is left alone, and does no harm. */
    fetched_t wide = {.bytes = got.bytes + 5000};
    wide.memory = room(wide.bytes);
    assert_status(larder_prefix_fetch(p->space, p->to[0].layout, got.lease,
                                      p->keys, CHUNKS, wide.memory, wide.bytes,
                                      0, &need),
                  LARDER_OK);
    assert_int_equal(need, got.bytes);
    for (size_t i = need; i < wide.bytes; i++) {
        assert_int_equal(wide.memory[i], 0xa5);
    }
    place(p, &wide, 0, 0, CHUNKS);
    place(p, &wide, 1, 0, CHUNKS);
    free(wide.memory);
    free(got.memory);
    larder_release(&got.lease);
    pair_free(p);
    free(p);
}

/* ---- without the node ---- */

/* The handle is closed, the space too, the daemon gone: it is placed. */
static void test_closed(void **state)
{
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p));
    size_t need = 9;
    ldr_rand_t r;

    ldr_rand_seed(&r, 73);
    fix_open_dram(f, "dram=32M");
    pair_fixed(p, f->lar, &r, 8400, 2);
    pair_save(p, 0);
    pair_save(p, 1);
    fetched_t got = fetch_all(p, CHUNKS);
    assert_status(transport_close(&f->lar, LARDER_FOREVER), LARDER_OK);
    place(p, &got, 0, 0, CHUNKS);
    assert_status(larder_prefix_fetch(p->space, p->to[0].layout, got.lease,
                                      p->keys, CHUNKS, got.memory, got.bytes, 0,
                                      &need),
                  LARDER_E_CLOSED);
    assert_int_equal(need, 9);
    larder_release(&got.lease);
    larder_space_close(&p->space);
    place(p, &got, 1, 0, CHUNKS);
    place(p, &got, 0, 16, CHUNKS);
    free(got.memory);
    pair_free(p);
    free(p);
}

/* What a fetch says when the node is not there. */
static void check_away(pair_t *p, fetched_t *got)
{
    enum { TIMEOUT_MS = 300 };
    uint64_t begin_ms = transport_now_ms();
    size_t need = 9;

    for (unsigned i = 0; i < 2; i++) {
        larder_status_t st = larder_prefix_fetch(
            p->space, p->to[0].layout, got->lease, p->keys, CHUNKS,
            i == 0 ? NULL : got->memory, got->bytes, TIMEOUT_MS, &need);

        assert_true(st == LARDER_E_DEADLINE || st == LARDER_E_OFFLINE);
        assert_int_equal(need, 9);
    }
    assert_true(transport_now_ms() - begin_ms < 2 * TIMEOUT_MS + SLACK_MS);
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
    ldr_rand_seed(&r, 79);
    fix_open_dram(f, "dram=32M&breaker_ms=50");
    pair_fixed(p, f->lar, &r, 8500, 2);
    pair_save(p, 0);
    pair_save(p, 1);
    fetched_t got = fetch_all(p, CHUNKS);
    daemon_freeze(&the_daemon);
    place(p, &got, 0, 0, CHUNKS);
    check_away(p, &got);
    place(p, &got, 1, 8, CHUNKS); /* what was fetched before is still good */
    kill(the_daemon.pid, SIGCONT);
    while (m.chunks < CHUNKS && transport_now_ms() < end_ms) {
        assert_status(larder_prefix_match(p->space, p->to[0].layout, p->keys,
                                          CHUNKS, 1000, &m),
                      LARDER_OK);
        transport_pause();
    }
    assert_int_equal(m.chunks, CHUNKS);
    fetched_t again = fetch_all(p, CHUNKS);
    daemon_stop(&the_daemon, SIGKILL);
    place(p, &again, 0, 0, CHUNKS);
    place(p, &again, 1, 0, CHUNKS);
    check_away(p, &got);
    place(p, &again, 1, 0, CHUNKS);
    larder_release(&got.lease);
    larder_release(&again.lease);
    free(got.memory);
    free(again.memory);
    larder_close(&the_daemon.admin, 0);
    daemon_clean(&the_daemon);
    pair_free(p);
    free(p);
}

/* Time passes with every look at the clock: a fetch that is late says so. */
static void test_late(void **state)
{
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p));
    unsigned late = 0, done = 0;
    ldr_rand_t r;

    ldr_rand_seed(&r, 83);
    fix_open_sim(f, "dram=8M&ssd=64M&segment=1M");
    pair_fixed(p, f->lar, &r, 8600, 1);
    pair_save(p, 0);
    fetched_t got = fetch_all(p, CHUNKS);
    for (uint64_t tick_ms = 0; tick_ms < 20; tick_ms++) {
        size_t need = 0;

        memset(got.memory, 0, got.bytes);
        f->clock.tick_ns = tick_ms * 1000000;
        larder_status_t st =
            larder_prefix_fetch(p->space, p->to[0].layout, got.lease, p->keys,
                                CHUNKS, got.memory, got.bytes, 15, &need);
        f->clock.tick_ns = 0;
        if (st == LARDER_OK) {
            place(p, &got, 0, 0, CHUNKS);
            done++;
        } else {
            assert_status(st, LARDER_E_DEADLINE);
            check_refused(p, got.memory, got.bytes, CHUNKS, LARDER_E_CORRUPT);
            late++;
        }
    }
    assert_true(late > 5 && done > 0);
    larder_release(&got.lease);
    free(got.memory);
    pair_free(p);
    free(p);
}

/* ---- what is missing ---- */

/* One shard is gone after it was staged: a miss, and no memory to place. */
static void test_missing(void **state)
{
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p));
    ldr_rand_t r;

    ldr_rand_seed(&r, 89);
    fix_open_dram(f, "dram=32M");
    for (uint32_t i = 0; i < 6; i++) {
        larder_lease_t *lease = NULL;
        size_t need = 9;

        pair_fixed(p, f->lar, &r, 8700 + i, 2);
        pair_save(p, 0);
        pair_save(p, 1);
        fetched_t got = fetch_all(p, CHUNKS);
        larder_release(&got.lease);
        stage_all(p, CHUNKS, &lease);
        larder_item_t item = {.key = &p->keys[CHUNKS - 1],
                              .group = (uint16_t)(i / 2),
                              .shard = (uint16_t)(i % 2)};
        assert_status(larder_run(p->space, LARDER_OP_REMOVE, &item, 1, NULL),
                      LARDER_OK);
        assert_status(item.status, LARDER_OK);
        memset(got.memory, 0, got.bytes);
        for (unsigned k = 0; k < 2; k++) {
            assert_status(larder_prefix_fetch(
                              p->space, p->to[0].layout, lease, p->keys, CHUNKS,
                              k == 0 ? NULL : got.memory, got.bytes, 0, &need),
                          LARDER_MISS);
        }
        assert_int_equal(need, 9);
        check_refused(p, got.memory, got.bytes, CHUNKS, LARDER_E_CORRUPT);
        larder_release(&lease);
        free(got.memory);
        pair_free(p);
    }
    free(p);
}

/* A shard of another length: fetched as it is, but not placed. */
static void test_wrong_length(void **state)
{
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p));
    uint8_t data[5000] = {1};
    ldr_rand_t r;

    ldr_rand_seed(&r, 97);
    fix_open_dram(f, "dram=32M");
    for (uint32_t i = 0; i < 9; i++) {
        uint16_t group = (uint16_t)(i % 3);

        pair_fixed(p, f->lar, &r, 8800 + i, 2);
        pair_save(p, 0);
        pair_save(p, 1);
        size_t bytes = model_shard_bytes(&p->model, group);
        const size_t lengths[] = {bytes + 1, bytes - 1, sizeof(data)};
        struct iovec iov = {data, lengths[i / 3]};
        larder_item_t item = {.key = &p->keys[CHUNKS - 1],
                              .group = group,
                              .iov = &iov,
                              .iov_count = 1};

        assert_status(larder_run(p->space, LARDER_OP_REMOVE, &item, 1, NULL),
                      LARDER_OK);
        assert_status(larder_run(p->space, LARDER_OP_PUT, &item, 1, NULL),
                      LARDER_OK);
        assert_status(item.status, LARDER_OK);
        engine_clear(&p->from[1]); /* its own went with it */
        engine_compute(&p->from[1], FIXED);
        engine_save(&p->from[1], p->space, p->keys, 0, 0, 0);
        fetched_t got = fetch_all(p, CHUNKS);
        check_refused(p, got.memory, got.bytes, CHUNKS, LARDER_E_CORRUPT);
        place(p, &got, 1, 0, CHUNKS); /* the other rank's are right */
        larder_release(&got.lease);
        free(got.memory);
        pair_free(p);
    }
    free(p);
}

/* ---- what is wrong ---- */

static void test_refused_fetches(void **state)
{
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p));
    size_t need = 9;
    ldr_rand_t r;

    ldr_rand_seed(&r, 107);
    fix_open_dram(f, "dram=32M");
    pair_fixed(p, f->lar, &r, 9100, 1);
    pair_save(p, 0);
    const larder_layout_t *layout = p->to[0].layout;
    larder_lease_t *l = NULL;
    stage_all(p, 4, &l);
#define FETCH(...)                                                             \
    assert_status(larder_prefix_fetch(__VA_ARGS__), LARDER_E_INVALID)
    FETCH(NULL, layout, l, p->keys, 4, NULL, 0, 0, &need);
    FETCH(p->space, NULL, l, p->keys, 4, NULL, 0, 0, &need);
    FETCH(p->space, layout, NULL, p->keys, 4, NULL, 0, 0, &need);
    FETCH(p->space, layout, l, NULL, 4, NULL, 0, 0, &need);
    FETCH(p->space, layout, l, p->keys, 0, NULL, 0, 0, &need);
    FETCH(p->space, layout, l, p->keys, 4, NULL, 0, 0, NULL);
    FETCH(f->space, layout, l, p->keys, 4, NULL, 0, 0, &need);
    /* More than was staged, of a group that needs all of it. */
    FETCH(p->space, layout, l, p->keys, 5, NULL, 0, 0, &need);
    FETCH(p->space, layout, l, p->keys, UINT32_MAX, NULL, 0, 0, &need);
    assert_int_equal(need, 9);
    /* No memory for it. */
    ldr_fault_arm(LDR_FAULT_alloc, 1, 1);
    assert_status(
        larder_prefix_fetch(p->space, layout, l, p->keys, 4, NULL, 0, 0, &need),
        LARDER_E_NO_MEMORY);
    ldr_fault_disarm_all();
    assert_int_equal(need, 9);
    larder_release(&l);
    pair_free(p);
    free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ONE(test_random, "plain"),       BOTH(test_from_disk),
        ONE(test_many, "plain"),         ONE(test_sizes, "plain"),
        ONE(test_closed, "plain"),       ONE(test_away, "plain"),
        EMBED_ONE(test_late, "plain"),   ONE(test_missing, "plain"),
        ONE(test_wrong_length, "plain"), ONE(test_refused_fetches, "plain"),
    };

    return cmocka_run_group_tests_name("client/prefix_fetch", tests, NULL,
                                       NULL);
}
