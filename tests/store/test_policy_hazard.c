#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "store/policy_hazard.h"

static uint64_t seed_base;

static ldr_hazard_t *hazard_new(void)
{
    ldr_hazard_t *h = calloc(1, sizeof(*h));

    assert_non_null(h);
    ldr_hazard_init(h);
    return h;
}

static const float *row(ldr_hazard_t *h, uint32_t class)
{
    ldr_hazard_need(h, class);
    return h->rows[class].worth;
}

static void saw(ldr_hazard_t *h, uint32_t class, uint32_t age, bool use)
{
    ldr_hazard_need(h, class);
    ldr_hazard_wait(h, class, 0, age, 1);
    if (use) {
        ldr_hazard_use(h, class, age, 1);
    }
}

/* Ages follow each other without gaps, and none is more than a quarter wider
 * than what came before it. */
static void test_ages(void **state)
{
    (void)state;
    assert_int_equal(ldr_age_bin(0), 0);
    for (uint32_t a = 0; a + 1 < LDR_AGES; a++) {
        uint32_t from = ldr_age_from(a), to = ldr_age_from(a + 1);

        assert_true(from < to);
        assert_int_equal(ldr_age_bin(from), a);
        assert_int_equal(ldr_age_bin(to - 1), a);
        assert_int_equal(ldr_age_bin(to), a + 1);
        assert_true(a == 0 || to * 4u <= from * 5u);
    }
    assert_int_equal(ldr_age_bin(UINT32_MAX), LDR_AGES - 1);
}

/* Who knows nothing is LRU: older is worth less, in all classes alike. */
static void test_nothing_seen(void **state)
{
    ldr_hazard_t *h = hazard_new();
    const float *first = row(h, ldr_class_session(0, 0, 0));
    const float *other = row(h, ldr_class_session(0, 3, 2));
    const float *over = row(h, LDR_CLASS_SUPERSEDED);

    (void)state;
    for (uint32_t a = 1; a < LDR_AGES; a++) {
        assert_true(first[a] < first[a - 1]);
        assert_true(first[a] > 0);
        assert_true(other[a] == first[a]);
        assert_true(over[a] < first[a]);
    }
    free(h);
}

static float width(uint32_t age)
{
    return (float)(ldr_age_from(age + 1) - ldr_age_from(age));
}

/* The most of all times to give up, one by one. */
static double index_of(const ldr_hazard_t *h, double scale, uint32_t from)
{
    double gain = 0, time = 0, left = 1, best = 0;

    for (uint32_t a = from; a < LDR_AGES; a++) {
        double x = (double)h->base[a] * scale * (double)width(a);

        gain += left * x / (1 + x);
        time += left * (double)width(a) / (1 + x);
        left /= 1 + x;
        best = gain / time > best ? gain / time : best;
    }
    return best;
}

static void test_worth_is_the_best_index(void **state)
{
    ldr_hazard_t *h = hazard_new();
    ldr_rand_t rand;

    (void)state;
    ldr_rand_seed(&rand, seed_base);
    for (uint32_t i = 0; i < 5000; i++) {
        uint32_t class = (uint32_t)ldr_rand_below(&rand, LDR_CLASSES);
        uint32_t age = (uint32_t)ldr_rand_below(&rand, 40) *
                       (uint32_t)ldr_rand_below(&rand, 400);

        saw(h, class, age, age > 500 && age < 2000);
    }
    ldr_hazard_rebuild(h, 0.9f);
    for (uint32_t c = 0; c < LDR_CLASSES; c++) {
        for (uint32_t a = 0; a < LDR_AGES; a++) {
            double want = index_of(h, (double)h->scale[c], a);
            double got = (double)row(h, c)[a];

            assert_true(got > want * 0.999 && got < want * 1.001);
        }
    }
    free(h);
}

/* Something that is used after a minute, and never before, is worth as much in
 * its first seconds as something that is used evenly; after that minute it is
 * worth less. */
static void test_hole(void **state)
{
    ldr_hazard_t *h = hazard_new();
    uint32_t class = ldr_class_session(0, 0, 0);

    (void)state;
    for (uint32_t i = 0; i < 2000; i++) {
        saw(h, class, i % 3 == 0 ? 20000 : 600, i % 3 != 0);
    }
    ldr_hazard_rebuild(h, 1);
    const float *worth = row(h, class);
    assert_true(worth[0] < worth[ldr_age_bin(400)]);
    assert_true(worth[0] > worth[ldr_age_bin(3000)] * 5);
    free(h);
}

/* Levels of a factor are told apart, and what is seen no more fades. So are
 * classes that are no sessions. */
static void test_factors(void **state)
{
    ldr_hazard_t *h = hazard_new();

    (void)state;
    for (uint32_t round = 0; round < 40; round++) {
        for (uint32_t i = 0; i < 20; i++) {
            saw(h, ldr_class_session(0, 3, 2), 1000, true);
            saw(h, ldr_class_session(0, 3, 4), 5000, false);
            saw(h, LDR_CLASS_SHARED, 1000, true);
            saw(h, LDR_CLASS_CLOSED, 5000, false);
        }
        ldr_hazard_rebuild(h, 0.95f);
    }
    assert_true(h->growth[2] > h->growth[4] * 4);
    /* Also in a turn that has not been seen. */
    assert_true(row(h, ldr_class_session(0, 0, 2))[0] >
                row(h, ldr_class_session(0, 0, 4))[0] * 2);
    assert_true(row(h, LDR_CLASS_SHARED)[0] > row(h, LDR_CLASS_CLOSED)[0] * 4);
    for (uint32_t round = 0; round < 400; round++) {
        ldr_hazard_rebuild(h, 0.95f);
    }
    assert_true(h->growth[2] < h->growth[4] * 1.1f);
    free(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ages),
        cmocka_unit_test(test_nothing_seen),
        cmocka_unit_test(test_worth_is_the_best_index),
        cmocka_unit_test(test_hole),
        cmocka_unit_test(test_factors),
    };
    const char *text = getenv("LARDER_SEED");

    seed_base = text != NULL ? strtoull(text, NULL, 0) : 1;
    print_message("LARDER_SEED=%llu\n", (unsigned long long)seed_base);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
