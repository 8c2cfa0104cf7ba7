/*
 * The prefix tree of the learned policy: runs, the lists they are in, and the
 * slots they have. policy_learned.h has its invariants.
 */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "store/policy_learned.h"

#define RUNS_PER_SLOT 2u /* as many resident, and as many ghosts */
#define RUNS_LEAST 1024u /* a power of two */
#define BUCKETS_MAX ((uint32_t)1 << 27)
#define SAMPLE_MAX 2048u /* runs whose waits are counted in one pass, about */
#define FORGET_TRIES 16u
#define PLACE_LOOK 512u
#define WORTH_STAMPS 4u    /* what runs are worth is worked out as often */
#define HUGE_LEAST 131072u /* slots: where what a page may waste is little */

/* ---- finding runs ---- */

/* A run that was cut off from another's end is the only such below its parent:
 * so 16 bits are enough there. */
uint32_t *ldr_tree_bucket(const ldr_tree_t *t, uint32_t parent, uint32_t first)
{
    uint32_t key = parent == LDR_NIL
                       ? first
                       : (first & 0xffff) + (parent + 1) * 0x85ebca6bu;
    uint32_t hash = (key ^ key >> 15) * 0x2c1b3c6du;
    uint32_t at = (hash ^ hash >> 12) * 0x9e3779b1u >> 4;

    at &= t->bucket_mask * 2 + 1;
    return &t->buckets[at < t->bucket_count ? at : at & t->bucket_mask];
}

static uint32_t *bucket_of(const ldr_tree_t *t, uint32_t run)
{
    return ldr_tree_bucket(t, t->runs[run].parent, t->runs[run].first);
}

/* One bucket more: some of what is in another belongs there. */
static void bucket_split(ldr_tree_t *t)
{
    uint32_t from = t->bucket_count - t->bucket_mask - 1;
    uint32_t at = t->buckets[from];

    t->buckets[from] = 0;
    t->buckets[t->bucket_count++] = 0;
    while (at != 0) {
        uint32_t next = t->runs[at - 1].bucket;
        uint32_t *bucket = bucket_of(t, at - 1);

        t->runs[at - 1].bucket = *bucket;
        *bucket = at;
        at = next;
    }
    if (t->bucket_count == 2 * (t->bucket_mask + 1)) {
        t->bucket_mask = t->bucket_mask * 2 + 1;
    }
}

uint32_t ldr_run_find(const ldr_tree_t *t, uint32_t parent, uint32_t depth,
                      uint32_t first)
{
    uint32_t at = *ldr_tree_bucket(t, parent, first);

    while (at != 0) {
        const ldr_run_t *r = &t->runs[at - 1];

        if (r->parent == parent && r->depth == depth && r->length > 0 &&
            ldr_run_has(r, 0, first)) {
            return at - 1;
        }
        at = r->bucket;
    }
    return LDR_NIL;
}

bool ldr_run_has(const ldr_run_t *r, uint32_t at, uint32_t print)
{
    if (at == 0 && (r->flags & LDR_RUN_SHORT) == 0) {
        return r->first == print;
    }
    return (at == 0 ? (uint16_t)r->first : r->prints[at - 1]) ==
           (uint16_t)print;
}

uint32_t ldr_run_match(const ldr_run_t *r, const uint64_t *prints,
                       uint32_t count)
{
    uint32_t n = 0;

    while (n < count && n < r->length &&
           ldr_run_has(r, n, ldr_print_fold(prints[n]))) {
        n++;
    }
    return n;
}

/* Its parent, depth and first print are known: it can be found now. */
static void run_link(ldr_tree_t *t, uint32_t run)
{
    ldr_run_t *r = &t->runs[run];

    if (t->run_count > t->bucket_count && t->bucket_count < t->bucket_max) {
        bucket_split(t);
    }
    uint32_t *bucket = bucket_of(t, run);
    r->bucket = *bucket;
    *bucket = run + 1;
    r->prev = r->next = LDR_NIL;
    if (r->parent != LDR_NIL) {
        uint32_t *head = &t->runs[r->parent].child;

        r->next = *head;
        if (*head != LDR_NIL) {
            t->runs[*head].prev = run;
        }
        *head = run;
    }
}

static void run_unlink(ldr_tree_t *t, uint32_t run)
{
    const ldr_run_t *r = &t->runs[run];
    uint32_t *link = bucket_of(t, run);

    while (*link != run + 1) {
        link = &t->runs[*link - 1].bucket;
    }
    *link = r->bucket;
    if (r->prev != LDR_NIL) {
        t->runs[r->prev].next = r->next;
    } else if (r->parent != LDR_NIL) {
        t->runs[r->parent].child = r->next;
    }
    if (r->next != LDR_NIL) {
        t->runs[r->next].prev = r->prev;
    }
}

/* ---- lists ---- */

static double worth_of(const ldr_tree_t *t, uint32_t run)
{
    const ldr_run_t *r = &t->runs[run];
    int32_t age = (int32_t)(t->worth_stamp - r->stamp);

    if (t->lru) {
        return -(double)age;
    }
    return (double)ldr_hazard_worth(
        t->hazard, r->class, age > 0 ? (uint32_t)age * LDR_AGE_UNITS : 0);
}

/* The oldest of a list is another one. */
static void list_changed(ldr_tree_t *t, uint32_t list)
{
    if (list < LDR_CLASSES) {
        uint32_t oldest = t->lists[list].oldest;

        t->worth[list] =
            oldest != LDR_NIL ? worth_of(t, oldest) : (double)INFINITY;
    }
}

/* Puts the run before a newer one; LDR_NIL: it is the newest. */
static void list_link(ldr_tree_t *t, uint32_t list, uint32_t run,
                      uint32_t newer)
{
    ldr_run_list_t *l = &t->lists[list];
    uint32_t older = newer != LDR_NIL ? t->runs[newer].older : l->newest;

    t->runs[run].older = older;
    t->runs[run].newer = newer;
    *(newer != LDR_NIL ? &t->runs[newer].older : &l->newest) = run;
    *(older != LDR_NIL ? &t->runs[older].newer : &l->oldest) = run;
    if (older == LDR_NIL) {
        list_changed(t, list);
    }
}

static void list_unlink(ldr_tree_t *t, uint32_t list, uint32_t run)
{
    ldr_run_list_t *l = &t->lists[list];
    uint32_t older = t->runs[run].older, newer = t->runs[run].newer;

    *(newer != LDR_NIL ? &t->runs[newer].older : &l->newest) = older;
    *(older != LDR_NIL ? &t->runs[older].newer : &l->oldest) = newer;
    if (older == LDR_NIL) {
        list_changed(t, list);
    }
}

static bool is_before(const ldr_tree_t *t, uint32_t a, uint32_t b)
{
    return (int32_t)(t->runs[a].stamp - t->runs[b].stamp) < 0;
}

/*
 * The one that the run comes before. Most are used now, and come last. Others
 * come back when the last below them has gone, or is given back: these are
 * among the oldest, or hardly older than the newest. So it is looked for from
 * both ends, and not for long: one in the wrong place goes a bit sooner.
 */
static uint32_t queue_place(ldr_tree_t *t, uint32_t run)
{
    const ldr_run_list_t *l = &t->lists[t->runs[run].class];
    uint32_t newer = LDR_NIL, older = l->newest, old = l->oldest;

    for (uint32_t i = 0; i < PLACE_LOOK; i++) {
        if (older == LDR_NIL || !is_before(t, run, older)) {
            return newer;
        }
        if (is_before(t, run, old)) {
            return old;
        }
        newer = older;
        older = t->runs[older].older;
        old = t->runs[old].newer;
    }
    t->loose = true;
    return old;
}

void ldr_run_lift(ldr_tree_t *t, uint32_t run)
{
    ldr_run_t *r = &t->runs[run];

    if ((r->flags & LDR_RUN_QUEUED) != 0) {
        list_unlink(t, r->class, run);
    } else if ((r->flags & LDR_RUN_BLOCKED) != 0) {
        list_unlink(t, LDR_LIST_BLOCKED, run);
    } else if ((r->flags & LDR_RUN_GHOST) != 0) {
        list_unlink(t, LDR_LIST_GHOSTS, run);
        t->ghost_count--;
        t->ghost_chunks -= r->length;
    }
    r->flags &= (uint8_t)~LDR_RUN_LISTS;
}

void ldr_run_settle(ldr_tree_t *t, uint32_t run)
{
    ldr_run_t *r = &t->runs[run];
    uint32_t flag = r->resident == 0               ? LDR_RUN_GHOST
                    : r->held == 0 && r->kids == 0 ? LDR_RUN_QUEUED
                    : r->resident > r->held        ? LDR_RUN_BLOCKED
                                                   : 0u;

    if ((r->flags & LDR_RUN_LISTS) == flag) {
        return;
    }
    ldr_run_lift(t, run);
    r->flags |= (uint8_t)flag;
    if (flag == LDR_RUN_QUEUED) {
        list_link(t, r->class, run, queue_place(t, run));
    } else if (flag == LDR_RUN_BLOCKED) {
        list_link(t, LDR_LIST_BLOCKED, run, LDR_NIL);
    } else if (flag == LDR_RUN_GHOST) {
        /* Hardly any next turn has a last chunk that was not full. */
        list_link(t, LDR_LIST_GHOSTS, run,
                  (r->flags & LDR_RUN_LAST) != 0
                      ? t->lists[LDR_LIST_GHOSTS].oldest
                      : LDR_NIL);
        t->ghost_count++;
        t->ghost_chunks += r->length;
    }
}

static void worth_all(ldr_tree_t *t)
{
    t->worth_stamp = t->stamp;
    for (uint32_t c = 0; c < t->hazard->class_end; c++) {
        list_changed(t, c);
    }
}

void ldr_tree_rank(ldr_tree_t *t, bool lru)
{
    t->lru = lru;
    worth_all(t);
}

uint32_t ldr_tree_worst(ldr_tree_t *t, uint32_t except)
{
    uint32_t best = LDR_NIL;
    double least = (double)INFINITY;

    if (t->stamp - t->worth_stamp >= WORTH_STAMPS) {
        worth_all(t);
    }
    /* All of a queue are as young as its oldest, or younger. */
    for (uint32_t c = 0; c < t->hazard->class_end; c++) {
        if (t->worth[c] < least &&
            t->runs[t->lists[c].oldest].stamp != except) {
            least = t->worth[c];
            best = c;
        }
    }
    return best != LDR_NIL ? t->lists[best].oldest : LDR_NIL;
}

/* ---- runs ---- */

static void run_give(ldr_tree_t *t, uint32_t run)
{
    t->runs[run].flags = 0;
    t->runs[run].newer = t->run_free;
    t->run_free = run;
    t->run_count--;
}

/* An old ghost goes; false: none was found. Those that have children go round,
 * and come when these are gone. */
static bool ghost_forget(ldr_tree_t *t)
{
    uint32_t run = t->lists[LDR_LIST_GHOSTS].oldest;

    for (uint32_t i = 0; i < FORGET_TRIES && run != LDR_NIL; i++) {
        uint32_t next = t->runs[run].newer;

        if (t->runs[run].stamp == t->stamp || run == t->busy) {
            run = next;
            continue;
        }
        if (run != LDR_RUN_STRAY && t->runs[run].child == LDR_NIL) {
            ldr_run_count_wait(t, run);
            ldr_run_lift(t, run);
            run_unlink(t, run);
            run_give(t, run);
            return true;
        }
        list_unlink(t, LDR_LIST_GHOSTS, run);
        list_link(t, LDR_LIST_GHOSTS, run, LDR_NIL);
        run = next;
    }
    return false;
}

void ldr_tree_trim(ldr_tree_t *t, uint64_t runs, uint64_t chunks)
{
    while ((t->ghost_count > runs || t->ghost_chunks > chunks) &&
           ghost_forget(t)) {
    }
}

/* busy: who asks is at work with it. */
static uint32_t run_take(ldr_tree_t *t, uint32_t busy)
{
    if (t->run_free == LDR_NIL && t->run_top == t->run_max) {
        t->busy = busy;
        ghost_forget(t);
        t->busy = LDR_NIL;
    }
    uint32_t run = t->run_free;
    if (run != LDR_NIL) {
        t->run_free = t->runs[run].newer;
    } else if (t->run_top < t->run_max) {
        run = t->run_top++;
    } else {
        return LDR_NIL;
    }
    t->run_count++;
    return run;
}

uint32_t ldr_run_new(ldr_tree_t *t, uint32_t parent, uint32_t depth,
                     const uint64_t *prints, uint32_t length, uint32_t class)
{
    uint32_t run = run_take(t, parent);

    if (run == LDR_NIL) {
        return LDR_NIL;
    }
    ldr_run_t *r = &t->runs[run];
    *r = (ldr_run_t){
        .parent = parent,
        .child = LDR_NIL,
        .stamp = t->stamp,
        .used_ds = t->now_ds,
        .tail = LDR_NIL,
        .depth = depth,
        .first = length > 0 ? ldr_print_fold(prints[0]) : 0,
        .flags = LDR_RUN_USED,
        .class = (uint16_t) class,
        .length = (uint8_t)length,
    };
    for (uint32_t i = 1; i < length; i++) {
        r->prints[i - 1] = (uint16_t)ldr_print_fold(prints[i]);
    }
    ldr_hazard_need(t->hazard, class);
    run_link(t, run);
    ldr_run_settle(t, run);
    return run;
}

/* The slots of the run above its depth, and what they count for, go to its
 * parent, which was cut off from it. */
static void slots_part(ldr_tree_t *t, uint32_t run, uint32_t upper)
{
    ldr_run_t *r = &t->runs[run], *u = &t->runs[upper];
    uint32_t from = LDR_NIL, at = r->tail;

    while (at != LDR_NIL && t->slots[at].depth >= r->depth) {
        from = at;
        at = t->slots[at].up;
    }
    u->tail = at;
    u->held = u->resident = 0;
    *(from != LDR_NIL ? &t->slots[from].up : &r->tail) = LDR_NIL;
    if (at != LDR_NIL) {
        t->slots[at].down = LDR_NIL;
    }
    for (; at != LDR_NIL; at = t->slots[at].up) {
        t->slots[at].run = upper;
        u->resident++;
        u->held = (uint16_t)(u->held + t->slots[at].held);
    }
    r->resident = (uint16_t)(r->resident - u->resident);
    r->held = (uint16_t)(r->held - u->held);
    u->kids = r->resident > 0;
    /* The run above counted the run; now it counts the upper one. */
    if (u->resident == 0 && r->resident > 0 && u->parent != LDR_NIL) {
        t->runs[u->parent].kids--;
        ldr_run_settle(t, u->parent);
    }
}

uint32_t ldr_run_split(ldr_tree_t *t, uint32_t run, uint32_t length)
{
    uint32_t upper = run_take(t, run);

    if (upper == LDR_NIL) {
        return LDR_NIL;
    }
    ldr_run_t *r = &t->runs[run], *u = &t->runs[upper];
    ldr_run_lift(t, run);
    run_unlink(t, run);
    *u = *r;
    u->child = LDR_NIL;
    u->length = (uint8_t)length;
    u->fan = (r->flags & LDR_RUN_LAST) == 0;
    u->flags &= (uint8_t)~LDR_RUN_LAST;
    r->parent = upper;
    r->depth += length;
    r->length = (uint8_t)(r->length - length);
    r->first = r->prints[length - 1];
    r->flags |= LDR_RUN_SHORT;
    memmove(r->prints, r->prints + length,
            (size_t)(r->length - 1) * sizeof(r->prints[0]));
    run_link(t, upper);
    run_link(t, run);
    slots_part(t, run, upper);
    ldr_run_settle(t, run);
    ldr_run_settle(t, upper);
    return upper;
}

/* ---- class and time ---- */

void ldr_run_count_wait(ldr_tree_t *t, uint32_t run)
{
    const ldr_run_t *r = &t->runs[run];
    int32_t counted = (int32_t)(t->scan - r->stamp);

    if ((run & t->sample) == 0) {
        /* Of a run used since the last pass nothing has been counted. */
        ldr_hazard_wait(t->hazard, r->class,
                        counted > 0 ? (uint32_t)counted * LDR_AGE_UNITS : 0,
                        ldr_run_age(t, run),
                        ldr_run_weight(r) * (float)(t->sample + 1));
    }
}

void ldr_tree_count_waits(ldr_tree_t *t)
{
    for (uint32_t run = 0; run < t->run_top; run += t->sample + 1) {
        if ((t->runs[run].flags & LDR_RUN_USED) != 0) {
            ldr_run_count_wait(t, run);
        }
    }
    t->scan = t->stamp;
    while (t->run_top / (t->sample + 1) > SAMPLE_MAX) {
        t->sample = t->sample * 2 + 1;
    }
}

void ldr_run_restamp(ldr_tree_t *t, uint32_t run, uint32_t class,
                     uint32_t stamp)
{
    ldr_run_t *r = &t->runs[run];

    ldr_run_lift(t, run);
    ldr_hazard_need(t->hazard, class);
    r->class = (uint16_t) class;
    r->stamp = stamp;
    r->used_ds = t->now_ds;
    ldr_run_settle(t, run);
}

/* ---- slots ---- */

/* The run has one slot more, or less. */
static void run_count(ldr_tree_t *t, uint32_t run, int by)
{
    ldr_run_t *r = &t->runs[run];
    uint32_t had = r->resident;

    r->resident = (uint16_t)((int)had + by);
    t->resident += (uint64_t)(int64_t)by;
    if ((had == 0) != (r->resident == 0) && r->parent != LDR_NIL) {
        uint32_t *kids = &t->runs[r->parent].kids;

        *kids = (uint32_t)((int)*kids + by);
        ldr_run_settle(t, r->parent);
    }
    ldr_run_settle(t, run);
}

uint32_t ldr_slot_above(const ldr_tree_t *t, uint32_t run, uint32_t depth,
                        uint32_t near)
{
    uint32_t up = t->runs[run].tail;

    if (near != LDR_NIL && t->slots[near].run == run &&
        t->slots[near].depth <= depth) {
        uint32_t down = t->slots[near].down;

        for (up = near; down != LDR_NIL && t->slots[down].depth <= depth;
             down = t->slots[down].down) {
            up = down;
        }
        return up;
    }
    while (up != LDR_NIL && t->slots[up].depth > depth) {
        up = t->slots[up].up;
    }
    return up;
}

void ldr_slot_put(ldr_tree_t *t, uint32_t slot, uint32_t run, uint32_t depth,
                  uint32_t near)
{
    ldr_run_slot_t *s = &t->slots[slot];
    uint32_t up = ldr_slot_above(t, run, depth, near);
    uint32_t down = up != LDR_NIL ? t->slots[up].down : t->runs[run].tail;

    while (up == LDR_NIL && down != LDR_NIL && t->slots[down].up != LDR_NIL) {
        down = t->slots[down].up; /* it is the first */
    }
    *s = (ldr_run_slot_t){
        .run = run,
        .up = up,
        .down = down,
        .depth = depth,
        .present = 1,
        .again = up != LDR_NIL && t->slots[up].depth == depth,
    };
    t->again += s->again;
    if (up != LDR_NIL) {
        t->slots[up].down = slot;
    }
    *(down != LDR_NIL ? &t->slots[down].up : &t->runs[run].tail) = slot;
    run_count(t, run, 1);
}

void ldr_slot_take(ldr_tree_t *t, uint32_t slot)
{
    ldr_run_slot_t *s = &t->slots[slot];
    ldr_run_t *r = &t->runs[s->run];

    if (s->up != LDR_NIL) {
        t->slots[s->up].down = s->down;
    }
    *(s->down != LDR_NIL ? &t->slots[s->down].up : &r->tail) = s->up;
    r->held = (uint16_t)(r->held - s->held);
    /* The next of its depth stands for it. */
    if (!s->again && s->down != LDR_NIL && t->slots[s->down].again) {
        t->slots[s->down].again = 0;
        t->again--;
    }
    t->again -= s->again;
    s->present = 0;
    run_count(t, s->run, -1);
}

/* ---- beginning and end ---- */

/* The next part of the memory; without any: only how far it would reach. */
static void *carve(const ldr_tree_t *t, size_t *at, size_t count, size_t each)
{
    size_t from = (*at + 63) / 64 * 64;

    *at = from + count * each;
    return t->memory != NULL ? t->memory + from : NULL;
}

static size_t carve_all(ldr_tree_t *t)
{
    size_t at = 0;

    t->hazard = carve(t, &at, 1, sizeof(*t->hazard));
    t->runs = carve(t, &at, t->run_max, sizeof(*t->runs));
    t->slots = carve(t, &at, t->slot_max, sizeof(*t->slots));
    t->buckets = carve(t, &at, t->bucket_max, sizeof(*t->buckets));
    return at;
}

bool ldr_tree_init(ldr_tree_t *t, uint32_t slot_max)
{
    t->slot_max = slot_max;
    t->run_max = slot_max * RUNS_PER_SLOT + RUNS_LEAST;
    t->bucket_max = t->run_max < BUCKETS_MAX ? t->run_max : BUCKETS_MAX;
    t->bucket_count = RUNS_LEAST;
    t->bucket_mask = RUNS_LEAST - 1;
    t->run_free = t->busy = LDR_NIL;
    for (uint32_t i = 0; i < LDR_LISTS; i++) {
        t->lists[i] = (ldr_run_list_t){LDR_NIL, LDR_NIL};
    }
    for (uint32_t i = 0; i < LDR_CLASSES; i++) {
        t->worth[i] = (double)INFINITY;
    }
    /* One piece: a simulation of many nodes has as many of these. */
    t->memory_bytes = carve_all(t);
    t->memory = slot_max >= HUGE_LEAST ? ldr_reserve_huge(t->memory_bytes)
                                       : ldr_reserve(t->memory_bytes);
    if (t->memory == NULL) {
        return false;
    }
    carve_all(t);
    ldr_hazard_init(t->hazard);
    t->stamp = 1;
    t->lru = true; /* until the cache was full once */
    /* Of slots for which there is no other run: LDR_RUN_STRAY. */
    ldr_run_new(t, LDR_NIL, LDR_NIL, NULL, 0, LDR_CLASS_STRAY);
    return true;
}

void ldr_tree_destroy(ldr_tree_t *t)
{
    ldr_unreserve(t->memory, t->memory_bytes);
}
