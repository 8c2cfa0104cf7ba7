/*
 * What may be written down: sets of tags, and a bucket of bytes.
 *
 * Both are the caller's, who has the node's lock or is the only thread. In a
 * set the tag used last is first, no tag is there twice, and 0 is a free place.
 * The bucket's level is at most `most`, and is brought up to date when it is
 * asked.
 */
#include "store/admit.h"

#include <string.h>

#include "base/mem.h"

#define WAYS 8u
#define LEAST 4096u
#define DAY_NS (86400 * 1e9)

/* ---- second use ---- */

static uint64_t tag_bytes(const ldr_admit_t *a)
{
    return a->sets * WAYS * sizeof(*a->tags);
}

bool ldr_admit_open(ldr_admit_t *a, uint64_t remembered)
{
    *a = (ldr_admit_t){.sets = 1};
    if (remembered == 0) {
        return true;
    }
    while (a->sets * WAYS < remembered) {
        a->sets *= 2;
    }
    a->tags = ldr_reserve(tag_bytes(a));
    return a->tags != NULL;
}

void ldr_admit_close(ldr_admit_t *a)
{
    if (a->tags != NULL) {
        ldr_unreserve(a->tags, tag_bytes(a));
    }
    *a = (ldr_admit_t){0};
}

/* Prints may be numbers one after the other. */
static uint64_t spread(uint64_t print)
{
    uint64_t x = (print ^ print >> 32) * 0x9e3779b97f4a7c15u;

    x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9u;
    return x ^ x >> 32;
}

bool ldr_admit_use(ldr_admit_t *a, uint64_t print)
{
    if (a->tags == NULL) {
        return true;
    }
    uint64_t hash = spread(print);
    uint32_t *set = a->tags + (hash & (a->sets - 1)) * WAYS;
    uint32_t tag = (uint32_t)(hash >> 32) | 1; /* 0: free */
    unsigned at = 0;

    while (at < WAYS - 1 && set[at] != tag) {
        at++;
    }
    bool known = set[at] == tag;
    /* To the front; what was last makes room if it is new. */
    memmove(set + 1, set, at * sizeof(*set));
    set[0] = tag;
    return known;
}

uint64_t ldr_admit_remembered(uint64_t ssd_bytes)
{
    uint64_t n = ssd_bytes >> 17;

    return n > LEAST ? n : LEAST;
}

/* ---- budget ---- */

void ldr_budget_open(ldr_budget_t *b, double bytes_a_day, uint64_t now_ns)
{
    *b = (ldr_budget_t){
        .a_ns = bytes_a_day / DAY_NS,
        .most = bytes_a_day / LDR_BUDGET_BURSTS,
        .at_ns = now_ns,
    };
}

bool ldr_budget_allows(ldr_budget_t *b, uint64_t now_ns)
{
    if (b->a_ns <= 0) {
        return true;
    }
    if (now_ns > b->at_ns) {
        b->level += (double)(now_ns - b->at_ns) * b->a_ns;
        b->level = b->level < b->most ? b->level : b->most;
        b->at_ns = now_ns;
    }
    return b->level > 0;
}

void ldr_budget_spend(ldr_budget_t *b, double bytes)
{
    b->level -= bytes;
}
