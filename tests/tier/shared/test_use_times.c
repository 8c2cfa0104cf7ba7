/*
 * What nodes have in DRAM is used in the shared tier as well: a node without
 * threads over a directory, and its clock.
 */

#include "base/thread.h"
#include "tier/shared/objects_int.h"
#include "tier/shared/node_rig.h"
#include "tier/shared/place.h"

#define AGE_S 1800u
#define MINUTE_MS 60000u
#define HOT 0u /* spaces, an object each */
#define COLD 1u

typedef node_rig_t fixture_t;

static int setup(void **state)
{
    fixture_t *f = calloc(1, sizeof(*f));

    node_rig_init(f, "use-times");
    node_rig_use_tier(f, true);
    f->rig.options.shared_age_s = AGE_S;
    assert_int_equal(rig_open(&f->rig), LARDER_OK);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    node_rig_free(*state);
    free(*state);
    return 0;
}

static void pass(fixture_t *f, uint64_t ms)
{
    node_rig_pass(f, ms, 1000);
}

static void save(fixture_t *f, uint32_t space)
{
    assert_int_equal(rig_put(&f->rig, (name_t){.space = space, .key = 1}, 1),
                     LARDER_OK);
}

/* The object that holds the space's shard, or LDR_NIL. */
static uint32_t object_of(fixture_t *f, uint32_t space, uint32_t *used_s_p)
{
    ldr_shared_t *s = ldr_shared_of(&f->rig.node->host);
    larder_key_t key = test_key(1);
    ldr_object_place_t place;
    uint32_t number = LDR_NIL, tenant, at;

    ldr_node_lock(f->rig.node);
    if (shared_place(f->rig.node, f->rig.spaces[space]->number, &key, 0,
                     &place) &&
        ldr_shared_numbers(s, f->rig.spaces[space]->number, &tenant, &at)) {
        const ldr_volume_t *p = s->tier->volumes[tenant];

        ldr_mutex_lock(&s->tier->lock);
        number = ldr_map_object(p->map, place.id);
        *used_s_p = ldr_map_at(p->map, number)->used_s;
        ldr_mutex_unlock(&s->tier->lock);
    }
    ldr_node_unlock(f->rig.node);
    return number;
}

/* Nobody ever reads either from the tier: what is asked for stays, though it
 * comes from DRAM each time; the other goes when it is old. */
static void test_hot_in_dram(void **state)
{
    fixture_t *f = *state;
    const ldr_counters_t *n = &f->rig.node->store.n;
    uint32_t used_s = 1;

    save(f, HOT);
    save(f, COLD);
    pass(f, 5000);
    assert_int_not_equal(object_of(f, HOT, &used_s), LDR_NIL);
    assert_int_equal(used_s, 0); /* to save is no use */
    assert_int_not_equal(object_of(f, COLD, &used_s), LDR_NIL);
    for (unsigned minutes = 0; minutes < 3 * AGE_S / 60; minutes += 10) {
        size_t bytes;

        assert_int_equal(
            rig_get(&f->rig, (name_t){.space = HOT, .key = 1}, &bytes),
            LARDER_OK);
        pass(f, 10 * MINUTE_MS);
    }
    assert_true(n->loads[LARDER_TIER_DRAM] > 0);
    assert_int_equal(n->loads[LARDER_TIER_SHARED], 0);
    assert_int_not_equal(object_of(f, HOT, &used_s), LDR_NIL);
    assert_true(used_s + AGE_S > ldr_wall_s(f->rig.node->clock));
    assert_int_equal(object_of(f, COLD, &used_s), LDR_NIL);
    /* Its chunk is still in DRAM: that alone is no use. */
    assert_true(rig_exists(&f->rig, (name_t){.space = COLD, .key = 1}));
    pass(f, 2 * AGE_S * 1000);
    assert_int_equal(object_of(f, HOT, &used_s), LDR_NIL);
}

/* The next piece of the walk, now; when the one after it is due. */
static uint64_t walk(fixture_t *f)
{
    ldr_node_lock(f->rig.node);
    uint64_t next_ns = ldr_shared_walk(ldr_shared_of(&f->rig.node->host));
    ldr_node_unlock(f->rig.node);
    return next_ns - ldr_now_ns(f->rig.node->clock);
}

/* A node where nothing was used does not walk, and looks once a minute. */
static void test_idle(void **state)
{
    fixture_t *f = *state;
    const ldr_shared_t *s = ldr_shared_of(&f->rig.node->host);
    size_t bytes;

    save(f, HOT);
    pass(f, 2 * MINUTE_MS);
    rig_sleep(&f->rig, MINUTE_MS);
    assert_int_equal(walk(f), (uint64_t)MINUTE_MS * 1000000u);
    assert_int_equal(s->walk_chunk, 0);
    assert_int_equal(rig_get(&f->rig, (name_t){.space = HOT, .key = 1}, &bytes),
                     LARDER_OK);
    rig_sleep(&f->rig, MINUTE_MS);
    assert_int_equal(walk(f), (uint64_t)MINUTE_MS * 1000000u);
    assert_int_not_equal(s->walk_chunk, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_hot_in_dram, setup, teardown),
        cmocka_unit_test_setup_teardown(test_idle, setup, teardown),
    };

    return cmocka_run_group_tests_name("shared/use_times", tests, NULL, NULL);
}
