/* The event loop: tasks from other threads, descriptors, sleeping. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "server/loop.h"

#define THREADS 3
#define TASKS 20000

typedef struct rig {
    ldr_loop_t loop;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned ran;
    unsigned ticks;
    unsigned sleeps;
    bool may_sleep;
} rig_t;

typedef struct job {
    ldr_task_t task;
    rig_t *rig;
} job_t;

static ldr_loop_found_t hook_poll(ldr_loop_t *loop)
{
    (void)loop;
    return LDR_LOOP_COLD;
}

static bool hook_sleep(ldr_loop_t *loop)
{
    rig_t *rig = loop->owner;

    rig->sleeps++;
    return true;
}

static uint64_t hook_tick(ldr_loop_t *loop, uint64_t now_ns)
{
    rig_t *rig = loop->owner;

    (void)now_ns;
    rig->ticks++;
    return UINT64_MAX;
}

static const ldr_loop_hooks_t hooks = {hook_poll, hook_sleep, hook_tick};

static void rig_open(rig_t *rig)
{
    *rig = (rig_t){0};
    pthread_mutex_init(&rig->lock, NULL);
    pthread_cond_init(&rig->changed, NULL);
    assert_int_equal(ldr_loop_init(&rig->loop, rig, &hooks, &ldr_clock_real, 0),
                     LARDER_OK);
    assert_true(ldr_loop_start(&rig->loop, "test-loop"));
}

static void rig_close(rig_t *rig)
{
    ldr_loop_stop(&rig->loop);
    ldr_loop_destroy(&rig->loop);
    pthread_cond_destroy(&rig->changed);
    pthread_mutex_destroy(&rig->lock);
}

static void ran(rig_t *rig)
{
    pthread_mutex_lock(&rig->lock);
    rig->ran++;
    pthread_cond_broadcast(&rig->changed);
    pthread_mutex_unlock(&rig->lock);
}

static void wait_ran(rig_t *rig, unsigned count)
{
    pthread_mutex_lock(&rig->lock);
    while (rig->ran < count) {
        pthread_cond_wait(&rig->changed, &rig->lock);
    }
    pthread_mutex_unlock(&rig->lock);
}

static void run_job(ldr_task_t *task)
{
    ran(((job_t *)task)->rig);
}

static void *post_many(void *arg)
{
    job_t *jobs = arg;

    for (unsigned i = 0; i < TASKS; i++) {
        ldr_loop_post(&jobs[i].rig->loop, &jobs[i].task);
    }
    return NULL;
}

/* Every task runs exactly once, whoever posts beside it; the loop sleeps in
 * between, and no wake-up is lost (a lost one would hang this test). */
static void test_tasks(void **state)
{
    static job_t jobs[THREADS][TASKS];
    pthread_t threads[THREADS];
    rig_t rig;

    (void)state;
    rig_open(&rig);
    for (unsigned t = 0; t < THREADS; t++) {
        for (unsigned i = 0; i < TASKS; i++) {
            jobs[t][i] = (job_t){{.run = run_job}, &rig};
        }
        assert_int_equal(pthread_create(&threads[t], NULL, post_many, jobs[t]),
                         0);
    }
    for (unsigned t = 0; t < THREADS; t++) {
        pthread_join(threads[t], NULL);
    }
    wait_ran(&rig, THREADS * TASKS);
    for (unsigned i = 0; i < 200; i++) { /* one at a time: it sleeps between */
        job_t one = {{.run = run_job}, &rig};

        ldr_loop_post(&rig.loop, &one.task);
        wait_ran(&rig, THREADS * TASKS + i + 1);
        ldr_loop_t *loop = &rig.loop;
        assert_false(ldr_loop_posted(loop, &one.task));
    }
    rig_close(&rig);
    assert_int_equal(rig.ran, THREADS * TASKS + 200);
    assert_true(rig.sleeps > 0);
}

/* Posted again before it ran: still once. What is posted runs before the loop
 * ends. */
static void test_once(void **state)
{
    rig_t rig = {0};
    job_t a = {{.run = run_job}, &rig}, b = {{.run = run_job}, &rig};

    (void)state;
    pthread_mutex_init(&rig.lock, NULL);
    pthread_cond_init(&rig.changed, NULL);
    assert_int_equal(ldr_loop_init(&rig.loop, &rig, &hooks, &ldr_clock_real, 0),
                     LARDER_OK);
    ldr_loop_post(&rig.loop, &a.task);
    ldr_loop_post(&rig.loop, &a.task);
    ldr_loop_post(&rig.loop, &b.task);
    assert_true(ldr_loop_posted(&rig.loop, &a.task));
    assert_true(ldr_loop_start(&rig.loop, "test-loop"));
    rig_close(&rig);
    assert_int_equal(rig.ran, 2);
}

/* ---- descriptors ---- */

typedef struct pair {
    rig_t rig;
    ldr_watch_t first, second;
    job_t add;
    unsigned first_calls, second_calls;
} pair_t;

static void first_ready(ldr_watch_t *watch, uint32_t events)
{
    pair_t *p = (pair_t *)((char *)watch - offsetof(pair_t, first));
    uint64_t n;

    (void)events;
    assert_int_equal(read(watch->fd, &n, sizeof(n)), sizeof(n));
    p->first_calls++;
    /* Closes the other, which is ready in the same round perhaps. */
    if (p->second.fd >= 0) {
        ldr_loop_unwatch(&p->rig.loop, &p->second);
        close(p->second.fd);
        p->second.fd = -1;
    }
    ran(&p->rig);
}

static void second_ready(ldr_watch_t *watch, uint32_t events)
{
    pair_t *p = (pair_t *)((char *)watch - offsetof(pair_t, second));

    (void)events;
    p->second_calls++;
    ldr_loop_rewatch(&p->rig.loop, watch, 0); /* not again */
}

static void add_both(ldr_task_t *task)
{
    pair_t *p = (pair_t *)((char *)task - offsetof(pair_t, add));

    assert_true(ldr_loop_watch(&p->rig.loop, &p->first, EPOLLIN));
    assert_true(ldr_loop_watch(&p->rig.loop, &p->second, EPOLLIN));
}

static void test_watch_closed_by_another(void **state)
{
    pair_t p = {0};

    (void)state;
    rig_open(&p.rig);
    p.first = (ldr_watch_t){.fd = eventfd(1, 0), .ready = first_ready};
    p.second = (ldr_watch_t){.fd = eventfd(1, 0), .ready = second_ready};
    int first = p.first.fd;
    p.add = (job_t){{.run = add_both}, &p.rig};
    ldr_loop_post(&p.rig.loop, &p.add.task);
    wait_ran(&p.rig, 1);
    rig_close(&p.rig);
    close(first);
    assert_int_equal(p.first_calls, 1);
    assert_in_range(p.second_calls, 0, 1);
    assert_int_equal(p.second.fd, -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tasks),
        cmocka_unit_test(test_once),
        cmocka_unit_test(test_watch_closed_by_another),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
