/*
 * Shards on their way to and from a daemon: requests in flight, whatever
 * the transport.
 *
 * A get is lease, copy, release; a put is reserve, copy, commit. A transfer
 * asks for its shards in requests, of which a few are under way at a time, and
 * works on each reply (get.c, put.c, and shm_lease.c for what stays). How a
 * request travels, and where a shard's bytes are, is the row of the transport
 * (ldr_data_path_t):
 *
 *   shared memory  the reply names segments of the arena. They are mapped and
 *                  copied here, and a RELEASE or COMMIT gives them back, which
 *                  nobody waits for. The next request is sent when a reply has
 *                  come, and answered while the bytes are copied.
 *   streams        payload travels behind a PUT and behind a GET's reply: the
 *                  daemon leases and releases, reserves and commits. Several
 *                  requests are sent before the first reply.
 *
 * Invariants
 *  1. Every item has one answer: it is in unasked, in a request that was sent,
 * or its status is set.
 *  2. What a reply leased or reserved has an end: a row in `ends`, which are
 *     sent before take() returns. What comes after nobody waits for it is given
 *     back by whoever reads it (shm_ring.c, net/conn.c).
 *  3. status is OK, or why the rest is not carried out; it never becomes OK
 *     again.
 */
#pragma once

#include "client/remote.h"

#define LDR_ASKS 4u          /* under way at once */
#define LDR_ASK_ITEMS 1024u  /* of one */
#define LDR_ASK_FEW 64u      /* where not all may be there at once */
#define LDR_SHARD_SEGS 1024u /* of one shard: 60 MiB of single pages */

/* A request for some of the shards. */
typedef struct ldr_ask {
    ldr_call_t call;
    bool sent;
    bool taken;       /* its reply is worked on */
    bool alone;       /* nothing of the transfer was held, or under way */
    uint64_t payload; /* behind the reply: at most; then, what is left of it */
    uint32_t count;
    uint16_t item[LDR_ASK_ITEMS];
} ldr_ask_t;

/* Numbers of items that are still to be asked for, in order; those that have to
 * be asked for again go to the end. */
typedef struct ldr_unasked {
    uint16_t item[LARDER_BATCH_MAX];
    uint32_t head, count;
} ldr_unasked_t;

typedef struct ldr_transfer ldr_transfer_t;

typedef struct ldr_transfer_ops {
    /* Whether there is something to ask for now; answered: the reply that is
     * worked on meanwhile, NULL: none. NULL: what is in unasked. */
    bool (*more)(const ldr_transfer_t *t, const ldr_results_t *answered);
    /* Composes a request: its opcode and bytes, of one shard at least. */
    void (*ask)(ldr_transfer_t *t, ldr_ask_t *q);
    /* Does what the reply allows for, shard by shard. */
    void (*take)(ldr_transfer_t *t, ldr_ask_t *q, const ldr_results_t *results);
} ldr_transfer_ops_t;

struct ldr_transfer {
    const ldr_data_path_t *path;
    const ldr_transfer_ops_t *ops;
    ldr_talk_t talk;
    ldr_op_t *op; /* whose items they are; NULL: they are none */
    void *own;    /* of the operation, where it is no get or put */

    /* What the transport wants, for this transfer (begin()) */
    unsigned ahead;       /* requests that are sent before a reply is awaited */
    uint64_t first_bytes; /* of buffers in the first request, at most, */
    uint64_t most_bytes;  /* and in the others */
    uint64_t end_bytes;   /* after so many, ends are sent */
    bool answers;         /* the daemon answers a COMMIT: it has to copy */

    ldr_ask_t ask[LDR_ASKS];
    unsigned flying;
    bool begun;    /* a request was sent */
    bool progress; /* its reply brought something */
    bool over;     /* no further reply is wanted */
    larder_status_t status;

    uint32_t end_count;
    uint64_t unended_bytes; /* bytes that ends have not been sent for */
    uint32_t corrupt_count;
    struct ldr_bulk *bulk; /* shm_gpu.c */
    ldr_unasked_t unasked;
    ldr_end_row_t ends[LDR_ASK_ITEMS];
    larder_item_t *ended[LDR_ASK_ITEMS]; /* whose they are */
    larder_item_t *corrupt[LDR_ASK_ITEMS];
};

static inline void ldr_unasked_push(ldr_unasked_t *t, uint32_t item)
{
    t->item[(t->head + t->count++) % LARDER_BATCH_MAX] = (uint16_t)item;
}

static inline uint32_t ldr_unasked_pop(ldr_unasked_t *t)
{
    uint32_t item = t->item[t->head];

    t->head = (t->head + 1) % LARDER_BATCH_MAX;
    t->count--;
    return item;
}

/* ---- requests in flight (transfer.c) ---- */

/* A session for it. Not OK: there is none, and ldr_transfer_end() is not to be
 * called. unasked is empty. op: whose items they are, or NULL. */
larder_status_t ldr_transfer_begin(ldr_transfer_t *t, larder_t *lar,
                                   ldr_op_t *op, const ldr_space_ref_t *space,
                                   const ldr_stop_t *stop,
                                   const ldr_transfer_ops_t *ops);
void ldr_transfer_run(ldr_transfer_t *t);
/* Gives up what is under way, answers what has no answer yet, reports what was
 * found to be wrong. st: what became of the daemon. */
void ldr_transfer_end(ldr_transfer_t *t, larder_status_t st);

/* Begins one with the good items of a request in unasked, runs it and ends it;
 * last, if not NULL, comes before the end. Every item is set. */
void ldr_transfer_items(ldr_op_t *op, const ldr_transfer_ops_t *ops,
                        void (*first)(ldr_transfer_t *t),
                        void (*last)(ldr_transfer_t *t));

/* The next result, and where its segments begin. False: it cannot be. */
typedef struct ldr_rows {
    const ldr_results_t *results;
    uint32_t at, seg;
} ldr_rows_t;

bool ldr_rows_next(ldr_rows_t *rows, ldr_result_row_t *row,
                   const uint8_t **segs_p);
/* How many of the rows are OK. */
uint32_t ldr_rows_ok(const ldr_results_t *results);
/* The next result of the transfer. False: the reply is none, and the session is
 * over; item, if it is not NULL, is answered. */
bool ldr_transfer_row(ldr_transfer_t *t, larder_item_t *item, ldr_rows_t *rows,
                      ldr_result_row_t *row, const uint8_t **segs_p);

/* ---- ends ---- */

/* Notes how the lease or reservation of an item ends. True: many bytes have not
 * been told of, and it is time to. */
bool ldr_transfer_ends(ldr_transfer_t *t, larder_item_t *item, uint64_t bytes,
                       const ldr_end_row_t *end);

/* ---- gets and puts (get.c, put.c) ---- */

void ldr_remote_get(ldr_op_t *op);
void ldr_remote_put(ldr_op_t *op);
/* An item was copied, or could not be (st). How its lease ends. */
ldr_end_how_t ldr_get_settle(ldr_transfer_t *t, larder_item_t *item,
                             larder_status_t st, bool check, bool right);
ldr_end_how_t ldr_put_settle(ldr_transfer_t *t, larder_item_t *item,
                             larder_status_t st);

/* ---- to and from a GPU, by shared memory (shm_gpu.c) ---- */

/* Takes a shard in, whose lease ends with the reply's others. */
void ldr_bulk_add(ldr_transfer_t *t, const ldr_results_t *results,
                  larder_item_t *item, const ldr_result_row_t *row,
                  const uint8_t *segs);
/* Copies what was taken in, and settles it. */
void ldr_bulk_finish(ldr_transfer_t *t);

/* ---- names (transfer.c) ---- */

/* EXISTS, LEASE...: one request, one row each. */
larder_status_t ldr_ask_names(ldr_talk_t *v, uint16_t opcode, uint32_t flags,
                              const larder_item_t *const *items, uint32_t count,
                              ldr_results_t *results);
