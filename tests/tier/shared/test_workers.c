/* Workers: who goes first, the breaker, deadlines, calls that hang. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "tier/shared/workers.h"
#include "sim/simstore.h"
#include "support/real.h"

#define SECOND ((uint64_t)1000000000u)

/* ---- a clock of our own ---- */

static uint64_t time_ns;

static uint64_t sim_now(void *arg)
{
    (void)arg;
    return time_ns;
}

static uint64_t sim_wall(void *arg)
{
    (void)arg;
    return 1700000000000u + time_ns / 1000000u;
}

static const ldr_clock_t sim_clock = {sim_now, sim_wall, NULL};

/* ---- jobs that say what happened ---- */

typedef struct task {
    ldr_job_t job;
    int result;
    int (*call)(ldr_backend_t *b);
    unsigned order; /* of its work among all; 0: none */
    unsigned ended; /* how often done() was called */
} task_t;

static unsigned worked;

static int task_work(ldr_job_t *job, ldr_backend_t *b)
{
    task_t *t = job->arg;

    t->order = __atomic_add_fetch(&worked, 1, __ATOMIC_SEQ_CST);
    return t->call != NULL ? t->call(b) : t->result;
}

static void task_done(ldr_job_t *job)
{
    task_t *t = job->arg;

    __atomic_add_fetch(&t->ended, 1, __ATOMIC_SEQ_CST);
}

static bool has_ended(task_t *t)
{
    return __atomic_load_n(&t->ended, __ATOMIC_SEQ_CST) > 0;
}

static bool add(ldr_workers_t *l, task_t *t, ldr_job_kind_t kind, int result,
                uint64_t deadline_ns)
{
    *t = (task_t){.result = result, .call = t->call};
    t->job = (ldr_job_t){
        .kind = kind,
        .deadline_ns = deadline_ns,
        .work = task_work,
        .done = task_done,
        .arg = t,
    };
    return ldr_workers_add(l, &t->job);
}

/* ---- a rig ---- */

typedef struct rig {
    simstore_t *store;
    ldr_backend_t *backend;
    ldr_workers_t *workers;
    unsigned changes;
    ldr_objects_state_t last;
} rig_t;

static void on_change(void *arg, ldr_objects_state_t state)
{
    rig_t *r = arg;

    r->changes++;
    r->last = state;
}

static void quiet(void *arg, larder_log_level_t level, const char *line)
{
    (void)arg;
    (void)level;
    (void)line;
}

static void open_with(rig_t *r, bool manual, unsigned workers,
                      int (*probe)(void *arg, ldr_backend_t *b,
                                   uint64_t deadline_ns))
{
    memset(r, 0, sizeof(*r));
    time_ns = SECOND;
    worked = 0;
    r->store = simstore_create(1);
    r->backend = simstore_backend(r->store);
    ldr_workers_params_t p = {
        .backend = r->backend,
        .workers = workers,
        .queue = 8,
        .retry_ns = manual ? 5 * SECOND : SECOND / 50,
        .timeout_ns = SECOND,
        .clock = manual ? &sim_clock : &ldr_clock_real,
        .log = {.fn = quiet},
        .manual = manual,
        .probe = probe,
        .changed = on_change,
        .arg = r,
    };
    assert_int_equal(ldr_workers_open(&p, &r->workers), LARDER_OK);
}

static void rig_open(rig_t *r, bool manual, unsigned workers)
{
    open_with(r, manual, workers, NULL);
}

static void rig_close(rig_t *r)
{
    assert_true(ldr_workers_close(r->workers, UINT64_MAX));
    simstore_destroy(r->store);
}

static void run_out(rig_t *r)
{
    while (ldr_workers_step(r->workers)) {
    }
}

static ldr_objects_state_t state_of(rig_t *r)
{
    char reason[160];

    return ldr_workers_state(r->workers, reason, sizeof(reason));
}

/* ---- tests ---- */

static void test_starts_off(void **state)
{
    rig_t r;
    task_t t = {0};

    (void)state;
    rig_open(&r, true, 1);
    assert_int_equal(state_of(&r), LDR_OBJECTS_OFF);
    assert_false(add(r.workers, &t, LDR_JOB_READ, 0, 2 * SECOND));
    assert_int_equal(t.job.error, -ESHUTDOWN);
    assert_true(ldr_workers_step(r.workers)); /* health() */
    assert_int_equal(state_of(&r), LDR_OBJECTS_ON);
    assert_int_equal(r.changes, 1);
    assert_true(add(r.workers, &t, LDR_JOB_READ, 0, 2 * SECOND));
    assert_true(ldr_workers_step(r.workers));
    assert_int_equal(t.ended, 1);
    assert_int_equal(t.job.error, 0);
    assert_false(ldr_workers_step(r.workers));
    rig_close(&r);
}

/* Reads first; but nobody waits for ever. */
static void test_order(void **state)
{
    rig_t r;
    task_t reads[8] = {0}, writes[3] = {0}, chore = {0};

    (void)state;
    rig_open(&r, true, 1);
    run_out(&r);
    add(r.workers, &chore, LDR_JOB_CHORE, 0, 9 * SECOND);
    for (unsigned i = 0; i < 3; i++) {
        add(r.workers, &writes[i], LDR_JOB_WRITE, 0, 9 * SECOND);
    }
    for (unsigned i = 0; i < 8; i++) {
        add(r.workers, &reads[i], LDR_JOB_READ, 0, 9 * SECOND);
    }
    run_out(&r);
    assert_int_equal(reads[0].order, 1);
    assert_int_equal(reads[3].order, 4);
    /* Both lower kinds were passed over four times. */
    assert_int_equal(chore.order, 5);
    assert_int_equal(writes[0].order, 6);
    assert_int_equal(reads[4].order, 7);
    assert_int_equal(writes[2].order, 12);
    rig_close(&r);
}

static void test_bounds(void **state)
{
    rig_t r;
    task_t t[9] = {0}, read = {0};
    ldr_workers_stats_t stats;

    (void)state;
    rig_open(&r, true, 1);
    run_out(&r);
    for (unsigned i = 0; i < 8; i++) {
        assert_true(add(r.workers, &t[i], LDR_JOB_WRITE, 0, 9 * SECOND));
    }
    assert_false(add(r.workers, &t[8], LDR_JOB_WRITE, 0, 9 * SECOND));
    assert_int_equal(t[8].job.error, -EBUSY);
    assert_true(add(r.workers, &read, LDR_JOB_READ, 0, 9 * SECOND));
    ldr_workers_stats(r.workers, &stats);
    assert_int_equal(stats.waiting[LDR_JOB_WRITE], 8);
    assert_int_equal(stats.refused, 1);
    /* What waits at close is ended. */
    assert_true(ldr_workers_close(r.workers, UINT64_MAX));
    for (unsigned i = 0; i < 8; i++) {
        assert_int_equal(t[i].ended, 1);
        assert_int_equal(t[i].job.error, -ECANCELED);
        assert_int_equal(t[i].order, 0);
    }
    assert_int_equal(read.ended, 1);
    simstore_destroy(r.store);
}

static void test_breaker(void **state)
{
    rig_t r;
    task_t t[4] = {0};
    char reason[160];

    (void)state;
    rig_open(&r, true, 1);
    run_out(&r);
    /* A miss between failures says that the medium is well. */
    const int results[] = {-EIO, -EIO, -ENOENT, -EIO, -ETIMEDOUT};
    for (unsigned i = 0; i < 5; i++) {
        add(r.workers, &t[0], LDR_JOB_READ, results[i], 9 * SECOND);
        run_out(&r);
        assert_int_equal(state_of(&r), LDR_OBJECTS_ON);
    }
    add(r.workers, &t[0], LDR_JOB_READ, -EIO, 9 * SECOND);
    add(r.workers, &t[1], LDR_JOB_READ, 0, 9 * SECOND);
    add(r.workers, &t[2], LDR_JOB_WRITE, 0, 9 * SECOND);
    simstore_fail(r.backend, SIMSTORE_HEALTH, 1, 1, -ECONNREFUSED);
    assert_true(ldr_workers_step(r.workers));
    assert_int_equal(ldr_workers_state(r.workers, reason, sizeof(reason)),
                     LDR_OBJECTS_OFF);
    assert_true(reason[0] != '\0');
    assert_int_equal(ldr_workers_error(r.workers), -EIO);
    /* Nobody is left waiting. */
    assert_int_equal(t[1].ended, 1);
    assert_int_equal(t[1].job.error, -ESHUTDOWN);
    assert_int_equal(t[2].job.error, -ESHUTDOWN);
    assert_false(ldr_workers_step(r.workers)); /* not before retry_ns */
    time_ns += 5 * SECOND;
    run_out(&r);
    assert_int_equal(state_of(&r), LDR_OBJECTS_OFF);
    assert_int_equal(ldr_workers_error(r.workers), -ECONNREFUSED);
    time_ns += 5 * SECOND;
    run_out(&r);
    assert_int_equal(state_of(&r), LDR_OBJECTS_ON);
    assert_int_equal(ldr_workers_error(r.workers), 0);
    rig_close(&r);
}

static void test_away(void **state)
{
    rig_t r;
    task_t t = {0};

    (void)state;
    rig_open(&r, true, 1);
    run_out(&r);
    add(r.workers, &t, LDR_JOB_CHORE, -ENODEV, 9 * SECOND);
    run_out(&r);
    assert_int_equal(state_of(&r), LDR_OBJECTS_OFF);
    time_ns += 5 * SECOND;
    run_out(&r);
    assert_int_equal(state_of(&r), LDR_OBJECTS_ON);
    /* health() finds it out too, while it is on and nobody asks. */
    simstore_away(r.store, true);
    time_ns += 5 * SECOND;
    run_out(&r);
    assert_int_equal(state_of(&r), LDR_OBJECTS_OFF);
    simstore_away(r.store, false);
    time_ns += 5 * SECOND;
    run_out(&r);
    assert_int_equal(state_of(&r), LDR_OBJECTS_ON);
    rig_close(&r);
}

static int chore_wrote(ldr_job_t *job, ldr_backend_t *b)
{
    (void)b;
    job->wrote = true;
    return -EROFS;
}

static void test_read_only(void **state)
{
    rig_t r;
    task_t t = {0}, read = {0};

    (void)state;
    rig_open(&r, true, 1);
    run_out(&r);
    /* Even a hundred times, a full disk is no reason not to read. */
    for (unsigned i = 0; i < 100; i++) {
        add(r.workers, &t, LDR_JOB_WRITE, -ENOSPC, time_ns + SECOND);
        run_out(&r);
        assert_int_equal(state_of(&r), LDR_OBJECTS_READONLY);
        assert_false(ldr_workers_writable(r.workers));
        assert_false(add(r.workers, &t, LDR_JOB_WRITE, 0, time_ns + SECOND));
        assert_int_equal(t.job.error, -EROFS);
        assert_true(add(r.workers, &read, LDR_JOB_READ, 0, time_ns + SECOND));
        run_out(&r);
        assert_int_equal(read.job.error, 0);
        time_ns += 5 * SECOND;
        assert_true(ldr_workers_writable(r.workers));
    }
    assert_int_equal(r.changes, 2);
    /* One write is let through, and a second only once that is back. */
    assert_true(add(r.workers, &t, LDR_JOB_WRITE, 0, time_ns + SECOND));
    assert_false(add(r.workers, &read, LDR_JOB_WRITE, 0, time_ns + SECOND));
    assert_false(ldr_workers_writable(r.workers));
    run_out(&r);
    assert_int_equal(state_of(&r), LDR_OBJECTS_ON);
    assert_true(ldr_workers_writable(r.workers));
    /* A chore whose put failed says the same. */
    add(r.workers, &t, LDR_JOB_CHORE, 0, time_ns + SECOND);
    t.job.work = chore_wrote;
    run_out(&r);
    assert_int_equal(state_of(&r), LDR_OBJECTS_READONLY);
    rig_close(&r);
}

static void test_late(void **state)
{
    rig_t r;
    task_t t = {0}, other = {0};
    ldr_workers_stats_t stats;

    (void)state;
    rig_open(&r, true, 1);
    run_out(&r);
    add(r.workers, &t, LDR_JOB_READ, 0, time_ns + SECOND);
    add(r.workers, &other, LDR_JOB_READ, 0, time_ns + 3 * SECOND);
    time_ns += 2 * SECOND;
    assert_true(ldr_workers_look(r.workers));
    assert_int_equal(t.ended, 1);
    assert_int_equal(t.job.error, -ETIMEDOUT);
    assert_int_equal(t.order, 0);
    assert_int_equal(other.ended, 0);
    ldr_workers_stats(r.workers, &stats);
    assert_int_equal(stats.overdue, 1);
    run_out(&r);
    assert_int_equal(other.job.error, 0);
    assert_int_equal(state_of(&r), LDR_OBJECTS_ON);
    rig_close(&r);
}

/* ---- with threads ---- */

static void wait_for_state(rig_t *r, ldr_objects_state_t state)
{
    uint64_t until_ms = real_now_ms() + 20000;

    while (state_of(r) != state && real_now_ms() < until_ms) {
        real_pause();
    }
    assert_int_equal(state_of(r), state);
}

static int get_id(ldr_backend_t *b)
{
    uint8_t data[3];
    struct iovec iov = {data, sizeof(data)};

    return b->ops->get(b, LDR_OBJECTS_ID_NAME, 0, &iov, 1, UINT64_MAX);
}

static void test_many(void **state)
{
    enum { COUNT = 400 };
    static task_t t[COUNT];
    rig_t r;
    unsigned taken = 0;

    (void)state;
    rig_open(&r, false, 4);
    wait_for_state(&r, LDR_OBJECTS_ON);
    for (unsigned i = 0; i < COUNT; i++) {
        t[i].call = get_id;
        uint64_t deadline_ns = ldr_now_ns(&ldr_clock_real) + 60 * SECOND;
        taken += add(r.workers, &t[i], (ldr_job_kind_t)(i % 3), 0, deadline_ns);
    }
    assert_true(taken > 0);
    rig_close(&r);
    for (unsigned i = 0; i < COUNT; i++) {
        bool refused = t[i].job.error == -EBUSY;

        assert_int_equal(t[i].ended, refused ? 0 : 1);
        assert_true(refused || t[i].job.error == 0 ||
                    t[i].job.error == -ECANCELED);
    }
}

static void await_hanging(rig_t *r, unsigned count)
{
    uint64_t until_ms = real_now_ms() + 20000;

    while (simstore_hanging(r->backend) < count && real_now_ms() < until_ms) {
        real_pause();
    }
    assert_int_equal(simstore_hanging(r->backend), count);
}

static void await_stuck(rig_t *r, unsigned count)
{
    ldr_workers_stats_t stats;
    uint64_t until_ms = real_now_ms() + 20000;

    do {
        ldr_workers_look(r->workers);
        ldr_workers_stats(r->workers, &stats);
        real_pause();
    } while (stats.stuck < count && real_now_ms() < until_ms);
    assert_int_equal(stats.stuck, count);
}

/* A call that hangs turns the tier off, and the rest goes on when it is back.
 */
static void test_hang(void **state)
{
    rig_t r;
    static task_t t, next;
    ldr_workers_stats_t stats;

    (void)state;
    rig_open(&r, false, 2);
    wait_for_state(&r, LDR_OBJECTS_ON);
    simstore_hang(r.backend, SIMSTORE_GET, true);
    simstore_hang(r.backend, SIMSTORE_HEALTH, true);
    t.call = get_id;
    assert_true(
        add(r.workers, &t, LDR_JOB_READ, 0, ldr_now_ns(&ldr_clock_real)));
    await_hanging(&r, 2); /* health() as well: both workers */
    await_stuck(&r, 2);
    assert_int_equal(state_of(&r), LDR_OBJECTS_OFF);
    assert_int_equal(t.ended, 0); /* its memory is the worker's */
    simstore_hang(r.backend, SIMSTORE_GET, false);
    simstore_hang(r.backend, SIMSTORE_HEALTH, false);
    wait_for_state(&r, LDR_OBJECTS_ON);
    next.call = get_id;
    assert_true(add(r.workers, &next, LDR_JOB_READ, 0,
                    ldr_now_ns(&ldr_clock_real) + 60 * SECOND));
    uint64_t until_ms = real_now_ms() + 20000;
    while (!(has_ended(&next) && has_ended(&t)) && real_now_ms() < until_ms) {
        real_pause();
    }
    assert_int_equal(t.ended, 1);
    assert_int_equal(next.ended, 1);
    ldr_workers_stats(r.workers, &stats);
    assert_int_equal(stats.stuck, 0);
    rig_close(&r);
}

static unsigned at_once, at_once_most;

static int counting_work(ldr_backend_t *b)
{
    unsigned now = __atomic_add_fetch(&at_once, 1, __ATOMIC_SEQ_CST);
    unsigned most = __atomic_load_n(&at_once_most, __ATOMIC_SEQ_CST);
    uint64_t until_ms = real_now_ms() + 20000;

    while (now > most &&
           !__atomic_compare_exchange_n(&at_once_most, &most, now, false,
                                        __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
    }
    /* None ends before all workers have one. */
    while (__atomic_load_n(&at_once_most, __ATOMIC_SEQ_CST) < 3 &&
           real_now_ms() < until_ms) {
        real_pause();
    }
    int error = get_id(b);
    __atomic_sub_fetch(&at_once, 1, __ATOMIC_SEQ_CST);
    return error;
}

/* Three workers are three jobs at once, no fewer and no more. */
static void test_at_once(void **state)
{
    enum { COUNT = 8 };
    static task_t t[COUNT];
    uint64_t until_ms = real_now_ms() + 20000;
    rig_t r;

    (void)state;
    rig_open(&r, false, 3);
    wait_for_state(&r, LDR_OBJECTS_ON);
    for (unsigned i = 0; i < COUNT; i++) {
        t[i].call = counting_work;
        assert_true(add(r.workers, &t[i], LDR_JOB_READ, 0,
                        ldr_now_ns(&ldr_clock_real) + 60 * SECOND));
    }
    for (unsigned i = 0; i < COUNT; i++) {
        while (!has_ended(&t[i]) && real_now_ms() < until_ms) {
            real_pause();
        }
        assert_int_equal(t[i].ended, 1);
        assert_int_equal(t[i].job.error, 0);
    }
    assert_int_equal(at_once_most, 3);
    rig_close(&r);
}

static unsigned probes;
static bool probe_may_go, gate_open;

/* The first one after the tier was on hangs; all others are well. */
static int probe_hangs(void *arg, ldr_backend_t *b, uint64_t deadline_ns)
{
    (void)arg;
    (void)b;
    (void)deadline_ns;
    bool hangs = __atomic_add_fetch(&probes, 1, __ATOMIC_SEQ_CST) == 2;
    while (hangs && !__atomic_load_n(&probe_may_go, __ATOMIC_SEQ_CST)) {
        real_pause();
    }
    return 0;
}

static rig_t *gate_rig;

static int gate_work(ldr_backend_t *b)
{
    (void)b;
    while (!__atomic_load_n(&gate_open, __ATOMIC_SEQ_CST)) {
        real_pause();
    }
    return 0;
}

/* A health() hangs (a mount that is no more), and so many reads do. */
static void hang_some(rig_t *r, unsigned workers, task_t *read, unsigned reads)
{
    probes = 0;
    __atomic_store_n(&probe_may_go, false, __ATOMIC_SEQ_CST);
    __atomic_store_n(&gate_open, false, __ATOMIC_SEQ_CST);
    open_with(r, false, workers, probe_hangs);
    wait_for_state(r, LDR_OBJECTS_ON);
    read->call = gate_work;
    assert_true(reads == 0 || add(r->workers, read, LDR_JOB_READ, 0,
                                  ldr_now_ns(&ldr_clock_real)));
    while (__atomic_load_n(&worked, __ATOMIC_SEQ_CST) < reads) {
        real_pause();
    }
    await_stuck(r, reads + 1);
}

/* That does not keep another worker from finding that the medium is well: nor
 * if half of them hang, nor if all do and one comes back. */
static void test_probe_hangs(void **state)
{
    static const struct {
        unsigned workers, reads, left;
        bool back;
    } table[] = {{4, 0, 1, false}, {4, 1, 2, false}, {2, 1, 1, true}};
    ldr_workers_stats_t stats;
    task_t read = {0};
    rig_t r;

    (void)state;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        hang_some(&r, table[i].workers, &read, table[i].reads);
        __atomic_store_n(&gate_open, table[i].back, __ATOMIC_SEQ_CST);
        uint64_t until_ms = real_now_ms() + 20000;
        while (state_of(&r) != LDR_OBJECTS_ON && real_now_ms() < until_ms) {
            ldr_workers_look(r.workers);
            real_pause();
        }
        assert_int_equal(state_of(&r), LDR_OBJECTS_ON);
        ldr_workers_stats(r.workers, &stats);
        assert_int_equal(stats.stuck, table[i].left);
        assert_int_equal(stats.times_off, 1);
        __atomic_store_n(&gate_open, true, __ATOMIC_SEQ_CST);
        __atomic_store_n(&probe_may_go, true, __ATOMIC_SEQ_CST);
        rig_close(&r);
    }
}

/* It takes as long as the tier needs to be on again. */
static void gate_done(ldr_job_t *job)
{
    (void)job;
    __atomic_store_n(&gate_open, true, __ATOMIC_SEQ_CST);
    wait_for_state(gate_rig, LDR_OBJECTS_ON);
}

/* Whoever has much to end when the tier goes off is not the last to speak. */
static void test_last_word(void **state)
{
    rig_t r;
    task_t busy[2] = {{.call = gate_work}, {.call = gate_work}}, last = {0};
    uint64_t far_ns = ldr_now_ns(&ldr_clock_real) + 60 * SECOND;

    (void)state;
    gate_rig = &r;
    __atomic_store_n(&gate_open, false, __ATOMIC_SEQ_CST);
    rig_open(&r, false, 2);
    wait_for_state(&r, LDR_OBJECTS_ON);
    for (unsigned i = 0; i < 2; i++) {
        assert_true(add(r.workers, &busy[i], LDR_JOB_READ, 0, far_ns));
    }
    while (__atomic_load_n(&worked, __ATOMIC_SEQ_CST) < 2 &&
           ldr_now_ns(&ldr_clock_real) < far_ns) {
        real_pause();
    }
    last.job = (ldr_job_t){
        .kind = LDR_JOB_READ,
        .deadline_ns = far_ns,
        .work = task_work,
        .done = gate_done,
        .arg = &last,
    };
    assert_true(ldr_workers_add(r.workers, &last.job));
    ldr_workers_failed(r.workers, false, -ENODEV, "away");
    assert_int_equal(last.job.error, -ESHUTDOWN);
    uint64_t until_ms = real_now_ms() + 20000;
    while (!(has_ended(&busy[0]) && has_ended(&busy[1])) &&
           real_now_ms() < until_ms) {
        real_pause();
    }
    assert_int_equal(state_of(&r), LDR_OBJECTS_ON);
    rig_close(&r);
    assert_int_equal(r.last, LDR_OBJECTS_ON);
}

/* Closing does not wait for it; done() is not called any more. */
static void test_close_hanging(void **state)
{
    rig_t r;
    static task_t t;
    uint64_t begin_ms;

    (void)state;
    rig_open(&r, false, 3);
    wait_for_state(&r, LDR_OBJECTS_ON);
    simstore_hang(r.backend, SIMSTORE_GET, true);
    t.call = get_id;
    add(r.workers, &t, LDR_JOB_READ, 0,
        ldr_now_ns(&ldr_clock_real) + 60 * SECOND);
    await_hanging(&r, 1);
    begin_ms = real_now_ms();
    assert_false(ldr_workers_close(r.workers,
                                   ldr_now_ns(&ldr_clock_real) + SECOND / 10));
    assert_true(real_now_ms() - begin_ms < 20000);
    /* The worker that was left behind frees the rest, and the back end. */
    simstore_hang(r.backend, SIMSTORE_GET, false);
    uint64_t until_ms = real_now_ms() + 20000;
    while (simstore_backends(r.store) > 0 && real_now_ms() < until_ms) {
        real_pause();
    }
    assert_int_equal(simstore_backends(r.store), 0);
    assert_int_equal(t.ended, 0);
    simstore_destroy(r.store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_starts_off),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_breaker),
        cmocka_unit_test(test_away),
        cmocka_unit_test(test_read_only),
        cmocka_unit_test(test_late),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_hang),
        cmocka_unit_test(test_at_once),
        cmocka_unit_test(test_close_hanging),
        cmocka_unit_test(test_probe_hangs),
        cmocka_unit_test(test_last_word),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
