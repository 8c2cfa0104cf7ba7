/* stat: tables for people and for scripts. */
#include <inttypes.h>
#include <string.h>

#include "base/mem.h"
#include "cli/cli.h"
#include "cli/top.h"

#define ADMIN_ON "larder_admin_on"

typedef enum unit { COUNT, BYTES } unit_t;

/* X(field, unit, text). First what a node has, then what it has done since it
 * was opened. */
#define STATE_MAP(X)                                                           \
    X(entries, COUNT, "chunks known")                                          \
    X(entry_bytes, BYTES, "memory of the index")                               \
    X(dram_bytes, BYTES, "dram tier")                                          \
    X(dram_resident_bytes, BYTES, "  resident")                                \
    X(dram_used_bytes, BYTES, "  used")                                        \
    X(dram_leased_chunks, COUNT, "  chunks leased")                            \
    X(pinned_bytes, BYTES, "pinned")                                           \
    X(io_uring, COUNT, "io_uring in use")

#define EVENT_MAP(X)                                                           \
    X(saves_stored, COUNT, "saves: stored")                                    \
    X(saves_present, COUNT, "  already present")                               \
    X(saves_mismatch, COUNT, "  present with other bytes")                     \
    X(saves_full, COUNT, "  refused, everything leased")                       \
    X(saves_canceled, COUNT, "  canceled")                                     \
    X(saves_failed, COUNT, "  failed")                                         \
    X(saves_stale, COUNT, "  of a space reset meanwhile")                      \
    X(saves_dropped_evicted, COUNT, "  dropped, evicted too soon")             \
    X(saves_dropped_size, COUNT, "  dropped, larger than a segment")           \
    X(saves_dropped_io, COUNT, "  dropped, write failed")                      \
    X(saved_bytes, BYTES, "  bytes")                                           \
    X(loads_dram, COUNT, "loads: from dram")                                   \
    X(loads_ssd, COUNT, "  from ssd")                                          \
    X(loads_shared, COUNT, "  from the shared tier")                           \
    X(loaded_bytes, BYTES, "  bytes")                                          \
    X(evicted_chunks, COUNT, "chunks evicted")                                 \
    X(evicted_bytes, BYTES, "  bytes")                                         \
    X(removes, COUNT, "shards removed")                                        \
    X(resets, COUNT, "spaces reset")                                           \
    X(offers_written, COUNT, "shared tier: written")                           \
    X(offers_present, COUNT, "  already there")                                \
    X(offers_evicted, COUNT, "  evicted too soon")                             \
    X(offers_failed, COUNT, "  write failed")

#define DISK_MAP(X)                                                            \
    X(bytes_max, BYTES, "  may use")                                           \
    X(bytes_used, BYTES, "  uses")                                             \
    X(segments, COUNT, "  segments")                                           \
    X(segments_lost, COUNT, "  segments lost")                                 \
    X(written_bytes, BYTES, "  written")                                       \
    X(carried_bytes, BYTES, "  carried")                                       \
    X(read_bytes, BYTES, "  read")                                             \
    X(write_errors, COUNT, "  write errors")                                   \
    X(read_errors, COUNT, "  read errors")

#define SHARED_MAP(X)                                                          \
    X(objects, COUNT, "  objects")                                             \
    X(shards, COUNT, "  shards")                                               \
    X(bytes, BYTES, "  holds")                                                 \
    X(dead_bytes, BYTES, "  of no use")                                        \
    X(map_bytes, BYTES, "  memory to know that")                               \
    X(waiting_shards, COUNT, "  shards that wait for it")                      \
    X(written_bytes, BYTES, "  written")                                       \
    X(read_bytes, BYTES, "  read")                                             \
    X(write_errors, COUNT, "  write errors")                                   \
    X(read_errors, COUNT, "  read errors")                                     \
    X(gone, COUNT, "  reads of what was gone")                                 \
    X(corrupt, COUNT, "  reads of what was not right")                         \
    X(cleaner, COUNT, "  cleaned up by this node")                             \
    X(cleaned_objects, COUNT, "  objects removed")                             \
    X(cleaned_bytes, BYTES, "  bytes of them")

static void show(const char *text, unit_t unit, uint64_t value)
{
    char human[32];

    if (unit == BYTES) {
        ldr_human_bytes(value, human, sizeof(human));
    } else {
        snprintf(human, sizeof(human), "%" PRIu64, value);
    }
    printf("%-30s %s\n", text, human);
}

static void show_nonzero(const char *text, unit_t unit, uint64_t value)
{
    if (value != 0) {
        show(text, unit, value);
    }
}

static void stat_table(const larder_stats_t *s)
{
#define X(field, unit, text) show(text, unit, s->field);
    STATE_MAP(X)
#undef X
    if (s->asked_chunks > 0) { /* none found of many is worth a line */
        printf("%-30s %" PRIu64 " of %" PRIu64 " asked for, %.1f %%\n",
               "chunks found", s->found_chunks, s->asked_chunks,
               100 * (double)s->found_chunks / (double)s->asked_chunks);
    }
#define X(field, unit, text) show_nonzero(text, unit, s->field);
    EVENT_MAP(X)
#undef X
    for (uint64_t i = 0; i < s->disks; i++) {
        const larder_disk_stats_t *d = &s->disk[i];

        printf("ssd %s: %s%s%s\n", d->path, d->on ? "on" : "off",
               d->reason[0] != '\0' ? ", " : "", d->reason);
#define X(field, unit, text) show(text, unit, d->field);
        DISK_MAP(X)
#undef X
    }
    if (s->shared != 0) {
        const larder_shared_stats_t *t = &s->shared_tier;

        printf("shared %s: %s%s%s\n", t->url,
               t->writable ? "on"
               : t->on     ? "only read"
                           : "off",
               t->reason[0] != '\0' ? ", " : "", t->reason);
#define X(field, unit, text) show(text, unit, t->field);
        SHARED_MAP(X)
#undef X
    }
}

static void stat_json(const larder_stats_t *s)
{
    const char *comma = "";

    printf("{");
#define X(field, unit, text)                                                   \
    printf("%s\"" #field "\":%" PRIu64, comma, s->field);                      \
    comma = ",";
    STATE_MAP(X)
    EVENT_MAP(X)
#undef X
    printf(",\"asked_chunks\":%" PRIu64 ",\"found_chunks\":%" PRIu64,
           s->asked_chunks, s->found_chunks);
    printf(",\"misses\":{");
    comma = "";
    for (int i = LARDER_CAUSE_ABSENT; i < LARDER_CAUSE_COUNT; i++) {
        printf("%s\"%s\":%" PRIu64, comma, larder_cause_text((larder_cause_t)i),
               s->misses[i]);
        comma = ",";
    }
    printf("},\"disks\":[");
    for (uint64_t i = 0; i < s->disks; i++) {
        const larder_disk_stats_t *d = &s->disk[i];

        printf("%s{\"path\":", i > 0 ? "," : "");
        ldr_json_string(stdout, d->path);
        printf(",\"on\":%s,\"reason\":", d->on ? "true" : "false");
        ldr_json_string(stdout, d->reason);
#define X(field, unit, text) printf(",\"" #field "\":%" PRIu64, d->field);
        DISK_MAP(X)
#undef X
        printf("}");
    }
    printf("]");
    if (s->shared != 0) {
        const larder_shared_stats_t *t = &s->shared_tier;

        printf(",\"shared\":{\"url\":");
        ldr_json_string(stdout, t->url);
        printf(",\"on\":%s,\"writable\":%s,\"reason\":",
               t->on ? "true" : "false", t->writable ? "true" : "false");
        ldr_json_string(stdout, t->reason);
#define X(field, unit, text) printf(",\"" #field "\":%" PRIu64, t->field);
        SHARED_MAP(X)
#undef X
        printf("}");
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
 * or shows it to others only. */
static void show_admin(const ldr_prom_t *prom, bool json)
{
    char url[LDR_PROM_VALUE] = "";
    bool found = ldr_prom_values(prom, ADMIN_ON, "url",
                                 (char(*)[LDR_PROM_VALUE])url, 1) > 0;
    bool on = ldr_prom_sum(prom, ADMIN_ON, LDR_ANYWHERE) > 0;

    if (json) {
        printf(",\"admin\":");
        if (found) {
            printf("{\"url\":");
            ldr_json_string(stdout, url);
            printf(",\"on\":%s}", on ? "true" : "false");
        } else {
            printf("null");
        }
    } else if (found) {
        printf("%-30s %s%s%s\n", "dashboard", on ? "" : "OFF: ", url,
               on ? ""
                  : ": another program has that port (larder serve --admin "
                    "HOST:PORT)");
    }
}

/* The busiest spaces, by what engines call them. */
static void show_spaces(const ldr_prom_t *prom, bool json)
{
    char tenant[LDR_PROM_VALUE], space[LDR_PROM_VALUE], label[LDR_PROM_VALUE];
    const char *comma = "";

    if (json) {
        printf(",\"spaces\":[");
    }
    for (size_t i = 0; i < prom->count; i++) {
        const ldr_sample_t *one = &prom->samples[i];

        if (strcmp(one->name, "larder_space_chunks") != 0 ||
            !ldr_prom_label(one, "tenant", tenant) ||
            !ldr_prom_label(one, "space", space)) {
            continue;
        }
        ldr_prom_text(prom, "larder_space_info",
                      LDR_WHERE("tenant", tenant, "space", space), "label",
                      label);
        if (json) {
            printf("%s{\"space\":\"%s\",\"tenant\":", comma, space);
            ldr_json_string(stdout, tenant);
            printf(",\"label\":");
            ldr_json_string(stdout, label);
            printf(",\"chunks\":%.0f}", one->value);
            comma = ",";
        } else {
            printf("space %s %s%s%s: %.0f chunks\n", space, tenant,
                   label[0] != '\0' ? ", " : "", label, one->value);
        }
    }
    if (json) {
        printf("]");
    }
}

/* What only the metrics have; a daemon that does not give them has none. */
static void show_metrics(larder_t *lar, bool json)
{
    ldr_prom_t prom = {0};
    char *text;

    if (ldr_top_fetch(lar, &text) != LARDER_OK ||
        !ldr_prom_parse(text, &prom)) {
        prom = (ldr_prom_t){0};
    }
    show_spaces(&prom, json);
    show_admin(&prom, json);
    ldr_prom_free(&prom);
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
    if (ldr_args_has(args, LDR_FLAG_JSON)) {
        stat_json(&stats);
        show_metrics(lar, true);
        printf("}\n");
    } else {
        stat_table(&stats);
        show_metrics(lar, false);
    }
    return LDR_EXIT_OK;
}

int ldr_cmd_stat(const ldr_args_t *args)
{
    ldr_session_t session;

    if (ldr_args_has(args, LDR_FLAG_PROMETHEUS) &&
        ldr_args_has(args, LDR_FLAG_JSON)) {
        return ldr_cli_usage(args, "give --json or --prometheus");
    }
    int code = ldr_session_open(args, false, false, &session);
    if (code == LDR_EXIT_OK) {
        code = stat_run(args, session.lar);
    }
    return ldr_session_close(args, &session, code);
}
