/* Figures: the struct, and the same as Prometheus text. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "node/node.h"
#include "node/ssd.h"

void ldr_node_measured(ldr_node_t *node, larder_tier_t tier, uint64_t bytes,
                       uint64_t ns)
{
    double *speed =
        tier == LARDER_TIER_DRAM ? &node->dram_speed : &node->ssd_speed;

    /* Small transfers measure the call, not the tier. */
    if (bytes >= 65536 && ns > 0) {
        *speed += ((double)bytes * 1e9 / (double)ns - *speed) / 16;
    }
}

uint64_t ldr_node_expect_us(ldr_node_t *node,
                            const uint64_t bytes[LARDER_TIER_COUNT])
{
    ldr_node_lock(node);
    double s = (double)bytes[LARDER_TIER_DRAM] / node->dram_speed +
               (double)bytes[LARDER_TIER_SSD] / node->ssd_speed;
    ldr_node_unlock(node);
    return (uint64_t)(s * 1e6);
}

static void disk_stats(const ldr_ssd_t *ssd, larder_disk_stats_t *out)
{
    snprintf(out->path, sizeof(out->path), "%s", ssd->params.path);
    snprintf(out->reason, sizeof(out->reason), "%s", ssd->reason);
    out->on = ssd->on;
    out->bytes_max = ssd->params.bytes;
    out->segments = ssd->files;
    out->segments_lost = ssd->segments_lost;
    if (ssd->opened) {
        out->bytes_used =
            ssd->files * ssd->disk.segment_bytes + 2 * LDR_SUPER_BYTES;
    }
    out->written_bytes = ssd->written_bytes;
    out->carried_bytes = ssd->carried_bytes;
    out->read_bytes = ssd->read_bytes;
    out->write_errors = ssd->write_errors;
    out->read_errors = ssd->read_errors;
}

void ldr_node_stats(ldr_node_t *node, larder_stats_t *out)
{
    ldr_store_t *s = &node->store;
    const ldr_counters_t *n = &s->n;

    memset(out, 0, sizeof(*out));
    out->struct_bytes = sizeof(*out);
    ldr_node_lock(node);
    out->saves_stored = n->saves_stored;
    out->saves_present = n->saves_present;
    out->saves_mismatch = n->saves_mismatch;
    out->saves_full = n->saves_full;
    out->saves_canceled = n->saves_canceled;
    out->saves_failed = n->saves_failed;
    out->saves_stale = n->saves_stale;
    out->saves_dropped_evicted = n->saves_dropped_evicted;
    out->saves_dropped_size = n->saves_dropped_size;
    out->saves_dropped_io = n->saves_dropped_io;
    out->loads_dram = n->loads_dram;
    out->loads_ssd = n->loads_ssd;
    memcpy(out->misses, n->misses, sizeof(out->misses));
    out->evicted_chunks = n->evicted_chunks;
    out->evicted_bytes = n->evicted_bytes;
    out->saved_bytes = n->saved_bytes;
    out->loaded_bytes = n->loaded_bytes;
    out->entries = s->index.entry_count;
    out->entry_bytes = ldr_index_bytes(&s->index);
    out->dram_bytes = (uint64_t)s->arena.page_count * LDR_PAGE;
    out->dram_resident_bytes = (uint64_t)s->arena.ready_count * LDR_PAGE;
    out->dram_used_bytes =
        (uint64_t)(s->arena.ready_count - s->arena.free_count) * LDR_PAGE;
    out->dram_leased_chunks = s->held_chunks;
    for (uint32_t i = 0; i < s->tenant_count; i++) {
        out->pinned_bytes += s->tenants[i].pinned_bytes;
    }
    out->removes = n->removes;
    out->resets = n->resets;
    out->io_uring =
        node->io != NULL && strcmp(node->io->ops->name, "io_uring") == 0;
    out->disks = node->ssd_count;
    for (unsigned i = 0; i < node->ssd_count; i++) {
        disk_stats(&node->ssds[i], &out->disk[i]);
    }
    ldr_node_unlock(node);
}

/* ---- Prometheus text ---- */

typedef struct text {
    char *at;
    size_t size, length;
} text_t;

static void add(text_t *t, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void add(text_t *t, const char *format, ...)
{
    size_t left = t->length < t->size ? t->size - t->length : 0;
    va_list args;

    va_start(args, format);
    int n = vsnprintf(left > 0 ? t->at + t->length : NULL, left, format, args);
    va_end(args);
    t->length += n > 0 ? (size_t)n : 0;
}

static void add_head(text_t *t, const char *name, const char *type,
                     const char *help)
{
    add(t, "# HELP larder_%s %s\n# TYPE larder_%s %s\n", name, help, name,
        type);
}

static void add_gauge(text_t *t, const char *name, const char *help,
                      uint64_t value)
{
    add_head(t, name, "gauge", help);
    add(t, "larder_%s %" PRIu64 "\n", name, value);
}

/* Every gauge of the struct that has one value. */
#define GAUGE_MAP(X)                                                           \
    X(entries, "chunks in the index")                                          \
    X(entry_bytes, "memory of the index")                                      \
    X(dram_bytes, "size of the dram tier")                                     \
    X(dram_resident_bytes, "memory of the dram tier made resident so far")     \
    X(dram_used_bytes, "memory of the dram tier in use")                       \
    X(dram_leased_chunks, "chunks held by leases, copies and writes")          \
    X(pinned_bytes, "bytes that are pinned")                                   \
    X(io_uring, "1: io_uring, 0: threads with plain reads and writes")

#define DISK_MAP(X)                                                            \
    X(on, "gauge", "1 while the disk takes and gives shards")                  \
    X(bytes_max, "gauge", "configured size")                                   \
    X(bytes_used, "gauge", "size of its files")                                \
    X(segments, "gauge", "segment files")                                      \
    X(segments_lost, "counter", "segments lost by a failed write or sync")     \
    X(written_bytes, "counter", "bytes written for saves")                     \
    X(carried_bytes, "counter", "bytes written again by reclaim")              \
    X(read_bytes, "counter", "bytes read for loads")                           \
    X(write_errors, "counter", "failed writes and syncs")                      \
    X(read_errors, "counter", "failed reads")

/* Paths may hold what a label must not. */
static void add_path(text_t *t, const char *path)
{
    for (; *path != '\0'; path++) {
        if (*path == '"' || *path == '\\') {
            add(t, "\\%c", *path);
        } else if (*path == '\n') {
            add(t, "\\n");
        } else {
            add(t, "%c", *path);
        }
    }
}

size_t ldr_node_metrics(ldr_node_t *node, char *text, size_t size)
{
    text_t t = {text, size, 0};
    larder_stats_t s;
    ldr_counters_t n;

    ldr_node_stats(node, &s);
    ldr_node_lock(node);
    n = node->store.n;
    ldr_node_unlock(node);
#define X(name, help)                                                          \
    add_head(&t, #name "_total", "counter", help);                             \
    add(&t, "larder_" #name "_total %" PRIu64 "\n", n.name);
    LDR_COUNTER_MAP(X)
#undef X
    add_head(&t, "misses_total", "counter", "loads that missed, by cause");
    for (int i = LARDER_CAUSE_ABSENT; i < LARDER_CAUSE_COUNT; i++) {
        add(&t, "larder_misses_total{cause=\"%s\"} %" PRIu64 "\n",
            larder_cause_text((larder_cause_t)i), n.misses[i]);
    }
#define X(name, help) add_gauge(&t, #name, help, s.name);
    GAUGE_MAP(X)
#undef X
#define X(name, type, help)                                                    \
    add_head(&t, "disk_" #name, type, help);                                   \
    for (uint64_t i = 0; i < s.disks; i++) {                                   \
        add(&t, "larder_disk_" #name "{path=\"");                              \
        add_path(&t, s.disk[i].path);                                          \
        add(&t, "\"} %" PRIu64 "\n", (uint64_t)s.disk[i].name);                \
    }
    DISK_MAP(X)
#undef X
    return t.length;
}
