/*
 * What a node tells the policy besides requests: reads and saves that somebody
 * has told of, or nobody; chunks that come without those before them; groups of
 * layers.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store/index.h"
#include "store/policy.h"
#include "support/policycheck.h"

enum { CAPACITY = 16, MINUTE = 600 };

static const ldr_policy_ops_t *const def = &ldr_policy_default;

static int setup(void **state)
{
    *state = def->create(CAPACITY);
    assert_non_null(*state);
    def->time(*state, 1000);
    return 0;
}

static int teardown(void **state)
{
    assert_true(ldr_policy_default_check(*state));
    def->destroy(*state);
    return 0;
}

/* Of the chunk of that number in a chain; chains from the same ten on begin
 * with the same two. */
static uint64_t print_of(uint32_t chain, uint32_t depth)
{
    uint64_t x = (depth < 2 ? chain / 10 * 10 : chain) * 1000u + depth + 1;

    x *= 0x9e3779b97f4a7c15u;
    return x ^ x >> 29;
}

static void ask(ldr_policy_t *p, uint32_t chain, uint32_t count, bool saves)
{
    uint64_t prints[32];
    ldr_policy_request_t r = {
        .prints = prints, .count = count, .chunk_tokens = 256, .saves = saves};

    for (uint32_t i = 0; i < count; i++) {
        prints[i] = print_of(chain, i);
    }
    def->request(p, &r);
}

static ldr_policy_stats_t stats_of(const ldr_policy_t *p)
{
    ldr_policy_stats_t s;

    ldr_policy_default_stats(p, &s);
    return s;
}

/* Nobody tells of requests: reads are all there is, and it is LRU. */
static void test_reads(void **state)
{
    ldr_policy_t *p = *state;

    for (uint32_t i = 0; i < 4; i++) {
        def->place(p, i, LDR_NIL, 0, print_of(10 * i, 0));
    }
    assert_int_equal(def->victim(p), 0);
    def->used(p, 0);
    assert_int_equal(def->victim(p), 1);
    def->used(p, 2); /* at once: not all that happens in a tick is alike */
    def->used(p, 1);
    assert_int_equal(def->victim(p), 3);
    def->time(p, 1000 + 5 * MINUTE);
    def->used(p, 3);
    assert_int_equal(def->victim(p), 0);
    def->remove(p, 0);
    assert_int_equal(def->victim(p), 2);
    def->used(p, 0); /* gone */
    def->used(p, LDR_NIL);
    assert_int_equal(stats_of(p).announced, 0);
}

/* Those before it become younger too: they are needed as well. */
static void test_reads_of_chains(void **state)
{
    ldr_policy_t *p = *state;

    /* 0-1, and below it 2 and 3: runs of their own. 4: another. */
    def->place(p, 0, LDR_NIL, 0, print_of(10, 0));
    def->place(p, 1, 0, 1, print_of(10, 1));
    ask(p, 11, 3, false);
    ask(p, 12, 3, false);
    def->place(p, 2, 1, 2, print_of(11, 2));
    def->place(p, 3, 1, 2, print_of(12, 2));
    def->time(p, 1000 + 2 * MINUTE);
    def->place(p, 4, LDR_NIL, 0, print_of(50, 0));
    def->time(p, 1000 + 4 * MINUTE);
    def->used(p, 2);
    assert_true(def->admit(p, LDR_NIL, 0, print_of(60, 0)));
    assert_int_equal(def->victim(p), 3);
    def->remove(p, 3);
    assert_int_equal(def->victim(p), 4);
    def->remove(p, 4);
    assert_int_equal(def->victim(p), 2);
}

/* Whoever reads what was told of is the one who told. */
static void test_reads_of_announced_requests(void **state)
{
    ldr_policy_t *p = *state;

    ask(p, 10, 1, false);
    def->place(p, 0, LDR_NIL, 0, print_of(10, 0));
    def->time(p, 1020);
    ask(p, 20, 1, false);
    def->place(p, 1, LDR_NIL, 0, print_of(20, 0));
    def->time(p, 1040);
    def->used(p, 0);
    assert_int_equal(def->victim(p), 0);
    def->time(p, 1040 + 2 * MINUTE); /* that is too long for a prefill */
    def->used(p, 0);
    assert_int_equal(def->victim(p), 1);
    assert_int_equal(stats_of(p).announced, 2);
}

static void test_saves(void **state)
{
    ldr_policy_t *p = *state;

    ask(p, 10, 8, false);
    def->time(p, 1020);
    ask(p, 10, 8, true);
    ask(p, 10, 9, true); /* with a chunk that was not asked for */
    ask(p, 10, 5, true); /* a part of it */
    assert_int_equal(stats_of(p).announced, 1);
    ask(p, 20, 8, true); /* never told of */
    assert_int_equal(stats_of(p).announced, 2);
    ask(p, 11, 8, true); /* begins alike, and is another */
    assert_int_equal(stats_of(p).announced, 3);
    def->time(p, 1020 + 2 * MINUTE);
    ask(p, 10, 8, true);
    assert_int_equal(stats_of(p).announced, 4);
}

/* Groups that need only the end of a chain, or several who save it together. */
static void test_orphans(void **state)
{
    ldr_policy_t *p = *state;

    ask(p, 10, 12, false);
    ask(p, 20, 12, false);
    ask(p, 11, 12, false); /* now 10 has a beginning and an end */
    uint64_t runs = stats_of(p).runs;
    def->place(p, 0, LDR_NIL, 11, print_of(10, 11));
    def->place(p, 1, LDR_NIL, 9, print_of(10, 9));
    def->place(p, 2, LDR_NIL, 1, print_of(10, 1));
    def->place(p, 3, LDR_NIL, 7, print_of(20, 7));
    def->place(p, 4, LDR_NIL, 6, print_of(11, 6));
    assert_int_equal(stats_of(p).runs, runs);
    assert_true(ldr_policy_default_check(p));
    assert_int_equal(def->victim(p), 0); /* the end of the oldest */
    def->place(p, 5, LDR_NIL, 5, print_of(30, 5));
    assert_int_equal(stats_of(p).runs, runs + 1); /* of that nothing is known */
}

/* When there is no room but its own: groups stay together, and what is behind a
 * chunk that is not kept is not kept either. */
static void test_groups(void **state)
{
    ldr_policy_t *p = *state;

    ask(p, 10, 12, false);
    for (uint32_t i = 0; i < 6; i++) {
        def->place(p, i, i > 0 ? i - 1 : LDR_NIL, i, print_of(10, i));
    }
    /* The other group of these is as good. */
    assert_true(def->admit(p, LDR_NIL, 0, print_of(10, 0)));
    def->place(p, 6, LDR_NIL, 0, print_of(10, 0));
    assert_true(def->admit(p, 6, 1, print_of(10, 1)));
    assert_true(def->admit(p, LDR_NIL, 5, print_of(10, 5)));
    /* More is not: only its own could go. */
    assert_false(def->admit(p, 5, 6, print_of(10, 6)));
    def->place(p, 7, LDR_NIL, 0,
               print_of(50, 0)); /* now something else could */
    assert_false(def->admit(p, 5, 6, print_of(10, 6)));
    assert_false(def->admit(p, LDR_NIL, 7, print_of(10, 7)));
    ask(p, 20, 3, false);
    assert_true(def->admit(p, LDR_NIL, 0, print_of(20, 0)));
    def->time(p, 1020);
    ask(p, 10, 12, false); /* and the next time */
    assert_true(def->admit(p, 5, 6, print_of(10, 6)));
    assert_int_equal(def->victim(p), 7);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_reads),
        TEST(test_reads_of_chains),
        TEST(test_reads_of_announced_requests),
        TEST(test_saves),
        TEST(test_orphans),
        TEST(test_groups),
    };

    return cmocka_run_group_tests_name("store/policy_reads", tests, NULL, NULL);
}
