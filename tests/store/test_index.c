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
#include "base/mem.h"
#include "store/index.h"

static uint64_t seed_base;

/* A fingerprint that no other number has. */
static uint64_t fp_of(uint64_t number)
{
    return (number ^ number >> 31) * 0x9e3779b97f4a7c15u;
}

static uint32_t add_plain(ldr_index_t *ix, uint64_t number, uint32_t parent)
{
    return ldr_index_add(ix, fp_of(number), 1, 2, 1, parent);
}

static uint32_t find_plain(const ldr_index_t *ix, uint64_t number,
                           uint32_t after)
{
    return ldr_index_find(ix, fp_of(number), 1, 2, after);
}

/* The model: names, and for each what the index ought to say. */

enum { NAMES = 3000, MODEL_OPS = 60000 };

typedef struct name {
    uint64_t fingerprint;
    uint32_t space, group;
    uint32_t entry; /* LDR_NIL: not there */
    uint32_t shards;
    ldr_loc_t locs[LARDER_SHARDS_MAX];
} name_t;

typedef struct model {
    ldr_index_t ix;
    ldr_rand_t rand;
    name_t names[NAMES];
    uint32_t owner[NAMES]; /* of each entry: a name, or LDR_NIL */
    uint32_t count;
    uint64_t full_count;
} model_t;

static void model_names(model_t *m, bool collide)
{
    for (uint32_t i = 0; i < NAMES; i++) {
        name_t *n = &m->names[i];
        larder_key_t key;

        for (size_t b = 0; b < sizeof(key.hash); b++) {
            key.hash[b] = (uint8_t)ldr_rand_next(&m->rand);
        }
        n->space = collide ? i % 64 / 8 : (uint32_t)ldr_rand_below(&m->rand, 9);
        n->group = collide ? i % 8 : (uint32_t)ldr_rand_below(&m->rand, 3);
        n->fingerprint =
            collide ? i / 64
                    : ldr_index_fingerprint(&m->ix, n->space, n->group, &key);
        n->entry = LDR_NIL;
    }
}

static void model_add(model_t *m, name_t *n)
{
    const name_t *parent = &m->names[ldr_rand_below(&m->rand, NAMES)];
    uint32_t shards = (uint32_t)ldr_rand_below(&m->rand, 4) > 0
                          ? 1 + (uint32_t)ldr_rand_below(&m->rand, 8)
                          : 1 + (uint32_t)ldr_rand_below(&m->rand, 64);
    uint32_t entry = ldr_index_add(&m->ix, n->fingerprint, n->space, n->group,
                                   shards, parent->entry);

    if (m->count == m->ix.entry_max) {
        assert_int_equal(entry, LDR_NIL);
        m->full_count++;
        return;
    }
    assert_true(entry < m->ix.entry_max);
    assert_int_equal(m->owner[entry], LDR_NIL);
    if (parent->entry != LDR_NIL && parent->entry + 1 < m->ix.entry_top &&
        entry != parent->entry + 1) {
        assert_int_not_equal(m->owner[parent->entry + 1], LDR_NIL);
    }
    const ldr_entry_t *e = ldr_index_at(&m->ix, entry);
    assert_int_equal(e->parent, parent->entry);
    assert_int_equal(e->resident, LDR_NIL);
    assert_int_equal(e->shards, shards);
    assert_int_equal(e->depth_flags | e->epoch | e->used_s | e->expires_s, 0);
    assert_true(shards > 1 || e->more == LDR_NIL);
    assert_false(ldr_index_has_loc(&m->ix, entry));
    m->owner[entry] = (uint32_t)(n - m->names);
    m->count++;
    n->entry = entry;
    n->shards = shards;
    memset(n->locs, 0, sizeof(n->locs));
}

static void model_remove(model_t *m, name_t *n)
{
    ldr_index_remove(&m->ix, n->entry);
    m->owner[n->entry] = LDR_NIL;
    m->count--;
    n->entry = LDR_NIL;
}

static void model_locs(model_t *m, name_t *n)
{
    uint32_t shard = (uint32_t)ldr_rand_below(&m->rand, n->shards);
    bool any = false;

    n->locs[shard] =
        ldr_rand_below(&m->rand, 3) == 0 ? 0 : ldr_rand_next(&m->rand);
    ldr_index_set_loc(&m->ix, n->entry, shard, n->locs[shard]);
    for (uint32_t i = 0; i < n->shards; i++) {
        assert_true(ldr_index_loc(&m->ix, n->entry, i) == n->locs[i]);
        any = any || n->locs[i] != 0;
    }
    assert_int_equal(ldr_index_has_loc(&m->ix, n->entry), any);
    assert_true(ldr_index_loc(&m->ix, n->entry, n->shards) == 0);
}

static void model_check(model_t *m)
{
    assert_true(ldr_index_check(&m->ix));
    assert_int_equal(m->ix.entry_count, m->count);
    for (uint32_t i = 0; i < NAMES; i++) {
        const name_t *n = &m->names[i];
        uint32_t after = (uint32_t)ldr_rand_below(&m->rand, NAMES + 2);

        assert_int_equal(
            ldr_index_find(&m->ix, n->fingerprint, n->space, n->group, LDR_NIL),
            n->entry);
        assert_int_equal(
            ldr_index_find(&m->ix, n->fingerprint, n->space, n->group, after),
            n->entry);
        for (uint32_t s = 0; n->entry != LDR_NIL && s < n->shards; s++) {
            assert_true(ldr_index_loc(&m->ix, n->entry, s) == n->locs[s]);
        }
    }
}

static void run_model(uint64_t seed, uint32_t entry_max, bool collide)
{
    model_t *m = calloc(1, sizeof(*m));

    assert_non_null(m);
    ldr_rand_seed(&m->rand, seed);
    assert_int_equal(ldr_index_init(&m->ix, entry_max, seed), LARDER_OK);
    memset(m->owner, 0xff, sizeof(m->owner));
    model_names(m, collide);
    for (int op = 0; op < MODEL_OPS; op++) {
        name_t *n = &m->names[ldr_rand_below(&m->rand, NAMES)];
        /* Seasons of growth and of shrinking. */
        uint32_t adds = op / 10000 % 2 == 0 ? 7 : 2;

        if (n->entry == LDR_NIL) {
            if (ldr_rand_below(&m->rand, 10) < adds) {
                model_add(m, n);
            }
        } else if (ldr_rand_below(&m->rand, 10) < adds) {
            model_locs(m, n);
        } else {
            model_remove(m, n);
        }
        if (op % 4000 == 0) {
            model_check(m);
        }
    }
    for (uint32_t i = 0; i < NAMES; i++) {
        if (m->names[i].entry != LDR_NIL) {
            model_remove(m, &m->names[i]);
        }
    }
    model_check(m);
    assert_true(entry_max > 300 || m->full_count > 0);
    ldr_index_destroy(&m->ix);
    free(m);
}

static void test_model(void **state)
{
    static const uint32_t maxima[] = {1, 63, 64, 65, 300, NAMES};

    (void)state;
    for (size_t i = 0; i < sizeof(maxima) / sizeof(maxima[0]); i++) {
        run_model(seed_base + 2 * i, maxima[i], false);
        run_model(seed_base + 2 * i + 1, maxima[i], true);
    }
}

static void test_fingerprint(void **state)
{
    ldr_index_t a, b;
    larder_key_t key = {{1, 2, 3}};

    (void)state;
    assert_int_equal(ldr_index_init(&a, 10, 1), LARDER_OK);
    assert_int_equal(ldr_index_init(&b, 10, 2), LARDER_OK);
    uint64_t fp = ldr_index_fingerprint(&a, 3, 4, &key);
    assert_true(fp == ldr_index_fingerprint(&a, 3, 4, &key));
    assert_true(fp != ldr_index_fingerprint(&b, 3, 4, &key));
    assert_true(fp != ldr_index_fingerprint(&a, 4, 3, &key));
    assert_true(fp != ldr_index_fingerprint(&a, 3, 5, &key));
    /* Every bit of 16 bytes of the key turns about half of the result. */
    for (int bit = 0; bit < 128; bit++) {
        key.hash[bit / 8] ^= (uint8_t)(1 << bit % 8);
        uint64_t other = fp ^ ldr_index_fingerprint(&a, 3, 4, &key);
        key.hash[bit / 8] ^= (uint8_t)(1 << bit % 8);
        int turned = __builtin_popcountll(other);
        assert_true(turned >= 12 && turned <= 52);
        assert_true((uint32_t)other != 0);
    }
    ldr_index_destroy(&a);
    ldr_index_destroy(&b);
}

static void test_removed_is_not_found(void **state)
{
    ldr_index_t ix;

    (void)state;
    assert_int_equal(ldr_index_init(&ix, 100, 0), LARDER_OK);
    uint32_t a = add_plain(&ix, 1, LDR_NIL);
    uint32_t b = add_plain(&ix, 2, a);
    add_plain(&ix, 3, b);
    assert_int_equal(find_plain(&ix, 2, a), b);
    ldr_index_remove(&ix, b);
    assert_int_equal(find_plain(&ix, 2, a), LDR_NIL);
    assert_int_equal(find_plain(&ix, 2, LDR_NIL), LDR_NIL);
    /* Memory never touched is zero, as a fingerprint may be. */
    assert_int_equal(ldr_index_find(&ix, 0, 0, 0, LDR_NIL), LDR_NIL);
    assert_int_equal(ldr_index_find(&ix, 0, 0, 0, 2), LDR_NIL);
    assert_int_equal(ldr_index_find(&ix, 0, 0, 0, 99), LDR_NIL);
    assert_int_equal(ldr_index_find(&ix, 0, 0, 0, LDR_NIL - 1), LDR_NIL);
    ldr_index_destroy(&ix);
}

static void test_shards_out_of_range(void **state)
{
    ldr_index_t ix;

    (void)state;
    assert_int_equal(ldr_index_init(&ix, 100, 0), LARDER_OK);
    assert_int_equal(ldr_index_add(&ix, 1, 0, 0, 0, LDR_NIL), LDR_NIL);
    assert_int_equal(
        ldr_index_add(&ix, 1, 0, 0, LARDER_SHARDS_MAX + 1, LDR_NIL), LDR_NIL);
    uint32_t e = ldr_index_add(&ix, 1, 0, 0, LARDER_SHARDS_MAX, 77);
    assert_int_equal(e, 0);
    ldr_index_set_loc(&ix, e, LARDER_SHARDS_MAX, 5); /* nowhere to put it */
    assert_false(ldr_index_has_loc(&ix, e));
    assert_true(ldr_index_check(&ix));
    ldr_index_destroy(&ix);
}

static void test_growth(void **state)
{
    enum { COUNT = 3000000, CHAIN = 1000 };
    ldr_index_t ix;
    uint32_t last = LDR_NIL;

    (void)state;
    assert_int_equal(ldr_index_init(&ix, 100000000, 7), LARDER_OK);
    uint64_t allocs = ldr_alloc_count();
    for (uint32_t i = 0; i < COUNT; i++) {
        last = add_plain(&ix, i, i % CHAIN == 0 ? LDR_NIL : last);
        assert_int_equal(last, i); /* one run */
        if (i == 1000000) {
            assert_true(ldr_index_bytes(&ix) <= 64ull * i);
        }
    }
    assert_true(ldr_index_bytes(&ix) <= 64ull * COUNT);
    assert_true(ldr_index_bytes(&ix) >= 60ull * COUNT);
    for (uint32_t i = 0; i < COUNT; i++) {
        assert_int_equal(find_plain(&ix, i, LDR_NIL), i);
    }
    assert_int_equal(find_plain(&ix, COUNT, LDR_NIL), LDR_NIL);
    assert_true(ldr_index_check(&ix));
    assert_true(ldr_alloc_count() == allocs);
    ldr_index_destroy(&ix);
}

static void test_bytes_of_shards(void **state)
{
    enum { COUNT = 100000, SHARDS = 4 };
    ldr_index_t ix;

    (void)state;
    assert_int_equal(ldr_index_init(&ix, COUNT, 7), LARDER_OK);
    for (uint32_t i = 0; i < COUNT; i++) {
        assert_int_equal(ldr_index_add(&ix, fp_of(i), 0, 0, SHARDS, LDR_NIL),
                         i);
    }
    assert_true(ldr_index_bytes(&ix) <= (64ull + 8 * (SHARDS - 1)) * COUNT);
    assert_true(ldr_index_bytes(&ix) >= (60ull + 8 * (SHARDS - 1)) * COUNT);
    ldr_index_destroy(&ix);
}

/* Chains come and go in any order; runs stay, and so does the memory. */
static void test_churn(void **state)
{
    enum { CHAINS = 2000, LENGTH_MAX = 200, ROUNDS = 20000 };
    static struct {
        uint32_t length;
        uint32_t entries[LENGTH_MAX];
    } chains[CHAINS];
    ldr_index_t ix;
    ldr_rand_t r;
    uint64_t number = 0, added = 0, runs = 0;
    uint32_t peak = 0;

    (void)state;
    ldr_rand_seed(&r, seed_base);
    memset(chains, 0, sizeof(chains));
    assert_int_equal(ldr_index_init(&ix, 100000000, 7), LARDER_OK);
    for (int round = 0; round < ROUNDS; round++) {
        size_t c = ldr_rand_below(&r, CHAINS);
        uint32_t parent = LDR_NIL;

        while (chains[c].length > 0) {
            ldr_index_remove(&ix, chains[c].entries[--chains[c].length]);
        }
        chains[c].length = 1 + (uint32_t)ldr_rand_below(&r, LENGTH_MAX);
        for (uint32_t i = 0; i < chains[c].length; i++) {
            uint32_t e = add_plain(&ix, number++, parent);

            assert_int_not_equal(e, LDR_NIL);
            runs += parent == LDR_NIL || e != parent + 1;
            chains[c].entries[i] = e;
            parent = e;
        }
        added += chains[c].length;
        peak = ix.entry_count > peak ? ix.entry_count : peak;
        assert_true(ix.entry_top <= peak + peak / 16 + 1);
    }
    assert_true(ldr_index_bytes(&ix) <= 64ull * peak);
    print_message("churn: %.1f entries in a run\n",
                  (double)added / (double)runs);
    assert_true(added >= 10 * runs);
    assert_true(ldr_index_check(&ix));
    ldr_index_destroy(&ix);
}

static void test_full(void **state)
{
    enum { COUNT = 70000 };
    ldr_index_t ix;
    ldr_rand_t r;

    (void)state;
    ldr_rand_seed(&r, seed_base);
    assert_int_equal(ldr_index_init(&ix, COUNT, 7), LARDER_OK);
    for (uint32_t i = 0; i < COUNT; i++) {
        assert_int_equal(add_plain(&ix, i, LDR_NIL), i);
    }
    /* However far the one hole is from where the search begins. */
    for (uint32_t i = 0; i < COUNT; i++) {
        uint32_t hole = (uint32_t)ldr_rand_below(&r, COUNT);

        assert_int_equal(add_plain(&ix, COUNT + i, LDR_NIL), LDR_NIL);
        ldr_index_remove(&ix, hole);
        assert_int_equal(add_plain(&ix, COUNT + i, LDR_NIL), hole);
    }
    assert_int_equal(ix.entry_count, COUNT);
    assert_true(ldr_index_check(&ix));
    ldr_index_destroy(&ix);
}

static void test_cells_are_reused(void **state)
{
    ldr_index_t ix;
    uint64_t cell_top = 0;

    (void)state;
    assert_int_equal(ldr_index_init(&ix, 1000, 7), LARDER_OK);
    for (uint32_t i = 0; i < 100000; i++) {
        uint32_t shards = 1 + i % LARDER_SHARDS_MAX;
        uint32_t e = ldr_index_add(&ix, fp_of(i), 0, 0, shards, LDR_NIL);

        assert_int_not_equal(e, LDR_NIL);
        for (uint32_t s = 0; s < shards; s++) {
            assert_true(ldr_index_loc(&ix, e, s) == 0);
            ldr_index_set_loc(&ix, e, s, UINT64_MAX);
        }
        ldr_index_remove(&ix, e);
        if (i == LARDER_SHARDS_MAX) {
            cell_top = ix.cell_top;
        }
    }
    assert_int_equal(cell_top, (LARDER_SHARDS_MAX - 1) * LARDER_SHARDS_MAX / 2);
    assert_true(ix.cell_top == cell_top);
    assert_true(ldr_index_check(&ix));
    ldr_index_destroy(&ix);
}

static void test_no_cells_left(void **state)
{
    ldr_index_t ix;

    (void)state;
    assert_int_equal(ldr_index_init(&ix, 10, 7), LARDER_OK);
    uint64_t cell_max = ix.cell_max;
    ix.cell_max = 6;
    assert_int_equal(ldr_index_add(&ix, 1, 0, 0, 4, LDR_NIL), 0);
    assert_int_equal(ldr_index_add(&ix, 2, 0, 0, 4, LDR_NIL), 1);
    assert_int_equal(ldr_index_add(&ix, 3, 0, 0, 2, LDR_NIL), LDR_NIL);
    assert_int_equal(ix.entry_count, 2);
    assert_int_equal(ldr_index_add(&ix, 3, 0, 0, 1, LDR_NIL), 2);
    ldr_index_remove(&ix, 0);
    assert_int_not_equal(ldr_index_add(&ix, 4, 0, 0, 4, LDR_NIL), LDR_NIL);
    assert_true(ldr_index_check(&ix));
    ix.cell_max = cell_max; /* what was reserved */
    ldr_index_destroy(&ix);
}

static void test_capacity_ends(void **state)
{
    ldr_index_t ix;

    (void)state;
    assert_int_equal(ldr_index_init(&ix, 0, 7), LARDER_OK);
    assert_int_equal(add_plain(&ix, 1, LDR_NIL), LDR_NIL);
    assert_int_equal(find_plain(&ix, 1, LDR_NIL), LDR_NIL);
    assert_true(ldr_index_check(&ix));
    ldr_index_destroy(&ix);
    ldr_index_destroy(&ix); /* again does nothing */

    if (ldr_index_init(&ix, LDR_NIL - 1, 7) != LARDER_OK) {
        skip(); /* some 300 GB of addresses: not everybody may */
    }
    uint32_t e = ldr_index_add(&ix, 5, 1, 2, 64, LDR_NIL);
    assert_int_equal(e, 0);
    assert_int_equal(ldr_index_find(&ix, 5, 1, 2, LDR_NIL), e);
    assert_true(ldr_index_bytes(&ix) < 4096);
    ldr_index_remove(&ix, e);
    ldr_index_destroy(&ix);
}

static void test_no_memory(void **state)
{
    ldr_index_t ix;
    uint64_t nth = 0;
    larder_status_t st;

    (void)state;
    do {
        ldr_fault_arm(LDR_FAULT_alloc, ++nth, 1);
        st = ldr_index_init(&ix, 1000, 7);
        if (ldr_fault_fired(LDR_FAULT_alloc) > 0) {
            assert_int_equal(st, LARDER_E_NO_MEMORY);
            assert_null(ix.entries);
        }
    } while (st != LARDER_OK);
    ldr_fault_disarm_all();
    assert_true(nth > 1);
    ldr_index_destroy(&ix);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model),
        cmocka_unit_test(test_fingerprint),
        cmocka_unit_test(test_removed_is_not_found),
        cmocka_unit_test(test_shards_out_of_range),
        cmocka_unit_test(test_growth),
        cmocka_unit_test(test_bytes_of_shards),
        cmocka_unit_test(test_churn),
        cmocka_unit_test(test_full),
        cmocka_unit_test(test_cells_are_reused),
        cmocka_unit_test(test_no_cells_left),
        cmocka_unit_test(test_capacity_ends),
        cmocka_unit_test(test_no_memory),
    };
    const char *text = getenv("LARDER_SEED");

    seed_base = text != NULL ? strtoull(text, NULL, 0) : 1;
    print_message("LARDER_SEED=%llu\n", (unsigned long long)seed_base);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
