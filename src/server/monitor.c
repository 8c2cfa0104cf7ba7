/*
 * The monitor: what happened, in rows of a few seconds, for the dashboard.
 *
 * A thread of its own takes a snapshot every LDR_MONITOR_MS; requests for the
 * page take one more. m->lock guards the snapshot `now`, the recent ones and
 * the rows. It is taken before the node's lock, never inside it.
 *
 * Invariants: recent[] is a ring of the last LDR_MONITOR_RECENT + 1 snapshots,
 * recent_count of which were ever taken; a row is the difference of two
 * neighbours in it.
 */
#include "server/monitor.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/thread.h"
#include "server/monitor_int.h"

const char *const ldr_timed_names[LDR_TIMED_COUNT] = {
#define X(name, value, before, text) text,
    LDR_OPCODE_MAP(X)
#undef X
        "disk read",
    "disk write",
};

static const uint16_t opcodes[] = {
#define X(name, value, before, text) value,
    LDR_OPCODE_MAP(X)
#undef X
};
#define OPCODES (sizeof(opcodes) / sizeof(opcodes[0]))

/* ---- looking ---- */

static void look_node(ldr_monitor_t *m, ldr_snapshot_t *now)
{
    ldr_node_t *node = m->params.node;
    const larder_stats_t *s = &m->node.s;

    ldr_node_figures(node, &m->node);
    ldr_node_counters(node, &now->n);
    now->sum = ldr_counters_sums(&now->n);
    now->dram_used_bytes = s->dram_used_bytes;
    now->dirty_shards = m->node.q.dirty_shards;
    for (uint64_t i = 0; i < s->disks; i++) {
        const larder_disk_stats_t *d = &s->disk[i];

        now->written_bytes += d->written_bytes + d->carried_bytes;
        now->ssd_used_bytes += d->bytes_used;
        now->read_errors += d->read_errors;
        now->write_errors += d->write_errors;
    }
    ldr_node_times(node, LARDER_TIER_SSD, &now->timed[LDR_TIMED_DISK_READ],
                   &now->timed[LDR_TIMED_DISK_WRITE]);
}

/* Gives their sum. */
static uint64_t look_counters(const uint64_t *from, size_t count, uint64_t *to)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < count; i++) {
        to[i] = ldr_counted(&from[i]);
        sum += to[i];
    }
    return sum;
}

static void look_metrics(const ldr_server_metrics_t *m, ldr_snapshot_t *now)
{
    for (size_t i = 0; i < OPCODES; i++) {
        ldr_histogram_read(&m->ops[opcodes[i]].latency, &now->timed[i]);
        now->requests += ldr_op_total(m, opcodes[i]);
    }
    now->failures =
        look_counters(m->statuses, LDR_METRICS_STATUSES, now->statuses);
    look_counters(m->auth_fails, LDR_AUTH_FAIL_COUNT, now->auth_fails);
    look_counters(m->refusals, LDR_REFUSAL_COUNT, now->refusals);
    look_counters(m->events, LDR_EVENT_COUNT, now->events);
    for (unsigned i = 0; i < LDR_TRANSPORT_COUNT; i++) {
        now->sessions += (uint64_t)ldr_level(&m->transports[i].sessions);
    }
}

void ldr_monitor_snapshot(ldr_monitor_t *monitor)
{
    ldr_snapshot_t *now = monitor->now;

    LDR_HELD(&monitor->lock);
    memset(now, 0, sizeof(*now));
    now->when_ms = ldr_wall_ms(monitor->params.metrics->clock);
    look_node(monitor, now);
    look_metrics(monitor->params.metrics, now);
}

const ldr_snapshot_t *ldr_monitor_before(const ldr_monitor_t *m)
{
    uint64_t kept = LDR_MONITOR_RECENT + 1;

    LDR_HELD(&m->lock);
    return &m->recent[m->recent_count < kept ? 0 : m->recent_count % kept];
}

/* ---- rows ---- */

void ldr_timed_since(const ldr_snapshot_t *now, const ldr_snapshot_t *before,
                     ldr_timed_t which, ldr_histogram_t *sum)
{
    ldr_histogram_merge(sum, &now->timed[which]);
    ldr_histogram_since(sum, &before->timed[which]);
}

void ldr_times_since(const ldr_snapshot_t *now, const ldr_snapshot_t *before,
                     int which, ldr_histogram_t *sum)
{
    static const ldr_timed_t all[LDR_TIMES_COUNT][3] = {
        {LDR_TIMED_GET, LDR_TIMED_LEASE, LDR_TIMED_COUNT},
        {LDR_TIMED_PUT, LDR_TIMED_RESERVE, LDR_TIMED_COMMIT},
    };

    for (unsigned i = 0; i < 3 && all[which][i] != LDR_TIMED_COUNT; i++) {
        ldr_timed_since(now, before, all[which][i], sum);
    }
}

static void enter_row(ldr_monitor_t *m, ldr_snapshot_t *now,
                      const ldr_snapshot_t *before)
{
    ldr_history_row_t *row = &m->rows[m->row_count++ % LDR_MONITOR_ROWS];
    uint64_t *v = row->values;

    for (int i = 0; i < LDR_TIMES_COUNT; i++) {
        ldr_histogram_t sum = {0};

        ldr_times_since(now, before, i, &sum);
        now->p50_ns[i] = ldr_histogram_quantile_ns(&sum, 0.5);
        now->p99_ns[i] = ldr_histogram_quantile_ns(&sum, 0.99);
    }
    row->when_ms = now->when_ms;
    for (unsigned i = 0; i < LARDER_TIERS_MAX; i++) {
        *v++ = now->n.loads[i] - before->n.loads[i];
        *v++ = now->n.loaded_from[i] - before->n.loaded_from[i];
    }
#define C(name, field) *v++ = now->field - before->field;
#define L(name, field) *v++ = now->field;
    LDR_COLUMN_MAP(C, L)
#undef C
#undef L
}

void ldr_monitor_look(ldr_monitor_t *m)
{
    const uint64_t kept = LDR_MONITOR_RECENT + 1;

    ldr_mutex_lock(&m->lock);
    ldr_monitor_snapshot(m);
    if (m->recent_count > 0) {
        enter_row(m, m->now, &m->recent[(m->recent_count - 1) % kept]);
    }
    m->recent[m->recent_count++ % kept] = *m->now;
    ldr_mutex_unlock(&m->lock);
}

/* ---- life ---- */

static void *monitor_main(void *arg)
{
    ldr_monitor_t *m = arg;
    uint64_t next_ns = ldr_now_ns(m->params.clock);

    ldr_mutex_lock(&m->lock);
    while (!m->stop) {
        next_ns += LDR_MONITOR_MS * (uint64_t)1000000;
        while (!m->stop && ldr_cond_wait_until(&m->wake, &m->lock, next_ns)) {
        }
        if (!m->stop) {
            ldr_mutex_unlock(&m->lock);
            ldr_monitor_look(m);
            ldr_mutex_lock(&m->lock);
        }
        /* After a pause of the whole machine there is nothing to make up. */
        uint64_t now_ns = ldr_now_ns(m->params.clock);
        next_ns = next_ns < now_ns ? now_ns : next_ns;
    }
    ldr_mutex_unlock(&m->lock);
    return NULL;
}

larder_status_t ldr_monitor_open(const ldr_monitor_params_t *params,
                                 ldr_monitor_t **monitor_p)
{
    ldr_monitor_t *m = ldr_alloc(sizeof(*m));

    if (m == NULL || !ldr_cond_init(&m->wake)) {
        ldr_free(m);
        return LARDER_E_NO_MEMORY;
    }
    ldr_mutex_init(&m->lock);
    m->params = *params;
    m->rows = ldr_alloc(LDR_MONITOR_ROWS * sizeof(*m->rows));
    m->recent = ldr_alloc((LDR_MONITOR_RECENT + 1) * sizeof(*m->recent));
    m->now = ldr_alloc(sizeof(*m->now));
    m->spaces = ldr_alloc(LDR_SPACES_SHOWN * sizeof(*m->spaces));
    bool ok = m->rows != NULL && m->recent != NULL && m->now != NULL &&
              m->spaces != NULL;
    if (ok) {
        ldr_monitor_look(m);
        if (!params->manual) {
            m->started =
                ldr_thread_start(&m->thread, "larder-monitor", monitor_main, m);
            ok = m->started;
        }
    }
    if (!ok) {
        ldr_monitor_close(m);
        return LARDER_E_NO_MEMORY;
    }
    *monitor_p = m;
    return LARDER_OK;
}

void ldr_monitor_close(ldr_monitor_t *m)
{
    if (m == NULL) {
        return;
    }
    if (m->started) {
        ldr_mutex_lock(&m->lock);
        m->stop = true;
        pthread_cond_signal(&m->wake);
        ldr_mutex_unlock(&m->lock);
        pthread_join(m->thread, NULL);
    }
    pthread_cond_destroy(&m->wake);
    pthread_mutex_destroy(&m->lock);
    ldr_free(m->rows);
    ldr_free(m->recent);
    ldr_free(m->now);
    ldr_free(m->spaces);
    ldr_free(m);
}
