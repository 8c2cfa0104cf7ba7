/*
 * Turns: a tenant that has used its own is not read from until it has paid for
 * it, by socket or by ring, and others are.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mem.h"
#include "server/session.h"

#define SESSIONS 4u /* three of a, one of b */
#define OWED 10     /* turns */

typedef struct rig {
    ldr_server_t *server;
    ldr_server_loop_t home;
    ldr_server_tenant_t tenants[2];
    ldr_session_t sessions[SESSIONS];
    int peers[SESSIONS];
} rig_t;

static void session_open(rig_t *rig, unsigned i)
{
    ldr_session_t *s = &rig->sessions[i];
    int fds[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds),
                     0);
    *s = (ldr_session_t){
        .server = rig->server,
        .home = &rig->home,
        .state = LDR_SESSION_OPEN,
        .local = true,
        .shaken = true,
        .tenant = &rig->tenants[i == SESSIONS - 1],
        .watch = {.fd = fds[0], .ready = ldr_session_readable},
        .buffer = ldr_alloc(LDR_IN_BYTES),
    };
    ldr_stream_init(&s->socket.stream, fds[0], NULL, true, NULL);
    s->socket.end = &s->socket.head;
    s->rings.end = &s->rings.head;
    s->bell.fd = -1;
    rig->peers[i] = fds[1];
    assert_true(ldr_loop_watch(&rig->home.loop, &s->watch, EPOLLIN));
}

static int setup(void **state)
{
    rig_t *rig = calloc(1, sizeof(*rig));

    rig->server = ldr_alloc(sizeof(*rig->server));
    rig->server->clock = &ldr_clock_real;
    rig->server->config = ldr_alloc(sizeof(*rig->server->config));
    rig->server->config->options.window = 1 << 20;
    rig->server->tenant_count = 2;
    assert_true(ldr_metrics_create(&ldr_clock_real, &rig->server->metrics));
    rig->tenants[1].index = 1;
    rig->home.server = rig->server;
    rig->home.reply = ldr_alloc(LDR_FRAME_BYTES + LDR_BODY_MAX);
    rig->home.in = ldr_alloc(LDR_FRAME_BYTES + LDR_BODY_MAX);
    rig->home.shares =
        ldr_alloc((LDR_SERVER_TENANTS_MAX + 1) * sizeof(ldr_share_t));
    rig->home.due_ns = UINT64_MAX;
    assert_int_equal(
        ldr_loop_init(&rig->home.loop, rig->server, NULL, &ldr_clock_real, 0),
        LARDER_OK);
    for (unsigned i = 0; i < SESSIONS; i++) {
        session_open(rig, i);
    }
    *state = rig;
    return 0;
}

static int teardown(void **state)
{
    rig_t *rig = *state;

    for (unsigned i = 0; i < SESSIONS; i++) {
        ldr_session_t *s = &rig->sessions[i];

        if (s->attached) {
            ldr_free(s->ring_map);
        }
        ldr_loop_unwatch(&rig->home.loop, &s->watch);
        close(s->watch.fd);
        close(rig->peers[i]);
        ldr_free(s->buffer);
    }
    ldr_requests_destroy(&rig->home);
    ldr_loop_destroy(&rig->home.loop);
    ldr_free(rig->home.reply);
    ldr_free(rig->home.in);
    ldr_free(rig->home.shares);
    ldr_metrics_destroy(rig->server->metrics);
    ldr_free(rig->server->config);
    ldr_free(rig->server);
    free(rig);
    return 0;
}

static size_t ping(uint8_t bytes[LDR_FRAME_BYTES], bool seal)
{
    ldr_frame_t frame = {.opcode = LDR_OP_PING, .arg = LARDER_FOREVER};

    ldr_frame_put(bytes, &frame, seal);
    return LDR_FRAME_BYTES;
}

static void ask(rig_t *rig, unsigned i)
{
    uint8_t bytes[LDR_FRAME_BYTES];
    size_t n = ping(bytes, true);

    assert_int_equal(send(rig->peers[i], bytes, n, MSG_NOSIGNAL), n);
}

/* Whether it got an answer since it was asked last. */
static bool answered(rig_t *rig, unsigned i)
{
    uint8_t bytes[LDR_FRAME_BYTES];

    return recv(rig->peers[i], bytes, sizeof(bytes), 0) == sizeof(bytes);
}

/* What the real clock has charged: a test may be stopped for a while. */
static void forgive(rig_t *rig, unsigned tenant)
{
    rig->home.shares[tenant].used_ns = 0;
}

/* a owes ten turns: in ten rounds it is not read from, b is. */
static void test_sockets(void **state)
{
    rig_t *rig = *state;
    int64_t turn = ldr_turn_left(&rig->sessions[0]);

    assert_true(turn > 0);
    ldr_turn_used(&rig->sessions[0], (uint64_t)(OWED * turn));
    assert_true(ldr_turn_left(&rig->sessions[1]) <= 0); /* all of a's */
    assert_true(ldr_turn_left(&rig->sessions[SESSIONS - 1]) == turn);
    for (unsigned i = 0; i < SESSIONS; i++) {
        ask(rig, i);
        ldr_session_readable(&rig->sessions[i].watch, EPOLLIN);
    }
    for (int round = 0; round < OWED; round++) {
        for (unsigned i = 0; i < SESSIONS - 1; i++) {
            assert_false(answered(rig, i));
            assert_int_equal(rig->sessions[i].watch.events, 0);
            /* However often somebody looks. */
            assert_true(ldr_session_read(&rig->sessions[i]));
        }
        assert_true(answered(rig, SESSIONS - 1));
        ask(rig, SESSIONS - 1);
        forgive(rig, 1);
        ldr_session_readable(&rig->sessions[SESSIONS - 1].watch, EPOLLIN);
        assert_true(ldr_turns_run(&rig->home) || round == OWED - 1);
    }
    while (ldr_turns_run(&rig->home)) {
    }
    for (unsigned i = 0; i < SESSIONS - 1; i++) {
        assert_true(answered(rig, i));
        assert_int_equal(rig->sessions[i].watch.events, EPOLLIN);
    }
}

/* One that ends while it waits is forgotten; the others keep their order. */
static void test_quit(void **state)
{
    rig_t *rig = *state;
    int64_t turn = ldr_turn_left(&rig->sessions[0]);

    for (unsigned gone = 0; gone < 3; gone++) {
        ldr_turn_used(&rig->sessions[0], (uint64_t)turn);
        for (unsigned i = 0; i < 3; i++) {
            ask(rig, i);
            ldr_session_read(&rig->sessions[i]);
            assert_true(rig->sessions[i].waits_turn);
        }
        ldr_turn_quit(&rig->sessions[gone]);
        ldr_turn_quit(&rig->sessions[gone]);
        assert_true(ldr_turns_check(&rig->home));
        while (ldr_turns_run(&rig->home)) {
        }
        for (unsigned i = 0; i < 3; i++) {
            assert_int_equal(answered(rig, i), i != gone);
        }
        forgive(rig, 0);
        ldr_session_read(&rig->sessions[gone]);
        assert_true(answered(rig, gone));
    }
}

/* Peers that are not authenticated share one turn. */
static void test_strangers(void **state)
{
    rig_t *rig = *state;

    rig->sessions[0].tenant = rig->sessions[1].tenant = NULL;
    ldr_turn_used(&rig->sessions[0], 1u << 30);
    assert_true(ldr_turn_left(&rig->sessions[1]) <= 0);
    assert_true(ldr_turn_left(&rig->sessions[2]) > 0);
}

static void attach(ldr_session_t *s)
{
    s->ring_map = ldr_alloc_blocks(LDR_RING_MAP_BYTES);
    memset(s->ring_map, 0, LDR_RING_MAP_BYTES);
    ldr_ring_init(&s->ring, s->ring_map, true);
    ldr_ring_stream(&s->rings.stream, &s->ring, s->watch.fd);
    s->attached = true;
    ldr_session_warm(s);
}

/* As many messages of its client as fit. */
static void fill(ldr_session_t *s)
{
    ldr_ring_pair_t client;
    uint8_t bytes[LDR_FRAME_BYTES];
    struct iovec piece = {bytes, ping(bytes, false)};

    ldr_ring_init(&client, s->ring_map, false);
    while (ldr_ring_write(&client.out, &piece, 1)) {
    }
}

/* In a round one ring of each tenant is read, whichever comes first; and none
 * of who owes. */
static void test_rings(void **state)
{
    rig_t *rig = *state;
    const ldr_session_t *b = &rig->sessions[SESSIONS - 1];

    for (unsigned i = 0; i < SESSIONS; i++) {
        attach(&rig->sessions[i]);
        fill(&rig->sessions[i]);
    }
    for (unsigned round = 1; round <= 3; round++) {
        unsigned read = 0;

        ldr_turns_run(&rig->home);
        assert_int_equal(ldr_rings_poll(&rig->home), LDR_LOOP_BUSY);
        for (unsigned i = 0; i < SESSIONS - 1; i++) {
            read += rig->sessions[i].ring.in.position > 0;
        }
        assert_int_equal(read, round);
        assert_true(b->ring.in.position > 0);
        rig->home.round += 1000; /* whatever it took */
    }
    uint32_t before = b->ring.in.position, owes = 0;
    ldr_turn_used(&rig->sessions[0], 1u << 30);
    for (unsigned i = 0; i < SESSIONS - 1; i++) {
        owes += rig->sessions[i].ring.in.position;
    }
    ldr_turns_run(&rig->home);
    assert_int_equal(ldr_rings_poll(&rig->home), LDR_LOOP_BUSY);
    assert_true(b->ring.in.position > before);
    for (unsigned i = 0; i < SESSIONS - 1; i++) {
        owes -= rig->sessions[i].ring.in.position;
    }
    assert_int_equal(owes, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_sockets, setup, teardown),
        cmocka_unit_test_setup_teardown(test_quit, setup, teardown),
        cmocka_unit_test_setup_teardown(test_strangers, setup, teardown),
        cmocka_unit_test_setup_teardown(test_rings, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
