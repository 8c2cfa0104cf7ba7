/*
 * Members by etcd, with the servers, the threads and the clock simulated: what
 * an authority can do to a cluster, by seed.
 */
#include <stdlib.h>

#include "cluster/options.h"

#include "base/clock.h"
#include "cluster/cluster.h"
#include "cluster/etcd.h"
#include "sim/simetcd.h"
#include "sim/simnet.h"

#define S (1000 * SIM_MS)
#define NODES 6u
#define SECRET "0123456789abcdef0123456789abcdef\n"
#define OTHER "fedcba9876543210fedcba9876543210\n"

static char secret[LDR_PATH_MAX], other_secret[LDR_PATH_MAX];

static int begin_all(void **state)
{
    (void)state;
    put_file(secret, SECRET);
    put_file(other_secret, OTHER);
    return 0;
}

static int end_all(void **state)
{
    (void)state;
    return unlink(secret) | unlink(other_secret);
}

typedef struct rig {
    sim_net_t *net;
    sim_etcd_t *etcd;
    uint64_t seed;
    ldr_cluster_t *nodes[NODES];
    char said[16384]; /* lines of the log */
} rig_t;

static void on_log(void *arg, larder_log_level_t level, const char *line)
{
    rig_t *r = arg;
    size_t used = strlen(r->said);

    if (level <= LARDER_LOG_WARN) {
        snprintf(r->said + used, sizeof(r->said) - used, "%s\n", line);
    }
    if (getenv("LARDER_LOG") != NULL) {
        fprintf(stderr, "%.3f %s\n", (double)sim_now(r->net) / 1e9, line);
    }
}

static void begin(rig_t *r, uint64_t seed)
{
    memset(r, 0, sizeof(*r));
    r->seed = seed;
    r->net = sim_net_new(seed);
    r->etcd = sim_etcd_new(r->net);
}

static ldr_cluster_t *join_as(rig_t *r, unsigned node, const char *name,
                              const char *address, const char *secret_path,
                              bool returning)
{
    ldr_options_t o = options_of(sim_etcd_url(), name, secret_path);
    ldr_cluster_params_t p = {
        .options = &o,
        .log = {on_log, r},
        .clock = sim_clock(r->net),
        .threads = sim_threads(r->net),
        .http = sim_etcd_http(r->etcd, node),
        .seed = r->seed * 1000 + node + 1,
    };

    set_option(&o, "member_address", address);
    set_option(&o, "member_weight", "4");
    if (ldr_cluster_open(&p, &r->nodes[node]) != LARDER_OK) {
        fail_msg("%s", larder_last_error());
    }
    if (returning) {
        ldr_cluster_returns(r->nodes[node]);
    }
    return r->nodes[node];
}

static void join(rig_t *r, unsigned node, bool returning)
{
    char name[16], address[32];

    snprintf(name, sizeof(name), "n%u", node);
    snprintf(address, sizeof(address), "10.0.0.%u:7000", node);
    join_as(r, node, name, address, secret, returning);
}

static void leave(rig_t *r, unsigned node)
{
    ldr_cluster_close(r->nodes[node]);
    r->nodes[node] = NULL;
}

static void end(rig_t *r)
{
    for (unsigned i = 0; i < NODES; i++) {
        leave(r, i);
    }
    sim_etcd_free(r->etcd);
    sim_net_free(r->net);
}

/* Bits of the nodes that this one sees as members. */
static unsigned seen(rig_t *r, unsigned node)
{
    const ldr_view_t *v = ldr_cluster_view(r->nodes[node]);
    unsigned bits = 0;

    for (uint32_t i = 0; i < v->count; i++) {
        bits |= 1u << (unsigned)(v->members[i].name[1] - '0');
    }
    ldr_view_give(v);
    return bits;
}

static uint32_t share(rig_t *r, unsigned node, unsigned of)
{
    const ldr_view_t *v = ldr_cluster_view(r->nodes[node]);
    char name[16];
    uint32_t result = 0;

    snprintf(name, sizeof(name), "n%u", of);
    uint32_t at = ldr_view_find(v, ldr_member_id(name));
    if (at != LDR_NOBODY) {
        result = v->members[at].leaving ? 0 : v->members[at].share;
    }
    ldr_view_give(v);
    return result;
}

/* All see just these, and have the same view. */
static bool agree(rig_t *r, unsigned bits)
{
    uint8_t hash[32];
    bool first = true;

    for (unsigned i = 0; i < NODES; i++) {
        if (r->nodes[i] == NULL) {
            continue;
        }
        const ldr_view_t *v = ldr_cluster_view(r->nodes[i]);
        bool same = first || memcmp(hash, v->hash, 32) == 0;

        memcpy(hash, v->hash, 32);
        first = false;
        ldr_view_give(v);
        if (!same || seen(r, i) != bits) {
            return false;
        }
    }
    return true;
}

static void await(rig_t *r, unsigned bits, uint64_t limit_ns, const char *what)
{
    uint64_t until_ns = sim_now(r->net) + limit_ns;

    while (!agree(r, bits)) {
        if (sim_now(r->net) >= until_ns) {
            for (unsigned i = 0; i < NODES; i++) {
                fprintf(stderr, "n%u sees %#x\n", i,
                        r->nodes[i] != NULL ? seen(r, i) : 0);
            }
            fail_msg("seed %llu: %s: no agreement on %#x after %.1f s\n%s",
                     (unsigned long long)r->seed, what, bits,
                     (double)limit_ns / 1e9, r->said);
        }
        sim_sleep(r->net, 200 * SIM_MS);
    }
}

static void begin_five(rig_t *r, uint64_t seed)
{
    begin(r, seed);
    for (unsigned i = 0; i < 5; i++) {
        join(r, i, true);
    }
    await(r, 0x1f, 20 * S, "five begin");
}

/* Time passes; no node ever sees fewer than `least` members. */
static void pass(rig_t *r, uint64_t ns, unsigned least, const char *what)
{
    for (uint64_t end_ns = sim_now(r->net) + ns; sim_now(r->net) < end_ns;) {
        sim_sleep(r->net, 250 * SIM_MS);
        for (unsigned i = 0; i < NODES; i++) {
            if (r->nodes[i] != NULL &&
                (unsigned)__builtin_popcount(seen(r, i)) < least) {
                fail_msg("seed %llu: %s: n%u sees only %#x at %.1f s\n%s",
                         (unsigned long long)r->seed, what, i, seen(r, i),
                         (double)sim_now(r->net) / 1e9, r->said);
            }
        }
    }
}

static void stop_all(rig_t *r, bool stopped)
{
    for (unsigned i = 0; i < SIM_ETCD_SERVERS; i++) {
        sim_etcd_stop(r->etcd, i, stopped);
    }
}

/* ---- what happened to others ---- */

/* Servers that are stopped for minutes: no view changes, and when they go on
 * with every lease at its end, nobody loses more than half. */
static void stall(uint64_t seed)
{
    uint64_t generation[5];
    ldr_cluster_stats_t stats;
    rig_t r;

    begin_five(&r, seed);
    for (unsigned i = 0; i < 5; i++) {
        generation[i] = ldr_cluster_generation(r.nodes[i]);
    }
    stop_all(&r, true);
    sim_sleep(r.net, 300 * S);
    for (unsigned i = 0; i < 5; i++) {
        assert_int_equal(ldr_cluster_generation(r.nodes[i]), generation[i]);
        ldr_cluster_stats(r.nodes[i], &stats);
        assert_int_equal(stats.source_ok, 0);
        assert_in_range(stats.source_age_ms, 290000, 310000);
    }
    stop_all(&r, false);
    pass(&r, 60 * S, 3, "after a stall");
    await(&r, 0x1f, 10 * S, "after a stall");
    for (unsigned i = 0; i < 5; i++) {
        assert_int_equal(share(&r, i, 0), LDR_SHARE_FULL); /* no newcomers */
    }
    end(&r);
}

static void test_stall(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 4; seed++) {
        stall(seed);
    }
}

/* A node that starts while etcd is dead works alone, and is there later. */
static void test_dead_at_start(void **state)
{
    rig_t r;

    (void)state;
    begin(&r, 5);
    for (unsigned i = 0; i < SIM_ETCD_SERVERS; i++) {
        sim_etcd_down(r.etcd, i, true);
    }
    join(&r, 0, false);
    join(&r, 1, false);
    sim_sleep(r.net, 60 * S);
    assert_int_equal(seen(&r, 0), 0);
    assert_int_equal(ldr_cluster_generation(r.nodes[0]), 0);
    for (unsigned i = 0; i < SIM_ETCD_SERVERS; i++) {
        sim_etcd_down(r.etcd, i, false);
    }
    await(&r, 3, 15 * S, "etcd comes");
    end(&r);
}

/* Every lease expires although everybody is well. */
static void test_mass_expiry(void **state)
{
    (void)state;
    for (uint64_t seed = 10; seed < 14; seed++) {
        rig_t r;

        begin_five(&r, seed);
        sim_etcd_expire(r.etcd);
        pass(&r, 20 * S, 3, "mass expiry");
        await(&r, 0x1f, 5 * S, "mass expiry");
        end(&r);
    }
}

/* One node dies: the others have it out of the ring within its lease. Most
 * die: that must persist. */
static void test_deaths(void **state)
{
    rig_t r;

    (void)state;
    begin_five(&r, 20);
    uint64_t at = sim_now(r.net);
    sim_etcd_cut(r.etcd, 4, true); /* it lives, alone */
    while (seen(&r, 0) != 0x0f) {
        sim_sleep(r.net, 100 * SIM_MS);
        assert_true(sim_now(r.net) < at + 20 * S);
    }
    assert_int_equal(seen(&r, 4), 0x1f); /* its last view stands */
    sim_etcd_cut(r.etcd, 4, false);
    await(&r, 0x1f, 25 * S, "it is back");
    assert_int_equal(share(&r, 0, 4), LDR_SHARE_FULL);

    at = sim_now(r.net);
    for (unsigned i = 1; i < 4; i++) {
        sim_etcd_cut(r.etcd, i, true);
    }
    sim_sleep(r.net, 35 * S); /* leases, and most of the guard's time */
    /* However they expired, together or not: at least half is there. */
    assert_in_range(__builtin_popcount(seen(&r, 0)), 3, 5);
    sim_sleep(r.net, 30 * S);
    assert_int_equal(seen(&r, 0), 0x11);
    for (unsigned i = 1; i < 4; i++) {
        sim_etcd_cut(r.etcd, i, false);
    }
    await(&r, 0x1f, 25 * S, "they are back");
    end(&r);
}

/* A server whose stream says nothing any more, unseen by TCP: others tell. */
static void test_mute(void **state)
{
    rig_t r;

    (void)state;
    begin_five(&r, 30);
    for (unsigned i = 0; i < SIM_ETCD_SERVERS; i++) {
        sim_etcd_mute(r.etcd, i, true);
    }
    join(&r, 5, true);
    sim_sleep(r.net, 20 * S);
    for (unsigned i = 0; i < SIM_ETCD_SERVERS; i++) {
        sim_etcd_mute(r.etcd, i, i == 0);
    }
    await(&r, 0x3f, 30 * S, "mute streams");
    assert_non_null(strstr(r.said, "is silent although"));

    /* One server stopped: keepalives and streams go elsewhere. */
    sim_etcd_mute(r.etcd, 0, false);
    sim_etcd_stop(r.etcd, 1, true);
    leave(&r, 5);
    await(&r, 0x1f, 60 * S, "one server stopped");
    pass(&r, 60 * S, 5, "one server stopped");
    end(&r);
}

/* Streams end, and history is compacted under them. */
static void test_compaction(void **state)
{
    (void)state;
    for (uint64_t seed = 40; seed < 44; seed++) {
        rig_t r;

        begin_five(&r, seed);
        sim_etcd_cut(r.etcd, 2, true);
        sim_sleep(r.net, 2 * S);
        join(&r, 5, true);
        sim_sleep(r.net, 5 * S);
        sim_etcd_compact(r.etcd);
        sim_etcd_end_watches(r.etcd);
        sim_etcd_cut(r.etcd, 2, false);
        await(&r, 0x3f, 30 * S, "compaction");
        for (unsigned i = 0; i < 20; i++) {
            sim_etcd_end_watches(r.etcd);
            sim_etcd_compact(r.etcd);
            sim_sleep(r.net, ldr_rand_below(sim_rand(r.net), 500) * SIM_MS);
        }
        leave(&r, 5);
        await(&r, 0x1f, 30 * S, "streams that end");
        end(&r);
    }
}

/* ---- joining ---- */

static void test_ramp(void **state)
{
    uint32_t last = 0;
    rig_t r;

    (void)state;
    begin_five(&r, 50);
    join(&r, 5, false);
    await(&r, 0x3f, 5 * S, "a newcomer");
    assert_int_equal(share(&r, 0, 5), 1);
    for (unsigned s = 0; s < 235; s++) {
        uint32_t now = share(&r, s % 5, 5);

        assert_true(now >= last && now < LDR_SHARE_FULL);
        last = now;
        sim_sleep(r.net, S);
    }
    assert_int_equal(last, LDR_SHARE_FULL - 1);
    sim_sleep(r.net, 10 * S);
    assert_int_equal(share(&r, 0, 5), LDR_SHARE_FULL);
    assert_true(agree(&r, 0x3f));
    /* Its lease is lost: the same run, no newcomer. */
    sim_etcd_expire(r.etcd);
    sim_sleep(r.net, 20 * S);
    assert_int_equal(share(&r, 0, 5), LDR_SHARE_FULL);
    assert_true(agree(&r, 0x3f));
    end(&r);
}

static void test_two_of_one_name(void **state)
{
    ldr_cluster_stats_t stats;
    rig_t r;

    (void)state;
    begin(&r, 60);
    join(&r, 0, true);
    join(&r, 1, true);
    await(&r, 3, 15 * S, "two");
    join_as(&r, 2, "n0", "10.9.9.9:1", secret, true);
    sim_sleep(r.net, 60 * S);
    ldr_cluster_stats(r.nodes[2], &stats);
    assert_int_equal(stats.registered, 0);
    assert_non_null(strstr(stats.trouble, "two nodes are named 'n0'"));
    assert_non_null(strstr(stats.trouble, "10.0.0.0:7000"));
    assert_true(agree(&r, 3));
    ldr_cluster_stats(r.nodes[0], &stats);
    assert_int_equal(stats.registered, 1);
    assert_string_equal(stats.trouble, "");
    /* The first one ends: the name is free. */
    leave(&r, 0);
    sim_sleep(r.net, 25 * S);
    ldr_cluster_stats(r.nodes[2], &stats);
    assert_int_equal(stats.registered, 1);
    assert_string_equal(stats.trouble, "");
    /* A restart at the same address takes its own key over at once. */
    uint64_t at = sim_now(r.net);
    ldr_cluster_t *before = r.nodes[1];
    sim_etcd_cut(r.etcd, 1, true);
    join_as(&r, 3, "n1", "10.0.0.1:7000", secret, true);
    do {
        sim_sleep(r.net, 100 * SIM_MS);
        ldr_cluster_stats(r.nodes[3], &stats);
        assert_true(sim_now(r.net) < at + 5 * S);
    } while (stats.registered == 0);
    /* The one before it is reached again: it does not take the key back. */
    sim_etcd_cut(r.etcd, 1, false);
    uint64_t generation = ldr_cluster_generation(r.nodes[2]);
    ldr_cluster_leave(before, false, sim_now(r.net) + S);
    sim_sleep(r.net, 20 * S);
    assert_int_equal(ldr_cluster_generation(r.nodes[2]), generation);
    ldr_cluster_stats(r.nodes[3], &stats);
    assert_int_equal(stats.registered, 1);
    ldr_cluster_close(before);
    r.nodes[1] = NULL;
    sim_sleep(r.net, 30 * S);
    assert_true(agree(&r, 3));

    /* A key that is deleted by hand is written again. */
    sim_etcd_put(r.etcd, "/larder/sim/members/n1", NULL);
    sim_sleep(r.net, 10 * S);
    assert_true(agree(&r, 3));
    ldr_cluster_stats(r.nodes[3], &stats);
    assert_int_equal(stats.registered, 1);
    end(&r);
}

static void test_refused(void **state)
{
    static const char newer[] =
        "{\"name\":\"n4\",\"address\":\"h:1\",\"weight\":1,\"share\":8,"
        "\"version\":\"9.0.0\",\"run\":7,\"check\":\"%s\"}";
    char value[LDR_ETCD_VALUE], check[64];
    ldr_cluster_stats_t stats;
    rig_t r;

    (void)state;
    begin(&r, 70);
    join(&r, 0, true);
    join(&r, 1, true);
    await(&r, 3, 15 * S, "two");
    join_as(&r, 2, "n2", "10.0.0.2:1", other_secret, true);
    sim_etcd_put(r.etcd, "/larder/sim/members/n3", "not json");
    sim_etcd_put(r.etcd, "/larder/sim/members/", "{}");
    sim_etcd_put(r.etcd, "/larder/sim/strange", "key");
    sim_etcd_put(r.etcd, "/larder/simulated/members/n5", "another cluster");
    sim_sleep(r.net, 5 * S);
    assert_int_equal(seen(&r, 0), 3);
    assert_int_equal(seen(&r, 2), 4); /* its own cluster, of one */
    ldr_cluster_stats(r.nodes[0], &stats);
    assert_int_equal(stats.refused, 2);
    assert_non_null(strstr(r.said, "member 'n2' is refused: it has another "
                                   "cluster_secret"));
    assert_non_null(strstr(r.said, "member 'n3' is refused"));

    /* Another major version, with the right secret: its check is that of the
     * name, whatever else the value says. */
    ldr_member_t m = {.weight = 1, .share = LDR_SHARE_FULL, .run = 7};
    snprintf(m.name, sizeof(m.name), "n4");
    snprintf(m.address, sizeof(m.address), "h:1");
    snprintf(m.version, sizeof(m.version), "9.0.0");
    ldr_etcd_compose(r.nodes[0], &m, value);
    assert_int_equal(
        sscanf(strstr(value, "\"check\":\""), "\"check\":\"%32[0-9a-f]", check),
        1);
    snprintf(value, sizeof(value), newer, check);
    sim_etcd_put(r.etcd, "/larder/sim/members/n4", value);
    sim_sleep(r.net, 5 * S);
    assert_int_equal(seen(&r, 0), 3);
    assert_non_null(strstr(r.said, "member 'n4' is refused: it runs another "
                                   "major version"));
    /* The foreign keys do not look like a silent watch. */
    sim_sleep(r.net, 60 * S);
    assert_null(strstr(r.said, "is silent although"));
    end(&r);
}

/* ---- leaving ---- */

static void test_leave(void **state)
{
    uint32_t owner;
    rig_t r;

    (void)state;
    begin_five(&r, 80);
    assert_int_equal(
        ldr_cluster_leave(r.nodes[2], false, sim_now(r.net) + 5 * S),
        LARDER_OK);
    sim_sleep(r.net, S);
    for (unsigned i = 0; i < 5; i++) {
        const ldr_view_t *v = ldr_cluster_view(r.nodes[i]);

        assert_int_equal(v->count, 5); /* others still fetch from it */
        for (uint64_t run = 0; run < 200; run++) {
            assert_int_equal(ldr_view_owners(v, run, 1, &owner), 1);
            assert_string_not_equal(v->members[owner].name, "n2");
        }
        ldr_view_give(v);
    }
    assert_int_equal(
        ldr_cluster_leave(r.nodes[2], true, sim_now(r.net) + 5 * S), LARDER_OK);
    sim_sleep(r.net, S);
    assert_int_equal(share(&r, 0, 2), LDR_SHARE_FULL);

    /* By another member. */
    assert_int_equal(ldr_cluster_drain(r.nodes[0], "n3", false), LARDER_OK);
    sim_sleep(r.net, 2 * S);
    assert_int_equal(share(&r, 4, 3), 0);
    assert_int_equal(ldr_cluster_drain(r.nodes[0], "n9", false),
                     LARDER_E_INVALID);
    assert_int_equal(ldr_cluster_drain(r.nodes[3], "n3", true), LARDER_OK);
    sim_sleep(r.net, 2 * S);
    assert_int_equal(share(&r, 4, 3), LDR_SHARE_FULL);
    assert_int_equal(ldr_cluster_drain(r.nodes[3], "n3", false), LARDER_OK);
    sim_sleep(r.net, 2 * S);
    assert_int_equal(share(&r, 4, 3), 0);
    assert_int_equal(ldr_cluster_drain(r.nodes[3], "n3", true), LARDER_OK);
    sim_sleep(r.net, 2 * S);
    assert_int_equal(share(&r, 4, 3), LDR_SHARE_FULL);

    /* etcd is stopped: leaving ends at its deadline and is recorded later. */
    stop_all(&r, true);
    uint64_t at = sim_now(r.net);
    assert_int_equal(ldr_cluster_leave(r.nodes[1], false, at + 3 * S),
                     LARDER_E_DEADLINE);
    assert_in_range(sim_now(r.net), at + 3 * S, at + 3 * S + 50 * SIM_MS);
    stop_all(&r, false);
    sim_sleep(r.net, 20 * S);
    assert_int_equal(share(&r, 0, 1), 0);

    /* The end of a node takes its key away, not its lease's time. */
    leave(&r, 1);
    sim_sleep(r.net, 2 * S);
    assert_int_equal(seen(&r, 0), 0x1d);
    end(&r);
}

/* Closing does not wait for servers that are stopped. */
static void test_close(void **state)
{
    rig_t r;

    (void)state;
    begin_five(&r, 90);
    stop_all(&r, true);
    sim_sleep(r.net, S);
    uint64_t at = sim_now(r.net);
    leave(&r, 0);
    assert_true(sim_now(r.net) < at + 5 * S);
    stop_all(&r, false);
    end(&r);
}

/* ---- anything, by seed ---- */

static void chaos(uint64_t seed)
{
    unsigned alive = 0x1f, cut = 0;
    rig_t r;

    begin_five(&r, seed);
    for (unsigned step = 0; step < 30; step++) {
        ldr_rand_t *rand = sim_rand(r.net);
        unsigned node = (unsigned)ldr_rand_below(rand, NODES);
        unsigned server = (unsigned)ldr_rand_below(rand, SIM_ETCD_SERVERS);
        bool on = ldr_rand_below(rand, 2) == 0;

        switch (ldr_rand_below(rand, 9)) {
        case 0:
            sim_etcd_stop(r.etcd, server, on);
            break;
        case 1:
            sim_etcd_down(r.etcd, server, on);
            break;
        case 2:
            sim_etcd_mute(r.etcd, server, on);
            break;
        case 3:
            sim_etcd_cut(r.etcd, node, on);
            cut = on ? cut | 1u << node : cut & ~(1u << node);
            break;
        case 4:
            sim_etcd_end_watches(r.etcd);
            break;
        case 5:
            sim_etcd_compact(r.etcd);
            break;
        case 6:
            sim_etcd_expire(r.etcd);
            break;
        case 7:
            if (r.nodes[node] == NULL) {
                join(&r, node, on);
                alive |= 1u << node;
            } else if (__builtin_popcount(alive) > 3) {
                leave(&r, node);
                alive &= ~(1u << node);
            }
            break;
        default:
            break;
        }
        sim_sleep(r.net, ldr_rand_below(rand, 20000) * SIM_MS);
    }
    for (unsigned i = 0; i < SIM_ETCD_SERVERS; i++) {
        sim_etcd_stop(r.etcd, i, false);
        sim_etcd_down(r.etcd, i, false);
        sim_etcd_mute(r.etcd, i, false);
    }
    for (unsigned i = 0; i < NODES; i++) {
        sim_etcd_cut(r.etcd, i, false);
    }
    /* Healed: leases, a look, the guard and one ramp later all agree. */
    await(&r, alive, 100 * S, "healed");
    sim_sleep(r.net, 250 * S);
    assert_true(agree(&r, alive));
    for (unsigned i = 0; i < NODES; i++) {
        if (r.nodes[i] != NULL && share(&r, i, i) != LDR_SHARE_FULL) {
            fail_msg("seed %llu: n%u has no full share",
                     (unsigned long long)seed, i);
        }
    }
    end(&r);
}

static void test_chaos(void **state)
{
    const char *text = getenv("LARDER_SEEDS"), *one = getenv("LARDER_SEED");
    uint64_t first = one != NULL ? strtoull(one, NULL, 10) : 1000;
    uint64_t seeds = one != NULL    ? 1
                     : text != NULL ? strtoull(text, NULL, 10)
                                    : 12;

    (void)state;
    for (uint64_t seed = first; seed < first + seeds; seed++) {
        chaos(seed);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stall),
        cmocka_unit_test(test_dead_at_start),
        cmocka_unit_test(test_mass_expiry),
        cmocka_unit_test(test_deaths),
        cmocka_unit_test(test_mute),
        cmocka_unit_test(test_compaction),
        cmocka_unit_test(test_ramp),
        cmocka_unit_test(test_two_of_one_name),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_leave),
        cmocka_unit_test(test_close),
        cmocka_unit_test(test_chaos),
    };

    if (argc > 1) {
        cmocka_set_test_filter(argv[1]);
    }
    return cmocka_run_group_tests(tests, begin_all, end_all);
}
