/*
 * One disk of the SSD tier as the node uses it: write-behind, reclaim, and
 * going off and on. Each has a thread that does everything here; in a manual
 * node ldr_ssd_step() is called instead.
 *
 * Write-behind takes dirty shards in the order they were saved, lays a batch
 * of them out in the segment being filled, and writes it with one request.
 * Several batches are in flight; a shard's location is entered in the index
 * when its batch has landed. The queue of dirty shards is bounded by the arena
 * itself, and what the policy evicts first is what it drops first.
 *
 * Invariants, with the node's lock
 *  1. Shards in a batch are held.
 *  2. Nothing is written to a filling that failed; when the last of its
 *     writes is back, its segment is lost: every location in it is dropped.
 *  3. At most two segments are being filled: `current` takes batches, the
 *     other has its last writes in flight and is then closed.
 *  4. A location in the index leads to a segment that is OPEN or CLOSED.
 *  5. sync_done covers a removal when both its tombstone and the ledger's word
 *     of it are synced.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "store/admit.h"
#include "store/disk.h"
#include "tier/host.h"

#define LDR_SSD_QUEUE 0u /* of the store: of all disks together */
#define LDR_BATCHES 8u
#define LDR_BATCH_RECORDS 64u
#define LDR_BATCH_IOV 1024u
#define LDR_BATCH_BYTES ((uint64_t)8 << 20)
#define LDR_TOMBS LDR_REMOVE_MAX
#define LDR_CARRY_RECORDS 32u /* that reclaim has in hand at a time */
/* In flight for one disk at a time, except loads: batches, what its thread
 * waits for, of which reclaim's records are the most, and its superblock. */
#define LDR_SSD_REQUESTS (LDR_BATCHES + LDR_CARRY_RECORDS + 1)
/* Without an answer while it is opened: the node goes on without it. Longer
 * than a sync takes where others write much. */
#define LDR_OPEN_NS 10000000000u

typedef struct ldr_ssd ldr_ssd_t;
typedef struct ldr_ssds ldr_ssds_t;
typedef struct ldr_read ldr_read_t;

typedef struct ldr_batch_record {
    uint32_t shard; /* LDR_NIL: a tombstone */
    ldr_loc_t loc;
} ldr_batch_record_t;

/* A batch on its way to the disk. */
typedef struct ldr_flight {
    ldr_io_req_t req;
    ldr_ssd_t *ssd;
    struct iovec iov[LDR_BATCH_IOV];
    uint8_t *blocks; /* descriptors, LDR_BATCH_RECORDS of them */
    ldr_batch_record_t records[LDR_BATCH_RECORDS];
    uint32_t count;
    uint32_t bytes;
    uint32_t filling; /* which */
    bool flying, landed;
    uint64_t begin_ns;
} ldr_flight_t;

struct ldr_ssd {
    ldr_host_t *host;
    ldr_ssds_t *tier;
    ldr_disk_t disk;
    ldr_disk_params_t params;
    bool opened; /* disk is open and recovered */
    /* All that this directory has was met: its epochs are not above the node's.
     * It may be another one at the next try. */
    bool met;
    uint8_t met_id[LDR_ID_BYTES];
    bool on;      /* it takes and gives shards */
    bool opening; /* it is being opened, and `disk` is its thread's */
    bool tried;   /* it was opened once, or could not be: */
    bool late;    /* after the node had given up waiting */
    larder_status_t tried_status;
    char tried_text[512];
    uint64_t answered_ns; /* while opening: when the disk did last */
    bool super_stale;     /* its superblock lacks a reset or a tenant */
    bool super_busy;      /* it is being written: space.c */
    bool super_missed;    /* somebody could not wait to write it */
    unsigned super_step;
    int super_error;                   /* of the last one */
    uint64_t super_begun, super_ended; /* ordinals */
    ldr_io_req_t super_req;
    char reason[128]; /* why it is off, or smaller than configured */
    unsigned write_failures, read_failures; /* in a row */
    uint64_t retry_ns;                      /* when to try again what failed */
    uint32_t files;       /* segment files there are, for the statistics */
    uint32_t files_limit; /* after ENOSPC: use no more files than this */

    ldr_flight_t *batches;
    uint32_t current; /* the filling that takes batches */
    uint32_t ready;   /* a prepared segment, or LDR_NIL */

    ldr_record_t *tombs; /* a ring of tombstones to be written */
    uint32_t tomb_head, tomb_count;
    bool crowded; /* they wait for the ledger to have room */

    uint64_t sync_wanted, sync_done, sync_failed; /* ordinals of requests */
    uint64_t unsynced_ns; /* since when something is not synced; 0: nothing */

    uint32_t reclaims;        /* turns while several tenants are here */
    bool reclaim_stuck;       /* the last one was: take the oldest segment */
    uint8_t *carry;           /* records on their way to another segment */
    struct ldr_carried *rows; /* which these are: reclaim.c */

    ldr_budget_t budget; /* of bytes that may be written a day */

    uint64_t segments_lost, written_bytes, carried_bytes, read_bytes;
    uint64_t write_errors, read_errors;
    ldr_histogram_t read_times, write_times; /* need no lock */

    pthread_t thread;
    pthread_cond_t work;
    bool thread_started, idle, go, stop, ended;

    uint32_t read_head, read_tail; /* shards that wait for a slot */
    uint32_t reads_flying;
    uint64_t silent_ns; /* since when no read came back, while some fly */
};

/* A slot for one read from disk. */
struct ldr_read {
    ldr_io_req_t req;
    ldr_ssds_t *tier;
    uint32_t shard;
    ldr_loc_t loc;
    uint64_t begin_ns;
    bool flying;                 /* its slot is taken */
    ldr_segment_header_t header; /* of the segment it reads from */
    struct iovec *iov;           /* LDR_READ_IOV of them */
    uint8_t *block;              /* where the descriptor arrives */
    ldr_read_t *next;
};

/* The tier: all disks together. */
struct ldr_ssds {
    union {
        ldr_tier_t base;
        struct ldr_tier;
    };
    bool io_owned; /* host->io is this tier's, to be ended with it */
    ldr_ssd_t *disks;
    unsigned count;
    ldr_admit_t admit;       /* what may be written down */
    uint64_t drops_reported; /* how many a flush has answered for */

    ldr_read_t *reads; /* slots for reads, of all disks */
    ldr_read_t *read_free;
    size_t read_count;
    uint64_t read_seq; /* last given: they get slots in this order */
    uint32_t reads_waiting, reads_flying;
};

extern const ldr_tier_ops_t ldr_tier_ssd;

/* The node's, or NULL if it has no disks. */
static inline ldr_ssds_t *ldr_ssds_of(const ldr_host_t *host)
{
    return (ldr_ssds_t *)host->tiers[LDR_SSD_QUEUE];
}

/* The disk that a location leads to, or NULL if it is off. With the lock. */
ldr_ssd_t *ldr_ssds_disk(const ldr_ssds_t *t, ldr_loc_t loc);
/* Lets the disks know that there is something to write. With the lock. */
void ldr_ssds_wake(ldr_ssds_t *t);

/* Opens the directory and fills the index from it: its thread does, which is
 * started here. A failing or full disk is no error: the tier starts off. Nor is
 * one that does not answer for LDR_OPEN_NS: its thread goes on with it, and
 * turns it on when it does. LARDER_E_DENIED: it is no directory that this
 * process can use, and no disk's fault. */
larder_status_t ldr_ssd_open(ldr_ssd_t *ssd, ldr_ssds_t *tier, unsigned number);
/* Tries again to open what could not be opened. Without the lock. */
larder_status_t ldr_ssd_reopen(ldr_ssd_t *ssd);
/* Whether a disk takes shards. With the lock. */
bool ldr_ssds_on(const ldr_ssds_t *t);
/* The node is open: the thread may begin to work. */
void ldr_ssd_go(ldr_ssd_t *ssd);
/* Whether it is being opened, and gives no answer. With the lock. */
bool ldr_ssd_hangs(const ldr_ssd_t *ssd);
/* Tells the thread to end; then waits for it. False: it hangs in its disk, and
 * all that it can touch must stay. */
void ldr_ssd_end(ldr_ssd_t *ssd);
bool ldr_ssd_stop(ldr_ssd_t *ssd, uint64_t deadline_ns);
/* After stop: waits for the writes in flight and books them. False: the disk
 * does not answer. */
bool ldr_ssd_drain(ldr_ssd_t *ssd, uint64_t deadline_ns);
/* The same, with the lock. */
bool ldr_ssd_land(ldr_ssd_t *ssd, uint64_t deadline_ns);
/* After both. */
void ldr_ssd_close(ldr_ssd_t *ssd);

/* Whether the disk has a budget for this dirty shard. If not the shard is
 * refused, unless another disk has one: then that is woken. With the lock. */
bool ldr_ssd_may_write(ldr_ssd_t *ssd, uint32_t shard);

/* Does one thing, with the lock held, which it may drop. */
bool ldr_ssd_step(ldr_ssd_t *ssd);
/* Wakes the thread if it sleeps. With the lock. */
void ldr_ssd_wake(ldr_ssd_t *ssd);

/* Asks for all that was queued to be written and synced; gives the ordinal
 * that sync_done will reach. With the lock. */
uint64_t ldr_ssd_want_sync(ldr_ssd_t *ssd);

/* A load could not wait any longer: if no read has come back for long the disk
 * hangs, and goes off. With the lock. */
void ldr_ssd_waited(ldr_ssd_t *ssd);

/* Turns the disk off, with the lock held: nobody waits for its reads then. */
void ldr_ssd_off(ldr_ssd_t *ssd, const char *what, int error);
/* A failed read or write, counted in one of the two: three in a row turn the
 * disk off. With the lock. */
void ldr_ssd_failed(ldr_ssd_t *ssd, unsigned *failures, const char *what,
                    int error);

/* A segment with nothing in it could not be made ready. The second time in a
 * row its file is deleted, and there is one less until the disk is opened or
 * comes back: it would be the next one again, and so turn the disk off for
 * ever. With the lock, which it may drop. */
void ldr_ssd_unready(ldr_ssd_t *ssd, uint32_t segment, int error);

/* Drops every location in a segment that was being filled: its write or sync
 * failed. With the lock, and no write of it in flight. */
void ldr_ssd_lose(ldr_ssd_t *ssd, ldr_filling_t *f);

/* Whether the ledger has no word yet of this tombstone: not so of one that is
 * written again, with the place where it stood first (tombs.c). */
bool ldr_tomb_is_new(const ldr_record_t *record);
/* Whether the ledger takes the next one; else the disk is crowded. With the
 * lock, by the disk's thread, as the next. */
bool ldr_tombs_have_word(ldr_ssd_t *ssd);
/* Queues those of which the ledger alone knows, since their segment was lost.
 */
void ldr_tombs_restore(ldr_ssd_t *ssd);

/* Memory for what reclaim has in hand at a time. */
bool ldr_reclaim_create(ldr_ssd_t *ssd);
void ldr_reclaim_destroy(ldr_ssd_t *ssd);

/* Makes the oldest segment ready to be filled again (reclaim.c). With the
 * lock, which it drops. False: none could be. */
bool ldr_ssd_reclaim(ldr_ssd_t *ssd);
/* Gives up the oldest segment, so that the ledger need not know any longer what
 * was removed from it. The same otherwise. */
bool ldr_ssd_relieve(ldr_ssd_t *ssd);

/* Whether several tenants have something on the disks, and works out whose is
 * safe on this one. With the lock. */
bool ldr_ssd_shared(ldr_ssd_t *ssd);

/* Enters a record found on disk into the index. Takes the lock. */
bool ldr_ssd_apply(void *ssd, uint32_t segment, const ldr_record_t *record);

/* What the superblock has of a tenant, or NULL. With the lock. */
ldr_super_tenant_t *ldr_super_tenant(const ldr_ssd_t *ssd, const uint8_t *id);
/* The tenant of a row of its superblock becomes the node's, and what it
 * recorded of its secret counts if nothing else is known; else, if another one
 * was given, that is said. With the lock. */
void ldr_ssd_learn(const ldr_ssd_t *ssd, const ldr_super_tenant_t *row);
/* Writes the superblock if the node knows of epochs or tenants that it lacks,
 * or always. E_DEADLINE: it will be, when the disk answers. Without the lock.
 */
larder_status_t ldr_ssd_super_update(ldr_ssd_t *ssd, bool always,
                                     uint64_t deadline_ns);

/* ---- reading (ssd_read.c) ---- */

/* The slots, made at open and freed at close. */
larder_status_t ldr_reads_create(ldr_ssds_t *t);
void ldr_reads_destroy(ldr_ssds_t *t);
/* The disk went off, and what it was asked for may never come back: all that
 * wait for it miss, reads without a slot are given up, and what the others read
 * is not found any more, so that it can be had elsewhere or saved again. With
 * the lock. */
void ldr_reads_off(ldr_ssds_t *t, ldr_ssd_t *ssd);
/* Waits until no read is in flight; nobody may begin one meanwhile, and those
 * that have no slot yet are not read any more. False: a disk does not answer.
 */
bool ldr_reads_drain(ldr_ssds_t *t, uint64_t deadline_ns);

/* ---- parts of the row: see tier.h ---- */

void ldr_ssd_fetch(ldr_tier_t *tier, uint32_t shard);
void ldr_ssd_submit_reads(ldr_tier_t *tier);
void ldr_ssd_timed_out(ldr_tier_t *tier, uint32_t shard);
void ldr_ssd_queue(ldr_tier_t *tier, uint32_t shard);
void ldr_ssd_used(ldr_tier_t *tier, uint32_t shard);
/* A disk that cannot write its superblock goes off. */
larder_status_t ldr_ssd_epochs(ldr_tier_t *tier, uint32_t space,
                               uint64_t deadline_ns, bool *raised_p);
larder_status_t ldr_ssd_can_reset(ldr_tier_t *tier, uint32_t space);
larder_status_t ldr_ssd_check(const ldr_options_t *o,
                              const ldr_predecessor_t *owner);
void ldr_ssd_stats(ldr_tier_t *tier, bool whole, larder_stats_t *out);
void ldr_ssd_queue_lengths(ldr_tier_t *tier, ldr_queues_t *out);
void ldr_ssd_times(ldr_tier_t *tier, ldr_histogram_t *reads,
                   ldr_histogram_t *writes);
void ldr_ssd_metrics(ldr_tier_t *tier, ldr_exposition_t *e);
void ldr_ssd_records(ldr_tier_t *tier, ldr_looked_t *rows, uint32_t count,
                     const ldr_stop_t *stop);
/* That io_uring is asked for and cannot be used. */
larder_status_t ldr_ssd_no_uring(larder_status_t st, int error);
