/*
 * A flush that somebody asks the daemon for, on a disk that is slow: it is
 * about what was saved before it, and ends with the daemon.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/mem.h"
#include "base/thread.h"
#include "client/client.h"
#include "server/session.h"
#include "support/real.h"

enum {
    BYTES = 256 << 10,
    BACKLOG = 24, /* saves that are not written yet, two to a write */
    WRITE_MS = 40,
    LONG_MS = 30000, /* a bound, no more */
};

/* ---- a disk that is slow, or hangs ---- */

static struct {
    ldr_io_t io;
    ldr_io_ops_t ops;
    ldr_io_t *real;
    bool slow, hangs; /* atomic */
} disk;

static void disk_submit(ldr_io_t *io, ldr_io_req_t **reqs, unsigned count)
{
    const struct timespec pause = {.tv_nsec = WRITE_MS * 1000000};

    (void)io;
    if (reqs[0]->kind == LDR_IO_WRITE &&
        __atomic_load_n(&disk.slow, __ATOMIC_RELAXED)) {
        do { /* one at a time: its thread's */
            nanosleep(&pause, NULL);
        } while (__atomic_load_n(&disk.hangs, __ATOMIC_RELAXED));
    }
    ldr_io_submit(disk.real, reqs, count);
}

/* ---- a daemon of which there are jobs, and nothing more ---- */

typedef struct rig {
    char dir[256];
    ldr_server_t *server;
    ldr_server_loop_t home; /* not started: what is posted stays there */
    ldr_session_t session;
    larder_t *lar;
    larder_space_t *space;
    pthread_t saver;
    bool saves, end; /* end: atomic */
    ldr_request_t *request;
} rig_t;

static void open_node(rig_t *rig)
{
    ldr_node_env_t env = {
        .io = &disk.io, .clock = &ldr_clock_real, .log = {real_log_none, NULL}};
    ldr_options_t options;

    assert_int_equal(ldr_io_plain_create(2, &disk.real), 0);
    disk.ops = *disk.real->ops; /* for files the engine does not matter */
    disk.ops.submit = disk_submit;
    disk.io.ops = &disk.ops;
    disk.slow = disk.hangs = false;
    ldr_options_default(&options);
    options.dram = 16 << 20; /* 512 KiB go with a write */
    options.ssd = 128 << 20;
    options.segment = 16 << 20;
    options.dir_count = 1;
    snprintf(options.dirs[0], sizeof(options.dirs[0]), "%s", rig->dir);
    assert_int_equal(ldr_node_open(&options, &env, &rig->server->node),
                     LARDER_OK);
    assert_int_equal(ldr_handle_open(rig->server->node, &rig->lar), LARDER_OK);
    assert_int_equal(real_space(rig->lar, "model", &rig->space), LARDER_OK);
}

static int setup(void **state)
{
    static rig_t the_rig;
    rig_t *rig = *state = &the_rig;

    *rig = (rig_t){.server = ldr_alloc(sizeof(*rig->server))};
    rig->server->clock = &ldr_clock_real;
    assert_true(real_dir_make(rig->dir, sizeof(rig->dir), "flush"));
    ldr_mutex_init(&rig->server->job_lock);
    ldr_cond_init(&rig->server->job_wake);
    assert_true(ldr_metrics_create(&ldr_clock_real, &rig->server->metrics));
    ldr_mutex_init(&rig->home.loop.lock);
    rig->home.loop.tasks_end = &rig->home.loop.tasks;
    rig->home.server = rig->session.server = rig->server;
    rig->session.home = &rig->home;
    assert_int_equal(ldr_jobs_start(rig->server, 1), LARDER_OK);
    open_node(rig);
    __atomic_store_n(&disk.slow, true, __ATOMIC_RELAXED);
    return 0;
}

static int teardown(void **state)
{
    rig_t *rig = *state;

    __atomic_store_n(&rig->end, true, __ATOMIC_RELAXED);
    __atomic_store_n(&disk.slow, false, __ATOMIC_RELAXED);
    __atomic_store_n(&disk.hangs, false, __ATOMIC_RELAXED);
    if (rig->saves) {
        pthread_join(rig->saver, NULL);
    }
    assert_true(ldr_jobs_stop(rig->server, UINT64_MAX / 2));
    if (rig->request != NULL) {
        rig->request->queued = false; /* no loop runs its `done` here */
        ldr_request_free(rig->request);
    }
    ldr_requests_destroy(&rig->home);
    larder_space_close(&rig->space);
    larder_close(&rig->lar, LARDER_FOREVER);
    disk.real->ops->destroy(disk.real);
    ldr_metrics_destroy(rig->server->metrics);
    pthread_cond_destroy(&rig->server->job_wake);
    pthread_mutex_destroy(&rig->server->job_lock);
    pthread_mutex_destroy(&rig->home.loop.lock);
    ldr_free(rig->server);
    real_dir_remove(rig->dir);
    return 0;
}

/* ---- saves and flushes ---- */

static uint64_t backlog(rig_t *rig)
{
    ldr_node_lock(rig->server->node);
    uint64_t count = rig->server->node->store.queues[0].count;
    ldr_node_unlock(rig->server->node);
    return count;
}

static uint64_t saved(rig_t *rig)
{
    ldr_node_lock(rig->server->node);
    uint64_t count = rig->server->node->store.n.saves_stored;
    ldr_node_unlock(rig->server->node);
    return count;
}

/* As fast as the disk writes, and always so much ahead of it. */
static void *saver_main(void *arg)
{
    static uint8_t value[BYTES];
    rig_t *rig = arg;
    uint64_t id = 0;

    while (!__atomic_load_n(&rig->end, __ATOMIC_RELAXED)) {
        if (backlog(rig) >= BACKLOG) {
            real_pause();
        } else {
            real_put(rig->space, id++, 1, value, BYTES);
        }
    }
    return NULL;
}

static void save(rig_t *rig)
{
    assert_int_equal(pthread_create(&rig->saver, NULL, saver_main, rig), 0);
    rig->saves = true;
    while (backlog(rig) < BACKLOG) {
        real_pause();
    }
}

static void flush(rig_t *rig)
{
    static uint8_t body[LDR_NUMBER_BYTES];
    ldr_request_t *r = rig->request = ldr_request_new(&rig->session);

    assert_non_null(r);
    r->frame =
        (ldr_frame_t){.opcode = LDR_OP_FLUSH,
                      .body = (uint32_t)ldr_put_number(body, LARDER_TIER_SSD)};
    r->body = body;
    r->deadline_ns = ldr_server_now(rig->server) + LONG_MS * (uint64_t)1000000;
    ldr_handle_flush(r);
}

static larder_status_t answer(rig_t *rig)
{
    while (!ldr_loop_posted(&rig->home.loop, &rig->request->done)) {
        real_pause();
    }
    return rig->request->status;
}

/* Saves go on, and something is always to be written that was saved lately:
 * that is not waited for. */
static void test_saves_go_on(void **state)
{
    rig_t *rig = *state;

    save(rig);
    flush(rig);
    uint64_t before = saved(rig);
    assert_int_equal(answer(rig), LARDER_OK);
    assert_true(saved(rig) > before);
}

static uint64_t queued(rig_t *rig)
{
    pthread_mutex_lock(&rig->server->job_lock);
    uint64_t count = rig->server->job_queued;
    pthread_mutex_unlock(&rig->server->job_lock);
    return count;
}

/* The disk hangs: the daemon ends all the same, long before the deadline. */
static void test_daemon_ends(void **state)
{
    rig_t *rig = *state;

    save(rig);
    __atomic_store_n(&disk.hangs, true, __ATOMIC_RELAXED);
    flush(rig);
    while (queued(rig) > 0) {
        real_pause(); /* until it has begun */
    }
    pthread_mutex_lock(&rig->server->job_lock);
    __atomic_store_n(&rig->server->job_stop, true, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&rig->server->job_lock);
    assert_int_equal(answer(rig), LARDER_E_DEADLINE);
    assert_true(ldr_server_now(rig->server) < rig->request->deadline_ns);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_saves_go_on, setup, teardown),
        cmocka_unit_test_setup_teardown(test_daemon_ends, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
