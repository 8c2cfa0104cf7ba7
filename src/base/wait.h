/*
 * Waiting: when a call has to stop, and how threads wait for each other. Tests
 * pass their own ldr_threads_t, which runs its threads one at a time on a
 * virtual clock; nothing that takes one may wait in any other way.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"
#include "larder/larder.h"

/* When a call or a copy under way has to stop. */
typedef struct ldr_stop {
    const bool *canceled; /* may be NULL */
    uint64_t deadline_ns; /* UINT64_MAX: never */
} ldr_stop_t;

/* LARDER_OK, or why it has to stop now. */
larder_status_t ldr_stopped(const ldr_clock_t *clock, const ldr_stop_t *stop);
/* The time left in whole ms, rounded up: what a frame says of it. */
uint32_t ldr_left_ms(const ldr_clock_t *clock, uint64_t deadline_ns);

typedef struct ldr_threads {
    bool (*start)(void *arg, pthread_t *thread, const char *name,
                  void *(*run)(void *), void *run_arg);
    void (*join)(void *arg, pthread_t thread);
    /* As pthread_cond_timedwait(); UINT64_MAX: no limit. Nothing but `lock` may
     * be held. */
    void (*wait)(void *arg, pthread_cond_t *cond, pthread_mutex_t *lock,
                 uint64_t until_ns);
    /* One of those who wait, or all. */
    void (*wake)(void *arg, pthread_cond_t *cond, bool all);
    void (*sleep)(void *arg, uint64_t ns);
    void *arg;
} ldr_threads_t;

extern const ldr_threads_t ldr_threads_real;
