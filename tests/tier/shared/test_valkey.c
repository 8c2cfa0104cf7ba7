/*
 * The shared tier in Valkey or Redis: a real server, with and without TLS and
 * password, killed, stopped, full and read-only; and one that talks nonsense.
 */
#include "tier/shared/redis.h"

#include <sys/stat.h>

#include "net/certs.h"
#include "tier/shared/contract.h"
#include "tier/shared/valkey.h"

#define SECRET "open-sesame-4711"

static char secrets[200]; /* a directory */

static ldr_backend_t *open_url(const char *url, const char *login)
{
    const ldr_backend_params_t p = {
        .url = url,
        .login = login,
        .threads = 4,
        .log = {real_log_none, NULL},
        .clock = &ldr_clock_real,
    };
    ldr_backend_t *b = NULL;

    if (ldr_backend_open(&p, &b) != LARDER_OK) {
        fail_msg("%s: %s", url, ldr_fail_text());
    }
    return b;
}

static ldr_backend_t *open_port(unsigned port)
{
    char url[64];

    snprintf(url, sizeof(url), "valkey://127.0.0.1:%u", port);
    return open_url(url, "");
}

/* Makes the server there a tier. */
/* One of which is known that it is no cluster's. */
static ldr_backend_t *open_single(unsigned port)
{
    ldr_backend_t *b = open_port(port);

    ((ldr_valkey_t *)b)->kind = LDR_VALKEY_SINGLE;
    return b;
}

static void make_tier(const char *url, const char *login)
{
    ldr_backend_t *b = open_url(url, login);

    server_make_tier(b);
    b->ops->destroy(b);
}

static void make_tier_at(unsigned port)
{
    ldr_backend_t *b = open_port(port);

    server_make_tier(b);
    b->ops->destroy(b);
}

static const char *login_file(const char *name, const char *text, unsigned mode)
{
    static char path[300];
    FILE *f;

    snprintf(path, sizeof(path), "%s/%s", secrets, name);
    f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    assert_int_equal(chmod(path, mode), 0);
    return path;
}

/* An error, and a text that does not have the password in it. */
static void check_says(int error, int want)
{
    if (error != want) {
        fail_msg("%d, not %d: %s", error, want, ldr_fail_text());
    }
    assert_true(ldr_fail_text()[0] != '\0');
    assert_null(strstr(ldr_fail_text(), SECRET));
}

static int setup(void **s)
{
    (void)s;
    unsetenv("LARDER_SHARED_PASSWORD");
    return real_dir_make(secrets, sizeof(secrets), "valkey") ? 0 : -1;
}

static int teardown(void **s)
{
    (void)s;
    real_dir_remove(secrets);
    return 0;
}

#define NEEDS_REDIS()                                                          \
    do {                                                                       \
        if (redis_program() == NULL) {                                         \
            print_message(                                                     \
                "no redis-server here: scripts/install-deps test\n");          \
            skip();                                                            \
        }                                                                      \
    } while (0)

/* ---- the url ---- */

static void test_urls(void **s)
{
    static const char *const good[] = {
        "valkey://localhost",
        "valkey://a.example:1/15",
        "valkey://me@10.0.0.1:6379/0",
        "valkey://[::1]:6379",
        "valkey://[::1]",
        "valkey://me@a:1,b,[::1]:2",
        "valkeys://h:1?ca=/a",
        "valkeys://h/2?ca=/a&cert=%2Fb&key=/c",
    };
    static const char *const bad[] = {
        "valkey://",          "valkey:///1",
        "valkey://h:1/x",     "valkey://h:1/123456789",
        "valkey://h:99999",   "valkey://h:1?ca=/a",
        "valkeys://h?x=1",    "valkeys://h?ca=",
        "valkeys://h?ca=/a&", "valkeys://h?ca=/a&ca=/b",
        "valkeys://h?ca=%2",  "valkey://@h:1",
        "valkey://[::1",      "valkey://me:" SECRET "@h:1",
        "valkey://a:1,",      "valkey://,a:1",
    };

    (void)s;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        ldr_backend_t *b = open_url(good[i], "");
        b->ops->destroy(b);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        const ldr_backend_params_t p = {.url = bad[i], .login = ""};
        ldr_backend_t *b = NULL;

        if (ldr_backend_open(&p, &b) != LARDER_E_INVALID) {
            fail_msg("%s was taken", bad[i]);
        }
        assert_non_null(strstr(ldr_fail_text(), "valkey"));
        assert_null(strstr(ldr_fail_text(), SECRET));
    }
}

/* ---- a real server ---- */

static ldr_backend_t *contract_open(void *arg)
{
    const redis_t *r = arg;

    return open_port(r->port);
}

static void test_contract(void **s)
{
    redis_t r = {0};
    contract_t c = {.open = contract_open, .arg = &r};

    (void)s;
    NEEDS_REDIS();
    redis_start(&r, false, NULL);
    make_tier_at(r.port);
    contract_run(&c);
    redis_end(&r);
}

typedef struct with_tls {
    char url[700];
    const char *login;
} with_tls_t;

static ldr_backend_t *contract_open_tls(void *arg)
{
    const with_tls_t *t = arg;

    return open_url(t->url, t->login);
}

static const char *in_secrets(char *path, const char *name)
{
    snprintf(path, 300, "%s/%s", secrets, name);
    return path;
}

static void test_contract_tls(void **s)
{
    char ca[300], cert[300], key[300], login[300];
    with_tls_t t = {.login = login};
    contract_t c = {.open = contract_open_tls,
                    .arg = &t,
                    .many = 1010,
                    .large = (size_t)3 << 20,
                    .kills = 2};
    redis_t r = {0};

    (void)s;
    NEEDS_REDIS();
    cert_t authority = cert_one("the authority", NULL, NULL);
    cert_t server = cert_one("server", "IP:127.0.0.1", &authority);
    cert_save(&authority, secrets, "ca", NULL);
    cert_save(&server, secrets, "server", NULL);
    cert_free(&authority);
    cert_free(&server);
    const char *const extra[] = {
        "--tls-cert-file",
        in_secrets(cert, "server.pem"),
        "--tls-key-file",
        in_secrets(key, "server.key"),
        "--tls-ca-cert-file",
        in_secrets(ca, "ca.pem"),
        "--tls-auth-clients",
        "no",
        "--user",
        "default",
        "off",
        "--user",
        "kv",
        "on",
        ">" SECRET,
        "~larder:*",
        "+@all",
        "-@dangerous",
        NULL,
    };
    redis_start(&r, true, extra);
    snprintf(
        login, sizeof(login), "%s",
        login_file("login", "# for the tier\npassword=" SECRET "\n", 0600));
    snprintf(t.url, sizeof(t.url), "valkeys://kv@127.0.0.1:%u/3?ca=%s", r.port,
             ca);
    make_tier(t.url, login);
    contract_run(&c);
    /* Nobody without the authority's word for the server. */
    snprintf(t.url, sizeof(t.url), "valkeys://kv@127.0.0.1:%u/3", r.port);
    ldr_backend_t *b = contract_open_tls(&t);
    check_says(b->ops->health(b, in_ms(30000)), -EACCES);
    b->ops->destroy(b);
    redis_end(&r);
}

/* ---- who gets in ---- */

static void test_login(void **s)
{
    static const char *const extra[] = {"--requirepass", SECRET, NULL};
    static const struct {
        const char *text;
        unsigned mode;
        int error;
    } table[] = {
        {"password=" SECRET "\n", 0600, 0},
        {"\n#x\nother=1\r\npassword=" SECRET "\r\n", 0640, 0},
        {"password=" SECRET, 0600, 0},
        {"password=" SECRET "\n", 0604, -EACCES},     /* everybody's */
        {"password=not " SECRET "\n", 0600, -EACCES}, /* another */
        {"", 0600, -EACCES},
        {SECRET "\n", 0600, -EACCES}, /* no name */
        {"password=\n", 0600, -EACCES},
        {"password=" SECRET "\x01\n", 0600, -EACCES},
    };
    redis_t r = {0};
    char url[64];

    (void)s;
    NEEDS_REDIS();
    redis_start(&r, false, extra);
    snprintf(url, sizeof(url), "valkey://127.0.0.1:%u", r.port);
    make_tier(url, login_file("login", table[0].text, table[0].mode));
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        ldr_backend_t *b =
            open_url(url, login_file("login", table[i].text, table[i].mode));
        int error = b->ops->health(b, in_ms(30000));

        if (table[i].error == 0) {
            assert_int_equal(error, 0);
        } else {
            check_says(error, table[i].error);
        }
        b->ops->destroy(b);
    }
    ldr_backend_t *b = open_url(url, "/nowhere/login");
    check_says(b->ops->health(b, in_ms(30000)), -EACCES);
    b->ops->destroy(b);
    b = open_url(url, "");
    check_says(b->ops->health(b, in_ms(30000)), -EACCES);
    /* The environment, and a back end that was refused tries again. */
    setenv("LARDER_SHARED_PASSWORD", SECRET, 1);
    assert_int_equal(b->ops->health(b, in_ms(30000)), 0);
    unsetenv("LARDER_SHARED_PASSWORD");
    b->ops->destroy(b);
    redis_end(&r);
}

/* ---- full, read-only, evicted ---- */

static void test_full(void **s)
{
    static const char *const extra[] = {"--maxmemory", "8mb", NULL};
    redis_t r = {0};
    int error = 0;
    char name[64];

    (void)s;
    NEEDS_REDIS();
    redis_start(&r, false, extra);
    ldr_backend_t *b = open_port(r.port);
    for (unsigned i = 0; i < 20 && error == 0; i++) {
        snprintf(name, sizeof(name), "t/o/%u", i);
        error = contract_put(b, name, 1 << 20, LDR_OBJECT_NEW);
    }
    check_says(error, -ENOSPC);
    assert_non_null(strstr(ldr_fail_text(), name));
    /* Reading goes on, by the same connection; removing makes room. */
    contract_check(b, "t/o/0", 0, 1 << 20);
    contract_clear(b, "t/");
    assert_int_equal(contract_put(b, "t/o/again", 1 << 20, 0), 0);
    b->ops->destroy(b);
    redis_end(&r);
}

static void test_replica(void **s)
{
    char master[32];
    const char *extra[] = {"--replicaof", master, NULL};
    redis_t r = {0};

    (void)s;
    NEEDS_REDIS();
    snprintf(master, sizeof(master), "127.0.0.1 %u", server_port());
    redis_start(&r, false, extra);
    ldr_backend_t *b = open_port(r.port);
    check_says(contract_put(b, "t/a", 100, LDR_OBJECT_NEW), -EROFS);
    check_says(b->ops->remove(b, "t/a", in_ms(30000)), -EROFS);
    b->ops->destroy(b);
    redis_end(&r);
}

static int count_names(void *arg, const char *name, uint64_t bytes)
{
    (void)name;
    (void)bytes;
    ++*(unsigned *)arg;
    return 0;
}

static void test_evicted(void **s)
{
    redis_t r = {0};
    unsigned names = 0;
    char command[300];
    uint64_t bytes;

    (void)s;
    NEEDS_REDIS();
    redis_start(&r, false, NULL);
    ldr_backend_t *b = open_port(r.port);
    assert_int_equal(contract_put(b, "t/a", 1000, LDR_OBJECT_NEW), 0);
    assert_int_equal(contract_put(b, "t/empty", 0, LDR_OBJECT_NEW), 0);
    assert_int_equal(b->ops->size(b, "t/empty", &bytes, in_ms(30000)), 0);
    assert_int_equal(bytes, 0);
    assert_int_equal(b->ops->get(b, "t/empty", 0, NULL, 0, in_ms(30000)), 0);
    snprintf(command, sizeof(command),
             "redis-cli -p %u del larder:o:t/a >/dev/null", r.port);
    assert_int_equal(system(command), 0);
    assert_int_equal(
        b->ops->list(b, "t/", NULL, count_names, &names, in_ms(30000)), 0);
    assert_int_equal(names, 2);
    names = 0;
    assert_int_equal(contract_put(b, "u", 10, 0), 0);
    assert_int_equal(
        b->ops->list(b, "", "t/a", count_names, &names, in_ms(30000)), 0);
    assert_int_equal(names, 2); /* t/empty and u */
    assert_int_equal(b->ops->size(b, "t/a", &bytes, in_ms(30000)), -ENOENT);
    assert_int_equal(b->ops->remove(b, "t/a", in_ms(30000)), 0);
    assert_int_equal(b->ops->remove(b, "t/a", in_ms(30000)), -ENOENT);
    b->ops->destroy(b);
    redis_end(&r);
}

/* With a policy that evicts what expires, objects go and nothing else. */
static void test_volatile(void **s)
{
    static const char *const extra[] = {
        "--maxmemory", "8mb", "--maxmemory-policy", "volatile-lru", NULL};
    redis_t r = {0};
    char name[64];

    (void)s;
    NEEDS_REDIS();
    redis_start(&r, false, extra);
    ldr_backend_t *b = open_port(r.port);
    assert_int_equal(contract_put(b, "t/m/1", 10000, LDR_OBJECT_NEW), 0);
    assert_int_equal(contract_put(b, "t/e/1", 10000, LDR_OBJECT_NEW), 0);
    for (unsigned i = 0; i < 40; i++) { /* more than it has room for */
        snprintf(name, sizeof(name), "t/o/%u", i);
        assert_int_equal(contract_put(b, name, 1 << 20, i & LDR_OBJECT_NEW), 0);
    }
    contract_check(b, "t/m/1", 0, 10000);
    contract_check(b, "t/e/1", 0, 10000);
    b->ops->destroy(b);
    redis_end(&r);
}

/* ---- killed and stopped ---- */

static void test_restart(void **s)
{
    static const char *const extra[] = {"--appendonly", "yes", "--appendfsync",
                                        "always", NULL};
    redis_t r = {0};
    char name[64];

    (void)s;
    NEEDS_REDIS();
    redis_start(&r, false, extra);
    ldr_backend_t *b = open_port(r.port);
    server_make_tier(b);
    for (unsigned i = 0; i < 3; i++) {
        snprintf(name, sizeof(name), "t/o/%u", i);
        assert_int_equal(contract_put(b, name, 100000, LDR_OBJECT_NEW), 0);
        server_end(&r.pid, SIGKILL);
        check_says(b->ops->health(b, in_ms(30000)), -ECONNREFUSED);
        check_says(contract_put(b, "t/o/no", 1000, 0), -ECONNREFUSED);
        redis_up(&r);
        /* The idle connection of before is not tried. */
        uint64_t until = in_ms(30000);
        int error;
        while ((error = b->ops->health(b, until)) == -EBUSY) {
            real_pause(); /* it reads its file */
        }
        assert_int_equal(error, 0);
        for (unsigned j = 0; j <= i; j++) {
            snprintf(name, sizeof(name), "t/o/%u", j);
            contract_check(b, name, 0, 100000);
        }
    }
    b->ops->destroy(b);
    redis_end(&r);
}

/* Killed while a large value is on its way: an error, and no half of it. */
typedef struct killer {
    redis_t *r;
    unsigned after_us;
} killer_t;

static void *killer_main(void *arg)
{
    killer_t *k = arg;

    usleep(k->after_us);
    kill(k->r->pid, SIGKILL);
    return NULL;
}

static void test_killed_in_put(void **s)
{
    static const char *const extra[] = {"--appendonly", "yes", NULL};
    redis_t r = {0};
    unsigned failed = 0;

    (void)s;
    NEEDS_REDIS();
    redis_start(&r, false, extra);
    ldr_backend_t *b = open_port(r.port);
    server_make_tier(b);
    for (unsigned i = 0; i < 6; i++) {
        killer_t k = {&r, 500 + i * 4000};
        uint64_t bytes = 0;
        pthread_t thread;

        assert_int_equal(b->ops->health(b, in_ms(30000)), 0);
        assert_int_equal(pthread_create(&thread, NULL, killer_main, &k), 0);
        int put = contract_put(b, "t/big", (size_t)32 << 20, 0);
        pthread_join(thread, NULL);
        server_end(&r.pid, SIGKILL);
        failed += put != 0;
        if (put != 0 && put != -ECONNREFUSED) {
            check_says(put, -ECONNRESET);
        }
        redis_up(&r);
        while (b->ops->health(b, in_ms(30000)) == -EBUSY) {
            real_pause();
        }
        int size = b->ops->size(b, "t/big", &bytes, in_ms(30000));
        if (size == 0) {
            contract_check(b, "t/big", 0, (size_t)32 << 20);
        } else {
            assert_int_equal(size, -ENOENT);
        }
    }
    assert_true(failed > 0);
    b->ops->destroy(b);
    redis_end(&r);
}

static void test_stopped(void **s)
{
    redis_t r = {0};
    uint8_t data[100];
    struct iovec iov = {data, sizeof(data)};

    (void)s;
    NEEDS_REDIS();
    redis_start(&r, false, NULL);
    ldr_backend_t *b = open_port(r.port);
    assert_int_equal(contract_put(b, "t/a", 100, 0), 0);
    assert_int_equal(contract_put(b, "t/b", 100, 0), 0);
    assert_int_equal(kill(r.pid, SIGSTOP), 0);
    uint64_t before = real_now_ms();
    check_says(b->ops->get(b, "t/a", 0, &iov, 1, in_ms(200)), -ETIMEDOUT);
    check_says(b->ops->health(b, in_ms(200)), -ETIMEDOUT); /* a new one */
    iov.iov_base = calloc(1, 32 << 20);
    iov.iov_len = 32 << 20;
    check_says(b->ops->put(b, "t/c", &iov, 1, 0, in_ms(200)), -ETIMEDOUT);
    free(iov.iov_base);
    assert_true(real_now_ms() - before < 20000);
    assert_int_equal(kill(r.pid, SIGCONT), 0);
    /* Answers that come late are nobody's. */
    for (unsigned i = 0; i < 20; i++) {
        contract_check(b, "t/b", 0, 100);
        contract_check(b, "t/a", 50, 50);
    }
    b->ops->destroy(b);
    redis_end(&r);
}

/* ---- nonsense ---- */

static int count_one(void *arg, const char *name, uint64_t bytes)
{
    (void)arg;
    (void)name;
    (void)bytes;
    return 0;
}

#define ANSWER(text) (text), sizeof(text) - 1

static void test_nonsense(void **s)
{
    static const struct {
        const char *answer;
        size_t bytes;
        int get, list, put; /* 0: not tried */
    } table[] = {
        {ANSWER(""), -ECONNRESET, -ECONNRESET, -ECONNRESET},
        {ANSWER("HTTP/1.1 400 Bad\r\n\r\n"), -EPROTO, -EPROTO, -EPROTO},
        {ANSWER("\r\n"), -EPROTO, -EPROTO, -EPROTO},
        {ANSWER("$"), -ECONNRESET, -ECONNRESET, -ECONNRESET},
        {ANSWER("$10\r\n0123456789\r\n"), -EPROTO, -EPROTO, -EPROTO},
        {ANSWER("$4\r\n0123"), -ECONNRESET, -EPROTO, -EPROTO},
        {ANSWER("$4\r\n0123xy"), -EPROTO, -EPROTO, -EPROTO},
        {ANSWER("$4\r0123\r\n"), -EPROTO, -EPROTO, -EPROTO},
        {ANSWER("$-1\r\n"), -EPROTO, -EPROTO, -EPROTO},
        {ANSWER("$-2\r\n"), -EPROTO, -EPROTO, -EPROTO},
        {ANSWER("$04\r\n0123\r\n"), -EPROTO, -EPROTO, -EPROTO},
        {ANSWER("$99999999999999999999\r\n"), -EPROTO, -EPROTO, -EPROTO},
        {ANSWER("*-1\r\n"), -EPROTO, -EPROTO, -EPROTO},
        {ANSWER("*99999999\r\n"), -EPROTO, -EPROTO, -EPROTO},
        {ANSWER("*1\r\n$3\r\nx/a\r\n"), -EPROTO, -EPROTO, -EPROTO},
        {ANSWER("*2\r\n$3\r\nt/b\r\n$3\r\nt/a\r\n"), -EPROTO, -EPROTO, -EPROTO},
        {ANSWER("*1\r\n$3\r\nt/\x00\r\n"), -EPROTO, -EPROTO, -EPROTO},
        {ANSWER("*1\r\n$999\r\n"), -EPROTO, -EPROTO, -EPROTO},
        {ANSWER("*1\r\n:5\r\n"), -EPROTO, -EPROTO, -EPROTO},
        {ANSWER("-OOM no room\r\n"), -ENOSPC, -ENOSPC, -ECONNRESET},
        {ANSWER("-LOADING wait\r\n"), -EBUSY, -EBUSY, -ECONNRESET},
        {ANSWER("-MOVED 3999 127.0.0.1:6381\r\n"), -ENOTSUP, -ENOTSUP, 0},
        {ANSWER("-WHAT\r\n"), -EIO, -EIO, -ECONNRESET},
        {ANSWER("+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n"), -EPROTO, -EPROTO,
         -ECONNRESET},
        {ANSWER("+OK\r\n+QUEUED\r\n+OK\r\n"), -EPROTO, -EPROTO, -EPROTO},
        {ANSWER("+OK\r\n+QUEUED\r\n+QUEUED\r\n*3\r\n"), -EPROTO, -EPROTO,
         -EPROTO},
        {ANSWER("+OK\r\n-OOM x\r\n+QUEUED\r\n-EXECABORT y\r\n"), -EPROTO,
         -EPROTO, -ENOSPC},
        {ANSWER("+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n$-1\r\n:0\r\n"), -EPROTO,
         -EPROTO, -EEXIST},
    };
    uint8_t data[4];
    struct iovec iov = {data, sizeof(data)};

    (void)s;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        fake_t f = {0};
        fake_start(&f, table[i].answer, table[i].bytes);
        /* Each on a connection of its own: this server closes what it had. */
        ldr_backend_t *b = open_single(f.port);
        check_says(b->ops->get(b, "t/a", 0, &iov, 1, in_ms(30000)),
                   table[i].get);
        b->ops->destroy(b);
        b = open_single(f.port);
        check_says(b->ops->list(b, "t/", NULL, count_one, NULL, in_ms(30000)),
                   table[i].list);
        b->ops->destroy(b);
        b = open_single(f.port);
        if (table[i].put != 0) {
            check_says(
                b->ops->put(b, "t/a", &iov, 1, LDR_OBJECT_NEW, in_ms(30000)),
                table[i].put);
        }
        b->ops->destroy(b);
        fake_end(&f);
    }
}

/* A line without end, and one byte at a time. */
static void test_slow(void **s)
{
    static char endless[5000];
    fake_t f = {.hold = true};
    uint8_t data[4];
    struct iovec iov = {data, sizeof(data)};

    (void)s;
    memset(endless, 'x', sizeof(endless));
    endless[0] = '+';
    fake_start(&f, endless, sizeof(endless));
    ldr_backend_t *b = open_single(f.port);
    check_says(b->ops->get(b, "t/a", 0, &iov, 1, in_ms(30000)), -EPROTO);
    b->ops->destroy(b);
    fake_end(&f);

    f.dribble = true;
    fake_start(&f, endless, sizeof(endless)); /* it would take 100 s */
    b = open_single(f.port);
    uint64_t before = real_now_ms();
    check_says(b->ops->get(b, "t/a", 0, &iov, 1, in_ms(300)), -ETIMEDOUT);
    assert_true(real_now_ms() - before < 20000);
    b->ops->destroy(b);
    fake_end(&f);

    fake_start(&f, ANSWER("$4\r\nabcd\r\n"));
    b = open_single(f.port);
    assert_int_equal(b->ops->get(b, "t/a", 0, &iov, 1, in_ms(30000)), 0);
    assert_memory_equal(data, "abcd", 4);
    b->ops->destroy(b);
    fake_end(&f);
}

/* ---- lines ---- */

static void test_lines(void **s)
{
    static const struct {
        const char *line;
        bool ok;
        int64_t value;
    } table[] = {
        {":0", true, 0},
        {":-1", true, -1},
        {":123456789012345678", true, 123456789012345678},
        {":1234567890123456789", false, 0},
        {":", false, 0},
        {":-", false, 0},
        {":-0", false, 0},
        {":+1", false, 0},
        {":01", false, 0},
        {":1 ", false, 0},
        {"$0", true, 0},
        {"$-1", true, -1},
        {"$-3", false, 0},
        {"*7", true, 7},
        {"", false, 0},
        {"_", false, 0},
        {"%1", false, 0},
        {"+", true, 0},
        {"-", true, 0},
    };
    ldr_resp_item_t item;

    (void)s;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        const uint8_t *line = (const void *)table[i].line;

        if (ldr_resp_line(line, strlen(table[i].line), &item) != table[i].ok ||
            (table[i].ok && item.value != table[i].value)) {
            fail_msg("'%s'", table[i].line);
        }
    }
    assert_true(ldr_resp_line((const void *)"-a\x1b[1mb", 7, &item));
    assert_string_equal(item.text, "a?[1mb");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_urls),     cmocka_unit_test(test_lines),
        cmocka_unit_test(test_nonsense), cmocka_unit_test(test_slow),
        cmocka_unit_test(test_contract), cmocka_unit_test(test_contract_tls),
        cmocka_unit_test(test_login),    cmocka_unit_test(test_full),
        cmocka_unit_test(test_replica),  cmocka_unit_test(test_evicted),
        cmocka_unit_test(test_restart),  cmocka_unit_test(test_killed_in_put),
        cmocka_unit_test(test_stopped),  cmocka_unit_test(test_volatile),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
