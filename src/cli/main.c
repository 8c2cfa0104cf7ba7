/* The command line: which command, with which flags and operands. */
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"

#define FLAG(name) (1u << LDR_FLAG_##name)
#define SPACE_FLAGS                                                            \
    (FLAG(SPACE) | FLAG(SPACE_FILE) | FLAG(TENANT) | FLAG(SECRET_FILE) |       \
     FLAG(SHARDS) | FLAG(CHUNK_TOKENS))
#define SHARD_FLAGS (SPACE_FLAGS | FLAG(LABEL) | FLAG(SHARD) | FLAG(GROUP))

typedef struct command {
    const char *name;
    int (*run)(const ldr_args_t *args); /* NULL: serve, bench, plan */
    const char *operands;
    int operand_count; /* -n: up to n */
    uint32_t flags;
    const char *text; /* a line for `larder --help`; what follows is the rest */
} command_t;

static const command_t commands[] = {
    {"put", ldr_cmd_put, "PLACE KEY FILE|-", 3,
     SHARD_FLAGS | FLAG(TTL) | FLAG(PIN) | FLAG(JSON),
     "saves a file under a key; in a directory, waits for the disk"},
    {"get", ldr_cmd_get, "PLACE KEY FILE|-", 3, SHARD_FLAGS | FLAG(JSON),
     "loads what was saved under a key"},
    {"ls", ldr_cmd_ls, "[PLACE]", -1, FLAG(ALL) | FLAG(JSON),
     "lists what a directory, or a node, holds; default: the daemon here"},
    {"stat", ldr_cmd_stat, "[PLACE]", -1,
     FLAG(PROMETHEUS) | FLAG(MARKDOWN) | FLAG(JSON),
     "shows the figures of a node; default: the daemon on this host"},
    {"flush", ldr_cmd_flush, "PLACE", 1, FLAG(JSON),
     "recovers what a crash left, and waits until all is on disk"},
    {"reset", ldr_cmd_reset, "PLACE", 1, SPACE_FLAGS | FLAG(JSON),
     "drops everything in a space"},
    {"wipe", ldr_cmd_wipe, "PLACE", 1,
     FLAG(WHOSE) | FLAG(YES) | FLAG(FORCE) | FLAG(JSON),
     "deletes Larder's files in the directory; --tenant: one tenant's data"},
    {"fsck", ldr_cmd_fsck, "PLACE", 1, FLAG(REPAIR) | FLAG(JSON),
     "reads and checks everything; mends it only with --repair"},
    {"serve", NULL, "[FLAG...]", 0, 0,
     "runs a node for every engine on this host, and for others"},
    {"pause", ldr_cmd_verb, "[SOCKET]", -1, 0,
     "switches a running node off: everything misses, nothing is lost"},
    {"resume", ldr_cmd_verb, "[SOCKET]", -1, 0,
     "switches a paused node on again"},
    {"bench", NULL, "[NAME...]", 0, 0, "measures this machine and Larder"},
    {"plan", NULL, "TRACE", 0, 0,
     "says how much of a trace caches of some sizes would hit"},
    {"tier", ldr_cmd_tier, "create|check|ls|wipe URL", 2,
     FLAG(LOGIN) | FLAG(WHOSE) | FLAG(YES) | FLAG(FORCE) | FLAG(JSON),
     "makes, checks or lists a shared tier, or drops a tenant's part of it"},
    {"secret", ldr_cmd_secret, "FILE", 1, FLAG(TENANT) | FLAG(JSON),
     "prints secret_check of a tenant's secret, for the daemon"},
    {"top", ldr_cmd_top, "[URL]", -1, FLAG(ONCE) | FLAG(INTERVAL),
     "shows what a node does, live; default: the daemon on this host"},
    {"cluster", ldr_cmd_cluster, "[WHAT] [URL]", -3,
     FLAG(UNDO) | FLAG(TIMEOUT) | FLAG(JSON),
     "shows the members of a cluster, waits for them, or drains one\n\n"
     "WHAT: status (if it is left out), members, weights, wait-healthy, or\n"
     "drain NODE, which takes the path of a socket in place of a URL."},
    {"explain", ldr_cmd_explain, "[REQUEST_ID]", -1, FLAG(DIR) | FLAG(JSON),
     "says why a request hit or missed, or lists the last ones"},
    {"doctor", ldr_cmd_doctor, "[PLACE]", -1,
     FLAG(CONFIG) | FLAG(SHARED) | FLAG(LOGIN) | FLAG(CLUSTER) | FLAG(JSON),
     "inspects this host, and says what to change and how"},
    {"options", ldr_cmd_options, "", 0,
     FLAG(SERVE) | FLAG(MARKDOWN) | FLAG(JSON),
     "lists the options of URLs and of serve"},
};

static const struct {
    const char *flag, *value, *text;
} flags[LDR_FLAG_COUNT] = {
#define X(name, flag, value, text) {flag, value, text},
    LDR_FLAG_MAP(X)
#undef X
};

_Static_assert(LDR_FLAG_COUNT <= 32, "a bit of a word for each flag");

enum { OPT_HELP = 1000, OPT_FLAG = 2000 };

static void help(void)
{
    printf("usage: larder COMMAND ...\n\n");
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        printf("  %-8s %-19s %.*s\n", commands[i].name, commands[i].operands,
               (int)strcspn(commands[i].text, "\n"), commands[i].text);
    }
    printf("\nPLACE is the path of a directory, or a URL like\n"
           "embed:/var/cache/kv?dram=4G&ssd=100G (`larder options`).\n"
           "KEY is a name of your choice, or 64 hex digits as `larder ls` "
           "prints them.\n\n"
           "  larder COMMAND --help   the flags of a command\n"
           "  larder --version\n\n"
           "exit codes: %d ok, %d miss or damage, %d usage, %d failed\n",
           LDR_EXIT_OK, LDR_EXIT_NO, LDR_EXIT_USAGE, LDR_EXIT_FAILED);
}

static void help_command(const command_t *c)
{
    char left[40];

    printf("usage: larder %s%s%s [FLAG...]\n%s\n\n", c->name,
           c->operands[0] != '\0' ? " " : "", c->operands, c->text);
    for (unsigned i = 0; i < LDR_FLAG_COUNT; i++) {
        if ((c->flags >> i & 1) != 0) {
            snprintf(left, sizeof(left), "--%s%s%s", flags[i].flag,
                     flags[i].value != NULL ? " " : "",
                     flags[i].value != NULL ? flags[i].value : "");
            printf("  %-20s %s\n", left, flags[i].text);
        }
    }
    printf("  %-20s %s\n", "--help", "this text");
}

static const command_t *command_find(const char *name)
{
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        if (strcmp(commands[i].name, name) == 0) {
            return &commands[i];
        }
    }
    return NULL;
}

/* The flags of this command, for getopt. */
static void long_options(const command_t *c, struct option *out)
{
    *out++ = (struct option){"help", no_argument, NULL, OPT_HELP};
    for (int i = 0; i < LDR_FLAG_COUNT; i++) {
        if ((c->flags >> i & 1) != 0) {
            *out++ = (struct option){flags[i].flag,
                                     flags[i].value != NULL ? required_argument
                                                            : no_argument,
                                     NULL, OPT_FLAG + i};
        }
    }
    *out = (struct option){0};
}

/* An exit code; *help_p: only help was asked for. */
static int parse(const command_t *c, int argc, char **argv, ldr_args_t *args,
                 bool *help_p)
{
    struct option options[LDR_FLAG_COUNT + 2];
    int opt;

    long_options(c, options);
    opterr = 0;
    while ((opt = getopt_long(argc, argv, ":h", options, NULL)) != -1) {
        if (opt == 'h' || opt == OPT_HELP) {
            *help_p = true;
            return LDR_EXIT_OK;
        }
        if (opt == ':') {
            return ldr_cli_usage(args, "%s needs a value", argv[optind - 1]);
        }
        if (opt < OPT_FLAG) {
            return ldr_cli_usage(args, "unknown flag %s", argv[optind - 1]);
        }
        args->values[opt - OPT_FLAG] = optarg != NULL ? optarg : "";
    }
    args->operands = argv + optind;
    args->operand_count = argc - optind;
    if (c->operand_count < 0 ? args->operand_count > -c->operand_count
                             : args->operand_count != c->operand_count) {
        return ldr_cli_usage(args, "%d operand%s given; usage: larder %s %s",
                             args->operand_count,
                             args->operand_count == 1 ? "" : "s", c->name,
                             c->operands);
    }
    return LDR_EXIT_OK;
}

static int run_command(const command_t *c, int argc, char **argv)
{
    ldr_args_t args = {.command = c->name};
    bool only_help = false;
    int code;

    if (c->run == NULL) {
        return strcmp(c->name, "serve") == 0  ? ldr_cmd_serve(argc, argv)
               : strcmp(c->name, "plan") == 0 ? ldr_cmd_plan(argc, argv)
                                              : ldr_cmd_bench(argv);
    }
    code = parse(c, argc, argv, &args, &only_help);
    if (only_help) {
        help_command(c);
    } else if (code == LDR_EXIT_OK) {
        code = c->run(&args);
    }
    return code;
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    const command_t *c = command_find(name);
    int code = LDR_EXIT_OK;

    if (!ldr_program_begin()) {
        code = LDR_EXIT_USAGE;
    } else if (c != NULL) {
        code = run_command(c, argc - 1, argv + 1);
    } else if (strcmp(name, "--version") == 0) {
        printf("larder %s\n", larder_version());
    } else if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 ||
               strcmp(name, "help") == 0) {
        help();
    } else {
        fprintf(stderr, "larder: %s%s%s; `larder --help` lists the commands\n",
                argc > 1 ? "unknown command '" : "no command given", name,
                argc > 1 ? "'" : "");
        code = LDR_EXIT_USAGE;
    }
    return ldr_program_end(code);
}
