/*
 * Leaving: this node tells the other members that it owns nothing any more, and
 * hands on what would be lost with it.
 *
 * The cluster says whether this node leaves, whoever asked for it: an operator
 * here or on another member, SIGTERM, or etcd. When that changes, all members
 * are informed (meet.c), and the thread that hands out saves goes through DRAM
 * once and queues what only this node has: what no other member was given, and
 * what no tier of this node has or is about to write. The members that own it
 * now are given it like any other save.
 *
 * Whoever is informed stops asking this node and saving to it. A save that was
 * under way is refused as stale, so that its sender meets this node again and
 * hears why.
 */
#include <string.h>

#include "base/bytes.h"
#include "tier/peer/peer.h"

#define SLICE 1024u /* shards looked at before others get the lock */
#define ORDER_NS 10000000000u

/* ---- what only this node has ---- */

/* Whether another tier of this node has the shard, or is to write it. */
static bool kept_here(const ldr_peers_t *p, uint32_t shard)
{
    const ldr_store_t *store = &p->host->store;
    const ldr_shard_t *sh = &store->shards[shard];
    const ldr_chunk_t *c = &store->chunks[sh->chunk];
    ldr_name_t name = ldr_store_name(store, c->space, c->group, &c->key);
    ldr_sought_t sought = {&name, c->entry, sh->number, true};

    for (unsigned i = 0; i < LDR_QUEUES_MAX; i++) {
        ldr_tier_t *t = p->host->tiers[i];
        larder_cause_t cause;

        if (t != NULL && i != LDR_PEER_QUEUE &&
            ((sh->queued >> i & 1u) != 0 ||
             t->ops->find(t, &sought, &cause) > 0)) {
            return true;
        }
    }
    return false;
}

bool ldr_peers_leave_step(ldr_peers_t *p)
{
    ldr_store_t *store = &p->host->store;
    uint32_t end =
        (uint32_t)ldr_min64(store->shard_top, (uint64_t)p->leave_at + SLICE);

    ldr_host_held(p->host);
    if (!p->leaving || p->leave_at >= store->shard_top) {
        return false;
    }
    for (; p->leave_at < end; p->leave_at++) {
        const ldr_shard_t *sh = &store->shards[p->leave_at];

        if (sh->state == LDR_SHARD_READY && !sh->given &&
            store->chunks[sh->chunk].entry != LDR_NIL &&
            p->spaces[store->chunks[sh->chunk].space] != NULL &&
            !kept_here(p, p->leave_at)) {
            ldr_behind_push(store, LDR_PEER_QUEUE, p->leave_at);
        }
    }
    if (p->leave_at >= store->shard_top) {
        p->threads->wake(p->threads->arg, &p->host->changed, true);
    }
    return true;
}

/* ---- whether this node leaves ---- */

void ldr_peers_leave_look(ldr_peers_t *p)
{
    const ldr_view_t *v = p->view;
    bool leaving = v->self != LDR_NOBODY && v->members[v->self].leaving;

    ldr_host_held(p->host);
    if (leaving == p->leaving) {
        return;
    }
    p->leaving = leaving;
    p->leave_given = 0;
    p->leave_at =
        p->host->options.peer_save != LDR_PEER_SAVE_NEVER ? 0 : UINT32_MAX;
    p->wanted++; /* the caller wakes the lanes that inform the members */
    p->threads->wake(p->threads->arg, &p->work, true);
}

bool ldr_peers_leaving(ldr_peers_t *p)
{
    ldr_host_lock(p->host);
    bool leaving = p->leaving;
    ldr_host_unlock(p->host);
    return leaving;
}

void ldr_peers_leave(ldr_peers_t *p, const ldr_stop_t *stop)
{
    ldr_host_lock(p->host);
    ldr_peers_look(p);
    /* etcd has recorded it before this node's own view says so. */
    while (!p->leaving && ldr_host_wait_stop(p->host, stop)) {
        ldr_peers_look(p);
    }
    ldr_peers_wait_met(p, p->wanted, stop);
    ldr_host_unlock(p->host);
}

larder_status_t ldr_peers_hand_on(ldr_peers_t *p, const ldr_stop_t *stop,
                                  uint64_t *given_p, uint64_t *left_p)
{
    ldr_host_t *host = p->host;
    larder_status_t st = LARDER_OK;

    *given_p = *left_p = 0;
    if (host->options.peer_save == LDR_PEER_SAVE_NEVER) {
        return LARDER_OK;
    }
    ldr_host_lock(host);
    p->leave_at = 0; /* again: more was saved meanwhile */
    p->threads->wake(p->threads->arg, &p->work, true);
    while (st == LARDER_OK && p->leaving &&
           p->leave_at < host->store.shard_top) {
        if (!ldr_host_wait_stop(host, stop)) {
            st = ldr_host_gave_up(host, stop);
        }
    }
    ldr_host_unlock(host);
    if (st == LARDER_OK) {
        st = ldr_peer_flush(&p->base, stop);
    }
    ldr_host_lock(host);
    const ldr_behind_t *q = &host->store.queues[LDR_PEER_QUEUE];
    *given_p = p->leave_given;
    *left_p = q->count + q->hands[0] + q->hands[1];
    ldr_host_unlock(host);
    return st;
}

/* ---- orders of an operator ---- */

larder_status_t ldr_peers_order(ldr_peers_t *p, const char *name, bool back)
{
    ldr_peer_node_t *n = NULL;

    ldr_host_lock(p->host);
    ldr_peers_look(p);
    for (unsigned i = 0; i < p->node_count && n == NULL; i++) {
        n = p->nodes[i]->in_view && strcmp(p->nodes[i]->name, name) == 0
                ? p->nodes[i]
                : NULL;
    }
    if (n != NULL) {
        n->order = back ? LDR_MEET_RETURN : LDR_MEET_LEAVE;
        n->order_ns = ldr_peers_now(p) + ORDER_NS;
        n->tried = 0; /* it is met at once */
        ldr_lane_wake(n, false);
    }
    ldr_host_unlock(p->host);
    return n != NULL
               ? LARDER_OK
               : ldr_fail(LARDER_E_INVALID, "no member is named '%.64s'", name);
}
