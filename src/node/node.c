#include "node/node.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "base/thread.h"
#include "node/handover.h"
#include "node/load.h"
#include "node/observe.h"
#include "node/shared.h"
#include "node/ssd.h"

/* Until something was measured. */
static const double speeds[LARDER_TIER_COUNT] = {
    [LARDER_TIER_DRAM] = 5e9,
    [LARDER_TIER_SSD] = 1e9,
    [LARDER_TIER_SHARED] = 5e8,
};

#define CANCEL_LOOK_NS 10000000u
#define END_NS 2000000000u /* for I/O that is under way at the end */

/* ---- small things ---- */

bool ldr_node_wait(ldr_node_t *node, uint64_t deadline_ns)
{
    if (node->manual) {
        for (unsigned i = 0; i < node->ssd_count; i++) {
            if (ldr_ssd_step(&node->ssds[i])) {
                return true;
            }
        }
        return ldr_memory_step(node) ||
               (node->shared != NULL && ldr_shared_step(node->shared));
    }
    ldr_node_tell(node);
    if (deadline_ns == UINT64_MAX) {
        pthread_cond_wait(&node->changed, &node->lock);
        return true;
    }
    return ldr_cond_wait_until(&node->changed, &node->lock, deadline_ns);
}

bool ldr_node_step(ldr_node_t *node)
{
    ldr_node_lock(node);
    bool did = ldr_node_wait(node, 0);
    ldr_node_unlock(node);
    return did;
}

bool ldr_node_wait_stop(ldr_node_t *node, const ldr_stop_t *stop)
{
    if (ldr_node_stopped(node, stop) != LARDER_OK) {
        return false;
    }
    if (node->manual) {
        return ldr_node_wait(node, stop->deadline_ns);
    }
    /* Nobody who cancels takes the lock, so look now and then. */
    uint64_t look_ns = ldr_now_ns(node->clock) + CANCEL_LOOK_NS;
    ldr_node_wait(node, ldr_min64(look_ns, stop->deadline_ns));
    return true;
}

void ldr_node_say(ldr_node_t *node, larder_log_level_t level,
                  const char *format, ...)
{
    va_list args;

    if (node->said_count < LDR_SAID_MAX) {
        ldr_said_t *said = &node->said[node->said_count++];

        said->level = level;
        said->format = format;
        va_start(args, format);
        vsnprintf(said->text, sizeof(said->text), format, args);
        va_end(args);
    }
}

void ldr_node_unlock_said(ldr_node_t *node)
{
    ldr_said_t said[LDR_SAID_MAX];
    unsigned count = node->said_count;
    ldr_log_t log = node->log;

    memcpy(said, node->said, count * sizeof(*said));
    node->said_count = 0;
    pthread_mutex_unlock(&node->lock); /* the node may be gone from here on */
    for (unsigned i = 0; i < count; i++) {
        ldr_log_line(&log, said[i].level, said[i].format, said[i].text);
    }
}

void ldr_node_poison(ldr_node_t *node, const char *what)
{
    if (!__atomic_exchange_n(&node->poisoned, true, __ATOMIC_RELAXED)) {
        ldr_node_say(node, LARDER_LOG_ERROR,
                     "broken invariant: %s; the node answers no more calls",
                     what);
    }
}

/* ---- open ---- */

static larder_status_t io_open(ldr_node_t *node, const ldr_node_env_t *env)
{
    const ldr_options_t *o = &node->options;
    /* A disk that hangs takes nobody else's: it has half of the loads at most
     * (load.c), and its own requests. */
    unsigned most = (unsigned)(o->io_depth + 1) / 2 + LDR_SSD_REQUESTS;
    unsigned depth = (unsigned)o->io_depth + LDR_SSD_REQUESTS * o->dir_count;
    unsigned threads = (unsigned)o->io_threads * o->dir_count;
    int error = -ENOSYS;

    if (o->dir_count > 1) {
        threads = (unsigned)ldr_max64(threads, most + o->io_threads);
    }
    if (env->io != NULL || o->dir_count == 0) {
        node->io = env->io; /* DRAM alone needs none */
        return LARDER_OK;
    }
    node->io_owned = true;
    if (o->io != LDR_IO_PLAIN) {
        error = ldr_io_uring_create(depth, &node->io);
        if (error == 0) {
            return LARDER_OK;
        }
        if (o->io == LDR_IO_URING) {
            bool memory = error == -ENOMEM || error == -EAGAIN;

            return ldr_fail(memory ? LARDER_E_NO_MEMORY : LARDER_E_IO,
                            "io_uring is not to be had here (%s): use io=auto "
                            "or io=plain",
                            strerror(-error));
        }
        ldr_warn(&node->log,
                 "io_uring is not to be had here (%s): using %u threads",
                 strerror(-error), threads);
    }
    error = ldr_io_plain_create(threads, &node->io);
    return error == 0 ? LARDER_OK
                      : ldr_fail(LARDER_E_NO_MEMORY,
                                 "cannot start threads for "
                                 "reading and writing: %s",
                                 strerror(-error));
}

static larder_status_t disks_open(ldr_node_t *node)
{
    const ldr_options_t *o = &node->options;
    unsigned count = o->dir_count;
    bool second = o->ssd_admit == LDR_ADMIT_SECOND;

    if (count == 0) {
        return LARDER_OK;
    }
    node->ssds = ldr_alloc(count * sizeof(*node->ssds));
    if (node->ssds == NULL ||
        !ldr_admit_open(&node->admit,
                        second ? ldr_admit_remembered(count * o->ssd) : 0)) {
        return LARDER_E_NO_MEMORY;
    }
    for (unsigned i = 0; i < count; i++) {
        larder_status_t st = ldr_ssd_open(&node->ssds[i], node, i);

        ldr_node_lock(node); /* another's thread may be at work already */
        node->ssd_count++;
        ldr_node_unlock(node);
        if (st != LARDER_OK) {
            return st;
        }
    }
    return LARDER_OK;
}

/* The epochs of the others, and of the node before, reach every disk: one may
 * have missed a reset. */
static void disks_agree(ldr_node_t *node)
{
    for (unsigned i = 0; i < node->ssd_count; i++) {
        ldr_ssd_t *ssd = &node->ssds[i];
        larder_status_t st = LARDER_OK;

        ldr_node_lock(node);
        bool on = ssd->on;
        /* It may be coming on just now. */
        ssd->super_missed = ssd->super_missed || (ssd->opened && !on);
        ldr_node_unlock(node);
        if (on) {
            st = ldr_ssd_super_update(ssd, false,
                                      ldr_now_ns(node->clock) + LDR_OPEN_NS);
        }
        if (st != LARDER_OK) {
            ldr_node_lock(node);
            ldr_ssd_off(ssd, "write the superblock",
                        st == LARDER_E_DEADLINE ? -ETIMEDOUT : -EIO);
            ldr_node_unlock(node);
        }
    }
}

static larder_status_t threads_start(ldr_node_t *node)
{
    if (node->manual) {
        return LARDER_OK;
    }
    for (unsigned i = 0; i < node->ssd_count; i++) {
        ldr_ssd_go(&node->ssds[i]);
    }
    if (node->shared != NULL) {
        larder_status_t st = ldr_shared_start(node);

        if (st != LARDER_OK) {
            return st;
        }
    }
    return ldr_memory_start(node);
}

bool ldr_node_pause(ldr_node_t *node, uint64_t deadline_ns)
{
    ldr_node_tell(node);
    if (node->manual || deadline_ns == UINT64_MAX) {
        pthread_cond_wait(&node->changed, &node->lock);
        return true;
    }
    return ldr_cond_wait_until(&node->changed, &node->lock, deadline_ns);
}

void ldr_node_leave(ldr_node_t *node)
{
    node->left = true;
}

/* Ends the disks' threads and waits for what is in flight: a little longer than
 * the deadline, for what is left behind is left for good. */
static bool disks_end(ldr_node_t *node, uint64_t deadline_ns)
{
    uint64_t now_ns = ldr_now_ns(node->clock);
    bool whole = true;

    if (deadline_ns < UINT64_MAX - END_NS) {
        deadline_ns = ldr_max64(deadline_ns, now_ns) + END_NS;
    }
    for (unsigned i = 0; i < node->ssd_count; i++) {
        ldr_ssd_end(&node->ssds[i]);
    }
    for (unsigned i = 0; i < node->ssd_count; i++) {
        ldr_ssd_t *ssd = &node->ssds[i];
        bool ended =
            ldr_ssd_stop(ssd, deadline_ns) && ldr_ssd_drain(ssd, deadline_ns);

        if (!ended) {
            ldr_error(&node->log,
                      "%s: the disk does not answer: closed without it, and "
                      "what it was asked for is left behind",
                      ssd->params.path);
        }
        whole = whole && ended;
    }
    return ldr_reads_drain(node, deadline_ns) && whole;
}

static void disks_close(ldr_node_t *node)
{
    for (unsigned i = 0; i < node->ssd_count; i++) {
        ldr_ssd_close(&node->ssds[i]);
    }
    if (node->io_owned && node->io != NULL) {
        node->io->ops->destroy(node->io);
    }
    ldr_free(node->ssds);
    ldr_admit_close(&node->admit);
    ldr_reads_destroy(node);
    ldr_shadow_destroy(node->shadow);
}

static void silent(void *arg, larder_log_level_t level, const char *line)
{
    (void)arg;
    (void)level;
    (void)line;
}

/* Frees what is there; the node may be half open. h: NULL: nobody takes its
 * memory. */
static void node_free(ldr_node_t *node, uint64_t deadline_ns, ldr_handover_t *h)
{
    bool whole = ldr_shared_close(node, deadline_ns) && !node->left;

    ldr_memory_stop(node);
    if (!disks_end(node, deadline_ns)) {
        whole = false;
    } else if (!node->left) {
        disks_close(node);
    }
    if (!whole) {
        /* What comes back finds all that it may touch, and tells nobody. A call
         * that hangs may still read or fill pages: those stay as well. */
        ldr_node_lock(node);
        node->log.fn = silent;
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
    node->manual = env->manual;
    node->successor = env->successor;
    node->revoke = env->revoke;
    node->revoke_arg = env->revoke_arg;
    memcpy(node->speed, speeds, sizeof(speeds));
    ldr_rand_seed(&node->rand, env->seed != 0 ? env->seed : ldr_rand_entropy());
    pthread_mutex_init(&node->lock, NULL);
    if (!ldr_cond_init(&node->changed)) {
        pthread_mutex_destroy(&node->lock);
        ldr_free(node);
        return LARDER_E_NO_MEMORY;
    }
    larder_status_t st = io_open(node, env);
    if (st == LARDER_OK) {
        st = ldr_memory_open(node, ldr_rand_next(&node->rand));
    }
    for (unsigned i = 0; i < env->tenant_count && st == LARDER_OK; i++) {
        uint32_t tenant;

        st = ldr_node_tenant(node, &env->tenants[i], &tenant);
    }
    if (st == LARDER_OK) {
        st = ldr_reads_create(node);
    }
    if (st == LARDER_OK) {
        st = disks_open(node);
    }
    if (st == LARDER_OK) {
        st = ldr_shared_open(node);
    }
    if (st == LARDER_OK && env->handover != NULL) {
        ldr_handover_use(node, env->handover);
    }
    if (st == LARDER_OK) {
        disks_agree(node);
        st = threads_start(node);
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
    larder_status_t st = ldr_node_flush(node, LARDER_TIER_SSD, &stop);

    if (node->shared != NULL &&
        ldr_shared_flush(node, &stop) == LARDER_E_DEADLINE) {
        st = LARDER_E_DEADLINE;
    }
    node_free(node, deadline_ns, h);
    return st == LARDER_E_DEADLINE ? st : LARDER_OK;
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
