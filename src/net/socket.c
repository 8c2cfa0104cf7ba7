/* Unix sockets: listening, connecting, who is there, descriptors. */
#define _GNU_SOURCE
#include "net/socket.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

#define NS_PER_S 1000000000u

/* A message up to this size is one buffer in the kernel, all or nothing, also
 * with BOUND_BYTES: a buffer has at most these, less 64. */
#define FDS_MESSAGE_MAX (3u << 10)
#define BOUND_BYTES 4096 /* some ten messages, whatever they weigh */

/* ---- waiting ---- */

int ldr_poll(int fd, short events, uint64_t deadline_ns)
{
    struct pollfd p = {.fd = fd, .events = events};

    for (;;) {
        struct timespec wait = {0};
        uint64_t now = ldr_now_ns(&ldr_clock_real);
        if (deadline_ns > now) {
            wait.tv_sec = (time_t)((deadline_ns - now) / NS_PER_S);
            wait.tv_nsec = (long)((deadline_ns - now) % NS_PER_S);
        }
        int n = ppoll(&p, 1, deadline_ns == UINT64_MAX ? NULL : &wait, NULL);
        if (n >= 0) {
            return n > 0 ? p.revents : 0;
        }
        if (errno != EINTR) {
            return -errno;
        }
    }
}

int ldr_accept(int fd)
{
    for (;;) {
        int client = accept4(fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (client >= 0) {
            return client;
        }
        /* Those who gave up meanwhile, and errors of their connection, which
         * Linux reports here. */
        switch (errno) {
        case EINTR:
        case ECONNABORTED:
        case EPROTO:
        case ENETDOWN:
        case ENOPROTOOPT:
        case EHOSTDOWN:
        case ENONET:
        case EHOSTUNREACH:
        case ENETUNREACH:
            continue;
        default:
            return -errno;
        }
    }
}

/* ---- unix sockets ---- */

static int unix_address(const char *path, struct sockaddr_un *out)
{
    size_t length = strlen(path);

    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (length == 0 || length >= sizeof(out->sun_path)) {
        ldr_fail(LARDER_E_INVALID,
                 "%s: the path of a unix socket has 1 to %zu bytes", path,
                 sizeof(out->sun_path) - 1);
        return length == 0 ? -EINVAL : -ENAMETOOLONG;
    }
    memcpy(out->sun_path, path, length);
    return 0;
}

/*
 * While a daemon looks whether the socket is stale and replaces it, another
 * must not do the same: it would take away the first one's new socket. The
 * file is removed by its holder, so one that was opened may be gone once it is
 * locked.
 */
static int lock_take(const char *path)
{
    const struct timespec nap = {0, 10000000};
    struct stat ours, there;

    for (unsigned tries = 0; tries < 100; tries++) {
        int fd = open(path, O_RDONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW,
                      S_IRUSR | S_IWUSR);
        if (fd < 0) {
            return -errno;
        }
        if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
            if (fstat(fd, &ours) == 0 && stat(path, &there) == 0 &&
                ours.st_ino == there.st_ino && ours.st_dev == there.st_dev) {
                return fd;
            }
        } else {
            nanosleep(&nap, NULL);
        }
        close(fd);
    }
    return -EADDRINUSE;
}

static void lock_drop(const char *path, int fd)
{
    unlink(path);
    close(fd);
}

/* 0: nothing is there any more; -EADDRINUSE: somebody listens. */
static int remove_stale(const char *path, const struct sockaddr_un *address)
{
    struct stat st;
    int error = 0;

    if (lstat(path, &st) != 0) {
        return errno == ENOENT ? 0 : -errno;
    }
    if (!S_ISSOCK(st.st_mode)) {
        return -ENOTSOCK;
    }
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return -errno;
    }
    if (connect(fd, (const void *)address, sizeof(*address)) == 0 ||
        errno == EAGAIN) { /* its queue is full, so it lives */
        error = -EADDRINUSE;
    } else if (errno != ECONNREFUSED && errno != ENOENT) {
        error = -errno;
    } else if (unlink(path) != 0 && errno != ENOENT) {
        error = -errno;
    }
    close(fd);
    return error;
}

static int bind_unix(const char *path, const struct sockaddr_un *address,
                     unsigned mode)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0) {
        return -errno;
    }
    /* The file gets the socket's mode less the umask: so it is never open to
     * more than it should, and then to as many. */
    if (fchmod(fd, mode) != 0 ||
        bind(fd, (const void *)address, sizeof(*address)) != 0 ||
        chmod(path, mode) != 0 || listen(fd, SOMAXCONN) != 0) {
        int error = -errno;
        close(fd);
        return error;
    }
    return fd;
}

static int fail_listen(const char *path, int error)
{
    switch (error) {
    case -EADDRINUSE:
        ldr_fail(LARDER_E_LOCKED,
                 "%s: another daemon listens there: stop it, or choose another "
                 "path",
                 path);
        break;
    case -ENOTSOCK:
        ldr_fail(LARDER_E_INVALID,
                 "%s: exists and is not a socket: remove it, or choose another "
                 "path",
                 path);
        break;
    default:
        ldr_fail(LARDER_E_IO, "%s: cannot listen: %s", path, strerror(-error));
    }
    return error;
}

int ldr_listen_unix(const char *path, unsigned mode)
{
    struct sockaddr_un address;
    char lock_path[sizeof(address.sun_path) + 8];
    int fd = unix_address(path, &address);

    if (fd != 0) {
        return fd;
    }
    snprintf(lock_path, sizeof(lock_path), "%s.lock", path);
    int lock = lock_take(lock_path);
    if (lock < 0) {
        return fail_listen(path, lock);
    }
    fd = remove_stale(path, &address);
    if (fd == 0) {
        fd = bind_unix(path, &address, mode);
    }
    lock_drop(lock_path, lock);
    return fd < 0 ? fail_listen(path, fd) : fd;
}

/*
 * A full queue makes a non-blocking connect to a unix socket fail, with nothing
 * to wait for; a blocking one waits for as long as the socket may send.
 */
static int connect_until(int fd, const struct sockaddr_un *address,
                         uint64_t deadline_ns)
{
    for (;;) {
        uint64_t now = ldr_now_ns(&ldr_clock_real);
        uint64_t left_us = deadline_ns > now ? (deadline_ns - now) / 1000u : 0;
        struct timeval wait = {0}; /* for ever */
        if (deadline_ns != UINT64_MAX) {
            left_us = ldr_max64(left_us, 1);
            wait.tv_sec = (time_t)(left_us / 1000000u);
            wait.tv_usec = (suseconds_t)(left_us % 1000000u);
        }
        if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait)) != 0) {
            return -errno;
        }
        if (connect(fd, (const void *)address, sizeof(*address)) == 0) {
            return 0;
        }
        if (errno != EINTR) {
            return errno == EAGAIN ? -ETIMEDOUT : -errno;
        }
    }
}

/* What to do about it. Numbers, not names: looking those up may ask another
 * host. */
static void connect_failed(const char *path, int error)
{
    struct stat about;

    if (error != -EACCES && error != -EPERM) {
        ldr_fail(LARDER_E_OFFLINE, "%s: cannot connect: %s%s", path,
                 strerror(-error),
                 error == -ENOENT || error == -ECONNREFUSED
                     ? ": is `larder serve` running there?"
                     : "");
    } else if (stat(path, &about) != 0) {
        ldr_fail(LARDER_E_DENIED,
                 "%s: cannot connect: %s: a directory above it is closed to "
                 "uid %u, gid %u: open it to them (chmod o+x), or serve with "
                 "another --socket",
                 path, strerror(-error), (unsigned)geteuid(),
                 (unsigned)getegid());
    } else {
        ldr_fail(LARDER_E_DENIED,
                 "%s: cannot connect: %s: the socket is uid %u's, group %u's, "
                 "mode %04o, and this process has uid %u, gid %u: add its user "
                 "to that group, or serve with another --socket-mode",
                 path, strerror(-error), (unsigned)about.st_uid,
                 (unsigned)about.st_gid, (unsigned)about.st_mode & 07777,
                 (unsigned)geteuid(), (unsigned)getegid());
    }
}

int ldr_connect_unix(const char *path, uint64_t deadline_ns)
{
    struct sockaddr_un address;
    int error = unix_address(path, &address);

    if (error != 0) {
        return error;
    }
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        error = -errno;
    } else {
        error = connect_until(fd, &address, deadline_ns);
        if (error == 0 && fcntl(fd, F_SETFL, O_RDWR | O_NONBLOCK) != 0) {
            error = -errno;
        }
        if (error != 0) {
            close(fd);
        }
    }
    if (error != 0) {
        connect_failed(path, error);
        return error;
    }
    return fd;
}

/* ---- the other end ---- */

/*
 * The pid of a process that is gone may be another's by now; but while the
 * process lives its end of the socket is open. (Kernels from 6.5 on give the
 * pidfd of who connected, and none of this is needed.)
 */
static int pid_fd_by_number(int fd, pid_t pid)
{
    struct pollfd p = {.fd = fd, .events = POLLRDHUP};
    int pid_fd = (int)syscall(SYS_pidfd_open, pid, 0u);

    if (pid_fd < 0) {
        return -errno;
    }
    if (poll(&p, 1, 0) > 0 && (p.revents & (POLLHUP | POLLRDHUP)) != 0) {
        close(pid_fd);
        return -ESRCH;
    }
    return pid_fd;
}

int ldr_peer_of(int fd, ldr_peer_t *peer)
{
    struct ucred credentials;
    socklen_t size = sizeof(credentials);
    int pid_fd = -1;

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
        int error = -errno;
        ldr_fail(LARDER_E_IO, "no credentials of the other end: %s",
                 strerror(-error));
        return error;
    }
    size = sizeof(pid_fd);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pid_fd, &size) != 0) {
        pid_fd = -errno;
        if (pid_fd != -ESRCH && credentials.pid > 0) {
            pid_fd = pid_fd_by_number(fd, credentials.pid);
        }
    }
    if (pid_fd == -ESRCH) {
        ldr_fail(LARDER_E_OFFLINE, "the process that connected is gone");
        return -ESRCH;
    }
    *peer = (ldr_peer_t){
        .uid = credentials.uid,
        .pid = credentials.pid,
        .pid_fd = pid_fd >= 0 ? pid_fd : -1,
    };
    return 0;
}

/* ---- descriptors ---- */

void ldr_socket_bound(int fd)
{
    int bytes = BOUND_BYTES;

    (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
}

typedef union ldr_control {
    struct cmsghdr align;
    char data[CMSG_SPACE(sizeof(int) * LDR_FDS_MAX)];
} ldr_control_t;

int ldr_send_fds(int fd, const void *data, size_t bytes, const int *fds,
                 unsigned fd_count)
{
    struct iovec iov = {(void *)(uintptr_t)data, bytes};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    ldr_control_t control;
    ssize_t sent;

    if (bytes == 0 || bytes > FDS_MESSAGE_MAX || fd_count > LDR_FDS_MAX) {
        return -EMSGSIZE;
    }
    if (fd_count > 0) {
        memset(&control, 0, sizeof(control));
        msg.msg_control = control.data;
        msg.msg_controllen = CMSG_SPACE(sizeof(int) * fd_count);
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * fd_count);
        memcpy(CMSG_DATA(c), fds, sizeof(int) * fd_count);
    }
    do {
        sent = sendmsg(fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (sent < 0 && errno == EINTR);
    if (sent < 0) {
        return -errno;
    }
    return (size_t)sent == bytes ? 0 : -EPROTO; /* cannot be, see above */
}

/* How many came; all of them lie in fds, which has room for LDR_FDS_MAX. */
static unsigned take_fds(struct msghdr *msg, int *fds)
{
    unsigned count = 0;

    for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c != NULL;
         c = CMSG_NXTHDR(msg, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
            if (count < LDR_FDS_MAX) {
                fds[count++] = fd;
            } else {
                close(fd); /* the buffer is too small for this */
            }
        }
    }
    return count;
}

ssize_t ldr_recv_fds(int fd, void *data, size_t bytes, int *fds,
                     unsigned *fd_count_p)
{
    ldr_control_t control;
    struct iovec iov = {data, bytes};
    struct msghdr msg = {
        .msg_iov = &iov,
        .msg_iovlen = 1,
        .msg_control = control.data,
        .msg_controllen = sizeof(control.data),
    };
    ssize_t got;

    *fd_count_p = 0;
    if (bytes == 0) {
        return -EINVAL;
    }
    do {
        got = recvmsg(fd, &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    } while (got < 0 && errno == EINTR);
    if (got < 0) {
        return errno == ECONNRESET ? -EPIPE : -errno;
    }
    unsigned count = take_fds(&msg, fds);
    if ((msg.msg_flags & MSG_CTRUNC) != 0 || got == 0) {
        while (count > 0) {
            close(fds[--count]);
        }
        return got == 0 ? -EPIPE : -EPROTO;
    }
    *fd_count_p = count;
    return got;
}
