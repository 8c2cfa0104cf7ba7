/* The parts for routers, as the daemon opens and closes them. */
#include "server/routing.h"

#include <string.h>
#include <unistd.h>

#include "server/catalog.h"
#include "server/events.h"
#include "server/query.h"
#include "server/server_int.h"

/* As given; else the member's name, or the host's. */
static void node_name(const ldr_server_t *server, const char *given,
                      char name[LDR_EVENTS_NODE])
{
    const char *member = server->config->options.member_name;

    snprintf(name, LDR_EVENTS_NODE, "%s", given[0] != '\0' ? given : member);
    if (name[0] == '\0' && gethostname(name, LDR_EVENTS_NODE - 1) == 0) {
        name[LDR_EVENTS_NODE - 1] = '\0';
        name[strcspn(name, ".")] = '\0';
    }
}

larder_status_t ldr_routing_tenant(void *arg, const char *authorization,
                                   bool here, uint32_t *tenant_p)
{
    return ldr_query_tenant(arg, authorization, here, tenant_p);
}

larder_status_t ldr_routing_answer(void *arg, uint32_t tenant, const char *body,
                                   size_t bytes, char **text_p,
                                   size_t *length_p)
{
    ldr_server_t *server = arg;
    char name[LDR_EVENTS_NODE];

    node_name(server, "", name);
    return ldr_query_answer(server->catalog, name, tenant, body, bytes, text_p,
                            length_p);
}

static larder_status_t events_open(ldr_server_t *server)
{
    const ldr_options_t *o = &server->config->options;
    const ldr_server_tenant_t *tenant =
        ldr_server_tenant_find(server, o->events_tenant);
    ldr_events_params_t params = {
        .url = o->events,
        .replay = o->events_replay,
        .keep_bytes = o->describe_memory,
        .catalog = server->catalog,
        .clock = server->clock,
        .metrics = server->metrics,
        .key = o->events_key,
        .clients = o->events_clients,
        .log = server->log,
        .topics = o->events_topics,
        .owned = o->events_ownership == LDR_EVENTS_OWNERSHIP_ON,
    };

    if (tenant == NULL) {
        return ldr_fail(LARDER_E_INVALID,
                        "events_tenant: there is no tenant '%s'",
                        o->events_tenant);
    }
    params.tenant = tenant->number;
    node_name(server, o->events_node, params.node);
    return ldr_events_open(&params, &server->events);
}

/* What engines describe, for whom it is wanted. */
larder_status_t ldr_routing_open(ldr_server_t *server)
{
    const ldr_options_t *o = &server->config->options;

    if (o->query == LDR_QUERY_OFF && o->events[0] == '\0') {
        return LARDER_OK;
    }
    server->catalog = ldr_catalog_open(server->node, o->describe_memory);
    if (server->catalog == NULL) {
        return ldr_fail(LARDER_E_NO_MEMORY,
                        "not enough memory for descriptions");
    }
    server->metrics->catalog = server->catalog;
    return o->events[0] != '\0' ? events_open(server) : LARDER_OK;
}

void ldr_routing_close(ldr_server_t *server)
{
    ldr_events_close(server->events);
    ldr_catalog_close(server->catalog);
}
