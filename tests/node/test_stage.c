/* Staging prefixes (node/stage.h), on a clock that stands still. */
#include "node/node.h"
#include "tier/ssd/disk_rig.h"

#define WIDE 1u       /* a space with several shards for each chunk */
#define KEY RIG_CHAIN /* the first of its chain */

static int setup(void **state)
{
    return fixture_open(fixture_make(state, 64, 256 * LDR_BLOCK));
}

/* The first shard of the chunk is in DRAM, and all are on disk. */
static void spread(fixture_t *f)
{
    ldr_node_t *node = f->rig.node;
    larder_key_t key = test_key(KEY);
    larder_cause_t cause;
    size_t bytes;

    for (uint16_t i = 0; i < rig_shards(WIDE); i++) {
        assert_true(rig_put(&f->rig, (name_t){WIDE, i, KEY}, 1) >= 0);
    }
    assert_int_equal(larder_flush(f->rig.lar, LARDER_TIER_SSD, 0), LARDER_OK);
    ldr_node_lock(node);
    ldr_name_t name =
        ldr_store_name(&node->store, f->rig.spaces[WIDE]->number, 0, &key);
    uint32_t entry = ldr_store_find(&node->store, &name, LDR_NIL, 0, &cause);
    ldr_store_evict_chunk(&node->store,
                          ldr_index_at(&node->store.index, entry)->resident);
    ldr_node_unlock(node);
    assert_int_equal(rig_get(&f->rig, (name_t){WIDE, 0, KEY}, &bytes),
                     LARDER_OK);
}

/* A match and a stage say the same of a chunk that lies in two tiers: it is the
 * slower one's, by what was measured and not by its number. */
static void test_slowest_tier(void **state)
{
    fixture_t *f = *state;
    larder_key_t key = test_key(KEY);

    assert_true(rig_shards(WIDE) > 1);
    for (unsigned slow = LARDER_TIER_DRAM; slow <= LARDER_TIER_SSD; slow++) {
        larder_match_t found = {.struct_bytes = sizeof(found)}, staged = found;
        larder_lease_t *lease = NULL;

        spread(f);
        f->rig.node->speed[LARDER_TIER_DRAM] = slow == LARDER_TIER_DRAM ? 1 : 2;
        f->rig.node->speed[LARDER_TIER_SSD] = slow == LARDER_TIER_SSD ? 1 : 2;
        assert_int_equal(larder_match(f->rig.spaces[WIDE], &key, 1, 0, &found),
                         LARDER_OK);
        assert_int_equal(
            larder_stage(f->rig.spaces[WIDE], &key, 1, 0, 0, &lease, &staged),
            LARDER_OK);
        larder_release(&lease);
        assert_int_equal(found.tier_chunks[slow], 1);
        assert_int_equal(staged.tier_chunks[slow], 1);
        assert_int_equal(staged.tier_chunks[LARDER_TIER_SSD - slow], 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_slowest_tier, setup, teardown),
    };

    return cmocka_run_group_tests_name("stage", tests, NULL, NULL);
}
