/*
 * Leases and reservations, whatever holds them: their handles, their count
 * and their end.
 *
 * Freed leases are kept for the next stage, so that staging on an embedded
 * node allocates nothing once it has warmed up.
 */
#include <string.h>

#include "base/bytes.h"
#include "base/grow.h"
#include "base/mem.h"
#include "base/thread.h"
#include "client/client.h"
#include "node/stage.h"

#define CACHE_MAX 32u

/* From the cache, or new. */
larder_lease_t *ldr_lease_new(larder_t *lar, uint32_t need)
{
    larder_lease_t **link = &lar->lease_cache;

    ldr_mutex_lock(&lar->lock);
    while (*link != NULL && (*link)->capacity < need) {
        link = &(*link)->next;
    }
    larder_lease_t *lease = *link;
    if (lease != NULL) {
        *link = lease->next;
        lar->lease_cached--;
    }
    ldr_mutex_unlock(&lar->lock);
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
    lease->lar = lar;
    lease->chunks = lease->shards = lease->booked = lease->room_count = 0;
    lease->total = 0;
    lease->reserved = lease->silent = lease->in_place = false;
    lease->token = (larder_token_t){{0}};
    lease->rooms = NULL;
    lease->held = NULL;
    lease->prev = lease->next = NULL;
    return lease;
}

/* With lar->lock, if there is one: keeps it for later, or frees it. */
static void lease_free(larder_t *lar, larder_lease_t *lease)
{
    ldr_free(lease->rooms);
    lease->rooms = NULL;
    lease->room_count = 0;
    if (lar == NULL || lar->lease_cached >= CACHE_MAX) {
        ldr_free(lease);
        return;
    }
    lease->next = lar->lease_cache;
    lar->lease_cache = lease;
    lar->lease_cached++;
}

void ldr_lease_unused(larder_t *lar, larder_lease_t *lease)
{
    ldr_mutex_lock(&lar->lock);
    lease_free(lar, lease);
    ldr_mutex_unlock(&lar->lock);
}

/* Books so many leases; false: that would be more than option leases. */
static bool book(larder_t *lar, uint64_t count)
{
    ldr_mutex_lock(&lar->lock);
    bool room = lar->leased + count <= lar->options->leases;
    lar->leased += room ? count : 0;
    ldr_mutex_unlock(&lar->lock);
    if (!room) {
        ldr_fail(LARDER_E_LIMIT,
                 "more than %llu leases held: release some, or raise leases",
                 (unsigned long long)lar->options->leases);
    }
    return room;
}

/* The lease becomes one of the handle's, for as much as it holds of what was
 * booked; a NULL or empty one is freed. */
static void enter(larder_t *lar, larder_lease_t *lease, uint64_t booked,
                  uint32_t holds)
{
    ldr_mutex_lock(&lar->lock);
    lar->leased -= booked - holds;
    if (lease != NULL && holds > 0) {
        lease->booked = holds;
        lease->next = lar->leases;
        if (lease->next != NULL) {
            lease->next->prev = lease;
        }
        lar->leases = lease;
    } else if (lease != NULL) {
        lease_free(lar, lease);
    }
    ldr_mutex_unlock(&lar->lock);
}

/* ---- staging ---- */

/* Makes it readable where it lies; what is not right ends the prefix. */
static larder_status_t map(larder_space_t *space, larder_lease_t **lease_p,
                           const larder_key_t *keys, uint16_t group,
                           uint64_t deadline_ns, larder_match_t *match)
{
    larder_status_t st = space->lar->leasing->map(space, *lease_p, keys, group,
                                                  deadline_ns, match);

    if (st == LARDER_OK && (*lease_p)->chunks == 0) {
        st = LARDER_MISS;
    }
    if (st != LARDER_OK) {
        larder_release(lease_p);
    }
    return st;
}

larder_status_t larder_stage(larder_space_t *space, const larder_key_t *keys,
                             size_t count, uint16_t group, uint32_t timeout_ms,
                             larder_lease_t **lease_p, larder_match_t *match_p)
{
    larder_status_t st = ldr_space_check(space);

    if (st != LARDER_OK) {
        return st;
    }
    if (keys == NULL || count == 0 || lease_p == NULL ||
        group >= LARDER_GROUPS_MAX || count > UINT32_MAX / LARDER_SHARDS_MAX) {
        return ldr_fail(LARDER_E_INVALID, "keys, group or lease_p");
    }
    st = ldr_out_check(match_p);
    if (st != LARDER_OK) {
        return st;
    }
    larder_match_t match;
    uint64_t deadline_ns = ldr_deadline(space->lar, timeout_ms);
    ldr_announce(space, keys, count, false, 0, deadline_ns);
    bool asks = !ldr_asked_before(space, keys, count, group, true);
    ldr_need_t need = {LDR_NEED_ALL, group};
    ldr_prefix_t prefix = {.needs = &need,
                           .need_count = 1,
                           .keys = keys,
                           .count = (uint32_t)count,
                           .asks = asks};
    larder_stage_params_t worth = {0};
    st = ldr_stage(space, &prefix, &worth, deadline_ns, lease_p, &match);
    if (st == LARDER_OK && space->lar->leasing->map != NULL) {
        st = map(space, lease_p, keys, group, deadline_ns, &match);
    }
    if (st >= 0) {
        ldr_out_fill(match_p, &match, sizeof(match));
    }
    if (st == LARDER_OK) {
        (*lease_p)->in_place = true;
    }
    if (st >= 0 && asks) {
        ldr_asked_note(space, keys, count, group,
                       st == LARDER_OK ? match.chunks : 0, true);
    }
    return st;
}

larder_status_t ldr_stage(larder_space_t *space, const ldr_prefix_t *prefix,
                          const larder_stage_params_t *worth,
                          uint64_t deadline_ns, larder_lease_t **lease_p,
                          larder_match_t *match_p)
{
    larder_t *lar = space->lar;
    larder_lease_t *lease = NULL;
    larder_match_t match;
    larder_status_t st =
        lar->backend->stage(space, prefix, worth, deadline_ns, &lease, &match);

    if (st != LARDER_OK) {
        return st;
    }
    if (lease != NULL) {
        lease->shards = space->shards;
        lease->space = space->ref;
        uint64_t count = ldr_staged_leases(lease->chunks, lease->total);

        if (!book(lar, count)) {
            lar->leasing->drop(lease);
            ldr_lease_unused(lar, lease);
            return LARDER_E_LIMIT;
        }
        enter(lar, lease, count, (uint32_t)count);
    }
    *match_p = match;
    *lease_p = lease;
    return lease != NULL ? LARDER_OK : LARDER_MISS;
}

larder_status_t larder_lease_token(const larder_lease_t *lease,
                                   larder_token_t *token)
{
    if (lease == NULL || token == NULL || lease->reserved) {
        return ldr_fail(LARDER_E_INVALID,
                        "token is NULL, or this is no lease for reading");
    }
    if (lease->lar == NULL) {
        return ldr_fail(LARDER_E_CLOSED, "the lease's handle is closed");
    }
    *token = lease->token;
    return LARDER_OK;
}

/* ---- in place ---- */

/* Sets every room's status: OK for what is to be reserved. */
static void rooms_check(const larder_space_t *space, larder_item_t *items,
                        const size_t *lengths, size_t count, ldr_room_t *rooms)
{
    for (size_t i = 0; i < count; i++) {
        rooms[i].length = lengths[i];
        rooms[i].status =
            ldr_item_check(LARDER_OP_EXISTS, space->shards, &items[i]);
        if (rooms[i].status == LARDER_OK &&
            (lengths[i] == 0 || lengths[i] > LARDER_VALUE_MAX)) {
            rooms[i].status = LARDER_E_SIZE;
        }
    }
}

static larder_status_t reserve(larder_space_t *space, larder_item_t *items,
                               const size_t *lengths, size_t count,
                               uint64_t deadline_ns, larder_lease_t *lease)
{
    lease->rooms = ldr_alloc(count * sizeof(*lease->rooms));
    if (lease->rooms == NULL) {
        return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for a lease");
    }
    lease->reserved = true;
    lease->room_count = (uint32_t)count;
    lease->space = space->ref;
    rooms_check(space, items, lengths, count, lease->rooms);
    return space->lar->leasing->reserve(space, items, count, deadline_ns,
                                        lease);
}

larder_status_t larder_reserve(larder_space_t *space, larder_item_t *items,
                               const size_t *lengths, size_t count,
                               uint32_t timeout_ms, larder_lease_t **lease_p)
{
    larder_status_t st = ldr_space_check(space);
    uint32_t holds = 0;

    if (st != LARDER_OK) {
        return st;
    }
    if (items == NULL || lengths == NULL || lease_p == NULL || count == 0 ||
        count > LARDER_BATCH_MAX) {
        return ldr_fail(LARDER_E_INVALID,
                        "items, lengths or lease_p is NULL, or not 1 to %u "
                        "items",
                        LARDER_BATCH_MAX);
    }
    larder_t *lar = space->lar;
    if (!book(lar, count)) {
        return LARDER_E_LIMIT;
    }
    larder_lease_t *lease = ldr_lease_new(lar, 0);
    st = lease == NULL
             ? ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for a lease")
             : reserve(space, items, lengths, count,
                       ldr_deadline(lar, timeout_ms), lease);
    for (size_t i = 0; st == LARDER_OK && i < count; i++) {
        items[i].status = lease->rooms[i].status;
        holds += items[i].status == LARDER_OK;
    }
    enter(lar, lease, count, holds);
    if (st == LARDER_OK) {
        *lease_p = holds > 0 ? lease : NULL;
    }
    return st;
}

/* ---- using and ending ---- */

/* Whether the lease can be used. */
static larder_status_t lease_check(const larder_lease_t *lease,
                                   const struct iovec *seg, uint32_t seg_max,
                                   const uint32_t *seg_count_p)
{
    if (lease == NULL || seg_count_p == NULL || (seg == NULL && seg_max > 0)) {
        return ldr_fail(LARDER_E_INVALID, "lease, seg or seg_count_p is NULL");
    }
    if (lease->lar == NULL) {
        return ldr_fail(LARDER_E_CLOSED, "the lease's handle is closed");
    }
    return ldr_handle_check(lease->lar);
}

larder_status_t larder_lease_segments(const larder_lease_t *lease,
                                      uint32_t chunk, uint16_t shard,
                                      struct iovec *seg, uint32_t seg_max,
                                      uint32_t *seg_count_p)
{
    larder_status_t st = lease_check(lease, seg, seg_max, seg_count_p);

    if (st != LARDER_OK) {
        return st;
    }
    if (lease->reserved) {
        return ldr_fail(LARDER_E_INVALID,
                        "a reservation: use larder_reserve_segments()");
    }
    if (!lease->in_place) {
        return ldr_fail(LARDER_E_INVALID,
                        "a lease of larder_prefix_stage(): load what it holds");
    }
    if (chunk >= lease->chunks || shard >= lease->shards) {
        return ldr_fail(LARDER_E_INVALID, "chunk %u of %u, shard %u of %u",
                        chunk, lease->chunks, shard, lease->shards);
    }
    return lease->lar->leasing->segments(lease, chunk * lease->shards + shard,
                                         seg, seg_max, seg_count_p);
}

larder_status_t larder_reserve_segments(const larder_lease_t *lease,
                                        size_t item, struct iovec *seg,
                                        uint32_t seg_max, uint32_t *seg_count_p)
{
    larder_status_t st = lease_check(lease, seg, seg_max, seg_count_p);

    if (st != LARDER_OK) {
        return st;
    }
    if (!lease->reserved || item >= lease->room_count ||
        lease->rooms[item].status != LARDER_OK) {
        return ldr_fail(LARDER_E_INVALID, "item %zu has no room in this lease",
                        item);
    }
    return lease->lar->leasing->segments(lease, (uint32_t)item, seg, seg_max,
                                         seg_count_p);
}

/* Takes it off the handle's list and frees it. */
static void leave(larder_t *lar, larder_lease_t *lease)
{
    ldr_mutex_lock(&lar->lock);
    lar->leased -= lease->booked;
    if (lease->prev != NULL) {
        lease->prev->next = lease->next;
    } else {
        lar->leases = lease->next;
    }
    if (lease->next != NULL) {
        lease->next->prev = lease->prev;
    }
    lease_free(lar, lease);
    ldr_mutex_unlock(&lar->lock);
}

larder_status_t larder_commit(larder_lease_t **lease_p, const uint8_t *keep,
                              const uint32_t *crcs, larder_status_t *statuses,
                              uint32_t timeout_ms)
{
    if (lease_p == NULL || *lease_p == NULL) {
        return ldr_fail(LARDER_E_INVALID, "the lease is NULL");
    }
    larder_lease_t *lease = *lease_p;
    larder_t *lar = lease->lar;
    if (!lease->reserved) {
        return ldr_fail(LARDER_E_INVALID,
                        "a lease for reading: use larder_release()");
    }
    *lease_p = NULL;
    if (lar == NULL) {
        lease_free(NULL, lease);
        return ldr_fail(LARDER_E_CLOSED, "the lease's handle is closed");
    }
    larder_status_t st = ldr_handle_check(lar);
    if (st == LARDER_E_FORKED) {
        return st;
    }
    if (st == LARDER_OK) {
        st = lar->leasing->commit(lease, keep, crcs,
                                  ldr_deadline(lar, timeout_ms));
        for (uint32_t i = 0; statuses != NULL && i < lease->room_count; i++) {
            statuses[i] = lease->rooms[i].status;
        }
        lease->room_count = 0; /* nothing of it is held any more */
    }
    lar->leasing->drop(lease);
    leave(lar, lease);
    return st;
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
    lar->leasing->drop(lease);
    leave(lar, lease);
}

void ldr_leases_close(larder_t *lar)
{
    while (lar->leases != NULL) {
        larder_lease_t *lease = lar->leases;

        lar->leases = lease->next;
        lar->leasing->drop(lease);
        lease->lar = NULL; /* freed by larder_release() */
    }
    while (lar->lease_cache != NULL) {
        larder_lease_t *lease = lar->lease_cache;

        lar->lease_cache = lease->next;
        ldr_free(lease);
    }
}
