/*
 * Models and engines for the tests of whole prefixes: memory with pages, block
 * tables, and prompts that are computed in steps. What a page holds follows
 * from the model, the rank, the group, the layer and its place in the prompt,
 * so that a page can be judged wherever it was loaded to.
 */
#pragma once

#include "base/bytes.h"
#include "client/support.h"
#include "layout/principles.h"
#include "support/memory.h"

enum {
    GROUPS = 4,
    LAYERS = 3,
    CHUNKS = 8,
    CHUNK_TOKENS = 12,
    PLACES = CHUNKS * CHUNK_TOKENS,
    BLOCKS = GROUPS * PLACES + 20,
    REGIONS = GROUPS * LAYERS,
    NONE = 0, /* the null block */
};

/* What engines of one model have in common. */
typedef struct model {
    uint64_t seed;
    uint32_t grain;
    uint32_t chunk_tokens, group_count;
    uint32_t step; /* tokens; a multiple of all blocks */
    larder_group_t groups[GROUPS];
    uint64_t bytes[GROUPS][LAYERS]; /* of a page */
} model_t;

typedef struct engine {
    const model_t *model;
    ldr_rand_t *rand;
    uint16_t shard; /* its rank */
    larder_layer_t layers[GROUPS][LAYERS];
    larder_region_t regions[REGIONS]; /* as the engine sees them, */
    larder_region_t there[REGIONS];   /* and as the layout knows them */
    uint32_t region_count;
    uint8_t *expected[REGIONS]; /* what the regions should hold */
    larder_layout_t *layout;
    uint32_t pool[BLOCKS], pool_count; /* of blocks that are free */
    uint32_t ids[GROUPS][PLACES + 1];
    uint32_t count[GROUPS];
    uint32_t computed; /* tokens */
} engine_t;

static inline uint32_t below(ldr_rand_t *r, uint64_t bound)
{
    return (uint32_t)ldr_rand_below(r, bound);
}

/* ---- models ---- */

static inline uint32_t greatest_divisor(uint32_t n, uint32_t most)
{
    while (n % most != 0) {
        most--;
    }
    return most;
}

static inline void model_make(model_t *m, ldr_rand_t *r, uint64_t seed)
{
    memset(m, 0, sizeof(*m));
    m->seed = seed;
    m->grain = rig_grain(seed);
    m->chunk_tokens = 1 + below(r, CHUNK_TOKENS);
    m->group_count = 1 + below(r, GROUPS);
    m->step = 1;
    for (uint32_t i = 0; i < m->group_count; i++) {
        larder_group_t *g = &m->groups[i];

        g->rule = (larder_rule_t)below(r, 3);
        g->block_tokens =
            greatest_divisor(m->chunk_tokens, 1 + below(r, m->chunk_tokens));
        g->window_tokens = 2 + below(r, 3 * m->chunk_tokens);
        g->layer_count = 1 + below(r, LAYERS);
        for (uint32_t l = 0; l < g->layer_count; l++) {
            uint32_t most = below(r, 4) == 0 ? 3000 : 200;

            m->bytes[i][l] = m->grain * (1 + below(r, most / m->grain));
        }
    }
    for (uint32_t i = 0; i < m->group_count;) { /* until it fits all */
        if (m->step % m->groups[i].block_tokens == 0) {
            i++;
        } else {
            m->step++;
            i = 0;
        }
    }
    assert_int_equal(m->chunk_tokens % m->step, 0);
}

static inline bool model_is_all(const model_t *m)
{
    for (uint32_t i = 0; i < m->group_count; i++) {
        if (m->groups[i].rule != LARDER_RULE_ALL) {
            return false;
        }
    }
    return true;
}

static inline larder_space_t *model_space(larder_t *lar, const model_t *m,
                                          uint32_t shards)
{
    char name[64];
    larder_space_params_t p = {
        .field_mask = LARDER_SPACE_SHARDS | LARDER_SPACE_CHUNK_TOKENS,
        .descriptor = name,
        .descriptor_bytes = (size_t)snprintf(name, sizeof(name), "model %llu",
                                             (unsigned long long)m->seed),
        .shards = shards,
        .chunk_tokens = m->chunk_tokens,
    };
    larder_space_t *space = NULL;

    assert_status(larder_space_open(lar, &p, &space), LARDER_OK);
    return space;
}

/* The keys of a prompt. */
static inline void model_keys(const model_t *m, const larder_space_t *space,
                              larder_key_t *keys, uint32_t chunks)
{
    size_t tokens = (size_t)chunks * m->chunk_tokens, count = 0;
    uint32_t *ids = malloc(tokens * sizeof(*ids));

    content(m->seed, (uint8_t *)ids, tokens * sizeof(*ids));
    assert_status(larder_chain(space, ids, tokens, NULL, keys, chunks, &count),
                  LARDER_OK);
    assert_int_equal(count, chunks);
    free(ids);
}

/* Bytes of a shard, by counting those of its blocks that a prefix that ends
 * with it needs. */
static inline uint64_t model_shard_bytes(const model_t *m, uint32_t group)
{
    const larder_group_t *g = &m->groups[group];
    uint64_t bytes = 0;

    for (uint32_t b = 0; b < m->chunk_tokens / g->block_tokens; b++) {
        for (uint32_t l = 0; l < g->layer_count; l++) {
            bytes +=
                needs_block(g, m->chunk_tokens, b) ? m->bytes[group][l] : 0;
        }
    }
    return bytes;
}

/* ---- an engine's memory ---- */

static inline void region_add(engine_t *e, uint64_t bytes)
{
    void *there = NULL;
    uint8_t *memory = rig_memory(bytes, &there);

    assert_non_null(memory);
    e->expected[e->region_count] = malloc(bytes);
    e->there[e->region_count] = (larder_region_t){"memory", there, bytes};
    e->regions[e->region_count++] = (larder_region_t){"memory", memory, bytes};
}

/* All groups in the same place: the pages of a block in a row, layer by
 * layer. */
static inline void place_in_rows(engine_t *e, const uint64_t *most)
{
    uint32_t grain = e->model->grain;
    uint64_t offset = grain * below(e->rand, 100), stride = 0, at[LAYERS];

    for (uint32_t l = 0; l < LAYERS; l++) {
        at[l] = offset + stride;
        stride += most[l] + grain * below(e->rand, 30);
    }
    for (uint32_t g = 0; g < GROUPS; g++) {
        for (uint32_t l = 0; l < LAYERS; l++) {
            e->layers[g][l] = (larder_layer_t){"row", 0, at[l], stride, 0};
        }
    }
    region_add(e, offset + stride * BLOCKS + below(e->rand, 100));
}

/* A tensor for each layer, which all groups share; pages may touch. */
static inline void place_in_tensors(engine_t *e, const uint64_t *most)
{
    uint32_t grain = e->model->grain;

    for (uint32_t l = 0; l < LAYERS; l++) {
        uint64_t offset = grain * below(e->rand, 100);
        uint64_t stride =
            most[l] + grain * below(e->rand, 2) * below(e->rand, 50);

        for (uint32_t g = 0; g < GROUPS; g++) {
            e->layers[g][l] = (larder_layer_t){"tensor", l, offset, stride, 0};
        }
        region_add(e, offset + stride * BLOCKS + below(e->rand, 100));
    }
}

/* A region for each group, its layers one after the other. */
static inline void place_apart(engine_t *e)
{
    const model_t *m = e->model;

    for (uint32_t g = 0; g < m->group_count; g++) {
        uint64_t at = m->grain * below(e->rand, 100);

        for (uint32_t l = 0; l < m->groups[g].layer_count; l++) {
            uint64_t stride = m->bytes[g][l] +
                              m->grain * below(e->rand, 2) * below(e->rand, 50);

            e->layers[g][l] = (larder_layer_t){"part", g, at, stride, 0};
            at += stride * BLOCKS +
                  m->grain * below(e->rand, 2) * below(e->rand, 100);
        }
        region_add(e, at + 1);
    }
}

static inline void engine_place(engine_t *e)
{
    const model_t *m = e->model;
    uint64_t most[LAYERS] = {m->grain, m->grain, m->grain};

    for (uint32_t g = 0; g < m->group_count; g++) {
        for (uint32_t l = 0; l < m->groups[g].layer_count; l++) {
            most[l] = ldr_max64(most[l], m->bytes[g][l]);
        }
    }
    switch (below(e->rand, 3)) {
    case 0:
        place_in_rows(e, most);
        break;
    case 1:
        place_in_tensors(e, most);
        break;
    default:
        place_apart(e);
        break;
    }
}

/* No request, all blocks free in random order, memory with no meaning. */
static inline void engine_clear(engine_t *e)
{
    e->computed = e->pool_count = 0;
    memset(e->count, 0, sizeof(e->count));
    for (uint32_t id = 1; id < BLOCKS; id++) {
        uint32_t at = below(e->rand, ++e->pool_count);

        e->pool[e->pool_count - 1] = e->pool[at];
        e->pool[at] = id;
    }
    for (uint32_t i = 0; i < e->region_count; i++) {
        content(ldr_rand_next(e->rand), e->regions[i].base,
                e->regions[i].bytes);
        memcpy(e->expected[i], e->regions[i].base, e->regions[i].bytes);
    }
}

static inline void engine_make(engine_t *e, const model_t *m, ldr_rand_t *r,
                               uint16_t shard)
{
    larder_group_t groups[GROUPS];
    larder_layout_params_t p = {
        .field_mask = LARDER_LAYOUT_NULL_BLOCK,
        .chunk_tokens = m->chunk_tokens,
        .block_count = BLOCKS,
        .regions = e->there,
        .groups = groups,
        .group_count = m->group_count,
        .null_block = NONE,
    };

    memset(e, 0, sizeof(*e));
    e->model = m;
    e->rand = r;
    e->shard = shard;
    engine_place(e);
    p.region_count = e->region_count;
    for (uint32_t g = 0; g < m->group_count; g++) {
        groups[g] = m->groups[g];
        groups[g].layers = e->layers[g];
        for (uint32_t l = 0; l < m->groups[g].layer_count; l++) {
            e->layers[g][l].bytes = m->bytes[g][l];
        }
    }
    rig_layout(&p);
    assert_status(larder_layout_create(&p, &e->layout), LARDER_OK);
    for (uint32_t g = 0; g < m->group_count; g++) {
        assert_int_equal(larder_layout_bytes(e->layout, (uint16_t)g),
                         model_shard_bytes(m, g));
    }
    engine_clear(e);
}

static inline void engine_free(engine_t *e)
{
    larder_layout_destroy(&e->layout);
    for (uint32_t i = 0; i < e->region_count; i++) {
        rig_memory_free(e->regions[i].base);
        free(e->expected[i]);
    }
}

/* ---- pages ---- */

/* Writes what belongs there, as the engine's memory or as what is expected;
 * garbage: what a block that is not full holds. */
static inline void page_fill(engine_t *e, uint32_t group, uint32_t place,
                             bool expected, bool garbage)
{
    for (uint32_t l = 0; l < e->model->groups[group].layer_count; l++) {
        const larder_layer_t *layer = &e->layers[group][l];
        uint8_t *memory = expected ? e->expected[layer->region]
                                   : e->regions[layer->region].base;
        uint64_t n = e->model->seed * 8 + e->shard;

        n = ((n * GROUPS + group) * LAYERS + l) * (PLACES + 1) + place;
        content(garbage ? ~n : n,
                memory + layer->offset + e->ids[group][place] * layer->stride,
                layer->bytes);
    }
}

/* Every byte of the memory is as expected. */
static inline void engine_check(const engine_t *e)
{
    for (uint32_t i = 0; i < e->region_count; i++) {
        const uint8_t *is = e->regions[i].base;
        size_t at = 0, bytes = e->regions[i].bytes;

        if (memcmp(is, e->expected[i], bytes) != 0) {
            while (is[at] == e->expected[i][at]) {
                at++;
            }
            print_error("model %llu: byte %zu of region %u\n",
                        (unsigned long long)e->model->seed, at, i);
            fail();
        }
    }
}

static inline uint32_t block_take(engine_t *e)
{
    assert_true(e->pool_count > 0);
    return e->pool[--e->pool_count];
}

/* ---- computing and saving ---- */

/* Gives back what is out of a window; its memory is somebody else's then. */
static inline void give_back(engine_t *e, uint32_t group)
{
    const larder_group_t *g = &e->model->groups[group];

    for (uint32_t b = 0; b < e->count[group]; b++) {
        if (e->ids[group][b] != NONE &&
            (int64_t)(b + 1) * g->block_tokens <=
                (int64_t)e->computed - g->window_tokens + 1) {
            page_fill(e, group, b, false, true);
            e->pool[e->pool_count++] = e->ids[group][b];
            e->ids[group][b] = NONE;
        }
    }
}

static inline void engine_compute(engine_t *e, uint32_t end)
{
    const model_t *m = e->model;

    for (uint32_t i = 0; i < m->group_count; i++) {
        const larder_group_t *g = &m->groups[i];

        if (g->rule == LARDER_RULE_TRAILING) {
            give_back(e, i);
        }
        while (e->count[i] * g->block_tokens < end) {
            e->ids[i][e->count[i]++] = block_take(e);
        }
        for (uint32_t b = e->computed / g->block_tokens; b < e->count[i]; b++) {
            page_fill(e, i, b, false, (b + 1) * g->block_tokens > end);
        }
    }
    e->computed = end;
}

/* The tables from a random place on that leaves out only null blocks. */
static inline void engine_tables(engine_t *e, larder_table_t *tables)
{
    for (uint32_t i = 0; i < e->model->group_count; i++) {
        uint32_t first = 0;

        while (first < e->count[i] && e->ids[i][first] == NONE &&
               below(e->rand, 4) != 0) {
            first++;
        }
        tables[i] =
            (larder_table_t){e->ids[i] + first, first, e->count[i] - first};
    }
}

/* The keys need not begin with the prompt. */
static inline void move_keys(engine_t *e, larder_move_t *m,
                             const larder_key_t *keys)
{
    m->first_key = below(e->rand, m->begin / e->model->chunk_tokens + 1);
    m->keys = keys + m->first_key;
}

/* Saves the chunks that ended after `begin`; all of them can be. */
static inline larder_move_t engine_save(engine_t *e, larder_space_t *space,
                                        const larder_key_t *keys,
                                        uint32_t begin, uint16_t writers,
                                        uint16_t writer)
{
    larder_table_t tables[GROUPS];
    larder_move_t m = {.struct_bytes = sizeof(larder_move_t),
                       .tables = tables,
                       .begin = begin,
                       .end = e->computed,
                       .shard = e->shard,
                       .writers = writers,
                       .writer = writer};

    move_keys(e, &m, keys);
    engine_tables(e, tables);
    assert_status(larder_prefix_save(space, e->layout, &m), LARDER_OK);
    assert_int_equal(m.failed, 0);
    assert_int_equal(m.skipped, 0);
    assert_status(m.item, LARDER_OK);
    return m;
}

/* Computes a prompt in random steps and saves after each. */
static inline void engine_run(engine_t *e, larder_space_t *space,
                              const larder_key_t *keys, uint32_t tokens)
{
    const model_t *m = e->model;
    uint32_t most = 1 + below(e->rand, tokens);

    while (e->computed < tokens) {
        uint32_t begin = e->computed, chunk = m->chunk_tokens;
        uint32_t end = begin + 1 + below(e->rand, most);

        engine_compute(e, end < tokens ? end : tokens);
        larder_move_t move = engine_save(e, space, keys, begin, 0, 0);
        uint32_t chunks = e->computed / chunk - begin / chunk;
        uint64_t bytes = 0;

        for (uint32_t g = 0; g < m->group_count; g++) {
            bytes += chunks * model_shard_bytes(m, g);
        }
        assert_int_equal(move.present, 0);
        assert_int_equal(move.shards, chunks * m->group_count);
        assert_int_equal(move.bytes, bytes);
    }
}

/* ---- loading ---- */

/* A new request's tables for a load of tokens begin to end, and what is to be
 * in memory after it. Gives the shards to be moved. */
static inline uint32_t engine_expect(engine_t *e, uint32_t begin, uint32_t end,
                                     larder_table_t *tables)
{
    const model_t *m = e->model;
    uint32_t shards = 0;

    engine_clear(e);
    for (uint32_t i = 0; i < m->group_count; i++) {
        const larder_group_t *g = &m->groups[i];
        uint32_t per = m->chunk_tokens / g->block_tokens, last = UINT32_MAX;
        uint32_t first = end / g->block_tokens; /* that must be there */

        e->count[i] = end / g->block_tokens;
        for (uint32_t b = e->count[i]; b-- > 0;) {
            bool need = needs_block(g, end, b);
            bool want = need && b >= begin / g->block_tokens;
            bool none = below(e->rand, need ? 8 : 2) == 0;

            e->ids[i][b] = none ? NONE : block_take(e);
            if (want && !none) {
                page_fill(e, i, b, true, false);
            }
            shards += want && b / per != last;
            last = want ? b / per : last;
            first = want ? b : first;
        }
        first -= first > 0 ? below(e->rand, first + 1) : 0;
        tables[i] =
            (larder_table_t){e->ids[i] + first, first, e->count[i] - first};
    }
    return shards;
}

/* Loads tokens begin to end into an engine: those pages, and nothing else. */
static inline void engine_load(engine_t *e, larder_space_t *space,
                               const larder_key_t *keys, uint32_t begin,
                               uint32_t end)
{
    larder_table_t tables[GROUPS];
    uint32_t shards = engine_expect(e, begin, end, tables);
    larder_move_t m = {.struct_bytes = sizeof(larder_move_t),
                       .tables = tables,
                       .begin = begin,
                       .end = end,
                       .shard = e->shard,
                       .item = LARDER_E_IO, /* results are to be set */
                       .failed = 7};

    move_keys(e, &m, keys);
    assert_status(larder_prefix_load(space, e->layout, &m), LARDER_OK);
    engine_check(e);
    assert_int_equal(m.shards, shards);
    assert_int_equal(m.failed, 0);
    assert_status(m.item, LARDER_OK);
    assert_true((m.bytes == 0) == (shards == 0));
}

/* ---- both sides ---- */

enum { SHARDS_MOST = 2 };

/* A model, its space, an engine that saves for each rank and one that loads. */
typedef struct pair {
    model_t model;
    uint32_t shards;
    larder_space_t *space;
    larder_key_t keys[CHUNKS];
    engine_t from[SHARDS_MOST], to[SHARDS_MOST];
    bool here[SHARDS_MOST][GROUPS][CHUNKS]; /* what was saved */
} pair_t;

static inline void pair_open(pair_t *p, larder_t *lar)
{
    p->space = model_space(lar, &p->model, p->shards);
    model_keys(&p->model, p->space, p->keys, CHUNKS);
}

static inline void pair_engines(pair_t *p, ldr_rand_t *r)
{
    for (uint16_t i = 0; i < p->shards; i++) {
        engine_make(&p->from[i], &p->model, r, i);
        engine_make(&p->to[i], &p->model, r, i);
    }
}

static inline void pair_make(pair_t *p, larder_t *lar, ldr_rand_t *r,
                             uint64_t seed, uint32_t shards)
{
    memset(p, 0, sizeof(*p));
    p->shards = shards;
    model_make(&p->model, r, seed);
    pair_open(p, lar);
    pair_engines(p, r);
}

static inline void pair_free(pair_t *p)
{
    for (uint16_t i = 0; i < p->shards; i++) {
        engine_free(&p->from[i]);
        engine_free(&p->to[i]);
    }
    larder_space_close(&p->space);
}

/* A model whose every rule is another, so that each has something to say. */
static inline void model_fixed(model_t *m, uint64_t seed)
{
    const larder_group_t groups[3] = {
        {LARDER_RULE_ALL, 2, 0, NULL, 2},
        {LARDER_RULE_TRAILING, 4, 14, NULL, 1},
        {LARDER_RULE_LAST, 8, 0, NULL, 1},
    };

    *m = (model_t){.seed = seed,
                   .grain = rig_grain(seed),
                   .chunk_tokens = 8,
                   .group_count = 3,
                   .step = 8};
    memcpy(m->groups, groups, sizeof(groups));
    for (uint32_t g = 0; g < 3; g++) {
        for (uint32_t l = 0; l < LAYERS; l++) {
            m->bytes[g][l] = m->grain * (100 / m->grain + 11 * g + l);
        }
    }
}

static inline void pair_fixed(pair_t *p, larder_t *lar, ldr_rand_t *r,
                              uint64_t seed, uint32_t shards)
{
    memset(p, 0, sizeof(*p));
    p->shards = shards;
    model_fixed(&p->model, seed);
    pair_open(p, lar);
    pair_engines(p, r);
}

/* All of a prompt, by one rank. */
static inline void pair_save(pair_t *p, uint16_t shard)
{
    engine_run(&p->from[shard], p->space, p->keys,
               CHUNKS * p->model.chunk_tokens);
    for (uint32_t i = 0; i < p->model.group_count * CHUNKS; i++) {
        p->here[shard][i / CHUNKS][i % CHUNKS] = true;
    }
}
