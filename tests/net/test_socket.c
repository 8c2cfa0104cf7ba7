/*
 * Sockets: addresses, stale and live sockets, deadlines, plain streams.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "base/log.h"
#include "base/thread.h"
#include "net/transport.h"
#include "net/socket_rig.h"
#include "support/real.h"

#define SLOW_NS 50000000

static uint64_t in_ms(uint64_t ms)
{
    return ldr_now_ns(&ldr_clock_real) + ms * 1000000u;
}

/* ---- addresses ---- */

static void test_addresses(void **s)
{
    static const struct {
        const char *text, *host, *port; /* host NULL: refused */
    } table[] = {
        {"localhost:1", "localhost", "1"},
        {"127.0.0.1:9700", "127.0.0.1", "9700"},
        {"a-b_c.example:65535", "a-b_c.example", "65535"},
        {"[::1]:80", "::1", "80"},
        {"[::]:0", "::", "0"},
        {"[fe80::1%eth0]:80", "fe80::1%eth0", "80"},
        {"", NULL, NULL},
        {":", NULL, NULL},
        {":80", NULL, NULL},
        {"host", NULL, NULL},
        {"host:", NULL, NULL},
        {"host:80 ", NULL, NULL},
        {"host:+80", NULL, NULL},
        {"host:-1", NULL, NULL},
        {"host:65536", NULL, NULL},
        {"host:000080", NULL, NULL},
        {"ho st:80", NULL, NULL},
        {"host/x:80", NULL, NULL},
        {"::1:80", NULL, NULL},
        {"[::1]", NULL, NULL},
        {"[::1]80", NULL, NULL},
        {"[::1:80", NULL, NULL},
        {"[]:80", NULL, NULL},
        {"[:80", NULL, NULL},
        {"[127.0.0.1]:80", NULL, NULL},
        {"[::g]:80", NULL, NULL},
        {"[fe80::1%]:80", NULL, NULL},
    };
    char long_host[LDR_HOST_MAX + 8];
    ldr_address_t a;

    (void)s;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        size_t length = strlen(table[i].text);
        char *exact = malloc(length + 1);
        assert_non_null(exact);
        memcpy(exact, table[i].text, length);
        bool ok = ldr_address_parse(exact, length, &a);
        free(exact);
        if (ok != (table[i].host != NULL)) {
            fail_msg("%s", table[i].text);
        }
        if (ok) {
            assert_string_equal(a.host, table[i].host);
            assert_string_equal(a.port, table[i].port);
        }
    }
    assert_false(ldr_address_parse("a\0b:80", 6, &a));
    memset(long_host, 'x', sizeof(long_host));
    memcpy(long_host + LDR_HOST_MAX - 1, ":80", 4);
    assert_true(ldr_address_parse(long_host, LDR_HOST_MAX + 2, &a));
    long_host[LDR_HOST_MAX - 1] = 'x';
    memcpy(long_host + LDR_HOST_MAX, ":80", 4);
    assert_false(ldr_address_parse(long_host, LDR_HOST_MAX + 3, &a));
}

static void test_loopback(void **s)
{
    static const struct {
        const char *host;
        bool loopback;
    } table[] = {
        {"127.0.0.1", true},
        {"127.200.3.4", true},
        {"::1", true},
        {"localhost", true},
        {"0.0.0.0", false},
        {"::", false},
        {"10.0.0.1", false},
        {"128.0.0.1", false},
        {"192.168.7.7", false},
        {"fe80::1", false},
        {"::ffff:127.0.0.1", true},
        {"::ffff:10.0.0.1", false},
    };

    (void)s;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        ldr_address_t a = {.port = "80"};
        snprintf(a.host, sizeof(a.host), "%s", table[i].host);
        if (ldr_address_loopback(&a) != table[i].loopback) {
            fail_msg("%s", table[i].host);
        }
    }
}

/* ---- unix sockets ---- */

static void test_unix_listen(void **s)
{
    struct stat st;
    mode_t umask_before = umask(0077);

    (void)s;
    int server = ldr_listen_unix(path, 0666);
    assert_true(server >= 0);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0666); /* whatever the umask */
    assert_int_equal(ldr_accept(server), -EAGAIN);

    int client = ldr_connect_unix(path, in_time());
    assert_true(client >= 0);
    int session = ldr_accept(server);
    assert_true(session >= 0);
    assert_true((fcntl(client, F_GETFL) & O_NONBLOCK) != 0);
    assert_true((fcntl(session, F_GETFL) & O_NONBLOCK) != 0);
    assert_true((fcntl(client, F_GETFD) & FD_CLOEXEC) != 0);
    assert_true((fcntl(session, F_GETFD) & FD_CLOEXEC) != 0);
    assert_true((fcntl(server, F_GETFD) & FD_CLOEXEC) != 0);

    /* Somebody listens: refused by name, and he stays. */
    assert_int_equal(ldr_listen_unix(path, 0600), -EADDRINUSE);
    assert_non_null(strstr(ldr_fail_text(), path));
    close(client);
    close(session);
    client = ldr_connect_unix(path, in_time());
    assert_true(client >= 0);
    close(client);
    close(server);

    /* Nobody does any more. */
    assert_int_equal(ldr_connect_unix(path, in_time()), -ECONNREFUSED);
    assert_non_null(strstr(ldr_fail_text(), path));
    server = ldr_listen_unix(path, 0600);
    assert_true(server >= 0);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    client = ldr_connect_unix(path, in_time());
    assert_true(client >= 0);
    close(client);
    close(server);
    unlink(path);
    assert_int_equal(ldr_connect_unix(path, in_time()), -ENOENT);
    umask(umask_before);
}

static void test_unix_refusals(void **s)
{
    char text[400];
    struct stat st;
    FILE *f = fopen(path, "w");

    (void)s;
    assert_non_null(f);
    fputs("not a socket", f);
    fclose(f);
    assert_int_equal(ldr_listen_unix(path, 0600), -ENOTSOCK);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, 12); /* untouched */
    unlink(path);

    snprintf(text, sizeof(text), "%s/%0108d", dir, 0);
    assert_int_equal(ldr_listen_unix(text, 0600), -ENAMETOOLONG);
    assert_int_equal(ldr_connect_unix(text, in_time()), -ENAMETOOLONG);
    assert_int_equal(ldr_listen_unix("", 0600), -EINVAL);
    snprintf(text, sizeof(text), "%s/none/s", dir);
    assert_int_equal(ldr_listen_unix(text, 0600), -ENOENT);
    assert_non_null(strstr(ldr_fail_text(), text));

    /* No lock is left behind, whatever came of it. */
    snprintf(text, sizeof(text), "%s.lock", path);
    assert_int_equal(access(text, F_OK), -1);
}

/* A socket whose queue is full lives, and connecting to it ends in time. */
static void test_unix_full_queue(void **s)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int clients[16], n = 0;
    int server = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    (void)s;
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    assert_int_equal(bind(server, (void *)&address, sizeof(address)), 0);
    assert_int_equal(listen(server, 1), 0);
    uint64_t until = in_time();
    for (;;) {
        uint64_t deadline = in_ms(50);
        int fd = ldr_connect_unix(path, deadline);
        if (fd < 0) {
            assert_int_equal(fd, -ETIMEDOUT);
            assert_true(ldr_now_ns(&ldr_clock_real) >= deadline);
            break;
        }
        clients[n++] = fd;
        assert_true(n < 16 && ldr_now_ns(&ldr_clock_real) < until);
    }
    assert_int_equal(ldr_connect_unix(path, 1), -ETIMEDOUT); /* long past */
    assert_int_equal(ldr_listen_unix(path, 0600), -EADDRINUSE);
    while (n > 0) {
        close(clients[--n]);
    }
    close(server);
    unlink(path);
}

typedef struct racer {
    pthread_barrier_t *start;
    int fd;
} racer_t;

static void *race_main(void *arg)
{
    racer_t *racer = arg;

    pthread_barrier_wait(racer->start);
    racer->fd = ldr_listen_unix(path, 0600);
    return NULL;
}

/* Several daemons find the same stale socket at once: one gets it, and it is
 * the one that clients then reach. */
static void test_unix_race(void **s)
{
    enum { RACERS = 4 };
    racer_t racers[RACERS];
    pthread_t threads[RACERS];
    pthread_barrier_t start;

    (void)s;
    pthread_barrier_init(&start, NULL, RACERS);
    for (int round = 0; round < 50; round++) {
        int winner = -1;
        for (int i = 0; i < RACERS; i++) {
            racers[i].start = &start;
            assert_true(
                ldr_thread_start(&threads[i], "race", race_main, &racers[i]));
        }
        for (int i = 0; i < RACERS; i++) {
            pthread_join(threads[i], NULL);
            if (racers[i].fd >= 0) {
                assert_int_equal(winner, -1);
                winner = racers[i].fd;
            } else {
                assert_int_equal(racers[i].fd, -EADDRINUSE);
            }
        }
        assert_true(winner >= 0);
        int client = ldr_connect_unix(path, in_time());
        assert_true(client >= 0);
        int session = ldr_accept(winner);
        assert_true(session >= 0);
        close(session);
        close(client);
        close(winner); /* leaves a stale one for the next round */
    }
    pthread_barrier_destroy(&start);
    unlink(path);
}

/* ---- tcp ---- */

static void port_of(int fd, ldr_address_t *a)
{
    struct sockaddr_storage address;
    socklen_t size = sizeof(address);

    assert_int_equal(getsockname(fd, (void *)&address, &size), 0);
    uint16_t port = address.ss_family == AF_INET
                        ? ((struct sockaddr_in *)&address)->sin_port
                        : ((struct sockaddr_in6 *)&address)->sin6_port;
    snprintf(a->port, sizeof(a->port), "%u", ntohs(port));
}

static int number_option(int fd, int level, int name)
{
    int value = -1;
    socklen_t size = sizeof(value);

    assert_int_equal(getsockopt(fd, level, name, &value, &size), 0);
    return value;
}

static void check_tuned(int fd, const char *congestion)
{
    char name[32] = "";
    socklen_t size = sizeof(name) - 1;

    assert_int_equal(number_option(fd, IPPROTO_TCP, TCP_NODELAY), 1);
    assert_int_equal(number_option(fd, SOL_SOCKET, SO_KEEPALIVE), 1);
    assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &size),
                     0);
    assert_string_equal(name, congestion);
    assert_true((fcntl(fd, F_GETFL) & O_NONBLOCK) != 0);
    assert_true((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
}

static void test_tcp(void **s)
{
    static const char *hosts[] = {"127.0.0.1", "localhost", "::1"};
    /* Every kernel has reno. */
    const char *congestion = "reno";

    (void)s;
    for (size_t i = 0; i < 3; i++) {
        ldr_address_t a = {.port = "0"};
        snprintf(a.host, sizeof(a.host), "%s", hosts[i]);
        int server = ldr_listen_tcp(&a, congestion);
        if (i == 2 && (server == -EAFNOSUPPORT || server == -EADDRNOTAVAIL ||
                       server == -ENXIO)) {
            printf("no IPv6 here\n");
            continue;
        }
        assert_true(server >= 0);
        port_of(server, &a);
        assert_int_equal(ldr_accept(server), -EAGAIN);
        int client = ldr_connect_tcp(&a, congestion, in_time());
        assert_true(client >= 0);
        assert_true(ldr_poll(server, POLLIN, in_time()) > 0);
        int session = ldr_accept(server);
        assert_true(session >= 0);
        check_tuned(client, congestion);
        check_tuned(session, congestion); /* inherited */

        assert_int_equal(ldr_listen_tcp(&a, congestion), -EADDRINUSE);
        assert_non_null(strstr(ldr_fail_text(), a.port));
        close(client);
        close(session);
        close(server);
        assert_int_equal(ldr_connect_tcp(&a, "", in_time()), -ECONNREFUSED);
        assert_non_null(strstr(ldr_fail_text(), a.port));
    }
}

/* A queue that is full swallows who connects: it ends by its deadline. */
static void test_tcp_deadline(void **s)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    ldr_address_t a = {.host = "127.0.0.1"};
    int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int clients[16], n = 0;

    (void)s;
    assert_int_equal(bind(server, (void *)&address, sizeof(address)), 0);
    assert_int_equal(listen(server, 0), 0);
    port_of(server, &a);
    for (;;) {
        uint64_t deadline = in_ms(100);
        int fd = ldr_connect_tcp(&a, NULL, deadline);
        if (fd < 0) {
            assert_int_equal(fd, -ETIMEDOUT);
            assert_true(ldr_now_ns(&ldr_clock_real) >= deadline);
            break;
        }
        clients[n++] = fd;
        assert_true(n < 16);
    }
    while (n > 0) {
        close(clients[--n]);
    }
    close(server);
}

/* The resolver of this program: one name takes its time. */
int getaddrinfo(const char *host, const char *port,
                const struct addrinfo *hints, struct addrinfo **list)
{
    static int (*real)(const char *, const char *, const struct addrinfo *,
                       struct addrinfo **);

    if (real == NULL) {
        *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    }
    if (strcmp(host, "slow.test") == 0) {
        const struct timespec nap = {0, SLOW_NS};

        nanosleep(&nap, NULL);
        host = "127.0.0.1";
    }
    return real(host, port, hints, list);
}

/* Time that the resolver takes is not the connection's: a server that does not
 * answer at once is waited for, and what comes after has its time as well. */
static void test_slow_resolver(void **s)
{
    ldr_address_t any = {.host = "127.0.0.1", .port = "0"};
    int server = ldr_listen_tcp(&any, "");
    ldr_address_t slow = {.host = "slow.test"};
    uint64_t first = in_ms(20), deadline = first;

    (void)s;
    assert_true(server >= 0);
    port_of(server, &slow);
    int fd = ldr_connect_tcp_wanted(&slow, "", &deadline, NULL);
    assert_true(fd >= 0);
    assert_true(deadline >= first + SLOW_NS);
    close(fd);
    deadline = UINT64_MAX;
    fd = ldr_connect_tcp_wanted(&slow, "", &deadline, NULL);
    assert_true(fd >= 0 && deadline == UINT64_MAX);
    close(fd);
    close(server);
}

/* ---- plain streams ---- */

static void pair(int fds[2])
{
    assert_int_equal(
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds),
        0);
}

static void test_plain_stream(void **s)
{
    enum { PIECES = 3 };
    char big[200000], a[3], b[5], c[100];
    ldr_stream_t left, right;
    int ends[2];
    size_t sent = 0, got = 0;

    (void)s;
    pair(ends);
    assert_int_equal(ldr_stream_init(&left, ends[0], NULL, false, NULL),
                     LARDER_OK);
    assert_int_equal(ldr_stream_init(&right, ends[1], NULL, true, NULL),
                     LARDER_OK);
    assert_int_equal(ldr_stream_handshake(&left), 0);
    ldr_stream_peer_name(&left, c, sizeof(c));
    assert_string_equal(c, "");

    struct iovec in[PIECES] = {{a, 3}, {b, 5}, {c, 100}};
    assert_int_equal(ldr_stream_read(&right, in, PIECES), -EAGAIN);
    assert_false(right.wants_write);
    struct iovec out[PIECES] = {{"one", 3}, {NULL, 0}, {"twothree", 8}};
    assert_int_equal(ldr_stream_write(&left, out, PIECES), 11);
    assert_int_equal(ldr_stream_read(&right, in, PIECES), 11);
    assert_memory_equal(a, "one", 3);
    assert_memory_equal(b, "twoth", 5);
    assert_memory_equal(c, "ree", 3);
    assert_int_equal(ldr_stream_write(&left, out + 1, 1), -EINVAL);

    /* Until it is full, and out again. */
    memset(big, 'x', sizeof(big));
    struct iovec all = {big, sizeof(big)};
    ssize_t n;
    while ((n = ldr_stream_write(&left, &all, 1)) > 0) {
        sent += (size_t)n;
    }
    assert_int_equal(n, -EAGAIN);
    assert_true(left.wants_write);
    while ((n = ldr_stream_read(&right, &all, 1)) > 0) {
        got += (size_t)n;
    }
    assert_int_equal(n, -EAGAIN);
    assert_int_equal(got, sent);

    ldr_stream_close(&right);
    ldr_stream_close(&right);
    assert_int_equal(ldr_stream_read(&left, &all, 1), -EPIPE);
    assert_int_equal(ldr_stream_write(&left, out, 1), -EPIPE); /* no signal */
    ldr_stream_close(&left);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_addresses),
        cmocka_unit_test(test_loopback),
        cmocka_unit_test(test_unix_listen),
        cmocka_unit_test(test_unix_refusals),
        cmocka_unit_test(test_unix_full_queue),
        cmocka_unit_test(test_unix_race),
        cmocka_unit_test(test_tcp),
        cmocka_unit_test(test_tcp_deadline),
        cmocka_unit_test(test_slow_resolver),
        cmocka_unit_test(test_plain_stream),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
