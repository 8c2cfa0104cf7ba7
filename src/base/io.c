/* Requests to an I/O engine that the caller waits for. No state of its own: the
 * requests are on the caller's stack. Any thread may call. */
#include "base/io.h"

#include <semaphore.h>

static void run_done(ldr_io_req_t *req)
{
    /* The waiter may return, and its stack with the request and the semaphore
     * be gone, before sem_post() has. glibc's touches neither after the count
     * went up (POSIX asks for that); a mutex and a condition would. */
    sem_post(req->arg);
}

void ldr_io_run_all(ldr_io_t *io, ldr_io_req_t **reqs, unsigned count)
{
    sem_t finished;

    sem_init(&finished, 0, 0);
    for (unsigned i = 0; i < count; i++) {
        reqs[i]->done = run_done;
        reqs[i]->arg = &finished;
    }
    ldr_io_submit(io, reqs, count);
    while (count > 0) {
        if (sem_wait(&finished) == 0) { /* else a signal of the process's */
            count--;
        }
    }
    sem_destroy(&finished);
}

int ldr_io_run(ldr_io_t *io, ldr_io_req_t *req)
{
    ldr_io_run_all(io, &req, 1);
    return req->error;
}

static int run_buffer(ldr_io_t *io, ldr_io_kind_t kind, int file,
                      uint64_t offset, void *data, size_t bytes)
{
    struct iovec iov = {data, bytes};
    ldr_io_req_t req = {
        .kind = kind,
        .file = file,
        .offset = offset,
        .iov = &iov,
        .iov_count = kind == LDR_IO_SYNC ? 0 : 1,
    };

    return ldr_io_run(io, &req);
}

int ldr_io_read_at(ldr_io_t *io, int file, uint64_t offset, void *data,
                   size_t bytes)
{
    return run_buffer(io, LDR_IO_READ, file, offset, data, bytes);
}

int ldr_io_write_at(ldr_io_t *io, int file, uint64_t offset, const void *data,
                    size_t bytes)
{
    return run_buffer(io, LDR_IO_WRITE, file, offset, (void *)data, bytes);
}

int ldr_io_sync(ldr_io_t *io, int file)
{
    return run_buffer(io, LDR_IO_SYNC, file, 0, NULL, 0);
}
