/*
 * A disk that does not answer, and a log that does not take lines: what needs
 * only memory goes on, every call ends by its deadline, and so does closing.
 * Where it did not, the watchdog ends the test.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/fault.h"
#include "client/client.h"
#include "support/disks.h"
#include "support/real.h"

enum { SHARDS = 64, BYTES = 256 << 10, WATCHDOG_S = 120, SOON_MS = 200 };

typedef struct fixture {
    char dir[256];
    char url[500];
    larder_t *lar;
    larder_space_t *space, *other;
    ldr_node_t *node; /* also once it was left behind */
} fixture_t;

static uint8_t value[BYTES];
static ldr_node_t *left[4]; /* that were left behind: they stay in sight */
static unsigned left_count;

static void open_all(fixture_t *f, const larder_open_params_t *params)
{
    assert_int_equal(larder_open(f->url, params, &f->lar), LARDER_OK);
    f->node = f->lar->node;
    assert_int_equal(real_space(f->lar, "one", &f->space), LARDER_OK);
    assert_int_equal(real_space(f->lar, "two", &f->other), LARDER_OK);
}

static int setup(void **state)
{
    static const larder_open_params_t params = {.field_mask = LARDER_OPEN_LOG,
                                                .log = real_log_none};
    static fixture_t fixture;
    fixture_t *f = &fixture;

    alarm(WATCHDOG_S);
    *f = (fixture_t){0};
    assert_true(real_dir_make(f->dir, sizeof(f->dir), "hang"));
    snprintf(f->url, sizeof(f->url),
             "embed:%s?dram=8M&ssd=64M&segment=4M&retry_ms=100&io=plain&"
             "timeout_ms=10000",
             f->dir);
    open_all(f, &params);
    *state = f;
    return 0;
}

static void close_all(fixture_t *f)
{
    assert_int_equal(larder_close(&f->lar, LARDER_FOREVER), LARDER_OK);
    larder_space_close(&f->space);
    larder_space_close(&f->other);
}

static int teardown(void **state)
{
    fixture_t *f = *state;

    ldr_fault_disarm_all();
    if (f->lar != NULL) {
        close_all(f);
    }
    larder_space_close(&f->space);
    larder_space_close(&f->other);
    real_dir_remove(f->dir);
    alarm(0);
    return 0;
}

static larder_status_t get(larder_space_t *space, uint64_t id,
                           uint32_t timeout_ms, larder_cause_t *cause_p)
{
    larder_op_params_t params = {.field_mask = LARDER_OP_TIMEOUT,
                                 .timeout_ms = timeout_ms};
    larder_key_t key = real_key(id);
    struct iovec iov = {value, BYTES};
    larder_item_t item = {.key = &key, .iov = &iov, .iov_count = 1};
    larder_status_t st = larder_run(space, LARDER_OP_GET, &item, 1, &params);
    uint64_t generation;

    *cause_p = item.cause;
    st = st != LARDER_OK ? st : item.status;
    if (st == LARDER_OK) {
        assert_true(real_check(value, BYTES, id, &generation));
    }
    return st;
}

/* More than DRAM holds, all of it on disk: the first are nowhere else. */
static void fill(fixture_t *f)
{
    for (uint64_t id = 0; id < SHARDS; id++) {
        assert_int_equal(real_put(f->space, id, 1, value, BYTES), LARDER_OK);
        if (id % 8 == 7) {
            assert_int_equal(larder_flush(f->lar, LARDER_TIER_SSD, 0),
                             LARDER_OK);
        }
    }
}

/* What needs no disk. */
static void memory_goes_on(fixture_t *f)
{
    larder_space_t *third = NULL;
    larder_cause_t cause;
    larder_stats_t stats;

    assert_int_equal(get(f->space, SHARDS - 1, 0, &cause), LARDER_OK);
    assert_int_equal(real_put(f->other, SHARDS, 1, value, BYTES), LARDER_OK);
    assert_int_equal(get(f->other, SHARDS, 0, &cause), LARDER_OK);
    assert_int_equal(real_space(f->lar, "three", &third), LARDER_OK);
    larder_space_close(&third);
    assert_true(real_stats(f->lar, &stats));
}

/* All that the disk was asked for has come back, and its thread has ended. */
static void until_idle(ldr_node_t *node)
{
    const ldr_ssd_t *ssd = &disks_of(node)[0];
    bool busy = true;

    while (busy) {
        real_pause();
        ldr_node_lock(node);
        busy =
            ssds_of(node)->reads_flying > 0 || ssd->super_busy || !ssd->ended;
        for (unsigned i = 0; i < LDR_BATCHES; i++) {
            busy |= ssd->batches[i].flying && !ssd->batches[i].landed;
        }
        ldr_node_unlock(node);
    }
}

/* Nobody touches it any more: what a sanitizer would miss is freed. */
static void forget(ldr_node_t *node)
{
    left[left_count++] = node;
    ldr_store_destroy(&node->store);
}

/* Closing ends, and what comes back after it does no harm. */
static void test_close(void **state)
{
    fixture_t *f = *state;
    larder_cause_t cause;

    fill(f);
    ldr_fault_arm(LDR_FAULT_io_hang, 1, 0);
    assert_int_equal(get(f->space, 0, SOON_MS, &cause), LARDER_MISS);
    assert_int_equal(cause, LARDER_CAUSE_DEADLINE);
    memory_goes_on(f);
    uint64_t begin_ms = real_now_ms();
    assert_int_equal(larder_flush(f->lar, LARDER_TIER_SSD, SOON_MS),
                     LARDER_E_DEADLINE);
    assert_int_equal(larder_close(&f->lar, SOON_MS), LARDER_E_DEADLINE);
    assert_in_range(real_now_ms() - begin_ms, SOON_MS, 60000);
    ldr_fault_disarm_all();
    until_idle(f->node);
    forget(f->node);
}

/* Nothing is in flight when it begins to hang: what is still to be written at
 * the end is. */
static void test_close_idle(void **state)
{
    fixture_t *f = *state;
    bool ready = false;

    while (!ready) {
        real_pause();
        ldr_node_lock(f->node);
        ready =
            disks_of(f->node)[0].ready != LDR_NIL && disks_of(f->node)[0].idle;
        ldr_node_unlock(f->node);
    }
    ldr_fault_arm(LDR_FAULT_io_hang, 1, 0);
    larder_close(&f->lar, SOON_MS);
    ldr_fault_disarm_all();
    until_idle(f->node);
    forget(f->node);
}

static bool is_on(larder_t *lar)
{
    larder_stats_t stats;

    assert_true(real_stats(lar, &stats));
    return stats.disk[0].on != 0;
}

/* After a while it is off: a miss then costs no deadline. When it answers
 * again it comes back. */
static void test_goes_off(void **state)
{
    fixture_t *f = *state;
    larder_cause_t cause;

    fill(f);
    ldr_fault_arm(LDR_FAULT_io_hang, 1, 0);
    do {
        assert_int_equal(get(f->space, 0, SOON_MS, &cause), LARDER_MISS);
    } while (is_on(f->lar));
    memory_goes_on(f);
    for (uint64_t id = 0; id < 2; id++) { /* one that is being read, too */
        assert_int_equal(get(f->space, id, LARDER_FOREVER, &cause),
                         LARDER_MISS);
        assert_int_equal(cause, LARDER_CAUSE_TIER_OFF);
    }
    ldr_fault_disarm_all();
    while (!is_on(f->lar)) {
        real_pause();
    }
    assert_int_equal(get(f->space, 1, LARDER_FOREVER, &cause), LARDER_OK);
}

/* Resets that a disk could not record in time: the second has to wait for the
 * first. Both are, once it answers. */
static void test_late_resets(void **state)
{
    fixture_t *f = *state;
    larder_cause_t cause;

    for (uint64_t id = 0; id < 4; id++) {
        assert_int_equal(real_put(f->space, id, 1, value, BYTES), LARDER_OK);
        assert_int_equal(real_put(f->other, id, 1, value, BYTES), LARDER_OK);
    }
    assert_int_equal(larder_flush(f->lar, LARDER_TIER_SSD, 0), LARDER_OK);
    ldr_fault_arm(LDR_FAULT_io_hang, 1, 0);
    assert_int_equal(larder_space_reset(f->space, SOON_MS), LARDER_E_DEADLINE);
    assert_int_equal(larder_space_reset(f->other, SOON_MS), LARDER_E_DEADLINE);
    assert_int_equal(get(f->space, 0, SOON_MS, &cause), LARDER_MISS);
    ldr_fault_disarm_all();
    bool missed = true;
    while (missed) {
        ldr_node_lock(f->node);
        missed = disks_of(f->node)[0].super_missed ||
                 disks_of(f->node)[0].super_busy;
        ldr_node_unlock(f->node);
        real_pause();
    }
    assert_true(is_on(f->lar));
    close_all(f);
    open_all(f, NULL);
    for (uint64_t id = 0; id < 4; id++) {
        assert_int_equal(get(f->space, id, 0, &cause), LARDER_MISS);
        assert_int_equal(get(f->other, id, 0, &cause), LARDER_MISS);
    }
}

/* ---- opening ---- */

static const larder_open_params_t quiet = {.field_mask = LARDER_OPEN_LOG,
                                           .log = real_log_none};

/* Filled and closed, it is opened again, and its disk hangs from the nth
 * request on: the node is there all the same, without it. */
static void open_hung(fixture_t *f, uint64_t nth)
{
    larder_stats_t stats;

    fill(f);
    close_all(f);
    ldr_fault_arm(LDR_FAULT_io_hang, nth, 0);
    open_all(f, &quiet);
    assert_true(ldr_fault_fired(LDR_FAULT_io_hang) > 0);
    assert_true(real_stats(f->lar, &stats));
    assert_int_equal(stats.disk[0].on, 0);
    assert_string_equal(stats.disk[0].reason, "the disk does not answer");
}

/* It is half recovered. When it answers it comes back, with all that it holds,
 * and takes more. */
static void test_open(void **state)
{
    fixture_t *f = *state;
    larder_cause_t cause;

    open_hung(f, 6);
    assert_int_equal(real_put(f->other, 1, 1, value, BYTES), LARDER_OK);
    assert_int_equal(get(f->other, 1, 0, &cause), LARDER_OK);
    assert_int_equal(get(f->space, 0, LARDER_FOREVER, &cause), LARDER_MISS);
    assert_int_equal(larder_space_reset(f->other, SOON_MS), LARDER_E_IO);
    assert_int_equal(get(f->other, 1, 0, &cause), LARDER_MISS);
    ldr_fault_disarm_all();
    while (!is_on(f->lar)) {
        real_pause();
    }
    for (uint64_t id = 0; id < SHARDS; id++) {
        assert_int_equal(get(f->space, id, 0, &cause), LARDER_OK);
    }
    assert_int_equal(real_put(f->other, 2, 1, value, BYTES), LARDER_OK);
    assert_int_equal(larder_flush(f->lar, LARDER_TIER_SSD, 0), LARDER_OK);
    close_all(f);
    open_all(f, NULL);
    assert_int_equal(get(f->space, 0, 0, &cause), LARDER_OK);
    assert_int_equal(get(f->other, 1, 0, &cause), LARDER_MISS);
    assert_int_equal(get(f->other, 2, 0, &cause), LARDER_OK);
}

/* Closed meanwhile, the opening ends by itself when the disk answers, and the
 * directory is free again. */
static void test_open_close(void **state)
{
    fixture_t *f = *state;
    larder_cause_t cause;

    open_hung(f, 1);
    larder_close(&f->lar, SOON_MS);
    larder_space_close(&f->space);
    larder_space_close(&f->other);
    ldr_fault_disarm_all();
    until_idle(f->node);
    assert_false(disks_of(f->node)[0].opened);
    forget(f->node);
    open_all(f, NULL);
    assert_true(is_on(f->lar));
    assert_int_equal(get(f->space, 0, 0, &cause), LARDER_OK);
}

/* ---- the log ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool hung, asked;

static void log_hangs(void *arg, larder_log_level_t level, const char *line)
{
    (void)arg;
    (void)level;
    (void)line;
    pthread_mutex_lock(&lock);
    asked = true;
    pthread_cond_broadcast(&changed);
    while (hung) {
        pthread_cond_wait(&changed, &lock);
    }
    pthread_mutex_unlock(&lock);
}

/* The disk fails, and whoever says so does not come back: the others do not
 * wait for it. */
static void test_log_hangs(void **state)
{
    const larder_open_params_t params = {.field_mask = LARDER_OPEN_LOG,
                                         .log = log_hangs};
    fixture_t *f = *state;
    larder_cause_t cause;

    close_all(f);
    open_all(f, &params);
    hung = true;
    asked = false;
    ldr_fault_arm(LDR_FAULT_io_write, 1, 0);
    assert_int_equal(real_put(f->space, 1, 1, value, BYTES), LARDER_OK);
    pthread_mutex_lock(&lock);
    while (!asked) {
        pthread_cond_wait(&changed, &lock);
    }
    pthread_mutex_unlock(&lock);
    for (uint64_t id = SHARDS; id < SHARDS + 4; id++) {
        assert_int_equal(real_put(f->other, id, 1, value, BYTES), LARDER_OK);
        assert_int_equal(get(f->other, id, 0, &cause), LARDER_OK);
    }
    ldr_fault_disarm_all();
    pthread_mutex_lock(&lock);
    hung = false;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    while (!is_on(f->lar)) {
        real_pause();
    }
}

/* ---- an extent that changes hands ---- */

static larder_space_t *tenant_space(larder_t *lar, const char *tenant)
{
    larder_space_params_t params = {.field_mask = LARDER_SPACE_TENANT,
                                    .descriptor = "model",
                                    .descriptor_bytes = 5,
                                    .tenant = tenant};
    larder_space_t *space = NULL;

    assert_int_equal(larder_space_open(lar, &params, &space), LARDER_OK);
    return space;
}

/* Making it anew takes the kernel as long as it takes: whoever wants room in it
 * is told that it is coming, and does not wait. */
static void test_extent(void **state)
{
    fixture_t *f = *state;
    larder_cause_t cause;

    close_all(f);
    assert_int_equal(real_open("embed:?dram=16M", &f->lar), LARDER_OK);
    f->node = f->lar->node;
    f->space = tenant_space(f->lar, "one");
    for (uint64_t id = 0; id < 2 * SHARDS; id++) {
        assert_int_equal(real_put(f->space, id, 1, value, BYTES), LARDER_OK);
    }
    ldr_fault_arm(LDR_FAULT_extent_hang, 1, 0);
    f->other = tenant_space(f->lar, "another");
    larder_key_t key = real_key(7);
    larder_item_t item = {.key = &key};
    ldr_target_t target = {f->other->number, 1, &item};
    uint32_t shard;
    for (unsigned i = 0; i < 100; i++) {
        assert_int_equal(ldr_node_reserve(f->node, &target, BYTES, &shard),
                         LARDER_PENDING);
    }
    assert_int_equal(get(f->space, 2 * SHARDS - 1, 0, &cause), LARDER_OK);
    ldr_fault_disarm_all();
    assert_int_equal(real_put(f->other, 7, 1, value, BYTES), LARDER_OK);
    assert_int_equal(get(f->other, 7, 0, &cause), LARDER_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_close, setup, teardown),
        cmocka_unit_test_setup_teardown(test_close_idle, setup, teardown),
        cmocka_unit_test_setup_teardown(test_goes_off, setup, teardown),
        cmocka_unit_test_setup_teardown(test_late_resets, setup, teardown),
        cmocka_unit_test_setup_teardown(test_open, setup, teardown),
        cmocka_unit_test_setup_teardown(test_open_close, setup, teardown),
        cmocka_unit_test_setup_teardown(test_log_hangs, setup, teardown),
        cmocka_unit_test_setup_teardown(test_extent, setup, teardown),
    };

    return cmocka_run_group_tests_name("ssd/hang", tests, NULL, NULL);
}
