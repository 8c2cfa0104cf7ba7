/*
 * The epochs of a node, of its disk and of the shared tier, where one hears of
 * a reset later than the others: a node without threads over a simulated disk
 * and a directory.
 */
#include <errno.h>
#include <glob.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tier/shared/shared.h"
#include "tier/shared/place.h"
#include "support/real.h"
#include "support/rig.h"

#define STEPS_MAX 100000u

typedef struct fixture {
    simdisk_t *disk;
    rig_t rig;
    char path[256], url[300];
    bool looked; /* while a reset was under way */
} fixture_t;

static const name_t mine = {.key = 1};

static int setup(void **state)
{
    fixture_t *f = calloc(1, sizeof(*f));

    assert_true(real_dir_make(f->path, sizeof(f->path), "epochs"));
    snprintf(f->url, sizeof(f->url), "dir:%s", f->path);
    assert_int_equal(ldr_objects_make(f->url, "", UINT64_MAX), LARDER_OK);
    f->disk = simdisk_create(7, 0);
    rig_init(&f->rig, f->disk, 7, 8, 256 * LDR_BLOCK);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture_t *f = *state;
    char command[400];

    assert_int_equal(rig_close(&f->rig), LARDER_OK);
    rig_free(&f->rig);
    simdisk_destroy(f->disk);
    snprintf(command, sizeof(command), "rm -rf '%s'", f->path);
    assert_int_equal(system(command), 0);
    free(f);
    return 0;
}

static void open_with(fixture_t *f, bool disk, bool tier)
{
    f->rig.options.dir_count = disk;
    snprintf(f->rig.options.shared, sizeof(f->rig.options.shared), "%.255s",
             tier ? f->url : "");
    assert_int_equal(rig_open(&f->rig), LARDER_OK);
}

static void pass(fixture_t *f, uint64_t ms)
{
    for (uint64_t t = 0; t < ms; t += 500) {
        rig_sleep(&f->rig, 500);
        for (unsigned i = 0; rig_step(&f->rig, 1) > 0; i++) {
            assert_true(i < STEPS_MAX);
        }
    }
}

static const ldr_counters_t *counted(const fixture_t *f)
{
    return &f->rig.node->store.n;
}

/* Whether the tier has it, as a load would find it. */
static bool is_there(fixture_t *f, name_t name)
{
    larder_key_t key = test_key(name.key);
    ldr_place_t place;

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
static void test_untold(void **state)
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
        cmocka_unit_test_setup_teardown(test_untold, setup, teardown),
    };

    return cmocka_run_group_tests_name("shared/epochs", tests, NULL, NULL);
}
