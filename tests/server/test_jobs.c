/*
 * Threads for what waits for disks: who waits long leaves some of them to the
 * others, everything runs in the end, and nothing is lost when it is the end.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/mem.h"
#include "base/thread.h"
#include "server/session.h"

#define REQUESTS 1100u
#define WAIT_NS 20000000000u /* for what must happen: a bound, no more */

typedef struct rig {
    ldr_server_t *server;
    ldr_server_loop_t home; /* not started: what is posted stays there */
    ldr_session_t session;
    ldr_request_t *requests[REQUESTS];
    unsigned count;
} rig_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed;
static bool held;              /* jobs that wait do so */
static unsigned begun[256];    /* by opcode */
static unsigned over, running; /* of all */
static unsigned wrong;         /* looks at a queue that was not right */
static const ldr_server_tenant_t
    *order[REQUESTS]; /* whose began, one after another */
static unsigned order_count;

static void job(ldr_request_t *r)
{
    bool waits = r->frame.opcode != LDR_OP_LEASE;

    pthread_mutex_lock(&lock);
    begun[r->frame.opcode]++;
    order[order_count++] = r->tenant;
    running++;
    pthread_cond_broadcast(&changed);
    while (held && waits) {
        pthread_cond_wait(&changed, &lock);
    }
    running--;
    over++;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

/* One that looks at the queue while others are put there and taken. */
static void job_looks(ldr_request_t *r)
{
    ldr_server_t *server = r->home->server;

    ldr_mutex_lock(&server->job_lock);
    bool right = ldr_jobs_check(server);
    ldr_mutex_unlock(&server->job_lock);
    pthread_mutex_lock(&lock);
    wrong += !right;
    over++;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static void let_go(void)
{
    pthread_mutex_lock(&lock);
    held = false;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

/* Waits until so many are there. */
static void until(const unsigned *what, unsigned count)
{
    uint64_t end_ns = ldr_now_ns(&ldr_clock_real) + WAIT_NS;

    pthread_mutex_lock(&lock);
    while (*what < count && ldr_cond_wait_until(&changed, &lock, end_ns)) {
    }
    assert_int_equal(*what, count);
    pthread_mutex_unlock(&lock);
}

static void open_rig(rig_t *rig, unsigned threads)
{
    *rig = (rig_t){.server = ldr_alloc(sizeof(*rig->server))};
    rig->server->clock = &ldr_clock_real;
    ldr_mutex_init(&rig->server->job_lock);
    ldr_cond_init(&rig->server->job_wake);
    assert_true(ldr_metrics_create(&ldr_clock_real, &rig->server->metrics));
    ldr_mutex_init(&rig->home.loop.lock);
    rig->home.loop.tasks_end = &rig->home.loop.tasks;
    rig->home.server = rig->server;
    rig->session.server = rig->server;
    rig->session.home = &rig->home;
    assert_int_equal(ldr_jobs_start(rig->server, threads), LARDER_OK);
    ldr_cond_init(&changed);
    held = true;
    over = running = order_count = 0;
    memset(begun, 0, sizeof(begun));
}

static void close_rig(rig_t *rig)
{
    unsigned posted = 0;

    assert_true(ldr_jobs_stop(rig->server, UINT64_MAX / 2));
    for (ldr_task_t *t = rig->home.loop.tasks; t != NULL; t = t->next) {
        posted++;
    }
    assert_int_equal(posted, rig->count); /* each is answered, once */
    for (unsigned i = 0; i < rig->count; i++) {
        ldr_free(rig->requests[i]);
    }
    ldr_metrics_destroy(rig->server->metrics);
    pthread_cond_destroy(&rig->server->job_wake);
    pthread_mutex_destroy(&rig->server->job_lock);
    pthread_mutex_destroy(&rig->home.loop.lock);
    pthread_cond_destroy(&changed);
    ldr_free(rig->server);
}

/* False: too many are queued. */
static bool add_job(rig_t *rig, unsigned opcode, ldr_server_tenant_t *tenant,
                    void (*run)(ldr_request_t *r))
{
    ldr_request_t *r = ldr_alloc(sizeof(*r));

    assert_non_null(r);
    assert_in_range(rig->count, 0, REQUESTS - 1);
    r->tenant = tenant;
    r->home = &rig->home;
    r->session = &rig->session;
    r->frame.opcode = (uint16_t)opcode;
    r->job = run;
    r->deadline_ns = UINT64_MAX;
    if (!ldr_job(r)) {
        ldr_free(r);
        return false;
    }
    rig->requests[rig->count++] = r;
    return true;
}

static bool add_by(rig_t *rig, unsigned opcode, ldr_server_tenant_t *tenant)
{
    return add_job(rig, opcode, tenant, job);
}

static void add(rig_t *rig, unsigned opcode)
{
    assert_true(add_by(rig, opcode, NULL));
}

/* Flushes have half of the threads, all that waits leaves one. */
static void test_threads_are_left(void **state)
{
    rig_t rig;

    (void)state;
    open_rig(&rig, 4);
    for (unsigned i = 0; i < 5; i++) {
        add(&rig, LDR_OP_FLUSH);
    }
    until(&begun[LDR_OP_FLUSH], 2);
    add(&rig, LDR_OP_REMOVE);
    until(&begun[LDR_OP_REMOVE], 1);
    add(&rig, LDR_OP_RESET);
    add(&rig, LDR_OP_LEASE);
    add(&rig, LDR_OP_LEASE);
    until(&begun[LDR_OP_LEASE], 2);
    pthread_mutex_lock(&lock);
    assert_int_equal(running, 3);
    assert_int_equal(begun[LDR_OP_FLUSH], 2);
    assert_int_equal(begun[LDR_OP_RESET], 0);
    pthread_mutex_unlock(&lock);
    let_go();
    until(&over, rig.count);
    close_rig(&rig);
}

/* With one there is nothing to leave. */
static void test_one_thread(void **state)
{
    rig_t rig;

    (void)state;
    open_rig(&rig, 1);
    held = false;
    for (unsigned i = 0; i < 4; i++) {
        add(&rig, i % 2 == 0 ? LDR_OP_FLUSH : LDR_OP_LEASE);
    }
    until(&over, 4);
    close_rig(&rig);
}

/* What has not begun at the end does not run, but is answered. */
static void test_end(void **state)
{
    rig_t rig;

    (void)state;
    open_rig(&rig, 2);
    add(&rig, LDR_OP_FLUSH);
    until(&begun[LDR_OP_FLUSH], 1);
    for (unsigned i = 0; i < 3; i++) {
        add(&rig, LDR_OP_FLUSH);
    }
    pthread_mutex_lock(&rig.server->job_lock);
    __atomic_store_n(&rig.server->job_stop, true, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&rig.server->job_lock);
    let_go();
    close_rig(&rig);
    assert_int_equal(over, 1);
}

/* What is queued is what the metric says, whoever looks when: it was -1 where a
 * job was taken before it was counted. */
static void test_counted_as_queued(void **state)
{
    rig_t rig;

    (void)state;
    wrong = 0;
    for (unsigned round = 0; round < 20; round++) {
        open_rig(&rig, 3);
        while (rig.count < REQUESTS) {
            add_job(&rig, LDR_OP_LEASE, NULL, job_looks);
        }
        until(&over, rig.count);
        close_rig(&rig);
    }
    assert_int_equal(wrong, 0);
}

/* One tenant that queues all it can leaves room to the others; and when what it
 * queued has run it may queue as much again. */
static void test_tenants_share_the_queue(void **state)
{
    static ldr_server_tenant_t greedy, too, modest;
    rig_t rig;

    (void)state;
    open_rig(&rig, 4);
    while (add_by(&rig, LDR_OP_FLUSH, &greedy)) {
    }
    while (add_by(&rig, LDR_OP_FLUSH, &too)) {
    }
    assert_in_range(too.jobs_queued, 100, greedy.jobs_queued);
    ldr_mutex_lock(&rig.server->job_lock);
    assert_true(ldr_jobs_check(rig.server));
    ldr_mutex_unlock(&rig.server->job_lock);
    assert_true(add_by(&rig, LDR_OP_SPACE, &modest));
    until(&begun[LDR_OP_SPACE], 1); /* though many came before it */
    let_go();
    until(&over, rig.count);
    assert_int_equal(greedy.jobs_queued + too.jobs_queued, 0);
    assert_true(add_by(&rig, LDR_OP_FLUSH, &greedy));
    until(&over, rig.count);
    close_rig(&rig);
}

/* One tenant whose jobs wait long leaves threads to others that wait. Alone it
 * may have all but one. */
static void test_tenants_share_the_threads(void **state)
{
    static ldr_server_tenant_t greedy, modest;
    rig_t rig;

    (void)state;
    open_rig(&rig, 4);
    rig.server->tenant_count = 2;
    for (unsigned i = 0; i < 5; i++) {
        assert_true(add_by(&rig, LDR_OP_REMOVE, &greedy));
    }
    until(&begun[LDR_OP_REMOVE], 2);
    assert_true(add_by(&rig, LDR_OP_RESET, &modest));
    until(&begun[LDR_OP_RESET], 1);
    until(&begun[LDR_OP_REMOVE], 2);
    let_go();
    until(&over, rig.count);
    close_rig(&rig);
    assert_int_equal(greedy.jobs_waiting + modest.jobs_waiting, 0);

    open_rig(&rig, 4);
    rig.server->tenant_count = 1;
    for (unsigned i = 0; i < 5; i++) {
        assert_true(add_by(&rig, LDR_OP_REMOVE, &greedy));
    }
    until(&begun[LDR_OP_REMOVE], 3);
    let_go();
    until(&over, rig.count);
    close_rig(&rig);
}

/* Tenants take turns, however much one has queued before. */
static void test_tenants_take_turns(void **state)
{
    static ldr_server_tenant_t greedy, modest;
    rig_t rig;

    (void)state;
    open_rig(&rig, 1);
    rig.server->tenant_count = 2;
    for (unsigned i = 0; i < 100; i++) {
        assert_true(add_by(&rig, LDR_OP_METRICS, &greedy));
    }
    until(&begun[LDR_OP_METRICS], 1);
    for (unsigned i = 0; i < 3; i++) {
        assert_true(add_by(&rig, LDR_OP_METRICS, &modest));
    }
    let_go();
    until(&over, rig.count);
    close_rig(&rig);
    for (unsigned i = 0; i < 103; i++) {
        assert_ptr_equal(order[i],
                         i == 1 || i == 3 || i == 5 ? &modest : &greedy);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads_are_left),
        cmocka_unit_test(test_one_thread),
        cmocka_unit_test(test_end),
        cmocka_unit_test(test_counted_as_queued),
        cmocka_unit_test(test_tenants_share_the_queue),
        cmocka_unit_test(test_tenants_share_the_threads),
        cmocka_unit_test(test_tenants_take_turns),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
