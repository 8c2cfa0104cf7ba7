/*
 * The metadata of a node: index, arena, what is resident, spaces and tenants,
 * and the queue of what is still to be written down. Pure bookkeeping: no I/O,
 * no copies, no threads. The node's lock is held around every call, which is
 * checked in debug builds wherever something changes.
 *
 * A chunk with shards in DRAM has an ldr_chunk_t (its number is its slot in
 * the policy) and an ldr_shard_t for each of them.
 *
 * Invariants
 *  1. A chunk is attached (its entry's resident is the chunk) or detached (no
 *     entry leads to it any more, nobody finds it; it is freed when its last
 *     hold ends).
 *  2. An attached chunk is in the policy; it is a candidate for eviction
 *     exactly while nobody holds it and it is neither pinned nor transient.
 *     Transient chunks are evicted before all others once they are written
 *     down or cannot be, and after all others until then; pinned ones, oldest
 *     first, when there is no other. No chunk is both.
 *  3. Pages of a shard change only while it is filling or reading, and are
 *     given back only when nobody holds its chunk. So whoever holds a chunk
 *     may walk its shards' pages without the lock.
 *  4. Only ready shards are found. A shard becomes ready once, and never
 *     changes after.
 *  5. A shard is in a tier's queue exactly while it is marked so: ready and
 *     attached (behind.h).
 *  6. An entry without location has a resident chunk: an entry stands for
 *     bytes somewhere.
 *  7. Every page of a chunk lies in an extent of its space's tenant, and no
 *     other tenant's need for room evicts it, unless that extent is leaving.
 *  8. Where entries have locations is counted, by space and tenant: all
 *     changes of them go through ldr_store_set_loc() and what calls it.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/options.h"
#include "base/thread.h"
#include "larder/larder.h"
#include "store/arena.h"
#include "store/format.h"
#include "store/index.h"
#include "store/policy.h"
#include "store/behind.h"

typedef enum ldr_shard_state {
    LDR_SHARD_FREE,
    LDR_SHARD_FILLING, /* a save copies into it */
    LDR_SHARD_READING, /* it is being read from disk */
    LDR_SHARD_READY
} ldr_shard_state_t;

typedef struct ldr_load ldr_load_t; /* a load that waits; see node/load.h */

typedef struct ldr_shard {
    uint32_t chunk;
    uint32_t next; /* of the same chunk; or of the free list */
    uint32_t page; /* first of its list */
    uint32_t length;
    uint32_t crc;
    uint8_t number; /* which shard of the chunk */
    uint8_t state;
    uint8_t checked;       /* the bytes in DRAM have matched crc */
    uint8_t queued;        /* bits: the queues it is in */
    uint8_t turns;         /* bits: its turn in each (behind.h) */
    uint8_t tier;          /* while reading or filling: from which */
    uint8_t given : 1;     /* another member has it, or was told of it */
    uint8_t announced : 1; /* its owners were told that it is kept here */
    uint8_t kept : 1;      /* the member that brought it keeps it as well */
    uint8_t admitted : 1;  /* ldr_store_admit() let it in */
    uint8_t withheld : 1;  /* from disks here: its owner's is to keep it */
    uint8_t refused;       /* not to be written down, until it is used again */
    union {
        ldr_queued_t links[LDR_QUEUES_MAX]; /* while ready */
        struct {                            /* while reading */
            uint32_t fetch_next; /* the next that waits for that tier */
            uint64_t fetch_seq;  /* the order of those that wait */
        };
    };
    ldr_load_t *waiters; /* while reading */
} ldr_shard_t;

_Static_assert(sizeof(ldr_shard_t) == 72, "part of the memory promise");

typedef struct ldr_chunk {
    larder_key_t key;
    larder_key_t parent;
    uint32_t entry;  /* LDR_NIL: detached */
    uint32_t shards; /* first; or next of the free list */
    uint32_t holds;
    uint32_t written_s; /* of the save */
    uint32_t expires_s;
    uint32_t epoch;
    uint32_t depth;
    uint16_t space;
    uint8_t group;
    uint8_t pinned : 1;
    uint8_t leaving : 1; /* in an extent that leaves: goes with its last hold */
    uint8_t transient : 1;       /* it goes first once it is written down */
    uint32_t bytes;              /* of its shards, for the pin budget */
    uint32_t pin_prev, pin_next; /* of the pinned, or of the transient ones */
    uint32_t cold_ds; /* when it was fetched, while it is cold; 0: it is not */
} ldr_chunk_t;

/* Counters of events; every field is shown by name in the metrics. */
#define LDR_COUNTER_MAP(X)                                                     \
    X(saves_stored, "saves that were stored")                                  \
    X(saves_present, "saves answered present")                                 \
    X(saves_mismatch, "saves that verify_put found different")                 \
    X(saves_full, "saves refused: everything leased")                          \
    X(saves_declined, "saves not kept: what is in dram is worth more")         \
    X(passed_chunks, "chunks passed on to ssd: what is in dram is worth more") \
    X(saves_canceled, "saves that were canceled or late")                      \
    X(saves_failed, "saves refused for their arguments")                       \
    X(saves_stale, "saves overtaken by a reset")                               \
    X(saves_paused, "saves not taken: the node is paused")                     \
    X(saves_dropped_size, "shards larger than a segment")                      \
    X(saves_dropped_io, "shards lost by a failed write")                       \
    X(refused_first, "shards not written down: used once so far")              \
    X(refused_budget, "shards not written down: the day's budget is spent")    \
    X(offers_written, "shards written to the shared tier")                     \
    X(offers_present, "shards that the shared tier had already")               \
    X(offers_failed, "shards that a failed write did not bring there")         \
    X(evicted_chunks, "chunks evicted from dram")                              \
    X(evicted_bytes, "bytes evicted from dram")                                \
    X(reclaimed_chunks, "shards dropped from ssd to make room")                \
    X(saved_bytes, "bytes saved")                                              \
    X(loaded_bytes, "bytes loaded")                                            \
    X(asked_chunks, "chunks that engines asked for, once each")                \
    X(found_chunks, "chunks of those that were found")                         \
    X(matched_chunks, "chunks that matches found, however often")              \
    X(handoffs, "promises of hand-offs, for each chain and tail")              \
    X(handoff_kept, "promised chunks that came, or were there")                \
    X(handoff_failed, "promised chunks that did not come")                     \
    X(handoff_unheld, "promised chunks not held: a quarter of dram is")        \
    X(handoffs_expired, "hand-off leases that nobody renewed")                 \
    X(handoffs_late, "renewals of leases that had ended, or never were")       \
    X(removes, "shards removed")                                               \
    X(resets, "spaces reset")

typedef struct ldr_counters {
#define X(name, text) uint64_t name;
    LDR_COUNTER_MAP(X)
#undef X
    uint64_t misses[LARDER_CAUSE_COUNT];
    /* Loads, and their bytes, by the tier that they had to come from. */
    uint64_t loads[LARDER_TIERS_MAX], loaded_from[LARDER_TIERS_MAX];
    /* Shards evicted before their tier was given them, by its queue. */
    uint64_t queue_evicted[LDR_QUEUES_MAX];
} ldr_counters_t;

/* What a tenant's secret is known by. Neither the secret nor its key for the
 * shared tier follows from it. */
typedef struct ldr_secret_check {
    uint8_t check[LDR_ID_BYTES]; /* as clients send it */
    uint8_t key[LDR_ID_BYTES];   /* of the key that they send with it */
    bool has_key;                /* the second is known */
    bool none;                   /* given: that the tenant has no secret */
} ldr_secret_check_t;

typedef struct ldr_space {
    uint8_t id[LDR_ID_BYTES];
    uint32_t epoch;
    /* That of the last reset, if a disk was not open yet: all that the disk
     * holds is from before it, whatever its number. 0: they all were. */
    uint32_t above;
    uint32_t tenant; /* LDR_NIL: only seen on disk so far, and nobody's */
    /* Under which it was opened. It is the tenant's only once something was
     * done under it: ldr_secret_settle(). */
    ldr_secret_check_t secret;
    bool opened;
    bool counted; /* its tenant was known from the first location on */
    uint64_t dram_pages;
    /* Of entries of this epoch: */
    uint64_t chunks;
    uint64_t ssd_bytes; /* locations on all disks, and on each */
    uint64_t disk_bytes[LDR_DISKS_MAX];
    uint32_t asked_s; /* when something of it was last asked for; the node's */
    char label[LARDER_LABEL_MAX + 1]; /* for people; the last one given */
    ldr_counters_t n;
} ldr_space_t;

/* A space's id begins with these bytes of its tenant's, so that what is found
 * on disk is known to be that tenant's before it shows up. */
#define LDR_TENANT_TAG_BYTES 4u

typedef struct ldr_tenant {
    uint8_t id[LDR_ID_BYTES];
    char name[64];             /* "": only seen on disk so far */
    ldr_secret_check_t secret; /* once secret_known */
    bool secret_known;
    bool secret_given;    /* by the operator: nothing else counts */
    bool secret_recorded; /* disks and the shared tier were told of it */
    bool refused_logged;  /* that a client with another one came */
    uint32_t space_count;
    uint64_t dram_max, ssd_max; /* 0: no limit of its own */

    ldr_policy_t *policy;                    /* over its chunks */
    uint32_t pin_head, pin_tail;             /* pinned chunks, oldest first */
    uint32_t transient_head, transient_tail; /* likewise */
    uint32_t transient_pages;                /* of the transient ones */
    uint64_t pinned_bytes;
    uint32_t held_chunks;
    /* Slots of chunks among which a reset may have left some of the tenant's
     * that are void, and were not looked at since. */
    uint32_t void_next, void_end;
    bool asks;         /* it has asked for memory, and so has a share */
    uint32_t share;    /* extents that others cannot ask it for */
    uint64_t asked_ns; /* when it last asked another for one; the node's */
    /* Of hand-offs: chunks promised, and pages held for them; the node's. */
    uint32_t promised_slots, promised_pages;

    uint64_t ssd_bytes; /* of its counted spaces: on all disks, and on each */
    uint64_t disk_bytes[LDR_DISKS_MAX];
    uint64_t ssd_share;   /* 0: it is alone */
    uint32_t ssd_safe;    /* bits: disks on which what it has is kept */
    uint32_t *ssd_blocks; /* found in each segment, by ldr_store_segment() */
} ldr_tenant_t;

#define LDR_REMOVED_MAX 4096u

/* Chunks whose place has changed: a shard of them became ready, left DRAM, or
 * has another location, or none. For a reader that looks at them again and then
 * sets count to 0. missed: there was no room for some, or a space was reset:
 * any chunk may have changed. */
#define LDR_CHANGES_MAX 16384u

typedef struct ldr_changes {
    uint32_t count;
    bool missed;
    uint64_t prints[LDR_CHANGES_MAX]; /* fingerprints, with repeats */
} ldr_changes_t;

typedef struct ldr_store {
    pthread_mutex_t *lock; /* the node's; NULL: the store is nobody else's */
    ldr_index_t index;
    ldr_arena_t arena;
    const ldr_policy_ops_t *policy;
    ldr_chunk_t *chunks;
    ldr_shard_t *shards;
    uint32_t chunk_free, shard_free; /* lists */
    uint32_t chunk_top, shard_top;   /* beyond: never used */
    uint32_t held_chunks;
    uint32_t *ghosts; /* marks of what was evicted: slot -> tag */
    ldr_space_t *spaces;
    uint32_t space_count;
    /* Those whose epochs are all known: every reset from then on is above
     * them. And how many have told of some, and not yet of all. */
    uint8_t disk_ids[LDR_DISKS_MAX][LDR_ID_BYTES];
    uint32_t disk_count, disks_coming;
    uint32_t disks_absent; /* that were not opened yet */
    ldr_tenant_t *tenants;
    uint32_t tenant_count;
    uint32_t others;   /* bits: tiers that have what other nodes saved */
    uint32_t now_ds;   /* the node's clock, in tenths of a second */
    bool shares_stale; /* who asks, or a limit, has changed */
    uint32_t disks;    /* that locations may lead to */
    uint64_t pin_max;
    ldr_behind_t queues[LDR_QUEUES_MAX];
    /* The last shards that were removed: a ring. */
    struct {
        uint64_t print;
        uint32_t at_ds;
    } removed[LDR_REMOVED_MAX];
    uint64_t removed_count;
    ldr_changes_t *changes; /* the reader's; NULL: nobody reads them */
    bool queue_left;        /* one left a queue: who waits for it may look */
    ldr_counters_t n;       /* of all spaces, and of none */
} ldr_store_t;

/* Counts an event of a space; LDR_NIL: of none. */
#define LDR_COUNT(store, space_number, field, by)                              \
    do {                                                                       \
        uint32_t ldr_count_space = (space_number);                             \
                                                                               \
        (store)->n.field += (by);                                              \
        if (ldr_count_space != LDR_NIL) {                                      \
            (store)->spaces[ldr_count_space].n.field += (by);                  \
        }                                                                      \
    } while (0)

typedef struct ldr_store_params {
    uint64_t dram_bytes;
    bool dram_backed;
    uint32_t entry_max;
    uint64_t seed;
    uint64_t pin_max;
    const ldr_policy_ops_t *policy;
    uint64_t numa_nodes; /* for ldr_arena_init() */
    uint32_t disks;
} ldr_store_params_t;

/* Whoever changes the store holds the lock. */
static inline void ldr_store_held(const ldr_store_t *s)
{
    if (LDR_DEBUG && s->lock != NULL) {
        LDR_HELD(s->lock);
    }
}

/* The place of a chunk has changed. */
static inline void ldr_store_changed(ldr_store_t *s, uint64_t fingerprint)
{
    ldr_changes_t *c = s->changes;

    if (c == NULL) {
        return;
    }
    if (c->count < LDR_CHANGES_MAX) {
        c->prints[c->count++] = fingerprint;
    } else {
        c->missed = true;
    }
}

larder_status_t ldr_store_init(ldr_store_t *s,
                               const ldr_store_params_t *params);
void ldr_store_destroy(ldr_store_t *s);

/* ---- spaces and tenants (tenant.c) ---- */

/* The number of the space with this id, added if it is new: as the tenant's
 * whose tag it bears. LDR_NIL: too many. */
uint32_t ldr_store_space(ldr_store_t *s, const uint8_t id[LDR_ID_BYTES]);
/* If all disks were opened, no reset has to be above what one still holds. */
void ldr_store_met(ldr_store_t *s);
/* All that this disk has of epochs is the store's. */
void ldr_store_disk(ldr_store_t *s, const uint8_t id[LDR_ID_BYTES]);
/* The same for tenants; LDR_NIL: too many, or no memory. A new one costs some
 * address space. */
uint32_t ldr_store_tenant(ldr_store_t *s, const uint8_t id[LDR_ID_BYTES]);

/* The space is this tenant's, from now on. */
void ldr_store_space_of(ldr_store_t *s, uint32_t space, uint32_t tenant);
void ldr_store_limits(ldr_store_t *s, uint32_t tenant, uint64_t dram_max,
                      uint64_t ssd_max);

/*
 * Epochs of nodes that are members of a cluster: a number, and in the lower
 * bits a random id, so that two resets at once on two members are not taken for
 * one. Nodes that stand alone count on by one, which is a number as well.
 */
#define LDR_EPOCH_ID_BITS 14u
#define LDR_EPOCH_ID_MASK ((1u << LDR_EPOCH_ID_BITS) - 1)

/* The epoch of the next reset. */
static inline uint32_t ldr_epoch_next(uint32_t epoch, uint64_t random)
{
    return ((epoch >> LDR_EPOCH_ID_BITS) + 1) << LDR_EPOCH_ID_BITS |
           (uint32_t)(random & LDR_EPOCH_ID_MASK);
}

/* Raises the epoch: everything put before is stale. */
void ldr_store_set_epoch(ldr_store_t *s, uint32_t space, uint32_t epoch);

/* ---- shares of memory (tenant.c) ----
 *
 * A tenant's share is its limit, or an equal part of what the limits of others
 * leave, in whole extents, among those that have asked for memory. It may have
 * more while nobody needs it. Whoever is below its share and finds no free
 * extent asks the tenant that is most over its own for one. */

/* The tenant's share, in extents. From now on the tenant counts among those
 * that have asked for memory. */
uint32_t ldr_store_share(ldr_store_t *s, uint32_t tenant);

/* Asks for an extent on the tenant's behalf. Gives the one that is leaving now,
 * for ldr_store_vacate(), or LDR_NIL: it has its share, with what is on its
 * way, or nobody is over his. */
uint32_t ldr_store_demand(ldr_store_t *s, uint32_t tenant);

/* Evicts the chunks of an extent that is leaving, looking at so many pages at
 * most; those that are held go with their last hold. True: call it again. */
bool ldr_store_vacate(ldr_store_t *s, uint32_t extent, uint32_t pages);

/* ---- shares of the disks (tenant.c) ---- */

/* Works out whose records are kept when a disk is full: tenants within their
 * shares of what can be kept on all disks; if that is more than this one can
 * keep, as many of them as it can, beginning with those that use least of
 * their shares there: so that nobody loses who has no more than its share of
 * each disk. False: there is only one tenant, or none. */
bool ldr_store_protect(ldr_store_t *s, uint32_t disk, uint64_t disk_bytes,
                       uint64_t all_bytes);

/* Where ssd_blocks counts a segment. */
static inline size_t ldr_store_segment(uint32_t disk, uint32_t segment)
{
    return (size_t)disk * (LDR_SEGMENTS_MAX + 1) + segment;
}

/* The only way to change a location. */
void ldr_store_set_loc(ldr_store_t *s, uint32_t entry, uint32_t number,
                       ldr_loc_t loc);

/* ---- finding (find.c) ---- */

/* A chunk's name, with its fingerprint worked out once. */
typedef struct ldr_name {
    const larder_key_t *key;
    uint64_t fingerprint;
    uint32_t space;
    uint32_t group;
} ldr_name_t;

static inline ldr_name_t ldr_store_name(const ldr_store_t *s, uint32_t space,
                                        uint32_t group, const larder_key_t *key)
{
    return (ldr_name_t){
        .key = key,
        .fingerprint = ldr_index_fingerprint(&s->index, space, group, key),
        .space = space,
        .group = group,
    };
}

/*
 * The one lookup: the entry, valid now (epoch, TTL, full key where it is
 * resident), or LDR_NIL and why. Stale entries are forgotten on the way.
 * after: see ldr_index_find().
 */
uint32_t ldr_store_find(ldr_store_t *s, const ldr_name_t *name, uint32_t after,
                        uint32_t now_s, larder_cause_t *cause_p);

/* These will be looked for next, in this hold of the lock: reads ahead what a
 * lookup of them touches, all of them at once. chunks[i]: the chunk in DRAM
 * that it will find, probably; LDR_NIL: none. */
void ldr_store_prefetch(const ldr_store_t *s, const ldr_name_t *names,
                        uint32_t count, uint32_t *chunks);

/* The shard in DRAM in whatever state, or LDR_NIL. */
uint32_t ldr_store_resident(const ldr_store_t *s, uint32_t entry,
                            uint32_t number);
/* The same of so many, from number `first` on; entry LDR_NIL: none is. */
void ldr_store_residents(const ldr_store_t *s, uint32_t entry, uint32_t first,
                         uint32_t count, uint32_t *shards);

/* Adds the entry of a chunk that has none, next to its parent's if that is
 * known. The caller sets when and for how long, and where its bytes are.
 * LDR_NIL: the index is full. */
uint32_t ldr_store_enter(ldr_store_t *s, const ldr_name_t *name,
                         const larder_key_t *parent, uint32_t depth,
                         uint32_t shards);

/* Drops the entry and detaches its chunk. Its shards on disk are not found
 * any more; the caller decides whether that needs a tombstone. */
void ldr_store_forget(ldr_store_t *s, uint32_t entry);

/* Forgets one location, and the entry if nothing is left of it; evicted: to
 * make room, so that later misses say so. */
void ldr_store_drop_loc(ldr_store_t *s, uint32_t entry, uint32_t number,
                        bool evicted);

/* ---- DRAM ---- */

/* A chunk ends with the first of its shards to expire. 0: never. */
static inline uint32_t ldr_store_earlier(uint32_t a_s, uint32_t b_s)
{
    return a_s == 0 || (b_s != 0 && b_s < a_s) ? b_s : a_s;
}

typedef struct ldr_reserve {
    ldr_name_t name;
    const larder_key_t *parent; /* NULL: none */
    uint32_t depth;
    uint32_t shards; /* of the space */
    uint32_t number;
    uint32_t length;
    uint32_t now_s;
    uint32_t expires_s;
    bool pin;
    bool wanted;             /* somebody waits for it: it is not declined */
    ldr_shard_state_t state; /* FILLING or READING */
    const uint32_t *pages;   /* those that were handed over; NULL: any */
} ldr_reserve_t;

/*
 * Makes a shard with room for length bytes, in the given state, evicting what
 * must go of the same tenant, and holds its chunk. entry: that of the chunk, or
 * LDR_NIL: it is added. LARDER_E_FULL: not even by evicting all of the tenant's
 * that nobody holds. LARDER_DECLINED: what would have to go is worth more; it
 * passes on to a tier below instead, if that takes writes and keeps up with
 * them. LARDER_E_SPACE: the space is nobody's.
 */
larder_status_t ldr_store_reserve(ldr_store_t *s, uint32_t entry,
                                  const ldr_reserve_t *r, uint32_t *shard_p);

/* A shard being read turns out to be this long: no longer than reserved. */
void ldr_store_set_length(ldr_store_t *s, uint32_t shard, uint32_t length);

/* Bytes from another node under way to this one arrive within this time, or
 * not at all. */
#define LDR_ARRIVAL_DS 600u

/* A shard was removed here: what is under way to this node is not to bring it
 * back. */
void ldr_store_removed(ldr_store_t *s, uint64_t fingerprint, uint32_t number);

/*
 * The one question that is asked before bytes become visible, whichever way
 * they came into the node: a save, a peer's save, a fetch from a peer, from the
 * shared tier or from a disk, a takeover. All of them end in
 * ldr_store_commit(), which asks it and sets `admitted`. A ready shard without
 * it is a broken invariant: loads and queues assert it, and so does the walk
 * over all tables. epoch: that they were saved in. saved_ds: not before this
 * time, by the node's clock; 0: not known, since another node saved them;
 * UINT32_MAX: a removal takes the shard itself away, so it need not be asked.
 */
bool ldr_store_admit(ldr_store_t *s, uint32_t shard, uint32_t epoch,
                     uint32_t saved_ds);

/* A filled or read shard becomes visible. False: its space was reset or its
 * chunk removed meanwhile; the caller ends it with ldr_store_abort(). */
bool ldr_store_commit(ldr_store_t *s, uint32_t shard, uint32_t crc,
                      bool checked);

/* Undoes a reservation: shard, pages, the hold, and what became empty. */
void ldr_store_abort(ldr_store_t *s, uint32_t shard);

/* Of DRAM that a chunk takes: small shards have a page each. */
uint32_t ldr_store_pages(const ldr_store_t *s, uint32_t chunk);

void ldr_store_hold(ldr_store_t *s, uint32_t chunk);
void ldr_store_release(ldr_store_t *s, uint32_t chunk);

/* Whoever holds the chunk reads it. */
void ldr_store_used(ldr_store_t *s, uint32_t chunk);

/* A use in this time after a fetch is of the request that it was fetched for:
 * engines stage first, and load then. */
#define LDR_COLD_DS 50u

/* The chunk goes before all others once it is written down, or need not be,
 * until it is used. fetched: not by its first use. A pinned one is left as it
 * is. */
void ldr_store_cool(ldr_store_t *s, uint32_t chunk, bool fetched);

/* Pins a chunk that was saved without, within the tenant's budget. One that is
 * held or transient is left as it is. */
void ldr_store_pin(ldr_store_t *s, uint32_t chunk);

/* Somebody is about to use a chain, or, over, its session has ended: for the
 * tenant's policy. Its slots are not needed. */
void ldr_store_request(ldr_store_t *s, uint32_t space,
                       const ldr_policy_request_t *request, bool over);

/* What stands for a chunk of all groups in such a request. */
static inline uint64_t ldr_store_print(const ldr_store_t *s, uint32_t space,
                                       const larder_key_t *key)
{
    return ldr_index_fingerprint(&s->index, space, LARDER_GROUPS_MAX, key);
}

/* Takes one chunk of the tenant's nobody holds out of DRAM. False: there is
 * none. */
bool ldr_store_evict(ldr_store_t *s, uint32_t tenant);
/* Takes this one out. It may be held: then nobody finds it any more. */
void ldr_store_evict_chunk(ldr_store_t *s, uint32_t chunk);

/* Takes the chunk out of DRAM because its bytes are not right; a location on
 * disk stays. */
void ldr_store_discard(ldr_store_t *s, uint32_t chunk);

/* What a tier below is told of a ready, attached shard; where it will lie there
 * is that tier's to fill in. */
ldr_record_t ldr_store_record(const ldr_store_t *s, uint32_t shard);

/* ---- marks of the evicted (ghosts.c) ---- */

/* Power of two: how many evictions are remembered to tell a miss's cause. */
#define LDR_GHOSTS ((uint32_t)1 << 20)

void ldr_store_ghost_mark(ldr_store_t *s, uint64_t fingerprint);
bool ldr_store_ghost_find(const ldr_store_t *s, uint64_t fingerprint);
