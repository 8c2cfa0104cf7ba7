/* Fetching: bytes of shards from a member, into pages that were reserved. */
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "net/pool.h"
#include "tier/peer/peer.h"

/* What is asked for in one call. */
typedef struct batch {
    uint32_t shards[LDR_PEER_BATCH];
    larder_key_t keys[LDR_PEER_BATCH];
    uint16_t groups[LDR_PEER_BATCH];
    uint8_t numbers[LDR_PEER_BATCH];
    uint32_t rooms[LDR_PEER_BATCH];
    bool came[LDR_PEER_BATCH]; /* bytes are there, and right */
    ldr_peer_shard_t rows[LDR_PEER_BATCH];
    uint32_t count, space, epoch;
    uint32_t
        asked[LDR_PEER_BATCH]; /* those of this call: all, then wrong ones */
    uint32_t asked_count, wrong;
    uint64_t bytes;
    struct iovec iov[LDR_READ_IOV];
} batch_t;

/* ---- what waits ---- */

static void push(ldr_peer_node_t *n, uint32_t shard)
{
    ldr_shard_t *shards = n->tier->host->store.shards;

    shards[shard].fetch_next = LDR_NIL;
    if (n->fetch_tail != LDR_NIL) {
        shards[n->fetch_tail].fetch_next = shard;
    } else {
        n->fetch_head = shard;
        n->renew_ns =
            ldr_peers_now(n->tier) + LDR_LEASE_MS / 2 * UINT64_C(1000000);
    }
    n->fetch_tail = shard;
    ldr_lane_wake(n, true);
}

static uint32_t pop(ldr_peer_node_t *n)
{
    uint32_t shard = n->fetch_head;

    n->fetch_head = n->tier->host->store.shards[shard].fetch_next;
    n->fetch_tail = n->fetch_head == LDR_NIL ? LDR_NIL : n->fetch_tail;
    return shard;
}

static uint64_t print_of(const ldr_store_t *store, uint32_t shard)
{
    const ldr_chunk_t *c = &store->chunks[store->shards[shard].chunk];

    return ldr_store_name(store, c->space, c->group, &c->key).fingerprint;
}

void ldr_peer_fetch(ldr_tier_t *t, uint32_t shard)
{
    ldr_peers_t *p = (ldr_peers_t *)t;
    const ldr_store_t *store = &p->host->store;
    const ldr_shard_t *sh = &store->shards[shard];
    const ldr_chunk_t *c = &store->chunks[sh->chunk];
    ldr_location_t at;

    ldr_host_held(p->host);
    if (LDR_HOLDS(ldr_peers_know(p, c->space)) &&
        ldr_where_find(p->where, print_of(store, shard), sh->number, c->epoch,
                       &at) &&
        at.length > 0) {
        push(p->nodes[at.holder], shard);
    } else {
        ldr_load_failed(p->host, shard, LARDER_CAUSE_OFFLINE);
    }
}

void ldr_peer_fetch_none(ldr_peer_node_t *n, larder_cause_t cause)
{
    ldr_host_held(n->tier->host);
    while (n->fetch_head != LDR_NIL) {
        ldr_load_failed(n->tier->host, pop(n), cause);
    }
}

/* ---- one call ---- */

/* The next of one space. False: there is no room for their bytes. */
static bool gather(ldr_peer_node_t *n, batch_t *b)
{
    ldr_peers_t *p = n->tier;
    const ldr_store_t *store = &p->host->store;

    while (n->fetch_head != LDR_NIL && b->count < LDR_PEER_BATCH) {
        const ldr_shard_t *sh = &store->shards[n->fetch_head];
        const ldr_chunk_t *c = &store->chunks[sh->chunk];
        uint32_t i = b->count;

        if (i > 0 && (c->space != b->space || c->epoch != b->epoch ||
                      b->bytes + sh->length > LDR_PEER_BATCH_BYTES)) {
            break;
        }
        if (!ldr_peers_fly(p, sh->length)) {
            return i > 0;
        }
        b->space = c->space;
        b->epoch = c->epoch;
        b->keys[i] = c->key;
        b->groups[i] = c->group;
        b->numbers[i] = sh->number;
        b->rooms[i] = sh->length;
        b->bytes += sh->length;
        b->shards[i] = pop(n);
        b->count++;
    }
    return b->count > 0;
}

static size_t compose(const batch_t *b, uint32_t space, uint8_t *body)
{
    ldr_peer_head_t head = {.space = space,
                            .epoch = b->epoch,
                            .count = b->asked_count,
                            .shards = 1};
    size_t bytes = ldr_put_peer_head(body, &head);

    for (uint32_t k = 0; k < b->asked_count; k++) {
        uint32_t i = b->asked[k];
        ldr_peer_name_t name = {b->keys[i], b->groups[i], b->numbers[i],
                                b->rooms[i] |
                                    (b->wrong > 0 ? LDR_GET_CHECK : 0)};

        ldr_put_peer_name(body + bytes, &name);
        bytes += LDR_PEER_NAME_BYTES;
    }
    return bytes;
}

/* Whether the row is the answer to what was asked for. */
static bool fits(const batch_t *b, uint32_t i, const ldr_peer_shard_t *row)
{
    return memcmp(&row->key, &b->keys[i], sizeof(row->key)) == 0 &&
           row->group == b->groups[i] && row->shard == b->numbers[i] &&
           row->length <= b->rooms[i];
}

/* The payload behind the reply. A shard's pages stay while it is being read,
 * whoever still wants it. */
static larder_status_t take_payload(ldr_peer_node_t *n, batch_t *b,
                                    ldr_talk_t *v)
{
    const ldr_store_t *store = &n->tier->host->store;
    ldr_conn_t *c = ldr_conn_of(v->link);
    ldr_peer_head_t head;
    uint8_t *body = ldr_body(v->call.buffer);
    larder_status_t st = LARDER_OK;
    uint64_t payload = v->call.reply.payload, left = 0;

    if (!ldr_get_peer_head(body, v->call.reply.body, LDR_PEER_SHARD_BYTES,
                           &head) ||
        head.count != b->asked_count) {
        c->broken = true;
        return ldr_fail(LARDER_E_OFFLINE, "%s: a malformed answer", n->name);
    }
    for (uint32_t k = 0; k < b->asked_count && st == LARDER_OK; k++) {
        uint32_t i = b->asked[k], crc = 0;
        ldr_peer_shard_t *row = &b->rows[i];

        if (!ldr_get_peer_shard(head.rows + (size_t)k * LDR_PEER_SHARD_BYTES,
                                row) ||
            !fits(b, i, row) ||
            (row->status == LARDER_OK && row->length > payload)) {
            c->broken = true;
            return ldr_fail(LARDER_E_OFFLINE, "%s: a malformed answer",
                            n->name);
        }
        if (row->status != LARDER_OK) {
            continue;
        }
        uint32_t count =
            ldr_arena_iov(&store->arena, store->shards[b->shards[i]].page,
                          row->length, b->iov, LDR_READ_IOV);
        ldr_list_t to = ldr_list(b->iov, count);
        st = ldr_conn_payload(c, &to, row->length, &v->stop, &crc, &left);
        c->broken |= st != LARDER_OK; /* in the middle of it */
        payload -= row->length - left;
        b->came[i] = st == LARDER_OK && crc == row->crc;
        if (st == LARDER_OK && crc != row->crc) {
            row->status = LARDER_E_CORRUPT;
        }
    }
    c->broken |= payload > 0;
    return st;
}

/* Those that are asked for, in one call. */
static larder_status_t get(ldr_peer_node_t *n, batch_t *b, ldr_talk_t *v)
{
    ldr_conn_t *c = ldr_conn_of(v->link);
    ldr_call_t *got = NULL;

    v->call.opcode = LDR_OP_PEER_GET;
    v->call.bytes = (uint32_t)compose(b, v->space, ldr_body(v->call.buffer));
    larder_status_t st = ldr_conn_send(c, &v->call, NULL, 0, 0, &v->stop);
    while (st == LARDER_OK && !v->call.done) {
        st = ldr_conn_recv(c, &v->stop, &got);
    }
    if (st != LARDER_OK) {
        ldr_conn_forget(c, &v->call, b->bytes);
        return st;
    }
    v->heard = true;
    return ldr_frame_status(&v->call.reply) < 0
               ? ldr_reply_failed(&v->call.reply, ldr_body(v->call.buffer))
               : take_payload(n, b, v);
}

/* What came wrong is asked for next. False: nothing did. */
static bool ask_again(batch_t *b)
{
    b->asked_count = 0;
    for (uint32_t i = 0; i < b->count; i++) {
        if (b->rows[i].status == LARDER_E_CORRUPT) {
            b->asked[b->asked_count++] = i;
        }
    }
    b->wrong += b->asked_count;
    return b->asked_count > 0;
}

/* The holder does not look at what it sends: that is done here, once for both.
 * What comes wrong it is asked for again, and looks: if it has it wrong, it
 * drops it; if it was the way, it comes. */
static larder_status_t call(ldr_peer_node_t *n, batch_t *b)
{
    ldr_peers_t *p = n->tier;
    ldr_stop_t stop = {&p->stop, 0};
    ldr_talk_t v = {0};

    stop.deadline_ns =
        ldr_peers_now(p) + p->host->options.peer_timeout_ms * 1000000u;
    larder_status_t st = ldr_peer_talk_begin(n, &v, p->spaces[b->space], &stop);
    if (st != LARDER_OK) {
        return st;
    }
    for (uint32_t i = 0; i < b->count; i++) {
        b->asked[b->asked_count++] = i;
    }
    st = get(n, b, &v);
    larder_status_t last = st;
    if (st == LARDER_OK && ask_again(b)) {
        last = get(n, b, &v);
        for (uint32_t k = 0; last == LARDER_OK && k < b->asked_count; k++) {
            b->wrong += b->rows[b->asked[k]].status == LARDER_E_CORRUPT;
        }
    }
    ldr_peer_talk_end(&v, last);
    return st;
}

/* ---- what came ---- */

/* Whether nothing of the chunk was saved here. */
static bool all_fetched(const ldr_store_t *store, uint32_t chunk)
{
    uint32_t i = store->chunks[chunk].shards;

    while (i != LDR_NIL && store->shards[i].tier == LARDER_TIER_PEER) {
        i = store->shards[i].next;
    }
    return i == LDR_NIL;
}

/* The shard is ready: it is entered as whoever saved it had it. With the lock.
 */
static bool enter(ldr_peer_node_t *n, uint32_t shard,
                  const ldr_peer_shard_t *row)
{
    ldr_peers_t *p = n->tier;
    ldr_store_t *store = &p->host->store;
    uint32_t chunk = store->shards[shard].chunk;
    ldr_chunk_t *c = &store->chunks[chunk];

    if (c->entry == LDR_NIL ||
        ldr_index_at(&store->index, c->entry)->shards != row->shards ||
        ldr_peer_owes(n, store->spaces[c->space].id, &c->key, c->group,
                      row->shard)) {
        return false;
    }
    ldr_entry_t *e = ldr_index_at(&store->index, c->entry);

    store->now_ds = (uint32_t)(ldr_peers_now(p) / 100000000u);
    c->parent = row->parent;
    c->written_s = row->written_s;
    e->expires_s = ldr_store_earlier(e->expires_s, row->expires_s);
    c->expires_s = e->expires_s;
    ldr_store_set_length(store, shard, row->length);
    if (!ldr_store_commit(store, shard, row->crc, true)) {
        return false;
    }
    store->shards[shard].given = 1;
    ldr_host_queue(p->host, shard, &p->base);
    ldr_store_hold(store, chunk);
    ldr_load_came(p->host, shard);
    if (all_fetched(store, chunk)) {
        ldr_store_cool(store, chunk, true);
    }
    ldr_store_release(store, chunk);
    return true;
}

/* It did not come from there: from the second holder, or not at all. With the
 * lock. */
static void fail(ldr_peer_node_t *n, const batch_t *b, uint32_t i,
                 larder_cause_t cause)
{
    ldr_peers_t *p = n->tier;
    ldr_store_t *store = &p->host->store;
    uint64_t print = print_of(store, b->shards[i]), now_ns = ldr_peers_now(p);
    ldr_location_t at;

    n->n.fetch_failed++;
    bool other =
        ldr_where_find(p->where, print, b->numbers[i], b->epoch, &at) &&
        at.length > 0 && at.second != LDR_PEER_NONE && at.second != n->number &&
        at.length <= b->rooms[i] && !p->stop &&
        store->shards[b->shards[i]].waiters != NULL;
    ldr_where_drop(p->where, print, b->numbers[i]);
    if (other) {
        at.holder = at.second;
        at.second = LDR_PEER_NONE;
        ldr_where_put(p->where, print, b->numbers[i], b->epoch,
                      now_ns + 1000000000u, &at);
        push(p->nodes[at.holder], b->shards[i]);
    } else {
        ldr_load_failed(p->host, b->shards[i], cause);
    }
}

static larder_cause_t cause_of(larder_status_t st)
{
    switch (st) {
    case LARDER_E_DEADLINE:
        return LARDER_CAUSE_DEADLINE;
    case LARDER_E_STALE:
        return LARDER_CAUSE_STALE;
    case LARDER_E_CORRUPT:
        return LARDER_CAUSE_CORRUPT;
    case LARDER_MISS:
        return LARDER_CAUSE_EVICTED;
    default:
        return LARDER_CAUSE_OFFLINE;
    }
}

bool ldr_peer_fetch_some(ldr_peer_node_t *n)
{
    ldr_peers_t *p = n->tier;
    batch_t *b = ldr_alloc(sizeof(*b));

    ldr_host_held(p->host);
    if (b == NULL) { /* my memory: not the member's fault */
        ldr_peer_fetch_none(n, LARDER_CAUSE_FULL);
        return false;
    }
    if (!gather(n, b)) {
        ldr_free(b);
        return false;
    }
    ldr_host_unlock(p->host);
    larder_status_t st = call(n, b);
    ldr_host_lock(p->host);
    ldr_peers_land(p, b->bytes);
    n->n.wrong += b->wrong;
    if (st == LARDER_E_STALE) {
        n->tried = n->informed = 0;
    }
    for (uint32_t i = 0; i < b->count; i++) {
        larder_status_t one = b->rows[i].status;

        if (b->came[i]) {
            if (enter(n, b->shards[i], &b->rows[i])) {
                n->n.fetched++;
                n->n.fetched_bytes += b->rows[i].length;
            } else {
                ldr_load_failed(p->host, b->shards[i], LARDER_CAUSE_STALE);
            }
            continue;
        }
        fail(n, b, i,
             cause_of(st != LARDER_OK    ? st
                      : one == LARDER_OK ? LARDER_E_OFFLINE
                                         : one));
    }
    ldr_free(b);
    p->threads->wake(p->threads->arg, &p->host->changed, true);
    return true;
}
