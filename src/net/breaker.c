/*
 * The breaker: when a daemon is asked, and when it is left alone.
 *
 * State: the breaker's fields of ldr_remote_t, under breaker_lock; `open` alone
 * may also be read without it, so that a healthy daemon costs one load. Any
 * thread may call.
 *
 * Invariants
 *  1. While it is open, at most one call at a time is let through to try
 *     (`trying`), and only after open_until_ns.
 *  2. Whoever was let through ends that by exactly one of good, bad and leave.
 *  3. While it is shut nobody tries, and the next pause is the shortest; while
 *     it is open, `why` says why.
 */
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/thread.h"
#include "net/session.h"

#define BACKOFF_MIN_NS 10000000u

/* Gives the lock back, where the invariants hold. */
static void unlock(ldr_remote_t *r)
{
    LDR_HELD(&r->breaker_lock);
    LDR_ASSERT(r->open ? r->why < 0 && r->open_until_ns >= r->open_ns
                       : !r->trying && r->backoff_ns == 0);
    ldr_mutex_unlock(&r->breaker_lock);
}

larder_status_t ldr_breaker_enter(ldr_remote_t *r, bool *trying_p)
{
    *trying_p = false;
    if (!__atomic_load_n(&r->open, __ATOMIC_ACQUIRE)) {
        return LARDER_OK;
    }
    larder_status_t st = LARDER_OK;
    ldr_mutex_lock(&r->breaker_lock);
    uint64_t since_ns = r->open_ns;
    unlock(r);
    bool heard = r->links->heard(r, since_ns);
    ldr_mutex_lock(&r->breaker_lock);
    if (r->open) {
        uint64_t now_ns = ldr_now_ns(r->clock);

        if (r->trying || (now_ns < r->open_until_ns && !heard)) {
            st = ldr_fail(r->why, "%s", r->why_text);
        } else {
            *trying_p = r->trying = true;
        }
    }
    unlock(r);
    return st;
}

bool ldr_breaker_shut(ldr_remote_t *r)
{
    if (!__atomic_load_n(&r->open, __ATOMIC_ACQUIRE)) {
        return true;
    }
    ldr_mutex_lock(&r->breaker_lock);
    bool shut =
        !r->open || (!r->trying && ldr_now_ns(r->clock) >= r->open_until_ns);
    unlock(r);
    return shut;
}

void ldr_breaker_good(ldr_remote_t *r)
{
    if (!__atomic_load_n(&r->open, __ATOMIC_ACQUIRE)) {
        return;
    }
    ldr_mutex_lock(&r->breaker_lock);
    if (r->open) {
        ldr_info(&r->log, "%s: answers again", r->options.address);
    }
    __atomic_store_n(&r->open, false, __ATOMIC_RELEASE);
    r->trying = false;
    r->backoff_ns = 0;
    unlock(r);
}

void ldr_breaker_leave(ldr_remote_t *r, bool trying)
{
    if (trying) {
        ldr_mutex_lock(&r->breaker_lock);
        r->trying = false;
        unlock(r);
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

void ldr_breaker_bad(ldr_remote_t *r, bool trying, larder_status_t st,
                     bool late)
{
    ldr_mutex_lock(&r->breaker_lock);
    if (!r->open || trying) {
        uint64_t pause = pause_ns(r, st, late);

        r->open_ns = ldr_now_ns(r->clock);
        r->open_until_ns = r->open_ns + pause;
        /* Also when it was away, and is back but refuses us. */
        bool news = !r->open || r->why != (late ? LARDER_E_OFFLINE : st);
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
        __atomic_store_n(&r->open, true, __ATOMIC_RELEASE);
    }
    unlock(r);
}
