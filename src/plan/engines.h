/*
 * Engines that take requests in the order in which they come, one at a time
 * each, for prefill only: when does each begin?
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct ldr_engines {
    uint32_t count;
    double *free_at; /* a heap: [0] is the engine that is free first */
} ldr_engines_t;

/* With 0 engines nobody ever waits. False: no memory. */
bool ldr_engines_open(ldr_engines_t *engines, uint32_t count);
/* Seconds that a request waits which comes at this time (never going back) and
 * keeps an engine busy for so long. */
double ldr_engines_wait(ldr_engines_t *engines, double at_s, double busy_s);
void ldr_engines_close(ldr_engines_t *engines);
