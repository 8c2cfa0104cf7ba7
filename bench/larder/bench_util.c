/* Time, memory, items and nodes for the figures. */
#include <dirent.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/thread.h"
#include "bench.h"

#define BLOCK 4096u
#define RESIDENT_SECONDS 60.0

/* ---- time ---- */

double ldr_bench_now(void)
{
    return (double)ldr_now_ns(&ldr_clock_real) * 1e-9;
}

void ldr_samples_add(ldr_samples_t *s, double value)
{
    if (s->count < LDR_SAMPLES_MAX) {
        s->value[s->count++] = value;
    }
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double ldr_samples_at(ldr_samples_t *s, double p)
{
    if (s->count == 0) {
        return 0;
    }
    qsort(s->value, s->count, sizeof(s->value[0]), by_value);
    return s->value[(unsigned)((s->count - 1) * p + 0.5)];
}

/* ---- memory ---- */

/* Of the last level. */
static uint64_t cache_bytes(void)
{
    char path[80];
    unsigned long long kib = 0, most = 0;

    for (int i = 0; i < 8; i++) {
        snprintf(path, sizeof(path),
                 "/sys/devices/system/cpu/cpu0/cache/index%d/size", i);
        FILE *f = fopen(path, "re");
        if (f == NULL) {
            break;
        }
        if (fscanf(f, "%lluK", &kib) == 1 && kib > most) {
            most = kib;
        }
        fclose(f);
    }
    return most > 0 ? most * 1024 : 32 * LDR_MIB;
}

uint64_t ldr_bench_pool_bytes(void)
{
    uint64_t bytes = ldr_max64(4 * cache_bytes(), 128 * LDR_MIB);

    bytes = ldr_min64(bytes, ldr_memory_limit() / 16);
    return ldr_div_up(bytes, 64 * LDR_MIB) * 64 * LDR_MIB;
}

uint8_t *ldr_pool_create(uint64_t bytes)
{
    uint8_t *pool = ldr_reserve(bytes);

    if (pool != NULL) {
        madvise(pool, bytes, MADV_HUGEPAGE);
        memset(pool, 1, bytes);
    }
    return pool;
}

void ldr_pool_destroy(uint8_t *pool, uint64_t bytes)
{
    ldr_unreserve(pool, bytes);
}

void ldr_pool_random(uint8_t *pool, uint64_t bytes, uint64_t seed)
{
    ldr_rand_t r;

    ldr_rand_seed(&r, seed);
    for (uint64_t i = 0; i < bytes; i += 8) {
        uint64_t v = ldr_rand_next(&r);
        memcpy(pool + i, &v, 8);
    }
}

void ldr_pool_stamp(uint8_t *pool, uint64_t bytes, uint64_t number)
{
    for (uint64_t i = 0; i < bytes; i += BLOCK) {
        uint64_t v = number << 40 ^ i;
        memcpy(pool + i, &v, 8);
    }
}

bool ldr_pool_verify(uint8_t *written, const uint8_t *expected, uint64_t bytes)
{
    if (memcmp(written, expected, bytes) != 0) {
        return false;
    }
    for (uint64_t i = 0; i < bytes; i += BLOCK) {
        written[i + 1] ^= 0xff;
        written[i + BLOCK - 1] ^= 0xff;
    }
    return true;
}

bool ldr_bench_extent(ldr_extent_t *extent, uint64_t bytes)
{
    bool ok = ldr_extent_create(extent, bytes);

    for (uint64_t i = 0; i < bytes && ok; i += 2 * LDR_MIB) {
        ok = ldr_extent_populate(extent, i, 2 * LDR_MIB);
    }
    return ok;
}

void ldr_bench_cool(uint8_t *pool, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i += 64) {
        ((volatile uint8_t *)pool)[i]++;
    }
}

/* ---- threads ---- */

typedef struct start {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned ready;
    enum { START_WAIT, START_GO, START_NOT } go;
} start_t;

typedef struct runner {
    start_t *start;
    pthread_t thread;
    bool (*fn)(void *arg);
    void *arg;
    int cpu; /* -1: any */
    bool ok;
} runner_t;

static void stay_on(int cpu)
{
    cpu_set_t set;

    if (cpu >= 0) {
        CPU_ZERO(&set);
        CPU_SET(cpu, &set);
        pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
    }
}

/* The n-th CPU of the set. */
static int nth_cpu(const cpu_set_t *set, unsigned n)
{
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, set) && n-- == 0) {
            return cpu;
        }
    }
    return -1;
}

static void *runner_main(void *arg)
{
    runner_t *r = arg;
    start_t *s = r->start;

    stay_on(r->cpu);
    ldr_mutex_lock(&s->lock);
    s->ready++;
    pthread_cond_broadcast(&s->changed);
    while (s->go == START_WAIT) {
        pthread_cond_wait(&s->changed, &s->lock);
    }
    bool go = s->go == START_GO;
    ldr_mutex_unlock(&s->lock);
    r->ok = go && r->fn(r->arg);
    return NULL;
}

double ldr_bench_together(unsigned count, bool spread, bool (*fn)(void *arg),
                          void *args, size_t arg_bytes)
{
    start_t s = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0,
                 START_WAIT};
    runner_t runners[LDR_TOGETHER_MAX] = {0};
    unsigned started = 1;
    cpu_set_t set;

    spread &= count > 1 && sched_getaffinity(0, sizeof(set), &set) == 0 &&
              (unsigned)CPU_COUNT(&set) >= count;
    while (started < count && started < LDR_TOGETHER_MAX) {
        runner_t *r = &runners[started];

        *r = (runner_t){.start = &s,
                        .fn = fn,
                        .arg = (uint8_t *)args + started * arg_bytes,
                        .cpu = spread ? nth_cpu(&set, started) : -1};
        if (!ldr_thread_start(&r->thread, "bench-part", runner_main, r)) {
            break;
        }
        started++;
    }
    stay_on(spread ? nth_cpu(&set, 0) : -1);
    ldr_mutex_lock(&s.lock);
    while (s.ready < started - 1) {
        pthread_cond_wait(&s.changed, &s.lock);
    }
    s.go = started == count ? START_GO : START_NOT;
    pthread_cond_broadcast(&s.changed);
    ldr_mutex_unlock(&s.lock);

    double begin = ldr_bench_now();
    bool ok = started == count && fn(args);
    for (unsigned i = 1; i < started; i++) {
        pthread_join(runners[i].thread, NULL);
        ok &= runners[i].ok;
    }
    double seconds = ldr_bench_now() - begin;
    if (spread) {
        sched_setaffinity(0, sizeof(set), &set);
    }
    return ok ? seconds : 0;
}

/* ---- items ---- */

void ldr_bench_key(uint64_t n, larder_key_t *key)
{
    for (int i = 0; i < LARDER_KEY_BYTES; i += 8) {
        uint64_t v = n * 4 + (uint64_t)i / 8 + 1;

        v *= 0x9e3779b97f4a7c15u;
        v = (v ^ v >> 30) * 0xbf58476d1ce4e5b9u;
        v = (v ^ v >> 27) * 0x94d049bb133111ebu;
        v ^= v >> 31;
        memcpy(key->hash + i, &v, 8);
    }
}

bool ldr_set_create(ldr_set_t *set, uint8_t *pool, uint64_t bytes,
                    uint64_t size)
{
    size_t count = bytes / size;

    *set = (ldr_set_t){
        .items = ldr_alloc(count * sizeof(*set->items)),
        .iov = ldr_alloc(count * sizeof(*set->iov)),
        .keys = ldr_alloc(count * sizeof(*set->keys)),
        .count = count,
        .size = size,
    };
    if (set->items == NULL || set->iov == NULL || set->keys == NULL) {
        ldr_set_destroy(set);
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        set->iov[i] = (struct iovec){pool + i * size, size};
        set->items[i] = (larder_item_t){
            .key = &set->keys[i],
            .parent = i % LDR_CHAIN != 0 ? &set->keys[i - 1] : NULL,
            .depth = (uint32_t)(i % LDR_CHAIN),
            .iov = &set->iov[i],
            .iov_count = 1,
        };
    }
    return true;
}

void ldr_set_destroy(ldr_set_t *set)
{
    ldr_free(set->items);
    ldr_free(set->iov);
    ldr_free(set->keys);
    *set = (ldr_set_t){0};
}

void ldr_set_name(ldr_set_t *set, uint64_t first)
{
    for (size_t i = 0; i < set->count; i++) {
        ldr_bench_key(first + i, &set->keys[i]);
    }
}

bool ldr_set_run(ldr_set_t *set, larder_space_t *space, larder_op_t op,
                 size_t begin, size_t end)
{
    return ldr_set_run_by(set, space, op, begin, end, LDR_CHAIN);
}

bool ldr_set_run_by(ldr_set_t *set, larder_space_t *space, larder_op_t op,
                    size_t begin, size_t end, size_t each)
{
    bool ok = true;

    for (size_t i = begin; i < end && ok; i += each) {
        size_t n = ldr_min64(each, end - i);

        ok = larder_run(space, op, set->items + i, n, NULL) == LARDER_OK;
        for (size_t k = 0; k < n && ok; k++) {
            ok = set->items[i + k].status == LARDER_OK;
        }
    }
    return ok;
}

const char *ldr_set_missed(const ldr_set_t *set)
{
    static char text[80];
    size_t misses = 0, first = 0;

    for (size_t i = set->count; i-- > 0;) {
        if (set->items[i].status == LARDER_MISS) {
            misses++;
            first = i;
        }
    }
    if (misses == 0) {
        return "a get failed";
    }
    snprintf(text, sizeof(text), "%zu gets missed; the first: %s", misses,
             larder_cause_text(set->items[first].cause));
    return text;
}

/* ---- a node ---- */

bool ldr_bench_open(ldr_bench_node_t *n, const char *url)
{
    larder_space_params_t params = {
        .descriptor = LDR_BENCH_SPACE,
        .descriptor_bytes = strlen(LDR_BENCH_SPACE),
    };
    larder_stats_t stats = {.struct_bytes = sizeof(stats)};
    const struct timespec pause = {.tv_nsec = 1000000};

    *n = (ldr_bench_node_t){NULL, NULL};
    if (larder_open(url, NULL, &n->lar) != LARDER_OK) {
        return false;
    }
    if (larder_space_open(n->lar, &params, &n->space) != LARDER_OK) {
        ldr_bench_close(n);
        return false;
    }
    double end = ldr_bench_now() + RESIDENT_SECONDS;
    while (larder_stats(n->lar, &stats) == LARDER_OK &&
           stats.dram_resident_bytes < stats.dram_bytes &&
           ldr_bench_now() < end) {
        nanosleep(&pause, NULL);
    }
    return true;
}

void ldr_bench_close(ldr_bench_node_t *n)
{
    larder_space_close(&n->space);
    larder_close(&n->lar, LARDER_FOREVER);
}

bool ldr_bench_fill(ldr_bench_node_t *n, ldr_set_t *set)
{
    larder_stats_t stats = {.struct_bytes = sizeof(stats)};
    bool ok = larder_stats(n->lar, &stats) == LARDER_OK;
    size_t step = stats.dram_bytes / 2 / set->size / LDR_CHAIN * LDR_CHAIN;

    step = ldr_max64(step, LDR_CHAIN);
    for (size_t i = 0; i < set->count && ok; i += step) {
        ok = ldr_set_run(set, n->space, LARDER_OP_PUT, i,
                         ldr_min64(set->count, i + step)) &&
             larder_flush(n->lar, LARDER_TIER_SSD, LARDER_FOREVER) == LARDER_OK;
    }
    return ok;
}

void ldr_bench_remove(const char *dir)
{
    char path[512];
    const struct dirent *e;
    DIR *d = opendir(dir);

    if (d == NULL) {
        return;
    }
    while ((e = readdir(d)) != NULL) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) {
            continue;
        }
        snprintf(path, sizeof(path), "%s/%.255s", dir, e->d_name);
        if (unlink(path) != 0) {
            ldr_bench_remove(path);
        }
    }
    closedir(d);
    rmdir(dir);
}
