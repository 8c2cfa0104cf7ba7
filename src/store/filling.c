/*
 * Filling a segment: places for records, and the table that closes it.
 *
 * By the disk's thread. Records are added in the order of their blocks, so that
 * rows[0..row_count) are sorted by place and next_block is behind the last.
 * ldr_filling_finish() needs no lock and changes nothing that others look at;
 * ldr_filling_finished() needs the node's lock where others read the segment.
 */
#include <string.h>

#include "base/copy.h"
#include "store/disk.h"

bool ldr_filling_fits(const ldr_disk_t *d, const ldr_filling_t *f,
                      uint32_t blocks)
{
    return (uint64_t)f->next_block + blocks +
               ldr_table_blocks(f->row_count + 1) <=
           d->segment_blocks;
}

void ldr_filling_start(ldr_disk_t *d, ldr_filling_t *f, uint32_t segment)
{
    d->segments[segment].state = LDR_SEGMENT_OPEN;
    f->segment = segment;
    f->next_block = 1;
    f->row_count = 0;
    f->flying = 0;
    f->failed = false;
}

void ldr_filling_add(ldr_filling_t *f, ldr_record_t *record)
{
    record->block = f->next_block;
    f->next_block += record->kind == LDR_RECORD_TOMBSTONE
                         ? 1
                         : ldr_record_blocks(record->length);
    ldr_row_compose(record, f->rows + (size_t)f->row_count * LDR_ROW_BYTES);
    f->row_count++;
}

int ldr_filling_finish(ldr_disk_t *d, ldr_filling_t *f)
{
    const ldr_segment_t *s = &d->segments[f->segment];
    ldr_segment_header_t header = ldr_disk_header(d, f->segment);
    size_t rows_bytes = (size_t)f->row_count * LDR_ROW_BYTES;
    uint32_t blocks = ldr_table_blocks(f->row_count);
    uint8_t *footer_block = f->rows + (size_t)(blocks - 1) * LDR_BLOCK;
    ldr_footer_t footer = {
        .rows = f->row_count,
        .used_blocks = f->next_block,
        .table_crc = ldr_crc32c(0, f->rows, rows_bytes),
    };

    memset(f->rows + rows_bytes, 0,
           (size_t)blocks * LDR_BLOCK - LDR_BLOCK - rows_bytes);
    ldr_footer_compose(&footer, &header, footer_block);
    /* The records are durable before the table that vouches for them. */
    int error = ldr_io_sync(d->io, s->file);
    if (error == 0) {
        error = ldr_io_write_at(
            d->io, s->file, (uint64_t)(d->segment_blocks - blocks) * LDR_BLOCK,
            f->rows, (size_t)blocks * LDR_BLOCK);
    }
    if (error == 0) {
        error = ldr_io_sync(d->io, s->file);
    }
    if (error == 0) {
        ldr_ledger_closed(&d->ledger, f->segment);
    }
    return error;
}

void ldr_filling_finished(ldr_disk_t *d, ldr_filling_t *f, int error)
{
    ldr_segment_t *s = &d->segments[f->segment];

    s->used_blocks = f->next_block;
    s->state = error == 0 ? LDR_SEGMENT_CLOSED : LDR_SEGMENT_LOST;
    f->segment = LDR_NIL;
}

int ldr_filling_close(ldr_disk_t *d, ldr_filling_t *f)
{
    int error = ldr_filling_finish(d, f);

    ldr_filling_finished(d, f, error);
    return error;
}
