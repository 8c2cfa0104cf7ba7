/*
 * Tenants of one node: what one does leaves the others' hits as they were, in
 * DRAM and on disk; extents move between them only when nobody uses or maps
 * them, and then as other memory.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/fault.h"
#include "support/rig.h"
#include "support/storecheck.h"

#define MIB ((uint64_t)1 << 20)
#define SEGMENT_BYTES ((uint64_t)128 * LDR_BLOCK)
#define A 0u /* spaces of the two tenants */
#define B 2u

typedef struct fixture {
    simdisk_t *disk;
    rig_t rig;
    uint32_t a_next, b_count; /* keys put so far */
    uint32_t revoked, revoked_generation;
    unsigned revokes;
} fixture_t;

static int setup(void **state)
{
    fixture_t *f = calloc(1, sizeof(*f));

    f->disk = simdisk_create(7, 0);
    rig_init(&f->rig, f->disk, 7, 24, SEGMENT_BYTES);
    f->rig.tenants = true;
    f->rig.options.dram = 16 * MIB;
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture_t *f = *state;

    ldr_fault_disarm_all();
    if (f->rig.node != NULL) {
        store_check(&f->rig.node->store);
        rig_close(&f->rig);
    }
    rig_free(&f->rig);
    simdisk_destroy(f->disk);
    free(f);
    return 0;
}

static void open_rig(fixture_t *f)
{
    assert_int_equal(rig_open(&f->rig), LARDER_OK);
}

static uint32_t tenant_of(const fixture_t *f, uint32_t space)
{
    return f->rig.node->store.spaces[f->rig.spaces[space]->number].tenant;
}

static ldr_tenant_stats_t stats_of(fixture_t *f, uint32_t space)
{
    ldr_tenant_stats_t stats;

    assert_true(
        ldr_node_tenant_stats(f->rig.node, tenant_of(f, space), &stats));
    return stats;
}

static larder_status_t put(fixture_t *f, uint32_t space, uint32_t key)
{
    return rig_put(&f->rig, (name_t){(uint16_t)space, 0, key}, 1);
}

/* B saves so many bytes. */
static void b_saves(fixture_t *f, uint64_t bytes)
{
    uint64_t before = stats_of(f, B).n.saved_bytes;

    while (stats_of(f, B).n.saved_bytes - before < bytes) {
        assert_int_equal(put(f, B, f->b_count++), LARDER_OK);
    }
}

/* B has so many bytes on disk. */
static void b_writes(fixture_t *f, uint64_t bytes)
{
    do {
        assert_int_equal(put(f, B, f->b_count++), LARDER_OK);
        larder_flush(f->rig.lar, LARDER_TIER_SSD, 0);
    } while (stats_of(f, B).ssd_bytes < bytes);
    assert_int_equal(stats_of(f, B).n.saves_dropped_evicted, 0);
}

/* A saves so many bytes, all of them new. */
static void a_floods(fixture_t *f, uint64_t bytes)
{
    uint64_t before = stats_of(f, A).n.saved_bytes;

    for (unsigned i = 0; stats_of(f, A).n.saved_bytes - before < bytes; i++) {
        assert_int_equal(put(f, A, f->a_next++), LARDER_OK);
        if (i % 16 == 15 && f->rig.options.dir_count > 0) {
            larder_status_t st = larder_flush(f->rig.lar, LARDER_TIER_SSD, 0);
            assert_true(st == LARDER_OK || st == LARDER_E_DROPPED);
        }
    }
    store_check(&f->rig.node->store);
}

/* Every one of B's is got, with its bytes. */
static void b_has_all(fixture_t *f)
{
    for (uint32_t i = 0; i < f->b_count; i++) {
        name_t name = {B, 0, i};
        size_t bytes;

        larder_status_t st = rig_get(&f->rig, name, &bytes);
        if (st != LARDER_OK) {
            fail_msg("key %u of %u: %s", i, f->b_count,
                     larder_cause_text(f->rig.cause));
        }
        assert_true(value_is(name, 1, f->rig.buffer, bytes));
    }
}

static void limit(fixture_t *f, const char *name, uint64_t dram, uint64_t ssd)
{
    ldr_tenant_params_t p = {name, dram, ssd};
    uint32_t tenant;

    assert_int_equal(ldr_node_tenant(f->rig.node, &p, &tenant), LARDER_OK);
}

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
    assert_int_equal(after.n.loads_dram - before.n.loads_dram, f->b_count);
    assert_int_equal(after.n.loads_ssd, 0);
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
        assert_true(stats_of(f, B).n.loads_ssd > 0);
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

    f->rig.limits[0] = (ldr_tenant_params_t){"default", 0, 1 * MIB};
    f->rig.limits[1] = (ldr_tenant_params_t){RIG_OTHER, 0, 6 * MIB};
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
    const ldr_disk_t *d = &f->rig.node->ssds[0].disk;
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

/* ---- extents and sessions ---- */

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
    assert_true(ldr_node_room_coming(node, f->rig.spaces[B]->number));
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
    /* What A has still mapped is what it was: none of B's. */
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
    ldr_node_checked(f->rig.node, load.shard);
    ldr_node_release(f->rig.node, load.chunk);
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

static void test_tenant_without_memory(void **state)
{
    fixture_t *f = *state;
    ldr_tenant_params_t p = {"a third", 0, 0};
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
        TEST(test_flood_dram),
        TEST(test_limit_dram),
        TEST(test_flood_ssd_equal),
        TEST(test_flood_ssd_limits),
        TEST(test_flood_ssd_mixed),
        TEST(test_flood_ssd_two_disks),
        TEST(test_all_at_their_shares),
        TEST(test_tombstones_end),
        TEST(test_mapped_stays),
        TEST(test_leased_stays),
        TEST(test_faults),
        TEST(test_no_descriptor),
        TEST(test_tenant_without_memory),
        TEST(test_stolen_id),
        TEST(test_numa),
        TEST(test_counters_add_up),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
