/*
 * The cleaner: one node does this for a tenant's volume, whoever holds the
 * role: T/cleaner: "NODE EXPIRY\n" in hex, by the wall clock. It is taken when
 * there is none, or when it has expired by a margin; it is written over, and
 * read back after a moment. Two that take it at once, or whose clocks differ,
 * are both the cleaner for a while, and that is harmless: ids are never used
 * again, so that to say twice that an object is gone, to remove it twice, to
 * adopt it twice or to merge the same manifests twice comes to the same; and
 * two that compact the same objects make copies, of which one is dead for all.
 *
 * Nothing is removed before a manifest that says so is out, so that readers
 * miss it as seldom as can be. Only on a medium that is full, where nothing
 * can be published, the order is the other way round.
 *
 * The chore does one bounded piece at a time: the role, then removing what is
 * doomed, then, in turns,
 *   - a pass over the map (in slices, the lock given up between them): what is
 *     dead or too old goes, what is of least value goes while the tenant holds
 *     more than shared_max, and objects with holes or too small become one
 *     (clean_compact.c)
 *   - manifests (clean_merge.c)
 *   - old resets, and a piece of the walk over the names of objects
 *     (clean_scan.c)
 *   - the file that says that the tenant is open, and tenants that nobody has
 *     open (clean_idle.c)
 *
 * A removal must not be forgotten while an object still has the record: whoever
 * joins would find it again. So a pass notes the oldest object of each space
 * with records that are not found, manifests keep what was removed since then,
 * and old objects are rewritten for a single such record. Each node's map
 * keeps removals by the same rule.
 *
 * Value: by last use, or by age where there was none; what was never read
 * counts as idle for twice as long, and dead blocks weigh as much again.
 */
#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "base/thread.h"
#include "tier/shared/objects_int.h"
#include "store/index.h"

#define SECOND_NS ((uint64_t)1000000000u)
#define SLICE 2048u
#define ENOUGH (LDR_OBJECTS_BYTES * 3 / 4)
#define COMPACT_AGE_S 60u
#define THOROUGH_NS (60 * SECOND_NS) /* between two looks at single records */
#define FORGET_NS (3600 * SECOND_NS)

/* ---- the role ---- */

int ldr_role_read(ldr_job_t *job, const char *name, ldr_role_file_t *l)
{
    const ldr_objects_t *t = ldr_tier_of(job);
    uint64_t node = 0, until_s = 0;
    uint32_t now_s = ldr_wall_s(t->params.clock);
    int error = ldr_call_get_pair(job, name, &node, &until_s);

    *l = (ldr_role_file_t){.there = error == 0 || error == -EBADMSG};
    if (error == 0) {
        l->mine = node == t->node_number;
        l->others = !l->mine && until_s != 0 &&
                    now_s <= until_s + LDR_ROLE_MARGIN_S &&
                    until_s <= now_s + 10 * LDR_ROLE_S;
    }
    return error == -ENOENT || error == -EBADMSG ? 0 : error;
}

int ldr_role_write(ldr_job_t *job, const char *name, bool over,
                   uint32_t seconds)
{
    const ldr_objects_t *t = ldr_tier_of(job);

    return ldr_call_put_pair(job, name, t->node_number,
                             ldr_wall_s(t->params.clock) + seconds,
                             over ? 0 : LDR_OBJECT_NEW);
}

/* Stats show it: so it changes with the lock, which nobody here holds. */
static void set_role(ldr_volume_t *p, ldr_role_t role)
{
    ldr_mutex_lock(&p->tier->lock);
    p->cleaner.role = role;
    ldr_mutex_unlock(&p->tier->lock);
}

/* The role begins: what was seen in another time counts for nothing. */
static void begin_role(ldr_volume_t *p, uint64_t now_ns)
{
    ldr_cleaner_t *c = &p->cleaner;
    uint32_t now_s = ldr_wall_s(p->tier->params.clock);

    set_role(p, LDR_ROLE_HELD);
    c->cycle = 0;
    c->cycle_s[0] = c->cycle_s[1] = now_s;
    c->prefix = 0;
    c->after[0] = '\0';
    c->pass_at_ns = c->scan_at_ns = c->merge_at_ns = c->compact_at_ns = now_ns;
    c->rewrite_at_ns = c->thorough_at_ns = c->epochs_at_ns = now_ns;
    c->figure_at_ns = now_ns;
    c->turn = 0;
    ldr_info(&p->tier->params.log, "shared tier: cleaning up for tenant %s",
             p->name);
}

int ldr_role_work(ldr_volume_t *p, ldr_job_t *job)
{
    ldr_objects_t *t = p->tier;
    ldr_cleaner_t *c = &p->cleaner;
    char name[LDR_OBJECT_NAME_MAX + 1];
    ldr_role_file_t l;
    uint64_t now_ns = ldr_now_ns(t->params.clock);

    ldr_name_of(p->hex, "cleaner", name);
    int error = ldr_role_read(job, name, &l);
    if (error != 0) {
        return error;
    }
    if (l.others || (c->role == LDR_ROLE_TAKING && !l.mine)) {
        set_role(p, LDR_ROLE_NONE);
        c->role_at_ns = now_ns + LDR_ROLE_S / 4 * SECOND_NS;
        return 0;
    }
    if (c->role == LDR_ROLE_TAKING) {
        begin_role(p, now_ns);
        c->role_at_ns = now_ns + LDR_ROLE_S / 3 * SECOND_NS;
        return 0;
    }
    error = ldr_role_write(job, name, l.there, LDR_ROLE_S);
    if (error == -ENOSPC || error == -EDQUOT) {
        /* Somebody has to make room. */
        ldr_workers_failed(t->workers, true, error, ldr_fail_text());
        if (c->role == LDR_ROLE_NONE) {
            begin_role(p, now_ns);
        }
        c->role_at_ns = now_ns + LDR_ROLE_S / 3 * SECOND_NS;
        return 0;
    }
    if (error == -EEXIST) {
        c->role_at_ns = now_ns + SECOND_NS;
        return 0;
    }
    if (error == 0 && c->role == LDR_ROLE_NONE) {
        set_role(p, LDR_ROLE_TAKING);
        c->role_at_ns = now_ns + SECOND_NS;
    } else if (error == 0) {
        c->role_at_ns = now_ns + LDR_ROLE_S / 3 * SECOND_NS;
    }
    return error;
}

void ldr_role_end(ldr_volume_t *p, ldr_job_t *job)
{
    char name[LDR_OBJECT_NAME_MAX + 1];
    ldr_role_file_t l;

    ldr_name_of(p->hex, "cleaner", name);
    if (ldr_role_read(job, name, &l) == 0 && l.mine) {
        ldr_call_remove(job, name);
    }
    set_role(p, LDR_ROLE_NONE);
}

/* ---- what goes ---- */

void ldr_clean_doom(ldr_volume_t *p, const uint8_t (*ids)[LDR_ID_BYTES],
                    uint32_t count)
{
    ldr_cleaner_t *c = &p->cleaner;

    LDR_HELD(&p->tier->lock);
    for (uint32_t i = 0; i < count && c->victim_count < LDR_VICTIMS; i++) {
        uint32_t number = ldr_map_object(p->map, ids[i]);
        uint32_t blocks =
            number != LDR_NIL ? ldr_map_at(p->map, number)->blocks : 0;

        if (ldr_volume_gone(p, ids[i])) { /* else another time */
            memcpy(c->victims[c->victim_count++], ids[i], LDR_ID_BYTES);
            p->tier->n.cleaned_bytes += (uint64_t)blocks * LDR_BLOCK;
        }
    }
    c->victims_after = p->added;
}

static bool is_full(ldr_objects_t *t)
{
    int error = ldr_workers_error(t->workers);

    return error == -ENOSPC || error == -EDQUOT;
}

static int remove_victims(ldr_volume_t *p, ldr_job_t *job)
{
    ldr_cleaner_t *c = &p->cleaner;
    char name[LDR_OBJECT_NAME_MAX + 1];

    while (c->victim_count > 0) {
        ldr_name_object(p->hex, c->victims[c->victim_count - 1], name);
        int error = ldr_call_remove(job, name);
        if (error != 0) {
            return error; /* all know that it is gone: the walk finds it */
        }
        c->victim_count--;
        ldr_mutex_lock(&p->tier->lock);
        p->tier->n.cleaned_objects++;
        ldr_mutex_unlock(&p->tier->lock);
    }
    return 0;
}

/* ---- a pass over the map ---- */

static void note_worst(ldr_pass_t *pass, const ldr_map_object_t *o,
                       uint64_t weight)
{
    uint32_t at = pass->worst_count;

    if (at == LDR_VICTIMS) {
        if (pass->worst[at - 1].weight >= weight) {
            return;
        }
        at--;
    } else {
        pass->worst_count++;
    }
    for (; at > 0 && pass->worst[at - 1].weight < weight; at--) {
        pass->worst[at] = pass->worst[at - 1];
    }
    memcpy(pass->worst[at].id, o->id, LDR_ID_BYTES);
    pass->worst[at].blocks = o->blocks;
    pass->worst[at].weight = weight;
}

static void add_to(ldr_compactable_t *g, uint64_t live, bool holes)
{
    g->count++;
    g->blocks += live;
    g->holes = g->holes || holes;
}

/* Whether it is worth the while to make these one: much of what an object
 * should have, or many that have little. Between that they wait for more: one
 * that is just not small any more is not touched again, and one file for each 8
 * MiB is available with all the others that there are. */
static bool is_enough(const ldr_compactable_t *g)
{
    uint64_t bytes = g->blocks * LDR_BLOCK;

    return g->holes || (g->count >= 2 && (g->full || bytes >= ENOUGH)) ||
           (g->count >= 8 && bytes < LDR_OBJECTS_MIN);
}

/* Whether it should be made one with others, and can be with those so far. */
static void note_compactable(ldr_volume_t *p, const ldr_map_object_t *o,
                             uint32_t number, uint32_t now_s)
{
    const ldr_cleaner_t *c = &p->cleaner;
    ldr_pass_t *pass = &p->cleaner.pass;
    uint64_t live = o->blocks - o->dead_blocks;
    bool holes = (uint64_t)o->dead_blocks * 4 >= o->blocks ||
                 (pass->thorough && o->dead_blocks > 0 &&
                  now_s > o->written_s + LDR_REMOVED_S);
    bool small = live * LDR_BLOCK < LDR_OBJECTS_MIN &&
                 o->rows <= LDR_OBJECT_ROWS_MAX / 2; /* two fit into one */

    if ((!holes && !small) || now_s < o->written_s + COMPACT_AGE_S) {
        return;
    }
    add_to(&p->spaces[o->space].compactable, live, holes);
    if (o->space != c->compact_space || number < c->compact_start ||
        (pass->sum.count > 0 && pass->input_epoch != o->epoch)) {
        return; /* it was reset while we looked */
    }
    bool fits = pass->sum.count < LDR_COMPACT_MAX &&
                (pass->sum.blocks + live) * LDR_BLOCK <= LDR_OBJECTS_BYTES &&
                pass->input_rows + o->rows <= LDR_OBJECT_ROWS_MAX;
    if (pass->sum.count > 0 && !fits && (!holes || pass->sum.holes)) {
        pass->sum.full = true;
        return;
    }
    if (!fits) { /* the only one that is worth it by itself: without others */
        pass->sum = (ldr_compactable_t){0};
        pass->input_rows = 0;
    }
    if (pass->sum.count == 0) {
        pass->input_first = number;
        pass->input_epoch = o->epoch;
    }
    memcpy(pass->inputs[pass->sum.count], o->id, LDR_ID_BYTES);
    add_to(&pass->sum, live, holes);
    pass->input_rows += o->rows;
}

/* The next space, after the one whose turn it was, that has enough, if there is
 * one: its objects are gathered by the next pass. From the first on, however
 * many came meanwhile: where they trickle in, there is always a new one, and a
 * group that begins behind those before it never has enough. */
static void next_space(ldr_volume_t *p)
{
    ldr_cleaner_t *c = &p->cleaner;

    ldr_mutex_lock(&p->tier->lock);
    for (size_t i = 1; i <= p->space_count; i++) {
        size_t at = (c->compact_space + i) % p->space_count;

        if (is_enough(&p->spaces[at].compactable)) {
            c->compact_space = (uint32_t)at;
            break;
        }
    }
    c->compact_start = 0;
    ldr_mutex_unlock(&p->tier->lock);
}

/* Known, but two walks over the names have not seen it; where names say
 * nothing, it was not asked for as long. */
static bool is_suspect(const ldr_volume_t *p, const ldr_map_object_t *o,
                       uint32_t number)
{
    const ldr_cleaner_t *c = &p->cleaner;
    uint8_t mark = number < c->marks_capacity ? c->marks[number] : 0;

    return c->cycle >= 2 && (uint8_t)(c->cycle - mark) >= 2 &&
           o->written_s + COMPACT_AGE_S < c->cycle_s[1];
}

static void look_at(ldr_volume_t *p, uint32_t number, uint32_t now_s)
{
    const ldr_objects_t *t = p->tier;
    const ldr_cleaner_t *c = &p->cleaner;
    ldr_pass_t *pass = &p->cleaner.pass;
    const ldr_map_object_t *o = ldr_map_at(p->map, number);

    LDR_HELD(&p->tier->lock);
    if (o == NULL) {
        return;
    }
    uint32_t last_s = (uint32_t)ldr_max64(o->written_s, o->used_s);
    uint64_t idle_s = now_s > last_s ? now_s - last_s : 0;
    bool dead = o->epoch < ldr_map_epoch(p->map, o->space) ||
                o->dead_blocks >= o->blocks ||
                (t->params.max_age_s != 0 && idle_s > t->params.max_age_s);
    if (dead) {
        if (pass->dead_count < LDR_VICTIMS) {
            memcpy(pass->dead[pass->dead_count++], o->id, LDR_ID_BYTES);
        }
        return;
    }
    if (o->dead_blocks > 0) {
        ldr_volume_space_t *s = &p->spaces[o->space];

        s->dead_next_s = (uint32_t)ldr_min64(s->dead_next_s, o->written_s);
    }
    if (number >= c->suspect_start && pass->suspect_count < LDR_SUSPECTS &&
        is_suspect(p, o, number)) {
        pass->suspect_last = number;
        memcpy(pass->suspects[pass->suspect_count++], o->id, LDR_ID_BYTES);
    }
    uint64_t weight = (idle_s + 1) * (o->used_s > o->written_s ? 1 : 2);
    note_worst(pass, o, weight + weight * o->dead_blocks / o->blocks);
    note_compactable(p, o, number, now_s);
}

static void look_over(ldr_volume_t *p)
{
    ldr_objects_t *t = p->tier;
    uint32_t now_s = ldr_wall_s(t->params.clock);
    uint32_t number = 0, top;

    memset(&p->cleaner.pass, 0, sizeof(p->cleaner.pass));
    p->cleaner.pass.thorough =
        ldr_now_ns(t->params.clock) >= p->cleaner.thorough_at_ns;
    ldr_mutex_lock(&t->lock);
    size_t spaces = p->space_count;
    for (size_t i = 0; i < spaces; i++) {
        p->spaces[i].dead_next_s = UINT32_MAX;
        p->spaces[i].compactable = (ldr_compactable_t){0};
    }
    ldr_mutex_unlock(&t->lock);
    do {
        ldr_mutex_lock(&t->lock);
        top = ldr_map_top(p->map);
        for (uint32_t i = 0; i < SLICE && number < top; i++) {
            look_at(p, number++, now_s);
        }
        ldr_mutex_unlock(&t->lock);
    } while (number < top);
    ldr_mutex_lock(&t->lock);
    for (size_t i = 0; i < spaces; i++) {
        p->spaces[i].dead_s = p->spaces[i].dead_next_s;
    }
    ldr_mutex_unlock(&t->lock);
}

/* Those that are known but not there, by asking for each. */
static int check_suspects(ldr_volume_t *p, ldr_job_t *job)
{
    ldr_cleaner_t *c = &p->cleaner;
    const ldr_pass_t *pass = &c->pass;
    char name[LDR_OBJECT_NAME_MAX + 1];

    /* The next pass looks behind these, so that all have their turn. */
    c->suspect_start =
        pass->suspect_count == LDR_SUSPECTS ? pass->suspect_last + 1 : 0;
    for (uint32_t i = 0; i < pass->suspect_count; i++) {
        ldr_name_object(p->hex, pass->suspects[i], name);
        int error = ldr_call_exists(job, name);
        if (error == -ENOENT) {
            ldr_mutex_lock(&p->tier->lock);
            ldr_volume_gone(p, pass->suspects[i]);
            ldr_mutex_unlock(&p->tier->lock);
        } else if (error != 0) {
            return error;
        } else {
            ldr_mutex_lock(&p->tier->lock);
            uint32_t number = ldr_map_object(p->map, pass->suspects[i]);
            if (number != LDR_NIL) {
                ldr_clean_mark(c, number);
            }
            ldr_mutex_unlock(&p->tier->lock);
        }
    }
    return 0;
}

uint64_t ldr_volume_held(const ldr_volume_t *p)
{
    ldr_map_stats_t m;

    LDR_HELD(&p->tier->lock);
    ldr_map_stats(p->map, &m);
    return (m.blocks + 2 * m.objects + m.shards / 32) * LDR_BLOCK;
}

/* Where the tenant holds more than shared_max, the least valuable objects go
 * until it holds 1/64 less than that. */
static uint32_t doom_worst(ldr_volume_t *p)
{
    ldr_pass_t *pass = &p->cleaner.pass;
    uint32_t count = 0;
    uint64_t max = p->tier->params.max_bytes, held = ldr_volume_held(p);
    uint64_t excess = max != 0 && held > max ? held - (max - max / 64) : 0;
    uint64_t freed = 0;

    LDR_HELD(&p->tier->lock);
    while (count < pass->worst_count && freed < excess) {
        freed += ((uint64_t)pass->worst[count].blocks + 2) * LDR_BLOCK;
        ldr_clean_doom(p, &pass->worst[count].id, 1);
        count++;
    }
    return count;
}

/* After a group: where it became one there may be more, and small objects may
 * come faster than one group a second. So the next look is as soon as this one
 * took, with the pass before it: half of the time goes to compaction at most,
 * and others have their turn between. Where calls are slow a second is enough;
 * so it is where nothing came of it. */
static void compact_rest(ldr_volume_t *p, uint64_t began_ns)
{
    ldr_cleaner_t *c = &p->cleaner;
    uint64_t now_ns = ldr_now_ns(p->tier->params.clock);
    uint64_t took_ns = now_ns - began_ns;
    bool became_one = c->victim_count > 0;

    c->compact_at_ns = became_one ? now_ns + ldr_min64(took_ns, SECOND_NS)
                                  : ldr_max64(began_ns + SECOND_NS, now_ns);
    c->pass_at_ns = c->compact_at_ns;
}

static int pass_work(ldr_volume_t *p, ldr_job_t *job)
{
    ldr_objects_t *t = p->tier;
    ldr_cleaner_t *c = &p->cleaner;
    ldr_pass_t *pass = &c->pass;
    uint64_t now_ns = ldr_now_ns(t->params.clock);

    look_over(p);
    c->pass_at_ns = now_ns + SECOND_NS;
    ldr_mutex_lock(&t->lock);
    ldr_clean_doom(p, pass->dead, pass->dead_count);
    uint32_t worst = doom_worst(p); /* the dead count no more */
    ldr_mutex_unlock(&t->lock);
    if (c->victim_count > 0) {
        /* There may be more; and where something goes each second, objects are
         * to be made one all the same: by the pass after it. */
        c->pass_at_ns = now_ns;
    }
    int error = check_suspects(p, job);
    if (pass->suspect_count == LDR_SUSPECTS &&
        job->backend->ops->exists == NULL) {
        c->pass_at_ns = now_ns; /* there may be more; else all are, in turn */
    }
    if (error != 0 || worst > 0 || pass->dead_count > 0) {
        return error;
    }
    if (now_ns < c->compact_at_ns || is_full(t)) {
        return 0;
    }
    if (!is_enough(&pass->sum)) {
        next_space(p);
        return 0;
    }
    /* If these do not become one, the next group begins after the first of
     * them: one that cannot be read must not keep others from their turn. */
    c->compact_start = pass->input_first + 1;
    if (pass->thorough) {
        c->thorough_at_ns = now_ns + THOROUGH_NS;
    }
    error = ldr_compact_work(p, job);
    if (c->victim_count > 0) {
        next_space(p);
    }
    compact_rest(p, now_ns);
    return error;
}

/* ---- forgetting removals ---- */

/* Every node does so for itself, cleaner or not, and by the rule by which they
 * go from manifests (clean_merge.c): so it knows no less than one that joins
 * now. A bounded piece; needs no call. */
static void removals_forget(ldr_volume_t *p, uint64_t now_ns)
{
    ldr_objects_t *t = p->tier;
    uint32_t now_s = ldr_wall_s(t->params.clock);
    uint32_t before_s = now_s > LDR_REMOVED_S ? now_s - LDR_REMOVED_S : 0;
    bool more = true;

    for (unsigned i = 0; i < SLICE && more; i++) {
        ldr_mutex_lock(&t->lock);
        more = ldr_map_forget(p->map, before_s);
        ldr_mutex_unlock(&t->lock);
    }
    if (!more) {
        p->cleaner.forget_at_ns = now_ns + FORGET_NS;
    }
}

/* ---- the chore ---- */

uint64_t ldr_clean_at(const ldr_volume_t *p)
{
    const ldr_objects_t *t = p->tier;
    const ldr_cleaner_t *c = &p->cleaner;

    LDR_HELD(&p->tier->lock);
    if (t->closing) {
        return c->role != LDR_ROLE_NONE ? 0 : UINT64_MAX;
    }
    if (!p->ready) {
        return UINT64_MAX;
    }
    if (c->role != LDR_ROLE_HELD) {
        return c->role_at_ns;
    }
    if (c->victim_count > 0) {
        return p->published >= c->victims_after ||
                       t->state == LDR_OBJECTS_READONLY
                   ? 0
                   : c->role_at_ns;
    }
    return ldr_min64(
        ldr_min64(ldr_min64(c->role_at_ns, c->pass_at_ns),
                  ldr_min64(c->scan_at_ns, c->merge_at_ns)),
        ldr_min64(ldr_min64(c->epochs_at_ns, c->figure_at_ns), ldr_idle_at(t)));
}

/* What is due, one after the other: on slow storage each may be due again by
 * the time it ends, and must not keep the others from their turn. */
static int take_turn(ldr_volume_t *p, ldr_job_t *job, uint64_t now_ns)
{
    ldr_cleaner_t *c = &p->cleaner;
    ldr_mutex_lock(&p->tier->lock);
    uint64_t idle_ns = ldr_idle_at(p->tier);
    ldr_mutex_unlock(&p->tier->lock);
    const struct {
        uint64_t at_ns;
        int (*work)(ldr_volume_t *p, ldr_job_t *job);
    } round[] = {
        {c->pass_at_ns, pass_work},         {c->merge_at_ns, ldr_merge_work},
        {c->epochs_at_ns, ldr_epochs_work}, {c->figure_at_ns, ldr_figure_work},
        {idle_ns, ldr_idle_work},           {c->scan_at_ns, ldr_scan_work}};
    const unsigned count = sizeof(round) / sizeof(round[0]);

    for (unsigned i = 0; i < count; i++) {
        unsigned at = (c->turn + i) % count;

        if (now_ns >= round[at].at_ns) {
            c->turn = at + 1;
            return round[at].work(p, job);
        }
    }
    return 0;
}

int ldr_clean_work(ldr_volume_t *p, ldr_job_t *job)
{
    ldr_objects_t *t = p->tier;
    ldr_cleaner_t *c = &p->cleaner;
    uint64_t now_ns = ldr_now_ns(t->params.clock);

    ldr_mutex_lock(&t->lock);
    bool closing = t->closing;
    bool published = p->published >= c->victims_after;
    ldr_mutex_unlock(&t->lock);
    if (closing) {
        ldr_role_end(p, job);
        return 0;
    }
    if (now_ns >= c->forget_at_ns) {
        removals_forget(p, now_ns);
    }
    if (now_ns >= c->role_at_ns) {
        return ldr_role_work(p, job);
    }
    if (c->role != LDR_ROLE_HELD) {
        return 0;
    }
    if (c->victim_count > 0) {
        if (published || is_full(t)) {
            return remove_victims(p, job);
        }
        ldr_mutex_lock(&t->lock);
        p->chores[LDR_CHORE_CLEAN].at_ns = now_ns + SECOND_NS;
        ldr_mutex_unlock(&t->lock);
        return 0;
    }
    return take_turn(p, job, now_ns);
}
