/*
 * Resets of many spaces. Each is recorded in the superblock, which has room for
 * so many: one more is refused, and nothing else happens; nor can one tenant
 * take the room of the others.
 */
#include "tier/ssd/disk_rig.h"

static const name_t mine = {0, 0, 1}, never = {1, 0, 1};
static const name_t other = {RIG_SPACES - 1, 0, 2};

static int setup_with(void **state, bool tenants)
{
    fixture_t *f = fixture_make(state, 8, 256 * LDR_BLOCK);

    f->rig.options.dram = 8 << 20;
    f->rig.tenants = tenants;
    return fixture_open(f);
}

static int setup(void **state)
{
    return setup_with(state, false);
}

static int setup_two(void **state)
{
    return setup_with(state, true);
}

/* Saves it, and sees it on disk. */
static void save(fixture_t *f, name_t name)
{
    assert_int_equal(rig_put(&f->rig, name, 1), LARDER_OK);
    rig_step(&f->rig, 1000);
    assert_int_not_equal(rig_loc(&f->rig, name), 0);
}

/* One space more, of the default tenant, and its reset. */
static larder_status_t reset_another(fixture_t *f, uint32_t number)
{
    const ldr_store_t *store = &f->rig.node->store;
    ldr_space_info_t info = {.tenant = "default"};
    uint32_t space;

    memcpy(info.space_id, &number, sizeof(number));
    info.space_id[LDR_ID_BYTES - 1] = 1;
    uint32_t tenant = store->spaces[f->rig.spaces[0]->number].tenant;

    memcpy(info.tenant_check, store->tenants[tenant].secret.check,
           LDR_ID_BYTES);
    assert_int_equal(ldr_node_space(f->rig.node, &info, &space), LARDER_OK);
    return ldr_node_reset(f->rig.node, space, UINT64_MAX);
}

/* How many were reset before one was refused. */
static uint32_t reset_all(fixture_t *f)
{
    uint32_t count = 0;
    larder_status_t st = LARDER_OK;

    while (count <= LDR_SUPER_SPACES_MAX && st == LARDER_OK) {
        st = reset_another(f, count);
        count += st == LARDER_OK;
    }
    assert_int_equal(st, LARDER_E_LIMIT);
    return count;
}

static void test_room_for_so_many(void **state)
{
    fixture_t *f = *state;
    larder_space_t *space = f->rig.spaces[0];

    save(f, never);
    save(f, mine);
    assert_int_equal(larder_space_reset(space, 0), LARDER_OK);
    save(f, mine);
    assert_true(reset_all(f) > LDR_SUPER_SPACES_MAX / 2);
    /* The disk is as it was, and a space that it knows can be reset. */
    assert_true(disks_of(f->rig.node)[0].on);
    assert_true(rig_exists(&f->rig, mine));
    /* What is refused has no effect. */
    assert_int_equal(larder_space_reset(f->rig.spaces[1], 0), LARDER_E_LIMIT);
    assert_true(rig_exists(&f->rig, never));
    assert_int_equal(larder_space_reset(space, 0), LARDER_OK);
    assert_false(rig_exists(&f->rig, mine));
    save(f, mine);
    /* Also for the next one who opens it. */
    assert_int_equal(rig_close(&f->rig), LARDER_OK);
    assert_int_equal(rig_open(&f->rig), LARDER_OK);
    assert_true(disks_of(f->rig.node)[0].on);
    assert_true(rig_exists(&f->rig, mine));
}

static void test_one_tenant_leaves_room(void **state)
{
    fixture_t *f = *state;

    save(f, mine);
    save(f, other);
    reset_all(f);
    assert_true(disks_of(f->rig.node)[0].on);
    assert_true(rig_exists(&f->rig, other));
    assert_int_equal(larder_space_reset(f->rig.spaces[RIG_SPACES - 1], 0),
                     LARDER_OK);
    assert_false(rig_exists(&f->rig, other));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_room_for_so_many, setup, teardown),
        cmocka_unit_test_setup_teardown(test_one_tenant_leaves_room, setup_two,
                                        teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
