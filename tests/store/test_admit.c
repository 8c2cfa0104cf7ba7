/* What may be written down: second use, and a budget of bytes a day. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "store/admit.h"

#define DAY_NS ((uint64_t)86400 * 1000000000u)
#define HOUR_NS (DAY_NS / 24)

static void test_always(void **state)
{
    ldr_admit_t a;

    (void)state;
    assert_true(ldr_admit_open(&a, 0));
    assert_true(ldr_admit_use(&a, 1));
    assert_true(ldr_admit_use(&a, 0));
    ldr_admit_close(&a);
}

static void test_second(void **state)
{
    ldr_admit_t a;
    unsigned forgotten = 0;

    (void)state;
    assert_true(ldr_admit_open(&a, 4096));
    for (uint64_t i = 0; i < 1000; i++) {
        assert_false(ldr_admit_use(&a, i));
    }
    for (uint64_t i = 0; i < 1000; i++) {
        forgotten += !ldr_admit_use(&a, i);
    }
    /* A set of 8 that got more than that of 1000 in 512 sets is rare. */
    assert_in_range(forgotten, 0, 10);
    assert_true(ldr_admit_use(&a, 7)); /* and the third time */
    ldr_admit_close(&a);
}

/* Prints differ in their low bits, in their high ones, or are all ones. */
static void test_prints(void **state)
{
    ldr_admit_t a;

    (void)state;
    assert_true(ldr_admit_open(&a, 4096));
    for (unsigned bit = 0; bit < 64; bit++) {
        assert_false(ldr_admit_use(&a, (uint64_t)1 << bit));
    }
    assert_false(ldr_admit_use(&a, UINT64_MAX));
    assert_false(ldr_admit_use(&a, 0));
    for (unsigned bit = 0; bit < 64; bit++) {
        assert_true(ldr_admit_use(&a, (uint64_t)1 << bit));
    }
    assert_true(ldr_admit_use(&a, UINT64_MAX));
    assert_true(ldr_admit_use(&a, 0));
    ldr_admit_close(&a);
}

/* Memory is bounded: what was used longest ago is forgotten, the rest known. */
static void test_forgets(void **state)
{
    ldr_admit_t a;
    unsigned known = 0;

    (void)state;
    assert_true(ldr_admit_open(&a, 1024));
    for (uint64_t i = 0; i < 100000; i++) {
        ldr_admit_use(&a, i);
    }
    for (uint64_t i = 0; i < 1000; i++) {
        assert_false(ldr_admit_use(&a, i));
    }
    ldr_admit_close(&a);
    assert_true(ldr_admit_open(&a, 1024));
    for (uint64_t i = 0; i < 100000; i++) {
        ldr_admit_use(&a, i);
    }
    for (uint64_t i = 100000 - 256; i < 100000; i++) {
        known += ldr_admit_use(&a, i);
    }
    assert_in_range(known, 245, 256);
    ldr_admit_close(&a);
}

static void test_remembered(void **state)
{
    (void)state;
    assert_int_equal(ldr_admit_remembered(0), 4096);
    assert_int_equal(ldr_admit_remembered((uint64_t)1 << 40), 1 << 23);
}

static void test_no_budget(void **state)
{
    ldr_budget_t b;

    (void)state;
    ldr_budget_open(&b, 0, 5);
    ldr_budget_spend(&b, 1e18);
    assert_true(ldr_budget_allows(&b, 5));
}

static void test_budget(void **state)
{
    ldr_budget_t b;
    uint64_t begin = 12345;

    (void)state;
    ldr_budget_open(&b, 24e6, begin); /* a million bytes an hour */
    assert_false(ldr_budget_allows(&b, begin));
    assert_true(ldr_budget_allows(&b, begin + HOUR_NS / 10));
    ldr_budget_spend(&b, 100000);
    assert_false(ldr_budget_allows(&b, begin + HOUR_NS / 10));
    /* A record larger than what is left is written, and paid for. */
    assert_true(ldr_budget_allows(&b, begin + HOUR_NS / 5));
    ldr_budget_spend(&b, 300000);
    assert_false(ldr_budget_allows(&b, begin + HOUR_NS / 5 * 2 - 1000));
    assert_true(ldr_budget_allows(&b, begin + HOUR_NS / 5 * 2 + 1000));
    /* A clock that goes back gives nothing and takes nothing. */
    assert_true(ldr_budget_allows(&b, begin));
}

/* No more than an hour's share is saved up, so that a day has at most 25
 * hours' of it, whatever the pace of those who write. */
static void test_burst(void **state)
{
    ldr_budget_t b;
    double written = 0;
    uint64_t now = 0;

    (void)state;
    ldr_budget_open(&b, 24e6, now);
    now += 10 * DAY_NS; /* idle */
    for (uint64_t end = now + DAY_NS; now < end; now += HOUR_NS / 3600) {
        for (unsigned i = 0; i < 1000 && ldr_budget_allows(&b, now); i++) {
            ldr_budget_spend(&b, 1000);
            written += 1000;
        }
    }
    assert_in_range((uint64_t)written, 24900000, 25002000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_always),     cmocka_unit_test(test_second),
        cmocka_unit_test(test_prints),     cmocka_unit_test(test_forgets),
        cmocka_unit_test(test_remembered), cmocka_unit_test(test_no_budget),
        cmocka_unit_test(test_budget),     cmocka_unit_test(test_burst),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
