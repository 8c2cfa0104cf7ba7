/*
 * An event loop: one thread, one epoll. Everything that belongs to a loop (its
 * sessions and their requests) is touched by its thread only; others hand it
 * tasks.
 *
 * Invariants
 *  1. A task is in the list exactly while it is `posted`; tasks_end leads to
 *     the last link, which is NULL.
 *  2. Watches, and what belongs to the loop, are touched in the loop's thread,
 *     or by anybody while that does not run: ldr_loop_is_here().
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"
#include "larder/larder.h"

typedef struct ldr_loop ldr_loop_t;
typedef struct ldr_watch ldr_watch_t;
typedef struct ldr_task ldr_task_t;

/* A descriptor that is watched. ready() may close others: their fd is then -1,
 * and their memory must stay until a task that it posts has run. */
struct ldr_watch {
    int fd; /* -1: not watched */
    uint32_t events;
    void (*ready)(ldr_watch_t *watch, uint32_t events);
};

struct ldr_task {
    void (*run)(ldr_task_t *task);
    ldr_task_t *next;
    bool posted; /* under the loop's lock; cleared before it runs */
};

#define LDR_LOOP_GAPS 4u

typedef enum ldr_loop_found {
    LDR_LOOP_COLD, /* nothing, and nothing is to be expected */
    LDR_LOOP_WARM, /* nothing yet: worth looking again before sleeping */
    LDR_LOOP_BUSY  /* something was there */
} ldr_loop_found_t;

typedef struct ldr_loop_hooks {
    /* Polls what has no descriptor (rings). */
    ldr_loop_found_t (*poll)(ldr_loop_t *loop);
    /* About to sleep. False: do not, something came. */
    bool (*sleep)(ldr_loop_t *loop);
    /* When to be called next at the latest (monotonic ns; UINT64_MAX: not),
     * having done what was due. */
    uint64_t (*tick)(ldr_loop_t *loop, uint64_t now_ns);
} ldr_loop_hooks_t;

struct ldr_loop {
    void *owner; /* the server */
    const ldr_loop_hooks_t *hooks;
    const ldr_clock_t *clock;
    int epoll_fd, wake_fd;
    uint64_t spin_ns; /* how long to poll before sleeping, at least */
    uint64_t gaps[LDR_LOOP_GAPS]; /* the last short breaks between messages */
    unsigned gap_next;            /* of gaps[] */
    unsigned trust;               /* that the next one is like them */
    pthread_t thread;
    bool started;
    bool runs; /* atomic: from its thread's first step to its last */

    pthread_mutex_t lock; /* the tasks and stop; the last in the lock order */
    ldr_task_t *tasks, **tasks_end;
    bool stop;
    bool asleep; /* a task must wake it; under the lock */
};

larder_status_t ldr_loop_init(ldr_loop_t *loop, void *owner,
                              const ldr_loop_hooks_t *hooks,
                              const ldr_clock_t *clock, uint64_t spin_ns);
bool ldr_loop_start(ldr_loop_t *loop, const char *name);
/* Ends the thread, once the tasks posted so far have run. */
void ldr_loop_stop(ldr_loop_t *loop);
void ldr_loop_destroy(ldr_loop_t *loop);

/* Whether this is the loop's thread, or that does not run: before its start,
 * and after its end. */
bool ldr_loop_is_here(const ldr_loop_t *loop);

/* Only in the loop's thread, or before it starts. */
bool ldr_loop_watch(ldr_loop_t *loop, ldr_watch_t *watch, uint32_t events);
void ldr_loop_rewatch(ldr_loop_t *loop, ldr_watch_t *watch, uint32_t events);
void ldr_loop_unwatch(ldr_loop_t *loop, ldr_watch_t *watch);

/* From any thread: runs the task in the loop's thread, once, however often it
 * was posted before it ran. */
void ldr_loop_post(ldr_loop_t *loop, ldr_task_t *task);
/* Whether it is posted and has not begun to run. */
bool ldr_loop_posted(ldr_loop_t *loop, const ldr_task_t *task);
