/* larder plan: the command line, and one simulation after the other. */
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/options.h"
#include "cli/cli.h"
#include "cli/plan.h"

#define BAD_SHOWN 10u
#define CURVE_LEAST 0.001 /* of the different blocks: where curves begin */
#define CURVE_HTML 16u
#define NODES_MAX 10000
#define ENGINES_MAX 1000000

static void usage(FILE *to)
{
    fprintf(
        to,
        "usage: larder plan TRACE [FLAG...]\n"
        "replays a trace through caches of some size, in virtual time: what\n"
        "hit rate, and how much memory is worth having\n\n"
        "TRACE is JSONL as Mooncake's (timestamp, input_length, output_length,"
        "\nhash_ids), plain or compressed with gzip or zstd; -: standard "
        "input.\n\n"
        "  --capacity LIST         of DRAM: 5%% of the trace's different "
        "blocks, or 64G;\n"
        "                          default: 1%%,5%%,10%%,25%%,50%%\n"
        "  --policy LIST           default: lru,s3fifo,default,optimal\n"
        "  --ssd SIZE              a tier below it, as a share or a size\n"
        "  --model NAME            what a token weighs, and how fast it is "
        "computed;\n"
        "                          default: llama-3.1-8b; --models lists "
        "them\n"
        "  --bytes-per-token N     in place of the model's\n"
        "  --block-tokens N        tokens of a hash id; default: 512\n"
        "  --flops N               operations a second of an engine; default: "
        "400T\n"
        "  --prefill N             tokens a second, in place of what --flops "
        "gives\n"
        "  --prefill-slow N        position at which a token takes twice as "
        "long;\n"
        "                          default: 20000\n"
        "  --engines N             requests wait for one of N engines; "
        "default: none waits\n"
        "  --dram-speed SIZE       bytes a second; default: 50G\n"
        "  --dram-latency US       microseconds; default: 200\n"
        "  --ssd-speed SIZE        default: 5G\n"
        "  --ssd-latency US        default: 500\n"
        "  --nodes N               the capacity is shared by N nodes, each "
        "with "
        "its own\n"
        "                          policy (lru, default)\n"
        "  --node-run N            blocks of a chain that stay together on a "
        "node;\n"
        "                          default: 1\n"
        "  --curve N               N capacities more for each policy, from "
        "0.1 %% to all\n"
        "  --sample SHARE          only so many of the blocks, e.g. 0.01: for "
        "long traces\n"
        "  --html FILE             a report, in one file\n"
        "  --skip-bad              go on without lines that are no requests\n"
        "  --json                  for scripts: one JSON object per line\n"
        "  --help                  this text\n");
}

static void list_models(void)
{
    const ldr_known_model_t *m;

    printf("%-16s %15s %18s\n", "model", "bytes per token",
           "active parameters");
    for (unsigned i = 0; (m = ldr_known_model(i)) != NULL; i++) {
        printf("%-16s %15u %16.1f B\n", m->name, m->bytes_per_token, m->active);
    }
}

/* ---- values ---- */

static bool to_number(const char *text, double *value_p)
{
    char *end;
    double value = strtod(text, &end);
    const char *units = "KMGTP";
    const char *unit = *end != '\0' ? strchr(units, *end) : NULL;

    if (unit != NULL) {
        for (value *= 1e3; unit > units; unit--) {
            value *= 1e3;
        }
        end++;
    }
    if (end == text || *end != '\0' || !(value > 0) || !isfinite(value)) {
        return false;
    }
    *value_p = value;
    return true;
}

static bool to_size(const char *text, ldr_plan_size_t *size)
{
    size_t length = strlen(text);
    char number[32];

    *size = (ldr_plan_size_t){0};
    if (length > 1 && length < sizeof(number) && text[length - 1] == '%') {
        memcpy(number, text, length - 1);
        number[length - 1] = '\0';
        char *end;
        size->share = strtod(number, &end) / 100;
        return end != number && *end == '\0' && size->share > 0 &&
               size->share <= 100;
    }
    return ldr_parse_size(text, &size->bytes) && size->bytes > 0;
}

/* Calls take for each word of a list. False: one was refused, and is in word.
 */
static bool each(const char *list, char *word, size_t size,
                 bool (*take)(ldr_plan_args_t *p, const char *word),
                 ldr_plan_args_t *p)
{
    while (*list != '\0') {
        size_t length = strcspn(list, ",");

        snprintf(word, size, "%.*s", (int)length, list);
        if (!take(p, word)) {
            return false;
        }
        list += length + (list[length] == ',');
    }
    return true;
}

static bool take_size(ldr_plan_args_t *p, const char *word)
{
    return p->size_count < LDR_PLAN_SIZES &&
           to_size(word, &p->sizes[p->size_count]) && ++p->size_count > 0;
}

static bool take_sim(ldr_plan_args_t *p, const char *word)
{
    const ldr_sim_ops_t *sim = ldr_sim_find(word);

    for (unsigned i = 0; i < p->sim_count; i++) {
        if (p->sims[i] == sim) {
            return true;
        }
    }
    if (sim == NULL || p->sim_count == LDR_PLAN_SIZES) {
        return false;
    }
    p->sims[p->sim_count++] = sim;
    return true;
}

/* ---- the command line ---- */

enum {
    OPT_CAPACITY = 1000,
    OPT_POLICY,
    OPT_SSD,
    OPT_MODEL,
    OPT_BYTES,
    OPT_BLOCK,
    OPT_FLOPS,
    OPT_PREFILL,
    OPT_SLOW,
    OPT_ENGINES,
    OPT_DRAM_SPEED,
    OPT_DRAM_LATENCY,
    OPT_SSD_SPEED,
    OPT_SSD_LATENCY,
    OPT_NODES,
    OPT_NODE_RUN,
    OPT_CURVE,
    OPT_SAMPLE,
    OPT_HTML,
    OPT_SKIP_BAD,
    OPT_JSON,
    OPT_MODELS,
    OPT_HELP
};

static const struct option options[] = {
    {"capacity", required_argument, NULL, OPT_CAPACITY},
    {"policy", required_argument, NULL, OPT_POLICY},
    {"ssd", required_argument, NULL, OPT_SSD},
    {"model", required_argument, NULL, OPT_MODEL},
    {"bytes-per-token", required_argument, NULL, OPT_BYTES},
    {"block-tokens", required_argument, NULL, OPT_BLOCK},
    {"flops", required_argument, NULL, OPT_FLOPS},
    {"prefill", required_argument, NULL, OPT_PREFILL},
    {"prefill-slow", required_argument, NULL, OPT_SLOW},
    {"engines", required_argument, NULL, OPT_ENGINES},
    {"dram-speed", required_argument, NULL, OPT_DRAM_SPEED},
    {"dram-latency", required_argument, NULL, OPT_DRAM_LATENCY},
    {"ssd-speed", required_argument, NULL, OPT_SSD_SPEED},
    {"ssd-latency", required_argument, NULL, OPT_SSD_LATENCY},
    {"nodes", required_argument, NULL, OPT_NODES},
    {"node-run", required_argument, NULL, OPT_NODE_RUN},
    {"curve", required_argument, NULL, OPT_CURVE},
    {"sample", required_argument, NULL, OPT_SAMPLE},
    {"html", required_argument, NULL, OPT_HTML},
    {"skip-bad", no_argument, NULL, OPT_SKIP_BAD},
    {"json", no_argument, NULL, OPT_JSON},
    {"models", no_argument, NULL, OPT_MODELS},
    {"help", no_argument, NULL, OPT_HELP},
    {0},
};

/* Given on the command line; 0: not. */
typedef struct given {
    double flops, prefill, bytes, block, curve, nodes, node_run;
    char bad[64]; /* a word of a list that was refused */
} given_t;

static bool set_latency(ldr_speed_t *speed, const char *text)
{
    double us = 0;

    if (strcmp(text, "0") != 0 && !to_number(text, &us)) {
        return false;
    }
    speed->latency_s = us * 1e-6;
    return true;
}

/* The flag's value into its place. False: it is no value for it. */
static bool take(ldr_plan_args_t *p, given_t *g, int opt, const char *text)
{
    double value;

    switch (opt) {
    case OPT_CAPACITY:
        p->size_count = 0;
        return each(text, g->bad, sizeof(g->bad), take_size, p) &&
               p->size_count > 0;
    case OPT_POLICY:
        p->sim_count = 0;
        return each(text, g->bad, sizeof(g->bad), take_sim, p) &&
               p->sim_count > 0;
    case OPT_SSD:
        return to_size(text, &p->ssd);
    case OPT_MODEL:
        p->model_name = text;
        return ldr_known_model_find(text) != NULL;
    case OPT_BYTES:
        return to_number(text, &g->bytes);
    case OPT_BLOCK:
        return to_number(text, &g->block) && g->block >= 1 &&
               g->block <= 1 << 20;
    case OPT_FLOPS:
        return to_number(text, &g->flops);
    case OPT_PREFILL:
        return to_number(text, &g->prefill);
    case OPT_SLOW:
        return to_number(text, &p->model.slow_tokens);
    case OPT_ENGINES:
        if (!to_number(text, &value) || value < 1 || value > ENGINES_MAX) {
            return false;
        }
        p->model.engines = (uint32_t)value;
        return true;
    case OPT_DRAM_SPEED:
        return to_number(text, &p->model.dram.bytes_per_s);
    case OPT_DRAM_LATENCY:
        return set_latency(&p->model.dram, text);
    case OPT_SSD_SPEED:
        return to_number(text, &p->model.ssd.bytes_per_s);
    case OPT_SSD_LATENCY:
        return set_latency(&p->model.ssd, text);
    case OPT_NODES:
        return to_number(text, &g->nodes) && g->nodes >= 1 &&
               g->nodes <= NODES_MAX;
    case OPT_NODE_RUN:
        return to_number(text, &g->node_run) && g->node_run >= 1 &&
               g->node_run <= 1 << 20;
    case OPT_CURVE:
        return to_number(text, &g->curve) && g->curve >= 2 && g->curve <= 1000;
    case OPT_SAMPLE:
        return to_number(text, &p->sample) && p->sample <= 1;
    case OPT_HTML:
        p->html = text;
        return true;
    default:
        p->skip_bad |= opt == OPT_SKIP_BAD;
        p->json |= opt == OPT_JSON;
        return true;
    }
}

static void say_choices(int opt)
{
    if (opt == OPT_POLICY) {
        fprintf(stderr, "larder plan: policies:");
        for (unsigned i = 0; ldr_sim_at(i) != NULL; i++) {
            fprintf(stderr, " %s", ldr_sim_at(i)->name);
        }
        fprintf(stderr, "\n");
    } else if (opt == OPT_MODEL) {
        fprintf(stderr, "larder plan: models:");
        for (unsigned i = 0; ldr_known_model(i) != NULL; i++) {
            fprintf(stderr, " %s", ldr_known_model(i)->name);
        }
        fprintf(stderr, "; or give --bytes-per-token and --prefill\n");
    }
}

static const char *flag_of(int opt)
{
    unsigned i = 0;

    while (options[i].name != NULL && options[i].val != opt) {
        i++;
    }
    return options[i].name;
}

/* What was not said comes from the model, and from the defaults. */
static void complete(ldr_plan_args_t *p, const given_t *g)
{
    const ldr_known_model_t *known = ldr_known_model_find(p->model_name);
    char word[32];

    p->model.block_tokens = g->block > 0 ? (uint32_t)g->block : 512;
    p->model.bytes_per_token = g->bytes > 0 ? g->bytes : known->bytes_per_token;
    p->model.prefill_rate =
        g->prefill > 0
            ? g->prefill
            : ldr_model_rate(g->flops > 0 ? g->flops : 400e12, known);
    p->curve = g->curve > 0      ? (unsigned)g->curve
               : p->html != NULL ? CURVE_HTML
                                 : 0;
    if (p->size_count == 0) {
        each("1%,5%,10%,25%,50%", word, sizeof(word), take_size, p);
    }
    p->nodes = (uint32_t)g->nodes;
    p->run_blocks = g->node_run > 0 ? (uint32_t)g->node_run : 1;
    if (p->sim_count == 0) {
        each(p->nodes > 1 ? "lru,default,optimal"
                          : "lru,s3fifo,default,optimal",
             word, sizeof(word), take_sim, p);
    }
}

/* An exit code; *done_p: there is nothing left to do. */
static int parse(const ldr_args_t *args, int argc, char **argv,
                 ldr_plan_args_t *p, bool *done_p)
{
    given_t g = {0};
    int opt;

    opterr = 0;
    while ((opt = getopt_long(argc, argv, ":h", options, NULL)) != -1) {
        if (opt == 'h' || opt == OPT_HELP || opt == OPT_MODELS) {
            *done_p = true;
            if (opt == OPT_MODELS) {
                list_models();
            } else {
                usage(stdout);
            }
            return LDR_EXIT_OK;
        }
        if (opt == ':') {
            return ldr_cli_usage(args, "%s needs a value", argv[optind - 1]);
        }
        if (opt < OPT_CAPACITY) {
            return ldr_cli_usage(args, "unknown flag %s", argv[optind - 1]);
        }
        if (!take(p, &g, opt, optarg)) {
            say_choices(opt);
            return ldr_cli_usage(args, "--%s: '%s' cannot be used",
                                 flag_of(opt),
                                 g.bad[0] != '\0' ? g.bad : optarg);
        }
        g.bad[0] = '\0';
    }
    if (argc - optind != 1) {
        return ldr_cli_usage(args, "one TRACE is needed, %d were given",
                             argc - optind);
    }
    p->trace = argv[optind];
    complete(p, &g);
    for (unsigned i = 0; i < p->sim_count && p->nodes > 1; i++) {
        if (p->sims[i]->busiest == NULL && p->sims[i] != &ldr_sim_optimal) {
            return ldr_cli_usage(args,
                                 "--nodes: %s has no nodes; lru and "
                                 "default have, and optimal is that of "
                                 "one",
                                 p->sims[i]->name);
        }
    }
    return LDR_EXIT_OK;
}

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

/* A point of LRU's curve, from its stack. */
static ldr_plan_result_t lru_point(const ldr_plan_book_t *book,
                                   const ldr_plan_case_t *what)
{
    const ldr_tape_t *tape = book->tape;
    double blocks = (double)what->blocks * tape->sample;
    double hits = (double)ldr_curve_hits(&book->lru, (uint64_t)blocks);

    return (ldr_plan_result_t){
        .what = *what,
        .share = (double)what->blocks / ldr_plan_distinct(tape),
        .references = (double)tape->all,
        .hits = ldr_plan_hits(tape, hits),
    };
}

/* LRU's points come from its stack, all others are simulated. */
static int run_curve(const ldr_args_t *args, watch_t *w, ldr_tape_t *tape,
                     ldr_plan_book_t *book)
{
    const ldr_plan_args_t *p = w->p;
    int code = LDR_EXIT_OK;

    snprintf(w->what, sizeof(w->what), "the curve of lru");
    on_progress(w, 0, 0);
    larder_status_t st = ldr_curve_run(tape, &book->lru);
    clear_progress(w);
    if (st != LARDER_OK) {
        return ldr_cli_status(args, st);
    }
    for (unsigned i = 0; i < p->sim_count && code == LDR_EXIT_OK; i++) {
        for (unsigned j = 0; j < book->point_count && code == LDR_EXIT_OK;
             j++) {
            ldr_plan_case_t what = {.sim = p->sims[i],
                                    .blocks = point_blocks(book, j)};
            ldr_plan_result_t *to = &book->points[i * book->point_count + j];
            if (what.sim == &ldr_sim_lru) {
                *to = lru_point(book, &what);
            } else {
                code = run_case(args, w, tape, &what, to);
            }
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
    return book->point_count > 0 ? run_curve(args, w, tape, book) : LDR_EXIT_OK;
}

static int report(const ldr_args_t *args, const ldr_plan_book_t *book)
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

static int run_plan(const ldr_args_t *args, const ldr_plan_args_t *p)
{
    watch_t w = {.p = p, .terminal = isatty(STDERR_FILENO) == 1};
    ldr_tape_t tape = {.request_fd = -1, .block_fd = -1, .future_fd = -1};
    ldr_plan_book_t book = {.args = p, .tape = &tape, .point_count = p->curve};

    int code = read_tape(args, &w, &tape);
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
        code = report(args, &book);
    }
    ldr_curve_free(&book.lru);
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

    int code = parse(&args, argc, argv, &p, &done);
    return done || code != LDR_EXIT_OK ? code : run_plan(&args, &p);
}
