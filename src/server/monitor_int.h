/* What the texts of metrics and status share. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "node/metrics.h"
#include "server/metrics.h"
#include "server/monitor.h"

/* Names of places in arrays; NULL: nothing is counted there. */
const char *ldr_outcome_label(unsigned i);
const char *ldr_transport_label(unsigned i);
const char *ldr_auth_fail_label(unsigned i);
const char *ldr_refusal_label(unsigned i);
const char *ldr_failure_label(unsigned i); /* of the status -i */

/* LARDER_E_BUSY: "busy". Until the thread's next call. */
const char *ldr_status_label(larder_status_t status);
const char *ldr_op_label(unsigned opcode);
/* Requests of this kind, however they ended. */
uint64_t ldr_op_total(const ldr_server_metrics_t *m, unsigned opcode);

static inline uint64_t ldr_counted(const uint64_t *counter)
{
    return __atomic_load_n(counter, __ATOMIC_RELAXED);
}

static inline int64_t ldr_level(const int64_t *level)
{
    return __atomic_load_n(level, __ATOMIC_RELAXED);
}

typedef struct ldr_process {
    ldr_milli_t start;
    ldr_micro_t cpu;
    uint64_t resident_bytes;
    unsigned long threads;
    uint64_t fds, fds_max;
} ldr_process_t;

void ldr_process_look(const ldr_server_metrics_t *m, ldr_process_t *p);

/* Of what ldr_tenant_count_t, ldr_server_metrics_t, ldr_process_t have. */
extern const ldr_row_t ldr_rows_client[], ldr_rows_server[], ldr_rows_process[];

/* The cluster's figures (cluster.c); NULL: there is none. */
void ldr_cluster_expose(struct ldr_cluster *cluster, ldr_exposition_t *e);
void ldr_cluster_json(struct ldr_cluster *cluster, ldr_node_t *node,
                      ldr_json_t *j);

typedef struct ldr_slow_names {
    const char *op, *by; /* by: NULL: nobody knows */
    const char *status;  /* as ldr_status_label() */
    char tenant[LDR_NAME_MAX], space[LDR_SPACE_LABEL];
} ldr_slow_names_t;

void ldr_slow_names(ldr_node_t *node, const ldr_slow_t *s,
                    ldr_slow_names_t *out);

/* ---- the monitor ---- */

/* What a row of the history has, of a snapshot. C(name, field): counted since
 * the row before; L(name, field): as it was then. Before these there are two
 * for each tier: its loads, and their bytes, counted since the row before. */
#define LDR_COLUMN_MAP(C, L)                                                   \
    C(misses, sum.misses)                                                      \
    C(asked, n.asked_chunks)                                                   \
    C(found, n.found_chunks)                                                   \
    C(saves, n.saves_stored)                                                   \
    C(saved_bytes, n.saved_bytes)                                              \
    C(written_bytes, written_bytes)                                            \
    C(evicted_bytes, n.evicted_bytes)                                          \
    C(requests, requests)                                                      \
    C(failures, failures)                                                      \
    L(load_p50_ns, p50_ns[LDR_TIMES_LOAD])                                     \
    L(load_p99_ns, p99_ns[LDR_TIMES_LOAD])                                     \
    L(save_p50_ns, p50_ns[LDR_TIMES_SAVE])                                     \
    L(save_p99_ns, p99_ns[LDR_TIMES_SAVE])                                     \
    L(dram_used_bytes, dram_used_bytes)                                        \
    L(ssd_used_bytes, ssd_used_bytes)                                          \
    L(sessions, sessions)                                                      \
    L(dirty_shards, dirty_shards)

#define X(name, field) +1
enum { LDR_COLUMN_COUNT = 2 * LARDER_TIERS_MAX + LDR_COLUMN_MAP(X, X) };
#undef X

/* Operations whose times are shown: those of the wire, and the disks'. */
typedef enum ldr_timed {
#define X(name, value, before, text) LDR_TIMED_##name,
    LDR_OPCODE_MAP(X)
#undef X
        LDR_TIMED_DISK_READ,
    LDR_TIMED_DISK_WRITE,
    LDR_TIMED_COUNT
} ldr_timed_t;

extern const char *const ldr_timed_names[LDR_TIMED_COUNT];

/* Those that load: get, lease; and those that save: put, reserve, commit. */
enum { LDR_TIMES_LOAD, LDR_TIMES_SAVE, LDR_TIMES_COUNT };

/* The state of what is counted, at one time. */
typedef struct ldr_snapshot {
    uint64_t when_ms; /* since 1970; 0: none yet */
    ldr_counters_t n;
    ldr_sums_t sum;
    uint64_t statuses[LDR_METRICS_STATUSES];
    uint64_t auth_fails[LDR_AUTH_FAIL_COUNT];
    uint64_t refusals[LDR_REFUSAL_COUNT];
    uint64_t events[LDR_EVENT_COUNT];
    uint64_t requests, failures, sessions;
    uint64_t written_bytes; /* to disks, reclaim included */
    uint64_t read_errors, write_errors;
    uint64_t dram_used_bytes, ssd_used_bytes, dirty_shards;
    /* Since the look before. */
    uint64_t p50_ns[LDR_TIMES_COUNT], p99_ns[LDR_TIMES_COUNT];
    ldr_histogram_t timed[LDR_TIMED_COUNT];
} ldr_snapshot_t;

typedef struct ldr_history_row {
    uint64_t when_ms;
    uint64_t values[LDR_COLUMN_COUNT];
} ldr_history_row_t;

struct ldr_monitor {
    ldr_monitor_params_t params;
    pthread_t thread;
    bool started;
    bool stop; /* under lock */
    pthread_cond_t wake;
    pthread_mutex_t lock;    /* over all below */
    ldr_history_row_t *rows; /* a ring of LDR_MONITOR_ROWS */
    uint64_t row_count;      /* entered so far */
    ldr_snapshot_t *recent;  /* a ring of LDR_MONITOR_RECENT + 1 */
    uint64_t recent_count;
    ldr_snapshot_t *now;       /* where a state is put together */
    ldr_node_figures_t node;   /* of the same time */
    ldr_space_stats_t *spaces; /* the busiest, LDR_MONITOR_SPACES of them */
};

/* The state now, into monitor->now. Both with the lock, which they assert. */
void ldr_monitor_snapshot(ldr_monitor_t *monitor);
/* The oldest of the recent states. */
const ldr_snapshot_t *ldr_monitor_before(const ldr_monitor_t *monitor);
/* Adds the times between two states: of one operation, or of all that load or
 * save. */
void ldr_timed_since(const ldr_snapshot_t *now, const ldr_snapshot_t *before,
                     ldr_timed_t which, ldr_histogram_t *sum);
void ldr_times_since(const ldr_snapshot_t *now, const ldr_snapshot_t *before,
                     int which, ldr_histogram_t *sum);
