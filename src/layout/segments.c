/* Where a shard's bytes lie: its strips over block tables, as buffers. */
#include "base/log.h"
#include "layout/layout.h"

/* The block at a place of the table; NULL_BLOCK: the null block. MISS: the
 * table does not reach there. */
#define NULL_BLOCK UINT32_MAX

static larder_status_t block_at(const larder_layout_t *layout,
                                const larder_table_t *table, uint32_t place,
                                uint32_t *id_p)
{
    if (place < table->first || place - table->first >= table->count) {
        return LARDER_MISS;
    }
    uint32_t id = table->ids[place - table->first];

    *id_p = NULL_BLOCK;
    if (layout->has_null && id == layout->null_block) {
        return LARDER_OK;
    }
    if (id >= layout->block_count) {
        return ldr_fail(LARDER_E_INVALID, "block %u of %u, at place %u", id,
                        layout->block_count, place);
    }
    *id_p = id;
    return LARDER_OK;
}

/* The same for a load, which needs the place. */
static larder_status_t load_block(const larder_layout_t *layout,
                                  const larder_table_t *tables, uint32_t table,
                                  uint32_t place, uint32_t *id_p)
{
    larder_status_t st = block_at(layout, &tables[table], place, id_p);

    return st != LARDER_MISS
               ? st
               : ldr_fail(LARDER_E_INVALID, "table %u has no place %u", table,
                          place);
}

/* A shard's list while it is made: of segments, or of rows. */
typedef struct making {
    const larder_layout_t *layout;
    const larder_table_t *tables;
    ldr_shard_at_t at;
    ldr_span_t wanted;
    uint8_t *scratch; /* the rest of it; NULL: a save */
    ldr_segments_t *segments;
    ldr_page_list_t *rows;
} making_t;

/* The block at a place of a table. NULL_BLOCK: its rows go to scratch. */
static larder_status_t block_for(const making_t *m, bool load, uint32_t table,
                                 uint32_t place, uint32_t *id_p)
{
    larder_status_t st = LARDER_OK;

    *id_p = NULL_BLOCK;
    if (load) {
        bool want = place >= m->wanted.first && place < m->wanted.end;

        return want ? load_block(m->layout, m->tables, table, place, id_p)
                    : LARDER_OK;
    }
    st = block_at(m->layout, &m->tables[table], place, id_p);
    return st == LARDER_OK && *id_p == NULL_BLOCK ? LARDER_MISS : st;
}

larder_status_t ldr_layout_places(const larder_layout_t *layout,
                                  ldr_shard_at_t at,
                                  const larder_table_t *tables,
                                  ldr_span_t wanted, bool load)
{
    const ldr_layout_slice_t *slice = &layout->slice[at.slice];
    ldr_span_t blocks = ldr_layout_blocks(layout, at.group, at.chunk);
    making_t m = {
        .layout = layout, .tables = tables, .at = at, .wanted = wanted};
    larder_status_t st = load || slice->whole ? LARDER_OK : LARDER_MISS;

    for (uint32_t table = 0; table < layout->table_count; table++) {
        for (uint32_t place = blocks.first;
             place < blocks.end && st == LARDER_OK &&
             (slice->tables >> table & 1) != 0;
             place++) {
            uint32_t id;

            st = block_for(&m, load, table, place, &id);
        }
    }
    return st;
}

static void append_bytes(ldr_segments_t *out, uint8_t *base, uint64_t bytes)
{
    struct iovec *last = out->count > 0 ? &out->iov[out->count - 1] : NULL;

    if (last != NULL && (uint8_t *)last->iov_base + last->iov_len == base) {
        last->iov_len += bytes;
        return;
    }
    out->iov[out->count++] = (struct iovec){base, bytes};
}

static void append_segments(ldr_segments_t *out, const ldr_page_rows_t *rows)
{
    struct iovec *iov = &out->iov[out->count];
    uint8_t *row = rows->base;

    if (rows->count == 1) {
        append_bytes(out, row, rows->bytes);
        return;
    }
    for (uint32_t i = 0; i < rows->count; i++, row += rows->stride) {
        *iov++ = (struct iovec){row, rows->bytes};
    }
    out->count += rows->count;
}

static void append_run(ldr_page_list_t *out, const ldr_page_rows_t *rows)
{
    ldr_page_rows_t *last = out->count > 0 ? &out->rows[out->count - 1] : NULL;

    if (last != NULL && last->count == 1 && rows->count == 1 &&
        last->base + last->bytes == rows->base) {
        last->bytes = last->stride = last->bytes + rows->bytes;
        return;
    }
    if (last != NULL && last->count > 1 && last->bytes == rows->bytes &&
        last->stride == rows->stride &&
        last->base + last->count * last->stride == rows->base) {
        last->count += rows->count;
        return;
    }
    out->rows[out->count++] = *rows;
}

/* Rows first to end - 1 of the block at a place. */
static larder_status_t append_rows(making_t *m, const ldr_strip_t *strip,
                                   uint32_t place, uint32_t first, uint32_t end)
{
    uint64_t bytes = strip->bytes * (end - first);
    ldr_page_rows_t rows = {.bytes = bytes, .stride = bytes, .count = 1};
    bool load = m->scratch != NULL;
    uint32_t id = NULL_BLOCK;
    larder_status_t st = LARDER_OK;

    if (strip->base != NULL) {
        st = block_for(m, load, strip->table, place, &id);
    } else if (!load) {
        st = LARDER_MISS;
    }
    if (st != LARDER_OK) {
        return st;
    }
    if (id == NULL_BLOCK) {
        rows.base = m->scratch;
        m->scratch += bytes;
    } else {
        rows.base =
            strip->base + id * strip->block_stride + first * strip->row_stride;
        if (strip->row_stride != strip->bytes && end - first > 1) {
            rows.bytes = strip->bytes;
            rows.stride = strip->row_stride;
            rows.count = end - first;
        }
    }
    if (m->segments != NULL) {
        append_segments(m->segments, &rows);
    } else {
        append_run(m->rows, &rows);
    }
    return LARDER_OK;
}

static larder_status_t list(making_t *m)
{
    const larder_layout_t *layout = m->layout;
    const ldr_group_t *g = &layout->group[m->at.group];
    const ldr_layout_slice_t *slice = &layout->slice[m->at.slice];
    ldr_span_t blocks = ldr_layout_blocks(layout, m->at.group, m->at.chunk);
    larder_status_t st = LARDER_OK;

    for (uint32_t i = slice->strip; i < slice->strip_end; i++) {
        /* Of the first block, the rows before first_row are not stored. */
        uint32_t first = g->first_row % g->block_rows;

        for (uint32_t place = blocks.first;
             place < blocks.end && st == LARDER_OK; place++, first = 0) {
            st =
                append_rows(m, &layout->strips[i], place, first, g->block_rows);
        }
    }
    return st;
}

static larder_status_t no_room(uint32_t max, uint32_t need)
{
    return ldr_fail(LARDER_E_SIZE, "room for %u segments of %u", max, need);
}

larder_status_t ldr_layout_segments(const larder_layout_t *layout,
                                    ldr_shard_at_t at,
                                    const larder_table_t *tables,
                                    ldr_span_t wanted, uint8_t *scratch,
                                    ldr_segments_t *out)
{
    making_t m = {.layout = layout,
                  .tables = tables,
                  .at = at,
                  .wanted = wanted,
                  .scratch = scratch,
                  .segments = out};
    uint32_t need = layout->slice[at.slice].pieces;

    out->count = 0;
    return out->max < need ? no_room(out->max, need) : list(&m);
}

larder_status_t ldr_layout_rows(const larder_layout_t *layout,
                                ldr_shard_at_t at, const larder_table_t *tables,
                                ldr_span_t wanted, uint8_t *scratch,
                                ldr_page_list_t *out)
{
    making_t m = {.layout = layout,
                  .tables = tables,
                  .at = at,
                  .wanted = wanted,
                  .scratch = scratch,
                  .rows = out};
    uint32_t need = layout->slice[at.slice].runs;

    out->count = 0;
    return out->max < need ? no_room(out->max, need) : list(&m);
}
