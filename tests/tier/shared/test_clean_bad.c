/* The cleaner where the storage takes objects away, or gives other bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tier/shared/objects_int.h"
#include "tier/shared/objects_rig.h"

#define OBJECTS RIG_TENANT "/o/"

/* The first becomes the cleaner. */
static void begin(world_t *w, unsigned nodes, bool evicts)
{
    world_open(w, 1, nodes);
    simstore_evicts(w->store, evicts);
    for (unsigned i = 0; i < nodes; i++) {
        node_open(&w->nodes[i]);
        world_pass(w, 3 * RIG_SECOND, 100 * RIG_MS);
    }
    assert_true(stats_of(&w->nodes[0]).cleaner);
}

/* Each in an object of its own. */
static void save(world_t *w, unsigned keys)
{
    for (unsigned k = 0; k < keys; k++) {
        assert_int_equal(node_put(&w->nodes[0], 0, &k, 1), 0);
    }
    world_pass(w, RIG_SECOND, 100 * RIG_MS);
}

static bool find(const node_t *n, unsigned key, ldr_object_place_t *place)
{
    larder_key_t k = rig_key(key);

    return ldr_objects_find(n->tier, n->tenant, n->space[0], 0, &k, 0, 0,
                            place);
}

/* The object that it is in; the name. */
static const char *object_of(const node_t *n, unsigned key)
{
    static char name[LDR_OBJECT_NAME_MAX + 1];
    char hex[2 * LDR_ID_BYTES + 1];
    ldr_object_place_t place;

    assert_true(find(n, key, &place));
    ldr_hex(place.id, LDR_ID_BYTES, hex);
    snprintf(name, sizeof(name), OBJECTS "%.2s/%s", hex, hex);
    return name;
}

/* What is evicted stays listed: all hear of it without a reader, and the names
 * go. */
static void test_evicted(void **state)
{
    world_t w;

    (void)state;
    begin(&w, 2, true);
    save(&w, RIG_KEYS);
    for (unsigned k = 0; k < 20; k++) {
        assert_true(simstore_evict(w.store, object_of(&w.nodes[0], k)));
    }
    /* One that the cleaner has forgotten. */
    assert_int_equal(node_get(&w.nodes[0], 0, 0, NULL), 0);
    world_pass(&w, 3600 * RIG_SECOND, 500 * RIG_MS);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(stats_of(&w.nodes[i]).objects,
                         simstore_count(w.store, OBJECTS));
        assert_int_equal(stats_of(&w.nodes[i]).shards, RIG_KEYS - 20);
        for (unsigned k = 0; k < RIG_KEYS; k++) {
            assert_true((node_get(&w.nodes[i], 0, k, NULL) != 0) == (k >= 20));
        }
        assert_int_equal(stats_of(&w.nodes[i]).gone, i == 0 ? 1 : 0);
    }
    world_close(&w);
}

/* Of more objects than are asked for in the time after which the first are
 * asked for again, all have their turn. */
static void test_evicted_of_many(void **state)
{
    const unsigned many = 300, last = 20;
    world_t w;

    (void)state;
    begin(&w, 1, true);
    w.nodes[0].tier->compacting = true; /* they stay what they are */
    save(&w, many);
    for (unsigned k = many - last; k < many; k++) {
        assert_true(simstore_evict(w.store, object_of(&w.nodes[0], k)));
    }
    world_pass(&w, 80 * RIG_SECOND, 500 * RIG_MS);
    world_pass(&w, 60 * RIG_SECOND, 20 * RIG_MS);
    assert_int_equal(stats_of(&w.nodes[0]).objects, many - last);
    assert_int_equal(simstore_count(w.store, OBJECTS), many - last);
    world_close(&w);
}

/* A record that is read wrong while objects are made one is read once more;
 * only if that is no better it is lost, and counted. */
static void test_read_wrong(void **state)
{
    static const struct {
        uint64_t times;
        unsigned corrupt;
    } table[] = {{1, 0}, {UINT64_MAX, 1}};
    world_t w;

    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        begin(&w, 2, false);
        save(&w, 16);
        simstore_garble(w.nodes[0].backend, object_of(&w.nodes[0], 3),
                        table[i].times);
        world_pass(&w, 100 * RIG_SECOND, RIG_SECOND);
        assert_int_equal(simstore_count(w.store, OBJECTS), 1);
        assert_int_equal(stats_of(&w.nodes[0]).compacted, 16);
        assert_int_equal(stats_of(&w.nodes[0]).corrupt, table[i].corrupt);
        for (unsigned k = 0; k < 16; k++) {
            assert_true((node_get(&w.nodes[1], 0, k, NULL) != 0) ==
                        (k != 3 || table[i].corrupt == 0));
        }
        world_close(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_evicted),
        cmocka_unit_test(test_evicted_of_many),
        cmocka_unit_test(test_read_wrong),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
