/*
 * Every fault point, once and for ever, on the real engines.
 *
 * One workload runs over and over: on a new directory, and on one whose node
 * died, so that opening has to scan. A point fires at its nth pass, once or
 * from then on. Whatever fires: bytes are right or missing, every status is
 * one that the header promises, DRAM goes on serving, and once the fault is
 * over the disk comes back by itself and keeps what a flush vouched for.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/fault.h"
#include "support/real.h"

#define WATCHDOG_S (REAL_SANITIZED ? 240u : 60u) /* for one pass */
#define ON_AGAIN_MS 20000u

/* Of 4 MiB of DRAM: KEPT are all there at once, KEPT and MORE are not. */
#define OPTIONS                                                                \
    "dram=4M&ssd=48M&segment=2M&retry_ms=5&sync_ms=5&io_depth=4&io_threads=4"  \
    "&timeout_ms=120000" /* a busy machine is no failure */
enum { OLD = 12, KEPT = 20, MORE = 40, REMOVED = 4, RESET = 4 };
enum { OLD_AT = 100, KEPT_AT = 200, MORE_AT = 300, RESET_AT = 400, LAST_AT };
#define BYTES_MIN 40000u
#define BYTES_MAX 130000u

typedef struct fixture {
    char dir[256];
    uint8_t value[BYTES_MAX];
    uint64_t fired[LDR_FAULT_COUNT];
    bool uring;
} fixture_t;

/* One pass of the workload: what is armed, and what was promised. */
typedef struct pass {
    fixture_t *f;
    const char *io;
    ldr_fault_t point;
    uint64_t nth, times;
    bool used; /* the directory has something in it */
    larder_t *lar;
    larder_space_t *space, *doomed;
    bool flushed;   /* KEPT is on disk */
    bool old_there; /* OLD has to be there */
    bool removed;   /* a remove of the first REMOVED of KEPT was durable */
    bool was_reset; /* a reset of `doomed` was durable */
} pass_t;

static void say(const pass_t *p, const char *what)
{
    printf("%s: %s, pass %llu, %s, %s, %s directory\n", what,
           ldr_fault_name(p->point), (unsigned long long)p->nth,
           p->times == 0 ? "for ever" : "once", p->io,
           p->used ? "used" : "new");
    fflush(stdout);
}

#define check(p, condition)                                                    \
    do {                                                                       \
        if (!(condition)) {                                                    \
            ldr_fault_disarm_all();                                            \
            say(p, #condition);                                                \
            fail();                                                            \
        }                                                                      \
    } while (0)

static size_t bytes_of(uint64_t id)
{
    return real_bytes(id, BYTES_MIN, BYTES_MAX);
}

/* Points that take memory or threads, or flip bits in DRAM: what they hit is
 * the process, not a disk. */
static bool is_disk_point(ldr_fault_t point)
{
    return point >= LDR_FAULT_io_open && point <= LDR_FAULT_io_submit_partial;
}

static bool flips_bits(ldr_fault_t point)
{
    return point == LDR_FAULT_crc_in || point == LDR_FAULT_copy_out;
}

static larder_status_t open_url(pass_t *p)
{
    char url[512];

    snprintf(url, sizeof(url), "embed:%s?" OPTIONS "&io=%s", p->f->dir, p->io);
    return real_open(url, &p->lar);
}

/* ---- single steps ---- */

static void put_range(pass_t *p, larder_space_t *space, uint64_t at,
                      unsigned count)
{
    for (uint64_t id = at; id < at + count; id++) {
        larder_status_t st = real_put(space, id, 1, p->f->value, bytes_of(id));

        check(p, st == LARDER_OK || st == LARDER_PRESENT ||
                     st == LARDER_DECLINED || /* while the disk is off */
                     (st == LARDER_E_FULL &&
                      p->point == LDR_FAULT_extent_populate));
    }
}

/* Gets them all; gives how many there were. */
static unsigned get_range(pass_t *p, larder_space_t *space, uint64_t at,
                          unsigned count)
{
    unsigned hits = 0;
    larder_item_t item;
    uint64_t generation = 0;

    for (uint64_t id = at; id < at + count; id++) {
        memset(p->f->value, 0xee, 64);
        larder_status_t st = real_run(space, LARDER_OP_GET, id, p->f->value,
                                      sizeof(p->f->value), &item);

        if (st == LARDER_OK) {
            check(p, item.length == bytes_of(id));
            check(p, real_check(p->f->value, item.length, id, &generation));
            hits++;
        } else {
            check(p, st == LARDER_MISS);
            check(p, item.cause != LARDER_CAUSE_NONE);
        }
    }
    return hits;
}

/* The bytes under a lease are right as well. */
static void stage_one(pass_t *p, uint64_t id)
{
    larder_key_t key = real_key(id);
    larder_lease_t *lease = NULL;
    larder_match_t match = {.struct_bytes = sizeof(match)};
    struct iovec seg[8];
    uint32_t count = 0;
    uint64_t generation;
    size_t at = 0;
    larder_status_t st = larder_stage(p->space, &key, 1, 0, 0, &lease, &match);

    if (st != LARDER_OK) {
        check(p, st == LARDER_MISS || st == LARDER_E_NO_MEMORY);
        return;
    }
    check(p, larder_lease_segments(lease, 0, 0, seg, 8, &count) == LARDER_OK);
    for (uint32_t i = 0; i < count; i++) {
        memcpy(p->f->value + at, seg[i].iov_base, seg[i].iov_len);
        at += seg[i].iov_len;
    }
    check(p, at == bytes_of(id));
    check(p, real_check(p->f->value, at, id, &generation));
    larder_release(&lease);
}

static void remove_some(pass_t *p)
{
    larder_item_t item;

    p->removed = true;
    for (uint64_t id = KEPT_AT; id < KEPT_AT + REMOVED; id++) {
        larder_status_t st =
            real_run(p->space, LARDER_OP_REMOVE, id, NULL, 0, &item);

        check(p, st == LARDER_OK || st == LARDER_MISS || st == LARDER_E_IO ||
                     st == LARDER_E_TIER_OFF);
        p->removed &= st >= 0;
    }
    check(p, get_range(p, p->space, KEPT_AT, REMOVED) == 0);
}

static void reset_doomed(pass_t *p)
{
    larder_status_t st = larder_space_reset(p->doomed, 0);

    check(p, st == LARDER_OK || st == LARDER_E_IO);
    p->was_reset = st == LARDER_OK;
    check(p, get_range(p, p->doomed, RESET_AT, RESET) == 0);
}

/* ---- the workload ---- */

static bool open_all(pass_t *p)
{
    larder_status_t st = open_url(p);

    if (st == LARDER_OK) {
        st = real_space(p->lar, "kept", &p->space);
    }
    if (st == LARDER_OK) {
        st = real_space(p->lar, "doomed", &p->doomed);
    }
    if (st == LARDER_OK) {
        return true;
    }
    /* A disk that fails is no reason to refuse. */
    check(p, !is_disk_point(p->point));
    check(p, st == LARDER_E_NO_MEMORY ||
                 (st == LARDER_E_IO && p->point == LDR_FAULT_io_uring_denied));
    check(p, larder_last_error()[0] != '\0');
    return false;
}

static void close_all(pass_t *p)
{
    check(p, larder_close(&p->lar, 0) == LARDER_OK);
    larder_space_close(&p->space);
    larder_space_close(&p->doomed);
}

static void work(pass_t *p)
{
    bool dram_whole =
        !flips_bits(p->point) && p->point != LDR_FAULT_extent_populate;

    put_range(p, p->space, KEPT_AT, KEPT);
    put_range(p, p->doomed, RESET_AT, RESET);
    larder_status_t st = larder_flush(p->lar, LARDER_TIER_SSD, 0);
    check(p,
          st == LARDER_OK || st == LARDER_E_DROPPED || st == LARDER_E_TIER_OFF);
    /* On a disk that is full, what was flushed makes room for the next. */
    p->flushed =
        st == LARDER_OK && dram_whole && p->point != LDR_FAULT_io_allocate;
    /* Whatever the disk does: what fits DRAM is served from there. */
    unsigned hits = get_range(p, p->space, KEPT_AT, KEPT);
    check(p, hits == KEPT || !dram_whole);
    get_range(p, p->space, OLD_AT, OLD);
    put_range(p, p->space, MORE_AT, MORE);
    st = larder_flush(p->lar, LARDER_TIER_SSD, 0);
    check(p,
          st == LARDER_OK || st == LARDER_E_DROPPED || st == LARDER_E_TIER_OFF);
    get_range(p, p->space, KEPT_AT, KEPT); /* by now mostly from disk */
    stage_one(p, KEPT_AT + KEPT - 1);
    stage_one(p, OLD_AT);
    remove_some(p);
    reset_doomed(p);
}

static bool all_on(pass_t *p)
{
    larder_stats_t stats;

    check(p, real_stats(p->lar, &stats));
    check(p, stats.disks == 1);
    check(p, stats.disk[0].on || stats.disk[0].reason[0] != '\0');
    check(p, stats.disk[0].bytes_used <= stats.disk[0].bytes_max);
    return stats.disk[0].on;
}

/* The fault is over: the disk comes back, and takes and gives again. */
static void recover(pass_t *p)
{
    uint64_t late = real_now_ms() + ON_AGAIN_MS;
    larder_status_t st;

    while (!all_on(p)) {
        check(p, real_now_ms() < late);
        real_pause();
    }
    if (p->point == LDR_FAULT_extent_populate && p->times == 0) {
        return; /* memory that could not be had is not asked for again */
    }
    for (uint64_t at = LAST_AT;; at += 50) {
        put_range(p, p->space, at, 2);
        st = larder_flush(p->lar, LARDER_TIER_SSD, 0);
        if (st == LARDER_OK) {
            check(p, get_range(p, p->space, at, 2) == 2);
            break;
        }
        /* What was lost while it failed is told once. */
        check(p, st == LARDER_E_DROPPED || st == LARDER_E_TIER_OFF);
        check(p, real_now_ms() < late);
        real_pause();
    }
}

/* Opened again without a fault: what was promised is there or gone. */
static void reopened(pass_t *p)
{
    check(p, open_all(p));
    check(p, all_on(p));
    unsigned removed = get_range(p, p->space, KEPT_AT, REMOVED);
    unsigned kept = get_range(p, p->space, KEPT_AT + REMOVED, KEPT - REMOVED);
    unsigned doomed = get_range(p, p->doomed, RESET_AT, RESET);
    unsigned old = get_range(p, p->space, OLD_AT, OLD);
    check(p, !p->removed || removed == 0);
    check(p, !p->flushed || kept == KEPT - REMOVED);
    check(p, !p->was_reset || doomed == 0);
    check(p, !p->old_there || old == OLD);
    get_range(p, p->space, MORE_AT, MORE);
    close_all(p);
}

/* A directory whose node was killed: nothing in it has a table. */
static void make_used(pass_t *p)
{
    pid_t pid = fork();
    int status = 0;

    if (pid == 0) {
        alarm(WATCHDOG_S);
        bool ok = open_all(p);
        for (uint64_t id = OLD_AT; ok && id < OLD_AT + OLD; id++) {
            ok = real_put(p->space, id, 1, p->f->value, bytes_of(id)) ==
                 LARDER_OK;
        }
        ok = ok && larder_flush(p->lar, LARDER_TIER_SSD, 0) == LARDER_OK;
        if (ok) {
            kill(getpid(), SIGKILL);
        }
        _exit(1);
    }
    check(p, pid > 0 && waitpid(pid, &status, 0) == pid);
    check(p, WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static bool run_pass(fixture_t *f, ldr_fault_t point, uint64_t nth,
                     uint64_t times, bool used)
{
    pass_t p = {
        .f = f,
        .io = f->uring ? "uring" : "plain",
        .point = point,
        .nth = nth,
        .times = times,
        .used = used,
    };

    alarm(WATCHDOG_S);
    real_dir_empty(f->dir);
    if (used) {
        make_used(&p);
    }
    ldr_fault_arm(point, nth, times);
    bool opened = open_all(&p);
    if (opened) {
        work(&p);
    }
    uint64_t fired = ldr_fault_fired(point);
    f->fired[point] += fired;
    ldr_fault_disarm_all();
    if (opened) {
        recover(&p);
    }
    close_all(&p);
    /* A segment that could not be read or written may be lost for good. */
    p.old_there =
        used && (fired == 0 || !is_disk_point(point)) && !flips_bits(point);
    reopened(&p);
    alarm(0);
    return fired > 0;
}

/* ---- cases ---- */

/* Points that other tests have: those of a daemon's client
 * (client/test_false_replies.c) and of back ends (shared/test_dir.c), and those
 * that hang (node/test_hang.c, base/test_log_sink.c). */
static bool is_elsewhere(int point)
{
    return point == LDR_FAULT_extent_share || point == LDR_FAULT_extent_map ||
           point == LDR_FAULT_shm_die || point == LDR_FAULT_seg_short ||
           point == LDR_FAULT_seg_outside ||
           (point >= LDR_FAULT_dir_read && point <= LDR_FAULT_dir_stale) ||
           strstr(ldr_fault_name((ldr_fault_t)point), "_hang") != NULL;
}

static void run_engine(fixture_t *f, bool uring)
{
    static const uint64_t nths[] = {1, 2, 3, 5, 9, 17};
    const char *only = getenv("LARDER_POINT"); /* to look at one by itself */
    unsigned passes = 0;

    f->uring = uring;
    memset(f->fired, 0, sizeof(f->fired));
    for (int point = 0; point < LDR_FAULT_COUNT; point++) {
        if (only != NULL &&
            strcmp(only, ldr_fault_name((ldr_fault_t)point)) != 0) {
            f->fired[point] = 1;
            continue;
        }
        if (is_elsewhere(point)) {
            continue;
        }
        for (unsigned i = 0; i < sizeof(nths) / sizeof(nths[0]); i++) {
            bool once = run_pass(f, (ldr_fault_t)point, nths[i], 1, i % 2);
            bool ever = run_pass(f, (ldr_fault_t)point, nths[i], 0, i % 2);

            passes += 2;
            if (!once && !ever) {
                break; /* it is not passed that often */
            }
        }
    }
    printf("%u passes\n", passes);
    /* A point that lost its place in the code fires no more. */
    for (int point = 0; point < LDR_FAULT_COUNT; point++) {
        bool of_ring = point == LDR_FAULT_io_submit_partial ||
                       point == LDR_FAULT_io_uring_denied;

        if (f->fired[point] == 0 && (uring || !of_ring) &&
            !is_elsewhere(point)) {
            fail_msg("%s never fired", ldr_fault_name((ldr_fault_t)point));
        }
    }
}

static void test_plain(void **state)
{
    run_engine(*state, false);
}

static void test_uring(void **state)
{
    larder_t *lar = NULL;

    if (real_open("embed:?dram=2M&io=uring", &lar) != LARDER_OK) {
        print_message("SKIPPED: no io_uring here: %s\n", larder_last_error());
        skip();
    }
    larder_close(&lar, 0);
    run_engine(*state, true);
}

/* A segment is lost while nobody waits: the next flush has to say so, or it
 * would vouch for what is not there. */
static void test_lost_is_reported(void **state)
{
    pass_t p = {.f = *state, .io = "plain", .point = LDR_FAULT_io_sync};
    uint64_t late = real_now_ms() + ON_AGAIN_MS;
    larder_stats_t stats;

    alarm(WATCHDOG_S);
    real_dir_empty(p.f->dir);
    check(&p, open_all(&p));
    put_range(&p, p.space, OLD_AT, 2);
    check(&p, larder_flush(p.lar, LARDER_TIER_SSD, 0) == LARDER_OK);
    ldr_fault_arm(LDR_FAULT_io_sync, 1, 1); /* the one that is due soon */
    put_range(&p, p.space, KEPT_AT, 2);
    do {
        check(&p, real_now_ms() < late);
        real_pause();
        check(&p, real_stats(p.lar, &stats));
    } while (stats.disk[0].segments_lost == 0);
    ldr_fault_disarm_all();
    check(&p, larder_flush(p.lar, LARDER_TIER_SSD, 0) == LARDER_E_DROPPED);
    check(&p, get_range(&p, p.space, KEPT_AT, 2) == 2);
    put_range(&p, p.space, MORE_AT, 2);
    check(&p, larder_flush(p.lar, LARDER_TIER_SSD, 0) == LARDER_OK);
    close_all(&p);
    check(&p, open_all(&p));
    check(&p, get_range(&p, p.space, MORE_AT, 2) == 2);
    close_all(&p);
    alarm(0);
}

static int setup(void **state)
{
    fixture_t *f = calloc(1, sizeof(*f));

    if (f == NULL || !real_dir_make(f->dir, sizeof(f->dir), "faults")) {
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
        cmocka_unit_test(test_lost_is_reported),
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_uring),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
