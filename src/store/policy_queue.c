/* Queues of runs that may lose a chunk: lists by stamp, one for each class. */
#include "store/policy_runs.h"

#define PLACE_LOOK 512u

/* An item is a run in the real view, and a record in the others. */

static uint32_t run_of(const ldr_runs_t *t, uint32_t view, uint32_t item)
{
    return view == LDR_VIEW_REAL ? item : t->shades[item].run;
}

static uint32_t *left_of(ldr_runs_t *t, uint32_t view, uint32_t item)
{
    return view == LDR_VIEW_REAL ? &t->runs[item].left
                                 : &t->shades[item].views[view - 1].left;
}

static uint32_t *right_of(ldr_runs_t *t, uint32_t view, uint32_t item)
{
    return view == LDR_VIEW_REAL ? &t->runs[item].right
                                 : &t->shades[item].views[view - 1].right;
}

/* The LRU shadow needs no classes. */
static uint32_t queue_of(const ldr_runs_t *t, uint32_t view, uint32_t item)
{
    return view == LDR_VIEW_LRU ? 0 : t->runs[run_of(t, view, item)].class;
}

static bool is_before(const ldr_runs_t *t, uint32_t view, uint32_t a,
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

/* The item is now the first. What was found to be best may not be any more. */
static void queue_first(ldr_runs_t *t, uint32_t view, uint32_t c, uint32_t item)
{
    ldr_run_queues_t *q = &t->queues[view];
    const ldr_run_t *r = &t->runs[run_of(t, view, item)];

    q->classes[c].first = item;
    q->classes[c].stamp = r->stamp;
    q->classes[c].used_ds = r->used_ds;
    if (q->worth_known && !q->lru) {
        q->classes[c].worth =
            ldr_learn_worth(t->learn, r->class, q->worth_ds - r->used_ds);
    }
    if (r->stamp == q->best_not) {
        q->passed = true;
    } else if (q->best != LDR_NIL &&
               worth_of(t, q, r->class, r->stamp, r->used_ds) <=
                   ldr_queue_worth(t, view, q->best)) {
        q->best = LDR_NIL;
    }
}

/* Puts the item behind an older one; LDR_NIL: it is the oldest. */
static void queue_link(ldr_runs_t *t, uint32_t view, uint32_t c, uint32_t item,
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
static uint32_t queue_place(ldr_runs_t *t, uint32_t view, uint32_t c,
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

void ldr_queue_add(ldr_runs_t *t, uint32_t view, uint32_t item)
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

void ldr_queue_remove(ldr_runs_t *t, uint32_t view, uint32_t item)
{
    ldr_run_queues_t *q = &t->queues[view];
    uint32_t c = queue_of(t, view, item);
    uint32_t older = *left_of(t, view, item),
             younger = *right_of(t, view, item);

    if (q->best == item) {
        q->best = LDR_NIL;
    }
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
    }
    if (older == LDR_NIL && younger != LDR_NIL &&
        *right_of(t, view, younger) != LDR_NIL) { /* the next to go but one */
        ldr_runs_fetch(t, run_of(t, view, *right_of(t, view, younger)));
    }
}

/* What the first ones are worth now. */
static void queue_worths(const ldr_runs_t *t, ldr_run_queues_t *q)
{
    for (uint32_t w = 0; w < sizeof(q->filled) / sizeof(q->filled[0]); w++) {
        for (uint64_t bits = q->filled[w]; bits != 0; bits &= bits - 1) {
            uint32_t c = w * 64 + (uint32_t)__builtin_ctzll(bits);

            q->classes[c].worth =
                ldr_learn_worth(t->learn, c, t->now_ds - q->classes[c].used_ds);
        }
    }
    q->worth_known = true;
    q->worth_ds = t->now_ds;
}

uint32_t ldr_queue_best(ldr_runs_t *t, uint32_t view, uint32_t except)
{
    ldr_run_queues_t *q = &t->queues[view];
    double least = 0;

    if (q->best != LDR_NIL &&
        (q->best_not == except ||
         (!q->passed && t->runs[run_of(t, view, q->best)].stamp != except))) {
        q->best_not = except;
        return q->best;
    }
    q->best = LDR_NIL;
    q->best_not = except;
    q->passed = false;
    if (!q->lru && (!q->worth_known || q->worth_ds != t->now_ds)) {
        queue_worths(t, q);
    }
    for (uint32_t w = 0; w < sizeof(q->filled) / sizeof(q->filled[0]); w++) {
        for (uint64_t bits = q->filled[w]; bits != 0; bits &= bits - 1) {
            uint32_t c = w * 64 + (uint32_t)__builtin_ctzll(bits);
            const ldr_run_queue_t *of = &q->classes[c];

            /* Then all of its queue are as young, or younger. */
            if (of->stamp == except) {
                q->passed = true;
                continue;
            }
            double worth = q->lru ? (double)(int32_t)(of->stamp - t->stamp)
                                  : (double)of->worth;
            if (q->best == LDR_NIL || worth < least ||
                (worth <= least && is_before(t, view, of->first, q->best))) {
                q->best = of->first;
                least = worth;
            }
        }
    }
    return q->best;
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

/* Takes a run out of all queues and lists, before it changes. */
void ldr_runs_lift(ldr_runs_t *t, uint32_t run)
{
    ldr_run_t *r = &t->runs[run];

    if ((r->flags & LDR_RUN_QUEUED) != 0) {
        ldr_queue_remove(t, LDR_VIEW_REAL, run);
        r->flags &= (uint8_t)~LDR_RUN_QUEUED;
    }
    if ((r->flags & LDR_RUN_BLOCKED) != 0) {
        blocked_remove(t, run);
    }
    if ((r->flags & LDR_RUN_GHOST) != 0) {
        ghost_remove(t, run);
    }
    ldr_shade_lift(t, run);
}

void ldr_runs_settle(ldr_runs_t *t, uint32_t run)
{
    ldr_run_t *r = &t->runs[run];
    bool queue = r->resident > 0 && r->kids == 0 && r->held == 0;
    bool block = !queue && r->resident > r->held;
    bool ghost = r->resident == 0 && (r->flags & LDR_RUN_SHADE) == 0;

    /* First out of where it does not belong: the links are the same. */
    if (!queue && (r->flags & LDR_RUN_QUEUED) != 0) {
        ldr_queue_remove(t, LDR_VIEW_REAL, run);
        r->flags &= (uint8_t)~LDR_RUN_QUEUED;
    }
    if (!block && (r->flags & LDR_RUN_BLOCKED) != 0) {
        blocked_remove(t, run);
    }
    if (!ghost && (r->flags & LDR_RUN_GHOST) != 0) {
        ghost_remove(t, run);
    }
    if (queue && (r->flags & LDR_RUN_QUEUED) == 0) {
        ldr_queue_add(t, LDR_VIEW_REAL, run);
        r->flags |= LDR_RUN_QUEUED;
    }
    if (block && (r->flags & LDR_RUN_BLOCKED) == 0) {
        blocked_add(t, run);
    }
    if (ghost && (r->flags & LDR_RUN_GHOST) == 0) {
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
    if ((had == 0) != (has == 0) && r->parent != LDR_NIL) {
        ldr_run_t *above = &t->runs[r->parent];

        above->kids = has == 0 ? above->kids - 1 : above->kids + 1;
        ldr_runs_settle(t, r->parent);
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
