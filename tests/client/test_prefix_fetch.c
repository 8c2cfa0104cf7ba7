/* Prefixes by way of memory: fetched by one process of an engine, placed by
 * its ranks, whatever became of the node meanwhile. */
#include "client/prefix_rig.h"

enum { SLACK_MS = 10000, PATIENCE_MS = 60000, FIXED = CHUNKS * 8 };

/* ---- what the tests do ---- */

/* A prefix that was staged and fetched. */
typedef struct fetched {
    larder_lease_t *leases[GROUPS];
    uint8_t *memory;
    size_t bytes;
} fetched_t;

static void stage_all(pair_t *p, uint32_t chunks, larder_lease_t **leases)
{
    larder_match_t m;

    assert_status(larder_prefix_stage(p->space, p->to[0].layout, p->keys,
                                      chunks, 0, leases, &m),
                  LARDER_OK);
    assert_int_equal(m.chunks, chunks);
}

static void release_all(pair_t *p, larder_lease_t **leases)
{
    for (uint32_t g = 0; g < p->model.group_count; g++) {
        larder_release(&leases[g]);
    }
}

/* Memory of exactly so many bytes, so that a sanitizer sees what is not in
 * it. */
static uint8_t *room(size_t bytes)
{
    uint8_t *memory = malloc(bytes);

    assert_non_null(memory);
    memset(memory, 0xa5, bytes);
    return memory;
}

/* The engine's layout without its memory: what a scheduler has. */
static larder_layout_t *rules_of(const model_t *m)
{
    larder_group_t groups[GROUPS];
    larder_layout_params_t params = {.field_mask = LARDER_LAYOUT_NULL_BLOCK,
                                     .chunk_tokens = m->chunk_tokens,
                                     .groups = groups,
                                     .group_count = m->group_count,
                                     .null_block = NONE};
    larder_layout_t *layout = NULL;

    for (uint32_t g = 0; g < m->group_count; g++) {
        groups[g] = m->groups[g];
        groups[g].layer_count = 0;
    }
    assert_status(larder_layout_create(&params, &layout), LARDER_OK);
    return layout;
}

static fetched_t fetch_all(pair_t *p, uint32_t chunks)
{
    larder_layout_t *rules = rules_of(&p->model);
    fetched_t f = {0};
    size_t need = 0;

    stage_all(p, chunks, f.leases);
    assert_status(larder_prefix_fetch(p->space, rules, f.leases, p->keys,
                                      chunks, NULL, 0, 0, &f.bytes),
                  LARDER_OK);
    f.memory = room(f.bytes);
    assert_status(larder_prefix_fetch(p->space, rules, f.leases, p->keys,
                                      chunks, f.memory, f.bytes, 0, &need),
                  LARDER_OK);
    assert_int_equal(need, f.bytes);
    larder_layout_destroy(&rules);
    return f;
}

/* What was fetched for `chunks`, placed from token begin on by one rank: those
 * pages, and nothing else. */
static void place(pair_t *p, const fetched_t *f, uint16_t rank, uint32_t begin,
                  uint32_t chunks)
{
    engine_t *to = &p->to[rank];
    larder_table_t tables[GROUPS];
    uint32_t end = chunks * p->model.chunk_tokens;
    uint32_t shards = engine_expect(to, begin, end, tables);
    larder_move_t m = {.tables = tables,
                       .begin = begin,
                       .end = end,
                       .shard = rank,
                       .item = LARDER_E_IO, /* results are to be set */
                       .cause = LARDER_CAUSE_IO,
                       .failed = 7};

    assert_status(larder_prefix_place(to->layout, &m, f->memory, f->bytes),
                  LARDER_OK);
    engine_check(to);
    assert_int_equal(m.shards, shards);
    assert_int_equal(m.failed + m.present + m.skipped, 0);
    assert_status(m.item, LARDER_OK);
    assert_int_equal(m.cause, LARDER_CAUSE_NONE);
    assert_true((m.bytes == 0) == (shards == 0));
}

/* A place that is refused writes nothing. */
static void check_refused(pair_t *p, const uint8_t *memory, size_t bytes,
                          uint32_t chunks, larder_status_t want)
{
    engine_t *to = &p->to[0];
    larder_table_t tables[GROUPS];
    larder_move_t m = {.tables = tables, .end = chunks * p->model.chunk_tokens};

    engine_expect(to, 0, m.end, tables);
    for (uint32_t i = 0; i < to->region_count; i++) { /* as it was */
        memcpy(to->expected[i], to->regions[i].base, to->regions[i].bytes);
    }
    assert_status(larder_prefix_place(to->layout, &m, memory, bytes), want);
    engine_check(to);
}

/* ---- fetched and placed ---- */

/* Every length of a prefix, from any token on, by each rank: as a load. */
static void check_pair(pair_t *p)
{
    const model_t *m = &p->model;

    for (uint32_t n = 1; n <= CHUNKS; n++) {
        fetched_t f = fetch_all(p, n);

        release_all(p, f.leases); /* placing does not need them */
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

/* More shards than go in one request, of two ranks. */
static void test_many(void **state)
{
    enum { LONG = 200, BYTES = 70 };
    const larder_group_t rules[2] = {{LARDER_RULE_ALL, 1, 0, NULL, 1},
                                     {LARDER_RULE_TRAILING, 1, 90, NULL, 1}};
    const model_t m = {.seed = 8200, .chunk_tokens = 1, .group_count = 2};
    fix_t *f = fix(state);
    uint8_t *pages = calloc(4 * LONG, BYTES);
    larder_key_t keys[LONG];
    larder_group_t groups[2];
    uint32_t ids[2 * LONG];
    larder_region_t region = {"pages", pages, (size_t)4 * LONG * BYTES};
    larder_layer_t layer = {"layer", 0, 0, BYTES, BYTES};
    larder_layout_params_t params = {.chunk_tokens = 1,
                                     .block_count = 4 * LONG,
                                     .regions = &region,
                                     .region_count = 1,
                                     .groups = groups,
                                     .group_count = 2};
    larder_table_t tables[2] = {{ids, 0, LONG}, {ids + LONG, 0, LONG}};
    larder_lease_t *leases[2];
    larder_layout_t *layout = NULL;
    larder_match_t match;
    fetched_t got = {0};

    fix_open_dram(f, "dram=64M");
    larder_space_t *space = model_space(f->lar, &m, 2);
    model_keys(&m, space, keys, LONG);
    for (uint32_t g = 0; g < 2; g++) {
        groups[g] = rules[g];
        groups[g].layers = &layer;
    }
    assert_status(larder_layout_create(&params, &layout), LARDER_OK);
    larder_move_t move = {.keys = keys, .tables = tables, .end = LONG};
    for (move.shard = 0; move.shard < 2; move.shard++) {
        for (uint32_t i = 0; i < 2 * LONG; i++) {
            ids[i] = i;
            content(move.shard * 10000 + i, pages + (size_t)i * BYTES, BYTES);
        }
        assert_status(larder_prefix_save(space, layout, &move), LARDER_OK);
        assert_int_equal(move.shards, 2 * LONG);
    }
    assert_status(
        larder_prefix_stage(space, layout, keys, LONG, 0, leases, &match),
        LARDER_OK);
    assert_int_equal(match.chunks, LONG);
    assert_status(larder_prefix_fetch(space, layout, leases, keys, LONG, NULL,
                                      0, 0, &got.bytes),
                  LARDER_OK);
    got.memory = room(got.bytes);
    assert_status(larder_prefix_fetch(space, layout, leases, keys, LONG,
                                      got.memory, got.bytes, 0, &got.bytes),
                  LARDER_OK);
    for (move.shard = 0; move.shard < 2; move.shard++) {
        memset(pages, 0, region.bytes);
        for (uint32_t i = 0; i < 2 * LONG; i++) {
            ids[i] = 4 * LONG - 1 - i;
        }
        assert_status(larder_prefix_place(layout, &move, got.memory, got.bytes),
                      LARDER_OK);
        assert_int_equal(move.shards, LONG + 89);
        for (uint32_t i = 0; i < 2 * LONG; i++) {
            const uint8_t *page = pages + (size_t)ids[i] * BYTES;

            if (i < LONG || i >= LONG + LONG - 89) {
                assert_true(content_is(move.shard * 10000 + i, page, BYTES));
            } else {
                assert_int_equal(page[0] | page[BYTES - 1], 0);
            }
        }
    }
    larder_release(&leases[0]);
    larder_release(&leases[1]);
    larder_layout_destroy(&layout);
    larder_space_close(&space);
    free(got.memory);
    free(pages);
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
        assert_status(larder_prefix_fetch(p->space, p->to[0].layout, got.leases,
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
    assert_status(larder_prefix_fetch(p->space, p->to[0].layout, got.leases,
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
    release_all(p, got.leases);
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
    assert_status(larder_prefix_fetch(p->space, p->to[0].layout, got.leases,
                                      p->keys, CHUNKS, got.memory, got.bytes, 0,
                                      &need),
                  LARDER_E_CLOSED);
    assert_int_equal(need, 9);
    release_all(p, got.leases);
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
            p->space, p->to[0].layout, got->leases, p->keys, CHUNKS,
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
    larder_match_t m = {0};
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
    release_all(p, got.leases);
    release_all(p, again.leases);
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
            larder_prefix_fetch(p->space, p->to[0].layout, got.leases, p->keys,
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
    release_all(p, got.leases);
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
        larder_lease_t *leases[GROUPS];
        size_t need = 9;

        pair_fixed(p, f->lar, &r, 8700 + i, 2);
        pair_save(p, 0);
        pair_save(p, 1);
        fetched_t got = fetch_all(p, CHUNKS);
        release_all(p, got.leases);
        stage_all(p, CHUNKS, leases);
        larder_item_t item = {.key = &p->keys[CHUNKS - 1],
                              .group = (uint16_t)(i / 2),
                              .shard = (uint16_t)(i % 2)};
        assert_status(larder_run(p->space, LARDER_OP_REMOVE, &item, 1, NULL),
                      LARDER_OK);
        assert_status(item.status, LARDER_OK);
        memset(got.memory, 0, got.bytes);
        for (unsigned k = 0; k < 2; k++) {
            assert_status(larder_prefix_fetch(p->space, p->to[0].layout, leases,
                                              p->keys, CHUNKS,
                                              k == 0 ? NULL : got.memory,
                                              got.bytes, 0, &need),
                          LARDER_MISS);
        }
        assert_int_equal(need, 9);
        check_refused(p, got.memory, got.bytes, CHUNKS, LARDER_E_CORRUPT);
        release_all(p, leases);
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
        release_all(p, got.leases);
        free(got.memory);
        pair_free(p);
    }
    free(p);
}

/* ---- memory that is something else ---- */

/* Where the head's fields and the slots are, as prefix_fetch.c says. */
enum {
    AT_CHUNKS = 8,
    AT_SHARDS = 16,
    AT_COUNT = 20,
    AT_BYTES = 24,
    HEAD_BYTES = 32,
    SLOT_BYTES = 16,
};

/* Memory with one of its numbers changed. */
static void check_changed(pair_t *p, const fetched_t *got, size_t at,
                          size_t width, uint64_t value)
{
    uint8_t *memory = room(got->bytes);

    memcpy(memory, got->memory, got->bytes);
    memcpy(memory + at, &value, width); /* little-endian, as all we run on */
    if (memcmp(memory, got->memory, got->bytes) != 0) {
        check_refused(p, memory, got->bytes, CHUNKS, LARDER_E_CORRUPT);
    }
    free(memory);
}

/* Every bit of the head and of every slot. */
static void check_bits(pair_t *p, const fetched_t *got, uint32_t slots)
{
    uint8_t *memory = room(got->bytes);
    size_t table = HEAD_BYTES + (size_t)slots * SLOT_BYTES;

    memcpy(memory, got->memory, got->bytes);
    for (size_t bit = 0; bit < 8 * table; bit++) {
        size_t in_slot = (bit / 8 - HEAD_BYTES) % (2 * SLOT_BYTES);

        /* Of the other rank's lengths only what is out of bounds is seen. */
        if (bit / 8 >= HEAD_BYTES && in_slot >= SLOT_BYTES + 8) {
            continue;
        }
        memory[bit / 8] ^= (uint8_t)(1 << bit % 8);
        check_refused(p, memory, got->bytes, CHUNKS, LARDER_E_CORRUPT);
        memory[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    check_refused(p, got->memory, got->bytes, CHUNKS - 1, LARDER_E_CORRUPT);
    free(memory);
}

static void test_garbage(void **state)
{
    const uint64_t numbers[] = {0,          1,          2,
                                63,         64,         65,
                                4096,       1ull << 31, UINT32_MAX,
                                UINT64_MAX, 1ull << 63, UINT64_MAX - 4095};
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p));
    uint32_t slots = 0;
    ldr_rand_t r;

    ldr_rand_seed(&r, 101);
    fix_open_dram(f, "dram=32M");
    pair_fixed(p, f->lar, &r, 8900, 2);
    pair_save(p, 0);
    pair_save(p, 1);
    fetched_t got = fetch_all(p, CHUNKS);
    memcpy(&slots, got.memory + AT_COUNT, sizeof(slots));
    assert_in_range(slots, 2 * (CHUNKS + 2), 2 * 3 * CHUNKS);
    check_bits(p, &got, slots);
    for (size_t i = 0; i < COUNT_OF(numbers); i++) {
        check_changed(p, &got, 0, 8, numbers[i]);
        check_changed(p, &got, AT_CHUNKS, 4, numbers[i]);
        check_changed(p, &got, AT_SHARDS, 4, numbers[i]);
        check_changed(p, &got, AT_COUNT, 4, numbers[i]);
        check_changed(p, &got, AT_BYTES, 8, numbers[i]);
        for (uint32_t s = 0; s < slots; s += 5) {
            size_t at = HEAD_BYTES + (size_t)s * SLOT_BYTES;

            check_changed(p, &got, at, 8, numbers[i]);
            if (s % 2 == 0) { /* a length of this rank's */
                check_changed(p, &got, at + 8, 8, numbers[i]);
            }
        }
    }
    /* Cut off anywhere: read no further than it reaches. */
    for (size_t size = 0; size < got.bytes;
         size += size < 1200 ? 1 : got.bytes / 31) {
        uint8_t *memory = room(size > 0 ? size : 1);

        memcpy(memory, got.memory, size);
        check_refused(p, memory, size, CHUNKS, LARDER_E_CORRUPT);
        free(memory);
    }
    /* Anything. */
    for (uint64_t i = 0; i < 300; i++) {
        uint8_t *memory = room(got.bytes);

        content(i, memory, got.bytes);
        if (i % 2 == 0) { /* with a head that is right so far */
            memcpy(memory, got.memory, i % HEAD_BYTES);
        }
        check_refused(p, memory, got.bytes, CHUNKS, LARDER_E_CORRUPT);
        free(memory);
    }
    place(p, &got, 0, 0, CHUNKS); /* it was the changes, after all */
    release_all(p, got.leases);
    free(got.memory);
    pair_free(p);
    free(p);
}

/* Another model's, or another length's, memory. */
static void test_another(void **state)
{
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p)), *q = calloc(1, sizeof(*q));
    ldr_rand_t r;

    ldr_rand_seed(&r, 103);
    fix_open_dram(f, "dram=32M");
    pair_fixed(p, f->lar, &r, 9000, 1);
    pair_save(p, 0);
    memset(q, 0, sizeof(*q));
    q->shards = 1;
    model_fixed(&q->model, 9001);
    q->model.bytes[1][0]++; /* one page is larger */
    pair_open(q, f->lar);
    pair_engines(q, &r);
    pair_save(q, 0);
    fetched_t got = fetch_all(p, 5), other = fetch_all(q, 5);
    check_refused(q, got.memory, got.bytes, 5, LARDER_E_CORRUPT);
    check_refused(p, other.memory, other.bytes, 5, LARDER_E_CORRUPT);
    check_refused(p, got.memory, got.bytes, 4, LARDER_E_CORRUPT);
    check_refused(p, got.memory, got.bytes, 6, LARDER_E_CORRUPT);
    place(p, &got, 0, 0, 5);
    place(q, &other, 0, 8, 5);
    release_all(p, got.leases);
    release_all(q, other.leases);
    free(got.memory);
    free(other.memory);
    pair_free(p);
    pair_free(q);
    free(p);
    free(q);
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
    larder_lease_t *l[GROUPS], *none[GROUPS] = {NULL};
    stage_all(p, 4, l);
#define FETCH(...)                                                             \
    assert_status(larder_prefix_fetch(__VA_ARGS__), LARDER_E_INVALID)
    FETCH(NULL, layout, l, p->keys, 4, NULL, 0, 0, &need);
    FETCH(p->space, NULL, l, p->keys, 4, NULL, 0, 0, &need);
    FETCH(p->space, layout, NULL, p->keys, 4, NULL, 0, 0, &need);
    FETCH(p->space, layout, l, NULL, 4, NULL, 0, 0, &need);
    FETCH(p->space, layout, l, p->keys, 0, NULL, 0, 0, &need);
    FETCH(p->space, layout, l, p->keys, 4, NULL, 0, 0, NULL);
    FETCH(f->space, layout, l, p->keys, 4, NULL, 0, 0, &need);
    FETCH(p->space, layout, none, p->keys, 4, NULL, 0, 0, &need);
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
    release_all(p, l);
    pair_free(p);
    free(p);
}

static void test_refused_places(void **state)
{
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p));
    larder_table_t tables[GROUPS];
    ldr_rand_t r;

    ldr_rand_seed(&r, 109);
    fix_open_dram(f, "dram=32M");
    pair_fixed(p, f->lar, &r, 9200, 1);
    pair_save(p, 0);
    engine_t *to = &p->to[0];
    fetched_t got = fetch_all(p, CHUNKS);
    larder_layout_t *rules = rules_of(&p->model);
    engine_expect(to, 0, FIXED, tables);
    for (uint32_t i = 0; i < to->region_count; i++) {
        memcpy(to->expected[i], to->regions[i].base, to->regions[i].bytes);
    }
    uint32_t wrong[PLACES + 1];
    const larder_move_t good = {.tables = tables, .end = FIXED};
    larder_table_t other[GROUPS];
#define REFUSED(want, layout, change)                                          \
    do {                                                                       \
        larder_move_t x = good;                                                \
        memcpy(other, tables, sizeof(other));                                  \
        change;                                                                \
        assert_status(larder_prefix_place(layout, &x, got.memory, got.bytes),  \
                      want);                                                   \
        engine_check(to);                                                      \
    } while (0)
    REFUSED(LARDER_E_INVALID, NULL, );
    REFUSED(LARDER_E_INVALID, rules, ); /* nowhere to place it */
    REFUSED(LARDER_E_INVALID, to->layout, x.tables = NULL);
    REFUSED(LARDER_E_INVALID, to->layout, x.begin = 4); /* state: 8 */
    REFUSED(LARDER_E_INVALID, to->layout, x.begin = FIXED + 8);
    REFUSED(LARDER_E_CORRUPT, to->layout, x.end = FIXED + 8);
    REFUSED(LARDER_E_CORRUPT, to->layout, x.end = FIXED - 2);
    REFUSED(LARDER_E_CORRUPT, to->layout, x.shard = 1);
    /* The last group's table, when all others would have been written. */
    REFUSED(LARDER_E_INVALID, to->layout,
            (x.tables = other, other[2].ids = NULL));
    REFUSED(LARDER_E_INVALID, to->layout,
            (x.tables = other, other[2].count = 0));
    memcpy(wrong, tables[2].ids, tables[2].count * sizeof(*wrong));
    wrong[tables[2].count - 1] = BLOCKS;
    REFUSED(LARDER_E_INVALID, to->layout,
            (x.tables = other, other[2].ids = wrong));
    assert_status(larder_prefix_place(to->layout, NULL, got.memory, got.bytes),
                  LARDER_E_INVALID);
    larder_move_t m = good;
    assert_status(larder_prefix_place(to->layout, &m, NULL, got.bytes),
                  LARDER_E_INVALID);
    for (unsigned i = 1; i < 3; i++) {
        ldr_fault_arm(LDR_FAULT_alloc, i, 1);
        assert_status(
            larder_prefix_place(to->layout, &m, got.memory, got.bytes),
            LARDER_E_NO_MEMORY);
        ldr_fault_disarm_all();
    }
    engine_check(to);
    place(p, &got, 0, 0, CHUNKS);
    place(p, &got, 0, FIXED, CHUNKS); /* nothing is left to place */
    larder_layout_destroy(&rules);
    release_all(p, got.leases);
    free(got.memory);
    pair_free(p);
    free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ONE(test_random, "plain"),         BOTH(test_from_disk),
        ONE(test_many, "plain"),           ONE(test_sizes, "plain"),
        ONE(test_closed, "plain"),         ONE(test_away, "plain"),
        EMBED_ONE(test_late, "plain"),     ONE(test_missing, "plain"),
        ONE(test_wrong_length, "plain"),   ONE(test_garbage, "plain"),
        ONE(test_another, "plain"),        ONE(test_refused_fetches, "plain"),
        ONE(test_refused_places, "plain"),
    };

    return cmocka_run_group_tests_name("client/prefix_fetch", tests, NULL,
                                       NULL);
}
