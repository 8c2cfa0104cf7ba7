/*
 * Transports: how the bytes of a session travel. A transport is a row of this
 * table; what stands on it (sessions, the daemon) knows no other way to send,
 * receive or wait. Tests add a row of their own, a simulated network.
 *
 * A stream is one connection of a transport. It keeps the order of its bytes,
 * and loses none of them but by breaking.
 *
 * Invariants
 *  1. A stream is connected exactly while its fd is not negative: from its
 *     beginning to ldr_stream_close(). Nothing is read or written after.
 *  2. No call blocks but poll() and accept(), which end at their time.
 */
#pragma once

#include "base/wait.h"
#include "net/socket.h"

typedef struct ldr_stream ldr_stream_t;
typedef struct ldr_transport_ops ldr_transport_ops_t;

/* Where to connect to, or to listen at. */
typedef struct ldr_dest {
    const ldr_address_t *address;
    const char *congestion;
    ldr_tls_t *tls;   /* NULL: plain */
    const char *name; /* whom the certificate must be for */
} ldr_dest_t;

/* Where connections come in: from listen() to unlisten(). */
typedef struct ldr_listening {
    const ldr_transport_ops_t *ops;
    int fd;         /* what poll() of the kernel looks at; negative: closed */
    ldr_tls_t *tls; /* of its connections; NULL: plain */
    void *state;    /* of other transports */
} ldr_listening_t;

struct ldr_transport_ops {
    const char *name;
    /* A write is one message, whole or not at all; so is a read. There are no
     * descriptors and no payload with it, and frames need no checksum: both
     * ends see the same memory. Otherwise bytes, in any pieces. */
    bool messages;
    /* After a write's -EAGAIN the next write begins with the same bytes: what
     * was offered cannot be taken back. */
    bool holds;
    /* Connects, by stop, whose deadline is put off by what a name took to be
     * resolved. 0, or a negative errno with a text (-ETIMEDOUT, -ECANCELED). */
    int (*connect)(const ldr_transport_ops_t *ops, const ldr_dest_t *to,
                   ldr_stop_t *stop, ldr_stream_t *s);
    /* 0, or a negative errno with a text. NULL: the transport begins on a
     * connection of another one (rings). */
    int (*listen)(const ldr_transport_ops_t *ops, const ldr_dest_t *at,
                  ldr_listening_t *l);
    /* Waits for a connection until then (0: does not wait) and gives its
     * stream, before any handshake. 0, -EAGAIN: none came, or another negative
     * errno. */
    int (*accept)(ldr_listening_t *l, uint64_t until_ns, ldr_stream_t *s);
    void (*unlisten)(ldr_listening_t *l); /* twice is fine */
    int (*handshake)(ldr_stream_t *s);    /* NULL: there is none */
    ssize_t (*read)(ldr_stream_t *s, const struct iovec *iov, unsigned count);
    ssize_t (*write)(ldr_stream_t *s, const struct iovec *iov, unsigned count);
    int (*poll)(ldr_stream_t *s, short events, uint64_t until_ns);
    void (*close)(ldr_stream_t *s);
    /* The other end's host, for logs; unchanged where it is not known. NULL:
     * there is no such thing. */
    void (*host)(const ldr_stream_t *s, char *text, size_t size);
    /* Whether a web server is at the other end. NULL: cannot be. */
    bool (*speaks_http)(const ldr_stream_t *s, uint64_t until_ns);
    void *arg; /* the row's own */
};

extern const ldr_transport_ops_t ldr_transport_tcp; /* and unix sockets */
extern const ldr_transport_ops_t ldr_transport_tls;

/* ---- streams ----
 *
 * With TLS a stream is used by one thread at a time; without, one may read
 * while another writes. A stream has its descriptor from init to close, and its
 * TLS no longer than that; nothing is read or written after. */

struct ldr_stream {
    const ldr_transport_ops_t *ops;
    int fd;           /* what poll() of the kernel looks at */
    void *ssl;        /* NULL: no TLS */
    void *state;      /* of other transports */
    bool wants_write; /* after -EAGAIN: wait for POLLOUT rather than POLLIN */
};

/* tls NULL: plain. name: whom a client expects, for its certificate: a name or
 * a numeric address; required with TLS. The stream owns fd from here on; a
 * failure has closed it. */
larder_status_t ldr_stream_init(ldr_stream_t *s, int fd, ldr_tls_t *tls,
                                bool server, const char *name);
void ldr_stream_close(ldr_stream_t *s); /* twice is fine */

/* 0: done; -EAGAIN; another negative errno, with a text (-EACCES: the peer's
 * certificate). Plain: at once 0. In TLS 1.3 a client is done before the
 * server has seen its certificate: a refusal comes with the first read. */
int ldr_stream_handshake(ldr_stream_t *s);
/* The common name of the peer's verified certificate; "": none, more than one,
 * or one that does not fit. */
void ldr_stream_peer_name(const ldr_stream_t *s, char *name, size_t size);

/* Bytes moved (>0), -EAGAIN, -EPIPE when the peer has closed, or another
 * negative errno (-EACCES, with a text: it refuses our certificate). Never
 * raises SIGPIPE. Read until -EAGAIN before waiting for the descriptor: TLS may
 * hold bytes that poll() does not see, also after a read that gave less than
 * asked for. After a write's -EAGAIN the next one begins with the same bytes
 * and offers no fewer: TLS may have made a record of them already. */
ssize_t ldr_stream_read(ldr_stream_t *s, const struct iovec *iov,
                        unsigned count);
ssize_t ldr_stream_write(ldr_stream_t *s, const struct iovec *iov,
                         unsigned count);

/* Waits until the stream is ready (POLLIN...), as ldr_poll(). */
int ldr_stream_poll(ldr_stream_t *s, short events, uint64_t until_ns);
