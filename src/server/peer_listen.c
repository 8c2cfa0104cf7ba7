/* Where other members connect. */
#include <string.h>

#include "base/log.h"
#include "cluster/cluster.h"
#include "server/peer.h"
#include "server/session.h"

larder_status_t ldr_peers_listen(ldr_server_t *server)
{
    const ldr_options_t *o = &server->config->options;
    const ldr_transport_ops_t *transport = &ldr_transport_tcp;
    ldr_address_t address;

    if (server->cluster == NULL) {
        return LARDER_OK;
    }
    const char *text = o->peer_listen[0] != '\0'
                           ? o->peer_listen
                           : ldr_cluster_self(server->cluster).address;
    if (!ldr_address_parse(text, strlen(text), &address)) {
        return ldr_fail(LARDER_E_INVALID,
                        "peer_listen: '%s': write host:port, where other "
                        "members reach this one",
                        text);
    }
    ldr_peer_server_params_t params = {
        .node = server->node,
        .log = server->log,
        .clock = server->clock,
        .threads = &ldr_threads_real,
        .tls = server->peer_tls,
        .hello_ms = o->hello_ms,
    };
    ldr_dest_t at = {.address = &address, .congestion = o->congestion};
    int error = transport->listen(transport, &at, &params.from);
    if (error != 0) {
        return ldr_ports_refuse("peer_listen", text, error);
    }
    larder_status_t st = ldr_peer_server_open(&params, &server->peers);
    if (st == LARDER_OK) {
        ldr_info(&server->log, "listening for peers: %s", text);
    }
    return st;
}

void ldr_peers_unlisten(ldr_server_t *server)
{
    if (server->peers != NULL) {
        ldr_peer_server_close(server->peers);
    }
    server->peers = NULL;
}
