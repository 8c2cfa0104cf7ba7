/*
 * What a request does to the learned policy. It is matched against the runs
 * that are known, resident or not. What it finds has been used again, which
 * teaches; what it adds becomes new runs; all of them get the class of the
 * request: which turn of its session this is, and how much it has grown since
 * the last. Then the guard says who ranks from now on.
 */
#include "store/policy_learned.h"

#define REBUILD_LEAST 50u /* requests between new tables */
#define REBUILD_MOST 3200u
#define FADE 0.993f /* for each REBUILD_LEAST requests */

#define SHARED_FAN 10u    /* ways to go on that make a run a shared one */
#define SUPERSEDE_MAX 64u /* runs of an abandoned branch that are looked at */

/* What a request is, for the classes. */
typedef struct traits {
    uint32_t app;
    uint32_t turn;
    uint32_t growth; /* level */
    uint32_t tokens;
    bool closed, template;
    bool ranked; /* false: all are of one class, since LRU knows no other */
} traits_t;

/* ---- classes ---- */

/* 1, 2, 3, 4, 5-7, 8-15, 16-63, more. */
static uint32_t turn_level(uint32_t turn)
{
    return turn < 1     ? 0u
           : turn <= 4  ? turn - 1
           : turn <= 7  ? 4u
           : turn <= 15 ? 5u
           : turn <= 63 ? 6u
                        : 7u;
}

/* Of tokens since the last turn; 0: there was none. */
static uint32_t growth_level(int64_t tokens)
{
    return tokens <= 0 ? 3u : tokens < 300 ? 4u : tokens < 2048 ? 5u : 6u;
}

static uint32_t class_shared(uint32_t gap, uint32_t uses)
{
    uint32_t level = 0;

    while (level + 1 < LDR_GAPS && gap >= 16u << 2 * level) {
        level++;
    }
    return LDR_CLASS_SHARED + level * LDR_USES +
           (uses <= 2   ? 0u
            : uses <= 5 ? 1u
                        : 2u);
}

static uint32_t class_of(const ldr_run_t *r, const traits_t *traits,
                         uint32_t gap)
{
    if (!traits->ranked) {
        return ldr_class_session(0, 0, 0);
    }
    if (r->fan >= SHARED_FAN || (r->flags & LDR_RUN_TEMPLATE) != 0) {
        return class_shared(gap, r->uses);
    }
    if (traits->closed && r->fan <= 1) {
        return LDR_CLASS_CLOSED;
    }
    if ((r->flags & LDR_RUN_LAST) != 0) {
        return LDR_CLASS_LAST;
    }
    return ldr_class_session(traits->app, turn_level(r->turn), traits->growth);
}

/* Which turn this is, and how much longer than the one before. */
static traits_t traits_of(const ldr_learned_t *d, const ldr_policy_request_t *r)
{
    uint64_t tokens = r->tokens;
    traits_t traits = {
        .app = r->hint & LDR_HINT_APP,
        .turn = 1,
        .closed = (r->hint & LDR_HINT_CLOSED) != 0,
        .template = (r->hint & LDR_HINT_TEMPLATE) != 0,
        .ranked = d->learns,
    };

    if (tokens == 0) {
        tokens =
            (uint64_t)r->count * (r->chunk_tokens > 0 ? r->chunk_tokens : 512);
    }
    traits.tokens =
        tokens < LDR_RUN_TOKENS_MAX ? (uint32_t)tokens : LDR_RUN_TOKENS_MAX;
    traits.growth = traits.tokens <= 2048   ? 0u
                    : traits.tokens <= 8192 ? 1u
                                            : 2u;
    if (d->path_count > 0) {
        const ldr_run_t *tail = &d->t.runs[d->path[d->path_count - 1]];

        if (tail->fan <= 1) {
            traits.turn = tail->turn < 255 ? tail->turn + 1u : 255;
            traits.growth = growth_level((int64_t)traits.tokens - tail->tokens);
        }
    }
    return traits;
}

/* ---- the chain ---- */

/* The runs of the chain that are known go into path. Split: the last one is cut
 * where the chain leaves it; else it is in the path if nothing follows it, as
 * is so when it has grown by what was decoded. Gives the number of chunks. */
static uint32_t chain_walk(ldr_learned_t *d, const ldr_policy_request_t *r,
                           bool split)
{
    ldr_tree_t *t = &d->t;
    uint32_t parent = LDR_NIL;
    uint32_t i = 0;

    d->path_count = 0;
    while (i < r->count && d->path_count < LDR_PATH_MAX - 2) {
        uint32_t run = ldr_run_find(t, parent, i, ldr_print_fold(r->prints[i]));

        if (run == LDR_NIL) {
            break;
        }
        uint32_t n = ldr_run_match(&t->runs[run], r->prints + i, r->count - i);
        bool whole = n == t->runs[run].length;

        if (!whole && split) {
            run = ldr_run_split(t, run, n);
        } else if (!whole &&
                   (i + n < r->count || t->runs[run].child != LDR_NIL)) {
            run = LDR_NIL;
        }
        if (run == LDR_NIL) {
            break;
        }
        d->path[d->path_count++] = run;
        parent = run;
        i += n;
        if (!whole) {
            break;
        }
    }
    return i;
}

void ldr_learned_use(ldr_learned_t *d, uint32_t run, uint32_t class)
{
    const ldr_run_t *r = &d->t.runs[run];

    ldr_stack_use(&d->stack, r->stamp, d->t.stamp, r->length);
    ldr_run_restamp(&d->t, run, class, d->t.stamp);
}

/* Before rebuild: what uses teach. */
static void path_teach(ldr_learned_t *d)
{
    for (uint32_t i = 0; i < d->path_count; i++) {
        const ldr_run_t *r = &d->t.runs[d->path[i]];

        ldr_hazard_use(d->t.hazard, r->class, ldr_run_age(&d->t, d->path[i]),
                       ldr_run_weight(r));
        ldr_run_count_wait(&d->t, d->path[i]);
    }
}

/* What was known of the chain has been used. */
static void path_used(ldr_learned_t *d, const traits_t *traits)
{
    for (uint32_t i = 0; i < d->path_count; i++) {
        uint32_t run = d->path[i];
        ldr_run_t *r = &d->t.runs[run];

        r->uses = (uint8_t)(r->uses < 255 ? r->uses + 1 : 255);
        r->turn = (uint8_t)(r->uses > traits->turn ? r->uses : traits->turn);
        r->tokens = traits->tokens & LDR_RUN_TOKENS_MAX;
        r->flags |= LDR_RUN_ANNOUNCED;
        ldr_learned_use(d, run, class_of(r, traits, ldr_run_age(&d->t, run)));
    }
}

static bool add_run(ldr_learned_t *d, const ldr_policy_request_t *r,
                    const traits_t *traits, uint32_t from, uint32_t length,
                    bool last)
{
    uint32_t parent = d->path_count > 0 ? d->path[d->path_count - 1] : LDR_NIL;
    ldr_run_t like = {
        .uses = 1,
        .turn = (uint8_t)traits->turn,
        .flags = (uint8_t)(last               ? LDR_RUN_LAST
                           : traits->template ? LDR_RUN_TEMPLATE
                                              : 0),
    };
    uint32_t run = ldr_run_new(&d->t, parent, from, r->prints + from, length,
                               class_of(&like, traits, 0));

    if (run == LDR_NIL) {
        return false;
    }
    ldr_run_t *at = &d->t.runs[run];
    at->uses = like.uses;
    at->turn = like.turn;
    at->tokens = traits->tokens & LDR_RUN_TOKENS_MAX;
    if (last) { /* these are elsewhere among the ghosts */
        ldr_run_lift(&d->t, run);
    }
    at->flags |= like.flags | LDR_RUN_ANNOUNCED;
    ldr_run_settle(&d->t, run);
    if (parent != LDR_NIL && !last && d->t.runs[parent].fan < 255) {
        d->t.runs[parent].fan++;
    }
    ldr_stack_use(&d->stack, 0, d->t.stamp, length);
    d->path[d->path_count++] = run;
    return true;
}

/* Runs for the rest of the chain, and one for a last chunk that is not full. */
static void path_extend(ldr_learned_t *d, const ldr_policy_request_t *r,
                        const traits_t *traits, uint32_t from)
{
    bool last = r->chunk_tokens > 0 && r->tokens > 0 &&
                (uint64_t)r->count * r->chunk_tokens > r->tokens;
    uint32_t end = r->count - last;

    while (from < end && d->path_count < LDR_PATH_MAX - 1) {
        uint32_t length =
            end - from < LDR_RUN_CHUNKS ? end - from : LDR_RUN_CHUNKS;

        if (!add_run(d, r, traits, from, length, false)) {
            return;
        }
        from += length;
    }
    if (last && from + 1 == r->count) {
        add_run(d, r, traits, from, 1, true);
    }
}

/* Nobody will come for it: but it was not used, only left. */
static void run_leave(ldr_learned_t *d, uint32_t run, uint32_t class)
{
    ldr_run_count_wait(&d->t, run);
    ldr_run_restamp(&d->t, run, class, d->t.stamp - 1);
    d->t.runs[run].flags &= (uint8_t)~LDR_RUN_ANNOUNCED;
}

/* A session goes on from here in another way than before: what it left behind
 * is an abandoned edit, or a last chunk that has been filled since. */
static void supersede(ldr_learned_t *d, uint32_t tail, uint32_t keep)
{
    const ldr_run_t *runs = d->t.runs;
    uint32_t at = runs[tail].child;

    for (uint32_t left = SUPERSEDE_MAX; at != LDR_NIL && left > 0; left--) {
        bool known = at == keep || runs[at].class == LDR_CLASS_SUPERSEDED;

        if (!known) {
            run_leave(d, at, LDR_CLASS_SUPERSEDED);
        }
        if (!known && runs[at].child != LDR_NIL) {
            at = runs[at].child;
            continue;
        }
        while (at != tail && runs[at].next == LDR_NIL) {
            at = runs[at].parent;
        }
        at = at != tail ? runs[at].next : LDR_NIL;
    }
}

/* ---- requests ---- */

static bool is_repeated(ldr_learned_t *d, const ldr_policy_request_t *r)
{
    uint64_t print = r->prints[r->count - 1];
    uint64_t key = r->id != 0 ? r->id : print ^ print >> 17;
    ldr_recent_t *e = &d->recent[key % LDR_RECENT];
    bool same = e->count == r->count && e->print == print && e->id == r->id &&
                (r->id != 0 || d->t.now_ds - e->seen_ds <= LDR_AGAIN_DS);

    *e = (ldr_recent_t){r->id, print, r->count, d->t.now_ds};
    return same;
}

/* A save of a chain that was announced lately, if perhaps not to its
 * end: what goes on from no other's run is that session's. */
static bool is_announced(ldr_learned_t *d, const ldr_policy_request_t *r)
{
    chain_walk(d, r, false);
    if (d->path_count == 0) {
        return false;
    }
    const ldr_run_t *tail = &d->t.runs[d->path[d->path_count - 1]];

    return (tail->flags & LDR_RUN_ANNOUNCED) != 0 && tail->child == LDR_NIL &&
           d->t.now_ds - tail->used_ds <= LDR_ANNOUNCED_DS;
}

static void tables_rebuild(ldr_learned_t *d)
{
    uint32_t period = d->t.stamp / 32;
    float fade = 1;

    ldr_tree_count_waits(&d->t);
    period = period < REBUILD_LEAST  ? REBUILD_LEAST
             : period > REBUILD_MOST ? REBUILD_MOST
                                     : period;
    for (uint32_t i = 0; i < period / REBUILD_LEAST; i++) {
        fade *= FADE;
    }
    ldr_hazard_rebuild(d->t.hazard, fade);
    ldr_tree_rank(&d->t, d->t.lru);
    d->rebuild_left = period;
}

void ldr_learned_request(ldr_policy_t *policy, const ldr_policy_request_t *r)
{
    ldr_learned_t *d = (ldr_learned_t *)policy;
    ldr_tree_t *t = &d->t;

    if (r->count == 0 || (r->saves && is_announced(d, r)) ||
        is_repeated(d, r)) {
        return;
    }
    t->stamp++;
    uint32_t known = chain_walk(d, r, true);
    if (d->learns) {
        path_teach(d);
    }
    if (d->learns && d->rebuild_left-- == 0) {
        tables_rebuild(d);
    }
    uint32_t count = d->path_count;
    uint32_t tail = count > 0 ? d->path[count - 1] : LDR_NIL;
    traits_t traits = traits_of(d, r);
    ldr_guard_hits_t hits = ldr_guard_look(d);

    path_used(d, &traits);
    path_extend(d, r, &traits, known);
    if (d->learns && count > 0 && d->path_count > count &&
        t->runs[tail].fan <= 2) {
        supersede(d, tail, d->path[count]);
    }
    d->wanted = t->stamp;
    d->announced[d->announced_next++ % LDR_ANNOUNCED_MAX] = (ldr_announced_t){
        .stamp = t->stamp,
        .tail = d->path_count > 0 ? d->path[d->path_count - 1] : LDR_NIL,
        .refused = LDR_NIL,
    };
    ldr_guard_judge(d, &hits);
}

void ldr_learned_close(ldr_policy_t *policy, const ldr_policy_request_t *r)
{
    ldr_learned_t *d = (ldr_learned_t *)policy;

    /* LRU does not know that a session is over. */
    if (!d->learns || r->count == 0 || chain_walk(d, r, false) == 0) {
        return;
    }
    for (uint32_t i = d->path_count; i-- > 0;) {
        const ldr_run_t *at = &d->t.runs[d->path[i]];

        if (at->fan > 1 || (at->flags & LDR_RUN_TEMPLATE) != 0) {
            break;
        }
        run_leave(d, d->path[i], LDR_CLASS_CLOSED);
    }
}
