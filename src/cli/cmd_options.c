/* options: the table, for people, for scripts and for the manual. */
#include <inttypes.h>

#include "base/config.h"
#include "cli/cli.h"

#define PLACE_COUNT 5

static const struct {
    unsigned bit;
    const char *name;
} places[PLACE_COUNT] = {
    {LDR_WHERE_EMBED, "embed"},
    {LDR_WHERE_UNIX, "unix"},
    {LDR_WHERE_TCP, "tcp"},
    {LDR_WHERE_SERVE, "serve"},
    {LDR_WHERE_CONNECTOR, "connector"},
};

/* The keys of a tenant's section, as rows like those of options. */
static const struct {
    const char *name, *kind;
    uint64_t min, max;
    const char *text;
} keys[] = {
#define X(name, kind, min, max, text) {#name, #kind, min, max, text},
    LDR_TENANT_MAP(X)
#undef X
};
#define KEY_COUNT (sizeof(keys) / sizeof(keys[0]))

static void bound(char kind, uint64_t value, char *text, size_t size)
{
    if (kind == 'S') {
        ldr_size_text(value, text, size);
    } else {
        snprintf(text, size, "%" PRIu64, value);
    }
}

/* "2M...16T"; words and texts have their range in what is said of them. */
static void range(char kind, uint64_t min, uint64_t max, const char *dots,
                  char *text, size_t size)
{
    char low[32], high[32];

    text[0] = '\0';
    if (kind == 'S' || kind == 'U') {
        bound(kind, min, low, sizeof(low));
        bound(kind, max, high, sizeof(high));
        snprintf(text, size, "%s%s%s", low, dots, high);
    }
}

/* "embed, serve" or "embed unix tcp" */
static void where_text(unsigned where, const char *gap, char *text, size_t size)
{
    size_t used = 0;

    text[0] = '\0';
    for (size_t i = 0; i < PLACE_COUNT; i++) {
        if ((where & places[i].bit) != 0 && used < size) {
            used += (size_t)snprintf(text + used, size - used, "%s%s",
                                     used > 0 ? gap : "", places[i].name);
        }
    }
}

/* ---- for people ---- */

static void table_options(unsigned wanted)
{
    char span[72], where[64];

    printf("%-14s %-14s %-14s %-16s %s\n", "OPTION", "DEFAULT", "RANGE",
           "WHERE", "");
    for (size_t i = 0; i < ldr_option_count; i++) {
        const ldr_option_info_t *o = &ldr_option_table[i];

        if ((o->where & wanted) != 0) {
            range(o->kind[0], o->min, o->max, "...", span, sizeof(span));
            where_text(o->where, " ", where, sizeof(where));
            printf("%-14s %-14s %-14s %-16s %s%s\n", o->name, o->value, span,
                   where, o->text,
                   (o->where & LDR_WHERE_RELOAD) != 0 ? " (reloads)" : "");
        }
    }
}

static void table_keys(void)
{
    char span[72];

    printf("\nand in the file, for each tenant, in a section [tenant NAME]:\n");
    for (size_t i = 0; i < KEY_COUNT; i++) {
        range(keys[i].kind[0], keys[i].min, keys[i].max, "...", span,
              sizeof(span));
        printf("  %-12s %-14s %s\n", keys[i].name, span, keys[i].text);
    }
}

/* ---- for scripts ---- */

static void json_option(const ldr_option_info_t *o, const char *const *words)
{
    bool more = false;

    printf("{\"name\":\"%s\",\"kind\":\"%s\",\"default\":\"%s\","
           "\"min\":%" PRIu64 ",\"max\":%" PRIu64 ",\"where\":[",
           o->name, o->kind, o->value, o->min, o->max);
    for (size_t i = 0; i < PLACE_COUNT; i++) {
        if ((o->where & places[i].bit) != 0) {
            printf("%s\"%s\"", more ? "," : "", places[i].name);
            more = true;
        }
    }
    printf("],\"reload\":%s,\"words\":[",
           (o->where & LDR_WHERE_RELOAD) != 0 ? "true" : "false");
    for (size_t i = 0; words != NULL && words[i] != NULL; i++) {
        printf("%s\"%s\"", i > 0 ? "," : "", words[i]);
    }
    printf("],\"text\":");
    ldr_json_string(stdout, o->text);
    printf("}\n");
}

/* ---- for the manual ---- */

static void options_markdown(void)
{
    char span[72], where[64];

    printf("| option | default | range | where | what |\n"
           "|---|---|---|---|---|\n");
    for (size_t i = 0; i < ldr_option_count; i++) {
        const ldr_option_info_t *o = &ldr_option_table[i];

        range(o->kind[0], o->min, o->max, " … ", span, sizeof(span));
        where_text(o->where, ", ", where, sizeof(where));
        printf("| `%s` | %s | %s | %s%s | %s |\n", o->name, o->value, span,
               where, (o->where & LDR_WHERE_RELOAD) != 0 ? " ↻" : "", o->text);
    }
    printf("\nThe keys of a section `[tenant NAME]`:\n\n"
           "| key | range | what |\n|---|---|---|\n");
    for (size_t i = 0; i < KEY_COUNT; i++) {
        range(keys[i].kind[0], keys[i].min, keys[i].max, " … ", span,
              sizeof(span));
        printf("| `%s =` | %s | %s |\n", keys[i].name, span, keys[i].text);
    }
}

int ldr_cmd_options(const ldr_args_t *args)
{
    bool serve = ldr_args_has(args, LDR_FLAG_SERVE);
    unsigned wanted = serve ? (unsigned)LDR_WHERE_SERVE : ~0u;

    if (ldr_args_has(args, LDR_FLAG_MARKDOWN)) {
        if (serve || ldr_args_has(args, LDR_FLAG_JSON)) {
            return ldr_cli_usage(args, "--markdown stands alone");
        }
        options_markdown();
    } else if (ldr_args_has(args, LDR_FLAG_JSON)) {
        for (size_t i = 0; i < ldr_option_count; i++) {
            if ((ldr_option_table[i].where & wanted) != 0) {
                json_option(&ldr_option_table[i], ldr_option_words(i));
            }
        }
    } else {
        table_options(wanted);
        if (serve) {
            table_keys();
        }
    }
    return LDR_EXIT_OK;
}
