/*
 * fsck on the simulated disk: every kind of damage is found where it is, the
 * check alone writes nothing, and repair keeps every record that is good.
 */
#include "store/fsck_rig.h"

/* One flipped bit: found there, nothing written by the check; then repaired,
 * and after that clean, with all that was not hit. */
static void flip_case(const char *path, uint64_t byte, ldr_fsck_kind_t kind,
                      uint32_t segment, uint32_t block, const bool *gone)
{
    simdisk_t *sim = directory(true);
    simdisk_t *before;

    flip(sim, path, byte);
    before = simdisk_clone(sim);
    seen_t seen = run(sim, false);
    assert_int_equal(seen.status, LARDER_OK);
    assert_int_equal(seen.report.damage, 1);
    assert_int_equal(seen.report.repaired, 0);
    assert_found(&seen, kind, segment, block);
    assert_same(before, sim);

    seen = run(sim, true);
    assert_int_equal(seen.status, LARDER_OK);
    assert_int_equal(seen.report.damage, 1);
    assert_int_equal(seen.report.repaired, 1);
    assert_clean(sim);
    assert_rows(sim, gone);
    simdisk_destroy(before);
    simdisk_destroy(sim);
}

/* ---- the tests ---- */

static void test_clean(void **state)
{
    simdisk_t *sim = directory(true);
    simdisk_t *before = simdisk_clone(sim);
    seen_t seen = run(sim, false);

    (void)state;
    assert_int_equal(seen.status, LARDER_OK);
    assert_int_equal(seen.count, 0);
    assert_int_equal(seen.report.segments, SEGMENTS);
    assert_int_equal(seen.report.segments_free, 0);
    assert_int_equal(seen.report.records, SEGMENTS * (ROWS - 1));
    assert_int_equal(seen.report.tombstones, SEGMENTS);
    assert_int_equal(seen.report.payload_bytes,
                     SEGMENTS * (lengths[0] + lengths[1] + lengths[3]));
    assert_int_equal(seen.done, SEGMENTS * SEGMENT_BYTES);
    assert_int_equal(seen.total, seen.done);
    assert_same(before, sim);

    /* Nor does repair write where there is nothing to repair. */
    uint64_t ops = simdisk_ops(sim);
    assert_int_equal(run(sim, true).status, LARDER_OK);
    assert_int_equal(simdisk_ops(sim), ops);
    simdisk_destroy(before);
    simdisk_destroy(sim);
}

static void test_flip_payload(void **state)
{
    (void)state;
    for (uint32_t row = 0; row < ROWS; row++) {
        bool gone[256] = {0};

        gone[key_byte(1, row)] = true;
        if (row != TOMB) {
            uint64_t at = (uint64_t)row_block(row) * LDR_BLOCK;

            flip_case(segment_path(1), at, LDR_FSCK_PAYLOAD_BAD, 1,
                      row_block(row), gone);
            flip_case(segment_path(1), at + lengths[row] - 1,
                      LDR_FSCK_PAYLOAD_BAD, 1, row_block(row), gone);
        }
    }
}

static void test_flip_descriptor(void **state)
{
    (void)state;
    for (uint32_t row = 0; row < ROWS; row++) {
        bool gone[256] = {0};
        uint64_t at = (uint64_t)descriptor_block(row) * LDR_BLOCK;

        gone[key_byte(0, row)] = row != TOMB;
        for (uint64_t byte = 0; byte < LDR_BLOCK; byte += 241) {
            flip_case(segment_path(0), at + byte, LDR_FSCK_RECORD_BAD, 0,
                      descriptor_block(row), gone);
        }
    }
}

static void test_flip_table(void **state)
{
    static const bool none[256];
    uint64_t rows = (uint64_t)(LAST - 1) * LDR_BLOCK;
    uint64_t footer = (uint64_t)LAST * LDR_BLOCK;

    (void)state;
    for (uint64_t byte = 0; byte < ROWS * LDR_ROW_BYTES; byte += 37) {
        flip_case(segment_path(2), rows + byte, LDR_FSCK_TABLE_BAD, 2, LAST - 1,
                  none);
    }
    for (uint64_t byte = 0; byte < LDR_BLOCK; byte += 241) {
        flip_case(segment_path(2), footer + byte, LDR_FSCK_TABLE_BAD, 2, LAST,
                  none);
    }
    for (uint64_t byte = 0; byte < 48; byte++) {
        if (byte < 8 || byte > 11) { /* the version says "not mine" */
            flip_case(segment_path(2), footer + byte, LDR_FSCK_TABLE_BAD, 2,
                      LAST, none);
        }
    }
}

static void test_flip_header(void **state)
{
    bool gone[256] = {0};

    (void)state;
    for (uint32_t row = 0; row < ROWS; row++) {
        gone[key_byte(1, row)] = row != TOMB; /* which the ledger has */
    }
    for (uint64_t byte = 0; byte < LDR_BLOCK; byte += byte < 64 ? 1 : 311) {
        if (byte < 8 || byte > 11) { /* the version has a test of its own */
            flip_case(segment_path(1), byte, LDR_FSCK_HEADER_BAD, 1, 0, gone);
        }
    }
}

static void test_flip_super(void **state)
{
    static const bool none[256];

    (void)state;
    for (uint32_t copy = 0; copy < 2; copy++) {
        for (uint64_t byte = 16; byte < LDR_SUPER_BYTES; byte += 9001) {
            flip_case("d/larder.super", copy * LDR_SUPER_BYTES + byte,
                      LDR_FSCK_SUPER_BAD, LDR_NIL, copy, none);
        }
    }
}

static void test_super_cut_off(void **state)
{
    static const bool none[256];
    simdisk_t *sim = directory(true);

    (void)state;
    assert_true(simdisk_truncate(sim, "d/larder.super", LDR_SUPER_BYTES));
    seen_t seen = run(sim, true);
    assert_int_equal(seen.status, LARDER_OK);
    assert_found(&seen, LDR_FSCK_SUPER_BAD, LDR_NIL, 1);
    assert_int_equal(seen.report.repaired, 1);
    assert_clean(sim);
    assert_rows(sim, none);
    simdisk_destroy(sim);
}

static void test_super_long(void **state)
{
    static const bool none[256];
    simdisk_t *sim = directory(true);

    (void)state;
    set_length(sim, "d/larder.super", 3 * LDR_SUPER_BYTES);
    seen_t seen = run(sim, true);
    assert_int_equal(seen.status, LARDER_OK);
    assert_int_equal(seen.report.damage, 0);
    assert_found(&seen, LDR_FSCK_SUPER_LONG, LDR_NIL, 1);
    assert_clean(sim);
    assert_rows(sim, none);
    simdisk_destroy(sim);
}

/* A cut between the writes of the two copies: the newer one wins. */
static void test_super_older(void **state)
{
    simdisk_t *sim = directory(true);
    uint8_t *old = ldr_alloc(LDR_SUPER_BYTES);
    ldr_disk_t d;

    (void)state;
    for (uint32_t copy = 0; copy < 2; copy++) {
        uint64_t at = (uint64_t)copy * LDR_SUPER_BYTES;

        assert_true(
            simdisk_read_raw(sim, "d/larder.super", at, old, LDR_SUPER_BYTES));
        assert_int_equal(open_disk(&d, sim), LARDER_OK);
        uint32_t epoch = d.super->space_count + 1;
        d.super->spaces[d.super->space_count++].epoch = epoch;
        assert_int_equal(ldr_disk_super_write(&d), LARDER_OK);
        ldr_disk_close(&d);
        assert_true(
            simdisk_write_raw(sim, "d/larder.super", at, old, LDR_SUPER_BYTES));
        seen_t seen = run(sim, true);
        assert_int_equal(seen.report.damage, 0);
        assert_found(&seen, LDR_FSCK_SUPER_OLD, LDR_NIL, copy);
        assert_clean(sim);
        assert_int_equal(open_disk(&d, sim), LARDER_OK);
        assert_int_equal(d.super->space_count, copy + 1);
        ldr_disk_close(&d);
    }
    ldr_free(old);
    simdisk_destroy(sim);
}

static void test_unclosed(void **state)
{
    static const bool none[256];
    simdisk_t *sim = directory(false);
    simdisk_t *before = simdisk_clone(sim);
    seen_t seen = run(sim, false);

    (void)state;
    assert_int_equal(seen.report.damage, 0);
    assert_int_equal(seen.report.notes, 1);
    assert_int_equal(seen.report.records, SEGMENTS * (ROWS - 1));
    assert_found(&seen, LDR_FSCK_TABLE_NONE, SEGMENTS - 1, LAST);
    assert_same(before, sim);
    run(sim, true);
    assert_clean(sim);
    assert_rows(sim, none);
    simdisk_destroy(before);
    simdisk_destroy(sim);
}

static void test_unclosed_torn(void **state)
{
    uint32_t segment = SEGMENTS - 1;
    bool gone[256] = {0};
    simdisk_t *sim = directory(false);

    (void)state;
    gone[key_byte(segment, 1)] = true;
    flip(sim, segment_path(segment), (uint64_t)row_block(1) * LDR_BLOCK + 5);
    seen_t seen = run(sim, true);
    assert_int_equal(seen.report.damage, 0);
    assert_found(&seen, LDR_FSCK_RECORD_TORN, segment, row_block(1));
    assert_int_equal(seen.key[1], key_byte(segment, 1));
    assert_clean(sim);
    assert_rows(sim, gone);
    simdisk_destroy(sim);
}

/* The footer of the use before is no damage. */
static void test_used_again(void **state)
{
    static const bool none[256];
    simdisk_t *sim = directory(true);
    ldr_recovery_t found;
    bool there[256];
    ldr_disk_t d;

    (void)state;
    assert_int_equal(open_disk(&d, sim), LARDER_OK);
    assert_int_equal(ldr_disk_recover(&d, false, note_row, there, &found),
                     LARDER_OK);
    fill_segment(&d, 1, false);
    ldr_disk_close(&d);
    seen_t seen = run(sim, true);
    assert_int_equal(seen.report.damage, 0);
    assert_found(&seen, LDR_FSCK_TABLE_NONE, 1, LAST);
    assert_clean(sim);
    assert_rows(sim, none);
    simdisk_destroy(sim);
}

static void test_file_cut_off(void **state)
{
    bool gone[256] = {0};
    simdisk_t *sim = directory(true);

    (void)state;
    for (uint32_t row = 0; row < ROWS; row++) {
        gone[key_byte(0, row)] = true;
    }
    assert_true(simdisk_truncate(sim, segment_path(0), 10 * LDR_BLOCK));
    seen_t seen = run(sim, true);
    assert_found(&seen, LDR_FSCK_FILE_SHORT, 0, 10);
    assert_int_equal(seen.report.repaired, 1);
    /* What is left is a file whose making was cut short. */
    seen = run(sim, false);
    assert_int_equal(seen.report.damage, 0);
    assert_found(&seen, LDR_FSCK_FILE_UNMADE, 0, 0);
    assert_int_equal(seen.report.segments_free, 1);
    assert_rows(sim, gone);
    simdisk_destroy(sim);
}

/* A header that is whole, but of another segment. */
static void test_misplaced(void **state)
{
    simdisk_t *sim = directory(true);
    uint8_t block[LDR_BLOCK];

    (void)state;
    assert_true(simdisk_read_raw(sim, segment_path(0), 0, block, LDR_BLOCK));
    assert_true(simdisk_write_raw(sim, segment_path(1), 0, block, LDR_BLOCK));
    seen_t seen = run(sim, true);
    assert_int_equal(seen.report.damage, 1);
    assert_found(&seen, LDR_FSCK_HEADER_BAD, 1, 0);
    assert_clean(sim);
    simdisk_destroy(sim);
}

static void refused(simdisk_t *sim, larder_status_t status)
{
    simdisk_t *before = simdisk_clone(sim);

    for (int repair = 0; repair < 2; repair++) {
        assert_int_equal(run(sim, repair != 0).status, status);
        assert_same(before, sim);
    }
    simdisk_destroy(before);
    simdisk_destroy(sim);
}

static void test_refused(void **state)
{
    uint8_t version[4];
    simdisk_t *sim;

    (void)state;
    ldr_put32(version, LDR_FORMAT_VERSION + 1);
    for (uint32_t copy = 0; copy < 2; copy++) {
        sim = directory(true);
        simdisk_write_raw(sim, "d/larder.super", copy * LDR_SUPER_BYTES + 8,
                          version, 4);
        refused(sim, LARDER_E_VERSION);
    }
    /* Damage in front of it is not repaired first. */
    sim = directory(true);
    flip(sim, "d/larder.super", 100);
    flip(sim, segment_path(0), 100);
    simdisk_write_raw(sim, segment_path(2), 8, version, 4);
    refused(sim, LARDER_E_VERSION);

    sim = directory(true);
    flip(sim, "d/larder.super", 100);
    flip(sim, "d/larder.super", LDR_SUPER_BYTES + 100);
    refused(sim, LARDER_E_CORRUPT);

    sim = directory(true);
    simdisk_io(sim)->ops->unlink(simdisk_io(sim), "d/larder.super");
    refused(sim, LARDER_E_CORRUPT);

    sim = simdisk_create(seed, 0);
    refused(sim, LARDER_E_INVALID);

    sim = simdisk_create(seed, 0);
    simdisk_io(sim)->ops->make_dir(simdisk_io(sim), "d");
    refused(sim, LARDER_E_INVALID);
}

static void test_locked(void **state)
{
    simdisk_t *sim = directory(true);
    ldr_disk_t d;

    (void)state;
    assert_int_equal(open_disk(&d, sim), LARDER_OK);
    assert_int_equal(run(sim, false).status, LARDER_E_LOCKED);
    assert_int_equal(run(sim, true).status, LARDER_E_LOCKED);
    ldr_disk_close(&d);
    assert_clean(sim);

    /* Without a lock file the check does not make one. */
    ldr_io_t *io = simdisk_io(sim);
    assert_int_equal(io->ops->unlink(io, "d/larder.lock"), 0);
    assert_clean(sim);
    assert_int_equal(simdisk_size(sim, "d/larder.lock"), UINT64_MAX);
    simdisk_destroy(sim);
}

static void test_look(void **state)
{
    simdisk_t *sim = directory(true);
    ldr_io_t *io = simdisk_io(sim);
    simdisk_t *before = simdisk_clone(sim);
    ldr_fsck_look_t look;
    uint8_t version[4];

    (void)state;
    assert_int_equal(ldr_fsck_look(io, "d", &look), LARDER_OK);
    assert_true(look.ours && look.super && look.lock);
    assert_int_equal(look.version_unknown, 0);
    assert_int_equal(look.segments, SEGMENTS);
    assert_int_equal(look.strangers, 0);
    assert_int_equal(look.segment_bytes, SEGMENT_BYTES);
    assert_same(before, sim);
    assert_int_equal(ldr_fsck_look(io, "e", &look), LARDER_E_INVALID);

    /* The segments prove it where the superblock does not. */
    flip(sim, "d/larder.super", 100);
    flip(sim, "d/larder.super", LDR_SUPER_BYTES + 100);
    assert_int_equal(ldr_fsck_look(io, "d", &look), LARDER_OK);
    assert_true(look.ours);
    assert_int_equal(look.segment_bytes, 0);
    for (uint32_t i = 0; i < SEGMENTS; i++) {
        flip(sim, segment_path(i), 100);
    }
    assert_int_equal(ldr_fsck_look(io, "d", &look), LARDER_OK);
    assert_false(look.ours);

    ldr_put32(version, LDR_FORMAT_VERSION + 1);
    simdisk_write_raw(sim, segment_path(2), 8, version, 4);
    assert_int_equal(ldr_fsck_look(io, "d", &look), LARDER_OK);
    assert_true(look.ours && look.version_unknown == LDR_FORMAT_VERSION + 1);
    simdisk_destroy(before);
    simdisk_destroy(sim);
}

static void test_segment_name(void **state)
{
    static const char *const others[] = {
        "segment-",        "segment-12",       "segment-00001x",
        "segment--00001",  "segment- 00001",   "segment-0000012",
        "segment-1048575", "segment-99999999", "xsegment-000001",
    };
    uint32_t segment;

    (void)state;
    assert_true(ldr_segment_number("segment-000012", &segment));
    assert_int_equal(segment, 12);
    assert_true(ldr_segment_number("segment-1048574", &segment));
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        assert_false(ldr_segment_number(others[i], &segment));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_clean),
        cmocka_unit_test(test_flip_payload),
        cmocka_unit_test(test_flip_descriptor),
        cmocka_unit_test(test_flip_table),
        cmocka_unit_test(test_flip_header),
        cmocka_unit_test(test_flip_super),
        cmocka_unit_test(test_super_cut_off),
        cmocka_unit_test(test_super_long),
        cmocka_unit_test(test_super_older),
        cmocka_unit_test(test_unclosed),
        cmocka_unit_test(test_unclosed_torn),
        cmocka_unit_test(test_used_again),
        cmocka_unit_test(test_file_cut_off),
        cmocka_unit_test(test_misplaced),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_locked),
        cmocka_unit_test(test_look),
        cmocka_unit_test(test_segment_name),
    };

    seed_read();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
