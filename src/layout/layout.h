/*
 * Engine memory and chunks: which chunks a prefix needs, how a chunk is cut
 * into shards, and where in the engine's memory the bytes of a shard lie. Pure
 * computation on what the engine described; the memory itself is never touched
 * here. Nothing outside this folder computes (chunk, slice, layer) -> bytes.
 *
 * There is one enumeration. A prefix of n chunks needs, of each group, the
 * chunks of ldr_need_span(need, n); the shards of a chunk hold the rows from
 * ldr_group_t.first_row on, which lie in the blocks of
 * ldr_layout_blocks(group), whichever chunk it is. Saving, loading and matching
 * all go by these, so that what one stored is what the others look for:
 *
 *   - whatever a prefix of n chunks needs was stored when n chunks were saved,
 *     in however many steps;
 *   - whatever was stored is needed by some prefix of at most n chunks, except
 *     that a trailing group's shard begins at a multiple of WINDOW_UNIT tokens
 *     before the chunk's end.
 *
 * (tests/layout checks both over random models.)
 *
 * Why a trailing group's shard may hold a part of its chunk only: of chunk j, a
 * prefix that ends with it needs the last window - 1 tokens, and a longer one
 * needs fewer. Earlier blocks may be gone already when the chunk is complete,
 * and nobody would read them. Where the inside of pages is known, the part does
 * not depend on the engine's block size.
 *
 * The bytes of a shard have one order: layer, part, head, row, byte. A *strip*
 * is what one head of one part of one layer has in a rank's memory: a base, and
 * strides from block to block and from row to row. A shard's bytes are those of
 * its slice's strips, one after the other, each over the rows of the chunk.
 * Strips are made once, with the layout: so the list of what a move copies is
 * its strips and the block table, however many blocks and layers there are.
 *
 * An opaque page is one part with one head and one row. A layout that describes
 * nothing has one slice, which is all that the rank holds.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "larder/larder.h"

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

/* Row r of block b lies at base + b * block_stride + r * row_stride. */
typedef struct ldr_strip {
    uint8_t *base; /* NULL: this rank does not hold it */
    uint64_t block_stride, row_stride;
    uint64_t bytes; /* of a row */
    uint32_t table; /* that has the blocks */
} ldr_strip_t;

/* One of the slices that a rank holds, or holds some of. */
typedef struct ldr_layout_slice {
    uint32_t strip, strip_end; /* in the layout's strips */
    size_t bytes;              /* of its shard */
    uint32_t pieces;           /* segments of its shard, if none are merged */
    uint32_t runs;             /* the same for ldr_layout_rows() */
    uint64_t tables;           /* 1 << table for each that has its blocks */
    uint16_t number;           /* of the shard */
    bool whole;                /* the rank holds all of it */
} ldr_layout_slice_t;

typedef struct ldr_group {
    ldr_need_t need;
    larder_rule_t rule;
    uint32_t block_tokens, window_tokens;
    uint32_t chunk_blocks;     /* in a chunk */
    uint32_t first_block;      /* of a chunk's, that its shards have rows of */
    uint32_t block_rows;       /* in a block */
    uint32_t chunk_rows;       /* in a chunk */
    uint32_t first_row;        /* of a chunk's, that its shards hold */
    uint32_t slice, slice_end; /* in the layout's slices */
    size_t bytes_max;          /* the largest shard's */
    uint32_t pieces_max;       /* likewise */
    uint32_t runs_max;         /* likewise */
    size_t bytes;              /* of all its slices */
    uint32_t whole_count;      /* slices that are saved */
} ldr_group_t;

struct larder_layout {
    uint32_t chunk_tokens;
    uint32_t block_count;
    uint32_t null_block;
    bool has_null;
    bool all;          /* every group's rule is that */
    bool described;    /* pages are not opaque */
    larder_gpu_t *gpu; /* whose memory it is; NULL: the host's */
    uint32_t slices;   /* of a chunk, all ranks' */
    uint32_t table_count;
    uint32_t group_count;
    ldr_group_t group[LARDER_GROUPS_MAX];
    ldr_layout_slice_t *slice;
    ldr_strip_t *strips;
};

/* ---- how a model is cut (slices.c) ---- */

#define LDR_HEAD_SLICES_MAX 16u
#define LDR_LAYER_RANGES_MAX 8u

/* The same for every rank of every engine that has the model. Slice number
 * h * ranges + r holds head range h and layer range r. */
typedef struct ldr_cut {
    uint32_t heads;  /* ranges of heads; a group's are equal */
    uint32_t ranges; /* of layers */
    uint32_t border[LDR_LAYER_RANGES_MAX + 1]; /* 0, ..., layers */
} ldr_cut_t;

ldr_cut_t ldr_cut_make(const larder_pages_t *pages, uint32_t group_count,
                       uint32_t model_layers);

/* Makes group number `number`, its slices and its strips; *slice_p and *strip_p
 * are the first that are free. cut NULL: opaque. */
larder_status_t ldr_group_make(larder_layout_t *layout, uint32_t number,
                               const larder_layout_params_t *p,
                               const ldr_cut_t *cut, uint32_t *slice_p,
                               uint32_t *strip_p);
/* How many it would make, at most. */
uint64_t ldr_group_slices(const larder_layout_params_t *p, uint32_t group,
                          const ldr_cut_t *cut);
uint64_t ldr_group_strips(const larder_layout_params_t *p, uint32_t group,
                          const ldr_cut_t *cut);

/* The block table of a group's layer. */
uint32_t ldr_layer_table(const larder_layout_params_t *p, uint32_t group,
                         uint32_t layer);

/* ---- the enumeration (needs.c) ---- */

/* Sets what follows from the group's rule, block_tokens and window_tokens, for
 * rows of so many tokens; unit: a trailing group's shards hold a multiple of
 * this many tokens. */
void ldr_group_rule(ldr_group_t *g, uint32_t chunk_tokens, uint32_t row_tokens,
                    uint32_t unit);

/* The chunks that a prefix of so many chunks needs of a group. */
ldr_span_t ldr_need_span(const ldr_need_t *need, uint32_t chunks);
ldr_span_t ldr_layout_needs(const larder_layout_t *layout, uint32_t group,
                            uint32_t chunks);
/* Those of all groups; gives their number. */
uint32_t ldr_layout_list_needs(const larder_layout_t *layout,
                               ldr_need_t needs[LARDER_GROUPS_MAX]);

/* The blocks that have rows of a chunk's shards, as places in the block table.
 */
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

/* ---- lists of buffers (segments.c) ---- */

/* One shard: of a chunk, the slice with this place among the layout's. */
typedef struct ldr_shard_at {
    uint32_t group, chunk, slice;
} ldr_shard_at_t;

/* A list of buffers, each the next part of a shard. */
typedef struct ldr_segments {
    struct iovec *iov;
    uint32_t count, max;
} ldr_segments_t;

/*
 * The memory of a shard, in the order it is stored. Neighbours in memory are
 * merged. tables: all of the layout's; each strip takes its blocks from its
 * own.
 *
 * scratch NULL (saving): LARDER_MISS if one of the shard's tables lacks a
 * block, or has the null block there, or the rank does not hold all of the
 * slice. Otherwise (loading): blocks that are not among `wanted` places, null
 * blocks, and what this rank does not hold go to scratch, which has room for
 * ldr_layout_slice_t.bytes. A wanted place that a table lacks:
 * LARDER_E_INVALID.
 *
 * LARDER_E_INVALID also for an id that no block has. The segments must have
 * room for ldr_layout_slice_t.pieces.
 */
larder_status_t ldr_layout_segments(const larder_layout_t *layout,
                                    ldr_shard_at_t at,
                                    const larder_table_t *tables,
                                    ldr_span_t wanted, uint8_t *scratch,
                                    ldr_segments_t *out);

/* Rows of as many bytes each, the first at base, each the next `stride` bytes
 * behind the one before. Bytes without a gap are one row. */
typedef struct ldr_page_rows {
    uint8_t *base;
    uint64_t bytes, stride;
    uint32_t count;
} ldr_page_rows_t;

typedef struct ldr_page_list {
    ldr_page_rows_t *rows;
    uint32_t count, max;
} ldr_page_list_t;

/* The same for those who can step from row to row (the GPU's kernel): what a
 * strip has in a block is one entry, or a part of one. The list must have room
 * for ldr_layout_slice_t.runs. */
larder_status_t ldr_layout_rows(const larder_layout_t *layout,
                                ldr_shard_at_t at, const larder_table_t *tables,
                                ldr_span_t wanted, uint8_t *scratch,
                                ldr_page_list_t *out);

/* What ldr_layout_segments() and _rows() would return, without a list. load:
 * they would be given scratch. */
larder_status_t ldr_layout_places(const larder_layout_t *layout,
                                  ldr_shard_at_t at,
                                  const larder_table_t *tables,
                                  ldr_span_t wanted, bool load);
