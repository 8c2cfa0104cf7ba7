/* The program larder-bench, which is `larder bench`: the command line and the
 * report. */
#include "bench.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/options.h"
#include "cli/program.h"

static const struct {
    const char *name;
    bool (*run)(ldr_bench_t *b);
    const char *text;
} figures[] = {
    {"dram-get", ldr_bench_dram_get, "loads from the DRAM tier"},
    {"dram-put", ldr_bench_dram_put, "saves to the DRAM tier, evicting"},
    {"ssd-get", ldr_bench_ssd_get, "loads from the SSD tier"},
    {"ssd-put", ldr_bench_ssd_put, "saves until the SSD tier has them"},
    {"shared-get", ldr_bench_shared_get, "loads from a shared tier"},
    {"shared-put", ldr_bench_shared_put, "objects put to a shared tier"},
    {"match", ldr_bench_match, "matching a chain of 1,000 chunks"},
    {"hash", ldr_bench_hash, "hashing tokens into keys"},
    {"evict", ldr_bench_evict, "evicting one entry"},
    {"reopen", ldr_bench_reopen, "opening a directory again"},
    {"index", ldr_bench_index, "memory of the index"},
    {"shm-get", ldr_bench_shm_get, "loads through shared memory"},
    {"shm-put", ldr_bench_shm_put, "saves through shared memory"},
    {"shm-match", ldr_bench_shm_match, "matching in a daemon on this host"},
    {"tcp-get", ldr_bench_tcp_get, "loads over TCP"},
    {"tcp-put", ldr_bench_tcp_put, "saves over TCP"},
    {"tcp-match", ldr_bench_tcp_match, "matching over TCP"},
    {"tcp-small", ldr_bench_tcp_small, "loads of 4 KiB over TCP"},
    {"tls-get", ldr_bench_tls_get, "loads over TCP with TLS"},
    {"peer-get", ldr_bench_peer_get, "loads from other members"},
    {"peer-put", ldr_bench_peer_put, "saves until other members have them"},
    {"peer-match", ldr_bench_peer_match, "matching what four others own"},
    {"serve-idle", ldr_bench_idle, "a daemon with nothing to do"},
    {"layout", ldr_bench_layout, "shards of engines' pages, in every order"},
    {"gpu-copy", ldr_bench_gpu_copy, "a GPU's pages to and from the arena"},
};

#define FIGURES (sizeof(figures) / sizeof(figures[0]))

static void usage(void)
{
    printf("usage: larder bench [NAME...] [--size S] [--seconds N] "
           "[--clients N]\n"
           "                    [--entries N] [--json] [--dir DIR] "
           "[--shared URL] [--list]\n\n"
           "Measures this machine's limits and Larder in turns. Without a "
           "NAME: all of\nthem, in about three minutes. Those from "
           "shm-get on start a daemon.\n\n");
    for (size_t i = 0; i < FIGURES; i++) {
        printf("  %-10s %s\n", figures[i].name, figures[i].text);
    }
    printf("\n"
           "  --size S     values of S bytes (K, M) in place of 256K, 1M "
           "and 4M\n"
           "  --seconds N  time for each figure\n"
           "  --clients N  one or two clients of a daemon; default: one, "
           "and two for 1M\n"
           "  --entries N  chunks that shm-match and tcp-match look "
           "among; default 10000000\n"
           "  --json       one line of JSON per figure\n"
           "  --dir DIR    where the SSD figures make their files "
           "(about 6 GiB,\n"
           "               removed at the end); default $TMPDIR or "
           "/var/tmp\n"
           "  --shared URL the tier of the shared figures; default: a "
           "directory there\n"
           "  --list       the names only\n");
}

/* ---- the report ---- */

static bool holds(const ldr_figure_t *f)
{
    switch (f->goal_kind) {
    case LDR_GOAL_RATIO:
        return f->limit > 0 && f->value / f->limit >= f->goal;
    case LDR_GOAL_RATIO_MAX:
        return f->limit > 0 && f->value / f->limit <= f->goal;
    case LDR_GOAL_MIN:
        return f->value >= f->goal;
    case LDR_GOAL_MAX:
        return f->value <= f->goal;
    default:
        return true;
    }
}

static void report_json(const ldr_figure_t *f)
{
    printf("{\"bench\":\"%s\",\"bytes\":%llu,\"value\":%.4g,\"unit\":\"%s\"",
           f->name, (unsigned long long)f->bytes, f->value, f->unit);
    if (f->limit > 0) {
        printf(",\"limit\":%.4g,\"ratio\":%.3f", f->limit, f->value / f->limit);
    } else {
        printf(",\"limit\":null,\"ratio\":null");
    }
    if (f->variant[0] != '\0') {
        printf(",\"variant\":\"%s\"", f->variant);
    }
    if (f->goal_kind != LDR_GOAL_NONE) {
        printf(",\"goal\":\"%s%g\",\"holds\":%s",
               f->goal_kind == LDR_GOAL_RATIO       ? "ratio>="
               : f->goal_kind == LDR_GOAL_RATIO_MAX ? "ratio<="
               : f->goal_kind == LDR_GOAL_MIN       ? "value>="
                                                    : "value<=",
               f->goal, holds(f) ? "true" : "false");
    }
    printf("%s}\n", f->more != NULL ? f->more : "");
}

/* "4 MiB", "10 M": a size in bytes, or a number of entries. */
static void amount(const ldr_figure_t *f, char *text, size_t size)
{
    unsigned long long n = f->bytes;

    if (n >= LDR_MIB && n % LDR_MIB == 0) {
        snprintf(text, size, "%llu MiB", n >> 20);
    } else if (n >= 65536 && n % 1024 == 0) {
        snprintf(text, size, "%llu KiB", n >> 10);
    } else if (n >= 1000000) {
        snprintf(text, size, "%llu M", n / 1000000);
    } else if (n >= 10000) {
        snprintf(text, size, "%llu k", n / 1000);
    } else {
        snprintf(text, size, "%llu", n);
    }
}

static void report_row(const ldr_figure_t *f)
{
    static bool titled;
    char at[32], goal[32] = "", limit[32] = "", ratio[32] = "";

    if (!titled) {
        titled = true;
        printf("%-10s %-27s %9s %10s %-9s %8s %6s  %s\n", "figure", "variant",
               "of", "value", "unit", "limit", "ratio", "goal");
    }
    amount(f, at, sizeof(at));
    if (f->limit > 0) {
        snprintf(limit, sizeof(limit), "%.3g", f->limit);
        snprintf(ratio, sizeof(ratio), "%.2f", f->value / f->limit);
    }
    if (f->goal_kind != LDR_GOAL_NONE) {
        snprintf(goal, sizeof(goal), "%s %g%s",
                 f->goal_kind == LDR_GOAL_MAX ||
                         f->goal_kind == LDR_GOAL_RATIO_MAX
                     ? "<="
                     : ">=",
                 f->goal, holds(f) ? "" : "  SHORT");
    }
    printf("%-10s %-27s %9s %10.4g %-9s %8s %6s  %s\n", f->name, f->variant, at,
           f->value, f->unit, limit, ratio, goal);
}

void ldr_bench_report(ldr_bench_t *b, const ldr_figure_t *figure)
{
    if (b->json) {
        report_json(figure);
    } else {
        report_row(figure);
    }
    fflush(stdout);
}

bool ldr_bench_fail(ldr_bench_t *b, const char *name, const char *what)
{
    const char *why = larder_last_error();

    fprintf(stderr, "larder bench %s: %s%s%s\n", name, what,
            why[0] != '\0' ? ": " : "", why);
    b->failed++;
    return false;
}

void ldr_bench_progress(const ldr_bench_t *b, const char *name,
                        const char *what)
{
    if (!b->json && isatty(STDERR_FILENO)) {
        fprintf(stderr, "%s: %s...\n", name, what);
    }
}

uint64_t ldr_bench_size(const ldr_bench_t *b, unsigned i)
{
    static const uint64_t usual[] = {256 << 10, 1 << 20, 4 << 20};

    return b->size != 0 ? (i == 0 ? b->size : 0) : i < 3 ? usual[i] : 0;
}

/* ---- the command line ---- */

static bool parse_seconds(const char *text, double *seconds_p)
{
    char *end;
    double v = strtod(text, &end);

    if (end == text || *end != '\0' || !(v > 0) || v > 3600) {
        return false;
    }
    *seconds_p = v;
    return true;
}

/* The value of an option, "--x V" or "--x=V"; NULL: it is another. */
static const char *value_of(const char *option, int argc, char **argv, int *at)
{
    size_t n = strlen(option);

    if (strncmp(argv[*at], option, n) != 0) {
        return NULL;
    }
    if (argv[*at][n] == '=') {
        return argv[*at] + n + 1;
    }
    if (argv[*at][n] == '\0' && *at + 1 < argc) {
        return argv[++*at];
    }
    return NULL;
}

static bool choose(const char *name, bool *chosen)
{
    for (size_t i = 0; i < FIGURES; i++) {
        if (strcmp(figures[i].name, name) == 0) {
            chosen[i] = true;
            return true;
        }
    }
    return false;
}

/* Says what would be right in place of the value of a flag, or of a name. */
static bool refuse(const char *text, const char *value, const char *right)
{
    bool apart = value != text;

    fprintf(stderr, "larder bench: %s%s%s: ", text, apart ? " " : "",
            apart ? value : "");
    if (right != NULL) {
        fprintf(stderr, "give %s\n", right);
    } else if (text[0] == '-') {
        fprintf(stderr, "is no flag, or lacks its value\n");
    } else {
        fprintf(stderr, "is none of");
        for (size_t i = 0; i < FIGURES; i++) {
            fprintf(stderr, "%s %s", i > 0 ? "," : "", figures[i].name);
        }
        fputc('\n', stderr);
    }
    return false;
}

static bool parse(int argc, char **argv, ldr_bench_t *b, bool *chosen)
{
    const char *tmp = getenv("TMPDIR");

    snprintf(b->dir, sizeof(b->dir), "%s",
             tmp != NULL && tmp[0] != '\0' ? tmp : "/var/tmp");
    for (int i = 1; i < argc; i++) {
        const char *v, *right = NULL, *text = argv[i];
        bool ok = true;

        if (strcmp(argv[i], "--json") == 0) {
            b->json = true;
        } else if ((v = value_of("--size", argc, argv, &i)) != NULL) {
            right = "4K to 16M, in steps of 4K";
            ok = ldr_parse_size(v, &b->size) && b->size >= 4096 &&
                 b->size <= 16 * LDR_MIB && b->size % 4096 == 0;
        } else if ((v = value_of("--seconds", argc, argv, &i)) != NULL) {
            right = "seconds, more than 0 and up to 3600";
            ok = parse_seconds(v, &b->seconds);
        } else if ((v = value_of("--clients", argc, argv, &i)) != NULL) {
            right = "1 or 2";
            ok = strcmp(v, "1") == 0 || strcmp(v, "2") == 0;
            b->clients = ok ? (unsigned)(v[0] - '0') : 0;
        } else if ((v = value_of("--entries", argc, argv, &i)) != NULL) {
            right = "1000 to 100000000";
            ok = ldr_parse_uint(v, &b->entries) && b->entries >= 1000 &&
                 b->entries <= 100000000;
        } else if ((v = value_of("--shared", argc, argv, &i)) != NULL) {
            right = "a shorter URL";
            ok = (size_t)snprintf(b->shared, sizeof(b->shared), "%s", v) <
                 sizeof(b->shared);
        } else if ((v = value_of("--dir", argc, argv, &i)) != NULL) {
            right = "a shorter path";
            ok = (size_t)snprintf(b->dir, sizeof(b->dir), "%s", v) <
                 sizeof(b->dir);
        } else {
            ok = choose(argv[i], chosen);
            b->named |= ok;
        }
        if (!ok) {
            return refuse(text, argv[i], right);
        }
    }
    return true;
}

static int run(ldr_bench_t *b, const bool *chosen)
{
    if (!b->json) {
        printf("larder %s\n", larder_version());
    }
    for (size_t i = 0; i < FIGURES; i++) {
        if (chosen[i] || !b->named) {
            figures[i].run(b);
        }
    }
    fflush(stdout);
    return b->failed > 0 ? LDR_EXIT_FAILED : LDR_EXIT_OK;
}

static volatile pid_t child;

static void pass_on(int signal)
{
    kill(child, signal);
}

/* Runs them in a process of its own, so that however it ends there is somebody
 * to remove its files. */
static int guarded(ldr_bench_t *b, const bool *chosen)
{
    struct sigaction action = {.sa_handler = pass_on};
    int status;

    child = fork();
    if (child == 0) {
        _exit(run(b, chosen));
    }
    if (child < 0) {
        fprintf(stderr, "larder bench: cannot start a process\n");
        return LDR_EXIT_FAILED;
    }
    /* An interrupt from the terminal reaches the child by itself. */
    signal(SIGINT, SIG_IGN);
    sigaction(SIGTERM, &action, NULL);
    while (waitpid(child, &status, 0) < 0) {
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int bench(int argc, char **argv)
{
    bool chosen[FIGURES] = {false};
    ldr_bench_t b = {0};

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            usage();
            return LDR_EXIT_OK;
        }
        if (strcmp(argv[i], "--list") == 0) {
            for (size_t k = 0; k < FIGURES; k++) {
                printf("%s\n", figures[k].name);
            }
            return LDR_EXIT_OK;
        }
    }
    if (!parse(argc, argv, &b, chosen)) {
        fprintf(stderr, "`larder bench --help` says more\n");
        return LDR_EXIT_USAGE;
    }
    char *root = b.dir + strlen(b.dir);
    snprintf(root, sizeof(b.dir) - (size_t)(root - b.dir),
             "/larder-bench-XXXXXX");
    if (mkdtemp(b.dir) == NULL) {
        fprintf(stderr, "larder bench: cannot make %s; choose another --dir\n",
                b.dir);
        return LDR_EXIT_FAILED;
    }
    int code = guarded(&b, chosen);
    ldr_bench_remove(b.dir);
    return code;
}

int main(int argc, char **argv)
{
    return ldr_program_end(ldr_program_begin() ? bench(argc, argv)
                                               : LDR_EXIT_USAGE);
}
