/*
 * The daemon: a node, and everybody who may speak to it. Listeners, sessions,
 * tenants, admin HTTP. The program's main thread opens it, waits for signals,
 * and closes it.
 *
 * Threads: `loops` event loops carry out what needs no waiting and move bytes
 * of TCP sessions; `jobs` threads carry out what waits for a disk; the node
 * has its own. See docs/concepts/threads.md.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "larder/larder.h"

typedef struct ldr_server ldr_server_t;

typedef struct ldr_server_params {
    ldr_config_t *config; /* the server's from here on, also after a failure */
    ldr_log_t log;
    bool takeover; /* asks the daemon on the same socket to hand over */
    const ldr_clock_t *clock; /* NULL: the real one */
} ldr_server_params_t;

/* Opens the node, then the listeners: once this returned it serves. */
larder_status_t ldr_server_open(const ldr_server_params_t *params,
                                ldr_server_t **server_p);

/* Readable once the server itself wants to end (it was taken over). */
int ldr_server_end_fd(const ldr_server_t *server);

/* Whether nobody has a session, nor has had one since this was last asked. By
 * one thread. */
bool ldr_server_is_idle(ldr_server_t *server);

/* Takes over what may change of a configuration read again, which is the
 * server's in any case. False: nothing was changed, and it is freed; true: the
 * one before it is. */
bool ldr_server_reload(ldr_server_t *server, ldr_config_t *config);
/* It could not even be read, and larder_last_error() says why: for the log, and
 * counted. */
void ldr_server_reload_failed(ldr_server_t *server);

/* Ends: no new sessions, requests under way finish or reach the bound
 * drain_ms, what is in DRAM only is written down, everything is freed.
 * LARDER_E_DEADLINE: some saves were not written down in time. */
larder_status_t ldr_server_close(ldr_server_t *server);

/* ---- the other side of the admin verbs: `larder pause`, --takeover ---- */

/* Says a verb to the daemon on the socket and gives its answer as text. */
larder_status_t ldr_admin_say(const char *socket_path, const char *verb,
                              char *text, size_t size, uint64_t deadline_ns);
