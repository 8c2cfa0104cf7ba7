/*
 * Draws the screen of `larder top` from two answers of a node, the last one and
 * the one before. It keeps nothing; one thread.
 */
#include "cli/top.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/metrics.h"

#define VALUES_MAX 64u
#define SPACES_MAX 10u
#define SLOW_MAX 8u
#define NAME(metric) ldr_metric_table[LDR_METRIC_##metric].name

/* ---- lines ---- */

static void screen_line(ldr_top_screen_t *s, bool head, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void screen_line(ldr_top_screen_t *s, bool head, const char *format, ...)
{
    va_list args;

    if (s->count == LDR_TOP_LINES) {
        return;
    }
    ldr_top_line_t *l = &s->lines[s->count++];
    l->head = head;
    va_start(args, format);
    vsnprintf(l->text, sizeof(l->text), format, args);
    va_end(args);
    /* Names may hold anything: nothing of it may reach the terminal. */
    for (char *c = l->text; *c != '\0'; c++) {
        if (*c < ' ' || *c > '~') {
            *c = '?';
        }
    }
    size_t columns = (size_t)s->columns;
    if (strlen(l->text) > columns && columns < sizeof(l->text)) {
        l->text[columns] = '\0';
    }
}

/* ---- numbers, each in a few columns ---- */

typedef struct figure {
    char text[16];
} figure_t;

static figure_t scaled(double x, double step, const char *const *units,
                       unsigned count)
{
    figure_t f;
    unsigned i = 0;

    while (i + 1 < count && x >= step * 0.9995) {
        x /= step;
        i++;
    }
    snprintf(f.text, sizeof(f.text), "%.*f%s",
             x == 0 || x >= 99.95 ? 0
             : x >= 9.995         ? 1
                                  : 2,
             x, units[i]);
    return f;
}

static figure_t bytes(double x)
{
    static const char *const units[] = {"B", "K", "M", "G", "T", "P"};

    return scaled(x > 0 ? x : 0, 1024, units, 6);
}

static figure_t count(double x)
{
    static const char *const units[] = {"", "k", "M", "G"};
    figure_t f = scaled(x > 0 ? x : 0, 1000, units, 4);

    if (x > 0 && x < 1000 && x == (double)(int)x) {
        snprintf(f.text, sizeof(f.text), "%d", (int)x);
    }
    return f;
}

static figure_t seconds(double x)
{
    static const char *const units[] = {"us", "ms", "s"};
    figure_t none = {"-"};

    return x > 0 ? scaled(x * 1e6, 1000, units, 3) : none;
}

static figure_t percent(double part, double all)
{
    figure_t f = {"-"};

    if (all > 0) {
        snprintf(f.text, sizeof(f.text), "%.1f%%", 100 * part / all);
    }
    return f;
}

static void bar(double part, double all, char text[24])
{
    int full = all > 0 ? (int)(20 * part / all + 0.5) : 0;

    full = full < 0 ? 0 : full > 20 ? 20 : full;
    memset(text, '#', (size_t)full);
    memset(text + full, '.', (size_t)(20 - full));
    text[20] = '\0';
}

#define BYTES(x) bytes(x).text
#define COUNT(x) count(x).text
#define SECONDS(x) seconds(x).text
#define PERCENT(part, all) percent(part, all).text

/* ---- what is shown ---- */

/* How much it grew, a second. */
static double rate(const ldr_top_t *t, const char *name,
                   const char *const *where)
{
    double now = ldr_prom_sum(&t->now, name, where);
    double before = ldr_prom_sum(&t->before, name, where);

    /* Less than before: another daemon, which began again. */
    return t->s > 0 && now >= before ? (now - before) / t->s : 0;
}

/* Of the series with these labels and values; NULL: of all. */
#define RATE(metric, ...) rate(t, NAME(metric), LDR_WHERE(__VA_ARGS__))
#define LEVEL(metric, ...)                                                     \
    ldr_prom_sum(&t->now, NAME(metric), LDR_WHERE(__VA_ARGS__))

static void put_title(const ldr_top_t *t, ldr_top_screen_t *s)
{
    char wall[16] = "", version[LDR_PROM_VALUE] = "";
    const char *mode = "on";
    time_t now = time(NULL);
    struct tm tm;
    double start = LEVEL(start_time_seconds, NULL);

    if (localtime_r(&now, &tm) != NULL) {
        strftime(wall, sizeof(wall), "%H:%M:%S", &tm);
    }
    ldr_prom_values(&t->now, NAME(build_info), "version", &version, 1);
    if (LEVEL(mode, "mode", "paused") > 0) {
        mode = "PAUSED";
    }
    screen_line(s, true, "larder %s  %s", version, t->url);
    if (t->last != LARDER_OK) {
        screen_line(s, true, "%s  GONE: %s; what is below is from before", wall,
                    larder_status_text(t->last));
    } else if (start > 0) {
        uint64_t up = (uint64_t)((double)now > start ? (double)now - start : 0);

        screen_line(s, false,
                    "%s  mode %s  up %" PRIu64 " d %02" PRIu64 ":%02" PRIu64,
                    wall, mode, up / 86400, up / 3600 % 24, up / 60 % 60);
    } else {
        screen_line(s, false, "%s  mode %s", wall, mode);
    }
}

/* What is not there when it should be. */
static void put_admin(const ldr_top_t *t, ldr_top_screen_t *s)
{
    char url[LDR_PROM_VALUE] = "";

    if (ldr_prom_values(&t->now, NAME(admin_on), "url", &url, 1) > 0 &&
        LEVEL(admin_on, NULL) == 0) {
        screen_line(s, true, "NO DASHBOARD: another program has the port of %s",
                    url);
    }
}

static void put_glance(const ldr_top_t *t, ldr_top_screen_t *s)
{
    static char tiers[VALUES_MAX][LDR_PROM_VALUE];
    size_t n = ldr_prom_values(&t->now, NAME(loads_total), "tier", tiers,
                               LARDER_TIERS_MAX);
    char from[LARDER_TIERS_MAX * 24] = "";
    double misses = RATE(misses_total, NULL);
    double found = RATE(asked_chunks_total, "outcome", "found");
    double asked = RATE(asked_chunks_total, NULL);
    double all = LEVEL(asked_chunks_total, NULL);
    double hits = RATE(loads_total, NULL), loads = hits + misses;

    screen_line(s, true,
                "hit rate %7s of %7s chunks/s asked for;  %7s since start",
                PERCENT(found, asked), COUNT(asked),
                PERCENT(LEVEL(asked_chunks_total, "outcome", "found"), all));
    /* A tier that gave nothing yet takes no room. */
    for (size_t i = 0; i < n; i++) {
        size_t used = strlen(from);

        if (LEVEL(loads_total, "tier", tiers[i]) > 0) {
            snprintf(from + used, sizeof(from) - used, "  %.10s %s", tiers[i],
                     PERCENT(RATE(loads_total, "tier", tiers[i]), loads));
        }
    }
    screen_line(s, false, "loads   %7s/s  loaded %s%s%s", COUNT(loads),
                PERCENT(hits, loads), from[0] != '\0' ? ":" : "", from);
    screen_line(
        s, false, "loading  %6s/s  ssd %6s/s   saving %6s/s  to disks %6s/s",
        BYTES(RATE(moved_bytes_total, "direction", "load")),
        BYTES(RATE(moved_bytes_total, "direction", "load", "tier", "ssd")),
        BYTES(RATE(moved_bytes_total, "direction", "save")),
        BYTES(RATE(disk_written_bytes_total, NULL) +
              RATE(disk_carried_bytes_total, NULL)));
}

static void put_levels(const ldr_top_t *t, ldr_top_screen_t *s)
{
    double dram = LEVEL(dram_bytes, NULL);
    double used = LEVEL(dram_used_bytes, NULL);
    double disk = LEVEL(disk_max_bytes, NULL);
    double disk_used = LEVEL(disk_used_bytes, NULL);
    char left[24], right[24], shown[LDR_PROM_VALUE];

    bar(used, dram, left);
    bar(disk_used, disk, right);
    screen_line(s, false, "dram [%s] %s of %s", left, BYTES(used), BYTES(dram));
    if (disk > 0) {
        screen_line(s, false, "ssd  [%s] %s of %s", right, BYTES(disk_used),
                    BYTES(disk));
    }
    if (ldr_prom_values(&t->now, NAME(sessions), "transport", &shown, 1) == 0) {
        screen_line(s, false, "held %s  to be written %s  reads waiting %s",
                    COUNT(LEVEL(held_chunks, NULL)),
                    COUNT(LEVEL(dirty_shards, NULL)),
                    COUNT(LEVEL(reads_waiting, NULL)));
        return;
    }
    screen_line(
        s, false,
        "sessions %s  leases %s  reserved %s  quarantined %s  jobs %s  to be "
        "written %s",
        COUNT(LEVEL(sessions, NULL)), COUNT(LEVEL(leases, NULL)),
        COUNT(LEVEL(reservations, NULL)),
        COUNT(LEVEL(quarantined_leases, NULL)), COUNT(LEVEL(jobs_queued, NULL)),
        COUNT(LEVEL(dirty_shards, NULL)));
}

/* One row for each operation that happened. */
static void put_ops(const ldr_top_t *t, ldr_top_screen_t *s)
{
    static char ops[VALUES_MAX][LDR_PROM_VALUE];
    size_t n =
        ldr_prom_values(&t->now, NAME(requests_total), "op", ops, VALUES_MAX);
    bool head = false;

    for (size_t i = 0; i < n; i++) {
        const char *const *where = LDR_WHERE("op", ops[i]);
        ldr_buckets_t b;

        ldr_prom_buckets(&t->now, &t->before, NAME(request_seconds), where, &b);
        if (ldr_buckets_count(&b) <= 0) {
            continue;
        }
        if (!head) {
            screen_line(s, true, "%-12s %9s %8s %8s %8s %8s %8s", "OPERATION",
                        "RATE", "P50", "P90", "P99", "P99.9", "FAILED");
            head = true;
        }
        double failed = RATE(requests_total, "op", ops[i]) -
                        RATE(requests_total, "op", ops[i], "status", "ok") -
                        RATE(requests_total, "op", ops[i], "status", "miss");
        screen_line(s, false, "%-12.12s %7s/s %8s %8s %8s %8s %6s/s", ops[i],
                    COUNT(t->s > 0 ? ldr_buckets_count(&b) / t->s : 0),
                    SECONDS(ldr_buckets_quantile(&b, 0.5)),
                    SECONDS(ldr_buckets_quantile(&b, 0.9)),
                    SECONDS(ldr_buckets_quantile(&b, 0.99)),
                    SECONDS(ldr_buckets_quantile(&b, 0.999)), COUNT(failed));
    }
}

static void put_tenants(const ldr_top_t *t, ldr_top_screen_t *s)
{
    static char names[VALUES_MAX][LDR_PROM_VALUE];
    size_t n = ldr_prom_values(&t->now, NAME(loads_total), "tenant", names,
                               VALUES_MAX);

    if (n > 0) {
        screen_line(s, true, "%-16s %7s %8s %8s %8s %9s %9s", "TENANT", "HITS",
                    "DRAM", "LIMIT", "SSD", "LOADING", "EVICTING");
    }
    for (size_t i = 0; i < n; i++) {
        double found =
            RATE(asked_chunks_total, "tenant", names[i], "outcome", "found");
        double max = LEVEL(tenant_dram_max_bytes, "tenant", names[i]);

        screen_line(
            s, false, "%-16.16s %7s %8s %8s %8s %7s/s %7s/s", names[i],
            PERCENT(found, RATE(asked_chunks_total, "tenant", names[i])),
            BYTES(LEVEL(tenant_dram_bytes, "tenant", names[i])),
            max > 0 ? BYTES(max) : "-",
            BYTES(LEVEL(tenant_ssd_bytes, "tenant", names[i])),
            BYTES(RATE(moved_bytes_total, "tenant", names[i], "direction",
                       "load")),
            BYTES(RATE(evicted_bytes_total, "tenant", names[i])));
    }
}

/* What prefill engines promised, and what is held for those who decode. */
static void put_handoffs(const ldr_top_t *t, ldr_top_screen_t *s)
{
    if (LEVEL(handoffs_total, NULL) <= 0) {
        return;
    }
    screen_line(s, true, "%-9s %9s %9s %9s %9s %9s %9s", "HAND-OFFS",
                "PROMISED", "EXPIRED", "CHUNKS", "FAILED", "NOT HELD", "HELD");
    screen_line(s, false, "%-9s %7s/s %9s %7s/s %9s %9s %9s", "",
                COUNT(RATE(handoffs_total, "outcome", "promised")),
                COUNT(LEVEL(handoffs_total, "outcome", "expired")),
                COUNT(RATE(handoff_chunks_total, "outcome", "kept")),
                COUNT(LEVEL(handoff_chunks_total, "outcome", "failed")),
                COUNT(LEVEL(handoff_chunks_total, "outcome", "unheld")),
                BYTES(LEVEL(handoff_held_bytes, NULL)));
}

/* The busiest first, as they come. */
static void put_spaces(const ldr_top_t *t, ldr_top_screen_t *s)
{
    char tenant[LDR_PROM_VALUE], space[LDR_PROM_VALUE], label[LDR_PROM_VALUE];
    unsigned shown = 0;

    for (size_t i = 0; i < t->now.count && shown < SPACES_MAX; i++) {
        const ldr_sample_t *one = &t->now.samples[i];

        if (strcmp(one->name, NAME(space_chunks)) != 0 ||
            !ldr_prom_label(one, "tenant", tenant) ||
            !ldr_prom_label(one, "space", space)) {
            continue;
        }
        if (shown++ == 0) {
            screen_line(s, true, "%-9s %-16s %-7s %6s %6s %6s %6s %8s %8s",
                        "SPACE", "LABEL", "TENANT", "HITS", "CHUNKS", "DRAM",
                        "SSD", "LOADING", "SAVING");
        }
        const char *const *where = LDR_WHERE("tenant", tenant, "space", space);
        ldr_prom_text(&t->now, NAME(space_info), where, "label", label);
        double found = RATE(space_asked_chunks_total, "tenant", tenant, "space",
                            space, "outcome", "found");
        screen_line(
            s, false, "%-9.9s %-16.16s %-7.7s %6s %6s %6s %6s %6s/s %6s/s",
            space, label, tenant,
            PERCENT(found, RATE(space_asked_chunks_total, "tenant", tenant,
                                "space", space)),
            COUNT(one->value),
            BYTES(LEVEL(space_dram_bytes, "tenant", tenant, "space", space)),
            BYTES(LEVEL(space_ssd_bytes, "tenant", tenant, "space", space)),
            BYTES(RATE(space_moved_bytes_total, "tenant", tenant, "space",
                       space, "direction", "load")),
            BYTES(RATE(space_moved_bytes_total, "tenant", tenant, "space",
                       space, "direction", "save")));
    }
}

/* The slowest first, as they come. */
static void put_slowest(const ldr_top_t *t, ldr_top_screen_t *s)
{
    static const char *const labels[] = {"op", "transport", "tenant", "space",
                                         "status"};
    unsigned shown = 0;

    for (size_t i = 0; i < t->now.count && shown < SLOW_MAX; i++) {
        const ldr_sample_t *one = &t->now.samples[i];
        char v[5][LDR_PROM_VALUE] = {""};

        if (strcmp(one->name, NAME(slowest_request_seconds)) != 0) {
            continue;
        }
        for (size_t k = 0; k < 5; k++) {
            ldr_prom_label(one, labels[k], v[k]);
        }
        if (shown++ == 0) {
            screen_line(s, true, "%-12s %8s  %-5s %-16s %-9s %s", "SLOWEST",
                        "TOOK", "BY", "TENANT", "SPACE", "STATUS");
        }
        screen_line(s, false, "%-12.12s %8s  %-5.5s %-16.16s %-9.9s %.16s",
                    v[0], SECONDS(one->value), v[1], v[2], v[3], v[4]);
    }
}

/* What goes wrong now: counters by one label. */
static void put_troubles(const ldr_top_t *t, ldr_top_screen_t *s)
{
    const struct {
        const char *what, *name, *label;
    } kinds[] = {
        {"miss", NAME(misses_total), "cause"},
        {"request", NAME(errors_total), "status"},
        {"not written", NAME(saves_dropped_total), "reason"},
        {"not let in", NAME(auth_failures_total), "reason"},
        {"connection", NAME(refused_connections_total), "reason"},
        {"disk", NAME(disk_errors_total), "operation"},
    };
    static char values[VALUES_MAX][LDR_PROM_VALUE];
    bool head = false;

    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        size_t n = ldr_prom_values(&t->now, kinds[k].name, kinds[k].label,
                                   values, VALUES_MAX);

        for (size_t i = 0; i < n; i++) {
            const char *const *where = LDR_WHERE(kinds[k].label, values[i]);
            double all = ldr_prom_sum(&t->now, kinds[k].name, where);

            if (all <= 0) {
                continue;
            }
            if (!head) {
                screen_line(s, true, "%-12s %-16s %9s %9s", "TROUBLE", "CAUSE",
                            "RATE", "ALL");
                head = true;
            }
            screen_line(s, false, "%-12s %-16.16s %7s/s %9s", kinds[k].what,
                        values[i], COUNT(rate(t, kinds[k].name, where)),
                        COUNT(all));
        }
    }
}

static void put_disks(const ldr_top_t *t, ldr_top_screen_t *s)
{
    static char paths[VALUES_MAX][LDR_PROM_VALUE];
    size_t n = ldr_prom_values(&t->now, NAME(disk_on), "path", paths, 16);

    if (n > 0) {
        screen_line(s, true, "%-5s %8s %8s %9s %9s %7s %8s  %s", "DISK", "USED",
                    "OF", "READ", "WRITE", "ERRORS", "READ P99", "DIRECTORY");
    }
    for (size_t i = 0; i < n; i++) {
        bool on = LEVEL(disk_on, "path", paths[i]) > 0;
        ldr_buckets_t b;

        ldr_prom_buckets(&t->now, &t->before, NAME(disk_seconds),
                         LDR_WHERE("path", paths[i], "operation", "read"), &b);
        screen_line(s, false, "%-5s %8s %8s %7s/s %7s/s %7s %8s  %s",
                    on ? "on" : "OFF",
                    BYTES(LEVEL(disk_used_bytes, "path", paths[i])),
                    BYTES(LEVEL(disk_max_bytes, "path", paths[i])),
                    BYTES(RATE(disk_read_bytes_total, "path", paths[i])),
                    BYTES(RATE(disk_written_bytes_total, "path", paths[i]) +
                          RATE(disk_carried_bytes_total, "path", paths[i])),
                    COUNT(LEVEL(disk_errors_total, "path", paths[i])),
                    SECONDS(ldr_buckets_quantile(&b, 0.99)), paths[i]);
    }
}

static void put_shared(const ldr_top_t *t, ldr_top_screen_t *s)
{
    static char kinds[VALUES_MAX][LDR_PROM_VALUE];

    if (ldr_prom_values(&t->now, NAME(shared_on), "operation", kinds, 2) == 0) {
        return;
    }
    bool on = LEVEL(shared_on, "operation", "read") > 0;
    bool writable = LEVEL(shared_on, "operation", "write") > 0;
    screen_line(s, true, "%-9s %8s %8s %9s %9s %7s %8s", "SHARED", "HOLDS",
                "SHARDS", "READ", "WRITE", "ERRORS", "WAITING");
    screen_line(s, false, "%-9s %8s %8s %7s/s %7s/s %7s %8s",
                writable ? "on"
                : on     ? "READ ONLY"
                         : "OFF",
                BYTES(LEVEL(shared_bytes, NULL)),
                COUNT(LEVEL(shared_shards, NULL)),
                BYTES(RATE(shared_moved_bytes_total, "operation", "read")),
                BYTES(RATE(shared_moved_bytes_total, "operation", "write")),
                COUNT(LEVEL(shared_errors_total, NULL)),
                COUNT(LEVEL(shared_waiting_shards, NULL)));
    size_t reasons =
        ldr_prom_values(&t->now, NAME(shared_reason), "reason", kinds, 2);
    for (size_t i = 0; i < reasons && kinds[i][0] != '\0'; i++) {
        screen_line(s, false, "  %s", kinds[i]);
    }
    if (LEVEL(shared_open_tenants, NULL) > 0) {
        screen_line(s, false, "  %.0f tenants without a secret",
                    LEVEL(shared_open_tenants, NULL));
    }
}

/* Who serves whom: what this node and each other member gave each other. */
static void put_members(const ldr_top_t *t, ldr_top_screen_t *s)
{
    static char names[VALUES_MAX][LDR_PROM_VALUE];
    size_t n = ldr_prom_values(&t->now, NAME(member_weight), "member", names,
                               VALUES_MAX);
    char why[LDR_PROM_VALUE];

    if (n > 0) {
        screen_line(s, true, "%-20s %-7s %6s %9s %9s %9s %9s", "MEMBER",
                    "STATE", "OWNS", "FETCH", "SERVE", "SEND", "TAKE");
    }
    for (size_t i = 0; i < n; i++) {
        const char *m = names[i];

        screen_line(
            s, false, "%-20.20s %-7s %6s %7s/s %7s/s %7s/s %7s/s", m,
            LEVEL(member_share, "member", m) == 0  ? "leaves"
            : LEVEL(cluster_info, "member", m) > 0 ? "here"
            : LEVEL(peer_well, "member", m) > 0    ? "well"
                                                   : "OFF",
            PERCENT(LEVEL(member_owned, "member", m), 1),
            BYTES(RATE(peer_bytes_total, "member", m, "direction", "fetch")),
            BYTES(RATE(peer_bytes_total, "member", m, "direction", "serve")),
            BYTES(RATE(peer_bytes_total, "member", m, "direction", "send")),
            BYTES(RATE(peer_bytes_total, "member", m, "direction", "take")));
        ldr_prom_text(&t->now, NAME(peer_reason), LDR_WHERE("member", m),
                      "reason", why);
        if (why[0] != '\0') {
            screen_line(s, false, "  %s", why);
        }
    }
    if (LEVEL(peer_queue_shards, NULL) > 0) {
        screen_line(s, false, "  %s shards (%s) wait for their owners, for %s",
                    COUNT(LEVEL(peer_queue_shards, NULL)),
                    BYTES(LEVEL(peer_queue_bytes, NULL)),
                    SECONDS(LEVEL(peer_lag_seconds, NULL)));
    }
    double homes = LEVEL(peer_homes, NULL),
           copies = LEVEL(peer_copies_total, NULL);
    double dropped = LEVEL(peer_homes_dropped_total, NULL);
    if (homes + dropped + copies > 0) {
        screen_line(s, false,
                    "  knows of %s chunk%s on others' disks, %s forgotten "
                    "(peer_homes); copies taken: %s",
                    COUNT(homes), homes == 1 ? "" : "s", COUNT(dropped),
                    COUNT(copies));
    }
}

void ldr_top_compose(const ldr_top_t *t, ldr_top_screen_t *s)
{
    s->count = 0;
    put_title(t, s);
    put_admin(t, s);
    put_glance(t, s);
    put_levels(t, s);
    put_ops(t, s);
    put_tenants(t, s);
    put_spaces(t, s);
    put_handoffs(t, s);
    put_disks(t, s);
    put_shared(t, s);
    put_members(t, s);
    put_troubles(t, s);
    put_slowest(t, s);
}
