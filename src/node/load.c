/*
 * Loads: beginning, waiting, and what a tier reports.
 *
 * All of it is done with the node's lock, which begin_fetch() may drop to make
 * memory resident and then looks everything up again. Invariants:
 *  1. A load is PENDING exactly while it is in the list of waiters of a shard
 *     that is READING, whose tier load->tier names.
 *  2. Whoever ends the wait takes it off that list under the same lock: so
 *     ready() is called at most once, and never after ldr_load_abandon().
 *  3. A load that is OK holds its chunk until ldr_load_end().
 */
#include "node/load.h"

#include <string.h>

#include "node/promise.h"

/* ---- beginning ---- */

static bool load_settle(ldr_load_t *load, larder_status_t st,
                        larder_cause_t cause)
{
    load->status = st;
    load->cause = cause;
    return true;
}

/* The load holds a ready shard from here on. */
static bool settle_held(ldr_node_t *node, ldr_load_t *load, uint32_t shard)
{
    ldr_store_t *store = &node->store;

    LDR_ASSERT(store->shards[shard].state == LDR_SHARD_READY &&
               store->shards[shard].admitted);
    load->shard = shard;
    load->chunk = store->shards[shard].chunk;
    load->length = store->shards[shard].length;
    ldr_store_hold(store, load->chunk);
    ldr_store_used(store, load->chunk);
    ldr_node_used(node, shard);
    return load_settle(load, LARDER_OK, LARDER_CAUSE_NONE);
}

static void wait_for(ldr_node_t *node, ldr_load_t *load, uint32_t shard)
{
    ldr_shard_t *sh = &node->store.shards[shard];

    LDR_ASSERT(sh->state == LDR_SHARD_READING);
    load->status = LARDER_PENDING;
    load->tier = (larder_tier_t)sh->tier;
    load->shard = shard;
    load->next = sh->waiters;
    sh->waiters = load;
}

static bool load_begin(ldr_node_t *node, ldr_load_t *load);

/* Not in DRAM: reserves room for what a tier below has, and has it fetched.
 * why: the cause of the miss if none has it. */
static bool begin_fetch(ldr_node_t *node, ldr_load_t *load, uint32_t entry,
                        larder_cause_t why)
{
    ldr_store_t *store = &node->store;
    const ldr_target_t *t = &load->target;
    const larder_item_t *item = t->item;
    ldr_reserve_t r = {
        .name = ldr_store_name(store, t->space, item->group, item->key),
        .parent = item->parent,
        .depth = item->depth,
        .shards = t->shards,
        .number = item->shard,
        .now_s = ldr_wall_s(node->clock),
        .state = LDR_SHARD_READING,
    };
    ldr_sought_t sought = {&r.name, entry, r.number, load->own};
    ldr_tier_t *tier = ldr_node_find(node, &sought, &r.length, &why);
    uint32_t shard;

    if (tier == NULL) {
        return load_settle(load, LARDER_MISS, why);
    }
    if (ldr_node_populate(node, store->spaces[t->space].tenant, r.length)) {
        /* The lock was dropped: what was found is found again. */
        larder_cause_t cause;
        uint32_t bytes;

        entry = ldr_store_find(store, &r.name, LDR_NIL, r.now_s, &cause);
        sought.entry = entry;
        if ((entry != LDR_NIL &&
             ldr_store_resident(store, entry, r.number) != LDR_NIL) ||
            ldr_node_find(node, &sought, &bytes, &cause) != tier ||
            bytes != r.length) {
            return load_begin(node, load);
        }
    }
    r.pin = entry != LDR_NIL &&
            (ldr_entry_flags(ldr_index_at(&store->index, entry)) &
             LDR_ENTRY_PINNED) != 0;
    if (ldr_store_reserve(store, entry, &r, &shard) != LARDER_OK) {
        return load_settle(load, LARDER_MISS, LARDER_CAUSE_FULL);
    }
    store->shards[shard].tier = (uint8_t)tier->ops->number;
    wait_for(node, load, shard);
    tier->ops->fetch(tier, shard);
    return false;
}

static bool load_begin(ldr_node_t *node, ldr_load_t *load)
{
    ldr_store_t *store = &node->store;
    const larder_item_t *item = load->target.item;
    uint32_t now_s = ldr_wall_s(node->clock);
    larder_cause_t cause;

    if (node->mode != LDR_MODE_ON) {
        return load_settle(load, LARDER_MISS, LARDER_CAUSE_PAUSED);
    }
    ldr_name_t name =
        ldr_store_name(store, load->target.space, item->group, item->key);
    uint32_t entry = ldr_store_find(store, &name, LDR_NIL, now_s, &cause);
    if (entry == LDR_NIL) {
        return begin_fetch(node, load, entry, cause);
    }
    ldr_index_at(&store->index, entry)->used_s = now_s;
    uint32_t shard = ldr_store_resident(store, entry, item->shard);
    if (shard != LDR_NIL) {
        switch (store->shards[shard].state) {
        case LDR_SHARD_READY:
            return settle_held(node, load, shard);
        case LDR_SHARD_READING:
            wait_for(node, load, shard);
            return false;
        default: /* being filled: nobody has seen it yet */
            return load_settle(load, LARDER_MISS, LARDER_CAUSE_ABSENT);
        }
    }
    return begin_fetch(node, load, entry, LARDER_CAUSE_ABSENT);
}

static void clear(ldr_load_t *load)
{
    load->shard = load->chunk = LDR_NIL;
    load->tier = LARDER_TIER_DRAM;
    load->checked = false;
}

bool ldr_load_begin(ldr_node_t *node, ldr_load_t *load)
{
    clear(load);
    ldr_node_lock(node);
    ldr_node_tick(node);
    ldr_promise_due(node);
    bool settled = load_begin(node, load);
    ldr_node_unlock(node);
    return settled;
}

/* With the lock. */
static uint32_t begin_held(ldr_node_t *node, ldr_load_t *loads, uint32_t count)
{
    ldr_store_t *store = &node->store;
    const ldr_target_t *t = &loads->target;
    uint32_t resident[LARDER_SHARDS_MAX];
    uint32_t now_s = ldr_wall_s(node->clock), i = 0;
    ldr_name_t name =
        ldr_store_name(store, t->space, t->item->group, t->item->key);
    larder_cause_t cause;
    uint32_t entry = ldr_store_find(store, &name, LDR_NIL, now_s, &cause);

    if (entry == LDR_NIL) {
        return 0;
    }
    ldr_index_at(&store->index, entry)->used_s = now_s;
    ldr_store_residents(store, entry, t->item->shard, count, resident);
    for (; i < count && resident[i] != LDR_NIL &&
           store->shards[resident[i]].state == LDR_SHARD_READY;
         i++) {
        clear(&loads[i]);
        settle_held(node, &loads[i], resident[i]);
    }
    return i;
}

uint32_t ldr_loads_begin_held(ldr_node_t *node, ldr_load_t *loads,
                              uint32_t count)
{
    LDR_ASSERT(count >= 1 && count <= LARDER_SHARDS_MAX);
    ldr_node_lock(node);
    ldr_node_tick(node);
    uint32_t held =
        node->mode == LDR_MODE_ON ? begin_held(node, loads, count) : 0;
    ldr_node_unlock(node);
    return held;
}

/* ---- waiting ---- */

/* Ends the wait of every load on the shard. With the lock. */
static void wake_waiters(ldr_host_t *host, uint32_t shard, larder_status_t st,
                         larder_cause_t cause)
{
    ldr_load_t *load = host->store.shards[shard].waiters;

    host->store.shards[shard].waiters = NULL;
    while (load != NULL) {
        ldr_load_t *next = load->next; /* ready() may end the load */

        if (st == LARDER_OK) {
            settle_held((ldr_node_t *)host, load, shard);
        } else {
            load->shard = LDR_NIL;
            load_settle(load, st, cause);
        }
        if (load->ready != NULL) {
            load->ready(load);
        }
        load = next;
    }
    pthread_cond_broadcast(&host->changed);
}

void ldr_load_failed(ldr_host_t *host, uint32_t shard, larder_cause_t cause)
{
    ldr_host_held(host);
    wake_waiters(host, shard, LARDER_MISS, cause);
    ldr_store_abort(&host->store, shard);
}

void ldr_load_lost(ldr_host_t *host, uint32_t shard, larder_cause_t cause)
{
    ldr_host_held(host);
    wake_waiters(host, shard, LARDER_MISS, cause);
    /* Detached, its chunk is the tier's alone until that is through with it. */
    ldr_store_discard(&host->store, host->store.shards[shard].chunk);
}

void ldr_load_came(ldr_host_t *host, uint32_t shard)
{
    ldr_host_held(host);
    wake_waiters(host, shard, LARDER_OK, LARDER_CAUSE_NONE);
    ldr_store_release(&host->store, host->store.shards[shard].chunk);
}

bool ldr_load_fits(const ldr_store_t *store, uint32_t shard,
                   const ldr_record_t *record, uint32_t blocks)
{
    const ldr_shard_t *sh = &store->shards[shard];
    const ldr_chunk_t *c = &store->chunks[sh->chunk];

    return record->kind == LDR_RECORD_SHARD &&
           memcmp(&record->key, &c->key, sizeof(c->key)) == 0 &&
           memcmp(record->space_id, store->spaces[c->space].id, LDR_ID_BYTES) ==
               0 &&
           record->group == c->group && record->shard == sh->number &&
           record->epoch == c->epoch && record->codec == LDR_CODEC_RAW &&
           record->length > 0 && ldr_record_blocks(record->length) == blocks;
}

void ldr_node_reads_go(ldr_node_t *node)
{
    for (unsigned i = 0; i < node->tier_count; i++) {
        ldr_tier_t *tier = node->order[i];

        tier->ops->submit(tier);
    }
}

void ldr_load_wait(ldr_node_t *node, ldr_load_t *load, uint64_t deadline_ns)
{
    ldr_node_lock(node);
    while (load->status == LARDER_PENDING &&
           ldr_host_wait(&node->host, deadline_ns)) {
    }
    ldr_node_unlock(node);
    ldr_load_abandon(node, load, LARDER_E_DEADLINE);
}

void ldr_load_abandon(ldr_node_t *node, ldr_load_t *load, larder_status_t why)
{
    ldr_node_lock(node);
    if (load->status == LARDER_PENDING) {
        ldr_load_t **link = &node->store.shards[load->shard].waiters;

        while (*link != NULL && *link != load) {
            link = &(*link)->next;
        }
        if (LDR_HOLDS(*link == load)) {
            *link = load->next;
        }
        ldr_tier_t *tier = node->tiers[load->tier - 1];

        if (why == LARDER_E_DEADLINE && tier->ops->timed_out != NULL) {
            tier->ops->timed_out(tier, load->shard);
        }
        load->shard = LDR_NIL;
        load_settle(load, why, LARDER_CAUSE_NONE);
    }
    ldr_node_unlock(node);
}
