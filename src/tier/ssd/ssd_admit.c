/*
 * What may be written down, and what stays in DRAM until it is evicted: options
 * ssd_admit and ssd_writes. All of it with the node's lock.
 */
#include "tier/ssd/ssd.h"

/* Counts the shard as used. True: not for the first time, or all is admitted.
 */
static bool admit(ldr_ssds_t *t, uint32_t shard)
{
    const ldr_store_t *store = &t->host->store;
    const ldr_shard_t *sh = &store->shards[shard];
    const ldr_chunk_t *c = &store->chunks[sh->chunk];

    if (t->admit.tags == NULL || c->entry == LDR_NIL) {
        return true;
    }
    /* Its own print for each shard: ranks that save theirs are one use. */
    uint64_t print = ldr_index_at(&store->index, c->entry)->fingerprint ^
                     (uint64_t)sh->number << 57;
    return ldr_admit_use(&t->admit, print) || c->pinned;
}

void ldr_ssd_queue(ldr_tier_t *tier, uint32_t shard)
{
    ldr_ssds_t *t = (ldr_ssds_t *)tier;
    ldr_store_t *store = &t->host->store;
    ldr_shard_t *sh = &store->shards[shard];

    ldr_host_held(t->host);
    sh->refused = !admit(t, shard);
    if (sh->refused) {
        LDR_COUNT(store, store->chunks[sh->chunk].space, refused_first, 1);
    } else {
        ldr_behind_push(store, LDR_SSD_QUEUE, shard);
    }
    ldr_ssds_wake(t);
}

void ldr_ssd_used(ldr_tier_t *tier, uint32_t shard)
{
    ldr_ssds_t *t = (ldr_ssds_t *)tier;
    ldr_shard_t *sh = &t->host->store.shards[shard];

    ldr_host_held(t->host);
    if (sh->refused && sh->state == LDR_SHARD_READY && admit(t, shard)) {
        sh->refused = 0;
        ldr_behind_push(&t->host->store, LDR_SSD_QUEUE, shard);
        ldr_ssds_wake(t);
    }
}

bool ldr_ssd_may_write(ldr_ssd_t *ssd, uint32_t shard)
{
    const ldr_ssds_t *t = ssd->tier;
    ldr_store_t *store = &ssd->host->store;
    uint64_t now_ns = ldr_now_ns(ssd->host->clock);

    ldr_host_held(ssd->host);
    if (ldr_budget_allows(&ssd->budget, now_ns)) {
        return true;
    }
    for (unsigned i = 0; i < t->count; i++) {
        if (t->disks[i].on && ldr_budget_allows(&t->disks[i].budget, now_ns)) {
            ldr_ssd_wake(&t->disks[i]);
            return false;
        }
    }
    ldr_behind_remove(store, LDR_SSD_QUEUE, shard);
    store->shards[shard].refused = 1;
    LDR_COUNT(store, store->chunks[store->shards[shard].chunk].space,
              refused_budget, 1);
    return false;
}
