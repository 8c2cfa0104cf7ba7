/*
 * The epochs of a node, of its disk and of the shared tier, where one hears of
 * a reset later than the others: a node without threads over a simulated disk
 * and a directory.
 */
#include <errno.h>
#include <glob.h>

#include "tier/shared/node_rig.h"
#include "tier/shared/place.h"

typedef struct fixture {
    node_rig_t;
    bool looked; /* while a reset was under way */
} fixture_t;

static const name_t mine = {.key = 1};

static int setup(void **state)
{
    fixture_t *f = calloc(1, sizeof(*f));

    node_rig_init((node_rig_t *)f, "epochs");
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    node_rig_free(*state);
    free(*state);
    return 0;
}

static void open_with(fixture_t *f, bool disk, bool tier)
{
    f->rig.options.dir_count = disk;
    node_rig_use_tier((node_rig_t *)f, tier);
    assert_int_equal(rig_open(&f->rig), LARDER_OK);
}

static void pass(fixture_t *f, uint64_t ms)
{
    node_rig_pass((node_rig_t *)f, ms, 500);
}

static const ldr_counters_t *counted(const fixture_t *f)
{
    return &f->rig.node->store.n;
}

/* Whether the tier has it, as a load would find it. */
static bool is_there(fixture_t *f, name_t name)
{
    larder_key_t key = test_key(name.key);
    ldr_object_place_t place;

    ldr_node_lock(f->rig.node);
    bool there = shared_place(f->rig.node, f->rig.spaces[name.space]->number,
                              &key, name.shard, &place);
    ldr_node_unlock(f->rig.node);
    return there;
}

/* While the disk writes its superblock, and the tier has not heard yet: what it
 * holds is not asked for, and what is saved now is not taken for present. */
static void look(void *arg, simdisk_t *disk)
{
    fixture_t *f = arg;
    ldr_objects_stats_t s;
    uint64_t wake;
    size_t bytes;

    if (f->looked) {
        return;
    }
    simdisk_on_op(disk, NULL, NULL);
    f->looked = true;
    assert_false(is_there(f, mine));
    assert_int_equal(rig_get(&f->rig, mine, &bytes), LARDER_MISS);
    assert_int_not_equal(f->rig.cause, LARDER_CAUSE_CORRUPT);
    ldr_objects_stats(ldr_shared_of(&f->rig.node->host)->tier, &s);
    assert_int_equal(s.reads + s.read_errors + s.gone, 0);
    assert_int_equal(rig_put(&f->rig, mine, 2), LARDER_OK);
    rig_sleep(&f->rig, 1100); /* it is due */
    ldr_node_lock(f->rig.node);
    while (ldr_shared_write(ldr_shared_of(&f->rig.node->host), &wake)) {
    }
    ldr_node_unlock(f->rig.node);
    assert_int_equal(counted(f)->offers_present, 0);
}

static void test_reset_under_way(void **state)
{
    fixture_t *f = *state;

    open_with(f, false, true);
    assert_int_equal(rig_put(&f->rig, mine, 1), LARDER_OK);
    pass(f, 3000);
    assert_true(is_there(f, mine));
    assert_int_equal(rig_close(&f->rig), LARDER_OK);

    open_with(f, true, true);
    pass(f, 1000);
    assert_true(is_there(f, mine));
    simdisk_on_op(f->disk, look, f);
    assert_int_equal(larder_space_reset(f->rig.spaces[0], 0), LARDER_OK);
    assert_true(f->looked);
    assert_false(is_there(f, mine));
    pass(f, 3000);
    assert_true(is_there(f, mine));
    assert_int_equal(counted(f)->offers_written, 1);
    assert_int_equal(counted(f)->misses[LARDER_CAUSE_CORRUPT], 0);
}

/* Resets of that number that the tier has. */
static size_t resets(const fixture_t *f, unsigned epoch)
{
    char pattern[400];
    glob_t g;

    snprintf(pattern, sizeof(pattern), "%s/*/e/*-%08x", f->path, epoch);
    size_t count = glob(pattern, 0, NULL, &g) == 0 ? g.gl_pathc : 0;
    globfree(&g);
    return count;
}

/* A disk comes after the tier was told of the space, with an epoch that the
 * tier has not heard of. */
static void test_disk_comes_late(void **state)
{
    fixture_t *f = *state;

    open_with(f, true, false);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(larder_space_reset(f->rig.spaces[0], 0), LARDER_OK);
    }
    assert_int_equal(rig_close(&f->rig), LARDER_OK);

    simdisk_fail(f->disk, SIMDISK_OPEN, 1, 0, -EIO);
    open_with(f, true, true);
    assert_false(disks_of(f->rig.node)[0].opened);
    pass(f, 500);
    simdisk_fail_none(f->disk);
    rig_sleep(&f->rig, f->rig.options.retry_ms);
    pass(f, 1000);
    assert_true(disks_of(f->rig.node)[0].on);
    assert_int_equal(resets(f, 3), 1);
    assert_int_equal(rig_put(&f->rig, mine, 1), LARDER_OK);
    pass(f, 3000);
    assert_true(is_there(f, mine));
    assert_int_equal(counted(f)->offers_failed, 0);
}

static void move(const char *from, const char *to)
{
    assert_int_equal(rename(from, to), 0);
}

/* A reset that the tier could not be told of, and another node's meanwhile: the
 * first is one still when its node comes back. */
static void test_reset_not_published(void **state)
{
    fixture_t *f = *state;
    char away[300];

    snprintf(away, sizeof(away), "%s.away", f->path);
    open_with(f, true, true);
    pass(f, 1000);
    move(f->path, away);
    pass(f, 60000);
    assert_int_equal(larder_space_reset(f->rig.spaces[0], 0),
                     LARDER_E_TIER_OFF);
    assert_int_equal(rig_close(&f->rig), LARDER_OK);
    move(away, f->path);

    open_with(f, false, true); /* the other */
    pass(f, 1000);
    assert_int_equal(larder_space_reset(f->rig.spaces[0], 0), LARDER_OK);
    assert_int_equal(rig_put(&f->rig, mine, 1), LARDER_OK);
    pass(f, 3000);
    assert_true(is_there(f, mine));
    assert_int_equal(resets(f, 1), 1);
    assert_int_equal(rig_close(&f->rig), LARDER_OK);

    open_with(f, true, true);
    pass(f, 3000);
    assert_false(is_there(f, mine));
    assert_int_equal(rig_put(&f->rig, mine, 2), LARDER_OK);
    pass(f, 3000);
    assert_true(is_there(f, mine));
    uint32_t epoch = f->rig.node->store.spaces[0].epoch;
    assert_int_equal(rig_close(&f->rig), LARDER_OK);
    open_with(f, false, true); /* and the other hears of it */
    pass(f, 3000);
    assert_true(is_there(f, mine));
    assert_int_equal(f->rig.node->store.spaces[0].epoch, epoch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_reset_under_way, setup, teardown),
        cmocka_unit_test_setup_teardown(test_disk_comes_late, setup, teardown),
        cmocka_unit_test_setup_teardown(test_reset_not_published, setup,
                                        teardown),
    };

    return cmocka_run_group_tests_name("shared/epochs", tests, NULL, NULL);
}
