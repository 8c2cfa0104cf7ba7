/*
 * The ledger of a directory: a second account, apart from the segments, of
 * which segments are in use and of what was removed.
 *
 * A segment that is lost, emptied, swapped with another or replaced by an older
 * copy of itself is found out by it, and the tombstones that were in that
 * segment are known from it: what was removed stays removed. If the ledger
 * itself is lost, the segments have all that it said, and it is rewritten.
 *
 * It is two files of one fixed size. One is added to, a block at a time, each
 * synced before the next; when it is full, what still matters is written to the
 * other one, whose header then has a higher generation.
 *
 * Invariants
 *  1. A segment is in the list before its first record is written, and out of
 *     it before its header is overwritten or its file deleted.
 *  2. A removal that was answered is in the ledger and in a segment as long as
 *     any segment is in the list that could hold what it removed: one whose
 *     sequence is not above that of its tombstone's first place.
 *  3. While one file is written from its start, the other one is whole.
 *
 * One thread at a time: the disk's.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/io.h"
#include "larder/larder.h"
#include "store/format.h"

/* Bytes of one of its files. */
#define LDR_LEDGER_BYTES_LEAST (8 * LDR_BLOCK)
#define LDR_LEDGER_BYTES_MIN (16 * LDR_BLOCK)
#define LDR_LEDGER_BYTES_MAX ((uint64_t)32 << 20)

/* Of a directory that may have so many bytes. */
uint64_t ldr_ledger_bytes(uint64_t dir_bytes);

typedef struct ldr_removal {
    ldr_ledger_entry_t entry; /* LDR_LEDGER_REMOVED */
    bool seen;                /* a segment has its tombstone */
} ldr_removal_t;

typedef struct ldr_use {
    uint64_t sequence; /* 0: not in use */
    uint64_t nonce;
    bool closed; /* its table was written */
} ldr_use_t;

/* In use, and not known which: its header cannot be read. All removals matter
 * as long as there is one. */
#define LDR_USE_UNKNOWN ((ldr_use_t){.sequence = 1})

typedef enum ldr_ledger_file {
    LDR_LEDGER_ABSENT,
    LDR_LEDGER_EMPTY, /* made, and never written */
    LDR_LEDGER_GOOD,
    LDR_LEDGER_BAD
} ldr_ledger_file_t;

typedef struct ldr_ledger {
    ldr_io_t *io;
    const char *path; /* of the directory: the caller's, and stays */
    ldr_rand_t *rand; /* the caller's */
    ldr_ledger_header_t header;
    int files[LDR_LEDGERS]; /* -1: not open */
    ldr_ledger_file_t states[LDR_LEDGERS];
    int active;        /* the one that is added to; -1: none */
    uint32_t want;     /* blocks that a file should have */
    uint32_t next;     /* block to add */
    uint32_t unsynced; /* blocks right before it that are not synced */
    uint32_t gap;      /* while it is read: the first block that is not good */
    bool readonly;
    bool stale;        /* what is on disk lacks something: rewrite it */
    bool trusted;      /* its list of segments is whole */
    uint64_t sequence; /* the highest that it knows of */
    uint64_t floor;    /* while a directory is opened: the lowest in use */

    ldr_use_t *uses;     /* by segment, reserved */
    uint32_t use_slots;  /* beyond, none is in use */
    uint32_t use_count;  /* in use */
    ldr_removal_t *rows; /* reserved */
    uint32_t row_count;
    uint32_t sorted;  /* of them, by place */
    uint32_t written; /* of them, that are on disk, synced or not */
    uint32_t lone_at; /* before it all were seen */
    uint8_t *piece;   /* for reading and writing */
} ldr_ledger_t;

typedef struct ldr_ledger_params {
    ldr_io_t *io;
    const char *path;
    ldr_rand_t *rand;
    const uint8_t *dir_id;
    bool readonly;
} ldr_ledger_params_t;

/* Reads what there is. Damage is no failure: LARDER_E_NO_MEMORY is the only
 * one. Writes nothing. */
larder_status_t ldr_ledger_open(ldr_ledger_t *l,
                                const ldr_ledger_params_t *params);
void ldr_ledger_close(ldr_ledger_t *l);
/* Bytes of a file, as it is; 0: there is none. */
uint64_t ldr_ledger_size(const ldr_ledger_t *l);
/* As it should be, from the next time on that all of it is written. */
void ldr_ledger_fit(ldr_ledger_t *l, uint64_t bytes);

/* ---- what it says of segments ---- */

typedef enum ldr_verdict {
    LDR_VERDICT_SAME,  /* in the list, in just this use */
    LDR_VERDICT_NEWER, /* the ledger is not whole, or ends before it */
    LDR_VERDICT_STALE  /* an earlier use, or one that is over */
} ldr_verdict_t;

/* Of a segment whose header has these. */
ldr_verdict_t ldr_ledger_judge(const ldr_ledger_t *l, uint32_t segment,
                               uint64_t sequence, uint64_t nonce);
/* The use that it has for the segment; sequence 0: none. */
ldr_use_t ldr_ledger_use_of(const ldr_ledger_t *l, uint32_t segment);
/* While a directory is opened: the list becomes what was found, before any
 * tombstone is seen. */
void ldr_ledger_found(ldr_ledger_t *l, uint32_t segment, ldr_use_t use);
void ldr_ledger_listed(ldr_ledger_t *l);

/* The segment in use with the lowest sequence, or LDR_NIL. */
uint32_t ldr_ledger_oldest(const ldr_ledger_t *l);

/* Each durable when it returns 0; a negative errno: it is not. */
int ldr_ledger_use(ldr_ledger_t *l, uint32_t segment, ldr_use_t use);
int ldr_ledger_free(ldr_ledger_t *l, uint32_t segment);
/* The segment has its table. Durable with the next of the others; until then
 * the segment passes for one that was being filled. */
void ldr_ledger_closed(ldr_ledger_t *l, uint32_t segment);

/* ---- what it says of removals ---- */

/* Whether there is no room for one more that matters. */
bool ldr_ledger_full(ldr_ledger_t *l);
/* The tombstone was given its place: to be written with the next sync. */
void ldr_ledger_removed(ldr_ledger_t *l, const ldr_record_t *tombstone,
                        uint64_t sequence);
/* Writes what was removed and syncs it, together with another file; -1: with
 * none. *file_error_p: of that one. Gives its own error. */
int ldr_ledger_sync(ldr_ledger_t *l, int file, int *file_error_p);

/* A tombstone was found in the segment with this sequence. */
void ldr_ledger_seen(ldr_ledger_t *l, const ldr_record_t *tombstone,
                     uint64_t sequence);
/* All segments were looked at. */
void ldr_ledger_settle(ldr_ledger_t *l);
/* The removal as a tombstone that was carried. */
ldr_record_t ldr_ledger_tombstone(const ldr_removal_t *removal);
/* A removal whose tombstone no segment has, as the tombstone to write again:
 * each one once. False: there is none, or no more. */
bool ldr_ledger_lone(ldr_ledger_t *l, ldr_record_t *tombstone);

/* Whether what is on disk says all that is known here. */
bool ldr_ledger_whole(const ldr_ledger_t *l);
/* Writes all of it to the other file: 0 or a negative errno. */
int ldr_ledger_write(ldr_ledger_t *l);
