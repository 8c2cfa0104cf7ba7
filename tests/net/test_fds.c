/*
 * Unix sockets: descriptors that travel with bytes, and who is at the other
 * end.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "base/log.h"
#include "net/socket.h"
#include "net/socket_rig.h"
#include "support/real.h"

static int fd_count(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;

    assert_non_null(d);
    while (readdir(d) != NULL) {
        n++;
    }
    closedir(d);
    return n;
}

/* ---- descriptors ---- */

static void pair(int fds[2])
{
    assert_int_equal(
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds),
        0);
}

static void test_fds(void **s)
{
    int ends[2], fds[LDR_FDS_MAX], memory = memfd_create("x", MFD_CLOEXEC);
    int bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), before = fd_count();
    unsigned count = 99;
    uint64_t one = 1;
    char data[64];

    (void)s;
    assert_true(memory >= 0 && bell >= 0);
    assert_int_equal(write(memory, "shared", 6), 6);
    pair(ends);
    assert_int_equal(ldr_recv_fds(ends[1], data, sizeof(data), fds, &count),
                     -EAGAIN);
    assert_int_equal(count, 0);
    assert_int_equal(
        ldr_send_fds(ends[0], "hello", 5, (int[]){memory, bell}, 2), 0);
    assert_int_equal(ldr_recv_fds(ends[1], data, sizeof(data), fds, &count), 5);
    assert_memory_equal(data, "hello", 5);
    assert_int_equal(count, 2);
    assert_int_equal(pread(fds[0], data, 6, 0), 6);
    assert_memory_equal(data, "shared", 6);
    assert_int_equal(write(fds[1], &one, sizeof(one)), sizeof(one));
    assert_int_equal(read(bell, &one, sizeof(one)), sizeof(one));
    assert_true((fcntl(fds[0], F_GETFD) & FD_CLOEXEC) != 0);
    close(fds[0]);
    close(fds[1]);

    /* None, and as many as may be. */
    assert_int_equal(ldr_send_fds(ends[0], "x", 1, NULL, 0), 0);
    assert_int_equal(ldr_recv_fds(ends[1], data, sizeof(data), fds, &count), 1);
    assert_int_equal(count, 0);
    int many[LDR_FDS_MAX + 1] = {memory, memory, bell, bell, bell};
    assert_int_equal(ldr_send_fds(ends[0], "y", 1, many, LDR_FDS_MAX), 0);
    assert_int_equal(ldr_send_fds(ends[0], "y", 1, many, LDR_FDS_MAX + 1),
                     -EMSGSIZE);
    assert_int_equal(ldr_send_fds(ends[0], data, 0, many, 1), -EMSGSIZE);
    assert_int_equal(ldr_recv_fds(ends[1], data, sizeof(data), fds, &count), 1);
    assert_int_equal(count, LDR_FDS_MAX);
    while (count > 0) {
        close(fds[--count]);
    }

    /* The peer is gone: no signal, and an end. */
    close(ends[0]);
    assert_int_equal(ldr_recv_fds(ends[1], data, sizeof(data), fds, &count),
                     -EPIPE);
    assert_int_equal(ldr_send_fds(ends[1], "z", 1, &memory, 1), -EPIPE);
    close(ends[1]);
    assert_int_equal(fd_count(), before);
    close(memory);
    close(bell);
}

/* Bytes before may come along, bytes after never do. */
static void test_fds_in_order(void **s)
{
    int ends[2], fds[LDR_FDS_MAX];
    unsigned count, seen = 0;
    char data[64], all[16] = "";
    size_t have = 0;

    (void)s;
    pair(ends);
    assert_int_equal(ldr_send_fds(ends[0], "aa", 2, NULL, 0), 0);
    assert_int_equal(ldr_send_fds(ends[0], "BB", 2, (int[]){ends[0]}, 1), 0);
    assert_int_equal(ldr_send_fds(ends[0], "cc", 2, NULL, 0), 0);
    assert_int_equal(ldr_send_fds(ends[0], "DD", 2, (int[]){ends[0]}, 1), 0);
    while (have < 8) {
        ssize_t n = ldr_recv_fds(ends[1], data, sizeof(data), fds, &count);
        assert_true(n > 0);
        memcpy(all + have, data, (size_t)n);
        have += (size_t)n;
        if (count > 0) {
            assert_int_equal(count, 1);
            assert_int_equal(have, seen == 0 ? 4 : 8);
            close(fds[0]);
            seen++;
        }
    }
    assert_int_equal(seen, 2);
    assert_memory_equal(all, "aaBBccDD", 8);
    close(ends[0]);
    close(ends[1]);
}

/* Whoever sends more than a message may have gives none away. */
static void test_fds_too_many(void **s)
{
    enum { MANY = 100 };
    int ends[2], fds[LDR_FDS_MAX], many[MANY], before;
    char control[CMSG_SPACE(sizeof(many))] = {0}, data[8];
    struct iovec iov = {"x", 1};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control,
                         .msg_controllen = sizeof(control)};
    struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
    unsigned count = 99;

    (void)s;
    pair(ends);
    for (int i = 0; i < MANY; i++) {
        many[i] = ends[0];
    }
    before = fd_count();
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(many));
    memcpy(CMSG_DATA(c), many, sizeof(many));
    assert_int_equal(sendmsg(ends[0], &msg, 0), 1);
    assert_int_equal(ldr_recv_fds(ends[1], data, sizeof(data), fds, &count),
                     -EPROTO);
    assert_int_equal(count, 0);
    assert_int_equal(fd_count(), before);
    close(ends[0]);
    close(ends[1]);
}

/* When there is no room, nothing of the message is sent. */
static void whole(bool bound, int at_most)
{
    enum { BYTES = 3000 };
    int ends[2], fds[LDR_FDS_MAX], sent = 0, got = 0, error;
    uint8_t *message = malloc(BYTES);
    size_t have = 0;
    unsigned count;

    assert_non_null(message);
    pair(ends);
    if (bound) {
        ldr_socket_bound(ends[0]);
    }
    while ((error = ldr_send_fds(ends[0], message, BYTES, &ends[0], 1)) == 0) {
        sent++;
    }
    /* Room, or the number of descriptors under way. */
    assert_true(error == -EAGAIN || error == -ETOOMANYREFS);
    assert_in_range(sent, 1, at_most);
    for (;;) {
        ssize_t n = ldr_recv_fds(ends[1], message, BYTES, fds, &count);
        if (n == -EAGAIN) {
            break;
        }
        assert_true(n > 0);
        have += (size_t)n;
        got += (int)count;
        while (count > 0) {
            close(fds[--count]);
        }
    }
    assert_int_equal(have, (size_t)sent * BYTES);
    assert_int_equal(got, sent);
    free(message);
    close(ends[0]);
    close(ends[1]);
}

static void test_fds_whole(void **s)
{
    (void)s;
    whole(false, INT32_MAX);
    whole(true, 4);
}

/* Who does not read has few of them under way, however small the messages. */
static void test_fds_bound(void **s)
{
    int ends[2], sent = 0;

    (void)s;
    pair(ends);
    ldr_socket_bound(ends[0]);
    while (ldr_send_fds(ends[0], "x", 1, &ends[0], 1) == 0) {
        sent++;
    }
    assert_in_range(sent, 1, 16);
    close(ends[0]);
    close(ends[1]);
}

/* ---- the other end ---- */

/* A child that connects, says so, and lives until it is killed. With a heir:
 * a grandchild that keeps the socket open and ends when the pipe closes. */
static pid_t spawn(int ready[2], const int hold[2], bool heir)
{
    pid_t pid = fork();

    if (pid == 0) {
        char c;
        int fd = ldr_connect_unix(path, in_time());
        close(hold[1]);
        if (heir && fork() == 0) {
            (void)!write(ready[1], "g", 1);
            (void)!read(hold[0], &c, 1);
            _exit(0);
        }
        (void)!write(ready[1], fd >= 0 ? "c" : "?", 1);
        /* Not for ever, should the test die. */
        (void)!read(hold[0], &c, 1);
        _exit(0);
    }
    return pid;
}

static void test_peer(void **s)
{
    int ready[2], hold[2];
    ldr_peer_t peer, self;
    char c;

    (void)s;
    for (int heir = 0; heir <= 1; heir++) {
        int server = ldr_listen_unix(path, 0600);
        assert_true(server >= 0);
        assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
        assert_int_equal(pipe2(hold, O_CLOEXEC), 0);
        pid_t child = spawn(ready, hold, heir == 1);
        assert_true(child > 0);
        for (int i = 0; i <= heir; i++) {
            assert_int_equal(read(ready[0], &c, 1), 1);
            assert_true(c == 'c' || c == 'g');
        }
        assert_true(ldr_poll(server, POLLIN, in_time()) > 0);
        int session = ldr_accept(server);
        assert_true(session >= 0);
        assert_int_equal(ldr_peer_of(session, &peer), 0);
        assert_int_equal(peer.pid, child);
        assert_int_equal(peer.uid, getuid());
        assert_true(peer.pid_fd >= 0);
        assert_int_equal(ldr_poll(peer.pid_fd, POLLIN, 1), 0); /* it lives */

        assert_int_equal(kill(child, SIGKILL), 0);
        assert_true((ldr_poll(peer.pid_fd, POLLIN, in_time()) & POLLIN) != 0);
        assert_int_equal(waitpid(child, NULL, 0), child);
        /* The socket proves nothing while somebody else holds it. */
        assert_int_equal(recv(session, &c, 1, 0), heir ? -1 : 0);
        close(hold[1]);
        assert_true(ldr_poll(session, POLLIN, in_time()) > 0);
        assert_int_equal(recv(session, &c, 1, 0), 0);

        /* Asked only now: gone, or at once seen to be. */
        int error = ldr_peer_of(session, &self);
        if (error == 0) {
            assert_true(ldr_poll(self.pid_fd, POLLIN, 1) > 0);
            close(self.pid_fd);
        } else {
            assert_int_equal(error, -ESRCH);
        }
        close(peer.pid_fd);
        close(session);
        close(server);
        close(hold[0]);
        close(ready[0]);
        close(ready[1]);
    }
    unlink(path);
}

static void test_peer_is_self(void **s)
{
    int ends[2];
    ldr_peer_t peer;

    (void)s;
    pair(ends);
    assert_int_equal(ldr_peer_of(ends[0], &peer), 0);
    assert_int_equal(peer.pid, getpid());
    assert_int_equal(ldr_poll(peer.pid_fd, POLLIN, 1), 0);
    close(peer.pid_fd);
    close(ends[0]);
    close(ends[1]);
    assert_true(ldr_peer_of(-1, &peer) < 0);
    assert_true(ldr_fail_text()[0] != '\0');
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fds),
        cmocka_unit_test(test_fds_in_order),
        cmocka_unit_test(test_fds_too_many),
        cmocka_unit_test(test_fds_whole),
        cmocka_unit_test(test_fds_bound),
        cmocka_unit_test(test_peer),
        cmocka_unit_test(test_peer_is_self),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
