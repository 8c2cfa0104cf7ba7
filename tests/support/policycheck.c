#include "support/policycheck.h"

#include "store/policy_learned.h"

/* Invariant 1. */
static bool check_place(const ldr_tree_t *t, uint32_t run)
{
    const ldr_run_t *r = &t->runs[run];
    uint32_t at = *ldr_tree_bucket(t, r->parent, r->first);

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
    if ((r->prev != LDR_NIL && t->runs[r->prev].next != run) ||
        (r->next != LDR_NIL && t->runs[r->next].prev != run) ||
        (run != LDR_RUN_STRAY && r->length == 0) ||
        r->length > LDR_RUN_CHUNKS) {
        return false;
    }
    while (at != 0 && at != run + 1) {
        at = t->runs[at - 1].bucket;
    }
    return at != 0;
}

/* Invariants 2 and 3. */
static bool check_lists(const ldr_tree_t *t, uint32_t run)
{
    const ldr_run_t *r = &t->runs[run];
    uint32_t lists = r->flags & LDR_RUN_LISTS;
    uint32_t kids = 0;

    for (uint32_t at = r->child; at != LDR_NIL; at = t->runs[at].next) {
        if (t->runs[at].parent != run) {
            return false;
        }
        kids += t->runs[at].resident > 0;
    }
    if (kids != r->kids || r->held > r->resident) {
        return false;
    }
    if (r->resident == 0) {
        return lists == LDR_RUN_GHOST;
    }
    if (r->held == 0 && kids == 0) {
        return lists == LDR_RUN_QUEUED;
    }
    return lists == (r->resident > r->held ? LDR_RUN_BLOCKED : 0);
}

/* Invariant 5. */
static bool check_slots(const ldr_tree_t *t, uint32_t run)
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
             (s->depth == t->slots[down].depth) != t->slots[down].again)) {
            return false;
        }
        held += s->held;
        down = i;
    }
    return count == r->resident && held == r->held &&
           (down == LDR_NIL || !t->slots[down].again);
}

/* Invariants 3 and 4. Gives how many there are; UINT32_MAX: it is broken. */
static uint32_t check_list(const ldr_tree_t *t, uint32_t list, uint32_t flag)
{
    uint32_t count = 0, older = LDR_NIL;

    for (uint32_t at = t->lists[list].oldest; at != LDR_NIL;
         at = t->runs[at].newer) {
        const ldr_run_t *r = &t->runs[at];

        if ((r->flags & LDR_RUN_LISTS) != flag || r->older != older ||
            count++ == t->run_count) {
            return UINT32_MAX;
        }
        if (flag == LDR_RUN_QUEUED &&
            (r->class != list ||
             (older != LDR_NIL && !t->loose &&
              (int32_t)(t->runs[older].stamp - r->stamp) > 0))) {
            return UINT32_MAX;
        }
        older = at;
    }
    return older == t->lists[list].newest ? count : UINT32_MAX;
}

static bool check_sums(const ldr_tree_t *t, uint32_t queued, uint32_t blocked)
{
    uint32_t found = 0;

    for (uint32_t c = 0; c < LDR_CLASSES; c++) {
        uint32_t n = check_list(t, c, LDR_RUN_QUEUED);

        /* A queue that is not looked at has nothing. */
        if (n == UINT32_MAX || (n > 0 && c >= t->hazard->class_end)) {
            return false;
        }
        found += n;
    }
    return found == queued &&
           check_list(t, LDR_LIST_BLOCKED, LDR_RUN_BLOCKED) == blocked &&
           check_list(t, LDR_LIST_GHOSTS, LDR_RUN_GHOST) == t->ghost_count;
}

bool ldr_policy_default_check(const ldr_policy_t *policy)
{
    const ldr_learned_t *d = (const ldr_learned_t *)policy;
    const ldr_tree_t *t = &d->t;
    uint32_t count = 0, queued = 0, blocked = 0;
    uint64_t resident = 0, ghost_chunks = 0;

    for (uint32_t run = 0; run < t->run_top; run++) {
        const ldr_run_t *r = &t->runs[run];

        if ((r->flags & LDR_RUN_USED) == 0) {
            continue;
        }
        if (!check_place(t, run) || !check_lists(t, run) ||
            !check_slots(t, run)) {
            return false;
        }
        count++;
        resident += r->resident;
        queued += (r->flags & LDR_RUN_QUEUED) != 0;
        blocked += (r->flags & LDR_RUN_BLOCKED) != 0;
        ghost_chunks += (r->flags & LDR_RUN_GHOST) != 0 ? r->length : 0;
    }
    return count == t->run_count && resident == t->resident &&
           ghost_chunks == t->ghost_chunks && ldr_stack_check(&d->stack) &&
           check_sums(t, queued, blocked);
}
