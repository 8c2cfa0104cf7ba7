/*
 * Starts threads, and makes locks and conditions. In debug builds a lock knows
 * its owner, so that LDR_HELD() can check it.
 */
#define _GNU_SOURCE
#include "base/thread.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <time.h>

#include "base/fault.h"

bool ldr_thread_start(pthread_t *thread, const char *name,
                      void *(*main)(void *), void *arg)
{
    sigset_t all, before;

    if (LDR_FAULT(thread_create)) {
        return false;
    }
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(thread, NULL, main, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) {
        return false;
    }
    pthread_setname_np(*thread, name);
    return true;
}

void ldr_mutex_init(pthread_mutex_t *lock)
{
    pthread_mutexattr_t attr;

    pthread_mutexattr_init(&attr);
    if (LDR_DEBUG) {
        pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_ERRORCHECK);
    }
    pthread_mutex_init(lock, &attr); /* cannot fail, for these types */
    pthread_mutexattr_destroy(&attr);
}

bool ldr_mutex_held(const pthread_mutex_t *lock)
{
    pthread_mutex_t *it = (pthread_mutex_t *)(uintptr_t)lock;

    if (pthread_mutex_lock(it) == EDEADLK) {
        return true;
    }
    pthread_mutex_unlock(it);
    return false;
}

bool ldr_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attr;

    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    int error = pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
    return error == 0;
}

bool ldr_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock,
                         uint64_t deadline_ns)
{
    struct timespec t = {
        .tv_sec = (time_t)(deadline_ns / 1000000000u),
        .tv_nsec = (long)(deadline_ns % 1000000000u),
    };

    return pthread_cond_timedwait(cond, lock, &t) != ETIMEDOUT;
}

unsigned ldr_cpus(void)
{
    cpu_set_t set;
    int count =
        sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 0;

    return count > 0 ? (unsigned)count : 1;
}
