/*
 * A tier below DRAM: a row of functions, and what it costs. The node keeps its
 * tiers in order of cost and knows nothing else about them; ldr_tier_rows is
 * the table of those there are.
 *
 * Every byte passes through DRAM: a tier fetches into pages that were reserved
 * for it (a shard in state READING), and writes what it takes from its queue
 * (store/behind.h). All calls are made with the node's lock held, which none of
 * them may keep while it waits for something, except where it is said that the
 * lock is not held. A function that is NULL: the tier has no part in it.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/histogram.h"
#include "base/metrics.h"
#include "base/options.h"
#include "base/wait.h"
#include "larder/larder.h"
#include "store/store.h"

typedef struct ldr_host ldr_host_t; /* host.h */
typedef struct ldr_space_info ldr_space_info_t;
typedef struct ldr_tier ldr_tier_t;

#define LDR_REMOVE_MAX 1024u /* shards that a tier removes at once */

/* A shard that is looked for. */
typedef struct ldr_sought {
    const ldr_name_t *name;
    uint32_t entry;  /* LDR_NIL: the index has none */
    uint32_t number; /* of the shard */
} ldr_sought_t;

/* One whose record is looked at. */
typedef struct ldr_looked {
    uint32_t entry, number, space;
    uint64_t fingerprint; /* of the entry when it was looked up */
    ldr_record_t record;
    bool found; /* record is that shard's */
} ldr_looked_t;

/* How long the queues are. */
typedef struct ldr_queues {
    uint64_t dirty_shards;  /* to be written down to disk */
    uint64_t reads_waiting; /* for a slot */
    uint64_t reads_flying, writes_flying;
} ldr_queues_t;

/* The process that holds the locks of directories now, and will release them
 * during a takeover. has: whether that may be the one that locked this file;
 * called by any thread, also after a check, where a disk does not answer. */
typedef struct ldr_predecessor {
    bool (*has)(int64_t id, const char *lock_path);
    int64_t id;
} ldr_predecessor_t;

typedef struct ldr_tier_ops {
    const char *name;
    larder_tier_t number; /* as clients know it; its queue is the one before */
    double speed; /* bytes a second, until it was measured: the order of cost */
    bool by_space; /* its queue has a lane for each space */
    bool keeps;    /* a save of what it has is answered PRESENT */

    /* ---- life; without the lock, but for step ---- */

    /* As the options say, and adds it to the node's: ldr_host_add_tier(). If it
     * fails, what was added is ended. */
    larder_status_t (*open)(ldr_host_t *host);
    /* The node is open: threads may begin to work, if it has any. */
    larder_status_t (*start)(ldr_tier_t *t);
    /* In a manual node: does one thing that a thread would do. False: there is
     * nothing to do. It may drop the lock. */
    bool (*step)(ldr_tier_t *t);
    /* Ends what is under way, a little after the deadline at the latest. False:
     * calls hang, and all that they can touch must stay. */
    bool (*end)(ldr_tier_t *t, uint64_t deadline_ns);
    void (*destroy)(ldr_tier_t *t); /* after that */

    /* ---- finding and fetching ---- */

    /* How many bytes a load has to reserve for it; 0: it cannot be had here,
     * and *cause_p becomes why, if the tier knows better. In memory only. */
    uint32_t (*find)(ldr_tier_t *t, const ldr_sought_t *s,
                     larder_cause_t *cause_p);
    /* These chunks are looked for next: names of one group of a space. */
    void (*soon)(ldr_tier_t *t, const ldr_name_t *first,
                 const larder_key_t *keys, size_t count, uint32_t shards);
    /* A reserved shard is to be brought up. It comes after go(), and ends with
     * ldr_load_came() or ldr_load_failed(). */
    void (*fetch)(ldr_tier_t *t, uint32_t shard);
    /* Sends off what was asked for; without the lock. */
    void (*go)(ldr_tier_t *t);
    /* A load could not wait for this shard any longer. */
    void (*late)(ldr_tier_t *t, uint32_t shard);

    /* ---- what was saved ---- */

    /* Whether it takes what is saved in a space now. */
    bool (*takes)(ldr_tier_t *t, uint32_t space);
    /* A shard became ready, by a save or from a dearer tier. */
    void (*offer)(ldr_tier_t *t, uint32_t shard);
    /* It is used again. */
    void (*used)(ldr_tier_t *t, uint32_t shard);
    /* Until all that was saved before is there and will stay. Without the
     * lock. */
    larder_status_t (*flush)(ldr_tier_t *t, const ldr_stop_t *stop);

    /* ---- removing and resetting ---- */

    /* It is not found there from now on. *there_p: whether it was. */
    larder_status_t (*forget)(ldr_tier_t *t, uint32_t space, uint32_t entry,
                              const larder_item_t *item, uint64_t *token_p,
                              bool *there_p);
    /* Returns once all of them will stay removed. In the same hold of the lock,
     * which it drops to wait. token: the last one that forget() gave. Callers
     * give LDR_REMOVE_MAX at a time, so that others have their turn. */
    larder_status_t (*removed)(ldr_tier_t *t, uint32_t space,
                               const larder_item_t *items, size_t count,
                               uint64_t token, const ldr_stop_t *stop);
    /* Whether a reset could be recorded. */
    larder_status_t (*can_reset)(ldr_tier_t *t, uint32_t space);
    /* The node's epochs have changed: records them, until the deadline. Without
     * the lock. space: whose was raised by a reset here; LDR_NIL: it was raised
     * elsewhere. It may raise that space's epoch once more: *raised_p. */
    larder_status_t (*epochs)(ldr_tier_t *t, uint32_t space,
                              uint64_t deadline_ns, bool *raised_p);
    /* The same, later, and nobody waits. */
    void (*epochs_later)(ldr_tier_t *t);

    /* ---- tenants ---- */

    /* A space is used by somebody; without the lock. */
    larder_status_t (*space)(ldr_tier_t *t, uint32_t space,
                             const ldr_space_info_t *info);
    /* Whether a tenant can have this secret, as far as the tier knows. */
    larder_status_t (*meet)(ldr_tier_t *t, uint32_t tenant,
                            const ldr_secret_check_t *secret);
    /* The space's secret is its tenant's from now on. */
    void (*settle)(ldr_tier_t *t, uint32_t space);
    /* The operator has given the tenant another secret. */
    void (*given)(ldr_tier_t *t, uint32_t tenant);

    /* ---- what people see ---- */

    /* Whether it could be opened with these options, as far as can be seen
     * while another process has its directories. No tier is open. */
    larder_status_t (*check)(const ldr_options_t *o,
                             const ldr_predecessor_t *owner);
    /* Its part of larder_stats(). whole: false: only what it can hold. */
    void (*stats)(ldr_tier_t *t, bool whole, larder_stats_t *out);
    /* Adds what waits and what is under way. */
    void (*queues)(ldr_tier_t *t, ldr_queues_t *out);
    /* How long its reads and writes took. Needs no lock. */
    void (*times)(ldr_tier_t *t, ldr_histogram_t *reads,
                  ldr_histogram_t *writes);
    /* Writes its metrics; without the lock. */
    void (*metrics)(ldr_tier_t *t, ldr_exposition_t *e);
    /* Reads what it recorded of these shards, until it has to stop. Without
     * the lock. Only a tier that the index knows places in has it. */
    void (*records)(ldr_tier_t *t, ldr_looked_t *rows, uint32_t count,
                    const ldr_stop_t *stop);
} ldr_tier_ops_t;

/* A tier's own state begins with it. */
struct ldr_tier {
    const ldr_tier_ops_t *ops;
    ldr_host_t *host;
};

/* Its queue in the store. */
static inline unsigned ldr_tier_queue(const ldr_tier_ops_t *ops)
{
    return (unsigned)ops->number - 1;
}

/* All rows, ended by NULL: one for each number, at most LDR_QUEUES_MAX. */
extern const ldr_tier_ops_t *const ldr_tier_rows[];
