/*
 * A node: tiers, policy and queues. What `serve` will host and embedding
 * already does.
 *
 * One lock, node->lock, guards all metadata (store.h); it is held for
 * bookkeeping only, never across I/O or a copy. Threads, and what each may
 * wait for, are in docs/threads.md.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/io.h"
#include "base/log.h"
#include "base/options.h"
#include "larder/larder.h"
#include "store/store.h"

typedef struct ldr_node ldr_node_t;
typedef struct ldr_ssd ldr_ssd_t;
typedef struct ldr_read ldr_read_t;

/* What a node stands on. Zero: the real thing. */
typedef struct ldr_node_env {
    ldr_io_t *io; /* NULL: made as the options say, owned by the node */
    const ldr_clock_t *clock;
    uint64_t seed; /* 0: from the kernel */
    bool manual;   /* no threads: the caller drives ldr_node_step() */
    ldr_log_t log;
} ldr_node_env_t;

struct ldr_node {
    ldr_options_t options;
    ldr_log_t log;
    const ldr_clock_t *clock;
    ldr_io_t *io;
    bool io_owned;
    bool manual;
    ldr_rand_t rand;
    bool poisoned; /* a broken invariant was seen: every call answers so */

    pthread_mutex_t lock;
    pthread_cond_t changed; /* writes landed, disks went on or off */
    ldr_store_t store;
    uint64_t drops_told; /* how many a flush has answered for */

    ldr_ssd_t *ssds;
    unsigned ssd_count;

    ldr_read_t *reads; /* slots for reads from disk */
    ldr_read_t *read_free;
    size_t read_count;
    uint32_t read_head, read_tail; /* shards that wait for a slot */

    double dram_speed, ssd_speed; /* bytes per second, measured */

    pthread_t populate_thread;
    bool populate_started, populate_stop;
    bool store_opened;
};

larder_status_t ldr_node_open(const ldr_options_t *options,
                              const ldr_node_env_t *env, ldr_node_t **node_p);
/* Writes down what it can until the deadline; LARDER_E_DEADLINE if that was
 * not all. Frees the node whatever happens. */
larder_status_t ldr_node_close(ldr_node_t *node, uint64_t deadline_ns);

/* In a manual node: does one thing that a thread would do. False: nothing to
 * do. */
bool ldr_node_step(ldr_node_t *node);

static inline void ldr_node_lock(ldr_node_t *node)
{
    pthread_mutex_lock(&node->lock);
}

/* A broken invariant: says so once, and poisons the node. With the lock. */
void ldr_node_poison(ldr_node_t *node, const char *what);

/* What others must hear of before the lock is given up, be it by an unlock or
 * by waiting for a condition. */
static inline void ldr_node_tell(ldr_node_t *node)
{
    if (__builtin_expect(node->store.broken != NULL, 0)) {
        ldr_node_poison(node, node->store.broken);
    }
    if (node->store.dirty_left) {
        node->store.dirty_left = false;
        pthread_cond_broadcast(&node->changed); /* for ldr_node_flush() */
    }
}

static inline void ldr_node_unlock(ldr_node_t *node)
{
    ldr_node_tell(node);
    pthread_mutex_unlock(&node->lock);
}

/* Waits for `changed`, with the lock held; false: the deadline passed. In a
 * manual node: does one step; false: there was none. */
bool ldr_node_wait(ldr_node_t *node, uint64_t deadline_ns);

/* Makes more of the arena resident until so many bytes are free or all of it
 * is. With the lock held, which it drops meanwhile. Before anything is evicted
 * for want of room. */
void ldr_node_populate(ldr_node_t *node, size_t bytes);

/* ---- spaces (space.c) ---- */

typedef struct ldr_space_info {
    uint8_t space_id[LDR_ID_BYTES];
    uint8_t tenant_id[LDR_ID_BYTES];
    uint8_t tenant_check[LDR_ID_BYTES];
    const char *tenant; /* for messages */
} ldr_space_info_t;

/* The space's number. Directories remember the tenant's check value. */
larder_status_t ldr_node_space(ldr_node_t *node, const ldr_space_info_t *info,
                               uint32_t *space_p);
larder_status_t ldr_node_reset(ldr_node_t *node, uint32_t space);

/* ---- saving (save.c) ---- */

/* One shard named in a request. */
typedef struct ldr_target {
    uint32_t space;
    uint32_t shards; /* of the space */
    larder_item_t *item;
} ldr_target_t;

/* When a copy under way has to stop. */
typedef struct ldr_stop {
    const bool *canceled; /* may be NULL */
    uint64_t deadline_ns;
} ldr_stop_t;

/* As ldr_node_wait(); false: it has to stop, or in a manual node there was
 * nothing to do. */
bool ldr_node_wait_stop(ldr_node_t *node, const ldr_stop_t *stop);

/* LARDER_OK, or why it has to stop now. */
static inline larder_status_t ldr_node_stopped(const ldr_node_t *node,
                                               const ldr_stop_t *stop)
{
    if (stop->canceled != NULL &&
        __atomic_load_n(stop->canceled, __ATOMIC_RELAXED)) {
        return LARDER_E_CANCELED;
    }
    if (stop->deadline_ns != UINT64_MAX &&
        ldr_now_ns(node->clock) >= stop->deadline_ns) {
        return LARDER_E_DEADLINE;
    }
    return LARDER_OK;
}

/* Bytes in the item's buffers. */
static inline size_t ldr_item_bytes(const larder_item_t *item)
{
    size_t bytes = 0;

    for (uint32_t i = 0; i < item->iov_count; i++) {
        bytes += item->iov[i].iov_len;
    }
    return bytes;
}

/* Puts one item; sets its status. verify: one that is present is compared. */
void ldr_node_put(ldr_node_t *node, const ldr_target_t *t, bool verify,
                  const ldr_stop_t *stop);

/* Counts a save that was refused for its arguments. */
void ldr_node_count_bad(ldr_node_t *node);

void ldr_node_exists(ldr_node_t *node, const ldr_target_t *t);

/* Removes the items, durably: their statuses are set. One that had to stop is
 * out of memory, but may come back from disk. */
void ldr_node_remove(ldr_node_t *node, uint32_t space, larder_item_t *items,
                     size_t count, const ldr_stop_t *stop);

larder_status_t ldr_node_flush(ldr_node_t *node, larder_tier_t tier,
                               uint64_t deadline_ns);

/* Whether the shard is to be had now: ready in DRAM, or on a disk that is on.
 * With the lock. */
bool ldr_node_usable(const ldr_node_t *node, uint32_t entry, uint32_t number,
                     larder_tier_t *tier_p, uint32_t *bytes_p);
/* The disk that a location leads to, or NULL if it is off. With the lock. */
ldr_ssd_t *ldr_node_disk(const ldr_node_t *node, ldr_loc_t loc);

/* Lets the disks know that there are dirty shards. With the lock. */
void ldr_node_dirty(ldr_node_t *node);

/* ---- figures (stats.c) ---- */

void ldr_node_stats(ldr_node_t *node, larder_stats_t *out);
/* Prometheus text; gives the length all of it needs. */
size_t ldr_node_metrics(ldr_node_t *node, char *text, size_t size);

/* The time that loading so many bytes of each tier will take, from what was
 * measured. */
uint64_t ldr_node_expect_us(ldr_node_t *node,
                            const uint64_t bytes[LARDER_TIER_COUNT]);

/* A measured transfer, for what match expects of the next. With the lock. */
void ldr_node_measured(ldr_node_t *node, larder_tier_t tier, uint64_t bytes,
                       uint64_t ns);
