/*
 * The queues of write-behind. All with the node's lock.
 *
 * Invariants: a subqueue is in line exactly while it has shards; a queue's
 * counts are the sums over its subqueues; waiting[t] are the shards in
 * subqueues that are of turn t, and hands[t] those that the tier writes. A
 * shard's bit in `turns` is set when it is pushed, and is the same when the
 * tier hands it back.
 */
#include "store/behind.h"

#include "base/mem.h"
#include "store/store.h"

/* ---- the line of subqueues ---- */

static void line_enter(ldr_behind_t *q, uint32_t subqueue)
{
    ldr_subqueue_t *l = &q->subqueues[subqueue];

    l->before = q->last;
    l->after = LDR_NIL;
    if (q->last != LDR_NIL) {
        q->subqueues[q->last].after = subqueue;
    } else {
        q->first = subqueue;
    }
    q->last = subqueue;
}

static void line_leave(ldr_behind_t *q, uint32_t subqueue)
{
    ldr_subqueue_t *l = &q->subqueues[subqueue];

    if (l->before != LDR_NIL) {
        q->subqueues[l->before].after = l->after;
    } else {
        q->first = l->after;
    }
    if (l->after != LDR_NIL) {
        q->subqueues[l->after].before = l->before;
    } else {
        q->last = l->before;
    }
    l->since_ns = 0;
}

void ldr_behind_next(ldr_store_t *s, unsigned queue, uint32_t subqueue,
                     uint64_t now_ns)
{
    ldr_behind_t *q = &s->queues[queue];

    ldr_store_held(s);
    if (LDR_HOLDS(q->subqueues[subqueue].count > 0)) {
        line_leave(q, subqueue);
        line_enter(q, subqueue);
        q->subqueues[subqueue].since_ns = now_ns;
    }
}

/* ---- shards ---- */

static uint32_t subqueue_of(const ldr_store_t *s, const ldr_behind_t *q,
                            const ldr_shard_t *sh)
{
    return q->by_space ? s->chunks[sh->chunk].space : 0;
}

static unsigned turn_of(const ldr_shard_t *sh, unsigned queue)
{
    return sh->turns >> queue & 1u;
}

/* Joins the end of its subqueue, in the turn that it is of. */
static void join(ldr_store_t *s, unsigned queue, uint32_t shard)
{
    ldr_behind_t *q = &s->queues[queue];
    ldr_shard_t *sh = &s->shards[shard];
    uint32_t subqueue = subqueue_of(s, q, sh);
    ldr_subqueue_t *l = &q->subqueues[subqueue];

    LDR_ASSERT(sh->state == LDR_SHARD_READY &&
               s->chunks[sh->chunk].entry != LDR_NIL);
    sh->queued |= (uint8_t)(1u << queue);
    sh->links[queue].next = LDR_NIL;
    if (l->count == 0) {
        sh->links[queue].prev = LDR_NIL;
        l->head = shard;
        line_enter(q, subqueue);
    } else {
        sh->links[queue].prev = l->tail;
        s->shards[l->tail].links[queue].next = shard;
    }
    l->tail = shard;
    l->count++;
    l->bytes += sh->length;
    q->count++;
    q->bytes += sh->length;
    q->waiting[turn_of(sh, queue)]++;
}

void ldr_behind_push(ldr_store_t *s, unsigned queue, uint32_t shard)
{
    const ldr_behind_t *q = &s->queues[queue];
    ldr_shard_t *sh = &s->shards[shard];

    ldr_store_held(s);
    if (q->subqueues != NULL && (sh->queued >> queue & 1u) == 0) {
        sh->turns = (uint8_t)((sh->turns & ~(1u << queue)) |
                              (unsigned)(q->turn & 1u) << queue);
        join(s, queue, shard);
    }
}

void ldr_behind_remove(ldr_store_t *s, unsigned queue, uint32_t shard)
{
    ldr_behind_t *q = &s->queues[queue];
    ldr_shard_t *sh = &s->shards[shard];
    uint32_t subqueue = subqueue_of(s, q, sh);
    ldr_subqueue_t *l = &q->subqueues[subqueue];
    const ldr_queued_t *link = &sh->links[queue];

    ldr_store_held(s);
    if (!LDR_HOLDS((sh->queued >> queue & 1u) != 0) ||
        !LDR_HOLDS(l->count > 0 && q->waiting[turn_of(sh, queue)] > 0)) {
        return;
    }
    if (link->prev != LDR_NIL) {
        s->shards[link->prev].links[queue].next = link->next;
    } else {
        l->head = link->next;
    }
    if (link->next != LDR_NIL) {
        s->shards[link->next].links[queue].prev = link->prev;
    } else {
        l->tail = link->prev;
    }
    sh->queued &= (uint8_t) ~(1u << queue);
    l->count--;
    l->bytes -= sh->length;
    if (l->count == 0) {
        line_leave(q, subqueue);
    }
    q->count--;
    q->bytes -= sh->length;
    q->waiting[turn_of(sh, queue)]--;
    s->queue_left = true;
}

void ldr_behind_remove_all(ldr_store_t *s, uint32_t shard)
{
    for (unsigned i = 0; i < LDR_QUEUES_MAX; i++) {
        if (s->shards[shard].queued >> i & 1u) {
            ldr_behind_remove(s, i, shard);
        }
    }
}

void ldr_behind_take(ldr_store_t *s, unsigned queue, uint32_t shard)
{
    const ldr_shard_t *sh = &s->shards[shard];

    ldr_behind_remove(s, queue, shard);
    s->queues[queue].hands[turn_of(sh, queue)]++;
    ldr_store_hold(s, sh->chunk);
}

void ldr_behind_done(ldr_store_t *s, unsigned queue, uint32_t shard, bool again)
{
    const ldr_shard_t *sh = &s->shards[shard];
    uint64_t *hands = &s->queues[queue].hands[turn_of(sh, queue)];

    ldr_store_held(s);
    if (!LDR_HOLDS(*hands > 0)) {
        return;
    }
    (*hands)--;
    s->queue_left = true;
    /* Somebody may have queued it once more while it was in hand. */
    if (again && s->chunks[sh->chunk].entry != LDR_NIL &&
        (sh->queued >> queue & 1u) == 0) {
        join(s, queue, shard);
    }
    ldr_store_release(s, sh->chunk);
}

bool ldr_behind_in_hand(const ldr_store_t *s)
{
    uint64_t count = 0;

    for (unsigned i = 0; i < LDR_QUEUES_MAX; i++) {
        count += s->queues[i].hands[0] + s->queues[i].hands[1];
    }
    return count > 0;
}

/* ---- turns ---- */

static bool is_pending(const ldr_behind_t *q, uint64_t turn)
{
    return q->waiting[turn & 1u] + q->hands[turn & 1u] > 0;
}

bool ldr_behind_drained(ldr_store_t *s, unsigned queue, uint64_t start)
{
    ldr_behind_t *q = &s->queues[queue];

    ldr_store_held(s);
    if (is_pending(q, q->turn + 1)) {
        return q->turn >= start + 2;
    }
    if (q->turn == start) {
        q->turn++;
        return !is_pending(q, start);
    }
    return true;
}

/* ---- open and close ---- */

static size_t subqueues_bytes(const ldr_behind_t *q)
{
    return (q->by_space ? LDR_SPACES_MAX : 1) * sizeof(*q->subqueues);
}

larder_status_t ldr_behind_open(ldr_store_t *s, unsigned queue, bool by_space)
{
    ldr_behind_t *q = &s->queues[queue];

    *q =
        (ldr_behind_t){.by_space = by_space, .first = LDR_NIL, .last = LDR_NIL};
    q->subqueues = ldr_reserve(subqueues_bytes(q));
    return q->subqueues != NULL ? LARDER_OK : LARDER_E_NO_MEMORY;
}

void ldr_behind_close(ldr_store_t *s, unsigned queue)
{
    ldr_behind_t *q = &s->queues[queue];

    ldr_unreserve(q->subqueues, subqueues_bytes(q));
    q->subqueues = NULL;
}
