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
    bool own;        /* another node asks: only in this node's own tiers */
} ldr_sought_t;

/* Chunks that a tier has to ask somebody for before it can find them. What it
 * points to stays until it is over. */
typedef struct ldr_query ldr_query_t;
struct ldr_query {
    uint32_t space, shards;
    uint64_t until_ns; /* it is over then, whatever came */
    uint64_t match_ns; /* over by then, unless it waits for a promise */
    /* Called once when it is over, with the lock; NULL: somebody waits. It must
     * only note the fact and wake somebody. */
    void (*ready)(ldr_query_t *ask);
    void *arg;
    /* The tier's; rows are added by ldr_node_ask(). */
    struct ldr_query_row *rows;
    uint32_t count, capacity;
    uint32_t pending; /* who has not answered */
    uint32_t refs;
    char member[64]; /* who is asked besides; "": nobody */
    bool promised;   /* it is over when that member has what it promised */
    bool lease;      /* who has it keeps it until it was fetched */
    bool homes;      /* those that are said to have it are asked as well */
    bool over;
};

#define LDR_QUERY_MEMBERS 7u

typedef struct ldr_query_row {
    larder_key_t key;
    uint64_t fingerprint;
    uint16_t group;
    uint8_t asked, answered; /* members */
    uint8_t homes;           /* of those that were asked: should have it */
    uint16_t members[LDR_QUERY_MEMBERS]; /* that were asked */
} ldr_query_row_t;

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
    bool by_space; /* its queue takes spaces in turns */
    bool keeps;    /* a save of what it has is answered PRESENT */
    bool others;   /* it has what other nodes have: not for them to ask */

    /* ---- life; without the lock, except step ---- */

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
    /* The member that a load would fetch from what find() finds. NULL: nobody
     * is known. The text is good while the lock is held. */
    const char *(*holder)(ldr_tier_t *t, const ldr_sought_t *s);
    /* The caller will look for these chunks next: keys of one group of a
     * space. The tier may read what it knows about them ahead of that. */
    void (*prefetch)(ldr_tier_t *t, const ldr_name_t *first,
                     const larder_key_t *keys, size_t count, uint32_t shards);
    /* Whether the tier has to ask other nodes for this chunk before it knows.
     * In memory only. */
    bool (*must_ask)(ldr_tier_t *t, const ldr_query_t *ask,
                     const ldr_name_t *name);
    /* Asks for all rows at once. False: there is nobody to ask, it is over. */
    bool (*ask)(ldr_tier_t *t, ldr_query_t *ask);
    /* Reads a shard into its reserved pages. The read begins at submit(), and
     * ends with ldr_load_came() or ldr_load_failed(). */
    void (*fetch)(ldr_tier_t *t, uint32_t shard);
    /* Begins all reads that fetch() was called for; without the lock. */
    void (*submit)(ldr_tier_t *t);
    /* A load's deadline passed while it waited for this shard. */
    void (*timed_out)(ldr_tier_t *t, uint32_t shard);

    /* ---- what was saved ---- */

    /* Whether the tier would write what is saved in this space now. */
    bool (*accepts)(ldr_tier_t *t, uint32_t space);
    /* A shard became ready, by a save or from a tier that costs more: adds
     * it to the tier's queue, if the tier wants it. */
    void (*queue)(ldr_tier_t *t, uint32_t shard);
    /* Whether another node keeps the shard: then the disks here do not. */
    bool (*kept_elsewhere)(ldr_tier_t *t, uint32_t shard);
    /* A save or a load used a shard that is in DRAM already. */
    void (*used)(ldr_tier_t *t, uint32_t shard);
    /* Returns once all that was saved before the call is in the tier for
     * good. Without the lock. */
    larder_status_t (*flush)(ldr_tier_t *t, const ldr_stop_t *stop);

    /* ---- removing and resetting ---- */

    /* From now on find() does not find this item. *there_p: whether it did. */
    larder_status_t (*remove)(ldr_tier_t *t, uint32_t space, uint32_t entry,
                              const larder_item_t *item, uint64_t *token_p,
                              bool *there_p);
    /* Returns once the removal of these items is durable. The caller calls it
     * in the same hold of the lock as remove(); it drops the lock to wait.
     * token: the last one that remove() returned. Callers pass at most
     * LDR_REMOVE_MAX items, so that others have their turn. */
    larder_status_t (*remove_wait)(ldr_tier_t *t, uint32_t space,
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

    /* A client opened a space; without the lock. */
    larder_status_t (*use_space)(ldr_tier_t *t, uint32_t space,
                                 const ldr_space_info_t *info);
    /* Whether a tenant can have this secret, by what the tier recorded. */
    larder_status_t (*check_secret)(ldr_tier_t *t, uint32_t tenant,
                                    const ldr_secret_check_t *secret);
    /* From now on the secret of this space is its tenant's: records it. */
    void (*adopt_secret)(ldr_tier_t *t, uint32_t space);
    /* The operator gave the tenant another secret: records that one. */
    void (*replace_secret)(ldr_tier_t *t, uint32_t tenant);

    /* ---- what people see ---- */

    /* Whether it could be opened with these options, as far as can be seen
     * while another process has its directories. No tier is open. */
    larder_status_t (*check)(const ldr_options_t *o,
                             const ldr_predecessor_t *owner);
    /* Its part of larder_stats(). whole: false: only what it can hold. */
    void (*stats)(ldr_tier_t *t, bool whole, larder_stats_t *out);
    /* Adds what waits in the tier's queues, and what is under way. */
    void (*queue_lengths)(ldr_tier_t *t, ldr_queues_t *out);
    /* How long its reads and writes took. Needs no lock. */
    void (*times)(ldr_tier_t *t, ldr_histogram_t *reads,
                  ldr_histogram_t *writes);
    /* Writes its metrics; without the lock. */
    void (*metrics)(ldr_tier_t *t, ldr_exposition_t *e);
    /* Reads what it recorded of these shards, until it has to stop. Without
     * the lock. Only a tier that the index knows places in has it. */
    void (*read_records)(ldr_tier_t *t, ldr_looked_t *rows, uint32_t count,
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
