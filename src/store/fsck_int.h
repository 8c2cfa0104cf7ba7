/* What the parts of fsck share: the directory (fsck.c), its ledger
 * (fsck_ledger.c), and the inside of a segment (fsck_segment.c). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/clock.h"
#include "store/fsck.h"
#include "store/index.h"
#include "store/ledger.h"

#define LDR_FSCK_PIECE_BYTES ((size_t)1 << 20) /* read at a time */

typedef enum ldr_fsck_state {
    LDR_FSCK_SEGMENT_NONE,
    LDR_FSCK_SEGMENT_FREE,
    LDR_FSCK_SEGMENT_LEFT,  /* cannot be read: left alone, as an open would */
    LDR_FSCK_SEGMENT_CLEAR, /* to be made free by repair */
    LDR_FSCK_SEGMENT_USED
} ldr_fsck_state_t;

typedef struct ldr_fsck_segment {
    uint64_t sequence, nonce;
    ldr_fsck_state_t state;
    uint32_t damage; /* found in it so far */
} ldr_fsck_segment_t;

typedef struct ldr_fsck {
    ldr_io_t *io;
    const char *path;
    bool repair;
    const ldr_fsck_ops_t *ops;
    ldr_fsck_report_t *report;
    int lock_file, super_file; /* -1: not open */

    ldr_super_t *super;    /* the better copy */
    uint8_t *super_bytes;  /* both */
    int super_best;        /* -1: neither is good */
    bool super_mend;       /* the other needs writing */
    bool super_long;       /* more is in the file than the two */
    uint64_t super_damage; /* found in them */

    ldr_ledger_t ledger;
    ldr_rand_t rand;        /* for it */
    uint64_t ledger_damage; /* that writing it mends */

    ldr_fsck_segment_t *segments; /* LDR_SEGMENTS_MAX, reserved */
    uint32_t segment_count;       /* beyond, all are NONE */
    uint32_t file_count;
    uint32_t strangers; /* files that are not ours */
    bool has_lock, has_super;
    uint32_t segment_blocks;
    uint64_t done_bytes; /* of whole segments */

    uint8_t *piece, *check; /* LDR_FSCK_PIECE_BYTES each */
    uint8_t *table;         /* rows, and room for a footer; reserved */
    size_t table_bytes;

    /* The segment that is being checked. */
    uint32_t segment;
    int file;
    ldr_segment_header_t header;
    uint32_t row_count;  /* good rows, at the start of table */
    uint32_t next_block; /* behind the last record */
    bool failed;         /* a repair of it failed */
} ldr_fsck_t;

/* Counts a finding in the present segment, and tells of it. */
void ldr_fsck_found(ldr_fsck_t *f, ldr_fsck_kind_t kind, uint32_t block,
                    const ldr_record_t *record, int error);

/* Tells how far it is: at this block of the present segment. */
void ldr_fsck_progress(ldr_fsck_t *f, uint32_t block);

/* Writes and syncs whole blocks; where it cannot, that is a finding. */
bool ldr_fsck_mend(ldr_fsck_t *f, uint32_t block, const void *bytes,
                   size_t size);

/* Opens the file of a segment: for reading, or also for repair. */
int ldr_fsck_segment_open(ldr_fsck_t *f, uint32_t segment);

/* Checks, and with repair mends, one segment whose header was seen. */
void ldr_fsck_segment_check(ldr_fsck_t *f, uint32_t segment);

/* Reads the ledger; then, with all headers seen, says what is not as it says;
 * then, with all segments seen, rewrites it if it has to be. */
larder_status_t ldr_fsck_ledger_open(ldr_fsck_t *f);
void ldr_fsck_ledger_check(ldr_fsck_t *f);
void ldr_fsck_ledger_repair(ldr_fsck_t *f);
