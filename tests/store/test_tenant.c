/*
 * Tenants in the store: shares of memory, extents that move from one to
 * another, and what each has on disk. store_check() walks all tables after
 * every change.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/fault.h"
#include "support/storecheck.h"
#include "support/values.h"

#define MIB ((uint64_t)1 << 20)
#define EXTENT_PAGES 32u

/* Every test is run with both. */
static const ldr_policy_ops_t *policy = &ldr_policy_lru;

/* A store of so many extents, for so many tenants with a space each. */
static void tenants_open(ldr_store_t *s, uint32_t extents, uint32_t tenants)
{
    ldr_store_params_t params = {
        .dram_bytes = (uint64_t)extents * EXTENT_PAGES * LDR_PAGE,
        .entry_max = 10000,
        .seed = 3,
        .pin_max = 8 * LDR_PAGE,
        .policy = policy,
        .disks = 2,
    };
    ldr_slice_t slice;

    if (s->chunks != NULL) {
        store_check(s);
        ldr_store_destroy(s);
    }
    assert_int_equal(ldr_store_init(s, &params), LARDER_OK);
    assert_int_equal(ldr_behind_open(s, 0, false), LARDER_OK);
    assert_int_equal(s->arena.extent_count, extents);
    while (ldr_arena_slice_take(&s->arena, LDR_NIL, &slice)) {
        ldr_arena_slice_give(&s->arena, &slice, true);
    }
    for (uint32_t i = 0; i < tenants; i++) {
        uint8_t id[LDR_ID_BYTES] = {(uint8_t)i, 7};

        assert_int_equal(ldr_store_tenant(s, id), i);
        id[LDR_ID_BYTES - 1] = 9;
        assert_int_equal(ldr_store_space(s, id), i);
        assert_int_equal(s->spaces[i].tenant, i);
    }
}

/* Reserves pages of a tenant; the shard, or LDR_NIL. */
static uint32_t reserve_of(ldr_store_t *s, uint32_t tenant, uint32_t number,
                           uint32_t pages)
{
    larder_key_t key = test_key(number);
    larder_cause_t cause;
    ldr_reserve_t r = {
        .name = ldr_store_name(s, tenant, 0, &key),
        .shards = 1,
        .length = pages * LDR_PAGE,
        .now_s = 100,
        .state = LDR_SHARD_FILLING,
    };
    uint32_t entry = ldr_store_find(s, &r.name, LDR_NIL, 100, &cause);
    uint32_t shard = LDR_NIL;

    assert_int_equal(entry, LDR_NIL);
    ldr_store_share(s, tenant);
    return ldr_store_reserve(s, entry, &r, &shard) == LARDER_OK ? shard
                                                                : LDR_NIL;
}

static larder_status_t reserve_nobody(ldr_store_t *s, uint32_t space)
{
    larder_key_t key = test_key(1);
    ldr_reserve_t r = {
        .name = ldr_store_name(s, space, 0, &key),
        .shards = 1,
        .length = LDR_PAGE,
        .state = LDR_SHARD_FILLING,
    };
    uint32_t shard;

    return ldr_store_reserve(s, LDR_NIL, &r, &shard);
}

static uint32_t put_of(ldr_store_t *s, uint32_t tenant, uint32_t number,
                       uint32_t pages)
{
    uint32_t shard = reserve_of(s, tenant, number, pages);

    if (shard != LDR_NIL) {
        assert_true(store_commit(s, shard, 7));
        ldr_store_release(s, s->shards[shard].chunk);
    }
    store_check(s);
    return shard;
}

static bool is_there_of(ldr_store_t *s, uint32_t tenant, uint32_t number)
{
    larder_key_t key = test_key(number);
    larder_cause_t cause;
    ldr_name_t name = ldr_store_name(s, tenant, 0, &key);
    uint32_t entry = ldr_store_find(s, &name, LDR_NIL, 100, &cause);

    return entry != LDR_NIL && ldr_store_resident(s, entry, 0) != LDR_NIL;
}

/* Makes extents anew that have left; how many. */
static uint32_t renew(ldr_store_t *s)
{
    ldr_slice_t slice;
    uint32_t extent, count = 0;

    while (ldr_arena_renew_take(&s->arena, &extent)) {
        store_check(s);
        ldr_arena_renew_give(&s->arena, extent, true);
        count++;
    }
    while (ldr_arena_slice_take(&s->arena, LDR_NIL, &slice)) {
        ldr_arena_slice_give(&s->arena, &slice, true);
    }
    store_check(s);
    return count;
}

static void test_shares(void **state)
{
    static const struct {
        uint32_t limits[4]; /* in pages; 0: none */
        uint32_t asking;
        uint32_t shares[4];
    } cases[] = {
        {{0}, 1, {16}}, /* alone */
        {{0}, 2, {8, 8}},
        {{0}, 3, {5, 5, 5}},
        {{64, 0}, 2, {2, 14}},
        {{65, 0, 0}, 3, {3, 6, 6}}, /* whole extents */
        {{1, 0}, 2, {1, 15}},
        {{64, 128}, 2, {2, 4}},  /* what nobody has is for anybody */
        {{512, 512}, 2, {8, 8}}, /* more than there is */
        {{512, 256, 0}, 3, {10, 5, 1}},
        {{512, 512, 512, 512}, 4, {4, 4, 4, 4}},
    };
    ldr_store_t *s = *state;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tenants_open(s, 16, 4);
        for (uint32_t t = 0; t < cases[i].asking; t++) {
            ldr_store_limits(s, t, (uint64_t)cases[i].limits[t] * LDR_PAGE, 0);
            ldr_store_share(s, t);
        }
        for (uint32_t t = 0; t < cases[i].asking; t++) {
            assert_int_equal(ldr_store_share(s, t), cases[i].shares[t]);
        }
    }
    /* More tenants than extents. */
    tenants_open(s, 2, 4);
    for (uint32_t t = 0; t < 4; t++) {
        assert_int_equal(ldr_store_share(s, t), t == 0 ? 2 : 1);
    }
}

/* A tenant evicts its own, and never uses more than its limit. */
static void test_limit(void **state)
{
    ldr_store_t *s = *state;

    tenants_open(s, 8, 2);
    ldr_store_limits(s, 0, 40 * LDR_PAGE + 1, 0);
    for (uint32_t i = 0; i < 100; i++) {
        assert_int_not_equal(put_of(s, 1, i, 1), LDR_NIL);
    }
    for (uint32_t i = 0; i < 200; i++) {
        assert_int_not_equal(put_of(s, 0, i, 3), LDR_NIL);
        assert_true(s->arena.owners[0].used_count <= 40);
    }
    assert_int_equal(s->arena.owners[0].used_count, 39);
    assert_int_equal(s->arena.owners[0].extent_count, 2);
    assert_int_equal(put_of(s, 0, 999, 41), LDR_NIL);
    assert_int_equal(s->spaces[1].n.evicted_chunks, 0);
    assert_int_equal(s->n.evicted_chunks, s->spaces[0].n.evicted_chunks);
    /* A lower one holds from the next save on. */
    put_of(s, 0, 1000, 3);
    ldr_store_limits(s, 0, 10 * LDR_PAGE, 0);
    assert_int_not_equal(put_of(s, 0, 1001, 3), LDR_NIL);
    assert_true(s->arena.owners[0].used_count <= 10);
    for (uint32_t i = 0; i < 100; i++) {
        assert_true(is_there_of(s, 1, i));
    }
}

/* Whoever is below his share gets extents from whoever is over his, never more,
 * and never anybody else's. */
static void test_demand(void **state)
{
    ldr_store_t *s = *state;

    tenants_open(s, 8, 3);
    for (uint32_t i = 0; i < 8 * EXTENT_PAGES; i++) {
        assert_int_not_equal(put_of(s, 0, i, 1), LDR_NIL);
    }
    assert_int_equal(s->n.evicted_chunks, 0);
    assert_int_equal(s->arena.owners[0].extent_count, 8);
    assert_int_equal(ldr_store_demand(s, 0), LDR_NIL);
    assert_int_equal(put_of(s, 1, 0, 1), LDR_NIL); /* nothing of its own */
    for (uint32_t i = 1; i <= 4; i++) {
        uint32_t extent = ldr_store_demand(s, 1);

        assert_int_not_equal(extent, LDR_NIL);
        while (ldr_store_vacate(s, extent, 5)) {
            store_check(s);
        }
        assert_int_equal(s->n.evicted_chunks, i * EXTENT_PAGES);
        assert_int_equal(renew(s), 1);
        assert_int_equal(s->arena.extents[extent].tenant, 1);
        assert_int_equal(s->arena.extents[extent].generation, 2);
    }
    assert_int_equal(ldr_store_demand(s, 1), LDR_NIL);
    /* The coldest went: what was put first. */
    for (uint32_t i = 0; i < 8 * EXTENT_PAGES; i++) {
        assert_int_equal(is_there_of(s, 0, i), i >= 4 * EXTENT_PAGES);
    }
    for (uint32_t i = 0; i < 500; i++) {
        assert_int_not_equal(put_of(s, 1, i, 1), LDR_NIL);
    }
    for (uint32_t i = 4 * EXTENT_PAGES; i < 8 * EXTENT_PAGES; i++) {
        assert_true(is_there_of(s, 0, i));
    }
    /* A third one: each gives of what it has over its share. */
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t extent = ldr_store_demand(s, 2);

        assert_int_equal(ldr_store_demand(s, 0), LDR_NIL);
        assert_int_not_equal(extent, LDR_NIL);
        assert_false(ldr_store_vacate(s, extent, 1000));
        assert_int_equal(renew(s), 1);
    }
    assert_int_equal(ldr_store_demand(s, 2), LDR_NIL);
    assert_int_equal(s->arena.owners[0].extent_count, 3);
    assert_int_equal(s->arena.owners[1].extent_count, 3);
    assert_int_equal(s->arena.owners[2].extent_count, 2);
}

/* An extent with little in it goes before one with much. */
static void test_demand_takes_the_emptiest(void **state)
{
    ldr_store_t *s = *state;

    tenants_open(s, 4, 2);
    for (uint32_t i = 0; i < 4 * EXTENT_PAGES; i++) {
        assert_int_not_equal(put_of(s, 0, i, 1), LDR_NIL);
    }
    uint32_t emptiest = LDR_NIL;
    for (uint32_t i = 0; i < 4 * EXTENT_PAGES; i++) {
        larder_key_t key = test_key(i);
        larder_cause_t cause;
        ldr_name_t name = ldr_store_name(s, 0, 0, &key);
        uint32_t entry = ldr_store_find(s, &name, LDR_NIL, 100, &cause);
        uint32_t page = s->shards[ldr_store_resident(s, entry, 0)].page;

        if (i >= 3 * EXTENT_PAGES + 3) {
            emptiest = ldr_arena_extent_of(&s->arena, page);
            ldr_store_forget(s, entry);
        }
    }
    assert_int_equal(ldr_store_share(s, 1), 2);
    assert_int_equal(ldr_store_demand(s, 1), emptiest);
    assert_false(ldr_store_vacate(s, emptiest, 1000));
    assert_int_equal(s->n.evicted_chunks, 3);
    assert_int_equal(renew(s), 1);
}

/* What is held in an extent that leaves stays readable, nobody else finds it,
 * and it goes with its last hold. What is being filled can be committed. */
static void test_leaving_holds(void **state)
{
    ldr_store_t *s = *state;

    tenants_open(s, 2, 2);
    uint32_t read = put_of(s, 0, 1, 4);
    uint32_t idle = put_of(s, 0, 2, 4);
    uint32_t held = put_of(s, 0, 3, 4);
    uint32_t filling = reserve_of(s, 0, 4, 4);
    uint32_t aborted = reserve_of(s, 0, 5, 4);
    (void)idle;
    /* It has both extents now, and in both something is held. */
    uint32_t large = put_of(s, 0, 6, EXTENT_PAGES);
    assert_int_equal(s->arena.owners[0].extent_count, 2);
    ldr_store_hold(s, s->shards[large].chunk);
    ldr_store_hold(s, s->shards[read].chunk);
    ldr_store_hold(s, s->shards[held].chunk);
    assert_int_equal(ldr_store_share(s, 1), 1);
    uint32_t extent = ldr_store_demand(s, 1);
    assert_int_equal(extent,
                     ldr_arena_extent_of(&s->arena, s->shards[read].page));
    assert_false(ldr_store_vacate(s, extent, 1000));
    store_check(s);
    assert_int_equal(renew(s), 0);
    /* The one that nobody held is gone; one that somebody asks for goes. */
    assert_false(is_there_of(s, 0, 2));
    assert_false(is_there_of(s, 0, 1));
    store_check(s);
    assert_int_equal(s->shards[read].state, LDR_SHARD_READY);
    assert_true(store_commit(s, filling, 7));
    ldr_store_release(s, s->shards[filling].chunk);
    ldr_store_abort(s, aborted);
    store_check(s);
    assert_int_equal(renew(s), 0);
    ldr_store_release(s, s->shards[read].chunk);
    store_check(s);
    assert_int_equal(renew(s), 0);
    ldr_store_release(s, s->shards[held].chunk);
    assert_int_equal(renew(s), 1);
    assert_int_not_equal(put_of(s, 1, 1, EXTENT_PAGES), LDR_NIL);
    assert_int_equal(s->arena.extents[extent].tenant, 1);
    ldr_store_release(s, s->shards[large].chunk);
}

/* A tenant that holds on to everything costs the others nothing: they get
 * memory beside it, it has no more than its share with what it keeps, and the
 * memory beside it goes when it lets go. */
static void test_overdue(void **state)
{
    ldr_store_t *s = *state;
    uint32_t kept[4];

    tenants_open(s, 4, 3);
    for (uint32_t i = 0; i < 4; i++) {
        kept[i] = put_of(s, 0, i, EXTENT_PAGES);
        ldr_store_hold(s, s->shards[kept[i]].chunk);
    }
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t extent = ldr_store_demand(s, 1);

        assert_int_not_equal(extent, LDR_NIL);
        assert_false(ldr_store_vacate(s, extent, 1000));
        assert_int_equal(renew(s), 0); /* held */
        assert_true(ldr_arena_overdue(&s->arena, extent));
        store_check(s);
        assert_int_equal(renew(s), 1);
        assert_int_not_equal(put_of(s, 1, 10 + i, EXTENT_PAGES), LDR_NIL);
        store_check(s);
    }
    assert_int_equal(ldr_store_demand(s, 1), LDR_NIL); /* it has its share */
    assert_int_equal(s->arena.owners[0].overdue_count, 2);
    assert_int_equal(s->arena.owners[0].used_count, 4 * EXTENT_PAGES);
    /* Others find no more beside it: they wait. */
    uint32_t extent = ldr_store_demand(s, 2);
    assert_int_not_equal(extent, LDR_NIL);
    assert_false(ldr_store_vacate(s, extent, 1000));
    assert_false(ldr_arena_overdue(&s->arena, extent));
    store_check(s);
    for (uint32_t i = 0; i < 4; i++) {
        ldr_store_release(s, s->shards[kept[i]].chunk);
        store_check(s);
    }
    assert_int_equal(renew(s), 3);
    assert_int_equal(s->arena.overdue_count, 0);
    assert_int_equal(s->arena.owners[2].extent_count, 1);
}

/* Emptying one takes several holds of the lock; that it becomes overdue
 * meanwhile does not end it, or what nobody holds would stay there. */
static void test_overdue_while_emptied(void **state)
{
    ldr_store_t *s = *state;

    tenants_open(s, 2, 2);
    uint32_t held = put_of(s, 0, 0, 4);
    for (uint32_t i = 1; i < 2 * EXTENT_PAGES / 4; i++) {
        put_of(s, 0, i, 4);
    }
    ldr_store_hold(s, s->shards[held].chunk);
    assert_int_equal(ldr_store_share(s, 1), 1);
    uint32_t extent = ldr_store_demand(s, 1);
    assert_int_not_equal(extent, LDR_NIL);
    assert_true(ldr_arena_map(&s->arena, 0, extent,
                              s->arena.extents[extent].generation));
    assert_true(ldr_store_vacate(s, extent, 8));
    assert_true(ldr_arena_overdue(&s->arena, extent));
    while (ldr_store_vacate(s, extent, 8)) {
        store_check(s);
    }
    ldr_store_release(s, s->shards[held].chunk);
    ldr_arena_unmap(&s->arena, extent, s->arena.extents[extent].generation);
    store_check(s);
    assert_int_equal(s->arena.overdue_count, 0);
}

/* One in which nothing is held goes at once, wherever the next victim is. */
static void test_leaving_unheld(void **state)
{
    ldr_store_t *s = *state;

    for (uint32_t held = 0; held < 2; held++) {
        uint32_t shards[2];

        tenants_open(s, 2, 2);
        shards[0] = put_of(s, 0, 1, EXTENT_PAGES);
        shards[1] = put_of(s, 0, 2, EXTENT_PAGES);
        ldr_store_hold(s, s->shards[shards[held]].chunk);
        assert_int_equal(ldr_store_share(s, 1), 1);
        uint32_t extent = ldr_store_demand(s, 1);
        assert_int_equal(
            extent,
            ldr_arena_extent_of(&s->arena, s->shards[shards[1 - held]].page));
        assert_false(ldr_store_vacate(s, extent, 1000));
        assert_int_equal(renew(s), 1);
        ldr_store_release(s, s->shards[shards[held]].chunk);
    }
}

/* What is on disk counts for its space and tenant, until a reset. */
static void test_ssd_counts(void **state)
{
    ldr_store_t *s = *state;
    larder_cause_t cause;
    larder_key_t keys[3];
    uint32_t entries[3];

    tenants_open(s, 2, 2);
    for (uint32_t i = 0; i < 3; i++) {
        keys[i] = test_key(i);
        put_of(s, i % 2, i, 1);
        ldr_name_t name = ldr_store_name(s, i % 2, 0, &keys[i]);
        entries[i] = ldr_store_find(s, &name, LDR_NIL, 100, &cause);
        ldr_store_set_loc(s, entries[i], 0, ldr_loc(i % 2, 3, 5, 17));
        store_check(s);
    }
    assert_int_equal(s->tenants[0].ssd_bytes, 34 * LDR_BLOCK);
    assert_int_equal(s->tenants[1].ssd_bytes, 17 * LDR_BLOCK);
    assert_int_equal(s->tenants[0].ssd_blocks[ldr_store_segment(0, 3)], 34);
    assert_int_equal(s->tenants[1].ssd_blocks[ldr_store_segment(1, 3)], 17);
    ldr_store_set_loc(s, entries[0], 0, ldr_loc(1, 4, 5, 18));
    store_check(s);
    assert_int_equal(s->tenants[0].ssd_bytes, 35 * LDR_BLOCK);
    ldr_store_set_epoch(s, 0, 1);
    assert_int_equal(s->spaces[0].ssd_bytes, 0);
    assert_int_equal(s->tenants[0].ssd_bytes, 0);
    store_check(s);
    ldr_store_drop_loc(s, entries[2], 0, true); /* it is stale */
    store_check(s);
    assert_int_equal(s->tenants[0].ssd_blocks[ldr_store_segment(0, 3)], 0);
    ldr_store_forget(s, entries[1]);
    store_check(s);
    assert_int_equal(s->tenants[1].ssd_bytes, 0);
}

static void has_on_disk(ldr_tenant_t *t, uint64_t first, uint64_t second)
{
    t->ssd_bytes = first + second;
    t->disk_bytes[0] = first;
    t->disk_bytes[1] = second;
}

/* Who is kept on a full disk. */
static void test_protect(void **state)
{
    ldr_store_t *s = *state;
    ldr_tenant_t *t;

    tenants_open(s, 2, 4);
    t = s->tenants;
    has_on_disk(&t[0], 1000, 0);
    assert_false(ldr_store_protect(s, 0, 1200, 1200)); /* alone */
    assert_int_equal(t[0].ssd_safe, 0);
    assert_int_equal(t[0].ssd_share, 0);
    has_on_disk(&t[1], 500, 0);
    assert_true(ldr_store_protect(s, 0, 1200, 1200));
    assert_int_equal(t[0].ssd_share, 600);
    assert_int_equal(t[0].ssd_safe, 0);
    assert_int_equal(t[1].ssd_safe, 1);
    assert_int_equal(t[2].ssd_safe, 0);
    /* Limits come first, and what they leave is shared. */
    has_on_disk(&t[2], 100, 0);
    t[2].ssd_max = 200;
    t[0].ssd_max = 1000;
    assert_true(ldr_store_protect(s, 0, 1600, 1600));
    assert_int_equal(t[1].ssd_share, 400);
    assert_int_equal(t[0].ssd_safe, 1);
    assert_int_equal(t[1].ssd_safe, 0);
    assert_int_equal(t[2].ssd_safe, 1);
    /* All within their limits, but more than can be kept: who has most of his
     * is the first that is not safe. */
    t[1].ssd_max = 600;
    assert_true(ldr_store_protect(s, 0, 1599, 1599));
    assert_int_equal(t[0].ssd_safe, 0);
    assert_int_equal(t[1].ssd_safe, 1);
    assert_int_equal(t[2].ssd_safe, 1);
    assert_true(ldr_store_protect(s, 0, 599, 599));
    assert_int_equal(t[1].ssd_safe, 0);
    assert_int_equal(t[2].ssd_safe, 1);
    /* The same where one disk has more than it can keep, and another not. */
    has_on_disk(&t[0], 600, 100);
    has_on_disk(&t[1], 200, 200);
    has_on_disk(&t[2], 0, 100);
    assert_true(ldr_store_protect(s, 0, 700, 2000));
    assert_true(ldr_store_protect(s, 1, 1300, 2000));
    assert_int_equal(t[0].ssd_safe, 2);
    assert_int_equal(t[1].ssd_safe, 3);
    assert_int_equal(t[2].ssd_safe, 3);
    for (int i = 0; i < 3; i++) {
        has_on_disk(&t[i], 0, 0);
    }
}

/* Three tenants, extents that come and go, mapped and not: store_check() finds
 * a page in two hands, or an extent that was given away too soon. */
typedef struct mess {
    ldr_store_t *s;
    ldr_rand_t rand;
    uint32_t held[12], filling[6], mapped[6][2];
    uint32_t held_count, filling_count, mapped_count;
    uint64_t moved, overdue;
} mess_t;

static void mess_save(mess_t *m, uint32_t tenant, const ldr_reserve_t *r,
                      uint32_t entry)
{
    uint32_t shard;

    if (m->filling_count < 6 &&
        (entry == LDR_NIL ||
         ldr_store_resident(m->s, entry, r->number) == LDR_NIL)) {
        ldr_store_share(m->s, tenant);
        if (ldr_store_reserve(m->s, entry, r, &shard) == LARDER_OK) {
            m->filling[m->filling_count++] = shard;
        }
    }
}

static void mess_end(mess_t *m, bool commit)
{
    if (m->filling_count == 0) {
        return;
    }
    uint32_t shard = m->filling[--m->filling_count];
    if (commit && store_commit(m->s, shard, 1)) {
        ldr_store_release(m->s, m->s->shards[shard].chunk);
    } else {
        ldr_store_abort(m->s, shard);
    }
}

static void mess_hold(mess_t *m, uint32_t entry)
{
    uint32_t chunk = entry != LDR_NIL
                         ? ldr_index_at(&m->s->index, entry)->resident
                         : LDR_NIL;

    if (chunk != LDR_NIL && m->held_count < 12) {
        ldr_store_hold(m->s, chunk);
        m->held[m->held_count++] = chunk;
    } else if (m->held_count > 0) {
        ldr_store_release(m->s, m->held[--m->held_count]);
    }
}

static void mess_map(mess_t *m, uint32_t tenant)
{
    uint32_t extent =
        (uint32_t)ldr_rand_below(&m->rand, m->s->arena.slot_count);
    uint32_t generation = m->s->arena.extents[extent].generation;

    if (m->mapped_count < 6 &&
        ldr_arena_map(&m->s->arena, tenant, extent, generation)) {
        m->mapped[m->mapped_count][0] = extent;
        m->mapped[m->mapped_count++][1] = generation;
    }
}

static void mess_unmap(mess_t *m)
{
    if (m->mapped_count > 0) {
        const uint32_t *which = m->mapped[--m->mapped_count];

        assert_int_equal(m->s->arena.extents[which[0]].generation, which[1]);
        ldr_arena_unmap(&m->s->arena, which[0], which[1]);
    }
}

/* One that somebody still holds or maps is not waited for. */
static void mess_overdue(mess_t *m)
{
    ldr_arena_t *a = &m->s->arena;
    uint32_t extent = 0;

    while (extent < a->slot_count &&
           a->extents[extent].state != LDR_EXTENT_LEAVING) {
        extent++;
    }
    if (extent < a->slot_count && ldr_rand_below(&m->rand, 2) == 0) {
        m->overdue += ldr_arena_overdue(a, extent);
    }
}

static void mess_step(mess_t *m)
{
    ldr_store_t *s = m->s;
    uint32_t tenant = (uint32_t)ldr_rand_below(&m->rand, 3);
    larder_key_t key = test_key((uint32_t)ldr_rand_below(&m->rand, 60));
    ldr_reserve_t r = {
        .name = ldr_store_name(s, tenant, 0, &key),
        .shards = 2,
        .number = (uint32_t)ldr_rand_below(&m->rand, 2),
        .length = (1 + (uint32_t)ldr_rand_below(&m->rand, 9)) * LDR_PAGE,
        .pin = ldr_rand_below(&m->rand, 5) == 0,
        .state = LDR_SHARD_FILLING,
    };
    larder_cause_t cause;
    uint32_t entry = ldr_store_find(s, &r.name, LDR_NIL, 100, &cause);
    uint64_t op = ldr_rand_below(&m->rand, 13);

    if (op < 4) {
        mess_save(m, tenant, &r, entry);
    } else if (op < 6) {
        mess_end(m, op < 5);
    } else if (op < 8) {
        mess_hold(m, op == 6 ? entry : LDR_NIL);
    } else if (op == 8) {
        uint32_t extent = ldr_store_demand(s, tenant);

        while (extent != LDR_NIL && ldr_store_vacate(s, extent, 7)) {
            store_check(s);
        }
    } else if (op == 9) {
        m->moved += renew(s);
    } else if (op == 10) {
        mess_map(m, tenant);
    } else if (op == 11) {
        mess_overdue(m);
    } else {
        mess_unmap(m);
    }
    if (ldr_rand_below(&m->rand, 100) == 0) {
        ldr_store_limits(s, tenant, ldr_rand_below(&m->rand, 7) * MIB, 0);
    }
    store_check(s);
}

static void test_random_tenants(void **state)
{
    uint64_t seed = test_env("LARDER_SEED", 78);
    mess_t m = {.s = *state};

    printf("seed=%llu\n", (unsigned long long)seed);
    ldr_rand_seed(&m.rand, seed);
    tenants_open(m.s, 6, 3);
    for (int i = 0; i < 20000; i++) {
        mess_step(&m);
    }
    printf("%llu extents moved, %llu overdue\n", (unsigned long long)m.moved,
           (unsigned long long)m.overdue);
    assert_true(m.moved > 20);
    assert_true(m.overdue > 0);
    while (m.filling_count > 0) {
        mess_end(&m, false);
    }
    while (m.held_count > 0) {
        mess_hold(&m, LDR_NIL);
    }
    assert_int_equal(m.s->held_chunks, 0);
}

/* A tenant for whom there is no memory is not there, and can come later. */
static void test_no_memory(void **state)
{
    ldr_store_t *s = *state;
    uint8_t id[LDR_ID_BYTES] = {50};

    tenants_open(s, 2, 1);
    for (uint64_t nth = 1; nth <= 3; nth++) {
        ldr_fault_arm(LDR_FAULT_alloc, nth, 1);
        assert_int_equal(ldr_store_tenant(s, id), LDR_NIL);
        assert_int_equal(ldr_fault_fired(LDR_FAULT_alloc), 1);
        ldr_fault_disarm_all();
    }
    assert_int_equal(s->tenant_count, 1);
    /* A space of its that was seen before it is nobody's, until it is told. */
    uint8_t space_id[LDR_ID_BYTES] = {50, 0, 0, 0, 1};
    assert_int_equal(ldr_store_space(s, space_id), 1);
    assert_int_equal(s->spaces[1].tenant, LDR_NIL);
    assert_int_equal(ldr_store_tenant(s, id), 1);
    assert_int_equal(reserve_nobody(s, 1), LARDER_E_SPACE);
    ldr_store_space_of(s, 1, 1);
    assert_int_not_equal(put_of(s, 1, 1, 1), LDR_NIL);
    assert_false(s->spaces[1].counted);
    /* What it has on disk counts for the space, and for no tenant. */
    larder_key_t key = test_key(1);
    larder_cause_t cause;
    ldr_name_t name = ldr_store_name(s, 1, 0, &key);
    uint32_t entry = ldr_store_find(s, &name, LDR_NIL, 100, &cause);
    ldr_store_set_loc(s, entry, 0, ldr_loc(0, 1, 1, 9));
    store_check(s);
    assert_int_equal(s->spaces[1].ssd_bytes, 9 * LDR_BLOCK);
    assert_int_equal(s->tenants[1].ssd_bytes, 0);
    ldr_store_drop_loc(s, entry, 0, false);
    store_check(s);
}

static int setup(void **state)
{
    *state = calloc(1, sizeof(ldr_store_t));
    return *state == NULL;
}

static int teardown(void **state)
{
    ldr_store_t *s = *state;

    ldr_fault_disarm_all();
    store_check(s);
    ldr_store_destroy(s);
    free(s);
    return 0;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_shares),         TEST(test_limit),
        TEST(test_demand),         TEST(test_demand_takes_the_emptiest),
        TEST(test_leaving_holds),  TEST(test_leaving_unheld),
        TEST(test_overdue),        TEST(test_overdue_while_emptied),
        TEST(test_ssd_counts),     TEST(test_protect),
        TEST(test_random_tenants), TEST(test_no_memory),
    };

    int failed = cmocka_run_group_tests_name("lru", tests, NULL, NULL);

    policy = &ldr_policy_default;
    return failed + cmocka_run_group_tests_name("learned", tests, NULL, NULL);
}
