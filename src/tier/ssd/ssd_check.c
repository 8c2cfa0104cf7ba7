/*
 * What can be seen to be wrong with directories before they are opened. Called
 * by one thread, before there is a node. A thread of its own looks at each
 * directory, since a disk may hang: then that thread is left behind, and
 * whichever of the two is the last to need the probe frees it.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/thread.h"
#include "tier/ssd/ssd.h"

static const ldr_log_t no_log = {ldr_log_silent, NULL};

larder_status_t ldr_ssd_no_uring(larder_status_t st, int error)
{
    return ldr_fail(st,
                    "io_uring is not available here (%s): use io=auto or "
                    "io=plain",
                    strerror(-error));
}

static larder_status_t check_io(const ldr_options_t *o)
{
    ldr_io_t *io;
    int error = o->io == LDR_IO_URING ? ldr_io_uring_create(1, &io) : -ENOTSUP;

    if (error == 0) {
        io->ops->destroy(io);
    }
    return error == 0 || o->io != LDR_IO_URING
               ? LARDER_OK
               : ldr_ssd_no_uring(LARDER_E_IO, error);
}

/* A look at one directory, by a thread: the disk may hang. Whoever is the last
 * to need it frees it. */
typedef struct probe {
    pthread_mutex_t lock; /* of all below but params and path */
    pthread_cond_t changed;
    ldr_disk_params_t params;
    char path[LDR_PATH_MAX];
    bool done, left; /* the look, and who waited for it */
    larder_status_t status;
    char text[512];
} probe_t;

static void probe_free(probe_t *p)
{
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
    ldr_free(p);
}

static void *probe_main(void *arg)
{
    probe_t *p = arg;
    larder_status_t st = LARDER_OK; /* without a thread nothing is seen */

    ldr_fail_clear();
    if (ldr_io_plain_create(1, &p->params.io) == 0) {
        st = ldr_disk_check(&p->params);
        p->params.io->ops->destroy(p->params.io);
    }
    ldr_mutex_lock(&p->lock);
    p->done = true;
    p->status = st;
    snprintf(p->text, sizeof(p->text), "%s", ldr_fail_text());
    bool left = p->left;
    pthread_cond_broadcast(&p->changed);
    ldr_mutex_unlock(&p->lock);
    if (left) {
        probe_free(p);
    }
    return NULL;
}

/* What the look found; that of a disk which does not answer goes on: it is not
 * asked any more. */
static larder_status_t probe_await(probe_t *p, pthread_t thread)
{
    uint64_t deadline_ns = ldr_now_ns(&ldr_clock_real) + LDR_OPEN_NS;
    bool in_time = true;

    ldr_mutex_lock(&p->lock);
    while (!p->done && in_time) {
        in_time = ldr_cond_wait_until(&p->changed, &p->lock, deadline_ns);
    }
    bool done = p->done;
    p->left = !done;
    ldr_mutex_unlock(&p->lock);
    if (!done) {
        pthread_detach(thread);
        return LARDER_OK;
    }
    pthread_join(thread, NULL);
    larder_status_t st = p->status;
    if (st != LARDER_OK) {
        ldr_fail(st, "%s",
                 p->text[0] != '\0' ? p->text : larder_status_text(st));
    }
    probe_free(p);
    return st;
}

static larder_status_t check_disk(const ldr_options_t *o, unsigned number,
                                  const ldr_predecessor_t *owner)
{
    probe_t *p = ldr_alloc(sizeof(*p));
    pthread_t thread;

    if (p == NULL || !ldr_cond_init(&p->changed)) {
        ldr_free(p);
        return LARDER_E_NO_MEMORY;
    }
    ldr_mutex_init(&p->lock);
    snprintf(p->path, sizeof(p->path), "%s", o->dirs[number]);
    p->params = (ldr_disk_params_t){
        .log = &no_log,
        .path = p->path,
        .bytes = o->ssd,
        .segment_bytes = o->segment,
        .owns = owner->has,
        .owner = owner->id,
    };
    if (!ldr_thread_start(&thread, "larder-check", probe_main, p)) {
        probe_free(p);
        return ldr_fail(LARDER_E_NO_MEMORY, "cannot start a thread");
    }
    return probe_await(p, thread);
}

larder_status_t ldr_ssd_check(const ldr_options_t *o,
                              const ldr_predecessor_t *owner)
{
    larder_status_t st = check_io(o);

    for (unsigned i = 0; i < o->dir_count && st == LARDER_OK; i++) {
        st = check_disk(o, i, owner);
    }
    return st;
}
