/*
 * A node that is paused or only observes: it moves nothing, forgets nothing,
 * and counts what would have hit.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/fault.h"
#include "node/observe.h"
#include "support/rig.h"
#include "support/storecheck.h"

typedef struct fixture {
    simdisk_t *disk;
    rig_t rig;
} fixture_t;

static int setup(void **state)
{
    fixture_t *f = calloc(1, sizeof(*f));

    f->disk = simdisk_create(7, 0);
    rig_init(&f->rig, f->disk, 7, 8, 128 * LDR_BLOCK);
    f->rig.options.dram = 8 << 20;
    assert_int_equal(rig_open(&f->rig), LARDER_OK);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture_t *f = *state;

    ldr_fault_disarm_all();
    store_check(&f->rig.node->store);
    rig_close(&f->rig);
    rig_free(&f->rig);
    simdisk_destroy(f->disk);
    free(f);
    return 0;
}

static void set_mode(fixture_t *f, ldr_mode_t mode)
{
    ldr_node_set_mode(f->rig.node, mode);
    assert_int_equal(ldr_node_get_mode(f->rig.node), mode);
}

static name_t name_at(uint32_t key)
{
    return (name_t){0, 0, key};
}

static const ldr_counters_t *counters(const fixture_t *f)
{
    return &f->rig.node->store.n;
}

/* A get that must miss because the node is not on. */
static void get_paused(fixture_t *f, name_t name)
{
    size_t bytes;

    assert_int_equal(rig_get(&f->rig, name, &bytes), LARDER_MISS);
    assert_int_equal(f->rig.cause, LARDER_CAUSE_PAUSED);
}

static uint32_t match(fixture_t *f, uint32_t space, uint32_t first,
                      uint32_t count, larder_cause_t *cause_p)
{
    larder_key_t keys[32];
    larder_match_t m = {.struct_bytes = sizeof(m)};

    for (uint32_t i = 0; i < count; i++) {
        keys[i] = test_key(first + i);
    }
    assert_int_equal(larder_match(f->rig.spaces[space], keys, count, 0, &m),
                     LARDER_OK);
    *cause_p = m.cause;
    return m.chunks;
}

static void test_paused(void **state)
{
    fixture_t *f = *state;
    larder_cause_t cause;
    larder_key_t keys[4];
    larder_lease_t *lease = NULL;
    larder_match_t m = {.struct_bytes = sizeof(m)};
    size_t bytes;

    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(rig_put(&f->rig, name_at(i), 1), LARDER_OK);
        keys[i] = test_key(i);
    }
    assert_int_equal(larder_stage(f->rig.spaces[0], keys, 4, 0, 0, &lease, &m),
                     LARDER_OK);
    uint32_t used = f->rig.node->store.arena.free_count;
    set_mode(f, LDR_MODE_PAUSED);
    for (uint32_t i = 0; i < 4; i++) {
        get_paused(f, name_at(i));
        assert_false(rig_exists(&f->rig, name_at(i)));
        assert_int_equal(rig_put(&f->rig, name_at(i), 1), LARDER_E_TIER_OFF);
        assert_int_equal(rig_put(&f->rig, name_at(10 + i), 1),
                         LARDER_E_TIER_OFF);
    }
    assert_int_equal(match(f, 0, 0, 4, &cause), 0);
    assert_int_equal(cause, LARDER_CAUSE_PAUSED);
    larder_lease_t *none = NULL;
    assert_int_equal(larder_stage(f->rig.spaces[0], keys, 4, 0, 0, &none, &m),
                     LARDER_MISS);
    assert_null(none);
    assert_int_equal(f->rig.node->store.arena.free_count, used);
    assert_int_equal(counters(f)->saves_paused, 8);
    assert_int_equal(counters(f)->saves_failed, 0);
    assert_int_equal(counters(f)->misses[LARDER_CAUSE_PAUSED], 8);
    assert_int_equal(counters(f)->observed_hits, 0);
    assert_int_equal(counters(f)->observed_misses, 0);
    /* What was leased stays leased, what was accepted is written down, and
     * what is removed is removed. */
    struct iovec seg[8];
    uint32_t count;
    assert_int_equal(larder_lease_segments(lease, 0, 0, seg, 8, &count),
                     LARDER_OK);
    larder_release(&lease);
    assert_int_equal(larder_flush(f->rig.lar, LARDER_TIER_SSD, 0), LARDER_OK);
    assert_int_equal(rig_remove(&f->rig, name_at(1)), LARDER_OK);
    set_mode(f, LDR_MODE_ON);
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(rig_get(&f->rig, name_at(i), &bytes),
                         i == 1 ? LARDER_MISS : LARDER_OK);
    }
    assert_int_equal(rig_put(&f->rig, name_at(10), 1), LARDER_OK);
}

/* Nothing is stored, and what a running node would have given is counted. */
static void test_observe(void **state)
{
    fixture_t *f = *state;
    larder_cause_t cause;
    uint64_t bytes = 0;

    set_mode(f, LDR_MODE_OBSERVE);
    get_paused(f, name_at(0));
    assert_int_equal(counters(f)->observed_misses, 1);
    for (uint32_t i = 0; i < 8; i++) {
        assert_int_equal(rig_put(&f->rig, name_at(i), 1), LARDER_E_TIER_OFF);
        bytes += value_bytes(name_at(i), 1);
    }
    assert_int_equal(f->rig.node->store.index.entry_count, 0);
    assert_int_equal(f->rig.node->store.arena.free_count,
                     f->rig.node->store.arena.ready_count);
    for (uint32_t i = 0; i < 8; i++) {
        get_paused(f, name_at(i));
    }
    assert_int_equal(counters(f)->observed_hits, 8);
    assert_int_equal(counters(f)->observed_misses, 1);
    assert_int_equal(counters(f)->observed_hit_bytes, bytes);
    /* A chain: up to the first that would miss. */
    assert_int_equal(match(f, 0, 0, 12, &cause), 0);
    assert_int_equal(cause, LARDER_CAUSE_PAUSED);
    assert_int_equal(counters(f)->observed_hits, 16);
    assert_int_equal(counters(f)->observed_misses, 5);
    assert_int_equal(counters(f)->observed_hit_bytes, 2 * bytes);
    /* A chunk needs all its shards. */
    for (uint16_t i = 0; i < 3; i++) {
        name_t name = {1, i % 2, i / 2};
        assert_int_equal(rig_put(&f->rig, name, 1), LARDER_E_TIER_OFF);
    }
    match(f, 1, 0, 2, &cause);
    assert_int_equal(counters(f)->observed_hits, 18);
    assert_int_equal(counters(f)->observed_misses, 7);
    /* Removed and reset are gone here too. */
    rig_remove(&f->rig, name_at(3));
    match(f, 0, 0, 8, &cause);
    assert_int_equal(counters(f)->observed_hits, 21);
    larder_space_reset(f->rig.spaces[0], 0);
    match(f, 0, 0, 8, &cause);
    assert_int_equal(counters(f)->observed_hits, 21);
    const ldr_space_t *space =
        &f->rig.node->store.spaces[f->rig.spaces[0]->number];
    assert_int_equal(space->n.observed_hits, 19);
}

/* What the node holds already counts as well, DRAM or disk. */
static void test_observe_what_is_held(void **state)
{
    fixture_t *f = *state;
    size_t bytes;

    assert_int_equal(rig_put(&f->rig, name_at(0), 1), LARDER_OK);
    assert_int_equal(larder_flush(f->rig.lar, LARDER_TIER_SSD, 0), LARDER_OK);
    rig_close(&f->rig);
    assert_int_equal(rig_open(&f->rig), LARDER_OK);
    assert_int_equal(rig_put(&f->rig, name_at(1), 1), LARDER_OK);
    set_mode(f, LDR_MODE_OBSERVE);
    get_paused(f, name_at(0));
    get_paused(f, name_at(1));
    get_paused(f, name_at(2));
    assert_int_equal(counters(f)->observed_hits, 2);
    assert_int_equal(counters(f)->observed_misses, 1);
    assert_int_equal(counters(f)->loads[LARDER_TIER_SSD] +
                         counters(f)->loads[LARDER_TIER_DRAM],
                     0);
    set_mode(f, LDR_MODE_ON);
    assert_int_equal(rig_get(&f->rig, name_at(0), &bytes), LARDER_OK);
    assert_int_equal(rig_get(&f->rig, name_at(1), &bytes), LARDER_OK);
    assert_null(f->rig.node->shadow);
}

/* TTLs pass while observing. */
static void test_observe_expires(void **state)
{
    fixture_t *f = *state;
    larder_key_t key;
    struct iovec iov;
    larder_item_t item = rig_item(&f->rig, name_at(0), &key, &iov, 100);

    item.ttl_ms = 5000;
    set_mode(f, LDR_MODE_OBSERVE);
    larder_run(f->rig.spaces[0], LARDER_OP_PUT, &item, 1, NULL);
    assert_int_equal(item.status, LARDER_E_TIER_OFF);
    get_paused(f, name_at(0));
    assert_int_equal(counters(f)->observed_hits, 1);
    rig_sleep(&f->rig, 6000);
    get_paused(f, name_at(0));
    assert_int_equal(counters(f)->observed_hits, 1);
}

/* Without memory for names it observes what it holds. */
static void test_observe_without_memory(void **state)
{
    fixture_t *f = *state;

    for (uint64_t nth = 1; nth <= 3; nth++) {
        ldr_fault_arm(LDR_FAULT_alloc, nth, 1);
        set_mode(f, LDR_MODE_OBSERVE);
        assert_int_equal(ldr_fault_fired(LDR_FAULT_alloc), 1);
        ldr_fault_disarm_all();
        assert_null(f->rig.node->shadow);
        assert_int_equal(rig_put(&f->rig, name_at(0), 1), LARDER_E_TIER_OFF);
        get_paused(f, name_at(0));
        set_mode(f, LDR_MODE_PAUSED);
    }
    assert_int_equal(counters(f)->observed_misses, 3);
    set_mode(f, LDR_MODE_OBSERVE);
    ldr_shadow_t *shadow = f->rig.node->shadow;
    assert_non_null(shadow);
    set_mode(f, LDR_MODE_OBSERVE); /* twice changes nothing */
    assert_ptr_equal(f->rig.node->shadow, shadow);
}

/* ---- the shadow itself ---- */

static void test_shadow(void **state)
{
    ldr_shadow_t *s = ldr_shadow_create(1000, 5);

    (void)state;
    assert_non_null(s);
    for (uint64_t i = 0; i < 5; i++) {
        ldr_shadow_note(s, i << 40, 100, 0);
    }
    ldr_shadow_note(s, 0, 50, 0); /* known: stays as it is */
    assert_int_equal(ldr_shadow_find(s, 0, 0), 100);
    ldr_shadow_note(s, 77, 100, 0); /* six: the oldest goes */
    assert_int_equal(ldr_shadow_find(s, 0, 0), 0);
    assert_int_equal(ldr_shadow_find(s, (uint64_t)1 << 40, 0), 100);
    ldr_shadow_note(s, 78, 600, 0); /* bytes: as many as it takes */
    assert_int_equal(ldr_shadow_find(s, (uint64_t)1 << 40, 0), 0);
    assert_int_equal(ldr_shadow_find(s, (uint64_t)2 << 40, 0), 100);
    ldr_shadow_note(s, 79, 1001, 0); /* more than all */
    assert_int_equal(ldr_shadow_find(s, 79, 0), 0);
    ldr_shadow_forget(s, 78);
    ldr_shadow_forget(s, 78);
    assert_int_equal(ldr_shadow_find(s, 78, 0), 0);
    ldr_shadow_note(s, 78, 10, 50);
    assert_int_equal(ldr_shadow_find(s, 78, 49), 10);
    assert_int_equal(ldr_shadow_find(s, 78, 50), 0);
    ldr_shadow_destroy(s);
    ldr_shadow_destroy(NULL);
}

/* Against a plain list. */
static void test_shadow_random(void **state)
{
    enum { COUNT = 40, BYTES = 2000 };
    ldr_shadow_t *s = ldr_shadow_create(BYTES, COUNT);
    struct {
        uint64_t print;
        uint32_t bytes;
    } list[20000];
    uint32_t first = 0, end = 0;
    uint64_t seed = test_env("LARDER_SEED", 5);
    ldr_rand_t rand;

    (void)state;
    printf("seed=%llu\n", (unsigned long long)seed);
    ldr_rand_seed(&rand, seed);
    for (int i = 0; i < 15000; i++) {
        uint64_t print = ldr_rand_below(&rand, 100) * 1024;
        uint64_t op = ldr_rand_below(&rand, 10);
        uint32_t bytes = 1 + (uint32_t)ldr_rand_below(&rand, 100);
        uint32_t known = LDR_NIL, sum = 0;

        for (uint32_t k = first; k < end; k++) {
            sum += list[k].bytes;
            if (list[k].bytes > 0 && list[k].print == print) {
                known = k;
            }
        }
        assert_int_equal(ldr_shadow_find(s, print, 0),
                         known == LDR_NIL ? 0 : list[known].bytes);
        if (op < 8) {
            ldr_shadow_note(s, print, bytes, 0);
            if (known != LDR_NIL) {
                continue;
            }
            while (end - first == COUNT || sum + bytes > BYTES) {
                sum -= list[first++].bytes;
            }
            list[end].print = print;
            list[end++].bytes = bytes;
        } else {
            ldr_shadow_forget(s, print);
            if (known != LDR_NIL) {
                list[known].bytes = 0;
            }
        }
    }
    ldr_shadow_destroy(s);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_paused),
        TEST(test_observe),
        TEST(test_observe_what_is_held),
        TEST(test_observe_expires),
        TEST(test_observe_without_memory),
        cmocka_unit_test(test_shadow),
        cmocka_unit_test(test_shadow_random),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
