/*
 * The node's memory: making it resident, giving tenants extents, and moving
 * extents from one tenant to another.
 *
 * A thread makes the arena resident in the background: first the extents that
 * tenants own, then those that nobody does yet; all of it, or (dram_start) so
 * much that this is free for each tenant before it asks. Whoever needs pages
 * before they are there helps itself, a slice at a time. The thread sleeps when
 * it is done, and wakes when there is less, or to make extents again that have
 * left their tenant: nobody else does, since the kernel takes a tenth of a
 * second to free a gigabyte of small pages, and who needs one may serve others.
 * A large arena has helpers: the kernel zeroes pages at less than 2 GB/s in one
 * thread, and an engine's saves may come faster.
 */
#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "base/thread.h"
#include "node/node.h"

/* Pages looked at before others get the lock. */
#define VACATE_SLICE 512u
/* A tenant that still has too little asks for one more extent after this. */
#define ASK_AGAIN_NS 100000000u
/* A client that was asked to let go of an extent is waited for so long. A good
 * one needs a millisecond; one that is only slow loses nothing by it. */
#define GRACE_NS 200000000u
#define HELPER_BYTES ((uint64_t)8 << 30) /* of dram, for each helper */

/* ---- opening ---- */

static larder_status_t check_numa(const ldr_options_t *o, uint64_t *nodes_p)
{
    *nodes_p = 0;
    if (!ldr_parse_numa(o->numa, nodes_p)) {
        return ldr_fail(LARDER_E_INVALID, "numa=%s: numbers from 0 to 63",
                        o->numa);
    }
    for (uint64_t left = *nodes_p; left != 0; left &= left - 1) {
        unsigned node = (unsigned)__builtin_ctzll(left);
        int error = ldr_numa_check(node);

        if (error == -EINVAL) {
            return ldr_fail(LARDER_E_INVALID,
                            "numa=%s: this machine has no memory on node %u",
                            o->numa, node);
        }
        if (error != 0) {
            return ldr_fail(LARDER_E_INVALID,
                            "numa=%s: memory cannot be placed here (%s): leave "
                            "the option out",
                            o->numa, strerror(-error));
        }
    }
    return LARDER_OK;
}

static larder_status_t check(const ldr_options_t *o, uint64_t *nodes_p)
{
    uint64_t limit = ldr_memory_limit();

    /* Beyond it the kernel would end the process, not refuse the memory; and
     * the engine needs some too. */
    uint64_t most = limit - limit / 16;
    if (o->dram > most) {
        uint64_t unit = (uint64_t)1 << (most >> 30 != 0 ? 30 : 20);
        char asked[24], fits[24];

        ldr_size_text(o->dram, asked, sizeof(asked));
        ldr_size_text(most - most % unit, fits, sizeof(fits));
        return ldr_fail(LARDER_E_NO_MEMORY,
                        "dram=%s leaves too little of the memory that this "
                        "process may have (%lluM); at most %s here",
                        asked, (unsigned long long)(limit >> 20), fits);
    }
    return check_numa(o, nodes_p);
}

larder_status_t ldr_memory_check(const ldr_options_t *o)
{
    uint64_t nodes;

    return check(o, &nodes);
}

larder_status_t ldr_memory_open(ldr_node_t *node, uint64_t seed)
{
    const ldr_options_t *o = &node->options;
    /* An entry stands for at least a page in DRAM or two blocks on disk. */
    uint64_t entries =
        o->dram / LDR_PAGE + o->dir_count * (o->ssd / (2 * LDR_BLOCK));
    ldr_store_params_t params = {
        .dram_bytes = o->dram,
        .dram_backed = true,
        .entry_max = (uint32_t)ldr_min64(entries, LDR_NIL - 1),
        .seed = seed,
        .pin_max = o->pin_max != 0 ? o->pin_max : o->dram / 4,
        .policy =
            o->policy == LDR_POLICY_LRU ? &ldr_policy_lru : &ldr_policy_default,
        .disks = o->dir_count,
    };

    larder_status_t st = check(o, &params.numa_nodes);
    if (st != LARDER_OK) {
        return st;
    }
    st = ldr_store_init(&node->store, &params);
    node->store.lock = &node->lock;
    if (st != LARDER_OK) {
        return ldr_fail(st, "not enough memory for dram=%llu",
                        (unsigned long long)o->dram);
    }
    node->store_opened = true;
    uint64_t all = node->store.arena.page_count;
    uint64_t ahead = o->dram_start == 0 ? all : o->dram_start / LDR_PAGE;
    ahead = ldr_min64(ldr_max64(ahead, LDR_SLICE_PAGES), all);
    node->ahead_pages = (uint32_t)ahead;
    node->low_pages = (uint32_t)(ahead - ahead / 4);
    return st;
}

/* ---- making memory ---- */

typedef enum made { MADE, MADE_NOTHING, MADE_NONE_TO_HAVE } made_t;

/* Makes one slice resident. NOTHING: there is none left; NONE_TO_HAVE: there
 * is no memory for it now. Drops the lock. */
static made_t make_slice(ldr_node_t *node, uint32_t tenant)
{
    ldr_arena_t *arena = &node->store.arena;
    ldr_slice_t slice;

    if (!ldr_arena_slice_take(arena, tenant, &slice)) {
        return MADE_NOTHING;
    }
    ldr_node_unlock(node);
    bool ok = ldr_arena_slice_populate(arena, &slice);
    ldr_node_lock(node);
    ldr_arena_slice_give(arena, &slice, ok);
    pthread_cond_broadcast(&node->changed);
    return ok ? MADE : MADE_NONE_TO_HAVE;
}

/* Gives back the memory of overdue extents that nobody holds: before more is
 * made. Drops the lock. */
static void trim(ldr_node_t *node)
{
    ldr_slice_t run;

    while (ldr_arena_trim_take(&node->store.arena, &run)) {
        ldr_node_unlock(node);
        ldr_arena_trim(&node->store.arena, &run);
        ldr_node_lock(node);
    }
}

/* Whether the tenant has fewer free pages than that, and could have more. */
static bool is_below(const ldr_owner_t *owner, uint32_t pages)
{
    return owner->blank_count > 0 && owner->free_count < pages &&
           (owner->pages_max == 0 ||
            owner->used_count + owner->free_count < owner->pages_max);
}

/* Makes one slice resident ahead of its use. */
static made_t make_ahead(ldr_node_t *node)
{
    const ldr_arena_t *arena = &node->store.arena;

    for (uint32_t i = 0; i < arena->slot_count; i++) {
        const ldr_arena_extent_t *x = &arena->extents[i];

        if (x->state == LDR_EXTENT_OWNED && x->blank_count > 0 &&
            is_below(&arena->owners[x->tenant], node->ahead_pages)) {
            return make_slice(node, x->tenant);
        }
    }
    return arena->free_count < node->ahead_pages ? make_slice(node, LDR_NIL)
                                                 : MADE_NOTHING;
}

/* Has more made before the tenant has used up what is there. */
static void keep_ahead(ldr_node_t *node, uint32_t tenant)
{
    const ldr_arena_t *arena = &node->store.arena;

    if (arena->ready_count < arena->page_count && !node->populate_tired &&
        (is_below(&arena->owners[tenant], node->low_pages) ||
         arena->free_count < node->low_pages)) {
        ldr_memory_wake(&node->host);
    }
}

/* The same for an extent that has left its tenant. */
static made_t remake_extent(ldr_node_t *node)
{
    ldr_arena_t *arena = &node->store.arena;
    uint32_t extent;

    trim(node);
    if (!ldr_arena_renew_take(arena, &extent)) {
        return MADE_NOTHING;
    }
    ldr_node_unlock(node);
    bool ok = ldr_arena_renew_make(arena, extent);
    ldr_node_lock(node);
    ldr_arena_renew_give(arena, extent, ok);
    node->remake_failed = !ok;
    pthread_cond_broadcast(&node->changed);
    if (ok) {
        ldr_memory_wake(&node->host); /* it is to be made resident */
    }
    return ok ? MADE : MADE_NONE_TO_HAVE;
}

bool ldr_memory_remakes(const ldr_node_t *node, uint32_t tenant, size_t bytes)
{
    ldr_node_held(node);

    const ldr_arena_t *arena = &node->store.arena;
    const ldr_owner_t *owner = &arena->owners[tenant];
    uint32_t pages = ldr_arena_pages(bytes);

    return !node->manual && !node->remake_failed && owner->free_count < pages &&
           (owner->pages_max == 0 ||
            owner->used_count + pages <= owner->pages_max) &&
           ldr_arena_renewing(arena, tenant);
}

bool ldr_memory_step(ldr_node_t *node)
{
    return remake_extent(node) == MADE;
}

/* What others have not let go of in time is not waited for any longer: memory
 * beside it is made for the tenant. True: there was some. */
static bool take_overdue(ldr_node_t *node, uint32_t heir, uint64_t now_ns)
{
    ldr_store_t *store = &node->store;
    ldr_arena_t *arena = &store->arena;
    bool any = false;

    for (uint32_t i = 0; i < arena->slot_count; i++) {
        const ldr_arena_extent_t *x = &arena->extents[i];

        if (x->state != LDR_EXTENT_LEAVING || x->heir != heir ||
            now_ns - x->left_ns < GRACE_NS || !ldr_arena_overdue(arena, i)) {
            continue;
        }
        any = true;
        if (arena->owners[x->tenant].overdue_count == 1) {
            ldr_host_say(&node->host, LARDER_LOG_WARN,
                         "tenant '%s' does not give memory back that another "
                         "tenant needs: one of its clients is stopped, or "
                         "holds leases for long; until it does, that counts "
                         "against its share",
                         store->tenants[x->tenant].name);
        }
    }
    return any;
}

/* Has another tenant give up an extent, if this one is below its share. True:
 * one is on its way. */
static bool ask_for_extent(ldr_node_t *node, uint32_t tenant, uint32_t pages)
{
    ldr_store_t *store = &node->store;
    ldr_tenant_t *t = &store->tenants[tenant];
    const ldr_owner_t *owner = &store->arena.owners[tenant];
    uint64_t coming = (uint64_t)owner->coming_count
                      << store->arena.extent_shift;
    uint64_t now_ns = ldr_now_ns(node->clock);

    if (take_overdue(node, tenant, now_ns)) {
        return true;
    }
    /* What is coming may be enough; but not if it does not come. */
    if (coming >= pages && now_ns - t->asked_ns < ASK_AGAIN_NS) {
        return false;
    }
    uint32_t extent = ldr_store_demand(store, tenant);
    if (extent == LDR_NIL) {
        return false;
    }
    ldr_arena_extent_t *x = &store->arena.extents[extent];
    t->asked_ns = x->left_ns = now_ns;
    if (x->mappers > 0 && node->revoke != NULL) {
        node->revoke(node->revoke_arg, extent, x->generation);
    }
    while (ldr_store_vacate(store, extent, VACATE_SLICE)) {
        ldr_node_unlock(node);
        ldr_node_lock(node);
    }
    return true;
}

/* Waits for what another thread has in hand and needs a millisecond for. */
static void wait_briefly(ldr_node_t *node)
{
    ldr_host_tell(&node->host);
    pthread_cond_wait(&node->changed, &node->lock);
}

bool ldr_node_populate(ldr_node_t *node, uint32_t tenant, size_t bytes)
{
    ldr_node_held(node);

    ldr_arena_t *arena = &node->store.arena;
    const ldr_owner_t *owner = &arena->owners[tenant];
    uint32_t pages = ldr_arena_pages(bytes);
    bool dropped = false;

    keep_ahead(node, tenant);
    while (owner->free_count < pages &&
           (owner->pages_max == 0 ||
            owner->used_count + pages <= owner->pages_max)) {
        made_t made = make_slice(node, tenant);

        dropped |= made != MADE_NOTHING;
        if (made == MADE) {
            continue;
        }
        if (owner->hand_count > 0) {
            wait_briefly(node);
            dropped = true;
            continue;
        }
        if (made == MADE_NONE_TO_HAVE) {
            break;
        }
        ldr_store_share(&node->store, tenant); /* it counts from now on */
        if (ldr_arena_claim(arena, tenant, false)) {
            continue;
        }
        if (owner->extent_count == arena->extent_count) {
            break; /* alone */
        }
        if (!node->manual && ldr_arena_renewing(arena, tenant)) {
            ldr_memory_wake(&node->host); /* also if it has failed before */
            break;
        }
        made = node->manual ? remake_extent(node) : MADE_NOTHING;
        if (made == MADE_NONE_TO_HAVE ||
            (made == MADE_NOTHING && !ask_for_extent(node, tenant, pages))) {
            dropped |= made != MADE_NOTHING;
            break;
        }
        dropped = true;
    }
    return dropped;
}

/* ---- the thread ---- */

static void tell_short(ldr_node_t *node)
{
    const ldr_arena_t *arena = &node->store.arena;

    ldr_host_say(&node->host, LARDER_LOG_WARN,
                 "dram: the kernel gave %llu of %llu bytes and has no more "
                 "now; the rest is tried again when it is needed",
                 (unsigned long long)arena->ready_count * LDR_PAGE,
                 (unsigned long long)arena->page_count * LDR_PAGE);
}

static void await_work(ldr_node_t *node)
{
    node->memory_idle++;
    node->memory_woken = false;
    pthread_cond_wait(&node->memory_work, &node->lock);
    node->memory_idle--;
}

static void *populate_main(void *arg)
{
    ldr_node_t *node = arg;
    const ldr_arena_t *arena = &node->store.arena;

    ldr_node_lock(node);
    while (!node->populate_stop) {
        made_t remade = remake_extent(node);
        if (remade == MADE) {
            node->populate_tired = false;
            continue;
        }
        made_t made = node->populate_tired ? MADE_NOTHING : make_ahead(node);
        if (made == MADE) {
            continue;
        }
        if (made == MADE_NONE_TO_HAVE) {
            node->populate_tired = true;
            tell_short(node);
        }
        bool emptied = remade == MADE_NOTHING && arena->empty_count > 0;
        if (node->populate_stop || emptied) {
            continue;
        }
        if (node->said_count > 0) { /* before it sleeps */
            ldr_node_unlock(node);
            ldr_node_lock(node);
            continue;
        }
        /* An extent that could not be made again is tried again by whoever
         * needs it. */
        await_work(node);
    }
    ldr_node_unlock(node);
    return NULL;
}

/* A helper: ends when all is there, or no more can be had. */
static void *help_main(void *arg)
{
    ldr_node_t *node = arg;
    const ldr_arena_t *arena = &node->store.arena;

    ldr_node_lock(node);
    while (!node->populate_stop) {
        made_t made = make_ahead(node);
        bool all = node->ahead_pages == arena->page_count;

        if (made == MADE_NONE_TO_HAVE || (made == MADE_NOTHING && all)) {
            break;
        }
        if (made == MADE_NOTHING) {
            await_work(node);
        }
    }
    ldr_node_unlock(node);
    return NULL;
}

static void start_helpers(ldr_node_t *node)
{
    uint64_t want =
        ldr_min64(node->options.dram / HELPER_BYTES, LDR_HELPERS_MAX);

    /* Without them it only takes longer. */
    while (node->helper_count < want &&
           ldr_thread_start(&node->helpers[node->helper_count],
                            "larder-populate", help_main, node)) {
        node->helper_count++;
    }
}

larder_status_t ldr_memory_start(ldr_node_t *node)
{
    if (!ldr_cond_init(&node->memory_work)) {
        return LARDER_E_NO_MEMORY;
    }
    node->populate_started = ldr_thread_start(
        &node->populate_thread, "larder-populate", populate_main, node);
    if (!node->populate_started) {
        pthread_cond_destroy(&node->memory_work);
        return ldr_fail(LARDER_E_NO_MEMORY, "cannot start a thread");
    }
    start_helpers(node);
    return LARDER_OK;
}

void ldr_memory_stop(ldr_node_t *node)
{
    if (node->populate_started) {
        ldr_node_lock(node);
        node->populate_stop = true;
        pthread_cond_broadcast(&node->memory_work);
        ldr_node_unlock(node);
        pthread_join(node->populate_thread, NULL);
        while (node->helper_count > 0) {
            pthread_join(node->helpers[--node->helper_count], NULL);
        }
        pthread_cond_destroy(&node->memory_work);
        node->populate_started = false;
    }
}

/* ---- extents for sessions ---- */

larder_status_t ldr_node_extent_owned(ldr_node_t *node, uint32_t tenant,
                                      uint32_t extent, uint32_t *generation_p)
{
    const ldr_arena_t *arena = &node->store.arena;
    larder_status_t st = LARDER_E_INVALID;

    ldr_node_lock(node);
    if (extent < arena->slot_count) {
        const ldr_arena_extent_t *x = &arena->extents[extent];

        st = x->state == LDR_EXTENT_OWNED && x->tenant == tenant ? LARDER_OK
                                                                 : LARDER_MISS;
        *generation_p = x->generation;
    }
    ldr_node_unlock(node);
    return st;
}

bool ldr_node_extent_map(ldr_node_t *node, uint32_t tenant, uint32_t extent,
                         uint32_t generation, ldr_extent_view_t *out)
{
    ldr_arena_t *arena = &node->store.arena;

    ldr_node_lock(node);
    bool mapped = ldr_arena_map(arena, tenant, extent, generation);
    if (mapped) {
        const ldr_arena_extent_t *x = &arena->extents[extent];

        *out = (ldr_extent_view_t){
            .tenant = tenant,
            .bytes = (uint64_t)x->count * LDR_PAGE,
            .ready_bytes =
                (uint64_t)ldr_arena_ready_pages(arena, extent) * LDR_PAGE,
        };
        if (x->state != LDR_EXTENT_OWNED && node->revoke != NULL) {
            node->revoke(node->revoke_arg, extent, generation);
        }
    }
    ldr_node_unlock(node);
    if (!mapped) {
        return false;
    }
    /* It stays as it is while this one maps it. */
    out->fd = ldr_extent_share(&arena->extents[extent].memory);
    if (out->fd < 0) {
        ldr_node_extent_unmap(node, extent, generation);
        return false;
    }
    return true;
}

void ldr_node_extent_unmap(ldr_node_t *node, uint32_t extent,
                           uint32_t generation)
{
    ldr_node_lock(node);
    ldr_arena_unmap(&node->store.arena, extent, generation);
    ldr_node_unlock(node);
}

uint32_t ldr_node_segs(ldr_node_t *node, uint32_t shard, ldr_seg_t *segs,
                       uint32_t max)
{
    const ldr_shard_t *sh = &node->store.shards[shard];

    return ldr_arena_segs(&node->store.arena, sh->page, sh->length, segs, max);
}

uint32_t ldr_node_iov(ldr_node_t *node, uint32_t shard, struct iovec *iov,
                      uint32_t max)
{
    const ldr_shard_t *sh = &node->store.shards[shard];

    return ldr_arena_iov(&node->store.arena, sh->page, sh->length, iov, max);
}
