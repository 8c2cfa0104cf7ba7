/*
 * What was removed stays removed, whatever becomes of one file of a directory.
 *
 * A history of saves, removals, resets, reclaim and restarts, drawn from a
 * seed; then one file is lost, emptied, cut off, overwritten, swapped with
 * another or replaced by an older copy of itself. Nothing that was removed or
 * reset loads, nothing wrong does, and nothing is lost that was not in that
 * file: neither as an open finds it, nor after `fsck --repair`, nor after more
 * work, and a second file that is damaged later.
 *
 * LARDER_SEEDS: how many histories; LARDER_SEED: the first.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "store/fsck.h"
#include "support/history.h"

#define KEYS 24u
#define SEGMENT_BYTES ((uint64_t)96 * LDR_BLOCK)
#define SEGMENTS 6u
#define SNAPSHOTS 5u
#define NAMES_MAX 256u
#define DIRS_MAX 2u

typedef enum harm {
    GONE,
    EMPTIED,
    CUT_OFF,
    NO_HEADER,
    ZEROED,
    GARBAGE,
    NO_TABLE,
    SOME_BLOCKS,
    ONE_BIT,
    SWAPPED,
    OVERWRITTEN,
    OLDER,
    HARMS
} harm_t;

static const char *const harm_words[HARMS] = {
    "gone",     "emptied",     "cut off", "no header", "zeroed",      "garbage",
    "no table", "some blocks", "one bit", "swapped",   "overwritten", "older",
};

/* In a segment that was being filled it is what a power cut leaves, too. */
static const bool is_partial[HARMS] = {
    [NO_TABLE] = true,
    [SOME_BLOCKS] = true,
    [ONE_BIT] = true,
    [OLDER] = true,
};

static uint64_t first_seed, seeds;
static uint64_t harmed[HARMS], removed_count, reclaimed;

/* ---- a history ---- */

typedef struct tale {
    uint64_t seed;
    ldr_rand_t rand;
    unsigned dirs;
    bool killed;
    simdisk_t *disk;
    rig_t rig;
    history_t history;
    simdisk_t *snapshots[SNAPSHOTS];
    unsigned snapshot_count;
} tale_t;

static void rig_for(rig_t *rig, simdisk_t *disk, uint64_t seed, unsigned dirs)
{
    rig_init(rig, disk, seed, SEGMENTS, SEGMENT_BYTES);
    for (unsigned i = 1; i < dirs; i++) {
        snprintf(rig->options.dirs[i], LDR_PATH_MAX, "/ssd%u", i);
    }
    rig->options.dir_count = dirs;
}

static void restart(tale_t *t)
{
    rig_close(&t->rig);
    t->rig.seed++;
    require(rig_open(&t->rig) == LARDER_OK, "open: %s", larder_last_error());
}

static void act(tale_t *t)
{
    history_t *h = &t->history;
    name_t name = history_draw(h, &t->rand);
    uint64_t what = ldr_rand_below(&t->rand, 1000);

    if (what < 560) {
        history_put(h, &t->rig, name);
        rig_step(&t->rig, (unsigned)ldr_rand_below(&t->rand, 4));
    } else if (what < 780) {
        larder_status_t st = history_remove(h, &t->rig, name);

        require(st == LARDER_OK || st == LARDER_MISS, "remove: %s",
                larder_status_text(st));
        removed_count++;
    } else if (what < 860) {
        history_get(h, &t->rig, name);
    } else if (what < 975) {
        history_flush(h, &t->rig);
    } else if (what < 980) {
        require(history_reset(h, &t->rig, name.space) == LARDER_OK, "reset");
    } else if (what < 992) {
        restart(t);
    } else {
        rig_sleep(&t->rig, 1500);
        rig_step(&t->rig, 20);
    }
}

static void tale_begin(tale_t *t, uint64_t seed)
{
    memset(t, 0, sizeof(*t));
    t->seed = seed;
    ldr_rand_seed(&t->rand, seed);
    t->dirs = seed % 4 == 0 ? 2 : 1;
    t->killed = seed % 3 == 0;
    t->disk = simdisk_create(seed, 0);
    history_init(&t->history, KEYS);
    require(t->history.size <= NAMES_MAX, "more names");
}

static void tale_tell(tale_t *t)
{
    uint64_t seed = t->seed;

    rig_for(&t->rig, t->disk, seed, t->dirs);
    require(rig_open(&t->rig) == LARDER_OK, "open");
    uint64_t acts = 60 + ldr_rand_below(&t->rand, 700);
    for (uint64_t i = 0; i < acts; i++) {
        act(t);
        if (i % (acts / SNAPSHOTS + 1) == acts / SNAPSHOTS) {
            t->snapshots[t->snapshot_count++] = simdisk_clone(t->disk);
        }
    }
    reclaimed += disks_of(t->rig.node)[0].disk.sequence > 2 * SEGMENTS;
    /* Ended, or killed in the middle of it, with or without the power. */
    if (!t->killed) {
        rig_close(&t->rig);
    } else {
        simdisk_t *left = seed % 2 == 0 ? simdisk_clone(t->disk)
                                        : simdisk_clone_cut(t->disk, seed);

        rig_close(&t->rig);
        simdisk_destroy(t->disk);
        t->disk = left;
    }
    rig_free(&t->rig);
}

static void tale_make(tale_t *t, uint64_t seed)
{
    tale_begin(t, seed);
    tale_tell(t);
}

static void tale_free(tale_t *t)
{
    for (unsigned i = 0; i < t->snapshot_count; i++) {
        simdisk_destroy(t->snapshots[i]);
    }
    simdisk_destroy(t->disk);
    history_free(&t->history);
}

/* ---- one file ---- */

static const char *segment_path(unsigned dir, unsigned segment)
{
    static char paths[4][64];
    static unsigned turn;
    char *path = paths[turn++ % 4];

    snprintf(path, 64, dir == 0 ? "/ssd/segment-%06u" : "/ssd1/segment-%06u",
             segment);
    return path;
}

static void write_file(simdisk_t *to, const char *path, const simdisk_t *from,
                       const char *from_path)
{
    uint64_t size = simdisk_size(from, from_path);
    uint8_t *data = malloc(SEGMENT_BYTES);

    require(simdisk_truncate(to, path, size), "length");
    require(simdisk_read_raw(from, from_path, 0, data, size), "read");
    require(simdisk_write_raw(to, path, 0, data, size), "write");
    free(data);
}

static void junk(simdisk_t *disk, const char *path, uint64_t at, uint64_t bytes,
                 ldr_rand_t *rand)
{
    uint8_t *data = calloc(1, bytes);

    for (uint64_t i = 0; rand != NULL && i + 8 <= bytes; i += 8) {
        uint64_t word = ldr_rand_next(rand);
        memcpy(data + i, &word, 8);
    }
    require(simdisk_write_raw(disk, path, at, data, bytes), "write");
    free(data);
}

typedef struct victim {
    unsigned dir, segment;
    unsigned other; /* that suffers, too; or the same */
} victim_t;

/* False: it cannot be done here. */
static bool do_harm(tale_t *t, simdisk_t *disk, harm_t harm, victim_t *v)
{
    ldr_rand_t *rand = &t->rand;
    const char *path = segment_path(v->dir, v->segment);
    ldr_io_t *io = simdisk_io(disk);
    uint64_t blocks = SEGMENT_BYTES / LDR_BLOCK, at;
    const simdisk_t *old;

    if (simdisk_size(disk, path) != SEGMENT_BYTES) {
        return false;
    }
    switch (harm) {
    case GONE:
        io->ops->unlink(io, path);
        io->ops->sync_dir(io, v->dir == 0 ? "/ssd" : "/ssd1");
        return true;
    case EMPTIED:
        return simdisk_truncate(disk, path, 0);
    case CUT_OFF:
        return simdisk_truncate(disk, path,
                                ldr_rand_below(rand, SEGMENT_BYTES));
    case NO_HEADER:
        junk(disk, path, 0, LDR_BLOCK, NULL);
        return true;
    case ZEROED:
        junk(disk, path, 0, SEGMENT_BYTES, NULL);
        return true;
    case GARBAGE:
        junk(disk, path, 0, SEGMENT_BYTES, rand);
        return true;
    case NO_TABLE:
        junk(disk, path, SEGMENT_BYTES - 4 * LDR_BLOCK, 4 * LDR_BLOCK, rand);
        return true;
    case SOME_BLOCKS:
        at = ldr_rand_below(rand, blocks);
        blocks = 1 + ldr_rand_below(rand, blocks - at);
        junk(disk, path, at * LDR_BLOCK, blocks * LDR_BLOCK, rand);
        /* And without a table what is left of it has to be looked for. */
        junk(disk, path, SEGMENT_BYTES - LDR_BLOCK, LDR_BLOCK, rand);
        return true;
    case ONE_BIT:
        return simdisk_flip(disk, path,
                            ldr_rand_below(rand, SEGMENT_BYTES * 8));
    case SWAPPED:
    case OVERWRITTEN:
        v->other = (unsigned)ldr_rand_below(rand, SEGMENTS);
        if (v->other == v->segment ||
            simdisk_size(disk, segment_path(v->dir, v->other)) !=
                SEGMENT_BYTES) {
            return false;
        }
        write_file(disk, path, t->disk, segment_path(v->dir, v->other));
        if (harm == SWAPPED) {
            write_file(disk, segment_path(v->dir, v->other), t->disk, path);
        } else {
            v->other = v->segment;
        }
        return true;
    case OLDER:
        old = t->snapshots[ldr_rand_below(rand, t->snapshot_count)];
        if (simdisk_size(old, path) != SEGMENT_BYTES) {
            return false;
        }
        write_file(disk, path, old, path);
        return true;
    default:
        return false;
    }
}

/* ---- what is left of it ---- */

static void on_found(void *arg, const ldr_fsck_finding_t *f)
{
    (void)arg;
    if (seeds == 1 && ldr_fsck_kinds[f->kind].damage) {
        printf("  %s: %d block %u\n", ldr_fsck_kinds[f->kind].word,
               (int)f->segment, f->block);
    }
}

static ldr_fsck_report_t check_dir(simdisk_t *disk, const char *path,
                                   bool repair)
{
    ldr_fsck_report_t report;
    ldr_fsck_ops_t ops = {.found = on_found};
    larder_status_t st =
        ldr_fsck(simdisk_io(disk), path, repair, &ops, &report);

    require(st == LARDER_OK, "fsck: %s", larder_last_error());
    return report;
}

static uint64_t damage_in(simdisk_t *disk, unsigned dirs, bool repair)
{
    uint64_t damage = 0;

    for (unsigned i = 0; i < dirs; i++) {
        ldr_fsck_report_t r =
            check_dir(disk, i == 0 ? "/ssd" : "/ssd1", repair);

        damage += repair ? r.damage - r.repaired : r.damage;
    }
    return damage;
}

/* Where an open finds every name. */
static void find_all(const tale_t *t, ldr_loc_t *locs)
{
    simdisk_t *disk = simdisk_clone(t->disk);
    rig_t rig;

    rig_for(&rig, disk, t->seed, t->dirs);
    require(rig_open(&rig) == LARDER_OK, "open");
    for (uint32_t i = 0; i < t->history.size; i++) {
        locs[i] = rig_loc(&rig, history_name(&t->history, i));
    }
    history_verify(&t->history, &rig, NULL);
    rig_close(&rig);
    rig_free(&rig);
    simdisk_destroy(disk);
}

/* Opens it: nothing is back, and what must be there is. */
static void open_and_verify(const tale_t *t, simdisk_t *disk, const bool *must,
                            bool work)
{
    history_t h = t->history;
    rig_t rig;

    h.past = calloc(h.size, sizeof(*h.past));
    memcpy(h.past, t->history.past, h.size * sizeof(*h.past));
    rig_for(&rig, disk, t->seed + 1, t->dirs);
    require(rig_open(&rig) == LARDER_OK, "open: %s", larder_last_error());
    history_verify(&h, &rig, must);
    for (uint32_t i = 0; i < h.size && work; i += 2) {
        history_put(&h, &rig, history_name(&h, i));
        history_remove(&h, &rig, history_name(&h, i + (i % 3 == 0)));
    }
    rig_sleep(&rig, 1500);
    rig_step(&rig, 200);
    history_verify(&h, &rig, NULL);
    rig_close(&rig);
    require(rig_open(&rig) == LARDER_OK, "open: %s", larder_last_error());
    history_verify(&h, &rig, NULL);
    rig_close(&rig);
    rig_free(&rig);
    free(h.past);
}

/* Whether something is lost that was there. */
static bool is_hurt(const tale_t *t, const simdisk_t *disk,
                    const ldr_loc_t *locs, const bool *must)
{
    simdisk_t *copy = simdisk_clone(disk);
    bool hurt = false;
    rig_t rig;

    rig_for(&rig, copy, t->seed, t->dirs);
    require(rig_open(&rig) == LARDER_OK, "open");
    for (uint32_t i = 0; i < t->history.size; i++) {
        hurt = hurt || (locs[i] != 0 && !must[i] &&
                        rig_loc(&rig, history_name(&t->history, i)) == 0);
    }
    rig_close(&rig);
    rig_free(&rig);
    simdisk_destroy(copy);
    return hurt;
}

/* A second file, later: what the first one had is in another again. */
static void harm_again(tale_t *t, simdisk_t *disk)
{
    victim_t v = {0};
    char path[64];

    if (ldr_rand_below(&t->rand, 3) > 0) {
        v.segment = (unsigned)ldr_rand_below(&t->rand, SEGMENTS);
        do_harm(t, disk, (harm_t)ldr_rand_below(&t->rand, SWAPPED), &v);
    } else {
        snprintf(path, sizeof(path), "/ssd/larder.ledger-%u",
                 (unsigned)ldr_rand_below(&t->rand, 2));
        simdisk_truncate(disk, path, ldr_rand_below(&t->rand, 65536));
    }
}

static void trial(tale_t *t, const ldr_loc_t *locs, harm_t harm)
{
    simdisk_t *disk = simdisk_clone(t->disk);
    bool must[NAMES_MAX] = {false};
    victim_t v = {
        .dir = (unsigned)ldr_rand_below(&t->rand, t->dirs),
        .segment = (unsigned)ldr_rand_below(&t->rand, SEGMENTS),
    };

    v.other = v.segment;
    if (do_harm(t, disk, harm, &v)) {
        if (seeds == 1) {
            printf("segment %u of directory %u: %s\n", v.segment, v.dir,
                   harm_words[harm]);
        }
        harmed[harm]++;
        for (uint32_t i = 0; i < t->history.size; i++) {
            unsigned segment = ldr_loc_segment(locs[i]);

            must[i] =
                locs[i] != 0 && (ldr_loc_disk(locs[i]) != v.dir ||
                                 (segment != v.segment && segment != v.other));
        }
        simdisk_t *mended = simdisk_clone(disk);
        require((t->killed && is_partial[harm]) ||
                    !is_hurt(t, disk, locs, must) ||
                    damage_in(mended, t->dirs, false) > 0,
                "%s: fsck calls it clean", harm_words[harm]);
        require(damage_in(mended, t->dirs, true) == 0, "not repaired");
        require(damage_in(mended, t->dirs, false) == 0, "not clean");
        open_and_verify(t, mended, must, false);
        simdisk_destroy(mended);
        open_and_verify(t, disk, must, false);
        harm_again(t, disk);
        open_and_verify(t, disk, NULL, true);
    }
    simdisk_destroy(disk);
}

/* ---- the other files ---- */

static const char *const other_files[] = {
    "/ssd/larder.ledger-0",
    "/ssd/larder.ledger-1",
    "/ssd/larder.super",
};

enum {
    OTHERS = sizeof(other_files) / sizeof(*other_files),
    SUPER = OTHERS - 1
};

/* Harm to the ledger, or to one copy of the superblock. */
static void harm_other(tale_t *t, simdisk_t *disk, unsigned file, unsigned how)
{
    const char *path = other_files[file];
    uint64_t size = simdisk_size(disk, path);
    uint64_t from = file == SUPER ? LDR_SUPER_BYTES : 0;
    uint64_t at = from + ldr_rand_below(&t->rand, size - from);
    ldr_io_t *io = simdisk_io(disk);
    char copy[64];

    switch (how) {
    case 0:
        if (file != SUPER) {
            snprintf(copy, sizeof(copy), "%s", path);
            io->ops->unlink(io, copy);
            io->ops->sync_dir(io, "/ssd");
        }
        break;
    case 1:
        simdisk_truncate(disk, path, at);
        break;
    case 2:
        simdisk_truncate(disk, path, from);
        break;
    case 3:
        junk(disk, path, from, size - from, &t->rand);
        break;
    case 4:
        junk(disk, path, at / LDR_BLOCK * LDR_BLOCK, LDR_BLOCK, &t->rand);
        break;
    case 5:
        simdisk_flip(disk, path, at * 8 + ldr_rand_below(&t->rand, 8));
        break;
    default: /* an older copy of itself */
        write_file(disk, path,
                   t->snapshots[ldr_rand_below(&t->rand, t->snapshot_count)],
                   path);
    }
}

/* What the ledger says the segments have as well: nothing is lost with it, and
 * nothing is with one copy of the superblock. */
static void test_other_files(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < seeds; i++) {
        ldr_loc_t locs[NAMES_MAX];
        bool must[NAMES_MAX] = {false};
        tale_t t;

        test_seed(first_seed + i);
        tale_make(&t, first_seed + i);
        find_all(&t, locs);
        for (uint32_t n = 0; n < t.history.size; n++) {
            must[n] = locs[n] != 0;
        }
        for (unsigned n = 0; n < OTHERS * 7; n++) {
            simdisk_t *disk = simdisk_clone(t.disk);

            if (n / 7 == SUPER && n % 7 == 6) {
                simdisk_destroy(disk);
                continue; /* both copies older: that undoes resets */
            }
            harm_other(&t, disk, n / 7, n % 7);
            if (seeds == 1) {
                printf("%s: %u\n", other_files[n / 7], n % 7);
            }
            simdisk_t *mended = simdisk_clone(disk);
            require(damage_in(mended, t.dirs, true) == 0, "not repaired");
            require(damage_in(mended, t.dirs, false) == 0, "not clean");
            open_and_verify(&t, mended, must, false);
            simdisk_destroy(mended);
            open_and_verify(&t, disk, must, false);
            harm_again(&t, disk);
            open_and_verify(&t, disk, NULL, true);
            simdisk_destroy(disk);
        }
        tale_free(&t);
    }
}

/* ---- more removals than the ledger has room for ---- */

#define MANY 1500u

static larder_status_t remove_absent(rig_t *rig, uint32_t key)
{
    return rig_remove(rig, (name_t){0, 0, 100000 + key});
}

/* The oldest segments go, and no removal is forgotten that matters. */
static void test_many(void **state)
{
    tale_t t;

    (void)state;
    for (uint64_t seed = 2; seed < 5; seed++) {
        ldr_loc_t locs[NAMES_MAX];

        test_seed(seed);
        tale_make(&t, seed);
        rig_for(&t.rig, t.disk, seed, t.dirs);
        assert_int_equal(rig_open(&t.rig), LARDER_OK);
        for (uint32_t i = 0; i < MANY; i++) {
            larder_status_t st = remove_absent(&t.rig, i);

            require(st == LARDER_MISS, "remove: %s", larder_status_text(st));
            if (i % 4 == 0) {
                act(&t);
            }
            const ldr_ledger_t *l = &disks_of(t.rig.node)[0].disk.ledger;
            require(l->row_count + l->use_count <= l->want / 2 * 55, "%u rows",
                    l->row_count);
        }
        require(disks_of(t.rig.node)[0].on, "off");
        rig_close(&t.rig);
        rig_free(&t.rig);
        find_all(&t, locs);
        for (harm_t harm = 0; harm < HARMS; harm++) {
            trial(&t, locs, harm);
        }
        tale_free(&t);
    }
}

/* ---- a power cut loses no segment ---- */

typedef struct cuts {
    ldr_rand_t rand;
    uint64_t count;
} cuts_t;

static void cut(void *arg, simdisk_t *disk)
{
    cuts_t *cuts = arg;

    if (ldr_rand_below(&cuts->rand, 12) == 0) {
        simdisk_t *left = simdisk_clone_cut(disk, ldr_rand_next(&cuts->rand));

        if (simdisk_size(left, "/ssd/larder.super") != UINT64_MAX) {
            ldr_fsck_report_t report = check_dir(left, "/ssd", false);

            require(report.segments_lost == 0, "a segment is lost");
        }
        simdisk_destroy(left);
        cuts->count++;
    }
}

static void test_cuts(void **state)
{
    cuts_t cuts = {.count = 0};

    (void)state;
    ldr_rand_seed(&cuts.rand, first_seed);
    for (uint64_t i = 0; i < seeds; i++) {
        tale_t t;

        test_seed(first_seed + i);
        tale_begin(&t, first_seed + i);
        t.dirs = 1;
        simdisk_on_op(t.disk, cut, &cuts);
        tale_tell(&t);
        tale_free(&t);
    }
    printf("%llu cuts\n", (unsigned long long)cuts.count);
    assert_true(cuts.count > 50 * seeds);
}

static void test_one_segment(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < seeds; i++) {
        ldr_loc_t locs[NAMES_MAX];
        tale_t t;

        test_seed(first_seed + i);
        tale_make(&t, first_seed + i);
        require(damage_in(t.disk, t.dirs, false) == 0, "seed %llu: not clean",
                (unsigned long long)t.seed);
        find_all(&t, locs);
        for (int round = 0; round < 3; round++) {
            for (harm_t harm = 0; harm < HARMS; harm++) {
                trial(&t, locs, harm);
            }
        }
        tale_free(&t);
    }
    for (harm_t harm = 0; harm < HARMS; harm++) {
        printf("%s: %llu\n", harm_words[harm],
               (unsigned long long)harmed[harm]);
        assert_true(harmed[harm] > seeds / 2);
    }
    printf("%llu removals, %llu histories with reclaim\n",
           (unsigned long long)removed_count, (unsigned long long)reclaimed);
    assert_true(removed_count > 20 * seeds && reclaimed > seeds / 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_segment),
        cmocka_unit_test(test_other_files),
        cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_many),
    };

    first_seed = test_env("LARDER_SEED", 20240901);
    seeds = test_count("LARDER_SEEDS", 12);
    printf("seed=%llu\n", (unsigned long long)first_seed);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
