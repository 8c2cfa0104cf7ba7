/*
 * What one store hands over to the next: all that is ready and nobody's, in the
 * order of use, and nothing else; and lists that are not right. Stores here
 * have no memory behind their pages.
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
#include "store/handover_int.h"
#include "support/rig.h"
#include "support/storecheck.h"

#define PAGES 256u
#define TENANTS 2u
#define NOW_S 1000u

static const ldr_policy_ops_t *policy = &ldr_policy_lru;

static const uint8_t tenant_ids[TENANTS][LDR_ID_BYTES] = {{2}, {3}};
static const uint8_t space_ids[TENANTS][LDR_ID_BYTES] = {{2, 0, 0, 0, 1},
                                                         {3, 0, 0, 0, 1}};

typedef struct fixture {
    ldr_store_t old, new;
    uint8_t *list;
    size_t bytes;
    uint64_t left_bytes;
} fixture_t;

static void open_store(ldr_store_t *s, uint32_t pages, bool used)
{
    ldr_store_params_t params = {
        .dram_bytes = (uint64_t)pages * LDR_PAGE,
        .entry_max = 1000,
        .seed = used ? 3 : 4,
        .pin_max = 16 * LDR_PAGE,
        .policy = policy,
        .disks = 1,
    };
    ldr_slice_t slice;

    assert_int_equal(ldr_store_init(s, &params), LARDER_OK);
    assert_int_equal(ldr_behind_open(s, 0, false), LARDER_OK);
    assert_int_equal(ldr_behind_open(s, 1, true), LARDER_OK);
    assert_int_equal(ldr_behind_open(s, 2, true), LARDER_OK);
    assert_int_equal(ldr_behind_open(s, 3, false), LARDER_OK);
    for (uint32_t i = 0; used && i < TENANTS; i++) {
        assert_int_equal(ldr_store_tenant(s, tenant_ids[i]), i);
        assert_int_equal(ldr_store_space(s, space_ids[i]), i);
        snprintf(s->tenants[i].name, sizeof(s->tenants[i].name), "t%u", i);
    }
    /* Not all of it is there: the last slice of all is left out. */
    while (used && s->arena.ready_count + LDR_SLICE_PAGES < pages &&
           ldr_arena_slice_take(&s->arena, LDR_NIL, &slice)) {
        ldr_arena_slice_give(&s->arena, &slice, true);
    }
}

static int setup(void **state)
{
    fixture_t *f = calloc(1, sizeof(*f));

    open_store(&f->old, PAGES, true);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture_t *f = *state;

    ldr_store_destroy(&f->old);
    if (f->new.chunks != NULL) {
        store_check(&f->new);
        ldr_store_destroy(&f->new);
    }
    free(f->list);
    free(f);
    return 0;
}

/* ---- short forms ---- */

typedef struct put {
    uint32_t space, key, number, shards, bytes, used_s, expires_s;
    bool pin;
} put_t;

static ldr_reserve_t named(ldr_store_t *s, const put_t *p, larder_key_t *key,
                           larder_key_t *before)
{
    *key = test_key(p->key);
    *before = test_key(p->key - 1);
    return (ldr_reserve_t){
        .name = ldr_store_name(s, p->space, 0, key),
        .parent = p->key % 8 > 0 ? before : NULL,
        .depth = p->key % 8, /* eight keys are a chain */
        .shards = p->shards == 0 ? 1 : p->shards,
        .number = p->number,
        .length = p->bytes,
        .now_s = 100,
        .expires_s = p->expires_s,
        .pin = p->pin,
        .state = LDR_SHARD_FILLING,
    };
}

static uint32_t reserve(ldr_store_t *s, const put_t *p)
{
    larder_key_t key, before;
    larder_cause_t cause;
    ldr_reserve_t r = named(s, p, &key, &before);
    uint32_t entry = ldr_store_find(s, &r.name, LDR_NIL, NOW_S, &cause);
    uint32_t shard = LDR_NIL;

    if (entry != LDR_NIL &&
        ldr_store_resident(s, entry, p->number) != LDR_NIL) {
        return LDR_NIL;
    }
    return ldr_store_reserve(s, entry, &r, &shard) == LARDER_OK ? shard
                                                                : LDR_NIL;
}

static uint32_t put(ldr_store_t *s, put_t p)
{
    uint32_t shard = reserve(s, &p);

    if (shard != LDR_NIL) {
        uint32_t chunk = s->shards[shard].chunk;

        assert_true(store_commit(s, shard, p.key * 64 + p.number));
        ldr_index_at(&s->index, s->chunks[chunk].entry)->used_s = p.used_s;
        ldr_store_release(s, chunk);
    }
    return shard;
}

static uint32_t shard_of(ldr_store_t *s, uint32_t space, uint32_t key,
                         uint32_t number)
{
    larder_key_t k = test_key(key);
    ldr_name_t name = ldr_store_name(s, space, 0, &k);
    larder_cause_t cause;
    uint32_t entry = ldr_store_find(s, &name, LDR_NIL, NOW_S, &cause);

    return entry == LDR_NIL ? LDR_NIL : ldr_store_resident(s, entry, number);
}

static void write_list(fixture_t *f)
{
    ldr_handover_plan_t plan;

    assert_true(ldr_handover_plan(&f->old, &plan));
    free(f->list);
    f->list = calloc(1, plan.bytes);
    f->bytes = plan.bytes;
    f->left_bytes = plan.left_bytes;
    ldr_handover_write(&f->old, &plan, true, f->list);
    ldr_handover_unplan(&plan);
}

static ldr_handover_sum_t take(fixture_t *f, uint32_t pages)
{
    ldr_handover_sum_t sum;
    int fds[64];

    open_store(&f->new, pages, false);
    const char *why = ldr_handover_check(&f->new, f->list, f->bytes);
    require(why == NULL, "refused: %s", why);
    assert_true(ldr_handover_extents(f->list) <= 64);
    ldr_handover_take(&f->new, f->list, fds, NOW_S, &sum);
    store_check(&f->new);
    return sum;
}

/* The same shard in both, where it was. */
static void same(fixture_t *f, uint32_t space, uint32_t key, uint32_t number)
{
    const ldr_shard_t *a =
        &f->old.shards[shard_of(&f->old, space, key, number)];
    const ldr_shard_t *b =
        &f->new.shards[shard_of(&f->new, space, key, number)];
    uint32_t x = a->page, y = b->page;
    uint32_t mask = ldr_arena_extent_pages(&f->old.arena) - 1;

    assert_int_equal(a->length, b->length);
    assert_int_equal(a->crc, b->crc);
    assert_int_equal(b->state, LDR_SHARD_READY);
    assert_false(b->checked);
    for (; x != LDR_NIL; x = f->old.arena.next[x], y = f->new.arena.next[y]) {
        assert_int_not_equal(y, LDR_NIL);
        assert_int_equal(x & mask, y & mask);
    }
    assert_int_equal(y, LDR_NIL);
}

/* ---- the tests ---- */

static void test_all_of_it(void **state)
{
    fixture_t *f = *state;
    ldr_rand_t rand;
    uint64_t bytes = 0;
    uint32_t chunks = 0;

    ldr_rand_seed(&rand, 5);
    for (uint32_t i = 0; i < 300; i++) {
        put(&f->old, (put_t){.space = ldr_rand_next(&rand) % TENANTS,
                             .key = (uint32_t)(ldr_rand_next(&rand) % 120),
                             .number = ldr_rand_next(&rand) % 3,
                             .shards = 3,
                             .used_s = (uint32_t)(ldr_rand_next(&rand) % NOW_S),
                             .pin = ldr_rand_next(&rand) % 8 == 0,
                             .bytes = 1 + (uint32_t)(ldr_rand_next(&rand) %
                                                     (3 * LDR_PAGE))});
    }
    ldr_store_set_epoch(&f->old, 1, 5); /* what was there is stale */
    put(&f->old, (put_t){.space = 1, .key = 8, .bytes = 5, .shards = 3});
    store_check(&f->old);
    write_list(f);
    ldr_handover_sum_t sum = take(f, PAGES);
    for (uint32_t key = 0; key < 120; key++) {
        for (uint32_t space = 0; space < TENANTS; space++) {
            uint32_t here = 0;

            for (uint32_t number = 0; number < 3; number++) {
                uint32_t shard = shard_of(&f->old, space, key, number);

                if (shard == LDR_NIL) {
                    assert_int_equal(shard_of(&f->new, space, key, number),
                                     LDR_NIL);
                    continue;
                }
                same(f, space, key, number);
                bytes += f->old.shards[shard].length;
                here++;
            }
            chunks += here > 0;
        }
    }
    assert_true(chunks > 20);
    assert_int_equal(sum.chunks, chunks);
    assert_int_equal(sum.bytes, bytes);
    assert_int_equal(sum.left_bytes, 0);
    assert_int_equal(f->new.spaces[1].epoch, 5);
    assert_string_equal(f->new.tenants[1].name, "t1");
    assert_int_equal(f->new.queues[0].count, f->old.queues[0].count);
    assert_int_equal(f->new.tenants[0].pinned_bytes,
                     f->old.tenants[0].pinned_bytes);
    assert_int_equal(f->new.arena.ready_count, f->old.arena.ready_count);
}

/* Oldest first, leaves before their parents. */
static void test_order_of_use(void **state)
{
    fixture_t *f = *state;

    for (uint32_t key = 0; key < 24; key++) {
        put(&f->old,
            (put_t){.key = key, .bytes = LDR_PAGE, .used_s = 50 - key / 8});
    }
    write_list(f);
    take(f, PAGES);
    for (uint32_t chain = 3; chain-- > 0;) {
        for (uint32_t at = 8; at-- > 0;) {
            assert_int_not_equal(shard_of(&f->new, 0, chain * 8 + at, 0),
                                 LDR_NIL);
            assert_true(ldr_store_evict(&f->new, 0));
            assert_int_equal(shard_of(&f->new, 0, chain * 8 + at, 0), LDR_NIL);
        }
    }
    assert_false(ldr_store_evict(&f->new, 0));
}

static void test_what_stays(void **state)
{
    fixture_t *f = *state;
    uint32_t extent_pages = ldr_arena_extent_pages(&f->old.arena);
    put_t filling = {.key = 99, .bytes = LDR_PAGE};

    for (uint32_t key = 0; key < 2 * extent_pages; key++) {
        put(&f->old, (put_t){.key = key * 8, .bytes = LDR_PAGE});
    }
    uint32_t held = shard_of(&f->old, 0, 8, 0);
    uint32_t extent =
        ldr_arena_extent_of(&f->old.arena, f->old.shards[held].page);
    f->old.arena.extents[extent].stays = true;
    uint32_t half = reserve(&f->old, &filling);
    assert_int_not_equal(half, LDR_NIL);
    write_list(f);
    assert_int_equal(f->left_bytes, (uint64_t)extent_pages * LDR_PAGE);
    ldr_handover_sum_t sum = take(f, PAGES);
    assert_int_equal(sum.chunks, extent_pages);
    assert_int_equal(shard_of(&f->new, 0, 8, 0), LDR_NIL);
    assert_int_equal(shard_of(&f->new, 0, 99, 0), LDR_NIL);
    ldr_store_abort(&f->old, half);
}

/* Fewer extents, of the same size: what fits is there. */
static void test_less_room(void **state)
{
    fixture_t *f = *state;
    uint32_t extent_pages = ldr_arena_extent_pages(&f->old.arena);

    for (uint32_t key = 0; key < 3 * extent_pages; key++) {
        put(&f->old, (put_t){.key = key * 8, .bytes = LDR_PAGE});
    }
    write_list(f);
    ldr_handover_sum_t sum = take(f, 2 * extent_pages);
    assert_int_equal(sum.chunks, 2 * extent_pages);
    assert_int_equal(sum.left_bytes, (uint64_t)extent_pages * LDR_PAGE);
    /* It is full, and goes on. */
    assert_int_not_equal(put(&f->new, (put_t){.key = 4001, .bytes = LDR_PAGE}),
                         LDR_NIL);
}

/* What expired on the way. */
static void test_expired(void **state)
{
    fixture_t *f = *state;

    put(&f->old, (put_t){.key = 0, .bytes = 100, .expires_s = NOW_S + 1});
    put(&f->old, (put_t){.key = 8, .bytes = 100, .expires_s = NOW_S + 5});
    put(&f->old, (put_t){.key = 16, .bytes = 100});
    write_list(f);
    ldr_ho_t ho;
    ldr_ho_tables(f->list, &ho);
    for (uint32_t i = 0; i < ho.head->chunks; i++) {
        if (ho.chunks[i].expires_s == NOW_S + 1) {
            ho.chunks[i].expires_s = NOW_S;
        }
    }
    ho.head->crc = ldr_ho_crc(ho.head);
    ldr_handover_sum_t sum = take(f, PAGES);
    assert_int_equal(sum.chunks, 2);
    assert_int_equal(sum.left_bytes, 100);
    assert_int_equal(shard_of(&f->new, 0, 0, 0), LDR_NIL);
    assert_int_equal(f->new.queues[0].count, 2);
}

/* Another hold than a session's, such as of a call that hangs. */
static void test_held_chunks_stay(void **state)
{
    fixture_t *f = *state;

    put(&f->old, (put_t){.key = 0, .bytes = 100});
    put(&f->old, (put_t){.key = 8, .bytes = 200});
    uint32_t held = f->old.shards[shard_of(&f->old, 0, 8, 0)].chunk;
    ldr_store_hold(&f->old, held);
    write_list(f);
    ldr_store_release(&f->old, held);
    assert_int_equal(f->left_bytes, 200);
    assert_int_equal(take(f, PAGES).chunks, 1);
    assert_int_equal(shard_of(&f->new, 0, 8, 0), LDR_NIL);
}

/* A store that has read its disks knows spaces, epochs and places already. */
static void open_known(fixture_t *f, uint32_t epoch)
{
    open_store(&f->new, PAGES, false);
    for (uint32_t i = 0; i < TENANTS; i++) {
        assert_int_equal(ldr_store_tenant(&f->new, tenant_ids[i]), i);
        assert_int_equal(ldr_store_space(&f->new, space_ids[i]), i);
        ldr_store_space_of(&f->new, i, i);
    }
    ldr_store_set_epoch(&f->new, 0, epoch);
}

static ldr_handover_sum_t take_known(fixture_t *f, bool offers)
{
    ldr_handover_sum_t sum;
    int fds[64];
    const char *why = ldr_handover_check(&f->new, f->list, f->bytes);

    require(why == NULL, "refused: %s", why);
    if (!offers) {
        ldr_behind_close(&f->new, 1); /* there is no such tier */
    }
    ldr_handover_take(&f->new, f->list, fds, NOW_S, &sum);
    store_check(&f->new);
    return sum;
}

/* A reset that reached the disks only: nothing of before comes back. */
static void test_reset_on_disk(void **state)
{
    fixture_t *f = *state;

    put(&f->old, (put_t){.key = 0, .bytes = 100});
    put(&f->old, (put_t){.space = 1, .key = 0, .bytes = 300});
    write_list(f);
    open_known(f, 7);
    ldr_handover_sum_t sum = take_known(f, false);
    assert_int_equal(sum.chunks, 1);
    assert_int_equal(sum.left_bytes, 100);
    assert_int_equal(f->new.spaces[0].epoch, 7);
    assert_int_equal(shard_of(&f->new, 0, 0, 0), LDR_NIL);
    assert_int_not_equal(shard_of(&f->new, 1, 0, 0), LDR_NIL);
}

/* Reset while a disk was not open: one that both have has heard of it, so the
 * number is theirs; one that is only here, or still being read, may have had it
 * before. */
static void test_reset_without_a_disk(void **state)
{
    static const uint8_t both[LDR_ID_BYTES] = {1}, late[LDR_ID_BYTES] = {2};
    fixture_t *f = *state;

    for (unsigned way = 0; way < 3; way++) {
        unsigned other = way > 0;

        if (way > 0) {
            ldr_store_destroy(&f->new);
        }
        ldr_store_set_epoch(&f->old, 0, 3);
        f->old.spaces[0].above = 3;
        ldr_store_disk(&f->old, both);
        put(&f->old, (put_t){.key = 0, .bytes = 100});
        write_list(f);
        open_known(f, 3);
        ldr_store_disk(&f->new, both);
        if (way == 1) {
            ldr_store_disk(&f->new, late);
        }
        f->new.disks_coming = way == 2;
        assert_int_equal(take_known(f, false).chunks, 1 - other);
        assert_int_equal(f->new.spaces[0].epoch, 3 + other);
        assert_int_equal(f->new.spaces[0].above, 3);
    }
}

/* What became of a shard in the old one: on disk, refused, or to be offered to
 * the shared tier. */
static void test_where_it_goes_next(void **state)
{
    fixture_t *f = *state;
    larder_key_t key = test_key(0);

    for (uint32_t i = 0; i < 4; i++) {
        put(&f->old, (put_t){.key = i * 8, .bytes = 100});
    }
    uint32_t refused = shard_of(&f->old, 0, 8, 0);
    ldr_behind_remove(&f->old, 0, refused);
    f->old.shards[refused].refused = true;
    ldr_behind_push(&f->old, 1, shard_of(&f->old, 0, 16, 0));
    ldr_behind_push(&f->old, 3, shard_of(&f->old, 0, 24, 0));
    write_list(f);
    open_known(f, 0);
    ldr_name_t name = ldr_store_name(&f->new, 0, 0, &key);
    uint32_t entry = ldr_store_enter(&f->new, &name, NULL, 0, 1);
    ldr_store_set_loc(&f->new, entry, 0, ldr_loc(0, 1, 1, 2));
    assert_int_equal(take_known(f, true).chunks, 4);
    assert_int_equal(f->new.shards[shard_of(&f->new, 0, 0, 0)].queued & 1, 0);
    assert_int_equal(f->new.shards[shard_of(&f->new, 0, 8, 0)].queued & 1, 0);
    assert_true(f->new.shards[shard_of(&f->new, 0, 8, 0)].refused);
    assert_int_equal(f->new.shards[shard_of(&f->new, 0, 16, 0)].queued & 2, 2);
    assert_int_equal(f->new.shards[shard_of(&f->new, 0, 24, 0)].queued & 2, 0);
    assert_int_equal(f->new.queues[0].count, 2);
    assert_int_equal(f->new.queues[1].count, 1);
    assert_int_equal(f->new.shards[shard_of(&f->new, 0, 24, 0)].queued & 8, 8);
    assert_int_equal(f->new.queues[3].count, 1);
}

static ldr_shard_t *shard_at(ldr_store_t *s, uint32_t key)
{
    uint32_t shard = shard_of(s, 0, key * 8, 0);

    assert_int_not_equal(shard, LDR_NIL);
    return &s->shards[shard];
}

/* What is with other members of a cluster is not written down here as well, and
 * what is to be given to them is, whether or not a disk here has it. Of an
 * older daemon that is not known: then it is written down. */
static void test_what_members_have(void **state)
{
    enum { FETCHED, SAVED, COPIED, ON_DISK, OWN, COUNT };
    static const unsigned queued[] = {0, 4, 1, 4, 1}, older[] = {1, 1, 1, 0, 1};
    fixture_t *f = *state;
    larder_key_t key = test_key(ON_DISK * 8);
    ldr_ho_t ho;

    for (uint32_t i = 0; i < COUNT; i++) {
        uint32_t shard = put(&f->old, (put_t){.key = i * 8, .bytes = 100});

        if (queued[i] != 1) {
            ldr_behind_remove(&f->old, 0, shard);
        }
        if (queued[i] == 4) {
            ldr_behind_push(&f->old, 2, shard);
        }
    }
    shard_at(&f->old, FETCHED)->tier = LARDER_TIER_PEER;
    shard_at(&f->old, FETCHED)->given = 1;
    shard_at(&f->old, SAVED)->kept = 1;
    shard_at(&f->old, COPIED)->given = shard_at(&f->old, COPIED)->announced = 1;
    write_list(f);
    for (unsigned way = 0; way < 2; way++) {
        const unsigned *want = way == 0 ? queued : older;

        open_known(f, 0);
        ldr_name_t name = ldr_store_name(&f->new, 0, 0, &key);
        uint32_t entry = ldr_store_enter(&f->new, &name, NULL, 0, 1);
        ldr_store_set_loc(&f->new, entry, 0, ldr_loc(0, 1, 1, 2));
        assert_int_equal(take_known(f, true).chunks, COUNT);
        for (uint32_t i = 0; i < COUNT; i++) {
            const ldr_shard_t *a = shard_at(&f->old, i);
            const ldr_shard_t *b = shard_at(&f->new, i);

            assert_int_equal(b->queued, want[i]);
            assert_int_equal(b->tier, way == 0 ? a->tier : 0);
            assert_int_equal(b->given, way == 0 && a->given);
            assert_int_equal(b->kept, way == 0 && a->kept);
            assert_int_equal(b->announced, way == 0 && a->announced);
        }
        if (way == 0) {
            ldr_store_destroy(&f->new);
            ldr_ho_tables(f->list, &ho);
            for (uint32_t i = 0; i < ho.head->shards; i++) {
                ho.shards[i].flags &= LDR_HO_REFUSED | LDR_HO_SHARED;
            }
            ho.head->crc = ldr_ho_crc(ho.head);
        }
    }
}

/* Pages of one tenant's extent are never another's, whatever the list says. */
static void test_pages_of_another(void **state)
{
    fixture_t *f = *state;
    ldr_ho_t ho;

    put(&f->old, (put_t){.key = 0, .bytes = 100});
    put(&f->old, (put_t){.space = 1, .key = 0, .bytes = 300});
    write_list(f);
    ldr_ho_tables(f->list, &ho);
    for (uint32_t i = 0; i < ho.head->chunks; i++) {
        ho.chunks[i].space = 1;
    }
    ho.head->crc = ldr_ho_crc(ho.head);
    open_known(f, 0);
    ldr_handover_sum_t sum = take_known(f, false);
    assert_int_equal(sum.bytes, 300);
    assert_int_equal(sum.left_bytes, 100);
}

/* The last extent may be shorter than the others. */
static void test_page_beyond_its_extent(void **state)
{
    fixture_t *f = *state;
    const uint32_t pages = 40, whole = LDR_SLICE_PAGES;
    ldr_slice_t slice;
    ldr_ho_t ho;

    ldr_store_destroy(&f->old);
    open_store(&f->old, pages, true);
    while (ldr_arena_slice_take(&f->old.arena, LDR_NIL, &slice)) {
        ldr_arena_slice_give(&f->old.arena, &slice, true);
    }
    for (uint32_t key = 0; key < pages; key++) {
        put(&f->old, (put_t){.key = key * 8, .bytes = LDR_PAGE});
    }
    write_list(f);
    open_store(&f->new, pages, false);
    assert_null(ldr_handover_check(&f->new, f->list, f->bytes));
    ldr_ho_tables(f->list, &ho);
    for (uint32_t i = 0; i < ho.head->pages; i++) {
        if (ho.extents[ho.pages[i] / whole].pages < whole) {
            ho.pages[i] += pages - whole;
            ho.head->crc = ldr_ho_crc(ho.head);
            assert_non_null(ldr_handover_check(&f->new, f->list, f->bytes));
            return;
        }
    }
    fail();
}

/* A list that was damaged is refused; one that lies never breaks the store. */
static void test_lists_that_lie(void **state)
{
    fixture_t *f = *state;
    ldr_rand_t rand;
    unsigned refused = 0, taken = 0;

    ldr_rand_seed(&rand, 9);
    for (uint32_t i = 0; i < 60; i++) {
        put(&f->old, (put_t){.space = i % TENANTS,
                             .key = i,
                             .bytes = 1 + i * 4096,
                             .used_s = i});
    }
    write_list(f);
    uint8_t *good = f->list;
    f->list = malloc(f->bytes);
    for (unsigned turn = 0; turn < 4000; turn++) {
        memcpy(f->list, good, f->bytes);
        uint64_t at = ldr_rand_next(&rand) % f->bytes;
        f->list[at] ^= (uint8_t)(1u << ldr_rand_next(&rand) % 8);
        open_store(&f->new, PAGES, false);
        assert_non_null(ldr_handover_check(&f->new, f->list, f->bytes));
        assert_non_null(ldr_handover_check(&f->new, f->list, at));
        /* With a checksum that is right for it. */
        ldr_ho_head_t *head = (ldr_ho_head_t *)f->list;
        if (head->bytes <= f->bytes && head->bytes > sizeof(*head)) {
            head->crc = ldr_ho_crc(head);
        }
        if (ldr_handover_check(&f->new, f->list, f->bytes) != NULL) {
            refused++;
        } else {
            ldr_handover_sum_t sum;
            int fds[64];

            ldr_handover_take(&f->new, f->list, fds, NOW_S, &sum);
            taken++;
        }
        store_check(&f->new);
        ldr_store_destroy(&f->new);
    }
    free(good);
    assert_true(refused > 100 && taken > 100);
}

static void use_default(void **state)
{
    (void)state;
    policy = &ldr_policy_default;
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_all_of_it),
        TEST(test_order_of_use),
        TEST(test_what_stays),
        TEST(test_less_room),
        TEST(test_lists_that_lie),
        TEST(test_expired),
        TEST(test_held_chunks_stay),
        TEST(test_reset_on_disk),
        TEST(test_reset_without_a_disk),
        TEST(test_where_it_goes_next),
        TEST(test_what_members_have),
        TEST(test_pages_of_another),
        TEST(test_page_beyond_its_extent),
    };
    const struct CMUnitTest learning[] = {
        cmocka_unit_test(use_default), TEST(test_all_of_it),
        TEST(test_what_stays),         TEST(test_less_room),
        TEST(test_lists_that_lie),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) +
           cmocka_run_group_tests(learning, NULL, NULL);
}
