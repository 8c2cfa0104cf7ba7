/*
 * What `larder top` shows of two readings of a node's metrics, as lines of
 * text.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "cli/prom.h"
#include "larder/larder.h"

#define LDR_TOP_LINES 200u
#define LDR_TOP_BYTES 256u /* of a line */

typedef struct ldr_top_line {
    bool head; /* shown bold */
    char text[LDR_TOP_BYTES];
} ldr_top_line_t;

typedef struct ldr_top_screen {
    ldr_top_line_t lines[LDR_TOP_LINES];
    unsigned count;
    int columns, rows; /* rows 0: as many as there are */
} ldr_top_screen_t;

typedef struct ldr_top {
    const char *url;
    ldr_prom_t now, before;
    double s;             /* between the two readings */
    larder_status_t last; /* of the last reading, come or not */
} ldr_top_t;

/* The text of a node's metrics, from ldr_alloc. */
larder_status_t ldr_top_fetch(larder_t *lar, char **text_p);

/* Rewrites all lines. */
void ldr_top_compose(const ldr_top_t *t, ldr_top_screen_t *s);
