/* What the texts of metrics and status share. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "server/metrics.h"
#include "server/status.h"

#define LDR_LABEL_MAX 32u

extern const char *const ldr_outcome_names[LDR_OUTCOME_COUNT];
extern const char *const ldr_transport_names[LDR_TRANSPORT_COUNT];
extern const char *const ldr_auth_fail_names[LDR_AUTH_FAIL_COUNT];
extern const char *const ldr_refusal_names[LDR_REFUSAL_COUNT];

/* LARDER_E_BUSY: "busy". */
void ldr_status_label(larder_status_t status, char label[LDR_LABEL_MAX]);
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
    uint64_t cpu_us, resident_bytes;
    unsigned long threads;
    uint64_t fds, fds_max;
} ldr_process_t;

void ldr_process_look(ldr_process_t *p);

/* ---- the monitor ---- */

/* What a row of the history has. C(name): counted since the row before;
 * L(name): as it was then. */
#define LDR_COLUMN_MAP(C, L)                                                   \
    C(hits_dram)                                                               \
    C(hits_ssd)                                                                \
    C(hits_shared)                                                             \
    C(misses)                                                                  \
    C(asked) /* chunks that engines asked for */                               \
    C(found) /* of those */                                                    \
    C(saves)                                                                   \
    C(saved_bytes)                                                             \
    C(loaded_dram_bytes)                                                       \
    C(loaded_ssd_bytes)                                                        \
    C(loaded_shared_bytes)                                                     \
    C(written_bytes) /* to disks, reclaim included */                          \
    C(evicted_bytes)                                                           \
    C(requests)                                                                \
    C(failures)                                                                \
    L(load_p50_ns) /* requests that load: get, lease */                        \
    L(load_p99_ns)                                                             \
    L(save_p50_ns) /* requests that save: put, reserve, commit */              \
    L(save_p99_ns)                                                             \
    L(dram_used_bytes)                                                         \
    L(ssd_used_bytes)                                                          \
    L(sessions)                                                                \
    L(dirty_shards)

typedef enum ldr_column {
#define X(name) LDR_COLUMN_##name,
    LDR_COLUMN_MAP(X, X)
#undef X
        LDR_COLUMN_COUNT
} ldr_column_t;

#define LDR_COLUMN_LEVELS LDR_COLUMN_load_p50_ns /* the first L */

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

/* Everything that goes wrong, one after the other: causes of misses, statuses
 * of requests, failed authentications, refusals, then these. */
enum {
    LDR_TROUBLE_MISSES = 0,
    LDR_TROUBLE_STATUSES = LDR_TROUBLE_MISSES + LARDER_CAUSE_COUNT,
    LDR_TROUBLE_AUTH = LDR_TROUBLE_STATUSES + LDR_METRICS_STATUSES,
    LDR_TROUBLE_REFUSALS = LDR_TROUBLE_AUTH + LDR_AUTH_FAIL_COUNT,
    LDR_TROUBLE_SAVE_FULL = LDR_TROUBLE_REFUSALS + LDR_REFUSAL_COUNT,
    LDR_TROUBLE_SAVE_MISMATCH,
    LDR_TROUBLE_SAVE_CANCELED,
    LDR_TROUBLE_SAVE_FAILED,
    LDR_TROUBLE_SAVE_STALE,
    LDR_TROUBLE_SAVE_PAUSED,
    LDR_TROUBLE_DROPPED_EVICTED,
    LDR_TROUBLE_DROPPED_SIZE,
    LDR_TROUBLE_DROPPED_IO,
    LDR_TROUBLE_DISK_READ,
    LDR_TROUBLE_DISK_WRITE,
    LDR_TROUBLE_PAYLOAD,
    LDR_TROUBLE_REPORTS,
    LDR_TROUBLES
};

/* The state of what is counted, at one time. */
typedef struct ldr_snapshot {
    uint64_t when_ms; /* since 1970; 0: none yet */
    uint64_t values[LDR_COLUMN_COUNT];
    uint64_t troubles[LDR_TROUBLES];
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
    ldr_space_stats_t *spaces; /* the busiest, LDR_MONITOR_SPACES of them */
};

/* The state now, into monitor->now. Both with the lock, which they assert. */
void ldr_monitor_snapshot(ldr_monitor_t *monitor);
/* The oldest of the recent states. */
const ldr_snapshot_t *ldr_monitor_before(const ldr_monitor_t *monitor);
uint64_t ldr_monitor_wall_ms(void);
