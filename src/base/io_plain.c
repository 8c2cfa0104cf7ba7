/*
 * I/O by threads with preadv, pwritev and fdatasync: for kernels and
 * containers that forbid io_uring.
 *
 * One queue under one mutex. A thread that finished takes the next request
 * itself; submit wakes no more threads than sleep, and from inside done() one
 * fewer than there are requests. A request is in the queue or with exactly one
 * thread.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/io.h"
#include "base/io_posix.h"
#include "base/mem.h"
#include "base/thread.h"

#define THREADS_MAX 1024u

typedef struct plain {
    ldr_io_t io;
    pthread_mutex_t mutex; /* of all below */
    pthread_cond_t work;
    ldr_io_list_t queue;
    unsigned idle; /* threads that wait for work */
    bool stopping;
    unsigned thread_count;
    pthread_t threads[];
} plain_t;

/* In a thread that calls done(): the engine that it belongs to. */
static _Thread_local const plain_t *finishing;

/* As with a disk that does not answer, until the point is disarmed. */
static void hang(void)
{
    const struct timespec pause = {.tv_nsec = 1000000};

    while (LDR_FAULT(io_hang)) {
        nanosleep(&pause, NULL);
    }
}

static ssize_t transfer(const ldr_io_req_t *req)
{
    ldr_posix_part_t part;
    ssize_t result;

    hang();
    if (req->kind == LDR_IO_SYNC) {
        return fdatasync(req->file) == 0 ? 0 : -errno;
    }
    ldr_posix_next(req, &part);
    if (part.count == 1) {
        result = req->kind == LDR_IO_READ
                     ? pread(req->file, part.iov->iov_base, part.bytes,
                             (off_t)part.offset)
                     : pwrite(req->file, part.iov->iov_base, part.bytes,
                              (off_t)part.offset);
    } else {
        result = req->kind == LDR_IO_READ
                     ? preadv(req->file, part.iov, (int)part.count,
                              (off_t)part.offset)
                     : pwritev(req->file, part.iov, (int)part.count,
                               (off_t)part.offset);
    }
    return result >= 0 ? result : -errno;
}

static void *plain_run(void *arg)
{
    plain_t *p = arg;
    ldr_io_req_t *req;

    ldr_mutex_lock(&p->mutex);
    for (;;) {
        req = ldr_io_list_take(&p->queue);
        if (req != NULL) {
            ldr_mutex_unlock(&p->mutex);
            while (ldr_posix_again(req, transfer(req))) {
                /* the rest of it */
            }
            finishing = p;
            req->done(req);
            finishing = NULL;
            ldr_mutex_lock(&p->mutex);
        } else if (p->stopping) {
            /* What another thread's done() still submits, that thread takes
             * itself when done() has returned. */
            break;
        } else {
            p->idle++;
            pthread_cond_wait(&p->work, &p->mutex);
            p->idle--;
        }
    }
    ldr_mutex_unlock(&p->mutex);
    return NULL;
}

static void plain_submit(ldr_io_t *io, ldr_io_req_t **reqs, unsigned count)
{
    plain_t *p = (plain_t *)io;
    unsigned wake;

    for (unsigned i = 0; i < count; i++) {
        ldr_posix_begin(reqs[i]);
    }
    ldr_mutex_lock(&p->mutex);
    for (unsigned i = 0; i < count; i++) {
        ldr_io_list_append(&p->queue, reqs[i]);
    }
    wake = p->queue.count;
    if (finishing == p && wake > 0) {
        wake--; /* this thread is about to take one */
    }
    wake = p->idle < wake ? p->idle : wake;
    /* Under the mutex: after it, a thread's done() could let the owner
     * destroy the engine. */
    while (wake-- > 0) {
        pthread_cond_signal(&p->work);
    }
    ldr_mutex_unlock(&p->mutex);
}

static void plain_destroy(ldr_io_t *io)
{
    plain_t *p = (plain_t *)io;

    ldr_mutex_lock(&p->mutex);
    p->stopping = true;
    pthread_cond_broadcast(&p->work);
    ldr_mutex_unlock(&p->mutex);
    for (unsigned i = 0; i < p->thread_count; i++) {
        pthread_join(p->threads[i], NULL);
    }
    pthread_cond_destroy(&p->work);
    pthread_mutex_destroy(&p->mutex);
    ldr_free(p);
}

static const ldr_io_ops_t plain_ops = {
    .name = "plain",
    LDR_POSIX_FILE_OPS,
    .submit = plain_submit,
    .destroy = plain_destroy,
};

int ldr_io_plain_create(unsigned threads, ldr_io_t **io_p)
{
    int result = 0;
    plain_t *p;

    threads = threads < 1 ? 1 : threads > THREADS_MAX ? THREADS_MAX : threads;
    p = ldr_alloc(sizeof(*p) + threads * sizeof(p->threads[0]));
    if (p == NULL) {
        return -ENOMEM;
    }
    p->io.ops = &plain_ops;
    ldr_mutex_init(&p->mutex);
    pthread_cond_init(&p->work, NULL);
    ldr_io_list_init(&p->queue);
    while (p->thread_count < threads) {
        char name[16];

        snprintf(name, sizeof(name), "larder-io-%u", p->thread_count);
        result =
            ldr_posix_thread(&p->threads[p->thread_count], name, plain_run, p);
        if (result != 0) {
            break;
        }
        p->thread_count++;
    }
    /* Some threads fewer than asked for are slower and nothing else. */
    if (p->thread_count == 0) {
        plain_destroy(&p->io);
        return result;
    }
    *io_p = &p->io;
    return 0;
}
