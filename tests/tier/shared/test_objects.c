/* The tier: two nodes and more over one store, one step at a time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tier/shared/objects_rig.h"

static const unsigned four[] = {1, 2, 3, 4};

static void share(bool encrypts)
{
    world_t w;

    world_open(&w, 1, 2);
    w.seal.encrypts = encrypts;
    memset(w.seal.cipher, 9, sizeof(w.seal.cipher));
    node_t *a = &w.nodes[0], *b = &w.nodes[1];
    node_open(a);
    node_open(b);
    world_run(&w);
    assert_int_equal(node_put(a, 0, four, 4), 0);
    assert_int_equal(stats_of(a).unpublished, 1);
    /* The writer finds it at once, the other when it was told. */
    for (unsigned k = 1; k <= 4; k++) {
        assert_int_equal(node_get(a, 0, k, NULL), k);
        assert_int_equal(node_get(b, 0, k, NULL), 0);
    }
    assert_int_equal(node_get(a, 1, 1, NULL), 0);
    assert_int_equal(node_get(a, 0, 5, NULL), 0);
    world_pass(&w, 300 * RIG_MS, 10 * RIG_MS);
    for (unsigned k = 1; k <= 4; k++) {
        assert_int_equal(node_get(b, 0, k, NULL), k);
    }
    assert_int_equal(stats_of(a).unpublished, 0);
    assert_int_equal(stats_of(a).manifests_read, 0); /* not its own */
    assert_int_equal(stats_of(b).manifests_read, 1);
    assert_int_equal(stats_of(b).objects, 1);
    assert_int_equal(stats_of(b).shards, 4);
    assert_int_equal(simstore_count(w.store, RIG_TENANT "/o/"), 1);
    world_close(&w);
}

static void test_share(void **state)
{
    (void)state;
    share(false);
    share(true);
}

/* A cold node: everything that was saved, after all the others have gone. */
static void test_cold_start(void **state)
{
    world_t w;
    ldr_objects_stats_t s;

    (void)state;
    world_start(&w, 2, 2);
    for (unsigned k = 0; k < RIG_KEYS; k++) {
        assert_int_equal(node_put(&w.nodes[0], 0, &k, 1), 0);
        world_pass(&w, 60 * RIG_MS, 60 * RIG_MS); /* a manifest each */
    }
    node_close(&w.nodes[0]);
    node_close(&w.nodes[1]);
    node_open(&w.nodes[1]);
    world_run(&w);
    s = stats_of(&w.nodes[1]);
    assert_int_equal(s.shards, RIG_KEYS);
    for (unsigned k = 0; k < RIG_KEYS; k++) {
        assert_int_not_equal(node_get(&w.nodes[1], 0, k, NULL), 0);
    }
    world_close(&w);
}

static void test_wants(void **state)
{
    world_t w;
    larder_key_t one = rig_key(1), five = rig_key(5);

    (void)state;
    world_open(&w, 1, 1);
    node_t *a = &w.nodes[0];
    simstore_away(w.store, true);
    node_open(a);
    simstore_away(w.store, false);
    /* Nothing is written before it is known what is there. */
    assert_false(tier_wants(a->tier, a->tenant, a->space[0], &one));
    world_pass(&w, RIG_SECOND, 100 * RIG_MS);
    assert_true(tier_wants(a->tier, a->tenant, a->space[0], &one));
    assert_int_equal(node_put(a, 0, four, 4), 0);
    assert_false(tier_wants(a->tier, a->tenant, a->space[0], &one));
    assert_true(tier_wants(a->tier, a->tenant, a->space[0], &five));
    simstore_read_only(w.store, true);
    assert_int_equal(node_put(a, 0, (unsigned[]){5}, 1), -EROFS);
    assert_false(tier_wants(a->tier, a->tenant, a->space[0], &five));
    assert_int_equal(stats_of(a).state, LDR_OBJECTS_READONLY);
    assert_int_equal(node_get(a, 0, 1, NULL), 1); /* still read */
    simstore_read_only(w.store, false);
    w.now_ns += RIG_SECOND;
    assert_true(tier_wants(a->tier, a->tenant, a->space[0], &five));
    assert_int_equal(node_put(a, 0, (unsigned[]){5}, 1), 0);
    assert_int_equal(stats_of(a).state, LDR_OBJECTS_ON);
    world_close(&w);
}

static void test_reset(void **state)
{
    world_t w;

    (void)state;
    world_start(&w, 3, 3);
    node_t *a = &w.nodes[0], *b = &w.nodes[1];
    assert_int_equal(node_put(a, 0, four, 4), 0);
    assert_int_equal(node_put(a, 1, four, 4), 0);
    world_pass(&w, 300 * RIG_MS, 10 * RIG_MS);
    assert_int_not_equal(node_get(b, 0, 1, NULL), 0);
    assert_int_equal(node_reset(b, 0), LARDER_OK);
    assert_int_equal(b->epoch[0], 1);
    assert_int_equal(node_get(b, 0, 1, NULL), 0);
    world_pass(&w, 300 * RIG_MS, 10 * RIG_MS);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(w.nodes[i].epoch[0], 1);
        assert_int_equal(w.nodes[i].epoch[1], 0);
        assert_int_equal(node_get(&w.nodes[i], 0, 1, NULL), 0);
        assert_int_not_equal(node_get(&w.nodes[i], 1, 1, NULL), 0);
    }
    /* What is saved by one that has not heard is void; with the new epoch it
     * is found. */
    assert_int_equal(node_reset(a, 0), LARDER_OK);
    assert_int_equal(a->epoch[0], 2);
    assert_int_equal(node_put(b, 0, four, 1), 0);
    world_pass(&w, 300 * RIG_MS, 10 * RIG_MS);
    assert_int_equal(node_get(b, 0, 1, NULL), 0);
    assert_int_equal(node_put(b, 0, four, 1), 0);
    world_pass(&w, 300 * RIG_MS, 10 * RIG_MS);
    assert_int_not_equal(node_get(a, 0, 1, NULL), 0);
    /* One that starts now knows, too. */
    node_close(&w.nodes[2]);
    node_open(&w.nodes[2]);
    world_run(&w);
    assert_int_equal(w.nodes[2].epoch[0], 2);
    assert_int_not_equal(node_get(&w.nodes[2], 0, 1, NULL), 0);
    world_close(&w);
}

/* The node comes with a higher epoch, from a reset while the tier was away. */
static void test_epoch_of_node(void **state)
{
    world_t w;
    uint8_t id[LDR_ID_BYTES];

    (void)state;
    world_start(&w, 2, 2);
    assert_int_equal(node_put(&w.nodes[0], 0, four, 4), 0);
    world_pass(&w, 300 * RIG_MS, 10 * RIG_MS);
    rig_space_id(0, id);
    w.nodes[1].epoch[0] = 7;
    ldr_objects_space(w.nodes[1].tier, w.nodes[1].tenant, id, 7);
    assert_int_equal(node_get(&w.nodes[1], 0, 1, NULL), 0);
    world_pass(&w, 300 * RIG_MS, 10 * RIG_MS);
    assert_int_equal(w.nodes[0].epoch[0], 7);
    assert_int_equal(node_get(&w.nodes[0], 0, 1, NULL), 0);
    world_close(&w);
}

/* A reset that cannot be written: nothing of the space is used until it is. */
static void test_reset_late(void **state)
{
    world_t w;

    (void)state;
    world_start(&w, 2, 2);
    node_t *a = &w.nodes[0];
    assert_int_equal(node_put(a, 0, four, 4), 0);
    world_pass(&w, 300 * RIG_MS, 10 * RIG_MS);
    simstore_fail(a->backend, SIMSTORE_PUT, 1, 1, -EIO);
    assert_int_equal(node_reset(a, 0), LARDER_E_DEADLINE);
    uint32_t epoch = a->epoch[0];
    assert_true(epoch >= 1);
    assert_int_equal(node_get(a, 0, 1, NULL), 0);
    assert_int_equal(node_put(a, 0, four, 1), -ESHUTDOWN);
    world_pass(&w, 2 * RIG_SECOND, 50 * RIG_MS);
    assert_int_equal(node_put(a, 0, four, 1), 0);
    assert_true(w.nodes[1].epoch[0] >= epoch);
    assert_int_equal(w.nodes[1].epoch[0], a->epoch[0]);
    world_close(&w);
}

static void test_remove(void **state)
{
    world_t w;

    (void)state;
    world_start(&w, 2, 2);
    node_t *a = &w.nodes[0], *b = &w.nodes[1];
    assert_int_equal(node_put(a, 0, four, 4), 0);
    world_pass(&w, 300 * RIG_MS, 10 * RIG_MS);
    assert_int_equal(node_remove(b, 0, 2), LARDER_OK);
    assert_int_equal(node_get(b, 0, 2, NULL), 0);
    world_pass(&w, 300 * RIG_MS, 10 * RIG_MS);
    assert_int_equal(node_get(a, 0, 2, NULL), 0);
    assert_int_not_equal(node_get(a, 0, 1, NULL), 0);
    /* It can be saved again, in the same second too. */
    assert_int_equal(node_put(a, 0, (unsigned[]){2}, 1), 0);
    assert_int_not_equal(node_get(a, 0, 2, NULL), 0);
    world_pass(&w, 300 * RIG_MS, 10 * RIG_MS);
    assert_int_not_equal(node_get(b, 0, 2, NULL), 0);
    /* Whoever joins does not find the old one. */
    assert_int_equal(node_remove(b, 0, 3), LARDER_OK);
    node_close(a);
    node_open(a);
    world_run(&w);
    assert_int_equal(node_get(a, 0, 3, NULL), 0);
    assert_int_not_equal(node_get(a, 0, 4, NULL), 0);
    world_close(&w);
}

static void test_secret(void **state)
{
    world_t w;
    ldr_seal_t other;
    uint8_t id[LDR_ID_BYTES];
    uint32_t tenant;
    ldr_objects_t *tier;

    (void)state;
    world_start(&w, 1, 1);
    rig_tenant_id(id);
    for (unsigned i = 0; i < 3; i++) {
        ldr_objects_params_t p = w.params;

        p.backend = simstore_backend(w.store);
        p.seed = 99 + i;
        assert_int_equal(ldr_objects_open(&p, &tier), LARDER_OK);
        other = w.seal;
        other.mac[5] ^= i == 0;
        other.encrypts = i == 1;
        larder_status_t st = ldr_objects_tenant(tier, id, "acme", &other,
                                                w.now_ns + RIG_SECOND, &tenant);
        assert_int_equal(st, i == 2 ? LARDER_OK : LARDER_E_SECRET);
        if (i < 2) {
            assert_non_null(strstr(ldr_fail_text(), "acme"));
            ldr_objects_stats_t s;
            ldr_objects_stats(tier, &s);
            assert_non_null(strstr(s.reason, "acme"));
        }
        assert_true(ldr_objects_close(tier, UINT64_MAX));
    }
    world_close(&w);
}

/* Encrypted: another key, or none. */
static void test_key(void **state)
{
    world_t w;
    uint8_t id[LDR_ID_BYTES];
    uint32_t tenant;

    (void)state;
    world_open(&w, 1, 1);
    w.seal.encrypts = true;
    node_open(&w.nodes[0]);
    rig_tenant_id(id);
    for (unsigned i = 0; i < 2; i++) {
        ldr_objects_params_t p = w.params;
        ldr_seal_t other = w.seal;
        ldr_objects_t *tier;

        p.backend = simstore_backend(w.store);
        p.seed = 99 + i;
        assert_int_equal(ldr_objects_open(&p, &tier), LARDER_OK);
        other.encrypts = i == 1;
        other.cipher[0] ^= i == 1;
        assert_int_equal(ldr_objects_tenant(tier, id, "acme", &other,
                                            w.now_ns + RIG_SECOND, &tenant),
                         LARDER_E_SECRET);
        assert_true(ldr_objects_close(tier, UINT64_MAX));
    }
    world_close(&w);
}

static void test_damage(void **state)
{
    world_t w;
    int error;

    (void)state;
    world_start(&w, 1, 1);
    node_t *a = &w.nodes[0];
    assert_int_equal(node_put(a, 0, four, 4), 0);
    const char *name = simstore_name(w.store, RIG_TENANT "/o/", 0);
    assert_true(simstore_flip(w.store, name, 8 * 20));
    assert_int_equal(node_get(a, 0, 1, &error), 0);
    assert_int_equal(error, -EBADMSG);
    assert_int_equal(stats_of(a).corrupt, 1);
    assert_int_equal(node_get(a, 0, 1, &error), 0);
    assert_int_equal(error, -ENOENT); /* it is not found again */
    /* One that is lost. */
    assert_int_equal(node_put(a, 0, four, 4), 0);
    assert_int_not_equal(node_get(a, 0, 1, NULL), 0);
    while ((name = simstore_name(w.store, RIG_TENANT "/o/", 0)) != NULL) {
        simstore_lose(w.store, name);
    }
    assert_int_equal(node_get(a, 0, 1, &error), 0);
    assert_int_equal(error, -ENOENT);
    assert_int_equal(stats_of(a).gone, 1);
    assert_int_equal(stats_of(a).state, LDR_OBJECTS_ON);
    world_close(&w);
}

/* What others put there is not believed. */
static void test_forged(void **state)
{
    world_t w;
    static const char *const names[] = {
        RIG_TENANT "/m/0011223344556677-0000000000000000",
        RIG_TENANT "/e/50505050505050505050505050505050-00000009",
        RIG_TENANT "/e/50505050505050505050505050505050-ffffffff",
        RIG_TENANT "/m/junk",
        RIG_TENANT "/e/junk-1",
        RIG_TENANT "/o/00/junk",
        RIG_TENANT "/o/00/000102030405060708090a0b0c0d0e0f",
        RIG_TENANT "/cleaner",
    };

    (void)state;
    world_open(&w, 1, 1);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char data[200];

        memset(data, 'x', sizeof(data));
        simstore_write(w.store, names[i], data, sizeof(data));
    }
    node_open(&w.nodes[0]);
    world_run(&w);
    assert_int_equal(node_put(&w.nodes[0], 0, four, 4), 0);
    world_pass(&w, 20 * RIG_SECOND, 20 * RIG_MS);
    assert_int_equal(w.nodes[0].epoch[0], 0);
    assert_int_not_equal(node_get(&w.nodes[0], 0, 1, NULL), 0);
    assert_true(stats_of(&w.nodes[0]).manifests_bad >= 2);
    assert_true(stats_of(&w.nodes[0]).cleaner);
    assert_int_equal(node_reset(&w.nodes[0], 0), LARDER_OK);
    assert_int_equal(w.nodes[0].epoch[0], 1);
    world_close(&w);
}

static void test_away(void **state)
{
    world_t w;

    (void)state;
    world_start(&w, 2, 2);
    assert_int_equal(node_put(&w.nodes[0], 0, four, 4), 0);
    world_pass(&w, 300 * RIG_MS, 10 * RIG_MS);
    simstore_away(w.store, true);
    world_pass(&w, RIG_SECOND, 10 * RIG_MS);
    for (unsigned i = 0; i < 2; i++) {
        ldr_objects_stats_t s = stats_of(&w.nodes[i]);

        assert_int_equal(s.state, LDR_OBJECTS_OFF);
        assert_true(s.reason[0] != '\0');
        assert_int_equal(node_get(&w.nodes[i], 0, 1, NULL), 0);
    }
    simstore_away(w.store, false);
    world_pass(&w, RIG_SECOND, 10 * RIG_MS);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(stats_of(&w.nodes[i]).state, LDR_OBJECTS_ON);
        assert_string_equal(stats_of(&w.nodes[i]).reason, "");
        assert_int_not_equal(node_get(&w.nodes[i], 0, 1, NULL), 0);
    }
    world_close(&w);
}

/* Reads go on but nothing can be listed: in the end nothing is believed, since
 * resets would not be seen. */
static void test_stale(void **state)
{
    world_t w;

    (void)state;
    world_start(&w, 1, 1);
    node_t *a = &w.nodes[0];
    assert_int_equal(node_put(a, 0, four, 4), 0);
    world_pass(&w, 300 * RIG_MS, 10 * RIG_MS);
    simstore_fail(a->backend, SIMSTORE_LIST, 1, 0, -ENOENT);
    world_pass(&w, RIG_SECOND, 10 * RIG_MS);
    assert_int_not_equal(node_get(a, 0, 1, NULL), 0);
    world_pass(&w, 10 * RIG_SECOND, 10 * RIG_MS);
    assert_int_equal(node_get(a, 0, 1, NULL), 0);
    assert_non_null(strstr(stats_of(a).reason, "acme"));
    simstore_fail(a->backend, SIMSTORE_LIST, 0, 0, 0);
    world_pass(&w, 2 * RIG_SECOND, 10 * RIG_MS);
    assert_int_not_equal(node_get(a, 0, 1, NULL), 0);
    world_close(&w);
}

/* A manifest that cannot be put is put later; nothing of it is lost. */
static void test_publish_again(void **state)
{
    world_t w;

    (void)state;
    world_start(&w, 2, 2);
    simstore_fail(w.nodes[0].backend, SIMSTORE_PUT, 2, 1, -ETIMEDOUT);
    assert_int_equal(node_put(&w.nodes[0], 0, four, 4), 0);
    world_pass(&w, 200 * RIG_MS, 10 * RIG_MS);
    assert_int_equal(stats_of(&w.nodes[0]).unpublished, 1);
    assert_int_equal(node_put(&w.nodes[0], 0, (unsigned[]){9}, 1), 0);
    world_pass(&w, 3 * RIG_SECOND, 10 * RIG_MS);
    assert_int_equal(stats_of(&w.nodes[0]).unpublished, 0);
    assert_int_not_equal(node_get(&w.nodes[1], 0, 1, NULL), 0);
    assert_int_not_equal(node_get(&w.nodes[1], 0, 9, NULL), 0);
    world_close(&w);
}

static void test_flush_and_close(void **state)
{
    world_t w;

    (void)state;
    world_start(&w, 2, 2);
    w.params.publish_ms = 3600000;
    node_t *a = &w.nodes[0];
    node_close(a);
    node_open(a);
    world_run(&w);
    assert_int_equal(node_put(a, 0, four, 2), 0);
    world_pass(&w, RIG_SECOND, 100 * RIG_MS);
    assert_int_equal(stats_of(a).unpublished, 1);
    a->running = true;
    assert_int_equal(ldr_objects_flush(a->tier, w.now_ns + RIG_SECOND),
                     LARDER_OK);
    a->running = false;
    assert_int_equal(stats_of(a).unpublished, 0);
    assert_int_equal(node_put(a, 0, four + 2, 2), 0);
    node_close(a); /* publishes too */
    world_pass(&w, 300 * RIG_MS, 10 * RIG_MS);
    for (unsigned k = 1; k <= 4; k++) {
        assert_int_not_equal(node_get(&w.nodes[1], 0, k, NULL), 0);
    }
    world_close(&w);
}

/* A node that saves what another has reset meanwhile. */
static void test_old_epoch(void **state)
{
    world_t w;
    static rig_put_t p;

    (void)state;
    world_start(&w, 1, 1);
    node_t *a = &w.nodes[0];
    assert_true(put_begin(a, &p, 0, four, 4));
    assert_int_equal(node_reset(a, 0), LARDER_OK);
    world_run(&w);
    assert_int_equal(p.result, -ECANCELED);
    assert_int_equal(simstore_count(w.store, RIG_TENANT "/o/"), 0);
    a->epoch[0] = 0; /* as if it had not heard */
    assert_int_equal(node_put(a, 0, four, 4), -ECANCELED);
    world_close(&w);
}

/* The space is reset while a save or a load is under way. */
static void raise_epoch(void *arg)
{
    node_t *n = arg;
    uint8_t id[LDR_ID_BYTES];

    rig_space_id(0, id);
    simstore_before(n->backend, NULL, NULL);
    n->epoch[0]++;
    ldr_objects_space(n->tier, n->tenant, id, n->epoch[0]);
}

static void test_reset_meanwhile(void **state)
{
    world_t w;
    int error;

    (void)state;
    world_start(&w, 1, 1);
    node_t *a = &w.nodes[0];
    simstore_before(a->backend, raise_epoch, a);
    assert_int_equal(node_put(a, 0, four, 4), -ECANCELED);
    assert_int_equal(simstore_count(w.store, RIG_TENANT "/o/"), 0);
    assert_int_equal(node_put(a, 0, four, 4), 0);
    assert_int_not_equal(node_get(a, 0, 1, NULL), 0);
    simstore_before(a->backend, raise_epoch, a);
    assert_int_equal(node_get(a, 0, 1, &error), 0);
    assert_int_equal(error, -ENOENT);
    world_close(&w);
}

/* ---- what happens between two calls of one node ---- */

typedef struct between {
    world_t *world;
    node_t *node;  /* whose calls are counted */
    unsigned call; /* before which it happens */
} between_t;

static bool is_call(between_t *b)
{
    if (b->call == 0 || --b->call != 0) {
        return false;
    }
    simstore_before(b->node->backend, NULL, NULL);
    return true;
}

static void other_resets(void *arg)
{
    between_t *b = arg;

    if (is_call(b)) {
        assert_int_equal(node_reset(&b->world->nodes[1], 0), LARDER_OK);
    }
}

/* Two reset at once: each has an epoch of its own, so that what was saved
 * under the first is void for the second. */
static void test_two_resets(void **state)
{
    world_t w;

    (void)state;
    for (unsigned call = 1; call <= 4; call++) {
        world_start(&w, 2, 2);
        between_t b = {&w, &w.nodes[0], call};
        simstore_before(w.nodes[0].backend, other_resets, &b);
        assert_int_equal(node_reset(&w.nodes[0], 0), LARDER_OK);
        assert_int_equal(b.call, 0);
        assert_int_not_equal(w.nodes[0].epoch[0], w.nodes[1].epoch[0]);
        world_pass(&w, RIG_SECOND, 50 * RIG_MS);
        assert_int_equal(w.nodes[0].epoch[0], w.nodes[1].epoch[0]);
        world_close(&w);
    }
}

static void sees_all(void *arg)
{
    between_t *b = arg;

    if (is_call(b)) {
        simstore_stale(b->node->backend, 0, 0);
    }
}

/* One whose listings are old takes an epoch that was used and cleaned up. */
static void test_reset_unaware(void **state)
{
    world_t w;

    (void)state;
    world_start(&w, 2, 2);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(node_reset(&w.nodes[0], 0), LARDER_OK);
    }
    simstore_lose(w.store,
                  RIG_TENANT "/e/50505050505050505050505050505050-00000001");
    /* The first call lists nothing of it, then it puts, then it lists. */
    simstore_stale(w.nodes[1].backend, 1000, 1000);
    between_t b = {&w, &w.nodes[1], 3};
    simstore_before(w.nodes[1].backend, sees_all, &b);
    assert_int_equal(node_reset(&w.nodes[1], 0), LARDER_OK);
    assert_int_equal(w.nodes[1].epoch[0], 4);
    world_close(&w);
}

/* A manifest that is merged with others just when it is to be read. */
static void moves_away(void *arg)
{
    between_t *b = arg;
    world_t *w = b->world;
    const char *name = simstore_name(w->store, RIG_TENANT "/m/", 0);

    if (is_call(b)) {
        assert_true(simstore_rename(
            w->store, name, RIG_TENANT "/m/ffffffffffffffff-0000000000000001"));
    }
}

static void test_join_gap(void **state)
{
    world_t w;

    (void)state;
    for (unsigned call = 1; call <= 8; call++) {
        world_start(&w, 1, 1);
        w.node_count = 2;
        w.nodes[1].world = &w;
        assert_int_equal(node_put(&w.nodes[0], 0, four, 4), 0);
        world_pass(&w, 200 * RIG_MS, 10 * RIG_MS);
        between_t b = {&w, &w.nodes[1], call};
        node_open_with(&w.nodes[1], moves_away, &b);
        assert_int_not_equal(node_get(&w.nodes[1], 0, 1, NULL), 0);
        world_close(&w);
    }
}

/* What waited long for its turn has as much time for its call as others: else a
 * queue would look like a medium that fails. */
static void test_waiting_is_no_failure(void **state)
{
    world_t w;
    static rig_put_t put;

    (void)state;
    world_start(&w, 1, 1);
    assert_true(put_begin(&w.nodes[0], &put, 0, four, 4));
    w.now_ns += 900 * RIG_MS;
    while (put.result == 1) {
        assert_true(node_step(&w.nodes[0]));
    }
    assert_int_equal(put.result, 0);
    assert_true(put.write.deadline_ns >= w.now_ns + RIG_SECOND);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_share),
        cmocka_unit_test(test_cold_start),
        cmocka_unit_test(test_wants),
        cmocka_unit_test(test_reset),
        cmocka_unit_test(test_epoch_of_node),
        cmocka_unit_test(test_reset_late),
        cmocka_unit_test(test_remove),
        cmocka_unit_test(test_secret),
        cmocka_unit_test(test_key),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_forged),
        cmocka_unit_test(test_away),
        cmocka_unit_test(test_stale),
        cmocka_unit_test(test_publish_again),
        cmocka_unit_test(test_flush_and_close),
        cmocka_unit_test(test_old_epoch),
        cmocka_unit_test(test_reset_meanwhile),
        cmocka_unit_test(test_two_resets),
        cmocka_unit_test(test_reset_unaware),
        cmocka_unit_test(test_join_gap),
        cmocka_unit_test(test_waiting_is_no_failure),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
