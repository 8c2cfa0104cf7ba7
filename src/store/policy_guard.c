/*
 * The guard: who ranks the real cache, what was learned or LRU.
 *
 * Two shadows, one of each kind, do with a request what they would have done
 * with it (policy_shade.c); their hits say whether what was learned is worth a
 * try. While it ranks, the real cache's own hits say whether it was: it is
 * compared with what LRU would have had in its place (policy_stack.c, or the
 * shadow, which is the same if nothing is sampled). A shadow cannot say that.
 * It has had what was learned from the beginning and keeps other things than
 * the real cache, which comes from LRU; and of a sample it has a part of the
 * room, but perhaps a smaller or larger part of what is popular.
 */
#include "store/policy_default.h"

#define GHOST_RUNS 1u /* for each resident chunk */
#define GHOST_CHUNKS 4u

#define GUARD_FADE (1.0f / 2048) /* for each request, or of those sampled */
#define LEADS_SIGMAS 0.3f        /* in the shadows, if nothing is sampled */
#define TRAILS_SIGMAS 1.5f       /* the same, if something is */
#define LOSES_SIGMAS 0.7f        /* in the real cache, */
#define LOSES_LEAST 16           /* by so many chunks, */
#define LOSES_PART 1024          /* and so much of its room */
#define DOUBT_STEP 0.5f          /* sigmas that the next try needs more, */
#define DOUBT_TIMES 1.5f         /* and more so if it failed lately */
#define DOUBT_MAX 30.0f
#define DOUBT_FADE (GUARD_FADE / 2)

/* ---- shadows ---- */

/* What a shadow has of the chain, as far as the sample goes. */
static uint32_t shadow_hits(const ldr_default_t *d, uint32_t view)
{
    uint32_t hits = 0;

    for (uint32_t i = 0; i < d->path_count; i++) {
        uint32_t run = d->path[i];

        if (ldr_runs_sampled(&d->t, run)) {
            uint32_t has = ldr_shade_resident(&d->t, view, run);

            hits += has;
            if (has < d->t.runs[run].length) {
                break;
            }
        }
    }
    return hits;
}

/* Brings the missing chunks of a run in, or as many as are worth it. */
static bool shadow_fill(ldr_default_t *d, uint32_t view, uint32_t run,
                        uint64_t room)
{
    ldr_runs_t *t = &d->t;
    const ldr_run_queues_t *q = &t->queues[view];
    uint32_t need = t->runs[run].length - ldr_shade_resident(t, view, run);

    while (need > 0) {
        uint64_t n = need;

        if (q->resident < room) {
            n = n < room - q->resident ? n : room - q->resident;
        } else {
            uint32_t v = ldr_queue_best(t, view, t->stamp);

            if (v == LDR_NIL ||
                (!q->lru && ldr_queue_worth(t, view, v) >
                                (double)ldr_default_first_worth(d, run))) {
                return false;
            }
            uint32_t has = t->shades[v].resident[view - 1];
            n = n < has ? n : has;
            ldr_shade_change(t, view, v, -(int)n);
        }
        uint32_t shade = ldr_shade_need(t, run);
        if (shade == LDR_NIL) {
            return false;
        }
        ldr_shade_change(t, view, shade, (int)n);
        need -= (uint32_t)n;
    }
    return true;
}

static void shadow_request(ldr_default_t *d, uint32_t view, uint64_t room)
{
    ldr_runs_t *t = &d->t;

    while (t->queues[view].resident > room) {
        uint32_t v = ldr_queue_best(t, view, t->stamp);

        if (v == LDR_NIL) {
            break;
        }
        ldr_shade_change(t, view, v, -1);
    }
    for (uint32_t i = 0; i < d->path_count; i++) {
        if (ldr_runs_sampled(t, d->path[i]) &&
            !shadow_fill(d, view, d->path[i], room)) {
            break;
        }
    }
}

/* ---- hits ---- */

/* What the real cache has of the chain. */
static uint32_t real_hits(const ldr_default_t *d)
{
    uint32_t hits = 0;

    for (uint32_t i = 0; i < d->path_count; i++) {
        const ldr_run_t *r = &d->t.runs[d->path[i]];
        uint32_t has = r->resident;

        /* Groups of layers may be more slots than chunks; one is one. */
        if (has > 1 && d->t.twins > 0) {
            uint32_t deep = d->t.slots[r->tail].depth + 1 -
                            ldr_limb(&d->t, d->path[i])->depth;

            has = has < deep ? has : deep;
        }
        hits += has;
        if (has < r->length) {
            break;
        }
    }
    return hits;
}

/* What LRU would have of it, if it were the real one. */
static uint32_t stack_hits(const ldr_default_t *d)
{
    uint32_t hits = 0;

    for (uint32_t i = 0; i < d->path_count; i++) {
        const ldr_run_t *r = &d->t.runs[d->path[i]];

        if ((int32_t)(r->stamp - d->t.stack.since) < 0) {
            break;
        }
        hits += r->length;
    }
    return hits;
}

ldr_guard_hits_t ldr_guard_look(const ldr_default_t *d)
{
    ldr_guard_hits_t hits = {0};

    if (d->path_count == 0) {
        return hits; /* nobody can have what is new */
    }
    hits.learned = shadow_hits(d, LDR_VIEW_LEARNED);
    hits.lru = shadow_hits(d, LDR_VIEW_LRU);
    hits.real = real_hits(d);
    hits.real_lru = d->t.lot_mask == 0 ? hits.lru : stack_hits(d);
    return hits;
}

/* How much of the chain is in the sample. */
static float share_sampled(const ldr_default_t *d)
{
    uint32_t all = 0, sampled = 0;

    if (d->t.lot_mask == 0) {
        return 1;
    }
    for (uint32_t i = 0; i < d->path_count; i++) {
        uint32_t length = d->t.runs[d->path[i]].length;

        all += length;
        sampled += ldr_runs_sampled(&d->t, d->path[i]) ? length : 0;
    }
    return all > 0 ? (float)sampled / (float)all : 0;
}

/* Whether so much is more than so many times what chance makes of it. */
static bool beyond(float lead, float noise, float sigmas)
{
    return lead > 0 && lead * lead > sigmas * sigmas * noise;
}

static void rank_by(ldr_default_t *d, bool lru)
{
    ldr_run_queues_t *q = &d->t.queues[LDR_VIEW_REAL];

    q->lru = lru;
    ldr_queue_stale(q);
    d->switches++;
    d->gain = d->gain_noise = 0;
}

/* What was learned has to pay where it ranks. If it does not, the shadows must
 * be surer the next time, for a while. */
static void judge_real(ldr_default_t *d, const ldr_guard_hits_t *hits)
{
    float by = (float)hits->real - (float)hits->real_lru;
    float least = (float)(LOSES_LEAST + d->room / LOSES_PART);

    d->gain = d->gain * (1 - GUARD_FADE) + by;
    d->gain_noise = d->gain_noise * (1 - GUARD_FADE) + by * by;
    d->doubt *= 1 - DOUBT_FADE;
    if (!d->t.queues[LDR_VIEW_REAL].lru &&
        beyond(-d->gain - least, d->gain_noise, LOSES_SIGMAS)) {
        rank_by(d, true);
        d->doubt = d->doubt * DOUBT_TIMES + DOUBT_STEP;
        d->doubt = d->doubt < DOUBT_MAX ? d->doubt : DOUBT_MAX;
    }
}

/* LRU once the learned shadow trails it, until that leads. Where there is
 * nothing to learn they take turns, and each turn costs; and what is seen of a
 * sample must be more than chance to be believed. What is forgotten goes by
 * what was seen. */
static void judge_shadows(ldr_default_t *d, const ldr_guard_hits_t *hits)
{
    bool is_lru = d->t.queues[LDR_VIEW_REAL].lru;
    float by = (float)hits->learned - (float)hits->lru;
    float fade = 1 - GUARD_FADE * share_sampled(d);

    d->lead = d->lead * fade + by;
    d->noise = d->noise * fade + by * by;
    d->judged++;
    d->hits_learned += hits->learned;
    d->hits_lru += hits->lru;
    bool all = d->t.lot_mask == 0;
    if (is_lru ? beyond(d->lead, d->noise, (all ? LEADS_SIGMAS : 0) + d->doubt)
               : beyond(-d->lead, d->noise, all ? 0 : TRAILS_SIGMAS)) {
        rank_by(d, !is_lru);
    }
}

/* The part of the cache that is for the sample, of which there is less if that
 * would be too much. */
static uint64_t shadow_room(ldr_default_t *d)
{
    ldr_runs_t *t = &d->t;
    uint64_t room = d->room / (t->lot_mask + 1);

    if (room > t->shade_room &&
        (d->room_known || t->queues[LDR_VIEW_LRU].resident >= t->shade_room ||
         t->queues[LDR_VIEW_LEARNED].resident >= t->shade_room)) {
        ldr_shade_halve(t);
        room /= 2;
    }
    return room < 1 ? 1 : room < t->shade_room ? room : t->shade_room;
}

/* The size of the cache is what was resident when there was no room. */
static void learn_room(ldr_default_t *d)
{
    if (d->seen > 0) {
        d->room = d->room_known
                      ? (uint64_t)((int64_t)d->room +
                                   ((int64_t)d->seen - (int64_t)d->room) / 16)
                      : d->seen;
        d->room_known = true;
        d->seen = 0;
    }
}

void ldr_guard_judge(ldr_default_t *d, const ldr_guard_hits_t *hits)
{
    bool sampled = d->t.lot_mask == 0;

    for (uint32_t i = 0; i < d->path_count && !sampled; i++) {
        sampled = ldr_runs_sampled(&d->t, d->path[i]);
    }
    learn_room(d);
    if (d->room_known) {
        judge_real(d, hits);
        if (sampled) {
            judge_shadows(d, hits);
        }
        d->judged += !sampled;
    }
    ldr_stack_room(&d->t.stack, d->room);
    uint64_t room = shadow_room(d);
    if (sampled) {
        shadow_request(d, LDR_VIEW_LEARNED, room);
        shadow_request(d, LDR_VIEW_LRU, room);
    }
    ldr_runs_trim(&d->t, (uint32_t)(d->room * GHOST_RUNS + 256),
                  d->room * GHOST_CHUNKS);
}
