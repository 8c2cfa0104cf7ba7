/* Threads of the simulation, one at a time, and their clock: see simnet.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/bytes.h"
#include "base/log.h"
#include "sim/simnet_int.h"

#define READ_NS 50u
#define STACK_BYTES ((size_t)512 << 10)

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

static __thread thread_t *me;

static uint64_t due_ns(const thread_t *t)
{
    uint64_t stopped_ns =
        ldr_max64(t->stopped_ns, t->net->stopped_ns[t->place]);

    return t->ready ? stopped_ns : ldr_max64(t->until_ns, stopped_ns);
}

/* Each thread is a context of its own on the one thread of the process: what a
 * test does at once does not depend on the kernel, and to change to another
 * costs less than a microsecond. A lock is only ever waited for by a thread of
 * the simulation that holds none, so that none is ever contended. */
static void change_to(thread_t *to)
{
    thread_t *from = me;

    if (to == from) {
        return;
    }
    snprintf(from->text, sizeof(from->text), "%s", ldr_fail_text());
    me = to;
#if defined(__SANITIZE_ADDRESS__)
    void *fake = NULL;
    __sanitizer_start_switch_fiber(from->done ? NULL : &fake, to->stack,
                                   to->stack != NULL ? STACK_BYTES : 0);
#endif
    swapcontext(&from->context, &to->context);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake, NULL, NULL);
#endif
    ldr_fail(LARDER_E_INVALID, "%s", from->text);
}

/* Lets another run, chosen by chance among those that can. With the lock, which
 * goes with it. */
static void pass_on(sim_net_t *net)
{
    thread_t *can[THREADS_MAX];
    unsigned count = 0;
    uint64_t next_ns = UINT64_MAX;

    for (unsigned i = 0; i < net->thread_count; i++) {
        if (!net->threads[i].done) {
            next_ns = ldr_min64(next_ns, due_ns(&net->threads[i]));
        }
    }
    if (next_ns == UINT64_MAX) {
        fprintf(stderr, "simulation: all threads wait for ever\n");
        abort();
    }
    net->now_ns = ldr_max64(net->now_ns, next_ns);
    for (unsigned i = 0; i < net->thread_count; i++) {
        thread_t *t = &net->threads[i];

        if (!t->done && due_ns(t) <= net->now_ns) {
            can[count++] = t;
        }
    }
    change_to(can[ldr_rand_below(&net->rand, count)]);
}

void sim_block(sim_net_t *net, const void *channel, uint64_t until_ns)
{
    me->channel = channel;
    me->until_ns = until_ns;
    me->ready = false;
    pass_on(net);
    me->ready = true;
    me->channel = NULL;
    me->until_ns = UINT64_MAX;
}

void sim_wake(sim_net_t *net, const void *channel)
{
    for (unsigned i = 0; i < net->thread_count; i++) {
        if (net->threads[i].channel == channel) {
            net->threads[i].ready = true;
        }
    }
}

static void thread_main(void)
{
    thread_t *t = me;

#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(NULL, NULL, NULL);
#endif
    pthread_mutex_unlock(&t->net->lock);
    t->run(t->arg);
    pthread_mutex_lock(&t->net->lock);
    t->done = true;
    sim_wake(t->net, t);
    pass_on(t->net); /* and never comes back */
    abort();
}

static thread_t *thread_new(sim_net_t *net)
{
    unsigned at = 0;

    while (at < net->thread_count && !net->threads[at].joined) {
        at++;
    }
    if (at == THREADS_MAX) {
        return NULL;
    }
    thread_t *t = &net->threads[at];
    net->thread_count += at == net->thread_count;
    t->net = net;
    t->id = ++net->started;
    t->text[0] = '\0';
    t->ready = true;
    t->done = t->joined = false;
    t->place = me != NULL ? me->place : 0;
    t->channel = NULL;
    t->until_ns = UINT64_MAX;
    t->stopped_ns = 0;
    return t;
}

/* A thread's last frames never return, and ASan would have their variables for
 * poisoned, whatever is at these addresses next. */
static void stack_clean(const thread_t *t)
{
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(t->stack, STACK_BYTES);
#else
    (void)t;
#endif
}

static thread_t *start(sim_net_t *net, void *(*run)(void *), void *run_arg)
{
    pthread_mutex_lock(&net->lock);
    thread_t *t = thread_new(net);
    if (t != NULL && t->stack == NULL) {
        t->stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    }
    if (t == NULL || t->stack == MAP_FAILED) {
        fprintf(stderr, "simulation: too many threads\n");
        abort();
    }
    stack_clean(t);
    t->run = run;
    t->arg = run_arg;
    getcontext(&t->context);
    t->context.uc_stack.ss_sp = t->stack;
    t->context.uc_stack.ss_size = STACK_BYTES;
    t->context.uc_link = NULL;
    makecontext(&t->context, thread_main, 0);
    pthread_mutex_unlock(&net->lock);
    return t;
}

static bool op_start(void *arg, pthread_t *thread, const char *name,
                     void *(*run)(void *), void *run_arg)
{
    thread_t *t = start(arg, run, run_arg);

    (void)name;
    *thread = (pthread_t)t->id;
    return true;
}

static void join(sim_net_t *net, thread_t *t)
{
    pthread_mutex_lock(&net->lock);
    while (!t->done) {
        sim_block(net, t, UINT64_MAX);
    }
    t->joined = true;
    pthread_mutex_unlock(&net->lock);
}

static void op_join(void *arg, pthread_t id)
{
    sim_net_t *net = arg;

    for (unsigned i = 1; i < net->thread_count; i++) {
        if (!net->threads[i].joined && net->threads[i].id == (uint64_t)id) {
            join(net, &net->threads[i]);
            return;
        }
    }
}

static void op_wait(void *arg, pthread_cond_t *cond, pthread_mutex_t *lock,
                    uint64_t until_ns)
{
    sim_net_t *net = arg;

    pthread_mutex_lock(&net->lock);
    pthread_mutex_unlock(lock);
    sim_block(net, cond, until_ns);
    pthread_mutex_unlock(&net->lock);
    pthread_mutex_lock(lock);
}

static void op_wake(void *arg, pthread_cond_t *cond, bool all)
{
    sim_net_t *net = arg;

    (void)all; /* who is woken for nothing looks and waits again */
    pthread_mutex_lock(&net->lock);
    sim_wake(net, cond);
    pthread_mutex_unlock(&net->lock);
}

static void op_sleep(void *arg, uint64_t ns)
{
    sim_net_t *net = arg;

    pthread_mutex_lock(&net->lock);
    sim_block(net, NULL, net->now_ns + ns);
    pthread_mutex_unlock(&net->lock);
}

static uint64_t op_now(void *arg)
{
    sim_net_t *net = arg;

    pthread_mutex_lock(&net->lock);
    if (me != NULL) { /* others look, and change nothing */
        net->now_ns += READ_NS;
    }
    uint64_t now_ns = net->now_ns;
    pthread_mutex_unlock(&net->lock);
    return now_ns;
}

static uint64_t op_wall(void *arg)
{
    return op_now(arg) / SIM_MS;
}

unsigned sim_start(sim_net_t *net, void *(*run)(void *), void *arg)
{
    thread_t *t = start(net, run, arg);

    return (unsigned)(t - net->threads);
}

void sim_join(sim_net_t *net, unsigned thread)
{
    join(net, &net->threads[thread]);
}

void sim_stop(sim_net_t *net, unsigned thread, uint64_t until_ns)
{
    net->threads[thread].stopped_ns = until_ns;
}

void sim_place(sim_net_t *net, unsigned place)
{
    (void)net;
    me->place = place;
}

void sim_stop_place(sim_net_t *net, unsigned place, uint64_t until_ns)
{
    net->stopped_ns[place] = until_ns;
}

void sim_sleep(sim_net_t *net, uint64_t ns)
{
    op_sleep(net, ns);
}

uint64_t sim_now(sim_net_t *net)
{
    return net->now_ns;
}

/* ---- life ---- */

void sim_threads_open(sim_net_t *net)
{
    net->clock = (ldr_clock_t){op_now, op_wall, net};
    net->ops =
        (ldr_threads_t){op_start, op_join, op_wait, op_wake, op_sleep, net};
    me = thread_new(net);
}

void sim_threads_close(sim_net_t *net)
{
    for (unsigned i = 0; i < net->thread_count; i++) {
        if (net->threads[i].stack != NULL) {
            stack_clean(&net->threads[i]);
            munmap(net->threads[i].stack, STACK_BYTES);
        }
    }
    me = NULL;
}
