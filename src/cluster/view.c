/*
 * Views: made once, read by everybody, freed by the last one who held them. The
 * cluster's thread publishes, with the cluster's lock. Any thread takes and
 * gives a view without a lock, by counts of references.
 */
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "cluster/cluster_int.h"
#include "cluster/placement.h"

#define COUNT_ONE ((uint64_t)LDR_SLOTS) /* of ldr_views_t's current */
#define BIAS ((int64_t)1 << 62)         /* refs of a view that is current */

typedef struct view {
    ldr_view_t;
    ldr_views_t *views;
    unsigned slot;
    int64_t refs; /* atomic */
    ldr_placement_t *placement;
    uint32_t *owners; /* places in members of those that were placed */
    uint32_t owner_count;
} view_t;

uint64_t ldr_member_id(const char *name)
{
    static const char label[] = "larder member";
    const ldr_piece_t pieces[] = {{label, sizeof(label)}, {name, strlen(name)}};
    uint8_t digest[32] = {0};

    (void)ldr_sha256(pieces, 2, digest);
    return ldr_get64(digest);
}

/* What it counts in the ring. */
static uint32_t weight_of(const ldr_member_t *m)
{
    return m->leaving ? 0 : m->weight * m->share;
}

/* ---- making one ---- */

static int by_id(const void *a, const void *b)
{
    const ldr_member_t *x = a, *y = b;

    return x->id < y->id ? -1 : x->id > y->id;
}

#define TEXTS 3u
#define NUMBERS 24u /* id, weight and share, and the lengths of the texts */

/* The pieces point into the members and into numbers. */
static bool hash_members(const ldr_member_t *members, uint32_t count,
                         uint8_t hash[32])
{
    static const char label[] = "larder view 1";
    size_t piece_count = 1 + (size_t)count * (TEXTS + 1);
    ldr_piece_t *pieces = ldr_alloc(piece_count * sizeof(*pieces));
    uint8_t *numbers = ldr_alloc((size_t)count * NUMBERS + 1);
    bool done = false;

    if (pieces != NULL && numbers != NULL) {
        ldr_piece_t *at = pieces;

        *at++ = (ldr_piece_t){label, sizeof(label)};
        for (uint32_t i = 0; i < count; i++) {
            const ldr_member_t *m = &members[i];
            const char *texts[TEXTS] = {m->name, m->address, m->zone};
            uint8_t *to = numbers + (size_t)i * NUMBERS;

            ldr_put64(to, m->id);
            ldr_put32(to + 8, m->leaving ? 0 : m->weight);
            ldr_put32(to + 12, m->leaving ? 0 : m->share);
            *at++ = (ldr_piece_t){to, NUMBERS};
            for (unsigned t = 0; t < TEXTS; t++) {
                ldr_put16(to + 16 + 2 * t, (uint16_t)strlen(texts[t]));
                *at++ = (ldr_piece_t){texts[t], strlen(texts[t])};
            }
        }
        done = ldr_sha256(pieces, piece_count, hash);
    }
    ldr_free(pieces);
    ldr_free(numbers);
    return done;
}

static void view_destroy(view_t *v)
{
    if (v != NULL) {
        ldr_placement_destroy(v->placement);
        ldr_free(v->owners);
        ldr_free((void *)(uintptr_t)v->members);
        ldr_free(v);
    }
}

static bool view_place(view_t *v)
{
    ldr_placed_t *placed = ldr_alloc((v->count + 1u) * sizeof(*placed));

    v->owners = ldr_alloc((v->count + 1u) * sizeof(*v->owners));
    if (placed == NULL || v->owners == NULL) {
        ldr_free(placed);
        return false;
    }
    for (uint32_t i = 0; i < v->count; i++) {
        uint32_t weight = weight_of(&v->members[i]);

        if (weight > 0) {
            v->owners[v->owner_count] = i;
            placed[v->owner_count++] = (ldr_placed_t){v->members[i].id, weight};
        }
    }
    v->placement = ldr_placement_create(placed, v->owner_count, LDR_RANKS_MAX);
    ldr_free(placed);
    return v->placement != NULL;
}

static view_t *view_create(const ldr_member_t *members, uint32_t count,
                           uint64_t self, uint64_t generation)
{
    view_t *v = ldr_alloc(sizeof(*v));
    ldr_member_t *copy = ldr_alloc((count + 1u) * sizeof(*copy));

    if (v == NULL || copy == NULL) {
        ldr_fail(LARDER_E_NO_MEMORY, "no memory for a view of %u members",
                 count);
        ldr_free(copy);
        ldr_free(v);
        return NULL;
    }
    if (count > 0) {
        memcpy(copy, members, count * sizeof(*copy));
        qsort(copy, count, sizeof(*copy), by_id);
    }
    v->members = copy;
    v->count = count;
    v->generation = generation;
    v->refs = BIAS;
    v->self = ldr_view_find((ldr_view_t *)v, self);
    if (!hash_members(copy, count, v->hash) || !view_place(v)) {
        view_destroy(v);
        return NULL;
    }
    return v;
}

bool ldr_views_publish(ldr_views_t *views, const ldr_member_t *members,
                       uint32_t count, uint64_t self, uint64_t generation)
{
    view_t *v = view_create(members, count, self, generation);
    unsigned slot = 0;

    if (v == NULL) {
        return false;
    }
    while (slot < LDR_SLOTS &&
           __atomic_load_n(&views->slot[slot], __ATOMIC_ACQUIRE) != NULL) {
        slot++;
    }
    if (slot == LDR_SLOTS) {
        ldr_fail(LARDER_E_FULL, "%u views are held", LDR_SLOTS);
        view_destroy(v);
        return false;
    }
    v->views = views;
    v->slot = slot;
    __atomic_store_n(&views->slot[slot], (ldr_view_t *)v, __ATOMIC_RELEASE);
    if (generation == 0) { /* the first: there is none before it */
        __atomic_store_n(&views->current, slot, __ATOMIC_RELEASE);
        return true;
    }
    uint64_t old = __atomic_exchange_n(&views->current, slot, __ATOMIC_ACQ_REL);
    view_t *before = (view_t *)views->slot[old % LDR_SLOTS];
    if (__atomic_add_fetch(&before->refs, (int64_t)(old / COUNT_ONE) - BIAS,
                           __ATOMIC_ACQ_REL) == 0) {
        __atomic_store_n(&views->slot[before->slot], NULL, __ATOMIC_RELEASE);
        view_destroy(before);
    }
    return true;
}

static const ldr_view_t *view_current(ldr_views_t *views)
{
    /* Pairs with the exchange of publish: what it put there is whole. */
    uint64_t old =
        __atomic_fetch_add(&views->current, COUNT_ONE, __ATOMIC_ACQUIRE);

    return views->slot[old % LDR_SLOTS];
}

const ldr_view_t *ldr_view_keep(const ldr_view_t *view)
{
    view_t *v = (view_t *)(uintptr_t)view;

    __atomic_add_fetch(&v->refs, 1, __ATOMIC_RELAXED);
    return view;
}

void ldr_view_give(const ldr_view_t *view)
{
    view_t *v = (view_t *)(uintptr_t)view;

    if (__atomic_sub_fetch(&v->refs, 1, __ATOMIC_ACQ_REL) == 0) {
        __atomic_store_n(&v->views->slot[v->slot], NULL, __ATOMIC_RELEASE);
        view_destroy(v);
    }
}

void ldr_views_destroy(ldr_views_t *views)
{
    unsigned held = 0;

    for (unsigned i = 0; i < LDR_SLOTS; i++) {
        held += views->slot[i] != NULL;
        view_destroy((view_t *)views->slot[i]);
    }
    LDR_ASSERT(held <= 1 && "all views but the current one were given back");
}

static bool same_member(const ldr_member_t *a, const ldr_member_t *b)
{
    return a->id == b->id && a->weight == b->weight && a->share == b->share &&
           a->leaving == b->leaving && a->run == b->run &&
           strcmp(a->name, b->name) == 0 &&
           strcmp(a->address, b->address) == 0 &&
           strcmp(a->zone, b->zone) == 0 && strcmp(a->version, b->version) == 0;
}

bool ldr_views_same(ldr_views_t *views, const ldr_member_t *members,
                    uint32_t count)
{
    const ldr_view_t *v = view_current(views);
    bool same = v->generation > 0 && v->count == count;

    for (uint32_t i = 0; same && i < count; i++) {
        same = same_member(&v->members[i], &members[i]);
    }
    ldr_view_give(v);
    return same;
}

/* ---- asking it ---- */

const ldr_view_t *ldr_cluster_view(ldr_cluster_t *c)
{
    return view_current(&c->views);
}

uint32_t ldr_view_find(const ldr_view_t *view, uint64_t id)
{
    uint32_t low = 0, high = view->count;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;

        if (view->members[middle].id < id) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < view->count && view->members[low].id == id ? low : LDR_NOBODY;
}

void ldr_view_prefetch(const ldr_view_t *view, uint64_t run)
{
    ldr_placement_prefetch(((const view_t *)view)->placement, run);
}

uint32_t ldr_view_set_owners(const ldr_view_t *view, uint32_t set, uint32_t max,
                             uint32_t *members)
{
    const view_t *v = (const view_t *)view;
    uint32_t all[LDR_OWNERS_MAX];
    uint32_t count = ldr_placement_set_owners(v->placement, set, all);

    if (count > v->owner_count) {
        count = v->owner_count;
    }
    if (count > max) {
        count = max;
    }
    for (uint32_t i = 0; i < count; i++) {
        members[i] = v->owners[all[i]];
    }
    return count;
}

uint32_t ldr_view_owners(const ldr_view_t *view, uint64_t run, uint32_t max,
                         uint32_t *members)
{
    return ldr_view_set_owners(view, ldr_run_set(run), max, members);
}

uint32_t ldr_view_copies(const ldr_view_t *view, uint64_t run, uint32_t copies,
                         uint32_t *members)
{
    uint32_t rank[LDR_RANKS_MAX], chosen = 0;
    uint32_t count = ldr_view_owners(view, run, LDR_RANKS_MAX, rank);
    bool used[LDR_RANKS_MAX] = {false};

    /* First one of each zone, then the others. */
    for (unsigned pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < count && chosen < copies; i++) {
            bool fresh = !used[i];

            for (uint32_t k = 0; pass == 0 && fresh && k < chosen; k++) {
                fresh = strcmp(view->members[rank[i]].zone,
                               view->members[members[k]].zone) != 0;
            }
            if (fresh) {
                used[i] = true;
                members[chosen++] = rank[i];
            }
        }
    }
    return chosen;
}

uint64_t ldr_run_hash(const larder_key_t *first)
{
    return ldr_get64((const uint8_t *)first);
}
