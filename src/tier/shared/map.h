/*
 * What a tenant's volume of the tier holds, in memory: objects, and where each
 * shard lies in them. A lookup is one probe of a hash table; nothing in it
 * waits. Not thread-safe: the tier's lock is held around every call, which the
 * map asserts if it is told which lock that is (ldr_map_guard()).
 *
 * A shard takes 16 bytes, and the table is at most 7/8 full and at least 7/16
 * once it has grown; it grows a few thousand entries at a time, so that no call
 * takes long. Shards are known by 64 bits of a keyed hash over space, key,
 * group and number: two that collide cost a miss, since what is read is checked
 * by its full name. An object has a number; once it is dropped its entries are
 * found no more and go when their places are needed or swept.
 *
 * Where a shard is in two objects, the one with the lower id keeps it, whoever
 * looks and in whatever order they were told: so all nodes agree which copy is
 * one too many. The other's record is counted as dead there.
 *
 * Removals are remembered, since a removal may be heard of before the object
 * it is about: a shard that was removed at some second is not found in objects
 * written up to then. Clocks of nodes differ, so both sides ask the map for the
 * time to write: ldr_map_write_s() is after every removal it knows of, and
 * ldr_map_remove_s() not before any object, nor any that is being written here.
 * A removal takes 16 bytes until it is forgotten: see ldr_map_forget().
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tier/shared/manifest.h"

typedef struct ldr_map ldr_map_t;

typedef struct ldr_map_object {
    uint8_t id[LDR_ID_BYTES];
    uint32_t space; /* ldr_map_space()'s number */
    uint32_t epoch;
    uint32_t written_s, used_s;
    uint32_t blocks;      /* of records and descriptors */
    uint32_t dead_blocks; /* of them, of records found elsewhere or removed */
    uint32_t rows;
    bool use_waits; /* used_s is newer than what was published */
} ldr_map_object_t;

typedef struct ldr_object_place {
    uint8_t id[LDR_ID_BYTES]; /* of the object */
    uint32_t object;          /* its number */
    uint16_t block, blocks;
} ldr_object_place_t;

ldr_map_t *ldr_map_create(uint64_t seed); /* NULL: no memory */
void ldr_map_destroy(ldr_map_t *map);
/* From here on every call is made with this lock. */
void ldr_map_guard(ldr_map_t *map, const pthread_mutex_t *lock);

/* The number of a space, added if it is new; LDR_NIL: no memory. */
uint32_t ldr_map_space(ldr_map_t *map, const uint8_t id[LDR_ID_BYTES]);
uint32_t ldr_map_space_find(const ldr_map_t *map,
                            const uint8_t id[LDR_ID_BYTES]);
/* Nothing of an older epoch is found from now on. */
void ldr_map_set_epoch(ldr_map_t *map, uint32_t space, uint32_t epoch);
uint32_t ldr_map_epoch(const ldr_map_t *map, uint32_t space);

/* Adds an object with its rows, or what is new of it. False: no memory; then
 * all, some or none of it is there. Of an old epoch: true, and it only counts
 * as dead. Of a higher one: that is the space's from then on. */
bool ldr_map_add(ldr_map_t *map, const ldr_object_t *object, uint32_t used_s,
                 const ldr_manifest_row_t *rows);
/* Removes a shard (key, group and shard of the row count) from all objects
 * written up to when_s, those that are yet to be added too. True: there was
 * such a shard. Without memory nothing is remembered. */
bool ldr_map_remove(ldr_map_t *map, uint32_t space,
                    const ldr_manifest_row_t *row, uint32_t when_s);
/* Forgets removals that can be of nothing any more: those before before_s, as
 * far as they are older than every object with a record that is not found. For
 * that record it may be, and then it must not be found when somebody tells of
 * the object once more. Does a bounded piece; true: there is more to do. */
bool ldr_map_forget(ldr_map_t *map, uint32_t before_s);
/* When the shard was removed last, as far as is known; 0: it was not. */
uint32_t ldr_map_removed_s(const ldr_map_t *map, uint32_t space,
                           const uint8_t key[LDR_MANIFEST_KEY], uint8_t group,
                           uint8_t shard);
/* What object.written_s and a removal's time are to be, now_s being the wall
 * clock. From the first of them on removals are of that write too, whether it
 * was added or is still under way. */
uint32_t ldr_map_write_s(ldr_map_t *map, uint32_t space, uint32_t now_s);
uint32_t ldr_map_remove_s(const ldr_map_t *map, uint32_t space, uint32_t now_s);
/* LDR_NIL: no such object. */
uint32_t ldr_map_object(const ldr_map_t *map, const uint8_t id[LDR_ID_BYTES]);
void ldr_map_drop(ldr_map_t *map, uint32_t object);
ldr_map_object_t *ldr_map_at(ldr_map_t *map, uint32_t object);
/* Numbers below this may be in use; ldr_map_at() of one that is not is NULL. */
uint32_t ldr_map_top(const ldr_map_t *map);

/* Where the shard lies. TTLs are the reader's to check. */
bool ldr_map_find(const ldr_map_t *map, uint32_t space,
                  const uint8_t key[LDR_MANIFEST_KEY], uint8_t group,
                  uint8_t shard, ldr_object_place_t *place);
/* Brings the table's line for a later ldr_map_find() near. */
void ldr_map_prefetch(const ldr_map_t *map, uint32_t space,
                      const uint8_t key[LDR_MANIFEST_KEY], uint8_t group,
                      uint8_t shard);

typedef struct ldr_map_stats {
    uint64_t objects, shards, blocks, dead_blocks;
    uint64_t bytes; /* of memory */
} ldr_map_stats_t;

void ldr_map_stats(const ldr_map_t *map, ldr_map_stats_t *out);

/* Whether all sums are right; for tests, it looks at everything. */
bool ldr_map_check(const ldr_map_t *map);
