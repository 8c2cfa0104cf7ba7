/*
 * shared-get, shared-put: the shared tier against its storage.
 *
 * Objects of 16 MiB are put by the tier's lanes, sealed, and single records of
 * them are got by ranged reads and checked; in turns with as many threads that
 * write and read plain files of the same sizes with O_DIRECT, each write ended
 * by an fsync. (For puts the tier has a lane more: it leaves one to reads, so
 * that as many write.) With --shared the tier is the one at that URL: for a
 * directory the plain files are made beside it, for Valkey or Redis the limit
 * is what redis-benchmark reaches with values of that size and as many
 * connections. "Plain with tags" is what the machine has to give: the same
 * plain files by the same threads, each of which also computes a tag for every
 * record, and for puts ("and names") its checksum, writes under a temporary
 * name, renames and syncs the folder; and nothing else.
 *
 * What was put is got again after each round and compared, outside the time.
 * All of it is removed at the end, but for the one key that redis-benchmark
 * leaves.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/copy.h"
#include "base/text.h"
#include "base/thread.h"
#include "bench_shared.h"

#define ROUNDS 8u
#define FLYING 24u  /* writes; reads: as many bytes */
#define TOUCHES 27u /* rounds of small objects */

/* ---- in flight ---- */

/* Waits until fewer than this are. */
static void wait_below(ldr_sharing_t *s, unsigned most)
{
    ldr_mutex_lock(&s->lock);
    s->awaited = most;
    while (s->flying >= most) {
        pthread_cond_wait(&s->changed, &s->lock);
    }
    s->awaited = 0;
    s->flying++; /* the caller's next; the last gives it back */
    ldr_mutex_unlock(&s->lock);
}

static void ended(ldr_sharing_t *s, int error)
{
    ldr_mutex_lock(&s->lock);
    s->flying--;
    if (error != 0 && s->failed++ == 0) {
        s->error = error;
    }
    if (s->flying < s->awaited) {
        pthread_cond_signal(&s->changed);
    }
    ldr_mutex_unlock(&s->lock);
}

static void wait_all(ldr_sharing_t *s)
{
    wait_below(s, 1);
    ended(s, 0);
}

/* ---- puts ---- */

typedef struct putting {
    ldr_objects_write_t write;
    struct iovec iov[2 * LDR_OBJECTS_RECORDS + 1];
} putting_t;

static void put_done(ldr_objects_write_t *write)
{
    ended(write->arg, write->error);
}

static bool put_object(ldr_sharing_t *s, putting_t *p, unsigned object)
{
    ldr_objects_write_t *w = &p->write;

    *w = (ldr_objects_write_t){.tenant = s->tenant,
                               .space = s->space,
                               .count = s->records,
                               .iov = p->iov,
                               .deadline_ns = ldr_sharing_deadline(),
                               .done = put_done,
                               .arg = s};
    for (uint32_t i = 0; i < s->records; i++) {
        uint64_t at = (uint64_t)object * s->records + i;

        ldr_bench_key(s->first + at, &w->records[i].key);
        w->records[i].kind = LDR_RECORD_SHARD;
        w->records[i].epoch = ldr_objects_epoch(s->tier, s->tenant, s->space);
        w->records[i].shards = 1;
        w->records[i].codec = LDR_CODEC_RAW;
        w->records[i].depth = i;
        w->records[i].length = (uint32_t)s->size;
        w->records[i].payload_crc = s->crcs[at];
        memset(w->records[i].space_id, 's', LDR_ID_BYTES);
        p->iov[i] = (struct iovec){s->source + at * s->size, s->size};
        w->iov_first[i] = i;
    }
    w->iov_first[s->records] = s->records;
    return ldr_objects_write(s->tier, w);
}

/* All of a round; none is under way afterwards. */
static bool put_objects(ldr_sharing_t *s, putting_t *puts)
{
    bool ok = true;

    for (unsigned i = 0; i < LDR_SHARING_OBJECTS && ok; i++) {
        wait_below(s, FLYING);
        ok = put_object(s, &puts[i], i);
        if (!ok) {
            ended(s, puts[i].write.error);
        }
    }
    wait_all(s);
    return ok;
}

static double put_round(ldr_sharing_t *s)
{
    putting_t *puts = ldr_alloc(LDR_SHARING_OBJECTS * sizeof(*puts));
    bool ok = puts != NULL;
    double begin;

    for (size_t i = 0; i < LDR_SHARING_OBJECTS * s->records; i++) {
        uint8_t *data = s->source + i * s->size;

        ldr_pool_stamp(data, s->size, s->first + i);
        s->crcs[i] = ldr_crc32c(0, data, s->size);
    }
    begin = ldr_bench_now();
    ok = ok && put_objects(s, puts);
    double seconds = ldr_bench_now() - begin;
    ldr_free(puts);
    s->why = "a put failed";
    return ok && s->failed == 0 ? seconds : 0;
}

/* Objects lie in 128 folders, each of which a node makes, or makes sure of,
 * when it first writes there. That is over before the time counts: small
 * objects, five for each. */
static bool touch_folders(ldr_sharing_t *s)
{
    uint64_t size = s->size;
    unsigned records = s->records;
    putting_t *puts = ldr_alloc(LDR_SHARING_OBJECTS * sizeof(*puts));
    bool ok = puts != NULL;

    s->size = LDR_BLOCK;
    s->records = 1;
    for (unsigned i = 0; i < LDR_SHARING_OBJECTS; i++) {
        s->crcs[i] = ldr_crc32c(0, s->source + i * s->size, s->size);
    }
    for (unsigned n = 0; n < TOUCHES && ok; n++) {
        ok = put_objects(s, puts);
        s->first += LDR_SHARING_OBJECTS;
    }
    ldr_free(puts);
    s->size = size;
    s->records = records;
    s->why = "a put failed";
    return ok && s->failed == 0;
}

/* ---- gets ---- */

typedef struct getting {
    ldr_sharing_t *shared;
    ldr_objects_read_t read;
    struct iovec iov;
} getting_t;

/* Of a round: whoever has got a record asks for the next, as a node does. */
typedef struct gets {
    getting_t *all;
    size_t next, count; /* under lock */
} gets_t;

static void get_next(ldr_sharing_t *s);

static void get_done(ldr_objects_read_t *read)
{
    const getting_t *g = read->arg;
    ldr_sharing_t *s = g->shared;

    if (read->error == 0) {
        get_next(s);
    }
    ended(s, read->error);
}

/* The record's place is looked up as a load would. */
static bool get_record(ldr_sharing_t *s, getting_t *g, size_t at)
{
    larder_key_t key;

    ldr_bench_key(s->first + at, &key);
    g->shared = s;
    g->iov = (struct iovec){s->target + at * s->size, s->size};
    g->read = (ldr_objects_read_t){.tenant = s->tenant,
                                   .space = s->space,
                                   .iov = &g->iov,
                                   .iov_count = 1,
                                   .block = s->blocks + at * LDR_BLOCK,
                                   .deadline_ns = ldr_sharing_deadline(),
                                   .done = get_done,
                                   .arg = g};
    g->read.error = -ENOENT;
    return ldr_objects_find(s->tier, s->tenant, s->space, 0, &key, 0, 0,
                            &g->read.place) &&
           ldr_objects_read(s->tier, &g->read);
}

static void get_next(ldr_sharing_t *s)
{
    gets_t *gets = s->gets;

    ldr_mutex_lock(&s->lock);
    size_t at = gets->next;
    bool some = at < gets->count && s->failed == 0;
    gets->next += some;
    s->flying += some;
    ldr_mutex_unlock(&s->lock);
    if (some && !get_record(s, &gets->all[at], at)) {
        ended(s, gets->all[at].read.error);
    }
}

static double get_round(ldr_sharing_t *s)
{
    gets_t gets = {.count = LDR_SHARING_OBJECTS * s->records};
    double begin;

    gets.all = ldr_alloc(gets.count * sizeof(*gets.all));
    s->gets = &gets;
    s->why = "not enough memory";
    if (gets.all == NULL) {
        return 0;
    }
    begin = ldr_bench_now();
    for (unsigned i = 0; i < FLYING; i++) {
        get_next(s);
    }
    wait_all(s);
    double seconds = ldr_bench_now() - begin;
    ldr_free(gets.all);
    s->why = "a get failed";
    if (s->failed > 0) {
        return 0;
    }
    s->why = "a get gave wrong bytes";
    return ldr_pool_verify(s->target, s->source, ldr_sharing_bytes()) ? seconds
                                                                      : 0;
}

/* ---- removing ---- */

static int remove_one(void *arg, const char *name, uint64_t bytes)
{
    ldr_backend_t *b = arg;

    (void)bytes;
    b->ops->remove(b, name, ldr_sharing_deadline());
    return 0;
}

/* All that the tenant of this run has below there ("" or "o/"); with all of it
 * goes its figure. */
static void tenant_remove(const ldr_sharing_t *s, const char *below)
{
    char hex[LDR_HEX_BYTES(LDR_ID_BYTES)], name[sizeof(hex) + 8];

    ldr_hex(s->tenant_id, LDR_ID_BYTES, hex);
    snprintf(name, sizeof(name), "%s/%s", hex, below);
    s->bare->ops->list(s->bare, name, NULL, remove_one, s->bare, UINT64_MAX);
    if (below[0] == '\0') {
        snprintf(name, sizeof(name), "sizes/%s", hex);
        remove_one(s->bare, name, 0);
    }
}

/* ---- rounds ---- */

/* In bytes a second; 0: there is no limit to compare with. */
static double limit(ldr_sharing_t *s)
{
    double seconds;

    if (s->dir[0] == '\0') {
        return ldr_sharing_redis(s);
    }
    seconds = ldr_sharing_round(s, LDR_WAY_LIMIT, !s->get);
    return seconds > 0 ? (double)ldr_sharing_bytes() / seconds : 0;
}

/* Puts have keys of their own each time, and are read back. */
static double turn(ldr_sharing_t *s)
{
    double seconds;

    if (s->get) {
        return get_round(s);
    }
    s->first += LDR_SHARING_OBJECTS * s->records;
    seconds = put_round(s);
    if (seconds > 0 && get_round(s) == 0) {
        return 0;
    }
    return seconds;
}

static void report(ldr_sharing_t *s, ldr_way_t way)
{
    const char *names[LDR_WAYS] = {
        [LDR_WAY_TIER] = s->get ? "single records" : "objects of 16 MiB",
        [LDR_WAY_BACKEND] = "back end alone",
        [LDR_WAY_SEALED] =
            s->get ? "plain with tags" : "plain with tags and names",
    };
    char variant[48], more[120];
    ldr_samples_t *samples = &s->samples[way];
    bool goal = s->samples[LDR_WAY_LIMIT].count > 0 && way == LDR_WAY_TIER;

    if (samples->count == 0) {
        return;
    }
    snprintf(variant, sizeof(variant), "%.*s, %s", (int)strcspn(s->url, ":"),
             s->url, names[way]);
    snprintf(more, sizeof(more), ",\"lanes\":%u,\"rounds\":%u",
             LDR_SHARING_THREADS, samples->count);
    ldr_figure_t f = {
        .name = s->name,
        .variant = variant,
        .bytes = s->size,
        .value = ldr_samples_median(samples),
        .unit = "GB/s",
        .limit = ldr_samples_median(&s->samples[LDR_WAY_LIMIT]),
        .goal_kind = goal ? LDR_GOAL_RATIO : LDR_GOAL_NONE,
        .goal = s->dir[0] != '\0' ? 0.9 : 0.8,
        .more = more,
    };
    ldr_bench_report(s->bench, &f);
}

/* GB/s; 0: there is none, or it failed, which only the limit may. */
static double go(ldr_sharing_t *s, ldr_way_t way)
{
    double seconds;

    if (way == LDR_WAY_LIMIT) {
        return limit(s) * 1e-9;
    }
    s->why = way == LDR_WAY_BACKEND ? "the back end alone failed"
                                    : "plain files with tags failed";
    seconds =
        way == LDR_WAY_TIER ? turn(s) : ldr_sharing_round(s, way, !s->get);
    if (!s->get && s->dir[0] == '\0') {
        tenant_remove(s, "o/");
    }
    return seconds > 0 ? (double)ldr_sharing_bytes() * 1e-9 / seconds : 0;
}

/* Each once, and not always in the same order. */
static bool all(ldr_sharing_t *s, unsigned round)
{
    unsigned ways = s->dir[0] != '\0' ? LDR_WAYS : LDR_WAY_SEALED;

    /* Of a disk that was not written to before, but not of a server's memory
     * as much as that takes. */
    s->round = s->get || s->dir[0] == '\0' ? 0 : round;
    for (unsigned k = 0; k < ways; k++) {
        ldr_way_t way = (ldr_way_t)((k + round) % ways);
        double value = go(s, way);

        if (value == 0 && way != LDR_WAY_LIMIT) {
            return false;
        }
        if (round > 0 && value > 0) { /* the first is not counted */
            ldr_samples_add(&s->samples[way], value);
        }
    }
    return true;
}

/* What is read in all rounds. */
static bool make_objects(ldr_sharing_t *s)
{
    if (put_round(s) == 0) {
        return false;
    }
    s->why = "objects could not be made by the back end alone, or plain files";
    return ldr_sharing_round(s, LDR_WAY_BACKEND, true) > 0 &&
           (s->dir[0] == '\0' || ldr_sharing_round(s, LDR_WAY_LIMIT, true) > 0);
}

static bool rounds(ldr_sharing_t *s)
{
    double end = ldr_bench_now() + s->bench->seconds;

    if (s->get && !make_objects(s)) {
        return false;
    }
    if (!s->get && s->dir[0] != '\0' && !touch_folders(s)) {
        return false;
    }
    for (unsigned i = 0; i <= ROUNDS || ldr_bench_now() < end; i++) {
        if (!all(s, i)) {
            return false;
        }
    }
    report(s, LDR_WAY_TIER);
    report(s, LDR_WAY_BACKEND);
    report(s, LDR_WAY_SEALED);
    return true;
}

/* ---- opening ---- */

static bool memory(ldr_sharing_t *s)
{
    size_t count = LDR_SHARING_OBJECTS * s->records;

    s->why = "not enough memory";
    s->source = ldr_pool_create(ldr_sharing_bytes());
    s->target = ldr_pool_create(ldr_sharing_bytes());
    s->blocks = ldr_alloc_blocks(count * LDR_BLOCK);
    s->crcs = ldr_alloc(count * sizeof(*s->crcs));
    if (s->source == NULL || s->target == NULL || s->blocks == NULL ||
        s->crcs == NULL) {
        return false;
    }
    ldr_pool_random(s->source, ldr_sharing_bytes(), 5);
    return true;
}

static bool tier_open(ldr_sharing_t *s)
{
    ldr_seal_t seal = {.encrypts = false};
    uint8_t space_id[LDR_ID_BYTES];
    ldr_objects_params_t params = {.url = s->url,
                                   .login = "",
                                   .threads = LDR_SHARING_THREADS + !s->get,
                                   .timeout_ms = 30000,
                                   .retry_ms = 1000,
                                   .poll_ms = 1000,
                                   .publish_ms = 500, /* as a node's */
                                   .clock = &ldr_clock_real};
    ldr_backend_params_t backend = {.url = s->url,
                                    .login = "",
                                    .threads = LDR_SHARING_THREADS,
                                    .clock = &ldr_clock_real};
    const struct timespec pause = {.tv_nsec = 5000000};
    larder_status_t st = ldr_objects_make(s->url, "", ldr_sharing_deadline());

    s->why = "cannot make the tier";
    for (unsigned i = 0; i < LDR_ID_BYTES; i += 8) {
        ldr_put64(s->tenant_id + i, ldr_rand_entropy());
    }
    memset(space_id, 's', sizeof(space_id));
    memcpy(seal.mac, s->tenant_id, LDR_ID_BYTES);
    if ((st != LARDER_OK && st != LARDER_PRESENT) ||
        ldr_backend_open(&backend, &s->bare) != LARDER_OK ||
        ldr_objects_open(&params, &s->tier) != LARDER_OK ||
        ldr_objects_tenant(s->tier, s->tenant_id, "bench", &seal,
                           ldr_sharing_deadline(), &s->tenant) != LARDER_OK) {
        return false;
    }
    s->space = ldr_objects_space(s->tier, s->tenant, space_id, 0);
    s->why = "the tier does not come on";
    for (double end = ldr_bench_now() + 20; ldr_bench_now() < end;) {
        if (ldr_objects_takes(s->tier, s->tenant, s->space)) {
            return true;
        }
        nanosleep(&pause, NULL);
    }
    return false;
}

/* Where it was asked for: a directory of ours, or the URL's. */
static void place(ldr_sharing_t *s)
{
    const char *url = s->bench->shared;

    if (url[0] == '\0') {
        snprintf(s->dir, sizeof(s->dir), "%s/shared", s->bench->dir);
        snprintf(s->url, sizeof(s->url), "dir:%.250s", s->dir);
        mkdir(s->dir, 0700);
    } else {
        snprintf(s->url, sizeof(s->url), "%s", url);
        if (strncmp(url, "dir:", 4) == 0 || strncmp(url, "3fs:", 4) == 0) {
            snprintf(s->dir, sizeof(s->dir), "%s", url + 4);
        }
    }
}

static bool one(ldr_bench_t *b, const char *name, bool get, uint64_t size)
{
    static ldr_sharing_t s; /* large */

    memset(&s, 0, sizeof(s));
    s.bench = b;
    s.name = name;
    s.get = get;
    s.size = size;
    s.records = (unsigned)(LDR_SHARING_BYTES / size);
    ldr_mutex_init(&s.lock);
    pthread_cond_init(&s.changed, NULL);
    place(&s);
    ldr_bench_progress(b, name, "making objects");
    bool ok = memory(&s) && tier_open(&s) && rounds(&s);
    if (!ok) {
        if (s.failed > 0 && larder_last_error()[0] == '\0') {
            ldr_fail(LARDER_E_IO, "%s", strerror(-s.error));
        }
        ldr_bench_fail(b, name, s.why);
    }
    if (s.tier != NULL) {
        ldr_objects_close(s.tier, ldr_sharing_deadline());
    }
    ldr_sharing_remove(&s);
    if (s.bare != NULL) {
        tenant_remove(&s, "");
        s.bare->ops->destroy(s.bare);
    }
    if (b->shared[0] == '\0') {
        ldr_bench_remove(s.dir);
    }
    ldr_pool_destroy(s.source, ldr_sharing_bytes());
    ldr_pool_destroy(s.target, ldr_sharing_bytes());
    ldr_free(s.blocks);
    ldr_free(s.crcs);
    return ok;
}

static bool run(ldr_bench_t *b, const char *name, bool get)
{
    static const uint64_t sizes[] = {256 << 10, 1 << 20};
    bool ok = true;

    if (b->size != 0) {
        return one(b, name, get, b->size);
    }
    for (size_t i = get ? 0 : 1; i < 2 && ok; i++) {
        ok = one(b, name, get, sizes[i]);
    }
    return ok;
}

bool ldr_bench_shared_get(ldr_bench_t *b)
{
    return run(b, "shared-get", true);
}

bool ldr_bench_shared_put(ldr_bench_t *b)
{
    return run(b, "shared-put", false);
}
