/*
 * The configuration of `larder serve`: defaults, then the file, then the
 * environment, then flags; each value remembers where it came from.
 *
 * The file has lines `name = value`, `#` comments, `dir = DIR` for each
 * directory, and then sections `[tenant NAME]` with the keys of the table
 * below. docs/reference/options.md has the manual.
 */
#pragma once

#include <stdio.h>

#include "base/options.h"

#define LDR_SOURCE_MAX 280
#define LDR_RESTART_MAX 1024
#define LDR_CONFIG_TENANTS_MAX 1000u /* as many as a directory remembers */

/* X(name, kind, min, max, text): the keys of a [tenant NAME] section. */
#define LDR_TENANT_MAP(X)                                                      \
    X(token_file, TEXT, 0, 255,                                                \
      "file with the tenant's token, or two, one a line, while they change")   \
    X(secret_file, TEXT, 0, 255,                                               \
      "file with the tenant's secret: clients with another one are refused")   \
    X(secret_check, TEXT, 0, 255,                                              \
      "the same without the secret: the 64 digits that `larder secret` "       \
      "prints")                                                                \
    X(cert, TEXT, 0, 255, "common name of the tenant's client certificates")   \
    X(uids, TEXT, 0, 255,                                                      \
      "uids that may be this tenant over the Unix socket: numbers with "       \
      "commas, or any")                                                        \
    X(dram, SIZE, 0, (uint64_t)1 << 44, "bytes of DRAM; 0: no limit")          \
    X(ssd, SIZE, 0, (uint64_t)1 << 46, "bytes of SSD; 0: no limit")            \
    X(rate, SIZE, 0, (uint64_t)1 << 44, "bytes a second; 0: no limit")         \
    X(connections, UINT, 0, 65536, "connections at once; 0: no limit")

typedef struct ldr_tenant_config {
    char name[64];
#define X(name, kind, min, max, text) LDR_FIELD_##kind(name)
    LDR_TENANT_MAP(X)
#undef X
} ldr_tenant_config_t;

typedef struct ldr_config {
    ldr_options_t options;
    char source[LDR_OPTION_COUNT][LDR_SOURCE_MAX]; /* "--dram", "FILE:12"... */
    char dir_source[LDR_SOURCE_MAX];
    ldr_tenant_config_t *tenants; /* "default" is always the first */
    unsigned tenant_count;
    size_t tenant_capacity;
    char file[LDR_PATH_MAX]; /* empty: none */

    /* Flags that are not options. */
    bool help;     /* only the help text was asked for */
    bool takeover; /* take over from the daemon that runs */

    /* After a reload: the options that changed and need a restart, with
     * spaces between; empty: none. */
    char restart[LDR_RESTART_MAX];

    /* The flags as they were given, for ldr_config_reload(). */
    char **argv;
    int argc;
} ldr_config_t;

/* argv: the flags alone, without the command. Errors name the option, the
 * value, its range, and where it came from. LARDER_E_NO_MEMORY as ever. */
larder_status_t ldr_config_load(int argc, char **argv, ldr_config_t **config_p);

/*
 * Reads the file again, with the same flags and environment. What changed and
 * can only change by a restart keeps the old value in *new_p, whose `restart`
 * lists those names. On failure the old one is to be used on.
 */
larder_status_t ldr_config_reload(const ldr_config_t *old,
                                  ldr_config_t **new_p);

void ldr_config_free(ldr_config_t *c);

/* One JSON object: every option with value, default and source, and the
 * tenants; never a token. Gives the length it has, as snprintf does. */
size_t ldr_config_json(const ldr_config_t *c, char *text, size_t size);

/* The tenant of this name, or NULL. */
const ldr_tenant_config_t *ldr_config_tenant(const ldr_config_t *c,
                                             const char *name);

/* Whether nobody has set this option. */
bool ldr_config_is_default(const ldr_config_t *c, unsigned option);

/* The path of the Unix socket: as set, or the default. False: none. */
bool ldr_config_socket(const ldr_config_t *c, char path[LDR_UNIX_PATH_MAX]);

/* Where the socket is when nobody says: in $RUNTIME_DIRECTORY, else in
 * $XDG_RUNTIME_DIR, else /tmp/larder-UID/larder.sock. */
void ldr_socket_default(char path[LDR_UNIX_PATH_MAX]);

/* `larder serve --help`: fits a screen. */
void ldr_config_help(FILE *out);
