/*
 * Figures: the struct of the API, and what a match expects a load to take. The
 * counters and measured speeds are the node's: read and written with its lock.
 */
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "node/metrics.h"
#include "node/promise.h"

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
                             const uint64_t bytes[LARDER_TIERS_MAX],
                             uint64_t ns)
{
    unsigned tier = 0, count = 0;

    for (unsigned i = 1; i < LARDER_TIERS_MAX; i++) {
        tier = bytes[i] > 0 ? i : tier;
        count += bytes[i] > 0;
    }
    if (count == 1) { /* of two at once neither is known */
        ldr_node_lock(node);
        ldr_node_measured(node, (larder_tier_t)tier, bytes[tier], ns);
        ldr_node_unlock(node);
    }
}

uint64_t ldr_node_expect_us(ldr_node_t *node,
                            const uint64_t bytes[LARDER_TIERS_MAX])
{
    double s = 0;

    ldr_node_lock(node);
    for (int i = 0; i < LARDER_TIERS_MAX; i++) {
        s += bytes[i] > 0 ? (double)bytes[i] / node->speed[i] : 0;
    }
    ldr_node_unlock(node);
    return (uint64_t)(s * 1e6);
}

/* ---- by space and by tenant ---- */

/* A counter is a sum: so is a tenant's. All that the struct has is counters. */
static void counters_add(ldr_counters_t *sum, const ldr_counters_t *n)
{
    uint64_t *to = (uint64_t *)sum;
    const uint64_t *from = (const uint64_t *)n;

    for (size_t i = 0; i < sizeof(*n) / sizeof(*from); i++) {
        to[i] += from[i];
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
            .sum = ldr_counters_sums(&s->n),
        };
        memcpy(out->id, s->id, LDR_ID_BYTES);
        memcpy(out->label, s->label, sizeof(out->label));
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
        .promised_bytes = (uint64_t)t->promised_pages * LDR_PAGE,
    };
    out->policy.ranks_lru = true;
    if (s->policy == &ldr_policy_default) {
        ldr_policy_default_stats(t->policy, &out->policy);
    }
    out->ranks[out->policy.ranks_lru] = 1;
    memcpy(out->id, t->id, LDR_ID_BYTES);
    memcpy(out->name, t->name, sizeof(out->name));
    for (uint32_t i = 0; i < s->space_count; i++) {
        if (s->spaces[i].tenant == tenant) {
            out->chunks += s->spaces[i].chunks;
            counters_add(&out->n, &s->spaces[i].n);
        }
    }
    out->sum = ldr_counters_sums(&out->n);
}

bool ldr_node_tenant_stats(ldr_node_t *node, uint32_t tenant,
                           ldr_tenant_stats_t *out)
{
    ldr_node_lock(node);
    ldr_promise_due(node);
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
#define X(place, field, from, unit, text) out->field = n->from;
    LDR_EVENT_STATS_MAP(X)
#undef X
    memcpy(out->misses, n->misses, sizeof(n->misses));
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
}

void ldr_node_stats(ldr_node_t *node, uint32_t tenant, larder_stats_t *out)
{
    memset(out, 0, sizeof(*out));
    out->struct_bytes = sizeof(*out);
    ldr_node_lock(node);
    ldr_promise_due(node);
    out->dram_max_bytes = (uint64_t)node->store.arena.page_count * LDR_PAGE;
    for (unsigned i = 0; i < node->tier_count; i++) {
        ldr_tier_t *t = node->order[i];

        if (t->ops->stats != NULL) {
            t->ops->stats(t, tenant == LDR_NIL, out);
        }
    }
    if (tenant == LDR_NIL) {
        put_all(node, out);
    } else if (tenant < node->store.tenant_count) {
        put_tenant(&node->store, tenant, out);
    }
    ldr_node_unlock(node);
}

void ldr_node_queues(ldr_node_t *node, ldr_queues_t *out)
{
    *out = (ldr_queues_t){0};
    ldr_node_lock(node);
    for (unsigned i = 0; i < node->tier_count; i++) {
        ldr_tier_t *t = node->order[i];

        if (t->ops->queue_lengths != NULL) {
            t->ops->queue_lengths(t, out);
        }
    }
    ldr_node_unlock(node);
}
