/*
 * Resets that a disk hears of late, because it could not be opened, or not be
 * written to: what was dropped stays dropped, whatever the disk says of the
 * space's epoch.
 */
#include <errno.h>

#include "tier/ssd/disk_rig.h"
#include "node/handover.h"

static const name_t mine = {0, 0, 1}, later = {0, 0, 2}, kept = {1, 0, 1};

static int setup(void **state)
{
    fixture_t *f = fixture_make(state, 8, 256 * LDR_BLOCK);

    f->rig.options.dram = 8 << 20;
    return fixture_open(f);
}

/* Saves it, and sees it on disk. */
static void save(fixture_t *f, name_t name)
{
    assert_int_equal(rig_put(&f->rig, name, 1), LARDER_OK);
    rig_step(&f->rig, 1000);
    assert_int_not_equal(rig_loc(&f->rig, name), 0);
}

static void close_and_open(fixture_t *f)
{
    assert_int_equal(rig_close(&f->rig), LARDER_OK);
    assert_int_equal(rig_open(&f->rig), LARDER_OK);
}

/* The next node starts without its disk. */
static void open_without(fixture_t *f)
{
    assert_int_equal(rig_close(&f->rig), LARDER_OK);
    simdisk_fail(f->disk, SIMDISK_OPEN, 1, 0, -EIO);
    assert_int_equal(rig_open(&f->rig), LARDER_OK);
    assert_false(disks_of(f->rig.node)[0].opened);
}

static void disk_comes(fixture_t *f)
{
    simdisk_fail_none(f->disk);
    rig_sleep(&f->rig, f->rig.options.retry_ms);
    rig_step(&f->rig, 1000);
    assert_true(disks_of(f->rig.node)[0].on);
}

/* A space that was reset so often is reset once more while its disk is away. */
static void reset_without(fixture_t *f, unsigned before)
{
    for (unsigned i = 0; i < before; i++) {
        assert_int_equal(larder_space_reset(f->rig.spaces[0], 0), LARDER_OK);
    }
    save(f, mine);
    save(f, kept);
    open_without(f);
    assert_int_equal(larder_space_reset(f->rig.spaces[0], 0), LARDER_E_IO);
    disk_comes(f);
    assert_false(rig_exists(&f->rig, mine));
    assert_true(rig_exists(&f->rig, kept));
    save(f, later);
    close_and_open(f);
    assert_false(rig_exists(&f->rig, mine));
    assert_true(rig_exists(&f->rig, later));
    assert_true(rig_exists(&f->rig, kept));
}

static void test_more_before(void **state)
{
    reset_without(*state, 5);
}

static void test_as_many_before(void **state)
{
    reset_without(*state, 1);
}

/* What was saved after the reset stays, where the disk has nothing against
 * it. */
static void test_saved_since(void **state)
{
    fixture_t *f = *state;

    save(f, mine);
    open_without(f);
    assert_int_equal(larder_space_reset(f->rig.spaces[0], 0), LARDER_E_IO);
    assert_int_equal(rig_put(&f->rig, later, 1), LARDER_OK);
    disk_comes(f);
    assert_false(rig_exists(&f->rig, mine));
    assert_true(rig_exists(&f->rig, later));
    close_and_open(f);
    assert_false(rig_exists(&f->rig, mine));
    assert_true(rig_exists(&f->rig, later));
}

/* The next reset finds the disk, and what it counts from. */
static void test_reset_after(void **state)
{
    fixture_t *f = *state;

    assert_int_equal(larder_space_reset(f->rig.spaces[0], 0), LARDER_OK);
    save(f, mine);
    open_without(f);
    assert_int_equal(larder_space_reset(f->rig.spaces[0], 0), LARDER_E_IO);
    disk_comes(f);
    assert_int_equal(f->rig.node->store.spaces[f->rig.spaces[0]->number].above,
                     0);
    save(f, later);
    assert_int_equal(larder_space_reset(f->rig.spaces[0], 0), LARDER_OK);
    assert_false(rig_exists(&f->rig, later));
    close_and_open(f);
    assert_false(rig_exists(&f->rig, mine));
    assert_false(rig_exists(&f->rig, later));
}

/* A disk that can be read, and whose superblock is written but not synced: at
 * the next try it has the node's own epoch. What was saved meanwhile stays. */
static void test_comes_in_tries(void **state)
{
    fixture_t *f = *state;
    const ldr_space_t *space;

    assert_int_equal(larder_space_reset(f->rig.spaces[0], 0), LARDER_OK);
    save(f, mine);
    open_without(f);
    assert_int_equal(larder_space_reset(f->rig.spaces[0], 0), LARDER_E_IO);
    simdisk_fail_none(f->disk);
    simdisk_fail(f->disk, SIMDISK_SYNC, 1, 0, -EIO);
    space = &f->rig.node->store.spaces[f->rig.spaces[0]->number];
    for (unsigned i = 0; i < 4; i++) {
        rig_sleep(&f->rig, f->rig.options.retry_ms);
        rig_step(&f->rig, 1000);
        assert_false(disks_of(f->rig.node)[0].on);
        assert_true(i == 0 || rig_exists(&f->rig, later));
        assert_int_equal(space->epoch, 2);
        if (i == 0) {
            assert_int_equal(rig_put(&f->rig, later, 1), LARDER_OK);
        }
    }
    disk_comes(f);
    assert_false(rig_exists(&f->rig, mine));
    assert_true(rig_exists(&f->rig, later));
}

/* Hands the node's memory over to the next. */
static void take_over(fixture_t *f, ldr_handover_t *h)
{
    ldr_handover_make(f->rig.node, h);
    assert_non_null(h->list.base);
    rig_close(&f->rig);
    f->rig.handover = h;
    simdisk_fail_none(f->disk);
    assert_int_equal(rig_open(&f->rig), LARDER_OK);
    assert_true(disks_of(f->rig.node)[0].on);
    f->rig.handover = NULL;
    ldr_handover_free(h);
}

/* A reset that only the daemon before knew of is on the disk once another has
 * taken over from it. */
static void test_takeover_records(void **state)
{
    fixture_t *f = *state;
    ldr_handover_t h = {0};

    save(f, mine);
    simdisk_fail(f->disk, SIMDISK_WRITE, 1, 0, -EIO);
    assert_int_equal(larder_space_reset(f->rig.spaces[0], 0), LARDER_E_IO);
    take_over(f, &h);
    assert_false(rig_exists(&f->rig, mine));
    close_and_open(f);
    assert_false(rig_exists(&f->rig, mine));
}

/* ... nor does it come back if that one never saw the disk. */
static void test_takeover_without(void **state)
{
    fixture_t *f = *state;
    ldr_handover_t h = {0};

    assert_int_equal(larder_space_reset(f->rig.spaces[0], 0), LARDER_OK);
    save(f, mine);
    open_without(f);
    assert_int_equal(larder_space_reset(f->rig.spaces[0], 0), LARDER_E_IO);
    take_over(f, &h);
    assert_false(rig_exists(&f->rig, mine));
    close_and_open(f);
    assert_false(rig_exists(&f->rig, mine));
}

/* ---- taken over in the middle ---- */

/* What the next node takes over once its disk has answered so often, and then
 * written so often. */
typedef struct middle {
    fixture_t *f;
    ldr_handover_t handover;
    bool (*answered)(void *arg);
    unsigned after, seen;
    bool used;
} middle_t;

static void in_the_middle(middle_t *m)
{
    if (!m->used && m->seen++ == m->after) {
        m->used = true;
        ldr_handover_use(m->f->rig.node, &m->handover);
    }
}

static bool middle_answered(void *arg)
{
    middle_t *m = arg;

    in_the_middle(m);
    return m->answered(&disks_of(m->f->rig.node)[0]);
}

static void middle_wrote(void *arg, simdisk_t *disk)
{
    (void)disk;
    in_the_middle(arg);
}

/* The reset is of a node that never saw the disk; the next has read so much of
 * it when it hears. Whether there was as much to read. */
static bool take_over_after(middle_t *m, bool unsynced)
{
    fixture_t *f = m->f;
    ldr_ssd_t *ssd;

    assert_int_equal(larder_space_reset(f->rig.spaces[0], 0), LARDER_OK);
    save(f, mine);
    close_and_open(f);
    save(f, kept);
    open_without(f);
    assert_int_equal(larder_space_reset(f->rig.spaces[0], 0), LARDER_E_IO);
    ldr_handover_make(f->rig.node, &m->handover);
    assert_non_null(m->handover.list.base);
    open_without(f);
    ssd = &disks_of(f->rig.node)[0];
    m->answered = ssd->params.answered;
    ssd->params.answered = middle_answered;
    ssd->params.arg = m;
    simdisk_fail_none(f->disk);
    assert_true(simdisk_flip(f->disk, "/ssd/larder.super", 999));
    if (unsynced) { /* all is read, but the superblock cannot be repaired */
        simdisk_fail(f->disk, SIMDISK_SYNC, 1, 1, -EIO);
    }
    simdisk_on_op(f->disk, middle_wrote, m);
    rig_sleep(&f->rig, f->rig.options.retry_ms);
    rig_step(&f->rig, 1);
    simdisk_on_op(f->disk, NULL, NULL);
    assert_int_not_equal(ssd->on, unsynced);
    ssd->params.answered = m->answered;
    ssd->params.arg = ssd;
    bool used = m->used;
    if (unsynced && !used) {
        m->seen = m->after;
        in_the_middle(m); /* between two tries */
    }
    disk_comes(f);
    assert_true(!m->used || !rig_exists(&f->rig, mine));
    assert_true(rig_exists(&f->rig, kept));
    close_and_open(f);
    assert_true(!m->used || !rig_exists(&f->rig, mine));
    return used;
}

/* A takeover at every step of a disk that is being opened: the reset holds. */
static void test_takeover_amid(void **state)
{
    (void)state;
    for (unsigned unsynced = 0; unsynced < 2; unsynced++) {
        middle_t m = {0};
        bool used = true;

        for (unsigned after = 0; used; after++) {
            void *one;

            setup(&one);
            m = (middle_t){.f = one, .after = after};
            used = take_over_after(&m, unsynced != 0);
            ldr_handover_free(&m.handover);
            teardown(&one);
        }
        assert_true(m.after > 8);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_more_before, setup, teardown),
        cmocka_unit_test_setup_teardown(test_as_many_before, setup, teardown),
        cmocka_unit_test_setup_teardown(test_saved_since, setup, teardown),
        cmocka_unit_test_setup_teardown(test_reset_after, setup, teardown),
        cmocka_unit_test_setup_teardown(test_comes_in_tries, setup, teardown),
        cmocka_unit_test_setup_teardown(test_takeover_records, setup, teardown),
        cmocka_unit_test_setup_teardown(test_takeover_without, setup, teardown),
        cmocka_unit_test(test_takeover_amid),
    };

    return cmocka_run_group_tests_name("node/resets_late", tests, NULL, NULL);
}
