/*
 * Belady's optimum with bypass: what is used again last, or never, goes first,
 * and is not even taken in.
 *
 * A reference is known by its place on the tape. Every block that is here is a
 * bit, set at the place of its next use. So the reference at place p hits if
 * bit p is set, the victim is the highest bit, and neither a hash table nor a
 * heap is needed: a tree of bitmaps, 64 to one, finds the highest in as many
 * steps as it has levels. Children are never used before their parents, so
 * chains lose their leaves first and a prefix is never broken.
 *
 * The next uses come from ldr_tape_future(). The memory is a bit a reference
 * and 1/63 more.
 */
#include "base/log.h"
#include "base/mem.h"
#include "plan/sim.h"
#include "store/index.h"

#define LEVELS 6 /* 64^6 > 2^32 */
#define AT_ONCE (256u << 10)

typedef struct optimal_sim {
    ldr_sim_t base;
    ldr_tape_t *tape;
    uint32_t capacity;
    uint32_t count; /* bits that are set */
    uint64_t at;    /* place of the next reference */
    unsigned levels;
    uint64_t *maps[LEVELS]; /* [0] the lowest */
    size_t map_bytes[LEVELS];
    uint64_t next_from, next_to; /* places of what next holds */
    uint32_t *next;
} optimal_sim_t;

static void optimal_destroy(ldr_sim_t *sim)
{
    optimal_sim_t *s = (optimal_sim_t *)sim;

    if (s == NULL) {
        return;
    }
    for (unsigned i = 0; i < LEVELS; i++) {
        if (s->maps[i] != NULL) {
            ldr_unreserve(s->maps[i], s->map_bytes[i]);
        }
    }
    ldr_free(s->next);
    ldr_free(s);
}

static ldr_sim_t *optimal_create(const ldr_sim_ops_t *ops, ldr_tape_t *tape,
                                 const ldr_sim_params_t *params)
{
    uint32_t capacity = params->capacity;

    if (!ldr_tape_future(tape)) {
        return NULL;
    }
    optimal_sim_t *s = ldr_alloc(sizeof(*s));
    bool ok = s != NULL;
    if (ok) {
        s->base.ops = ops;
        s->tape = tape;
        s->capacity = capacity > 0 ? capacity : 1;
        s->next = ldr_alloc((size_t)AT_ONCE * 4);
        ok = s->next != NULL;
        uint64_t words = tape->references / 64 + 1;
        for (s->levels = 0; ok; words = words / 64 + 1) {
            s->map_bytes[s->levels] = (size_t)words * 8;
            s->maps[s->levels] = ldr_reserve((size_t)words * 8);
            ok = s->maps[s->levels++] != NULL;
            if (words == 1) {
                break;
            }
        }
    }
    if (!ok) {
        ldr_fail(LARDER_E_NO_MEMORY, "no memory to simulate the optimum");
        optimal_destroy(s != NULL ? &s->base : NULL);
        return NULL;
    }
    return &s->base;
}

/* ---- the bits ---- */

static bool bit_get(const optimal_sim_t *s, uint64_t place)
{
    return (s->maps[0][place / 64] >> (place % 64) & 1) != 0;
}

static void bit_set(optimal_sim_t *s, uint64_t place)
{
    for (unsigned i = 0; i < s->levels; i++, place /= 64) {
        uint64_t *word = &s->maps[i][place / 64];
        bool was = *word != 0;

        *word |= (uint64_t)1 << (place % 64);
        if (was) {
            return;
        }
    }
}

static void bit_clear(optimal_sim_t *s, uint64_t place)
{
    for (unsigned i = 0; i < s->levels; i++, place /= 64) {
        uint64_t *word = &s->maps[i][place / 64];

        *word &= ~((uint64_t)1 << (place % 64));
        if (*word != 0) {
            return;
        }
    }
}

/* There is one. */
static uint64_t bit_highest(const optimal_sim_t *s)
{
    uint64_t place = 0;

    for (unsigned i = s->levels; i-- > 0;) {
        place = place * 64 + 63 - (uint64_t)__builtin_clzll(s->maps[i][place]);
    }
    return place;
}

/* ---- the cache ---- */

/* Only of the blocks of the request that comes next, from its first on. */
static uint32_t optimal_prefix(ldr_sim_t *sim, const uint32_t *blocks,
                               uint32_t from, uint32_t count)
{
    const optimal_sim_t *s = (optimal_sim_t *)sim;
    uint32_t n = from;

    (void)blocks;
    while (n < count && bit_get(s, s->at + n)) {
        n++;
    }
    return n;
}

static bool next_of(optimal_sim_t *s, uint64_t place, uint32_t *next_p)
{
    if (place >= s->next_to) {
        uint64_t left = s->tape->references - place;
        uint64_t count = left < AT_ONCE ? left : AT_ONCE;

        if (!ldr_tape_pread(s->tape->future_fd, s->next, (size_t)count * 4,
                            place * 4)) {
            return false;
        }
        s->next_from = place;
        s->next_to = place + count;
    }
    *next_p = s->next[place - s->next_from];
    return true;
}

static bool optimal_use(ldr_sim_t *sim, const ldr_tape_request_t *request,
                        const uint32_t *blocks)
{
    optimal_sim_t *s = (optimal_sim_t *)sim;

    (void)blocks;
    for (uint32_t i = 0; i < request->count; i++, s->at++) {
        uint32_t next;

        if (!next_of(s, s->at, &next)) {
            return false;
        }
        if (bit_get(s, s->at)) {
            bit_clear(s, s->at);
            s->count--;
        }
        if (next == LDR_NIL) {
            continue;
        }
        bit_set(s, next);
        if (s->count < s->capacity) {
            s->count++;
        } else {
            bit_clear(s, bit_highest(s));
        }
    }
    return true;
}

const ldr_sim_ops_t ldr_sim_optimal = {
    .name = "optimal",
    .text = "Belady's optimum, which knows the future",
    .create = optimal_create,
    .destroy = optimal_destroy,
    .prefix = optimal_prefix,
    .use = optimal_use,
};
