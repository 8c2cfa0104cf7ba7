/* Queues of jobs, in the order in which they came. Inside the lanes. */
#pragma once

#include "shared/lanes.h"

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

/* There is one. */
static inline ldr_job_t *ldr_job_pop(ldr_job_queue_t *q)
{
    ldr_job_t *job = q->first;

    q->first = job->next;
    if (q->first == NULL) {
        q->last = NULL;
    }
    q->count--;
    return job;
}
