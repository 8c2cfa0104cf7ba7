/* Prints of runs, in nodes of a few: so that a chain is compared with a run
 * chunk by chunk, whether those are resident or not. Runs of one or two chunks
 * need none: their first and last are all. Nodes have 16 bits of each: one
 * chain in 65,536 is thought to leave a run a chunk later than it does. */
#include <string.h>

#include "store/policy_runs.h"

#define FORGET_TRIES 4u

/* What a run has prints in, and its place. */
ldr_limb_t *ldr_limb_need(ldr_runs_t *t, uint32_t run)
{
    uint32_t limb = t->runs[run].limb;

    if (limb == 0) {
        limb = t->limb_free;
        if (limb != 0) {
            t->limb_free = t->limbs[limb].next;
        } else {
            limb = t->limb_top++;
        }
        t->limbs[limb] = t->limbs[0];
        t->runs[run].limb = limb;
    }
    return &t->limbs[limb];
}

/* Ghosts may go for it. */
static uint32_t node_take(ldr_runs_t *t)
{
    uint32_t node = t->node_free;

    for (uint32_t i = 0; node == LDR_NIL && t->node_top == t->node_max &&
                         i < FORGET_TRIES && ldr_ghost_drop(t);
         i++) {
        node = t->node_free;
    }
    if (node != LDR_NIL) {
        t->node_free = t->nodes[node].next;
    } else if (t->node_top < t->node_max) {
        node = t->node_top++;
    } else {
        return LDR_NIL;
    }
    t->node_count++;
    t->nodes[node].next = LDR_NIL;
    return node;
}

/* Gives back that node and all behind it. */
void ldr_prints_give(ldr_runs_t *t, uint32_t node)
{
    while (node != LDR_NIL) {
        uint32_t next = t->nodes[node].next;

        t->nodes[node].next = t->node_free;
        t->node_free = node;
        t->node_count--;
        node = next;
    }
}

uint32_t ldr_prints_head(ldr_runs_t *t, uint32_t node, const void *contents,
                         size_t bytes)
{
    uint32_t head = node_take(t);

    if (head != LDR_NIL) {
        t->nodes[head].next = node;
        memcpy(t->nodes[head].print, contents, bytes);
    }
    return head;
}

uint32_t ldr_prints_behead(ldr_runs_t *t, uint32_t head)
{
    uint32_t node = t->nodes[head].next;

    t->nodes[head].next = LDR_NIL;
    ldr_prints_give(t, head);
    return node;
}

void ldr_prints_free(ldr_runs_t *t, uint32_t run)
{
    if (t->runs[run].limb != 0) {
        ldr_prints_give(t, ldr_limb(t, run)->prints);
        ldr_limb(t, run)->prints = LDR_NIL;
    }
    t->runs[run].skip = 0;
}

bool ldr_prints_make(ldr_runs_t *t, uint32_t run, const uint64_t *prints,
                     uint32_t count)
{
    if (count <= LDR_PRINTS_OWN) {
        return true;
    }
    uint32_t *link = &ldr_limb_need(t, run)->prints;
    *link = LDR_NIL;
    for (uint32_t i = 0; i < count; i++) {
        if (i % LDR_PRINTS == 0) {
            uint32_t node = node_take(t);

            if (node == LDR_NIL) {
                ldr_prints_free(t, run);
                return false;
            }
            if (i > 0) {
                link = &t->nodes[*link].next;
            }
            *link = node;
        }
        t->nodes[*link].print[i % LDR_PRINTS] =
            (uint16_t)ldr_runs_fold(prints[i]);
    }
    return true;
}

/* Whether a run of one or two has that print there. */
static bool is_own(const ldr_runs_t *t, uint32_t run, uint32_t at,
                   uint32_t print)
{
    const ldr_run_t *r = &t->runs[run];

    if (at > 0) {
        return ldr_runs_last(t, run) == print;
    }
    return (r->flags & LDR_RUN_SHORT) != 0
               ? (uint16_t)r->first == (uint16_t)print
               : r->first == print;
}

uint32_t ldr_prints_match(const ldr_runs_t *t, uint32_t run,
                          const uint64_t *prints, uint32_t count)
{
    const ldr_run_t *r = &t->runs[run];
    uint32_t node = ldr_limb(t, run)->prints;
    uint32_t at = r->skip;
    uint32_t n = 0;

    count = count < r->length ? count : r->length;
    if (node == LDR_NIL) {
        while (n < count && is_own(t, run, n, ldr_runs_fold(prints[n]))) {
            n++;
        }
        return n;
    }
    while (n < count) {
        if (at == LDR_PRINTS) {
            node = t->nodes[node].next;
            at = 0;
        }
        if (t->nodes[node].print[at++] != (uint16_t)ldr_runs_fold(prints[n])) {
            break;
        }
        n++;
    }
    return n;
}

bool ldr_prints_split(ldr_runs_t *t, uint32_t run, uint32_t upper,
                      uint32_t count, uint32_t last)
{
    ldr_run_t *r = &t->runs[run], *u = &t->runs[upper];
    ldr_limb_t *rl = ldr_limb(t, run), *ul = ldr_limb(t, upper);
    uint32_t at = r->skip + count;
    uint32_t before = LDR_NIL, node = rl->prints;

    if (node == LDR_NIL) { /* two of them */
        u->first = ul->last = last;
        u->flags &= (uint8_t)~LDR_RUN_SHORT;
        r->first = rl->last;
        r->flags &= (uint8_t)~LDR_RUN_SHORT;
        return true;
    }

    for (uint32_t i = 0; i < at / LDR_PRINTS; i++) {
        before = node;
        node = t->nodes[node].next;
    }
    at %= LDR_PRINTS;
    uint32_t copy = LDR_NIL;
    if (at > 0) { /* both have some of this one */
        copy = node_take(t);
        if (copy == LDR_NIL) {
            return false;
        }
        t->nodes[copy] = t->nodes[node];
        t->nodes[copy].next = LDR_NIL;
    }
    ul->last = last;
    if (before != LDR_NIL) {
        t->nodes[before].next = copy;
    } else {
        ul->prints = copy;
    }
    rl->prints = node;
    r->skip = (uint16_t)(at & 7);
    r->first = r->length - count == 1 ? rl->last : t->nodes[node].print[at];
    r->flags &= (uint8_t)~LDR_RUN_SHORT;
    if (r->length - count > 1) {
        r->flags |= LDR_RUN_SHORT;
    }
    if (count == 1) {
        u->first = last;
        u->flags &= (uint8_t)~LDR_RUN_SHORT;
    }
    if (count <= LDR_PRINTS_OWN) {
        ldr_prints_free(t, upper);
    }
    if (r->length - count <= LDR_PRINTS_OWN) {
        ldr_prints_free(t, run);
    }
    return true;
}

/* The last node of a run that has any. */
static uint32_t node_last(const ldr_runs_t *t, uint32_t run)
{
    uint32_t node = ldr_limb(t, run)->prints;

    while (t->nodes[node].next != LDR_NIL) {
        node = t->nodes[node].next;
    }
    return node;
}

/* So that a run which will be longer than two has a node. */
static bool node_first(ldr_runs_t *t, uint32_t run)
{
    ldr_run_t *r = &t->runs[run];
    uint32_t node = ldr_limb(t, run)->prints;

    if (node != LDR_NIL) {
        return true;
    }
    node = node_take(t);
    if (node == LDR_NIL) {
        return false;
    }
    t->nodes[node].print[0] = (uint16_t)r->first;
    if (r->length > 1) {
        t->nodes[node].print[1] = (uint16_t)ldr_runs_last(t, run);
    }
    ldr_limb_need(t, run)->prints = node;
    return true;
}

bool ldr_prints_append(ldr_runs_t *t, uint32_t run, uint32_t print)
{
    ldr_run_t *r = &t->runs[run];
    uint32_t at = r->skip + r->length;

    if (r->length < LDR_PRINTS_OWN) {
        ldr_limb_need(t, run)->last = print;
        r->length++;
        return true;
    }
    if (!node_first(t, run)) {
        return false;
    }
    uint32_t node = node_last(t, run);
    if (at % LDR_PRINTS == 0) {
        uint32_t more = node_take(t);

        if (more == LDR_NIL) {
            return false;
        }
        t->nodes[node].next = more;
        node = more;
    }
    t->nodes[node].print[at % LDR_PRINTS] = (uint16_t)print;
    ldr_limb_need(t, run)->last = print;
    r->length++;
    return true;
}

/* So many nodes more behind that one, or none. */
static bool nodes_add(ldr_runs_t *t, uint32_t node, uint32_t count)
{
    uint32_t last = node;

    for (uint32_t i = 0; i < count; i++) {
        uint32_t more = node_take(t);

        if (more == LDR_NIL) {
            ldr_prints_give(t, t->nodes[node].next);
            t->nodes[node].next = LDR_NIL;
            return false;
        }
        t->nodes[last].next = more;
        last = more;
    }
    return true;
}

bool ldr_prints_join(ldr_runs_t *t, uint32_t run, uint32_t below)
{
    ldr_run_t *r = &t->runs[run], *b = &t->runs[below];
    uint32_t to = r->skip + r->length, end = to + b->length;
    uint32_t has = (to + LDR_PRINTS - 1) / LDR_PRINTS;
    uint32_t needs = (end + LDR_PRINTS - 1) / LDR_PRINTS;
    uint32_t last = ldr_runs_last(t, below);
    uint32_t from = ldr_limb(t, below)->prints, at = b->skip;

    if (end <= LDR_PRINTS_OWN) { /* one and one */
        ldr_limb_need(t, run)->last = last;
        r->length = (uint16_t)(r->length + b->length);
        return true;
    }
    if (!node_first(t, run)) {
        return false;
    }
    uint32_t node = node_last(t, run);
    if (!nodes_add(t, node, needs - has)) {
        return false;
    }
    for (uint32_t i = 0; to < end; i++, to++) {
        uint16_t print = (uint16_t)(i == 0 ? b->first : last);

        if (from != LDR_NIL && at == LDR_PRINTS) {
            from = t->nodes[from].next;
            at = 0;
        }
        if (from != LDR_NIL) {
            print = t->nodes[from].print[at++];
        }
        if (to % LDR_PRINTS == 0) {
            node = t->nodes[node].next;
        }
        t->nodes[node].print[to % LDR_PRINTS] = print;
    }
    ldr_limb_need(t, run)->last = last;
    r->length = (uint16_t)(r->length + b->length);
    ldr_prints_free(t, below);
    return true;
}

bool ldr_prints_is(const ldr_runs_t *t, uint32_t run, uint32_t at,
                   uint32_t print)
{
    uint32_t node = ldr_limb(t, run)->prints;

    if (node == LDR_NIL) {
        return is_own(t, run, at, print);
    }
    for (at += t->runs[run].skip; at >= LDR_PRINTS; at -= LDR_PRINTS) {
        node = t->nodes[node].next;
    }
    return t->nodes[node].print[at] == (uint16_t)print;
}
