/*
 * Invariants, which ldr_index_check() tests:
 *
 *  1. An entry is used if and only if its bit in used_map is set, and if and
 *     only if its shards are not 0. Entries from entry_top on were never
 *     touched.
 *  2. Each used entry is in the list of exactly one bucket, the one that
 *     bucket_of() gives for its fingerprint; unused ones are in none.
 *  3. A bit of full_map[n] is set if and only if that word of full_map[n - 1]
 *     has all bits set. Bits past the end count as used and are always set.
 *  4. Every cell below cell_top belongs to one used entry (shards - 1 cells)
 *     or lies in the free list of its size; none is split or merged, so a
 *     space that comes and goes finds the cells it left.
 *  5. entry_top stays below 17/16 of the most entries there ever were: holes
 *     cost memory, but without any an entry that is added goes to where
 *     another was just evicted, and runs fall apart.
 */
#include "store/index.h"

#include <string.h>

#include "base/bytes.h"
#include "base/log.h"
#include "base/mem.h"

/* New entries go to the top while holes are at most one in this many. */
#define HOLES_SHARE 16

/* Chains that grow beside each other take this many entries at a time, so that
 * each finds the next one free. */
#define RUN 32u

/* 1 + 2 + ... + 127: however the sizes come and go, an index of few entries
 * does not run out of cells. Large ones are bounded by 32-bit indices. */
#define CELLS_PER_ENTRY (LARDER_SHARDS_MAX * (LARDER_SHARDS_MAX - 1) / 2)

static uint64_t entries_bytes(const ldr_index_t *ix)
{
    return ldr_max64(ix->entry_max, 1) * sizeof(ldr_entry_t);
}

static uint64_t buckets_bytes(const ldr_index_t *ix)
{
    return ldr_max64(ix->entry_max, 1) * sizeof(uint32_t);
}

static uint64_t cells_bytes(const ldr_index_t *ix)
{
    return ldr_max64(ix->cell_max, 1) * sizeof(uint64_t);
}

/* Words of all levels of the map for this many entries, at least one each. */
static uint64_t map_words(uint64_t entries)
{
    uint64_t words = 0;

    do {
        entries = ldr_max64(ldr_div_up(entries, 64), 1);
        words += entries;
    } while (entries > 1);
    return words;
}

/* The map. */

static void map_init(ldr_index_t *ix)
{
    uint64_t *map = ix->used_map;
    uint64_t bits = ix->entry_max;

    ix->level_count = 0;
    do {
        uint64_t words = ldr_max64(ldr_div_up(bits, 64), 1);

        ix->full_map[ix->level_count++] = map;
        if (bits < words * 64) { /* past the end */
            map[words - 1] = UINT64_MAX << bits % 64;
        }
        map += words;
        bits = words;
    } while (bits > 1);
}

static bool map_has(const ldr_index_t *ix, uint32_t entry)
{
    return (ix->used_map[entry / 64] >> entry % 64 & 1) != 0;
}

static void map_set(ldr_index_t *ix, uint32_t entry)
{
    uint64_t bit = entry;

    for (uint32_t level = 0; level < ix->level_count; level++, bit /= 64) {
        uint64_t *word = &ix->full_map[level][bit / 64];

        *word |= UINT64_C(1) << bit % 64;
        if (*word != UINT64_MAX) {
            break;
        }
    }
}

static void map_clear(ldr_index_t *ix, uint32_t entry)
{
    uint64_t bit = entry;

    for (uint32_t level = 0; level < ix->level_count; level++, bit /= 64) {
        uint64_t *word = &ix->full_map[level][bit / 64];
        bool was_full = *word == UINT64_MAX;

        *word &= ~(UINT64_C(1) << bit % 64);
        if (!was_full) {
            break;
        }
    }
}

/* The first free entry at or after this one, or LDR_NIL: up through the
 * levels until one has a free bit to the right, then down. */
static uint32_t map_next_free(const ldr_index_t *ix, uint32_t from)
{
    uint64_t bit = from;
    uint64_t bits = ix->entry_max;
    uint64_t free_bits = 0;
    uint32_t level = 0;

    for (;;) {
        if (level == ix->level_count || bit >= bits) {
            return LDR_NIL;
        }
        free_bits = ~ix->full_map[level][bit / 64] & UINT64_MAX << bit % 64;
        if (free_bits != 0) {
            break;
        }
        level++;
        bit = bit / 64 + 1;
        bits = ldr_div_up(bits, 64);
    }
    bit = bit / 64 * 64 + (uint64_t)__builtin_ctzll(free_bits);
    while (level > 0) {
        level--;
        free_bits = ~ix->full_map[level][bit]; /* not 0: invariant 3 */
        bit = bit * 64 + (uint64_t)__builtin_ctzll(free_bits);
    }
    return (uint32_t)bit;
}

/* Buckets: linear hashing. Buckets below count - (mask + 1) / 2 and their
 * images in the upper half have been split in this round. */

static uint32_t bucket_of(const ldr_index_t *ix, uint64_t fingerprint)
{
    uint32_t bucket = (uint32_t)fingerprint & ix->bucket_mask;

    return bucket < ix->bucket_count ? bucket : bucket & ix->bucket_mask >> 1;
}

static void bucket_split(ldr_index_t *ix)
{
    uint32_t fresh = ix->bucket_count++;

    if (fresh > ix->bucket_mask) {
        ix->bucket_mask = ix->bucket_mask << 1 | 1;
    }
    uint32_t *from_p = &ix->buckets[fresh & ix->bucket_mask >> 1];
    uint32_t *to_p = &ix->buckets[fresh];
    for (uint32_t i = *from_p; i != LDR_NIL;) {
        ldr_entry_t *e = &ix->entries[i];
        bool moves = ((uint32_t)e->fingerprint & ix->bucket_mask) == fresh;
        uint32_t **end_p = moves ? &to_p : &from_p;

        **end_p = i;
        *end_p = &e->bucket_next;
        i = e->bucket_next;
    }
    *from_p = LDR_NIL;
    *to_p = LDR_NIL;
}

static void bucket_remove(ldr_index_t *ix, uint32_t entry)
{
    ldr_entry_t *e = &ix->entries[entry];
    uint32_t *link_p = &ix->buckets[bucket_of(ix, e->fingerprint)];

    while (*link_p != entry) {
        link_p = &ix->entries[*link_p].bucket_next;
    }
    *link_p = e->bucket_next;
}

/* Cells. A free run holds the index of the next one in its first cell. */

static uint32_t cells_take(ldr_index_t *ix, uint32_t count)
{
    uint32_t first = ix->cell_free[count];

    if (first != LDR_NIL) {
        ix->cell_free[count] = (uint32_t)ix->cells[first];
        memset(&ix->cells[first], 0, count * sizeof(uint64_t));
    } else if (ix->cell_max - ix->cell_top >= count) {
        first = (uint32_t)ix->cell_top; /* zero: never touched */
        ix->cell_top += count;
    }
    return first;
}

static void cells_give(ldr_index_t *ix, uint32_t first, uint32_t count)
{
    ix->cells[first] = ix->cell_free[count];
    ix->cell_free[count] = first;
}

larder_status_t ldr_index_init(ldr_index_t *ix, uint32_t entry_max,
                               uint64_t seed)
{
    memset(ix, 0, sizeof(*ix));
    ix->entry_max = entry_max < LDR_NIL ? entry_max : LDR_NIL - 1;
    ix->cell_max =
        ldr_min64((uint64_t)ix->entry_max * CELLS_PER_ENTRY, LDR_NIL);
    ix->seed = seed;

    ix->entries = ldr_reserve(entries_bytes(ix));
    ix->buckets = ldr_reserve(buckets_bytes(ix));
    ix->used_map = ldr_reserve(map_words(ix->entry_max) * sizeof(uint64_t));
    ix->cells = ldr_reserve(cells_bytes(ix));
    if (ix->entries == NULL || ix->buckets == NULL || ix->used_map == NULL ||
        ix->cells == NULL) {
        ldr_index_destroy(ix);
        return ldr_fail(LARDER_E_NO_MEMORY,
                        "no address space for an index of %u entries",
                        entry_max);
    }
    map_init(ix);
    ix->bucket_count = 1;
    ix->buckets[0] = LDR_NIL;
    for (uint32_t i = 0; i < LARDER_SHARDS_MAX; i++) {
        ix->cell_free[i] = LDR_NIL;
    }
    return LARDER_OK;
}

void ldr_index_destroy(ldr_index_t *ix)
{
    ldr_unreserve(ix->cells, cells_bytes(ix));
    ldr_unreserve(ix->used_map, map_words(ix->entry_max) * sizeof(uint64_t));
    ldr_unreserve(ix->buckets, buckets_bytes(ix));
    ldr_unreserve(ix->entries, entries_bytes(ix));
    memset(ix, 0, sizeof(*ix));
}

static bool entry_is(const ldr_entry_t *e, uint64_t fingerprint, uint32_t space,
                     uint32_t group)
{
    return e->fingerprint == fingerprint && e->space == space &&
           e->group == group && e->shards != 0;
}

uint32_t ldr_index_find(const ldr_index_t *ix, uint64_t fingerprint,
                        uint32_t space, uint32_t group, uint32_t after)
{
    if (after < ix->entry_top && after + 1 < ix->entry_top &&
        entry_is(&ix->entries[after + 1], fingerprint, space, group)) {
        return after + 1;
    }
    uint32_t i = ix->buckets[bucket_of(ix, fingerprint)];
    while (i != LDR_NIL &&
           !entry_is(&ix->entries[i], fingerprint, space, group)) {
        i = ix->entries[i].bucket_next;
    }
    return i;
}

void ldr_index_prefetch_bucket(const ldr_index_t *ix, uint64_t fingerprint)
{
    __builtin_prefetch(&ix->buckets[bucket_of(ix, fingerprint)]);
}

uint32_t ldr_index_first(const ldr_index_t *ix, uint64_t fingerprint)
{
    return ix->buckets[bucket_of(ix, fingerprint)];
}

/* A free entry for a child of this one, or LDR_NIL. *run_p: how many there are
 * for it and those that will follow it; beyond entry_top they become holes. */
static uint32_t entry_pick(ldr_index_t *ix, uint32_t parent, uint32_t *run_p)
{
    uint32_t holes = ix->entry_top - ix->entry_count;
    uint32_t holes_max = ix->entry_count / HOLES_SHARE;
    bool chained = parent < ix->entry_top;

    *run_p = 1;
    if (chained && parent + 1 < ix->entry_top && !map_has(ix, parent + 1)) {
        return parent + 1;
    }
    if (ix->entry_top < ix->entry_max && holes <= holes_max) {
        if (chained && parent + 1 < ix->entry_top && holes + RUN <= holes_max &&
            ix->entry_max - ix->entry_top >= RUN) {
            *run_p = RUN;
        }
        return ix->entry_top;
    }
    uint32_t entry = map_next_free(ix, ix->free_hint);
    if (entry >= ix->entry_top) { /* LDR_NIL, too */
        entry = map_next_free(ix, 0);
    }
    if (entry != LDR_NIL) {
        ix->free_hint = entry + (chained ? RUN : 1);
    }
    return entry;
}

uint32_t ldr_index_add(ldr_index_t *ix, uint64_t fingerprint, uint32_t space,
                       uint32_t group, uint32_t shards, uint32_t parent)
{
    uint32_t more = LDR_NIL;

    if (shards == 0 || shards > LARDER_SHARDS_MAX) {
        return LDR_NIL;
    }
    uint32_t run;
    uint32_t entry = entry_pick(ix, parent, &run);
    if (entry == LDR_NIL) {
        return LDR_NIL;
    }
    if (shards > 1) {
        more = cells_take(ix, shards - 1);
        if (more == LDR_NIL) {
            return LDR_NIL;
        }
    }
    map_set(ix, entry);
    if (entry == ix->entry_top) {
        ix->entry_top += run;
    }
    ix->entry_count++;
    if (ix->entry_count > ix->bucket_count) {
        bucket_split(ix);
    }
    uint32_t *bucket = &ix->buckets[bucket_of(ix, fingerprint)];
    ix->entries[entry] = (ldr_entry_t){
        .fingerprint = fingerprint,
        .bucket_next = *bucket,
        .parent = parent,
        .resident = LDR_NIL,
        .more = more,
        .space = (uint16_t)space,
        .group = (uint8_t)group,
        .shards = (uint8_t)shards,
    };
    *bucket = entry;
    return entry;
}

void ldr_index_remove(ldr_index_t *ix, uint32_t entry)
{
    ldr_entry_t *e = &ix->entries[entry];

    bucket_remove(ix, entry);
    if (e->shards > 1) {
        cells_give(ix, e->more, e->shards - 1u);
    }
    e->shards = 0; /* what ldr_index_find() tries may be a hole */
    map_clear(ix, entry);
    ix->entry_count--;
}

void ldr_index_set_loc(ldr_index_t *ix, uint32_t entry, uint32_t shard,
                       ldr_loc_t loc)
{
    ldr_entry_t *e = &ix->entries[entry];

    if (shard == 0) {
        e->loc0 = loc;
    } else if (shard < e->shards) {
        ix->cells[e->more + shard - 1] = loc;
    }
}

bool ldr_index_has_loc(const ldr_index_t *ix, uint32_t entry)
{
    const ldr_entry_t *e = &ix->entries[entry];
    uint64_t any = e->loc0;

    for (uint32_t i = 1; i < e->shards; i++) {
        any |= ix->cells[e->more + i - 1];
    }
    return any != 0;
}

uint64_t ldr_index_bytes(const ldr_index_t *ix)
{
    return ix->entry_top * sizeof(ldr_entry_t) +
           ix->bucket_count * sizeof(uint32_t) +
           map_words(ix->entry_top) * sizeof(uint64_t) +
           ix->cell_top * sizeof(uint64_t);
}

/* Invariant 3. */
static bool check_map(const ldr_index_t *ix)
{
    uint64_t bits = ix->entry_max;

    for (uint32_t level = 0; level < ix->level_count; level++) {
        uint64_t words = ldr_max64(ldr_div_up(bits, 64), 1);

        for (uint64_t bit = bits; bit < words * 64; bit++) {
            if ((ix->full_map[level][bit / 64] >> bit % 64 & 1) == 0) {
                return false;
            }
        }
        for (uint64_t i = 0; i < words && level + 1 < ix->level_count; i++) {
            bool full = ix->full_map[level][i] == UINT64_MAX;

            if (full != (ix->full_map[level + 1][i / 64] >> i % 64 & 1)) {
                return false;
            }
        }
        bits = words;
    }
    return true;
}

bool ldr_index_check(const ldr_index_t *ix)
{
    uint64_t used = 0, linked = 0, cells = 0;

    for (uint32_t i = 0; i < ix->entry_top; i++) {
        if (map_has(ix, i) != (ix->entries[i].shards != 0)) {
            return false;
        }
        used += map_has(ix, i);
        cells += map_has(ix, i) ? ix->entries[i].shards - 1u : 0;
    }
    for (uint32_t b = 0; b < ix->bucket_count; b++) {
        for (uint32_t i = ix->buckets[b]; i != LDR_NIL;
             i = ix->entries[i].bucket_next) {
            if (i >= ix->entry_top || !map_has(ix, i) || ++linked > used ||
                bucket_of(ix, ix->entries[i].fingerprint) != b) {
                return false;
            }
        }
    }
    for (uint32_t n = 1; n < LARDER_SHARDS_MAX; n++) {
        for (uint32_t i = ix->cell_free[n]; i != LDR_NIL;
             i = (uint32_t)ix->cells[i]) {
            cells += n;
            if (cells > ix->cell_top) {
                return false;
            }
        }
    }
    return used == ix->entry_count && linked == used && cells == ix->cell_top &&
           check_map(ix);
}
