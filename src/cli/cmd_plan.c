/* larder plan: reads a trace, and one simulation after the other. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "cli/cli.h"
#include "cli/plan.h"

#define BAD_SHOWN 10u
#define BLOCK_TOKENS 512u
#define CURVE_LEAST 0.001 /* of the different blocks: where curves begin */

/* ---- reading ---- */

typedef struct watch {
    const ldr_plan_args_t *p;
    bool terminal;
    bool shown;
    int percent;
    uint64_t bad; /* lines */
    char what[80];
} watch_t;

static void clear_progress(watch_t *w)
{
    if (w->shown) {
        fprintf(stderr, "\r\033[K");
        w->shown = false;
    }
}

/* Names the first of them only. */
static void on_bad(void *arg, uint64_t line, const char *why)
{
    watch_t *w = arg;

    if (w->bad++ < BAD_SHOWN) {
        clear_progress(w);
        fprintf(stderr, "larder plan: %s:%llu: %s%s\n", w->p->trace,
                (unsigned long long)line, why,
                w->p->skip_bad ? "; skipped" : "");
    }
}

static void on_progress(void *arg, uint64_t done, uint64_t total)
{
    watch_t *w = arg;
    int percent = total > 0 ? (int)(100 * done / total) : -1;

    if (w->terminal && (percent != w->percent || !w->shown)) {
        w->percent = percent;
        w->shown = true;
        fprintf(stderr, "\r\033[K%s", w->what);
        if (percent >= 0) {
            fprintf(stderr, " %d %%", percent);
        }
        fflush(stderr);
    }
}

static int read_tape(const ldr_args_t *args, watch_t *w, ldr_tape_t *tape)
{
    const ldr_plan_args_t *p = w->p;
    ldr_tape_params_t params = {
        .path = p->trace,
        .sample = p->sample,
        .block_tokens = p->model.block_tokens,
        .watch = {on_bad, on_progress, w},
    };

    snprintf(w->what, sizeof(w->what), "reading the trace");
    larder_status_t st = ldr_tape_read(&params, tape);
    clear_progress(w);
    if (st != LARDER_OK) {
        return ldr_cli_status(args, st);
    }
    if (tape->bad > 0) {
        fprintf(stderr, "larder plan: %s: %llu bad line%s of %llu\n", p->trace,
                (unsigned long long)tape->bad, tape->bad == 1 ? "" : "s",
                (unsigned long long)tape->lines);
        if (!p->skip_bad) {
            return ldr_cli_fail(args, "--skip-bad goes on without them");
        }
    }
    if (tape->references == 0) {
        return ldr_cli_fail(args, "%s: there is no block in it", p->trace);
    }
    if (tape->back > 0) {
        fprintf(stderr,
                "larder plan: %s: %llu requests are out of order in time; the "
                "order of the lines counts\n",
                p->trace, (unsigned long long)tape->back);
    }
    return LDR_EXIT_OK;
}

/* ---- simulating ---- */

double ldr_plan_block_bytes(const ldr_plan_args_t *p)
{
    return p->model.bytes_per_token * p->model.block_tokens;
}

static uint64_t blocks_of(const ldr_plan_args_t *p, const ldr_tape_t *tape,
                          const ldr_plan_size_t *size)
{
    /* So that 29 % of 100 are 29: a share is meant in decimals. */
    double n = size->bytes > 0
                   ? (double)size->bytes / ldr_plan_block_bytes(p)
                   : size->share * ldr_plan_distinct(tape) * (1 + 1e-12);

    return n >= 1 ? (uint64_t)n : 1;
}

static int run_case(const ldr_args_t *args, watch_t *w, ldr_tape_t *tape,
                    const ldr_plan_case_t *what, ldr_plan_result_t *result)
{
    ldr_plan_watch_t watch = {on_progress, w};

    snprintf(w->what, sizeof(w->what), "%s, %llu blocks", what->sim->name,
             (unsigned long long)what->blocks);
    larder_status_t st = ldr_plan_run(tape, &w->p->model, what, &watch, result);
    clear_progress(w);
    return st == LARDER_OK ? LDR_EXIT_OK : ldr_cli_status(args, st);
}

/* Capacities of the curve: even steps of a logarithm, up to all blocks. */
static uint64_t point_blocks(const ldr_plan_book_t *book, unsigned point)
{
    double all = ldr_plan_distinct(book->tape);
    double least = fmax(1, CURVE_LEAST * all);
    double at = point / (book->point_count - 1.0);

    return (uint64_t)(least * pow(all / least, at) + 0.5);
}

static int run_curve(const ldr_args_t *args, watch_t *w, ldr_tape_t *tape,
                     ldr_plan_book_t *book)
{
    const ldr_plan_args_t *p = w->p;
    int code = LDR_EXIT_OK;

    for (unsigned i = 0; i < p->sim_count && code == LDR_EXIT_OK; i++) {
        for (unsigned j = 0; j < book->point_count && code == LDR_EXIT_OK;
             j++) {
            ldr_plan_case_t what = {.sim = p->sims[i],
                                    .blocks = point_blocks(book, j)};

            code = run_case(args, w, tape, &what,
                            &book->points[i * book->point_count + j]);
        }
    }
    return code;
}

static int run_all(const ldr_args_t *args, watch_t *w, ldr_tape_t *tape,
                   ldr_plan_book_t *book)
{
    const ldr_plan_args_t *p = w->p;
    bool ssd = p->ssd.bytes > 0 || p->ssd.share > 0;

    for (unsigned i = 0; i < p->sim_count; i++) {
        for (unsigned j = 0; j < p->size_count; j++) {
            ldr_plan_case_t what = {
                .sim = p->sims[i],
                .blocks = blocks_of(p, tape, &p->sizes[j]),
                .ssd_blocks = ssd ? blocks_of(p, tape, &p->ssd) : 0,
                .ssd_second = p->ssd_second,
                .ssd_writes = (double)p->ssd_writes,
                .nodes = p->nodes,
                .run_blocks = p->run_blocks,
            };
            if (what.blocks < p->nodes) {
                return ldr_cli_fail(args,
                                    "%llu blocks are too few for %u nodes",
                                    (unsigned long long)what.blocks, p->nodes);
            }
            int code =
                run_case(args, w, tape, &what, &book->results[book->count]);
            if (code != LDR_EXIT_OK) {
                return code;
            }
            book->count++;
        }
    }
    return run_curve(args, w, tape, book);
}

static int plan_report(const ldr_args_t *args, const ldr_plan_book_t *book)
{
    const ldr_plan_args_t *p = book->args;

    if (p->json) {
        ldr_plan_json(book);
    } else {
        ldr_plan_show(book);
    }
    if (p->html != NULL && !ldr_plan_html(book, p->html)) {
        return ldr_cli_fail(args, "%s: %s", p->html, strerror(errno));
    }
    return LDR_EXIT_OK;
}

/* How many tokens a block has: as asked for, as the trace says, or as in
 * Mooncake's. */
static void settle_block(ldr_plan_args_t *p, ldr_tape_t *tape)
{
    if (tape->block_tokens == 0) {
        tape->block_tokens = BLOCK_TOKENS;
    }
    p->model.block_tokens = tape->block_tokens;
}

static int run_plan(const ldr_args_t *args, ldr_plan_args_t *p)
{
    watch_t w = {.p = p, .terminal = isatty(STDERR_FILENO) == 1};
    ldr_tape_t tape = {.request_fd = -1, .block_fd = -1, .future_fd = -1};
    ldr_plan_book_t book = {.args = p, .tape = &tape, .point_count = p->curve};

    int code = read_tape(args, &w, &tape);
    settle_block(p, &tape);
    if (code == LDR_EXIT_OK) {
        book.results = ldr_alloc((size_t)p->sim_count * p->size_count *
                                 sizeof(*book.results));
        book.points = ldr_alloc(((size_t)p->sim_count * p->curve + 1) *
                                sizeof(*book.points));
        code = book.results != NULL && book.points != NULL
                   ? run_all(args, &w, &tape, &book)
                   : ldr_cli_fail(args, "not enough memory");
    }
    if (code == LDR_EXIT_OK) {
        code = plan_report(args, &book);
    }
    ldr_free(book.results);
    ldr_free(book.points);
    ldr_tape_close(&tape);
    return code;
}

int ldr_cmd_plan(int argc, char **argv)
{
    ldr_args_t args = {.command = "plan"};
    bool done = false;
    ldr_plan_args_t p = {
        .model_name = "llama-3.1-8b",
        .sample = 1,
        .model = {.slow_tokens = 20000,
                  .dram = {50e9, 200e-6},
                  .ssd = {5e9, 500e-6}},
    };

    int code = ldr_plan_parse(&args, argc, argv, &p, &done);
    return done || code != LDR_EXIT_OK ? code : run_plan(&args, &p);
}
