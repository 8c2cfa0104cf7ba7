/* Forgetting one tenant of a directory: its records and its secret, all or
 * nothing, and nothing of the others'. */
#include "tier/ssd/disk_rig.h"
#include "store/forget.h"

#define OTHER (RIG_SPACES - 1)

static const name_t mine = {0, 0, 1}, also = {1, 0, 2}, others = {OTHER, 0, 3};

static int setup(void **state)
{
    fixture_t *f = fixture_make(state, 8, 256 * LDR_BLOCK);

    f->rig.options.dram = 8 << 20;
    f->rig.tenants = true;
    return fixture_open(f);
}

static void save(fixture_t *f, name_t name, uint32_t version)
{
    assert_int_equal(rig_put(&f->rig, name, version), LARDER_OK);
    rig_step(&f->rig, 1000);
    assert_int_not_equal(rig_loc(&f->rig, name), 0);
}

static larder_status_t open_disk(fixture_t *f, ldr_disk_t *d)
{
    static const ldr_log_t quiet;
    ldr_disk_params_t p = {.io = simdisk_io(f->disk),
                           .log = &quiet,
                           .path = f->rig.options.dirs[0],
                           .bytes = f->rig.options.ssd,
                           .seed = 1};

    memset(d, 0, sizeof(*d));
    return ldr_disk_open(d, &p);
}

/* Between two nodes. change: what is done to its superblock before. */
static larder_status_t forget(fixture_t *f, const char *tenant,
                              void (*change)(ldr_super_t *super),
                              ldr_forgotten_t *out)
{
    static ldr_disk_t d;
    uint8_t id[LDR_ID_BYTES];

    assert_int_equal(rig_close(&f->rig), LARDER_OK);
    assert_int_equal(open_disk(f, &d), LARDER_OK);
    if (change != NULL) {
        change(d.super);
    }
    ldr_tenant_id(tenant, id);
    larder_status_t st = ldr_disk_forget(&d, id, out);
    ldr_disk_close(&d);
    assert_int_equal(rig_open(&f->rig), LARDER_OK);
    return st;
}

static void test_one(void **state)
{
    fixture_t *f = *state;
    ldr_forgotten_t out;

    save(f, mine, 1);
    assert_int_equal(larder_space_reset(f->rig.spaces[0], 0), LARDER_OK);
    save(f, mine, 2);
    save(f, also, 1);
    save(f, others, 1);
    assert_int_equal(forget(f, "default", NULL, &out), LARDER_OK);
    assert_true(out.secret);
    assert_int_equal(out.spaces, 2);
    assert_int_equal(out.records, 3);
    assert_false(rig_exists(&f->rig, mine) || rig_exists(&f->rig, also));
    assert_true(rig_exists(&f->rig, others));
    /* It begins anew, and once more: what is new is not what was forgotten. */
    save(f, mine, 3);
    assert_int_equal(rig_close(&f->rig), LARDER_OK);
    assert_int_equal(rig_open(&f->rig), LARDER_OK);
    assert_true(rig_exists(&f->rig, mine));
    assert_int_equal(forget(f, "default", NULL, &out), LARDER_OK);
    assert_false(rig_exists(&f->rig, mine));
    assert_true(rig_exists(&f->rig, others));
    assert_int_equal(forget(f, "nobody", NULL, &out), LARDER_OK);
    assert_true(!out.secret && out.spaces == 0 && out.records == 0);
}

/* Rooms for all resets but one. */
static void fill(ldr_super_t *super)
{
    while (super->space_count < LDR_SUPER_SPACES_MAX - 1) {
        ldr_super_space_t *row = &super->spaces[super->space_count++];

        memset(row->id, 0xee, LDR_ID_BYTES);
        memcpy(row->id, &super->space_count, sizeof(super->space_count));
        row->epoch = 1;
    }
}

/* Somebody whose spaces' ids begin as tenant default's. */
static void add_twin(ldr_super_t *super)
{
    ldr_super_tenant_t *row = &super->tenants[super->tenant_count++];

    ldr_tenant_id("default", row->id);
    row->id[LDR_ID_BYTES - 1] ^= 1;
}

static void test_nothing_or_all(void **state)
{
    fixture_t *f = *state;
    ldr_forgotten_t out;

    save(f, mine, 1);
    save(f, also, 1);
    assert_int_equal(forget(f, "default", fill, &out), LARDER_E_LIMIT);
    assert_true(rig_exists(&f->rig, mine) && rig_exists(&f->rig, also));
    assert_int_equal(forget(f, "default", add_twin, &out), LARDER_E_LIMIT);
    assert_true(rig_exists(&f->rig, mine) && rig_exists(&f->rig, also));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_one, setup, teardown),
        cmocka_unit_test_setup_teardown(test_nothing_or_all, setup, teardown),
    };

    return cmocka_run_group_tests_name("store/forget", tests, NULL, NULL);
}
