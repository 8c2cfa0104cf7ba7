/* A node that is paused: it moves nothing and forgets nothing. */
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

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_paused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
