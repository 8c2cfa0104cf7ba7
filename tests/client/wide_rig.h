/* Prompts of any length and shards of any size, for tests of whole prefixes. */
#pragma once

#include "client/prefix_rig.h"

/* An engine with one layer, and blocks for one prompt. */
typedef struct wide {
    model_t model;
    uint32_t chunks, tokens;
    size_t bytes, stride; /* of a page */
    uint8_t *memory;
    size_t memory_bytes;
    uint32_t *ids; /* all of them, in random order */
    larder_table_t tables[GROUPS];
    larder_layout_t *layout;
} wide_t;

static inline void wide_make(wide_t *e, const model_t *m, uint32_t chunks,
                             size_t bytes, ldr_rand_t *r)
{
    larder_group_t groups[GROUPS];
    uint32_t all = 0;

    *e = (wide_t){.model = *m, .chunks = chunks, .bytes = bytes};
    e->stride = bytes + 3;
    e->tokens = chunks * m->chunk_tokens;
    e->ids = calloc((size_t)e->tokens * GROUPS, sizeof(*e->ids));
    larder_layer_t layer = {"layer", 0, 0, e->stride, e->bytes};
    for (uint32_t g = 0; g < m->group_count; g++) {
        uint32_t count = e->tokens / m->groups[g].block_tokens;

        groups[g] = m->groups[g];
        groups[g].layers = &layer;
        groups[g].layer_count = 1;
        e->tables[g] = (larder_table_t){e->ids + all, 0, count};
        all += count;
    }
    for (uint32_t i = 0; i < all; i++) {
        uint32_t at = below(r, i + 1);

        e->ids[i] = e->ids[at];
        e->ids[at] = i;
    }
    e->memory_bytes = all * e->stride;
    e->memory = calloc(1, e->memory_bytes);
    larder_region_t region = {"memory", e->memory, e->memory_bytes};
    larder_layout_params_t p = {.chunk_tokens = m->chunk_tokens,
                                .block_count = all,
                                .regions = &region,
                                .region_count = 1,
                                .groups = groups,
                                .group_count = m->group_count};
    assert_status(larder_layout_create(&p, &e->layout), LARDER_OK);
}

static inline void wide_free(wide_t *e)
{
    larder_layout_destroy(&e->layout);
    free(e->memory);
    free(e->ids);
}

/* Writes every page, or those that a load of the prompt needs. */
static inline void wide_fill(const wide_t *e, bool needed)
{
    for (uint32_t g = 0; g < e->model.group_count; g++) {
        for (uint32_t b = 0; b < e->tables[g].count; b++) {
            if (!needed || needs_block(&e->model.groups[g], e->tokens, b)) {
                content(g * 10000000 + b,
                        e->memory + e->tables[g].ids[b] * e->stride, e->bytes);
            }
        }
    }
}
