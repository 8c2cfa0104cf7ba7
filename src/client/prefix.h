/*
 * What moving whole prefixes has in common: which shards a save has, their
 * names, and batches of them on their way (prefix.c, prefix_batch.c,
 * prefix_rooms.c).
 */
#pragma once

#include "client/client.h"
#include "layout/layout.h"

/* What is left of it, for calls that take a timeout; at least one. */
uint32_t ldr_prefix_left_ms(const larder_t *lar, uint64_t deadline_ns);

/* Whether the space can be used, and the layout with it. */
larder_status_t ldr_prefix_check(const larder_space_t *space,
                                 const larder_layout_t *layout);

/* Whether the move is one; op: PUT to save, GET to load. */
larder_status_t ldr_move_check(const larder_layout_t *layout, larder_op_t op,
                               const larder_move_t *m);
/* Tells the node of a save's chain, if all of it is there from its first chunk
 * on and nobody else does. */
void ldr_move_announce(larder_space_t *space, const larder_move_t *m,
                       uint64_t deadline_ns);
/* Sets its results to nothing. */
void ldr_move_clear(larder_move_t *m);
/* Adds what became of one shard. */
void ldr_move_note(larder_move_t *m, larder_status_t st, larder_cause_t cause,
                   size_t bytes);
/* The name of a shard, and how it is to be kept; no buffers. */
larder_item_t ldr_move_item(const larder_layout_t *layout,
                            const larder_move_t *m, ldr_shard_at_t at);
/* Which shard has that name. */
ldr_shard_at_t ldr_move_at(const larder_layout_t *layout,
                           const larder_move_t *m, const larder_item_t *item);

/* The shards that a save has, one after the other: group by group, in each by
 * chunk, and of that the slices that the rank holds whole. Begins with layout
 * and move set and the rest zero. */
typedef struct ldr_saves {
    const larder_layout_t *layout;
    const larder_move_t *move;
    ldr_shard_at_t at;
    bool begun; /* `at` is of the group's chunks */
} ldr_saves_t;

/* False: there are no more. */
bool ldr_saves_next(ldr_saves_t *s);

/* Shards on their way. */
typedef struct ldr_batch {
    larder_space_t *space;
    const larder_layout_t *layout;
    larder_move_t *move;
    larder_op_t op;
    uint64_t deadline_ns;
    larder_item_t *items;
    struct iovec *iov;
    ldr_page_list_t rows; /* of a GPU: the shard that is being copied */
    uint32_t item_count, iov_count, item_max, iov_max;
    uint8_t *scratch; /* load: for pages that are not wanted */
    size_t scratch_bytes;
    bool scratch_used;
    bool late;                   /* save: its deadline has passed */
    bool later;                  /* segments are listed while it copies */
    const larder_token_t *token; /* load: of what is staged, or NULL */
    /* load to a GPU: the tables are there when this is open; NULL: they are */
    uint32_t *gate;
    uint64_t gate_ns; /* it is waited for until then */
} ldr_batch_t;

/* Waits at a gate (larder_prefix_load_early()). E_CANCELED: it is closed, also
 * because the time has come. */
larder_status_t ldr_gate_pass(const ldr_clock_t *clock, uint32_t *gate,
                              uint64_t until_ns);

/* Begins with space, layout, move, op and deadline_ns set, with gate
 * where there is one, and the rest zero: room for as much as there is to move,
 * or for a good part of it. */
larder_status_t ldr_batch_begin(ldr_batch_t *b);
/* Load: the blocks of a group that are written. */
ldr_span_t ldr_batch_written(const ldr_batch_t *b, uint32_t group);
/* Adds one shard. MISS: it cannot be saved, since blocks are not there. One of
 * a save that is late is noted as such at once. */
larder_status_t ldr_batch_add(ldr_batch_t *b, ldr_shard_at_t at,
                              ldr_span_t wanted);
/* Carries out what was added, and notes in move what came of it. */
larder_status_t ldr_batch_flush(ldr_batch_t *b);
/* Also after begin failed. */
void ldr_batch_end(ldr_batch_t *b);
