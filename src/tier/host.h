/*
 * What a tier sees of the node that it belongs to: options, lock, store, clock
 * and log, and what the node does for its tiers. A tier includes nothing above
 * this header.
 *
 * One lock, host->lock, guards all metadata (store.h); it is held for
 * bookkeeping only, never across I/O or a copy. `changed` is broadcast when
 * somebody may wait for what was done: writes landed, a tier went on or off.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/io.h"
#include "base/log.h"
#include "base/options.h"
#include "base/thread.h"
#include "base/wait.h"
#include "larder/larder.h"
#include "store/store.h"
#include "tier/tier.h"

#define LDR_SAID_MAX 4u /* lines for the log that wait for the lock */
#define LDR_SAID_BYTES 512u
#define LDR_READ_IOV 1024u /* 60 MiB of single pages, and the descriptor */

/* A line that waits for the lock to be given up. */
typedef struct ldr_said {
    larder_log_level_t level;
    const char *format;
    char text[LDR_SAID_BYTES];
} ldr_said_t;

struct ldr_host {
    /* Set before the first tier is opened, and not changed after it. */
    ldr_options_t options;
    ldr_log_t log;
    const ldr_clock_t *clock;
    bool manual;    /* no threads: whoever waits does the work */
    bool successor; /* see ldr_node_env_t */
    ldr_io_t *io;   /* NULL: a tier that reads files makes one */
    /* NULL: the node is alone. Threads and transport are for tests: NULL: the
     * real ones. */
    struct ldr_cluster *cluster;
    const ldr_threads_t *threads;
    const struct ldr_transport_ops *transport;
    ldr_rand_t rand;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    ldr_said_t said[LDR_SAID_MAX];
    unsigned said_count;
    ldr_store_t store;
    bool store_opened;
    uint64_t walk_in; /* debug builds: unlocks until all tables are walked */

    ldr_tier_t *tiers[LDR_QUEUES_MAX]; /* by number - 1; NULL: there is none */
    ldr_tier_t *order[LDR_QUEUES_MAX]; /* the cheapest first */
    unsigned tier_count;
    double speed[LARDER_TIERS_MAX]; /* bytes per second, measured */

    /* The threads that make memory resident (node/memory.c). */
    pthread_cond_t memory_work;
    unsigned memory_idle; /* how many of them wait for memory_work */
    bool memory_woken;    /* it was signalled, and none waits again yet */
};

/* A space as its users know it. The node's own id of it is hashed over the
 * tenant as well, so that an id that was stolen names another, empty space in
 * another tenant's session. */
struct ldr_space_info {
    uint8_t space_id[LDR_ID_BYTES];
    uint8_t tenant_check[LDR_ID_BYTES]; /* check value of its secret */
    const char *tenant;                 /* its name */
    bool has_key;                       /* a client that knows the next */
    uint8_t key[32]; /* the tenant's for the shared tier, from its secret */
    char label[LARDER_LABEL_MAX + 1]; /* clean; "": none is given */
};

/* ---- the lock ---- */

/* In debug builds whatever is said to be called with the lock checks that. */
#define ldr_host_held(host) LDR_HELD(&((ldr_host_t *)(host))->lock)

static inline void ldr_host_lock(ldr_host_t *host)
{
    ldr_mutex_lock(&host->lock);
}

/* Wakes the threads that make memory, if they sleep. With the lock. */
static inline void ldr_memory_wake(ldr_host_t *host)
{
    if (host->memory_idle > 0 && !host->memory_woken) {
        host->memory_woken = true;
        pthread_cond_broadcast(&host->memory_work);
    }
}

/* Wakes the threads that wait for what was changed under the lock. Called
 * before the lock is given up, by an unlock or by waiting for a condition. */
static inline void ldr_host_tell(ldr_host_t *host)
{
    if (host->store.queue_left) {
        host->store.queue_left = false;
        pthread_cond_broadcast(&host->changed); /* for ldr_node_flush() */
    }
    if (host->store.arena.emptied) {
        host->store.arena.emptied = false;
        ldr_memory_wake(host); /* an extent has to be made again */
    }
}

/* A line for the log, with the lock held: it is written once the lock is given
 * up, since a log may be slow, or hang. More than a few at once: the first. */
void ldr_host_say(ldr_host_t *host, larder_log_level_t level,
                  const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The rest of unlock, if there are lines. */
void ldr_host_unlock_said(ldr_host_t *host);

/* Debug builds: walks all tables now and then, so that a broken one is found
 * near its cause. Set by tests before the first node; NULL: nobody walks.
 * Called with the lock, after as many unlocks as make it cheap beside them. */
extern void (*ldr_host_walker)(const ldr_host_t *host);
void ldr_host_walk(ldr_host_t *host);

static inline void ldr_host_unlock(ldr_host_t *host)
{
    ldr_host_tell(host);
    if (LDR_DEBUG && ldr_host_walker != NULL && host->store_opened) {
        ldr_host_walk(host);
    }
    if (__builtin_expect(host->said_count > 0, 0)) {
        ldr_host_unlock_said(host);
        return;
    }
    ldr_mutex_unlock(&host->lock);
}

/* ---- waiting, with the lock held ---- */

/* Waits for `changed`; false: the deadline passed. In a manual node: does one
 * step; false: there was none. */
bool ldr_host_wait(ldr_host_t *host, uint64_t deadline_ns);

/* Waits for `changed` at the end of a node, whose clock may stand still: the
 * deadline counts only where there are threads. */
bool ldr_host_pause(ldr_host_t *host, uint64_t deadline_ns);

/* As ldr_host_wait(); false: it has to stop, or in a manual node there was
 * nothing to do. */
bool ldr_host_wait_stop(ldr_host_t *host, const ldr_stop_t *stop);

/* LARDER_OK, or why it has to stop now. Needs no lock. */
static inline larder_status_t ldr_host_stopped(const ldr_host_t *host,
                                               const ldr_stop_t *stop)
{
    return ldr_stopped(host->clock, stop);
}

/* Why ldr_host_wait_stop() gave up. Where a manual node had nothing to do, that
 * is a deadline. */
static inline larder_status_t ldr_host_gave_up(const ldr_host_t *host,
                                               const ldr_stop_t *stop)
{
    larder_status_t st = ldr_host_stopped(host, stop);

    return st != LARDER_OK ? st : LARDER_E_DEADLINE;
}

/* For a tier that opens. Takes the lock. */
void ldr_host_add_tier(ldr_host_t *host, ldr_tier_t *tier);

/* ---- what the node does for its tiers: src/node has these ---- */

/* In a manual node: does one thing that a thread would do. With the lock. */
bool ldr_host_step(ldr_host_t *host);

/* A shard became ready: calls queue() of the tiers that may want it. from: the
 * tier it came from, which has it, as have those that cost more; NULL: a save.
 * With the lock. */
void ldr_host_queue(ldr_host_t *host, uint32_t shard, const ldr_tier_t *from);

/* A shard that was being read, from wherever, came and is ready, or did not:
 * ends the wait of its loads and the reservation. With the lock. */
void ldr_load_came(ldr_host_t *host, uint32_t shard);
void ldr_load_failed(ldr_host_t *host, uint32_t shard, larder_cause_t cause);
/* It will come late, or never: its loads miss now, and nobody finds it. The
 * tier still ends it with one of the two. With the lock. */
void ldr_load_lost(ldr_host_t *host, uint32_t shard, larder_cause_t cause);
/* Whether the record that came from so many blocks, its descriptor among them,
 * is that of the shard that was asked for. With the lock. */
bool ldr_load_fits(const ldr_store_t *store, uint32_t shard,
                   const ldr_record_t *record, uint32_t blocks);

/* Shards were removed on another node, of which `from` has heard: removes them
 * from memory and all other tiers. Without the lock. */
larder_status_t ldr_host_remove(ldr_host_t *host, const ldr_tier_t *from,
                                uint32_t space, larder_item_t *items,
                                size_t count, const ldr_stop_t *stop);

/* This tier has raised epochs: brings them to the others, or, with the lock,
 * has them brought later. */
larder_status_t ldr_host_epochs(ldr_host_t *host, const ldr_tier_t *raised);
void ldr_host_epochs_later(ldr_host_t *host, const ldr_tier_t *raised);

/* A tier has recorded this of a tenant's secret. False: another one is known,
 * and counts. With the lock. */
bool ldr_secret_learn(ldr_host_t *host, uint32_t tenant,
                      const uint8_t check[LDR_ID_BYTES]);
/* Logs once that a client of the tenant was refused. With the lock. */
void ldr_secret_tell_refused(ldr_host_t *host, ldr_tenant_t *t);

/* The secret of tenants that were given none: no secret, but the same
 * everywhere, so that nodes and engines agree without configuration. */
#define LDR_PUBLIC_SECRET "larder: no secret is configured"
/* A tenant's key for the shared tier. False: libcrypto failed. */
bool ldr_tenant_key(const void *secret, size_t secret_bytes, const char *name,
                    uint8_t key[32]);
