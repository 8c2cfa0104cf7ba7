/* Fetching: bringing shards up from the shared tier. */
#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "node/shared.h"
#include "node/ssd.h"

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
static void settle(ldr_node_t *node, ldr_fetch_t *f)
{
    ldr_store_t *store = &node->store;
    const ldr_record_t *r = &f->read.record;
    uint32_t shard = f->shard;
    ldr_chunk_t *c = &store->chunks[store->shards[shard].chunk];

    if (f->read.error != 0) {
        ldr_load_failed(node, shard, cause_of(f->read.error));
        return;
    }
    if (r->epoch != c->epoch) { /* there was a reset meanwhile */
        ldr_load_failed(node, shard, LARDER_CAUSE_STALE);
        return;
    }
    if (!ldr_load_fits(store, shard, r, f->read.place.blocks)) {
        ldr_load_failed(node, shard, LARDER_CAUSE_CORRUPT);
        return;
    }
    if (r->expires_s != 0 && ldr_wall_s(node->clock) >= r->expires_s) {
        ldr_load_failed(node, shard, LARDER_CAUSE_STALE);
        return;
    }
    c->parent = r->parent;
    c->written_s = r->written_s;
    if (c->entry != LDR_NIL) {
        ldr_entry_t *e = ldr_index_at(&store->index, c->entry);

        e->expires_s = ldr_store_sooner(e->expires_s, r->expires_s);
        c->expires_s = e->expires_s;
    }
    ldr_store_set_length(store, shard, r->length);
    /* Its tag has been checked over what lies there now, and whoever sealed it
     * checked what was saved: the checksum is that of these bytes. */
    bool down = ldr_ssd_admits(node, shard);
    if (ldr_store_commit(store, shard, r->payload_crc, true, down)) {
        ldr_node_dirty(node);
        ldr_load_came(node, shard);
    } else {
        ldr_load_failed(node, shard, LARDER_CAUSE_STALE);
    }
}

static void go(ldr_shared_t *s);

static void fetch_done(ldr_tier_read_t *read)
{
    ldr_fetch_t *f = read->arg;
    ldr_shared_t *s = f->shared;
    ldr_node_t *node = s->node;

    ldr_histogram_add(&s->read_times, read->end_ns - read->begin_ns);
    ldr_node_lock(node);
    settle(node, f);
    f->next = s->fetch_free;
    s->fetch_free = f;
    s->flying--;
    go(s);
    pthread_cond_broadcast(&node->changed);
    ldr_node_unlock(node);
}

/* Sends one off. False: it could not be, and its loads know. */
static bool fetch_begin(ldr_shared_t *s, ldr_fetch_t *f, uint32_t shard)
{
    ldr_node_t *node = s->node;
    ldr_store_t *store = &node->store;
    ldr_shard_t *sh = &store->shards[shard];
    const ldr_chunk_t *c = &store->chunks[sh->chunk];

    f->shard = shard;
    f->read = (ldr_tier_read_t){
        .iov = f->iov,
        .block = f->block,
        .deadline_ns = ldr_now_ns(node->clock) +
                       node->options.shared_timeout_ms * 1000000u,
        .done = fetch_done,
        .arg = f,
    };
    if (c->entry == LDR_NIL ||
        !ldr_shared_numbers(s, c->space, &f->read.tenant, &f->read.space)) {
        ldr_load_failed(node, shard, LARDER_CAUSE_STALE);
        return false;
    }
    /* It may have moved since it was found; never to a larger place. */
    if (!ldr_tier_find(s->tier, f->read.tenant, f->read.space, c->epoch,
                       &c->key, c->group, sh->number, &f->read.place) ||
        (uint64_t)(f->read.place.blocks - 1) * LDR_BLOCK != sh->length) {
        ldr_load_failed(node, shard, LARDER_CAUSE_EVICTED);
        return false;
    }
    f->read.iov_count = ldr_arena_iov(&store->arena, sh->page, sh->length,
                                      f->iov, LDR_READ_IOV);
    if (!ldr_tier_read(s->tier, &f->read)) {
        ldr_load_failed(node, shard, cause_of(f->read.error));
        return false;
    }
    return true;
}

/* As many of those that wait as there are slots for. With the lock. */
static void go(ldr_shared_t *s)
{
    ldr_store_t *store = &s->node->store;

    while (s->fetch_free != NULL && s->head != LDR_NIL) {
        ldr_fetch_t *f = s->fetch_free;
        uint32_t shard = s->head;

        s->head = store->shards[shard].dirty_next;
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

void ldr_shared_fetch(ldr_node_t *node, uint32_t shard)
{
    ldr_shared_t *s = node->shared;
    ldr_store_t *store = &node->store;

    store->shards[shard].dirty_next = LDR_NIL;
    if (s->tail != LDR_NIL) {
        store->shards[s->tail].dirty_next = shard;
    } else {
        s->head = shard;
    }
    s->tail = shard;
    s->waiting++;
}

void ldr_shared_go(ldr_node_t *node)
{
    if (node->shared != NULL && node->shared->waiting > 0) {
        go(node->shared);
    }
}
