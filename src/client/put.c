/* Saving to a daemon: reserve, copy in, commit. */
#include "base/bytes.h"
#include "base/copy.h"
#include "client/transfer.h"

static uint32_t item_crc(const larder_item_t *item)
{
    uint32_t crc = 0;

    for (uint32_t i = 0; i < item->iov_count; i++) {
        crc = ldr_crc32c(crc, item->iov[i].iov_base, item->iov[i].iov_len);
    }
    return crc;
}

/* ---- asking ---- */

/* What travels with the request is neither read nor sent if it is there. */
static void ask_present(ldr_transfer_t *t)
{
    const larder_item_t *items[LDR_ASK_ITEMS];
    uint16_t index[LDR_ASK_ITEMS];
    ldr_results_t results;
    uint32_t left = t->path->carries ? t->unasked.count : 0;

    while (left > 0 && t->status == LARDER_OK) {
        uint32_t n = (uint32_t)ldr_min64(left, LDR_ASK_ITEMS);

        for (uint32_t i = 0; i < n; i++) {
            index[i] = (uint16_t)ldr_unasked_pop(&t->unasked);
            items[i] = &t->op->items[index[i]];
        }
        left -= n;
        t->status = ldr_ask_names(&t->talk, LDR_OP_EXISTS, LDR_BATCH_QUIET,
                                  items, n, &results);
        for (uint32_t i = 0; i < n; i++) {
            ldr_result_row_t row;

            if (t->status == LARDER_OK &&
                ldr_get_result(results.rows + (size_t)i * LDR_RESULT_BYTES,
                               &row) &&
                row.status == LARDER_OK) {
                t->op->items[index[i]].status = LARDER_PRESENT;
            } else {
                ldr_unasked_push(&t->unasked, index[i]);
            }
        }
    }
}

static void put_ask(ldr_transfer_t *t, ldr_ask_t *q)
{
    uint64_t most = t->begun ? t->most_bytes : t->first_bytes, sum = 0;
    ldr_rows_out_t rows = ldr_rows_begin(&t->talk, ldr_body(q->call.buffer),
                                         LDR_SAVE_BYTES, NULL);
    uint32_t pieces = 0;

    while (t->unasked.count > 0 && q->count < LDR_ASK_FEW) {
        const larder_item_t *item =
            &t->op->items[t->unasked.item[t->unasked.head]];
        size_t one = ldr_item_bytes(item);

        pieces += t->path->carries ? item->iov_count : 0;
        if (q->count > 0 && (sum + one > most || pieces > LARDER_IOV_MAX)) {
            break;
        }
        q->item[q->count++] = (uint16_t)ldr_unasked_pop(&t->unasked);
        ldr_rows_add(&rows, item, one, t->path->carries ? item_crc(item) : 0);
        sum += one;
    }
    q->call.opcode = t->path->put;
    q->call.bytes = (uint32_t)ldr_rows_end(&rows, 0);
}

/* ---- commit ---- */

/* The daemon still has to copy: it says what came of it. */
static void commit_answered(ldr_transfer_t *t)
{
    uint8_t *at = ldr_body(t->talk.call.buffer);
    ldr_results_t results;
    ldr_result_row_t row;
    size_t bytes = ldr_put_ends(at, t->end_count);

    for (uint32_t i = 0; i < t->end_count; i++, bytes += LDR_END_BYTES) {
        ldr_put_end(at + bytes, &t->ends[i]);
    }
    larder_status_t st = ldr_talk_call(&t->talk, LDR_OP_COMMIT, bytes);
    if (st == LARDER_OK &&
        (!ldr_get_results(at, t->talk.call.reply.body, &results) ||
         results.count != t->end_count)) {
        st = LARDER_E_OFFLINE;
    }
    for (uint32_t i = 0; i < t->end_count; i++) {
        if (t->ends[i].how != LDR_END_PLAIN) {
            continue;
        }
        t->ended[i]->status =
            st != LARDER_OK ? st
            : ldr_get_result(results.rows + (size_t)i * LDR_RESULT_BYTES, &row)
                ? row.status
                : LARDER_E_OFFLINE;
        t->ends[i].how = LDR_END_ABORT;
    }
    if (st != LARDER_OK) {
        /* Nobody knows whether it was committed: what was not is given back;
         * the daemon does not mind the rest. */
        t->path->end(t->talk.link, LDR_OP_COMMIT, t->ends, t->end_count);
    }
}

/* Elsewhere nobody waits for the answer. */
static void commit(ldr_transfer_t *t)
{
    if (t->end_count > 0 && t->answers) {
        commit_answered(t);
    } else if (t->end_count > 0 &&
               t->path->end(t->talk.link, LDR_OP_COMMIT, t->ends,
                            t->end_count) != LARDER_OK) {
        t->status = LARDER_E_OFFLINE; /* nobody knows if it heard of it */
        for (uint32_t i = 0; i < t->end_count; i++) {
            if (t->ended[i]->status == LARDER_OK) {
                t->ended[i]->status = LARDER_E_OFFLINE;
            }
        }
    }
    t->end_count = 0;
    t->unended_bytes = 0;
}

/* ---- taking ---- */

ldr_end_how_t ldr_put_settle(ldr_transfer_t *t, larder_item_t *item,
                             larder_status_t st)
{
    if (st == LARDER_OK) {
        item->status = LARDER_OK;
        return LDR_END_PLAIN;
    }
    t->status = st;
    ldr_item_refuse(LARDER_OP_PUT, item, st);
    return LDR_END_ABORT;
}

/* One item that has room. Gives how its reservation ends. */
static ldr_end_row_t save_one(ldr_transfer_t *t, larder_item_t *item,
                              const ldr_result_row_t *row, const uint8_t *segs)
{
    ldr_end_row_t end = {.lease = row->lease};
    larder_status_t st = t->status;

    if (st == LARDER_OK && row->length != ldr_item_bytes(item)) {
        st = LARDER_E_OFFLINE; /* room for something else */
    }
    if (st == LARDER_OK) {
        st = t->path->copy_in(t, item, row, segs, &end.crc);
    }
    end.how = ldr_put_settle(t, item, st);
    return end;
}

static void put_take(ldr_transfer_t *t, ldr_ask_t *q,
                     const ldr_results_t *results)
{
    ldr_rows_t rows = {.results = results};
    uint32_t ok = t->path->carries ? 0 : ldr_rows_ok(results);

    for (uint32_t i = 0; i < q->count; i++) {
        larder_item_t *item = &t->op->items[q->item[i]];
        ldr_result_row_t row;
        const uint8_t *segs;

        if (!ldr_transfer_row(t, item, &rows, &row, &segs)) {
            continue;
        }
        /* Full of what this transfer itself has reserved: after the commit. */
        bool full = row.status == LARDER_E_FULL || row.status == LARDER_E_LIMIT;
        if (row.status == LARDER_PENDING ||
            (full && !t->path->carries && (!q->alone || ok > 0))) {
            ldr_unasked_push(&t->unasked, q->item[i]);
            continue;
        }
        t->progress = true;
        if (row.status != LARDER_OK || t->path->carries) {
            item->status = row.status;
        } else if (t->op->gpu != NULL) {
            ldr_bulk_add(t, results, item, &row, segs);
        } else {
            ldr_end_row_t end = save_one(t, item, &row, segs);

            if (ldr_transfer_ends(t, item, row.length, &end)) {
                commit(t);
            }
        }
    }
    if (t->op->gpu != NULL) {
        ldr_bulk_finish(t);
    }
    commit(t);
}

/* ---- what is present already ---- */

/* LARDER_VERIFY_PUT: compares by length and checksum what is there with what
 * was to be saved. What cannot be compared is taken for the same; with status
 * also all that would come after it. */
static void compare(ldr_transfer_t *t, larder_item_t *item)
{
    const larder_item_t *one = item;
    ldr_results_t results;
    ldr_result_row_t row;
    const uint8_t *segs;
    larder_status_t st = ldr_ask_names(&t->talk, LDR_OP_LEASE, LDR_BATCH_AGAIN,
                                       &one, 1, &results);
    ldr_rows_t rows = {.results = &results};

    if (st == LARDER_E_DEADLINE || st == LARDER_E_CANCELED ||
        st == LARDER_E_OFFLINE) {
        t->status = st;
    }
    if (st != LARDER_OK || !ldr_rows_next(&rows, &row, &segs) ||
        row.status != LARDER_OK) {
        return;
    }
    uint32_t stored = row.crc;
    ldr_end_row_t end = {.lease = row.lease};
    if (t->path->sum != NULL) {
        st = t->path->sum(t, &row, segs, &stored);
    }
    t->path->end(t->talk.link, LDR_OP_RELEASE, &end, 1);
    if (st == LARDER_OK && stored != row.crc) {
        if (t->corrupt_count < LDR_ASK_ITEMS) {
            t->corrupt[t->corrupt_count++] = item;
        }
    } else if (st == LARDER_OK && (row.length != ldr_item_bytes(item) ||
                                   row.crc != item_crc(item))) {
        item->status = LARDER_E_MISMATCH;
    }
}

static void compare_present(ldr_transfer_t *t)
{
    for (size_t i = 0; (t->op->flags & LARDER_VERIFY_PUT) != 0 &&
                       i < t->op->count && t->status == LARDER_OK;
         i++) {
        if (t->op->items[i].status == LARDER_PRESENT) {
            compare(t, &t->op->items[i]);
        }
    }
}

void ldr_remote_put(ldr_op_t *op)
{
    static const ldr_transfer_ops_t ops = {.ask = put_ask, .take = put_take};

    ldr_transfer_items(op, &ops, ask_present, compare_present);
}
