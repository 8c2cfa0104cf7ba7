/*
 * The SSD tier when it is full, shrinks, fails and comes back.
 */
#include <errno.h>
#include <sys/resource.h>

#include "tier/ssd/disk_rig.h"

#define SEGMENT_BYTES ((uint64_t)128 * LDR_BLOCK)
#define SEGMENTS 6u
#define KEYS 700u

static void never_over(void *arg, simdisk_t *disk)
{
    const fixture_t *f = arg;

    require(simdisk_used(disk) <= f->limit, "%llu bytes of %llu",
            (unsigned long long)simdisk_used(disk),
            (unsigned long long)f->limit);
}

static int setup(void **state)
{
    fixture_t *f = fixture_make(state, SEGMENTS, SEGMENT_BYTES);

    history_init(&f->history, KEYS);
    simdisk_on_op(f->disk, never_over, f);
    return fixture_open(f);
}

static void reopen(fixture_t *f)
{
    rig_close(&f->rig);
    assert_int_equal(rig_open(&f->rig), LARDER_OK);
}

static larder_disk_stats_t stats(fixture_t *f, unsigned disk)
{
    larder_stats_t s = {.struct_bytes = sizeof(s)};

    assert_int_equal(larder_stats(f->rig.lar, &s), LARDER_OK);
    return s.disk[disk];
}

static name_t name_at(uint32_t key)
{
    return (name_t){0, 0, key};
}

/* Puts keys in [from, to) and flushes now and then. Their chains are broken
 * up, so that nothing depends on a parent. */
static void put_range(fixture_t *f, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++) {
        history_put(&f->history, &f->rig, name_at(i));
        if (i % 4 == 3) {
            history_flush(&f->history, &f->rig);
        }
    }
    history_flush(&f->history, &f->rig);
}

/* ---- full ---- */

static void test_bounded(void **state)
{
    fixture_t *f = *state;

    put_range(f, 0, KEYS);
    larder_disk_stats_t s = stats(f, 0);
    assert_true(s.written_bytes > 4 * f->rig.options.ssd);
    assert_int_equal(s.segments, SEGMENTS);
    assert_true(simdisk_used(f->disk) <= f->limit);
    assert_int_equal(s.segments_lost, 0);
    uint32_t hits = history_verify(&f->history, &f->rig, NULL);
    assert_true(hits > 20);
    reopen(f);
    assert_true(history_verify(&f->history, &f->rig, NULL) > 20);
}

enum { MANY = 40, FILES = 48 };

static int setup_many(void **state)
{
    fixture_t *f = fixture_make(state, MANY, SEGMENT_BYTES);

    history_init(&f->history, KEYS);
    return fixture_open(f);
}

/* Opened again where fewer files may be: it says so and leaves them be, until
 * there may be more. */
static void test_fewer_files(void **state)
{
    fixture_t *f = *state;
    struct rlimit all, few;

    put_range(f, 0, KEYS);
    assert_int_equal(stats(f, 0).segments, MANY);
    rig_close(&f->rig);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &all), 0);
    few = all;
    few.rlim_cur = FILES;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    larder_status_t st = rig_open(&f->rig);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &all), 0);
    assert_int_equal(st, LARDER_OK);
    assert_false(stats(f, 0).on);
    assert_non_null(strstr(stats(f, 0).reason, "ulimit -n"));
    reopen(f);
    assert_true(stats(f, 0).on);
    assert_true(history_verify(&f->history, &f->rig, NULL) > 20);
}

/* What is used again and again stays, and costs no more than its quarter. */
static void test_carries_what_is_used(void **state)
{
    fixture_t *f = *state;
    const uint32_t used = 5;

    put_range(f, 0, used);
    for (uint32_t i = used; i < KEYS; i += 4) {
        put_range(f, i, i + 4);
        rig_sleep(&f->rig, 1000);
        for (uint32_t k = 0; k < used; k++) {
            assert_true(history_get(&f->history, &f->rig, name_at(k)));
        }
    }
    larder_disk_stats_t s = stats(f, 0);
    assert_true(s.written_bytes > 4 * f->rig.options.ssd);
    assert_true(s.carried_bytes > 0);
    assert_true(s.carried_bytes <=
                (s.written_bytes + s.carried_bytes) / 4 + SEGMENT_BYTES);
    /* From disk, not from memory. */
    reopen(f);
    for (uint32_t k = 0; k < used; k++) {
        assert_true(history_get(&f->history, &f->rig, name_at(k)));
    }
}

/* All of it is used: no more than a quarter of each segment is carried. */
static void test_carries_a_quarter(void **state)
{
    fixture_t *f = *state;

    for (uint32_t i = 0; i < 300; i += 4) {
        put_range(f, i, i + 4);
        rig_sleep(&f->rig, 1000);
        history_verify(&f->history, &f->rig, NULL);
    }
    larder_disk_stats_t s = stats(f, 0);
    uint64_t all = s.written_bytes + s.carried_bytes;
    assert_true(s.written_bytes > 2 * f->rig.options.ssd);
    assert_true(s.carried_bytes > all / 10);
    assert_true(s.carried_bytes <= all / 4 + SEGMENT_BYTES);
}

static void test_nothing_carried_unused(void **state)
{
    fixture_t *f = *state;

    put_range(f, 0, KEYS);
    assert_int_equal(stats(f, 0).carried_bytes, 0);
}

/* Removed once, gone for ever: whatever is reclaimed before and after. */
static void test_removed_stays_removed(void **state)
{
    fixture_t *f = *state;

    for (uint32_t round = 0; round < 12; round++) {
        uint32_t from = round * 30;

        put_range(f, from, from + 30);
        for (uint32_t i = 0; i < 20; i += 2) {
            larder_status_t st =
                history_remove(&f->history, &f->rig, name_at(from + i));
            assert_true(st == LARDER_OK || st == LARDER_MISS);
        }
        if (round % 3 == 2) {
            reopen(f);
        }
        history_verify(&f->history, &f->rig, NULL);
    }
}

/* Puts keys from *next on until the segment has been closed, or used again. */
static void put_until_past(fixture_t *f, uint32_t segment, uint32_t *next)
{
    const ldr_segment_t *s = &disks_of(f->rig.node)[0].disk.segments[segment];
    uint64_t sequence = s->sequence;
    bool closed = s->state == LDR_SEGMENT_CLOSED;

    while (closed ? s->sequence == sequence : s->state == LDR_SEGMENT_OPEN) {
        put_range(f, *next, *next + 1);
        ++*next;
        assert_true(*next < KEYS);
    }
}

/* A tombstone that is carried past a later put of its key leaves that alone,
 * and still cancels the earlier one. It is carried because the segment before
 * is being read. */
static void test_carried_tombstone(void **state)
{
    fixture_t *f = *state;
    ldr_disk_t *d = &disks_of(f->rig.node)[0].disk;
    uint32_t next = 2;

    put_range(f, 0, 2);
    uint32_t first = ldr_loc_segment(rig_loc(&f->rig, name_at(0)));
    put_until_past(f, first, &next);
    d->segments[first].readers++;
    history_remove(&f->history, &f->rig, name_at(0));
    history_remove(&f->history, &f->rig, name_at(1));
    uint32_t second = d->filling[disks_of(f->rig.node)[0].current].segment;
    assert_int_not_equal(first, second);
    put_until_past(f, second, &next);
    put_range(f, 0, 1);
    assert_int_not_equal(ldr_loc_segment(rig_loc(&f->rig, name_at(0))), second);
    put_until_past(f, second, &next);
    assert_true(stats(f, 0).carried_bytes >= 2 * LDR_BLOCK);
    assert_true(rig_loc(&f->rig, name_at(0)) != 0);
    /* As if it were killed now. */
    simdisk_t *copy = simdisk_clone(f->disk);
    rig_t rig;
    rig_init(&rig, copy, 8, SEGMENTS, SEGMENT_BYTES);
    assert_int_equal(rig_open(&rig), LARDER_OK);
    assert_true(history_get(&f->history, &rig, name_at(0)));
    assert_false(history_get(&f->history, &rig, name_at(1)));
    rig_close(&rig);
    rig_free(&rig);
    simdisk_destroy(copy);
    d->segments[first].readers--;
}

static void test_smaller_at_reopen(void **state)
{
    fixture_t *f = *state;

    put_range(f, 0, 200);
    f->rig.options.ssd = rig_ssd(4, SEGMENT_BYTES);
    reopen(f);
    rig_step(&f->rig, 1000);
    assert_true(simdisk_used(f->disk) <= f->rig.options.ssd);
    assert_int_equal(stats(f, 0).segments, 4);
    assert_true(history_verify(&f->history, &f->rig, NULL) > 10);
    f->limit = f->rig.options.ssd;
    put_range(f, 200, 300);
    reopen(f);
    assert_true(history_verify(&f->history, &f->rig, NULL) > 10);
}

/* ---- failing ---- */

/* One failed write or sync costs a segment, and nothing else. */
static void one_failure(fixture_t *f, simdisk_kind_t kind)
{
    put_range(f, 0, 40);
    simdisk_fail(f->disk, kind, 1, 1, -EIO);
    history_put(&f->history, &f->rig, name_at(40));
    assert_int_equal(larder_flush(f->rig.lar, LARDER_TIER_SSD, 0),
                     LARDER_E_DROPPED);
    larder_disk_stats_t s = stats(f, 0);
    assert_true(s.on);
    assert_int_equal(s.segments_lost, 1);
    assert_int_equal(s.write_errors, 1);
    /* It serves, and takes what comes next. */
    assert_true(history_get(&f->history, &f->rig, name_at(40)));
    put_range(f, 41, KEYS);
    assert_true(rig_loc(&f->rig, name_at(KEYS - 1)) != 0);
    assert_int_equal(stats(f, 0).segments, SEGMENTS);
    reopen(f);
    assert_true(history_verify(&f->history, &f->rig, NULL) > 20);
}

static void test_failed_write(void **state)
{
    one_failure(*state, SIMDISK_WRITE);
}

static void test_failed_sync(void **state)
{
    one_failure(*state, SIMDISK_SYNC);
}

/* A sync that nobody waited for fails: the next flush says what it cost. */
static void test_failed_sync_unasked(void **state)
{
    fixture_t *f = *state;

    put_range(f, 0, 10);
    history_put(&f->history, &f->rig, name_at(10));
    rig_step(&f->rig, 1000);
    assert_true(rig_loc(&f->rig, name_at(10)) != 0);
    simdisk_fail(f->disk, SIMDISK_SYNC, 1, 1, -EIO);
    rig_sleep(&f->rig, f->rig.options.sync_ms + 1);
    rig_step(&f->rig, 1000);
    assert_int_equal(stats(f, 0).segments_lost, 1);
    assert_true(rig_loc(&f->rig, name_at(10)) == 0);
    assert_int_equal(larder_flush(f->rig.lar, LARDER_TIER_SSD, 0),
                     LARDER_E_DROPPED);
    assert_int_equal(larder_flush(f->rig.lar, LARDER_TIER_SSD, 0), LARDER_OK);
    assert_true(history_get(&f->history, &f->rig, name_at(10)));
}

/* Full, off, and on again: never more files than before. */
static void test_off_and_on_full(void **state)
{
    fixture_t *f = *state;

    put_range(f, 0, 200);
    for (uint32_t round = 1; round < 4; round++) {
        simdisk_fail(f->disk, round % 2 ? SIMDISK_WRITE : SIMDISK_SYNC, 1, 0,
                     -EIO);
        put_range(f, 200 * round, 200 * round + 20);
        assert_false(stats(f, 0).on);
        simdisk_fail_none(f->disk);
        rig_sleep(&f->rig, f->rig.options.retry_ms + 1);
        rig_step(&f->rig, 1000);
        assert_true(stats(f, 0).on);
        put_range(f, 200 * round + 20, 200 * round + 90);
        rig_step(&f->rig, 1000);
        assert_int_equal(stats(f, 0).segments, SEGMENTS);
    }
    history_verify(&f->history, &f->rig, NULL);
}

/* One file that takes no writes costs that file, until the next open. */
static void one_bad_file(fixture_t *f, simdisk_kind_t kind, int error)
{
    put_range(f, 0, 100);
    assert_int_equal(stats(f, 0).segments, SEGMENTS);
    simdisk_fail_file(f->disk, kind, "/ssd/segment-000000", error);
    for (uint32_t i = 100; i < 400; i++) {
        history_put(&f->history, &f->rig, name_at(i));
        history_flush(&f->history, &f->rig);
        assert_true(stats(f, 0).on);
    }
    larder_disk_stats_t s = stats(f, 0);
    assert_true(simdisk_failed(f->disk, kind) > 1);
    assert_int_equal(s.segments, SEGMENTS - 1);
    assert_true(s.segments_lost <= 1); /* it may have been that one's turn */
    assert_non_null(strstr(s.reason, "took no writes: using 5 of 6"));
    assert_true(rig_loc(&f->rig, name_at(399)) != 0);
}

static void test_bad_file_written(void **state)
{
    fixture_t *f = *state;

    one_bad_file(f, SIMDISK_WRITE, -EIO);
    /* Another file in its place is no better. */
    reopen(f);
    put_range(f, 400, 600);
    assert_true(stats(f, 0).on);
    assert_int_equal(stats(f, 0).segments, SEGMENTS - 1);
    simdisk_fail_none(f->disk);
    reopen(f);
    put_range(f, 600, KEYS);
    assert_int_equal(stats(f, 0).segments, SEGMENTS);
    assert_string_equal(stats(f, 0).reason, "");
    assert_true(history_verify(&f->history, &f->rig, NULL) > 20);
}

static void test_bad_file_allocated(void **state)
{
    fixture_t *f = *state;

    one_bad_file(f, SIMDISK_ALLOCATE, -EUCLEAN);
    simdisk_fail_none(f->disk);
    reopen(f);
    assert_true(history_verify(&f->history, &f->rig, NULL) > 20);
}

static void test_off_and_on(void **state)
{
    fixture_t *f = *state;

    put_range(f, 0, 30);
    simdisk_fail(f->disk, SIMDISK_WRITE, 1, 0, -EIO);
    for (uint32_t i = 30; i < 40; i++) {
        history_put(&f->history, &f->rig, name_at(i));
        larder_flush(f->rig.lar, LARDER_TIER_SSD, 0);
    }
    assert_false(stats(f, 0).on);
    assert_false(f->rig.node->store.queues[LDR_SSD_QUEUE].takes);
    assert_string_not_equal(stats(f, 0).reason, "");
    assert_int_equal(larder_flush(f->rig.lar, LARDER_TIER_SSD, 0),
                     LARDER_E_TIER_OFF);
    /* What is in DRAM is served; what is only on disk says why not. */
    assert_true(history_get(&f->history, &f->rig, name_at(39)));
    uint32_t off = 0;
    for (uint32_t i = 0; i < 30; i++) {
        off += !history_get(&f->history, &f->rig, name_at(i)) &&
               f->rig.cause == LARDER_CAUSE_TIER_OFF;
    }
    assert_true(off > 0);
    assert_int_equal(history_remove(&f->history, &f->rig, name_at(1)),
                     LARDER_E_TIER_OFF);
    /* Still failing: it stays off. */
    rig_sleep(&f->rig, f->rig.options.retry_ms + 1);
    rig_step(&f->rig, 100);
    assert_false(stats(f, 0).on);
    /* Too early, then in time. */
    simdisk_fail_none(f->disk);
    rig_step(&f->rig, 100);
    assert_false(stats(f, 0).on);
    rig_sleep(&f->rig, f->rig.options.retry_ms + 1);
    rig_step(&f->rig, 100);
    assert_true(stats(f, 0).on);
    assert_string_equal(stats(f, 0).reason, "");
    put_range(f, 41, 60);
    assert_true(f->rig.node->store.queues[LDR_SSD_QUEUE].takes);
    assert_true(rig_loc(&f->rig, name_at(59)) != 0);
    reopen(f);
    history_verify(&f->history, &f->rig, NULL);
}

static void test_starts_off(void **state)
{
    fixture_t *f = *state;

    put_range(f, 0, 30);
    rig_close(&f->rig);
    simdisk_fail(f->disk, SIMDISK_OPEN, 1, 0, -EIO);
    assert_int_equal(rig_open(&f->rig), LARDER_OK);
    assert_false(stats(f, 0).on);
    history_put(&f->history, &f->rig, name_at(200));
    assert_true(history_get(&f->history, &f->rig, name_at(200)));
    /* A reset that it could not record counts all the same. */
    assert_int_equal(larder_space_reset(f->rig.spaces[0], 0), LARDER_E_IO);
    for (uint32_t i = 0; i < f->history.size; i++) {
        f->history.past[i].floor = f->history.past[i].top;
    }
    simdisk_fail_none(f->disk);
    rig_sleep(&f->rig, f->rig.options.retry_ms + 1);
    rig_step(&f->rig, 100);
    assert_true(stats(f, 0).on);
    assert_int_equal(history_verify(&f->history, &f->rig, NULL), 0);
    put_range(f, 210, 220);
    reopen(f);
    assert_int_equal(history_verify(&f->history, &f->rig, NULL), 10);
}

static void test_disk_full(void **state)
{
    fixture_t *f = *state;

    /* Three segments fit: the tier is smaller than configured. */
    simdisk_set_capacity(f->disk, rig_ssd(3, SEGMENT_BYTES) + 1000);
    put_range(f, 0, 100);
    larder_disk_stats_t s = stats(f, 0);
    assert_true(s.on);
    assert_int_equal(s.segments, 3);
    assert_non_null(strstr(s.reason, "full"));
    assert_true(history_verify(&f->history, &f->rig, NULL) > 5);
    /* Space comes back: it grows, once it looks again. */
    simdisk_set_capacity(f->disk, UINT64_MAX);
    put_range(f, 100, 104);
    rig_sleep(&f->rig, f->rig.options.retry_ms + 1);
    put_range(f, 104, 300);
    s = stats(f, 0);
    assert_int_equal(s.segments, SEGMENTS);
    assert_string_equal(s.reason, "");
    reopen(f);
    history_verify(&f->history, &f->rig, NULL);
}

/* One segment fits: it is used round and round, can be read all the time, and
 * a restart keeps it. */
static void test_room_for_one(void **state)
{
    fixture_t *f = *state;
    bool must[KEYS * RIG_SPACES * 2] = {false};

    simdisk_set_capacity(f->disk, rig_ssd(1, SEGMENT_BYTES) + 1000);
    put_range(f, 0, 4);
    reopen(f);
    for (uint32_t i = 0; i < 4; i++) {
        must[history_at(&f->history, name_at(i))] = true;
    }
    rig_step(&f->rig, 1000);
    assert_int_equal(history_verify(&f->history, &f->rig, must), 4);
    larder_disk_stats_t s = stats(f, 0);
    assert_true(s.on);
    assert_non_null(strstr(s.reason, "disk full: using 1 of"));
    put_range(f, 4, 102);
    assert_true(rig_loc(&f->rig, name_at(101)) != 0);
    assert_int_equal(history_remove(&f->history, &f->rig, name_at(101)),
                     LARDER_OK);
    s = stats(f, 0);
    assert_true(s.on && s.written_bytes > 4 * SEGMENT_BYTES);
    assert_int_equal(s.segments, 1);
    assert_int_equal(s.segments_lost, 0);
    reopen(f);
    assert_false(history_get(&f->history, &f->rig, name_at(101)));
    assert_true(history_verify(&f->history, &f->rig, NULL) > 0);
    /* Space comes back. */
    simdisk_set_capacity(f->disk, UINT64_MAX);
    rig_sleep(&f->rig, f->rig.options.retry_ms + 1);
    put_range(f, 102, 300);
    assert_int_equal(stats(f, 0).segments, SEGMENTS);
    assert_string_equal(stats(f, 0).reason, "");
}

/* More removals than the ledger has room for, where there is one segment. */
static void test_room_for_one_and_many_removals(void **state)
{
    fixture_t *f = *state;

    simdisk_set_capacity(f->disk, rig_ssd(1, SEGMENT_BYTES) + 1000);
    put_range(f, 0, 4);
    for (uint32_t i = 0; i < 1000; i++) {
        larder_status_t st = rig_remove(&f->rig, name_at(10000 + i));

        assert_int_equal(st, LARDER_MISS);
    }
    assert_true(stats(f, 0).on);
    put_range(f, 4, 8);
    assert_int_equal(history_remove(&f->history, &f->rig, name_at(7)),
                     LARDER_OK);
    reopen(f);
    history_verify(&f->history, &f->rig, NULL);
}

static void test_no_space_at_all(void **state)
{
    fixture_t *f = *state;

    simdisk_set_capacity(f->disk, rig_ssd(0, SEGMENT_BYTES) + 1000);
    history_put(&f->history, &f->rig, name_at(0));
    larder_flush(f->rig.lar, LARDER_TIER_SSD, 0);
    assert_false(stats(f, 0).on);
    assert_true(history_get(&f->history, &f->rig, name_at(0)));
    rig_sleep(&f->rig, f->rig.options.retry_ms + 1);
    rig_step(&f->rig, 100);
    assert_false(stats(f, 0).on);
    simdisk_set_capacity(f->disk, UINT64_MAX);
    rig_sleep(&f->rig, f->rig.options.retry_ms + 1);
    rig_step(&f->rig, 100);
    assert_true(stats(f, 0).on);
    put_range(f, 1, 20);
    assert_true(rig_loc(&f->rig, name_at(19)) != 0);
}

/* ---- several directories, several nodes ---- */

static void two_disks(fixture_t *f)
{
    rig_close(&f->rig);
    snprintf(f->rig.options.dirs[1], LDR_PATH_MAX, "/other");
    f->rig.options.dir_count = 2;
    f->limit *= 2;
    assert_int_equal(rig_open(&f->rig), LARDER_OK);
}

static void test_one_of_two_fails(void **state)
{
    fixture_t *f = *state;

    two_disks(f);
    for (uint32_t i = 0; i < 40; i++) {
        history_put(&f->history, &f->rig, name_at(i));
        rig_step_disk(&f->rig, i % 2, 1000);
        assert_int_equal(ldr_loc_disk(rig_loc(&f->rig, name_at(i))), i % 2);
    }
    ldr_node_lock(f->rig.node);
    ldr_ssd_off(&disks_of(f->rig.node)[0], "a test", -EIO);
    ldr_node_unlock(f->rig.node);
    assert_false(stats(f, 0).on);
    assert_true(stats(f, 1).on);
    /* What the one that went off had not synced has not arrived. */
    assert_int_equal(larder_flush(f->rig.lar, LARDER_TIER_SSD, 0),
                     LARDER_E_DROPPED);
    for (uint32_t i = 1; i < 40; i += 2) {
        assert_true(history_get(&f->history, &f->rig, name_at(i)));
    }
    put_range(f, 40, 60);
    assert_int_equal(ldr_loc_disk(rig_loc(&f->rig, name_at(59))), 1);
    rig_sleep(&f->rig, f->rig.options.retry_ms + 1);
    rig_step(&f->rig, 1000);
    assert_true(stats(f, 0).on);
}

/* A key is removed and put again, on another disk than before: each disk's
 * tombstone speaks for that disk alone. */
static void test_removed_on_one_disk(void **state)
{
    fixture_t *f = *state;

    two_disks(f);
    for (unsigned disk = 0; disk < 2; disk++) {
        for (uint32_t i = 0; i < 8; i++) {
            history_put(&f->history, &f->rig, name_at(i));
            rig_step_disk(&f->rig, disk, 1000);
            history_remove(&f->history, &f->rig, name_at(i));
            history_put(&f->history, &f->rig, name_at(i));
            rig_step_disk(&f->rig, (disk + i) % 2, 1000);
        }
        history_flush(&f->history, &f->rig);
        reopen(f);
        for (uint32_t i = 0; i < 8; i++) {
            assert_true(history_get(&f->history, &f->rig, name_at(i)));
            history_remove(&f->history, &f->rig, name_at(i));
        }
        reopen(f);
        assert_int_equal(history_verify(&f->history, &f->rig, NULL), 0);
    }
}

static void test_locked(void **state)
{
    fixture_t *f = *state;
    rig_t second;

    rig_init(&second, f->disk, 8, SEGMENTS, SEGMENT_BYTES);
    assert_int_equal(rig_open(&second), LARDER_E_LOCKED);
    assert_non_null(strstr(larder_last_error(), "/ssd"));
    /* Nothing of the first was touched. */
    put_range(f, 0, 20);
    assert_true(history_get(&f->history, &f->rig, name_at(19)));
    rig_close(&f->rig);
    assert_int_equal(rig_open(&second), LARDER_OK);
    assert_true(history_verify(&f->history, &second, NULL) > 10);
    rig_close(&second);
    rig_free(&second);
    assert_int_equal(rig_open(&f->rig), LARDER_OK);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_bounded),
        cmocka_unit_test_setup_teardown(test_fewer_files, setup_many, teardown),
        TEST(test_carries_what_is_used),
        TEST(test_carries_a_quarter),
        TEST(test_nothing_carried_unused),
        TEST(test_removed_stays_removed),
        TEST(test_carried_tombstone),
        TEST(test_smaller_at_reopen),
        TEST(test_failed_write),
        TEST(test_failed_sync),
        TEST(test_failed_sync_unasked),
        TEST(test_bad_file_written),
        TEST(test_bad_file_allocated),
        TEST(test_off_and_on),
        TEST(test_off_and_on_full),
        TEST(test_starts_off),
        TEST(test_disk_full),
        TEST(test_room_for_one),
        TEST(test_room_for_one_and_many_removals),
        TEST(test_no_space_at_all),
        TEST(test_one_of_two_fails),
        TEST(test_removed_on_one_disk),
        TEST(test_locked),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
