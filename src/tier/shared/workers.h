/*
 * Workers: threads that call a back end on behalf of others, so that nobody who
 * serves an engine ever waits for storage. Jobs come from bounded queues, reads
 * before writes before chores; but a kind that was passed over a few times in
 * a row has its turn, and one worker is always left to reads. A breaker turns
 * the tier off when the medium fails three times in a row or a call is overdue,
 * with the reason, and tries health() every retry_ns until it is well again;
 * whatever waits is then ended with -ESHUTDOWN. So does it when reads are slow
 * on average, and is tried again after twelve retry_ns: nothing but reads can
 * tell whether it is faster then. A medium that is full or cannot be written to
 * is still read; once every retry_ns a write is let through, and when that
 * succeeds all are.
 *
 * A call that hangs in the kernel (a dead mount) cannot be ended: its worker is
 * lost until it comes back, the job stays that worker's, and closing leaves
 * both behind after its deadline, with one line in the log. Nothing of the
 * caller's but the job and the memory it names is touched by such a call.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tier/shared/backend.h"

typedef struct ldr_workers ldr_workers_t;
typedef struct ldr_job ldr_job_t;

#define LDR_SLOW_BYTES ((uint64_t)8 << 20)

typedef enum ldr_job_kind {
    LDR_JOB_READ,  /* a load waits for it */
    LDR_JOB_WRITE, /* write-behind */
    LDR_JOB_CHORE, /* polling, publishing, cleaning */
    LDR_JOB_KINDS
} ldr_job_kind_t;

struct ldr_job {
    ldr_job_kind_t kind;
    /* Of its calls; one that waited too long: ETIMEDOUT. Work with several
     * calls sets it again before each: ldr_job_extend(). */
    uint64_t deadline_ns;
    /* Does the calls, in a worker, no lock held; gives 0 or a negative errno.
     */
    int (*work)(ldr_job_t *job, ldr_backend_t *backend);
    /* Once, on any thread, no lock of the workers held. Not after close. */
    void (*done)(ldr_job_t *job);
    void *arg;
    uint64_t bytes; /* that a read is to bring */
    int error;
    bool wrote; /* work(): its error is that of a put or a removal */
    ldr_backend_t *backend; /* work()'s own: what its calls go to */
    bool trial;             /* the workers' own, as these */
    bool taken;             /* from when it is added until done() */
    ldr_job_t *next;
};

/* From work(): its next call has until then. */
static inline void ldr_job_extend(ldr_job_t *job, uint64_t deadline_ns)
{
    __atomic_store_n(&job->deadline_ns, deadline_ns, __ATOMIC_RELAXED);
}

typedef enum ldr_objects_state {
    LDR_OBJECTS_OFF,      /* nothing is read or written */
    LDR_OBJECTS_READONLY, /* full, or not writable: only read */
    LDR_OBJECTS_ON
} ldr_objects_state_t;

typedef struct ldr_workers_params {
    ldr_backend_t *backend; /* the workers' own from here on */
    unsigned workers;       /* calls under way at once */
    unsigned queue;         /* jobs of each kind that may wait */
    uint64_t retry_ns;
    uint64_t timeout_ns; /* of probe() */
    /* That a read may take on average, for each LDR_SLOW_BYTES begun; 0: any
     * time. */
    uint64_t slow_ns;
    const ldr_clock_t *clock;
    ldr_log_t log;
    /* Instead of health(), with arg; NULL: that. */
    int (*probe)(void *arg, ldr_backend_t *backend, uint64_t deadline_ns);
    bool manual; /* no threads: the caller drives ldr_workers_step() */
    /* The state has changed, or is off for a reason that is known now; no lock
     * held. */
    void (*changed)(void *arg, ldr_objects_state_t state);
    void *arg;
} ldr_workers_params_t;

larder_status_t ldr_workers_open(const ldr_workers_params_t *params,
                                 ldr_workers_t **workers_p);
/* Ends the jobs that wait with -ECANCELED (done() is called), and waits for
 * those under way until the deadline. False: some were left behind, and what
 * their jobs name must stay for ever. */
bool ldr_workers_close(ldr_workers_t *workers, uint64_t deadline_ns);

/* False: not taken, error says why (-EBUSY: too many wait; -ESHUTDOWN: off;
 * -EROFS: a write while only read); done() is not called. */
bool ldr_workers_add(ldr_workers_t *workers, ldr_job_t *job);

ldr_objects_state_t ldr_workers_state(ldr_workers_t *workers, char *reason,
                                      size_t reason_size);
/* Whether a write would be taken now, as a trial at least. */
bool ldr_workers_writable(ldr_workers_t *workers);
/* The error (negative) that it is not on for; 0: it is. */
int ldr_workers_error(ldr_workers_t *workers);
/* What a job found out besides its own error, such as a full disk in a job
 * that went on. */
void ldr_workers_failed(ldr_workers_t *workers, bool writing, int error,
                        const char *what);

/* Ends jobs that have waited too long, and turns off when a call is overdue.
 * To be called every so often, by no worker: they may all hang. True: there was
 * something. */
bool ldr_workers_look(ldr_workers_t *workers);
/* In a manual one: does one job, or looks after the breaker. False: nothing
 * to do now. */
bool ldr_workers_step(ldr_workers_t *workers);

typedef struct ldr_workers_stats {
    uint64_t waiting[LDR_JOB_KINDS], failed[LDR_JOB_KINDS];
    uint64_t refused, overdue, times_off;
    unsigned stuck; /* workers that do not come back */
} ldr_workers_stats_t;

void ldr_workers_stats(ldr_workers_t *workers, ldr_workers_stats_t *out);
