/*
 * The arena: pages, lists, segments, and how full it gets with values of any
 * size, whatever is evicted.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/fault.h"
#include "store/arena.h"
#include "support/storecheck.h"
#include "support/values.h"

#define MIB ((uint32_t)1 << 20)
#define T 3u /* a tenant */

static void arena_fill(ldr_arena_t *a)
{
    ldr_slice_t slice;

    while (ldr_arena_slice_take(a, LDR_NIL, &slice)) {
        ldr_arena_slice_give(a, &slice, ldr_arena_slice_populate(a, &slice));
    }
}

/* The tenant claims all that is free. */
static void claim_all(ldr_arena_t *a, uint32_t tenant)
{
    while (ldr_arena_claim(a, tenant, false)) {
    }
}

/* ---- pages ---- */

static void test_sizes(void **state)
{
    static const struct {
        uint64_t mib;
        uint32_t extents;
    } sizes[] = {{2, 1},        {4, 2},        {16, 8},       {64, 32},
                 {256, 32},     {300, 19},     {4096, 32},    {32768, 32},
                 {65536, 64},   {131072, 128}, {262144, 256}, {524288, 256},
                 {1 << 20, 256}};
    ldr_arena_t a;

    (void)state;
    assert_int_equal(ldr_arena_init(&a, LDR_PAGE - 1, true, 0),
                     LARDER_E_INVALID);
    assert_int_equal(ldr_arena_init(&a, UINT64_C(1) << 50, false, 0),
                     LARDER_E_INVALID);
    assert_int_equal(ldr_arena_init(&a, LDR_PAGE, true, 0), LARDER_OK);
    arena_fill(&a);
    assert_int_equal(a.free_count, 1);
    ldr_arena_destroy(&a);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        assert_int_equal(ldr_arena_init(&a, sizes[i].mib * MIB, false, 0),
                         LARDER_OK);
        assert_int_equal(a.extent_count, sizes[i].extents);
        ldr_arena_destroy(&a);
    }
    /* Several extents, the last of them short. */
    uint64_t pages = (130u << 20) / LDR_PAGE + 3;
    assert_int_equal(ldr_arena_init(&a, pages * LDR_PAGE + 5, true, 0),
                     LARDER_OK);
    assert_int_equal(a.page_count, pages);
    uint32_t sum = 0;
    for (uint32_t i = 0; i < a.extent_count; i++) {
        assert_int_equal(a.extents[i].first, sum);
        assert_int_equal(a.extents[i].memory.bytes,
                         (size_t)a.extents[i].count * LDR_PAGE);
        sum += a.extents[i].count;
    }
    assert_int_equal(sum, pages);
    ldr_arena_destroy(&a);
}

/* Only resident pages are handed out, and each once. */
static void test_take_and_give(void **state)
{
    ldr_arena_t a;
    ldr_slice_t slice;
    uint32_t heads[10];

    (void)state;
    assert_int_equal(ldr_arena_init(&a, 40 * LDR_PAGE, true, 0), LARDER_OK);
    assert_int_equal(ldr_arena_take(&a, T, 1), LDR_NIL);
    assert_true(ldr_arena_slice_take(&a, LDR_NIL, &slice));
    assert_int_equal(slice.count, LDR_SLICE_PAGES);
    assert_true(ldr_arena_slice_populate(&a, &slice));
    claim_all(&a, T); /* while the slice is in hand */
    assert_int_equal(ldr_arena_take(&a, T, 1), LDR_NIL);
    assert_int_equal(a.owners[T].hand_count, 1);
    ldr_arena_slice_give(&a, &slice, true);
    assert_int_equal(a.owners[T].hand_count, 0);
    assert_int_equal(a.ready_count, LDR_SLICE_PAGES);
    assert_int_equal(ldr_arena_ready_pages(&a, 0), LDR_SLICE_PAGES);
    assert_true(ldr_arena_slice_take(&a, T, &slice));
    assert_int_equal(slice.count, 8);
    ldr_arena_slice_give(&a, &slice, false);          /* no memory for these */
    assert_true(ldr_arena_slice_take(&a, T, &slice)); /* tried again */
    assert_int_equal(slice.count, 8);
    ldr_arena_slice_give(&a, &slice, false);
    assert_int_equal(a.owners[T].blank_count, 8);
    assert_int_equal(ldr_arena_take(&a, T, 0), LDR_NIL);
    assert_int_equal(ldr_arena_take(&a, T, LDR_SLICE_PAGES + 1), LDR_NIL);
    for (int i = 0; i < 10; i++) {
        heads[i] = ldr_arena_take(&a, T, 3);
        assert_int_not_equal(heads[i], LDR_NIL);
        for (uint32_t p = heads[i]; p != LDR_NIL; p = a.next[p]) {
            memset(ldr_arena_page(&a, p), i, LDR_PAGE);
        }
    }
    assert_int_equal(a.free_count, 2);
    for (int i = 0; i < 10; i++) {
        for (uint32_t p = heads[i]; p != LDR_NIL; p = a.next[p]) {
            assert_int_equal(ldr_arena_page(&a, p)[0], i);
            assert_int_equal(ldr_arena_page(&a, p)[LDR_PAGE - 1], i);
        }
        ldr_arena_give(&a, heads[i]);
    }
    assert_int_equal(a.free_count, LDR_SLICE_PAGES);
    ldr_arena_destroy(&a);
}

/* Slices that come back in another order: what is resident without a gap. */
static void test_slices_out_of_order(void **state)
{
    ldr_arena_t a;
    ldr_slice_t slices[3];

    (void)state;
    assert_int_equal(ldr_arena_init(&a, 256 * MIB, false, 0), LARDER_OK);
    for (int i = 0; i < 3; i++) {
        assert_true(ldr_arena_slice_take(&a, LDR_NIL, &slices[i]));
    }
    ldr_arena_slice_give(&a, &slices[1], true);
    assert_int_equal(ldr_arena_ready_pages(&a, 0), 0);
    ldr_arena_slice_give(&a, &slices[0], true);
    assert_int_equal(ldr_arena_ready_pages(&a, 0), 2 * LDR_SLICE_PAGES);
    ldr_arena_slice_give(&a, &slices[2], false);
    assert_int_equal(ldr_arena_ready_pages(&a, 0), 2 * LDR_SLICE_PAGES);
    /* Whoever owns memory gets it first, and then it comes in order. */
    assert_true(ldr_arena_claim(&a, T, true));
    assert_true(ldr_arena_claim(&a, 7, false));
    assert_true(ldr_arena_slice_take(&a, 7, &slices[0]));
    assert_int_equal(ldr_arena_extent_of(&a, slices[0].first), 1);
    assert_true(ldr_arena_slice_take(&a, LDR_NIL, &slices[1]));
    assert_int_equal(slices[1].first, 2 * LDR_SLICE_PAGES);
    ldr_arena_slice_give(&a, &slices[0], true);
    ldr_arena_slice_give(&a, &slices[1], true);
    arena_fill(&a);
    assert_int_equal(a.ready_count, a.page_count);
    assert_int_equal(ldr_arena_ready_pages(&a, 0), ldr_arena_extent_pages(&a));
    assert_int_equal(a.owners[7].free_count, ldr_arena_extent_pages(&a));
    ldr_arena_destroy(&a);
}

/* ---- extents ---- */

static void extent_check(const ldr_arena_t *a, uint32_t head, uint32_t tenant)
{
    for (uint32_t p = head; p != LDR_NIL; p = a->next[p]) {
        assert_int_equal(a->extents[ldr_arena_extent_of(a, p)].tenant, tenant);
    }
}

/* Pages come from the tenant's own extents, over several if need be, and never
 * more than it may use. */
static void test_tenants_apart(void **state)
{
    ldr_arena_t a;

    (void)state;
    assert_int_equal(ldr_arena_init(&a, 8 * MIB, false, 0), LARDER_OK);
    arena_fill(&a);
    assert_int_equal(a.unowned, 4);
    assert_int_equal(ldr_arena_take(&a, 0, 1), LDR_NIL);
    assert_true(ldr_arena_claim(&a, 0, true));
    assert_true(ldr_arena_claim(&a, 1, true));
    assert_true(ldr_arena_claim(&a, 0, true));
    assert_int_equal(ldr_arena_take(&a, 0, 65), LDR_NIL);
    uint32_t first = ldr_arena_take(&a, 0, 50);
    uint32_t second = ldr_arena_take(&a, 1, 32);
    uint32_t third = ldr_arena_take(&a, 0, 14);
    extent_check(&a, first, 0);
    extent_check(&a, second, 1);
    extent_check(&a, third, 0);
    assert_int_equal(ldr_arena_take(&a, 0, 1), LDR_NIL);
    assert_int_equal(ldr_arena_take(&a, 1, 1), LDR_NIL);
    assert_int_equal(a.owners[0].used_count, 64);
    ldr_arena_hand(&a, first, 5);
    assert_int_equal(ldr_arena_holder(&a, first), 5);
    ldr_arena_give(&a, first);
    assert_int_equal(ldr_arena_holder(&a, first), LDR_NIL);
    assert_int_equal(a.owners[0].free_count, 50);
    assert_int_equal(a.owners[1].free_count, 0);
    /* Given back in several extents, taken again as the same list. */
    assert_int_equal(ldr_arena_take(&a, 0, 50) == LDR_NIL, false);
    ldr_arena_give(&a, second);
    /* A limit in pages, and in the extents that it can use. */
    a.owners[1].pages_max = 40;
    assert_true(ldr_arena_claim(&a, 1, true));
    assert_false(ldr_arena_claim(&a, 1, true));
    assert_int_equal(ldr_arena_take(&a, 1, 41), LDR_NIL);
    uint32_t most = ldr_arena_take(&a, 1, 40);
    assert_int_not_equal(most, LDR_NIL);
    assert_int_equal(ldr_arena_take(&a, 1, 1), LDR_NIL);
    ldr_arena_give(&a, most);
    ldr_arena_destroy(&a);
}

/* An extent changes hands only when nothing in it is used, mapped or being made
 * resident, and then it is other memory. */
static void test_leave_and_renew(void **state)
{
    ldr_arena_t a;
    ldr_slice_t slice;
    uint32_t extent;

    (void)state;
    assert_int_equal(ldr_arena_init(&a, 4 * MIB, true, 0), LARDER_OK);
    assert_true(ldr_arena_claim(&a, 0, false));
    assert_true(ldr_arena_slice_take(&a, 0, &slice));
    assert_true(ldr_arena_slice_populate(&a, &slice));
    ldr_arena_slice_give(&a, &slice, true);
    uint32_t used = ldr_arena_take(&a, 0, 2);
    memset(ldr_arena_page(&a, used), 7, LDR_PAGE);
    assert_false(ldr_arena_map(&a, 1, 0, 1));
    assert_false(ldr_arena_map(&a, 0, 0, 2));
    assert_false(ldr_arena_map(&a, 0, 1, 1)); /* nobody's */
    assert_false(ldr_arena_map(&a, 0, 2, 1));
    assert_false(ldr_arena_map(&a, LDR_NIL, 1, 1));
    assert_true(ldr_arena_map(&a, 0, 0, 1));
    assert_true(ldr_arena_map(&a, 0, 0, 1));

    ldr_arena_leave(&a, 0, 1);
    assert_int_equal(ldr_arena_take(&a, 0, 1), LDR_NIL);
    assert_int_equal(a.owners[0].leaving_count, 1);
    assert_int_equal(a.owners[1].coming_count, 1);
    assert_false(ldr_arena_renew_take(&a, &extent));
    ldr_arena_unmap(&a, 0, 1);
    ldr_arena_unmap(&a, 0, 5); /* of another generation: not this one */
    ldr_arena_give(&a, used);
    assert_false(ldr_arena_renew_take(&a, &extent));
    /* It can still be mapped, to read what is leased. */
    assert_true(ldr_arena_map(&a, 0, 0, 1));
    ldr_arena_unmap(&a, 0, 1);
    assert_false(ldr_arena_renew_take(&a, &extent));
    assert_int_equal(a.empty_count, 0);
    ldr_arena_unmap(&a, 0, 1);
    assert_int_equal(a.empty_count, 1);
    assert_false(ldr_arena_map(&a, 0, 0, 1));
    ldr_arena_unmap(&a, 0, 1); /* once too often */

    assert_true(ldr_arena_renew_take(&a, &extent));
    assert_int_equal(extent, 0);
    assert_true(ldr_arena_renewing(&a, 1));
    assert_false(ldr_arena_claim(&a, 0, true));
    ldr_fault_arm(LDR_FAULT_extent_create, 1, 1);
    assert_false(ldr_arena_renew_make(&a, extent));
    ldr_fault_disarm_all();
    ldr_arena_renew_give(&a, extent, false);
    assert_true(ldr_arena_renew_take(&a, &extent));
    assert_true(ldr_arena_renew_make(&a, extent));
    ldr_arena_renew_give(&a, extent, true);
    assert_false(ldr_arena_renewing(&a, 1));
    assert_int_equal(a.extents[0].generation, 2);
    assert_int_equal(a.extents[0].tenant, 1);
    assert_int_equal(a.owners[1].coming_count, 0);
    assert_int_equal(a.owners[1].extent_count, 1);
    assert_int_equal(a.ready_count, 0);
    assert_false(ldr_arena_map(&a, 1, 0, 1));
    assert_true(ldr_arena_map(&a, 1, 0, 2));
    ldr_arena_unmap(&a, 0, 2);
    assert_true(ldr_arena_slice_take(&a, 1, &slice));
    assert_true(ldr_arena_slice_populate(&a, &slice));
    ldr_arena_leave(&a, 0, 0); /* with a slice in hand */
    assert_int_equal(a.empty_count, 0);
    ldr_arena_slice_give(&a, &slice, true);
    assert_int_equal(a.empty_count, 1);
    assert_int_equal(ldr_arena_page(&a, used)[0], 0); /* not the other's */
    ldr_arena_destroy(&a);
}

/* How many bytes the kernel has for the extent. */
static uint64_t resident(const ldr_arena_t *a, uint32_t extent)
{
    struct stat st;

    assert_int_equal(fstat(a->extents[extent].memory.fd, &st), 0);
    return (uint64_t)st.st_blocks * 512;
}

/* The heir has other memory; what is held in the old one stays as it is, the
 * rest is given back, though it is still mapped: all of it in the end. */
static void test_overdue(void **state)
{
    ldr_arena_t a;
    ldr_slice_t slice, run;
    uint32_t extent;

    (void)state;
    assert_int_equal(ldr_arena_init(&a, 4 * MIB, true, 0), LARDER_OK);
    assert_int_equal(a.slot_count, 3);
    assert_true(ldr_arena_claim(&a, 0, false));
    assert_true(ldr_arena_slice_take(&a, 0, &slice));
    assert_true(ldr_arena_slice_populate(&a, &slice));
    ldr_arena_slice_give(&a, &slice, true);
    uint32_t kept = ldr_arena_take(&a, 0, 2);
    uint32_t held = ldr_arena_take(&a, 0, 1);
    ldr_arena_hand(&a, kept, 5);
    ldr_arena_hand(&a, held, 6);
    memset(ldr_arena_page(&a, kept), 7, 2 * LDR_PAGE);
    assert_true(ldr_arena_map(&a, 0, 0, 1));
    int other = ldr_extent_share(&a.extents[0].memory);
    ldr_arena_leave(&a, 0, 1);
    assert_true(ldr_arena_overdue(&a, 0));
    assert_int_equal(a.ready_count, 3);
    assert_true(ldr_arena_trim_take(&a, &run));
    ldr_arena_trim(&a, &run);
    assert_false(ldr_arena_trim_take(&a, &run));
    assert_int_equal(resident(&a, 0), 3 * LDR_PAGE);
    ldr_arena_give(&a, held);
    while (ldr_arena_trim_take(&a, &run)) {
        ldr_arena_trim(&a, &run);
    }
    assert_int_equal(resident(&a, 0), 2 * LDR_PAGE);
    assert_int_equal(ldr_arena_page(&a, kept)[2 * LDR_PAGE - 1], 7);

    assert_true(ldr_arena_renew_take(&a, &extent));
    assert_int_equal(extent, 2);
    assert_true(ldr_arena_renew_make(&a, extent));
    ldr_arena_renew_give(&a, extent, true);
    assert_true(ldr_arena_slice_take(&a, 1, &slice));
    ldr_arena_slice_give(&a, &slice, true);
    uint32_t taken = ldr_arena_take(&a, 1, 1);
    assert_int_equal(ldr_arena_extent_of(&a, taken), 2);
    assert_false(ldr_arena_renew_take(&a, &extent));

    ldr_arena_give(&a, kept);
    assert_int_equal(a.owners[0].overdue_count, 1); /* mapped */
    ldr_arena_unmap(&a, 0, 1);
    assert_int_equal(a.overdue_count, 0);
    assert_true(ldr_arena_renew_take(&a, &extent));
    assert_int_equal(extent, 0);
    assert_true(ldr_arena_renew_make(&a, extent));
    ldr_arena_renew_give(&a, extent, true);
    assert_int_equal(a.extents[0].state, LDR_EXTENT_SPARE);
    assert_null(a.extents[0].memory.base);
    struct stat st;
    assert_int_equal(fstat(other, &st), 0); /* who has it has nothing */
    assert_int_equal(st.st_blocks, 0);
    ldr_extent_unshare(other);
    ldr_arena_destroy(&a);
}

/* Neighbours are one segment; what does not fit is counted. */
static void test_segments(void **state)
{
    ldr_arena_t a;
    struct iovec iov[4];

    (void)state;
    assert_int_equal(ldr_arena_init(&a, 8 * LDR_PAGE, true, 0), LARDER_OK);
    arena_fill(&a);
    claim_all(&a, T);
    uint32_t head = ldr_arena_take(&a, T, 8);
    assert_int_equal(ldr_arena_iov(&a, head, 3 * LDR_PAGE + 7, iov, 4), 1);
    assert_int_equal(iov[0].iov_len, 3 * LDR_PAGE + 7);
    assert_ptr_equal(iov[0].iov_base, ldr_arena_page(&a, head));
    /* 0 2 4 6, then 1 3 5 7: nothing is next to another. */
    static const uint32_t order[] = {0, 2, 4, 6, 1, 3, 5, 7};
    for (int i = 0; i < 8; i++) {
        a.next[order[i]] = i == 7 ? LDR_NIL : order[i + 1];
    }
    assert_int_equal(ldr_arena_iov(&a, 0, 8 * LDR_PAGE, iov, 4), 8);
    assert_int_equal(iov[3].iov_len, LDR_PAGE);
    assert_ptr_equal(iov[3].iov_base, ldr_arena_page(&a, 6));
    assert_int_equal(ldr_arena_iov(&a, 0, 3 * LDR_PAGE, iov, 4), 3);
    ldr_arena_destroy(&a);
}

/* The same as places that another process finds: never over an extent's end. */
static void test_places(void **state)
{
    ldr_arena_t a;
    ldr_seg_t segs[4];

    (void)state;
    assert_int_equal(ldr_arena_init(&a, 6 * MIB, false, 0), LARDER_OK);
    arena_fill(&a);
    claim_all(&a, T);
    for (uint32_t i = 0; i < 96; i++) {
        a.next[i] = i == 95 ? LDR_NIL : i + 1;
    }
    a.extents[1].generation = 9;
    assert_int_equal(ldr_arena_segs(&a, 30, 36 * (size_t)LDR_PAGE + 1, segs, 4),
                     3);
    assert_int_equal(segs[0].extent, 0);
    assert_int_equal(segs[0].generation, 1);
    assert_int_equal(segs[0].page, 30);
    assert_int_equal(segs[0].bytes, 2 * LDR_PAGE);
    assert_int_equal(segs[1].extent, 1);
    assert_int_equal(segs[1].generation, 9);
    assert_int_equal(segs[1].page, 0);
    assert_int_equal(segs[1].bytes, 32 * LDR_PAGE);
    assert_int_equal(segs[2].extent, 2);
    assert_int_equal(segs[2].bytes, 2 * LDR_PAGE + 1);
    assert_int_equal(ldr_arena_segs(&a, 30, 36 * (size_t)LDR_PAGE, segs, 1), 3);
    a.next[2] = 5;
    assert_int_equal(ldr_arena_segs(&a, 1, 3 * (size_t)LDR_PAGE, segs, 4), 2);
    assert_int_equal(segs[1].page, 5);
    assert_int_equal(ldr_arena_segs(&a, 1, 1, segs, 4), 1);
    assert_int_equal(segs[0].bytes, 1);
    ldr_arena_destroy(&a);
}

static void test_no_memory(void **state)
{
    ldr_arena_t a;

    (void)state;
    for (uint64_t nth = 1; nth <= 5; nth++) {
        ldr_fault_arm(LDR_FAULT_alloc, nth, 1);
        assert_int_equal(ldr_arena_init(&a, 4 * LDR_PAGE, true, 0),
                         LARDER_E_NO_MEMORY);
    }
    ldr_fault_disarm_all();
    for (uint64_t nth = 1; nth <= 3; nth++) {
        ldr_fault_arm(LDR_FAULT_extent_create, nth, 1);
        assert_int_equal(ldr_arena_init(&a, 140 * MIB, true, 0),
                         LARDER_E_NO_MEMORY);
    }
    ldr_fault_disarm_all();
    ldr_fault_arm(LDR_FAULT_extent_populate, 1, 0);
    assert_int_equal(ldr_arena_init(&a, 4 * LDR_PAGE, true, 0), LARDER_OK);
    ldr_slice_t slice;
    assert_true(ldr_arena_slice_take(&a, LDR_NIL, &slice));
    assert_false(ldr_arena_slice_populate(&a, &slice));
    ldr_arena_slice_give(&a, &slice, false);
    assert_int_equal(a.free_count, 0);
    ldr_fault_disarm_all();
    arena_fill(&a);
    assert_int_equal(a.free_count, 4);
    ldr_arena_destroy(&a);
}

/* What a machine with one node can show: that it is asked for, and that a node
 * which is not there is refused. */
static void test_numa(void **state)
{
    ldr_arena_t a;

    (void)state;
    assert_true(ldr_numa_check(64) < 0);
    if (ldr_numa_check(0) != 0) {
        skip(); /* a container that forbids it */
    }
    assert_int_equal(ldr_arena_init(&a, 4 * MIB, true, 1), LARDER_OK);
    arena_fill(&a);
    assert_int_equal(a.ready_count, a.page_count);
    ldr_arena_destroy(&a);
    unsigned missing = 63;
    if (ldr_numa_check(missing) == -EINVAL) {
        assert_int_equal(
            ldr_arena_init(&a, 4 * MIB, true, (uint64_t)1 << missing),
            LARDER_E_NO_MEMORY);
    }
}

/* ---- how full it gets ---- */

/* A policy without sense: any slot may be the victim. */
typedef struct any {
    ldr_policy_t base;
    ldr_rand_t rand;
    uint32_t capacity, count;
    uint32_t *slots; /* candidates */
    uint32_t *place; /* in slots, or LDR_NIL */
} any_t;

static void any_put(any_t *any, uint32_t slot)
{
    any->place[slot] = any->count;
    any->slots[any->count++] = slot;
}

static void any_hold(ldr_policy_t *policy, uint32_t slot)
{
    any_t *any = (any_t *)policy;
    uint32_t at = any->place[slot];

    if (at != LDR_NIL) {
        any->slots[at] = any->slots[--any->count];
        any->place[any->slots[at]] = at;
        any->place[slot] = LDR_NIL;
    }
}

static void any_place(ldr_policy_t *policy, uint32_t slot, uint32_t parent,
                      uint32_t depth, uint64_t print)
{
    (void)parent;
    (void)depth;
    (void)print;
    any_put((any_t *)policy, slot);
}

static bool any_admit(ldr_policy_t *policy, uint32_t parent, uint32_t depth,
                      uint64_t print)
{
    (void)policy;
    (void)parent;
    (void)depth;
    (void)print;
    return true;
}

static void any_time(ldr_policy_t *policy, uint32_t now_ds)
{
    (void)policy;
    (void)now_ds;
}

static void any_release(ldr_policy_t *policy, uint32_t slot)
{
    any_put((any_t *)policy, slot);
}

static uint32_t any_victim(ldr_policy_t *policy)
{
    any_t *any = (any_t *)policy;

    return any->count == 0 ? LDR_NIL
                           : any->slots[ldr_rand_below(&any->rand, any->count)];
}

static ldr_policy_t *any_create(uint32_t capacity);

static void any_destroy(ldr_policy_t *policy)
{
    any_t *any = (any_t *)policy;

    free(any->slots);
    free(any->place);
    free(any);
}

static const ldr_policy_ops_t any_policy = {
    .name = "any",
    .create = any_create,
    .destroy = any_destroy,
    .hold = any_hold,
    .release = any_release,
    .remove = any_hold,
    .victim = any_victim,
    .time = any_time,
    .admit = any_admit,
    .place = any_place,
};

static ldr_policy_t *any_create(uint32_t capacity)
{
    any_t *any = calloc(1, sizeof(*any));

    any->base.ops = &any_policy;
    any->capacity = capacity;
    any->slots = calloc(capacity, sizeof(uint32_t));
    any->place = calloc(capacity, sizeof(uint32_t));
    memset(any->place, 0xff, capacity * sizeof(uint32_t));
    ldr_rand_seed(&any->rand, 5);
    return &any->base;
}

static void store_open(ldr_store_t *s, uint64_t bytes)
{
    static const uint8_t id[LDR_ID_BYTES] = {1};
    ldr_store_params_t params = {
        .dram_bytes = bytes,
        .entry_max = 100000,
        .seed = 3,
        .policy = &any_policy,
    };

    assert_int_equal(ldr_store_init(s, &params), LARDER_OK);
    arena_fill(&s->arena);
    assert_int_equal(ldr_store_tenant(s, id), 0);
    assert_int_equal(ldr_store_space(s, id), 0);
}

static void put(ldr_store_t *s, uint32_t number, uint32_t length)
{
    larder_key_t key = test_key(number);
    ldr_reserve_t r = {
        .name = ldr_store_name(s, 0, 0, &key),
        .shards = 1,
        .length = length,
        .state = LDR_SHARD_FILLING,
    };
    uint32_t shard;

    assert_int_equal(ldr_store_reserve(s, LDR_NIL, &r, &shard), LARDER_OK);
    assert_true(store_commit(s, shard, 0));
    ldr_store_release(s, s->shards[shard].chunk);
}

static double fill_of(const ldr_store_t *s)
{
    double bytes = 0;

    for (uint32_t i = 0; i < s->shard_top; i++) {
        bytes +=
            s->shards[i].state == LDR_SHARD_READY ? s->shards[i].length : 0;
    }
    return bytes / ((double)s->arena.page_count * LDR_PAGE);
}

typedef uint32_t (*size_fn)(ldr_rand_t *rand);

static uint32_t size_64k(ldr_rand_t *rand)
{
    (void)rand;
    return 65536;
}

static uint32_t size_1m(ldr_rand_t *rand)
{
    (void)rand;
    return MIB;
}

static uint32_t size_3m(ldr_rand_t *rand)
{
    (void)rand;
    return 3 * MIB + 1;
}

static uint32_t size_mixed(ldr_rand_t *rand)
{
    static const size_fn sizes[] = {size_64k, size_1m, size_3m};

    return sizes[ldr_rand_below(rand, 3)](rand);
}

/* Four times the arena of one size; then it is at least 0.9 full, at every
 * moment from the time that it was full once. */
static void fill(ldr_store_t *s, const char *what, size_fn size,
                 uint32_t *number, bool from_empty)
{
    uint64_t left = 4 * (uint64_t)s->arena.page_count * LDR_PAGE;
    ldr_rand_t rand;
    double least = 1;
    bool full = !from_empty;

    ldr_rand_seed(&rand, 11);
    while (left > 3 * MIB) {
        uint32_t length = size(&rand);
        uint64_t evicted = s->n.evicted_chunks;

        put(s, ++*number, length);
        left -= length;
        full |= s->n.evicted_chunks > evicted;
        if (full && *number % 16 == 0) {
            double now = fill_of(s);
            least = now < least ? now : least;
        }
    }
    store_check(s);
    printf("%s: %.3f full, %.3f at least\n", what, fill_of(s), least);
    assert_true(fill_of(s) >= 0.9);
    assert_true(least >= 0.9);
}

static void test_full(void **state)
{
    static const struct {
        const char *what;
        size_fn size;
    } kinds[] = {{"64 KiB", size_64k},
                 {"1 MiB", size_1m},
                 {"3 MiB + 1", size_3m},
                 {"mixed", size_mixed}};
    ldr_store_t s;

    (void)state;
    for (int i = 0; i < 4; i++) {
        uint32_t number = 0;

        store_open(&s, 128 * MIB);
        fill(&s, kinds[i].what, kinds[i].size, &number, true);
        ldr_store_destroy(&s);
    }
}

static void test_full_after_a_change(void **state)
{
    ldr_store_t s;
    uint32_t number = 0;

    (void)state;
    store_open(&s, 128 * MIB);
    fill(&s, "64 KiB", size_64k, &number, true);
    fill(&s, "then 3 MiB + 1", size_3m, &number, false);
    fill(&s, "then 64 KiB", size_64k, &number, false);
    fill(&s, "then mixed", size_mixed, &number, false);
    fill(&s, "then 1 MiB", size_1m, &number, false);
    ldr_store_destroy(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_take_and_give),
        cmocka_unit_test(test_slices_out_of_order),
        cmocka_unit_test(test_tenants_apart),
        cmocka_unit_test(test_leave_and_renew),
        cmocka_unit_test(test_overdue),
        cmocka_unit_test(test_segments),
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_numa),
        cmocka_unit_test(test_full),
        cmocka_unit_test(test_full_after_a_change),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
