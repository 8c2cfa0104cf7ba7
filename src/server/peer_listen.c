/* Where other members connect: one thread takes connections in. */
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/thread.h"
#include "cluster/cluster.h"
#include "server/peer.h"
#include "server/session.h"

#define LOOK_NS 200000000u

struct ldr_peer_listen {
    ldr_server_t *server;
    ldr_peer_server_t *peers;
    int fd;
    bool stop; /* atomic */
    bool runs;
    pthread_t thread;
};

/* Where it comes from, for the log. */
static void from_text(int fd, char *text, size_t size)
{
    struct sockaddr_storage a;
    socklen_t length = sizeof(a);
    char host[64] = "?";

    if (getpeername(fd, (struct sockaddr *)&a, &length) == 0) {
        getnameinfo((struct sockaddr *)&a, length, host, sizeof(host), NULL, 0,
                    NI_NUMERICHOST);
    }
    snprintf(text, size, "peer at %s, connection %d", host, fd);
}

static void *listen_main(void *arg)
{
    struct ldr_peer_listen *l = arg;

    while (!__atomic_load_n(&l->stop, __ATOMIC_RELAXED)) {
        ldr_poll(l->fd, POLLIN, ldr_server_now(l->server) + LOOK_NS);
        int fd = ldr_accept(l->fd);
        ldr_stream_t stream;
        char from[80];

        if (fd < 0) {
            if (fd != -EAGAIN && fd != -ECONNABORTED) {
                ldr_warn(&l->server->log,
                         "a peer's connection cannot be accepted: %s",
                         strerror(-fd));
                ldr_threads_real.sleep(ldr_threads_real.arg, LOOK_NS);
            }
            continue;
        }
        ldr_socket_tune(fd, l->server->config->options.congestion);
        from_text(fd, from, sizeof(from));
        if (ldr_stream_init(&stream, fd, NULL, true, NULL) == LARDER_OK) {
            ldr_peer_serve(l->peers, &stream, from);
        }
    }
    return NULL;
}

larder_status_t ldr_peers_listen(ldr_server_t *server)
{
    const ldr_options_t *o = &server->config->options;
    struct ldr_peer_listen *l =
        server->cluster != NULL ? ldr_alloc(sizeof(*l)) : NULL;
    ldr_address_t address;

    if (server->cluster == NULL) {
        return LARDER_OK;
    }
    if (l == NULL) {
        return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for peers");
    }
    server->peer_listen = l;
    l->server = server;
    l->fd = -1;
    const char *text = o->peer_listen[0] != '\0'
                           ? o->peer_listen
                           : ldr_cluster_self(server->cluster).address;
    if (!ldr_address_parse(text, strlen(text), &address)) {
        return ldr_fail(LARDER_E_INVALID,
                        "peer_listen: '%s': write host:port, where other "
                        "members reach this one",
                        text);
    }
    l->fd = ldr_listen_tcp(&address, o->congestion);
    if (l->fd < 0) {
        return ldr_ports_refuse("peer_listen", text, l->fd);
    }
    ldr_peer_server_params_t params = {
        .node = server->node,
        .log = server->log,
        .clock = &ldr_clock_real,
        .threads = &ldr_threads_real,
        .tls = server->peer_tls,
        .hello_ms = o->hello_ms,
    };
    larder_status_t st = ldr_peer_server_open(&params, &l->peers);
    if (st != LARDER_OK) {
        return st;
    }
    l->runs = ldr_thread_start(&l->thread, "larder-peers-in", listen_main, l);
    ldr_info(&server->log, "listening for peers: %s", text);
    return l->runs ? LARDER_OK
                   : ldr_fail(LARDER_E_NO_MEMORY, "cannot start a thread");
}

void ldr_peers_unlisten(ldr_server_t *server)
{
    struct ldr_peer_listen *l = server->peer_listen;

    server->peer_listen = NULL;
    if (l == NULL) {
        return;
    }
    __atomic_store_n(&l->stop, true, __ATOMIC_RELAXED);
    if (l->runs) {
        pthread_join(l->thread, NULL);
    }
    if (l->fd >= 0) {
        close(l->fd);
    }
    if (l->peers != NULL) {
        ldr_peer_server_close(l->peers);
    }
    ldr_free(l);
}
