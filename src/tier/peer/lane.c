/*
 * Lanes: the threads of a member. A lane is begun when there is work and none
 * idle. Its loop holds the node's lock but while it calls the member.
 */
#include "base/bytes.h"
#include "tier/peer/homes.h"

#define LOOK_NS 1000000000u /* for room, and for a new view */

static unsigned lane_count(const ldr_peers_t *p)
{
    return (unsigned)p->host->options.peer_lanes;
}

/* When the member is met next; UINT64_MAX: not before it is in the view. */
static uint64_t meets_ns(const ldr_peer_node_t *n)
{
    return !n->in_view || n->address[0] == '\0' ? UINT64_MAX
           : n->tried < n->tier->wanted         ? 0
                                                : n->again_ns;
}

static ldr_query_part_t *take_ask(ldr_peer_node_t *n)
{
    ldr_query_part_t *part = n->asks;

    if (part != NULL) {
        n->asks = part->next;
        n->asks_end = n->asks == NULL ? &n->asks : n->asks_end;
    }
    return part;
}

static ldr_peer_batch_t *take_save(ldr_peer_node_t *n)
{
    ldr_peer_batch_t *b = n->saves;

    n->saves = b->next;
    n->saves_end = n->saves == NULL ? &n->saves : n->saves_end;
    return b;
}

/* Saves leave one lane to fetches, if there are two. */
static bool may_save(const ldr_peer_node_t *n)
{
    unsigned lanes = lane_count(n->tier);

    return n->saves != NULL && n->saving < (lanes > 2 ? lanes - 2 : 1);
}

/* Does one thing. False: there is nothing. With the lock, which it drops. */
static bool work(struct ldr_peer_lane *lane)
{
    ldr_peer_node_t *n = lane->node;
    ldr_peers_t *p = n->tier;

    if (lane->number == 0 && meets_ns(n) <= ldr_peers_now(p)) {
        ldr_host_unlock(p->host);
        ldr_peer_tell(n);
        ldr_host_lock(p->host);
        return true;
    }
    if (lane->number == 0 && n->fetch_head != LDR_NIL &&
        ldr_peers_now(p) >= n->renew_ns) {
        ldr_peer_renew(n);
        return true;
    }
    if (lane->number == 0) {
        ldr_peer_awaited(n, ldr_peers_now(p));
        n->said = !(n->said && n->asks != NULL); /* in turn with asks */
        if (n->said && ldr_peer_say_word(n)) {
            return true;
        }
    }
    ldr_query_part_t *part = take_ask(n);
    if (part != NULL) {
        ldr_host_unlock(p->host);
        ldr_peer_ask_part(n, part);
        ldr_host_lock(p->host);
        return true;
    }
    if (lane->number == 0) {
        return false;
    }
    if (ldr_here_say(n)) {
        return true;
    }
    if (n->fetch_head != LDR_NIL && ldr_peer_fetch_some(n)) {
        return true;
    }
    if (may_save(n)) {
        n->saving++;
        ldr_peer_save_batch(n, take_save(n));
        n->saving--;
        return true;
    }
    return false;
}

static void *lane_main(void *arg)
{
    struct ldr_peer_lane *lane = arg;
    ldr_peer_node_t *n = lane->node;
    ldr_peers_t *p = n->tier;

    ldr_host_lock(p->host);
    while (!p->stop && !n->rests) {
        if (work(lane)) {
            continue;
        }
        uint64_t until_ns = ldr_peers_now(p) + LOOK_NS;

        if (lane->number == 0) {
            ldr_peers_look(p);
            ldr_peer_leases_end(p, until_ns - LOOK_NS);
            until_ns = ldr_min64(until_ns, meets_ns(n));
            until_ns = ldr_min64(until_ns, ldr_peer_awaited(n, 0));
        } else {
            until_ns = ldr_min64(until_ns, ldr_here_ns(n));
        }
        lane->idle = true;
        ldr_host_tell(p->host);
        p->threads->wait(p->threads->arg, &lane->wake, &p->host->lock,
                         until_ns);
        lane->idle = false;
    }
    ldr_host_unlock(p->host);
    return NULL;
}

/* With the lock. */
static void begin(ldr_peer_node_t *n, unsigned number)
{
    ldr_peers_t *p = n->tier;
    struct ldr_peer_lane *lane = &n->lanes[number];

    if (!lane->runs && !p->stop && !n->rests) {
        lane->node = n;
        lane->number = number;
        lane->runs = p->threads->start(p->threads->arg, &lane->thread,
                                       "larder-peer", lane_main, lane);
    }
}

/* One that waits, of [at, end), goes on. False: none waits. With the lock. */
static bool wake_idle(ldr_peer_node_t *n, unsigned at, unsigned end)
{
    ldr_peers_t *p = n->tier;

    while (at < end && !n->lanes[at].idle) {
        at++;
    }
    if (at == end) {
        return false;
    }
    n->lanes[at].idle = false;
    p->threads->wake(p->threads->arg, &n->lanes[at].wake, false);
    return true;
}

void ldr_lane_wake(ldr_peer_node_t *n, bool moves)
{
    unsigned count = lane_count(n->tier), at = moves ? 1 : 0;
    unsigned end = moves ? count : 1;

    ldr_host_held(n->tier->host);
    if (wake_idle(n, at, end)) {
        return;
    }
    while (at < end && n->lanes[at].runs) {
        at++;
    }
    if (at < end) {
        begin(n, at);
    } else if (!moves) {
        wake_idle(n, 1, count); /* any lane can ask while the first one does */
    }
}

bool ldr_lanes_run(const ldr_peer_node_t *n)
{
    unsigned i = 0;

    while (i < LDR_PEER_LANES && !n->lanes[i].runs) {
        i++;
    }
    return i < LDR_PEER_LANES;
}

bool ldr_peer_gone(const ldr_peer_node_t *n)
{
    bool busy = n->asks != NULL || n->awaiting != NULL || n->words != NULL ||
                n->save_count > 0 || n->fetch_head != LDR_NIL || n->leased > 0;

    for (unsigned i = 0; i < LDR_PEER_LANES; i++) {
        busy = busy || (n->lanes[i].runs && !n->lanes[i].idle);
    }
    return !busy && !n->in_view && !n->rests && n->live == 0 && n->users == 0 &&
           ldr_peers_now(n->tier) - n->seen_ns >= LDR_GONE_NS;
}

/* Its lanes wait: they end as soon as they are woken. It may be in the view
 * again when they have. */
static void put_to_rest(ldr_peer_node_t *n)
{
    ldr_peers_t *p = n->tier;

    n->rests = true;
    while (wake_idle(n, 0, LDR_PEER_LANES)) {
    }
    ldr_host_unlock(p->host);
    for (unsigned i = 0; i < LDR_PEER_LANES; i++) {
        if (n->lanes[i].runs) {
            p->threads->join(p->threads->arg, n->lanes[i].thread);
        }
    }
    ldr_peer_way_end(n);
    ldr_host_lock(p->host);
    for (unsigned i = 0; i < LDR_PEER_LANES; i++) {
        n->lanes[i].runs = false;
    }
    ldr_here_end(n);
    n->here_all = true;
    n->rests = false;
    if (!ldr_peer_gone(n)) {
        ldr_lane_wake(n, false);
        ldr_lane_wake(n, true);
    }
}

bool ldr_peers_rest(ldr_peers_t *p)
{
    ldr_host_held(p->host);
    for (unsigned i = 0; i < p->node_count; i++) {
        ldr_peer_node_t *n = p->nodes[i];

        if ((n->way != NULL || ldr_lanes_run(n)) && ldr_peer_gone(n)) {
            put_to_rest(n);
            return true;
        }
    }
    return false;
}

void ldr_lanes_end(ldr_peers_t *p)
{
    ldr_host_lock(p->host);
    p->stop = true;
    p->threads->wake(p->threads->arg, &p->work, true);
    p->threads->wake(p->threads->arg, &p->announce_work, true);
    unsigned count = p->node_count;
    for (unsigned i = 0; i < count; i++) {
        while (wake_idle(p->nodes[i], 0, LDR_PEER_LANES)) {
        }
    }
    ldr_host_unlock(p->host);
    if (p->saver_runs) {
        p->threads->join(p->threads->arg, p->saver);
    }
    if (p->announcer_runs) {
        p->threads->join(p->threads->arg, p->announcer);
    }
    ldr_host_lock(p->host);
    ldr_peer_leases_end(p, UINT64_MAX);
    ldr_host_unlock(p->host);
    for (unsigned i = 0; i < count; i++) {
        ldr_peer_node_t *n = p->nodes[i];

        for (unsigned k = 0; k < LDR_PEER_LANES; k++) {
            if (n->lanes[k].runs) {
                p->threads->join(p->threads->arg, n->lanes[k].thread);
                n->lanes[k].runs = false;
            }
        }
        ldr_query_part_t *part;
        ldr_host_lock(p->host);
        ldr_peer_words_end(n);
        while ((part = take_ask(n)) != NULL) {
            ldr_peer_unask_part(n, part);
        }
        while (n->saves != NULL) {
            ldr_peer_save_back(n, take_save(n));
        }
        ldr_peer_fetch_none(n, LARDER_CAUSE_DEADLINE);
        ldr_host_unlock(p->host);
    }
}
