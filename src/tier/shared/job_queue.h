/* Queues of jobs, in the order in which they came. Inside the workers, with
 * their lock. `count` jobs are linked from first to last; both are NULL
 * without. */
#pragma once

#include "base/check.h"
#include "tier/shared/workers.h"

typedef struct ldr_job_queue {
    ldr_job_t *first, *last;
    unsigned count;
    unsigned passed; /* jobs of other kinds since its own last one */
} ldr_job_queue_t;

static inline void ldr_job_push(ldr_job_queue_t *q, ldr_job_t *job)
{
    job->next = NULL;
    if (q->last != NULL) {
        q->last->next = job;
    } else {
        q->first = job;
    }
    q->last = job;
    q->count++;
}

/* There is one; NULL: there is none, which is broken. */
static inline ldr_job_t *ldr_job_pop(ldr_job_queue_t *q)
{
    ldr_job_t *job = q->first;

    if (!LDR_HOLDS(job != NULL && q->count > 0)) {
        return NULL;
    }
    q->first = job->next;
    if (q->first == NULL) {
        q->last = NULL;
    }
    q->count--;
    return job;
}
