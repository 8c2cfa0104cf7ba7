/* Threads and condition variables as the node uses them. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* Starts a named thread with all signals blocked: they are the engine's. */
bool ldr_thread_start(pthread_t *thread, const char *name,
                      void *(*main)(void *), void *arg);

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
