/*
 * The two tables of functions, learned and LRU: where a chunk has its place in
 * the prefix tree, whether it is let in, and who goes for it.
 *
 * A policy is one tenant's; all of it is called with the node's lock.
 */
#include "store/policy_learned.h"

#include "base/mem.h"

#define SLOTS_MAX (LDR_NIL / 5) /* so that runs have numbers */
#define RUN_SLOTS_MAX 60000u    /* they are counted in 16 bits */
#define PREFETCH_LEAST 8192u    /* fewer runs are near anyway */
#define BLOCKED_LOOK 256u       /* runs that are looked at */

static bool is_present(const ldr_learned_t *d, uint32_t slot)
{
    return slot < d->t.slot_max && d->t.slots[slot].present;
}

/* ---- requests that were announced ---- */

/* Late requests, the last one first; NULL: that is all. */
static ldr_announced_t *announced_at(ldr_learned_t *d, uint32_t back)
{
    if (back >= LDR_ANNOUNCED_MAX || back >= d->announced_next) {
        return NULL;
    }
    return &d->announced[(d->announced_next - 1 - back) % LDR_ANNOUNCED_MAX];
}

/* The request that used a run last, if it is a late one. */
static ldr_announced_t *announced_of(ldr_learned_t *d, uint32_t run)
{
    ldr_announced_t *announced;

    for (uint32_t i = 0; (announced = announced_at(d, i)) != NULL; i++) {
        if (announced->stamp == d->t.runs[run].stamp) {
            return announced;
        }
    }
    return NULL;
}

/* The run of a late request in which the chunk has its place, or LDR_NIL: for
 * chunks without a parent, of groups that need only the end of a chain, or that
 * several save at once. */
static uint32_t locate_announced(ldr_learned_t *d, uint32_t depth,
                                 uint32_t print)
{
    const ldr_run_t *runs = d->t.runs;
    const ldr_announced_t *announced;

    for (uint32_t i = 0; (announced = announced_at(d, i)) != NULL; i++) {
        uint32_t run = announced->tail;

        /* One that was forgotten since may be another's: prints say so. */
        while (run != LDR_NIL && (runs[run].flags & LDR_RUN_USED) != 0 &&
               runs[run].depth > depth) {
            run = runs[run].parent;
        }
        if (run != LDR_NIL && run != LDR_RUN_STRAY &&
            (runs[run].flags & LDR_RUN_USED) != 0 &&
            depth - runs[run].depth < runs[run].length &&
            ldr_run_has(&runs[run], depth - runs[run].depth, print)) {
            return run;
        }
    }
    return LDR_NIL;
}

/* ---- places ---- */

/* The run in which a chunk below that parent has its place, or LDR_NIL. */
static uint32_t locate(ldr_learned_t *d, uint32_t parent, uint32_t depth,
                       uint32_t print)
{
    uint32_t above = LDR_NIL, run = LDR_NIL;

    if (is_present(d, parent)) {
        above = d->t.slots[parent].run;
        const ldr_run_t *r = &d->t.runs[above];

        if (depth > r->depth && depth - r->depth < r->length) {
            return above;
        }
    }
    if (above != LDR_NIL || depth == 0) {
        run = ldr_run_find(&d->t, above, depth, print);
    }
    return run != LDR_NIL || depth == 0 ? run
                                        : locate_announced(d, depth, print);
}

/* Younger, with all above it, but nothing is learned from it. */
static void touch_run(ldr_learned_t *d, uint32_t run)
{
    while (run != LDR_NIL && d->t.runs[run].stamp != d->t.stamp) {
        ldr_run_count_wait(&d->t, run);
        ldr_learned_use(d, run, d->t.runs[run].class);
        run = d->t.runs[run].parent;
    }
}

/* One more chunk for the run. */
static bool run_append(ldr_learned_t *d, uint32_t run, uint32_t print)
{
    ldr_run_t *r = &d->t.runs[run];

    if (r->child != LDR_NIL || (r->flags & LDR_RUN_LAST) != 0 ||
        r->length == LDR_RUN_CHUNKS) {
        return false;
    }
    ldr_run_lift(&d->t, run); /* of ghosts the chunks are counted */
    r->prints[r->length++ - 1] = (uint16_t)print;
    ldr_run_settle(&d->t, run);
    return true;
}

/* A place for a chunk that no request has announced: a decoded one, which is
 * more of its parent's run, or one from nowhere. */
static uint32_t make_place(ldr_learned_t *d, uint32_t parent, uint32_t depth,
                           uint64_t print)
{
    ldr_run_t *runs = d->t.runs;
    uint32_t above = is_present(d, parent) ? d->t.slots[parent].run : LDR_NIL;

    if (above == LDR_NIL || runs[above].stamp != d->t.stamp) {
        d->t.stamp++;
        touch_run(d, above);
    }
    if (above == LDR_RUN_STRAY ||
        (above != LDR_NIL && depth != runs[above].depth + runs[above].length)) {
        above = LDR_NIL;
    }
    if (above != LDR_NIL && run_append(d, above, ldr_print_fold(print))) {
        ldr_stack_use(&d->stack, 0, d->t.stamp, 1);
        return above;
    }
    uint32_t class = above != LDR_NIL ? runs[above].class
                     : depth == 0     ? ldr_class_session(0, 0, 0)
                                      : LDR_CLASS_STRAY;
    uint32_t run = ldr_run_new(&d->t, above, depth, &print, 1, class);
    if (run == LDR_NIL) {
        return LDR_NIL;
    }
    ldr_stack_use(&d->stack, 0, d->t.stamp, 1);
    if (above != LDR_NIL) {
        runs[run].turn = runs[above].turn;
        runs[run].tokens = runs[above].tokens;
        runs[above].fan += runs[above].fan < 255;
    }
    runs[run].uses = 1;
    return run;
}

static void learned_remove(ldr_policy_t *policy, uint32_t slot)
{
    ldr_learned_t *d = (ldr_learned_t *)policy;

    if (is_present(d, slot)) {
        ldr_slot_take(&d->t, slot);
    }
}

static void learned_place(ldr_policy_t *policy, uint32_t slot, uint32_t parent,
                          uint32_t depth, uint64_t print)
{
    ldr_learned_t *d = (ldr_learned_t *)policy;

    if (slot >= d->t.slot_max) {
        return;
    }
    learned_remove(policy, slot);
    depth %= LDR_RUN_DEPTHS;
    uint32_t run = locate(d, parent, depth, ldr_print_fold(print));
    if (run == LDR_NIL) {
        run = make_place(d, parent, depth, print);
    }
    if (run == LDR_NIL || d->t.runs[run].resident >= RUN_SLOTS_MAX) {
        run = LDR_RUN_STRAY;
        depth = LDR_RUN_DEPTHS - 1;
    }
    ldr_slot_put(&d->t, slot, run, depth,
                 is_present(d, parent) ? parent : LDR_NIL);
}

static void set_held(ldr_policy_t *policy, uint32_t slot, uint32_t held)
{
    ldr_learned_t *d = (ldr_learned_t *)policy;

    if (is_present(d, slot) && d->t.slots[slot].held != held) {
        uint32_t run = d->t.slots[slot].run;
        ldr_run_t *r = &d->t.runs[run];

        d->t.slots[slot].held = held & 1;
        r->held = (uint16_t)(held != 0 ? r->held + 1 : r->held - 1);
        ldr_run_settle(&d->t, run);
    }
}

static void learned_hold(ldr_policy_t *policy, uint32_t slot)
{
    set_held(policy, slot, 1);
}

static void learned_release(ldr_policy_t *policy, uint32_t slot)
{
    set_held(policy, slot, 0);
}

/* ---- uses ---- */

static void learned_time(ldr_policy_t *policy, uint32_t now_ds)
{
    ldr_learned_t *d = (ldr_learned_t *)policy;

    if ((int32_t)(now_ds - d->t.now_ds) > 0 || !d->timed) {
        d->t.now_ds = now_ds;
        d->timed = true;
    }
}

/* A read that no request has announced is all there is to learn from. The runs
 * above can only be victims once this one is gone: they are restamped only if
 * they were not used within the last second. */
static void learned_used(ldr_policy_t *policy, uint32_t slot)
{
    ldr_learned_t *d = (ldr_learned_t *)policy;
    ldr_tree_t *t = &d->t;
    uint32_t run = is_present(d, slot) ? t->slots[slot].run : LDR_NIL;
    bool first = true;

    if (run == LDR_NIL || run == LDR_RUN_STRAY ||
        t->runs[run].stamp == t->stamp ||
        ((t->runs[run].flags & LDR_RUN_ANNOUNCED) != 0 &&
         t->now_ds - t->runs[run].used_ds <= LDR_ANNOUNCED_DS)) {
        return;
    }
    t->stamp++;
    while (run != LDR_NIL) {
        ldr_run_t *r = &t->runs[run];
        bool recent = t->now_ds - r->used_ds <= LDR_AGAIN_DS;

        if (recent && !first) {
            return;
        }
        if (!recent) {
            ldr_hazard_use(t->hazard, r->class, ldr_run_age(t, run),
                           ldr_run_weight(r));
            r->uses = (uint8_t)(r->uses < 255 ? r->uses + 1 : 255);
        }
        ldr_run_count_wait(t, run);
        ldr_learned_use(d, run, r->class);
        r->flags &= (uint8_t)~LDR_RUN_ANNOUNCED;
        run = r->parent;
        first = false;
    }
}

/* First where its run is listed, then the run. */
static void learned_prefetch(const ldr_policy_t *policy, uint64_t print,
                             unsigned step)
{
    const ldr_tree_t *t = &((const ldr_learned_t *)policy)->t;

    if (t->run_top < PREFETCH_LEAST || step == 0) {
        return;
    }
    const uint32_t *bucket = ldr_tree_bucket(t, LDR_NIL, ldr_print_fold(print));
    if (step >= 2) {
        __builtin_prefetch(bucket);
    } else if (*bucket != 0) {
        __builtin_prefetch(&t->runs[*bucket - 1]);
        __builtin_prefetch((const char *)&t->runs[*bucket] - 1);
    }
}

/* ---- victims ---- */

static void note_full(ldr_learned_t *d)
{
    uint64_t chunks = d->t.resident - d->t.again;

    d->seen = chunks > 0 ? chunks : 1;
}

/* A run below it, not of that request, that has chunks which nobody holds. */
static uint32_t free_below(const ldr_tree_t *t, uint32_t run, uint32_t except)
{
    uint32_t kid = t->runs[run].child;

    for (unsigned i = 0; kid != LDR_NIL && i < BLOCKED_LOOK; i++) {
        const ldr_run_t *r = &t->runs[kid];

        if (r->resident > r->held && r->stamp != except) {
            return kid;
        }
        kid = r->next;
    }
    return LDR_NIL;
}

/* The run that goes next, except those of one request; LDR_NIL: none. If no
 * queue has one, it is of the chain that has been blocked for longest, as deep
 * as can be. Otherwise, where a chunk of each chain is held, a chain
 * that is being saved would drive out itself. */
static uint32_t next_run(ldr_tree_t *t, uint32_t except)
{
    uint32_t run = ldr_tree_worst(t, except);

    if (run != LDR_NIL) {
        return run;
    }
    run = t->lists[LDR_LIST_BLOCKED].oldest;
    for (unsigned i = 0; run != LDR_NIL && t->runs[run].stamp == except; i++) {
        run = i < BLOCKED_LOOK ? t->runs[run].newer : LDR_NIL;
    }
    for (uint32_t kid = run; kid != LDR_NIL;) {
        run = kid;
        kid = free_below(t, run, except);
    }
    return run;
}

/* Of the chain that the parent is in; of nothing, if it is not here. */
static uint32_t stamp_of(const ldr_learned_t *d, uint32_t parent)
{
    return is_present(d, parent) ? d->t.runs[d->t.slots[parent].run].stamp
                                 : d->t.stamp + 1;
}

static bool learned_admit(ldr_policy_t *policy, uint32_t parent, uint32_t depth,
                          uint64_t print)
{
    ldr_learned_t *d = (ldr_learned_t *)policy;
    ldr_tree_t *t = &d->t;

    if (!d->learns) { /* LRU keeps what comes */
        d->wanted = stamp_of(d, parent);
        return true;
    }
    depth %= LDR_RUN_DEPTHS;
    uint32_t run = locate(d, parent, depth, ldr_print_fold(print));
    note_full(d);
    if (run == LDR_NIL) {
        d->wanted = stamp_of(d, parent);
        return true;
    }
    d->wanted = t->runs[run].stamp;
    ldr_announced_t *announced = announced_of(d, run);
    if (announced != NULL && depth >= announced->refused) {
        return false; /* of no use without those above it */
    }
    uint32_t above =
        ldr_slot_above(t, run, depth, is_present(d, parent) ? parent : LDR_NIL);
    if (above != LDR_NIL && t->slots[above].depth == depth) {
        return true; /* and of no use without this one */
    }
    uint32_t v = next_run(t, d->wanted);
    if (v == LDR_NIL && ldr_tree_worst(t, t->stamp + 1) == LDR_NIL) {
        return true; /* all is held: that may pass */
    }
    bool good =
        v != LDR_NIL &&
        (t->lru ||
         ldr_hazard_worth(t->hazard, t->runs[v].class, ldr_run_age(t, v)) <=
             ldr_hazard_worth(t->hazard, t->runs[run].class, 0));
    if (!good && announced != NULL) {
        announced->refused = depth;
    }
    return good;
}

static uint32_t learned_victim(ldr_policy_t *policy)
{
    ldr_learned_t *d = (ldr_learned_t *)policy;
    ldr_tree_t *t = &d->t;
    uint32_t run = next_run(t, d->wanted);

    note_full(d);
    if (run == LDR_NIL) {
        run = next_run(t, t->stamp + 1);
    }
    uint32_t slot = run != LDR_NIL ? t->runs[run].tail : LDR_NIL;
    while (slot != LDR_NIL && t->slots[slot].held) {
        slot = t->slots[slot].up;
    }
    return slot;
}

/* ---- the table ---- */

/* Of what was never used again nothing says that it will be; of the rest, the
 * longer ago the less: half as much for twice the time. */
static uint32_t record_keep(const ldr_policy_record_t *record)
{
    if (record->pinned) {
        return UINT32_MAX;
    }
    if (record->orphan || record->used_s <= record->written_s) {
        return 0;
    }
    uint32_t age_s =
        record->now_s > record->used_s ? record->now_s - record->used_s : 0;
    return age_s < UINT32_MAX / 2 ? (UINT32_MAX - 1) / (age_s + 1) : 1;
}

static void learned_destroy(ldr_policy_t *policy)
{
    ldr_learned_t *d = (ldr_learned_t *)policy;

    if (d != NULL) {
        ldr_tree_destroy(&d->t);
        ldr_free(d);
    }
}

static ldr_policy_t *tree_create(const ldr_policy_ops_t *ops, bool learns,
                                 uint32_t capacity)
{
    ldr_learned_t *d = ldr_alloc(sizeof(*d));

    if (d == NULL) {
        return NULL;
    }
    d->base.ops = ops;
    d->learns = learns;
    if (!ldr_tree_init(&d->t, capacity < SLOTS_MAX ? capacity : SLOTS_MAX)) {
        ldr_free(d);
        return NULL;
    }
    return &d->base;
}

static ldr_policy_t *learned_create(uint32_t capacity)
{
    return tree_create(&ldr_policy_default, true, capacity);
}

static ldr_policy_t *lru_create(uint32_t capacity)
{
    return tree_create(&ldr_policy_lru, false, capacity);
}

void ldr_policy_default_stats(const ldr_policy_t *policy,
                              ldr_policy_stats_t *out)
{
    const ldr_learned_t *d = (const ldr_learned_t *)policy;
    const ldr_tree_t *t = &d->t;

    *out = (ldr_policy_stats_t){
        .runs = t->run_count,
        .ghosts = t->ghost_count,
        .ghost_chunks = t->ghost_chunks,
        .bytes = (uint64_t)t->run_top * sizeof(ldr_run_t) +
                 t->resident * sizeof(ldr_run_slot_t) +
                 (uint64_t)t->bucket_count * sizeof(uint32_t),
        .fixed_bytes = sizeof(*d) + sizeof(*t->hazard),
        .announced = d->announced_next,
        .requests = d->judged,
        .hits = d->hits,
        .hits_lru = d->hits_lru,
        .ranks_lru = t->lru,
        .switches = d->switches,
    };
}

/* All but the name and create: `learns` tells LRU apart. */
#define TREE_OPS                                                               \
    .destroy = learned_destroy, .hold = learned_hold,                          \
    .release = learned_release, .remove = learned_remove,                      \
    .victim = learned_victim, .keep = record_keep, .time = learned_time,       \
    .request = ldr_learned_request, .admit = learned_admit,                    \
    .place = learned_place, .close = ldr_learned_close, .used = learned_used,  \
    .prefetch = learned_prefetch

const ldr_policy_ops_t ldr_policy_default = {
    .name = "learned",
    .create = learned_create,
    TREE_OPS,
};

const ldr_policy_ops_t ldr_policy_lru = {
    .name = "lru",
    .create = lru_create,
    TREE_OPS,
};
