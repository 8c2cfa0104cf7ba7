/*
 * The raw disk: what io_uring and O_DIRECT give with nothing in between; and,
 * with `via`, what is left of it when another thread copies every byte between
 * the disk's buffers and the caller's, with a checksum, as a tier that keeps
 * what it moves has to. Where the disk is as fast as memory, the two share it.
 */
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/copy.h"
#include "base/mem.h"
#include "base/thread.h"
#include "bench.h"

bool ldr_raw_create(const char *path, uint64_t bytes)
{
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    if (fd < 0) {
        return false;
    }
    bool ok = posix_fallocate(fd, 0, (off_t)bytes) == 0 && fsync(fd) == 0;
    close(fd);
    return ok;
}

#if LDR_HAVE_URING

#include <liburing.h>

/* ---- the other thread ---- */

/* A piece of the file that is in a slot of via. */
typedef struct piece {
    uint64_t offset;
    uint32_t slot;
} piece_t;

/* A queue with room for all slots. */
typedef struct queue {
    pthread_mutex_t lock;
    pthread_cond_t filled;
    piece_t *ring;
    uint64_t capacity, head, tail;
} queue_t;

typedef struct relay {
    const ldr_raw_t *raw;
    queue_t free, full; /* slots to be filled, slots to be emptied */
    pthread_t thread;
} relay_t;

static bool queue_init(queue_t *q, uint64_t capacity)
{
    *q = (queue_t){.ring = ldr_alloc(capacity * sizeof(*q->ring)),
                   .capacity = capacity};
    ldr_mutex_init(&q->lock);
    ldr_cond_init(&q->filled);
    return q->ring != NULL;
}

static void queue_destroy(queue_t *q)
{
    ldr_free(q->ring);
    pthread_mutex_destroy(&q->lock);
    pthread_cond_destroy(&q->filled);
}

static void queue_push(queue_t *q, piece_t piece)
{
    ldr_mutex_lock(&q->lock);
    q->ring[q->tail++ % q->capacity] = piece;
    pthread_cond_signal(&q->filled);
    ldr_mutex_unlock(&q->lock);
}

static bool queue_pop(queue_t *q, bool wait, piece_t *piece_p)
{
    ldr_mutex_lock(&q->lock);
    while (wait && q->head == q->tail) {
        pthread_cond_wait(&q->filled, &q->lock);
    }
    bool any = q->head != q->tail;
    if (any) {
        *piece_p = q->ring[q->head++ % q->capacity];
    }
    ldr_mutex_unlock(&q->lock);
    return any;
}

/* For reads it empties slots in the order they come; for writes it fills them
 * in the order of the file. */
static void *relay_main(void *arg)
{
    relay_t *r = arg;
    const ldr_raw_t *raw = r->raw;
    uint64_t count = raw->bytes / raw->size;
    piece_t p = {0, 0};

    for (uint64_t i = 0; i < count; i++) {
        queue_pop(raw->write ? &r->free : &r->full, true, &p);
        uint8_t *slot = raw->via + p.slot * raw->size;

        if (raw->write) {
            p.offset = i * raw->size;
            ldr_copy_crc32c(0, slot, raw->pool + p.offset, raw->size);
        } else {
            ldr_copy_crc32c(0, raw->pool + p.offset, slot, raw->size);
        }
        queue_push(raw->write ? &r->full : &r->free, p);
    }
    return NULL;
}

static bool relay_start(relay_t *r, const ldr_raw_t *raw)
{
    uint64_t slots = raw->via_bytes / raw->size;

    *r = (relay_t){.raw = raw};
    if (!queue_init(&r->free, slots) || !queue_init(&r->full, slots)) {
        return false;
    }
    for (uint32_t i = 0; i < slots; i++) {
        queue_push(&r->free, (piece_t){0, i});
    }
    return ldr_thread_start(&r->thread, "bench-copy", relay_main, r);
}

/* ---- the disk ---- */

/* Where the next request goes to or comes from; false: nowhere just now. */
static bool next_piece(const ldr_raw_t *raw, relay_t *r, uint64_t next,
                       bool wait, piece_t *p)
{
    if (raw->via == NULL) {
        *p = (piece_t){next, 0};
        return true;
    }
    if (!queue_pop(raw->write ? &r->full : &r->free, wait, p)) {
        return false;
    }
    if (!raw->write) {
        p->offset = next;
    }
    return true;
}

static void submit(const ldr_raw_t *raw, struct io_uring *ring, int fd,
                   piece_t p)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
    uint8_t *at =
        raw->via != NULL ? raw->via + p.slot * raw->size : raw->pool + p.offset;

    if (raw->write) {
        io_uring_prep_write(sqe, fd, at, (unsigned)raw->size, p.offset);
    } else {
        io_uring_prep_read(sqe, fd, at, (unsigned)raw->size, p.offset);
    }
    /* Slots and pieces of a file both fit 32 bits. */
    io_uring_sqe_set_data64(sqe, p.offset / raw->size << 32 | p.slot);
}

static bool pass(const ldr_raw_t *raw, relay_t *r, struct io_uring *ring,
                 int fd)
{
    uint64_t end = raw->bytes / raw->size * raw->size;
    uint64_t next = 0, done = 0;
    struct io_uring_cqe *cqe;
    unsigned flying = 0;
    piece_t p;

    while (done < end) {
        while (flying < raw->depth && next < end &&
               next_piece(raw, r, next, flying == 0, &p)) {
            submit(raw, ring, fd, p);
            next += raw->size;
            flying++;
        }
        if (io_uring_submit_and_wait(ring, 1) < 0) {
            return false;
        }
        while (io_uring_peek_cqe(ring, &cqe) == 0) {
            if (cqe->res != (int)raw->size) {
                return false;
            }
            if (raw->via != NULL) {
                p.offset = (cqe->user_data >> 32) * raw->size;
                p.slot = (uint32_t)cqe->user_data;
                queue_push(raw->write ? &r->free : &r->full, p);
            }
            io_uring_cqe_seen(ring, cqe);
            flying--;
            done += raw->size;
        }
    }
    return !raw->write || fdatasync(fd) == 0;
}

double ldr_raw_pass(const ldr_raw_t *raw)
{
    struct io_uring ring;
    double seconds = 0;
    relay_t r;
    int fd = open(raw->path, O_RDWR | O_DIRECT | O_CLOEXEC);

    if (fd < 0) {
        return 0;
    }
    if (io_uring_queue_init(raw->depth, &ring, 0) == 0) {
        double begin = ldr_bench_now();
        bool ok = raw->via == NULL || relay_start(&r, raw);

        ok = ok && pass(raw, &r, &ring, fd);
        if (raw->via != NULL && ok) {
            pthread_join(r.thread, NULL);
            queue_destroy(&r.free);
            queue_destroy(&r.full);
        }
        seconds = ok ? ldr_bench_now() - begin : 0;
        io_uring_queue_exit(&ring);
    }
    close(fd);
    return seconds;
}

#else

double ldr_raw_pass(const ldr_raw_t *raw)
{
    (void)raw;
    return 0;
}

#endif
