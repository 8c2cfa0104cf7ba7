#include "store/store.h"

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

    if (sh->offered) {
        return;
    }
    sh->offered = 1;
    sh->offer_prev = s->offer_tail;
    sh->offer_next = LDR_NIL;
    if (s->offer_tail != LDR_NIL) {
        s->shards[s->offer_tail].offer_next = shard;
    } else {
        s->offer_head = shard;
    }
    s->offer_tail = shard;
    s->offer_count++;
    s->offer_turns[sh->turn]++;
    s->offer_bytes += sh->length;
}

void ldr_store_offer_remove(ldr_store_t *s, uint32_t shard)
{
    ldr_shard_t *sh = &s->shards[shard];

    if (!sh->offered) {
        return;
    }
    if (sh->offer_prev != LDR_NIL) {
        s->shards[sh->offer_prev].offer_next = sh->offer_next;
    } else {
        s->offer_head = sh->offer_next;
    }
    if (sh->offer_next != LDR_NIL) {
        s->shards[sh->offer_next].offer_prev = sh->offer_prev;
    } else {
        s->offer_tail = sh->offer_prev;
    }
    sh->offered = 0;
    s->offer_count--;
    s->offer_turns[sh->turn]--;
    s->offer_bytes -= sh->length;
    s->dirty_left = true;
}
