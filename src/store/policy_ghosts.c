/*
 * Ghosts at rest: what is left of a run that has nothing resident and nothing
 * below it. A run becomes one when it has waited among the others for a while,
 * and is a run again when a chain comes to where it was. It is known by its
 * first print and the one before that, not by its parent, which may be one too.
 *
 * They are in a list, in the order in which they came to rest, and go in that
 * order, so that nothing depends on what prints are. Buckets become more one by
 * one, as those of runs do. One of more than a chunk has a node of prints that
 * says so, in front of those of the run.
 */
#include <string.h>

#include "store/policy_runs.h"

#define BUCKETS_LEAST 256u /* a power of two */
#define TOLD_MAX 2048u     /* that are told of in one pass, about */

/* What such a node has in place of prints. */
typedef struct extent {
    uint32_t last;
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
    extent_t e = {.length = 1};

    if (u->prints != LDR_NIL) {
        memcpy(&e, t->nodes[u->prints].print, sizeof(e));
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
    u->older = g->youngest;
    u->younger = LDR_NIL;
    if (g->youngest != LDR_NIL) {
        g->all[g->youngest].younger = ghost;
    } else {
        g->oldest = ghost;
    }
    g->youngest = ghost;
    g->count++;
    g->shorts += u->is_short;
}

/* It is free; its prints are the caller's. */
static void unlink_it(ldr_runs_t *t, uint32_t ghost)
{
    ldr_ghosts_t *g = &t->ghosts;
    ldr_ghost_t *u = &g->all[ghost];
    uint32_t *link = bucket_of(g, u->key);

    tell(t, ghost, 1);
    t->ghost_chunks -= extent_of(t, u).length;
    while (*link != ghost + 1) {
        link = &g->all[*link - 1].next;
    }
    *link = u->next;
    if (u->older != LDR_NIL) {
        g->all[u->older].younger = u->younger;
    } else {
        g->oldest = u->younger;
    }
    if (u->younger != LDR_NIL) {
        g->all[u->younger].older = u->older;
    } else {
        g->youngest = u->older;
    }
    g->count--;
    g->shorts -= u->is_short;
    u->used = 0;
    u->next = g->free;
    g->free = ghost + 1;
}

/* Of those that go next: what is in its bucket, the bucket, the ghost. */
static void fetch_next(const ldr_ghosts_t *g)
{
    const ldr_ghost_t *u = &g->all[g->oldest];

    if (g->oldest == LDR_NIL || u->younger == LDR_NIL) {
        return;
    }
    uint32_t first = *bucket_of(g, u->key);
    if (first != 0) {
        __builtin_prefetch(&g->all[first - 1]);
    }
    u = &g->all[u->younger];
    __builtin_prefetch(bucket_of(g, u->key));
    if (u->younger != LDR_NIL) {
        __builtin_prefetch(&g->all[u->younger]);
    }
}

bool ldr_ghost_drop(ldr_runs_t *t)
{
    ldr_ghosts_t *g = &t->ghosts;
    uint32_t ghost = g->oldest;

    if (ghost == LDR_NIL) {
        return false;
    }
    uint32_t prints = g->all[ghost].prints;
    unlink_it(t, ghost);
    ldr_prints_give(t, prints);
    fetch_next(g);
    return true;
}

bool ldr_ghost_keep(ldr_runs_t *t, uint32_t run)
{
    ldr_ghosts_t *g = &t->ghosts;
    ldr_run_t *r = &t->runs[run];
    bool is_short = (r->flags & LDR_RUN_SHORT) != 0;
    uint32_t before = r->parent != LDR_NIL ? t->runs[r->parent].last : 0;
    uint32_t fan = (r->flags & LDR_RUN_TEMPLATE) != 0 ? 255 : r->fan;
    uint32_t prints = LDR_NIL;

    if (r->length == 0 || (r->parent == LDR_NIL && r->depth > 0) ||
        (g->free == 0 && g->top == g->max && !ldr_ghost_drop(t))) {
        return false;
    }
    if (r->length > 1) {
        extent_t e = {r->last, r->length, r->skip};

        prints = ldr_prints_head(t, r->prints, &e, sizeof(e));
        if (prints == LDR_NIL) {
            return false;
        }
        r->prints = LDR_NIL;
    }
    uint32_t ghost = g->free != 0 ? g->free - 1 : g->top++;
    g->free = g->free != 0 ? g->all[ghost].next : 0;
    g->all[ghost] = (ldr_ghost_t){
        .key = key_of(before, r->first, is_short),
        .used_ds = r->used_ds,
        .prints = prints,
        .tokens = r->tokens,
        .lot = r->lot,
        .class = r->class & 0x3ff,
        .uses = r->uses < 127 ? r->uses & 0x7f : 127,
        .turn = r->turn < 127 ? r->turn & 0x7f : 127,
        .fan = fan < 15 ? fan & 15 : 15,
        .told = r->told,
        .is_short = is_short,
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
                    ldr_run_t *to)
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
        .last = e.length > 1 ? e.last : first,
        .prints = u->prints,
        .child = LDR_NIL,
        .used_ds = u->used_ds,
        .stamp = t->stamp - 1,
        .tokens = u->tokens,
        .lot = u->lot,
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
    unlink_it(t, ghost);
    if (to->prints != LDR_NIL) {
        to->prints = ldr_prints_behead(t, to->prints);
    }
    return true;
}

void ldr_ghost_tell_all(ldr_runs_t *t)
{
    ldr_ghosts_t *g = &t->ghosts;

    for (uint32_t i = 0; i < g->top; i += g->sample + 1) {
        if (g->all[i].used) {
            tell(t, i, 1);
        }
    }
}

void ldr_ghost_resample(ldr_runs_t *t)
{
    ldr_ghosts_t *g = &t->ghosts;

    while (g->top / (g->sample + 1) > TOLD_MAX) {
        g->sample = g->sample * 2 + 1;
    }
}

void ldr_ghost_soon(const ldr_runs_t *t, uint32_t first, unsigned step)
{
    const uint32_t *bucket = bucket_of(&t->ghosts, first);

    if (step >= 2) {
        __builtin_prefetch(bucket);
    } else if (*bucket != 0) {
        __builtin_prefetch(&t->ghosts.all[*bucket - 1]);
    }
}

void ldr_ghost_init(ldr_runs_t *t, uint32_t max)
{
    t->ghosts.max = max > BUCKETS_LEAST ? max : BUCKETS_LEAST;
    t->ghosts.bucket_count = BUCKETS_LEAST;
    t->ghosts.bucket_mask = BUCKETS_LEAST - 1;
    t->ghosts.oldest = t->ghosts.youngest = LDR_NIL;
}

size_t ldr_ghost_bytes(const ldr_runs_t *t)
{
    return t->ghosts.top * sizeof(ldr_ghost_t) +
           t->ghosts.bucket_count * sizeof(uint32_t);
}

bool ldr_ghost_check(const ldr_runs_t *t, uint64_t *chunks)
{
    const ldr_ghosts_t *g = &t->ghosts;
    uint32_t count = 0, shorts = 0, older = LDR_NIL;

    for (uint32_t i = g->oldest; i != LDR_NIL; i = g->all[i].younger) {
        const ldr_ghost_t *u = &g->all[i];
        uint32_t at = *bucket_of(g, u->key);

        while (at != 0 && at != i + 1) {
            at = g->all[at - 1].next;
        }
        if (at == 0 || !u->used || u->older != older || count++ == g->count ||
            extent_of(t, u).length < 1) {
            return false;
        }
        shorts += u->is_short;
        *chunks += extent_of(t, u).length;
        older = i;
    }
    return count == g->count && shorts == g->shorts && older == g->youngest;
}
