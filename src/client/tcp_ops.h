/* What loading and saving by TCP have in common. */
#pragma once

#include "client/remote.h"
#include "client/todo.h"
#include "net/pool.h"

#define LDR_TCP_DEPTH 4u             /* requests sent ahead */
#define LDR_TCP_ITEMS 64u            /* of one GET or PUT */
#define LDR_TCP_GET_BYTES (8u << 20) /* of buffers, in one GET */
#define LDR_TCP_PUT_BYTES (1u << 20) /* in one PUT */
#define LDR_TCP_ASK 1024u            /* names in one question */

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
    ldr_talk_t talk;
    ldr_conn_t *conn;
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
larder_status_t ldr_tcp_ask(ldr_talk_t *v, uint16_t opcode, uint32_t flags,
                            const larder_item_t *const *items, uint32_t count,
                            ldr_results_t *results);

/* The data path (tcp_ops.c, tcp_lease.c). */
void ldr_tcp_get(ldr_op_t *op);
void ldr_tcp_put(ldr_op_t *op);
larder_status_t ldr_tcp_keep(ldr_talk_t *v, larder_lease_t *lease,
                             uint64_t number);
larder_status_t ldr_tcp_map(larder_space_t *space, larder_lease_t *lease,
                            const larder_key_t *keys, uint16_t group,
                            uint64_t deadline_ns, larder_match_t *match);
larder_status_t ldr_tcp_segments(const larder_lease_t *lease, uint32_t at,
                                 struct iovec *seg, uint32_t seg_max,
                                 uint32_t *seg_count_p);
void ldr_tcp_drop(larder_lease_t *lease);
larder_status_t ldr_tcp_reserve(larder_space_t *space, larder_item_t *items,
                                size_t count, uint64_t deadline_ns,
                                larder_lease_t *lease);
larder_status_t ldr_tcp_commit(larder_lease_t *lease, const uint8_t *keep,
                               const uint32_t *crcs, uint64_t deadline_ns);
