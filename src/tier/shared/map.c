/*
 * Objects, spaces and shards are all found in one table of cells (map_int.h).
 * Objects and spaces have numbers. The number of an object that was dropped is
 * given to another only when sweeping has been through the whole table since:
 * no cell of the old one is left then.
 *
 * A cell of a shard counts while its object is there and of its space's epoch.
 * What such cells add up to is kept for each object and each space; a reset
 * clears the space's sums, and those of its old objects when they are next
 * looked at.
 *
 * A removal is a cell of its own beside that of the shard, which comes and
 * goes.
 */
#include "tier/shared/map_int.h"

#include <string.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/mem.h"
#include "store/index.h"

enum { BATCH = 32 };       /* rows looked at together */
#define CHECK_EVERY 65536u /* objects that are added, in debug builds */

static void held(const ldr_map_t *map)
{
    if (LDR_DEBUG && map->guard != NULL) {
        LDR_HELD(map->guard);
    }
}

static ldr_map_space_t *space_at(const ldr_map_t *map, uint32_t space)
{
    held(map);
    return &map->spaces[LDR_HOLDS(space < map->space_count) ? space : 0];
}

void ldr_map_guard(ldr_map_t *map, const pthread_mutex_t *lock)
{
    map->guard = lock;
}

static bool is_shard(const ldr_cell_t *cell)
{
    return cell->object != LDR_CELL_REMOVED && cell->where > LDR_CELL_SPACE;
}

/* Of a shard: whether it is to be found. */
static bool is_live(const ldr_map_t *map, const ldr_cell_t *cell)
{
    const ldr_map_item_t *o = ldr_map_item(map, cell->object);

    return o->in_use && !ldr_map_is_old(map, o);
}

static bool cell_counts(void *arg, const ldr_cell_t *cell)
{
    const ldr_map_t *map = arg;

    return cell->object == LDR_CELL_REMOVED
               ? cell->where >= map->forget_s
               : !is_shard(cell) || is_live(map, cell);
}

/* ---- hashes ---- */

static uint64_t key_fold(uint64_t a, uint64_t b)
{
    __extension__ unsigned __int128 product = (unsigned __int128)a * b;

    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t hash16(const ldr_map_t *map, const uint8_t bytes[16],
                       uint64_t more)
{
    uint64_t hash = key_fold(ldr_get64(bytes) ^ map->salt[0],
                             ldr_get64(bytes + 8) ^ map->salt[1]);

    hash = key_fold(hash ^ more ^ map->salt[2], map->salt[3]);
    return hash != 0 ? hash : 1;
}

static uint64_t shard_hash(const ldr_map_t *map, uint32_t space,
                           const uint8_t key[LDR_MANIFEST_KEY], uint8_t group,
                           uint8_t shard)
{
    return hash16(map, key,
                  (uint64_t)space << 16 | (uint64_t)group << 8 | shard);
}

/* What stands for an object or a space; no shard has such a number of space. */
static uint64_t id_hash(const ldr_map_t *map, const uint8_t id[LDR_ID_BYTES],
                        uint32_t where)
{
    return hash16(map, id, UINT64_MAX - where);
}

/* ---- life ---- */

ldr_map_t *ldr_map_create(uint64_t seed)
{
    ldr_map_t *map = ldr_alloc(sizeof(*map));
    ldr_rand_t rand;

    if (map == NULL) {
        return NULL;
    }
    ldr_rand_seed(&rand, seed);
    for (unsigned i = 0; i < 4; i++) {
        map->salt[i] = ldr_rand_next(&rand) | 1;
    }
    map->free = map->dropped = map->dropped_to = LDR_NIL;
    if (!ldr_cells_init(&map->cells, cell_counts, map)) {
        ldr_map_destroy(map);
        return NULL;
    }
    return map;
}

void ldr_map_destroy(ldr_map_t *map)
{
    if (map == NULL) {
        return;
    }
    for (uint32_t i = 0; i < map->chunk_count; i++) {
        ldr_free(map->chunks[i]);
    }
    ldr_free(map->chunks);
    ldr_free(map->spaces);
    ldr_cells_destroy(&map->cells);
    ldr_free(map);
}

/* ---- spaces ---- */

uint32_t ldr_map_space_find(const ldr_map_t *map,
                            const uint8_t id[LDR_ID_BYTES])
{
    uint64_t hash = id_hash(map, id, LDR_CELL_SPACE);
    const ldr_cell_t *cell = NULL;

    while ((cell = ldr_cells_next(&map->cells, hash, cell)) != NULL) {
        if (cell->where == LDR_CELL_SPACE && cell->object < map->space_count &&
            memcmp(map->spaces[cell->object].id, id, LDR_ID_BYTES) == 0) {
            return cell->object;
        }
    }
    return LDR_NIL;
}

uint32_t ldr_map_space(ldr_map_t *map, const uint8_t id[LDR_ID_BYTES])
{
    uint32_t number = ldr_map_space_find(map, id);
    ldr_cell_t *cell;

    if (number != LDR_NIL) {
        return number;
    }
    if (!ldr_grow(&map->spaces, &map->space_capacity, map->space_count + 1u,
                  sizeof(map->spaces[0]))) {
        return LDR_NIL;
    }
    cell = ldr_cells_add(&map->cells, id_hash(map, id, LDR_CELL_SPACE));
    if (cell == NULL) {
        return LDR_NIL;
    }
    number = map->space_count++;
    cell->object = number;
    cell->where = LDR_CELL_SPACE;
    map->spaces[number] = (ldr_map_space_t){.epoch = 0};
    memcpy(map->spaces[number].id, id, LDR_ID_BYTES);
    return number;
}

void ldr_map_set_epoch(ldr_map_t *map, uint32_t space, uint32_t epoch)
{
    ldr_map_space_t *s = space_at(map, space);

    if (epoch > s->epoch) {
        s->epoch = epoch;
        s->live_blocks = 0;
        s->live_rows = 0;
        map->cells.sweep_until = map->cells.rounds + 2;
    }
}

uint32_t ldr_map_epoch(const ldr_map_t *map, uint32_t space)
{
    return space_at(map, space)->epoch;
}

uint32_t ldr_map_write_s(ldr_map_t *map, uint32_t space, uint32_t now_s)
{
    ldr_map_space_t *s = space_at(map, space);
    uint32_t at_s =
        s->removed_s != 0 && s->removed_s >= now_s ? s->removed_s + 1 : now_s;

    s->written_s = (uint32_t)ldr_max64(s->written_s, at_s);
    return at_s;
}

uint32_t ldr_map_remove_s(const ldr_map_t *map, uint32_t space, uint32_t now_s)
{
    return (uint32_t)ldr_max64(space_at(map, space)->written_s, now_s);
}

/* ---- objects ---- */

/* Something is heard of that removals since then may be of, or that is one:
 * they count until all objects were looked at once more. */
static void remember_from(ldr_map_t *map, uint32_t when_s)
{
    map->forget_s = (uint32_t)ldr_min64(map->forget_s, when_s);
    map->look_s = (uint32_t)ldr_min64(map->look_s, when_s);
}

/* Looks at one segment if there is anything to sweep, and lets the numbers go
 * that may be used again. */
static void grow_step(ldr_map_t *map)
{
    if (map->cells.rounds >= map->cells.sweep_until) {
        return;
    }
    ldr_cells_sweep(&map->cells);
    while (map->dropped != LDR_NIL) {
        uint32_t number = map->dropped;
        ldr_map_item_t *o = ldr_map_item(map, number);

        if (o->free_from > map->cells.rounds) {
            return;
        }
        map->dropped = o->next;
        o->next = map->free;
        map->free = number;
    }
    map->dropped_to = LDR_NIL;
}

/* Sums of an object that became old since it was last looked at. */
static void shard_settle(const ldr_map_t *map, ldr_map_item_t *o)
{
    if (ldr_map_is_old(map, o)) {
        o->public.dead_blocks = o->public.blocks;
        o->live_rows = 0;
    }
}

/* A shard in an object that is not old, and there, is found from now on; or no
 * more. The two are each other's reverse. */
static void gain(ldr_map_t *map, ldr_map_item_t *o, uint32_t where)
{
    ldr_map_space_t *s = &map->spaces[o->public.space];

    LDR_ASSERT(o->in_use && where >> 16 <= o->public.dead_blocks);
    o->public.dead_blocks -= where >> 16;
    o->live_rows++;
    s->live_blocks += where >> 16;
    s->live_rows++;
}

static void lose(ldr_map_t *map, ldr_map_item_t *o, uint32_t where)
{
    ldr_map_space_t *s = &map->spaces[o->public.space];

    LDR_ASSERT(o->in_use && o->live_rows > 0 && s->live_rows > 0);
    LDR_ASSERT(where >> 16 <= o->public.blocks - o->public.dead_blocks);
    LDR_ASSERT(where >> 16 <= s->live_blocks);
    o->public.dead_blocks += where >> 16;
    o->live_rows--;
    s->live_blocks -= where >> 16;
    s->live_rows--;
}

static ldr_cell_t *object_cell(const ldr_map_t *map,
                               const uint8_t id[LDR_ID_BYTES])
{
    uint64_t hash = id_hash(map, id, LDR_CELL_OBJECT);
    ldr_cell_t *cell = NULL;

    while ((cell = ldr_cells_next(&map->cells, hash, cell)) != NULL) {
        if (cell->where == LDR_CELL_OBJECT &&
            cell->object != LDR_CELL_REMOVED &&
            memcmp(ldr_map_item(map, cell->object)->public.id, id,
                   LDR_ID_BYTES) == 0) {
            return cell;
        }
    }
    return NULL;
}

uint32_t ldr_map_object(const ldr_map_t *map, const uint8_t id[LDR_ID_BYTES])
{
    held(map);
    const ldr_cell_t *cell = object_cell(map, id);

    LDR_ASSERT(cell == NULL || ldr_map_item(map, cell->object)->in_use);
    return cell != NULL ? cell->object : LDR_NIL;
}

/* A number that nobody has; LDR_NIL: no memory. It is the caller's only once
 * taken: by free moving on, or top. */
static uint32_t next_number(ldr_map_t *map)
{
    if (map->free != LDR_NIL) {
        return map->free;
    }
    if (map->top / LDR_MAP_CHUNK < map->chunk_count) {
        return map->top;
    }
    if (!ldr_grow(&map->chunks, &map->chunk_capacity, map->chunk_count + 1u,
                  sizeof(map->chunks[0]))) {
        return LDR_NIL;
    }
    map->chunks[map->chunk_count] =
        ldr_alloc(sizeof(ldr_map_item_t) * LDR_MAP_CHUNK);
    if (map->chunks[map->chunk_count] == NULL) {
        return LDR_NIL;
    }
    map->chunk_count++;
    return map->top;
}

static uint32_t object_new(ldr_map_t *map, const ldr_object_t *object,
                           uint32_t space, uint32_t used_s)
{
    uint32_t number = next_number(map);
    ldr_cell_t *cell =
        number != LDR_NIL ? ldr_cells_add(&map->cells, id_hash(map, object->id,
                                                               LDR_CELL_OBJECT))
                          : NULL;

    if (cell == NULL) {
        return LDR_NIL;
    }
    ldr_map_item_t *o = ldr_map_item(map, number);
    LDR_ASSERT(!o->in_use);
    if (number == map->free) {
        map->free = o->next;
    } else {
        map->top++;
    }
    cell->object = number;
    cell->where = LDR_CELL_OBJECT;
    *o = (ldr_map_item_t){.in_use = true};
    memcpy(o->public.id, object->id, LDR_ID_BYTES);
    o->public.space = space;
    o->public.epoch = object->epoch;
    o->public.written_s = object->written_s;
    o->public.used_s = used_s;
    o->public.rows = object->rows;
    o->public.blocks = o->public.dead_blocks = object->used_blocks;
    map->objects++;
    remember_from(map, object->written_s);
    ldr_map_space_t *s = &map->spaces[space];
    s->blocks += object->used_blocks;
    s->written_s = (uint32_t)ldr_max64(s->written_s, object->written_s);
    return number;
}

void ldr_map_drop(ldr_map_t *map, uint32_t object)
{
    if (ldr_map_at(map, object) == NULL) {
        return;
    }
    ldr_map_item_t *o = ldr_map_item(map, object);
    ldr_map_space_t *s = &map->spaces[o->public.space];
    LDR_ASSERT(map->objects > 0 && s->blocks >= o->public.blocks);
    LDR_ASSERT(o->public.dead_blocks <= o->public.blocks);
    LDR_ASSERT(s->live_blocks >= o->public.blocks - o->public.dead_blocks);
    LDR_ASSERT(s->live_rows >= o->live_rows);
    s->blocks -= o->public.blocks;
    s->live_blocks -= o->public.blocks - o->public.dead_blocks;
    s->live_rows -= o->live_rows;
    ldr_cells_remove(&map->cells, object_cell(map, o->public.id));
    o->in_use = false;
    map->objects--;
    o->next = LDR_NIL;
    o->free_from = map->cells.rounds + 2;
    map->cells.sweep_until = o->free_from;
    if (map->dropped == LDR_NIL) {
        map->dropped = object;
    } else {
        ldr_map_item(map, map->dropped_to)->next = object;
    }
    map->dropped_to = object;
    grow_step(map);
}

ldr_map_object_t *ldr_map_at(ldr_map_t *map, uint32_t object)
{
    held(map);
    if (object >= map->top) {
        return NULL;
    }
    ldr_map_item_t *o = ldr_map_item(map, object);
    if (!o->in_use) {
        return NULL;
    }
    shard_settle(map, o);
    return &o->public;
}

uint32_t ldr_map_top(const ldr_map_t *map)
{
    return map->top;
}

/* ---- what was removed ---- */

bool ldr_map_forget(ldr_map_t *map, uint32_t before_s)
{
    uint32_t end = (uint32_t)ldr_min64(map->looked + LDR_MAP_CHUNK, map->top);

    if (map->looked == 0) {
        map->look_s = before_s;
    }
    for (; map->looked < end; map->looked++) {
        const ldr_map_item_t *o = ldr_map_item(map, map->looked);

        if (o->in_use && o->public.dead_blocks > 0 && !ldr_map_is_old(map, o)) {
            map->look_s = (uint32_t)ldr_min64(map->look_s, o->public.written_s);
        }
    }
    if (map->looked < map->top) {
        return true;
    }
    if (map->look_s > map->forget_s) {
        map->forget_s = map->look_s;
        map->cells.sweep_until = map->cells.rounds + 2;
    }
    grow_step(map);
    bool more = map->cells.rounds < map->cells.sweep_until;
    map->looked = more ? map->looked : 0;
    return more;
}

/* ---- shards ---- */

/* The cells of a shard and of its removal, each NULL if there is none. */
static void shard_cells(const ldr_map_t *map, uint64_t hash,
                        ldr_cell_t **shard_p, ldr_cell_t **removed_p)
{
    ldr_cell_t *cell = NULL;

    *shard_p = *removed_p = NULL;
    while ((cell = ldr_cells_next(&map->cells, hash, cell)) != NULL) {
        if (cell->object == LDR_CELL_REMOVED) {
            *removed_p = cell;
        } else if (is_shard(cell)) {
            *shard_p = cell;
        }
    }
}

/* Where cells of that hash begin. (Not a function that prefetches: gcc takes
 * one of those to do nothing, and drops the call.) */
static const ldr_cell_t *slot_of(const ldr_map_t *map, uint64_t hash)
{
    return &ldr_cells_segment(&map->cells, hash)->cells[ldr_cells_slot(hash)];
}

static bool add_row(ldr_map_t *map, uint32_t number, uint64_t hash,
                    const ldr_manifest_row_t *row)
{
    ldr_map_item_t *o = ldr_map_item(map, number);
    uint32_t where = (uint32_t)row->blocks << 16 | row->block;
    ldr_cell_t *cell, *removed;

    if (row->blocks < 2 || row->blocks > o->public.dead_blocks) {
        return true; /* no such record, or all of the object is live already */
    }
    shard_cells(map, hash, &cell, &removed);
    if (removed != NULL && o->public.written_s <= removed->where) {
        return true;
    }
    if (cell != NULL && is_live(map, cell)) {
        ldr_map_item_t *other = ldr_map_item(map, cell->object);

        if (memcmp(other->public.id, o->public.id, LDR_ID_BYTES) <= 0) {
            return true; /* it is there, or the other keeps it */
        }
        lose(map, other, cell->where);
    }
    if (cell == NULL) {
        cell = ldr_cells_add(&map->cells, hash);
        if (cell == NULL) {
            return false;
        }
    }
    cell->object = number;
    cell->where = where;
    gain(map, o, where);
    return true;
}

/* Their cells are brought near all at once: to wait for one after the other
 * takes twice as long, once the table is larger than the caches. */
static bool add_rows(ldr_map_t *map, uint32_t number,
                     const ldr_manifest_row_t *rows, uint32_t count)
{
    uint64_t hashes[BATCH];
    uint32_t space = ldr_map_item(map, number)->public.space;

    for (uint32_t i = 0; i < count; i++) {
        hashes[i] =
            shard_hash(map, space, rows[i].key, rows[i].group, rows[i].shard);
        __builtin_prefetch(slot_of(map, hashes[i]));
    }
    for (uint32_t i = 0; i < count; i++) {
        if (!add_row(map, number, hashes[i], &rows[i])) {
            return false;
        }
    }
    return true;
}

bool ldr_map_add(ldr_map_t *map, const ldr_object_t *object, uint32_t used_s,
                 const ldr_manifest_row_t *rows)
{
    uint32_t number = ldr_map_object(map, object->id);

    if (LDR_DEBUG && ++map->added % CHECK_EVERY == 0) {
        LDR_ASSERT(ldr_map_check(map));
    }
    grow_step(map);
    if (number == LDR_NIL) {
        uint32_t space = ldr_map_space(map, object->space_id);

        number =
            space != LDR_NIL ? object_new(map, object, space, used_s) : LDR_NIL;
        if (number == LDR_NIL) {
            return false;
        }
    }
    ldr_map_item_t *o = ldr_map_item(map, number);
    o->public.used_s = (uint32_t)ldr_max64(o->public.used_s, used_s);
    ldr_map_set_epoch(map, o->public.space, o->public.epoch);
    shard_settle(map, o);
    if (ldr_map_is_old(map, o) || o->public.epoch != object->epoch ||
        memcmp(map->spaces[o->public.space].id, object->space_id,
               LDR_ID_BYTES) != 0) {
        return true;
    }
    for (uint32_t i = 0; i < object->rows; i += BATCH) {
        if (!add_rows(map, number, rows + i,
                      (uint32_t)ldr_min64(object->rows - i, BATCH))) {
            return false;
        }
    }
    return true;
}

bool ldr_map_remove(ldr_map_t *map, uint32_t space,
                    const ldr_manifest_row_t *row, uint32_t when_s)
{
    uint64_t hash = shard_hash(map, space, row->key, row->group, row->shard);
    ldr_map_space_t *s = space_at(map, space);
    ldr_cell_t *cell, *removed;
    bool found = false;

    shard_cells(map, hash, &cell, &removed);
    s->removed_s = (uint32_t)ldr_max64(s->removed_s, when_s);
    remember_from(map, when_s);
    if (removed != NULL) {
        removed->where = (uint32_t)ldr_max64(removed->where, when_s);
    }
    if (cell != NULL && is_live(map, cell)) {
        ldr_map_item_t *o = ldr_map_item(map, cell->object);

        found = o->public.written_s <= when_s;
        if (found) {
            lose(map, o, cell->where);
            ldr_cells_remove(&map->cells, cell);
        }
    }
    if (removed == NULL) {
        removed = ldr_cells_add(&map->cells, hash);
        if (removed != NULL) {
            removed->object = LDR_CELL_REMOVED;
            removed->where = when_s;
        }
    }
    return found;
}

uint32_t ldr_map_removed_s(const ldr_map_t *map, uint32_t space,
                           const uint8_t key[LDR_MANIFEST_KEY], uint8_t group,
                           uint8_t shard)
{
    ldr_cell_t *cell, *removed;

    shard_cells(map, shard_hash(map, space, key, group, shard), &cell,
                &removed);
    return removed != NULL ? removed->where : 0;
}

bool ldr_map_find(const ldr_map_t *map, uint32_t space,
                  const uint8_t key[LDR_MANIFEST_KEY], uint8_t group,
                  uint8_t shard, ldr_object_place_t *place)
{
    uint64_t hash = shard_hash(map, space, key, group, shard);
    const ldr_cell_t *cell = NULL;

    held(map);
    while ((cell = ldr_cells_next(&map->cells, hash, cell)) != NULL) {
        if (is_shard(cell)) {
            break;
        }
    }
    if (cell == NULL || !is_live(map, cell)) {
        return false;
    }
    memcpy(place->id, ldr_map_item(map, cell->object)->public.id, LDR_ID_BYTES);
    place->object = cell->object;
    place->block = (uint16_t)cell->where;
    place->blocks = (uint16_t)(cell->where >> 16);
    return true;
}

void ldr_map_prefetch(const ldr_map_t *map, uint32_t space,
                      const uint8_t key[LDR_MANIFEST_KEY], uint8_t group,
                      uint8_t shard)
{
    uint64_t hash = shard_hash(map, space, key, group, shard);

    __builtin_prefetch(slot_of(map, hash));
}

/* ---- figures ---- */

void ldr_map_stats(const ldr_map_t *map, ldr_map_stats_t *out)
{
    held(map);
    *out = (ldr_map_stats_t){.objects = map->objects};
    for (uint32_t i = 0; i < map->space_count; i++) {
        const ldr_map_space_t *s = &map->spaces[i];

        out->shards += s->live_rows;
        out->blocks += s->blocks;
        out->dead_blocks += s->blocks - s->live_blocks;
    }
    out->bytes =
        sizeof(*map) + ldr_cells_bytes(&map->cells) +
        sizeof(ldr_map_item_t *) * map->chunk_capacity +
        (uint64_t)sizeof(ldr_map_item_t) * LDR_MAP_CHUNK * map->chunk_count +
        sizeof(ldr_map_space_t) * map->space_capacity;
}

bool ldr_map_check(const ldr_map_t *map)
{
    ldr_map_stats_t stats;
    uint64_t blocks = 0, dead = 0, shards = 0, objects = 0;

    ldr_map_stats(map, &stats);
    for (uint32_t i = 0; i < map->top; i++) {
        ldr_map_item_t o = *ldr_map_item(map, i);

        if (!o.in_use) {
            continue;
        }
        shard_settle(map, &o);
        objects++;
        blocks += o.public.blocks;
        dead += o.public.dead_blocks;
        shards += o.live_rows;
        if (o.public.dead_blocks > o.public.blocks ||
            ldr_map_object(map, o.public.id) != i) {
            return false;
        }
    }
    return ldr_cells_check(&map->cells) && objects == stats.objects &&
           blocks == stats.blocks && dead == stats.dead_blocks &&
           shards == stats.shards;
}
