/*
 * One directory of the SSD tier: its lock, superblock and segment files.
 *
 * All I/O here blocks and is done without the node's lock, by the one thread
 * that has the disk; only the superblock is also written by others, who keep
 * out of each other's way themselves.
 *
 * The life of a segment:
 *
 *          create              prepare            first batch
 *   NONE ---------> FREE ----------------> READY -------------> OPEN
 *                    ^   header, synced                          |
 *                    |                               table,      |
 *                    | reclaim: its records are      synced      v
 *                    | carried or dropped          ,---------- CLOSED
 *                    `-----------------------------'
 *   OPEN -> LOST when a write or sync failed: nothing in it is found any more,
 *   and it is reclaimed when it is the oldest.
 *
 * Invariants
 *  1. A segment's sequence is higher than that of every use of any segment
 *     before it, and the header is durable before the first record is written.
 *  2. Nothing is written twice in one use of a segment.
 *  3. Files never exceed segment_max in number, nor segment_bytes in size.
 *  4. The ledger has every segment that may hold a record: store/ledger.h.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/io.h"
#include "base/log.h"
#include "base/options.h"
#include "larder/larder.h"
#include "store/format.h"
#include "store/index.h"
#include "store/ledger.h"

typedef enum ldr_segment_state {
    LDR_SEGMENT_NONE,
    LDR_SEGMENT_FREE,
    LDR_SEGMENT_READY,
    LDR_SEGMENT_OPEN,
    LDR_SEGMENT_CLOSED,
    LDR_SEGMENT_LOST
} ldr_segment_state_t;

typedef struct ldr_segment {
    uint64_t sequence;
    uint64_t nonce;
    int file;
    uint32_t readers; /* reads in flight: it must not be reused */
    uint32_t used_blocks;
    uint8_t state;
    uint8_t failures; /* in a row, to prepare it */
    bool blind; /* its table could not be read: reclaimed when the oldest */
    bool stale; /* while opening: its header is not to be found again, */
    bool older; /* being that of a use which is over */
} ldr_segment_t;

/* The table of a segment that is being filled. */
typedef struct ldr_filling {
    uint32_t segment; /* LDR_NIL: none */
    uint32_t next_block;
    uint32_t row_count;
    uint32_t flying; /* writes in flight */
    bool failed;
    uint8_t *rows; /* room for the table and its footer */
} ldr_filling_t;

typedef struct ldr_disk_params {
    ldr_io_t *io;
    const ldr_log_t *log;
    uint32_t number; /* in the node */
    const char *path;
    uint64_t bytes;         /* to use at most */
    uint64_t segment_bytes; /* 0: choose */
    uint32_t files_max;     /* make no more than this; 0: as bytes allow */
    uint32_t open_max;      /* recover no more than this; 0: what there is */
    uint64_t seed;
    /* Called as the disk answers while it is opened and recovered. False:
     * recovering it is to end, with LARDER_E_CANCELED. May be NULL. */
    bool (*answered)(void *arg);
    void *arg;
    /* For ldr_disk_check(), of a lock that somebody has: whether `owner` may be
     * the one, who is going to give it up. NULL: nobody is. */
    bool (*owns)(int64_t owner, const char *lock_path);
    int64_t owner;
} ldr_disk_params_t;

typedef struct ldr_disk {
    ldr_io_t *io;
    const ldr_log_t *log;
    ldr_rand_t rand;
    char path[LDR_PATH_MAX];
    uint32_t number;
    uint64_t bytes_max;
    uint32_t files_max, open_max;
    uint64_t segment_bytes;
    uint32_t segment_blocks;
    int lock_file, super_file; /* -1: not open */
    bool (*answered)(void *arg);
    void *arg;

    ldr_super_t *super;
    uint8_t *super_bytes;
    struct iovec super_iov;
    ldr_ledger_t ledger;
    int super_first;   /* the copy to write first: the worse one */
    bool super_uneven; /* the copies differed when they were read */

    ldr_segment_t *segments;
    uint32_t segment_slots; /* in the array: files that were ever found fit */
    uint32_t segment_max;   /* files allowed by bytes_max */
    uint32_t segment_count; /* slots in use: beyond, all are NONE */
    uint32_t file_count;    /* files there are */
    uint64_t sequence;      /* last given */
    uint64_t unseen; /* highest sequence whose tombstones were not seen */

    ldr_filling_t filling[2]; /* the one being filled, the one being closed */
    uint8_t *table;           /* the last table that was read, */
    uint32_t table_segment;   /* of this segment */
    uint32_t table_rows;
    uint8_t *block; /* one block, for headers */
} ldr_disk_t;

/*
 * Locks the directory, making it if it is missing, and reads its superblock.
 * Touches nothing of a directory that it refuses: LARDER_E_LOCKED, _VERSION,
 * _CORRUPT, _INVALID, _DENIED (it cannot be made or written, and that is no
 * failure of the disk). LARDER_E_IO: the disk fails or is full.
 */
larder_status_t ldr_disk_open(ldr_disk_t *d, const ldr_disk_params_t *params);
void ldr_disk_close(ldr_disk_t *d);
/* Whether it would refuse the directory once its owner has given it up; nothing
 * but the directory itself is made. LARDER_OK for a disk that fails. */
larder_status_t ldr_disk_check(const ldr_disk_params_t *params);

static inline bool ldr_disk_answered(const ldr_disk_t *d)
{
    return d->answered == NULL || d->answered(d->arg);
}

/* The size of segments for a tier of this size. */
uint64_t ldr_disk_segment_bytes(uint64_t tier_bytes);

/* Both copies of the superblock, one after the other, each synced, the worse
 * one first. One caller at a time. */
larder_status_t ldr_disk_super_write(ldr_disk_t *d);

/* Makes the file as long as two copies are, where it was cut off or grew. */
larder_status_t ldr_disk_super_mend(ldr_disk_t *d);

/*
 * The same for who does not wait for the disk: begin composes the bytes, which
 * are the disk's from then on; then the requests of the steps, each once the
 * one before has succeeded. After the first that fails: failed.
 */
#define LDR_SUPER_STEPS 4u
void ldr_disk_super_begin(ldr_disk_t *d);
/* Fills the request in, except done and arg. */
void ldr_disk_super_step(ldr_disk_t *d, unsigned step, ldr_io_req_t *req);
larder_status_t ldr_disk_super_failed(ldr_disk_t *d, unsigned step, int error);

/* A row of a table; false ends the walk. */
typedef bool (*ldr_row_fn)(void *arg, uint32_t segment,
                           const ldr_record_t *record);

typedef struct ldr_recovery {
    uint64_t segments, records, tombstones;
    uint64_t scanned;  /* segments without a valid table */
    uint64_t lost;     /* segments that ought to be there, and are not */
    uint64_t rejected; /* records whose payload did not match */
} ldr_recovery_t;

/*
 * Finds the segments, and calls fn with every record, in the order in which
 * they were written; then with the tombstones that only the ledger has, as
 * carried ones of no segment (LDR_NIL). Segments without a valid table are
 * scanned, their payloads checked, and, if repair is set, closed with a new
 * table. More files than may be opened: LARDER_E_IO, and none of them was.
 */
larder_status_t ldr_disk_recover(ldr_disk_t *d, bool repair, ldr_row_fn fn,
                                 void *arg, ldr_recovery_t *found);

/* Reads the table of a closed segment, for ldr_disk_rows() to walk over, once
 * or more. LARDER_E_CORRUPT: it is not valid. */
larder_status_t ldr_disk_rows_load(ldr_disk_t *d, uint32_t segment);
void ldr_disk_rows(ldr_disk_t *d, ldr_row_fn fn, void *arg);

/* The header of a segment in use, as it is on disk. */
ldr_segment_header_t ldr_disk_header(const ldr_disk_t *d, uint32_t segment);

/* Adds a file: its number, FREE. Gives 0 or a negative errno. */
int ldr_disk_segment_create(ldr_disk_t *d, uint32_t *segment_p);
/* FREE -> READY; LOST if the header could not be written. Counts failures. */
int ldr_disk_segment_prepare(ldr_disk_t *d, uint32_t segment);
/* Nothing that is in a FREE segment is found again, whoever looks. 0 or a
 * negative errno. */
int ldr_disk_segment_clear(ldr_disk_t *d, uint32_t segment);
/* Deletes the file of a FREE segment: NONE; LOST if that failed, since what is
 * in it may be found again. 0 or a negative errno. */
int ldr_disk_segment_delete(ldr_disk_t *d, uint32_t segment);

/* Whether a record of so many blocks fits, its row counted in. */
bool ldr_filling_fits(const ldr_disk_t *d, const ldr_filling_t *f,
                      uint32_t blocks);
/* Starts filling a READY segment. */
void ldr_filling_start(ldr_disk_t *d, ldr_filling_t *f, uint32_t segment);
/* Gives the record its place and its row; the caller writes it there. */
void ldr_filling_add(ldr_filling_t *f, ldr_record_t *record);
/* Writes table and footer and syncs: OPEN -> CLOSED. 0 or a negative errno, and
 * it is LOST. */
int ldr_filling_close(ldr_disk_t *d, ldr_filling_t *f);
/* The same in two parts, where others read the segment: the first needs no lock
 * and changes nothing that they look at, the second is for who has it. */
int ldr_filling_finish(ldr_disk_t *d, ldr_filling_t *f);
void ldr_filling_finished(ldr_disk_t *d, ldr_filling_t *f, int error);
