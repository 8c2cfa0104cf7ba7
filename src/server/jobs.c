/*
 * Threads for what waits for a disk, so that no loop does. Loops queue jobs;
 * the threads take them, and hand each request back to its loop.
 *
 * Invariants, all under job_lock
 *  1. The list from job_head has job_queued requests, QUEUE_MAX at most;
 *     job_end leads to its last link. A tenant's jobs_queued of them are its,
 *     and the metric larder_jobs_queued is job_queued.
 *  2. job_waiting of the job_count threads run what may wait for a disk, of
 *     which job_flushes are flushes; a tenant's jobs_waiting of them are its.
 *  3. A request is in the list, or with one thread, or its loop's again.
 */
#include "base/log.h"
#include "base/thread.h"
#include "server/session.h"

#define QUEUE_MAX 1024u
#define CHECK_EVERY 64u /* jobs that are taken, in debug builds */

static void job_done(ldr_task_t *task)
{
    ldr_request_t *r =
        (ldr_request_t *)((char *)task - offsetof(ldr_request_t, done));

    ldr_session_t *s = r->session;
    uint64_t begin_ns = ldr_server_now(r->home->server);
    bool ran = r->ran;

    LDR_ASSERT(r->queued);
    r->queued = false;
    r->job = NULL;
    if (s == NULL) { /* it ended meanwhile */
        ldr_bounce_forget(r);
        ldr_request_free(r);
        return;
    }
    ldr_request_unwait(r);
    if (!ran) {
        ldr_bounce_forget(r);
        ldr_job_refuse(r);
        return;
    }
    r->finish(r);
    ldr_turn_used(s, ldr_server_now(s->server) - begin_ns);
}

/* Whether it may wait for a disk, for as long as that takes. */
static bool waits(const ldr_request_t *r)
{
    switch (r->frame.opcode) {
    case LDR_OP_LEASE: /* of a bounce buffer: copies */
    case LDR_OP_COMMIT:
    case LDR_OP_ATTACH:
    case LDR_OP_METRICS:
        return false;
    default:
        return true;
    }
}

/* A disk that is slow, or whoever flushes all the time, must not keep others
 * from what is in memory: one thread is left to that, where there are several,
 * and half of them to what is no flush. Nor must a tenant that waits long keep
 * others from what waits: where there are several, each has half at most. */
static bool may_run(const ldr_server_t *server, const ldr_request_t *r)
{
    unsigned half = server->job_count / 2;

    LDR_HELD(&server->job_lock);
    if (server->job_stop || server->job_count < 2 || !waits(r)) {
        return true;
    }
    return server->job_waiting < server->job_count - 1 &&
           (r->frame.opcode != LDR_OP_FLUSH || server->job_flushes < half) &&
           (r->tenant == NULL || r->tenant->jobs_waiting < half ||
            !ldr_server_tenants_several(server));
}

/* The job that is next, of those that may run: the first of the tenant that had
 * none for longest. Gives the link to it; NULL: there is none. */
static ldr_request_t **next_job(ldr_server_t *server)
{
    ldr_request_t **best = NULL;
    uint64_t best_turn = UINT64_MAX;

    for (ldr_request_t **link = &server->job_head; *link != NULL;
         link = &(*link)->job_next) {
        const ldr_server_tenant_t *tenant = (*link)->tenant;
        uint64_t turn = tenant != NULL ? tenant->job_turn : 0;

        if (turn < best_turn && may_run(server, *link)) {
            best = link;
            best_turn = turn;
        }
    }
    return best;
}

bool ldr_jobs_check(const ldr_server_t *server)
{
    ldr_request_t *const *link = &server->job_head;
    uint64_t count = 0;

    LDR_HELD(&server->job_lock);
    while (*link != NULL && count < QUEUE_MAX) {
        const ldr_server_tenant_t *tenant = (*link)->tenant;

        if ((*link)->job == NULL ||
            (tenant != NULL && tenant->jobs_queued == 0)) {
            return false;
        }
        link = &(*link)->job_next;
        count++;
    }
    return *link == NULL && link == server->job_end &&
           count == server->job_queued &&
           count == (uint64_t)__atomic_load_n(
                        &server->metrics->levels[LDR_LEVEL_JOBS_QUEUED],
                        __ATOMIC_RELAXED) &&
           server->job_waiting <= server->job_count &&
           server->job_flushes <= server->job_waiting;
}

/* The metric too: counted after the lock is released, a thread that takes the
 * job at once would show -1 for a moment. */
static void count_queued(ldr_server_t *server, int64_t by)
{
    LDR_HELD(&server->job_lock);
    server->job_queued += (uint64_t)by;
    ldr_metrics_level(server->metrics, LDR_LEVEL_JOBS_QUEUED, by);
}

/* Takes it; NULL: none. */
static ldr_request_t *job_take(ldr_server_t *server)
{
    LDR_HELD(&server->job_lock);
    LDR_DEBUG_ASSERT(server->job_turn % CHECK_EVERY != 0 ||
                     ldr_jobs_check(server));
    ldr_request_t **link = next_job(server);

    if (link == NULL) {
        return NULL;
    }
    ldr_request_t *r = *link;
    *link = r->job_next;
    if (*link == NULL) {
        server->job_end = link;
    }
    LDR_ASSERT(server->job_queued > 0);
    count_queued(server, -1);
    if (r->tenant != NULL) {
        LDR_ASSERT(r->tenant->jobs_queued > 0);
        r->tenant->jobs_queued--;
        r->tenant->job_turn = ++server->job_turn;
    }
    return r;
}

/* One that waits begins, or ends: by then the request is its loop's. */
static void job_account(ldr_server_t *server, ldr_server_tenant_t *tenant,
                        bool flush, int by)
{
    LDR_HELD(&server->job_lock);
    server->job_waiting += (unsigned)by;
    server->job_flushes += (unsigned)(flush ? by : 0);
    if (tenant != NULL) {
        tenant->jobs_waiting += (unsigned)by;
        LDR_ASSERT(tenant->jobs_waiting <= server->job_waiting);
    }
    LDR_ASSERT(server->job_waiting <=
               sizeof(server->job_threads) / sizeof(server->job_threads[0]));
    LDR_ASSERT(server->job_flushes <= server->job_waiting);
}

static void *job_main(void *arg)
{
    ldr_server_t *server = arg;

    ldr_mutex_lock(&server->job_lock);
    for (;;) {
        ldr_request_t *r = job_take(server);

        if (r == NULL) {
            if (server->job_stop) {
                break;
            }
            pthread_cond_wait(&server->job_wake, &server->job_lock);
            continue;
        }
        bool waiting = waits(r), flush = r->frame.opcode == LDR_OP_FLUSH;
        ldr_server_tenant_t *tenant = r->tenant;
        if (waiting) {
            job_account(server, tenant, flush, 1);
        }
        r->ran = !server->job_stop; /* at the end those that wait do not */
        ldr_mutex_unlock(&server->job_lock);
        if (r->ran) {
            ldr_metrics_level(server->metrics, LDR_LEVEL_JOBS_RUNNING, 1);
            r->job(r);
            ldr_metrics_level(server->metrics, LDR_LEVEL_JOBS_RUNNING, -1);
        }
        ldr_loop_post(&r->home->loop, &r->done); /* its loop's from here on */
        ldr_mutex_lock(&server->job_lock);
        if (waiting) { /* one that could not run may now */
            job_account(server, tenant, flush, -1);
            pthread_cond_broadcast(&server->job_wake);
        }
    }
    server->job_ended++;
    pthread_cond_broadcast(&server->job_wake);
    ldr_mutex_unlock(&server->job_lock);
    return NULL;
}

/* Whether one more may be queued. A tenant may have as many as there is still
 * room for: so one that queues all it can leaves half of it to the others, two
 * leave a third, and whoever has none yet finds room. */
static bool has_room(const ldr_server_t *server, const ldr_request_t *r)
{
    LDR_HELD(&server->job_lock);
    LDR_ASSERT(server->job_queued <= QUEUE_MAX);
    return !server->job_stop && server->job_queued < QUEUE_MAX &&
           (r->tenant == NULL ||
            r->tenant->jobs_queued < QUEUE_MAX - server->job_queued);
}

bool ldr_job(ldr_request_t *r)
{
    ldr_server_t *server = r->home->server;

    LDR_ASSERT(r->job != NULL && !r->idle && !r->queued);
    r->done.run = job_done;
    r->job_next = NULL;
    ldr_mutex_lock(&server->job_lock);
    bool room = has_room(server, r);
    if (room) {
        r->queued = true;
        if (r->tenant != NULL) {
            r->tenant->jobs_queued++;
        }
        *server->job_end = r;
        server->job_end = &r->job_next;
        count_queued(server, 1);
        pthread_cond_signal(&server->job_wake);
    }
    ldr_mutex_unlock(&server->job_lock);
    if (room) {
        ldr_request_wait(r);
    }
    return room;
}

void ldr_job_refuse(ldr_request_t *r)
{
    bool ending = __atomic_load_n(&r->home->server->job_stop, __ATOMIC_RELAXED);

    r->job = NULL;
    /* Who is told "offline" comes back to the next daemon. */
    ldr_reply_fail(
        r, ending
               ? ldr_fail(LARDER_E_OFFLINE, "the daemon is ending")
               : ldr_fail(LARDER_E_BUSY, "too many requests wait for disks"));
}

larder_status_t ldr_jobs_start(ldr_server_t *server, unsigned count)
{
    LDR_ASSERT(count <=
               sizeof(server->job_threads) / sizeof(server->job_threads[0]));
    server->job_end = &server->job_head;
    for (unsigned i = 0; i < count; i++) {
        if (!ldr_thread_start(&server->job_threads[i], "larder-job", job_main,
                              server)) {
            return ldr_fail(LARDER_E_NO_MEMORY,
                            "thread %u of %u for jobs cannot be started", i + 1,
                            count);
        }
        ldr_mutex_lock(&server->job_lock);
        server->job_count++;
        ldr_mutex_unlock(&server->job_lock);
    }
    return LARDER_OK;
}

bool ldr_jobs_stop(ldr_server_t *server, uint64_t deadline_ns)
{
    bool whole = true;

    ldr_mutex_lock(&server->job_lock);
    __atomic_store_n(&server->job_stop, true, __ATOMIC_RELAXED);
    pthread_cond_broadcast(&server->job_wake);
    while (whole && server->job_ended < server->job_count) {
        whole = ldr_cond_wait_until(&server->job_wake, &server->job_lock,
                                    deadline_ns);
    }
    whole = server->job_ended == server->job_count;
    unsigned count = server->job_count;
    ldr_mutex_unlock(&server->job_lock);
    for (unsigned i = 0; i < count; i++) {
        if (whole) {
            pthread_join(server->job_threads[i], NULL);
        } else {
            pthread_detach(server->job_threads[i]);
        }
    }
    if (whole) {
        server->job_count = 0;
    }
    return whole;
}
