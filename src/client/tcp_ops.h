/* What loading and saving by TCP have in common. */
#pragma once

#include "client/tcp.h"
#include "client/todo.h"

#define LDR_TCP_ASK 1024u /* names in one question */

/* A request for some items, under way. */
typedef struct ldr_tcp_window {
    ldr_call_t call;
    bool busy;
    bool alone;       /* nothing else of the batch was under way */
    uint64_t payload; /* that may come back, at most */
    uint32_t count;
    uint16_t item[LDR_TCP_ITEMS];
} ldr_tcp_window_t;

typedef struct ldr_tcp_batch {
    ldr_op_t *op;
    ldr_visit_t visit;
    ldr_tcp_conn_t *conn;
    ldr_todo_t todo;
    ldr_tcp_window_t window[LDR_TCP_DEPTH];
    uint32_t flying, depth;
    larder_status_t status; /* not OK: why the rest is not carried out */
    larder_item_t *corrupt[LDR_TCP_ITEMS];
    uint32_t corrupt_count;
    struct iovec iov[LARDER_IOV_MAX]; /* of one PUT */
} ldr_tcp_batch_t;

/* False: refused, every item is set. */
bool ldr_tcp_begin(ldr_tcp_batch_t *b, ldr_op_t *op);
/* Sets what has no answer yet. */
void ldr_tcp_end(ldr_tcp_batch_t *b);

/* EXISTS, LEASE...: one request, one row each. */
larder_status_t ldr_tcp_ask(ldr_visit_t *v, uint16_t opcode, uint32_t flags,
                            const larder_item_t *const *items, uint32_t count,
                            ldr_results_t *results);
