/*
 * Damage to a directory that was closed in good order: bits that flip, files
 * that are cut short, gone, or swapped, blocks that are zero, writes that were
 * lost or went elsewhere. An open refuses the directory or serves from it, and
 * every get then gives a miss or exactly the bytes that were put and not
 * removed since.
 *
 * LARDER_FLIPS: how many random bits; LARDER_SEED.
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

#include "support/history.h"

#define KEYS 20u
#define SEGMENT_BLOCKS 128u
#define SEGMENT_BYTES ((uint64_t)SEGMENT_BLOCKS * LDR_BLOCK)
#define SEGMENTS 7u

static uint64_t seed;

/* ---- a disk to be damaged ---- */

static void disk_rig(rig_t *rig, simdisk_t *disk)
{
    rig_init(rig, disk, seed, SEGMENTS, SEGMENT_BYTES);
}

/* Puts all names, removes some, resets space 2 and puts some of it again. */
static void fill(rig_t *rig, history_t *h)
{
    for (uint32_t i = 0; i < h->size; i++) {
        history_put(h, rig, history_name(h, i));
        if (i % 5 == 4) {
            history_flush(h, rig);
        }
    }
    require(history_reset(h, rig, 2) == LARDER_OK, "reset");
    for (uint32_t i = 0; i < h->size; i += 3) {
        history_remove(h, rig, history_name(h, i));
    }
    for (uint32_t i = 0; i < h->size; i += 6) {
        history_put(h, rig, history_name(h, i));
    }
}

static simdisk_t *disk_made(history_t *h)
{
    simdisk_t *disk = simdisk_create(seed, 0);
    rig_t rig;

    disk_rig(&rig, disk);
    history_init(h, KEYS);
    require(rig_open(&rig) == LARDER_OK, "open");
    fill(&rig, h);
    rig_close(&rig);
    rig_free(&rig);
    return disk;
}

/* Opens a damaged disk, gets everything, writes some more, opens once more.
 * Gives the hits, or -1 where it was refused. */
static int survive(simdisk_t *disk, const history_t *before)
{
    history_t h = *before;
    rig_t rig;
    int hits = -1;

    disk_rig(&rig, disk);
    h.past = calloc(h.size, sizeof(*h.past));
    memcpy(h.past, before->past, h.size * sizeof(*h.past));
    larder_status_t st = rig_open(&rig);
    if (st == LARDER_OK) {
        hits = (int)history_verify(&h, &rig, NULL);
        for (uint32_t i = 0; i < h.size; i += 5) {
            history_put(&h, &rig, history_name(&h, i));
        }
        larder_flush(rig.lar, LARDER_TIER_SSD, 0);
        history_verify(&h, &rig, NULL);
        rig_close(&rig);
        require(rig_open(&rig) == LARDER_OK, "a second open: %s",
                larder_last_error());
        history_verify(&h, &rig, NULL);
        rig_close(&rig);
    } else {
        require(st == LARDER_E_CORRUPT || st == LARDER_E_VERSION, "open: %s",
                larder_status_text(st));
    }
    free(h.past);
    rig_free(&rig);
    return hits;
}

static const char *draw_path(const simdisk_t *disk, ldr_rand_t *rand)
{
    unsigned count = 0;

    while (simdisk_path(disk, count) != NULL) {
        count++;
    }
    return simdisk_path(disk, (unsigned)ldr_rand_below(rand, count));
}

/* ---- the tests ---- */

typedef struct fixture {
    simdisk_t *disk;
    history_t history;
    ldr_rand_t rand;
    int undamaged; /* hits without damage */
} fixture_t;

static int setup(void **state)
{
    fixture_t *f = calloc(1, sizeof(*f));

    f->disk = disk_made(&f->history);
    ldr_rand_seed(&f->rand, seed);
    simdisk_t *disk = simdisk_clone(f->disk);
    f->undamaged = survive(disk, &f->history);
    simdisk_destroy(disk);
    *state = f;
    return f->undamaged > 20 ? 0 : -1;
}

static int teardown(void **state)
{
    fixture_t *f = *state;

    simdisk_destroy(f->disk);
    history_free(&f->history);
    free(f);
    return 0;
}

static void test_flips(void **state)
{
    fixture_t *f = *state;
    uint64_t flips = test_count("LARDER_FLIPS", 1000);
    uint64_t refused = 0, fewer = 0;

    for (uint64_t i = 0; i < flips; i++) {
        simdisk_t *disk = simdisk_clone(f->disk);
        const char *path = draw_path(disk, &f->rand);
        uint64_t bits = simdisk_size(disk, path) * 8;

        for (uint64_t n = 1 + ldr_rand_below(&f->rand, 3); n > 0; n--) {
            if (bits > 0) {
                simdisk_flip(disk, path, ldr_rand_below(&f->rand, bits));
            }
        }
        int hits = survive(disk, &f->history);
        refused += hits < 0;
        fewer += hits >= 0 && hits < f->undamaged;
        simdisk_destroy(disk);
    }
    printf("%llu flips: %llu refused, %llu cost something\n",
           (unsigned long long)flips, (unsigned long long)refused,
           (unsigned long long)fewer);
    assert_true(refused < flips / 2);
    assert_true(flips < 100 || fewer > 0);
}

/* A few bits in every part of every structure. */
static void flip_structure(fixture_t *f, const char *path, uint64_t offset,
                           size_t bytes)
{
    for (int i = 0; i < 12; i++) {
        simdisk_t *disk = simdisk_clone(f->disk);
        uint64_t bit =
            offset * 8 + ldr_rand_below(&f->rand, (uint64_t)bytes * 8);

        if (simdisk_flip(disk, path, bit)) {
            survive(disk, &f->history);
        }
        simdisk_destroy(disk);
    }
}

static void test_structures(void **state)
{
    fixture_t *f = *state;

    for (int copy = 0; copy < 2; copy++) {
        uint64_t at = (uint64_t)copy * LDR_SUPER_BYTES;

        flip_structure(f, "/ssd/larder.super", at, 64);
        flip_structure(f, "/ssd/larder.super", at + 64, 60);
        flip_structure(f, "/ssd/larder.super", at + LDR_SUPER_BYTES - 4, 4);
    }
    for (unsigned i = 0; i < SEGMENTS; i++) {
        char path[64];
        uint64_t footer = SEGMENT_BYTES - LDR_BLOCK;

        snprintf(path, sizeof(path), "/ssd/segment-%06u", i);
        flip_structure(f, path, 0, 64);
        flip_structure(f, path, LDR_BLOCK - 4, 4);
        flip_structure(f, path, LDR_BLOCK, SEGMENT_BYTES / 2);
        flip_structure(f, path, footer, 48);
        flip_structure(f, path, footer + LDR_BLOCK - 4, 4);
        flip_structure(f, path, footer - LDR_BLOCK, LDR_BLOCK);
    }
}

/* Descriptors are found by looking for them. */
static void test_descriptors(void **state)
{
    fixture_t *f = *state;
    uint8_t block[LDR_BLOCK];
    unsigned found = 0;
    char path[64];

    for (unsigned i = 0; i < SEGMENTS; i++) {
        snprintf(path, sizeof(path), "/ssd/segment-%06u", i);
        for (uint64_t at = LDR_BLOCK; at < SEGMENT_BYTES; at += LDR_BLOCK) {
            if (!simdisk_read_raw(f->disk, path, at, block, LDR_BLOCK) ||
                memcmp(block, "LARDERRC", 8) != 0 || ++found % 8 != 0) {
                continue;
            }
            flip_structure(f, path, at, 168);
            flip_structure(f, path, at - LDR_BLOCK, LDR_BLOCK);
        }
    }
    assert_true(found > 40);
}

static void test_truncated(void **state)
{
    fixture_t *f = *state;

    for (int i = 0; i < 150; i++) {
        simdisk_t *disk = simdisk_clone(f->disk);
        const char *path = draw_path(disk, &f->rand);
        uint64_t bytes = simdisk_size(disk, path);

        bytes = ldr_rand_below(&f->rand, bytes + 1);
        simdisk_truncate(disk, path, i % 2 ? bytes : bytes & ~0xfffull);
        survive(disk, &f->history);
        simdisk_destroy(disk);
    }
}

static void unlink_path(simdisk_t *disk, const char *path)
{
    ldr_io_t *io = simdisk_io(disk);
    char copy[LDR_PATH_MAX];

    snprintf(copy, sizeof(copy), "%s", path);
    assert_int_equal(io->ops->unlink(io, copy), 0);
    io->ops->sync_dir(io, "/ssd");
}

static void test_removed_files(void **state)
{
    fixture_t *f = *state;

    for (unsigned i = 0; simdisk_path(f->disk, i) != NULL; i++) {
        simdisk_t *disk = simdisk_clone(f->disk);
        const char *path = simdisk_path(disk, i);
        bool super = strstr(path, "super") != NULL;

        unlink_path(disk, path);
        int hits = survive(disk, &f->history);
        assert_int_equal(hits < 0, super);
        simdisk_destroy(disk);
    }
}

static void copy_file(simdisk_t *to, const char *to_path, const simdisk_t *from,
                      const char *from_path)
{
    uint8_t *data = malloc(SEGMENT_BYTES);

    assert_true(simdisk_read_raw(from, from_path, 0, data, SEGMENT_BYTES));
    assert_true(simdisk_write_raw(to, to_path, 0, data, SEGMENT_BYTES));
    free(data);
}

static void test_swapped_files(void **state)
{
    fixture_t *f = *state;

    for (unsigned a = 0; a < SEGMENTS - 1; a++) {
        simdisk_t *disk = simdisk_clone(f->disk);
        char one[64], two[64];

        snprintf(one, sizeof(one), "/ssd/segment-%06u", a);
        snprintf(two, sizeof(two), "/ssd/segment-%06u", a + 1);
        copy_file(disk, one, f->disk, two);
        if (a % 2 == 0) {
            copy_file(disk, two, f->disk, one);
        }
        assert_true(survive(disk, &f->history) >= 0);
        simdisk_destroy(disk);
    }
}

static void test_zeroed(void **state)
{
    static uint8_t zeros[LDR_BLOCK * 16];
    fixture_t *f = *state;

    for (int i = 0; i < 150; i++) {
        simdisk_t *disk = simdisk_clone(f->disk);
        const char *path = draw_path(disk, &f->rand);
        uint64_t blocks = simdisk_size(disk, path) / LDR_BLOCK;
        uint64_t count = 1 + ldr_rand_below(&f->rand, 16);

        if (blocks >= count) {
            uint64_t at = ldr_rand_below(&f->rand, blocks - count + 1);
            simdisk_write_raw(disk, path, at * LDR_BLOCK, zeros,
                              count * LDR_BLOCK);
        }
        survive(disk, &f->history);
        simdisk_destroy(disk);
    }
}

/* An older state of one file beside newer ones of the others: a disk that
 * acknowledged writes and never made them. */
static void test_stale_files(void **state)
{
    fixture_t *f = *state;
    simdisk_t *newer = simdisk_clone(f->disk);
    history_t h = f->history;
    rig_t rig;

    h.past = calloc(h.size, sizeof(*h.past));
    memcpy(h.past, f->history.past, h.size * sizeof(*h.past));
    disk_rig(&rig, newer);
    assert_int_equal(rig_open(&rig), LARDER_OK);
    for (int round = 0; round < 4; round++) {
        fill(&rig, &h);
    }
    rig_close(&rig);
    rig_free(&rig);
    for (unsigned i = 0; i < SEGMENTS; i++) {
        simdisk_t *disk = simdisk_clone(newer);
        char path[64];

        snprintf(path, sizeof(path), "/ssd/segment-%06u", i);
        copy_file(disk, path, f->disk, path);
        assert_true(survive(disk, &h) >= 0);
        simdisk_destroy(disk);
    }
    free(h.past);
    simdisk_destroy(newer);
}

/* Writes that are acknowledged and lost, or land elsewhere, in a workload. */
static void test_lying_disk(void **state)
{
    uint64_t hits = 0;

    (void)state;
    for (uint64_t i = 0; i < 120; i++) {
        simdisk_t *disk = simdisk_create(seed + i, 0);
        simdisk_kind_t kind =
            i % 2 ? SIMDISK_WRITE_LOST : SIMDISK_WRITE_MISDIRECTED;
        history_t h;
        rig_t rig;

        history_init(&h, KEYS);
        disk_rig(&rig, disk);
        assert_int_equal(rig_open(&rig), LARDER_OK);
        simdisk_fail(disk, kind, 1 + i / 2, 1 + i % 3, -EIO);
        fill(&rig, &h);
        /* Of a removal both accounts may be among what was lost. */
        for (uint32_t n = 0; n < h.size; n++) {
            h.past[n].floor = 0;
        }
        history_verify(&h, &rig, NULL);
        rig_close(&rig);
        simdisk_fail_none(disk);
        int now = survive(disk, &h);
        hits += now > 0 ? (uint64_t)now : 0;
        rig_free(&rig);
        history_free(&h);
        simdisk_destroy(disk);
    }
    assert_true(hits > 1000);
}

/* Space 2 was reset: whatever happens to one copy of the superblock, and
 * whenever, nothing of it comes back. */
static void test_reset_survives(void **state)
{
    fixture_t *f = *state;

    for (int i = 0; i < 60; i++) {
        simdisk_t *disk = simdisk_clone(f->disk);
        uint64_t at = (uint64_t)(i % 2) * LDR_SUPER_BYTES;
        uint8_t junk[512];

        for (size_t n = 0; n < sizeof(junk); n++) {
            junk[n] = (uint8_t)ldr_rand_next(&f->rand);
        }
        at += ldr_rand_below(&f->rand, LDR_SUPER_BYTES / 512) * 512;
        simdisk_write_raw(disk, "/ssd/larder.super", at, junk, sizeof(junk));
        /* An open mends the copy: then the other may go. */
        rig_t rig;
        disk_rig(&rig, disk);
        assert_int_equal(rig_open(&rig), LARDER_OK);
        history_verify(&f->history, &rig, NULL);
        rig_close(&rig);
        rig_free(&rig);
        at = (uint64_t)(1 - i % 2) * LDR_SUPER_BYTES;
        simdisk_write_raw(disk, "/ssd/larder.super", at, junk, sizeof(junk));
        assert_true(survive(disk, &f->history) >= 0);
        simdisk_destroy(disk);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_flips, setup, teardown),
        cmocka_unit_test_setup_teardown(test_structures, setup, teardown),
        cmocka_unit_test_setup_teardown(test_descriptors, setup, teardown),
        cmocka_unit_test_setup_teardown(test_truncated, setup, teardown),
        cmocka_unit_test_setup_teardown(test_removed_files, setup, teardown),
        cmocka_unit_test_setup_teardown(test_swapped_files, setup, teardown),
        cmocka_unit_test_setup_teardown(test_zeroed, setup, teardown),
        cmocka_unit_test_setup_teardown(test_stale_files, setup, teardown),
        cmocka_unit_test(test_lying_disk),
        cmocka_unit_test_setup_teardown(test_reset_survives, setup, teardown),
    };

    seed = test_env("LARDER_SEED", 20240502);
    printf("seed=%llu\n", (unsigned long long)seed);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
