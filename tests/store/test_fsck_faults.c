/* fsck on a disk that fails, and on one whose power goes while it repairs. */
#include "store/fsck_rig.h"

/* Reads that fail, one after the other: never a crash, always a finding, and
 * nothing is taken for repaired that is not. */
static void test_read_errors(void **state)
{
    uint64_t nth = 1;
    unsigned headers = 0;
    bool failed;

    (void)state;
    do {
        simdisk_t *sim = directory(true);

        simdisk_fail(sim, SIMDISK_READ, nth++, 1, -EIO);
        seen_t seen = run(sim, true);
        failed = simdisk_failed(sim, SIMDISK_READ) > 0;
        assert_int_equal(seen.status, LARDER_OK);
        assert_int_equal(seen.report.damage, failed ? 1 : 0);
        /* The next read of a header may succeed: it is left alone. */
        bool left = failed && seen.findings[0].segment != LDR_NIL &&
                    seen.findings[0].block == 0;
        assert_int_equal(seen.report.repaired, left ? 0 : seen.report.damage);
        headers += left;
        simdisk_fail_none(sim);
        assert_clean(sim);
        simdisk_destroy(sim);
    } while (failed);
    assert_true(nth > SEGMENTS * ROWS);
    assert_int_equal(headers, SEGMENTS);
}

static simdisk_t *damaged(bool *gone)
{
    simdisk_t *sim = directory(false);

    flip(sim, "d/larder.super", 100);
    flip(sim, segment_path(0), (uint64_t)row_block(1) * LDR_BLOCK);
    flip(sim, segment_path(0), (uint64_t)row_block(TOMB) * LDR_BLOCK + 50);
    flip(sim, segment_path(1), 20);
    memset(gone, 0, 256);
    gone[key_byte(0, 1)] = true;
    for (uint32_t row = 0; row < ROWS; row++) {
        gone[key_byte(1, row)] = row != TOMB; /* the ledger has it */
    }
    return sim;
}

static void test_write_errors(void **state)
{
    static const simdisk_kind_t kinds[] = {SIMDISK_WRITE, SIMDISK_SYNC};
    bool gone[256];

    (void)state;
    for (unsigned k = 0; k < 2; k++) {
        for (uint64_t nth = 1; nth <= 5; nth++) {
            simdisk_t *sim = damaged(gone);

            simdisk_fail(sim, kinds[k], nth, 1, -EIO);
            seen_t seen = run(sim, true);
            assert_int_equal(seen.status, LARDER_OK);
            assert_int_equal(simdisk_failed(sim, kinds[k]), 1);
            assert_true(seen.report.damage >= 4); /* and what failed */
            /* The fifth is that of the table which is only a note. */
            assert_true(seen.report.repaired < seen.report.damage);
            simdisk_fail_none(sim);
            seen = run(sim, true);
            assert_int_equal(seen.report.repaired, seen.report.damage);
            assert_clean(sim);
            assert_rows(sim, gone);
            simdisk_destroy(sim);
        }
    }
}

typedef struct cuts {
    const bool *gone;
    uint64_t count;
} cuts_t;

/* The power goes while repair writes: what is left can be repaired, and lacks
 * no good record. */
static void on_op(void *arg, simdisk_t *disk)
{
    cuts_t *cuts = arg;

    for (uint32_t i = 0; i < 20; i++) {
        simdisk_t *sim = simdisk_clone_cut(disk, seed + cuts->count++);
        seen_t seen = run(sim, true);

        assert_int_equal(seen.status, LARDER_OK);
        assert_int_equal(seen.report.repaired, seen.report.damage);
        assert_clean(sim);
        assert_rows(sim, cuts->gone);
        simdisk_destroy(sim);
    }
}

static void test_cuts(void **state)
{
    bool gone[256];
    simdisk_t *sim = damaged(gone);
    cuts_t cuts = {.gone = gone};

    (void)state;
    simdisk_on_op(sim, on_op, &cuts);
    seen_t seen = run(sim, true);
    assert_int_equal(seen.report.damage, 4);
    assert_int_equal(seen.report.repaired, 4);
    assert_true(cuts.count >= 100);
    simdisk_on_op(sim, NULL, NULL);
    assert_clean(sim);
    assert_rows(sim, gone);
    simdisk_destroy(sim);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read_errors),
        cmocka_unit_test(test_write_errors),
        cmocka_unit_test(test_cuts),
    };

    seed_read();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
