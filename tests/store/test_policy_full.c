/*
 * The default policy with all of its runs in use, by requests alone: prompts
 * that leave one another after every chunk keep a run for each.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/clock.h"
#include "store/policy.h"
#include "store/policy_learned.h"
#include "support/policycheck.h"

#define COMB 1200u   /* chunks of the prompt that all leave */
#define CHAIN 10u    /* of those that come and go */
#define CHAINS 90000 /* at most, until one was asked for again */
#define AGAIN 1u

typedef struct crowd {
    ldr_policy_t *policy;
    ldr_rand_t rand;
    uint32_t now_s;
    uint64_t (*chains)[CHAIN];
} crowd_t;

static void ask(crowd_t *c, const uint64_t *prints, uint32_t count)
{
    ldr_policy_request_t r = {.prints = prints, .count = count};

    c->policy->ops->time(c->policy, c->now_s += 20);
    c->policy->ops->request(c->policy, &r);
}

static void fill(crowd_t *c, uint64_t *prints, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        prints[i] = ldr_rand_next(&c->rand);
    }
}

/* A ghost that would go next and is the whole of a chain: which chain it
 * is, or -1. */
static int next_to_go(const crowd_t *c, int known)
{
    const ldr_tree_t *t = &((const ldr_learned_t *)c->policy)->t;
    uint32_t run = t->lists[LDR_LIST_GHOSTS].oldest;

    while (run != LDR_NIL &&
           (run == LDR_RUN_STRAY || t->runs[run].child != LDR_NIL)) {
        run = t->runs[run].newer;
    }
    if (run == LDR_NIL || t->runs[run].length < 2 ||
        t->runs[run].parent != LDR_NIL) {
        return -1;
    }
    while (known >= 0 &&
           ldr_print_fold(c->chains[known][0]) != t->runs[run].first) {
        known--;
    }
    return known;
}

/* Who asks for a chain and leaves it halfway has its run split, for which
 * another one must go: not the one that is being split. */
static void test_split_when_full(void **state)
{
    crowd_t c = {.policy = ldr_policy_default.create(16), .now_s = 1};
    const ldr_tree_t *t = &((const ldr_learned_t *)c.policy)->t;
    uint64_t comb[COMB], tooth[COMB], chain[CHAIN];
    unsigned again = 0;

    (void)state;
    ldr_rand_seed(&c.rand, 1);
    c.chains = calloc(CHAINS, sizeof(*c.chains));
    assert_true(c.policy != NULL && c.chains != NULL);
    fill(&c, comb, COMB);
    ask(&c, comb, COMB);
    for (uint32_t i = 1; i < COMB - 1; i++) {
        memcpy(tooth, comb, sizeof(tooth));
        fill(&c, tooth + i, 1);
        ask(&c, tooth, i + 1);
    }
    for (int k = 0; k < CHAINS && again < AGAIN; k++) {
        fill(&c, c.chains[k], CHAIN);
        ask(&c, c.chains[k], CHAIN);
        bool full = t->run_free == LDR_NIL && t->run_top == t->run_max;
        int known = full ? next_to_go(&c, k) : -1;
        if (known >= 0) {
            memcpy(chain, c.chains[known], sizeof(chain));
            fill(&c, chain + CHAIN / 2, CHAIN / 2);
            ask(&c, chain, CHAIN);
            assert_true(ldr_policy_default_check(c.policy));
            again++;
        }
    }
    assert_int_equal(again, AGAIN); /* else this has shown nothing */
    c.policy->ops->destroy(c.policy);
    free(c.chains);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split_when_full),
    };

    return cmocka_run_group_tests_name("store/policy_full", tests, NULL, NULL);
}
