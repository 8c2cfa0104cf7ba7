/*
 * Canonical shards: what ranks of any shape save is the same, and what ranks of
 * any other shape load is exactly their part of the reference tensor
 * (engines.h). Shards are kept in memory here; tests/client/test_slices.c does
 * the same through a node.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "layout/engines.h"
#include "layout/layout.h"

/* ---- a store ---- */

typedef struct kept {
    uint8_t *bytes;
    size_t count;
} kept_t;

static kept_t store[E_GROUPS][E_CHUNKS][LARDER_SHARDS_MAX];

static void store_clear(void)
{
    for (uint32_t g = 0; g < E_GROUPS; g++) {
        for (uint32_t c = 0; c < E_CHUNKS; c++) {
            for (uint32_t s = 0; s < LARDER_SHARDS_MAX; s++) {
                free(store[g][c][s].bytes);
            }
        }
    }
    memset(store, 0, sizeof(store));
}

static void save_shard(const e_rank_t *e, ldr_shard_at_t at)
{
    const ldr_layout_slice_t *slice = &e->layout->slice[at.slice];
    larder_table_t tables[E_TABLES];
    ldr_segments_t s = {.iov = malloc(slice->pieces * sizeof(struct iovec)),
                        .max = slice->pieces};
    e_tables(e, tables);
    larder_status_t st = ldr_layout_segments(
        e->layout, at, tables, (ldr_span_t){0, UINT32_MAX}, NULL, &s);
    kept_t *kept = &store[at.group][at.chunk][slice->number];
    uint8_t *bytes = malloc(slice->bytes), *to = bytes;

    require(st == LARDER_OK && s.count <= slice->pieces, "%d %s", (int)st,
            larder_last_error());
    for (uint32_t i = 0; i < s.count; i++) {
        memcpy(to, s.iov[i].iov_base, s.iov[i].iov_len);
        to += s.iov[i].iov_len;
    }
    require(to == bytes + slice->bytes, "another number of bytes");
    if (kept->bytes != NULL) {
        require(kept->count == slice->bytes &&
                    memcmp(kept->bytes, bytes, slice->bytes) == 0,
                "two ranks saved different bytes");
        free(kept->bytes);
    }
    *kept = (kept_t){bytes, slice->bytes};
    free(s.iov);
}

/* What one writer holds of a chunk. */
static void save(const e_rank_t *e, uint32_t chunk)
{
    for (uint32_t g = 0; g < e->model->group_count; g++) {
        const ldr_group_t *group = &e->layout->group[g];

        for (uint32_t i = group->slice; i < group->slice_end; i++) {
            if (e->layout->slice[i].whole) {
                save_shard(e, (ldr_shard_at_t){g, chunk, i});
            }
        }
    }
}

static void load_shard(const e_rank_t *e, ldr_shard_at_t at, ldr_span_t wanted)
{
    const ldr_layout_slice_t *slice = &e->layout->slice[at.slice];
    const kept_t *kept = &store[at.group][at.chunk][slice->number];
    larder_table_t tables[E_TABLES];
    ldr_segments_t s = {.iov = malloc(slice->pieces * sizeof(struct iovec)),
                        .max = slice->pieces};
    uint8_t *scratch = malloc(slice->bytes), *from = kept->bytes;

    e_tables(e, tables);
    require(kept->bytes != NULL && kept->count == slice->bytes,
            "shard %u of chunk %u of group %u is not there", slice->number,
            at.chunk, at.group);
    require(ldr_layout_segments(e->layout, at, tables, wanted, scratch, &s) ==
                LARDER_OK,
            "%s", larder_last_error());
    for (uint32_t i = 0; i < s.count; i++) {
        memcpy(s.iov[i].iov_base, from, s.iov[i].iov_len);
        from += s.iov[i].iov_len;
    }
    require(from == kept->bytes + kept->count, "another number of bytes");
    free(scratch);
    free(s.iov);
}

/* As prefix.c does it. */
static void load(const e_rank_t *e, uint32_t begin, uint32_t chunks)
{
    uint32_t end = chunks * e->model->chunk_tokens;

    for (uint32_t g = 0; g < e->model->group_count; g++) {
        const ldr_group_t *group = &e->layout->group[g];
        ldr_span_t needs = ldr_layout_needs(e->layout, g, chunks);
        ldr_span_t wanted = ldr_layout_reads(e->layout, g, end);

        if (begin / group->block_tokens > wanted.first) {
            wanted.first = begin / group->block_tokens;
        }
        for (uint32_t c = needs.first; c < needs.end; c++) {
            for (uint32_t i = group->slice; i < group->slice_end; i++) {
                load_shard(e, (ldr_shard_at_t){g, c, i}, wanted);
            }
        }
    }
}

/* ---- tests ---- */

/* Whether its ranks save everything: none holds a slice in part. */
static bool saves_all(const e_model_t *m, const e_shape_t *s, ldr_rand_t *r)
{
    bool all = true;

    for (uint32_t rank = 0; rank < s->tp * s->pp; rank++) {
        e_rank_t e;

        e_rank_make(&e, m, s, rank, 0, r);
        for (uint16_t g = 0; g < m->group_count; g++) {
            all = all && larder_layout_saves(e.layout, g) ==
                             larder_layout_loads(e.layout, g);
        }
        e_rank_free(&e);
    }
    return all;
}

static void writer_make(e_shape_t *s, ldr_rand_t *r, const e_model_t *m)
{
    do {
        e_shape_make(s, r, m);
    } while (!saves_all(m, s, r));
}

static void write_chunks(const e_model_t *m, const e_shape_t *s, ldr_rand_t *r,
                         uint32_t tokens, uint32_t part, uint32_t of)
{
    uint32_t slices = 0;

    for (uint32_t rank = 0; rank < s->tp * s->pp; rank++) {
        e_rank_t e;

        e_rank_make(&e, m, s, rank, tokens, r);
        require(slices == 0 || larder_layout_slices(e.layout) == slices,
                "ranks that differ in slices");
        slices = larder_layout_slices(e.layout);
        e_compute(&e);
        for (uint32_t c = part; c < tokens / m->chunk_tokens; c += of) {
            save(&e, c);
        }
        e_rank_free(&e);
    }
}

static void read_prefix(const e_model_t *m, const e_shape_t *s, ldr_rand_t *r,
                        uint32_t tokens)
{
    uint32_t chunks = 1 + e_below(r, tokens / m->chunk_tokens);
    uint32_t begin =
        e_below(r, 3) == 0 ? e_below(r, chunks + 1) * m->chunk_tokens : 0;

    for (uint32_t rank = 0; rank < s->tp * s->pp; rank++) {
        e_rank_t e;

        e_rank_make(&e, m, s, rank, tokens, r);
        load(&e, begin, chunks);
        e_check(&e, rank, begin, chunks * m->chunk_tokens);
        e_rank_free(&e);
    }
}

/* Some chunks by one engine and some by another, read by a third. */
static void test_any_to_any(void **state)
{
    uint64_t first = test_env("LARDER_SEED", 1);
    uint64_t count = test_count("LARDER_SLICES_SEEDS", 60);

    (void)state;
    for (uint64_t seed = first; seed < first + count; seed++) {
        ldr_rand_t r;
        e_model_t m;
        e_shape_t a, b, reader;

        test_seed(seed);
        ldr_rand_seed(&r, seed);
        e_model_make(&m, &r, seed);
        uint32_t tokens = (1 + e_below(&r, E_CHUNKS)) * m.chunk_tokens;
        writer_make(&a, &r, &m);
        writer_make(&b, &r, &m);
        e_shape_make(&reader, &r, &m);
        write_chunks(&m, &a, &r, tokens, 0, 2);
        write_chunks(&m, &b, &r, tokens, 1, 2);
        if (seed % 4 == 0) { /* what both have is the same */
            write_chunks(&m, &b, &r, tokens, 0, 2);
        }
        read_prefix(&m, &reader, &r, tokens);
        store_clear();
    }
}

/* What an engine with pages in one of the named orders saved, one with any
 * other of them reads. */
static void test_named_orders(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < (uint64_t)E_ORDERS * E_ORDERS; i++) {
        const e_order_t *from = &e_orders[i / E_ORDERS];
        const e_order_t *to = &e_orders[i % E_ORDERS];
        ldr_rand_t r;
        e_model_t m;
        e_shape_t writer, reader;

        test_seed(i);
        ldr_rand_seed(&r, i);
        do {
            e_model_make(&m, &r, i);
        } while (m.layers < 2 || m.fixed_block != 0);
        writer_make(&writer, &r, &m);
        e_shape_make(&reader, &r, &m);
        e_shape_order(&writer, from);
        e_shape_order(&reader, to);
        write_chunks(&m, &writer, &r, 2 * m.chunk_tokens, 0, 1);
        read_prefix(&m, &reader, &r, 2 * m.chunk_tokens);
        store_clear();
    }
}

/* Shards that begin in the middle of a block: the last 64 or 192 tokens of a
 * chunk, with blocks of 128. */
static void test_parts_of_blocks(void **state)
{
    static const uint32_t windows[] = {40, 64, 65, 150, 190};

    (void)state;
    for (uint32_t i = 0; i < 5 * 4; i++) {
        e_model_t m = {
            .seed = i, .chunk_tokens = 256, .layers = 2, .group_count = 1};
        e_shape_t large = {.tp = 1, .pp = 1, .block = {128}};
        e_shape_t small = {.tp = 2, .pp = 1, .block = {16}, .gap = 8};
        ldr_rand_t r;

        m.group[0] = (e_group_t){.rule = LARDER_RULE_TRAILING,
                                 .window = windows[i % 5],
                                 .heads = 2,
                                 .parts = 2,
                                 .bytes = {8, 16},
                                 .layers = {0, 1},
                                 .layer_count = 2};
        test_seed(i);
        ldr_rand_seed(&r, i);
        large.token_outer = i % 2 == 0;
        write_chunks(&m, i < 10 ? &large : &small, &r, 1024, 0, 1);
        read_prefix(&m, i < 10 ? &small : &large, &r, 1024);
        write_chunks(&m, i < 10 ? &small : &large, &r, 1024, 0, 1);
        store_clear();
    }
}

/* ---- block tables ---- */

/* Two layers with a window, in tables of their own, and one without, in the
 * table of the first; rows of 8 bytes, blocks of 64 tokens. */
typedef struct three {
    uint8_t memory[3][8 * 64 * 8];
    larder_layout_t *layout;
} three_t;

static void three_make(three_t *t, const uint32_t tables[3],
                       uint32_t table_count, uint32_t other_block,
                       larder_status_t want)
{
    static const uint32_t layers[2][2] = {{0, 1}, {2}};
    larder_region_t regions[3];
    larder_layer_t places[3];
    larder_group_t groups[] = {
        {LARDER_RULE_TRAILING, 64, 100, &places[0], 2},
        {LARDER_RULE_ALL, other_block, 0, &places[2], 1},
    };
    larder_part_t parts[] = {{0, 0, 0, 0, 8, 8}, {1, 0, 0, 0, 8, 8}};
    larder_page_t pages[] = {
        {0, 1, &parts[0]}, {1, 1, &parts[1]}, {2, 1, &parts[0]}};
    larder_pages_t inside[] = {{1, 0, 1, 1, layers[0], 2, 2, &pages[0]},
                               {1, 0, 1, 1, layers[1], 1, 1, &pages[2]}};
    larder_layout_params_t p = {
        .field_mask = LARDER_LAYOUT_PAGES | LARDER_LAYOUT_TABLES |
                      LARDER_LAYOUT_NULL_BLOCK,
        .chunk_tokens = 128,
        .block_count = 8,
        .regions = regions,
        .region_count = 3,
        .groups = groups,
        .group_count = 2,
        .pages = inside,
        .model_layers = 3,
        .table_count = table_count,
        .layer_tables = tables,
    };

    for (uint32_t i = 0; i < 3; i++) {
        regions[i] = (larder_region_t){"memory", t->memory[i], 8 * 64 * 8};
        places[i] = (larder_layer_t){"layer", i, 0, 64 * 8, 64 * 8};
    }
    t->layout = NULL;
    assert_int_equal(larder_layout_create(&p, &t->layout), want);
}

/* A save needs every layer's blocks; a load writes where a layer's table has
 * one. */
static void test_null_in_one_table(void **state)
{
    three_t *t = calloc(1, sizeof(*t));
    uint32_t a[] = {3, 4}, b[] = {5, 6};
    larder_table_t tables[] = {{a, 0, 2}, {b, 0, 2}};
    struct iovec iov[8];
    ldr_segments_t s = {.iov = iov, .max = 8};
    ldr_span_t all = {0, UINT32_MAX};
    ldr_shard_at_t window = {0, 0, 0}, full = {1, 0, 1};
    uint8_t scratch[4096];

    (void)state;
    three_make(t, (const uint32_t[]){0, 1, 0}, 2, 64, LARDER_OK);
    assert_int_equal(larder_layout_slices(t->layout), 1);
    assert_int_equal(
        ldr_layout_segments(t->layout, window, tables, all, NULL, &s),
        LARDER_OK);
    assert_int_equal(s.count,
                     2); /* blocks 3 and 4, and 5 and 6, are one each */
    assert_ptr_equal(iov[0].iov_base, t->memory[0] + 3 * 512);
    assert_ptr_equal(iov[1].iov_base, t->memory[1] + 5 * 512);
    b[0] = 0; /* the null block */
    assert_int_equal(
        ldr_layout_segments(t->layout, window, tables, all, NULL, &s),
        LARDER_MISS);
    assert_int_equal(ldr_layout_places(t->layout, window, tables, all, false),
                     LARDER_MISS);
    assert_int_equal(
        ldr_layout_segments(t->layout, full, tables, all, NULL, &s), LARDER_OK);
    assert_ptr_equal(iov[0].iov_base, t->memory[2] + 3 * 512);
    assert_int_equal(
        ldr_layout_segments(t->layout, window, tables, all, scratch, &s),
        LARDER_OK);
    assert_int_equal(s.count, 3);
    assert_ptr_equal(iov[0].iov_base, t->memory[0] + 3 * 512);
    assert_ptr_equal(iov[1].iov_base, scratch);
    assert_int_equal(iov[1].iov_len, 512);
    assert_ptr_equal(iov[2].iov_base, t->memory[1] + 6 * 512);
    tables[1].count = 1; /* a place that is wanted, in one table only */
    assert_int_equal(
        ldr_layout_segments(t->layout, window, tables, all, scratch, &s),
        LARDER_E_INVALID);
    assert_int_equal(ldr_layout_places(t->layout, window, tables, all, true),
                     LARDER_E_INVALID);
    assert_non_null(strstr(larder_last_error(), "table 1 has no place 1"));
    assert_int_equal(ldr_layout_places(t->layout, full, tables, all, true),
                     LARDER_OK);
    larder_layout_destroy(&t->layout);
    free(t);
}

static void test_tables_refused(void **state)
{
    three_t *t = calloc(1, sizeof(*t));

    (void)state;
    three_make(t, NULL, 2, 64, LARDER_E_INVALID);
    three_make(t, (const uint32_t[]){0, 1, 0}, 0, 64, LARDER_E_INVALID);
    three_make(t, (const uint32_t[]){0, 1, 0}, LARDER_TABLES_MAX + 1, 64,
               LARDER_E_INVALID);
    three_make(t, (const uint32_t[]){0, 2, 0}, 2, 64, LARDER_E_INVALID);
    assert_non_null(strstr(larder_last_error(), "table 2"));
    three_make(t, (const uint32_t[]){0, 1, 0}, 2, 32, LARDER_E_INVALID);
    assert_non_null(strstr(larder_last_error(), "64 and 32"));
    three_make(t, (const uint32_t[]){0, 1, 2}, 3, 32, LARDER_OK);
    larder_layout_destroy(&t->layout);
    free(t);
}

/* Layers may lie on top of each other if their tables differ, in one group or
 * in two. */
static void test_tables_apart(void **state)
{
    static uint8_t memory[8 * 64];
    larder_region_t region = {"memory", memory, sizeof(memory)};
    larder_layer_t places[] = {{"a", 0, 0, 64, 64}, {"b", 0, 0, 64, 64}};
    larder_group_t one[] = {{LARDER_RULE_ALL, 16, 0, places, 2}};
    larder_group_t two[] = {{LARDER_RULE_ALL, 16, 0, &places[0], 1},
                            {LARDER_RULE_ALL, 16, 0, &places[1], 1}};
    uint32_t tables[] = {0, 1};
    larder_layout_params_t p = {.field_mask = LARDER_LAYOUT_TABLES,
                                .chunk_tokens = 16,
                                .block_count = 8,
                                .regions = &region,
                                .region_count = 1,
                                .groups = one,
                                .group_count = 1,
                                .table_count = 2,
                                .layer_tables = tables};
    larder_layout_t *layout = NULL;

    (void)state;
    for (uint32_t groups = 1; groups <= 2; groups++) {
        p.groups = groups == 1 ? one : two;
        p.group_count = groups;
        tables[1] = 1;
        assert_int_equal(larder_layout_create(&p, &layout), LARDER_OK);
        larder_layout_destroy(&layout);
        tables[1] = 0;
        assert_int_equal(larder_layout_create(&p, &layout), LARDER_E_OVERLAP);
    }
}

/* Two of the model's layers in one page, as in vLLM's BHLNC: [block][head]
 * [layer][token], rows of 16 bytes, with 2 heads and 4 tokens. */
static void test_layers_in_one_page(void **state)
{
    enum { ROW = 16, LAYER = 4 * ROW, HEAD = 2 * LAYER, PAGE = 2 * HEAD };
    static uint8_t memory[8 * PAGE];
    larder_region_t region = {"memory", memory, sizeof(memory)};
    larder_layer_t places[] = {{"a", 0, 0, PAGE, PAGE}};
    larder_group_t group = {LARDER_RULE_ALL, 4, 0, places, 1};
    larder_part_t parts[] = {{0, 0, 0, HEAD, ROW, ROW},
                             {0, 0, LAYER, HEAD, ROW, ROW}};
    larder_page_t page[] = {{0, 1, &parts[0]}, {1, 1, &parts[1]}};
    larder_pages_t pages = {.heads = 2,
                            .head_count = 2,
                            .row_tokens = 1,
                            .model_layers = (uint32_t[]){0, 1},
                            .model_layer_count = 2,
                            .pages = page,
                            .page_count = 2};
    larder_layout_params_t p = {.field_mask = LARDER_LAYOUT_PAGES,
                                .chunk_tokens = 4,
                                .block_count = 8,
                                .regions = &region,
                                .region_count = 1,
                                .groups = &group,
                                .group_count = 1,
                                .pages = &pages,
                                .model_layers = 2};
    const uint64_t wrong[] = {0, 1, LAYER - ROW, LAYER - 1};
    larder_layout_t *layout = NULL;

    (void)state;
    assert_int_equal(larder_layout_create(&p, &layout), LARDER_OK);
    larder_layout_destroy(&layout);
    parts[1].head_stride = LAYER; /* inside the page, but not the layer's own */
    assert_int_equal(larder_layout_create(&p, &layout), LARDER_E_OVERLAP);
    parts[1].head_stride = HEAD;
    for (uint32_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
        parts[1].offset = wrong[i];
        assert_int_equal(larder_layout_create(&p, &layout), LARDER_E_OVERLAP);
        assert_non_null(strstr(larder_last_error(), "layers 0 and 1"));
    }
    parts[1].offset = LAYER + 1;
    assert_int_equal(larder_layout_create(&p, &layout), LARDER_E_SIZE);
}

/* ---- the cut ---- */

static uint32_t slices_of(uint32_t heads, uint32_t layers)
{
    uint32_t all[E_LAYERS * 8];
    larder_group_t group = {.block_tokens = 16};
    larder_pages_t pages = {.heads = heads,
                            .row_tokens = 1,
                            .model_layers = all,
                            .model_layer_count = layers};
    larder_layout_params_t p = {.field_mask = LARDER_LAYOUT_PAGES,
                                .chunk_tokens = 256,
                                .groups = &group,
                                .group_count = 1,
                                .pages = &pages,
                                .model_layers = layers};
    larder_layout_t *layout = NULL;
    uint32_t slices;

    for (uint32_t i = 0; i < layers; i++) {
        all[i] = i;
    }
    assert_int_equal(larder_layout_create(&p, &layout), LARDER_OK);
    slices = larder_layout_slices(layout);
    larder_layout_destroy(&layout);
    return slices;
}

static void test_cut(void **state)
{
    (void)state;
    assert_int_equal(slices_of(1, 1), 1);
    assert_int_equal(slices_of(8, 1), 8);
    assert_int_equal(slices_of(8, 2), 8 * 2);
    assert_int_equal(slices_of(8, 80), 8 * 4);
    assert_int_equal(slices_of(16, 80), 16 * 4);
    assert_int_equal(slices_of(32, 80), 16 * 4); /* two heads each */
    assert_int_equal(slices_of(128, 64), 16 * 4);
    assert_int_equal(slices_of(24, 64), 12 * 4);
    assert_int_equal(slices_of(17, 64), 4); /* a prime: all in one */
    /* PP 2 cuts 61 layers at 31, PP 4 at 15, 30 and 46. */
    assert_int_equal(slices_of(1, 61), 5);
    assert_int_equal(slices_of(8, 62), 8 * 4);
    /* PP 2 cuts 7 layers at 4, PP 4 at 2, 4 and 6. */
    assert_int_equal(slices_of(2, 7), 2 * 4);
    assert_int_equal(larder_layout_slices(NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cut),
        cmocka_unit_test(test_null_in_one_table),
        cmocka_unit_test(test_tables_refused),
        cmocka_unit_test(test_tables_apart),
        cmocka_unit_test(test_layers_in_one_page),
        cmocka_unit_test(test_parts_of_blocks),
        cmocka_unit_test(test_any_to_any),
        cmocka_unit_test(test_named_orders),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
