/*
 * Uses of what the shared tier holds and the node has in DRAM as well. Nobody
 * reads such an object from the tier, though whoever starts cold will want it:
 * without being told, the cleaner would take the hottest prefixes for idle.
 *
 * Loads and matches note the time of a use in the index anyway. The tier's
 * thread walks over the chunks in DRAM once a minute, a few at a time, and
 * tells the tier of those that were used since the last walk began. What only
 * a disk has is in DRAM once it was loaded.
 */
#include "base/bytes.h"
#include "tier/shared/shared.h"

#define WALK_NS 60000000000u /* from one to the next */
#define GAP_NS 10000000u     /* between two pieces, at least */
#define PIECE_CHUNKS 256u    /* looked at in one */
#define PIECE_SHARDS 256u    /* announced in one, about */

static uint64_t uses(const ldr_store_t *store)
{
    return store->n.loads[LARDER_TIER_DRAM] + store->n.loads[LARDER_TIER_SSD] +
           store->n.matched_chunks;
}

/* A use of the chunk that is news, or 0. To be saved is none. */
static uint32_t used_at(const ldr_shared_t *s, const ldr_chunk_t *c)
{
    if (c->entry == LDR_NIL) {
        return 0; /* free, or nobody's any more */
    }
    const ldr_entry_t *e = ldr_index_at(&s->host->store.index, c->entry);

    return e->used_s > c->written_s && e->used_s >= s->walk_since_s ? e->used_s
                                                                    : 0;
}

/* Tells of the shards of one chunk; how many. */
static uint32_t chunk_used(ldr_shared_t *s, const ldr_chunk_t *c,
                           uint32_t used_s)
{
    const ldr_store_t *store = &s->host->store;
    uint32_t tenant, space, count = 0;

    if (!ldr_shared_numbers(s, c->space, &tenant, &space)) {
        return 0;
    }
    for (uint32_t i = c->shards; i != LDR_NIL; i = store->shards[i].next) {
        ldr_objects_used(s->tier, tenant, space, &c->key, c->group,
                         store->shards[i].number, used_s);
        count++;
    }
    return count;
}

/* A walk begins, unless nothing was used since the last one did. */
static void walk_begin(ldr_shared_t *s, uint64_t now_ns)
{
    uint64_t count = uses(&s->host->store);

    s->walking = count != s->walk_uses;
    s->walk_uses = count;
    s->walk_since_s = s->walk_began_s;
    s->walk_began_s = ldr_wall_s(s->host->clock);
    s->walk_next_ns = now_ns + WALK_NS;
    s->walk_chunk = 0;
}

static void walk_on(ldr_shared_t *s)
{
    const ldr_store_t *store = &s->host->store;
    uint64_t end =
        ldr_min64(store->chunk_top, (uint64_t)s->walk_chunk + PIECE_CHUNKS);

    for (uint32_t count = 0; s->walk_chunk < end && count < PIECE_SHARDS;) {
        const ldr_chunk_t *c = &store->chunks[s->walk_chunk++];
        uint32_t used_s = used_at(s, c);

        count += used_s != 0 ? chunk_used(s, c, used_s) : 0;
    }
    s->walking = s->walk_chunk < store->chunk_top;
}

uint64_t ldr_shared_walk(ldr_shared_t *s)
{
    uint64_t now_ns = ldr_now_ns(s->host->clock);

    if (now_ns < s->walk_ns) {
        return s->walk_ns;
    }
    if (!s->walking) {
        walk_begin(s, now_ns);
    }
    if (s->walking) {
        walk_on(s);
    }
    /* Evenly over the minute; a walk over more than that allows takes longer,
     * and the next one begins when it is over. */
    uint64_t gap_ns =
        WALK_NS * PIECE_CHUNKS / ldr_max64(s->host->store.chunk_top, 1);
    s->walk_ns =
        s->walking ? now_ns + ldr_min64(gap_ns, WALK_NS) : s->walk_next_ns;
    s->walk_ns = ldr_max64(s->walk_ns, now_ns + GAP_NS);
    return s->walk_ns;
}
