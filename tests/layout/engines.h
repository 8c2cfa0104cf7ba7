/*
 * Models and engines of every shape, for the tests of canonical shards. A
 * model's KV is a function of (group, layer, part, head, token, byte):
 * the reference tensor. An engine is one rank of one shape (tensor and pipeline
 * parallel size, block size, order of bytes in its pages) with memory of its
 * own. Nothing here uses the code under test but the layout that is described.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "larder/larder.h"
#include "layout/principles.h"
#include "support/memory.h"
#include "support/values.h"

enum {
    E_GROUPS = 3,
    E_LAYERS = 12,
    E_PARTS = 3,
    E_CHUNKS = 4,
    E_PLACES = E_LAYERS * E_PARTS,
    E_RANKS = 16,
    E_TABLES = 5 + E_GROUPS,
    E_ROW_MAX = 4096,
};

typedef struct e_group {
    larder_rule_t rule;
    uint32_t window, heads, parts, bytes[E_PARTS];
    bool opaque; /* by head: a row is a block */
    uint32_t layers[E_LAYERS], layer_count;
} e_group_t;

typedef struct e_model {
    uint64_t seed;
    uint32_t grain; /* sizes are multiples of it */
    uint32_t chunk_tokens, layers, group_count;
    uint32_t fixed_block; /* not 0: every engine's, since rows depend on it */
    e_group_t group[E_GROUPS];
} e_model_t;

/* What all ranks of an engine have in common. */
typedef struct e_shape {
    uint32_t tp, pp, block[E_GROUPS];
    bool token_outer, parts_inner, parts_apart, page_first;
    bool layers_inner; /* a row of one layer lies beside that of the next */
    uint32_t gap;      /* bytes between rows, heads, pages */
    /* Block tables of a request, and the one of each layer; 0: a group has its
     * own. */
    uint32_t tables, table_of[E_LAYERS];
} e_shape_t;

typedef struct e_part {
    uint32_t place;
    uint64_t offset, head_stride, row_stride;
} e_part_t;

typedef struct e_rank {
    const e_model_t *model;
    e_shape_t shape;
    uint32_t head_first[E_GROUPS], head_count[E_GROUPS];
    uint32_t writers, writer;
    uint32_t tokens; /* in the tables */
    uint32_t blocks; /* ids; 0 is the null block */
    uint32_t *ids[E_TABLES], count[E_TABLES];
    uint8_t *memory; /* as the engine sees it, */
    void *there;     /* and as its layout knows it */
    uint8_t *may;    /* of a reader: what each byte may be, see e_check() */
    uint64_t bytes;
    larder_region_t regions[E_GROUPS];
    larder_layer_t places[E_GROUPS][E_PLACES];
    uint32_t place_count[E_GROUPS];
    uint32_t here[E_GROUPS][E_LAYERS], here_count[E_GROUPS];
    e_part_t parts[E_GROUPS][E_LAYERS][E_PARTS];
    larder_layout_t *layout;
} e_rank_t;

static inline uint32_t e_below(ldr_rand_t *r, uint64_t bound)
{
    return (uint32_t)ldr_rand_below(r, bound);
}

/* The reference tensor: what a row of one head holds, as a seed of e_bytes().
 * Of a row of several tokens, token is its last. */
static inline uint64_t e_row_ref(const e_model_t *m, uint32_t group,
                                 uint32_t layer, uint32_t part, uint32_t head,
                                 uint32_t token)
{
    uint64_t x = m->seed * 31 + group;

    x = test_mix(x * 131 + layer);
    x = test_mix(x * 131 + part);
    x = test_mix(x * 131 + head);
    return test_mix(x + token);
}

/* Bytes of a stream of words: of the reference from e_row_ref(), of noise from
 * the rank. */
static inline void e_bytes(uint8_t *to, uint64_t from, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i += 8) {
        uint64_t word = test_mix(from + i / 8);

        memcpy(to + i, &word, bytes - i < 8 ? bytes - i : 8);
    }
}

/* ---- models ---- */

static inline void e_model_make(e_model_t *m, ldr_rand_t *r, uint64_t seed)
{
    static const uint32_t heads[] = {1, 2, 4, 6, 8, 16, 24, 32, 3, 5};
    static const uint32_t chunks[] = {64, 128, 192, 256};

    memset(m, 0, sizeof(*m));
    m->seed = seed;
    m->grain = rig_grain(seed);
    m->chunk_tokens = chunks[e_below(r, 4)];
    m->layers = 1 + e_below(r, E_LAYERS);
    m->group_count =
        1 + e_below(r, m->layers < E_GROUPS ? m->layers : E_GROUPS);
    for (uint32_t g = 0; g < m->group_count; g++) {
        e_group_t *group = &m->group[g];

        group->rule = (larder_rule_t)e_below(r, 3);
        group->window = 2 + e_below(r, 2 * m->chunk_tokens);
        group->heads = heads[e_below(r, 10)];
        group->parts = 1 + e_below(r, E_PARTS);
        group->opaque = group->rule == LARDER_RULE_LAST || e_below(r, 5) == 0;
        for (uint32_t i = 0; i < group->parts; i++) {
            uint32_t most = e_below(r, 8) == 0 ? 96 : 8;

            group->bytes[i] =
                m->grain * (1 + e_below(r, m->grain > 1 ? most / 4 : most));
        }
        if (group->opaque) {
            m->fixed_block = 16u << e_below(r, 3);
        }
    }
    for (uint32_t l = 0; l < m->layers; l++) { /* each group has one at least */
        uint32_t g = l < m->group_count ? l : e_below(r, m->group_count);

        m->group[g].layers[m->group[g].layer_count++] = l;
    }
}

/* ---- shapes ---- */

/* The layers before a rank, as vLLM divides them. */
static inline uint32_t e_border(uint32_t layers, uint32_t pp, uint32_t rank)
{
    uint32_t sizes[8], sum = 0;

    for (uint32_t i = 0; i < pp; i++) {
        sizes[i] = layers / pp;
    }
    for (uint32_t i = 2; i < layers % pp + 2; i++) {
        sizes[pp - i]++;
    }
    for (uint32_t i = 0; i < rank; i++) {
        sum += sizes[i];
    }
    return sum;
}

/* Whether every rank has something of every group. */
static inline bool e_shape_fits(const e_model_t *m, const e_shape_t *s)
{
    for (uint32_t g = 0; g < m->group_count; g++) {
        const e_group_t *group = &m->group[g];

        if (group->heads % s->tp != 0 && s->tp % group->heads != 0) {
            return false;
        }
        for (uint32_t rank = 0; rank < s->pp; rank++) {
            uint32_t first = e_border(m->layers, s->pp, rank);
            uint32_t end = e_border(m->layers, s->pp, rank + 1);
            bool has = false;

            for (uint32_t i = 0; i < group->layer_count; i++) {
                has = has ||
                      (group->layers[i] >= first && group->layers[i] < end);
            }
            if (!has) {
                return false;
            }
        }
    }
    return true;
}

/* An engine's own grouping: any layer in any table, if their blocks have the
 * same size. The last tables are for what fits no other. */
static inline void e_shape_group(e_shape_t *s, ldr_rand_t *r,
                                 const e_model_t *m)
{
    uint32_t block[E_TABLES] = {0}, random = 1 + e_below(r, 5);

    s->tables = E_TABLES;
    for (uint32_t g = 0; g < m->group_count; g++) {
        for (uint32_t i = 0; i < m->group[g].layer_count; i++) {
            uint32_t t = e_below(r, random);

            if (block[t] != 0 && block[t] != s->block[g]) {
                t = E_TABLES - 1 - g;
            }
            block[t] = s->block[g];
            s->table_of[m->group[g].layers[i]] = t;
        }
    }
}

static inline void e_shape_make(e_shape_t *s, ldr_rand_t *r, const e_model_t *m)
{
    *s = (e_shape_t){0};
    do {
        s->tp = 1u << e_below(r, 5);
        s->pp = 1u << e_below(r, 3);
    } while (s->tp * s->pp > E_RANKS || s->pp > m->layers ||
             !e_shape_fits(m, s));
    for (uint32_t g = 0; g < m->group_count; g++) {
        do { /* some larger than what a window's shards are a multiple of */
            s->block[g] =
                m->fixed_block != 0 ? m->fixed_block : 8u << e_below(r, 5);
        } while (m->chunk_tokens % s->block[g] != 0);
    }
    s->token_outer = e_below(r, 2) != 0;
    s->parts_inner = e_below(r, 3) == 0;
    s->parts_apart = !s->parts_inner && e_below(r, 3) == 0;
    s->page_first = e_below(r, 2) != 0;
    s->gap = e_below(r, 3) == 0 ? m->grain * e_below(r, 40 / m->grain) : 0;
    s->layers_inner = e_below(r, 4) == 0;
    if (e_below(r, 3) != 0) {
        e_shape_group(s, r, m);
    }
}

/* Orders that engines have, by their names. */
typedef struct e_order {
    const char *name;
    bool token_outer, parts_inner, parts_apart, page_first, layers_inner;
} e_order_t;

static const e_order_t e_orders[] = {
    {"vLLM, NHD", .token_outer = true},
    {"vLLM, HND", .token_outer = false},
    {"vLLM, K and V in a row", .token_outer = true, .parts_inner = true},
    {"vLLM, layers in a block", .token_outer = true, .page_first = true},
    /* [K V][layer][token][head] */
    {"SGLang, layer_first", .token_outer = true, .parts_apart = true},
    /* [K V][token][layer][head] */
    {"SGLang, page_first", .token_outer = true, .parts_apart = true,
     .layers_inner = true},
    /* [K V][page][layer][token][head] */
    {"SGLang, page_first_direct", .token_outer = true, .parts_apart = true,
     .page_first = true},
    /* [K V][page][head][token][layer] */
    {"SGLang, page_head", .parts_apart = true, .layers_inner = true},
};

enum { E_ORDERS = sizeof(e_orders) / sizeof(e_orders[0]) };

static inline void e_shape_order(e_shape_t *s, const e_order_t *o)
{
    s->token_outer = o->token_outer;
    s->parts_inner = o->parts_inner;
    s->parts_apart = o->parts_apart;
    s->page_first = o->page_first;
    s->layers_inner = o->layers_inner;
    s->gap = 0;
}

/* ---- memory ---- */

static inline uint32_t e_row_tokens(const e_rank_t *e, uint32_t group)
{
    return e->model->group[group].opaque ? e->shape.block[group] : 1;
}

/* The table of layer number i of those here. Where a place has all layers of a
 * group, they have one. */
static inline uint32_t e_table_of(const e_rank_t *e, uint32_t g, uint32_t i)
{
    if (e->shape.tables == 0) {
        return g;
    }
    return e->shape
        .table_of[e->shape.layers_inner ? e->model->group[g].layers[0]
                                        : e->here[g][i]];
}

/* Where the parts of layer number i lie in a page; gives the bytes of one at
 * each place. */
static inline uint64_t e_page_make(const e_rank_t *e, uint32_t g, uint32_t i,
                                   e_part_t *p)
{
    const e_group_t *group = &e->model->group[g];
    const e_shape_t *s = &e->shape;
    uint64_t rows = s->block[g] / e_row_tokens(e, g);
    uint64_t heads = e->head_count[g], at = 0, most = 0, all = 0;
    uint64_t layers = s->layers_inner ? e->here_count[g] : 1;
    uint32_t apart = s->parts_apart ? group->parts : 1;

    for (uint32_t k = 0; k < group->parts; k++) {
        all += group->bytes[k] + s->gap;
    }
    for (uint32_t k = 0; k < group->parts; k++) {
        uint64_t row = group->bytes[k] + s->gap; /* one row of one head */
        uint64_t inner = s->parts_inner ? all : row;
        uint64_t beside = s->token_outer ? inner * heads : inner;

        p[k].place =
            (s->parts_apart ? k : 0) + (s->layers_inner ? 0 : i * apart);
        p[k].head_stride = s->token_outer ? inner : inner * layers * rows;
        p[k].row_stride = beside * layers;
        p[k].offset =
            (s->parts_apart ? 0 : at) + (s->layers_inner ? i * beside : 0);
        at += s->parts_inner ? row : row * rows * heads * layers;
        uint64_t end = p[k].offset + (heads - 1) * p[k].head_stride +
                       (rows - 1) * p[k].row_stride + group->bytes[k];
        most = end > most ? end : most;
    }
    return most + s->gap;
}

/* Lays a group's pages out in memory from `at` on; gives the end. */
static inline uint64_t e_group_place(e_rank_t *e, uint32_t g, uint64_t at)
{
    const e_group_t *group = &e->model->group[g];
    uint32_t apart = e->shape.parts_apart ? group->parts : 1;
    uint32_t places = apart * (e->shape.layers_inner ? 1 : e->here_count[g]);
    uint32_t slots = 0, used[E_TABLES] = {0};
    uint64_t page = 0;

    for (uint32_t i = 0; i < e->here_count[g]; i++) {
        uint64_t one = e_page_make(e, g, i, e->parts[g][i]);

        page = one > page ? one : page;
    }
    e->place_count[g] = places;
    /* Layers of different tables lie on top of each other, as in vLLM. */
    for (uint32_t i = 0; i < places; i++) {
        uint32_t table = e_table_of(e, g, i / apart), slot = used[table]++;

        slots = slot + 1 > slots ? slot + 1 : slots;
        e->places[g][i] =
            (larder_layer_t){.region = g, .offset = slot, .bytes = page};
    }
    for (uint32_t i = 0; i < places; i++) {
        larder_layer_t *l = &e->places[g][i];

        l->stride = e->shape.page_first ? slots * page : page;
        l->offset *= e->shape.page_first ? page : page * e->blocks;
    }
    e->regions[g] = (larder_region_t){NULL, (void *)(uintptr_t)at,
                                      slots * page * e->blocks};
    return at + e->regions[g].bytes;
}

static inline uint64_t e_at(const e_rank_t *e, uint32_t g, uint32_t layer,
                            uint32_t part, uint32_t head, uint32_t id,
                            uint32_t row)
{
    const e_part_t *p = &e->parts[g][layer][part];
    const larder_layer_t *l = &e->places[g][p->place];

    return (uint64_t)((uint8_t *)e->regions[g].base - e->memory) + l->offset +
           id * l->stride + p->offset + head * p->head_stride +
           row * p->row_stride;
}

static inline void e_tables_make(e_rank_t *e, ldr_rand_t *r, uint32_t tokens)
{
    uint32_t next = 1, *pool = malloc(e->blocks * sizeof(*pool));

    for (uint32_t i = 0; i < e->blocks; i++) {
        pool[i] = i;
    }
    bool mixed = e_below(r, 4) != 0;
    for (uint32_t i = e->blocks - 1; i > 1 && mixed; i--) { /* 0 stays */
        uint32_t k = 1 + e_below(r, i), was = pool[i];

        pool[i] = pool[k];
        pool[k] = was;
    }
    for (uint32_t g = 0; g < e->model->group_count; g++) {
        for (uint32_t i = 0; i < e->here_count[g]; i++) {
            uint32_t t = e_table_of(e, g, i);

            if (e->ids[t] == NULL) {
                e->count[t] = tokens / e->shape.block[g];
                e->ids[t] = malloc((e->count[t] + 1) * sizeof(uint32_t));
                memcpy(e->ids[t], pool + next, e->count[t] * sizeof(uint32_t));
                next += e->count[t];
            }
        }
    }
    free(pool);
}

static inline larder_status_t e_layout_make(e_rank_t *e)
{
    const e_model_t *m = e->model;
    larder_group_t groups[E_GROUPS];
    larder_pages_t pages[E_GROUPS];
    larder_page_t page[E_GROUPS][E_LAYERS];
    larder_part_t parts[E_GROUPS][E_LAYERS][E_PARTS];
    larder_region_t regions[E_GROUPS];
    uint32_t tables[E_GROUPS * E_PLACES], table_count = 0;

    memset(parts, 0, sizeof(parts));
    for (uint32_t g = 0; g < m->group_count; g++) {
        const e_group_t *group = &m->group[g];

        regions[g] = e->regions[g];
        regions[g].base =
            (uint8_t *)e->there + ((uint8_t *)e->regions[g].base - e->memory);

        for (uint32_t i = 0; i < e->here_count[g]; i++) {
            for (uint32_t k = 0; k < group->parts; k++) {
                const e_part_t *p = &e->parts[g][i][k];

                parts[g][i][k] = (larder_part_t){.layer = p->place,
                                                 .offset = p->offset,
                                                 .head_stride = p->head_stride,
                                                 .row_stride = p->row_stride,
                                                 .bytes = group->bytes[k]};
            }
            page[g][i] = (larder_page_t){.layer = e->here[g][i],
                                         .part_count = group->parts,
                                         .parts = parts[g][i]};
        }
        for (uint32_t i = 0; i < e->place_count[g]; i++) {
            tables[table_count++] =
                e_table_of(e, g, i / (e->shape.parts_apart ? group->parts : 1));
        }
        groups[g] = (larder_group_t){.rule = group->rule,
                                     .block_tokens = e->shape.block[g],
                                     .window_tokens = group->window,
                                     .layers = e->places[g],
                                     .layer_count = e->place_count[g]};
        pages[g] = (larder_pages_t){.heads = group->heads,
                                    .head_first = e->head_first[g],
                                    .head_count = e->head_count[g],
                                    .row_tokens = e_row_tokens(e, g),
                                    .model_layers = group->layers,
                                    .model_layer_count = group->layer_count,
                                    .page_count = e->here_count[g],
                                    .pages = page[g]};
    }
    larder_layout_params_t p = {.field_mask = LARDER_LAYOUT_NULL_BLOCK |
                                              LARDER_LAYOUT_PAGES,
                                .chunk_tokens = m->chunk_tokens,
                                .block_count = e->blocks,
                                .regions = regions,
                                .region_count = m->group_count,
                                .groups = groups,
                                .group_count = m->group_count,
                                .null_block = 0,
                                .pages = pages,
                                .model_layers = m->layers,
                                .table_count = e->shape.tables,
                                .layer_tables = tables};
    p.field_mask |= e->shape.tables > 0 ? LARDER_LAYOUT_TABLES : 0;
    rig_layout(&p);
    return larder_layout_create(&p, &e->layout);
}

/* Rank number `rank` of the shape, with room for so many tokens. Its memory is
 * noise. */
static inline void e_rank_make(e_rank_t *e, const e_model_t *m,
                               const e_shape_t *s, uint32_t rank,
                               uint32_t tokens, ldr_rand_t *r)
{
    uint32_t tp = rank % s->tp,
             first = e_border(m->layers, s->pp, rank / s->tp);
    uint32_t end = e_border(m->layers, s->pp, rank / s->tp + 1);
    uint64_t at = 0;

    memset(e, 0, sizeof(*e));
    e->model = m;
    e->shape = *s;
    e->tokens = tokens;
    e->blocks = 1;
    e->writers = 1;
    for (uint32_t g = 0; g < m->group_count; g++) {
        const e_group_t *group = &m->group[g];

        e->head_count[g] = group->heads >= s->tp ? group->heads / s->tp : 1;
        e->head_first[g] = group->heads >= s->tp ? tp * e->head_count[g]
                                                 : tp / (s->tp / group->heads);
        if (m->group_count == 1 && s->tp > group->heads) {
            e->writers = s->tp / group->heads;
            e->writer = tp % e->writers;
        }
        for (uint32_t i = 0; i < group->layer_count; i++) {
            if (group->layers[i] >= first && group->layers[i] < end) {
                e->here[g][e->here_count[g]++] = group->layers[i];
            }
        }
        e->blocks +=
            (tokens / s->block[g] + 2) * (s->tables > 0 ? e->here_count[g] : 1);
    }
    for (uint32_t g = 0; g < m->group_count; g++) {
        at = e_group_place(e, g, at);
    }
    e->bytes = at;
    e->memory = rig_memory(at, &e->there);
    e_bytes(e->memory, rank, at);
    for (uint32_t g = 0; g < m->group_count; g++) {
        e->regions[g].base = e->memory + (uintptr_t)e->regions[g].base;
    }
    e_tables_make(e, r, tokens);
    require(e_layout_make(e) == LARDER_OK, "%s", larder_last_error());
}

static inline void e_rank_free(e_rank_t *e)
{
    larder_layout_destroy(&e->layout);
    for (uint32_t t = 0; t < E_TABLES; t++) {
        free(e->ids[t]);
    }
    rig_memory_free(e->memory);
    free(e->may);
}

static inline void e_tables(const e_rank_t *e, larder_table_t *tables)
{
    for (uint32_t t = 0; t < E_TABLES; t++) {
        tables[t] = (larder_table_t){e->ids[t], 0, e->count[t]};
    }
}

typedef void (*e_row_fn)(e_rank_t *e, uint32_t group, uint32_t place,
                         uint32_t token, uint64_t at, uint32_t bytes,
                         uint32_t layer, uint32_t part, uint32_t head);

/* Every row of every block in the tables. */
static inline void e_rows(e_rank_t *e, e_row_fn row)
{
    const e_model_t *m = e->model;

    for (uint32_t g = 0; g < m->group_count; g++) {
        uint32_t tokens = e_row_tokens(e, g), rows = e->shape.block[g] / tokens;
        uint32_t count = e->tokens / e->shape.block[g];

        for (uint32_t n = 0; n < e->here_count[g] * m->group[g].parts *
                                     e->head_count[g] * count * rows;
             n++) {
            uint32_t i = n, k = i % rows, place, head, part;

            i /= rows;
            place = i % count;
            i /= count;
            head = i % e->head_count[g];
            i /= e->head_count[g];
            part = i % m->group[g].parts;
            i /= m->group[g].parts;
            row(e, g, place, place * e->shape.block[g] + (k + 1) * tokens - 1,
                e_at(e, g, i, part, head, e->ids[e_table_of(e, g, i)][place],
                     k),
                m->group[g].bytes[part], e->here[g][i], part,
                e->head_first[g] + head);
        }
    }
}

static inline void e_compute_row(e_rank_t *e, uint32_t group, uint32_t place,
                                 uint32_t token, uint64_t at, uint32_t bytes,
                                 uint32_t layer, uint32_t part, uint32_t head)
{
    (void)place;
    e_bytes(e->memory + at,
            e_row_ref(e->model, group, layer, part, head, token), bytes);
}

/* A writer's pages hold the reference. */
static inline void e_compute(e_rank_t *e)
{
    e_rows(e, e_compute_row);
}

/* ---- judging a load of tokens `begin` to `end` ---- */

enum { E_NOISE, E_REF, E_EITHER };

static uint32_t e_begin, e_end;

static inline void e_expect_row(e_rank_t *e, uint32_t group, uint32_t place,
                                uint32_t token, uint64_t at, uint32_t bytes,
                                uint32_t layer, uint32_t part, uint32_t head)
{
    const e_group_t *from = &e->model->group[group];
    larder_group_t g = {.rule = from->rule,
                        .block_tokens = e->shape.block[group],
                        .window_tokens = from->window};
    uint32_t tokens = e_row_tokens(e, group);
    bool block =
        needs_block(&g, e_end, place) && place * g.block_tokens >= e_begin;
    bool seen = from->rule != LARDER_RULE_TRAILING;

    for (uint32_t t = token + 1 - tokens; t <= token && !seen; t++) {
        seen = sees(&g, e_end, t);
    }
    uint8_t may = !block ? E_NOISE : seen ? E_REF : E_EITHER;

    (void)layer, (void)part, (void)head;
    memset(e->may + at, may, bytes);
}

static inline void e_check_row(e_rank_t *e, uint32_t group, uint32_t place,
                               uint32_t token, uint64_t at, uint32_t bytes,
                               uint32_t layer, uint32_t part, uint32_t head)
{
    uint8_t ref[E_ROW_MAX];

    require(bytes <= sizeof(ref), "rows of %u bytes", bytes);
    e_bytes(ref, e_row_ref(e->model, group, layer, part, head, token), bytes);
    bool is_ref = memcmp(e->memory + at, ref, bytes) == 0;
    require(is_ref || e->may[at] != E_REF,
            "group %u layer %u part %u head %u token %u (place %u) is not "
            "the reference",
            group, layer, part, head, token, place);
    if (is_ref && e->may[at] == E_EITHER) { /* then all of it is */
        memset(e->may + at, E_REF, bytes);
    }
}

/* Every byte of the reader's memory: what the load needs is the reference, all
 * else is the noise that was there, except rows in the same blocks that no
 * token sees, which may be either. */
static inline void e_check(e_rank_t *e, uint32_t rank, uint32_t begin,
                           uint32_t end)
{
    e_begin = begin;
    e_end = end;
    e->may = calloc(1, e->bytes);
    e_rows(e, e_expect_row);
    e_rows(e, e_check_row);
    uint8_t *noise = malloc(e->bytes + 1);
    e_bytes(noise, rank, e->bytes);
    for (uint64_t i = 0; i < e->bytes; i++) {
        require(e->may[i] == E_REF || e->memory[i] == noise[i],
                "byte %llu was written", (unsigned long long)i);
    }
    free(noise);
}
