/*
 * Fetching: bringing shards up from the shared tier.
 *
 * With the node's lock, except fetch_done(), which a worker calls and which
 * takes it. Shards wait in the order of fetch() (head to tail, linked by
 * fetch_next) until one of the slots is free; `waiting` and `flying` count
 * them.
 */
#include <errno.h>

#include "tier/shared/shared.h"

static larder_cause_t cause_of(int error)
{
    switch (error) {
    case -ENOENT:
        return LARDER_CAUSE_EVICTED;
    case -EBADMSG:
    case -EKEYREJECTED:
        return LARDER_CAUSE_CORRUPT;
    case -ESHUTDOWN:
    case -EBUSY:
        return LARDER_CAUSE_TIER_OFF;
    default:
        return LARDER_CAUSE_IO;
    }
}

/* With the lock: it is back, as good or bad as it is. */
static void fetch_settle(ldr_host_t *host, ldr_fetch_t *f)
{
    ldr_store_t *store = &host->store;
    const ldr_record_t *r = &f->read.record;
    uint32_t shard = f->shard;
    ldr_chunk_t *c = &store->chunks[store->shards[shard].chunk];

    if (f->read.error != 0) {
        ldr_load_failed(host, shard, cause_of(f->read.error));
        return;
    }
    if (r->epoch != c->epoch) { /* there was a reset meanwhile */
        ldr_load_failed(host, shard, LARDER_CAUSE_STALE);
        return;
    }
    if (!ldr_load_fits(store, shard, r, f->read.place.blocks)) {
        ldr_load_failed(host, shard, LARDER_CAUSE_CORRUPT);
        return;
    }
    if (r->expires_s != 0 && ldr_wall_s(host->clock) >= r->expires_s) {
        ldr_load_failed(host, shard, LARDER_CAUSE_STALE);
        return;
    }
    c->parent = r->parent;
    c->written_s = r->written_s;
    if (c->entry != LDR_NIL) {
        ldr_entry_t *e = ldr_index_at(&store->index, c->entry);

        e->expires_s = ldr_store_earlier(e->expires_s, r->expires_s);
        c->expires_s = e->expires_s;
    }
    ldr_store_set_length(store, shard, r->length);
    /* Its tag has been checked over what lies there now, and whoever sealed it
     * checked what was saved: the checksum is that of these bytes. */
    if (ldr_store_commit(store, shard, r->payload_crc, true)) {
        ldr_host_queue(host, shard, &f->shared->base);
        ldr_load_came(host, shard);
    } else {
        ldr_load_failed(host, shard, LARDER_CAUSE_STALE);
    }
}

static void fetch_waiting(ldr_shared_t *s);

static void fetch_done(ldr_objects_read_t *read)
{
    ldr_fetch_t *f = read->arg;
    ldr_shared_t *s = f->shared;
    ldr_host_t *host = s->host;

    ldr_histogram_add(&s->read_times, read->end_ns - read->begin_ns);
    ldr_host_lock(host);
    LDR_ASSERT(s->flying > 0);
    fetch_settle(host, f);
    f->next = s->fetch_free;
    s->fetch_free = f;
    s->flying--;
    fetch_waiting(s);
    pthread_cond_broadcast(&host->changed);
    ldr_host_unlock(host);
}

/* Sends one off. False: it could not be, and its loads know. */
static bool fetch_begin(ldr_shared_t *s, ldr_fetch_t *f, uint32_t shard)
{
    ldr_host_t *host = s->host;
    ldr_store_t *store = &host->store;
    ldr_shard_t *sh = &store->shards[shard];
    const ldr_chunk_t *c = &store->chunks[sh->chunk];

    f->shard = shard;
    f->read = (ldr_objects_read_t){
        .iov = f->iov,
        .block = f->block,
        .deadline_ns = ldr_now_ns(host->clock) +
                       host->options.shared_timeout_ms * 1000000u,
        .done = fetch_done,
        .arg = f,
    };
    if (c->entry == LDR_NIL ||
        !ldr_shared_numbers(s, c->space, &f->read.tenant, &f->read.space)) {
        ldr_load_failed(host, shard, LARDER_CAUSE_STALE);
        return false;
    }
    /* It may have moved since it was found; never to a larger place. */
    if (!ldr_objects_find(s->tier, f->read.tenant, f->read.space, c->epoch,
                          &c->key, c->group, sh->number, &f->read.place) ||
        (uint64_t)(f->read.place.blocks - 1) * LDR_BLOCK != sh->length) {
        ldr_load_failed(host, shard, LARDER_CAUSE_EVICTED);
        return false;
    }
    f->read.iov_count = ldr_arena_iov(&store->arena, sh->page, sh->length,
                                      f->iov, LDR_READ_IOV);
    if (!ldr_objects_read(s->tier, &f->read)) {
        ldr_load_failed(host, shard, cause_of(f->read.error));
        return false;
    }
    return true;
}

/* As many of those that wait as there are slots for. With the lock. */
static void fetch_waiting(ldr_shared_t *s)
{
    ldr_store_t *store = &s->host->store;

    while (s->fetch_free != NULL && s->head != LDR_NIL) {
        ldr_fetch_t *f = s->fetch_free;
        uint32_t shard = s->head;

        s->head = store->shards[shard].fetch_next;
        if (s->head == LDR_NIL) {
            s->tail = LDR_NIL;
        }
        s->waiting--;
        s->fetch_free = f->next;
        s->flying++;
        if (!fetch_begin(s, f, shard)) {
            f->next = s->fetch_free;
            s->fetch_free = f;
            s->flying--;
        }
    }
}

void ldr_shared_fetch(ldr_tier_t *t, uint32_t shard)
{
    ldr_shared_t *s = (ldr_shared_t *)t;
    ldr_store_t *store = &t->host->store;

    store->shards[shard].fetch_next = LDR_NIL;
    if (s->tail != LDR_NIL) {
        store->shards[s->tail].fetch_next = shard;
    } else {
        s->head = shard;
    }
    s->tail = shard;
    s->waiting++;
}

void ldr_shared_submit(ldr_tier_t *t)
{
    ldr_shared_t *s = (ldr_shared_t *)t;

    ldr_host_lock(t->host);
    if (s->waiting > 0) {
        fetch_waiting(s);
    }
    ldr_host_unlock(t->host);
}
