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
#include "store/policy.h"

static const ldr_policy_ops_t *const lru = &ldr_policy_lru;
static uint64_t seed_base;

/*
 * The model: the order as a plain vector, most recent first; every move shifts
 * it, every walk goes to the root.
 */
enum { SLOTS = 200, MODEL_OPS = 20000, TOUCH_MAX = 40 };

typedef struct model_slot {
    bool present, held, moved;
    uint32_t parent; /* LDR_NIL also once the parent was removed */
    uint32_t depth;
} model_slot_t;

typedef struct model {
    ldr_policy_t *policy;
    ldr_rand_t rand;
    model_slot_t slots[SLOTS];
    uint32_t order[SLOTS];
    uint32_t count;
    uint32_t last; /* where the next operation is likely to go on */
} model_t;

static uint32_t order_find(const model_t *m, uint32_t slot)
{
    uint32_t i = 0;

    while (i < m->count && m->order[i] != slot) {
        i++;
    }
    return i;
}

static void order_remove(model_t *m, uint32_t slot)
{
    uint32_t i = order_find(m, slot);

    assert_true(i < m->count);
    m->count--;
    memmove(&m->order[i], &m->order[i + 1],
            (m->count - i) * sizeof(m->order[0]));
}

static void order_insert(model_t *m, uint32_t at, uint32_t slot)
{
    memmove(&m->order[at + 1], &m->order[at],
            (m->count - at) * sizeof(m->order[0]));
    m->order[at] = slot;
    m->count++;
}

/* To the front, or behind the first listed ancestor that has moved already;
 * ancestors go the same way, each ahead of the one before. */
static void model_lift(model_t *m, uint32_t slot)
{
    uint32_t path[SLOTS];
    uint32_t path_count = 0;
    uint32_t at = 0;
    uint32_t i = slot;

    for (; i != LDR_NIL; i = m->slots[i].parent) {
        bool listed = !m->slots[i].held;

        if (listed && m->slots[i].moved) {
            break;
        }
        m->slots[i].moved = true;
        if (listed) {
            path[path_count++] = i;
            order_remove(m, i);
        }
    }
    if (i != LDR_NIL) {
        at = order_find(m, i) + 1;
    }
    for (uint32_t p = 0; p < path_count; p++) {
        order_insert(m, at, path[p]);
    }
}

static void model_still(model_t *m)
{
    for (uint32_t i = 0; i < SLOTS; i++) {
        m->slots[i].moved = false;
    }
}

static void model_remove(model_t *m, uint32_t slot)
{
    if (!m->slots[slot].held) {
        order_remove(m, slot);
    }
    m->slots[slot] = (model_slot_t){.parent = LDR_NIL};
    for (uint32_t i = 0; i < SLOTS; i++) {
        if (m->slots[i].parent == slot) {
            m->slots[i].parent = LDR_NIL;
        }
    }
    lru->remove(m->policy, slot);
}

static void model_add(model_t *m, uint32_t slot, uint32_t parent,
                      uint32_t depth)
{
    bool linked = parent < SLOTS && m->slots[parent].present &&
                  m->slots[parent].depth < depth;

    m->slots[slot] = (model_slot_t){
        .present = true,
        .parent = linked ? parent : LDR_NIL,
        .depth = depth,
    };
    order_insert(m, 0, slot);
    model_still(m);
    model_lift(m, slot);
    lru->add(m->policy, slot, parent, depth);
}

static void model_hold(model_t *m, uint32_t slot)
{
    if (!m->slots[slot].held) {
        order_remove(m, slot);
        m->slots[slot].held = true;
    }
    lru->hold(m->policy, slot);
}

static void model_release(model_t *m, uint32_t slot)
{
    if (m->slots[slot].held) {
        m->slots[slot].held = false;
        order_insert(m, 0, slot);
        model_still(m);
        model_lift(m, slot);
    }
    lru->release(m->policy, slot);
}

static void model_touch(model_t *m, const uint32_t *slots, uint32_t count)
{
    model_still(m);
    for (uint32_t i = count; i-- > 0;) {
        if (m->slots[slots[i]].present && !m->slots[slots[i]].moved) {
            model_lift(m, slots[i]);
        }
    }
    lru->touch(m->policy, slots, count);
}

/* A slot's chain, its root first. */
static uint32_t chain_of(const model_t *m, uint32_t slot, uint32_t *slots)
{
    uint32_t count = 0;

    for (uint32_t i = slot; i != LDR_NIL; i = m->slots[i].parent) {
        count++;
    }
    for (uint32_t i = slot, n = count; n > 0; i = m->slots[i].parent) {
        slots[--n] = i;
    }
    return count;
}

static void model_check(model_t *m)
{
    assert_true(ldr_policy_lru_check(m->policy));
    assert_int_equal(lru->victim(m->policy),
                     m->count > 0 ? m->order[m->count - 1] : LDR_NIL);
    for (uint32_t i = 0; i < m->count; i++) {
        uint32_t parent = m->slots[m->order[i]].parent;

        while (parent != LDR_NIL) {
            assert_true(m->slots[parent].held || order_find(m, parent) < i);
            parent = m->slots[parent].parent;
        }
    }
}

/* Most operations go on where the one before was: down or up a chain. */
static uint32_t model_choose(model_t *m)
{
    uint32_t near = m->slots[m->last].parent;

    switch (ldr_rand_below(&m->rand, 4)) {
    case 0:
        return near != LDR_NIL ? near : m->last;
    case 1:
        for (uint32_t i = 0; i < SLOTS; i++) {
            if (m->slots[i].parent == m->last) {
                return i;
            }
        }
        return m->last;
    default:
        return (uint32_t)ldr_rand_below(&m->rand, SLOTS);
    }
}

static void model_grow(model_t *m, uint32_t slot)
{
    uint32_t parent = ldr_rand_below(&m->rand, 4) > 0
                          ? m->last
                          : (uint32_t)ldr_rand_below(&m->rand, SLOTS + 50);
    uint32_t depth = 0;

    if (parent == slot || parent >= SLOTS) {
        parent = LDR_NIL;
    } else {
        depth = m->slots[parent].depth + 1;
    }
    if (ldr_rand_below(&m->rand, 20) == 0) {
        depth = (uint32_t)ldr_rand_below(&m->rand, 5); /* a wrong hint */
    }
    model_add(m, slot, parent, depth);
    if (ldr_rand_below(&m->rand, 3) == 0) {
        model_hold(m, slot);
    }
}

/* One operation on a slot that is there. */
static void model_use(model_t *m, uint32_t slot)
{
    uint32_t slots[SLOTS + TOUCH_MAX];
    uint32_t count = 0;

    switch (ldr_rand_below(&m->rand, 8)) {
    case 0:
        model_remove(m, slot);
        break;
    case 1:
        model_hold(m, slot);
        break;
    case 2:
    case 3:
        model_release(m, slot);
        break;
    case 4: /* a stage: lease the chain */
        count = chain_of(m, slot, slots);
        model_touch(m, slots, count);
        for (uint32_t i = 0; i < count; i++) {
            model_hold(m, slots[i]);
        }
        break;
    case 5: /* the end of a lease, from either end */
        count = chain_of(m, slot, slots);
        for (uint32_t i = 0; i < count; i++) {
            model_release(m, slots[count % 2 == 0 ? i : count - 1 - i]);
        }
        break;
    case 6:
        count = chain_of(m, slot, slots);
        model_touch(m, slots, count);
        break;
    default: /* anything at all */
        for (uint32_t n = (uint32_t)ldr_rand_below(&m->rand, TOUCH_MAX); n > 0;
             n--) {
            slots[count++] = (uint32_t)ldr_rand_below(&m->rand, SLOTS);
        }
        model_touch(m, slots, count);
        break;
    }
}

static void run_model(uint64_t seed)
{
    model_t *m = calloc(1, sizeof(*m));

    assert_non_null(m);
    ldr_rand_seed(&m->rand, seed);
    for (uint32_t i = 0; i < SLOTS; i++) {
        m->slots[i].parent = LDR_NIL;
    }
    m->policy = lru->create(SLOTS);
    assert_non_null(m->policy);
    for (int op = 0; op < MODEL_OPS; op++) {
        uint32_t slot = model_choose(m);

        if (!m->slots[slot].present) {
            model_grow(m, slot);
        } else {
            model_use(m, slot);
        }
        m->last = slot;
        model_check(m);
        if (op % 1000 == 999) { /* the whole order, by taking it apart */
            uint32_t keep = (uint32_t)ldr_rand_below(&m->rand, SLOTS);

            while (m->count > keep) {
                uint32_t victim = lru->victim(m->policy);

                assert_int_equal(victim, m->order[m->count - 1]);
                model_remove(m, victim);
            }
        }
    }
    lru->destroy(m->policy);
    free(m);
}

static void test_model(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 8; i++) {
        run_model(seed_base + i);
    }
}

/* A forest whose touches were whole chains: what victim() gives never has a
 * child that is still there. */
static void test_leaf_first(void **state)
{
    enum { COUNT = 50000, CHAIN = 300 };
    static uint32_t parents[COUNT], depths[COUNT], children[COUNT];
    static uint32_t chain[COUNT];
    ldr_policy_t *policy = lru->create(COUNT);
    ldr_rand_t r;

    (void)state;
    assert_non_null(policy);
    ldr_rand_seed(&r, seed_base);
    memset(children, 0, sizeof(children));
    for (uint32_t i = 0; i < COUNT; i++) {
        /* Mostly the next of its chain; else a branch, or a new root. */
        uint64_t dice = ldr_rand_below(&r, CHAIN);
        uint32_t parent = i == 0 || dice == 0 ? LDR_NIL
                          : dice < 4          ? (uint32_t)ldr_rand_below(&r, i)
                                              : i - 1;

        parents[i] = parent;
        depths[i] = parent == LDR_NIL ? 0 : depths[parent] + 1;
        if (parent != LDR_NIL) {
            children[parent]++;
        }
        lru->add(policy, i, parent, depths[i]);
    }
    for (int n = 0; n < 300; n++) {
        uint32_t leaf = (uint32_t)ldr_rand_below(&r, COUNT);
        uint32_t count = depths[leaf] + 1;

        for (uint32_t i = leaf, at = count; at > 0; i = parents[i]) {
            chain[--at] = i;
        }
        lru->touch(policy, chain, count);
        if (n % 3 == 0) {
            for (uint32_t i = 0; i < count; i++) {
                lru->hold(policy, chain[i]);
            }
            for (uint32_t i = 0; i < count; i++) {
                lru->release(policy, chain[n % 2 == 0 ? i : count - 1 - i]);
            }
        }
        assert_true(ldr_policy_lru_check(policy));
    }
    for (uint32_t n = 0; n < COUNT; n++) {
        uint32_t victim = lru->victim(policy);

        assert_true(victim < COUNT);
        assert_int_equal(children[victim], 0);
        if (parents[victim] != LDR_NIL) {
            children[parents[victim]]--;
        }
        lru->remove(policy, victim);
    }
    assert_int_equal(lru->victim(policy), LDR_NIL);
    lru->destroy(policy);
}

/* A touch of some chunks takes along the ancestors it does not name. */
static void test_touch_lifts_ancestors(void **state)
{
    static const uint32_t expected[] = {4, 3, 2, 1, 0};
    ldr_policy_t *policy = lru->create(10);
    uint32_t leaf = 2;

    (void)state;
    lru->add(policy, 0, LDR_NIL, 0);
    lru->add(policy, 1, 0, 1);
    lru->add(policy, 2, 1, 2);
    lru->add(policy, 3, LDR_NIL, 0);
    lru->add(policy, 4, 3, 1);
    assert_int_equal(lru->victim(policy), 2);
    lru->touch(policy, &leaf, 1);
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(lru->victim(policy), expected[i]);
        lru->remove(policy, expected[i]);
    }
    assert_int_equal(lru->victim(policy), LDR_NIL);
    lru->destroy(policy);
}

/* A slot used again for another chunk is nobody's parent. */
static void test_reused_parent(void **state)
{
    ldr_policy_t *policy = lru->create(10);
    uint32_t child = 1;

    (void)state;
    lru->add(policy, 0, LDR_NIL, 0);
    lru->add(policy, 1, 0, 1);
    lru->remove(policy, 0);
    lru->add(policy, 0, LDR_NIL, 0);
    lru->add(policy, 2, LDR_NIL, 0);
    lru->touch(policy, &child, 1);
    assert_int_equal(lru->victim(policy), 0);
    lru->destroy(policy);
}

static void test_misuse(void **state)
{
    ldr_policy_t *policy = lru->create(4);
    uint32_t slots[] = {9, LDR_NIL, 3, 0, 0};

    (void)state;
    lru->add(policy, 4, LDR_NIL, 0);
    lru->remove(policy, 4);
    lru->hold(policy, LDR_NIL);
    lru->release(policy, 2);
    lru->remove(policy, 2);
    assert_int_equal(lru->victim(policy), LDR_NIL);
    lru->touch(policy, slots, 5);
    lru->touch(policy, NULL, 0);
    /* Parents that are themselves, each other, or not there. */
    lru->add(policy, 0, 0, 0);
    lru->add(policy, 1, 0, 0);
    lru->add(policy, 0, 1, 0);
    lru->add(policy, 2, 99, 7);
    lru->add(policy, 3, 2, 6);
    lru->touch(policy, slots, 5);
    assert_true(ldr_policy_lru_check(policy));
    lru->hold(policy, 1);
    lru->hold(policy, 1);
    assert_int_not_equal(lru->victim(policy), 1);
    lru->remove(policy, 1); /* held or not */
    lru->release(policy, 1);
    for (int left = 3; left > 0; left--) {
        assert_int_not_equal(lru->victim(policy), 1);
        lru->remove(policy, lru->victim(policy));
    }
    assert_int_equal(lru->victim(policy), LDR_NIL);
    lru->destroy(policy);
    lru->destroy(NULL);
}

/* Saves, leases and evictions of a million slots; long chains, of several
 * groups at once, are no more than that many steps. */
static void test_million(void **state)
{
    enum { COUNT = 1000000, GROUPS = 4, LENGTH = COUNT / GROUPS };
    ldr_policy_t *policy = lru->create(COUNT);

    (void)state;
    assert_non_null(policy);
    uint64_t allocs = ldr_alloc_count();
    for (uint32_t i = 0; i < COUNT; i++) {
        lru->add(policy, i, i < GROUPS ? LDR_NIL : i - GROUPS, i / GROUPS);
        lru->hold(policy, i);
    }
    assert_int_equal(lru->victim(policy), LDR_NIL);
    for (uint32_t i = 0; i < COUNT; i++) {
        lru->release(policy, i);
    }
    for (uint32_t i = 0; i < COUNT; i++) {
        lru->hold(policy, COUNT - 1 - i);
    }
    for (uint32_t i = 0; i < COUNT; i++) {
        lru->release(policy, COUNT - 1 - i);
    }
    assert_true(ldr_policy_lru_check(policy));
    uint32_t next[GROUPS];
    for (uint32_t g = 0; g < GROUPS; g++) {
        next[g] = LENGTH;
    }
    for (uint32_t i = 0; i < COUNT; i++) {
        uint32_t victim = lru->victim(policy);

        assert_true(victim < COUNT);
        assert_int_equal(victim / GROUPS, --next[victim % GROUPS]);
        lru->remove(policy, victim);
    }
    assert_int_equal(lru->victim(policy), LDR_NIL);
    assert_true(ldr_alloc_count() == allocs);
    lru->destroy(policy);
}

static void test_keep(void **state)
{
    ldr_policy_record_t r = {.written_s = 100, .used_s = 100, .now_s = 200};

    (void)state;
    assert_int_equal(lru->keep(&r), 0); /* never used */
    r.used_s = 150;
    uint32_t before = lru->keep(&r);
    assert_true(before > 0);
    r.used_s = 160;
    assert_true(lru->keep(&r) > before);
    r.used_s = 300; /* a clock that went back */
    assert_true(lru->keep(&r) > before);
    assert_true(lru->keep(&r) < UINT32_MAX);
    r.orphan = true;
    assert_int_equal(lru->keep(&r), 0);
    r.pinned = true;
    assert_int_equal(lru->keep(&r), UINT32_MAX);
    r = (ldr_policy_record_t){.used_s = 1, .now_s = UINT32_MAX};
    assert_int_equal(lru->keep(&r), 1);
}

static void test_no_memory(void **state)
{
    ldr_policy_t *policy;
    uint64_t nth = 0;

    (void)state;
    do {
        ldr_fault_arm(LDR_FAULT_alloc, ++nth, 1);
        policy = lru->create(1000);
        assert_true((ldr_fault_fired(LDR_FAULT_alloc) > 0) == (policy == NULL));
    } while (policy == NULL);
    ldr_fault_disarm_all();
    assert_true(nth > 1);
    lru->destroy(policy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model),
        cmocka_unit_test(test_leaf_first),
        cmocka_unit_test(test_touch_lifts_ancestors),
        cmocka_unit_test(test_reused_parent),
        cmocka_unit_test(test_misuse),
        cmocka_unit_test(test_million),
        cmocka_unit_test(test_keep),
        cmocka_unit_test(test_no_memory),
    };
    const char *text = getenv("LARDER_SEED");

    seed_base = text != NULL ? strtoull(text, NULL, 0) : 1;
    print_message("LARDER_SEED=%llu\n", (unsigned long long)seed_base);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
