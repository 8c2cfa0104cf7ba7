/*
 * What the two real engines share: files and directories, threads, and the
 * bookkeeping of one transfer. Their fault points sit here, so that both
 * engines fail alike.
 */
#pragma once

#include <pthread.h>
#include <sys/types.h>

#include "base/io.h"

int ldr_posix_open(ldr_io_t *io, const char *path, int flags);
void ldr_posix_close(ldr_io_t *io, int file);
int ldr_posix_size(ldr_io_t *io, int file, uint64_t *bytes_p);
int ldr_posix_allocate(ldr_io_t *io, int file, uint64_t bytes);
int ldr_posix_lock(ldr_io_t *io, int file);
int ldr_posix_make_dir(ldr_io_t *io, const char *path);
int ldr_posix_sync_dir(ldr_io_t *io, const char *path);
int ldr_posix_unlink(ldr_io_t *io, const char *path);
int ldr_posix_list(ldr_io_t *io, const char *path,
                   int (*fn)(void *arg, const char *name), void *arg);

/* Their places in an engine's table. */
#define LDR_POSIX_FILE_OPS                                                     \
    .open = ldr_posix_open, .close = ldr_posix_close, .size = ldr_posix_size,  \
    .allocate = ldr_posix_allocate, .lock = ldr_posix_lock,                    \
    .make_dir = ldr_posix_make_dir, .sync_dir = ldr_posix_sync_dir,            \
    .unlink = ldr_posix_unlink, .list = ldr_posix_list

/* A thread with every signal blocked: the process belongs to somebody else,
 * and so do its handlers. Gives 0 or a negative errno. */
int ldr_posix_thread(pthread_t *thread_p, const char *name,
                     void *(*run)(void *arg), void *arg);

/* A list of requests through req->next. */
typedef struct ldr_io_list {
    ldr_io_req_t *head;
    ldr_io_req_t **tail; /* points to head when empty */
    unsigned count;
} ldr_io_list_t;

static inline void ldr_io_list_init(ldr_io_list_t *list)
{
    list->head = NULL;
    list->tail = &list->head;
    list->count = 0;
}

static inline void ldr_io_list_append(ldr_io_list_t *list, ldr_io_req_t *req)
{
    req->next = NULL;
    *list->tail = req;
    list->tail = &req->next;
    list->count++;
}

static inline void ldr_io_list_prepend(ldr_io_list_t *list, ldr_io_req_t *req)
{
    req->next = list->head;
    list->head = req;
    if (list->tail == &list->head) {
        list->tail = &req->next;
    }
    list->count++;
}

static inline ldr_io_req_t *ldr_io_list_take(ldr_io_list_t *list)
{
    ldr_io_req_t *req = list->head;

    if (req != NULL) {
        list->head = req->next;
        if (list->head == NULL) {
            list->tail = &list->head;
        }
        list->count--;
    }
    return req;
}

/* Calls done() of each: the list's requests are gone after. */
static inline void ldr_io_list_finish(ldr_io_list_t *list)
{
    ldr_io_req_t *req;

    while ((req = ldr_io_list_take(list)) != NULL) {
        req->done(req);
    }
}

/*
 * One transfer, from begin to the end:
 *
 *     ldr_posix_begin(req);
 *     do {
 *         ldr_posix_next(req, &part);
 *         result = what the kernel says to part;
 *     } while (ldr_posix_again(req, result));
 *     req->done(req);
 */
typedef struct ldr_posix_part {
    struct iovec *iov;
    unsigned count; /* 1: only the first `bytes` of *iov */
    size_t bytes;
    uint64_t offset;
} ldr_posix_part_t;

void ldr_posix_begin(ldr_io_req_t *req);

/* The part of a read or a write to ask for now. */
void ldr_posix_next(const ldr_io_req_t *req, ldr_posix_part_t *part);

/* Takes the kernel's answer: a count or a negative errno. False: the request
 * has ended and req->error is set. True: issue the next part. */
bool ldr_posix_again(ldr_io_req_t *req, ssize_t result);
