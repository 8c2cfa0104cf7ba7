/*
 * A handle on a daemon, over the simulated network in virtual time: what a call
 * may cost, and what it may give, whatever happens to the daemon and the path.
 * By seed: LARDER_SEED runs one, LARDER_SEEDS sets how many.
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
#include "client/client.h"
#include "sim/simpeer.h"

enum { PORT = 7, SEEDS = 8, TIMEOUT_MS = 200, KEYS = 60, THREADS = 3 };

#define LATE_NS (LDR_GRACE_NS + SIM_MS)
#define SIZE_MAX_BYTES ((size_t)300 << 10)

typedef struct rig {
    sim_net_t *net;
    sim_peer_t *peer;
    larder_t *lar;
    larder_space_t *space;
    ldr_options_t options;
    unsigned callers[THREADS];
    bool over;
    unsigned calls, hits, late, offline;
} rig_t;

static uint64_t current; /* the seed that runs */

static void log_nothing(void *arg, larder_log_level_t level, const char *text)
{
    (void)arg;
    (void)level;
    (void)text;
}

/* Runs in threads of the simulation, where cmocka cannot end a test. */
static void require(bool what, const char *text)
{
    if (!what) {
        fprintf(stderr, "LARDER_SEED=%llu: %s\n", (unsigned long long)current,
                text);
        abort();
    }
}

static size_t bytes_of(uint64_t n)
{
    return 1 + (n * 7919) % SIZE_MAX_BYTES;
}

static void content(uint64_t n, uint8_t *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t word = (n + 1) * UINT64_C(0x9e3779b97f4a7c15) + i;

        memcpy(data + i, &word, ldr_min64(8, bytes - i));
    }
}

static uint64_t some(rig_t *r, uint64_t bound)
{
    return ldr_rand_below(sim_rand(r->net), bound);
}

/* One put or get, with its time and its bytes checked. */
static void one_call(rig_t *r, uint8_t *data)
{
    uint64_t n = some(r, KEYS);
    size_t bytes = bytes_of(n);
    bool put = some(r, 2) == 0;
    larder_key_t key = {{0}};
    struct iovec iov = {data, put ? bytes : SIZE_MAX_BYTES};
    larder_item_t item = {.key = &key, .iov = &iov, .iov_count = 1};
    larder_op_params_t params = {.field_mask = LARDER_OP_TIMEOUT,
                                 .timeout_ms = TIMEOUT_MS};

    memcpy(key.hash, &n, sizeof(n));
    if (put) {
        content(n, data, bytes);
    }
    uint64_t begin_ns = sim_now(r->net);
    larder_run(r->space, put ? LARDER_OP_PUT : LARDER_OP_GET, &item, 1,
               &params);
    uint64_t took_ns = sim_now(r->net) - begin_ns;
    if (took_ns > TIMEOUT_MS * SIM_MS + LATE_NS) {
        fprintf(stderr, "a %s of %zu bytes took %llu us\n", put ? "put" : "get",
                bytes, (unsigned long long)(took_ns / 1000));
        require(false, "a call took longer than its deadline");
    }
    r->calls++;
    r->late +=
        item.status == LARDER_E_DEADLINE || item.cause == LARDER_CAUSE_DEADLINE;
    if (item.status == LARDER_E_OFFLINE || item.cause == LARDER_CAUSE_OFFLINE) {
        r->offline++;
        sim_sleep(r->net, SIM_MS);
    }
    if (!put && item.status == LARDER_OK) {
        uint8_t *right = malloc(bytes);

        content(n, right, bytes);
        require(item.length == bytes && memcmp(right, data, bytes) == 0,
                "wrong bytes");
        free(right);
        r->hits++;
    }
}

static void *caller_main(void *arg)
{
    rig_t *r = arg;
    uint8_t *data = malloc(SIZE_MAX_BYTES);

    while (!r->over) {
        one_call(r, data);
        if (some(r, 4) == 0) {
            sim_sleep(r->net, some(r, 10 * SIM_MS));
        }
    }
    free(data);
    return NULL;
}

static void cut(rig_t *r, unsigned ways)
{
    sim_path_t *path = sim_path(r->net);

    path->cut_to_server = (ways & 1) != 0;
    path->cut_to_client = (ways & 2) != 0;
    sim_path_changed(r->net);
}

/* What happens to the daemon and the path. */
static void trouble(rig_t *r)
{
    sim_path_t *path = sim_path(r->net);

    switch (some(r, 7)) {
    case 0:
        sim_peer_stop(r->peer, sim_now(r->net) + 900 * SIM_MS);
        sim_sleep(r->net, 900 * SIM_MS);
        break;
    case 1:
        sim_peer_kill(r->peer);
        sim_sleep(r->net, some(r, 300) * SIM_MS);
        sim_peer_restart(r->peer);
        break;
    case 2:
        cut(r, 1 + (unsigned)some(r, 3));
        sim_sleep(r->net, some(r, 600) * SIM_MS);
        cut(r, 0);
        break;
    case 3:
        sim_break_all(r->net);
        break;
    case 4: /* a slow path, and a reader that takes little at a time */
        path->delay_max_ns = (1 + some(r, 30)) * SIM_MS;
        path->window = 1000 + some(r, 100000);
        sim_sleep(r->net, some(r, 800) * SIM_MS);
        path->delay_max_ns = 200000;
        path->window = (size_t)256 << 10;
        sim_path_changed(r->net);
        break;
    case 5:
        sim_peer_pace(r->peer, 0, some(r, 250) * SIM_MS);
        sim_sleep(r->net, some(r, 800) * SIM_MS);
        sim_peer_pace(r->peer, 0, 0);
        break;
    default:
        sim_sleep(r->net, some(r, 300) * SIM_MS);
        break;
    }
}

/* A handle, and threads that use it. */
static void begin(rig_t *r, uint64_t seed, const char *url)
{
    larder_space_params_t params = {.descriptor = "m", .descriptor_bytes = 1};
    ldr_net_env_t env = {
        .log = {log_nothing, NULL},
        .clock = sim_clock(r->net),
        .threads = sim_threads(r->net),
        .transport = sim_transport(r->net),
        .seed = seed,
    };
    assert_int_equal(ldr_options_parse(url, &r->options), LARDER_OK);
    assert_int_equal(ldr_handle_connect(&r->options, &env, &r->lar), LARDER_OK);
    assert_int_equal(larder_space_open(r->lar, &params, &r->space), LARDER_OK);
    for (unsigned i = 0; i < THREADS; i++) {
        r->callers[i] = sim_start(r->net, caller_main, r);
    }
}

static void end(rig_t *r)
{
    r->over = true;
    for (unsigned i = 0; i < THREADS; i++) {
        sim_join(r->net, r->callers[i]);
    }
    larder_space_close(&r->space);
    assert_int_equal(larder_close(&r->lar, 0), LARDER_OK);
}

static void run_seed(uint64_t seed, rig_t *r)
{
    current = seed;
    *r = (rig_t){.net = sim_net_new(seed)};
    r->peer = sim_peer_new(r->net, PORT);
    begin(r, seed,
          "tcp://peer:7?spin_us=0&timeout_ms=200&breaker_ms=100"
          "&connections=2");
    for (unsigned i = 0; i < 8; i++) {
        sim_sleep(r->net, some(r, 100) * SIM_MS);
        trouble(r);
    }
    sim_sleep(r->net, 400 * SIM_MS); /* longer than a pause and a deadline */
    unsigned hits = r->hits;
    sim_sleep(r->net, 400 * SIM_MS);
    assert_true(r->hits > hits); /* all is well again */
    end(r);
    sim_peer_free(r->peer);
    sim_net_free(r->net);
    current = 0;
}

/* No call takes longer than its deadline and gives other bytes than were saved;
 * and once all is well, calls are answered again. */
static void test_trouble(void **state)
{
    const char *one = getenv("LARDER_SEED"), *many = getenv("LARDER_SEEDS");
    uint64_t first = one != NULL ? strtoull(one, NULL, 10) : 1;
    uint64_t count = one != NULL    ? 1
                     : many != NULL ? strtoull(many, NULL, 10)
                                    : SEEDS;
    uint64_t calls = 0, hits = 0, late = 0, offline = 0;
    rig_t r;

    (void)state;
    for (uint64_t seed = first; seed < first + count; seed++) {
        run_seed(seed, &r);
        calls += r.calls;
        hits += r.hits;
        late += r.late;
        offline += r.offline;
    }
    print_message("%llu calls: %llu hits, %llu late, %llu offline\n",
                  (unsigned long long)calls, (unsigned long long)hits,
                  (unsigned long long)late, (unsigned long long)offline);
    assert_true(hits > 0 && late > 0 && offline > 0);
}

/* The same seed does the same, to the nanosecond. */
static void test_repeats(void **state)
{
    rig_t a, b;

    (void)state;
    run_seed(12345, &a);
    run_seed(12345, &b);
    assert_int_equal(a.calls, b.calls);
    assert_int_equal(a.hits, b.hits);
    assert_int_equal(a.late, b.late);
    assert_int_equal(a.offline, b.offline);
}

/* Calls are answered again within so much, whatever became of one gateway: two
 * calls that hear nothing of it, a pause after each, and its part of the time
 * to connect. */
#define AGAIN_NS ((2 * TIMEOUT_MS + 2 * 100 + TIMEOUT_MS / 2 + 100) * SIM_MS)

static void answered(rig_t *r, bool killed)
{
    sim_sleep(r->net, AGAIN_NS);
    unsigned hits = r->hits, offline = r->offline;
    sim_sleep(r->net, 300 * SIM_MS);
    require(r->hits > hits + 5, "the other gateway is not used");
    require(!killed || r->offline == offline,
            "the gateway that is gone is still tried");
}

/* A handle that names two members of a cluster: one is killed or stopped, and
 * the other one answers. one_call() checks that no call is late. */
static void test_gateways(void **state)
{
    rig_t r;

    (void)state;
    for (uint64_t seed = 1; seed <= 2; seed++) {
        current = seed;
        r = (rig_t){.net = sim_net_new(seed)};
        sim_peer_t *peers[] = {sim_peer_new(r.net, PORT),
                               sim_peer_new(r.net, PORT + 1)};

        begin(&r, seed,
              "tcp://peer:7,peer:8?spin_us=0&timeout_ms=200&breaker_ms=100"
              "&connections=2");
        for (unsigned i = 0; i < 4; i++) {
            sim_peer_t *gone = peers[i % 2];

            if (i < 2) {
                sim_peer_kill(gone);
            } else {
                sim_peer_stop(gone, sim_now(r.net) + 2000 * SIM_MS);
            }
            answered(&r, i < 2);
            if (i < 2) {
                sim_peer_restart(gone);
            } else {
                sim_sleep(r.net, 2000 * SIM_MS);
            }
        }
        assert_true(sim_peer_counts(peers[1]).hellos > 0);
        end(&r);
        sim_peer_free(peers[0]);
        sim_peer_free(peers[1]);
        sim_net_free(r.net);
    }
    current = 0;
}

static int say_seed(void **state)
{
    (void)state;
    if (current != 0) {
        print_message("LARDER_SEED=%llu\n", (unsigned long long)current);
    }
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_trouble, say_seed),
        cmocka_unit_test_teardown(test_repeats, say_seed),
        cmocka_unit_test_teardown(test_gateways, say_seed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
