/* Tenants that nobody has open: size and age are bounded for them, too, though
 * nobody has their keys. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tier/shared/objects_int.h"
#include "tier/shared/objects_rig.h"

#define MAX (80 * LDR_BLOCK)
#define PLENTY (10000 * LDR_BLOCK)
#define DAY_S 86400u

static uint64_t all_bytes(world_t *w)
{
    return world_bytes(w, RIG_TENANT) + world_bytes(w, RIG_OTHER);
}

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

/* The second node's tenant has saved this and was left, an hour ago. */
static void begin(world_t *w, unsigned first, unsigned count)
{
    enter(w, MAX, 0);
    save(&w->nodes[1], first, count, 1);
    wait_s(w, 120); /* it has told what it holds */
    leave(w, 3600);
    node_open(&w->nodes[0]);
    wait_s(w, 5);
}

/* It gives as the one that is open does, which then has the room; what is left
 * of it is right. */
static void test_budget(void **state)
{
    world_t w;

    (void)state;
    begin(&w, 0, 12);
    uint64_t theirs = world_bytes(&w, RIG_OTHER);
    assert_true(theirs > MAX / 4 && theirs < MAX);
    wait_s(&w, 300);
    assert_int_equal(world_bytes(&w, RIG_OTHER), theirs); /* there is room */
    for (unsigned round = 0; round < 4; round++) {
        save(&w.nodes[0], 0, 2 * RIG_KEYS, 10);
        wait_s(&w, 180); /* they give a little later */
        assert_true(all_bytes(&w) <= MAX);
    }
    assert_true(world_bytes(&w, RIG_OTHER) < theirs / 2);
    assert_true(world_bytes(&w, RIG_TENANT) > MAX - theirs);
    node_open(&w.nodes[1]);
    wait_s(&w, 5);
    uint64_t left = world_bytes(&w, RIG_OTHER);
    unsigned hits = found(&w.nodes[1], 0, 12);
    assert_true(hits < 12 && (hits > 0 || left == 0));
    /* It can be used as ever. */
    save(&w.nodes[1], 0, 12, 0);
    assert_int_equal(found(&w.nodes[1], 0, 12), 12);
    world_close(&w);
}

/* The budget was made much smaller: both give the same share, as far as objects
 * can be shared out, and no more than they have to. */
static void test_smaller(void **state)
{
    world_t w;

    (void)state;
    world_open(&w, 1, 3);
    w.params.max_bytes = PLENTY;
    w.nodes[1].other = RIG_OTHER_ID;
    for (unsigned i = 2; i-- > 0;) {
        node_open(&w.nodes[i]);
        save_objects(&w.nodes[i]);
        node_close(&w.nodes[i]);
        w.now_ns += 3600 * RIG_SECOND;
    }
    uint64_t all = all_bytes(&w);
    w.params.max_bytes = all / 2;
    node_open(&w.nodes[0]);
    wait_s(&w, 600);
    assert_true(all_bytes(&w) <= all / 2);
    assert_true(world_bytes(&w, RIG_OTHER) > all / 6);
    assert_true(world_bytes(&w, RIG_TENANT) > all / 6);
    world_close(&w);
}

/* The one that is open has nothing to give. */
static void test_alone(void **state)
{
    world_t w;

    (void)state;
    enter(&w, PLENTY, 0);
    save_objects(&w.nodes[1]);
    uint64_t theirs = leave(&w, 3600);
    w.params.max_bytes = theirs / 4;
    node_open(&w.nodes[0]);
    wait_s(&w, 600);
    assert_true(world_bytes(&w, RIG_OTHER) <= theirs / 4);
    assert_true(world_bytes(&w, RIG_OTHER) > theirs / 12);
    world_close(&w);
}

/* Whoever opens it again knows within seconds what of it is gone, and writes it
 * anew: nothing has to be missed first. */
static void test_opened_again(void **state)
{
    world_t w;

    (void)state;
    enter(&w, PLENTY, 0);
    w.params.orphan_s = 600;
    save_objects(&w.nodes[1]);
    uint64_t theirs = leave(&w, 3600);
    w.params.max_bytes = theirs / 4;
    node_open(&w.nodes[0]);
    wait_s(&w, 600);
    assert_true(world_bytes(&w, RIG_OTHER) <= theirs / 4);
    unsigned left = simstore_count(w.store, RIG_OTHER "/o/");
    w.params.max_bytes = PLENTY;
    node_open(&w.nodes[1]);
    wait_s(&w, 20);
    ldr_objects_stats_t n;
    ldr_objects_stats(w.nodes[1].tier, &n);
    assert_int_equal(n.objects, left);
    world_close(&w);
}

/* The one that is open has a single object, which goes as a whole: that is no
 * measure for the others. */
static void test_coarse(void **state)
{
    unsigned keys[] = {0, 1, 2, 3, 4, 5, 6, 7};
    world_t w;

    (void)state;
    enter(&w, PLENTY, 0);
    save_objects(&w.nodes[1]);
    uint64_t theirs = leave(&w, 3600);
    w.params.max_bytes = theirs * 3 / 4;
    node_open(&w.nodes[0]);
    assert_int_equal(node_put(&w.nodes[0], 0, keys, 8), 0);
    wait_s(&w, 600);
    assert_true(world_bytes(&w, RIG_OTHER) <= theirs * 3 / 4);
    assert_true(world_bytes(&w, RIG_OTHER) > theirs / 2);
    world_close(&w);
}

/* What was read last is what is left. */
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
    node_open(&w.nodes[0]);
    wait_s(&w, 400);
    assert_true(world_bytes(&w, RIG_OTHER) < theirs);
    node_open(&w.nodes[1]);
    wait_s(&w, 5);
    assert_int_equal(found(&w.nodes[1], 1, 2), 2);
    assert_true(found(&w.nodes[1], 0, 6) < 6);
    world_close(&w);
}

/* Nobody has had it open for as long as the age: all of it goes, but for what
 * others must know. No budget is needed for that. */
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
    head.written_s = (uint32_t)(rig_wall(&w));
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
    assert_int_equal(world_bytes(&w, RIG_TENANT), ours);
    /* It is not looked at again. */
    uint64_t calls = simstore_calls(w.nodes[0].backend);
    wait_s(&w, 600);
    uint64_t idle = simstore_calls(w.nodes[0].backend) - calls;
    assert_true(simstore_lose(w.store, "sizes/" RIG_OTHER));
    wait_s(&w, 60);
    calls = simstore_calls(w.nodes[0].backend);
    wait_s(&w, 600);
    assert_true(idle <= simstore_calls(w.nodes[0].backend) - calls + 60);
    node_open(&w.nodes[1]);
    wait_s(&w, 5);
    assert_int_equal(found(&w.nodes[1], 0, 12), 0);
    assert_int_equal(w.nodes[1].epoch[1], 1);
    save(&w.nodes[1], 0, 12, 0);
    assert_int_equal(found(&w.nodes[1], 0, 12), 12);
    world_close(&w);
}

/* Of a tenant that was left not so long ago only what is too old goes, each at
 * its time. */
static void test_too_old(void **state)
{
    world_t w;

    (void)state;
    enter(&w, 0, DAY_S);
    save(&w.nodes[1], 0, 3, 1);
    uint64_t first = world_bytes(&w, RIG_OTHER);
    w.now_ns += DAY_S / 2 * RIG_SECOND;
    wait_s(&w, 5);
    save(&w.nodes[1], 3, 3, 1);
    assert_int_equal(found(&w.nodes[1], 0, 1), 1); /* a use */
    wait_s(&w, 120);
    node_close(&w.nodes[1]);
    uint64_t all = world_bytes(&w, RIG_OTHER);
    w.now_ns += (DAY_S / 2 - 3600) * RIG_SECOND;
    node_open(&w.nodes[0]);
    wait_s(&w, 600);
    assert_int_equal(world_bytes(&w, RIG_OTHER), all);
    w.now_ns += 3600 * RIG_SECOND;
    wait_s(&w, 1000);
    assert_true(world_bytes(&w, RIG_OTHER) < all);
    assert_true(world_bytes(&w, RIG_OTHER) > all - first);
    node_open(&w.nodes[1]);
    wait_s(&w, 5);
    assert_int_equal(found(&w.nodes[1], 1, 2), 0);
    assert_int_equal(found(&w.nodes[1], 0, 1), 1);
    assert_int_equal(found(&w.nodes[1], 3, 3), 3);
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
    /* Another node cleans up for it, and has not told its figure. */
    for (unsigned i = 0; i < 10; i++) {
        snprintf(text, sizeof(text), "0123456789abcdef %08x\n",
                 (uint32_t)(rig_wall(&w) + 60));
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

/* The clock of the node that sees to it is far ahead: who says each minute that
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
                 (uint32_t)(rig_wall(&w) - 2 * DAY_S));
        simstore_write(w.store, "sizes/" RIG_OTHER, text, 26);
        wait_s(&w, 60);
        assert_int_equal(world_bytes(&w, RIG_OTHER), theirs);
    }
    wait_s(&w, 400);
    assert_int_equal(world_bytes(&w, RIG_OTHER), 0);
    world_close(&w);
}

/* Files that may not be removed are no reason to turn anything off; and where
 * nothing can be written nobody can say that a tenant is in use. */
static void test_refused(void **state)
{
    world_t w;

    (void)state;
    begin(&w, 0, 12);
    node_close(&w.nodes[0]);
    w.params.max_age_s = 600;
    node_open(&w.nodes[0]);
    uint64_t theirs = world_bytes(&w, RIG_OTHER);
    simstore_fail(w.nodes[0].backend, SIMSTORE_REMOVE, 1, 0, -EACCES);
    wait_s(&w, 300);
    assert_int_equal(world_bytes(&w, RIG_OTHER), theirs);
    assert_int_equal(w.nodes[0].tier->state, LDR_OBJECTS_ON);
    simstore_fail(w.nodes[0].backend, SIMSTORE_REMOVE, 1, 1, 0);
    simstore_read_only(w.store, true);
    wait_s(&w, 600);
    simstore_read_only(w.store, false);
    assert_int_equal(world_bytes(&w, RIG_OTHER), theirs);
    wait_s(&w, 300);
    assert_int_equal(world_bytes(&w, RIG_OTHER), 0);
    world_close(&w);
}

/* Two nodes see that a tenant is idle: one of them sees to it. */
static void test_one_role(void **state)
{
    world_t w;

    (void)state;
    begin(&w, 0, 12);
    w.nodes[2].other = 0xcc;
    node_open(&w.nodes[2]);
    wait_s(&w, 300);
    for (unsigned i = 0; i < 5; i++) {
        save(&w.nodes[0], i * 9, 9, 5);
        save(&w.nodes[2], i * 9, 9, 5);
        assert_int_equal(simstore_count(w.store, "larder.cleaner"), 1);
    }
    wait_s(&w, 180);
    assert_true(all_bytes(&w) +
                    world_bytes(&w, "cccccccccccccccccccccccccccccccc") <=
                MAX);
    unsigned carers = 0;
    for (unsigned i = 0; i < 3; i += 2) {
        carers += w.nodes[i].tier->care_last[0] != 0;
    }
    assert_int_equal(carers, 1);
    /* It goes over to the other when that node is gone. */
    unsigned last = w.nodes[0].tier->care_last[0] != 0 ? 0 : 2;
    node_close(&w.nodes[last]);
    node_t *n = &w.nodes[2 - last];
    for (unsigned i = 0; i < 6; i++) {
        save(n, i * 9, 9, 10);
    }
    assert_true(n->tier->care_last[0] != 0);
    world_close(&w);
}

/* An operator deletes its folder; its figure goes by itself. */
static void test_deleted(void **state)
{
    world_t w;
    const char *name;

    (void)state;
    begin(&w, 0, 12);
    while ((name = simstore_name(w.store, RIG_OTHER "/", 0)) != NULL) {
        assert_true(simstore_lose(w.store, name));
    }
    assert_int_equal(simstore_count(w.store, "sizes/"), 2);
    wait_s(&w, 130);
    assert_int_equal(simstore_count(w.store, "sizes/"), 1);
    save(&w.nodes[0], 0, 2 * RIG_KEYS, 5);
    assert_true(world_bytes(&w, RIG_TENANT) > MAX / 2);
    assert_true(world_bytes(&w, RIG_TENANT) <= MAX);
    world_close(&w);
}

/* The node that sees to it is killed, at whatever call: another goes on, and
 * whoever opens the tenant finds what is left, or nothing wrong. */
static void test_killed(void **state)
{
    (void)state;
    for (unsigned call = 1; call <= 80; call++) {
        bool expires = call % 2 == 0;
        world_t w;

        enter(&w, PLENTY, 0);
        save_objects(&w.nodes[1]);
        uint64_t theirs = leave(&w, expires ? 2 * DAY_S : 3600);
        w.params.max_bytes = theirs / 2;
        w.params.max_age_s = DAY_S;
        node_open(&w.nodes[0]);
        /* It has the lease by then, and begins any moment. */
        wait_s(&w, 235);
        simstore_crash_at(w.nodes[0].backend, call);
        wait_s(&w, 60);
        assert_true(simstore_crashed(w.nodes[0].backend));
        node_close(&w.nodes[0]);
        node_open(&w.nodes[2]);
        wait_s(&w, 1000);
        assert_true(world_bytes(&w, RIG_OTHER) <= (expires ? 0 : theirs / 2));
        node_open(&w.nodes[1]);
        wait_s(&w, 20);
        assert_int_equal(found(&w.nodes[1], 0, 21) > 0, !expires);
        save(&w.nodes[1], 0, 6, 0);
        assert_int_equal(found(&w.nodes[1], 0, 6), 6);
        world_close(&w);
    }
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
        assert_true(all_bytes(&w) <= MAX);
        w.now_ns += 7200 * RIG_SECOND;
        wait_s(&w, 1200);
        assert_int_equal(world_bytes(&w, RIG_OTHER), 0);
        world_close(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_budget),       cmocka_unit_test(test_smaller),
        cmocka_unit_test(test_alone),        cmocka_unit_test(test_value),
        cmocka_unit_test(test_coarse),       cmocka_unit_test(test_expired),
        cmocka_unit_test(test_too_old),      cmocka_unit_test(test_not_idle),
        cmocka_unit_test(test_refused),      cmocka_unit_test(test_wrong_clock),
        cmocka_unit_test(test_one_role),     cmocka_unit_test(test_deleted),
        cmocka_unit_test(test_opened_again), cmocka_unit_test(test_killed),
        cmocka_unit_test(test_schedules),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
