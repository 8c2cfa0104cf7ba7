/*
 * Tenants of one node: what one does leaves the others' hits as they were, in
 * DRAM and on disk.
 */
#include <errno.h>

#include "node/tenant_rig.h"

/* ---- DRAM ---- */

/* Ten times the arena, before and after B came: all of B's come from DRAM. */
static void test_flood_dram(void **state)
{
    fixture_t *f = *state;

    f->rig.options.dir_count = 0;
    open_rig(f);
    a_floods(f, 20 * MIB); /* it has all of it */
    assert_int_equal(stats_of(f, A).extents, 8);
    while (stats_of(f, B).dram_used_bytes < 7 * MIB) {
        assert_int_equal(put(f, B, f->b_count++), LARDER_OK);
    }
    assert_int_equal(stats_of(f, B).extents, 4);
    assert_int_equal(stats_of(f, A).extents, 4);
    assert_int_equal(stats_of(f, B).dram_share, 8 * MIB);
    a_floods(f, 160 * MIB);
    ldr_tenant_stats_t before = stats_of(f, B);
    assert_int_equal(before.n.evicted_chunks, 0);
    b_has_all(f);
    ldr_tenant_stats_t after = stats_of(f, B);
    assert_int_equal(after.n.loads[LARDER_TIER_DRAM] -
                         before.n.loads[LARDER_TIER_DRAM],
                     f->b_count);
    assert_int_equal(after.n.loads[LARDER_TIER_SSD], 0);
    assert_true(stats_of(f, A).n.evicted_bytes > 100 * MIB);
    /* B over its share evicts B. */
    uint64_t evicted = stats_of(f, A).n.evicted_chunks;
    b_saves(f, 16 * MIB);
    assert_true(stats_of(f, B).n.evicted_chunks > 0);
    assert_int_equal(stats_of(f, A).n.evicted_chunks, evicted);
}

/* A limit of its own: the rest is for the others. */
static void test_limit_dram(void **state)
{
    fixture_t *f = *state;

    f->rig.options.dir_count = 0;
    open_rig(f);
    limit(f, "default", 3 * MIB, 0);
    a_floods(f, 30 * MIB);
    assert_true(stats_of(f, A).dram_used_bytes <= 3 * MIB);
    assert_int_equal(stats_of(f, A).extents, 2);
    while (stats_of(f, B).dram_used_bytes < 11 * MIB) {
        assert_int_equal(put(f, B, f->b_count++), LARDER_OK);
    }
    a_floods(f, 30 * MIB);
    assert_int_equal(stats_of(f, B).n.evicted_chunks, 0);
    b_has_all(f);
    /* A value that is larger than the limit is refused as such. */
    limit(f, "default", LDR_PAGE, 0);
    name_t name = {A, 0, f->a_next};
    while (value_bytes(name, 1) <= LDR_PAGE) {
        name.key++;
    }
    assert_int_equal(rig_put(&f->rig, name, 1), LARDER_E_SIZE);
}

/* ---- disks ---- */

/* The node is killed here and there while A floods: B's are all there, and
 * stay when it goes on. */
static void kill_and_flood(fixture_t *f)
{
    for (uint32_t i = 0; i < 12; i++) {
        fixture_t copy = *f;

        a_floods(f, 300000);
        rig_step(&f->rig, i);
        copy.disk = simdisk_clone(f->disk);
        rig_init(&copy.rig, copy.disk, i, 1, 1);
        copy.rig.options = f->rig.options;
        copy.rig.tenants = true;
        memcpy(copy.rig.limits, f->rig.limits, sizeof(copy.rig.limits));
        copy.rig.limit_count = f->rig.limit_count;
        copy.a_next = f->a_next + 1000;
        open_rig(&copy);
        a_floods(&copy, 4 * MIB);
        b_has_all(&copy);
        rig_close(&copy.rig);
        rig_free(&copy.rig);
        simdisk_destroy(copy.disk);
    }
}

/* A writes ten times what the disk holds; B's are all there, after a restart
 * too, and when A comes back first. */
static void flood_ssd(fixture_t *f, uint64_t b_bytes)
{
    b_writes(f, b_bytes);
    a_floods(f, 60 * MIB);
    ldr_tenant_stats_t b = stats_of(f, B);
    assert_int_equal(b.n.reclaimed_chunks, 0);
    assert_true(b.ssd_bytes <= b.ssd_share);
    b_has_all(f);
    larder_stats_t s = {.struct_bytes = sizeof(s)};
    larder_stats(f->rig.lar, &s);
    printf("%llu MiB written, %llu carried\n",
           (unsigned long long)(s.disk[0].written_bytes / MIB),
           (unsigned long long)(s.disk[0].carried_bytes / MIB));
    assert_true(s.disk[0].carried_bytes < 2 * s.disk[0].written_bytes);
    kill_and_flood(f);
    for (int i = 0; i < 2; i++) {
        f->rig.first_only = i == 1;
        rig_close(&f->rig);
        open_rig(f);
        a_floods(f, 30 * MIB);
        if (i == 1) { /* B comes late */
            rig_close(&f->rig);
            f->rig.first_only = false;
            open_rig(f);
        }
        b_has_all(f);
        assert_true(stats_of(f, B).n.loads[LARDER_TIER_SSD] > 0);
    }
}

static void test_flood_ssd_equal(void **state)
{
    fixture_t *f = *state;

    open_rig(f);
    /* Of 24 segments 21 can hold something, three quarters of that safely, and
     * half is B's share: 3.9 MiB. */
    flood_ssd(f, 7 * MIB / 2);
}

static void test_flood_ssd_limits(void **state)
{
    fixture_t *f = *state;

    f->rig.limits[0] =
        (ldr_tenant_params_t){.name = "default", .ssd_max = 1 * MIB};
    f->rig.limits[1] =
        (ldr_tenant_params_t){.name = RIG_OTHER, .ssd_max = 6 * MIB};
    f->rig.limit_count = 2;
    open_rig(f);
    flood_ssd(f, 11 * MIB / 2);
}

/* Between A's, record by record: every segment has some of B's. */
static void test_flood_ssd_mixed(void **state)
{
    fixture_t *f = *state;

    open_rig(f);
    for (int i = 0; i < 24; i++) {
        b_writes(f, (uint64_t)i * (128 << 10));
        a_floods(f, 256 << 10);
    }
    flood_ssd(f, 1);
}

static void test_flood_ssd_two_disks(void **state)
{
    fixture_t *f = *state;

    snprintf(f->rig.options.dirs[1], LDR_PATH_MAX, "/other");
    f->rig.options.dir_count = 2;
    open_rig(f);
    flood_ssd(f, 7 * MIB / 2); /* and all of it is on the first */
}

/* Everybody keeps to his share and the disk is full: what is new is written
 * all the same, and the node comes to rest. */
static void test_all_at_their_shares(void **state)
{
    fixture_t *f = *state;

    open_rig(f);
    limit(f, "default", 0, 20 * MIB);
    limit(f, RIG_OTHER, 0, 20 * MIB); /* more than there is */
    for (int i = 0; i < 40; i++) {
        b_saves(f, MIB);
        a_floods(f, MIB);
        larder_flush(f->rig.lar, LARDER_TIER_SSD, 0);
        assert_true(rig_step(&f->rig, 2000) < 2000);
    }
    name_t last = {A, 0, f->a_next - 1};
    assert_true(rig_loc(&f->rig, last) != 0);
    larder_stats_t s = {.struct_bytes = sizeof(s)};
    larder_stats(f->rig.lar, &s);
    printf("%llu MiB written, %llu carried\n",
           (unsigned long long)(s.disk[0].written_bytes / MIB),
           (unsigned long long)(s.disk[0].carried_bytes / MIB));
    assert_true(s.disk[0].carried_bytes < 8 * s.disk[0].written_bytes);
}

/* Tombstones come to their end although old segments are passed over. */
static void test_tombstones_end(void **state)
{
    fixture_t *f = *state;

    open_rig(f);
    b_saves(f, 3 * MIB); /* the oldest segments, all safe */
    for (int i = 0; i < 60; i++) {
        a_floods(f, MIB);
        for (uint32_t k = 0; k < 8; k++) {
            name_t name = {A, 0, f->a_next - 1 - k};

            rig_remove(&f->rig, name);
        }
    }
    b_has_all(f);
    uint64_t tombs = 0;
    const ldr_disk_t *d = &disks_of(f->rig.node)[0].disk;
    for (uint32_t i = 0; i < d->segment_count; i++) {
        tombs += d->segments[i].state == LDR_SEGMENT_CLOSED
                     ? d->segments[i].used_blocks
                     : 0;
    }
    uint64_t live =
        (stats_of(f, A).ssd_bytes + stats_of(f, B).ssd_bytes) / LDR_BLOCK;
    assert_true(live > tombs / 2); /* not a log of tombstones */
    rig_close(&f->rig);
    open_rig(f);
    b_has_all(f);
}

/* The segment being filled is lost, so that reclaim has nowhere to carry the
 * tombstones of a segment that is not the oldest: it takes the oldest then. */
static void test_nowhere_to_carry(void **state)
{
    fixture_t *f = *state;

    open_rig(f);
    b_writes(f, 3 * MIB);
    for (int i = 0; i < 40; i++) {
        a_floods(f, MIB / 2);
        for (uint32_t k = 0; k < 8; k++) {
            rig_remove(&f->rig, (name_t){A, 0, f->a_next - 1 - k});
        }
        if (i % 2 == 1) {
            simdisk_fail(f->disk, SIMDISK_WRITE, 1 + (uint64_t)i % 7, 1, -EIO);
            a_floods(f, MIB / 2);
            simdisk_fail_none(f->disk);
            rig_sleep(&f->rig, f->rig.options.retry_ms + 1);
            rig_step(&f->rig, 1000);
        }
        assert_int_equal(put(f, A, f->a_next++), LARDER_OK);
        larder_status_t st = larder_flush(f->rig.lar, LARDER_TIER_SSD, 0);
        assert_true(st == LARDER_OK || st == LARDER_E_DROPPED);
        name_t last = {A, 0, f->a_next - 1};
        assert_true(rig_loc(&f->rig, last) != 0);
    }
}

static void test_tenant_without_memory(void **state)
{
    fixture_t *f = *state;
    ldr_tenant_params_t p = {.name = "a third"};
    uint32_t tenant = LDR_NIL, again = LDR_NIL;

    open_rig(f);
    for (uint64_t nth = 1; nth <= 3; nth++) {
        ldr_fault_arm(LDR_FAULT_alloc, nth, 1);
        assert_int_equal(ldr_node_tenant(f->rig.node, &p, &tenant),
                         LARDER_E_NO_MEMORY);
        ldr_fault_disarm_all();
    }
    assert_int_equal(ldr_node_tenant(f->rig.node, &p, &tenant), LARDER_OK);
    p.dram_max = 5;
    assert_int_equal(ldr_node_tenant(f->rig.node, &p, &again), LARDER_OK);
    assert_int_equal(again, tenant);
    p.name = "";
    assert_int_equal(ldr_node_tenant(f->rig.node, &p, &again),
                     LARDER_E_INVALID);
}

/* A space's id in another tenant's session is another space. */
static void test_stolen_id(void **state)
{
    fixture_t *f = *state;
    ldr_space_info_t info = {.space_id = {1, 2, 3}, .tenant = "default"};
    uint32_t mine, again, stolen;
    ldr_space_stats_t s;

    open_rig(f);
    memcpy(info.tenant_check, f->rig.spaces[A]->ref.check, LDR_ID_BYTES);
    assert_int_equal(ldr_node_space(f->rig.node, &info, &mine), LARDER_OK);
    assert_int_equal(ldr_node_space(f->rig.node, &info, &again), LARDER_OK);
    assert_int_equal(mine, again);
    info.tenant = RIG_OTHER;
    memcpy(info.tenant_check, f->rig.spaces[B]->ref.check, LDR_ID_BYTES);
    assert_int_equal(ldr_node_space(f->rig.node, &info, &stolen), LARDER_OK);
    assert_int_not_equal(mine, stolen);
    assert_true(ldr_node_space_stats(f->rig.node, mine, &s));
    assert_int_equal(s.tenant, tenant_of(f, A));
    assert_true(ldr_node_space_stats(f->rig.node, stolen, &s));
    assert_int_equal(s.tenant, tenant_of(f, B));
    info.tenant_check[0] ^= 1;
    assert_int_equal(ldr_node_space(f->rig.node, &info, &stolen),
                     LARDER_E_SECRET);
}

/* Where memory shall lie: what this machine has, and what it has not. */
static void test_numa(void **state)
{
    fixture_t *f = *state;

    f->rig.options.dir_count = 0;
    if (ldr_numa_check(0) == 0) {
        snprintf(f->rig.options.numa, sizeof(f->rig.options.numa), "0");
        open_rig(f);
        assert_int_equal(put(f, A, 0), LARDER_OK);
        rig_close(&f->rig);
    }
    if (ldr_numa_check(63) < 0) {
        snprintf(f->rig.options.numa, sizeof(f->rig.options.numa), "0,63");
        assert_int_equal(rig_open(&f->rig), LARDER_E_INVALID);
        assert_non_null(strstr(larder_last_error(), "numa=0,63"));
    }
}

/* ---- figures ---- */

/* Spaces add up to tenants, tenants to the node. */
static void test_counters_add_up(void **state)
{
    fixture_t *f = *state;
    ldr_counters_t spaces = {0}, tenants = {0};
    ldr_space_stats_t s;
    ldr_tenant_stats_t t;
    size_t bytes;

    open_rig(f);
    b_saves(f, 2 * MIB);
    a_floods(f, 20 * MIB);
    b_has_all(f);
    rig_get(&f->rig, (name_t){A, 0, 1u << 30}, &bytes);
    rig_get(&f->rig, (name_t){B, 0, 1u << 30}, &bytes);
    rig_remove(&f->rig, (name_t){B, 0, 0});
    larder_space_reset(f->rig.spaces[A], 0);
    const ldr_counters_t *all = &f->rig.node->store.n;
    const uint64_t *sum = (const uint64_t *)all;
    uint64_t *by_space = (uint64_t *)&spaces, *by_tenant = (uint64_t *)&tenants;
    size_t fields = sizeof(*all) / sizeof(*sum);
    for (uint32_t i = 0; ldr_node_space_stats(f->rig.node, i, &s); i++) {
        for (size_t k = 0; k < fields; k++) {
            by_space[k] += ((const uint64_t *)&s.n)[k];
        }
    }
    for (uint32_t i = 0; ldr_node_tenant_stats(f->rig.node, i, &t); i++) {
        for (size_t k = 0; k < fields; k++) {
            by_tenant[k] += ((const uint64_t *)&t.n)[k];
        }
    }
    assert_memory_equal(all, &spaces, sizeof(spaces));
    assert_memory_equal(all, &tenants, sizeof(tenants));
    assert_true(all->saves_stored > 0 && all->misses[LARDER_CAUSE_ABSENT] == 2);
    /* And what a tenant is told is its part. */
    larder_stats_t whole, part;
    ldr_node_stats(f->rig.node, LDR_NIL, &whole);
    ldr_node_stats(f->rig.node, tenant_of(f, B), &part);
    assert_int_equal(part.removes, 1);
    assert_int_equal(part.resets, 0);
    assert_int_equal(whole.resets, 1);
    assert_int_equal(part.disks, 0);
    assert_true(part.dram_used_bytes < whole.dram_used_bytes);
    assert_string_equal(stats_of(f, B).name, RIG_OTHER);
    ldr_queues_t q;
    ldr_node_queues(f->rig.node, &q);
    assert_int_equal(q.reads_waiting + q.reads_flying, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_flood_dram),          TEST(test_limit_dram),
        TEST(test_flood_ssd_equal),     TEST(test_flood_ssd_limits),
        TEST(test_flood_ssd_mixed),     TEST(test_flood_ssd_two_disks),
        TEST(test_all_at_their_shares), TEST(test_tombstones_end),
        TEST(test_nowhere_to_carry),    TEST(test_tenant_without_memory),
        TEST(test_stolen_id),           TEST(test_numa),
        TEST(test_counters_add_up),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
