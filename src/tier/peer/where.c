/*
 * Locations: what members have answered, for a short time. Sets of 8, in which
 * the one that ends first makes room. A wrong one costs a round trip. The
 * prints of a set fill one line of the cache, so that most of what is not
 * there costs one miss.
 */
#include "base/mem.h"
#include "tier/peer/peer.h"

#define SETS 16384u
#define WAYS 8u
#define LINE 64u /* of the cache */

typedef struct place {
    uint64_t until_ns;
    uint32_t epoch;
    ldr_location_t at;
} place_t;

typedef struct set {
    uint64_t prints[WAYS]; /* 0: free */
    place_t places[WAYS];
} set_t;

struct ldr_where {
    set_t sets[SETS];
    const ldr_clock_t *clock;
};

static uint64_t print_of(uint64_t fingerprint, uint32_t number)
{
    uint64_t print =
        (fingerprint ^ (uint64_t)number << 57) * UINT64_C(0x9e3779b97f4a7c15);

    return print != 0 ? print : 1;
}

static const set_t *set_of(const ldr_where_t *w, uint64_t print)
{
    return &w->sets[print >> 40 & (SETS - 1)];
}

ldr_where_t *ldr_where_open(const ldr_clock_t *clock)
{
    ldr_where_t *w = ldr_reserve(sizeof(*w));

    if (w != NULL) {
        w->clock = clock;
    }
    return w;
}

void ldr_where_close(ldr_where_t *w)
{
    if (w != NULL) {
        ldr_unreserve(w, sizeof(*w));
    }
}

void ldr_where_prefetch(const ldr_where_t *w, uint64_t fingerprint,
                        uint32_t number)
{
    const char *set = (const char *)set_of(w, print_of(fingerprint, number));

    for (size_t at = 0; at < sizeof(set_t);
         at += LINE) { /* it is written, too */
        __builtin_prefetch(set + at, 1);
    }
}

bool ldr_where_find(const ldr_where_t *w, uint64_t fingerprint, uint32_t number,
                    uint32_t epoch, ldr_location_t *out)
{
    uint64_t print = print_of(fingerprint, number);
    const set_t *set = set_of(w, print);
    unsigned i = 0;

    while (i < WAYS && set->prints[i] != print) {
        i++;
    }
    /* The clock is read only for what is there. */
    if (i == WAYS || set->places[i].epoch != epoch ||
        ldr_now_ns(w->clock) >= set->places[i].until_ns) {
        return false;
    }
    *out = set->places[i].at;
    return true;
}

void ldr_where_put(ldr_where_t *w, uint64_t fingerprint, uint32_t number,
                   uint32_t epoch, uint64_t until_ns,
                   const ldr_location_t *location)
{
    uint64_t print = print_of(fingerprint, number);
    set_t *set = (set_t *)(uintptr_t)set_of(w, print);
    unsigned to = 0;

    while (to < WAYS && set->prints[to] != print) {
        to++;
    }
    if (to == WAYS) {
        to = 0;
        for (unsigned i = 1; i < WAYS; i++) {
            if (set->places[i].until_ns < set->places[to].until_ns) {
                to = i;
            }
        }
    }
    set->prints[to] = print;
    set->places[to] = (place_t){until_ns, epoch, *location};
}

void ldr_where_drop(ldr_where_t *w, uint64_t fingerprint, uint32_t number)
{
    uint64_t print = print_of(fingerprint, number);
    set_t *set = (set_t *)(uintptr_t)set_of(w, print);

    for (unsigned i = 0; i < WAYS; i++) {
        if (set->prints[i] == print) {
            set->prints[i] = 0;
            set->places[i] = (place_t){0};
        }
    }
}
