/*
 * Inside a map: its hash table, and what it knows of objects and spaces.
 *
 * The table: cells of 16 bytes in segments, by extendible hashing. The highest
 * bits of a hash choose the segment through a directory, its low half the slot;
 * within a segment it is linear probing. A segment that
 * is 7/8 full is split in two, which moves a few thousand cells at most, and
 * the directory doubles where it must: no operation depends on how much the
 * table holds. Two segments that have become empty enough are one again.
 *
 * Which cells still count is the map's to say; the others are dropped when
 * their segment fills up, or by ldr_cells_sweep(), which looks at one segment
 * a call, round and round.
 *
 * Invariants, which ldr_cells_check() and ldr_map_check() look at: `used` cells
 * of a segment are taken, LDR_SEGMENT_FULL at most, each of which is found from
 * its slot on without a gap; all entries of the directory that share a segment
 * lie side by side. The blocks and rows of a space are the sums of those of its
 * objects. An object's number is given again only when no cell has it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/thread.h"
#include "tier/shared/map.h"

typedef struct ldr_cell {
    uint64_t hash;   /* 0: empty */
    uint32_t object; /* a number; LDR_CELL_REMOVED; a space's number */
    uint32_t where;  /* blocks << 16 | block, or one of those below */
} ldr_cell_t;

_Static_assert(sizeof(ldr_cell_t) == 16, "part of the memory promise");

/* What `where` is for cells that are not a shard's: those have two blocks or
 * more. A removal keeps its time there, and is known by its object. */
enum { LDR_CELL_OBJECT = 0, LDR_CELL_SPACE = 1 };
#define LDR_CELL_REMOVED UINT32_MAX

#define LDR_SEGMENT_SLOTS 4095u
#define LDR_SEGMENT_FULL (LDR_SEGMENT_SLOTS * 7 / 8)

typedef struct ldr_segment ldr_segment_t;
struct ldr_segment {
    uint32_t used;
    uint16_t depth;      /* bits of the hash that all its cells share */
    bool alone;          /* allocated by itself */
    ldr_segment_t *next; /* of those that are free */
    ldr_cell_t cells[LDR_SEGMENT_SLOTS];
};

_Static_assert(sizeof(ldr_segment_t) == 64 << 10, "whole blocks");

/* Segments beyond the first few come from slabs in huge pages: a lookup in a
 * large table then takes half the time. */
typedef struct ldr_slab ldr_slab_t;

typedef struct ldr_cells {
    ldr_segment_t **directory; /* 2^depth */
    uint32_t depth;
    uint32_t segments;
    uint32_t alone; /* of them */
    uint64_t used;
    ldr_segment_t *free; /* in slabs, zero except this list */
    ldr_slab_t *slabs;   /* the newest first */
    ldr_cell_t *scratch; /* one segment's cells */
    uint64_t cursor;     /* the hash where sweeping goes on */
    uint64_t rounds;     /* how often it came round */
    /* The map's: from this round on there is no cell that does not count. */
    uint64_t sweep_until;
    bool (*counts)(void *arg, const ldr_cell_t *cell);
    void *arg;
} ldr_cells_t;

bool ldr_cells_init(ldr_cells_t *t,
                    bool (*counts)(void *arg, const ldr_cell_t *cell),
                    void *arg);
void ldr_cells_destroy(ldr_cells_t *t);

/* A new cell of that hash, which is not 0, for the caller to fill in at once.
 * NULL: no memory. Moves other cells. */
ldr_cell_t *ldr_cells_add(ldr_cells_t *t, uint64_t hash);
/* Moves other cells. */
void ldr_cells_remove(ldr_cells_t *t, ldr_cell_t *cell);
void ldr_cells_sweep(ldr_cells_t *t);
uint64_t ldr_cells_bytes(const ldr_cells_t *t);
/* For tests: looks at everything. */
bool ldr_cells_check(const ldr_cells_t *t);

static inline ldr_segment_t *ldr_cells_segment(const ldr_cells_t *t,
                                               uint64_t hash)
{
    return t->directory[t->depth == 0 ? 0 : hash >> (64 - t->depth)];
}

static inline uint32_t ldr_cells_slot(uint64_t hash)
{
    return (uint32_t)((uint64_t)(uint32_t)hash * LDR_SEGMENT_SLOTS >> 32);
}

/* The first cell of that hash, or the next after one of them; NULL: no more. */
static inline ldr_cell_t *ldr_cells_next(const ldr_cells_t *t, uint64_t hash,
                                         const ldr_cell_t *after)
{
    ldr_segment_t *s = ldr_cells_segment(t, hash);
    uint32_t slot =
        after != NULL ? (uint32_t)(after - s->cells) + 1 : ldr_cells_slot(hash);

    for (;; slot++) {
        slot = slot < LDR_SEGMENT_SLOTS ? slot : 0;
        ldr_cell_t *cell = &s->cells[slot];

        if (cell->hash == 0) {
            return NULL;
        }
        if (cell->hash == hash) {
            return cell;
        }
    }
}

/* ---- the map itself ---- */

/* Objects are allocated so many at a time, and do not move. */
#define LDR_MAP_CHUNK 1024u

typedef struct ldr_map_item {
    ldr_map_object_t public;
    uint32_t live_rows; /* cells that count */
    uint32_t next;      /* of those dropped, or free */
    uint64_t free_from; /* dropped: the round at whose begin it is free */
    bool in_use;
} ldr_map_item_t;

typedef struct ldr_map_space {
    uint8_t id[LDR_ID_BYTES];
    uint32_t epoch;
    uint32_t removed_s, written_s; /* the latest */
    uint64_t blocks, live_blocks, live_rows;
} ldr_map_space_t;

struct ldr_map {
    const pthread_mutex_t *guard; /* around every call; NULL: nobody said */
    ldr_cells_t cells;
    uint64_t salt[4];
    ldr_map_item_t **chunks;
    uint32_t chunk_count;
    size_t chunk_capacity, space_capacity;
    uint32_t top; /* numbers ever given */
    uint32_t objects;
    uint32_t added;               /* so far */
    uint32_t free;                /* list */
    uint32_t dropped, dropped_to; /* list, oldest first */
    ldr_map_space_t *spaces;
    uint32_t space_count;
    /* Removals before this second do not count any more; what it will be once
     * all objects were looked at, and how many were. */
    uint32_t forget_s, look_s;
    uint32_t looked;
};

static inline ldr_map_item_t *ldr_map_item(const ldr_map_t *map,
                                           uint32_t number)
{
    if (!LDR_HOLDS(number / LDR_MAP_CHUNK < map->chunk_count)) {
        number = 0; /* there is one, or nobody had a number */
    }
    return &map->chunks[number / LDR_MAP_CHUNK][number % LDR_MAP_CHUNK];
}

static inline bool ldr_map_is_old(const ldr_map_t *map, const ldr_map_item_t *o)
{
    return o->public.epoch < map->spaces[o->public.space].epoch;
}
