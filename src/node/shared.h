/*
 * The shared tier as the node uses it: what is saved is offered to it, and what
 * it holds is read into DRAM like what lies on a disk.
 *
 * Offers wait in the store's queues, one for each space, in the order of saves,
 * and are gathered into objects of LDR_TIER_OBJECT_BYTES: when half of that is
 * there of one space, or the first has waited for a second, and saves pause;
 * where they never do, objects go one by one, and not often. Spaces take turns,
 * an object each, so that none waits for all that a busy one saves. The queues
 * are bounded by the arena: who waits holds nothing, and what is evicted is
 * dropped from them. Shards of an object that is being written are held. While
 * the tier is off they wait.
 *
 * Invariants, with the node's lock
 *  1. A shard in state READING belongs to a read from disk or to one of the
 *     slots here, or waits for either (sh->tier says which).
 *  2. What came from the tier is not offered again.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "node/load.h"
#include "node/node.h"
#include "shared/tier.h"

/* An object of single pages, one shard more than is aimed at, and what the
 * tier adds. */
#define LDR_OFFER_IOV (256u + LDR_READ_IOV + LDR_TIER_RECORDS + 1)

typedef struct ldr_offer {
    ldr_tier_write_t write;
    ldr_shared_t *shared;
    uint32_t shards[LDR_TIER_RECORDS];
    uint32_t count; /* of shards */
    struct iovec iov[LDR_OFFER_IOV];
    uint32_t space;
    uint8_t turns; /* bits: of which its shards are */
    bool flying;
} ldr_offer_t;

typedef struct ldr_fetch ldr_fetch_t;
struct ldr_fetch {
    ldr_tier_read_t read;
    ldr_shared_t *shared;
    uint32_t shard;
    struct iovec *iov; /* LDR_READ_IOV of them */
    uint8_t *block;
    ldr_fetch_t *next; /* free */
};

typedef struct ldr_shared_tenant {
    uint32_t number; /* the tier's; LDR_NIL: not known there */
    uint32_t turn;   /* counts the keys with which its part was sealed */
    /* Its data there is under LDR_PUBLIC_SECRET and no key; that was said. */
    bool open, open_told;
    bool other_told; /* that its part has another key, and stays so */
} ldr_shared_tenant_t;

struct ldr_shared {
    ldr_node_t *node;
    ldr_tier_t *tier;
    bool encrypts;
    uint8_t cipher[LDR_SEAL_KEY_BYTES]; /* if it does */
    /* By the store's numbers. A space has the tier's only while the tenant's
     * part is sealed with the key that its client gave; LDR_NIL: it has none.
     */
    ldr_shared_tenant_t *tenants;
    uint32_t *spaces;
    uint8_t (*keys)[LDR_SEAL_KEY_BYTES]; /* that spaces' clients gave */
    uint32_t open_count;                 /* tenants that are open */

    ldr_fetch_t *fetches, *fetch_free;
    unsigned fetch_count;
    uint32_t head, tail; /* shards that wait for one; linked by dirty_next */
    uint32_t waiting, flying;

    ldr_offer_t *offers; /* objects being written */
    unsigned offer_count, offers_flying;
    uint64_t last_ns; /* when something was last offered */
    uint64_t pace_ns; /* while saves never cease, no object before it */
    uint64_t look;    /* counts those for something to write */
    uint64_t look_ns; /* when its thread looks by itself; 0: need not be
                         woken by who saves */
    unsigned hurry;   /* who waits for a flush */

    /* The walk over what is in DRAM (shared_used.c). Uses count that are not
     * older than its predecessor. */
    bool walking;
    uint32_t walk_chunk; /* to be looked at next */
    uint32_t walk_began_s, walk_since_s;
    uint64_t walk_ns;      /* when the next piece is due */
    uint64_t walk_next_ns; /* ... and the next walk */
    uint64_t walk_uses;    /* that were counted when it began */

    ldr_histogram_t read_times, write_times; /* need no lock */
    pthread_t thread;
    pthread_cond_t work;
    bool thread_started, idle;
    bool stop;        /* there is no tier yet, or no more */
    unsigned telling; /* the disks of a reset, without the lock */
    /* Calls hang: what they name stays for ever, but the disks are gone. */
    bool left_behind;
};

larder_status_t ldr_shared_open(ldr_node_t *node);
larder_status_t ldr_shared_start(ldr_node_t *node);
/* Ends it, writing what it can until the deadline. False: calls hang in the
 * storage, and what they name (pages of the arena among it) must stay. */
bool ldr_shared_close(ldr_node_t *node, uint64_t deadline_ns);
/* In a manual node: does one thing, with the lock held, which it drops. */
bool ldr_shared_step(ldr_shared_t *s);

/* The space is used by somebody who knows the tenant's key. Waits for the
 * storage, as long as an operation may take. */
larder_status_t ldr_shared_space(ldr_node_t *node, uint32_t space,
                                 const ldr_space_info_t *info);
/* The space's secret is the tenant's from now on: its part of the tier is made
 * so. With the lock. */
void ldr_shared_claim(ldr_node_t *node, uint32_t space);
/* A disk that came late may know of resets that the tier has yet to hear of.
 * With the lock. */
void ldr_shared_epochs(ldr_node_t *node);
/* After a reset here: makes it one for all nodes. Waits. */
larder_status_t ldr_shared_reset(ldr_node_t *node, uint32_t space,
                                 uint64_t deadline_ns, bool *raised_p);
/* Takes an item out of the tier: it is not found there from now on. In the same
 * hold of the lock in which it is taken out here, before that: else a load in
 * between would bring it back. *token_p: for ldr_shared_removed(). */
larder_status_t ldr_shared_remove(ldr_node_t *node, uint32_t space,
                                  const larder_item_t *item, uint64_t *token_p);
/* Returns once other nodes are told as well. Waits. */
larder_status_t ldr_shared_removed(ldr_node_t *node, uint32_t space,
                                   uint64_t token, uint64_t deadline_ns);
larder_status_t ldr_shared_flush(ldr_node_t *node, const ldr_stop_t *stop);

/* ---- between the files of it ---- */

void ldr_shared_wake(ldr_shared_t *s); /* with the lock */
/* Writes an object if there is enough for one, or if it is time. False: there
 * is not; *wake_p: when there will be. With the lock. */
bool ldr_shared_write(ldr_shared_t *s, uint64_t *wake_p);
/* Tells the tier what of it was used here, a piece at a time, if it is time;
 * when it is next. With the lock. */
uint64_t ldr_shared_walk(ldr_shared_t *s);
/* The tier's numbers for a space; false: it is not known there. With the
 * lock. */
bool ldr_shared_numbers(const ldr_shared_t *s, uint32_t space,
                        uint32_t *tenant_p, uint32_t *space_p);

/* ---- for loads and saves ---- */

/* Where it lies there; false: it does not. With the lock. */
bool ldr_shared_find(ldr_node_t *node, uint32_t space, uint16_t group,
                     const larder_key_t *key, uint32_t number,
                     ldr_place_t *place);

/* These chunks are looked for there next. With the lock. */
void ldr_shared_soon(ldr_node_t *node, uint32_t space, uint16_t group,
                     const larder_key_t *keys, size_t count, uint32_t shards);

/* A reserved shard (READING) is to be read from there, once ldr_shared_go() is
 * called. With the lock, both. */
void ldr_shared_fetch(ldr_node_t *node, uint32_t shard);
void ldr_shared_go(ldr_node_t *node);

/* Whether it takes what is saved in a space now. With the lock. */
bool ldr_shared_takes(const ldr_node_t *node, uint32_t space);
/* A shard was saved. With the lock. */
void ldr_shared_offer(ldr_node_t *node, uint32_t shard);
