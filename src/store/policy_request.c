/*
 * A request is matched against the runs that are known, resident or not. What
 * it finds has been used again, which teaches; what it adds becomes new runs;
 * all of them get the class of the request: which turn of its session this is,
 * how much it has grown since the last, how long it is. Then the guard says who
 * ranks the real cache from now on.
 */
#include "store/policy_default.h"

#define SILENCE_DS 600u /* a pause of more may count as less */
#define SILENCE_GAPS 64u

#define REBUILD_MOST 3200u
#define FADE 0.993f /* for each LDR_REBUILD_LEAST requests */

#define SHARED_FAN 10u    /* ways to go on that make a run a shared one */
#define SUPERSEDE_MAX 64u /* runs of an abandoned branch that are looked at */

/* What a request is, for the classes. */
typedef struct ldr_traits {
    uint32_t app;
    uint32_t turn;
    uint32_t delta;
    uint32_t tokens;
    bool closed, template;
} ldr_traits_t;

/* ---- time ---- */

static void caches_stale(ldr_default_t *d)
{
    for (uint32_t v = 0; v < LDR_VIEWS; v++) {
        ldr_queue_stale(&d->t.queues[v]);
    }
}

/* The clock of the policy leaves out most of a silence that is long beside the
 * usual, or nothing would be as young again as what comes after it. */
void ldr_default_time(ldr_policy_t *policy, uint32_t now_ds)
{
    ldr_default_t *d = (ldr_default_t *)policy;
    int32_t by = d->raw_known ? (int32_t)(now_ds - d->raw_ds) : 0;
    float most = d->gap_mean * SILENCE_GAPS;

    if (by < 0) {
        return;
    }
    most = most > SILENCE_DS ? most : SILENCE_DS;
    d->raw_ds = now_ds;
    d->raw_known = true;
    if (by > 0) {
        d->t.now_ds += (float)by < most ? (uint32_t)by : (uint32_t)most;
    }
}

/* ---- classes ---- */

static uint32_t class_shared(uint32_t gap_ds, uint32_t uses)
{
    uint32_t gap = 0;

    while (gap + 1 < LDR_GAPS && gap_ds >= 16u << 2 * gap) {
        gap++;
    }
    return LDR_CLASS_SHARED + gap * LDR_USES +
           (uses <= 2   ? 0u
            : uses <= 5 ? 1u
                        : 2u);
}

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

static uint32_t class_of(const ldr_run_t *r, const ldr_traits_t *traits,
                         uint32_t gap_ds)
{
    bool shared = r->fan >= SHARED_FAN || (r->flags & LDR_RUN_TEMPLATE) != 0;

    if (shared) {
        return class_shared(gap_ds, r->uses);
    }
    if (traits->closed && r->fan <= 1) {
        return LDR_CLASS_CLOSED;
    }
    if ((r->flags & LDR_RUN_LAST) != 0) {
        return LDR_CLASS_LAST;
    }
    return ldr_learn_body(traits->app, turn_level(r->turn), traits->delta,
                          traits->tokens <= 1024    ? 0u
                          : traits->tokens <= 46080 ? 1u
                                                    : 2u);
}

/* Of a first turn all is new. */
static uint32_t delta_first(uint32_t tokens)
{
    return tokens <= 2048 ? 0u : tokens <= 8192 ? 1u : 2u;
}

static uint32_t delta_level(int64_t delta)
{
    return delta <= 0 ? 3u : delta < 300 ? 4u : delta < 2048 ? 5u : 6u;
}

/* ---- finding the chain ---- */

/* How many chunks of the run, which would begin at i, are in the chain. */
static uint32_t match(const ldr_default_t *d, const ldr_policy_request_t *r,
                      uint32_t run, uint32_t i)
{
    const ldr_run_t *at = &d->t.runs[run];

    if (at->length <= r->count - i &&
        ldr_runs_fold(r->prints[i + at->length - 1]) ==
            ldr_runs_last(&d->t, run)) {
        return at->length;
    }
    return ldr_prints_match(&d->t, run, r->prints + i, r->count - i);
}

/* The runs of the chain that are known go into path. Split: the last one is cut
 * where the chain leaves it; else it is in the path if nothing follows it, as
 * is so when it has grown by what was decoded. Gives the number of chunks. */
static uint32_t walk(ldr_default_t *d, const ldr_policy_request_t *r,
                     bool split)
{
    uint32_t parent = LDR_NIL;
    uint32_t i = 0;

    d->path_count = 0;
    while (i < r->count && d->path_count < LDR_PATH_MAX - 2) {
        uint32_t first = ldr_runs_fold(r->prints[i]);
        uint32_t run = ldr_runs_find(&d->t, parent, i, first);

        if (run == LDR_NIL) {
            run = ldr_runs_wake(&d->t, parent, i,
                                i > 0 ? ldr_runs_fold(r->prints[i - 1]) : 0,
                                first);
        }
        uint32_t n = run == LDR_NIL ? 0 : match(d, r, run, i);

        if (n == 0) {
            break;
        }
        if (n < d->t.runs[run].length) {
            if (split) {
                run = ldr_runs_split(&d->t, run, n,
                                     ldr_runs_fold(r->prints[i + n - 1]));
            } else if (i + n < r->count ||
                       ldr_limb(&d->t, run)->child != LDR_NIL) {
                run = LDR_NIL;
            }
            if (run != LDR_NIL) {
                d->path[d->path_count++] = run;
                i += n;
            }
            break;
        }
        d->path[d->path_count++] = run;
        parent = run;
        i += n;
    }
    return i;
}

/* ---- a request ---- */

static bool is_repeated(ldr_default_t *d, const ldr_policy_request_t *r)
{
    uint64_t print = r->prints[r->count - 1];
    uint64_t key = r->id != 0 ? r->id : print ^ print >> 17;
    ldr_recent_t *e = &d->recent[key % LDR_RECENT];
    uint32_t age_ds = d->t.now_ds - e->seen_ds;
    bool same = e->count == r->count && e->print == print && e->id == r->id &&
                (r->id != 0 || age_ds <= LDR_RECENT_DS);

    *e = (ldr_recent_t){r->id, print, r->count, d->t.now_ds};
    return same;
}

static void rebuild(ldr_default_t *d)
{
    uint32_t period = d->t.stamp / 32;
    float fade = 1;

    ldr_runs_tell_all(&d->t);
    period = period < LDR_REBUILD_LEAST ? LDR_REBUILD_LEAST
             : period > REBUILD_MOST    ? REBUILD_MOST
                                        : period;
    for (uint32_t i = 0; i < period / LDR_REBUILD_LEAST; i++) {
        fade *= FADE;
    }
    ldr_learn_rebuild(d->t.learn, fade);
    caches_stale(d);
    d->rebuild_left = period;
}

/* Which turn this is, and how much longer than the one before. */
static ldr_traits_t traits_of(const ldr_default_t *d,
                              const ldr_policy_request_t *r)
{
    ldr_traits_t traits = {
        .app = r->hint & LDR_HINT_APP,
        .turn = 1,
        .tokens = r->tokens,
        .closed = (r->hint & LDR_HINT_CLOSED) != 0,
        .template = (r->hint & LDR_HINT_TEMPLATE) != 0,
    };

    if (traits.tokens == 0) {
        uint64_t all =
            (uint64_t)r->count * (r->chunk_tokens > 0 ? r->chunk_tokens : 512);

        traits.tokens = all < UINT32_MAX ? (uint32_t)all : UINT32_MAX;
    }
    traits.tokens =
        traits.tokens < LDR_RUN_TOKENS_MAX ? traits.tokens : LDR_RUN_TOKENS_MAX;
    traits.delta = delta_first(traits.tokens);
    if (d->path_count > 0) {
        const ldr_run_t *tail = &d->t.runs[d->path[d->path_count - 1]];

        if (tail->fan <= 1) {
            traits.turn = tail->turn < 255 ? tail->turn + 1u : 255;
            traits.delta = delta_level((int64_t)traits.tokens - tail->tokens);
        }
    }
    return traits;
}

/* What was known of the chain has been used. */
static void path_used(ldr_default_t *d, const ldr_traits_t *traits)
{
    ldr_runs_t *t = &d->t;

    for (uint32_t i = 0; i < d->path_count; i++) {
        uint32_t run = d->path[i];
        ldr_run_t *r = &t->runs[run];
        uint32_t gap_ds = t->now_ds - r->used_ds;

        r->uses = (uint8_t)(r->uses < 255 ? r->uses + 1 : 255);
        r->turn = (uint8_t)(r->uses > traits->turn ? r->uses : traits->turn);
        r->tokens = traits->tokens & LDR_RUN_TOKENS_MAX;
        r->told = 1;
        ldr_runs_restamp(t, run, class_of(r, traits, gap_ds), t->stamp);
    }
}

/* Before rebuild: what uses teach. */
static void path_teach(ldr_default_t *d)
{
    for (uint32_t i = 0; i < d->path_count; i++) {
        const ldr_run_t *r = &d->t.runs[d->path[i]];

        ldr_learn_use(d->t.learn, r->class, d->t.now_ds - r->used_ds,
                      ldr_runs_weight(r->length));
        ldr_runs_tell(&d->t, d->path[i]);
    }
}

static uint32_t add_run(ldr_default_t *d, const ldr_policy_request_t *r,
                        const ldr_traits_t *traits, uint32_t from,
                        uint32_t length, bool last)
{
    uint32_t parent = d->path_count > 0 ? d->path[d->path_count - 1] : LDR_NIL;
    ldr_run_t like = {
        .uses = 1,
        .turn = (uint8_t)traits->turn,
        .flags = (uint8_t)(last               ? LDR_RUN_LAST
                           : traits->template ? LDR_RUN_TEMPLATE
                                              : 0),
    };
    uint32_t run = ldr_runs_new(&d->t, parent, from, r->prints + from, length,
                                class_of(&like, traits, 0));

    if (run == LDR_NIL) {
        return LDR_NIL;
    }
    ldr_run_t *at = &d->t.runs[run];
    at->told = 1;
    at->uses = like.uses;
    at->turn = like.turn;
    at->tokens = traits->tokens & LDR_RUN_TOKENS_MAX;
    if (last) { /* these are listed elsewhere */
        ldr_runs_lift(&d->t, run);
    }
    at->flags |= like.flags;
    ldr_runs_settle(&d->t, run); /* only those are not where they belong */
    if (parent != LDR_NIL && !last && d->t.runs[parent].fan < 255) {
        d->t.runs[parent].fan++;
    }
    d->path[d->path_count++] = run;
    return run;
}

/* Runs for the rest of the chain: one, and one for a last chunk that is not
 * full. */
static void path_extend(ldr_default_t *d, const ldr_policy_request_t *r,
                        const ldr_traits_t *traits, uint32_t from)
{
    bool last = r->chunk_tokens > 0 && r->tokens > 0 &&
                (uint64_t)r->count * r->chunk_tokens > r->tokens;
    uint32_t end = r->count - last;

    while (from < end && d->path_count < LDR_PATH_MAX - 1) {
        uint32_t length = end - from;

        length = length < LDR_RUN_LENGTH_MAX ? length : LDR_RUN_LENGTH_MAX;
        if (add_run(d, r, traits, from, length, false) == LDR_NIL) {
            return;
        }
        from += length;
    }
    if (last && from + 1 == r->count) {
        add_run(d, r, traits, from, 1, true);
    }
}

/* A session goes on from here in another way than before: what it left behind
 * is an abandoned edit, or a last chunk that has been filled since. */
static void supersede(ldr_default_t *d, uint32_t tail, uint32_t keep)
{
    ldr_runs_t *t = &d->t;
    uint32_t left = SUPERSEDE_MAX;
    uint32_t old = 0;

    for (uint32_t at = ldr_limb(t, tail)->child; at != LDR_NIL && left > 0;) {
        bool known = t->runs[at].class == LDR_CLASS_SUPERSEDED;

        if (at != keep && !known) {
            ldr_runs_tell(t, at);
            ldr_runs_restamp(t, at, LDR_CLASS_SUPERSEDED, t->stamp - 1);
            t->runs[at].told = 0;
        }
        left--;
        old += known;
        if (at != keep && !known && ldr_limb(t, at)->child != LDR_NIL) {
            at = ldr_limb(t, at)->child;
            continue;
        }
        while (at != tail && ldr_limb(t, at)->next == LDR_NIL) {
            at = ldr_limb(t, at)->parent;
        }
        if (at == tail || old > 8) { /* the older ones come last */
            return;
        }
        at = ldr_limb(t, at)->next;
    }
}

/* A session that goes on is one run again: nothing tells its turns apart once
 * they were used together. */
static void path_join(ldr_default_t *d)
{
    uint32_t count = 0;

    if (d->path_count < 2) {
        return;
    }
    for (uint32_t i = 0; i < d->path_count; i++) {
        uint32_t run = d->path[i];

        if (count == 0 || !ldr_runs_join(&d->t, d->path[count - 1], run)) {
            d->path[count++] = run;
            continue;
        }
        for (uint32_t k = 0; k < LDR_TOLD; k++) {
            if (d->told[k].tail == run) {
                d->told[k].tail = d->path[count - 1];
            }
        }
    }
    d->path_count = count;
}

/* A save of a chain that somebody has told of lately, if perhaps not of its
 * end: what goes on from no other's run is that session's. */
static bool is_told(ldr_default_t *d, const ldr_policy_request_t *r)
{
    walk(d, r, false);
    if (d->path_count == 0) {
        return false;
    }
    uint32_t run = d->path[d->path_count - 1];
    const ldr_run_t *tail = &d->t.runs[run];

    return tail->told && ldr_limb(&d->t, run)->child == LDR_NIL &&
           d->t.now_ds - tail->used_ds <= LDR_TOLD_DS;
}

void ldr_default_request(ldr_policy_t *policy, const ldr_policy_request_t *r)
{
    ldr_default_t *d = (ldr_default_t *)policy;
    ldr_runs_t *t = &d->t;

    if (r->count == 0 || (r->saves && is_told(d, r)) || is_repeated(d, r)) {
        return;
    }
    d->gap_mean += ((float)(t->now_ds - d->last_ds) - d->gap_mean) / 64;
    d->last_ds = t->now_ds;
    t->stamp++;
    if (t->learn->apps_seen == 0) { /* the first: before, all is LRU */
        ldr_learn_init(t->learn);
    }
    uint32_t app = 1u << (r->hint & LDR_HINT_APP);
    if ((t->learn->apps_seen & app) == 0) {
        t->learn->apps_seen |= app;
        d->rebuild_left = 0; /* so that it is worth something */
    }
    uint32_t known = walk(d, r, true);
    path_teach(d);
    if (d->rebuild_left-- == 0) {
        rebuild(d);
    }
    uint32_t count = d->path_count;
    uint32_t tail = count > 0 ? d->path[count - 1] : LDR_NIL;
    ldr_traits_t traits = traits_of(d, r);
    ldr_guard_hits_t hits = ldr_guard_look(d);

    path_used(d, &traits);
    path_extend(d, r, &traits, known);
    if (count > 0 && d->path_count > count && t->runs[tail].fan <= 2) {
        supersede(d, tail, d->path[count]);
    }
    path_join(d);
    d->wanted = t->stamp;
    d->told[d->told_next++ % LDR_TOLD] = (ldr_told_t){
        .stamp = t->stamp,
        .tail = d->path_count > 0 ? d->path[d->path_count - 1] : LDR_NIL,
        .refused = LDR_NIL,
    };
    ldr_guard_judge(d, &hits);
}

void ldr_default_close(ldr_policy_t *policy, const ldr_policy_request_t *r)
{
    ldr_default_t *d = (ldr_default_t *)policy;

    if (r->count == 0 || walk(d, r, false) == 0) {
        return;
    }
    for (uint32_t i = d->path_count; i-- > 0;) {
        const ldr_run_t *at = &d->t.runs[d->path[i]];

        if (at->fan > 1 || (at->flags & LDR_RUN_TEMPLATE) != 0) {
            break;
        }
        ldr_runs_tell(&d->t, d->path[i]);
        ldr_runs_restamp(&d->t, d->path[i], LDR_CLASS_CLOSED, d->t.stamp - 1);
        d->t.runs[d->path[i]].told = 0;
    }
}
