/*
 * What the daemon shows: all metrics as text, and the state of everything as
 * JSON for the dashboard, with the history of the last hour.
 *
 * A monitor looks at the counters every LDR_MONITOR_MS, in a thread of its own,
 * and keeps what happened in between. Open it when node and metrics are there,
 * close it before they go.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/log.h"
#include "larder/larder.h"
#include "node/node.h"
#include "server/metrics.h"

#define LDR_MONITOR_MS 5000u
#define LDR_MONITOR_ROWS 720u  /* an hour */
#define LDR_MONITOR_RECENT 12u /* rows that percentiles are worked out over */
#define LDR_MONITOR_TENANTS 200u

typedef struct ldr_monitor ldr_monitor_t;

typedef struct ldr_monitor_params {
    ldr_node_t *node;
    ldr_server_metrics_t *metrics;
    /* As in ldr_admin_source_t. Called with the monitor's lock. */
    bool (*ready)(void *arg, char *why, size_t size);
    void *arg;
    const ldr_clock_t *clock; /* of its thread */
    bool manual; /* no thread: ldr_monitor_look() is called instead */
} ldr_monitor_params_t;

larder_status_t ldr_monitor_open(const ldr_monitor_params_t *params,
                                 ldr_monitor_t **monitor_p);
void ldr_monitor_close(ldr_monitor_t *monitor); /* NULL is fine */
/* Enters a row into the history, of what came since the last one. */
void ldr_monitor_look(ldr_monitor_t *monitor);

/* These write text of fixed size and give the length all of it needs. */

/* JSON. Of the history, rows younger than since_ms (ms since 1970). */
size_t ldr_server_status_json(ldr_monitor_t *monitor, uint64_t since_ms,
                              char *text, size_t size);
/* Prometheus text. tenant: what concerns only this one (the node's number);
 * LDR_NIL: everything. */
size_t ldr_server_metrics_text(ldr_node_t *node, ldr_server_metrics_t *metrics,
                               uint32_t tenant, char *text, size_t size);
