#include "store/store.h"

/* ---- the line of spaces ---- */

static void line_enter(ldr_store_t *s, uint32_t space)
{
    ldr_offers_t *o = &s->spaces[space].offers;

    o->before = s->offer_last;
    o->after = LDR_NIL;
    if (s->offer_last != LDR_NIL) {
        s->spaces[s->offer_last].offers.after = space;
    } else {
        s->offer_first = space;
    }
    s->offer_last = space;
}

static void line_leave(ldr_store_t *s, uint32_t space)
{
    ldr_offers_t *o = &s->spaces[space].offers;

    if (o->before != LDR_NIL) {
        s->spaces[o->before].offers.after = o->after;
    } else {
        s->offer_first = o->after;
    }
    if (o->after != LDR_NIL) {
        s->spaces[o->after].offers.before = o->before;
    } else {
        s->offer_last = o->before;
    }
    o->since_ns = 0;
}

void ldr_store_offer_next(ldr_store_t *s, uint32_t space, uint64_t now_ns)
{
    line_leave(s, space);
    line_enter(s, space);
    s->spaces[space].offers.since_ns = now_ns;
}

/* ---- the queue of each ---- */

void ldr_store_offer_push(ldr_store_t *s, uint32_t shard)
{
    ldr_shard_t *sh = &s->shards[shard];

    if (!sh->offered) {
        sh->turn = s->offer_turn & 1;
        ldr_store_offer_again(s, shard);
    }
}

void ldr_store_offer_again(ldr_store_t *s, uint32_t shard)
{
    ldr_shard_t *sh = &s->shards[shard];
    uint32_t space = s->chunks[sh->chunk].space;
    ldr_offers_t *o = &s->spaces[space].offers;

    if (sh->offered) {
        return;
    }
    sh->offered = 1;
    sh->offer_next = LDR_NIL;
    if (o->count == 0) {
        sh->offer_prev = LDR_NIL;
        o->head = shard;
        line_enter(s, space);
    } else {
        sh->offer_prev = o->tail;
        s->shards[o->tail].offer_next = shard;
    }
    o->tail = shard;
    o->count++;
    o->bytes += sh->length;
    s->offer_count++;
    s->offer_turns[sh->turn]++;
    s->offer_bytes += sh->length;
}

void ldr_store_offer_remove(ldr_store_t *s, uint32_t shard)
{
    ldr_shard_t *sh = &s->shards[shard];
    uint32_t space = s->chunks[sh->chunk].space;
    ldr_offers_t *o = &s->spaces[space].offers;

    if (!sh->offered) {
        return;
    }
    if (sh->offer_prev != LDR_NIL) {
        s->shards[sh->offer_prev].offer_next = sh->offer_next;
    } else {
        o->head = sh->offer_next;
    }
    if (sh->offer_next != LDR_NIL) {
        s->shards[sh->offer_next].offer_prev = sh->offer_prev;
    } else {
        o->tail = sh->offer_prev;
    }
    sh->offered = 0;
    o->count--;
    o->bytes -= sh->length;
    if (o->count == 0) {
        line_leave(s, space);
    }
    s->offer_count--;
    s->offer_turns[sh->turn]--;
    s->offer_bytes -= sh->length;
    s->dirty_left = true;
}
