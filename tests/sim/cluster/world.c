/* Nodes of the simulated cluster: see world.h. */
#include "sim/cluster/world.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/rig.h"
#include "tier/peer/peer.h"

#define WALL_BASE_S 1700000000
#define SEGMENT ((uint64_t)1 << 20)
#define PUMP_NS (20 * SIM_MS)

bool world_loud;
static char secret[64];

/* ---- words ---- */

static void log_some(void *arg, larder_log_level_t level, const char *text)
{
    const sim_node_t *n = arg;

    if (world_loud && level <= LARDER_LOG_INFO) {
        tell(n->world, "n%u%s says: %s", n->place, n->ghost ? " (dead)" : "",
             text);
    }
}

void world_fail(world_t *w, const char *format, ...)
{
    char text[512];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    fprintf(stderr,
            "%10.3f ms: %s\nreplay with LARDER_SEED=%llu LARDER_LOG=1\n",
            (double)sim_now(w->net) / 1e6, text, (unsigned long long)w->seed);
    abort();
}

void tell(world_t *w, const char *format, ...)
{
    va_list args;

    if (world_loud) {
        va_start(args, format);
        fprintf(stderr, "%10.3f ms: ", (double)sim_now(w->net) / 1e6);
        vfprintf(stderr, format, args);
        fprintf(stderr, "\n");
        va_end(args);
    }
}

uint64_t some(world_t *w, uint64_t bound)
{
    return ldr_rand_below(sim_rand(w->net), bound);
}

/* ---- clocks ---- */

static uint64_t node_now(void *arg)
{
    const sim_node_t *n = arg;
    const ldr_clock_t *clock = sim_clock(n->world->net);

    return clock->now_ns(clock->arg);
}

static uint64_t node_wall(void *arg)
{
    const sim_node_t *n = arg;

    return (uint64_t)(WALL_BASE_S + n->wall_s) * 1000 +
           sim_now(n->world->net) / SIM_MS;
}

/* ---- a node ---- */

/* Does what a real node's threads do. Whoever waits for a disk does it too, so
 * this one is only for what nobody waits for. */
static void *pump_main(void *arg)
{
    sim_node_t *n = arg;

    while (!n->stop) {
        while (!n->stop && ldr_node_step(n->node)) {
        }
        sim_sleep(n->world->net, PUMP_NS);
    }
    return NULL;
}

static void set(world_t *w, ldr_options_t *o, const char *name,
                const char *value)
{
    int at = ldr_option_find(name, strlen(name));

    if (at < 0 || ldr_option_set(o, (size_t)at, value) != LARDER_OK) {
        world_fail(w, "option %s=%s is refused: %s", name, value,
                   ldr_fail_text());
    }
}

static void set_members(const sim_node_t *n, ldr_options_t *o)
{
    world_t *w = n->world;
    char text[512] = "static:", one[32];

    if (w->etcd != NULL) {
        snprintf(one, sizeof(one), "sim:%u", n->place);
        set(w, o, "cluster", sim_etcd_url());
        set(w, o, "member_address", one);
        set(w, o, "member_weight", "4");
    } else {
        for (unsigned i = 0; i < w->count; i++) {
            snprintf(text + strlen(text), sizeof(text) - strlen(text),
                     "%sn%u=sim:%u", i > 0 ? "," : "", i + 1, i + 1);
        }
        set(w, o, "cluster", text);
    }
}

static ldr_options_t *options_of(sim_node_t *n)
{
    world_t *w = n->world;
    ldr_options_t *o = calloc(1, sizeof(*o));
    char text[32];

    ldr_options_default(o);
    set(w, o, "dram", w->pressure ? "2M" : "16M");
    set_members(n, o);
    snprintf(text, sizeof(text), "n%u", n->place);
    set(w, o, "member_name", text);
    snprintf(text, sizeof(text), "z%u", n->place % 3);
    if (w->etcd != NULL) {
        set(w, o, "member_zone", text);
    }
    set(w, o, "cluster_secret", secret);
    snprintf(text, sizeof(text), "%u", (unsigned)RAMP_S);
    set(w, o, "cluster_ramp_s", text);
    set(w, o, "peer_lanes", "3");
    set(w, o, "peer_timeout_ms", "200");
    set(w, o, "peer_match_ms", "40");
    snprintf(text, sizeof(text), "%u", w->copies);
    set(w, o, "copies", text);
    set(w, o, "home", w->writer ? "writer" : "owner");
    if (n->disk != NULL) {
        snprintf(o->dirs[0], LDR_PATH_MAX, "/ssd");
        o->dir_count = 1;
        o->segment = SEGMENT;
        o->ssd = rig_ssd(w->pressure ? 5 : 24, SEGMENT);
        o->io_depth = 4;
    }
    return o;
}

void node_up(sim_node_t *n, bool wipe)
{
    world_t *w = n->world;
    bool had = n->disk != NULL && !wipe && n->starts > 0;

    sim_place(w->net, n->place);
    if (n->disk != NULL && wipe) {
        simdisk_destroy(n->disk);
        n->disk = simdisk_create(w->seed * 64 + n->place, 0);
    }
    forget_events(n, !had);
    ldr_options_t *o = options_of(n);
    ldr_log_t log = {log_some, n};
    n->clock = (ldr_clock_t){node_now, node_wall, n};
    ldr_cluster_params_t cluster = {
        .options = o,
        .log = log,
        .clock = &n->clock,
        .threads = sim_threads(w->net),
        .http = w->etcd != NULL ? sim_etcd_http(w->etcd, n->place) : NULL,
        .seed = w->seed * 4096 + n->place * 128 + ++n->starts,
    };
    ldr_node_env_t env = {
        .io = n->disk != NULL ? simdisk_io(n->disk) : NULL,
        .clock = &n->clock,
        .seed = cluster.seed,
        .manual = true,
        .threads = sim_threads(w->net),
        .transport = sim_transport_at(w->net, n->place),
        .log = log,
    };
    if (ldr_cluster_open(&cluster, &n->cluster) != LARDER_OK ||
        (env.cluster = n->cluster,
         ldr_node_open(o, &env, &n->node) != LARDER_OK)) {
        world_fail(w, "n%u cannot be opened: %s", n->place, ldr_fail_text());
    }
    free(o);
    if (had) {
        ldr_cluster_returns(n->cluster);
    }
    ldr_peer_server_params_t params = {
        .node = n->node,
        .log = log,
        .clock = &n->clock,
        .threads = sim_threads(w->net),
        .from = sim_listen(w->net, n->place),
        .hello_ms = 500,
    };
    ldr_space_info_t info = {.tenant = "default", .has_key = true};
    if (ldr_peer_server_open(&params, &n->server) != LARDER_OK ||
        ldr_node_space(n->node, &info, &n->space) != LARDER_OK) {
        world_fail(w, "n%u: %s", n->place, ldr_fail_text());
    }
    n->stop = false;
    n->pump = sim_start(w->net, pump_main, n);
    n->up = true;
    sim_place(w->net, 0);
    tell(w, "n%u is up, start %u%s", n->place, (unsigned)n->starts,
         n->disk == NULL ? ", no disk"
         : had           ? ", with its disk"
                         : ", empty disk");
}

/* Ends its threads and frees it. */
static void take_down(sim_node_t *n)
{
    world_t *w = n->world;

    n->stop = true;
    sim_kill(w->net, n->place);
    sim_join(w->net, n->pump);
    ldr_peer_server_close(n->server);
    ldr_node_close(n->node, 0);
    ldr_cluster_close(n->cluster);
    n->node = NULL;
}

static void await_users(sim_node_t *n)
{
    while (n->users > 0) {
        sim_sleep(n->world->net, SIM_MS);
    }
}

static void isolate(sim_node_t *n, bool cut)
{
    world_t *w = n->world;

    for (unsigned i = 1; i <= w->count; i++) {
        sim_cut(w->net, n->place, i, cut);
        sim_cut(w->net, i, n->place, cut);
    }
    if (w->etcd != NULL) {
        sim_etcd_cut(w->etcd, n->place, cut);
    }
}

/* Its threads cannot be killed. So nothing of what they still do is seen by
 * anybody: its paths are cut, and its disk is what it was in that moment. */
void node_crash(sim_node_t *n, bool power)
{
    world_t *w = n->world;
    simdisk_t *left = n->disk;

    tell(w, "n%u is killed%s", n->place, power ? " by a power cut" : "");
    w->n.crashes++;
    note_death(n);
    n->up = false;
    n->ghost = true;
    sim_stop_place(w->net, n->place, 0);
    n->stopped_ns -=
        n->stopped_end > sim_now(w->net) ? n->stopped_end - sim_now(w->net) : 0;
    n->stopped_end = 0;
    isolate(n, true);
    sim_break_place(w->net, n->place);
    if (left != NULL) {
        n->disk = power ? simdisk_clone_cut(left, some(w, UINT64_MAX))
                        : simdisk_clone(left);
    }
    await_users(n);
    take_down(n);
    if (left != NULL) {
        simdisk_destroy(left);
    }
    isolate(n, false);
    n->ghost = false;
}

/* Whether another member has, or had, what this node has in DRAM. */
static bool was_given(sim_node_t *n, unsigned key)
{
    ldr_store_t *store = &n->node->store;
    larder_key_t name = key_name(key);
    larder_cause_t cause;
    bool given = false;

    ldr_node_lock(n->node);
    ldr_name_t full = ldr_store_name(store, n->space, 0, &name);
    uint32_t entry = ldr_store_find(store, &full, LDR_NIL,
                                    ldr_wall_s(n->node->clock), &cause);
    uint32_t chunk = entry != LDR_NIL
                         ? ldr_index_at(&store->index, entry)->resident
                         : LDR_NIL;
    if (chunk != LDR_NIL && store->chunks[chunk].shards != LDR_NIL) {
        given = store->shards[store->chunks[chunk].shards].given;
    }
    ldr_node_unlock(n->node);
    return given;
}

/* What no member had been given is with another one after it was handed on. */
static void check_handed_on(sim_node_t *n, const bool *alone)
{
    world_t *w = n->world;

    for (unsigned key = 0; key < w->keys; key++) {
        bool other = !alone[key] || was_removed(w, key) || !node_holds(n, key);

        for (unsigned i = 0; i < w->count && !other; i++) {
            other = w->nodes[i].up && node_holds(&w->nodes[i], key);
        }
        if (!other && !w->pressure) {
            world_fail(w,
                       "lost: n%u left and said that it has handed on all; "
                       "nobody else holds key %u",
                       n->place, key);
        }
    }
}

void node_leave(sim_node_t *n)
{
    world_t *w = n->world;
    ldr_peers_t *p = ldr_peers_of(&n->node->host);
    uint64_t given = 0, left = 0;
    bool alone[KEYS_MAX];

    tell(w, "n%u leaves", n->place);
    w->n.leaves++;
    ldr_cluster_leave(n->cluster, false, sim_now(w->net) + SECOND);
    ldr_stop_t stop = {NULL, sim_now(w->net) + SECOND};
    ldr_peers_leave(p, &stop);
    note_death(n);
    n->up = false;
    await_users(n);
    for (unsigned key = 0; key < w->keys; key++) {
        alone[key] =
            n->disk == NULL && node_holds(n, key) && !was_given(n, key);
    }
    stop.deadline_ns = sim_now(w->net) + 2 * SECOND;
    larder_status_t st = ldr_peers_hand_on(p, &stop, &given, &left);
    tell(w, "n%u has handed on %u, and %u are left: %s", n->place,
         (unsigned)given, (unsigned)left, larder_status_text(st));
    if (st == LARDER_OK && left == 0) {
        check_handed_on(n, alone);
    }
    take_down(n);
    tell(w, "n%u has left", n->place);
}

void node_stop(sim_node_t *n, uint64_t ns)
{
    world_t *w = n->world;

    tell(w, "n%u is stopped for %u ms", n->place, (unsigned)(ns / SIM_MS));
    w->n.stops++;
    n->stopped_end = sim_now(w->net) + ns;
    n->stopped_ns += ns;
    sim_stop_place(w->net, n->place, n->stopped_end);
}

static bool holds(sim_node_t *n, unsigned key, bool disk)
{
    ldr_store_t *store = &n->node->store;
    larder_key_t name = key_name(key);
    larder_cause_t cause;
    larder_tier_t tier;
    uint32_t bytes = 0;

    ldr_node_lock(n->node);
    ldr_name_t full = ldr_store_name(store, n->space, 0, &name);
    uint32_t entry = ldr_store_find(store, &full, LDR_NIL,
                                    ldr_wall_s(n->node->clock), &cause);
    ldr_sought_t sought = {&full, entry, 0, true};
    bool found = entry != LDR_NIL &&
                 ldr_node_usable(n->node, &sought, &tier, &bytes, &cause) &&
                 (!disk || ldr_index_has_loc(&store->index, entry));
    ldr_node_unlock(n->node);
    return found;
}

bool node_holds(sim_node_t *n, unsigned key)
{
    return holds(n, key, false);
}

bool node_keeps(sim_node_t *n, unsigned key)
{
    return holds(n, key, true);
}

uint32_t node_rank(sim_node_t *n, unsigned key)
{
    const ldr_view_t *view = ldr_cluster_view(n->cluster);
    larder_key_t name = key_name(key);
    uint32_t owners[2], rank = UINT32_MAX;
    uint32_t count = ldr_view_owners(view, ldr_run_hash(&name), 2, owners);

    for (uint32_t i = 0; i < count; i++) {
        rank = owners[i] == view->self ? i : rank;
    }
    ldr_view_give(view);
    return rank;
}

sim_node_t *take_node(world_t *w, bool up)
{
    unsigned at = (unsigned)some(w, w->count);

    for (unsigned i = 0; i < w->count; i++) {
        sim_node_t *n = &w->nodes[(at + i) % w->count];

        if (n->up == up && !n->busy) {
            n->busy = true;
            return n;
        }
    }
    return NULL;
}

/* ---- the world ---- */

void world_open(world_t *w, uint64_t seed, unsigned nodes, bool etcd)
{
    memset(w, 0, sizeof(*w));
    w->seed = seed;
    w->net = sim_net_new(seed);
    w->etcd = etcd ? sim_etcd_new(w->net) : NULL;
    w->count = nodes;
    w->keys = 24;
    w->copies = 1;
    w->pace_ns = 8 * SIM_MS;
    for (unsigned i = 0; i < KEYS_MAX; i++) {
        w->key[i].next = 1;
    }
    for (unsigned i = 0; i < nodes; i++) {
        w->nodes[i] = (sim_node_t){.world = w, .place = i + 1};
        if (some(w, 4) > 0) {
            w->nodes[i].disk = simdisk_create(seed * 64 + i + 1, 0);
        }
    }
}

void world_close(world_t *w)
{
    for (unsigned i = 0; i < w->count; i++) {
        if (w->nodes[i].disk != NULL) {
            simdisk_destroy(w->nodes[i].disk);
        }
    }
    if (w->etcd != NULL) {
        sim_etcd_free(w->etcd);
    }
    sim_net_free(w->net);
}

bool world_begin_all(void)
{
    snprintf(secret, sizeof(secret), "/tmp/larder-sim-cluster-%ld",
             (long)getpid());
    FILE *f = fopen(secret, "w");
    if (f == NULL) {
        return false;
    }
    fprintf(f, "0123456789abcdef0123456789abcdef\n");
    fclose(f);
    return chmod(secret, 0600) == 0;
}

void world_end_all(void)
{
    unlink(secret);
}
