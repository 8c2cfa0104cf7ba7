/* Offers: gathering what was saved into objects of the shared tier. */
#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "node/shared.h"

#define LINGER_NS 1000000000u
/* Saves come in bursts, one a step, and sealing and writing take the memory's
 * time from them: so an object waits until nothing was saved for a while, but
 * not while this much waits. */
#define LULL_NS 3000000u
#define LULL_BYTES_MAX (4 * LDR_TIER_OBJECT_BYTES)
#define LOOK_MAX (4 * LDR_TIER_RECORDS) /* offers looked at for one object */

void ldr_shared_offer(ldr_node_t *node, uint32_t shard)
{
    ldr_shared_t *s = node->shared;
    ldr_store_t *store = &node->store;
    uint32_t space = store->chunks[store->shards[shard].chunk].space;
    uint32_t tenant, number;

    if (s == NULL || !ldr_shared_numbers(s, space, &tenant, &number)) {
        return; /* or its client knows no key */
    }
    ldr_store_offer_push(store, shard);
    s->last_ns = ldr_now_ns(node->clock);
    if (s->since_ns == 0) {
        s->since_ns = s->last_ns;
        s->wake_bytes = LDR_TIER_OBJECT_MIN;
        ldr_shared_wake(s); /* from now on there is a time to keep */
    } else if (store->offer_bytes >= s->wake_bytes) {
        ldr_shared_wake(s);
    }
}

/* Takes the shard out of the queue if it is of no use: its space was reset or
 * its time is over, or the tier has it already. */
static bool is_over(ldr_shared_t *s, uint32_t shard, uint32_t tenant,
                    uint32_t space)
{
    ldr_node_t *node = s->node;
    ldr_store_t *store = &node->store;
    const ldr_shard_t *sh = &store->shards[shard];
    const ldr_chunk_t *c = &store->chunks[sh->chunk];
    ldr_place_t place;

    if (c->epoch != store->spaces[c->space].epoch ||
        (c->expires_s != 0 && ldr_wall_s(node->clock) >= c->expires_s)) {
        LDR_COUNT(store, c->space, offers_evicted, 1);
    } else if (ldr_tier_find(s->tier, tenant, space, &c->key, c->group,
                             sh->number, &place)) {
        LDR_COUNT(store, c->space, offers_present, 1);
    } else {
        return false;
    }
    ldr_store_offer_remove(store, shard);
    return true;
}

/* Adds the shard to the object, and holds it. False: there is no room. */
static bool offer_add(ldr_offer_t *o, uint32_t shard)
{
    ldr_store_t *store = &o->shared->node->store;
    ldr_tier_write_t *w = &o->write;
    const ldr_shard_t *sh = &store->shards[shard];
    uint32_t at = w->iov_first[w->count];
    uint32_t blocks = ldr_record_blocks(sh->length) - 1;

    if (w->count == LDR_TIER_RECORDS || w->bytes >= LDR_TIER_OBJECT_BYTES ||
        at + ldr_arena_pages(sh->length) + LDR_TIER_RECORDS + 1 >
            LDR_OFFER_IOV) {
        return false;
    }
    w->records[w->count] = ldr_store_record(store, shard);
    o->shards[o->count++] = shard;
    o->turns |= (uint8_t)(1u << sh->turn);
    at += ldr_arena_iov(&store->arena, sh->page, (size_t)blocks * LDR_BLOCK,
                        o->iov + at, LDR_OFFER_IOV - at);
    w->count++;
    w->iov_first[w->count] = at;
    w->bytes += sh->length;
    ldr_store_offer_remove(store, shard);
    ldr_store_hold(store, sh->chunk);
    return true;
}

/* Offers of one space, for one object. */
typedef struct pick {
    uint32_t space, tenant, number; /* number: the tier's of the space */
    uint32_t count;
    uint32_t shards[LDR_TIER_RECORDS];
    uint64_t bytes;
    bool ended; /* some were of no use, and are out of the queue */
} pick_t;

/* Whether the tier would take this offer, which it does not have. */
static bool is_wanted(const ldr_shared_t *s, uint32_t shard, const pick_t *p)
{
    const ldr_store_t *store = &s->node->store;
    const ldr_shard_t *sh = &store->shards[shard];
    const ldr_chunk_t *c = &store->chunks[sh->chunk];

    return ldr_tier_wants(s->tier, p->tenant, p->number, &c->key, c->group,
                          sh->number);
}

/* Looks for the first offer that the tier would take now, and for others of its
 * space; those that are of no use leave the queue on the way. */
static void look(ldr_shared_t *s, pick_t *p)
{
    ldr_store_t *store = &s->node->store;
    uint32_t next, skip = LDR_NIL, seen = 0;

    for (uint32_t i = store->offer_head;
         i != LDR_NIL && seen < LOOK_MAX && p->count < LDR_TIER_RECORDS &&
         p->bytes < LDR_TIER_OBJECT_BYTES;
         i = next, seen++) {
        const ldr_shard_t *sh = &store->shards[i];
        uint32_t space = store->chunks[sh->chunk].space;

        next = sh->offer_next;
        if (p->count > 0 ? space != p->space : space == skip) {
            continue;
        }
        if (!ldr_shared_numbers(s, space, &p->tenant, &p->number)) {
            ldr_store_offer_remove(store, i);
            p->ended = true;
        } else if (is_over(s, i, p->tenant, p->number)) {
            p->ended = true;
        } else if (p->count > 0 || is_wanted(s, i, p)) {
            p->space = space;
            p->shards[p->count++] = i;
            p->bytes += sh->length;
        } else {
            skip = space; /* its part is off: others need not wait for it */
        }
    }
}

/* So that none of those that the tier does not take now is in the way. */
static void rotate(ldr_store_t *store)
{
    for (uint32_t i = 0; i < LOOK_MAX && store->offer_count > LOOK_MAX; i++) {
        uint32_t shard = store->offer_head;

        ldr_store_offer_remove(store, shard);
        ldr_store_offer_again(store, shard);
    }
}

static void offer_done(ldr_tier_write_t *w)
{
    ldr_offer_t *o = w->arg;
    ldr_shared_t *s = o->shared;
    ldr_node_t *node = s->node;
    ldr_store_t *store = &node->store;

    ldr_histogram_add(&s->write_times, w->end_ns - w->begin_ns);
    ldr_node_lock(node);
    for (uint32_t i = 0; i < o->count; i++) {
        uint32_t shard = o->shards[i];
        uint32_t chunk = store->shards[shard].chunk;

        if (w->damaged[i]) { /* nor is it to be served */
            LDR_COUNT(store, o->space, offers_failed, 1);
            ldr_store_discard(store, chunk);
        } else if (w->error == 0) {
            LDR_COUNT(store, o->space, offers_written, 1);
        } else {
            LDR_COUNT(store, o->space, offers_failed, 1);
            /* It may go better when the tier is on again. */
            if (store->chunks[chunk].entry != LDR_NIL && !s->stop &&
                w->error != -EINVAL) {
                ldr_store_offer_again(store, shard);
            }
        }
        ldr_store_release(store, chunk);
    }
    o->flying = false;
    s->offers_flying--;
    if (store->offer_count > 0 && s->since_ns == 0) {
        s->since_ns = ldr_now_ns(node->clock);
    }
    ldr_shared_wake(s);
    pthread_cond_broadcast(&node->changed);
    ldr_node_unlock(node);
}

/* Gives back what was gathered: the tier did not take it. */
static void offer_undo(ldr_offer_t *o)
{
    ldr_store_t *store = &o->shared->node->store;

    for (uint32_t i = 0; i < o->count; i++) {
        ldr_store_offer_again(store, o->shards[i]);
        ldr_store_release(store, store->shards[o->shards[i]].chunk);
    }
}

/* One that is not in use; NULL: none is, or those that are hold as much memory
 * as they may. */
static ldr_offer_t *free_offer(ldr_shared_t *s)
{
    uint64_t arena = (uint64_t)s->node->store.arena.page_count * LDR_PAGE;

    if (s->offers_flying > 0 &&
        (s->offers_flying + 1) * LDR_TIER_OBJECT_BYTES > arena / 4) {
        return NULL;
    }
    for (unsigned i = 0; i < LDR_OFFERS; i++) {
        if (!s->offers[i].flying) {
            return &s->offers[i];
        }
    }
    return NULL;
}

/* Sends off what was picked. False: the tier did not take it. */
static bool send(ldr_shared_t *s, ldr_offer_t *o, const pick_t *p)
{
    ldr_node_t *node = s->node;

    o->write = (ldr_tier_write_t){
        .tenant = p->tenant,
        .space = p->number,
        .iov = o->iov,
        .deadline_ns = ldr_now_ns(node->clock) +
                       node->options.shared_timeout_ms * 1000000u,
        .done = offer_done,
        .arg = o,
    };
    o->space = p->space;
    o->turns = 0;
    o->count = 0;
    for (uint32_t i = 0; i < p->count && offer_add(o, p->shards[i]); i++) {
    }
    o->flying = true;
    s->offers_flying++;
    s->since_ns = node->store.offer_count > 0 ? ldr_now_ns(node->clock) : 0;
    if (!ldr_tier_write(s->tier, &o->write)) {
        o->flying = false;
        s->offers_flying--;
        offer_undo(o);
        return false;
    }
    return true;
}

bool ldr_shared_write(ldr_shared_t *s, uint64_t *wake_p)
{
    ldr_node_t *node = s->node;
    ldr_store_t *store = &node->store;
    ldr_offer_t *o = free_offer(s);
    uint64_t now_ns = ldr_now_ns(node->clock);
    pick_t p = {.count = 0};

    *wake_p = UINT64_MAX;
    s->wake_bytes = UINT64_MAX;
    if (o == NULL) {
        return false; /* one that is done wakes */
    }
    if (store->offer_head == LDR_NIL) {
        s->since_ns = 0;
        return false;
    }
    bool due = s->hurry > 0 || now_ns >= s->since_ns + LINGER_NS;
    if (!due && store->offer_bytes >= LDR_TIER_OBJECT_MIN &&
        store->offer_bytes < LULL_BYTES_MAX && now_ns < s->last_ns + LULL_NS) {
        s->wake_bytes = LULL_BYTES_MAX;
        *wake_p = s->last_ns + LULL_NS;
        return false;
    }
    if (due || store->offer_bytes >= LDR_TIER_OBJECT_MIN) {
        look(s, &p);
        if (p.count == 0 && p.ended) {
            return true;
        }
        if (p.count == 0) {
            rotate(store);
            *wake_p = now_ns + LINGER_NS; /* it is asked again later */
            return false;
        }
        if ((due || p.bytes >= LDR_TIER_OBJECT_MIN) && send(s, o, &p)) {
            return true;
        }
    }
    s->wake_bytes = store->offer_bytes < LDR_TIER_OBJECT_MIN
                        ? LDR_TIER_OBJECT_MIN
                        : store->offer_bytes + LDR_TIER_OBJECT_MIN;
    *wake_p = due ? now_ns + LINGER_NS : s->since_ns + LINGER_NS;
    return false;
}
