/*
 * The inside of a segment: its table, and the records that it names or that a
 * scan finds.
 */
#include <string.h>

#include "base/bytes.h"
#include "base/copy.h"
#include "store/fsck_int.h"

#define PIECE_BLOCKS ((uint32_t)(LDR_FSCK_PIECE_BYTES / LDR_BLOCK))

/* Where a footer says which use of the segment it closed:
 * docs/concepts/format.md. */
enum { FOOTER_SEQUENCE = 16, FOOTER_NONCE = 24 };

typedef enum table { TABLE_GOOD, TABLE_NONE, TABLE_BAD } table_t;

static bool all_zero(const uint8_t *p, size_t bytes)
{
    return p[0] == 0 && memcmp(p, p + 1, bytes - 1) == 0;
}

/* ---- records ---- */

/* Reads a record front to back: the plain checksum of its payload, and its
 * descriptor's block as a pointer into the last piece. */
static int record_read(ldr_fsck_t *f, const ldr_record_t *row, uint32_t *crc_p,
                       const uint8_t **descriptor_p)
{
    uint32_t left = row->length;
    uint32_t blocks = ldr_record_blocks(left);
    uint32_t at = row->block;

    *crc_p = 0;
    while (blocks > 0) {
        uint32_t take = (uint32_t)ldr_min64(blocks, PIECE_BLOCKS);
        uint32_t bytes = (uint32_t)ldr_min64(left, (uint64_t)take * LDR_BLOCK);
        int error = ldr_io_read_at(f->io, f->file, (uint64_t)at * LDR_BLOCK,
                                   f->check, (size_t)take * LDR_BLOCK);

        if (error != 0) {
            return error;
        }
        *crc_p = ldr_crc32c(*crc_p, f->check, bytes);
        *descriptor_p = f->check + (size_t)(take - 1) * LDR_BLOCK;
        left -= bytes;
        at += take;
        blocks -= take;
    }
    return 0;
}

/* Whether the record that a row names is there, whole. */
static bool record_check(ldr_fsck_t *f, const uint8_t *row,
                         const ldr_record_t *r)
{
    uint32_t last = r->block + ldr_record_blocks(r->length) - 1;
    const uint8_t *descriptor = NULL;
    uint8_t same[LDR_ROW_BYTES];
    ldr_record_t record;
    uint32_t crc;
    int error = record_read(f, r, &crc, &descriptor);

    if (error != 0) {
        ldr_fsck_found(f, LDR_FSCK_UNREADABLE, r->block, r, error);
        return false;
    }
    if (!ldr_record_parse(descriptor, &f->header, last, &record)) {
        ldr_fsck_found(f, LDR_FSCK_RECORD_BAD, last, r, 0);
        return false;
    }
    ldr_row_compose(&record, same);
    if (memcmp(row, same, LDR_ROW_BYTES) != 0) {
        ldr_fsck_found(f, LDR_FSCK_RECORD_BAD, last, r, 0);
        return false;
    }
    if (record.kind == LDR_RECORD_SHARD && crc != record.payload_crc) {
        ldr_fsck_found(f, LDR_FSCK_PAYLOAD_BAD, r->block, r, 0);
        return false;
    }
    return true;
}

static void count_good(ldr_fsck_t *f, const ldr_record_t *r)
{
    if (r->kind == LDR_RECORD_TOMBSTONE) {
        f->report->tombstones++;
        ldr_ledger_seen(&f->ledger, r, f->header.sequence);
    } else {
        f->report->records++;
        f->report->payload_bytes += r->length;
    }
}

/* The row of a tombstone is all there is to it: its descriptor comes back. */
static void tombstone_repair(ldr_fsck_t *f, const ldr_record_t *r)
{
    ldr_record_compose(r, &f->header, f->check);
    ldr_fsck_mend(f, r->block, f->check, LDR_BLOCK);
}

/* Whether the row stays. */
static bool row_check(ldr_fsck_t *f, const uint8_t *row, uint32_t block)
{
    ldr_record_t r;

    if (!ldr_row_parse(row, &f->header, &r)) {
        ldr_fsck_found(f, LDR_FSCK_ROW_BAD, block, NULL, 0);
        return false;
    }
    ldr_fsck_progress(f, r.block);
    if (record_check(f, row, &r)) {
        count_good(f, &r);
        return true;
    }
    if (r.kind == LDR_RECORD_TOMBSTONE) {
        ldr_ledger_seen(&f->ledger, &r, f->header.sequence);
        if (f->repair) {
            tombstone_repair(f, &r);
        }
    }
    return r.kind == LDR_RECORD_TOMBSTONE;
}

/* Checks what the table names. The good rows move to its front. True: some
 * were dropped. */
static bool rows_check(ldr_fsck_t *f, uint32_t rows)
{
    uint32_t first = f->segment_blocks - ldr_table_blocks(rows);

    for (uint32_t i = 0; i < rows; i++) {
        const uint8_t *row = f->table + (size_t)i * LDR_ROW_BYTES;

        if (row_check(f, row, first + i / (LDR_BLOCK / LDR_ROW_BYTES))) {
            memmove(f->table + (size_t)f->row_count * LDR_ROW_BYTES, row,
                    LDR_ROW_BYTES);
            f->row_count++;
        }
    }
    return f->row_count < rows;
}

/* ---- tables ---- */

/* Whether a footer that is not of this use closed an earlier one. */
static bool footer_is_older(const ldr_fsck_t *f, const uint8_t *block)
{
    ldr_segment_header_t older = f->header;
    ldr_footer_t footer;

    older.sequence = ldr_get64(block + FOOTER_SEQUENCE);
    older.nonce = ldr_get64(block + FOOTER_NONCE);
    return ldr_footer_parse(block, &older, &footer);
}

static table_t table_read(ldr_fsck_t *f, ldr_footer_t *footer)
{
    uint32_t last = f->segment_blocks - 1;
    int error = ldr_io_read_at(f->io, f->file, (uint64_t)last * LDR_BLOCK,
                               f->piece, LDR_BLOCK);

    if (error != 0) {
        ldr_fsck_found(f, LDR_FSCK_UNREADABLE, last, NULL, error);
        return TABLE_BAD;
    }
    if (!ldr_footer_parse(f->piece, &f->header, footer)) {
        bool none =
            !ldr_ledger_use_of(&f->ledger, f->segment).closed &&
            (all_zero(f->piece, LDR_BLOCK) || footer_is_older(f, f->piece));

        ldr_fsck_found(f, none ? LDR_FSCK_TABLE_NONE : LDR_FSCK_TABLE_BAD, last,
                       NULL, 0);
        return none ? TABLE_NONE : TABLE_BAD;
    }
    uint32_t blocks = ldr_table_blocks(footer->rows) - 1;
    uint32_t first = last - blocks;
    if (blocks > 0) {
        error = ldr_io_read_at(f->io, f->file, (uint64_t)first * LDR_BLOCK,
                               f->table, (size_t)blocks * LDR_BLOCK);
    }
    if (error != 0) {
        ldr_fsck_found(f, LDR_FSCK_UNREADABLE, first, NULL, error);
        return TABLE_BAD;
    }
    if (ldr_crc32c(0, f->table, (size_t)footer->rows * LDR_ROW_BYTES) !=
        footer->table_crc) {
        ldr_fsck_found(f, LDR_FSCK_TABLE_BAD, first, NULL, 0);
        return TABLE_BAD;
    }
    return TABLE_GOOD;
}

static void table_write(ldr_fsck_t *f)
{
    size_t rows_bytes = (size_t)f->row_count * LDR_ROW_BYTES;
    uint32_t blocks = ldr_table_blocks(f->row_count);
    size_t bytes = (size_t)blocks * LDR_BLOCK;
    ldr_footer_t footer = {
        .rows = f->row_count,
        .used_blocks = f->next_block,
        .table_crc = ldr_crc32c(0, f->table, rows_bytes),
    };

    memset(f->table + rows_bytes, 0, bytes - rows_bytes);
    ldr_footer_compose(&footer, &f->header, f->table + bytes - LDR_BLOCK);
    ldr_fsck_mend(f, f->segment_blocks - blocks, f->table, bytes);
}

/* ---- scanning a segment without a good table ---- */

/* A piece, or what of it can be read: the rest is zero. */
static void piece_read(ldr_fsck_t *f, uint32_t at, uint32_t count)
{
    int error = ldr_io_read_at(f->io, f->file, (uint64_t)at * LDR_BLOCK,
                               f->piece, (size_t)count * LDR_BLOCK);

    for (uint32_t i = 0; i < count && error != 0; i++) {
        uint8_t *block = f->piece + (size_t)i * LDR_BLOCK;
        int one = ldr_io_read_at(f->io, f->file, (uint64_t)(at + i) * LDR_BLOCK,
                                 block, LDR_BLOCK);

        if (one != 0) {
            memset(block, 0, LDR_BLOCK);
            ldr_fsck_found(f, LDR_FSCK_UNREADABLE, at + i, NULL, one);
        }
    }
}

static void scan_block(ldr_fsck_t *f, uint32_t block, const uint8_t *bytes,
                       ldr_fsck_kind_t torn)
{
    const uint8_t *descriptor;
    ldr_record_t r;
    uint32_t crc;

    if (!ldr_record_parse(bytes, &f->header, block, &r) ||
        r.block < f->next_block ||
        block >= f->segment_blocks - ldr_table_blocks(f->row_count + 1)) {
        return; /* no record, or a piece of payload inside one */
    }
    if (r.kind == LDR_RECORD_SHARD) {
        int error = record_read(f, &r, &crc, &descriptor);

        if (error != 0 || crc != r.payload_crc) {
            ldr_fsck_found(f, error != 0 ? LDR_FSCK_UNREADABLE : torn, r.block,
                           &r, error);
            return;
        }
    }
    ldr_row_compose(&r, f->table + (size_t)f->row_count * LDR_ROW_BYTES);
    f->row_count++;
    f->next_block = block + 1;
    count_good(f, &r);
}

static void scan(ldr_fsck_t *f, ldr_fsck_kind_t torn)
{
    for (uint32_t at = 1; at < f->segment_blocks; at += PIECE_BLOCKS) {
        uint32_t count =
            (uint32_t)ldr_min64(PIECE_BLOCKS, f->segment_blocks - at);

        piece_read(f, at, count);
        for (uint32_t i = 0; i < count; i++) {
            scan_block(f, at + i, f->piece + (size_t)i * LDR_BLOCK, torn);
        }
        ldr_fsck_progress(f, at + count);
    }
}

/* ---- segments ---- */

static void segment_clear(ldr_fsck_t *f)
{
    memset(f->piece, 0, LDR_BLOCK);
    ldr_fsck_mend(f, 0, f->piece, LDR_BLOCK);
}

static void used_check(ldr_fsck_t *f)
{
    const ldr_fsck_segment_t *s = &f->segments[f->segment];
    ldr_footer_t footer;
    bool rewrite = true;

    f->header = (ldr_segment_header_t){
        .segment = f->segment,
        .sequence = s->sequence,
        .nonce = s->nonce,
        .segment_bytes = f->super->segment_bytes,
    };
    memcpy(f->header.dir_id, f->super->dir_id, LDR_ID_BYTES);
    f->next_block = 1;
    switch (table_read(f, &footer)) {
    case TABLE_GOOD:
        f->next_block = footer.used_blocks;
        rewrite = rows_check(f, footer.rows);
        break;
    case TABLE_NONE:
        scan(f, LDR_FSCK_RECORD_TORN);
        break;
    case TABLE_BAD:
        scan(f, LDR_FSCK_PAYLOAD_BAD);
        break;
    }
    if (rewrite && f->repair) {
        table_write(f);
        ldr_ledger_found(&f->ledger, f->segment,
                         (ldr_use_t){s->sequence, s->nonce, !f->failed});
    }
}

void ldr_fsck_segment_check(ldr_fsck_t *f, uint32_t segment)
{
    ldr_fsck_segment_t *s = &f->segments[segment];

    f->segment = segment;
    f->row_count = 0;
    f->failed = s->state == LDR_FSCK_SEGMENT_LEFT;
    if (s->state == LDR_FSCK_SEGMENT_USED ||
        (s->state == LDR_FSCK_SEGMENT_CLEAR && f->repair)) {
        f->file = ldr_fsck_segment_open(f, segment);
        if (f->file < 0) {
            f->failed = true;
            ldr_fsck_found(f, LDR_FSCK_UNREADABLE, 0, NULL, f->file);
        } else if (s->state == LDR_FSCK_SEGMENT_USED) {
            used_check(f);
        } else {
            segment_clear(f);
        }
        if (f->file >= 0) {
            f->io->ops->close(f->io, f->file);
        }
    }
    f->report->segments++;
    f->report->segments_free +=
        s->state != LDR_FSCK_SEGMENT_USED || f->row_count == 0;
    if (f->repair && !f->failed) {
        f->report->repaired += s->damage;
    }
}
