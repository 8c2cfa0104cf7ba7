/* Where a shard's bytes lie: its strips over a block table, as buffers. */
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
static larder_status_t load_block(const larder_layout_t *layout, uint32_t group,
                                  const larder_table_t *table, uint32_t place,
                                  uint32_t *id_p)
{
    larder_status_t st = block_at(layout, table, place, id_p);

    return st != LARDER_MISS ? st
                             : ldr_fail(LARDER_E_INVALID,
                                        "the table of group %u has no place %u",
                                        group, place);
}

larder_status_t ldr_layout_places(const larder_layout_t *layout, uint32_t group,
                                  uint32_t chunk, const larder_table_t *table,
                                  ldr_span_t wanted)
{
    ldr_span_t blocks = ldr_layout_blocks(layout, group, chunk);
    larder_status_t st = LARDER_OK;

    for (uint32_t place = blocks.first; place < blocks.end && st == LARDER_OK;
         place++) {
        uint32_t id;

        if (place >= wanted.first && place < wanted.end) {
            st = load_block(layout, group, table, place, &id);
        }
    }
    return st;
}

static void append(ldr_segments_t *out, uint8_t *base, uint64_t bytes)
{
    struct iovec *last = out->count > 0 ? &out->iov[out->count - 1] : NULL;

    if (last != NULL && (uint8_t *)last->iov_base + last->iov_len == base) {
        last->iov_len += bytes;
        return;
    }
    out->iov[out->count++] = (struct iovec){base, bytes};
}

/* A shard's list while it is made. */
typedef struct making {
    const larder_layout_t *layout;
    const larder_table_t *table;
    ldr_shard_at_t at;
    ldr_span_t wanted;
    uint8_t *scratch; /* the rest of it; NULL: a save */
    ldr_segments_t *out;
} making_t;

/* Rows first to end - 1 of the block at a place. */
static larder_status_t append_rows(making_t *m, const ldr_strip_t *strip,
                                   uint32_t place, uint32_t first, uint32_t end)
{
    bool want = place >= m->wanted.first && place < m->wanted.end;
    uint64_t bytes = strip->bytes * (end - first);
    larder_status_t st = LARDER_OK;
    uint32_t id = NULL_BLOCK;

    if (m->scratch == NULL) {
        st = block_at(m->layout, m->table, place, &id);
        if (st == LARDER_OK && (id == NULL_BLOCK || strip->base == NULL)) {
            st = LARDER_MISS;
        }
    } else if (want) {
        st = load_block(m->layout, m->at.group, m->table, place, &id);
    }
    if (st != LARDER_OK) {
        return st;
    }
    if (id == NULL_BLOCK || strip->base == NULL) {
        append(m->out, m->scratch, bytes);
        m->scratch += bytes;
        return LARDER_OK;
    }
    uint8_t *row =
        strip->base + id * strip->block_stride + first * strip->row_stride;
    if (strip->row_stride == strip->bytes || end - first == 1) {
        append(m->out, row, bytes);
        return LARDER_OK;
    }
    struct iovec *iov = &m->out->iov[m->out->count];
    for (uint32_t i = first; i < end; i++, row += strip->row_stride) {
        *iov++ = (struct iovec){row, strip->bytes};
    }
    m->out->count += end - first;
    return LARDER_OK;
}

larder_status_t ldr_layout_segments(const larder_layout_t *layout,
                                    ldr_shard_at_t at,
                                    const larder_table_t *table,
                                    ldr_span_t wanted, uint8_t *scratch,
                                    ldr_segments_t *out)
{
    const ldr_group_t *g = &layout->group[at.group];
    const ldr_layout_slice_t *slice = &layout->slice[at.slice];
    ldr_span_t blocks = ldr_layout_blocks(layout, at.group, at.chunk);
    making_t m = {.layout = layout,
                  .table = table,
                  .at = at,
                  .wanted = wanted,
                  .scratch = scratch,
                  .out = out};
    larder_status_t st = LARDER_OK;

    out->count = 0;
    if (out->max < slice->pieces) {
        return ldr_fail(LARDER_E_SIZE, "room for %u segments of %u", out->max,
                        slice->pieces);
    }
    for (uint32_t i = slice->strip; i < slice->strip_end; i++) {
        /* Of the first block, the rows before first_row are not stored. */
        uint32_t first = g->first_row % g->block_rows;

        for (uint32_t place = blocks.first;
             place < blocks.end && st == LARDER_OK; place++, first = 0) {
            st = append_rows(&m, &layout->strips[i], place, first,
                             g->block_rows);
        }
    }
    return st;
}
