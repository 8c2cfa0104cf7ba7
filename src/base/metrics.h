/*
 * The one table of metrics, and how they are written as Prometheus text.
 *
 * X(ID, TYPE, name, labels, help): TYPE is COUNTER, GAUGE or HISTOGRAM (of
 * seconds); labels are a comma list, "" for none. A metric is written by its
 * id, so one without a row here cannot be shown; docs/metrics.md has the same
 * rows, and a test compares them.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/histogram.h"
#include "base/text.h"

/* What a node knows, embedded or served. */
#define LDR_METRIC_NODE_MAP(X)                                                 \
    X(LOADS, COUNTER, "larder_loads_total", "tenant,tier",                     \
      "Shards loaded, by the tier that had them.")                             \
    X(MISSES, COUNTER, "larder_misses_total", "tenant,cause",                  \
      "Shards that could not be loaded, by cause.")                            \
    X(ASKED, COUNTER, "larder_asked_chunks_total", "tenant,outcome",           \
      "Chunks that engines asked for, once each: found or not_found.")         \
    X(SAVES, COUNTER, "larder_saves_total", "tenant,outcome",                  \
      "Shards that were to be saved, by what became of it.")                   \
    X(SAVES_DROPPED, COUNTER, "larder_saves_dropped_total", "tenant,reason",   \
      "Saved shards that never reached a disk: evicted before it, larger "     \
      "than a segment, or lost by a failed write.")                            \
    X(WRITES_REFUSED, COUNTER, "larder_writes_refused_total", "tenant,reason", \
      "Times a shard was not written down to ssd: used once so far, or the "   \
      "day's budget of writes is spent.")                                      \
    X(OFFERS, COUNTER, "larder_shared_offers_total", "tenant,outcome",         \
      "Saved shards offered to the shared tier: written, present there "       \
      "already, evicted before, or failed.")                                   \
    X(MOVED_BYTES, COUNTER, "larder_moved_bytes_total",                        \
      "tenant,direction,tier", "Payload saved and loaded, by tier.")           \
    X(EVICTED_CHUNKS, COUNTER, "larder_evicted_chunks_total", "tenant",        \
      "Chunks evicted from dram to make room.")                                \
    X(EVICTED_BYTES, COUNTER, "larder_evicted_bytes_total", "tenant",          \
      "Payload evicted from dram to make room.")                               \
    X(PASSED_CHUNKS, COUNTER, "larder_passed_chunks_total", "tenant",          \
      "Chunks passed on to ssd, since what is in dram is worth more.")         \
    X(POLICY_RANKS, GAUGE, "larder_policy_ranks", "tenant,policy",             \
      "1 for what decides which chunks leave dram: learned or lru.")           \
    X(POLICY_SWITCHES, COUNTER, "larder_policy_switches_total", "tenant",      \
      "Times that has changed.")                                               \
    X(POLICY_REQUESTS, COUNTER, "larder_policy_requests_total", "tenant",      \
      "Requests that the policy was told of.")                                 \
    X(POLICY_HITS, COUNTER, "larder_policy_shadow_hits_total",                 \
      "tenant,policy",                                                         \
      "Chunks of these requests that dram had since it was full (learned), "   \
      "and that lru would have had in its place (lru).")                       \
    X(POLICY_BYTES, GAUGE, "larder_policy_bytes", "tenant",                    \
      "Memory that the policy takes.")                                         \
    X(RECLAIMED_SHARDS, COUNTER, "larder_reclaimed_shards_total", "tenant",    \
      "Shards dropped from ssd to make room.")                                 \
    X(REMOVES, COUNTER, "larder_removes_total", "tenant", "Shards removed.")   \
    X(RESETS, COUNTER, "larder_resets_total", "tenant", "Spaces reset.")       \
    X(TENANT_DRAM, GAUGE, "larder_tenant_dram_bytes", "tenant",                \
      "Memory of the dram tier that the tenant uses.")                         \
    X(TENANT_DRAM_MAX, GAUGE, "larder_tenant_dram_max_bytes", "tenant",        \
      "The tenant's limit in the dram tier; 0: none of its own.")              \
    X(TENANT_OVERDUE, GAUGE, "larder_tenant_overdue_bytes", "tenant",          \
      "Memory that the tenant was asked to give up and still keeps; it "       \
      "counts against its share.")                                             \
    X(TENANT_SSD, GAUGE, "larder_tenant_ssd_bytes", "tenant",                  \
      "Bytes of the ssd tier that the tenant uses.")                           \
    X(TENANT_SSD_MAX, GAUGE, "larder_tenant_ssd_max_bytes", "tenant",          \
      "The tenant's limit in the ssd tier; 0: none of its own.")               \
    X(PINNED, GAUGE, "larder_pinned_bytes", "tenant",                          \
      "Payload that is evicted last.")                                         \
    X(SPACE_INFO, GAUGE, "larder_space_info", "tenant,space,label",            \
      "1; the label that engines give the space: a model and its dtype.")      \
    X(SPACE_CHUNKS, GAUGE, "larder_space_chunks", "tenant,space",              \
      "Chunks of a space, in any tier; of the 50 busiest spaces.")             \
    X(SPACE_DRAM, GAUGE, "larder_space_dram_bytes", "tenant,space",            \
      "Memory of the dram tier that the space uses.")                          \
    X(SPACE_SSD, GAUGE, "larder_space_ssd_bytes", "tenant,space",              \
      "Bytes of the ssd tier that the space uses.")                            \
    X(SPACE_ASKED, COUNTER, "larder_space_asked_chunks_total",                 \
      "tenant,space,outcome",                                                  \
      "Chunks of the space that engines asked for: found or not_found.")       \
    X(SPACE_LOADS, COUNTER, "larder_space_loads_total",                        \
      "tenant,space,outcome", "Loads of shards of the space: hit or miss.")    \
    X(SPACE_MOVED, COUNTER, "larder_space_moved_bytes_total",                  \
      "tenant,space,direction", "Payload of the space saved and loaded.")      \
    X(SPACES, GAUGE, "larder_spaces", "", "Spaces known to the node.")         \
    X(ENTRIES, GAUGE, "larder_entries", "", "Chunks in the index.")            \
    X(INDEX_BYTES, GAUGE, "larder_index_bytes", "", "Memory of the index.")    \
    X(DRAM, GAUGE, "larder_dram_bytes", "", "Size of the dram tier.")          \
    X(DRAM_RESIDENT, GAUGE, "larder_dram_resident_bytes", "",                  \
      "Memory of the dram tier that was made resident.")                       \
    X(DRAM_USED, GAUGE, "larder_dram_used_bytes", "",                          \
      "Memory of the dram tier in use.")                                       \
    X(HELD_CHUNKS, GAUGE, "larder_held_chunks", "",                            \
      "Chunks held by leases, reservations, copies and writes.")               \
    X(DIRTY_SHARDS, GAUGE, "larder_dirty_shards", "",                          \
      "Saved shards that wait to be written down.")                            \
    X(READS_WAITING, GAUGE, "larder_reads_waiting", "",                        \
      "Shards that wait to be read from a disk.")                              \
    X(READS_FLYING, GAUGE, "larder_reads_in_flight", "",                       \
      "Reads that disks are busy with.")                                       \
    X(WRITES_FLYING, GAUGE, "larder_writes_in_flight", "",                     \
      "Batches of shards that disks are busy writing.")                        \
    X(COPY_SECONDS, HISTOGRAM, "larder_copy_seconds", "direction",             \
      "Copies between engines and the dram tier made by the node itself.")     \
    X(IO_URING, GAUGE, "larder_io_uring", "",                                  \
      "1: io_uring, 0: threads with plain reads and writes.")                  \
    X(MODE, GAUGE, "larder_mode", "mode", "1 for the mode the node is in.")    \
    X(POISONED, GAUGE, "larder_poisoned", "",                                  \
      "1 once the process has found a broken invariant.")                      \
    X(DISK_ON, GAUGE, "larder_disk_on", "path",                                \
      "1 while the disk takes and gives shards.")                              \
    X(DISK_MAX, GAUGE, "larder_disk_max_bytes", "path",                        \
      "Size that was configured.")                                             \
    X(DISK_USED, GAUGE, "larder_disk_used_bytes", "path",                      \
      "Size of its files.")                                                    \
    X(DISK_SEGMENTS, GAUGE, "larder_disk_segments", "path",                    \
      "Its segment files.")                                                    \
    X(DISK_LOST, COUNTER, "larder_disk_segments_lost_total", "path",           \
      "Segments lost by a failed write or sync, or missed at the start.")      \
    X(DISK_WRITTEN, COUNTER, "larder_disk_written_bytes_total", "path",        \
      "Bytes written for saves.")                                              \
    X(DISK_CARRIED, COUNTER, "larder_disk_carried_bytes_total", "path",        \
      "Bytes written again by reclaim.")                                       \
    X(DISK_READ, COUNTER, "larder_disk_read_bytes_total", "path",              \
      "Bytes read for loads.")                                                 \
    X(DISK_ERRORS, COUNTER, "larder_disk_errors_total", "path,operation",      \
      "Failed reads, writes and syncs.")                                       \
    X(DISK_SECONDS, HISTOGRAM, "larder_disk_seconds", "path,operation",        \
      "Reads of a shard and writes of a batch, from submit to completion.")    \
    X(WRITE_AMPLIFICATION, GAUGE, "larder_write_amplification_ratio", "",      \
      "Bytes written to disks for each byte written for a save.")              \
    X(SHARED_ON, GAUGE, "larder_shared_on", "operation",                       \
      "1 while the shared tier can be read, and written to.")                  \
    X(SHARED_REASON, GAUGE, "larder_shared_reason", "reason",                  \
      "1, with the reason, while the shared tier or a tenant's part of it is " \
      "off or only read; 0, with none, while all is well.")                    \
    X(SHARED_OPEN, GAUGE, "larder_shared_open_tenants", "",                    \
      "Tenants whose data there anybody can forge who can write to the "       \
      "storage: they have no secret.")                                         \
    X(SHARED_OBJECTS, GAUGE, "larder_shared_objects", "",                      \
      "Objects of the shared tier that this node knows of.")                   \
    X(SHARED_SHARDS, GAUGE, "larder_shared_shards", "", "Shards in them.")     \
    X(SHARED_BYTES, GAUGE, "larder_shared_bytes", "kind",                      \
      "Bytes of them: live, or dead (of no use any more).")                    \
    X(SHARED_MAP_BYTES, GAUGE, "larder_shared_map_bytes", "",                  \
      "Memory that knowing them takes.")                                       \
    X(SHARED_WAITING, GAUGE, "larder_shared_waiting_shards", "",               \
      "Saved shards that wait to be written to the shared tier.")              \
    X(SHARED_MOVED, COUNTER, "larder_shared_moved_bytes_total", "operation",   \
      "Bytes this node read from and wrote to the shared tier.")               \
    X(SHARED_ERRORS, COUNTER, "larder_shared_errors_total", "operation",       \
      "Reads and writes of the shared tier that failed.")                      \
    X(SHARED_LOST, COUNTER, "larder_shared_lost_total", "reason",              \
      "Reads of what was gone, or was not what had been written.")             \
    X(SHARED_SECONDS, HISTOGRAM, "larder_shared_seconds", "operation",         \
      "Reads of a shard and writes of an object.")                             \
    X(SHARED_STUCK, GAUGE, "larder_shared_stuck_calls", "",                    \
      "Calls of the shared tier that hang beyond their deadline.")             \
    X(SHARED_FOLLOWED, GAUGE, "larder_shared_followed_seconds", "",            \
      "How long ago the shared tier was last asked what is new.")              \
    X(SHARED_CLEANER, GAUGE, "larder_shared_cleaner", "",                      \
      "1 while this node cleans up the shared tier.")                          \
    X(SHARED_CLEANED, COUNTER, "larder_shared_cleaned_bytes_total", "",        \
      "Bytes that it has removed there.")

/* What only the daemon knows. */
#define LDR_METRIC_SERVER_MAP(X)                                               \
    X(REQUESTS, COUNTER, "larder_requests_total", "op,status",                 \
      "Requests answered, by operation and outcome.")                          \
    X(SLOWEST, GAUGE, "larder_slowest_request_seconds",                        \
      "op,transport,tenant,space,status",                                      \
      "The slowest requests of the last 10 minutes, one of each kind.")        \
    X(REQUEST_SECONDS, HISTOGRAM, "larder_request_seconds", "op",              \
      "Requests, from arrival to reply.")                                      \
    X(ERRORS, COUNTER, "larder_errors_total", "status",                        \
      "Requests that failed, by status.")                                      \
    X(TENANT_REQUESTS, COUNTER, "larder_tenant_requests_total",                \
      "tenant,status", "Requests of the tenant, by outcome.")                  \
    X(TENANT_BYTES, COUNTER, "larder_tenant_bytes_total", "tenant,direction",  \
      "Payload that the tenant's sessions sent in and took out.")              \
    X(TENANT_SESSIONS, GAUGE, "larder_tenant_sessions", "tenant",              \
      "Sessions of the tenant.")                                               \
    X(TENANT_THROTTLED, COUNTER, "larder_throttled_requests_total", "tenant",  \
      "Requests that the tenant's rate made wait.")                            \
    X(TRANSPORT_BYTES, COUNTER, "larder_transport_bytes_total",                \
      "transport,direction", "Payload in and out, by transport.")              \
    X(SESSIONS, GAUGE, "larder_sessions", "transport",                         \
      "Sessions that are authenticated.")                                      \
    X(SESSIONS_OPENED, COUNTER, "larder_sessions_opened_total", "transport",   \
      "Sessions that were let in.")                                            \
    X(SESSIONS_DIED, COUNTER, "larder_sessions_died_total", "",                \
      "Sessions whose process was found gone.")                                \
    X(CONNECTING, GAUGE, "larder_connecting", "",                              \
      "Connections that are not authenticated yet.")                           \
    X(AUTH_FAILURES, COUNTER, "larder_auth_failures_total", "reason",          \
      "Peers that were not let in.")                                           \
    X(REFUSED, COUNTER, "larder_refused_connections_total", "reason",          \
      "Connections that were refused or ended by the daemon.")                 \
    X(VERSION_REFUSALS, COUNTER, "larder_version_refusals_total", "",          \
      "Peers without a protocol version in common.")                           \
    X(LEASES, GAUGE, "larder_leases", "", "Leases held by sessions.")          \
    X(RESERVATIONS, GAUGE, "larder_reservations", "",                          \
      "Reservations held by sessions.")                                        \
    X(QUARANTINED, GAUGE, "larder_quarantined_leases", "",                     \
      "Leases and reservations whose session is gone while its process "       \
      "lives.")                                                                \
    X(ABANDONED, COUNTER, "larder_abandoned_leases_total", "",                 \
      "Leases and reservations taken back from processes that are gone.")      \
    X(EXTENTS_RECLAIMED, COUNTER, "larder_reclaimed_extents_total", "",        \
      "Extents of the arena that changed their tenant.")                       \
    X(REVOKES, GAUGE, "larder_revokes_pending", "",                            \
      "Sessions that were asked to unmap an extent and did not yet.")          \
    X(JOBS_QUEUED, GAUGE, "larder_jobs_queued", "",                            \
      "Operations that wait for a thread.")                                    \
    X(JOBS_RUNNING, GAUGE, "larder_jobs_running", "",                          \
      "Operations that a thread is busy with.")                                \
    X(REPLY_BYTES, GAUGE, "larder_reply_queue_bytes", "",                      \
      "Bytes of replies that peers did not take yet.")                         \
    X(PAYLOAD_MISMATCHES, COUNTER, "larder_payload_mismatches_total", "",      \
      "Payloads that did not match their checksum on arrival.")                \
    X(REPORTS, COUNTER, "larder_reports_total", "",                            \
      "Shards that a client found wrong.")                                     \
    X(RELOADS, COUNTER, "larder_reloads_total", "outcome",                     \
      "Times the configuration was read again.")                               \
    X(TRACE_ON, GAUGE, "larder_trace_on", "",                                  \
      "1 while requests are written to a trace.")                              \
    X(TRACED, COUNTER, "larder_traced_requests_total", "outcome",              \
      "Requests told to the trace: written, repeated (a line has it), or "     \
      "dropped (no room, or the trace has ended).")                            \
    X(ADMIN_ON, GAUGE, "larder_admin_on", "url",                               \
      "1 while dashboard and metrics are served there; 0: another program "    \
      "has the port.")                                                         \
    X(BUILD, GAUGE, "larder_build_info", "version,build",                      \
      "1, with what this daemon is.")                                          \
    X(START, GAUGE, "process_start_time_seconds", "",                          \
      "When the daemon started, in seconds since 1970.")                       \
    X(CPU, COUNTER, "process_cpu_seconds_total", "",                           \
      "Processor time the daemon has used.")                                   \
    X(RESIDENT, GAUGE, "process_resident_memory_bytes", "",                    \
      "Memory of the daemon, the arena included.")                             \
    X(THREADS, GAUGE, "process_threads", "", "Threads of the daemon.")         \
    X(FDS, GAUGE, "process_open_fds", "", "Descriptors the daemon has open.")  \
    X(FDS_MAX, GAUGE, "process_max_fds", "",                                   \
      "Descriptors the daemon may have open.")

#define LDR_METRIC_MAP(X)                                                      \
    LDR_METRIC_NODE_MAP(X)                                                     \
    LDR_METRIC_SERVER_MAP(X)

typedef enum ldr_metric {
#define X(id, type, name, labels, help) LDR_METRIC_##id,
    LDR_METRIC_MAP(X)
#undef X
        LDR_METRIC_COUNT
} ldr_metric_t;

typedef enum ldr_metric_type {
    LDR_METRIC_TYPE_COUNTER,
    LDR_METRIC_TYPE_GAUGE,
    LDR_METRIC_TYPE_HISTOGRAM
} ldr_metric_type_t;

typedef struct ldr_metric_info {
    ldr_metric_type_t type;
    const char *name, *labels, *help;
} ldr_metric_info_t;

extern const ldr_metric_info_t ldr_metric_table[LDR_METRIC_COUNT];
const char *ldr_metric_type_text(ldr_metric_type_t type);

/*
 * Metrics on their way to text. All values of one metric are written in a row:
 * the format wants it, and a metric that is begun again is written no more,
 * which the tests would see.
 */
typedef struct ldr_exposition {
    ldr_text_t text;
    int current; /* an ldr_metric_t, or -1 */
    uint8_t begun[LDR_METRIC_COUNT];
} ldr_exposition_t;

void ldr_exposition_init(ldr_exposition_t *e, char *text, size_t size);

/* The values of a metric's labels, in the order of its row. */
#define LDR_LABELS(...) ((const char *const[]){__VA_ARGS__, NULL})
#define LDR_NO_LABELS ((const char *const[]){NULL})

/* One value. There have to be as many labels as the row has. */
void ldr_metric_put(ldr_exposition_t *e, ldr_metric_t id,
                    const char *const *labels, uint64_t value);
void ldr_metric_put_signed(ldr_exposition_t *e, ldr_metric_t id,
                           const char *const *labels, int64_t value);
/* value / 10^decimals */
void ldr_metric_put_fixed(ldr_exposition_t *e, ldr_metric_t id,
                          const char *const *labels, uint64_t value,
                          unsigned decimals);
/* Takes h as it is now: another thread may be adding to it. */
void ldr_metric_put_histogram(ldr_exposition_t *e, ldr_metric_t id,
                              const char *const *labels,
                              const ldr_histogram_t *h);
