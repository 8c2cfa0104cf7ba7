/*
 * The shared tier as the node uses it: what is saved is queued for it, and what
 * it holds is read into DRAM like what lies on a disk.
 *
 * Shards wait in the store's queues, one for each space, in the order of saves,
 * and are gathered into objects of LDR_OBJECTS_BYTES: when half of that is
 * there of one space, or the first has waited for a second, and saves pause.
 * Where saves never pause, one object is written at a time, at most 512 MiB/s.
 * Spaces take turns, an object each, so that none waits for all that a busy one
 * saves. The queues are bounded by the arena: a shard that waits is not held,
 * and leaves its queue when it is evicted. Shards of an object that is being
 * written are held. While the tier is off they wait.
 *
 * Invariants, with the node's lock
 *  1. A shard in state READING belongs to a read from disk or to one of the
 *     slots here, or waits for either (sh->tier says which).
 *  2. What came from the tier is not queued for it again.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "tier/shared/objects.h"
#include "tier/host.h"

#define LDR_SHARED_QUEUE 1u /* of the store: a worker for each space */

/* An object of single pages, one shard more than is aimed at, and what the
 * tier adds. */
#define LDR_UPLOAD_IOV (256u + LDR_READ_IOV + LDR_OBJECTS_RECORDS + 1)

typedef struct ldr_shared ldr_shared_t;

typedef struct ldr_upload {
    ldr_objects_write_t write;
    ldr_shared_t *shared;
    uint32_t shards[LDR_OBJECTS_RECORDS];
    uint32_t count; /* of shards */
    struct iovec iov[LDR_UPLOAD_IOV];
    uint32_t space;
    bool flying;
} ldr_upload_t;

typedef struct ldr_fetch ldr_fetch_t;
struct ldr_fetch {
    ldr_objects_read_t read;
    ldr_shared_t *shared;
    uint32_t shard;
    struct iovec *iov; /* LDR_READ_IOV of them */
    uint8_t *block;
    ldr_fetch_t *next; /* free */
};

typedef struct ldr_shared_tenant {
    uint32_t number; /* the tier's; LDR_NIL: not known there */
    uint32_t turn;   /* counts the keys with which its volume was sealed */
    /* Its data there is under LDR_PUBLIC_SECRET and no key; that was said. */
    bool open, open_warned;
    bool other_warned; /* that its volume has another key, and stays so */
} ldr_shared_tenant_t;

struct ldr_shared {
    union {
        ldr_tier_t base;
        struct ldr_tier;
    };
    ldr_objects_t *tier;
    bool encrypts;
    uint8_t cipher[LDR_SEAL_KEY_BYTES]; /* if it does */
    /* By the store's numbers. A space has the tier's only while the tenant's
     * volume is sealed with the key that its client gave; LDR_NIL: it has none.
     */
    ldr_shared_tenant_t *tenants;
    uint32_t *spaces;
    uint8_t (*keys)[LDR_SEAL_KEY_BYTES]; /* that spaces' clients gave */
    uint32_t open_count;                 /* tenants that are open */

    ldr_fetch_t *fetches, *fetch_free;
    unsigned fetch_count;
    uint32_t head, tail; /* shards that wait for one; by fetch_next */
    uint32_t waiting, flying;

    ldr_upload_t *uploads; /* objects being written */
    unsigned upload_count, uploads_flying;
    uint64_t last_ns; /* when something was last queued */
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
    bool stop;           /* there is no tier yet, or no more */
    unsigned announcing; /* resets that the disks are to record, lock free */
    /* Calls hang: what they name stays for ever, but the disks are gone. */
    bool left_behind;
};

extern const ldr_tier_ops_t ldr_tier_shared;

/* The node's, or NULL if it has no shared tier. */
static inline ldr_shared_t *ldr_shared_of(const ldr_host_t *host)
{
    return (ldr_shared_t *)host->tiers[LDR_SHARED_QUEUE];
}

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

/* ---- parts of the row ---- */

void ldr_shared_fetch(ldr_tier_t *t, uint32_t shard);
void ldr_shared_submit(ldr_tier_t *t);
bool ldr_shared_accepts(ldr_tier_t *t, uint32_t space);
void ldr_shared_queue(ldr_tier_t *t, uint32_t shard);
larder_status_t ldr_shared_check(const ldr_options_t *o,
                                 const ldr_predecessor_t *owner);
void ldr_shared_stats(ldr_tier_t *t, bool whole, larder_stats_t *out);
void ldr_shared_times(ldr_tier_t *t, ldr_histogram_t *reads,
                      ldr_histogram_t *writes);
void ldr_shared_metrics(ldr_tier_t *t, ldr_exposition_t *e);
