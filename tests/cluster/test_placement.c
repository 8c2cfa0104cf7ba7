/*
 * Rendezvous hashing: shares by weight, and only these move. All of it is
 * drawn from numbers, so nothing here depends on luck.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/log.h"
#include "cluster/placement.h"

#define OWNERS 5u

static ldr_placement_t *make(const ldr_placed_t *members, uint32_t count,
                             uint32_t owners)
{
    ldr_placement_t *p = ldr_placement_create(members, count, owners);

    assert_non_null(p);
    return p;
}

static uint32_t owner(const ldr_placement_t *p, uint64_t run)
{
    uint32_t owners[LDR_OWNERS_MAX];

    assert_in_range(ldr_placement_owners(p, run, owners), 1, LDR_OWNERS_MAX);
    return owners[0];
}

static void test_few(void **state)
{
    ldr_placed_t m[] = {{7, 1}, {8, 1}, {9, 3}};
    uint32_t owners[LDR_OWNERS_MAX], again[LDR_OWNERS_MAX];
    ldr_placement_t *none = make(m, 0, 2), *one = make(m, 1, 2),
                    *all = make(m, 3, OWNERS);

    (void)state;
    assert_int_equal(ldr_placement_owners(none, 5, owners), 0);
    assert_int_equal(ldr_placement_owners(one, 5, owners), 1);
    assert_int_equal(owners[0], 0);
    for (uint64_t run = 0; run < 1000; run++) {
        assert_int_equal(ldr_placement_owners(all, run, owners), 3);
        assert_int_equal(1 << owners[0] | 1 << owners[1] | 1 << owners[2], 7);
        /* From the table now. */
        assert_int_equal(ldr_placement_owners(all, run, again), 3);
        assert_memory_equal(owners, again, 3 * sizeof(owners[0]));
    }
    ldr_placement_destroy(none);
    ldr_placement_destroy(one);
    ldr_placement_destroy(all);
    ldr_placement_destroy(NULL);
}

static void test_refused(void **state)
{
    ldr_placed_t weightless[] = {{1, 0}};
    ldr_placed_t twice[] = {{4, 1}, {3, 1}, {4, 2}};

    (void)state;
    assert_null(ldr_placement_create(weightless, 1, 1));
    assert_non_null(strstr(larder_last_error(), "weight"));
    assert_null(ldr_placement_create(twice, 3, 1));
    assert_non_null(strstr(larder_last_error(), "same id"));
    assert_null(ldr_placement_create(twice, 2, 0));
    assert_null(ldr_placement_create(twice, 2, LDR_OWNERS_MAX + 1));
    assert_null(ldr_placement_create(twice, LDR_MEMBERS_MAX + 1, 1));
}

/* The answer is that of a machine somewhere else: it must never change, or
 * clusters would lose what they have at an update. */
static void test_fixed(void **state)
{
    static const uint32_t want[] = {9, 9, 9, 5, 8, 9, 5, 8, 8, 7, 7, 9,
                                    7, 4, 8, 7, 7, 9, 7, 8, 2, 9, 9, 9};
    ldr_placed_t m[10];

    (void)state;
    for (uint32_t i = 0; i < 10; i++) {
        m[i] = (ldr_placed_t){i * 1000003u + 17, 1 + i * i};
    }
    ldr_placement_t *p = make(m, 10, 1);
    for (uint32_t run = 0; run < 24; run++) {
        assert_int_equal(owner(p, run), want[run]);
    }
    ldr_placement_destroy(p);
}

/* Within what so many runs allow: five standard deviations. */
static void assert_share(uint64_t got, double share, double runs)
{
    double slack = 5 * sqrt(runs * share * (1 - share)) + 1;

    if (fabs((double)got - runs * share) > slack) {
        fail_msg("%llu of %.0f, not %.1f within %.1f", (unsigned long long)got,
                 runs, runs * share, slack);
    }
}

static void test_weights(void **state)
{
    static const uint32_t weights[] = {1,  2,  3,  4,  5,  15,
                                       16, 17, 63, 64, 65, 200};
    enum { COUNT = sizeof(weights) / sizeof(weights[0]), RUNS = 200000 };
    uint64_t got[COUNT] = {0}, second[COUNT] = {0};
    uint32_t owners[LDR_OWNERS_MAX];
    ldr_placed_t m[COUNT];
    double sum = 0;

    (void)state;
    for (uint32_t i = 0; i < COUNT; i++) {
        m[i] = (ldr_placed_t){i, weights[i]};
        sum += weights[i];
    }
    ldr_placement_t *p = make(m, COUNT, 2);
    for (uint64_t run = 0; run < RUNS; run++) {
        assert_int_equal(ldr_placement_owners(p, run, owners), 2);
        got[owners[0]]++;
        second[owners[1]] += owners[0] == COUNT - 1;
    }
    for (uint32_t i = 0; i < COUNT; i++) {
        assert_share(got[i], weights[i] / sum, RUNS);
    }
    /* What the heaviest has, the others hold second by their weights. */
    for (uint32_t i = 0; i + 1 < COUNT; i++) {
        assert_share(second[i], weights[i] / (sum - 200),
                     (double)got[COUNT - 1]);
    }
    ldr_placement_destroy(p);
}

/* Weights mean the same whatever their unit. */
static void test_scale(void **state)
{
    for (uint32_t unit = 1; unit <= 30000; unit *= 7) {
        ldr_placed_t m[] = {{1, unit}, {2, unit}, {3, 2 * unit}};
        uint64_t got[3] = {0};
        ldr_placement_t *p = make(m, 3, 1);

        (void)state;
        for (uint64_t run = 0; run < 40000; run++) {
            got[owner(p, run)]++;
        }
        assert_share(got[0], 0.25, 40000);
        assert_share(got[1], 0.25, 40000);
        assert_share(got[2], 0.5, 40000);
        ldr_placement_destroy(p);
    }
}

/* The owners of a run by both, with one member left out of the larger, are the
 * same in the same order. Gives whether that one was its first owner. */
static bool same_but(const ldr_placement_t *larger,
                     const ldr_placement_t *smaller, uint32_t one, uint64_t run)
{
    uint32_t a[LDR_OWNERS_MAX], b[LDR_OWNERS_MAX];
    uint32_t n = ldr_placement_owners(larger, run, a);
    uint32_t m = ldr_placement_owners(smaller, run, b), at = 0;

    for (uint32_t i = 0; i < n && at < m; i++) {
        if (a[i] != one) {
            assert_int_equal(a[i], b[at]);
            at++;
        }
    }
    assert_int_equal(at, m);
    return a[0] == one;
}

/* Joining and leaving, seen from both sides. */
static void test_join(void **state)
{
    enum { COUNT = 200, RUNS = 20000 };
    ldr_placed_t m[COUNT + 1];
    ldr_rand_t r;

    (void)state;
    ldr_rand_seed(&r, 5);
    for (uint32_t i = 0; i <= COUNT; i++) {
        m[i].id = ldr_rand_next(&r);
        m[i].weight = 1 + (uint32_t)ldr_rand_below(&r, i % 3 == 0 ? 1000 : 8);
    }
    for (uint32_t count = 1; count <= COUNT; count = count * 3 + 1) {
        ldr_placement_t *less = make(m, count, OWNERS),
                        *more = make(m, count + 1, OWNERS + 1);
        uint64_t moved = 0;
        double all = 0;

        for (uint64_t run = 0; run < RUNS; run++) {
            moved += same_but(more, less, count, run);
        }
        for (uint32_t i = 0; i <= count; i++) {
            all += m[i].weight;
        }
        assert_share(moved, m[count].weight / all, RUNS);
        ldr_placement_destroy(less);
        ldr_placement_destroy(more);
    }
}

/* A larger weight takes from all others and gives nothing away. */
static void test_heavier(void **state)
{
    enum { COUNT = 50, RUNS = 20000 };
    ldr_placed_t m[COUNT];

    (void)state;
    for (uint32_t i = 0; i < COUNT; i++) {
        m[i] = (ldr_placed_t){i + 100, 10};
    }
    for (uint32_t weight = 11; weight < 100; weight += 22) {
        ldr_placement_t *before = make(m, COUNT, 1);
        m[3].weight = weight;
        ldr_placement_t *after = make(m, COUNT, 1);
        uint64_t moved = 0, had = 0;

        for (uint64_t run = 0; run < RUNS; run++) {
            uint32_t a = owner(before, run), b = owner(after, run);

            assert_true(a == b || b == 3);
            had += a == 3;
            moved += a != b;
        }
        assert_share(had + moved, weight / (490.0 + weight), RUNS);
        ldr_placement_destroy(before);
        ldr_placement_destroy(after);
    }
}

static void test_any_order(void **state)
{
    enum { COUNT = 30 };
    ldr_placed_t m[COUNT], turned[COUNT];

    (void)state;
    for (uint32_t i = 0; i < COUNT; i++) {
        m[i] = (ldr_placed_t){i * 77, 1 + i % 5};
        turned[COUNT - 1 - i] = m[i];
    }
    ldr_placement_t *p = make(m, COUNT, 1), *q = make(turned, COUNT, 1);
    for (uint64_t run = 0; run < 5000; run++) {
        assert_int_equal(owner(p, run), COUNT - 1 - owner(q, run));
    }
    ldr_placement_destroy(p);
    ldr_placement_destroy(q);
}

/* Ten thousand nodes: all have their part, and one that leaves takes only its
 * own. */
static void test_many(void **state)
{
    enum { COUNT = 10000, RUNS = 20000 };
    ldr_placed_t *m = calloc(COUNT, sizeof(*m));
    uint32_t *got = calloc(COUNT, sizeof(*got));
    uint32_t most = 0, least = UINT32_MAX;
    double square = 0;

    (void)state;
    assert_true(m != NULL && got != NULL);
    for (uint32_t i = 0; i < COUNT; i++) {
        m[i] = (ldr_placed_t){i, 64};
    }
    ldr_placement_t *all = make(m, COUNT, 1), *less = make(m, COUNT - 1, 1);
    for (uint64_t run = 0; run < RUNS; run++) {
        uint32_t a = owner(all, run), b = owner(less, run);

        got[a]++;
        assert_true(a == b || a == COUNT - 1);
    }
    for (uint32_t i = 0; i < COUNT; i++) {
        double off = got[i] - (double)RUNS / COUNT;

        square += off * off;
        most = got[i] > most ? got[i] : most;
        least = got[i] < least ? got[i] : least;
    }
    /* Two each, as if thrown by dice: a variance of two and a little, since
     * some runs are of one set. */
    assert_in_range((uint64_t)(100 * square / COUNT), 190, 225);
    assert_int_equal(least, 0);
    assert_in_range(most, 7, 14);
    ldr_placement_destroy(all);
    ldr_placement_destroy(less);
    free(m);
    free(got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_few),     cmocka_unit_test(test_refused),
        cmocka_unit_test(test_fixed),   cmocka_unit_test(test_weights),
        cmocka_unit_test(test_scale),   cmocka_unit_test(test_join),
        cmocka_unit_test(test_heavier), cmocka_unit_test(test_any_order),
        cmocka_unit_test(test_many),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
