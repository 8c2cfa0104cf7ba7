/*
 * Who may read events: CURVE, as libzmq has it. The daemon has a secret key;
 * subscribers know its public one, and have keys of their own, whose public
 * halves are in a list. Whoever is not in the list is refused in the handshake
 * and counted (larder_auth_failures_total, reason certificate).
 *
 * libzmq asks for each connection over a socket inside the process (its ZAP
 * protocol), which the events' thread answers.
 */
#pragma once

#include <stdbool.h>

#include "larder/larder.h"
#include "server/metrics.h"

typedef struct ldr_events_auth ldr_events_auth_t;

/* Files with the secret key and the list: 40 characters each (Z85). In a list
 * lines that are empty or begin with # are skipped. E_UNSUPPORTED: this libzmq
 * has no CURVE. */
larder_status_t ldr_events_auth_open(void *context, const char *key,
                                     const char *clients,
                                     ldr_server_metrics_t *metrics,
                                     ldr_events_auth_t **auth_p);
void ldr_events_auth_close(ldr_events_auth_t *a); /* NULL is fine */
/* The socket asks for keys from now on, before it is bound; NULL: it does not.
 */
bool ldr_events_auth_on(const ldr_events_auth_t *a, void *socket);
/* Answers libzmq's questions, which come by this socket. NULL is fine. */
void *ldr_events_auth_socket(const ldr_events_auth_t *a);
void ldr_events_auth_serve(ldr_events_auth_t *a);
