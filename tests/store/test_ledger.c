/*
 * The ledger by itself, on the simulated disk: what was said is known again,
 * whatever was cut or damaged of its last words, and nothing is believed that
 * is not of this generation, place and directory.
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

#include "base/bytes.h"
#include "base/copy.h"
#include "sim/simdisk.h"
#include "store/index.h"
#include "store/ledger.h"
#include "support/values.h"

#define HEADER_CRC 0xf181156d
#define BLOCK_CRC 0x2e8637f6
#define BYTES ((uint64_t)LDR_LEDGER_BYTES_MIN)

static const uint8_t dir_id[LDR_ID_BYTES] = "the directory";

typedef struct fixture {
    simdisk_t *sim;
    ldr_rand_t rand;
    ldr_ledger_t ledger;
} fixture_t;

static void open_it(fixture_t *f)
{
    assert_int_equal(ldr_ledger_open(&f->ledger,
                                     &(ldr_ledger_params_t){
                                         .io = simdisk_io(f->sim),
                                         .path = "/ssd",
                                         .rand = &f->rand,
                                         .dir_id = dir_id,
                                     }),
                     LARDER_OK);
    ldr_ledger_fit(&f->ledger, BYTES);
}

static void reopen(fixture_t *f)
{
    ldr_ledger_close(&f->ledger);
    open_it(f);
}

static int setup(void **state)
{
    fixture_t *f = calloc(1, sizeof(*f));
    ldr_io_t *io;

    f->sim = simdisk_create(11, 0);
    io = simdisk_io(f->sim);
    ldr_rand_seed(&f->rand, 11);
    assert_int_equal(io->ops->make_dir(io, "/ssd"), 0);
    open_it(f);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture_t *f = *state;

    ldr_ledger_close(&f->ledger);
    simdisk_destroy(f->sim);
    free(f);
    return 0;
}

/* ---- short forms ---- */

static ldr_use_t use(uint64_t sequence)
{
    return (ldr_use_t){sequence, test_mix(sequence), false};
}

static ldr_record_t tombstone(uint32_t key, uint32_t block)
{
    return (ldr_record_t){
        .kind = LDR_RECORD_TOMBSTONE,
        .key = test_key(key),
        .shards = 1,
        .block = block,
        .epoch = 3,
        .group = 2,
    };
}

static void remove_key(fixture_t *f, uint32_t key, uint64_t sequence)
{
    ldr_record_t r = tombstone(key, key);

    ldr_ledger_removed(&f->ledger, &r, sequence);
}

static void sync_it(fixture_t *f)
{
    int other = 1;

    assert_int_equal(ldr_ledger_sync(&f->ledger, -1, &other), 0);
    assert_int_equal(other, 0);
}

static bool knows(const fixture_t *f, uint32_t key, uint64_t sequence)
{
    larder_key_t k = test_key(key);

    for (uint32_t i = 0; i < f->ledger.row_count; i++) {
        const ldr_ledger_entry_t *e = &f->ledger.rows[i].entry;

        if (memcmp(&e->key, &k, sizeof(k)) == 0 && e->sequence == sequence &&
            e->block == key && e->epoch == 3 && e->group == 2) {
            return true;
        }
    }
    return false;
}

static const char *active_path(const fixture_t *f)
{
    return f->ledger.active == 0 ? "/ssd/larder.ledger-0"
                                 : "/ssd/larder.ledger-1";
}

/* ---- the tests ---- */

static void test_new(void **state)
{
    fixture_t *f = *state;

    assert_int_equal(f->ledger.active, -1);
    assert_false(ldr_ledger_whole(&f->ledger));
    assert_int_equal(ldr_ledger_write(&f->ledger), 0);
    assert_true(ldr_ledger_whole(&f->ledger));
    reopen(f);
    assert_true(ldr_ledger_whole(&f->ledger) && f->ledger.trusted);
    for (int i = 0; i < LDR_LEDGERS; i++) {
        assert_int_equal(f->ledger.states[i], LDR_LEDGER_GOOD);
    }
    assert_int_equal(simdisk_size(f->sim, "/ssd/larder.ledger-0"), BYTES);
    assert_int_equal(simdisk_size(f->sim, "/ssd/larder.ledger-1"), BYTES);
}

static void test_segments(void **state)
{
    fixture_t *f = *state;

    assert_int_equal(ldr_ledger_use(&f->ledger, 7, use(20)), 0);
    assert_int_equal(ldr_ledger_use(&f->ledger, 3, use(21)), 0);
    assert_int_equal(ldr_ledger_use(&f->ledger, 4, use(22)), 0);
    ldr_ledger_closed(&f->ledger, 3);
    assert_int_equal(ldr_ledger_free(&f->ledger, 4), 0);
    reopen(f);
    assert_true(f->ledger.trusted);
    assert_int_equal(f->ledger.use_count, 2);
    assert_int_equal(ldr_ledger_oldest(&f->ledger), 7);
    assert_false(ldr_ledger_use_of(&f->ledger, 7).closed);
    assert_true(ldr_ledger_use_of(&f->ledger, 3).closed);
    /* As it is; of an earlier use; of one that is over; too new to be known. */
    assert_int_equal(ldr_ledger_judge(&f->ledger, 7, 20, test_mix(20)),
                     LDR_VERDICT_SAME);
    assert_int_equal(ldr_ledger_judge(&f->ledger, 7, 20, 1), LDR_VERDICT_STALE);
    assert_int_equal(ldr_ledger_judge(&f->ledger, 7, 19, test_mix(19)),
                     LDR_VERDICT_STALE);
    assert_int_equal(ldr_ledger_judge(&f->ledger, 4, 22, test_mix(22)),
                     LDR_VERDICT_STALE);
    assert_int_equal(ldr_ledger_judge(&f->ledger, 4, 23, test_mix(23)),
                     LDR_VERDICT_NEWER);
    assert_int_equal(ldr_ledger_judge(&f->ledger, 7, 23, test_mix(23)),
                     LDR_VERDICT_NEWER);
}

/* So many that the files are written in turns; what no segment needs goes. */
static void test_removals(void **state)
{
    fixture_t *f = *state;
    uint64_t generation = 0;

    assert_int_equal(ldr_ledger_use(&f->ledger, 0, use(10)), 0);
    assert_int_equal(ldr_ledger_use(&f->ledger, 1, use(11)), 0);
    for (uint32_t i = 0; i < 300; i++) {
        assert_false(ldr_ledger_full(&f->ledger));
        remove_key(f, i, 10 + i % 2);
        if (i % 5 == 0) {
            sync_it(f);
        }
    }
    sync_it(f);
    generation = f->ledger.header.generation;
    assert_true(generation > 4);
    reopen(f);
    assert_true(f->ledger.trusted && ldr_ledger_whole(&f->ledger));
    assert_int_equal(f->ledger.row_count, 300);
    for (uint32_t i = 0; i < 300; i++) {
        assert_true(knows(f, i, 10 + i % 2));
    }
    /* The first segment goes, and what stood in it. */
    assert_int_equal(ldr_ledger_free(&f->ledger, 0), 0);
    assert_int_equal(ldr_ledger_write(&f->ledger), 0);
    reopen(f);
    assert_int_equal(f->ledger.row_count, 150);
    assert_true(knows(f, 1, 11) && !knows(f, 0, 10));
}

static void test_full(void **state)
{
    fixture_t *f = *state;
    uint32_t n = 0;

    assert_int_equal(ldr_ledger_use(&f->ledger, 0, use(10)), 0);
    assert_int_equal(ldr_ledger_use(&f->ledger, 1, use(11)), 0);
    while (!ldr_ledger_full(&f->ledger)) {
        remove_key(f, n++, 10);
        sync_it(f);
        assert_true(n < 100000);
    }
    assert_in_range(n, 300, 450);
    assert_int_equal(simdisk_size(f->sim, active_path(f)), BYTES);
    reopen(f);
    assert_int_equal(f->ledger.row_count, n);
    assert_true(ldr_ledger_full(&f->ledger));
    assert_int_equal(ldr_ledger_free(&f->ledger, 0), 0);
    assert_false(ldr_ledger_full(&f->ledger));
    assert_int_equal(ldr_ledger_write(&f->ledger), 0);
    assert_int_equal(f->ledger.row_count, 0);
}

/* While a directory is opened: what the segments have, and what they lack. */
static void test_union(void **state)
{
    fixture_t *f = *state;
    ldr_record_t lone, seen = tombstone(1, 1), carried = tombstone(2, 77);

    assert_int_equal(ldr_ledger_use(&f->ledger, 0, use(10)), 0);
    assert_int_equal(ldr_ledger_use(&f->ledger, 1, use(20)), 0);
    for (uint32_t i = 1; i <= 3; i++) {
        remove_key(f, i, 10);
    }
    sync_it(f);
    reopen(f);
    ldr_ledger_listed(&f->ledger);
    ldr_ledger_seen(&f->ledger, &seen, 10);
    ldr_put64(carried.parent.hash, 10); /* it stood at block 2 of the first */
    ldr_put32(carried.parent.hash + 8, 2);
    ldr_ledger_seen(&f->ledger, &carried, 20);
    ldr_ledger_settle(&f->ledger);
    assert_true(ldr_ledger_whole(&f->ledger));
    assert_int_equal(f->ledger.row_count, 3);
    assert_true(ldr_ledger_lone(&f->ledger, &lone));
    larder_key_t key = test_key(3);
    assert_memory_equal(&lone.key, &key, sizeof(key));
    assert_int_equal(ldr_get64(lone.parent.hash), 10);
    assert_int_equal(ldr_get32(lone.parent.hash + 8), 3);
    assert_false(ldr_ledger_lone(&f->ledger, &lone));
    /* One that it lacks; and one that nobody needs any more. */
    ldr_record_t other = tombstone(4, 4), dead = tombstone(5, 5);
    ldr_ledger_seen(&f->ledger, &dead, 9);
    ldr_ledger_settle(&f->ledger);
    assert_true(ldr_ledger_whole(&f->ledger));
    ldr_ledger_seen(&f->ledger, &other, 20);
    ldr_ledger_settle(&f->ledger);
    assert_false(ldr_ledger_whole(&f->ledger));
    assert_int_equal(ldr_ledger_write(&f->ledger), 0);
    reopen(f);
    assert_true(knows(f, 4, 20) && knows(f, 1, 10) && !knows(f, 5, 9));
}

/* A bit of the active file: the block is not believed, and the list of segments
 * only if what is damaged cannot have been about it. */
static void test_flips(void **state)
{
    fixture_t *f = *state;

    assert_int_equal(ldr_ledger_use(&f->ledger, 0, use(10)), 0);
    for (uint32_t i = 0; i < 4; i++) {
        remove_key(f, i, 10);
        sync_it(f);
    }
    uint32_t blocks = f->ledger.next;
    simdisk_t *good = f->sim;
    char path[32];
    snprintf(path, sizeof(path), "%s", active_path(f));
    ldr_ledger_close(&f->ledger);
    for (uint32_t block = 0; block < blocks; block++) {
        for (uint64_t byte = 0; byte < LDR_BLOCK; byte += 67) {
            f->sim = simdisk_clone(good);
            uint64_t bit = (block * (uint64_t)LDR_BLOCK + byte) * 8 + 5;
            assert_true(simdisk_flip(f->sim, path, bit));
            open_it(f);
            bool last = block + 1 == blocks; /* as if it was never written */
            assert_int_equal(f->ledger.trusted, last || block == 0);
            assert_true(last || !ldr_ledger_whole(&f->ledger));
            assert_int_not_equal(
                ldr_ledger_judge(&f->ledger, 0, 11, test_mix(11)),
                LDR_VERDICT_STALE);
            assert_int_equal(ldr_ledger_write(&f->ledger), 0);
            reopen(f);
            assert_true(ldr_ledger_whole(&f->ledger));
            ldr_ledger_close(&f->ledger);
            simdisk_destroy(f->sim);
        }
    }
    f->sim = good;
    open_it(f);
}

typedef struct cuts {
    fixture_t *fixture;
    uint32_t synced; /* removals that are, and */
    uint32_t begun;  /* more that may be */
    uint64_t count;
} cuts_t;

/* Cut at any write or sync: what was synced is known, and no part of it is
 * taken for damage. */
static void cut(void *arg, simdisk_t *disk)
{
    cuts_t *cuts = arg;

    for (uint32_t i = 0; i < 4; i++) {
        fixture_t f = {.sim = simdisk_clone_cut(disk, ++cuts->count)};

        open_it(&f);
        for (uint32_t key = 0; key < cuts->synced; key++) {
            assert_true(knows(&f, key, 10));
        }
        if (cuts->synced > 0) {
            assert_true(f.ledger.trusted);
            assert_int_equal(ldr_ledger_use_of(&f.ledger, 0).sequence, 10);
        }
        assert_true(f.ledger.row_count <= cuts->begun);
        ldr_ledger_close(&f.ledger);
        simdisk_destroy(f.sim);
    }
}

static void test_cuts(void **state)
{
    fixture_t *f = *state;
    cuts_t cuts = {.fixture = f};

    simdisk_on_op(f->sim, cut, &cuts);
    assert_int_equal(ldr_ledger_use(&f->ledger, 0, use(10)), 0);
    for (uint32_t round = 0; round < 24; round++) {
        uint32_t count = round % 5 == 4 ? 120 : 1; /* of several blocks, too */

        if (ldr_ledger_full(&f->ledger)) {
            break;
        }
        for (uint32_t i = 0; i < count; i++) {
            remove_key(f, cuts.begun++, 10);
        }
        ldr_ledger_closed(&f->ledger, 0);
        sync_it(f);
        cuts.synced = cuts.begun;
    }
    simdisk_on_op(f->sim, NULL, NULL);
    assert_true(cuts.count > 200 && cuts.synced > 120);
}

/* A write or sync that fails: the other file takes over, or it is said. */
static void test_failures(void **state)
{
    static const simdisk_kind_t kinds[] = {SIMDISK_WRITE, SIMDISK_SYNC};
    fixture_t *f = *state;
    uint32_t key = 0;
    int other;

    assert_int_equal(ldr_ledger_use(&f->ledger, 0, use(10)), 0);
    for (int k = 0; k < 2; k++) {
        remove_key(f, key++, 10);
        simdisk_fail(f->sim, kinds[k], 1, 1, -EIO);
        sync_it(f);
        remove_key(f, key++, 10);
        simdisk_fail(f->sim, kinds[k], 1, 0, -EIO);
        assert_int_equal(ldr_ledger_sync(&f->ledger, -1, &other), -EIO);
        assert_false(ldr_ledger_whole(&f->ledger));
        assert_int_equal(ldr_ledger_use(&f->ledger, 1, use(12)), -EIO);
        assert_int_equal(ldr_ledger_use_of(&f->ledger, 1).sequence, 0);
        assert_int_equal(ldr_ledger_free(&f->ledger, 0), -EIO);
        assert_int_equal(ldr_ledger_use_of(&f->ledger, 0).sequence, 10);
        simdisk_fail_none(f->sim);
        sync_it(f);
        reopen(f);
        for (uint32_t i = 0; i < key; i++) {
            assert_true(knows(f, i, 10));
        }
        assert_int_equal(ldr_ledger_write(&f->ledger), 0);
    }
}

/* It grows and shrinks with what is configured, and keeps what it knows. */
static void test_sizes(void **state)
{
    fixture_t *f = *state;

    assert_int_equal(ldr_ledger_use(&f->ledger, 0, use(10)), 0);
    for (uint32_t i = 0; i < 200; i++) {
        remove_key(f, i, 10);
    }
    sync_it(f);
    for (uint64_t bytes = BYTES; bytes >= BYTES / 2; bytes -= BYTES / 2) {
        ldr_ledger_fit(&f->ledger, bytes * 4);
        assert_false(ldr_ledger_whole(&f->ledger));
        assert_int_equal(ldr_ledger_write(&f->ledger), 0);
        assert_int_equal(ldr_ledger_size(&f->ledger), bytes * 4);
        assert_int_equal(simdisk_size(f->sim, active_path(f)), bytes * 4);
        ldr_ledger_fit(&f->ledger, bytes);
        assert_int_equal(ldr_ledger_write(&f->ledger), 0);
        assert_int_equal(simdisk_size(f->sim, active_path(f)), bytes);
        assert_int_equal(f->ledger.row_count, 200);
        ldr_ledger_close(&f->ledger);
        open_it(f);
        assert_int_equal(f->ledger.row_count, 200);
    }
    for (uint64_t bytes = 1 << 20; bytes < (uint64_t)1 << 44; bytes *= 3) {
        uint64_t ledger = ldr_ledger_bytes(bytes);

        assert_int_equal(ledger % LDR_BLOCK, 0);
        assert_in_range(ledger, LDR_LEDGER_BYTES_MIN, LDR_LEDGER_BYTES_MAX);
        assert_true(LDR_LEDGERS * ledger <= bytes / 8);
    }
}

/* Fails when the bytes on disk change: then docs/concepts/format.md does, too.
 */
static void test_golden(void **state)
{
    ldr_ledger_header_t h = {
        .generation = 5, .nonce = 6, .sequence = 7, .blocks = 16, .first = 2};
    static ldr_ledger_block_t b = {.number = 3, .unsynced = 1, .count = 4};
    static uint8_t block[LDR_BLOCK];

    (void)state;
    memcpy(h.dir_id, dir_id, LDR_ID_BYTES);
    ldr_ledger_compose(&h, block);
    assert_int_equal(ldr_crc32c(0, block, LDR_BLOCK - 4), HEADER_CRC);
    b.entries[0] = (ldr_ledger_entry_t){
        .kind = LDR_LEDGER_USED, .segment = 9, .sequence = 11, .nonce = 12};
    b.entries[1] = b.entries[0];
    b.entries[1].kind = LDR_LEDGER_CLOSED;
    b.entries[2] = (ldr_ledger_entry_t){.kind = LDR_LEDGER_FREE, .segment = 10};
    b.entries[3] = (ldr_ledger_entry_t){
        .kind = LDR_LEDGER_REMOVED,
        .sequence = 13,
        .block = 14,
        .epoch = 15,
        .group = 16,
        .shard = 17,
        .key = test_key(18),
        .space_id = "space",
    };
    ldr_entries_compose(&b, &h, block);
    assert_int_equal(ldr_crc32c(0, block, LDR_BLOCK - 4), BLOCK_CRC);
    assert_int_equal(block[36], 4);
    assert_int_equal(ldr_get64(block + 64 + 48), 11);
    assert_int_equal(ldr_get32(block + 64 + 3 * 72 + 56), 14);
    assert_int_equal(ldr_get16(block + 64 + 3 * 72 + 68), LDR_LEDGER_REMOVED);
    ldr_ledger_block_t out;
    assert_true(ldr_entries_parse(block, &h, 3, &out));
    assert_int_equal(out.count, 4);
    assert_int_equal(out.entries[3].shard, 17);
    assert_false(ldr_entries_parse(block, &h, 4, &out));
    h.generation++;
    assert_false(ldr_entries_parse(block, &h, 3, &out));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_new),      TEST(test_segments),
        TEST(test_removals), TEST(test_full),
        TEST(test_union),    TEST(test_flips),
        TEST(test_cuts),     TEST(test_failures),
        TEST(test_sizes),    cmocka_unit_test(test_golden),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
