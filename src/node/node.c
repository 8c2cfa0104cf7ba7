/*
 * A node's life: opening, its mode, its tiers, closing.
 *
 * Order: store and memory, then the tiers in the order of their table, then
 * their threads. The end goes the other way round, the dearest tier first.
 * `mode` and what tiers share are changed with the lock. Whoever opens a node
 * calls close or hand-over once, when no other call is under way. A tier that
 * hangs when the node ends is left with all that it may touch: then nothing of
 * the node is freed.
 */
#include "node/node.h"

#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "base/thread.h"
#include "node/handover.h"
#include "node/load.h"
#include "node/metrics.h"
#include "node/promise.h"

#define DRAM_SPEED 5e9 /* bytes a second, until it was measured */

bool ldr_host_step(ldr_host_t *host)
{
    bool did = ldr_memory_step((ldr_node_t *)host);

    for (unsigned i = 0; i < host->tier_count && !did; i++) {
        did = host->order[i]->ops->step(host->order[i]);
    }
    return did;
}

void ldr_node_set_mode(ldr_node_t *node, ldr_mode_t mode)
{
    ldr_node_lock(node);
    ldr_mode_t before = node->mode;
    node->mode = mode;
    pthread_cond_broadcast(&node->changed);
    ldr_node_unlock(node);
    if (mode != before) {
        ldr_info(&node->log, "the node is %s, it was %s", ldr_mode_label(mode),
                 ldr_mode_label(before));
    }
}

ldr_mode_t ldr_node_get_mode(ldr_node_t *node)
{
    ldr_node_lock(node);
    ldr_mode_t mode = node->mode;
    ldr_node_unlock(node);
    return mode;
}

bool ldr_node_step(ldr_node_t *node)
{
    ldr_node_lock(node);
    bool did = ldr_host_step(&node->host);
    ldr_node_unlock(node);
    return did;
}

/* ---- open ---- */

larder_status_t ldr_node_check(const ldr_options_t *o,
                               const ldr_predecessor_t *owner)
{
    larder_status_t st = LARDER_OK;

    for (unsigned i = 0; ldr_tier_rows[i] != NULL && st == LARDER_OK; i++) {
        if (ldr_tier_rows[i]->check != NULL) {
            st = ldr_tier_rows[i]->check(o, owner);
        }
    }
    return st;
}

/* ---- tiers ---- */

static larder_status_t tiers_open(ldr_node_t *node)
{
    for (unsigned i = 0; ldr_tier_rows[i] != NULL; i++) {
        const ldr_tier_ops_t *ops = ldr_tier_rows[i];
        unsigned queue = ldr_tier_queue(ops);

        ldr_node_lock(node); /* threads of others may be at work already */
        node->store.others |= (uint32_t)ops->others << ops->number;
        larder_status_t st =
            ldr_behind_open(&node->store, queue, ops->by_space);
        ldr_node_unlock(node);
        st = st == LARDER_OK ? ops->open(&node->host) : st;
        if (st != LARDER_OK) {
            return st;
        }
        ldr_node_lock(node);
        if (node->tiers[queue] == NULL) { /* it is not wanted */
            ldr_behind_close(&node->store, queue);
        }
        ldr_node_unlock(node);
    }
    return LARDER_OK;
}

static larder_status_t tiers_start(ldr_node_t *node)
{
    larder_status_t st = LARDER_OK;

    for (unsigned i = 0; i < node->tier_count && st == LARDER_OK; i++) {
        st = node->order[i]->ops->start(node->order[i]);
    }
    return st == LARDER_OK && !node->manual ? ldr_memory_start(node) : st;
}

void ldr_node_leave(ldr_node_t *node)
{
    node->left = true;
}

/* The dearest first: it may still hand something to the others. Those that hang
 * stay; bits: the others. */
static unsigned tiers_end(ldr_node_t *node, uint64_t deadline_ns)
{
    unsigned ended = 0;

    for (unsigned i = node->tier_count; i-- > 0;) {
        ldr_tier_t *t = node->order[i];

        ended |= (unsigned)t->ops->end(t, deadline_ns) << i;
    }
    return ended;
}

/* True: none is left. */
static bool tiers_destroy(ldr_node_t *node, unsigned ended)
{
    unsigned count = node->tier_count;

    node->tier_count = 0;
    for (unsigned i = 0; i < count; i++) {
        ldr_tier_t *t = node->order[i];

        if (ended >> i & 1u) {
            node->tiers[ldr_tier_queue(t->ops)] = NULL;
            t->ops->destroy(t);
        } else {
            node->order[node->tier_count++] = t;
        }
    }
    return node->tier_count == 0;
}

/* Frees what is there; the node may be half open. h: NULL: nobody takes its
 * memory. */
static void node_free(ldr_node_t *node, uint64_t deadline_ns, ldr_handover_t *h)
{
    ldr_promises_destroy(node);
    unsigned ended = tiers_end(node, deadline_ns);

    ldr_memory_stop(node);
    bool whole = !node->left && tiers_destroy(node, ended);
    if (!whole) {
        /* What comes back finds all that it may touch, and tells nobody. A call
         * that hangs may still read or fill pages: those stay as well. */
        ldr_node_lock(node);
        node->log.fn = ldr_log_silent;
        ldr_node_unlock(node);
        ldr_handover_stay(node);
    }
    if (node->store_opened && h != NULL) {
        ldr_handover_make(node, h);
    }
    if (!whole) {
        return;
    }
    if (node->store_opened) {
        ldr_store_destroy(&node->store);
    }
    pthread_cond_destroy(&node->changed);
    pthread_mutex_destroy(&node->lock);
    ldr_free(node);
}

larder_status_t ldr_node_open(const ldr_options_t *options,
                              const ldr_node_env_t *env, ldr_node_t **node_p)
{
    ldr_node_t *node = ldr_alloc(sizeof(*node));

    if (node == NULL) {
        return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for a node");
    }
    node->options = *options;
    node->log = env->log;
    node->clock = env->clock != NULL ? env->clock : &ldr_clock_real;
    node->io = env->io;
    node->manual = env->manual;
    node->cluster = env->cluster;
    node->threads = env->threads;
    node->transport = env->transport;
    node->successor = env->successor;
    node->revoke = env->revoke;
    node->revoke_arg = env->revoke_arg;
    node->speed[LARDER_TIER_DRAM] = DRAM_SPEED;
    ldr_rand_seed(&node->rand, env->seed != 0 ? env->seed : ldr_rand_entropy());
    ldr_mutex_init(&node->lock);
    if (!ldr_cond_init(&node->changed)) {
        pthread_mutex_destroy(&node->lock);
        ldr_free(node);
        return LARDER_E_NO_MEMORY;
    }
    larder_status_t st = ldr_memory_open(node, ldr_rand_next(&node->rand));
    for (unsigned i = 0; i < env->tenant_count && st == LARDER_OK; i++) {
        uint32_t tenant;

        st = ldr_node_tenant(node, &env->tenants[i], &tenant);
    }
    if (st == LARDER_OK) {
        st = tiers_open(node);
    }
    if (st == LARDER_OK && env->handover != NULL) {
        ldr_handover_use(node, env->handover);
    }
    if (st == LARDER_OK) {
        st = tiers_start(node);
    }
    if (st != LARDER_OK) {
        node_free(node, 0, NULL);
        return ldr_fail_text()[0] != '\0'
                   ? st
                   : ldr_fail(st, "the node cannot be opened: %s",
                              larder_status_text(st));
    }
    *node_p = node;
    return LARDER_OK;
}

static larder_status_t close_node(ldr_node_t *node, uint64_t deadline_ns,
                                  ldr_handover_t *h)
{
    ldr_stop_t stop = {NULL, deadline_ns};
    larder_status_t st = LARDER_OK;

    for (unsigned i = 0; i < node->tier_count; i++) {
        ldr_tier_t *t = node->order[i];

        if (t->ops->flush(t, &stop) == LARDER_E_DEADLINE) {
            st = LARDER_E_DEADLINE;
        }
    }
    node_free(node, deadline_ns, h);
    return st;
}

larder_status_t ldr_node_close(ldr_node_t *node, uint64_t deadline_ns)
{
    return close_node(node, deadline_ns, NULL);
}

larder_status_t ldr_node_hand_over(ldr_node_t *node, uint64_t deadline_ns,
                                   ldr_handover_t *h)
{
    larder_stats_t stats;

    /* What is lost if none of it can be handed over. */
    ldr_node_stats(node, LDR_NIL, &stats);
    *h = (ldr_handover_t){.left_bytes = stats.dram_used_bytes};
    return close_node(node, deadline_ns, h);
}
