/* The budget is that of the whole tier: of tenants that this node does not
 * know, and of those that nobody has open, too. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tier/shared/objects_int.h"
#include "tier/shared/objects_rig.h"

#define MAX (80 * LDR_BLOCK)

static uint64_t all_bytes(world_t *w)
{
    return world_bytes(w, RIG_TENANT) + world_bytes(w, RIG_OTHER);
}

/* Two nodes, a tenant each. */
static void begin(world_t *w)
{
    world_open(w, 1, 2);
    w->params.max_bytes = MAX;
    w->nodes[1].other = RIG_OTHER_ID;
    node_open(&w->nodes[0]);
    node_open(&w->nodes[1]);
    world_pass(w, 5 * RIG_SECOND, 100 * RIG_MS);
}

/* Saves a few things, each after a while. */
static void save(node_t *n, unsigned first, unsigned count)
{
    for (unsigned k = first; k < first + count; k++) {
        unsigned key = k % RIG_KEYS;

        if (node_get(n, k / RIG_KEYS % 2, key, NULL) == 0) {
            assert_int_equal(node_put(n, k / RIG_KEYS % 2, &key, 1), 0);
        }
        world_pass(n->world, 20 * RIG_SECOND, 500 * RIG_MS);
    }
}

/* Neither knows the other's key. Both give, and both keep something. */
static void test_two_tenants(void **state)
{
    world_t w;

    (void)state;
    begin(&w);
    for (unsigned i = 0; i < 2 * RIG_KEYS; i += 4) {
        save(&w.nodes[0], i, 4);
        save(&w.nodes[1], i, 4);
    }
    world_pass(&w, 200 * RIG_SECOND, RIG_SECOND);
    assert_true(all_bytes(&w) <= MAX);
    assert_true(world_bytes(&w, RIG_TENANT) >= MAX / 8);
    assert_true(world_bytes(&w, RIG_OTHER) >= MAX / 8);
    world_close(&w);
}

/* Both have much too much when the budget is made smaller. Each hears a minute
 * later what the other has given, and must not give that as well. */
static void test_no_more_than_needed(void **state)
{
    enum { OBJECTS = 7 }; /* in a space: too few to be made one */
    world_t w;
    unsigned keys[8];
    const uint64_t object = 30 * LDR_BLOCK; /* each is smaller */

    (void)state;
    begin(&w);
    for (unsigned i = 0; i < 2; i++) {
        node_close(&w.nodes[i]);
    }
    w.params.max_bytes = 10000 * LDR_BLOCK;
    for (unsigned i = 0; i < 2; i++) {
        node_open(&w.nodes[i]);
        for (unsigned k = 0; k < 2 * OBJECTS; k++) {
            for (unsigned j = 0; j < 8; j++) {
                keys[j] = k / 2 * 8 + j;
            }
            assert_int_equal(node_put(&w.nodes[i], k % 2, keys, 8), 0);
        }
    }
    world_pass(&w, 100 * RIG_SECOND, RIG_SECOND);
    uint64_t max = all_bytes(&w) / 2;
    w.params.max_bytes = max;
    for (unsigned i = 0; i < 2; i++) {
        node_close(&w.nodes[i]);
        node_open(&w.nodes[i]);
    }
    world_pass(&w, 40 * RIG_SECOND, RIG_SECOND);
    assert_true(world_bytes(&w, RIG_TENANT) + object > max / 2);
    assert_true(world_bytes(&w, RIG_OTHER) + object > max / 2);
    world_pass(&w, 300 * RIG_SECOND, RIG_SECOND);
    assert_true(all_bytes(&w) <= max);
    assert_true(world_bytes(&w, RIG_TENANT) + 2 * object > max / 2);
    assert_true(world_bytes(&w, RIG_OTHER) + 2 * object > max / 2);
    world_close(&w);
}

/* Anybody who can write there can put such a figure: none counts for more than
 * twice the budget, not everything goes, and of a tenant that nobody has open
 * it is put right. What is no figure does not count. */
static void test_forged(void **state)
{
    static const char huge[] = "ffffffffffffffff 00000001\n";
    static const char junk[] = "zzzzzzzzzzzzzzzz 00000001\n";
    world_t w;

    (void)state;
    begin(&w);
    simstore_write(w.store, "sizes/" RIG_OTHER, junk, 26);
    simstore_write(w.store, "sizes/cc", huge, 26);
    simstore_write(w.store, "sizes/cccccccccccccccccccccccccccccccc", huge, 25);
    simstore_write(w.store, "sizes/cccccccccccccccccccccccccccccccd", "", 0);
    node_close(&w.nodes[1]);
    save(&w.nodes[0], 0, 2 * RIG_KEYS);
    assert_true(world_bytes(&w, RIG_TENANT) > MAX / 2);
    simstore_write(w.store, "dddddddddddddddddddddddddddddddd/check", "x", 1);
    simstore_write(w.store, "sizes/dddddddddddddddddddddddddddddddd", huge, 26);
    world_pass(&w, 70 * RIG_SECOND, RIG_SECOND);
    assert_true(world_bytes(&w, RIG_TENANT) < MAX * 3 / 4);
    assert_true(world_bytes(&w, RIG_TENANT) > MAX / 16);
    world_pass(&w, 180 * RIG_SECOND, RIG_SECOND);
    save(&w.nodes[0], 0, 2 * RIG_KEYS);
    assert_true(world_bytes(&w, RIG_TENANT) > MAX / 2);
    world_close(&w);
}

/* More tenants than are read in one piece; and figures are read although the
 * storage is full and none can be written. */
static void test_many_full(void **state)
{
    world_t w;
    char name[80], text[32];

    (void)state;
    begin(&w);
    node_close(&w.nodes[1]);
    save(&w.nodes[0], 0, 12);
    for (unsigned i = 0; i < 100; i++) {
        snprintf(name, sizeof(name), "%032x/check", i);
        simstore_write(w.store, name, "x", 1);
        snprintf(name, sizeof(name), "sizes/%032x", i);
        snprintf(text, sizeof(text), "%016x 00000001\n", LDR_BLOCK / 2);
        simstore_write(w.store, name, text, 26);
    }
    simstore_capacity(w.store, 1);
    /* They are waited for, for a while. */
    world_pass(&w, 600 * RIG_SECOND, RIG_SECOND);
    assert_true(world_bytes(&w, RIG_TENANT) <= MAX - 50 * LDR_BLOCK);
    assert_int_equal(w.nodes[0].tier->sizes.idle, 50 * LDR_BLOCK);
    simstore_capacity(w.store, 0);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_tenants),
        cmocka_unit_test(test_no_more_than_needed),
        cmocka_unit_test(test_forged),
        cmocka_unit_test(test_many_full),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
