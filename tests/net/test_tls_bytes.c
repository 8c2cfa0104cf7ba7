/*
 * TLS: bytes that arrive as they were sent, through reads and writes of any
 * size, and no signal when nobody is there. LARDER_SEED repeats a run.
 */
#include "net/tls_ends.h"

#include <fcntl.h>
#include <signal.h>

#include "base/thread.h"

static ldr_rand_t rnd;

/* ---- SIGPIPE ---- */

static bool pending(void)
{
    sigset_t set;

    sigemptyset(&set);
    sigpending(&set);
    return sigismember(&set, SIGPIPE) == 1;
}

/* Writes to a peer that is gone until it is seen, which without care kills the
 * process. */
static void write_to_nobody(ldr_tls_t *client, ldr_tls_t *server)
{
    static char data[100000];
    struct iovec iov = {data, sizeof(data)};
    uint64_t until = ldr_now_ns(&ldr_clock_real) + WATCHDOG_NS;
    unsigned failures = 0;
    ssize_t n = 0;
    ends_t e;

    open_ends(&e, client, server, "node.example");
    assert_int_equal(e.client_error, 0);
    int nowhere = open("/dev/null", O_RDWR | O_CLOEXEC);
    assert_true(dup2(nowhere, e.server.fd) >= 0); /* closes it without a word */
    close(nowhere);
    while (failures < 3) {
        n = ldr_stream_write(&e.client, &iov, 1);
        failures += n < 0 && n != -EAGAIN;
        assert_true(ldr_now_ns(&ldr_clock_real) < until);
    }
    assert_true(n == -EPIPE || n == -ECONNRESET || n == -EPROTO);
    close_ends(&e);
}

static void test_no_signal(void **s)
{
    ldr_tls_t *client = context(false, NULL, "ca.pem");
    ldr_tls_t *server = context(true, "server", NULL);
    sigset_t set;

    (void)s;
    sigemptyset(&set);
    sigaddset(&set, SIGPIPE);
    for (int plain = 0; plain <= 1; plain++) {
        ldr_tls_t *c = plain ? NULL : client, *v = plain ? NULL : server;
        signal(SIGPIPE, SIG_DFL);
        pthread_sigmask(SIG_UNBLOCK, &set, NULL);
        write_to_nobody(c, v);

        /* A thread that blocks it is left as it was. */
        pthread_sigmask(SIG_BLOCK, &set, NULL);
        write_to_nobody(c, v);
        assert_false(pending());

        /* One that was there before stays. */
        raise(SIGPIPE);
        assert_true(pending());
        write_to_nobody(c, v);
        assert_true(pending());
        signal(SIGPIPE, SIG_IGN); /* takes it away */
        assert_false(pending());
        pthread_sigmask(SIG_UNBLOCK, &set, NULL);
        signal(SIGPIPE, SIG_DFL);
    }
    ldr_tls_destroy(client);
    ldr_tls_destroy(server);
}

/* ---- bytes ---- */

/* One side of a connection that sends and receives at once. */
typedef struct pump {
    ldr_stream_t *s;
    uint64_t total, seed;
    uint64_t out_id, in_id; /* whose bytes */
    uint64_t partial_writes, waits;
} pump_t;

enum { PUMP_BYTES = 300000, PUMP_PIECES = 7 };

static uint8_t byte_at(uint64_t id, uint64_t at)
{
    return (uint8_t)(real_mix(id ^ at / 8) >> at % 8 * 8);
}

static void fill_at(uint64_t id, uint64_t at, uint8_t *to, size_t bytes)
{
    size_t i = 0;

    for (; i < bytes && (at + i) % 8 != 0; i++) {
        to[i] = byte_at(id, at + i);
    }
    for (; i + 8 <= bytes; i += 8) {
        uint64_t word = real_mix(id ^ (at + i) / 8);
        memcpy(to + i, &word, 8);
    }
    for (; i < bytes; i++) {
        to[i] = byte_at(id, at + i);
    }
}

/* Cuts the bytes into pieces, some of them empty. */
static unsigned cut(ldr_rand_t *r, uint8_t *data, size_t bytes,
                    struct iovec *iov)
{
    unsigned count = 1 + (unsigned)ldr_rand_below(r, PUMP_PIECES);

    for (unsigned i = 0; i < count; i++) {
        size_t n =
            i + 1 == count ? bytes
            : ldr_rand_below(r, 4) == 0
                ? 0
                : ldr_rand_below(r, ldr_rand_below(r, 2) ? bytes + 1 : 200);
        n = n > bytes ? bytes : n;
        iov[i] = (struct iovec){data, n};
        data += n;
        bytes -= n;
    }
    return count;
}

static size_t random_size(ldr_rand_t *r, uint64_t left)
{
    static const size_t most[] = {10, 1000, 20000, PUMP_BYTES};
    size_t n = 1 + ldr_rand_below(r, most[ldr_rand_below(r, 4)]);

    return n > left ? (size_t)left : n;
}

static void *pump_main(void *arg)
{
    pump_t *p = arg;
    uint8_t *out = malloc(PUMP_BYTES), *in = malloc(PUMP_BYTES);
    uint8_t *expected = malloc(PUMP_BYTES);
    uint64_t sent = 0, got = 0, until;
    size_t offer = 0; /* not taken yet: to be offered again, and no less */
    struct iovec iov[PUMP_PIECES];
    ldr_rand_t r;

    require(out != NULL && in != NULL && expected != NULL, "memory");
    ldr_rand_seed(&r, p->seed);
    until = ldr_now_ns(&ldr_clock_real) + WATCHDOG_NS;
    while (sent < p->total || got < p->total) {
        short events = 0;
        require(ldr_now_ns(&ldr_clock_real) < until, "sent %llu, got %llu",
                (unsigned long long)sent, (unsigned long long)got);
        if (sent < p->total) {
            offer = offer > 0 ? offer : random_size(&r, p->total - sent);
            fill_at(p->out_id, sent, out, offer);
            ssize_t n = ldr_stream_write(p->s, iov, cut(&r, out, offer, iov));
            require(n > 0 || n == -EAGAIN, "write: %zd", n);
            if (n > 0) {
                p->partial_writes += (size_t)n < offer;
                sent += (size_t)n;
                offer -= (size_t)n;
            } else {
                events |= p->s->wants_write ? POLLOUT : POLLIN;
            }
        }
        if (got < p->total) {
            size_t size = random_size(&r, PUMP_BYTES);
            ssize_t n = ldr_stream_read(p->s, iov, cut(&r, in, size, iov));
            require((n > 0 && (size_t)n <= size) || n == -EAGAIN, "read: %zd",
                    n);
            if (n > 0) {
                fill_at(p->in_id, got, expected, (size_t)n);
                require(memcmp(in, expected, (size_t)n) == 0, "bytes at %llu",
                        (unsigned long long)got);
                got += (size_t)n;
                continue;
            }
            events |= p->s->wants_write ? POLLOUT : POLLIN;
            if (sent < p->total && (events & POLLOUT) == 0) {
                continue; /* may write on */
            }
            p->waits++;
            require(ldr_poll(p->s->fd, events, until) > 0, "poll");
        }
    }
    free(out);
    free(in);
    free(expected);
    return NULL;
}

static uint64_t run_pumps(ends_t *e, const char *what)
{
    uint64_t total = test_count("LARDER_TLS_MIB", 64) << 20;
    pump_t a = {.s = &e->client,
                .total = total,
                .seed = ldr_rand_next(&rnd),
                .out_id = 1,
                .in_id = 2};
    pump_t b = {.s = &e->server,
                .total = total,
                .seed = ldr_rand_next(&rnd),
                .out_id = 2,
                .in_id = 1};
    pthread_t thread;
    uint64_t begin = real_now_ms();

    assert_int_equal(e->client_error, 0);
    assert_int_equal(e->server_error, 0);
    assert_true(ldr_thread_start(&thread, "pump", pump_main, &b));
    pump_main(&a);
    pthread_join(thread, NULL);
    printf("%s: %llu MiB each way in %llu ms, partial writes %llu, waits "
           "%llu\n",
           what, (unsigned long long)(total >> 20),
           (unsigned long long)(real_now_ms() - begin),
           (unsigned long long)(a.partial_writes + b.partial_writes),
           (unsigned long long)(a.waits + b.waits));
    return a.partial_writes + b.partial_writes;
}

static void test_bytes(void **s)
{
    ldr_tls_t *client = context(false, "client", "ca.pem");
    ldr_tls_t *server = context(true, "server", "ca.pem");
    const int small = 5000;
    ends_t e;

    (void)s;
    open_ends(&e, client, server, "node.example");
    (void)run_pumps(&e, "TLS");
    close_ends(&e);

    open_ends(&e, client, server, "node.example");
    (void)setsockopt(e.client.fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
    (void)setsockopt(e.server.fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
    assert_true(run_pumps(&e, "TLS, small buffers") > 0);
    close_ends(&e);

    open_ends(&e, NULL, NULL, NULL);
    (void)run_pumps(&e, "plain");
    close_ends(&e);
    ldr_tls_destroy(client);
    ldr_tls_destroy(server);
}

/* What arrived before the end is not lost, and then comes the end. */
static void test_end(void **s)
{
    ldr_tls_t *client = context(false, NULL, "ca.pem");
    ldr_tls_t *server = context(true, "server", NULL);
    char data[5000], got[6000];
    struct iovec out = {data, sizeof(data)}, in = {got, sizeof(got)};
    size_t have = 0;
    ssize_t n;
    ends_t e;

    (void)s;
    for (int rude = 0; rude <= 1; rude++) {
        open_ends(&e, client, server, "node.example");
        check_works(&e);
        memset(data, 'd', sizeof(data));
        assert_int_equal(ldr_stream_write(&e.server, &out, 1), sizeof(data));
        if (rude) {
            shutdown(e.server.fd, SHUT_RDWR); /* no goodbye */
        }
        ldr_stream_close(&e.server);
        have = 0;
        do {
            in.iov_len = 700;
            n = ldr_stream_read(&e.client, &in, 1);
            have += n > 0 ? (size_t)n : 0;
            if (n == -EAGAIN) {
                assert_true(
                    ldr_poll(e.client.fd, POLLIN,
                             ldr_now_ns(&ldr_clock_real) + WATCHDOG_NS) > 0);
            }
        } while (n > 0 || n == -EAGAIN);
        assert_int_equal(n, -EPIPE);
        assert_int_equal(have, sizeof(data));
        close_ends(&e);
    }
    in.iov_len = 0;
    open_ends(&e, client, server, "node.example");
    assert_int_equal(ldr_stream_write(&e.client, &in, 1), -EINVAL);
    assert_int_equal(ldr_stream_read(&e.client, &in, 1), -EINVAL);
    close_ends(&e);
    ldr_tls_destroy(client);
    ldr_tls_destroy(server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_signal),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_end),
    };
    uint64_t seed = real_seed();

    test_seed(seed);
    ldr_rand_seed(&rnd, seed);
    return cmocka_run_group_tests(tests, setup, teardown);
}
