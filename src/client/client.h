/*
 * The handle behind larder.h: spaces, leases, and the requests that are
 * carried out for callers, on a backend (handle_ops.h).
 *
 * Lock order: the node's lock, then lar->lock. lar->lock is never held while
 * the backend is called.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/options.h"
#include "client/handle_ops.h"
#include "larder/larder.h"
#include "layout/layout.h"
#include "net/session.h"
#include "node/load.h"
#include "node/node.h"
#include "wire/wire.h"

#define LDR_LOADS_MAX 64u /* loads of one request in flight: bits of a mask */

/* Pages in a GPU's memory. An item's one buffer is only as long as they are:
 * nobody reads or writes it. */
typedef struct ldr_op_gpu {
    larder_gpu_t *gpu;
    void *after;            /* a CUevent that comes first; NULL: none */
    const uint8_t *nowhere; /* get: pages in this range are not written */
    size_t nowhere_bytes;
    /* Lists an item's pages when it is its turn to be copied. The list is the
     * caller's, and holds until the next is made. */
    larder_status_t (*list)(void *arg, const larder_item_t *item,
                            ldr_page_list_t *list_p);
    /* get: waits until lists can be made, and tells what comes first
     * (after). Nothing is written before. NULL: they can. It may be asked more
     * than once */
    larder_status_t (*ready)(void *arg, void **after_p);
    void *arg;
} ldr_op_gpu_t;

/* A get of what is staged. */
typedef struct ldr_op_load {
    /* By shared memory it is asked for by this, and by each item's depth, which
     * is its chunk's number; otherwise by its keys. */
    const larder_token_t *token;
    /* By shared memory, in the host's memory: makes an item's list of buffers,
     * when it is its turn to be copied. Until then one buffer of as many bytes
     * stands for them. NULL: the lists are there. */
    larder_status_t (*list)(void *arg, larder_item_t *item);
    void *arg;
} ldr_op_load_t;

/* A request: a batch of items. A blocking call has it on its stack, a ticket
 * in the handle's pool. One thread at a time steps it. */
typedef struct ldr_op {
    larder_t *lar;
    larder_op_t kind;
    uint32_t space, shards; /* space: an embedded node's number of it */
    ldr_space_ref_t ref;
    larder_item_t *items;
    size_t count;
    uint32_t flags;
    uint64_t deadline_ns;
    bool canceled;
    const ldr_op_gpu_t *gpu;   /* NULL: buffers are in the host's memory */
    const ldr_op_load_t *load; /* NULL: nothing more is known of it */

    /* Of an embedded node (local.c) */
    size_t next;         /* first item not begun */
    uint64_t used_mask;  /* loads in use */
    uint64_t ready_mask; /* of those, settled; under lar->lock */
    size_t load_item[LDR_LOADS_MAX];
    ldr_load_t loads[LDR_LOADS_MAX];
    uint64_t tier_bytes[LARDER_TIERS_MAX], begin_ns; /* for measuring */

    pthread_cond_t *wake; /* of a blocking call; NULL: a ticket */

    /* A ticket, under lar->lock */
    larder_ticket_t ticket;
    void *user;
    larder_status_t status;
    enum {
        LDR_OP_FREE,
        LDR_OP_QUEUED,
        LDR_OP_RUNNING,
        LDR_OP_WAITING,
        LDR_OP_DONE
    } state;
    bool again;          /* while running: step once more */
    struct ldr_op *link; /* of the free list, the queue, or the done list */
} ldr_op_t;

typedef struct ldr_op_list {
    ldr_op_t *head, *tail;
} ldr_op_list_t;

/* What a space's handle asked for lately (asked.c): requests, and the chunks of
 * theirs. */
typedef struct ldr_asked {
    uint32_t number; /* 0: none */
    uint32_t s;      /* when */
    uint32_t group;
    bool used; /* it was staged: whoever asks now begins another request */
} ldr_asked_t;

/* Four bytes, so that a long chain touches few lines of the cache. Two chunks
 * that look alike here, about one in 16,000, cost a figure and nothing else. */
typedef struct ldr_asked_chunk {
    uint16_t number;    /* the request's, its last 16 bits; 0: none */
    uint16_t head : 14; /* of its key, above those that choose its place */
    uint16_t found : 1;
    uint16_t last : 1; /* of all that the request asked for */
} ldr_asked_chunk_t;

#define LDR_ASKED_MAX 256u
#define LDR_ASKED_CHUNKS 4096u

struct larder_space {
    larder_t *lar;   /* NULL: the handle is closed */
    uint32_t number; /* an embedded node's */
    uint32_t shards;
    uint32_t chunk_tokens;
    uint32_t
        page_tokens; /* of SGLang's, whose page hashes are the keys; or 0 */
    uint32_t run;   /* chunks that a cluster places as one; 1: each by itself */
    bool announces; /* atomic: its caller does it, other calls need not */
    uint8_t root[32];
    ldr_space_ref_t ref;
    larder_space_t *prev, *next;
    pthread_mutex_t asked_lock;
    uint32_t asked_number;                            /* of the last request */
    ldr_asked_t asked[LDR_ASKED_MAX];                 /* by number */
    ldr_asked_chunk_t asked_chunks[LDR_ASKED_CHUNKS]; /* by key */
};

/* One item of a reservation. */
typedef struct ldr_room {
    larder_status_t status; /* OK: it has room */
    size_t length;
    uint64_t lease;          /* local: the shard; remote: the lease's number */
    uint32_t seg, seg_count; /* shm: in the lease's segments */
    uint8_t *memory;         /* tcp: private, until it is sent */
    ldr_save_row_t save;     /* tcp */
} ldr_room_t;

struct larder_lease {
    larder_t *lar; /* NULL: the handle is closed, nothing is held */
    ldr_space_ref_t space;
    uint32_t number; /* an embedded node's number of the space */
    uint32_t chunks, shards;
    uint32_t total;    /* shards that it holds */
    uint32_t capacity; /* of ids */
    bool in_place;     /* of one group, from its first chunk: to be read */
    larder_token_t token;
    bool reserved; /* for writing: rooms; otherwise chunks * shards */
    bool silent;   /* reserved: its commit waits for no answer, if it can */
    ldr_room_t *rooms;
    uint32_t room_count;
    uint32_t booked; /* what it counts as, against option leases */
    void *held;      /* what a remote backend keeps */
    larder_lease_t *prev, *next;
    uint32_t ids[]; /* an embedded node's: resident shards */
};

struct larder {
    const ldr_handle_ops_t *backend;
    const ldr_lease_ops_t *leasing;
    ldr_node_t *node;     /* of an embedded handle; NULL otherwise */
    ldr_remote_t *remote; /* of one that speaks to a daemon */
    const struct ldr_data_path *data_path; /* likewise */
    const ldr_options_t *options;
    const ldr_clock_t *clock;
    const ldr_log_t *log;
    bool poison_logged;  /* a broken invariant was, in the log */
    bool manual;         /* no threads: the node's driver is the caller */
    uint64_t fork_count; /* when it was opened */
    /* Of spaces that are opened without one; wiped at close. */
    uint8_t secret[LDR_SECRET_MAX + 2];
    size_t secret_bytes;

    pthread_mutex_t lock;
    pthread_cond_t work;    /* for workers: something is queued */
    pthread_cond_t drained; /* for larder_drain(): something is done */
    int event_fd;
    bool stop;
    ldr_op_t *ops;
    ldr_op_t *op_free;
    ldr_op_list_t queue, done;
    pthread_t *workers;
    unsigned worker_count;
    /* Of a daemon's handle: ends tickets whose time came in the queue */
    pthread_t late;
    bool late_runs;
    pthread_cond_t late_wake;
    uint64_t late_ns; /* when it looks next */

    larder_space_t *spaces;
    uint64_t space_uid; /* of the last one opened */
    larder_lease_t *leases;
    larder_lease_t *lease_cache; /* freed ones, for the next stage */
    unsigned lease_cached;
    uint64_t leased; /* against option leases */
};

/* LARDER_OK, or why the handle cannot be used. Clears the error text. */
larder_status_t ldr_handle_check(larder_t *lar);
larder_status_t ldr_space_check(const larder_space_t *space);

/* timeout_ms, with 0 for the handle's default, as a time. */
uint64_t ldr_deadline(const larder_t *lar, uint32_t timeout_ms);

/* Opens the handle on a node made by the caller: larder_open() and tests. */
larder_status_t ldr_handle_open(ldr_node_t *node, larder_t **lar_p);

/* Opens the handle on a daemon: larder_open() and tests. */
larder_status_t ldr_handle_connect(const ldr_options_t *options,
                                   const ldr_net_env_t *env, larder_t **lar_p);

/* ---- requests and tickets (ops.c) ---- */

larder_status_t ldr_ops_create(larder_t *lar);
/* Ends all tickets and the workers. */
void ldr_ops_destroy(larder_t *lar);

/* Sets the item's results to nothing, and checks what is given. */
larder_status_t ldr_item_check(larder_op_t kind, uint32_t shards,
                               larder_item_t *item);
/* The same of a request's. Those of a layout's moves (op->load is not NULL) may
 * have more buffers than LARDER_IOV_MAX. */
larder_status_t ldr_op_check(const ldr_op_t *op, larder_item_t *item);

/* larder_run(), by buffers in a GPU's memory if gpu is not NULL: then only by
 * shared memory (gpu.c does it otherwise). load: NULL, or more of a get. */
larder_status_t ldr_run(larder_space_t *space, larder_op_t kind,
                        larder_item_t *items, size_t count,
                        const larder_op_params_t *params,
                        const ldr_op_gpu_t *gpu, const ldr_op_load_t *load);

/* ---- GPU memory (gpu.c) ---- */

/* larder_run() of gets or puts by buffers in a GPU's memory, any transport. */
larder_status_t ldr_run_gpu(larder_space_t *space, larder_op_t kind,
                            larder_item_t *items, size_t count,
                            const larder_op_params_t *params,
                            const ldr_op_gpu_t *gpu, const ldr_op_load_t *load);
/* Ends what larder_gpu_attach() began. */
void ldr_gpu_detach(larder_t *lar);

/* The load of this bit has settled: whoever steps the request hears of it. */
void ldr_op_ready(ldr_op_t *op, uint64_t bit);

static inline ldr_stop_t ldr_op_stop(const ldr_op_t *op)
{
    return (ldr_stop_t){&op->canceled, op->deadline_ns};
}

/* ---- requests (announce.c) ---- */

/* Tells the node of a chain by itself, unless its caller does; saves: for a
 * save. What comes of it does not matter. */
void ldr_announce(larder_space_t *space, const larder_key_t *keys, size_t count,
                  bool saves, uint32_t hint, uint64_t deadline_ns);

/* ---- what was asked for (asked.c) ---- */

#define LDR_ASKED_GROUPS 0xffffu /* a group's number: all of a layout's */

/* Whether this chain is part of what the handle has asked for just now; holds:
 * to be staged, which ends that. */
bool ldr_asked_before(larder_space_t *space, const larder_key_t *keys,
                      size_t count, uint32_t group, bool holds);
/* It was not: remembers it, and that the first `found` chunks were there. */
void ldr_asked_note(larder_space_t *space, const larder_key_t *keys,
                    size_t count, uint32_t group, size_t found, bool holds);
/* The same of a batch of EXISTS or GET, most of it; and what exists. */
bool ldr_asked_items(larder_space_t *space, larder_op_t kind,
                     const larder_item_t *items, size_t count);
void ldr_asked_existed(larder_space_t *space, const larder_item_t *items,
                       size_t count);

/* ---- what a tenant has (remote.c) ---- */

/* The next page, of a handle that speaks to a daemon; see ldr_node_list(). */
larder_status_t ldr_remote_list(larder_t *lar, uint32_t *cursor_p,
                                ldr_list_row_t *rows, uint32_t max,
                                uint32_t *count_p);

/* ---- leases (lease.c) ---- */

typedef struct ldr_prefix ldr_prefix_t; /* node/stage.h */

/* A lease with room for so many ids, of nothing yet; NULL: no memory. */
larder_lease_t *ldr_lease_new(larder_t *lar, uint32_t ids);
/* It holds nothing, and is none of the handle's: keeps it for the next. */
void ldr_lease_unused(larder_t *lar, larder_lease_t *lease);
/* Stages a prefix, of which the node is told by somebody else. MISS: *lease_p
 * is NULL. */
larder_status_t ldr_stage(larder_space_t *space, const ldr_prefix_t *prefix,
                          const larder_stage_params_t *worth,
                          uint64_t deadline_ns, larder_lease_t **lease_p,
                          larder_match_t *match_p);

void ldr_leases_close(larder_t *lar);
