/* Fault points: when they fire, and how a text arms them. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/fault.h"

enum { PASSES = 20, THREADS = 4, THREAD_PASSES = 5000 };

static int disarm(void **s)
{
    (void)s;
    ldr_fault_disarm_all();
    return 0;
}

/* The first and the number of the passes, of PASSES, that fire. */
static void walk(ldr_fault_t point, unsigned *first_p, unsigned *count_p)
{
    *first_p = *count_p = 0;
    for (unsigned pass = 1; pass <= PASSES; pass++) {
        if (ldr_fault_hit(point)) {
            *first_p = *first_p == 0 ? pass : *first_p;
            ++*count_p;
        }
    }
}

static void test_disarmed(void **s)
{
    unsigned first, count;

    (void)s;
    for (int i = 0; i < LDR_FAULT_COUNT; i++) {
        walk((ldr_fault_t)i, &first, &count);
        assert_int_equal(count, 0);
    }
}

static void test_nth(void **s)
{
    unsigned first, count;

    (void)s;
    for (unsigned nth = 1; nth <= PASSES; nth++) {
        for (unsigned times = 0; times <= PASSES; times++) {
            unsigned left = PASSES - nth + 1;
            unsigned want = times == 0 || times > left ? left : times;
            ldr_fault_arm(LDR_FAULT_io_read, nth, times);
            walk(LDR_FAULT_io_read, &first, &count);
            assert_int_equal(first, nth);
            assert_int_equal(count, want);
            assert_int_equal(ldr_fault_passes(LDR_FAULT_io_read), PASSES);
            assert_int_equal(ldr_fault_fired(LDR_FAULT_io_read), want);
        }
    }
    /* Others are not touched; disarming ends it, and is no pass. */
    ldr_fault_arm(LDR_FAULT_io_read, 1, 0);
    assert_false(ldr_fault_hit(LDR_FAULT_io_write));
    assert_true(ldr_fault_hit(LDR_FAULT_io_read));
    ldr_fault_disarm_all();
    assert_false(ldr_fault_hit(LDR_FAULT_io_read));
    assert_int_equal(ldr_fault_fired(LDR_FAULT_io_read), 1);
    assert_int_equal(ldr_fault_passes(LDR_FAULT_io_read), 1);
}

static void test_macro(void **s)
{
    (void)s;
    ldr_fault_arm(LDR_FAULT_alloc, 1, 1);
    assert_int_equal(LDR_FAULT(alloc), LDR_FAULTS != 0);
    assert_false(LDR_FAULT(alloc));
}

static void test_names(void **s)
{
    (void)s;
    for (int i = 0; i < LDR_FAULT_COUNT; i++) {
        const char *name = ldr_fault_name((ldr_fault_t)i);
        unsigned first, count;
        ldr_fault_disarm_all();
        assert_true(ldr_fault_parse(name)); /* once, at the next pass */
        walk((ldr_fault_t)i, &first, &count);
        assert_int_equal(first, 1);
        assert_int_equal(count, 1);
    }
    assert_string_equal(ldr_fault_name(LDR_FAULT_io_sync), "io_sync");
    assert_string_equal(ldr_fault_name(LDR_FAULT_COUNT), "?");
}

static void test_parse(void **s)
{
    static const char *const bad[] = {
        "alloc:",     "alloc:1",     "alloc:1:",    "alloc:0:1",
        "alloc:1:1x", "alloc:1:1:1", "nothing:1:1", "allo:1:1",
        "allocs:1:1", "alloc:1:1,,", ",",           "alloc:1:1,nothing:1:1",
        "alloc:1:1 ", " alloc:1:1",  "alloc:x:1",   "alloc:1:1;io_read:1:1",
    };
    unsigned first, count;

    (void)s;
    assert_true(ldr_fault_parse("io_read:3:2,io_write:5:0,io_sync"));
    walk(LDR_FAULT_io_read, &first, &count);
    assert_int_equal(first, 3);
    assert_int_equal(count, 2);
    walk(LDR_FAULT_io_write, &first, &count);
    assert_int_equal(first, 5);
    assert_int_equal(count, PASSES - 4);
    walk(LDR_FAULT_io_sync, &first, &count);
    assert_int_equal(first, 1);
    assert_int_equal(count, 1);

    ldr_fault_disarm_all();
    assert_true(ldr_fault_parse(""));
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        if (ldr_fault_parse(bad[i])) {
            fail_msg("'%s' was accepted", bad[i]);
        }
        for (int point = 0; point < LDR_FAULT_COUNT; point++) {
            assert_false(ldr_fault_hit((ldr_fault_t)point));
        }
    }
}

static void *passer(void *arg)
{
    uintptr_t fired = 0;

    (void)arg;
    for (int i = 0; i < THREAD_PASSES; i++) {
        fired += ldr_fault_hit(LDR_FAULT_io_intr);
    }
    return (void *)fired;
}

/* Passes of all threads count together, and none is counted twice. */
static void test_threads(void **s)
{
    pthread_t threads[THREADS];
    uintptr_t fired = 0;

    (void)s;
    ldr_fault_arm(LDR_FAULT_io_intr, THREAD_PASSES, 1000);
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, passer, NULL), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        void *result;
        assert_int_equal(pthread_join(threads[i], &result), 0);
        fired += (uintptr_t)result;
    }
    assert_int_equal(fired, 1000);
    assert_int_equal(ldr_fault_fired(LDR_FAULT_io_intr), 1000);
    assert_int_equal(ldr_fault_passes(LDR_FAULT_io_intr),
                     THREADS * THREAD_PASSES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_disarmed, disarm, disarm),
        cmocka_unit_test_setup_teardown(test_nth, disarm, disarm),
        cmocka_unit_test_setup_teardown(test_macro, disarm, disarm),
        cmocka_unit_test_setup_teardown(test_names, disarm, disarm),
        cmocka_unit_test_setup_teardown(test_parse, disarm, disarm),
        cmocka_unit_test_setup_teardown(test_threads, disarm, disarm),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
