/*
 * What a cache ordered by last use would have, of all that is asked for and in
 * its full size, without being one: it has what was used since some request,
 * the edge. So it is enough to know how many chunks were used last in which
 * span of requests. Those of a chain are as young as what is below them, or
 * younger, so leaves going first changes nothing but at the edge.
 */
#include "store/policy_runs.h"

static ldr_span_t *span_of(ldr_stack_t *k, uint32_t span)
{
    return &k->spans[span % LDR_STACK_SPANS];
}

/* Two spans become one. */
static void widen(ldr_stack_t *k)
{
    ldr_span_t old[LDR_STACK_SPANS];
    uint32_t last = k->newest;

    for (uint32_t i = 0; i < LDR_STACK_SPANS; i++) {
        old[i] = k->spans[i];
        k->spans[i] = (ldr_span_t){0, 0};
    }
    for (uint32_t s = k->oldest; s <= last; s++) {
        ldr_span_t *to = span_of(k, s / 2);

        if (s == k->oldest || s % 2 == 0) {
            to->from_ds = old[s % LDR_STACK_SPANS].from_ds;
        }
        to->chunks += old[s % LDR_STACK_SPANS].chunks;
    }
    /* Of the pair with the edge the younger one may be inside. */
    if (k->edge % 2 == 0 && k->edge < last) {
        k->inside -= old[(k->edge + 1) % LDR_STACK_SPANS].chunks;
    }
    k->shift++;
    k->oldest /= 2;
    k->newest /= 2;
    k->edge /= 2;
}

/* A request may be in a new span. */
static void begin(ldr_stack_t *k, uint32_t stamp, uint32_t now_ds)
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
        *span_of(k, k->newest) = (ldr_span_t){0, now_ds};
    }
}

void ldr_stack_use(ldr_stack_t *k, uint32_t was, uint32_t stamp,
                   uint32_t now_ds, uint32_t chunks)
{
    if (stamp >> k->shift != k->newest) {
        begin(k, stamp, now_ds);
    }
    uint32_t span = was >> k->shift;
    if (span == k->newest && was != 0) {
        return;
    }
    span_of(k, k->newest)->chunks += chunks;
    k->inside += k->newest > k->edge ? chunks : 0;
    if (was == 0 || span < k->oldest || span > k->newest) {
        return;
    }
    /* Times that say too little may have named another span. */
    uint32_t had = span_of(k, span)->chunks;
    uint32_t less = chunks < had ? chunks : had;
    span_of(k, span)->chunks -= less;
    k->inside -= span > k->edge ? less : 0;
}

/* Then what is inside the edge is no more than that, and would be with what is
 * in the span of the edge. */
void ldr_stack_room(ldr_stack_t *k, uint64_t room)
{
    while (k->inside > room) {
        k->edge++;
        k->inside -= span_of(k, k->edge)->chunks;
    }
    while (k->edge > k->oldest &&
           k->inside + span_of(k, k->edge)->chunks <= room) {
        k->inside += span_of(k, k->edge)->chunks;
        k->edge--;
    }
    /* The younger ones of the span are in the cache. */
    uint64_t chunks = span_of(k, k->edge)->chunks;
    uint64_t left = room - k->inside;
    uint64_t all = (uint64_t)1 << k->shift;

    k->since = (k->edge << k->shift) +
               (uint32_t)(left >= chunks ? 0 : all - all * left / chunks);
}

uint32_t ldr_stack_stamp(const ldr_stack_t *k, uint32_t stamp, uint32_t used_ds)
{
    uint32_t low = k->oldest, count = k->newest - k->oldest + 1;

    if ((int32_t)(used_ds - k->spans[low % LDR_STACK_SPANS].from_ds) < 0) {
        return (low << k->shift) - 1;
    }
    /* The last that had begun; without branches, for it is chance. */
    while (count > 1) {
        uint32_t half = count / 2;
        uint32_t from = k->spans[(low + half) % LDR_STACK_SPANS].from_ds;

        low += (int32_t)(used_ds - from) >= 0 ? half : 0;
        count -= half;
    }
    uint32_t from = k->spans[low % LDR_STACK_SPANS].from_ds;
    uint32_t found;
    if (low < k->newest) {
        uint32_t wide = k->spans[(low + 1) % LDR_STACK_SPANS].from_ds - from;
        uint64_t part = ((uint64_t)(used_ds - from) << k->shift) / wide;

        found = (low << k->shift) + (uint32_t)part;
    } else {
        found = stamp - 1;
    }
    return (int32_t)(found - stamp) < 0 ? found : stamp - 1;
}

bool ldr_stack_check(const ldr_stack_t *k)
{
    uint64_t inside = 0;

    for (uint32_t s = k->edge + 1; s <= k->newest; s++) {
        inside += k->spans[s % LDR_STACK_SPANS].chunks;
    }
    return k->oldest <= k->edge && k->edge <= k->newest &&
           k->newest - k->oldest < LDR_STACK_SPANS && inside == k->inside;
}
