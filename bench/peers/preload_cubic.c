/*
 * Preloaded into every store of the run: sets the congestion control of its
 * TCP sockets to cubic before they listen or connect (what they accept takes it
 * over), since redis, memcached and Mooncake have no option for it, and the
 * machine's default may be several times slower over loopback.
 */
#include <dlfcn.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <sys/socket.h>

int listen(int fd, int backlog);
int connect(int fd, const struct sockaddr *to, socklen_t length);

static void tune(int fd)
{
    int domain = 0, type = 0;
    socklen_t length = sizeof(domain);

    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) != 0 ||
        getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) != 0 ||
        (domain != AF_INET && domain != AF_INET6) || type != SOCK_STREAM) {
        return;
    }
    if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5) != 0) {
        perror("cubic.so: TCP_CONGESTION");
    }
}

int listen(int fd, int backlog)
{
    int (*real)(int, int) = (int (*)(int, int))dlsym(RTLD_NEXT, "listen");

    tune(fd);
    return real(fd, backlog);
}

int connect(int fd, const struct sockaddr *to, socklen_t length)
{
    int (*real)(int, const struct sockaddr *, socklen_t) =
        (int (*)(int, const struct sockaddr *, socklen_t))dlsym(RTLD_NEXT,
                                                                "connect");

    tune(fd);
    return real(fd, to, length);
}
