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
static bool each_word(const char *list, char *word, size_t size,
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

/* What was given: 0 or NULL: not. */
typedef struct given {
    ldr_plan_args_t p;
    double flops, prefill, bytes, block, engines, curve, nodes, node_run;
    double dram, ssd_read, ssd_write, lookup_ms;
    const char *measured; /* a file */
    char bad[64];         /* a word of a list that was refused */
} given_t;

/* What a flag's value is, and what its place in given_t has. */
typedef enum kind {
    NUMBER,  /* above 0 and at most max, with K to P: a double */
    COUNT,   /* from min to max: a double */
    LATENCY, /* microseconds: a double, of seconds */
    BYTES,   /* in powers of 1024: a uint64_t */
    SIZE,    /* bytes or a share: an ldr_plan_size_t */
    SIZES,   /* a list of them */
    SIMS,    /* a list of policies */
    TEXT,    /* a const char * */
    MODEL,   /* the same, of one that is known */
    ADMIT,   /* a bool: at the second use */
    FLAG,    /* a bool; it has no value */
    SHOW     /* shows something, and that is all */
} kind_t;

#define AT(field) offsetof(given_t, field)

/* The lines of a flag's text are parted by \n. */
static const struct flag {
    const char *name, *value;
    kind_t kind;
    size_t at;
    double min, max;
    const char *text;
} flags[] = {
    {"capacity", "LIST", SIZES, 0, 0, 0,
     "of DRAM: 5% of the trace's different blocks, or 64G;\n"
     "default: 1%,5%,10%,25%,50%"},
    {"policy", "LIST", SIMS, 0, 0, 0,
     "lru, default (what a node runs) or optimal; default: all"},
    {"ssd", "SIZE", SIZE, AT(p.ssd), 0, 0,
     "a tier below it, as a share or a size"},
    {"ssd-writes", "SIZE", BYTES, AT(p.ssd_writes), 0, 0,
     "bytes a day that may be written to it"},
    {"ssd-admit", "RULE", ADMIT, AT(p.ssd_second), 0, 0,
     "what may: always, or at the second use"},
    {"model", "NAME", MODEL, AT(p.model_name), 0, 0,
     "what a token weighs, and how fast it is computed;\n"
     "default: llama-3.1-8b; --models lists them"},
    {"bytes-per-token", "N", NUMBER, AT(bytes), 0, HUGE_VAL,
     "in place of the model's"},
    {"block-tokens", "N", COUNT, AT(block), 1, 1 << 20,
     "tokens of a hash id; default: as the trace says, or 512"},
    {"flops", "N", NUMBER, AT(flops), 0, HUGE_VAL,
     "operations a second of an engine; default: 400T"},
    {"prefill", "N", NUMBER, AT(prefill), 0, HUGE_VAL,
     "tokens a second, in place of what --flops gives"},
    {"prefill-slow", "N", NUMBER, AT(p.model.slow_tokens), 0, HUGE_VAL,
     "position at which a token takes twice as long;\ndefault: 20000"},
    {"engines", "N", COUNT, AT(engines), 1, 1000000,
     "requests wait for one of N engines; default: none waits"},
    {"dram-speed", "SIZE", NUMBER, AT(dram), 0, HUGE_VAL,
     "bytes a second; default: 50G"},
    {"dram-latency", "US", LATENCY, AT(p.model.dram.latency_s), 0, 0,
     "microseconds; default: 200"},
    {"ssd-speed", "SIZE", NUMBER, AT(ssd_read), 0, HUGE_VAL, "default: 5G"},
    {"ssd-latency", "US", LATENCY, AT(p.model.ssd.latency_s), 0, 0,
     "default: 500"},
    {"ssd-write-speed", "SIZE", NUMBER, AT(ssd_write), 0, HUGE_VAL,
     "default: as fast as it must be"},
    {"lookup-ms", "MS", COUNT, AT(lookup_ms), 1, 60000,
     "what is on SSD must be up by then; default: as the\n"
     "connector's option"},
    {"measured", "FILE", TEXT, AT(measured), 0, 0,
     "these speeds from what `larder doctor --json` said;\n"
     "default: disks as it measured them here last; none"},
    {"nodes", "N", COUNT, AT(nodes), 1, 10000,
     "the capacity is shared by N nodes, each with its own\n"
     "policy (lru, default)"},
    {"node-run", "N", COUNT, AT(node_run), 1, 1 << 20,
     "blocks of a chain that stay together on a node;\ndefault: 1"},
    {"curve", "N", COUNT, AT(curve), 2, 1000,
     "N capacities more for each policy, from 0.1 % to all"},
    {"sample", "SHARE", NUMBER, AT(p.sample), 0, 1,
     "only so many of the blocks, e.g. 0.01: for long traces"},
    {"html", "FILE", TEXT, AT(p.html), 0, 0, "a report, in one file"},
    {"skip-bad", "", FLAG, AT(p.skip_bad), 0, 0,
     "go on without lines that are no requests"},
    {"json", "", FLAG, AT(p.json), 0, 0,
     "for scripts: one JSON object per line"},
    {"models", "", SHOW, 0, 0, 0, "the models that --model knows"},
    {"help", "", SHOW, 0, 0, 0, "this text"},
};
#define FLAGS (sizeof(flags) / sizeof(flags[0]))
#define OPT_FIRST 1000 /* what getopt_long() gives for the first of them */

static void usage(void)
{
    printf("usage: larder plan TRACE [FLAG...]\n"
           "replays a trace through caches of some size, in virtual time: what"
           "\nhit rate, and how much memory is worth having\n\n"
           "TRACE is JSONL as Mooncake's (timestamp, input_length, "
           "output_length,\nhash_ids); -: standard input.\n\n");
    for (size_t i = 0; i < FLAGS; i++) {
        const char *text = flags[i].text;
        size_t length = strcspn(text, "\n");

        printf("  --%s %-*s %.*s\n", flags[i].name,
               (int)(20 - strlen(flags[i].name)), flags[i].value, (int)length,
               text);
        if (text[length] != '\0') {
            printf("%26s%s\n", "", text + length + 1);
        }
    }
}

static bool to_count(const struct flag *f, const char *text, double *value_p)
{
    return to_number(text, value_p) && *value_p >= f->min && *value_p <= f->max;
}

static bool to_latency(const char *text, double *s_p)
{
    double us = 0;

    if (strcmp(text, "0") != 0 && !to_number(text, &us)) {
        return false;
    }
    *s_p = us * 1e-6;
    return true;
}

/* The flag's value into its place. False: it is no value for it. */
static bool take_flag(given_t *g, const struct flag *f, const char *text)
{
    void *at = (char *)g + f->at;

    switch (f->kind) {
    case NUMBER:
    case COUNT:
        return to_count(f, text, at);
    case LATENCY:
        return to_latency(text, at);
    case BYTES:
        return ldr_parse_size(text, at);
    case SIZE:
        return to_size(text, at);
    case SIZES:
        g->p.size_count = 0;
        return each_word(text, g->bad, sizeof(g->bad), take_size, &g->p) &&
               g->p.size_count > 0;
    case SIMS:
        g->p.sim_count = 0;
        return each_word(text, g->bad, sizeof(g->bad), take_sim, &g->p) &&
               g->p.sim_count > 0;
    case ADMIT:
        *(bool *)at = strcmp(text, "second") == 0;
        return *(bool *)at || strcmp(text, "always") == 0;
    case FLAG:
        *(bool *)at = true;
        return true;
    default:
        *(const char **)at = text;
        return f->kind != MODEL || ldr_known_model_find(text) != NULL;
    }
}

/* What the value may be, where that is no list. */
static void want_of(const struct flag *f, char *text, size_t size)
{
    static const char *const wants[] = {
        [SIZES] = ": sizes are like 64G, or shares like 5%, up to 10000%",
        [SIZE] = ": sizes are like 64G, or shares like 5%, up to 10000%",
        [SIMS] = ": lru, default (what a node runs) or optimal",
        [BYTES] = ": a size, like 2T",
        [ADMIT] = ": always or second",
        [LATENCY] = ": microseconds, 0 or more",
        [NUMBER] = ": a number above 0, like 1000, 50G or 400T",
        [SHOW] = NULL};

    if (f->kind == COUNT) {
        snprintf(text, size, ": a number from %.0f to %.0f", f->min, f->max);
    } else if (f->max == 1) {
        snprintf(text, size, ": a share above 0, up to 1");
    } else {
        snprintf(text, size, "%s",
                 wants[f->kind] != NULL ? wants[f->kind] : "");
    }
}

static int refuse_value(const ldr_args_t *args, const struct flag *f,
                        const char *value)
{
    char want[80];

    if (f->kind == MODEL) {
        fprintf(stderr, "larder plan: models:");
        for (unsigned i = 0; ldr_known_model(i) != NULL; i++) {
            fprintf(stderr, " %s", ldr_known_model(i)->name);
        }
        fprintf(stderr, "; or give --bytes-per-token and --prefill\n");
    }
    want_of(f, want, sizeof(want));
    return ldr_cli_usage(args, "--%s: '%s' cannot be used%s", f->name, value,
                         want);
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
                "larder plan: disks as `larder doctor` has measured them "
                "here: reads %.3g GB/s, writes %.3g GB/s (--measured none: "
                "the default)\n",
                m->read / 1e9, m->write / 1e9);
    } else if (error != ENOENT) {
        fprintf(stderr,
                "larder plan: %s: %s; `larder doctor DIR` writes it "
                "again\n",
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
    p->model.engines = (uint32_t)g->engines;
    p->model.bytes_per_token = g->bytes > 0 ? g->bytes : known->bytes_per_token;
    p->model.prefill_rate =
        g->prefill > 0
            ? g->prefill
            : ldr_model_rate(g->flops > 0 ? g->flops : 400e12, known);
    p->curve = g->curve > 0      ? (unsigned)g->curve
               : p->html != NULL ? CURVE_HTML
                                 : 0;
    if (p->size_count == 0) {
        each_word("1%,5%,10%,25%,50%", word, sizeof(word), take_size, p);
    }
    p->nodes = (uint32_t)g->nodes;
    p->run_blocks = g->node_run > 0 ? (uint32_t)g->node_run : 1;
    if (p->sim_count == 0) {
        each_word("lru,default,optimal", word, sizeof(word), take_sim, p);
    }
}

int ldr_plan_parse(const ldr_args_t *args, int argc, char **argv,
                   ldr_plan_args_t *p, bool *done_p)
{
    struct option options[FLAGS + 1] = {0};
    given_t g = {.p = *p};
    int opt;

    for (size_t i = 0; i < FLAGS; i++) {
        options[i] = (struct option){flags[i].name, flags[i].value[0] != '\0',
                                     NULL, OPT_FIRST + (int)i};
    }
    opterr = 0;
    while ((opt = getopt_long(argc, argv, ":h", options, NULL)) != -1) {
        const struct flag *f =
            opt >= OPT_FIRST ? &flags[opt - OPT_FIRST] : &flags[FLAGS - 1];

        if (opt == ':') {
            return ldr_cli_usage(args, "%s needs a value", argv[optind - 1]);
        }
        if (opt < OPT_FIRST && opt != 'h') {
            return ldr_cli_usage(args, "unknown flag %s", argv[optind - 1]);
        }
        if (f->kind == SHOW) {
            *done_p = true;
            if (strcmp(f->name, "models") == 0) {
                list_models();
            } else {
                usage();
            }
            return LDR_EXIT_OK;
        }
        if (!take_flag(&g, f, optarg)) {
            return refuse_value(args, f, g.bad[0] != '\0' ? g.bad : optarg);
        }
        g.bad[0] = '\0';
    }
    *p = g.p;
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
    return LDR_EXIT_OK;
}
