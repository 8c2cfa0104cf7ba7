/*
 * Members by three real etcd servers on loopback, which are killed and stopped.
 * What takes minutes is in test_etcd_sim.c, on a virtual clock; this shows that
 * the servers are what is simulated there.
 */
#include <stdlib.h>

#include "cluster/options.h"

#include "cluster/cluster.h"
#include "cluster/source.h"
#include "net/certs.h"
#include "tier/shared/servers.h"

#define SERVERS 3u
#define NODES 4u
#define WAIT_MS 60000u
#define SECRET "0123456789abcdef0123456789abcdef\n"

typedef struct etcd {
    char dir[200], data[256], log[256], name[8];
    char client[64], peer[64], all[256];
    unsigned port, peer_port;
    pid_t pid;
} etcd_t;

static char secret[LDR_PATH_MAX], program[LDR_PATH_MAX];

/* In the path, or where scripts/install-deps puts it. */
static bool find_program(void)
{
    const char *build = getenv("LARDER_BUILD");

    if (server_has("etcd")) {
        snprintf(program, sizeof(program), "etcd");
        return true;
    }
    snprintf(program, sizeof(program), "%s/../tools/etcd",
             build != NULL ? build : "build/dev");
    return access(program, X_OK) == 0;
}

static int begin_all(void **state)
{
    (void)state;
    put_file(secret, SECRET);
    setenv("ETCD_UNSUPPORTED_ARCH", "arm64", 1); /* it asks for that there */
    return 0;
}

static int end_all(void **state)
{
    (void)state;
    return unlink(secret);
}

/* extra: more arguments, ended by NULL. */
static void etcd_up(etcd_t *e, const char *const *extra)
{
    const char *argv[40] = {
        "etcd",    "--name",
        e->name,   "--data-dir",
        e->data,   "--listen-client-urls",
        e->client, "--advertise-client-urls",
        e->client, "--listen-peer-urls",
        e->peer,   "--initial-advertise-peer-urls",
        e->peer,   "--initial-cluster",
        e->all,    "--heartbeat-interval",
        "100",     "--election-timeout",
        "1000",
    };
    unsigned n = 19;

    while (extra != NULL && *extra != NULL) {
        argv[n++] = *extra++;
    }
    argv[n] = NULL;
    /* Clients are let in once most servers are there. */
    e->pid = server_start(program, argv, e->log, e->peer_port);
}

static void etcd_prepare(etcd_t *e, unsigned count, bool tls)
{
    char all[256] = "";

    for (unsigned i = 0; i < count; i++) {
        size_t used = strlen(all);

        memset(&e[i], 0, sizeof(e[i]));
        assert_true(real_dir_make(e[i].dir, sizeof(e[i].dir), "etcd"));
        snprintf(e[i].data, sizeof(e[i].data), "%s/data", e[i].dir);
        snprintf(e[i].log, sizeof(e[i].log), "%s/log", e[i].dir);
        snprintf(e[i].name, sizeof(e[i].name), "e%u", i);
        e[i].port = server_port();
        e[i].peer_port = server_port();
        snprintf(e[i].client, sizeof(e[i].client), "%s://127.0.0.1:%u",
                 tls ? "https" : "http", e[i].port);
        snprintf(e[i].peer, sizeof(e[i].peer), "http://127.0.0.1:%u",
                 e[i].peer_port);
        snprintf(all + used, sizeof(all) - used, "%s%s=%s", i > 0 ? "," : "",
                 e[i].name, e[i].peer);
    }
    for (unsigned i = 0; i < count; i++) {
        memcpy(e[i].all, all, sizeof(all));
    }
}

static void etcd_end(etcd_t *e, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        char command[300];

        if (e[i].pid > 0) {
            kill(e[i].pid, SIGCONT);
        }
        server_end(&e[i].pid, SIGKILL);
        snprintf(command, sizeof(command), "rm -rf '%s'", e[i].dir);
        assert_int_equal(system(command), 0);
    }
}

static ldr_cluster_t *join(const etcd_t *e, unsigned count, unsigned node,
                           const char *query, const char *login)
{
    char url[LDR_OPTION_TEXT], name[16], address[32];
    ldr_cluster_t *c = NULL;
    size_t used = (size_t)snprintf(url, sizeof(url), "etcd://");

    for (unsigned i = 0; i < count; i++) {
        used += (size_t)snprintf(url + used, sizeof(url) - used,
                                 "%s127.0.0.1:%u", i > 0 ? "," : "", e[i].port);
    }
    snprintf(url + used, sizeof(url) - used, "/real%s", query);
    snprintf(name, sizeof(name), "n%u", node);
    snprintf(address, sizeof(address), "10.0.0.%u:7000", node);
    ldr_options_t o = options_of(url, name, secret);
    set_option(&o, "member_address", address);
    set_option(&o, "cluster_login", login);
    ldr_cluster_params_t p = {.options = &o};
    if (ldr_cluster_open(&p, &c) != LARDER_OK) {
        fail_msg("%s", larder_last_error());
    }
    ldr_cluster_returns(c);
    return c;
}

static unsigned seen(ldr_cluster_t *c)
{
    const ldr_view_t *v = ldr_cluster_view(c);
    unsigned bits = 0;

    for (uint32_t i = 0; i < v->count; i++) {
        bits |= 1u << (unsigned)(v->members[i].name[1] - '0');
    }
    ldr_view_give(v);
    return bits;
}

static void await(ldr_cluster_t **nodes, unsigned count, unsigned bits,
                  const char *what)
{
    uint64_t until = in_ms(WAIT_MS);

    for (unsigned i = 0; i < count; i++) {
        while (nodes[i] != NULL && seen(nodes[i]) != bits) {
            if (ldr_now_ns(&ldr_clock_real) > until) {
                ldr_cluster_stats_t s;

                ldr_cluster_stats(nodes[i], &s);
                fail_msg("%s: n%u sees %#x, not %#x; %s", what, i,
                         seen(nodes[i]), bits, s.trouble);
            }
            real_pause();
        }
    }
}

static void test_three(void **state)
{
    ldr_cluster_t *nodes[NODES] = {NULL};
    etcd_t e[SERVERS];
    uint64_t generation;

    (void)state;
    if (!find_program()) {
        print_message("no etcd here: scripts/install-deps test\n");
        skip();
    }
    etcd_prepare(e, SERVERS, false);
    for (unsigned i = 0; i < SERVERS; i++) {
        etcd_up(&e[i], NULL);
    }
    for (unsigned i = 0; i < 3; i++) {
        nodes[i] = join(e, SERVERS, i, "", "");
    }
    await(nodes, 3, 7, "three begin");

    /* One server is killed, and somebody joins. */
    server_end(&e[0].pid, SIGKILL);
    nodes[3] = join(e, SERVERS, 3, "", "");
    await(nodes, 4, 15, "a server killed");

    /* No quorum: nothing changes, whatever happens to members. */
    kill(e[1].pid, SIGSTOP);
    generation = ldr_cluster_generation(nodes[0]);
    assert_int_equal(ldr_cluster_leave(nodes[3], false, in_ms(3000)),
                     LARDER_E_DEADLINE);
    assert_int_equal(ldr_cluster_generation(nodes[0]), generation);
    assert_int_equal(seen(nodes[0]), 15);

    kill(e[1].pid, SIGCONT);
    etcd_up(&e[0], NULL);
    ldr_cluster_close(nodes[3]);
    nodes[3] = NULL;
    await(nodes, 3, 7, "servers are back");

    /* A server that is stopped says nothing: members leave all the same. */
    kill(e[2].pid, SIGSTOP);
    uint64_t until = in_ms(WAIT_MS);
    while (ldr_cluster_leave(nodes[2], false, in_ms(5000)) != LARDER_OK) {
        assert_true(ldr_now_ns(&ldr_clock_real) < until);
    }
    ldr_cluster_close(nodes[2]);
    nodes[2] = NULL;
    await(nodes, 2, 3, "a server stopped");
    ldr_cluster_close(nodes[0]);
    ldr_cluster_close(nodes[1]);
    etcd_end(e, SERVERS);
}

/* ---- users ---- */

static bool drop(void *arg, const char *bytes, size_t count)
{
    (void)arg;
    (void)bytes;
    (void)count;
    return true;
}

static void ask(const etcd_t *e, const char *path, const char *body)
{
    const ldr_http_t *http = NULL;
    char url[128];
    long status = 0;
    ldr_http_request_t r = {.url = url,
                            .body = body,
                            .token = "",
                            .ca = "",
                            .cert = "",
                            .key = "",
                            .timeout_ms = 20000,
                            .take = drop};

    assert_int_equal(ldr_http_real(&http), LARDER_OK);
    snprintf(url, sizeof(url), "%s/v3/%s", e->client, path);
    assert_int_equal(http->post(http->arg, &r, &status), 0);
    assert_int_equal(status, 200);
}

static void test_user(void **state)
{
    char login[LDR_PATH_MAX], wrong[LDR_PATH_MAX];
    ldr_cluster_t *nodes[2], *refused;
    ldr_cluster_stats_t stats;
    etcd_t e;

    (void)state;
    if (!find_program()) {
        skip();
    }
    etcd_prepare(&e, 1, false);
    etcd_up(&e, NULL);
    while (!server_is_there(e.port)) {
        real_pause();
    }
    ask(&e, "auth/user/add", "{\"name\":\"root\",\"password\":\"s e\"}");
    ask(&e, "auth/role/add", "{\"name\":\"root\"}");
    ask(&e, "auth/user/grant", "{\"user\":\"root\",\"role\":\"root\"}");
    ask(&e, "auth/enable", "{}");
    put_file(login, "user=root\npassword=s e\n");
    put_file(wrong, "user=root\npassword=other\n");
    nodes[0] = join(&e, 1, 0, "", login);
    nodes[1] = join(&e, 1, 1, "", login);
    refused = join(&e, 1, 2, "", wrong);
    await(nodes, 2, 3, "with a user");
    uint64_t until = in_ms(WAIT_MS);
    do {
        real_pause();
        ldr_cluster_stats(refused, &stats);
        assert_true(ldr_now_ns(&ldr_clock_real) < until);
    } while (stats.source_failures == 0);
    assert_int_equal(stats.registered, 0);
    ldr_cluster_close(refused);
    ldr_cluster_close(nodes[0]);
    ldr_cluster_close(nodes[1]);
    etcd_end(&e, 1);
    unlink(login);
    unlink(wrong);
}

/* ---- TLS ---- */

static void test_tls(void **state)
{
    char ca[256], cert[256], key[256], query[800];
    ldr_cluster_t *nodes[2];
    etcd_t e;

    (void)state;
    if (!find_program()) {
        skip();
    }
    etcd_prepare(&e, 1, true);
    cert_t root = cert_one("ours", NULL, NULL);
    cert_t server = cert_one("etcd", "IP:127.0.0.1", &root);
    cert_t client = cert_one("larder", "DNS:larder", &root);
    cert_save(&root, e.dir, "ca", NULL);
    cert_save(&server, e.dir, "etcd", NULL);
    cert_save(&client, e.dir, "own", NULL);
    snprintf(ca, sizeof(ca), "%s/ca.pem", e.dir);
    snprintf(cert, sizeof(cert), "%s/etcd.pem", e.dir);
    snprintf(key, sizeof(key), "%s/etcd.key", e.dir);
    const char *const extra[] = {
        "--cert-file",       cert, "--key-file",         key,
        "--trusted-ca-file", ca,   "--client-cert-auth", NULL};
    etcd_up(&e, extra);
    snprintf(query, sizeof(query), "?ca=%s&cert=%s/own.pem&key=%s/own.key", ca,
             e.dir, e.dir);
    nodes[0] = join(&e, 1, 0, query, "");
    nodes[1] = join(&e, 1, 1, query, "");
    await(nodes, 2, 3, "with TLS");
    ldr_cluster_close(nodes[0]);
    ldr_cluster_close(nodes[1]);
    cert_free(&root);
    cert_free(&server);
    cert_free(&client);
    etcd_end(&e, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_three),
        cmocka_unit_test(test_user),
        cmocka_unit_test(test_tls),
    };

    return cmocka_run_group_tests(tests, begin_all, end_all);
}
