/*
 * How long a daemon that takes over waits for the one before it, and from whom
 * it takes. There is no daemon here, but a socket where a ping is answered and
 * nothing else; and nobody waits, for ppoll() is this file's, as is who is who.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>
#include <cmocka.h>

#include "server/session.h"
#include "support/real.h"

#define SOME_S                                                                 \
    120             /* beyond drain_ms: for the disks' last writes, and slack  \
                     */
#define LITTLE_S 60 /* that this test itself may have taken */
#define PEERS 8u

static time_t longest_s; /* that somebody wanted to wait for */
static int listener;
static int peers[PEERS];
static unsigned peer_count;
static bool is_alive;
static uid_t peer_uid, own_uid;

static void peers_close(void)
{
    while (peer_count > 0) {
        close(peers[--peer_count]);
    }
}

/* What a daemon would do meanwhile. */
static void answer_pings(void)
{
    uint8_t frame[LDR_FRAME_BYTES + 16];
    const ldr_frame_t reply = {.opcode = LDR_OP_ADMIN, .id = 1};
    int fd;

    while (peer_count < PEERS &&
           (fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        peers[peer_count++] = fd;
    }
    for (unsigned i = 0; i < peer_count; i++) {
        ssize_t n = recv(peers[i], frame, sizeof(frame), MSG_PEEK);

        if (n == LDR_FRAME_BYTES + 4 &&
            memcmp(frame + LDR_FRAME_BYTES, "ping", 4) == 0) {
            assert_int_equal(recv(peers[i], frame, (size_t)n, 0), n);
            ldr_frame_put(frame, &reply, true);
            assert_int_equal(send(peers[i], frame, LDR_FRAME_BYTES, 0),
                             LDR_FRAME_BYTES);
        }
    }
}

/* In the place of libc's: whoever would wait is told that the time is over. */
int ppoll(struct pollfd *fds, nfds_t count, const struct timespec *timeout,
          const sigset_t *mask)
{
    struct timespec none = {0, 0};

    (void)mask;
    if (is_alive) {
        answer_pings();
    }
    if (timeout != NULL && timeout->tv_sec > longest_s) {
        longest_s = timeout->tv_sec;
    }
    return (int)syscall(SYS_ppoll, fds, count, &none, NULL, 0);
}

uid_t geteuid(void)
{
    return own_uid;
}

int getsockopt(int fd, int level, int name, void *value, socklen_t *size)
{
    int st = (int)syscall(SYS_getsockopt, fd, level, name, value, size);

    if (st == 0 && level == SOL_SOCKET && name == SO_PEERCRED) {
        ((struct ucred *)value)->uid = peer_uid;
    }
    return st;
}

static int listen_at(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(listen(fd, PEERS), 0);
    return fd;
}

/* A server that would take over from whoever listens at its socket. */
static ldr_server_t *server_new(char dir[80])
{
    ldr_server_t *server = calloc(1, sizeof(*server));
    ldr_config_t *config = calloc(1, sizeof(*config));
    ldr_options_t *o = &config->options;

    server->config = config;
    server->clock = &ldr_clock_real;
    server->log.fn = real_log_none;
    ldr_options_default(o);
    snprintf(o->admin, sizeof(o->admin), "none");
    assert_true(real_dir_make(dir, 80, "takeover"));
    snprintf(o->socket, sizeof(o->socket), "%s/socket", dir);
    listener = listen_at(o->socket);
    return server;
}

static void server_free(ldr_server_t *server, const char *dir)
{
    peers_close();
    close(listener);
    real_dir_remove(dir);
    free(server->config);
    free(server);
}

/* The one before has drain_ms to write down what it has. Who gave up on it
 * sooner would leave no daemon at all: it ends in any case. */
static void test_waits_for_drain(void **state)
{
    static const uint64_t drain_s[] = {0, 10, 3600};
    char dir[80];
    ldr_server_t *server = server_new(dir);

    (void)state;
    is_alive = true;
    for (size_t i = 0; i < sizeof(drain_s) / sizeof(drain_s[0]); i++) {
        server->config->options.drain_ms = drain_s[i] * 1000;
        longest_s = 0;
        assert_int_equal(ldr_server_take_over(server), LARDER_E_OFFLINE);
        assert_in_range(longest_s, drain_s[i] + SOME_S - LITTLE_S,
                        drain_s[i] + SOME_S);
        assert_false(server->took_over);
        peers_close();
    }
    /* One that does not even answer a ping is not waited for. */
    is_alive = false;
    longest_s = 0;
    assert_int_equal(ldr_server_take_over(server), LARDER_E_OFFLINE);
    assert_in_range(longest_s, 1, 20);
    server_free(server, dir);
}

/* What comes is used as it is: from this user's daemon, or root's. Root takes
 * from all. */
static void test_whose_daemon(void **state)
{
    static const struct {
        uid_t old, own;
        larder_status_t st; /* E_OFFLINE: it was asked */
    } cases[] = {
        {1000, 1000, LARDER_E_OFFLINE},
        {0, 1000, LARDER_E_OFFLINE},
        {1000, 0, LARDER_E_OFFLINE},
        {1001, 1000, LARDER_E_DENIED},
    };
    char dir[80];
    ldr_server_t *server = server_new(dir);

    (void)state;
    is_alive = true;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        peer_uid = cases[i].old;
        own_uid = cases[i].own;
        assert_int_equal(ldr_server_take_over(server), cases[i].st);
        peers_close();
    }
    assert_non_null(strstr(ldr_fail_text(), "run by uid 1001"));
    peer_uid = own_uid = 0;
    server_free(server, dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_waits_for_drain),
        cmocka_unit_test(test_whose_daemon),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
