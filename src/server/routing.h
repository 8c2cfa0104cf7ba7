/* What a daemon has for routers: the catalogue, if query or events is on, and
 * the publisher of events (docs/guide/routing.md). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "larder/larder.h"

struct ldr_server;

/* After the node and the tenants, before anybody comes in. */
larder_status_t ldr_routing_open(struct ldr_server *server);
/* Before the node: nobody uses it any more. */
void ldr_routing_close(struct ldr_server *server);

/* As in ldr_admin_source_t; arg is the server. */
larder_status_t ldr_routing_tenant(void *arg, const char *authorization,
                                   bool here, uint32_t *tenant_p);
larder_status_t ldr_routing_answer(void *arg, uint32_t tenant, const char *body,
                                   size_t bytes, char **text_p,
                                   size_t *length_p);
