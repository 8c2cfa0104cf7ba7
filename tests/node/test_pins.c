/* Pins: what they outlast, and how they are set again. */
#include "tier/ssd/disk_rig.h"

static const name_t mine = {0, 0, 1}, plain = {0, 0, 9};

static int setup(void **state)
{
    return fixture_open(fixture_make(state, 64, 256 * LDR_BLOCK));
}

static larder_status_t put_pinned(fixture_t *f, name_t name)
{
    larder_key_t key;
    struct iovec iov;
    larder_item_t item =
        rig_item(&f->rig, name, &key, &iov, value_bytes(name, 1));

    item.depth = 0;
    item.flags = LARDER_PUT_PIN;
    value_fill(name, 1, f->rig.buffer);
    assert_int_equal(
        larder_run(f->rig.spaces[name.space], LARDER_OP_PUT, &item, 1, NULL),
        LARDER_OK);
    return item.status;
}

static uint64_t pinned_bytes(fixture_t *f)
{
    larder_stats_t s = {.struct_bytes = sizeof(s)};

    store_check(&f->rig.node->store);
    assert_int_equal(larder_stats(f->rig.lar, &s), LARDER_OK);
    return s.pinned_bytes;
}

static void flush(fixture_t *f)
{
    assert_int_equal(larder_flush(f->rig.lar, LARDER_TIER_SSD, 0), LARDER_OK);
}

/* More than DRAM holds, all of it newer. */
static void fill_dram(fixture_t *f)
{
    uint64_t evicted = f->rig.node->store.n.evicted_chunks;

    for (uint32_t i = 0; i < 200; i++) {
        name_t name = {0, 0, RIG_CHAIN * (i + 10)};

        assert_int_equal(rig_put(&f->rig, name, 1), LARDER_OK);
        flush(f);
    }
    assert_true(f->rig.node->store.n.evicted_chunks > evicted);
}

static bool is_in_dram(fixture_t *f, name_t name)
{
    const ldr_store_t *store = &f->rig.node->store;
    uint32_t space = f->rig.spaces[name.space]->number;
    larder_key_t key = test_key(name.key);
    ldr_name_t n = ldr_store_name(store, space, 0, &key);
    uint32_t entry =
        ldr_index_find(&store->index, n.fingerprint, space, 0, LDR_NIL);

    return entry != LDR_NIL &&
           ldr_store_resident(store, entry, name.shard) != LDR_NIL;
}

/* Read back from its disk it is pinned again. */
static void test_restart(void **state)
{
    fixture_t *f = *state;
    size_t bytes;

    assert_int_equal(put_pinned(f, mine), LARDER_OK);
    assert_int_equal(rig_put(&f->rig, plain, 1), LARDER_OK);
    flush(f);
    assert_int_equal(rig_close(&f->rig), LARDER_OK);
    assert_int_equal(rig_open(&f->rig), LARDER_OK);
    assert_int_equal(pinned_bytes(f), 0);
    assert_int_equal(rig_get(&f->rig, plain, &bytes), LARDER_OK);
    assert_int_equal(pinned_bytes(f), 0);
    assert_int_equal(rig_get(&f->rig, mine, &bytes), LARDER_OK);
    assert_int_equal(pinned_bytes(f), bytes);
    fill_dram(f);
    assert_true(is_in_dram(f, mine));
    assert_false(is_in_dram(f, plain));
}

/* Saved again with a pin, what is there gets it: once, and within the budget.
 */
static void test_saved_again(void **state)
{
    fixture_t *f = *state;

    assert_int_equal(rig_put(&f->rig, plain, 1), LARDER_OK);
    flush(f);
    assert_int_equal(pinned_bytes(f), 0);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(put_pinned(f, plain), LARDER_PRESENT);
        assert_int_equal(pinned_bytes(f), value_bytes(plain, 1));
    }
    fill_dram(f);
    assert_true(is_in_dram(f, plain));
    for (uint32_t i = 209; i > 10 && is_in_dram(f, (name_t){0, 0, i * 8});
         i--) {
        assert_int_equal(put_pinned(f, (name_t){0, 0, i * 8}), LARDER_PRESENT);
        assert_true(pinned_bytes(f) <= f->rig.node->store.pin_max);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_restart, setup, teardown),
        cmocka_unit_test_setup_teardown(test_saved_again, setup, teardown),
    };

    return cmocka_run_group_tests_name("node/pins", tests, NULL, NULL);
}
