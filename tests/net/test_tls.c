/*
 * TLS: who gets in and who does not, and bytes that arrive as they were sent,
 * through reads and writes of any size. LARDER_SEED repeats a run.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

#include "base/log.h"
#include "base/thread.h"
#include "net/certs.h"
#include "net/socket.h"
#include "net/tls_int.h"
#include "support/real.h"
#include "support/values.h"

#define WATCHDOG_NS (120ull * 1000000000u)

static char dir[256];
static ldr_rand_t rnd;

static const char *file(const char *name)
{
    static char paths[4][300];
    static unsigned next;
    char *path = paths[next++ % 4];

    snprintf(path, sizeof(paths[0]), "%s/%s", dir, name);
    return path;
}

static int setup(void **s)
{
    static const char *two[] = {"tenant-a", "tenant-b"};

    (void)s;
    if (!real_dir_make(dir, sizeof(dir), "tls")) {
        return -1;
    }
    cert_t ca = cert_one("the authority", NULL, NULL);
    cert_t other_ca = cert_one("another authority", NULL, NULL);
    cert_t server = cert_one("node",
                             "DNS:node.example,DNS:*.pool.example,"
                             "IP:127.0.0.1,IP:::1",
                             &ca);
    cert_t nobody = cert_one("node.example", NULL, &ca);
    cert_t client = cert_one("tenant-a", NULL, &ca);
    cert_t stranger = cert_one("tenant-a", NULL, &other_ca);
    cert_t double_name = cert_make(two, 2, NULL, &ca);
    cert_t no_name = cert_make(NULL, 0, "DNS:x.example", &ca);
    cert_save(&ca, dir, "ca", NULL);
    cert_save(&other_ca, dir, "other-ca", NULL);
    cert_save(&server, dir, "server", NULL);
    cert_save(&server, dir, "secret", "a passphrase");
    cert_save(&nobody, dir, "nobody", NULL);
    cert_save(&client, dir, "client", NULL);
    cert_save(&stranger, dir, "stranger", NULL);
    cert_save(&double_name, dir, "double", NULL);
    cert_save(&no_name, dir, "no-name", NULL);
    cert_t *all[] = {&ca,     &other_ca, &server,      &nobody,
                     &client, &stranger, &double_name, &no_name};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        cert_free(all[i]);
    }
    return 0;
}

static int teardown(void **s)
{
    (void)s;
    real_dir_remove(dir);
    return 0;
}

/* name: of the files; NULL: no certificate. ca: NULL: none. */
static ldr_tls_t *context(bool server, const char *name, const char *ca)
{
    char cert[64] = "", key[64] = "";
    ldr_tls_t *tls = NULL;

    if (name != NULL) {
        snprintf(cert, sizeof(cert), "%s.pem", name);
        snprintf(key, sizeof(key), "%s.key", name);
    }
    const ldr_tls_params_t params = {
        .server = server,
        .cert = name != NULL ? file(cert) : NULL,
        .key = name != NULL ? file(key) : NULL,
        .ca = ca != NULL ? file(ca) : NULL,
    };
    if (ldr_tls_create(&params, &tls) != LARDER_OK) {
        fail_msg("%s", ldr_fail_text());
    }
    return tls;
}

/* Two ends of a TCP connection on loopback. */
static void connection(int *client, int *server)
{
    ldr_address_t a = {.host = "127.0.0.1", .port = "0"};
    struct sockaddr_in address;
    socklen_t size = sizeof(address);
    uint64_t until = ldr_now_ns(&ldr_clock_real) + WATCHDOG_NS;
    int listening = ldr_listen_tcp(&a, "");

    assert_true(listening >= 0);
    assert_int_equal(getsockname(listening, (void *)&address, &size), 0);
    snprintf(a.port, sizeof(a.port), "%u", ntohs(address.sin_port));
    *client = ldr_connect_tcp(&a, "", until);
    assert_true(*client >= 0);
    assert_true(ldr_poll(listening, POLLIN, until) > 0);
    *server = ldr_accept(listening);
    assert_true(*server >= 0);
    close(listening);
}

typedef struct ends {
    ldr_stream_t client, server;
    int client_error, server_error; /* of the handshake */
    char client_text[256], server_text[256];
} ends_t;

static bool step(ldr_stream_t *s, int *error, char *text)
{
    if (*error == -EAGAIN) {
        ldr_fail_clear();
        *error = ldr_stream_handshake(s);
        if (*error != -EAGAIN) {
            snprintf(text, 256, "%s", ldr_fail_text());
            if (*error != 0) {
                ldr_stream_close(s); /* as anybody would: the other sees it */
            }
            return true;
        }
    }
    return false;
}

/* Shakes hands until both have an answer. */
static void shake(ends_t *e)
{
    uint64_t until = ldr_now_ns(&ldr_clock_real) + WATCHDOG_NS;

    e->client_error = e->server_error = -EAGAIN;
    while (e->client_error == -EAGAIN || e->server_error == -EAGAIN) {
        bool moved = step(&e->client, &e->client_error, e->client_text);
        moved = step(&e->server, &e->server_error, e->server_text) || moved;
        assert_true(ldr_now_ns(&ldr_clock_real) < until);
    }
}

static void open_ends(ends_t *e, ldr_tls_t *client, ldr_tls_t *server,
                      const char *name)
{
    int a, b;

    connection(&a, &b);
    assert_int_equal(ldr_stream_init(&e->client, a, client, false, name),
                     LARDER_OK);
    assert_int_equal(ldr_stream_init(&e->server, b, server, true, NULL),
                     LARDER_OK);
    shake(e);
}

static void close_ends(ends_t *e)
{
    ldr_stream_close(&e->client);
    ldr_stream_close(&e->server);
}

/* One byte there and one back: both sides accept each other. */
static ssize_t move(ldr_stream_t *from, ldr_stream_t *to, char *c)
{
    uint64_t until = ldr_now_ns(&ldr_clock_real) + WATCHDOG_NS;
    struct iovec out = {c, 1}, in = {c, 1};
    ssize_t n = ldr_stream_write(from, &out, 1);

    if (n != 1) {
        return n;
    }
    *c = 0;
    while ((n = ldr_stream_read(to, &in, 1)) == -EAGAIN) {
        assert_true(
            ldr_poll(to->fd, to->wants_write ? POLLOUT : POLLIN, until) > 0);
    }
    return n;
}

static void check_works(ends_t *e)
{
    char c = 'x';

    assert_int_equal(e->client_error, 0);
    assert_int_equal(e->server_error, 0);
    assert_int_equal(move(&e->client, &e->server, &c), 1);
    assert_int_equal(c, 'x');
    assert_int_equal(move(&e->server, &e->client, &c), 1);
    assert_int_equal(c, 'x');
}

/* ---- who gets in ---- */

static void test_handshake(void **s)
{
    static const char *names[] = {"node.example", "127.0.0.1", "::1",
                                  "a.pool.example"};
    ldr_tls_t *client = context(false, NULL, "ca.pem");
    ldr_tls_t *server = context(true, "server", NULL);
    char name[64];
    ends_t e;

    (void)s;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        open_ends(&e, client, server, names[i]);
        check_works(&e);
        ldr_stream_peer_name(&e.client, name, sizeof(name));
        assert_string_equal(name, "node");
        ldr_stream_peer_name(&e.server, name, sizeof(name));
        assert_string_equal(name, ""); /* it was not asked for one */
        if (i == 0) {
            printf("kTLS: sending %d, receiving %d\n",
                   ldr_stream_ktls(&e.client, true),
                   ldr_stream_ktls(&e.client, false));
        }
        close_ends(&e);
    }
    /* Streams outlive their context. */
    open_ends(&e, client, server, names[0]);
    ldr_tls_destroy(client);
    ldr_tls_destroy(server);
    check_works(&e);
    close_ends(&e);
    ldr_tls_destroy(NULL);
}

static void test_wrong_server(void **s)
{
    static const struct {
        const char *ca, *server, *name;
    } table[] = {
        {"other-ca.pem", "server", "node.example"}, /* another authority */
        {NULL, "server", "node.example"},           /* the system's */
        {"ca.pem", "server", "evil.example"},       /* another name */
        {"ca.pem", "server", "127.0.0.2"},
        {"ca.pem", "server", "::2"},
        {"ca.pem", "server", "node"}, /* CN counts for nothing beside names */
        {"ca.pem", "server", "a.b.pool.example"},
        {"ca.pem", "nobody", "127.0.0.1"}, /* no address in it */
    };
    ends_t e;

    (void)s;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        ldr_tls_t *client = context(false, NULL, table[i].ca);
        ldr_tls_t *server = context(true, table[i].server, NULL);
        open_ends(&e, client, server, table[i].name);
        if (e.client_error != -EACCES) {
            fail_msg("%s: %d", table[i].name, e.client_error);
        }
        assert_non_null(strstr(e.client_text, "certificate"));
        assert_int_not_equal(e.server_error, 0);
        assert_true(e.server_text[0] != '\0');
        close_ends(&e);
        ldr_tls_destroy(client);
        ldr_tls_destroy(server);
    }
}

static void test_client_certificates(void **s)
{
    static const struct {
        const char *cert;
        int server_error;
        const char *name;
    } table[] = {
        {"client", 0, "tenant-a"},
        {"double", 0, ""}, /* two names are none */
        {"no-name", 0, ""},
        {"stranger", -EACCES, NULL}, /* the name is right, the authority not */
        {NULL, -EACCES, NULL},
    };
    char name[64], small[8];
    ends_t e;

    (void)s;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        ldr_tls_t *client = context(false, table[i].cert, "ca.pem");
        ldr_tls_t *server = context(true, "server", "ca.pem");
        open_ends(&e, client, server, "node.example");
        assert_int_equal(e.server_error, table[i].server_error);
        if (table[i].server_error == 0) {
            check_works(&e);
            ldr_stream_peer_name(&e.server, name, sizeof(name));
            assert_string_equal(name, table[i].name);
            /* A name is given whole or not at all. */
            ldr_stream_peer_name(&e.server, small, sizeof(small));
            assert_string_equal(small, "");
        } else {
            /* The client may think that it is in: not for long. */
            char c = 'x';
            struct iovec in = {&c, 1};
            ssize_t n = -EAGAIN;
            assert_non_null(strstr(e.server_text, "certificate"));
            if (e.client_error == 0) {
                while (n == -EAGAIN) {
                    assert_true(ldr_poll(e.client.fd, POLLIN,
                                         ldr_now_ns(&ldr_clock_real) +
                                             WATCHDOG_NS) > 0);
                    n = ldr_stream_read(&e.client, &in, 1);
                }
                assert_true(n < 0);
            }
        }
        close_ends(&e);
        ldr_tls_destroy(client);
        ldr_tls_destroy(server);
    }
}

/* The other side made by hand: it knows TLS 1.2 at most. */
static int old_version(bool old_client)
{
    ldr_tls_t *client = context(false, NULL, "ca.pem");
    ldr_tls_t *server = context(true, "server", NULL);
    SSL_CTX *ctx = old_client ? client->ctx : server->ctx;
    ends_t e;

    assert_int_equal(ldr_ssl.SSL_CTX_ctrl(ctx, SSL_CTRL_SET_MIN_PROTO_VERSION,
                                          TLS1_2_VERSION, NULL),
                     1);
    assert_int_equal(ldr_ssl.SSL_CTX_ctrl(ctx, SSL_CTRL_SET_MAX_PROTO_VERSION,
                                          TLS1_2_VERSION, NULL),
                     1);
    open_ends(&e, client, server, "node.example");
    assert_int_not_equal(e.client_error, 0);
    assert_int_not_equal(e.server_error, 0);
    int error = old_client ? e.server_error : e.client_error;
    assert_true((old_client ? e.server_text : e.client_text)[0] != '\0');
    close_ends(&e);
    ldr_tls_destroy(client);
    ldr_tls_destroy(server);
    return error;
}

static void test_old_versions(void **s)
{
    (void)s;
    assert_int_equal(old_version(true), -EPROTO);
    assert_int_equal(old_version(false), -EPROTO);
}

/* A peer that does not speak TLS at all, and one that hangs up. */
static void test_not_tls(void **s)
{
    static const char hello[] = "GET / HTTP/1.1\r\nHost: node\r\n\r\n";
    ldr_tls_t *server = context(true, "server", NULL);
    ldr_stream_t stream;
    int a, b;

    (void)s;
    connection(&a, &b);
    assert_int_equal(ldr_stream_init(&stream, b, server, true, NULL),
                     LARDER_OK);
    assert_int_equal(ldr_stream_handshake(&stream), -EAGAIN);
    assert_false(stream.wants_write);
    assert_int_equal(send(a, hello, sizeof(hello), MSG_NOSIGNAL),
                     sizeof(hello));
    assert_true(ldr_poll(b, POLLIN, ldr_now_ns(&ldr_clock_real) + WATCHDOG_NS) >
                0);
    assert_int_equal(ldr_stream_handshake(&stream), -EPROTO);
    assert_true(ldr_fail_text()[0] != '\0');
    ldr_stream_close(&stream);
    close(a);

    connection(&a, &b);
    assert_int_equal(ldr_stream_init(&stream, b, server, true, NULL),
                     LARDER_OK);
    close(a);
    assert_true(ldr_poll(b, POLLIN, ldr_now_ns(&ldr_clock_real) + WATCHDOG_NS) >
                0);
    assert_int_equal(ldr_stream_handshake(&stream), -EPIPE);
    ldr_stream_close(&stream);
    ldr_tls_destroy(server);
}

/* ---- files ---- */

static void refuse(const ldr_tls_params_t *params, const char *named)
{
    ldr_tls_t *tls = (void *)1;

    ldr_fail_clear();
    assert_int_equal(ldr_tls_create(params, &tls), LARDER_E_INVALID);
    assert_ptr_equal(tls, (void *)1);
    if (strstr(ldr_fail_text(), named) == NULL) {
        fail_msg("%s not in: %s", named, ldr_fail_text());
    }
}

static void test_files(void **s)
{
    char cert[300], key[300];
    FILE *f = fopen(file("junk"), "w");

    (void)s;
    snprintf(cert, sizeof(cert), "%s", file("server.pem"));
    snprintf(key, sizeof(key), "%s", file("server.key"));
    assert_non_null(f);
    fputs("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", f);
    fclose(f);
    refuse(&(ldr_tls_params_t){.server = true}, "certificate");
    refuse(&(ldr_tls_params_t){.server = true, .cert = cert}, "key");
    refuse(&(ldr_tls_params_t){.cert = cert}, "key");
    refuse(&(ldr_tls_params_t){.key = key}, "key");
    refuse(&(ldr_tls_params_t){true, file("none.pem"), key, NULL},
           file("none.pem"));
    refuse(&(ldr_tls_params_t){true, file("junk"), key, NULL}, file("junk"));
    refuse(&(ldr_tls_params_t){true, cert, file("none.key"), NULL},
           file("none.key"));
    refuse(&(ldr_tls_params_t){true, cert, file("junk"), NULL}, file("junk"));
    refuse(&(ldr_tls_params_t){true, cert, file("client.key"), NULL},
           file("client.key")); /* not its key */
    refuse(&(ldr_tls_params_t){true, cert, file("secret.key"), NULL},
           file("secret.key")); /* and nobody is asked for a passphrase */
    refuse(&(ldr_tls_params_t){true, cert, key, file("none.pem")},
           file("none.pem"));
    refuse(&(ldr_tls_params_t){false, NULL, NULL, file("junk")}, file("junk"));

    /* A client that expects nobody in particular, or has a server's context. */
    ldr_tls_t *client = context(false, NULL, "ca.pem");
    ldr_stream_t stream;
    int a, b;
    connection(&a, &b);
    assert_int_equal(ldr_stream_init(&stream, a, client, false, NULL),
                     LARDER_E_INVALID);
    assert_int_equal(fcntl(a, F_GETFD), -1); /* the stream had it, and closed */
    assert_int_equal(ldr_stream_init(&stream, b, client, true, NULL),
                     LARDER_E_INVALID);
    ldr_stream_close(&stream);
    ldr_tls_destroy(client);
}

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
    close(e.server.fd); /* without a word */
    e.server.fd = -1;
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
        cmocka_unit_test(test_handshake),
        cmocka_unit_test(test_wrong_server),
        cmocka_unit_test(test_client_certificates),
        cmocka_unit_test(test_old_versions),
        cmocka_unit_test(test_not_tls),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_no_signal),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_end),
    };
    uint64_t seed = real_seed();

    test_seed(seed);
    ldr_rand_seed(&rnd, seed);
    return cmocka_run_group_tests(tests, setup, teardown);
}
