/*
 * A tier that was emptied, or is another's: what was known of it is forgotten,
 * what is saved is written again, and resets are put again. Over the simulated
 * store, and over a Redis that keeps nothing and is restarted.
 */
#include "tier/shared/redis.h"
#include "tier/shared/objects_int.h"
#include "tier/shared/objects_rig.h"

#define ID_1 "larder tier 1\n11111111111111111111111111111111\n"
#define RESETS RIG_TENANT "/e/"

static unsigned found_by(node_t *n, unsigned space)
{
    unsigned count = 0;
    larder_key_t k;
    ldr_object_place_t place;

    for (unsigned i = 0; i < 8; i++) {
        k = rig_key(rig_eight[i]);
        count += ldr_objects_find(n->tier, n->tenant, n->space[space],
                                  n->epoch[space], &k, 0, 0, &place);
    }
    return count;
}

/* When the node has heard that the key was removed; 0: it has not. */
static uint32_t removed_of(const node_t *n, unsigned key)
{
    larder_key_t k = rig_key(key);

    return ldr_map_removed_s(n->tier->volumes[n->tenant]->map, n->space[0],
                             k.hash, 0, 0);
}

/* Everything but what `keep` begins with. */
static void lose_all(simstore_t *store, const char *keep)
{
    unsigned i = 0;
    const char *name;

    while ((name = simstore_name(store, "", i)) != NULL) {
        if (keep != NULL && strncmp(name, keep, strlen(keep)) == 0) {
            i++;
        } else {
            assert_true(simstore_lose(store, name));
        }
    }
}

/* Both nodes know what was saved; the store is emptied behind their backs. */
static void test_emptied(void **state)
{
    world_t w;

    (void)state;
    world_start(&w, 3, 2);
    node_t *a = &w.nodes[0], *b = &w.nodes[1], *c = &w.nodes[2];
    assert_int_equal(node_reset(a, 1), LARDER_OK);
    assert_int_equal(node_put(a, 0, rig_eight, 8), 0);
    world_pass(&w, 5 * RIG_SECOND, 100 * RIG_MS);
    assert_int_equal(found_by(a, 0), 8);
    assert_int_equal(found_by(b, 0), 8);
    lose_all(w.store, NULL);
    world_pass(&w, 5 * RIG_SECOND, 100 * RIG_MS);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(found_by(&w.nodes[i], 0), 0);
        assert_string_equal(stats_of(&w.nodes[i]).reason, "");
        assert_int_equal(stats_of(&w.nodes[i]).objects, 0);
        assert_int_equal(stats_of(&w.nodes[i]).gone, 0); /* no read missed */
    }
    /* The check value and the reset are there again, for whoever joins. */
    assert_int_equal(simstore_count(w.store, RIG_TENANT "/check"), 1);
    assert_int_equal(simstore_count(w.store, RESETS), 1);
    node_open(c);
    world_run(&w);
    assert_int_equal(c->epoch[1], 1);
    /* What is saved is wanted, and found by all. */
    larder_key_t k = rig_key(1);
    assert_true(tier_wants(b->tier, b->tenant, b->space[0], &k));
    assert_int_equal(node_put(b, 0, rig_eight, 8), 0);
    world_pass(&w, 5 * RIG_SECOND, 100 * RIG_MS);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(found_by(&w.nodes[i], 0), 8);
        assert_int_not_equal(node_get(&w.nodes[i], 0, 3, NULL), 0);
    }
    /* Somebody cleans up there again. */
    unsigned cleaners = 0;
    world_pass(&w, 60 * RIG_SECOND, RIG_SECOND);
    for (unsigned i = 0; i < 3; i++) {
        cleaners += stats_of(&w.nodes[i]).cleaner;
    }
    assert_int_equal(cleaners, 1);
    world_close(&w);
}

/* Another tier in its place, with objects of its own: they are found, and
 * nothing of the first one's. */
static void test_replaced(void **state)
{
    world_t w;

    (void)state;
    world_start(&w, 2, 2);
    node_t *a = &w.nodes[0], *b = &w.nodes[1];
    assert_int_equal(node_put(a, 0, rig_eight, 4), 0);
    assert_int_equal(node_put(a, 1, rig_eight + 4, 4), 0);
    world_pass(&w, 5 * RIG_SECOND, 100 * RIG_MS);
    node_close(b);
    /* Only the id is another: all that is published is read anew. */
    assert_true(simstore_lose(w.store, LDR_OBJECTS_ID_NAME));
    simstore_write(w.store, LDR_OBJECTS_ID_NAME, ID_1, strlen(ID_1));
    uint64_t before = stats_of(a).manifests_read;
    world_pass(&w, 2 * RIG_SECOND, 100 * RIG_MS);
    assert_true(stats_of(a).manifests_read > before);
    assert_int_equal(found_by(a, 0), 4);
    assert_int_equal(found_by(a, 1), 4);
    for (unsigned i = 0; i < 4; i++) {
        assert_int_not_equal(node_get(a, 0, rig_eight[i], NULL), 0);
    }
    /* It is not forgotten again and again. */
    before = stats_of(a).manifests_read;
    world_pass(&w, 5 * RIG_SECOND, 100 * RIG_MS);
    assert_int_equal(stats_of(a).manifests_read, before);
    world_close(&w);
}

/* What was to be published when the tier was lost is not told of in the next,
 * but for removals; and whoever waits for that does not wait in vain. */
static void test_unpublished(void **state)
{
    world_t w;

    (void)state;
    world_start(&w, 2, 2);
    node_t *a = &w.nodes[0], *b = &w.nodes[1];
    simstore_fail(a->backend, SIMSTORE_PUT, 2, 0, -EIO);
    assert_int_equal(node_put(a, 0, rig_eight, 4), 0);
    world_pass(&w, 100 * RIG_MS, 20 * RIG_MS); /* for nothing */
    assert_int_equal(stats_of(a).unpublished, 1);
    assert_int_not_equal(node_remove(a, 0, 9), LARDER_OK);
    lose_all(w.store, NULL);
    simstore_fail(a->backend, SIMSTORE_PUT, 0, 0, 0);
    w.now_ns += w.params.retry_ms * RIG_MS;
    world_pass(&w, 3 * RIG_SECOND, 100 * RIG_MS);
    assert_int_equal(found_by(a, 0), 0);
    assert_int_equal(found_by(b, 0), 0);
    assert_int_equal(stats_of(a).unpublished, 0);
    assert_int_equal(ldr_objects_flush(a->tier, w.now_ns + RIG_SECOND),
                     LARDER_OK);
    assert_int_not_equal(removed_of(a, 9), 0);
    assert_int_not_equal(removed_of(b, 9), 0); /* b has heard of it there */
    assert_int_equal(node_put(b, 0, rig_eight, 4), 0);
    world_pass(&w, 3 * RIG_SECOND, 100 * RIG_MS);
    assert_int_not_equal(node_get(a, 0, 2, NULL), 0);
    world_close(&w);
}

/* A reset that the storage has lost with its name, such as a server that came
 * back with what it had some time ago, is put again by whoever knows it. */
static void test_lost_resets(void **state)
{
    world_t w;

    (void)state;
    world_start(&w, 2, 1);
    node_t *a = &w.nodes[0], *b = &w.nodes[1];
    assert_int_equal(node_reset(a, 0), LARDER_OK);
    assert_int_equal(node_reset(a, 0), LARDER_OK);
    world_pass(&w, RIG_SECOND, 100 * RIG_MS);
    lose_all(w.store, "larder");
    assert_int_equal(simstore_count(w.store, RESETS), 0);
    world_pass(&w, 70 * RIG_SECOND, RIG_SECOND);
    assert_int_equal(simstore_count(w.store, RESETS), 1);
    node_open(b);
    world_run(&w);
    assert_int_equal(b->epoch[0], 2);
    world_close(&w);
}

/* ---- a server that keeps nothing ---- */

typedef struct served {
    redis_t redis;
    char url[64];
    uint8_t space_id[LDR_ID_BYTES];
    uint32_t tenant, space, epoch;
    ldr_objects_t *tier;
    larder_key_t key; /* of what it holds */
} served_t;

/* A tier with a space that was reset. */
static void server_tier(served_t *r)
{
    ldr_seal_t seal = {.encrypts = false};
    uint8_t id[LDR_ID_BYTES];

    redis_start(&r->redis, false, NULL);
    snprintf(r->url, sizeof(r->url), "valkey://127.0.0.1:%u", r->redis.port);
    ldr_objects_params_t p = {
        .url = r->url,
        .login = "",
        .threads = 4,
        .timeout_ms = 5000,
        .retry_ms = 50,
        .poll_ms = 5,
        .publish_ms = 2,
        .orphan_s = 600,
        .clock = &ldr_clock_real,
        .log = {.fn = rig_quiet},
    };
    assert_int_equal(ldr_objects_open(&p, &r->tier), LARDER_OK);
    rig_tenant_id(id);
    assert_int_equal(ldr_objects_tenant(r->tier, id, "acme", &seal,
                                        in_ms(60000), &r->tenant),
                     LARDER_OK);
    rig_space_id(0, r->space_id);
    r->space = ldr_objects_space(r->tier, r->tenant, r->space_id, 0);
    assert_int_equal(ldr_objects_reset(r->tier, r->tenant, r->space,
                                       in_ms(60000), &r->epoch),
                     LARDER_OK);
}

static bool finds_object(served_t *r)
{
    ldr_object_place_t place;

    return ldr_objects_find(r->tier, r->tenant, r->space, r->epoch, &r->key, 0,
                            0, &place);
}

/* An object is told of, as if it had been put there. */
static void tell_object(served_t *r)
{
    ldr_manifest_row_t row = {.shards = 1, .blocks = 2};
    ldr_manifest_entry_t e = {.kind = LDR_MANIFEST_OBJECT, .rows = &row};

    r->key = rig_key(1);
    memcpy(row.key, r->key.hash, LDR_MANIFEST_KEY);
    memset(e.object.id, 0x99, LDR_ID_BYTES);
    memcpy(e.object.space_id, r->space_id, LDR_ID_BYTES);
    e.object.epoch = r->epoch;
    e.object.rows = 1;
    e.object.used_blocks = 2;
    e.object.written_s = ldr_wall_s(&ldr_clock_real);
    pthread_mutex_lock(&r->tier->lock);
    assert_true(ldr_volume_add(r->tier->volumes[r->tenant], &e, true));
    pthread_mutex_unlock(&r->tier->lock);
    assert_int_equal(ldr_objects_flush(r->tier, in_ms(60000)), LARDER_OK);
    assert_true(finds_object(r));
}

/* Until the reset is in the server. */
static void await_reset(const served_t *r, uint64_t until_ms)
{
    ldr_backend_params_t p = {.url = r->url, .login = "", .threads = 1};
    ldr_backend_t *b;
    char name[LDR_OBJECT_NAME_MAX + 1];
    uint64_t bytes = 0;

    assert_int_equal(ldr_backend_open(&p, &b), LARDER_OK);
    ldr_name_epoch(r->tier->volumes[r->tenant], r->space_id, r->epoch, name);
    while (b->ops->size(b, name, &bytes, in_ms(5000)) != 0 &&
           real_now_ms() < until_ms) {
        real_pause();
    }
    assert_int_not_equal(bytes, 0);
    b->ops->destroy(b);
}

static void test_redis(void **state)
{
    static served_t r;
    uint64_t until_ms = real_now_ms() + 60000;

    (void)state;
    if (redis_program() == NULL) {
        skip();
    }
    server_tier(&r);
    tell_object(&r);
    server_end(&r.redis.pid, SIGKILL); /* and all that it had */
    redis_up(&r.redis);
    while (!tier_wants(r.tier, r.tenant, r.space, &r.key) &&
           real_now_ms() < until_ms) {
        real_pause();
    }
    assert_true(tier_wants(r.tier, r.tenant, r.space, &r.key));
    assert_false(finds_object(&r));
    await_reset(&r, until_ms);
    assert_true(ldr_objects_close(r.tier, in_ms(60000)));
    redis_end(&r.redis);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_emptied),     cmocka_unit_test(test_replaced),
        cmocka_unit_test(test_unpublished), cmocka_unit_test(test_lost_resets),
        cmocka_unit_test(test_redis),
    };

    unsetenv("LARDER_SHARED_PASSWORD");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
