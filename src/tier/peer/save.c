/*
 * Write-behind to the members that keep chunks. One thread hands out what is
 * queued, in batches of one space, to the lanes of members that are well; a
 * lane asks what the member lacks and sends that. The queue holds nothing
 * (store/behind.h); batches do, and each member has but a few. What was taken
 * over from another daemon waits until its space is opened here: before that
 * nobody could tell a member which space it is of.
 */
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "net/pool.h"
#include "tier/peer/homes.h"

#define BATCHES_MAX 3u     /* of one member */
#define SCAN 256u          /* shards looked at in one go */
#define OPEN 16u           /* batches that are being filled */
#define LOOK_NS 200000000u /* until members that were not well may be */
#define SEND_IOV_MAX 4096u

/* ---- where to ---- */

typedef enum where {
    NOBODY, /* lacks it */
    NONE,   /* of those who should keep it is well */
    SOME
} where_t;

/* The zone of the member whose disk has it and that is no owner of it; "": not
 * known. */
static const char *zone_of_home(ldr_peers_t *p, uint32_t shard, bool here)
{
    const ldr_store_t *store = &p->host->store;
    const ldr_chunk_t *c = &store->chunks[store->shards[shard].chunk];
    ldr_name_t name = ldr_store_name(store, c->space, c->group, &c->key);
    ldr_peer_node_t *nodes[LDR_HOMES_KNOWN];
    uint32_t place = here ? p->view->self : LDR_NOBODY;

    if (!here &&
        ldr_home_find(p, name.fingerprint, c->epoch, NULL, nodes) > 0) {
        place = ldr_view_find(p->view, nodes[0]->id);
    }
    return place != LDR_NOBODY ? p->view->members[place].zone : "";
}

/* Whether the disk of this node keeps it besides the owners that do: it is none
 * of them. here: its disk keeps it. */
static bool is_beside(ldr_peers_t *p, uint32_t shard, bool here)
{
    const ldr_store_t *store = &p->host->store;
    ldr_peer_node_t *nodes[LDR_RANKS_MAX];
    uint32_t mine = LDR_NOBODY;

    if (here) {
        ldr_peers_owners(p, &store->chunks[store->shards[shard].chunk].key,
                         true, (unsigned)p->host->options.copies, nodes, &mine);
    }
    return here && mine == LDR_NOBODY;
}

/* The members that keep a chunk beside the disk that it was saved to, as places
 * in the view: gives how many. With the writer's disk as one of the copies one
 * owner is left out: the one in the writer's zone, or else the last. here: this
 * node is that writer. */
static uint32_t keepers(ldr_peers_t *p, uint32_t shard, bool here,
                        uint32_t places[LDR_RANKS_MAX])
{
    const ldr_store_t *store = &p->host->store;
    const ldr_shard_t *sh = &store->shards[shard];
    uint32_t n =
        ldr_view_copies(p->view, ldr_run_hash(&store->chunks[sh->chunk].key),
                        (uint32_t)p->host->options.copies, places);

    here = is_beside(p, shard, here);
    if (n == 0 || !(here || sh->kept)) {
        return n;
    }
    const char *zone = zone_of_home(p, shard, here);
    uint32_t out = n - 1;
    for (uint32_t i = 0; i < n && zone[0] != '\0'; i++) {
        out = strcmp(p->view->members[places[i]].zone, zone) == 0 ? i : out;
    }
    memmove(places + out, places + out + 1, (n - out - 1) * sizeof(*places));
    return n - 1;
}

static ldr_peer_node_t *node_at(const ldr_peers_t *p, uint32_t place)
{
    uint16_t at = p->by_place[place];

    return at != LDR_PEER_NONE ? p->nodes[at] : NULL;
}

/* This node is one of n keepers, the one at this place: which it gives the
 * chunk to. What a member brought goes on to the next. What was saved here all
 * others need: the last gives it to the first, who passes it on, and one in the
 * middle gives it to the first and then (given) to the next. n: nobody. */
static uint32_t keeper_after(const ldr_shard_t *sh, uint32_t at, uint32_t n)
{
    bool own = sh->tier != LARDER_TIER_PEER;

    return own && at > 0 && (at + 1 == n || !sh->given) ? 0 : at + 1;
}

/* Whether one more is to be given what another one has just taken. */
static bool has_second(ldr_peers_t *p, uint32_t shard)
{
    const ldr_shard_t *sh = &p->host->store.shards[shard];
    uint32_t places[LDR_RANKS_MAX], at = 0;

    if (p->view == NULL || sh->given || p->host->options.copies < 3) {
        return false;
    }
    uint32_t n = keepers(p, shard, ldr_home_is_here(p, shard), places);
    while (at < n && places[at] != p->view->self) {
        at++;
    }
    return at + 1 < n && keeper_after(sh, at, n) == 0;
}

/* Who is given the chunk next. here: this node's disk keeps it. With the lock.
 */
static where_t target(ldr_peers_t *p, uint32_t shard, bool here,
                      ldr_peer_node_t **node_p)
{
    const ldr_store_t *store = &p->host->store;
    const larder_key_t *key = &store->chunks[store->shards[shard].chunk].key;
    ldr_peer_node_t *nodes[LDR_RANKS_MAX];
    uint32_t places[LDR_RANKS_MAX], mine;

    ldr_peers_look(p);
    if (p->view == NULL) {
        return NOBODY;
    }
    uint32_t n = keepers(p, shard, here, places);
    for (uint32_t i = 0; i < n; i++) {
        if (places[i] == p->view->self) {
            uint32_t next = keeper_after(&store->shards[shard], i, n);

            *node_p = next < n ? node_at(p, places[next]) : NULL;
            return *node_p == NULL          ? NOBODY
                   : ldr_peer_well(*node_p) ? SOME
                                            : NONE;
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        *node_p = node_at(p, places[i]);
        if (*node_p != NULL && ldr_peer_well(*node_p)) {
            return SOME;
        }
    }
    if (here) { /* it is safe where it is */
        return n == 0 ? NOBODY : NONE;
    }
    /* None of them: whoever is of the next rank is asked for it, too. */
    n = ldr_peers_owners(p, key, false, 2, nodes, &mine);
    for (uint32_t i = 0; i < n && mine == LDR_NOBODY; i++) {
        if (ldr_peer_well(nodes[i])) {
            *node_p = nodes[i];
            return SOME;
        }
    }
    return n == 0 ? NOBODY : NONE;
}

/* Whether a shard that became ready is another member's to keep. */
static bool is_of_others(ldr_peers_t *p, uint32_t shard)
{
    const ldr_store_t *store = &p->host->store;
    const ldr_shard_t *sh = &store->shards[shard];
    const ldr_chunk_t *c = &store->chunks[sh->chunk];
    ldr_peer_node_t *nodes[LDR_RANKS_MAX];
    uint32_t mine;

    if (p->host->options.peer_save != LDR_PEER_SAVE_ALL ||
        ldr_home_is_here(p, shard)) {
        return false;
    }
    unsigned n = ldr_peers_owners(
        p, &c->key, true, (unsigned)p->host->options.copies, nodes, &mine);
    if (mine != LDR_NOBODY) { /* what was fetched is on its home's disk */
        return sh->tier == LARDER_TIER_PEER && sh->given &&
               !ldr_home_wants_copy(
                   p,
                   ldr_store_name(store, c->space, c->group, &c->key)
                       .fingerprint,
                   c->epoch);
    }
    bool elsewhere = false;
    for (unsigned i = 0; i < n; i++) {
        elsewhere = elsewhere || ldr_peer_well(nodes[i]);
    }
    return elsewhere;
}

bool ldr_peer_kept_elsewhere(ldr_tier_t *t, uint32_t shard)
{
    ldr_peers_t *p = (ldr_peers_t *)t;
    bool elsewhere = is_of_others(p, shard);

    p->host->store.shards[shard].withheld = elsewhere;
    return elsewhere;
}

/* Nobody takes what was saved here and others were to keep: the disks here are
 * to. (What a member has brought is not announced as kept here, so that nobody
 * would find it.) The shard is ready. */
static void keep_here(ldr_peers_t *p, uint32_t shard)
{
    ldr_store_t *store = &p->host->store;
    ldr_shard_t *sh = &store->shards[shard];

    if (!sh->withheld || sh->given || sh->tier == LARDER_TIER_PEER ||
        store->chunks[sh->chunk].entry == LDR_NIL) {
        return;
    }
    sh->withheld = 0;
    for (unsigned i = 0; i < p->host->tier_count; i++) {
        ldr_tier_t *t = p->host->order[i];

        if (t->ops->keeps) {
            t->ops->queue(t, shard);
        }
    }
}

static void push(ldr_peers_t *p, uint32_t shard)
{
    ldr_store_t *store = &p->host->store;
    const ldr_shard_t *sh = &store->shards[shard];
    ldr_peer_node_t *node;

    ldr_peers_look(p);
    if (p->node_count == 0 ||
        p->spaces[store->chunks[sh->chunk].space] == NULL) {
        return;
    }
    bool here = ldr_home_is_here(p, shard);
    if ((here && !sh->announced) || target(p, shard, here, &node) != NOBODY) {
        ldr_behind_push(store, LDR_PEER_QUEUE, shard);
        p->threads->wake(p->threads->arg, &p->work, true);
    }
}

void ldr_peer_queue(ldr_tier_t *t, uint32_t shard)
{
    ldr_peers_t *p = (ldr_peers_t *)t;

    if (p->host->options.peer_save == LDR_PEER_SAVE_ALL) {
        push(p, shard);
    }
}

void ldr_peer_used(ldr_tier_t *t, uint32_t shard)
{
    ldr_peers_t *p = (ldr_peers_t *)t;
    const ldr_shard_t *sh = &p->host->store.shards[shard];

    if (p->host->options.peer_save == LDR_PEER_SAVE_REUSED && !sh->given &&
        !sh->announced && sh->state == LDR_SHARD_READY &&
        p->host->store.chunks[sh->chunk].entry != LDR_NIL) {
        push(p, shard);
    }
}

/* ---- handing out ---- */

typedef struct filling {
    ldr_peer_node_t *node;
    ldr_peer_batch_t *batch;
    uint64_t bytes;
} filling_t;

static void hand_over(filling_t *f)
{
    ldr_peer_node_t *n = f->node;

    f->batch->next = NULL;
    *n->saves_end = f->batch;
    n->saves_end = &f->batch->next;
    ldr_lane_wake(n, true);
    *f = (filling_t){0};
}

/* The batch that the shard goes with. NULL: the member has enough to do. */
static filling_t *batch_for(filling_t *open, ldr_peer_node_t *n, uint32_t space,
                            bool kept)
{
    filling_t *free = NULL;

    for (unsigned i = 0; i < OPEN; i++) {
        if (open[i].node == n && open[i].batch->space == space &&
            open[i].batch->kept == kept) {
            return &open[i];
        }
        free = open[i].node == NULL ? &open[i] : free;
    }
    if (free == NULL || n->save_count >= BATCHES_MAX) {
        return NULL;
    }
    free->batch = ldr_alloc(sizeof(*free->batch));
    if (free->batch == NULL) {
        return NULL;
    }
    free->batch->space = space;
    free->batch->kept = kept;
    free->node = n;
    n->save_count++;
    return free;
}

/* The first shard of its space: into a batch, out of the queue, or to its end,
 * so that others do not wait behind it. True: it was handed out. */
static bool hand_out_one(ldr_peers_t *p, filling_t *open, uint32_t shard)
{
    ldr_store_t *store = &p->host->store;
    const ldr_chunk_t *c = &store->chunks[store->shards[shard].chunk];
    ldr_peer_node_t *n = NULL;
    bool here = ldr_home_is_here(p, shard);
    bool kept = is_beside(p, shard, here) || store->shards[shard].kept;
    where_t where = p->host->options.peer_save != LDR_PEER_SAVE_NEVER
                        ? target(p, shard, here, &n)
                        : NOBODY; /* taken over */
    filling_t *f = where == SOME ? batch_for(open, n, c->space, kept) : NULL;

    if (here && !store->shards[shard].announced) {
        ldr_home_announce(p, shard);
    }
    if (where != SOME) {
        keep_here(p, shard);
    }
    if (f == NULL) {
        ldr_behind_remove(store, LDR_PEER_QUEUE, shard);
        if (where != NOBODY) {
            ldr_behind_push(store, LDR_PEER_QUEUE, shard);
        }
        return false;
    }
    ldr_behind_take(store, LDR_PEER_QUEUE, shard);
    f->batch->shards[f->batch->count++] = shard;
    f->bytes += store->shards[shard].length;
    if (f->batch->count == LDR_PEER_BATCH || f->bytes >= LDR_PEER_BATCH_BYTES) {
        hand_over(f);
    }
    return true;
}

/* Looks at what is queued, spaces in turn. True: something was handed out. */
static bool hand_out(ldr_peers_t *p)
{
    ldr_store_t *store = &p->host->store;
    const ldr_behind_t *q = &store->queues[LDR_PEER_QUEUE];
    filling_t open[OPEN] = {{0}};
    bool did = false;

    for (uint64_t i = 0; i < SCAN && q->first != LDR_NIL; i++) {
        uint32_t space = q->first;
        const ldr_subqueue_t *l = &q->subqueues[space];
        uint64_t run =
            ldr_peers_know(p, space) ? ldr_min64(l->count, LDR_PEER_BATCH) : 0;

        for (i += run; run > 0; run--) {
            did |= hand_out_one(p, open, l->head);
        }
        if (l->count > 0) {
            ldr_behind_next(store, LDR_PEER_QUEUE, space, 0);
        }
    }
    for (unsigned i = 0; i < OPEN; i++) {
        if (open[i].node != NULL) {
            hand_over(&open[i]);
        }
    }
    return did;
}

/* Whether something is queued that can be given to members, or in hand. */
static bool has_work(const ldr_peers_t *p)
{
    const ldr_behind_t *q = &p->host->store.queues[LDR_PEER_QUEUE];
    uint32_t space = q->first;

    while (space != LDR_NIL && !ldr_peers_know(p, space)) {
        space = q->subqueues[space].after;
    }
    return space != LDR_NIL || q->hands[0] + q->hands[1] > 0;
}

void *ldr_peer_saver(void *arg)
{
    ldr_peers_t *p = arg;

    ldr_host_lock(p->host);
    while (!p->stop) {
        ldr_peers_look(p); /* members meet, whether or not one is needed */
        if (ldr_peers_leave_step(p) || hand_out(p) || ldr_peers_rest(p)) {
            continue;
        }
        if (!has_work(p)) {
            p->caught_up_ns = ldr_peers_now(p);
        }
        ldr_host_tell(p->host);
        p->threads->wait(p->threads->arg, &p->work, &p->host->lock,
                         ldr_peers_now(p) + LOOK_NS);
    }
    ldr_host_unlock(p->host);
    return NULL;
}

/* ---- a batch ---- */

typedef struct sending {
    ldr_peer_shard_t rows[LDR_PEER_BATCH];
    larder_status_t statuses[LDR_PEER_BATCH]; /* PENDING: it is to be sent */
    uint32_t epoch;
    uint32_t order[LDR_PEER_BATCH]; /* those that are sent */
    uint32_t count;
    uint64_t bytes;
    struct iovec iov[SEND_IOV_MAX];
    uint32_t iov_count;
} sending_t;

/* What is still worth sending. With the lock. */
static void gather(ldr_peer_node_t *n, const ldr_peer_batch_t *b, sending_t *s)
{
    const ldr_store_t *store = &n->tier->host->store;

    s->epoch = store->spaces[b->space].epoch;
    for (uint32_t i = 0; i < b->count; i++) {
        const ldr_chunk_t *c =
            &store->chunks[store->shards[b->shards[i]].chunk];

        s->statuses[i] = LARDER_E_STALE;
        if (c->entry == LDR_NIL || c->epoch != s->epoch ||
            ldr_peer_owes(n, store->spaces[c->space].id, &c->key, c->group,
                          store->shards[b->shards[i]].number)) {
            continue;
        }
        ldr_record_t r = ldr_store_record(store, b->shards[i]);
        s->rows[i] = (ldr_peer_shard_t){
            .key = r.key,
            .parent = r.parent,
            .group = (uint16_t)r.group,
            .shard = (uint16_t)r.shard,
            .shards = r.shards,
            .length = r.length,
            .crc = r.payload_crc,
            .written_s = r.written_s,
            .expires_s = r.expires_s,
            .depth = r.depth,
            .pinned = c->pinned,
        };
        s->statuses[i] = LARDER_PENDING;
    }
}

/* Asks which of them it lacks. */
static larder_status_t ask(ldr_talk_t *v, const ldr_peer_batch_t *b,
                           sending_t *s)
{
    uint8_t *body = ldr_body(v->call.buffer);
    ldr_peer_head_t head = {.space = v->space,
                            .epoch = s->epoch,
                            .count = b->count,
                            .shards = LARDER_SHARDS_MAX};
    size_t bytes = ldr_put_peer_head(body, &head);

    for (uint32_t i = 0; i < b->count; i++) {
        ldr_peer_name_t name = {.key = s->rows[i].key,
                                .group = s->rows[i].group};

        ldr_put_peer_name(body + bytes, &name);
        bytes += LDR_PEER_NAME_BYTES;
    }
    larder_status_t st = ldr_talk_call(v, LDR_OP_PEER_ASK, bytes);
    if (st != LARDER_OK) {
        return st;
    }
    if (!ldr_get_peer_head(body, v->call.reply.body, 0, &head) ||
        head.count != b->count || head.shards != LARDER_SHARDS_MAX) {
        return ldr_fail(LARDER_E_OFFLINE, "a malformed answer");
    }
    for (uint32_t i = 0; i < b->count; i++) {
        size_t at = ((size_t)i * LARDER_SHARDS_MAX + s->rows[i].shard) *
                    LDR_PEER_FOUND_BYTES;

        if (s->statuses[i] == LARDER_PENDING &&
            !ldr_peer_found_none(head.rows + at)) {
            s->statuses[i] = LARDER_PRESENT;
        }
    }
    return LARDER_OK;
}

/* Shards that are held keep their pages: no lock is needed. */
static void collect(const ldr_store_t *store, const ldr_peer_batch_t *b,
                    sending_t *s)
{
    for (uint32_t i = 0; i < b->count; i++) {
        if (s->statuses[i] != LARDER_PENDING) {
            continue;
        }
        uint32_t room = SEND_IOV_MAX - s->iov_count;
        uint32_t n =
            ldr_arena_iov(&store->arena, store->shards[b->shards[i]].page,
                          s->rows[i].length, s->iov + s->iov_count, room);
        if (n > room ||
            (s->count > 0 && s->bytes + s->rows[i].length > LDR_PAYLOAD_MAX)) {
            s->statuses[i] = LARDER_E_BUSY; /* with the next batch */
            continue;
        }
        s->iov_count += n;
        s->bytes += s->rows[i].length;
        s->order[s->count++] = i;
    }
}

static larder_status_t send(ldr_talk_t *v, bool kept, sending_t *s)
{
    uint8_t *body = ldr_body(v->call.buffer);
    ldr_conn_t *c = ldr_conn_of(v->link);
    ldr_call_t *got = NULL;
    ldr_peer_head_t head = {.space = v->space,
                            .epoch = s->epoch,
                            .count = s->count,
                            .shards = kept ? LDR_PUT_KEPT : 1};
    size_t bytes = ldr_put_peer_head(body, &head);

    for (uint32_t i = 0; i < s->count; i++) {
        ldr_put_peer_shard(body + bytes, &s->rows[s->order[i]]);
        bytes += LDR_PEER_SHARD_BYTES;
    }
    v->call.opcode = LDR_OP_PEER_PUT;
    v->call.bytes = (uint32_t)bytes;
    larder_status_t st =
        ldr_conn_send(c, &v->call, s->iov, s->iov_count, s->bytes, &v->stop);
    while (st == LARDER_OK && !v->call.done) {
        st = ldr_conn_recv(c, &v->stop, &got);
    }
    if (st != LARDER_OK) {
        ldr_conn_forget(c, &v->call, 0);
        return st;
    }
    v->heard = true;
    if (ldr_frame_status(&v->call.reply) < 0) {
        return ldr_reply_failed(&v->call.reply, body);
    }
    if (!ldr_get_peer_head(body, v->call.reply.body, LDR_PEER_STATUS_BYTES,
                           &head) ||
        head.count != s->count) {
        return ldr_fail(LARDER_E_OFFLINE, "a malformed answer");
    }
    for (uint32_t i = 0; i < s->count; i++) {
        s->statuses[s->order[i]] =
            ldr_get_peer_status(head.rows + LDR_PEER_STATUS_BYTES * (size_t)i);
    }
    return LARDER_OK;
}

static larder_status_t call(ldr_peer_node_t *n, ldr_peer_batch_t *b,
                            sending_t *s)
{
    ldr_peers_t *p = n->tier;
    ldr_talk_t v = {0};
    ldr_stop_t stop = {&p->stop,
                       ldr_peers_now(p) +
                           p->host->options.peer_timeout_ms * 1000000u};
    larder_status_t st = ldr_peer_talk_begin(n, &v, p->spaces[b->space], &stop);

    if (st != LARDER_OK) {
        return st;
    }
    st = ask(&v, b, s);
    if (st == LARDER_OK) {
        collect(&p->host->store, b, s);
    }
    if (st == LARDER_OK && s->count > 0) {
        st = send(&v, b->kept, s);
    }
    ldr_peer_talk_end(&v, st);
    return st;
}

/* Ends what is in hand of one shard. With the lock. */
static void done(ldr_peer_node_t *n, uint32_t shard, uint32_t length,
                 larder_status_t st)
{
    ldr_peers_t *p = n->tier;
    ldr_store_t *store = &p->host->store;
    bool taken = st == LARDER_OK || st == LARDER_PRESENT;
    bool again = st == LARDER_PENDING || st == LARDER_E_BUSY;

    n->n.sent += st == LARDER_OK;
    n->n.sent_bytes += st == LARDER_OK ? length : 0;
    n->n.present += st == LARDER_PRESENT;
    n->n.send_failed += !taken && !again;
    if (taken) {
        again = has_second(p, shard);
        p->leave_given += p->leaving && !store->shards[shard].given;
        store->shards[shard].given = 1;
    } else if (!again && st != LARDER_E_STALE) {
        keep_here(p, shard);
    }
    ldr_behind_done(store, LDR_PEER_QUEUE, shard, again);
}

void ldr_peer_save_back(ldr_peer_node_t *n, ldr_peer_batch_t *b)
{
    ldr_host_held(n->tier->host);
    for (uint32_t i = 0; i < b->count; i++) {
        done(n, b->shards[i], 0, LARDER_PENDING);
    }
    n->save_count--;
    ldr_free(b);
}

void ldr_peer_save_batch(ldr_peer_node_t *n, ldr_peer_batch_t *b)
{
    ldr_peers_t *p = n->tier;
    sending_t *s = ldr_alloc(sizeof(*s));

    ldr_host_held(p->host);
    if (s == NULL || !LDR_HOLDS(ldr_peers_know(p, b->space))) {
        ldr_free(s);
        ldr_peer_save_back(n, b);
        return;
    }
    gather(n, b, s);
    ldr_host_unlock(p->host);
    larder_status_t st = call(n, b, s);
    ldr_host_lock(p->host);
    if (st == LARDER_E_STALE) {
        n->tried = n->informed = 0;
    }
    for (uint32_t i = 0; i < b->count; i++) {
        done(n, b->shards[i], s->rows[i].length, s->statuses[i]);
    }
    n->save_count--;
    ldr_free(b);
    ldr_free(s);
    p->threads->wake(p->threads->arg, &p->work, true);
    p->threads->wake(p->threads->arg, &p->host->changed, true);
}

/* ---- flushing ---- */

static bool any_well(const ldr_peers_t *p)
{
    for (unsigned i = 0; i < p->node_count; i++) {
        if (ldr_peer_well(p->nodes[i]) || p->nodes[i]->save_count > 0) {
            return true;
        }
    }
    return false;
}

larder_status_t ldr_peer_flush(ldr_tier_t *t, const ldr_stop_t *stop)
{
    ldr_peers_t *p = (ldr_peers_t *)t;
    ldr_host_t *host = p->host;
    larder_status_t st = LARDER_OK;

    ldr_host_lock(host);
    while (st == LARDER_OK && any_well(p) &&
           (has_work(p) || !ldr_here_said(p))) {
        if (!ldr_host_wait_stop(host, stop)) {
            st = ldr_host_gave_up(host, stop);
        }
    }
    bool left = has_work(p);
    ldr_host_unlock(host);
    return st == LARDER_OK && left ? LARDER_E_TIER_OFF : st;
}
