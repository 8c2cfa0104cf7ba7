/*
 * The thread that connects. A connection takes what it takes: names are
 * resolved, the daemon is busy. Calls wait for it by their own deadlines; what
 * one of them began is there for the next.
 */
#include "base/bytes.h"
#include "base/thread.h"
#include "client/remote.h"

static void *dial_main(void *arg)
{
    ldr_remote_t *r = arg;

    pthread_mutex_lock(&r->dial_lock);
    while (!r->dial_stop) {
        if (!r->dial_wanted) {
            pthread_cond_wait(&r->dial_wake, &r->dial_lock);
            continue;
        }
        r->dial_wanted = false;
        pthread_mutex_unlock(&r->dial_lock);
        r->carrier->dial(r);
        pthread_mutex_lock(&r->dial_lock);
    }
    pthread_mutex_unlock(&r->dial_lock);
    return NULL;
}

larder_status_t ldr_dial_want(ldr_remote_t *r)
{
    pthread_mutex_lock(&r->dial_lock);
    if (!r->dial_runs) {
        r->dial_runs =
            ldr_thread_start(&r->dialer, "larder-connect", dial_main, r);
    }
    r->dial_wanted = true;
    bool runs = r->dial_runs;
    pthread_cond_signal(&r->dial_wake);
    pthread_mutex_unlock(&r->dial_lock);
    return runs ? LARDER_OK
                : ldr_fail(LARDER_E_NO_MEMORY, "cannot start a thread");
}

ldr_stop_t ldr_dial_stop(const ldr_remote_t *r)
{
    return (ldr_stop_t){
        .canceled = &r->dial_stop,
        .deadline_ns =
            ldr_now_ns(&ldr_clock_real) + r->options.timeout_ms * 1000000u,
    };
}

void ldr_dial_end(ldr_remote_t *r)
{
    pthread_mutex_lock(&r->dial_lock);
    __atomic_store_n(&r->dial_stop, true, __ATOMIC_RELAXED);
    pthread_cond_signal(&r->dial_wake);
    pthread_mutex_unlock(&r->dial_lock);
    if (r->dial_runs) {
        pthread_join(r->dialer, NULL);
        r->dial_runs = false;
    }
}
