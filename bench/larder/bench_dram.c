/*
 * dram-get, dram-put: the DRAM tier against the best copy by one thread; for
 * two threads, by two.
 *
 * The limit copies the same pool to or from memory of the arena's kind (a
 * memfd on huge pages), with memcpy and with each of Larder's own copies, and
 * takes the best of them. The same against plain anonymous memory goes into
 * the JSON as limit_anonymous.
 */
#include <stdio.h>
#include <string.h>

#include "bench.h"

#define ROUNDS_MIN 5u
#define SECONDS 1.0

typedef struct dram {
    ldr_bench_t *bench;
    const char *name;
    unsigned threads;
    ldr_moving_t moving;
} dram_t;

static void report(dram_t *d, uint64_t size, bool entry, ldr_samples_t *larder,
                   ldr_copies_t *l)
{
    const char *copy = "", *other = "";
    double limit = ldr_copies_best(l, false, 0.5, &copy);
    double anonymous = ldr_copies_best(l, true, 0.5, &other);
    char more[160];

    snprintf(more, sizeof(more),
             ",\"limit_copy\":\"%s\",\"limit_anonymous\":%.4g,\"rounds\":%u",
             copy, anonymous, larder->count);
    ldr_figure_t f = {
        .name = d->name,
        .variant = d->threads > 1 ? "checksum, 2 threads"
                   : entry        ? "verify=entry"
                                  : "checksum",
        .bytes = size,
        .value = ldr_samples_median(larder),
        .unit = "GB/s",
        .limit = limit,
        .goal_kind = d->threads > 1 ? LDR_GOAL_NONE : LDR_GOAL_RATIO,
        .goal = entry ? 0.9 : 0.85,
        .more = more,
    };
    ldr_bench_report(d->bench, &f);
}

static const char *rounds(dram_t *d, ldr_bench_node_t *n, ldr_set_t *set,
                          ldr_samples_t *larder, ldr_copies_t *limits)
{
    double seconds = d->bench->seconds > 0 ? d->bench->seconds : SECONDS;
    double end = ldr_bench_now() + seconds;
    double gb = (double)(set->count * set->size) * 1e-9;
    ldr_callers_t callers = {.space = {n->space, n->space},
                             .count = d->threads,
                             .each = LDR_CHAIN,
                             .spread = true};

    /* The first round warms up: pages, and for puts the full arena. */
    for (unsigned i = 0; i <= ROUNDS_MIN || ldr_bench_now() < end; i++) {
        double s = ldr_moving_round(&d->moving, &callers, set);

        if (s == 0) {
            return d->moving.why;
        }
        if (i > 0) {
            ldr_samples_add(larder, gb / s);
            ldr_copies_round(&d->moving.copying, limits, set->size);
        }
    }
    return NULL;
}

static bool one(dram_t *d, uint64_t size, bool entry)
{
    static ldr_samples_t larder; /* large */
    static ldr_copies_t limits;
    ldr_bench_node_t n;
    ldr_set_t set;
    char url[80];

    memset(&larder, 0, sizeof(larder));
    memset(&limits, 0, sizeof(limits));
    snprintf(url, sizeof(url), "embed:?dram=%llu&verify=%s",
             (unsigned long long)d->moving.bytes, entry ? "entry" : "load");
    if (!ldr_bench_open(&n, url)) {
        return ldr_bench_fail(d->bench, d->name, "open");
    }
    bool ok = ldr_set_create(&set, d->moving.pool, d->moving.bytes, size);
    const char *why = "cannot fill the arena";
    if (ok && ldr_moving_fill(&d->moving, n.space, &set)) {
        why = rounds(d, &n, &set, &larder, &limits);
    }
    ldr_set_destroy(&set);
    ldr_bench_close(&n);
    if (why != NULL) {
        return ldr_bench_fail(d->bench, d->name, why);
    }
    report(d, size, entry, &larder, &limits);
    return true;
}

static bool run(ldr_bench_t *b, const char *name, bool get)
{
    dram_t d = {.bench = b, .name = name, .threads = 1};
    bool ok = ldr_moving_create(&d.moving, get);
    uint64_t size;

    if (!ok) {
        ldr_bench_fail(b, name, "not enough memory");
    }
    for (int entry = 0; entry <= (get ? 1 : 0); entry++) {
        for (unsigned i = 0; ok && (size = ldr_bench_size(b, i)) != 0; i++) {
            ok = one(&d, size, entry != 0);
        }
    }
    /* How far the node's one lock lets two callers get together. */
    d.threads = d.moving.copying.threads = LDR_CALLERS_MAX;
    ok = ok && one(&d, b->size != 0 ? b->size : LDR_MIB, false);
    ldr_moving_destroy(&d.moving);
    return ok;
}

bool ldr_bench_dram_get(ldr_bench_t *b)
{
    return run(b, "dram-get", true);
}

bool ldr_bench_dram_put(ldr_bench_t *b)
{
    return run(b, "dram-put", false);
}
