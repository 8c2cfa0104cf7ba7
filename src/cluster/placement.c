/*
 * Owners of runs, by weighted rendezvous hashing: placement.h says how.
 *
 * Any thread may ask, without a lock. A set's owners are computed by whoever
 * asks first, and published by the store of kept[0] (release); two threads that
 * compute them at once store the same numbers.
 */
#include "cluster/placement.h"

#include <stdbool.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/mem.h"

typedef struct node {
    uint64_t id;     /* mixed */
    uint32_t weight; /* sorted by it, so that equals stand together */
    uint32_t member; /* as given */
} node_t;

struct ldr_placement {
    uint32_t count;
    uint32_t owners; /* kept for each set of runs */
    node_t *nodes;
    /* [set * owners], member + 1; the first is written last. 0: not known. */
    uint16_t *table;
};

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/*
 * An exponential time of rate 1, in units of ln 2: -log2 of what looks random,
 * with 30 bits behind the point. The more the number, the sooner. log2(1 + f)
 * is f (1 + (1 - f) q(f)), to within 4e-6.
 */
static double exponential(uint64_t random)
{
    static const int64_t q[] = {27585783, -103354624, 196116062, -296290261,
                                475224821};
    unsigned zeros = (unsigned)__builtin_clzll(random | 1);
    int64_t f = (int64_t)((random | 1) << zeros << 1 >> 34);
    int64_t one = (int64_t)1 << 30;
    int64_t sum = 0;

    for (unsigned i = 0; i < sizeof(q) / sizeof(q[0]); i++) {
        sum = (sum * f >> 30) + q[i];
    }
    int64_t log = f * (one + ((one - f) * sum >> 30)) >> 30;
    return (double)(((int64_t)zeros + 1) * one - log) * 0x1p-30;
}

/* ---- making it ---- */

static size_t table_bytes(const ldr_placement_t *p)
{
    return (size_t)LDR_PARTITIONS * p->owners * sizeof(*p->table);
}

static int by_weight(const void *a, const void *b)
{
    const node_t *x = a, *y = b;

    if (x->weight != y->weight) {
        return x->weight < y->weight ? -1 : 1;
    }
    return x->id < y->id ? -1 : x->id > y->id;
}

static int by_id(const void *a, const void *b)
{
    const node_t *x = a, *y = b;

    return x->id < y->id ? -1 : x->id > y->id;
}

/* False: members that cannot be, with the text of ldr_fail(). */
static bool take_members(ldr_placement_t *p, const ldr_placed_t *members)
{
    for (uint32_t i = 0; i < p->count; i++) {
        p->nodes[i] = (node_t){mix(members[i].id), members[i].weight, i};
        if (members[i].weight == 0) {
            ldr_fail(LARDER_E_INVALID, "member %u has a weight of 0", i);
            return false;
        }
    }
    qsort(p->nodes, p->count, sizeof(*p->nodes), by_id);
    for (uint32_t i = 1; i < p->count; i++) {
        if (p->nodes[i].id == p->nodes[i - 1].id) {
            ldr_fail(LARDER_E_INVALID, "members %u and %u have the same id",
                     p->nodes[i - 1].member, p->nodes[i].member);
            return false;
        }
    }
    qsort(p->nodes, p->count, sizeof(*p->nodes), by_weight);
    return true;
}

ldr_placement_t *ldr_placement_create(const ldr_placed_t *members,
                                      uint32_t count, uint32_t owners)
{
    if (count > LDR_MEMBERS_MAX || owners < 1 || owners > LDR_OWNERS_MAX) {
        ldr_fail(LARDER_E_INVALID,
                 "%u members, %u owners: at most %u and 1 to "
                 "%u",
                 count, owners, LDR_MEMBERS_MAX, LDR_OWNERS_MAX);
        return NULL;
    }
    ldr_placement_t *p = ldr_alloc(sizeof(*p));
    if (p != NULL) {
        p->count = count;
        p->owners = owners < count || count == 0 ? owners : count;
        p->nodes = ldr_alloc((count + 1) * sizeof(*p->nodes));
        p->table = ldr_reserve(table_bytes(p));
    }
    if (p == NULL || p->nodes == NULL || p->table == NULL) {
        ldr_fail(LARDER_E_NO_MEMORY, "no memory to place %u members", count);
        ldr_placement_destroy(p);
        return NULL;
    }
    if (!take_members(p, members)) {
        ldr_placement_destroy(p);
        return NULL;
    }
    return p;
}

void ldr_placement_destroy(ldr_placement_t *p)
{
    if (p == NULL) {
        return;
    }
    if (p->table != NULL) {
        ldr_unreserve(p->table, table_bytes(p));
    }
    ldr_free(p->nodes);
    ldr_free(p);
}

/* ---- asking it ---- */

void ldr_placement_prefetch(const ldr_placement_t *p, uint64_t run)
{
    __builtin_prefetch(p->table + (size_t)ldr_run_set(run) * p->owners);
}

/* The best so far, the best one first. */
typedef struct best {
    uint32_t count, max;
    double times[LDR_OWNERS_MAX];
    uint32_t members[LDR_OWNERS_MAX];
} best_t;

/* False: it is too late to be one of them. */
static bool consider(best_t *b, uint32_t member, double at)
{
    uint32_t i = b->count;

    if (i == b->max) {
        if (at >= b->times[--i]) {
            return false;
        }
    } else {
        b->count++;
    }
    for (; i > 0 && b->times[i - 1] > at; i--) {
        b->times[i] = b->times[i - 1];
        b->members[i] = b->members[i - 1];
    }
    b->times[i] = at;
    b->members[i] = member;
    return true;
}

/*
 * Looks at all clocks. Of nodes with the same weight those with the larger
 * numbers ring first: so once one of them was too late, those with smaller
 * numbers are, and most need no more than a comparison.
 */
static void choose(const ldr_placement_t *p, uint64_t set, best_t *b)
{
    uint64_t draw = mix(set + 0x9e3779b97f4a7c15u);
    uint64_t late = 0; /* numbers up to this are */

    for (uint32_t i = 0; i < p->count; i++) {
        const node_t *n = &p->nodes[i];
        uint64_t random = mix(draw ^ n->id);

        if (i > 0 && n->weight != n[-1].weight) {
            late = 0;
        }
        if (random > late &&
            !consider(b, n->member, exponential(random) / n->weight)) {
            late = random;
        }
    }
}

uint32_t ldr_placement_set_owners(const ldr_placement_t *p, uint32_t set,
                                  uint32_t *owners)
{
    uint16_t *kept = p->table + (size_t)set * p->owners;
    best_t b = {.max = p->owners};

    if (p->count == 0) {
        return 0;
    }
    owners[0] = __atomic_load_n(&kept[0], __ATOMIC_ACQUIRE) - 1u;
    if (owners[0] != UINT32_MAX) {
        for (uint32_t i = 1; i < p->owners; i++) {
            owners[i] = __atomic_load_n(&kept[i], __ATOMIC_RELAXED) - 1u;
        }
        return p->owners;
    }
    choose(p, set, &b);
    /* Whoever else is at it writes the same. */
    for (uint32_t i = p->owners; i-- > 0;) {
        owners[i] = b.members[i];
        __atomic_store_n(&kept[i], (uint16_t)(b.members[i] + 1),
                         __ATOMIC_RELEASE);
    }
    return p->owners;
}

uint32_t ldr_placement_owners(const ldr_placement_t *p, uint64_t run,
                              uint32_t *owners)
{
    return ldr_placement_set_owners(p, ldr_run_set(run), owners);
}
