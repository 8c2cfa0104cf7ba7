/* The raw disk: what io_uring and O_DIRECT give with nothing in between. */
#include <fcntl.h>
#include <unistd.h>

#include "base/bytes.h"
#include "cli/bench.h"

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

static bool pass(const ldr_raw_t *raw, struct io_uring *ring, int fd)
{
    uint64_t end = raw->bytes / raw->size * raw->size;
    uint64_t next = 0, done = 0;
    struct io_uring_cqe *cqe;
    unsigned flying = 0;

    while (done < end) {
        for (; flying < raw->depth && next < end; next += raw->size) {
            struct io_uring_sqe *sqe = io_uring_get_sqe(ring);

            if (raw->write) {
                io_uring_prep_write(sqe, fd, raw->pool + next,
                                    (unsigned)raw->size, next);
            } else {
                io_uring_prep_read(sqe, fd, raw->pool + next,
                                   (unsigned)raw->size, next);
            }
            flying++;
        }
        if (io_uring_submit_and_wait(ring, 1) < 0) {
            return false;
        }
        while (io_uring_peek_cqe(ring, &cqe) == 0) {
            if (cqe->res != (int)raw->size) {
                return false;
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
    int fd = open(raw->path, O_RDWR | O_DIRECT | O_CLOEXEC);

    if (fd < 0) {
        return 0;
    }
    if (io_uring_queue_init(raw->depth, &ring, 0) == 0) {
        double begin = ldr_bench_now();

        if (pass(raw, &ring, fd)) {
            seconds = ldr_bench_now() - begin;
        }
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
