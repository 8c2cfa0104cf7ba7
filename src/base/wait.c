/*
 * Deadlines, and the real ldr_threads_t. No state of its own: locks and
 * conditions are the caller's.
 */
#include "base/wait.h"

#include <time.h>

#include "base/bytes.h"
#include "base/thread.h"

larder_status_t ldr_stopped(const ldr_clock_t *clock, const ldr_stop_t *stop)
{
    if (stop->canceled != NULL &&
        __atomic_load_n(stop->canceled, __ATOMIC_RELAXED)) {
        return LARDER_E_CANCELED;
    }
    return stop->deadline_ns != UINT64_MAX &&
                   ldr_now_ns(clock) >= stop->deadline_ns
               ? LARDER_E_DEADLINE
               : LARDER_OK;
}

uint32_t ldr_left_ms(const ldr_clock_t *clock, uint64_t deadline_ns)
{
    uint64_t now_ns = ldr_now_ns(clock);

    if (deadline_ns == UINT64_MAX) {
        return LARDER_FOREVER;
    }
    uint64_t ms =
        deadline_ns > now_ns ? ldr_div_up(deadline_ns - now_ns, 1000000u) : 0;
    return ms < LARDER_FOREVER ? (uint32_t)ms : LARDER_FOREVER - 1;
}

static bool real_start(void *arg, pthread_t *thread, const char *name,
                       void *(*run)(void *), void *run_arg)
{
    (void)arg;
    return ldr_thread_start(thread, name, run, run_arg);
}

static void real_join(void *arg, pthread_t thread)
{
    (void)arg;
    pthread_join(thread, NULL);
}

static void real_wait(void *arg, pthread_cond_t *cond, pthread_mutex_t *lock,
                      uint64_t until_ns)
{
    (void)arg;
    if (until_ns == UINT64_MAX) {
        pthread_cond_wait(cond, lock);
    } else {
        ldr_cond_wait_until(cond, lock, until_ns);
    }
}

static void real_wake(void *arg, pthread_cond_t *cond, bool all)
{
    (void)arg;
    if (all) {
        pthread_cond_broadcast(cond);
    } else {
        pthread_cond_signal(cond);
    }
}

static void real_sleep(void *arg, uint64_t ns)
{
    const struct timespec t = {(time_t)(ns / 1000000000u),
                               (long)(ns % 1000000000u)};

    (void)arg;
    nanosleep(&t, NULL);
}

const ldr_threads_t ldr_threads_real = {real_start, real_join,  real_wait,
                                        real_wake,  real_sleep, NULL};
