/* Saves in two halves: room first, bytes later; on every transport. */
#include "client/prefix_rig.h"

enum { SLACK_MS = 10000, PATIENCE_MS = 60000, FIXED = CHUNKS * 8 };

/* ---- both halves ---- */

typedef struct halves {
    larder_table_t tables[GROUPS];
    larder_move_t move;
    larder_rooms_t *rooms;
} halves_t;

static void halves_make(halves_t *h, engine_t *e, const larder_key_t *keys,
                        uint32_t begin)
{
    *h = (halves_t){.move = {.struct_bytes = sizeof(larder_move_t),
                             .begin = begin,
                             .end = e->computed,
                             .shard = e->shard,
                             .item = LARDER_E_IO, /* results are to be set */
                             .failed = 7}};
    move_keys(e, &h->move, keys);
    engine_tables(e, h->tables);
    h->move.tables = h->tables;
}

/* Room while the memory holds something else. */
static void halves_reserve(halves_t *h, engine_t *e, larder_space_t *space)
{
    uint8_t *kept[REGIONS];

    for (uint32_t i = 0; i < e->region_count; i++) {
        kept[i] = malloc(e->regions[i].bytes);
        memcpy(kept[i], e->regions[i].base, e->regions[i].bytes);
        memset(e->regions[i].base, 0x5a, e->regions[i].bytes);
    }
    assert_status(larder_prefix_reserve(space, e->layout, &h->move, &h->rooms),
                  LARDER_OK);
    assert_non_null(h->rooms);
    for (uint32_t i = 0; i < e->region_count; i++) {
        memcpy(e->regions[i].base, kept[i], e->regions[i].bytes);
        free(kept[i]);
    }
}

/* What a move says after either half of it. */
static void move_says(const larder_move_t *m, uint32_t shards, uint32_t present,
                      uint32_t skipped, uint32_t failed)
{
    assert_int_equal(m->shards, shards);
    assert_int_equal(m->present, present);
    assert_int_equal(m->skipped, skipped);
    assert_int_equal(m->failed, failed);
    assert_int_equal(m->item != LARDER_OK, failed > 0);
    assert_int_equal(m->bytes > 0, shards > 0);
}

/* A prompt of pair_fixed(), computed and not saved. */
static void computed(pair_t *p, fix_t *f, ldr_rand_t *r, uint64_t seed)
{
    pair_fixed(p, f->lar, r, seed, 1);
    engine_compute(&p->from[0], FIXED);
}

static uint32_t matches(pair_t *p)
{
    larder_match_t m = {.struct_bytes = sizeof(m)};

    assert_status(
        larder_prefix_match(p->space, p->to[0].layout, p->keys, CHUNKS, 0, &m),
        LARDER_OK);
    return m.chunks;
}

/* Whether room is room in the arena. By TCP that is taken when the bytes are
 * handed over. */
static bool holds_arena(const fix_t *f)
{
    return f->embedded || transport_is("shm") || transport_is("strict");
}

/* Whether nobody looks at the bytes on their way there. */
static bool fills_arena(const fix_t *f)
{
    return f->embedded || transport_is("shm");
}

/* Random models, in random steps: what was saved so is what is loaded. */
static void test_random(void **state)
{
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p));
    ldr_rand_t r;

    ldr_rand_seed(&r, 301);
    fix_open_dram(f, "dram=32M");
    for (uint64_t seed = 0; seed < 25; seed++) {
        pair_make(p, f->lar, &r, 20000 + seed, 1 + below(&r, SHARDS_MOST));
        uint32_t tokens = CHUNKS * p->model.chunk_tokens;
        for (uint16_t i = 0; i < p->shards; i++) {
            engine_t *e = &p->from[i];

            while (e->computed < tokens) {
                uint32_t begin = e->computed, chunk = p->model.chunk_tokens;
                halves_t h;

                engine_compute(e, begin + 1 + below(&r, tokens - begin));
                halves_make(&h, e, p->keys, begin);
                halves_reserve(&h, e, p->space);
                uint32_t chunks = e->computed / chunk - begin / chunk;
                uint32_t shards = chunks * p->model.group_count;
                uint64_t bytes = h.move.bytes;
                move_says(&h.move, shards, 0, 0, 0);
                assert_status(larder_prefix_fill(&h.rooms, &h.move), LARDER_OK);
                assert_null(h.rooms);
                move_says(&h.move, shards, 0, 0, 0);
                assert_int_equal(h.move.bytes, bytes);
            }
        }
        assert_int_equal(matches(p), CHUNKS);
        for (uint16_t i = 0; i < p->shards; i++) {
            engine_load(&p->to[i], p->space, p->keys, 0, tokens);
        }
        assert_int_equal(stats_of(f->lar).dram_leased_chunks, 0);
        pair_free(p);
    }
    free(p);
}

/* Ranks with the same bytes: each has room for its own chunks only. */
static void test_writers(void **state)
{
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p));
    ldr_rand_t r;

    ldr_rand_seed(&r, 303);
    fix_open_dram(f, "dram=32M");
    computed(p, f, &r, 20100);
    for (uint16_t i = 0; i < 3; i++) {
        halves_t h;

        halves_make(&h, &p->from[0], p->keys, 0);
        h.move.writers = 3;
        h.move.writer = i;
        halves_reserve(&h, &p->from[0], p->space);
        move_says(&h.move, i < 2 ? 9 : 6, 0, 0, 0);
        assert_status(larder_prefix_fill(&h.rooms, &h.move), LARDER_OK);
        move_says(&h.move, i < 2 ? 9 : 6, 0, 0, 0);
    }
    engine_load(&p->to[0], p->space, p->keys, 0, FIXED);
    pair_free(p);
    free(p);
}

/* ---- what is not filled ---- */

/* Nobody sees what is reserved, and what is given back leaves nothing. */
static void test_given_back(void **state)
{
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p));
    halves_t h;
    ldr_rand_t r;

    ldr_rand_seed(&r, 307);
    fix_open_dram(f, "dram=32M");
    computed(p, f, &r, 20300);
    for (unsigned i = 0; i < 20; i++) {
        halves_make(&h, &p->from[0], p->keys, 0);
        halves_reserve(&h, &p->from[0], p->space);
        move_says(&h.move, 3 * CHUNKS, 0, 0, 0);
        assert_int_equal(matches(p), 0);
        larder_rooms_release(&h.rooms);
        assert_null(h.rooms);
    }
    larder_rooms_release(&h.rooms);
    larder_rooms_release(NULL);
    assert_int_equal(matches(p), 0);
    larder_stats_t s = stats_of(f->lar);
    assert_int_equal(s.dram_used_bytes, 0);
    assert_int_equal(s.dram_leased_chunks, 0);
    assert_int_equal(s.entries, 0);
    assert_int_equal(s.saves_stored, 0);
    pair_free(p);
    free(p);
}

/* What is there already gets no room; of the rest a part can be filled. */
static void test_part(void **state)
{
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p));
    engine_t *e;
    halves_t h;
    ldr_rand_t r;

    ldr_rand_seed(&r, 311);
    fix_open_dram(f, "dram=32M");
    pair_fixed(p, f->lar, &r, 20400, 1);
    e = &p->from[0];
    engine_compute(e, 2 * 8);
    engine_save(e, p->space, p->keys, 0, 0, 0);
    e->computed = 0;
    memset(e->count, 0, sizeof(e->count));
    engine_compute(e, FIXED);
    halves_make(&h, e, p->keys, 0);
    halves_reserve(&h, e, p->space);
    move_says(&h.move, 3 * (CHUNKS - 2), 6, 0, 0);
    h.move.end = 5 * 8 + 3; /* chunks 1 to 4 */
    h.move.begin = 8;
    assert_status(larder_prefix_fill(&h.rooms, &h.move), LARDER_OK);
    move_says(&h.move, 9, 3, 0, 0);
    assert_int_equal(matches(p), 5);
    engine_load(&p->to[0], p->space, p->keys, 0, 5 * 8);
    /* The whole of it again, some of which is there. */
    halves_make(&h, e, p->keys, 0);
    halves_reserve(&h, e, p->space);
    move_says(&h.move, 9, 15, 0, 0);
    assert_status(larder_prefix_fill(&h.rooms, &h.move), LARDER_OK);
    move_says(&h.move, 9, 15, 0, 0);
    halves_make(&h, e, p->keys, 0);
    halves_reserve(&h, e, p->space);
    move_says(&h.move, 0, 24, 0, 0);
    assert_status(larder_prefix_fill(&h.rooms, &h.move), LARDER_OK);
    move_says(&h.move, 0, 24, 0, 0);
    engine_load(&p->to[0], p->space, p->keys, 0, FIXED);
    assert_int_equal(stats_of(f->lar).dram_leased_chunks, 0);
    pair_free(p);
    free(p);
}

/* Blocks that are not there, from the begin or at the end. */
static void test_skipped(void **state)
{
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p));
    halves_t h;
    ldr_rand_t r;

    ldr_rand_seed(&r, 313);
    fix_open_dram(f, "dram=32M");
    computed(p, f, &r, 20500);
    halves_make(&h, &p->from[0], p->keys, 0);
    p->from[0].ids[0][4 * 3] = NONE; /* of chunk 3 */
    halves_reserve(&h, &p->from[0], p->space);
    move_says(&h.move, 23, 0, 1, 0);
    h.tables[2].count = 6; /* chunks 6 and 7 of another group */
    assert_status(larder_prefix_fill(&h.rooms, &h.move), LARDER_OK);
    move_says(&h.move, 21, 0, 3, 0);
    assert_int_equal(matches(p), 3);
    engine_load(&p->to[0], p->space, p->keys, 0, 3 * 8);
    assert_int_equal(stats_of(f->lar).dram_leased_chunks, 0);
    pair_free(p);
    free(p);
}

/* ---- in between ---- */

static void test_reset(void **state)
{
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p));
    halves_t h;
    ldr_rand_t r;

    ldr_rand_seed(&r, 317);
    fix_open_dram(f, "dram=32M");
    computed(p, f, &r, 20800);
    halves_make(&h, &p->from[0], p->keys, 0);
    halves_reserve(&h, &p->from[0], p->space);
    assert_status(larder_space_reset(p->space, LARDER_FOREVER), LARDER_OK);
    assert_status(larder_prefix_fill(&h.rooms, &h.move), LARDER_OK);
    assert_int_equal(h.move.shards + h.move.failed, 3 * CHUNKS);
    if (h.move.failed > 0) {
        assert_status(h.move.item, LARDER_E_STALE);
    }
    assert_int_equal(matches(p), holds_arena(f) ? 0 : CHUNKS);
    larder_stats_t s = stats_of(f->lar);
    assert_int_equal(s.saves_stale, holds_arena(f) ? 3 * CHUNKS : 0);
    assert_int_equal(s.dram_leased_chunks, 0);
    /* It is a space like any other. */
    halves_make(&h, &p->from[0], p->keys, 0);
    halves_reserve(&h, &p->from[0], p->space);
    assert_status(larder_prefix_fill(&h.rooms, &h.move), LARDER_OK);
    assert_int_equal(h.move.failed, 0);
    engine_load(&p->to[0], p->space, p->keys, 0, FIXED);
    pair_free(p);
    free(p);
}

static void test_closed(void **state)
{
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p));
    halves_t h, other;
    ldr_rand_t r;

    ldr_rand_seed(&r, 331);
    fix_open_dram(f, "dram=32M");
    computed(p, f, &r, 20900);
    halves_make(&h, &p->from[0], p->keys, 0);
    halves_reserve(&h, &p->from[0], p->space);
    halves_make(&other, &p->from[0], p->keys, 0);
    halves_reserve(&other, &p->from[0], p->space);
    assert_status(transport_close(&f->lar, LARDER_FOREVER), LARDER_OK);
    assert_status(larder_prefix_fill(&h.rooms, &h.move), LARDER_E_CLOSED);
    assert_null(h.rooms);
    larder_rooms_release(&other.rooms);
    assert_status(
        larder_prefix_reserve(p->space, p->from[0].layout, &h.move, &h.rooms),
        LARDER_E_CLOSED);
    assert_null(h.rooms);
    pair_free(p);
    free(p);
}

/* The daemon that has the room is gone: the second half says so, and so does
 * another first one. */
static void check_gone(pair_t *p, halves_t *h)
{
    enum { TIMEOUT_MS = 200 };
    uint64_t end_ms = transport_now_ms() + PATIENCE_MS;
    larder_match_t m = {.struct_bytes = sizeof(m)};

    while (m.cause != LARDER_CAUSE_OFFLINE && transport_now_ms() < end_ms) {
        assert_status(larder_prefix_match(p->space, p->to[0].layout, p->keys,
                                          CHUNKS, TIMEOUT_MS, &m),
                      LARDER_OK);
    }
    for (unsigned i = 0; i < 2; i++) {
        uint64_t begin_ms = transport_now_ms();

        h->move.timeout_ms = TIMEOUT_MS;
        assert_status(larder_prefix_fill(&h->rooms, &h->move), LARDER_OK);
        assert_true(transport_now_ms() - begin_ms < TIMEOUT_MS + SLACK_MS);
        move_says(&h->move, 0, 0, 0, 3 * CHUNKS);
        assert_status(h->move.item, LARDER_E_OFFLINE);
        halves_make(h, &p->from[0], p->keys, 0);
        h->move.timeout_ms = TIMEOUT_MS;
        halves_reserve(h, &p->from[0], p->space);
        move_says(&h->move, 0, 0, 0, 3 * CHUNKS);
    }
}

/* The daemon stops before the second half, and then is killed before it. */
static void test_away(void **state)
{
    enum { TIMEOUT_MS = 200 };
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p)), *q = calloc(1, sizeof(*q));
    uint64_t end_ms = transport_now_ms() + PATIENCE_MS;
    halves_t h;
    ldr_rand_t r;

    if (f->embedded) {
        free(p);
        free(q);
        skip();
    }
    ldr_rand_seed(&r, 337);
    fix_open_dram(f, "dram=32M&breaker_ms=50");
    computed(p, f, &r, 21000);
    computed(q, f, &r, 21001);
    halves_make(&h, &p->from[0], p->keys, 0);
    halves_reserve(&h, &p->from[0], p->space);
    daemon_freeze(&the_daemon);
    uint64_t begin_ms = transport_now_ms();
    h.move.timeout_ms = TIMEOUT_MS;
    assert_status(larder_prefix_fill(&h.rooms, &h.move), LARDER_OK);
    assert_true(transport_now_ms() - begin_ms < TIMEOUT_MS + SLACK_MS);
    assert_int_equal(h.move.shards + h.move.failed, 3 * CHUNKS);
    if (transport_is("shm")) { /* it needs no answer */
        move_says(&h.move, 3 * CHUNKS, 0, 0, 0);
    }
    kill(the_daemon.pid, SIGCONT);
    while (matches(p) < CHUNKS && transport_now_ms() < end_ms) {
        if (!transport_is("shm")) { /* it was not saved, perhaps */
            halves_make(&h, &p->from[0], p->keys, 0);
            assert_status(
                larder_prefix_save(p->space, p->from[0].layout, &h.move), 0);
        }
        transport_pause();
    }
    engine_load(&p->to[0], p->space, p->keys, 0, FIXED);

    halves_make(&h, &q->from[0], q->keys, 0);
    halves_reserve(&h, &q->from[0], q->space);
    move_says(&h.move, 3 * CHUNKS, 0, 0, 0);
    daemon_stop(&the_daemon, SIGKILL);
    check_gone(q, &h);
    larder_rooms_release(&h.rooms);
    larder_close(&the_daemon.admin, 0);
    daemon_clean(&the_daemon);
    pair_free(p);
    pair_free(q);
    free(p);
    free(q);
}

/* Time passes with every look at the clock. */
static void test_late(void **state)
{
    fix_t *f = fix(state);
    unsigned late[2] = {0}, done = 0;
    ldr_rand_t r;

    ldr_rand_seed(&r, 347);
    fix_open_sim(f, "dram=8M&ssd=64M&segment=1M");
    for (uint64_t i = 0; i < 40; i++) {
        uint64_t tick_ms = i / 2;
        pair_t *p = calloc(1, sizeof(*p));
        halves_t h;

        computed(p, f, &r, 21100 + i);
        halves_make(&h, &p->from[0], p->keys, 0);
        h.move.timeout_ms = 15;
        for (unsigned half = 0; half < 2; half++) {
            /* Every other time there is enough for the first half. */
            f->clock.tick_ns = i % 2 > half ? 0 : tick_ms * 1000000;
            if (half == 0) {
                halves_reserve(&h, &p->from[0], p->space);
            } else {
                assert_status(larder_prefix_fill(&h.rooms, &h.move), 0);
            }
            f->clock.tick_ns = 0;
            assert_int_equal(h.move.shards + h.move.failed, 3 * CHUNKS);
            assert_status(h.move.item,
                          h.move.failed > 0 ? LARDER_E_DEADLINE : LARDER_OK);
            late[half] += h.move.failed > 0;
        }
        if (h.move.failed == 0) {
            engine_load(&p->to[0], p->space, p->keys, 0, FIXED);
            done++;
        }
        assert_int_equal(stats_of(f->lar).dram_leased_chunks, 0);
        pair_free(p);
        free(p);
    }
    assert_true(late[0] > 5 && late[1] > late[0] && done > 0);
}

#if LDR_FAULTS

static void test_no_memory(void **state)
{
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p));
    larder_status_t st;
    unsigned failures = 0;
    halves_t h;
    ldr_rand_t r;

    ldr_rand_seed(&r, 349);
    fix_open_dram(f, "dram=32M");
    computed(p, f, &r, 21200);
    do {
        halves_make(&h, &p->from[0], p->keys, 0);
        ldr_fault_arm(LDR_FAULT_alloc, failures + 1, 1);
        st = larder_prefix_reserve(p->space, p->from[0].layout, &h.move,
                                   &h.rooms);
        ldr_fault_disarm_all();
        assert_int_equal(h.rooms != NULL, st == LARDER_OK);
        if (st != LARDER_OK) {
            assert_status(st, LARDER_E_NO_MEMORY);
            assert_int_equal(stats_of(f->lar).dram_leased_chunks, 0);
            failures++;
        }
    } while (st != LARDER_OK && failures < 30);
    assert_in_range(failures, 5, 20);
    /* In an embedded node the second half needs none. */
    ldr_fault_arm(LDR_FAULT_alloc, 1, 1);
    assert_status(larder_prefix_fill(&h.rooms, &h.move), LARDER_OK);
    ldr_fault_disarm_all();
    move_says(&h.move, 3 * CHUNKS, 0, 0, 0);
    engine_load(&p->to[0], p->space, p->keys, 0, FIXED);
    pair_free(p);
    free(p);
}

/* A bit that flips between the copy and the checksum is never loaded. */
static void test_flipped(void **state)
{
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p));
    larder_table_t tables[GROUPS];
    halves_t h;
    ldr_rand_t r;

    ldr_rand_seed(&r, 353);
    fix_open_dram(f, "dram=32M");
    computed(p, f, &r, 21300);
    halves_make(&h, &p->from[0], p->keys, 0);
    halves_reserve(&h, &p->from[0], p->space);
    ldr_fault_arm(LDR_FAULT_crc_in, 3, 1);
    assert_status(larder_prefix_fill(&h.rooms, &h.move), LARDER_OK);
    ldr_fault_disarm_all();
    assert_int_equal(h.move.shards + h.move.failed, 3 * CHUNKS);
    engine_expect(&p->to[0], 0, FIXED, tables);
    larder_move_t load = {.struct_bytes = sizeof(larder_move_t),
                          .keys = p->keys,
                          .tables = tables,
                          .end = FIXED};
    assert_status(larder_prefix_load(p->space, p->to[0].layout, &load),
                  LARDER_MISS);
    if (fills_arena(f)) {
        assert_int_equal(h.move.failed, 0); /* found when it is read */
        assert_int_equal(load.cause, LARDER_CAUSE_CORRUPT);
    } else {
        assert_int_equal(h.move.failed, 1); /* it was looked at */
        assert_status(h.move.item, LARDER_E_CORRUPT);
    }
    pair_free(p);
    free(p);
}
#endif

/* ---- wrong arguments ---- */

static void test_misuse(void **state)
{
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p));
    larder_rooms_t *none = NULL;
    halves_t h;
    ldr_rand_t r;

    ldr_rand_seed(&r, 359);
    fix_open_dram(f, "dram=32M");
    computed(p, f, &r, 21400);
    halves_make(&h, &p->from[0], p->keys, 0);
    const larder_layout_t *layout = p->from[0].layout;
#define RESERVE(...)                                                           \
    assert_status(larder_prefix_reserve(__VA_ARGS__), LARDER_E_INVALID)
    RESERVE(NULL, layout, &h.move, &none);
    RESERVE(p->space, NULL, &h.move, &none);
    RESERVE(p->space, layout, NULL, &none);
    RESERVE(p->space, layout, &h.move, NULL);
    RESERVE(f->space, layout, &h.move, &none);
    larder_move_t wrong = h.move;
    wrong.keys = NULL;
    RESERVE(p->space, layout, &wrong, &none);
    p->from[0].ids[0][2] = BLOCKS; /* that no block has */
    RESERVE(p->space, layout, &h.move, &none);
    assert_null(none);
    engine_clear(&p->from[0]);
    engine_compute(&p->from[0], FIXED);
    assert_status(larder_prefix_fill(NULL, &h.move), LARDER_E_INVALID);
    assert_status(larder_prefix_fill(&none, &h.move), LARDER_E_INVALID);
    /* Nothing to save: a reservation of nothing. */
    halves_make(&h, &p->from[0], p->keys, 0);
    h.move.end = 7;
    halves_reserve(&h, &p->from[0], p->space);
    move_says(&h.move, 0, 0, 0, 0);
    assert_status(larder_prefix_fill(&h.rooms, &h.move), LARDER_OK);
    move_says(&h.move, 0, 0, 0, 0);
    /* A wrong second half ends it all the same. */
    for (unsigned i = 0; i < 2; i++) {
        halves_make(&h, &p->from[0], p->keys, 0);
        halves_reserve(&h, &p->from[0], p->space);
        h.move.tables = NULL;
        assert_status(larder_prefix_fill(&h.rooms, i == 0 ? NULL : &h.move),
                      LARDER_E_INVALID);
        assert_null(h.rooms);
        assert_int_equal(stats_of(f->lar).dram_leased_chunks, 0);
        assert_int_equal(matches(p), 0);
    }
    pair_free(p);
    free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ONE(test_random, "plain"),
        ONE(test_writers, "plain"),
        ONE(test_given_back, "plain"),
        ONE(test_part, "plain"),
        ONE(test_skipped, "plain"),
        ONE(test_reset, "plain"),
        ONE(test_closed, "plain"),
        ONE(test_away, "plain"),
        EMBED_ONE(test_late, "plain"),
#if LDR_FAULTS
        EMBED_ONE(test_no_memory, "plain"),
        ONE(test_flipped, "plain"),
#endif
        ONE(test_misuse, "plain"),
    };

    return cmocka_run_group_tests_name("client/prefix_rooms", tests, NULL,
                                       NULL);
}
