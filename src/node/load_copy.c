/* Copying held shards out, checking them, and matching chains. */
#include "base/bytes.h"
#include "base/copy.h"
#include "base/fault.h"
#include "node/load.h"
#include "node/observe.h"
#include "node/shared.h"
#include "node/ssd.h"

/* Copies so many bytes into the caller's next buffers. */
static uint32_t copy_out(const struct iovec **iov, size_t *at,
                         const uint8_t *from, size_t bytes, bool check,
                         uint32_t crc)
{
    while (bytes > 0) {
        size_t left = (*iov)->iov_len - *at;
        size_t take = bytes < left ? bytes : left;
        uint8_t *to = (uint8_t *)(*iov)->iov_base + *at;

        if (check) {
            crc = ldr_copy_crc32c(crc, to, from, take);
        } else {
            ldr_copy(to, from, take);
        }
        from += take;
        bytes -= take;
        *at += take;
        if (*at == (*iov)->iov_len) {
            (*iov)++;
            *at = 0;
        }
    }
    return crc;
}

/* The bytes in DRAM are not those that were saved. */
static void corrupt(ldr_node_t *node, ldr_load_t *load)
{
    ldr_store_t *store = &node->store;
    ldr_shard_t *sh = &store->shards[load->shard];

    ldr_node_lock(node);
    uint32_t entry = store->chunks[load->chunk].entry;
    uint32_t number = sh->number;
    bool from_disk = !sh->checked; /* never right since it was read */
    ldr_store_discard(store, load->chunk);
    /* The entry is gone with the chunk unless something of it is on disk. */
    if (entry != LDR_NIL && from_disk) {
        ldr_name_t name =
            ldr_store_name(store, load->target.space, load->target.item->group,
                           load->target.item->key);
        larder_cause_t cause;

        entry = ldr_store_find(store, &name, LDR_NIL, 0, &cause);
        if (entry != LDR_NIL) {
            ldr_store_drop_loc(store, entry, number, false);
        }
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
    const struct iovec *iov = load->target.item->iov;
    size_t left = load->length;
    size_t at = 0;
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

        load->status = ldr_node_stopped(node, stop);
        if (load->status != LARDER_OK) {
            return;
        }
        crc = copy_out(&iov, &at, from, take, check, crc);
        left -= take;
    }
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

static void count_load(ldr_store_t *store, const ldr_load_t *load)
{
    uint32_t space = load->target.space;

    switch (load->tier) {
    case LARDER_TIER_SSD:
        LDR_COUNT(store, space, loads_ssd, 1);
        LDR_COUNT(store, space, loaded_ssd_bytes, load->length);
        break;
    case LARDER_TIER_SHARED:
        LDR_COUNT(store, space, loads_shared, 1);
        LDR_COUNT(store, space, loaded_shared_bytes, load->length);
        break;
    default:
        LDR_COUNT(store, space, loads_dram, 1);
    }
}

void ldr_node_count_asked(ldr_node_t *node, uint32_t space, uint64_t asked,
                          uint64_t found)
{
    node->store.spaces[space].asked_s = ldr_wall_s(node->clock);
    LDR_COUNT(&node->store, space, asked_chunks, asked);
    LDR_COUNT(&node->store, space, found_chunks, found);
}

void ldr_load_end(ldr_node_t *node, ldr_load_t *load, bool keep)
{
    ldr_store_t *store = &node->store;

    ldr_node_lock(node);
    if (load->status == LARDER_OK) {
        LDR_COUNT(store, load->target.space, loaded_bytes, load->length);
        count_load(store, load);
        if (load->checked) {
            __atomic_store_n(&store->shards[load->shard].checked, 1,
                             __ATOMIC_RELAXED);
        }
    } else {
        if (load->status == LARDER_E_DEADLINE) {
            load->status = LARDER_MISS;
            load->cause = LARDER_CAUSE_DEADLINE;
        }
        if (load->status == LARDER_MISS) {
            LDR_COUNT(store, load->target.space, misses[load->cause], 1);
        }
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

/* ---- matching ---- */

#define MATCH_SLICE 64u /* chunks looked up before others get the lock */

ldr_ssd_t *ldr_node_disk(const ldr_node_t *node, ldr_loc_t loc)
{
    if (loc == 0) {
        return NULL;
    }
    ldr_ssd_t *ssd = &node->ssds[ldr_loc_disk(loc)];
    return ssd->on ? ssd : NULL;
}

bool ldr_node_usable(const ldr_node_t *node, uint32_t entry, uint32_t number,
                     larder_tier_t *tier_p, uint32_t *bytes_p)
{
    const ldr_store_t *store = &node->store;
    uint32_t shard = ldr_store_resident(store, entry, number);

    if (shard != LDR_NIL && store->shards[shard].state == LDR_SHARD_READY) {
        *tier_p = LARDER_TIER_DRAM;
        *bytes_p = store->shards[shard].length;
        return true;
    }
    ldr_loc_t loc = ldr_index_loc(&store->index, entry, number);
    if (ldr_node_disk(node, loc) == NULL) {
        return false;
    }
    *tier_p = LARDER_TIER_SSD;
    *bytes_p = (ldr_loc_blocks(loc) - 1) * LDR_BLOCK;
    return true;
}

/* Adds the chunk to the match if every shard of it is to be had. entry:
 * LDR_NIL: none, then m->cause says why. */
static bool match_chunk(ldr_node_t *node, const ldr_name_t *name,
                        uint32_t entry, uint32_t shards, larder_match_t *m)
{
    larder_tier_t tier, slowest = LARDER_TIER_DRAM;
    uint64_t bytes[LARDER_TIER_COUNT] = {0};
    ldr_place_t place;
    uint32_t b;

    for (uint32_t i = 0; i < shards; i++) {
        if (entry != LDR_NIL && ldr_node_usable(node, entry, i, &tier, &b)) {
            bytes[tier] += b;
            slowest = tier > slowest ? tier : slowest;
        } else if (ldr_shared_find(node, name->space, (uint16_t)name->group,
                                   name->key, i, &place)) {
            bytes[LARDER_TIER_SHARED] += (place.blocks - 1) * LDR_BLOCK;
            slowest = LARDER_TIER_SHARED;
        } else {
            if (entry != LDR_NIL) {
                m->cause = ldr_index_loc(&node->store.index, entry, i) != 0
                               ? LARDER_CAUSE_TIER_OFF
                               : LARDER_CAUSE_ABSENT;
            }
            return false;
        }
    }
    for (int i = 0; i < LARDER_TIER_COUNT; i++) {
        m->tier_bytes[i] += bytes[i];
    }
    m->tier_chunks[slowest]++;
    m->chunks++;
    m->cause = LARDER_CAUSE_NONE;
    return true;
}

void ldr_node_asked(ldr_node_t *node, uint32_t space, uint64_t asked,
                    uint64_t found)
{
    ldr_node_lock(node);
    ldr_node_count_asked(node, space, asked, found);
    ldr_node_unlock(node);
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
    ldr_mode_t mode = ldr_node_get_mode(node);
    if (mode != LDR_MODE_ON) {
        if (mode == LDR_MODE_OBSERVE) {
            ldr_observe_match(node, space, shards, group, keys, count);
        }
        if (asks) {
            ldr_node_asked(node, space, count, 0);
        }
        out->cause = LARDER_CAUSE_PAUSED;
        return;
    }
    for (size_t i = 0; i < count && more;) {
        size_t end = ldr_min64(count, i + MATCH_SLICE);
        bool soon = false; /* what the shared tier has was asked for */

        ldr_node_lock(node);
        for (; i < end && more; i++) {
            ldr_name_t name = ldr_store_name(store, space, group, &keys[i]);

            entry = ldr_store_find(store, &name, entry, now_s, &out->cause);
            if (entry == LDR_NIL && !soon) {
                soon = true;
                ldr_shared_soon(node, space, group, keys + i, end - i, shards);
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
