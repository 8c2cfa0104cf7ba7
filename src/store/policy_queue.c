/* Queues of runs that may lose a chunk: lists by stamp, one for each class. */
#include "store/policy_runs.h"

#define PLACE_LOOK 512u

static uint32_t *left_of(ldr_runs_t *t, uint32_t view, uint32_t run)
{
    return &t->runs[run].views[view].left;
}

static uint32_t *right_of(ldr_runs_t *t, uint32_t view, uint32_t run)
{
    return &t->runs[run].views[view].right;
}

/* The LRU shadow needs no classes. */
static uint32_t queue_of(const ldr_runs_t *t, uint32_t view, uint32_t run)
{
    return view == LDR_VIEW_LRU ? 0 : t->runs[run].class;
}

/* Puts the run behind an older one; LDR_NIL: it is the oldest. */
static void queue_link(ldr_runs_t *t, uint32_t view, uint32_t run,
                       uint32_t older)
{
    ldr_run_queues_t *q = &t->queues[view];
    uint32_t c = queue_of(t, view, run);
    uint32_t younger =
        older != LDR_NIL ? *right_of(t, view, older) : q->first[c];

    *left_of(t, view, run) = older;
    *right_of(t, view, run) = younger;
    if (older != LDR_NIL) {
        *right_of(t, view, older) = run;
    } else {
        q->first[c] = run;
    }
    if (younger != LDR_NIL) {
        *left_of(t, view, younger) = run;
    } else {
        q->last[c] = run;
    }
}

/*
 * Whom the run stands behind. Most are used now, and stand last. Others come
 * back when the last below them has gone, or is given back: these are among
 * the oldest, or hardly older than the last. So it is looked for from both
 * ends, and not for long: one that is in the wrong place goes a bit sooner.
 */
static uint32_t queue_place(ldr_runs_t *t, uint32_t view, uint32_t run)
{
    const ldr_run_queues_t *q = &t->queues[view];
    uint32_t c = queue_of(t, view, run);
    uint32_t young = q->last[c], old = q->first[c];

    for (uint32_t i = 0; i < PLACE_LOOK; i++) {
        if (!ldr_runs_before(t, run, young)) {
            return young;
        }
        if (ldr_runs_before(t, run, old)) {
            return *left_of(t, view, old);
        }
        young = *left_of(t, view, young);
        old = *right_of(t, view, old);
    }
    t->loose = true;
    return *left_of(t, view, old);
}

static void queue_add(ldr_runs_t *t, uint32_t view, uint32_t run)
{
    ldr_run_queues_t *q = &t->queues[view];
    uint32_t c = queue_of(t, view, run);

    if ((q->filled[c / 64] >> c % 64 & 1) == 0) {
        q->first[c] = q->last[c] = LDR_NIL;
        queue_link(t, view, run, LDR_NIL);
    } else {
        queue_link(t, view, run, queue_place(t, view, run));
    }
    q->filled[c / 64] |= (uint64_t)1 << c % 64;
    t->runs[run].flags |= (uint8_t)(LDR_RUN_QUEUED << view);
    if (q->best != LDR_NIL && t->runs[run].stamp != q->best_not &&
        ldr_runs_worth(t, view, run) <= ldr_runs_worth(t, view, q->best)) {
        q->best = LDR_NIL;
    }
}

static void queue_remove(ldr_runs_t *t, uint32_t view, uint32_t run)
{
    ldr_run_queues_t *q = &t->queues[view];
    uint32_t c = queue_of(t, view, run);
    uint32_t older = *left_of(t, view, run), younger = *right_of(t, view, run);

    if (older != LDR_NIL) {
        *right_of(t, view, older) = younger;
    } else {
        q->first[c] = younger;
    }
    if (younger != LDR_NIL) {
        *left_of(t, view, younger) = older;
    } else {
        q->last[c] = older;
    }
    if (q->first[c] == LDR_NIL) {
        q->filled[c / 64] &= ~((uint64_t)1 << c % 64);
    } else if (older == LDR_NIL) {
        ldr_runs_fetch(t, younger); /* it is the next to go */
    }
    t->runs[run].flags &= (uint8_t) ~(LDR_RUN_QUEUED << view);
    if (q->best == run) {
        q->best = LDR_NIL;
    }
}

/* Lists of the real view, that use the links a queue would. */

static void blocked_add(ldr_runs_t *t, uint32_t run)
{
    ldr_run_view_t *v = &t->runs[run].views[LDR_VIEW_REAL];

    v->left = t->blocked;
    v->right = LDR_NIL;
    if (t->blocked != LDR_NIL) {
        t->runs[t->blocked].views[LDR_VIEW_REAL].right = run;
    }
    t->blocked = run;
    t->runs[run].flags |= LDR_RUN_BLOCKED;
}

static void blocked_remove(ldr_runs_t *t, uint32_t run)
{
    ldr_run_view_t *v = &t->runs[run].views[LDR_VIEW_REAL];

    if (v->right != LDR_NIL) {
        t->runs[v->right].views[LDR_VIEW_REAL].left = v->left;
    } else {
        t->blocked = v->left;
    }
    if (v->left != LDR_NIL) {
        t->runs[v->left].views[LDR_VIEW_REAL].right = v->right;
    }
    t->runs[run].flags &= (uint8_t)~LDR_RUN_BLOCKED;
}

static void ghost_add(ldr_runs_t *t, uint32_t run)
{
    ldr_run_view_t *v = &t->runs[run].views[LDR_VIEW_REAL];

    v->left = LDR_NIL;
    v->right = t->ghost_tail;
    if (t->ghost_tail != LDR_NIL) {
        t->runs[t->ghost_tail].views[LDR_VIEW_REAL].left = run;
    } else {
        t->ghost_head = run;
    }
    t->ghost_tail = run;
    t->ghost_count++;
    t->ghost_chunks += t->runs[run].length;
    t->runs[run].flags |= LDR_RUN_GHOST;
}

static void ghost_remove(ldr_runs_t *t, uint32_t run)
{
    ldr_run_view_t *v = &t->runs[run].views[LDR_VIEW_REAL];

    if (v->right != LDR_NIL) {
        t->runs[v->right].views[LDR_VIEW_REAL].left = v->left;
    } else {
        t->ghost_head = v->left;
    }
    if (v->left != LDR_NIL) {
        t->runs[v->left].views[LDR_VIEW_REAL].right = v->right;
    } else {
        t->ghost_tail = v->right;
    }
    t->ghost_count--;
    t->ghost_chunks -= t->runs[run].length;
    t->runs[run].flags &= (uint8_t)~LDR_RUN_GHOST;
}

/* Takes a run out of all queues and lists, before it changes. */
void ldr_runs_lift(ldr_runs_t *t, uint32_t run)
{
    for (uint32_t v = 0; v < LDR_VIEWS; v++) {
        if ((t->runs[run].flags & LDR_RUN_QUEUED << v) != 0) {
            queue_remove(t, v, run);
        }
    }
    if ((t->runs[run].flags & LDR_RUN_BLOCKED) != 0) {
        blocked_remove(t, run);
    }
    if ((t->runs[run].flags & LDR_RUN_GHOST) != 0) {
        ghost_remove(t, run);
    }
}

static bool is_ghost(const ldr_run_t *r)
{
    return r->resident[LDR_VIEW_REAL] == 0 &&
           r->resident[LDR_VIEW_LEARNED] == 0 && r->resident[LDR_VIEW_LRU] == 0;
}

void ldr_runs_settle(ldr_runs_t *t, uint32_t view, uint32_t run)
{
    ldr_run_t *r = &t->runs[run];
    bool real = view == LDR_VIEW_REAL;
    uint32_t resident = r->resident[view];
    bool queue =
        resident > 0 && r->views[view].kids == 0 && !(real && r->held > 0);
    bool block = real && !queue && resident > r->held;
    bool ghost = is_ghost(r);

    /* First out of where it does not belong: the links are the same. */
    if (!queue && (r->flags & LDR_RUN_QUEUED << view) != 0) {
        queue_remove(t, view, run);
    }
    if (real && !block && (r->flags & LDR_RUN_BLOCKED) != 0) {
        blocked_remove(t, run);
    }
    if (!ghost && (r->flags & LDR_RUN_GHOST) != 0) {
        ghost_remove(t, run);
    }
    if (queue && (r->flags & LDR_RUN_QUEUED << view) == 0) {
        queue_add(t, view, run);
    }
    if (block && (r->flags & LDR_RUN_BLOCKED) == 0) {
        blocked_add(t, run);
    }
    if (ghost && (r->flags & LDR_RUN_GHOST) == 0) {
        ghost_add(t, run);
    }
}

void ldr_runs_count(ldr_runs_t *t, uint32_t view, uint32_t run, int by)
{
    ldr_run_t *r = &t->runs[run];
    uint32_t had = r->resident[view];
    uint32_t has = (uint32_t)((int)had + by);

    r->resident[view] = (uint16_t)has;
    t->queues[view].resident += (uint64_t)(int64_t)by;
    if ((had == 0) != (has == 0) && r->parent != LDR_NIL) {
        ldr_run_view_t *above = &t->runs[r->parent].views[view];

        above->kids = has == 0 ? above->kids - 1 : above->kids + 1;
        ldr_runs_settle(t, view, r->parent);
    }
    ldr_runs_settle(t, view, run);
}

double ldr_runs_worth(const ldr_runs_t *t, uint32_t view, uint32_t run)
{
    const ldr_run_t *r = &t->runs[run];

    if (t->queues[view].lru) {
        return (double)(int32_t)(r->stamp - t->stamp);
    }
    return (double)ldr_learn_worth(t->learn, r->class, t->now_ds - r->used_ds);
}

uint32_t ldr_runs_best(ldr_runs_t *t, uint32_t view, uint32_t except)
{
    ldr_run_queues_t *q = &t->queues[view];
    double least = 0;

    if (q->best != LDR_NIL && q->best_not == except) {
        return q->best;
    }
    q->best = LDR_NIL;
    q->best_not = except;
    for (uint32_t w = 0; w < sizeof(q->filled) / sizeof(q->filled[0]); w++) {
        for (uint64_t bits = q->filled[w]; bits != 0; bits &= bits - 1) {
            uint32_t run = q->first[w * 64 + (uint32_t)__builtin_ctzll(bits)];

            /* Then all of its queue are as young, or younger. */
            if (t->runs[run].stamp == except) {
                continue;
            }
            double worth = ldr_runs_worth(t, view, run);
            if (q->best == LDR_NIL || worth < least ||
                (worth <= least && ldr_runs_before(t, run, q->best))) {
                q->best = run;
                least = worth;
            }
        }
    }
    return q->best;
}
