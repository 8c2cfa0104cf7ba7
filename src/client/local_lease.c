/*
 * Leases and reservations in an embedded node. What a call holds is in its
 * lease, which one thread uses at a time; the node takes its own lock.
 */
#include <string.h>

#include "base/bytes.h"
#include "base/copy.h"
#include "client/client.h"
#include "client/local.h"
#include "node/promise.h"

/* ---- staging ---- */

larder_status_t ldr_local_stage(larder_space_t *space,
                                const ldr_prefix_t *prefix,
                                const larder_stage_params_t *worth,
                                uint64_t deadline_ns, larder_lease_t **lease_p,
                                larder_match_t *match)
{
    larder_t *lar = space->lar;
    ldr_staging_t s = {
        .node = lar->node,
        .prefix = *prefix,
        .worth = *worth,
        .check = true,
        .deadline_ns = deadline_ns,
    };
    ldr_staging_state_t state;

    s.prefix.space = space->number;
    s.prefix.shards = space->shards;
    if ((worth->field_mask & LARDER_STAGE_PROMISED) != 0) {
        ldr_promise_wait_all(lar->node, &s.prefix, deadline_ns);
    }
    larder_status_t st = ldr_staging_begin(&s);
    if (st == LARDER_OK && s.total > 0) {
        larder_lease_t *lease = ldr_lease_new(lar, s.total);

        if (lease == NULL) {
            return ldr_fail(LARDER_E_NO_MEMORY,
                            "not enough memory for a lease");
        }
        s.ids = lease->ids;
        while ((state = ldr_staging_step(&s)) != LDR_STAGING_DONE) {
            if (state == LDR_STAGING_WAITS) {
                ldr_staging_wait(&s);
            }
        }
        lease->chunks = s.match.chunks;
        lease->total = s.total;
        if (s.total > 0) {
            *lease_p = lease;
        } else {
            ldr_lease_unused(lar, lease);
        }
    }
    *match = s.match;
    return st;
}

/* ---- using and ending ---- */

static larder_status_t local_segments(const larder_lease_t *lease, uint32_t at,
                                      struct iovec *seg, uint32_t seg_max,
                                      uint32_t *seg_count_p)
{
    uint32_t shard =
        lease->reserved ? (uint32_t)lease->rooms[at].lease : lease->ids[at];

    /* Held: its pages do not change, so no lock is needed. */
    *seg_count_p = ldr_node_iov(lease->lar->node, shard, seg, seg_max);
    return *seg_count_p <= seg_max ? LARDER_OK : LARDER_E_SIZE;
}

static void local_drop(larder_lease_t *lease)
{
    ldr_node_t *node = lease->lar->node;

    for (uint32_t i = 0; i < lease->room_count; i++) {
        if (lease->rooms[i].status == LARDER_OK) {
            ldr_node_abort(node, (uint32_t)lease->rooms[i].lease);
            ldr_node_count_save(node, lease->number, LARDER_E_CANCELED);
        }
    }
    ldr_staged_release(node, lease->ids, lease->total);
}

/* ---- in place ---- */

/* As a put's reserve: waits while room is on its way. */
static larder_status_t reserve_one(larder_space_t *space, larder_item_t *item,
                                   ldr_room_t *room, const ldr_stop_t *stop)
{
    ldr_node_t *node = space->lar->node;
    ldr_target_t t = {space->number, space->shards, item};
    uint32_t shard = LDR_NIL;
    larder_status_t st = ldr_host_stopped(&node->host, stop);

    while (st == LARDER_OK) {
        st = ldr_node_reserve(node, &t, room->length, &shard);
        if (st != LARDER_PENDING) {
            break;
        }
        st = LARDER_E_FULL; /* if it does not come in time */
        ldr_node_lock(node);
        bool more = ldr_host_wait_stop(&node->host, stop);
        ldr_node_unlock(node);
        if (!more) {
            break;
        }
        st = ldr_host_stopped(&node->host, stop);
    }
    room->lease = shard;
    return st;
}

static larder_status_t local_reserve(larder_space_t *space,
                                     larder_item_t *items, size_t count,
                                     uint64_t deadline_ns,
                                     larder_lease_t *lease)
{
    ldr_stop_t stop = {NULL, deadline_ns};

    lease->number = space->number;
    for (size_t i = 0; i < count; i++) {
        ldr_room_t *room = &lease->rooms[i];

        if (room->status != LARDER_OK) {
            ldr_node_count_save(space->lar->node, space->number, room->status);
            continue;
        }
        room->status = reserve_one(space, &items[i], room, &stop);
        if (room->status != LARDER_OK) {
            ldr_node_count_save(space->lar->node, space->number, room->status);
        }
    }
    return LARDER_OK;
}

/* The checksum of what was written, and zeros behind it up to the block's end:
 * the disk gets whole blocks, and none of what somebody else left there. */
static uint32_t finish_pages(const ldr_node_t *node, const ldr_room_t *room,
                             bool sum)
{
    const ldr_store_t *store = &node->store;
    const ldr_shard_t *sh = &store->shards[(uint32_t)room->lease];
    size_t left = room->length;
    uint32_t crc = 0;

    for (uint32_t page = sh->page; left > 0;) {
        uint8_t *at = ldr_arena_page(&store->arena, page);
        size_t take = ldr_min64(left, ldr_arena_run(&store->arena, &page));

        if (sum) {
            crc = ldr_crc32c(crc, at, take);
        }
        memset(at + take, 0, (LDR_BLOCK - take % LDR_BLOCK) % LDR_BLOCK);
        left -= take;
    }
    return crc;
}

static larder_status_t local_commit(larder_lease_t *lease, const uint8_t *keep,
                                    const uint32_t *crcs, uint64_t deadline_ns)
{
    ldr_node_t *node = lease->lar->node;

    (void)deadline_ns; /* nothing here waits */
    for (uint32_t i = 0; i < lease->room_count; i++) {
        ldr_room_t *room = &lease->rooms[i];

        if (room->status != LARDER_OK) {
            continue;
        }
        if (keep != NULL && keep[i] == 0) {
            ldr_node_abort(node, (uint32_t)room->lease);
            room->status = LARDER_E_CANCELED;
        } else {
            uint32_t crc = finish_pages(node, room, crcs == NULL);

            room->status = ldr_node_commit(node, (uint32_t)room->lease,
                                           crcs != NULL ? crcs[i] : crc, 0);
        }
        ldr_node_count_save(node, lease->number, room->status);
    }
    return LARDER_OK;
}

const ldr_lease_ops_t ldr_leases_local = {
    .segments = local_segments,
    .drop = local_drop,
    .reserve = local_reserve,
    .commit = local_commit,
};
