/* stat: tables for people and for scripts. */
#include <inttypes.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "base/metrics.h"
#include "cli/cli.h"
#include "cli/top.h"

#define NAME(metric) ldr_metric_table[LDR_METRIC_##metric].name
#define ADMIN_ON NAME(admin_on)
#define JSON_BYTES ((size_t)1 << 18) /* more than there can be */

/* A field of one of the public structs. */
typedef struct row {
    const char *name, *text;
    enum { COUNT, BYTES } unit;
    size_t offset;
} row_t;

#define X(place, field, from, unit, text)                                      \
    {#field, text, unit, offsetof(STATS, field)},
#define STATS larder_stats_t
static const row_t states[] = {LDR_STATE_STATS_MAP(X){0}};
static const row_t events[] = {LDR_EVENT_STATS_MAP(X){0}};
#undef STATS
#define STATS larder_disk_stats_t
static const row_t disk_rows[] = {LDR_DISK_STATS_MAP(X){0}};
#undef STATS
#define STATS larder_shared_stats_t
static const row_t shared_rows[] = {LDR_SHARED_STATS_MAP(X){0}};
#undef STATS
#undef X

static uint64_t row_value(const row_t *row, const void *at)
{
    return *(const uint64_t *)(const void *)((const char *)at + row->offset);
}

static void stats_show(const row_t *rows, const void *at, bool zeros)
{
    for (; rows->name != NULL; rows++) {
        uint64_t v = row_value(rows, at);
        char human[32];

        if (rows->text == NULL || (v == 0 && !zeros)) {
            continue;
        }
        snprintf(human, sizeof(human), "%" PRIu64, v);
        if (rows->unit == BYTES) {
            ldr_human_bytes(v, human, sizeof(human));
        }
        printf("%-30s %s\n", rows->text, human);
    }
}

static void figure_put(ldr_json_t *j, const row_t *rows, const void *at)
{
    for (; rows->name != NULL; rows++) {
        ldr_json_number(j, rows->name, row_value(rows, at));
    }
}

static void stat_table(const larder_stats_t *s)
{
    const larder_shared_stats_t *t = &s->shared_tier;

    stats_show(states, s, true);
    if (s->asked_chunks > 0) { /* none found of many is worth a line */
        printf("%-30s %" PRIu64 " of %" PRIu64 " asked for, %.1f %%\n",
               "chunks found", s->found_chunks, s->asked_chunks,
               100 * (double)s->found_chunks / (double)s->asked_chunks);
    }
    stats_show(events, s, false);
    for (uint64_t i = 0; i < s->disks; i++) {
        const larder_disk_stats_t *d = &s->disk[i];

        printf("ssd %s: %s%s%s\n", d->path, d->on ? "on" : "off",
               d->reason[0] != '\0' ? ", " : "", d->reason);
        stats_show(disk_rows, d, true);
    }
    if (s->shared != 0) {
        printf("shared %s: %s%s%s\n", t->url,
               t->writable ? "on"
               : t->on     ? "only read"
                           : "off",
               t->reason[0] != '\0' ? ", " : "", t->reason);
        stats_show(shared_rows, t, true);
    }
}

static void stat_json(ldr_json_t *j, const larder_stats_t *s)
{
    const larder_shared_stats_t *t = &s->shared_tier;

    figure_put(j, states, s);
    figure_put(j, events, s);
    ldr_json_begin(j, "misses", '{');
    for (int i = LARDER_CAUSE_ABSENT; i < LARDER_CAUSE_COUNT; i++) {
        ldr_json_number(j, larder_cause_text((larder_cause_t)i), s->misses[i]);
    }
    ldr_json_end(j, '}');
    ldr_json_begin(j, "disks", '[');
    for (uint64_t i = 0; i < s->disks; i++) {
        ldr_json_begin(j, NULL, '{');
        ldr_json_text(j, "path", s->disk[i].path);
        ldr_json_truth(j, "on", s->disk[i].on != 0);
        ldr_json_text(j, "reason", s->disk[i].reason);
        figure_put(j, disk_rows, &s->disk[i]);
        ldr_json_end(j, '}');
    }
    ldr_json_end(j, ']');
    if (s->shared != 0) {
        ldr_json_begin(j, "shared", '{');
        ldr_json_text(j, "url", t->url);
        ldr_json_truth(j, "on", t->on != 0);
        ldr_json_truth(j, "writable", t->writable != 0);
        ldr_json_text(j, "reason", t->reason);
        figure_put(j, shared_rows, t);
        ldr_json_end(j, '}');
    }
}

static int stat_metrics(const ldr_args_t *args, larder_t *lar)
{
    char *text;
    larder_status_t st = ldr_top_fetch(lar, &text);

    if (st != LARDER_OK) {
        return ldr_cli_status(args, st);
    }
    fputs(text, stdout);
    ldr_free(text);
    return LDR_EXIT_OK;
}

/* Where a daemon's dashboard is, and whether it is there. Nothing: it has none,
 * or shows it to others only. j NULL: for people. */
static void show_admin(const ldr_prom_t *prom, ldr_json_t *j)
{
    char url[LDR_PROM_VALUE] = "";
    bool found = ldr_prom_values(prom, ADMIN_ON, "url", &url, 1) > 0;
    bool on = ldr_prom_sum(prom, ADMIN_ON, LDR_ANYWHERE) > 0;

    if (j != NULL && found) {
        ldr_json_text(j, "admin.url", url);
        ldr_json_truth(j, "admin.on", on);
    } else if (j != NULL) {
        ldr_json_key(j, "admin");
        ldr_text_add(&j->t, "null");
    } else if (found) {
        printf("%-30s %s%s%s\n", "dashboard", on ? "" : "OFF: ", url,
               on ? ""
                  : ": another program has that port (larder serve --admin "
                    "HOST:PORT)");
    }
}

/* The busiest spaces, by what engines call them. */
static void show_spaces(const ldr_prom_t *prom, ldr_json_t *j)
{
    char tenant[LDR_PROM_VALUE], space[LDR_PROM_VALUE], label[LDR_PROM_VALUE];

    for (size_t i = 0; i < prom->count; i++) {
        const ldr_sample_t *one = &prom->samples[i];

        if (strcmp(one->name, NAME(space_chunks)) != 0 ||
            !ldr_prom_label(one, "tenant", tenant) ||
            !ldr_prom_label(one, "space", space)) {
            continue;
        }
        ldr_prom_text(prom, NAME(space_info),
                      LDR_WHERE("tenant", tenant, "space", space), "label",
                      label);
        if (j != NULL) {
            ldr_json_begin(j, NULL, '{');
            ldr_json_text(j, "space", space);
            ldr_json_text(j, "tenant", tenant);
            ldr_json_text(j, "label", label);
            ldr_json_number(j, "chunks", (uint64_t)one->value);
            ldr_json_end(j, '}');
        } else {
            printf("space %s %s%s%s: %.0f chunk%s\n", space, tenant,
                   label[0] != '\0' ? ", " : "", label, one->value,
                   one->value == 1 ? "" : "s");
        }
    }
}

static int stat_show(const ldr_args_t *args, larder_t *lar,
                     const larder_stats_t *stats)
{
    char *json = ldr_alloc(JSON_BYTES), *text;
    ldr_json_t j = {.t = ldr_text(json, json != NULL ? JSON_BYTES : 0)};
    ldr_prom_t prom;

    /* A daemon that does not give metrics has none. */
    if (ldr_top_fetch(lar, &text) != LARDER_OK ||
        !ldr_prom_parse(text, &prom)) {
        prom = (ldr_prom_t){0};
    }
    if (!ldr_args_has(args, LDR_FLAG_JSON)) {
        stat_table(stats);
        show_spaces(&prom, NULL);
        show_admin(&prom, NULL);
    } else if (json != NULL) {
        ldr_json_begin(&j, NULL, '{');
        stat_json(&j, stats);
        ldr_json_begin(&j, "spaces", '[');
        show_spaces(&prom, &j);
        ldr_json_end(&j, ']');
        show_admin(&prom, &j);
        ldr_json_end(&j, '}');
        LDR_ASSERT(j.t.length < JSON_BYTES);
        puts(json);
    }
    ldr_prom_free(&prom);
    ldr_free(json);
    return LDR_EXIT_OK;
}

static int stat_run(const ldr_args_t *args, larder_t *lar)
{
    larder_stats_t stats = {.struct_bytes = sizeof(stats)};

    if (ldr_args_has(args, LDR_FLAG_PROMETHEUS)) {
        return stat_metrics(args, lar);
    }
    larder_status_t st = larder_stats(lar, &stats);
    if (st != LARDER_OK) {
        return ldr_cli_status(args, st);
    }
    return stat_show(args, lar, &stats);
}

/* A table of docs/reference/metrics.md. */
static void figures_markdown(int first, int end)
{
    printf("| metric | type | labels | meaning |\n|---|---|---|---|\n");
    for (int i = first; i < end; i++) {
        const ldr_metric_info_t *m = &ldr_metric_table[i];

        printf("| `%s` | %s | ", m->name, ldr_metric_type_text(m->type));
        for (const char *c = m->labels; *c != '\0';) {
            size_t n = strcspn(c, ",");

            printf("`%.*s`%s", (int)n, c, c[n] == ',' ? ", " : " ");
            c += n + (c[n] == ',');
        }
        printf("| %s |\n", m->help);
    }
}

int ldr_cmd_stat(const ldr_args_t *args)
{
    ldr_session_t session;

    if (ldr_args_has(args, LDR_FLAG_PROMETHEUS) +
            ldr_args_has(args, LDR_FLAG_JSON) +
            ldr_args_has(args, LDR_FLAG_MARKDOWN) >
        1) {
        return ldr_cli_usage(args, "give --json or --prometheus or --markdown");
    }
    if (ldr_args_has(args, LDR_FLAG_MARKDOWN)) {
        figures_markdown(0, LDR_METRIC_DAEMON);
        printf("\n");
        figures_markdown(LDR_METRIC_DAEMON, LDR_METRIC_COUNT);
        return LDR_EXIT_OK;
    }
    int code = ldr_session_open(args, false, false, &session);
    if (code == LDR_EXIT_OK) {
        code = stat_run(args, session.lar);
    }
    return ldr_session_close(args, &session, code);
}
