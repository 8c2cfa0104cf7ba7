/*
 * Write-behind: what tiers below DRAM still have to be given, one queue for
 * each.
 *
 * A shard is in a tier's queue exactly while it is marked so (`queued`): ready
 * and attached. It waits there without being held, and leaves the queue when it
 * is evicted: what is least useful is dropped first, and the arena bounds all
 * queues. While the tier writes a shard, the shard is held and counted as in
 * the tier's hands; ldr_behind_done() ends that.
 *
 * A queue has one subqueue, in the order of saves, or one for each space: then
 * the subqueues that have something stand in line, and none waits for more than
 * one turn of each other.
 *
 * Flushing: what is queued belongs to a turn. A flush begins the next turn once
 * nothing of the one before is left, so that it can tell what was queued before
 * it from what comes meanwhile. The lowest bit of the turn is the shards'.
 *
 * All with the node's lock.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "larder/larder.h"

#define LDR_QUEUES_MAX 4u /* tiers below DRAM that a node can have */

struct ldr_store;

/* All zero: nothing is in it. */
typedef struct ldr_subqueue {
    uint32_t head, tail;    /* shards */
    uint32_t before, after; /* subqueues, in line */
    uint64_t count, bytes;
    uint64_t since_ns; /* when it took that place; the tier's */
    uint64_t asked;    /* the last look in which it was asked; the tier's */
} ldr_subqueue_t;

typedef struct ldr_behind {
    ldr_subqueue_t *subqueues; /* NULL: no tier uses the queue */
    bool by_space;             /* a subqueue for each; else one */
    /* The tier takes what is saved, now: what the policy refuses goes there. */
    bool takes;
    uint32_t first, last; /* subqueues with shards, in line */
    uint64_t count, bytes;
    uint64_t turn;
    uint64_t waiting[2], hands[2]; /* shards of either turn */
} ldr_behind_t;

/* A shard's place in one of them. */
typedef struct ldr_queued {
    uint32_t prev, next;
} ldr_queued_t;

larder_status_t ldr_behind_open(struct ldr_store *s, unsigned queue,
                                bool by_space);
void ldr_behind_close(struct ldr_store *s, unsigned queue);

/* A shard that is ready and attached joins the end of its subqueue, unless it
 * is in the queue already. */
void ldr_behind_push(struct ldr_store *s, unsigned queue, uint32_t shard);
/* It is not wanted any more. */
void ldr_behind_remove(struct ldr_store *s, unsigned queue, uint32_t shard);
/* It leaves all queues. */
void ldr_behind_remove_all(struct ldr_store *s, uint32_t shard);

/* The tier takes it into its hands, and holds it. */
void ldr_behind_take(struct ldr_store *s, unsigned queue, uint32_t shard);
/* ... and is through with it. again: back into the queue, if it can still be
 * found; it stays of its turn. */
void ldr_behind_done(struct ldr_store *s, unsigned queue, uint32_t shard,
                     bool again);
/* Whether a tier has something in its hands: memory will be let go. */
bool ldr_behind_in_hand(const struct ldr_store *s);

/* A subqueue that has shards goes to the end of the line. */
void ldr_behind_next(struct ldr_store *s, unsigned queue, uint32_t subqueue,
                     uint64_t now_ns);

/* Whether nothing is left of what was queued when it was turn `start`. The next
 * turn begins as soon as it can: so a flush ends however much is saved
 * meanwhile. */
bool ldr_behind_drained(struct ldr_store *s, unsigned queue, uint64_t start);
