/* Threads, locks and condition variables as all of Larder uses them. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/check.h"

/* Starts a named thread with all signals blocked: they are the engine's. */
bool ldr_thread_start(pthread_t *thread, const char *name,
                      void *(*main)(void *), void *arg);

/* A lock. In debug builds it knows its holder: taking it twice, giving up what
 * another thread holds and LDR_HELD() are checked. */
void ldr_mutex_init(pthread_mutex_t *lock);

static inline void ldr_mutex_lock(pthread_mutex_t *lock)
{
    int error = pthread_mutex_lock(lock);

    LDR_DEBUG_ASSERT(error == 0 && "the lock is not held by this thread");
    (void)error;
}

static inline void ldr_mutex_unlock(pthread_mutex_t *lock)
{
    int error = pthread_mutex_unlock(lock);

    LDR_DEBUG_ASSERT(error == 0 && "the lock is held by this thread");
    (void)error;
}

/* This thread holds the lock, which ldr_mutex_init() made. Debug builds only:
 * there such a lock refuses to be taken twice. */
#if LDR_DEBUG
#define LDR_HELD(lock) LDR_ASSERT(ldr_mutex_held(lock) && "holds " #lock)
#else
#define LDR_HELD(lock) ((void)sizeof(lock))
#endif
bool ldr_mutex_held(const pthread_mutex_t *lock);

/* A condition variable on the monotonic clock. */
bool ldr_cond_init(pthread_cond_t *cond);

/* False: the time has come. */
bool ldr_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock,
                         uint64_t deadline_ns);

/* CPUs that this process may use, at least one. */
unsigned ldr_cpus(void);

/* Between two looks of a thread that polls. */
static inline void ldr_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}
