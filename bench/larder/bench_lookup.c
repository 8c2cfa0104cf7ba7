/*
 * shm-match, tcp-match: a chain of 1,000 chunks in a daemon that knows many,
 * with nothing of its index in the caches. Compared with the same match in an
 * embedded node of the same directory, and with an empty request: one chunk
 * that the daemon does not know, which costs the wake-ups and nothing else.
 *
 * tcp-small: one value of 4 KiB, against the same bytes sent to and fro by two
 * threads with blocking sockets.
 *
 * serve-idle: what a daemon with clients that do nothing uses of the CPU.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "bench.h"
#include "wire/wire.h"

/* ---- match ---- */

#define ENTRIES 10000000u
#define SLACK_US 50.0

typedef struct matching {
    ldr_bench_t *bench;
    const char *name;
    uint64_t entries;
    double embedded_us;
    char dir[240];
    const char *why;
} matching_t;

static bool match_samples(matching_t *m, ldr_bench_node_t *n, unsigned count,
                          ldr_samples_t *us)
{
    m->why = "a chain did not match";
    return ldr_known_match(m->bench, n->space, m->entries, count, us);
}

static void match_report(const matching_t *m, const char *variant, double value,
                         double goal, ldr_samples_t *us)
{
    char more[80];

    snprintf(more, sizeof(more), ",\"p99\":%.4g,\"samples\":%u",
             ldr_samples_at(us, 0.99), us->count);
    ldr_figure_t f = {
        .name = m->name,
        .variant = variant,
        .bytes = m->entries,
        .value = value,
        .unit = "us",
        .goal_kind = goal > 0 ? LDR_GOAL_MAX : LDR_GOAL_NONE,
        .goal = goal,
        .more = more,
    };
    ldr_bench_report(m->bench, &f);
}

/* goal 0: what the embedded node takes, the wake-ups, and 50 us. */
static void match_compare(matching_t *m, ldr_samples_t *us,
                          ldr_samples_t *empty, double goal)
{
    double wake_us = ldr_samples_median(empty);

    if (goal == 0) {
        goal = m->embedded_us + wake_us + SLACK_US;
    }
    match_report(m, "cold, median", ldr_samples_median(us), goal, us);
    match_report(m, "cold, p99", ldr_samples_at(us, 0.99), 0, us);
    match_report(m, "empty request, cold, median", wake_us, 0, empty);
}

static bool match_daemon(matching_t *m, bool tcp, double goal)
{
    static ldr_samples_t us, empty; /* large */
    ldr_daemon_params_t params = {.name = m->name,
                                  .dram = 64 * LDR_MIB,
                                  .ssd_dir = m->dir,
                                  .ssd = ldr_known_ssd(m->entries)};
    ldr_bench_node_t n = {NULL, NULL};
    ldr_daemon_t daemon;

    ldr_bench_progress(m->bench, m->name, "a daemon reads the directory");
    m->why = "the daemon did not start";
    bool ok = ldr_daemon_start(&daemon, m->bench, &params) &&
              ldr_bench_open(&n, tcp ? daemon.tcp : daemon.local) &&
              match_samples(m, &n, LDR_KNOWN_CHAIN, &us) &&
              match_samples(m, &n, 0, &empty);
    if (ok) {
        match_compare(m, &us, &empty, goal);
        ok = match_samples(m, &n, 1, &us);
    }
    if (ok) {
        match_report(m, "1 chunk, cold, median", ldr_samples_median(&us), 0,
                     &us);
    }
    ldr_bench_close(&n);
    ldr_daemon_stop(&daemon);
    return ok;
}

static bool match_embedded(matching_t *m)
{
    static ldr_samples_t us; /* large */
    ldr_bench_node_t n;
    char url[400];

    snprintf(url, sizeof(url), "embed:%s?dram=64M&ssd=%llu", m->dir,
             (unsigned long long)ldr_known_ssd(m->entries));
    bool ok =
        ldr_bench_open(&n, url) && match_samples(m, &n, LDR_KNOWN_CHAIN, &us);
    if (ok) {
        m->embedded_us = ldr_samples_median(&us);
        match_report(m, "embedded, cold, median", m->embedded_us, 0, &us);
    }
    ldr_bench_close(&n);
    return ok;
}

static bool match_run(ldr_bench_t *b, const char *name, bool tcp, double goal)
{
    static bool made;          /* the directory is there */
    static double embedded_us; /* measured once a run, for both */
    matching_t m = {.bench = b,
                    .name = name,
                    .entries = b->entries != 0 ? b->entries : ENTRIES,
                    .embedded_us = embedded_us,
                    .why = "cannot make a directory"};

    snprintf(m.dir, sizeof(m.dir), "%s/known", b->dir);
    bool ok = true;
    if (!made) {
        ldr_bench_progress(b, name, "making a directory");
        ok = made = ldr_known_create(m.dir, m.entries);
    }
    if (ok && embedded_us == 0) {
        ok = match_embedded(&m);
        embedded_us = m.embedded_us;
    }
    ok = ok && match_daemon(&m, tcp, goal);
    return ok || ldr_bench_fail(b, name, m.why);
}

bool ldr_bench_shm_match(ldr_bench_t *b)
{
    return match_run(b, "shm-match", false, 0);
}

bool ldr_bench_tcp_match(ldr_bench_t *b)
{
    return match_run(b, "tcp-match", true, 300);
}

/* ---- small values ---- */

#define SMALL 4096u
#define SMALL_VALUES 2048u
#define SMALL_TURN 64u /* requests before it is the other's turn */
#define SMALL_SECONDS 2.0

typedef struct small {
    ldr_bench_t *bench;
    ldr_bench_node_t node;
    ldr_echo_t echo;
    ldr_set_t set;
    uint8_t *source, *target;   /* SMALL_VALUES * SMALL */
    ldr_samples_t larder, bare; /* us */
    const char *why;
} small_t;

/* One get of a random value, verified; microseconds, or 0. */
static double small_get(small_t *s, ldr_rand_t *r)
{
    size_t i = ldr_rand_below(r, SMALL_VALUES);
    larder_item_t *item = &s->set.items[i];
    uint8_t *to = item->iov[0].iov_base;

    memset(to, 0, 8);
    double begin = ldr_bench_now();
    larder_status_t st =
        larder_run(s->node.space, LARDER_OP_GET, item, 1, NULL);
    double us = (ldr_bench_now() - begin) * 1e6;

    return st == LARDER_OK && item->status == LARDER_OK &&
                   memcmp(to, s->source + i * SMALL, SMALL) == 0
               ? us
               : 0;
}

static bool small_rounds(small_t *s)
{
    double seconds = s->bench->seconds > 0 ? s->bench->seconds : SMALL_SECONDS;
    double end = ldr_bench_now() + seconds;
    ldr_rand_t r;

    ldr_rand_seed(&r, 5);
    for (unsigned i = 0; s->larder.count < 1000 || ldr_bench_now() < end; i++) {
        for (unsigned k = 0; k < SMALL_TURN; k++) {
            double us = small_get(s, &r);

            if (us == 0) {
                s->why = "a get missed or gave wrong bytes";
                return false;
            }
            if (i > 0) {
                ldr_samples_add(&s->larder, us);
            }
        }
        for (unsigned k = 0; k < SMALL_TURN; k++) {
            double us = ldr_echo_ask(&s->echo, s->target) * 1e6;

            if (us == 0) {
                s->why = "a bare stream broke";
                return false;
            }
            if (i > 0) {
                ldr_samples_add(&s->bare, us);
            }
        }
    }
    return true;
}

static void small_report(small_t *s, const char *variant, double p, double goal)
{
    char more[80];

    snprintf(more, sizeof(more), ",\"samples\":%u", s->larder.count);
    ldr_figure_t f = {
        .name = "tcp-small",
        .variant = variant,
        .bytes = SMALL,
        .value = ldr_samples_at(&s->larder, p),
        .unit = "us",
        .limit = ldr_samples_at(&s->bare, p),
        .goal_kind = goal > 0 ? LDR_GOAL_RATIO_MAX : LDR_GOAL_NONE,
        .goal = goal,
        .more = more,
    };
    ldr_bench_report(s->bench, &f);
}

static bool small_create(small_t *s, const char *url)
{
    const uint64_t bytes = (uint64_t)SMALL_VALUES * SMALL;
    ldr_set_t source;

    s->source = ldr_pool_create(bytes);
    s->target = ldr_pool_create(bytes);
    s->why = "not enough memory";
    if (s->source == NULL || s->target == NULL ||
        !ldr_set_create(&s->set, s->target, bytes, SMALL) ||
        !ldr_set_create(&source, s->source, bytes, SMALL)) {
        return false;
    }
    ldr_pool_random(s->source, bytes, 3);
    ldr_set_name(&s->set, 0);
    ldr_set_name(&source, 0);
    s->why = "cannot fill the arena";
    bool ok =
        ldr_bench_open(&s->node, url) &&
        ldr_set_run(&source, s->node.space, LARDER_OP_PUT, 0, source.count);
    ldr_set_destroy(&source);
    s->echo = (ldr_echo_t){
        .pool = s->source,
        .bytes = bytes,
        .size = SMALL,
        .ask = LDR_FRAME_BYTES + LDR_BATCH_HEAD_BYTES + LDR_NAME_BYTES,
        .head = LDR_FRAME_BYTES + LDR_RESULTS_HEAD_BYTES + LDR_RESULT_BYTES,
    };
    return ok && ldr_echo_open(&s->echo);
}

bool ldr_bench_tcp_small(ldr_bench_t *b)
{
    static small_t s; /* large */
    ldr_daemon_params_t params = {.name = "tcp-small", .dram = 256 * LDR_MIB};
    ldr_daemon_t daemon;

    memset(&s, 0, sizeof(s));
    s.bench = b;
    s.why = "the daemon did not start";
    bool ok = ldr_daemon_start(&daemon, b, &params) &&
              small_create(&s, daemon.tcp) && small_rounds(&s);
    if (ok) {
        small_report(&s, "get, median", 0.5, 2);
        small_report(&s, "get, p99", 0.99, 0);
    } else {
        ldr_bench_fail(b, "tcp-small", s.why);
    }
    ldr_echo_close(&s.echo);
    ldr_bench_close(&s.node);
    ldr_set_destroy(&s.set);
    ldr_pool_destroy(s.source, (uint64_t)SMALL_VALUES * SMALL);
    ldr_pool_destroy(s.target, (uint64_t)SMALL_VALUES * SMALL);
    ldr_daemon_stop(&daemon);
    return ok;
}

/* ---- idle ---- */

#define IDLE_SECONDS 5.0

static void idle_report(ldr_bench_t *b, const char *variant, double seconds,
                        double cpu, uint64_t runs, double goal)
{
    char more[80];

    snprintf(more, sizeof(more), ",\"runs\":%.4g,\"seconds\":%.3g",
             (double)runs / seconds, seconds);
    ldr_figure_t f = {
        .name = "serve-idle",
        .variant = variant,
        .bytes = 2,
        .value = cpu / seconds * 1e6,
        .unit = "us/s",
        .goal_kind = goal > 0 ? LDR_GOAL_MAX : LDR_GOAL_NONE,
        .goal = goal,
        .more = more,
    };
    ldr_bench_report(b, &f);
}

/* A value put and got through each, then nothing. */
static bool idle_use(ldr_bench_node_t *nodes, uint8_t *pool)
{
    bool ok = true;

    for (uint64_t i = 0; i < 2 && ok; i++) {
        ldr_set_t set;

        ok = ldr_set_create(&set, pool, LDR_CHAIN * LDR_MIB, LDR_MIB);
        if (ok) {
            ldr_set_name(&set, i * LDR_CHAIN);
            ok = ldr_set_run(&set, nodes[i].space, LARDER_OP_PUT, 0,
                             set.count) &&
                 ldr_set_run(&set, nodes[i].space, LARDER_OP_GET, 0, set.count);
            ldr_set_destroy(&set);
        }
    }
    return ok;
}

static void idle_measure(ldr_bench_t *b, const ldr_daemon_t *daemon)
{
    double seconds = b->seconds > 0 ? b->seconds : IDLE_SECONDS;
    const struct timespec settle = {.tv_nsec = 500000000};
    struct timespec pause = {.tv_sec = (time_t)seconds};
    double cpu[2];
    uint64_t runs[2];

    pause.tv_nsec = (long)((seconds - (double)pause.tv_sec) * 1e9);
    nanosleep(&settle, NULL);
    double begin = ldr_bench_now();
    cpu[0] = ldr_bench_cpu(daemon->pid);
    runs[0] = ldr_bench_runs(daemon->pid);
    cpu[1] = ldr_bench_cpu(getpid());
    runs[1] = ldr_bench_runs(getpid());
    nanosleep(&pause, NULL);
    seconds = ldr_bench_now() - begin;
    idle_report(b, "the daemon, CPU time", seconds,
                ldr_bench_cpu(daemon->pid) - cpu[0],
                ldr_bench_runs(daemon->pid) - runs[0], 1000);
    idle_report(b, "its clients, CPU time", seconds,
                ldr_bench_cpu(getpid()) - cpu[1],
                ldr_bench_runs(getpid()) - runs[1], 0);
}

bool ldr_bench_idle(ldr_bench_t *b)
{
    ldr_daemon_params_t params = {.name = "serve-idle", .dram = 256 * LDR_MIB};
    uint8_t *pool = ldr_pool_create(LDR_CHAIN * LDR_MIB);
    ldr_bench_node_t nodes[2] = {{NULL, NULL}};
    ldr_daemon_t daemon = {0};
    bool ok = pool != NULL && ldr_daemon_start(&daemon, b, &params) &&
              ldr_bench_open(&nodes[0], daemon.local) &&
              ldr_bench_open(&nodes[1], daemon.tcp) && idle_use(nodes, pool);

    if (ok) {
        idle_measure(b, &daemon);
    } else {
        ldr_bench_fail(b, "serve-idle", "the daemon cannot be used");
    }
    ldr_bench_close(&nodes[0]);
    ldr_bench_close(&nodes[1]);
    ldr_daemon_stop(&daemon);
    ldr_pool_destroy(pool, LDR_CHAIN * LDR_MIB);
    return ok;
}
