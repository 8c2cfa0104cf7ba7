/*
 * shm-get, shm-put, tcp-get, tcp-put, tls-get: values through a daemon.
 *
 * As the DRAM figures, with the arena in another process. Over shared memory
 * the limit is the best plain copy, by as many threads as there are callers;
 * over TCP a bare stream over loopback, as many as there are connections. The
 * limit and each way to use the daemon take turns within a round.
 *
 * Over TCP there is a second limit: the same bare streams with what must be
 * done to the bytes besides: TLS, or else a checksum by who receives, and for
 * puts by who sends.
 */
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "cli/bench.h"

#define CALLERS_MAX 2u
#define WAYS_MAX 4u
#define ROUNDS_MIN 5u
#define SECONDS 1.5

/* One way to use the daemon. */
typedef struct way {
    const char *variant;
    const char *options; /* of the URL */
    unsigned handles, callers;
    size_t each; /* items in a call */
    double goal; /* 0: none */
} way_t;

/* Ways that are compared with the same limit. */
typedef struct ways {
    unsigned lanes; /* threads that copy, or streams */
    unsigned count;
    way_t way[WAYS_MAX];
} ways_t;

typedef struct figure {
    const char *name;
    bool get, tcp, tls;
    ways_t ways[2]; /* for one client and for two */
} figure_t;

typedef struct remote {
    ldr_bench_t *bench;
    const figure_t *figure;
    ldr_daemon_t daemon;
    uint64_t bytes; /* of each pool */
    uint8_t *pool;  /* the caller's memory */
    uint8_t *other; /* get: what the pool must become; put: what was put */
    ldr_copying_t copying;
    ldr_streams_t plain, tls;
    uint64_t keys; /* given so far */
    double cpu;    /* seconds of the daemon's in the last pass */
    const char *why;
} remote_t;

/* What one group of ways measured. */
typedef struct result {
    ldr_copies_t copies;
    ldr_samples_t plain;                     /* bare streams, GB/s */
    ldr_samples_t more;                      /* with TLS, or checksums */
    ldr_samples_t larder[WAYS_MAX];          /* GB/s */
    double cpu[WAYS_MAX], seconds[WAYS_MAX]; /* of the daemon; in all */
} result_t;

static const uint64_t sizes[] = {256 << 10, 1 << 20, 4 << 20};

static const figure_t shm_get = {
    .name = "shm-get",
    .get = true,
    .ways = {{1,
              3,
              {{"checksum", "", 1, 1, LDR_CHAIN, 0.85},
               {"verify=entry", "verify=entry", 1, 1, LDR_CHAIN, 0.9},
               {"checksum, one a call", "", 1, 1, 1, 0}}},
             {2,
              2,
              {{"checksum, 2 clients", "", 2, 2, LDR_CHAIN, 0.8},
               {"checksum, 2 threads", "", 1, 2, LDR_CHAIN, 0}}}},
};

static const figure_t shm_put = {
    .name = "shm-put",
    .ways = {{1,
              2,
              {{"checksum", "", 1, 1, LDR_CHAIN, 0.85},
               {"checksum, one a call", "", 1, 1, 1, 0}}},
             {2,
              2,
              {{"checksum, 2 clients", "", 2, 2, LDR_CHAIN, 0.8},
               {"checksum, 2 threads", "", 1, 2, LDR_CHAIN, 0}}}},
};

#define TCP_WAYS                                                               \
    {                                                                          \
        {1,                                                                    \
         2,                                                                    \
         {{"1 connection", "connections=1", 1, 1, LDR_CHAIN, 0.9},             \
          {"1 connection, one a call", "connections=1", 1, 1, 1, 0}}},         \
            {2,                                                                \
             3,                                                                \
             {{"2 connections", "connections=2", 1, 2, LDR_CHAIN, 0.85},       \
              {"2 clients", "connections=1", 2, 2, LDR_CHAIN, 0},              \
              {"2 connections, 1 caller", "connections=2", 1, 1, LDR_CHAIN,    \
               0}}},                                                           \
    }

static const figure_t tcp_get = {
    .name = "tcp-get", .get = true, .tcp = true, .ways = TCP_WAYS};
static const figure_t tcp_put = {
    .name = "tcp-put", .tcp = true, .ways = TCP_WAYS};

static const figure_t tls_get = {
    .name = "tls-get",
    .get = true,
    .tcp = true,
    .tls = true,
    .ways = {{1, 1, {{"1 connection", "connections=1", 1, 1, LDR_CHAIN, 0}}},
             {2, 1, {{"2 connections", "connections=2", 1, 2, LDR_CHAIN, 0}}}},
};

/* ---- the limit ---- */

static bool limit_round(remote_t *m, uint64_t size, result_t *out)
{
    double gb = (double)m->bytes * 1e-9;
    uint8_t *arena = m->copying.extent.base;
    uint8_t *to = m->figure->get ? m->pool : arena;
    const uint8_t *from = m->figure->get ? arena : m->pool;

    if (!m->figure->tcp) {
        ldr_copies_round(&m->copying, &out->copies, size);
        return true;
    }
    /* Of what it sends back a daemon knows the checksum. */
    unsigned checked = LDR_CHECKED_TO | (m->figure->get ? 0 : LDR_CHECKED_FROM);
    double s = ldr_streams_pass(&m->plain, to, from, m->bytes, size, 0);
    double more = ldr_streams_pass(m->figure->tls ? &m->tls : &m->plain, to,
                                   from, m->bytes, size, checked);
    if (s > 0 && more > 0) {
        ldr_samples_add(&out->plain, gb / s);
        ldr_samples_add(&out->more, gb / more);
    }
    return s > 0 && more > 0;
}

static bool limit_open(remote_t *m, unsigned lanes)
{
    m->copying.threads = lanes;
    m->plain = m->tls = (ldr_streams_t){0};
    return !m->figure->tcp ||
           (ldr_streams_open(&m->plain, lanes, NULL, NULL) &&
            (!m->figure->tls ||
             ldr_streams_open(&m->tls, lanes, m->daemon.cert, m->daemon.key)));
}

static void limit_close(remote_t *m)
{
    ldr_streams_close(&m->plain);
    ldr_streams_close(&m->tls);
}

/* ---- Larder ---- */

/* A caller's part of a set. */
typedef struct part {
    ldr_set_t *set;
    larder_space_t *space;
    larder_op_t op;
    size_t begin, end, each;
} part_t;

static bool part_run(void *arg)
{
    const part_t *p = arg;

    return ldr_set_run_by(p->set, p->space, p->op, p->begin, p->end, p->each);
}

/* The set once; seconds, or 0. */
static double pass(remote_t *m, const way_t *w, ldr_bench_node_t *nodes,
                   ldr_set_t *set)
{
    part_t parts[CALLERS_MAX];
    size_t share = set->count / w->callers;

    for (unsigned i = 0; i < w->callers; i++) {
        parts[i] = (part_t){
            .set = set,
            .space = nodes[i % w->handles].space,
            .op = m->figure->get ? LARDER_OP_GET : LARDER_OP_PUT,
            .begin = i * share,
            .end = i + 1 < w->callers ? (i + 1) * share : set->count,
            .each = w->each,
        };
    }
    double cpu = ldr_bench_cpu(m->daemon.pid);
    double seconds = ldr_bench_together(w->callers, !m->figure->tcp, part_run,
                                        parts, sizeof(parts[0]));
    m->cpu = ldr_bench_cpu(m->daemon.pid) - cpu;
    return seconds;
}

static double round_get(remote_t *m, const way_t *w, ldr_bench_node_t *nodes,
                        ldr_set_t *set)
{
    double seconds = pass(m, w, nodes, set);

    m->why = "a get missed";
    if (seconds > 0 &&
        !ldr_pool_verify(m->pool, m->other, set->count * set->size)) {
        m->why = "a get gave wrong bytes";
        seconds = 0;
    }
    return seconds;
}

/* New keys each time: the arena is full, and each save evicts another. */
static double round_put(remote_t *m, const way_t *w, ldr_bench_node_t *nodes,
                        ldr_set_t *set)
{
    uint64_t bytes = set->count * set->size;
    uint64_t first = m->keys;
    ldr_set_t back;

    m->keys += set->count;
    ldr_set_name(set, first);
    ldr_pool_stamp(m->pool, bytes, first);
    double seconds = pass(m, w, nodes, set);

    m->why = "a put was refused";
    if (seconds == 0) {
        return 0;
    }
    m->why = "what was put did not come back";
    if (!ldr_set_create(&back, m->other, m->bytes, set->size)) {
        return 0;
    }
    ldr_set_name(&back, first);
    bool ok =
        ldr_set_run(&back, nodes[0].space, LARDER_OP_GET, 0, back.count) &&
        ldr_pool_verify(m->other, m->pool, bytes);
    ldr_set_destroy(&back);
    return ok ? seconds : 0;
}

/* For gets: the daemon holds what `other` holds. */
static bool fill(remote_t *m, ldr_bench_node_t *n, ldr_set_t *set)
{
    uint64_t first = m->keys;
    ldr_set_t source;

    ldr_set_name(set, first);
    if (!m->figure->get) {
        return true;
    }
    m->keys += set->count;
    if (!ldr_set_create(&source, m->other, m->bytes, set->size)) {
        return false;
    }
    ldr_set_name(&source, first);
    bool ok = ldr_set_run(&source, n->space, LARDER_OP_PUT, 0, source.count);
    ldr_set_destroy(&source);
    return ok;
}

static bool rounds(remote_t *m, const ways_t *ways,
                   ldr_bench_node_t nodes[][CALLERS_MAX], ldr_set_t *set,
                   result_t *out)
{
    double seconds = m->bench->seconds > 0 ? m->bench->seconds : SECONDS;
    double end = ldr_bench_now() + seconds;
    double gb = (double)(set->count * set->size) * 1e-9;

    /* The first round warms up: mappings, and for puts the full arena. */
    for (unsigned i = 0; i <= ROUNDS_MIN || ldr_bench_now() < end; i++) {
        for (unsigned k = 0; k < ways->count; k++) {
            double s = m->figure->get
                           ? round_get(m, &ways->way[k], nodes[k], set)
                           : round_put(m, &ways->way[k], nodes[k], set);

            if (s == 0) {
                return false;
            }
            if (i > 0) {
                ldr_samples_add(&out->larder[k], gb / s);
                out->cpu[k] += m->cpu;
                out->seconds[k] += s;
            }
        }
        if (i > 0 && !limit_round(m, set->size, out)) {
            m->why = "a bare stream broke";
            return false;
        }
    }
    return true;
}

/* ---- the report ---- */

/* The value that the part p of the rounds did not exceed. */
static double limit_at(const figure_t *figure, result_t *out, double p,
                       const char **copy_p)
{
    *copy_p = "stream";
    return figure->tcp ? ldr_samples_at(&out->plain, p)
                       : ldr_copies_best(&out->copies, false, p, copy_p);
}

static void report_way(remote_t *m, const way_t *w, uint64_t size,
                       result_t *out, unsigned k)
{
    const figure_t *figure = m->figure;
    const char *copy, *other;
    double limit = limit_at(figure, out, 0.5, &copy);
    double best = ldr_samples_at(&out->larder[k], 1);
    bool goal = w->goal > 0 && (!figure->tcp || size == LDR_MIB);
    char more[200], variant[64];

    snprintf(more, sizeof(more),
             ",\"limit_copy\":\"%s\",\"rounds\":%u,\"best\":%.4g,"
             "\"best_ratio\":%.3f,\"daemon_cpu\":%.3f",
             copy, out->larder[k].count, best,
             best / limit_at(figure, out, 1, &other),
             out->cpu[k] / out->seconds[k]);
    ldr_figure_t f = {
        .name = figure->name,
        .variant = w->variant,
        .bytes = size,
        .value = ldr_samples_median(&out->larder[k]),
        .unit = "GB/s",
        .limit = limit,
        .goal_kind = goal ? LDR_GOAL_RATIO : LDR_GOAL_NONE,
        .goal = w->goal,
        .more = more,
    };
    ldr_bench_report(m->bench, &f);
    if (figure->tcp) {
        snprintf(variant, sizeof(variant), "%s, of %s", w->variant,
                 figure->tls ? "TLS" : "checked streams");
        snprintf(more, sizeof(more), ",\"best\":%.4g,\"best_ratio\":%.3f", best,
                 best / ldr_samples_at(&out->more, 1));
        f.variant = variant;
        f.limit = ldr_samples_median(&out->more);
        f.goal_kind = LDR_GOAL_NONE;
        ldr_bench_report(m->bench, &f);
    }
}

/* ---- one size, one group of ways ---- */

static bool open_way(remote_t *m, const way_t *w, ldr_bench_node_t *nodes)
{
    char url[1024], tls[700] = "";
    const char *base = m->figure->tcp ? m->daemon.tcp : m->daemon.local;
    bool ok = true;

    if (m->figure->tls) {
        snprintf(tls, sizeof(tls), "%stls=on&tls_name=localhost&tls_ca=%s",
                 w->options[0] != '\0' ? "&" : "", m->daemon.cert);
    }
    snprintf(url, sizeof(url), "%s%s%s%s", base,
             w->options[0] != '\0' || tls[0] != '\0' ? "?" : "", w->options,
             tls);
    for (unsigned i = 0; i < w->handles && ok; i++) {
        ok = ldr_bench_open(&nodes[i], url);
    }
    return ok;
}

static bool one(remote_t *m, const ways_t *ways, uint64_t size)
{
    static result_t out; /* large */
    ldr_bench_node_t nodes[WAYS_MAX][CALLERS_MAX] = {{{NULL, NULL}}};
    ldr_set_t set = {0};
    bool ok = true;

    memset(&out, 0, sizeof(out));
    m->why = "open";
    for (unsigned k = 0; k < ways->count && ok; k++) {
        ok = open_way(m, &ways->way[k], nodes[k]);
    }
    if (ok) {
        m->why = "cannot make bare streams";
        ok = limit_open(m, ways->lanes);
    }
    if (ok) {
        m->why = "cannot fill the arena";
        ok = ldr_set_create(&set, m->pool, m->bytes, size) &&
             fill(m, &nodes[0][0], &set) && rounds(m, ways, nodes, &set, &out);
    }
    if (!ok) {
        ldr_bench_fail(m->bench, m->figure->name, m->why);
    }
    for (unsigned k = 0; k < ways->count && ok; k++) {
        report_way(m, &ways->way[k], size, &out, k);
    }
    ldr_set_destroy(&set);
    limit_close(m);
    for (unsigned k = 0; k < WAYS_MAX; k++) {
        for (unsigned i = 0; i < CALLERS_MAX; i++) {
            ldr_bench_close(&nodes[k][i]);
        }
    }
    return ok;
}

static bool create(remote_t *m)
{
    const figure_t *figure = m->figure;

    m->bytes = ldr_bench_pool_bytes();
    m->pool = ldr_pool_create(m->bytes);
    m->other = ldr_pool_create(m->bytes);
    m->copying = (ldr_copying_t){
        .get = figure->get, .threads = 1, .bytes = m->bytes, .pool = m->pool};
    if (m->pool == NULL || m->other == NULL ||
        !ldr_copying_create(&m->copying)) {
        return ldr_bench_fail(m->bench, figure->name, "not enough memory");
    }
    ldr_pool_random(m->pool, m->bytes, 1);
    ldr_pool_random(m->other, m->bytes, 2);
    /* Room for what clients reserve ahead; a round of puts must be there to
     * be compared. */
    ldr_daemon_params_t params = {
        .name = figure->name,
        .dram = (figure->get ? 1 : 2) * m->bytes + 128 * LDR_MIB,
        .tls = figure->tls,
    };
    return ldr_daemon_start(&m->daemon, m->bench, &params) ||
           ldr_bench_fail(m->bench, figure->name, "the daemon did not start");
}

static bool run(ldr_bench_t *b, const figure_t *figure)
{
    remote_t m = {.bench = b, .figure = figure};
    bool ok = create(&m);

    for (unsigned clients = 1; clients <= 2; clients++) {
        if (b->clients != 0 && b->clients != clients) {
            continue;
        }
        for (size_t i = 0; i < 3 && ok; i++) {
            /* Two clients at every size only when asked for. */
            bool wanted = b->size != 0                      ? i == 0
                          : clients == 2 && b->clients == 0 ? i == 1
                                                            : true;

            if (wanted) {
                ok = one(&m, &figure->ways[clients - 1],
                         b->size != 0 ? b->size : sizes[i]);
            }
        }
    }
    ldr_daemon_stop(&m.daemon);
    ldr_pool_destroy(m.pool, m.bytes);
    ldr_pool_destroy(m.other, m.bytes);
    ldr_copying_destroy(&m.copying);
    return ok;
}

bool ldr_bench_shm_get(ldr_bench_t *b)
{
    return run(b, &shm_get);
}

bool ldr_bench_shm_put(ldr_bench_t *b)
{
    return run(b, &shm_put);
}

bool ldr_bench_tcp_get(ldr_bench_t *b)
{
    return run(b, &tcp_get);
}

bool ldr_bench_tcp_put(ldr_bench_t *b)
{
    return run(b, &tcp_put);
}

bool ldr_bench_tls_get(ldr_bench_t *b)
{
    return run(b, &tls_get);
}
