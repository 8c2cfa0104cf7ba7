/*
 * Locations: what members have answered, for a short time. Sets of 8, in which
 * the one that ends first makes room. A wrong one costs a round trip.
 */
#include "base/mem.h"
#include "tier/peer/peer.h"

#define SETS 16384u
#define WAYS 8u

typedef struct place {
    uint64_t print; /* 0: free */
    uint64_t until_ns;
    uint32_t epoch;
    ldr_location_t at;
} place_t;

struct ldr_where {
    place_t sets[SETS][WAYS];
};

static uint64_t print_of(uint64_t fingerprint, uint32_t number)
{
    uint64_t print =
        (fingerprint ^ (uint64_t)number << 57) * UINT64_C(0x9e3779b97f4a7c15);

    return print != 0 ? print : 1;
}

ldr_where_t *ldr_where_open(void)
{
    return ldr_reserve(sizeof(ldr_where_t));
}

void ldr_where_close(ldr_where_t *w)
{
    if (w != NULL) {
        ldr_unreserve(w, sizeof(*w));
    }
}

bool ldr_where_find(const ldr_where_t *w, uint64_t fingerprint, uint32_t number,
                    uint32_t epoch, uint64_t now_ns, ldr_location_t *out)
{
    uint64_t print = print_of(fingerprint, number);
    const place_t *set = w->sets[print >> 40 & (SETS - 1)];

    for (unsigned i = 0; i < WAYS; i++) {
        if (set[i].print == print && set[i].epoch == epoch &&
            now_ns < set[i].until_ns) {
            *out = set[i].at;
            return true;
        }
    }
    return false;
}

void ldr_where_put(ldr_where_t *w, uint64_t fingerprint, uint32_t number,
                   uint32_t epoch, uint64_t until_ns,
                   const ldr_location_t *location)
{
    uint64_t print = print_of(fingerprint, number);
    place_t *set = w->sets[print >> 40 & (SETS - 1)], *to = &set[0];

    for (unsigned i = 0; i < WAYS; i++) {
        if (set[i].print == print) {
            to = &set[i];
            break;
        }
        if (set[i].until_ns < to->until_ns) {
            to = &set[i];
        }
    }
    *to = (place_t){print, until_ns, epoch, *location};
}

void ldr_where_drop(ldr_where_t *w, uint64_t fingerprint, uint32_t number)
{
    uint64_t print = print_of(fingerprint, number);
    place_t *set = w->sets[print >> 40 & (SETS - 1)];

    for (unsigned i = 0; i < WAYS; i++) {
        if (set[i].print == print) {
            set[i] = (place_t){0};
        }
    }
}
