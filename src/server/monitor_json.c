/*
 * The state of everything as JSON, for the dashboard. Called by the admin's
 * thread. The monitor's lock is held while it composes, and the node's is taken
 * inside it. A new snapshot is all that it changes.
 */
#include <stdio.h>
#include <string.h>

#include "base/thread.h"
#include "server/monitor_int.h"

/* ---- the history ---- */

/* The headline: found ÷ asked for, since the start and lately. */
static void put_asked(ldr_json_t *j, const ldr_monitor_t *m)
{
    const ldr_counters_t *now = &m->now->n, *before = &ldr_monitor_before(m)->n;

    ldr_json_number(j, "asked", now->asked_chunks);
    ldr_json_number(j, "found", now->found_chunks);
    ldr_json_number(j, "asked_recent",
                    now->asked_chunks - before->asked_chunks);
    ldr_json_number(j, "found_recent",
                    now->found_chunks - before->found_chunks);
}

/* Of the tiers that this program has. */
static void put_tier_columns(ldr_json_t *j)
{
    char name[64];

    for (unsigned i = 0; i < LARDER_TIERS_MAX; i++) {
        if (ldr_tier_label(i) != NULL) {
            snprintf(name, sizeof(name), "hits_%s", ldr_tier_label(i));
            ldr_json_text(j, NULL, name);
            snprintf(name, sizeof(name), "loaded_%s_bytes", ldr_tier_label(i));
            ldr_json_text(j, NULL, name);
        }
    }
}

static void put_history(ldr_json_t *j, const ldr_monitor_t *m,
                        uint64_t since_ms)
{
    uint64_t first =
        m->row_count > LDR_MONITOR_ROWS ? m->row_count - LDR_MONITOR_ROWS : 0;

    ldr_json_begin(j, "columns", '[');
    put_tier_columns(j);
#define X(name, field) ldr_json_text(j, NULL, #name);
    LDR_COLUMN_MAP(X, X)
#undef X
    ldr_json_end(j, ']');
    ldr_json_begin(j, "rows", '[');
    for (uint64_t i = first; i < m->row_count; i++) {
        const ldr_history_row_t *row = &m->rows[i % LDR_MONITOR_ROWS];

        if (row->when_ms <= since_ms) {
            continue;
        }
        ldr_json_begin(j, NULL, '[');
        ldr_json_number(j, NULL, row->when_ms);
        for (unsigned k = 0; k < LDR_COLUMN_COUNT; k++) {
            if (k >= 2 * LARDER_TIERS_MAX || ldr_tier_label(k / 2) != NULL) {
                ldr_json_number(j, NULL, row->values[k]);
            }
        }
        ldr_json_end(j, ']');
    }
    ldr_json_end(j, ']');
}

/* ---- times ---- */

static void put_times(ldr_json_t *j, const ldr_histogram_t *h)
{
    ldr_json_number(j, "count", ldr_histogram_count(h));
    ldr_json_number(j, "p50_ns", ldr_histogram_quantile_ns(h, 0.5));
    ldr_json_number(j, "p90_ns", ldr_histogram_quantile_ns(h, 0.9));
    ldr_json_number(j, "p99_ns", ldr_histogram_quantile_ns(h, 0.99));
    ldr_json_number(j, "p999_ns", ldr_histogram_quantile_ns(h, 0.999));
}

static void put_ops(ldr_json_t *j, const ldr_monitor_t *m)
{
    static const char *const names[LDR_TIMES_COUNT] = {"load", "save"};
    const ldr_snapshot_t *before = ldr_monitor_before(m);

    ldr_json_begin(j, "ops", '[');
    for (unsigned i = 0; i < LDR_TIMED_COUNT; i++) {
        ldr_histogram_t recent = {0};

        ldr_timed_since(m->now, before, (ldr_timed_t)i, &recent);
        if (ldr_histogram_count(&recent) > 0) {
            ldr_json_begin(j, NULL, '{');
            ldr_json_text(j, "op", ldr_timed_names[i]);
            ldr_json_number(j, "total", ldr_histogram_count(&m->now->timed[i]));
            put_times(j, &recent);
            ldr_json_end(j, '}');
        }
    }
    ldr_json_end(j, ']');
    ldr_json_begin(j, "timed", '{');
    for (int i = 0; i < LDR_TIMES_COUNT; i++) {
        ldr_histogram_t recent = {0};

        ldr_times_since(m->now, before, i, &recent);
        ldr_json_begin(j, names[i], '{');
        put_times(j, &recent);
        ldr_json_end(j, '}');
    }
    ldr_json_end(j, '}');
}

static void put_slow(ldr_json_t *j, ldr_monitor_t *m)
{
    ldr_slow_t slow[LDR_METRICS_SLOW];
    unsigned count = ldr_metrics_slowest(m->params.metrics, slow);

    ldr_json_number(j, "slow_s", LDR_METRICS_SLOW_S);
    ldr_json_begin(j, "slow", '[');
    for (unsigned i = 0; i < count; i++) {
        ldr_slow_names_t names;

        ldr_slow_names(m->params.node, &slow[i], &names);
        ldr_json_begin(j, NULL, '{');
        ldr_json_text(j, "op", names.op);
        ldr_json_text(j, "by", names.by != NULL ? names.by : "");
        ldr_json_text(j, "tenant", names.tenant);
        ldr_json_text(j, "space", names.space);
        ldr_json_number(j, "bytes", slow[i].bytes);
        ldr_json_number(j, "ns", slow[i].ns);
        ldr_json_number(j, "when", slow[i].when_ms);
        ldr_json_text(j, "status", names.status);
        ldr_json_end(j, '}');
    }
    ldr_json_end(j, ']');
}

/* ---- tenants and spaces ---- */

static void put_tenants(ldr_json_t *j, ldr_monitor_t *m)
{
    ldr_tenant_stats_t t;

    ldr_node_lock(m->params.node);
    uint32_t count = m->params.node->store.tenant_count;
    ldr_node_unlock(m->params.node);
    ldr_json_number(j, "tenant_count", count);
    ldr_json_begin(j, "tenants", '[');
    for (uint32_t i = 0; i < LDR_MONITOR_TENANTS; i++) {
        char name[LDR_NAME_MAX];

        if (!ldr_node_tenant_stats(m->params.node, i, &t) ||
            !ldr_node_tenant_label(m->params.node, i, name)) {
            break;
        }
        ldr_json_begin(j, NULL, '{');
        ldr_json_text(j, "name", name);
        ldr_figures_json(j, ldr_rows_tenant, &t);
        ldr_figures_json(j, ldr_rows_client, &m->params.metrics->tenants[i]);
        ldr_json_end(j, '}');
    }
    ldr_json_end(j, ']');
}

static void put_spaces(ldr_json_t *j, ldr_monitor_t *m)
{
    uint32_t known = 0;
    unsigned count =
        ldr_node_busiest(m->params.node, LDR_NIL, m->spaces, &known);

    ldr_json_number(j, "space_count", known);
    ldr_json_begin(j, "spaces", '[');
    for (unsigned i = 0; i < count; i++) {
        const ldr_space_stats_t *s = &m->spaces[i];
        char id[LDR_SPACE_LABEL], name[LDR_NAME_MAX] = "";

        ldr_space_label(s->id, id);
        ldr_node_tenant_label(m->params.node, s->tenant, name);
        ldr_json_begin(j, NULL, '{');
        ldr_json_text(j, "id", id);
        ldr_json_text(j, "label", s->label);
        ldr_json_text(j, "tenant", name);
        ldr_figures_json(j, ldr_rows_space, s);
        ldr_json_end(j, '}');
    }
    ldr_json_end(j, ']');
}

/* ---- what goes wrong ---- */

#define AT(field)                                                              \
    offsetof(ldr_snapshot_t, field), sizeof(((ldr_snapshot_t *)0)->field)

static void put_troubles(ldr_json_t *j, const ldr_monitor_t *m)
{
    static const struct {
        const char *group, *cause;        /* cause NULL: by their names */
        const char *(*names)(unsigned i); /* of an array */
        size_t offset, bytes;
    } all[] = {
        {"miss", NULL, ldr_cause_label, AT(n.misses)},
        {"request", NULL, ldr_failure_label, AT(statuses)},
        {"not let in", NULL, ldr_auth_fail_label, AT(auth_fails)},
        {"connection", NULL, ldr_refusal_label, AT(refusals)},
        {"save", "full", NULL, AT(n.saves_full)},
        {"save", "mismatch", NULL, AT(n.saves_mismatch)},
        {"save", "canceled", NULL, AT(n.saves_canceled)},
        {"save", "failed", NULL, AT(n.saves_failed)},
        {"save", "stale", NULL, AT(n.saves_stale)},
        {"save", "paused", NULL, AT(n.saves_paused)},
        {"not written", "evicted", NULL, AT(n.queue_evicted[0])},
        {"not written", "size", NULL, AT(n.saves_dropped_size)},
        {"not written", "io", NULL, AT(n.saves_dropped_io)},
        {"disk", "read", NULL, AT(read_errors)},
        {"disk", "write", NULL, AT(write_errors)},
        {"payload", "checksum", NULL, AT(events[LDR_EVENT_CHECKSUM_MISMATCH])},
        {"payload", "reported", NULL, AT(events[LDR_EVENT_REPORTS])},
    };
    const char *now = (const char *)m->now;
    const char *before = (const char *)ldr_monitor_before(m);

    ldr_json_begin(j, "troubles", '[');
    for (size_t k = 0; k < sizeof(all) / sizeof(all[0]); k++) {
        for (unsigned i = 0; i < all[k].bytes / sizeof(uint64_t); i++) {
            size_t at = all[k].offset + i * sizeof(uint64_t);
            const char *cause =
                all[k].names != NULL ? all[k].names(i) : all[k].cause;
            uint64_t total, earlier;

            memcpy(&total, now + at, sizeof(total));
            memcpy(&earlier, before + at, sizeof(earlier));
            if (total > 0 && cause != NULL) {
                ldr_json_begin(j, NULL, '{');
                ldr_json_text(j, "group", all[k].group);
                ldr_json_text(j, "cause", cause);
                ldr_json_number(j, "recent", total - earlier);
                ldr_json_number(j, "total", total);
                ldr_json_end(j, '}');
            }
        }
    }
    ldr_json_end(j, ']');
}

/* ---- the node, the sessions, the process ---- */

static void put_node(ldr_json_t *j, ldr_monitor_t *m)
{
    const larder_stats_t *s = &m->node.s;
    ldr_disk_figures_t disk;
    ldr_shared_figures_t shared = {.s = s->shared_tier};

    ldr_json_begin(j, "disks", '[');
    for (uint64_t i = 0; i < s->disks; i++) {
        disk = (ldr_disk_figures_t){.s = s->disk[i]};
        ldr_json_begin(j, NULL, '{');
        ldr_json_text(j, "path", disk.s.path);
        ldr_json_truth(j, "on", disk.s.on != 0);
        ldr_json_text(j, "reason", disk.s.reason);
        ldr_figures_json(j, ldr_rows_disk, &disk);
        ldr_json_end(j, '}');
    }
    ldr_json_end(j, ']');
    if (s->shared != 0) {
        ldr_json_begin(j, "shared", '{');
        ldr_json_text(j, "url", shared.s.url);
        ldr_json_truth(j, "on", shared.s.on != 0);
        ldr_json_truth(j, "writable", shared.s.writable != 0);
        ldr_json_text(j, "reason", shared.s.reason);
        ldr_json_truth(j, "cleaner", shared.s.cleaner != 0);
        ldr_figures_json(j, ldr_rows_shared, &shared);
        ldr_json_end(j, '}');
    } else {
        ldr_json_key(j, "shared");
        ldr_text_add(&j->t, "null");
    }
    ldr_cluster_json(m->params.metrics->cluster, m->params.node, j);
    ldr_json_begin(j, "sessions", '{');
    for (unsigned i = 0; i < LDR_TRANSPORT_COUNT; i++) {
        int64_t now = ldr_level(&m->params.metrics->transports[i].sessions);

        /* Two threads that count up and down may be seen the other way round.
         */
        ldr_json_number(j, ldr_transport_label(i), now > 0 ? (uint64_t)now : 0);
    }
    ldr_json_end(j, '}');
    ldr_figures_json(j, ldr_rows_node, &m->node);
    ldr_figures_json(j, ldr_rows_server, m->params.metrics);
}

size_t ldr_server_status_json(ldr_monitor_t *m, uint64_t since_ms, char *to,
                              size_t size)
{
    ldr_json_t j = {.t = ldr_text(to, size)};
    ldr_process_t process;
    char why[256] = "";

    ldr_process_look(m->params.metrics, &process);
    ldr_mutex_lock(&m->lock);
    ldr_monitor_snapshot(m);
    ldr_json_begin(&j, NULL, '{');
    ldr_json_number(&j, "time", m->now->when_ms);
    ldr_json_number(&j, "start", m->params.metrics->start_ms);
    ldr_json_text(&j, "version", larder_version());
    ldr_json_text(&j, "mode",
                  ldr_mode_label(ldr_node_get_mode(m->params.node)));
    ldr_json_truth(&j, "ready",
                   m->params.ready(m->params.arg, why, sizeof(why)));
    ldr_json_text(&j, "why", why);
    ldr_json_number(&j, "interval_ms", LDR_MONITOR_MS);
    ldr_json_number(&j, "rows_max", LDR_MONITOR_ROWS);
    ldr_json_number(&j, "recent_ms",
                    m->now->when_ms - ldr_monitor_before(m)->when_ms);
    put_asked(&j, m);
    put_history(&j, m, since_ms);
    put_ops(&j, m);
    put_slow(&j, m);
    put_tenants(&j, m);
    put_spaces(&j, m);
    put_troubles(&j, m);
    put_node(&j, m);
    ldr_figures_json(&j, ldr_rows_process, &process);
    ldr_json_end(&j, '}');
    ldr_mutex_unlock(&m->lock);
    return j.t.length;
}
