#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "store/policy_learn.h"

static uint64_t seed_base;

static ldr_learn_t *learn_new(void)
{
    ldr_learn_t *learn = calloc(1, sizeof(*learn));

    assert_non_null(learn);
    ldr_learn_init(learn);
    return learn;
}

/* Ages follow each other without gaps, and none is more than a quarter wider
 * than what came before it. */
static void test_ages(void **state)
{
    (void)state;
    assert_int_equal(ldr_learn_age(0), 0);
    for (uint32_t a = 0; a + 1 < LDR_AGES; a++) {
        uint32_t from = ldr_learn_from(a), to = ldr_learn_from(a + 1);

        assert_true(from < to);
        assert_int_equal(ldr_learn_age(from), a);
        assert_int_equal(ldr_learn_age(to - 1), a);
        assert_int_equal(ldr_learn_age(to), a + 1);
        assert_true(a == 0 || to * 4u <= from * 5u);
    }
    assert_int_equal(ldr_learn_age(UINT32_MAX), LDR_AGES - 1);
}

/* Who knows nothing is LRU: older is worth less, in all classes alike. */
static void test_nothing_seen(void **state)
{
    ldr_learn_t *learn = learn_new();

    (void)state;
    for (uint32_t a = 1; a < LDR_AGES; a++) {
        assert_true(ldr_learn_row(learn, 0)[a] <
                    ldr_learn_row(learn, 0)[a - 1]);
        assert_true(ldr_learn_row(learn, 0)[a] > 0);
        assert_true(ldr_learn_row(learn, ldr_learn_body(0, 3, 2, 1))[a] ==
                    ldr_learn_row(learn, 0)[a]);
        assert_true(ldr_learn_row(learn, LDR_CLASS_SUPERSEDED)[a] <
                    ldr_learn_row(learn, 0)[a]);
    }
    free(learn);
}

static float width(uint32_t age)
{
    return (float)(ldr_learn_from(age + 1) - ldr_learn_from(age));
}

/* The most of all times to give up, one by one. */
static double index_of(const ldr_learn_t *learn, double scale, uint32_t from)
{
    double gain = 0, time = 0, left = 1, best = 0;

    for (uint32_t a = from; a < LDR_AGES; a++) {
        double x = (double)learn->base[a] * scale * (double)width(a);

        gain += left * x / (1 + x);
        time += left * (double)width(a) / (1 + x);
        left /= 1 + x;
        best = gain / time > best ? gain / time : best;
    }
    return best;
}

static void test_worth_is_the_best_index(void **state)
{
    ldr_learn_t *learn = learn_new();
    ldr_rand_t rand;

    (void)state;
    ldr_rand_seed(&rand, seed_base);
    for (uint32_t i = 0; i < 5000; i++) {
        uint32_t class = ldr_learn_body(0, (uint32_t)ldr_rand_below(&rand, 8),
                                        (uint32_t)ldr_rand_below(&rand, 5),
                                        (uint32_t)ldr_rand_below(&rand, 3));
        uint32_t ds = (uint32_t)ldr_rand_below(&rand, 40) *
                      (uint32_t)ldr_rand_below(&rand, 400);

        ldr_learn_wait(learn, class, 0, ds, 1);
        if (ds > 500 && ds < 2000) {
            ldr_learn_use(learn, class, ds, 1);
        }
    }
    ldr_learn_rebuild(learn, 0.9f);
    for (uint32_t c = 0; c < LDR_TURNS * LDR_DELTAS * LDR_LENGTHS; c++) {
        uint32_t turn = c / (LDR_DELTAS * LDR_LENGTHS);
        uint32_t delta = c / LDR_LENGTHS % LDR_DELTAS;
        double scale = (double)learn->turn[turn] * (double)learn->delta[delta] *
                       (double)learn->length[c % LDR_LENGTHS] *
                       (double)learn->app[0];

        for (uint32_t a = 0; a < LDR_AGES; a++) {
            double want = index_of(learn, scale, a);
            double got = (double)ldr_learn_row(learn, c)[a];

            assert_true(got > want * 0.999 && got < want * 1.001);
        }
    }
    free(learn);
}

/* Something that is used after a minute, and never before, is worth as much in
 * its first seconds as something that is used evenly; after that minute it is
 * worth less. */
static void test_hole(void **state)
{
    ldr_learn_t *learn = learn_new();
    uint32_t class = ldr_learn_body(0, 0, 0, 0);

    (void)state;
    for (uint32_t i = 0; i < 2000; i++) {
        ldr_learn_wait(learn, class, 0, i % 3 == 0 ? 20000 : 600, 1);
        if (i % 3 != 0) {
            ldr_learn_use(learn, class, 600, 1);
        }
    }
    ldr_learn_rebuild(learn, 1);
    const float *worth = ldr_learn_row(learn, class);
    assert_true(worth[0] < worth[ldr_learn_age(400)]);
    assert_true(worth[0] > worth[ldr_learn_age(3000)] * 5);
    free(learn);
}

/* Levels of a factor are told apart, and what is seen no more fades. */
static void test_factors(void **state)
{
    ldr_learn_t *learn = learn_new();

    (void)state;
    for (uint32_t round = 0; round < 40; round++) {
        for (uint32_t i = 0; i < 20; i++) {
            uint32_t often = ldr_learn_body(0, 3, 2, 1);
            uint32_t never = ldr_learn_body(0, 3, 4, 1);

            ldr_learn_wait(learn, often, 0, 1000, 1);
            ldr_learn_use(learn, often, 1000, 1);
            ldr_learn_wait(learn, never, 0, 5000, 1);
        }
        ldr_learn_rebuild(learn, 0.95f);
    }
    assert_true(learn->delta[2] > learn->delta[4] * 4);
    /* Also in a turn that has not been seen. */
    assert_true(ldr_learn_row(learn, ldr_learn_body(0, 0, 2, 0))[0] >
                ldr_learn_row(learn, ldr_learn_body(0, 0, 4, 0))[0] * 2);
    for (uint32_t round = 0; round < 400; round++) {
        ldr_learn_rebuild(learn, 0.95f);
    }
    assert_true(learn->delta[2] < learn->delta[4] * 1.1f);
    free(learn);
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
