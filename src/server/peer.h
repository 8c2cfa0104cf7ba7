/*
 * The far side of peers' sessions: what other members ask of this node. Each
 * connection has a thread of its own and takes one request after the other; it
 * is no session of server/session.h, and a client's session knows none of what
 * is said here.
 *
 * Where TLS is required a connection begins with its handshake. One that begins
 * with a frame may say who it is, and is then refused by its name.
 *
 * Life of a connection: HELLO, AUTH with the cluster's secret, MEET, in that
 * order, by hello_ms; then ASK, GET, PUT, PEER_SPACE, PING and MEET again. What
 * is asked for out of order, or malformed, ends it. `larder doctor` sends
 * PEER_MEASURE in place of MEET, and then nothing else; nobody's bytes are in
 * that, so it may come without TLS where TLS is required.
 *
 * A request names a space by the number that PEER_SPACE gave on the same
 * connection. One of a space that the connection has not opened ends it, as
 * whatever is out of order: its bytes would be filed under another name.
 *
 * What a peer asks for is looked for in this node's own tiers only: a request
 * never travels further.
 *
 * Nothing here knows a socket: connections come from a row of the transport
 * table, which is a simulated network in tests.
 */
#pragma once

#include "net/transport.h"
#include "node/node.h"
#include "wire/peer.h"

typedef struct ldr_peer_server ldr_peer_server_t;

typedef struct ldr_peer_server_params {
    ldr_node_t *node; /* a member of a cluster */
    ldr_log_t log;
    const ldr_clock_t *clock;
    const ldr_threads_t *threads;
    ldr_listening_t from; /* where they connect */
    ldr_tls_t *tls;       /* NULL: members come without; the caller's */
    uint64_t hello_ms;
} ldr_peer_server_params_t;

/* One thread takes connections in. params->from is the server's from here on,
 * also after a failure. */
larder_status_t ldr_peer_server_open(const ldr_peer_server_params_t *params,
                                     ldr_peer_server_t **server_p);
/* Breaks all connections and waits for their threads. */
void ldr_peer_server_close(ldr_peer_server_t *s);

/* ---- between the files of it ---- */

typedef struct ldr_peer_conn {
    struct ldr_peer_conn *next;
    ldr_peer_server_t *server;
    struct ldr_peer_node *peer; /* once it is met */
    ldr_stream_t stream;
    char from[80];
    pthread_t thread;
    bool over; /* its thread ends; server->lock */
    bool open; /* it came without TLS, where that is required */
    uint64_t epoch;
    uint32_t space;    /* a MEET's next reply says epochs from this one on */
    ldr_frame_t frame; /* of the request */
    ldr_stop_t stop;   /* of the request */
    uint8_t *in, *out; /* a frame and its body each */
    uint8_t opened[LDR_SPACES_MAX / 8 + 1]; /* bits: spaces, by PEER_SPACE */
} ldr_peer_conn_t;

struct ldr_peer_server {
    ldr_node_t *node;
    struct ldr_peers *peers;
    ldr_log_t log;
    const ldr_clock_t *clock;
    const ldr_threads_t *threads;
    ldr_listening_t from;
    pthread_t acceptor, copier;
    ldr_tls_t *tls;
    uint64_t hello_ms;
    pthread_mutex_t lock;
    ldr_peer_conn_t *conns;
    unsigned count;
    bool stop; /* atomic */
};

/* Whole bytes in or out, until the deadline; false: the connection is over. */
bool ldr_peer_move(ldr_peer_conn_t *c, const struct iovec *iov, uint32_t count,
                   bool in, uint64_t deadline_ns);
/* Answers: the body lies in c->out behind the frame, payload follows. */
bool ldr_peer_reply(ldr_peer_conn_t *c, larder_status_t st, size_t body,
                    const struct iovec *payload, uint32_t count,
                    uint64_t bytes);
bool ldr_peer_refuse(ldr_peer_conn_t *c, larder_status_t st); /* with a text */

/* Whether the connection has opened this space. */
static inline bool ldr_peer_opened(const ldr_peer_conn_t *c, uint32_t space)
{
    return space < LDR_SPACES_MAX &&
           (c->opened[space / 8] >> space % 8 & 1) != 0;
}

/* peer_ops.c: false: the connection is to be closed. */
bool ldr_peer_do_space(ldr_peer_conn_t *c);
bool ldr_peer_do_ask(ldr_peer_conn_t *c);
bool ldr_peer_do_get(ldr_peer_conn_t *c);
bool ldr_peer_do_put(ldr_peer_conn_t *c);
bool ldr_peer_do_home(ldr_peer_conn_t *c);
/* peer_copy.c: the thread that fetches what this node is to have a copy of. */
void *ldr_peer_copier(void *server);
bool ldr_peer_do_measure(ldr_peer_conn_t *c);
/* peer_handoff.c: what was promised here and has not come. */
bool ldr_peer_do_handoff(ldr_peer_conn_t *c);
/* Tells the member once when this chunk has come or failed. With the lock. */
void ldr_peer_watch(ldr_peer_conn_t *c, uint32_t space,
                    const ldr_peer_name_t *name);
