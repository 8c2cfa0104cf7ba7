/*
 * The lobby: a newcomer finds room, and who gives way for it is the oldest of
 * its own origin, or of the one that has most.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/lobby.h"

#define MAX 8u
#define ORIGIN_MAX 4u

typedef struct one {
    int mine, theirs;
    ldr_stranger_t *stranger;
} one_t;

static ldr_origin_t origin(uint64_t value)
{
    return (ldr_origin_t){value, 7};
}

static ldr_lobby_found_t enter(ldr_lobby_t *lobby, uint64_t from, one_t *one)
{
    int fds[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds),
                     0);
    one->mine = fds[0];
    one->theirs = fds[1];
    ldr_lobby_found_t found =
        ldr_lobby_enter(lobby, origin(from), &one->stranger);
    if (one->stranger != NULL) {
        assert_true(ldr_lobby_listen(lobby, one->stranger, one->mine));
    }
    return found;
}

/* Whether it had to give way: both ends of its socket say so. */
static bool is_out(const one_t *one)
{
    char byte;

    return recv(one->mine, &byte, 1, 0) == 0 &&
           recv(one->theirs, &byte, 1, 0) == 0;
}

static void leave(ldr_lobby_t *lobby, one_t *one)
{
    ldr_lobby_leave(lobby, one->stranger);
    close(one->mine);
    close(one->theirs);
}

/* The fifth of an origin takes the place of the first, and so on; whoever has
 * left does not count. */
static void test_one_origin(void **state)
{
    ldr_lobby_t *lobby = ldr_lobby_create(MAX, ORIGIN_MAX);
    one_t ones[10], other;

    (void)state;
    for (unsigned i = 0; i < 10; i++) {
        assert_int_equal(enter(lobby, 1, &ones[i]),
                         i < ORIGIN_MAX ? LDR_LOBBY_ROOM : LDR_LOBBY_GAVE_WAY);
        for (unsigned k = 0; k <= i; k++) {
            assert_int_equal(is_out(&ones[k]), k + ORIGIN_MAX <= i);
        }
    }
    leave(lobby, &ones[9]);
    leave(lobby, &ones[7]);
    assert_int_equal(enter(lobby, 1, &ones[9]), LDR_LOBBY_ROOM);
    assert_int_equal(enter(lobby, 1, &ones[7]), LDR_LOBBY_ROOM);
    assert_int_equal(enter(lobby, 2, &other), LDR_LOBBY_ROOM);
    assert_false(is_out(&ones[6]));
    leave(lobby, &other);
    for (unsigned i = 0; i < 10; i++) {
        leave(lobby, &ones[i]);
    }
    ldr_lobby_destroy(lobby);
}

/* Where all is full the origin that has most gives one away. */
static void test_many_origins(void **state)
{
    ldr_lobby_t *lobby = ldr_lobby_create(MAX, ORIGIN_MAX);
    const uint64_t from[MAX] = {1, 2, 2, 2, 3, 3, 1, 4};
    one_t ones[MAX], more[3];

    (void)state;
    for (unsigned i = 0; i < MAX; i++) {
        assert_int_equal(enter(lobby, from[i], &ones[i]), LDR_LOBBY_ROOM);
    }
    assert_true(ldr_lobby_check(lobby));
    assert_int_equal(enter(lobby, 5, &more[0]), LDR_LOBBY_GAVE_WAY);
    for (unsigned i = 0; i < MAX; i++) {
        assert_int_equal(is_out(&ones[i]), i == 1);
    }
    /* 4 had one, and may have four: it is not the one that has most. */
    assert_int_equal(enter(lobby, 4, &more[1]), LDR_LOBBY_GAVE_WAY);
    assert_int_equal(enter(lobby, 4, &more[2]), LDR_LOBBY_GAVE_WAY);
    assert_false(is_out(&ones[7]));
    assert_false(is_out(&more[0]));
    for (unsigned i = 0; i < MAX; i++) {
        leave(lobby, &ones[i]);
    }
    for (unsigned i = 0; i < 3; i++) {
        leave(lobby, &more[i]);
    }
    ldr_lobby_destroy(lobby);
}

/* Those that gave way and did not leave are bounded, too; and one that had to
 * before its owner had its socket is told so. */
static void test_leaving(void **state)
{
    ldr_lobby_t *lobby = ldr_lobby_create(MAX, 1);
    ldr_stranger_t *strangers[MAX + 1], *none;

    (void)state;
    for (unsigned i = 0; i <= MAX; i++) {
        assert_int_equal(ldr_lobby_enter(lobby, origin(1), &strangers[i]),
                         i == 0 ? LDR_LOBBY_ROOM : LDR_LOBBY_GAVE_WAY);
    }
    assert_true(ldr_lobby_behind(lobby));
    assert_int_equal(ldr_lobby_enter(lobby, origin(1), &none), LDR_LOBBY_FULL);
    assert_null(none);
    assert_false(ldr_lobby_listen(lobby, strangers[0], -1));
    assert_true(ldr_lobby_listen(lobby, strangers[MAX], -1));
    ldr_lobby_leave(lobby, strangers[0]);
    assert_false(ldr_lobby_behind(lobby));
    assert_int_equal(ldr_lobby_enter(lobby, origin(1), &strangers[0]),
                     LDR_LOBBY_GAVE_WAY);
    for (unsigned i = 0; i <= MAX; i++) {
        ldr_lobby_leave(lobby, strangers[i]);
    }
    ldr_lobby_leave(lobby, NULL);
    ldr_lobby_destroy(lobby);
    ldr_lobby_destroy(NULL);
}

/* A socket that a client from this address is connected to. */
static ldr_origin_t origin_from(int family, const char *from)
{
    struct sockaddr_in6 six = {.sin6_family = AF_INET6};
    struct sockaddr_in four = {.sin_family = AF_INET};
    struct sockaddr *a = family == AF_INET6 ? (struct sockaddr *)(void *)&six
                                            : (struct sockaddr *)(void *)&four;
    socklen_t bytes = family == AF_INET6 ? sizeof(six) : sizeof(four);
    int server = socket(family, SOCK_STREAM, 0);
    int client = socket(family, SOCK_STREAM, 0);
    void *in =
        family == AF_INET6 ? (void *)&six.sin6_addr : (void *)&four.sin_addr;

    assert_int_equal(inet_pton(family, from, in), 1);
    assert_int_equal(bind(client, a, bytes), 0);
    if (strncmp(from, "::ffff:", 7) == 0) {
        inet_pton(AF_INET6, "::ffff:127.0.0.1", &six.sin6_addr);
    }
    assert_int_equal(bind(server, a, bytes), 0);
    assert_int_equal(listen(server, 1), 0);
    assert_int_equal(getsockname(server, a, &bytes), 0);
    assert_int_equal(connect(client, a, bytes), 0);
    int fd = accept(server, NULL, NULL);
    assert_true(fd >= 0);
    ldr_origin_t found = ldr_origin_of(fd);
    close(fd);
    close(client);
    close(server);
    return found;
}

static bool same(ldr_origin_t a, ldr_origin_t b)
{
    return a.value == b.value && a.kind == b.kind;
}

static void test_origins(void **state)
{
    int fds[2];

    (void)state;
    ldr_origin_t one = origin_from(AF_INET, "127.0.0.1");
    assert_true(same(one, origin_from(AF_INET, "127.0.0.1")));
    assert_false(same(one, origin_from(AF_INET, "127.0.0.2")));
    int six = socket(AF_INET6, SOCK_STREAM, 0);
    if (six >= 0) { /* where the machine has it */
        struct sockaddr_in6 a = {.sin6_family = AF_INET6,
                                 .sin6_addr = IN6ADDR_LOOPBACK_INIT};

        if (bind(six, (struct sockaddr *)(void *)&a, sizeof(a)) == 0) {
            assert_true(same(one, origin_from(AF_INET6, "::ffff:127.0.0.1")));
            assert_false(same(one, origin_from(AF_INET6, "::1")));
        }
        close(six);
    }
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    ldr_origin_t local = ldr_origin_of(fds[0]);
    assert_int_equal(local.value, getuid());
    assert_false(same(local, one));
    close(fds[0]);
    close(fds[1]);
    assert_false(same(ldr_origin_of(-1), local));
}

/* ---- from several threads ---- */

#define THREADS 4u
#define ROUNDS 2000u

static void *come_and_go(void *arg)
{
    ldr_lobby_t *lobby = arg;
    one_t ones[6] = {{0}};

    for (unsigned i = 0; i < ROUNDS; i++) {
        one_t *one = &ones[i % 6];

        if (one->stranger != NULL) {
            leave(lobby, one);
        }
        int fds[2];
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0) {
            abort();
        }
        one->mine = fds[0];
        one->theirs = fds[1];
        if (ldr_lobby_enter(lobby, origin(i % 3), &one->stranger) ==
            LDR_LOBBY_FULL) {
            close(fds[0]);
            close(fds[1]);
        } else {
            ldr_lobby_listen(lobby, one->stranger, one->mine);
        }
        if (i % 16 == 0 && !ldr_lobby_check(lobby)) {
            abort();
        }
    }
    for (unsigned i = 0; i < 6; i++) {
        if (ones[i].stranger != NULL) {
            leave(lobby, &ones[i]);
        }
    }
    return NULL;
}

static void test_threads(void **state)
{
    ldr_lobby_t *lobby = ldr_lobby_create(MAX, ORIGIN_MAX);
    pthread_t threads[THREADS];
    one_t ones[MAX];

    (void)state;
    for (unsigned i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, come_and_go, lobby),
                         0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    /* All have left: there is room for all. */
    for (unsigned i = 0; i < MAX; i++) {
        assert_int_equal(enter(lobby, i, &ones[i]), LDR_LOBBY_ROOM);
    }
    for (unsigned i = 0; i < MAX; i++) {
        leave(lobby, &ones[i]);
    }
    ldr_lobby_destroy(lobby);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_origin), cmocka_unit_test(test_many_origins),
        cmocka_unit_test(test_leaving),    cmocka_unit_test(test_origins),
        cmocka_unit_test(test_threads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
