/*
 * What a daemon that does not answer must not cost: tickets with their own
 * deadlines, connections that take longer than one call waits for them, and
 * memory of sessions that are gone. Only with a daemon; LARDER_TEST_TRANSPORT
 * says which.
 */
#include "client/away_rig.h"

#include <dlfcn.h>
#include <netdb.h>

/* The first line of a test: a daemon, a handle and a space on it. */
static rig_t *begin_dram(void **state, const char *dram, const char *options)
{
    rig_t *r = *state;
    larder_open_params_t params = {
        .field_mask = LARDER_OPEN_LOG, .log = log_keep, .log_arg = &log_seen};
    char url[600];

    if (transport_is("embed")) {
        skip();
    }
    snprintf(url, sizeof(url), "embed:%s?io=plain&dram=%s&ssd=64M&%s", r->dir,
             dram, options);
    assert_true(daemon_prepare(&r->d, url));
    start(r);
    assert_status(larder_open(r->d.url, &params, &r->lar), LARDER_OK);
    r->space = open_space(r->lar, "model", 1);
    return r;
}

static rig_t *begin(void **state, const char *options)
{
    return begin_dram(state, "32M", options);
}

static larder_item_t exists(rig_t *r, uint64_t n, uint32_t timeout_ms)
{
    larder_key_t key = key_of(n);
    larder_item_t item = {.key = &key};
    larder_op_params_t params = {.field_mask = LARDER_OP_TIMEOUT,
                                 .timeout_ms = timeout_ms};

    assert_status(larder_run(r->space, LARDER_OP_EXISTS, &item, 1, &params),
                  LARDER_OK);
    return item;
}

/* What tests/net/test_session.c has for streams, on a simulated network. */
static rig_t *begin_shm(void **state, const char *options)
{
    if (transport_is("tcp") || transport_is("tls")) {
        skip();
    }
    return begin(state, options);
}

/* ---- tickets ---- */

enum { JOBS = 5, LONG_MS = 60000 };

static larder_ticket_t submit(rig_t *r, larder_item_t *item,
                              uint32_t timeout_ms)
{
    larder_ticket_t ticket = 0;
    larder_op_params_t params = {
        .field_mask = LARDER_OP_TIMEOUT | LARDER_OP_USER,
        .timeout_ms = timeout_ms,
        .user = item,
    };

    assert_status(
        larder_submit(r->space, LARDER_OP_EXISTS, item, 1, &params, &ticket),
        LARDER_OK);
    return ticket;
}

/* The next completion is this one's, and comes soon. */
static void expect(rig_t *r, const larder_item_t *item)
{
    larder_completion_t done;
    size_t n = 0;

    assert_status(larder_drain(r->lar, &done, 1, SLACK_MS, &n), LARDER_OK);
    assert_int_equal(n, 1);
    assert_ptr_equal(done.user, item);
}

/* The daemon keeps both workers; the tickets behind them end all the same,
 * when their time comes or when they are canceled. */
static void test_short_behind_long(void **state)
{
    rig_t *r = begin(state, "timeout_ms=60000&workers=2");
    static larder_key_t keys[JOBS]; /* tickets that fail outlive the test */
    static larder_item_t items[JOBS];
    larder_ticket_t tickets[JOBS];

    daemon_freeze(&r->d);
    for (unsigned i = 0; i < JOBS; i++) {
        keys[i] = key_of(i);
        items[i] = (larder_item_t){.key = &keys[i]};
        tickets[i] = submit(r, &items[i], i == 3 ? 50 : LONG_MS);
    }
    expect(r, &items[3]);
    assert_status(items[3].status, LARDER_MISS);
    assert_int_equal(items[3].cause, LARDER_CAUSE_DEADLINE);
    assert_status(larder_cancel(r->lar, tickets[4]), LARDER_OK);
    expect(r, &items[4]);
    assert_status(items[4].status, LARDER_E_CANCELED);
    assert_status(larder_cancel(r->lar, tickets[2]), LARDER_OK);
    expect(r, &items[2]);
    /* One behind another with the later deadline, and after a pause. */
    submit(r, &items[2], LONG_MS);
    submit(r, &items[3], 30);
    expect(r, &items[3]);
    kill(r->d.pid, SIGCONT);
    for (unsigned i = 0; i < 3; i++) {
        larder_completion_t done;
        size_t n = 0;

        assert_status(larder_drain(r->lar, &done, 1, PATIENCE_MS, &n), 0);
        assert_int_equal(n, 1);
        assert_status(((larder_item_t *)done.user)->status, LARDER_MISS);
    }
}

/* ---- who pays ---- */

/* Calls that ran into their deadlines say so; those that the gate turned away
 * say that the daemon is offline. */
static bool paid(const larder_item_t *item)
{
    return item->status == LARDER_E_DEADLINE ||
           (item->status == LARDER_MISS &&
            item->cause == LARDER_CAUSE_DEADLINE);
}

/* One call pays with its deadline; those after it are answered at once, until
 * the daemon goes on, which is noticed. */
static void test_stopped(void **state)
{
    enum { TIMEOUT_MS = 100, CALLS = 200 };
    rig_t *r = begin(state, "timeout_ms=5000&breaker_ms=600000");
    uint8_t *data = calloc(1, BYTES);
    struct iovec iov = {data, BYTES};
    larder_key_t key = key_of(1);
    larder_op_params_t params = {.field_mask = LARDER_OP_TIMEOUT,
                                 .timeout_ms = TIMEOUT_MS};
    larder_item_t item = {.key = &key, .iov = &iov, .iov_count = 1};
    larder_stats_t stats = {.struct_bytes = sizeof(stats)};
    uint64_t end_ms = transport_now_ms() + PATIENCE_MS;

    assert_status(put_n(r->space, 1, BYTES), LARDER_OK);
    daemon_freeze(&r->d);
    assert_status(larder_run(r->space, LARDER_OP_GET, &item, 1, &params),
                  LARDER_OK);
    assert_status(item.status, LARDER_MISS);
    assert_int_equal(item.cause, LARDER_CAUSE_DEADLINE);
    for (unsigned i = 0; i < CALLS; i++) {
        larder_op_t op = (larder_op_t)(i % LARDER_OP_COUNT);

        item = (larder_item_t){.key = &key, .iov = &iov, .iov_count = 1};
        assert_status(larder_run(r->space, op, &item, 1, &params), LARDER_OK);
        assert_false(paid(&item)); /* the interval is ten minutes */
        assert_true(item.status == LARDER_MISS ||
                    item.status == LARDER_E_OFFLINE);
    }
    kill(r->d.pid, SIGCONT);
    /* Long before the interval is over: its late answer is noticed. */
    while (exists(r, 1, 5000).status != LARDER_OK) {
        assert_true(transport_now_ms() < end_ms);
        transport_pause();
    }
    assert_status(larder_stats(r->lar, &stats), LARDER_OK);
    assert_int_equal(stats.client_breaker, 1);
    free(data);
}

typedef struct payer {
    rig_t *r;
    uint64_t paid, calls, other;
} payer_t;

static bool pay_stop;

static void *pay_main(void *arg)
{
    payer_t *p = arg;
    larder_key_t key = key_of(1);
    larder_op_params_t params = {.field_mask = LARDER_OP_TIMEOUT,
                                 .timeout_ms = 50};

    while (!__atomic_load_n(&pay_stop, __ATOMIC_RELAXED)) {
        larder_item_t item = {.key = &key};

        larder_run(p->r->space, LARDER_OP_EXISTS, &item, 1, &params);
        p->calls++;
        p->paid += paid(&item);
        p->other += !paid(&item) && item.cause != LARDER_CAUSE_OFFLINE;
        transport_pause();
    }
    return NULL;
}

/* However many threads call, and however long: an interval costs one call its
 * deadline. */
static void test_one_pays(void **state)
{
    enum { THREADS = 4, INTERVALS = 5, BREAKER_MS = 200 };
    rig_t *r = begin_shm(state, "timeout_ms=5000&breaker_ms=200");
    payer_t payers[THREADS];
    pthread_t threads[THREADS];
    uint64_t sum = 0, calls = 0;

    daemon_freeze(&r->d);
    /* The gate is shut when they begin. */
    assert_int_equal(exists(r, 1, 50).cause, LARDER_CAUSE_DEADLINE);
    __atomic_store_n(&pay_stop, false, __ATOMIC_RELAXED);
    uint64_t begin_ms = transport_now_ms();
    for (unsigned i = 0; i < THREADS; i++) {
        payers[i] = (payer_t){.r = r};
        assert_int_equal(
            pthread_create(&threads[i], NULL, pay_main, &payers[i]), 0);
    }
    while (transport_now_ms() < begin_ms + INTERVALS * BREAKER_MS) {
        transport_pause();
    }
    __atomic_store_n(&pay_stop, true, __ATOMIC_RELAXED);
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        sum += payers[i].paid;
        calls += payers[i].calls;
    }
    /* As many intervals as have passed, however slow the machine. */
    uint64_t intervals = (transport_now_ms() - begin_ms) / BREAKER_MS + 1;
    print_message("%llu of %llu calls paid in %llu intervals\n",
                  (unsigned long long)sum, (unsigned long long)calls,
                  (unsigned long long)intervals);
    for (unsigned i = 0; i < THREADS; i++) {
        assert_int_equal(payers[i].other, 0);
    }
    assert_in_range(sum, 1, intervals);
    assert_true(calls > sum);
}

/* ---- connecting ---- */

/* The daemon was restarted and is slow: no call waits long enough for the
 * connection, but it is made all the same, and then used at once, although the
 * gate was shut for long. */
static void test_slow_connection(void **state)
{
    enum { SHORT_MS = 30 };
    rig_t *r = begin_shm(state, "timeout_ms=60000&breaker_ms=60000");
    uint64_t end_ms = transport_now_ms() + PATIENCE_MS;

    assert_status(put_n(r->space, 1, BYTES), LARDER_OK);
    assert_status(larder_flush(r->lar, LARDER_TIER_SSD, LARDER_FOREVER), 0);
    daemon_stop(&r->d, SIGKILL);
    start(r);
    daemon_freeze(&r->d);
    for (unsigned i = 0; i < 20; i++) {
        uint64_t begin_ms = transport_now_ms();
        larder_item_t item = exists(r, 1, SHORT_MS);

        assert_status(item.status, LARDER_MISS);
        assert_true(item.cause == LARDER_CAUSE_DEADLINE ||
                    item.cause == LARDER_CAUSE_OFFLINE);
        assert_true(transport_now_ms() - begin_ms < SHORT_MS + SLACK_MS);
    }
    kill(r->d.pid, SIGCONT);
    while (exists(r, 1, SHORT_MS).status != LARDER_OK) {
        assert_true(transport_now_ms() < end_ms);
        transport_pause();
    }
    assert_status(get_n(r->space, 1, BYTES).status, LARDER_OK);
}

enum { RESOLVE_MS = 300, BUSY_MS = 30 };

static void pause_ms(unsigned ms)
{
    const struct timespec t = {0, ms * 1000000l};

    nanosleep(&t, NULL);
}

static void *wake_main(void *arg)
{
    pid_t *pid = arg;

    pause_ms(BUSY_MS);
    kill(*pid, SIGCONT);
    return NULL;
}

/* The resolver of this program: one name takes its time, and where it leads the
 * daemon is busy just then. */
int getaddrinfo(const char *host, const char *port,
                const struct addrinfo *hints, struct addrinfo **list)
{
    static int (*real)(const char *, const char *, const struct addrinfo *,
                       struct addrinfo **);
    static pid_t pid;
    pthread_t waker;

    if (real == NULL) {
        *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    }
    if (strcmp(host, "slow.test") == 0) {
        pause_ms(RESOLVE_MS);
        daemon_freeze(&rig.d);
        pid = rig.d.pid;
        if (pthread_create(&waker, NULL, wake_main, &pid) == 0) {
            pthread_detach(waker);
        } else {
            wake_main(&pid);
        }
        host = "127.0.0.1";
    }
    return real(host, port, hints, list);
}

/* A name that takes longer than a connection may: it is made all the same. */
static void test_slow_name(void **state)
{
    larder_open_params_t params = {
        .field_mask = LARDER_OPEN_LOG, .log = log_keep, .log_arg = &log_seen};
    uint64_t end_ms = transport_now_ms() + PATIENCE_MS;
    char url[600];

    if (!transport_is("tcp")) {
        skip();
    }
    rig_t *r = begin(state, "breaker_ms=1");
    assert_status(put_n(r->space, 1, BYTES), LARDER_OK);
    larder_space_close(&r->space);
    assert_status(larder_close(&r->lar, 1000), LARDER_OK);
    snprintf(url, sizeof(url),
             "tcp://slow.test:%u?connect=lazy&breaker_ms=1&timeout_ms=%d",
             r->d.port, RESOLVE_MS / 2);
    assert_status(larder_open(url, &params, &r->lar), LARDER_OK);
    r->space = open_space(r->lar, "model", 1);
    while (exists(r, 1, RESOLVE_MS / 2).status != LARDER_OK) {
        assert_true(transport_now_ms() < end_ms);
        transport_pause();
    }
}

/* A connection under way does not keep a handle from being closed. */
static void test_close_while_connecting(void **state)
{
    rig_t *r = begin_shm(state, "timeout_ms=600000");

    daemon_stop(&r->d, SIGKILL);
    start(r);
    daemon_freeze(&r->d);
    uint64_t begin_ms = transport_now_ms();
    while (exists(r, 1, 30).cause != LARDER_CAUSE_DEADLINE) {
        assert_true(transport_now_ms() - begin_ms < PATIENCE_MS);
        transport_pause();
    }
    larder_space_close(&r->space);
    begin_ms = transport_now_ms();
    assert_status(larder_close(&r->lar, 1000), LARDER_OK);
    assert_true(transport_now_ms() - begin_ms < 1000 + SLACK_MS);
}

/* ---- comparing ---- */

/* Saves what is there already, and has it compared. Gives how long it took. */
static uint64_t compare(rig_t *r, larder_item_t *items, size_t count,
                        uint32_t timeout_ms)
{
    larder_op_params_t params = {.field_mask =
                                     LARDER_OP_TIMEOUT | LARDER_OP_FLAGS,
                                 .flags = LARDER_VERIFY_PUT,
                                 .timeout_ms = timeout_ms};
    uint64_t begin_ms = transport_now_ms();

    assert_status(larder_run(r->space, LARDER_OP_PUT, items, count, &params),
                  LARDER_OK);
    return transport_now_ms() - begin_ms;
}

/* Once it is late no more is asked: a connection on which too many answers are
 * awaited that nobody wants is given up. */
static void test_late_compare(void **state)
{
    enum { COUNT = 400, TRIES = 5 };
    rig_t *r = begin(state, "timeout_ms=60000&breaker_ms=1");
    larder_key_t *keys = calloc(COUNT, sizeof(*keys));
    larder_item_t *items = calloc(COUNT, sizeof(*items));
    uint8_t data[100];
    struct iovec iov = {data, sizeof(data)};
    larder_stats_t before = {.struct_bytes = sizeof(before)}, after = before;
    uint64_t end_ms = transport_now_ms() + PATIENCE_MS;

    content(1, data, sizeof(data));
    for (uint32_t i = 0; i < COUNT; i++) {
        keys[i] = key_of(i);
        items[i] =
            (larder_item_t){.key = &keys[i], .iov = &iov, .iov_count = 1};
    }
    compare(r, items, COUNT, LONG_MS);
    uint64_t ms = compare(r, items, COUNT, LONG_MS);
    assert_status(items[COUNT - 1].status, LARDER_PRESENT);
    assert_status(larder_stats(r->lar, &before), LARDER_OK);
    for (unsigned i = 0; i < TRIES; i++) {
        compare(r, items, COUNT, (uint32_t)(ms / 2 + 1));
        while (exists(r, 0, 1000).status != LARDER_OK) {
            assert_true(transport_now_ms() < end_ms);
            transport_pause();
        }
    }
    assert_status(larder_stats(r->lar, &after), LARDER_OK);
    assert_int_equal(after.client_connects, before.client_connects);
    free(items);
    free(keys);
}

/* ---- waiting for room ---- */

/* Saves that the daemon's disk has to make room for: that they wait is no sign
 * of sickness, nor is what the daemon sends meanwhile. */
static void test_waiting_for_room(void **state)
{
    enum { ITEMS = 48, ROUNDS = 3, EACH = 1 << 20 };
    bool tcp = transport_is("tcp") || transport_is("tls");
    rig_t *r =
        begin_dram(state, "8M",
                   tcp ? "timeout_ms=60000&connections=1" : "timeout_ms=60000");
    uint8_t *data = malloc(EACH);
    struct iovec iov = {data, EACH};
    larder_key_t keys[ITEMS];
    larder_item_t items[ITEMS];
    larder_stats_t before = {.struct_bytes = sizeof(before)}, after = before;

    content(1, data, EACH);
    assert_status(larder_stats(r->lar, &before), LARDER_OK);
    for (uint64_t round = 0; round < ROUNDS; round++) {
        for (uint64_t i = 0; i < ITEMS; i++) {
            keys[i] = key_of(round * ITEMS + i);
            items[i] =
                (larder_item_t){.key = &keys[i], .iov = &iov, .iov_count = 1};
        }
        assert_status(larder_run(r->space, LARDER_OP_PUT, items, ITEMS, NULL),
                      LARDER_OK);
        for (uint64_t i = 0; i < ITEMS; i++) {
            assert_status(items[i].status, LARDER_OK);
        }
    }
    assert_status(larder_stats(r->lar, &after), LARDER_OK);
    assert_int_equal(after.client_breaker, before.client_breaker);
    assert_int_equal(after.client_connects, before.client_connects);
    free(data);
}

/* ---- a child ---- */

/* A child has a copy of the session's descriptor, and keeps it: the session
 * ends with its handle all the same. The daemon takes one at a time. */
static void test_child_keeps_copy(void **state)
{
    rig_t *r = begin(state, "timeout_ms=5000&breaker_ms=20&sessions=1&"
                            "connect=lazy");
    uint64_t end_ms = transport_now_ms() + PATIENCE_MS;
    larder_item_t item;

    if (SANITIZED) {
        skip(); /* a forked child with threads is more than they promise */
    }
    do { /* the first of all was who asked whether it listens */
        assert_true(transport_now_ms() < end_ms);
        transport_pause();
        item = exists(r, 1, 5000);
    } while (item.cause != LARDER_CAUSE_ABSENT);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        pause();
        _exit(0);
    }
    assert_true(pid > 0);
    larder_space_close(&r->space);
    assert_status(larder_close(&r->lar, 1000), LARDER_OK);
    assert_status(larder_open(r->d.url, NULL, &r->lar), LARDER_OK);
    r->space = open_space(r->lar, "model", 1);
    do {
        if (transport_now_ms() > end_ms) {
            break;
        }
        transport_pause();
        item = exists(r, 1, 5000);
    } while (item.cause != LARDER_CAUSE_ABSENT);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    assert_int_equal(item.cause, LARDER_CAUSE_ABSENT);
}

/* ---- memory of a session that is gone ---- */

/* How many of the daemon's extents are mapped here. */
static unsigned extents_mapped(void)
{
    char line[512];
    unsigned n = 0;
    FILE *file = fopen("/proc/self/maps", "r");

    assert_non_null(file);
    while (fgets(line, sizeof(line), file) != NULL) {
        n += strstr(line, "larder-extent") != NULL;
    }
    fclose(file);
    return n;
}

static void until_mapped(unsigned least, unsigned most)
{
    uint64_t end_ms = transport_now_ms() + PATIENCE_MS;
    unsigned n = extents_mapped();

    while (n < least || n > most) {
        if (transport_now_ms() > end_ms) {
            fail_msg("%u mappings instead of %u to %u", n, least, most);
        }
        transport_pause();
        n = extents_mapped();
    }
}

/* What a lease uses stays, and goes with it, with no daemon there. */
static void test_mapped_until_released(void **state)
{
    rig_t *r = begin(state, "timeout_ms=5000");
    larder_key_t key = key_of(1);
    larder_lease_t *lease = NULL;
    larder_match_t m = {.struct_bytes = sizeof(m)};
    struct iovec seg[64];
    uint32_t n = 0;
    uint8_t *data = malloc(BYTES);
    size_t at = 0;

    if (!transport_is("shm")) {
        free(data);
        skip();
    }
    assert_status(put_n(r->space, 1, BYTES), LARDER_OK);
    assert_status(larder_stage(r->space, &key, 1, 0, 0, &lease, &m), LARDER_OK);
    assert_status(larder_lease_segments(lease, 0, 0, seg, 64, &n), LARDER_OK);
    assert_true(extents_mapped() > 0);
    daemon_stop(&r->d, SIGKILL);
    while (larder_lease_segments(lease, 0, 0, seg, 64, &n) != LARDER_E_STALE) {
        transport_pause();
    }
    for (uint32_t i = 0; i < n; i++) {
        memcpy(data + at, seg[i].iov_base, seg[i].iov_len);
        at += seg[i].iov_len;
    }
    assert_int_equal(at, BYTES);
    assert_true(content_is(1, data, BYTES));
    free(data);
    assert_true(extents_mapped() > 0);
    larder_release(&lease);
    until_mapped(0, 0);
}

#define RIG(test)                                                              \
    {                                                                          \
#test, test, rig_setup, rig_teardown, NULL                             \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        RIG(test_short_behind_long), RIG(test_stopped),
        RIG(test_one_pays),          RIG(test_slow_connection),
        RIG(test_slow_name),         RIG(test_close_while_connecting),
        RIG(test_late_compare),      RIG(test_waiting_for_room),
        RIG(test_child_keeps_copy),  RIG(test_mapped_until_released),
    };

    return cmocka_run_group_tests_name("client/reconnect", tests, NULL, NULL);
}
