/*
 * A daemon that is away, stopped, killed, restarted, or does not know us: what
 * a handle makes of it. Only with a daemon; LARDER_TEST_TRANSPORT says which.
 *
 * Calls are given deadlines of a few hundred milliseconds; that they end is
 * tested with a second and more to spare, since machines are busy.
 */
#include "client/away_rig.h"

#include <poll.h>
#include <sys/stat.h>

/* The first line of a test. */
static rig_t *begin(void **state, const char *options)
{
    rig_t *r = *state;
    char url[600];

    if (transport_is("embed")) {
        skip();
    }
    /* A small window: one of 64 MiB takes longer to make than some of these
     * calls may, on a busy machine. */
    snprintf(url, sizeof(url),
             "embed:%s?io=plain&dram=32M&ssd=64M&strict_window=2M&%s", r->dir,
             options);
    assert_true(daemon_prepare(&r->d, url));
    return r;
}

static larder_status_t open_url(const char *url, larder_t **lar_p)
{
    larder_open_params_t params = {
        .field_mask = LARDER_OPEN_LOG, .log = log_keep, .log_arg = &log_seen};

    return larder_open(url, &params, lar_p);
}

static void start_and_open(rig_t *r)
{
    start(r);
    assert_status(open_url(r->d.url, &r->lar), LARDER_OK);
    r->space = open_space(r->lar, "model", 1);
}

/* One item with a deadline; the time it took must be about that at most. */
static larder_item_t timed(rig_t *r, larder_op_t op, uint64_t n,
                           uint32_t timeout_ms)
{
    uint8_t *data = calloc(1, BYTES);
    larder_key_t key = key_of(n);
    struct iovec iov = {data, BYTES};
    larder_item_t item = {.key = &key, .iov = &iov, .iov_count = 1};
    larder_op_params_t params = {.field_mask = LARDER_OP_TIMEOUT,
                                 .timeout_ms = timeout_ms};
    uint64_t begin_ms = transport_now_ms();

    if (op == LARDER_OP_PUT) {
        content(n, data, BYTES);
    }
    assert_status(larder_run(r->space, op, &item, 1, &params), LARDER_OK);
    uint64_t ms = transport_now_ms() - begin_ms;
    if (ms > timeout_ms + SLACK_MS) {
        fail_msg("%llu ms instead of %u", (unsigned long long)ms, timeout_ms);
    }
    if (op == LARDER_OP_GET && item.status == LARDER_OK) {
        assert_true(content_is(n, data, BYTES));
    }
    free(data);
    return item;
}

/* Until an operation gives this status; fails when that takes for ever. */
static void until(rig_t *r, larder_op_t op, uint64_t n, larder_status_t want)
{
    uint64_t end_ms = transport_now_ms() + PATIENCE_MS;

    while (timed(r, op, n, 2000).status != want) {
        if (transport_now_ms() > end_ms) {
            daemon_show_log(&r->d);
            fail_msg("not in %d ms: %s", PATIENCE_MS, larder_last_error());
        }
        transport_pause();
    }
}

static larder_stats_t own_stats(rig_t *r)
{
    larder_stats_t s = {.struct_bytes = sizeof(s)};
    uint64_t end_ms = transport_now_ms() + PATIENCE_MS;

    while (larder_stats(r->lar, &s) != LARDER_OK) {
        assert_true(transport_now_ms() < end_ms);
        transport_pause();
    }
    return s;
}

/* ---- away ---- */

static void test_nobody_there(void **state)
{
    rig_t *r = begin(state, "timeout_ms=500");
    uint64_t begin_ms = transport_now_ms();

    assert_status(open_url(r->d.url, &r->lar), LARDER_E_OFFLINE);
    assert_null(r->lar);
    assert_true(transport_now_ms() - begin_ms < 500 + SLACK_MS);
    /* The text names where, and what is wrong. */
    char port[16];
    snprintf(port, sizeof(port), "%u", r->d.port);
    assert_non_null(
        strstr(larder_last_error(), r->d.port != 0 ? port : r->d.socket));
}

/* Opened before there is a daemon: misses until it comes, then hits. */
static void test_lazy(void **state)
{
    rig_t *r = begin(state, "connect=lazy&timeout_ms=5000&breaker_ms=100");
    larder_key_t key = key_of(1);
    larder_lease_t *lease = NULL;
    larder_match_t m = {.struct_bytes = sizeof(m)};
    larder_stats_t s = {.struct_bytes = sizeof(s)};
    size_t length = BYTES;
    larder_item_t item = {.key = &key};

    assert_status(open_url(r->d.url, &r->lar), LARDER_OK);
    r->space = open_space(r->lar, "model", 1);
    item = timed(r, LARDER_OP_GET, 1, 500);
    assert_status(item.status, LARDER_MISS);
    assert_int_equal(item.cause, LARDER_CAUSE_OFFLINE);
    assert_int_equal(timed(r, LARDER_OP_EXISTS, 1, 500).cause,
                     LARDER_CAUSE_OFFLINE);
    assert_status(timed(r, LARDER_OP_PUT, 1, 500).status, LARDER_E_OFFLINE);
    assert_status(timed(r, LARDER_OP_REMOVE, 1, 500).status, LARDER_E_OFFLINE);
    assert_status(larder_match(r->space, &key, 1, 0, &m), LARDER_OK);
    assert_int_equal(m.cause, LARDER_CAUSE_OFFLINE);
    assert_status(larder_stage(r->space, &key, 1, 0, 500, &lease, &m),
                  LARDER_MISS);
    assert_int_equal(m.cause, LARDER_CAUSE_OFFLINE);
    item = (larder_item_t){.key = &key};
    assert_status(larder_reserve(r->space, &item, &length, 1, 500, &lease), 0);
    assert_status(item.status, LARDER_E_OFFLINE);
    assert_null(lease);
    assert_status(larder_space_reset(r->space, 500), LARDER_E_OFFLINE);
    assert_status(larder_flush(r->lar, LARDER_TIER_DRAM, 500),
                  LARDER_E_OFFLINE);
    assert_true(strlen(larder_last_error()) > 0);
    assert_status(larder_stats(r->lar, &s), LARDER_E_OFFLINE);
    start(r);
    until(r, LARDER_OP_PUT, 1, LARDER_OK);
    assert_status(timed(r, LARDER_OP_GET, 1, 2000).status, LARDER_OK);
    s = own_stats(r);
    assert_true(s.client_offline >= 8);
    assert_true(s.client_calls > s.client_offline);
    assert_true(s.client_breaker >= 1);
    assert_true(s.client_connects >= 1);
}

/* ---- stopped ---- */

/* What the daemon leased or reserved for calls that had given up is given
 * back once it says so. */
static void test_late_replies(void **state)
{
    rig_t *r = begin(state, "timeout_ms=5000&breaker_ms=1");
    larder_key_t key = key_of(1);
    larder_lease_t *lease = NULL;
    larder_match_t m = {.struct_bytes = sizeof(m)};

    start_and_open(r);
    assert_status(timed(r, LARDER_OP_PUT, 1, 5000).status, LARDER_OK);
    daemon_freeze(&r->d);
    for (unsigned i = 0; i < 4; i++) {
        assert_status(timed(r, LARDER_OP_GET, 1, 100).status, LARDER_MISS);
        timed(r, LARDER_OP_PUT, 2 + i, 100);
        larder_stage(r->space, &key, 1, 0, 100, &lease, &m);
        assert_null(lease);
        transport_pause();
    }
    kill(r->d.pid, SIGCONT);
    until(r, LARDER_OP_GET, 1, LARDER_OK);
    uint64_t end_ms = transport_now_ms() + PATIENCE_MS;
    larder_stats_t s = own_stats(r);
    while (s.dram_leased_chunks > 0 && transport_now_ms() < end_ms) {
        larder_flush(r->lar, LARDER_TIER_SSD, 1000);
        transport_pause();
        s = own_stats(r);
    }
    assert_int_equal(s.dram_leased_chunks, 0);
}

/* Tickets end when they are canceled, and with the handle. */
static void test_stopped_tickets(void **state)
{
    enum { JOBS = 8 };
    rig_t *r = begin(state, "timeout_ms=600000&workers=2");
    larder_key_t keys[JOBS];
    larder_item_t items[JOBS];
    larder_ticket_t tickets[JOBS];
    larder_completion_t done[JOBS];
    size_t n, drained = 0;

    start_and_open(r);
    daemon_freeze(&r->d);
    for (unsigned i = 0; i < JOBS; i++) {
        keys[i] = key_of(i);
        items[i] = (larder_item_t){.key = &keys[i]};
        assert_status(larder_submit(r->space, LARDER_OP_EXISTS, &items[i], 1,
                                    NULL, &tickets[i]),
                      LARDER_OK);
    }
    for (unsigned i = 0; i < JOBS / 2; i++) {
        assert_status(larder_cancel(r->lar, tickets[i]), LARDER_OK);
    }
    while (drained < JOBS / 2) {
        assert_status(larder_drain(r->lar, done, JOBS, LARDER_FOREVER, &n),
                      LARDER_OK);
        drained += n;
    }
    for (unsigned i = 0; i < JOBS / 2; i++) {
        assert_status(items[i].status, LARDER_E_CANCELED);
    }
    uint64_t begin_ms = transport_now_ms();
    larder_status_t st = larder_close(&r->lar, 1000);
    assert_true(st == LARDER_OK || st == LARDER_E_DEADLINE);
    assert_true(transport_now_ms() - begin_ms < 1000 + SLACK_MS);
    for (unsigned i = JOBS / 2; i < JOBS; i++) {
        assert_status(items[i].status, LARDER_E_CANCELED);
    }
}

/* ---- killed and restarted ---- */

static void test_restart(void **state)
{
    enum { KEYS = 20 };
    rig_t *r = begin(state, "timeout_ms=5000&breaker_ms=50");

    start_and_open(r);
    larder_space_t *second = open_space(r->lar, "second model", 2);
    for (unsigned round = 0; round < 3; round++) {
        for (uint64_t i = 0; i < KEYS; i++) {
            timed(r, LARDER_OP_PUT, i, 5000);
        }
        assert_status(larder_flush(r->lar, LARDER_TIER_SSD, LARDER_FOREVER), 0);
        daemon_stop(&r->d, round == 1 ? SIGTERM : SIGKILL);
        larder_item_t item = timed(r, LARDER_OP_GET, 1, 5000);
        assert_status(item.status, LARDER_MISS);
        assert_int_equal(item.cause, LARDER_CAUSE_OFFLINE);
        assert_status(timed(r, LARDER_OP_PUT, 99, 5000).status,
                      LARDER_E_OFFLINE);
        start(r);
        /* Connected again, spaces opened again, by itself. */
        until(r, LARDER_OP_GET, 0, LARDER_OK);
        for (uint64_t i = 0; i < KEYS; i++) {
            assert_status(timed(r, LARDER_OP_GET, i, 5000).status, LARDER_OK);
        }
        assert_status(exists_n(second, 1).status, LARDER_MISS);
    }
    assert_true(own_stats(r).client_connects >= 4);
    larder_space_close(&second);
}

/* Killed in the middle of things, again and again: nothing wrong is served,
 * nothing hangs. */
typedef struct worker {
    rig_t *r;
    unsigned number;
    uint64_t hits;
    bool wrong;
} worker_t;

static bool work_stop;

static void *work_main(void *arg)
{
    worker_t *w = arg;
    uint8_t *data = malloc(BYTES);
    ldr_rand_t rand;

    ldr_rand_seed(&rand, w->number);
    while (!__atomic_load_n(&work_stop, __ATOMIC_RELAXED)) {
        uint64_t n = ldr_rand_below(&rand, 50);
        larder_key_t key = key_of(n);
        struct iovec iov = {data, BYTES};
        larder_item_t item = {.key = &key, .iov = &iov, .iov_count = 1};
        larder_op_params_t p = {.field_mask = LARDER_OP_TIMEOUT,
                                .timeout_ms = 1000};
        bool put = ldr_rand_below(&rand, 2) == 0;

        if (put) {
            content(n, data, BYTES);
        }
        larder_run(w->r->space, put ? LARDER_OP_PUT : LARDER_OP_GET, &item, 1,
                   &p);
        if (!put && item.status == LARDER_OK) {
            w->hits++;
            w->wrong |= item.length != BYTES || !content_is(n, data, BYTES);
        }
        w->wrong |= item.cause == LARDER_CAUSE_CORRUPT;
    }
    free(data);
    return NULL;
}

static void test_killed_under_load(void **state)
{
    enum { WORKERS = 3, KILLS = 6 };
    rig_t *r = begin(state, "timeout_ms=5000&breaker_ms=20");
    worker_t workers[WORKERS];
    pthread_t threads[WORKERS];
    uint64_t hits = 0;

    start_and_open(r);
    work_stop = false;
    for (unsigned i = 0; i < WORKERS; i++) {
        workers[i] = (worker_t){.r = r, .number = i};
        assert_int_equal(
            pthread_create(&threads[i], NULL, work_main, &workers[i]), 0);
    }
    for (unsigned i = 0; i < KILLS; i++) {
        struct timespec some = {0, 100000000 + 37000000 * (long)i};

        nanosleep(&some, NULL);
        daemon_stop(&r->d, i % 3 == 2 ? SIGTERM : SIGKILL);
        start(r);
        until(r, LARDER_OP_PUT, 1000 + i, LARDER_OK);
        hits += timed(r, LARDER_OP_GET, 1000 + i, 5000).status == LARDER_OK;
    }
    __atomic_store_n(&work_stop, true, __ATOMIC_RELAXED);
    for (unsigned i = 0; i < WORKERS; i++) {
        pthread_join(threads[i], NULL);
        assert_false(workers[i].wrong);
        hits += workers[i].hits;
    }
    assert_true(hits > 0);
}

/* Leases end with the daemon; what was seen of them can still be read. */
static void test_lease_outlives(void **state)
{
    rig_t *r = begin(state, "timeout_ms=5000&breaker_ms=50");
    larder_key_t keys[2] = {key_of(1), key_of(2)};
    larder_lease_t *lease = NULL, *room = NULL;
    larder_match_t m = {.struct_bytes = sizeof(m)};
    struct iovec seg[64], out[64];
    uint32_t n = 0, again = 0;
    size_t length = BYTES, at = 0;
    uint8_t *data = malloc(BYTES);
    bool shared = r->d.port == 0;

    start_and_open(r);
    assert_status(timed(r, LARDER_OP_PUT, 1, 5000).status, LARDER_OK);
    assert_status(larder_stage(r->space, keys, 1, 0, 0, &lease, &m), LARDER_OK);
    assert_status(larder_lease_segments(lease, 0, 0, seg, 64, &n), LARDER_OK);
    larder_item_t item = {.key = &keys[1]};
    assert_status(larder_reserve(r->space, &item, &length, 1, 0, &room), 0);
    assert_status(item.status, LARDER_OK);
    assert_status(larder_reserve_segments(room, 0, out, 64, &again), 0);
    daemon_stop(&r->d, SIGKILL);
    assert_int_equal(timed(r, LARDER_OP_GET, 1, 5000).cause,
                     LARDER_CAUSE_OFFLINE);
    for (uint32_t i = 0; i < n; i++) {
        memcpy(data + at, seg[i].iov_base, seg[i].iov_len);
        at += seg[i].iov_len;
    }
    assert_int_equal(at, BYTES);
    assert_true(content_is(1, data, BYTES));
    memset(out[0].iov_base, 1, out[0].iov_len);
    if (shared) {
        uint64_t end_ms = transport_now_ms() + PATIENCE_MS;

        while (larder_lease_segments(lease, 0, 0, seg, 64, &n) !=
                   LARDER_E_STALE &&
               transport_now_ms() < end_ms) {
            transport_pause();
        }
        assert_status(larder_lease_segments(lease, 0, 0, seg, 64, &n),
                      LARDER_E_STALE);
    }
    start(r);
    until(r, LARDER_OP_PUT, 100, LARDER_OK);
    larder_status_t status = LARDER_OK;
    uint32_t crc = 0;
    larder_status_t st =
        larder_commit(&room, NULL, shared ? &crc : NULL, &status, 0);
    assert_null(room);
    if (shared) {
        assert_status(st, LARDER_E_OFFLINE);
        assert_status(status, LARDER_E_OFFLINE);
        assert_status(exists_n(r->space, 2).status, LARDER_MISS);
    } else {
        assert_status(status, LARDER_OK); /* it was private until now */
    }
    larder_release(&lease);
    /* What is being written down is held as well. */
    assert_status(larder_flush(r->lar, LARDER_TIER_SSD, LARDER_FOREVER), 0);
    assert_int_equal(own_stats(r).dram_leased_chunks, 0);
    free(data);
}

/* ---- who gets in ---- */

static void write_file(const rig_t *r, const char *name, const char *text,
                       char *path, size_t size)
{
    snprintf(path, size, "%s/%s", r->d.dir, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    assert_int_equal(chmod(path, 0600), 0);
}

static void test_tenants(void **state)
{
    rig_t *r = begin(state, "timeout_ms=5000");
    char token[300], config[300], text[700], url[2500];
    larder_t *lar = NULL;
    larder_space_t *space = NULL;
    larder_space_params_t p = {.field_mask = LARDER_SPACE_TENANT,
                               .descriptor = "model",
                               .descriptor_bytes = 5,
                               .tenant = "anna"};

    write_file(r, "token", "0123456789abcdef0123\n", token, sizeof(token));
    snprintf(text, sizeof(text), "[tenant anna]\ntoken_file = %s\n", token);
    write_file(r, "config", text, config, sizeof(config));
    daemon_option(&r->d, "config", config);
    start_and_open(r);
    assert_status(put_n(r->space, 1, 1000), LARDER_OK);
    /* In a session of the default tenant. */
    assert_status(larder_space_open(r->lar, &p, &space), LARDER_E_DENIED);
    assert_null(space);
    assert_non_null(strstr(larder_last_error(), "tenant=anna"));
    /* Without a token, with another one, and with the right one. */
    snprintf(url, sizeof(url), "%s&tenant=anna", r->d.url);
    assert_status(open_url(url, &lar), LARDER_E_DENIED);
    assert_null(lar);
    snprintf(url, sizeof(url), "%s&tenant=anna&connect=lazy", r->d.url);
    assert_status(open_url(url, &lar), LARDER_E_DENIED);
    write_file(r, "token", "another-one-0123456789\n", token, sizeof(token));
    snprintf(url, sizeof(url), "%s&tenant=anna&token_file=%s", r->d.url, token);
    assert_status(open_url(url, &lar), LARDER_E_DENIED);
    assert_null(strstr(larder_last_error(), "another-one"));
    write_file(r, "token", "0123456789abcdef0123\n", token, sizeof(token));
    assert_status(open_url(url, &lar), LARDER_OK);
    /* The tenant need not be named again, and sees nobody else's. */
    p.field_mask = 0;
    assert_status(larder_space_open(lar, &p, &space), LARDER_OK);
    assert_status(exists_n(space, 1).status, LARDER_MISS);
    assert_status(put_n(space, 1, 2000), LARDER_OK);
    assert_status(get_n(space, 1, 2000).status, LARDER_OK);
    assert_status(get_n(r->space, 1, 1000).status, LARDER_OK);
    larder_space_close(&space);
    snprintf(url, sizeof(url), "%s&tenant=nobody", r->d.url);
    assert_status(larder_close(&lar, 0), LARDER_OK);
    assert_status(open_url(url, &lar), LARDER_E_DENIED);
}

/* ---- others ---- */

/* Two handles on one daemon: what one saves the other loads. */
static void test_two_handles(void **state)
{
    enum { KEYS = 50 };
    rig_t *r = begin(state, "timeout_ms=5000");
    larder_t *other = NULL;

    start_and_open(r);
    assert_status(open_url(r->d.url, &other), LARDER_OK);
    larder_space_t *space = open_space(other, "model", 1);
    for (uint64_t i = 0; i < KEYS; i++) {
        assert_status(put_n(r->space, i, BYTES), LARDER_OK);
        /* A commit does not wait; the next answer says that it arrived. */
        assert_status(exists_n(r->space, i).status, LARDER_OK);
        assert_status(get_n(space, i, BYTES).status, LARDER_OK);
        assert_status(put_n(space, i, BYTES), LARDER_PRESENT);
    }
    larder_space_close(&space);
    assert_status(larder_close(&other, 0), LARDER_OK);
    assert_status(get_n(r->space, 0, BYTES).status, LARDER_OK);
}

/* A bounce buffer instead of the arena: the same, at the price of a copy. */
static void test_strict(void **state)
{
    enum { KEYS = 40 };
    rig_t *r = begin(state, transport_is("strict")
                                ? "timeout_ms=5000"
                                : "timeout_ms=5000&isolation=strict");
    larder_key_t keys[KEYS];
    larder_item_t items[KEYS];
    struct iovec iov[KEYS];
    uint8_t *data = malloc((size_t)KEYS * BYTES);

    start_and_open(r);
    for (uint64_t i = 0; i < KEYS; i++) {
        keys[i] = key_of(i);
        iov[i] = (struct iovec){data + i * BYTES, BYTES};
        items[i] =
            (larder_item_t){.key = &keys[i], .iov = &iov[i], .iov_count = 1};
        content(i, iov[i].iov_base, BYTES);
    }
    /* More than the window holds at once. */
    assert_status(larder_run(r->space, LARDER_OP_PUT, items, KEYS, NULL), 0);
    for (uint64_t i = 0; i < KEYS; i++) {
        assert_status(items[i].status, LARDER_OK);
    }
    memset(data, 0, (size_t)KEYS * BYTES);
    assert_status(larder_run(r->space, LARDER_OP_GET, items, KEYS, NULL), 0);
    for (uint64_t i = 0; i < KEYS; i++) {
        assert_status(items[i].status, LARDER_OK);
        assert_true(content_is(i, iov[i].iov_base, BYTES));
    }
    free(data);
}

/* Everything once, with whatever comes of it. */
static void everything(rig_t *r, uint64_t n)
{
    larder_t *lar = NULL;
    larder_space_t *space = NULL;
    larder_lease_t *lease = NULL, *room = NULL;
    larder_space_params_t p = {.descriptor = "model", .descriptor_bytes = 5};
    uint8_t *data = malloc(BYTES);
    larder_key_t keys[2] = {key_of(n), key_of(n + 1)};
    struct iovec iov = {data, BYTES}, seg[64];
    larder_item_t item = {.key = &keys[0], .iov = &iov, .iov_count = 1};
    size_t length = 1000;
    uint32_t segs, crc = 0;
    larder_match_t m = {.struct_bytes = sizeof(m)};

    content(n, data, BYTES);
    if (open_url(r->d.url, &lar) == LARDER_OK) {
        if (larder_space_open(lar, &p, &space) == LARDER_OK) {
            larder_run(space, LARDER_OP_PUT, &item, 1, NULL);
            memset(data, 0, BYTES);
            larder_run(space, LARDER_OP_GET, &item, 1, NULL);
            assert_true(item.status != LARDER_OK || content_is(n, data, BYTES));
            if (larder_stage(space, keys, 1, 0, 0, &lease, &m) == LARDER_OK) {
                larder_lease_segments(lease, 0, 0, seg, 64, &segs);
            }
            item = (larder_item_t){.key = &keys[1]};
            larder_reserve(space, &item, &length, 1, 0, &room);
            if (room != NULL) {
                larder_commit(&room, NULL, &crc, NULL, 0);
            }
        }
        larder_release(&lease);
        larder_space_close(&space);
        larder_close(&lar, 1000);
    }
    free(data);
}

/* Every allocation of a handle fails in turn: a status, nothing lost. */
static void test_no_memory(void **state)
{
    rig_t *r = begin(state, "timeout_ms=2000&tickets=4&workers=1");
    uint64_t nth = 1, fired = 1;

    start_and_open(r);
    while (fired > 0 && nth < 1000) {
        ldr_fault_arm(LDR_FAULT_alloc, nth, 1);
        everything(r, 10 * nth);
        fired = ldr_fault_fired(LDR_FAULT_alloc);
        ldr_fault_disarm_all();
        nth++;
    }
    assert_in_range(nth, 10, 999);
    assert_status(larder_flush(r->lar, LARDER_TIER_SSD, LARDER_FOREVER), 0);
    assert_int_equal(own_stats(r).dram_leased_chunks, 0);
    print_message("%llu allocations\n", (unsigned long long)nth - 1);
}

static bool child_of_fork(fix_t *f)
{
    larder_key_t key = key_of(1);
    larder_item_t item = {.key = &key};

    (void)f;
    bool ok = larder_run(rig.space, LARDER_OP_EXISTS, &item, 1, NULL) ==
              LARDER_E_FORKED;
    larder_t *lar = rig.lar;
    ok = ok && larder_close(&lar, 0) == LARDER_E_FORKED;
    /* One of its own works. */
    lar = NULL;
    ok = ok && open_url(rig.d.url, &lar) == LARDER_OK;
    return ok && larder_close(&lar, 0) == LARDER_OK;
}

static void test_fork(void **state)
{
    rig_t *r = begin(state, "timeout_ms=5000");

    if (SANITIZED) {
        skip(); /* threads in a forked child are more than they promise */
    }
    start_and_open(r);
    assert_status(put_n(r->space, 1, BYTES), LARDER_OK);
    in_child(child_of_fork, NULL);
    assert_status(get_n(r->space, 1, BYTES).status, LARDER_OK);
}

#define RIG(test)                                                              \
    {                                                                          \
#test, test, rig_setup, rig_teardown, NULL                             \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        RIG(test_nobody_there),   RIG(test_lazy),
        RIG(test_late_replies),   RIG(test_stopped_tickets),
        RIG(test_restart),        RIG(test_killed_under_load),
        RIG(test_lease_outlives), RIG(test_tenants),
        RIG(test_two_handles),    RIG(test_strict),
        RIG(test_fork),           RIG(test_no_memory),
    };

    return cmocka_run_group_tests_name("client/remote", tests, NULL, NULL);
}
