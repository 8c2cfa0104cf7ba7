/*
 * A cluster in one process: real nodes, the peer tier and its sessions, over
 * the simulated network in virtual time. Clients save, load and remove, and
 * reset the space, on all nodes, while nodes crash and come back empty, paths
 * are cut in one direction or both, break, and are slow. By seed: LARDER_SEED
 * runs one, LARDER_SEEDS sets how many; LARDER_LOG shows what happens.
 *
 * What must hold: a load gives exactly bytes that were saved under that key, or
 * a miss. No call returns later than its deadline + 50 ms. After a removal or a
 * reset that answered OK, nothing from before is given out, by any member.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "cluster/cluster.h"
#include "node/load.h"
#include "server/peer.h"
#include "sim/simnet.h"
#include "tier/peer/peer.h"

enum {
    NODES_MAX = 5,
    KEYS = 24,
    CLIENTS = 2, /* of each node */
    TIMEOUT_MS = 300,
    ROUNDS = 30,
    SEEDS = 12
};

#define LATE_NS (50 * SIM_MS)
#define BYTES_MAX ((size_t)150 << 10)

/* What is known of a key. Versions of its bytes count up with each removal and
 * reset. */
typedef struct key_state {
    unsigned saves; /* under way */
    bool removing;  /* nobody saves it meanwhile */
    uint32_t next;  /* version that is saved */
    uint32_t floor; /* older ones must not be seen */
} key_state_t;

typedef struct rig rig_t;

typedef struct sim_node {
    rig_t *rig;
    unsigned place;
    bool up;
    unsigned users; /* calls under way */
    ldr_cluster_t *cluster;
    ldr_node_t *node;
    ldr_peer_server_t *server;
    unsigned pump;
    bool stop;
    uint32_t space;
    uint64_t starts;
} sim_node_t;

struct rig {
    sim_net_t *net;
    unsigned count;
    sim_node_t nodes[NODES_MAX];
    key_state_t keys[KEYS];
    bool over;
    unsigned loads, hits, from_peers, saves, partial, resets, removals;
    uint64_t longest_ns;
};

static uint64_t current; /* the seed that runs */
static bool loud;
static char secret[64];

static void log_some(void *arg, larder_log_level_t level, const char *text)
{
    (void)arg;
    if (loud && level <= LARDER_LOG_INFO) {
        fprintf(stderr, "  log: %s\n", text);
    }
}

/* Runs in threads of the simulation, where cmocka cannot end a test. */
static void require(bool what, const char *text)
{
    if (!what) {
        fprintf(stderr, "LARDER_SEED=%llu: %s (%s)\n",
                (unsigned long long)current, text, ldr_fail_text());
        abort();
    }
}

static void tell(rig_t *r, const char *format, ...)
{
    va_list args;

    if (loud) {
        va_start(args, format);
        fprintf(stderr, "%10.3f ms: ", (double)sim_now(r->net) / 1e6);
        vfprintf(stderr, format, args);
        fprintf(stderr, "\n");
        va_end(args);
    }
}

static uint64_t some(rig_t *r, uint64_t bound)
{
    return ldr_rand_below(sim_rand(r->net), bound);
}

/* ---- contents ---- */

static size_t bytes_of(unsigned key)
{
    return 4096 + (key * 7919u) % (BYTES_MAX - 4096);
}

static void content(unsigned key, uint32_t version, uint8_t *data)
{
    for (size_t i = 0; i < bytes_of(key); i++) {
        data[i] = (uint8_t)(key * 31 + version * 7 + i / 64);
    }
    ldr_put32(data, key);
    ldr_put32(data + 4, version);
}

static larder_key_t name_of(unsigned key)
{
    larder_key_t k = {{0}};

    ldr_put64(k.hash, key * UINT64_C(0x9e3779b97f4a7c15) + 1);
    return k;
}

/* ---- nodes ---- */

/* Does what a real node's threads do. */
static void *pump_main(void *arg)
{
    sim_node_t *n = arg;

    while (!n->stop) {
        while (!n->stop && ldr_node_step(n->node)) {
        }
        sim_sleep(n->rig->net, SIM_MS);
    }
    return NULL;
}

static void set(ldr_options_t *o, const char *name, const char *value)
{
    int at = ldr_option_find(name, strlen(name));

    require(at >= 0 && ldr_option_set(o, (size_t)at, value) == LARDER_OK,
            "an option is refused");
}

static void node_up(sim_node_t *n)
{
    rig_t *r = n->rig;
    ldr_options_t *o = calloc(1, sizeof(*o));
    char members[256] = "static:", name[16];
    ldr_log_t log = {log_some, NULL};

    for (unsigned i = 0; i < r->count; i++) {
        snprintf(members + strlen(members), sizeof(members) - strlen(members),
                 "%sn%u=sim:%u", i > 0 ? "," : "", i + 1, i + 1);
    }
    snprintf(name, sizeof(name), "n%u", n->place);
    ldr_options_default(o);
    set(o, "dram", "8M");
    set(o, "cluster", members);
    set(o, "member_name", name);
    set(o, "cluster_secret", secret);
    set(o, "cluster_ramp_s", "0");
    set(o, "peer_lanes", "3");
    set(o, "peer_timeout_ms", "200");
    set(o, "peer_match_ms", "40");
    ldr_cluster_params_t cluster = {
        .options = o,
        .log = log,
        .clock = sim_clock(r->net),
        .threads = sim_threads(r->net),
        .seed = current * 1000 + n->place * 100 + ++n->starts,
    };
    require(ldr_cluster_open(&cluster, &n->cluster) == LARDER_OK,
            "the cluster cannot be opened");
    ldr_node_env_t env = {
        .clock = sim_clock(r->net),
        .seed = cluster.seed,
        .manual = true,
        .cluster = n->cluster,
        .threads = sim_threads(r->net),
        .transport = sim_transport_at(r->net, n->place),
        .log = log,
    };
    require(ldr_node_open(o, &env, &n->node) == LARDER_OK,
            "a node cannot be opened");
    free(o);
    ldr_peer_server_params_t params = {
        .node = n->node,
        .log = log,
        .clock = sim_clock(r->net),
        .threads = sim_threads(r->net),
        .from = sim_listen(r->net, n->place),
        .hello_ms = 500,
    };
    require(ldr_peer_server_open(&params, &n->server) == LARDER_OK, "no peers");
    ldr_space_info_t info = {.tenant = "default", .has_key = true};
    require(ldr_node_space(n->node, &info, &n->space) == LARDER_OK, "no space");
    n->stop = false;
    n->pump = sim_start(r->net, pump_main, n);
    n->up = true;
    tell(r, "n%u is up", n->place);
}

static void node_down(sim_node_t *n)
{
    rig_t *r = n->rig;

    n->up = false;
    while (n->users > 0) {
        sim_sleep(r->net, SIM_MS);
    }
    tell(r, "n%u is killed", n->place);
    n->stop = true;
    sim_kill(r->net, n->place);
    sim_join(r->net, n->pump);
    ldr_peer_server_close(n->server);
    ldr_node_close(n->node, 0);
    ldr_cluster_close(n->cluster);
}

/* ---- calls ---- */

static void timed(rig_t *r, uint64_t begin_ns, const char *what)
{
    uint64_t took_ns = sim_now(r->net) - begin_ns;

    r->longest_ns = ldr_max64(r->longest_ns, took_ns);
    if (took_ns > TIMEOUT_MS * SIM_MS + LATE_NS) {
        fprintf(stderr, "a %s took %llu us\n", what,
                (unsigned long long)(took_ns / 1000));
        require(false, "a call took longer than its deadline");
    }
}

static ldr_stop_t stop_of(rig_t *r)
{
    return (ldr_stop_t){NULL, sim_now(r->net) + TIMEOUT_MS * SIM_MS};
}

static void do_save(sim_node_t *n, unsigned key, uint8_t *data)
{
    rig_t *r = n->rig;
    key_state_t *k = &r->keys[key];
    larder_key_t name = name_of(key);
    struct iovec iov = {data, bytes_of(key)};
    larder_item_t item = {.key = &name, .iov = &iov, .iov_count = 1};
    ldr_target_t target = {n->space, 1, &item};
    ldr_stop_t stop = stop_of(r);
    uint64_t begin_ns = sim_now(r->net);

    if (k->removing) {
        return;
    }
    k->saves++;
    content(key, k->next, data);
    ldr_node_put(n->node, &target, false, &stop);
    k->saves--;
    r->saves += item.status == LARDER_OK;
    timed(r, begin_ns, "save");
}

static void do_load(sim_node_t *n, unsigned key, uint8_t *data)
{
    rig_t *r = n->rig;
    const key_state_t *k = &r->keys[key];
    larder_key_t name = name_of(key);
    struct iovec iov = {data, BYTES_MAX};
    larder_item_t item = {.key = &name, .iov = &iov, .iov_count = 1};
    ldr_load_t load = {.target = {n->space, 1, &item}};
    ldr_stop_t stop = stop_of(r);
    uint64_t begin_ns = sim_now(r->net);
    uint32_t floor = k->floor;
    ldr_query_t *ask =
        ldr_node_ask_begin(n->node, n->space, 1, stop.deadline_ns);

    require(ldr_node_ask_add(n->node, ask, 0, &name, 1) == LARDER_OK, "memory");
    if (ldr_node_ask(n->node, ask)) {
        ldr_node_ask_wait(n->node, ask);
        ldr_node_ask_end(n->node, ask);
    }
    if (!ldr_load_begin(n->node, &load)) {
        ldr_node_reads_go(n->node);
        ldr_load_wait(n->node, &load, stop.deadline_ns);
    }
    bool peer = load.tier == LARDER_TIER_PEER;
    if (load.status == LARDER_OK) {
        ldr_load_copy(n->node, &load, &stop);
    }
    uint32_t length = load.length;
    ldr_load_end(n->node, &load, false);
    timed(r, begin_ns, "load");
    r->loads++;
    if (load.status != LARDER_OK) {
        return;
    }
    uint32_t version = ldr_get32(data + 4);
    uint8_t *right = malloc(BYTES_MAX);
    content(key, version, right);
    require(length == bytes_of(key) && version <= k->next &&
                memcmp(right, data, length) == 0,
            "wrong bytes");
    free(right);
    if (version < floor) {
        fprintf(stderr, "key %u: version %u on n%u, and %u was removed\n", key,
                version, n->place, floor - 1);
        require(false, "a removal or a reset was undone");
    }
    r->hits++;
    r->from_peers += peer;
}

/* Nobody saves these keys until end_removal(). */
static void begin_removal(rig_t *r, unsigned first, unsigned end)
{
    for (unsigned i = first; i < end; i++) {
        while (r->keys[i].removing || r->keys[i].saves > 0) {
            sim_sleep(r->net, SIM_MS);
        }
        r->keys[i].removing = true;
    }
}

static void end_removal(rig_t *r, unsigned first, unsigned end,
                        larder_status_t st)
{
    for (unsigned i = first; i < end; i++) {
        r->keys[i].next++;
        if (st == LARDER_OK || st == LARDER_MISS) {
            r->keys[i].floor = r->keys[i].next;
        }
        r->keys[i].removing = false;
    }
    r->partial += st == LARDER_PARTIAL;
}

static void do_remove(sim_node_t *n, unsigned key)
{
    rig_t *r = n->rig;
    larder_key_t name = name_of(key);
    larder_item_t item = {.key = &name};

    begin_removal(r, key, key + 1);
    ldr_stop_t stop = stop_of(r);
    uint64_t begin_ns = sim_now(r->net);
    ldr_node_remove(n->node, n->space, &item, 1, &stop);
    timed(r, begin_ns, "removal");
    tell(r, "n%u removes key %u: %s", n->place, key,
         larder_status_text(item.status));
    r->removals++;
    end_removal(r, key, key + 1, item.status);
}

static void do_reset(sim_node_t *n)
{
    rig_t *r = n->rig;

    begin_removal(r, 0, KEYS);
    uint64_t begin_ns = sim_now(r->net);
    larder_status_t st =
        ldr_node_reset(n->node, n->space, begin_ns + TIMEOUT_MS * SIM_MS);
    timed(r, begin_ns, "reset");
    tell(r, "n%u resets: %s", n->place, larder_status_text(st));
    r->resets++;
    end_removal(r, 0, KEYS, st);
}

static void *client_main(void *arg)
{
    sim_node_t *n = arg;
    rig_t *r = n->rig;
    uint8_t *data = malloc(BYTES_MAX);

    while (!r->over) {
        unsigned key = (unsigned)some(r, KEYS);

        if (!n->up) {
            sim_sleep(r->net, 5 * SIM_MS);
            continue;
        }
        n->users++;
        switch (some(r, 40)) {
        case 0:
            do_remove(n, key);
            break;
        case 1:
            if (some(r, 6) == 0) {
                do_reset(n);
            }
            break;
        default:
            if (some(r, 3) == 0) {
                do_save(n, key, data);
            } else {
                do_load(n, key, data);
            }
        }
        n->users--;
        sim_sleep(r->net, some(r, 8 * SIM_MS));
    }
    free(data);
    return NULL;
}

/* ---- trouble ---- */

static void cut(rig_t *r, unsigned a, unsigned b, unsigned ways, bool how)
{
    if (ways & 1) {
        sim_cut(r->net, a, b, how);
    }
    if (ways & 2) {
        sim_cut(r->net, b, a, how);
    }
}

static void trouble(rig_t *r)
{
    sim_path_t *path = sim_path(r->net);
    unsigned a = 1 + (unsigned)some(r, r->count);
    unsigned b = 1 + (unsigned)some(r, r->count);
    unsigned ways = 1 + (unsigned)some(r, 3);

    switch (some(r, 6)) {
    case 0:
        node_down(&r->nodes[a - 1]);
        sim_sleep(r->net, some(r, 400) * SIM_MS);
        node_up(&r->nodes[a - 1]);
        break;
    case 1:
        tell(r, "n%u and n%u are cut, ways %u", a, b, ways);
        cut(r, a, b, ways, true);
        sim_sleep(r->net, some(r, 900) * SIM_MS);
        cut(r, a, b, ways, false);
        tell(r, "mended");
        break;
    case 2:
        tell(r, "n%u is cut off, ways %u", a, ways);
        for (unsigned i = 1; i <= r->count; i++) {
            cut(r, a, i, ways, true);
        }
        sim_sleep(r->net, some(r, 900) * SIM_MS);
        for (unsigned i = 1; i <= r->count; i++) {
            cut(r, a, i, ways, false);
        }
        tell(r, "mended");
        break;
    case 3:
        tell(r, "all connections break");
        sim_break_all(r->net);
        break;
    case 4:
        path->delay_max_ns = (1 + some(r, 30)) * SIM_MS;
        path->window = 1000 + some(r, 100000);
        sim_sleep(r->net, some(r, 500) * SIM_MS);
        path->delay_max_ns = 200000;
        path->window = (size_t)256 << 10;
        sim_path_changed(r->net);
        break;
    default:
        sim_sleep(r->net, some(r, 300) * SIM_MS);
    }
}

static void run_seed(uint64_t seed, rig_t *r, bool calm)
{
    unsigned clients[NODES_MAX * CLIENTS], count = 0;

    current = seed;
    *r = (rig_t){.net = sim_net_new(seed)};
    r->count = 3 + (unsigned)some(r, NODES_MAX - 2);
    for (unsigned i = 0; i < KEYS; i++) {
        r->keys[i].next = 1;
    }
    for (unsigned i = 0; i < r->count; i++) {
        r->nodes[i] = (sim_node_t){.rig = r, .place = i + 1};
        node_up(&r->nodes[i]);
    }
    for (unsigned i = 0; i < r->count * CLIENTS; i++) {
        clients[count++] =
            sim_start(r->net, client_main, &r->nodes[i % r->count]);
    }
    for (unsigned i = 0; i < ROUNDS; i++) {
        if (calm) {
            sim_sleep(r->net, 200 * SIM_MS);
        } else {
            trouble(r);
        }
    }
    r->over = true;
    for (unsigned i = 0; i < count; i++) {
        sim_join(r->net, clients[i]);
    }
    for (unsigned i = 0; i < r->count; i++) {
        node_down(&r->nodes[i]);
    }
    sim_net_free(r->net);
}

static void show(const rig_t *r)
{
    if (loud || getenv("LARDER_SEED") != NULL) {
        fprintf(stderr,
                "seed %llu: %u nodes, %u loads, %u hits, %u from peers, %u "
                "saves, %u removals, %u resets, %u partial, longest %llu us\n",
                (unsigned long long)current, r->count, r->loads, r->hits,
                r->from_peers, r->saves, r->removals, r->resets, r->partial,
                (unsigned long long)(r->longest_ns / 1000));
    }
}

/* ---- tests ---- */

/* Without trouble peers serve each other, and every removal reaches all. */
static void test_calm(void **state)
{
    rig_t *r = calloc(1, sizeof(*r));

    (void)state;
    run_seed(1, r, true);
    show(r);
    assert_true(r->hits > r->loads / 8);
    assert_true(r->from_peers > 20);
    assert_true(r->removals > 5);
    assert_int_equal(r->partial, 0);
    free(r);
}

static void test_seeds(void **state)
{
    const char *one = getenv("LARDER_SEED"), *many = getenv("LARDER_SEEDS");
    uint64_t first = one != NULL ? strtoull(one, NULL, 10) : 1;
    uint64_t count = one != NULL    ? 1
                     : many != NULL ? strtoull(many, NULL, 10)
                                    : SEEDS;
    rig_t *r = calloc(1, sizeof(*r));
    unsigned from_peers = 0, partial = 0;

    (void)state;
    for (uint64_t i = first; i < first + count; i++) {
        run_seed(i, r, false);
        show(r);
        from_peers += r->from_peers;
        partial += r->partial;
    }
    if (count >= SEEDS) { /* otherwise nothing was tried */
        assert_true(from_peers > 100);
        assert_true(partial > 0);
    }
    free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calm),
        cmocka_unit_test(test_seeds),
    };

    loud = getenv("LARDER_LOG") != NULL;
    snprintf(secret, sizeof(secret), "/tmp/larder-sim-cluster-%ld",
             (long)getpid());
    FILE *f = fopen(secret, "w");
    if (f == NULL) {
        return 1;
    }
    fprintf(f, "0123456789abcdef0123456789abcdef\n");
    fclose(f);
    chmod(secret, 0600);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(secret);
    return failed;
}
