#include "support/storecheck.h"

#include <stdlib.h>
#include <string.h>

#include "support/values.h"

/* How often something was come across, by its number. */
typedef struct tally {
    uint8_t *pages, *shards, *chunks;
} tally_t;

static void note(uint8_t *seen, uint32_t at, uint32_t max, const char *what)
{
    require(at < max, "%s %u of %u", what, at, max);
    require(seen[at]++ == 0, "%s %u is in two places", what, at);
}

/* A list of pages; gives how many. */
static uint32_t check_pages(const ldr_store_t *s, tally_t *t, uint32_t head)
{
    uint32_t count = 0;

    for (uint32_t p = head; p != LDR_NIL; p = s->arena.next[p]) {
        note(t->pages, p, s->arena.page_count, "page");
        count++;
    }
    return count;
}

static void check_shard(const ldr_store_t *s, tally_t *t, uint32_t shard,
                        uint32_t chunk)
{
    const ldr_shard_t *sh = &s->shards[shard];
    const ldr_chunk_t *c = &s->chunks[chunk];

    note(t->shards, shard, s->shard_top, "shard");
    require(sh->state != LDR_SHARD_FREE, "shard %u is free and in use", shard);
    require(sh->chunk == chunk, "shard %u leads to chunk %u", shard, sh->chunk);
    require(check_pages(s, t, sh->page) >= ldr_arena_pages(sh->length),
            "shard %u of %u bytes has too few pages", shard, sh->length);
    if (sh->dirty) {
        require(sh->state == LDR_SHARD_READY && c->entry != LDR_NIL,
                "shard %u is queued, but not ready or not attached", shard);
    }
    require(c->entry == LDR_NIL ||
                sh->number < ldr_index_at(&s->index, c->entry)->shards,
            "shard %u has number %u", shard, sh->number);
}

static void check_chunk(const ldr_store_t *s, tally_t *t, uint32_t chunk)
{
    const ldr_chunk_t *c = &s->chunks[chunk];
    uint64_t bytes = 0;

    for (uint32_t i = c->shards; i != LDR_NIL; i = s->shards[i].next) {
        check_shard(s, t, i, chunk);
        bytes += s->shards[i].length;
    }
    require(bytes == c->bytes, "chunk %u counts %u bytes of %llu", chunk,
            c->bytes, (unsigned long long)bytes);
    if (c->entry == LDR_NIL) {
        require(c->holds > 0, "chunk %u is detached, and nobody holds it",
                chunk);
        require(!c->pinned, "chunk %u is detached and pinned", chunk);
    } else {
        require(ldr_index_at(&s->index, c->entry)->resident == chunk,
                "chunk %u is not its entry's", chunk);
    }
}

/* Free lists first: what is on none of them below the top is in use. */
static void check_lists(const ldr_store_t *s, tally_t *t)
{
    uint32_t count = 0;

    for (uint32_t p = s->arena.free_head; p != LDR_NIL; p = s->arena.next[p]) {
        note(t->pages, p, s->arena.page_count, "free page");
        count++;
    }
    require(count == s->arena.free_count, "%u free pages, %u counted", count,
            s->arena.free_count);
    for (uint32_t i = s->shard_free; i != LDR_NIL; i = s->shards[i].next) {
        note(t->shards, i, s->shard_top, "free shard");
    }
    for (uint32_t i = s->chunk_free; i != LDR_NIL; i = s->chunks[i].shards) {
        note(t->chunks, i, s->chunk_top, "free chunk");
    }
}

static void check_dirty(const ldr_store_t *s)
{
    uint64_t count = 0, marked = 0;
    uint32_t prev = LDR_NIL;
    uint64_t seq = 0;

    for (uint32_t i = s->dirty_head; i != LDR_NIL;
         i = s->shards[i].dirty_next) {
        require(s->shards[i].dirty && s->shards[i].dirty_prev == prev,
                "shard %u is in the queue, but does not know it", i);
        require(s->shards[i].save_seq > seq, "the queue is out of order");
        seq = s->shards[i].save_seq;
        prev = i;
        count++;
    }
    for (uint32_t i = 0; i < s->shard_top; i++) {
        marked += s->shards[i].state != LDR_SHARD_FREE && s->shards[i].dirty;
    }
    require(prev == s->dirty_tail && count == s->dirty_count && count == marked,
            "%llu in the queue, %llu counted, %llu marked",
            (unsigned long long)count, (unsigned long long)s->dirty_count,
            (unsigned long long)marked);
}

static void check_pins(const ldr_store_t *s)
{
    uint64_t bytes = 0, counted = 0;

    for (uint32_t i = s->pin_head; i != LDR_NIL; i = s->chunks[i].pin_next) {
        require(s->chunks[i].pinned, "chunk %u is listed, not pinned", i);
        bytes += s->chunks[i].bytes;
    }
    for (uint32_t i = 0; i < s->tenant_count; i++) {
        counted += s->tenants[i].pinned_bytes;
        require(s->tenants[i].pinned_bytes <= s->pin_max,
                "tenant %u pins %llu bytes of %llu", i,
                (unsigned long long)s->tenants[i].pinned_bytes,
                (unsigned long long)s->pin_max);
    }
    require(bytes == counted, "%llu bytes pinned, %llu counted",
            (unsigned long long)bytes, (unsigned long long)counted);
}

static void check_entries(const ldr_store_t *s)
{
    for (uint32_t i = 0; i < s->index.entry_top; i++) {
        const ldr_entry_t *e = ldr_index_at(&s->index, i);

        if (e->shards == 0) {
            continue;
        }
        if (e->resident != LDR_NIL) {
            require(e->resident < s->chunk_top &&
                        s->chunks[e->resident].entry == i,
                    "entry %u leads to chunk %u", i, e->resident);
        } else {
            require(ldr_index_has_loc(&s->index, i),
                    "entry %u stands for nothing", i);
        }
    }
}

void store_check(const ldr_store_t *s)
{
    tally_t t = {
        calloc(s->arena.page_count, 1),
        calloc(s->shard_top + 1, 1),
        calloc(s->chunk_top + 1, 1),
    };
    uint32_t held = 0;

    require(t.pages != NULL && t.shards != NULL && t.chunks != NULL,
            "out of memory");
    require(ldr_index_check(&s->index), "the index is broken");
    if (s->policy->ops == &ldr_policy_lru) {
        require(ldr_policy_lru_check(s->policy), "the policy is broken");
    }
    check_lists(s, &t);
    for (uint32_t i = 0; i < s->chunk_top; i++) {
        if (t.chunks[i] == 0) {
            check_chunk(s, &t, i);
            held += s->chunks[i].holds > 0;
        }
    }
    require(held == s->held_chunks, "%u chunks held, %u counted", held,
            s->held_chunks);
    for (uint32_t i = 0; i < s->shard_top; i++) {
        require(t.shards[i] == 1, "shard %u leaked", i);
    }
    for (uint32_t i = 0; i < s->arena.ready_count; i++) {
        require(s->arena.failed_count > 0 || t.pages[i] == 1, "page %u leaked",
                i);
    }
    check_dirty(s);
    check_pins(s);
    check_entries(s);
    free(t.pages);
    free(t.shards);
    free(t.chunks);
}
