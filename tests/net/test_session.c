/*
 * Sessions on a simulated network, in virtual time: deadlines, the breaker,
 * late replies, reconnecting, paths that are cut. No handle and no node. Each
 * test runs for many seeds; LARDER_SEED runs one, LARDER_SEEDS sets how many.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "net/session.h"
#include "sim/simpeer.h"

enum { PORT = 7, SEEDS = 200 };

/* A call may end so much after its deadline: the grace of its answer. */
#define LATE_NS (LDR_GRACE_NS + SIM_MS)

typedef struct rig {
    sim_net_t *net;
    sim_peer_t *peer;
    ldr_remote_t *remote;
} rig_t;

static void log_nothing(void *arg, larder_log_level_t level, const char *text)
{
    (void)arg;
    (void)level;
    (void)text;
}

static void rig_begin(rig_t *r, uint64_t seed, const char *options)
{
    ldr_options_t *o = calloc(1, sizeof(*o));
    char url[300];

    r->net = sim_net_new(seed);
    r->peer = sim_peer_new(r->net, PORT);
    ldr_net_env_t env = {
        .log = {log_nothing, NULL},
        .clock = sim_clock(r->net),
        .threads = sim_threads(r->net),
        .transport = sim_transport(r->net),
        .seed = seed,
    };
    snprintf(url, sizeof(url), "tcp://peer:%d?spin_us=0&%s", PORT, options);
    assert_int_equal(ldr_options_parse(url, o), LARDER_OK);
    assert_int_equal(ldr_remote_create(o, &ldr_links_pool, &env, &r->remote),
                     LARDER_OK);
    free(o);
}

static void rig_end(rig_t *r)
{
    ldr_remote_destroy(r->remote);
    sim_peer_free(r->peer);
    sim_net_free(r->net);
}

/* One request and its reply; how long it took in *took_p. */
static larder_status_t call_timed(rig_t *r, uint32_t timeout_ms,
                                  uint64_t *took_p)
{
    uint64_t begin_ns = sim_now(r->net);
    ldr_stop_t stop = {NULL, begin_ns + timeout_ms * SIM_MS};
    ldr_talk_t v;
    larder_status_t st = ldr_talk_begin(&v, r->remote, NULL, &stop);

    if (st == LARDER_OK) {
        size_t bytes = ldr_put_number(ldr_body(v.call.buffer), 0);

        st = ldr_talk_call(&v, LDR_OP_RESET, bytes);
        ldr_talk_end(&v, st);
    }
    *took_p = sim_now(r->net) - begin_ns;
    assert_true(*took_p <= timeout_ms * SIM_MS + LATE_NS);
    /* The peer has no such request, and says so: it has answered. */
    return st == LARDER_E_UNSUPPORTED ? LARDER_OK : st;
}

static larder_status_t call(rig_t *r, uint32_t timeout_ms)
{
    uint64_t took;

    return call_timed(r, timeout_ms, &took);
}

static uint64_t current; /* the seed that runs */

typedef void (*case_t)(rig_t *r);

/* Runs the case for every seed, and says which one failed. */
static void for_seeds(const char *options, case_t run)
{
    const char *one = getenv("LARDER_SEED"), *many = getenv("LARDER_SEEDS");
    uint64_t first = one != NULL ? strtoull(one, NULL, 10) : 1;
    uint64_t count = one != NULL    ? 1
                     : many != NULL ? strtoull(many, NULL, 10)
                                    : SEEDS;

    for (uint64_t seed = first; seed < first + count; seed++) {
        rig_t r;

        current = seed;
        rig_begin(&r, seed, options);
        run(&r);
        rig_end(&r);
        current = 0;
    }
}

static uint64_t some(rig_t *r, uint64_t bound)
{
    return ldr_rand_below(sim_rand(r->net), bound);
}

/* ---- deadlines ---- */

static void case_answered(rig_t *r)
{
    for (unsigned i = 0; i < 10; i++) {
        assert_int_equal(call(r, 1000), LARDER_OK);
    }
    assert_int_equal(sim_peer_counts(r->peer).hellos, 1);
}

static void test_answered(void **state)
{
    (void)state;
    for_seeds("timeout_ms=1000", case_answered);
}

/* The peer stops for 900 ms in the middle of it; calls have 200 ms. */
static void case_stopped(rig_t *r)
{
    unsigned late = 0;

    sim_peer_pace(r->peer, 0, 2 * SIM_MS);
    for (unsigned i = 0; i < some(r, 5); i++) {
        assert_int_equal(call(r, 200), LARDER_OK);
    }
    sim_peer_stop(r->peer, sim_now(r->net) + 900 * SIM_MS);
    uint64_t end_ns = sim_now(r->net) + 900 * SIM_MS;
    while (sim_now(r->net) < end_ns - 300 * SIM_MS) {
        larder_status_t st = call(r, 200);

        assert_int_not_equal(st, LARDER_OK);
        late += st == LARDER_E_DEADLINE;
        sim_sleep(r->net, some(r, 20) * SIM_MS);
    }
    assert_in_range(late, 1, 3); /* of 900 ms, with breaker_ms=200 */
    sim_sleep(r->net, 600 * SIM_MS);
    assert_int_equal(call(r, 200), LARDER_OK);
}

static void test_stopped(void **state)
{
    (void)state;
    for_seeds("timeout_ms=200&breaker_ms=200", case_stopped);
}

/* ---- the breaker ---- */

/* However often it is called: an interval costs one call its deadline. */
static void case_one_pays(rig_t *r)
{
    enum { INTERVALS = 10, BREAKER_MS = 200 };
    unsigned paid = 0, calls = 0;

    assert_int_equal(call(r, 50), LARDER_OK);
    sim_peer_stop(r->peer, UINT64_MAX);
    uint64_t begin_ns = sim_now(r->net);
    while (sim_now(r->net) - begin_ns < INTERVALS * BREAKER_MS * SIM_MS) {
        uint64_t took;
        larder_status_t st = call_timed(r, 50, &took);

        assert_true(st == LARDER_E_DEADLINE || st == LARDER_E_OFFLINE);
        paid += took >= 50 * SIM_MS;
        calls++;
        sim_sleep(r->net, SIM_MS + some(r, 3 * SIM_MS));
    }
    /* A pause begins when the call that paid has ended. */
    assert_in_range(paid, 6, INTERVALS);
    assert_true(calls > 100);
    sim_peer_stop(r->peer, 0);
}

static void test_one_pays(void **state)
{
    (void)state;
    for_seeds("timeout_ms=50&breaker_ms=200", case_one_pays);
}

/* Its late answer is noticed, long before the interval is over. */
static void case_goes_on(rig_t *r)
{
    assert_int_equal(call(r, 100), LARDER_OK);
    sim_peer_stop(r->peer, sim_now(r->net) + 300 * SIM_MS);
    assert_int_equal(call(r, 100), LARDER_E_DEADLINE);
    assert_int_equal(call(r, 100), LARDER_E_OFFLINE);
    sim_sleep(r->net, 250 * SIM_MS);
    assert_int_equal(call(r, 100), LARDER_OK);
    assert_int_equal(r->remote->breaker, 1);
}

static void test_goes_on(void **state)
{
    (void)state;
    for_seeds("timeout_ms=5000&breaker_ms=600000", case_goes_on);
}

/* ---- late replies ---- */

/* A peer that answers, but too late: nobody gets another's reply, and the
 * connection stays. */
static void case_late(rig_t *r)
{
    unsigned late = 0, good = 0;

    assert_int_equal(call(r, 1000), LARDER_OK);
    sim_peer_pace(r->peer, 0, 60 * SIM_MS);
    for (unsigned i = 0; i < 100; i++) {
        larder_status_t st = call(r, 30);

        late += st == LARDER_E_DEADLINE;
        good += st == LARDER_OK;
        assert_true(st == LARDER_OK || st == LARDER_E_DEADLINE ||
                    st == LARDER_E_OFFLINE);
        sim_sleep(r->net, some(r, 20) * SIM_MS);
    }
    assert_true(late > 0 && good > 0);
    sim_peer_pace(r->peer, 0, 0);
    sim_sleep(r->net, 2000 * SIM_MS);
    assert_int_equal(call(r, 1000), LARDER_OK);
    assert_true(r->remote->late > 0);
}

static void test_late(void **state)
{
    (void)state;
    for_seeds("timeout_ms=1000&breaker_ms=20&connections=2", case_late);
}

/* ---- reconnecting ---- */

static void case_restart(rig_t *r)
{
    uint64_t took;

    assert_int_equal(call(r, 1000), LARDER_OK);
    sim_peer_kill(r->peer);
    for (unsigned i = 0; i < 20; i++) {
        assert_int_equal(call_timed(r, 1000, &took), LARDER_E_OFFLINE);
        assert_true(took < 5 * SIM_MS); /* refused, not waited for */
        sim_sleep(r->net, some(r, 20) * SIM_MS);
    }
    sim_peer_restart(r->peer);
    sim_sleep(r->net, 1000 * SIM_MS); /* the longest pause */
    assert_int_equal(call(r, 1000), LARDER_OK);
    assert_int_equal(sim_peer_counts(r->peer).hellos, 2);
}

static void test_restart(void **state)
{
    (void)state;
    for_seeds("timeout_ms=1000&breaker_ms=1000", case_restart);
}

/* A connection breaks under a call: that one fails at once, the next has a new
 * connection. */
static void *break_main(void *arg)
{
    rig_t *r = arg;

    sim_sleep(r->net, 10 * SIM_MS);
    sim_break_all(r->net);
    return NULL;
}

static void case_broken(rig_t *r)
{
    uint64_t took;

    assert_int_equal(call(r, 1000), LARDER_OK);
    sim_peer_pace(r->peer, 50 * SIM_MS, 50 * SIM_MS);
    unsigned breaker = sim_start(r->net, break_main, r);
    assert_int_equal(call_timed(r, 1000, &took), LARDER_E_OFFLINE);
    assert_in_range(took, 9 * SIM_MS, 12 * SIM_MS);
    sim_join(r->net, breaker);
    assert_int_equal(call(r, 1000), LARDER_OK);
    assert_int_equal(sim_peer_counts(r->peer).hellos, 2);
}

static void test_broken(void **state)
{
    (void)state;
    for_seeds("timeout_ms=1000&breaker_ms=1000", case_broken);
}

/* The peer was restarted and is stopped: no call waits long enough for the
 * connection, but it is made all the same, and used at once, although the
 * breaker was shut for long. */
static void case_slow_connection(rig_t *r)
{
    assert_int_equal(call(r, 1000), LARDER_OK);
    sim_peer_kill(r->peer);
    sim_peer_restart(r->peer);
    sim_peer_stop(r->peer, sim_now(r->net) + 700 * SIM_MS);
    for (unsigned i = 0; i < 20; i++) {
        assert_int_not_equal(call(r, 30), LARDER_OK);
    }
    sim_sleep(r->net, 800 * SIM_MS);
    assert_int_equal(call(r, 30), LARDER_OK);
}

static void test_slow_connection(void **state)
{
    (void)state;
    for_seeds("timeout_ms=60000&breaker_ms=60000", case_slow_connection);
}

/* A connection under way does not keep a remote from being ended. */
static void case_end_while_connecting(rig_t *r)
{
    sim_peer_stop(r->peer, UINT64_MAX);
    assert_int_equal(call(r, 30), LARDER_E_DEADLINE);
    uint64_t begin_ns = sim_now(r->net);
    ldr_remote_destroy(r->remote);
    assert_true(sim_now(r->net) - begin_ns <= LDR_LOOK_NS + SIM_MS);
    sim_peer_stop(r->peer, 0);
    sim_peer_free(r->peer);
    sim_net_free(r->net);
    rig_begin(r, current, "timeout_ms=1000");
}

static void test_end_while_connecting(void **state)
{
    (void)state;
    for_seeds("timeout_ms=600000", case_end_while_connecting);
}

/* ---- paths ---- */

/* A path that is cut, in one direction or both, and mended. */
static void case_partition(rig_t *r)
{
    sim_path_t *path = sim_path(r->net);

    assert_int_equal(call(r, 200), LARDER_OK);
    for (unsigned i = 0; i < 5; i++) {
        unsigned ways = 1 + (unsigned)some(r, 3);

        path->cut_to_server = (ways & 1) != 0;
        path->cut_to_client = (ways & 2) != 0;
        sim_path_changed(r->net);
        uint64_t end_ns = sim_now(r->net) + some(r, 1500) * SIM_MS;
        do {
            assert_int_not_equal(call(r, 100), LARDER_OK);
            sim_sleep(r->net, some(r, 30) * SIM_MS);
        } while (sim_now(r->net) < end_ns);
        path->cut_to_server = path->cut_to_client = false;
        sim_path_changed(r->net);
        sim_sleep(r->net, 400 * SIM_MS);
        assert_int_equal(call(r, 200), LARDER_OK);
    }
}

static void test_partition(void **state)
{
    (void)state;
    for_seeds("timeout_ms=200&breaker_ms=100", case_partition);
}

/* A test that failed left its seed behind. */
static int say_seed(void **state)
{
    (void)state;
    if (current != 0) {
        print_message("LARDER_SEED=%llu\n", (unsigned long long)current);
        current = 0;
    }
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_answered, say_seed),
        cmocka_unit_test_teardown(test_stopped, say_seed),
        cmocka_unit_test_teardown(test_one_pays, say_seed),
        cmocka_unit_test_teardown(test_goes_on, say_seed),
        cmocka_unit_test_teardown(test_late, say_seed),
        cmocka_unit_test_teardown(test_restart, say_seed),
        cmocka_unit_test_teardown(test_broken, say_seed),
        cmocka_unit_test_teardown(test_slow_connection, say_seed),
        cmocka_unit_test_teardown(test_end_while_connecting, say_seed),
        cmocka_unit_test_teardown(test_partition, say_seed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
