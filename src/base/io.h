/*
 * The I/O seam: everything the store does to disks goes through this table.
 *
 * Three implementations: io_uring (io_uring.c), threads with preadv/pwritev
 * (io_plain.c), and the simulated disk of the tests (tests/sim/simdisk.c).
 * The first two share io_posix.c for what is not reading, writing or syncing.
 *
 * Requests are asynchronous. A request and all it points to belong to the
 * engine from submit() until done() is called, exactly once, on any thread
 * (also from inside submit), with no lock of the engine held. done() must not
 * block for long. A request completes whole or with an error: short transfers,
 * EINTR, EAGAIN and partial submission are the engine's business.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#define LDR_BLOCK 4096u /* unit of alignment of every transfer */

typedef struct ldr_io ldr_io_t;
typedef struct ldr_io_req ldr_io_req_t;

typedef enum ldr_io_kind {
    LDR_IO_READ,
    LDR_IO_WRITE,
    LDR_IO_SYNC /* fdatasync: what completed before is durable after */
} ldr_io_kind_t;

struct ldr_io_req {
    ldr_io_kind_t kind;
    int file;
    uint64_t offset;
    struct iovec *iov; /* the engine may change it while it works */
    unsigned iov_count;
    void (*done)(ldr_io_req_t *req);
    void *arg;

    int error; /* out: 0, or a negative errno. End of file: -ENODATA */

    /* The engine's own. */
    uint64_t moved_bytes;
    unsigned iov_at;
    unsigned stalls; /* answers in a row that moved nothing */
    ldr_io_req_t *next;
};

enum {
    LDR_IO_CREATE = 1, /* create if missing */
    LDR_IO_DIRECT = 2, /* O_DIRECT; where the file system has none, without */
    LDR_IO_READONLY = 4
};

typedef struct ldr_io_ops {
    const char *name;
    /* A file number >= 0, or a negative errno. */
    int (*open)(ldr_io_t *io, const char *path, int flags);
    void (*close)(ldr_io_t *io, int file);
    int (*size)(ldr_io_t *io, int file, uint64_t *bytes_p);
    /* Makes the file exactly this long, with its space reserved: writing to
     * it later cannot fail for want of space. */
    int (*allocate)(ldr_io_t *io, int file, uint64_t bytes);
    /* An exclusive lock that ends with the file or the process.
     * -EWOULDBLOCK: somebody else has it. */
    int (*lock)(ldr_io_t *io, int file);
    /* With its parents, durably. 0 if it exists. */
    int (*make_dir)(ldr_io_t *io, const char *path);
    int (*sync_dir)(ldr_io_t *io, const char *path);
    int (*unlink)(ldr_io_t *io, const char *path);
    /* Calls fn with each name in the directory; a nonzero answer ends it and
     * is handed on. */
    int (*list)(ldr_io_t *io, const char *path,
                int (*fn)(void *arg, const char *name), void *arg);
    void (*submit)(ldr_io_t *io, ldr_io_req_t **reqs, unsigned count);
    /* Waits for the requests in flight, ends threads, frees the engine. */
    void (*destroy)(ldr_io_t *io);
} ldr_io_ops_t;

struct ldr_io {
    const ldr_io_ops_t *ops;
};

static inline void ldr_io_submit(ldr_io_t *io, ldr_io_req_t **reqs,
                                 unsigned count)
{
    io->ops->submit(io, reqs, count);
}

/* Submits one request (its done and arg are overwritten) and waits for it.
 * Gives req->error. */
int ldr_io_run(ldr_io_t *io, ldr_io_req_t *req);

/* The same for several at once; each has its own error. */
void ldr_io_run_all(ldr_io_t *io, ldr_io_req_t **reqs, unsigned count);

/* The blocking shorthands over it, for one aligned buffer. */
int ldr_io_read_at(ldr_io_t *io, int file, uint64_t offset, void *data,
                   size_t bytes);
int ldr_io_write_at(ldr_io_t *io, int file, uint64_t offset, const void *data,
                    size_t bytes);
int ldr_io_sync(ldr_io_t *io, int file);

/* depth: requests in flight. Both give 0 or a negative errno and *io_p. */
int ldr_io_uring_create(unsigned depth, ldr_io_t **io_p);
int ldr_io_plain_create(unsigned threads, ldr_io_t **io_p);
