/* TLS: who gets in and who does not. */
#include "net/tls_ends.h"

#include <fcntl.h>

#include "net/tls_int.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_handshake),
        cmocka_unit_test(test_wrong_server),
        cmocka_unit_test(test_client_certificates),
        cmocka_unit_test(test_old_versions),
        cmocka_unit_test(test_not_tls),
        cmocka_unit_test(test_files),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
