/* The monitor: what happened, in rows of a few seconds. */
#include "server/status.h"

#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/thread.h"
#include "node/metrics.h"
#include "server/status_int.h"

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

uint64_t ldr_monitor_wall_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* ---- looking ---- */

static void look_disks(ldr_snapshot_t *now, const larder_stats_t *s)
{
    for (uint64_t i = 0; i < s->disks; i++) {
        const larder_disk_stats_t *d = &s->disk[i];

        now->values[LDR_COLUMN_written_bytes] +=
            d->written_bytes + d->carried_bytes;
        now->values[LDR_COLUMN_ssd_used_bytes] += d->bytes_used;
        now->troubles[LDR_TROUBLE_DISK_READ] += d->read_errors;
        now->troubles[LDR_TROUBLE_DISK_WRITE] += d->write_errors;
    }
}

static void look_node(ldr_node_t *node, ldr_snapshot_t *now)
{
    uint64_t *v = now->values, *t = now->troubles;
    ldr_counters_t n;
    larder_stats_t s;
    ldr_queues_t q;

    ldr_node_stats(node, LDR_NIL, &s);
    ldr_node_counters(node, &n);
    ldr_node_queues(node, &q);
    v[LDR_COLUMN_hits_dram] = n.loads[LARDER_TIER_DRAM];
    v[LDR_COLUMN_hits_ssd] = n.loads[LARDER_TIER_SSD];
    v[LDR_COLUMN_hits_shared] = n.loads[LARDER_TIER_SHARED];
    for (int i = LARDER_CAUSE_ABSENT; i < LARDER_CAUSE_COUNT; i++) {
        v[LDR_COLUMN_misses] += n.misses[i];
        t[LDR_TROUBLE_MISSES + i] = n.misses[i];
    }
    v[LDR_COLUMN_asked] = n.asked_chunks;
    v[LDR_COLUMN_found] = n.found_chunks;
    v[LDR_COLUMN_saves] = n.saves_stored;
    v[LDR_COLUMN_saved_bytes] = n.saved_bytes;
    v[LDR_COLUMN_loaded_ssd_bytes] = n.loaded_from[LARDER_TIER_SSD];
    v[LDR_COLUMN_loaded_shared_bytes] = n.loaded_from[LARDER_TIER_SHARED];
    v[LDR_COLUMN_loaded_dram_bytes] = n.loaded_from[LARDER_TIER_DRAM];
    v[LDR_COLUMN_evicted_bytes] = n.evicted_bytes;
    v[LDR_COLUMN_dram_used_bytes] = s.dram_used_bytes;
    v[LDR_COLUMN_dirty_shards] = q.dirty_shards;
    t[LDR_TROUBLE_SAVE_FULL] = n.saves_full;
    t[LDR_TROUBLE_SAVE_MISMATCH] = n.saves_mismatch;
    t[LDR_TROUBLE_SAVE_CANCELED] = n.saves_canceled;
    t[LDR_TROUBLE_SAVE_FAILED] = n.saves_failed;
    t[LDR_TROUBLE_SAVE_STALE] = n.saves_stale;
    t[LDR_TROUBLE_SAVE_PAUSED] = n.saves_paused;
    t[LDR_TROUBLE_DROPPED_EVICTED] = n.queue_evicted[0];
    t[LDR_TROUBLE_DROPPED_SIZE] = n.saves_dropped_size;
    t[LDR_TROUBLE_DROPPED_IO] = n.saves_dropped_io;
    look_disks(now, &s);
    ldr_node_times(node, LARDER_TIER_SSD, &now->timed[LDR_TIMED_DISK_READ],
                   &now->timed[LDR_TIMED_DISK_WRITE]);
}

static void look_metrics(const ldr_server_metrics_t *m, ldr_snapshot_t *now)
{
    uint64_t *v = now->values, *t = now->troubles;

    for (size_t i = 0; i < OPCODES; i++) {
        ldr_histogram_read(&m->ops[opcodes[i]].latency, &now->timed[i]);
        v[LDR_COLUMN_requests] += ldr_op_total(m, opcodes[i]);
    }
    for (unsigned i = 0; i < LDR_METRICS_STATUSES; i++) {
        t[LDR_TROUBLE_STATUSES + i] = ldr_counted(&m->statuses[i]);
        v[LDR_COLUMN_failures] += t[LDR_TROUBLE_STATUSES + i];
    }
    for (unsigned i = 0; i < LDR_AUTH_FAIL_COUNT; i++) {
        t[LDR_TROUBLE_AUTH + i] = ldr_counted(&m->auth_fails[i]);
    }
    for (unsigned i = 0; i < LDR_REFUSAL_COUNT; i++) {
        t[LDR_TROUBLE_REFUSALS + i] = ldr_counted(&m->refusals[i]);
    }
    t[LDR_TROUBLE_PAYLOAD] =
        ldr_counted(&m->events[LDR_EVENT_CHECKSUM_MISMATCH]);
    t[LDR_TROUBLE_REPORTS] = ldr_counted(&m->events[LDR_EVENT_REPORTS]);
    for (unsigned i = 0; i < LDR_TRANSPORT_COUNT; i++) {
        v[LDR_COLUMN_sessions] += (uint64_t)ldr_level(&m->sessions[i]);
    }
}

void ldr_monitor_snapshot(ldr_monitor_t *monitor)
{
    ldr_snapshot_t *now = monitor->now;

    LDR_HELD(&monitor->lock);
    memset(now, 0, sizeof(*now));
    now->when_ms = ldr_monitor_wall_ms();
    look_node(monitor->params.node, now);
    look_metrics(monitor->params.metrics, now);
}

const ldr_snapshot_t *ldr_monitor_before(const ldr_monitor_t *m)
{
    uint64_t kept = LDR_MONITOR_RECENT + 1;

    LDR_HELD(&m->lock);
    return &m->recent[m->recent_count < kept ? 0 : m->recent_count % kept];
}

/* ---- rows ---- */

/* What came since `before`, of two operations or more together. */
static void times(const ldr_snapshot_t *now, const ldr_snapshot_t *before,
                  const ldr_timed_t *which, unsigned count, uint64_t *p50_ns,
                  uint64_t *p99_ns)
{
    ldr_histogram_t sum = {0};

    for (unsigned i = 0; i < count; i++) {
        ldr_histogram_merge(&sum, &now->timed[which[i]]);
        ldr_histogram_since(&sum, &before->timed[which[i]]);
    }
    *p50_ns = ldr_histogram_quantile_ns(&sum, 0.5);
    *p99_ns = ldr_histogram_quantile_ns(&sum, 0.99);
}

static void enter_row(ldr_monitor_t *m, const ldr_snapshot_t *now,
                      const ldr_snapshot_t *before)
{
    static const ldr_timed_t loads[] = {LDR_TIMED_GET, LDR_TIMED_LEASE};
    static const ldr_timed_t saves[] = {LDR_TIMED_PUT, LDR_TIMED_RESERVE,
                                        LDR_TIMED_COMMIT};
    ldr_history_row_t *row = &m->rows[m->row_count++ % LDR_MONITOR_ROWS];
    uint64_t *v = row->values;

    row->when_ms = now->when_ms;
    memcpy(v, now->values, sizeof(row->values));
    for (unsigned i = 0; i < LDR_COLUMN_LEVELS; i++) {
        v[i] -= before->values[i];
    }
    times(now, before, loads, 2, &v[LDR_COLUMN_load_p50_ns],
          &v[LDR_COLUMN_load_p99_ns]);
    times(now, before, saves, 3, &v[LDR_COLUMN_save_p50_ns],
          &v[LDR_COLUMN_save_p99_ns]);
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
    uint64_t next_ns = ldr_now_ns(&ldr_clock_real);

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
        uint64_t now_ns = ldr_now_ns(&ldr_clock_real);
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
