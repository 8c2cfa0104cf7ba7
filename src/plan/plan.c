/*
 * One simulation: a tape, driven through DRAM and SSD, in the order of its
 * requests.
 *
 * A run_t belongs to one call of ldr_plan_run(); the tape is only read. One
 * thread. Each request is looked up before it is used: what it hits is what
 * earlier ones left. Sums are of what is on the tape, and are scaled once at
 * the end.
 */
#include "plan/plan.h"

#include <math.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "plan/engines.h"
#include "plan/sim_ssd.h"
#include "store/index.h"

#define PROGRESS_EVERY 4096u
#define AHEAD 3u /* requests; each is asked for in as many steps */

typedef struct run {
    ldr_tape_t *tape;
    const ldr_model_t *model;
    ldr_sim_t *dram;
    ldr_ssd_sim_t *ssd; /* NULL: none */
    /* The same without limits to what is written; NULL: there are none. */
    ldr_ssd_sim_t *unlimited;
    uint64_t hits, ssd_hits, late, unlimited_hits;
    double ssd_free_s; /* when the disk has read all that was wanted so far */
    uint32_t coming[AHEAD - 1]; /* first blocks, of the last request first */
    ldr_plan_result_t *result;
    ldr_times_t with, without;
    ldr_engines_t engines_with, engines_without;
} run_t;

static double cpu_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

double ldr_plan_distinct(const ldr_tape_t *tape)
{
    return tape->sample < 1 ? (double)tape->distinct / tape->sample
                            : tape->distinct;
}

/*
 * Few blocks are used by very many requests, and whether they are on a sampled
 * tape is luck. They hit in any cache, so the references that are missing or
 * too many count as hits (what is known as SHARDS-adj).
 */
double ldr_plan_hits(const ldr_tape_t *tape, double hits)
{
    double extra = (double)tape->all * tape->sample - (double)tape->references;

    return tape->sample < 1 ? fmax(0, (hits + extra) / tape->sample) : hits;
}

/* Blocks of a tier on the tape that stand for so many of the trace. */
static uint32_t sampled_blocks(const ldr_tape_t *tape, uint64_t blocks)
{
    double n = floor((double)blocks * tape->sample);

    return n >= LDR_NIL - 1.0 ? LDR_NIL - 1 : n >= 1 ? (uint32_t)n : 1;
}

/* What a request finds in DRAM and an SSD, from its first block on. */
static ldr_found_t request_lookup(run_t *r, const ldr_ssd_sim_t *ssd,
                                  const ldr_tape_request_t *request,
                                  const uint32_t *blocks)
{
    const ldr_sim_ops_t *ops = r->dram->ops;
    ldr_found_t found = {0};
    uint32_t at = ops->prefix(r->dram, blocks, 0, request->count);

    found.before_ssd = at;
    while (ssd != NULL && at < request->count &&
           ldr_ssd_sim_holds(ssd, blocks[at])) {
        found.ssd_blocks++;
        at = ops->prefix(r->dram, blocks, at + 1, request->count);
    }
    found.blocks = at;
    return found;
}

/* What is not up from the SSD in time is no hit. on_tape: blocks that stand for
 * those found. */
static void count_hits(run_t *r, const ldr_found_t *found,
                       const ldr_first_token_t *t, uint32_t on_tape)
{
    if (found->ssd_blocks == 0 && t->blocks == found->blocks) {
        r->hits += on_tape; /* as of all without a tier below */
        return;
    }
    double each = found->blocks > 0 ? (double)on_tape / found->blocks : 0;
    uint32_t hits = t->blocks == found->blocks
                        ? on_tape
                        : (uint32_t)lround(t->blocks * each);

    r->hits += hits;
    r->ssd_hits += (uint64_t)llround(t->ssd_blocks * each);
    r->late += on_tape - (hits < on_tape ? hits : on_tape);
}

static void request_count(run_t *r, const ldr_tape_request_t *request,
                          ldr_found_t found)
{
    ldr_plan_result_t *sum = r->result;
    double at_s = (double)request->at_ms * 1e-3;
    uint32_t on_tape = found.blocks;

    if (r->tape->sample < 1) {
        if (request->count == 0) {
            return; /* nothing is known of it */
        }
        /* What was found of the part on the tape stands for the whole. */
        double all =
            ceil((double)request->input_tokens / r->model->block_tokens) /
            request->count;
        found.blocks = (uint32_t)lround(found.blocks * all);
        found.ssd_blocks = (uint32_t)lround(found.ssd_blocks * all);
        found.before_ssd = (uint32_t)lround(found.before_ssd * all);
    }
    found.wait_s = r->ssd_free_s > at_s ? r->ssd_free_s - at_s : 0;
    ldr_first_token_t t =
        ldr_model_first_token(r->model, request->input_tokens, &found);
    count_hits(r, &found, &t, on_tape);
    double held = (double)t.blocks * r->model->block_tokens;
    double input = request->input_tokens;
    sum->tokens += input;
    sum->hit_tokens += held < input ? held : input;
    if (r->ssd != NULL) {
        r->ssd_free_s = fmax(r->ssd_free_s, at_s) +
                        ldr_model_stage(r->model, t.tokens - t.dram_tokens);
    }
    sum->prefill_s += t.without_s;
    sum->saved_s += t.saved_s;
    sum->load_tokens += t.tokens;
    double waits = ldr_engines_wait(&r->engines_with, at_s, t.with_s);
    ldr_times_add(&r->with, waits + t.with_s);
    waits = ldr_engines_wait(&r->engines_without, at_s, t.without_s);
    ldr_times_add(&r->without, waits + t.without_s);
}

/* What comes next is asked for while this is worked at. */
static void ask_ahead(run_t *r, ldr_player_t *player)
{
    const ldr_sim_ops_t *ops = r->dram->ops;
    uint32_t block;

    while (ldr_player_ahead(player, AHEAD, &block)) {
        ops->prefetch(r->dram, r->coming[1], 0);
        ops->prefetch(r->dram, r->coming[0], 1);
        ops->prefetch(r->dram, block, 2);
        r->coming[1] = r->coming[0];
        r->coming[0] = block;
    }
}

static larder_status_t tape_play(run_t *r, const ldr_plan_watch_t *watch)
{
    const ldr_tape_request_t *request;
    const uint32_t *blocks;
    ldr_player_t player;
    uint64_t done = 0;
    int more;

    larder_status_t st = ldr_player_open(r->tape, &player);
    if (st != LARDER_OK) {
        return st;
    }
    while ((more = ldr_player_next(&player, &request, &blocks)) > 0) {
        if (r->dram->ops->prefetch != NULL) {
            ask_ahead(r, &player);
        }
        request_count(r, request, request_lookup(r, r->ssd, request, blocks));
        if (r->unlimited != NULL) {
            r->unlimited_hits +=
                request_lookup(r, r->unlimited, request, blocks).blocks;
            ldr_ssd_sim_use(r->unlimited, request, blocks);
        }
        if (!r->dram->ops->use(r->dram, request, blocks)) {
            more = -1;
            break;
        }
        if (r->ssd != NULL) {
            ldr_ssd_sim_use(r->ssd, request, blocks);
        }
        if (watch != NULL && watch->progress != NULL &&
            ++done % PROGRESS_EVERY == 0) {
            watch->progress(watch->arg, done, r->tape->requests);
        }
    }
    ldr_player_close(&player);
    return more == 0 ? LARDER_OK : LARDER_E_IO;
}

static ldr_plan_times_t times_of(const ldr_times_t *t)
{
    return (ldr_plan_times_t){
        .mean_s = ldr_times_mean(t),
        .p50_s = ldr_times_quantile(t, 0.5),
        .p99_s = ldr_times_quantile(t, 0.99),
    };
}

static void finish_ssd(run_t *r)
{
    ldr_plan_result_t *sum = r->result;
    const ldr_tape_t *tape = r->tape;
    double bytes = r->model->bytes_per_token * r->model->block_tokens;
    double days = (double)tape->duration_ms / 86400e3;
    const ldr_ssd_sim_counts_t *n = ldr_ssd_sim_counts(r->ssd);

    sum->ssd_written = (double)n->written / tape->sample;
    sum->ssd_carried = (double)n->carried / tape->sample;
    sum->ssd_bytes_a_day =
        days > 0 ? (sum->ssd_written + sum->ssd_carried) * bytes / days : 0;
    sum->ssd_refused_first = (double)n->refused_first / tape->sample;
    sum->ssd_refused_budget = (double)n->refused_budget / tape->sample;
    sum->ssd_dropped = (double)n->dropped / tape->sample;
    if (r->unlimited != NULL) {
        sum->ssd_lost_hits =
            ((double)r->unlimited_hits - (double)(r->hits + r->late)) /
            tape->sample;
    }
}

static void result_finish(run_t *r)
{
    ldr_plan_result_t *sum = r->result;
    const ldr_tape_t *tape = r->tape;

    sum->share = ldr_plan_distinct(tape) > 0
                     ? (double)sum->what.blocks / ldr_plan_distinct(tape)
                     : 0;
    sum->references = (double)tape->all;
    sum->hits = ldr_plan_hits(tape, (double)r->hits);
    sum->ssd_hits = (double)r->ssd_hits / tape->sample;
    sum->late = (double)r->late / tape->sample;
    sum->with = times_of(&r->with);
    sum->without = times_of(&r->without);
    if (r->ssd != NULL) {
        finish_ssd(r);
    }
}

/* The tier, and where it is limited another that is not. */
static bool make_ssd(run_t *r, const ldr_plan_case_t *what)
{
    double bytes = r->model->bytes_per_token * r->model->block_tokens;
    ldr_ssd_sim_params_t p = {
        .capacity = sampled_blocks(r->tape, what->ssd_blocks),
        .policy =
            what->sim->policy != NULL ? what->sim->policy : &ldr_policy_lru,
        .second = what->ssd_second,
        .a_day = what->ssd_writes / bytes * r->tape->sample,
        .a_second = r->model->ssd_write_bytes_per_s / bytes * r->tape->sample,
        .queue = sampled_blocks(r->tape, what->blocks),
    };

    if (what->ssd_blocks == 0) {
        return true;
    }
    r->ssd = ldr_ssd_sim_create(r->tape, &p);
    if (r->ssd == NULL || (!p.second && p.a_day <= 0)) {
        return r->ssd != NULL;
    }
    p.second = false;
    p.a_day = 0;
    r->unlimited = ldr_ssd_sim_create(r->tape, &p);
    return r->unlimited != NULL;
}

larder_status_t ldr_plan_run(ldr_tape_t *tape, const ldr_model_t *model,
                             const ldr_plan_case_t *what,
                             const ldr_plan_watch_t *watch,
                             ldr_plan_result_t *result)
{
    uint64_t began = ldr_now_ns(&ldr_clock_real);
    double cpu = cpu_now();
    larder_status_t st = LARDER_E_NO_MEMORY;
    run_t *r = ldr_alloc(sizeof(*r));

    *result = (ldr_plan_result_t){.what = *what};
    if (r == NULL) {
        return ldr_fail(st, "no memory to simulate");
    }
    r->tape = tape;
    r->model = model;
    r->result = result;
    ldr_sim_params_t params = {sampled_blocks(tape, what->blocks), what->nodes,
                               what->run_blocks};
    r->dram = what->sim->create(what->sim, tape, &params);
    if (!ldr_engines_open(&r->engines_with, model->engines) ||
        !ldr_engines_open(&r->engines_without, model->engines)) {
        ldr_fail(st, "no memory for %u engines", model->engines);
    } else if (r->dram != NULL && make_ssd(r, what)) {
        st = tape_play(r, watch);
    }
    if (st == LARDER_OK) {
        result_finish(r);
        result->busiest =
            what->sim->busiest != NULL ? what->sim->busiest(r->dram) : 0;
    }
    ldr_engines_close(&r->engines_with);
    ldr_engines_close(&r->engines_without);
    ldr_ssd_sim_destroy(r->ssd);
    ldr_ssd_sim_destroy(r->unlimited);
    if (r->dram != NULL) {
        what->sim->destroy(r->dram);
    }
    ldr_free(r);
    result->cpu_s = cpu_now() - cpu;
    result->took_s = (double)(ldr_now_ns(&ldr_clock_real) - began) * 1e-9;
    return st;
}
