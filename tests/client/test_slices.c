/*
 * Canonical shards through a node: prefixes that engines of one shape saved are
 * found, staged and loaded by engines of any other, and what those get is their
 * part of the reference tensor (tests/layout/engines.h).
 */
#include "base/fault.h"
#include "client/support.h"
#include "layout/engines.h"

static larder_space_t *space_of(larder_t *lar, const e_model_t *m,
                                uint32_t slices)
{
    char name[64];
    larder_space_params_t p = {
        .field_mask = LARDER_SPACE_SHARDS | LARDER_SPACE_CHUNK_TOKENS,
        .descriptor = name,
        .shards = slices,
        .chunk_tokens = m->chunk_tokens,
    };
    larder_space_t *space = NULL;

    p.descriptor_bytes = (size_t)snprintf(name, sizeof(name), "slices %llu",
                                          (unsigned long long)m->seed);
    assert_status(larder_space_open(lar, &p, &space), LARDER_OK);
    return space;
}

/* What a test has of one model. */
typedef struct prompt {
    larder_t *lar;
    const e_model_t *model;
    larder_space_t *space;
    larder_key_t keys[E_CHUNKS];
    uint32_t tokens;
} prompt_t;

static void prompt_make(prompt_t *p, larder_t *lar, const e_model_t *m,
                        uint32_t chunks, uint32_t slices)
{
    uint32_t tokens[E_CHUNKS * 256];
    size_t count = 0;

    *p = (prompt_t){.lar = lar, .model = m, .tokens = chunks * m->chunk_tokens};
    p->space = space_of(lar, m, slices);
    for (uint32_t i = 0; i < p->tokens; i++) {
        tokens[i] = (uint32_t)m->seed * 7 + i;
    }
    assert_status(larder_chain(p->space, tokens, p->tokens, NULL, p->keys,
                               E_CHUNKS, &count),
                  LARDER_OK);
    assert_int_equal(count, chunks);
}

static larder_move_t move_of(const prompt_t *p, const e_rank_t *e,
                             larder_table_t *tables, uint32_t begin,
                             uint32_t end)
{
    e_tables(e, tables);
    return (larder_move_t){.struct_bytes = sizeof(larder_move_t),
                           .keys = p->keys,
                           .tables = tables,
                           .begin = begin,
                           .end = end,
                           .writers = (uint16_t)e->writers,
                           .writer = (uint16_t)e->writer,
                           .timeout_ms = 20000};
}

/* Every rank of the shape saves tokens begin to end; rooms: in two halves. */
static void save_all(const prompt_t *p, const e_shape_t *s, ldr_rand_t *r,
                     uint32_t begin, uint32_t end, bool rooms)
{
    for (uint32_t rank = 0; rank < s->tp * s->pp; rank++) {
        larder_table_t tables[E_TABLES];
        larder_rooms_t *room = NULL;
        e_rank_t e;

        e_rank_make(&e, p->model, s, rank, p->tokens, r);
        e_compute(&e);
        larder_move_t m = move_of(p, &e, tables, begin, end);
        if (rooms && !RIG_WHOLE) {
            assert_status(larder_prefix_reserve(p->space, e.layout, &m, &room),
                          LARDER_OK);
            assert_status(larder_prefix_fill(&room, &m), LARDER_OK);
        } else {
            assert_status(larder_prefix_save(p->space, e.layout, &m),
                          LARDER_OK);
        }
        assert_int_equal(m.failed, 0);
        assert_int_equal(m.skipped, 0);
        if (e.writers == 1) {
            uint32_t want = 0;

            for (uint16_t g = 0; g < p->model->group_count; g++) {
                want += larder_layout_saves(e.layout, g);
            }
            assert_int_equal(m.shards + m.present,
                             want * ((end - begin) / p->model->chunk_tokens));
        }
        e_rank_free(&e);
    }
}

/* Every rank of the shape loads the prefix, from a lease or from memory that
 * was fetched. */
static void load_all(const prompt_t *p, const e_shape_t *s, ldr_rand_t *r,
                     uint32_t begin, bool fetch)
{
    uint32_t chunks = p->tokens / p->model->chunk_tokens;

    for (uint32_t rank = 0; rank < s->tp * s->pp; rank++) {
        larder_match_t match = {.struct_bytes = sizeof(match)};
        larder_table_t tables[E_TABLES];
        larder_lease_t *lease = NULL;
        e_rank_t e;

        e_rank_make(&e, p->model, s, rank, p->tokens, r);
        assert_status(larder_prefix_match(p->space, e.layout, p->keys, chunks,
                                          20000, &match),
                      LARDER_OK);
        assert_int_equal(match.chunks, chunks);
        match.struct_bytes = sizeof(match);
        assert_status(larder_prefix_stage(p->space, e.layout, p->keys, chunks,
                                          NULL, 20000, &lease, &match),
                      LARDER_OK);
        assert_int_equal(match.chunks, chunks);
        larder_move_t m = move_of(p, &e, tables, begin, p->tokens);
        if (fetch) {
            size_t bytes = 0;

            assert_status(larder_prefix_fetch(p->space, e.layout, lease,
                                              p->keys, chunks, NULL, 0, 20000,
                                              &bytes),
                          LARDER_OK);
            uint8_t *memory = malloc(bytes);
            assert_status(larder_prefix_fetch(p->space, e.layout, lease,
                                              p->keys, chunks, memory, bytes,
                                              20000, &bytes),
                          LARDER_OK);
            assert_status(larder_prefix_place(e.layout, &m, memory, bytes),
                          LARDER_OK);
            free(memory);
        } else {
            larder_lease_token(lease, &m.token);
            assert_status(larder_prefix_load(p->space, e.layout, &m),
                          LARDER_OK);
        }
        larder_release(&lease);
        e_check(&e, rank, begin, p->tokens);
        e_rank_free(&e);
    }
}

static uint32_t slices_of(const e_model_t *m, const e_shape_t *s, ldr_rand_t *r,
                          bool *whole)
{
    uint32_t slices = 0;

    *whole = true;
    for (uint32_t rank = 0; rank < s->tp * s->pp; rank++) {
        e_rank_t e;

        e_rank_make(&e, m, s, rank, 0, r);
        slices = larder_layout_slices(e.layout);
        for (uint16_t g = 0; g < m->group_count; g++) {
            *whole = *whole && larder_layout_saves(e.layout, g) ==
                                   larder_layout_loads(e.layout, g);
        }
        e_rank_free(&e);
    }
    return slices;
}

/* One model: half of it by each of two shapes, read by a third. */
static void run(larder_t *lar, uint64_t seed)
{
    ldr_rand_t r;
    e_model_t m;
    e_shape_t a, b, reader;
    prompt_t p;
    bool whole;

    test_seed(seed);
    ldr_rand_seed(&r, seed);
    e_model_make(&m, &r, seed);
    do {
        e_shape_make(&a, &r, &m);
        slices_of(&m, &a, &r, &whole);
    } while (!whole);
    do {
        e_shape_make(&b, &r, &m);
        slices_of(&m, &b, &r, &whole);
    } while (!whole);
    e_shape_make(&reader, &r, &m);
    uint32_t chunks = 1 + e_below(&r, E_CHUNKS);
    uint32_t half = chunks / 2 * m.chunk_tokens;
    prompt_make(&p, lar, &m, chunks, slices_of(&m, &a, &r, &whole));
    save_all(&p, &a, &r, 0, half, seed % 2 == 0);
    save_all(&p, &b, &r, half, p.tokens, seed % 2 == 1);
    load_all(&p, &reader, &r, seed % 3 == 0 ? half : 0, seed % 4 == 0);
    larder_space_reset(p.space, 20000);
    larder_space_close(&p.space);
}

static void test_any_to_any(void **state)
{
    uint64_t first = test_env("LARDER_SEED", 1);
    uint64_t count = test_count("LARDER_SLICES_SEEDS", RIG_WHOLE ? 4 : 10);
    fix_t *f = *state;

    fix_open_dram(f, "dram=256M");
    for (uint64_t seed = first; seed < first + count; seed++) {
        run(f->lar, seed);
    }
}

/* A dense model of 8 heads and 8 layers, K and V in NHD pages. */
static void dense(e_model_t *m)
{
    *m = (e_model_t){
        .seed = 99, .chunk_tokens = 256, .layers = 8, .group_count = 1};
    m->group[0] = (e_group_t){.rule = LARDER_RULE_ALL,
                              .heads = 8,
                              .parts = 2,
                              .bytes = {64, 64},
                              .layer_count = 8};
    for (uint32_t i = 0; i < 8; i++) {
        m->group[0].layers[i] = i;
    }
}

/* Half by TP 2, half by TP 4; read by four ranks of TP 2 x PP 2 with another
 * block size and order, and the reverse. */
static void test_halves(void **state)
{
    e_shape_t tp2 = {.tp = 2, .pp = 1, .block = {16}, .token_outer = true};
    e_shape_t tp4 = {.tp = 4, .pp = 1, .block = {32}};
    e_shape_t both = {.tp = 2,
                      .pp = 2,
                      .block = {64},
                      .parts_inner = true,
                      .page_first = true};
    fix_t *f = *state;
    ldr_rand_t r;
    e_model_t m;
    prompt_t p;

    ldr_rand_seed(&r, 1);
    dense(&m);
    fix_open_dram(f, "dram=256M");
    prompt_make(&p, f->lar, &m, 4, 8 * 4);
    save_all(&p, &tp2, &r, 0, 512, false);
    save_all(&p, &tp4, &r, 512, 1024, true);
    load_all(&p, &both, &r, 0, false);
    assert_status(larder_space_reset(p.space, 20000), LARDER_OK);
    save_all(&p, &both, &r, 0, 1024, true);
    load_all(&p, &tp4, &r, 0, false);
    load_all(&p, &tp2, &r, 256, true);
    larder_space_close(&p.space);
}

/* TP 16 of 8 heads: two ranks hold each head, and save every other chunk. */
static void test_turns(void **state)
{
    e_shape_t many = {.tp = 16, .pp = 1, .block = {16}};
    e_shape_t one = {.tp = 1, .pp = 1, .block = {128}, .token_outer = true};
    fix_t *f = *state;
    larder_stats_t stats = {.struct_bytes = sizeof(stats)};
    ldr_rand_t r;
    e_model_t m;
    prompt_t p;

    ldr_rand_seed(&r, 2);
    dense(&m);
    fix_open_dram(f, "dram=256M");
    prompt_make(&p, f->lar, &m, 4, 8 * 4);
    save_all(&p, &many, &r, 0, 1024, false);
    assert_status(larder_stats(f->lar, &stats), LARDER_OK);
    assert_int_equal(stats.saves_stored, 4 * 8 * 4);
    assert_int_equal(stats.saves_present, 0);
    load_all(&p, &one, &r, 0, false);
    larder_space_close(&p.space);
}

/* A rank of a pipeline of 3 holds parts of slices: it loads them, and does not
 * save those. */
static void test_partly(void **state)
{
    e_shape_t one = {.tp = 1, .pp = 1, .block = {16}};
    e_shape_t three = {.tp = 1, .pp = 3, .block = {16}, .token_outer = true};
    fix_t *f = *state;
    ldr_rand_t r;
    e_model_t m;
    prompt_t p;
    e_rank_t e;

    ldr_rand_seed(&r, 3);
    dense(&m);
    fix_open_dram(f, "dram=256M");
    prompt_make(&p, f->lar, &m, 2, 8 * 4);
    /* Ranges 0-1, 2-3, 4-5 and 6-7; ranks 0-2, 3-5 and 6-7. */
    e_rank_make(&e, &m, &three, 0, p.tokens, &r);
    assert_int_equal(larder_layout_loads(e.layout, 0), 8 * 2);
    assert_int_equal(larder_layout_saves(e.layout, 0), 8);
    e_rank_free(&e);
    save_all(&p, &three, &r, 0, p.tokens, false);
    save_all(&p, &one, &r, 0, p.tokens, false);
    load_all(&p, &three, &r, 0, false);
    larder_space_close(&p.space);
}

/* A prefix of more shards than a call of larder_run() takes: 32 for each chunk.
 * A token is a chunk, and a row is 8 bytes. */
#define MANY_CHUNKS 200
#define MANY_SLICES (4 * 8) /* layers, heads */
#define MANY_PAGE (MANY_SLICES * 8)

static larder_layout_t *many_layout(uint8_t *memory)
{
    larder_region_t region = {"memory", memory, MANY_CHUNKS * MANY_PAGE};
    larder_layer_t place = {"all", 0, 0, MANY_PAGE, MANY_PAGE};
    larder_group_t group = {LARDER_RULE_ALL, 1, 0, &place, 1};
    uint32_t layers[4];
    larder_part_t parts[4];
    larder_page_t page[4];
    larder_layout_t *layout = NULL;

    for (uint32_t i = 0; i < 4; i++) {
        layers[i] = i;
        parts[i] = (larder_part_t){
            .offset = i * 64, .head_stride = 8, .row_stride = 8, .bytes = 8};
        page[i] = (larder_page_t){i, 1, &parts[i]};
    }
    larder_pages_t pages = {.heads = 8,
                            .head_count = 8,
                            .row_tokens = 1,
                            .model_layers = layers,
                            .model_layer_count = 4,
                            .pages = page,
                            .page_count = 4};
    larder_layout_params_t p = {.field_mask = LARDER_LAYOUT_PAGES,
                                .chunk_tokens = 1,
                                .block_count = MANY_CHUNKS,
                                .regions = &region,
                                .region_count = 1,
                                .groups = &group,
                                .group_count = 1,
                                .pages = &pages,
                                .model_layers = 4};
    assert_status(larder_layout_create(&p, &layout), LARDER_OK);
    return layout;
}

static void many_fill(uint64_t *words, bool empty)
{
    for (uint64_t i = 0; i < MANY_CHUNKS * MANY_SLICES; i++) {
        words[i] = empty ? 0 : i * 0x9e3779b97f4a7c15ull + 1;
    }
}

static void many_check(const uint64_t *words)
{
    for (uint64_t i = 0; i < MANY_CHUNKS * MANY_SLICES; i++) {
        assert_int_equal(words[i], i * 0x9e3779b97f4a7c15ull + 1);
    }
}

/* By a lease, and by memory that was fetched. */
static void many_load(larder_space_t *space, const larder_layout_t *layout,
                      larder_move_t m, uint64_t *words)
{
    larder_match_t match = {.struct_bytes = sizeof(match)};
    larder_lease_t *lease = NULL;
    size_t bytes = 0;

    assert_status(
        larder_prefix_match(space, layout, m.keys, MANY_CHUNKS, 20000, &match),
        LARDER_OK);
    assert_int_equal(match.chunks, MANY_CHUNKS);
    match.struct_bytes = sizeof(match);
    assert_status(larder_prefix_stage(space, layout, m.keys, MANY_CHUNKS, NULL,
                                      20000, &lease, &match),
                  LARDER_OK);
    assert_int_equal(match.chunks, MANY_CHUNKS);
    assert_status(larder_prefix_fetch(space, layout, lease, m.keys, MANY_CHUNKS,
                                      NULL, 0, 20000, &bytes),
                  LARDER_OK);
    uint8_t *fetched = malloc(bytes);
    assert_status(larder_prefix_fetch(space, layout, lease, m.keys, MANY_CHUNKS,
                                      fetched, bytes, 20000, &bytes),
                  LARDER_OK);
    assert_status(larder_prefix_place(layout, &m, fetched, bytes), LARDER_OK);
    free(fetched);
    many_check(words);
    many_fill(words, true);
    larder_lease_token(lease, &m.token);
    assert_status(larder_prefix_load(space, layout, &m), LARDER_OK);
    assert_int_equal(m.shards, MANY_CHUNKS * MANY_SLICES);
    larder_release(&lease);
    many_check(words);
}

static void test_many(void **state)
{
    static uint64_t words[MANY_CHUNKS * MANY_SLICES];
    static uint32_t ids[MANY_CHUNKS];
    static larder_key_t keys[MANY_CHUNKS];
    const e_model_t model = {.seed = 4096, .chunk_tokens = 1};
    larder_table_t table = {ids, 0, MANY_CHUNKS};
    larder_move_t m = {.struct_bytes = sizeof(m),
                       .keys = keys,
                       .tables = &table,
                       .end = MANY_CHUNKS,
                       .timeout_ms = 20000};
    size_t count = 0;
    fix_t *f = *state;

    _Static_assert(MANY_CHUNKS * MANY_SLICES > LARDER_BATCH_MAX, "split");
    fix_open_dram(f, "dram=512M"); /* a shard takes 64 KiB */
    larder_space_t *space = space_of(f->lar, &model, MANY_SLICES);
    larder_layout_t *layout = many_layout((uint8_t *)words);
    for (uint32_t i = 0; i < MANY_CHUNKS; i++) {
        ids[i] = i;
    }
    assert_status(
        larder_chain(space, ids, MANY_CHUNKS, NULL, keys, MANY_CHUNKS, &count),
        LARDER_OK);
    for (uint32_t rooms = 0; rooms <= (RIG_WHOLE ? 0u : 1u); rooms++) {
        larder_rooms_t *room = NULL;
        larder_move_t save = m;

        many_fill(words, false);
        if (rooms == 1) {
            assert_status(larder_prefix_reserve(space, layout, &save, &room),
                          LARDER_OK);
            assert_status(larder_prefix_fill(&room, &save), LARDER_OK);
        } else {
            assert_status(larder_prefix_save(space, layout, &save), LARDER_OK);
        }
        assert_int_equal(save.shards, MANY_CHUNKS * MANY_SLICES);
        assert_int_equal(save.failed + save.skipped + save.present, 0);
        many_fill(words, true);
        many_load(space, layout, m, words);
        assert_status(larder_space_reset(space, 20000), LARDER_OK);
    }
    larder_layout_destroy(&layout);
    larder_space_close(&space);
}

#if LDR_FAULTS
/* One flipped bit in what is stored: nothing is loaded. */
static void test_flipped(void **state)
{
    e_shape_t tp2 = {.tp = 2, .pp = 1, .block = {16}, .token_outer = true};
    e_shape_t one = {.tp = 1, .pp = 1, .block = {32}};
    larder_table_t tables[E_TABLES];
    fix_t *f = *state;
    ldr_rand_t r;
    e_model_t m;
    prompt_t p;
    e_rank_t e;

    if (!transport_is("embed")) {
        return; /* the bytes are the daemon's */
    }
    ldr_rand_seed(&r, 4);
    dense(&m);
    fix_open_dram(f, "dram=256M");
    prompt_make(&p, f->lar, &m, 2, 8 * 4);
    save_all(&p, &tp2, &r, 0, p.tokens, false);
    e_rank_make(&e, &m, &one, 0, p.tokens, &r);
    larder_move_t move = move_of(&p, &e, tables, 0, p.tokens);
    ldr_fault_arm(LDR_FAULT_copy_out, 20, 1);
    assert_status(larder_prefix_load(p.space, e.layout, &move), LARDER_MISS);
    ldr_fault_disarm_all();
    assert_int_equal(move.cause, LARDER_CAUSE_CORRUPT);
    e_rank_free(&e);
    larder_space_close(&p.space);
}
#endif

/* A space with another number of shards, and a shard of one's own. */
static void test_refused(void **state)
{
    e_shape_t one = {.tp = 1, .pp = 1, .block = {16}};
    larder_table_t tables[E_TABLES];
    larder_match_t match = {.struct_bytes = sizeof(match)};
    fix_t *f = *state;
    ldr_rand_t r;
    e_model_t m;
    prompt_t p;
    e_rank_t e;

    ldr_rand_seed(&r, 5);
    dense(&m);
    fix_open_dram(f, "dram=64M");
    prompt_make(&p, f->lar, &m, 1, 8);
    e_rank_make(&e, &m, &one, 0, p.tokens, &r);
    larder_move_t move = move_of(&p, &e, tables, 0, p.tokens);
    assert_status(larder_prefix_save(p.space, e.layout, &move),
                  LARDER_E_INVALID);
    assert_non_null(strstr(larder_last_error(), "32 slices"));
    assert_status(
        larder_prefix_match(p.space, e.layout, p.keys, 1, 1000, &match),
        LARDER_E_INVALID);
    larder_space_close(&p.space);
    prompt_make(&p, f->lar, &m, 1, 32);
    move = move_of(&p, &e, tables, 0, p.tokens);
    move.shard = 1;
    assert_status(larder_prefix_save(p.space, e.layout, &move),
                  LARDER_E_INVALID);
    larder_space_close(&p.space);
    e_rank_free(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ONE(test_any_to_any, "plain"),
        ONE(test_halves, "plain"),
        ONE(test_turns, "plain"),
        ONE(test_partly, "plain"),
        ONE(test_many, "plain"),
#if LDR_FAULTS
        ONE(test_flipped, "plain"),
#endif
        ONE(test_refused, "plain"),
    };

    return cmocka_run_group_tests_name("client/slices", tests, NULL, NULL);
}
