/*
 * The index: one entry per chunk that any tier holds.
 *
 * A chunk is named by (space, group, key). The entry keeps a 64-bit
 * fingerprint of that name, made with a seed of this process; whoever hands
 * out bytes compares the full key, which lies with the bytes.
 *
 * Memory: entries, buckets and the extra locations are three reserved ranges
 * of addresses that are touched as they fill. The table grows by linear
 * hashing, one bucket split per insert, so that no operation is ever slow, and
 * nothing is allocated after ldr_index_init(). An entry costs 56 bytes itself,
 * 4 for its bucket, and a bit in the map of used entries; with the holes that
 * are left so that runs stay long, less than 64. Each shard beyond the first
 * costs 8 more.
 *
 * Entries are handed out in runs: the entry after that of the chunk's parent
 * if it is free, else a fresh one while holes are few, with some left free
 * behind it for the rest of its chain, else the next hole, round and round. A
 * lookup tries the entry after the last hit before it hashes, which makes
 * walking a chain a walk through memory.
 *
 * Not thread-safe: the node's lock is held around every call.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "larder/larder.h"

#define LDR_NIL UINT32_MAX
#define LDR_SPACES_MAX 65535u
#define LDR_DEPTH_MAX 0xffffffu
#define LDR_INDEX_LEVELS 6 /* 64^6 > 2^32 */

/* Where a shard lies on disk. 0: nowhere (block 0 is a segment's header). */
typedef uint64_t ldr_loc_t;

static inline ldr_loc_t ldr_loc(uint32_t disk, uint32_t segment, uint32_t block,
                                uint32_t blocks)
{
    return (uint64_t)disk << 60 | (uint64_t)(segment & 0xfffff) << 40 |
           (uint64_t)(block & 0xfffff) << 20 | (blocks & 0xfffff);
}

static inline uint32_t ldr_loc_disk(ldr_loc_t loc)
{
    return (uint32_t)(loc >> 60);
}

static inline uint32_t ldr_loc_segment(ldr_loc_t loc)
{
    return (uint32_t)(loc >> 40) & 0xfffff;
}

static inline uint32_t ldr_loc_block(ldr_loc_t loc)
{
    return (uint32_t)(loc >> 20) & 0xfffff;
}

/* Blocks of the whole record, its descriptor included. */
static inline uint32_t ldr_loc_blocks(ldr_loc_t loc)
{
    return (uint32_t)loc & 0xfffff;
}

enum { LDR_ENTRY_PINNED = 1 };

typedef struct ldr_entry {
    uint64_t fingerprint;
    ldr_loc_t loc0;       /* of shard 0 */
    uint32_t bucket_next; /* LDR_NIL ends */
    uint32_t parent;      /* an entry, a hint: it may have been reused */
    uint32_t depth_flags; /* depth in the low 24 bits, flags above */
    uint32_t epoch;       /* of the space when it was put */
    uint32_t used_s;      /* wall clock of the last use */
    uint32_t expires_s;   /* wall clock; 0: never */
    uint32_t resident;    /* its place in DRAM, or LDR_NIL */
    uint32_t more;        /* locations of shards 1...: index of cells */
    uint16_t space;       /* the node's number for it */
    uint8_t group;
    uint8_t shards; /* how many the space says there are; 0: unused */
    uint32_t set;   /* of runs, that it is placed by: ldr_run_set() */
} ldr_entry_t;

_Static_assert(sizeof(ldr_entry_t) == 56, "part of the memory promise");

typedef struct ldr_index {
    ldr_entry_t *entries;
    uint32_t *buckets;
    uint64_t *used_map; /* one bit per entry */
    /* [0] is used_map; a bit of [n] says that word of [n-1] is full. */
    uint64_t *full_map[LDR_INDEX_LEVELS];
    uint32_t level_count;
    uint64_t *cells;    /* locations of further shards */
    uint32_t entry_max; /* capacity */
    uint32_t entry_top; /* entries ever touched */
    uint32_t entry_count;
    uint32_t free_hint; /* where the search for a free entry goes on */
    uint32_t bucket_count;
    uint32_t bucket_mask; /* of the round: smallest 2^n - 1 >= count - 1 */
    uint64_t cell_max, cell_top;
    uint32_t cell_free[LARDER_SHARDS_MAX]; /* by number of cells */
    uint64_t seed;
} ldr_index_t;

/* entry_max: at most LDR_NIL - 1. Gives LARDER_E_NO_MEMORY or OK. */
larder_status_t ldr_index_init(ldr_index_t *ix, uint32_t entry_max,
                               uint64_t seed);
void ldr_index_destroy(ldr_index_t *ix);

static inline uint64_t ldr_index_mix(uint64_t x)
{
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
    x = (x ^ x >> 29) * 0x9fb21c651e98df25u;
    return x ^ x >> 32;
}

/* Inline, as a match takes one of each chunk: what is the same for all of them
 * is worked out once. */
static inline uint64_t ldr_index_fingerprint(const ldr_index_t *ix,
                                             uint32_t space, uint32_t group,
                                             const larder_key_t *key)
{
    uint64_t x = ldr_index_mix(ix->seed ^ ((uint64_t)space << 32 | group));

    x = ldr_index_mix(x ^ ldr_get64(key->hash));
    return ldr_index_mix(x ^ ldr_get64(key->hash + 8)) ^ ix->seed;
}

/* The entry with this fingerprint, or LDR_NIL. after: the entry of the chunk
 * before, whose successor is tried first; LDR_NIL if there is none. */
uint32_t ldr_index_find(const ldr_index_t *ix, uint64_t fingerprint,
                        uint32_t space, uint32_t group, uint32_t after);

/* For lookups of many: reads the bucket ahead; and then the first entry of it,
 * which is mostly the one, or LDR_NIL. */
void ldr_index_prefetch_bucket(const ldr_index_t *ix, uint64_t fingerprint);
uint32_t ldr_index_first(const ldr_index_t *ix, uint64_t fingerprint);

/*
 * Adds an entry with this name, which must not be there, and no location.
 * parent may be LDR_NIL. LDR_NIL if the index is full or has no cells left.
 */
uint32_t ldr_index_add(ldr_index_t *ix, uint64_t fingerprint, uint32_t space,
                       uint32_t group, uint32_t shards, uint32_t parent);

/* The entry must have no residency. */
void ldr_index_remove(ldr_index_t *ix, uint32_t entry);

static inline ldr_entry_t *ldr_index_at(const ldr_index_t *ix, uint32_t entry)
{
    return &ix->entries[entry];
}

static inline ldr_loc_t ldr_index_loc(const ldr_index_t *ix, uint32_t entry,
                                      uint32_t shard)
{
    const ldr_entry_t *e = &ix->entries[entry];

    if (shard >= e->shards) {
        return 0;
    }
    return shard == 0 ? e->loc0 : ix->cells[e->more + shard - 1];
}

void ldr_index_set_loc(ldr_index_t *ix, uint32_t entry, uint32_t shard,
                       ldr_loc_t loc);
/* Whether any shard has a location. */
bool ldr_index_has_loc(const ldr_index_t *ix, uint32_t entry);

/* Bytes in use, all told: touched entries, buckets, map, cells. */
uint64_t ldr_index_bytes(const ldr_index_t *ix);

/* Whether all invariants hold; for tests, it looks at everything. */
bool ldr_index_check(const ldr_index_t *ix);

static inline uint32_t ldr_entry_depth(const ldr_entry_t *e)
{
    return e->depth_flags & LDR_DEPTH_MAX;
}

static inline uint32_t ldr_entry_flags(const ldr_entry_t *e)
{
    return e->depth_flags >> 24;
}
