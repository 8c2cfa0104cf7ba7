/*
 * Handing a node's memory over to another process: `larder serve --takeover`.
 * What goes along and what stays is in store/handover.h.
 */
#pragma once

#include "base/mem.h"
#include "node/node.h"

/* What one process gives and the next takes. */
typedef struct ldr_handover {
    ldr_extent_t list; /* a file as well */
    int *fds;          /* of the extents; -1: taken */
    uint32_t fd_count;
    uint64_t left_bytes; /* of what was in DRAM and does not go along */
} ldr_handover_t;

void ldr_handover_free(ldr_handover_t *h);

/*
 * Closes the node as ldr_node_close() does, and makes of its memory what
 * another can take. Without it (no memory, no descriptors, a call that hangs)
 * *h has no list, and left_bytes says what is lost.
 */
larder_status_t ldr_node_hand_over(ldr_node_t *node, uint64_t deadline_ns,
                                   ldr_handover_t *h);

/* The memory around this shard cannot be handed over: a process that holds it
 * may live on when its session ends. */
void ldr_node_stays(ldr_node_t *node, uint32_t shard);

/* The memory around all that is held cannot be: calls that hang may read it, or
 * fill it. */
void ldr_handover_stay(ldr_node_t *node);

/* For node.c: the end of a node of which nobody uses anything any more, and
 * the beginning of one of which nobody has. */
void ldr_handover_make(ldr_node_t *node, ldr_handover_t *h);
void ldr_handover_use(ldr_node_t *node, ldr_handover_t *h);
