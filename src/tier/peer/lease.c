/*
 * Leases: what this node said it has stays in DRAM until the member that asked
 * has fetched it. The answer and the lease are one round trip. A lease is of
 * one member and one chunk, and has a bit for each shard that was in DRAM.
 *
 * It ends when the last of these shards was sent to that member, or by time:
 * nobody has to be asked whether a member is still there. A member that still
 * waits for its turn to fetch asks again, which renews it.
 *
 * Bounds: a member holds at most a quarter of DRAM, all members together half
 * of it, so that saves find room whatever peers ask for. Beyond that an answer
 * has no lease: the fetch may miss, and nothing else happens.
 *
 * Invariants, all with the node's lock:
 *  1. A lease holds its chunk once, so the chunk's slot is not used again.
 *  2. It is in one bucket, and in one of two lists: of those that ask for the
 *     whole time, and of those that ask for less. The first of a list ends
 *     first, because all in it have the same length.
 */
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "tier/peer/peer.h"

#define LEASES 65536u
#define BUCKETS 65536u
#define LISTS 2u

typedef struct lease {
    uint32_t chunk;
    uint32_t next; /* of the bucket, or of the free ones */
    uint32_t older, newer;
    uint16_t node;
    uint8_t list;
    uint64_t bytes; /* of its pages: what is kept from others */
    uint64_t until_ns;
    uint64_t shards[LARDER_SHARDS_MAX / 64];
} lease_t;

struct ldr_leases {
    uint64_t bytes; /* of all */
    uint32_t free, top;
    uint32_t oldest[LISTS], newest[LISTS];
    uint32_t buckets[BUCKETS]; /* a number + 1 */
    lease_t leases[LEASES];
};

ldr_leases_t *ldr_peer_leases_open(void)
{
    ldr_leases_t *l = ldr_reserve(sizeof(*l));

    if (l != NULL) {
        l->free = LDR_NIL;
        for (unsigned i = 0; i < LISTS; i++) {
            l->oldest[i] = l->newest[i] = LDR_NIL;
        }
    }
    return l;
}

void ldr_peer_leases_close(ldr_leases_t *l)
{
    if (l != NULL) {
        ldr_unreserve(l, sizeof(*l));
    }
}

static uint32_t *bucket_of(ldr_leases_t *l, uint16_t node, uint32_t chunk)
{
    uint64_t hash = ((uint64_t)chunk << 16 | node) * 0x9e3779b97f4a7c15u;

    return &l->buckets[hash >> 48];
}

static uint32_t find(ldr_leases_t *l, uint16_t node, uint32_t chunk)
{
    uint32_t at = *bucket_of(l, node, chunk);

    while (at != 0 && (l->leases[at - 1].chunk != chunk ||
                       l->leases[at - 1].node != node)) {
        at = l->leases[at - 1].next;
    }
    return at != 0 ? at - 1 : LDR_NIL;
}

/* ---- the two lists ---- */

static void list_add(ldr_leases_t *l, uint32_t at, unsigned list)
{
    lease_t *x = &l->leases[at];

    x->list = (uint8_t)list;
    x->newer = LDR_NIL;
    x->older = l->newest[list];
    *(x->older != LDR_NIL ? &l->leases[x->older].newer : &l->oldest[list]) = at;
    l->newest[list] = at;
}

static void list_remove(ldr_leases_t *l, uint32_t at)
{
    const lease_t *x = &l->leases[at];

    *(x->older != LDR_NIL ? &l->leases[x->older].newer : &l->oldest[x->list]) =
        x->newer;
    *(x->newer != LDR_NIL ? &l->leases[x->newer].older : &l->newest[x->list]) =
        x->older;
}

/* ---- ending ---- */

static void end(ldr_peers_t *p, uint32_t at)
{
    ldr_leases_t *l = p->leases;
    lease_t *x = &l->leases[at];
    uint32_t *link = bucket_of(l, x->node, x->chunk);

    while (*link != at + 1) {
        link = &l->leases[*link - 1].next;
    }
    *link = x->next;
    list_remove(l, at);
    l->bytes -= x->bytes;
    p->nodes[x->node]->leased -= x->bytes;
    ldr_store_release(&p->host->store, x->chunk);
    x->next = l->free;
    l->free = at;
}

void ldr_peer_leases_end(ldr_peers_t *p, uint64_t now_ns)
{
    ldr_leases_t *l = p->leases;

    ldr_host_held(p->host);
    for (unsigned i = 0; i < LISTS; i++) {
        while (l->oldest[i] != LDR_NIL &&
               l->leases[l->oldest[i]].until_ns <= now_ns) {
            end(p, l->oldest[i]);
        }
    }
}

void ldr_peer_lease_sent(ldr_peer_node_t *n, uint32_t chunk, uint32_t number)
{
    ldr_peers_t *p = n->tier;
    uint32_t at = find(p->leases, n->number, chunk);

    ldr_host_held(p->host);
    if (at != LDR_NIL) {
        lease_t *x = &p->leases->leases[at];

        x->shards[number / 64] &= ~(UINT64_C(1) << number % 64);
        if ((x->shards[0] | x->shards[1]) == 0) {
            end(p, at);
        }
    }
}

/* ---- beginning ---- */

/* A new one, without shards. LDR_NIL: there is no room for it. */
static uint32_t begin(ldr_peer_node_t *n, uint32_t chunk)
{
    ldr_peers_t *p = n->tier;
    ldr_leases_t *l = p->leases;
    ldr_store_t *store = &p->host->store;
    uint32_t at = l->free;
    uint64_t bytes = (uint64_t)ldr_store_pages(store, chunk) * LDR_PAGE,
             dram = p->host->options.dram;

    if (n->leased + bytes > dram / 4 || l->bytes + bytes > dram / 2 ||
        (at == LDR_NIL && l->top == LEASES)) {
        return LDR_NIL;
    }
    if (at != LDR_NIL) {
        l->free = l->leases[at].next;
    } else {
        at = l->top++;
    }
    uint32_t *bucket = bucket_of(l, n->number, chunk);
    l->leases[at] = (lease_t){
        .chunk = chunk, .bytes = bytes, .next = *bucket, .node = n->number};
    *bucket = at + 1;
    l->bytes += bytes;
    n->leased += bytes;
    ldr_store_hold(store, chunk);
    return at;
}

void ldr_peer_lease_prefetch(const ldr_peer_node_t *n, uint32_t chunk)
{
    __builtin_prefetch(bucket_of(n->tier->leases, n->number, chunk), 1);
}

void ldr_peer_lease_take(ldr_peer_node_t *n, uint32_t chunk, uint32_t shards,
                         uint32_t ms, uint64_t now_ns)
{
    ldr_peers_t *p = n->tier;
    const ldr_store_t *store = &p->host->store;
    uint64_t mask[LARDER_SHARDS_MAX / 64] = {0};

    ldr_host_held(p->host);
    for (uint32_t i = store->chunks[chunk].shards; i != LDR_NIL;
         i = store->shards[i].next) {
        const ldr_shard_t *sh = &store->shards[i];

        if (sh->state == LDR_SHARD_READY && sh->number < shards) {
            mask[sh->number / 64] |= UINT64_C(1) << sh->number % 64;
        }
    }
    if ((mask[0] | mask[1]) == 0) {
        return;
    }
    ldr_peer_leases_end(p, now_ns);
    uint32_t at = find(p->leases, n->number, chunk);
    if (at == LDR_NIL) {
        at = begin(n, chunk);
    } else {
        list_remove(p->leases, at);
    }
    if (at == LDR_NIL) {
        return;
    }
    lease_t *x = &p->leases->leases[at];
    /* One that was asked for in full is not made shorter by another ask. */
    bool whole = ms >= LDR_LEASE_MS;
    uint64_t until_ns = now_ns + (whole ? LDR_LEASE_MS : LDR_LEASE_SECOND_MS) *
                                     UINT64_C(1000000);
    if (x->until_ns > until_ns) {
        whole = true;
        until_ns = now_ns + LDR_LEASE_MS * UINT64_C(1000000);
    }
    x->until_ns = until_ns;
    x->shards[0] |= mask[0];
    x->shards[1] |= mask[1];
    list_add(p->leases, at, whole ? 0 : 1);
}
