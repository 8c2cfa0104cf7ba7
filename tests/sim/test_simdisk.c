/* The simulated disk keeps its own promises: tests of the store lean on it. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/mem.h"
#include "sim/simdisk.h"

#define BLOCKS 64u
#define SECTOR 512u

static uint64_t base_seed = 1;
static uint8_t *block; /* one aligned block, for any use */

static uint8_t *filled(uint8_t value)
{
    memset(block, value, LDR_BLOCK);
    return block;
}

static int open_blocks(simdisk_t *disk, const char *path)
{
    ldr_io_t *io = simdisk_io(disk);
    int file = io->ops->open(io, path, LDR_IO_CREATE | LDR_IO_DIRECT);

    assert_true(file >= 0);
    assert_int_equal(io->ops->allocate(io, file, BLOCKS * LDR_BLOCK), 0);
    return file;
}

/* A disk with d/f: BLOCKS blocks of 'o', all durable. */
static simdisk_t *disk_with_file(uint64_t seed, int *file_p)
{
    simdisk_t *disk = simdisk_create(seed, 0);
    ldr_io_t *io = simdisk_io(disk);

    assert_int_equal(io->ops->make_dir(io, "d"), 0);
    *file_p = open_blocks(disk, "d/f");
    for (unsigned i = 0; i < BLOCKS; i++) {
        assert_int_equal(
            ldr_io_write_at(io, *file_p, i * LDR_BLOCK, filled('o'), LDR_BLOCK),
            0);
    }
    assert_int_equal(ldr_io_sync(io, *file_p), 0);
    assert_int_equal(io->ops->sync_dir(io, "d"), 0);
    assert_int_equal(simdisk_unsynced(disk), 0);
    return disk;
}

static void write_block(simdisk_t *disk, int file, unsigned i, uint8_t value)
{
    assert_int_equal(ldr_io_write_at(simdisk_io(disk), file, i * LDR_BLOCK,
                                     filled(value), LDR_BLOCK),
                     0);
}

/* What a sector holds: its value if it is all one, else 0. */
static uint8_t sector_of(const simdisk_t *disk, unsigned sector)
{
    uint8_t data[SECTOR];

    assert_true(
        simdisk_read_raw(disk, "d/f", (uint64_t)sector * SECTOR, data, SECTOR));
    for (unsigned i = 1; i < SECTOR; i++) {
        if (data[i] != data[0]) {
            return 0;
        }
    }
    return data[0];
}

static uint64_t digest(const simdisk_t *disk)
{
    static uint8_t data[BLOCKS * LDR_BLOCK];
    uint64_t hash = 14695981039346656037u;

    for (unsigned i = 0; simdisk_path(disk, i) != NULL; i++) {
        const char *path = simdisk_path(disk, i);
        uint64_t bytes = simdisk_size(disk, path);

        assert_true(bytes <= sizeof(data));
        assert_true(simdisk_read_raw(disk, path, 0, data, bytes));
        for (const char *c = path; *c != '\0'; c++) {
            hash = (hash ^ (uint8_t)*c) * 1099511628211u;
        }
        for (size_t k = 0; k < bytes; k++) {
            hash = (hash ^ data[k]) * 1099511628211u;
        }
    }
    return hash;
}

static void test_files(void **state)
{
    int file;
    uint64_t bytes = 0;
    simdisk_t *disk = disk_with_file(base_seed, &file);
    ldr_io_t *io = simdisk_io(disk);
    uint8_t *two = ldr_alloc_blocks(2 * LDR_BLOCK);

    (void)state;
    write_block(disk, file, 9, 'x');
    assert_int_equal(
        ldr_io_read_at(io, file, 8 * LDR_BLOCK, two, 2 * LDR_BLOCK), 0);
    assert_int_equal(two[LDR_BLOCK - 1], 'o');
    assert_int_equal(two[LDR_BLOCK], 'x');
    assert_int_equal(
        ldr_io_read_at(io, file, (BLOCKS - 1) * LDR_BLOCK, two, 2 * LDR_BLOCK),
        -ENODATA);
    assert_int_equal(ldr_io_read_at(io, file, 512, two, LDR_BLOCK), -EINVAL);
    assert_int_equal(ldr_io_read_at(io, file, 0, two, 512), -EINVAL);
    assert_int_equal(ldr_io_read_at(io, file, 0, two + 8, LDR_BLOCK), -EINVAL);
    assert_int_equal(ldr_io_read_at(io, 7, 0, two, LDR_BLOCK), -EBADF);
    assert_int_equal(ldr_io_sync(io, 7), -EBADF);

    int reader = io->ops->open(io, "d//f", LDR_IO_READONLY);
    assert_int_equal(ldr_io_read_at(io, reader, 100, two, 10), 0);
    assert_int_equal(ldr_io_write_at(io, reader, 0, two, 10), -EBADF);
    assert_int_equal(io->ops->lock(io, file), 0);
    assert_int_equal(io->ops->lock(io, reader), -EWOULDBLOCK);
    io->ops->close(io, file);
    assert_int_equal(io->ops->lock(io, reader), 0);
    assert_int_equal(io->ops->size(io, file, &bytes), -EBADF);
    assert_int_equal(io->ops->size(io, reader, &bytes), 0);
    assert_int_equal(bytes, BLOCKS * LDR_BLOCK);

    assert_int_equal(io->ops->open(io, "d/none", 0), -ENOENT);
    assert_int_equal(io->ops->open(io, "none/f", LDR_IO_CREATE), -ENOENT);
    assert_int_equal(io->ops->open(io, "d", 0), -EISDIR);
    assert_int_equal(io->ops->make_dir(io, "d/f"), -ENOTDIR);
    assert_int_equal(io->ops->sync_dir(io, "none"), -ENOENT);
    assert_int_equal(io->ops->unlink(io, "d/none"), -ENOENT);

    /* The user goes, the disk stays. */
    io->ops->destroy(io);
    assert_int_equal(ldr_io_sync(io, reader), -EBADF);
    assert_int_equal(simdisk_size(disk, "d/f"), BLOCKS * LDR_BLOCK);
    simdisk_destroy(disk);
    ldr_free(two);
}

typedef struct names {
    char text[256];
    size_t length;
} names_t;

static int collect(void *arg, const char *name)
{
    names_t *n = arg;

    n->length += (size_t)snprintf(n->text + n->length,
                                  sizeof(n->text) - n->length, "%s ", name);
    return 0;
}

static void test_list(void **state)
{
    simdisk_t *disk = simdisk_create(base_seed, 4096);
    ldr_io_t *io = simdisk_io(disk);
    names_t names = {0};

    (void)state;
    assert_int_equal(io->ops->make_dir(io, "/a/b//c/"), 0);
    io->ops->close(io, io->ops->open(io, "/a/b/1", LDR_IO_CREATE));
    io->ops->close(io, io->ops->open(io, "/a/b/c/2", LDR_IO_CREATE));
    io->ops->close(io, io->ops->open(io, "/a/b/3", LDR_IO_CREATE));
    assert_int_equal(io->ops->list(io, "/a/b", collect, &names), 0);
    assert_string_equal(names.text, "c 1 3 ");
    assert_int_equal(io->ops->unlink(io, "/a/b/1"), 0);
    names = (names_t){0};
    assert_int_equal(io->ops->list(io, "/a/b/", collect, &names), 0);
    assert_string_equal(names.text, "c 3 ");
    names = (names_t){0};
    assert_int_equal(io->ops->list(io, "/", collect, &names), 0);
    assert_string_equal(names.text, "a ");
    assert_int_equal(io->ops->list(io, "/b", collect, &names), -ENOENT);
    simdisk_destroy(disk);
}

/* Synced sectors survive; each unsynced one is old, new or garbled, and all
 * of that happens. */
static void test_power_cut(void **state)
{
    unsigned old = 0, new = 0, between = 0, garbled = 0;

    (void)state;
    for (unsigned i = 0; i < 200; i++) {
        int file;
        simdisk_t *disk = disk_with_file(base_seed + i, &file);

        write_block(disk, file, 3, 's');
        assert_int_equal(ldr_io_sync(simdisk_io(disk), file), 0);
        write_block(disk, file, 5, 'b');
        write_block(disk, file, 5, 'n');
        write_block(disk, file, 40, 'n');
        assert_int_equal(simdisk_unsynced(disk), 2 * LDR_BLOCK / SECTOR);
        simdisk_power_cut(disk);
        assert_int_equal(simdisk_unsynced(disk), 0);
        for (unsigned k = 0; k < BLOCKS * LDR_BLOCK / SECTOR; k++) {
            unsigned at = k / (LDR_BLOCK / SECTOR);
            uint8_t value = sector_of(disk, k);

            if (at != 5 && at != 40) {
                assert_int_equal(value, at == 3 ? 's' : 'o');
                continue;
            }
            old += value == 'o';
            new += value == 'n';
            between += value == 'b';
            garbled += value == 0;
            assert_true(value == 'o' || value == 'n' || value == 0 ||
                        (value == 'b' && at == 5));
        }
        simdisk_destroy(disk);
    }
    assert_true(old > 100 && new > 100 && between > 10 && garbled > 50);
}

static void test_power_is_off(void **state)
{
    int file;
    simdisk_t *disk = disk_with_file(base_seed, &file);
    ldr_io_t *io = simdisk_io(disk);
    uint64_t bytes;
    char names[64] = "";

    (void)state;
    simdisk_power_cut(disk);
    assert_true(simdisk_is_off(disk));
    assert_int_equal(ldr_io_read_at(io, file, 0, block, LDR_BLOCK), -EIO);
    assert_int_equal(ldr_io_write_at(io, file, 0, block, LDR_BLOCK), -EIO);
    assert_int_equal(ldr_io_sync(io, file), -EIO);
    assert_int_equal(io->ops->open(io, "d/f", 0), -EIO);
    assert_int_equal(io->ops->size(io, file, &bytes), -EIO);
    assert_int_equal(io->ops->allocate(io, file, 1), -EIO);
    assert_int_equal(io->ops->lock(io, file), -EIO);
    assert_int_equal(io->ops->make_dir(io, "e"), -EIO);
    assert_int_equal(io->ops->sync_dir(io, "d"), -EIO);
    assert_int_equal(io->ops->unlink(io, "d/f"), -EIO);
    assert_int_equal(io->ops->list(io, "d", collect, names), -EIO);
    simdisk_reboot(disk);
    /* Numbers from before mean nothing now, and never again. */
    int again = io->ops->open(io, "d/f", 0);
    assert_true(again >= 0 && again != file);
    assert_int_equal(ldr_io_read_at(io, file, 0, block, LDR_BLOCK), -EBADF);
    io->ops->close(io, file);
    assert_int_equal(ldr_io_read_at(io, again, 0, block, LDR_BLOCK), 0);
    simdisk_destroy(disk);
}

static void test_names(void **state)
{
    unsigned made = 0, removed = 0, longer = 0, rounds = 100;

    (void)state;
    for (unsigned i = 0; i < rounds; i++) {
        int file;
        simdisk_t *disk = disk_with_file(base_seed + i, &file);
        ldr_io_t *io = simdisk_io(disk);

        int grown = open_blocks(disk, "d/grown");
        assert_int_equal(ldr_io_sync(io, grown), 0);
        assert_int_equal(io->ops->sync_dir(io, "d"), 0);
        assert_int_equal(io->ops->allocate(io, grown, 2 * BLOCKS * LDR_BLOCK),
                         0);
        open_blocks(disk, "d/new");
        assert_int_equal(io->ops->unlink(io, "d/f"), 0);
        assert_int_equal(simdisk_size(disk, "d/f"), UINT64_MAX);
        simdisk_power_cut(disk);
        made += simdisk_size(disk, "d/new") != UINT64_MAX;
        removed += simdisk_size(disk, "d/f") == UINT64_MAX;
        if (simdisk_size(disk, "d/f") != UINT64_MAX) {
            assert_int_equal(sector_of(disk, 7), 'o');
        }
        longer += simdisk_size(disk, "d/grown") == 2 * BLOCKS * LDR_BLOCK;
        assert_true(simdisk_size(disk, "d/grown") != UINT64_MAX);
        simdisk_destroy(disk);
    }
    assert_in_range(made, 10, rounds - 10);
    assert_in_range(removed, 10, rounds - 10);
    assert_in_range(longer, 10, rounds - 10);
}

/* Writes value k to all blocks in turn, with a sync every eighth; gives up at
 * the first error. *synced_p: blocks known to be durable. */
static void workload(simdisk_t *disk, int file, unsigned *synced_p)
{
    ldr_io_t *io = simdisk_io(disk);

    *synced_p = 0;
    for (unsigned i = 0; i < BLOCKS; i++) {
        if (ldr_io_write_at(io, file, i * LDR_BLOCK, filled('w'), LDR_BLOCK) !=
            0) {
            return;
        }
        if (i % 8 == 7) {
            if (ldr_io_sync(io, file) != 0) {
                return;
            }
            *synced_p = i + 1;
        }
    }
}

static void check_workload(const simdisk_t *disk, unsigned synced)
{
    for (unsigned k = 0; k < BLOCKS * LDR_BLOCK / SECTOR; k++) {
        unsigned at = k / (LDR_BLOCK / SECTOR);
        uint8_t value = sector_of(disk, k);

        if (at < synced) {
            assert_int_equal(value, 'w');
        } else if (at > synced + 8) {
            assert_int_equal(value, 'o');
        }
    }
}

static void test_cut_at(void **state)
{
    int file;
    unsigned synced, torn = 0;
    simdisk_t *clean = disk_with_file(base_seed, &file);
    uint64_t before = simdisk_ops(clean);

    (void)state;
    workload(clean, file, &synced);
    uint64_t ops = simdisk_ops(clean) - before;
    assert_int_equal(ops, BLOCKS + BLOCKS / 8);
    assert_int_equal(synced, BLOCKS);
    simdisk_destroy(clean);
    for (uint64_t op = 1; op <= ops + 1; op++) {
        simdisk_t *disk = disk_with_file(base_seed + op, &file);
        simdisk_cut_at(disk, before + op);
        workload(disk, file, &synced);
        assert_int_equal(simdisk_is_off(disk), op <= ops);
        check_workload(disk, synced);
        for (unsigned k = 8; k < BLOCKS * LDR_BLOCK / SECTOR; k += 8) {
            torn += sector_of(disk, k) != sector_of(disk, k + 7);
        }
        simdisk_destroy(disk);
    }
    assert_true(torn > 5);
}

typedef struct cuts {
    unsigned synced; /* before the operation under way */
    unsigned count;
    uint64_t digests;
} cuts_t;

static void cut_often(void *arg, simdisk_t *disk)
{
    cuts_t *cuts = arg;

    for (unsigned i = 0; i < 20; i++) {
        uint64_t seed = base_seed + cuts->count++;
        simdisk_t *cut = simdisk_clone_cut(disk, seed);
        assert_false(simdisk_is_off(cut));
        check_workload(cut, cuts->synced);
        cuts->digests = cuts->digests * 31 + digest(cut);
        simdisk_destroy(cut);
    }
}

static cuts_t cut_everywhere(uint64_t seed)
{
    int file;
    cuts_t cuts = {0, 0, 0};
    simdisk_t *disk = disk_with_file(seed, &file);
    ldr_io_t *io = simdisk_io(disk);

    simdisk_on_op(disk, cut_often, &cuts);
    for (unsigned i = 0; i < BLOCKS; i++) {
        write_block(disk, file, i, 'w');
        if (i % 8 == 7) {
            assert_int_equal(ldr_io_sync(io, file), 0);
            cuts.synced = i + 1;
        }
    }
    /* The disk itself has noticed nothing. */
    simdisk_on_op(disk, NULL, NULL);
    check_workload(disk, BLOCKS);
    simdisk_destroy(disk);
    return cuts;
}

static void test_clone_cut(void **state)
{
    cuts_t first = cut_everywhere(base_seed);
    cuts_t second = cut_everywhere(base_seed);

    (void)state;
    assert_int_equal(first.count, 20 * (BLOCKS + BLOCKS / 8));
    /* One seed, one disk. */
    assert_int_equal(first.digests, second.digests);
}

static void test_clone(void **state)
{
    int file;
    simdisk_t *disk = disk_with_file(base_seed, &file);
    ldr_io_t *io = simdisk_io(disk);

    (void)state;
    assert_int_equal(io->ops->lock(io, file), 0);
    write_block(disk, file, 1, 'n');
    assert_int_equal(io->ops->unlink(io, "d/f"), 0);
    simdisk_t *without = simdisk_clone(disk);
    assert_int_equal(simdisk_size(without, "d/f"), UINT64_MAX);
    write_block(disk, file, 1, 'm'); /* has no name, but is open */
    io->ops->close(io, file);
    file = open_blocks(disk, "d/f");
    write_block(disk, file, 1, 'k');

    simdisk_t *with = simdisk_clone(disk);
    ldr_io_t *other = simdisk_io(with);
    int theirs = other->ops->open(other, "d/f", LDR_IO_DIRECT);
    assert_int_equal(other->ops->lock(other, theirs), 0);
    assert_int_equal(digest(with), digest(disk));
    write_block(with, theirs, 1, 'j');
    assert_int_equal(sector_of(with, 8), 'j');
    assert_int_equal(sector_of(disk, 8), 'k');
    simdisk_destroy(disk);
    assert_int_equal(sector_of(with, 8), 'j');
    simdisk_destroy(with);
    simdisk_destroy(without);
}

static void test_faults(void **state)
{
    int file;
    simdisk_t *disk = disk_with_file(base_seed, &file);
    ldr_io_t *io = simdisk_io(disk);
    char names[64] = "";

    (void)state;
    simdisk_fail(disk, SIMDISK_READ, 2, 1, -EIO);
    assert_int_equal(ldr_io_read_at(io, file, 0, block, LDR_BLOCK), 0);
    assert_int_equal(ldr_io_read_at(io, file, 0, block, LDR_BLOCK), -EIO);
    assert_int_equal(ldr_io_read_at(io, file, 0, block, LDR_BLOCK), 0);
    assert_int_equal(simdisk_failed(disk, SIMDISK_READ), 1);
    simdisk_fail(disk, SIMDISK_WRITE, 1, 0, -ENOSPC);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(ldr_io_write_at(io, file, 0, filled('e'), LDR_BLOCK),
                         -ENOSPC);
    }
    simdisk_fail(disk, SIMDISK_OPEN, 1, 1, -EMFILE);
    simdisk_fail(disk, SIMDISK_ALLOCATE, 1, 1, -ENOSPC);
    simdisk_fail(disk, SIMDISK_LOCK, 1, 1, -ENOLCK);
    simdisk_fail(disk, SIMDISK_MAKE_DIR, 1, 1, -EROFS);
    simdisk_fail(disk, SIMDISK_SYNC_DIR, 1, 1, -EIO);
    simdisk_fail(disk, SIMDISK_UNLINK, 1, 1, -EIO);
    simdisk_fail(disk, SIMDISK_LIST, 1, 1, -EIO);
    assert_int_equal(io->ops->open(io, "d/f", 0), -EMFILE);
    assert_int_equal(io->ops->allocate(io, file, 1), -ENOSPC);
    assert_int_equal(io->ops->lock(io, file), -ENOLCK);
    assert_int_equal(io->ops->make_dir(io, "e"), -EROFS);
    assert_int_equal(io->ops->sync_dir(io, "d"), -EIO);
    assert_int_equal(io->ops->unlink(io, "d/f"), -EIO);
    assert_int_equal(io->ops->list(io, "d", collect, names), -EIO);
    simdisk_fail_none(disk);
    assert_int_equal(ldr_io_write_at(io, file, 0, filled('f'), LDR_BLOCK), 0);
    assert_int_equal(simdisk_size(disk, "d/f"), BLOCKS * LDR_BLOCK);
    simdisk_destroy(disk);
}

/* A sync that failed: what it was to save may be gone although a second sync
 * succeeds. */
static void test_failed_sync(void **state)
{
    unsigned old = 0, new = 0;

    (void)state;
    for (unsigned i = 0; i < 20; i++) {
        int file;
        simdisk_t *disk = disk_with_file(base_seed + i, &file);
        ldr_io_t *io = simdisk_io(disk);

        write_block(disk, file, 2, 'n');
        simdisk_fail(disk, SIMDISK_SYNC, 1, 1, -EIO);
        assert_int_equal(ldr_io_sync(io, file), -EIO);
        assert_int_equal(ldr_io_sync(io, file), 0);
        assert_int_equal(simdisk_unsynced(disk), 0);
        simdisk_power_cut(disk);
        for (unsigned k = 16; k < 24; k++) {
            old += sector_of(disk, k) == 'o';
            new += sector_of(disk, k) == 'n';
        }
        simdisk_destroy(disk);
    }
    assert_int_equal(old + new, 20 * 8);
    assert_true(old > 10 && new > 10);
}

static void test_lost_and_misdirected(void **state)
{
    int file;
    unsigned stray = 0;
    simdisk_t *disk = disk_with_file(base_seed, &file);

    (void)state;
    simdisk_fail(disk, SIMDISK_WRITE_LOST, 1, 1, -EIO);
    write_block(disk, file, 2, 'l');
    assert_int_equal(sector_of(disk, 16), 'o');
    simdisk_fail(disk, SIMDISK_WRITE_MISDIRECTED, 1, 1, -EIO);
    write_block(disk, file, 2, 'm');
    assert_int_equal(sector_of(disk, 16), 'o');
    for (unsigned k = 0; k < BLOCKS; k++) {
        stray += sector_of(disk, k * 8) == 'm';
    }
    assert_int_equal(stray, 1);
    write_block(disk, file, 2, 'x');
    assert_int_equal(sector_of(disk, 16), 'x');
    simdisk_destroy(disk);
}

static void test_capacity(void **state)
{
    int file;
    simdisk_t *disk = disk_with_file(base_seed, &file);
    ldr_io_t *io = simdisk_io(disk);
    uint64_t bytes = BLOCKS * LDR_BLOCK;

    (void)state;
    assert_int_equal(simdisk_used(disk), bytes);
    simdisk_set_capacity(disk, 2 * bytes - 1);
    int second = io->ops->open(io, "d/g", LDR_IO_CREATE);
    assert_int_equal(io->ops->allocate(io, second, bytes), -ENOSPC);
    assert_int_equal(simdisk_size(disk, "d/g"), 0);
    assert_int_equal(io->ops->allocate(io, second, bytes - 1), 0);
    assert_int_equal(ldr_io_write_at(io, second, bytes - 1, "ab", 2), -ENOSPC);
    assert_int_equal(ldr_io_write_at(io, second, bytes - 2, "a", 1), 0);
    /* An open file takes its room until it is closed. */
    assert_int_equal(io->ops->unlink(io, "d/f"), 0);
    assert_int_equal(io->ops->allocate(io, second, bytes), -ENOSPC);
    io->ops->close(io, file);
    assert_int_equal(io->ops->allocate(io, second, bytes), 0);
    assert_int_equal(simdisk_used(disk), bytes);
    simdisk_destroy(disk);
}

static void test_damage(void **state)
{
    int file;
    simdisk_t *disk = disk_with_file(base_seed, &file);
    uint8_t byte = 0, page[40000];

    (void)state;
    assert_true(simdisk_flip(disk, "d/f", 8 * 70000 + 3));
    write_block(disk, file, 40, 'n');
    memset(page, 'r', sizeof(page));
    assert_true(simdisk_write_raw(disk, "d/f", 100000, page, sizeof(page)));
    simdisk_power_cut(disk);
    assert_true(simdisk_read_raw(disk, "d/f", 70000, &byte, 1));
    assert_int_equal(byte, 'o' ^ 8);
    assert_true(simdisk_read_raw(disk, "d/f", 99999, &byte, 1));
    assert_int_equal(byte, 'o');
    memset(page, 0, sizeof(page));
    assert_true(simdisk_read_raw(disk, "d/f", 100000, page, sizeof(page)));
    assert_int_equal(page[0], 'r');
    assert_int_equal(page[39999], 'r');

    assert_true(simdisk_truncate(disk, "d/f", 70000));
    assert_int_equal(simdisk_size(disk, "d/f"), 70000);
    assert_false(simdisk_read_raw(disk, "d/f", 70000, &byte, 1));
    assert_false(simdisk_flip(disk, "d/f", 8 * 70000));
    assert_false(simdisk_flip(disk, "d/none", 0));
    simdisk_reboot(disk);
    /* Grown again: zeros, not what was there. */
    ldr_io_t *io = simdisk_io(disk);
    file = io->ops->open(io, "d/f", 0);
    assert_int_equal(io->ops->allocate(io, file, 200000), 0);
    assert_int_equal(ldr_io_read_at(io, file, 70000, page, 30000), 0);
    for (unsigned i = 0; i < 30000; i++) {
        assert_int_equal(page[i], 0);
    }
    simdisk_destroy(disk);
}

/* Shorter, then longer again: zeros; and before a sync the old bytes may come
 * back only with the old length. */
static void test_shrink(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 50; i++) {
        int file;
        uint8_t byte = 1;
        simdisk_t *disk = disk_with_file(base_seed + i, &file);
        ldr_io_t *io = simdisk_io(disk);

        assert_int_equal(io->ops->allocate(io, file, 5000), 0);
        if (i % 2 == 0) {
            assert_int_equal(ldr_io_sync(io, file), 0);
        }
        simdisk_power_cut(disk);
        assert_true(
            simdisk_size(disk, "d/f") == 5000 ||
            (i % 2 == 1 && simdisk_size(disk, "d/f") == BLOCKS * LDR_BLOCK));
        assert_true(simdisk_read_raw(disk, "d/f", 4000, &byte, 1));
        assert_int_equal(byte, 'o');
        simdisk_destroy(disk);
    }
}

#define MANY 500u

static ldr_io_req_t many[MANY];
static unsigned order[MANY], finished;

static void many_done(ldr_io_req_t *req)
{
    unsigned i = (unsigned)(req - many);

    assert_int_equal(req->error, 0);
    order[finished++] = i;
    if (i % 2 == 0) { /* the odd ones come from inside done() */
        ldr_io_req_t *next = &many[i + 1];
        ldr_io_submit(req->arg, &next, 1);
    }
}

static void test_submit(void **state)
{
    int file;
    simdisk_t *disk = disk_with_file(base_seed, &file);
    struct iovec iov = {filled('q'), LDR_BLOCK};
    ldr_io_req_t *even[MANY / 2];
    unsigned seen[MANY] = {0}, sorted = 0;

    (void)state;
    finished = 0;
    for (unsigned i = 0; i < MANY; i++) {
        many[i] = (ldr_io_req_t){
            .kind = i % 3 == 0 ? LDR_IO_SYNC : LDR_IO_WRITE,
            .file = file,
            .offset = i % BLOCKS * LDR_BLOCK,
            .iov = &iov,
            .iov_count = 1,
            .done = many_done,
            .arg = simdisk_io(disk),
        };
        even[i / 2] = &many[i - i % 2];
    }
    ldr_io_submit(simdisk_io(disk), even, MANY / 2);
    assert_int_equal(finished, MANY);
    for (unsigned i = 0; i < MANY; i++) {
        assert_int_equal(seen[order[i]]++, 0);
        sorted += i < MANY / 2 && order[i] == 2 * i;
    }
    assert_true(sorted < MANY / 4); /* not in the order given */
    simdisk_destroy(disk);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_list),
        cmocka_unit_test(test_power_cut),
        cmocka_unit_test(test_power_is_off),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_cut_at),
        cmocka_unit_test(test_clone_cut),
        cmocka_unit_test(test_clone),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_failed_sync),
        cmocka_unit_test(test_lost_and_misdirected),
        cmocka_unit_test(test_capacity),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_shrink),
        cmocka_unit_test(test_submit),
    };
    const char *seed = getenv("LARDER_SEED");

    base_seed = seed != NULL ? strtoull(seed, NULL, 0) : ldr_rand_entropy();
    printf("LARDER_SEED=%llu\n", (unsigned long long)base_seed);
    block = ldr_alloc_blocks(LDR_BLOCK);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ldr_free(block);
    return failed;
}
