/*
 * The program `larder`: one table of commands and one of flags. What the
 * commands share is in cmd_common.c.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/io.h"
#include "base/options.h"
#include "base/text.h"
#include "cli/program.h"
#include "larder/larder.h"
#include "store/fsck.h"

/* X(name, flag, value or NULL, text) */
#define LDR_FLAG_MAP(X)                                                        \
    X(SPACE, "space", "TEXT", "descriptor of the space; default: cli")         \
    X(SPACE_FILE, "space-file", "FILE", "the descriptor is the file's bytes")  \
    X(LABEL, "label", "TEXT", "what people call the space; not in its name")   \
    X(TENANT, "tenant", "NAME", "which tenant; default: default")              \
    X(WHOSE, "tenant", "NAME",                                                 \
      "only this tenant's data; `larder wipe` without it deletes all")         \
    X(SECRET_FILE, "secret-file", "FILE",                                      \
      "the tenant's secret: the file's bytes, less a newline at the end")      \
    X(SHARDS, "shards", "N", "shards of a chunk in the space; default: 1")     \
    X(CHUNK_TOKENS, "chunk-tokens", "N",                                       \
      "tokens of a chunk in the space; default: 1")                            \
    X(SHARD, "shard", "N", "which shard; default: 0")                          \
    X(GROUP, "group", "N", "which group; default: 0")                          \
    X(TTL, "ttl", "SECONDS", "forget it after this time")                      \
    X(PIN, "pin", NULL, "evict others first")                                  \
    X(ALL, "all", NULL, "also dead records and tombstones")                    \
    X(REPAIR, "repair", NULL, "mend what can be mended")                       \
    X(YES, "yes", NULL, "do not ask")                                          \
    X(FORCE, "force", NULL,                                                    \
      "also where the format is unknown or nothing proves whose it is; of a "  \
      "tier: also while a node uses it")                                       \
    X(SERVE, "serve", NULL, "only those of `larder serve`, and its tenants")   \
    X(MARKDOWN, "markdown", NULL, "the tables of the manual")                  \
    X(CONFIG, "config", "FILE", "the configuration of `larder serve`")         \
    X(SHARED, "shared", "URL", "the shared tier; default: the configured one") \
    X(LOGIN, "login", "FILE",                                                  \
      "secrets of the shared tier's storage, as in the option shared_login")   \
    X(ONCE, "once", NULL, "prints it once and ends, also in a terminal")       \
    X(INTERVAL, "interval", "SECONDS", "between two looks; default: 2")        \
    X(DIR, "dir", "DIR", "look there; default: explain/ beside the socket")    \
    X(UNDO, "undo", NULL, "the member takes its place again")                  \
    X(TIMEOUT, "timeout", "SECONDS", "how long to wait; default: 60")          \
    X(CLUSTER, "cluster", NULL,                                                \
      "only the cluster: its members, and the way to each")                    \
    X(PROMETHEUS, "prometheus", NULL, "as metrics in Prometheus' format")      \
    X(JSON, "json", NULL, "for scripts: one JSON object per line")

typedef enum ldr_flag {
#define X(name, flag, value, text) LDR_FLAG_##name,
    LDR_FLAG_MAP(X)
#undef X
        LDR_FLAG_COUNT
} ldr_flag_t;

/* A command line that was understood. */
typedef struct ldr_args {
    const char *command;
    char **operands;
    int operand_count;
    const char *values[LDR_FLAG_COUNT]; /* NULL: not given */
} ldr_args_t;

static inline bool ldr_args_has(const ldr_args_t *args, ldr_flag_t flag)
{
    return args->values[flag] != NULL;
}

/* ---- messages ---- */

/* "larder COMMAND: ..." to stderr. Gives LDR_EXIT_FAILED. */
int ldr_cli_fail(const ldr_args_t *args, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* The same with a hint at --help. Gives LDR_EXIT_USAGE. */
int ldr_cli_usage(const ldr_args_t *args, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* What the library said to a failed call. Gives LDR_EXIT_FAILED. */
int ldr_cli_status(const ldr_args_t *args, larder_status_t status);

/* A number given to a flag. LDR_EXIT_OK, or LDR_EXIT_USAGE with a message. */
int ldr_cli_number(const ldr_args_t *args, ldr_flag_t flag, uint64_t min,
                   uint64_t max, uint64_t *value_p);

/* Whether the user wants that: --yes, or the answer to a question at the
 * terminal, which ends with " in WHERE?". LDR_EXIT_OK, or another with a
 * message. */
int ldr_cli_sure(const ldr_args_t *args, const char *where, const char *what,
                 ...) __attribute__((format(printf, 3, 4)));

/* Whether it is the name of a tenant: LDR_EXIT_OK, or LDR_EXIT_USAGE with a
 * message. */
int ldr_cli_tenant(const ldr_args_t *args, const char *name);

/* text as a JSON string, with its quotes: at most an option's value. */
void ldr_json_string(FILE *out, const char *text);

/* "1.5 MiB" */
void ldr_human_bytes(uint64_t bytes, char *text, size_t size);

/* ---- the place: a URL, or the path of a directory ---- */

#define LDR_URL_MAX 8192

typedef struct ldr_cli_place {
    ldr_io_t *io; /* for looking at it without a node */
    ldr_options_t options;
    char url[LDR_URL_MAX];
    ldr_fsck_look_t look[LDR_DISKS_MAX];
    uint64_t ssd_bytes; /* enough for all that each directory holds */
} ldr_cli_place_t;

/*
 * Takes the first operand apart and looks at its directories. With `make` set
 * they may be missing; otherwise each must be a directory of Larder's. An exit
 * code; the place is to be closed whatever it is.
 */
int ldr_place_open(const ldr_args_t *args, bool make,
                   ldr_cli_place_t **place_p);
/* The first part of that: what is in the directories is not asked. */
int ldr_place_parse(const ldr_args_t *args, ldr_cli_place_t **place_p);
void ldr_place_close(ldr_cli_place_t **place_p);
/* Whether it is the URL of a daemon: unix: or tcp:// */
bool ldr_place_remote(const char *text);

#define LDR_CLI_URL (LDR_UNIX_PATH_MAX + 8)
/* The first operand; without one, the URL of this host's daemon. */
const char *ldr_cli_place(const ldr_args_t *args, char url[LDR_CLI_URL]);

/* ---- who has a directory (owner.c) ---- */

typedef struct ldr_dir_owner {
    int pid;
    char text[96];         /* "larder, process 12" */
    char url[LDR_CLI_URL]; /* of its socket; "": none, or it is not seen */
} ldr_dir_owner_t;

/* False: it cannot be seen from here. */
bool ldr_cli_owner(const char *dir, ldr_dir_owner_t *owner);
/* The directory is in use: who has it, and what to type. A failure. */
int ldr_cli_in_use(const ldr_args_t *args, const char *dir);
/* A daemon's URL was given to what needs a directory: a usage error, which says
 * what to type. */
int ldr_cli_no_dir(const ldr_args_t *args, const char *url);

/* ---- ls ---- */

/* "90s", "5h" */
void ldr_ls_age(uint32_t age_s, char *text, size_t size);
/* Lists what a daemon has. */
int ldr_ls_node(const ldr_args_t *args, const char *url);
/* The same of whoever has the directory open. */
int ldr_ls_in_use(const ldr_args_t *args, const char *dir);

/* larder_open() with messages: a URL that is not understood is a usage error.
 * An exit code. */
int ldr_cli_open(const ldr_args_t *args, const char *url, larder_t **lar_p);
/* LDR_EXIT_OK, or the failure that names a directory that is off, and why. */
int ldr_cli_dirs_on(const ldr_args_t *args, larder_t *lar);

/* A node on the place, and the space that the flags name. */
typedef struct ldr_session {
    ldr_cli_place_t *place;
    larder_t *lar;
    larder_space_t *space; /* only if it was asked for */
} ldr_session_t;

int ldr_session_open(const ldr_args_t *args, bool make, bool with_space,
                     ldr_session_t *session);
/* Gives `code`, or that of a close that failed after all had gone well. */
int ldr_session_close(const ldr_args_t *args, ldr_session_t *session, int code);

/* ---- the commands: each gives an exit code ---- */

int ldr_cmd_put(const ldr_args_t *args);
int ldr_cmd_get(const ldr_args_t *args);
int ldr_cmd_ls(const ldr_args_t *args);
int ldr_cmd_stat(const ldr_args_t *args);
int ldr_cmd_flush(const ldr_args_t *args);
int ldr_cmd_reset(const ldr_args_t *args);
int ldr_cmd_wipe(const ldr_args_t *args);
int ldr_cmd_fsck(const ldr_args_t *args);
int ldr_cmd_options(const ldr_args_t *args);
int ldr_cmd_doctor(const ldr_args_t *args);
int ldr_cmd_top(const ldr_args_t *args);
int ldr_cmd_tier(const ldr_args_t *args);
int ldr_cmd_secret(const ldr_args_t *args);
int ldr_cmd_explain(const ldr_args_t *args);
int ldr_cmd_cluster(const ldr_args_t *args);
/* pause and resume: the command is the verb. */
int ldr_cmd_verb(const ldr_args_t *args);
/* Reads its own command line. */
int ldr_cmd_bench(char **argv);
int ldr_cmd_serve(int argc, char **argv);
int ldr_cmd_plan(int argc, char **argv);
