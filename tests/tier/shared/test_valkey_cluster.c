/*
 * The shared tier in a cluster: six real servers, three primaries and a replica
 * of each. One is killed, and slots move from one to another under load.
 */
#include "tier/shared/contract.h"
#include "tier/shared/redis.h"
#include "tier/shared/valkey.h"

#define SERVERS 6u
#define PRIMARIES 3u
#define OBJECTS 96u
#define TIMEOUT_MS "2000" /* of the cluster, until a server counts as gone */

static redis_t servers[SERVERS];

/* redis-cli; its output must have this text, if there is one. */
static bool cli(const char *says, const char *format, ...)
{
    char words[960], command[1024], line[512];
    bool found = says == NULL;
    va_list args;

    va_start(args, format);
    vsnprintf(words, sizeof(words), format, args);
    va_end(args);
    snprintf(command, sizeof(command), "redis-cli %s 2>&1", words);
    FILE *out = popen(command, "r");
    assert_non_null(out);
    while (fgets(line, sizeof(line), out) != NULL) {
        found = found || strstr(line, says) != NULL;
    }
    return pclose(out) == 0 && found;
}

static void start_servers(void)
{
    char bus[8], all[SERVERS * 24] = "";

    for (unsigned i = 0; i < SERVERS; i++) {
        const char *extra[] = {"--cluster-enabled",
                               "yes",
                               "--cluster-port",
                               bus,
                               "--cluster-node-timeout",
                               TIMEOUT_MS,
                               "--cluster-replica-validity-factor",
                               "0",
                               NULL};

        snprintf(bus, sizeof(bus), "%u", server_port());
        redis_start(&servers[i], false, extra);
        snprintf(all + strlen(all), 24, " 127.0.0.1:%u", servers[i].port);
    }
    assert_true(cli(
        NULL, "--cluster create%s --cluster-replicas 1 --cluster-yes", all));
    uint64_t until = in_ms(60000);
    for (unsigned i = 0; i < SERVERS; i++) {
        while (
            !cli("cluster_state:ok", "-p %u cluster info", servers[i].port)) {
            assert_true(ldr_now_ns(&ldr_clock_real) < until);
            real_pause();
        }
    }
}

static ldr_backend_t *open_url(const char *url)
{
    ldr_backend_params_t p = {.url = url, .login = "", .threads = 4};
    ldr_backend_t *b;

    assert_int_equal(ldr_backend_open(&p, &b), LARDER_OK);
    return b;
}

/* By one server's address. */
static ldr_backend_t *open_cluster(void *arg)
{
    char url[64];

    (void)arg;
    snprintf(url, sizeof(url), "valkey://127.0.0.1:%u", servers[1].port);
    return open_url(url);
}

static int setup(void **s)
{
    (void)s;
    unsetenv("LARDER_SHARED_PASSWORD");
    if (redis_program() == NULL || !server_has("redis-cli")) {
        return 0;
    }
    start_servers();
    ldr_backend_t *b = open_cluster(NULL);
    server_make_tier(b);
    b->ops->destroy(b);
    return 0;
}

static int teardown(void **s)
{
    (void)s;
    for (unsigned i = 0; i < SERVERS; i++) {
        char file[300];

        snprintf(file, sizeof(file), "%s/nodes.conf", servers[i].dir);
        unlink(file);
        redis_end(&servers[i]);
    }
    return 0;
}

#define NEEDS_SERVERS()                                                        \
    do {                                                                       \
        if (servers[0].pid == 0) {                                             \
            print_message("no redis-server: scripts/install-deps test\n");     \
            skip();                                                            \
        }                                                                      \
    } while (0)

/* ---- tags ---- */

static void test_tags(void **s)
{
    unsigned count[LDR_VALKEY_TAGS] = {0};
    ldr_valkey_t *v;
    char name[32];

    (void)s;
    v = (ldr_valkey_t *)open_url("valkey://h:1");
    /* One in each part; "0" is hashed as every cluster does it. */
    for (unsigned i = 0; i < LDR_VALKEY_TAGS; i++) {
        assert_int_equal(v->tags[i].slot / (LDR_VALKEY_SLOTS / LDR_VALKEY_TAGS),
                         i);
        if (strcmp(v->tags[i].text, "0") == 0) {
            assert_int_equal(v->tags[i].slot, 13907);
        }
    }
    for (unsigned i = 0; i < 64000; i++) {
        snprintf(name, sizeof(name), "t/o/%08x", i * 2654435761u);
        count[ldr_valkey_tag(name)]++;
    }
    for (unsigned i = 0; i < LDR_VALKEY_TAGS; i++) {
        assert_in_range(count[i], 800, 1200);
    }
    v->base.ops->destroy(&v->base);
}

/* ---- real servers ---- */

static void test_contract(void **s)
{
    contract_t c = {.open = open_cluster, .kills = 3};

    (void)s;
    NEEDS_SERVERS();
    contract_run(&c);
}

static void object_name(char name[32], unsigned i)
{
    snprintf(name, 32, "t/o/object-%u", i);
}

static void put_objects(ldr_backend_t *b)
{
    char name[32];

    for (unsigned i = 0; i < OBJECTS; i++) {
        object_name(name, i);
        assert_int_equal(contract_put(b, name, 5000 + i, 0), 0);
    }
}

/* Every primary has its share. */
static void test_spread(void **s)
{
    unsigned with = 0;

    (void)s;
    NEEDS_SERVERS();
    ldr_backend_t *b = open_cluster(NULL);
    put_objects(b);
    for (unsigned i = 0; i < PRIMARIES; i++) {
        with += cli("o:{", "-p %u --scan --pattern 'larder:o:*t/o/object-*'",
                    servers[i].port);
    }
    assert_int_equal(with, PRIMARIES);
    contract_clear(b, "t/");
    b->ops->destroy(b);
}

/* The first address of the url is nobody's. */
static void test_seeds(void **s)
{
    char url[96];

    (void)s;
    NEEDS_SERVERS();
    snprintf(url, sizeof(url), "valkey://127.0.0.1:%u,127.0.0.1:%u",
             server_port(), servers[0].port);
    ldr_backend_t *b = open_url(url);
    assert_int_equal(b->ops->health(b, in_ms(30000)), 0);
    b->ops->destroy(b);
}

static void *move_slots(void *arg)
{
    bool *done = arg;

    *done = cli(NULL,
                "--cluster rebalance 127.0.0.1:%u --cluster-weight "
                "$(redis-cli -p %u cluster myid)=3 --cluster-threshold 1",
                servers[0].port, servers[0].port);
    return NULL;
}

/* Slots move while objects are put, read and listed: no call fails. */
static void test_moving(void **s)
{
    bool done = false;
    char name[32];
    pthread_t thread;
    unsigned rounds = 0;

    (void)s;
    NEEDS_SERVERS();
    ldr_backend_t *b = open_cluster(NULL);
    put_objects(b);
    assert_int_equal(pthread_create(&thread, NULL, move_slots, &done), 0);
    while (pthread_tryjoin_np(thread, NULL) != 0) {
        object_name(name, rounds % OBJECTS);
        contract_check(b, name, 0, 5000 + rounds % OBJECTS);
        assert_int_equal(contract_put(b, name, 5000 + rounds % OBJECTS, 0), 0);
        rounds++;
    }
    assert_true(done);
    for (unsigned i = 0; i < OBJECTS; i++) {
        object_name(name, i);
        contract_check(b, name, 0, 5000 + i);
    }
    print_message("%u rounds while slots moved\n", rounds);
    contract_clear(b, "t/");
    b->ops->destroy(b);
}

/* A primary dies: its replica takes over, and what it had is found there. */
static void test_failover(void **s)
{
    unsigned left = OBJECTS;
    uint64_t until = in_ms(60000);
    char name[32];

    (void)s;
    NEEDS_SERVERS();
    ldr_backend_t *b = open_cluster(NULL);
    put_objects(b);
    assert_true(cli(NULL, "-p %u wait 1 5000", servers[0].port));
    kill(servers[0].pid, SIGKILL);
    while (left > 0) {
        uint64_t before = real_now_ms(), bytes = 0;

        object_name(name, left - 1);
        if (b->ops->size(b, name, &bytes, in_ms(30000)) == 0) {
            contract_check(b, name, 0, 5000 + left - 1);
            assert_int_equal(contract_put(b, name, 5000 + left - 1, 0), 0);
            left--;
        } else {
            assert_true(ldr_now_ns(&ldr_clock_real) < until);
            assert_true(real_now_ms() - before < 40000);
            real_pause();
        }
    }
    contract_clear(b, "t/");
    b->ops->destroy(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tags),   cmocka_unit_test(test_contract),
        cmocka_unit_test(test_spread), cmocka_unit_test(test_seeds),
        cmocka_unit_test(test_moving), cmocka_unit_test(test_failover),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
