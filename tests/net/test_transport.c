/*
 * What every row of the transport table that takes connections in holds: over
 * sockets, and over the simulated network.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "base/log.h"
#include "sim/simnet.h"

static uint64_t in_ms(const ldr_clock_t *clock, uint64_t ms)
{
    return ldr_now_ns(clock) + ms * SIM_MS;
}

/* Bytes arrive at the other end, in order. */
static void say(ldr_stream_t *from, ldr_stream_t *to, const ldr_clock_t *clock)
{
    char text[6] = "", said[] = "hello";
    struct iovec out = {said, 5};
    size_t got = 0;

    assert_int_equal(ldr_stream_write(from, &out, 1), 5);
    while (got < 5) {
        struct iovec in = {text + got, 5 - got};

        assert_true(ldr_stream_poll(to, POLLIN, in_ms(clock, 60000)) > 0);
        ssize_t n = ldr_stream_read(to, &in, 1);
        assert_true(n > 0 || n == -EAGAIN);
        got += n > 0 ? (size_t)n : 0;
    }
    assert_string_equal(text, "hello");
}

static void check_row(const ldr_clock_t *clock, ldr_listening_t *l,
                      const ldr_address_t *address)
{
    ldr_dest_t at = {.address = address};
    ldr_stop_t stop = {NULL, UINT64_MAX};
    ldr_stream_t client, server;
    ldr_listening_t second;
    uint64_t until_ns = in_ms(clock, 5);

    assert_int_equal(l->ops->listen(l->ops, &at, &second), -EADDRINUSE);
    assert_int_equal(l->ops->accept(l, 0, &server), -EAGAIN);
    assert_int_equal(l->ops->accept(l, until_ns, &server), -EAGAIN);
    assert_true(ldr_now_ns(clock) >= until_ns);

    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(l->ops->connect(l->ops, &at, &stop, &client), 0);
        assert_int_equal(l->ops->accept(l, in_ms(clock, 60000), &server), 0);
        assert_int_equal(l->ops->accept(l, 0, &server), -EAGAIN);
        say(&client, &server, clock);
        say(&server, &client, clock);
        ldr_stream_close(&client);
        ldr_stream_close(&server);
    }
    l->ops->unlisten(l);
    assert_int_equal(l->ops->connect(l->ops, &at, &stop, &client),
                     -ECONNREFUSED);
}

static void test_tcp(void **state)
{
    ldr_address_t a = {.host = "127.0.0.1", .port = "0"};
    ldr_dest_t at = {.address = &a};
    struct sockaddr_in bound;
    socklen_t size = sizeof(bound);
    ldr_listening_t l;

    (void)state;
    assert_int_equal(ldr_transport_tcp.listen(&ldr_transport_tcp, &at, &l), 0);
    assert_int_equal(getsockname(l.fd, (void *)&bound, &size), 0);
    snprintf(a.port, sizeof(a.port), "%u", ntohs(bound.sin_port));
    check_row(&ldr_clock_real, &l, &a);
    l.ops->unlisten(&l); /* twice is fine */
}

static void test_sim(void **state)
{
    sim_net_t *net = sim_net_new(1);
    ldr_address_t a = {.host = "sim", .port = "7"};
    ldr_listening_t l = sim_listen(net, 7);

    (void)state;
    check_row(sim_clock(net), &l, &a);
    sim_net_free(net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tcp),
        cmocka_unit_test(test_sim),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
