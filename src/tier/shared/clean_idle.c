/*
 * Tenants that nobody has open. Size and age of the tier are bounded for them,
 * too, but no node has their keys: none can tell what of theirs is true, and
 * none can tell others that something is gone. Neither is needed to remove
 * objects: whoever opens the tenant again finds out by a miss, or by the walk
 * over the names.
 *
 * One node of the tier sees to it, by the lease larder.cleaner, which is taken
 * and renewed once a minute, when the figures were read (clean_sizes.c); it
 * counts from the second time on. So on storage that cannot be written to,
 * where those who have their tenants open cannot say so either, nothing is
 * done. And a tenant counts as idle only once this node has seen the same
 * figure of it for longer than anybody who had it open would leave it.
 *
 *   - They give the same share for the budget as the tenants that are open on
 *     this node gave in the last minute, or what is still too much. Within a
 *     tenant what has the least value goes first, as anywhere (clean.c).
 *   - Objects that are too old go. A use needs somebody who has the tenant
 *     open, so when that is longer ago than the age, all do, and the manifests
 *     with them. Check value, resets and figure stay: they are small, and a
 *     node that was away may still have what was reset.
 *
 * What there is is listed, when it was used is what manifests say, and they are
 * read without a key: whoever can write to the storage could mislead us about
 * what to remove, and could remove it himself. A round goes on piece by piece,
 * among the other work of the cleaner whose turn it was to read the figures,
 * and goes to the next tenant for a minute at most; the next round goes on from
 * there. Before each piece that removes it is made sure that the tenant is
 * still nobody's; who opens it meanwhile loses some objects at most.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "base/thread.h"
#include "tier/shared/objects_int.h"
#include "store/index.h"

#define LEASE "larder.cleaner"
#define LEASE_S 150u /* two rounds, and a bit */
#define SECOND_NS ((uint64_t)1000000000u)
#define ROUND_NS (60 * SECOND_NS)
#define NAMES_MAX 1024u /* listed in one piece */
#define PIECE 64u       /* removed in one */
#define OBJECTS_MAX (1u << 20)
#define MANIFESTS_MAX (1u << 16)
#define AGAIN_S                                                                \
    600u /* between two looks at the ages of one tenant, at least              \
          */

static bool too_old(const ldr_objects_t *t, uint32_t last_s, uint32_t now_s)
{
    return t->params.max_age_s != 0 && now_s > last_s &&
           now_s - last_s > t->params.max_age_s;
}

/* ---- a round ---- */

/* The role: *mine_p if it was this node's before. */
static int take_lease(ldr_objects_t *t, ldr_job_t *job, ldr_backend_t *b,
                      bool *mine_p, bool *others_p)
{
    ldr_lease_text_t l;
    int error = ldr_lease_read(t, job, b, LEASE, &l);

    *mine_p = false;
    *others_p = error == 0 && l.others;
    if (error == 0 && !l.others) {
        error = ldr_lease_write(t, job, b, LEASE, l.there, LEASE_S);
        *mine_p = error == 0 && l.mine;
    }
    if (error == -EEXIST || error == -ENOSPC || error == -EDQUOT ||
        error == -EROFS || error == -EACCES || error == -EPERM) {
        job->wrote = false; /* others say so, of what matters more */
        error = 0;
    }
    return error;
}

void ldr_idle_leave(ldr_objects_t *t, ldr_job_t *job, ldr_backend_t *b)
{
    ldr_lease_text_t l;

    ldr_mutex_lock(&t->lock);
    bool leased = t->care_leased;
    t->care_leased = false;
    ldr_mutex_unlock(&t->lock);
    if (leased && ldr_lease_read(t, job, b, LEASE, &l) == 0 && l.mine) {
        ldr_call_remove(t, job, b, LEASE);
    }
}

/* Whether its figure has been the same for as long as we look,
 * and that is long enough: whoever has the tenant open writes it anew each
 * minute. So a clock of ours that is wrong takes nobody's tenant for idle. */
static bool is_watched(ldr_objects_t *t, const ldr_idle_t *i)
{
    uint32_t now_s = (uint32_t)(ldr_now_ns(t->params.clock) / SECOND_NS) + 1;

    LDR_HELD(&t->lock);
    if (ldr_ids_find(&t->care_when, i->id) != i->when_s) {
        ldr_ids_latest(&t->care_when, i->id, i->when_s);
        ldr_ids_latest(&t->care_since, i->id, now_s);
    }
    uint32_t since_s = ldr_ids_find(&t->care_since, i->id);
    return since_s != 0 && now_s - since_s >= LEASE_S;
}

int ldr_idle_begin(ldr_part_t *p, ldr_job_t *job, ldr_backend_t *b,
                   double share)
{
    ldr_objects_t *t = p->tier;
    ldr_care_t *care = &p->cleaner.care;
    bool mine, others, some = false;

    ldr_mutex_lock(&t->lock);
    for (size_t i = 0; i < care->count; i++) {
        some = is_watched(t, &care->tenants[i]) || some;
    }
    ldr_mutex_unlock(&t->lock);
    if (!some) {
        return 0;
    }
    int error = take_lease(t, job, b, &mine, &others);
    ldr_mutex_lock(&t->lock);
    t->care_leased = t->care_leased || !others;
    if (share > 0 && (mine || others)) {
        t->idle_owe = 0;
    }
    if (mine && t->carer == NULL) {
        t->sizes.idle = (uint64_t)((double)p->cleaner.sizes.idle * (1 - share));
        t->carer = p;
        care->at_ns = care->began_ns = ldr_now_ns(t->params.clock);
        care->at = 0;
        care->done = 0;
        care->share = share;
        care->replaced = t->replaced;
        care->stage = LDR_CARE_NEXT;
        while (care->at < care->count &&
               memcmp(care->tenants[care->at].id, t->care_last, LDR_ID_BYTES) <=
                   0) {
            care->at++; /* the last round came so far */
        }
    }
    ldr_mutex_unlock(&t->lock);
    return error;
}

void ldr_idle_end(ldr_part_t *p)
{
    ldr_care_t *care = &p->cleaner.care;

    if (p->tier->carer == p) {
        p->tier->carer = NULL;
    }
    care->at_ns = UINT64_MAX;
    ldr_free(care->objects);
    ldr_free(care->manifests);
    care->objects = NULL;
    care->manifests = NULL;
    care->object_room = care->manifest_room = 0;
}

/* ---- a tenant ---- */

/* Whether it is as the figure said, and nobody's. */
static int is_idle(ldr_part_t *p, ldr_job_t *job, ldr_backend_t *b,
                   const ldr_idle_t *i, bool *yes_p)
{
    ldr_objects_t *t = p->tier;
    char name[LDR_OBJECT_NAME_MAX + 1];
    ldr_lease_text_t l;
    uint64_t bytes;
    uint32_t when_s;

    *yes_p = false;
    ldr_mutex_lock(&t->lock);
    bool here = ldr_sizes_part(t, i->hex) != NULL ||
                t->replaced != p->cleaner.care.replaced;
    ldr_mutex_unlock(&t->lock);
    if (here) {
        return 0;
    }
    int error = ldr_sizes_read(t, job, b, i->hex, &bytes, &when_s);
    if (error != 0 || when_s != i->when_s) {
        return error == -ENOENT ? 0 : error;
    }
    ldr_name_of(i->hex, "cleaner", name);
    error = ldr_lease_read(t, job, b, name, &l);
    *yes_p = error == 0 && !l.others;
    return error;
}

/* Whether there is a reason to look into it. */
static bool is_due(ldr_objects_t *t, const ldr_care_t *care,
                   const ldr_idle_t *i)
{
    uint32_t now_s = ldr_wall_s(t->params.clock);

    ldr_mutex_lock(&t->lock);
    bool watched = is_watched(t, i);
    ldr_mutex_unlock(&t->lock);
    if (!watched || i->bytes == 0) { /* 0: all of it has gone before */
        return false;
    }
    return care->share > 0 || too_old(t, i->when_s, now_s) ||
           (t->params.max_age_s != 0 &&
            ldr_ids_find(&t->care_next, i->id) <= now_s);
}

/* Done with this one. */
static int go_on(ldr_objects_t *t, ldr_care_t *care)
{
    memcpy(t->care_last, care->tenants[care->at].id, LDR_ID_BYTES);
    care->stage = LDR_CARE_NEXT;
    care->at++;
    care->done++;
    return 0;
}

static int next_tenant(ldr_part_t *p, ldr_job_t *job, ldr_backend_t *b)
{
    ldr_objects_t *t = p->tier;
    ldr_care_t *care = &p->cleaner.care;
    uint64_t now_ns = ldr_now_ns(t->params.clock);
    bool idle;

    care->at = care->at < care->count ? care->at : 0;
    while (care->done < care->count && now_ns - care->began_ns < ROUND_NS &&
           !is_due(t, care, &care->tenants[care->at])) {
        go_on(t, care);
        care->at = care->at < care->count ? care->at : 0;
    }
    if (care->done >= care->count || now_ns - care->began_ns >= ROUND_NS) {
        ldr_mutex_lock(&t->lock);
        ldr_idle_end(p);
        ldr_mutex_unlock(&t->lock);
        return 0;
    }
    const ldr_idle_t *i = &care->tenants[care->at];
    int error = is_idle(p, job, b, i, &idle);
    if (error != 0 || !idle) {
        return error != 0 ? error : go_on(t, care);
    }
    care->stage = LDR_CARE_OBJECTS;
    care->expired = too_old(t, i->when_s, ldr_wall_s(t->params.clock));
    care->after[0] = '\0';
    care->object_count = care->doomed = care->object_at = 0;
    care->manifest_count = care->manifest_at = 0;
    return 0;
}

/* ---- what there is ---- */

typedef struct names {
    ldr_care_t *care;
    size_t skip;
    uint32_t count;
    bool more, failed;
} names_t;

/* XX/ID. Names come in order, and so do the ids. */
static int object_one(void *arg, const char *name, uint64_t bytes)
{
    names_t *n = arg;
    ldr_care_t *care = n->care;
    ldr_idle_object_t o = {.blocks = (uint32_t)(bytes / LDR_BLOCK)};
    const char *rest = name + n->skip;
    void *objects = care->objects;

    if (n->count++ == NAMES_MAX) {
        n->more = true;
        return 1;
    }
    snprintf(care->after, sizeof(care->after), "%s", name);
    if (strlen(rest) != 3 + 2 * LDR_ID_BYTES ||
        memcmp(rest, rest + 3, 2) != 0 ||
        !ldr_unhex(rest + 3, LDR_ID_BYTES, o.id) ||
        care->object_count >= OBJECTS_MAX) {
        return 0; /* nothing of ours; or it is for another time */
    }
    n->failed = !ldr_grow(&objects, &care->object_room, care->object_count + 1,
                          sizeof(o));
    if (!n->failed) {
        care->objects = objects;
        care->objects[care->object_count++] = o;
    }
    return n->failed ? -ENOMEM : 0;
}

static int manifest_one(void *arg, const char *name, uint64_t bytes)
{
    names_t *n = arg;
    ldr_care_t *care = n->care;
    ldr_known_t k = {.bytes = bytes};
    void *manifests = care->manifests;

    if (!ldr_known_named(name + n->skip, &k) ||
        care->manifest_count >= MANIFESTS_MAX) {
        return 0;
    }
    n->failed = !ldr_grow(&manifests, &care->manifest_room,
                          care->manifest_count + 1, sizeof(k));
    if (!n->failed) {
        care->manifests = manifests;
        care->manifests[care->manifest_count++] = k;
    }
    return n->failed ? -ENOMEM : 0;
}

static int list(ldr_part_t *p, ldr_job_t *job, ldr_backend_t *b)
{
    ldr_care_t *care = &p->cleaner.care;
    bool objects = care->stage == LDR_CARE_OBJECTS;
    char prefix[LDR_OBJECT_NAME_MAX + 1], after[LDR_OBJECT_NAME_MAX + 1];
    names_t n = {.care = care};

    ldr_name_of(care->tenants[care->at].hex, objects ? "o/" : "m/", prefix);
    n.skip = strlen(prefix);
    memcpy(after, care->after, sizeof(after));
    int error = ldr_call_list(p->tier, job, b, prefix,
                              objects && after[0] != '\0' ? after : NULL,
                              objects ? object_one : manifest_one, &n);
    if (error >= 0 && !n.more) {
        care->stage = objects         ? LDR_CARE_MANIFESTS
                      : care->expired ? LDR_CARE_REMOVE
                                      : LDR_CARE_READ;
        care->doomed = care->expired ? care->object_count : 0;
    }
    return error < 0 ? error : 0;
}

/* ---- what it is worth ---- */

static int by_id(const void *a, const void *b)
{
    return memcmp(((const ldr_idle_object_t *)a)->id,
                  ((const ldr_idle_object_t *)b)->id, LDR_ID_BYTES);
}

static void read_entry(void *arg, const ldr_manifest_entry_t *e)
{
    ldr_care_t *care = arg;
    ldr_idle_object_t wanted;

    if ((e->kind != LDR_MANIFEST_OBJECT && e->kind != LDR_MANIFEST_USED) ||
        care->object_count == 0) {
        return;
    }
    memcpy(wanted.id, e->object.id, LDR_ID_BYTES);
    ldr_idle_object_t *o =
        bsearch(&wanted, care->objects, care->object_count, sizeof(*o), by_id);
    if (o == NULL) {
        return; /* it is gone, or somebody says that it is there */
    }
    o->used_s = (uint32_t)ldr_max64(o->used_s, e->used_s);
    if (e->kind == LDR_MANIFEST_OBJECT) {
        o->written_s = e->object.written_s;
        o->blocks = e->object.used_blocks;
    }
}

/* The last sign of life. Of an object that no manifest names the writer has
 * died before it could: that is not long before the tenant was left. */
static uint32_t last_of(const ldr_idle_object_t *o, const ldr_idle_t *i)
{
    uint32_t last_s = (uint32_t)ldr_max64(o->written_s, o->used_s);

    return last_s != 0 && last_s < i->when_s ? last_s : i->when_s;
}

static uint64_t bytes_of(const ldr_idle_object_t *o)
{
    return ((uint64_t)o->blocks + 2) * LDR_BLOCK;
}

static int by_weight(const void *a, const void *b)
{
    const ldr_idle_object_t *x = a, *y = b;

    if (x->weight != y->weight) {
        return x->weight < y->weight ? 1 : -1;
    }
    return by_id(a, b);
}

/* So much is to be given: whether this one is to go. Where a tenant has few
 * objects and little to give, by chance, so that all give the same in the long
 * run. */
static bool takes_part(ldr_objects_t *t, uint64_t *give, uint64_t bytes)
{
    ldr_mutex_lock(&t->lock);
    bool takes = *give >= bytes || ldr_rand_below(&t->rand, bytes) < *give;
    ldr_mutex_unlock(&t->lock);
    *give -= ldr_min64(*give, bytes);
    return takes;
}

/* What goes comes first. The weights are those of clean.c. */
static void plan(ldr_objects_t *t, ldr_care_t *care)
{
    const ldr_idle_t *i = &care->tenants[care->at];
    uint32_t now_s = ldr_wall_s(t->params.clock);
    uint64_t held = 0, give, next_s = UINT32_MAX;

    for (size_t k = 0; k < care->object_count; k++) {
        ldr_idle_object_t *o = &care->objects[k];
        uint32_t last_s = last_of(o, i);
        uint64_t idle_s = now_s > last_s ? now_s - last_s : 0;

        o->weight = (idle_s + 1) * (o->used_s > o->written_s ? 1 : 2);
        held += bytes_of(o);
    }
    if (care->object_count > 0) {
        qsort(care->objects, care->object_count, sizeof(care->objects[0]),
              by_weight);
    }
    give = (uint64_t)((double)held * care->share);
    for (size_t k = 0; k < care->object_count; k++) {
        ldr_idle_object_t o = care->objects[k];
        uint32_t last_s = last_of(&o, i);

        if (takes_part(t, &give, bytes_of(&o)) || too_old(t, last_s, now_s)) {
            care->objects[k] = care->objects[care->doomed];
            care->objects[care->doomed++] = o;
        } else {
            next_s = ldr_min64(next_s, (uint64_t)last_s + t->params.max_age_s);
        }
    }
    ldr_ids_latest(&t->care_next, i->id,
                   (uint32_t)ldr_max64(next_s + 1, now_s + AGAIN_S));
}

/* One manifest; what cannot be read says nothing. */
static int read_manifest(ldr_part_t *p, ldr_job_t *job, ldr_backend_t *b)
{
    ldr_care_t *care = &p->cleaner.care;
    const ldr_idle_t *i = &care->tenants[care->at];
    ldr_manifest_head_t head = {.sequence = 0};
    uint8_t *data;
    size_t bytes;

    if (care->manifest_at == care->manifest_count) {
        plan(p->tier, care);
        care->stage = LDR_CARE_REMOVE;
        return 0;
    }
    int error =
        ldr_manifest_get(p->tier, job, b, i->hex,
                         &care->manifests[care->manifest_at], &data, &bytes);
    if (error == 0) {
        memcpy(head.tenant_id, i->id, LDR_ID_BYTES);
        ldr_manifest_peek(data, bytes, &head, read_entry, care);
        ldr_free(data);
    }
    care->manifest_at++;
    return error == -ENOENT || error == -EBADMSG ? 0 : error;
}

/* ---- removing ---- */

static int remove_objects(ldr_part_t *p, ldr_job_t *job, ldr_backend_t *b)
{
    ldr_objects_t *t = p->tier;
    ldr_care_t *care = &p->cleaner.care;
    const ldr_idle_t *i = &care->tenants[care->at];
    char name[LDR_OBJECT_NAME_MAX + 1];
    bool idle;
    int error = is_idle(p, job, b, i, &idle);

    if (error != 0 || !idle) {
        return error != 0 ? error : go_on(t, care);
    }
    for (unsigned n = 0; n < PIECE && care->object_at < care->doomed; n++) {
        const ldr_idle_object_t *o = &care->objects[care->object_at];

        ldr_name_object(i->hex, o->id, name);
        error = ldr_call_remove(t, job, b, name);
        if (error != 0) {
            return error;
        }
        care->object_at++;
        ldr_mutex_lock(&t->lock);
        t->n.cleaned_objects++;
        t->n.cleaned_bytes += (uint64_t)o->blocks * LDR_BLOCK;
        ldr_mutex_unlock(&t->lock);
    }
    if (care->object_at == care->doomed) {
        care->stage = care->expired ? LDR_CARE_FORGET : LDR_CARE_TELL;
        care->manifest_at = 0;
        if (care->object_count == OBJECTS_MAX) {
            return go_on(t, care); /* there are more: the next round */
        }
    }
    return 0;
}

/* Nothing is there that they could name: a piece of the manifests. None that
 * somebody has written who has opened the tenant since: it may tell of a
 * removal that must not be forgotten. */
static int forget(ldr_part_t *p, ldr_job_t *job, ldr_backend_t *b)
{
    ldr_objects_t *t = p->tier;
    ldr_care_t *care = &p->cleaner.care;
    const ldr_idle_t *i = &care->tenants[care->at];
    char name[LDR_OBJECT_NAME_MAX + 1];
    uint8_t head[LDR_MANIFEST_HEAD];
    int error = 0;

    for (unsigned n = 0; n < PIECE && error == 0; n++) {
        if (care->manifest_at == care->manifest_count) {
            care->stage = LDR_CARE_TELL;
            break;
        }
        ldr_name_manifest(i->hex, &care->manifests[care->manifest_at++], name);
        error = ldr_call_get(t, job, b, name, 0, head, sizeof(head));
        if (error == 0) {
            uint32_t when_s = ldr_manifest_peek_when(head, i->id);

            if (when_s <= i->when_s + LDR_IDLE_S) { /* or it is none: 0 */
                error = ldr_call_remove(t, job, b, name);
            }
        } else if (error == -ENOENT || error == -ENODATA) {
            error = 0;
        }
    }
    return error;
}

/* What it holds now, and still since then. */
static int tell(ldr_part_t *p, ldr_job_t *job, ldr_backend_t *b)
{
    ldr_objects_t *t = p->tier;
    ldr_care_t *care = &p->cleaner.care;
    const ldr_idle_t *i = &care->tenants[care->at];
    uint64_t left = 0, gone = 0;
    bool idle;
    int error = is_idle(p, job, b, i, &idle);

    for (size_t k = 0; k < care->object_count; k++) {
        *(k < care->doomed ? &gone : &left) += bytes_of(&care->objects[k]);
    }
    if (error == 0 && idle && (left != i->bytes || gone > 0)) {
        error = ldr_sizes_write(t, job, b, i->hex, left, i->when_s);
    }
    if (error != 0) {
        return error;
    }
    if (care->doomed > 0) {
        ldr_info(&t->params.log,
                 "shared tier: removed %zu objects, %llu MiB, of tenant %s, "
                 "which nobody has open: %s",
                 care->doomed, (unsigned long long)(gone >> 20), i->hex,
                 care->expired || care->share <= 0
                     ? "they were not used for shared_age_s"
                     : "its share of what was above shared_max");
    }
    return go_on(t, care);
}

/* ---- the work ---- */

int ldr_idle_work(ldr_part_t *p, ldr_job_t *job, ldr_backend_t *b)
{
    static int (*const stages[])(ldr_part_t * p, ldr_job_t * job,
                                 ldr_backend_t * b) = {
        [LDR_CARE_NEXT] = next_tenant,
        [LDR_CARE_OBJECTS] = list,
        [LDR_CARE_MANIFESTS] = list,
        [LDR_CARE_READ] = read_manifest,
        [LDR_CARE_REMOVE] = remove_objects,
        [LDR_CARE_FORGET] = forget,
        [LDR_CARE_TELL] = tell,
    };
    ldr_objects_t *t = p->tier;
    ldr_care_t *care = &p->cleaner.care;
    int error = stages[care->stage](p, job, b);

    if (error == -EACCES || error == -EPERM || error == -EROFS ||
        error == -ENOSPC || error == -EDQUOT) {
        /* Another user's files, maybe: that says nothing of our own. */
        ldr_info(&t->params.log,
                 "shared tier: tenant %s, which nobody has open, cannot be "
                 "cleaned up: %s",
                 care->tenants[care->at].hex, strerror(-error));
        job->wrote = false;
        error = 0;
        go_on(t, care);
    } else if (error != 0) {
        ldr_mutex_lock(&t->lock);
        ldr_idle_end(p);
        ldr_mutex_unlock(&t->lock);
    }
    return error;
}
