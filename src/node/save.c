/* Saving, asking, removing, flushing. */
#include <string.h>

#include "base/bytes.h"
#include "base/copy.h"
#include "base/fault.h"
#include "node/load.h"
#include "node/node.h"
#include "node/observe.h"
#include "node/shared.h"
#include "node/ssd.h"

/* ---- copying in ---- */

/* Where a copy stands in a caller's list of buffers. */
typedef struct cursor {
    const struct iovec *iov;
    size_t at; /* in the first of them */
} cursor_t;

/* Copies the next bytes of the caller's buffers into one page. */
static uint32_t copy_into(uint8_t *page, size_t bytes, cursor_t *from,
                          uint32_t crc)
{
    while (bytes > 0) {
        size_t left = from->iov->iov_len - from->at;
        size_t take = bytes < left ? bytes : left;

        crc = ldr_copy_crc32c(
            crc, page, (const uint8_t *)from->iov->iov_base + from->at, take);
        page += take;
        bytes -= take;
        from->at += take;
        if (from->at == from->iov->iov_len) {
            from->iov++;
            from->at = 0;
        }
    }
    return crc;
}

/* Fills a reserved shard from the item's buffers, without the lock. */
static larder_status_t fill(ldr_node_t *node, uint32_t shard,
                            const larder_item_t *item, const ldr_stop_t *stop,
                            uint32_t *crc_p)
{
    const ldr_arena_t *arena = &node->store.arena;
    const ldr_shard_t *sh = &node->store.shards[shard];
    cursor_t from = {item->iov, 0};
    size_t left = sh->length;
    uint32_t crc = 0;

    for (uint32_t page = sh->page; left > 0;) {
        uint8_t *to = ldr_arena_page(arena, page);
        size_t take = ldr_min64(left, ldr_arena_run(arena, &page));
        larder_status_t st = ldr_node_stopped(node, stop);

        if (st != LARDER_OK) {
            return st;
        }
        crc = copy_into(to, take, &from, crc);
        /* What the disk gets beyond the payload must not be somebody's. */
        memset(to + take, 0, (LDR_BLOCK - take % LDR_BLOCK) % LDR_BLOCK);
        if (LDR_FAULT(crc_in)) {
            to[0] ^= 1;
        }
        left -= take;
    }
    *crc_p = crc;
    return LARDER_OK;
}

/* ---- put ---- */

/* Whether the shard is here, on the way here, or on a disk that is on. */
static bool is_present(ldr_node_t *node, const ldr_reserve_t *r,
                       uint32_t *entry_p)
{
    ldr_store_t *store = &node->store;
    larder_cause_t cause;

    *entry_p = ldr_store_find(store, &r->name, LDR_NIL, r->now_s, &cause);
    return *entry_p != LDR_NIL &&
           (ldr_store_resident(store, *entry_p, r->number) != LDR_NIL ||
            ldr_node_disk(node,
                          ldr_index_loc(&store->index, *entry_p, r->number)));
}

/* Looks the item up and reserves room if it is absent. With the lock, which it
 * may drop to make memory resident. */
static larder_status_t reserve(ldr_node_t *node, const ldr_target_t *t,
                               size_t bytes, uint32_t *shard_p)
{
    ldr_store_t *store = &node->store;
    const larder_item_t *item = t->item;
    uint32_t tenant = store->spaces[t->space].tenant;
    uint32_t now_s = ldr_wall_s(node->clock);
    uint32_t entry;

    if (tenant == LDR_NIL) {
        return LARDER_E_SPACE;
    }
    if (ldr_secret_refused(node, t->space)) {
        return ldr_secret_settle(node, t->space); /* which says why */
    }
    uint32_t pages_max = store->arena.owners[tenant].pages_max;
    if (bytes == 0 || bytes > LARDER_VALUE_MAX ||
        ldr_arena_pages(bytes) >
            (pages_max != 0 ? pages_max : store->arena.page_count)) {
        return LARDER_E_SIZE;
    }
    if (node->mode != LDR_MODE_ON) {
        ldr_observe_save(node, t, bytes);
        return LARDER_E_TIER_OFF;
    }
    ldr_reserve_t r = {
        .name = ldr_store_name(store, t->space, item->group, item->key),
        .parent = item->parent,
        .depth = item->depth,
        .shards = t->shards,
        .number = item->shard,
        .length = (uint32_t)bytes,
        .now_s = now_s,
        .expires_s = item->ttl_ms == 0
                         ? 0
                         : now_s + (uint32_t)ldr_div_up(item->ttl_ms, 1000),
        .pin = (item->flags & LARDER_PUT_PIN) != 0,
        .state = LDR_SHARD_FILLING,
    };
    /* Populating may drop the lock: then it is looked up again. */
    if (is_present(node, &r, &entry) ||
        (ldr_node_populate(node, tenant, bytes) &&
         is_present(node, &r, &entry))) {
        uint32_t shard = ldr_store_resident(store, entry, r.number);

        if (shard != LDR_NIL && r.pin) {
            ldr_store_pin(store, store->shards[shard].chunk);
        }
        if (shard != LDR_NIL) {
            ldr_ssd_used(node, shard);
        }
        return LARDER_PRESENT;
    }
    if (ldr_memory_anew(node, tenant, bytes)) {
        return LARDER_E_FULL; /* for a moment: room_coming() */
    }
    ldr_node_tick(node);
    store->ssd_takes = ldr_ssds_on(node);
    store->shared_takes = ldr_shared_takes(node, t->space);
    return ldr_store_reserve(store, entry, &r, shard_p);
}

/* What the disk gets beyond the payload must not be an older shard's. */
static void zero_tail(ldr_node_t *node, uint32_t shard)
{
    const ldr_arena_t *arena = &node->store.arena;
    const ldr_shard_t *sh = &node->store.shards[shard];
    uint32_t page = sh->page;

    for (uint32_t i = ldr_arena_pages(sh->length); i > 1; i--) {
        page = arena->next[page];
    }
    memset(ldr_arena_page(arena, page) + sh->length % LDR_PAGE, 0,
           (LDR_BLOCK - sh->length % LDR_BLOCK) % LDR_BLOCK);
}

/* With the lock. */
static bool room_coming(const ldr_node_t *node, uint32_t space)
{
    uint32_t tenant = node->store.spaces[space].tenant;

    if (tenant != LDR_NIL &&
        node->store.arena.owners[tenant].coming_count > 0) {
        return true;
    }
    if (node->shared != NULL && node->shared->offers_flying > 0) {
        return true; /* what is being written is let go then */
    }
    for (unsigned i = 0; i < node->ssd_count; i++) {
        if (ldr_ssd_oldest(&node->ssds[i]) != UINT64_MAX) {
            return true;
        }
    }
    return false;
}

larder_status_t ldr_node_reserve(ldr_node_t *node, const ldr_target_t *t,
                                 size_t bytes, uint32_t *shard_p)
{
    ldr_node_lock(node);
    larder_status_t st = reserve(node, t, bytes, shard_p);
    /* With the same lock: room that comes in between is not missed. */
    if (st == LARDER_E_FULL && room_coming(node, t->space)) {
        st = LARDER_PENDING;
    }
    ldr_node_unlock(node);
    if (st == LARDER_OK) {
        zero_tail(node, *shard_p); /* the caller fills the rest */
    }
    return st;
}

larder_status_t ldr_node_commit(ldr_node_t *node, uint32_t shard, uint32_t crc,
                                uint64_t ns)
{
    ldr_store_t *store = &node->store;
    larder_status_t st = LARDER_OK;

    ldr_node_lock(node);
    const ldr_shard_t *sh = &store->shards[shard];
    bool down = ldr_ssd_admits(node, shard);
    st = ldr_secret_settle(node, store->chunks[sh->chunk].space);
    if (st == LARDER_OK && ldr_store_commit(store, shard, crc, true, down)) {
        LDR_COUNT(store, store->chunks[sh->chunk].space, saved_bytes,
                  sh->length);
        ldr_node_measured(node, LARDER_TIER_DRAM, sh->length, ns);
        if (ns != 0) {
            ldr_histogram_add(&node->save_times, ns);
        }
        ldr_node_dirty(node);
        ldr_shared_offer(node, shard);
        ldr_store_release(store, sh->chunk);
    } else {
        ldr_store_abort(store, shard);
        st = st != LARDER_OK ? st : LARDER_E_STALE;
    }
    ldr_node_unlock(node);
    return st;
}

void ldr_node_abort(ldr_node_t *node, uint32_t shard)
{
    ldr_node_lock(node);
    ldr_store_abort(&node->store, shard);
    ldr_node_unlock(node);
}

void ldr_node_release(ldr_node_t *node, uint32_t chunk)
{
    ldr_node_lock(node);
    ldr_store_release(&node->store, chunk);
    ldr_node_unlock(node);
}

void ldr_node_checked(ldr_node_t *node, uint32_t shard)
{
    /* Copies look at it without the lock; with it, others at what lies beside
     * it, and a compiler may have them read both. */
    ldr_node_lock(node);
    __atomic_store_n(&node->store.shards[shard].checked, 1, __ATOMIC_RELAXED);
    ldr_node_unlock(node);
}

static larder_status_t put(ldr_node_t *node, const ldr_target_t *t,
                           const ldr_stop_t *stop)
{
    size_t bytes = ldr_item_bytes(t->item);
    uint32_t shard = LDR_NIL, crc = 0;

    ldr_node_lock(node);
    larder_status_t st = reserve(node, t, bytes, &shard);
    /* A small arena may be full of shards that are being written down just
     * now, or an extent be on its way. That is not "everything is leased":
     * room comes as writes land and others let go. */
    while (st == LARDER_E_FULL && room_coming(node, t->space) &&
           ldr_node_wait_stop(node, stop)) {
        st = reserve(node, t, bytes, &shard);
    }
    ldr_node_unlock(node);
    if (st != LARDER_OK) {
        return st;
    }
    uint64_t begin_ns = ldr_now_ns(node->clock);
    st = fill(node, shard, t->item, stop, &crc);
    if (st != LARDER_OK) {
        ldr_node_abort(node, shard);
        return st;
    }
    return ldr_node_commit(node, shard, crc,
                           ldr_now_ns(node->clock) - begin_ns);
}

/* Whether what is present has the same bytes: by length and checksum, which
 * needs no buffer of its own. */
static larder_status_t compare(ldr_node_t *node, const ldr_target_t *t,
                               const ldr_stop_t *stop)
{
    ldr_load_t load = {.target = *t};
    larder_status_t st = LARDER_PRESENT;
    uint32_t crc = 0;

    if (!ldr_load_begin(node, &load)) {
        ldr_node_reads_go(node);
        ldr_load_wait(node, &load, stop->deadline_ns);
    }
    if (load.status == LARDER_OK) {
        ldr_load_check(node, &load);
    }
    if (load.status == LARDER_OK) {
        for (uint32_t i = 0; i < t->item->iov_count; i++) {
            crc = ldr_crc32c(crc, t->item->iov[i].iov_base,
                             t->item->iov[i].iov_len);
        }
        if (load.length != ldr_item_bytes(t->item) ||
            crc != node->store.shards[load.shard].crc) {
            st = LARDER_E_MISMATCH;
        }
    }
    ldr_load_end(node, &load, false);
    return st;
}

static void count_save(ldr_store_t *store, uint32_t space, larder_status_t st)
{
    switch (st) {
    case LARDER_OK:
        LDR_COUNT(store, space, saves_stored, 1);
        break;
    case LARDER_PRESENT:
        LDR_COUNT(store, space, saves_present, 1);
        break;
    case LARDER_DECLINED:
        LDR_COUNT(store, space, saves_declined, 1);
        break;
    case LARDER_E_MISMATCH:
        LDR_COUNT(store, space, saves_mismatch, 1);
        break;
    case LARDER_E_FULL:
    case LARDER_E_LIMIT:
        LDR_COUNT(store, space, saves_full, 1);
        break;
    case LARDER_E_STALE:
        LDR_COUNT(store, space, saves_stale, 1);
        break;
    case LARDER_E_CANCELED:
    case LARDER_E_DEADLINE:
        LDR_COUNT(store, space, saves_canceled, 1);
        break;
    case LARDER_E_TIER_OFF:
        LDR_COUNT(store, space, saves_paused, 1);
        break;
    default:
        LDR_COUNT(store, space, saves_failed, 1);
    }
}

void ldr_node_count_save(ldr_node_t *node, uint32_t space, larder_status_t st)
{
    ldr_node_lock(node);
    count_save(&node->store, space, st);
    ldr_node_unlock(node);
}

void ldr_node_put(ldr_node_t *node, const ldr_target_t *t, bool verify,
                  const ldr_stop_t *stop)
{
    larder_status_t st = ldr_node_stopped(node, stop);

    if (st == LARDER_OK) {
        st = put(node, t, stop);
    }
    if (st == LARDER_PRESENT && verify) {
        st = compare(node, t, stop);
    }
    t->item->status = st;
    ldr_node_count_save(node, t->space, st);
}

/* ---- exists, remove ---- */

void ldr_node_exists(ldr_node_t *node, const ldr_target_t *t, bool asks)
{
    ldr_store_t *store = &node->store;
    larder_item_t *item = t->item;
    uint32_t bytes = 0;
    larder_tier_t tier;
    ldr_place_t place;

    ldr_node_lock(node);
    ldr_name_t name = ldr_store_name(store, t->space, item->group, item->key);
    uint32_t entry = ldr_store_find(store, &name, LDR_NIL,
                                    ldr_wall_s(node->clock), &item->cause);
    if (node->mode != LDR_MODE_ON) {
        item->cause = LARDER_CAUSE_PAUSED;
        entry = LDR_NIL;
    }
    if (entry != LDR_NIL &&
        !ldr_node_usable(node, entry, item->shard, &tier, &bytes)) {
        item->cause = ldr_index_loc(&store->index, entry, item->shard) != 0
                          ? LARDER_CAUSE_TIER_OFF
                          : LARDER_CAUSE_ABSENT;
        entry = LDR_NIL;
    }
    bool found = entry != LDR_NIL;
    if (!found && node->mode == LDR_MODE_ON &&
        ldr_shared_find(node, t->space, item->group, item->key, item->shard,
                        &place)) {
        found = true;
        bytes = (place.blocks - 1) * LDR_BLOCK;
        item->cause = LARDER_CAUSE_NONE;
    }
    item->status = found ? LARDER_OK : LARDER_MISS;
    item->length = bytes;
    if (!found) {
        LDR_COUNT(store, t->space, misses[item->cause], 1);
    }
    if (asks) {
        ldr_node_count_asked(node, t->space, 1, found);
    }
    ldr_node_unlock(node);
}

static ldr_record_t tombstone(const ldr_node_t *node, uint32_t space,
                              const larder_item_t *item)
{
    const ldr_space_t *s = &node->store.spaces[space];
    ldr_record_t record = {
        .kind = LDR_RECORD_TOMBSTONE,
        .key = *item->key,
        .epoch = s->epoch,
        .group = item->group,
        .shard = item->shard,
        .shards = LARDER_SHARDS_MAX,
        .written_s = ldr_wall_s(node->clock),
    };

    memcpy(record.space_id, s->id, LDR_ID_BYTES);
    return record;
}

/* Takes one shard out of memory. With the lock. */
static void remove_one(ldr_node_t *node, uint32_t space, larder_item_t *item)
{
    ldr_store_t *store = &node->store;
    ldr_name_t name = ldr_store_name(store, space, item->group, item->key);
    uint32_t entry = ldr_store_find(store, &name, LDR_NIL,
                                    ldr_wall_s(node->clock), &item->cause);

    item->status = LARDER_MISS;
    ldr_observe_remove(node, space, item);
    if (entry == LDR_NIL) {
        return;
    }
    if (ldr_store_resident(store, entry, item->shard) == LDR_NIL &&
        ldr_index_loc(&store->index, entry, item->shard) == 0) {
        item->cause = LARDER_CAUSE_ABSENT; /* its siblings stay */
        return;
    }
    item->status = LARDER_OK;
    LDR_COUNT(store, space, removes, 1);
    /* A chunk without one of its shards is of no use: all of it leaves DRAM.
     * The other shards' places on disk stay. */
    uint32_t chunk = ldr_index_at(&store->index, entry)->resident;
    uint32_t shard = ldr_store_resident(store, entry, item->shard);
    if (shard != LDR_NIL && store->shards[shard].dirty) {
        ldr_store_dirty_remove(store, shard); /* not lost: removed */
    }
    ldr_store_set_loc(store, entry, item->shard, 0);
    if (!ldr_index_has_loc(&store->index, entry)) {
        ldr_store_forget(store, entry);
    } else if (chunk != LDR_NIL) {
        ldr_store_discard(store, chunk);
    }
}

/* Queues tombstones for some items on one disk; gives how many. A disk that
 * is off cannot: the items say so. */
static size_t queue_tombs(ldr_ssd_t *ssd, uint32_t space, larder_item_t *items,
                          size_t count)
{
    size_t n = 0;

    while (n < count && ssd->tomb_count < LDR_TOMBS) {
        uint32_t at = (ssd->tomb_head + ssd->tomb_count) % LDR_TOMBS;

        ssd->tombs[at] = tombstone(ssd->node, space, &items[n++]);
        ssd->tomb_count++;
    }
    return n;
}

/* All items on one disk, synced. With the lock. */
static larder_status_t remove_on(ldr_ssd_t *ssd, uint32_t space,
                                 larder_item_t *items, size_t count,
                                 const ldr_stop_t *stop)
{
    ldr_node_t *node = ssd->node;
    size_t queued = 0;

    while (ssd->on) {
        queued += queue_tombs(ssd, space, items + queued, count - queued);
        uint64_t want = ldr_ssd_want_sync(ssd);
        while (ssd->on && ssd->sync_done < want) {
            if (!ldr_node_wait_stop(node, stop)) {
                return ldr_node_gave_up(node, stop);
            }
        }
        if (ssd->sync_failed >= want) {
            return LARDER_E_IO;
        }
        if (queued == count) {
            return LARDER_OK;
        }
    }
    return LARDER_E_TIER_OFF;
}

void ldr_node_remove(ldr_node_t *node, uint32_t space, larder_item_t *items,
                     size_t count, const ldr_stop_t *stop)
{
    larder_status_t shared_st = LARDER_OK;
    uint64_t token = 0;

    ldr_node_lock(node);
    larder_status_t secret = ldr_secret_settle(node, space);
    if (secret != LARDER_OK) {
        ldr_node_unlock(node);
        for (size_t i = 0; i < count; i++) {
            items[i].status = secret;
        }
        return;
    }
    for (size_t i = 0; i < count; i++) {
        ldr_place_t place;
        bool shared = ldr_shared_find(node, space, items[i].group, items[i].key,
                                      items[i].shard, &place);
        larder_status_t st = ldr_shared_remove(node, space, &items[i], &token);

        shared_st = st != LARDER_OK ? st : shared_st;
        remove_one(node, space, &items[i]);
        if (shared && items[i].status == LARDER_MISS) {
            items[i].status = LARDER_OK;
            items[i].cause = LARDER_CAUSE_NONE;
        }
    }
    /* Each disk gets its tombstones, also for keys that are not known: a
     * record may lie there that only the next open would find. */
    for (unsigned d = 0; d < node->ssd_count; d++) {
        larder_status_t st =
            remove_on(&node->ssds[d], space, items, count, stop);

        for (size_t i = 0; i < count && st != LARDER_OK; i++) {
            items[i].status = st;
        }
    }
    ldr_node_unlock(node);
    larder_status_t st =
        ldr_shared_removed(node, space, token, stop->deadline_ns);
    st = shared_st != LARDER_OK ? shared_st : st;
    for (size_t i = 0; i < count && st != LARDER_OK; i++) {
        items[i].status = st;
    }
}

/* ---- flush ---- */

void ldr_node_dirty(ldr_node_t *node)
{
    for (unsigned i = 0; i < node->ssd_count; i++) {
        if (node->ssds[i].on) {
            ldr_ssd_wake(&node->ssds[i]);
        }
    }
}

static bool any_on(const ldr_node_t *node)
{
    for (unsigned i = 0; i < node->ssd_count; i++) {
        if (node->ssds[i].on) {
            return true;
        }
    }
    return false;
}

/* The oldest save that has not reached a disk. */
static uint64_t oldest_pending(const ldr_node_t *node)
{
    const ldr_store_t *store = &node->store;
    uint64_t oldest = UINT64_MAX;

    if (store->dirty_head != LDR_NIL) {
        oldest = store->shards[store->dirty_head].save_seq;
    }
    for (unsigned i = 0; i < node->ssd_count; i++) {
        oldest = ldr_min64(oldest, ldr_ssd_oldest(&node->ssds[i]));
    }
    return oldest;
}

static uint64_t drops(const ldr_counters_t *n)
{
    return n->saves_dropped_evicted + n->saves_dropped_size +
           n->saves_dropped_io;
}

/* With the lock. What is saved meanwhile is not waited for. */
static larder_status_t flush_ssd(ldr_node_t *node, const ldr_stop_t *stop)
{
    uint64_t target = node->store.save_seq;
    bool failed = false;

    ldr_node_dirty(node);
    while (any_on(node) && oldest_pending(node) <= target) {
        if (!ldr_node_wait_stop(node, stop)) {
            return ldr_node_gave_up(node, stop);
        }
    }
    for (unsigned i = 0; i < node->ssd_count; i++) {
        ldr_ssd_t *ssd = &node->ssds[i];

        if (!ssd->on) {
            /* It went off with saves that may not be synced. */
            failed |= ssd->opened && (ssd->disk.filling[0].segment != LDR_NIL ||
                                      ssd->disk.filling[1].segment != LDR_NIL);
            continue;
        }
        uint64_t want = ldr_ssd_want_sync(ssd);
        while (ssd->on && ssd->sync_done < want) {
            if (!ldr_node_wait_stop(node, stop)) {
                return ldr_node_gave_up(node, stop);
            }
        }
        failed |= ssd->sync_failed >= want;
    }
    if (!any_on(node)) {
        return LARDER_E_TIER_OFF;
    }
    /* What was dropped since the last flush had been accepted before this. */
    failed |= drops(&node->store.n) > node->drops_told;
    node->drops_told = drops(&node->store.n);
    return failed ? LARDER_E_DROPPED : LARDER_OK;
}

larder_status_t ldr_node_flush(ldr_node_t *node, larder_tier_t tier,
                               const ldr_stop_t *stop)
{
    larder_status_t st = LARDER_OK;

    if (tier == LARDER_TIER_SSD) {
        ldr_node_lock(node);
        st = flush_ssd(node, stop);
        ldr_node_unlock(node);
    } else if (tier == LARDER_TIER_SHARED) {
        st = ldr_shared_flush(node, stop);
    }
    return st;
}
