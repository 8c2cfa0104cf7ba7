/* Saving by shared memory: reserve, copy in, commit. */
#include <string.h>

#include "base/bytes.h"
#include "base/copy.h"
#include "base/fault.h"
#include "client/shm_ops.h"

/* Bytes copied between looks at the clock. */
#define RUN_MAX ((size_t)1 << 20)
#define BLOCK 4096u /* the disk gets whole ones */

void ldr_shm_ask_reserve(ldr_shm_batch_t *b, ldr_shm_window_t *w)
{
    const uint64_t most = ldr_shm_window_bytes(
        b, b->op->gpu != NULL ? LDR_SHM_GPU_SAVE_BYTES : LDR_SHM_SAVE_BYTES);
    uint8_t *at = ldr_body(w->call.buffer);
    size_t bytes = LDR_BATCH_HEAD_BYTES;
    uint64_t sum = 0;

    while (b->todo.count > 0 && w->count < LDR_SHM_NAMES) {
        const larder_item_t *item = &b->op->items[b->todo.item[b->todo.head]];
        size_t one = ldr_item_bytes(item);

        if (w->count > 0 && sum + one > most) {
            break;
        }
        ldr_save_row_t row = ldr_row_save(item, one);
        w->item[w->count++] = (uint16_t)ldr_todo_pop(&b->todo);
        ldr_put_save(at + bytes, &row);
        bytes += LDR_SAVE_BYTES;
        sum += one;
    }
    ldr_batch_msg_t batch = {.space = b->talk.space, .count = w->count};
    ldr_put_batch(at, &batch);
    w->call.opcode = LDR_OP_RESERVE;
    w->call.bytes = (uint32_t)bytes;
}

/* Fills a reserved shard from the item's buffers. The caller fences, whatever
 * came of it: the room may be another's next. */
static larder_status_t fill(const ldr_shm_batch_t *b, const larder_item_t *item,
                            const ldr_piece_map_t *pieces, uint32_t count,
                            uint32_t *crc_p)
{
    const struct iovec *iov = item->iov, *end = iov + item->iov_count;
    size_t used = 0; /* of the first of them */
    uint32_t crc = 0;

    for (uint32_t i = 0; i < count; i++) {
        uint8_t *to = pieces[i].map->write + pieces[i].offset;
        size_t looked = 0;

        for (size_t at = 0; at < pieces[i].bytes;) {
            size_t take = ldr_min64(pieces[i].bytes - at, iov->iov_len - used);

            take = ldr_min64(take, RUN_MAX);
            if (at == 0 || at - looked >= RUN_MAX) {
                larder_status_t st = ldr_talk_stopped(&b->talk);

                if (st == LARDER_OK && ldr_shm_dead(b->session)) {
                    st = LARDER_E_OFFLINE;
                }
                if (st != LARDER_OK) {
                    return st;
                }
                looked = at;
            }
            bool last = used + take == iov->iov_len && iov + 1 < end;
            if (used == 0 && iov + 1 < end) {
                ldr_copy_soon(iov[1].iov_base, iov[1].iov_len);
            }
            crc = ldr_copy_piece(crc, to + at,
                                 (const uint8_t *)iov->iov_base + used, take,
                                 last ? iov[1].iov_base : NULL);
            at += take;
            used += take;
            if (used == iov->iov_len) {
                iov++;
                used = 0;
            }
        }
        if (LDR_FAULT(crc_in)) {
            to[0] ^= 1;
        }
        ldr_pieces_pad(&pieces[i]);
    }
    *crc_p = crc;
    return LARDER_OK;
}

void ldr_pieces_pad(const ldr_piece_map_t *p)
{
    /* What the disk gets beyond the payload must not be somebody's. Pages are
     * whole blocks, so this is still the shard's own. */
    memset(p->map->write + p->offset + p->bytes, 0,
           ldr_min64((BLOCK - p->bytes % BLOCK) % BLOCK,
                     p->map->bytes - p->offset - p->bytes));
}

/* One item that has room. Gives how its reservation ends. */
static ldr_end_row_t save_one(ldr_shm_batch_t *b, larder_item_t *item,
                              const ldr_result_row_t *row, const uint8_t *segs)
{
    ldr_piece_map_t pieces[LDR_SHM_SEGS];
    ldr_end_row_t end = {.lease = row->lease, .how = LDR_END_ABORT};
    larder_status_t st = b->status;

    if (st == LARDER_OK && row->length != ldr_item_bytes(item)) {
        st = LARDER_E_OFFLINE; /* room for something else */
    }
    if (st == LARDER_OK) {
        st = ldr_map_segs(b->session, row, segs, &b->talk.stop, pieces);
        if (st == LARDER_OK) {
            st = fill(b, item, pieces, row->seg_count, &end.crc);
            ldr_copy_fence();
            ldr_unmap_segs(b->session, pieces, row->seg_count);
            if (LDR_FAULT(shm_die)) {
                ldr_shm_die(b->session);
            }
        }
    }
    if (st == LARDER_OK) {
        end.how = LDR_END_PLAIN;
        item->status = LARDER_OK;
    } else {
        b->status = st;
        ldr_item_refuse(LARDER_OP_PUT, item, st);
    }
    return end;
}

/* ---- what is present already ---- */

static larder_status_t leased_crc(ldr_shm_batch_t *b,
                                  const ldr_result_row_t *row,
                                  const uint8_t *segs, uint32_t *crc_p)
{
    ldr_piece_map_t pieces[LDR_SHM_SEGS];
    larder_status_t st =
        ldr_map_segs(b->session, row, segs, &b->talk.stop, pieces);

    if (st == LARDER_OK) {
        st = ldr_pieces_crc(b->talk.remote->clock, pieces, row->seg_count,
                            &b->talk.stop, crc_p);
        ldr_unmap_segs(b->session, pieces, row->seg_count);
    }
    return st;
}

/* LARDER_VERIFY_PUT: compares by length and checksum what is there with what
 * was to be saved. What cannot be compared is taken for the same. */
static void compare(ldr_shm_batch_t *b, larder_item_t *item)
{
    uint8_t *at = ldr_body(b->talk.call.buffer);
    ldr_batch_msg_t batch = {.space = b->talk.space,
                             .count = 1,
                             .flags = LDR_BATCH_AGAIN}; /* no engine asks */
    ldr_results_t results;
    ldr_result_row_t row;
    const uint8_t *segs;
    uint32_t crc = 0, stored = 0;

    size_t bytes = ldr_put_batch(at, &batch);
    ldr_row_name(at + bytes, item, ldr_item_bytes(item));
    if (ldr_talk_call(&b->talk, LDR_OP_LEASE, bytes + LDR_NAME_BYTES) !=
            LARDER_OK ||
        !ldr_get_results(at, b->talk.call.reply.body, &results)) {
        return;
    }
    ldr_rows_t rows = {.results = &results};
    if (!ldr_rows_next(&rows, &row, &segs) || row.status != LARDER_OK) {
        return;
    }
    larder_status_t st = leased_crc(b, &row, segs, &stored);
    for (uint32_t i = 0; i < item->iov_count; i++) {
        crc = ldr_crc32c(crc, item->iov[i].iov_base, item->iov[i].iov_len);
    }
    ldr_end_row_t end = {.lease = row.lease};
    ldr_shm_ends(b->session, LDR_OP_RELEASE, &end, 1);
    if (st == LARDER_OK && stored != row.crc) {
        larder_item_t *wrong = item;

        ldr_report(&b->talk, &wrong, 1);
    } else if (st == LARDER_OK &&
               (row.length != ldr_item_bytes(item) || crc != row.crc)) {
        item->status = LARDER_E_MISMATCH;
    }
}

/* ---- commit ---- */

/* In a private window the daemon still has to copy: it says what came of it.
 * Elsewhere nobody waits. */
void ldr_shm_put_end(ldr_shm_batch_t *b, ldr_end_row_t *ends, uint32_t count,
                     larder_item_t *const *items)
{
    uint8_t *at = ldr_body(b->talk.call.buffer);
    ldr_results_t results;
    ldr_result_row_t row;

    if (count == 0) {
        return;
    }
    if (!b->session->strict) {
        ldr_shm_ends(b->session, LDR_OP_COMMIT, ends, count);
        if (ldr_shm_dead(b->session)) { /* nobody knows if it heard of it */
            for (uint32_t i = 0; i < count; i++) {
                if (items[i]->status == LARDER_OK) {
                    items[i]->status = LARDER_E_OFFLINE;
                }
            }
            b->status = LARDER_E_OFFLINE;
        }
        return;
    }
    size_t bytes = ldr_put_ends(at, count);
    for (uint32_t i = 0; i < count; i++, bytes += LDR_END_BYTES) {
        ldr_put_end(at + bytes, &ends[i]);
    }
    larder_status_t st = ldr_talk_call(&b->talk, LDR_OP_COMMIT, bytes);
    if (st == LARDER_OK &&
        (!ldr_get_results(at, b->talk.call.reply.body, &results) ||
         results.count != count)) {
        st = LARDER_E_OFFLINE;
    }
    for (uint32_t i = 0; i < count; i++) {
        if (ends[i].how != LDR_END_PLAIN) {
            continue;
        }
        items[i]->status =
            st != LARDER_OK ? st
            : ldr_get_result(results.rows + (size_t)i * LDR_RESULT_BYTES, &row)
                ? row.status
                : LARDER_E_OFFLINE;
    }
    if (st != LARDER_OK) {
        /* Nobody knows whether it was committed: what was not is given back;
         * the daemon does not mind the rest. */
        for (uint32_t i = 0; i < count; i++) {
            ends[i].how = LDR_END_ABORT;
        }
        ldr_shm_ends(b->session, LDR_OP_COMMIT, ends, count);
    }
}

static void work_reserve(ldr_shm_batch_t *b, ldr_shm_window_t *w,
                         const ldr_results_t *results)
{
    ldr_rows_t rows = {.results = results};
    ldr_end_row_t ends[LDR_SHM_ITEMS];
    larder_item_t *saved[LDR_SHM_ITEMS] = {NULL}, *present[LDR_SHM_ITEMS];
    uint32_t end_count = 0, present_count = 0, ok = ldr_rows_ok(results);
    uint64_t untold = 0;

    for (uint32_t i = 0; i < w->count; i++) {
        larder_item_t *item = &b->op->items[w->item[i]];
        ldr_result_row_t row;
        const uint8_t *segs;

        if (!ldr_shm_row(b, item, &rows, &row, &segs)) {
            continue;
        }
        /* Full of what this batch itself has reserved: after the commit. */
        bool full = row.status == LARDER_E_FULL || row.status == LARDER_E_LIMIT;
        if (row.status == LARDER_PENDING || (full && (!w->alone || ok > 0))) {
            ldr_todo_push(&b->todo, w->item[i]);
            continue;
        }
        b->progress = true;
        if (row.status == LARDER_OK) {
            saved[end_count] = item;
            ends[end_count++] = save_one(b, item, &row, segs);
            untold += row.length;
        } else {
            item->status = row.status;
            if (row.status == LARDER_PRESENT) {
                present[present_count++] = item;
            }
        }
        if (untold >= LDR_SHM_END_BYTES && !b->session->strict &&
            !ldr_ring_beside(&b->session->ring.in)) {
            ldr_shm_put_end(b, ends, end_count, saved);
            end_count = 0;
            untold = 0;
        }
    }
    ldr_shm_put_end(b, ends, end_count, saved);
    for (uint32_t i = 0; (b->op->flags & LARDER_VERIFY_PUT) != 0 &&
                         b->status == LARDER_OK && i < present_count;
         i++) {
        compare(b, present[i]);
    }
}

void ldr_shm_put(ldr_op_t *op)
{
    if (op->gpu != NULL) {
        ldr_shm_put_gpu(op);
    } else {
        ldr_shm_run(op, ldr_shm_ask_reserve, work_reserve);
    }
}
