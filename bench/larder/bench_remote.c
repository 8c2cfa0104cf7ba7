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

#include "bench.h"

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
    unsigned threads; /* that copy; or streams */
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
    ldr_moving_t moving;
    ldr_streams_t plain, tls;
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
    const ldr_moving_t *v = &m->moving;
    double gb = (double)v->bytes * 1e-9;
    uint8_t *arena = v->copying.extent.base;
    uint8_t *to = v->get ? v->pool : arena;
    const uint8_t *from = v->get ? arena : v->pool;

    if (!m->figure->tcp) {
        ldr_copies_round(&v->copying, &out->copies, size);
        return true;
    }
    /* Of what it sends back a daemon knows the checksum. */
    unsigned checked = LDR_CHECKED_TO | (v->get ? 0 : LDR_CHECKED_FROM);
    double s = ldr_streams_pass(&m->plain, to, from, v->bytes, size, 0);
    double more = ldr_streams_pass(m->figure->tls ? &m->tls : &m->plain, to,
                                   from, v->bytes, size, checked);
    if (s > 0 && more > 0) {
        ldr_samples_add(&out->plain, gb / s);
        ldr_samples_add(&out->more, gb / more);
    }
    return s > 0 && more > 0;
}

static bool limit_open(remote_t *m, unsigned threads)
{
    m->moving.copying.threads = threads;
    m->plain = m->tls = (ldr_streams_t){0};
    return !m->figure->tcp ||
           (ldr_streams_open(&m->plain, threads, NULL, NULL) &&
            (!m->figure->tls ||
             ldr_streams_open(&m->tls, threads, m->daemon.cert,
                              m->daemon.key)));
}

static void limit_close(remote_t *m)
{
    ldr_streams_close(&m->plain);
    ldr_streams_close(&m->tls);
}

/* ---- Larder ---- */

static double round_of(remote_t *m, const way_t *w,
                       const ldr_bench_node_t *nodes, ldr_set_t *set)
{
    ldr_callers_t callers = {
        .count = w->callers, .each = w->each, .spread = !m->figure->tcp};

    for (unsigned i = 0; i < w->callers; i++) {
        callers.space[i] = nodes[i % w->handles].space;
    }
    return ldr_moving_round(&m->moving, &callers, set);
}

static bool rounds(remote_t *m, const ways_t *ways,
                   ldr_bench_node_t nodes[][LDR_CALLERS_MAX], ldr_set_t *set,
                   result_t *out)
{
    double seconds = m->bench->seconds > 0 ? m->bench->seconds : SECONDS;
    double end = ldr_bench_now() + seconds;
    double gb = (double)(set->count * set->size) * 1e-9;

    /* The first round warms up: mappings, and for puts the full arena. */
    for (unsigned i = 0; i <= ROUNDS_MIN || ldr_bench_now() < end; i++) {
        for (unsigned k = 0; k < ways->count; k++) {
            double s = round_of(m, &ways->way[k], nodes[k], set);

            if (s == 0) {
                m->why = m->moving.why;
                return false;
            }
            if (i > 0) {
                ldr_samples_add(&out->larder[k], gb / s);
                out->cpu[k] += m->moving.cpu;
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
    ldr_bench_node_t nodes[WAYS_MAX][LDR_CALLERS_MAX] = {{{NULL, NULL}}};
    ldr_set_t set = {0};
    bool ok = true;

    memset(&out, 0, sizeof(out));
    m->why = "open";
    for (unsigned k = 0; k < ways->count && ok; k++) {
        ok = open_way(m, &ways->way[k], nodes[k]);
    }
    if (ok) {
        m->why = "cannot make bare streams";
        ok = limit_open(m, ways->threads);
    }
    if (ok) {
        m->why = "cannot fill the arena";
        ok = ldr_set_create(&set, m->moving.pool, m->moving.bytes, size) &&
             ldr_moving_fill(&m->moving, nodes[0][0].space, &set) &&
             rounds(m, ways, nodes, &set, &out);
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
        for (unsigned i = 0; i < LDR_CALLERS_MAX; i++) {
            ldr_bench_close(&nodes[k][i]);
        }
    }
    return ok;
}

static bool create(remote_t *m)
{
    const figure_t *figure = m->figure;

    if (!ldr_moving_create(&m->moving, figure->get)) {
        return ldr_bench_fail(m->bench, figure->name, "not enough memory");
    }
    /* Room for what clients reserve ahead; a round of puts must be there to
     * be compared. */
    ldr_daemon_params_t params = {
        .name = figure->name,
        .dram = (figure->get ? 1 : 2) * m->moving.bytes + 128 * LDR_MIB,
        .tls = figure->tls,
    };
    if (!ldr_daemon_start(&m->daemon, m->bench, &params)) {
        return ldr_bench_fail(m->bench, figure->name,
                              "the daemon did not start");
    }
    m->moving.daemon = m->daemon.pid;
    return true;
}

static bool run(ldr_bench_t *b, const figure_t *figure)
{
    remote_t m = {.bench = b, .figure = figure};
    bool ok = create(&m);
    uint64_t size;

    for (unsigned clients = 1; clients <= 2; clients++) {
        if (b->clients != 0 && b->clients != clients) {
            continue;
        }
        for (unsigned i = 0; ok && (size = ldr_bench_size(b, i)) != 0; i++) {
            /* Two clients at every size only when asked for. */
            if (clients == 1 || b->clients != 0 || b->size != 0 ||
                size == LDR_MIB) {
                ok = one(&m, &figure->ways[clients - 1], size);
            }
        }
    }
    ldr_daemon_stop(&m.daemon);
    ldr_moving_destroy(&m.moving);
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
