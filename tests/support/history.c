#include "support/history.h"

#include <stdlib.h>

void history_init(history_t *h, uint32_t keys)
{
    h->keys = keys;
    h->size = 0;
    for (uint32_t i = 0; i < RIG_SPACES; i++) {
        h->size += keys * rig_shards(i);
    }
    h->past = calloc(h->size, sizeof(*h->past));
    require(h->past != NULL, "out of memory");
}

void history_free(history_t *h)
{
    free(h->past);
}

uint32_t history_at(const history_t *h, name_t name)
{
    uint32_t at = 0;

    for (uint32_t i = 0; i < name.space; i++) {
        at += h->keys * rig_shards(i);
    }
    return at + name.key * rig_shards(name.space) + name.shard;
}

name_t history_name(const history_t *h, uint32_t at)
{
    name_t name = {0};

    while (at >= h->keys * rig_shards(name.space)) {
        at -= h->keys * rig_shards(name.space);
        name.space++;
    }
    name.key = at / rig_shards(name.space);
    name.shard = (uint16_t)(at % rig_shards(name.space));
    return name;
}

name_t history_draw(const history_t *h, ldr_rand_t *rand)
{
    return history_name(h, (uint32_t)ldr_rand_below(rand, h->size));
}

larder_status_t history_put(history_t *h, rig_t *rig, name_t name)
{
    past_t *p = &h->past[history_at(h, name)];
    larder_status_t st = rig_put(rig, name, p->top + 1);

    if (st == LARDER_OK) {
        p->top++;
        p->flushed = false;
    }
    require(st != LARDER_PRESENT || p->top > p->floor,
            "space %u key %u shard %u: present, but it was never put",
            name.space, name.key, name.shard);
    return st;
}

larder_status_t history_remove(history_t *h, rig_t *rig, name_t name)
{
    past_t *p = &h->past[history_at(h, name)];
    larder_status_t st = rig_remove(rig, name);

    if (st == LARDER_OK || st == LARDER_MISS) {
        p->floor = p->top;
        p->flushed = false;
    }
    return st;
}

larder_status_t history_reset(history_t *h, rig_t *rig, uint32_t space)
{
    larder_status_t st = larder_space_reset(rig->spaces[space], 0);

    for (uint32_t i = 0; i < h->size && st == LARDER_OK; i++) {
        if (history_name(h, i).space == space) {
            h->past[i].floor = h->past[i].top;
            h->past[i].flushed = false;
        }
    }
    return st;
}

larder_status_t history_flush(history_t *h, rig_t *rig)
{
    larder_status_t st = larder_flush(rig->lar, LARDER_TIER_SSD, 0);

    if (st == LARDER_OK) {
        history_synced(h, rig);
    }
    return st;
}

void history_synced(history_t *h, const rig_t *rig)
{
    for (uint32_t i = 0; i < h->size; i++) {
        h->past[i].flushed = rig_loc(rig, history_name(h, i)) != 0;
    }
}

bool history_get(const history_t *h, rig_t *rig, name_t name)
{
    const past_t *p = &h->past[history_at(h, name)];
    size_t bytes;
    larder_status_t st = rig_get(rig, name, &bytes);

    if (st == LARDER_MISS) {
        return false;
    }
    require(st == LARDER_OK, "space %u key %u shard %u: get: %s", name.space,
            name.key, name.shard, larder_status_text(st));
    for (uint32_t v = p->top; v > p->floor; v--) {
        if (value_is(name, v, rig->buffer, bytes)) {
            return true;
        }
    }
    for (uint32_t v = p->floor; v > 0; v--) {
        require(!value_is(name, v, rig->buffer, bytes),
                "space %u key %u shard %u: version %u is back, all up to %u "
                "were removed or reset",
                name.space, name.key, name.shard, v, p->floor);
    }
    test_failed(__FILE__, __LINE__,
                "space %u key %u shard %u: %zu bytes that nobody put there",
                name.space, name.key, name.shard, bytes);
}

uint32_t history_verify(const history_t *h, rig_t *rig, const bool *must)
{
    uint32_t hits = 0;

    for (uint32_t i = 0; i < h->size; i++) {
        if (h->past[i].top == 0) {
            continue;
        }
        name_t name = history_name(h, i);
        bool hit = history_get(h, rig, name);

        require(hit || must == NULL || !must[i],
                "space %u key %u shard %u: version %u is lost: %s", name.space,
                name.key, name.shard, h->past[i].top,
                larder_cause_text(rig->cause));
        hits += hit;
    }
    return hits;
}
