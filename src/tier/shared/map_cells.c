/*
 * The cells of the map: 16 bytes for each shard, in segments that grow one by
 * one. map_int.h has their form and the invariants. With the tier's lock.
 */
#include "tier/shared/map_int.h"

#include <string.h>

#include "base/mem.h"

/* As many bits as a directory may have: 2^32 segments are 64 TiB. */
#define DEPTH_MAX 32u
/* A full segment in which this much is left after a sweep is split. */
#define SPLIT_FROM (LDR_SEGMENT_SLOTS / 4 * 3)
/* Two with no more than this together become one. */
#define MERGE_UP_TO (LDR_SEGMENT_SLOTS / 8 * 3)

/* Segments that are allocated one by one, so that a small map is small. */
#define ALONE_MAX 8u
#define SLAB_SEGMENTS 256u
#define SLAB_BYTES (SLAB_SEGMENTS * sizeof(ldr_segment_t))

struct ldr_slab {
    ldr_slab_t *next;
    ldr_segment_t *segments;
    uint32_t taken; /* the first so many were handed out once */
};

static uint32_t after(uint32_t slot)
{
    return slot + 1 < LDR_SEGMENT_SLOTS ? slot + 1 : 0;
}

/* How far it is from one slot on to another. */
static uint32_t distance(uint32_t from, uint32_t to)
{
    return to >= from ? to - from : to + LDR_SEGMENT_SLOTS - from;
}

/* ---- segments ---- */

static ldr_segment_t *slab_take(ldr_cells_t *t)
{
    ldr_slab_t *slab = t->slabs;

    if (slab == NULL || slab->taken == SLAB_SEGMENTS) {
        slab = ldr_alloc(sizeof(*slab));
        if (slab == NULL) {
            return NULL;
        }
        slab->segments = ldr_reserve_huge(SLAB_BYTES);
        if (slab->segments == NULL) {
            ldr_free(slab);
            return NULL;
        }
        slab->next = t->slabs;
        t->slabs = slab;
    }
    return &slab->segments[slab->taken++];
}

/* An empty one, or NULL: no memory. */
static ldr_segment_t *segment_new(ldr_cells_t *t)
{
    ldr_segment_t *s = t->free;

    if (s != NULL) {
        t->free = s->next;
        s->next = NULL;
    } else if (t->alone < ALONE_MAX) {
        s = ldr_alloc(sizeof(*s));
        if (s != NULL) {
            s->alone = true;
            t->alone++;
        }
    } else {
        s = slab_take(t);
    }
    t->segments += s != NULL;
    return s;
}

static void segment_free(ldr_cells_t *t, ldr_segment_t *s)
{
    LDR_ASSERT(t->segments > 1);
    t->segments--;
    if (s->alone) {
        t->alone--;
        ldr_free(s);
        return;
    }
    ldr_reserve_clear(s, sizeof(*s));
    s->next = t->free;
    t->free = s;
}

bool ldr_cells_init(ldr_cells_t *t,
                    bool (*counts)(void *arg, const ldr_cell_t *cell),
                    void *arg)
{
    *t = (ldr_cells_t){.counts = counts, .arg = arg};
    t->directory = ldr_alloc(sizeof(ldr_segment_t *));
    t->scratch = ldr_alloc(sizeof(ldr_cell_t) * LDR_SEGMENT_SLOTS);
    if (t->directory == NULL || t->scratch == NULL) {
        return false;
    }
    t->directory[0] = segment_new(t);
    return t->directory[0] != NULL;
}

void ldr_cells_destroy(ldr_cells_t *t)
{
    uint64_t count = (uint64_t)1 << t->depth;
    uint64_t i = 0;

    while (t->directory != NULL && i < count && t->directory[i] != NULL) {
        /* All entries of one segment lie side by side. */
        uint64_t same = (uint64_t)1 << (t->depth - t->directory[i]->depth);

        if (t->directory[i]->alone) {
            ldr_free(t->directory[i]);
        }
        i += same;
    }
    while (t->slabs != NULL) {
        ldr_slab_t *slab = t->slabs;

        t->slabs = slab->next;
        ldr_unreserve(slab->segments, SLAB_BYTES);
        ldr_free(slab);
    }
    ldr_free(t->directory);
    ldr_free(t->scratch);
    memset(t, 0, sizeof(*t));
}

static ldr_cell_t *cell_insert(ldr_cells_t *t, ldr_segment_t *s, uint64_t hash)
{
    uint32_t slot = ldr_cells_slot(hash);

    LDR_ASSERT(hash != 0 && s->used < LDR_SEGMENT_SLOTS);
    while (s->cells[slot].hash != 0) {
        slot = after(slot);
    }
    s->cells[slot].hash = hash;
    s->used++;
    t->used++;
    return &s->cells[slot];
}

static void insert_copy(ldr_cells_t *t, ldr_segment_t *s,
                        const ldr_cell_t *cell)
{
    *cell_insert(t, s, cell->hash) = *cell;
}

/* Drops the cells of a segment that no longer count. Rebuilding it is no
 * more work than closing the gaps one by one. */
static void segment_sweep(ldr_cells_t *t, ldr_segment_t *s)
{
    uint32_t left = 0;

    for (uint32_t i = 0; i < LDR_SEGMENT_SLOTS; i++) {
        if (s->cells[i].hash != 0 && t->counts(t->arg, &s->cells[i])) {
            t->scratch[left++] = s->cells[i];
        }
    }
    if (left == s->used) {
        return;
    }
    memset(s->cells, 0, sizeof(s->cells));
    t->used -= s->used;
    s->used = 0;
    for (uint32_t i = 0; i < left; i++) {
        insert_copy(t, s, &t->scratch[i]);
    }
}

static bool double_directory(ldr_cells_t *t)
{
    uint64_t count = (uint64_t)1 << t->depth;
    ldr_segment_t **directory;

    if (t->depth == DEPTH_MAX) {
        return false;
    }
    directory = ldr_alloc(sizeof(*directory) * count * 2);
    if (directory == NULL) {
        return false;
    }
    for (uint64_t i = 0; i < count * 2; i++) {
        directory[i] = t->directory[i / 2];
    }
    ldr_free(t->directory);
    t->directory = directory;
    t->depth++;
    return true;
}

/* Lets all entries of the segment's depth around that hash lead to it. */
static void cell_enter(ldr_cells_t *t, ldr_segment_t *s, uint64_t hash)
{
    uint64_t count = (uint64_t)1 << (t->depth - s->depth);
    uint64_t at = t->depth == 0 ? 0 : hash >> (64 - t->depth);

    at -= at % count;
    for (uint64_t i = 0; i < count; i++) {
        t->directory[at + i] = s;
    }
}

/* Gives half of a segment's cells, those with one more bit set, to a new one.
 * The caller has swept it. */
static bool split(ldr_cells_t *t, ldr_segment_t *s, uint64_t hash)
{
    ldr_segment_t *half;

    if (s->depth == t->depth && !double_directory(t)) {
        return false;
    }
    half = segment_new(t);
    if (half == NULL) {
        return false;
    }
    uint64_t bit = (uint64_t)1 << (63 - s->depth);
    memcpy(t->scratch, s->cells, sizeof(s->cells));
    memset(s->cells, 0, sizeof(s->cells));
    t->used -= s->used;
    s->used = 0;
    half->depth = ++s->depth;
    cell_enter(t, half, hash | bit);
    for (uint32_t i = 0; i < LDR_SEGMENT_SLOTS; i++) {
        if (t->scratch[i].hash != 0) {
            insert_copy(t, (t->scratch[i].hash & bit) != 0 ? half : s,
                        &t->scratch[i]);
        }
    }
    return true;
}

ldr_cell_t *ldr_cells_add(ldr_cells_t *t, uint64_t hash)
{
    ldr_segment_t *s = ldr_cells_segment(t, hash);

    if (s->used == LDR_SEGMENT_FULL) {
        if (t->rounds < t->sweep_until) {
            segment_sweep(t, s);
        }
        if (s->used > SPLIT_FROM && !split(t, s, hash) &&
            s->used == LDR_SEGMENT_FULL) {
            return NULL;
        }
        s = ldr_cells_segment(t, hash);
        if (s->used == LDR_SEGMENT_FULL) {
            return NULL; /* all in one half: not with hashes of ours */
        }
    }
    return cell_insert(t, s, hash);
}

/* Closes the gap: a cell behind it moves up unless that brought it before its
 * own slot. */
void ldr_cells_remove(ldr_cells_t *t, ldr_cell_t *cell)
{
    ldr_segment_t *s = ldr_cells_segment(t, cell->hash);
    uint32_t gap = (uint32_t)(cell - s->cells);

    if (!LDR_HOLDS(cell->hash != 0 && gap < LDR_SEGMENT_SLOTS && s->used > 0)) {
        return;
    }
    for (uint32_t at = after(gap); s->cells[at].hash != 0; at = after(at)) {
        if (distance(ldr_cells_slot(s->cells[at].hash), at) >=
            distance(gap, at)) {
            s->cells[gap] = s->cells[at];
            gap = at;
        }
    }
    s->cells[gap] = (ldr_cell_t){0};
    s->used--;
    t->used--;
}

/* Takes its neighbour's cells in, if both are split off from the same one and
 * nearly empty. */
static void merge(ldr_cells_t *t, ldr_segment_t *s, uint64_t hash)
{
    if (s->depth == 0) {
        return;
    }
    ldr_segment_t *other =
        ldr_cells_segment(t, hash ^ (uint64_t)1 << (64 - s->depth));
    if (other->depth != s->depth || s->used + other->used > MERGE_UP_TO) {
        return;
    }
    t->used -= other->used;
    for (uint32_t i = 0; i < LDR_SEGMENT_SLOTS; i++) {
        if (other->cells[i].hash != 0 && t->counts(t->arg, &other->cells[i])) {
            insert_copy(t, s, &other->cells[i]);
        }
    }
    s->depth--;
    cell_enter(t, s, hash);
    segment_free(t, other);
}

void ldr_cells_sweep(ldr_cells_t *t)
{
    ldr_segment_t *s = ldr_cells_segment(t, t->cursor);

    segment_sweep(t, s);
    merge(t, s, t->cursor);
    if (s->depth == 0) {
        t->cursor = 0;
    } else { /* the first hash behind it */
        uint64_t share = (uint64_t)1 << (64 - s->depth);

        t->cursor = (t->cursor & ~(share - 1)) + share;
    }
    t->rounds += t->cursor == 0;
}

uint64_t ldr_cells_bytes(const ldr_cells_t *t)
{
    return t->segments * sizeof(ldr_segment_t) +
           sizeof(ldr_cell_t) * LDR_SEGMENT_SLOTS +
           sizeof(ldr_segment_t *) * ((uint64_t)1 << t->depth);
}

/* Whether every cell of the segment can be found from its slot. */
static bool segment_check(const ldr_cells_t *t, const ldr_segment_t *s)
{
    uint32_t used = 0;

    for (uint32_t i = 0; i < LDR_SEGMENT_SLOTS; i++) {
        if (s->cells[i].hash == 0) {
            continue;
        }
        used++;
        if (ldr_cells_segment(t, s->cells[i].hash) != s) {
            return false;
        }
        for (uint32_t at = ldr_cells_slot(s->cells[i].hash); at != i;
             at = after(at)) {
            if (s->cells[at].hash == 0) {
                return false;
            }
        }
    }
    return used == s->used && used <= LDR_SEGMENT_FULL;
}

bool ldr_cells_check(const ldr_cells_t *t)
{
    uint64_t count = (uint64_t)1 << t->depth;
    uint64_t used = 0;
    uint32_t segments = 0;

    for (uint64_t i = 0; i < count;) {
        const ldr_segment_t *s = t->directory[i];

        if (s->depth > t->depth || !segment_check(t, s)) {
            return false;
        }
        uint64_t same = (uint64_t)1 << (t->depth - s->depth);
        for (uint64_t k = 0; k < same; k++) {
            if (t->directory[i + k] != s) {
                return false;
            }
        }
        used += s->used;
        segments++;
        i += same;
    }
    return used == t->used && segments == t->segments;
}
