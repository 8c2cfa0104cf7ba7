/* The small parts of base: status, log, bytes, clock, randomness, memory. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/io.h"
#include "base/log.h"
#include "base/mem.h"

/* ---- status ------------------------------------------------------------- */

static void test_status(void **s)
{
    static const struct {
        larder_status_t value;
        int number;
        const char *text;
    } all[] = {
#define X(name, number, text) {name, number, text},
        LARDER_STATUS_MAP(X)
#undef X
    };
    const size_t count = sizeof(all) / sizeof(all[0]);

    (void)s;
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(all[i].value, all[i].number);
        assert_string_equal(larder_status_text(all[i].value), all[i].text);
        for (size_t j = 0; j < i; j++) {
            assert_int_not_equal(all[i].number, all[j].number);
            assert_string_not_equal(all[i].text, all[j].text);
        }
    }
    assert_string_equal(larder_status_text((larder_status_t)-1000),
                        "unknown status");
    assert_int_equal(LARDER_OK, 0);
    assert_true(LARDER_E_INVALID < 0);
}

static void test_cause(void **s)
{
    (void)s;
    for (int i = 0; i < LARDER_CAUSE_COUNT; i++) {
        const char *text = larder_cause_text((larder_cause_t)i);
        assert_string_not_equal(text, "unknown cause");
        /* It is a label of a metric. */
        assert_int_equal(strspn(text, "abcdefghijklmnopqrstuvwxyz_"),
                         strlen(text));
        for (int j = 0; j < i; j++) {
            assert_string_not_equal(text, larder_cause_text((larder_cause_t)j));
        }
    }
    assert_string_equal(larder_cause_text(LARDER_CAUSE_COUNT), "unknown cause");
    assert_string_equal(larder_cause_text((larder_cause_t)-1), "unknown cause");
}

/* ---- log ---------------------------------------------------------------- */

typedef struct seen {
    int lines;
    larder_log_level_t level;
    char line[1024];
} seen_t;

static void sink(void *arg, larder_log_level_t level, const char *line)
{
    seen_t *seen = arg;

    seen->lines++;
    seen->level = level;
    snprintf(seen->line, sizeof(seen->line), "%s", line);
}

static void test_log(void **s)
{
    static const char x[2000] = {[0 ... 1998] = 'x'};
    seen_t seen = {0};
    const ldr_log_t log = {sink, &seen};

    (void)s;
    ldr_warn(&log, "disk %s: %d", "/a", 7);
    assert_int_equal(seen.lines, 1);
    assert_int_equal(seen.level, LARDER_LOG_WARN);
    assert_string_equal(seen.line, "disk /a: 7");
    ldr_info(&log, "%s", "quiet");
    assert_int_equal(seen.level, LARDER_LOG_INFO);
    ldr_error(&log, "%s", x); /* cut, not overrun */
    assert_int_equal(seen.lines, 3);
    assert_int_equal(seen.level, LARDER_LOG_ERROR);
    assert_in_range(strlen(seen.line), 100, 1000);
    ldr_info(NULL, "to nobody");
}

static void *fail_elsewhere(void *arg)
{
    assert_string_equal(ldr_fail_text(), "");
    ldr_fail(LARDER_E_IO, "other");
    assert_string_equal(ldr_fail_text(), "other");
    return arg;
}

static void test_fail(void **s)
{
    static const char x[2000] = {[0 ... 1998] = 'x'};
    pthread_t thread;

    (void)s;
    ldr_fail_clear();
    assert_string_equal(ldr_fail_text(), "");
    assert_int_equal(ldr_fail(LARDER_E_SIZE, "shard %u", 3), LARDER_E_SIZE);
    assert_string_equal(ldr_fail_text(), "shard 3");
    assert_int_equal(pthread_create(&thread, NULL, fail_elsewhere, NULL), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_string_equal(ldr_fail_text(), "shard 3");
    ldr_fail(LARDER_E_SIZE, "%s", x);
    assert_in_range(strlen(ldr_fail_text()), 100, 1998);
    ldr_fail_clear();
    assert_string_equal(ldr_fail_text(), "");
}

/* ---- bytes -------------------------------------------------------------- */

static void test_bytes(void **s)
{
    static const uint8_t want[] = {0x08, 0x07, 0x06, 0x05,
                                   0x04, 0x03, 0xf2, 0xf1};
    uint8_t p[9];

    (void)s;
    memset(p, 0xa5, sizeof(p));
    ldr_put64(p, 0xf1f2030405060708u);
    assert_memory_equal(p, want, 8);
    assert_int_equal(p[8], 0xa5);
    assert_int_equal(ldr_get64(p), 0xf1f2030405060708u);
    assert_int_equal(ldr_get32(p + 4), 0xf1f20304u);
    assert_int_equal(ldr_get16(p + 6), 0xf1f2u);
    ldr_put32(p + 1, 0xdeadbeefu); /* any place */
    assert_int_equal(ldr_get32(p + 1), 0xdeadbeefu);
    ldr_put16(p + 3, 0xcafeu);
    assert_int_equal(ldr_get16(p + 3), 0xcafeu);
    assert_int_equal(p[0], 0x08);

    assert_int_equal(ldr_min64(1, UINT64_MAX), 1);
    assert_int_equal(ldr_max64(1, UINT64_MAX), UINT64_MAX);
    assert_int_equal(ldr_div_up(0, 4096), 0);
    assert_int_equal(ldr_div_up(4096, 4096), 1);
    assert_int_equal(ldr_div_up(4097, 4096), 2);
    assert_int_equal(ldr_div_up(UINT64_MAX, 2), (uint64_t)1 << 63);
}

/* ---- clock and randomness ----------------------------------------------- */

static uint64_t fake_now(void *arg)
{
    return ++*(uint64_t *)arg;
}

static void test_clock(void **s)
{
    uint64_t last = ldr_now_ns(&ldr_clock_real), ticks = 41;
    const ldr_clock_t fake = {fake_now, fake_now, &ticks};

    (void)s;
    for (int i = 0; i < 10000; i++) {
        uint64_t now = ldr_now_ns(&ldr_clock_real);
        assert_true(now >= last);
        last = now;
    }
    assert_true(ldr_wall_s(&ldr_clock_real) > 1700000000u);
    assert_int_equal(ldr_now_ns(&fake), 42);
    assert_int_equal(ldr_wall_ms(&fake), 43);
}

static void test_rand(void **s)
{
    ldr_rand_t a, b;
    unsigned hits[10] = {0};

    (void)s;
    /* xoshiro256** seeded by splitmix64 of 0, as published. */
    ldr_rand_seed(&a, 0);
    assert_int_equal(ldr_rand_next(&a), 0x99ec5f36cb75f2b4u);
    assert_int_equal(ldr_rand_next(&a), 0xbf6e1f784956452au);
    assert_int_equal(ldr_rand_next(&a), 0x1a5f849d4933e6e0u);

    ldr_rand_seed(&a, 7);
    ldr_rand_seed(&b, 7);
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(ldr_rand_next(&a), ldr_rand_next(&b));
    }
    ldr_rand_seed(&b, 8);
    assert_int_not_equal(ldr_rand_next(&a), ldr_rand_next(&b));
    for (int i = 0; i < 10000; i++) {
        uint64_t v = ldr_rand_below(&a, 10);
        assert_true(v < 10);
        hits[v]++;
        assert_int_equal(ldr_rand_below(&a, 1), 0);
    }
    for (int i = 0; i < 10; i++) { /* 1000 expected; 13 deviations away */
        assert_in_range(hits[i], 600, 1400);
    }
    assert_int_not_equal(ldr_rand_entropy(), ldr_rand_entropy());
}

/* ---- memory ------------------------------------------------------------- */

static bool is_zero(const uint8_t *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        if (p[i] != 0) {
            return false;
        }
    }
    return true;
}

static void test_alloc(void **s)
{
    uint64_t count = ldr_alloc_count();

    (void)s;
    for (size_t bytes = 0; bytes < 9000; bytes += 113) {
        uint8_t *p = ldr_alloc(bytes), *q = ldr_alloc_blocks(bytes);
        size_t whole = ldr_div_up(bytes > 0 ? bytes : 1, LDR_BLOCK) * LDR_BLOCK;
        assert_non_null(p);
        assert_non_null(q);
        assert_true(is_zero(p, bytes));
        assert_true(is_zero(q, whole));
        assert_int_equal((uintptr_t)q % LDR_BLOCK, 0);
        memset(p, 0xee, bytes); /* so that a reuse must be zeroed */
        memset(q, 0xee, whole);
        ldr_free(p);
        ldr_free(q);
        count += 2;
    }
    assert_int_equal(ldr_alloc_count(), count);
    ldr_free(NULL);
    assert_null(ldr_alloc_blocks(SIZE_MAX));
}

static void test_alloc_fault(void **s)
{
    (void)s;
    if (!LDR_FAULTS) {
        skip();
    }
    ldr_fault_arm(LDR_FAULT_alloc, 2, 1);
    void *p = ldr_alloc(1);
    assert_non_null(p);
    assert_null(ldr_alloc(1));
    ldr_free(p);
    ldr_fault_arm(LDR_FAULT_alloc, 1, 2);
    assert_null(ldr_alloc_blocks(1));
    assert_null(ldr_reserve(4096));
    ldr_fault_disarm_all();
}

static void test_reserve(void **s)
{
    const size_t bytes = (size_t)1 << 36; /* more than there is memory */
    uint8_t *p = ldr_reserve(bytes);

    (void)s;
    assert_non_null(p);
    for (size_t at = 12345; at < bytes; at += bytes / 16) {
        assert_int_equal(p[at], 0);
        p[at] = 1;
        assert_int_equal(p[at], 1);
    }
    ldr_unreserve(p, bytes);
    ldr_unreserve(NULL, bytes);
}

static void test_extent(void **s)
{
    const size_t bytes = 4u << 20;
    ldr_extent_t e = {0};
    struct stat st;

    (void)s;
    assert_true(ldr_extent_create(&e, bytes));
    assert_int_equal(e.bytes, bytes);
    assert_true(ldr_extent_populate(&e, 0, bytes / 2));
    assert_true(ldr_extent_populate(&e, bytes / 2, bytes / 2));
    assert_true(is_zero(e.base, bytes));

    /* Another mapping of the same memory, as of another process. */
    uint8_t *other = mmap(NULL, bytes, PROT_READ, MAP_SHARED, e.fd, 0);
    assert_ptr_not_equal(other, MAP_FAILED);
    memcpy(e.base + bytes - 3, "abc", 3);
    assert_memory_equal(other + bytes - 3, "abc", 3);
    assert_int_not_equal(ftruncate(e.fd, 4096), 0); /* sealed */
    assert_memory_equal(other + bytes - 3, "abc", 3);

    /* Who has the file can neither seal it nor keep its memory. */
    assert_int_not_equal(fcntl(e.fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE), 0);
    assert_int_not_equal(fcntl(e.fd, F_ADD_SEALS, F_SEAL_WRITE), 0);
    assert_true(ldr_extent_empty(&e, 0, bytes));
    assert_int_equal(fstat(e.fd, &st), 0);
    assert_int_equal(st.st_blocks, 0);
    assert_true(is_zero(other, bytes));
    munmap(other, bytes);

    ldr_extent_destroy(&e);
    assert_null(e.base);
    ldr_extent_destroy(&e);
}

static void test_extent_fault(void **s)
{
    ldr_extent_t e = {0};

    (void)s;
    if (!LDR_FAULTS) {
        skip();
    }
    ldr_fault_arm(LDR_FAULT_extent_create, 1, 1);
    assert_false(ldr_extent_create(&e, 1u << 20));
    assert_null(e.base);
    assert_true(ldr_extent_create(&e, 1u << 20));
    ldr_fault_arm(LDR_FAULT_extent_populate, 1, 1);
    assert_false(ldr_extent_populate(&e, 0, 1u << 20));
    assert_true(ldr_extent_populate(&e, 0, 1u << 20));
    ldr_fault_disarm_all();
    ldr_extent_destroy(&e);
}

static void test_memory_limit(void **s)
{
    uint64_t limit = ldr_memory_limit();
    uint64_t all =
        (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);

    (void)s;
    assert_in_range(limit, 1u << 20, all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_status),
        cmocka_unit_test(test_cause),
        cmocka_unit_test(test_log),
        cmocka_unit_test(test_fail),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_clock),
        cmocka_unit_test(test_rand),
        cmocka_unit_test(test_alloc),
        cmocka_unit_test(test_alloc_fault),
        cmocka_unit_test(test_reserve),
        cmocka_unit_test(test_extent),
        cmocka_unit_test(test_extent_fault),
        cmocka_unit_test(test_memory_limit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
