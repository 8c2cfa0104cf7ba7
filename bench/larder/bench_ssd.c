/*
 * ssd-get, ssd-put: the SSD tier against the raw disk.
 *
 * Four take turns on the same file system: the raw disk, the same with a copy
 * of every byte (see bench_raw.c), a node with io_uring and one with plain
 * reads and writes, all with as many requests in flight.
 * "fresh" is space that was allocated and never written before; then the same
 * space is written over, which is "overwritten".
 *
 * A put ends when larder_flush() says that all of the round is synced; the raw
 * disk's pass ends with its fdatasync. Gets are tickets, enough of them that
 * the disk never waits for the next; the arena is smaller than a round, so
 * that no load can come from DRAM, which the node's counters confirm.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "bench.h"
#include "store/disk.h"

#define DEPTH 16u
#define ROUNDS 5u       /* of gets */
#define ROUNDS_FRESH 3u /* of puts: each needs space of its own */
#define ROUNDS_MAX 12u  /* of puts to fresh space, however long */
#define TICKETS 8u      /* in flight */
#define ROUND_BYTES (512 * LDR_MIB)

#define VIA_BYTES(s) (3 * DEPTH * (s)->size)

enum { RAW, COPYING, URING, PLAIN, CONTENDERS };

typedef struct ssd {
    ldr_bench_t *bench;
    const char *name;
    bool get;
    uint64_t size;
    uint64_t bytes;      /* of a round */
    uint64_t tier;       /* size of the tier */
    unsigned fresh;      /* rounds of puts that find it fresh */
    uint8_t *source;     /* what is put; what gets must give */
    uint8_t *target;     /* where gets and raw reads go */
    uint8_t *via;        /* stands for the arena beside the raw disk */
    ldr_set_t put, load; /* items over source and target */
    ldr_bench_node_t node[CONTENDERS];
    ldr_samples_t samples[CONTENDERS];
    uint64_t keys; /* given so far */
    const char *why;
} ssd_t;

static void path_of(const ssd_t *s, const char *what, unsigned n, char *path,
                    size_t size)
{
    snprintf(path, size, "%s/%s-%u", s->bench->dir, what, n);
}

/* Gets read one file; each round of puts to fresh space has its own. */
static void raw_path(const ssd_t *s, unsigned round, bool copying, char *path,
                     size_t size)
{
    path_of(s, copying && !s->get ? "copy" : "raw",
            s->get ? 0 : round % s->fresh, path, size);
}

/* ---- raw ---- */

static double raw_pass(ssd_t *s, unsigned round, bool write, bool copying)
{
    char path[256];

    raw_path(s, round, copying, path, sizeof(path));
    ldr_raw_t raw = {
        .path = path,
        .write = write,
        .size = s->size,
        .depth = DEPTH,
        .bytes = s->bytes,
        .pool = write ? s->source : s->target,
        .via = copying ? s->via : NULL,
        .via_bytes = VIA_BYTES(s),
    };
    return ldr_raw_pass(&raw);
}

/* ---- gets ---- */

/* One ticket's items begin here. */
static bool ticket(ssd_t *s, int who, size_t begin, size_t step)
{
    larder_ticket_t id;
    size_t count = ldr_min64(step, s->load.count - begin);

    return larder_submit(s->node[who].space, LARDER_OP_GET,
                         s->load.items + begin, count, NULL, &id) == LARDER_OK;
}

/* All items once, with TICKETS in flight. */
static bool get_all(ssd_t *s, int who)
{
    size_t step = ldr_max64(1, 2 * DEPTH / TICKETS);
    larder_completion_t out[TICKETS];
    size_t next = 0, flying = 0, n = 0;

    while (next < s->load.count || flying > 0) {
        while (next < s->load.count && flying < TICKETS) {
            if (!ticket(s, who, next, step)) {
                return false;
            }
            next += step;
            flying++;
        }
        if (larder_drain(s->node[who].lar, out, TICKETS, LARDER_FOREVER, &n) !=
            LARDER_OK) {
            return false;
        }
        flying -= n;
    }
    for (size_t i = 0; i < s->load.count; i++) {
        if (s->load.items[i].status != LARDER_OK) {
            return false;
        }
    }
    return true;
}

static uint64_t loads_ssd(const ssd_t *s, int who)
{
    larder_stats_t stats = {.struct_bytes = sizeof(stats)};

    return larder_stats(s->node[who].lar, &stats) == LARDER_OK ? stats.loads_ssd
                                                               : 0;
}

static double get_round(ssd_t *s, int who)
{
    uint64_t loads = loads_ssd(s, who);
    double begin = ldr_bench_now();
    bool ok = get_all(s, who);
    double seconds = ldr_bench_now() - begin;

    if (!ok) {
        s->why = "a get missed";
        return 0;
    }
    if (loads_ssd(s, who) - loads != s->load.count) {
        s->why = "a get did not come from the disk";
        return 0;
    }
    if (!ldr_pool_verify(s->target, s->source, s->bytes)) {
        s->why = "a get gave wrong bytes";
        return 0;
    }
    return seconds;
}

/* ---- puts ---- */

/* The last round's shards come back as they were, once it is timed. */
static bool put_verify(ssd_t *s, int who)
{
    memcpy(s->load.keys, s->put.keys, s->put.count * sizeof(*s->put.keys));
    return ldr_set_run(&s->load, s->node[who].space, LARDER_OP_GET, 0,
                       s->load.count) &&
           ldr_pool_verify(s->target, s->source, s->bytes);
}

static double put_round(ssd_t *s, int who)
{
    ldr_pool_stamp(s->source, s->bytes, s->keys);
    ldr_set_name(&s->put, s->keys);
    s->keys += s->put.count;
    double begin = ldr_bench_now();
    bool ok = ldr_set_run(&s->put, s->node[who].space, LARDER_OP_PUT, 0,
                          s->put.count) &&
              larder_flush(s->node[who].lar, LARDER_TIER_SSD, LARDER_FOREVER) ==
                  LARDER_OK;
    double seconds = ldr_bench_now() - begin;

    if (!ok) {
        s->why = "a put did not reach the disk";
        return 0;
    }
    if (!put_verify(s, who)) {
        s->why = "what was put did not come back";
        return 0;
    }
    /* Reading made them worth keeping when their segments are used again;
     * this makes them what they would have been without. */
    if (larder_space_reset(s->node[who].space, 0) != LARDER_OK) {
        s->why = "cannot reset the space";
        return 0;
    }
    return seconds;
}

/* ---- rounds ---- */

static bool turn(ssd_t *s, unsigned round, bool count)
{
    for (int k = 0; k < CONTENDERS; k++) {
        int who = (int)((k + round) % CONTENDERS); /* nobody is always first */
        double seconds;

        if (who == RAW || who == COPYING) {
            seconds = raw_pass(s, round, !s->get, who == COPYING);
        } else if (s->get) {
            seconds = get_round(s, who);
        } else {
            seconds = put_round(s, who);
        }
        if (seconds == 0 && who >= URING) {
            return false;
        }
        if (count && seconds > 0) {
            ldr_samples_add(&s->samples[who],
                            (double)s->bytes * 1e-9 / seconds);
        }
    }
    return true;
}

static void report(ssd_t *s, const char *state)
{
    double raw = ldr_samples_median(&s->samples[RAW]);
    double uring = ldr_samples_median(&s->samples[URING]);
    double plain = ldr_samples_median(&s->samples[PLAIN]);
    double copying = ldr_samples_median(&s->samples[COPYING]);
    char variant[40], more[120];

    for (int who = URING; who <= PLAIN; who++) {
        snprintf(variant, sizeof(variant), "%s, %s",
                 who == URING ? "io_uring" : "plain", state);
        snprintf(more, sizeof(more),
                 ",\"depth\":%u,\"rounds\":%u,\"limit_copying\":%.4g,"
                 "\"plain_to_uring\":%.3f",
                 DEPTH, s->samples[who].count, copying,
                 uring > 0 ? plain / uring : 0);
        ldr_figure_t f = {
            .name = s->name,
            .variant = variant,
            .bytes = s->size,
            .value = who == URING ? uring : plain,
            .unit = "GB/s",
            .limit = raw,
            .goal_kind = LDR_GOAL_RATIO,
            .goal = (s->get ? 0.95 : 0.9) * (who == URING ? 1 : 0.9),
            .more = more,
        };
        ldr_bench_report(s->bench, &f);
    }
    if (copying > 0) {
        snprintf(variant, sizeof(variant), "raw and a copy, %s", state);
        ldr_figure_t f = {
            .name = s->name,
            .variant = variant,
            .bytes = s->size,
            .value = copying,
            .unit = "GB/s",
            .limit = raw,
        };
        ldr_bench_report(s->bench, &f);
    }
    memset(s->samples, 0, sizeof(s->samples));
}

static bool get_rounds(ssd_t *s, const char *state)
{
    double end = ldr_bench_now() + s->bench->seconds;

    for (unsigned i = 0; i <= ROUNDS || ldr_bench_now() < end; i++) {
        if (!turn(s, i, i > 0)) {
            return false;
        }
    }
    report(s, state);
    return true;
}

/* Writes what gets will read, everywhere. */
static bool fill(ssd_t *s)
{
    ldr_pool_stamp(s->source, s->bytes, s->keys);
    ldr_set_name(&s->put, s->keys);
    ldr_set_name(&s->load, s->keys);
    s->keys += s->put.count;
    s->why = "cannot fill the directory";
    return ldr_bench_fill(&s->node[URING], &s->put) &&
           ldr_bench_fill(&s->node[PLAIN], &s->put) &&
           raw_pass(s, 0, true, false) > 0;
}

static bool all_gets(ssd_t *s)
{
    /* The tier holds one and a half: after three every segment was reused. */
    return fill(s) && get_rounds(s, "fresh") && fill(s) && fill(s) && fill(s) &&
           get_rounds(s, "overwritten");
}

static bool all_puts(ssd_t *s)
{
    double end;

    for (unsigned i = 0; i < s->fresh; i++) {
        if (!turn(s, i, true)) {
            return false;
        }
    }
    report(s, "fresh");
    /* Some more fill the tier; from then on segments are used again. */
    for (uint64_t i = s->fresh; i * s->bytes < s->tier; i++) {
        if (!turn(s, 0, false)) {
            return false;
        }
    }
    end = ldr_bench_now() + s->bench->seconds;
    for (unsigned i = 0; i < ROUNDS_FRESH || ldr_bench_now() < end; i++) {
        if (!turn(s, i, true)) {
            return false;
        }
    }
    report(s, "overwritten");
    return true;
}

/* ---- one size ---- */

/* Puts: segments as a tier of 32 GiB has them, a round for each. */
static bool nodes_open(ssd_t *s)
{
    uint64_t segment = ldr_disk_segment_bytes((s->get ? 8 : 32) * LDR_GIB);
    uint64_t tier = s->get ? s->bytes * 3 / 2 : s->bytes * s->fresh;

    /* Records have a block each beside their payload. */
    s->tier =
        ldr_max64(tier + tier / (s->size / 4096), 3 * segment) + 2 * segment;
    uint64_t dram = s->get ? VIA_BYTES(s) : s->bytes + s->bytes / 4;
    char url[512], dir[256];

    for (int who = URING; who <= PLAIN; who++) {
        path_of(s, "node", (unsigned)who, dir, sizeof(dir));
        snprintf(url, sizeof(url),
                 "embed:%s?dram=%llu&ssd=%llu&segment=%llu&io=%s&io_depth=%u"
                 "&io_threads=%u",
                 dir, (unsigned long long)dram, (unsigned long long)s->tier,
                 (unsigned long long)segment, who == URING ? "uring" : "plain",
                 DEPTH, DEPTH);
        if (!ldr_bench_open(&s->node[who], url)) {
            s->why = "open";
            return false;
        }
    }
    return true;
}

static bool open_all(ssd_t *s)
{
    char path[256];

    s->why = "not enough memory";
    s->source = ldr_pool_create(s->bytes);
    s->target = ldr_pool_create(s->bytes);
    s->via = ldr_pool_create(VIA_BYTES(s));
    if (s->source == NULL || s->target == NULL || s->via == NULL ||
        !ldr_set_create(&s->put, s->source, s->bytes, s->size) ||
        !ldr_set_create(&s->load, s->target, s->bytes, s->size)) {
        return false;
    }
    ldr_pool_random(s->source, s->bytes, 3);
    s->why = "cannot make a file; choose another --dir";
    for (unsigned i = 0; i < (s->get ? 1 : 2 * s->fresh); i++) {
        raw_path(s, i, i >= s->fresh, path, sizeof(path));
        if (!ldr_raw_create(path, s->bytes)) {
            return false;
        }
    }
    return nodes_open(s);
}

static void close_all(ssd_t *s)
{
    char path[256];

    for (int who = URING; who <= PLAIN; who++) {
        ldr_bench_close(&s->node[who]);
        path_of(s, "node", (unsigned)who, path, sizeof(path));
        ldr_bench_remove(path);
    }
    for (unsigned i = 0; i < (s->get ? 1 : 2 * s->fresh); i++) {
        raw_path(s, i, i >= s->fresh, path, sizeof(path));
        unlink(path);
    }
    ldr_set_destroy(&s->put);
    ldr_set_destroy(&s->load);
    ldr_pool_destroy(s->source, s->bytes);
    ldr_pool_destroy(s->target, s->bytes);
    ldr_pool_destroy(s->via, VIA_BYTES(s));
}

static bool one(ldr_bench_t *b, const char *name, bool get, uint64_t size)
{
    static ssd_t s; /* large */
    unsigned rounds =
        (unsigned)ldr_min64((uint64_t)(b->seconds * 2), ROUNDS_MAX);

    memset(&s, 0, sizeof(s));
    s.bench = b;
    s.name = name;
    s.get = get;
    s.size = size;
    s.bytes = ldr_min64(ROUND_BYTES, ldr_memory_limit() / 16) / size * size;
    s.fresh = rounds > ROUNDS_FRESH ? rounds : ROUNDS_FRESH;
    ldr_bench_progress(b, name, "making files");
    bool ok = open_all(&s) && (get ? all_gets(&s) : all_puts(&s));
    if (!ok) {
        ldr_bench_fail(b, name, s.why);
    }
    close_all(&s);
    return ok;
}

static bool run(ldr_bench_t *b, const char *name, bool get)
{
    bool ok = true;
    uint64_t size;

    for (unsigned i = 0; ok && (size = ldr_bench_size(b, i)) != 0; i++) {
        ok = one(b, name, get, size);
    }
    return ok;
}

bool ldr_bench_ssd_get(ldr_bench_t *b)
{
    return run(b, "ssd-get", true);
}

bool ldr_bench_ssd_put(ldr_bench_t *b)
{
    return run(b, "ssd-put", false);
}
