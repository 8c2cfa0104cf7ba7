/* Queues of runs that may lose a chunk: lists by stamp, one for each class. */
#include "store/policy_runs.h"

#define PLACE_LOOK 512u
#define WORTH_DS 4u /* what they are worth is worked out as often */

/* One body for each view: what an item is, and where, is known then, and these
 * are most of what a request costs. */
#define INLINE static inline __attribute__((always_inline))

/* An item is a run in the real view, and a record in the others. */

INLINE uint32_t run_of(const ldr_runs_t *t, uint32_t view, uint32_t item)
{
    return view == LDR_VIEW_REAL ? item : t->shades[item].run;
}

INLINE uint32_t *left_of(ldr_runs_t *t, uint32_t view, uint32_t item)
{
    return view == LDR_VIEW_REAL ? &t->runs[item].left
                                 : &t->shades[item].views[view - 1].left;
}

INLINE uint32_t *right_of(ldr_runs_t *t, uint32_t view, uint32_t item)
{
    return view == LDR_VIEW_REAL ? &t->runs[item].right
                                 : &t->shades[item].views[view - 1].right;
}

/* The LRU shadow needs no classes. */
INLINE uint32_t queue_of(const ldr_runs_t *t, uint32_t view, uint32_t item)
{
    return view == LDR_VIEW_LRU ? 0 : t->runs[run_of(t, view, item)].class;
}

INLINE bool is_before(const ldr_runs_t *t, uint32_t view, uint32_t a,
                      uint32_t b)
{
    return ldr_runs_before(t, run_of(t, view, a), run_of(t, view, b));
}

static double worth_of(const ldr_runs_t *t, const ldr_run_queues_t *q,
                       uint32_t class, uint32_t stamp, uint32_t used_ds)
{
    if (q->lru) {
        return (double)(int32_t)(stamp - t->stamp);
    }
    return (double)ldr_learn_worth(t->learn, class, t->now_ds - used_ds);
}

double ldr_queue_worth(const ldr_runs_t *t, uint32_t view, uint32_t item)
{
    const ldr_run_t *r = &t->runs[run_of(t, view, item)];

    return worth_of(t, &t->queues[view], r->class, r->stamp, r->used_ds);
}

/* Whether the first one of a class goes before that of another. */
INLINE bool is_worse(const ldr_runs_t *t, uint32_t view, uint32_t c, uint32_t d)
{
    const ldr_run_queues_t *q = &t->queues[view];
    const ldr_run_queue_t *a = &q->classes[c], *b = &q->classes[d];

    if (q->lru && a->stamp != b->stamp) {
        return (int32_t)(a->stamp - b->stamp) < 0;
    }
    if (!q->lru && (a->worth < b->worth || a->worth > b->worth)) {
        return a->worth < b->worth;
    }
    return is_before(t, view, a->first, b->first);
}

INLINE void heap_set(ldr_run_queues_t *q, uint32_t at, uint32_t c)
{
    q->heap[at] = (uint16_t)c;
    q->place[c] = (uint16_t)(at + 1);
}

/* Puts the class, whose place that was, where it belongs. */
INLINE void heap_down(ldr_runs_t *t, uint32_t view, uint32_t at, uint32_t c)
{
    ldr_run_queues_t *q = &t->queues[view];

    for (;;) {
        uint32_t child = 2 * at + 1;

        if (child >= q->heap_count) {
            break;
        }
        if (child + 1 < q->heap_count &&
            is_worse(t, view, q->heap[child + 1], q->heap[child])) {
            child++;
        }
        if (!is_worse(t, view, q->heap[child], c)) {
            break;
        }
        heap_set(q, at, q->heap[child]);
        at = child;
    }
    heap_set(q, at, c);
}

INLINE void heap_fix(ldr_runs_t *t, uint32_t view, uint32_t at, uint32_t c)
{
    ldr_run_queues_t *q = &t->queues[view];

    while (at > 0 && is_worse(t, view, c, q->heap[(at - 1) / 2])) {
        heap_set(q, at, q->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    heap_down(t, view, at, c);
}

/* The class has become empty. */
INLINE void heap_remove(ldr_runs_t *t, uint32_t view, uint32_t c)
{
    ldr_run_queues_t *q = &t->queues[view];
    uint32_t at = q->place[c] - 1u;
    uint32_t last = q->heap[--q->heap_count];

    q->place[c] = 0;
    if (last != c) {
        heap_fix(t, view, at, last);
    }
}

/* All of it anew: first in any order, then from the last that has others below
 * it to the top. */
static void heap_make(ldr_runs_t *t, uint32_t view)
{
    ldr_run_queues_t *q = &t->queues[view];

    for (uint32_t i = 0; q->stale && i < q->heap_count; i++) {
        q->place[q->heap[i]] = 0; /* it may be empty by now */
    }
    q->heap_count = 0;
    q->stale = false;
    q->worth_ds = t->now_ds;
    for (uint32_t w = 0; w < sizeof(q->filled) / sizeof(q->filled[0]); w++) {
        for (uint64_t bits = q->filled[w]; bits != 0; bits &= bits - 1) {
            uint32_t c = w * 64 + (uint32_t)__builtin_ctzll(bits);

            if (!q->lru) {
                q->classes[c].worth = ldr_learn_worth(
                    t->learn, c, t->now_ds - q->classes[c].used_ds);
            }
            heap_set(q, q->heap_count++, c);
        }
    }
    for (uint32_t i = q->heap_count / 2; i-- > 0;) {
        heap_down(t, view, i, q->heap[i]);
    }
}

/* The item is now the first. */
INLINE void queue_first(ldr_runs_t *t, uint32_t view, uint32_t c, uint32_t item)
{
    ldr_run_queues_t *q = &t->queues[view];
    const ldr_run_t *r = &t->runs[run_of(t, view, item)];

    if (view == LDR_VIEW_REAL && r->tail != LDR_NIL) {
        __builtin_prefetch(&t->slots[r->tail]); /* perhaps the next to go */
    }
    q->classes[c].first = item;
    q->classes[c].stamp = r->stamp;
    q->classes[c].used_ds = r->used_ds;
    if (q->stale) {
        return;
    }
    if (!q->lru) {
        int32_t age_ds = (int32_t)(q->worth_ds - r->used_ds);

        q->classes[c].worth = ldr_learn_worth(
            t->learn, r->class, age_ds > 0 ? (uint32_t)age_ds : 0);
    }
    heap_fix(t, view, q->place[c] != 0 ? q->place[c] - 1u : q->heap_count++, c);
}

/* Puts the item behind an older one; LDR_NIL: it is the oldest. */
INLINE void queue_link(ldr_runs_t *t, uint32_t view, uint32_t c, uint32_t item,
                       uint32_t older)
{
    ldr_run_queue_t *q = &t->queues[view].classes[c];
    uint32_t younger = older != LDR_NIL ? *right_of(t, view, older) : q->first;

    *left_of(t, view, item) = older;
    *right_of(t, view, item) = younger;
    if (younger != LDR_NIL) {
        *left_of(t, view, younger) = item;
    } else {
        q->last = item;
    }
    if (older != LDR_NIL) {
        *right_of(t, view, older) = item;
    } else {
        queue_first(t, view, c, item);
    }
}

/*
 * Whom the item stands behind. Most are used now, and stand last. Others come
 * back when the last below them has gone, or is given back: these are among
 * the oldest, or hardly older than the last. So it is looked for from both
 * ends, and not for long: one that is in the wrong place goes a bit sooner.
 */
INLINE uint32_t queue_place(ldr_runs_t *t, uint32_t view, uint32_t c,
                            uint32_t item)
{
    uint32_t young = t->queues[view].classes[c].last;
    uint32_t old = t->queues[view].classes[c].first;

    for (uint32_t i = 0; i < PLACE_LOOK; i++) {
        if (!is_before(t, view, item, young)) {
            return young;
        }
        if (is_before(t, view, item, old)) {
            return *left_of(t, view, old);
        }
        young = *left_of(t, view, young);
        old = *right_of(t, view, old);
    }
    t->loose = true;
    return *left_of(t, view, old);
}

INLINE void queue_add(ldr_runs_t *t, uint32_t view, uint32_t item)
{
    ldr_run_queues_t *q = &t->queues[view];
    uint32_t c = queue_of(t, view, item);

    if ((q->filled[c / 64] >> c % 64 & 1) == 0) {
        q->classes[c].first = q->classes[c].last = LDR_NIL;
        queue_link(t, view, c, item, LDR_NIL);
    } else {
        queue_link(t, view, c, item, queue_place(t, view, c, item));
    }
    q->filled[c / 64] |= (uint64_t)1 << c % 64;
}

void ldr_queue_add(ldr_runs_t *t, uint32_t view, uint32_t item)
{
    if (view == LDR_VIEW_LEARNED) {
        queue_add(t, LDR_VIEW_LEARNED, item);
    } else {
        queue_add(t, LDR_VIEW_LRU, item);
    }
}

INLINE void queue_remove(ldr_runs_t *t, uint32_t view, uint32_t item)
{
    ldr_run_queues_t *q = &t->queues[view];
    uint32_t c = queue_of(t, view, item);
    uint32_t older = *left_of(t, view, item),
             younger = *right_of(t, view, item);

    if (younger != LDR_NIL) {
        *left_of(t, view, younger) = older;
    } else {
        q->classes[c].last = older;
    }
    if (older != LDR_NIL) {
        *right_of(t, view, older) = younger;
    } else if (younger != LDR_NIL) {
        queue_first(t, view, c, younger);
    } else {
        q->filled[c / 64] &= ~((uint64_t)1 << c % 64);
        if (!q->stale) {
            heap_remove(t, view, c);
        }
    }
    if (older == LDR_NIL && younger != LDR_NIL &&
        *right_of(t, view, younger) != LDR_NIL) { /* the next to go but one */
        ldr_runs_fetch(t, run_of(t, view, *right_of(t, view, younger)));
    }
}

void ldr_queue_remove(ldr_runs_t *t, uint32_t view, uint32_t item)
{
    if (view == LDR_VIEW_LEARNED) {
        queue_remove(t, LDR_VIEW_LEARNED, item);
    } else {
        queue_remove(t, LDR_VIEW_LRU, item);
    }
}

/* All of a queue are as young as its first, or younger. */
static uint32_t best_of_others(ldr_runs_t *t, uint32_t view, uint32_t except)
{
    ldr_run_queues_t *q = &t->queues[view];
    uint32_t best = LDR_NIL;
    for (uint32_t i = 1; i < q->heap_count; i++) {
        uint32_t c = q->heap[i];

        if (q->classes[c].stamp != except &&
            (best == LDR_NIL || is_worse(t, view, c, best))) {
            best = c;
        }
    }
    return best != LDR_NIL ? q->classes[best].first : LDR_NIL;
}

uint32_t ldr_queue_best(ldr_runs_t *t, uint32_t view, uint32_t except)
{
    ldr_run_queues_t *q = &t->queues[view];

    if (q->stale || (!q->lru && t->now_ds - q->worth_ds >= WORTH_DS)) {
        heap_make(t, view);
    }
    if (q->heap_count == 0) {
        return LDR_NIL;
    }
    if (q->classes[q->heap[0]].stamp != except) {
        return q->classes[q->heap[0]].first;
    }
    return best_of_others(t, view, except);
}

/* Lists of the real view, that use the links a queue would. */

static void blocked_add(ldr_runs_t *t, uint32_t run)
{
    ldr_run_t *v = &t->runs[run];

    v->left = t->blocked;
    v->right = LDR_NIL;
    if (t->blocked != LDR_NIL) {
        t->runs[t->blocked].right = run;
    }
    t->blocked = run;
    t->runs[run].flags |= LDR_RUN_BLOCKED;
}

static void blocked_remove(ldr_runs_t *t, uint32_t run)
{
    ldr_run_t *v = &t->runs[run];

    if (v->right != LDR_NIL) {
        t->runs[v->right].left = v->left;
    } else {
        t->blocked = v->left;
    }
    if (v->left != LDR_NIL) {
        t->runs[v->left].right = v->right;
    }
    t->runs[run].flags &= (uint8_t)~LDR_RUN_BLOCKED;
}

/* Behind the last, or before the first. */
static void ghost_add(ldr_runs_t *t, uint32_t run, bool first)
{
    ldr_run_t *v = &t->runs[run];

    v->left = first ? t->ghost_head : LDR_NIL;
    v->right = first ? LDR_NIL : t->ghost_tail;
    if (v->right != LDR_NIL) {
        t->runs[v->right].left = run;
    } else {
        t->ghost_head = run;
    }
    if (v->left != LDR_NIL) {
        t->runs[v->left].right = run;
    } else {
        t->ghost_tail = run;
    }
    t->ghost_count++;
    t->ghost_chunks += t->runs[run].length;
    t->runs[run].flags |= LDR_RUN_GHOST;
}

static void ghost_remove(ldr_runs_t *t, uint32_t run)
{
    ldr_run_t *v = &t->runs[run];

    if (v->right != LDR_NIL) {
        t->runs[v->right].left = v->left;
    } else {
        t->ghost_head = v->left;
    }
    if (v->left != LDR_NIL) {
        t->runs[v->left].right = v->right;
    } else {
        t->ghost_tail = v->right;
    }
    t->ghost_count--;
    t->ghost_chunks -= t->runs[run].length;
    t->runs[run].flags &= (uint8_t)~LDR_RUN_GHOST;
}

void ldr_runs_ghost_last(ldr_runs_t *t, uint32_t run)
{
    ghost_remove(t, run);
    ghost_add(t, run, false);
}

/* Out of the queue or list of the real view in which it is. */
static void leave(ldr_runs_t *t, uint32_t run)
{
    ldr_run_t *r = &t->runs[run];

    if ((r->flags & LDR_RUN_QUEUED) != 0) {
        queue_remove(t, LDR_VIEW_REAL, run);
        r->flags &= (uint8_t)~LDR_RUN_QUEUED;
    } else if ((r->flags & LDR_RUN_GHOST) != 0) {
        ghost_remove(t, run);
    } else if ((r->flags & LDR_RUN_BLOCKED) != 0) {
        blocked_remove(t, run);
    }
}

/* Takes a run out of all queues and lists, before it changes. */
void ldr_runs_lift(ldr_runs_t *t, uint32_t run)
{
    leave(t, run);
    if ((t->runs[run].flags & LDR_RUN_SHADE) != 0) {
        ldr_shade_lift(t, run);
    }
}

void ldr_runs_move(ldr_runs_t *t, uint32_t run, uint32_t place)
{
    ldr_run_t *r = &t->runs[run];

    leave(t, run); /* the links are the same */
    if (place == LDR_RUN_QUEUED) {
        queue_add(t, LDR_VIEW_REAL, run);
        r->flags |= LDR_RUN_QUEUED;
    } else if (place == LDR_RUN_BLOCKED) {
        blocked_add(t, run);
    } else if (place == LDR_RUN_GHOST) {
        /* Hardly any next turn has a last chunk that was not full. */
        ghost_add(t, run, (r->flags & LDR_RUN_LAST) != 0);
    }
}

void ldr_runs_count(ldr_runs_t *t, uint32_t run, int by)
{
    ldr_run_t *r = &t->runs[run];
    uint32_t had = r->resident;
    uint32_t has = (uint32_t)((int)had + by);

    r->resident = (uint16_t)has;
    t->queues[LDR_VIEW_REAL].resident += (uint64_t)(int64_t)by;
    uint32_t parent = ldr_limb(t, run)->parent;
    if ((had == 0) != (has == 0) && parent != LDR_NIL) {
        ldr_limb_t *above = ldr_limb(t, parent);

        above->kids = has == 0 ? above->kids - 1 : above->kids + 1;
        ldr_runs_settle(t, parent);
    }
    ldr_runs_settle(t, run);
}

double ldr_runs_worth(const ldr_runs_t *t, uint32_t run)
{
    return ldr_queue_worth(t, LDR_VIEW_REAL, run);
}

uint32_t ldr_runs_best(ldr_runs_t *t, uint32_t except)
{
    return ldr_queue_best(t, LDR_VIEW_REAL, except);
}
