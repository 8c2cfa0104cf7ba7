/*
 * Members of a cluster in one process: real nodes, the peer tier and its
 * sessions, over the simulated network in virtual time. A test says what each
 * member does, one call after the other.
 */
#pragma once

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
#include "node/handover.h"
#include "node/load.h"
#include "server/peer.h"
#include "sim/simdisk.h"
#include "sim/simnet.h"
#include "tier/peer/peer.h"

#define MEMBERS_MAX 8u
#define VALUE_MAX ((size_t)1 << 20)

typedef struct rig rig_t;

typedef struct member {
    rig_t *rig;
    unsigned place; /* from 1 */
    bool up, stop;
    ldr_cluster_t *cluster;
    ldr_node_t *node;
    ldr_peers_t *peers;
    ldr_peer_server_t *server;
    unsigned pump;
    uint32_t space;
    simdisk_t *disk; /* NULL: it has none */
} member_t;

/* What a member is started with, over what all have. */
typedef struct setting {
    const char *name, *value;
} setting_t;

struct rig {
    sim_net_t *net;
    ldr_clock_t clock; /* of the nodes */
    uint64_t wall_s;   /* what their wall clocks are ahead */
    unsigned count;
    bool disks;                        /* each has one */
    ldr_handover_t *handover;          /* a member that ends fills it, one that
                                          starts takes it over; or NULL */
    unsigned starts[MEMBERS_MAX + 1];  /* of each member */
    member_t members[MEMBERS_MAX + 1]; /* by place */
    uint8_t data[VALUE_MAX];
};

static char secret_path[64];

static inline void quiet(void *arg, larder_log_level_t level, const char *text)
{
    (void)arg;
    if (getenv("LARDER_LOG") != NULL && level <= LARDER_LOG_INFO) {
        fprintf(stderr, "  log: %s\n", text);
    }
}

/* In the threads of a simulation cmocka cannot end a test. */
#define need(what)                                                             \
    do {                                                                       \
        if (!(what)) {                                                         \
            fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #what,     \
                    ldr_fail_text());                                          \
            abort();                                                           \
        }                                                                      \
    } while (0)

static inline void *pump_main(void *arg)
{
    member_t *m = arg;

    while (!m->stop) {
        while (!m->stop && ldr_node_step(m->node)) {
        }
        sim_sleep(m->rig->net, SIM_MS);
    }
    return NULL;
}

static inline void set(ldr_options_t *o, const char *name, const char *value)
{
    int at = ldr_option_find(name, strlen(name));

    need(at >= 0 && ldr_option_set(o, (size_t)at, value) == LARDER_OK);
}

/* settings: ended by one without a name; NULL: none. */
static inline void member_up(rig_t *r, unsigned place,
                             const setting_t *settings)
{
    member_t *m = &r->members[place];
    ldr_options_t *o = calloc(1, sizeof(*o));
    char members[256] = "static:", name[16];
    ldr_log_t log = {quiet, NULL};

    *m = (member_t){.rig = r, .place = place};
    for (unsigned i = 1; i <= r->count; i++) {
        snprintf(members + strlen(members), sizeof(members) - strlen(members),
                 "%sn%u=sim:%u", i > 1 ? "," : "", i, i);
    }
    snprintf(name, sizeof(name), "n%u", place);
    ldr_options_default(o);
    set(o, "dram", "8M");
    set(o, "cluster", members);
    set(o, "member_name", name);
    set(o, "cluster_secret", secret_path);
    set(o, "cluster_ramp_s", "0");
    set(o, "home", "owner");
    for (; settings != NULL && settings->name != NULL; settings++) {
        set(o, settings->name, settings->value);
    }
    if (r->disks) {
        m->disk = simdisk_create(place, 512);
        snprintf(o->dirs[0], LDR_PATH_MAX, "/ssd");
        o->dir_count = 1;
        set(o, "ssd", "64M");
        set(o, "segment", "4M");
    }
    ldr_cluster_params_t cluster = {
        .options = o,
        .log = log,
        .clock = sim_clock(r->net),
        .threads = sim_threads(r->net),
        .seed = place + 64 * r->starts[place]++, /* another run of it */
    };
    need(ldr_cluster_open(&cluster, &m->cluster) == LARDER_OK);
    ldr_node_env_t env = {
        .clock = &r->clock,
        .seed = place,
        .io = m->disk != NULL ? simdisk_io(m->disk) : NULL,
        .manual = true,
        .cluster = m->cluster,
        .threads = sim_threads(r->net),
        .transport = sim_transport_at(r->net, place),
        .handover = r->handover,
        .log = log,
    };
    need(ldr_node_open(o, &env, &m->node) == LARDER_OK);
    free(o);
    m->peers = ldr_peers_of(&m->node->host);
    ldr_peer_server_params_t params = {
        .node = m->node,
        .log = log,
        .clock = sim_clock(r->net),
        .threads = sim_threads(r->net),
        .from = sim_listen(r->net, place),
        .hello_ms = 500,
    };
    need(ldr_peer_server_open(&params, &m->server) == LARDER_OK);
    ldr_space_info_t info = {.tenant = "default", .has_key = true};
    need(ldr_node_space(m->node, &info, &m->space) == LARDER_OK);
    m->pump = sim_start(r->net, pump_main, m);
    m->up = true;
}

static inline void member_down(member_t *m)
{
    rig_t *r = m->rig;

    m->up = false;
    m->stop = true;
    sim_kill(r->net, m->place);
    sim_join(r->net, m->pump);
    if (m->server != NULL) {
        ldr_peer_server_close(m->server);
    }
    if (r->handover != NULL) {
        ldr_node_hand_over(m->node, 0, r->handover);
    } else {
        ldr_node_close(m->node, 0);
    }
    ldr_cluster_close(m->cluster);
    if (m->disk != NULL) {
        simdisk_destroy(m->disk);
    }
}

static inline uint64_t rig_now(void *rig)
{
    return ldr_now_ns(sim_clock(((rig_t *)rig)->net));
}

static inline uint64_t rig_wall(void *rig)
{
    const rig_t *r = rig;

    return ldr_wall_ms(sim_clock(r->net)) + r->wall_s * 1000;
}

static inline rig_t *peers_with(unsigned count, bool disks,
                                const setting_t *settings)
{
    rig_t *r = calloc(1, sizeof(*r));

    r->net = sim_net_new(7);
    r->clock = (ldr_clock_t){rig_now, rig_wall, r};
    r->count = count;
    r->disks = disks;
    for (unsigned i = 1; i <= count; i++) {
        member_up(r, i, settings);
    }
    sim_sleep(r->net, 500 * SIM_MS); /* they meet */
    return r;
}

static inline rig_t *peers_new(unsigned count, const setting_t *settings)
{
    return peers_with(count, false, settings);
}

static inline void peers_free(rig_t *r)
{
    for (unsigned i = 1; i <= r->count; i++) {
        if (r->members[i].up) {
            member_down(&r->members[i]);
        }
    }
    sim_net_free(r->net);
    free(r);
}

/* ---- names and contents ---- */

static inline larder_key_t name_of(unsigned key)
{
    larder_key_t k = {{0}};

    ldr_put64(k.hash, key * UINT64_C(0x9e3779b97f4a7c15) + 1);
    ldr_put64(k.hash + 8, key);
    return k;
}

/* Which member is of this rank for it, from 0. */
static inline unsigned member_of(rig_t *r, unsigned key, unsigned rank)
{
    larder_key_t name = name_of(key);
    const ldr_view_t *v = ldr_cluster_view(r->members[1].cluster);
    uint32_t owners[2] = {0};

    need(ldr_view_owners(v, ldr_run_hash(&name), 2, owners) > rank);
    unsigned place =
        (unsigned)strtoul(v->members[owners[rank]].name + 1, NULL, 10);
    ldr_view_give(v);
    return place;
}

/* The next key, from this one on, whose rank 1 and 2 are these. */
static inline unsigned key_of(rig_t *r, unsigned from, unsigned first,
                              unsigned second)
{
    while (member_of(r, from, 0) != first ||
           (second != 0 && member_of(r, from, 1) != second)) {
        from++;
    }
    return from;
}

static inline void content(unsigned key, uint8_t *data, size_t bytes)
{
    memset(data, (int)(key * 31 + 7), bytes);
    ldr_put32(data, key);
}

/* ---- calls ---- */

static inline larder_status_t save(member_t *m, unsigned key, size_t bytes)
{
    rig_t *r = m->rig;
    larder_key_t name = name_of(key);
    struct iovec iov = {r->data, bytes};
    larder_item_t item = {.key = &name, .iov = &iov, .iov_count = 1};
    ldr_target_t target = {m->space, 1, &item};
    ldr_stop_t stop = {NULL, sim_now(r->net) + 500 * SIM_MS};

    content(key, r->data, bytes);
    ldr_node_put(m->node, &target, false, &stop);
    return item.status;
}

/* Asks for keys [first, first + count). member: whom besides; NULL: nobody.
 * True: somebody was asked. */
static inline bool ask_with(member_t *m, unsigned first, unsigned count,
                            bool lease, const char *member)
{
    rig_t *r = m->rig;
    ldr_query_t *q = ldr_node_ask_begin(m->node, m->space, 1,
                                        sim_now(r->net) + 500 * SIM_MS);

    q->lease = lease;
    if (member != NULL) {
        snprintf(q->member, sizeof(q->member), "%s", member);
    }
    for (unsigned i = 0; i < count; i++) {
        larder_key_t name = name_of(first + i);

        need(ldr_node_ask_add(m->node, q, 0, &name, 1) == LARDER_OK);
    }
    if (!ldr_node_ask(m->node, q)) {
        return false;
    }
    ldr_node_ask_wait(m->node, q);
    ldr_node_ask_end(m->node, q);
    return true;
}

static inline bool ask(member_t *m, unsigned first, unsigned count, bool lease)
{
    return ask_with(m, first, count, lease, NULL);
}

/* Loads without asking; *tier_p: where it came from. The bytes are compared. */
static inline larder_status_t fetch(member_t *m, unsigned key, uint64_t ms,
                                    larder_tier_t *tier_p)
{
    rig_t *r = m->rig;
    larder_key_t name = name_of(key);
    struct iovec iov = {r->data, VALUE_MAX};
    larder_item_t item = {.key = &name, .iov = &iov, .iov_count = 1};
    ldr_load_t load = {.target = {m->space, 1, &item}};
    ldr_stop_t stop = {NULL, sim_now(r->net) + ms * SIM_MS};

    if (!ldr_load_begin(m->node, &load)) {
        ldr_node_reads_go(m->node);
        ldr_load_wait(m->node, &load, stop.deadline_ns);
    }
    *tier_p = load.tier;
    if (load.status == LARDER_OK) {
        ldr_load_copy(m->node, &load, &stop);
    }
    uint32_t length = load.length;
    ldr_load_end(m->node, &load, false);
    if (load.status == LARDER_OK) {
        uint8_t *right = malloc(length);

        content(key, right, length);
        need(memcmp(right, r->data, length) == 0);
        free(right);
    }
    return load.status;
}

/* The bytes that a member has leases on at another. */
static inline uint64_t leased(member_t *at, unsigned by)
{
    char name[16];

    snprintf(name, sizeof(name), "n%u", by);
    ldr_host_lock(&at->node->host);
    uint64_t bytes = ldr_peers_node(at->peers, name)->leased;
    ldr_host_unlock(&at->node->host);
    return bytes;
}

/* The chunk of this key in a member's DRAM, or LDR_NIL. */
static inline uint32_t chunk_of(member_t *m, unsigned key)
{
    ldr_store_t *s = &m->node->store;
    larder_key_t name = name_of(key);
    larder_cause_t cause;

    ldr_host_lock(&m->node->host);
    ldr_name_t n = ldr_store_name(s, m->space, 0, &name);
    uint32_t entry = ldr_store_find(s, &n, LDR_NIL, 1, &cause);
    uint32_t chunk =
        entry != LDR_NIL ? ldr_index_at(&s->index, entry)->resident : LDR_NIL;
    ldr_host_unlock(&m->node->host);
    return chunk;
}

/* Saves so much of no interest that all else has to make room. */
static inline void churn(member_t *m, unsigned from)
{
    for (unsigned i = 0; i < 32; i++) {
        larder_status_t st = save(m, 1000000 + from + i, VALUE_MAX / 2);

        need(st == LARDER_OK || st == LARDER_DECLINED);
    }
}

static inline int rig_main(const struct CMUnitTest *tests, size_t count)
{
    snprintf(secret_path, sizeof(secret_path), "/tmp/larder-peer-%ld",
             (long)getpid());
    FILE *f = fopen(secret_path, "w");
    if (f == NULL) {
        return 1;
    }
    fprintf(f, "0123456789abcdef0123456789abcdef\n");
    fclose(f);
    chmod(secret_path, 0600);
    int failed = _cmocka_run_group_tests("peer", tests, count, NULL, NULL);
    unlink(secret_path);
    return failed;
}
