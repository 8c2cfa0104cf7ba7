/*
 * The limits of what moves over TCP: bare sockets over loopback, with the same
 * congestion control and the kernel's own buffer sizes, one thread at each
 * end. Plain ones block; with TLS they are Larder's own streams.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/copy.h"
#include "base/thread.h"
#include "bench.h"

#define CONGESTION "cubic"
#define DEADLINE_NS ((uint64_t)10 * 1000000000u)
#define CHECK_STEP ((size_t)256 << 10)

/* ---- pairs ---- */

/* A listening socket on a port of the kernel's choice. */
static int listen_any(ldr_address_t *address)
{
    struct sockaddr_in a = {0};
    socklen_t bytes = sizeof(a);

    *address = (ldr_address_t){.host = "127.0.0.1", .port = "0"};
    int fd = ldr_listen_tcp(address, CONGESTION);
    if (fd >= 0 && getsockname(fd, (struct sockaddr *)&a, &bytes) == 0) {
        snprintf(address->port, sizeof(address->port), "%u", ntohs(a.sin_port));
    }
    return fd;
}

static bool pair(int out[2])
{
    uint64_t deadline = ldr_now_ns(&ldr_clock_real) + DEADLINE_NS;
    ldr_address_t address;
    int fd = listen_any(&address);

    out[0] = out[1] = -1;
    if (fd < 0) {
        return false;
    }
    out[1] = ldr_connect_tcp(&address, CONGESTION, deadline);
    if (out[1] >= 0 && ldr_poll(fd, POLLIN, deadline) > 0) {
        out[0] = ldr_accept(fd);
    }
    close(fd);
    for (int i = 0; i < 2 && out[0] >= 0; i++) {
        ldr_socket_tune(out[i], CONGESTION);
    }
    if (out[0] < 0 && out[1] >= 0) {
        close(out[1]);
    }
    return out[0] >= 0;
}

/* Both ends in turns, until both are done. */
static bool shake(ldr_stream_t *a, ldr_stream_t *b)
{
    int x = -EAGAIN, y = -EAGAIN;

    for (int i = 0; i < 1000 && (x != 0 || y != 0); i++) {
        x = x != 0 ? ldr_stream_handshake(a) : 0;
        y = y != 0 ? ldr_stream_handshake(b) : 0;
        if ((x != 0 && x != -EAGAIN) || (y != 0 && y != -EAGAIN)) {
            return false;
        }
    }
    return x == 0 && y == 0;
}

static bool stream_pair(ldr_streams_t *s, unsigned i)
{
    int fds[2];

    if (!pair(fds)) {
        return false;
    }
    if (s->server == NULL) {
        for (int k = 0; k < 2; k++) {
            fcntl(fds[k], F_SETFL, fcntl(fds[k], F_GETFL) & ~O_NONBLOCK);
        }
    }
    larder_status_t st =
        ldr_stream_init(&s->from[i], fds[0], s->server, true, NULL);
    larder_status_t other =
        ldr_stream_init(&s->to[i], fds[1], s->client, false,
                        s->client != NULL ? "localhost" : NULL);
    s->count = i + 1;
    return st == LARDER_OK && other == LARDER_OK &&
           shake(&s->to[i], &s->from[i]);
}

bool ldr_streams_open(ldr_streams_t *s, unsigned count, const char *cert,
                      const char *key)
{
    ldr_tls_params_t server = {.server = true, .cert = cert, .key = key};
    ldr_tls_params_t client = {.ca = cert};

    *s = (ldr_streams_t){0};
    for (unsigned i = 0; i < LDR_STREAMS_MAX; i++) {
        s->from[i].fd = s->to[i].fd = -1;
    }
    bool ok =
        cert == NULL || (ldr_tls_create(&server, &s->server) == LARDER_OK &&
                         ldr_tls_create(&client, &s->client) == LARDER_OK);
    for (unsigned i = 0; i < count && ok; i++) {
        ok = stream_pair(s, i);
    }
    return ok;
}

void ldr_streams_close(ldr_streams_t *s)
{
    for (unsigned i = 0; i < s->count; i++) {
        ldr_stream_close(&s->from[i]);
        ldr_stream_close(&s->to[i]);
    }
    ldr_tls_destroy(s->server);
    ldr_tls_destroy(s->client);
    *s = (ldr_streams_t){0};
}

/* ---- whole pieces ---- */

/* Sends or receives all of them. */
static bool move_tls(ldr_stream_t *s, uint8_t *at, size_t bytes, bool out)
{
    while (bytes > 0) {
        struct iovec iov = {at, bytes};
        ssize_t n =
            out ? ldr_stream_write(s, &iov, 1) : ldr_stream_read(s, &iov, 1);

        if (n > 0) {
            at += n;
            bytes -= (size_t)n;
        } else if (n != -EAGAIN ||
                   ldr_poll(s->fd, s->wants_write ? POLLOUT : POLLIN,
                            UINT64_MAX) <= 0) {
            return false;
        }
    }
    return true;
}

static bool move_plain(int fd, uint8_t *at, size_t bytes, bool out)
{
    while (bytes > 0) {
        ssize_t n =
            out ? send(fd, at, bytes, MSG_NOSIGNAL) : recv(fd, at, bytes, 0);

        if (n <= 0) {
            return false;
        }
        at += n;
        bytes -= (size_t)n;
    }
    return true;
}

/* The same by one who computes a checksum of what is sent, or of what has come,
 * while that is in the second-level cache. */
static bool move_checked(int fd, uint8_t *at, size_t bytes, bool out)
{
    volatile uint32_t crc = 0;
    bool ok = true;

    while (bytes > 0 && ok) {
        size_t n = ldr_min64(bytes, CHECK_STEP);

        if (out) {
            crc = ldr_crc32c(crc, at, n);
        }
        ok = move_plain(fd, at, n, out);
        if (!out) {
            crc = ldr_crc32c(crc, at, n);
        }
        at += n;
        bytes -= n;
    }
    return ok;
}

/* One end of a stream. */
typedef struct end {
    ldr_stream_t *stream;
    uint8_t *at;
    uint64_t bytes, size;
    bool send, checked;
} end_t;

static bool move(const end_t *e, uint8_t *at)
{
    return e->stream->ssl != NULL ? move_tls(e->stream, at, e->size, e->send)
           : e->checked ? move_checked(e->stream->fd, at, e->size, e->send)
                        : move_plain(e->stream->fd, at, e->size, e->send);
}

static bool end_run(void *arg)
{
    end_t *e = arg;
    bool ok = true;

    for (uint64_t at = 0; at + e->size <= e->bytes && ok; at += e->size) {
        ok = move(e, e->at + at);
    }
    if (!ok) {
        shutdown(e->stream->fd, SHUT_RDWR); /* the other end must not wait */
    }
    return ok;
}

double ldr_streams_pass(ldr_streams_t *s, uint8_t *to, const uint8_t *from,
                        uint64_t bytes, uint64_t size, unsigned checked)
{
    end_t ends[2 * LDR_STREAMS_MAX];
    uint64_t each = bytes / s->count / size * size;

    for (unsigned i = 0; i < s->count; i++) {
        ends[2 * i] = (end_t){.stream = &s->to[i],
                              .at = to + i * each,
                              .bytes = each,
                              .size = size,
                              .checked = (checked & LDR_CHECKED_TO) != 0};
        ends[2 * i + 1] = (end_t){.stream = &s->from[i],
                                  .at = (uint8_t *)from + i * each,
                                  .bytes = each,
                                  .size = size,
                                  .send = true,
                                  .checked = (checked & LDR_CHECKED_FROM) != 0};
    }
    return ldr_bench_together(2 * s->count, false, end_run, ends,
                              sizeof(ends[0]));
}

/* ---- questions and answers ---- */

#define ECHO_HEAD_MAX 65536u

static void *echo_main(void *arg)
{
    ldr_echo_t *e = arg;
    uint8_t head[ECHO_HEAD_MAX] = {0};
    int fd = e->streams.from[0].fd;
    uint64_t at = 0;

    while (recv(fd, head, e->ask, MSG_WAITALL) == (ssize_t)e->ask) {
        struct iovec iov[] = {{head, e->head}, {e->pool + at, e->size}};
        struct msghdr message = {.msg_iov = iov, .msg_iovlen = 2};

        /* It fits the socket's buffer: all of it, or the end. */
        if (sendmsg(fd, &message, MSG_NOSIGNAL) !=
            (ssize_t)(e->head + e->size)) {
            break;
        }
        at = at + 2 * e->size <= e->bytes ? at + e->size : 0;
    }
    shutdown(fd, SHUT_RDWR);
    return NULL;
}

bool ldr_echo_open(ldr_echo_t *e)
{
    e->started = false;
    if (e->ask > ECHO_HEAD_MAX || e->head > ECHO_HEAD_MAX ||
        !ldr_streams_open(&e->streams, 1, NULL, NULL)) {
        return false;
    }
    e->started = ldr_thread_start(&e->thread, "bench-echo", echo_main, e);
    return e->started;
}

void ldr_echo_close(ldr_echo_t *e)
{
    if (e->started) {
        shutdown(e->streams.to[0].fd, SHUT_RDWR);
        pthread_join(e->thread, NULL);
        e->started = false;
    }
    ldr_streams_close(&e->streams);
}

bool ldr_echo_send(ldr_echo_t *e)
{
    static const uint8_t ask[ECHO_HEAD_MAX];

    return send(e->streams.to[0].fd, ask, e->ask, MSG_NOSIGNAL) ==
           (ssize_t)e->ask;
}

bool ldr_echo_take(ldr_echo_t *e, uint8_t *to)
{
    uint8_t head[ECHO_HEAD_MAX];
    struct iovec iov[] = {{head, e->head}, {to, e->size}};
    struct msghdr message = {.msg_iov = iov, .msg_iovlen = 2};

    return recvmsg(e->streams.to[0].fd, &message, MSG_WAITALL) ==
           (ssize_t)(e->head + e->size);
}

double ldr_echo_ask(ldr_echo_t *e, uint8_t *to)
{
    double begin = ldr_bench_now();

    return ldr_echo_send(e) && ldr_echo_take(e, to) ? ldr_bench_now() - begin
                                                    : 0;
}
