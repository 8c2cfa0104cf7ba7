/*
 * The backend on a daemon, on sessions of net/session.h. Shards are moved by
 * transfers (transfer.h), over the row of their transport (shm_path.c,
 * tcp_path.c).
 */
#pragma once

#include "client/client.h"
#include "net/session.h"

struct ldr_transfer; /* transfer.h */
struct ldr_ask;

/* How shards travel: a row for each transport. */
typedef struct ldr_data_path {
    const ldr_links_t *links;
    /* Payload travels with requests and replies. Otherwise replies name
     * segments, which are copied here and given back by end(). */
    bool carries;
    uint16_t get, put; /* opcodes: GET and PUT, or LEASE and RESERVE */

    /* Sets what the transport wants of a transfer. */
    void (*begin)(struct ldr_transfer *t);
    larder_status_t (*send)(struct ldr_transfer *t, struct ldr_ask *q);
    /* Waits for a reply to one of the requests under way. *q_p: the one that is
     * over, also if it failed; NULL: none is. */
    larder_status_t (*recv)(struct ldr_transfer *t, struct ldr_ask **q_p);
    /* The reply is not needed any more. */
    void (*done)(struct ldr_transfer *t, struct ldr_ask *q);
    /* Nobody waits for the reply. */
    void (*forget)(struct ldr_transfer *t, struct ldr_ask *q);
    /* The daemon sent what cannot be: the session is over. */
    void (*breaks)(ldr_link_t *link);

    /* Copies a shard out of its segments or the reply's payload. check: *crc_p
     * is the checksum of its bytes. */
    larder_status_t (*copy_out)(struct ldr_transfer *t, struct ldr_ask *q,
                                const larder_item_t *item,
                                const ldr_result_row_t *row,
                                const uint8_t *segs, bool check,
                                uint32_t *crc_p);
    /* Without carries: copies one into its segments; and the checksum of what
     * lies there. */
    larder_status_t (*copy_in)(struct ldr_transfer *t,
                               const larder_item_t *item,
                               const ldr_result_row_t *row, const uint8_t *segs,
                               uint32_t *crc_p);
    larder_status_t (*sum)(struct ldr_transfer *t, const ldr_result_row_t *row,
                           const uint8_t *segs, uint32_t *crc_p);
    /* RELEASE or COMMIT, which nobody waits for. E_OFFLINE: the session is
     * over, and nobody knows if the daemon has heard of it. */
    larder_status_t (*end)(ldr_link_t *link, uint16_t opcode,
                           const ldr_end_row_t *rows, uint32_t count);

    /* The lease keeps a STAGE's hold of this number, which is the session's.
     * E_NO_MEMORY: it was released. */
    larder_status_t (*keep)(ldr_talk_t *v, larder_lease_t *lease,
                            uint64_t number);
    const ldr_lease_ops_t *leasing;
} ldr_data_path_t;

extern const ldr_data_path_t ldr_data_path_shm;
extern const ldr_data_path_t ldr_data_path_tcp;

larder_status_t ldr_remote_open(larder_t *lar, const ldr_options_t *options,
                                const ldr_net_env_t *env);

/* ---- what data paths say of items (items.c) ---- */

/* An item that was not carried out: a miss with its cause, or the status. */
void ldr_item_refuse(larder_op_t kind, larder_item_t *item,
                     larder_status_t why);
/* A batch that did not get as far as its items. */
void ldr_op_refuse(ldr_op_t *op, larder_status_t why);

/* A batch of names, saves or places, while it is composed: items that follow
 * each other and are shards of one chunk, one after the other, share a row. */
typedef struct ldr_rows_out {
    uint8_t *at; /* the body, which has room for LDR_BODY_MAX */
    uint32_t row_bytes;
    bool ranges;       /* the daemon knows them */
    size_t bytes;      /* of head and rows */
    uint32_t row_more; /* of the last row */
    const larder_item_t *last;
    ldr_batch_msg_t batch;
} ldr_rows_out_t;

/* token: of places, or NULL. */
ldr_rows_out_t ldr_rows_begin(const ldr_talk_t *v, uint8_t *at,
                              uint32_t row_bytes, const larder_token_t *token);
/* bytes: a name's room, a save's length. The item stays until the next. */
void ldr_rows_add(ldr_rows_out_t *o, const larder_item_t *item, uint64_t bytes,
                  uint32_t crc);
/* Gives the bytes of the request. */
size_t ldr_rows_end(ldr_rows_out_t *o, uint32_t flags);

ldr_save_row_t ldr_row_save(const larder_item_t *item, size_t length);

/* Of a lease of match's chunks so many are right, with so many bytes. A
 * deadline or a daemon that died ends a prefix like any cause. */
larder_status_t ldr_mapped(larder_status_t st, larder_cause_t cause,
                           uint32_t chunks, uint64_t bytes,
                           larder_match_t *match);
/* LEASE of shards first, first + 1, ... of what a lease for reading in place
 * holds; gives the bytes of the request. */
size_t ldr_put_places(uint8_t *at, const ldr_talk_t *v,
                      const larder_lease_t *lease, uint16_t group,
                      uint32_t first, uint32_t count);

/* Tells the daemon that these shards' bytes were wrong. */
void ldr_report(ldr_talk_t *v, larder_item_t *const *items, uint32_t count);
