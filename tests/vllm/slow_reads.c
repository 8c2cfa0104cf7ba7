/*
 * A slow disk, for a daemon that is started with this in LD_PRELOAD and with
 * io=plain: all reads together are given so many bytes a second as the file
 * $SLOW_READS says (8 bytes, native order; 0: no limit), which may change at
 * any time.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define SMALL 4096 /* bytes: not what a tier is made of */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static uint64_t free_ns; /* when all that was read so far is paid for */
static const volatile uint64_t *limit;

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("SLOW_READS");
    int fd = path != NULL ? open(path, O_RDONLY | O_CLOEXEC) : -1;

    if (fd < 0) {
        abort(); /* a test that throttles nothing must not pass */
    }
    void *map = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (map == MAP_FAILED) {
        abort();
    }
    limit = map;
}

static void pay(ssize_t bytes)
{
    uint64_t per_second = limit != NULL ? *limit : 0;
    struct timespec at;

    if (bytes < SMALL || per_second == 0) {
        return;
    }
    clock_gettime(CLOCK_MONOTONIC, &at);
    uint64_t now = (uint64_t)at.tv_sec * 1000000000u + (uint64_t)at.tv_nsec;
    pthread_mutex_lock(&mutex);
    free_ns = (free_ns > now ? free_ns : now) +
              (uint64_t)bytes * 1000000000u / per_second;
    uint64_t until = free_ns;
    pthread_mutex_unlock(&mutex);
    at.tv_sec = (time_t)(until / 1000000000u);
    at.tv_nsec = (long)(until % 1000000000u);
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) != 0) {
    }
}

ssize_t pread(int fd, void *data, size_t bytes, off_t offset)
{
    static ssize_t (*real)(int, void *, size_t, off_t);

    if (real == NULL) {
        real =
            (ssize_t(*)(int, void *, size_t, off_t))dlsym(RTLD_NEXT, "pread");
    }
    ssize_t got = real(fd, data, bytes, offset);
    pay(got);
    return got;
}

ssize_t preadv(int fd, const struct iovec *iov, int count, off_t offset)
{
    static ssize_t (*real)(int, const struct iovec *, int, off_t);

    if (real == NULL) {
        real = (ssize_t(*)(int, const struct iovec *, int, off_t))dlsym(
            RTLD_NEXT, "preadv");
    }
    ssize_t got = real(fd, iov, count, offset);
    pay(got);
    return got;
}
