/*
 * Memory, extents, pages and threads that cannot be had: each request for one
 * fails in turn, once and from then on, while a node opens and during every
 * call. A call answers LARDER_E_NO_MEMORY or does without; nothing leaks, the
 * handle works on, and the directory opens as if nothing had been.
 */
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/fault.h"
#include "support/real.h"

#define BYTES 50000u
#define OPTIONS "dram=4M&ssd=16M&segment=1M&retry_ms=1&io_depth=2&io_threads=2"
#define WATCHDOG_S (REAL_SANITIZED ? 300u : 100u)
#define GROWTH_MAX_KIB (32u << 10) /* of address space, over all of a case */

enum { SAVED = 6, NTH_MAX = 500, CHAIN = 70 };

typedef struct fixture {
    char dir[256], url[512];
    uint8_t value[BYTES];
    larder_t *lar;
    larder_space_t *space;
} fixture_t;

/* ---- leaks ---- */

static unsigned files_open(void)
{
    unsigned count = 0;
    DIR *dir = opendir("/proc/self/fd");

    assert_non_null(dir);
    while (readdir(dir) != NULL) {
        count++;
    }
    closedir(dir);
    return count;
}

/* Reserved address space shows in no other tool. */
static uint64_t mapped_kib(void)
{
    uint64_t pages = 0;
    FILE *f = fopen("/proc/self/statm", "re");

    assert_non_null(f);
    assert_int_equal(fscanf(f, "%lu", &pages), 1);
    fclose(f);
    return pages * 4;
}

/* ---- steps ---- */

static void open_url(fixture_t *f, const char *io)
{
    snprintf(f->url, sizeof(f->url), "embed:%s?" OPTIONS "&io=%s", f->dir, io);
}

static void close_all(fixture_t *f)
{
    assert_int_equal(larder_close(&f->lar, 0), LARDER_OK);
    assert_null(f->lar);
    larder_space_close(&f->space);
}

static unsigned get_all(fixture_t *f)
{
    unsigned hits = 0;
    larder_item_t item;
    uint64_t generation;

    for (uint64_t id = 0; id < SAVED; id++) {
        larder_status_t st =
            real_run(f->space, LARDER_OP_GET, id, f->value, BYTES, &item);

        if (st == LARDER_OK) {
            assert_true(real_check(f->value, item.length, id, &generation));
            hits++;
        } else {
            assert_int_equal(st, LARDER_MISS);
        }
    }
    return hits;
}

/* Without a fault all is as it was. */
static void check_whole(fixture_t *f)
{
    assert_int_equal(real_open(f->url, &f->lar), LARDER_OK);
    assert_int_equal(real_space(f->lar, "oom", &f->space), LARDER_OK);
    assert_int_equal(get_all(f), SAVED);
    close_all(f);
}

static void fill_dir(fixture_t *f)
{
    assert_int_equal(real_open(f->url, &f->lar), LARDER_OK);
    assert_int_equal(real_space(f->lar, "oom", &f->space), LARDER_OK);
    for (uint64_t id = 0; id < SAVED; id++) {
        assert_int_equal(real_put(f->space, id, 1, f->value, BYTES), LARDER_OK);
    }
    assert_int_equal(larder_flush(f->lar, LARDER_TIER_SSD, 0), LARDER_OK);
    close_all(f);
}

/* ---- opening ---- */

/* A node that opened although something was refused: it works, with less. */
static void use_little(fixture_t *f)
{
    larder_status_t st = real_space(f->lar, "oom", &f->space);

    if (st == LARDER_E_NO_MEMORY) {
        return;
    }
    assert_int_equal(st, LARDER_OK);
    get_all(f);
    st = real_put(f->space, 1000, 1, f->value, BYTES);
    assert_true(st == LARDER_OK || st == LARDER_PRESENT || st == LARDER_E_FULL);
}

/* Gives whether the fault fired: if not, there are no more requests. */
static bool open_once(fixture_t *f, ldr_fault_t point, uint64_t nth,
                      uint64_t times)
{
    unsigned files = files_open();

    ldr_fault_arm(point, nth, times);
    larder_status_t st = real_open(f->url, &f->lar);
    if (st == LARDER_OK) {
        use_little(f);
    } else {
        assert_int_equal(st, LARDER_E_NO_MEMORY);
        assert_null(f->lar);
        assert_true(larder_last_error()[0] != '\0');
    }
    bool fired = ldr_fault_fired(point) > 0;
    ldr_fault_disarm_all();
    close_all(f);
    assert_int_equal(files_open(), files);
    check_whole(f);
    return fired;
}

static void open_all(fixture_t *f, const char *io, ldr_fault_t point)
{
    uint64_t before = mapped_kib();
    uint64_t nth[2] = {0, 0};

    for (uint64_t times = 0; times < 2; times++) {
        do {
            assert_true(++nth[times] < NTH_MAX);
        } while (open_once(f, point, nth[times], times));
    }
    printf("%s, %s: %llu requests\n", io, ldr_fault_name(point),
           (unsigned long long)nth[1] - 1);
    assert_true(nth[0] > 1 && nth[1] > 1);
    if (!REAL_SANITIZED) {
        assert_true(mapped_kib() < before + GROWTH_MAX_KIB);
    }
}

static void open_engine(fixture_t *f, const char *io)
{
    static const ldr_fault_t points[] = {
        LDR_FAULT_alloc, LDR_FAULT_extent_create, LDR_FAULT_extent_populate,
        LDR_FAULT_thread_create};

    alarm(WATCHDOG_S);
    real_dir_empty(f->dir);
    open_url(f, io);
    fill_dir(f);
    check_whole(f);
    for (unsigned i = 0; i < sizeof(points) / sizeof(points[0]); i++) {
        open_all(f, io, points[i]);
    }
    alarm(0);
}

static void test_open_plain(void **state)
{
    open_engine(*state, "plain");
}

static void test_open_auto(void **state)
{
    open_engine(*state, "auto");
}

static void test_open_uring(void **state)
{
    fixture_t *f = *state;

    real_dir_empty(f->dir);
    open_url(f, "uring");
    if (real_open(f->url, &f->lar) != LARDER_OK) {
        print_message("SKIPPED: no io_uring here: %s\n", larder_last_error());
        skip();
    }
    close_all(f);
    open_engine(f, "uring");
}

/* A disk that comes late needs memory as well: it stays off until there is. */
static void test_late(void **state)
{
    fixture_t *f = *state;
    uint64_t late = real_now_ms() + WATCHDOG_S * 500u;
    larder_stats_t stats;

    alarm(WATCHDOG_S);
    real_dir_empty(f->dir);
    open_url(f, "plain");
    fill_dir(f);
    for (uint64_t nth = 1, fired = 1; fired > 0; nth++) {
        ldr_fault_arm(LDR_FAULT_alloc, nth, 1);
        ldr_fault_arm(LDR_FAULT_io_open, 1, 1); /* its lock: it starts off */
        larder_status_t st = real_open(f->url, &f->lar);
        while (st == LARDER_OK) {
            assert_true(real_now_ms() < late);
            assert_true(real_stats(f->lar, &stats));
            if (stats.disk[0].on) {
                break;
            }
            assert_true(stats.disk[0].reason[0] != '\0');
            real_pause();
        }
        assert_true(st == LARDER_OK || st == LARDER_E_NO_MEMORY);
        fired = ldr_fault_fired(LDR_FAULT_alloc);
        ldr_fault_disarm_all();
        if (st == LARDER_OK) {
            assert_int_equal(real_space(f->lar, "oom", &f->space), LARDER_OK);
            assert_int_equal(get_all(f), SAVED);
            close_all(f);
        }
        assert_true(nth < NTH_MAX);
    }
    alarm(0);
}

/* ---- calls ---- */

static larder_status_t call_space(fixture_t *f)
{
    larder_space_t *space = NULL;
    larder_status_t st = real_space(f->lar, "another", &space);

    assert_true((st == LARDER_OK) == (space != NULL));
    larder_space_close(&space);
    return st;
}

static larder_status_t call_put(fixture_t *f)
{
    return real_put(f->space, 50, 1, f->value, BYTES);
}

static larder_status_t call_get(fixture_t *f)
{
    return get_all(f) == SAVED ? LARDER_OK : LARDER_E_CORRUPT;
}

/* The first few from disk: what was put since has pushed them out. */
static larder_status_t call_get_ssd(fixture_t *f)
{
    for (uint64_t id = 100; id < 200; id++) {
        larder_status_t st = real_put(f->space, id, 1, f->value, BYTES);

        if (st < 0) {
            return st;
        }
    }
    return call_get(f);
}

static larder_status_t call_exists(fixture_t *f)
{
    larder_item_t item;

    return real_run(f->space, LARDER_OP_EXISTS, 1, NULL, 0, &item);
}

static larder_status_t call_remove(fixture_t *f)
{
    larder_item_t item;

    return real_run(f->space, LARDER_OP_REMOVE, 50, NULL, 0, &item);
}

static larder_status_t call_match(fixture_t *f)
{
    larder_key_t key = real_key(0);
    larder_match_t match = {.struct_bytes = sizeof(match)};

    return larder_match(f->space, &key, 1, 0, &match);
}

static larder_status_t call_stage(fixture_t *f)
{
    larder_key_t keys[CHAIN];
    larder_lease_t *lease = NULL;
    larder_match_t match = {.struct_bytes = sizeof(match)};

    for (uint64_t i = 0; i < CHAIN; i++) {
        keys[i] = real_key(i % SAVED);
    }
    larder_status_t st =
        larder_stage(f->space, keys, CHAIN, 0, 0, &lease, &match);
    assert_true((st == LARDER_OK) == (lease != NULL));
    larder_release(&lease);
    return st;
}

static larder_status_t call_submit(fixture_t *f)
{
    larder_key_t key = real_key(1);
    struct iovec iov = {f->value, BYTES};
    larder_item_t item = {.key = &key, .iov = &iov, .iov_count = 1};
    larder_ticket_t ticket;
    larder_completion_t done;
    size_t count = 0;
    larder_status_t st =
        larder_submit(f->space, LARDER_OP_GET, &item, 1, NULL, &ticket);

    if (st != LARDER_OK) {
        return st;
    }
    assert_int_equal(larder_drain(f->lar, &done, 1, LARDER_FOREVER, &count),
                     LARDER_OK);
    assert_int_equal(count, 1);
    return done.status != LARDER_OK ? done.status : item.status;
}

static larder_status_t call_flush(fixture_t *f)
{
    return larder_flush(f->lar, LARDER_TIER_SSD, 0);
}

static larder_status_t call_reset(fixture_t *f)
{
    larder_space_t *space = NULL;
    larder_status_t st = real_space(f->lar, "another", &space);

    if (st == LARDER_OK) {
        st = larder_space_reset(space, 0);
        larder_space_close(&space);
    }
    return st;
}

static larder_status_t call_figures(fixture_t *f)
{
    larder_stats_t stats;
    size_t length;

    return real_stats(f->lar, &stats)
               ? larder_metrics(f->lar, (char *)f->value, BYTES, &length)
               : LARDER_E_INVALID;
}

static larder_status_t call_chain(fixture_t *f)
{
    uint32_t tokens[600] = {1, 2, 3};
    larder_key_t keys[2];
    size_t count;

    return larder_chain(f->space, tokens, 600, NULL, keys, 2, &count);
}

static const struct {
    const char *name;
    larder_status_t (*call)(fixture_t *f);
    bool asks; /* it asks for memory: the fault has to fire */
} calls[] = {
    {"space_open", call_space, true}, {"put", call_put, false},
    {"get", call_get, false},         {"get from ssd", call_get_ssd, false},
    {"exists", call_exists, false},   {"remove", call_remove, false},
    {"match", call_match, false},     {"stage", call_stage, true},
    {"submit", call_submit, false},   {"flush", call_flush, false},
    {"reset", call_reset, true},      {"figures", call_figures, false},
    {"chain", call_chain, false},
};

static void run_call(fixture_t *f, unsigned i, uint64_t times)
{
    uint64_t nth = 0, fired;

    do {
        ldr_fault_arm(LDR_FAULT_alloc, ++nth, times);
        larder_status_t st = calls[i].call(f);
        fired = ldr_fault_fired(LDR_FAULT_alloc);
        ldr_fault_disarm_all();
        if (st < 0 && (st != LARDER_E_NO_MEMORY || fired == 0)) {
            fail_msg("%s: %s", calls[i].name, larder_status_text(st));
        }
        st = calls[i].call(f);
        if (st < 0) {
            fail_msg("%s, after it: %s", calls[i].name, larder_status_text(st));
        }
        assert_true(nth < NTH_MAX);
    } while (fired > 0);
    if (calls[i].asks && times == 1 && nth == 1) {
        fail_msg("%s asked for no memory", calls[i].name);
    }
}

static void test_calls(void **state)
{
    fixture_t *f = *state;

    alarm(WATCHDOG_S);
    real_dir_empty(f->dir);
    open_url(f, "auto");
    fill_dir(f);
    for (unsigned i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        for (uint64_t times = 2; times-- > 0;) {
            assert_int_equal(real_open(f->url, &f->lar), LARDER_OK);
            assert_int_equal(real_space(f->lar, "oom", &f->space), LARDER_OK);
            run_call(f, i, times);
            assert_int_equal(get_all(f), SAVED);
            close_all(f);
        }
    }
    check_whole(f);
    alarm(0);
}

static int setup(void **state)
{
    fixture_t *f = calloc(1, sizeof(*f));

    /* One heap: address space then grows by leaks alone. */
    mallopt(M_ARENA_MAX, 1);
    if (f == NULL || !real_dir_make(f->dir, sizeof(f->dir), "oom")) {
        return -1;
    }
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture_t *f = *state;

    ldr_fault_disarm_all();
    real_dir_remove(f->dir);
    free(f);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open_plain), cmocka_unit_test(test_open_auto),
        cmocka_unit_test(test_open_uring), cmocka_unit_test(test_late),
        cmocka_unit_test(test_calls),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
