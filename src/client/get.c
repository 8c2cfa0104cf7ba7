/* Loading from a daemon: lease, copy out, release. */
#include "base/bytes.h"
#include "client/transfer.h"

/* ---- asking ---- */

/* What is staged is there: all of it is asked for at once. */
static size_t ask_staged(ldr_transfer_t *t, ldr_ask_t *q, uint8_t *at)
{
    ldr_rows_out_t rows =
        ldr_rows_begin(&t->talk, at, LDR_PLACE_BYTES, t->op->load->token);

    while (t->unasked.count > 0 && q->count < LDR_ASK_ITEMS) {
        const larder_item_t *item =
            &t->op->items[t->unasked.item[t->unasked.head]];

        q->item[q->count++] = (uint16_t)ldr_unasked_pop(&t->unasked);
        ldr_rows_add(&rows, item, 0, 0);
    }
    return ldr_rows_end(&rows, t->op->flags & LDR_BATCH_AGAIN);
}

static size_t ask_names(ldr_transfer_t *t, ldr_ask_t *q, uint8_t *at)
{
    uint64_t most = t->begun ? t->most_bytes : t->first_bytes, sum = 0;
    ldr_rows_out_t rows = ldr_rows_begin(&t->talk, at, LDR_NAME_BYTES, NULL);

    while (t->unasked.count > 0 && q->count < LDR_ASK_FEW) {
        const larder_item_t *item =
            &t->op->items[t->unasked.item[t->unasked.head]];
        size_t room = ldr_item_bytes(item);

        if (q->count > 0 && sum + room > most) {
            break;
        }
        q->item[q->count++] = (uint16_t)ldr_unasked_pop(&t->unasked);
        ldr_rows_add(&rows, item, room, 0);
        sum += ldr_min64(room, LARDER_VALUE_MAX);
    }
    q->payload = sum;
    return ldr_rows_end(&rows, t->op->flags & LDR_BATCH_AGAIN);
}

static void get_ask(ldr_transfer_t *t, ldr_ask_t *q)
{
    uint8_t *at = ldr_body(q->call.buffer);
    bool staged = t->op->load != NULL && t->op->load->token != NULL;

    q->call.opcode = t->path->get;
    q->call.bytes =
        (uint32_t)(staged ? ask_staged(t, q, at) : ask_names(t, q, at));
}

/* ---- taking ---- */

ldr_end_how_t ldr_get_settle(ldr_transfer_t *t, larder_item_t *item,
                             larder_status_t st, bool check, bool right)
{
    if (st != LARDER_OK) {
        t->status = st;
        item->length = 0;
        ldr_item_refuse(LARDER_OP_GET, item, st);
        return LDR_END_PLAIN;
    }
    item->status = LARDER_OK;
    if (!check || right) {
        return check ? LDR_END_CHECKED : LDR_END_PLAIN;
    }
    item->status = LARDER_MISS;
    item->cause = LARDER_CAUSE_CORRUPT;
    item->length = 0;
    if (t->corrupt_count < LDR_ASK_ITEMS) {
        t->corrupt[t->corrupt_count++] = item;
    }
    return LDR_END_PLAIN;
}

/* One item whose bytes can be had. Gives how its lease ends. */
static ldr_end_how_t load_one(ldr_transfer_t *t, ldr_ask_t *q,
                              larder_item_t *item, const ldr_result_row_t *row,
                              const uint8_t *segs)
{
    const ldr_op_load_t *load = t->op->load;
    bool check = t->path->carries ||
                 t->talk.remote->options.verify != LDR_VERIFY_ENTRY ||
                 (row->flags & LDR_RESULT_CHECKED) == 0;
    larder_status_t st = t->status;
    uint32_t crc = 0;

    item->length = row->length;
    if (st == LARDER_OK && ldr_item_bytes(item) < row->length &&
        !t->path->carries) { /* a stream's daemon knows how much fits */
        item->status = LARDER_E_SIZE;
        return LDR_END_PLAIN;
    }
    if (st == LARDER_OK && load != NULL && load->list != NULL) {
        st = load->list(load->arg, item);
    }
    if (st == LARDER_OK) {
        st = t->path->copy_out(t, q, item, row, segs, check, &crc);
    }
    return ldr_get_settle(t, item, st, check, crc == row->crc);
}

/* Whether the item is to be asked for again: a miss for want of room in DRAM,
 * or of leases, is none while this transfer itself holds some. ok: how many of
 * the reply's rows are. */
static bool asks_again(ldr_transfer_t *t, const ldr_ask_t *q,
                       const ldr_result_row_t *row, uint32_t ok)
{
    bool full = (row->status == LARDER_E_LIMIT && !t->path->carries) ||
                (row->status == LARDER_MISS && row->cause == LARDER_CAUSE_FULL);

    return row->status == LARDER_PENDING || (full && (!q->alone || ok > 0));
}

static void release(ldr_transfer_t *t)
{
    if (t->end_count > 0) {
        t->path->end(t->talk.link, LDR_OP_RELEASE, t->ends, t->end_count);
    }
    t->end_count = 0;
    t->unended_bytes = 0;
}

static void get_take(ldr_transfer_t *t, ldr_ask_t *q,
                     const ldr_results_t *results)
{
    ldr_rows_t rows = {.results = results};
    uint32_t ok = ldr_rows_ok(results);

    for (uint32_t i = 0; i < q->count; i++) {
        larder_item_t *item = &t->op->items[q->item[i]];
        ldr_result_row_t row;
        const uint8_t *segs;

        if (!ldr_transfer_row(t, item, &rows, &row, &segs)) {
            continue;
        }
        if (asks_again(t, q, &row, ok)) {
            ldr_unasked_push(&t->unasked, q->item[i]);
            t->ahead = 1;
            continue;
        }
        t->progress = true;
        if (row.status != LARDER_OK) {
            item->status = row.status;
            item->cause = row.cause;
            item->length = row.status == LARDER_E_SIZE ? row.length : 0;
        } else if (t->op->gpu != NULL) {
            ldr_bulk_add(t, results, item, &row, segs);
        } else {
            ldr_end_row_t end = {.lease = row.lease};

            end.how = load_one(t, q, item, &row, segs);
            if (!t->path->carries &&
                ldr_transfer_ends(t, item, row.length, &end)) {
                release(t);
            }
        }
    }
    if (t->op->gpu != NULL) {
        ldr_bulk_finish(t);
    }
    release(t);
}

void ldr_remote_get(ldr_op_t *op)
{
    static const ldr_transfer_ops_t ops = {.ask = get_ask, .take = get_take};

    ldr_transfer_items(op, &ops, NULL, NULL);
}
