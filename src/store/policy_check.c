/* Whether the invariants of policy_runs.h hold: for tests, it looks at
 * everything. */
#include "store/policy_runs.h"

/* Invariant 1: it has its prints. */
static bool check_prints(const ldr_runs_t *t, uint32_t run)
{
    const ldr_run_t *r = &t->runs[run];
    uint32_t count = 0;
    uint16_t last = (uint16_t)ldr_runs_last(t, run);

    if (ldr_limb(t, run)->prints == LDR_NIL) {
        return r->length <= LDR_PRINTS_OWN;
    }
    for (uint32_t n = ldr_limb(t, run)->prints; n != LDR_NIL;
         n = t->nodes[n].next) {
        for (uint32_t i = count == 0 ? r->skip : 0;
             i < LDR_PRINTS && count < r->length; i++) {
            last = t->nodes[n].print[i];
            if (count++ == 0 && last != (uint16_t)r->first) {
                return false;
            }
        }
    }
    return count == r->length && last == (uint16_t)ldr_runs_last(t, run);
}

/* Invariant 1: the run is where it can be found, and among its parent's
 * children. */
static bool check_place(const ldr_runs_t *t, uint32_t run)
{
    const ldr_limb_t *r = ldr_limb(t, run);

    if (r->parent != LDR_NIL) {
        const ldr_run_t *above = &t->runs[r->parent];
        const ldr_limb_t *p = ldr_limb(t, r->parent);

        if ((above->flags & LDR_RUN_USED) == 0 ||
            r->depth != p->depth + above->length ||
            (r->prev == LDR_NIL && p->child != run)) {
            return false;
        }
    } else if (r->prev != LDR_NIL || r->next != LDR_NIL) {
        return false;
    }
    if (r->prev != LDR_NIL && ldr_limb(t, r->prev)->next != run) {
        return false;
    }
    if (r->next != LDR_NIL && ldr_limb(t, r->next)->prev != run) {
        return false;
    }
    uint32_t hash = ldr_runs_hash(r->parent, t->runs[run].first);
    uint32_t link = *ldr_runs_bucket(t, hash);
    while (link != 0 && ldr_runs_linked(t, link) != run) {
        link = t->runs[ldr_runs_linked(t, link)].link;
    }
    return link != 0 && ((link ^ hash) & ~t->link_mask) == 0;
}

/* Invariants 2 and 3. */
static bool check_real(const ldr_runs_t *t, uint32_t run)
{
    const ldr_run_t *r = &t->runs[run];
    bool queue = r->resident > 0 && ldr_limb(t, run)->kids == 0 && r->held == 0;
    bool block = !queue && r->resident > r->held;
    uint32_t kids = 0;

    for (uint32_t at = ldr_limb(t, run)->child; at != LDR_NIL;
         at = ldr_limb(t, at)->next) {
        if (ldr_limb(t, at)->parent != run) {
            return false;
        }
        kids += t->runs[at].resident > 0;
    }
    return kids == ldr_limb(t, run)->kids &&
           ((r->flags & LDR_RUN_QUEUED) != 0) == queue &&
           ((r->flags & LDR_RUN_BLOCKED) != 0) == block;
}

/* Invariants 2 to 4, and 6. */
static bool check_shade(const ldr_runs_t *t, uint32_t run)
{
    const ldr_run_t *r = &t->runs[run];
    uint32_t shade = ldr_shade_find(t, run);
    bool ghost = r->resident == 0 && shade == LDR_NIL;

    if (((r->flags & LDR_RUN_GHOST) != 0) != ghost) {
        return false;
    }
    if (shade == LDR_NIL) {
        return true;
    }
    const ldr_shade_t *s = &t->shades[shade];
    for (uint32_t v = 0; v < LDR_VIEWS - 1; v++) {
        bool queue = s->resident[v] > 0 && s->views[v].kids == 0;
        uint32_t kids = 0;

        for (uint32_t at = ldr_limb(t, run)->child; at != LDR_NIL;
             at = ldr_limb(t, at)->next) {
            kids += ldr_shade_resident(t, v + 1, at) > 0;
        }
        if (kids != s->views[v].kids || s->queued[v] != queue ||
            s->resident[v] > r->length) {
            return false;
        }
    }
    return s->run == run && ldr_runs_sampled(t, run) &&
           s->resident[0] + s->resident[1] > 0;
}

/* Invariant 7. */
static bool check_slots(const ldr_runs_t *t, uint32_t run)
{
    const ldr_run_t *r = &t->runs[run];
    uint32_t count = 0, held = 0, down = LDR_NIL;
    uint32_t from = ldr_limb(t, run)->depth;

    for (uint32_t i = r->tail; i != LDR_NIL; i = t->slots[i].up) {
        const ldr_run_slot_t *s = &t->slots[i];

        if (!s->present || s->run != run || s->down != down ||
            count++ == t->slot_max) {
            return false;
        }
        if (run != LDR_RUN_STRAY &&
            (s->depth < from || s->depth >= from + r->length)) {
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
    return count == r->resident && held == r->held &&
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
    for (uint32_t at = q->classes[c].first; at != LDR_NIL;) {
        bool real = view == LDR_VIEW_REAL;
        uint32_t run = real ? at : t->shades[at].run;
        uint32_t prev = real || older == LDR_NIL ? older : t->shades[older].run;
        const ldr_run_t *r = &t->runs[run];
        uint32_t left = real ? r->left : t->shades[at].views[view - 1].left;

        if (!(real ? (r->flags & LDR_RUN_QUEUED) != 0
                   : t->shades[at].queued[view - 1]) ||
            (view != LDR_VIEW_LRU && r->class != c) || left != older ||
            count++ == t->run_count ||
            (prev != LDR_NIL && !t->loose && !ldr_runs_before(t, prev, run))) {
            return UINT32_MAX;
        }
        older = at;
        at = real ? r->right : t->shades[at].views[view - 1].right;
    }
    return older == q->classes[c].last ? count : UINT32_MAX;
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
    for (uint32_t at = t->ghost_head; at != LDR_NIL; at = t->runs[at].left) {
        if ((t->runs[at].flags & LDR_RUN_GHOST) == 0 ||
            ghosts++ == t->ghost_count) {
            return false;
        }
        chunks += t->runs[at].length;
    }
    return ghosts == t->ghost_count && ldr_ghost_check(t, &chunks) &&
           chunks == t->ghost_chunks;
}

/* Invariant 0: nobody has written to what all have that stand alone. */
static bool check_limb(const ldr_runs_t *t)
{
    const ldr_limb_t *l = &t->limbs[0];

    return l->parent == LDR_NIL && l->child == LDR_NIL && l->next == LDR_NIL &&
           l->prev == LDR_NIL && l->prints == LDR_NIL && l->depth == 0 &&
           l->kids == 0;
}

/* Each class with something in it is in the heap once, and none goes before
 * the one above it. */
static bool check_heap(const ldr_runs_t *t, uint32_t view)
{
    const ldr_run_queues_t *q = &t->queues[view];
    uint32_t filled = 0;

    for (uint32_t c = 0; c < LDR_CLASSES; c++) {
        bool has = (q->filled[c / 64] >> c % 64 & 1) != 0;

        filled += has;
        if (!q->stale && (has != (q->place[c] != 0) ||
                          (has && q->heap[q->place[c] - 1] != c))) {
            return false;
        }
    }
    for (uint32_t i = 1; !q->stale && !q->lru && i < q->heap_count; i++) {
        if (q->classes[q->heap[i]].worth <
            q->classes[q->heap[(i - 1) / 2]].worth) {
            return false;
        }
    }
    return q->stale || filled == q->heap_count;
}

bool ldr_runs_check(const ldr_runs_t *t)
{
    uint64_t resident[LDR_VIEWS] = {0};
    uint32_t queued[LDR_VIEWS] = {0};
    uint32_t count = 0, shades = 0;

    for (uint32_t run = 0; run < t->run_top; run++) {
        const ldr_run_t *r = &t->runs[run];

        if ((r->flags & LDR_RUN_USED) == 0) {
            continue;
        }
        count++;
        if (!check_place(t, run) || !check_prints(t, run) ||
            !check_real(t, run) || !check_shade(t, run) ||
            !check_slots(t, run)) {
            return false;
        }
        resident[LDR_VIEW_REAL] += r->resident;
        queued[LDR_VIEW_REAL] += (r->flags & LDR_RUN_QUEUED) != 0;
    }
    for (uint32_t shade = 0; shade < t->shade_top; shade++) {
        const ldr_shade_t *s = &t->shades[shade];

        shades += s->run != LDR_NIL;
        for (uint32_t v = 1; s->run != LDR_NIL && v < LDR_VIEWS; v++) {
            resident[v] += s->resident[v - 1];
            queued[v] += s->queued[v - 1];
        }
    }
    return ldr_stack_check(&t->stack) && count == t->run_count &&
           shades == t->shade_count && check_limb(t) &&
           check_heap(t, LDR_VIEW_REAL) && check_heap(t, LDR_VIEW_LEARNED) &&
           check_heap(t, LDR_VIEW_LRU) && check_sums(t, resident, queued);
}
