/*
 * Several tiers (nodes) over one simulated store, a virtual clock, and values
 * that say what they are: the space, the key, and a number that is different
 * for each save. What a node then reads can be judged: see world_get().
 */
#pragma once

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/copy.h"
#include "base/mem.h"
#include "tier/shared/objects.h"
#include "sim/simstore.h"
#include "store/index.h"

#define RIG_NODES 4u
#define RIG_SPACES 2u
#define RIG_KEYS 24u
#define RIG_MS ((uint64_t)1000000u)
#define RIG_SECOND ((uint64_t)1000000000u)
#define RIG_PAYLOAD_MAX (3u * LDR_BLOCK)

typedef struct world world_t;

typedef struct node {
    world_t *world;
    unsigned number;
    ldr_objects_t *tier; /* NULL: down */
    ldr_backend_t *backend;
    uint32_t tenant;
    uint32_t space[RIG_SPACES];
    uint32_t epoch[RIG_SPACES]; /* that the node knows */
    uint64_t floor[RIG_SPACES]; /* saves up to it are reset for this node */
    uint64_t kfloor[RIG_SPACES][RIG_KEYS]; /* ... or removed */
    bool running;  /* inside a step: not entered again */
    uint8_t other; /* all bytes of its tenant's id, if not the usual */
} node_t;

/* What was saved under a number. */
typedef struct save {
    uint8_t space, key;
    bool told; /* the write was answered with success */
    uint32_t epoch;
    uint64_t when_ns;
} save_t;

struct world {
    uint64_t now_ns;
    ldr_rand_t rand;
    simstore_t *store;
    ldr_seal_t seal;
    ldr_objects_params_t params; /* as every node is opened */
    node_t nodes[RIG_NODES];
    unsigned node_count;
    save_t *saves; /* by number; the first is 1 */
    uint64_t save_count, save_capacity;
    uint64_t seeds;
    unsigned depth; /* of nodes that run inside each other's calls */
    bool nests;
    uint64_t hits, misses;
};

/* ---- names ---- */

static inline void rig_space_id(unsigned space, uint8_t id[LDR_ID_BYTES])
{
    memset(id, 0x50 + (int)space, LDR_ID_BYTES);
}

static inline void rig_tenant_id(uint8_t id[LDR_ID_BYTES])
{
    memset(id, 0xaa, LDR_ID_BYTES);
}

#define RIG_TENANT "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define RIG_OTHER_ID 0xbb /* node_t.other of a second tenant */
#define RIG_OTHER "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"

static inline larder_key_t rig_key(unsigned key)
{
    larder_key_t k;
    ldr_rand_t r;

    ldr_rand_seed(&r, 1000 + key);
    for (unsigned i = 0; i < sizeof(k.hash); i += 8) {
        ldr_put64(k.hash + i, ldr_rand_next(&r));
    }
    return k;
}

static inline uint32_t rig_length(unsigned space, unsigned key)
{
    return 100 + (key * 977 + space * 131) % (RIG_PAYLOAD_MAX - 100);
}

static inline void rig_fill(uint8_t *data, unsigned space, unsigned key,
                            uint64_t number)
{
    ldr_rand_t r;
    uint32_t length = rig_length(space, key), i = 16;

    memset(data, 0, RIG_PAYLOAD_MAX);
    ldr_put64(data, number);
    ldr_put32(data + 8, space);
    ldr_put32(data + 12, key);
    ldr_rand_seed(&r, number * 64 + key);
    for (; i + 8 <= length; i += 8) {
        ldr_put64(data + i, ldr_rand_next(&r));
    }
}

#define RIG_CHECK(what)                                                        \
    do {                                                                       \
        if (!(what)) {                                                         \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what);         \
            abort();                                                           \
        }                                                                      \
    } while (0)

/* ---- the world ---- */

static inline uint64_t rig_now(void *arg)
{
    return ((world_t *)arg)->now_ns;
}

static inline uint64_t rig_wall_ms(void *arg)
{
    return 1700000000000u + ((world_t *)arg)->now_ns / 1000000u;
}

static inline void rig_quiet(void *arg, larder_log_level_t level,
                             const char *line)
{
    (void)arg;
    if (getenv("RIG_LOG") != NULL) {
        fprintf(stderr, "%d %s\n", (int)level, line);
    }
}

static ldr_clock_t rig_clock;

static inline void world_open(world_t *w, uint64_t seed, unsigned nodes)
{
    memset(w, 0, sizeof(*w));
    ldr_rand_seed(&w->rand, seed);
    w->seeds = seed << 20;
    w->now_ns = 100 * RIG_SECOND;
    w->store = simstore_create(seed);
    memset(w->seal.mac, 7, sizeof(w->seal.mac));
    rig_clock = (ldr_clock_t){rig_now, rig_wall_ms, w};
    w->params = (ldr_objects_params_t){
        .threads = 1,
        .timeout_ms = 1000,
        .retry_ms = 500,
        .poll_ms = 100,
        .publish_ms = 50,
        .orphan_s = 10,
        .clock = &rig_clock,
        .log = {.fn = rig_quiet},
        .manual = true,
    };
    w->node_count = nodes;
    for (unsigned i = 0; i < nodes; i++) {
        w->nodes[i].world = w;
        w->nodes[i].number = i;
    }
}

static inline void node_epoch(void *arg, const uint8_t id[LDR_ID_BYTES],
                              uint32_t epoch)
{
    node_t *n = arg;
    unsigned space = id[0] - 0x50u;

    RIG_CHECK(space < RIG_SPACES && epoch > n->epoch[space]);
    n->epoch[space] = epoch;
}

static inline bool node_step(node_t *n)
{
    if (n->tier == NULL || n->running) {
        return false;
    }
    n->running = true;
    bool some = ldr_objects_step(n->tier);
    n->running = false;
    return some;
}

/* Another node runs before this one's call of the back end. */
static inline void rig_nest(void *arg)
{
    node_t *n = arg;
    world_t *w = n->world;

    if (!w->nests || w->depth >= 2 || ldr_rand_below(&w->rand, 4) != 0) {
        return;
    }
    bool was = n->running; /* it may be in a call that waits */
    n->running = true;
    w->depth++;
    node_step(&w->nodes[ldr_rand_below(&w->rand, w->node_count)]);
    w->depth--;
    n->running = was;
}

/* before: instead of what runs other nodes. */
static inline void node_open_with(node_t *n, void (*before)(void *arg),
                                  void *arg)
{
    world_t *w = n->world;
    ldr_objects_params_t p = w->params;
    uint8_t id[LDR_ID_BYTES];

    n->backend = simstore_backend(w->store);
    simstore_before(n->backend, before, arg);
    p.backend = n->backend;
    p.seed = ++w->seeds;
    p.epoch = node_epoch;
    p.arg = n;
    RIG_CHECK(ldr_objects_open(&p, &n->tier) == LARDER_OK);
    rig_tenant_id(id);
    if (n->other != 0) {
        memset(id, n->other, sizeof(id));
    }
    n->running = true;
    RIG_CHECK(ldr_objects_tenant(n->tier, id, "acme", &w->seal,
                                 w->now_ns + RIG_SECOND,
                                 &n->tenant) == LARDER_OK);
    for (unsigned s = 0; s < RIG_SPACES; s++) {
        rig_space_id(s, id);
        n->epoch[s] = 0; /* it has kept nothing */
        n->space[s] = ldr_objects_space(n->tier, n->tenant, id, 0);
        RIG_CHECK(n->space[s] != LDR_NIL);
    }
    n->running = false;
    memset(n->floor, 0, sizeof(n->floor));
    memset(n->kfloor, 0, sizeof(n->kfloor));
}

static inline void node_open(node_t *n)
{
    node_open_with(n, rig_nest, n);
}

static inline void node_close(node_t *n)
{
    if (n->tier != NULL) {
        n->running = true;
        RIG_CHECK(ldr_objects_close(n->tier, n->world->now_ns + RIG_SECOND));
        n->running = false;
        n->tier = NULL;
    }
}

static inline void world_close(world_t *w)
{
    for (unsigned i = 0; i < w->node_count; i++) {
        node_close(&w->nodes[i]);
    }
    simstore_destroy(w->store);
    free(w->saves);
}

/* Until nobody has anything to do now. */
static inline void world_run(world_t *w)
{
    bool some = true;

    for (unsigned turns = 0; some; turns++) {
        RIG_CHECK(turns < 200000); /* it must come to rest */
        some = false;
        for (unsigned i = 0; i < w->node_count; i++) {
            some = node_step(&w->nodes[i]) || some;
        }
    }
}

/* Bytes of a tenant's objects. */
static inline uint64_t world_bytes(const world_t *w, const char *tenant)
{
    char prefix[64];

    snprintf(prefix, sizeof(prefix), "%s/o/", tenant);
    return simstore_bytes(w->store, prefix);
}

static inline void world_pass(world_t *w, uint64_t total_ns, uint64_t step_ns)
{
    world_run(w);
    for (uint64_t t = 0; t < total_ns; t += step_ns) {
        w->now_ns += step_ns;
        world_run(w);
    }
}

/* ---- saving ---- */

/* Whether it takes this shard, and does not have it. */
static inline bool tier_wants(ldr_objects_t *tier, uint32_t tenant,
                              uint32_t space, const larder_key_t *key)
{
    ldr_object_place_t place;

    return ldr_objects_takes(tier, tenant, space) &&
           !ldr_objects_find(tier, tenant, space,
                             ldr_objects_epoch(tier, tenant, space), key, 0, 0,
                             &place);
}

typedef struct rig_put {
    ldr_objects_write_t write;
    world_t *world;
    uint64_t numbers[8];
    struct iovec iov[8 + 8 + 1];
    uint8_t data[8][RIG_PAYLOAD_MAX] __attribute__((aligned(4096)));
    int result; /* 1: under way */
} rig_put_t;

static inline void put_done(ldr_objects_write_t *w)
{
    rig_put_t *p = w->arg;

    p->result = w->error;
    for (uint32_t i = 0; i < w->count && w->error == 0; i++) {
        p->world->saves[p->numbers[i]].told = true;
    }
}

static inline uint64_t new_save(world_t *w, unsigned space, unsigned key,
                                uint32_t epoch)
{
    if (w->save_count + 1 >= w->save_capacity) {
        w->save_capacity = w->save_capacity * 2 + 64;
        w->saves = realloc(w->saves, w->save_capacity * sizeof(w->saves[0]));
    }
    w->saves[++w->save_count] =
        (save_t){(uint8_t)space, (uint8_t)key, false, epoch, w->now_ns};
    return w->save_count;
}

/* Begins to save these keys in one object. False: not taken. */
static inline bool put_begin(node_t *n, rig_put_t *p, unsigned space,
                             const unsigned *keys, unsigned count)
{
    world_t *w = n->world;
    ldr_objects_write_t *write = &p->write;

    p->world = w;
    p->result = 1;
    *write = (ldr_objects_write_t){
        .tenant = n->tenant,
        .space = n->space[space],
        .count = count,
        .iov = p->iov,
        .deadline_ns = w->now_ns + RIG_SECOND,
        .done = put_done,
        .arg = p,
    };
    for (unsigned i = 0; i < count; i++) {
        uint32_t length = rig_length(space, keys[i]);

        p->numbers[i] = new_save(w, space, keys[i], n->epoch[space]);
        rig_fill(p->data[i], space, keys[i], p->numbers[i]);
        p->iov[i] = (struct iovec){
            p->data[i], (size_t)(ldr_record_blocks(length) - 1) * LDR_BLOCK};
        write->iov_first[i + 1] = i + 1;
        write->records[i] = (ldr_record_t){
            .kind = LDR_RECORD_SHARD,
            .key = rig_key(keys[i]),
            .epoch = n->epoch[space],
            .shards = 1,
            .depth = keys[i],
            .length = length,
            .payload_crc = ldr_crc32c(0, p->data[i], length),
        };
    }
    if (!ldr_objects_write(n->tier, write)) {
        p->result = write->error;
        return false;
    }
    return true;
}

/* All of it; 0 or what was wrong. */
static inline int node_put(node_t *n, unsigned space, const unsigned *keys,
                           unsigned count)
{
    static rig_put_t puts[3]; /* nodes run inside each other */
    rig_put_t *p = &puts[n->world->depth];

    if (put_begin(n, p, space, keys, count)) {
        while (p->result == 1) {
            RIG_CHECK(node_step(n));
        }
    }
    return p->result;
}

/* ---- loading ---- */

typedef struct rig_get {
    ldr_objects_read_t read;
    struct iovec iov;
    uint8_t data[RIG_PAYLOAD_MAX] __attribute__((aligned(4096)));
    uint8_t block[LDR_BLOCK] __attribute__((aligned(4096)));
    bool ended;
} rig_get_t;

static inline void get_done(ldr_objects_read_t *r)
{
    ((rig_get_t *)r->arg)->ended = true;
}

/* What came is one of the saves of that name, and none that was reset or
 * removed as far as this node must know. */
static inline uint64_t judge(const node_t *n, const rig_get_t *g,
                             unsigned space, unsigned key)
{
    static uint8_t expected[RIG_PAYLOAD_MAX];
    const world_t *w = n->world;
    larder_key_t k = rig_key(key);
    const ldr_record_t *r = &g->read.record;
    uint64_t number = ldr_get64(g->data);

    RIG_CHECK(memcmp(&r->key, &k, sizeof(k)) == 0);
    RIG_CHECK(r->length == rig_length(space, key));
    RIG_CHECK(number >= 1 && number <= w->save_count);
    const save_t *s = &w->saves[number];
    RIG_CHECK(s->space == space && s->key == key);
    rig_fill(expected, space, key, number);
    RIG_CHECK(memcmp(g->data, expected, g->iov.iov_len) == 0);
    RIG_CHECK(r->epoch == s->epoch);
    RIG_CHECK(r->epoch ==
              ldr_objects_epoch(n->tier, n->tenant, n->space[space]));
    RIG_CHECK(number > n->floor[space]);
    RIG_CHECK(number > n->kfloor[space][key]);
    return number;
}

/* The save that was found; 0: a miss. error_p may be NULL. */
static inline uint64_t node_get(node_t *n, unsigned space, unsigned key,
                                int *error_p)
{
    world_t *w = n->world;
    larder_key_t k = rig_key(key);
    static rig_get_t gets[3];
    rig_get_t *g = &gets[w->depth];

    memset(g, 0, sizeof(*g));
    int error = -ENOENT;
    if (ldr_objects_find(n->tier, n->tenant, n->space[space], n->epoch[space],
                         &k, 0, 0, &g->read.place)) {
        g->read.tenant = n->tenant;
        g->read.space = n->space[space];
        g->iov = (struct iovec){g->data, (size_t)(g->read.place.blocks - 1u) *
                                             LDR_BLOCK};
        g->read.iov = &g->iov;
        g->read.iov_count = 1;
        g->read.block = g->block;
        g->read.deadline_ns = w->now_ns + RIG_SECOND;
        g->read.done = get_done;
        g->read.arg = g;
        if (ldr_objects_read(n->tier, &g->read)) {
            while (!g->ended) {
                RIG_CHECK(node_step(n));
            }
        }
        error = g->read.error;
    }
    if (error_p != NULL) {
        *error_p = error;
    }
    w->hits += error == 0;
    w->misses += error != 0;
    if (error != 0) {
        return 0;
    }
    return judge(n, g, space, key);
}

/* ---- forgetting ---- */

static inline larder_status_t node_reset(node_t *n, unsigned space)
{
    world_t *w = n->world;
    uint32_t epoch = 0;
    uint64_t upto = w->save_count;

    n->running = true;
    larder_status_t st = ldr_objects_reset(n->tier, n->tenant, n->space[space],
                                           w->now_ns + RIG_SECOND, &epoch);
    n->running = false;
    RIG_CHECK(epoch >= n->epoch[space]);
    n->epoch[space] = epoch;
    n->floor[space] = ldr_max64(n->floor[space], upto);
    return st;
}

/* What a removal is about: all that this node can have heard of. Clocks count
 * in seconds, and the writer's may be ahead by as many as removals and saves
 * took turns. */
static inline uint64_t removed_upto(const world_t *w)
{
    uint64_t upto = w->save_count;

    while (upto > 0 && w->saves[upto].when_ns + 5 * RIG_SECOND > w->now_ns) {
        upto--;
    }
    return upto;
}

static inline larder_status_t node_remove(node_t *n, unsigned space,
                                          unsigned key)
{
    world_t *w = n->world;
    larder_key_t k = rig_key(key);
    ldr_manifest_row_t row = {.group = 0, .shard = 0};
    uint64_t upto = removed_upto(w);

    memcpy(row.key, k.hash, sizeof(row.key));
    n->running = true;
    uint64_t token = 0;
    larder_status_t st = ldr_objects_remove(n->tier, n->tenant, n->space[space],
                                            &row, 1, &token);
    if (st == LARDER_OK) {
        st = ldr_objects_removed(n->tier, n->tenant, token,
                                 w->now_ns + RIG_SECOND);
    }
    n->running = false;
    n->kfloor[space][key] = ldr_max64(n->kfloor[space][key], upto);
    return st;
}

static const unsigned rig_eight[] = {1, 2, 3, 4, 5, 6, 7, 8};

static inline ldr_objects_stats_t stats_of(const node_t *n)
{
    ldr_objects_stats_t s;

    ldr_objects_stats(n->tier, &s);
    return s;
}

/* The first so many nodes are opened, and have read what there is. */
static inline void nodes_open(world_t *w, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        node_open(&w->nodes[i]);
    }
    world_run(w);
}

/* A world of so many nodes, of which the first `count` are opened. */
static inline void world_start(world_t *w, unsigned nodes, unsigned count)
{
    world_open(w, 1, nodes);
    nodes_open(w, count);
}
