/*
 * What all tenants hold together: the budget is that of the whole tier, and a
 * node knows the sizes of those tenants only whose keys it was given. So each
 * cleaner writes how much its tenant holds to sizes/T, "BYTES WHEN\n" in hex,
 * once a minute and soon after that has changed by much: who reads it a minute
 * later must not give what this one has given. It reads what those of the
 * others have written, once a minute and once for each node.
 *
 * Nobody can check such a figure: it is under no key that all have. So it is a
 * hint. None counts for more than twice the budget, and who can write there can
 * make hits vanish by it, as by removing objects.
 *
 * A tenant that nobody has open has no cleaner: its last figure stays, is
 * counted, and says since when that is so. Such tenants give as the others do
 * (clean_idle.c), a little later; should that fail, those that are open keep
 * within what is left, but for an eighth of the budget. A figure whose tenant
 * has no check value any more is of one that was deleted, and goes.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/thread.h"
#include "tier/shared/objects_int.h"

#define FOLDER "sizes/"
#define TEXT 26u /* "0123456789abcdef 01234567\n" */
#define SIZES_NS ((uint64_t)60 * 1000000000u)
#define AGAIN_NS ((uint64_t)5 * 1000000000u)
#define OWE_NS (5 * SIZES_NS)
#define PIECE 32u /* figures read in one */
#define TENANTS_MAX 4096u
#define KEEP (63.0 / 64)  /* of the budget, where it was exceeded */
#define WORTH (1.0 / 32)  /* of what idle tenants hold, to look into them */
#define LEAST (15.0 / 16) /* of the budget, that they need not go below */

static void name_of(const char *hex, char name[LDR_OBJECT_NAME_MAX + 1])
{
    snprintf(name, LDR_OBJECT_NAME_MAX + 1, FOLDER "%s", hex);
}

/* ---- the own figure ---- */

uint64_t ldr_part_held(const ldr_part_t *p)
{
    ldr_map_stats_t m;

    LDR_HELD(&p->tier->lock);
    ldr_map_stats(p->map, &m);
    return (m.blocks + 2 * m.objects + m.shards / 32) * LDR_BLOCK;
}

int ldr_sizes_write(ldr_objects_t *t, ldr_job_t *job, ldr_backend_t *b,
                    const char *tenant, uint64_t bytes, uint32_t when_s)
{
    char name[LDR_OBJECT_NAME_MAX + 1], text[TEXT + 1];

    name_of(tenant, name);
    snprintf(text, sizeof(text), "%016llx %08x\n", (unsigned long long)bytes,
             when_s);
    return ldr_call_put(t, job, b, name, text, TEXT, 0);
}

/* Where the storage is full the figure that is there stays: what matters then
 * is to read the others'. */
static int tell(ldr_part_t *p, ldr_job_t *job, ldr_backend_t *b)
{
    ldr_objects_t *t = p->tier;
    ldr_cleaner_t *c = &p->cleaner;

    ldr_mutex_lock(&t->lock);
    uint64_t bytes = ldr_part_held(p);
    ldr_mutex_unlock(&t->lock);
    int error =
        ldr_sizes_write(t, job, b, p->hex, bytes, ldr_wall_s(t->params.clock));
    if (error == -ENOSPC || error == -EDQUOT || error == -EROFS ||
        error == -EACCES) {
        job->wrote = false;
        error = 0;
    }
    if (error == 0) {
        c->told_bytes = bytes;
        c->told_at_ns = ldr_now_ns(t->params.clock);
    }
    return error;
}

void ldr_sizes_changed(ldr_part_t *p)
{
    ldr_cleaner_t *c = &p->cleaner;
    uint64_t held = ldr_part_held(p), told = c->told_bytes;
    uint64_t by = held > told ? held - told : told - held;
    uint64_t max = p->tier->params.max_bytes;

    LDR_HELD(&p->tier->lock);
    if (max != 0 && by > max / 64) {
        c->sizes_at_ns = ldr_min64(c->sizes_at_ns, c->told_at_ns + AGAIN_NS);
    }
}

/* ---- those of others ---- */

typedef struct piece {
    ldr_cleaner_t *cleaner;
    char hex[PIECE][2 * LDR_ID_BYTES + 1];
    uint32_t count;
    bool more;
} piece_t;

static int list_one(void *arg, const char *name, uint64_t bytes)
{
    piece_t *s = arg;
    const char *rest = name + strlen(FOLDER);
    uint8_t id[LDR_ID_BYTES];

    (void)bytes;
    if (s->count == PIECE) {
        s->more = true;
        return 1;
    }
    snprintf(s->cleaner->sizes_after, sizeof(s->cleaner->sizes_after), "%s",
             name);
    if (strlen(rest) == 2 * LDR_ID_BYTES && ldr_unhex(rest, sizeof(id), id)) {
        memcpy(s->hex[s->count++], rest, sizeof(s->hex[0]));
    }
    return 0;
}

ldr_part_t *ldr_sizes_part(ldr_objects_t *t, const char *tenant)
{
    LDR_HELD(&t->lock);
    for (size_t i = 0; i < t->part_count; i++) {
        if (strcmp(t->parts[i]->hex, tenant) == 0) {
            return t->parts[i];
        }
    }
    return NULL;
}

/* A figure of nobody who has the tenant open: whether the tenant is there. If
 * not, it was deleted, and this with it. */
static int is_left(ldr_part_t *p, ldr_job_t *job, ldr_backend_t *b,
                   const char *hex, bool *left_p)
{
    char name[LDR_OBJECT_NAME_MAX + 1];
    uint64_t bytes;

    snprintf(name, sizeof(name), "%s/check", hex);
    int error = ldr_call_size(p->tier, job, b, name, &bytes);
    *left_p = error == 0;
    if (error == -ENOENT) {
        name_of(hex, name);
        error = ldr_call_remove(p->tier, job, b, name);
        if (error != 0) {
            job->wrote = false; /* it is counted no more all the same */
        }
        error = 0;
    }
    return error;
}

int ldr_sizes_read(ldr_objects_t *t, ldr_job_t *job, ldr_backend_t *b,
                   const char *tenant, uint64_t *bytes_p, uint32_t *when_s_p)
{
    char name[LDR_OBJECT_NAME_MAX + 1];
    uint8_t text[TEXT];
    size_t got;
    uint64_t when_s;

    name_of(tenant, name);
    int error = ldr_call_get_all(t, job, b, name, text, TEXT, &got);
    if (error == -EBADMSG ||
        (error == 0 && (got != TEXT || text[16] != ' ' || text[25] != '\n' ||
                        !ldr_unhex64((char *)text, 16, bytes_p) ||
                        !ldr_unhex64((char *)text + 17, 8, &when_s)))) {
        return -ENOENT;
    }
    if (error == 0) {
        *when_s_p = (uint32_t)when_s;
    }
    return error;
}

/* One that nobody has open, for the round to come. */
static bool note_idle(ldr_care_t *care, const char *hex, uint64_t bytes,
                      uint32_t when_s)
{
    void *tenants = care->tenants;

    if (!ldr_grow(&tenants, &care->room, care->count + 1,
                  sizeof(care->tenants[0]))) {
        return false;
    }
    care->tenants = tenants;
    ldr_idle_t *i = &care->tenants[care->count++];
    *i = (ldr_idle_t){.bytes = bytes, .when_s = when_s};
    memcpy(i->hex, hex, sizeof(i->hex));
    return ldr_unhex(hex, LDR_ID_BYTES, i->id);
}

static int read_one(ldr_part_t *p, ldr_job_t *job, ldr_backend_t *b,
                    const char *hex)
{
    ldr_objects_t *t = p->tier;
    ldr_sizes_t *sum = &p->cleaner.sizes;
    uint64_t bytes;
    uint32_t when_s, now_s = ldr_wall_s(t->params.clock);
    bool left = true;

    int error = ldr_sizes_read(t, job, b, hex, &bytes, &when_s);
    if (error != 0) {
        return error == -ENOENT ? 0 : error;
    }
    if (t->params.max_bytes != 0) {
        bytes = ldr_min64(bytes, 2 * t->params.max_bytes);
    }
    ldr_mutex_lock(&t->lock);
    ldr_part_t *part = ldr_sizes_part(t, hex);
    if (part != NULL) {
        part->told_bytes = bytes; /* counts until its manifests were read */
    }
    ldr_mutex_unlock(&t->lock);
    bool old = now_s > when_s && now_s - when_s > LDR_IDLE_S;
    if (part == NULL && old) {
        error = is_left(p, job, b, hex, &left);
    }
    if (error != 0 || part != NULL || !left) {
        return error;
    }
    *(old ? &sum->idle : &sum->live) += bytes;
    return !old || note_idle(&p->cleaner.care, hex, bytes, when_s) ? 0
                                                                   : -ENOMEM;
}

/* ---- the sum ---- */

/* What the parts here hold. */
static uint64_t held_here(const ldr_objects_t *t)
{
    uint64_t total = 0;

    LDR_HELD(&t->lock);
    for (size_t i = 0; i < t->part_count; i++) {
        const ldr_part_t *p = t->parts[i];
        uint64_t held = ldr_part_held(p);

        total += p->ready ? held : ldr_max64(held, p->told_bytes);
    }
    return total;
}

uint64_t ldr_sizes_excess(const ldr_part_t *p)
{
    const ldr_objects_t *t = p->tier;
    const ldr_sizes_t *others = &t->sizes;
    uint64_t max = t->params.max_bytes, own = ldr_part_held(p);

    LDR_HELD(&p->tier->lock);
    if (max == 0) {
        return 0;
    }
    double here = (double)held_here(t), live = (double)others->live;
    double idle = (double)others->idle, budget = (double)max;
    /* They give the same share, and are heard of a minute later. */
    if (here < (double)others->here) {
        live *= here / (double)others->here;
        idle *= here / (double)others->here;
    }
    if (here + live + idle <= budget || here + live <= budget / 8) {
        return 0;
    }
    double keep = budget * KEEP / (here + live + idle);
    double least = budget / 8 / (here + live);
    return own - (uint64_t)((double)own * (keep > least ? keep : least));
}

void ldr_sizes_gave(ldr_part_t *p, uint64_t bytes, uint64_t held)
{
    ldr_cleaner_t *c = &p->cleaner;

    LDR_HELD(&p->tier->lock);
    if (held > 0) {
        c->gave = 1 - (1 - c->gave) *
                          (1 - (double)ldr_min64(bytes, held) / (double)held);
    }
}

/* The share that idle tenants are to give now: what those known
 * here have given since such tenants gave last, once that is worth a look into
 * them, or what is too much as it is. There may be room again: what was owed
 * leaves them most of the budget. */
static double idle_share(ldr_objects_t *t)
{
    double gave = 0, budget = (double)t->params.max_bytes;
    double idle = (double)t->sizes.idle;
    double total = (double)t->sizes.here + (double)t->sizes.live + idle;

    LDR_HELD(&t->lock);
    for (size_t i = 0; i < t->part_count; i++) {
        ldr_cleaner_t *c = &t->parts[i]->cleaner;

        gave = c->gave > gave ? c->gave : gave;
        c->gave = 0;
    }
    if (t->idle_owe <= 0) {
        t->idle_owe_ns = ldr_now_ns(t->params.clock);
    }
    t->idle_owe = 1 - (1 - t->idle_owe) * (1 - gave);
    double share = budget > 0 && total > budget ? 1 - budget * KEEP / total : 0;
    double most = idle > 0 ? (total - budget * LEAST) / idle : 0;
    if (t->idle_owe >= WORTH && t->idle_owe > share && most > share) {
        share = t->idle_owe < most ? t->idle_owe : most;
    }
    return share;
}

/* All were read: that is what counts from now on. */
static int finish(ldr_part_t *p, ldr_job_t *job, ldr_backend_t *b)
{
    ldr_objects_t *t = p->tier;
    ldr_sizes_t *sum = &p->cleaner.sizes;
    double share = 0;

    ldr_mutex_lock(&t->lock);
    sum->here = held_here(t);
    bool stale = t->sizes_at_ns == 0; /* a tenant came meanwhile */
    if (!stale) {
        t->sizes = *sum;
        share = idle_share(t);
        /* They give later what we gave, and others must not give it for them,
         * unless it takes too long. */
        if (ldr_now_ns(t->params.clock) - t->idle_owe_ns < OWE_NS) {
            t->sizes.idle = (uint64_t)((double)sum->idle * (1 - t->idle_owe));
        }
    }
    ldr_mutex_unlock(&t->lock);
    return stale ? 0 : ldr_idle_begin(p, job, b, share);
}

void ldr_sizes_forget(ldr_objects_t *t)
{
    LDR_HELD(&t->lock);
    t->sizes = (ldr_sizes_t){0};
    t->sizes_at_ns = 0;
}

/* Tells the own figure, and if it is time, which is once for each node, begins
 * to read those of others. */
static int begin(ldr_part_t *p, ldr_job_t *job, ldr_backend_t *b)
{
    ldr_objects_t *t = p->tier;
    ldr_cleaner_t *c = &p->cleaner;
    uint64_t now_ns = ldr_now_ns(t->params.clock);
    int error = tell(p, job, b);

    if (error != 0) {
        return error;
    }
    c->sizes_at_ns = now_ns + SIZES_NS;
    ldr_mutex_lock(&t->lock);
    bool bounds = t->params.max_bytes != 0 || t->params.max_age_s != 0;
    c->sizes_reading = bounds && now_ns >= t->sizes_at_ns && t->carer == NULL;
    if (c->sizes_reading) {
        t->sizes_at_ns = now_ns + SIZES_NS;
    }
    ldr_mutex_unlock(&t->lock);
    c->sizes = (ldr_sizes_t){0};
    c->sizes_after[0] = '\0';
    c->sizes_count = 0;
    if (c->sizes_reading) {
        c->care.count = 0;
    }
    return 0;
}

int ldr_sizes_work(ldr_part_t *p, ldr_job_t *job, ldr_backend_t *b)
{
    ldr_objects_t *t = p->tier;
    ldr_cleaner_t *c = &p->cleaner;
    piece_t s = {.cleaner = c};
    char after[LDR_OBJECT_NAME_MAX + 1];

    int error = c->sizes_reading ? 0 : begin(p, job, b);
    if (error != 0 || !c->sizes_reading) {
        return error;
    }
    memcpy(after, c->sizes_after, sizeof(after));
    error = ldr_call_list(t, job, b, FOLDER, after[0] != '\0' ? after : NULL,
                          list_one, &s);
    error = error > 0 ? 0 : error;
    for (uint32_t i = 0; i < s.count && error == 0; i++) {
        error = read_one(p, job, b, s.hex[i]);
    }
    c->sizes_count += s.count;
    if (error != 0 || !s.more || c->sizes_count >= TENANTS_MAX) {
        c->sizes_reading = false;
        if (error == 0) { /* else what was read before stays */
            error = finish(p, job, b);
        }
    }
    c->sizes_at_ns =
        ldr_now_ns(t->params.clock) + (c->sizes_reading ? 0 : SIZES_NS);
    return error;
}
