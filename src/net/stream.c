/*
 * Streams: sockets with or without TLS.
 *
 * SIGPIPE. Plain sockets are written to with MSG_NOSIGNAL. libssl's own socket
 * BIO uses write(), and it is what knows how to hand the cipher over to the
 * kernel (kTLS): one of our own would have to do without. So the signal is
 * blocked in this thread for the length of each call into libssl, and one that
 * the call raised is taken back before it is unblocked: two system calls, next
 * to at least one for the bytes. SIGPIPE goes to the thread that wrote, so no
 * other is concerned.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/thread.h"
#include "net/tls_int.h"
#include "net/transport.h"

/* Pieces smaller than a record are put together, up to one. */
#define RECORD_BYTES (16u << 10)

/* ---- SIGPIPE ---- */

typedef struct ldr_pipe_guard {
    bool was_blocked, was_pending;
} ldr_pipe_guard_t;

static void guard_begin(ldr_pipe_guard_t *guard)
{
    sigset_t pipe, before, pending;

    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    sigemptyset(&before);
    pthread_sigmask(SIG_BLOCK, &pipe, &before);
    guard->was_blocked = sigismember(&before, SIGPIPE) == 1;
    guard->was_pending = false;
    if (guard->was_blocked) {
        sigemptyset(&pending);
        sigpending(&pending);
        guard->was_pending = sigismember(&pending, SIGPIPE) == 1;
    }
}

/* failed: the call may have raised it. Keeps errno. */
static void guard_end(const ldr_pipe_guard_t *guard, bool failed)
{
    const struct timespec no_time = {0};
    int error = errno;
    sigset_t pipe;

    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    if (failed && !guard->was_pending) {
        while (sigtimedwait(&pipe, NULL, &no_time) < 0 && errno == EINTR) {
        }
    }
    if (!guard->was_blocked) {
        pthread_sigmask(SIG_UNBLOCK, &pipe, NULL);
    }
    errno = error;
}

/* ---- begin and end ---- */

static bool is_ip(const char *name)
{
    uint8_t address[sizeof(struct in6_addr)];

    return inet_pton(AF_INET, name, address) == 1 ||
           inet_pton(AF_INET6, name, address) == 1;
}

/* Whom the certificate must be for. */
static bool expect_name(SSL *ssl, const char *name)
{
    X509_VERIFY_PARAM *param = ldr_ssl.SSL_get0_param(ssl);

    if (is_ip(name)) {
        return X509_VERIFY_PARAM_set1_ip_asc(param, name) == 1;
    }
    X509_VERIFY_PARAM_set_hostflags(param,
                                    X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    return X509_VERIFY_PARAM_set1_host(param, name, 0) == 1 &&
           ldr_ssl.SSL_ctrl(ssl, SSL_CTRL_SET_TLSEXT_HOSTNAME,
                            TLSEXT_NAMETYPE_host_name,
                            (void *)(uintptr_t)name) == 1;
}

larder_status_t ldr_stream_init(ldr_stream_t *s, int fd, ldr_tls_t *tls,
                                bool server, const char *name)
{
    char text[128];
    larder_status_t st = LARDER_OK;

    *s = (ldr_stream_t){
        .ops = tls != NULL ? &ldr_transport_tls : &ldr_transport_tcp, .fd = fd};
    if (tls == NULL) {
        return LARDER_OK;
    }
    if (tls->server != server ||
        (!server && (name == NULL || name[0] == '\0'))) {
        st = ldr_fail(LARDER_E_INVALID,
                      "TLS: a client needs the name of whom it expects, and a "
                      "context of its own");
        goto err;
    }
    ERR_clear_error();
    ldr_mutex_lock(&tls->lock);
    SSL *ssl = ldr_ssl.SSL_new(ldr_tls_ctx(tls));
    ldr_mutex_unlock(&tls->lock);
    s->ssl = ssl;
    if (ssl == NULL || ldr_ssl.SSL_set_fd(ssl, fd) != 1 ||
        (!server && !expect_name(ssl, name))) {
        st = ldr_fail(LARDER_E_NO_MEMORY, "TLS: no connection to %s: %s",
                      name != NULL ? name : "a client",
                      ldr_ssl_error_text(text, sizeof(text)));
        goto err;
    }
    if (server) {
        ldr_ssl.SSL_set_accept_state(ssl);
    } else {
        ldr_ssl.SSL_set_connect_state(ssl);
    }
    return LARDER_OK;

err:
    ldr_stream_close(s);
    return st;
}

static void socket_close(ldr_stream_t *s)
{
    ldr_pipe_guard_t guard;

    if (s->ssl != NULL) {
        LDR_ASSERT(s->fd >= 0);
        if (ldr_ssl.SSL_is_init_finished(s->ssl)) {
            /* Says goodbye if there is room for it, and does not wait. */
            guard_begin(&guard);
            (void)ldr_ssl.SSL_shutdown(s->ssl);
            guard_end(&guard, true);
        }
        ldr_ssl.SSL_free(s->ssl);
        ERR_clear_error();
        s->ssl = NULL;
    }
    if (s->fd >= 0) {
        /* A forked child may have the socket too: the peer is to know. */
        shutdown(s->fd, SHUT_RDWR);
        close(s->fd);
        s->fd = -1;
    }
}

/* ---- TLS ---- */

/* An alert by which the peer refuses our certificate, or that we have none. In
 * TLS 1.3 a client is told so only after its handshake, by its first read. */
static bool refuses_us(unsigned long error)
{
    if (ERR_GET_LIB(error) != ERR_LIB_SSL) {
        return false;
    }
    switch (ERR_GET_REASON(error)) {
    case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
    case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
    case SSL_R_TLSV1_ALERT_ACCESS_DENIED:
    case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
        return true;
    default:
        return false;
    }
}

/* What became of a call that did not succeed. error: errno after it. -EACCES:
 * the peer does not take our certificate, see the text. */
static int tls_failure(ldr_stream_t *s, int result, int error)
{
    char text[128];

    switch (ldr_ssl.SSL_get_error(s->ssl, result)) {
    case SSL_ERROR_WANT_READ:
        s->wants_write = false;
        return -EAGAIN;
    case SSL_ERROR_WANT_WRITE:
        s->wants_write = true;
        return -EAGAIN;
    case SSL_ERROR_ZERO_RETURN:
        return -EPIPE;
    case SSL_ERROR_SYSCALL:
        ERR_clear_error();
        return error != 0 ? -error : -EPIPE;
    default:
        if (refuses_us(ERR_peek_error())) {
            ldr_fail(LARDER_E_DENIED,
                     "TLS: the other side refuses this side's certificate, or "
                     "wants one (tls_cert, tls_key): %s",
                     ldr_ssl_error_text(text, sizeof(text)));
            return -EACCES;
        }
        ldr_fail(LARDER_E_IO, "TLS: %s",
                 ldr_ssl_error_text(text, sizeof(text)));
        return -EPROTO;
    }
}

static int tls_handshake(ldr_stream_t *s)
{
    ldr_pipe_guard_t guard;
    int result, error;

    ERR_clear_error();
    guard_begin(&guard);
    errno = 0;
    result = ldr_ssl.SSL_do_handshake(s->ssl);
    error = errno;
    guard_end(&guard, result != 1);
    if (result == 1) {
        return 0;
    }
    long verdict = ldr_ssl.SSL_get_verify_result(s->ssl);
    unsigned long first = ERR_peek_error();
    bool no_certificate =
        ERR_GET_LIB(first) == ERR_LIB_SSL &&
        ERR_GET_REASON(first) == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE;
    error = tls_failure(s, result, error);
    if (error == -EAGAIN || error == -EACCES) {
        return error;
    }
    if (verdict != X509_V_OK || no_certificate) {
        bool other_name = verdict == X509_V_ERR_HOSTNAME_MISMATCH ||
                          verdict == X509_V_ERR_IP_ADDRESS_MISMATCH;

        ldr_fail(LARDER_E_DENIED,
                 "TLS: the peer's certificate is refused: %s%s",
                 no_certificate ? "it has none"
                                : X509_verify_cert_error_string(verdict),
                 other_name ? " (tls_name= names who is expected)" : "");
        return -EACCES;
    }
    if (error != -EPROTO) {
        ldr_fail(LARDER_E_OFFLINE, "TLS: no handshake: %s",
                 error == -EPIPE
                     ? "the peer closed the connection: is tls on at "
                       "the other side, too?"
                     : strerror(-error));
    }
    return error;
}

void ldr_stream_peer_name(const ldr_stream_t *s, char *name, size_t size)
{
    unsigned char *utf8 = NULL;

    name[0] = '\0';
    if (s->ssl == NULL || ldr_ssl.SSL_get_verify_result(s->ssl) != X509_V_OK) {
        return;
    }
    X509 *cert = ldr_ssl.SSL_get1_peer_certificate(s->ssl);
    if (cert == NULL) {
        return;
    }
    const X509_NAME *subject = X509_get_subject_name(cert);
    int at = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
    /* One and whole, or none: a name that is cut is somebody else's. */
    if (at >= 0 &&
        X509_NAME_get_index_by_NID(subject, NID_commonName, at) < 0) {
        const ASN1_STRING *value =
            X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at));
        int bytes = ASN1_STRING_to_UTF8(&utf8, value);
        if (bytes > 0 && (size_t)bytes < size &&
            memchr(utf8, '\0', (size_t)bytes) == NULL) {
            memcpy(name, utf8, (size_t)bytes);
            name[bytes] = '\0';
        }
        OPENSSL_free(utf8);
    }
    X509_free(cert);
}

/* Where a call is in its pieces. */
typedef struct ldr_pieces {
    const struct iovec *iov;
    unsigned count;
    size_t offset; /* in the first */
} ldr_pieces_t;

static void skip_empty(ldr_pieces_t *p)
{
    while (p->count > 0 && p->offset == p->iov->iov_len) {
        p->iov++;
        p->count--;
        p->offset = 0;
    }
}

static void advance(ldr_pieces_t *p, size_t bytes)
{
    while (bytes > 0) {
        size_t step = p->iov->iov_len - p->offset;
        if (step > bytes) {
            step = bytes;
        }
        p->offset += step;
        bytes -= step;
        skip_empty(p);
    }
}

/* Bytes moved if there were any, whatever came after them: it comes again. */
static ssize_t tls_result(ldr_stream_t *s, size_t moved, int result, int error)
{
    if (moved > 0) {
        ERR_clear_error();
        return (ssize_t)moved;
    }
    return result == 1 ? -EINVAL /* nothing to move */
                       : tls_failure(s, result, error);
}

static ssize_t tls_read(ldr_stream_t *s, const struct iovec *iov,
                        unsigned count)
{
    ldr_pieces_t p = {.iov = iov, .count = count};
    ldr_pipe_guard_t guard;
    size_t moved = 0, step;
    int result = 1;

    ERR_clear_error();
    guard_begin(&guard);
    errno = 0;
    skip_empty(&p);
    while (p.count > 0 && moved < SSIZE_MAX / 2) {
        result =
            ldr_ssl.SSL_read_ex(s->ssl, (uint8_t *)p.iov->iov_base + p.offset,
                                p.iov->iov_len - p.offset, &step);
        if (result != 1) {
            break;
        }
        moved += step;
        advance(&p, step);
    }
    int error = errno;
    guard_end(&guard, result != 1);
    return tls_result(s, moved, result, error);
}

/*
 * The next bytes to write, at most a record, in one piece: where they lie, or
 * put together. Not more: after a record that had to wait, libssl goes on to
 * the next and, if that has to wait as well, says that nothing was written and
 * wants to see all of it again. So it is always all that is offered, or a
 * record, and never less than the last time, however the pieces are cut.
 */
static const uint8_t *gather(const ldr_pieces_t *p, uint8_t *buffer,
                             size_t *bytes_p)
{
    size_t rest = p->iov->iov_len - p->offset;
    size_t bytes = 0, offset = p->offset;

    if (rest >= RECORD_BYTES || p->count == 1) {
        *bytes_p = rest < RECORD_BYTES ? rest : RECORD_BYTES;
        return (const uint8_t *)p->iov->iov_base + p->offset;
    }
    for (unsigned i = 0; i < p->count && bytes < RECORD_BYTES; i++) {
        size_t step = p->iov[i].iov_len - offset;
        if (step > RECORD_BYTES - bytes) {
            step = RECORD_BYTES - bytes;
        }
        if (step > 0) {
            memcpy(buffer + bytes, (const uint8_t *)p->iov[i].iov_base + offset,
                   step);
        }
        bytes += step;
        offset = 0;
    }
    *bytes_p = bytes;
    return buffer;
}

static ssize_t tls_write(ldr_stream_t *s, const struct iovec *iov,
                         unsigned count)
{
    ldr_pieces_t p = {.iov = iov, .count = count};
    ldr_pipe_guard_t guard;
    uint8_t buffer[RECORD_BYTES];
    size_t moved = 0, bytes, step;
    int result = 1;

    ERR_clear_error();
    guard_begin(&guard);
    errno = 0;
    skip_empty(&p);
    while (p.count > 0 && moved < SSIZE_MAX / 2) {
        const uint8_t *from = gather(&p, buffer, &bytes);
        result = ldr_ssl.SSL_write_ex(s->ssl, from, bytes, &step);
        if (result != 1) {
            break;
        }
        moved += step;
        advance(&p, step);
    }
    int error = errno;
    guard_end(&guard, result != 1);
    return tls_result(s, moved, result, error);
}

/* ---- plain ---- */

static bool all_empty(const struct iovec *iov, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        if (iov[i].iov_len > 0) {
            return false;
        }
    }
    return true;
}

static ssize_t plain_read(ldr_stream_t *s, const struct iovec *iov,
                          unsigned count)
{
    struct msghdr msg = {
        .msg_iov = (struct iovec *)(uintptr_t)iov,
        .msg_iovlen = count < IOV_MAX ? count : IOV_MAX,
    };
    ssize_t got;

    s->wants_write = false;
    do {
        got = recvmsg(s->fd, &msg, MSG_DONTWAIT);
    } while (got < 0 && errno == EINTR);
    if (got > 0) {
        return got;
    }
    if (got == 0) {
        return all_empty(iov, (unsigned)msg.msg_iovlen) ? -EINVAL : -EPIPE;
    }
    return -errno;
}

static ssize_t plain_write(ldr_stream_t *s, const struct iovec *iov,
                           unsigned count)
{
    struct msghdr msg = {
        .msg_iov = (struct iovec *)(uintptr_t)iov,
        .msg_iovlen = count < IOV_MAX ? count : IOV_MAX,
    };
    ssize_t sent;

    s->wants_write = true;
    do {
        sent = sendmsg(s->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (sent < 0 && errno == EINTR);
    if (sent > 0) {
        return sent;
    }
    return sent == 0 ? -EINVAL : -errno;
}

/* ---- the rows ---- */

static int socket_connect(const ldr_transport_ops_t *ops, const ldr_dest_t *to,
                          ldr_stop_t *stop, ldr_stream_t *s)
{
    int fd = ldr_connect_tcp_wanted(to->address, to->congestion,
                                    &stop->deadline_ns, stop->canceled);

    (void)ops;
    if (fd < 0) {
        return fd;
    }
    return ldr_stream_init(s, fd, to->tls, false, to->name) == LARDER_OK
               ? 0
               : -ENOMEM;
}

static int socket_listen(const ldr_transport_ops_t *ops, const ldr_dest_t *at,
                         ldr_listening_t *l)
{
    int fd = ldr_listen_tcp(at->address, at->congestion);

    *l = (ldr_listening_t){.ops = ops, .fd = fd, .tls = at->tls};
    return fd < 0 ? fd : 0;
}

static int socket_accept(ldr_listening_t *l, uint64_t until_ns, ldr_stream_t *s)
{
    int fd = ldr_accept(l->fd);

    if (fd == -EAGAIN && until_ns > 0) {
        ldr_poll(l->fd, POLLIN, until_ns);
        fd = ldr_accept(l->fd);
    }
    if (fd < 0) {
        return fd;
    }
    return ldr_stream_init(s, fd, l->tls, true, NULL) == LARDER_OK ? 0
                                                                   : -ENOMEM;
}

static void socket_unlisten(ldr_listening_t *l)
{
    if (l->fd >= 0) {
        close(l->fd);
    }
    l->fd = -1;
}

static int socket_poll(ldr_stream_t *s, short events, uint64_t until_ns)
{
    return ldr_poll(s->fd, events, until_ns);
}

static void socket_host(const ldr_stream_t *s, char *text, size_t size)
{
    struct sockaddr_storage a;
    socklen_t length = sizeof(a);

    if (getpeername(s->fd, (struct sockaddr *)&a, &length) == 0) {
        getnameinfo((struct sockaddr *)&a, length, text, (socklen_t)size, NULL,
                    0, NI_NUMERICHOST);
    }
}

static bool socket_speaks_http(const ldr_stream_t *s, uint64_t until_ns)
{
    return ldr_speaks_http(s->fd, until_ns);
}

const ldr_transport_ops_t ldr_transport_tcp = {
    .name = "tcp",
    .connect = socket_connect,
    .listen = socket_listen,
    .accept = socket_accept,
    .unlisten = socket_unlisten,
    .read = plain_read,
    .write = plain_write,
    .poll = socket_poll,
    .close = socket_close,
    .host = socket_host,
    .speaks_http = socket_speaks_http,
};

const ldr_transport_ops_t ldr_transport_tls = {
    .name = "tls",
    .holds = true,
    .connect = socket_connect,
    .listen = socket_listen,
    .accept = socket_accept,
    .unlisten = socket_unlisten,
    .handshake = tls_handshake,
    .read = tls_read,
    .write = tls_write,
    .poll = socket_poll,
    .close = socket_close,
    .host = socket_host,
    .speaks_http = socket_speaks_http,
};

int ldr_stream_handshake(ldr_stream_t *s)
{
    return s->ops->handshake != NULL ? s->ops->handshake(s) : 0;
}

ssize_t ldr_stream_read(ldr_stream_t *s, const struct iovec *iov,
                        unsigned count)
{
    return LDR_HOLDS(s->fd >= 0) ? s->ops->read(s, iov, count) : -EBADF;
}

ssize_t ldr_stream_write(ldr_stream_t *s, const struct iovec *iov,
                         unsigned count)
{
    return LDR_HOLDS(s->fd >= 0) ? s->ops->write(s, iov, count) : -EBADF;
}

int ldr_stream_poll(ldr_stream_t *s, short events, uint64_t until_ns)
{
    return s->ops->poll(s, events, until_ns);
}

void ldr_stream_close(ldr_stream_t *s)
{
    if (s->ops != NULL) {
        s->ops->close(s);
    }
}
