/*
 * One directory on a simulated disk: its superblock, its segments, and what is
 * found in them again. Node and index are not involved.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/copy.h"
#include "base/mem.h"
#include "sim/simdisk.h"
#include "store/disk.h"
#include "support/values.h"

#define SEGMENT_BLOCKS 32u
#define SEGMENT_BYTES (SEGMENT_BLOCKS * LDR_BLOCK)
#define FOUND_MAX 64u
#define LEDGER_BYTES (LDR_LEDGERS * LDR_LEDGER_BYTES_MIN)

typedef struct fixture {
    simdisk_t *sim;
    ldr_log_t log;
    ldr_disk_params_t params;
    ldr_disk_t disk;
    uint8_t *buffer; /* of a segment's size */
    uint32_t found_count;
    struct {
        uint32_t segment;
        ldr_record_t record;
    } found[FOUND_MAX];
    ldr_recovery_t tally;
} fixture_t;

static void quiet(void *arg, larder_log_level_t level, const char *line)
{
    (void)arg;
    (void)level;
    (void)line;
}

static int setup(void **state)
{
    fixture_t *f = calloc(1, sizeof(*f));

    f->sim = simdisk_create(3, 0);
    f->log = (ldr_log_t){quiet, NULL};
    f->buffer = ldr_alloc_blocks(SEGMENT_BYTES);
    f->params = (ldr_disk_params_t){
        .io = simdisk_io(f->sim),
        .log = &f->log,
        .path = "/ssd",
        .bytes = 2 * LDR_SUPER_BYTES + LEDGER_BYTES + 8 * SEGMENT_BYTES,
        .segment_bytes = SEGMENT_BYTES,
        .seed = 5,
    };
    assert_int_equal(ldr_disk_open(&f->disk, &f->params), LARDER_OK);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture_t *f = *state;

    ldr_disk_close(&f->disk);
    ldr_free(f->buffer);
    simdisk_destroy(f->sim);
    free(f);
    return 0;
}

/* ---- short forms ---- */

/* Appends a record of the key; length 0: a tombstone. */
static void append(fixture_t *f, ldr_filling_t *fill, uint32_t key,
                   uint32_t length)
{
    ldr_record_t record = {
        .kind = length > 0 ? LDR_RECORD_SHARD : LDR_RECORD_TOMBSTONE,
        .key = test_key(key),
        .shards = 1,
        .length = length,
    };
    uint32_t blocks = ldr_record_blocks(length);
    ldr_segment_header_t header = ldr_disk_header(&f->disk, fill->segment);

    memset(f->buffer, 0, (size_t)blocks * LDR_BLOCK);
    memset(f->buffer, (int)key, length);
    record.payload_crc = ldr_crc32c(0, f->buffer, length);
    assert_true(ldr_filling_fits(&f->disk, fill, blocks));
    ldr_filling_add(fill, &record);
    ldr_record_compose(&record, &header,
                       f->buffer + (size_t)(blocks - 1) * LDR_BLOCK);
    assert_int_equal(ldr_io_write_at(f->disk.io,
                                     f->disk.segments[fill->segment].file,
                                     (uint64_t)record.block * LDR_BLOCK,
                                     f->buffer, (size_t)blocks * LDR_BLOCK),
                     0);
}

static ldr_filling_t *begin(fixture_t *f)
{
    ldr_filling_t *fill = &f->disk.filling[0];
    uint32_t segment;

    assert_int_equal(ldr_disk_segment_create(&f->disk, &segment), 0);
    assert_int_equal(ldr_disk_segment_prepare(&f->disk, segment), 0);
    ldr_filling_start(&f->disk, fill, segment);
    return fill;
}

static bool note(void *arg, uint32_t segment, const ldr_record_t *record)
{
    fixture_t *f = arg;

    assert_true(f->found_count < FOUND_MAX);
    f->found[f->found_count].segment = segment;
    f->found[f->found_count++].record = *record;
    return true;
}

static larder_status_t reopen(fixture_t *f)
{
    ldr_disk_close(&f->disk);
    return ldr_disk_open(&f->disk, &f->params);
}

static larder_status_t recover(fixture_t *f, bool repair)
{
    larder_status_t st = reopen(f);

    f->found_count = 0;
    assert_int_equal(st, LARDER_OK);
    return ldr_disk_recover(&f->disk, repair, note, f, &f->tally);
}

static void expect(const fixture_t *f, const uint32_t *keys, uint32_t count)
{
    assert_int_equal(f->found_count, count);
    for (uint32_t i = 0; i < count; i++) {
        larder_key_t key = test_key(keys[i]);

        assert_memory_equal(&f->found[i].record.key, &key, sizeof(key));
    }
}

/* A sum over names, lengths and bytes of all files. */
static uint64_t print_of(const simdisk_t *sim)
{
    uint64_t sum = 0;
    const char *path;

    for (unsigned i = 0; (path = simdisk_path(sim, i)) != NULL; i++) {
        uint64_t size = simdisk_size(sim, path);
        uint8_t *data = malloc(size + 1);

        assert_true(simdisk_read_raw(sim, path, 0, data, size));
        sum += test_mix(ldr_crc32c(0, data, size) + (size << 32)) ^
               ldr_crc32c(0, path, strlen(path));
        free(data);
    }
    return sum;
}

/* Also to more than it has. */
static void set_length(fixture_t *f, const char *path, uint64_t bytes)
{
    ldr_io_t *io = simdisk_io(f->sim);
    int file = io->ops->open(io, path, 0);

    assert_true(file >= 0);
    assert_int_equal(io->ops->allocate(io, file, bytes), 0);
    assert_int_equal(ldr_io_sync(io, file), 0);
    io->ops->close(io, file);
}

static void forget_ledger(fixture_t *f)
{
    ldr_io_t *io = simdisk_io(f->sim);

    for (unsigned i = 0; i < LDR_LEDGERS; i++) {
        char path[32];

        snprintf(path, sizeof(path), "/ssd/larder.ledger-%u", i);
        assert_int_equal(io->ops->unlink(io, path), 0);
    }
}

/* ---- superblock ---- */

static void test_new_directory(void **state)
{
    fixture_t *f = *state;

    assert_int_equal(simdisk_size(f->sim, "/ssd/larder.super"),
                     2 * LDR_SUPER_BYTES);
    assert_int_equal(f->disk.segment_max, 8);
    assert_int_equal(f->disk.super->generation, 1);
    uint8_t id[LDR_ID_BYTES];
    memcpy(id, f->disk.super->dir_id, sizeof(id));
    assert_int_equal(recover(f, true), LARDER_OK);
    assert_memory_equal(id, f->disk.super->dir_id, sizeof(id));
    assert_int_equal(f->tally.segments, 0);
    /* The size of segments is the directory's, not the next opener's. */
    f->params.segment_bytes = 2 * SEGMENT_BYTES;
    assert_int_equal(recover(f, true), LARDER_OK);
    assert_int_equal(f->disk.segment_bytes, SEGMENT_BYTES);
}

static void test_super_copies(void **state)
{
    fixture_t *f = *state;

    for (int copy = 0; copy < 2; copy++) {
        f->disk.super->spaces[0].epoch++;
        f->disk.super->space_count = 1;
        assert_int_equal(ldr_disk_super_write(&f->disk), LARDER_OK);
        uint32_t epoch = f->disk.super->spaces[0].epoch;
        simdisk_flip(f->sim, "/ssd/larder.super",
                     (uint64_t)copy * LDR_SUPER_BYTES * 8 + 777);
        assert_int_equal(reopen(f), LARDER_OK);
        assert_int_equal(f->disk.super->spaces[0].epoch, epoch);
        assert_int_equal(f->disk.super_first, copy);
        assert_true(f->disk.super_uneven);
    }
}

/* A write that is cut short leaves the one state or the other. */
static void test_super_write_fails(void **state)
{
    fixture_t *f = *state;

    f->disk.super->space_count = 1;
    f->disk.super->spaces[0].epoch = 1;
    assert_int_equal(ldr_disk_super_write(&f->disk), LARDER_OK);
    for (uint64_t nth = 1; nth <= 2; nth++) {
        for (int kind = 0; kind < 2; kind++) {
            uint32_t before = f->disk.super->spaces[0].epoch++;

            simdisk_fail(f->sim, kind ? SIMDISK_SYNC : SIMDISK_WRITE, nth, 1,
                         -EIO);
            assert_int_equal(ldr_disk_super_write(&f->disk), LARDER_E_IO);
            simdisk_fail_none(f->sim);
            assert_int_equal(reopen(f), LARDER_OK);
            uint32_t now = f->disk.super->spaces[0].epoch;
            assert_true(now == before || now == before + 1);
            assert_true(nth == 1 || now == before + 1);
            assert_int_equal(ldr_disk_super_write(&f->disk), LARDER_OK);
            assert_int_equal(reopen(f), LARDER_OK);
            assert_int_equal(f->disk.super->spaces[0].epoch, now);
            assert_false(f->disk.super_uneven);
        }
    }
}

/* Refused, and nothing touched. */
static void refused(fixture_t *f, larder_status_t want)
{
    ldr_disk_t other;
    uint64_t before = print_of(f->sim);

    assert_int_equal(ldr_disk_open(&other, &f->params), want);
    assert_true(print_of(f->sim) == before);
}

static void test_refusals(void **state)
{
    fixture_t *f = *state;
    uint8_t version = 2;
    uint8_t junk[64] = "junk";

    refused(f, LARDER_E_LOCKED);
    ldr_filling_t *fill = begin(f);
    append(f, fill, 1, 100);
    assert_int_equal(ldr_filling_close(&f->disk, fill), 0);
    ldr_disk_close(&f->disk);
    f->params.bytes = 2 * LDR_SUPER_BYTES + 3 * SEGMENT_BYTES;
    refused(f, LARDER_E_INVALID);
    f->params.bytes = 100;
    refused(f, LARDER_E_INVALID);
    f->params.bytes = 2 * LDR_SUPER_BYTES + LEDGER_BYTES + 8 * SEGMENT_BYTES;
    simdisk_t *good = f->sim;
    for (int copy = 0; copy < 2; copy++) { /* a version to come, in either */
        f->sim = simdisk_clone(good);
        f->params.io = simdisk_io(f->sim);
        simdisk_write_raw(f->sim, "/ssd/larder.super",
                          (uint64_t)copy * LDR_SUPER_BYTES + 8, &version, 1);
        refused(f, LARDER_E_VERSION);
        simdisk_destroy(f->sim);
    }
    f->sim = simdisk_clone(good);
    f->params.io = simdisk_io(f->sim);
    simdisk_write_raw(f->sim, "/ssd/larder.super", 40, junk, 8);
    simdisk_write_raw(f->sim, "/ssd/larder.super", LDR_SUPER_BYTES, junk, 64);
    refused(f, LARDER_E_CORRUPT);
    simdisk_truncate(f->sim, "/ssd/larder.super", 1000);
    refused(f, LARDER_E_CORRUPT);
    simdisk_destroy(f->sim);
    f->sim = good;
    f->params.io = simdisk_io(f->sim);
    /* In a segment's header: found when it is looked at. */
    simdisk_write_raw(f->sim, "/ssd/segment-000000", 8, &version, 1);
    uint64_t before = print_of(f->sim);
    assert_int_equal(recover(f, true), LARDER_E_VERSION);
    assert_true(print_of(f->sim) == before);
}

/* The file is short or long: the copies that are whole in it count. */
static void test_super_lengths(void **state)
{
    static const uint64_t lengths[] = {
        2 * LDR_SUPER_BYTES - 1, 2 * LDR_SUPER_BYTES - LDR_BLOCK,
        LDR_SUPER_BYTES + 1,     LDR_SUPER_BYTES,
        2 * LDR_SUPER_BYTES + 1, 5 * LDR_SUPER_BYTES,
    };
    fixture_t *f = *state;

    assert_int_equal(ldr_filling_close(&f->disk, begin(f)), 0);
    f->disk.super->space_count = 1;
    for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
        f->disk.super->spaces[0].epoch = 7 + (uint32_t)i;
        assert_int_equal(ldr_disk_super_write(&f->disk), LARDER_OK);
        ldr_disk_close(&f->disk);
        set_length(f, "/ssd/larder.super", lengths[i]);
        assert_int_equal(ldr_disk_check(&f->params), LARDER_OK);
        assert_int_equal(reopen(f), LARDER_OK);
        assert_int_equal(f->disk.super->spaces[0].epoch, 7 + i);
        assert_int_equal(f->disk.super_uneven,
                         lengths[i] < 2 * LDR_SUPER_BYTES);
        assert_int_equal(ldr_disk_super_mend(&f->disk), LARDER_OK);
        assert_int_equal(simdisk_size(f->sim, "/ssd/larder.super"),
                         2 * LDR_SUPER_BYTES);
    }
    ldr_disk_close(&f->disk);
    /* Neither is whole: refused, and nothing is made. */
    assert_true(
        simdisk_truncate(f->sim, "/ssd/larder.super", LDR_SUPER_BYTES - 1));
    refused(f, LARDER_E_CORRUPT);
    assert_true(simdisk_truncate(f->sim, "/ssd/larder.super", 0));
    refused(f, LARDER_E_CORRUPT);
    ldr_io_t *io = simdisk_io(f->sim);
    assert_int_equal(io->ops->unlink(io, "/ssd/larder.super"), 0);
    refused(f, LARDER_E_CORRUPT);
    assert_true(simdisk_size(f->sim, "/ssd/larder.super") == UINT64_MAX);
}

/* The first open was cut short: no segment, so nothing is lost. */
static void test_begun_directory(void **state)
{
    fixture_t *f = *state;
    uint8_t junk[64] = "junk";

    simdisk_write_raw(f->sim, "/ssd/larder.super", 0, junk, 64);
    simdisk_write_raw(f->sim, "/ssd/larder.super", LDR_SUPER_BYTES, junk, 64);
    assert_int_equal(recover(f, true), LARDER_OK);
    assert_int_equal(f->disk.super->generation, 1);
}

static void test_paths(void **state)
{
    fixture_t *f = *state;
    char path[LDR_PATH_MAX];
    ldr_disk_t other;

    memset(path, 'x', sizeof(path));
    path[0] = '/';
    path[LDR_PATH_MAX - 4] = '\0';
    f->params.path = path;
    assert_int_equal(ldr_disk_open(&other, &f->params), LARDER_E_INVALID);
    f->params.path = "/ssd";
}

/* The ledger is part of what a directory may take, also where that is just
 * enough for the fewest segments. */
static void test_tight(void **state)
{
    fixture_t *f = *state;
    uint64_t least = 2 * LDR_SUPER_BYTES + 4 * SEGMENT_BYTES;

    for (uint64_t more = 0; more < 4 * SEGMENT_BYTES; more += 3 * LDR_BLOCK) {
        f->params.bytes = least + more;
        assert_int_equal(recover(f, true), LARDER_OK);
        uint64_t all = 2 * LDR_SUPER_BYTES +
                       LDR_LEDGERS * ldr_ledger_size(&f->disk.ledger) +
                       f->disk.segment_max * (uint64_t)SEGMENT_BYTES;
        assert_true(all <= f->params.bytes);
        assert_in_range(f->disk.segment_max, 3, 7);
        assert_true(more < LEDGER_BYTES || f->disk.segment_max >= 4);
    }
}

static void test_segment_sizes(void **state)
{
    (void)state;
    for (uint64_t bytes = 4 << 20; bytes < (uint64_t)1 << 46; bytes *= 3) {
        uint64_t segment = ldr_disk_segment_bytes(bytes);

        assert_int_equal(segment % LDR_BLOCK, 0);
        assert_true(segment <= (uint64_t)1 << 30);
        assert_true((bytes - 2 * LDR_SUPER_BYTES) / segment >= 4);
    }
}

/* ---- segments ---- */

static void test_closed_segments(void **state)
{
    fixture_t *f = *state;
    static const uint32_t keys[] = {1, 2, 3, 4, 5};

    ldr_filling_t *fill = begin(f);
    append(f, fill, 1, 100);
    append(f, fill, 2, 3 * LDR_BLOCK);
    append(f, fill, 3, 0);
    assert_int_equal(ldr_filling_close(&f->disk, fill), 0);
    fill = begin(f);
    append(f, fill, 4, 2 * LDR_BLOCK + 1);
    append(f, fill, 5, 1);
    assert_int_equal(ldr_filling_close(&f->disk, fill), 0);
    assert_int_equal(recover(f, true), LARDER_OK);
    expect(f, keys, 5);
    assert_int_equal(f->tally.records, 4);
    assert_int_equal(f->tally.tombstones, 1);
    assert_int_equal(f->tally.scanned, 0);
    assert_int_equal(f->found[1].record.length, 3 * LDR_BLOCK);
    assert_int_equal(f->found[3].segment, 1);
    assert_int_equal(f->disk.sequence, 2);
    /* The rows of one, as reclaim reads them. */
    f->found_count = 0;
    assert_int_equal(ldr_disk_rows_load(&f->disk, 1), LARDER_OK);
    ldr_disk_rows(&f->disk, note, f);
    ldr_disk_rows(&f->disk, note, f);
    assert_int_equal(f->found_count, 4);
    simdisk_flip(f->sim, "/ssd/segment-000001",
                 (uint64_t)(SEGMENT_BLOCKS - 2) * LDR_BLOCK * 8);
    assert_int_equal(ldr_disk_rows_load(&f->disk, 1), LARDER_E_CORRUPT);
    simdisk_fail(f->sim, SIMDISK_READ, 1, 1, -EIO);
    assert_int_equal(ldr_disk_rows_load(&f->disk, 0), LARDER_E_IO);
}

/* More files than may be open: none is opened. */
static void test_too_many_files(void **state)
{
    fixture_t *f = *state;

    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(ldr_filling_close(&f->disk, begin(f)), 0);
    }
    f->params.open_max = 2;
    assert_int_equal(recover(f, true), LARDER_E_IO);
    assert_int_equal(f->disk.file_count, 0);
    assert_non_null(strstr(ldr_fail_text(), "3 segment files, and 2 may be"));
    f->params.open_max = 3;
    assert_int_equal(recover(f, true), LARDER_OK);
    assert_int_equal(f->disk.file_count, 3);
}

/* In the order of their use, whatever the numbers of their files. */
static void test_order(void **state)
{
    fixture_t *f = *state;
    static const uint32_t keys[] = {2, 3, 1};
    ldr_filling_t *fill;

    for (uint32_t i = 1; i <= 3; i++) {
        fill = begin(f);
        append(f, fill, i, 100);
        assert_int_equal(ldr_filling_close(&f->disk, fill), 0);
    }
    /* The first is used again. */
    assert_int_equal(ldr_disk_segment_prepare(&f->disk, 0), 0);
    ldr_filling_start(&f->disk, &f->disk.filling[0], 0);
    append(f, &f->disk.filling[0], 1, 200);
    assert_int_equal(ldr_filling_close(&f->disk, &f->disk.filling[0]), 0);
    assert_int_equal(recover(f, true), LARDER_OK);
    expect(f, keys, 3);
    assert_int_equal(f->found[2].record.length, 200);
    assert_int_equal(f->disk.sequence, 4);
}

/* Without a table: what is whole is found; the second time by its table. */
static void test_scan(void **state)
{
    fixture_t *f = *state;
    static const uint32_t keys[] = {1, 3, 4};

    ldr_filling_t *fill = begin(f);
    append(f, fill, 1, 100);
    append(f, fill, 2, 4 * LDR_BLOCK);
    append(f, fill, 3, 0);
    append(f, fill, 4, LDR_BLOCK + 1);
    /* The second one's payload is torn. */
    simdisk_flip(f->sim, "/ssd/segment-000000", 4 * LDR_BLOCK * 8);
    uint64_t before = print_of(f->sim);
    assert_int_equal(recover(f, false), LARDER_OK);
    expect(f, keys, 3);
    assert_true(print_of(f->sim) == before);
    assert_int_equal(f->tally.scanned, 1);
    assert_int_equal(f->tally.rejected, 1);
    assert_int_equal(recover(f, true), LARDER_OK);
    expect(f, keys, 3);
    assert_int_equal(f->tally.scanned, 1);
    assert_int_equal(recover(f, true), LARDER_OK);
    expect(f, keys, 3);
    assert_int_equal(f->tally.scanned, 0);
    assert_int_equal(f->disk.segments[0].state, LDR_SEGMENT_CLOSED);
}

/* A full segment: the scan stays off the table's place, and the row that was
 * left out leaves room for nothing else. */
static void test_scan_full(void **state)
{
    fixture_t *f = *state;
    ldr_filling_t *fill = begin(f);
    uint32_t count = 0;

    while (ldr_filling_fits(&f->disk, fill, 2)) {
        append(f, fill, ++count, 100);
    }
    assert_true(fill->next_block >= SEGMENT_BLOCKS - 4);
    assert_int_equal(recover(f, true), LARDER_OK);
    assert_int_equal(f->found_count, count);
    assert_int_equal(recover(f, true), LARDER_OK);
    assert_int_equal(f->found_count, count);
    assert_int_equal(f->tally.scanned, 0);
}

/* Records of an earlier use of the file are not found again. */
static void test_stale_records(void **state)
{
    fixture_t *f = *state;
    static const uint32_t keys[] = {9};
    ldr_filling_t *fill = begin(f);

    for (uint32_t i = 1; i <= 5; i++) {
        append(f, fill, i, 100);
    }
    assert_int_equal(ldr_filling_close(&f->disk, fill), 0);
    assert_int_equal(ldr_disk_segment_prepare(&f->disk, 0), 0);
    assert_int_equal(recover(f, true), LARDER_OK);
    assert_int_equal(f->found_count, 0);
    assert_int_equal(f->disk.segments[0].state, LDR_SEGMENT_FREE);
    assert_int_equal(ldr_disk_segment_prepare(&f->disk, 0), 0);
    ldr_filling_start(&f->disk, &f->disk.filling[0], 0);
    append(f, &f->disk.filling[0], 9, 100);
    assert_int_equal(recover(f, true), LARDER_OK);
    expect(f, keys, 1);
}

/* The header of the newest segment is lost, and the ledger with it, so its
 * sequence is given out once more: the nonce keeps the two uses apart. */
static void test_same_sequence(void **state)
{
    fixture_t *f = *state;
    static const uint32_t keys[] = {9};
    ldr_filling_t *fill = begin(f);

    for (uint32_t i = 1; i <= 5; i++) {
        append(f, fill, i, 100);
    }
    uint64_t sequence = f->disk.segments[0].sequence;
    simdisk_flip(f->sim, "/ssd/segment-000000", 300);
    forget_ledger(f);
    assert_int_equal(recover(f, true), LARDER_OK);
    assert_int_equal(f->found_count, 0);
    /* What chooses the nonce must not begin anew with every open. */
    f->params.seed++;
    assert_int_equal(recover(f, true), LARDER_OK);
    assert_int_equal(ldr_disk_segment_prepare(&f->disk, 0), 0);
    assert_int_equal(f->disk.segments[0].sequence, sequence);
    ldr_filling_start(&f->disk, &f->disk.filling[0], 0);
    append(f, &f->disk.filling[0], 9, 100);
    assert_int_equal(recover(f, true), LARDER_OK);
    expect(f, keys, 1);
}

/* Files that are no segments of this directory are free, or not ours. */
static void test_strange_files(void **state)
{
    fixture_t *f = *state;
    static const char *const names[] = {"/ssd/segment-1", "/ssd/segment-00000x",
                                        "/ssd/segment-99999999", "/ssd/notes"};
    ldr_io_t *io = simdisk_io(f->sim);
    ldr_filling_t *fill = begin(f);

    append(f, fill, 1, 100);
    assert_int_equal(ldr_filling_close(&f->disk, fill), 0);
    fill = begin(f);
    append(f, fill, 2, 100);
    assert_int_equal(ldr_filling_close(&f->disk, fill), 0);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        io->ops->close(io, io->ops->open(io, names[i], LDR_IO_CREATE));
    }
    /* The first cut short; the second with the bytes of the first. */
    assert_true(simdisk_read_raw(f->sim, "/ssd/segment-000000", 0, f->buffer,
                                 SEGMENT_BYTES));
    assert_true(simdisk_write_raw(f->sim, "/ssd/segment-000001", 0, f->buffer,
                                  SEGMENT_BYTES));
    simdisk_truncate(f->sim, "/ssd/segment-000000", 5 * LDR_BLOCK);
    assert_int_equal(recover(f, true), LARDER_OK);
    assert_int_equal(f->found_count, 0);
    assert_int_equal(f->disk.file_count, 2);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(f->disk.segments[i].state, LDR_SEGMENT_FREE);
        assert_int_equal(ldr_disk_segment_prepare(&f->disk, i), 0);
    }
    assert_int_equal(simdisk_size(f->sim, "/ssd/segment-000000"),
                     SEGMENT_BYTES);
}

/* ---- failures ---- */

static void test_unreadable(void **state)
{
    fixture_t *f = *state;

    for (uint32_t i = 1; i <= 3; i++) {
        ldr_filling_t *fill = begin(f);
        append(f, fill, i, 100);
        assert_int_equal(ldr_filling_close(&f->disk, fill), 0);
    }
    /* One read after the other fails: two of the superblock, three of the
     * ledger, then one of the segments' headers, footers and tables. */
    for (uint64_t nth = 1; nth <= 14; nth++) {
        simdisk_fail(f->sim, SIMDISK_READ, nth, 1, -EIO);
        assert_int_equal(recover(f, true), LARDER_OK);
        simdisk_fail_none(f->sim);
        uint32_t lost = 0;
        for (uint32_t i = 0; i < 3; i++) {
            lost += f->disk.segments[i].state == LDR_SEGMENT_LOST;
        }
        assert_int_equal(lost, nth > 5);
        assert_int_equal(f->found_count, 3 - lost);
    }
    for (uint64_t nth = 1; nth <= 7; nth++) {
        bool ledger = nth == 3 || nth == 4;

        simdisk_fail(f->sim, SIMDISK_OPEN, nth, 1, -EIO);
        larder_status_t st = reopen(f);
        if (st == LARDER_OK) {
            st = ldr_disk_recover(&f->disk, true, note, f, &f->tally);
        }
        simdisk_fail_none(f->sim);
        assert_int_equal(st, ledger ? LARDER_OK : LARDER_E_IO);
    }
    simdisk_fail(f->sim, SIMDISK_LIST, 1, 1, -EIO);
    assert_int_equal(recover(f, true), LARDER_E_IO);
}

/* What a disk said while it was opened, until it was told to stop. */
typedef struct listener {
    uint64_t answers, answers_max;
} listener_t;

static bool listen_to(void *arg)
{
    listener_t *l = arg;

    return ++l->answers < l->answers_max;
}

/* Whoever waits hears of every answer, and can end it after any of them: then
 * the directory is free, and holds what it held. */
static void test_stops_when_asked(void **state)
{
    static const uint32_t keys[] = {0, 1, 2};
    fixture_t *f = *state;
    listener_t l = {.answers_max = UINT64_MAX};

    for (uint32_t i = 0; i < 3; i++) {
        ldr_filling_t *fill = begin(f);

        append(f, fill, i, 100);
        if (i < 2) { /* the last one is scanned */
            assert_int_equal(ldr_filling_close(&f->disk, fill), 0);
        }
    }
    f->params.answered = listen_to;
    f->params.arg = &l;
    assert_int_equal(recover(f, false), LARDER_OK);
    expect(f, keys, 3);
    uint64_t all = l.answers;
    assert_in_range(all, 12, 100);
    for (uint64_t stop = 1; stop <= all; stop++) {
        l = (listener_t){.answers_max = stop};
        assert_int_equal(recover(f, false), LARDER_E_CANCELED);
        assert_in_range(l.answers, stop, all);
    }
    l = (listener_t){.answers_max = UINT64_MAX};
    assert_int_equal(recover(f, false), LARDER_OK);
    expect(f, keys, 3);
}

static void test_failing_changes(void **state)
{
    fixture_t *f = *state;
    uint32_t segment = LDR_NIL;

    simdisk_fail(f->sim, SIMDISK_ALLOCATE, 1, 1, -ENOSPC);
    assert_int_equal(ldr_disk_segment_create(&f->disk, &segment), -ENOSPC);
    assert_int_equal(f->disk.file_count, 0);
    assert_true(simdisk_size(f->sim, "/ssd/segment-000000") == UINT64_MAX);
    simdisk_fail(f->sim, SIMDISK_SYNC_DIR, 1, 1, -EIO);
    assert_int_equal(ldr_disk_segment_create(&f->disk, &segment), -EIO);
    assert_int_equal(f->disk.file_count, 0);
    assert_int_equal(ldr_disk_segment_create(&f->disk, &segment), 0);
    /* A header that may be the old one or the new one. */
    assert_int_equal(ldr_disk_segment_prepare(&f->disk, segment), 0);
    uint64_t sequence = f->disk.segments[segment].sequence;
    simdisk_fail(f->sim, SIMDISK_SYNC, 2, 1, -EIO); /* after the ledger's */
    assert_int_equal(ldr_disk_segment_prepare(&f->disk, segment), -EIO);
    assert_int_equal(f->disk.segments[segment].state, LDR_SEGMENT_LOST);
    assert_int_equal(f->disk.segments[segment].sequence, sequence);
    assert_int_equal(f->disk.sequence, sequence + 1);
    /* Deleted, or still there. */
    simdisk_fail(f->sim, SIMDISK_UNLINK, 1, 1, -EIO);
    assert_int_equal(ldr_disk_segment_delete(&f->disk, segment), -EIO);
    assert_int_equal(f->disk.segments[segment].state, LDR_SEGMENT_LOST);
    assert_int_equal(f->disk.file_count, 1);
    assert_int_equal(ldr_disk_segment_delete(&f->disk, segment), 0);
    assert_int_equal(f->disk.file_count, 0);
    /* Tables: after the records' sync, before their own. */
    for (int i = 0; i < 3; i++) {
        ldr_filling_t *fill = begin(f);
        segment = fill->segment;
        append(f, fill, 1, 100);
        simdisk_fail(f->sim, i == 1 ? SIMDISK_WRITE : SIMDISK_SYNC,
                     i == 2 ? 2 : 1, 1, -EIO);
        assert_int_equal(ldr_filling_close(&f->disk, fill), -EIO);
        simdisk_fail_none(f->sim);
        assert_int_equal(f->disk.segments[segment].state, LDR_SEGMENT_LOST);
    }
}

static void test_failing_repair(void **state)
{
    static const uint32_t keys[] = {1, 2};
    fixture_t *f = *state;
    ldr_filling_t *fill = begin(f);
    uint32_t segment = fill->segment;

    append(f, fill, 1, 100);
    append(f, fill, 2, 0);
    /* What was found may be lost again: the directory is not used. */
    simdisk_t *sim = simdisk_clone(f->sim);
    simdisk_fail(f->sim, SIMDISK_SYNC, 1, 1, -EIO);
    assert_int_equal(recover(f, true), LARDER_E_IO);
    ldr_disk_close(&f->disk);
    simdisk_destroy(f->sim);
    f->sim = sim;
    f->params.io = simdisk_io(sim);
    /* It is durable, and has no table: the next open scans it again. */
    for (int i = 0; i < 3; i++) {
        simdisk_fail(f->sim, i == 0 ? SIMDISK_WRITE : SIMDISK_SYNC, i + 1, 1,
                     -EIO);
        assert_int_equal(recover(f, true), LARDER_OK);
        simdisk_fail_none(f->sim);
        expect(f, keys, 2);
        assert_int_equal(f->tally.scanned, 1);
        assert_int_equal(f->disk.segments[segment].state, LDR_SEGMENT_CLOSED);
    }
    assert_int_equal(recover(f, true), LARDER_OK);
    assert_int_equal(recover(f, true), LARDER_OK);
    expect(f, keys, 2);
    assert_int_equal(f->tally.scanned, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_new_directory),
        TEST(test_super_copies),
        TEST(test_super_write_fails),
        TEST(test_super_lengths),
        TEST(test_refusals),
        TEST(test_begun_directory),
        TEST(test_paths),
        TEST(test_tight),
        cmocka_unit_test(test_segment_sizes),
        TEST(test_closed_segments),
        TEST(test_too_many_files),
        TEST(test_order),
        TEST(test_scan),
        TEST(test_scan_full),
        TEST(test_stale_records),
        TEST(test_same_sequence),
        TEST(test_strange_files),
        TEST(test_unreadable),
        TEST(test_stops_when_asked),
        TEST(test_failing_changes),
        TEST(test_failing_repair),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
