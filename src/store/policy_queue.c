/* Queues of runs that may lose a chunk: trees by stamp, one for each class. */
#include "store/policy_runs.h"

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

static void queue_add(ldr_runs_t *t, uint32_t view, uint32_t run)
{
    ldr_run_queues_t *q = &t->queues[view];
    uint32_t c = queue_of(t, view, run);
    uint32_t *link = &q->root[c];

    while (*link != LDR_NIL &&
           ldr_runs_priority(*link) >= ldr_runs_priority(run)) {
        link = ldr_runs_before(t, run, *link) ? left_of(t, view, *link)
                                              : right_of(t, view, *link);
    }
    uint32_t at = *link;
    uint32_t *left = left_of(t, view, run), *right = right_of(t, view, run);
    while (at != LDR_NIL) { /* what was there, cut in two */
        if (ldr_runs_before(t, at, run)) {
            *left = at;
            left = right_of(t, view, at);
            at = *left;
        } else {
            *right = at;
            right = left_of(t, view, at);
            at = *right;
        }
    }
    *left = *right = LDR_NIL;
    *link = run;
    if ((q->filled[c / 64] >> c % 64 & 1) == 0 ||
        ldr_runs_before(t, run, q->first[c])) {
        q->first[c] = run;
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
    uint32_t *link = &q->root[c];

    while (*link != run) {
        link = ldr_runs_before(t, run, *link) ? left_of(t, view, *link)
                                              : right_of(t, view, *link);
    }
    uint32_t left = *left_of(t, view, run), right = *right_of(t, view, run);
    while (left != LDR_NIL && right != LDR_NIL) {
        if (ldr_runs_priority(left) >= ldr_runs_priority(right)) {
            *link = left;
            link = right_of(t, view, left);
            left = *link;
        } else {
            *link = right;
            link = left_of(t, view, right);
            right = *link;
        }
    }
    *link = left != LDR_NIL ? left : right;
    if (q->root[c] == LDR_NIL) {
        q->filled[c / 64] &= ~((uint64_t)1 << c % 64);
    } else if (q->first[c] == run) {
        uint32_t at = q->root[c];

        while (*left_of(t, view, at) != LDR_NIL) {
            at = *left_of(t, view, at);
        }
        q->first[c] = at;
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
