/*
 * peer-get, peer-put, peer-match: values of other members of a cluster.
 *
 * All members are daemons on this machine, on loopback. The client's own one
 * has weight 0: it owns nothing, so that whatever it is asked for comes from
 * the others (peer-get), and whatever is saved goes to them (peer-put, until
 * they have it). The limit is as many bare streams over loopback as there are
 * other members. Members and the client share this machine's cores, and so do
 * both ends of the streams: where these are too few, they decide, and not what
 * is measured. So the processor seconds that a gigabyte took are said as well,
 * of all processes together, beside those of the streams.
 *
 * peer-match: a chain of 1,000 chunks that four others own. The limit is an
 * echo of as many bytes to four threads at once. Every round asks for a new
 * chain, since answers are remembered.
 */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "bench.h"
#include "wire/peer.h"

#define OTHERS_MAX 4u
#define ROUNDS_MIN 5u
#define SECONDS 3.0
#define MEET_SECONDS 20.0
#define FLUSH_MS 30000u
#define IN_A_CALL 64u /* what an engine's hit asks for at once, or more */
#define CHAIN 1000u
#define SMALL 4096u
#define GOAL 0.85
#define GOAL_US 250.0

typedef struct peers {
    ldr_bench_t *bench;
    const char *name, *why;
    unsigned others;
    char list[400], secret[260];
    ldr_daemon_t daemons[1 + OTHERS_MAX];
    ldr_bench_node_t here, there; /* clients of the first, of the second */
    ldr_moving_t moving;
    ldr_streams_t streams;
    ldr_samples_t larder, plain;  /* GB/s, or us */
    ldr_samples_t cpu, plain_cpu; /* seconds for a GB */
} peers_t;

/* ---- a cluster ---- */

static bool write_secret(const char *path)
{
    FILE *f = fopen(path, "we");

    if (f == NULL) {
        return false;
    }
    bool good = fputs("only-this-run-of-the-bench-knows-it\n", f) >= 0;
    good = fclose(f) == 0 && good;
    return good && chmod(path, 0600) == 0;
}

static bool start(peers_t *p, uint64_t dram)
{
    size_t at = (size_t)snprintf(p->list, sizeof(p->list), "static:");
    bool ok = true;

    for (unsigned i = 0; i <= p->others; i++) {
        at += (size_t)snprintf(p->list + at, sizeof(p->list) - at,
                               "%sm%u=127.0.0.1:%u/here/%u", i > 0 ? "," : "",
                               i, ldr_bench_port(), i > 0 ? 1u : 0u);
    }
    snprintf(p->secret, sizeof(p->secret), "%s/%s.secret", p->bench->dir,
             p->name);
    p->why = "cannot write a secret";
    ok = write_secret(p->secret);
    for (unsigned i = 0; i <= p->others && ok; i++) {
        char member[8], name[40];
        const char *more[] = {"--cluster",
                              p->list,
                              "--member_name",
                              member,
                              "--cluster_secret",
                              p->secret,
                              "--peer_match_ms",
                              "2000",
                              "--policy",
                              "lru", /* old rounds go */
                              NULL};
        ldr_daemon_params_t params = {.name = name, .dram = dram, .more = more};

        snprintf(member, sizeof(member), "m%u", i);
        snprintf(name, sizeof(name), "%s%u-%u", p->name, p->others, i);
        p->why = "a daemon did not start";
        ok = ldr_daemon_start(&p->daemons[i], p->bench, &params);
    }
    p->why = ok ? "open" : p->why;
    return ok && ldr_bench_open(&p->here, p->daemons[0].local) &&
           ldr_bench_open(&p->there, p->daemons[1].local);
}

static void stop(peers_t *p)
{
    ldr_bench_close(&p->here);
    ldr_bench_close(&p->there);
    for (unsigned i = 0; i <= OTHERS_MAX; i++) {
        ldr_daemon_stop(&p->daemons[i]);
    }
    unlink(p->secret);
}

/* What was saved there is where it belongs. */
static bool settled(const ldr_bench_node_t *n)
{
    return larder_flush(n->lar, LARDER_TIER_PEER, FLUSH_MS) == LARDER_OK;
}

/* ---- values ---- */

/* Of the client, and of all members. */
static double all_cpu(void *arg)
{
    const peers_t *p = arg;
    double sum = ldr_bench_cpu(getpid());

    for (unsigned i = 0; i <= p->others; i++) {
        sum += ldr_bench_cpu(p->daemons[i].pid);
    }
    return sum;
}

/* New names each time, so that nothing is in the client's own node. */
static double get_round(peers_t *p, ldr_set_t *set)
{
    ldr_callers_t callers = {
        .space = {p->here.space}, .count = 1, .each = IN_A_CALL};

    p->why = "the other members did not take what they own";
    if (!ldr_moving_fill(&p->moving, p->there.space, set) ||
        !settled(&p->there)) {
        return 0;
    }
    double seconds = ldr_moving_round(&p->moving, &callers, set);
    p->why = p->moving.why;
    return seconds;
}

/* Until the others have it; they are asked for it outside the timed part. */
static double put_round(peers_t *p, ldr_set_t *set)
{
    uint64_t bytes = set->count * set->size, first = p->moving.keys;

    p->moving.keys += set->count;
    ldr_set_name(set, first);
    ldr_pool_stamp(p->moving.pool, bytes, first);
    double begin = ldr_bench_now(), cpu = all_cpu(p);
    p->why = "a save was refused, or did not reach the member that owns it";
    if (!ldr_set_run(set, p->here.space, LARDER_OP_PUT, 0, set->count) ||
        !settled(&p->here)) {
        return 0;
    }
    double seconds = ldr_bench_now() - begin;
    p->moving.all = all_cpu(p) - cpu;
    ldr_set_t back;
    p->why = "what was saved did not come back from the other members";
    if (!ldr_set_create(&back, p->moving.other, bytes, set->size)) {
        return 0;
    }
    ldr_set_name(&back, first);
    bool same =
        ldr_set_run(&back, p->there.space, LARDER_OP_GET, 0, back.count) &&
        ldr_pool_verify(p->moving.other, p->moving.pool, bytes);
    ldr_set_destroy(&back);
    return same ? seconds : 0;
}

static double round_of(peers_t *p, ldr_set_t *set)
{
    return p->moving.get ? get_round(p, set) : put_round(p, set);
}

/* Members have to meet first; until then rounds miss. */
static bool meet(peers_t *p, double (*round)(peers_t *p, void *arg), void *arg)
{
    const struct timespec pause = {.tv_nsec = 600000000}; /* absent till then */
    double end = ldr_bench_now() + MEET_SECONDS;

    while (round(p, arg) == 0) {
        if (ldr_bench_now() > end) {
            return false;
        }
        nanosleep(&pause, NULL);
    }
    return true;
}

static double any_round(peers_t *p, void *set)
{
    return round_of(p, set);
}

static bool rounds(peers_t *p, ldr_set_t *set)
{
    double seconds = p->bench->seconds > 0 ? p->bench->seconds : SECONDS;
    double gb = (double)(set->count * set->size) * 1e-9;
    const ldr_moving_t *m = &p->moving;

    if (!meet(p, any_round, set)) {
        return false;
    }
    double end = ldr_bench_now() + seconds;
    for (unsigned i = 0; i < ROUNDS_MIN || ldr_bench_now() < end; i++) {
        double s = round_of(p, set);

        if (s == 0) {
            return false;
        }
        ldr_samples_add(&p->larder, gb / s);
        ldr_samples_add(&p->cpu, m->all / gb);
        double cpu = ldr_bench_cpu(getpid());
        s = ldr_streams_pass(&p->streams, m->get ? m->pool : m->other,
                             m->get ? m->other : m->pool, m->bytes, set->size,
                             0);
        p->why = "a bare stream broke";
        if (s == 0) {
            return false;
        }
        ldr_samples_add(&p->plain, gb / s);
        ldr_samples_add(&p->plain_cpu, (ldr_bench_cpu(getpid()) - cpu) / gb);
    }
    return true;
}

static bool values(ldr_bench_t *b, const char *name, bool get, unsigned others)
{
    static peers_t p; /* large */
    uint64_t size = b->size != 0 ? b->size : LDR_MIB;
    ldr_set_t set = {0};

    char more[80] = "";

    p = (peers_t){.bench = b, .name = name, .others = others};
    p.why = "not enough memory";
    bool ok = ldr_moving_create(&p.moving, get) &&
              start(&p, 3 * p.moving.bytes + 128 * LDR_MIB);
    if (ok) {
        p.why = "cannot make bare streams";
        p.moving.all_cpu = all_cpu;
        p.moving.all_arg = &p;
        ok = ldr_streams_open(&p.streams, others, NULL, NULL) &&
             ldr_set_create(&set, p.moving.pool, p.moving.bytes, size) &&
             rounds(&p, &set);
    }
    if (ok) {
        snprintf(more, sizeof(more),
                 ",\"cpu_s_per_gb\":%.3g,\"limit_cpu_s_per_gb\":%.3g",
                 ldr_samples_median(&p.cpu), ldr_samples_median(&p.plain_cpu));
        ldr_bench_report(
            b, &(ldr_figure_t){.name = name,
                               .more = more,
                               .variant = others > 1 ? "4 members" : "1 member",
                               .bytes = size,
                               .value = ldr_samples_median(&p.larder),
                               .unit = "GB/s",
                               .limit = ldr_samples_median(&p.plain),
                               .goal_kind = size == LDR_MIB ? LDR_GOAL_RATIO
                                                            : LDR_GOAL_NONE,
                               .goal = GOAL});
    }
    ldr_set_destroy(&set);
    ldr_streams_close(&p.streams);
    stop(&p);
    ldr_moving_destroy(&p.moving);
    return ok || ldr_bench_fail(b, name, p.why);
}

bool ldr_bench_peer_get(ldr_bench_t *b)
{
    return values(b, "peer-get", true, 1) &&
           values(b, "peer-get", true, OTHERS_MAX);
}

bool ldr_bench_peer_put(ldr_bench_t *b)
{
    return values(b, "peer-put", false, 1);
}

/* ---- a chain ---- */

typedef struct chain {
    ldr_set_t set;
    uint64_t keys; /* given so far */
    ldr_echo_t echoes[OTHERS_MAX];
    double us;
    unsigned missed; /* rounds */
    char why[120];
} chain_t;

/* One match, of chunks that others own and that were never asked for. */
static double match_round(peers_t *p, void *arg)
{
    chain_t *c = arg;
    larder_match_t match = {.struct_bytes = sizeof(match)};

    ldr_set_name(&c->set, c->keys);
    c->keys += c->set.count;
    p->why = "the other members did not take what they own";
    if (!ldr_set_run(&c->set, p->there.space, LARDER_OP_PUT, 0, c->set.count) ||
        !settled(&p->there)) {
        return 0;
    }
    double begin = ldr_bench_now();
    larder_status_t st =
        larder_match(p->here.space, c->set.keys, c->set.count, 0, &match);
    c->us = (ldr_bench_now() - begin) * 1e6;
    snprintf(c->why, sizeof(c->why),
             "a chain did not match: %llu of %llu chunks, %s, cause %d",
             (unsigned long long)match.chunks, (unsigned long long)c->set.count,
             larder_status_text(st), (int)match.cause);
    p->why = c->why;
    return st == LARDER_OK && match.chunks == c->set.count ? c->us : 0;
}

/* All four at once; us. */
static double echo_round(chain_t *c, uint8_t *to)
{
    double begin = ldr_bench_now();
    bool good = true;

    for (unsigned i = 0; i < OTHERS_MAX && good; i++) {
        good = ldr_echo_send(&c->echoes[i]);
    }
    for (unsigned i = 0; i < OTHERS_MAX && good; i++) {
        good = ldr_echo_take(&c->echoes[i], to);
    }
    return good ? (ldr_bench_now() - begin) * 1e6 : 0;
}

static bool chain_open(peers_t *p, chain_t *c, uint8_t *pool)
{
    size_t rows = 2 * CHAIN / OTHERS_MAX; /* ranks 1 and 2 are asked */

    p->why = "cannot make bare streams";
    for (unsigned i = 0; i < OTHERS_MAX; i++) {
        c->echoes[i] = (ldr_echo_t){
            .pool = pool,
            .bytes = CHAIN * SMALL,
            .size = 4 * rows,
            .ask = LDR_FRAME_BYTES + LDR_PEER_HEAD_BYTES +
                   rows * LDR_PEER_NAME_BYTES,
            .head = LDR_FRAME_BYTES + LDR_PEER_HEAD_BYTES,
        };
        if (!ldr_echo_open(&c->echoes[i])) {
            return false;
        }
    }
    return ldr_set_create(&c->set, pool, CHAIN * SMALL, SMALL);
}

static bool match_rounds(peers_t *p, chain_t *c, uint8_t *to)
{
    double seconds = p->bench->seconds > 0 ? p->bench->seconds : SECONDS;

    if (!meet(p, match_round, c)) {
        return false;
    }
    double end = ldr_bench_now() + seconds;
    for (unsigned i = 0; i < 4 * ROUNDS_MIN || ldr_bench_now() < end; i++) {
        double us = match_round(p, c), echo = us > 0 ? echo_round(c, to) : 0;

        if (us ==
            0) { /* a member did not answer in time: this machine's load */
            c->missed++;
            if (!meet(p, match_round, c)) {
                return false;
            }
            continue;
        }
        if (echo == 0) {
            return false;
        }
        ldr_samples_add(&p->larder, us);
        ldr_samples_add(&p->plain, echo);
    }
    return true;
}

bool ldr_bench_peer_match(ldr_bench_t *b)
{
    static peers_t p; /* large */
    static chain_t c;
    uint8_t *pool = ldr_pool_create(CHAIN * SMALL);
    uint8_t *to = ldr_pool_create(CHAIN * SMALL);

    p = (peers_t){.bench = b, .name = "peer-match", .others = OTHERS_MAX};
    c = (chain_t){0};
    p.why = "not enough memory";
    bool ok = pool != NULL && to != NULL && start(&p, 512 * LDR_MIB) &&
              chain_open(&p, &c, pool) && match_rounds(&p, &c, to);
    if (ok) {
        double echo = ldr_samples_median(&p.plain);
        char more[120];

        snprintf(more, sizeof(more),
                 ",\"echo_us\":%.4g,\"best\":%.4g,\"echo_best\":%.4g,"
                 "\"p99\":%.4g,\"missed\":%u",
                 echo, ldr_samples_at(&p.larder, 0),
                 ldr_samples_at(&p.plain, 0), ldr_samples_at(&p.larder, 0.99),
                 c.missed);
        ldr_bench_report(b,
                         &(ldr_figure_t){.name = p.name,
                                         .variant = "4 members",
                                         .bytes = CHAIN,
                                         .value = ldr_samples_median(&p.larder),
                                         .unit = "us",
                                         .goal_kind = LDR_GOAL_MAX,
                                         .goal = echo + GOAL_US,
                                         .more = more});
    }
    for (unsigned i = 0; i < OTHERS_MAX; i++) {
        ldr_echo_close(&c.echoes[i]);
    }
    ldr_set_destroy(&c.set);
    stop(&p);
    ldr_pool_destroy(to, CHAIN * SMALL);
    ldr_pool_destroy(pool, CHAIN * SMALL);
    return ok || ldr_bench_fail(b, p.name, p.why);
}
