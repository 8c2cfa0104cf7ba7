/* A medium that answers, but slowly, is turned off, and tried again later. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "tier/shared/workers.h"
#include "sim/simstore.h"

#define MS ((uint64_t)1000000u)
#define SECOND (1000 * MS)
#define RETRY (5 * SECOND)
#define MANY 16 /* reads, after which an average counts */

static uint64_t time_ns;

static uint64_t sim_now(void *arg)
{
    (void)arg;
    return time_ns;
}

static const ldr_clock_t sim_clock = {sim_now, sim_now, NULL};

static void quiet(void *arg, larder_log_level_t level, const char *line)
{
    (void)arg;
    (void)level;
    (void)line;
}

/* Takes as many ms as arg says. */
static int work(ldr_job_t *job, ldr_backend_t *b)
{
    (void)b;
    time_ns += *(const unsigned *)job->arg * MS;
    return 0;
}

static void done(ldr_job_t *job)
{
    (void)job;
}

typedef struct rig {
    simstore_t *store;
    ldr_workers_t *workers;
} rig_t;

static void run_out(rig_t *r)
{
    while (ldr_workers_step(r->workers)) {
    }
}

static void begin(rig_t *r, unsigned slow_ms)
{
    time_ns = SECOND;
    r->store = simstore_create(1);
    ldr_workers_params_t p = {
        .backend = simstore_backend(r->store),
        .workers = 1,
        .queue = 8,
        .retry_ns = RETRY,
        .timeout_ns = SECOND,
        .slow_ns = slow_ms * MS,
        .clock = &sim_clock,
        .log = {.fn = quiet},
        .manual = true,
    };
    assert_int_equal(ldr_workers_open(&p, &r->workers), LARDER_OK);
    run_out(r);
}

static void end(rig_t *r)
{
    assert_true(ldr_workers_close(r->workers, time_ns));
    simstore_destroy(r->store);
}

/* So many calls one after the other; false: it went off before the last. */
static bool calls(rig_t *r, ldr_job_kind_t kind, unsigned count, unsigned ms,
                  uint64_t bytes)
{
    for (unsigned i = 0; i < count; i++) {
        ldr_job_t job = {
            .kind = kind,
            .deadline_ns = time_ns + 3600 * SECOND,
            .work = work,
            .done = done,
            .arg = &ms,
            .bytes = bytes,
        };

        if (!ldr_workers_add(r->workers, &job)) {
            return false;
        }
        run_out(r);
    }
    return true;
}

static ldr_objects_state_t state_of(rig_t *r, char reason[160])
{
    return ldr_workers_state(r->workers, reason, 160);
}

static void test_off_and_on(void **state)
{
    rig_t r;
    char reason[160];

    (void)state;
    begin(&r, 100);
    /* As fast as it has to be, however many. */
    assert_true(calls(&r, LDR_JOB_READ, 5 * MANY, 100, 1));
    assert_true(calls(&r, LDR_JOB_READ, 5 * MANY, 50, 1));
    /* The average, not the last one. */
    assert_true(calls(&r, LDR_JOB_READ, 1, 300, 1));
    assert_int_equal(state_of(&r, reason), LDR_OBJECTS_ON);
    assert_false(calls(&r, LDR_JOB_READ, MANY, 900, 1));
    assert_int_equal(state_of(&r, reason), LDR_OBJECTS_OFF);
    assert_non_null(strstr(reason, "slow"));
    assert_non_null(strstr(reason, "100"));
    assert_int_equal(ldr_workers_error(r.workers), -ETIME);
    /* Its health says nothing of that: it is left alone for longer. */
    time_ns += 11 * RETRY;
    run_out(&r);
    assert_int_equal(state_of(&r, reason), LDR_OBJECTS_OFF);
    time_ns += 2 * RETRY;
    run_out(&r);
    assert_int_equal(state_of(&r, reason), LDR_OBJECTS_ON);
    assert_string_equal(reason, "");
    /* Judged anew: by as many as before, and not by what was. */
    assert_true(calls(&r, LDR_JOB_READ, MANY - 1, 101, 1));
    assert_true(calls(&r, LDR_JOB_READ, MANY, 1, 1));
    assert_int_equal(state_of(&r, reason), LDR_OBJECTS_ON);
    end(&r);
}

/* More may take longer; what nobody waits for may take any time. */
static void test_what_counts(void **state)
{
    rig_t r;
    char reason[160];

    (void)state;
    begin(&r, 100);
    assert_true(calls(&r, LDR_JOB_READ, 3 * MANY, 300, 3 * LDR_SLOW_BYTES));
    assert_true(calls(&r, LDR_JOB_WRITE, 3 * MANY, 5000, 1));
    assert_true(calls(&r, LDR_JOB_CHORE, 3 * MANY, 5000, 1));
    assert_int_equal(state_of(&r, reason), LDR_OBJECTS_ON);
    calls(&r, LDR_JOB_READ, 3 * MANY, 300, 3 * LDR_SLOW_BYTES - (8 << 20));
    assert_int_equal(state_of(&r, reason), LDR_OBJECTS_OFF);
    end(&r);
}

static void test_any_time(void **state)
{
    rig_t r;

    (void)state;
    begin(&r, 0);
    assert_true(calls(&r, LDR_JOB_READ, 5 * MANY, 900000, 1));
    end(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_off_and_on),
        cmocka_unit_test(test_what_counts),
        cmocka_unit_test(test_any_time),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
