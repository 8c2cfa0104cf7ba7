/*
 * Connections to Valkey servers: one for each call under way; those that are
 * idle wait in a stack of their server's, at most as many as there are workers.
 *
 * A connection that has failed, or whose answers were not read to their end, is
 * closed and never used again, and a call is not repeated: a server that died
 * may have done what it was asked for. So that a server's restart does not cost
 * a call all the same, an idle one is looked at before it is used. When a
 * server says that it must not be written to, none to it is used again: after a
 * failover another one may be at the address, and connections stay where they
 * were.
 *
 * A connection belongs to the worker that has it. The stacks are guarded by
 * v->lock.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <openssl/crypto.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/thread.h"
#include "base/iov.h"
#include "net/login.h"
#include "tier/shared/valkey.h"

#define LOWAT_BYTES ((uint64_t)128 << 10)

/* ---- bytes ---- */

static int lost(int error)
{
    if (error == -EPIPE || error == -ECONNRESET) {
        ldr_fail(LARDER_E_OFFLINE, "the server closed the connection");
        return -ECONNRESET;
    }
    if (error == -ETIMEDOUT) {
        ldr_fail(LARDER_E_DEADLINE, "no answer by the deadline");
    } else if (error != -EPROTO && error != -EACCES) { /* those have a text */
        ldr_fail(LARDER_E_IO, "the connection failed: %s", strerror(-error));
    }
    return error;
}

/* After -EAGAIN. */
static int wait_ready(ldr_valkey_conn_t *conn)
{
    int ready =
        ldr_poll(conn->stream.fd, conn->stream.wants_write ? POLLOUT : POLLIN,
                 conn->deadline_ns);

    return ready > 0 ? 0 : ready == 0 ? -ETIMEDOUT : ready;
}

/* While a payload comes we are woken once a good part of it is there: waking
 * for every packet takes the core from the server. The kernel wakes us sooner
 * where its buffer cannot hold as much, and when the server is gone. What is
 * waited for is exactly what is left of a payload, or any byte. */
static void set_lowat(ldr_valkey_conn_t *conn, const struct iovec *iov,
                      unsigned count)
{
    uint64_t want = ldr_iov_bytes(iov, count);

    /* A line is read into a buffer that is larger than lines are. */
    int value = want > LDR_RESP_BUFFER && !conn->stream.ops->holds
                    ? (int)ldr_min64(want, LOWAT_BYTES)
                    : 1;
    if (value != conn->lowat && (value > 1 || conn->lowat > 1)) {
        conn->lowat = setsockopt(conn->stream.fd, SOL_SOCKET, SO_RCVLOWAT,
                                 &value, sizeof(value)) == 0
                          ? value
                          : 0;
    }
}

static bool is_late(const ldr_valkey_conn_t *conn)
{
    return ldr_now_ns(&ldr_clock_real) >= conn->deadline_ns;
}

static ssize_t conn_receive(void *arg, const struct iovec *iov, unsigned count)
{
    ldr_valkey_conn_t *conn = arg;

    for (;;) {
        ssize_t got = ldr_stream_read(&conn->stream, iov, count);
        if (got > 0 && !is_late(conn)) {
            return got;
        }
        int error = got > 0 ? -ETIMEDOUT : (int)got;
        if (error == -EAGAIN) {
            set_lowat(conn, iov, count);
            error = wait_ready(conn);
        }
        if (error != 0) {
            return lost(error);
        }
    }
}

/* A server that refuses a connection says why and closes it: that may be there
 * to be read although nothing can be sent. */
static int refused(ldr_valkey_conn_t *conn, int error)
{
    ldr_resp_item_t item;

    ldr_resp_begin(&conn->resp);
    if ((error == -EPIPE || error == -ECONNRESET) &&
        ldr_resp_next(&conn->resp, &item) == 0 && conn->resp.error != 0) {
        ldr_fail(LARDER_E_IO, "%s", conn->resp.text);
        return conn->resp.error;
    }
    return lost(error);
}

int ldr_valkey_send(ldr_valkey_conn_t *conn, const struct iovec *iov,
                    unsigned count)
{
    ldr_iov_t left = {iov, count, 0};
    struct iovec parts[LDR_IOV_PARTS];
    unsigned n;

    while ((n = ldr_iov_next(&left, UINT64_MAX, parts, LDR_IOV_PARTS)) > 0) {
        ssize_t sent = ldr_stream_write(&conn->stream, parts, n);
        int error = sent > 0 && is_late(conn) ? -ETIMEDOUT : 0;

        if (sent == -EAGAIN) {
            error = wait_ready(conn);
        } else if (sent < 0) {
            error = (int)sent;
        }
        if (error != 0) {
            return refused(conn, error);
        }
        ldr_iov_skip(&left, sent > 0 ? (size_t)sent : 0);
    }
    return 0;
}

/* ---- logging in ---- */

/* AUTH and SELECT; *asked_p: how many answers come. */
static int compose_login(ldr_valkey_t *v, ldr_text_t *t, bool *auth_p)
{
    char password[LDR_LOGIN_VALUE];
    larder_status_t st =
        ldr_login_get(v->login, "password", "LARDER_SHARED_PASSWORD", password);

    if (st != LARDER_OK) {
        return -EACCES;
    }
    *auth_p = password[0] != '\0';
    if (*auth_p) {
        bool user = v->user[0] != '\0';

        ldr_resp_command(t, "AUTH", user ? v->user : password,
                         user ? password : (char *)NULL, NULL);
    }
    OPENSSL_cleanse(password, sizeof(password));
    if (v->db[0] != '\0') {
        ldr_resp_command(t, "SELECT", v->db, NULL);
    }
    return 0;
}

static int check_auth(ldr_valkey_t *v, ldr_valkey_conn_t *conn)
{
    int error = ldr_resp_word(&conn->resp, "OK");

    if (error == 0 && conn->resp.error != 0) {
        /* In our own words: who knows what a server repeats. */
        error = conn->resp.error == -EBUSY ? -EBUSY : -EACCES;
        ldr_fail(LARDER_E_DENIED,
                 "the server refuses the password%s%s: see the option "
                 "shared_login",
                 v->user[0] != '\0' ? " of user " : "", v->user);
    }
    return error;
}

static int check_select(ldr_valkey_t *v, ldr_valkey_conn_t *conn)
{
    ldr_resp_begin(&conn->resp);
    int error = ldr_resp_word(&conn->resp, "OK");

    if (error == 0 && conn->resp.error != 0) {
        error = conn->resp.error;
        ldr_fail(LARDER_E_IO, "database %s: %s", v->db, conn->resp.text);
    }
    return error;
}

static int log_in(ldr_valkey_t *v, ldr_valkey_conn_t *conn)
{
    char text[LDR_LOGIN_VALUE + 256];
    ldr_text_t t = ldr_text(text, sizeof(text));
    bool auth = false;
    int error = compose_login(v, &t, &auth);

    if (error == 0 && t.length > 0) {
        struct iovec iov = {text, t.length};
        error = ldr_valkey_send(conn, &iov, 1);
    }
    OPENSSL_cleanse(text, sizeof(text));
    ldr_resp_begin(&conn->resp);
    if (error == 0 && auth) {
        error = check_auth(v, conn);
    }
    if (error == 0 && v->db[0] != '\0') {
        error = check_select(v, conn);
    }
    return error;
}

/* ---- opening ---- */

/* The context is made when it is first needed, since its files are read. */
static int tls_of(ldr_valkey_t *v, ldr_tls_t **tls_p)
{
    const ldr_tls_params_t params = {
        .cert = v->cert[0] != '\0' ? v->cert : NULL,
        .key = v->key[0] != '\0' ? v->key : NULL,
        .ca = v->ca[0] != '\0' ? v->ca : NULL,
    };
    larder_status_t st = LARDER_OK;

    *tls_p = NULL;
    if (!v->wants_tls) {
        return 0;
    }
    ldr_mutex_lock(&v->lock);
    if (v->tls == NULL) {
        st = ldr_tls_create(&params, &v->tls);
    }
    *tls_p = v->tls;
    ldr_mutex_unlock(&v->lock);
    return st == LARDER_OK              ? 0
           : st == LARDER_E_UNSUPPORTED ? -ENOTSUP
                                        : -EACCES;
}

static int shake_hands(ldr_valkey_conn_t *conn)
{
    int error;

    while ((error = ldr_stream_handshake(&conn->stream)) == -EAGAIN) {
        error = wait_ready(conn);
        if (error != 0) {
            return lost(error);
        }
    }
    return error;
}

static int dial(ldr_valkey_t *v, const ldr_address_t *address,
                ldr_valkey_conn_t *conn)
{
    ldr_tls_t *tls;
    int error = tls_of(v, &tls);

    if (error != 0) {
        return error;
    }
    int fd = ldr_connect_tcp(address, "", conn->deadline_ns);
    if (fd < 0) {
        return fd;
    }
    if (ldr_stream_init(&conn->stream, fd, tls, false, address->host) !=
        LARDER_OK) {
        conn->stream.fd = -1;
        return -ENOMEM;
    }
    error = shake_hands(conn);
    return error == 0 ? log_in(v, conn) : error;
}

static int connect_new(ldr_valkey_t *v, unsigned node, uint64_t deadline_ns,
                       ldr_valkey_conn_t **conn_p)
{
    ldr_valkey_conn_t *conn = ldr_alloc(sizeof(*conn));

    if (conn == NULL) {
        ldr_fail(LARDER_E_NO_MEMORY, "no memory for a connection");
        return -ENOMEM;
    }
    conn->stream.fd = -1;
    conn->deadline_ns = deadline_ns;
    conn->resp.fill = conn_receive;
    conn->resp.arg = conn;
    conn->node = node;
    ldr_mutex_lock(&v->lock);
    const ldr_valkey_node_t *server = v->nodes[node];
    conn->era = server->era;
    ldr_mutex_unlock(&v->lock);
    int error = dial(v, &server->address, conn);
    if (error != 0) {
        ldr_valkey_give(v, conn, false);
        return error;
    }
    *conn_p = conn;
    return 0;
}

/* ---- taking and giving back ---- */

/* Whether nothing has come over it since it was given back, not even its end.
 */
static bool is_quiet(ldr_valkey_conn_t *conn)
{
    char byte;
    struct iovec iov = {&byte, 1};

    return conn->resp.at == conn->resp.end &&
           ldr_stream_read(&conn->stream, &iov, 1) == -EAGAIN;
}

int ldr_valkey_take(ldr_valkey_t *v, unsigned node, uint64_t deadline_ns,
                    ldr_valkey_conn_t **conn_p)
{
    for (;;) {
        ldr_mutex_lock(&v->lock);
        ldr_valkey_node_t *server = v->nodes[node];
        ldr_valkey_conn_t *conn = server->idle;
        if (conn != NULL) {
            server->idle = conn->next;
            LDR_ASSERT(server->idle_count > 0 && conn->era == server->era);
            server->idle_count--;
        }
        ldr_mutex_unlock(&v->lock);
        if (conn == NULL) {
            return connect_new(v, node, deadline_ns, conn_p);
        }
        if (is_quiet(conn)) {
            conn->deadline_ns = deadline_ns;
            *conn_p = conn;
            return 0;
        }
        ldr_valkey_give(v, conn, false);
    }
}

void ldr_valkey_give(ldr_valkey_t *v, ldr_valkey_conn_t *conn, bool good)
{
    if (good) {
        ldr_mutex_lock(&v->lock);
        ldr_valkey_node_t *server = v->nodes[conn->node];
        good = server->idle_count < v->idle_max && conn->era == server->era;
        if (good) {
            conn->next = server->idle;
            server->idle = conn;
            server->idle_count++;
        }
        ldr_mutex_unlock(&v->lock);
    }
    if (!good) {
        ldr_stream_close(&conn->stream);
        ldr_free(conn);
    }
}

void ldr_valkey_leave(ldr_valkey_t *v, unsigned node)
{
    ldr_mutex_lock(&v->lock);
    ldr_valkey_node_t *server = v->nodes[node];
    ldr_valkey_conn_t *conn = server->idle, *next;
    server->era++;
    server->idle = NULL;
    server->idle_count = 0;
    ldr_mutex_unlock(&v->lock);
    for (; conn != NULL; conn = next) {
        next = conn->next;
        ldr_valkey_give(v, conn, false);
    }
}
