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
#include "store/policy_learned.h"
#include "support/policycheck.h"

/* test_model runs LRU too, which is the same tree. */
static const ldr_policy_ops_t *def = &ldr_policy_default;
static uint64_t seed_base;

/* ---- anything at all, against a plain model ---- */

/* Chains are the ways from the root in a tree of that many chunks; a chunk may
 * have a slot for each of two groups. */
enum { CHUNKS = 400, SLOTS = 120, MODEL_OPS = 15000, CHAIN_MAX = 60 };

typedef struct model {
    ldr_policy_t *policy;
    ldr_rand_t rand;
    uint32_t parent[CHUNKS];
    uint32_t depth[CHUNKS];
    uint64_t print[CHUNKS];
    uint32_t chunk_of[SLOTS]; /* LDR_NIL: not present */
    bool held[SLOTS];
    uint32_t now_ds;
} model_t;

static uint32_t below(model_t *m, uint32_t bound)
{
    return (uint32_t)ldr_rand_below(&m->rand, bound);
}

static uint32_t slot_of(const model_t *m, uint32_t chunk)
{
    uint32_t slot = 0;

    while (slot < SLOTS && m->chunk_of[slot] != chunk) {
        slot++;
    }
    return slot < SLOTS ? slot : LDR_NIL;
}

/* The chain that ends with the chunk, as a request. */
static void request_of(model_t *m, uint32_t chunk, uint64_t *prints,
                       uint32_t *slots, ldr_policy_request_t *r)
{
    uint32_t count = m->depth[chunk] + 1;

    for (uint32_t i = count; i-- > 0; chunk = m->parent[chunk]) {
        prints[i] = m->print[chunk];
        slots[i] = slot_of(m, chunk);
    }
    *r = (ldr_policy_request_t){
        .prints = prints,
        .slots = below(m, 4) > 0 ? slots : NULL,
        .count = count,
        .tokens = below(m, 3) > 0 ? count * 16 - below(m, 16) : 0,
        .chunk_tokens = 16,
        .hint = below(m, 16),
        .saves = below(m, 5) == 0,
    };
}

static void model_remove(model_t *m, uint32_t slot)
{
    def->remove(m->policy, slot);
    m->chunk_of[slot] = LDR_NIL;
    m->held[slot] = false;
}

/* What victim() says must be there and free; LDR_NIL only if nothing is. */
static uint32_t model_victim(model_t *m)
{
    uint32_t slot = def->victim(m->policy);
    bool any = false;

    for (uint32_t i = 0; i < SLOTS; i++) {
        any = any || (m->chunk_of[i] != LDR_NIL && !m->held[i]);
    }
    if (slot == LDR_NIL) {
        assert_false(any);
    } else {
        assert_true(slot < SLOTS);
        assert_true(m->chunk_of[slot] != LDR_NIL);
        assert_false(m->held[slot]);
    }
    return slot;
}

static void model_place(model_t *m, uint32_t chunk)
{
    uint32_t slot = below(m, SLOTS);
    uint32_t above =
        m->depth[chunk] > 0 ? slot_of(m, m->parent[chunk]) : LDR_NIL;

    if (m->chunk_of[slot] != LDR_NIL) {
        slot = model_victim(m);
        if (slot == LDR_NIL) {
            return;
        }
        if (below(m, 8) > 0) { /* else place puts another in its stead */
            model_remove(m, slot);
        }
    }
    above = above == slot ? LDR_NIL : above;
    switch (below(m, 8)) {
    case 0: /* one that no request has named */
        def->place(m->policy, slot, above, m->depth[chunk],
                   ldr_rand_next(&m->rand));
        break;
    case 1: /* a wrong hint */
        def->place(m->policy, slot, below(m, SLOTS + 9), below(m, 9),
                   m->print[chunk]);
        break;
    default:
        def->place(m->policy, slot, above, m->depth[chunk], m->print[chunk]);
        break;
    }
    m->chunk_of[slot] = chunk;
    m->held[slot] = false;
}

/* As a store would: tell it, then bring in what is missing. */
static void model_request(model_t *m, uint32_t chunk)
{
    uint64_t prints[CHAIN_MAX];
    uint32_t slots[CHAIN_MAX], chain[CHAIN_MAX];
    ldr_policy_request_t r;

    request_of(m, chunk, prints, slots, &r);
    for (uint32_t i = r.count, at = chunk; i-- > 0; at = m->parent[at]) {
        chain[i] = at;
    }
    def->request(m->policy, &r);
    if (below(m, 10) == 0) {
        def->close(m->policy, &r);
    }
    for (uint32_t i = 0; i < r.count && below(m, 30) > 0; i++) {
        uint32_t above = i > 0 ? slot_of(m, chain[i - 1]) : LDR_NIL;

        if (slot_of(m, chain[i]) == LDR_NIL &&
            (!def->admit(m->policy, above, i, prints[i]))) {
            break;
        }
        if (slot_of(m, chain[i]) == LDR_NIL) {
            model_place(m, chain[i]);
        }
    }
}

static void model_op(model_t *m)
{
    uint32_t slot = below(m, SLOTS), chunk = below(m, CHUNKS);

    switch (below(m, 10)) {
    case 0:
    case 1:
    case 2:
        model_request(m, chunk);
        break;
    case 3:
        model_place(m, chunk);
        break;
    case 4:
        if (m->chunk_of[slot] != LDR_NIL) {
            m->held[slot] = true;
        }
        def->hold(m->policy, slot);
        break;
    case 5:
    case 6:
        m->held[slot] = false;
        def->release(m->policy, slot);
        break;
    case 7:
        model_remove(m, slot);
        break;
    case 8:
        def->used(m->policy, below(m, SLOTS + 5));
        break;
    default: /* sometimes back, sometimes far */
        m->now_ds += below(m, 50) == 0   ? 0u - below(m, 100)
                     : below(m, 50) == 0 ? below(m, 1000000)
                                         : below(m, 30);
        def->time(m->policy, m->now_ds);
        break;
    }
}

static void run_model(uint64_t seed)
{
    model_t *m = calloc(1, sizeof(*m));

    assert_non_null(m);
    ldr_rand_seed(&m->rand, seed);
    for (uint32_t i = 0; i < CHUNKS; i++) {
        /* Mostly chains; now and then a branch or a root. */
        uint32_t parent = below(m, 8) > 0 ? i - 1 : below(m, i + 1);

        m->print[i] = ldr_rand_next(&m->rand);
        m->parent[i] = parent;
        if (i > 0 && parent < i && below(m, 20) > 0 &&
            m->depth[parent] + 1 < CHAIN_MAX) {
            m->depth[i] = m->depth[parent] + 1;
        }
    }
    memset(m->chunk_of, 0xff, sizeof(m->chunk_of));
    m->policy = def->create(SLOTS);
    assert_non_null(m->policy);
    for (int op = 0; op < MODEL_OPS; op++) {
        model_op(m);
        model_victim(m);
        if (op % 16 == 0) {
            assert_true(ldr_policy_default_check(m->policy));
        }
        if (op % 3000 == 2999) { /* all of it can be taken apart */
            uint32_t slot;

            while ((slot = model_victim(m)) != LDR_NIL) {
                model_remove(m, slot);
            }
            assert_true(ldr_policy_default_check(m->policy));
        }
    }
    def->destroy(m->policy);
    free(m);
}

static void test_model(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 8; i++) {
        def = i % 4 == 3 ? &ldr_policy_lru : &ldr_policy_default;
        run_model(seed_base + i);
    }
    def = &ldr_policy_default;
}

static uint64_t print_of(uint32_t chunk)
{
    return (chunk + 1) * 0x9e3779b97f4a7c15u;
}

/* ---- requests ---- */

/* A request told again, by its id or soon, is one; probes are none. */
static void test_repeated(void **state)
{
    enum { CAPACITY = 64, STEPS = 4000 };
    ldr_policy_t *once = def->create(CAPACITY), *often = def->create(CAPACITY);
    ldr_rand_t rand;
    uint32_t used = 0;

    (void)state;
    ldr_rand_seed(&rand, seed_base);
    for (uint32_t i = 0; i < STEPS; i++) {
        uint32_t n = 1 + (uint32_t)ldr_rand_below(&rand, 6);
        uint32_t root = (uint32_t)ldr_rand_below(&rand, 30);
        uint64_t prints[8];
        ldr_policy_request_t r = {
            .id = i % 2 == 0 ? i + 1 : 0,
            .prints = prints,
            .count = n,
            .chunk_tokens = 512,
        };

        for (uint32_t k = 0; k < n; k++) {
            prints[k] = print_of(root * 8 + k);
        }
        def->time(once, i * 20);
        def->time(often, i * 20);
        def->request(once, &r);
        for (uint32_t k = 0; k < 3; k++) {
            def->request(often, &r);
            def->time(often, i * 20 + k);
        }
        def->time(once, i * 20 + 2);
        for (uint32_t k = 0; k < n;
             k++) { /* twins: what is there is not asked */
            uint32_t slot = used;

            if (used < CAPACITY) {
                used++;
            } else {
                assert_int_equal(def->admit(once, LDR_NIL, 0, prints[0]),
                                 def->admit(often, LDR_NIL, 0, prints[0]));
                slot = def->victim(once);
                assert_int_equal(slot, def->victim(often));
                def->remove(once, slot);
                def->remove(often, slot);
            }
            def->place(once, slot, LDR_NIL, 0, prints[0]);
            def->place(often, slot, LDR_NIL, 0, prints[0]);
        }
    }
    ldr_policy_stats_t a, b;
    ldr_policy_default_stats(once, &a);
    ldr_policy_default_stats(often, &b);
    assert_int_equal(a.requests, b.requests);
    assert_true(a.requests > STEPS / 2);
    assert_int_equal(a.hits, b.hits);
    assert_int_equal(a.hits_lru, b.hits_lru);
    assert_int_equal(a.runs, b.runs);
    assert_int_equal(a.ghosts, b.ghosts);
    assert_true(ldr_policy_default_check(often));
    def->destroy(once);
    def->destroy(often);
}

/* Ages are counted in requests: what time it is changes no order, whether it
 * stands, jumps or goes back. */
static void test_time(void **state)
{
    enum { CAPACITY = 64, STEPS = 4000 };
    ldr_policy_t *a = def->create(CAPACITY), *b = def->create(CAPACITY);
    ldr_rand_t rand;
    uint32_t used = 0;

    (void)state;
    ldr_rand_seed(&rand, seed_base);
    for (uint32_t i = 0; i < STEPS; i++) {
        uint64_t print = print_of((uint32_t)ldr_rand_below(&rand, 150));
        ldr_policy_request_t r = {.id = i + 1, .prints = &print, .count = 1};
        uint32_t slot = used;

        def->time(a, i);
        def->time(b, (uint32_t)ldr_rand_next(&rand));
        def->request(a, &r);
        def->request(b, &r);
        if (used < CAPACITY) {
            used++;
        } else {
            bool in = def->admit(a, LDR_NIL, 0, print);

            assert_int_equal(in, def->admit(b, LDR_NIL, 0, print));
            slot = def->victim(a);
            assert_int_equal(slot, def->victim(b));
            if (!in) {
                continue;
            }
        }
        def->place(a, slot, LDR_NIL, 0, print);
        def->place(b, slot, LDR_NIL, 0, print);
    }
    assert_true(ldr_policy_default_check(b));
    def->destroy(a);
    def->destroy(b);
}

/* Decoded chunks, that no request has named, are more of their chain. */
static void test_decoded(void **state)
{
    ldr_policy_t *policy = def->create(2000);
    const ldr_learned_t *d = (const ldr_learned_t *)policy;
    static uint64_t prints[1500];
    ldr_policy_request_t r = {.prints = prints, .count = 10};

    (void)state;
    for (uint32_t i = 0; i < 1500; i++) {
        prints[i] = print_of(i);
    }
    def->request(policy, &r);
    for (uint32_t i = 0; i < 1500; i++) {
        def->place(policy, i, i == 0 ? LDR_NIL : i - 1, i, prints[i]);
    }
    assert_true(ldr_policy_default_check(policy));
    assert_true(d->t.run_count < 1500 / LDR_RUN_CHUNKS + 8);
    def->time(policy, 1000);
    r.count = 1400; /* the next turn has most of them */
    uint32_t runs = d->t.run_count;
    def->request(policy, &r);
    assert_true(d->t.run_count <= runs + 1);
    assert_true(ldr_policy_default_check(policy));
    for (uint32_t i = 1500; i-- > 0;) { /* and goes from its end */
        assert_int_equal(def->victim(policy), i);
        def->remove(policy, i);
    }
    assert_int_equal(def->victim(policy), LDR_NIL);
    def->destroy(policy);
}

/* ---- bounds ---- */

/* More runs than there is room for: each slot is still known. */
static void test_no_runs_left(void **state)
{
    enum { CAPACITY = 50, CHAINS = 20000 };
    ldr_policy_t *policy = def->create(CAPACITY);
    ldr_learned_t *d = (ldr_learned_t *)policy;

    (void)state;
    for (uint32_t i = 0; i < CHAINS; i++) {
        uint64_t prints[3] = {print_of(0), print_of(i + 1),
                              print_of(i + CHAINS)};
        ldr_policy_request_t r = {
            .prints = prints, .count = 3, .tokens = 40, .chunk_tokens = 16};

        def->time(policy, i);
        def->request(policy, &r); /* nothing is placed: all are ghosts */
    }
    assert_true(d->t.run_count <= d->t.run_max);
    assert_true(ldr_policy_default_check(policy));
    d->t.run_max = d->t.run_top; /* and not one more */
    for (uint32_t i = 0; i < CAPACITY; i++) {
        def->place(policy, i, LDR_NIL, 5 + i, print_of(i * 3));
        def->hold(policy, i);
    }
    assert_int_equal(def->victim(policy), LDR_NIL);
    for (uint32_t i = 0; i < CAPACITY; i++) {
        def->release(policy, i);
    }
    for (uint32_t i = 0; i < CAPACITY; i++) {
        uint32_t slot = def->victim(policy);

        assert_true(slot < CAPACITY);
        def->remove(policy, slot);
    }
    assert_int_equal(def->victim(policy), LDR_NIL);
    assert_true(ldr_policy_default_check(policy));
    def->destroy(policy);
}

static void test_misuse(void **state)
{
    ldr_policy_t *policy = def->create(4);
    uint64_t prints[] = {1, 2};
    ldr_policy_request_t r = {.prints = prints};

    (void)state;
    def->request(policy, &r); /* of nothing */
    def->close(policy, &r);
    r.count = 2;
    def->close(policy, &r); /* never seen */
    def->place(policy, 4, LDR_NIL, 0, print_of(1));
    def->remove(policy, 4);
    def->hold(policy, LDR_NIL);
    def->release(policy, 2);
    def->remove(policy, 2);
    assert_int_equal(def->victim(policy), LDR_NIL);
    def->used(policy, 9);
    def->used(policy, LDR_NIL);
    def->place(policy, 0, 0, 0, print_of(2));
    def->place(policy, 1, 0, 0, print_of(3));
    def->place(policy, 0, 1, 0, print_of(4));
    def->place(policy, 2, 99, 7, print_of(5));
    def->place(policy, 3, 2, 6, print_of(6));
    assert_true(ldr_policy_default_check(policy));
    def->hold(policy, 1);
    def->hold(policy, 1);
    assert_int_not_equal(def->victim(policy), 1);
    def->remove(policy, 1); /* held or not */
    def->release(policy, 1);
    for (int left = 3; left > 0; left--) {
        assert_int_not_equal(def->victim(policy), 1);
        def->remove(policy, def->victim(policy));
    }
    assert_int_equal(def->victim(policy), LDR_NIL);
    def->destroy(policy);
    policy = def->create(0);
    assert_non_null(policy);
    def->request(policy, &r);
    def->place(policy, 0, LDR_NIL, 0, print_of(7));
    assert_int_equal(def->victim(policy), LDR_NIL);
    def->destroy(policy);
    def->destroy(NULL);
}

static void test_no_memory(void **state)
{
    ldr_policy_t *policy;
    uint64_t nth = 0;

    (void)state;
    do {
        ldr_fault_arm(LDR_FAULT_alloc, ++nth, 1);
        policy = def->create(1000);
        assert_true((ldr_fault_fired(LDR_FAULT_alloc) > 0) == (policy == NULL));
    } while (policy == NULL);
    ldr_fault_disarm_all();
    assert_true(nth > 1);
    def->destroy(policy);
}

/* Chains of which somebody holds one chunk each: the oldest one goes first,
 * from its end, and the one that was placed last stays. */
static void test_held_in_part(void **state)
{
    enum { CHAINS = 3, LONG = 4 };
    static const ldr_policy_ops_t *const all[] = {&ldr_policy_default,
                                                  &ldr_policy_lru};

    (void)state;
    for (unsigned p = 0; p < 2; p++) {
        ldr_policy_t *policy = all[p]->create(CHAINS * LONG);

        for (uint32_t i = 0; i < CHAINS * LONG; i++) {
            uint32_t depth = i % LONG;

            all[p]->place(policy, i, depth > 0 ? i - 1 : LDR_NIL, depth,
                          print_of(i + 1));
            if (depth == 1) {
                all[p]->hold(policy, i);
            }
        }
        for (uint32_t i = 0; i < CHAINS; i++) {
            for (uint32_t depth = LONG - 1; depth > 1; depth--) {
                assert_int_equal(all[p]->victim(policy), i * LONG + depth);
                all[p]->remove(policy, i * LONG + depth);
            }
            assert_int_equal(all[p]->victim(policy), i * LONG);
            all[p]->remove(policy, i * LONG);
        }
        assert_int_equal(all[p]->victim(policy), LDR_NIL);
        all[p]->destroy(policy);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model),
        cmocka_unit_test(test_repeated),
        cmocka_unit_test(test_time),
        cmocka_unit_test(test_decoded),
        cmocka_unit_test(test_no_runs_left),
        cmocka_unit_test(test_misuse),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_held_in_part),
    };
    const char *text = getenv("LARDER_SEED");

    seed_base = text != NULL ? strtoull(text, NULL, 0) : 1;
    print_message("LARDER_SEED=%llu\n", (unsigned long long)seed_base);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
