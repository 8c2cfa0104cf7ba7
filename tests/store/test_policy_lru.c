/* LRU is the tree of the policy that learns, ranked by age alone: what is its
 * own is tested here, the rest by test_policy_learned.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/mem.h"
#include "store/index.h"
#include "store/policy.h"
#include "support/policycheck.h"

static const ldr_policy_ops_t *const lru = &ldr_policy_lru;
static uint64_t seed_base;

static uint64_t print_of(uint32_t chunk)
{
    return (chunk + 1) * 0x9e3779b97f4a7c15u;
}

/*
 * The model: chains are the ways from the root in a tree of chunks, and the
 * order is a plain vector, most recent first. A request moves all its chunks to
 * the front, the first of the chain ahead.
 */
enum { CHUNKS = 600, SLOTS = 200, REQUESTS = 4000, CHAIN_MAX = 40 };

typedef struct model {
    ldr_policy_t *policy;
    ldr_rand_t rand;
    uint32_t parent[CHUNKS], depth[CHUNKS];
    uint32_t slot_of[CHUNKS]; /* LDR_NIL: not resident */
    uint32_t chunk_of[SLOTS];
    uint32_t order[SLOTS + 1], count; /* chunks */
} model_t;

static void model_front(model_t *m, uint32_t chunk)
{
    uint32_t at = 0;

    while (at < m->count && m->order[at] != chunk) {
        at++;
    }
    m->count += at == m->count;
    memmove(&m->order[1], &m->order[0], at * sizeof(m->order[0]));
    m->order[0] = chunk;
}

/* A slot for one more; LDR_NIL: only this request's own could go for it. */
static uint32_t model_slot(model_t *m, uint32_t chain_first, uint32_t depth)
{
    if (m->count < SLOTS) {
        return m->count;
    }
    uint32_t oldest = m->order[m->count - 1];
    assert_true(lru->admit(m->policy, chain_first, depth, 0));
    uint32_t slot = lru->victim(m->policy);
    assert_int_equal(m->chunk_of[slot], oldest);
    lru->remove(m->policy, slot);
    m->slot_of[oldest] = LDR_NIL;
    m->count--;
    return slot;
}

static void model_request(model_t *m, uint32_t chunk, uint64_t id)
{
    uint32_t count = m->depth[chunk] + 1, chain[CHAIN_MAX];
    uint64_t prints[CHAIN_MAX];
    ldr_policy_request_t r = {.id = id, .prints = prints, .count = count};

    for (uint32_t i = count; i-- > 0; chunk = m->parent[chunk]) {
        chain[i] = chunk;
        prints[i] = print_of(chunk);
    }
    lru->request(m->policy, &r);
    for (uint32_t i = count; i-- > 0;) { /* what is here is used */
        if (m->slot_of[chain[i]] != LDR_NIL) {
            model_front(m, chain[i]);
        }
    }
    for (uint32_t i = 0; i < count; i++) { /* and what is not is saved */
        uint32_t above = i > 0 ? m->slot_of[chain[i - 1]] : LDR_NIL;

        if (m->slot_of[chain[i]] == LDR_NIL) {
            uint32_t slot = model_slot(m, above, i);

            lru->place(m->policy, slot, above, i, prints[i]);
            m->slot_of[chain[i]] = slot;
            m->chunk_of[slot] = chain[i];
            model_front(m, chain[i]);
        }
    }
    for (uint32_t i = count; i-- > 0;) {
        model_front(m, chain[i]);
    }
    assert_int_equal(m->chunk_of[lru->victim(m->policy)],
                     m->order[m->count - 1]);
}

static void run_model(uint64_t seed)
{
    model_t *m = calloc(1, sizeof(*m));

    assert_non_null(m);
    ldr_rand_seed(&m->rand, seed);
    memset(m->slot_of, 0xff, sizeof(m->slot_of));
    for (uint32_t i = 1; i < CHUNKS; i++) {
        /* Mostly chains; now and then a branch or a root. */
        uint64_t dice = ldr_rand_below(&m->rand, 16);
        uint32_t parent =
            dice > 2 ? i - 1 : (uint32_t)ldr_rand_below(&m->rand, i);

        m->parent[i] = parent;
        if (dice > 0 && m->depth[parent] + 1 < CHAIN_MAX) {
            m->depth[i] = m->depth[parent] + 1;
        }
    }
    m->policy = lru->create(SLOTS);
    assert_non_null(m->policy);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        model_request(m, (uint32_t)ldr_rand_below(&m->rand, CHUNKS), i + 1);
        if (i % 64 == 0) {
            assert_true(ldr_policy_default_check(m->policy));
        }
    }
    while (m->count > 0) { /* the whole order, by taking it apart */
        uint32_t slot = lru->victim(m->policy);

        assert_int_equal(m->chunk_of[slot], m->order[--m->count]);
        lru->remove(m->policy, slot);
    }
    assert_int_equal(lru->victim(m->policy), LDR_NIL);
    lru->destroy(m->policy);
    free(m);
}

static void test_model(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 4; i++) {
        run_model(seed_base + i);
    }
}

/* A read that no request has announced takes along the chunks before it. */
static void test_read_lifts_ancestors(void **state)
{
    static const uint32_t expected[] = {4, 3, 2, 1, 0};
    ldr_policy_t *policy = lru->create(10);

    (void)state;
    for (uint32_t i = 0; i < 5; i++) { /* two chains: 0 1 2 and 3 4 */
        lru->place(policy, i, i == 0 || i == 3 ? LDR_NIL : i - 1, i % 3,
                   print_of(i));
    }
    assert_int_equal(lru->victim(policy), 2);
    lru->time(policy, 1000);
    lru->used(policy, 2);
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(lru->victim(policy), expected[i]);
        lru->remove(policy, expected[i]);
    }
    assert_int_equal(lru->victim(policy), LDR_NIL);
    lru->destroy(policy);
}

/* Saves, leases and evictions of long chains, several at once, as clients
 * announce them: no more than so many steps, and nothing allocates. */
static void test_many(void **state)
{
    enum { AT_ONCE = 4, LENGTH = 1000, ROUNDS = 50 };
    enum { COUNT = AT_ONCE * LENGTH * ROUNDS };
    ldr_policy_t *policy = lru->create(COUNT);
    static uint64_t prints[LENGTH];
    uint32_t next[AT_ONCE * ROUNDS];

    (void)state;
    assert_non_null(policy);
    uint64_t allocs = ldr_alloc_count();
    for (uint32_t i = 0; i < COUNT; i++) {
        uint32_t chain = i / (AT_ONCE * LENGTH) * AT_ONCE + i % AT_ONCE;
        uint32_t depth = i / AT_ONCE % LENGTH;

        if (depth == 0) {
            ldr_policy_request_t r = {
                .id = chain + 1, .prints = prints, .count = LENGTH};

            for (uint32_t k = 0; k < LENGTH; k++) {
                prints[k] = print_of(chain * LENGTH + k);
            }
            lru->request(policy, &r);
        }
        lru->place(policy, i, depth == 0 ? LDR_NIL : i - AT_ONCE, depth,
                   print_of(chain * LENGTH + depth));
        lru->hold(policy, i);
    }
    assert_int_equal(lru->victim(policy), LDR_NIL);
    for (uint32_t i = 0; i < COUNT; i++) {
        lru->release(policy, i);
    }
    assert_true(ldr_policy_default_check(policy));
    for (uint32_t i = 0; i < AT_ONCE * ROUNDS; i++) {
        next[i] = LENGTH;
    }
    for (uint32_t i = 0; i < COUNT; i++) { /* each from its end */
        uint32_t victim = lru->victim(policy);

        assert_true(victim < COUNT);
        assert_int_equal(
            victim / AT_ONCE % LENGTH,
            --next[victim / (AT_ONCE * LENGTH) * AT_ONCE + victim % AT_ONCE]);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model),
        cmocka_unit_test(test_read_lifts_ancestors),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_keep),
    };
    const char *text = getenv("LARDER_SEED");

    seed_base = text != NULL ? strtoull(text, NULL, 0) : 1;
    print_message("LARDER_SEED=%llu\n", (unsigned long long)seed_base);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
