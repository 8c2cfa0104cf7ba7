/* Looking names up. With the node's lock: a lookup forgets an entry that it
 * finds stale, and evicts a chunk whose extent has to leave. */
#include <string.h>

#include "store/store.h"

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

    LDR_DEBUG_ASSERT(name->space < s->space_count);
    ldr_store_held(s);
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

void ldr_store_prefetch(const ldr_store_t *s, const ldr_name_t *names,
                        uint32_t count, uint32_t *chunks)
{
    /* Each step needs what the one before it asked for. */
    for (uint32_t i = 0; i < count; i++) {
        ldr_index_prefetch_bucket(&s->index, names[i].fingerprint);
        __builtin_prefetch(&s->ghosts[names[i].fingerprint & (LDR_GHOSTS - 1)]);
    }
    for (uint32_t i = 0; i < count; i++) {
        chunks[i] = ldr_index_first(&s->index, names[i].fingerprint);
        if (chunks[i] != LDR_NIL) {
            __builtin_prefetch(ldr_index_at(&s->index, chunks[i]));
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        chunks[i] = chunks[i] != LDR_NIL
                        ? ldr_index_at(&s->index, chunks[i])->resident
                        : LDR_NIL;
        if (chunks[i] != LDR_NIL) {
            __builtin_prefetch(&s->chunks[chunks[i]].key);
            __builtin_prefetch(&s->chunks[chunks[i]].shards);
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        if (chunks[i] != LDR_NIL && s->chunks[chunks[i]].shards != LDR_NIL) {
            __builtin_prefetch(&s->shards[s->chunks[chunks[i]].shards]);
        }
    }
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

void ldr_store_residents(const ldr_store_t *s, uint32_t entry, uint32_t first,
                         uint32_t count, uint32_t *shards)
{
    uint32_t chunk =
        entry != LDR_NIL ? ldr_index_at(&s->index, entry)->resident : LDR_NIL;

    for (uint32_t i = 0; i < count; i++) {
        shards[i] = LDR_NIL;
    }
    for (uint32_t i = chunk != LDR_NIL ? s->chunks[chunk].shards : LDR_NIL;
         i != LDR_NIL; i = s->shards[i].next) {
        if (s->shards[i].number - first < count) {
            shards[s->shards[i].number - first] = i;
        }
    }
}
