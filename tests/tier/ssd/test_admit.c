/*
 * What a node writes down: at the second use, and within a budget. The clock
 * stands still until it is moved.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "support/rig.h"
#include "support/storecheck.h"

#define DAY_MS ((uint64_t)86400 * 1000)

typedef struct fixture {
    simdisk_t *disk;
    rig_t rig;
} fixture_t;

static int setup(void **state)
{
    fixture_t *f = calloc(1, sizeof(*f));

    f->disk = simdisk_create(7, 0);
    rig_init(&f->rig, f->disk, 7, 16, 1024 * LDR_BLOCK);
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

static name_t key(uint32_t number)
{
    return (name_t){0, 0, number};
}

static void put(fixture_t *f, name_t name, larder_status_t want)
{
    assert_int_equal(rig_put(&f->rig, name, 1), want);
}

/* Flushes: what is refused is nothing to wait for, and nothing was dropped. */
static void flush(fixture_t *f)
{
    assert_int_equal(larder_flush(f->rig.lar, LARDER_TIER_SSD, 0), LARDER_OK);
}

static bool on_disk(fixture_t *f, name_t name)
{
    return rig_loc(&f->rig, name) != 0;
}

static void get(fixture_t *f, name_t name)
{
    size_t bytes;

    assert_int_equal(rig_get(&f->rig, name, &bytes), LARDER_OK);
    assert_true(value_is(name, 1, f->rig.buffer, bytes));
}

static void evict(fixture_t *f, name_t name)
{
    ldr_node_t *node = f->rig.node;
    larder_key_t k = test_key(name.key);

    ldr_node_lock(node);
    uint32_t space = f->rig.spaces[name.space]->number;
    ldr_name_t n = ldr_store_name(&node->store, space, 0, &k);
    uint32_t entry =
        ldr_index_find(&node->store.index, n.fingerprint, space, 0, LDR_NIL);
    assert_int_not_equal(entry, LDR_NIL);
    ldr_store_evict_chunk(&node->store,
                          ldr_index_at(&node->store.index, entry)->resident);
    ldr_node_unlock(node);
}

static void test_always(void **state)
{
    fixture_t *f = *state;

    assert_int_equal(rig_open(&f->rig), LARDER_OK);
    put(f, key(1), LARDER_OK);
    flush(f);
    assert_true(on_disk(f, key(1)));
    assert_int_equal(f->rig.node->store.n.refused_first, 0);
}

/* A load, or a save that finds it, is the second use. */
static void test_used_again(void **state)
{
    fixture_t *f = *state;
    const ldr_counters_t *n;

    f->rig.options.ssd_admit = LDR_ADMIT_SECOND;
    assert_int_equal(rig_open(&f->rig), LARDER_OK);
    n = &f->rig.node->store.n;
    for (uint32_t i = 0; i < 3; i++) {
        put(f, key(i), LARDER_OK);
    }
    flush(f);
    for (uint32_t i = 0; i < 3; i++) {
        assert_false(on_disk(f, key(i)));
    }
    assert_int_equal(n->refused_first, 3);
    get(f, key(0));
    put(f, key(1), LARDER_PRESENT);
    flush(f);
    assert_true(on_disk(f, key(0)));
    assert_true(on_disk(f, key(1)));
    assert_false(on_disk(f, key(2)));
    /* Written once, and only what was used again comes back from disk. */
    uint64_t written = disks_of(f->rig.node)[0].written_bytes;
    get(f, key(0));
    flush(f);
    assert_int_equal(disks_of(f->rig.node)[0].written_bytes, written);
    assert_int_equal(n->refused_first, 3);
    assert_int_equal(n->queue_evicted[0], 0);
    rig_close(&f->rig);
    assert_int_equal(rig_open(&f->rig), LARDER_OK);
    get(f, key(0));
    get(f, key(1));
    assert_false(rig_exists(&f->rig, key(2)));
}

/* What was evicted and is saved again has been used before. */
static void test_saved_again(void **state)
{
    fixture_t *f = *state;

    f->rig.options.ssd_admit = LDR_ADMIT_SECOND;
    assert_int_equal(rig_open(&f->rig), LARDER_OK);
    put(f, key(1), LARDER_OK);
    evict(f, key(1));
    /* It was not to be written: so nothing was dropped. */
    assert_int_equal(f->rig.node->store.n.queue_evicted[0], 0);
    assert_false(rig_exists(&f->rig, key(1)));
    put(f, key(1), LARDER_OK);
    flush(f);
    assert_true(on_disk(f, key(1)));
    assert_int_equal(f->rig.node->store.n.refused_first, 1);
}

/* Ranks save a shard each: that is one use of the chunk. */
static void test_ranks(void **state)
{
    fixture_t *f = *state;
    name_t first = {1, 0, 1}, second = {1, 1, 1};

    f->rig.options.ssd_admit = LDR_ADMIT_SECOND;
    assert_int_equal(rig_open(&f->rig), LARDER_OK);
    put(f, first, LARDER_OK);
    put(f, second, LARDER_OK);
    flush(f);
    assert_false(on_disk(f, first));
    assert_false(on_disk(f, second));
    get(f, first);
    get(f, second);
    flush(f);
    assert_true(on_disk(f, first));
    assert_true(on_disk(f, second));
}

static void test_pinned(void **state)
{
    fixture_t *f = *state;
    larder_key_t k;
    struct iovec iov;

    f->rig.options.ssd_admit = LDR_ADMIT_SECOND;
    assert_int_equal(rig_open(&f->rig), LARDER_OK);
    larder_item_t item = rig_item(&f->rig, key(1), &k, &iov, 5000);
    item.flags = LARDER_PUT_PIN;
    assert_int_equal(
        larder_run(f->rig.spaces[0], LARDER_OP_PUT, &item, 1, NULL), LARDER_OK);
    assert_int_equal(item.status, LARDER_OK);
    flush(f);
    assert_true(on_disk(f, key(1)));
}

/* Removed and reset while refused: there is nothing left to write. */
static void test_removed(void **state)
{
    fixture_t *f = *state;

    f->rig.options.ssd_admit = LDR_ADMIT_SECOND;
    assert_int_equal(rig_open(&f->rig), LARDER_OK);
    put(f, key(1), LARDER_OK);
    put(f, key(2), LARDER_OK);
    assert_int_equal(rig_remove(&f->rig, key(1)), LARDER_OK);
    assert_false(rig_exists(&f->rig, key(1)));
    assert_int_equal(larder_space_reset(f->rig.spaces[0], 0), LARDER_OK);
    assert_false(rig_exists(&f->rig, key(2)));
    put(f, key(2), LARDER_OK);
    flush(f);
    assert_true(on_disk(f, key(2))); /* its second save */
}

/* Bytes on disk, all told, after a day of saves. */
static void test_budget(void **state)
{
    fixture_t *f = *state;
    uint64_t budget = 4 << 20, written = 0, values = 0;
    const ldr_ssd_t *ssd;

    f->rig.options.ssd_writes = budget;
    assert_int_equal(rig_open(&f->rig), LARDER_OK);
    ssd = &disks_of(f->rig.node)[0];
    for (uint32_t i = 0; i < 480; i++) {
        rig_sleep(&f->rig, DAY_MS / 480);
        put(f, key(i), LARDER_OK);
        values += value_bytes(key(i), 1);
        flush(f);
    }
    written = ssd->written_bytes + ssd->carried_bytes;
    assert_true(values > 2 * budget);
    /* All of it is used, and at most one record more. */
    assert_in_range(written, budget / 10 * 9, budget + VALUE_BYTES_MAX + 8192);
    assert_true(f->rig.node->store.n.refused_budget > 50);
    assert_int_equal(f->rig.node->store.n.queue_evicted[0], 0);
}

/* What had no budget is asked about again when it is used. */
static void test_budget_later(void **state)
{
    fixture_t *f = *state;
    const ldr_counters_t *n;

    f->rig.options.ssd_writes = 1 << 20;
    assert_int_equal(rig_open(&f->rig), LARDER_OK);
    n = &f->rig.node->store.n;
    put(f, key(1), LARDER_OK);
    flush(f);
    assert_false(on_disk(f, key(1))); /* the bucket begins empty */
    assert_int_equal(n->refused_budget, 1);
    get(f, key(1));
    flush(f);
    assert_int_equal(n->refused_budget, 2);
    rig_sleep(&f->rig, DAY_MS);
    get(f, key(1));
    flush(f);
    assert_true(on_disk(f, key(1)));
    assert_int_equal(n->refused_budget, 2);
}

/* A disk whose budget is spent leaves the rest to another. */
static void test_two_disks(void **state)
{
    fixture_t *f = *state;
    uint64_t bytes[2];

    snprintf(f->rig.options.dirs[1], LDR_PATH_MAX, "/ssd2");
    f->rig.options.dir_count = 2;
    f->rig.options.ssd_writes = 1 << 20;
    assert_int_equal(rig_open(&f->rig), LARDER_OK);
    ldr_budget_spend(&disks_of(f->rig.node)[0].budget, 1 << 20);
    rig_sleep(&f->rig, 60000);
    put(f, key(1), LARDER_OK);
    flush(f);
    bytes[0] = disks_of(f->rig.node)[0].written_bytes;
    bytes[1] = disks_of(f->rig.node)[1].written_bytes;
    assert_int_equal(bytes[0], 0);
    assert_true(bytes[1] > 0);
    assert_int_equal(f->rig.node->store.n.refused_budget, 0);
    assert_true(on_disk(f, key(1)));
}

/* Tombstones are written whatever the budget says. */
static void test_tombstones(void **state)
{
    fixture_t *f = *state;

    f->rig.options.ssd_writes = 1 << 20;
    assert_int_equal(rig_open(&f->rig), LARDER_OK);
    rig_sleep(&f->rig, 1000);
    put(f, key(1), LARDER_OK);
    flush(f);
    assert_true(on_disk(f, key(1)));
    ldr_budget_spend(&disks_of(f->rig.node)[0].budget, 1e9);
    assert_int_equal(rig_remove(&f->rig, key(1)), LARDER_OK);
    rig_close(&f->rig);
    assert_int_equal(rig_open(&f->rig), LARDER_OK);
    assert_false(rig_exists(&f->rig, key(1)));
}

static void test_metrics(void **state)
{
    static char text[1 << 20];
    fixture_t *f = *state;

    f->rig.options.ssd_admit = LDR_ADMIT_SECOND;
    assert_int_equal(rig_open(&f->rig), LARDER_OK);
    put(f, key(1), LARDER_OK);
    assert_in_range(ldr_node_metrics(f->rig.node, text, sizeof(text)), 1,
                    sizeof(text) - 1);
    assert_non_null(strstr(text, "larder_writes_refused_total{tenant=\"default"
                                 "\",reason=\"used_once\"} 1\n"));
    assert_non_null(strstr(text, "reason=\"budget\"} 0\n"));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_always),     TEST(test_used_again),   TEST(test_saved_again),
        TEST(test_ranks),      TEST(test_pinned),       TEST(test_removed),
        TEST(test_budget),     TEST(test_budget_later), TEST(test_two_disks),
        TEST(test_tombstones), TEST(test_metrics),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
