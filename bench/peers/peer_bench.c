/*
 * peer_bench STORE WHERE OP SIZE BYTES BATCH SECONDS
 *
 * Measures one store: OP is get or put, of values of SIZE bytes, BYTES of them
 * in all, BATCH at a time, for at least SECONDS of timed work. One line of
 * JSON: the median of rounds in GB/s.
 *
 * A round walks over all values once, each in its own part of a buffer that is
 * larger than the caches. What it moved is compared with what it must be after
 * the clock has stopped; buffers are spoilt before each get. A put writes keys
 * that are new to the store; they are read back and removed after the round.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "peer.h"

#define ROUNDS_MIN 3u
#define ROUNDS_MAX 4096u
#define SPOILT 0xa5

void fail(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    fputs("peer_bench: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

void *must_alloc(size_t bytes)
{
    void *p = calloc(1, bytes);

    if (p == NULL) {
        fail("no memory");
    }
    return p;
}

/* ---- rounds ---- */

typedef struct bench {
    const peer_ops_t *ops;
    peer_t *peer;
    uint8_t *pool;
    size_t size, bytes;
    unsigned batch, count; /* values in a batch, and in all */
    bool put;
    uint32_t generation;
    uint64_t verified;
} bench_t;

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static value_t value_at(const bench_t *b, unsigned i)
{
    return (value_t){i, b->generation, b->pool + (size_t)i * b->size};
}

typedef void (*batch_fn)(peer_t *peer, const value_t *values, unsigned count);

/* All values, a batch at a time; how long it took. */
static double walk(const bench_t *b, batch_fn run)
{
    value_t values[BATCH_MAX];
    double begin = now();

    for (unsigned i = 0; i < b->count; i += b->batch) {
        unsigned n = b->count - i < b->batch ? b->count - i : b->batch;

        for (unsigned k = 0; k < n; k++) {
            values[k] = value_at(b, i + k);
        }
        run(b->peer, values, n);
    }
    return now() - begin;
}

static void make_all(const bench_t *b)
{
    for (unsigned i = 0; i < b->count; i++) {
        value_t v = value_at(b, i);

        content_make(v.data, b->size, v.number, v.generation);
    }
}

static void check_all(bench_t *b)
{
    for (unsigned i = 0; i < b->count; i++) {
        value_t v = value_at(b, i);

        if (!content_is(v.data, b->size, v.number, v.generation)) {
            fail("%s gave other bytes for value %u", b->ops->name, i);
        }
    }
    b->verified += b->bytes;
}

static double get_round(bench_t *b)
{
    memset(b->pool, SPOILT, b->bytes);
    double seconds = walk(b, b->ops->get);
    check_all(b);
    return seconds;
}

static double put_round(bench_t *b)
{
    b->generation++;
    make_all(b);
    double seconds = walk(b, b->ops->put);
    get_round(b);
    walk(b, b->ops->remove);
    return seconds;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void measure(bench_t *b, double seconds)
{
    static double took[ROUNDS_MAX];
    double all = 0;
    unsigned n = 0;

    if (!b->put) {
        make_all(b);
        walk(b, b->ops->put);
    }
    /* One round that does not count: memory of both sides becomes resident. */
    (void)(b->put ? put_round(b) : get_round(b));
    while (n < ROUNDS_MIN || (all < seconds && n < ROUNDS_MAX)) {
        took[n] = b->put ? put_round(b) : get_round(b);
        all += took[n++];
    }
    qsort(took, n, sizeof(took[0]), by_value);
    printf("{\"store\":\"%s\",\"op\":\"%s\",\"bytes\":%zu,\"batch\":%u,"
           "\"value\":%.3f,\"best\":%.3f,\"unit\":\"GB/s\",\"rounds\":%u,"
           "\"verified\":%llu}\n",
           b->ops->name, b->put ? "put" : "get", b->size, b->batch,
           (double)b->bytes / took[n / 2] * 1e-9,
           (double)b->bytes / took[0] * 1e-9, n,
           (unsigned long long)b->verified);
}

static const peer_ops_t *ops_of(const char *name)
{
    static const peer_ops_t *const all[] = {&peer_larder, &peer_redis,
                                            &peer_memcached};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        if (strcmp(all[i]->name, name) == 0) {
            return all[i];
        }
    }
    fail("%s: no such store", name);
}

int main(int argc, char **argv)
{
    bench_t b = {0};

    if (argc != 8) {
        fail("usage: peer_bench STORE WHERE get|put SIZE BYTES BATCH SECONDS");
    }
    b.ops = ops_of(argv[1]);
    b.put = strcmp(argv[3], "put") == 0;
    b.size = strtoull(argv[4], NULL, 10);
    b.count =
        b.size >= 8 ? (unsigned)(strtoull(argv[5], NULL, 10) / b.size) : 0;
    b.batch = (unsigned)strtoul(argv[6], NULL, 10);
    if (b.size % 8 != 0 || b.count == 0 || b.batch == 0 ||
        b.batch > BATCH_MAX || (!b.put && strcmp(argv[3], "get") != 0)) {
        fail("arguments that make no sense");
    }
    b.bytes = b.count * b.size;
    b.pool = mmap(NULL, b.bytes, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (b.pool == MAP_FAILED) {
        fail("no memory for %zu bytes", b.bytes);
    }
    madvise(b.pool, b.bytes, MADV_HUGEPAGE);
    memset(b.pool, SPOILT, b.bytes);
    b.peer = b.ops->open(argv[2], b.size);
    measure(&b, strtod(argv[7], NULL));
    b.ops->close(b.peer);
    munmap(b.pool, b.bytes);
    return 0;
}
