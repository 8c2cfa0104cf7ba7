/*
 * Engines that take requests in the order in which they come, one at a time
 * each, for prefill only: when does each begin?
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct ldr_queue {
    uint32_t count;
    double *free_at; /* a heap: [0] is the engine that is free first */
} ldr_queue_t;

/* With 0 engines nobody ever waits. False: no memory. */
bool ldr_queue_open(ldr_queue_t *queue, uint32_t engines);
/* Seconds that a request waits which comes at this time (never going back) and
 * keeps an engine busy for so long. */
double ldr_queue_wait(ldr_queue_t *queue, double at_s, double busy_s);
void ldr_queue_close(ldr_queue_t *queue);
