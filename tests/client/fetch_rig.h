/* Prefixes by way of memory: staged, fetched, placed, and refused. */
#pragma once

#include "client/prefix_rig.h"

enum { FIXED = CHUNKS * 8 }; /* tokens of a prompt of model_fixed() */

/* A prefix that was staged and fetched. */
typedef struct fetched {
    larder_lease_t *lease;
    uint8_t *memory;
    size_t bytes;
} fetched_t;

static inline void stage_all(pair_t *p, uint32_t chunks,
                             larder_lease_t **lease_p)
{
    larder_match_t m = {.struct_bytes = sizeof(m)};

    assert_status(larder_prefix_stage(p->space, p->to[0].layout, p->keys,
                                      chunks, NULL, 0, lease_p, &m),
                  LARDER_OK);
    assert_int_equal(m.chunks, chunks);
}

/* Memory of exactly so many bytes, so that a sanitizer sees what is not in
 * it. */
static inline uint8_t *room(size_t bytes)
{
    uint8_t *memory = malloc(bytes);

    assert_non_null(memory);
    memset(memory, 0xa5, bytes);
    return memory;
}

/* The engine's layout without its memory: what a scheduler has. */
static inline larder_layout_t *rules_of(const model_t *m)
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

static inline fetched_t fetch_all(pair_t *p, uint32_t chunks)
{
    larder_layout_t *rules = rules_of(&p->model);
    fetched_t f = {0};
    size_t need = 0;

    stage_all(p, chunks, &f.lease);
    assert_status(larder_prefix_fetch(p->space, rules, f.lease, p->keys, chunks,
                                      NULL, 0, 0, &f.bytes),
                  LARDER_OK);
    f.memory = room(f.bytes);
    assert_status(larder_prefix_fetch(p->space, rules, f.lease, p->keys, chunks,
                                      f.memory, f.bytes, 0, &need),
                  LARDER_OK);
    assert_int_equal(need, f.bytes);
    larder_layout_destroy(&rules);
    return f;
}

/* What was fetched for `chunks`, placed from token begin on by one rank: those
 * pages, and nothing else. */
static inline void place(pair_t *p, const fetched_t *f, uint16_t rank,
                         uint32_t begin, uint32_t chunks)
{
    engine_t *to = &p->to[rank];
    larder_table_t tables[GROUPS];
    uint32_t end = chunks * p->model.chunk_tokens;
    uint32_t shards = engine_expect(to, begin, end, tables);
    larder_move_t m = {.struct_bytes = sizeof(larder_move_t),
                       .keys = p->keys,
                       .tables = tables,
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

/* A place that is refused writes nothing. keys, from chunk first on: of the
 * prefix that it is to be; NULL: any. */
static inline void check_refused_as(pair_t *p, const larder_key_t *keys,
                                    uint32_t first, const uint8_t *memory,
                                    size_t bytes, uint32_t chunks,
                                    larder_status_t want)
{
    engine_t *to = &p->to[0];
    larder_table_t tables[GROUPS];
    larder_move_t m = {.struct_bytes = sizeof(larder_move_t),
                       .keys = keys,
                       .first_key = first,
                       .tables = tables,
                       .end = chunks * p->model.chunk_tokens};

    engine_expect(to, 0, m.end, tables);
    for (uint32_t i = 0; i < to->region_count; i++) { /* as it was */
        memcpy(to->expected[i], to->regions[i].base, to->regions[i].bytes);
    }
    assert_status(larder_prefix_place(to->layout, &m, memory, bytes), want);
    engine_check(to);
}

static inline void check_refused(pair_t *p, const uint8_t *memory, size_t bytes,
                                 uint32_t chunks, larder_status_t want)
{
    check_refused_as(p, NULL, 0, memory, bytes, chunks, want);
}
