#include "store/policy_default.h"

#include "base/mem.h"

#define SLOTS_MAX (LDR_NIL / 5) /* so that runs and prints have numbers */
#define APPEND_MAX 512u         /* a run that grows by one walks its prints */
#define SOON_LEAST 8192u        /* fewer runs are near anyway */
#define RUN_SLOTS_MAX 60000u    /* they are counted in 16 bits */

/* ---- slots ---- */

static bool is_present(const ldr_default_t *d, uint32_t slot)
{
    return slot < d->t.slot_max && d->t.slots[slot].present;
}

/* The run of the told request in which the chunk has its place, or LDR_NIL. */
static uint32_t find_told(const ldr_default_t *d, const ldr_told_t *told,
                          uint32_t depth, uint32_t print)
{
    const ldr_runs_t *t = &d->t;
    uint32_t run = told->tail;

    /* One that was forgotten since may be another's: its prints say so. */
    while (run != LDR_NIL && (t->runs[run].flags & LDR_RUN_USED) != 0 &&
           run != LDR_RUN_STRAY && ldr_limb(t, run)->depth > depth) {
        run = ldr_limb(t, run)->parent;
    }
    if (run == LDR_NIL || (t->runs[run].flags & LDR_RUN_USED) == 0 ||
        run == LDR_RUN_STRAY ||
        depth - ldr_limb(t, run)->depth >= t->runs[run].length) {
        return LDR_NIL;
    }
    return ldr_prints_is(t, run, depth - ldr_limb(t, run)->depth, print)
               ? run
               : LDR_NIL;
}

/* The same without a parent: chunks of groups that need only the end of a
 * chain, or that several save at once. Of late requests only. */
static uint32_t locate_told(const ldr_default_t *d, uint32_t depth,
                            uint32_t print)
{
    uint32_t count =
        d->told_next < LDR_TOLD ? (uint32_t)d->told_next : LDR_TOLD;

    for (uint32_t i = 1; i <= count; i++) {
        uint32_t run =
            find_told(d, &d->told[(d->told_next - i) % LDR_TOLD], depth, print);

        if (run != LDR_NIL) {
            return run;
        }
    }
    return LDR_NIL;
}

/* The run that begins with that chunk, if it was at rest. */
static uint32_t locate_ghost(ldr_default_t *d, uint32_t parent, uint32_t depth,
                             uint32_t print)
{
    ldr_runs_t *t = &d->t;
    uint32_t before = parent != LDR_NIL ? ldr_runs_last(t, parent) : 0;

    if (parent == LDR_NIL
            ? depth > 0
            : depth != ldr_limb(t, parent)->depth + t->runs[parent].length) {
        return LDR_NIL;
    }
    uint32_t run = ldr_runs_wake(t, parent, depth, before, print);
    if (run != LDR_NIL) {
        ldr_runs_tell(t, run);
        ldr_runs_restamp(t, run, t->runs[run].class, ++t->stamp);
    }
    return run;
}

/* The run in which a chunk below that parent has its place, or LDR_NIL. */
static uint32_t locate(ldr_default_t *d, uint32_t parent, uint32_t depth,
                       uint32_t print)
{
    uint32_t above = LDR_NIL, run;

    if (depth == 0 && parent == LDR_NIL && d->path_count > 0 &&
        ldr_runs_is_at(&d->t, d->path[0], LDR_NIL, 0, print)) {
        return d->path[0]; /* as of most that come right after a request */
    }
    if (is_present(d, parent)) {
        above = d->t.slots[parent].run;
        uint32_t from = ldr_limb(&d->t, above)->depth;

        if (depth > from && depth - from < d->t.runs[above].length) {
            return above;
        }
    }
    run = above != LDR_NIL || depth == 0
              ? ldr_runs_find(&d->t, above, depth, print)
              : LDR_NIL;
    if (run == LDR_NIL && depth > 0) {
        run = locate_told(d, depth, print);
    }
    return run != LDR_NIL ? run : locate_ghost(d, above, depth, print);
}

/* The request that used a run last, if it is a late one. */
static ldr_told_t *told_of(ldr_default_t *d, uint32_t run)
{
    uint32_t count =
        d->told_next < LDR_TOLD ? (uint32_t)d->told_next : LDR_TOLD;

    for (uint32_t i = 1; i <= count; i++) {
        ldr_told_t *told = &d->told[(d->told_next - i) % LDR_TOLD];

        if (told->stamp == d->t.runs[run].stamp) {
            return told;
        }
    }
    return NULL;
}

/* Younger, with all above it, but nothing is learned from it. */
static void touch_run(ldr_default_t *d, uint32_t run)
{
    while (run != LDR_NIL && d->t.runs[run].stamp != d->t.stamp) {
        ldr_runs_tell(&d->t, run);
        ldr_runs_restamp(&d->t, run, d->t.runs[run].class, d->t.stamp);
        run = ldr_limb(&d->t, run)->parent;
    }
}

/* A place for a chunk that no request has announced: a decoded one, which is
 * more of its parent's run, or one from nowhere. */
static uint32_t make_place(ldr_default_t *d, uint32_t parent, uint32_t depth,
                           uint64_t print)
{
    uint32_t above = is_present(d, parent) ? d->t.slots[parent].run : LDR_NIL;
    uint32_t class = LDR_CLASS_STRAY;

    if (above == LDR_NIL || d->t.runs[above].stamp != d->t.stamp) {
        d->t.stamp++;
        touch_run(d, above);
    }
    if (above != LDR_NIL) {
        ldr_run_t *r = &d->t.runs[above];
        const ldr_limb_t *l = ldr_limb(&d->t, above);

        if (above == LDR_RUN_STRAY || depth != l->depth + r->length) {
            above = LDR_NIL;
        } else if (l->child == LDR_NIL && (r->flags & LDR_RUN_LAST) == 0 &&
                   r->length < APPEND_MAX &&
                   ldr_prints_append(&d->t, above, ldr_runs_fold(print))) {
            ldr_stack_use(&d->t.stack, 0, d->t.stamp, d->t.now_ds, 1);
            return above;
        } else {
            class = r->class;
        }
    }
    if (above == LDR_NIL && depth == 0) {
        class = ldr_learn_body(0, 0, 0, 0);
    }
    uint32_t run = ldr_runs_new(&d->t, above, depth, &print, 1, class);
    if (run == LDR_NIL) {
        return LDR_NIL;
    }
    if (above != LDR_NIL) {
        d->t.runs[run].turn = d->t.runs[above].turn;
        d->t.runs[run].tokens = d->t.runs[above].tokens;
        d->t.runs[above].fan += d->t.runs[above].fan < 255;
    }
    d->t.runs[run].uses = 1;
    return run;
}

static void default_remove(ldr_policy_t *policy, uint32_t slot)
{
    ldr_default_t *d = (ldr_default_t *)policy;

    if (is_present(d, slot)) {
        ldr_runs_take(&d->t, slot);
    }
}

static void default_place(ldr_policy_t *policy, uint32_t slot, uint32_t parent,
                          uint32_t depth, uint64_t print)
{
    ldr_default_t *d = (ldr_default_t *)policy;

    if (slot >= d->t.slot_max) {
        return;
    }
    default_remove(policy, slot);
    depth %= LDR_RUN_DEPTHS;
    uint32_t run = locate(d, parent, depth, ldr_runs_fold(print));
    if (run == LDR_NIL) {
        run = make_place(d, parent, depth, print);
    }
    if (run == LDR_NIL || d->t.runs[run].resident >= RUN_SLOTS_MAX) {
        run = LDR_RUN_STRAY;
        depth = LDR_RUN_DEPTHS - 1;
    }
    ldr_runs_put(&d->t, slot, run, depth,
                 is_present(d, parent) ? parent : LDR_NIL);
}

static void default_add(ldr_policy_t *policy, uint32_t slot, uint32_t parent,
                        uint32_t depth)
{
    ldr_default_t *d = (ldr_default_t *)policy;

    d->made_up += 0x9e3779b97f4a7c15u;
    default_place(policy, slot, parent, depth, d->made_up);
}

static void set_held(ldr_default_t *d, uint32_t slot, uint32_t held)
{
    if (is_present(d, slot) && d->t.slots[slot].held != held) {
        uint32_t run = d->t.slots[slot].run;
        ldr_run_t *r = &d->t.runs[run];

        d->t.slots[slot].held = held & 1;
        r->held = (uint16_t)(held != 0 ? r->held + 1 : r->held - 1);
        ldr_runs_settle(&d->t, run);
    }
}

static void default_hold(ldr_policy_t *policy, uint32_t slot)
{
    set_held((ldr_default_t *)policy, slot, 1);
}

static void default_release(ldr_policy_t *policy, uint32_t slot)
{
    set_held((ldr_default_t *)policy, slot, 0);
}

static void default_touch(ldr_policy_t *policy, const uint32_t *slots,
                          uint32_t count)
{
    ldr_default_t *d = (ldr_default_t *)policy;

    d->t.stamp++;
    while (count > 0) {
        uint32_t slot = slots[--count];

        touch_run(d, is_present(d, slot) ? d->t.slots[slot].run : LDR_NIL);
    }
}

/* A read that no request has told of: it is what there is to learn from. Those
 * above the run can only be victims once it is gone: they are told once in a
 * while. */
static void default_used(ldr_policy_t *policy, uint32_t slot)
{
    ldr_default_t *d = (ldr_default_t *)policy;
    ldr_runs_t *t = &d->t;
    uint32_t run = is_present(d, slot) ? t->slots[slot].run : LDR_NIL;
    bool first = true;

    if (run == LDR_NIL || run == LDR_RUN_STRAY ||
        t->runs[run].stamp == t->stamp ||
        (t->runs[run].told &&
         t->now_ds - t->runs[run].used_ds <= LDR_TOLD_DS)) {
        return;
    }
    t->stamp++;
    while (run != LDR_NIL) {
        ldr_run_t *r = &t->runs[run];
        uint32_t age_ds = t->now_ds - r->used_ds;

        if (age_ds <= LDR_RECENT_DS && !first) {
            return;
        }
        if (age_ds > LDR_RECENT_DS) {
            ldr_learn_use(t->learn, r->class, age_ds,
                          ldr_runs_weight(r->length));
            r->uses = (uint8_t)(r->uses < 255 ? r->uses + 1 : 255);
        }
        ldr_runs_tell(t, run);
        ldr_runs_restamp(t, run, r->class, t->stamp);
        r->told = 0;
        run = ldr_limb(t, run)->parent;
        first = false;
    }
}

/* First where its run is listed, then the run, then those beside it. */
static void default_soon(const ldr_policy_t *policy, uint64_t print,
                         unsigned step)
{
    const ldr_runs_t *t = &((const ldr_default_t *)policy)->t;

    if (t->run_top < SOON_LEAST) {
        return;
    }
    uint32_t hash = ldr_runs_hash(LDR_NIL, ldr_runs_fold(print));
    const uint32_t *bucket = ldr_runs_bucket(t, hash);
    if (step >= 2) {
        __builtin_prefetch(bucket);
        ldr_ghost_soon(t, ldr_runs_fold(print), step);
        return;
    }
    uint32_t link = *bucket;
    bool other = link == 0 || ((link ^ hash) & ~t->link_mask) != 0;
    if (step == 1 || other) {
        ldr_ghost_soon(t, ldr_runs_fold(print), step);
    }
    if (link != 0 && other) {
        const uint32_t *next = &t->runs[ldr_runs_linked(t, link)].link;

        if (step == 1) {
            __builtin_prefetch(next);
        } else if (*next != 0) {
            ldr_runs_fetch(t, ldr_runs_linked(t, *next));
        }
        return;
    }
    if (link == 0) {
        return;
    }
    const ldr_run_t *r = &t->runs[ldr_runs_linked(t, link)];
    if (step == 1) {
        ldr_runs_fetch(t, ldr_runs_linked(t, link));
        return;
    }
    if (r->left != LDR_NIL) {
        ldr_runs_fetch(t, r->left);
    }
    if (r->right != LDR_NIL) {
        ldr_runs_fetch(t, r->right);
    }
}

static void note_full(ldr_default_t *d)
{
    uint64_t chunks = d->t.queues[LDR_VIEW_REAL].resident - d->t.twins;

    d->seen = chunks > 0 ? chunks : 1;
}

static bool default_admit(ldr_policy_t *policy, uint32_t parent, uint32_t depth,
                          uint64_t print)
{
    ldr_default_t *d = (ldr_default_t *)policy;

    depth %= LDR_RUN_DEPTHS;
    uint32_t run = locate(d, parent, depth, ldr_runs_fold(print));
    note_full(d);
    if (run == LDR_NIL) {
        d->wanted = d->t.stamp + 1; /* nobody's */
        return true;
    }
    d->wanted = d->t.runs[run].stamp;
    ldr_told_t *told = told_of(d, run);
    if (told != NULL && depth >= told->refused) {
        return false; /* of no use without those above it */
    }
    uint32_t above = ldr_runs_above(&d->t, run, depth,
                                    is_present(d, parent) ? parent : LDR_NIL);
    if (above != LDR_NIL && d->t.slots[above].depth == depth) {
        return true; /* and of no use without this one */
    }
    uint32_t v = ldr_runs_best(&d->t, d->wanted);
    if (v == LDR_NIL && ldr_runs_best(&d->t, d->t.stamp + 1) == LDR_NIL) {
        return true; /* all is held: that may pass */
    }
    bool good = v != LDR_NIL && (d->t.queues[LDR_VIEW_REAL].lru ||
                                 ldr_runs_worth(&d->t, v) <=
                                     (double)ldr_default_first_worth(d, run));
    if (!good && told != NULL) {
        told->refused = depth;
    }
    return good;
}

/* When no run is free to lose a chunk: one that has others below it, or that
 * is held in part. */
static uint32_t victim_blocked(const ldr_default_t *d)
{
    if (d->t.blocked == LDR_NIL) {
        return LDR_NIL;
    }
    uint32_t slot = d->t.runs[d->t.blocked].tail;

    while (slot != LDR_NIL && d->t.slots[slot].held) {
        slot = d->t.slots[slot].up;
    }
    return slot;
}

static uint32_t default_victim(ldr_policy_t *policy)
{
    ldr_default_t *d = (ldr_default_t *)policy;
    uint32_t run = ldr_runs_best(&d->t, d->wanted);

    note_full(d);
    if (run == LDR_NIL) {
        run = ldr_runs_best(&d->t, d->t.stamp + 1);
    }
    return run != LDR_NIL ? d->t.runs[run].tail : victim_blocked(d);
}

/* ---- the table ---- */

static uint32_t default_keep(const ldr_policy_record_t *record)
{
    return ldr_policy_lru.keep(record);
}

static void default_destroy(ldr_policy_t *policy)
{
    ldr_default_t *d = (ldr_default_t *)policy;

    if (d != NULL) {
        ldr_runs_destroy(&d->t);
        ldr_free(d);
    }
}

static ldr_policy_t *default_create(uint32_t capacity)
{
    ldr_default_t *d = ldr_alloc(sizeof(*d));

    if (d == NULL) {
        return NULL;
    }
    d->base.ops = &ldr_policy_default;
    if (!ldr_runs_init(&d->t, capacity < SLOTS_MAX ? capacity : SLOTS_MAX)) {
        ldr_free(d);
        return NULL;
    }
    d->room = d->t.slot_max;
    /* Of slots for which there is no other run: LDR_RUN_STRAY. */
    ldr_runs_new(&d->t, LDR_NIL, LDR_NIL, NULL, 0, LDR_CLASS_STRAY);
    d->t.stamp = 1;
    d->rebuild_left = LDR_REBUILD_LEAST;
    d->t.queues[LDR_VIEW_REAL].lru = true; /* until the other leads */
    return &d->base;
}

void ldr_policy_default_stats(const ldr_policy_t *policy,
                              ldr_policy_stats_t *out)
{
    const ldr_default_t *d = (const ldr_default_t *)policy;
    const ldr_runs_t *t = &d->t;

    *out = (ldr_policy_stats_t){
        .runs = t->run_count + t->ghosts.count,
        .ghosts = t->ghost_count + t->ghosts.count,
        .ghost_chunks = t->ghost_chunks,
        .bytes = (uint64_t)t->run_top * sizeof(ldr_run_t) +
                 (uint64_t)t->node_top * sizeof(ldr_prints_t) +
                 t->queues[LDR_VIEW_REAL].resident * sizeof(ldr_run_slot_t) +
                 (uint64_t)t->limb_top * sizeof(ldr_limb_t) +
                 (uint64_t)t->bucket_count * sizeof(uint32_t) +
                 ldr_ghost_bytes(t),
        .fixed_bytes = sizeof(*d) + sizeof(*t->learn) +
                       (uint64_t)t->shade_top * sizeof(ldr_shade_t) +
                       LDR_SHADE_BUCKETS * sizeof(uint32_t),
        .told = d->told_next,
        .requests = d->judged,
        .hits_learned = d->hits_learned,
        .hits_lru = d->hits_lru,
        .sample = t->lot_mask + 1,
        .ranks_lru = t->queues[LDR_VIEW_REAL].lru,
        .switches = d->switches,
    };
}

bool ldr_policy_default_check(const ldr_policy_t *policy)
{
    const ldr_default_t *d = (const ldr_default_t *)policy;

    return ldr_runs_check(&d->t);
}

const ldr_policy_ops_t ldr_policy_default = {
    .name = "learned",
    .create = default_create,
    .destroy = default_destroy,
    .add = default_add,
    .hold = default_hold,
    .release = default_release,
    .touch = default_touch,
    .remove = default_remove,
    .victim = default_victim,
    .keep = default_keep,
    .time = ldr_default_time,
    .request = ldr_default_request,
    .admit = default_admit,
    .place = default_place,
    .close = ldr_default_close,
    .used = default_used,
    .soon = default_soon,
};
