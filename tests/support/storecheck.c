#include "support/storecheck.h"

#include <stdlib.h>
#include <string.h>

#include "support/values.h"
#include "support/policycheck.h"

/* How often something was come across, by its number. */
typedef struct tally {
    uint8_t *pages, *shards, *chunks;
    uint64_t *used, *held; /* by tenant: pages, chunks */
    uint64_t *pages_of;    /* by space */
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
        note(t->pages, p, (uint32_t)ldr_arena_table_pages(&s->arena), "page");
        count++;
    }
    return count;
}

static bool has_tenant(const ldr_arena_extent_t *x)
{
    return x->state == LDR_EXTENT_OWNED || x->state == LDR_EXTENT_LEAVING ||
           x->state == LDR_EXTENT_OVERDUE;
}

/* Every page is the shard's, and in an extent of its tenant. */
static void check_owner(const ldr_store_t *s, uint32_t shard, uint32_t tenant)
{
    for (uint32_t p = s->shards[shard].page; p != LDR_NIL;
         p = s->arena.next[p]) {
        uint32_t extent = ldr_arena_extent_of(&s->arena, p);
        const ldr_arena_extent_t *x = &s->arena.extents[extent];

        require(ldr_arena_holder(&s->arena, p) == shard,
                "page %u of shard %u is held by %u", p, shard,
                ldr_arena_holder(&s->arena, p));
        require(x->tenant == tenant && has_tenant(x),
                "shard %u of tenant %u lies in extent %u of tenant %u, state "
                "%d",
                shard, tenant, extent, x->tenant, (int)x->state);
    }
}

static void check_shard(const ldr_store_t *s, tally_t *t, uint32_t shard,
                        uint32_t chunk)
{
    const ldr_shard_t *sh = &s->shards[shard];
    const ldr_chunk_t *c = &s->chunks[chunk];
    uint32_t pages = check_pages(s, t, sh->page);

    note(t->shards, shard, s->shard_top, "shard");
    require(sh->state != LDR_SHARD_FREE, "shard %u is free and in use", shard);
    require(sh->chunk == chunk, "shard %u leads to chunk %u", shard, sh->chunk);
    require(pages >= ldr_arena_pages(sh->length),
            "shard %u of %u bytes has too few pages", shard, sh->length);
    check_owner(s, shard, s->spaces[c->space].tenant);
    t->used[s->spaces[c->space].tenant] += pages;
    t->pages_of[c->space] += pages;
    require(sh->state != LDR_SHARD_READY || sh->admitted,
            "shard %u is ready, and admit() was not asked", shard);
    if (sh->queued != 0) {
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
        require(!c->pinned && !c->transient,
                "chunk %u is detached and pinned or transient", chunk);
    } else {
        require(ldr_index_at(&s->index, c->entry)->resident == chunk,
                "chunk %u is not its entry's", chunk);
    }
}

/* One extent: its pages are blank, free or used, and its owner counts it. */
static void check_extent(const ldr_store_t *s, tally_t *t, uint32_t extent,
                         ldr_owner_t *sums)
{
    const ldr_arena_extent_t *x = &s->arena.extents[extent];
    uint32_t count = 0;

    for (uint32_t p = x->free_head; p != LDR_NIL; p = s->arena.next[p]) {
        note(t->pages, p, (uint32_t)ldr_arena_table_pages(&s->arena),
             "free page");
        require(ldr_arena_extent_of(&s->arena, p) == extent,
                "page %u is free in extent %u", p, extent);
        require(ldr_arena_holder(&s->arena, p) == LDR_NIL,
                "page %u is free and held", p);
        count++;
    }
    require(count == x->free_count, "extent %u: %u free pages, %u counted",
            extent, count, x->free_count);
    require(x->ready_count + x->blank_count <= x->count,
            "extent %u: %u ready, %u blank of %u", extent, x->ready_count,
            x->blank_count, x->count);
    bool left = !has_tenant(x);
    require(left == (x->tenant == LDR_NIL), "extent %u: state %d, tenant %u",
            extent, (int)x->state, x->tenant);
    if (left) {
        require(x->free_count == x->ready_count && x->mappers == 0,
                "extent %u is nobody's and in use", extent);
    } else if (x->state == LDR_EXTENT_OWNED) {
        sums[x->tenant].extent_count++;
        sums[x->tenant].free_count += x->free_count;
        sums[x->tenant].blank_count += x->blank_count;
        sums[x->tenant].hand_count += x->hand_count;
    } else {
        bool overdue = x->state == LDR_EXTENT_OVERDUE;

        sums[x->tenant].overdue_count += overdue;
        sums[x->tenant].leaving_count += !overdue;
        require(!overdue || (x->free_count == 0 && x->heir == LDR_NIL),
                "extent %u is overdue, and somebody waits for it", extent);
        require(x->free_count < x->ready_count || x->mappers > 0 ||
                    x->hand_count > 0,
                "extent %u has not left", extent);
    }
    if (x->heir != LDR_NIL) {
        sums[x->heir].coming_count++;
    }
}

static void check_open_list(const ldr_store_t *s, uint32_t tenant)
{
    uint32_t prev = LDR_NIL, free_pages = 0;

    for (uint32_t i = s->arena.owners[tenant].open - 1; i != LDR_NIL;
         i = s->arena.extents[i].next) {
        const ldr_arena_extent_t *x = &s->arena.extents[i];

        require(x->prev == prev && x->tenant == tenant &&
                    x->state == LDR_EXTENT_OWNED && x->free_count > 0,
                "extent %u is in the list of tenant %u", i, tenant);
        free_pages += x->free_count;
        prev = i;
    }
    require(free_pages == s->arena.owners[tenant].free_count,
            "tenant %u: %u pages in its list", tenant, free_pages);
}

static void check_arena(const ldr_store_t *s, tally_t *t)
{
    ldr_owner_t *sums = calloc(s->tenant_count + 1, sizeof(*sums));
    uint32_t ready = 0, free_pages = 0, empty = 0, unowned = 0;
    uint32_t overdue = 0, backed = 0;

    for (uint32_t i = 0; i < s->arena.slot_count; i++) {
        const ldr_arena_extent_t *x = &s->arena.extents[i];

        check_extent(s, t, i, sums);
        overdue += x->state == LDR_EXTENT_OVERDUE;
        /* EMPTY without an heir: on its way to be spare. */
        backed += x->state == LDR_EXTENT_FREE || x->state == LDR_EXTENT_OWNED ||
                  x->heir != LDR_NIL;
        ready += x->ready_count;
        free_pages += x->free_count;
        empty += x->state == LDR_EXTENT_EMPTY;
        unowned += x->state == LDR_EXTENT_FREE;
    }
    require(ready == s->arena.ready_count &&
                free_pages == s->arena.free_count &&
                empty == s->arena.empty_count && unowned == s->arena.unowned,
            "%u pages ready, %u free, %u extents empty, %u free", ready,
            free_pages, empty, unowned);
    require(overdue == s->arena.overdue_count &&
                backed == s->arena.extent_count,
            "%u extents overdue, %u of %u others", overdue, backed,
            s->arena.extent_count);
    for (uint32_t i = 0; i < s->tenant_count; i++) {
        const ldr_owner_t *o = &s->arena.owners[i];

        require(o->extent_count == sums[i].extent_count &&
                    o->free_count == sums[i].free_count &&
                    o->blank_count == sums[i].blank_count &&
                    o->hand_count == sums[i].hand_count &&
                    o->leaving_count == sums[i].leaving_count &&
                    o->overdue_count == sums[i].overdue_count &&
                    o->coming_count == sums[i].coming_count,
                "tenant %u counts its extents wrong", i);
        require(o->pages_max == 0 || o->used_count <= o->pages_max ||
                    o->used_count == t->used[i],
                "tenant %u is over its limit", i);
        check_open_list(s, i);
    }
    free(sums);
}

/* Free lists first: what is on none of them below the top is in use. */
static void check_lists(const ldr_store_t *s, tally_t *t)
{
    for (uint32_t i = s->shard_free; i != LDR_NIL; i = s->shards[i].next) {
        note(t->shards, i, s->shard_top, "free shard");
    }
    for (uint32_t i = s->chunk_free; i != LDR_NIL; i = s->chunks[i].shards) {
        note(t->chunks, i, s->chunk_top, "free chunk");
    }
}

/* One subqueue; gives how many shards it has. */
static uint64_t check_subqueue(const ldr_store_t *s, unsigned queue,
                               uint32_t subqueue)
{
    const ldr_subqueue_t *l = &s->queues[queue].subqueues[subqueue];
    uint64_t count = 0, bytes = 0;
    uint32_t prev = LDR_NIL;

    for (uint32_t i = l->head; count < l->count;
         i = s->shards[i].links[queue].next) {
        require(i < s->shard_top && (s->shards[i].queued >> queue & 1u) != 0 &&
                    s->shards[i].links[queue].prev == prev,
                "shard %u is in queue %u, but does not know it", i, queue);
        require(!s->queues[queue].by_space ||
                    s->chunks[s->shards[i].chunk].space == subqueue,
                "shard %u is in another space's subqueue", i);
        prev = i;
        bytes += s->shards[i].length;
        count++;
    }
    require(prev == l->tail && bytes == l->bytes,
            "subqueue %u of queue %u: end", subqueue, queue);
    return count;
}

static void check_queue(const ldr_store_t *s, unsigned queue)
{
    const ldr_behind_t *q = &s->queues[queue];
    uint64_t count = 0, marked = 0, waiting[2] = {0};
    uint32_t before = LDR_NIL;

    for (uint32_t i = q->first; i != LDR_NIL; i = q->subqueues[i].after) {
        require(q->subqueues[i].before == before && q->subqueues[i].count > 0,
                "subqueue %u of queue %u stands in line", i, queue);
        count += check_subqueue(s, queue, i);
        before = i;
    }
    for (uint32_t i = 0; i < s->shard_top; i++) {
        const ldr_shard_t *sh = &s->shards[i];

        if (sh->state != LDR_SHARD_FREE && (sh->queued >> queue & 1u) != 0) {
            marked++;
            waiting[sh->turns >> queue & 1u]++;
        }
    }
    require(before == q->last && count == q->count && count == marked &&
                waiting[0] == q->waiting[0] && waiting[1] == q->waiting[1],
            "queue %u: %llu in it, %llu counted, %llu marked", queue,
            (unsigned long long)count, (unsigned long long)q->count,
            (unsigned long long)marked);
}

static void check_pins(const ldr_store_t *s, uint32_t tenant)
{
    const ldr_tenant_t *t = &s->tenants[tenant];
    uint64_t bytes = 0;

    for (uint32_t i = t->pin_head; i != LDR_NIL; i = s->chunks[i].pin_next) {
        require(s->chunks[i].pinned &&
                    s->spaces[s->chunks[i].space].tenant == tenant,
                "chunk %u is listed, not pinned or another's", i);
        bytes += s->chunks[i].bytes;
    }
    require(t->pinned_bytes <= s->pin_max, "tenant %u pins %llu bytes of %llu",
            tenant, (unsigned long long)t->pinned_bytes,
            (unsigned long long)s->pin_max);
    require(bytes == t->pinned_bytes, "%llu bytes pinned, %llu counted",
            (unsigned long long)bytes, (unsigned long long)t->pinned_bytes);
}

/* Chunks on their way to the disk: in the list exactly if they say so. */
static void check_transient(const ldr_store_t *s, uint32_t tenant)
{
    const ldr_tenant_t *t = &s->tenants[tenant];
    uint32_t listed = 0, pages = 0, prev = LDR_NIL;

    for (uint32_t i = t->transient_head; i != LDR_NIL;
         i = s->chunks[i].pin_next) {
        const ldr_chunk_t *c = &s->chunks[i];

        require(c->transient && !c->pinned && c->entry != LDR_NIL &&
                    c->pin_prev == prev && s->spaces[c->space].tenant == tenant,
                "chunk %u is listed, not transient or another's", i);
        for (uint32_t k = c->shards; k != LDR_NIL; k = s->shards[k].next) {
            pages += ldr_arena_pages(s->shards[k].length);
        }
        listed++;
        prev = i;
    }
    require(prev == t->transient_tail, "the transient of tenant %u do not end",
            tenant);
    require(pages == t->transient_pages, "%u pages transient, %u counted",
            pages, t->transient_pages);
    for (uint32_t i = 0; i < s->index.entry_top; i++) {
        const ldr_entry_t *e = ldr_index_at(&s->index, i);

        if (e->shards != 0 && e->resident != LDR_NIL &&
            s->spaces[e->space].tenant == tenant) {
            listed -= s->chunks[e->resident].transient;
        }
    }
    require(listed == 0, "tenant %u: chunks are transient and not listed",
            tenant);
}

/* What spaces and tenants have in the index and on disks. */
static void check_counts(const ldr_store_t *s)
{
    enum { SEGMENTS = 64 }; /* more are in no test that looks */
    uint64_t *chunks = calloc(s->space_count + 1, sizeof(*chunks));
    uint64_t *bytes = calloc(s->space_count + 1, sizeof(*bytes));
    uint64_t *tenants = calloc(s->tenant_count + 1, sizeof(*tenants));
    uint32_t *blocks =
        calloc((size_t)(s->tenant_count + 1) * (s->disks + 1) * SEGMENTS,
               sizeof(*blocks));

    for (uint32_t i = 0; i < s->index.entry_top; i++) {
        const ldr_entry_t *e = ldr_index_at(&s->index, i);
        const ldr_space_t *space = &s->spaces[e->space];

        if (e->shards == 0) {
            continue;
        }
        chunks[e->space] += e->epoch == space->epoch;
        for (uint32_t k = 0; k < e->shards; k++) {
            ldr_loc_t loc = ldr_index_loc(&s->index, i, k);

            bytes[e->space] += e->epoch == space->epoch
                                   ? (uint64_t)ldr_loc_blocks(loc) * LDR_BLOCK
                                   : 0;
            if (loc != 0 && space->counted && ldr_loc_disk(loc) < s->disks &&
                ldr_loc_segment(loc) < SEGMENTS) {
                blocks[(space->tenant * s->disks + ldr_loc_disk(loc)) *
                           SEGMENTS +
                       ldr_loc_segment(loc)] += ldr_loc_blocks(loc);
            }
        }
    }
    for (uint32_t i = 0; i < s->space_count; i++) {
        const ldr_space_t *space = &s->spaces[i];

        require(chunks[i] == space->chunks && bytes[i] == space->ssd_bytes,
                "space %u: %llu chunks, %llu bytes on disk; counted %llu, %llu",
                i, (unsigned long long)chunks[i], (unsigned long long)bytes[i],
                (unsigned long long)space->chunks,
                (unsigned long long)space->ssd_bytes);
        if (space->counted) {
            tenants[space->tenant] += bytes[i];
        }
    }
    for (uint32_t i = 0; i < s->tenant_count; i++) {
        require(tenants[i] == s->tenants[i].ssd_bytes,
                "tenant %u: %llu bytes on disk, counted %llu", i,
                (unsigned long long)tenants[i],
                (unsigned long long)s->tenants[i].ssd_bytes);
        for (uint32_t k = 0; k < s->disks * SEGMENTS; k++) {
            uint32_t has =
                s->tenants[i]
                    .ssd_blocks[ldr_store_segment(k / SEGMENTS, k % SEGMENTS)];

            require(has == blocks[i * s->disks * SEGMENTS + k],
                    "tenant %u: disk %u segment %u: counts %u blocks", i,
                    k / SEGMENTS, k % SEGMENTS, has);
        }
    }
    free(chunks);
    free(bytes);
    free(tenants);
    free(blocks);
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

static void check_tenants(const ldr_store_t *s, const tally_t *t)
{
    for (uint32_t i = 0; i < s->tenant_count; i++) {
        const ldr_tenant_t *tenant = &s->tenants[i];

        if (s->policy == &ldr_policy_lru || s->policy == &ldr_policy_default) {
            require(ldr_policy_default_check(tenant->policy),
                    "the policy of tenant %u is broken", i);
        }
        check_pins(s, i);
        check_transient(s, i);
        require(tenant->held_chunks == t->held[i],
                "tenant %u: %llu chunks held, %u counted", i,
                (unsigned long long)t->held[i], tenant->held_chunks);
        require(s->arena.owners[i].used_count == t->used[i],
                "tenant %u: %llu pages used, %u counted", i,
                (unsigned long long)t->used[i], s->arena.owners[i].used_count);
    }
    for (uint32_t i = 0; i < s->space_count; i++) {
        require(s->spaces[i].dram_pages == t->pages_of[i],
                "space %u: %llu pages, %llu counted", i,
                (unsigned long long)t->pages_of[i],
                (unsigned long long)s->spaces[i].dram_pages);
    }
}

void store_check(const ldr_store_t *s)
{
    tally_t t = {
        calloc(ldr_arena_table_pages(&s->arena), 1),
        calloc(s->shard_top + 1, 1),
        calloc(s->chunk_top + 1, 1),
        calloc(s->tenant_count + 1, sizeof(uint64_t)),
        calloc(s->tenant_count + 1, sizeof(uint64_t)),
        calloc(s->space_count + 1, sizeof(uint64_t)),
    };
    uint32_t held = 0, seen = 0;

    require(t.pages != NULL && t.shards != NULL && t.chunks != NULL &&
                t.used != NULL && t.held != NULL && t.pages_of != NULL,
            "out of memory");
    require(ldr_index_check(&s->index), "the index is broken");
    check_lists(s, &t);
    for (uint32_t i = 0; i < s->chunk_top; i++) {
        if (t.chunks[i] == 0) {
            check_chunk(s, &t, i);
            held += s->chunks[i].holds > 0;
            t.held[s->spaces[s->chunks[i].space].tenant] +=
                s->chunks[i].holds > 0;
        }
    }
    require(held == s->held_chunks, "%u chunks held, %u counted", held,
            s->held_chunks);
    for (uint32_t i = 0; i < s->shard_top; i++) {
        require(t.shards[i] == 1, "shard %u leaked", i);
    }
    check_arena(s, &t);
    for (uint32_t i = 0; i < ldr_arena_table_pages(&s->arena); i++) {
        seen += t.pages[i];
    }
    require(seen == s->arena.ready_count, "%u of %u pages leaked",
            s->arena.ready_count - seen, s->arena.ready_count);
    check_tenants(s, &t);
    for (unsigned i = 0; i < LDR_QUEUES_MAX; i++) {
        if (s->queues[i].subqueues != NULL) {
            check_queue(s, i);
        }
    }
    check_entries(s);
    check_counts(s);
    free(t.pages);
    free(t.shards);
    free(t.chunks);
    free(t.used);
    free(t.held);
    free(t.pages_of);
}
