/*
 * Copies shards out that a load holds, and checks them. They are held, so their
 * bytes need no lock. The node's lock is taken only to count, to drop what is
 * damaged, and to give the shards back.
 */
#include "base/bytes.h"
#include "base/copy.h"
#include "base/fault.h"
#include "base/gather.h"
#include "node/load.h"

/* Removes a shard from the tier that gave wrong bytes of it; from 0: it is not
 * known which one did, so from all. With the lock. */
static void forget_below(ldr_node_t *node, const ldr_target_t *target,
                         unsigned from)
{
    ldr_store_t *store = &node->store;
    ldr_name_t name = ldr_store_name(store, target->space, target->item->group,
                                     target->item->key);
    larder_cause_t cause;
    uint32_t entry = ldr_store_find(store, &name, LDR_NIL, 0, &cause);

    for (unsigned i = 0; i < node->tier_count; i++) {
        ldr_tier_t *t = node->order[i];
        uint64_t token = 0;
        bool there = false;

        if (from == 0 || from == (unsigned)t->ops->number) {
            t->ops->remove(t, target->space, entry, target->item, &token,
                           &there);
        }
    }
    if (entry != LDR_NIL && !ldr_index_has_loc(&store->index, entry)) {
        ldr_store_forget(store, entry);
    }
}

/* The bytes in DRAM are not those that were saved. */
static void corrupt(ldr_node_t *node, ldr_load_t *load)
{
    ldr_store_t *store = &node->store;
    ldr_shard_t *sh = &store->shards[load->shard];

    ldr_node_lock(node);
    bool below = !sh->checked; /* never right since it came, from where? */
    unsigned from = sh->tier;
    ldr_store_discard(store, load->chunk);
    if (below) {
        forget_below(node, &load->target, from);
    }
    ldr_node_unlock(node);
    load->status = LARDER_MISS;
    load->cause = LARDER_CAUSE_CORRUPT;
}

void ldr_load_copy(ldr_node_t *node, ldr_load_t *load, const ldr_stop_t *stop)
{
    const ldr_arena_t *arena = &node->store.arena;
    const ldr_shard_t *sh = &node->store.shards[load->shard];
    bool check = node->options.verify != LDR_VERIFY_ENTRY ||
                 !__atomic_load_n(&sh->checked, __ATOMIC_RELAXED);
    ldr_list_t to =
        ldr_list(load->target.item->iov, load->target.item->iov_count);
    size_t left = load->length;
    uint32_t crc = 0;

    if (ldr_item_bytes(load->target.item) < load->length) {
        load->status = LARDER_E_SIZE;
        return;
    }
    if (LDR_FAULT(copy_out)) {
        ldr_arena_page(arena, sh->page)[left / 2 % LDR_PAGE] ^= 4;
    }
    uint64_t begin_ns = ldr_now_ns(node->clock);
    for (uint32_t page = sh->page; left > 0;) {
        const uint8_t *from = ldr_arena_page(arena, page);
        size_t take = ldr_min64(left, ldr_arena_run(arena, &page));

        load->status = ldr_host_stopped(&node->host, stop);
        if (load->status != LARDER_OK) {
            ldr_copy_fence();
            return;
        }
        crc = ldr_scatter(crc, &to, from, take, check);
        left -= take;
    }
    ldr_copy_fence();
    if (check && crc != sh->crc) {
        corrupt(node, load);
        return;
    }
    load->checked = check;
    uint64_t ns = ldr_now_ns(node->clock) - begin_ns;
    ldr_histogram_add(&node->load_times, ns);
    ldr_node_lock(node);
    ldr_node_measured(node, LARDER_TIER_DRAM, load->length, ns);
    ldr_node_unlock(node);
}

void ldr_load_check(ldr_node_t *node, ldr_load_t *load)
{
    const ldr_arena_t *arena = &node->store.arena;
    const ldr_shard_t *sh = &node->store.shards[load->shard];
    size_t left = load->length;
    uint32_t crc = 0;

    if (node->options.verify == LDR_VERIFY_GET ||
        (node->options.verify == LDR_VERIFY_ENTRY &&
         __atomic_load_n(&sh->checked, __ATOMIC_RELAXED))) {
        return;
    }
    for (uint32_t page = sh->page; left > 0;) {
        const uint8_t *from = ldr_arena_page(arena, page);
        size_t take = ldr_min64(left, ldr_arena_run(arena, &page));

        crc = ldr_crc32c(crc, from, take);
        left -= take;
    }
    if (crc != sh->crc) {
        corrupt(node, load);
    } else {
        load->checked = true;
    }
}

void ldr_load_end(ldr_node_t *node, ldr_load_t *load, bool keep)
{
    ldr_store_t *store = &node->store;

    ldr_node_lock(node);
    LDR_ASSERT(load->status != LARDER_PENDING); /* load.c, 1 */
    if (load->status == LARDER_E_DEADLINE) {
        load->status = LARDER_MISS;
        load->cause = LARDER_CAUSE_DEADLINE;
    }
    if (load->status == LARDER_OK && load->checked) {
        __atomic_store_n(&store->shards[load->shard].checked, 1,
                         __ATOMIC_RELAXED);
    }
    if (load->status == LARDER_OK && LDR_HOLDS(load->chunk != LDR_NIL) &&
        !load->own) {
        LDR_COUNT(store, load->target.space, loaded_bytes, load->length);
        LDR_COUNT(store, load->target.space, loads[load->tier], 1);
        LDR_COUNT(store, load->target.space, loaded_from[load->tier],
                  load->length);
    } else if (load->status == LARDER_MISS && !load->own) {
        LDR_COUNT(store, load->target.space, misses[load->cause], 1);
    }
    if (load->asks &&
        (load->status == LARDER_OK || load->status == LARDER_MISS)) {
        ldr_node_count_asked(node, load->target.space, 1,
                             load->status == LARDER_OK);
    }
    if (load->chunk != LDR_NIL && !(keep && load->status == LARDER_OK)) {
        ldr_store_release(store, load->chunk);
        load->chunk = load->shard = LDR_NIL;
    }
    ldr_node_unlock(node);
}
