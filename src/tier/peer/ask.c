/*
 * Asking members what they have: one request to each for all chunks of a
 * request. An answer becomes locations; no answer is remembered as such, and
 * the chunk is asked for again the next time.
 */
#include "base/bytes.h"
#include "base/mem.h"
#include "tier/peer/homes.h"

/* How long a location is believed: as long as its lease. */
#define KNOWN_NS (LDR_LEASE_MS * UINT64_C(1000000))
#define ABSENT_NS 500000000u /* ... and that nobody has it */
#define RANKS 2u
#define RENEW_MAX 1024u
#define AHEAD 16u /* rows whose owners are read ahead */

/* The member that the ask means: by its name, or by an address HOST:PORT. A
 * router knows the port of an engine and not of its node, so the host alone is
 * enough where only one member has it. NULL: no member is meant. With the lock.
 */
static ldr_peer_node_t *hinted(const ldr_peers_t *p, const ldr_query_t *ask)
{
    const char *port = strrchr(ask->member, ':');
    size_t host = port != NULL ? (size_t)(port - ask->member) + 1 : 0;
    ldr_peer_node_t *there = NULL;
    unsigned count = 0;

    for (unsigned i = 0; ask->member[0] != '\0' && i < p->node_count; i++) {
        ldr_peer_node_t *n = p->nodes[i];

        if (!n->in_view) {
            continue;
        }
        if (strcmp(n->name, ask->member) == 0 ||
            strcmp(n->address, ask->member) == 0) {
            return n;
        }
        if (host > 1 && strncmp(n->address, ask->member, host) == 0) {
            there = n;
            count++;
        }
    }
    return count == 1 ? there : NULL;
}

bool ldr_peer_must_ask(ldr_tier_t *t, const ldr_query_t *ask,
                       const ldr_name_t *name)
{
    ldr_peers_t *p = (ldr_peers_t *)t;
    uint32_t epoch = p->host->store.spaces[name->space].epoch;
    ldr_location_t at;

    ldr_peers_look(p); /* the first view may have come just now */
    if (p->node_count == 0 || p->spaces[name->space] == NULL) {
        return false;
    }
    /* That the owners lack it says nothing of another member. */
    bool more = hinted(p, ask) != NULL;
    for (uint32_t i = 0; i < ask->shards; i++) {
        if (!ldr_where_find(p->where, name->fingerprint, i, epoch, &at) ||
            (at.length == 0 && (more || at.holder == LDR_PEER_UNKNOWN))) {
            return true;
        }
    }
    return false;
}

void ldr_query_unref(ldr_query_t *ask)
{
    if (--ask->refs == 0) {
        ldr_free(ask->rows);
        ldr_free(ask);
    }
}

/* ---- handing out ---- */

/* The part of this member in an ask that is being handed out. NULL: no memory.
 */
static ldr_query_part_t *part_of(ldr_query_t *ask, ldr_query_part_t **parts,
                                 uint16_t number)
{
    if (parts[number] == NULL) {
        parts[number] =
            ldr_alloc(sizeof(ldr_query_part_t) + ask->count * sizeof(uint32_t));
        if (parts[number] != NULL) {
            parts[number]->ask = ask;
        }
    }
    return parts[number];
}

/* Nobody answers for these chunks now. */
static void note(ldr_peers_t *p, const ldr_query_t *ask,
                 const ldr_query_row_t *row, uint16_t holder, uint64_t now_ns)
{
    uint32_t epoch = p->host->store.spaces[ask->space].epoch;
    ldr_location_t at, none = {.holder = holder, .second = LDR_PEER_NONE};

    for (uint32_t i = 0; i < ask->shards; i++) {
        if (!ldr_where_find(p->where, row->fingerprint, i, epoch, &at) ||
            at.length == 0) {
            ldr_where_put(p->where, row->fingerprint, i, epoch,
                          now_ns + ABSENT_NS, &none);
        }
    }
}

/* One more member is asked for a row, unless it is asked already. how: 0, or
 * LDR_QUERY_... False: it was. */
static bool add_member(ldr_query_t *ask, ldr_query_part_t **parts,
                       ldr_peer_node_t *n, uint32_t at, uint32_t how)
{
    ldr_query_row_t *row = &ask->rows[at];

    for (unsigned i = 0; i < row->asked; i++) {
        if (row->members[i] == n->number) {
            return false;
        }
    }
    if (row->asked == LDR_QUERY_MEMBERS) {
        return false;
    }
    /* The first that is asked is whom it will be fetched from, most likely. */
    bool second = how == LDR_QUERY_HOME ? row->homes > 0 : row->asked > 0;
    ldr_query_part_t *part =
        ldr_peer_well(n) ? part_of(ask, parts, n->number) : NULL;
    row->homes += how == LDR_QUERY_HOME;
    if (part != NULL) {
        part->rows[part->count++] = at | how | (second ? LDR_QUERY_SECOND : 0);
    } else {
        n->n.unanswered++;
    }
    row->members[row->asked++] = n->number;
    return true;
}

/* Adds one row to the part of each member that is asked for it: the one that
 * the ask names, those of which this node itself knows that they should have
 * it, those of rank 1 and 2, and those that keep copies, which may be of a
 * higher rank where members have zones. */
static void hand_row(ldr_peers_t *p, ldr_query_t *ask, ldr_query_part_t **parts,
                     ldr_peer_node_t *first, uint32_t at, uint64_t now_ns)
{
    ldr_query_row_t *row = &ask->rows[at];
    uint32_t epoch = p->host->store.spaces[ask->space].epoch, mine;
    ldr_peer_node_t *nodes[LDR_HOMES_KNOWN];
    unsigned n;

    if (first != NULL) {
        add_member(ask, parts, first, at, 0);
    }
    n = ldr_home_find(p, row->fingerprint, epoch, NULL, nodes);
    for (unsigned k = 0; k < n; k++) {
        add_member(ask, parts, nodes[k], at, LDR_QUERY_HOME);
    }
    n = ldr_peers_owners(p, &row->key, false, RANKS, nodes, &mine);
    for (unsigned k = 0; k < n; k++) {
        add_member(ask, parts, nodes[k], at, 0);
    }
    unsigned copies = (unsigned)p->host->options.copies;
    n = copies > 1 ? ldr_peers_owners(p, &row->key, true, copies, nodes, &mine)
                   : 0;
    for (unsigned k = 0; k < n; k++) {
        add_member(ask, parts, nodes[k], at, 0);
    }
    /* With nobody asked it is this node's, and nobody else's. */
    note(p, ask, row, row->asked == 0 ? LDR_PEER_NONE : LDR_PEER_UNKNOWN,
         now_ns);
}

/* Gives the parts to the lanes of their members. */
static void hand_parts(ldr_peers_t *p, ldr_query_t *ask,
                       ldr_query_part_t **parts)
{
    for (unsigned i = 0; i < p->node_count; i++) {
        ldr_peer_node_t *n = p->nodes[i];

        if (parts[i] != NULL) {
            *n->asks_end = parts[i];
            n->asks_end = &parts[i]->next;
            ask->pending++;
            ask->refs++;
            n->n.asked++;
            ldr_lane_wake(n, false);
        }
    }
}

bool ldr_peer_ask(ldr_tier_t *t, ldr_query_t *ask)
{
    ldr_peers_t *p = (ldr_peers_t *)t;
    ldr_query_part_t **parts = ldr_alloc(LDR_PEERS_MAX * sizeof(*parts));
    uint64_t now_ns = ldr_peers_now(p);

    ldr_host_held(p->host);
    ask->match_ns = ldr_min64(
        ask->until_ns, now_ns + p->host->options.peer_match_ms * 1000000u);
    ldr_peer_node_t *first = hinted(p, ask);
    ask->homes = true;
    for (uint32_t i = 0; parts != NULL && i < ask->count; i++) {
        if (i + AHEAD < ask->count && p->view != NULL) {
            ldr_view_prefetch(p->view, ldr_run_hash(&ask->rows[i + AHEAD].key));
        }
        hand_row(p, ask, parts, first, i, now_ns);
    }
    if (ask->promised && parts != NULL && first != NULL &&
        parts[first->number] != NULL) {
        parts[first->number]->waits = true;
    } else {
        ask->until_ns = ask->match_ns;
    }
    if (parts != NULL) {
        hand_parts(p, ask, parts);
    }
    ldr_free(parts);
    ask->over = ask->pending == 0;
    return !ask->over;
}

/* ---- asking ---- */

/* A part has come to its end. With the lock. */
static void part_done(ldr_peers_t *p, ldr_query_part_t *part)
{
    ldr_query_t *ask = part->ask;
    /* The member of a hand-off has all: what others have is of no interest. */
    bool enough = part->waits && part->whole == ask->count;

    ldr_host_held(p->host);
    if ((--ask->pending == 0 || enough) && !ask->over) {
        ask->over = true;
        if (ask->ready != NULL) {
            ask->ready(ask);
        }
        p->threads->wake(p->threads->arg, &p->host->changed, true);
    }
    ldr_query_unref(ask);
    ldr_free(part);
}

void ldr_peer_unask_part(ldr_peer_node_t *n, ldr_query_part_t *part)
{
    n->n.unanswered++;
    part_done(n->tier, part);
}

/* One of the others in a reply, from 1 on. NULL: 0, or none that is known here.
 * With the lock. */
static const ldr_peer_node_t *node_by_place(const ldr_peers_t *p,
                                            const ldr_peer_head_t *reply,
                                            uint32_t place)
{
    uint64_t id;

    if (!ldr_get_peer_other(reply, place, &id)) {
        return NULL;
    }
    for (unsigned i = 0; i < p->node_count; i++) {
        if (p->nodes[i]->id == id && ldr_peer_well(p->nodes[i])) {
            return p->nodes[i];
        }
    }
    return NULL;
}

/* Of a part that waits: what of the chunk was there, and what was not yet. */
static void note_promised(ldr_query_part_t *part, const ldr_query_row_t *row,
                          const uint8_t *lengths)
{
    bool promised = false, whole = true;

    for (uint32_t i = 0; i < part->ask->shards; i++) {
        uint32_t length =
            ldr_get_peer_found(lengths + LDR_PEER_FOUND_BYTES * (size_t)i)
                .length;

        promised |= length == LDR_FOUND_PROMISED;
        whole &= length > 0 && length <= LARDER_VALUE_MAX;
    }
    part->whole += whole;
    part->promised += promised;
    if (promised) {
        part->awaited = row->key;
    }
}

/* The member says that another one should have it: that is asked next, and at
 * once. *more_p: parts of members that are; NULL: there are none yet. With the
 * lock. */
static void ask_home(ldr_peers_t *p, ldr_query_t *ask, uint32_t at,
                     const ldr_peer_head_t *reply, uint32_t place,
                     ldr_query_part_t ***more_p)
{
    uint64_t id;

    if (ask->over || !ldr_get_peer_other(reply, place, &id)) {
        return;
    }
    if (*more_p == NULL) {
        *more_p = ldr_alloc(LDR_PEERS_MAX * sizeof(**more_p));
    }
    for (unsigned i = 0; i < p->node_count && *more_p != NULL; i++) {
        if (p->nodes[i]->id == id && p->nodes[i]->in_view) {
            add_member(ask, *more_p, p->nodes[i], at, LDR_QUERY_HOME);
        }
    }
}

/* What a member has of one chunk: lengths of its shards. With the lock. */
static void take_answer(ldr_peer_node_t *n, ldr_query_part_t *part,
                        uint32_t which, uint32_t epoch, uint64_t now_ns,
                        const ldr_peer_head_t *reply, const uint8_t *lengths,
                        ldr_query_part_t ***more_p)
{
    ldr_peers_t *p = n->tier;
    ldr_query_t *ask = part->ask;
    ldr_query_row_t *row = &ask->rows[which & LDR_QUERY_ROW];
    bool none = true;
    ldr_location_t at;

    if (part->waits) { /* it may be asked again: what it lacks is not absent */
        note_promised(part, row, lengths);
    } else {
        row->answered++;
    }
    for (uint32_t i = 0; i < ask->shards; i++) {
        ldr_peer_found_t found =
            ldr_get_peer_found(lengths + LDR_PEER_FOUND_BYTES * (size_t)i);
        uint32_t length = found.length;
        const ldr_peer_node_t *other = node_by_place(p, reply, found.other);
        bool known =
            ldr_where_find(p->where, row->fingerprint, i, epoch, &at) &&
            at.length > 0;

        none = none && length == 0;
        if (length == LDR_FOUND_AT && ask->homes) {
            ask_home(p, ask, which & LDR_QUERY_ROW, reply, found.other, more_p);
        }
        if (length == 0 || length > LARDER_VALUE_MAX) {
            continue;
        }
        if (!known || at.holder == n->number) {
            at = other != NULL
                     ? (ldr_location_t){length, other->number, n->number}
                     : (ldr_location_t){length, n->number, LDR_PEER_NONE};
        } else if (at.length == length && n == hinted(p, ask)) {
            at.second = at.holder;
            at.holder = n->number;
        } else if (at.length == length) {
            at.second = n->number;
        }
        ldr_where_put(p->where, row->fingerprint, i, epoch, now_ns + KNOWN_NS,
                      &at);
    }
    if (none && (which & LDR_QUERY_HOME) != 0) {
        ldr_home_say_gone(n, ask->space, &row->key, row->group);
    }
    if (row->answered == row->asked) { /* all have, so it is known */
        note(p, ask, row, LDR_PEER_NONE, now_ns);
    }
}

static ldr_query_row_t *row_at(const ldr_query_part_t *part, uint32_t at)
{
    return &part->ask->rows[part->rows[at] & LDR_QUERY_ROW];
}

/* Up to so many rows in one call. Gives how many were answered. */
static uint32_t ask_some(ldr_peer_node_t *n, ldr_query_part_t *part,
                         uint32_t at, uint32_t count, ldr_talk_t *v,
                         larder_status_t *st_p)
{
    ldr_peers_t *p = n->tier;
    ldr_query_t *ask = part->ask;
    uint8_t *body = ldr_body(v->call.buffer);
    ldr_peer_head_t head = {
        .space = v->space, .count = count, .shards = ask->shards};

    ldr_host_lock(p->host);
    head.epoch = p->host->store.spaces[ask->space].epoch;
    uint32_t homes = ask->homes && n->homes ? LDR_ASK_HOMES : 0;
    ldr_host_unlock(p->host);
    size_t bytes = ldr_put_peer_head(body, &head);
    for (uint32_t i = 0; i < count; i++) {
        const ldr_query_row_t *row = row_at(part, at + i);
        ldr_peer_name_t name = {.key = row->key, .group = row->group};

        if (ask->lease) {
            name.room = LDR_ASK_OTHERS | (part->rows[at + i] & LDR_QUERY_SECOND
                                              ? LDR_LEASE_SECOND_MS
                                              : LDR_LEASE_MS);
        }
        name.room |= part->waits ? LDR_ASK_PROMISED : 0;
        name.room |= part->rows[at + i] & LDR_QUERY_HOME ? 0 : homes;
        ldr_put_peer_name(body + bytes, &name);
        bytes += LDR_PEER_NAME_BYTES;
    }
    *st_p = ldr_talk_call(v, LDR_OP_PEER_ASK, bytes);
    ldr_peer_head_t reply;
    if (*st_p == LARDER_OK &&
        (!ldr_get_peer_head(body, v->call.reply.body, 0, &reply) ||
         reply.count != count || reply.shards != ask->shards)) {
        *st_p = ldr_fail(LARDER_E_OFFLINE, "%s: a malformed answer", n->name);
    }
    ldr_query_part_t **more = NULL;
    ldr_host_lock(p->host);
    if (*st_p == LARDER_OK &&
        head.epoch == p->host->store.spaces[ask->space].epoch) {
        uint64_t now_ns = ldr_peers_now(p);

        for (uint32_t i = 0; i < count; i++) {
            take_answer(n, part, part->rows[at + i], head.epoch, now_ns, &reply,
                        reply.rows +
                            (size_t)i * LDR_PEER_FOUND_BYTES * ask->shards,
                        &more);
        }
        if (more != NULL) {
            hand_parts(p, ask, more);
        }
    } else if (*st_p == LARDER_E_STALE) {
        n->tried = n->informed = 0; /* they meet again */
    }
    ldr_host_unlock(p->host);
    ldr_free(more);
    return *st_p == LARDER_OK ? count : 0;
}

void ldr_peer_ask_part(ldr_peer_node_t *n, ldr_query_part_t *part)
{
    ldr_peers_t *p = n->tier;
    ldr_query_t *ask = part->ask;
    ldr_stop_t stop = {&p->stop, ask->match_ns};
    uint32_t most = ldr_peer_ask_rows(ask->shards), at = 0;
    ldr_talk_t v = {0};
    larder_status_t st = LARDER_E_DEADLINE;

    ldr_host_lock(p->host);
    if (part->waits) {
        stop.deadline_ns = ldr_min64(
            ask->until_ns,
            ldr_peers_now(p) + p->host->options.peer_timeout_ms * 1000000u);
    }
    part->whole = part->promised = 0;
    uint64_t closed = n->closed;
    bool wanted = !ask->over && ldr_peers_now(p) < stop.deadline_ns &&
                  LDR_HOLDS(ldr_peers_know(p, ask->space));
    const ldr_peer_space_t *space = p->spaces[ask->space];
    ldr_host_unlock(p->host);
    if (wanted) {
        st = ldr_peer_talk_begin(n, &v, space, &stop);
    }
    if (st == LARDER_OK) {
        while (st == LARDER_OK && at < part->count) {
            uint32_t count = (uint32_t)ldr_min64(part->count - at, most);

            at += ask_some(n, part, at, count, &v, &st);
        }
        ldr_peer_talk_end(&v, st);
    }
    ldr_host_lock(p->host);
    n->n.answered += st == LARDER_OK;
    n->n.unanswered += st != LARDER_OK;
    if (st == LARDER_OK && part->promised > 0 && !p->stop) {
        ldr_peer_await(n, part, closed);
    } else {
        part_done(p, part);
    }
    ldr_host_unlock(p->host);
}

/* What waits to be fetched, of the first one's space. NULL: no memory. */
static ldr_query_part_t *renewal(ldr_peer_node_t *n)
{
    ldr_peers_t *p = n->tier;
    const ldr_store_t *store = &p->host->store;
    ldr_query_t *ask = ldr_alloc(sizeof(*ask));
    ldr_query_part_t *part =
        ldr_alloc(sizeof(*part) + RENEW_MAX * sizeof(uint32_t));
    ldr_query_row_t *rows = ldr_alloc(RENEW_MAX * sizeof(*rows));
    uint32_t last = LDR_NIL;

    if (ask == NULL || part == NULL || rows == NULL) {
        ldr_free(ask);
        ldr_free(part);
        ldr_free(rows);
        return NULL;
    }
    *ask = (ldr_query_t){
        .space = store->chunks[store->shards[n->fetch_head].chunk].space,
        .match_ns =
            ldr_peers_now(p) + p->host->options.peer_timeout_ms * 1000000u,
        .rows = rows,
        .pending = 1,
        .refs = 1,
        .lease = true,
    };
    part->ask = ask;
    for (uint32_t i = n->fetch_head; i != LDR_NIL && ask->count < RENEW_MAX;
         i = store->shards[i].fetch_next) {
        uint32_t chunk = store->shards[i].chunk;
        const ldr_chunk_t *c = &store->chunks[chunk];

        if (c->space != ask->space) {
            break;
        }
        ask->shards =
            (uint32_t)ldr_max64(ask->shards, store->shards[i].number + 1u);
        if (chunk != last) {
            ask->rows[ask->count] = (ldr_query_row_t){
                .key = c->key,
                .fingerprint =
                    ldr_store_name(store, c->space, c->group, &c->key)
                        .fingerprint,
                .group = c->group,
                .asked = 2, /* what one lacks is not absent */
            };
            part->rows[part->count++] = ask->count++;
        }
        last = chunk;
    }
    return part;
}

void ldr_peer_renew(ldr_peer_node_t *n)
{
    ldr_peers_t *p = n->tier;
    ldr_query_part_t *part = renewal(n);

    ldr_host_held(p->host);
    n->renew_ns = ldr_peers_now(p) + LDR_LEASE_MS / 2 * UINT64_C(1000000);
    if (part != NULL) {
        ldr_host_unlock(p->host);
        ldr_peer_ask_part(n, part);
        ldr_host_lock(p->host);
    }
}
