/*
 * reopen: opening a directory that holds something.
 *
 * One directory grows; after each step it is closed and opened a few times.
 * Opening reads tables, so its time grows with the shards, and small ones give
 * many of them for few bytes: the slope over them is that of any size. It
 * gives the time that a tier of 100 GB in shards of 1 MiB takes. Its segments
 * are as large as those of such a tier. Last, a process is killed with a
 * segment half written, which has to be scanned.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"
#include "store/disk.h"

#define STEPS 3u
#define OPENS 25u
#define SIZE (128u << 10)
#define TIER ((uint64_t)100000000000) /* 100 GB */
#define FILL_DRAM (256 * LDR_MIB)

typedef struct reopen {
    ldr_bench_t *bench;
    char dir[256];
    uint8_t *pool;
    uint64_t bytes; /* of the pool: what a step adds */
    ldr_set_t set;
    uint64_t keys; /* put so far */
} reopen_t;

static void url_of(const reopen_t *r, uint64_t dram, char *url, size_t size)
{
    snprintf(url, size, "embed:%s?dram=%llu&ssd=%llu&segment=%llu", r->dir,
             (unsigned long long)dram, (unsigned long long)TIER,
             (unsigned long long)ldr_disk_segment_bytes(TIER));
}

static bool grow(reopen_t *r, ldr_bench_node_t *n)
{
    ldr_set_name(&r->set, r->keys);
    r->keys += r->set.count;
    return ldr_bench_fill(n, &r->set);
}

/* Seconds that opening takes when nothing disturbs its few syncs (the lower
 * quartile); 0: it failed or lost something. */
static double timed(reopen_t *r, unsigned opens)
{
    static ldr_samples_t s; /* large */
    larder_stats_t stats = {.struct_bytes = sizeof(stats)};
    char url[512];

    s.count = 0;
    url_of(r, 16 * LDR_MIB, url, sizeof(url));
    for (unsigned i = 0; i < opens; i++) {
        larder_t *lar = NULL;
        double begin = ldr_bench_now();
        larder_status_t st = larder_open(url, NULL, &lar);

        ldr_samples_add(&s, ldr_bench_now() - begin);
        bool ok = st == LARDER_OK && larder_stats(lar, &stats) == LARDER_OK &&
                  stats.entries == r->keys;
        larder_close(&lar, LARDER_FOREVER);
        if (!ok) {
            return 0;
        }
    }
    return ldr_samples_at(&s, 0.25);
}

static void report(reopen_t *r, const char *variant, uint64_t bytes,
                   double value, const char *unit, double goal,
                   const char *more)
{
    ldr_figure_t f = {
        .name = "reopen",
        .variant = variant,
        .bytes = bytes,
        .value = value,
        .unit = unit,
        .goal_kind = goal > 0 ? LDR_GOAL_MAX : LDR_GOAL_NONE,
        .goal = goal,
        .more = more,
    };
    ldr_bench_report(r->bench, &f);
}

/* Least squares over (shards, seconds). */
static void report_slope(reopen_t *r, const double *shards,
                         const double *seconds)
{
    double n = STEPS, sx = 0, sy = 0, sxx = 0, sxy = 0;
    char more[120];

    for (unsigned i = 0; i < STEPS; i++) {
        sx += shards[i];
        sy += seconds[i];
        sxx += shards[i] * shards[i];
        sxy += shards[i] * seconds[i];
    }
    double slope = (n * sxy - sx * sy) / (n * sxx - sx * sx);
    double base = (sy - slope * sx) / n;
    double per_gb = slope * 1e9 / (double)LDR_MIB; /* at 1 MiB a shard */

    snprintf(more, sizeof(more), ",\"base_ms\":%.4g,\"ms_per_gb\":%.4g",
             base * 1e3, per_gb * 1e3);
    report(r, "per shard, by slope", SIZE, slope * 1e6, "us", 0, NULL);
    report(r, "100 GB, by slope", LDR_MIB, base + per_gb * (double)TIER * 1e-9,
           "s", 2, more);
}

/* A process puts half a step, synced, and dies without closing. */
static bool killed(reopen_t *r, double *seconds_p)
{
    pid_t child = fork();
    int status = 0;

    if (child == 0) {
        ldr_bench_node_t n;
        char url[512];

        url_of(r, FILL_DRAM, url, sizeof(url));
        if (ldr_bench_open(&n, url) && grow(r, &n)) {
            raise(SIGKILL);
        }
        _exit(1);
    }
    if (child < 0 || waitpid(child, &status, 0) != child ||
        !WIFSIGNALED(status)) {
        return false;
    }
    r->keys += r->set.count;
    *seconds_p = timed(r, 1);
    return *seconds_p > 0;
}

static bool steps(reopen_t *r)
{
    double shards[STEPS], seconds[STEPS];
    ldr_bench_node_t n;
    char url[512], variant[64];

    for (unsigned i = 0; i < STEPS; i++) {
        url_of(r, FILL_DRAM, url, sizeof(url));
        ldr_bench_progress(r->bench, "reopen", "filling the directory");
        bool ok = ldr_bench_open(&n, url);
        while (ok && r->keys < (2 * r->set.count << i)) {
            ok = grow(r, &n);
        }
        ldr_bench_close(&n);
        if (!ok) {
            return false;
        }
        shards[i] = (double)r->keys;
        seconds[i] = timed(r, OPENS);
        if (seconds[i] == 0) {
            return false;
        }
        snprintf(variant, sizeof(variant), "%llu shards",
                 (unsigned long long)r->keys);
        report(r, variant, SIZE, seconds[i] * 1e3, "ms", 0, NULL);
    }
    report_slope(r, shards, seconds);
    if (!killed(r, &seconds[0])) {
        return false;
    }
    snprintf(variant, sizeof(variant), "killed, %zu MiB to scan",
             (size_t)(r->bytes >> 20));
    report(r, variant, SIZE, seconds[0] * 1e3, "ms", 0, NULL);
    return true;
}

bool ldr_bench_reopen(ldr_bench_t *b)
{
    reopen_t r = {.bench = b, .bytes = 512 * LDR_MIB};

    snprintf(r.dir, sizeof(r.dir), "%s/reopen", b->dir);
    r.pool = ldr_pool_create(r.bytes);
    if (r.pool == NULL || !ldr_set_create(&r.set, r.pool, r.bytes, SIZE)) {
        ldr_pool_destroy(r.pool, r.bytes);
        return ldr_bench_fail(b, "reopen", "not enough memory");
    }
    bool ok = steps(&r);
    ldr_bench_remove(r.dir);
    ldr_set_destroy(&r.set);
    ldr_pool_destroy(r.pool, r.bytes);
    return ok ? ok
              : ldr_bench_fail(b, "reopen", "the directory lost something");
}
