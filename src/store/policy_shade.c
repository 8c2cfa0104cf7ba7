/* What the two shadows have, of the runs in their sample: records by run, the
 * same for both. There are no more than what they may have in all, so that the
 * guard costs the same for a cache of any size. */
#include "store/policy_runs.h"

static uint32_t *bucket_of(const ldr_runs_t *t, uint32_t run)
{
    return &t->shade_buckets[run % LDR_SHADE_BUCKETS];
}

uint32_t ldr_shade_look(const ldr_runs_t *t, uint32_t run)
{
    uint32_t at = *bucket_of(t, run);

    while (t->shades[at - 1].run != run) {
        at = t->shades[at - 1].next;
    }
    return at - 1;
}

uint32_t ldr_shade_need(ldr_runs_t *t, uint32_t run)
{
    uint32_t shade = ldr_shade_find(t, run);
    uint32_t *bucket = bucket_of(t, run);

    if (shade != LDR_NIL) {
        return shade;
    }
    if (t->shade_free != 0) {
        shade = t->shade_free - 1;
        t->shade_free = t->shades[shade].next;
    } else if (t->shade_top < LDR_SHADE_MAX) {
        shade = t->shade_top++;
    } else {
        return LDR_NIL;
    }
    t->shades[shade] = (ldr_shade_t){.run = run, .next = *bucket};
    *bucket = shade + 1;
    t->shade_count++;
    t->runs[run].flags |= LDR_RUN_SHADE;
    ldr_runs_settle(t, run); /* it is no ghost */
    return shade;
}

static void shade_give(ldr_runs_t *t, uint32_t shade)
{
    uint32_t run = t->shades[shade].run;
    uint32_t *link = bucket_of(t, run);

    while (*link != shade + 1) {
        link = &t->shades[*link - 1].next;
    }
    *link = t->shades[shade].next;
    t->shades[shade].run = LDR_NIL;
    t->shades[shade].next = t->shade_free;
    t->shade_free = shade + 1;
    t->shade_count--;
    t->runs[run].flags &= (uint8_t)~LDR_RUN_SHADE;
    ldr_runs_settle(t, run);
}

static void settle(ldr_runs_t *t, uint32_t view, uint32_t shade)
{
    ldr_shade_t *s = &t->shades[shade];
    bool queue = s->resident[view - 1] > 0 && s->views[view - 1].kids == 0;

    if (queue && !s->queued[view - 1]) {
        ldr_queue_add(t, view, shade);
    } else if (!queue && s->queued[view - 1]) {
        ldr_queue_remove(t, view, shade);
    }
    s->queued[view - 1] = queue;
}

void ldr_shade_lift(ldr_runs_t *t, uint32_t run)
{
    uint32_t shade = ldr_shade_find(t, run);

    for (uint32_t v = 1; shade != LDR_NIL && v < LDR_VIEWS; v++) {
        if (t->shades[shade].queued[v - 1]) {
            ldr_queue_remove(t, v, shade);
            t->shades[shade].queued[v - 1] = false;
        }
    }
}

void ldr_shade_settle(ldr_runs_t *t, uint32_t run)
{
    uint32_t shade = ldr_shade_find(t, run);

    for (uint32_t v = 1; shade != LDR_NIL && v < LDR_VIEWS; v++) {
        settle(t, v, shade);
    }
}

/* The parent has one child more, or less, with something resident. One that is
 * not in the sample does not care. */
static void count_kid(ldr_runs_t *t, uint32_t view, uint32_t run, int by)
{
    uint32_t parent = ldr_limb(t, run)->parent;
    uint32_t above = parent != LDR_NIL ? ldr_shade_find(t, parent) : LDR_NIL;

    if (above != LDR_NIL) {
        uint32_t *kids = &t->shades[above].views[view - 1].kids;

        *kids = (uint32_t)((int)*kids + by);
        settle(t, view, above);
    }
}

void ldr_shade_change(ldr_runs_t *t, uint32_t view, uint32_t shade, int by)
{
    ldr_shade_t *s = &t->shades[shade];
    uint32_t had = s->resident[view - 1];
    uint32_t has = (uint32_t)((int)had + by);

    s->resident[view - 1] = (uint16_t)has;
    t->queues[view].resident += (uint64_t)(int64_t)by;
    if ((had == 0) != (has == 0)) {
        count_kid(t, view, s->run, has == 0 ? -1 : 1);
    }
    settle(t, view, shade);
    if (s->resident[0] == 0 && s->resident[1] == 0) {
        shade_give(t, shade);
    }
}

/* All of it goes, in no queue by now; to the parent it was below it is, or was,
 * that run. */
static void shade_drop(ldr_runs_t *t, uint32_t shade, uint32_t as)
{
    for (uint32_t v = 1; v < LDR_VIEWS; v++) {
        uint32_t has = t->shades[shade].resident[v - 1];

        if (has > 0) {
            t->queues[v].resident -= has;
            t->shades[shade].resident[v - 1] = 0;
            count_kid(t, v, as, -1);
        }
    }
    shade_give(t, shade);
}

/* Both shadows fill a run from its beginning. */
void ldr_shade_split(ldr_runs_t *t, uint32_t run, uint32_t upper)
{
    uint32_t shade = ldr_shade_find(t, run);
    uint32_t length = t->runs[upper].length;

    t->runs[upper].flags &= (uint8_t)~LDR_RUN_SHADE;
    if (shade == LDR_NIL) {
        return;
    }
    uint32_t other = ldr_shade_need(t, upper);
    for (uint32_t i = 0; other != LDR_NIL && i < LDR_VIEWS - 1; i++) {
        ldr_shade_t *s = &t->shades[shade];
        uint32_t all = s->resident[i];
        uint32_t has = all < length ? all : length;

        t->shades[other].resident[i] = (uint16_t)has;
        t->shades[other].views[i].kids = all > has;
        s->resident[i] = (uint16_t)(all - has);
    }
    if (other == LDR_NIL) { /* not so, but nothing would break */
        shade_drop(t, shade, upper);
    } else if (t->shades[shade].resident[0] == 0 &&
               t->shades[shade].resident[1] == 0) {
        shade_give(t, shade);
    }
}

/* What the lower one has is there only if the upper one is whole. */
void ldr_shade_join(ldr_runs_t *t, uint32_t run, uint32_t below)
{
    uint32_t shade = ldr_shade_find(t, run);
    uint32_t other = ldr_shade_find(t, below);

    if (other == LDR_NIL) {
        return;
    }
    for (uint32_t i = 0; shade != LDR_NIL && i < LDR_VIEWS - 1; i++) {
        ldr_shade_t *s = &t->shades[shade], *o = &t->shades[other];

        s->resident[i] = (uint16_t)(s->resident[i] + o->resident[i]);
        s->views[i].kids = o->views[i].kids;
        o->resident[i] = 0;
    }
    if (shade == LDR_NIL) {
        shade_drop(t, other, below);
    } else {
        shade_give(t, other);
    }
}

void ldr_shade_halve(ldr_runs_t *t)
{
    if (t->lot_mask >= LDR_LOT_MAX) {
        return;
    }
    t->lot_mask = t->lot_mask * 2 + 1;
    for (uint32_t shade = 0; shade < t->shade_top; shade++) {
        ldr_shade_t *s = &t->shades[shade];

        if (s->run == LDR_NIL || ldr_runs_sampled(t, s->run)) {
            continue;
        }
        ldr_shade_lift(t, s->run);
        shade_drop(t, shade, s->run);
    }
}
