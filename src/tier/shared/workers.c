/*
 * One mutex guards everything; it is never held across work(), done(),
 * medium_probe() or changed(). A second one, taken before it, is held while
 * changed() is called: so that the last state announced is the last there was.
 * Any thread may call.
 *
 * Invariants
 *  1. A job is in a queue, or with exactly one worker (`taken`), or its owner's
 *     again (from done() on). A queue has at most params.queue jobs.
 *  2. `low` jobs under way are no reads: fewer than there are workers, where
 *     there are several. stats.stuck workers are stuck.
 *  3. There is an error exactly while the medium is not on, and fewer failures
 *     in a row than turn it off while it is not off.
 *
 * Hanging calls: a worker whose job is past its deadline by a second is
 * `stuck`. It is not waited for at close: then the last worker to come back, if
 * any ever does, frees the rest.
 */
#include "tier/shared/workers.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "base/thread.h"
#include "tier/shared/workers_int.h"

#define WORKERS_MAX 256u
#define PASSED_MAX 4u /* how often a kind is passed over in a row */

/* ---- queues ---- */

static bool may_run(const ldr_workers_t *l, unsigned kind)
{
    unsigned most = l->params.workers > 1 ? l->params.workers - 1 : 1;

    LDR_HELD(&l->lock);
    return l->queues[kind].count > 0 && (kind == LDR_JOB_READ || l->low < most);
}

/* The next job to do; NULL: none. */
static ldr_job_t *job_take(ldr_workers_t *l)
{
    unsigned best = LDR_JOB_KINDS;

    LDR_HELD(&l->lock);
    for (unsigned k = 0; k < LDR_JOB_KINDS; k++) {
        if (may_run(l, k) &&
            (best == LDR_JOB_KINDS || l->queues[k].passed >= PASSED_MAX)) {
            best = k;
        }
    }
    if (best == LDR_JOB_KINDS) {
        return NULL;
    }
    for (unsigned k = 0; k < LDR_JOB_KINDS; k++) {
        if (k != best && l->queues[k].count > 0) {
            l->queues[k].passed++;
        }
    }
    l->queues[best].passed = 0;
    l->low += best != LDR_JOB_READ;
    LDR_ASSERT(l->low <= l->params.workers);
    return ldr_job_pop(&l->queues[best]);
}

/* Takes all that wait, of those late only where late_ns is not 0. */
ldr_job_t *ldr_workers_take_waiting(ldr_workers_t *l, uint64_t late_ns)
{
    ldr_job_t *list = NULL, **end = &list;

    LDR_HELD(&l->lock);
    for (unsigned k = 0; k < LDR_JOB_KINDS; k++) {
        ldr_job_queue_t *q = &l->queues[k];
        unsigned count = q->count;

        for (unsigned i = 0; i < count; i++) {
            ldr_job_t *job = ldr_job_pop(q);

            if (job == NULL) {
                break;
            }
            if (late_ns != 0 && job->deadline_ns > late_ns) {
                ldr_job_push(q, job);
            } else {
                job->next = NULL;
                *end = job;
                end = &job->next;
            }
        }
    }
    return list;
}

/* No lock held. */
void ldr_workers_end_all(ldr_workers_t *l, ldr_job_t *list, int error)
{
    while (list != NULL) {
        ldr_job_t *job = list;

        list = job->next;
        LDR_ASSERT(job->taken);
        job->taken = false;
        job->error = error;
        if (job->trial) {
            ldr_mutex_lock(&l->lock);
            l->trying = false;
            ldr_mutex_unlock(&l->lock);
        }
        job->done(job);
    }
}

/* ---- workers ---- */

static bool probe_due(const ldr_workers_t *l)
{
    LDR_HELD(&l->lock);
    return l->prober == NULL && ldr_now_ns(l->params.clock) >= l->probe_at_ns;
}

/* A call that hung has ended: the medium may be well, although one that probes
 * still hangs. */
static void come_back(ldr_worker_t *worker)
{
    ldr_workers_t *l = worker->workers;

    LDR_HELD(&l->lock);
    if (worker->stuck) {
        LDR_ASSERT(l->stats.stuck > 0);
        worker->stuck = false;
        l->stats.stuck--;
        if (l->prober != NULL && l->prober->stuck) {
            l->prober = NULL;
        }
    }
}

/* With the lock, which is given up meanwhile. */
static void medium_probe(ldr_workers_t *l, ldr_worker_t *worker)
{
    ldr_turn_t turn = {0};
    uint64_t deadline_ns = ldr_now_ns(l->params.clock) + l->params.timeout_ns;

    LDR_HELD(&l->lock);
    l->prober = worker;
    worker->busy = true;
    worker->probe_ns = deadline_ns;
    ldr_mutex_unlock(&l->lock);
    ldr_fail_clear();
    int error =
        l->params.probe != NULL
            ? l->params.probe(l->params.arg, l->params.backend, deadline_ns)
            : l->params.backend->ops->health(l->params.backend, deadline_ns);
    ldr_mutex_lock(&l->lock);
    worker->probe_ns = 0;
    come_back(worker);
    bool counts = l->prober == worker;
    if (counts) {
        l->prober = NULL;
    }
    if (!l->abandoned && counts) {
        l->probe_at_ns = ldr_now_ns(l->params.clock) + l->params.retry_ns;
        worker->finishing = true;
        if (error != 0 && l->state == LDR_OBJECTS_OFF) {
            ldr_breaker_reason(l, error, ldr_fail_text());
            turn.changed = !l->looked; /* the reason is known now */
            turn.state = LDR_OBJECTS_OFF;
            memcpy(turn.reason, l->reason, sizeof(turn.reason));
        } else if (error != 0) {
            ldr_breaker_heed(l, false, error, ldr_fail_text(), &turn);
        } else if (l->state == LDR_OBJECTS_OFF) {
            ldr_breaker_set(l, LDR_OBJECTS_ON, &turn);
        }
        l->looked = true;
        ldr_mutex_unlock(&l->lock);
        ldr_breaker_announce(l, &turn);
        ldr_mutex_lock(&l->lock);
        worker->finishing = false;
    }
    worker->busy = false;
    pthread_cond_broadcast(&l->ended);
    pthread_cond_signal(&l->work); /* who watches for the next probe? */
}

static void job_finish(ldr_workers_t *l, const ldr_job_t *job, uint64_t took_ns,
                       ldr_turn_t *turn)
{
    bool writing = job->kind == LDR_JOB_WRITE;
    bool wrote = writing || job->wrote;

    LDR_HELD(&l->lock);
    l->stats.failed[job->kind] += job->error != 0;
    if (job->trial) {
        l->trying = false;
        l->trial_at_ns = ldr_now_ns(l->params.clock) + l->params.retry_ns;
    }
    ldr_breaker_heed(l, wrote, job->error, ldr_fail_text(), turn);
    if (job->kind == LDR_JOB_READ && job->error == 0) {
        ldr_breaker_speed(l, job, took_ns, turn);
    }
    if (writing && job->error == 0 && l->state == LDR_OBJECTS_READONLY) {
        ldr_breaker_set(l, LDR_OBJECTS_ON, turn);
    }
}

/* With the lock, which is given up meanwhile. */
static void job_run(ldr_workers_t *l, ldr_worker_t *worker, ldr_job_t *job)
{
    ldr_turn_t turn = {0};
    bool low = job->kind != LDR_JOB_READ;
    uint64_t began_ns = ldr_now_ns(l->params.clock);

    LDR_HELD(&l->lock);
    LDR_ASSERT(!worker->busy && worker->job == NULL && job->taken);
    worker->job = job;
    worker->busy = true;
    ldr_mutex_unlock(&l->lock);
    ldr_fail_clear();
    int error = job->work(job, l->params.backend);
    ldr_mutex_lock(&l->lock);
    LDR_ASSERT(worker->job == job && job->taken);
    LDR_ASSERT(l->low >= low);
    worker->job = NULL;
    come_back(worker);
    l->low -= low;
    if (!l->abandoned) {
        worker->finishing = true;
        job->taken = false;
        job->error = error;
        job_finish(l, job, ldr_now_ns(l->params.clock) - began_ns, &turn);
        ldr_mutex_unlock(&l->lock);
        ldr_breaker_announce(l, &turn);
        job->done(job);
        ldr_mutex_lock(&l->lock);
        worker->finishing = false;
    }
    worker->busy = false;
    pthread_cond_broadcast(&l->ended);
    if (low) { /* others were kept from such jobs */
        pthread_cond_signal(&l->work);
    }
}

/* One thing; false: there is none. */
static bool turn_once(ldr_workers_t *l, ldr_worker_t *worker)
{
    LDR_HELD(&l->lock);
    if (probe_due(l)) {
        medium_probe(l, worker);
        return true;
    }
    ldr_job_t *job = job_take(l);
    if (job == NULL) {
        return false;
    }
    job_run(l, worker, job);
    return true;
}

static void workers_destroy(ldr_workers_t *l)
{
    l->params.backend->ops->destroy(l->params.backend);
    pthread_cond_destroy(&l->work);
    pthread_cond_destroy(&l->ended);
    pthread_mutex_destroy(&l->lock);
    pthread_mutex_destroy(&l->announce_lock);
    ldr_free(l);
}

static void *worker_main(void *arg)
{
    ldr_worker_t *worker = arg;
    ldr_workers_t *l = worker->workers;

    ldr_mutex_lock(&l->lock);
    while (!l->closing) {
        if (!turn_once(l, worker)) {
            uint64_t now_ns = ldr_now_ns(l->params.clock);

            /* Whoever probes may hang, and somebody must be awake then. */
            ldr_cond_wait_until(&l->work, &l->lock,
                                l->prober != NULL ? now_ns + l->params.retry_ns
                                                  : l->probe_at_ns);
        }
    }
    LDR_ASSERT(l->alive > 0);
    l->alive--;
    bool last = l->abandoned && l->alive == 0;
    ldr_mutex_unlock(&l->lock);
    if (last) {
        workers_destroy(l);
    }
    return NULL;
}

bool ldr_workers_step(ldr_workers_t *l)
{
    bool some = ldr_workers_look(l);

    ldr_mutex_lock(&l->lock);
    some = turn_once(l, &l->worker[0]) || some;
    ldr_mutex_unlock(&l->lock);
    return some;
}

/* ---- what others call ---- */

/* 0, or why the job is not taken. */
static int job_refuse(ldr_workers_t *l, ldr_job_t *job)
{
    LDR_HELD(&l->lock);
    if (l->closing || l->state == LDR_OBJECTS_OFF) {
        return -ESHUTDOWN;
    }
    if (l->queues[job->kind].count >= l->params.queue) {
        return -EBUSY;
    }
    if (job->kind == LDR_JOB_WRITE && l->state == LDR_OBJECTS_READONLY) {
        if (l->trying || ldr_now_ns(l->params.clock) < l->trial_at_ns) {
            return -EROFS;
        }
        l->trying = true;
        job->trial = true;
    }
    return 0;
}

bool ldr_workers_add(ldr_workers_t *l, ldr_job_t *job)
{
    LDR_ASSERT(job->kind < LDR_JOB_KINDS && job->work != NULL);
    ldr_mutex_lock(&l->lock);
    if (!LDR_HOLDS(!job->taken)) { /* it is in a queue, or with a worker */
        ldr_mutex_unlock(&l->lock);
        return false;
    }
    LDR_DEBUG_ASSERT(ldr_workers_check(l));
    job->trial = false;
    job->wrote = false;
    job->error = job_refuse(l, job);
    bool taken = job->error == 0;
    if (taken) {
        job->taken = true;
        ldr_job_push(&l->queues[job->kind], job);
        pthread_cond_signal(&l->work);
    } else {
        l->stats.refused++;
    }
    ldr_mutex_unlock(&l->lock);
    return taken;
}

bool ldr_workers_writable(ldr_workers_t *l)
{
    ldr_mutex_lock(&l->lock);
    bool yes = l->state == LDR_OBJECTS_ON ||
               (l->state == LDR_OBJECTS_READONLY && !l->trying &&
                ldr_now_ns(l->params.clock) >= l->trial_at_ns);
    ldr_mutex_unlock(&l->lock);
    return yes;
}

int ldr_workers_error(ldr_workers_t *l)
{
    ldr_mutex_lock(&l->lock);
    int error = l->error;
    ldr_mutex_unlock(&l->lock);
    return error;
}

ldr_objects_state_t ldr_workers_state(ldr_workers_t *l, char *reason,
                                      size_t reason_size)
{
    ldr_mutex_lock(&l->lock);
    ldr_objects_state_t state = l->state;
    if (reason_size > 0) {
        snprintf(reason, reason_size, "%s", l->reason);
    }
    ldr_mutex_unlock(&l->lock);
    return state;
}

void ldr_workers_stats(ldr_workers_t *l, ldr_workers_stats_t *out)
{
    ldr_mutex_lock(&l->lock);
    *out = l->stats;
    for (unsigned k = 0; k < LDR_JOB_KINDS; k++) {
        out->waiting[k] = l->queues[k].count;
    }
    ldr_mutex_unlock(&l->lock);
}

/* ---- what must hold ---- */

bool ldr_workers_check(const ldr_workers_t *l)
{
    unsigned low = 0, stuck = 0;

    LDR_HELD(&l->lock);
    for (unsigned k = 0; k < LDR_JOB_KINDS; k++) {
        const ldr_job_queue_t *q = &l->queues[k];
        const ldr_job_t *last = NULL;
        unsigned count = 0;

        for (const ldr_job_t *j = q->first; j != NULL; j = j->next) {
            if (j->kind != k || !j->taken || count++ == q->count) {
                return false;
            }
            last = j;
        }
        if (count != q->count || last != q->last || count > l->params.queue) {
            return false;
        }
    }
    for (unsigned i = 0; i < l->count; i++) {
        const ldr_worker_t *worker = &l->worker[i];

        low += worker->job != NULL && worker->job->kind != LDR_JOB_READ;
        stuck += worker->stuck;
        if ((worker->job != NULL || worker->probe_ns != 0) && !worker->busy) {
            return false;
        }
    }
    return low == l->low && stuck == l->stats.stuck &&
           (l->prober == NULL || l->prober->busy) && ldr_breaker_check(l);
}

/* ---- life ---- */

static bool threads_start(ldr_workers_t *l)
{
    for (unsigned i = 0; i < l->count; i++) {
        ldr_worker_t *worker = &l->worker[i];

        worker->workers = l;
        if (l->params.manual) {
            continue;
        }
        ldr_mutex_lock(&l->lock);
        worker->up = ldr_thread_start(&worker->thread, "larder-storage",
                                      worker_main, worker);
        l->alive += worker->up;
        ldr_mutex_unlock(&l->lock);
        if (!worker->up) {
            return false;
        }
    }
    return true;
}

larder_status_t ldr_workers_open(const ldr_workers_params_t *params,
                                 ldr_workers_t **workers_p)
{
    unsigned workers = (unsigned)ldr_min64(
        ldr_max64(params->manual ? 1 : params->workers, 1), WORKERS_MAX);
    unsigned count = workers;
    ldr_workers_t *l = ldr_alloc(sizeof(*l) + count * sizeof(l->worker[0]));

    if (l == NULL) {
        params->backend->ops->destroy(params->backend);
        return ldr_fail(LARDER_E_NO_MEMORY, "no memory for the shared tier");
    }
    l->params = *params;
    l->params.workers = workers;
    l->count = count;
    if (l->params.timeout_ns == 0) {
        l->params.timeout_ns = 5000000000u;
    }
    ldr_breaker_reason(l, -ENOTCONN, "not looked at yet");
    ldr_mutex_init(&l->lock);
    ldr_mutex_init(&l->announce_lock);
    ldr_cond_init(&l->work);
    ldr_cond_init(&l->ended);
    if (!threads_start(l)) {
        ldr_workers_close(l, UINT64_MAX);
        return ldr_fail(LARDER_E_NO_MEMORY,
                        "no more threads for the shared tier");
    }
    *workers_p = l;
    return LARDER_OK;
}

/* Whether some worker is busy, except those that hang where that is allowed.
 */
static bool is_busy(const ldr_workers_t *l, bool hanging_too)
{
    LDR_HELD(&l->lock);
    for (unsigned i = 0; i < l->count; i++) {
        const ldr_worker_t *worker = &l->worker[i];

        if (worker->finishing || (hanging_too && worker->busy)) {
            return true;
        }
    }
    return false;
}

bool ldr_workers_close(ldr_workers_t *l, uint64_t deadline_ns)
{
    bool join[WORKERS_MAX];
    unsigned count = l->count, left = 0;

    LDR_ASSERT(count <= WORKERS_MAX);
    ldr_mutex_lock(&l->lock);
    l->closing = true;
    ldr_job_t *waiting = ldr_workers_take_waiting(l, 0);
    pthread_cond_broadcast(&l->work);
    ldr_mutex_unlock(&l->lock);
    ldr_workers_end_all(l, waiting, -ECANCELED);

    ldr_mutex_lock(&l->lock);
    bool in_time = true;
    while (is_busy(l, in_time)) {
        if (!in_time || deadline_ns == UINT64_MAX) {
            pthread_cond_wait(&l->ended, &l->lock);
        } else {
            in_time = ldr_cond_wait_until(&l->ended, &l->lock, deadline_ns);
        }
    }
    for (unsigned i = 0; i < count; i++) {
        join[i] = l->worker[i].up && !l->worker[i].busy;
        left += l->worker[i].up && l->worker[i].busy;
        if (l->worker[i].up && l->worker[i].busy) {
            pthread_detach(l->worker[i].thread);
        }
    }
    l->abandoned = left > 0;
    pthread_t threads[WORKERS_MAX];
    for (unsigned i = 0; i < count; i++) {
        threads[i] = l->worker[i].thread;
    }
    ldr_log_t log = l->params.log;
    ldr_mutex_unlock(&l->lock);
    /* From here on the last one that is left behind may free the workers. */
    for (unsigned i = 0; i < count; i++) {
        if (join[i]) {
            pthread_join(threads[i], NULL);
        }
    }
    if (left > 0) {
        ldr_warn(&log,
                 "shared tier: closed with %u calls that do not come back; "
                 "their threads and memory stay",
                 left);
        return false;
    }
    workers_destroy(l);
    return true;
}
