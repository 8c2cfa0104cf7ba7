/* larder plan --html: what its two files share. */
#pragma once

#include <stdbool.h>
#include <stdio.h>

#define LDR_SERIES_MAX 40
#define LDR_SERIES_POINTS 1024

/* Capacities on a logarithmic scale, values from 0 on an even one. */
typedef struct ldr_axes {
    double blocks_min, blocks_max;
    double block_bytes;
    double value_max;
    double scale; /* a value times this is what is shown */
    const char *unit;
} ldr_axes_t;

typedef struct ldr_series {
    const char *name;
    unsigned color; /* 0...5 */
    bool dashed;
    unsigned count;
    double blocks[LDR_SERIES_POINTS];
    double values[LDR_SERIES_POINTS];
} ldr_series_t;

void ldr_plan_chart(FILE *f, const ldr_axes_t *axes, const ldr_series_t *series,
                    unsigned count, const char *title);
