#include "store/store.h"

#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"

/* Remembers the first invariant that does not hold; the node then answers no
 * more calls. Gives whether it holds. */
#define HOLDS(s, condition)                                                    \
    ((condition) || ((s)->broken = (s)->broken ? (s)->broken : #condition, 0))

static size_t slots_of(const ldr_store_t *s)
{
    /* A shard has at least one page, a chunk at least one shard. */
    return s->arena.page_count;
}

larder_status_t ldr_store_init(ldr_store_t *s, const ldr_store_params_t *params)
{
    memset(s, 0, sizeof(*s));
    s->chunk_free = s->shard_free = LDR_NIL;
    s->dirty_head = s->dirty_tail = LDR_NIL;
    s->pin_max = params->pin_max;
    s->policy = params->policy;
    s->disks = params->disks;

    larder_status_t st = ldr_arena_init(
        &s->arena, params->dram_bytes, params->dram_backed, params->numa_nodes);
    if (st != LARDER_OK) {
        return st;
    }
    st = ldr_index_init(&s->index, params->entry_max, params->seed);
    if (st != LARDER_OK) {
        ldr_arena_destroy(&s->arena);
        return st;
    }
    size_t slots = slots_of(s);
    s->chunks = ldr_reserve(slots * sizeof(*s->chunks));
    s->shards = ldr_reserve(slots * sizeof(*s->shards));
    s->ghosts = ldr_reserve(LDR_GHOSTS * sizeof(*s->ghosts));
    s->spaces = ldr_reserve(LDR_SPACES_MAX * sizeof(*s->spaces));
    s->tenants = ldr_reserve(LDR_TENANTS_MAX * sizeof(*s->tenants));
    if (s->chunks == NULL || s->shards == NULL || s->ghosts == NULL ||
        s->spaces == NULL || s->tenants == NULL) {
        ldr_store_destroy(s);
        return LARDER_E_NO_MEMORY;
    }
    return LARDER_OK;
}

void ldr_store_destroy(ldr_store_t *s)
{
    size_t slots = slots_of(s);

    for (uint32_t i = 0; i < s->tenant_count; i++) {
        s->policy->destroy(s->tenants[i].policy);
        ldr_unreserve(s->tenants[i].ssd_blocks,
                      ldr_store_segment(s->disks, 0) *
                          sizeof(*s->tenants[i].ssd_blocks));
    }
    ldr_unreserve(s->chunks, slots * sizeof(*s->chunks));
    ldr_unreserve(s->shards, slots * sizeof(*s->shards));
    ldr_unreserve(s->ghosts, LDR_GHOSTS * sizeof(*s->ghosts));
    ldr_unreserve(s->spaces, LDR_SPACES_MAX * sizeof(*s->spaces));
    ldr_unreserve(s->tenants, LDR_TENANTS_MAX * sizeof(*s->tenants));
    ldr_index_destroy(&s->index);
    ldr_arena_destroy(&s->arena);
    memset(s, 0, sizeof(*s));
}

/* ---- the queue of what is to be written down ---- */

void ldr_store_dirty_push(ldr_store_t *s, uint32_t shard)
{
    ldr_shard_t *sh = &s->shards[shard];

    sh->dirty = 1;
    sh->dirty_prev = s->dirty_tail;
    sh->dirty_next = LDR_NIL;
    if (s->dirty_tail != LDR_NIL) {
        s->shards[s->dirty_tail].dirty_next = shard;
    } else {
        s->dirty_head = shard;
    }
    s->dirty_tail = shard;
    s->dirty_count++;
}

void ldr_store_dirty_remove(ldr_store_t *s, uint32_t shard)
{
    ldr_shard_t *sh = &s->shards[shard];

    if (!HOLDS(s, sh->dirty)) {
        return;
    }
    if (sh->dirty_prev != LDR_NIL) {
        s->shards[sh->dirty_prev].dirty_next = sh->dirty_next;
    } else {
        s->dirty_head = sh->dirty_next;
    }
    if (sh->dirty_next != LDR_NIL) {
        s->shards[sh->dirty_next].dirty_prev = sh->dirty_prev;
    } else {
        s->dirty_tail = sh->dirty_prev;
    }
    sh->dirty = 0;
    s->dirty_count--;
    s->dirty_left = true;
}

/* ---- chunks and shards ---- */

static uint32_t chunk_new(ldr_store_t *s)
{
    uint32_t chunk = s->chunk_free;

    if (chunk != LDR_NIL) {
        s->chunk_free = s->chunks[chunk].shards;
    } else if (s->chunk_top < slots_of(s)) {
        chunk = s->chunk_top++;
    } else {
        return LDR_NIL;
    }
    memset(&s->chunks[chunk], 0, sizeof(s->chunks[chunk]));
    s->chunks[chunk].shards = LDR_NIL;
    return chunk;
}

static uint32_t shard_new(ldr_store_t *s)
{
    uint32_t shard = s->shard_free;

    if (shard != LDR_NIL) {
        s->shard_free = s->shards[shard].next;
    } else if (s->shard_top < slots_of(s)) {
        shard = s->shard_top++;
    } else {
        return LDR_NIL;
    }
    memset(&s->shards[shard], 0, sizeof(s->shards[shard]));
    return shard;
}

static ldr_tenant_t *tenant_of(const ldr_store_t *s, const ldr_chunk_t *c)
{
    return &s->tenants[s->spaces[c->space].tenant];
}

static void shard_free(ldr_store_t *s, uint32_t shard)
{
    ldr_shard_t *sh = &s->shards[shard];
    ldr_space_t *space = &s->spaces[s->chunks[sh->chunk].space];
    uint32_t before = s->arena.free_count;

    ldr_arena_give(&s->arena, sh->page);
    space->dram_pages -= s->arena.free_count - before;
    sh->state = LDR_SHARD_FREE;
    sh->next = s->shard_free;
    s->shard_free = shard;
}

/* Pins within the tenant's budget; over it the chunk is simply not pinned. */
static void pin(ldr_store_t *s, uint32_t chunk, uint32_t bytes)
{
    ldr_chunk_t *c = &s->chunks[chunk];
    ldr_tenant_t *t = tenant_of(s, c);

    if (t->pinned_bytes + bytes > s->pin_max) {
        return;
    }
    c->pinned = 1;
    c->pin_prev = t->pin_tail;
    c->pin_next = LDR_NIL;
    if (t->pin_tail != LDR_NIL) {
        s->chunks[t->pin_tail].pin_next = chunk;
    } else {
        t->pin_head = chunk;
    }
    t->pin_tail = chunk;
    s->policy->hold(t->policy, chunk);
    ldr_index_at(&s->index, c->entry)->depth_flags |= (uint32_t)LDR_ENTRY_PINNED
                                                      << 24;
}

/* The chunk is held, or about to leave the policy: which stays as it is. */
static void unpin(ldr_store_t *s, ldr_chunk_t *c)
{
    ldr_tenant_t *t = tenant_of(s, c);

    if (!c->pinned) {
        return;
    }
    if (c->pin_prev != LDR_NIL) {
        s->chunks[c->pin_prev].pin_next = c->pin_next;
    } else {
        t->pin_head = c->pin_next;
    }
    if (c->pin_next != LDR_NIL) {
        s->chunks[c->pin_next].pin_prev = c->pin_prev;
    } else {
        t->pin_tail = c->pin_prev;
    }
    t->pinned_bytes -= c->bytes;
    c->pinned = 0;
}

static void count_bytes(ldr_store_t *s, ldr_chunk_t *c, int64_t bytes)
{
    c->bytes = (uint32_t)(c->bytes + bytes);
    if (c->pinned) {
        tenant_of(s, c)->pinned_bytes += (uint64_t)bytes;
    }
}

/* Frees a chunk nobody holds and that is detached, with all its shards. */
static void chunk_free(ldr_store_t *s, uint32_t chunk)
{
    ldr_chunk_t *c = &s->chunks[chunk];
    uint32_t shard = c->shards;

    while (shard != LDR_NIL) {
        uint32_t next = s->shards[shard].next;

        shard_free(s, shard);
        shard = next;
    }
    c->shards = s->chunk_free;
    s->chunk_free = chunk;
}

/* Nobody finds the chunk from now on. Shards that were to be written down are
 * not any more: that would bring back what was removed. */
static void chunk_detach(ldr_store_t *s, uint32_t chunk)
{
    ldr_chunk_t *c = &s->chunks[chunk];

    for (uint32_t i = c->shards; i != LDR_NIL; i = s->shards[i].next) {
        if (s->shards[i].dirty) {
            ldr_store_dirty_remove(s, i);
        }
    }
    unpin(s, c);
    s->policy->remove(tenant_of(s, c)->policy, chunk);
    ldr_index_at(&s->index, c->entry)->resident = LDR_NIL;
    c->entry = LDR_NIL;
    if (c->holds == 0) {
        chunk_free(s, chunk);
    }
}

/* The entry goes, and with it what was counted of it. */
static void entry_remove(ldr_store_t *s, uint32_t entry)
{
    const ldr_entry_t *e = ldr_index_at(&s->index, entry);
    ldr_space_t *space = &s->spaces[e->space];

    if (e->epoch == space->epoch) {
        space->chunks--;
    }
    for (uint32_t i = 0; i < e->shards; i++) {
        if (ldr_index_loc(&s->index, entry, i) != 0) {
            ldr_store_set_loc(s, entry, i, 0);
        }
    }
    ldr_index_remove(&s->index, entry);
}

void ldr_store_hold(ldr_store_t *s, uint32_t chunk)
{
    ldr_chunk_t *c = &s->chunks[chunk];

    if (c->holds++ == 0) {
        ldr_tenant_t *t = tenant_of(s, c);

        s->held_chunks++;
        t->held_chunks++;
        if (c->entry != LDR_NIL && !c->pinned) {
            s->policy->hold(t->policy, chunk);
        }
    }
}

void ldr_store_release(ldr_store_t *s, uint32_t chunk)
{
    ldr_chunk_t *c = &s->chunks[chunk];

    if (!HOLDS(s, c->holds > 0) || --c->holds > 0) {
        return;
    }
    ldr_tenant_t *t = tenant_of(s, c);
    s->held_chunks--;
    t->held_chunks--;
    if (c->entry == LDR_NIL) {
        chunk_free(s, chunk);
    } else if (c->leaving) {
        ldr_store_evict_chunk(s, chunk);
    } else if (!c->pinned) {
        s->policy->release(t->policy, chunk);
    }
}

void ldr_store_forget(ldr_store_t *s, uint32_t entry)
{
    ldr_entry_t *e = ldr_index_at(&s->index, entry);

    if (!HOLDS(s, e->shards > 0)) { /* an entry that is in use */
        return;
    }
    if (e->resident != LDR_NIL) {
        chunk_detach(s, e->resident);
    }
    entry_remove(s, entry);
}

void ldr_store_drop_loc(ldr_store_t *s, uint32_t entry, uint32_t number,
                        bool evicted)
{
    ldr_entry_t *e = ldr_index_at(&s->index, entry);

    ldr_store_set_loc(s, entry, number, 0);
    if (e->resident == LDR_NIL && !ldr_index_has_loc(&s->index, entry)) {
        if (evicted) {
            ldr_store_ghost_mark(s, e->fingerprint);
        }
        entry_remove(s, entry);
    }
}

/* Takes a chunk out of DRAM, and its entry out of the index if nothing of it
 * is on disk. */
static void chunk_drop(ldr_store_t *s, uint32_t chunk)
{
    uint32_t entry = s->chunks[chunk].entry;
    uint64_t fingerprint = ldr_index_at(&s->index, entry)->fingerprint;

    chunk_detach(s, chunk);
    if (!ldr_index_has_loc(&s->index, entry)) {
        ldr_store_ghost_mark(s, fingerprint);
        entry_remove(s, entry);
    }
}

static uint32_t oldest_pinned(const ldr_store_t *s, const ldr_tenant_t *t)
{
    uint32_t chunk = t->pin_head;

    while (chunk != LDR_NIL && s->chunks[chunk].holds > 0) {
        chunk = s->chunks[chunk].pin_next;
    }
    return chunk;
}

void ldr_store_evict_chunk(ldr_store_t *s, uint32_t chunk)
{
    const ldr_chunk_t *c = &s->chunks[chunk];

    if (c->entry == LDR_NIL) {
        return;
    }
    LDR_COUNT(s, c->space, evicted_chunks, 1);
    for (uint32_t i = c->shards; i != LDR_NIL; i = s->shards[i].next) {
        LDR_COUNT(s, c->space, evicted_bytes, s->shards[i].length);
        LDR_COUNT(s, c->space, saves_dropped_evicted, s->shards[i].dirty);
    }
    chunk_drop(s, chunk);
}

bool ldr_store_evict(ldr_store_t *s, uint32_t tenant)
{
    const ldr_tenant_t *t = &s->tenants[tenant];
    uint32_t chunk = s->policy->victim(t->policy);

    if (chunk == LDR_NIL) {
        chunk = oldest_pinned(s, t);
    }
    if (chunk == LDR_NIL) {
        return false;
    }
    ldr_store_evict_chunk(s, chunk);
    return true;
}

void ldr_store_discard(ldr_store_t *s, uint32_t chunk)
{
    const ldr_chunk_t *c = &s->chunks[chunk];

    if (c->entry == LDR_NIL) {
        return;
    }
    for (uint32_t i = c->shards; i != LDR_NIL; i = s->shards[i].next) {
        LDR_COUNT(s, c->space, saves_dropped_evicted, s->shards[i].dirty);
    }
    chunk_drop(s, chunk);
}

/* ---- finding ---- */

ldr_name_t ldr_store_name(const ldr_store_t *s, uint32_t space, uint32_t group,
                          const larder_key_t *key)
{
    return (ldr_name_t){
        .key = key,
        .fingerprint = ldr_index_fingerprint(&s->index, space, group, key),
        .space = space,
        .group = group,
    };
}

/* Whether a save copies into it: then its end is near. */
static bool is_filling(const ldr_store_t *s, uint32_t chunk)
{
    for (uint32_t i = s->chunks[chunk].shards; i != LDR_NIL;
         i = s->shards[i].next) {
        if (s->shards[i].state == LDR_SHARD_FILLING) {
            return true;
        }
    }
    return false;
}

uint32_t ldr_store_find(ldr_store_t *s, const ldr_name_t *name, uint32_t after,
                        uint32_t now_s, larder_cause_t *cause_p)
{
    uint32_t entry = ldr_index_find(&s->index, name->fingerprint, name->space,
                                    name->group, after);
    if (entry == LDR_NIL) {
        *cause_p = ldr_store_ghost_find(s, name->fingerprint)
                       ? LARDER_CAUSE_EVICTED
                       : LARDER_CAUSE_ABSENT;
        return LDR_NIL;
    }
    ldr_entry_t *e = ldr_index_at(&s->index, entry);
    if (e->epoch != s->spaces[name->space].epoch ||
        (e->expires_s != 0 && now_s >= e->expires_s)) {
        ldr_store_forget(s, entry);
        *cause_p = LARDER_CAUSE_STALE;
        return LDR_NIL;
    }
    if (e->resident != LDR_NIL && s->chunks[e->resident].leaving &&
        !is_filling(s, e->resident)) {
        /* Nobody else gets hold of it, or its extent would never leave. */
        bool on_disk = ldr_index_has_loc(&s->index, entry);

        ldr_store_evict_chunk(s, e->resident);
        if (!on_disk) {
            *cause_p = LARDER_CAUSE_EVICTED;
            return LDR_NIL;
        }
    }
    if (e->resident != LDR_NIL &&
        memcmp(&s->chunks[e->resident].key, name->key, sizeof(*name->key))) {
        *cause_p = LARDER_CAUSE_ABSENT;
        return LDR_NIL;
    }
    *cause_p = LARDER_CAUSE_NONE;
    return entry;
}

uint32_t ldr_store_resident(const ldr_store_t *s, uint32_t entry,
                            uint32_t number)
{
    uint32_t chunk = ldr_index_at(&s->index, entry)->resident;

    if (chunk == LDR_NIL) {
        return LDR_NIL;
    }
    for (uint32_t i = s->chunks[chunk].shards; i != LDR_NIL;
         i = s->shards[i].next) {
        if (s->shards[i].number == number) {
            return i;
        }
    }
    return LDR_NIL;
}

/* ---- reserve, commit, abort ---- */

uint32_t ldr_store_enter(ldr_store_t *s, const ldr_name_t *name,
                         const larder_key_t *parent, uint32_t depth,
                         uint32_t shards)
{
    uint32_t above = LDR_NIL;

    if (parent != NULL) {
        ldr_name_t p = ldr_store_name(s, name->space, name->group, parent);

        above =
            ldr_index_find(&s->index, p.fingerprint, p.space, p.group, LDR_NIL);
    }
    uint32_t entry = ldr_index_add(&s->index, name->fingerprint, name->space,
                                   name->group, shards, above);
    if (entry != LDR_NIL) {
        ldr_entry_t *e = ldr_index_at(&s->index, entry);

        e->parent = above;
        e->depth_flags = depth & LDR_DEPTH_MAX;
        e->resident = LDR_NIL;
        e->epoch = s->spaces[name->space].epoch;
        s->spaces[name->space].chunks++;
    }
    return entry;
}

static uint32_t entry_new(ldr_store_t *s, const ldr_reserve_t *r)
{
    uint32_t tenant = s->spaces[r->name.space].tenant;
    uint32_t entry;

    do {
        entry = ldr_store_enter(s, &r->name, r->parent, r->depth, r->shards);
    } while (entry == LDR_NIL && ldr_store_evict(s, tenant));
    if (entry != LDR_NIL) {
        ldr_entry_t *e = ldr_index_at(&s->index, entry);

        e->used_s = r->now_s;
        e->expires_s = r->expires_s;
    }
    return entry;
}

static void chunk_attach(ldr_store_t *s, uint32_t chunk, uint32_t entry,
                         const ldr_reserve_t *r)
{
    ldr_chunk_t *c = &s->chunks[chunk];
    ldr_entry_t *e = ldr_index_at(&s->index, entry);
    uint32_t parent = LDR_NIL;

    c->key = *r->name.key;
    if (r->parent != NULL) {
        c->parent = *r->parent;
    }
    c->entry = entry;
    c->space = (uint16_t)r->name.space;
    c->group = (uint8_t)r->name.group;
    c->epoch = e->epoch;
    c->depth = ldr_entry_depth(e);
    c->written_s = r->now_s;
    c->expires_s = e->expires_s;
    e->resident = chunk;
    /* The parent's entry is a hint; a wrong one costs order, never bytes. */
    if (e->parent != LDR_NIL) {
        parent = ldr_index_at(&s->index, e->parent)->resident;
    }
    if (parent == chunk) {
        parent = LDR_NIL;
    }
    s->policy->add(tenant_of(s, c)->policy, chunk, parent, c->depth);
    if (r->pin) {
        pin(s, chunk, r->length);
    }
}

/* Pages of the tenant's, making room where there is none. LDR_NIL: not even by
 * evicting all that nobody holds. */
static uint32_t pages_for(ldr_store_t *s, uint32_t tenant, uint32_t count)
{
    uint32_t page;

    while ((page = ldr_arena_take(&s->arena, tenant, count)) == LDR_NIL) {
        if (!ldr_arena_claim(&s->arena, tenant, true) &&
            !ldr_store_evict(s, tenant)) {
            break;
        }
    }
    return page;
}

larder_status_t ldr_store_reserve(ldr_store_t *s, uint32_t entry,
                                  const ldr_reserve_t *r, uint32_t *shard_p)
{
    ldr_space_t *space = &s->spaces[r->name.space];
    uint32_t pages = ldr_arena_pages(r->length);
    uint32_t chunk = LDR_NIL;
    uint32_t page, shard;
    larder_status_t st = LARDER_E_FULL;

    if (space->tenant == LDR_NIL) {
        return LARDER_E_SPACE;
    }
    /* First hold what making room might otherwise evict. */
    if (entry != LDR_NIL) {
        chunk = ldr_index_at(&s->index, entry)->resident;
        if (chunk != LDR_NIL) {
            ldr_store_hold(s, chunk);
        }
    }
    page = pages_for(s, space->tenant, pages);
    if (page == LDR_NIL) {
        goto err_release;
    }
    /* There are as many slots as pages, so both exist. */
    shard = shard_new(s);
    if (chunk == LDR_NIL) {
        /* An entry without a chunk in DRAM is on disk and safe from evict. */
        if (entry == LDR_NIL) {
            entry = entry_new(s, r);
        }
        if (entry == LDR_NIL) {
            st = LARDER_E_LIMIT;
            goto err_shard;
        }
        chunk = chunk_new(s);
        chunk_attach(s, chunk, entry, r);
        ldr_store_hold(s, chunk);
    }
    ldr_chunk_t *c = &s->chunks[chunk];
    ldr_shard_t *sh = &s->shards[shard];
    ldr_entry_t *e = ldr_index_at(&s->index, c->entry);
    e->expires_s = ldr_store_sooner(e->expires_s, r->expires_s);
    c->expires_s = e->expires_s;
    if (c->pinned && tenant_of(s, c)->pinned_bytes + r->length > s->pin_max) {
        unpin(s, c); /* it grew out of the budget */
        e->depth_flags &= ~((uint32_t)LDR_ENTRY_PINNED << 24);
    }
    sh->chunk = chunk;
    sh->number = (uint8_t)r->number;
    sh->state = (uint8_t)r->state;
    sh->page = page;
    sh->length = r->length;
    sh->next = c->shards;
    c->shards = shard;
    space->dram_pages += pages;
    ldr_arena_hand(&s->arena, page, shard);
    count_bytes(s, c, r->length);
    *shard_p = shard;
    return LARDER_OK;

err_shard:
    s->shards[shard].next = s->shard_free;
    s->shard_free = shard;
    ldr_arena_give(&s->arena, page);
err_release:
    if (chunk != LDR_NIL) {
        ldr_store_release(s, chunk);
    }
    return st;
}

void ldr_store_set_length(ldr_store_t *s, uint32_t shard, uint32_t length)
{
    ldr_shard_t *sh = &s->shards[shard];

    count_bytes(s, &s->chunks[sh->chunk],
                (int64_t)length - (int64_t)sh->length);
    sh->length = length;
}

bool ldr_store_commit(ldr_store_t *s, uint32_t shard, uint32_t crc,
                      bool checked, bool dirty)
{
    ldr_shard_t *sh = &s->shards[shard];
    ldr_chunk_t *c = &s->chunks[sh->chunk];

    if (!HOLDS(s, sh->state == LDR_SHARD_FILLING ||
                      sh->state == LDR_SHARD_READING) ||
        c->entry == LDR_NIL || c->epoch != s->spaces[c->space].epoch) {
        return false;
    }
    sh->crc = crc;
    sh->checked = checked;
    sh->state = LDR_SHARD_READY;
    if (dirty) {
        sh->save_seq = ++s->save_seq;
        if (s->write_behind) {
            ldr_store_dirty_push(s, shard);
        }
    }
    return true;
}

void ldr_store_abort(ldr_store_t *s, uint32_t shard)
{
    ldr_shard_t *sh = &s->shards[shard];
    uint32_t chunk = sh->chunk;
    ldr_chunk_t *c = &s->chunks[chunk];
    uint32_t *link = &c->shards;

    if (!HOLDS(s, sh->state != LDR_SHARD_READY)) {
        return;
    }
    while (*link != shard) {
        link = &s->shards[*link].next;
    }
    *link = sh->next;
    count_bytes(s, c, -(int64_t)sh->length);
    shard_free(s, shard);
    /* A chunk with nothing in DRAM goes, and its entry with it if it was only
     * ever here. Others may hold it meanwhile: then the last one frees it. */
    if (c->shards == LDR_NIL && c->entry != LDR_NIL) {
        uint32_t entry = c->entry;

        chunk_detach(s, chunk);
        if (!ldr_index_has_loc(&s->index, entry)) {
            entry_remove(s, entry);
        }
    }
    ldr_store_release(s, chunk);
}
