#include "store/policy_runs.h"

#include "base/mem.h"

#define RUNS_PER_SLOT 2u /* as many resident, and as many ghosts */
#define RUNS_LEAST 1024u /* a power of two */
#define BUCKETS_MAX ((uint32_t)1 << 27)
#define SAMPLE_MAX 2048u /* runs that are told of in one pass, about */
#define TRIM_TRIES 16u
#define AWAKE_PART 64u /* of the ghosts: those that are still runs */
#define AWAKE_LEAST 64u
#define HUGE_LEAST 131072u /* slots: where what a page may waste is little */
#define JOIN_MAX 64u       /* chunks; what is joined is written anew */

/* ---- the forest ---- */

static uint32_t hash_of(const ldr_runs_t *t, uint32_t run)
{
    return ldr_runs_hash(ldr_limb(t, run)->parent, t->runs[run].first);
}

/* One bucket more: some of what is in another belongs there. */
static void bucket_split(ldr_runs_t *t)
{
    uint32_t from = t->bucket_count - t->bucket_mask - 1;
    uint32_t link = t->buckets[from];

    t->buckets[from] = 0;
    t->buckets[t->bucket_count++] = 0;
    while (link != 0) {
        uint32_t run = ldr_runs_linked(t, link);
        uint32_t next = t->runs[run].link;
        uint32_t *bucket = ldr_runs_bucket(t, hash_of(t, run));

        t->runs[run].link = *bucket;
        *bucket = link;
        link = next;
    }
    if (t->bucket_count == 2 * (t->bucket_mask + 1)) {
        t->bucket_mask = t->bucket_mask * 2 + 1;
    }
}

static void bucket_add(ldr_runs_t *t, uint32_t run)
{
    uint32_t hash = hash_of(t, run);

    if (t->run_count > t->bucket_count && t->bucket_count < t->bucket_max) {
        bucket_split(t);
    }
    uint32_t *bucket = ldr_runs_bucket(t, hash);

    t->runs[run].link = *bucket;
    *bucket = (run + 1) | (hash & ~t->link_mask);
}

static void bucket_remove(ldr_runs_t *t, uint32_t run)
{
    uint32_t *link = ldr_runs_bucket(t, hash_of(t, run));

    while (ldr_runs_linked(t, *link) != run) {
        link = &t->runs[ldr_runs_linked(t, *link)].link;
    }
    *link = t->runs[run].link;
}

static void child_add(ldr_runs_t *t, uint32_t parent, uint32_t run)
{
    if (parent == LDR_NIL && t->runs[run].limb == 0) {
        return;
    }
    ldr_limb_t *l = ldr_limb_need(t, run);
    l->parent = parent;
    l->prev = l->next = LDR_NIL;
    if (parent == LDR_NIL) {
        return;
    }
    uint32_t *head = &ldr_limb_need(t, parent)->child;
    l->next = *head;
    if (*head != LDR_NIL) {
        ldr_limb(t, *head)->prev = run;
    }
    *head = run;
}

static void child_remove(ldr_runs_t *t, uint32_t run)
{
    const ldr_limb_t *l = ldr_limb(t, run);

    if (l->parent == LDR_NIL) { /* in no such list */
        return;
    }
    if (l->prev != LDR_NIL) {
        ldr_limb(t, l->prev)->next = l->next;
    } else if (l->parent != LDR_NIL) {
        ldr_limb(t, l->parent)->child = l->next;
    }
    if (l->next != LDR_NIL) {
        ldr_limb(t, l->next)->prev = l->prev;
    }
}

static void run_give(ldr_runs_t *t, uint32_t run)
{
    uint32_t limb = t->runs[run].limb;

    if (limb != 0) {
        t->limbs[limb].next = t->limb_free;
        t->limb_free = limb;
    }
    t->runs[run].limb = 0;
    t->runs[run].flags = 0;
    t->runs[run].left = t->run_free;
    t->run_free = run;
    t->run_count--;
}

/* A ghost without children goes: to rest, if it may be of use again. */
static void rest(ldr_runs_t *t, uint32_t run)
{
    ldr_runs_tell(t, run);
    ldr_runs_lift(t, run);
    bucket_remove(t, run);
    child_remove(t, run);
    /* Hardly any next turn has a last chunk that was not full. */
    if ((t->runs[run].flags & LDR_RUN_LAST) != 0 || !ldr_ghost_keep(t, run)) {
        ldr_prints_free(t, run);
    }
    run_give(t, run);
}

/* Those that still have children go round, and come when those are gone. */
bool ldr_runs_rest(ldr_runs_t *t)
{
    uint32_t run = t->ghost_head;

    for (uint32_t i = 0; i < TRIM_TRIES && run != LDR_NIL; i++) {
        uint32_t next = t->runs[run].left;

        if (run != LDR_RUN_STRAY && run != t->busy &&
            ldr_limb(t, run)->child == LDR_NIL &&
            t->runs[run].stamp != t->stamp) {
            rest(t, run);
            return true;
        }
        if (t->runs[run].stamp != t->stamp) {
            ldr_runs_ghost_last(t, run);
        }
        run = next;
    }
    return false;
}

/* A last chunk that was not full. */
static bool is_worthless(const ldr_runs_t *t, uint32_t ghost)
{
    return ghost != LDR_NIL && (t->runs[ghost].flags & LDR_RUN_LAST) != 0 &&
           ldr_limb(t, ghost)->child == LDR_NIL &&
           t->runs[ghost].stamp != t->stamp;
}

/* Of the ghosts that go to rest next: what is in its bucket and where it will
 * be, the bucket, the run. */
static void fetch_next(const ldr_runs_t *t)
{
    uint32_t run = t->ghost_head;

    if (run == LDR_NIL || t->runs[run].left == LDR_NIL) {
        return;
    }
    uint32_t link = *ldr_runs_bucket(t, hash_of(t, run));
    if (link != 0) {
        __builtin_prefetch(&t->runs[ldr_runs_linked(t, link)]);
    }
    if (ldr_limb(t, run)->parent == LDR_NIL) {
        ldr_ghost_soon(t, t->runs[run].first, 2);
    }
    run = t->runs[run].left;
    __builtin_prefetch(ldr_runs_bucket(t, hash_of(t, run)));
    if (t->runs[run].left != LDR_NIL) {
        ldr_runs_fetch(t, t->runs[run].left);
    }
}

void ldr_runs_trim(ldr_runs_t *t, uint32_t runs, uint64_t chunks)
{
    uint32_t awake = runs / AWAKE_PART + AWAKE_LEAST;
    bool any = false;

    while ((t->ghost_count > awake || is_worthless(t, t->ghost_head)) &&
           ldr_runs_rest(t)) {
        any = true;
    }
    while (
        (t->ghost_count + t->ghosts.count > runs || t->ghost_chunks > chunks) &&
        (ldr_ghost_drop(t) || ldr_runs_rest(t))) {
    }
    if (any) {
        fetch_next(t);
    }
}

/* keep: who asks is at work with it. */
static uint32_t run_take(ldr_runs_t *t, uint32_t keep)
{
    uint32_t run = t->run_free;

    if (run == LDR_NIL && t->run_top == t->run_max) {
        t->busy = keep;
        ldr_runs_rest(t);
        t->busy = LDR_NIL;
        run = t->run_free;
    }
    if (run != LDR_NIL) {
        t->run_free = t->runs[run].left;
    } else if (t->run_top < t->run_max) {
        run = t->run_top++;
    } else {
        return LDR_NIL;
    }
    t->run_count++;
    return run;
}

/* What goes on from a run that at most one other does is of its session. */
static uint32_t lot_of(const ldr_runs_t *t, uint32_t parent, uint32_t first)
{
    if (parent != LDR_NIL && t->runs[parent].fan <= 1) {
        return t->runs[parent].lot;
    }
    return (first ^ first >> 16) * 0x45d9f3bu >> 20;
}

uint32_t ldr_runs_new(ldr_runs_t *t, uint32_t parent, uint32_t depth,
                      const uint64_t *prints, uint32_t length, uint32_t class)
{
    uint32_t run = run_take(t, parent);

    if (run == LDR_NIL) {
        return LDR_NIL;
    }
    t->runs[run] = (ldr_run_t){
        .first = length > 0 ? ldr_runs_fold(prints[0]) : 0,
        .used_ds = t->now_ds,
        .stamp = t->stamp,
        .tail = LDR_NIL,
        .length = (uint16_t)length,
        .class = (uint16_t)(class & 0xfff),
        .flags = LDR_RUN_USED,
    };
    t->runs[run].lot = lot_of(t, parent, t->runs[run].first);
    if (depth > 0 || length > 1) {
        ldr_limb_need(t, run)->depth = depth;
        ldr_limb(t, run)->last =
            length > 1 ? ldr_runs_fold(prints[length - 1]) : 0;
    }
    if (!ldr_prints_make(t, run, prints, length)) {
        run_give(t, run);
        return LDR_NIL;
    }
    child_add(t, parent, run);
    bucket_add(t, run);
    ldr_runs_settle(t, run);
    ldr_stack_use(&t->stack, 0, t->stamp, t->now_ds, length);
    return run;
}

/* Times: 1, or -1 for what will be told of once more. */
static void tell(ldr_runs_t *t, uint32_t run, float times)
{
    const ldr_run_t *r = &t->runs[run];
    uint32_t told = t->scan_ds - r->used_ds;

    if ((run & t->sample) == 0) {
        /* A run used since the last pass has told nothing yet. */
        ldr_learn_wait(t->learn, r->class, (int32_t)told > 0 ? told : 0,
                       t->now_ds - r->used_ds,
                       times * ldr_runs_weight(r->length) *
                           (float)(t->sample + 1));
    }
}

void ldr_runs_tell(ldr_runs_t *t, uint32_t run)
{
    tell(t, run, 1);
}

uint32_t ldr_runs_wake(ldr_runs_t *t, uint32_t parent, uint32_t depth,
                       uint32_t before, uint32_t first)
{
    ldr_run_t found;
    uint32_t prints, last;

    if (t->ghosts.count == 0 ||
        !ldr_ghost_take(t, before, first, &found, &prints, &last)) {
        return LDR_NIL;
    }
    uint32_t run = run_take(t, parent);
    if (run == LDR_NIL) {
        ldr_prints_give(t, prints);
        return LDR_NIL;
    }
    t->runs[run] = found;
    t->runs[run].stamp = ldr_stack_stamp(&t->stack, t->stamp, found.used_ds);
    if (depth > 0 || found.length > 1) {
        ldr_limb_t *l = ldr_limb_need(t, run);

        l->depth = depth;
        l->prints = prints;
        l->last = last;
    }
    child_add(t, parent, run);
    bucket_add(t, run);
    ldr_runs_settle(t, run);
    tell(t, run, -1); /* up to now it has been told of */
    return run;
}

uint32_t ldr_runs_find(const ldr_runs_t *t, uint32_t parent, uint32_t depth,
                       uint32_t first)
{
    uint32_t hash = ldr_runs_hash(parent, first);
    uint32_t link = *ldr_runs_bucket(t, hash);

    while (link != 0) {
        uint32_t run = ldr_runs_linked(t, link);

        if (((link ^ hash) & ~t->link_mask) == 0 &&
            ldr_runs_is_at(t, run, parent, depth, first)) {
            return run;
        }
        link = t->runs[run].link;
    }
    return LDR_NIL;
}

/* ---- splitting ---- */

/* The first slot of the run at or below that depth, or LDR_NIL. */
static uint32_t slot_from(const ldr_runs_t *t, uint32_t run, uint32_t depth)
{
    uint32_t found = LDR_NIL;

    for (uint32_t i = t->runs[run].tail;
         i != LDR_NIL && t->slots[i].depth >= depth; i = t->slots[i].up) {
        found = i;
    }
    return found;
}

/* The slots above that depth, and what they count for, go to the upper run. */
static void slots_part(ldr_runs_t *t, uint32_t run, uint32_t upper,
                       uint32_t depth)
{
    ldr_run_t *r = &t->runs[run], *u = &t->runs[upper];
    uint32_t from = slot_from(t, run, depth);
    uint32_t above = from != LDR_NIL ? t->slots[from].up : r->tail;

    u->tail = above;
    u->held = u->resident = 0;
    if (from != LDR_NIL) {
        t->slots[from].up = LDR_NIL;
    } else {
        r->tail = LDR_NIL;
    }
    if (above != LDR_NIL) {
        t->slots[above].down = LDR_NIL;
    }
    for (uint32_t i = above; i != LDR_NIL; i = t->slots[i].up) {
        t->slots[i].run = upper;
        u->resident++;
        u->held = (uint16_t)(u->held + t->slots[i].held);
    }
    r->resident = (uint16_t)(r->resident - u->resident);
    r->held = (uint16_t)(r->held - u->held);
}

/* After the cut: what is resident of both parts. */
static void views_part(ldr_runs_t *t, uint32_t run, uint32_t upper)
{
    ldr_run_t *r = &t->runs[run], *u = &t->runs[upper];
    uint32_t parent = ldr_limb(t, upper)->parent;

    slots_part(t, run, upper, ldr_limb(t, run)->depth);
    ldr_limb(t, upper)->kids = r->resident > 0;
    /* The parent counted the run; now it counts the upper one. */
    if (u->resident == 0 && r->resident > 0 && parent != LDR_NIL) {
        ldr_limb(t, parent)->kids--;
        ldr_runs_settle(t, parent);
    }
    ldr_shade_split(t, run, upper);
}

uint32_t ldr_runs_split(ldr_runs_t *t, uint32_t run, uint32_t length,
                        uint32_t last)
{
    uint32_t upper = run_take(t, run);

    if (upper == LDR_NIL) {
        return LDR_NIL;
    }
    uint32_t parent = ldr_limb(t, run)->parent;
    ldr_runs_lift(t, run);
    bucket_remove(t, run);
    child_remove(t, run);
    ldr_run_t *r = &t->runs[run], *u = &t->runs[upper];
    *u = *r;
    u->limb = 0;
    *ldr_limb_need(t, upper) = *ldr_limb_need(t, run);
    if (!ldr_prints_split(t, run, upper, length, last)) {
        run_give(t, upper);
        upper = LDR_NIL;
        child_add(t, parent, run);
    } else {
        u->length = (uint16_t)length;
        ldr_limb(t, upper)->child = LDR_NIL;
        u->fan = (r->flags & LDR_RUN_LAST) == 0;
        u->flags &= (uint8_t)~LDR_RUN_LAST;
        ldr_limb(t, run)->depth += length;
        r->length = (uint16_t)(r->length - length);
        child_add(t, parent, upper);
        bucket_add(t, upper);
        child_add(t, upper, run);
        views_part(t, run, upper);
    }
    bucket_add(t, run);
    ldr_runs_settle(t, run);
    ldr_shade_settle(t, run);
    if (upper != LDR_NIL) {
        ldr_runs_settle(t, upper);
        ldr_shade_settle(t, upper);
    }
    return upper;
}

/* ---- joining ---- */

static bool may_join(const ldr_runs_t *t, uint32_t run, uint32_t below)
{
    const ldr_run_t *r = &t->runs[run], *b = &t->runs[below];
    uint8_t apart = LDR_RUN_LAST | LDR_RUN_TEMPLATE;
    uint32_t child = ldr_limb(t, below)->child;

    return run != LDR_RUN_STRAY && ldr_limb(t, run)->child == below &&
           ldr_limb(t, below)->next == LDR_NIL && r->fan <= 1 &&
           r->stamp == b->stamp && r->class == b->class && r->lot == b->lot &&
           ((r->flags | b->flags) & apart) == 0 &&
           r->length + b->length <= JOIN_MAX &&
           r->resident + b->resident < LDR_RUN_LENGTH_MAX &&
           (child == LDR_NIL || ldr_limb(t, child)->next == LDR_NIL);
}

/* The slots of the lower run are now the upper one's last. */
static void slots_join(ldr_runs_t *t, uint32_t run, uint32_t below)
{
    ldr_run_t *r = &t->runs[run], *b = &t->runs[below];
    uint32_t top = LDR_NIL;

    for (uint32_t i = b->tail; i != LDR_NIL; i = t->slots[i].up) {
        t->slots[i].run = run;
        top = i;
    }
    if (top == LDR_NIL) {
        return;
    }
    t->slots[top].up = r->tail;
    if (r->tail != LDR_NIL) {
        t->slots[r->tail].down = top;
    }
    r->tail = b->tail;
    /* A parent counts its children with something resident. */
    uint32_t parent = ldr_limb(t, run)->parent;
    if (r->resident == 0 && parent != LDR_NIL) {
        ldr_limb(t, parent)->kids++;
        ldr_runs_settle(t, parent);
    }
    r->resident = (uint16_t)(r->resident + b->resident);
    r->held = (uint16_t)(r->held + b->held);
}

bool ldr_runs_join(ldr_runs_t *t, uint32_t run, uint32_t below)
{
    ldr_run_t *r = &t->runs[run], *b = &t->runs[below];
    uint32_t child = ldr_limb(t, below)->child;

    if (!may_join(t, run, below)) {
        return false;
    }
    ldr_runs_lift(t, run);
    ldr_runs_lift(t, below);
    bool can = ldr_prints_join(t, run, below);
    if (can) {
        bucket_remove(t, below);
        slots_join(t, run, below);
        ldr_shade_join(t, run, below);
        ldr_runs_lift(t, below); /* without a record it was a ghost */
        ldr_limb(t, run)->kids = ldr_limb(t, below)->kids;
        r->fan = b->fan;
        r->uses = b->uses; /* its turn is the session's */
        r->turn = r->turn > b->turn ? r->turn : b->turn;
        ldr_limb(t, run)->child = child;
        if (child != LDR_NIL) {
            bucket_remove(t, child);
            ldr_limb(t, child)->parent = run;
            bucket_add(t, child);
        }
        run_give(t, below);
    } else {
        ldr_runs_settle(t, below);
        ldr_shade_settle(t, below);
    }
    ldr_runs_settle(t, run);
    ldr_shade_settle(t, run);
    return can;
}

/* ---- class and time ---- */

void ldr_runs_tell_all(ldr_runs_t *t)
{
    for (uint32_t run = 0; run < t->run_top; run += t->sample + 1) {
        if ((t->runs[run].flags & LDR_RUN_USED) != 0) {
            ldr_runs_tell(t, run);
        }
    }
    ldr_ghost_tell_all(t);
    t->scan_ds = t->now_ds;
    ldr_ghost_resample(t);
    while (t->run_top / (t->sample + 1) > SAMPLE_MAX) {
        t->sample = t->sample * 2 + 1;
    }
}

void ldr_runs_restamp(ldr_runs_t *t, uint32_t run, uint32_t class,
                      uint32_t stamp)
{
    ldr_run_t *r = &t->runs[run];

    if (stamp == t->stamp) { /* else it is not used, but abandoned */
        ldr_stack_use(&t->stack, r->stamp, stamp, t->now_ds, r->length);
    }
    ldr_runs_lift(t, run);
    r->class = (uint16_t) class;
    r->stamp = stamp;
    r->used_ds = t->now_ds;
    ldr_runs_settle(t, run);
    ldr_shade_settle(t, run);
}

/* ---- slots ---- */

uint32_t ldr_runs_above(const ldr_runs_t *t, uint32_t run, uint32_t depth,
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

/* The first slot of the run below that depth: only if none is above it. */
static uint32_t first_of(const ldr_runs_t *t, uint32_t run)
{
    uint32_t at = t->runs[run].tail;

    while (at != LDR_NIL && t->slots[at].up != LDR_NIL) {
        at = t->slots[at].up;
    }
    return at;
}

void ldr_runs_put(ldr_runs_t *t, uint32_t slot, uint32_t run, uint32_t depth,
                  uint32_t near)
{
    ldr_run_slot_t *s = &t->slots[slot];
    uint32_t up = ldr_runs_above(t, run, depth, near);
    uint32_t down = up != LDR_NIL ? t->slots[up].down : first_of(t, run);

    *s = (ldr_run_slot_t){
        .run = run,
        .up = up,
        .down = down,
        .depth = depth,
        .present = 1,
        .twin = up != LDR_NIL && t->slots[up].depth == depth,
    };
    t->twins += s->twin;
    if (up != LDR_NIL) {
        t->slots[up].down = slot;
    }
    if (down != LDR_NIL) {
        t->slots[down].up = slot;
    } else {
        t->runs[run].tail = slot;
    }
    ldr_runs_count(t, run, 1);
}

void ldr_runs_take(ldr_runs_t *t, uint32_t slot)
{
    ldr_run_slot_t *s = &t->slots[slot];
    ldr_run_t *r = &t->runs[s->run];
    uint32_t run = s->run;

    if (s->up != LDR_NIL) {
        t->slots[s->up].down = s->down;
    }
    if (s->down != LDR_NIL) {
        t->slots[s->down].up = s->up;
    } else {
        r->tail = s->up;
    }
    r->held = (uint16_t)(r->held - s->held);
    /* The next of its depth stands for it. */
    if (!s->twin && s->down != LDR_NIL && t->slots[s->down].twin) {
        t->slots[s->down].twin = 0;
        t->twins--;
    }
    t->twins -= s->twin;
    s->present = 0;
    ldr_runs_count(t, run, -1);
}

/* ---- beginning and end ---- */

/* The next part of the memory; without any: only how far it would reach. */
static void *carve(const ldr_runs_t *t, size_t *at, size_t count, size_t each)
{
    size_t from = (*at + 63) / 64 * 64;

    *at = from + count * each;
    return t->memory != NULL ? t->memory + from : NULL;
}

static size_t carve_all(ldr_runs_t *t)
{
    size_t at = 0;

    t->learn = carve(t, &at, 1, sizeof(*t->learn));
    t->runs = carve(t, &at, t->run_max, sizeof(*t->runs));
    t->limbs = carve(t, &at, (size_t)t->run_max + 1, sizeof(*t->limbs));
    t->nodes = carve(t, &at, t->node_max, sizeof(*t->nodes));
    t->slots = carve(t, &at, t->slot_max, sizeof(*t->slots));
    t->buckets = carve(t, &at, t->bucket_max, sizeof(*t->buckets));
    t->ghosts.all = carve(t, &at, t->ghosts.max, sizeof(*t->ghosts.all));
    t->ghosts.buckets =
        carve(t, &at, t->ghosts.max, sizeof(*t->ghosts.buckets));
    t->shades = carve(t, &at, LDR_SHADE_MAX, sizeof(*t->shades));
    t->shade_buckets =
        carve(t, &at, LDR_SHADE_BUCKETS, sizeof(*t->shade_buckets));
    return at;
}

bool ldr_runs_init(ldr_runs_t *t, uint32_t slot_max)
{
    uint64_t runs = (uint64_t)slot_max * RUNS_PER_SLOT + RUNS_LEAST +
                    (slot_max < LDR_SHADE_ROOM ? slot_max : LDR_SHADE_ROOM) * 2;
    t->slot_max = slot_max;
    t->run_max = (uint32_t)runs;
    t->link_mask = 1;
    while (t->link_mask <= t->run_max) {
        t->link_mask = t->link_mask * 2 + 1;
    }
    t->node_max = t->run_max + slot_max;
    ldr_ghost_init(t, slot_max + slot_max / 8 + RUNS_LEAST);
    t->bucket_max = t->run_max < BUCKETS_MAX ? t->run_max : BUCKETS_MAX;
    t->shade_room = LDR_SHADE_ROOM;
    t->bucket_count = RUNS_LEAST;
    t->bucket_mask = RUNS_LEAST - 1;
    t->run_free = t->node_free = t->blocked = LDR_NIL;
    t->ghost_head = t->ghost_tail = LDR_NIL;
    /* One piece: a simulation of many nodes has as many of these. */
    t->memory_bytes = carve_all(t);
    t->memory = slot_max >= HUGE_LEAST ? ldr_reserve_huge(t->memory_bytes)
                                       : ldr_reserve(t->memory_bytes);
    if (t->memory == NULL) {
        return false;
    }
    carve_all(t);
    t->limbs[0] =
        (ldr_limb_t){LDR_NIL, LDR_NIL, LDR_NIL, LDR_NIL, LDR_NIL, 0, 0, 0};
    t->limb_top = 1;
    t->queues[LDR_VIEW_LRU].lru = true;
    return true;
}

void ldr_runs_destroy(ldr_runs_t *t)
{
    ldr_unreserve(t->memory, t->memory_bytes);
}
