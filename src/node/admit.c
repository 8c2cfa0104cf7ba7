/* What may be written down, and what stays in DRAM until it is evicted. */
#include "node/ssd.h"

/* Counts the shard as used. True: not for the first time, or all is admitted.
 */
static bool admit(ldr_node_t *node, uint32_t shard)
{
    const ldr_shard_t *sh = &node->store.shards[shard];
    const ldr_chunk_t *c = &node->store.chunks[sh->chunk];

    if (node->admit.tags == NULL || c->entry == LDR_NIL) {
        return true;
    }
    /* Its own print for each shard: ranks that save theirs are one use. */
    uint64_t print = ldr_index_at(&node->store.index, c->entry)->fingerprint ^
                     (uint64_t)sh->number << 57;
    return ldr_admit_use(&node->admit, print) || c->pinned;
}

bool ldr_ssd_admits(ldr_node_t *node, uint32_t shard)
{
    ldr_shard_t *sh = &node->store.shards[shard];

    sh->refused = !admit(node, shard);
    if (sh->refused) {
        LDR_COUNT(&node->store, node->store.chunks[sh->chunk].space,
                  refused_first, 1);
    }
    return !sh->refused;
}

void ldr_ssd_used(ldr_node_t *node, uint32_t shard)
{
    ldr_shard_t *sh = &node->store.shards[shard];

    if (sh->refused && sh->state == LDR_SHARD_READY && admit(node, shard)) {
        sh->refused = 0;
        sh->save_seq = ++node->store.save_seq;
        ldr_store_dirty_push(&node->store, shard);
        ldr_node_dirty(node);
    }
}

bool ldr_ssd_may_write(ldr_ssd_t *ssd, uint32_t shard)
{
    ldr_node_t *node = ssd->node;
    ldr_store_t *store = &node->store;
    uint64_t now_ns = ldr_now_ns(node->clock);

    if (ldr_budget_allows(&ssd->budget, now_ns)) {
        return true;
    }
    for (unsigned i = 0; i < node->ssd_count; i++) {
        if (node->ssds[i].on &&
            ldr_budget_allows(&node->ssds[i].budget, now_ns)) {
            ldr_ssd_wake(&node->ssds[i]);
            return false;
        }
    }
    ldr_store_dirty_remove(store, shard);
    store->shards[shard].refused = 1;
    LDR_COUNT(store, store->chunks[store->shards[shard].chunk].space,
              refused_budget, 1);
    return false;
}
