/*
 * The shared tier in a real S3 server: Swift's s3api, with and without TLS and
 * conditional puts, stopped, killed and started again.
 */
#include "net/certs.h"
#include "tier/shared/s3_rig.h"

/* ---- a real one ---- */

typedef struct swift {
    unsigned port;
    pid_t pid;
    char port_text[8], log[300];
    const char *argv[9];
} swift_t;

/* It takes minutes: only where that is wanted. */
static bool has_swift(void)
{
    return getenv("LARDER_TEST_SHARED") != NULL &&
           system("/usr/bin/python3 -c 'import swift' 2>/dev/null") == 0;
}

static void swift_up(swift_t *w)
{
    w->pid = server_start(w->argv[0], w->argv, w->log, w->port);
}

static void swift_start(swift_t *w, bool conditional, const char *cert,
                        const char *key)
{
    static char store[300];
    unsigned n = 0;

    snprintf(store, sizeof(store), "%s/swift-%u", dir, server_port());
    assert_int_equal(mkdir(store, 0700), 0);
    snprintf(w->log, sizeof(w->log), "%s", in_dir("swift.log"));
    w->port = server_port();
    snprintf(w->port_text, sizeof(w->port_text), "%u", w->port);
    w->argv[n++] = "/usr/bin/python3";
    w->argv[n++] = "tests/tier/shared/s3_server.py";
    w->argv[n++] = store;
    w->argv[n++] = w->port_text;
    w->argv[n++] = BUCKET;
    if (conditional) {
        w->argv[n++] = "--conditional";
    }
    if (cert != NULL) {
        w->argv[n++] = cert;
        w->argv[n++] = key;
    }
    w->argv[n] = NULL;
    swift_up(w);
}

static void make_tier(const swift_t *w)
{
    ldr_backend_t *b = open_at(w->port, BUCKET, right_login());

    server_make_tier(b);
    b->ops->destroy(b);
}

static void swift_end(swift_t *w)
{
    char command[400];

    server_end(&w->pid, SIGKILL);
    snprintf(command, sizeof(command), "rm -rf '%s'", w->argv[2]);
    assert_int_equal(system(command), 0);
}

#define NEEDS_SWIFT()                                                          \
    do {                                                                       \
        if (!has_swift()) {                                                    \
            print_message("not here: `make test-shared` has an S3 server\n");  \
            skip();                                                            \
        }                                                                      \
    } while (0)

static ldr_backend_t *contract_open(void *arg)
{
    const swift_t *w = arg;

    return open_at(w->port, BUCKET, in_dir("login"));
}

static void check_conditional(const swift_t *w, int want)
{
    ldr_backend_t *b = open_at(w->port, BUCKET, in_dir("login"));

    assert_int_equal(b->ops->health(b, in_ms(30000)), 0);
    assert_int_equal(atomic_load(&((ldr_s3_t *)b)->conditional), want);
    b->ops->destroy(b);
}

static void test_contract(void **s)
{
    swift_t w = {0};
    contract_t c = {.open = contract_open, .arg = &w, .many = 1010, .kills = 3};

    (void)s;
    NEEDS_SWIFT();
    swift_start(&w, true, NULL, NULL);
    make_tier(&w);
    check_conditional(&w, LDR_S3_CONDITIONAL);
    contract_run(&c);
    swift_end(&w);
}

/* The same without a race: two may win it. */
static void test_not_conditional(void **s)
{
    swift_t w = {0};
    contract_t c = {.open = contract_open, .arg = &w, .many = 20, .kills = 2};

    (void)s;
    NEEDS_SWIFT();
    swift_start(&w, false, NULL, NULL);
    make_tier(&w);
    check_conditional(&w, LDR_S3_NOT);
    contract_bytes(&c);
    contract_errors(&c);
    contract_replace(&c);
    contract_list(&c);
    contract_kill(&c);
    swift_end(&w);
}

static void test_login(void **s)
{
    static const struct {
        const char *login, *bucket;
        int error;
    } table[] = {
        {"access_key=test:tester\nsecret_key=" SECRET "\n", BUCKET, 0},
        {"access_key=test:tester\nsecret_key=not-" SECRET "\n", BUCKET,
         -EACCES},
        {"access_key=nobody\nsecret_key=" SECRET "\n", BUCKET, -EACCES},
        {"access_key=test:tester\n", BUCKET, -EACCES},
        {"", BUCKET, -EACCES},
        {"access_key=test:tester\nsecret_key=" SECRET "\n", "no-such-bucket",
         -ENODEV},
    };
    swift_t w = {0};

    (void)s;
    NEEDS_SWIFT();
    swift_start(&w, false, NULL, NULL);
    make_tier(&w);
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        ldr_backend_t *b =
            open_at(w.port, table[i].bucket, login_file(table[i].login));
        int error = b->ops->health(b, in_ms(30000));

        if (error != 0 || table[i].error != 0) {
            check_says(error, table[i].error);
            check_says(contract_put(b, "t/a", 10, 0), table[i].error);
        }
        b->ops->destroy(b);
    }
    setenv("AWS_ACCESS_KEY_ID", "test:tester", 1);
    setenv("AWS_SECRET_ACCESS_KEY", SECRET, 1);
    ldr_backend_t *b = open_at(w.port, BUCKET, "");
    assert_int_equal(b->ops->health(b, in_ms(30000)), 0);
    b->ops->destroy(b);
    unsetenv("AWS_ACCESS_KEY_ID");
    unsetenv("AWS_SECRET_ACCESS_KEY");
    swift_end(&w);
}

static void test_tls(void **s)
{
    swift_t w = {0};
    char url[600];

    (void)s;
    NEEDS_SWIFT();
    cert_t authority = cert_one("the authority", NULL, NULL);
    cert_t server = cert_one("server", "IP:127.0.0.1", &authority);
    cert_save(&authority, dir, "ca", NULL);
    cert_save(&server, dir, "server", NULL);
    cert_free(&authority);
    cert_free(&server);
    swift_start(&w, true, in_dir("server.pem"), in_dir("server.key"));
    snprintf(url, sizeof(url),
             "s3://" BUCKET "?endpoint=https://127.0.0.1:%u&ca=%s", w.port,
             in_dir("ca.pem"));
    ldr_backend_t *b = open_url(url, right_login());
    assert_int_equal(contract_put(b, "t/a", 3000000, LDR_OBJECT_NEW), 0);
    contract_check(b, "t/a", 1000000, 1000000);
    b->ops->destroy(b);
    snprintf(url, sizeof(url), "s3://" BUCKET "?endpoint=https://127.0.0.1:%u",
             w.port);
    b = open_url(url, right_login());
    check_says(b->ops->health(b, in_ms(30000)), -EACCES);
    b->ops->destroy(b);
    swift_end(&w);
}

static int count_names(void *arg, const char *name, uint64_t bytes)
{
    (void)name;
    (void)bytes;
    ++*(unsigned *)arg;
    return 0;
}

/* Stopped, killed, started again. */
static void test_away(void **s)
{
    swift_t w = {0};
    unsigned names = 0;
    uint8_t data[100];
    struct iovec iov = {data, sizeof(data)};

    (void)s;
    NEEDS_SWIFT();
    swift_start(&w, false, NULL, NULL);
    ldr_backend_t *b = open_at(w.port, BUCKET, right_login());
    assert_int_equal(contract_put(b, "t/a", 3000, LDR_OBJECT_NEW), 0);
    assert_int_equal(
        b->ops->list(b, "", NULL, count_names, &names, in_ms(30000)), 0);
    assert_int_equal(names, 1);
    assert_int_equal(kill(w.pid, SIGSTOP), 0);
    uint64_t before = real_now_ms();
    check_says(b->ops->get(b, "t/a", 0, &iov, 1, in_ms(300)), -ETIMEDOUT);
    check_says(b->ops->remove(b, "t/b", in_ms(300)), -ETIMEDOUT);
    assert_true(real_now_ms() - before < 20000);
    assert_int_equal(kill(w.pid, SIGCONT), 0);
    contract_check(b, "t/a", 0, 3000);
    server_end(&w.pid, SIGKILL);
    check_says(b->ops->get(b, "t/a", 0, &iov, 1, in_ms(30000)), -ECONNREFUSED);
    swift_up(&w);
    contract_check(b, "t/a", 0, 3000);
    b->ops->destroy(b);
    swift_end(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_contract), cmocka_unit_test(test_not_conditional),
        cmocka_unit_test(test_login),    cmocka_unit_test(test_tls),
        cmocka_unit_test(test_away),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
