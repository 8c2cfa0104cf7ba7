/*
 * What a publisher hears of: where described chunks are now, against what it
 * has published of them. A note that a chunk may have changed only says where
 * to look: what is there is looked up again, so no order of notes can lead to a
 * wrong event. Called by the publisher's thread, which takes the catalogue's
 * lock, and inside it the node's.
 */
#include <string.h>

#include "base/mem.h"
#include "server/catalog_int.h"

bool ldr_catalog_watch(ldr_catalog_t *c, bool by_node)
{
    c->by_node = by_node;
    c->changes = ldr_alloc(sizeof(*c->changes));
    c->copied = ldr_alloc(sizeof(c->changes->prints));
    if (c->changes == NULL || c->copied == NULL) {
        return false;
    }
    c->watched = true;
    ldr_node_lock(c->node);
    c->node->store.changes = c->changes;
    ldr_node_unlock(c->node);
    return true;
}

static void look_at_all(ldr_catalog_t *c)
{
    for (size_t i = 0; i < c->tenant_count; i++) {
        for (description_t *d = c->tenants[i].oldest; d != NULL; d = d->newer) {
            ldr_catalog_dirty(c, d);
        }
    }
}

/* Descriptions of the chunks that the node has noted are to be looked at. */
static void take_notes(ldr_catalog_t *c)
{
    ldr_node_lock(c->node);
    uint32_t count = c->changes->count;
    bool missed = c->changes->missed;
    memcpy(c->copied, c->changes->prints, count * sizeof(*c->copied));
    c->changes->count = 0;
    c->changes->missed = false;
    ldr_node_unlock(c->node);
    for (uint32_t i = 0; i < count; i++) {
        for (description_t *d = ldr_catalog_first(c, c->copied[i]); d != NULL;
             d = d->next_print) {
            if (d->print == c->copied[i]) {
                ldr_catalog_dirty(c, d);
            }
        }
    }
    if (missed) {
        look_at_all(c);
    }
}

uint8_t ldr_catalog_media(ldr_catalog_t *c, const description_t *d)
{
    const ldr_source_t *s = d->source;
    ldr_places_t p;

    if (d->gone) {
        return 0;
    }
    ldr_node_places(c->node, s->space, s->shards, s->group, &d->key, &p);
    return (uint8_t)((unsigned)p.dram << LDR_MEDIUM_CPU |
                     (unsigned)(p.below || (p.here && !p.dram))
                         << LDR_MEDIUM_STORAGE |
                     (unsigned)(d->away && !p.here) << LDR_MEDIUM_AWAY);
}

/* These blocks of a chunk have changed. */
static void tell_run(const description_t *d, ldr_catalog_change_t *change,
                     uint32_t first, uint32_t end, ldr_catalog_fn fn, void *arg)
{
    uint8_t hashes[end - first][LDR_BLOCK_HASH_MAX];

    for (uint32_t i = first; i < end; i++) {
        memcpy(hashes[i - first], d->uses[i].block->hash, LDR_BLOCK_HASH_MAX);
    }
    change->count = end - first;
    change->hashes = hashes[0];
    change->parent = first > 0       ? d->uses[first - 1].block->hash
                     : d->has_parent ? d->parent
                                     : NULL;
    change->tokens = d->tokens + (size_t)first * d->source->block_tokens;
    fn(arg, change);
}

/* A block that other published chunks have too stays as it is. */
static void block_tell(description_t *d, ldr_medium_t medium, bool stored,
                       ldr_catalog_fn fn, void *arg)
{
    ldr_catalog_change_t change = {
        .source = d->source, .medium = medium, .stored = stored};
    uint32_t blocks = ldr_source_blocks(d->source);
    uint32_t first = 0; /* of the run that is being looked at */

    for (uint32_t i = 0; i < blocks; i++) {
        uint32_t *count = &d->uses[i].block->published[medium];

        *count += stored ? 1 : -1u;
        if (*count != (stored ? 1 : 0)) {
            if (first < i) {
                tell_run(d, &change, first, i, fn, arg);
            }
            first = i + 1;
        }
    }
    if (first < blocks) {
        tell_run(d, &change, first, blocks, fn, arg);
    }
}

static void description_look(ldr_catalog_t *c, description_t *d, uint8_t now,
                             ldr_catalog_fn fn, void *arg)
{
    for (unsigned m = 0; m < LDR_MEDIA; m++) {
        unsigned bit = 1u << m;

        if ((d->published & bit) != (now & bit)) {
            block_tell(d, (ldr_medium_t)m, (now & bit) != 0, fn, arg);
        }
    }
    d->published = now;
    d->away = d->away && (now & ((1u << LDR_MEDIA_HERE) - 1)) == 0;
    if (d->gone) {
        c->gone_count--;
        ldr_catalog_free(c, d);
    }
}

#define SLICE 64u /* looked up before others get the node's lock */

bool ldr_catalog_changes(ldr_catalog_t *c, uint32_t looks, ldr_catalog_fn fn,
                         void *arg)
{
    ldr_mutex_lock(&c->lock);
    take_notes(c);
    while (looks > 0 && c->dirty != NULL) {
        description_t *all[SLICE];
        uint8_t now[SLICE];
        uint32_t count = 0;

        ldr_node_lock(c->node);
        for (; count < SLICE && looks > 0 && c->dirty != NULL; count++) {
            description_t *d = all[count] = c->dirty;

            c->dirty = d->next_dirty;
            d->dirty = false;
            now[count] = ldr_catalog_media(c, d);
            looks--;
        }
        ldr_node_unlock(c->node);
        if (c->dirty == NULL) {
            c->dirty_end = &c->dirty;
        }
        for (uint32_t i = 0; i < count; i++) {
            description_look(c, all[i], now[i], fn, arg);
        }
    }
    bool more = c->dirty != NULL;
    ldr_mutex_unlock(&c->lock);
    return more;
}

void ldr_catalog_look_again(ldr_catalog_t *c)
{
    ldr_mutex_lock(&c->lock);
    look_at_all(c);
    ldr_mutex_unlock(&c->lock);
}

/* As if it had never been published, if it is of this topic. */
static void unpublish(ldr_catalog_t *c, description_t *d,
                      const ldr_topic_of_t *topic)
{
    const ldr_source_t *s = d->source;
    uint8_t was = d->published & (uint8_t)topic->media;

    if (s->tenant != topic->tenant || strcmp(s->model, topic->model) != 0 ||
        (topic->pod != NULL && strcmp(s->pod, topic->pod) != 0)) {
        return;
    }
    for (uint32_t b = 0; b < ldr_source_blocks(s); b++) {
        for (unsigned m = 0; m < LDR_MEDIA; m++) {
            d->uses[b].block->published[m] -= was >> m & 1u;
        }
    }
    d->published &= (uint8_t)~topic->media;
    ldr_catalog_dirty(c, d);
}

void ldr_catalog_republish(ldr_catalog_t *c, const ldr_topic_of_t *topic)
{
    ldr_mutex_lock(&c->lock);
    for (description_t *d = c->dirty; d != NULL; d = d->next_dirty) {
        if (d->gone) {
            unpublish(c, d, topic);
        }
    }
    for (size_t i = 0; i < c->tenant_count; i++) {
        for (description_t *d = c->tenants[i].oldest; d != NULL; d = d->newer) {
            unpublish(c, d, topic);
        }
    }
    ldr_mutex_unlock(&c->lock);
}
