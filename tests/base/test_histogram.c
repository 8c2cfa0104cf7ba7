/* Latency counters: every time lands in the one bucket that holds it, and
 * percentiles are right to within a bucket. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/histogram.h"
#include "base/thread.h"

static void test_bounds(void **state)
{
    (void)state;
    for (unsigned i = 0; i + 2 < LDR_HISTOGRAM_BUCKETS; i++) {
        uint64_t low = ldr_histogram_bound_ns(i);
        uint64_t high = ldr_histogram_bound_ns(i + 1);

        assert_true(low < high);
        /* A quarter of its octave: no wider than a quarter of itself. */
        assert_true(low < 1000 || (high - low) * 4 <= low);
        assert_int_equal(ldr_histogram_bucket(low), i);
        assert_int_equal(ldr_histogram_bucket(low + 1), i + 1);
        assert_int_equal(ldr_histogram_bucket(high), i + 1);
    }
    assert_int_equal(ldr_histogram_bound_ns(LDR_HISTOGRAM_BUCKETS - 2),
                     (uint64_t)1000 << LDR_HISTOGRAM_OCTAVES);
    assert_true(ldr_histogram_bound_ns(LDR_HISTOGRAM_BUCKETS - 1) ==
                UINT64_MAX);
    assert_int_equal(ldr_histogram_bucket(0), 0);
    assert_int_equal(ldr_histogram_bucket(1), 0);
    assert_int_equal(ldr_histogram_bucket(UINT64_MAX),
                     LDR_HISTOGRAM_BUCKETS - 1);
}

/* Every power of two of microseconds is a bound: those are the buckets that
 * Prometheus sees. */
static void test_octaves(void **state)
{
    (void)state;
    for (unsigned k = 0; k <= LDR_HISTOGRAM_OCTAVES; k++) {
        uint64_t us = (uint64_t)1000 << k;

        assert_int_equal(ldr_histogram_bound_ns(ldr_histogram_bucket(us)), us);
    }
}

static void test_counts(void **state)
{
    ldr_histogram_t h = {0};

    (void)state;
    assert_int_equal(ldr_histogram_count(&h), 0);
    assert_int_equal(ldr_histogram_quantile_ns(&h, 0.5), 0);
    ldr_histogram_add(&h, 500);
    ldr_histogram_add(&h, 1000);
    ldr_histogram_add(&h, 1001);
    ldr_histogram_add(&h, UINT64_C(3600000000000));
    assert_int_equal(ldr_histogram_count(&h), 4);
    assert_int_equal(ldr_histogram_below(&h, 1000), 2);
    assert_int_equal(ldr_histogram_below(&h, 2000), 3);
    assert_int_equal(h.sum_ns, UINT64_C(3600000002501));
    /* Longer than the last bound: no more is said than that. */
    assert_int_equal(ldr_histogram_quantile_ns(&h, 1),
                     (uint64_t)1000 << LDR_HISTOGRAM_OCTAVES);
}

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

/* Against the exact percentiles of random times. */
static void test_quantiles(void **state)
{
    static const double shares[] = {0.01, 0.25, 0.5, 0.9, 0.99, 0.999};
    enum { N = 20000 };
    uint64_t *all = calloc(N, sizeof(*all));
    ldr_histogram_t h = {0};
    ldr_rand_t r;

    (void)state;
    ldr_rand_seed(&r, 7);
    for (int i = 0; i < N; i++) {
        all[i] = 1000 + ldr_rand_below(&r, UINT64_C(1) << (10 + i % 20));
        ldr_histogram_add(&h, all[i]);
    }
    qsort(all, N, sizeof(*all), compare);
    for (size_t k = 0; k < sizeof(shares) / sizeof(shares[0]); k++) {
        uint64_t exact = all[(size_t)(shares[k] * N)];
        uint64_t got = ldr_histogram_quantile_ns(&h, shares[k]);

        assert_in_range(got, exact * 3 / 4, exact * 5 / 4);
    }
    free(all);
}

static void test_since(void **state)
{
    ldr_histogram_t h = {0}, before, now, both = {0};

    (void)state;
    ldr_histogram_add(&h, 5000);
    ldr_histogram_read(&h, &before);
    ldr_histogram_add(&h, 700);
    ldr_histogram_add(&h, 90000);
    ldr_histogram_read(&h, &now);
    ldr_histogram_merge(&both, &now);
    ldr_histogram_since(&now, &before);
    assert_int_equal(ldr_histogram_count(&now), 2);
    assert_int_equal(now.sum_ns, 90700);
    assert_int_equal(ldr_histogram_below(&now, 1000), 1);
    assert_int_equal(ldr_histogram_count(&both), 3);
}

enum { ADDS = 50000 };

static void *adder(void *arg)
{
    for (int i = 0; i < ADDS; i++) {
        ldr_histogram_add(arg, (uint64_t)i * 1000);
    }
    return NULL;
}

static void test_threads(void **state)
{
    ldr_histogram_t h = {0}, now;
    pthread_t threads[4];

    (void)state;
    for (int i = 0; i < 4; i++) {
        assert_true(ldr_thread_start(&threads[i], "add", adder, &h));
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
    }
    ldr_histogram_read(&h, &now);
    assert_int_equal(ldr_histogram_count(&now), 4 * ADDS);
    assert_int_equal(now.sum_ns, UINT64_C(4000) * ADDS * (ADDS - 1) / 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bounds), cmocka_unit_test(test_octaves),
        cmocka_unit_test(test_counts), cmocka_unit_test(test_quantiles),
        cmocka_unit_test(test_since),  cmocka_unit_test(test_threads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
