/* Prints of runs, in nodes of a few: so that a chain is compared with a run
 * chunk by chunk, whether those are resident or not. Runs of one or two chunks
 * need none: their first and last are all. */
#include "store/policy_runs.h"

#define FORGET_TRIES 4u

static uint32_t node_take(ldr_runs_t *t)
{
    uint32_t node = t->node_free;

    for (uint32_t i = 0; node == LDR_NIL && t->node_top == t->node_max &&
                         i < FORGET_TRIES && ldr_runs_forget(t);
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

void ldr_prints_free(ldr_runs_t *t, uint32_t run)
{
    uint32_t node = t->runs[run].prints;

    while (node != LDR_NIL) {
        uint32_t next = t->nodes[node].next;

        t->nodes[node].next = t->node_free;
        t->node_free = node;
        t->node_count--;
        node = next;
    }
    t->runs[run].prints = LDR_NIL;
    t->runs[run].skip = 0;
}

bool ldr_prints_make(ldr_runs_t *t, uint32_t run, const uint64_t *prints,
                     uint32_t count)
{
    uint32_t *link = &t->runs[run].prints;

    *link = LDR_NIL;
    if (count <= LDR_PRINTS_OWN) {
        return true;
    }
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
        t->nodes[*link].print[i % LDR_PRINTS] = ldr_runs_fold(prints[i]);
    }
    return true;
}

uint32_t ldr_prints_match(const ldr_runs_t *t, uint32_t run,
                          const uint64_t *prints, uint32_t count)
{
    const ldr_run_t *r = &t->runs[run];
    uint32_t node = r->prints;
    uint32_t at = r->skip;
    uint32_t n = 0;

    count = count < r->length ? count : r->length;
    if (node == LDR_NIL) {
        while (n < count &&
               ldr_runs_fold(prints[n]) == (n == 0 ? r->first : r->last)) {
            n++;
        }
        return n;
    }
    while (n < count) {
        if (at == LDR_PRINTS) {
            node = t->nodes[node].next;
            at = 0;
        }
        if (t->nodes[node].print[at++] != ldr_runs_fold(prints[n])) {
            break;
        }
        n++;
    }
    return n;
}

bool ldr_prints_split(ldr_runs_t *t, uint32_t run, uint32_t upper,
                      uint32_t count)
{
    ldr_run_t *r = &t->runs[run], *u = &t->runs[upper];
    uint32_t at = r->skip + count;
    uint32_t before = LDR_NIL, node = r->prints;

    if (node == LDR_NIL) { /* two of them */
        u->last = u->first;
        r->first = r->last;
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
    u->last = at > 0 ? t->nodes[node].print[at - 1]
                     : t->nodes[before].print[LDR_PRINTS - 1];
    if (before != LDR_NIL) {
        t->nodes[before].next = copy;
    } else {
        u->prints = copy;
    }
    r->prints = node;
    r->skip = (uint16_t)(at & 7);
    r->first = t->nodes[node].print[at];
    if (count <= LDR_PRINTS_OWN) {
        ldr_prints_free(t, upper);
    }
    if (r->length - count <= LDR_PRINTS_OWN) {
        ldr_prints_free(t, run);
    }
    return true;
}

bool ldr_prints_append(ldr_runs_t *t, uint32_t run, uint32_t print)
{
    ldr_run_t *r = &t->runs[run];
    uint32_t at = r->skip + r->length;
    uint32_t node = r->prints;

    if (r->length < LDR_PRINTS_OWN) {
        r->last = print;
        r->length++;
        return true;
    }
    if (node == LDR_NIL) {
        node = node_take(t);
        if (node == LDR_NIL) {
            return false;
        }
        t->nodes[node].print[0] = r->first;
        t->nodes[node].print[1] = r->last;
        r->prints = node;
    }
    for (uint32_t i = 0; i < (at - 1) / LDR_PRINTS; i++) {
        node = t->nodes[node].next;
    }
    if (at % LDR_PRINTS == 0) {
        uint32_t more = node_take(t);

        if (more == LDR_NIL) {
            return false;
        }
        t->nodes[node].next = more;
        node = more;
    }
    t->nodes[node].print[at % LDR_PRINTS] = print;
    r->last = print;
    r->length++;
    return true;
}

uint32_t ldr_prints_at(const ldr_runs_t *t, uint32_t run, uint32_t at)
{
    uint32_t node = t->runs[run].prints;

    if (node == LDR_NIL) {
        return at == 0 ? t->runs[run].first : t->runs[run].last;
    }
    for (at += t->runs[run].skip; at >= LDR_PRINTS; at -= LDR_PRINTS) {
        node = t->nodes[node].next;
    }
    return t->nodes[node].print[at];
}
