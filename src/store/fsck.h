/*
 * Checking a directory offline, and mending it when told to.
 *
 * Everything is read: both copies of the superblock, the ledger, the header and
 * table of every segment, the descriptor and payload of every record. Nothing
 * is written without `repair`, and nothing at all to a directory that is
 * refused.
 *
 * What is found is either damage, or a note: what a crash leaves behind and
 * the next open puts right by itself.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/io.h"
#include "larder/larder.h"
#include "store/format.h"

/* X(name, word for scripts, damage or note, text, what repair does) */
#define LDR_FSCK_MAP(X)                                                        \
    X(SUPER_BAD, "super-bad", true, "copy of the superblock is damaged",       \
      "is written from the other")                                             \
    X(SUPER_OLD, "super-old", false,                                           \
      "copy of the superblock is older than the other",                        \
      "is written from the other")                                             \
    X(SUPER_LONG, "super-long", false,                                         \
      "the file of the superblock is longer than its two copies",              \
      "is cut to its length")                                                  \
    X(SUPER_UNMADE, "super-unmade", false,                                     \
      "the superblock was never finished", "is left to the next open")         \
    X(FILE_UNMADE, "file-unmade", false, "the file was never finished",        \
      "is left to the next open")                                              \
    X(FILE_SHORT, "file-short", true, "the file was cut off",                  \
      "the segment becomes free")                                              \
    X(HEADER_BAD, "header-bad", true,                                          \
      "the header is damaged or belongs elsewhere",                            \
      "the segment becomes free")                                              \
    X(TABLE_NONE, "table-none", false, "the segment was not closed",           \
      "the table is made")                                                     \
    X(TABLE_BAD, "table-bad", true, "the table is damaged or gone",            \
      "the table is made again from the records")                              \
    X(ROW_BAD, "row-bad", true, "a row of the table makes no sense",           \
      "the row is dropped")                                                    \
    X(RECORD_BAD, "record-bad", true, "the descriptor is damaged",             \
      "the row is dropped; that of a tombstone restores it")                   \
    X(PAYLOAD_BAD, "payload-bad", true,                                        \
      "the payload does not have its checksum", "the row is dropped")          \
    X(RECORD_TORN, "record-torn", false, "the record was half written",        \
      "is left out of the table")                                              \
    X(UNREADABLE, "unreadable", true, "cannot be read",                        \
      "a record is dropped, a header left alone")                              \
    X(UNREPAIRED, "unrepaired", true, "could not be repaired", "nothing")      \
    X(SEGMENT_LOST, "segment-lost", true,                                      \
      "a segment with shards ought to be here: the file is gone or empty",     \
      "is given up; what was removed stays removed")                           \
    X(SEGMENT_OLD, "segment-old", true,                                        \
      "the file is an older copy of the segment",                              \
      "the segment becomes free; what was removed stays removed")              \
    X(SEGMENT_OVER, "segment-over", false, "the segment was given up",         \
      "the segment becomes free")                                              \
    X(LEDGER_NONE, "ledger-none", false,                                       \
      "there is none: an earlier version wrote here",                          \
      "is left to the next open")                                              \
    X(LEDGER_OLD, "ledger-old", false,                                         \
      "it lacks segments: an earlier version wrote here since",                \
      "is rewritten from the segments")                                        \
    X(LEDGER_BAD, "ledger-bad", true, "it is damaged or gone",                 \
      "is rewritten from the segments")                                        \
    X(LEDGER_UNREPAIRED, "ledger-unrepaired", true, "could not be repaired",   \
      "nothing")

typedef enum ldr_fsck_kind {
#define X(name, word, damage, text, repair) LDR_FSCK_##name,
    LDR_FSCK_MAP(X)
#undef X
        LDR_FSCK_KINDS
} ldr_fsck_kind_t;

typedef struct ldr_fsck_kind_info {
    const char *word, *text, *repair;
    bool damage;
} ldr_fsck_kind_info_t;

extern const ldr_fsck_kind_info_t ldr_fsck_kinds[LDR_FSCK_KINDS];

/* Of the ledger, where a finding has no segment. */
static inline bool ldr_fsck_of_ledger(ldr_fsck_kind_t kind)
{
    return kind >= LDR_FSCK_LEDGER_NONE;
}

typedef struct ldr_fsck_finding {
    ldr_fsck_kind_t kind;
    uint32_t segment;           /* LDR_NIL: the superblock, or the ledger */
    uint32_t block;             /* of these: which copy, or which file */
    const ldr_record_t *record; /* where one is known, else NULL */
    int error;                  /* a negative errno, or 0 */
} ldr_fsck_finding_t;

/* Either may be NULL. */
typedef struct ldr_fsck_ops {
    void (*found)(void *arg, const ldr_fsck_finding_t *finding);
    void (*progress)(void *arg, uint64_t done_bytes, uint64_t total_bytes);
    void *arg;
} ldr_fsck_ops_t;

typedef struct ldr_fsck_report {
    uint64_t segments, segments_free;
    uint64_t segments_lost;       /* that ought to be there */
    uint64_t records, tombstones; /* good ones */
    uint64_t payload_bytes;       /* of the good records */
    uint64_t damage, notes;
    uint64_t repaired; /* of the damage */
} ldr_fsck_report_t;

/*
 * Takes the directory's lock and checks it. LARDER_OK: it was checked; the
 * report says with what result. Refused: LARDER_E_LOCKED, _VERSION, _INVALID
 * (no directory of Larder's), _CORRUPT (no copy of the superblock is good).
 */
larder_status_t ldr_fsck(ldr_io_t *io, const char *path, bool repair,
                         const ldr_fsck_ops_t *ops, ldr_fsck_report_t *report);

/* ---- what a directory is, at a glance ---- */

typedef struct ldr_fsck_look {
    bool lock, super;         /* there are such files */
    uint32_t segments;        /* segment files */
    uint32_t strangers;       /* files that are not Larder's */
    bool ours;                /* a superblock or a header proves it */
    uint32_t version_unknown; /* a format that is not known; 0: none is */
    uint64_t segment_bytes;   /* 0: no copy of the superblock is good */
    uint64_t ledger_bytes;    /* of all its files */
} ldr_fsck_look_t;

/* Reads names and superblock, without the lock, and writes nothing. Fails
 * with LARDER_E_INVALID where there is no directory, and LARDER_E_IO. */
larder_status_t ldr_fsck_look(ldr_io_t *io, const char *path,
                              ldr_fsck_look_t *look);
