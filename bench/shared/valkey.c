/*
 * The Valkey back end of the shared tier as fast as it goes: threads that put
 * or get values, each by its own connection. bench/shared/valkey.py runs it
 * beside redis-benchmark.
 *
 *   valkey URL put|get SIZE CONNECTIONS SECONDS
 *
 * Prints bytes per second. Every value that is got is compared with what it
 * must be before the clock starts, and one in 16 while it runs.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "tier/shared/backend.h"

#define VALUES 16u        /* of each thread */
#define PIECE (64u << 10) /* as an arena's pages */
#define CALL_NS ((uint64_t)60 * 1000000000u)

typedef struct worker {
    pthread_t thread;
    ldr_backend_t *backend;
    unsigned number;
    bool puts;
    size_t size;
    uint64_t until_ns;
    uint64_t bytes, end_ns; /* what it did */
    pthread_barrier_t *start;
} worker_t;

static void must(bool ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "%s: %s\n", what, ldr_fail_text());
        exit(1);
    }
}

static void fill(uint64_t *data, size_t size, unsigned worker, unsigned value)
{
    uint64_t seed = ((uint64_t)worker << 32 | value) * 0x9e3779b97f4a7c15u;

    for (size_t i = 0; i < size / 8; i++) {
        data[i] = seed + i * 0xbf58476d1ce4e5b9u;
    }
}

static uint64_t deadline(void)
{
    return ldr_now_ns(&ldr_clock_real) + CALL_NS;
}

static void *work(void *arg)
{
    worker_t *w = arg;
    ldr_backend_t *b = w->backend;
    unsigned pieces = (unsigned)((w->size + PIECE - 1) / PIECE);
    struct iovec *iov = ldr_alloc(pieces * sizeof(*iov));
    uint8_t *data = ldr_alloc_blocks(w->size);
    uint8_t *want = ldr_alloc_blocks(w->size);
    char name[64];

    must(iov != NULL && data != NULL && want != NULL, "memory");
    for (unsigned i = 0; i < pieces; i++) {
        size_t left = w->size - (size_t)i * PIECE;
        iov[i].iov_base = data + (size_t)i * PIECE;
        iov[i].iov_len = left < PIECE ? left : PIECE;
    }
    for (unsigned i = 0; i < VALUES; i++) {
        snprintf(name, sizeof(name), "bench/%u/%u", w->number, i);
        fill((uint64_t *)data, w->size, w->number, i);
        must(b->ops->put(b, name, iov, pieces, 0, deadline()) == 0, name);
        memset(data, 0, w->size);
        must(b->ops->get(b, name, 0, iov, pieces, deadline()) == 0, name);
        fill((uint64_t *)want, w->size, w->number, i);
        must(memcmp(data, want, w->size) == 0, "other bytes");
    }
    pthread_barrier_wait(w->start);
    for (unsigned i = 0; ldr_now_ns(&ldr_clock_real) <
                         __atomic_load_n(&w->until_ns, __ATOMIC_ACQUIRE);
         i++) {
        snprintf(name, sizeof(name), "bench/%u/%u", w->number, i % VALUES);
        if (w->puts) {
            must(b->ops->put(b, name, iov, pieces, 0, deadline()) == 0, name);
        } else {
            must(b->ops->get(b, name, 0, iov, pieces, deadline()) == 0, name);
            if (i % VALUES == VALUES - 1) {
                must(memcmp(data, want, w->size) == 0, "other bytes");
            }
        }
        w->bytes += w->size;
    }
    w->end_ns = ldr_now_ns(&ldr_clock_real);
    ldr_free(iov);
    ldr_free(data);
    ldr_free(want);
    return NULL;
}

int main(int argc, char **argv)
{
    static worker_t workers[256];
    pthread_barrier_t start;
    ldr_backend_t *backend = NULL;
    uint64_t bytes = 0, begin, end = 0;

    if (argc != 6) {
        fprintf(stderr, "valkey URL put|get SIZE CONNECTIONS SECONDS\n");
        return 2;
    }
    size_t size = strtoull(argv[3], NULL, 10);
    unsigned count = (unsigned)strtoul(argv[4], NULL, 10);
    ldr_backend_params_t params = {
        .url = argv[1], .login = "", .threads = count, .clock = &ldr_clock_real};
    must(count > 0 && count <= 256 && size >= 4096 && size % 8 == 0, "usage");
    must(ldr_backend_open(&params, &backend) == LARDER_OK, "open");
    pthread_barrier_init(&start, NULL, count + 1);
    for (unsigned i = 0; i < count; i++) {
        workers[i] = (worker_t){.backend = backend,
                                .number = i,
                                .puts = strcmp(argv[2], "put") == 0,
                                .size = size,
                                .until_ns = UINT64_MAX,
                                .start = &start};
        must(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0,
             "thread");
    }
    pthread_barrier_wait(&start);
    begin = ldr_now_ns(&ldr_clock_real);
    for (unsigned i = 0; i < count; i++) {
        __atomic_store_n(&workers[i].until_ns,
                         begin + (uint64_t)(strtod(argv[5], NULL) * 1e9),
                         __ATOMIC_RELEASE);
    }
    for (unsigned i = 0; i < count; i++) {
        pthread_join(workers[i].thread, NULL);
        bytes += workers[i].bytes;
        end = workers[i].end_ns > end ? workers[i].end_ns : end;
    }
    printf("%.0f\n", (double)bytes / ((double)(end - begin) / 1e9));
    backend->ops->destroy(backend);
    return 0;
}
