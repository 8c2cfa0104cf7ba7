/* Figures: the struct, and what match expects. */
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "node/node.h"
#include "node/shared.h"
#include "node/ssd.h"

void ldr_node_measured(ldr_node_t *node, larder_tier_t tier, uint64_t bytes,
                       uint64_t ns)
{
    double *speed = &node->speed[tier];

    /* Small transfers measure the call, not the tier. */
    if (bytes >= 65536 && ns > 0) {
        *speed += ((double)bytes * 1e9 / (double)ns - *speed) / 16;
    }
}

void ldr_node_measured_loads(ldr_node_t *node,
                             const uint64_t bytes[LARDER_TIER_COUNT],
                             uint64_t ns)
{
    bool ssd = bytes[LARDER_TIER_SSD] > 0;
    bool shared = bytes[LARDER_TIER_SHARED] > 0;

    /* Of two at once neither is known. */
    if (ssd != shared) {
        larder_tier_t tier = ssd ? LARDER_TIER_SSD : LARDER_TIER_SHARED;

        ldr_node_lock(node);
        ldr_node_measured(node, tier, bytes[tier], ns);
        ldr_node_unlock(node);
    }
}

uint64_t ldr_node_expect_us(ldr_node_t *node,
                            const uint64_t bytes[LARDER_TIER_COUNT])
{
    double s = 0;

    ldr_node_lock(node);
    for (int i = 0; i < LARDER_TIER_COUNT; i++) {
        s += (double)bytes[i] / node->speed[i];
    }
    ldr_node_unlock(node);
    return (uint64_t)(s * 1e6);
}

static void disk_stats(const ldr_ssd_t *ssd, larder_disk_stats_t *out)
{
    snprintf(out->path, sizeof(out->path), "%s", ssd->params.path);
    snprintf(out->reason, sizeof(out->reason), "%s",
             ldr_ssd_hangs(ssd) ? "the disk does not answer" : ssd->reason);
    out->on = ssd->on;
    out->bytes_max = ssd->params.bytes;
    out->segments = ssd->files;
    out->segments_lost = ssd->segments_lost;
    if (ssd->opened) {
        out->bytes_used =
            ssd->files * ssd->disk.segment_bytes + 2 * LDR_SUPER_BYTES +
            LDR_LEDGERS * (uint64_t)ssd->disk.ledger.want * LDR_BLOCK;
    }
    out->written_bytes = ssd->written_bytes;
    out->carried_bytes = ssd->carried_bytes;
    out->read_bytes = ssd->read_bytes;
    out->write_errors = ssd->write_errors;
    out->read_errors = ssd->read_errors;
}

/* ---- by space and by tenant ---- */

/* A counter is a sum: so is a tenant's. Fields are all of one type. */
static void counters_add(ldr_counters_t *sum, const ldr_counters_t *n)
{
#define X(name, text) sum->name += n->name;
    LDR_COUNTER_MAP(X)
#undef X
    for (int i = 0; i < LARDER_CAUSE_COUNT; i++) {
        sum->misses[i] += n->misses[i];
    }
}

bool ldr_node_space_stats(ldr_node_t *node, uint32_t space,
                          ldr_space_stats_t *out)
{
    ldr_node_lock(node);
    bool found = space < node->store.space_count;
    if (found) {
        const ldr_space_t *s = &node->store.spaces[space];

        *out = (ldr_space_stats_t){
            .tenant = s->tenant,
            .epoch = s->epoch,
            .dram_bytes = s->dram_pages * LDR_PAGE,
            .ssd_bytes = s->ssd_bytes,
            .chunks = s->chunks,
            .asked_s = s->asked_s,
            .n = s->n,
        };
        memcpy(out->id, s->id, LDR_ID_BYTES);
    }
    ldr_node_unlock(node);
    return found;
}

/* With the lock. */
static void tenant_stats(const ldr_store_t *s, uint32_t tenant,
                         ldr_tenant_stats_t *out)
{
    const ldr_tenant_t *t = &s->tenants[tenant];
    const ldr_owner_t *owner = &s->arena.owners[tenant];
    uint64_t extent_bytes =
        (uint64_t)ldr_arena_extent_pages(&s->arena) * LDR_PAGE;
    uint64_t owned = 0, resident = 0, overdue = 0;

    for (uint32_t i = 0; i < s->arena.slot_count; i++) {
        const ldr_arena_extent_t *x = &s->arena.extents[i];

        if (x->tenant == tenant) {
            owned += x->count;
            resident += x->ready_count;
            overdue += x->state == LDR_EXTENT_OVERDUE ? x->count : 0;
        }
    }

    *out = (ldr_tenant_stats_t){
        .spaces = t->space_count,
        .extents = owner->extent_count,
        .extents_leaving = owner->leaving_count,
        .extents_coming = owner->coming_count,
        .dram_max = t->dram_max,
        .ssd_max = t->ssd_max,
        .dram_share = t->share * extent_bytes,
        .dram_owned_bytes = owned * LDR_PAGE,
        .dram_resident_bytes = resident * LDR_PAGE,
        .dram_overdue_bytes = overdue * LDR_PAGE,
        .dram_used_bytes = (uint64_t)owner->used_count * LDR_PAGE,
        .ssd_share = t->ssd_share,
        .ssd_bytes = t->ssd_bytes,
        .held_chunks = t->held_chunks,
        .pinned_bytes = t->pinned_bytes,
    };
    out->policy.ranks_lru = true;
    if (s->policy == &ldr_policy_default) {
        ldr_policy_default_stats(t->policy, &out->policy);
    }
    memcpy(out->id, t->id, LDR_ID_BYTES);
    memcpy(out->name, t->name, sizeof(out->name));
    for (uint32_t i = 0; i < s->space_count; i++) {
        if (s->spaces[i].tenant == tenant) {
            out->chunks += s->spaces[i].chunks;
            counters_add(&out->n, &s->spaces[i].n);
        }
    }
}

bool ldr_node_tenant_stats(ldr_node_t *node, uint32_t tenant,
                           ldr_tenant_stats_t *out)
{
    ldr_node_lock(node);
    bool found = tenant < node->store.tenant_count;
    if (found) {
        tenant_stats(&node->store, tenant, out);
    }
    ldr_node_unlock(node);
    return found;
}

/* ---- the struct of the public interface ---- */

static void put_counters(const ldr_counters_t *n, larder_stats_t *out)
{
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
    out->removes = n->removes;
    out->resets = n->resets;
    out->loads_shared = n->loads_shared;
    out->offers_written = n->offers_written;
    out->offers_present = n->offers_present;
    out->offers_evicted = n->offers_evicted;
    out->offers_failed = n->offers_failed;
    out->asked_chunks = n->asked_chunks;
    out->found_chunks = n->found_chunks;
}

/* What the tiers can hold. With the lock. */
static void put_max(const ldr_node_t *node, larder_stats_t *out)
{
    out->dram_max_bytes = (uint64_t)node->store.arena.page_count * LDR_PAGE;
    for (unsigned i = 0; i < node->ssd_count; i++) {
        larder_disk_stats_t disk;

        disk_stats(&node->ssds[i], &disk);
        out->ssd_max_bytes += disk.bytes_max;
    }
}

/* A tenant's part. With the lock. */
static void put_tenant(const ldr_store_t *s, uint32_t tenant,
                       larder_stats_t *out)
{
    ldr_tenant_stats_t t;

    tenant_stats(s, tenant, &t);
    put_counters(&t.n, out);
    out->entries = t.chunks;
    out->dram_bytes = t.dram_owned_bytes;
    out->dram_resident_bytes = t.dram_resident_bytes;
    out->dram_used_bytes = t.dram_used_bytes;
    out->dram_leased_chunks = t.held_chunks;
    out->pinned_bytes = t.pinned_bytes;
    if (t.dram_max != 0) {
        out->dram_max_bytes = ldr_min64(out->dram_max_bytes, t.dram_max);
    }
    if (t.ssd_max != 0) {
        out->ssd_max_bytes = ldr_min64(out->ssd_max_bytes, t.ssd_max);
    }
}

/* Everything. With the lock. */
static void put_all(const ldr_node_t *node, larder_stats_t *out)
{
    const ldr_store_t *s = &node->store;

    put_counters(&s->n, out);
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
    out->disks = node->ssd_count;
    for (unsigned i = 0; i < node->ssd_count; i++) {
        disk_stats(&node->ssds[i], &out->disk[i]);
    }
}

static void put_shared(const ldr_node_t *node, larder_stats_t *out)
{
    larder_shared_stats_t *s = &out->shared_tier;
    ldr_tier_stats_t t;

    if (node->shared == NULL) {
        return;
    }
    ldr_tier_stats(node->shared->tier, &t);
    out->shared = 1;
    snprintf(s->url, sizeof(s->url), "%s", node->options.shared);
    snprintf(s->reason, sizeof(s->reason), "%s", t.reason);
    s->on = t.state != LDR_TIER_OFF;
    s->writable = t.state == LDR_TIER_ON;
    s->objects = t.objects;
    s->shards = t.shards;
    s->bytes = t.bytes;
    s->dead_bytes = t.dead_bytes;
    s->map_bytes = t.map_bytes;
    s->waiting_shards = node->store.offer_count;
    s->read_bytes = t.read_bytes;
    s->written_bytes = t.written_bytes;
    s->read_errors = t.read_errors;
    s->write_errors = t.write_errors;
    s->gone = t.gone;
    s->corrupt = t.corrupt;
    s->cleaner = t.cleaner;
    s->cleaned_objects = t.cleaned_objects;
    s->cleaned_bytes = t.cleaned_bytes;
}

void ldr_node_stats(ldr_node_t *node, uint32_t tenant, larder_stats_t *out)
{
    memset(out, 0, sizeof(*out));
    out->struct_bytes = sizeof(*out);
    ldr_node_lock(node);
    put_max(node, out);
    if (tenant == LDR_NIL) {
        put_all(node, out);
        put_shared(node, out);
    } else if (tenant < node->store.tenant_count) {
        put_tenant(&node->store, tenant, out);
    }
    out->io_uring =
        node->io != NULL && strcmp(node->io->ops->name, "io_uring") == 0;
    ldr_node_unlock(node);
}

void ldr_node_queues(ldr_node_t *node, ldr_queues_t *out)
{
    ldr_node_lock(node);
    *out = (ldr_queues_t){
        .dirty_shards = node->store.dirty_count,
        .reads_waiting = node->reads_waiting,
        .reads_flying = node->reads_flying,
    };
    for (unsigned i = 0; i < node->ssd_count; i++) {
        const ldr_filling_t *f = node->ssds[i].disk.filling;

        out->writes_flying += f[0].flying + f[1].flying;
    }
    ldr_node_unlock(node);
}
