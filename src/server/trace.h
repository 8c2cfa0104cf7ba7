/*
 * A trace of the requests that reach the daemon, for `larder plan`: one line of
 * JSON for each, as in docs/guide/plan.md, without anything of their contents.
 * Chunks are named by the first 64 bits of SHA-256 over a salt and part of
 * their key; the salt is random, of this process, and kept nowhere.
 *
 * Whoever has a request copies what is needed into a buffer of bounded size; a
 * thread of the trace's own does all the rest, a few times a second. What does
 * not fit is left out and counted, so that no request ever waits.
 *
 * One request gives one line: announced again, by another rank or at the next
 * step, it is known by its id, or without one by its chain within a second. A
 * save that announces a chain gives a line only if there was none of that chain
 * within a minute.
 */
#pragma once

#include <stdint.h>

#include "base/log.h"
#include "larder/larder.h"
#include "node/node.h"
#include "server/metrics.h"

typedef struct ldr_trace ldr_trace_t;

typedef struct ldr_trace_params {
    const char *path;
    uint64_t bytes_max;            /* of the file, with what is in it */
    ldr_server_metrics_t *metrics; /* the caller's, as is the log */
    const ldr_log_t *log;
    const ldr_clock_t *clock;
} ldr_trace_params_t;

/* Whether the file can be written. */
larder_status_t ldr_trace_check(const char *path);
/* Appends to the file, or makes it: only its owner may read it. */
larder_status_t ldr_trace_open(const ldr_trace_params_t *params,
                               ldr_trace_t **trace_p);
/* Writes what is left. NULL is fine. */
void ldr_trace_close(ldr_trace_t *t);

/* NULL is fine: then nothing is traced. */
void ldr_trace_request(ldr_trace_t *t, uint32_t space, const ldr_announce_t *a);
