/*
 * An event loop: epoll, tasks from other threads, and polling. loop.h has the
 * invariants. Any thread may post a task, which takes the loop's lock;
 * descriptors are watched and tasks run in the loop's own thread.
 *
 * Polling: a loop that found work looks again for spin_ns before it sleeps, and
 * for longer while the gaps between requests are short and come again.
 */
#include "server/loop.h"

#include <errno.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"

#define EVENTS_MAX 64
#define LOOK_EVERY 16u      /* rounds of polling between looks at descriptors */
#define LOOK_NS 1000000u    /* and the longest time */
#define GAP_MAX_NS 1000000u /* longer breaks are slept through */
#define TRUST_MIN 2u        /* to poll for more than spin_ns */
#define TRUST_MAX 8u

static __thread const ldr_loop_t *here; /* whose thread this is */

larder_status_t ldr_loop_init(ldr_loop_t *loop, void *owner,
                              const ldr_loop_hooks_t *hooks,
                              const ldr_clock_t *clock, uint64_t spin_ns)
{
    struct epoll_event event = {.events = EPOLLIN};

    *loop = (ldr_loop_t){
        .owner = owner, .hooks = hooks, .clock = clock, .spin_ns = spin_ns};
    loop->tasks_end = &loop->tasks;
    ldr_mutex_init(&loop->lock);
    loop->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    loop->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (loop->epoll_fd < 0 || loop->wake_fd < 0 ||
        epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, loop->wake_fd, &event) != 0) {
        ldr_loop_destroy(loop);
        return ldr_fail(LARDER_E_NO_MEMORY,
                        "cannot make an event loop: raise the limit of open "
                        "files (ulimit -n)");
    }
    return LARDER_OK;
}

void ldr_loop_destroy(ldr_loop_t *loop)
{
    if (loop->epoll_fd > 0) {
        close(loop->epoll_fd);
    }
    if (loop->wake_fd > 0) {
        close(loop->wake_fd);
    }
    loop->epoll_fd = loop->wake_fd = -1;
    pthread_mutex_destroy(&loop->lock);
}

/* ---- descriptors ---- */

bool ldr_loop_watch(ldr_loop_t *loop, ldr_watch_t *watch, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = watch};

    LDR_DEBUG_ASSERT(ldr_loop_is_here(loop));
    LDR_ASSERT(watch->fd >= 0 && watch->ready != NULL);
    watch->events = events;
    return epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, watch->fd, &event) == 0;
}

void ldr_loop_rewatch(ldr_loop_t *loop, ldr_watch_t *watch, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = watch};

    LDR_DEBUG_ASSERT(ldr_loop_is_here(loop));
    if (watch->events != events && watch->fd >= 0) {
        watch->events = events;
        epoll_ctl(loop->epoll_fd, EPOLL_CTL_MOD, watch->fd, &event);
    }
}

void ldr_loop_unwatch(ldr_loop_t *loop, ldr_watch_t *watch)
{
    LDR_DEBUG_ASSERT(ldr_loop_is_here(loop));
    if (watch->fd >= 0) {
        epoll_ctl(loop->epoll_fd, EPOLL_CTL_DEL, watch->fd, NULL);
    }
}

/* ---- tasks ---- */

static void wake(ldr_loop_t *loop)
{
    uint64_t one = 1;

    if (write(loop->wake_fd, &one, sizeof(one)) < 0) {
        /* It is full: the loop is woken already. */
    }
}

void ldr_loop_post(ldr_loop_t *loop, ldr_task_t *task)
{
    LDR_ASSERT(task->run != NULL);
    ldr_mutex_lock(&loop->lock);
    LDR_ASSERT(*loop->tasks_end == NULL);
    if (!task->posted) {
        task->posted = true;
        task->next = NULL;
        *loop->tasks_end = task;
        loop->tasks_end = &task->next;
    }
    bool asleep = loop->asleep;
    loop->asleep = false;
    ldr_mutex_unlock(&loop->lock);
    if (asleep) {
        wake(loop);
    }
}

bool ldr_loop_posted(ldr_loop_t *loop, const ldr_task_t *task)
{
    ldr_mutex_lock(&loop->lock);
    bool posted = task->posted;
    ldr_mutex_unlock(&loop->lock);
    return posted;
}

/* Runs those that are there; what they post comes in the next round, or two
 * busy sessions could keep everything else waiting. True: there were some. */
static bool run_tasks(ldr_loop_t *loop)
{
    ldr_mutex_lock(&loop->lock);
    ldr_task_t *task = loop->tasks;
    loop->tasks = NULL;
    loop->tasks_end = &loop->tasks;
    ldr_mutex_unlock(&loop->lock);

    bool any = task != NULL;
    while (task != NULL) {
        ldr_mutex_lock(&loop->lock);
        ldr_task_t *next = task->next;
        LDR_ASSERT(task->posted);
        task->posted = false;
        ldr_mutex_unlock(&loop->lock);
        task->run(task); /* may free it */
        task = next;
    }
    return any;
}

/* ---- the loop ---- */

/* False: a task came, do not sleep. */
static bool fall_asleep(ldr_loop_t *loop)
{
    ldr_mutex_lock(&loop->lock);
    loop->asleep = loop->tasks == NULL && !loop->stop;
    bool asleep = loop->asleep;
    ldr_mutex_unlock(&loop->lock);
    return asleep;
}

static void wait_events(ldr_loop_t *loop, uint64_t next_ns, bool sleep)
{
    struct epoll_event events[EVENTS_MAX];
    int timeout_ms = 0;

    if (sleep) {
        uint64_t now_ns = ldr_now_ns(loop->clock);

        timeout_ms = next_ns == UINT64_MAX ? -1
                     : next_ns <= now_ns
                         ? 0
                         : (int)((next_ns - now_ns + 999999) / 1000000);
    }
    int count = epoll_wait(loop->epoll_fd, events, EVENTS_MAX, timeout_ms);
    ldr_mutex_lock(&loop->lock);
    loop->asleep = false;
    ldr_mutex_unlock(&loop->lock);
    for (int i = 0; i < count; i++) {
        ldr_watch_t *watch = events[i].data.ptr;

        if (watch == NULL) {
            uint64_t drained;

            if (read(loop->wake_fd, &drained, sizeof(drained)) < 0) {
                /* Nothing there: somebody else's wake was enough. */
            }
        } else if (watch->fd >= 0) {
            watch->ready(watch, events[i].events);
        }
    }
}

static bool stopping(ldr_loop_t *loop)
{
    ldr_mutex_lock(&loop->lock);
    bool stop = loop->stop && loop->tasks == NULL;
    ldr_mutex_unlock(&loop->lock);
    return stop;
}

/*
 * How long to poll before sleeping. Being woken costs tens of microseconds on
 * either side, as much as copying a megabyte: while messages keep coming after
 * short breaks, polling through a break is cheaper than sleeping through it.
 * Breaks come in patterns (one while little is copied, one while much is), so
 * the longest of the last few counts. Whether polling as long as that would
 * have done is known of every break, also of those that were slept through:
 * where it often would not, it is not tried.
 */
static uint64_t reach(const ldr_loop_t *loop)
{
    uint64_t longest = 0;

    for (unsigned i = 0; i < LDR_LOOP_GAPS; i++) {
        longest = loop->gaps[i] > longest ? loop->gaps[i] : longest;
    }
    return 2 * longest > loop->spin_ns ? 2 * longest : loop->spin_ns;
}

static uint64_t spin_for(const ldr_loop_t *loop)
{
    return loop->spin_ns == 0 || loop->trust < TRUST_MIN ? loop->spin_ns
                                                         : reach(loop);
}

/* A break is over. */
static void gap_over(ldr_loop_t *loop, uint64_t ns)
{
    if (ns > reach(loop)) {
        loop->trust /= 2;
    } else if (loop->trust < TRUST_MAX) {
        loop->trust++;
    }
    if (ns <= GAP_MAX_NS) {
        loop->gaps[loop->gap_next++ % LDR_LOOP_GAPS] = ns;
    }
}

bool ldr_loop_is_here(const ldr_loop_t *loop)
{
    return here == loop || !__atomic_load_n(&loop->runs, __ATOMIC_ACQUIRE);
}

static void *loop_main(void *arg)
{
    ldr_loop_t *loop = arg;
    uint64_t idle_ns = 0; /* since when nothing came; 0: something did */
    uint64_t look_ns = 0; /* the last look at descriptors, when busy */
    unsigned looks = 0;

    here = loop;
    __atomic_store_n(&loop->runs, true, __ATOMIC_RELEASE);
    while (!stopping(loop)) {
        bool tasks = run_tasks(loop);
        ldr_loop_found_t found = loop->hooks->poll(loop);
        uint64_t now_ns = ldr_now_ns(loop->clock);
        uint64_t next_ns = loop->hooks->tick(loop, now_ns);

        if (tasks || found == LDR_LOOP_BUSY) {
            if (found == LDR_LOOP_BUSY && idle_ns != 0) {
                gap_over(loop, now_ns - idle_ns);
            }
            idle_ns = 0;
            if (tasks || ++looks % LOOK_EVERY == 0 ||
                now_ns - look_ns > LOOK_NS) {
                look_ns = now_ns;
                wait_events(loop, next_ns, false);
            }
            continue;
        }
        if (idle_ns == 0) {
            idle_ns = now_ns;
        }
        if (found == LDR_LOOP_WARM && now_ns - idle_ns < spin_for(loop)) {
            if (++looks % LOOK_EVERY == 0) {
                wait_events(loop, next_ns, false);
                sched_yield(); /* a client may want this core */
            }
            ldr_relax();
            continue;
        }
        bool sleep = loop->hooks->sleep(loop) && fall_asleep(loop);
        wait_events(loop, next_ns, sleep);
    }
    __atomic_store_n(&loop->runs, false, __ATOMIC_RELEASE);
    return NULL;
}

bool ldr_loop_start(ldr_loop_t *loop, const char *name)
{
    loop->started = ldr_thread_start(&loop->thread, name, loop_main, loop);
    return loop->started;
}

void ldr_loop_stop(ldr_loop_t *loop)
{
    if (!loop->started) {
        return;
    }
    ldr_mutex_lock(&loop->lock);
    loop->stop = true;
    ldr_mutex_unlock(&loop->lock);
    wake(loop);
    pthread_join(loop->thread, NULL);
    loop->started = false;
}
