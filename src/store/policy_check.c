/* Whether the invariants of policy_runs.h hold: for tests, it looks at
 * everything. */
#include "store/policy_runs.h"

/* Invariant 1: the run is where it can be found, and among its parent's
 * children. */
static bool check_place(const ldr_runs_t *t, uint32_t run)
{
    const ldr_run_t *r = &t->runs[run];

    if (r->parent != LDR_NIL) {
        const ldr_run_t *p = &t->runs[r->parent];

        if ((p->flags & LDR_RUN_USED) == 0 ||
            r->depth != p->depth + p->length ||
            (r->prev == LDR_NIL && p->child != run)) {
            return false;
        }
    } else if (r->prev != LDR_NIL || r->next != LDR_NIL) {
        return false;
    }
    uint32_t last = r->first, prints = 0;
    if (r->prints == LDR_NIL) {
        prints = r->length <= LDR_PRINTS_OWN ? r->length : UINT32_MAX;
        last = r->length == LDR_PRINTS_OWN ? r->last : r->first;
    }
    for (uint32_t n = r->prints; n != LDR_NIL; n = t->nodes[n].next) {
        for (uint32_t i = prints == 0 ? r->skip : 0;
             i < LDR_PRINTS && prints < r->length; i++) {
            last = t->nodes[n].print[i];
            if (prints++ == 0 && last != r->first) {
                return false;
            }
        }
    }
    if (prints != r->length || last != r->last) {
        return false;
    }
    if (r->prev != LDR_NIL && t->runs[r->prev].next != run) {
        return false;
    }
    if (r->next != LDR_NIL && t->runs[r->next].prev != run) {
        return false;
    }
    for (uint32_t at = *ldr_runs_bucket(t, r->first); at != run + 1;
         at = t->runs[at - 1].bucket_next) {
        if (at == 0) {
            return false;
        }
    }
    return true;
}

/* Invariants 2 to 4. */
static bool check_views(const ldr_runs_t *t, uint32_t run)
{
    const ldr_run_t *r = &t->runs[run];
    uint32_t kids[LDR_VIEWS] = {0};
    uint32_t all = 0;

    for (uint32_t at = r->child; at != LDR_NIL; at = t->runs[at].next) {
        if (t->runs[at].parent != run) {
            return false;
        }
        for (uint32_t v = 0; v < LDR_VIEWS; v++) {
            kids[v] += t->runs[at].resident[v] > 0;
        }
    }
    for (uint32_t v = 0; v < LDR_VIEWS; v++) {
        bool real = v == LDR_VIEW_REAL;
        bool queued = (r->flags & LDR_RUN_QUEUED << v) != 0;
        bool queue =
            r->resident[v] > 0 && kids[v] == 0 && !(real && r->held > 0);

        if (kids[v] != r->views[v].kids || queued != queue ||
            (!real && r->resident[v] > r->length)) {
            return false;
        }
        all += r->resident[v];
        if (real && ((r->flags & LDR_RUN_BLOCKED) != 0) !=
                        (!queue && r->resident[v] > r->held)) {
            return false;
        }
    }
    return ((r->flags & LDR_RUN_GHOST) != 0) == (all == 0);
}

/* Invariant 6. */
static bool check_slots(const ldr_runs_t *t, uint32_t run)
{
    const ldr_run_t *r = &t->runs[run];
    uint32_t count = 0, held = 0, down = LDR_NIL;

    for (uint32_t i = r->tail; i != LDR_NIL; i = t->slots[i].up) {
        const ldr_run_slot_t *s = &t->slots[i];

        if (!s->present || s->run != run || s->down != down ||
            count++ == t->slot_max) {
            return false;
        }
        if (run != LDR_RUN_STRAY &&
            (s->depth < r->depth || s->depth >= r->depth + r->length)) {
            return false;
        }
        if (down != LDR_NIL &&
            (s->depth > t->slots[down].depth ||
             (s->depth == t->slots[down].depth) != t->slots[down].twin)) {
            return false;
        }
        held += s->held;
        down = i;
    }
    return count == r->resident[LDR_VIEW_REAL] && held == r->held &&
           (down == LDR_NIL || !t->slots[down].twin);
}

/* Invariant 5. Gives how many there are; UINT32_MAX: it is broken. */
static uint32_t check_queue(const ldr_runs_t *t, uint32_t view, uint32_t c)
{
    const ldr_run_queues_t *q = &t->queues[view];
    uint32_t count = 0, older = LDR_NIL;

    if ((q->filled[c / 64] >> c % 64 & 1) == 0) {
        return 0;
    }
    for (uint32_t at = q->first[c]; at != LDR_NIL;
         at = t->runs[at].views[view].right) {
        const ldr_run_t *r = &t->runs[at];

        if ((r->flags & LDR_RUN_QUEUED << view) == 0 ||
            (view != LDR_VIEW_LRU && r->class != c) ||
            r->views[view].left != older || count++ == t->run_count ||
            (older != LDR_NIL && !t->loose && !ldr_runs_before(t, older, at))) {
            return UINT32_MAX;
        }
        older = at;
    }
    return older == q->last[c] ? count : UINT32_MAX;
}

static bool check_sums(const ldr_runs_t *t, const uint64_t *resident,
                       const uint32_t *queued)
{
    uint32_t ghosts = 0;
    uint64_t chunks = 0;

    for (uint32_t v = 0; v < LDR_VIEWS; v++) {
        uint32_t found = 0;

        for (uint32_t c = 0; c < LDR_CLASSES; c++) {
            bool filled = (t->queues[v].filled[c / 64] >> c % 64 & 1) != 0;
            uint32_t n = check_queue(t, v, c);

            if (n == UINT32_MAX || filled != (n > 0)) {
                return false;
            }
            found += n;
        }
        if (resident[v] != t->queues[v].resident || found != queued[v]) {
            return false;
        }
    }
    for (uint32_t at = t->ghost_head; at != LDR_NIL;
         at = t->runs[at].views[LDR_VIEW_REAL].left) {
        if ((t->runs[at].flags & LDR_RUN_GHOST) == 0 ||
            ghosts++ == t->ghost_count) {
            return false;
        }
        chunks += t->runs[at].length;
    }
    return ghosts == t->ghost_count && chunks == t->ghost_chunks;
}

bool ldr_runs_check(const ldr_runs_t *t)
{
    uint64_t resident[LDR_VIEWS] = {0};
    uint32_t queued[LDR_VIEWS] = {0};
    uint32_t count = 0;

    for (uint32_t run = 0; run < t->run_top; run++) {
        const ldr_run_t *r = &t->runs[run];

        if ((r->flags & LDR_RUN_USED) == 0) {
            continue;
        }
        count++;
        if (!check_place(t, run) || !check_views(t, run) ||
            !check_slots(t, run)) {
            return false;
        }
        for (uint32_t v = 0; v < LDR_VIEWS; v++) {
            resident[v] += r->resident[v];
            queued[v] += (r->flags & LDR_RUN_QUEUED << v) != 0;
        }
    }
    return count == t->run_count && check_sums(t, resident, queued);
}
