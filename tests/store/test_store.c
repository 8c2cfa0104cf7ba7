/*
 * The metadata of a node, without payloads: what is found, what is evicted,
 * what is given back. store_check() walks all tables after every change.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "support/rig.h"
#include "support/storecheck.h"

#define PAGES 32u

/* Every test is run with both. */
static const ldr_policy_ops_t *policy = &ldr_policy_lru;

/* A space's id begins as its tenant's. */
static const uint8_t space_id[LDR_ID_BYTES] = {2, 0, 0, 0, 1};
static const uint8_t tenant_id[LDR_ID_BYTES] = {2};

static void store_open(ldr_store_t *s)
{
    ldr_store_params_t params = {
        .dram_bytes = PAGES * LDR_PAGE,
        .entry_max = 1000,
        .seed = 3,
        .pin_max = 8 * LDR_PAGE,
        .policy = policy,
        .disks = 1,
    };
    ldr_slice_t slice;

    assert_int_equal(ldr_store_init(s, &params), LARDER_OK);
    while (ldr_arena_slice_take(&s->arena, LDR_NIL, &slice)) {
        ldr_arena_slice_give(&s->arena, &slice, true);
    }
    assert_int_equal(ldr_behind_open(s, 0, false), LARDER_OK);
    s->queues[0].takes = true;
    assert_int_equal(ldr_store_tenant(s, tenant_id), 0);
    assert_int_equal(ldr_store_space(s, space_id), 0);
    assert_int_equal(s->spaces[0].tenant, 0);
}

static int setup(void **state)
{
    ldr_store_t *s = calloc(1, sizeof(*s));

    store_open(s);
    *state = s;
    return 0;
}

static int teardown(void **state)
{
    ldr_store_t *s = *state;

    store_check(s);
    ldr_store_destroy(s);
    free(s);
    return 0;
}

/* ---- short forms ---- */

typedef struct put {
    uint32_t key, shard, shards, pages, expires_s;
    bool pin;
    bool chain; /* eight keys are a chain */
} put_t;

static uint32_t find(ldr_store_t *s, uint32_t key, larder_cause_t *cause_p)
{
    larder_key_t k = test_key(key);
    ldr_name_t name = ldr_store_name(s, 0, 0, &k);

    return ldr_store_find(s, &name, LDR_NIL, 100, cause_p);
}

/* Reserves; the shard, or LDR_NIL. */
static uint32_t reserve(ldr_store_t *s, put_t p)
{
    larder_key_t key = test_key(p.key), before = test_key(p.key - 1);
    larder_cause_t cause;
    ldr_reserve_t r = {
        .name = ldr_store_name(s, 0, 0, &key),
        .parent = p.chain && p.key % 8 > 0 ? &before : NULL,
        .depth = p.chain ? p.key % 8 : 0,
        .shards = p.shards == 0 ? 1 : p.shards,
        .number = p.shard,
        .length = (p.pages == 0 ? 1 : p.pages) * LDR_PAGE,
        .now_s = 100,
        .expires_s = p.expires_s,
        .pin = p.pin,
        .state = LDR_SHARD_FILLING,
    };
    uint32_t entry = find(s, p.key, &cause);
    uint32_t shard = LDR_NIL;
    larder_status_t st = ldr_store_reserve(s, entry, &r, &shard);

    store_check(s);
    return st == LARDER_OK ? shard : LDR_NIL;
}

static uint32_t put(ldr_store_t *s, put_t p)
{
    uint32_t shard = reserve(s, p);

    if (shard != LDR_NIL) {
        assert_true(store_commit(s, shard, 7));
        ldr_store_release(s, s->shards[shard].chunk);
        store_check(s);
    }
    return shard;
}

static bool is_there(ldr_store_t *s, uint32_t key, uint32_t shard)
{
    larder_cause_t cause;
    uint32_t entry = find(s, key, &cause);

    return entry != LDR_NIL && ldr_store_resident(s, entry, shard) != LDR_NIL;
}

/* The first chunks of a key's chain are about to be used. */
static void request(ldr_store_t *s, uint32_t key, uint32_t count, bool over,
                    bool saves)
{
    uint64_t prints[8];
    ldr_policy_request_t r = {.prints = prints,
                              .count = count,
                              .chunk_tokens = 256,
                              .tokens = count * 256,
                              .saves = saves};

    for (uint32_t i = 0; i < count; i++) {
        larder_key_t k = test_key(key / 8 * 8 + i);

        prints[i] = ldr_store_print(s, 0, &k);
    }
    ldr_store_request(s, 0, &r, over);
}

/* ---- the tests ---- */

static void test_put_and_find(void **state)
{
    ldr_store_t *s = *state;
    larder_cause_t cause;

    assert_int_equal(find(s, 1, &cause), LDR_NIL);
    assert_int_equal(cause, LARDER_CAUSE_ABSENT);
    uint32_t shard = put(s, (put_t){.key = 1, .pages = 3});
    uint32_t entry = find(s, 1, &cause);
    assert_int_equal(cause, LARDER_CAUSE_NONE);
    assert_int_equal(ldr_store_resident(s, entry, 0), shard);
    assert_int_equal(ldr_store_resident(s, entry, 1), LDR_NIL);
    assert_int_equal(s->arena.free_count, PAGES - 3);
    assert_int_equal(s->queues[0].count, 1);
    ldr_store_forget(s, entry);
    assert_int_equal(find(s, 1, &cause), LDR_NIL);
    assert_int_equal(s->arena.free_count, PAGES);
    assert_int_equal(s->queues[0].count, 0);
}

/* A chunk has as many shards as who saved it first has said. */
static void test_shards_of_a_chunk(void **state)
{
    ldr_store_t *s = *state;

    assert_int_not_equal(put(s, (put_t){.key = 1, .shards = 2}), LDR_NIL);
    assert_int_equal(put(s, (put_t){.key = 1, .shard = 2, .shards = 64}),
                     LDR_NIL);
    assert_int_not_equal(put(s, (put_t){.key = 1, .shard = 1, .shards = 64}),
                         LDR_NIL);
    assert_int_equal(s->arena.free_count, PAGES - 2);
}

static void test_evicts_and_says_so(void **state)
{
    ldr_store_t *s = *state;
    uint32_t told = 0;
    larder_cause_t cause;

    for (uint32_t i = 0; i < 1000 + PAGES; i++) {
        assert_int_not_equal(put(s, (put_t){.key = i}), LDR_NIL);
    }
    assert_int_equal(s->n.evicted_chunks, 1000);
    assert_int_equal(s->n.queue_evicted[0], 1000);
    for (uint32_t i = 0; i < 1000; i++) {
        assert_int_equal(find(s, i, &cause), LDR_NIL);
        told += cause == LARDER_CAUSE_EVICTED;
    }
    assert_true(told >= 950);
    for (uint32_t i = 1000; i < 1000 + PAGES; i++) {
        assert_true(is_there(s, i, 0));
    }
}

static void test_held_stays(void **state)
{
    ldr_store_t *s = *state;
    uint32_t shard = put(s, (put_t){.key = 1, .pages = 2});
    uint32_t chunk = s->shards[shard].chunk;
    larder_cause_t cause;

    ldr_store_hold(s, chunk);
    for (uint32_t i = 2; i < 100; i++) {
        put(s, (put_t){.key = i});
    }
    assert_true(is_there(s, 1, 0));
    /* More than the rest of the arena is refused, at once. */
    assert_int_equal(reserve(s, (put_t){.key = 500, .pages = PAGES - 1}),
                     LDR_NIL);
    assert_int_equal(reserve(s, (put_t){.key = 501, .pages = 999}), LDR_NIL);
    /* Forgotten while it is held: nobody finds it, the pages stay. */
    uint32_t page = s->shards[shard].page;
    ldr_store_forget(s, find(s, 1, &cause));
    store_check(s);
    assert_false(is_there(s, 1, 0));
    for (uint32_t i = 100; i < 200; i++) {
        uint32_t other = put(s, (put_t){.key = i});
        assert_int_not_equal(s->shards[other].page, page);
    }
    ldr_store_release(s, chunk);
    assert_int_not_equal(put(s, (put_t){.key = 502, .pages = PAGES}), LDR_NIL);
}

static void test_reservations_come_back(void **state)
{
    ldr_store_t *s = *state;

    put(s, (put_t){.key = 1, .pages = 2, .shards = 2});
    uint32_t free_pages = s->arena.free_count;
    uint32_t entries = s->index.entry_count;
    for (uint32_t i = 0; i < 10000; i++) {
        /* A chunk of its own, and the second shard of one that is there. */
        put_t p = {.key = i % 2 ? 1 : 2 + i % 5,
                   .shard = i % 2,
                   .shards = 2,
                   .pages = 1 + i % 7,
                   .pin = i % 3 == 0};
        uint32_t shard = reserve(s, p);

        assert_int_not_equal(shard, LDR_NIL);
        ldr_store_abort(s, shard);
        assert_int_equal(s->arena.free_count, free_pages);
    }
    store_check(s);
    assert_int_equal(s->index.entry_count, entries);
    assert_true(is_there(s, 1, 0));
    assert_int_equal(s->tenants[0].pinned_bytes, 0);
    assert_int_equal(s->n.evicted_chunks, 0);
}

/* A save that is overtaken by a reset or a removal does not become visible. */
static void test_overtaken(void **state)
{
    ldr_store_t *s = *state;
    larder_cause_t cause;
    uint32_t shard = reserve(s, (put_t){.key = 1});

    ldr_store_set_epoch(s, 0, s->spaces[0].epoch + 1);
    assert_false(store_commit(s, shard, 7));
    ldr_store_abort(s, shard);
    assert_int_equal(find(s, 1, &cause), LDR_NIL);
    shard = reserve(s, (put_t){.key = 2});
    ldr_store_forget(s, find(s, 2, &cause));
    assert_false(store_commit(s, shard, 7));
    ldr_store_abort(s, shard);
    assert_int_equal(s->arena.free_count, PAGES);
    /* What was there before a reset is stale from then on. */
    put(s, (put_t){.key = 3});
    ldr_store_set_epoch(s, 0, s->spaces[0].epoch + 1);
    assert_int_equal(find(s, 3, &cause), LDR_NIL);
    assert_int_equal(cause, LARDER_CAUSE_STALE);
    assert_int_equal(s->arena.free_count, PAGES);
}

/* A chunk ends with the first of its shards to expire. */
static void test_expires(void **state)
{
    ldr_store_t *s = *state;
    larder_cause_t cause;

    put(s, (put_t){.key = 1, .shards = 3, .shard = 0});
    put(s, (put_t){.key = 1, .shards = 3, .shard = 1, .expires_s = 102});
    put(s, (put_t){.key = 1, .shards = 3, .shard = 2, .expires_s = 105});
    larder_key_t key = test_key(1);
    ldr_name_t name = ldr_store_name(s, 0, 0, &key);
    assert_int_not_equal(ldr_store_find(s, &name, LDR_NIL, 101, &cause),
                         LDR_NIL);
    assert_int_equal(ldr_store_find(s, &name, LDR_NIL, 102, &cause), LDR_NIL);
    assert_int_equal(cause, LARDER_CAUSE_STALE);
    assert_int_equal(ldr_store_earlier(0, 0), 0);
    assert_int_equal(ldr_store_earlier(0, 5), 5);
    assert_int_equal(ldr_store_earlier(5, 0), 5);
    assert_int_equal(ldr_store_earlier(5, 4), 4);
}

static void test_pins(void **state)
{
    ldr_store_t *s = *state;

    for (uint32_t i = 0; i < 6; i++) {
        put(s, (put_t){.key = i, .pages = 2, .pin = true});
    }
    assert_int_equal(s->tenants[0].pinned_bytes, 8 * LDR_PAGE);
    for (uint32_t i = 10; i < 100; i++) {
        put(s, (put_t){.key = i});
    }
    for (uint32_t i = 0; i < 6; i++) {
        assert_int_equal(is_there(s, i, 0), i < 4);
    }
    /* Soft: before a put fails the oldest pin gives way. */
    uint32_t big = reserve(s, (put_t){.key = 200, .pages = PAGES - 4});
    assert_int_not_equal(big, LDR_NIL);
    assert_false(is_there(s, 0, 0));
    assert_true(is_there(s, 3, 0));
    ldr_store_abort(s, big);
    /* A chunk that grows out of the budget is not pinned any more. */
    put(s, (put_t){.key = 300, .shards = 2, .pages = 2, .pin = true});
    put(s, (put_t){.key = 300, .shards = 2, .shard = 1, .pages = 9});
    assert_true(s->tenants[0].pinned_bytes <= s->pin_max);
    assert_true(is_there(s, 300, 0));
}

/* An entry with a place on disk outlives its chunk in DRAM. */
/* What a reset made void goes before all that can still be found, pinned or
 * not; what of it is held goes when it is released. */
static void test_void_goes_first(void **state)
{
    ldr_store_t *s = *state;
    uint32_t held = LDR_NIL;

    for (uint32_t i = 0; i < PAGES; i++) {
        uint32_t shard = put(s, (put_t){.key = i, .pin = i < 8});

        held = i == 20 ? s->shards[shard].chunk : held;
    }
    ldr_store_hold(s, held);
    ldr_store_set_epoch(s, 0, 1);
    for (uint32_t i = 0; i < PAGES; i++) {
        if (i == PAGES - 1) {
            ldr_store_release(s, held);
        }
        assert_int_not_equal(put(s, (put_t){.key = 100 + i}), LDR_NIL);
    }
    for (uint32_t i = 0; i < PAGES; i++) {
        assert_true(is_there(s, 100 + i, 0));
    }
    assert_int_equal(s->n.evicted_chunks, 0);
    assert_int_equal(s->tenants[0].pinned_bytes, 0);
}

static void test_locations(void **state)
{
    ldr_store_t *s = *state;
    larder_cause_t cause;

    put(s, (put_t){.key = 1, .shards = 2});
    put(s, (put_t){.key = 1, .shards = 2, .shard = 1});
    uint32_t entry = find(s, 1, &cause);
    ldr_store_set_loc(s, entry, 1, ldr_loc(0, 3, 5, 17));
    assert_true(ldr_store_evict(s, 0));
    store_check(s);
    assert_int_equal(find(s, 1, &cause), entry);
    assert_int_equal(ldr_store_resident(s, entry, 1), LDR_NIL);
    /* It is read back. */
    larder_key_t key = test_key(1);
    ldr_reserve_t r = {
        .name = ldr_store_name(s, 0, 0, &key),
        .shards = 2,
        .number = 1,
        .length = 16 * LDR_BLOCK,
        .state = LDR_SHARD_READING,
    };
    uint32_t shard;
    assert_int_equal(ldr_store_reserve(s, entry, &r, &shard), LARDER_OK);
    ldr_store_set_length(s, shard, 15 * LDR_BLOCK + 1);
    assert_true(ldr_store_commit(s, shard, 9, false));
    assert_int_equal(s->queues[0].count, 0);
    /* Its bytes are not right: out of DRAM, then off the disk. */
    ldr_store_discard(s, s->shards[shard].chunk);
    ldr_store_release(s, s->shards[shard].chunk);
    store_check(s);
    assert_int_equal(find(s, 1, &cause), entry);
    ldr_store_drop_loc(s, entry, 1, true);
    assert_int_equal(find(s, 1, &cause), LDR_NIL);
    assert_int_equal(cause, LARDER_CAUSE_EVICTED);
    assert_int_equal(s->arena.free_count, PAGES);
}

static void test_index_full(void **state)
{
    ldr_store_params_t params = {
        .dram_bytes = PAGES * LDR_PAGE,
        .entry_max = 4,
        .seed = 3,
        .policy = policy,
        .disks = 1,
    };
    ldr_store_t *s = *state;
    larder_cause_t cause;

    ldr_store_destroy(s);
    store_open(s);
    ldr_store_destroy(s);
    assert_int_equal(ldr_store_init(s, &params), LARDER_OK);
    ldr_slice_t slice;
    assert_true(ldr_arena_slice_take(&s->arena, LDR_NIL, &slice));
    ldr_arena_slice_give(&s->arena, &slice, true);
    ldr_store_tenant(s, tenant_id);
    ldr_store_space(s, space_id);
    for (uint32_t i = 0; i < 20; i++) {
        assert_int_not_equal(put(s, (put_t){.key = i}), LDR_NIL);
    }
    /* All four stand for something on disk: no more can be known. */
    for (uint32_t i = 16; i < 20; i++) {
        ldr_store_set_loc(s, find(s, i, &cause), 0, ldr_loc(0, 1, i, 2));
    }
    uint32_t free_pages = s->arena.free_count;
    assert_int_equal(reserve(s, (put_t){.key = 50}), LDR_NIL);
    assert_true(s->arena.free_count >= free_pages);
}

static void test_spaces_and_tenants(void **state)
{
    ldr_store_t *s = *state;
    uint8_t id[LDR_ID_BYTES] = {0};

    for (uint32_t i = 0; i < 300; i++) {
        id[0] = (uint8_t)i;
        id[1] = (uint8_t)(i >> 8);
        id[2] = 9;
        assert_int_equal(ldr_store_space(s, id), 1 + i);
        assert_int_equal(ldr_store_tenant(s, id), 1 + i);
    }
    assert_int_equal(ldr_store_space(s, id), 300);
    assert_int_equal(ldr_store_space(s, space_id), 0);
    for (uint32_t i = 300; i < 5000; i++) {
        id[0] = (uint8_t)i;
        id[1] = (uint8_t)(i >> 8);
        if (ldr_store_tenant(s, id) == LDR_NIL) {
            return;
        }
    }
    fail_msg("tenants without end");
}

/* Anything in any order. */
static void test_random(void **state)
{
    ldr_store_t *s = *state;
    uint32_t held[16], filling[8];
    uint32_t held_count = 0, filling_count = 0;
    uint64_t seed = test_env("LARDER_SEED", 77);
    ldr_rand_t rand;
    larder_cause_t cause;

    printf("seed=%llu\n", (unsigned long long)seed);
    ldr_rand_seed(&rand, seed);
    for (int i = 0; i < 20000; i++) {
        put_t p = {.key = (uint32_t)ldr_rand_below(&rand, 40),
                   .shards = 2,
                   .chain = true};
        uint32_t entry = find(s, p.key, &cause);
        uint64_t op = ldr_rand_below(&rand, 10);

        p.shard = (uint32_t)ldr_rand_below(&rand, 2);
        p.pages = 1 + (uint32_t)ldr_rand_below(&rand, 6);
        p.pin = ldr_rand_below(&rand, 5) == 0;
        bool there = entry != LDR_NIL &&
                     ldr_store_resident(s, entry, p.shard) != LDR_NIL;
        s->now_ds += (uint32_t)ldr_rand_below(&rand, 20);
        if (ldr_rand_below(&rand, 8) == 0) {
            request(s, p.key, 1 + (uint32_t)ldr_rand_below(&rand, 8),
                    ldr_rand_below(&rand, 9) == 0, false);
        }
        if (op < 4 && !there && filling_count < 8) {
            uint32_t shard = reserve(s, p);
            if (shard != LDR_NIL) {
                filling[filling_count++] = shard;
            }
        } else if (op < 7 && filling_count > 0) {
            uint32_t shard = filling[--filling_count];
            if (op < 6 && store_commit(s, shard, 1)) {
                ldr_store_release(s, s->shards[shard].chunk);
            } else {
                ldr_store_abort(s, shard);
            }
        } else if (op == 7 && entry != LDR_NIL && held_count < 16) {
            uint32_t chunk = ldr_index_at(&s->index, entry)->resident;
            if (chunk != LDR_NIL) {
                ldr_store_hold(s, chunk);
                held[held_count++] = chunk;
                ldr_store_used(s, chunk);
            }
        } else if (op == 8 && held_count > 0) {
            ldr_store_release(s, held[--held_count]);
        } else if (op == 9 && entry != LDR_NIL && i % 3 == 0) {
            ldr_store_forget(s, entry);
        }
        store_check(s);
    }
    while (filling_count > 0) {
        ldr_store_abort(s, filling[--filling_count]);
    }
    while (held_count > 0) {
        ldr_store_release(s, held[--held_count]);
    }
    assert_int_equal(s->held_chunks, 0);
}

/* ---- what the policy refuses ---- */

/* Chains that come back, and as many short ones that never do: with both there
 * is too little room. */
static void traffic(ldr_store_t *s, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++) {
        bool regular = i % 2 == 0;
        uint32_t chain = regular ? i / 2 % 3 : 100 + i;

        s->now_ds += 20;
        request(s, chain * 8, regular ? 8 : 4, false, false);
        for (uint32_t k = 0; k < (regular ? 8 : 4); k++) {
            put_t p = {.key = chain * 8 + k, .chain = true};

            if (!is_there(s, p.key, 0)) {
                put(s, p);
            }
        }
    }
}

static void test_declines(void **state)
{
    ldr_store_t *s = *state;

    s->queues[0].takes = false;
    traffic(s, 0, 4000);
    if (policy == &ldr_policy_lru) {
        assert_int_equal(s->n.passed_chunks, 0);
        return;
    }
    request(s, 800, 4, false, false);
    assert_int_equal(reserve(s, (put_t){.key = 800, .chain = true}), LDR_NIL);
    /* Those behind it neither, though nothing is known above them now. */
    assert_int_equal(reserve(s, (put_t){.key = 801, .chain = true}), LDR_NIL);
    assert_int_equal(reserve(s, (put_t){.key = 803, .chain = true}), LDR_NIL);
    /* A pinned one is kept, and what somebody waits for. */
    uint32_t shard =
        put(s, (put_t){.key = 802, .shards = 2, .chain = true, .pin = true});
    assert_int_not_equal(shard, LDR_NIL);
    /* And the other shards of what is kept. */
    assert_int_not_equal(
        put(s, (put_t){.key = 802, .shards = 2, .shard = 1, .chain = true}),
        LDR_NIL);
    assert_int_equal(s->n.passed_chunks, 0);
    assert_true(is_there(s, 0, 0));
}

static void test_passes_on(void **state)
{
    ldr_store_t *s = *state;
    larder_cause_t cause;

    if (policy == &ldr_policy_lru) {
        return;
    }
    s->queues[0].takes = false;
    traffic(s, 0, 4000);
    while (s->queues[0].count > 0) {
        ldr_behind_remove(s, 0, s->queues[0].subqueues[0].head);
    }
    s->queues[0].takes = true;
    request(s, 800, 4, false, false);
    for (uint32_t i = 0; i < 4; i++) {
        put_t p = {.key = 800 + i, .chain = true};
        uint32_t shard = put(s, p);

        assert_int_not_equal(shard, LDR_NIL);
        assert_int_equal(s->n.passed_chunks, i + 1);
        assert_true(s->chunks[s->shards[shard].chunk].transient);
        /* It is written: then it is the first to make room. */
        uint32_t entry = find(s, p.key, &cause);
        ldr_behind_remove(s, 0, shard);
        ldr_store_set_loc(s, entry, 0, ldr_loc(0, 1, i, 2));
        if (i > 0) {
            assert_false(is_there(s, p.key - 1, 0));
        }
    }
    /* One that somebody reads is like the others from then on. */
    uint32_t chunk = ldr_index_at(&s->index, find(s, 803, &cause))->resident;
    ldr_store_hold(s, chunk);
    ldr_store_used(s, chunk);
    ldr_store_release(s, chunk);
    assert_false(s->chunks[chunk].transient);
    store_check(s);
}

/* A disk that does not keep up, and then is off. */
static void test_transient_waits(void **state)
{
    ldr_store_t *s = *state;
    const ldr_tenant_t *t = &s->tenants[0];

    if (policy == &ldr_policy_lru) {
        return;
    }
    s->queues[0].takes = false;
    traffic(s, 0, 4000);
    /* What waits to be written has a quarter at most. */
    s->queues[0].takes = true;
    traffic(s, 4000, 4400);
    assert_int_equal(t->transient_pages, PAGES / 4);
    assert_int_equal(s->n.passed_chunks, PAGES / 4);
    for (uint32_t key = 0; key < 24; key++) {
        assert_true(is_there(s, key, 0));
    }
    /* As one is written there is room for the next. */
    ldr_behind_remove(s, 0, s->chunks[t->transient_head].shards);
    traffic(s, 4400, 4404);
    assert_int_equal(s->n.passed_chunks, PAGES / 4 + 1);
    assert_int_equal(t->transient_pages, PAGES / 4);
    /* Nothing will be written: they go before what comes back. */
    s->queues[0].takes = false;
    traffic(s, 4404, 4500);
    assert_int_equal(s->n.passed_chunks, PAGES / 4 + 1);
    assert_int_not_equal(
        put(s, (put_t){.key = 100, .pages = PAGES / 4, .pin = true}), LDR_NIL);
    assert_int_equal(t->transient_pages, 0);
    for (uint32_t key = 0; key < 24; key++) {
        assert_true(is_there(s, key, 0));
    }
}

/* ---- the same through the API, on a node without disks ---- */

/* A clock that runs on with every look at it. */
static uint64_t ticking(void *arg)
{
    return ++((rig_t *)arg)->now_ns;
}

static void test_failed_puts_give_back(void **state)
{
    rig_t rig;
    name_t name = {0, 0, 1};
    uint32_t statuses[3] = {0};

    (void)state;
    rig_init(&rig, NULL, 1, 4, 1 << 20);
    simdisk_t *disk = simdisk_create(1, 0);
    rig.disk = disk;
    rig.options.dir_count = 0;
    assert_int_equal(rig_open(&rig), LARDER_OK);
    assert_int_equal(rig_put(&rig, name, 1), LARDER_OK);
    rig.clock.now_ns = ticking;
    ldr_store_t *s = &rig.node->store;
    uint32_t free_pages = s->arena.free_count;
    for (uint32_t i = 0; i < 10000; i++) {
        larder_key_t key = test_key(i % 3 == 0 ? 1 : 2 + i);
        struct iovec iov[2] = {{rig.buffer, 200000}, {rig.buffer, 90000}};
        larder_item_t item = {
            .key = &key, .iov = iov, .iov_count = i % 3 == 1 ? 0 : 2};
        ldr_target_t t = {rig.spaces[0]->number, 1, &item};
        ldr_stop_t stop = {NULL, rig.now_ns + 3};

        if (i % 3 == 2) { /* late in the middle of its copy */
            ldr_node_put(rig.node, &t, false, &stop);
        } else {
            larder_run(rig.spaces[0], LARDER_OP_PUT, &item, 1, NULL);
        }
        statuses[i % 3] += item.status == (i % 3 == 0   ? LARDER_PRESENT
                                           : i % 3 == 1 ? LARDER_E_INVALID
                                                        : LARDER_E_DEADLINE);
        assert_int_equal(s->arena.free_count, free_pages);
    }
    assert_int_equal(statuses[0] + statuses[1] + statuses[2], 10000);
    assert_int_equal(s->n.saves_canceled, 3333);
    store_check(s);
    assert_int_equal(s->index.entry_count, 1);
    rig_close(&rig);
    rig_free(&rig);
    simdisk_destroy(disk);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_put_and_find),
        TEST(test_evicts_and_says_so),
        TEST(test_held_stays),
        TEST(test_reservations_come_back),
        TEST(test_overtaken),
        TEST(test_expires),
        TEST(test_pins),
        TEST(test_void_goes_first),
        TEST(test_locations),
        TEST(test_index_full),
        TEST(test_spaces_and_tenants),
        TEST(test_random),
        cmocka_unit_test(test_failed_puts_give_back),
        TEST(test_declines),
        TEST(test_passes_on),
        TEST(test_transient_waits),
        TEST(test_shards_of_a_chunk),
    };
    int failed = cmocka_run_group_tests_name("lru", tests, NULL, NULL);

    policy = &ldr_policy_default;
    return failed + cmocka_run_group_tests_name("learned", tests, NULL, NULL);
}
