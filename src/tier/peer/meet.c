/*
 * Meeting: epochs and removals, before anything else is said in a session, and
 * after each reset and removal.
 *
 * A removal has a random id; a member that has it in its list has carried it
 * out. The list keeps removals for a day. If it overflows, or a member was away
 * for longer, what it has of the spaces concerned cannot be trusted: they are
 * reset, everywhere. Not so where the member began with nothing after the last
 * removal that is not on the list (LDR_MEET_NEW).
 */
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "base/text.h"
#include "net/pool.h"
#include "tier/peer/peer.h"

#define AGAIN_NS 1000000000u /* after a member could not be informed */
#define KEEP_NS 5000000000u  /* and if all is well */
#define LIVE_NS 12000000000u
#define ROWS_MAX 4000u             /* removals in one message, and epochs */
#define IDS (2 * LDR_REMOVALS_MAX) /* a power of two: see drop_id() */

/* ---- the list of removals, with the lock ---- */

static ldr_peer_removal_t *removal_at(const ldr_peers_t *p, uint64_t number)
{
    return &p->removals[number % LDR_REMOVALS_MAX];
}

static uint64_t *id_place(const ldr_peers_t *p, uint64_t id)
{
    uint64_t at = id % IDS;

    while (p->removal_ids[at] != 0 && p->removal_ids[at] != id) {
        at = (at + 1) % IDS;
    }
    return &p->removal_ids[at];
}

/* Takes an id out of the set. What was placed behind it moves up, so that it is
 * found from its own place on. */
static void drop_id(ldr_peers_t *p, uint64_t id)
{
    uint64_t hole = (uint64_t)(id_place(p, id) - p->removal_ids);

    p->removal_ids[hole] = 0;
    for (uint64_t at = (hole + 1) % IDS; p->removal_ids[at] != 0;
         at = (at + 1) % IDS) {
        uint64_t place = p->removal_ids[at] % IDS;

        if ((at - place) % IDS >= (at - hole) % IDS) {
            p->removal_ids[hole] = p->removal_ids[at];
            p->removal_ids[at] = 0;
            hole = at;
        }
    }
}

/* Takes the oldest off the list. Who has not heard of it is to drop what it
 * has of that space. */
static void forget_oldest(ldr_peers_t *p)
{
    const ldr_peer_removal_t *r = removal_at(p, p->removal_first);
    uint32_t space = ldr_store_space(&p->host->store, r->row.space);

    if (space != LDR_NIL && r->epoch == p->host->store.spaces[space].epoch) {
        p->lost[space] = (uint32_t)ldr_max64(p->lost[space], r->at_s);
    }
    drop_id(p, r->row.id);
    p->removal_first++;
    p->removal_count--;
}

static void remember(ldr_peers_t *p, const ldr_removal_row_t *row)
{
    uint32_t now_s = ldr_wall_s(p->host->clock);

    while (
        p->removal_count > 0 &&
        (p->removal_count == LDR_REMOVALS_MAX ||
         removal_at(p, p->removal_first)->at_s + LDR_REMOVALS_KEPT_S < now_s)) {
        forget_oldest(p);
    }
    ldr_peer_removal_t *r = removal_at(p, p->removal_first + p->removal_count);
    uint32_t space = ldr_store_space(&p->host->store, row->space);
    r->row = *row;
    r->at_s = now_s - (row->age_s < now_s ? row->age_s : 0);
    r->epoch = space != LDR_NIL ? p->host->store.spaces[space].epoch : 0;
    p->removal_count++;
    *id_place(p, row->id) = row->id;
}

bool ldr_peer_owes(const ldr_peer_node_t *n, const uint8_t *space_id,
                   const larder_key_t *key, uint32_t group, uint32_t number)
{
    const ldr_peers_t *p = n->tier;
    uint64_t end = p->removal_first + p->removal_count;

    for (uint64_t i = ldr_max64(n->sent + 1, p->removal_first); i < end; i++) {
        const ldr_removal_row_t *r = &removal_at(p, i)->row;

        if (r->group == group && r->shard == number &&
            memcmp(&r->key, key, sizeof(*key)) == 0 &&
            memcmp(r->space, space_id, LDR_ID_BYTES) == 0) {
            return true;
        }
    }
    return false;
}

/* ---- epochs, with the lock ---- */

static bool has_epoch(const uint32_t *lineage, uint32_t epoch)
{
    bool has = false;

    for (unsigned i = 0; i < LDR_LINEAGE; i++) {
        has = has || lineage[i] == epoch;
    }
    return has;
}

/* The epochs that the space had here and that count as dropped, the one that it
 * has now first. */
static uint32_t *lineage_of(ldr_peers_t *p, uint32_t space)
{
    uint32_t *l = p->lineage[space], now = p->host->store.spaces[space].epoch;

    if (l[0] != now) {
        memmove(l + 1, l, (LDR_LINEAGE - 1) * sizeof(*l));
        l[0] = now;
    }
    return l;
}

/* What two members that meet go on with, given those of the other. If one of
 * them has been where the other is, the one that is ahead is right. Otherwise
 * each was reset without the other's hearing of it, so that what the other has
 * is to be dropped: both go on to the next number. Both come to the same. */
static uint32_t epoch_of_both(ldr_peers_t *p, uint32_t space,
                              const uint32_t *theirs)
{
    uint32_t *l = lineage_of(p, space), mine = l[0], high, low;

    if (theirs[0] == 0 || has_epoch(l, theirs[0])) {
        return mine;
    }
    if (theirs[0] > mine && (mine == 0 || has_epoch(theirs, mine))) {
        memcpy(l, theirs, LDR_LINEAGE * sizeof(*l));
        return theirs[0];
    }
    low = mine < theirs[0] ? mine : theirs[0];
    high = mine < theirs[0] ? theirs[0] : mine;
    /* The other's counts as dropped from here on, as mine does. */
    memmove(l + 2, l + 1, (LDR_LINEAGE - 2) * sizeof(*l));
    l[1] = theirs[0];
    return ldr_epoch_next(high, (uint64_t)low * 31 + high);
}

/* ---- saying ---- */

/* Since when this node has what it has, if it began with nothing. */
static uint32_t age_flags(const ldr_peers_t *p)
{
    uint64_t age_s = (ldr_peers_now(p) - p->began_ns) / 1000000000u;
    uint32_t now_s = ldr_wall_s(p->host->clock);

    age_s = ldr_max64(age_s, now_s > p->began_s ? now_s - p->began_s : 0);
    uint64_t minutes = age_s / 60 + 1;
    return p->began_empty && minutes <= UINT32_MAX >> LDR_MEET_AGE
               ? LDR_MEET_NEW | (uint32_t)minutes << LDR_MEET_AGE
               : 0;
}

/* What this node says of itself, and of the other. */
static uint32_t flags_for(const ldr_peers_t *p, const ldr_peer_node_t *n)
{
    return LDR_MEET_HOMES | age_flags(p) | (p->leaving ? LDR_MEET_LEAVING : 0) |
           (n->in_view ? LDR_MEET_KNOWN : 0) |
           (ldr_peers_now(p) < n->order_ns ? n->order : 0);
}

/* The epochs of as many spaces as one message has room for, from *space_p on.
 * Gives how many rows were written. */
static uint32_t say_epochs(ldr_peers_t *p, uint32_t *space_p, uint8_t *at)
{
    const ldr_store_t *store = &p->host->store;
    uint32_t space = *space_p, rows = 0;

    for (; space < store->space_count && rows + LDR_LINEAGE <= ROWS_MAX;
         space++) {
        const uint32_t *lineage = lineage_of(p, space);

        for (unsigned k = 0; k < LDR_LINEAGE && lineage[k] > 0; k++) {
            ldr_epoch_row_t row = {.epoch = lineage[k]};

            memcpy(row.space, store->spaces[space].id, LDR_ID_BYTES);
            ldr_put_epoch(at + (size_t)rows++ * LDR_EPOCH_BYTES, &row);
        }
    }
    *space_p = space < store->space_count ? space : LDR_NIL;
    return rows;
}

size_t ldr_peers_say(ldr_peers_t *p, const ldr_peer_node_t *n, uint64_t from,
                     uint32_t *space_p, uint8_t *body, uint64_t *upto_p)
{
    uint64_t end = p->removal_first + p->removal_count;
    uint32_t now_s = ldr_wall_s(p->host->clock);

    ldr_host_held(p->host);
    ldr_meet_t m = {
        .version_major = LARDER_VERSION_MAJOR,
        .run = p->self.run,
        .have = n->got,
        .have_run = n->run,
        .first = ldr_max64(from, p->removal_first),
        .last = end - 1,
        .flags = flags_for(p, n),
        .view = p->view != NULL ? ldr_get64(p->view->hash) : 0,
        .wall_s = now_s,
    };
    snprintf(m.name, sizeof(m.name), "%s", p->self.name);
    snprintf(m.cluster, sizeof(m.cluster), "%s", p->self.cluster);
    m.first = ldr_min64(m.first, end);
    m.flags |= *space_p > 0 ? LDR_MEET_NEXT : 0;
    m.epochs = say_epochs(p, space_p, body + LDR_MEET_HEAD_BYTES);
    m.flags |= *space_p != LDR_NIL ? LDR_MEET_MORE : 0;
    size_t at = LDR_MEET_HEAD_BYTES + (size_t)m.epochs * LDR_EPOCH_BYTES;
    for (uint64_t i = m.first; i < end && m.removals < ROWS_MAX; i++) {
        ldr_peer_removal_t *r = removal_at(p, i);

        r->row.age_s = now_s > r->at_s ? now_s - r->at_s : 0;
        ldr_put_removal(body + at, &r->row);
        at += LDR_REMOVAL_BYTES;
        m.removals++;
    }
    *upto_p = m.first + m.removals - 1;
    ldr_put_meet(body, &m);
    return at;
}

/* ---- hearing ---- */

/* Who it is. With the lock. */
static larder_status_t claim(ldr_peers_t *p, ldr_peer_node_t *n,
                             const ldr_meet_t *m)
{
    uint64_t now_ns = ldr_peers_now(p);
    ldr_claim_t c = {
        .name = m->name,
        .cluster = m->cluster,
        .run = m->run,
        .version_major = m->version_major,
        .live_run = n->live > 0 && now_ns - n->heard_ns < LIVE_NS ? n->run : 0,
    };

    if (strcmp(m->name, n->name) != 0) {
        return ldr_fail(LARDER_E_DENIED,
                        "%s: member %s is expected there, but %s answers: "
                        "correct the address of one of them",
                        n->address, n->name, m->name);
    }
    larder_status_t st = ldr_cluster_claim(p->cluster, &c);
    if (st == LARDER_OK && m->run != n->run) {
        n->run = m->run;
        n->got = 0;         /* it numbers its removals from 1 again */
        n->here_all = true; /* ... and has forgotten all homes */
        p->threads->wake(p->threads->arg, &p->announce_work, true);
    }
    return st;
}

/* The space with this id. Members have heard of their spaces in much the same
 * order: the one after the last is likely. */
static uint32_t space_after(ldr_store_t *store, uint32_t last,
                            const uint8_t id[LDR_ID_BYTES])
{
    return last + 1 < store->space_count &&
                   memcmp(store->spaces[last + 1].id, id, LDR_ID_BYTES) == 0
               ? last + 1
               : ldr_store_space(store, id);
}

/* This member may have missed removals that are not kept any more: those of
 * after it began with nothing, or else all. With the lock. */
static void reset_lost(ldr_peers_t *p, const ldr_peer_node_t *n,
                       const ldr_meet_t *m)
{
    ldr_store_t *store = &p->host->store;
    uint32_t now_s = ldr_wall_s(p->host->clock);
    uint32_t age_s = (m->flags >> LDR_MEET_AGE) * 60, began_s = 0;
    bool any = false;

    if ((m->flags & LDR_MEET_NEW) != 0 && age_s < now_s) {
        began_s = now_s - age_s;
    }
    for (uint32_t i = 0;
         n->sent + 1 < p->removal_first && i < store->space_count; i++) {
        if (p->lost[i] > 0 && p->lost[i] >= began_s) {
            p->lost[i] = 0;
            any = true;
            ldr_store_set_epoch(store, i,
                                ldr_epoch_next(store->spaces[i].epoch,
                                               ldr_rand_next(&p->host->rand)));
        }
    }
    if (any) {
        p->wanted++;
        ldr_host_epochs_later(p->host, &p->base);
        ldr_host_say(p->host, LARDER_LOG_WARN,
                     "member %s was away for longer than removals are kept: "
                     "the spaces concerned were reset",
                     n->name);
    }
}

/* True: epochs were raised here. With the lock. */
static bool hear_epochs(ldr_peers_t *p, const ldr_meet_t *m)
{
    ldr_store_t *store = &p->host->store;
    uint32_t space = LDR_NIL;
    bool raised = false;

    for (uint32_t i = 0, end = 0; i < m->epochs; i = end) {
        uint32_t theirs[LDR_LINEAGE] = {0}, count = 0;
        ldr_epoch_row_t row, first;

        for (end = i; end < m->epochs && count < LDR_LINEAGE; end++) {
            ldr_get_epoch(m->rows + (size_t)end * LDR_EPOCH_BYTES, &row);
            first = end == i ? row : first;
            if (memcmp(row.space, first.space, LDR_ID_BYTES) != 0) {
                break;
            }
            theirs[count++] = row.epoch;
        }
        space = space_after(store, space, first.space);
        if (space == LDR_NIL) {
            continue;
        }
        uint32_t mine = store->spaces[space].epoch;
        uint32_t both = epoch_of_both(p, space, theirs);
        if (both != mine) {
            ldr_store_set_epoch(store, space, both);
            p->lost[space] = 0;
            raised = true;
        }
        p->wanted += both != theirs[0]; /* the others are to hear of it */
    }
    return raised;
}

/* Carries one out, unless that was done. */
static larder_status_t hear_removal(ldr_peers_t *p,
                                    const ldr_removal_row_t *row,
                                    const ldr_stop_t *stop)
{
    ldr_store_t *store = &p->host->store;
    larder_item_t item = {
        .key = &row->key, .group = row->group, .shard = row->shard};

    ldr_host_lock(p->host);
    uint32_t space = ldr_store_space(store, row->space);
    bool known = row->id == 0 || *id_place(p, row->id) == row->id;
    if (!known && space != LDR_NIL) {
        uint64_t print =
            ldr_store_name(store, space, row->group, &row->key).fingerprint;

        store->now_ds = (uint32_t)(ldr_peers_now(p) / 100000000u);
        ldr_store_removed(store, print, row->shard);
        ldr_where_drop(p->where, print, row->shard);
    }
    ldr_host_unlock(p->host);
    if (known || space == LDR_NIL) {
        return LARDER_OK;
    }
    larder_status_t st =
        ldr_host_remove(p->host, &p->base, space, &item, 1, stop);
    if (st >= 0) {
        ldr_host_lock(p->host);
        if (*id_place(p, row->id) != row->id) {
            remember(p, row);
        }
        ldr_host_unlock(p->host);
    }
    return st < 0 ? st : LARDER_OK;
}

/* Whether the other leaves, and whether an operator wants this node to. With
 * the lock, which it drops: the cluster makes a view of it. */
static void hear_leaving(ldr_peers_t *p, ldr_peer_node_t *n,
                         const ldr_meet_t *m)
{
    bool leaving = (m->flags & LDR_MEET_LEAVING) != 0;
    bool fresh = leaving != n->leaving;
    uint32_t order = m->flags & (LDR_MEET_LEAVE | LDR_MEET_RETURN);
    uint64_t now_s = ldr_wall_s(p->host->clock);

    n->leaving = leaving;
    n->homes = (m->flags & LDR_MEET_HOMES) != 0;
    n->knows = (m->flags & LDR_MEET_KNOWN) != 0;
    n->same_view = p->view != NULL && m->view == ldr_get64(p->view->hash);
    n->skew_s = now_s > m->wall_s ? now_s - m->wall_s : m->wall_s - now_s;
    if (!fresh && order == 0) {
        return;
    }
    ldr_host_unlock(p->host);
    if (fresh) {
        ldr_cluster_peer_says(p->cluster, n->id, m->run, leaving);
    }
    if (order != 0) {
        (void)ldr_cluster_leave(p->cluster, order == LDR_MEET_RETURN, 0);
    }
    ldr_host_lock(p->host);
    ldr_peers_look(p);
}

larder_status_t ldr_peers_hear(ldr_peers_t *p, ldr_peer_node_t *n,
                               const ldr_meet_t *m, const ldr_stop_t *stop)
{
    const uint8_t *rows = m->rows + (size_t)m->epochs * LDR_EPOCH_BYTES;

    ldr_host_lock(p->host);
    larder_status_t st = claim(p, n, m);
    if (st == LARDER_OK) {
        hear_leaving(p, n, m);
    }
    bool raised = st == LARDER_OK && hear_epochs(p, m);
    if (st == LARDER_OK && m->have_run == p->self.run &&
        m->have < p->removal_first + p->removal_count) {
        n->sent = ldr_max64(n->sent, m->have);
    }
    if (st == LARDER_OK) {
        reset_lost(p, n, m);
    }
    ldr_host_unlock(p->host);
    if (raised) { /* recorded before this is answered */
        st = ldr_host_epochs(p->host, &p->base);
    }
    for (uint32_t i = 0; i < m->removals && st == LARDER_OK; i++) {
        ldr_removal_row_t row;

        if (!ldr_get_removal(rows + (size_t)i * LDR_REMOVAL_BYTES, &row)) {
            return ldr_fail(LARDER_E_INVALID, "a malformed removal");
        }
        st = hear_removal(p, &row, stop);
    }
    if (st == LARDER_OK && m->removals > 0) {
        ldr_host_lock(p->host);
        n->got = ldr_max64(n->got, m->first + m->removals - 1);
        ldr_host_unlock(p->host);
    }
    return st;
}

/* ---- a meeting ---- */

/* Message by message, until both have said all. Where removals are not kept
 * any more that the other one may have missed, the first message has none: what
 * it has heard of is known by its answer only before it has heard of more. */
static larder_status_t exchange(ldr_peer_node_t *n, ldr_link_t *link,
                                ldr_call_t *call, const ldr_stop_t *stop)
{
    ldr_peers_t *p = n->tier;
    larder_status_t st = LARDER_OK;
    bool more = true;
    uint32_t space = 0; /* the first whose epochs were not said */

    ldr_host_lock(p->host);
    uint64_t wanted = p->wanted;
    uint32_t order = n->order;
    bool asks = n->sent + 1 < p->removal_first;
    ldr_host_unlock(p->host);
    while (st == LARDER_OK && more) {
        uint8_t *body = ldr_body(call->buffer);
        uint64_t upto;
        ldr_meet_t m;

        ldr_host_lock(p->host);
        uint64_t end = p->removal_first + p->removal_count;
        uint64_t from = asks ? end : n->sent + 1;
        call->bytes = (uint32_t)ldr_peers_say(p, n, from, &space, body, &upto);
        more = asks || space != LDR_NIL || upto + 1 < end;
        ldr_host_unlock(p->host);
        call->opcode = LDR_OP_MEET;
        st = ldr_conn_call(link, call, stop);
        if (st == LARDER_OK && ldr_frame_status(&call->reply) < 0) {
            st = ldr_reply_failed(&call->reply, body);
        } else if (st == LARDER_OK &&
                   !ldr_get_meet(body, call->reply.body, &m)) {
            st = ldr_fail(LARDER_E_OFFLINE, "%s: a malformed answer", n->name);
        } else if (st == LARDER_OK) {
            st = ldr_peers_hear(p, n, &m, stop);
        }
        if (st == LARDER_OK) {
            ldr_host_lock(p->host);
            n->sent = asks ? n->sent : ldr_max64(n->sent, upto);
            asks = false;
            more = more || m.first + m.removals <= m.last ||
                   (m.flags & LDR_MEET_MORE) != 0;
            ldr_host_unlock(p->host);
        }
    }
    ldr_host_lock(p->host);
    n->n.met += st == LARDER_OK;
    n->n.meet_failed += st != LARDER_OK;
    if (st == LARDER_OK) {
        n->informed = ldr_max64(n->informed, wanted);
        n->order = n->order == order ? 0 : n->order; /* it has heard it */
    }
    ldr_host_unlock(p->host);
    return st;
}

larder_status_t ldr_peer_meet(ldr_peer_node_t *n, ldr_link_t *link,
                              const ldr_stop_t *stop)
{
    ldr_call_t call = {.buffer = ldr_buffer_take(link->remote)};

    if (call.buffer == NULL) {
        return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for a request");
    }
    larder_status_t st = exchange(n, link, &call, stop);
    ldr_buffer_give(link->remote, call.buffer);
    return st;
}

void ldr_peer_tell(ldr_peer_node_t *n)
{
    ldr_peers_t *p = n->tier;
    ldr_talk_t v = {0};

    ldr_host_lock(p->host);
    uint64_t wanted = p->wanted;
    uint64_t now_ns = ldr_peers_now(p);
    ldr_host_unlock(p->host);
    ldr_stop_t stop = {&p->stop,
                       now_ns + p->host->options.peer_timeout_ms * 1000000u};
    larder_status_t st = ldr_peer_way_open(n);
    bool opened = st == LARDER_OK;
    if (opened) {
        st = ldr_peer_talk_begin(n, &v, NULL, &stop);
    }
    uint64_t begin_ns = ldr_peers_now(p);
    if (st == LARDER_OK) {
        st = exchange(n, v.link, &v.call, &stop);
        v.heard = st == LARDER_OK;
        ldr_peer_talk_end(&v, st);
    }
    ldr_host_lock(p->host);
    if (!opened && strncmp(n->why, ldr_fail_text(), sizeof(n->why) - 1) != 0) {
        ldr_host_say(p->host, LARDER_LOG_ERROR, "member %s at %s: %s", n->name,
                     n->address, ldr_fail_text());
    }
    snprintf(n->why, sizeof(n->why), "%s",
             st == LARDER_OK ? "" : ldr_fail_text());
    if (st == LARDER_OK) {
        n->trip_us = (ldr_peers_now(p) - begin_ns) / 1000;
    }
    n->tried = ldr_max64(n->tried, wanted);
    n->again_ns = ldr_peers_now(p) + (st == LARDER_OK ? KEEP_NS : AGAIN_NS);
    p->threads->wake(p->threads->arg, &p->host->changed, true);
    ldr_host_unlock(p->host);
}

/* ---- the node's own resets and removals ---- */

void ldr_peers_wait_met(ldr_peers_t *p, uint64_t wanted, const ldr_stop_t *stop)
{
    unsigned count = p->node_count;
    bool waits = true;

    while (waits) {
        waits = false;
        for (unsigned i = 0; i < count; i++) {
            const ldr_peer_node_t *n = p->nodes[i];

            waits = waits || (n->in_view && n->address[0] != '\0' &&
                              n->informed < wanted && n->tried < wanted);
        }
        if (waits && !ldr_host_wait_stop(p->host, stop)) {
            break;
        }
    }
}

/* Informs every member of the view of what is wanted now, and waits for them.
 * With the lock, which it drops. LARDER_PARTIAL: some were not reached. */
static larder_status_t tell_all(ldr_peers_t *p, const char *what,
                                const ldr_stop_t *stop)
{
    char names[300];
    ldr_text_t out = ldr_text(names, sizeof(names));
    uint64_t wanted = ++p->wanted;
    unsigned missing = 0;

    ldr_peers_look(p);
    unsigned count = p->node_count;
    for (unsigned i = 0; i < count; i++) {
        ldr_lane_wake(p->nodes[i], false);
    }
    ldr_peers_wait_met(p, wanted, stop);
    for (unsigned i = 0; i < count; i++) {
        if (p->nodes[i]->in_view && p->nodes[i]->informed < wanted) {
            ldr_text_add(&out, "%s%s", missing++ > 0 ? ", " : "",
                         p->nodes[i]->name);
        }
    }
    if (missing == 0) {
        return LARDER_OK;
    }
    ldr_host_say(
        p->host, LARDER_LOG_WARN,
        "%s: not recorded by %u members: %s; they hear of it when they "
        "are reached",
        what, missing, names);
    return ldr_fail(LARDER_PARTIAL,
                    "%s: done, but not recorded by %s: their clients may get "
                    "old bytes until they are reached",
                    what, names);
}

larder_status_t ldr_peer_remove(ldr_tier_t *t, uint32_t space, uint32_t entry,
                                const larder_item_t *item, uint64_t *token_p,
                                bool *there_p)
{
    ldr_peers_t *p = (ldr_peers_t *)t;
    ldr_store_t *store = &p->host->store;
    ldr_name_t name = ldr_store_name(store, space, item->group, item->key);
    ldr_location_t at;
    ldr_removal_row_t row = {.key = *item->key,
                             .group = (uint16_t)item->group,
                             .shard = (uint16_t)item->shard};

    (void)entry;
    memcpy(row.space, store->spaces[space].id, LDR_ID_BYTES);
    do {
        row.id = ldr_rand_next(&p->host->rand);
    } while (row.id == 0);
    *there_p = ldr_where_find(p->where, name.fingerprint, item->shard,
                              store->spaces[space].epoch, &at) &&
               at.length > 0;
    store->now_ds = (uint32_t)(ldr_peers_now(p) / 100000000u);
    ldr_store_removed(store, name.fingerprint, item->shard);
    ldr_where_drop(p->where, name.fingerprint, item->shard);
    remember(p, &row);
    ++*token_p;
    return LARDER_OK;
}

larder_status_t ldr_peer_remove_wait(ldr_tier_t *t, uint32_t space,
                                     const larder_item_t *items, size_t count,
                                     uint64_t token, const ldr_stop_t *stop)
{
    (void)space;
    (void)items;
    (void)count;
    return token > 0 ? tell_all((ldr_peers_t *)t, "removal", stop) : LARDER_OK;
}

larder_status_t ldr_peer_epochs(ldr_tier_t *t, uint32_t space,
                                uint64_t deadline_ns, bool *raised_p)
{
    ldr_peers_t *p = (ldr_peers_t *)t;
    ldr_stop_t stop = {&p->stop, deadline_ns};
    larder_status_t st = LARDER_OK;

    *raised_p = false;
    ldr_host_lock(p->host);
    if (space != LDR_NIL) {
        p->lost[space] = 0;
        st = tell_all(p, "reset", &stop);
    } else {
        ldr_peer_epochs_later(t);
    }
    ldr_host_unlock(p->host);
    return st;
}

void ldr_peer_epochs_later(ldr_tier_t *t)
{
    ldr_peers_t *p = (ldr_peers_t *)t;

    p->wanted++;
    for (unsigned i = 0; i < p->node_count; i++) {
        ldr_lane_wake(p->nodes[i], false);
    }
}
