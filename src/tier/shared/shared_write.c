/*
 * Write-behind of the shared tier: gathers what was saved into objects.
 *
 * With the node's lock, except upload_done(), which a worker calls and which
 * takes it. A shard that is part of an upload is held until that has ended; an
 * upload that is not `flying` holds none.
 */
#include <errno.h>

#include "base/bytes.h"
#include "tier/shared/shared.h"

#define LINGER_NS 1000000000u
/* Saves come in bursts, one a step, and sealing and writing take the memory's
 * time from them: so objects wait until nothing was saved for a while. Where
 * saves never cease, as much as this must wait, or for a second; and then it is
 * one object at a time, and so many bytes a second: little of what a memory
 * has, and more than most storage takes. */
#define LULL_NS 3000000u
#define LULL_BYTES_MAX (4 * LDR_OBJECTS_BYTES)
#define PACE_BYTES_S ((uint64_t)512 << 20)
/* To wake a thread costs whoever saves as much as to copy a page does. So this
 * one looks by itself, from the first save until a second after the last. */
#define NAP_NS 50000000u
#define SAVING_NAP_NS 10000000u
#define LOOK_MAX                                                               \
    (4 * LDR_OBJECTS_RECORDS) /* shards looked at for one object               \
                               */
#define SPACES_MAX 256u       /* spaces, for who has enough for one */

static ldr_behind_t *queue_of(const ldr_shared_t *s)
{
    return &s->host->store.queues[LDR_SHARED_QUEUE];
}

/* The space has a shard to write: if it is new in line, since now. */
static void keep_time(ldr_store_t *store, uint32_t space, uint64_t now_ns)
{
    ldr_subqueue_t *subqueue =
        &store->queues[LDR_SHARED_QUEUE].subqueues[space];

    if (subqueue->count > 0 && subqueue->since_ns == 0) {
        subqueue->since_ns = now_ns;
    }
}

bool ldr_shared_accepts(ldr_tier_t *t, uint32_t space)
{
    const ldr_shared_t *s = (ldr_shared_t *)t;
    uint32_t tenant, number;

    return ldr_shared_numbers(s, space, &tenant, &number) &&
           ldr_objects_takes(s->tier, tenant, LDR_NIL);
}

void ldr_shared_queue(ldr_tier_t *t, uint32_t shard)
{
    ldr_shared_t *s = (ldr_shared_t *)t;
    ldr_host_t *host = s->host;
    ldr_store_t *store = &host->store;
    uint32_t space = store->chunks[store->shards[shard].chunk].space;
    uint32_t tenant, number;

    if (!ldr_shared_numbers(s, space, &tenant, &number)) {
        return; /* its client knows no key */
    }
    s->last_ns = ldr_now_ns(host->clock);
    ldr_behind_push(store, LDR_SHARED_QUEUE, shard);
    keep_time(store, space, s->last_ns);
    if (s->look_ns > s->last_ns + NAP_NS) {
        s->look_ns = 0; /* once is enough */
        ldr_shared_wake(s);
    }
}

/* Takes the shard out of the queue if it is of no use: its space was reset or
 * its time is over, or the tier has it already. */
static bool is_over(ldr_shared_t *s, uint32_t shard, uint32_t tenant,
                    uint32_t space)
{
    ldr_host_t *host = s->host;
    ldr_store_t *store = &host->store;
    const ldr_shard_t *sh = &store->shards[shard];
    const ldr_chunk_t *c = &store->chunks[sh->chunk];
    ldr_object_place_t place;

    if (c->epoch != store->spaces[c->space].epoch ||
        (c->expires_s != 0 && ldr_wall_s(host->clock) >= c->expires_s)) {
        LDR_COUNT(store, c->space, queue_evicted[LDR_SHARED_QUEUE], 1);
    } else if (ldr_objects_find(s->tier, tenant, space, c->epoch, &c->key,
                                c->group, sh->number, &place)) {
        LDR_COUNT(store, c->space, offers_present, 1);
    } else {
        return false;
    }
    ldr_behind_remove(store, LDR_SHARED_QUEUE, shard);
    return true;
}

/* Adds the shard to the object, and holds it. False: there is no room. */
static bool upload_add(ldr_upload_t *o, uint32_t shard)
{
    ldr_store_t *store = &o->shared->host->store;
    ldr_objects_write_t *w = &o->write;
    const ldr_shard_t *sh = &store->shards[shard];
    uint32_t at = w->iov_first[w->count];
    uint32_t blocks = ldr_record_blocks(sh->length) - 1;

    if (w->count == LDR_OBJECTS_RECORDS || w->bytes >= LDR_OBJECTS_BYTES ||
        at + ldr_arena_pages(sh->length) + LDR_OBJECTS_RECORDS + 1 >
            LDR_UPLOAD_IOV) {
        return false;
    }
    w->records[w->count] = ldr_store_record(store, shard);
    o->shards[o->count++] = shard;
    at += ldr_arena_iov(&store->arena, sh->page, (size_t)blocks * LDR_BLOCK,
                        o->iov + at, LDR_UPLOAD_IOV - at);
    w->count++;
    w->iov_first[w->count] = at;
    w->bytes += sh->length;
    ldr_behind_take(store, LDR_SHARED_QUEUE, shard);
    return true;
}

/* Queued shards of one space, for one object. */
typedef struct pick {
    uint32_t space, tenant, number; /* number: the tier's of the space */
    uint32_t count;
    uint32_t shards[LDR_OBJECTS_RECORDS];
    uint64_t bytes;
    bool ended; /* some were of no use, and are out of the queue */
} pick_t;

/* Gathers what the space has queued, unless the tier would not take the first
 * of it now; what is of no use leaves the queue on the way. */
static void upload_gather(ldr_shared_t *s, uint32_t space, pick_t *p)
{
    ldr_store_t *store = &s->host->store;
    const ldr_subqueue_t *subqueue =
        &store->queues[LDR_SHARED_QUEUE].subqueues[space];
    bool known = ldr_shared_numbers(s, space, &p->tenant, &p->number);
    uint32_t next, i = subqueue->head;

    p->space = space;
    for (uint64_t left = ldr_min64(subqueue->count, LOOK_MAX);
         left > 0 && p->count < LDR_OBJECTS_RECORDS &&
         p->bytes < LDR_OBJECTS_BYTES;
         left--, i = next) {
        const ldr_shard_t *sh = &store->shards[i];

        next = sh->links[LDR_SHARED_QUEUE].next;
        if (!known && s->hurry == 0) {
            break; /* nobody has opened it since a takeover */
        }
        if (!known) {
            LDR_COUNT(store, space, queue_evicted[LDR_SHARED_QUEUE], 1);
            ldr_behind_remove(store, LDR_SHARED_QUEUE, i);
            p->ended = true;
        } else if (is_over(s, i, p->tenant, p->number)) {
            p->ended = true;
        } else if (p->count > 0 ||
                   ldr_objects_takes(s->tier, p->tenant, p->number)) {
            p->shards[p->count++] = i;
            p->bytes += sh->length;
        } else {
            break; /* its volume is off */
        }
    }
}

static void upload_done(ldr_objects_write_t *w)
{
    ldr_upload_t *o = w->arg;
    ldr_shared_t *s = o->shared;
    ldr_host_t *host = s->host;
    ldr_store_t *store = &host->store;

    ldr_histogram_add(&s->write_times, w->end_ns - w->begin_ns);
    ldr_host_lock(host);
    for (uint32_t i = 0; i < o->count; i++) {
        uint32_t shard = o->shards[i];
        bool written = w->error == 0 && !w->damaged[i];

        LDR_COUNT(store, o->space, offers_written, written);
        LDR_COUNT(store, o->space, offers_failed, !written);
        if (w->damaged[i]) { /* nor is it to be served */
            ldr_store_discard(store, store->shards[shard].chunk);
        }
        /* It may go better when the tier is on again. */
        ldr_behind_done(store, LDR_SHARED_QUEUE, shard,
                        !written && !s->stop && w->error != -EINVAL);
    }
    keep_time(store, o->space, ldr_now_ns(host->clock));
    LDR_ASSERT(o->flying && s->uploads_flying > 0);
    o->flying = false;
    s->uploads_flying--;
    ldr_shared_wake(s);
    pthread_cond_broadcast(&host->changed);
    ldr_host_unlock(host);
}

/* Gives back what was gathered: the tier did not take it. */
static void upload_undo(ldr_upload_t *o)
{
    ldr_store_t *store = &o->shared->host->store;

    for (uint32_t i = 0; i < o->count; i++) {
        ldr_behind_done(store, LDR_SHARED_QUEUE, o->shards[i], true);
    }
    keep_time(store, o->space, ldr_now_ns(o->shared->host->clock));
}

/* One that is not in use; NULL: none is, or those that are hold as much memory
 * as they may. */
static ldr_upload_t *free_upload(ldr_shared_t *s)
{
    uint64_t arena = (uint64_t)s->host->store.arena.page_count * LDR_PAGE;

    if (s->uploads_flying > 0 &&
        (s->uploads_flying + 1) * LDR_OBJECTS_BYTES > arena / 4) {
        return NULL;
    }
    for (unsigned i = 0; i < s->upload_count; i++) {
        if (!s->uploads[i].flying) {
            return &s->uploads[i];
        }
    }
    return NULL;
}

/* Sends off what was picked. False: the tier did not take it. */
static bool upload_send(ldr_shared_t *s, ldr_upload_t *o, const pick_t *p)
{
    ldr_host_t *host = s->host;
    uint64_t now_ns = ldr_now_ns(host->clock);

    o->write = (ldr_objects_write_t){
        .tenant = p->tenant,
        .space = p->number,
        .iov = o->iov,
        .deadline_ns = now_ns + host->options.shared_timeout_ms * 1000000u,
        .done = upload_done,
        .arg = o,
    };
    o->space = p->space;
    o->count = 0;
    for (uint32_t i = 0; i < p->count && upload_add(o, p->shards[i]); i++) {
    }
    o->flying = true;
    s->uploads_flying++;
    s->pace_ns = now_ns + o->write.bytes * 1000000000u / PACE_BYTES_S;
    if (queue_of(s)->subqueues[p->space].count > 0) {
        ldr_behind_next(&host->store, LDR_SHARED_QUEUE, p->space, now_ns);
    }
    if (!ldr_objects_write(s->tier, &o->write)) {
        o->flying = false;
        s->uploads_flying--;
        upload_undo(o);
        return false;
    }
    return true;
}

/* Whether it has waited for long enough. Who goes to the end of the line begins
 * to wait: behind one that is not due nobody is. */
static bool is_due(const ldr_shared_t *s, uint32_t space, uint64_t now_ns)
{
    return s->hurry > 0 ||
           now_ns >= queue_of(s)->subqueues[space].since_ns + LINGER_NS;
}

/* Whether saves are under way, for which the tier has to make room. */
static bool is_saving(const ldr_shared_t *s, uint64_t now_ns)
{
    return s->hurry == 0 && now_ns < s->last_ns + LULL_NS;
}

/* Whether an object may go all the same. */
static bool is_paced(const ldr_shared_t *s, uint64_t now_ns)
{
    const ldr_behind_t *q = queue_of(s);

    return s->uploads_flying == 0 && now_ns >= s->pace_ns &&
           q->first != LDR_NIL &&
           (q->bytes >= LULL_BYTES_MAX || is_due(s, q->first, now_ns));
}

/* The space whose turn it is, of those not asked in this look: the first in
 * line that is due, or has enough for an object. LDR_NIL: nobody. */
static uint32_t whose_turn(const ldr_shared_t *s, uint64_t now_ns)
{
    const ldr_behind_t *q = queue_of(s);
    uint32_t i = q->first;

    for (uint32_t seen = 0; i != LDR_NIL && seen < SPACES_MAX; seen++) {
        const ldr_subqueue_t *subqueue = &q->subqueues[i];

        if (subqueue->asked != s->look &&
            (subqueue->bytes >= LDR_OBJECTS_MIN || is_due(s, i, now_ns))) {
            return i;
        }
        i = subqueue->after;
    }
    return LDR_NIL;
}

/* When to look again, if nothing that was sent is done before. */
static uint64_t next_look(const ldr_shared_t *s, uint64_t now_ns)
{
    const ldr_behind_t *q = queue_of(s);
    uint64_t look_ns = UINT64_MAX;

    if (q->first != LDR_NIL) {
        look_ns = q->subqueues[q->first].since_ns + LINGER_NS;
        look_ns = look_ns > now_ns ? look_ns : now_ns + LINGER_NS;
    }
    if (s->last_ns != 0 && now_ns < s->last_ns + LINGER_NS) {
        look_ns = ldr_min64(
            look_ns, now_ns + (is_saving(s, now_ns) ? SAVING_NAP_NS : NAP_NS));
    }
    return look_ns;
}

/* Sends off one object if it is time; false: it is not. Each space is asked
 * once, or a few that the tier takes nothing of would be asked for ever. */
static bool write_next(ldr_shared_t *s, ldr_upload_t *o, uint64_t now_ns)
{
    ldr_store_t *store = &s->host->store;
    uint32_t space;

    s->look++;
    while ((space = whose_turn(s, now_ns)) != LDR_NIL) {
        bool due = is_due(s, space, now_ns);
        pick_t p = {.count = 0};

        queue_of(s)->subqueues[space].asked = s->look;
        upload_gather(s, space, &p);
        if (p.count == 0 && !p.ended) {
            ldr_behind_next(store, LDR_SHARED_QUEUE, space,
                            now_ns); /* asked again later */
        } else if (p.count > 0 && (due || p.bytes >= LDR_OBJECTS_MIN ||
                                   p.count == LDR_OBJECTS_RECORDS)) {
            return upload_send(s, o, &p);
        } else {
            return true; /* there is less to look at */
        }
    }
    return false;
}

bool ldr_shared_write(ldr_shared_t *s, uint64_t *wake_p)
{
    ldr_host_held(s->host);

    ldr_upload_t *o = free_upload(s);
    uint64_t now_ns = ldr_now_ns(s->host->clock);

    *wake_p = UINT64_MAX;
    s->look_ns = 0;
    if (o == NULL) {
        return false; /* one that is done wakes */
    }
    if ((!is_saving(s, now_ns) || is_paced(s, now_ns)) &&
        write_next(s, o, now_ns)) {
        return true;
    }
    *wake_p = s->look_ns = next_look(s, now_ns);
    return false;
}
