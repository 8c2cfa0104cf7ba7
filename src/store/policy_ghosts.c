/*
 * Ghosts at rest: what is left of a run that has nothing resident and nothing
 * below it. A run becomes one when it has waited among the others for a while,
 * and is a run again when a chain comes to where it was. It is known by its
 * first print and the one before that, not by its parent, which may be one too.
 *
 * They stand in a ring, in the order in which they came to rest, and go in that
 * order, so that nothing depends on what prints are. The ring becomes longer at
 * its end while it is well filled, and else begins anew there; the oldest go
 * when it is full, of holes or not. Buckets become more one by one, as those of
 * runs do. One of more than a chunk has a node of prints that says so, in front
 * of those of the run.
 */
#include <string.h>

#include "store/policy_runs.h"

#define BUCKETS_LEAST 256u /* a power of two */
#define TOLD_MAX 2048u     /* that are told of in one pass, about */
#define SLACK 8u           /* an eighth of the ring may be holes */
#define RING_LEAST 256u

/* What such a node has in place of prints. */
typedef struct extent {
    uint32_t last;
    uint32_t more; /* as of a single chunk */
    uint16_t length;
    uint16_t skip;
} extent_t;

_Static_assert(sizeof(extent_t) <= sizeof(((ldr_prints_t *)0)->print),
               "it is kept there");

static uint32_t key_of(uint32_t before, uint32_t first, bool is_short)
{
    uint32_t own = is_short ? (first & 0xffff) * 0x9e3779b1u + 1 : first;

    return own + before * 0x85ebca6bu;
}

static uint32_t *bucket_of(const ldr_ghosts_t *g, uint32_t key)
{
    uint32_t hash = (key ^ key >> 15) * 0x2c1b3c6du;
    uint32_t at = (hash ^ hash >> 12) * 0x9e3779b1u >> 4;

    at &= g->bucket_mask * 2 + 1;
    return &g->buckets[at < g->bucket_count ? at : at & g->bucket_mask];
}

static extent_t extent_of(const ldr_runs_t *t, const ldr_ghost_t *u)
{
    extent_t e = {.length = 1, .more = u->more};

    if (u->is_long) {
        memcpy(&e, t->nodes[u->more].print, sizeof(e));
    }
    return e;
}

/* Times: 1, or -1 for what another will tell of once more. */
static void tell(ldr_runs_t *t, uint32_t ghost, float times)
{
    const ldr_ghost_t *u = &t->ghosts.all[ghost];

    if ((ghost & t->ghosts.sample) == 0) {
        uint32_t told = t->scan_ds - u->used_ds;

        ldr_learn_wait(t->learn, u->class, (int32_t)told > 0 ? told : 0,
                       t->now_ds - u->used_ds,
                       times * ldr_runs_weight(extent_of(t, u).length) *
                           (float)(t->ghosts.sample + 1));
    }
}

/* One bucket more: some of what is in another belongs there. */
static void bucket_split(ldr_ghosts_t *g)
{
    uint32_t from = g->bucket_count - g->bucket_mask - 1;
    uint32_t at = g->buckets[from];

    g->buckets[from] = 0;
    g->buckets[g->bucket_count++] = 0;
    while (at != 0) {
        ldr_ghost_t *u = &g->all[at - 1];
        uint32_t next = u->next;
        uint32_t *bucket = bucket_of(g, u->key);

        u->next = *bucket;
        *bucket = at;
        at = next;
    }
    if (g->bucket_count == 2 * (g->bucket_mask + 1)) {
        g->bucket_mask = g->bucket_mask * 2 + 1;
    }
}

static void link_in(ldr_ghosts_t *g, uint32_t ghost)
{
    ldr_ghost_t *u = &g->all[ghost];

    if (g->count >= g->bucket_count && g->bucket_count < g->max) {
        bucket_split(g);
    }
    uint32_t *bucket = bucket_of(g, u->key);
    u->next = *bucket;
    *bucket = ghost + 1;
    g->count++;
    g->shorts += u->is_short;
}

/* It is a hole; its prints are the caller's. */
static void unlink_it(ldr_runs_t *t, uint32_t ghost)
{
    ldr_ghosts_t *g = &t->ghosts;
    ldr_ghost_t *u = &g->all[ghost];
    uint32_t *link = bucket_of(g, u->key);

    tell(t, ghost, 1);
    t->ghost_chunks -= u->is_long ? extent_of(t, u).length : 1;
    while (*link != ghost + 1) {
        link = &g->all[*link - 1].next;
    }
    *link = u->next;
    g->count--;
    g->shorts -= u->is_short;
    u->used = 0;
    while (g->span > 0 && !g->all[g->oldest].used) {
        g->oldest = g->oldest + 1 < g->size ? g->oldest + 1 : 0;
        g->span--;
    }
}

/* Of those that go next: the second in its bucket, the first, the bucket. The
 * oldest is the last of its bucket, so all before it are looked at. */
static void fetch_next(const ldr_ghosts_t *g)
{
    if (g->oldest + 2 >= g->size || g->span < 3) {
        return;
    }
    const ldr_ghost_t *oldest = &g->all[g->oldest];
    uint32_t at = *bucket_of(g, oldest->key);
    if (at != 0 && g->all[at - 1].next != 0) {
        __builtin_prefetch(&g->all[g->all[at - 1].next - 1]);
    }
    at = *bucket_of(g, oldest[1].key);
    if (at != 0) {
        __builtin_prefetch(&g->all[at - 1]);
    }
    __builtin_prefetch(bucket_of(g, oldest[2].key));
}

bool ldr_ghost_drop(ldr_runs_t *t)
{
    ldr_ghosts_t *g = &t->ghosts;

    if (g->count == 0) {
        return false;
    }
    const ldr_ghost_t *u = &g->all[g->oldest];
    uint32_t prints = u->is_long ? u->more : LDR_NIL;
    unlink_it(t, g->oldest);
    ldr_prints_give(t, prints);
    fetch_next(g);
    return true;
}

/* The place behind the youngest, for which others may have to go. */
static uint32_t ring_take(ldr_runs_t *t)
{
    ldr_ghosts_t *g = &t->ghosts;
    uint32_t at = g->oldest + g->span;

    if (at == g->size && g->size < g->max &&
        g->size < RING_LEAST + g->count + g->count / SLACK) {
        g->size++;
    }
    at = at < g->size ? at : at - g->size;
    if (g->span == g->size) {
        ldr_ghost_drop(t);
    }
    g->span++;
    return at;
}

static uint32_t more_of(const ldr_run_t *r)
{
    return r->tokens | (uint32_t)r->lot << 20;
}

bool ldr_ghost_keep(ldr_runs_t *t, uint32_t run)
{
    ldr_ghosts_t *g = &t->ghosts;
    const ldr_run_t *r = &t->runs[run];
    bool is_short = (r->flags & LDR_RUN_SHORT) != 0;
    const ldr_limb_t *l = ldr_limb(t, run);
    uint32_t before = l->parent != LDR_NIL ? ldr_runs_last(t, l->parent) : 0;
    uint32_t fan = (r->flags & LDR_RUN_TEMPLATE) != 0 ? 255 : r->fan;
    uint32_t more = more_of(r);

    if (r->length == 0 || (l->parent == LDR_NIL && l->depth > 0)) {
        return false;
    }
    if (r->length > 1) {
        extent_t e = {l->last, more, r->length, r->skip};

        more = ldr_prints_head(t, l->prints, &e, sizeof(e));
        if (more == LDR_NIL) {
            return false;
        }
        ldr_limb(t, run)->prints = LDR_NIL;
    }
    uint32_t ghost = ring_take(t);
    g->all[ghost] = (ldr_ghost_t){
        .key = key_of(before, r->first, is_short),
        .used_ds = r->used_ds,
        .more = more,
        .class = r->class & 0x3ff,
        .uses = r->uses < 127 ? r->uses & 0x7f : 127,
        .turn = r->turn < 127 ? r->turn & 0x7f : 127,
        .fan = fan < 15 ? fan & 15 : 15,
        .told = r->told,
        .is_short = is_short,
        .is_long = r->length > 1,
        .used = 1,
    };
    t->ghost_chunks += r->length;
    link_in(g, ghost);
    tell(t, ghost, -1);
    return true;
}

static uint32_t find(const ldr_ghosts_t *g, uint32_t key, bool is_short)
{
    uint32_t at = *bucket_of(g, key);

    while (at != 0 &&
           (g->all[at - 1].key != key || g->all[at - 1].is_short != is_short)) {
        at = g->all[at - 1].next;
    }
    return at != 0 ? at - 1 : LDR_NIL;
}

bool ldr_ghost_take(ldr_runs_t *t, uint32_t before, uint32_t first,
                    ldr_run_t *to, uint32_t *prints, uint32_t *last)
{
    ldr_ghosts_t *g = &t->ghosts;
    uint32_t ghost = find(g, key_of(before, first, false), false);

    if (ghost == LDR_NIL && g->shorts > 0 && before != 0) {
        ghost = find(g, key_of(before, first, true), true);
    }
    if (ghost == LDR_NIL) {
        return false;
    }
    const ldr_ghost_t *u = &g->all[ghost];
    extent_t e = extent_of(t, u);
    *to = (ldr_run_t){
        .first = first,
        .used_ds = u->used_ds,
        .stamp = t->stamp - 1,
        .tokens = e.more & LDR_RUN_TOKENS_MAX,
        .lot = e.more >> 20,
        .tail = LDR_NIL,
        .length = e.length,
        .class = u->class,
        .skip = e.skip & 7,
        .told = u->told,
        .uses = u->uses,
        .fan = u->fan,
        .turn = u->turn,
        .flags = LDR_RUN_USED,
    };
    *prints = u->is_long ? u->more : LDR_NIL;
    *last = e.last;
    unlink_it(t, ghost);
    if (*prints != LDR_NIL) {
        *prints = ldr_prints_behead(t, *prints);
    }
    return true;
}

void ldr_ghost_tell_all(ldr_runs_t *t)
{
    ldr_ghosts_t *g = &t->ghosts;

    for (uint32_t i = 0; i < g->size; i += g->sample + 1) {
        if (g->all[i].used) {
            tell(t, i, 1);
        }
    }
}

void ldr_ghost_resample(ldr_runs_t *t)
{
    ldr_ghosts_t *g = &t->ghosts;

    while (g->size / (g->sample + 1) > TOLD_MAX) {
        g->sample = g->sample * 2 + 1;
    }
}

void ldr_ghost_soon(const ldr_runs_t *t, uint32_t first, unsigned step)
{
    const uint32_t *bucket = bucket_of(&t->ghosts, first);

    if (step >= 2) {
        __builtin_prefetch(bucket);
    } else if (*bucket != 0) {
        const ldr_ghost_t *u = &t->ghosts.all[*bucket - 1];

        if (step == 1) {
            __builtin_prefetch(u);
        } else if (u->next != 0) {
            __builtin_prefetch(&t->ghosts.all[u->next - 1]);
        }
    }
}

void ldr_ghost_init(ldr_runs_t *t, uint32_t max)
{
    t->ghosts.max = max > BUCKETS_LEAST ? max : BUCKETS_LEAST;
    t->ghosts.bucket_count = BUCKETS_LEAST;
    t->ghosts.bucket_mask = BUCKETS_LEAST - 1;
    t->ghosts.size = RING_LEAST;
}

size_t ldr_ghost_bytes(const ldr_runs_t *t)
{
    return t->ghosts.size * sizeof(ldr_ghost_t) +
           t->ghosts.bucket_count * sizeof(uint32_t);
}

bool ldr_ghost_check(const ldr_runs_t *t, uint64_t *chunks)
{
    const ldr_ghosts_t *g = &t->ghosts;
    uint32_t count = 0, shorts = 0;

    for (uint32_t i = 0; i < g->size; i++) {
        const ldr_ghost_t *u = &g->all[i];
        uint32_t from = (i + g->size - g->oldest) % g->size;

        if (!u->used) {
            continue;
        }
        uint32_t at = *bucket_of(g, u->key);
        while (at != 0 && at != i + 1) {
            at = g->all[at - 1].next;
        }
        if (at == 0 || from >= g->span || extent_of(t, u).length < 1) {
            return false;
        }
        count++;
        shorts += u->is_short;
        *chunks += extent_of(t, u).length;
    }
    return count == g->count && shorts == g->shorts &&
           (g->span == 0 || g->all[g->oldest].used);
}
