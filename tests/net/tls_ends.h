/* Two ends of a TLS connection on loopback, with certificates for both. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include "base/log.h"
#include "net/certs.h"
#include "net/transport.h"
#include "support/real.h"

#define WATCHDOG_NS (120ull * 1000000000u)

static char dir[256];

static inline const char *file(const char *name)
{
    static char paths[4][300];
    static unsigned next;
    char *path = paths[next++ % 4];

    snprintf(path, sizeof(paths[0]), "%s/%s", dir, name);
    return path;
}

static inline int setup(void **s)
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

static inline int teardown(void **s)
{
    (void)s;
    real_dir_remove(dir);
    return 0;
}

/* name: of the files; NULL: no certificate. ca: NULL: none. */
static inline ldr_tls_t *context(bool server, const char *name, const char *ca)
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
static inline void connection(int *client, int *server)
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

static inline bool step(ldr_stream_t *s, int *error, char *text)
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
static inline void shake(ends_t *e)
{
    uint64_t until = ldr_now_ns(&ldr_clock_real) + WATCHDOG_NS;

    e->client_error = e->server_error = -EAGAIN;
    while (e->client_error == -EAGAIN || e->server_error == -EAGAIN) {
        bool moved = step(&e->client, &e->client_error, e->client_text);
        moved = step(&e->server, &e->server_error, e->server_text) || moved;
        assert_true(ldr_now_ns(&ldr_clock_real) < until);
    }
}

static inline void open_ends(ends_t *e, ldr_tls_t *client, ldr_tls_t *server,
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

static inline void close_ends(ends_t *e)
{
    ldr_stream_close(&e->client);
    ldr_stream_close(&e->server);
}

/* One byte there and one back: both sides accept each other. */
static inline ssize_t move(ldr_stream_t *from, ldr_stream_t *to, char *c)
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

static inline void check_works(ends_t *e)
{
    char c = 'x';

    assert_int_equal(e->client_error, 0);
    assert_int_equal(e->server_error, 0);
    assert_int_equal(move(&e->client, &e->server, &c), 1);
    assert_int_equal(c, 'x');
    assert_int_equal(move(&e->server, &e->client, &c), 1);
    assert_int_equal(c, 'x');
}
