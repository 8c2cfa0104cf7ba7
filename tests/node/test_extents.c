/*
 * Extents that move between tenants: when nobody uses or maps them, or when
 * that took too long, and as other memory; also where memory or descriptors
 * cannot be had.
 */
#include "node/tenant_rig.h"

#include <sys/mman.h>
#include <unistd.h>

static void on_revoke(void *arg, uint32_t extent, uint32_t generation)
{
    fixture_t *f = arg;

    f->revoked = extent;
    f->revoked_generation = generation;
    f->revokes++;
}

/* Begins a load of A's key and holds it. */
static ldr_load_t hold(fixture_t *f, uint32_t space, uint32_t key)
{
    static larder_key_t k;
    static larder_item_t item;
    ldr_load_t load = {
        .target = {f->rig.spaces[space]->number, 1, &item},
    };

    k = test_key(key);
    item = (larder_item_t){.key = &k};
    assert_true(ldr_load_begin(f->rig.node, &load));
    assert_int_equal(load.status, LARDER_OK);
    ldr_load_end(f->rig.node, &load, true);
    return load;
}

/* The held shard through a mapping of its own, as another process has it. */
static void read_mapped(fixture_t *f, const ldr_load_t *load, uint32_t tenant,
                        name_t name)
{
    ldr_seg_t segs[16];
    uint32_t count = ldr_node_segs(f->rig.node, load->shard, segs, 16);
    size_t bytes = 0;

    assert_in_range(count, 1, 16);
    for (uint32_t i = 0; i < count; i++) {
        ldr_extent_view_t view;
        ldr_extent_view_t none;

        assert_false(ldr_node_extent_map(f->rig.node, tenant + 1,
                                         segs[i].extent, segs[i].generation,
                                         &none));
        assert_true(ldr_node_extent_map(f->rig.node, tenant, segs[i].extent,
                                        segs[i].generation, &view));
        assert_int_equal(view.tenant, tenant);
        assert_true((uint64_t)segs[i].page * LDR_PAGE + segs[i].bytes <=
                    view.ready_bytes);
        uint8_t *base =
            mmap(NULL, view.bytes, PROT_READ, MAP_SHARED, view.fd, 0);
        assert_true(base != MAP_FAILED);
        memcpy(f->rig.buffer + bytes, base + (size_t)segs[i].page * LDR_PAGE,
               segs[i].bytes);
        bytes += segs[i].bytes;
        munmap(base, view.bytes);
        close(view.fd);
        ldr_node_extent_unmap(f->rig.node, segs[i].extent, segs[i].generation);
    }
    assert_int_equal(bytes, load->length);
    assert_true(value_is(name, 1, f->rig.buffer, bytes));
    struct iovec iov[16];
    assert_in_range(ldr_node_iov(f->rig.node, load->shard, iov, 16), 1, count);
}

static larder_status_t reserve_status(fixture_t *f, uint32_t space)
{
    larder_key_t key = test_key(0);
    larder_item_t item = {.key = &key};
    ldr_target_t target = {f->rig.spaces[space]->number, 1, &item};
    uint32_t shard;

    return ldr_node_reserve(f->rig.node, &target, LDR_PAGE, &shard);
}

/* A session of A has an extent mapped: B gets it when that is over, and none of
 * the bytes in it. */
static void test_mapped_stays(void **state)
{
    fixture_t *f = *state;
    ldr_extent_view_t view[2], none;

    f->rig.options.dir_count = 0;
    f->rig.options.dram = 4 * MIB;
    open_rig(f);
    f->rig.node->revoke = on_revoke;
    f->rig.node->revoke_arg = f;
    ldr_node_t *node = f->rig.node;
    a_floods(f, 8 * MIB); /* both extents */
    uint32_t a = tenant_of(f, A), b = tenant_of(f, B);
    uint8_t *base[2];
    for (uint32_t i = 0; i < 2; i++) {
        assert_false(ldr_node_extent_map(node, b, i, 1, &none));
        assert_false(ldr_node_extent_map(node, a, i, 2, &none));
        assert_true(ldr_node_extent_map(node, a, i, 1, &view[i]));
        assert_int_equal(view[i].ready_bytes, view[i].bytes);
        base[i] =
            mmap(NULL, view[i].bytes, PROT_READ, MAP_SHARED, view[i].fd, 0);
        assert_true(base[i] != MAP_FAILED);
    }
    /* Mapped, and there is nothing to wait for in a node without threads. */
    assert_int_equal(put(f, B, 0), LARDER_E_FULL);
    assert_int_equal(f->revokes, 1);
    assert_int_equal(f->revoked_generation, 1);
    assert_int_equal(reserve_status(f, B), LARDER_PENDING);
    assert_int_equal(stats_of(f, A).extents_leaving, 1);
    assert_int_equal(stats_of(f, B).extents_coming, 1);
    uint32_t moved = f->revoked;
    uint8_t *old = malloc(view[moved].bytes);
    memcpy(old, base[moved], view[moved].bytes);
    /* A goes on in what it has left, and B waits. */
    a_floods(f, 8 * MIB);
    assert_int_equal(put(f, B, 0), LARDER_E_FULL);
    assert_int_equal(f->revokes, 1);
    assert_memory_equal(old, base[moved], view[moved].bytes);
    /* Another session maps it now, and is told at once. */
    assert_true(ldr_node_extent_map(node, a, moved, 1, &none));
    assert_int_equal(f->revokes, 2);
    close(none.fd);
    ldr_node_extent_unmap(node, moved, 1);
    assert_int_equal(put(f, B, 0), LARDER_E_FULL);
    ldr_node_extent_unmap(node, moved, 1);
    assert_false(ldr_node_extent_map(node, a, moved, 1, &none));
    assert_int_equal(put(f, B, 0), LARDER_OK);
    for (f->b_count = 1; f->b_count < 16; f->b_count++) {
        assert_int_equal(put(f, B, f->b_count), LARDER_OK);
    }
    assert_int_equal(node->store.arena.extents[moved].generation, 2);
    assert_false(ldr_node_extent_map(node, a, moved, 2, &none));
    assert_false(ldr_node_extent_map(node, b, moved, 1, &none));
    assert_true(ldr_node_extent_map(node, b, moved, 2, &none));
    /* A said that it had unmapped it: what it has still is empty. */
    memset(old, 0, view[moved].bytes);
    assert_memory_equal(old, base[moved], view[moved].bytes);
    ldr_node_extent_unmap(node, moved, 2);
    close(none.fd);
    for (uint32_t i = 0; i < 2; i++) {
        munmap(base[i], view[i].bytes);
        close(view[i].fd);
    }
    ldr_node_extent_unmap(node, 1 - moved, 1);
    free(old);
    b_has_all(f);
}

/* A session of A that never unmaps is waited for a fifth of a second. Then B
 * has other memory, and A no more than before with what it keeps. */
static void test_overdue(void **state)
{
    fixture_t *f = *state;
    ldr_extent_view_t view[2];

    f->rig.options.dir_count = 0;
    f->rig.options.dram = 4 * MIB;
    open_rig(f);
    f->rig.node->revoke = on_revoke;
    f->rig.node->revoke_arg = f;
    ldr_node_t *node = f->rig.node;
    a_floods(f, 8 * MIB); /* both extents */
    uint32_t a = tenant_of(f, A);
    for (uint32_t i = 0; i < 2; i++) {
        assert_true(ldr_node_extent_map(node, a, i, 1, &view[i]));
    }
    for (int ms = 0; ms < 199; ms++) {
        assert_int_equal(put(f, B, 0), LARDER_E_FULL);
        rig_sleep(&f->rig, 1);
    }
    assert_int_equal(stats_of(f, A).dram_overdue_bytes, 0);
    rig_sleep(&f->rig, 1);
    assert_int_equal(put(f, B, 0), LARDER_OK);
    store_check(&node->store);
    assert_int_equal(stats_of(f, A).dram_overdue_bytes, 2 * MIB);
    assert_int_equal(stats_of(f, A).extents, 1);
    assert_int_equal(stats_of(f, B).extents, 1);
    uint32_t moved = f->revoked;
    /* It can be mapped still, by who has a lease there, and is asked for. */
    uint32_t revokes = f->revokes;
    ldr_extent_view_t more;
    assert_true(ldr_node_extent_map(node, a, moved, 1, &more));
    assert_int_equal(f->revokes, revokes + 1);
    close(more.fd);
    ldr_node_extent_unmap(node, moved, 1);
    ldr_node_extent_unmap(node, moved, 1);
    rig_step(&f->rig, 100);
    assert_int_equal(stats_of(f, A).dram_overdue_bytes, 0);
    store_check(&node->store);
    for (uint32_t i = 0; i < 2; i++) {
        close(view[i].fd);
    }
    ldr_node_extent_unmap(node, 1 - moved, 1);
    f->b_count = 1;
    b_has_all(f);
}

/* A lease in an extent that has to leave: its bytes stay until it ends. */
static void test_leased_stays(void **state)
{
    fixture_t *f = *state;
    name_t name = {A, 0, 0};

    f->rig.options.dir_count = 0;
    f->rig.options.dram = 4 * MIB;
    open_rig(f);
    assert_int_equal(put(f, A, f->a_next++), LARDER_OK);
    ldr_load_t load = hold(f, A, 0);
    a_floods(f, 8 * MIB);
    read_mapped(f, &load, tenant_of(f, A), name);
    /* Until B has its extent, all of A's have to leave in turn. */
    while (put(f, B, f->b_count) == LARDER_E_FULL) {
        rig_sleep(&f->rig, 1000);
    }
    f->b_count++;
    read_mapped(f, &load, tenant_of(f, A), name);
    b_saves(f, 4 * MIB);
    read_mapped(f, &load, tenant_of(f, A), name);
    store_check(&f->rig.node->store);
    ldr_node_release_all(f->rig.node,
                         &(ldr_releasing_t){load.chunk, load.shard}, 1);
    rig_step(&f->rig, 100);
    a_floods(f, 8 * MIB);
    assert_int_equal(stats_of(f, A).extents, 1);
    assert_int_equal(stats_of(f, B).extents, 1);
}

/* ---- what cannot be had ---- */

/* An extent on its way that cannot be made, memory that cannot be had, a
 * descriptor that cannot be given: B waits or is refused, and A and B are whole
 * when it is over. */
static void test_faults(void **state)
{
    static const ldr_fault_t points[] = {LDR_FAULT_extent_create,
                                         LDR_FAULT_extent_populate};
    fixture_t *f = *state;

    f->rig.options.dir_count = 0;
    f->rig.options.dram = 8 * MIB;
    for (unsigned i = 0; i < 2; i++) {
        for (uint64_t nth = 1; nth <= 2; nth++) {
            open_rig(f);
            a_floods(f, 16 * MIB);
            f->b_count = 0;
            ldr_fault_arm(points[i], nth, 0);
            larder_status_t st;
            do {
                st = put(f, B, f->b_count);
                f->b_count += st == LARDER_OK;
                store_check(&f->rig.node->store);
            } while (st == LARDER_OK && f->b_count < 400);
            assert_true(ldr_fault_fired(points[i]) > 0);
            assert_true(st == LARDER_OK || st == LARDER_E_FULL);
            ldr_fault_disarm_all();
            a_floods(f, 16 * MIB);
            f->b_count = 1000;
            uint32_t first = f->b_count;
            b_saves(f, MIB);
            for (uint32_t k = first; k < f->b_count; k++) {
                name_t name = {B, 0, k};
                size_t bytes;

                assert_int_equal(rig_get(&f->rig, name, &bytes), LARDER_OK);
                assert_true(value_is(name, 1, f->rig.buffer, bytes));
            }
            rig_close(&f->rig);
        }
    }
}

static void test_no_descriptor(void **state)
{
    fixture_t *f = *state;
    ldr_extent_view_t view;

    f->rig.options.dir_count = 0;
    open_rig(f);
    assert_int_equal(put(f, A, 0), LARDER_OK);
    ldr_load_t load = hold(f, A, 0);
    ldr_seg_t seg;
    ldr_node_segs(f->rig.node, load.shard, &seg, 1);
    ldr_fault_arm(LDR_FAULT_extent_share, 1, 1);
    assert_false(ldr_node_extent_map(f->rig.node, tenant_of(f, A), seg.extent,
                                     seg.generation, &view));
    assert_int_equal(ldr_fault_fired(LDR_FAULT_extent_share), 1);
    assert_int_equal(f->rig.node->store.arena.extents[seg.extent].mappers, 0);
    ldr_node_release(f->rig.node, load.chunk);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_mapped_stays),  TEST(test_overdue),
        TEST(test_leased_stays),  TEST(test_faults),
        TEST(test_no_descriptor),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
