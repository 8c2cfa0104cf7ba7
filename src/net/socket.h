/*
 * Sockets: addresses, listening, connecting, passing descriptors. Everything is
 * non-blocking and close-on-exec. Functions give 0 or more, or a negative
 * errno; texts of failures are set with ldr_fail().
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "base/options.h"
#include "larder/larder.h"

#define LDR_FDS_MAX 4u /* descriptors in one message */

typedef struct ldr_address {
    char host[LDR_HOST_MAX]; /* a name, IPv4, or IPv6 without brackets */
    char port[8];
} ldr_address_t;

/* "host:port", "[::1]:port". False: neither. */
bool ldr_address_parse(const char *text, size_t length, ldr_address_t *out);

/* Whether all that the name resolves to is loopback. */
bool ldr_address_loopback(const ldr_address_t *address);

/* A listening socket. unix: a stale socket file that nobody listens on is
 * replaced, one that somebody listens on is -EADDRINUSE; mode is its file
 * mode; PATH.lock exists while this runs. tcp: the first address of a name
 * that this machine has; "[::]" takes IPv4 as well. */
int ldr_listen_unix(const char *path, unsigned mode);
int ldr_listen_tcp(const ldr_address_t *address, const char *congestion);
/* The same without listening: nobody can connect yet, nor bind it. */
int ldr_bind_tcp(const ldr_address_t *address, const char *congestion);

/* Connects by the deadline (monotonic ns; UINT64_MAX: none), else -ETIMEDOUT.
 * A name is resolved first, and how long that may take is the resolver's to
 * say: numbers and /etc/hosts need no time. The deadline is put off by as much,
 * or a name that takes longer would never be connected to. */
int ldr_connect_unix(const char *path, uint64_t deadline_ns);
int ldr_connect_tcp(const ldr_address_t *address, const char *congestion,
                    uint64_t deadline_ns);
/* The same, and *deadline_ns is what it has become; -ECANCELED soon after
 * *canceled (atomic, NULL: never) is set, except the resolver. */
int ldr_connect_tcp_wanted(const ldr_address_t *address, const char *congestion,
                           uint64_t *deadline_ns, const bool *canceled);

/* TCP_NODELAY, congestion control ("" or NULL leaves the machine's),
 * keep-alive. What the kernel refuses is left out. Connections of a listening
 * socket inherit it. */
void ldr_socket_tune(int fd, const char *congestion);

/* The next connection, tuned by the caller. -EAGAIN: none waits. */
int ldr_accept(int fd);

typedef struct ldr_peer {
    uid_t uid;
    pid_t pid;  /* 0: in another namespace */
    int pid_fd; /* readable once the process is gone; -1: cannot be had */
} ldr_peer_t;

/* Who connected to, or made, the other end of a unix socket. -ESRCH: a process
 * that is gone. */
int ldr_peer_of(int fd, ldr_peer_t *peer);

/* Lets only a few messages wait in the kernel for a peer that does not read.
 * The kernel counts descriptors under way to any peer against the user who
 * sends them, and when they are too many refuses those to all others. */
void ldr_socket_bound(int fd);

/* Bytes with descriptors, on a unix socket. A message (at most 3 KiB) is sent
 * whole or not at all (-EAGAIN): 0 is sent. Received are 1 or more bytes, or
 * -EAGAIN, or -EPIPE when the peer has closed; fds has room for LDR_FDS_MAX,
 * and what comes is the caller's to close. Bytes that were sent before may come
 * along in one piece, but never bytes that were sent after. Descriptors are
 * lost to who reads with anything else. */
int ldr_send_fds(int fd, const void *data, size_t bytes, const int *fds,
                 unsigned fd_count);
ssize_t ldr_recv_fds(int fd, void *data, size_t bytes, int *fds,
                     unsigned *fd_count_p);

/* Whether who is at the other end of a TCP connection answers to HTTP: asked
 * by another connection. */
bool ldr_speaks_http(int fd, uint64_t deadline_ns);

/* Waits until the descriptor is ready (POLLIN...). The events; 0: the deadline
 * passed (UINT64_MAX: there is none). */
int ldr_poll(int fd, short events, uint64_t deadline_ns);

/* ---- TLS: libssl, loaded when it is first needed ---- */

typedef struct ldr_tls ldr_tls_t; /* a context: certificates and rules */

/* cert and key: PEM files, required for a server. ca: PEM file of those who
 * may sign the other side's certificate; NULL for a server: clients need
 * none; NULL for a client: the system's. TLS 1.3 only; kTLS where the kernel
 * has it. E_UNSUPPORTED: no libssl here; E_INVALID: a file is not right. A
 * server with a ca lets in nobody without a certificate from there. */
typedef struct ldr_tls_params {
    bool server;
    const char *cert, *key, *ca;
} ldr_tls_params_t;

larder_status_t ldr_tls_create(const ldr_tls_params_t *params,
                               ldr_tls_t **tls_p);
/* Streams that begin from here on have the certificates of fresh, which is
 * gone then; the others keep theirs. */
void ldr_tls_renew(ldr_tls_t *tls, ldr_tls_t *fresh);
void ldr_tls_destroy(ldr_tls_t *tls); /* NULL is fine; streams may live on */
