/*
 * When the medium is off, only read, or on; workers.h says by what.
 *
 * Functions that change the state need the workers' lock and note in an
 * ldr_turn_t what is to be said; ldr_breaker_announce() says it after the lock
 * was given up. The lock `announce_lock` is held around the caller's changed(),
 * and the workers' lock is taken inside it.
 *
 * Invariants (ldr_breaker_check()): the state is on exactly while there is no
 * error; and unless it is off, there were fewer than FAILURES_MAX failures in a
 * row.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/thread.h"
#include "tier/shared/workers_int.h"

#define GRACE_NS 1000000000u
#define FAILURES_MAX 3u /* in a row */
#define SELDOM 12u      /* times retry_ns */
#define SLOW_READS 16u  /* before reads are called slow */

static const char *const kind_names[LDR_JOB_KINDS] = {
    "a read", "a write", "polling, publishing or cleaning"};

void ldr_breaker_reason(ldr_workers_t *l, int error, const char *what)
{
    l->error = error;
    snprintf(l->reason, sizeof(l->reason), "%s",
             what != NULL && *what != '\0' ? what : strerror(-error));
}

/* What follows from it is done by ldr_breaker_announce(), without the lock. */
void ldr_breaker_set(ldr_workers_t *l, ldr_objects_state_t state,
                     ldr_turn_t *turn)
{
    uint64_t now_ns = ldr_now_ns(l->params.clock);

    LDR_HELD(&l->lock);
    if (state == LDR_OBJECTS_ON) {
        l->failures = 0;
        l->reads = 0;
        l->error = 0;
        l->reason[0] = '\0';
    }
    if (state == l->state) {
        return;
    }
    if (state == LDR_OBJECTS_OFF) {
        l->stats.times_off++;
        l->probe_at_ns = now_ns + l->params.retry_ns;
        turn->ended = ldr_workers_take_waiting(l, 0);
        pthread_cond_broadcast(&l->work); /* there is a time to probe at */
    } else if (state == LDR_OBJECTS_READONLY) {
        l->trial_at_ns = now_ns + l->params.retry_ns;
    }
    LDR_ASSERT((state == LDR_OBJECTS_ON) == (l->error == 0));
    l->state = state;
    turn->changed = true;
    turn->state = state;
    memcpy(turn->reason, l->reason, sizeof(turn->reason));
}

bool ldr_breaker_check(const ldr_workers_t *l)
{
    return (l->state == LDR_OBJECTS_ON) == (l->error == 0) &&
           (l->state == LDR_OBJECTS_OFF || l->failures < FAILURES_MAX);
}

/* Two threads that announce at once may do so in the wrong order: each
 * announces the state after its own as well. */
static void state_announce(ldr_workers_t *l, ldr_objects_state_t state)
{
    if (l->params.changed == NULL) {
        return;
    }
    ldr_mutex_lock(&l->announce_lock);
    l->params.changed(l->params.arg, state);
    ldr_mutex_lock(&l->lock);
    ldr_objects_state_t now = l->state;
    ldr_mutex_unlock(&l->lock);
    if (now != state) {
        l->params.changed(l->params.arg, now);
    }
    ldr_mutex_unlock(&l->announce_lock);
}

/* No lock held. */
void ldr_breaker_announce(ldr_workers_t *l, const ldr_turn_t *turn)
{
    if (!turn->changed) {
        return;
    }
    if (turn->state == LDR_OBJECTS_ON) {
        ldr_info(&l->params.log, "shared tier: on");
    } else {
        ldr_warn(&l->params.log, "shared tier: %s: %s",
                 turn->state == LDR_OBJECTS_OFF ? "off" : "only read",
                 turn->reason);
    }
    state_announce(l, turn->state);
    ldr_workers_end_all(l, turn->ended, -ESHUTDOWN);
}

typedef enum verdict { WELL, NOTHING, BLOCKED, FAILURE, AWAY } verdict_t;

/* What an error says of the medium. */
static verdict_t error_judge(bool writing, int error)
{
    switch (-error) {
    case 0:
    case ENOENT:
    case EEXIST:
    case ENODATA:
    case EBADMSG:
    case EKEYREJECTED:
        return WELL;
    case ENOMEM:
    case ECANCELED:
        return NOTHING;
    case ENODEV:
        return AWAY;
    case ENOSPC:
    case EDQUOT:
    case EROFS:
    case EACCES:
    case EPERM:
        return writing ? BLOCKED : FAILURE;
    default:
        return FAILURE;
    }
}

void ldr_breaker_heed(ldr_workers_t *l, bool writing, int error,
                      const char *what, ldr_turn_t *turn)
{
    LDR_HELD(&l->lock);
    switch (error_judge(writing, error)) {
    case WELL:
        l->failures = 0;
        break;
    case NOTHING:
        break;
    case BLOCKED:
        if (l->state != LDR_OBJECTS_OFF) {
            ldr_breaker_reason(l, error, what);
            ldr_breaker_set(l, LDR_OBJECTS_READONLY, turn);
        }
        break;
    case FAILURE:
        if (++l->failures < FAILURES_MAX || l->state == LDR_OBJECTS_OFF) {
            break;
        }
        /* fallthrough */
    case AWAY:
        ldr_breaker_reason(l, error, what);
        ldr_breaker_set(l, LDR_OBJECTS_OFF, turn);
        break;
    }
}

/* The average is over the last eight or so. That a read waited for its turn
 * says nothing of the medium and does not count. */
void ldr_breaker_speed(ldr_workers_t *l, const ldr_job_t *job, uint64_t took_ns,
                       ldr_turn_t *turn)
{
    uint64_t slow_ns = l->params.slow_ns;
    uint64_t units = ldr_max64(ldr_div_up(job->bytes, LDR_SLOW_BYTES), 1);
    char what[120];

    LDR_HELD(&l->lock);
    took_ns /= units;
    l->read_ns = l->reads == 0 ? took_ns : (7 * l->read_ns + took_ns) / 8;
    if (++l->reads < SLOW_READS || slow_ns == 0 || l->read_ns <= slow_ns ||
        l->state == LDR_OBJECTS_OFF) {
        return;
    }
    snprintf(what, sizeof(what),
             "it is slow: reads take %llu ms on average, shared_slow_ms is "
             "%llu",
             (unsigned long long)(l->read_ns / 1000000),
             (unsigned long long)(slow_ns / 1000000));
    ldr_breaker_reason(l, -ETIME, what);
    ldr_breaker_set(l, LDR_OBJECTS_OFF, turn);
    l->probe_at_ns = ldr_now_ns(l->params.clock) + SELDOM * l->params.retry_ns;
}

void ldr_workers_failed(ldr_workers_t *l, bool writing, int error,
                        const char *what)
{
    ldr_turn_t turn = {0};

    ldr_mutex_lock(&l->lock);
    ldr_breaker_heed(l, writing, error, what, &turn);
    ldr_mutex_unlock(&l->lock);
    ldr_breaker_announce(l, &turn);
}

/* Where a worker hangs in its probe(), another one may find that the medium is
 * well again: at once as long as half of them are left, and then now and then,
 * except the last. */
static void let_others_probe(ldr_workers_t *l, uint64_t now_ns)
{
    LDR_HELD(&l->lock);
    if (l->prober == NULL || !l->prober->stuck) {
        return;
    }
    unsigned left = l->params.workers - l->stats.stuck;
    uint64_t again_ns = l->prober->probe_ns + SELDOM * l->params.retry_ns;
    if (left > l->stats.stuck || (left >= 2 && now_ns >= again_ns)) {
        l->prober = NULL;
        l->probe_at_ns = now_ns + l->params.retry_ns;
        pthread_cond_broadcast(&l->work);
    }
}

bool ldr_workers_look(ldr_workers_t *l)
{
    ldr_turn_t turn = {0};
    char what[120];
    uint64_t now_ns = ldr_now_ns(l->params.clock);

    ldr_mutex_lock(&l->lock);
    for (unsigned i = 0; i < l->count; i++) {
        ldr_worker_t *worker = &l->worker[i];
        uint64_t due_ns = worker->probe_ns;
        const char *name = "health()";

        if (worker->job != NULL) {
            due_ns =
                __atomic_load_n(&worker->job->deadline_ns, __ATOMIC_RELAXED);
            name = kind_names[worker->job->kind];
        }
        if (due_ns == 0 || worker->stuck || now_ns < due_ns ||
            now_ns - due_ns < GRACE_NS) {
            continue;
        }
        worker->stuck = true;
        l->stats.stuck++;
        l->stats.overdue++;
        snprintf(what, sizeof(what),
                 "a call for %s does not come back: does the storage answer?",
                 name);
        ldr_breaker_reason(l, -ETIMEDOUT, what);
        ldr_breaker_set(l, LDR_OBJECTS_OFF, &turn);
    }
    let_others_probe(l, now_ns);
    ldr_job_t *late = ldr_workers_take_waiting(l, now_ns);
    for (ldr_job_t *j = late; j != NULL; j = j->next) {
        l->stats.overdue++;
        l->stats.failed[j->kind]++;
    }
    ldr_mutex_unlock(&l->lock);
    bool some = turn.changed || late != NULL;
    ldr_workers_end_all(l, late, -ETIMEDOUT);
    ldr_breaker_announce(l, &turn);
    return some;
}
