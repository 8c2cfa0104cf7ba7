/*
 * Inside the workers: what workers.c (queues, threads) and workers_breaker.c
 * (when the medium is on, only read or off) share. The lock is
 * ldr_workers.lock.
 */
#pragma once

#include <pthread.h>

#include "tier/shared/workers.h"
#include "tier/shared/job_queue.h"

typedef struct ldr_worker {
    ldr_workers_t *workers;
    pthread_t thread;
    ldr_job_t *job;            /* whose work() is under way */
    uint64_t probe_ns;         /* deadline of a probe() under way; 0: none */
    bool busy;                 /* from taking a job until after its done() */
    bool finishing, stuck, up; /* in done(); overdue; its thread runs */
} ldr_worker_t;

struct ldr_workers {
    ldr_workers_params_t params;
    pthread_mutex_t announce_lock; /* held around changed() */
    pthread_mutex_t lock;          /* of all below */
    pthread_cond_t work;           /* something may be to do */
    pthread_cond_t ended;          /* a worker is not busy any more */
    ldr_job_queue_t queues[LDR_JOB_KINDS];
    unsigned low;   /* jobs under way that are no reads */
    unsigned count; /* of worker[] */
    ldr_objects_state_t state;
    int error; /* why it is not on */
    char reason[160];
    unsigned failures; /* in a row */
    /* Reads since it is on, and how long they take: see ldr_breaker_speed(). */
    unsigned reads;
    uint64_t read_ns;
    bool looked; /* at the medium, once */
    bool trying;
    ldr_worker_t *prober; /* whose probe() counts; NULL: none is under way */
    uint64_t probe_at_ns, trial_at_ns;
    bool closing, abandoned;
    unsigned alive; /* threads */
    ldr_workers_stats_t stats;
    ldr_worker_t worker[];
};

/* What is to be announced once the lock is given up. */
typedef struct ldr_turn {
    bool changed;
    ldr_objects_state_t state;
    ldr_job_t *ended; /* waited when it went off */
    char reason[160];
} ldr_turn_t;

/* ---- workers.c ---- */

/* All with the lock, which they assert, where nothing else is said. */

/* Takes all that wait, of those late only where late_ns is not 0. */
ldr_job_t *ldr_workers_take_waiting(ldr_workers_t *l, uint64_t late_ns);
/* No lock held. */
void ldr_workers_end_all(ldr_workers_t *l, ldr_job_t *list, int error);

/* Whether the invariants hold: looks at all queues and workers. */
bool ldr_workers_check(const ldr_workers_t *l);

/* ---- workers_breaker.c ---- */

bool ldr_breaker_check(const ldr_workers_t *l);

void ldr_breaker_reason(ldr_workers_t *l, int error, const char *what);
void ldr_breaker_set(ldr_workers_t *l, ldr_objects_state_t state,
                     ldr_turn_t *turn);
/* What an error says of the medium; what: its text. */
void ldr_breaker_heed(ldr_workers_t *l, bool writing, int error,
                      const char *what, ldr_turn_t *turn);
/* A read has succeeded, and took so long. */
void ldr_breaker_speed(ldr_workers_t *l, const ldr_job_t *job, uint64_t took_ns,
                       ldr_turn_t *turn);
/* No lock held. */
void ldr_breaker_announce(ldr_workers_t *l, const ldr_turn_t *turn);
