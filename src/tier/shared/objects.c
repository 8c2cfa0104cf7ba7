/*
 * Opening and closing the tier, the clockwork that adds chores when they are
 * due, and the state of the medium. objects_int.h has the locks and invariants.
 *
 * The clockwork is a thread of its own, which never calls the back end; in a
 * manual tier ldr_objects_step() does its work. A tier whose calls hang at
 * close is kept in left_behind for ever, under left_lock.
 */
#include "tier/shared/objects.h"

#include <errno.h>
#include <stdio.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "base/thread.h"
#include "tier/shared/objects_int.h"
#include "store/index.h"

#define MS 1000000u
#define LOOK_NS (250u * MS) /* the clockwork looks at least so often */
#define QUEUE 256u
#define RETRY_NS (50u * MS)
#define CHECK_EVERY 256u /* turns, in debug builds: the maps too */

/* Tiers that were closed with calls that hang: what those name must stay. */
static pthread_mutex_t left_lock = PTHREAD_MUTEX_INITIALIZER;
static ldr_objects_t *left_behind;

/* ---- chores ---- */

/* When the volume has such a chore, or UINT64_MAX. */
static uint64_t due_at(const ldr_volume_t *p, unsigned kind)
{
    const ldr_objects_t *t = p->tier;
    uint64_t at_ns = UINT64_MAX;

    LDR_HELD(&p->tier->lock);
    if (p->chores[kind].busy || (p->refused && kind != LDR_CHORE_CHECK)) {
        return UINT64_MAX;
    }
    if (kind == LDR_CHORE_CHECK) {
        bool due = p->outdated ? ldr_volume_idle(p) : !p->checked;

        at_ns = due && !t->closing ? 0 : UINT64_MAX;
    } else if (!p->checked || p->outdated) {
        at_ns = UINT64_MAX;
    } else if (kind == LDR_CHORE_POLL) {
        at_ns = t->closing || p->readers > 0 ? UINT64_MAX : 0;
    } else if (kind == LDR_CHORE_RESET) {
        at_ns = ldr_reset_at(p);
    } else if (kind == LDR_CHORE_PUBLISH) {
        at_ns = ldr_publish_at(p);
    } else {
        at_ns = ldr_clean_at(p);
    }
    return ldr_max64(at_ns, p->chores[kind].at_ns);
}

static bool volume_check(const ldr_volume_t *p)
{
    unsigned helpers = 0;

    for (size_t i = 0; i + 1 < LDR_READERS; i++) {
        helpers += p->helpers[i].busy;
    }
    /* Not what a chore has for itself while it is busy. */
    return p->published <= p->added && p->sending_added <= p->added &&
           helpers <= p->readers && p->readers <= helpers + 1 &&
           p->known_count <= p->known_capacity &&
           p->unread_count <= p->unread_capacity &&
           p->unread_next <= p->unread_count &&
           p->use_count <= p->use_capacity &&
           p->space_count <= p->space_capacity;
}

bool ldr_objects_check(const ldr_objects_t *t, bool maps)
{
    LDR_HELD(&t->lock);
    for (size_t i = 0; i < t->volume_count; i++) {
        if (!volume_check(t->volumes[i]) ||
            (maps && !ldr_map_check(t->volumes[i]->map))) {
            return false;
        }
    }
    return t->volume_count <= t->volume_capacity && t->sealing <= t->cpus;
}

static void distrust_old(ldr_volume_t *p, uint64_t now_ns)
{
    LDR_HELD(&p->tier->lock);
    if (p->ready && ldr_poll_old(p, now_ns)) {
        p->ready = false; /* the turn under way is judged when it ends */
        p->rounds = 0;
        snprintf(p->reason, sizeof(p->reason),
                 "tenant %s: manifests could not be read for too long",
                 p->name);
    }
}

/* The time when something is due next. */
static uint64_t chores_turn(ldr_objects_t *t, bool *some_p)
{
    uint64_t now_ns = ldr_now_ns(t->params.clock);
    uint64_t next_ns = now_ns + LOOK_NS;

    if (LDR_DEBUG) {
        t->turns++;
        LDR_ASSERT(ldr_objects_check(t, t->turns % CHECK_EVERY == 0));
    }
    LDR_HELD(&t->lock);
    *some_p = false;
    for (size_t i = 0; i < t->volume_count && t->state != LDR_OBJECTS_OFF;
         i++) {
        ldr_volume_t *p = t->volumes[i];

        distrust_old(p, now_ns);
        for (unsigned kind = 0; kind < LDR_CHORES; kind++) {
            ldr_chore_t *c = &p->chores[kind];
            uint64_t at_ns = due_at(p, kind);

            if (at_ns > now_ns) {
                next_ns = ldr_min64(next_ns, at_ns);
                continue;
            }
            c->busy = true;
            c->job.deadline_ns = now_ns + t->timeout_ns;
            if (ldr_workers_add(t->workers, &c->job)) {
                *some_p = true;
            } else {
                c->busy = false;
                c->at_ns = now_ns + RETRY_NS;
            }
        }
    }
    return next_ns;
}

bool ldr_objects_turn(ldr_objects_t *t)
{
    bool some;

    ldr_mutex_lock(&t->lock);
    chores_turn(t, &some);
    ldr_mutex_unlock(&t->lock);
    return some;
}

static void *clockwork_main(void *arg)
{
    ldr_objects_t *t = arg;
    bool some;

    ldr_mutex_lock(&t->lock);
    while (!t->stopping) {
        uint64_t next_ns = chores_turn(t, &some);

        ldr_mutex_unlock(&t->lock);
        ldr_workers_look(t->workers);
        ldr_mutex_lock(&t->lock);
        if (!t->stopping && !t->woken) {
            ldr_cond_wait_until(&t->wheel, &t->lock, next_ns);
        }
        t->woken = false;
    }
    ldr_mutex_unlock(&t->lock);
    return NULL;
}

bool ldr_objects_step(ldr_objects_t *t)
{
    bool some = ldr_objects_turn(t);

    return ldr_workers_step(t->workers) || some;
}

void ldr_objects_wake(ldr_objects_t *t)
{
    LDR_HELD(&t->lock);
    t->woken = true;
    pthread_cond_signal(&t->wheel);
}

bool ldr_objects_wait(ldr_objects_t *t, bool (*is)(const void *arg),
                      const void *arg, uint64_t deadline_ns)
{
    LDR_HELD(&t->lock);
    ldr_objects_wake(t);
    while (!is(arg)) {
        if (t->params.manual) {
            ldr_mutex_unlock(&t->lock);
            bool some = ldr_objects_step(t);
            bool late = ldr_now_ns(t->params.clock) >= deadline_ns;
            ldr_mutex_lock(&t->lock);
            if (!some || late) {
                return is(arg);
            }
        } else if (!ldr_cond_wait_until(&t->changed, &t->lock, deadline_ns)) {
            return is(arg);
        }
    }
    return true;
}

void ldr_objects_new_id(ldr_objects_t *t, unsigned age,
                        uint8_t id[LDR_ID_BYTES])
{
    if (t->params.seed == 0 || !t->params.manual) {
        ldr_put64(id, ldr_rand_entropy());
        ldr_put64(id + 8, ldr_rand_entropy());
    } else {
        ldr_mutex_lock(&t->lock);
        ldr_put64(id, ldr_rand_next(&t->rand));
        ldr_put64(id + 8, ldr_rand_next(&t->rand));
        ldr_mutex_unlock(&t->lock);
    }
    id[0] = age < 8 ? (uint8_t)((id[0] | 0x80) >> age) : 0;
}

unsigned ldr_id_age(const uint8_t id[LDR_ID_BYTES])
{
    return id[0] != 0 ? (unsigned)__builtin_clz(id[0]) - 24 : 8;
}

/* ---- the medium ---- */

/* From a worker, or whoever found out. */
static void state_changed(void *arg, ldr_objects_state_t state)
{
    ldr_objects_t *t = arg;

    ldr_mutex_lock(&t->lock);
    for (size_t i = 0; i < t->volume_count; i++) {
        ldr_volume_t *p = t->volumes[i];

        if (t->state == LDR_OBJECTS_OFF && state != LDR_OBJECTS_OFF) {
            ldr_poll_distrust(p); /* much may have happened meanwhile */
            for (unsigned k = 0; k < LDR_CHORES; k++) {
                p->chores[k].at_ns = 0;
            }
        }
    }
    t->state = state;
    t->looked = true;
    pthread_cond_broadcast(&t->changed);
    ldr_objects_wake(t);
    ldr_mutex_unlock(&t->lock);
}

static int write_id(ldr_backend_t *b, uint64_t deadline_ns)
{
    uint8_t id[LDR_ID_BYTES];
    char hex[2 * LDR_ID_BYTES + 1], text[64];

    ldr_put64(id, ldr_rand_entropy());
    ldr_put64(id + 8, ldr_rand_entropy());
    ldr_hex(id, sizeof(id), hex);
    int length = snprintf(text, sizeof(text), "larder tier 1\n%s\n", hex);
    struct iovec iov = {text, (size_t)length};
    return b->ops->put(b, LDR_OBJECTS_ID_NAME, &iov, 1, LDR_OBJECT_NEW,
                       deadline_ns);
}

static int medium_probe(void *arg, ldr_backend_t *b, uint64_t deadline_ns)
{
    ldr_objects_t *t = arg;
    int error = b->ops->health(b, deadline_ns);

    if (!b->ops->makes_itself) {
        return error; /* it compares the ids by itself */
    }
    if (error == -ENODEV) {
        error = write_id(b, deadline_ns);
        if (error == 0) {
            ldr_info(&t->params.log, "shared tier: made a new one");
        }
        error = error == 0 || error == -EEXIST ? b->ops->health(b, deadline_ns)
                                               : error;
    }
    return error == 0 ? ldr_objects_recognize(t, b, deadline_ns) : error;
}

larder_status_t ldr_objects_make(const char *url, const char *login,
                                 uint32_t timeout_ms)
{
    uint64_t deadline_ns =
        timeout_ms == LARDER_FOREVER
            ? UINT64_MAX
            : ldr_now_ns(&ldr_clock_real) + timeout_ms * UINT64_C(1000000);
    ldr_backend_t *b;
    ldr_backend_params_t params = {
        .url = url,
        .login = login,
        .threads = 1,
        .clock = &ldr_clock_real,
    };
    larder_status_t st = ldr_backend_open(&params, &b);

    if (st != LARDER_OK) {
        return st;
    }
    int error = write_id(b, deadline_ns);
    b->ops->destroy(b);
    if (error == -EEXIST) {
        return LARDER_PRESENT;
    }
    return error == 0 ? LARDER_OK : LARDER_E_IO; /* with the back end's text */
}

/* ---- the log ---- */

static void log_line(void *arg, larder_log_level_t level, const char *line)
{
    ldr_objects_log_t *log = arg;

    ldr_mutex_lock(&log->lock);
    bool closed = log->closed;
    log->users += !closed;
    ldr_mutex_unlock(&log->lock);
    if (closed) {
        return;
    }
    if (log->to.fn != NULL) {
        log->to.fn(log->to.arg, level, line);
    } else {
        ldr_log(&log->to, level, "%s", line);
    }
    ldr_mutex_lock(&log->lock);
    LDR_ASSERT(log->users > 0);
    if (--log->users == 0) {
        pthread_cond_broadcast(&log->quiet);
    }
    ldr_mutex_unlock(&log->lock);
}

static void log_init(ldr_objects_log_t *log, const ldr_log_t *to)
{
    log->to = *to;
    ldr_mutex_init(&log->lock);
    pthread_cond_init(&log->quiet, NULL);
}

/* From here on nothing is said any more. */
static void log_close(ldr_objects_log_t *log)
{
    ldr_mutex_lock(&log->lock);
    log->closed = true;
    while (log->users > 0) {
        pthread_cond_wait(&log->quiet, &log->lock);
    }
    ldr_mutex_unlock(&log->lock);
}

/* ---- life ---- */

static void tier_destroy(ldr_objects_t *t)
{
    for (size_t i = 0; i < t->volume_count; i++) {
        ldr_volume_destroy(t->volumes[i]);
    }
    ldr_free(t->volumes);
    ldr_ids_clear(&t->idle.seen);
    pthread_cond_destroy(&t->changed);
    pthread_cond_destroy(&t->wheel);
    pthread_cond_destroy(&t->sealed);
    pthread_mutex_destroy(&t->lock);
    pthread_cond_destroy(&t->log.quiet);
    pthread_mutex_destroy(&t->log.lock);
    ldr_free(t);
}

static larder_status_t open_backend(const ldr_objects_params_t *p,
                                    const ldr_log_t *log,
                                    ldr_backend_t **backend_p)
{
    ldr_backend_params_t params = {
        .url = p->url,
        .login = p->login,
        .threads = p->threads,
        .log = *log,
        .clock = p->clock,
    };

    *backend_p = p->backend;
    return p->backend != NULL ? LARDER_OK
                              : ldr_backend_open(&params, backend_p);
}

static ldr_objects_t *tier_create(const ldr_objects_params_t *params)
{
    ldr_objects_t *t = ldr_alloc(sizeof(*t));

    if (t == NULL) {
        return NULL;
    }
    t->params = *params;
    t->params.url = t->params.login = NULL;
    t->params.backend = NULL;
    log_init(&t->log, &params->log);
    t->params.log = (ldr_log_t){log_line, &t->log};
    t->timeout_ns =
        (uint64_t)(params->timeout_ms != 0 ? params->timeout_ms : 5000) * MS;
    t->retry_ns =
        (uint64_t)(params->retry_ms != 0 ? params->retry_ms : 5000) * MS;
    t->poll_ns = (uint64_t)(params->poll_ms != 0 ? params->poll_ms : 1000) * MS;
    t->publish_ns =
        (uint64_t)(params->publish_ms != 0 ? params->publish_ms : 1000) * MS;
    ldr_rand_seed(&t->rand, params->seed);
    ldr_put64(t->node, params->manual && params->seed != 0
                           ? ldr_rand_next(&t->rand)
                           : ldr_rand_entropy());
    t->node_number = __builtin_bswap64(ldr_get64(t->node));
    ldr_mutex_init(&t->lock);
    ldr_cond_init(&t->changed);
    ldr_cond_init(&t->wheel);
    ldr_cond_init(&t->sealed);
    t->cpus = ldr_cpus();
    return t;
}

larder_status_t ldr_objects_open(const ldr_objects_params_t *params,
                                 ldr_objects_t **tier_p)
{
    ldr_backend_t *b;
    ldr_objects_t *t = tier_create(params);

    if (t == NULL) {
        if (params->backend != NULL) {
            params->backend->ops->destroy(params->backend);
        }
        return ldr_fail(LARDER_E_NO_MEMORY, "no memory for the shared tier");
    }
    larder_status_t st = open_backend(params, &t->params.log, &b);
    if (st != LARDER_OK) {
        tier_destroy(t);
        return st;
    }
    snprintf(t->kind, sizeof(t->kind), "%s", b->ops->name);
    ldr_workers_params_t workers = {
        .backend = b,
        .workers = params->threads,
        .queue = QUEUE,
        .retry_ns = t->retry_ns,
        .timeout_ns = t->timeout_ns,
        .slow_ns = (uint64_t)params->slow_ms * MS,
        .clock = params->clock,
        .log = t->params.log,
        .manual = params->manual,
        .probe = medium_probe,
        .changed = state_changed,
        .arg = t,
    };
    st = ldr_workers_open(&workers, &t->workers);
    if (st != LARDER_OK) {
        tier_destroy(t);
        return st;
    }
    t->has_clockwork =
        !params->manual &&
        ldr_thread_start(&t->clockwork, "larder-tier", clockwork_main, t);
    if (!t->has_clockwork && !params->manual) {
        ldr_workers_close(t->workers, UINT64_MAX);
        tier_destroy(t);
        return ldr_fail(LARDER_E_NO_MEMORY,
                        "no more threads for the shared tier");
    }
    *tier_p = t;
    return LARDER_OK;
}

/* Whether all that was written is published, and no role is held. */
static bool is_settled(const void *arg)
{
    const ldr_objects_t *t = arg;

    for (size_t i = 0; i < t->volume_count; i++) {
        const ldr_volume_t *p = t->volumes[i];

        for (unsigned k = 0; k < LDR_CHORES; k++) {
            if (p->chores[k].busy) {
                return false;
            }
        }
        if (p->checked && !p->refused &&
            (p->published != p->added || p->cleaner.role != LDR_ROLE_NONE ||
             ldr_reset_wanted(p) != LDR_NIL)) {
            return false;
        }
    }
    return true;
}

/* The last turns: publishing, and giving up roles. */
static void objects_settle(ldr_objects_t *t, uint64_t deadline_ns)
{
    ldr_mutex_lock(&t->lock);
    t->closing = true;
    for (size_t i = 0; i < t->volume_count; i++) {
        for (unsigned k = 0; k < LDR_CHORES; k++) {
            t->volumes[i]->chores[k].at_ns = 0;
        }
    }
    ldr_objects_wake(t);
    while (t->state != LDR_OBJECTS_OFF && !is_settled(t)) {
        if (t->params.manual) {
            ldr_mutex_unlock(&t->lock);
            bool some = ldr_objects_step(t);
            ldr_mutex_lock(&t->lock);
            if (!some) {
                break;
            }
        } else if (!ldr_cond_wait_until(&t->changed, &t->lock, deadline_ns)) {
            break;
        }
    }
    t->stopping = true;
    ldr_objects_wake(t);
    ldr_mutex_unlock(&t->lock);
}

bool ldr_objects_close(ldr_objects_t *t, uint64_t deadline_ns)
{
    if (t == NULL) {
        return true;
    }
    objects_settle(t, deadline_ns);
    if (t->has_clockwork) {
        pthread_join(t->clockwork, NULL);
    }
    if (LDR_DEBUG) {
        ldr_mutex_lock(&t->lock);
        LDR_ASSERT(ldr_objects_check(t, true));
        ldr_mutex_unlock(&t->lock);
    }
    if (ldr_workers_close(t->workers, deadline_ns)) {
        tier_destroy(t);
        return true;
    }
    log_close(&t->log);
    ldr_mutex_lock(&left_lock);
    t->left = left_behind;
    left_behind = t;
    ldr_mutex_unlock(&left_lock);
    return false;
}
