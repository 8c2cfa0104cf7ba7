/* What was removed or reset does not come back, whoever joins and when; and
 * what is done at the end or over a long time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/thread.h"
#include "tier/shared/objects_int.h"
#include "tier/shared/objects_rig.h"

#define DAY (86400 * RIG_SECOND)
#define CHECK RIG_TENANT "/check"

/* The write has its time from when it began, and that may be after the clock's
 * second: a removal while it is under way is of it all the same. */
static void test_removed_while_written(void **state)
{
    world_t w;
    static rig_put_t put;

    (void)state;
    world_start(&w, 2, 2);
    node_t *a = &w.nodes[0];
    assert_int_equal(node_remove(a, 0, 9), LARDER_OK);
    assert_true(put_begin(a, &put, 0, rig_eight, 8));
    assert_int_equal(node_remove(a, 0, 3), LARDER_OK);
    world_pass(&w, RIG_SECOND, 10 * RIG_MS);
    assert_int_equal(put.result, 0);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(node_get(&w.nodes[i], 0, 3, NULL), 0);
        assert_int_not_equal(node_get(&w.nodes[i], 0, 4, NULL), 0);
    }
    world_close(&w);
}

static void many_id(unsigned number, uint8_t id[LDR_ID_BYTES])
{
    memset(id, 0x10, LDR_ID_BYTES);
    ldr_put32(id + 12, number);
}

/* A node that joins reads all of them before it finds anything. */
static void test_many_resets(void **state)
{
    enum { COUNT = 1200 };
    world_t w;
    uint8_t id[LDR_ID_BYTES];

    (void)state;
    world_start(&w, 2, 1);
    node_t *a = &w.nodes[0], *b = &w.nodes[1];
    for (unsigned i = 0; i < COUNT; i++) {
        many_id(i, id);
        ldr_objects_space(a->tier, a->tenant, id, 1);
    }
    world_run(&w);
    assert_int_equal(simstore_count(w.store, RIG_TENANT "/e/"), COUNT);
    node_open(b);
    for (unsigned i = 0; i < COUNT; i++) {
        many_id(i, id);
        uint32_t space = ldr_objects_space(b->tier, b->tenant, id, 1);
        assert_int_equal(ldr_objects_epoch(b->tier, b->tenant, space), 1);
        /* It was known already: there was nothing to be told by this node. */
        assert_int_equal(b->tier->volumes[b->tenant]->spaces[space].wanted, 0);
    }
    world_close(&w);
}

/* Superseded ones go, faster than they come. */
static void test_old_resets(void **state)
{
    enum { COUNT = 300 };
    world_t w;
    uint8_t id[LDR_ID_BYTES];

    (void)state;
    world_start(&w, 1, 1);
    node_t *a = &w.nodes[0];
    for (unsigned i = 0; i < 2 * COUNT; i++) {
        uint32_t epoch;

        many_id(i / 2, id);
        uint32_t space =
            ldr_objects_space(a->tier, a->tenant, id, i % 2); /* as it is */
        assert_int_equal(ldr_objects_reset(a->tier, a->tenant, space,
                                           w.now_ns + RIG_SECOND, &epoch),
                         LARDER_OK);
    }
    assert_int_equal(simstore_count(w.store, RIG_TENANT "/e/"), 2 * COUNT);
    world_pass(&w, 150 * RIG_SECOND, RIG_SECOND);
    assert_int_equal(simstore_count(w.store, RIG_TENANT "/e/"), COUNT);
    world_close(&w);
}

/* An object that is in use outlives the month for which removals are kept. */
static void test_removed_long_ago(void **state)
{
    world_t w;

    (void)state;
    world_start(&w, 2, 1);
    node_t *a = &w.nodes[0];
    assert_int_equal(node_put(a, 0, rig_eight, 8), 0);
    world_pass(&w, 10 * RIG_SECOND, 100 * RIG_MS);
    assert_int_equal(node_remove(a, 0, 3), LARDER_OK);
    world_pass(&w, RIG_SECOND, 100 * RIG_MS);
    /* Nobody comes to write the object anew meanwhile. */
    a->tier->volumes[a->tenant]->cleaner.thorough_at_ns = UINT64_MAX;
    w.now_ns += 40 * DAY;
    world_pass(&w, 5 * RIG_SECOND, 100 * RIG_MS);
    /* Enough manifests to be merged, of another space. */
    for (unsigned k = 1; k <= 12; k++) {
        assert_int_equal(node_put(a, 1, &k, 1), 0);
        world_pass(&w, 2 * RIG_SECOND, 100 * RIG_MS);
    }
    world_pass(&w, 10 * RIG_SECOND, 100 * RIG_MS);
    assert_true(simstore_count(w.store, RIG_TENANT "/m/") < 12);
    node_open(&w.nodes[1]);
    world_run(&w);
    assert_int_equal(node_get(&w.nodes[1], 0, 3, NULL), 0);
    assert_int_not_equal(node_get(&w.nodes[1], 0, 4, NULL), 0);
    world_close(&w);
}

/* And the objects that have such records do not keep removals for ever. */
static void test_single_holes_go(void **state)
{
    world_t w;

    (void)state;
    world_start(&w, 1, 1);
    node_t *a = &w.nodes[0];
    assert_int_equal(node_put(a, 0, rig_eight, 8), 0);
    world_pass(&w, 10 * RIG_SECOND, 100 * RIG_MS);
    assert_int_equal(node_remove(a, 0, 3), LARDER_OK);
    world_pass(&w, 200 * RIG_SECOND, RIG_SECOND);
    assert_int_not_equal(stats_of(a).dead_bytes, 0); /* not worth it yet */
    w.now_ns += 40 * DAY;
    world_pass(&w, 200 * RIG_SECOND, RIG_SECOND);
    assert_int_equal(stats_of(a).dead_bytes, 0);
    assert_int_not_equal(node_get(a, 0, 4, NULL), 0);
    assert_int_equal(node_get(a, 0, 3, NULL), 0);
    world_close(&w);
}

/* What was removed and saved again is not lost when its object is made one with
 * others that are older than the removal. */
static void test_saved_again(void **state)
{
    world_t w;

    (void)state;
    world_start(&w, 2, 2);
    node_t *a = &w.nodes[0];
    assert_int_equal(node_put(a, 0, rig_eight, 8), 0);
    world_pass(&w, 10 * RIG_SECOND, 100 * RIG_MS);
    assert_int_equal(node_remove(a, 0, 3), LARDER_OK);
    world_pass(&w, 10 * RIG_SECOND, 100 * RIG_MS);
    assert_int_equal(node_put(a, 0, (unsigned[]){3}, 1), 0);
    for (unsigned k = 9; k < 18; k++) {
        assert_int_equal(node_put(a, 0, &k, 1), 0);
    }
    world_pass(&w, 300 * RIG_SECOND, RIG_SECOND);
    assert_true(stats_of(a).compacted + stats_of(&w.nodes[1]).compacted > 0);
    for (unsigned i = 0; i < 2; i++) {
        for (unsigned k = 1; k < 18; k++) {
            assert_int_not_equal(node_get(&w.nodes[i], 0, k, NULL), 0);
        }
    }
    world_close(&w);
}

/* A reset that could not be written is, at the latest at close. */
static void test_reset_at_close(void **state)
{
    world_t w;

    (void)state;
    world_start(&w, 2, 1);
    node_t *a = &w.nodes[0];
    assert_int_equal(node_put(a, 0, rig_eight, 8), 0);
    world_pass(&w, RIG_SECOND, 100 * RIG_MS);
    simstore_fail(a->backend, SIMSTORE_PUT, 1, 0, -ENOENT);
    assert_int_equal(node_reset(a, 0), LARDER_E_DEADLINE);
    simstore_fail(a->backend, SIMSTORE_PUT, 0, 0, 0);
    node_close(a);
    node_open(&w.nodes[1]);
    world_run(&w);
    assert_true(w.nodes[1].epoch[0] > 0);
    assert_int_equal(node_get(&w.nodes[1], 0, 4, NULL), 0);
    world_close(&w);
}

/* Anybody can put something there that is no check value: that keeps nobody
 * from working without the part, and it is looked at again. */
static void test_garbled_check(void **state)
{
    world_t w;
    char junk[64];

    (void)state;
    memset(junk, 'x', sizeof(junk));
    world_open(&w, 1, 1);
    simstore_write(w.store, CHECK, junk, sizeof(junk));
    node_t *a = &w.nodes[0];
    node_open(a); /* and that is OK */
    world_pass(&w, RIG_SECOND, 100 * RIG_MS);
    assert_int_equal(node_put(a, 0, rig_eight, 8), -ESHUTDOWN);
    assert_non_null(strstr(stats_of(a).reason, "acme"));
    assert_int_equal(node_remove(a, 0, 3), LARDER_E_TIER_OFF);
    assert_int_equal(simstore_count(w.store, RIG_TENANT "/"), 1);
    simstore_lose(w.store, CHECK);
    world_pass(&w, 10 * RIG_SECOND, 100 * RIG_MS);
    assert_string_equal(stats_of(a).reason, "");
    assert_int_equal(node_put(a, 0, rig_eight, 8), 0);
    world_close(&w);
}

/* Another secret is refused by name; the right one is taken afterwards. */
static void test_secret_put_right(void **state)
{
    world_t w;
    uint8_t id[LDR_ID_BYTES];
    uint32_t tenant, again;
    ldr_objects_t *tier;

    (void)state;
    world_start(&w, 1, 1);
    rig_tenant_id(id);
    ldr_objects_params_t p = w.params;
    p.backend = simstore_backend(w.store);
    p.seed = 99;
    assert_int_equal(ldr_objects_open(&p, &tier), LARDER_OK);
    ldr_seal_t other = w.seal;
    other.mac[5] ^= 1;
    assert_int_equal(ldr_objects_tenant(tier, id, "acme", &other,
                                        w.now_ns + RIG_SECOND, &tenant),
                     LARDER_E_SECRET);
    assert_int_equal(ldr_objects_tenant(tier, id, "acme", &w.seal,
                                        w.now_ns + RIG_SECOND, &again),
                     LARDER_OK);
    assert_int_equal(again, tenant);
    assert_true(ldr_objects_close(tier, UINT64_MAX));
    world_close(&w);
}

/* A tenant of which there is nothing is nobody's before it is claimed: who only
 * looks leaves nothing there, and has to make way; what others put there under
 * the same secret is followed all the same. */
static void test_claim(void **state)
{
    world_t w;
    uint8_t id[LDR_ID_BYTES];
    uint32_t number, again;
    bool resealed;
    ldr_objects_t *tier;

    (void)state;
    world_open(&w, 1, 1);
    rig_tenant_id(id);
    ldr_objects_params_t p = w.params;
    p.backend = simstore_backend(w.store);
    p.seed = 99;
    assert_int_equal(ldr_objects_open(&p, &tier), LARDER_OK);
    ldr_seal_t other = w.seal;
    other.mac[5] ^= 1;
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(ldr_objects_enter(tier, id, "acme",
                                           i % 2 == 0 ? &other : &w.seal, false,
                                           &number, &resealed),
                         LARDER_OK);
        assert_int_equal(resealed, i > 0);
        assert_int_equal(ldr_objects_await(tier, number, w.now_ns + RIG_SECOND),
                         LARDER_OK);
        assert_null(simstore_name(w.store, RIG_TENANT "/check", 0));
        assert_true(ldr_objects_takes(tier, number, LDR_NIL));
    }
    /* Another node is first; this one has the same secret. */
    node_open(&w.nodes[0]);
    assert_int_equal(node_put(&w.nodes[0], 0, rig_eight, 8), 0);
    world_pass(&w, 2 * RIG_SECOND, 10 * RIG_MS);
    for (unsigned i = 0; i < 300; i++) {
        w.now_ns += 10 * RIG_MS;
        while (ldr_objects_step(tier)) {
        }
    }
    ldr_objects_stats_t s;
    ldr_objects_stats(tier, &s);
    assert_int_equal(s.shards, 8);
    /* In use: nobody else gets it, whatever he says. */
    assert_int_equal(
        ldr_objects_enter(tier, id, "acme", &other, true, &again, &resealed),
        LARDER_E_SECRET);
    assert_int_equal(again, LDR_NIL);
    assert_int_equal(
        ldr_objects_enter(tier, id, "acme", &w.seal, false, &again, &resealed),
        LARDER_OK);
    assert_true(again == number && !resealed);
    assert_true(ldr_objects_close(tier, UINT64_MAX));
    world_close(&w);
}

/* What is not any more what was saved is left out of its object, whatever lies
 * beside it, and counted; the rest is there. Nothing is written if nothing is
 * left. */
static void test_damaged_before(void **state)
{
    static const uint8_t masks[] = {0x01, 0x80, 0x18, 0xaa, 0x7e, 0xfe, 0xff};
    static rig_put_t put;

    (void)state;
    for (unsigned k = 0; k < sizeof(masks); k++) {
        unsigned mask = masks[k];
        world_t w;

        world_open(&w, mask, 1);
        w.seal.encrypts = k % 2 == 0;
        node_t *a = &w.nodes[0];
        node_open(a);
        world_run(&w);
        assert_true(put_begin(a, &put, 0, rig_eight, 8));
        for (unsigned i = 0; i < 8; i++) {
            put.data[i][100] ^= (uint8_t)(mask >> i & 1);
        }
        while (put.result == 1) {
            assert_true(node_step(a));
        }
        assert_int_equal(put.result, mask == 255 ? -EINVAL : 0);
        assert_int_equal(stats_of(a).corrupt, __builtin_popcount(mask));
        assert_int_equal(put.write.count, 8 - __builtin_popcount(mask));
        for (unsigned i = 0; i < 8; i++) {
            bool bad = (mask >> i & 1) != 0;

            assert_int_equal(put.write.damaged[i], bad);
            assert_int_equal(node_get(a, 0, rig_eight[i], NULL) != 0, !bad);
        }
        world_close(&w);
    }
}

static size_t gone_of(const node_t *n)
{
    const ldr_volume_t *p = n->tier->volumes[n->tenant];

    return p->gone.count + p->gone_old.count;
}

/* What is gone is remembered for an hour, and not for ever, by all. */
static void test_gone_is_forgotten(void **state)
{
    world_t w;

    (void)state;
    world_open(&w, 1, 2);
    w.params.max_age_s = 5;
    node_open(&w.nodes[0]);
    node_open(&w.nodes[1]);
    world_run(&w);
    for (unsigned i = 0; i < 8; i++) {
        assert_int_equal(node_put(&w.nodes[0], 0, &rig_eight[i], 1), 0);
    }
    world_pass(&w, 30 * RIG_SECOND, 500 * RIG_MS);
    assert_int_equal(gone_of(&w.nodes[0]), 8);
    assert_int_equal(gone_of(&w.nodes[1]), 8);
    w.now_ns += 1800 * RIG_SECOND;
    world_pass(&w, 2 * RIG_SECOND, 500 * RIG_MS);
    assert_int_equal(gone_of(&w.nodes[0]), 8);
    assert_int_equal(gone_of(&w.nodes[1]), 8);
    for (unsigned i = 0; i < 2; i++) {
        w.now_ns += 3700 * RIG_SECOND;
        world_pass(&w, 2 * RIG_SECOND, 500 * RIG_MS);
    }
    assert_int_equal(gone_of(&w.nodes[0]), 0);
    assert_int_equal(gone_of(&w.nodes[1]), 0);
    world_close(&w);
}

/* When the node has heard that the key was removed; 0: it was not, or that is
 * forgotten. */
static uint32_t removed_of(const node_t *n, unsigned key)
{
    larder_key_t k = rig_key(key);

    return ldr_map_removed_s(n->tier->volumes[n->tenant]->map, n->space[0],
                             k.hash, 0, 0);
}

/* Removals are remembered for a month and as long as an object may have the
 * record, and then forgotten: by the cleaner and by the others. */
static void test_removals_are_forgotten(void **state)
{
    world_t w;

    (void)state;
    world_start(&w, 2, 2);
    assert_int_equal(node_put(&w.nodes[0], 0, rig_eight, 8), 0);
    world_pass(&w, 10 * RIG_SECOND, 100 * RIG_MS);
    assert_int_equal(node_remove(&w.nodes[0], 0, 3), LARDER_OK);
    world_pass(&w, 2 * RIG_SECOND, 100 * RIG_MS);
    for (unsigned i = 0; i < 2; i++) { /* nobody writes the object anew */
        w.nodes[i].tier->volumes[0]->cleaner.thorough_at_ns = UINT64_MAX;
    }
    w.now_ns += 40 * DAY;
    world_pass(&w, 60 * RIG_SECOND, RIG_SECOND);
    assert_int_not_equal(removed_of(&w.nodes[0], 3), 0);
    assert_int_not_equal(removed_of(&w.nodes[1], 3), 0);
    for (unsigned i = 0; i < 2; i++) {
        w.nodes[i].tier->volumes[0]->cleaner.thorough_at_ns = 0;
    }
    for (unsigned i = 0; i < 3; i++) {
        world_pass(&w, 120 * RIG_SECOND, RIG_SECOND);
        w.now_ns += 3700 * RIG_SECOND;
    }
    world_pass(&w, 60 * RIG_SECOND, RIG_SECOND);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(removed_of(&w.nodes[i], 3), 0);
        assert_int_equal(node_get(&w.nodes[i], 0, 3, NULL), 0);
        assert_int_not_equal(node_get(&w.nodes[i], 0, 4, NULL), 0);
    }
    world_close(&w);
}

/* ---- a turn that is under way for long ---- */

typedef struct long_turn {
    world_t *world;
    bool outage; /* the medium goes off and on again; else it just takes long */
    bool over;
} long_turn_t;

/* Before the first node reads a manifest that it has listed, the other resets
 * the space. */
static void takes_long(void *arg)
{
    long_turn_t *l = arg;
    world_t *w = l->world;
    ldr_objects_t *t = w->nodes[0].tier;
    const ldr_volume_t *p = t->volumes[0];

    if (l->over || p->readers == 0 || p->unread_next == 0) {
        return;
    }
    l->over = true;
    if (l->outage) {
        ldr_workers_failed(t->workers, false, -ENODEV, "away");
    }
    assert_int_equal(node_reset(&w->nodes[1], 0), LARDER_OK);
    if (l->outage) {
        w->now_ns += w->params.retry_ms * RIG_MS;
        assert_true(
            ldr_workers_step(t->workers)); /* looks whether it is there */
        assert_int_equal(stats_of(&w->nodes[0]).state, LDR_OBJECTS_ON);
    } else {
        w->now_ns += 20 * RIG_SECOND;
        ldr_objects_turn(t);
    }
    assert_false(p->ready);
}

/* What it has listed before is not believed after it: the next turn is. */
static void test_long_turn(void **state)
{
    world_t w;

    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        world_start(&w, 2, 2);
        node_t *a = &w.nodes[0];
        long_turn_t l = {.world = &w, .outage = i == 0};

        assert_int_equal(node_put(&w.nodes[1], 0, rig_eight, 4), 0);
        w.now_ns += 200 * RIG_MS;
        while (node_step(&w.nodes[1])) { /* it is published */
        }
        simstore_before(a->backend, takes_long, &l);
        while (node_step(a)) {
            assert_int_equal(node_get(a, 0, 1, NULL), 0);
        }
        assert_true(l.over);
        assert_int_equal(a->epoch[0], 1);
        assert_string_equal(stats_of(a).reason, "");
        world_close(&w);
    }
}

/* An object with holes whose table cannot be read stays as it is, and keeps
 * nobody else's from being made one. */
static void test_unreadable(void **state)
{
    world_t w;
    static const char objects[] = RIG_TENANT "/o/";

    (void)state;
    world_start(&w, 1, 1);
    node_t *a = &w.nodes[0];
    assert_int_equal(node_put(a, 0, rig_eight, 4), 0);
    world_pass(&w, 10 * RIG_SECOND, 100 * RIG_MS);
    assert_int_equal(node_remove(a, 0, 1), LARDER_OK);
    assert_int_equal(node_remove(a, 0, 2), LARDER_OK);
    assert_int_equal(simstore_count(w.store, objects), 1);
    uint64_t bits = 8 * simstore_bytes(w.store, objects);
    for (uint64_t bit = bits - 8 * LDR_BLOCK; bit < bits; bit += 64) {
        assert_true(
            simstore_flip(w.store, simstore_name(w.store, objects, 0), bit));
    }
    for (unsigned i = 0; i < 8; i++) {
        assert_int_equal(node_put(a, 1, &rig_eight[i], 1), 0);
    }
    world_pass(&w, 120 * RIG_SECOND, RIG_SECOND);
    assert_int_equal(stats_of(a).compacted, 8);
    assert_int_equal(simstore_count(w.store, objects), 2);
    world_close(&w);
}

/* A reset is listed, but the storage has lost it: what was saved before is not
 * found, whoever joins, until the space is reset again. */
static void test_lost_reset(void **state)
{
    static const char reset[] =
        RIG_TENANT "/e/50505050505050505050505050505050-00000001";
    world_t w;

    (void)state;
    world_start(&w, 3, 1);
    node_t *a = &w.nodes[0], *b = &w.nodes[1], *c = &w.nodes[2];
    assert_int_equal(node_put(a, 0, rig_eight, 8), 0);
    assert_int_equal(node_put(a, 1, rig_eight, 8), 0);
    world_pass(&w, RIG_SECOND, 100 * RIG_MS);
    node_open(b);
    world_run(&w);
    assert_int_not_equal(node_get(b, 0, 1, NULL), 0);
    node_close(a);
    assert_int_equal(node_reset(b, 0), LARDER_OK);
    node_close(b);
    assert_true(simstore_evict(w.store, reset));
    node_open(c);
    world_pass(&w, 2 * RIG_SECOND, 100 * RIG_MS);
    assert_int_equal(node_get(c, 0, 1, NULL), 0);
    assert_int_not_equal(node_get(c, 1, 1, NULL), 0);
    assert_int_equal(node_reset(c, 0), LARDER_OK);
    assert_int_equal(c->epoch[0], 2);
    assert_int_equal(node_put(c, 0, rig_eight, 8), 0);
    assert_int_not_equal(node_get(c, 0, 1, NULL), 0);
    world_close(&w);
}

/* When the only object that the node knows was used. */
static uint32_t used_of(const node_t *n)
{
    const ldr_volume_t *p = n->tier->volumes[n->tenant];

    ldr_mutex_lock(&p->tier->lock);
    assert_int_equal(ldr_map_top(p->map), 1);
    uint32_t used_s = ldr_map_at(p->map, 0)->used_s;
    ldr_mutex_unlock(&p->tier->lock);
    return used_s;
}

/* Whoever joins hears of a use, whether the manifest that tells of it or that
 * of the object comes first: their names are by chance. */
static void test_uses_in_any_order(void **state)
{
    (void)state;
    for (unsigned seed = 1; seed <= 12; seed++) {
        world_t w;

        world_open(&w, seed, 3);
        node_open(&w.nodes[0]);
        node_open(&w.nodes[1]);
        assert_int_equal(node_put(&w.nodes[0], 0, rig_eight, 8), 0);
        world_pass(&w, 5 * RIG_SECOND, 100 * RIG_MS);
        assert_int_not_equal(node_get(&w.nodes[1], 0, 3, NULL), 0);
        world_pass(&w, 15 * RIG_SECOND, 100 * RIG_MS);
        assert_int_equal(simstore_count(w.store, RIG_TENANT "/m/"), 2);
        node_open(&w.nodes[2]);
        world_run(&w);
        assert_int_not_equal(used_of(&w.nodes[2]), 0);
        assert_int_equal(used_of(&w.nodes[2]), used_of(&w.nodes[1]));
        assert_int_equal(w.nodes[2].tier->volumes[0]->early.capacity, 0);
        world_close(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_removed_while_written),
        cmocka_unit_test(test_many_resets),
        cmocka_unit_test(test_old_resets),
        cmocka_unit_test(test_removed_long_ago),
        cmocka_unit_test(test_single_holes_go),
        cmocka_unit_test(test_saved_again),
        cmocka_unit_test(test_reset_at_close),
        cmocka_unit_test(test_garbled_check),
        cmocka_unit_test(test_secret_put_right),
        cmocka_unit_test(test_claim),
        cmocka_unit_test(test_gone_is_forgotten),
        cmocka_unit_test(test_removals_are_forgotten),
        cmocka_unit_test(test_damaged_before),
        cmocka_unit_test(test_long_turn),
        cmocka_unit_test(test_unreadable),
        cmocka_unit_test(test_lost_reset),
        cmocka_unit_test(test_uses_in_any_order),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
