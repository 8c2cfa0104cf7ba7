/*
 * Chunks and shards in DRAM: making, holding, detaching, freeing. Finding is in
 * find.c, choosing what goes in evict.c. The invariants are in store.h. All
 * with the node's lock, which debug builds check.
 *
 * Free chunks and shards are linked through `shards` and `next`; those from
 * chunk_top and shard_top on were never used. What a function here gives back
 * to the arena nobody holds: a chunk that is held is detached first, and freed
 * when its last hold ends.
 */
#include "store/store.h"

#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "store/store_int.h"

static size_t slots_of(const ldr_store_t *s)
{
    /* A shard has at least one page, a chunk at least one shard. */
    return ldr_arena_table_pages(&s->arena);
}

larder_status_t ldr_store_init(ldr_store_t *s, const ldr_store_params_t *params)
{
    memset(s, 0, sizeof(*s));
    s->chunk_free = s->shard_free = LDR_NIL;
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
    for (unsigned i = 0; i < LDR_QUEUES_MAX; i++) {
        ldr_behind_close(s, i);
    }
    ldr_index_destroy(&s->index);
    ldr_arena_destroy(&s->arena);
    memset(s, 0, sizeof(*s));
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

static void shard_free(ldr_store_t *s, uint32_t shard)
{
    ldr_shard_t *sh = &s->shards[shard];
    ldr_space_t *space = &s->spaces[s->chunks[sh->chunk].space];

    /* Its pages are its own until here, and nobody looks for it any more. */
    if (!LDR_HOLDS(sh->state != LDR_SHARD_FREE) ||
        !LDR_HOLDS(ldr_arena_holder(&s->arena, sh->page) == shard)) {
        return;
    }
    LDR_ASSERT(sh->waiters == NULL && sh->queued == 0);
    uint32_t pages = ldr_arena_give(&s->arena, sh->page);
    LDR_ASSERT(space->dram_pages >= pages);
    space->dram_pages -= pages;
    sh->state = LDR_SHARD_FREE;
    sh->next = s->shard_free;
    s->shard_free = shard;
}

static void count_bytes(ldr_store_t *s, ldr_chunk_t *c, int64_t bytes)
{
    LDR_ASSERT((int64_t)c->bytes + bytes >= 0);
    c->bytes = (uint32_t)(c->bytes + bytes);
    if (c->pinned) {
        ldr_tenant_of(s, c)->pinned_bytes += (uint64_t)bytes;
    }
}

/* Frees a chunk nobody holds and that is detached, with all its shards. */
static void chunk_free(ldr_store_t *s, uint32_t chunk)
{
    ldr_chunk_t *c = &s->chunks[chunk];
    uint32_t shard = c->shards;

    if (!LDR_HOLDS(c->holds == 0 && c->entry == LDR_NIL)) {
        return; /* invariants 1 and 3 */
    }
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

    if (!LDR_HOLDS(c->entry != LDR_NIL &&
                   ldr_index_at(&s->index, c->entry)->resident == chunk)) {
        return; /* invariant 1 */
    }
    for (uint32_t i = c->shards; i != LDR_NIL; i = s->shards[i].next) {
        ldr_behind_remove_all(s, i);
    }
    ldr_unpin(s, c);
    ldr_transient_remove(s, c);
    s->policy->remove(ldr_tenant_of(s, c)->policy, chunk);
    ldr_store_changed(s, ldr_index_at(&s->index, c->entry)->fingerprint);
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

    LDR_ASSERT(e->resident == LDR_NIL);
    if (e->epoch == space->epoch && LDR_HOLDS(space->chunks > 0)) {
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

    ldr_store_held(s);
    /* One that is detached lives by its holds alone. */
    if (!LDR_HOLDS(c->entry != LDR_NIL || c->holds > 0)) {
        return;
    }
    if (c->holds++ == 0) {
        ldr_tenant_t *t = ldr_tenant_of(s, c);

        s->held_chunks++;
        t->held_chunks++;
        if (c->entry != LDR_NIL && !c->pinned && !c->transient) {
            s->policy->hold(t->policy, chunk);
        }
    }
}

void ldr_store_release(ldr_store_t *s, uint32_t chunk)
{
    ldr_chunk_t *c = &s->chunks[chunk];

    ldr_store_held(s);
    if (!LDR_HOLDS(c->holds > 0) || --c->holds > 0) {
        return;
    }
    ldr_tenant_t *t = ldr_tenant_of(s, c);
    LDR_ASSERT(s->held_chunks > 0 && t->held_chunks > 0);
    s->held_chunks--;
    t->held_chunks--;
    if (c->entry == LDR_NIL) {
        chunk_free(s, chunk);
    } else if (c->leaving) {
        ldr_store_evict_chunk(s, chunk);
    } else if (!c->pinned && !c->transient) {
        s->policy->release(t->policy, chunk);
    }
}

void ldr_store_forget(ldr_store_t *s, uint32_t entry)
{
    ldr_entry_t *e = ldr_index_at(&s->index, entry);

    ldr_store_held(s);
    if (!LDR_HOLDS(e->shards > 0)) { /* an entry that is in use */
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
    const ldr_chunk_t *c = &s->chunks[chunk];
    uint32_t entry = c->entry;
    uint64_t fingerprint = ldr_index_at(&s->index, entry)->fingerprint;

    for (uint32_t i = c->shards; i != LDR_NIL; i = s->shards[i].next) {
        for (unsigned q = 0; q < LDR_QUEUES_MAX; q++) {
            LDR_COUNT(s, c->space, queue_evicted[q],
                      s->shards[i].queued >> q & 1u);
        }
    }
    chunk_detach(s, chunk);
    if (!ldr_index_has_loc(&s->index, entry)) {
        ldr_store_ghost_mark(s, fingerprint);
        entry_remove(s, entry);
    }
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
    }
    chunk_drop(s, chunk);
}

void ldr_store_discard(ldr_store_t *s, uint32_t chunk)
{
    const ldr_chunk_t *c = &s->chunks[chunk];

    if (c->entry == LDR_NIL) {
        return;
    }
    chunk_drop(s, chunk);
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
        e->set = ldr_run_set(ldr_get64(name->key->hash));
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

/* The slot of the chunk before it, or LDR_NIL. The parent's entry is a hint; a
 * wrong one costs order, never bytes. entry: LDR_NIL: there is none yet. */
static uint32_t parent_slot(const ldr_store_t *s, uint32_t entry,
                            const ldr_reserve_t *r)
{
    uint32_t above = LDR_NIL;

    if (entry != LDR_NIL) {
        above = ldr_index_at(&s->index, entry)->parent;
    } else if (r->parent != NULL) {
        ldr_name_t p =
            ldr_store_name(s, r->name.space, r->name.group, r->parent);

        above =
            ldr_index_find(&s->index, p.fingerprint, p.space, p.group, LDR_NIL);
    }
    return above != LDR_NIL ? ldr_index_at(&s->index, above)->resident
                            : LDR_NIL;
}

static void chunk_attach(ldr_store_t *s, uint32_t chunk, uint32_t entry,
                         const ldr_reserve_t *r)
{
    ldr_chunk_t *c = &s->chunks[chunk];
    ldr_entry_t *e = ldr_index_at(&s->index, entry);
    ldr_policy_t *policy = s->tenants[s->spaces[r->name.space].tenant].policy;
    uint32_t parent = parent_slot(s, entry, r);

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
    s->policy->time(policy, s->now_ds);
    s->policy->place(policy, chunk, parent != chunk ? parent : LDR_NIL,
                     c->depth, ldr_store_print(s, r->name.space, r->name.key));
    if (r->pin) {
        ldr_pin(s, chunk, r->length);
    }
}

uint32_t ldr_store_pages(const ldr_store_t *s, uint32_t chunk)
{
    uint32_t pages = 0;

    for (uint32_t i = s->chunks[chunk].shards; i != LDR_NIL;
         i = s->shards[i].next) {
        pages += ldr_arena_pages(s->shards[i].length);
    }
    return pages;
}

void ldr_store_pin(ldr_store_t *s, uint32_t chunk)
{
    ldr_chunk_t *c = &s->chunks[chunk];

    if (c->entry == LDR_NIL || c->pinned || c->transient || c->holds > 0) {
        return;
    }
    ldr_pin(s, chunk, c->bytes);
    if (c->pinned) {
        ldr_tenant_of(s, c)->pinned_bytes += c->bytes;
    }
}

/* Whether a save of a new chunk is worth what must go for it. */
static bool is_worth(ldr_store_t *s, uint32_t tenant, uint32_t entry,
                     const ldr_reserve_t *r)
{
    ldr_policy_t *policy = s->tenants[tenant].policy;
    uint32_t depth = entry != LDR_NIL
                         ? ldr_entry_depth(ldr_index_at(&s->index, entry))
                         : r->depth & LDR_DEPTH_MAX;

    s->policy->time(policy, s->now_ds);
    return s->policy->admit(policy, parent_slot(s, entry, r), depth,
                            ldr_store_print(s, r->name.space, r->name.key));
}

/* Room that is being made. */
typedef struct making {
    uint32_t tenant, entry;
    bool ask;      /* the policy may refuse */
    bool refused;  /* and has: it passes on */
    bool declined; /* and there is nothing to pass it on to */
} making_t;

/* Pages of the tenant's, making room where there is none. LDR_NIL: not even by
 * evicting all that nobody holds, or it is declined. */
static uint32_t pages_for(ldr_store_t *s, making_t *m, const ldr_reserve_t *r)
{
    uint32_t count = ldr_arena_pages(r->length);
    uint32_t page;

    if (r->pages != NULL) {
        return ldr_arena_keep(&s->arena, m->tenant, r->pages, count);
    }
    while ((page = ldr_arena_take(&s->arena, m->tenant, count)) == LDR_NIL) {
        if (ldr_arena_claim(&s->arena, m->tenant, true) ||
            ldr_void_free(s, m->tenant)) {
            continue;
        }
        if (m->ask && !is_worth(s, m->tenant, m->entry, r)) {
            m->refused = ldr_transient_fits(s, m->tenant, count);
            m->declined = !m->refused;
            if (m->declined) {
                break;
            }
        }
        m->ask = false;
        if (!ldr_store_evict(s, m->tenant)) {
            break;
        }
    }
    return page;
}

/* The chunk has a shard more, with these pages. */
static void shard_attach(ldr_store_t *s, uint32_t chunk, uint32_t shard,
                         uint32_t page, const ldr_reserve_t *r)
{
    ldr_chunk_t *c = &s->chunks[chunk];
    ldr_shard_t *sh = &s->shards[shard];
    ldr_entry_t *e = ldr_index_at(&s->index, c->entry);

    e->expires_s = ldr_store_earlier(e->expires_s, r->expires_s);
    c->expires_s = e->expires_s;
    if (c->pinned &&
        ldr_tenant_of(s, c)->pinned_bytes + r->length > s->pin_max) {
        ldr_unpin(s, c); /* it grew out of the budget */
        e->depth_flags &= ~((uint32_t)LDR_ENTRY_PINNED << 24);
    }
    sh->chunk = chunk;
    sh->number = (uint8_t)r->number;
    sh->state = (uint8_t)r->state;
    sh->page = page;
    sh->length = r->length;
    sh->next = c->shards;
    c->shards = shard;
    s->spaces[c->space].dram_pages += ldr_arena_pages(r->length);
    ldr_arena_hand(&s->arena, page, shard);
    count_bytes(s, c, r->length);
    if (c->transient) {
        ldr_tenant_of(s, c)->transient_pages += ldr_arena_pages(r->length);
    }
}

larder_status_t ldr_store_reserve(ldr_store_t *s, uint32_t entry,
                                  const ldr_reserve_t *r, uint32_t *shard_p)
{
    ldr_space_t *space = &s->spaces[r->name.space];
    uint32_t chunk = LDR_NIL;
    uint32_t page, shard;
    larder_status_t st = LARDER_E_FULL;

    ldr_store_held(s);
    if (space->tenant == LDR_NIL) {
        return LARDER_E_SPACE;
    }
    /* Who saved the chunk first has said how many it has. */
    if (entry != LDR_NIL &&
        r->number >= ldr_index_at(&s->index, entry)->shards) {
        return LARDER_E_INVALID;
    }
    /* First hold what making room might otherwise evict. */
    if (entry != LDR_NIL) {
        chunk = ldr_index_at(&s->index, entry)->resident;
        if (chunk != LDR_NIL) {
            ldr_store_hold(s, chunk);
        }
    }
    /* Never refused: more of what is here, what must not go, and what somebody
     * waits for. */
    making_t making = {.tenant = space->tenant,
                       .entry = entry,
                       .ask = chunk == LDR_NIL && !r->pin && !r->wanted &&
                              r->state == LDR_SHARD_FILLING};
    page = pages_for(s, &making, r);
    if (page == LDR_NIL) {
        st = making.declined ? LARDER_DECLINED : LARDER_E_FULL;
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
        if (making.refused) {
            LDR_COUNT(s, r->name.space, passed_chunks, 1);
            ldr_transient_add(s, chunk);
        }
        ldr_store_hold(s, chunk);
    }
    shard_attach(s, chunk, shard, page, r);
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

    LDR_ASSERT(sh->state == LDR_SHARD_READING && length <= sh->length);
    count_bytes(s, &s->chunks[sh->chunk],
                (int64_t)length - (int64_t)sh->length);
    sh->length = length;
}

bool ldr_store_commit(ldr_store_t *s, uint32_t shard, uint32_t crc,
                      bool checked)
{
    ldr_shard_t *sh = &s->shards[shard];
    const ldr_chunk_t *c = &s->chunks[sh->chunk];
    /* What other nodes saved may have been on its way here when it was removed:
     * a member may hear of a removal before it is done in the shared tier. */
    bool others = s->others >> sh->tier & 1u;

    ldr_store_held(s);
    LDR_ASSERT(c->holds > 0);
    if (!LDR_HOLDS(sh->state == LDR_SHARD_FILLING ||
                   sh->state == LDR_SHARD_READING) ||
        !ldr_store_admit(s, shard, c->epoch, others ? 0 : UINT32_MAX)) {
        return false;
    }
    sh->crc = crc;
    sh->checked = checked;
    sh->state = LDR_SHARD_READY;
    ldr_store_changed(s, ldr_index_at(&s->index, c->entry)->fingerprint);
    return true;
}

void ldr_store_abort(ldr_store_t *s, uint32_t shard)
{
    ldr_shard_t *sh = &s->shards[shard];
    uint32_t chunk = sh->chunk;
    ldr_chunk_t *c = &s->chunks[chunk];
    uint32_t *link = &c->shards;

    ldr_store_held(s);
    if (!LDR_HOLDS(sh->state == LDR_SHARD_FILLING ||
                   sh->state == LDR_SHARD_READING)) {
        return;
    }
    while (*link != shard) {
        link = &s->shards[*link].next;
    }
    *link = sh->next;
    count_bytes(s, c, -(int64_t)sh->length);
    if (c->transient) {
        ldr_tenant_of(s, c)->transient_pages -= ldr_arena_pages(sh->length);
    }
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

ldr_record_t ldr_store_record(const ldr_store_t *store, uint32_t shard)
{
    const ldr_shard_t *sh = &store->shards[shard];
    const ldr_chunk_t *c = &store->chunks[sh->chunk];

    LDR_ASSERT(sh->state == LDR_SHARD_READY && sh->admitted &&
               c->entry != LDR_NIL);
    ldr_record_t record = {
        .kind = LDR_RECORD_SHARD,
        .key = c->key,
        .parent = c->parent,
        .epoch = c->epoch,
        .group = c->group,
        .shard = sh->number,
        .shards = ldr_index_at(&store->index, c->entry)->shards,
        .codec = LDR_CODEC_RAW,
        .flags = c->pinned ? LDR_RECORD_PINNED : 0,
        .depth = c->depth,
        .length = sh->length,
        .written_s = c->written_s,
        .expires_s = c->expires_s,
        .payload_crc = sh->crc,
    };

    memcpy(record.space_id, store->spaces[c->space].id, LDR_ID_BYTES);
    return record;
}
