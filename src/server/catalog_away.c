/*
 * What of the described chunks that are not here a load would find elsewhere.
 * Nobody tells this node of it, so it is looked up, from time to time: the
 * shared tier's map is here, and members are asked. What a round finds is
 * believed until the next one.
 *
 * Called by the publisher's thread. The catalogue's lock is taken for each
 * round, and the node's inside it; members are asked with neither.
 */
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "server/catalog_int.h"

/* The description that a round's row is of, and those that other sources have
 * of the same chunk. */
static bool is_row(const description_t *d, const ldr_away_t *a, size_t i)
{
    return d->print == a->rows[i].print &&
           d->source->space == a->rows[i].space &&
           d->source->group == a->rows[i].group &&
           memcmp(&d->key, &a->keys[i], sizeof(d->key)) == 0;
}

void ldr_catalog_away_begin(ldr_catalog_t *c, uint32_t tenant)
{
    const uint8_t here = (1u << LDR_MEDIA_HERE) - 1;
    ldr_away_t *a = &c->away;
    uint64_t room = 0;

    if (a->at < a->count) {
        return;
    }
    ldr_mutex_lock(&c->lock);
    for (size_t t = 0; t < c->tenant_count; t++) {
        room += c->tenants[t].tenant == tenant ? c->description_count : 0;
    }
    ldr_free(a->keys);
    ldr_free(a->rows);
    a->keys = ldr_alloc(room * sizeof(*a->keys) + 1);
    a->rows = ldr_alloc(room * sizeof(*a->rows) + 1);
    a->count = a->at = 0;
    for (size_t t = 0;
         t < c->tenant_count && a->keys != NULL && a->rows != NULL; t++) {
        for (description_t *d = c->tenants[t].oldest;
             d != NULL && c->tenants[t].tenant == tenant; d = d->newer) {
            const ldr_source_t *s = d->source;

            if ((d->published & here) == 0) {
                a->keys[a->count] = d->key;
                a->rows[a->count++] = (struct ldr_away_row){
                    d->print, s->space, s->shards, s->group};
            }
        }
    }
    ldr_mutex_unlock(&c->lock);
}

/* Notes what a look found. With the catalogue's and the node's lock. */
static void note(ldr_catalog_t *c, size_t i)
{
    const struct ldr_away_row *r = &c->away.rows[i];
    ldr_places_t p;

    ldr_node_places(c->node, r->space, r->shards, r->group, &c->away.keys[i],
                    &p);
    for (description_t *d = ldr_catalog_first(c, r->print); d != NULL;
         d = d->next_print) {
        if (is_row(d, &c->away, i) && d->away != (p.found && !p.here)) {
            d->away = !d->away;
            ldr_catalog_dirty(c, d);
        }
    }
}

bool ldr_catalog_away(ldr_catalog_t *c)
{
    ldr_away_t *a = &c->away;
    size_t end = a->at;

    if (a->at == a->count) {
        return false;
    }
    const struct ldr_away_row *r = &a->rows[a->at];
    while (end < a->count && end - a->at < LDR_AWAY_BATCH &&
           a->rows[end].space == r->space && a->rows[end].shards == r->shards &&
           a->rows[end].group == r->group) {
        end++;
    }
    const ldr_keys_t of = {r->space, r->shards, r->group, &a->keys[a->at],
                           end - a->at};
    ldr_query_t *q = ldr_catalog_ask_members(
        c->node, &of,
        ldr_now_ns(c->node->clock) +
            c->node->options.peer_match_ms * (uint64_t)1000000);
    ldr_mutex_lock(&c->lock);
    ldr_node_lock(c->node);
    for (; a->at < end; a->at++) {
        note(c, a->at);
    }
    ldr_node_unlock(c->node);
    ldr_mutex_unlock(&c->lock);
    if (q != NULL) {
        ldr_node_ask_end(c->node, q);
    }
    return a->at < a->count;
}
