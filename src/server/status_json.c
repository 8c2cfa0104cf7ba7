/* The state of everything as JSON, for the dashboard. */
#include <stdio.h>

#include "base/text.h"
#include "base/thread.h"
#include "node/metrics.h"
#include "server/status.h"
#include "server/status_int.h"

/* ---- JSON ---- */

typedef struct json {
    ldr_text_t t;
    bool comma; /* something stands before in this object or array */
} json_t;

/* name NULL: a member of an array. */
static void key(json_t *j, const char *name)
{
    if (j->comma) {
        ldr_text_char(&j->t, ',');
    }
    if (name != NULL) {
        ldr_text_add(&j->t, "\"%s\":", name);
    }
    j->comma = true;
}

static void begin(json_t *j, const char *name, char brace)
{
    key(j, name);
    ldr_text_char(&j->t, brace);
    j->comma = false;
}

static void end(json_t *j, char brace)
{
    ldr_text_char(&j->t, brace);
    j->comma = true;
}

static void number(json_t *j, const char *name, uint64_t value)
{
    key(j, name);
    ldr_text_u64(&j->t, value);
}

static void level(json_t *j, const char *name, const int64_t *value)
{
    int64_t now = ldr_level(value);

    /* Two threads that count up and down may be seen the other way round. */
    number(j, name, now > 0 ? (uint64_t)now : 0);
}

static void text(json_t *j, const char *name, const char *value)
{
    key(j, name);
    ldr_text_json(&j->t, value);
}

static void truth(json_t *j, const char *name, bool value)
{
    key(j, name);
    ldr_text_add(&j->t, "%s", value ? "true" : "false");
}

/* ---- the history ---- */

/* The headline: found ÷ asked for, since the start and lately. */
static void put_asked(json_t *j, const ldr_monitor_t *m)
{
    const uint64_t *now = m->now->values;
    const uint64_t *before = ldr_monitor_before(m)->values;

    number(j, "asked", now[LDR_COLUMN_asked]);
    number(j, "found", now[LDR_COLUMN_found]);
    number(j, "asked_recent", now[LDR_COLUMN_asked] - before[LDR_COLUMN_asked]);
    number(j, "found_recent", now[LDR_COLUMN_found] - before[LDR_COLUMN_found]);
}

static void put_history(json_t *j, const ldr_monitor_t *m, uint64_t since_ms)
{
    uint64_t first =
        m->row_count > LDR_MONITOR_ROWS ? m->row_count - LDR_MONITOR_ROWS : 0;

    begin(j, "columns", '[');
#define X(name) text(j, NULL, #name);
    LDR_COLUMN_MAP(X, X)
#undef X
    end(j, ']');
    begin(j, "rows", '[');
    for (uint64_t i = first; i < m->row_count; i++) {
        const ldr_history_row_t *row = &m->rows[i % LDR_MONITOR_ROWS];

        if (row->when_ms <= since_ms) {
            continue;
        }
        begin(j, NULL, '[');
        number(j, NULL, row->when_ms);
        for (unsigned k = 0; k < LDR_COLUMN_COUNT; k++) {
            number(j, NULL, row->values[k]);
        }
        end(j, ']');
    }
    end(j, ']');
}

/* ---- times ---- */

static void put_times(json_t *j, const ldr_histogram_t *h)
{
    number(j, "count", ldr_histogram_count(h));
    number(j, "p50_ns", ldr_histogram_quantile_ns(h, 0.5));
    number(j, "p90_ns", ldr_histogram_quantile_ns(h, 0.9));
    number(j, "p99_ns", ldr_histogram_quantile_ns(h, 0.99));
    number(j, "p999_ns", ldr_histogram_quantile_ns(h, 0.999));
}

static void recent_times(const ldr_monitor_t *m, ldr_timed_t which,
                         ldr_histogram_t *sum)
{
    ldr_histogram_merge(sum, &m->now->timed[which]);
    ldr_histogram_since(sum, &ldr_monitor_before(m)->timed[which]);
}

static void put_ops(json_t *j, const ldr_monitor_t *m)
{
    ldr_histogram_t loads = {0}, saves = {0};

    begin(j, "ops", '[');
    for (unsigned i = 0; i < LDR_TIMED_COUNT; i++) {
        ldr_histogram_t recent = {0};

        recent_times(m, (ldr_timed_t)i, &recent);
        if (ldr_histogram_count(&recent) == 0) {
            continue;
        }
        begin(j, NULL, '{');
        text(j, "op", ldr_timed_names[i]);
        number(j, "total", ldr_histogram_count(&m->now->timed[i]));
        put_times(j, &recent);
        end(j, '}');
    }
    end(j, ']');
    recent_times(m, LDR_TIMED_GET, &loads);
    recent_times(m, LDR_TIMED_LEASE, &loads);
    recent_times(m, LDR_TIMED_PUT, &saves);
    recent_times(m, LDR_TIMED_RESERVE, &saves);
    recent_times(m, LDR_TIMED_COMMIT, &saves);
    begin(j, "timed", '{');
    begin(j, "load", '{');
    put_times(j, &loads);
    end(j, '}');
    begin(j, "save", '{');
    put_times(j, &saves);
    end(j, '}');
    end(j, '}');
}

static void put_slow(json_t *j, ldr_monitor_t *m)
{
    ldr_slow_t slow[LDR_METRICS_SLOW];
    unsigned count = ldr_metrics_slowest(m->params.metrics, slow);

    number(j, "slow_s", LDR_METRICS_SLOW_S);
    begin(j, "slow", '[');
    for (unsigned i = 0; i < count; i++) {
        const ldr_slow_t *s = &slow[i];
        char label[LDR_LABEL_MAX], name[LDR_NAME_MAX] = "",
                                   id[LDR_SPACE_LABEL] = "";
        ldr_space_stats_t space;

        ldr_node_tenant_label(m->params.node, s->tenant, name);
        if (ldr_node_space_stats(m->params.node, s->space, &space)) {
            ldr_space_label(space.id, id);
        }
        ldr_status_label(s->status, label);
        begin(j, NULL, '{');
        text(j, "op", ldr_op_label(s->opcode));
        text(j, "by",
             s->transport < LDR_TRANSPORT_COUNT
                 ? ldr_transport_names[s->transport]
                 : "");
        text(j, "tenant", name);
        text(j, "space", id);
        number(j, "bytes", s->bytes);
        number(j, "ns", s->ns);
        number(j, "when", s->when_ms);
        text(j, "status", label);
        end(j, '}');
    }
    end(j, ']');
}

/* ---- tenants and spaces ---- */

static void put_counters(json_t *j, const ldr_counters_t *n)
{
    number(j, "asked", n->asked_chunks);
    number(j, "found", n->found_chunks);
    number(j, "hits", ldr_counters_hits(n));
    number(j, "misses", ldr_counters_misses(n));
    number(j, "saves", n->saves_stored);
    number(j, "saved_bytes", n->saved_bytes);
    number(j, "loaded_bytes", n->loaded_bytes);
    number(j, "evicted_bytes", n->evicted_bytes);
}

static void put_tenants(json_t *j, ldr_monitor_t *m)
{
    ldr_tenant_stats_t t;

    ldr_node_lock(m->params.node);
    uint32_t count = m->params.node->store.tenant_count;
    ldr_node_unlock(m->params.node);
    number(j, "tenant_count", count);
    begin(j, "tenants", '[');
    for (uint32_t i = 0; i < LDR_MONITOR_TENANTS; i++) {
        const ldr_tenant_count_t *c = &m->params.metrics->tenants[i];
        char name[LDR_NAME_MAX];

        if (!ldr_node_tenant_stats(m->params.node, i, &t) ||
            !ldr_node_tenant_label(m->params.node, i, name)) {
            break;
        }
        begin(j, NULL, '{');
        text(j, "name", name);
        level(j, "sessions", &c->sessions);
        number(j, "dram", t.dram_used_bytes);
        number(j, "dram_max", t.dram_max);
        number(j, "ssd", t.ssd_bytes);
        number(j, "ssd_max", t.ssd_max);
        put_counters(j, &t.n);
        number(j, "bytes_in", ldr_counted(&c->bytes_in));
        number(j, "bytes_out", ldr_counted(&c->bytes_out));
        number(j, "throttled", ldr_counted(&c->throttled));
        end(j, '}');
    }
    end(j, ']');
}

static void put_spaces(json_t *j, ldr_monitor_t *m)
{
    uint32_t known = 0;
    unsigned count =
        ldr_node_busiest(m->params.node, LDR_NIL, m->spaces, &known);

    number(j, "space_count", known);
    begin(j, "spaces", '[');
    for (unsigned i = 0; i < count; i++) {
        const ldr_space_stats_t *s = &m->spaces[i];
        char id[LDR_SPACE_LABEL], name[LDR_NAME_MAX] = "";

        ldr_space_label(s->id, id);
        ldr_node_tenant_label(m->params.node, s->tenant, name);
        begin(j, NULL, '{');
        text(j, "id", id);
        text(j, "label", s->label);
        text(j, "tenant", name);
        number(j, "chunks", s->chunks);
        number(j, "dram", s->dram_bytes);
        number(j, "ssd", s->ssd_bytes);
        put_counters(j, &s->n);
        end(j, '}');
    }
    end(j, ']');
}

/* ---- what goes wrong ---- */

/* What the trouble with this number is. False: it cannot be. */
static bool trouble_name(unsigned i, const char **group_p,
                         char label[LDR_LABEL_MAX])
{
    static const struct {
        unsigned number;
        const char *group, *cause;
    } others[] = {
        {LDR_TROUBLE_SAVE_FULL, "save", "full"},
        {LDR_TROUBLE_SAVE_MISMATCH, "save", "mismatch"},
        {LDR_TROUBLE_SAVE_CANCELED, "save", "canceled"},
        {LDR_TROUBLE_SAVE_FAILED, "save", "failed"},
        {LDR_TROUBLE_SAVE_STALE, "save", "stale"},
        {LDR_TROUBLE_SAVE_PAUSED, "save", "paused"},
        {LDR_TROUBLE_DROPPED_EVICTED, "not written", "evicted"},
        {LDR_TROUBLE_DROPPED_SIZE, "not written", "size"},
        {LDR_TROUBLE_DROPPED_IO, "not written", "io"},
        {LDR_TROUBLE_DISK_READ, "disk", "read"},
        {LDR_TROUBLE_DISK_WRITE, "disk", "write"},
        {LDR_TROUBLE_PAYLOAD, "payload", "checksum"},
        {LDR_TROUBLE_REPORTS, "payload", "reported"},
    };
    const char *cause = NULL;

    if (i < LDR_TROUBLE_STATUSES) {
        *group_p = "miss";
        cause = larder_cause_text((larder_cause_t)(i - LDR_TROUBLE_MISSES));
    } else if (i < LDR_TROUBLE_AUTH) {
        *group_p = "request";
        ldr_status_label((larder_status_t)(-(int)(i - LDR_TROUBLE_STATUSES)),
                         label);
        return true;
    } else if (i < LDR_TROUBLE_REFUSALS) {
        *group_p = "not let in";
        cause = ldr_auth_fail_names[i - LDR_TROUBLE_AUTH];
    } else if (i < LDR_TROUBLE_SAVE_FULL) {
        *group_p = "connection";
        cause = ldr_refusal_names[i - LDR_TROUBLE_REFUSALS];
    }
    for (size_t k = 0; k < sizeof(others) / sizeof(others[0]); k++) {
        if (others[k].number == i) {
            *group_p = others[k].group;
            cause = others[k].cause;
        }
    }
    if (cause != NULL) {
        snprintf(label, LDR_LABEL_MAX, "%s", cause);
    }
    return cause != NULL;
}

static void put_troubles(json_t *j, const ldr_monitor_t *m)
{
    const ldr_snapshot_t *before = ldr_monitor_before(m);

    begin(j, "troubles", '[');
    for (unsigned i = 0; i < LDR_TROUBLES; i++) {
        uint64_t total = m->now->troubles[i];
        const char *group = "";
        char label[LDR_LABEL_MAX];

        if (total == 0 || !trouble_name(i, &group, label)) {
            continue;
        }
        begin(j, NULL, '{');
        text(j, "group", group);
        text(j, "cause", label);
        number(j, "recent", total - before->troubles[i]);
        number(j, "total", total);
        end(j, '}');
    }
    end(j, ']');
}

/* ---- the node, the sessions, the process ---- */

/* null: there is none. */
static void put_shared(json_t *j, const larder_stats_t *s)
{
    const larder_shared_stats_t *t = &s->shared_tier;

    if (s->shared == 0) {
        key(j, "shared");
        ldr_text_add(&j->t, "null");
        return;
    }
    begin(j, "shared", '{');
    text(j, "url", t->url);
    truth(j, "on", t->on != 0);
    truth(j, "writable", t->writable != 0);
    text(j, "reason", t->reason);
    number(j, "objects", t->objects);
    number(j, "shards", t->shards);
    number(j, "bytes", t->bytes);
    number(j, "dead", t->dead_bytes);
    number(j, "memory", t->map_bytes);
    number(j, "waiting", t->waiting_shards);
    number(j, "read", t->read_bytes);
    number(j, "written", t->written_bytes);
    number(j, "read_errors", t->read_errors);
    number(j, "write_errors", t->write_errors);
    number(j, "gone", t->gone);
    number(j, "corrupt", t->corrupt);
    truth(j, "cleaner", t->cleaner != 0);
    number(j, "cleaned", t->cleaned_bytes);
    end(j, '}');
}

static void put_node(json_t *j, ldr_node_t *node)
{
    larder_stats_t s;

    ldr_node_stats(node, LDR_NIL, &s);
    begin(j, "dram", '{');
    number(j, "size", s.dram_bytes);
    number(j, "resident", s.dram_resident_bytes);
    number(j, "used", s.dram_used_bytes);
    number(j, "pinned", s.pinned_bytes);
    end(j, '}');
    begin(j, "index", '{');
    number(j, "chunks", s.entries);
    number(j, "bytes", s.entry_bytes);
    end(j, '}');
    key(j, "write_amplification");
    ldr_text_fixed(&j->t, ldr_write_amplification(&s), 3);
    begin(j, "disks", '[');
    for (uint64_t i = 0; i < s.disks; i++) {
        const larder_disk_stats_t *d = &s.disk[i];

        begin(j, NULL, '{');
        text(j, "path", d->path);
        truth(j, "on", d->on != 0);
        text(j, "reason", d->reason);
        number(j, "size", d->bytes_max);
        number(j, "used", d->bytes_used);
        number(j, "segments", d->segments);
        number(j, "lost", d->segments_lost);
        number(j, "written", d->written_bytes);
        number(j, "carried", d->carried_bytes);
        number(j, "read", d->read_bytes);
        number(j, "read_errors", d->read_errors);
        number(j, "write_errors", d->write_errors);
        end(j, '}');
    }
    end(j, ']');
    put_shared(j, &s);
}

static void put_queues(json_t *j, ldr_monitor_t *m)
{
    const int64_t *levels = m->params.metrics->levels;
    ldr_queues_t q;

    ldr_node_queues(m->params.node, &q);
    begin(j, "queues", '{');
    number(j, "dirty_shards", q.dirty_shards);
    number(j, "reads_waiting", q.reads_waiting);
    number(j, "reads_flying", q.reads_flying);
    number(j, "writes_flying", q.writes_flying);
    level(j, "leases", &levels[LDR_LEVEL_LEASES]);
    level(j, "reservations", &levels[LDR_LEVEL_RESERVATIONS]);
    level(j, "quarantined", &levels[LDR_LEVEL_QUARANTINED]);
    level(j, "jobs_queued", &levels[LDR_LEVEL_JOBS_QUEUED]);
    level(j, "jobs_running", &levels[LDR_LEVEL_JOBS_RUNNING]);
    level(j, "reply_bytes", &levels[LDR_LEVEL_REPLY_BYTES]);
    end(j, '}');
    begin(j, "sessions", '{');
    for (unsigned i = 0; i < LDR_TRANSPORT_COUNT; i++) {
        level(j, ldr_transport_names[i], &m->params.metrics->sessions[i]);
    }
    end(j, '}');
    level(j, "connecting", &levels[LDR_LEVEL_CONNECTING]);
}

static void put_process(json_t *j)
{
    ldr_process_t p;

    ldr_process_look(&p);
    begin(j, "process", '{');
    number(j, "cpu_us", p.cpu_us);
    number(j, "resident", p.resident_bytes);
    number(j, "threads", p.threads);
    number(j, "fds", p.fds);
    number(j, "fds_max", p.fds_max);
    end(j, '}');
}

size_t ldr_server_status_json(ldr_monitor_t *m, uint64_t since_ms, char *to,
                              size_t size)
{
    json_t j = {.t = ldr_text(to, size)};
    char why[256] = "";

    ldr_mutex_lock(&m->lock);
    ldr_monitor_snapshot(m);
    begin(&j, NULL, '{');
    number(&j, "time", m->now->when_ms);
    number(&j, "start", m->params.metrics->start_ms);
    text(&j, "version", larder_version());
    text(&j, "mode", ldr_mode_label(ldr_node_get_mode(m->params.node)));
    truth(&j, "ready", m->params.ready(m->params.arg, why, sizeof(why)));
    text(&j, "why", why);
    number(&j, "interval_ms", LDR_MONITOR_MS);
    number(&j, "rows_max", LDR_MONITOR_ROWS);
    number(&j, "recent_ms", m->now->when_ms - ldr_monitor_before(m)->when_ms);
    put_asked(&j, m);
    put_history(&j, m, since_ms);
    put_ops(&j, m);
    put_slow(&j, m);
    put_tenants(&j, m);
    put_spaces(&j, m);
    put_troubles(&j, m);
    put_node(&j, m->params.node);
    put_queues(&j, m);
    put_process(&j);
    end(&j, '}');
    ldr_mutex_unlock(&m->lock);
    return j.t.length;
}
