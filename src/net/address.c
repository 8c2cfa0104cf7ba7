/*
 * TCP addresses: parsing, resolving, listening, connecting. Any thread may
 * call: nothing is kept. A call that connects ends when another thread sets
 * *canceled.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/options.h"
#include "net/socket.h"

#define CANCEL_LOOK_NS 10000000u /* how often a canceled connect is noticed */

bool ldr_address_parse(const char *text, size_t length, ldr_address_t *out)
{
    ldr_address_t a;
    uint16_t port;

    if (!ldr_parse_address(text, length, a.host, &port)) {
        return false;
    }
    snprintf(a.port, sizeof(a.port), "%u", port);
    *out = a;
    return true;
}

/* ---- resolving ---- */

static int errno_of_gai(int error)
{
    switch (error) {
    case EAI_SYSTEM:
        return errno != 0 ? -errno : -EIO;
    case EAI_MEMORY:
        return -ENOMEM;
    case EAI_AGAIN:
        return -EHOSTUNREACH;
    default:
        return -ENXIO;
    }
}

static int resolve(const ldr_address_t *address, int flags,
                   struct addrinfo **list_p)
{
    const struct addrinfo hints = {
        .ai_family = AF_UNSPEC,
        .ai_socktype = SOCK_STREAM,
        .ai_protocol = IPPROTO_TCP,
        .ai_flags = flags | AI_NUMERICSERV,
    };
    int error = getaddrinfo(address->host, address->port, &hints, list_p);

    if (error != 0) {
        ldr_fail(LARDER_E_OFFLINE, "%s: the name cannot be resolved: %s",
                 address->host, gai_strerror(error));
        return errno_of_gai(error);
    }
    return 0;
}

static bool is_loopback(const struct sockaddr *sa)
{
    if (sa->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const void *)sa;
        return ntohl(in->sin_addr.s_addr) >> 24 == 127;
    }
    if (sa->sa_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const void *)sa;
        return IN6_IS_ADDR_LOOPBACK(&in6->sin6_addr) ||
               (IN6_IS_ADDR_V4MAPPED(&in6->sin6_addr) &&
                in6->sin6_addr.s6_addr[12] == 127);
    }
    return false;
}

bool ldr_address_loopback(const ldr_address_t *address)
{
    struct addrinfo *list;
    bool all = true;

    if (resolve(address, 0, &list) != 0) {
        return false;
    }
    for (const struct addrinfo *ai = list; ai != NULL; ai = ai->ai_next) {
        all = all && is_loopback(ai->ai_addr);
    }
    freeaddrinfo(list);
    return all;
}

/* ---- sockets ---- */

void ldr_socket_tune(int fd, const char *congestion)
{
    /* All of it is a wish: a kernel that refuses one still carries bytes. */
    const struct {
        int level, name, value;
    } wishes[] = {
        {IPPROTO_TCP, TCP_NODELAY, 1},
        {SOL_SOCKET, SO_KEEPALIVE, 1},
        {IPPROTO_TCP, TCP_KEEPIDLE, 30},
        {IPPROTO_TCP, TCP_KEEPINTVL, 10},
        {IPPROTO_TCP, TCP_KEEPCNT, 3},
        /* A peer that takes nothing for a minute is gone. */
        {IPPROTO_TCP, TCP_USER_TIMEOUT, 60000},
    };

    for (size_t i = 0; i < sizeof(wishes) / sizeof(wishes[0]); i++) {
        (void)setsockopt(fd, wishes[i].level, wishes[i].name, &wishes[i].value,
                         sizeof(wishes[i].value));
    }
    if (congestion != NULL && congestion[0] != '\0') {
        (void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, congestion,
                         (socklen_t)strlen(congestion));
    }
}

static int socket_for(const struct addrinfo *ai)
{
    int fd =
        socket(ai->ai_family, ai->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC,
               ai->ai_protocol);

    return fd >= 0 ? fd : -errno;
}

static int bind_at(const struct addrinfo *ai, const char *congestion)
{
    const int on = 1, off = 0;
    int fd = socket_for(ai);

    if (fd < 0) {
        return fd;
    }
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (ai->ai_family == AF_INET6) {
        /* [::] takes IPv4 as well, whatever the machine's default. */
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    }
    ldr_socket_tune(fd, congestion); /* connections inherit it */
    if (bind(fd, ai->ai_addr, ai->ai_addrlen) != 0) {
        int error = -errno;
        close(fd);
        return error;
    }
    return fd;
}

int ldr_bind_tcp(const ldr_address_t *address, const char *congestion)
{
    struct addrinfo *list;
    int fd = resolve(address, AI_PASSIVE, &list);

    if (fd != 0) {
        return fd;
    }
    fd = -EADDRNOTAVAIL;
    for (const struct addrinfo *ai = list; ai != NULL && fd < 0;
         ai = ai->ai_next) {
        fd = bind_at(ai, congestion);
        if (fd == -EADDRINUSE || fd == -EACCES) {
            break; /* it is this machine's, and not available */
        }
    }
    freeaddrinfo(list);
    if (fd < 0) {
        ldr_fail(LARDER_E_IO, "%s port %s: cannot listen: %s", address->host,
                 address->port, strerror(-fd));
    }
    return fd;
}

int ldr_listen_tcp(const ldr_address_t *address, const char *congestion)
{
    int fd = ldr_bind_tcp(address, congestion);

    if (fd >= 0 && listen(fd, SOMAXCONN) != 0) {
        int error = -errno;

        close(fd);
        ldr_fail(LARDER_E_IO, "%s port %s: cannot listen: %s", address->host,
                 address->port, strerror(-error));
        return error;
    }
    return fd;
}

/* As ldr_poll(), with looks at whether it is still wanted. */
static int poll_wanted(int fd, uint64_t deadline_ns, const bool *canceled)
{
    for (;;) {
        uint64_t now = ldr_now_ns(&ldr_clock_real);
        uint64_t until = deadline_ns;

        if (canceled != NULL && __atomic_load_n(canceled, __ATOMIC_RELAXED)) {
            return -ECANCELED;
        }
        if (canceled != NULL && deadline_ns > now &&
            deadline_ns - now > CANCEL_LOOK_NS) {
            until = now + CANCEL_LOOK_NS;
        }
        int ready = ldr_poll(fd, POLLOUT, until);
        if (ready != 0 || until == deadline_ns) {
            return ready;
        }
    }
}

static int connect_at(const struct addrinfo *ai, const char *congestion,
                      uint64_t deadline_ns, const bool *canceled)
{
    int error = 0;
    socklen_t size = sizeof(error);
    int fd = socket_for(ai);

    if (fd < 0) {
        return fd;
    }
    ldr_socket_tune(fd, congestion);
    /* Interrupted, it goes on in the background all the same. */
    if (connect(fd, ai->ai_addr, ai->ai_addrlen) == 0) {
        return fd;
    }
    if (errno != EINPROGRESS && errno != EINTR) {
        error = errno;
    } else {
        int ready = poll_wanted(fd, deadline_ns, canceled);
        if (ready <= 0) {
            error = ready == 0 ? ETIMEDOUT : -ready;
        } else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) {
            error = errno;
        }
    }
    if (error != 0) {
        close(fd);
        return -error;
    }
    return fd;
}

int ldr_connect_tcp(const ldr_address_t *address, const char *congestion,
                    uint64_t deadline_ns)
{
    return ldr_connect_tcp_wanted(address, congestion, &deadline_ns, NULL);
}

int ldr_connect_tcp_wanted(const ldr_address_t *address, const char *congestion,
                           uint64_t *deadline_ns, const bool *canceled)
{
    struct addrinfo *list;
    unsigned left = 0;
    uint64_t begin_ns = ldr_now_ns(&ldr_clock_real);
    int fd = resolve(address, 0, &list);

    if (*deadline_ns != UINT64_MAX) {
        *deadline_ns += ldr_now_ns(&ldr_clock_real) - begin_ns;
    }
    if (fd != 0) {
        return fd;
    }
    for (const struct addrinfo *ai = list; ai != NULL; ai = ai->ai_next) {
        left++;
    }
    fd = -EADDRNOTAVAIL;
    for (const struct addrinfo *ai = list;
         ai != NULL && fd < 0 && fd != -ECANCELED; ai = ai->ai_next, left--) {
        /* Each its share, so that a silent one does not take it all. */
        uint64_t now = ldr_now_ns(&ldr_clock_real);
        uint64_t until = *deadline_ns;
        if (until != UINT64_MAX && until > now) {
            until = now + (until - now) / left;
        }
        fd = connect_at(ai, congestion, until, canceled);
    }
    freeaddrinfo(list);
    if (fd < 0) {
        ldr_fail(LARDER_E_OFFLINE, "%s port %s: cannot connect: %s",
                 address->host, address->port, strerror(-fd));
    }
    return fd;
}

bool ldr_speaks_http(int fd, uint64_t deadline_ns)
{
    static const char question[] = "GET / HTTP/1.0\r\n\r\n";
    static const char word[] = "HTTP/";
    struct sockaddr_storage peer;
    socklen_t length = sizeof(peer);
    char answer[sizeof(word) - 1];

    if (getpeername(fd, (struct sockaddr *)&peer, &length) != 0 ||
        (peer.ss_family != AF_INET && peer.ss_family != AF_INET6)) {
        return false;
    }
    int probe =
        socket(peer.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (probe < 0) {
        return false;
    }
    bool connected = connect(probe, (struct sockaddr *)&peer, length) == 0 ||
                     errno == EINPROGRESS;
    bool is =
        connected && ldr_poll(probe, POLLOUT, deadline_ns) > 0 &&
        send(probe, question, sizeof(question) - 1, MSG_NOSIGNAL) ==
            (ssize_t)sizeof(question) - 1 &&
        ldr_poll(probe, POLLIN, deadline_ns) > 0 &&
        recv(probe, answer, sizeof(answer), 0) == (ssize_t)sizeof(answer) &&
        memcmp(answer, word, sizeof(answer)) == 0;
    close(probe);
    return is;
}
