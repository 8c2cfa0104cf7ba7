/* Loading and saving by TCP. */
#include <string.h>

#include "base/bytes.h"
#include "base/copy.h"
#include "client/tcp_ops.h"

#define NAP_NS 500000 /* before asking again for what had no room */

/* ---- batches ---- */

bool ldr_tcp_begin(ldr_tcp_batch_t *b, ldr_op_t *op)
{
    ldr_stop_t stop = ldr_op_stop(op);
    larder_status_t st =
        ldr_talk_begin(&b->talk, op->lar->remote, &op->ref, &stop);

    if (st != LARDER_OK) {
        ldr_op_refuse(op, st);
        return false;
    }
    b->op = op;
    b->conn = ldr_conn_of(b->talk.link);
    b->status = LARDER_OK;
    b->flying = 0;
    b->depth = LDR_TCP_DEPTH;
    b->todo.head = b->todo.count = 0;
    b->corrupt_count = 0;
    for (unsigned i = 0; i < LDR_TCP_DEPTH; i++) {
        b->window[i].busy = false;
        b->window[i].call.buffer = NULL;
    }
    for (size_t i = 0; i < op->count; i++) {
        larder_item_t *item = &op->items[i];

        item->status = ldr_item_check(op->kind, op->shards, item);
        if (item->status == LARDER_OK && op->kind == LARDER_OP_PUT &&
            ldr_item_bytes(item) > LARDER_VALUE_MAX) {
            item->status = LARDER_E_SIZE;
        }
        if (item->status == LARDER_OK) {
            ldr_todo_push(&b->todo, (uint32_t)i);
        }
    }
    return true;
}

static void refuse(ldr_tcp_batch_t *b, uint32_t item)
{
    ldr_item_refuse(b->op->kind, &b->op->items[item], b->status);
}

void ldr_tcp_end(ldr_tcp_batch_t *b)
{
    for (unsigned i = 0; i < LDR_TCP_DEPTH; i++) {
        ldr_tcp_window_t *w = &b->window[i];

        if (w->busy) {
            ldr_conn_forget(b->conn, &w->call, w->payload);
            for (uint32_t k = 0; k < w->count; k++) {
                refuse(b, w->item[k]);
            }
        }
        ldr_buffer_give(b->talk.remote, w->call.buffer);
    }
    while (b->todo.count > 0) {
        refuse(b, ldr_todo_pop(&b->todo));
    }
    if (b->corrupt_count > 0 && b->status == LARDER_OK) {
        ldr_report(&b->talk, b->corrupt, b->corrupt_count);
    }
    ldr_talk_end(&b->talk, b->status);
}

/* A window that is free, with its buffer; NULL: not enough memory. */
static ldr_tcp_window_t *window_new(ldr_tcp_batch_t *b)
{
    ldr_tcp_window_t *w = b->window;

    while (w->busy) {
        w++; /* fewer than LDR_TCP_DEPTH fly */
    }
    if (w->call.buffer == NULL) {
        w->call.buffer = ldr_buffer_take(b->talk.remote);
    }
    if (w->call.buffer == NULL) {
        b->status =
            ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for a request");
        return NULL;
    }
    w->count = 0;
    w->payload = 0;
    return w;
}

/* It is under way, or its items are refused. */
static void window_sent(ldr_tcp_batch_t *b, ldr_tcp_window_t *w,
                        larder_status_t st)
{
    w->busy = st == LARDER_OK;
    b->flying += w->busy ? 1 : 0;
    if (st != LARDER_OK) {
        b->status = st;
        for (uint32_t i = 0; i < w->count; i++) {
            refuse(b, w->item[i]);
        }
    }
}

/* Waits for one of the windows, and reads its results. NULL: b->status. */
static ldr_tcp_window_t *window_back(ldr_tcp_batch_t *b, ldr_results_t *results)
{
    ldr_call_t *call = NULL;
    ldr_tcp_window_t *w = b->window;

    b->status = ldr_conn_recv(b->conn, &b->talk.stop, &call);
    if (b->status != LARDER_OK) {
        return NULL;
    }
    b->talk.heard = true;
    while (&w->call != call) {
        w++;
    }
    w->busy = false;
    b->flying--;
    larder_status_t st = LARDER_OK;
    if (ldr_frame_status(&call->reply) < 0) {
        st = ldr_reply_failed(&call->reply, ldr_body(call->buffer));
    } else if (!ldr_get_results(ldr_body(call->buffer), call->reply.body,
                                results) ||
               results->count != w->count) {
        b->conn->broken = true;
        st = LARDER_E_OFFLINE;
    }
    if (st != LARDER_OK) {
        b->conn->skip = call->reply.payload;
        b->status = st;
        for (uint32_t i = 0; i < w->count; i++) {
            refuse(b, w->item[i]);
        }
        return NULL;
    }
    return w;
}

/* ---- loading ---- */

static void get_send(ldr_tcp_batch_t *b)
{
    ldr_tcp_window_t *w = window_new(b);

    if (w == NULL) {
        return;
    }
    uint8_t *at = ldr_body(w->call.buffer);
    size_t bytes = LDR_BATCH_HEAD_BYTES;
    while (b->todo.count > 0 && w->count < LDR_TCP_ITEMS) {
        const larder_item_t *item = &b->op->items[b->todo.item[b->todo.head]];
        size_t room = ldr_item_bytes(item);

        if (w->count > 0 && w->payload + room > LDR_TCP_GET_BYTES) {
            break;
        }
        w->item[w->count++] = (uint16_t)ldr_todo_pop(&b->todo);
        ldr_row_name(at + bytes, item, room);
        bytes += LDR_NAME_BYTES;
        w->payload += ldr_min64(room, LARDER_VALUE_MAX);
    }
    ldr_batch_msg_t batch = {.space = b->talk.space,
                             .count = w->count,
                             .flags = b->op->flags & LDR_BATCH_AGAIN};
    ldr_put_batch(at, &batch);
    w->call.opcode = LDR_OP_GET;
    w->call.bytes = (uint32_t)bytes;
    w->alone = b->flying == 0;
    window_sent(b, w,
                ldr_conn_send(b->conn, &w->call, NULL, 0, 0, &b->talk.stop));
}

/* Receives one shard. left_p: what is still to come of the reply. */
static void get_one(ldr_tcp_batch_t *b, larder_item_t *item,
                    const ldr_result_row_t *row, uint64_t *left_p)
{
    ldr_cursor_t to = {item->iov, item->iov_count, 0};
    uint64_t left = row->length;
    uint32_t crc = 0;

    if (row->length > ldr_item_bytes(item) || row->length > *left_p) {
        b->conn->broken = true;
        b->status = LARDER_E_OFFLINE;
        ldr_item_refuse(LARDER_OP_GET, item, b->status);
        return;
    }
    larder_status_t st =
        ldr_conn_payload(b->conn, &to, row->length, &b->talk.stop, &crc, &left);
    *left_p -= row->length - left;
    if (st != LARDER_OK) {
        b->status = st;
        ldr_item_refuse(LARDER_OP_GET, item, st);
        return;
    }
    item->length = row->length;
    item->status = LARDER_OK;
    if (crc != row->crc) {
        item->status = LARDER_MISS;
        item->cause = LARDER_CAUSE_CORRUPT;
        item->length = 0;
        if (b->corrupt_count < LDR_TCP_ITEMS) {
            b->corrupt[b->corrupt_count++] = item;
        }
    }
}

static void get_take(ldr_tcp_batch_t *b, ldr_tcp_window_t *w,
                     const ldr_results_t *results)
{
    uint64_t left = w->call.reply.payload;
    uint32_t ok = 0, again = 0;

    for (uint32_t i = 0; i < w->count; i++) {
        larder_item_t *item = &b->op->items[w->item[i]];
        ldr_result_row_t row;

        if (!ldr_get_result(results->rows + (size_t)i * LDR_RESULT_BYTES,
                            &row)) {
            b->conn->broken = true;
            b->status = LARDER_E_OFFLINE;
        }
        if (b->status != LARDER_OK) {
            ldr_item_refuse(LARDER_OP_GET, item, b->status);
        } else if (row.status == LARDER_PENDING ||
                   (row.status == LARDER_MISS &&
                    row.cause == LARDER_CAUSE_FULL && (!w->alone || ok > 0))) {
            /* For want of room in DRAM, some of which this batch holds. */
            ldr_todo_push(&b->todo, w->item[i]);
            b->depth = 1;
            again++;
        } else if (row.status == LARDER_OK) {
            get_one(b, item, &row, &left);
            ok++;
        } else {
            item->status = row.status;
            item->cause = row.cause;
            item->length = row.status == LARDER_E_SIZE ? row.length : 0;
        }
    }
    /* Of a reply that was not taken to its end. */
    b->conn->skip = left;
    b->conn->broken |= left > LDR_CONN_SKIP_MAX;
    if (again == w->count && b->flying == 0) {
        ldr_nap(b->talk.remote, NAP_NS);
    }
}

void ldr_tcp_get(ldr_op_t *op)
{
    ldr_tcp_batch_t b;
    ldr_results_t results;

    if (!ldr_tcp_begin(&b, op)) {
        return;
    }
    while (b.status == LARDER_OK && (b.todo.count > 0 || b.flying > 0)) {
        b.status = ldr_talk_stopped(&b.talk);
        while (b.status == LARDER_OK && b.todo.count > 0 &&
               b.flying < b.depth) {
            get_send(&b);
        }
        if (b.status != LARDER_OK) {
            break;
        }
        ldr_tcp_window_t *w = window_back(&b, &results);
        if (w != NULL) {
            get_take(&b, w, &results);
        }
    }
    ldr_tcp_end(&b);
}

/* ---- saving ---- */

larder_status_t ldr_tcp_ask(ldr_talk_t *v, uint16_t opcode, uint32_t flags,
                            const larder_item_t *const *items, uint32_t count,
                            ldr_results_t *results)
{
    uint8_t *at = ldr_body(v->call.buffer);
    ldr_batch_msg_t batch = {.space = v->space, .count = count, .flags = flags};
    size_t bytes = ldr_put_batch(at, &batch);

    for (uint32_t i = 0; i < count; i++, bytes += LDR_NAME_BYTES) {
        ldr_row_name(at + bytes, items[i], 0);
    }
    larder_status_t st = ldr_talk_call(v, opcode, bytes);
    if (st == LARDER_OK && (!ldr_get_results(at, v->call.reply.body, results) ||
                            results->count != count)) {
        ldr_conn_of(v->link)->broken = true;
        st = ldr_fail(LARDER_E_OFFLINE, "%s: a malformed answer",
                      v->remote->options.address);
    }
    return st;
}

/* Asks which items are there: their bytes are neither read nor sent. */
static void put_ask(ldr_tcp_batch_t *b)
{
    const larder_item_t *items[LDR_TCP_ASK];
    uint16_t index[LDR_TCP_ASK];
    ldr_results_t results;
    uint32_t left = b->todo.count;

    while (left > 0 && b->status == LARDER_OK) {
        uint32_t n = (uint32_t)ldr_min64(left, LDR_TCP_ASK);

        for (uint32_t i = 0; i < n; i++) {
            index[i] = (uint16_t)ldr_todo_pop(&b->todo);
            items[i] = &b->op->items[index[i]];
        }
        left -= n;
        b->status = ldr_tcp_ask(&b->talk, LDR_OP_EXISTS, LDR_BATCH_QUIET, items,
                                n, &results);
        for (uint32_t i = 0; i < n; i++) {
            ldr_result_row_t row;

            if (b->status != LARDER_OK) {
                refuse(b, index[i]);
            } else if (ldr_get_result(
                           results.rows + (size_t)i * LDR_RESULT_BYTES, &row) &&
                       row.status == LARDER_OK) {
                b->op->items[index[i]].status = LARDER_PRESENT;
            } else {
                ldr_todo_push(&b->todo, index[i]);
            }
        }
    }
}

static uint32_t item_crc(const larder_item_t *item)
{
    uint32_t crc = 0;

    for (uint32_t i = 0; i < item->iov_count; i++) {
        crc = ldr_crc32c(crc, item->iov[i].iov_base, item->iov[i].iov_len);
    }
    return crc;
}

/* The items' buffers, one after the other. NULL: there are too many. */
static const struct iovec *put_iov(ldr_tcp_batch_t *b,
                                   const ldr_tcp_window_t *w, uint32_t *count_p)
{
    uint32_t n = 0;

    if (w->count == 1) {
        *count_p = b->op->items[w->item[0]].iov_count;
        return b->op->items[w->item[0]].iov;
    }
    for (uint32_t i = 0; i < w->count; i++) {
        const larder_item_t *item = &b->op->items[w->item[i]];

        memcpy(b->iov + n, item->iov, item->iov_count * sizeof(*item->iov));
        n += item->iov_count;
    }
    *count_p = n;
    return b->iov;
}

static void put_send(ldr_tcp_batch_t *b)
{
    ldr_tcp_window_t *w = window_new(b);
    uint64_t sum = 0;
    uint32_t pieces = 0;

    if (w == NULL) {
        return;
    }
    uint8_t *at = ldr_body(w->call.buffer);
    size_t bytes = LDR_BATCH_HEAD_BYTES;
    while (b->todo.count > 0 && w->count < LDR_TCP_ITEMS) {
        const larder_item_t *item = &b->op->items[b->todo.item[b->todo.head]];
        size_t length = ldr_item_bytes(item);

        if (w->count > 0 && (sum + length > LDR_TCP_PUT_BYTES ||
                             pieces + item->iov_count > LARDER_IOV_MAX)) {
            break;
        }
        ldr_save_row_t row = ldr_row_save(item, length);
        row.crc = item_crc(item);
        w->item[w->count++] = (uint16_t)ldr_todo_pop(&b->todo);
        ldr_put_save(at + bytes, &row);
        bytes += LDR_SAVE_BYTES;
        sum += length;
        pieces += item->iov_count;
    }
    ldr_batch_msg_t batch = {.space = b->talk.space, .count = w->count};
    ldr_put_batch(at, &batch);
    w->call.opcode = LDR_OP_PUT;
    w->call.bytes = (uint32_t)bytes;
    const struct iovec *iov = put_iov(b, w, &pieces);
    window_sent(
        b, w,
        ldr_conn_send(b->conn, &w->call, iov, pieces, sum, &b->talk.stop));
}

static void put_take(ldr_tcp_batch_t *b, const ldr_tcp_window_t *w,
                     const ldr_results_t *results)
{
    for (uint32_t i = 0; i < w->count; i++) {
        ldr_result_row_t row;

        if (ldr_get_result(results->rows + (size_t)i * LDR_RESULT_BYTES,
                           &row)) {
            b->op->items[w->item[i]].status = row.status;
        } else {
            b->op->items[w->item[i]].status = LARDER_E_OFFLINE;
            b->conn->broken = true;
        }
    }
}

/* LARDER_VERIFY_PUT: compares by length and checksum what is there with what
 * was to be saved. What cannot be compared is taken for the same; with
 * b->status also all that would come after it. */
static void put_compare(ldr_tcp_batch_t *b, larder_item_t *item)
{
    const larder_item_t *one = item;
    ldr_results_t results;
    ldr_result_row_t row;

    larder_status_t st =
        ldr_tcp_ask(&b->talk, LDR_OP_LEASE, LDR_BATCH_AGAIN, &one, 1, &results);
    if (st == LARDER_E_DEADLINE || st == LARDER_E_CANCELED ||
        st == LARDER_E_OFFLINE) {
        b->status = st;
    }
    if (st != LARDER_OK || !ldr_get_result(results.rows, &row) ||
        row.status != LARDER_OK) {
        return;
    }
    ldr_conn_release(b->conn, b->conn->session, &row.lease, 1);
    if (row.length != ldr_item_bytes(item) || row.crc != item_crc(item)) {
        item->status = LARDER_E_MISMATCH;
    }
}

void ldr_tcp_put(ldr_op_t *op)
{
    ldr_tcp_batch_t b;
    ldr_results_t results;

    if (!ldr_tcp_begin(&b, op)) {
        return;
    }
    put_ask(&b);
    while (b.status == LARDER_OK && (b.todo.count > 0 || b.flying > 0)) {
        b.status = ldr_talk_stopped(&b.talk);
        if (b.status != LARDER_OK) {
            break;
        }
        if (b.todo.count > 0 && b.flying < b.depth) {
            put_send(&b);
            continue;
        }
        const ldr_tcp_window_t *w = window_back(&b, &results);
        if (w != NULL) {
            put_take(&b, w, &results);
        }
    }
    for (size_t i = 0; (op->flags & LARDER_VERIFY_PUT) != 0 && i < op->count &&
                       b.status == LARDER_OK;
         i++) {
        if (op->items[i].status == LARDER_PRESENT) {
            put_compare(&b, &op->items[i]);
        }
    }
    ldr_tcp_end(&b);
}

const ldr_data_path_t ldr_data_path_tcp = {
    .links = &ldr_links_pool,
    .get = ldr_tcp_get,
    .put = ldr_tcp_put,
    .keep = ldr_tcp_keep,
    .map = ldr_tcp_map,
    .segments = ldr_tcp_segments,
    .drop = ldr_tcp_drop,
    .reserve = ldr_tcp_reserve,
    .commit = ldr_tcp_commit,
};
