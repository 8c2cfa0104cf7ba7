/*
 * shared-get, shared-put: the shared tier against its storage.
 *
 * Objects of 16 MiB are put by the tier's lanes, sealed, and single records of
 * them are got by ranged reads and checked; in turns with as many threads that
 * write and read plain files of the same sizes with O_DIRECT, each write ended
 * by an fsync. With --shared the tier is the one at that URL: for a directory
 * the plain files are made beside it, for Valkey or Redis the limit is what
 * redis-benchmark reaches with values of that size and as many connections.
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
#include "cli/bench.h"
#include "shared/tier.h"

#define LANES 8u /* as many as a node has unless told otherwise */
#define OBJECT_BYTES LDR_TIER_OBJECT_BYTES
#define OBJECTS 24u /* of a round */
#define ROUNDS 5u
#define FLYING 24u /* writes; reads: as many bytes */
#define CALL_NS ((uint64_t)60 * 1000000000)

typedef struct shared {
    ldr_bench_t *bench;
    const char *name;
    bool get;
    uint64_t size;           /* of a record's payload */
    unsigned records;        /* of an object */
    char url[256], dir[256]; /* dir: "" if there is none */
    ldr_tier_t *tier;
    ldr_backend_t *bare; /* a back end of the same storage */
    uint32_t tenant, space;
    uint8_t tenant_id[LDR_ID_BYTES];
    uint8_t *source, *target; /* OBJECTS objects each */
    uint8_t *blocks;          /* a descriptor for each read in flight */
    uint64_t first;           /* key of the round */
    unsigned round;           /* of puts, each to space of its own */
    uint32_t *crcs;           /* of the source's records */
    ldr_samples_t ours, bared, raw;
    const char *why;

    pthread_mutex_t lock; /* what is below */
    pthread_cond_t changed;
    unsigned flying, failed;
    int error; /* of the first that failed */
} shared_t;

static uint64_t soon(void)
{
    return ldr_now_ns(&ldr_clock_real) + CALL_NS;
}

static uint64_t round_bytes(void)
{
    return OBJECTS * OBJECT_BYTES;
}

/* ---- in flight ---- */

/* Waits until fewer than this are. */
static void wait_below(shared_t *s, unsigned most)
{
    pthread_mutex_lock(&s->lock);
    while (s->flying >= most) {
        pthread_cond_wait(&s->changed, &s->lock);
    }
    s->flying++; /* the caller's next; the last gives it back */
    pthread_mutex_unlock(&s->lock);
}

static void ended(shared_t *s, int error)
{
    pthread_mutex_lock(&s->lock);
    s->flying--;
    if (error != 0 && s->failed++ == 0) {
        s->error = error;
    }
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static void wait_all(shared_t *s)
{
    wait_below(s, 1);
    ended(s, 0);
}

/* ---- puts ---- */

typedef struct putting {
    ldr_tier_write_t write;
    struct iovec iov[2 * LDR_TIER_RECORDS + 1];
} putting_t;

static void put_done(ldr_tier_write_t *write)
{
    ended(write->arg, write->error);
}

static bool put_object(shared_t *s, putting_t *p, unsigned object)
{
    ldr_tier_write_t *w = &p->write;

    *w = (ldr_tier_write_t){.tenant = s->tenant,
                            .space = s->space,
                            .count = s->records,
                            .iov = p->iov,
                            .deadline_ns = soon(),
                            .done = put_done,
                            .arg = s};
    for (uint32_t i = 0; i < s->records; i++) {
        uint64_t at = (uint64_t)object * s->records + i;

        ldr_bench_key(s->first + at, &w->records[i].key);
        w->records[i].kind = LDR_RECORD_SHARD;
        w->records[i].epoch = ldr_tier_epoch(s->tier, s->tenant, s->space);
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
    return ldr_tier_write(s->tier, w);
}

static double put_round(shared_t *s)
{
    putting_t *puts = ldr_alloc(OBJECTS * sizeof(*puts));
    bool ok = puts != NULL;
    double begin;

    for (size_t i = 0; i < OBJECTS * s->records; i++) {
        uint8_t *data = s->source + i * s->size;

        ldr_pool_stamp(data, s->size, s->first + i);
        s->crcs[i] = ldr_crc32c(0, data, s->size);
    }
    begin = ldr_bench_now();
    for (unsigned i = 0; i < OBJECTS && ok; i++) {
        wait_below(s, FLYING);
        ok = put_object(s, &puts[i], i);
        if (!ok) {
            ended(s, puts[i].write.error);
        }
    }
    wait_all(s);
    double seconds = ldr_bench_now() - begin;
    ldr_free(puts);
    s->why = "a put failed";
    return ok && s->failed == 0 ? seconds : 0;
}

/* ---- gets ---- */

typedef struct getting {
    shared_t *shared;
    ldr_tier_read_t read;
    struct iovec iov;
} getting_t;

static void get_done(ldr_tier_read_t *read)
{
    const getting_t *g = read->arg;

    ended(g->shared, read->error);
}

/* The record's place is looked up as a load would. */
static bool get_record(shared_t *s, getting_t *g, size_t at)
{
    larder_key_t key;

    ldr_bench_key(s->first + at, &key);
    g->shared = s;
    g->iov = (struct iovec){s->target + at * s->size, s->size};
    g->read = (ldr_tier_read_t){.tenant = s->tenant,
                                .space = s->space,
                                .iov = &g->iov,
                                .iov_count = 1,
                                .block = s->blocks + at * LDR_BLOCK,
                                .deadline_ns = soon(),
                                .done = get_done,
                                .arg = g};
    g->read.error = -ENOENT;
    return ldr_tier_find(s->tier, s->tenant, s->space, &key, 0, 0,
                         &g->read.place) &&
           ldr_tier_read(s->tier, &g->read);
}

static double get_round(shared_t *s)
{
    size_t count = OBJECTS * s->records;
    getting_t *gets = ldr_alloc(count * sizeof(*gets));
    bool ok = gets != NULL;
    double begin = ldr_bench_now();

    for (size_t i = 0; i < count && ok; i++) {
        wait_below(s, FLYING);
        ok = get_record(s, &gets[i], i);
        if (!ok) {
            ended(s, gets[i].read.error);
        }
    }
    wait_all(s);
    double seconds = ldr_bench_now() - begin;
    ldr_free(gets);
    s->why = "a get failed";
    if (!ok || s->failed > 0) {
        return 0;
    }
    s->why = "a get gave wrong bytes";
    return ldr_pool_verify(s->target, s->source, round_bytes()) ? seconds : 0;
}

/* ---- plain files ---- */

typedef struct part {
    shared_t *s;
    unsigned number;
    bool write;
    bool bare; /* through the back end, not a plain file */
} part_t;

static void raw_path(const shared_t *s, unsigned n, char *path, size_t size)
{
    snprintf(path, size, "%s/.bench-raw-%u-%u", s->dir, s->round, n);
}

static bool raw_write(const shared_t *s, unsigned object)
{
    char path[300];

    raw_path(s, object, path, sizeof(path));
    int fd = open(path, O_CREAT | O_WRONLY | O_DIRECT | O_CLOEXEC, 0600);
    bool ok = fd >= 0 &&
              pwrite(fd, s->source + object * OBJECT_BYTES, OBJECT_BYTES, 0) ==
                  (ssize_t)OBJECT_BYTES &&
              fsync(fd) == 0;
    if (fd >= 0) {
        close(fd);
    }
    return ok;
}

static bool raw_read(const shared_t *s, unsigned object)
{
    char path[300];
    bool ok = true;

    raw_path(s, object, path, sizeof(path));
    int fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
    for (unsigned i = 0; i < s->records && ok && fd >= 0; i++) {
        uint64_t at = i * s->size;

        ok = pread(fd, s->target + object * OBJECT_BYTES + at, s->size,
                   (off_t)at) == (ssize_t)s->size;
    }
    if (fd >= 0) {
        close(fd);
    }
    return ok && fd >= 0;
}

/* The same by the back end, below the tier: no seals, no records. */
static void bare_name(const shared_t *s, unsigned object, char *name)
{
    ldr_hex(s->tenant_id, LDR_ID_BYTES, name);
    snprintf(name + (size_t)2 * LDR_ID_BYTES,
             LDR_OBJECT_NAME_MAX - 2 * LDR_ID_BYTES, "/b/%u-%u", s->round,
             object);
}

static bool bare_write(const shared_t *s, unsigned object)
{
    struct iovec iov = {s->source + object * OBJECT_BYTES, OBJECT_BYTES};
    char name[LDR_OBJECT_NAME_MAX + 1];

    bare_name(s, object, name);
    return s->bare->ops->put(s->bare, name, &iov, 1, 0, soon()) == 0;
}

static bool bare_read(const shared_t *s, unsigned object)
{
    char name[LDR_OBJECT_NAME_MAX + 1];
    bool ok = true;

    bare_name(s, object, name);
    for (unsigned i = 0; i < s->records && ok; i++) {
        uint64_t at = i * s->size;
        struct iovec iov = {s->target + object * OBJECT_BYTES + at, s->size};

        ok = s->bare->ops->get(s->bare, name, at, &iov, 1, soon()) == 0;
    }
    return ok;
}

static bool raw_part(void *arg)
{
    part_t *p = arg;
    bool ok = true;

    for (unsigned i = p->number; i < OBJECTS && ok; i += LANES) {
        if (p->bare) {
            ok = p->write ? bare_write(p->s, i) : bare_read(p->s, i);
        } else {
            ok = p->write ? raw_write(p->s, i) : raw_read(p->s, i);
        }
    }
    return ok;
}

static void raw_remove(shared_t *s)
{
    char path[300];

    for (; s->dir[0] != '\0'; s->round--) {
        for (unsigned i = 0; i < OBJECTS; i++) {
            raw_path(s, i, path, sizeof(path));
            unlink(path);
        }
        if (s->round == 0) {
            break;
        }
    }
}

static double raw_round(shared_t *s, bool bare, bool write)
{
    part_t parts[LANES];

    for (unsigned i = 0; i < LANES; i++) {
        parts[i] = (part_t){.s = s, .number = i, .write = write, .bare = bare};
    }
    return ldr_bench_together(LANES, false, raw_part, parts, sizeof(parts[0]));
}

/* ---- redis-benchmark ---- */

/* Bytes a second of its SET or GET; 0: it is not here, or cannot. */
static double redis_rate(const shared_t *s)
{
    char host[128], command[400], line[256];
    uint64_t bytes = s->get ? s->size : OBJECT_BYTES;
    unsigned port = 6379;
    double rate = 0;

    if (sscanf(s->url, "valkey://%127[^:/?]:%u", host, &port) < 1 ||
        strspn(host, "abcdefghijklmnopqrstuvwxyz0123456789.-") !=
            strlen(host)) {
        return 0;
    }
    snprintf(command, sizeof(command),
             "redis-benchmark -h %s -p %u -t %s -d %llu -c %u -n %llu --csv "
             "2>/dev/null",
             host, port, s->get ? "set,get" : "set", (unsigned long long)bytes,
             LANES, (unsigned long long)(round_bytes() / bytes));
    FILE *out = popen(command, "re");
    while (out != NULL && fgets(line, sizeof(line), out) != NULL) {
        char what[8];
        double rps;

        if (sscanf(line, "\"%7[A-Z]\",\"%lf\"", what, &rps) == 2 &&
            strcmp(what, s->get ? "GET" : "SET") == 0) {
            rate = rps * (double)bytes;
        }
    }
    if (out != NULL) {
        pclose(out);
    }
    return rate;
}

/* ---- removing ---- */

static int remove_one(void *arg, const char *name, uint64_t bytes)
{
    ldr_backend_t *b = arg;

    (void)bytes;
    b->ops->remove(b, name, soon());
    return 0;
}

/* All that the tenant of this run has below there ("" or "o/"). */
static void tenant_remove(const shared_t *s, const char *below)
{
    char hex[LDR_HEX_BYTES(LDR_ID_BYTES)], prefix[sizeof(hex) + 8];

    ldr_hex(s->tenant_id, LDR_ID_BYTES, hex);
    snprintf(prefix, sizeof(prefix), "%s/%s", hex, below);
    s->bare->ops->list(s->bare, prefix, NULL, remove_one, s->bare, UINT64_MAX);
}

/* ---- rounds ---- */

/* In bytes a second; 0: there is no limit to compare with. */
static double limit(shared_t *s)
{
    double seconds;

    if (s->dir[0] == '\0') {
        return redis_rate(s);
    }
    seconds = raw_round(s, false, !s->get);
    return seconds > 0 ? (double)round_bytes() / seconds : 0;
}

/* Puts have keys of their own each time, and are read back. */
static double turn(shared_t *s)
{
    double seconds;

    if (s->get) {
        return get_round(s);
    }
    s->first += OBJECTS * s->records;
    seconds = put_round(s);
    if (seconds > 0 && get_round(s) == 0) {
        return 0;
    }
    return seconds;
}

static void report(shared_t *s, bool bare)
{
    char variant[48], more[120];
    ldr_samples_t *samples = bare ? &s->bared : &s->ours;
    bool goal = s->raw.count > 0 && !bare;

    snprintf(variant, sizeof(variant), "%.*s, %s", (int)strcspn(s->url, ":"),
             s->url,
             bare     ? "back end alone"
             : s->get ? "single records"
                      : "objects of 16 MiB");
    snprintf(more, sizeof(more), ",\"lanes\":%u,\"rounds\":%u", LANES,
             samples->count);
    ldr_figure_t f = {
        .name = s->name,
        .variant = variant,
        .bytes = s->size,
        .value = ldr_samples_median(samples),
        .unit = "GB/s",
        .limit = ldr_samples_median(&s->raw),
        .goal_kind = goal ? LDR_GOAL_RATIO : LDR_GOAL_NONE,
        .goal = s->dir[0] != '\0' ? 0.9 : 0.8,
        .more = more,
    };
    ldr_bench_report(s->bench, &f);
}

/* Each once, and not always in the same order. */
static bool three(shared_t *s, unsigned round)
{
    /* Of a disk that was not written to before, but not of a server's memory
     * as much as that takes. */
    s->round = s->get || s->dir[0] == '\0' ? 0 : round;
    for (unsigned k = 0; k < 3; k++) {
        unsigned who = (k + round) % 3;
        double value;

        if (who == 0) {
            value = limit(s) * 1e-9;
        } else {
            double seconds = who == 1 ? turn(s) : raw_round(s, true, !s->get);

            if (seconds == 0) {
                return false;
            }
            if (!s->get && s->dir[0] == '\0') {
                tenant_remove(s, "o/");
            }
            value = (double)round_bytes() * 1e-9 / seconds;
        }
        if (round > 0 && value > 0) { /* the first is not counted */
            ldr_samples_add(who == 0   ? &s->raw
                            : who == 1 ? &s->ours
                                       : &s->bared,
                            value);
        }
    }
    return true;
}

static bool rounds(shared_t *s)
{
    double end = ldr_bench_now() + s->bench->seconds;

    if (s->get && (put_round(s) == 0 || raw_round(s, true, true) == 0 ||
                   (s->dir[0] != '\0' && raw_round(s, false, true) == 0))) {
        return false;
    }
    for (unsigned i = 0; i <= ROUNDS || ldr_bench_now() < end; i++) {
        if (!three(s, i)) {
            return false;
        }
    }
    report(s, false);
    report(s, true);
    return true;
}

/* ---- opening ---- */

static bool memory(shared_t *s)
{
    size_t count = OBJECTS * s->records;

    s->why = "not enough memory";
    s->source = ldr_pool_create(round_bytes());
    s->target = ldr_pool_create(round_bytes());
    s->blocks = ldr_alloc_blocks(count * LDR_BLOCK);
    s->crcs = ldr_alloc(count * sizeof(*s->crcs));
    if (s->source == NULL || s->target == NULL || s->blocks == NULL ||
        s->crcs == NULL) {
        return false;
    }
    ldr_pool_random(s->source, round_bytes(), 5);
    return true;
}

static bool tier_open(shared_t *s)
{
    ldr_seal_t seal = {.encrypts = false};
    uint8_t space_id[LDR_ID_BYTES];
    ldr_tier_params_t params = {.url = s->url,
                                .login = "",
                                .lanes = LANES,
                                .timeout_ms = 30000,
                                .retry_ms = 1000,
                                .poll_ms = 1000,
                                .publish_ms = 200,
                                .clock = &ldr_clock_real};
    ldr_backend_params_t backend = {
        .url = s->url, .login = "", .lanes = LANES, .clock = &ldr_clock_real};
    const struct timespec pause = {.tv_nsec = 5000000};
    larder_key_t key = {{0}};
    larder_status_t st = ldr_tier_make(s->url, "", soon());

    s->why = "cannot make the tier";
    for (unsigned i = 0; i < LDR_ID_BYTES; i += 8) {
        ldr_put64(s->tenant_id + i, ldr_rand_entropy());
    }
    memset(space_id, 's', sizeof(space_id));
    memcpy(seal.mac, s->tenant_id, LDR_ID_BYTES);
    if ((st != LARDER_OK && st != LARDER_PRESENT) ||
        ldr_backend_open(&backend, &s->bare) != LARDER_OK ||
        ldr_tier_open(&params, &s->tier) != LARDER_OK ||
        ldr_tier_tenant(s->tier, s->tenant_id, "bench", &seal, soon(),
                        &s->tenant) != LARDER_OK) {
        return false;
    }
    s->space = ldr_tier_space(s->tier, s->tenant, space_id, 0);
    s->why = "the tier does not come on";
    for (double end = ldr_bench_now() + 20; ldr_bench_now() < end;) {
        if (ldr_tier_wants(s->tier, s->tenant, s->space, &key, 0, 0)) {
            return true;
        }
        nanosleep(&pause, NULL);
    }
    return false;
}

/* Where it was asked for: a directory of ours, or the URL's. */
static void place(shared_t *s)
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
    static shared_t s; /* large */

    memset(&s, 0, sizeof(s));
    s.bench = b;
    s.name = name;
    s.get = get;
    s.size = size;
    s.records = (unsigned)(OBJECT_BYTES / size);
    pthread_mutex_init(&s.lock, NULL);
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
        ldr_tier_close(s.tier, soon());
    }
    raw_remove(&s);
    if (s.bare != NULL) {
        tenant_remove(&s, "");
        s.bare->ops->destroy(s.bare);
    }
    if (b->shared[0] == '\0') {
        ldr_bench_remove(s.dir);
    }
    ldr_pool_destroy(s.source, round_bytes());
    ldr_pool_destroy(s.target, round_bytes());
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
