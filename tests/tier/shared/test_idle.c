/* shared_max is each tenant's own; and tenants that no node has open go when
 * they are older than shared_age_s. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tier/shared/objects_int.h"
#include "tier/shared/objects_rig.h"

#define MAX (80 * LDR_BLOCK)
#define DAY_S 86400u
#define HUGE_FIGURE "ffffffffffffffff 00000001\n"

static void wait_s(world_t *w, unsigned seconds)
{
    world_pass(w, seconds * RIG_SECOND, RIG_SECOND);
}

static void save(node_t *n, unsigned first, unsigned count, unsigned pause_s)
{
    for (unsigned k = first; k < first + count; k++) {
        unsigned key = k % RIG_KEYS;

        if (node_get(n, k / RIG_KEYS % 2, key, NULL) == 0) {
            assert_int_equal(node_put(n, k / RIG_KEYS % 2, &key, 1), 0);
        }
        wait_s(n->world, pause_s);
    }
}

/* As many objects as are not made one, in both spaces. */
static void save_objects(node_t *n)
{
    unsigned keys[3];

    for (unsigned k = 0; k < 14; k++) {
        for (unsigned j = 0; j < 3; j++) {
            keys[j] = k / 2 * 3 + j;
        }
        assert_int_equal(node_put(n, k % 2, keys, 3), 0);
        wait_s(n->world, 1);
    }
    wait_s(n->world, 120);
}

static unsigned found(node_t *n, unsigned first, unsigned count)
{
    unsigned sum = 0;

    for (unsigned k = first; k < first + count; k++) {
        sum += node_get(n, k / RIG_KEYS % 2, k % RIG_KEYS, NULL) != 0;
    }
    return sum;
}

/* The second node has a tenant of its own, and is up. */
static void enter(world_t *w, uint64_t max_bytes, uint32_t max_age_s)
{
    world_open(w, 1, 3);
    w->params.max_bytes = max_bytes;
    w->params.max_age_s = max_age_s;
    w->nodes[1].other = RIG_OTHER_ID;
    node_open(&w->nodes[1]);
    wait_s(w, 5);
}

/* It was left so long ago: what it holds. */
static uint64_t leave(world_t *w, uint64_t seconds)
{
    node_close(&w->nodes[1]);
    w->now_ns += seconds * RIG_SECOND;
    return world_bytes(w, RIG_OTHER);
}

/* ---- the bound ---- */

/* Each of two tenants keeps within it, and has all of it: what the other one
 * saves costs neither anything. */
static void test_own_bound(void **state)
{
    world_t w;

    (void)state;
    enter(&w, MAX, 0);
    node_open(&w.nodes[0]);
    for (unsigned i = 0; i < 2 * RIG_KEYS; i += 4) {
        save(&w.nodes[0], i, 4, 5);
        save(&w.nodes[1], i, 4, 5);
        assert_true(world_bytes(&w, RIG_TENANT) <= MAX + 8 * LDR_BLOCK);
    }
    wait_s(&w, 200);
    assert_true(world_bytes(&w, RIG_TENANT) <= MAX);
    assert_true(world_bytes(&w, RIG_OTHER) <= MAX);
    assert_true(world_bytes(&w, RIG_TENANT) > MAX * 3 / 4);
    assert_true(world_bytes(&w, RIG_OTHER) > MAX * 3 / 4);
    world_close(&w);
}

/* Without an age a tenant that nobody has open stays as it is, whatever others
 * save. The files that say so are hints: no content of one costs anybody else
 * anything. */
static void test_no_age(void **state)
{
    world_t w;

    (void)state;
    enter(&w, MAX, 0);
    save(&w.nodes[1], 0, 12, 1);
    wait_s(&w, 120);
    uint64_t theirs = leave(&w, 1000 * DAY_S);
    simstore_write(w.store, "sizes/dddddddddddddddddddddddddddddddd",
                   HUGE_FIGURE, 26);
    node_open(&w.nodes[0]);
    save(&w.nodes[0], 0, 2 * RIG_KEYS, 10);
    wait_s(&w, 300);
    assert_int_equal(world_bytes(&w, RIG_OTHER), theirs);
    assert_true(world_bytes(&w, RIG_TENANT) <= MAX);
    assert_true(world_bytes(&w, RIG_TENANT) > MAX * 3 / 4);
    assert_int_equal(simstore_count(w.store, "larder.cleaner"), 0);
    node_open(&w.nodes[1]);
    wait_s(&w, 5);
    assert_int_equal(found(&w.nodes[1], 0, 12), 12);
    world_close(&w);
}

/* The bound is smaller than what the tenant holds when it is opened: what was
 * read last is what is left. */
static void test_value(void **state)
{
    world_t w;

    (void)state;
    enter(&w, MAX, 0);
    save(&w.nodes[1], 0, 6, 3); /* too few to be made one */
    wait_s(&w, 600);
    assert_int_equal(found(&w.nodes[1], 1, 2), 2);
    wait_s(&w, 120);
    uint64_t theirs = leave(&w, 3600);
    w.params.max_bytes = theirs * 2 / 3;
    node_open(&w.nodes[1]);
    wait_s(&w, 60);
    assert_true(world_bytes(&w, RIG_OTHER) <= theirs * 2 / 3);
    assert_int_equal(found(&w.nodes[1], 1, 2), 2);
    assert_true(found(&w.nodes[1], 0, 6) < 6);
    world_close(&w);
}

/* ---- the age ---- */

/* No node has had it open for as long as the age: all of it goes, but for what
 * others must know. */
static void test_expired(void **state)
{
    static const char name[] = RIG_OTHER "/m/0123456789abcdef-0000000000000001";
    world_t w;
    ldr_manifest_t m = {0};
    ldr_manifest_head_t head = {.sequence = 1};
    ldr_manifest_entry_t e = {.kind = LDR_MANIFEST_GONE};

    (void)state;
    enter(&w, 0, DAY_S);
    save(&w.nodes[1], 0, 12, 1);
    assert_int_equal(node_reset(&w.nodes[1], 1), LARDER_OK);
    wait_s(&w, 120);
    node_close(&w.nodes[1]);
    w.now_ns += (DAY_S - 3600) * RIG_SECOND;
    node_open(&w.nodes[0]);
    save(&w.nodes[0], 0, 4, 1);
    uint64_t theirs = world_bytes(&w, RIG_OTHER),
             ours = world_bytes(&w, RIG_TENANT);
    wait_s(&w, 600);
    assert_int_equal(world_bytes(&w, RIG_OTHER), theirs);
    /* Somebody who had opened it would write such a one. */
    memset(head.tenant_id, RIG_OTHER_ID, sizeof(head.tenant_id));
    head.written_s = ldr_wall_s(&rig_clock);
    assert_true(ldr_manifest_add(&m, &e));
    assert_true(ldr_manifest_finish(&m, &head, &w.seal));
    assert_true(simstore_write(w.store, name, m.data, m.bytes));
    ldr_manifest_clear(&m);
    w.now_ns += 3600 * RIG_SECOND;
    wait_s(&w, 300);
    assert_int_equal(world_bytes(&w, RIG_OTHER), 0);
    assert_int_equal(simstore_count(w.store, RIG_OTHER "/m/"), 1);
    assert_string_equal(simstore_name(w.store, RIG_OTHER "/m/", 0), name);
    assert_int_equal(simstore_count(w.store, RIG_OTHER "/e/"), 1);
    assert_int_equal(simstore_count(w.store, RIG_OTHER "/check"), 1);
    assert_int_equal(simstore_count(w.store, "sizes/"), 1); /* of the other */
    assert_int_equal(world_bytes(&w, RIG_TENANT), ours);
    node_open(&w.nodes[1]);
    wait_s(&w, 20);
    ldr_objects_stats_t n;
    ldr_objects_stats(w.nodes[1].tier, &n);
    assert_int_equal(n.objects, 0);
    assert_int_equal(found(&w.nodes[1], 0, 12), 0);
    assert_int_equal(w.nodes[1].epoch[1], 1);
    save(&w.nodes[1], 0, 12, 0);
    assert_int_equal(found(&w.nodes[1], 0, 12), 12);
    world_close(&w);
}

/* Of a tenant that is open only what is too old goes, each at its time. Once
 * nobody has it open the rest stays until all of it does. */
static void test_too_old(void **state)
{
    world_t w;

    (void)state;
    enter(&w, 0, DAY_S);
    save(&w.nodes[1], 0, 3, 1);
    w.now_ns += DAY_S / 2 * RIG_SECOND;
    wait_s(&w, 5);
    save(&w.nodes[1], 3, 3, 1);
    assert_int_equal(found(&w.nodes[1], 0, 1), 1); /* a use */
    w.now_ns += DAY_S / 2 * RIG_SECOND;
    wait_s(&w, 300);
    assert_int_equal(found(&w.nodes[1], 1, 2), 0);
    uint64_t left = leave(&w, DAY_S * 3 / 4);
    node_open(&w.nodes[0]);
    wait_s(&w, 600);
    assert_int_equal(world_bytes(&w, RIG_OTHER), left);
    w.now_ns += DAY_S / 4 * RIG_SECOND;
    wait_s(&w, 600);
    assert_int_equal(world_bytes(&w, RIG_OTHER), 0);
    world_close(&w);
}

/* Who opens it, or is about to, is not disturbed. */
static void test_not_idle(void **state)
{
    char text[32];
    world_t w;

    (void)state;
    enter(&w, 0, DAY_S);
    save(&w.nodes[1], 0, 6, 1);
    wait_s(&w, 120);
    uint64_t theirs = leave(&w, 2 * DAY_S);
    /* Another node cleans up for it, and has not written its file. */
    for (unsigned i = 0; i < 10; i++) {
        snprintf(text, sizeof(text), "0123456789abcdef %08x\n",
                 ldr_wall_s(&rig_clock) + 60);
        simstore_write(w.store, RIG_OTHER "/cleaner", text, 26);
        if (i == 0) {
            node_open(&w.nodes[0]);
        }
        wait_s(&w, 60);
        assert_int_equal(world_bytes(&w, RIG_OTHER), theirs);
    }
    wait_s(&w, 300);
    assert_int_equal(world_bytes(&w, RIG_OTHER), 0);
    world_close(&w);
}

/* The clock of the node that removes is far ahead: who says each minute that
 * he has the tenant open is believed, whatever time it seems to be. */
static void test_wrong_clock(void **state)
{
    char text[32];
    world_t w;

    (void)state;
    enter(&w, 0, DAY_S);
    save(&w.nodes[1], 0, 6, 1);
    wait_s(&w, 120);
    uint64_t theirs = leave(&w, 3 * DAY_S);
    node_open(&w.nodes[0]);
    for (unsigned i = 0; i < 20; i++) {
        snprintf(text, sizeof(text), "%016llx %08x\n",
                 (unsigned long long)theirs,
                 (uint32_t)(ldr_wall_s(&rig_clock) - 2 * DAY_S));
        simstore_write(w.store, "sizes/" RIG_OTHER, text, 26);
        wait_s(&w, 60);
        assert_int_equal(world_bytes(&w, RIG_OTHER), theirs);
    }
    wait_s(&w, 400);
    assert_int_equal(world_bytes(&w, RIG_OTHER), 0);
    world_close(&w);
}

/* It is opened while its objects are being removed: that ends at once, and
 * what is saved from then on stays. */
static void test_opened_meanwhile(void **state)
{
    world_t w;

    (void)state;
    enter(&w, 0, DAY_S);
    save_objects(&w.nodes[1]);
    uint64_t theirs = leave(&w, 2 * DAY_S);
    node_open(&w.nodes[0]);
    simstore_fail(w.nodes[0].backend, SIMSTORE_REMOVE, 5, 0, -EIO);
    while (world_bytes(&w, RIG_OTHER) == theirs) {
        wait_s(&w, 1);
    }
    w.params.max_age_s = 0; /* its own objects may be as old as they are */
    node_open(&w.nodes[1]);
    simstore_fail(w.nodes[0].backend, SIMSTORE_REMOVE, 1, 1, 0);
    wait_s(&w, 5);
    uint64_t left = world_bytes(&w, RIG_OTHER);
    assert_true(left > 0);
    save(&w.nodes[1], 0, 24, 5);
    wait_s(&w, 600);
    assert_true(world_bytes(&w, RIG_OTHER) >= left);
    assert_int_equal(found(&w.nodes[1], 0, 24), 24);
    world_close(&w);
}

/* Files that may not be removed are no reason to turn anything off; and where
 * nothing can be written nobody can say that a tenant is in use. */
static void test_refused(void **state)
{
    world_t w;

    (void)state;
    enter(&w, 0, 600);
    save(&w.nodes[1], 0, 12, 1);
    wait_s(&w, 120);
    uint64_t theirs = leave(&w, 3600);
    node_open(&w.nodes[0]);
    simstore_fail(w.nodes[0].backend, SIMSTORE_REMOVE, 1, 0, -EACCES);
    wait_s(&w, 400);
    assert_int_equal(world_bytes(&w, RIG_OTHER), theirs);
    assert_int_equal(w.nodes[0].tier->state, LDR_OBJECTS_ON);
    simstore_fail(w.nodes[0].backend, SIMSTORE_REMOVE, 1, 1, 0);
    simstore_read_only(w.store, true);
    wait_s(&w, 600);
    simstore_read_only(w.store, false);
    assert_int_equal(world_bytes(&w, RIG_OTHER), theirs);
    wait_s(&w, 400);
    assert_int_equal(world_bytes(&w, RIG_OTHER), 0);
    world_close(&w);
}

/* Two nodes could see to it: one of them does, and the other one when that is
 * gone. */
static void test_one_role(void **state)
{
    world_t w;

    (void)state;
    enter(&w, 0, DAY_S);
    save(&w.nodes[1], 0, 12, 1);
    wait_s(&w, 120);
    leave(&w, DAY_S / 2);
    w.nodes[2].other = 0xcc;
    node_open(&w.nodes[0]);
    node_open(&w.nodes[2]);
    for (unsigned i = 0; i < 10; i++) {
        wait_s(&w, 60);
        assert_int_equal(simstore_count(w.store, "larder.cleaner"), 1);
    }
    unsigned one = w.nodes[0].tier->idle.mine ? 0 : 2;
    assert_true(w.nodes[one].tier->idle.mine);
    assert_false(w.nodes[2 - one].tier->idle.mine);
    node_close(&w.nodes[one]);
    w.now_ns += DAY_S / 2 * RIG_SECOND;
    wait_s(&w, 400);
    assert_true(w.nodes[2 - one].tier->idle.mine);
    assert_int_equal(world_bytes(&w, RIG_OTHER), 0);
    world_close(&w);
}

/* An operator deletes its folder: its file goes with the age. What is no file
 * of a tenant does no harm; and there are more than are looked at in one piece,
 * one of them with more objects than are removed in one. */
static void test_many(void **state)
{
    char name[120];
    world_t w;

    (void)state;
    enter(&w, 0, DAY_S);
    save(&w.nodes[1], 0, 12, 1);
    wait_s(&w, 120);
    leave(&w, 2 * DAY_S);
    simstore_write(w.store, "sizes/cc", HUGE_FIGURE, 26);
    simstore_write(w.store, "sizes/cccccccccccccccccccccccccccccccc",
                   HUGE_FIGURE, 25);
    simstore_write(w.store, "sizes/cccccccccccccccccccccccccccccccd", "", 0);
    for (unsigned i = 0; i < 100; i++) {
        snprintf(name, sizeof(name), "sizes/%032x", i);
        simstore_write(w.store, name, HUGE_FIGURE, 26);
        for (unsigned k = 0; k < (i == 50 ? 300 : 3) && i % 5 == 0; k++) {
            snprintf(name, sizeof(name), "%032x/o/%02x/%02x%030x", i, k % 256,
                     k % 256, k);
            simstore_write(w.store, name, "x", 1);
        }
    }
    node_open(&w.nodes[0]);
    save(&w.nodes[0], 0, 12, 1);
    wait_s(&w, 400);
    assert_int_equal(simstore_count(w.store, "0000"), 0);
    assert_int_equal(simstore_count(w.store, "sizes/0000"), 0);
    assert_int_equal(simstore_count(w.store, "sizes/"), 4); /* ours, junk */
    assert_int_equal(world_bytes(&w, RIG_OTHER), 0);
    assert_int_equal(found(&w.nodes[0], 0, 12), 12);
    world_close(&w);
}

/* The node that removes is killed, at whatever call: another one goes on, and
 * whoever opens the tenant finds what is left, or nothing wrong. */
static void test_killed(void **state)
{
    unsigned between = 0;

    (void)state;
    for (unsigned call = 1; call <= 120; call++) {
        bool opens = call % 2 == 0;
        world_t w;

        enter(&w, 0, DAY_S);
        save_objects(&w.nodes[1]);
        uint64_t theirs = leave(&w, 2 * DAY_S);
        node_open(&w.nodes[0]);
        /* It has the role by then, and begins any moment. */
        wait_s(&w, 235);
        simstore_crash_at(w.nodes[0].backend, call);
        wait_s(&w, 60);
        assert_true(simstore_crashed(w.nodes[0].backend));
        node_close(&w.nodes[0]);
        uint64_t left = world_bytes(&w, RIG_OTHER);
        between += left > 0 && left < theirs;
        w.params.max_age_s = opens ? 0 : DAY_S;
        node_open(&w.nodes[2]);
        if (!opens) {
            wait_s(&w, 1000);
            assert_int_equal(world_bytes(&w, RIG_OTHER), 0);
        }
        node_open(&w.nodes[1]);
        wait_s(&w, 20);
        assert_int_equal(found(&w.nodes[1], 0, 21) > 0, opens && left > 0);
        save(&w.nodes[1], 0, 6, 0);
        assert_int_equal(found(&w.nodes[1], 0, 6), 6);
        world_close(&w);
    }
    assert_true(between >= 5);
}

/* Storage that fails now and then, nodes that come and go: nobody is served
 * anything wrong (the rig judges), and in the end the bounds are kept. */
static void test_schedules(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        world_t w;

        world_open(&w, seed, 3);
        w.params.max_bytes = MAX;
        w.params.max_age_s = 7200;
        w.nests = true;
        w.nodes[1].other = RIG_OTHER_ID;
        for (unsigned step = 0; step < 60; step++) {
            node_t *n = &w.nodes[ldr_rand_below(&w.rand, 3)];
            unsigned key = (unsigned)ldr_rand_below(&w.rand, RIG_KEYS);

            if (n->tier == NULL) {
                node_open(n);
                simstore_noise(n->backend, 10);
                simstore_stale(n->backend, 50, 3);
            } else if (ldr_rand_below(&w.rand, 4) == 0) {
                simstore_noise(n->backend, 0);
                node_close(n);
            } else if (node_get(n, step % 2, key, NULL) == 0) {
                node_put(n, step % 2, &key, 1);
            }
            wait_s(&w, 1 + (unsigned)ldr_rand_below(&w.rand, 120));
            w.now_ns += ldr_rand_below(&w.rand, 1000) * RIG_SECOND;
        }
        for (unsigned i = 0; i < 3; i++) {
            node_close(&w.nodes[i]);
        }
        w.nests = false;
        node_open(&w.nodes[0]);
        wait_s(&w, 1200);
        assert_true(world_bytes(&w, RIG_TENANT) <= MAX);
        w.now_ns += 7200 * RIG_SECOND;
        wait_s(&w, 1200);
        assert_int_equal(world_bytes(&w, RIG_OTHER), 0);
        world_close(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_own_bound),
        cmocka_unit_test(test_no_age),
        cmocka_unit_test(test_value),
        cmocka_unit_test(test_expired),
        cmocka_unit_test(test_too_old),
        cmocka_unit_test(test_not_idle),
        cmocka_unit_test(test_wrong_clock),
        cmocka_unit_test(test_opened_meanwhile),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_one_role),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_killed),
        cmocka_unit_test(test_schedules),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
