/*
 * Saving, removing, flushing.
 *
 * Callers hold no lock. Bookkeeping is done with the node's lock, bytes are
 * copied without it: a reserved shard (LDR_SHARD_FILLING) is its writer's alone
 * until it is committed or given up, exactly once. The copies are fenced before
 * the commit takes the lock, so that whoever finds the shard sees all its
 * bytes.
 */
#include <string.h>

#include "base/bytes.h"
#include "base/copy.h"
#include "base/fault.h"
#include "base/gather.h"
#include "node/load.h"
#include "node/node.h"
#include "node/promise.h"

/* ---- copying in ---- */

/* Fills a reserved shard from the item's buffers, without the lock. The caller
 * fences. */
static larder_status_t fill(ldr_node_t *node, uint32_t shard,
                            const larder_item_t *item, const ldr_stop_t *stop,
                            uint32_t *crc_p)
{
    const ldr_arena_t *arena = &node->store.arena;
    const ldr_shard_t *sh = &node->store.shards[shard];
    ldr_list_t from = ldr_list(item->iov, item->iov_count);
    size_t left = sh->length;
    uint32_t crc = 0;

    for (uint32_t page = sh->page; left > 0;) {
        uint8_t *to = ldr_arena_page(arena, page);
        size_t take = ldr_min64(left, ldr_arena_run(arena, &page));
        larder_status_t st = ldr_host_stopped(&node->host, stop);

        if (st != LARDER_OK) {
            return st;
        }
        crc = ldr_gather(crc, to, &from, take);
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

/* Shards of a chunk that are to be saved, while the lock is held. */
typedef struct saving {
    ldr_reserve_t r;
    uint32_t tenant;
    uint32_t first, count; /* the shards' numbers */
    bool looked;           /* since the lock was dropped last, if it was: */
    uint32_t entry, resident[LARDER_SHARDS_MAX];
    bool asked; /* likewise: which tiers take the space's shards */
} saving_t;

static larder_status_t saving_begin(ldr_node_t *node, const ldr_target_t *t,
                                    uint32_t count, saving_t *s)
{
    ldr_store_t *store = &node->store;
    const larder_item_t *item = t->item;
    uint32_t now_s = ldr_wall_s(node->clock);

    s->tenant = store->spaces[t->space].tenant;
    s->first = item->shard;
    s->count = count;
    s->looked = s->asked = false;
    if (s->tenant == LDR_NIL) {
        return LARDER_E_SPACE;
    }
    if (ldr_secret_refused(node, t->space)) {
        return ldr_secret_settle(node, t->space); /* which says why */
    }
    s->r = (ldr_reserve_t){
        .name = ldr_store_name(store, t->space, item->group, item->key),
        .parent = item->parent,
        .depth = item->depth,
        .shards = t->shards,
        .now_s = now_s,
        .expires_s = item->ttl_ms == 0
                         ? 0
                         : now_s + (uint32_t)ldr_div_up(item->ttl_ms, 1000),
        .pin = (item->flags & LARDER_PUT_PIN) != 0,
        .wanted = ldr_promise_wants(node, t->space, item->group, item->key),
        .state = LDR_SHARD_FILLING,
    };
    return LARDER_OK;
}

/* Whether a save of the shard is of no use: it is here, on the way here, or in
 * a tier that keeps it. */
static bool is_present(ldr_node_t *node, saving_t *s)
{
    ldr_store_t *store = &node->store;
    const ldr_reserve_t *r = &s->r;
    larder_cause_t cause;

    if (!s->looked) {
        s->entry = ldr_store_find(store, &r->name, LDR_NIL, r->now_s, &cause);
        ldr_store_residents(store, s->entry, s->first, s->count, s->resident);
        s->looked = true;
    }
    if (s->resident[r->number - s->first] != LDR_NIL) {
        return true;
    }
    ldr_sought_t sought = {&r->name, s->entry, r->number, false};
    for (unsigned i = 0; i < node->tier_count; i++) {
        ldr_tier_t *t = node->order[i];

        if (t->ops->keeps && t->ops->find(t, &sought, &cause) > 0) {
            return true;
        }
    }
    return false;
}

/* A save that finds it there has used it. */
static void use_present(ldr_node_t *node, const saving_t *s)
{
    ldr_store_t *store = &node->store;
    uint32_t shard = s->resident[s->r.number - s->first];

    if (shard != LDR_NIL && s->r.pin) {
        ldr_store_pin(store, store->shards[shard].chunk);
    }
    if (shard != LDR_NIL) {
        ldr_node_used(node, shard);
    }
}

static void ask_tiers(ldr_node_t *node, saving_t *s)
{
    for (unsigned i = 0; i < node->tier_count && !s->asked; i++) {
        ldr_tier_t *tier = node->order[i];

        node->store.queues[ldr_tier_queue(tier->ops)].takes =
            tier->ops->accepts(tier, s->r.name.space);
    }
    s->asked = true;
}

/* Looks a shard up and reserves room if it is absent. With the lock, which it
 * may drop to make memory resident. */
static larder_status_t try_reserve(ldr_node_t *node, saving_t *s, size_t bytes,
                                   uint32_t *shard_p)
{
    ldr_store_t *store = &node->store;
    uint32_t pages_max = store->arena.owners[s->tenant].pages_max;

    if (bytes == 0 || bytes > LARDER_VALUE_MAX ||
        ldr_arena_pages(bytes) >
            (pages_max != 0 ? pages_max : store->arena.page_count)) {
        return LARDER_E_SIZE;
    }
    if (node->mode != LDR_MODE_ON) {
        return LARDER_E_TIER_OFF;
    }
    s->r.length = (uint32_t)bytes;
    bool present = is_present(node, s);
    if (!present && ldr_node_populate(node, s->tenant, bytes)) {
        s->looked = s->asked = false; /* the lock was dropped */
        present = is_present(node, s);
    }
    if (present) {
        use_present(node, s);
        return LARDER_PRESENT;
    }
    if (ldr_memory_remakes(node, s->tenant, bytes)) {
        return LARDER_E_FULL; /* for a moment: room_coming() */
    }
    ldr_node_tick(node);
    ask_tiers(node, s);
    larder_status_t st = ldr_store_reserve(store, s->entry, &s->r, shard_p);
    if (st == LARDER_OK) {
        s->entry = store->chunks[store->shards[*shard_p].chunk].entry;
        s->resident[s->r.number - s->first] = *shard_p;
    }
    return st;
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
    return ldr_behind_in_hand(&node->store);
}

/* The same for all that are not PENDING: there is no room, but some is coming.
 * A save that is refused will not keep a promise. */
static void reserve(ldr_node_t *node, const ldr_target_t *t,
                    ldr_reserving_t *of, uint32_t count)
{
    saving_t s;

    ldr_promise_due(node);
    larder_status_t all = saving_begin(node, t, count, &s);

    for (uint32_t i = 0; i < count; i++) {
        larder_status_t st = all;

        s.r.number = t->item[i].shard;
        if (st == LARDER_OK) {
            st = try_reserve(node, &s, of[i].bytes, &of[i].shard);
        }
        if (st == LARDER_E_FULL && room_coming(node, t->space)) {
            st = all = LARDER_PENDING;
        } else if (st != LARDER_OK && st != LARDER_PRESENT &&
                   st != LARDER_PENDING) {
            ldr_promise_failed(node, t->space, t->item->group, t->item->key);
        }
        of[i].status = st;
    }
}

void ldr_node_reserve_run(ldr_node_t *node, const ldr_target_t *t,
                          ldr_reserving_t *of, uint32_t count)
{
    LDR_ASSERT(count <= LARDER_SHARDS_MAX);
    ldr_node_lock(node);
    /* With the same lock: room that comes in between is not missed. */
    reserve(node, t, of, count);
    ldr_node_unlock(node);
    for (uint32_t i = 0; i < count; i++) {
        if (of[i].status == LARDER_OK) {
            zero_tail(node, of[i].shard); /* the caller fills the rest */
        }
    }
}

larder_status_t ldr_node_reserve(ldr_node_t *node, const ldr_target_t *t,
                                 size_t bytes, uint32_t *shard_p)
{
    ldr_reserving_t of = {.bytes = bytes};

    ldr_node_reserve_run(node, t, &of, 1);
    if (of.status == LARDER_OK) {
        *shard_p = of.shard;
    }
    return of.status;
}

/* With the lock: a reservation that is not filled. */
static void give_up(ldr_node_t *node, uint32_t shard)
{
    ldr_store_t *store = &node->store;
    const ldr_chunk_t *c = &store->chunks[store->shards[shard].chunk];

    ldr_promise_failed(node, c->space, c->group, &c->key);
    ldr_store_abort(store, shard);
}

static void count_save(ldr_store_t *store, uint32_t space, larder_status_t st);

/* With the lock. */
static larder_status_t commit(ldr_node_t *node, uint32_t shard, uint32_t crc,
                              uint64_t ns)
{
    ldr_store_t *store = &node->store;
    const ldr_shard_t *sh = &store->shards[shard];

    LDR_ASSERT(sh->state == LDR_SHARD_FILLING);
    larder_status_t st =
        ldr_secret_settle(node, store->chunks[sh->chunk].space);
    if (st == LARDER_OK && ldr_store_commit(store, shard, crc, true)) {
        LDR_COUNT(store, store->chunks[sh->chunk].space, saved_bytes,
                  sh->length);
        ldr_node_measured(node, LARDER_TIER_DRAM, sh->length, ns);
        if (ns != 0) {
            ldr_histogram_add(&node->save_times, ns);
        }
        ldr_host_queue(&node->host, shard, NULL);
        ldr_promise_committed(node, sh->chunk);
        ldr_store_release(store, sh->chunk);
        return LARDER_OK;
    }
    give_up(node, shard);
    return st != LARDER_OK ? st : LARDER_E_STALE;
}

larder_status_t ldr_node_commit(ldr_node_t *node, uint32_t shard, uint32_t crc,
                                uint64_t ns)
{
    ldr_node_lock(node);
    larder_status_t st = commit(node, shard, crc, ns);
    ldr_node_unlock(node);
    return st;
}

void ldr_node_commit_all(ldr_node_t *node, ldr_committing_t *of, uint32_t count)
{
    for (uint32_t i = 0; i < count;) {
        uint32_t end = i + (uint32_t)ldr_min64(count - i, LARDER_SHARDS_MAX);

        ldr_node_lock(node);
        for (; i < end; i++) {
            of[i].status = commit(node, of[i].shard, of[i].crc, 0);
            count_save(&node->store, of[i].space, of[i].status);
        }
        ldr_node_unlock(node);
    }
}

void ldr_node_abort(ldr_node_t *node, uint32_t shard)
{
    ldr_node_lock(node);
    give_up(node, shard);
    ldr_node_unlock(node);
}

void ldr_node_release(ldr_node_t *node, uint32_t chunk)
{
    ldr_node_lock(node);
    ldr_store_release(&node->store, chunk);
    ldr_node_unlock(node);
}

void ldr_node_release_all(ldr_node_t *node, const ldr_releasing_t *of,
                          uint32_t count)
{
    for (uint32_t i = 0; i < count;) {
        uint32_t end = i + (uint32_t)ldr_min64(count - i, LARDER_SHARDS_MAX);

        ldr_node_lock(node);
        for (; i < end; i++) {
            if (of[i].shard != LDR_NIL) {
                __atomic_store_n(&node->store.shards[of[i].shard].checked, 1,
                                 __ATOMIC_RELAXED);
            }
            ldr_store_release(&node->store, of[i].chunk);
        }
        ldr_node_unlock(node);
    }
}

static larder_status_t put(ldr_node_t *node, const ldr_target_t *t,
                           const ldr_stop_t *stop)
{
    ldr_reserving_t of = {.bytes = ldr_item_bytes(t->item)};
    uint32_t crc = 0;

    ldr_node_lock(node);
    reserve(node, t, &of, 1);
    /* A small arena may be full of shards that are being written down just
     * now, or an extent be on its way. That is not "everything is leased":
     * room comes as writes land and others let go. */
    while (of.status == LARDER_PENDING &&
           ldr_host_wait_stop(&node->host, stop)) {
        reserve(node, t, &of, 1);
    }
    ldr_node_unlock(node);
    if (of.status != LARDER_OK) {
        return of.status == LARDER_PENDING ? LARDER_E_FULL : of.status;
    }
    uint64_t begin_ns = ldr_now_ns(node->clock);
    larder_status_t st = fill(node, of.shard, t->item, stop, &crc);
    ldr_copy_fence();
    if (st != LARDER_OK) {
        ldr_node_abort(node, of.shard);
        return st;
    }
    return ldr_node_commit(node, of.shard, crc,
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
    larder_status_t st = ldr_host_stopped(&node->host, stop);

    if (st == LARDER_OK) {
        st = put(node, t, stop);
    }
    if (st == LARDER_PRESENT && verify) {
        st = compare(node, t, stop);
    }
    t->item->status = st;
    ldr_node_count_save(node, t->space, st);
}

/* ---- remove ---- */

/* Takes one shard out of memory, and out of all tiers. With the lock. tokens,
 * statuses: by tier. from: the tier that has told of it; NULL: none. */
static void remove_one(ldr_node_t *node, uint32_t space, larder_item_t *item,
                       const ldr_tier_t *from, uint64_t *tokens,
                       larder_status_t *statuses)
{
    ldr_store_t *store = &node->store;
    ldr_name_t name = ldr_store_name(store, space, item->group, item->key);
    uint32_t entry = ldr_store_find(store, &name, LDR_NIL,
                                    ldr_wall_s(node->clock), &item->cause);
    uint32_t shard = LDR_NIL, chunk = LDR_NIL;
    bool found = false;

    if (entry != LDR_NIL) {
        chunk = ldr_index_at(&store->index, entry)->resident;
        shard = ldr_store_resident(store, entry, item->shard);
        found = shard != LDR_NIL;
        item->cause = LARDER_CAUSE_ABSENT;
    }
    if (shard != LDR_NIL) {
        ldr_behind_remove_all(store, shard); /* not lost: removed */
    }
    for (unsigned i = 0; i < node->tier_count; i++) {
        ldr_tier_t *t = node->order[i];
        bool there = false;
        larder_status_t st = t != from ? t->ops->remove(t, space, entry, item,
                                                        &tokens[i], &there)
                                       : LARDER_OK;

        statuses[i] = st != LARDER_OK ? st : statuses[i];
        found = found || there;
    }
    item->status = found ? LARDER_OK : LARDER_MISS;
    item->cause = found ? LARDER_CAUSE_NONE : item->cause;
    LDR_COUNT(store, space, removes, found);
    /* A chunk without one of its shards is of no use: all of it leaves DRAM.
     * The other shards stay in the tiers below. */
    if (found && entry != LDR_NIL) {
        if (!ldr_index_has_loc(&store->index, entry)) {
            ldr_store_forget(store, entry);
        } else if (chunk != LDR_NIL) {
            ldr_store_discard(store, chunk);
        }
    }
}

static void remove_items(ldr_node_t *node, const ldr_tier_t *from,
                         uint32_t space, larder_item_t *items, size_t count,
                         const ldr_stop_t *stop)
{
    uint64_t tokens[LDR_QUEUES_MAX] = {0};
    larder_status_t statuses[LDR_QUEUES_MAX] = {LARDER_OK};

    ldr_node_lock(node);
    larder_status_t secret =
        from == NULL ? ldr_secret_settle(node, space) : LARDER_OK;
    for (size_t i = 0; i < count; i++) {
        if (secret != LARDER_OK) {
            items[i].status = secret;
        } else {
            /* In one hold of the lock: a load in between would bring it
             * back. */
            remove_one(node, space, &items[i], from, tokens, statuses);
        }
    }
    /* A tier is told of keys that are not known, too: there may be a record
     * that only the next open would find. */
    for (unsigned i = 0; i < node->tier_count && secret == LARDER_OK; i++) {
        ldr_tier_t *t = node->order[i];
        larder_status_t st =
            t != from
                ? t->ops->remove_wait(t, space, items, count, tokens[i], stop)
                : LARDER_OK;

        st = statuses[i] != LARDER_OK ? statuses[i] : st;
        for (size_t k = 0; k < count && st != LARDER_OK; k++) {
            items[k].status = st;
        }
    }
    ldr_node_unlock(node);
}

void ldr_node_remove(ldr_node_t *node, uint32_t space, larder_item_t *items,
                     size_t count, const ldr_stop_t *stop)
{
    remove_items(node, NULL, space, items, count, stop);
}

larder_status_t ldr_host_remove(ldr_host_t *host, const ldr_tier_t *from,
                                uint32_t space, larder_item_t *items,
                                size_t count, const ldr_stop_t *stop)
{
    larder_status_t st = LARDER_OK;

    remove_items((ldr_node_t *)host, from, space, items, count, stop);
    for (size_t i = 0; i < count; i++) {
        st = items[i].status < 0 ? items[i].status : st;
    }
    return st;
}

/* ---- tiers below ---- */

/* Whether another node keeps the shard on its disk, instead of this one. */
static bool kept_elsewhere(ldr_host_t *host, uint32_t shard)
{
    for (unsigned i = 0; i < host->tier_count; i++) {
        ldr_tier_t *t = host->order[i];

        if (t->ops->kept_elsewhere != NULL &&
            t->ops->kept_elsewhere(t, shard)) {
            return true;
        }
    }
    return false;
}

void ldr_host_queue(ldr_host_t *host, uint32_t shard, const ldr_tier_t *from)
{
    ldr_host_held(host);
    for (unsigned i = 0; i < host->tier_count; i++) {
        ldr_tier_t *t = host->order[i];

        if (t == from) {
            return; /* it has it, and so have those that cost more */
        }
        if (!t->ops->keeps || !kept_elsewhere(host, shard)) {
            t->ops->queue(t, shard);
        }
    }
}

void ldr_node_used(ldr_node_t *node, uint32_t shard)
{
    ldr_node_held(node);
    for (unsigned i = 0; i < node->tier_count; i++) {
        ldr_tier_t *t = node->order[i];

        if (t->ops->used != NULL) {
            t->ops->used(t, shard);
        }
    }
}

larder_status_t ldr_node_flush(ldr_node_t *node, larder_tier_t tier,
                               const ldr_stop_t *stop)
{
    if (tier == LARDER_TIER_DRAM) {
        return LARDER_OK;
    }
    ldr_tier_t *t =
        (unsigned)tier <= LDR_QUEUES_MAX ? node->tiers[tier - 1] : NULL;

    return t != NULL ? t->ops->flush(t, stop) : LARDER_E_TIER_OFF;
}
