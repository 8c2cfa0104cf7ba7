/* Leases and reservations in an embedded node. */
#include <string.h>

#include "base/bytes.h"
#include "base/copy.h"
#include "client/client.h"
#include "client/local.h"

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

/* Waits for one shard, checks it, and keeps it in the lease. What is in DRAM
 * is not waited for, but takes its time to be checked. */
static bool stage_one(stage_t *s, uint32_t at)
{
    ldr_node_t *node = s->lar->node;
    ldr_load_t *load = &s->loads[at % LDR_WINDOW];
    const ldr_stop_t stop = {NULL, s->deadline_ns};

    ldr_load_wait(node, load, s->deadline_ns);
    if (load->status == LARDER_OK) {
        load->status = ldr_host_stopped(&node->host, &stop);
    }
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
    uint64_t bytes[LARDER_TIERS_MAX] = {0};
    larder_tier_t slowest = LARDER_TIER_DRAM;

    for (;; at++) {
        stage_ahead(s, at);
        if (at == s->begun || !stage_one(s, at)) {
            break;
        }
        const ldr_load_t *load = &s->loads[at % LDR_WINDOW];
        slowest = load->tier > slowest ? load->tier : slowest;
        bytes[load->tier] += load->length;
        if ((at + 1) % shards == 0) { /* a whole chunk */
            for (int i = 0; i < LARDER_TIERS_MAX; i++) {
                s->match.tier_bytes[i] += bytes[i];
                bytes[i] = 0;
            }
            s->match.tier_chunks[slowest]++;
            s->lease->chunks++;
            slowest = LARDER_TIER_DRAM;
        }
    }
    stage_trim(s, at, at < s->begun ? at + 1 : at);
    s->match.chunks = s->lease->chunks;
}

larder_status_t ldr_local_stage(larder_space_t *space, const larder_key_t *keys,
                                uint16_t group, uint64_t deadline_ns,
                                larder_lease_t *lease, larder_match_t *match)
{
    stage_t s = {
        .lar = space->lar,
        .space = space,
        .keys = keys,
        .group = group,
        .deadline_ns = deadline_ns,
        .total = match->chunks * space->shards,
        .lease = lease,
        .match = {.cause = match->cause},
    };

    stage_run(&s);
    s.match.load_us = ldr_node_expect_us(s.lar->node, s.match.tier_bytes);
    *match = s.match;
    return LARDER_OK;
}

/* ---- using and ending ---- */

larder_status_t ldr_local_segments(const larder_lease_t *lease, uint32_t at,
                                   struct iovec *seg, uint32_t seg_max,
                                   uint32_t *seg_count_p)
{
    uint32_t shard =
        lease->reserved ? (uint32_t)lease->rooms[at].lease : lease->ids[at];

    /* Held: its pages do not change, so no lock is needed. */
    *seg_count_p = ldr_node_iov(lease->lar->node, shard, seg, seg_max);
    return *seg_count_p <= seg_max ? LARDER_OK : LARDER_E_SIZE;
}

void ldr_local_drop(larder_lease_t *lease)
{
    ldr_node_t *node = lease->lar->node;
    ldr_store_t *store = &node->store;

    for (uint32_t i = 0; i < lease->room_count; i++) {
        if (lease->rooms[i].status == LARDER_OK) {
            ldr_node_abort(node, (uint32_t)lease->rooms[i].lease);
            ldr_node_count_save(node, lease->number, LARDER_E_CANCELED);
        }
    }
    if (lease->chunks == 0) {
        return;
    }
    ldr_node_lock(node);
    for (uint32_t i = 0; i < lease->chunks * lease->shards; i++) {
        ldr_store_release(store, store->shards[lease->ids[i]].chunk);
    }
    ldr_node_unlock(node);
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

larder_status_t ldr_local_reserve(larder_space_t *space, larder_item_t *items,
                                  size_t count, uint64_t deadline_ns,
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

larder_status_t ldr_local_commit(larder_lease_t *lease, const uint8_t *keep,
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
