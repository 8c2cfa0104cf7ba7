/* Connections of other members: see peer.h. */
#include "server/peer.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/bytes.h"
#include "base/iov.h"
#include "base/mem.h"
#include "base/thread.h"
#include "tier/peer/peer.h"

#define CONNS_MAX 4096u
#define LOOK_NS 200000000u     /* for the end */
#define SILENT_NS 60000000000u /* a member says something more often */
#define MOVE_IOV 64u
#define TLS_HANDSHAKE 22 /* the first byte of a TLS connection */

/* ---- bytes ---- */

static bool wait_stream(ldr_peer_conn_t *c, bool in, uint64_t deadline_ns)
{
    uint64_t now_ns = ldr_now_ns(c->server->clock);

    if (c->stream.ssl != NULL) {
        in = !c->stream.wants_write;
    }

    if (now_ns >= deadline_ns ||
        __atomic_load_n(&c->server->stop, __ATOMIC_RELAXED)) {
        return false;
    }
    return ldr_stream_poll(&c->stream, in ? POLLIN : POLLOUT,
                           ldr_min64(deadline_ns, now_ns + LOOK_NS)) >= 0;
}

bool ldr_peer_move(ldr_peer_conn_t *c, const struct iovec *iov, uint32_t count,
                   bool in, uint64_t deadline_ns)
{
    struct iovec some[MOVE_IOV];
    uint32_t at = 0;
    unsigned have = 0;

    for (;;) {
        while (have < MOVE_IOV && at < count) {
            some[have++] = iov[at++];
        }
        if (have == 0) {
            return true;
        }
        ssize_t n = in ? ldr_stream_read(&c->stream, some, have)
                       : ldr_stream_write(&c->stream, some, have);
        if (n == -EAGAIN) {
            if (!wait_stream(c, in, deadline_ns)) {
                return false;
            }
            continue;
        }
        if (n <= 0) {
            return false;
        }
        unsigned gone = ldr_iov_drop(some, have, (size_t)n);
        memmove(some, some + gone, (have - gone) * sizeof(*some));
        have -= gone;
    }
}

bool ldr_peer_reply(ldr_peer_conn_t *c, larder_status_t st, size_t body,
                    const struct iovec *payload, uint32_t count, uint64_t bytes)
{
    ldr_frame_t frame = {
        .opcode = c->frame.opcode,
        .flags = LDR_FRAME_REPLY,
        .id = c->frame.id,
        .epoch = c->epoch,
        .body = (uint32_t)body,
        .payload = (uint32_t)bytes,
        .arg = (uint32_t)(int32_t)st,
    };
    struct iovec head = {c->out, LDR_FRAME_BYTES + body};
    uint64_t deadline_ns = ldr_now_ns(c->server->clock) + SILENT_NS;

    ldr_frame_put(c->out, &frame, true);
    return ldr_peer_move(c, &head, 1, false, deadline_ns) &&
           (bytes == 0 || ldr_peer_move(c, payload, count, false, deadline_ns));
}

bool ldr_peer_refuse(ldr_peer_conn_t *c, larder_status_t st)
{
    size_t bytes = ldr_min64(strlen(ldr_fail_text()), LDR_TEXT_MAX);

    memcpy(c->out + LDR_FRAME_BYTES, ldr_fail_text(), bytes);
    return ldr_peer_reply(c, st, bytes, NULL, 0, 0);
}

/* The next request: its frame and body. */
static bool take_request(ldr_peer_conn_t *c, uint32_t body_max,
                         uint64_t deadline_ns)
{
    struct iovec iov = {c->in, LDR_FRAME_BYTES};

    if (!ldr_peer_move(c, &iov, 1, true, deadline_ns) ||
        ldr_frame_get(c->in, body_max, &c->frame) != LDR_FRAME_OK ||
        (c->frame.flags & (LDR_FRAME_REPLY | LDR_FRAME_SILENT)) != 0) {
        return false;
    }
    iov = (struct iovec){c->in + LDR_FRAME_BYTES, c->frame.body};
    if ((c->frame.body > 0 && !ldr_peer_move(c, &iov, 1, true, deadline_ns)) ||
        !ldr_frame_check(c->in, &c->frame)) {
        return false;
    }
    uint64_t now_ns = ldr_now_ns(c->server->clock);
    c->stop = (ldr_stop_t){
        &c->server->stop,
        c->frame.arg == LARDER_FOREVER
            ? now_ns + SILENT_NS
            : now_ns + (uint64_t)c->frame.arg * 1000000u,
    };
    return true;
}

/* ---- who it is ---- */

static bool say_welcome(ldr_peer_conn_t *c, uint8_t client[LDR_NONCE_BYTES],
                        uint8_t server[LDR_NONCE_BYTES])
{
    ldr_welcome_t welcome = {
        .version = LDR_WIRE_VERSION_MAX, .auth = 1, .epoch = c->epoch};
    ldr_hello_t hello;

    if (c->frame.opcode != LDR_OP_HELLO ||
        !ldr_get_hello(c->in + LDR_FRAME_BYTES, c->frame.body, &hello)) {
        return false;
    }
    if (hello.version_min > LDR_WIRE_VERSION_MAX ||
        hello.version_max < LDR_WIRE_VERSION_MIN) {
        ldr_warn(&c->server->log,
                 "%s: a peer of another version was refused: %s", c->from,
                 hello.program);
        ldr_peer_refuse(
            c, ldr_fail(LARDER_E_VERSION,
                        "protocol versions %u to %u are spoken by the peer "
                        "(%s), %u to %u by this node (%s): update the older "
                        "one",
                        hello.version_min, hello.version_max, hello.program,
                        LDR_WIRE_VERSION_MIN, LDR_WIRE_VERSION_MAX,
                        larder_version()));
        return false;
    }
    if (strcmp(hello.tenant, LDR_PEER_TENANT) != 0) {
        ldr_warn(&c->server->log,
                 "%s: a client (tenant '%s') was refused: members of the "
                 "cluster meet here",
                 c->from, hello.tenant);
        ldr_peer_refuse(
            c, ldr_fail(LARDER_E_DENIED,
                        "members of a cluster meet at this address; clients "
                        "need one that the daemon's log calls `listening:`"));
        return false;
    }
    if (!ldr_nonce(server, LDR_NONCE_BYTES)) {
        return false;
    }
    memcpy(client, hello.nonce, LDR_NONCE_BYTES);
    memcpy(welcome.nonce, server, LDR_NONCE_BYTES);
    snprintf(welcome.program, sizeof(welcome.program), "%s", larder_version());
    return ldr_peer_reply(c, LARDER_OK,
                          ldr_put_welcome(c->out + LDR_FRAME_BYTES, &welcome),
                          NULL, 0, 0);
}

static bool authenticate(ldr_peer_conn_t *c, const ldr_proof_t *proof)
{
    unsigned count = 0, which = 0;
    const ldr_token_t *secrets =
        ldr_cluster_secrets(c->server->peers->cluster, &count);
    const uint8_t *mac = c->in + LDR_FRAME_BYTES;

    if (c->frame.opcode != LDR_OP_AUTH || c->frame.body != LDR_MAC_BYTES) {
        return false;
    }
    if (count == 0 ||
        !ldr_proof_check(secrets, count, proof, false, mac, &which) ||
        !ldr_proof_make(&secrets[which], proof, true,
                        c->out + LDR_FRAME_BYTES)) {
        ldr_warn(&c->server->log,
                 "%s: a peer was refused: it does not know the cluster's "
                 "secret (option cluster_secret)",
                 c->from);
        ldr_peer_refuse(c, ldr_fail(LARDER_E_DENIED,
                                    "this node does not let the peer in: it "
                                    "has another cluster_secret"));
        return false;
    }
    return ldr_peer_reply(c, LARDER_OK, LDR_MAC_BYTES, NULL, 0, 0);
}

/* MEET: the first, and later ones. */
static bool do_meet(ldr_peer_conn_t *c)
{
    ldr_peers_t *p = c->server->peers;
    ldr_host_t *host = &c->server->node->host;
    ldr_meet_t m;
    uint64_t upto;

    if (!ldr_get_meet(c->in + LDR_FRAME_BYTES, c->frame.body, &m)) {
        return false;
    }
    ldr_host_lock(host);
    ldr_peer_node_t *n = c->peer != NULL ? c->peer : ldr_peers_node(p, m.name);
    if (n != NULL) {
        n->users++;
    }
    ldr_host_unlock(host);
    larder_status_t st = n != NULL
                             ? ldr_peers_hear(p, n, &m, &c->stop)
                             : ldr_fail(LARDER_E_LIMIT, "too many members");
    if (st >= 0 && c->open) {
        st = ldr_fail(LARDER_E_DENIED,
                      "member '%s' comes without TLS, which '%s' requires: set "
                      "cluster_tls = on there, with cluster_cert, cluster_key "
                      "and cluster_ca",
                      m.name, p->self.name);
    }
    if (st < 0) {
        ldr_warn(&c->server->log, "%s: peer '%s' was refused: %s", c->from,
                 m.name, ldr_fail_text());
        ldr_peer_refuse(c, st);
    }
    ldr_host_lock(host);
    if (n != NULL) {
        n->users--;
    }
    if (st < 0) {
        ldr_host_unlock(host);
        return false;
    }
    if (c->peer == NULL) {
        c->peer = n;
        n->live++;
    }
    c->space = (m.flags & LDR_MEET_NEXT) != 0 ? c->space : 0;
    size_t bytes =
        ldr_peers_say(p, n, m.have_run == p->self.run ? m.have + 1 : 1,
                      &c->space, c->out + LDR_FRAME_BYTES, &upto);
    ldr_host_unlock(host);
    return ldr_peer_reply(c, LARDER_OK, bytes, NULL, 0, 0);
}

/* Waits for the first byte and leaves it there. -1: the connection is over. */
static int first_byte(ldr_peer_conn_t *c, uint64_t deadline_ns)
{
    uint8_t byte;
    ssize_t n;

    do {
        n = recv(c->stream.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    } while (n < 0 && (errno == EAGAIN || errno == EINTR) &&
             wait_stream(c, true, deadline_ns));
    return n == 1 ? byte : -1;
}

/* The handshake, if there is one. Only sockets can have one. */
static bool shake_hands(ldr_peer_conn_t *c, uint64_t deadline_ns)
{
    ldr_peer_server_t *s = c->server;
    int error = -EAGAIN;

    if (c->stream.ops != &ldr_transport_tcp) {
        return true;
    }
    int byte = first_byte(c, deadline_ns);
    if (byte != TLS_HANDSHAKE) {
        c->open = s->tls != NULL;
        return byte >= 0;
    }
    if (s->tls == NULL) {
        ldr_warn(&s->log,
                 "%s: a peer was refused: it speaks TLS, and this member does "
                 "not: set cluster_tls alike on all members",
                 c->from);
        return false;
    }
    if (ldr_stream_init(&c->stream, c->stream.fd, s->tls, true, NULL) ==
        LARDER_OK) {
        do {
            error = ldr_stream_handshake(&c->stream);
        } while (error == -EAGAIN && wait_stream(c, true, deadline_ns));
    }
    if (error != 0) {
        ldr_warn(&s->log, "%s: a peer was refused: %s", c->from,
                 error == -EAGAIN ? "no whole TLS handshake in hello_ms"
                                  : ldr_fail_text());
    }
    return error == 0;
}

/* The rest of a connection that only wants to know how fast it is. */
static void be_measured(ldr_peer_conn_t *c)
{
    bool good = true;

    while (good && c->frame.epoch == c->epoch) {
        good = c->frame.opcode == LDR_OP_PEER_MEASURE ? ldr_peer_do_measure(c)
               : c->frame.opcode == LDR_OP_PING /* it waits for long */
                   ? ldr_peer_reply(c, LARDER_OK, 0, NULL, 0, 0)
                   : false;
        good = good && take_request(c, LDR_BODY_MAX,
                                    ldr_now_ns(c->server->clock) + SILENT_NS);
    }
}

static bool let_in(ldr_peer_conn_t *c)
{
    uint64_t deadline_ns =
        ldr_now_ns(c->server->clock) + c->server->hello_ms * 1000000u;
    uint8_t client[LDR_NONCE_BYTES], server[LDR_NONCE_BYTES];
    ldr_proof_t proof = {client, server, LDR_PEER_TENANT, c->epoch};

    if (!shake_hands(c, deadline_ns) ||
        !take_request(c, LDR_BODY_HELLO_MAX, deadline_ns) ||
        !say_welcome(c, client, server) ||
        !take_request(c, LDR_BODY_HELLO_MAX, deadline_ns) ||
        !authenticate(c, &proof) ||
        !take_request(c, LDR_BODY_MAX, deadline_ns)) {
        return false;
    }
    if (c->frame.opcode == LDR_OP_PEER_MEASURE) {
        be_measured(c);
        return false;
    }
    return c->frame.opcode == LDR_OP_MEET && do_meet(c);
}

/* ---- requests ---- */

static bool carry_out(ldr_peer_conn_t *c)
{
    bool put = c->frame.opcode == LDR_OP_PEER_PUT;

    if (c->frame.epoch != c->epoch || (c->frame.payload > 0 && !put)) {
        return false;
    }
    switch (c->frame.opcode) {
    case LDR_OP_PING:
        return c->frame.body == 0 &&
               ldr_peer_reply(c, LARDER_OK, 0, NULL, 0, 0);
    case LDR_OP_MEET:
        return do_meet(c);
    case LDR_OP_PEER_SPACE:
        return ldr_peer_do_space(c);
    case LDR_OP_PEER_ASK:
        return ldr_peer_do_ask(c);
    case LDR_OP_PEER_GET:
        return ldr_peer_do_get(c);
    case LDR_OP_PEER_PUT:
        return ldr_peer_do_put(c);
    case LDR_OP_PEER_HOME:
        return ldr_peer_do_home(c);
    case LDR_OP_PEER_HANDOFF:
        return ldr_peer_do_handoff(c);
    default:
        return false;
    }
}

static void *conn_main(void *arg)
{
    ldr_peer_conn_t *c = arg;
    ldr_peer_server_t *s = c->server;
    ldr_host_t *host = &s->node->host;
    bool good = let_in(c);

    while (good) {
        good = take_request(c, LDR_BODY_MAX, ldr_now_ns(s->clock) + SILENT_NS);
        if (good) {
            ldr_host_lock(host);
            c->peer->heard_ns = ldr_now_ns(s->clock);
            ldr_host_unlock(host);
            good = carry_out(c);
        }
    }
    ldr_stream_close(&c->stream);
    ldr_host_lock(host);
    if (c->peer != NULL) {
        c->peer->live--;
    }
    ldr_host_unlock(host);
    ldr_mutex_lock(&s->lock);
    c->over = true;
    ldr_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- life ---- */

/* Frees those whose threads have ended; all: waits for the others. */
static void sweep(ldr_peer_server_t *s, bool all)
{
    ldr_peer_conn_t **link = &s->conns, *ended = NULL;

    ldr_mutex_lock(&s->lock);
    while (*link != NULL) {
        ldr_peer_conn_t *c = *link;

        if (c->over || all) {
            *link = c->next;
            c->next = ended;
            ended = c;
            s->count--;
        } else {
            link = &c->next;
        }
    }
    ldr_mutex_unlock(&s->lock);
    while (ended != NULL) {
        ldr_peer_conn_t *c = ended;

        ended = c->next;
        s->threads->join(s->threads->arg, c->thread);
        ldr_free(c->in);
        ldr_free(c->out);
        ldr_free(c);
    }
}

static void name_peer(ldr_peer_conn_t *c)
{
    char host[64] = "?";

    if (c->stream.ops->host != NULL) {
        c->stream.ops->host(&c->stream, host, sizeof(host));
    }
    snprintf(c->from, sizeof(c->from), "peer at %s, connection %d", host,
             c->stream.fd);
}

/* Takes a connection over. Where there are too many, it is closed. */
static void take_in(ldr_peer_server_t *s, const ldr_stream_t *stream)
{
    ldr_peer_conn_t *c = ldr_alloc(sizeof(*c));
    ldr_stream_t mine = *stream;

    sweep(s, false);
    if (c != NULL) {
        c->server = s;
        c->stream = mine;
        name_peer(c);
        c->in = ldr_alloc(LDR_FRAME_BYTES + LDR_BODY_MAX);
        c->out = ldr_alloc(LDR_FRAME_BYTES + LDR_BODY_MAX);
    }
    bool made = c != NULL && c->in != NULL && c->out != NULL &&
                ldr_nonce(&c->epoch, sizeof(c->epoch));
    ldr_mutex_lock(&s->lock);
    made = made && s->count < CONNS_MAX &&
           s->threads->start(s->threads->arg, &c->thread, "larder-peer-in",
                             conn_main, c);
    if (made) {
        c->next = s->conns;
        s->conns = c;
        s->count++;
    }
    ldr_mutex_unlock(&s->lock);
    if (!made) {
        ldr_stream_close(&mine);
        if (c != NULL) {
            ldr_free(c->in);
            ldr_free(c->out);
        }
        ldr_free(c);
    }
}

static void *accept_main(void *arg)
{
    ldr_peer_server_t *s = arg;

    while (!__atomic_load_n(&s->stop, __ATOMIC_RELAXED)) {
        uint64_t until_ns = ldr_now_ns(s->clock) + LOOK_NS;
        ldr_stream_t stream;
        int error = s->from.ops->accept(&s->from, until_ns, &stream);

        if (error == 0) {
            take_in(s, &stream);
        } else if (error != -EAGAIN && error != -ECONNABORTED) {
            ldr_warn(&s->log, "a peer's connection cannot be accepted: %s",
                     strerror(-error));
            s->threads->sleep(s->threads->arg, LOOK_NS);
        }
    }
    return NULL;
}

static void end_copier(ldr_peer_server_t *s)
{
    ldr_host_t *host = &s->node->host;

    __atomic_store_n(&s->stop, true, __ATOMIC_RELAXED);
    ldr_host_lock(host);
    s->threads->wake(s->threads->arg, &s->peers->copy_work, true);
    ldr_host_unlock(host);
    s->threads->join(s->threads->arg, s->copier);
}

larder_status_t ldr_peer_server_open(const ldr_peer_server_params_t *params,
                                     ldr_peer_server_t **server_p)
{
    ldr_peer_server_t *s = ldr_alloc(sizeof(*s));
    ldr_listening_t from = params->from;

    if (s == NULL) {
        from.ops->unlisten(&from);
        return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for peers");
    }
    s->from = from;
    s->tls = params->tls;
    s->node = params->node;
    s->peers = ldr_peers_of(&params->node->host);
    s->log = params->log;
    s->clock = params->clock;
    s->threads = params->threads;
    s->hello_ms = params->hello_ms;
    ldr_mutex_init(&s->lock);
    if (!s->threads->start(s->threads->arg, &s->copier, "larder-copies",
                           ldr_peer_copier, s)) {
        goto err;
    }
    if (!s->threads->start(s->threads->arg, &s->acceptor, "larder-peers-in",
                           accept_main, s)) {
        end_copier(s);
        goto err;
    }
    *server_p = s;
    return LARDER_OK;

err:
    from.ops->unlisten(&from);
    pthread_mutex_destroy(&s->lock);
    ldr_free(s);
    return ldr_fail(LARDER_E_NO_MEMORY, "cannot start a thread");
}

void ldr_peer_server_close(ldr_peer_server_t *s)
{
    end_copier(s);
    s->threads->join(s->threads->arg, s->acceptor);
    s->from.ops->unlisten(&s->from);
    sweep(s, true);
    pthread_mutex_destroy(&s->lock);
    ldr_free(s);
}
