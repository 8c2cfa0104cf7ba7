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

#include "cli/bench.h"

#define THREADS_MAX 2u
#define ROUNDS_MIN 5u
#define SECONDS 1.0

typedef struct dram {
    ldr_bench_t *bench;
    const char *name;
    bool get;
    unsigned threads;
    uint64_t bytes; /* of each pool */
    uint8_t *pool;  /* the caller's memory */
    uint8_t *other; /* get: what the pool must become; put: what was put */
    ldr_copying_t copying;
} dram_t;

static const uint64_t sizes[] = {256 << 10, 1 << 20, 4 << 20};

static bool create(dram_t *d)
{
    d->bytes = ldr_bench_pool_bytes();
    d->pool = ldr_pool_create(d->bytes);
    d->other = ldr_pool_create(d->bytes);
    d->copying = (ldr_copying_t){
        .get = d->get, .threads = 1, .bytes = d->bytes, .pool = d->pool};
    if (d->pool == NULL || d->other == NULL ||
        !ldr_copying_create(&d->copying)) {
        return false;
    }
    ldr_pool_random(d->pool, d->bytes, 1);
    ldr_pool_random(d->other, d->bytes, 2);
    return true;
}

static void destroy(dram_t *d)
{
    ldr_pool_destroy(d->pool, d->bytes);
    ldr_pool_destroy(d->other, d->bytes);
    ldr_copying_destroy(&d->copying);
}

/* ---- Larder ---- */

/* A thread's part of a set. */
typedef struct part {
    ldr_set_t *set;
    larder_space_t *space;
    larder_op_t op;
    size_t begin, end;
} part_t;

static bool part_run(void *arg)
{
    const part_t *p = arg;

    return ldr_set_run(p->set, p->space, p->op, p->begin, p->end);
}

/* The set once, by the threads together; seconds, or 0. */
static double pass(const dram_t *d, ldr_bench_node_t *n, ldr_set_t *set)
{
    part_t parts[THREADS_MAX];
    size_t each = set->count / d->threads;

    for (unsigned i = 0; i < d->threads; i++) {
        parts[i] =
            (part_t){.set = set,
                     .space = n->space,
                     .op = d->get ? LARDER_OP_GET : LARDER_OP_PUT,
                     .begin = i * each,
                     .end = i + 1 < d->threads ? (i + 1) * each : set->count};
    }
    return ldr_bench_together(d->threads, true, part_run, parts,
                              sizeof(parts[0]));
}

/* All of the pool once; seconds, or 0 with the reason in *why_p. */
static double round_get(dram_t *d, ldr_bench_node_t *n, ldr_set_t *set,
                        const char **why_p)
{
    uint64_t bytes = set->count * set->size;
    double seconds = pass(d, n, set);

    if (seconds == 0) {
        *why_p = "a get missed";
        return 0;
    }
    if (!ldr_pool_verify(d->pool, d->other, bytes)) {
        *why_p = "a get gave wrong bytes";
        return 0;
    }
    return seconds;
}

/* New keys each time: the arena is full, and each save evicts another. */
static double round_put(dram_t *d, ldr_bench_node_t *n, ldr_set_t *set,
                        unsigned round, const char **why_p)
{
    uint64_t bytes = set->count * set->size;
    ldr_set_t back;

    ldr_set_name(set, (uint64_t)round * set->count);
    ldr_pool_stamp(d->pool, bytes, round);
    double seconds = pass(d, n, set);

    if (seconds == 0) {
        *why_p = "a put was refused";
        return 0;
    }
    if (!ldr_set_create(&back, d->other, d->bytes, set->size)) {
        *why_p = "not enough memory";
        return 0;
    }
    ldr_set_name(&back, (uint64_t)round * set->count);
    bool ok = ldr_set_run(&back, n->space, LARDER_OP_GET, 0, back.count) &&
              ldr_pool_verify(d->other, d->pool, bytes);
    ldr_set_destroy(&back);
    *why_p = "what was put did not come back";
    return ok ? seconds : 0;
}

/* For gets: the arena holds what `other` holds. */
static bool fill(dram_t *d, ldr_bench_node_t *n, ldr_set_t *set)
{
    ldr_set_t source;

    ldr_set_name(set, 0);
    if (!d->get) {
        return true;
    }
    if (!ldr_set_create(&source, d->other, d->bytes, set->size)) {
        return false;
    }
    ldr_set_name(&source, 0);
    bool ok = ldr_set_run(&source, n->space, LARDER_OP_PUT, 0, source.count);
    ldr_set_destroy(&source);
    return ok;
}

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

    /* The first round warms up: pages, and for puts the full arena. */
    for (unsigned i = 0; i <= ROUNDS_MIN || ldr_bench_now() < end; i++) {
        const char *why = NULL;
        double s = d->get ? round_get(d, n, set, &why)
                          : round_put(d, n, set, i + 1, &why);

        if (s == 0) {
            return why;
        }
        if (i > 0) {
            ldr_samples_add(larder, gb / s);
            ldr_copies_round(&d->copying, limits, set->size);
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
             (unsigned long long)d->bytes, entry ? "entry" : "load");
    if (!ldr_bench_open(&n, url)) {
        return ldr_bench_fail(d->bench, d->name, "open");
    }
    bool ok = ldr_set_create(&set, d->pool, d->bytes, size);
    const char *why = "cannot fill the arena";
    if (ok && fill(d, &n, &set)) {
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
    dram_t d = {.bench = b, .name = name, .get = get, .threads = 1};
    bool ok = create(&d);

    if (!ok) {
        ldr_bench_fail(b, name, "not enough memory");
    }
    for (int entry = 0; entry <= (get ? 1 : 0) && ok; entry++) {
        for (size_t i = 0; i < 3 && ok; i++) {
            if (b->size == 0 || i == 0) {
                ok = one(&d, b->size != 0 ? b->size : sizes[i], entry != 0);
            }
        }
    }
    /* How far the node's one lock lets two callers get together. */
    d.threads = d.copying.threads = THREADS_MAX;
    ok = ok && one(&d, b->size != 0 ? b->size : sizes[1], false);
    destroy(&d);
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
