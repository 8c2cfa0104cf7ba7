/*
 * The guard: who ranks, what was learned or LRU.
 *
 * Nothing says beforehand whether what was learned is right. So the hits of the
 * real cache are compared with those that LRU would have had in its place. That
 * needs no second cache: LRU has what was used since some request, the edge of
 * its stack, and it is enough to count how many chunks were used last in which
 * span of requests to know where this is. Those of a chain are as young as what
 * is below them, or younger, so leaves going first changes nothing but at the
 * edge.
 *
 * The balance is the sum of the differences. What was learned ranks while it is
 * not worse than LRU by more than chance makes of it. Then LRU ranks, until the
 * debt is paid off by a small part of the chunks asked for: so what tries cost
 * is about that part, whatever the traffic. A lead fades, so that one from long
 * ago excuses nothing.
 */
#include "store/policy_learned.h"

#define GHOST_RUNS 1u /* for each resident chunk */
#define GHOST_CHUNKS 4u
#define GHOSTS_LEAST 1024u
#define GHOST_CHUNKS_LEAST 4096u

#define FADE (1.0f / 2048)     /* of a lead and of the noise, in a request */
#define LOSS_SIGMAS 1.0f       /* what may be chance, */
#define LOSS_LEAST 8u          /* with so many chunks, */
#define LOSS_PART 1024u        /* and so much of the capacity */
#define PAID_PART (1.0f / 512) /* of the chunks asked for */

/* ---- the LRU stack ---- */

static uint32_t *chunks_of(ldr_stack_t *k, uint32_t span)
{
    return &k->chunks[span % LDR_STACK_SPANS];
}

/* Two spans become one. */
static void widen(ldr_stack_t *k)
{
    uint32_t old[LDR_STACK_SPANS];

    for (uint32_t i = 0; i < LDR_STACK_SPANS; i++) {
        old[i] = k->chunks[i];
        k->chunks[i] = 0;
    }
    for (uint32_t s = k->oldest; s <= k->newest; s++) {
        *chunks_of(k, s / 2) += old[s % LDR_STACK_SPANS];
    }
    /* Of the pair with the edge the younger one may be inside. */
    if (k->edge % 2 == 0 && k->edge < k->newest) {
        k->inside -= old[(k->edge + 1) % LDR_STACK_SPANS];
    }
    k->shift++;
    k->oldest /= 2;
    k->newest /= 2;
    k->edge /= 2;
}

/* The request is in a new span. */
static void stack_advance(ldr_stack_t *k, uint32_t stamp)
{
    uint32_t span = stamp >> k->shift;

    if (span < k->newest) { /* once in four billion */
        *k = (ldr_stack_t){.oldest = span, .newest = span, .edge = span};
    }
    while (span - k->edge >= LDR_STACK_SPANS - 1) {
        widen(k);
        span = stamp >> k->shift;
    }
    while (k->newest < span) {
        k->newest++;
        if (k->newest - k->oldest >= LDR_STACK_SPANS) {
            k->oldest++;
        }
        *chunks_of(k, k->newest) = 0;
    }
}

void ldr_stack_use(ldr_stack_t *k, uint32_t was, uint32_t stamp,
                   uint32_t chunks)
{
    if (stamp >> k->shift != k->newest) {
        stack_advance(k, stamp);
    }
    uint32_t span = was >> k->shift;
    if (span == k->newest && was != 0) {
        return;
    }
    *chunks_of(k, k->newest) += chunks;
    k->inside += k->newest > k->edge ? chunks : 0;
    if (was == 0 || span < k->oldest || span > k->newest) {
        return;
    }
    /* What was superseded bears the stamp of another request. */
    uint32_t had = *chunks_of(k, span);
    uint32_t less = chunks < had ? chunks : had;
    *chunks_of(k, span) -= less;
    k->inside -= span > k->edge ? less : 0;
}

/* Then what is inside the edge is no more than that, and would be with what is
 * in the span of the edge. */
void ldr_stack_resize(ldr_stack_t *k, uint64_t capacity)
{
    while (k->inside > capacity) {
        k->edge++;
        k->inside -= *chunks_of(k, k->edge);
    }
    while (k->edge > k->oldest &&
           k->inside + *chunks_of(k, k->edge) <= capacity) {
        k->inside += *chunks_of(k, k->edge);
        k->edge--;
    }
    /* The younger ones of the span are in the cache. */
    uint64_t chunks = *chunks_of(k, k->edge);
    uint64_t left = capacity - k->inside;
    uint64_t all = (uint64_t)1 << k->shift;

    k->since = (k->edge << k->shift) +
               (uint32_t)(left >= chunks ? 0 : all - all * left / chunks);
}

bool ldr_stack_check(const ldr_stack_t *k)
{
    uint64_t inside = 0;

    for (uint32_t s = k->edge + 1; s <= k->newest; s++) {
        inside += k->chunks[s % LDR_STACK_SPANS];
    }
    return k->oldest <= k->edge && k->edge <= k->newest &&
           k->newest - k->oldest < LDR_STACK_SPANS && inside == k->inside;
}

/* ---- the balance ---- */

/* Chunks of the chain that are here, up to the first that is not. */
static uint32_t real_hits(const ldr_learned_t *d)
{
    uint32_t hits = 0;

    for (uint32_t i = 0; i < d->path_count; i++) {
        const ldr_run_t *r = &d->t.runs[d->path[i]];
        uint32_t has = r->resident;

        /* Groups of layers may be more slots than chunks. */
        if (has > 1 && d->t.again > 0) {
            uint32_t deep = d->t.slots[r->tail].depth + 1 - r->depth;

            has = has < deep ? has : deep;
        }
        hits += has;
        if (has < r->length) {
            break;
        }
    }
    return hits;
}

static uint32_t lru_hits(const ldr_learned_t *d)
{
    uint32_t hits = 0;

    for (uint32_t i = 0; i < d->path_count; i++) {
        const ldr_run_t *r = &d->t.runs[d->path[i]];

        if ((int32_t)(r->stamp - d->stack.since) < 0) {
            break;
        }
        hits += r->length;
    }
    return hits;
}

ldr_guard_hits_t ldr_guard_look(const ldr_learned_t *d)
{
    return (ldr_guard_hits_t){real_hits(d), lru_hits(d)};
}

/* The size of the cache is what was resident when there was no room. */
static void learn_capacity(ldr_learned_t *d)
{
    if (d->seen > 0) {
        int64_t by = (int64_t)d->seen - (int64_t)d->capacity;

        d->capacity = d->capacity > 0
                          ? (uint64_t)((int64_t)d->capacity + by / 16)
                          : d->seen;
        d->seen = 0;
    }
}

static void rank_by(ldr_learned_t *d, bool lru)
{
    ldr_tree_rank(&d->t, lru);
    d->switches++;
    d->noise = 0;
}

static void shadow_judge(ldr_learned_t *d, const ldr_guard_hits_t *hits)
{
    float by = (float)hits->real - (float)hits->lru;
    float chance = (float)(LOSS_LEAST + d->capacity / LOSS_PART);
    uint32_t asked = 0;

    for (uint32_t i = 0; i < d->path_count; i++) {
        asked += d->t.runs[d->path[i]].length;
    }
    d->judged++;
    d->hits += hits->real;
    d->hits_lru += hits->lru;
    d->noise = d->noise * (1 - FADE) + by * by;
    if (d->t.lru) {
        d->balance += (float)asked * PAID_PART;
        if (d->balance >= 0) {
            d->balance = 0;
            rank_by(d, false);
        }
        return;
    }
    d->balance += by;
    if (d->balance > 0) {
        d->balance *= 1 - FADE;
    } else {
        d->balance += (float)asked * PAID_PART;
        d->balance = d->balance < 0 ? d->balance : 0;
    }
    float lost = -d->balance - chance;
    if (lost > 0 && lost * lost > LOSS_SIGMAS * LOSS_SIGMAS * d->noise) {
        rank_by(d, true);
    }
}

void ldr_guard_judge(ldr_learned_t *d, const ldr_guard_hits_t *hits)
{
    if (!d->learns) {
        ldr_tree_trim(&d->t, GHOSTS_LEAST, GHOST_CHUNKS_LEAST);
        return;
    }
    learn_capacity(d);
    if (d->capacity > 0) {
        shadow_judge(d, hits);
    }
    uint64_t capacity = d->capacity > 0 ? d->capacity : d->t.slot_max;
    ldr_stack_resize(&d->stack, capacity);
    ldr_tree_trim(&d->t, capacity * GHOST_RUNS + GHOSTS_LEAST,
                  capacity * GHOST_CHUNKS + GHOST_CHUNKS_LEAST);
}
