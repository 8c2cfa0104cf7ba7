/*
 * A log of segments in virtual time.
 *
 * Invariants: place_of[b] is the place of block b, and that place names b; a
 * place whose block's place_of is another one is dead. `filling` is the one
 * segment that is written to, up to `filled`; the next one in turn is the
 * oldest, and what is in it is carried or dropped before it is used again. One
 * thread.
 */
#include "plan/sim_ssd.h"

#include "base/log.h"
#include "base/mem.h"
#include "store/admit.h"
#include "store/index.h"

/* Enough that one of them is a small part of the tier. */
#define SEGMENTS 64u
#define CLASSES 33 /* of value: bits in it */

/* A place in the log. */
typedef struct place {
    uint32_t block;
    uint32_t parent; /* LDR_NIL: none */
    uint32_t depth;
    uint32_t written_s;
    uint32_t used_s;
} place_t;

struct ldr_ssd_sim {
    const ldr_policy_ops_t *policy;
    uint32_t segments;
    uint32_t segment_blocks;
    uint32_t distinct;
    uint32_t filling; /* the segment, and how much of it */
    uint32_t filled;
    ldr_ssd_sim_counts_t n;
    ldr_admit_t admit;
    ldr_budget_t budget; /* in blocks */
    /* The queue of write-behind: what it holds is how many more can wait, and
     * what flows in is what the disk has written. */
    ldr_budget_t queue;
    uint32_t *place_of; /* place + 1 of a block; 0: not here */
    place_t *places;
    place_t *hand; /* what is carried */
};

static size_t places_bytes(const ldr_ssd_sim_t *s)
{
    return (size_t)s->segments * s->segment_blocks * sizeof(*s->places);
}

void ldr_ssd_sim_destroy(ldr_ssd_sim_t *s)
{
    if (s == NULL) {
        return;
    }
    if (s->place_of != NULL) {
        ldr_unreserve(s->place_of, ((size_t)s->distinct + 1) * 4);
    }
    if (s->places != NULL) {
        ldr_unreserve(s->places, places_bytes(s));
    }
    ldr_admit_close(&s->admit);
    ldr_free(s->hand);
    ldr_free(s);
}

ldr_ssd_sim_t *ldr_ssd_sim_create(const ldr_tape_t *tape,
                                  const ldr_ssd_sim_params_t *params)
{
    ldr_ssd_sim_t *s = ldr_alloc(sizeof(*s));
    /* As a node does with shards of 256 KiB. */
    uint64_t remembered = params->second ? 2 * (uint64_t)params->capacity : 0;
    bool ok = s != NULL && ldr_admit_open(&s->admit, remembered);

    if (s != NULL) {
        ldr_budget_open(&s->budget, params->a_day, 0);
        ldr_budget_open(&s->queue, params->a_second * 86400, 0);
        s->queue.most = s->queue.level = params->queue;
        s->policy = params->policy;
        s->segments = params->capacity < SEGMENTS ? 2 : SEGMENTS;
        s->segment_blocks = params->capacity / s->segments;
        s->segment_blocks += s->segment_blocks == 0;
        s->distinct = tape->distinct;
        s->place_of = ldr_reserve(((size_t)s->distinct + 1) * 4);
        s->places = ldr_reserve(places_bytes(s));
        s->hand = ldr_alloc((s->segment_blocks / 4 + 1) * sizeof(*s->hand));
    }
    if (!ok || s->place_of == NULL || s->places == NULL || s->hand == NULL) {
        ldr_ssd_sim_destroy(s);
        ldr_fail(LARDER_E_NO_MEMORY,
                 "no memory to simulate an SSD of %u blocks", params->capacity);
        return NULL;
    }
    return s;
}

bool ldr_ssd_sim_holds(const ldr_ssd_sim_t *s, uint32_t block)
{
    return s->place_of[block] != 0;
}

/* Whether this place of the log still is where its block lies. */
static bool is_live(const ldr_ssd_sim_t *s, uint32_t at)
{
    return s->place_of[s->places[at].block] == at + 1;
}

static int value_class(const ldr_ssd_sim_t *s, const place_t *p, uint32_t now_s)
{
    ldr_policy_record_t record = {
        .written_s = p->written_s,
        .used_s = p->used_s,
        .now_s = now_s,
        .depth = p->depth,
        .orphan = p->parent != LDR_NIL && s->place_of[p->parent] == 0,
    };
    uint32_t value = s->policy->keep(&record);

    return value == 0 ? 0 : 32 - __builtin_clz(value);
}

/* The least class of which all, with those above it, fit into what may be
 * carried; what is left is taken from the class below as it comes. */
static int least_class(const uint32_t *counts, uint32_t max)
{
    int least = CLASSES;

    while (least > 1 && counts[least - 1] <= max) {
        max -= counts[--least];
    }
    return least;
}

static void log_append(ldr_ssd_sim_t *s, const place_t *p)
{
    uint32_t at = s->filling * s->segment_blocks + s->filled++;

    s->places[at] = *p;
    s->place_of[p->block] = at + 1;
}

/* Opens the next segment, which is the oldest, and empties it. */
static void next_segment(ldr_ssd_sim_t *s, uint32_t now_s)
{
    uint32_t counts[CLASSES] = {0};
    uint32_t max = s->segment_blocks / 4;
    uint32_t count = 0;

    s->filling = (s->filling + 1) % s->segments;
    s->filled = 0;
    uint32_t from = s->filling * s->segment_blocks;
    uint32_t to = from + s->segment_blocks;
    for (uint32_t at = from; at < to; at++) {
        if (is_live(s, at)) {
            counts[value_class(s, &s->places[at], now_s)]++;
        }
    }
    int least = least_class(counts, max);
    for (int below = 0; below < 2; below++) {
        for (uint32_t at = from; at < to && count < max; at++) {
            int class =
                is_live(s, at) ? value_class(s, &s->places[at], now_s) : 0;

            if (class > 0 &&
                (below == 0 ? class >= least : class == least - 1)) {
                s->hand[count++] = s->places[at];
            }
        }
    }
    for (uint32_t at = from; at < to; at++) {
        if (is_live(s, at)) {
            s->place_of[s->places[at].block] = 0;
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        log_append(s, &s->hand[i]);
    }
    s->n.carried += count;
    ldr_budget_spend(&s->budget, count);
    ldr_budget_spend(&s->queue, count);
}

/* Whether a block that is used may be written, and counts why not. */
static bool may_write(ldr_ssd_sim_t *s, const ldr_tape_request_t *request,
                      uint32_t block)
{
    if (!ldr_admit_use(&s->admit, block)) {
        s->n.refused_first++;
        return false;
    }
    if (!ldr_budget_allows(&s->budget, request->at_ms * 1000000u)) {
        s->n.refused_budget++;
        return false;
    }
    if (!ldr_budget_allows(&s->queue, request->at_ms * 1000000u)) {
        s->n.dropped++;
        return false;
    }
    return true;
}

void ldr_ssd_sim_use(ldr_ssd_sim_t *s, const ldr_tape_request_t *request,
                     const uint32_t *blocks)
{
    uint32_t now_s = (uint32_t)(request->at_ms / 1000);

    for (uint32_t i = 0; i < request->count; i++) {
        uint32_t at = s->place_of[blocks[i]];

        if (at != 0) {
            s->places[at - 1].used_s = now_s;
            continue;
        }
        if (!may_write(s, request, blocks[i])) {
            continue;
        }
        if (s->filled == s->segment_blocks) {
            next_segment(s, now_s);
        }
        place_t p = {
            .block = blocks[i],
            .parent = i > 0 ? blocks[i - 1] : LDR_NIL,
            .depth = i,
            .written_s = now_s,
            .used_s = now_s,
        };
        log_append(s, &p);
        ldr_budget_spend(&s->budget, 1);
        ldr_budget_spend(&s->queue, 1);
        s->n.written++;
    }
}

const ldr_ssd_sim_counts_t *ldr_ssd_sim_counts(const ldr_ssd_sim_t *s)
{
    return &s->n;
}
