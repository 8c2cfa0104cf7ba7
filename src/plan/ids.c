/*
 * Numbers for the ids of a trace.
 *
 * Invariants: numbers are given without gaps, from 0 to count - 1; ids below
 * `plain` are their own numbers and not in the table, all others are; the table
 * has at most 7 of 10 slots in use. Nothing is ever removed. One thread.
 */
#include "plan/ids.h"

#include <stdbool.h>
#include <stddef.h>

#include "base/mem.h"
#include "store/index.h"

#define SLOTS_MIN ((uint64_t)1 << 16)

/* Side by side, so that one that is looked for is one miss; and in halves, so
 * that nothing is lost between them. */
typedef struct ldr_id {
    uint32_t low, high;
    uint32_t number; /* + 1; 0: free */
} ldr_id_t;

_Static_assert(sizeof(ldr_id_t) == 12, "part of the memory promise");

uint64_t ldr_id_map_hash(uint64_t x)
{
    x ^= x >> 31;
    x *= 0x7fb5d329728ea185u;
    x ^= x >> 27;
    x *= 0x81dadef4bc2dd44du;
    return x ^ x >> 33;
}

/* The slot with this id, or the free one where it would go. */
static ldr_id_t *slot_find(const ldr_id_map_t *ids, uint64_t id)
{
    uint64_t mask = ids->slots - 1;
    uint64_t i = ldr_id_map_hash(id) & mask;
    uint32_t low = (uint32_t)id, high = (uint32_t)(id >> 32);

    while (ids->table[i].number != 0 &&
           (ids->table[i].low != low || ids->table[i].high != high)) {
        i = (i + 1) & mask;
    }
    return &ids->table[i];
}

static void drop_table(ldr_id_map_t *ids)
{
    ldr_unreserve(ids->table, ids->slots * sizeof(*ids->table));
}

static bool table_grow(ldr_id_map_t *ids)
{
    ldr_id_map_t more = *ids;

    more.slots = ids->slots == 0 ? SLOTS_MIN : ids->slots * 2;
    more.table = ldr_reserve_huge(more.slots * sizeof(*more.table));
    if (more.table == NULL) {
        return false;
    }
    for (uint64_t i = 0; i < ids->slots; i++) {
        const ldr_id_t *from = &ids->table[i];

        if (from->number != 0) {
            *slot_find(&more, (uint64_t)from->high << 32 | from->low) = *from;
        }
    }
    drop_table(ids);
    *ids = more;
    return true;
}

uint32_t ldr_id_map_get(ldr_id_map_t *ids, uint64_t id)
{
    if (id < ids->plain) {
        return (uint32_t)id;
    }
    if (ids->count >= LDR_NIL - 1) {
        return LDR_NIL;
    }
    if (id == ids->count && ids->plain == ids->count) {
        ids->plain++;
        return ids->count++;
    }
    uint64_t used = ids->count - ids->plain;
    if (used >= ids->slots / 10 * 7 && !table_grow(ids)) {
        return LDR_NIL;
    }
    ldr_id_t *at = slot_find(ids, id);
    if (at->number == 0) {
        *at = (ldr_id_t){(uint32_t)id, (uint32_t)(id >> 32), ++ids->count};
    }
    return at->number - 1;
}

void ldr_id_map_prefetch(const ldr_id_map_t *ids, uint64_t id)
{
    if (id >= ids->plain && ids->slots > 0) {
        __builtin_prefetch(&ids->table[ldr_id_map_hash(id) & (ids->slots - 1)]);
    }
}

void ldr_id_map_free(ldr_id_map_t *ids)
{
    drop_table(ids);
    *ids = (ldr_id_map_t){0};
}
