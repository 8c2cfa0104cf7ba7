/* What the tests of fsck share: a directory on the simulated disk, built block
 * by block, and what a check of it finds. */
#pragma once

#include <errno.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/copy.h"
#include "base/mem.h"
#include "sim/simdisk.h"
#include "store/disk.h"
#include "store/fsck.h"

#define SEGMENT_BLOCKS 64u
#define SEGMENT_BYTES ((uint64_t)SEGMENT_BLOCKS * LDR_BLOCK)
#define SEGMENTS 3u
#define ROWS 4u /* of a segment: three shards and a tombstone */
#define TOMB 2u /* which is the tombstone */
#define LAST (SEGMENT_BLOCKS - 1)
#define FOUND_MAX 64u

/* Payload bytes of the shards: a part of a block, whole ones, a ragged end. */
static const uint32_t lengths[ROWS] = {1000, 3 * LDR_BLOCK, 0, 20001};

static uint64_t seed = 1;

/* ---- a directory ---- */

static const char *segment_path(uint32_t segment)
{
    static char path[32];

    snprintf(path, sizeof(path), "d/segment-%06u", segment);
    return path;
}

static inline uint8_t key_byte(uint32_t segment, uint32_t row)
{
    return (uint8_t)(1 + segment * ROWS + row);
}

static inline uint32_t row_block(uint32_t row)
{
    uint32_t block = 1;

    for (uint32_t i = 0; i < row; i++) {
        block += ldr_record_blocks(lengths[i]);
    }
    return block;
}

static inline uint32_t descriptor_block(uint32_t row)
{
    return row_block(row) + ldr_record_blocks(lengths[row]) - 1;
}

static inline larder_status_t open_disk(ldr_disk_t *d, simdisk_t *sim)
{
    return ldr_disk_open(d, &(ldr_disk_params_t){
                                .io = simdisk_io(sim),
                                .path = "d",
                                .bytes = 16 * SEGMENT_BYTES,
                                .segment_bytes = SEGMENT_BYTES,
                                .seed = seed,
                            });
}

static inline void write_record(ldr_disk_t *d, ldr_filling_t *f, uint32_t row)
{
    uint32_t segment = f->segment;
    ldr_segment_header_t header = ldr_disk_header(d, segment);
    uint32_t blocks = ldr_record_blocks(lengths[row]);
    uint8_t *bytes = ldr_alloc_blocks((size_t)blocks * LDR_BLOCK);
    ldr_record_t r = {
        .kind = row == TOMB ? LDR_RECORD_TOMBSTONE : LDR_RECORD_SHARD,
        .shards = 1,
        .length = lengths[row],
        .written_s = 1000,
    };

    memset(r.key.hash, key_byte(segment, row), sizeof(r.key.hash));
    memset(bytes, key_byte(segment, row), lengths[row]);
    r.payload_crc = ldr_crc32c(0, bytes, lengths[row]);
    ldr_filling_add(f, &r);
    ldr_record_compose(&r, &header, bytes + (size_t)(blocks - 1) * LDR_BLOCK);
    assert_int_equal(ldr_io_write_at(d->io, d->segments[segment].file,
                                     (uint64_t)r.block * LDR_BLOCK, bytes,
                                     (size_t)blocks * LDR_BLOCK),
                     0);
    if (row == TOMB) {
        int none;

        ldr_ledger_removed(&d->ledger, &r, header.sequence);
        assert_int_equal(ldr_ledger_sync(&d->ledger, -1, &none), 0);
    }
    ldr_free(bytes);
}

static inline void fill_segment(ldr_disk_t *d, uint32_t segment, bool close)
{
    ldr_filling_t *f = &d->filling[0];

    assert_int_equal(ldr_disk_segment_prepare(d, segment), 0);
    ldr_filling_start(d, f, segment);
    for (uint32_t row = 0; row < ROWS; row++) {
        write_record(d, f, row);
    }
    if (close) {
        assert_int_equal(ldr_filling_close(d, f), 0);
    } else {
        assert_int_equal(ldr_io_sync(d->io, d->segments[segment].file), 0);
    }
}

/* SEGMENTS closed segments; the last one open if asked for. */
static inline simdisk_t *directory(bool close_last)
{
    simdisk_t *sim = simdisk_create(seed, 0);
    ldr_disk_t d;
    uint32_t segment;

    assert_int_equal(open_disk(&d, sim), LARDER_OK);
    for (uint32_t i = 0; i < SEGMENTS; i++) {
        assert_int_equal(ldr_disk_segment_create(&d, &segment), 0);
        assert_int_equal(segment, i);
        fill_segment(&d, i, close_last || i + 1 < SEGMENTS);
    }
    ldr_disk_close(&d);
    return sim;
}

/* Also to more than it has. */
static inline void set_length(simdisk_t *sim, const char *path, uint64_t bytes)
{
    ldr_io_t *io = simdisk_io(sim);
    int file = io->ops->open(io, path, 0);

    assert_true(file >= 0);
    assert_int_equal(io->ops->allocate(io, file, bytes), 0);
    assert_int_equal(ldr_io_sync(io, file), 0);
    io->ops->close(io, file);
}

static inline void flip(simdisk_t *sim, const char *path, uint64_t byte)
{
    assert_true(simdisk_flip(sim, path, byte * 8 + 3));
}

/* ---- checking it ---- */

typedef struct seen {
    ldr_fsck_finding_t findings[FOUND_MAX];
    uint8_t key[FOUND_MAX]; /* 0: no record */
    uint32_t count;
    uint64_t done, total;
    ldr_fsck_report_t report;
    larder_status_t status;
} seen_t;

static inline void on_found(void *arg, const ldr_fsck_finding_t *finding)
{
    seen_t *seen = arg;

    assert_true(seen->count < FOUND_MAX);
    seen->key[seen->count] =
        finding->record != NULL ? finding->record->key.hash[0] : 0;
    seen->findings[seen->count++] = *finding;
}

static inline void on_progress(void *arg, uint64_t done, uint64_t total)
{
    seen_t *seen = arg;

    assert_true(done >= seen->done && done <= total);
    seen->done = done;
    seen->total = total;
}

static inline seen_t run(simdisk_t *sim, bool repair)
{
    seen_t seen = {0};
    ldr_fsck_ops_t ops = {on_found, on_progress, &seen};

    seen.status = ldr_fsck(simdisk_io(sim), "d", repair, &ops, &seen.report);
    return seen;
}

static inline void assert_clean(simdisk_t *sim)
{
    seen_t seen = run(sim, false);

    assert_int_equal(seen.status, LARDER_OK);
    assert_int_equal(seen.report.damage, 0);
    assert_int_equal(seen.report.notes, 0);
    assert_int_equal(seen.count, 0);
}

static inline void assert_found(const seen_t *seen, ldr_fsck_kind_t kind,
                                uint32_t segment, uint32_t block)
{
    for (uint32_t i = 0; i < seen->count; i++) {
        if (seen->findings[i].kind == kind &&
            seen->findings[i].segment == segment &&
            seen->findings[i].block == block) {
            return;
        }
    }
    for (uint32_t i = 0; i < seen->count; i++) {
        print_message("found %s segment %d block %u\n",
                      ldr_fsck_kinds[seen->findings[i].kind].word,
                      (int)seen->findings[i].segment, seen->findings[i].block);
    }
    fail_msg("not found: %s segment %d block %u", ldr_fsck_kinds[kind].word,
             (int)segment, block);
}

static inline bool note_row(void *arg, uint32_t segment,
                            const ldr_record_t *record)
{
    bool *there = arg;

    (void)segment;
    there[record->key.hash[0]] = true;
    return true;
}

/* What an open finds: which keys are there. */
static inline void assert_rows(simdisk_t *sim, const bool *gone)
{
    bool there[256] = {0};
    ldr_recovery_t found;
    ldr_disk_t d;

    assert_int_equal(open_disk(&d, sim), LARDER_OK);
    assert_int_equal(ldr_disk_recover(&d, false, note_row, there, &found),
                     LARDER_OK);
    assert_int_equal(found.scanned, 0);
    ldr_disk_close(&d);
    for (uint32_t i = 1; i <= SEGMENTS * ROWS; i++) {
        if (there[i] == gone[i]) {
            fail_msg("key %u: there %d", i, there[i]);
        }
    }
}

/* Both disks hold the same files with the same bytes. */
static inline void assert_same(const simdisk_t *a, const simdisk_t *b)
{
    uint8_t *x = ldr_alloc(SEGMENT_BYTES), *y = ldr_alloc(SEGMENT_BYTES);
    const char *path;
    unsigned i;

    for (i = 0; (path = simdisk_path(a, i)) != NULL; i++) {
        uint64_t size = simdisk_size(a, path);

        assert_int_equal(simdisk_size(b, path), size);
        assert_true(size <= SEGMENT_BYTES);
        if (size > 0) {
            assert_true(simdisk_read_raw(a, path, 0, x, size));
            assert_true(simdisk_read_raw(b, path, 0, y, size));
            assert_memory_equal(x, y, size);
        }
    }
    assert_null(simdisk_path(b, i));
    ldr_free(x);
    ldr_free(y);
}

static inline void seed_read(void)
{
    const char *given = getenv("LARDER_SEED");

    if (given != NULL) {
        seed = strtoull(given, NULL, 0);
    }
    printf("seed=%" PRIu64 "\n", seed);
}
