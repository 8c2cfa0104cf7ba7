/* A connection to a store: sends from where bytes lie, receives where they
 * shall lie. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "peer.h"

/* Nothing here takes this long: a store that hangs ends the figure. */
#define TIMEOUT_S 30

static int connect_unix(const char *path)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (strlen(path) >= sizeof(to.sun_path)) {
        fail("the socket's path is too long: %s", path);
    }
    memcpy(to.sun_path, path, strlen(path) + 1);
    if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof(to)) != 0) {
        fail("cannot connect to %s: %s", path, strerror(errno));
    }
    return fd;
}

static int connect_tcp(const char *port)
{
    struct sockaddr_in to = {.sin_family = AF_INET};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int one = 1;

    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons((uint16_t)strtoul(port, NULL, 10));
    if (fd < 0 ||
        setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5) != 0 ||
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) != 0 ||
        connect(fd, (struct sockaddr *)&to, sizeof(to)) != 0) {
        fail("cannot connect to port %s: %s", port, strerror(errno));
    }
    return fd;
}

void conn_open(conn_t *c, const char *where)
{
    struct timeval limit = {.tv_sec = TIMEOUT_S};

    memset(c, 0, sizeof(*c));
    if (strncmp(where, "unix:", 5) == 0) {
        c->fd = connect_unix(where + 5);
    } else if (strncmp(where, "tcp:", 4) == 0) {
        c->fd = connect_tcp(where + 4);
    } else {
        fail("%s: neither unix:PATH nor tcp:PORT", where);
    }
    setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    setsockopt(c->fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

void conn_close(conn_t *c)
{
    close(c->fd);
}

void conn_send(conn_t *c, struct iovec *pieces, unsigned count)
{
    while (count > 0) {
        ssize_t sent = writev(c->fd, pieces, (int)count);

        if (sent < 0) {
            fail("sending: %s", strerror(errno));
        }
        while (count > 0 && (size_t)sent >= pieces->iov_len) {
            sent -= (ssize_t)pieces->iov_len;
            pieces++;
            count--;
        }
        if (count > 0) {
            pieces->iov_base = (char *)pieces->iov_base + sent;
            pieces->iov_len -= (size_t)sent;
        }
    }
}

const char *conn_line(conn_t *c)
{
    for (;;) {
        char *line = c->small + c->at;
        char *end = memchr(line, '\n', c->have - c->at);

        if (end != NULL) {
            c->at = (size_t)(end - c->small) + 1;
            if (end > line && end[-1] == '\r') {
                end--;
            }
            *end = 0;
            return line;
        }
        memmove(c->small, line, c->have - c->at);
        c->have -= c->at;
        c->at = 0;
        ssize_t got =
            read(c->fd, c->small + c->have, sizeof(c->small) - c->have);
        if (got <= 0) {
            fail("receiving a line: %s",
                 got == 0 ? "the store closed" : strerror(errno));
        }
        c->have += (size_t)got;
    }
}

void conn_receive(conn_t *c, void *to, size_t bytes)
{
    size_t early = c->have - c->at;
    uint8_t *p = to;

    early = early < bytes ? early : bytes;
    memcpy(p, c->small + c->at, early);
    c->at += early;
    p += early;
    bytes -= early;
    while (bytes > 0) {
        /* Nothing is left in small here: what follows may come along. */
        struct iovec pieces[] = {{p, bytes}, {c->small, sizeof(c->small)}};
        ssize_t got = readv(c->fd, pieces, 2);

        if (got <= 0) {
            fail("receiving: %s",
                 got == 0 ? "the store closed" : strerror(errno));
        }
        size_t mine = (size_t)got < bytes ? (size_t)got : bytes;
        p += mine;
        bytes -= mine;
        c->at = 0;
        c->have = (size_t)got - mine;
    }
}
