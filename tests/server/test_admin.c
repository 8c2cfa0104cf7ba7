/*
 * Admin HTTP on a real node that has really saved and loaded: who gets what,
 * what is refused, and that every metric of the table is there.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/metrics.h"
#include "cluster/cluster.h"
#include "node/load.h"
#include "node/metrics.h"
#include "server/admin.h"
#include "server/monitor.h"

#define BYTES 200000u
#define KEYS 20u
#define ANSWER_MAX ((size_t)4 << 20)

typedef struct fix {
    char dir[64];
    ldr_node_t *node;
    ldr_server_metrics_t *metrics;
    ldr_monitor_t *monitor;
    ldr_admin_t *admin;
    uint32_t space, tenant;
    bool ready;
    int gate[2];  /* a byte for each question that waits for one */
    char *answer; /* of the last request */
} fix_t;

/* ---- a node with something in it ---- */

static larder_key_t key_of(uint32_t i)
{
    larder_key_t key = {{0}};

    memcpy(&key, &i, sizeof(i));
    return key;
}

static void put(fix_t *f, uint32_t i)
{
    larder_key_t key = key_of(i);
    uint8_t *data = calloc(1, BYTES);
    struct iovec iov = {data, BYTES};
    larder_item_t item = {.key = &key, .iov = &iov, .iov_count = 1};
    ldr_target_t t = {f->space, 1, &item};
    ldr_stop_t stop = {NULL, UINT64_MAX};

    memset(data, (int)i, BYTES);
    ldr_node_put(f->node, &t, false, &stop);
    assert_int_equal(item.status, LARDER_OK);
    free(data);
}

static larder_status_t get(fix_t *f, uint32_t i)
{
    larder_key_t key = key_of(i);
    uint8_t *data = calloc(1, BYTES);
    struct iovec iov = {data, BYTES};
    larder_item_t item = {.key = &key, .iov = &iov, .iov_count = 1};
    ldr_load_t load = {.target = {f->space, 1, &item}};
    ldr_stop_t stop = {NULL, UINT64_MAX};

    if (!ldr_load_begin(f->node, &load)) {
        ldr_node_reads_go(f->node);
        ldr_load_wait(f->node, &load, UINT64_MAX);
    }
    if (load.status == LARDER_OK) {
        ldr_load_copy(f->node, &load, &stop);
        assert_int_equal(data[BYTES - 1], i);
    }
    larder_status_t st = load.status;
    ldr_load_end(f->node, &load, false);
    free(data);
    return st;
}

static void note(fix_t *f, ldr_opcode_t op, larder_status_t st, uint64_t us)
{
    ldr_metrics_request(f->metrics,
                        &(ldr_request_note_t){
                            .opcode = (uint16_t)op,
                            .transport = LDR_TRANSPORT_SHM,
                            .tenant = f->tenant,
                            .status = st,
                            .bytes_in = op == LDR_OP_PUT ? BYTES : 0,
                            .bytes_out = op == LDR_OP_GET ? BYTES : 0,
                            .ns = us * 1000,
                            .space = f->space,
                        });
}

static void work(fix_t *f)
{
    larder_key_t keys[KEYS + 1];
    larder_match_t match = {.struct_bytes = sizeof(match)};

    for (uint32_t i = 0; i <= KEYS; i++) {
        keys[i] = key_of(i);
    }
    for (uint32_t i = 0; i < KEYS; i++) {
        put(f, i);
        note(f, LDR_OP_PUT, LARDER_OK, 100 + i);
        assert_int_equal(get(f, i), LARDER_OK);
        note(f, LDR_OP_GET, LARDER_OK, 200 + i);
    }
    assert_int_equal(get(f, KEYS), LARDER_MISS);
    note(f, LDR_OP_GET, LARDER_E_DEADLINE, 5000000);
    ldr_node_match(f->node, f->space, 1, 0, keys, KEYS + 1, true, &match);
    assert_int_equal(match.chunks, KEYS);
    ldr_stop_t stop = {NULL, ldr_now_ns(&ldr_clock_real) + 30000000000u};
    assert_int_equal(ldr_node_flush(f->node, LARDER_TIER_SSD, &stop),
                     LARDER_OK);
}

/* ---- what the pages show ---- */

static size_t show_metrics(void *arg, char *text, size_t size)
{
    fix_t *f = arg;

    return ldr_server_metrics_text(f->node, f->metrics, LDR_NIL, text, size);
}

static bool show_ready(void *arg, char *why, size_t size)
{
    fix_t *f = arg;

    snprintf(why, size, "%s", f->ready ? "" : "draining");
    return f->ready;
}

static size_t show_config(void *arg, char *text, size_t size)
{
    (void)arg;
    return (size_t)snprintf(text, size, "{\"dram\":{\"value\":\"8M\"}}");
}

static size_t show_status(void *arg, uint64_t since_ms, char *text, size_t size)
{
    fix_t *f = arg;

    return ldr_server_status_json(f->monitor, since_ms, text, size);
}

static larder_status_t query_tenant(void *arg, const char *authorization,
                                    bool here, uint32_t *tenant_p)
{
    (void)arg, (void)here;
    *tenant_p = 7;
    return authorization != NULL && strcmp(authorization, "Bearer good") == 0
               ? LARDER_OK
               : ldr_fail(LARDER_E_DENIED, "who are you?");
}

/* Says how long the question was; a question that begins with '!' is wrong, and
 * one with '?' waits at the gate. */
static larder_status_t query(void *arg, uint32_t tenant, const char *body,
                             size_t bytes, char **text_p, size_t *length_p)
{
    const fix_t *f = arg;
    struct pollfd gate = {.fd = f->gate[0], .events = POLLIN};
    char byte;

    if (bytes > 0 && body[0] == '!') {
        return ldr_fail(LARDER_E_INVALID, "that is wrong");
    }
    if (bytes > 0 && body[0] == '?' &&
        (poll(&gate, 1, 20000) != 1 || read(f->gate[0], &byte, 1) != 1)) {
        return ldr_fail(LARDER_E_DEADLINE, "nobody opened the gate");
    }
    *text_p = ldr_alloc(64);
    assert_non_null(*text_p);
    *length_p = (size_t)snprintf(*text_p, 64, "{\"tenant\":%u,\"bytes\":%zu}",
                                 tenant, bytes);
    return LARDER_OK;
}

/* A cluster of three, for what is shown of it. */
static void open_cluster(fix_t *f)
{
    char secret[400], cluster[] = "static:a=h:1/z1,b=h:2/z2/3,c=h:3/z1/0";
    ldr_options_t o;
    ldr_cluster_params_t params = {.options = &o, .seed = 1};

    snprintf(secret, sizeof(secret), "%s/secret", f->dir);
    FILE *file = fopen(secret, "w");
    assert_non_null(file);
    assert_true(fputs("0123456789abcdef0123456789abcdef\n", file) >= 0);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(secret, 0600), 0);
    ldr_options_default(&o);
    snprintf(o.cluster, sizeof(o.cluster), "%s", cluster);
    snprintf(o.cluster_secret, sizeof(o.cluster_secret), "%.255s", secret);
    snprintf(o.member_name, sizeof(o.member_name), "a");
    assert_int_equal(ldr_cluster_open(&params, &f->metrics->cluster),
                     LARDER_OK);
}

static int setup(void **state)
{
    fix_t *f = calloc(1, sizeof(*f));
    ldr_node_env_t env = {0};
    ldr_log_t log = {0};
    ldr_options_t options;
    char url[200];
    ldr_space_info_t info = {.tenant = "acme", .label = "a \"label\""};
    ldr_admin_source_t source = {
        show_metrics, show_ready, show_config, show_status, query_tenant,
        query,        f};

    *state = f;
    f->ready = true;
    f->answer = calloc(1, ANSWER_MAX);
    assert_int_equal(pipe(f->gate), 0);
    snprintf(f->dir, sizeof(f->dir), "/tmp/larder-admin-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    /* A shared tier that is not there has its figures too. */
    snprintf(url, sizeof(url),
             "embed:%s?dram=16M&ssd=64M&io=plain&shared=dir:%s/none", f->dir,
             f->dir);
    assert_int_equal(ldr_options_parse(url, &options), LARDER_OK);
    assert_int_equal(ldr_node_open(&options, &env, &f->node), LARDER_OK);
    assert_int_equal(ldr_node_tenant(f->node,
                                     &(ldr_tenant_params_t){.name = "acme"},
                                     &f->tenant),
                     LARDER_OK);
    assert_int_equal(ldr_node_space(f->node, &info, &f->space), LARDER_OK);
    assert_true(ldr_metrics_create(&ldr_clock_real, &f->metrics));
    snprintf(f->metrics->admin_url, sizeof(f->metrics->admin_url), "%s",
             "http://127.0.0.1:1/");
    open_cluster(f);
    ldr_monitor_params_t params = {
        .node = f->node,
        .metrics = f->metrics,
        .ready = show_ready,
        .arg = f,
        .manual = true,
    };
    assert_int_equal(ldr_monitor_open(&params, &f->monitor), LARDER_OK);
    larder_status_t st =
        ldr_admin_open("127.0.0.1:0", &source, &log, &f->admin);
    if (st == LARDER_E_UNSUPPORTED) {
        print_message("SKIPPED: %s\n", ldr_fail_text());
        f->admin = NULL;
        return 0;
    }
    assert_int_equal(st, LARDER_OK);
    return 0;
}

static int teardown(void **state)
{
    fix_t *f = *state;
    struct dirent *e;
    char path[400];

    ldr_admin_close(f->admin);
    ldr_monitor_close(f->monitor);
    ldr_node_close(f->node, UINT64_MAX);
    ldr_cluster_close(f->metrics->cluster);
    ldr_metrics_destroy(f->metrics);
    DIR *dir = opendir(f->dir);
    while (dir != NULL && (e = readdir(dir)) != NULL) {
        snprintf(path, sizeof(path), "%s/%s", f->dir, e->d_name);
        unlink(path);
    }
    if (dir != NULL) {
        closedir(dir);
    }
    rmdir(f->dir);
    close(f->gate[0]);
    close(f->gate[1]);
    free(f->answer);
    free(f);
    return 0;
}

static fix_t *fix(void **state)
{
    fix_t *f = *state;

    if (f->admin == NULL) {
        skip();
    }
    return f;
}

/* ---- asking ---- */

static int dial(const fix_t *f)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons(ldr_admin_port(f->admin)),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    return fd;
}

/* Sends this and reads until the other side closes; last: and says that no
 * more will come. */
static const char *raw(fix_t *f, const char *request, size_t bytes, bool last)
{
    int fd = dial(f);
    size_t have = 0;
    ssize_t n;

    /* It may be cut off in the middle of what it does not like. */
    send(fd, request, bytes, MSG_NOSIGNAL);
    if (last) {
        shutdown(fd, SHUT_WR);
    }
    while (have + 1 < ANSWER_MAX &&
           (n = recv(fd, f->answer + have, ANSWER_MAX - have - 1, 0)) > 0) {
        have += (size_t)n;
    }
    f->answer[have] = '\0';
    close(fd);
    return f->answer;
}

static const char *ask(fix_t *f, const char *method, const char *path,
                       const char *host)
{
    char request[1000];

    snprintf(request, sizeof(request),
             "%s %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", method,
             path, host);
    return raw(f, request, strlen(request), false);
}

static int status_of(const char *answer)
{
    int code = 0;

    sscanf(answer, "HTTP/1.1 %d", &code);
    return code;
}

static const char *body_of(const char *answer)
{
    const char *at = strstr(answer, "\r\n\r\n");

    return at != NULL ? at + 4 : "";
}

static const char *page(fix_t *f, const char *path)
{
    const char *answer = ask(f, "GET", path, "127.0.0.1");

    assert_int_equal(status_of(answer), 200);
    return body_of(answer);
}

/* ---- tests ---- */

static void test_pages(void **state)
{
    static const struct {
        const char *path, *type, *inside;
    } pages[] = {
        {"/", "text/html", "<title>larder</title>"},
        {"/metrics", "text/plain; version=0.0.4", "\nlarder_entries "},
        {"/healthz", "text/plain", "ok\n"},
        {"/readyz", "text/plain", "ready\n"},
        {"/config", "application/json", "\"8M\""},
        {"/status.json", "application/json", "\"columns\":["},
    };
    static const char *const headers[] = {
        "Cache-Control: no-store", "X-Content-Type-Options: nosniff",
        "X-Frame-Options: DENY", "Referrer-Policy: no-referrer",
        "Cross-Origin-Resource-Policy: same-origin"};
    fix_t *f = fix(state);
    char type[100];

    for (size_t i = 0; i < sizeof(pages) / sizeof(pages[0]); i++) {
        const char *answer = ask(f, "GET", pages[i].path, "localhost:1");

        assert_int_equal(status_of(answer), 200);
        snprintf(type, sizeof(type), "Content-Type: %s", pages[i].type);
        assert_non_null(strstr(answer, type));
        assert_non_null(strstr(body_of(answer), pages[i].inside));
        for (size_t k = 0; k < sizeof(headers) / sizeof(headers[0]); k++) {
            assert_non_null(strstr(answer, headers[k]));
        }
        assert_null(strstr(answer, "Access-Control-"));
        answer = ask(f, "HEAD", pages[i].path, "localhost");
        assert_int_equal(status_of(answer), 200);
        assert_string_equal(body_of(answer), "");
    }
    /* The page may run its own script and nothing else. */
    const char *answer = ask(f, "GET", "/", "127.0.0.1");
    assert_non_null(strstr(answer, "Content-Security-Policy: default-src "
                                   "'none'; script-src 'sha256-"));
    assert_null(strstr(answer, "unsafe-inline"));
    assert_int_equal(strlen(body_of(answer)), ldr_dashboard_bytes);
}

static const char *post(fix_t *f, const char *token, const char *type,
                        const char *body, size_t bytes, size_t said)
{
    char *request = malloc(bytes + 1000);

    assert_non_null(request);
    int head = snprintf(request, 1000,
                        "POST /query HTTP/1.1\r\nHost: localhost\r\n"
                        "Authorization: %s\r\nContent-Type: %s\r\n"
                        "Content-Length: %zu\r\nConnection: close\r\n\r\n",
                        token, type, said);
    memcpy(request + head, body, bytes);
    const char *answer = raw(f, request, (size_t)head + bytes, said > bytes);
    free(request);
    return answer;
}

/* Who asks is asked first; then its question is read, up to a bound. */
static void test_questions(void **state)
{
    static const char good[] = "Bearer good", json[] = "application/json";
    const size_t most = 8u << 20;
    fix_t *f = fix(state);
    char *body = calloc(1, most + 1);

    assert_non_null(body);
    const char *answer = post(f, good, json, "{}", 2, 2);
    assert_int_equal(status_of(answer), 200);
    assert_string_equal(body_of(answer), "{\"tenant\":7,\"bytes\":2}");
    answer = post(f, good, "application/json; charset=utf-8", body, most, most);
    assert_string_equal(body_of(answer), "{\"tenant\":7,\"bytes\":8388608}");
    answer = post(f, good, json, body, most + 1, most + 1);
    assert_int_equal(status_of(answer), 413);
    answer = post(f, "Bearer bad", json, "{}", 2, 2);
    assert_int_equal(status_of(answer), 401);
    assert_non_null(strstr(answer, "WWW-Authenticate: Bearer"));
    assert_int_equal(status_of(post(f, good, "text/plain", "{}", 2, 2)), 415);
    assert_int_equal(status_of(post(f, good, "application/jsonx", "{}", 2, 2)),
                     415);
    answer = post(f, good, json, "!", 1, 1);
    assert_int_equal(status_of(answer), 400);
    assert_string_equal(body_of(answer), "that is wrong\n");
    /* One that ends in the middle gets no answer, and leaves nothing. */
    for (int i = 0; i < 8; i++) {
        post(f, good, json, body, most / 2, most);
    }
    answer = post(f, good, json, body, most, most);
    assert_int_equal(status_of(answer), 200);
    free(body);
}

/* A question of which nobody knows how long it takes. */
static int ask_slowly(const fix_t *f)
{
    static const char text[] = "POST /query HTTP/1.1\r\nHost: localhost\r\n"
                               "Authorization: Bearer good\r\n"
                               "Content-Type: application/json\r\n"
                               "Content-Length: 1\r\n"
                               "Connection: close\r\n\r\n?";
    int fd = dial(f);

    assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
    return fd;
}

static int status_at(int fd)
{
    char text[1000];
    size_t have = 0;
    ssize_t n;

    while ((n = recv(fd, text + have, sizeof(text) - have - 1, 0)) > 0) {
        have += (size_t)n;
    }
    text[have] = '\0';
    close(fd);
    return status_of(text);
}

/* Pages do not wait for questions, and the end waits for one at most. */
static void test_slow_questions(void **state)
{
    enum { COUNT = 3 };
    fix_t *f = fix(state);
    int asks[COUNT];

    for (int i = 0; i < COUNT; i++) {
        asks[i] = ask_slowly(f);
    }
    assert_non_null(strstr(page(f, "/metrics"), "larder_entries"));
    assert_int_equal(write(f->gate[1], "xxx", COUNT), COUNT);
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(status_at(asks[i]), 200);
    }
    close(ask_slowly(f)); /* it does not wait for its answer */
    assert_int_equal(write(f->gate[1], "x", 1), 1);
    for (int i = 0; i < COUNT; i++) {
        asks[i] = ask_slowly(f);
    }
    page(f, "/healthz");
    assert_int_equal(write(f->gate[1], "x", 1), 1);
    ldr_admin_close(f->admin);
    f->admin = NULL;
    for (int i = 0; i < COUNT; i++) {
        close(asks[i]);
    }
}

static void test_refusals(void **state)
{
    static const char *const strange[] = {
        "evil.example", "evil.example:9464", "127.0.0.1.evil.example",
        "10.0.0.1",     "0.0.0.0",           "",
        "[fe80::1]:80", "localhost.evil",    "[::1",
    };
    static const char *const ours[] = {"localhost", "LOCALHOST:80", "127.0.0.1",
                                       "127.9.9.9:1", "[::1]:9464"};
    static const char *const methods[] = {"POST", "PUT", "DELETE", "OPTIONS",
                                          "PATCH"};
    fix_t *f = fix(state);

    for (size_t i = 0; i < sizeof(strange) / sizeof(strange[0]); i++) {
        if (strcmp(strange[i], "[::1") != 0) {
            const char *answer = ask(f, "GET", "/metrics", strange[i]);

            assert_true(status_of(answer) >= 400);
            assert_null(strstr(answer, "larder_entries"));
        }
    }
    for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]); i++) {
        assert_int_equal(status_of(ask(f, "GET", "/metrics", ours[i])), 200);
    }
    for (size_t i = 0; i < sizeof(methods) / sizeof(methods[0]); i++) {
        const char *answer = ask(f, methods[i], "/", "localhost");

        assert_int_equal(status_of(answer), 405);
        assert_non_null(strstr(answer, "Allow: GET, HEAD"));
    }
    assert_int_equal(status_of(ask(f, "GET", "/etc/passwd", "localhost")), 404);
    assert_int_equal(status_of(ask(f, "GET", "/../metrics", "localhost")), 404);
    assert_int_equal(status_of(ask(f, "GET", "//", "localhost")), 404);
}

static void test_ready(void **state)
{
    fix_t *f = fix(state);

    f->ready = false;
    const char *answer = ask(f, "GET", "/readyz", "localhost");
    assert_int_equal(status_of(answer), 503);
    assert_string_equal(body_of(answer), "draining\n");
    assert_int_equal(status_of(ask(f, "GET", "/healthz", "localhost")), 200);
    assert_non_null(strstr(page(f, "/status.json"), "\"why\":\"draining\""));
}

/* Every row of the table has a value once the node has worked. */
static void test_metrics(void **state)
{
    fix_t *f = fix(state);

    work(f);
    ldr_metrics_session(f->metrics, LDR_TRANSPORT_SHM, f->tenant, 1);
    ldr_metrics_auth_fail(f->metrics, LDR_AUTH_FAIL_TOKEN);
    ldr_metrics_refused(f->metrics, LDR_REFUSAL_VERSION);
    ldr_metrics_level(f->metrics, LDR_LEVEL_LEASES, 3);
    ldr_metrics_event(f->metrics, LDR_EVENT_EXTENTS_RECLAIMED, 2);
    const char *text = page(f, "/metrics");
    for (int i = 0; i < LDR_METRIC_COUNT; i++) {
        const ldr_metric_info_t *m = &ldr_metric_table[i];
        bool histogram = m->type == LDR_METRIC_TYPE_HISTOGRAM;
        char series[200];

        if (strncmp(m->name, "larder_peer_", 12) == 0) {
            continue; /* of a member of a cluster: e2e/test_metrics.py */
        }
        if (strncmp(m->name, "larder_description", 18) == 0) {
            continue; /* where there are any: e2e/test_events_topics.py */
        }
        snprintf(series, sizeof(series), "\n%s%s%s", m->name,
                 histogram ? "_count" : "", m->labels[0] != '\0' ? "{" : " ");
        if (strstr(text, series) == NULL) {
            fail_msg("%s is not shown", m->name);
        }
    }
#define HAS(s) assert_non_null(strstr(text, "\n" s "\n"))
    HAS("larder_saves_total{tenant=\"acme\",outcome=\"stored\"} 20");
    HAS("larder_loads_total{tenant=\"acme\",tier=\"dram\"} 20");
    assert_non_null(strstr(text, ",label=\"a \\\"label\\\"\"} 1\n"));
    HAS("larder_misses_total{tenant=\"acme\",cause=\"absent\"} 1");
    HAS("larder_asked_chunks_total{tenant=\"acme\",outcome=\"found\"} 20");
    HAS("larder_asked_chunks_total{tenant=\"acme\",outcome=\"not_found\"} 1");
    HAS("larder_moved_bytes_total{tenant=\"acme\",direction=\"save\","
        "tier=\"dram\"} 4000000");
    HAS("larder_requests_total{op=\"get\",status=\"ok\"} 20");
    HAS("larder_requests_total{op=\"get\",status=\"late\"} 1");
    HAS("larder_request_seconds_count{op=\"get\"} 21");
    HAS("larder_errors_total{status=\"deadline\"} 1");
    HAS("larder_tenant_bytes_total{tenant=\"acme\",direction=\"in\"} 4000000");
    HAS("larder_sessions{transport=\"shm\"} 1");
    HAS("larder_auth_failures_total{reason=\"token\"} 1");
    HAS("larder_version_refusals_total 1");
    HAS("larder_leases 3");
    HAS("larder_reclaimed_extents_total 2");
    HAS("larder_mode{mode=\"on\"} 1");
    HAS("larder_write_amplification_ratio 1");
#undef HAS
}

/* A tenant sees its own figures and nobody else's. */
static void test_one_tenant(void **state)
{
    fix_t *f = *state;
    ldr_tenant_params_t other = {.name = "other"};
    uint32_t number;

    work(f);
    assert_int_equal(ldr_node_tenant(f->node, &other, &number), LARDER_OK);
    ldr_server_metrics_text(f->node, f->metrics, number, f->answer, ANSWER_MAX);
    assert_non_null(strstr(f->answer, "tenant=\"other\""));
    assert_null(strstr(f->answer, "acme"));
    assert_null(strstr(f->answer, f->dir));
    assert_null(strstr(f->answer, "larder_entries"));
    assert_null(strstr(f->answer, "process_"));
    assert_null(strstr(f->answer, "larder_member"));
}

/* ---- JSON ---- */

static const char *json_value(const char *s);

static const char *json_string(const char *s)
{
    assert_int_equal(*s++, '"');
    while (*s != '"') {
        assert_true((unsigned char)*s >= 0x20);
        s += *s == '\\' ? 2 : 1;
    }
    return s + 1;
}

static const char *json_members(const char *s, bool object, char close)
{
    s++;
    while (*s != close) {
        if (object) {
            s = json_string(s);
            assert_int_equal(*s++, ':');
        }
        s = json_value(s);
        if (*s == ',') {
            s++;
            assert_int_not_equal(*s, close);
        } else {
            assert_int_equal(*s, close);
        }
    }
    return s + 1;
}

static const char *json_value(const char *s)
{
    char *end;

    if (*s == '{') {
        return json_members(s, true, '}');
    }
    if (*s == '[') {
        return json_members(s, false, ']');
    }
    if (*s == '"') {
        return json_string(s);
    }
    if (strncmp(s, "true", 4) == 0 || strncmp(s, "null", 4) == 0) {
        return s + 4;
    }
    if (strncmp(s, "false", 5) == 0) {
        return s + 5;
    }
    strtod(s, &end);
    assert_ptr_not_equal(end, s);
    return end;
}

static unsigned rows_of(const char *json, uint64_t *last_p)
{
    const char *s = strstr(json, "\"rows\":[");
    unsigned rows = 0;

    assert_non_null(s);
    for (s += 8; *s == '[' || *s == ','; s = strchr(s, ']') + 1) {
        s += *s == ',';
        *last_p = strtoull(s + 1, NULL, 10);
        rows++;
    }
    return rows;
}

static void test_status(void **state)
{
    fix_t *f = fix(state);
    uint64_t last = 0;
    char path[100];

    const char *json = page(f, "/status.json");
    assert_string_equal(json_value(json), "");
    assert_int_equal(rows_of(json, &last), 0);
    work(f);
    ldr_monitor_look(f->monitor);
    json = page(f, "/status.json");
    assert_string_equal(json_value(json), "");
    assert_int_equal(rows_of(json, &last), 1);
#define HAS(s) assert_non_null(strstr(json, s))
    HAS("\"name\":\"acme\"");
    HAS("\"hits\":20,\"misses\":1,\"saves\":20");
    HAS("{\"op\":\"get\",\"total\":21,\"count\":21,");
    HAS("{\"group\":\"miss\",\"cause\":\"absent\",\"recent\":1,\"total\":1}");
    HAS("{\"group\":\"request\",\"cause\":\"deadline\",\"recent\":1,");
    /* The slowest comes first. */
    HAS("\"slow\":[{\"op\":\"get\",\"by\":\"shm\",\"tenant\":\"acme\",");
    HAS("\",\"bytes\":200000,\"ns\":5000000000,");
    HAS(f->dir);
#undef HAS
    /* A page that has this row is not sent it again. */
    snprintf(path, sizeof(path), "/status.json?since=%llu",
             (unsigned long long)last);
    json = page(f, path);
    assert_string_equal(json_value(json), "");
    assert_int_equal(rows_of(json, &last), 0);
    /* The history is a ring. */
    for (unsigned i = 0; i < LDR_MONITOR_ROWS + 5; i++) {
        ldr_monitor_look(f->monitor);
    }
    json = page(f, "/status.json");
    assert_string_equal(json_value(json), "");
    assert_int_equal(rows_of(json, &last), LDR_MONITOR_ROWS);
    /* A minute has passed in it, so nothing of the work is recent. */
    assert_non_null(strstr(json, "\"ops\":[]"));
    page(f, "/status.json?since=nonsense");
    page(f, "/status.json?since=99999999999999999999999999");
}

/* ---- the slowest ---- */

static void test_slowest(void **state)
{
    fix_t *f = *state;
    ldr_slow_t slow[LDR_METRICS_SLOW];

    assert_int_equal(ldr_metrics_slowest(f->metrics, slow), 0);
    for (uint64_t i = 1; i <= 1000; i++) {
        note(f, LDR_OP_GET, LARDER_OK, i * 7919 % 1009);
    }
    assert_int_equal(ldr_metrics_slowest(f->metrics, slow), LDR_METRICS_SLOW);
    for (unsigned i = 1; i < LDR_METRICS_SLOW; i++) {
        assert_true(slow[i - 1].ns >= slow[i].ns);
    }
    assert_int_equal(slow[0].ns, 1008000);
    assert_true(slow[LDR_METRICS_SLOW - 1].ns >= 1000000 - 32000);
    /* What is quicker than all of them does not even take the lock. */
    assert_int_equal(f->metrics->slow_floor_ns, slow[LDR_METRICS_SLOW - 1].ns);
    /* Old ones make room. */
    for (unsigned i = 0; i < LDR_METRICS_SLOW; i++) {
        f->metrics->slow[i].when_ms -= LDR_METRICS_SLOW_S * 1000 + 1;
    }
    assert_int_equal(ldr_metrics_slowest(f->metrics, slow), 0);
    note(f, LDR_OP_GET, LARDER_OK, 1);
    assert_int_equal(ldr_metrics_slowest(f->metrics, slow), 1);
    /* An opcode or a tenant that nobody knows is counted, not followed. */
    ldr_metrics_request(f->metrics,
                        &(ldr_request_note_t){.opcode = 60000,
                                              .tenant = 123456789,
                                              .status = LARDER_E_INVALID});
    assert_int_equal(f->metrics->ops[0].outcomes[LDR_OUTCOME_FAILED], 1);
}

/* ---- peers that do not behave ---- */

static void test_rude(void **state)
{
    static const char *const rubbish[] = {
        "\r\n\r\n\r\n",
        "GET\r\n\r\n",
        "\x16\x03\x01\x02",
        ("GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
         "99999999999999999999\r\n\r\n"),
    };
    fix_t *f = fix(state);
    enum { IDLE = 200 };
    int idle[IDLE];
    char *huge = malloc(100000);

    /* More than there may be, and none of them says anything. */
    for (int i = 0; i < IDLE; i++) {
        idle[i] = dial(f);
    }
    for (int i = 0; i < IDLE; i++) {
        close(idle[i]);
    }
    for (size_t i = 0; i < sizeof(rubbish) / sizeof(rubbish[0]); i++) {
        raw(f, rubbish[i], strlen(rubbish[i]), true);
        assert_null(strstr(f->answer, "HTTP/1.1 200"));
    }
    memset(huge, 'a', 100000);
    memcpy(huge, "GET /", 5);
    raw(f, huge, 100000, true);
    assert_null(strstr(f->answer, "HTTP/1.1 200"));
    free(huge);
    /* One that stops in the middle keeps nobody waiting. */
    int fd = dial(f);
    send(fd, "GET /metrics HT", 15, MSG_NOSIGNAL);
    page(f, "/healthz");
    close(fd);
}

static void test_open(void **state)
{
    fix_t *f = fix(state);
    ldr_admin_source_t source = {
        show_metrics, show_ready, show_config, show_status, query_tenant,
        query,        f};
    ldr_log_t log = {0};
    ldr_admin_t *other = NULL;
    char address[40];

    assert_int_equal(ldr_admin_open("nonsense", &source, &log, &other),
                     LARDER_E_INVALID);
    assert_non_null(strstr(ldr_fail_text(), "nonsense"));
    snprintf(address, sizeof(address), "127.0.0.1:%u",
             ldr_admin_port(f->admin));
    assert_int_equal(ldr_admin_open(address, &source, &log, &other),
                     LARDER_E_IO);
    assert_non_null(strstr(ldr_fail_text(), address));
    assert_null(other);
    ldr_admin_close(NULL);
    /* Closing with a connection open, which has asked and not read. */
    int fd = dial(f);
    send(fd, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", 35, MSG_NOSIGNAL);
    ldr_admin_close(f->admin);
    f->admin = NULL;
    close(fd);
}

#define ONE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ONE(test_pages),      ONE(test_questions), ONE(test_slow_questions),
        ONE(test_refusals),   ONE(test_ready),     ONE(test_metrics),
        ONE(test_one_tenant), ONE(test_status),    ONE(test_slowest),
        ONE(test_rude),       ONE(test_open),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
