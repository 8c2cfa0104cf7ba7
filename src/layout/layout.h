/*
 * Engine memory and chunks: which chunks a prefix needs, which blocks a shard
 * holds, and where those lie. Pure computation on what the engine described;
 * the memory itself is never touched here.
 *
 * There is one enumeration. A prefix of n chunks needs, of each group, the
 * chunks of ldr_need_span(need, n); the shard of a chunk holds the blocks
 * of ldr_layout_blocks(group), whichever chunk it is. Saving, loading and
 * matching all go by these two, so that what one stored is what the others
 * look for:
 *
 *   - whatever a prefix of n chunks needs was stored when n chunks were saved,
 *     in however many steps;
 *   - whatever was stored is needed by some prefix of at most n chunks.
 *
 * (tests/layout checks both over random models.)
 *
 * Why a trailing group's shard may hold a part of its chunk only: of chunk j, a
 * prefix that ends with it needs the last window - 1 tokens, and a longer one
 * needs fewer. Earlier blocks may be gone already when the chunk is complete,
 * and nobody would read them.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "larder/larder.h"

typedef struct ldr_layer {
    uint8_t *base; /* of block 0's page */
    uint64_t stride;
    uint64_t bytes;
} ldr_layer_t;

/* Numbers from first to end - 1. */
typedef struct ldr_span {
    uint32_t first, end;
} ldr_span_t;

/* What a prefix needs of a group, for those who know nothing of its memory: its
 * last chunks. This much of a layout travels to a daemon. */
typedef struct ldr_need {
    uint32_t chunks; /* at most; LDR_NEED_ALL: every one */
    uint16_t group;
} ldr_need_t;

#define LDR_NEED_ALL UINT32_MAX

typedef struct ldr_group {
    ldr_need_t need;
    larder_rule_t rule;
    uint32_t block_tokens, window_tokens;
    uint32_t chunk_blocks;     /* in a chunk */
    uint32_t first_block;      /* of a chunk's, that its shard holds */
    uint32_t layer, layer_end; /* in the layout's layers */
    size_t shard_bytes;
    uint32_t shard_pages; /* segments of a shard, if none can be merged */
} ldr_group_t;

struct larder_layout {
    uint32_t chunk_tokens;
    uint32_t block_count;
    uint32_t null_block;
    bool has_null;
    bool all;          /* every group's rule is that */
    larder_gpu_t *gpu; /* whose memory it is; NULL: the host's */
    uint32_t group_count;
    ldr_group_t group[LARDER_GROUPS_MAX];
    ldr_layer_t *layers;
};

/* The chunks that a prefix of so many chunks needs of a group. */
ldr_span_t ldr_need_span(const ldr_need_t *need, uint32_t chunks);
ldr_span_t ldr_layout_needs(const larder_layout_t *layout, uint32_t group,
                            uint32_t chunks);
/* Those of all groups; gives their number. */
uint32_t ldr_layout_list_needs(const larder_layout_t *layout,
                               ldr_need_t needs[LARDER_GROUPS_MAX]);

/* The blocks that chunk's shard holds, as places in the block table. */
ldr_span_t ldr_layout_blocks(const larder_layout_t *layout, uint32_t group,
                             uint32_t chunk);

/* The blocks that a prefix of so many tokens, whole blocks, needs of a group,
 * as places in the block table. They lie in the chunks of ldr_layout_needs();
 * those chunks' shards may hold earlier ones too. */
ldr_span_t ldr_layout_reads(const larder_layout_t *layout, uint32_t group,
                            uint32_t tokens);

/* The longest prefix of at most `chunks` chunks that can be loaded. here[i] is
 * of needs[i] one byte for each chunk, not 0 if the group has it; NULL: it has
 * them all. (A group with rule all that has a prefix of n is better told by n.)
 */
uint32_t ldr_needs_longest(const ldr_need_t *needs, uint32_t need_count,
                           uint32_t chunks, const uint8_t *const *here);

/* A list of buffers, each the next part of a shard. */
typedef struct ldr_segments {
    struct iovec *iov;
    uint32_t count, max;
} ldr_segments_t;

/*
 * The memory of a chunk's shard, in the order it is stored: layer by layer, in
 * each the blocks of ldr_layout_blocks(). Neighbours in memory are merged.
 *
 * scratch NULL (saving): LARDER_MISS if the table lacks a block, or has the
 * null block there.
 * Otherwise (loading): blocks that are not among `wanted` places, and null
 * blocks, go to scratch, which has room for ldr_group_t.shard_bytes. A wanted
 * place that the table lacks: LARDER_E_INVALID.
 *
 * LARDER_E_INVALID also for an id that no block has. The segments must have
 * room for shard_pages.
 */
larder_status_t ldr_layout_segments(const larder_layout_t *layout,
                                    uint32_t group, uint32_t chunk,
                                    const larder_table_t *table,
                                    ldr_span_t wanted, uint8_t *scratch,
                                    ldr_segments_t *out);

/* Whether a load would find the wanted places of the shard in the table: OK, or
 * what ldr_layout_segments() would say. */
larder_status_t ldr_layout_places(const larder_layout_t *layout, uint32_t group,
                                  uint32_t chunk, const larder_table_t *table,
                                  ldr_span_t wanted);
