/*
 * What leaves DRAM, in which order: pinned chunks, transient chunks (in DRAM
 * only until they are written down), and all others, which the policy ranks.
 * All of it with the node's lock.
 */
#include "store/store_int.h"

#define TRANSIENT_LOOK 8u
#define VOID_LOOK 1024u

/* Pins within the tenant's budget; over it the chunk is simply not pinned. */
void ldr_pin(ldr_store_t *s, uint32_t chunk, uint32_t bytes)
{
    ldr_chunk_t *c = &s->chunks[chunk];
    ldr_tenant_t *t = ldr_tenant_of(s, c);

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
void ldr_unpin(ldr_store_t *s, ldr_chunk_t *c)
{
    ldr_tenant_t *t = ldr_tenant_of(s, c);

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
    LDR_ASSERT(t->pinned_bytes >= c->bytes);
    t->pinned_bytes -= c->bytes;
    c->pinned = 0;
}

/* ---- chunks on their way to the disk ----
 *
 * What the policy refuses is still written down where a tier below takes it: it
 * passes through DRAM, and goes first once it is written. To the policy it is
 * held meanwhile. Whoever reads it makes it one like the others. What waits to
 * be written is worth less than what it drives out: so it has a quarter of the
 * tenant's pages at most, and more is refused for good. */

static void transient_list(ldr_store_t *s, uint32_t chunk)
{
    ldr_chunk_t *c = &s->chunks[chunk];
    ldr_tenant_t *t = ldr_tenant_of(s, c);

    c->transient = 1;
    c->pin_prev = t->transient_tail;
    c->pin_next = LDR_NIL;
    if (t->transient_tail != LDR_NIL) {
        s->chunks[t->transient_tail].pin_next = chunk;
    } else {
        t->transient_head = chunk;
    }
    t->transient_tail = chunk;
}

void ldr_transient_add(ldr_store_t *s, uint32_t chunk)
{
    transient_list(s, chunk);
    s->policy->hold(ldr_tenant_of(s, &s->chunks[chunk])->policy, chunk);
}

void ldr_store_cool(ldr_store_t *s, uint32_t chunk, bool fetched)
{
    ldr_chunk_t *c = &s->chunks[chunk];

    ldr_store_held(s);
    if (c->entry == LDR_NIL || c->pinned || c->transient) {
        return;
    }
    if (c->holds == 0) { /* else the policy has it for held */
        s->policy->hold(ldr_tenant_of(s, c)->policy, chunk);
    }
    transient_list(s, chunk);
    ldr_tenant_of(s, c)->transient_pages += ldr_store_pages(s, chunk);
    c->cold_ds = fetched ? s->now_ds + (s->now_ds == 0) : 0;
}

/* The policy still has it for held. */
void ldr_transient_remove(ldr_store_t *s, ldr_chunk_t *c)
{
    ldr_tenant_t *t = ldr_tenant_of(s, c);

    if (!c->transient) {
        return;
    }
    if (c->pin_prev != LDR_NIL) {
        s->chunks[c->pin_prev].pin_next = c->pin_next;
    } else {
        t->transient_head = c->pin_next;
    }
    if (c->pin_next != LDR_NIL) {
        s->chunks[c->pin_next].pin_prev = c->pin_prev;
    } else {
        t->transient_tail = c->pin_prev;
    }
    for (uint32_t i = c->shards; i != LDR_NIL; i = s->shards[i].next) {
        t->transient_pages -= ldr_arena_pages(s->shards[i].length);
    }
    c->cold_ds = 0;
    c->transient = 0;
}

/* Whether a shard of it is not written yet, and is going to be; then its pages
 * are still needed. */
static bool is_needed(const ldr_store_t *s, const ldr_chunk_t *c)
{
    unsigned takes = 0, queued = 0;

    for (unsigned q = 0; q < LDR_QUEUES_MAX; q++) {
        takes |= (unsigned)s->queues[q].takes << q;
    }
    for (uint32_t i = c->shards; i != LDR_NIL; i = s->shards[i].next) {
        queued |= s->shards[i].queued;
    }
    return (queued & takes) != 0;
}

/* One of them that nobody holds; written: and that is on a disk by now, if
 * that is seen soon. LDR_NIL: there is none. */
static uint32_t transient_victim(const ldr_store_t *s, const ldr_tenant_t *t,
                                 bool written)
{
    uint32_t chunk = t->transient_head;

    for (uint32_t i = 0; chunk != LDR_NIL && i < TRANSIENT_LOOK; i++) {
        const ldr_chunk_t *c = &s->chunks[chunk];

        if (c->holds == 0 && !(written && is_needed(s, c))) {
            return chunk;
        }
        chunk = c->pin_next;
    }
    return LDR_NIL;
}

bool ldr_transient_fits(const ldr_store_t *s, uint32_t tenant, uint32_t pages)
{
    const ldr_tenant_t *t = &s->tenants[tenant];
    uint32_t most = s->arena.owners[tenant].used_count / 4;
    uint32_t victim = transient_victim(s, t, true);
    bool takes = false;

    for (unsigned q = 0; q < LDR_QUEUES_MAX; q++) {
        takes = takes || s->queues[q].takes;
    }
    /* What was fetched is worth less than any save. */
    if (victim != LDR_NIL && (takes || s->chunks[victim].cold_ds != 0)) {
        return true;
    }
    return takes &&
           (t->transient_pages == 0 || t->transient_pages + pages <= most);
}

static uint32_t oldest_pinned(const ldr_store_t *s, const ldr_tenant_t *t)
{
    uint32_t chunk = t->pin_head;

    while (chunk != LDR_NIL && s->chunks[chunk].holds > 0) {
        chunk = s->chunks[chunk].pin_next;
    }
    return chunk;
}

/* Nobody finds again what a reset made void, so it goes before all that the
 * policy has. Each slot is looked at once after a reset, VOID_LOOK of them a
 * call. One that is held is freed with its last hold. */
bool ldr_void_free(ldr_store_t *s, uint32_t tenant)
{
    ldr_tenant_t *t = &s->tenants[tenant];

    ldr_store_held(s);
    for (uint32_t i = 0; i < VOID_LOOK && t->void_next < t->void_end; i++) {
        const ldr_chunk_t *c = &s->chunks[t->void_next++];
        const ldr_space_t *space = &s->spaces[c->space];

        if (c->entry != LDR_NIL && space->tenant == tenant &&
            c->epoch != space->epoch) {
            bool held = c->holds > 0;

            ldr_store_forget(s, c->entry);
            if (!held) {
                return true;
            }
        }
    }
    return false;
}

bool ldr_store_evict(ldr_store_t *s, uint32_t tenant)
{
    const ldr_tenant_t *t = &s->tenants[tenant];

    ldr_store_held(s);
    if (ldr_void_free(s, tenant)) {
        return true;
    }
    uint32_t chunk = transient_victim(s, t, true);
    if (chunk == LDR_NIL) {
        chunk = s->policy->victim(t->policy);
    }
    if (chunk == LDR_NIL) {
        chunk = transient_victim(s, t, false);
    }
    if (chunk == LDR_NIL) {
        chunk = oldest_pinned(s, t);
    }
    if (chunk == LDR_NIL) {
        return false;
    }
    LDR_ASSERT(s->chunks[chunk].holds == 0); /* invariant 2 */
    ldr_store_evict_chunk(s, chunk);
    return true;
}

void ldr_store_used(ldr_store_t *s, uint32_t chunk)
{
    ldr_chunk_t *c = &s->chunks[chunk];
    ldr_tenant_t *t = ldr_tenant_of(s, c);

    if (!LDR_HOLDS(c->holds > 0) || c->entry == LDR_NIL) {
        return;
    }
    if (c->cold_ds == 0 || s->now_ds - c->cold_ds > LDR_COLD_DS) {
        ldr_transient_remove(s, c); /* its hold ends like any other's */
    }
    s->policy->time(t->policy, s->now_ds);
    s->policy->used(t->policy, chunk);
}

/* ---- requests ---- */

void ldr_store_request(ldr_store_t *s, uint32_t space,
                       const ldr_policy_request_t *request, bool over)
{
    uint32_t tenant = s->spaces[space].tenant;

    if (tenant == LDR_NIL) {
        return;
    }
    ldr_policy_t *policy = s->tenants[tenant].policy;
    s->policy->time(policy, s->now_ds);
    if (over) {
        s->policy->close(policy, request);
    } else {
        s->policy->request(policy, request);
    }
}
