/*
 * The thread that connects. A connection takes what it takes: names are
 * resolved, the daemon is busy. Calls wait for it by their own deadlines; what
 * one of them began is there for the next.
 */
#include "base/bytes.h"
#include "base/mem.h"
#include "base/thread.h"
#include "net/session.h"

static void *connect_main(void *arg)
{
    ldr_remote_t *r = arg;

    ldr_mutex_lock(&r->connect_lock);
    while (!r->connect_stop) {
        if (!r->connect_wanted) {
            r->threads->wait(r->threads->arg, &r->connect_wake,
                             &r->connect_lock, UINT64_MAX);
            continue;
        }
        r->connect_wanted = false;
        ldr_mutex_unlock(&r->connect_lock);
        r->links->connect(r);
        ldr_mutex_lock(&r->connect_lock);
    }
    ldr_mutex_unlock(&r->connect_lock);
    return NULL;
}

larder_status_t ldr_connect_want(ldr_remote_t *r)
{
    ldr_mutex_lock(&r->connect_lock);
    if (!r->connect_runs) {
        r->connect_runs = r->threads->start(r->threads->arg, &r->connector,
                                            "larder-connect", connect_main, r);
    }
    r->connect_wanted = true;
    bool runs = r->connect_runs;
    r->threads->wake(r->threads->arg, &r->connect_wake, false);
    ldr_mutex_unlock(&r->connect_lock);
    return runs ? LARDER_OK
                : ldr_fail(LARDER_E_NO_MEMORY, "cannot start a thread");
}

ldr_stop_t ldr_connect_stop(const ldr_remote_t *r)
{
    return (ldr_stop_t){
        .canceled = &r->connect_stop,
        .deadline_ns = ldr_now_ns(r->clock) + r->options.timeout_ms * 1000000u,
    };
}

static void connect_end(ldr_remote_t *r)
{
    ldr_mutex_lock(&r->connect_lock);
    __atomic_store_n(&r->connect_stop, true, __ATOMIC_RELAXED);
    r->threads->wake(r->threads->arg, &r->connect_wake, false);
    ldr_mutex_unlock(&r->connect_lock);
    if (r->connect_runs) {
        r->threads->join(r->threads->arg, r->connector);
        r->connect_runs = false;
    }
}

/* ---- life ---- */

static void remote_free(ldr_remote_t *r)
{
    while (r->buffers != NULL) {
        ldr_buffer_t *b = r->buffers;

        r->buffers = b->next;
        ldr_free(b);
    }
    pthread_mutex_destroy(&r->breaker_lock);
    pthread_mutex_destroy(&r->buffer_lock);
    pthread_mutex_destroy(&r->connect_lock);
    pthread_cond_destroy(&r->connect_wake);
    ldr_free(r);
}

larder_status_t ldr_remote_create(const ldr_options_t *options,
                                  const ldr_links_t *links,
                                  const ldr_net_env_t *env,
                                  ldr_remote_t **remote_p)
{
    ldr_remote_t *r = ldr_alloc(sizeof(*r));

    if (r == NULL) {
        return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for a handle");
    }
    r->options = *options;
    r->log = env->log;
    r->clock = env->clock;
    r->threads = env->threads;
    r->transport = env->transport;
    if (r->transport == NULL) {
        r->transport = options->tls == LDR_TLS_ON ? &ldr_transport_tls
                                                  : &ldr_transport_tcp;
    }
    r->links = links;
    r->meet = env->meet;
    r->meet_arg = env->meet_arg;
    ldr_rand_seed(&r->rand, env->seed);
    ldr_mutex_init(&r->breaker_lock);
    ldr_mutex_init(&r->buffer_lock);
    ldr_mutex_init(&r->connect_lock);
    ldr_cond_init(&r->connect_wake);
    larder_status_t st = links->create(r);
    if (st != LARDER_OK) {
        remote_free(r);
        return st;
    }
    *remote_p = r;
    return LARDER_OK;
}

void ldr_remote_destroy(ldr_remote_t *r)
{
    connect_end(r);
    r->links->destroy(r);
    remote_free(r);
}
