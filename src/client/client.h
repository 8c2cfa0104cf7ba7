/*
 * The handle behind larder.h, on an embedded node: spaces, leases, and the
 * requests that are carried out for callers.
 *
 * Lock order: the node's lock, then lar->lock. lar->lock is never held while
 * the node is called.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "larder/larder.h"
#include "node/load.h"
#include "node/node.h"

#define LDR_WINDOW 64u /* loads of one request in flight: bits of a mask */
#define LDR_MEMORY_MAX 1024u

/* A request: a batch of items. A blocking call has it on its stack, a ticket
 * in the handle's pool. One thread at a time steps it. */
typedef struct ldr_op {
    larder_t *lar;
    larder_op_t kind;
    uint32_t space, shards;
    larder_item_t *items;
    size_t count;
    uint32_t flags;
    uint64_t deadline_ns;
    bool canceled;

    size_t next;         /* first item not begun */
    uint64_t used_mask;  /* loads in use */
    uint64_t ready_mask; /* of those, settled; under lar->lock */
    size_t load_item[LDR_WINDOW];
    ldr_load_t loads[LDR_WINDOW];
    uint64_t ssd_bytes, begin_ns; /* for measuring the tier */

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

struct larder_space {
    larder_t *lar; /* NULL: the handle is closed */
    uint32_t number;
    uint32_t shards;
    uint32_t chunk_tokens;
    uint8_t root[32];
    larder_space_t *prev, *next;
};

struct larder_lease {
    larder_t *lar; /* NULL: the handle is closed, nothing is held */
    uint32_t chunks, shards;
    uint32_t capacity; /* of ids */
    larder_lease_t *prev, *next;
    uint32_t ids[]; /* resident shards: chunk * shards + shard */
};

struct larder {
    ldr_node_t *node;
    uint64_t fork_count; /* when it was opened */

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

    larder_space_t *spaces;
    larder_lease_t *leases;
    larder_lease_t *lease_cache; /* freed ones, for the next stage */
    unsigned lease_cached;
    uint64_t leased_shards;
    struct {
        uint8_t *base;
        size_t bytes;
    } memory[LDR_MEMORY_MAX];
    unsigned memory_count;
};

/* LARDER_OK, or why the handle cannot be used. Clears the error text. */
larder_status_t ldr_handle_check(const larder_t *lar);
larder_status_t ldr_space_check(const larder_space_t *space);

/* timeout_ms, with 0 for the handle's default, as a time. */
uint64_t ldr_deadline(const larder_t *lar, uint32_t timeout_ms);

/* Opens the handle on a node made by the caller: larder_open() and tests. */
larder_status_t ldr_handle_open(ldr_node_t *node, larder_t **lar_p);

/* Tickets (ops.c) */
larder_status_t ldr_ops_create(larder_t *lar);
/* Ends all tickets and the workers. */
void ldr_ops_destroy(larder_t *lar);

/* Leases (lease.c) */
void ldr_leases_close(larder_t *lar);
