/* The gate: when a daemon is asked, and when it is left alone. */
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "client/remote.h"

#define BACKOFF_MIN_NS 10000000u

larder_status_t ldr_gate_enter(ldr_remote_t *r, bool *trying_p)
{
    *trying_p = false;
    if (!__atomic_load_n(&r->shut, __ATOMIC_ACQUIRE)) {
        return LARDER_OK;
    }
    larder_status_t st = LARDER_OK;
    pthread_mutex_lock(&r->gate_lock);
    uint64_t since_ns = r->shut_ns;
    pthread_mutex_unlock(&r->gate_lock);
    bool stirs = r->carrier->stirs(r, since_ns);
    pthread_mutex_lock(&r->gate_lock);
    if (r->shut) {
        uint64_t now_ns = ldr_now_ns(&ldr_clock_real);

        if (r->trying || (now_ns < r->shut_until_ns && !stirs)) {
            st = ldr_fail(r->why, "%s", r->why_text);
        } else {
            *trying_p = r->trying = true;
        }
    }
    pthread_mutex_unlock(&r->gate_lock);
    return st;
}

void ldr_gate_good(ldr_remote_t *r)
{
    if (!__atomic_load_n(&r->shut, __ATOMIC_ACQUIRE)) {
        return;
    }
    pthread_mutex_lock(&r->gate_lock);
    if (r->shut) {
        ldr_info(&r->log, "%s: answers again", r->options.address);
    }
    __atomic_store_n(&r->shut, false, __ATOMIC_RELEASE);
    r->trying = false;
    r->backoff_ns = 0;
    pthread_mutex_unlock(&r->gate_lock);
}

void ldr_gate_leave(ldr_remote_t *r, bool trying)
{
    if (trying) {
        pthread_mutex_lock(&r->gate_lock);
        r->trying = false;
        pthread_mutex_unlock(&r->gate_lock);
    }
}

/* A connection that was refused at once costs nothing: it is tried again soon,
 * and less and less often. One that cost a deadline, or was told that it is
 * not wanted, is not tried again before breaker_ms is over. */
static uint64_t pause_ns(ldr_remote_t *r, larder_status_t st, bool late)
{
    uint64_t most = r->options.breaker_ms * 1000000u;

    if (late || st != LARDER_E_OFFLINE) {
        return most;
    }
    r->backoff_ns = r->backoff_ns == 0 ? BACKOFF_MIN_NS : 2 * r->backoff_ns;
    r->backoff_ns = ldr_min64(r->backoff_ns, most);
    /* Half of it by chance, so that many clients do not come at once. */
    return r->backoff_ns / 2 + ldr_rand_below(&r->rand, r->backoff_ns / 2 + 1);
}

void ldr_gate_bad(ldr_remote_t *r, bool trying, larder_status_t st, bool late)
{
    pthread_mutex_lock(&r->gate_lock);
    if (!r->shut || trying) {
        uint64_t pause = pause_ns(r, st, late);

        r->shut_ns = ldr_now_ns(&ldr_clock_real);
        r->shut_until_ns = r->shut_ns + pause;
        /* Also when it was away, and is back but refuses us. */
        bool news = !r->shut || r->why != (late ? LARDER_E_OFFLINE : st);
        r->why = late ? LARDER_E_OFFLINE : st;
        if (late) {
            snprintf(r->why_text, sizeof(r->why_text),
                     "%s: did not answer in time: left alone for %llu ms",
                     r->options.address,
                     (unsigned long long)(pause / 1000000u));
        } else {
            snprintf(r->why_text, sizeof(r->why_text), "%s", ldr_fail_text());
        }
        if (news) {
            ldr_warn(&r->log, "%s", r->why_text);
        }
        ldr_tally(&r->breaker, 1);
        r->trying = false;
        __atomic_store_n(&r->shut, true, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&r->gate_lock);
}
