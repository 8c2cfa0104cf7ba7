/*
 * What `larder plan` says is written down is what a node writes down: both are
 * driven by the same uses, with a clock that moves in steps.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "base/clock.h"
#include "plan/sim_ssd.h"
#include "support/rig.h"
#include "support/storecheck.h"

#define KEYS 200u
#define USES 1500u
#define STEP_MS 1000u

typedef struct both {
    simdisk_t *disk;
    rig_t rig;
    ldr_ssd_sim_t *sim;
    uint64_t at_ms;
} both_t;

static void both_open(both_t *b, bool second, double a_day, uint64_t writes)
{
    ldr_tape_t tape = {.distinct = KEYS};
    ldr_ssd_sim_params_t p = {.capacity = 100000,
                              .policy = &ldr_policy_lru,
                              .second = second,
                              .a_day = a_day};

    b->disk = simdisk_create(3, 0);
    rig_init(&b->rig, b->disk, 3, 40, 512 * LDR_BLOCK);
    b->rig.options.ssd_admit = second ? LDR_ADMIT_SECOND : LDR_ADMIT_ALWAYS;
    b->rig.options.ssd_writes = writes;
    assert_int_equal(rig_open(&b->rig), LARDER_OK);
    b->sim = ldr_ssd_sim_create(&tape, &p);
    assert_non_null(b->sim);
}

static void both_close(both_t *b)
{
    ldr_ssd_sim_destroy(b->sim);
    store_check(&b->rig.node->store);
    rig_close(&b->rig);
    rig_free(&b->rig);
    simdisk_destroy(b->disk);
}

/* 4096 bytes in all: a record of a block and its descriptor. */
static larder_status_t put(both_t *b, uint32_t number)
{
    larder_key_t key;
    struct iovec iov;
    larder_item_t item =
        rig_item(&b->rig, (name_t){0, 0, number}, &key, &iov, LDR_BLOCK);

    larder_run(b->rig.spaces[0], LARDER_OP_PUT, &item, 1, NULL);
    return item.status;
}

/* A request: it loads the chunk, or computes and saves it. */
static void use(both_t *b, uint32_t number)
{
    name_t name = {0, 0, number};
    ldr_tape_request_t request = {.at_ms = b->at_ms, .count = 1};
    size_t bytes;

    if (rig_get(&b->rig, name, &bytes) != LARDER_OK) {
        assert_int_equal(put(b, number), LARDER_OK);
    }
    assert_int_equal(larder_flush(b->rig.lar, LARDER_TIER_SSD, 0), LARDER_OK);
    ldr_ssd_sim_use(b->sim, &request, &number);
    assert_int_equal(rig_loc(&b->rig, name) != 0,
                     ldr_ssd_sim_holds(b->sim, number));
}

static void drive(both_t *b)
{
    ldr_rand_t r;

    ldr_rand_seed(&r, 9);
    for (uint32_t i = 0; i < USES; i++) {
        /* Some much more often than others. */
        uint32_t range = 1 + (uint32_t)ldr_rand_below(&r, KEYS);

        use(b, (uint32_t)ldr_rand_below(&r, range));
        b->at_ms += STEP_MS;
        rig_sleep(&b->rig, STEP_MS);
        if (i % 97 == 0) { /* out of DRAM, so that it is saved anew */
            ldr_node_lock(b->rig.node);
            for (unsigned n = 0; n < 20; n++) {
                ldr_store_evict(&b->rig.node->store, 0);
            }
            ldr_node_unlock(b->rig.node);
        }
    }
    const ldr_counters_t *n = &b->rig.node->store.n;
    assert_int_equal(n->refused_first,
                     ldr_ssd_sim_counts(b->sim)->refused_first);
    assert_int_equal(n->refused_budget,
                     ldr_ssd_sim_counts(b->sim)->refused_budget);
    assert_int_equal(disks_of(b->rig.node)[0].written_bytes,
                     2 * LDR_BLOCK * ldr_ssd_sim_counts(b->sim)->written);
    assert_int_equal(disks_of(b->rig.node)[0].carried_bytes, 0);
}

static void test_second(void **state)
{
    both_t b = {0};

    (void)state;
    both_open(&b, true, 0, 0);
    drive(&b);
    assert_true(ldr_ssd_sim_counts(b.sim)->refused_first > 50);
    assert_true(ldr_ssd_sim_counts(b.sim)->written > 50);
    both_close(&b);
}

static void test_budget(void **state)
{
    both_t b = {0};

    (void)state;
    both_open(&b, false, 3000, 3000 * 2 * LDR_BLOCK);
    drive(&b);
    assert_true(ldr_ssd_sim_counts(b.sim)->refused_budget > 50);
    assert_in_range(ldr_ssd_sim_counts(b.sim)->written, 40, 55);
    both_close(&b);
}

static void test_both(void **state)
{
    both_t b = {0};

    (void)state;
    both_open(&b, true, 2000, 2000 * 2 * LDR_BLOCK);
    drive(&b);
    assert_true(ldr_ssd_sim_counts(b.sim)->refused_first > 50);
    assert_true(ldr_ssd_sim_counts(b.sim)->refused_budget > 50);
    both_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_second),
        cmocka_unit_test(test_budget),
        cmocka_unit_test(test_both),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
