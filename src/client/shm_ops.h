/* What loading and saving by shared memory have in common. */
#pragma once

#include "client/shm.h"
#include "client/todo.h"

#define LDR_SHM_SEGS 1024u /* of one shard: 60 MiB of single pages */

/* A request for some of them. */
typedef struct ldr_shm_window {
    ldr_call_t call;
    bool sent;
    bool alone; /* nothing of the batch was held when it was sent */
    uint32_t count;
    uint16_t item[LDR_SHM_ITEMS];
} ldr_shm_window_t;

/* A batch under way. Two windows: one is worked on, the next is asked for. */
typedef struct ldr_shm_batch {
    ldr_op_t *op;
    ldr_talk_t talk;
    ldr_shm_session_t *session;
    ldr_todo_t todo;
    ldr_shm_window_t window[2];
    unsigned now;           /* the window being worked on */
    bool begun;             /* a window was sent */
    bool progress;          /* its reply brought something */
    larder_status_t status; /* not OK: why the rest is not carried out */
    void *own;              /* whose work it is */
} ldr_shm_batch_t;

/* Composes window->item and the request: its opcode and bytes. Pops at least
 * one. */
typedef void (*ldr_shm_ask_t)(ldr_shm_batch_t *b, ldr_shm_window_t *w);
/* Does what the reply allows for, item by item; results lie in the window's
 * buffer. */
typedef void (*ldr_shm_work_t)(ldr_shm_batch_t *b, ldr_shm_window_t *w,
                               const ldr_results_t *results);

/* How many bytes the next window may be of, of at most so many. */
uint64_t ldr_shm_window_bytes(const ldr_shm_batch_t *b, uint64_t most);

/* Runs the batch; sets every item. */
void ldr_shm_run(ldr_op_t *op, ldr_shm_ask_t ask, ldr_shm_work_t work);
/* The same for work that needs all replies: finish() is called once, when there
 * are no more of them, whatever b->status is. */
void ldr_shm_run_whole(ldr_op_t *op, ldr_shm_ask_t ask, ldr_shm_work_t work,
                       void (*finish)(ldr_shm_batch_t *b), void *own);

/* The next result, and where its segments begin. False: it cannot be. */
typedef struct ldr_rows {
    const ldr_results_t *results;
    uint32_t at, seg;
} ldr_rows_t;

bool ldr_rows_next(ldr_rows_t *rows, ldr_result_row_t *row,
                   const uint8_t **segs_p);
/* The same for an item of the batch. False: the reply is none, the session is
 * over, and the item is answered. */
bool ldr_shm_row(ldr_shm_batch_t *b, larder_item_t *item, ldr_rows_t *rows,
                 ldr_result_row_t *row, const uint8_t **segs_p);

/* How many of the rows are OK. */
uint32_t ldr_rows_ok(const ldr_results_t *results);

/* The checksum of bytes in place, or E_DEADLINE and the like. */
larder_status_t ldr_pieces_crc(const ldr_clock_t *clock,
                               const ldr_piece_map_t *pieces, uint32_t count,
                               const ldr_stop_t *stop, uint32_t *crc_p);

/* Zeros behind a shard's bytes, up to the end of their block. */
void ldr_pieces_pad(const ldr_piece_map_t *p);

/* Requests for the next items: as many bytes as a window may have. */
void ldr_shm_ask_lease(ldr_shm_batch_t *b, ldr_shm_window_t *w);
void ldr_shm_ask_reserve(ldr_shm_batch_t *b, ldr_shm_window_t *w);
/* Whether a leased row is to be asked for again: a miss for want of room in
 * DRAM, or of leases, is none while this batch itself holds some. ok: how many
 * of the window's rows are. */
bool ldr_shm_ask_again(const ldr_shm_window_t *w, const ldr_result_row_t *row,
                       uint32_t ok);
/* Commits or aborts reservations, and sets the items' statuses where the
 * daemon has to say something to it. */
void ldr_shm_put_end(ldr_shm_batch_t *b, ldr_end_row_t *ends, uint32_t count,
                     larder_item_t *const *items);

/* By a GPU's memory (shm_gpu.c) */
void ldr_shm_get_gpu(ldr_op_t *op);
void ldr_shm_put_gpu(ldr_op_t *op);
/* And layer by layer (shm_layers.c) */
void ldr_shm_get_layers(ldr_op_t *op);

/* ---- leases (shm_lease.c, shm_room.c) ---- */

/* One shard that is held. */
typedef struct ldr_held_shard {
    uint64_t lease;
    uint32_t piece, piece_count;
    bool checked;
} ldr_held_shard_t;

/* What a lease holds; rooms of a reservation have their numbers themselves. */
typedef struct ldr_held {
    ldr_shm_session_t *session; /* a reference */
    bool staged;                /* it has a STAGE's hold, of this number */
    uint64_t stage;
    ldr_held_shard_t *shards;
    uint32_t count;
    ldr_piece_map_t *pieces;
    uint32_t piece_count, piece_room;
} ldr_held_t;

/* With a reference to the session, for so many shards; NULL: no memory. */
ldr_held_t *ldr_held_new(ldr_shm_session_t *s, uint32_t shards);
/* What it holds has been given back. */
void ldr_held_free(ldr_held_t *h);
/* Maps a row's segments behind those that are there; *piece_p: the first. */
larder_status_t ldr_held_map(ldr_held_t *h, const ldr_result_row_t *row,
                             const uint8_t *segs, const ldr_stop_t *stop,
                             uint32_t *piece_p);
