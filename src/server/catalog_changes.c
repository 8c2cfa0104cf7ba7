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

#define HERE ((1u << LDR_MEDIA_HERE) - 1)
#define PARENTS_MAX 64u /* chunks with one block that are looked at */

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

/* Tells what is so now of what was told before. */
static void description_tell(ldr_catalog_t *c, description_t *d, uint8_t now,
                             ldr_catalog_fn fn, void *arg)
{
    for (unsigned m = 0; m < LDR_MEDIA; m++) {
        unsigned bit = 1u << m;

        if ((d->published & bit) != (now & bit)) {
            block_tell(d, (ldr_medium_t)m, (now & bit) != 0, fn, arg);
        }
    }
    d->published = now;
    d->away = d->away && (now & HERE) == 0;
    if (d->gone) {
        c->gone_count--;
        ldr_catalog_free(c, d);
    }
}

static uint8_t media_now(ldr_catalog_t *c, const description_t *d)
{
    ldr_node_lock(c->node);
    uint8_t now = ldr_catalog_media(c, d);
    ldr_node_unlock(c->node);
    return now;
}

/* A chunk with d's parent, if d is to be published while no chunk with its
 * parent is, though there is one in the same place. What is in the row already
 * is not meant: engines may describe circles. */
static description_t *parent_of(ldr_catalog_t *c, const description_t *d,
                                uint8_t now)
{
    const unsigned place = (now & HERE) != 0 ? HERE : 1u << LDR_MEDIUM_AWAY;
    const block_t *b = d->has_parent && (now & ~d->published) != 0
                           ? ldr_catalog_block(c, d->source, d->parent)
                           : NULL;

    for (unsigned m = 0; b != NULL && m < LDR_MEDIA; m++) {
        if ((place >> m & 1u) != 0 && b->published[m] > 0) {
            return NULL;
        }
    }
    const use_t *u = b != NULL ? b->uses : NULL;
    for (unsigned i = 0; u != NULL && i < PARENTS_MAX; i++) {
        if (u->of->then == NULL && (media_now(c, u->of) & place) != 0) {
            return u->of;
        }
        u = u->next;
    }
    return NULL;
}

/* Tells of its parents first: who does not know a block's parent cannot place
 * the block. */
static void description_look(ldr_catalog_t *c, description_t *d,
                             ldr_catalog_fn fn, void *arg)
{
    uint8_t now = media_now(c, d);
    description_t *parent;

    d->then = d;
    while ((parent = parent_of(c, d, now)) != NULL) {
        parent->then = d;
        d = parent;
        now = media_now(c, d);
    }
    for (;;) {
        description_t *next = d->then;
        bool last = next == d;

        d->then = NULL;
        description_tell(c, d, now, fn, arg);
        if (last) {
            return;
        }
        d = next;
        now = media_now(c, d);
    }
}

bool ldr_catalog_changes(ldr_catalog_t *c, uint32_t looks, ldr_catalog_fn fn,
                         void *arg)
{
    ldr_mutex_lock(&c->lock);
    take_notes(c);
    for (; looks > 0 && c->dirty != NULL; looks--) {
        description_t *d = c->dirty;

        c->dirty = d->next_dirty;
        if (c->dirty == NULL) {
            c->dirty_end = &c->dirty;
        }
        d->dirty = false;
        description_look(c, d, fn, arg);
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

static bool has_topic(const ldr_source_t *s, const ldr_topic_of_t *topic)
{
    return s->tenant == topic->tenant && strcmp(s->model, topic->model) == 0 &&
           (topic->pod == NULL || strcmp(s->pod, topic->pod) == 0);
}

bool ldr_catalog_described(const ldr_catalog_t *c, const ldr_topic_of_t *topic)
{
    for (uint32_t i = 0; i < c->source_count; i++) {
        if (c->sources[i]->descriptions > 0 &&
            has_topic(c->sources[i], topic)) {
            return true;
        }
    }
    return false;
}

/* As if it had never been published, if it is of this topic. */
static void unpublish(ldr_catalog_t *c, description_t *d,
                      const ldr_topic_of_t *topic)
{
    const ldr_source_t *s = d->source;
    uint8_t was = d->published & (uint8_t)topic->media;

    if (!has_topic(s, topic)) {
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
