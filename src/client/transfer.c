/* Requests in flight: transfer.h says what holds of it. */
#include "client/transfer.h"

#include "base/bytes.h"

#define NAP_NS 500000 /* before asking again for what had no room */

/* ---- rows ---- */

bool ldr_rows_next(ldr_rows_t *rows, ldr_result_row_t *row,
                   const uint8_t **segs_p)
{
    const ldr_results_t *r = rows->results;

    if (rows->at >= r->count ||
        !ldr_get_result(r->rows + (size_t)rows->at * LDR_RESULT_BYTES, row) ||
        row->seg_count > LDR_SHARD_SEGS) {
        return false;
    }
    *segs_p = r->segs + (size_t)rows->seg * LDR_SEG_BYTES;
    rows->seg += row->seg_count; /* their sum was checked */
    rows->at++;
    return true;
}

uint32_t ldr_rows_ok(const ldr_results_t *results)
{
    ldr_result_row_t row;
    uint32_t ok = 0;

    for (uint32_t i = 0; i < results->count; i++) {
        ok += ldr_get_result(results->rows + (size_t)i * LDR_RESULT_BYTES,
                             &row) &&
              row.status == LARDER_OK;
    }
    return ok;
}

bool ldr_transfer_row(ldr_transfer_t *t, larder_item_t *item, ldr_rows_t *rows,
                      ldr_result_row_t *row, const uint8_t **segs_p)
{
    if (ldr_rows_next(rows, row, segs_p)) {
        return true;
    }
    t->path->breaks(t->talk.link);
    t->status = LARDER_E_OFFLINE;
    if (item != NULL) {
        ldr_item_refuse(t->op->kind, item, t->status);
    }
    return false;
}

/* ---- requests ---- */

static void refuse(ldr_transfer_t *t, uint32_t item)
{
    if (t->op != NULL) {
        ldr_item_refuse(t->op->kind, &t->op->items[item], t->status);
    }
}

/* It ends without a reply that can be used. */
static void ask_refuse(ldr_transfer_t *t, ldr_ask_t *q, larder_status_t st)
{
    t->status = st;
    for (uint32_t i = 0; i < q->count; i++) {
        refuse(t, q->item[i]);
    }
}

static void ask_send(ldr_transfer_t *t, bool alone)
{
    ldr_ask_t *q = t->ask;

    while (q->sent || q->taken) {
        q++; /* fewer than LDR_ASKS are */
    }
    if (q->call.buffer == NULL) {
        q->call.buffer = ldr_buffer_take(t->talk.remote);
    }
    if (q->call.buffer == NULL) {
        t->status =
            ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for a request");
        return;
    }
    q->count = 0;
    q->payload = 0;
    q->alone = alone;
    t->ops->ask(t, q);
    t->begun = true;
    larder_status_t st = t->path->send(t, q);
    q->sent = st == LARDER_OK;
    t->flying += q->sent;
    if (st != LARDER_OK) {
        ask_refuse(t, q, st);
    }
}

/* Waits for a reply, and reads its results. NULL: status says why there is
 * none. */
static ldr_ask_t *ask_back(ldr_transfer_t *t, ldr_results_t *results)
{
    ldr_ask_t *q = NULL;
    larder_status_t st = t->path->recv(t, &q);

    if (q != NULL) {
        q->sent = false;
        t->flying--;
    }
    if (st == LARDER_OK) {
        const ldr_frame_t *reply = &q->call.reply;
        const uint8_t *body = ldr_body(q->call.buffer);

        t->talk.heard = true;
        if (ldr_frame_status(reply) < 0) {
            st = ldr_reply_failed(reply, body);
        } else if (!ldr_get_results(body, reply->body, results) ||
                   results->count != q->count) {
            t->path->breaks(t->talk.link);
            st = LARDER_E_OFFLINE;
        }
        if (st == LARDER_OK) {
            return q;
        }
        t->path->done(t, q);
    }
    t->status = st;
    if (q != NULL) {
        ask_refuse(t, q, st);
    }
    return NULL;
}

/* ---- transfers ---- */

static bool more(const ldr_transfer_t *t, const ldr_results_t *answered)
{
    return t->ops->more != NULL ? t->ops->more(t, answered)
                                : t->unasked.count > 0;
}

larder_status_t ldr_transfer_begin(ldr_transfer_t *t, larder_t *lar,
                                   ldr_op_t *op, const ldr_space_ref_t *space,
                                   const ldr_stop_t *stop,
                                   const ldr_transfer_ops_t *ops)
{
    larder_status_t st = ldr_talk_begin(&t->talk, lar->remote, space, stop);

    if (st != LARDER_OK) {
        return st;
    }
    t->path = lar->data_path;
    t->ops = ops;
    t->op = op;
    t->own = NULL;
    t->status = LARDER_OK;
    t->flying = 0;
    t->begun = t->progress = t->over = false;
    t->end_count = t->corrupt_count = 0;
    t->unended_bytes = 0;
    t->bulk = NULL;
    t->unasked.head = t->unasked.count = 0;
    for (unsigned i = 0; i < LDR_ASKS; i++) {
        t->ask[i].sent = t->ask[i].taken = false;
        t->ask[i].call.buffer = NULL;
    }
    t->path->begin(t);
    return LARDER_OK;
}

void ldr_transfer_run(ldr_transfer_t *t)
{
    ldr_results_t results;

    while (t->status == LARDER_OK && !t->over &&
           (more(t, NULL) || t->flying > 0)) {
        t->status = ldr_talk_stopped(&t->talk);
        while (t->status == LARDER_OK && t->flying < t->ahead &&
               more(t, NULL)) {
            ask_send(t, t->flying == 0);
        }
        ldr_ask_t *q = t->status == LARDER_OK ? ask_back(t, &results) : NULL;
        if (q == NULL) {
            return;
        }
        q->taken = true;
        /* The next is answered while the bytes of this one are copied. */
        if (!t->path->carries && more(t, &results)) {
            ask_send(t, ldr_rows_ok(&results) == 0);
        }
        t->progress = false;
        t->ops->take(t, q, &results);
        t->path->done(t, q);
        q->taken = false;
        if (!t->progress && t->flying == 0 && !t->over && more(t, NULL)) {
            ldr_nap(t->talk.remote, NAP_NS);
        }
    }
}

void ldr_transfer_end(ldr_transfer_t *t, larder_status_t st)
{
    for (unsigned i = 0; i < LDR_ASKS; i++) {
        ldr_ask_t *q = &t->ask[i];

        if (q->sent) {
            t->path->forget(t, q);
            ask_refuse(t, q, t->status);
        }
        ldr_buffer_give(t->talk.remote, q->call.buffer);
    }
    while (t->unasked.count > 0) {
        refuse(t, ldr_unasked_pop(&t->unasked));
    }
    if (t->corrupt_count > 0 && t->status == LARDER_OK) {
        ldr_report(&t->talk, t->corrupt, t->corrupt_count);
    } else {
        ldr_tally(&t->talk.remote->crc_failures, t->corrupt_count);
    }
    ldr_talk_end(&t->talk, st);
}

void ldr_transfer_items(ldr_op_t *op, const ldr_transfer_ops_t *ops,
                        void (*first)(ldr_transfer_t *t),
                        void (*last)(ldr_transfer_t *t))
{
    ldr_transfer_t t;
    ldr_stop_t stop = ldr_op_stop(op);
    larder_status_t st =
        ldr_transfer_begin(&t, op->lar, op, &op->ref, &stop, ops);

    if (st != LARDER_OK) {
        ldr_op_refuse(op, st);
        return;
    }
    for (size_t i = 0; i < op->count; i++) {
        larder_item_t *item = &op->items[i];

        item->status = ldr_op_check(op, item);
        if (item->status == LARDER_OK && op->kind == LARDER_OP_PUT &&
            ldr_item_bytes(item) > LARDER_VALUE_MAX) {
            item->status = LARDER_E_SIZE;
        }
        if (item->status == LARDER_OK) {
            ldr_unasked_push(&t.unasked, (uint32_t)i);
        }
    }
    if (first != NULL) {
        first(&t);
    }
    ldr_transfer_run(&t);
    if (last != NULL && t.status == LARDER_OK) {
        last(&t);
    }
    ldr_transfer_end(&t, t.status);
}

/* ---- ends ---- */

bool ldr_transfer_ends(ldr_transfer_t *t, larder_item_t *item, uint64_t bytes,
                       const ldr_end_row_t *end)
{
    t->ends[t->end_count] = *end;
    t->ended[t->end_count++] = item;
    t->unended_bytes += bytes;
    return t->unended_bytes >= t->end_bytes || t->end_count == LDR_ASK_ITEMS;
}

/* ---- names ---- */

larder_status_t ldr_ask_names(ldr_talk_t *v, uint16_t opcode, uint32_t flags,
                              const larder_item_t *const *items, uint32_t count,
                              ldr_results_t *results)
{
    uint8_t *at = ldr_body(v->call.buffer);
    ldr_rows_out_t rows = ldr_rows_begin(v, at, LDR_NAME_BYTES, NULL);

    for (uint32_t i = 0; i < count; i++) {
        ldr_rows_add(&rows, items[i],
                     opcode == LDR_OP_LEASE ? ldr_item_bytes(items[i]) : 0, 0);
    }
    larder_status_t st = ldr_talk_call(v, opcode, ldr_rows_end(&rows, flags));
    if (st == LARDER_OK && (!ldr_get_results(at, v->call.reply.body, results) ||
                            results->count != count)) {
        st = ldr_fail(LARDER_E_OFFLINE, "%s: a malformed answer",
                      v->remote->options.address);
    }
    return st;
}
