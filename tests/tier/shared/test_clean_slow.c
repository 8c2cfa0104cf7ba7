/*
 * The cleaner where each call takes its time, and others save meanwhile: there
 * must not be more and more manifests, nor so many that nobody can list them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/thread.h"
#include "tier/shared/objects_int.h"
#include "tier/shared/objects_rig.h"

#define OBJECTS RIG_TENANT "/o/"
#define MANIFESTS RIG_TENANT "/m/"

typedef struct slow {
    world_t world;
    uint64_t call_ns; /* each call of the first node's takes */
    uint64_t put_at_ns[RIG_NODES];
    unsigned key; /* the next that is saved */
    bool saves, inside;
} slow_t;

/* All but the first do what they have to, and save once a second. */
static void others(slow_t *s)
{
    world_t *w = &s->world;

    if (s->inside) {
        return;
    }
    s->inside = true;
    for (unsigned i = 1; i < w->node_count; i++) {
        for (unsigned k = 0; k < 50 && node_step(&w->nodes[i]); k++) {
        }
        if (s->saves && w->now_ns >= s->put_at_ns[i]) {
            s->put_at_ns[i] = w->now_ns + RIG_SECOND;
            assert_int_equal(node_put(&w->nodes[i], 0, &s->key, 1), 0);
            s->key++;
        }
    }
    s->inside = false;
}

static void before(void *arg)
{
    slow_t *s = arg;

    s->world.now_ns += s->call_ns;
    others(s);
}

static void go(slow_t *s, uint64_t seconds)
{
    world_t *w = &s->world;
    uint64_t end_ns = w->now_ns + seconds * RIG_SECOND;

    while (w->now_ns < end_ns) {
        if (!node_step(&w->nodes[0])) {
            w->now_ns += 10 * RIG_MS;
        }
        others(s);
    }
}

/* The first node cleans up. */
static void begin(slow_t *s, unsigned nodes)
{
    world_t *w = &s->world;

    memset(s, 0, sizeof(*s));
    world_open(w, 1, nodes);
    w->params.timeout_ms = 5000;
    w->params.retry_ms = 5000;
    w->params.poll_ms = 1000;
    w->params.publish_ms = 500;
    w->params.orphan_s = 600;
    node_open_with(&w->nodes[0], before, s);
    go(s, 5);
    for (unsigned i = 1; i < nodes; i++) {
        node_open_with(&w->nodes[i], NULL, NULL);
    }
    go(s, 5);
    ldr_objects_stats_t stats;
    ldr_objects_stats(w->nodes[0].tier, &stats);
    assert_true(stats.cleaner);
}

static bool finds(const node_t *n, unsigned key)
{
    larder_key_t k = rig_key(key);
    ldr_object_place_t place;

    return ldr_objects_find(n->tier, n->tenant, n->space[0], 0, &k, 0, 0,
                            &place);
}

/* Objects are compacted, and manifests merged, although the one is due again
 * whenever it has ended. */
static void test_slow_calls(void **state)
{
    static slow_t s;
    ldr_objects_stats_t stats;

    (void)state;
    begin(&s, 4);
    s.call_ns = 25 * RIG_MS;
    s.saves = true;
    for (unsigned minute = 0; minute < 10; minute++) {
        go(&s, 60);
        assert_true(simstore_count(s.world.store, MANIFESTS) < 200);
    }
    assert_true(s.key > 1500);
    ldr_objects_stats(s.world.nodes[0].tier, &stats);
    assert_true(stats.compacted > 500);
    s.saves = false;
    go(&s, 120);
    assert_true(simstore_count(s.world.store, MANIFESTS) < 16);
    for (unsigned key = 0; key < s.key; key++) {
        assert_true(finds(&s.world.nodes[0], key));
        assert_true(finds(&s.world.nodes[1], key));
    }
    world_close(&s.world);
}

/* A listing that takes several times what one call may take. */
static void test_many_names(void **state)
{
    static slow_t s;
    char name[LDR_OBJECT_NAME_MAX + 1];
    unsigned key = 1;

    (void)state;
    begin(&s, 2);
    /* Before all that are manifests. */
    for (unsigned i = 0; i < 20000; i++) {
        snprintf(name, sizeof(name), MANIFESTS "-%08u", i);
        simstore_write(s.world.store, name, "", 0);
    }
    s.call_ns = 500 * RIG_MS;
    simstore_pages(s.world.nodes[0].backend, 1000, &rig_clock);
    assert_int_equal(node_put(&s.world.nodes[1], 0, &key, 1), 0);
    go(&s, 40);
    assert_true(finds(&s.world.nodes[0], key));
    world_close(&s.world);
}

/* ---- more small objects than one group a second ---- */

#define BACKLOG 3000u
#define A_SECOND 80u /* of simulated time; a group has 64 */

/* Those that are to be made one: small, and a minute old. */
static unsigned backlog(const node_t *n)
{
    const ldr_volume_t *p = n->tier->volumes[n->tenant];
    uint32_t now_s = ldr_wall_s(&rig_clock);
    unsigned count = 0;

    ldr_mutex_lock(&p->tier->lock);
    for (uint32_t i = 0; i < ldr_map_top(p->map); i++) {
        const ldr_map_object_t *o = ldr_map_at(p->map, i);

        count += o != NULL && o->rows == 1 && now_s >= o->written_s + 60;
    }
    ldr_mutex_unlock(&p->tier->lock);
    return count;
}

static void save(slow_t *s, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        assert_int_equal(node_put(&s->world.nodes[0], 0, &s->key, 1), 0);
        s->key++;
    }
}

/* Calls are quick. What waits becomes less, although more comes each second
 * than one group holds; and the other chores have their turn. */
static void test_backlog(void **state)
{
    static slow_t s;

    (void)state;
    begin(&s, 1);
    s.call_ns = RIG_MS / 5;
    save(&s, BACKLOG);
    for (unsigned i = 0; i < 120; i++) {
        if (i == 55) { /* all of it waits, for its age */
            assert_true(simstore_count(s.world.store, OBJECTS) > BACKLOG);
        }
        save(&s, A_SECOND);
        go(&s, 1);
    }
    printf("%u wait\n", backlog(&s.world.nodes[0]));
    assert_true(backlog(&s.world.nodes[0]) < 4 * A_SECOND);
    assert_true(simstore_count(s.world.store, MANIFESTS) < 200);
    for (unsigned key = 0; key < s.key; key++) {
        assert_true(finds(&s.world.nodes[0], key));
    }
    world_close(&s.world);
}

/* Objects are made one although something dies before every look. */
static void test_always_some_dead(void **state)
{
    static slow_t s;
    ldr_objects_stats_t stats;
    const unsigned same = 5;

    (void)state;
    begin(&s, 1);
    save(&s, 8);
    for (unsigned i = 0; i < 90; i++) {
        for (unsigned k = 0; k < 3; k++) { /* of which one counts */
            assert_int_equal(node_put(&s.world.nodes[0], 1, &same, 1), 0);
        }
        go(&s, 1);
    }
    ldr_objects_stats(s.world.nodes[0].tier, &stats);
    assert_true(stats.cleaned_objects > 90);
    assert_true(stats.compacted >= 8);
    world_close(&s.world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slow_calls),
        cmocka_unit_test(test_many_names),
        cmocka_unit_test(test_backlog),
        cmocka_unit_test(test_always_some_dead),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
