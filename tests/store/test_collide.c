/*
 * Two keys with one fingerprint: the index knows 64 bits of a name and a seed,
 * which no test will ever see collide by itself. One of the two may miss; none
 * is ever given the other's bytes.
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

#define PAGES 64u
#define NOW_S 1000u

static const uint8_t tenant_id[LDR_ID_BYTES] = {2};
static const uint8_t space_id[LDR_ID_BYTES] = {2, 0, 0, 0, 1};

static int setup(void **state)
{
    ldr_store_t *s = calloc(1, sizeof(*s));
    ldr_store_params_t params = {
        .dram_bytes = (uint64_t)PAGES * LDR_PAGE,
        .entry_max = 1000,
        .seed = 3,
        .pin_max = LDR_PAGE,
        .policy = &ldr_policy_lru,
        .disks = 1,
    };
    ldr_slice_t slice;

    assert_int_equal(ldr_store_init(s, &params), LARDER_OK);
    assert_int_equal(ldr_store_tenant(s, tenant_id), 0);
    assert_int_equal(ldr_store_space(s, space_id), 0);
    ldr_store_space_of(s, 0, 0);
    while (ldr_arena_slice_take(&s->arena, LDR_NIL, &slice)) {
        ldr_arena_slice_give(&s->arena, &slice, true);
    }
    *state = s;
    return 0;
}

static int teardown(void **state)
{
    ldr_store_t *s = *state;

    ldr_store_destroy(s);
    free(s);
    return 0;
}

/* Every key's name has the fingerprint of the first. */
static ldr_name_t name_of(ldr_store_t *s, const larder_key_t *key)
{
    larder_key_t first = test_key(1);
    ldr_name_t name = ldr_store_name(s, 0, 0, key);

    name.fingerprint = ldr_store_name(s, 0, 0, &first).fingerprint;
    return name;
}

/* The key's entry; cause_p: why there is none. */
static uint32_t find(ldr_store_t *s, const larder_key_t *key,
                     larder_cause_t *cause_p)
{
    ldr_name_t name = name_of(s, key);

    return ldr_store_find(s, &name, LDR_NIL, NOW_S, cause_p);
}

static void put(ldr_store_t *s, const larder_key_t *key)
{
    larder_cause_t cause;
    ldr_reserve_t r = {.name = name_of(s, key),
                       .shards = 1,
                       .length = 100,
                       .now_s = NOW_S,
                       .state = LDR_SHARD_FILLING};
    uint32_t shard;

    assert_int_equal(find(s, key, &cause), LDR_NIL);
    assert_int_equal(ldr_store_reserve(s, LDR_NIL, &r, &shard), LARDER_OK);
    assert_true(store_commit(s, shard, 7));
    ldr_store_release(s, s->shards[shard].chunk);
}

static void test_absent(void **state)
{
    ldr_store_t *s = *state;
    larder_key_t one = test_key(1), two = test_key(2);
    larder_cause_t cause;

    put(s, &one);
    assert_int_not_equal(find(s, &one, &cause), LDR_NIL);
    assert_int_equal(find(s, &two, &cause), LDR_NIL);
    assert_int_equal(cause, LARDER_CAUSE_ABSENT);
}

static void test_both_saved(void **state)
{
    ldr_store_t *s = *state;
    larder_key_t keys[2] = {test_key(1), test_key(2)};
    unsigned found = 0;

    put(s, &keys[0]);
    put(s, &keys[1]);
    for (unsigned i = 0; i < 2; i++) {
        larder_cause_t cause;
        uint32_t entry = find(s, &keys[i], &cause);

        if (entry != LDR_NIL) {
            uint32_t chunk = ldr_index_at(&s->index, entry)->resident;

            assert_memory_equal(&s->chunks[chunk].key, &keys[i],
                                sizeof(keys[i]));
            found++;
        }
    }
    assert_int_equal(found, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_absent, setup, teardown),
        cmocka_unit_test_setup_teardown(test_both_saved, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
