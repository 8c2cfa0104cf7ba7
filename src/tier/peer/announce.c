/*
 * Whose disk keeps what is saved here, and announcing that to the members that
 * own it: homes.h has the rules and the invariants. All functions are called
 * with the node's lock, except the thread ldr_peer_announcer(), which announces
 * everything again where homes.h says so. What is to be announced to a member
 * waits in the member's ring `here`. One of the member's lanes at a time sends
 * it, with the lock given up meanwhile (here_busy).
 */
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "net/pool.h"
#include "tier/peer/homes.h"

#define SLICE 64u            /* entries looked at in one go */
#define LOOKED 64u           /* of those, keys that are read from a disk */
#define PACE_NS 4000000u     /* between two goes that read */
#define REST_NS 1000000u     /* after 16 that did not */
#define FULL_NS 20000000u    /* while a member takes what it is told */
#define LOOK_NS 500000000u   /* for members, views and disks */
#define FAILED_NS 200000000u /* before a member is told again */
#define FIRST_ROWS 64u

typedef struct ldr_here_row {
    larder_key_t key;
    uint64_t member; /* whose home it is no more; 0: this one has it */
    uint32_t space, epoch;
    uint64_t group; /* no padding: rows are compared */
} row_t;

/* ---- whose disk ---- */

static bool weighs(const ldr_peers_t *p)
{
    const ldr_view_t *v = p->view;

    return v == NULL || v->self == LDR_NOBODY || v->members[v->self].weight > 0;
}

static bool disk_takes(const ldr_peers_t *p, uint32_t space)
{
    for (unsigned i = 0; i < p->host->tier_count; i++) {
        ldr_tier_t *t = p->host->order[i];

        if (t->ops->keeps && t->ops->accepts(t, space)) {
            return true;
        }
    }
    return false;
}

bool ldr_home_is_here(ldr_peers_t *p, uint32_t shard)
{
    const ldr_store_t *store = &p->host->store;
    const ldr_shard_t *sh = &store->shards[shard];
    const ldr_chunk_t *c = &store->chunks[sh->chunk];
    uint64_t home = p->host->options.home;
    ldr_peer_node_t *owner;
    uint32_t mine;

    ldr_host_held(p->host);
    if (home == LDR_HOME_OWNER || (home == LDR_HOME_AUTO && !weighs(p)) ||
        p->leaving || sh->tier == LARDER_TIER_PEER ||
        !disk_takes(p, c->space)) {
        return false;
    }
    unsigned n = ldr_peers_owners(p, &c->key, false, 1, &owner, &mine);
    return n == 0 || owner->informed == 0 || owner->homes;
}

/* ---- what is to be told ---- */

static row_t *row_at(const ldr_peer_node_t *n, uint32_t i)
{
    return &n->here[(n->here_first + i) & (n->here_room - 1)];
}

/* Room for one more row. False: there is none. */
static bool make_room(ldr_peer_node_t *n)
{
    uint32_t room = n->here_room > 0 ? 2 * n->here_room : FIRST_ROWS;

    if (n->here_rows < n->here_room) {
        return true;
    }
    row_t *more = room <= LDR_HERE_MAX && !n->tier->stop
                      ? ldr_alloc(room * sizeof(*more))
                      : NULL;
    if (more == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < n->here_rows; i++) {
        more[i] = *row_at(n, i);
    }
    ldr_free(n->here);
    n->here = more;
    n->here_room = room;
    n->here_first = 0;
    return true;
}

static void push(ldr_peer_node_t *n, const row_t *row)
{
    if (n->here_rows > 0 &&
        memcmp(row_at(n, n->here_rows - 1), row, sizeof(*row)) == 0) {
        return; /* another shard of the same chunk */
    }
    if (!LDR_HOLDS(ldr_peers_know(n->tier, row->space))) {
        return;
    }
    if (!make_room(n)) {
        n->here_all |= row->member == 0;
        return;
    }
    *row_at(n, n->here_rows++) = *row;
    ldr_lane_wake(n, true);
}

static void pop(ldr_peer_node_t *n, uint32_t count)
{
    n->here_first = (n->here_first + count) & (n->here_room - 1);
    n->here_rows -= count;
}

/* Whether another shard of the chunk made its home known. */
static bool is_announced(const ldr_store_t *store, uint32_t chunk)
{
    uint32_t i = store->chunks[chunk].shards;

    while (i != LDR_NIL && !store->shards[i].announced) {
        i = store->shards[i].next;
    }
    return i != LDR_NIL;
}

void ldr_home_announce(ldr_peers_t *p, uint32_t shard)
{
    ldr_store_t *store = &p->host->store;
    ldr_shard_t *sh = &store->shards[shard];
    const ldr_chunk_t *c = &store->chunks[sh->chunk];
    ldr_peer_node_t *nodes[LDR_HOME_RANKS];
    bool known = is_announced(store, sh->chunk);
    uint32_t mine;

    ldr_host_held(p->host);
    sh->announced = 1;
    unsigned count =
        ldr_peers_owners(p, &c->key, false, LDR_HOME_RANKS, nodes, &mine);
    for (unsigned i = 0; i < count && mine != 0 && !known; i++) {
        row_t row = {.key = c->key,
                     .space = c->space,
                     .epoch = c->epoch,
                     .group = c->group};

        if (nodes[i]->informed == 0 || nodes[i]->homes) {
            push(nodes[i], &row);
        }
    }
}

void ldr_home_say_gone(ldr_peer_node_t *n, uint32_t space,
                       const larder_key_t *key, uint32_t group)
{
    ldr_peers_t *p = n->tier;
    const ldr_store_t *store = &p->host->store;
    uint32_t epoch = store->spaces[space].epoch, mine;
    ldr_peer_node_t *nodes[LDR_HOME_RANKS];

    ldr_host_held(p->host);
    n->n.home_wrong++;
    ldr_home_gone(n, ldr_store_name(store, space, group, key).fingerprint,
                  epoch);
    unsigned count =
        ldr_peers_owners(p, key, false, LDR_HOME_RANKS, nodes, &mine);
    for (unsigned i = 0; i < count; i++) {
        row_t row = {.key = *key,
                     .space = space,
                     .epoch = epoch,
                     .group = group,
                     .member = n->id};

        if (nodes[i] != n && nodes[i]->homes) {
            push(nodes[i], &row);
        }
    }
}

/* ---- telling ---- */

uint64_t ldr_here_ns(const ldr_peer_node_t *n)
{
    return n->here_rows == 0 || n->here_busy || n->informed == 0 ||
                   !ldr_peer_well(n)
               ? UINT64_MAX
               : n->here_again_ns;
}

bool ldr_here_said(const ldr_peers_t *p)
{
    for (unsigned i = 0; i < p->node_count; i++) {
        const ldr_peer_node_t *n = p->nodes[i];

        if (n->here_rows > 0 && ldr_peer_well(n)) {
            return false;
        }
    }
    return true;
}

/* The member is of an older build. What it owns is brought to it after all. */
static void give_bytes(ldr_peer_node_t *n)
{
    ldr_peers_t *p = n->tier;
    ldr_store_t *store = &p->host->store;

    for (uint32_t i = 0; i < n->here_rows; i++) {
        const row_t *r = row_at(n, i);
        ldr_name_t name =
            ldr_store_name(store, r->space, (uint32_t)r->group, &r->key);
        uint32_t entry = ldr_index_find(&store->index, name.fingerprint,
                                        r->space, (uint32_t)r->group, LDR_NIL);
        uint32_t chunk = entry != LDR_NIL
                             ? ldr_index_at(&store->index, entry)->resident
                             : LDR_NIL;

        for (uint32_t k = chunk != LDR_NIL ? store->chunks[chunk].shards
                                           : LDR_NIL;
             k != LDR_NIL; k = store->shards[k].next) {
            if (store->shards[k].state == LDR_SHARD_READY &&
                store->shards[k].announced) {
                ldr_behind_push(store, LDR_PEER_QUEUE, k);
            }
        }
    }
    n->here_rows = 0;
    p->threads->wake(p->threads->arg, &p->work, true);
}

/* Composes the next rows of one space and epoch. Gives how many. */
static uint32_t compose(ldr_peer_node_t *n, uint8_t *rows)
{
    const ldr_peers_t *p = n->tier;
    const row_t *first = row_at(n, 0);
    uint32_t count = 0;

    while (count < n->here_rows && count < LDR_PEER_HOMES_MAX) {
        const row_t *r = row_at(n, count);
        bool gone = r->member != 0;

        if (r->space != first->space || r->epoch != first->epoch) {
            break;
        }
        ldr_peer_home_t row = {
            .key = r->key,
            .group = (uint16_t)r->group,
            .gone = gone,
            .member = gone ? r->member : p->self.id,
        };
        ldr_put_peer_home(rows + (size_t)count * LDR_PEER_HOME_BYTES, &row);
        count++;
    }
    return count;
}

static larder_status_t call(ldr_peer_node_t *n, uint32_t space, uint32_t epoch,
                            const uint8_t *rows, uint32_t count)
{
    ldr_peers_t *p = n->tier;
    size_t bytes = (size_t)count * LDR_PEER_HOME_BYTES;
    ldr_talk_t v = {0};
    ldr_stop_t stop = {&p->stop,
                       ldr_peers_now(p) +
                           p->host->options.peer_timeout_ms * 1000000u};
    larder_status_t st = ldr_peer_talk_begin(n, &v, p->spaces[space], &stop);

    if (st == LARDER_OK) {
        uint8_t *body = ldr_body(v.call.buffer);
        ldr_peer_head_t head = {
            .space = v.space, .epoch = epoch, .count = count, .shards = 1};
        size_t at = ldr_put_peer_head(body, &head);

        memcpy(body + at, rows, bytes);
        st = ldr_talk_call(&v, LDR_OP_PEER_HOME, at + bytes);
        ldr_peer_talk_end(&v, st);
    }
    return st;
}

bool ldr_here_say(ldr_peer_node_t *n)
{
    ldr_peers_t *p = n->tier;
    ldr_host_t *host = p->host;

    ldr_host_held(host);
    while (n->here_rows > 0 && !n->here_busy &&
           host->store.spaces[row_at(n, 0)->space].epoch !=
               row_at(n, 0)->epoch) {
        pop(n, 1); /* it was reset */
    }
    if (ldr_here_ns(n) > ldr_peers_now(p)) {
        return false;
    }
    if (!n->homes) {
        give_bytes(n);
        return true;
    }
    uint8_t *rows = ldr_alloc(LDR_PEER_HOMES_MAX * LDR_PEER_HOME_BYTES);
    if (rows == NULL) {
        n->here_again_ns = ldr_peers_now(p) + FAILED_NS;
        return false;
    }
    uint32_t count = compose(n, rows);
    uint32_t space = row_at(n, 0)->space, epoch = row_at(n, 0)->epoch;
    n->here_busy = true;
    ldr_host_unlock(host);
    larder_status_t st = call(n, space, epoch, rows, count);
    ldr_free(rows);
    ldr_host_lock(host);
    n->here_busy = false;
    bool again = st == LARDER_E_STALE || st == LARDER_E_OFFLINE ||
                 st == LARDER_E_DEADLINE || st == LARDER_E_CANCELED;
    if (st == LARDER_E_STALE) {
        n->tried = n->informed = 0; /* they meet again */
    }
    if (again) {
        n->here_again_ns = ldr_peers_now(p) + FAILED_NS;
    } else {
        pop(n, count); /* nobody else has taken rows away */
        n->n.homes_announced += st == LARDER_OK ? count : 0;
    }
    p->threads->wake(p->threads->arg, &p->announce_work, true);
    p->threads->wake(p->threads->arg, &host->changed, true);
    return true;
}

void ldr_here_end(ldr_peer_node_t *n)
{
    ldr_free(n->here);
    n->here = NULL;
    n->here_rows = n->here_room = 0;
}

void ldr_home_hear(ldr_peer_node_t *n, uint32_t space,
                   const ldr_peer_home_t *row)
{
    ldr_peers_t *p = n->tier;
    const ldr_store_t *store = &p->host->store;
    uint32_t epoch = store->spaces[space].epoch;
    uint64_t print =
        ldr_store_name(store, space, row->group, &row->key).fingerprint;

    ldr_host_held(p->host);
    if (!row->gone && row->member == n->id) {
        n->n.homes_heard++;
        ldr_home_put(n, print, epoch);
    }
    for (unsigned i = 0; i < p->node_count && row->gone; i++) {
        if (p->nodes[i]->id == row->member) {
            ldr_home_gone(p->nodes[i], print, epoch);
        }
    }
}

/* ---- announcing again ---- */

/* One walk through the index. */
typedef struct walk {
    uint32_t at;
    const ldr_view_t *view; /* in which it began */
    struct {
        ldr_looked_t row;
        uint32_t set;
    } looked[LOOKED]; /* whose keys have to be read */
    uint32_t count;
} walk_t;

/* The member can be told now. */
static bool hears(const ldr_peer_node_t *n)
{
    return ldr_peer_well(n) && n->informed > 0 && n->homes;
}

/* Whether the member is among the first so many owners of the set. */
static bool is_of(const ldr_view_t *v, uint32_t set, uint32_t ranks,
                  uint64_t id)
{
    uint32_t places[LDR_HOME_RANKS];
    uint32_t count = ldr_view_set_owners(v, set, ranks, places);

    for (uint32_t i = 0; i < count; i++) {
        if (v->members[places[i]].id == id) {
            return true;
        }
    }
    return false;
}

/* The members that are to be told now of what is in this set: those that are
 * told everything, and those that were not told by the last view. */
static unsigned whom(ldr_peers_t *p, uint32_t set, ldr_peer_node_t **nodes)
{
    const ldr_view_t *v = p->view, *before = p->announced;
    uint32_t places[LDR_HOME_RANKS];
    uint32_t count = ldr_view_set_owners(v, set, LDR_HOME_RANKS, places);
    unsigned n = 0;

    if (count > 0 && places[0] == v->self) {
        return 0; /* readers ask this node */
    }
    for (uint32_t i = 0; i < count; i++) {
        uint16_t at = p->by_place[places[i]];
        ldr_peer_node_t *node = at != LDR_PEER_NONE ? p->nodes[at] : NULL;

        if (node != NULL && (node->here_walks || before == NULL ||
                             !is_of(before, set, LDR_HOME_RANKS, node->id) ||
                             is_of(before, set, 1, p->self.id))) {
            nodes[n++] = node;
        }
    }
    return n;
}

static void tell(ldr_peers_t *p, uint32_t set, uint32_t space, uint32_t epoch,
                 uint32_t group, const larder_key_t *key)
{
    ldr_peer_node_t *nodes[LDR_HOME_RANKS];
    unsigned count = whom(p, set, nodes);
    row_t row = {.key = *key, .space = space, .epoch = epoch, .group = group};

    for (unsigned i = 0; i < count; i++) {
        if (hears(nodes[i])) {
            push(nodes[i], &row);
        } else {
            nodes[i]->here_all = true; /* when it is met again */
        }
    }
}

/* One entry. With the lock. */
static void look_at(ldr_peers_t *p, walk_t *w, uint32_t entry)
{
    const ldr_store_t *store = &p->host->store;
    const ldr_entry_t *e = ldr_index_at(&store->index, entry);
    ldr_peer_node_t *nodes[LDR_HOME_RANKS];

    if (e->shards == 0 || e->epoch != store->spaces[e->space].epoch ||
        p->spaces[e->space] == NULL || whom(p, e->set, nodes) == 0) {
        return;
    }
    bool disk = ldr_index_has_loc(&store->index, entry);
    if (e->resident != LDR_NIL && (disk || is_announced(store, e->resident))) {
        tell(p, e->set, e->space, e->epoch, e->group,
             &store->chunks[e->resident].key);
    } else if (disk) {
        uint32_t number = 0;

        while (ldr_index_loc(&store->index, entry, number) == 0) {
            number++;
        }
        w->looked[w->count].set = e->set;
        w->looked[w->count++].row =
            (ldr_looked_t){.entry = entry,
                           .number = number,
                           .space = e->space,
                           .fingerprint = e->fingerprint};
    }
}

/* Reads the keys of what is only on a disk. Without the lock. */
static void read_keys(ldr_peers_t *p, walk_t *w)
{
    ldr_stop_t stop = {&p->stop, UINT64_MAX};
    ldr_looked_t rows[LOOKED];
    ldr_tier_t *t = NULL;

    for (unsigned i = 0; i < p->host->tier_count && t == NULL; i++) {
        t = p->host->order[i]->ops->read_records != NULL ? p->host->order[i]
                                                         : NULL;
    }
    for (uint32_t i = 0; i < w->count; i++) {
        rows[i] = w->looked[i].row;
    }
    if (t != NULL && w->count > 0) {
        t->ops->read_records(t, rows, w->count, &stop);
    }
    ldr_host_lock(p->host);
    for (uint32_t i = 0; i < w->count && t != NULL; i++) {
        const ldr_record_t *r = &rows[i].record;

        if (rows[i].found) {
            tell(p, w->looked[i].set, rows[i].space,
                 p->host->store.spaces[rows[i].space].epoch, r->group, &r->key);
        }
    }
    ldr_host_unlock(p->host);
}

/* Whether a member that is being told still has much to take. */
static bool must_wait(const ldr_peers_t *p)
{
    for (unsigned i = 0; i < p->node_count; i++) {
        if (p->nodes[i]->here_rows > LDR_HERE_MAX / 2 && hears(p->nodes[i])) {
            return true;
        }
    }
    return false;
}

/* Whether there is reason to walk; then it begins. With the lock. */
static bool begin(ldr_peers_t *p, walk_t *w, bool disk)
{
    bool any =
        p->announced != NULL && p->view != NULL &&
        memcmp(p->announced->hash, p->view->hash, sizeof(p->view->hash)) != 0;

    for (unsigned i = 0; i < p->node_count; i++) {
        ldr_peer_node_t *n = p->nodes[i];

        n->here_all |= disk;
        n->here_walks = n->here_all && hears(n);
        n->here_all = n->here_all && !n->here_walks;
        any = any || n->here_walks;
    }
    if (any && p->view != NULL) {
        *w = (walk_t){.view = ldr_view_keep(p->view)};
        return true;
    }
    return false;
}

static void end(ldr_peers_t *p, walk_t *w)
{
    if (p->announced != NULL) {
        ldr_view_give(p->announced);
    }
    p->announced = w->view;
    w->view = NULL;
    p->walks++;
}

/* Some entries. Gives when it goes on. With the lock, which it drops. */
static uint64_t walk_on(ldr_peers_t *p, walk_t *w)
{
    const ldr_index_t *index = &p->host->store.index;
    uint32_t stop_at = w->at + SLICE;

    w->count = 0;
    for (; w->at < stop_at && w->at < index->entry_top && w->count < LOOKED;
         w->at++) {
        look_at(p, w, w->at);
    }
    if (w->count > 0) {
        ldr_host_unlock(p->host);
        read_keys(p, w);
        ldr_host_lock(p->host);
    }
    if (w->at >= index->entry_top) {
        end(p, w);
    }
    return w->count > 0                   ? ldr_peers_now(p) + PACE_NS
           : w->at % (16 * SLICE) < SLICE ? ldr_peers_now(p) + REST_NS
                                          : 0;
}

void *ldr_peer_announcer(void *peers)
{
    ldr_peers_t *p = peers;
    walk_t *w = ldr_alloc(sizeof(*w));
    bool had_disk = false;

    ldr_host_lock(p->host);
    while (!p->stop && w != NULL) {
        uint64_t until_ns = ldr_peers_now(p) + LOOK_NS;

        ldr_peers_look(p);
        if (w->view == NULL) {
            bool disk = disk_takes(p, 0);

            if (begin(p, w, disk && !had_disk)) {
                until_ns = 0;
            }
            had_disk = disk;
        } else if (must_wait(p)) {
            until_ns = ldr_peers_now(p) + FULL_NS;
        } else {
            until_ns = walk_on(p, w);
        }
        if (until_ns > 0) {
            p->threads->wait(p->threads->arg, &p->announce_work, &p->host->lock,
                             until_ns);
        } else { /* others have their turn */
            ldr_host_unlock(p->host);
            ldr_host_lock(p->host);
        }
    }
    if (w != NULL && w->view != NULL) {
        ldr_view_give(w->view);
    }
    ldr_host_unlock(p->host);
    ldr_free(w);
    return NULL;
}
