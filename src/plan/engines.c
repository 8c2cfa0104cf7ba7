/*
 * A heap of the times at which engines become free, the earliest first. Times
 * only grow, so a changed root only sinks. One thread.
 */
#include "plan/engines.h"

#include <stddef.h>

#include "base/mem.h"

bool ldr_engines_open(ldr_engines_t *q, uint32_t engines)
{
    q->count = engines;
    q->free_at = engines > 0 ? ldr_alloc(engines * sizeof(*q->free_at)) : NULL;
    return engines == 0 || q->free_at != NULL;
}

/* The first of the heap has become later: it sinks. */
static void sink(ldr_engines_t *q)
{
    uint32_t i = 0;

    for (;;) {
        uint32_t least = i;

        for (uint32_t child = 2 * i + 1; child <= 2 * i + 2; child++) {
            if (child < q->count && q->free_at[child] < q->free_at[least]) {
                least = child;
            }
        }
        if (least == i) {
            return;
        }
        double later = q->free_at[i];
        q->free_at[i] = q->free_at[least];
        q->free_at[least] = later;
        i = least;
    }
}

double ldr_engines_wait(ldr_engines_t *q, double at_s, double busy_s)
{
    if (q->count == 0) {
        return 0;
    }
    double start = q->free_at[0] > at_s ? q->free_at[0] : at_s;
    q->free_at[0] = start + busy_s;
    sink(q);
    return start - at_s;
}

void ldr_engines_close(ldr_engines_t *q)
{
    ldr_free(q->free_at);
    q->free_at = NULL;
    q->count = 0;
}
