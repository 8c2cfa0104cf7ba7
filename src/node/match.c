/*
 * What a chain or a shard could be loaded from, and at which cost. Looks in the
 * index and asks the tiers in order of cost; reads no disk and holds nothing,
 * so that what it finds may be gone the moment after. Any thread may call. A
 * match takes the node's lock for MATCH_SLICE chunks at a time; what is about
 * one shard is called with the lock.
 */
#include "base/bytes.h"
#include "node/load.h"

#define MATCH_SLICE 64u /* chunks looked up before others get the lock */

/* A match looks at every shard of a chain: what it calls for each is inline. */
static inline ldr_tier_t *find(ldr_node_t *node, const ldr_sought_t *sought,
                               uint32_t *bytes_p, larder_cause_t *cause_p)
{
    ldr_node_held(node);
    for (unsigned i = 0; i < node->tier_count; i++) {
        ldr_tier_t *t = node->order[i];

        if (sought->own && t->ops->others) {
            continue;
        }
        *bytes_p = t->ops->find(t, sought, cause_p);
        if (*bytes_p > 0) {
            return t;
        }
    }
    return NULL;
}

ldr_tier_t *ldr_node_find(ldr_node_t *node, const ldr_sought_t *sought,
                          uint32_t *bytes_p, larder_cause_t *cause_p)
{
    return find(node, sought, bytes_p, cause_p);
}

static inline bool usable(ldr_node_t *node, const ldr_sought_t *sought,
                          larder_tier_t *tier_p, uint32_t *bytes_p,
                          larder_cause_t *cause_p)
{
    const ldr_store_t *store = &node->store;

    if (sought->entry != LDR_NIL) {
        uint32_t shard =
            ldr_store_resident(store, sought->entry, sought->number);

        if (shard != LDR_NIL && store->shards[shard].state == LDR_SHARD_READY) {
            *tier_p = LARDER_TIER_DRAM;
            *bytes_p = store->shards[shard].length;
            return true;
        }
        *cause_p = LARDER_CAUSE_ABSENT;
    }
    const ldr_tier_t *t = find(node, sought, bytes_p, cause_p);
    if (t == NULL) {
        return false;
    }
    *tier_p = t->ops->number;
    return true;
}

bool ldr_node_usable(ldr_node_t *node, const ldr_sought_t *sought,
                     larder_tier_t *tier_p, uint32_t *bytes_p,
                     larder_cause_t *cause_p)
{
    return usable(node, sought, tier_p, bytes_p, cause_p);
}

/* Adds the chunk to the match if every shard of it is available. entry:
 * LDR_NIL: none, then m->cause says why. */
static inline bool match_chunk(ldr_node_t *node, const ldr_name_t *name,
                               uint32_t entry, uint32_t shards,
                               larder_match_t *m)
{
    larder_tier_t tiers[LARDER_SHARDS_MAX], dearest = LARDER_TIER_DRAM;
    uint32_t bytes[LARDER_SHARDS_MAX];
    ldr_sought_t sought = {name, entry, 0, false};

    for (; sought.number < shards; sought.number++) {
        uint32_t i = sought.number;

        if (!usable(node, &sought, &tiers[i], &bytes[i], &m->cause)) {
            return false;
        }
        if (tiers[i] != dearest &&
            node->speed[tiers[i]] < node->speed[dearest]) {
            dearest = tiers[i];
        }
    }
    for (uint32_t i = 0; i < shards; i++) {
        m->tier_bytes[tiers[i]] += bytes[i];
    }
    m->tier_chunks[dearest]++;
    m->chunks++;
    m->cause = LARDER_CAUSE_NONE;
    return true;
}

/* Whether a shard is ready in DRAM, and whether a tier of this node's own has
 * it. */
static void places_of_shard(ldr_node_t *node, const ldr_sought_t *sought,
                            bool *dram_p, bool *below_p)
{
    const ldr_store_t *store = &node->store;
    larder_cause_t cause;

    uint32_t shard =
        sought->entry != LDR_NIL
            ? ldr_store_resident(store, sought->entry, sought->number)
            : LDR_NIL;

    *below_p = false;
    *dram_p = shard != LDR_NIL && store->shards[shard].state == LDR_SHARD_READY;
    for (unsigned i = 0; i < node->tier_count && !*below_p; i++) {
        ldr_tier_t *t = node->order[i];

        *below_p = !t->ops->others && t->ops->find(t, sought, &cause) > 0;
    }
}

void ldr_node_places(ldr_node_t *node, uint32_t space, uint32_t shards,
                     uint32_t group, const larder_key_t *key, ldr_places_t *out)
{
    ldr_store_t *store = &node->store;
    ldr_name_t name = ldr_store_name(store, space, group, key);
    ldr_sought_t sought = {&name, LDR_NIL, 0, false};
    larder_cause_t cause;
    larder_tier_t tier;
    uint32_t bytes;

    ldr_node_held(node);
    *out = (ldr_places_t){.tier = LARDER_TIER_DRAM};
    if (node->mode != LDR_MODE_ON) {
        return;
    }
    sought.entry =
        ldr_store_find(store, &name, LDR_NIL, ldr_wall_s(node->clock), &cause);
    out->dram = out->below = out->here = out->found = true;
    for (; sought.number < shards && out->found; sought.number++) {
        bool dram, below;

        places_of_shard(node, &sought, &dram, &below);
        out->dram = out->dram && dram;
        out->below = out->below && below;
        out->here = out->here && (dram || below);
        out->found = ldr_node_usable(node, &sought, &tier, &bytes, &cause);
        if (out->found && node->speed[tier] < node->speed[out->tier]) {
            out->tier = tier;
        }
        const ldr_tier_t *from = out->found && tier != LARDER_TIER_DRAM
                                     ? node->tiers[tier - 1]
                                     : NULL;
        if (from != NULL && from->ops->holder != NULL) {
            /* Where it is may have been forgotten in between: by time. */
            ldr_tier_t *t = find(node, &sought, &bytes, &cause);

            out->member = t != NULL && t->ops->holder != NULL
                              ? t->ops->holder(t, &sought)
                              : NULL;
        }
    }
    out->dram = out->dram && out->found;
    out->below = out->below && out->found;
    out->here = out->here && out->found;
}

void ldr_node_count_asked(ldr_node_t *node, uint32_t space, uint64_t asked,
                          uint64_t found)
{
    ldr_node_held(node);
    node->store.spaces[space].asked_s = ldr_wall_s(node->clock);
    LDR_COUNT(&node->store, space, asked_chunks, asked);
    LDR_COUNT(&node->store, space, found_chunks, found);
}

void ldr_node_asked(ldr_node_t *node, uint32_t space, uint64_t asked,
                    uint64_t found)
{
    ldr_node_lock(node);
    ldr_node_count_asked(node, space, asked, found);
    ldr_node_unlock(node);
}

static void prefetch_rest(ldr_node_t *node, const ldr_name_t *first,
                          size_t count, uint32_t shards)
{
    for (unsigned i = 0; i < node->tier_count; i++) {
        ldr_tier_t *t = node->order[i];

        if (t->ops->prefetch != NULL) {
            t->ops->prefetch(t, first, first->key, count, shards);
        }
    }
}

void ldr_node_match(ldr_node_t *node, uint32_t space, uint32_t shards,
                    uint16_t group, const larder_key_t *keys, size_t count,
                    bool asks, larder_match_t *out)
{
    ldr_store_t *store = &node->store;
    uint32_t now_s = ldr_wall_s(node->clock);
    uint32_t entry = LDR_NIL;
    bool more = true;

    *out = (larder_match_t){.cause = LARDER_CAUSE_NONE};
    if (ldr_node_get_mode(node) != LDR_MODE_ON) {
        if (asks) {
            ldr_node_asked(node, space, count, 0);
        }
        out->cause = LARDER_CAUSE_PAUSED;
        return;
    }
    for (size_t i = 0; i < count && more;) {
        size_t end = ldr_min64(count, i + MATCH_SLICE);
        bool prefetched = false; /* tiers below know what will be looked for */

        ldr_node_lock(node);
        for (; i < end && more; i++) {
            ldr_name_t name = ldr_store_name(store, space, group, &keys[i]);

            entry = ldr_store_find(store, &name, entry, now_s, &out->cause);
            if (entry == LDR_NIL && !prefetched) {
                prefetched = true;
                prefetch_rest(node, &name, end - i, shards);
            }
            more = match_chunk(node, &name, entry, shards, out);
            if (more && entry != LDR_NIL) {
                ldr_index_at(&store->index, entry)->used_s = now_s;
            }
        }
        if (i == count || !more) {
            LDR_COUNT(store, space, matched_chunks, out->chunks);
            if (asks) {
                ldr_node_count_asked(node, space, count, out->chunks);
            }
        }
        ldr_node_unlock(node);
    }
    out->load_us = ldr_node_expect_us(node, out->tier_bytes);
}

void ldr_node_exists(ldr_node_t *node, const ldr_target_t *t, bool asks)
{
    ldr_store_t *store = &node->store;
    larder_item_t *item = t->item;
    uint32_t bytes = 0;
    larder_tier_t tier;

    ldr_node_lock(node);
    ldr_name_t name = ldr_store_name(store, t->space, item->group, item->key);
    ldr_sought_t sought = {&name, LDR_NIL, item->shard, false};
    sought.entry = ldr_store_find(store, &name, LDR_NIL,
                                  ldr_wall_s(node->clock), &item->cause);
    bool found = false;
    if (node->mode != LDR_MODE_ON) {
        item->cause = LARDER_CAUSE_PAUSED;
    } else {
        found = ldr_node_usable(node, &sought, &tier, &bytes, &item->cause);
    }
    item->status = found ? LARDER_OK : LARDER_MISS;
    item->length = found ? bytes : 0;
    if (found) {
        item->cause = LARDER_CAUSE_NONE;
    } else {
        LDR_COUNT(store, t->space, misses[item->cause], 1);
    }
    if (asks) {
        ldr_node_count_asked(node, t->space, 1, found);
    }
    ldr_node_unlock(node);
}
