/*
 * A save in steps, as the daemon makes it for a client that copies by itself:
 * reserve, fill, commit or give back; and loads that are held in between.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/copy.h"
#include "support/rig.h"
#include "support/storecheck.h"

#define BYTES 200000u

typedef struct fixture {
    simdisk_t *disk;
    rig_t rig;
    larder_key_t key;
    larder_item_t item;
    uint8_t value[BYTES];
} fixture_t;

static int setup(void **state)
{
    fixture_t *f = calloc(1, sizeof(*f));

    f->disk = simdisk_create(7, 0);
    rig_init(&f->rig, f->disk, 7, 8, 256 * LDR_BLOCK);
    assert_int_equal(rig_open(&f->rig), LARDER_OK);
    for (size_t i = 0; i < BYTES; i++) {
        f->value[i] = (uint8_t)(i * 7 + i / 999);
    }
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture_t *f = *state;

    store_check(&f->rig.node->store);
    assert_int_equal(f->rig.node->store.held_chunks, 0);
    rig_close(&f->rig);
    rig_free(&f->rig);
    simdisk_destroy(f->disk);
    free(f);
    return 0;
}

static ldr_target_t target(fixture_t *f, uint32_t key)
{
    f->key = test_key(key);
    f->item = (larder_item_t){.key = &f->key};
    return (ldr_target_t){f->rig.spaces[0]->number, 1, &f->item};
}

static larder_status_t reserve(fixture_t *f, uint32_t key, uint32_t *shard_p)
{
    ldr_target_t t = target(f, key);

    return ldr_node_reserve(f->rig.node, &t, BYTES, shard_p);
}

static uint32_t fill(fixture_t *f, uint32_t shard)
{
    struct iovec iov[16];
    uint32_t count = ldr_node_iov(f->rig.node, shard, iov, 16);
    size_t at = 0;

    assert_in_range(count, 1, 16);
    assert_int_equal(ldr_node_iov(f->rig.node, shard, NULL, 0), count);
    for (uint32_t i = 0; i < count; i++) {
        memcpy(iov[i].iov_base, f->value + at, iov[i].iov_len);
        at += iov[i].iov_len;
    }
    assert_int_equal(at, BYTES);
    return ldr_crc32c(0, f->value, BYTES);
}

static larder_status_t get(fixture_t *f, uint32_t key)
{
    size_t bytes;
    larder_status_t st = rig_get(&f->rig, (name_t){0, 0, key}, &bytes);

    if (st == LARDER_OK) {
        assert_int_equal(bytes, BYTES);
        assert_memory_equal(f->rig.buffer, f->value, BYTES);
    }
    return st;
}

static void test_commit(void **state)
{
    fixture_t *f = *state;
    uint32_t shard, second;

    assert_int_equal(reserve(f, 1, &shard), LARDER_OK);
    assert_int_equal(get(f, 1), LARDER_MISS); /* nobody sees it */
    assert_int_equal(reserve(f, 1, &second), LARDER_PRESENT);
    assert_int_equal(ldr_node_commit(f->rig.node, shard, fill(f, shard), 1000),
                     LARDER_OK);
    assert_int_equal(get(f, 1), LARDER_OK);
    assert_int_equal(reserve(f, 1, &second), LARDER_PRESENT);
    assert_int_equal(larder_flush(f->rig.lar, LARDER_TIER_SSD, 0), LARDER_OK);
    /* None of it was counted as a save, until that is said. */
    const ldr_counters_t *n = &f->rig.node->store.n;
    assert_int_equal(n->saves_stored + n->saves_present, 0);
    assert_int_equal(n->saved_bytes, BYTES);
    uint32_t space = f->rig.spaces[0]->number;
    ldr_node_count_save(f->rig.node, space, LARDER_OK);
    ldr_node_count_save(f->rig.node, LDR_NIL, LARDER_E_INVALID);
    assert_int_equal(n->saves_stored, 1);
    assert_int_equal(n->saves_failed, 1);
    assert_int_equal(f->rig.node->store.spaces[space].n.saves_stored, 1);
    assert_int_equal(f->rig.node->store.spaces[space].n.saves_failed, 0);
    rig_close(&f->rig);
    assert_int_equal(rig_open(&f->rig), LARDER_OK);
    assert_int_equal(get(f, 1), LARDER_OK);
}

/* Pages that held others' bytes before: none of them reach the disk. */
static void test_tail(void **state)
{
    fixture_t *f = *state;
    uint32_t shard;

    for (uint32_t i = 0; i < 20; i++) {
        assert_int_equal(reserve(f, i, &shard), LARDER_OK);
        uint32_t page = f->rig.node->store.shards[shard].page;
        const ldr_arena_t *arena = &f->rig.node->store.arena;
        for (uint32_t k = 0; k < BYTES / LDR_PAGE; k++) {
            page = arena->next[page];
        }
        uint8_t *tail = ldr_arena_page(arena, page) + BYTES % LDR_PAGE;
        for (uint32_t k = 0; k < LDR_BLOCK - BYTES % LDR_BLOCK; k++) {
            assert_int_equal(tail[k], 0);
        }
        memset(ldr_arena_page(arena, page), 0xee, LDR_PAGE);
        ldr_node_abort(f->rig.node, shard);
    }
}

/* Bytes that are not those of the checksum are never given out. */
static void test_scribbled(void **state)
{
    fixture_t *f = *state;
    uint32_t shard;

    assert_int_equal(reserve(f, 1, &shard), LARDER_OK);
    uint32_t crc = fill(f, shard);
    assert_int_equal(ldr_node_commit(f->rig.node, shard, crc ^ 1, 0),
                     LARDER_OK);
    assert_int_equal(get(f, 1), LARDER_MISS);
    assert_int_equal(f->rig.cause, LARDER_CAUSE_CORRUPT);
    assert_int_equal(reserve(f, 1, &shard), LARDER_OK);
    ldr_node_abort(f->rig.node, shard);
}

static void test_abort(void **state)
{
    fixture_t *f = *state;
    uint32_t shard;
    uint32_t pages = f->rig.node->store.arena.free_count;

    for (uint32_t i = 0; i < 1000; i++) {
        assert_int_equal(reserve(f, i, &shard), LARDER_OK);
        ldr_node_abort(f->rig.node, shard);
    }
    assert_true(f->rig.node->store.arena.free_count >= pages);
    assert_int_equal(f->rig.node->store.index.entry_count, 0);
}

/* Reset and removed while it is filled. */
static void test_overtaken(void **state)
{
    fixture_t *f = *state;
    uint32_t shard;

    assert_int_equal(reserve(f, 1, &shard), LARDER_OK);
    larder_space_reset(f->rig.spaces[0], 0);
    assert_int_equal(ldr_node_commit(f->rig.node, shard, fill(f, shard), 0),
                     LARDER_E_STALE);
    assert_int_equal(reserve(f, 1, &shard), LARDER_OK);
    rig_remove(&f->rig, (name_t){0, 0, 1});
    assert_int_equal(ldr_node_commit(f->rig.node, shard, fill(f, shard), 0),
                     LARDER_E_STALE);
    assert_int_equal(get(f, 1), LARDER_MISS);
}

static void test_refused(void **state)
{
    fixture_t *f = *state;
    ldr_target_t t = target(f, 1);
    uint32_t shard, held[64];
    uint32_t count = 0;

    assert_int_equal(ldr_node_reserve(f->rig.node, &t, 0, &shard),
                     LARDER_E_SIZE);
    assert_int_equal(
        ldr_node_reserve(f->rig.node, &t, LARDER_VALUE_MAX + 1, &shard),
        LARDER_E_SIZE);
    assert_int_equal(ldr_node_reserve(f->rig.node, &t, 3 << 20, &shard),
                     LARDER_E_SIZE);
    /* Full of reservations; nothing that flies will change that. */
    while (count < 64 && reserve(f, count, &held[count]) == LARDER_OK) {
        count++;
    }
    assert_in_range(count, 6, 10);
    assert_int_equal(reserve(f, 99, &shard), LARDER_E_FULL);
    while (count > 0) {
        ldr_node_abort(f->rig.node, held[--count]);
    }
    assert_int_equal(reserve(f, 99, &shard), LARDER_OK);
    ldr_node_abort(f->rig.node, shard);
}

/* Several shards of one chunk at once. */
static void test_run(void **state)
{
    enum { SHARDS = 5, FIRST = 1, COUNT = 4 };
    fixture_t *f = *state;
    ldr_node_t *node = f->rig.node;
    larder_item_t items[COUNT];
    ldr_reserving_t of[COUNT];
    ldr_committing_t commits[COUNT];
    ldr_load_t loads[COUNT];
    ldr_target_t t = target(f, 1);

    t.shards = SHARDS;
    t.item = items;
    for (uint32_t i = 0; i < COUNT; i++) {
        items[i] =
            (larder_item_t){.key = &f->key, .shard = (uint16_t)(FIRST + i)};
        of[i].bytes = i == 1 ? 0 : 60000;
    }
    ldr_node_reserve_run(node, &t, of, COUNT);
    for (uint32_t i = 0; i < COUNT; i++) {
        assert_int_equal(of[i].status, i == 1 ? LARDER_E_SIZE : LARDER_OK);
        if (i != 1) {
            const ldr_shard_t *sh = &node->store.shards[of[i].shard];

            assert_int_equal(sh->number, FIRST + i);
            assert_int_equal(sh->length, 60000);
        }
    }
    /* Number FIRST + 2 is given back, the others are committed. */
    ldr_node_abort(node, of[2].shard);
    commits[0] = (ldr_committing_t){.shard = of[0].shard, .space = t.space};
    commits[1] = (ldr_committing_t){.shard = of[3].shard, .space = t.space};
    ldr_node_commit_all(node, commits, 2);
    assert_int_equal(commits[0].status, LARDER_OK);
    assert_int_equal(commits[1].status, LARDER_OK);
    assert_int_equal(node->store.n.saves_stored, 2);
    of[1].bytes = 60000;
    ldr_node_reserve_run(node, &t, of, COUNT);
    assert_int_equal(of[0].status, LARDER_PRESENT);
    assert_int_equal(of[1].status, LARDER_OK);
    assert_int_equal(of[2].status, LARDER_OK);
    assert_int_equal(of[3].status, LARDER_PRESENT);
    /* What is being filled is not ready: held are those before it. */
    for (uint32_t i = 0; i < COUNT; i++) {
        loads[i] = (ldr_load_t){.target = {t.space, SHARDS, &items[i]}};
    }
    assert_int_equal(ldr_loads_begin_held(node, loads, COUNT), 1);
    ldr_load_end(node, &loads[0], false);
    commits[0].shard = of[1].shard;
    commits[1].shard = of[2].shard;
    ldr_node_commit_all(node, commits, 2);
    assert_int_equal(ldr_loads_begin_held(node, loads, COUNT), COUNT);
    ldr_releasing_t gives[COUNT];
    for (uint32_t i = 0; i < COUNT; i++) {
        assert_int_equal(loads[i].status, LARDER_OK);
        assert_int_equal(node->store.shards[loads[i].shard].number, FIRST + i);
        ldr_load_end(node, &loads[i], true);
        node->store.shards[loads[i].shard].checked = 0;
        gives[i] = (ldr_releasing_t){loads[i].chunk,
                                     i == 2 ? loads[i].shard : LDR_NIL};
    }
    assert_int_equal(node->store.held_chunks, 1);
    ldr_node_release_all(node, gives, COUNT);
    assert_int_equal(node->store.held_chunks, 0);
    for (uint32_t i = 0; i < COUNT; i++) {
        assert_int_equal(node->store.shards[loads[i].shard].checked, i == 2);
    }
}

/* A run that does not fit ends with one that is full, and keeps what it has. */
static void test_run_full(void **state)
{
    enum { COUNT = 16 };
    fixture_t *f = *state;
    larder_item_t items[COUNT];
    ldr_reserving_t of[COUNT];
    ldr_target_t t = target(f, 1);
    uint32_t ok = 0;

    t.shards = COUNT;
    t.item = items;
    for (uint32_t i = 0; i < COUNT; i++) {
        items[i] = (larder_item_t){.key = &f->key, .shard = (uint16_t)i};
        of[i].bytes = BYTES;
    }
    ldr_node_reserve_run(f->rig.node, &t, of, COUNT);
    while (ok < COUNT && of[ok].status == LARDER_OK) {
        ok++;
    }
    assert_in_range(ok, 6, 10);
    for (uint32_t i = ok; i < COUNT; i++) {
        assert_int_equal(of[i].status, LARDER_E_FULL);
    }
    while (ok > 0) {
        ldr_node_abort(f->rig.node, of[--ok].shard);
    }
    assert_int_equal(f->rig.node->store.index.entry_count, 0);
}

/* A load that is kept is a hold, and what was found right stays so. */
static void test_held_load(void **state)
{
    fixture_t *f = *state;
    uint32_t shard;

    assert_int_equal(reserve(f, 1, &shard), LARDER_OK);
    assert_int_equal(ldr_node_commit(f->rig.node, shard, fill(f, shard), 0),
                     LARDER_OK);
    ldr_load_t load = {.target = target(f, 1)};
    assert_true(ldr_load_begin(f->rig.node, &load));
    ldr_load_end(f->rig.node, &load, true);
    assert_int_equal(load.status, LARDER_OK);
    for (uint32_t i = 10; i < 40; i++) {
        rig_put(&f->rig, (name_t){0, 0, i}, 1);
    }
    struct iovec iov[16];
    ldr_node_iov(f->rig.node, load.shard, iov, 16);
    assert_memory_equal(iov[0].iov_base, f->value, iov[0].iov_len);
    f->rig.node->store.shards[load.shard].checked = 0;
    ldr_node_release_all(f->rig.node,
                         &(ldr_releasing_t){load.chunk, load.shard}, 1);
    assert_int_equal(f->rig.node->store.shards[load.shard].checked, 1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_commit), TEST(test_tail),      TEST(test_scribbled),
        TEST(test_abort),  TEST(test_overtaken), TEST(test_refused),
        TEST(test_run),    TEST(test_run_full),  TEST(test_held_load),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
