/*
 * I/O by one io_uring.
 *
 * A request is in one of three places: the queue (the ring is full), the ring
 * (counted by ring_count, at most depth: so an SQE is always available and the
 * CQ ring cannot overflow), or with the thread that calls its done().
 *
 * The submission side is under the mutex; any thread may submit and none ever
 * waits for room. The completion side is the reaper's alone. Whoever cannot
 * submit all of it leaves the rest in the SQ ring, to be offered again with
 * the next completion.
 *
 * Completions come in groups, and most of them are followed by a request that
 * done() submits: the reaper sends those off together when all owners have
 * heard, since each call into the kernel, and each doorbell of a virtual disk,
 * costs more than a small read.
 */
#include "base/io.h"

#ifndef LDR_HAVE_URING
#if defined(__has_include)
#if __has_include(<liburing.h>)
#define LDR_HAVE_URING 1
#endif
#endif
#endif

#if LDR_HAVE_URING

#include <errno.h>
#include <liburing.h>
#include <pthread.h>
#include <sched.h>

#include "base/fault.h"
#include "base/io_posix.h"
#include "base/mem.h"
#include "base/thread.h"

#define DEPTH_MAX 4096u
#define REAP_MAX 64u

/* How often the ring may refuse all, with nothing in flight whose completion
 * would make it better, before the requests in it fail. */
#define REFUSALS_MAX 1000u

typedef struct uring {
    ldr_io_t io;
    unsigned depth;
    pthread_t reaper;
    struct io_uring ring;
    pthread_mutex_t mutex; /* of all below, and of ring's submission side */
    ldr_io_list_t queue;
    unsigned ring_count;    /* requests in the ring, taken by it or not */
    unsigned pending_count; /* requests whose done() has not returned */
    bool stopping;
} uring_t;

/* In the reaper, while it calls done(): the engine that it belongs to. */
static _Thread_local const uring_t *finishing;

static void request_prepare(struct io_uring_sqe *sqe, ldr_io_req_t *req)
{
    ldr_posix_part_t part;

    if (req->kind == LDR_IO_SYNC) {
        io_uring_prep_fsync(sqe, req->file, IORING_FSYNC_DATASYNC);
        io_uring_sqe_set_data(sqe, req);
        return;
    }
    ldr_posix_next(req, &part);
    if (part.count == 1 && req->kind == LDR_IO_READ) {
        io_uring_prep_read(sqe, req->file, part.iov->iov_base,
                           (unsigned)part.bytes, part.offset);
    } else if (part.count == 1) {
        io_uring_prep_write(sqe, req->file, part.iov->iov_base,
                            (unsigned)part.bytes, part.offset);
    } else if (req->kind == LDR_IO_READ) {
        io_uring_prep_readv(sqe, req->file, part.iov, part.count, part.offset);
    } else {
        io_uring_prep_writev(sqe, req->file, part.iov, part.count, part.offset);
    }
    io_uring_sqe_set_data(sqe, req);
}

/* Offers the SQ ring to the kernel. Gives how many it took, or a negative
 * errno. */
static int enter_ring(uring_t *u)
{
    unsigned held = 0;

    if (LDR_FAULT(io_submit_partial)) {
        held = (io_uring_sq_ready(&u->ring) + 1) / 2;
    }
    u->ring.sq.sqe_tail -= held;
    int result = io_uring_submit(&u->ring);
    u->ring.sq.sqe_tail += held;
    return result;
}

/* The ring takes nothing and nothing is under way: takes back what lies in
 * the SQ ring. The kernel reads that only inside io_uring_enter(). */
static void withdraw(uring_t *u, int error, ldr_io_list_t *failed)
{
    struct io_uring_sq *sq = &u->ring.sq;
    unsigned head = *sq->khead;

    for (unsigned at = head; at != sq->sqe_tail; at++) {
        struct io_uring_sqe *sqe = &sq->sqes[at & *sq->kring_mask];
        ldr_io_req_t *req = (ldr_io_req_t *)(uintptr_t)sqe->user_data;

        u->ring_count--;
        req->error = error < 0 ? error : -EIO;
        ldr_io_list_append(failed, req);
    }
    *sq->ktail = head;
    sq->sqe_head = head;
    sq->sqe_tail = head;
}

static void ring_flush(uring_t *u, ldr_io_list_t *failed)
{
    unsigned refusals = 0;

    while (io_uring_sq_ready(&u->ring) > 0) {
        int result = enter_ring(u);
        if (result > 0) {
            refusals = 0;
            continue;
        }
        if (u->ring_count > io_uring_sq_ready(&u->ring)) {
            return; /* with the next completion the reaper tries again */
        }
        if (++refusals == REFUSALS_MAX) {
            withdraw(u, result, failed);
            return;
        }
        sched_yield();
    }
}

/* Moves the queue into the ring as far as there is room, and the ring to the
 * kernel. Under the mutex. Requests that cannot be submitted go to failed,
 * for the caller to finish without it. Ends with an empty queue or with
 * something in the ring, whose completion goes on from here. */
static void pump(uring_t *u, ldr_io_list_t *failed)
{
    do {
        while (u->ring_count < u->depth && u->queue.head != NULL) {
            u->ring_count++;
            request_prepare(io_uring_get_sqe(&u->ring),
                            ldr_io_list_take(&u->queue));
        }
        ring_flush(u, failed);
    } while (u->ring_count == 0 && u->queue.head != NULL);
}

/* Wakes the reaper when there is nothing in flight that would. Under the
 * mutex. */
static void ring_wake(uring_t *u)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);

    io_uring_prep_nop(sqe);
    io_uring_sqe_set_data(sqe, NULL);
    while (io_uring_submit(&u->ring) < 1) {
        sched_yield();
    }
}

static void uring_submit(ldr_io_t *io, ldr_io_req_t **reqs, unsigned count)
{
    uring_t *u = (uring_t *)io;
    ldr_io_list_t failed;
    unsigned failed_count;

    ldr_io_list_init(&failed);
    for (unsigned i = 0; i < count; i++) {
        ldr_posix_begin(reqs[i]);
    }
    ldr_mutex_lock(&u->mutex);
    for (unsigned i = 0; i < count; i++) {
        ldr_io_list_append(&u->queue, reqs[i]);
    }
    u->pending_count += count;
    if (finishing != u) {
        pump(u, &failed);
    }
    failed_count = failed.count;
    ldr_mutex_unlock(&u->mutex);
    if (failed_count > 0) {
        ldr_io_list_finish(&failed);
        ldr_mutex_lock(&u->mutex);
        u->pending_count -= failed_count;
        if (u->stopping && u->pending_count == 0) {
            ring_wake(u);
        }
        ldr_mutex_unlock(&u->mutex);
    }
}

/* Takes what the ring has completed: requests that ended to finished, the
 * others to the head of the queue. Under the mutex, which is also how the
 * reaper comes to see what the submitter wrote. */
static void ring_reap(uring_t *u, ldr_io_list_t *finished)
{
    struct io_uring_cqe *cqes[REAP_MAX];
    unsigned count = io_uring_peek_batch_cqe(&u->ring, cqes, REAP_MAX);

    for (unsigned i = 0; i < count; i++) {
        ldr_io_req_t *req = io_uring_cqe_get_data(cqes[i]);

        if (req == NULL) {
            continue; /* the wake-up of destroy */
        }
        u->ring_count--;
        if (ldr_posix_again(req, cqes[i]->res)) {
            ldr_io_list_prepend(&u->queue, req);
        } else {
            ldr_io_list_append(finished, req);
        }
    }
    io_uring_cq_advance(&u->ring, count);
}

static void *uring_run(void *arg)
{
    uring_t *u = arg;
    struct io_uring_cqe *cqe;
    ldr_io_list_t finished;
    bool stop = false;

    ldr_io_list_init(&finished);
    while (!stop) {
        if (io_uring_wait_cqe(&u->ring, &cqe) != 0) {
            continue; /* EINTR: a debugger, a stopped process */
        }
        /* What waits goes to the disk first, then the owners hear. */
        ldr_mutex_lock(&u->mutex);
        ring_reap(u, &finished);
        do {
            pump(u, &finished);
            unsigned count = finished.count;
            ldr_mutex_unlock(&u->mutex);

            finishing = u;
            ldr_io_list_finish(&finished);
            finishing = NULL;

            ldr_mutex_lock(&u->mutex);
            u->pending_count -= count;
            /* Until what they submitted is in the ring, or has failed. */
        } while (u->queue.head != NULL && u->ring_count < u->depth);
        stop = u->stopping && u->pending_count == 0;
        ldr_mutex_unlock(&u->mutex);
    }
    return NULL;
}

static void uring_destroy(ldr_io_t *io)
{
    uring_t *u = (uring_t *)io;

    ldr_mutex_lock(&u->mutex);
    u->stopping = true;
    if (u->pending_count == 0) {
        ring_wake(u);
    }
    ldr_mutex_unlock(&u->mutex);
    pthread_join(u->reaper, NULL);
    io_uring_queue_exit(&u->ring);
    pthread_mutex_destroy(&u->mutex);
    ldr_free(u);
}

static const ldr_io_ops_t uring_ops = {
    .name = "io_uring",
    LDR_POSIX_FILE_OPS,
    .submit = uring_submit,
    .destroy = uring_destroy,
};

int ldr_io_uring_create(unsigned depth, ldr_io_t **io_p)
{
    int result;
    uring_t *u;

    if (LDR_FAULT(io_uring_denied)) {
        return -EPERM;
    }
    u = ldr_alloc(sizeof(*u));
    if (u == NULL) {
        return -ENOMEM;
    }
    u->io.ops = &uring_ops;
    u->depth = depth < 1 ? 1 : depth > DEPTH_MAX ? DEPTH_MAX : depth;
    ldr_io_list_init(&u->queue);
    result = io_uring_queue_init(u->depth, &u->ring, 0);
    if (result != 0) {
        goto err_free;
    }
    /* Came with Linux 5.7; plain reads and writes with 5.6. */
    if (!(u->ring.features & IORING_FEAT_FAST_POLL)) {
        result = -ENOSYS;
        goto err_ring;
    }
    ldr_mutex_init(&u->mutex);
    result = ldr_posix_thread(&u->reaper, "larder-io", uring_run, u);
    if (result != 0) {
        goto err_mutex;
    }
    *io_p = &u->io;
    return 0;

err_mutex:
    pthread_mutex_destroy(&u->mutex);
err_ring:
    io_uring_queue_exit(&u->ring);
err_free:
    ldr_free(u);
    return result;
}

#else /* !LDR_HAVE_URING */

#include <errno.h>

int ldr_io_uring_create(unsigned depth, ldr_io_t **io_p)
{
    (void)depth;
    (void)io_p;
    return -ENOSYS;
}

#endif
