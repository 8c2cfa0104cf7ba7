/* Transfers over streams: payload travels with the frames. */
#include "client/tcp_path.h"

#include <string.h>

#include "client/transfer.h"

#define GET_BYTES (8u << 20) /* of buffers, in one GET */
#define PUT_BYTES (1u << 20) /* in one PUT */

static ldr_conn_t *conn_of(ldr_transfer_t *t)
{
    return ldr_conn_of(t->talk.link);
}

static void tcp_begin(ldr_transfer_t *t)
{
    t->ahead = LDR_ASKS;
    t->most_bytes = t->op->kind == LARDER_OP_GET ? GET_BYTES : PUT_BYTES;
    t->first_bytes = t->most_bytes;
    t->end_bytes = UINT64_MAX;
    t->answers = false;
}

/* The items' buffers go behind a PUT, one after the other. */
static larder_status_t send_put(ldr_transfer_t *t, ldr_ask_t *q)
{
    const larder_item_t *items = t->op->items, *first = &items[q->item[0]];
    struct iovec all[LARDER_IOV_MAX];
    uint64_t bytes = 0;
    uint32_t n = 0;

    for (uint32_t i = 0; i < q->count; i++) {
        const larder_item_t *item = &items[q->item[i]];

        if (q->count > 1) {
            memcpy(all + n, item->iov, item->iov_count * sizeof(*item->iov));
        }
        n += item->iov_count;
        bytes += ldr_item_bytes(item);
    }
    return ldr_conn_send(conn_of(t), &q->call, q->count > 1 ? all : first->iov,
                         n, bytes, &t->talk.stop);
}

static larder_status_t tcp_send(ldr_transfer_t *t, ldr_ask_t *q)
{
    return q->call.opcode == LDR_OP_PUT
               ? send_put(t, q)
               : ldr_conn_send(conn_of(t), &q->call, NULL, 0, 0, &t->talk.stop);
}

static larder_status_t tcp_recv(ldr_transfer_t *t, ldr_ask_t **q_p)
{
    ldr_call_t *call = NULL;
    larder_status_t st = ldr_conn_recv(conn_of(t), &t->talk.stop, &call);

    if (st == LARDER_OK) {
        ldr_ask_t *q = t->ask;

        while (&q->call != call) {
            q++;
        }
        q->payload = call->reply.payload;
        *q_p = q;
    }
    return st;
}

/* Of a reply that was not taken to its end, the rest is skipped. */
static void tcp_done(ldr_transfer_t *t, ldr_ask_t *q)
{
    conn_of(t)->skip = q->payload;
    conn_of(t)->broken |= q->payload > LDR_CONN_SKIP_MAX;
}

static void tcp_forget(ldr_transfer_t *t, ldr_ask_t *q)
{
    ldr_conn_forget(conn_of(t), &q->call, q->payload);
}

static void tcp_breaks(ldr_link_t *link)
{
    ldr_conn_of(link)->broken = true;
}

static larder_status_t tcp_copy_out(ldr_transfer_t *t, ldr_ask_t *q,
                                    const larder_item_t *item,
                                    const ldr_result_row_t *row,
                                    const uint8_t *segs, bool check,
                                    uint32_t *crc_p)
{
    ldr_list_t to = ldr_list(item->iov, item->iov_count);
    uint64_t left = row->length;

    (void)segs;
    (void)check; /* always */
    if (row->length > ldr_item_bytes(item) || row->length > q->payload) {
        conn_of(t)->broken = true;
        return LARDER_E_OFFLINE;
    }
    larder_status_t st = ldr_conn_payload(conn_of(t), &to, row->length,
                                          &t->talk.stop, crc_p, &left);
    q->payload -= row->length - left;
    return st;
}

static larder_status_t tcp_end(ldr_link_t *link, uint16_t opcode,
                               const ldr_end_row_t *rows, uint32_t count)
{
    ldr_conn_t *c = ldr_conn_of(link);

    (void)opcode; /* nothing is committed by it */
    for (uint32_t i = 0; i < count; i++) {
        ldr_conn_release(c, c->session, &rows[i].lease, 1);
    }
    return LARDER_OK;
}

const ldr_data_path_t ldr_data_path_tcp = {
    .links = &ldr_links_pool,
    .carries = true,
    .get = LDR_OP_GET,
    .put = LDR_OP_PUT,
    .begin = tcp_begin,
    .send = tcp_send,
    .recv = tcp_recv,
    .done = tcp_done,
    .forget = tcp_forget,
    .breaks = tcp_breaks,
    .copy_out = tcp_copy_out,
    .end = tcp_end,
    .keep = ldr_tcp_keep,
    .leasing = &ldr_leases_tcp,
};
