/* larder plan: its command line. */
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/options.h"
#include "cli/cli.h"
#include "cli/measured.h"
#include "cli/plan.h"

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
        "  --ssd-writes SIZE       bytes a day that may be written to it\n"
        "  --ssd-admit RULE        what may: always, or at the second use\n"
        "  --model NAME            what a token weighs, and how fast it is "
        "computed;\n"
        "                          default: llama-3.1-8b; --models lists "
        "them\n"
        "  --bytes-per-token N     in place of the model's\n"
        "  --block-tokens N        tokens of a hash id; default: as the trace "
        "says, or 512\n"
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
        "  --ssd-write-speed SIZE  default: as fast as it must be\n"
        "  --lookup-ms MS          what is on SSD must be up by then; default: "
        "as the\n"
        "                          connector's option\n"
        "  --measured FILE         these speeds from what `larder doctor "
        "--json` said;\n"
        "                          default: disks as it measured them here "
        "last; none\n"
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
    OPT_SSD_WRITES,
    OPT_SSD_ADMIT,
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
    OPT_SSD_WRITE_SPEED,
    OPT_LOOKUP_MS,
    OPT_MEASURED,
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
    {"ssd-writes", required_argument, NULL, OPT_SSD_WRITES},
    {"ssd-admit", required_argument, NULL, OPT_SSD_ADMIT},
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
    {"ssd-write-speed", required_argument, NULL, OPT_SSD_WRITE_SPEED},
    {"lookup-ms", required_argument, NULL, OPT_LOOKUP_MS},
    {"measured", required_argument, NULL, OPT_MEASURED},
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
    double dram, ssd_read, ssd_write, lookup_ms;
    const char *measured; /* a file */
    char bad[64];         /* a word of a list that was refused */
} given_t;

static bool set_count(const char *text, double most, double *count_p)
{
    return to_number(text, count_p) && *count_p >= 1 && *count_p <= most;
}

static bool set_latency(ldr_speed_t *speed, const char *text)
{
    double us = 0;

    if (strcmp(text, "0") != 0 && !to_number(text, &us)) {
        return false;
    }
    speed->latency_s = us * 1e-6;
    return true;
}

/* What the engines and tiers are like. */
static bool take_model(ldr_plan_args_t *p, given_t *g, int opt,
                       const char *text)
{
    double value;

    switch (opt) {
    case OPT_MODEL:
        p->model_name = text;
        return ldr_known_model_find(text) != NULL;
    case OPT_BYTES:
        return to_number(text, &g->bytes);
    case OPT_BLOCK:
        return set_count(text, 1 << 20, &g->block);
    case OPT_FLOPS:
        return to_number(text, &g->flops);
    case OPT_PREFILL:
        return to_number(text, &g->prefill);
    case OPT_SLOW:
        return to_number(text, &p->model.slow_tokens);
    case OPT_ENGINES:
        if (!set_count(text, ENGINES_MAX, &value)) {
            return false;
        }
        p->model.engines = (uint32_t)value;
        return true;
    case OPT_DRAM_SPEED:
        return to_number(text, &g->dram);
    case OPT_DRAM_LATENCY:
        return set_latency(&p->model.dram, text);
    case OPT_SSD_SPEED:
        return to_number(text, &g->ssd_read);
    case OPT_SSD_WRITE_SPEED:
        return to_number(text, &g->ssd_write);
    case OPT_LOOKUP_MS:
        return set_count(text, 60000, &g->lookup_ms);
    case OPT_MEASURED:
        g->measured = text;
        return true;
    default:
        return set_latency(&p->model.ssd, text);
    }
}

/* The flag's value into its place. False: it is no value for it. */
static bool take(ldr_plan_args_t *p, given_t *g, int opt, const char *text)
{
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
    case OPT_SSD_WRITES:
        return ldr_parse_size(text, &p->ssd_writes);
    case OPT_SSD_ADMIT:
        p->ssd_second = strcmp(text, "second") == 0;
        return p->ssd_second || strcmp(text, "always") == 0;
    case OPT_NODES:
        return set_count(text, NODES_MAX, &g->nodes);
    case OPT_NODE_RUN:
        return set_count(text, 1 << 20, &g->node_run);
    case OPT_CURVE:
        return to_number(text, &g->curve) && g->curve >= 2 && g->curve <= 1000;
    case OPT_SAMPLE:
        return to_number(text, &p->sample) && p->sample <= 1;
    case OPT_HTML:
        p->html = text;
        return true;
    case OPT_SKIP_BAD:
        p->skip_bad = true;
        return true;
    case OPT_JSON:
        p->json = true;
        return true;
    default:
        return take_model(p, g, opt, text);
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

/* What the flag's value may be; NULL: see say_choices(). */
static const char *want_of(int opt)
{
    switch (opt) {
    case OPT_CAPACITY:
    case OPT_SSD:
        return "sizes are like 64G, or shares like 5%, up to 10000%";
    case OPT_SSD_WRITES:
        return "a size, like 2T";
    case OPT_SSD_ADMIT:
        return "always or second";
    case OPT_NODES:
        return "a number from 1 to 10000";
    case OPT_ENGINES:
        return "a number from 1 to 1000000";
    case OPT_BLOCK:
    case OPT_NODE_RUN:
        return "a number from 1 to 1048576";
    case OPT_LOOKUP_MS:
        return "milliseconds, from 1 to 60000";
    case OPT_CURVE:
        return "a number from 2 to 1000";
    case OPT_SAMPLE:
        return "a share above 0, up to 1";
    case OPT_DRAM_LATENCY:
    case OPT_SSD_LATENCY:
        return "microseconds, 0 or more";
    case OPT_POLICY:
    case OPT_MODEL:
        return NULL;
    default:
        return "a number above 0, like 1000, 50G or 400T";
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

/* A report is written when all is done: too late to find out. */
static bool is_writable(const char *path)
{
    char folder[PATH_MAX] = ".";
    const char *slash = strrchr(path, '/');

    if (access(path, F_OK) == 0) {
        return access(path, W_OK) == 0;
    }
    if (slash != NULL) {
        snprintf(folder, sizeof(folder), "%.*s", (int)(slash - path + 1), path);
    }
    return access(folder, W_OK | X_OK) == 0;
}

/* The speeds that --measured names. 0: read, else an exit code. */
static int take_measured(const ldr_args_t *args, const char *path,
                         ldr_measured_t *m)
{
    int error = ldr_measured_read(path, m);

    if (error == ENODATA) {
        return ldr_cli_fail(args,
                            "%s: there is no disk in it; write it with "
                            "`larder doctor PLACE --json`",
                            path);
    }
    return error == 0 ? LDR_EXIT_OK
                      : ldr_cli_fail(args, "%s: %s", path, strerror(error));
}

/* Those of the disks that the doctor has kept. The speed of memory is none of
 * them: how fast an engine loads is its link's, not a CPU's. */
static void take_kept(ldr_measured_t *m)
{
    char path[LDR_MEASURED_PATH];

    if (!ldr_measured_path(path)) {
        return;
    }
    int error = ldr_measured_read(path, m);
    m->dram = 0;
    if (error == 0) {
        fprintf(stderr,
                "larder: plan: disks as `larder doctor` has measured them "
                "here: reads %.3g GB/s, writes %.3g GB/s (--measured none: "
                "the default)\n",
                m->read / 1e9, m->write / 1e9);
    } else if (error != ENOENT) {
        fprintf(stderr,
                "larder: plan: %s: %s; `larder doctor DIR` writes it "
                "anew\n",
                path, error == ENODATA ? "no disk in it" : strerror(error));
    }
}

/* The speeds of the tiers: as given, or else as measured, or else what they
 * are in m. */
static int take_speeds(const ldr_args_t *args, const given_t *g,
                       ldr_plan_args_t *p)
{
    ldr_model_t *m = &p->model;
    bool disk = p->ssd.bytes > 0 || p->ssd.share > 0;
    ldr_measured_t is = {0};
    int lookup = ldr_option_find("lookup_ms", strlen("lookup_ms"));
    int code = LDR_EXIT_OK;

    if (g->measured != NULL && strcmp(g->measured, "none") != 0) {
        code = take_measured(args, g->measured, &is);
    } else if (g->measured == NULL && disk &&
               !(g->ssd_read > 0 && g->ssd_write > 0)) {
        take_kept(&is);
    }
    double dram = g->dram > 0 ? g->dram : is.dram;
    double read = g->ssd_read > 0 ? g->ssd_read : is.read;
    m->dram.bytes_per_s = dram > 0 ? dram : m->dram.bytes_per_s;
    m->ssd.bytes_per_s = read > 0 ? read : m->ssd.bytes_per_s;
    m->ssd_write_bytes_per_s = g->ssd_write > 0 ? g->ssd_write : is.write;
    m->lookup_s = 1e-3 * (g->lookup_ms > 0
                              ? g->lookup_ms
                              : strtod(ldr_option_table[lookup].value, NULL));
    return code;
}

/* What was not said comes from the model, and from the defaults. */
static void complete(ldr_plan_args_t *p, const given_t *g)
{
    const ldr_known_model_t *known = ldr_known_model_find(p->model_name);
    char word[32];

    p->model.block_tokens = (uint32_t)g->block;
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

int ldr_plan_parse(const ldr_args_t *args, int argc, char **argv,
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
            const char *want = want_of(opt);

            return ldr_cli_usage(
                args, "--%s: '%s' cannot be used%s%s", flag_of(opt),
                g.bad[0] != '\0' ? g.bad : optarg, want != NULL ? ": " : "",
                want != NULL ? want : "");
        }
        g.bad[0] = '\0';
    }
    if (argc - optind != 1) {
        return ldr_cli_usage(args, "one TRACE is needed, %d were given",
                             argc - optind);
    }
    p->trace = argv[optind];
    if (p->html != NULL && !is_writable(p->html)) {
        return ldr_cli_fail(args, "--html: %s: %s", p->html, strerror(errno));
    }
    if ((p->ssd_second || p->ssd_writes > 0) && p->ssd.bytes == 0 &&
        p->ssd.share <= 0) {
        return ldr_cli_usage(args, "--ssd-writes and --ssd-admit need --ssd");
    }
    complete(p, &g);
    int code = take_speeds(args, &g, p);
    if (code != LDR_EXIT_OK) {
        return code;
    }
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
