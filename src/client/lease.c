/*
 * Leases: chains brought up into DRAM, checked and held.
 *
 * Freed leases are kept for the next stage, so that staging allocates nothing
 * once it has warmed up.
 */
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "client/client.h"

#define CACHE_MAX 32u

/* A lease with room for so many shards, from the cache or new. */
static larder_lease_t *lease_new(larder_t *lar, uint32_t need)
{
    larder_lease_t **link = &lar->lease_cache;

    pthread_mutex_lock(&lar->lock);
    while (*link != NULL && (*link)->capacity < need) {
        link = &(*link)->next;
    }
    larder_lease_t *lease = *link;
    if (lease != NULL) {
        *link = lease->next;
        lar->lease_cached--;
    }
    pthread_mutex_unlock(&lar->lock);
    if (lease == NULL) {
        uint32_t capacity = 64;

        while (capacity < need) {
            capacity *= 2;
        }
        lease = ldr_alloc(sizeof(*lease) + capacity * sizeof(lease->ids[0]));
        if (lease == NULL) {
            return NULL;
        }
        lease->capacity = capacity;
    }
    lease->chunks = lease->shards = 0;
    lease->prev = lease->next = NULL;
    return lease;
}

/* With lar->lock, if there is one: keeps it for later, or frees it. */
static void lease_free(larder_t *lar, larder_lease_t *lease)
{
    if (lar == NULL || lar->lease_cached >= CACHE_MAX) {
        ldr_free(lease);
        return;
    }
    lease->next = lar->lease_cache;
    lar->lease_cache = lease;
    lar->lease_cached++;
}

/* ---- staging ---- */

typedef struct stage {
    larder_t *lar;
    larder_space_t *space;
    const larder_key_t *keys;
    uint16_t group;
    uint64_t deadline_ns;
    uint32_t total; /* shards of the whole chain */
    uint32_t begun; /* shards, in order */
    larder_lease_t *lease;
    larder_match_t match;
    larder_item_t items[LDR_WINDOW];
    ldr_load_t loads[LDR_WINDOW];
} stage_t;

/* Begins loads ahead of the one that is looked at next. */
static void stage_ahead(stage_t *s, uint32_t at)
{
    ldr_node_t *node = s->lar->node;
    bool waits = false;

    while (s->begun < s->total && s->begun - at < LDR_WINDOW) {
        unsigned slot = s->begun % LDR_WINDOW;

        s->items[slot] = (larder_item_t){
            .key = &s->keys[s->begun / s->space->shards],
            .group = s->group,
            .shard = (uint16_t)(s->begun % s->space->shards),
        };
        s->loads[slot] = (ldr_load_t){
            .target = {s->space->number, s->space->shards, &s->items[slot]},
        };
        ldr_load_t *load = &s->loads[slot];
        bool settled = ldr_load_begin(node, load);
        if (settled && load->cause == LARDER_CAUSE_FULL && s->begun > at) {
            break; /* reads before it hold the room: after them */
        }
        waits |= !settled;
        s->begun++;
        /* Behind a miss nothing is of use. */
        if (settled && load->status == LARDER_MISS) {
            s->total = s->begun;
        }
    }
    if (waits) {
        ldr_node_reads_go(node);
    }
}

/* Waits for one shard, checks it, and keeps it in the lease. */
static bool stage_one(stage_t *s, uint32_t at)
{
    ldr_node_t *node = s->lar->node;
    ldr_load_t *load = &s->loads[at % LDR_WINDOW];

    ldr_load_wait(node, load, s->deadline_ns);
    if (load->status == LARDER_OK) {
        ldr_load_check(node, load);
    }
    ldr_load_end(node, load, true);
    if (load->status != LARDER_OK) {
        s->match.cause = load->cause;
        return false;
    }
    s->lease->ids[at] = load->shard;
    return true;
}

/* Gives back what was begun or kept beyond whole chunks. */
static void stage_trim(stage_t *s, uint32_t kept, uint32_t at)
{
    ldr_node_t *node = s->lar->node;
    uint32_t whole = s->lease->chunks * s->space->shards;

    for (uint32_t i = at; i < s->begun; i++) {
        ldr_load_t *load = &s->loads[i % LDR_WINDOW];

        ldr_load_abandon(node, load, LARDER_E_CANCELED);
        load->status = LARDER_E_CANCELED; /* not a load that anybody got */
        ldr_load_end(node, load, false);
    }
    ldr_node_lock(node);
    for (uint32_t i = whole; i < kept; i++) {
        ldr_store_release(&node->store,
                          node->store.shards[s->lease->ids[i]].chunk);
    }
    ldr_node_unlock(node);
}

static void stage_run(stage_t *s)
{
    uint32_t shards = s->space->shards;
    uint32_t at = 0;
    uint64_t bytes[LARDER_TIER_COUNT] = {0};
    bool ssd = false;

    for (;; at++) {
        stage_ahead(s, at);
        if (at == s->begun || !stage_one(s, at)) {
            break;
        }
        const ldr_load_t *load = &s->loads[at % LDR_WINDOW];
        ssd |= load->from_ssd;
        bytes[load->from_ssd ? LARDER_TIER_SSD : LARDER_TIER_DRAM] +=
            load->length;
        if ((at + 1) % shards == 0) { /* a whole chunk */
            for (int i = 0; i < LARDER_TIER_COUNT; i++) {
                s->match.tier_bytes[i] += bytes[i];
                bytes[i] = 0;
            }
            s->match.tier_chunks[ssd ? LARDER_TIER_SSD : LARDER_TIER_DRAM]++;
            s->lease->chunks++;
            ssd = false;
        }
    }
    stage_trim(s, at, at < s->begun ? at + 1 : at);
    s->match.chunks = s->lease->chunks;
}

larder_status_t larder_stage(larder_space_t *space, const larder_key_t *keys,
                             size_t count, uint16_t group, uint32_t timeout_ms,
                             larder_lease_t **lease_p, larder_match_t *match_p)
{
    larder_status_t st = ldr_space_check(space);
    stage_t s = {.space = space, .keys = keys, .group = group};

    if (st != LARDER_OK) {
        return st;
    }
    if (keys == NULL || count == 0 || lease_p == NULL || match_p == NULL ||
        group >= LARDER_GROUPS_MAX || count > UINT32_MAX / LARDER_SHARDS_MAX) {
        return ldr_fail(LARDER_E_INVALID, "keys, group, lease_p or match_p");
    }
    larder_t *lar = s.lar = space->lar;
    /* A lease is no larger than what could be held. */
    ldr_node_match(lar->node, space->number, space->shards, group, keys, count,
                   &s.match);
    s.total = s.match.chunks * space->shards;
    larder_cause_t cause = s.match.cause;
    s.match = (larder_match_t){.cause = cause};
    s.deadline_ns = ldr_deadline(lar, timeout_ms);
    pthread_mutex_lock(&lar->lock);
    bool room = lar->leased_shards + s.total <= lar->node->options.leases;
    lar->leased_shards += room ? s.total : 0;
    pthread_mutex_unlock(&lar->lock);
    if (!room) {
        return ldr_fail(LARDER_E_LIMIT,
                        "more than %llu shards leased: "
                        "release some, or raise leases",
                        (unsigned long long)lar->node->options.leases);
    }
    uint32_t booked = s.total;
    s.lease = lease_new(lar, s.total);
    if (s.lease == NULL) {
        st = ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for a lease");
    } else {
        s.lease->shards = space->shards;
        stage_run(&s);
    }
    pthread_mutex_lock(&lar->lock);
    lar->leased_shards -= booked;
    if (s.lease != NULL && s.lease->chunks > 0) {
        s.lease->lar = lar;
        lar->leased_shards += (uint64_t)s.lease->chunks * s.lease->shards;
        s.lease->next = lar->leases;
        if (s.lease->next != NULL) {
            s.lease->next->prev = s.lease;
        }
        lar->leases = s.lease;
    } else if (s.lease != NULL) {
        lease_free(lar, s.lease);
        st = LARDER_MISS;
    }
    pthread_mutex_unlock(&lar->lock);
    if (st >= 0) {
        s.match.load_us = ldr_node_expect_us(lar->node, s.match.tier_bytes);
        *match_p = s.match;
    }
    if (st >= 0) {
        *lease_p = st == LARDER_OK ? s.lease : NULL;
    }
    return st;
}

/* ---- using and ending ---- */

larder_status_t larder_lease_segments(const larder_lease_t *lease,
                                      uint32_t chunk, uint16_t shard,
                                      struct iovec *seg, uint32_t seg_max,
                                      uint32_t *seg_count_p)
{
    if (lease == NULL || seg_count_p == NULL || (seg == NULL && seg_max > 0)) {
        return ldr_fail(LARDER_E_INVALID, "lease, seg or seg_count_p is NULL");
    }
    if (lease->lar == NULL) {
        return ldr_fail(LARDER_E_CLOSED, "the lease's handle is closed");
    }
    larder_status_t st = ldr_handle_check(lease->lar);
    if (st != LARDER_OK) {
        return st;
    }
    if (chunk >= lease->chunks || shard >= lease->shards) {
        return ldr_fail(LARDER_E_INVALID, "chunk %u of %u, shard %u of %u",
                        chunk, lease->chunks, shard, lease->shards);
    }
    /* Held: its pages do not change, so no lock is needed. */
    const ldr_store_t *store = &lease->lar->node->store;
    const ldr_shard_t *sh =
        &store->shards[lease->ids[chunk * lease->shards + shard]];
    *seg_count_p =
        ldr_arena_iov(&store->arena, sh->page, sh->length, seg, seg_max);
    return *seg_count_p <= seg_max ? LARDER_OK : LARDER_E_SIZE;
}

/* Gives up what the lease holds. */
static void lease_drop(larder_lease_t *lease)
{
    ldr_node_t *node = lease->lar->node;
    ldr_store_t *store = &node->store;

    ldr_node_lock(node);
    for (uint32_t i = 0; i < lease->chunks * lease->shards; i++) {
        ldr_store_release(store, store->shards[lease->ids[i]].chunk);
    }
    ldr_node_unlock(node);
}

void larder_release(larder_lease_t **lease_p)
{
    if (lease_p == NULL || *lease_p == NULL) {
        return;
    }
    larder_lease_t *lease = *lease_p;
    larder_t *lar = lease->lar;

    *lease_p = NULL;
    if (lar == NULL) {
        lease_free(NULL, lease);
        return;
    }
    if (ldr_handle_check(lar) == LARDER_E_FORKED) {
        return;
    }
    lease_drop(lease);
    pthread_mutex_lock(&lar->lock);
    lar->leased_shards -= (uint64_t)lease->chunks * lease->shards;
    if (lease->prev != NULL) {
        lease->prev->next = lease->next;
    } else {
        lar->leases = lease->next;
    }
    if (lease->next != NULL) {
        lease->next->prev = lease->prev;
    }
    lease_free(lar, lease);
    pthread_mutex_unlock(&lar->lock);
}

void ldr_leases_close(larder_t *lar)
{
    while (lar->leases != NULL) {
        larder_lease_t *lease = lar->leases;

        lar->leases = lease->next;
        lease_drop(lease);
        lease->lar = NULL; /* freed by larder_release() */
    }
    while (lar->lease_cache != NULL) {
        larder_lease_t *lease = lar->lease_cache;

        lar->lease_cache = lease->next;
        ldr_free(lease);
    }
}
