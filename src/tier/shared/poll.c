/*
 * Polling: how a node learns what other nodes have written.
 *
 * A turn lists T/e/ and reads the resets that are news, then lists T/m/ and
 * reads the manifests that are. What was read is kept as a sorted list of
 * names, compared with each listing: there is nothing to assume of the order in
 * which names appear, a listing that is old shows less and the next one shows
 * the rest, and a node that is gone leaves nothing behind once the cleaner has
 * merged its manifests. A name is forgotten when three listings in a row lack
 * it, so that one that flickers is not read again.
 *
 * Manifests may be read in any order, by several workers at once: what they say
 * is applied so that the order does not matter. An object that was said to be
 * gone stays so (ids are never used again), removals are remembered by the
 * map, and of two copies of a shard all nodes choose the same.
 *
 * A manifest that goes while it is read was merged: its entries come with the
 * next listing. A volume is not ready before a turn without such a gap.
 *
 * Runs in workers. What was read is applied with the tier's lock, and the
 * storage is called without it.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "base/thread.h"
#include "tier/shared/objects_int.h"
#include "store/index.h"

#define KNOWN_MAX 1000000u
#define MISSED_MAX 3u
#define ROUNDS_MAX 4u
#define MISS_NS ((uint64_t)60 * 1000000000u)

/* ---- what is known ---- */

static int known_order(const ldr_known_manifest_t *a,
                       const ldr_known_manifest_t *b)
{
    int order = memcmp(a->node, b->node, LDR_NODE_BYTES);

    if (order != 0) {
        return order;
    }
    return a->sequence < b->sequence ? -1 : a->sequence > b->sequence;
}

static bool known_named(const char *name, ldr_known_manifest_t *k)
{
    return strlen(name) == 2 * LDR_NODE_BYTES + 17 &&
           ldr_unhex(name, LDR_NODE_BYTES, k->node) &&
           name[2 * LDR_NODE_BYTES] == '-' &&
           ldr_unhex64(name + 2 * LDR_NODE_BYTES + 1, 16, &k->sequence);
}

/* Where it is, or would be. */
static size_t known_at(const ldr_volume_t *p, const ldr_known_manifest_t *k,
                       bool *found)
{
    size_t low = 0, high = p->known_count;

    while (low < high) {
        size_t mid = (low + high) / 2;

        if (known_order(&p->known[mid], k) < 0) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    *found = low < p->known_count && known_order(&p->known[low], k) == 0;
    return low;
}

void ldr_volume_know(ldr_volume_t *p, const ldr_known_manifest_t *k)
{
    bool found;
    size_t at = known_at(p, k, &found);

    LDR_HELD(&p->tier->lock);
    if (found) {
        p->known[at] = *k;
        return;
    }
    if (!ldr_grow(&p->known, &p->known_capacity, p->known_count + 1,
                  sizeof(*k))) {
        return; /* then it is read, for nothing */
    }
    memmove(&p->known[at + 1], &p->known[at],
            (p->known_count - at) * sizeof(*k));
    p->known[at] = *k;
    p->known_count++;
}

void ldr_volume_unknow(ldr_volume_t *p, const ldr_known_manifest_t *k)
{
    bool found;
    size_t at = known_at(p, k, &found);

    LDR_HELD(&p->tier->lock);
    if (found) {
        memmove(&p->known[at], &p->known[at + 1],
                (p->known_count - at - 1) * sizeof(*k));
        p->known_count--;
    }
}

/* ---- what is gone ---- */

uint32_t ldr_volume_gone_since(const ldr_volume_t *p,
                               const uint8_t id[LDR_ID_BYTES])
{
    uint32_t since_s = ldr_ids_find(&p->gone, id);

    LDR_HELD(&p->tier->lock);
    return since_s != 0 ? since_s : ldr_ids_find(&p->gone_old, id);
}

/* Forgets what has been gone for long enough. Nothing is looked
 * through for that: there are two sets, and the older one goes as a whole. It
 * is the caller's to free, without the lock. */
static struct ldr_ids_item *forget_gone(ldr_volume_t *p)
{
    uint32_t now_s = ldr_wall_s(p->tier->params.clock);
    struct ldr_ids_item *items = p->gone_old.items;

    LDR_HELD(&p->tier->lock);
    if (now_s < p->gone_s + LDR_GONE_S && now_s >= p->gone_s) {
        return NULL;
    }
    p->gone_old = p->gone;
    p->gone = (ldr_ids_t){0};
    p->gone_s = now_s;
    return items;
}

/* ---- entries ---- */

static bool apply_object(ldr_volume_t *p, const ldr_manifest_entry_t *e)
{
    uint32_t number;
    bool ok = true;

    ldr_mutex_lock(&p->tier->lock);
    if (ldr_volume_gone_since(p, e->object.id) == 0) {
        uint32_t used_s = (uint32_t)ldr_max64(
            e->used_s, ldr_ids_find(&p->early, e->object.id));

        ok = ldr_volume_space(p, e->object.space_id, &number) != NULL &&
             ldr_map_add(p->map, &e->object, used_s, e->rows);
    }
    ldr_mutex_unlock(&p->tier->lock);
    return ok;
}

static bool entry_apply(ldr_volume_t *p, const ldr_manifest_entry_t *e,
                        uint32_t written_s)
{
    ldr_objects_t *t = p->tier;
    uint32_t number;
    bool ok = true;

    if (e->kind == LDR_MANIFEST_OBJECT) {
        return ldr_volume_raise(p, e->object.space_id, e->object.epoch) &&
               apply_object(p, e);
    }
    ldr_mutex_lock(&t->lock);
    if (e->kind == LDR_MANIFEST_GONE) {
        ok = ldr_volume_gone_since(p, e->object.id) != 0 ||
             ldr_ids_add(&p->gone, e->object.id, written_s);
        number = ldr_map_object(p->map, e->object.id);
        if (number != LDR_NIL) {
            ldr_map_drop(p->map, number);
        }
    } else if (e->kind == LDR_MANIFEST_REMOVED) {
        ok = ldr_volume_space(p, e->object.space_id, &number) != NULL;
        if (ok) {
            ldr_map_remove(p->map, number, e->rows, e->object.written_s);
        }
    } else if (e->kind == LDR_MANIFEST_USED) {
        number = ldr_map_object(p->map, e->object.id);
        if (number != LDR_NIL) {
            ldr_map_object_t *o = ldr_map_at(p->map, number);

            o->used_s = (uint32_t)ldr_max64(o->used_s, e->used_s);
        } else {
            /* Its own manifest may be the next that is read. */
            ldr_ids_latest(&p->early, e->object.id, e->used_s);
        }
    }
    ldr_mutex_unlock(&t->lock);
    return ok;
}

/* ---- one manifest ---- */

int ldr_manifest_get(ldr_job_t *job, const char *tenant,
                     const ldr_known_manifest_t *k, uint8_t **data_p,
                     size_t *bytes_p)
{
    char name[LDR_OBJECT_NAME_MAX + 1];
    uint64_t bytes = k->bytes;
    int error = 0;

    ldr_name_manifest(tenant, k, name);
    if (bytes == 0) {
        error = ldr_call_size(job, name, &bytes);
    }
    if (error != 0) {
        return error;
    }
    if (bytes == 0 || bytes > LDR_MANIFEST_BYTES_MAX) {
        return -EBADMSG;
    }
    uint8_t *data = ldr_alloc_blocks((size_t)bytes);
    if (data == NULL) {
        return -ENOMEM;
    }
    error = ldr_call_get(job, name, 0, data, (size_t)bytes);
    if (error != 0) {
        ldr_free(data);
        return error == -ENODATA ? -EBADMSG : error;
    }
    *data_p = data;
    *bytes_p = (size_t)bytes;
    return 0;
}

typedef struct reading {
    ldr_volume_t *volume;
    const ldr_manifest_head_t *head;
    uint32_t objects;
    bool failed;
} reading_t;

static void read_entry(void *arg, const ldr_manifest_entry_t *e)
{
    reading_t *r = arg;

    r->objects += e->kind == LDR_MANIFEST_OBJECT;
    if (!entry_apply(r->volume, e, r->head->written_s)) {
        r->failed = true;
    }
}

/* -EBADMSG: not a manifest of this tenant, or not the one of that name. */
static int read_manifest(ldr_volume_t *p, ldr_job_t *job,
                         ldr_known_manifest_t *k)
{
    ldr_manifest_head_t head = {.sequence = 0};
    reading_t r = {.volume = p, .head = &head};
    uint8_t *data;
    size_t bytes;
    int error = ldr_manifest_get(job, p->hex, k, &data, &bytes);

    if (error != 0) {
        return error;
    }
    memcpy(head.tenant_id, p->id, LDR_ID_BYTES);
    if (!ldr_manifest_parse(data, bytes, &p->seal, &head, read_entry, &r)) {
        error = -EBADMSG;
    } else if (r.failed) {
        error = -ENOMEM;
    }
    ldr_free(data);
    k->bytes = bytes;
    k->objects = r.objects;
    return error;
}

/* ---- a turn ---- */

/* Reads what is to be read, until nothing is left or the medium fails. */
static int read_unread(ldr_volume_t *p, ldr_job_t *job)
{
    ldr_objects_t *t = p->tier;
    int error = 0;

    ldr_mutex_lock(&t->lock);
    while (p->unread_next < p->unread_count && !t->closing &&
           p->poll_error == 0) {
        ldr_known_manifest_t k = p->unread[p->unread_next++];
        bool found;

        ldr_mutex_unlock(&t->lock);
        error = read_manifest(p, job, &k);
        ldr_mutex_lock(&t->lock);
        size_t at = known_at(p, &k, &found);
        if (error == -ENOENT) {
            p->poll_again = true;
            ldr_volume_unknow(p, &k);
        } else if (error == 0 || error == -EBADMSG) {
            k.tries += error != 0;
            k.state = error == 0                ? LDR_KNOWN_READ
                      : k.tries < LDR_TRIES_MAX ? LDR_KNOWN_NEW
                                                : LDR_KNOWN_BAD;
            t->n.manifests_read += error == 0;
            t->n.manifests_bad += k.state == LDR_KNOWN_BAD;
            if (found) {
                k.missed = p->known[at].missed;
                p->known[at] = k;
            }
        } else {
            p->poll_error = error;
            break;
        }
        error = 0;
    }
    ldr_mutex_unlock(&t->lock);
    return error;
}

static int helper_work(ldr_job_t *job, ldr_backend_t *b)
{
    ldr_chore_t *c = job->arg;

    job->backend = b;
    return read_unread(c->volume, job);
}

static void helper_done(ldr_job_t *job)
{
    ldr_chore_t *c = job->arg;
    ldr_objects_t *t = c->volume->tier;

    ldr_mutex_lock(&t->lock);
    c->busy = false;
    ldr_poll_ended(c->volume, job->error);
    pthread_cond_broadcast(&t->changed);
    ldr_objects_wake(t);
    ldr_mutex_unlock(&t->lock);
}

/* As many helpers as there is work for. */
static void call_helpers(ldr_volume_t *p)
{
    ldr_objects_t *t = p->tier;

    LDR_HELD(&p->tier->lock);
    for (size_t i = 0; i + 1 < LDR_READERS && i + 1 < p->unread_count; i++) {
        ldr_chore_t *c = &p->helpers[i];

        LDR_ASSERT(!c->busy);
        c->volume = p;
        c->job = (ldr_job_t){
            .kind = LDR_JOB_CHORE,
            .deadline_ns = ldr_now_ns(t->params.clock) + t->timeout_ns,
            .work = helper_work,
            .done = helper_done,
            .arg = c,
        };
        c->busy = ldr_workers_add(t->workers, &c->job);
        p->readers += c->busy;
        LDR_ASSERT(p->readers <= LDR_READERS);
    }
}

typedef struct names {
    size_t skip;
    ldr_known_manifest_t *at;
    size_t count, capacity;
} names_t;

static int list_one(void *arg, const char *name, uint64_t bytes)
{
    names_t *n = arg;
    ldr_known_manifest_t k = {.bytes = bytes};

    if (!known_named(name + n->skip, &k)) {
        return 0; /* somebody else's */
    }
    if (n->count >= KNOWN_MAX ||
        !ldr_grow(&n->at, &n->capacity, n->count + 1, sizeof(k))) {
        return -ENOMEM;
    }
    n->at[n->count++] = k;
    return 0;
}

/* The listing against what is known. Both are in order. */
static bool known_compare(ldr_volume_t *p, const names_t *n)
{
    ldr_known_manifest_t *next = ldr_alloc((p->known_count + n->count + 1) *
                                           sizeof(ldr_known_manifest_t));
    size_t i = 0, k = 0, count = 0, news = 0;

    LDR_HELD(&p->tier->lock);
    if (next == NULL || !ldr_grow(&p->unread, &p->unread_capacity, n->count,
                                  sizeof(ldr_known_manifest_t))) {
        ldr_free(next);
        return false;
    }
    while (i < n->count || k < p->known_count) {
        int order = i == n->count ? 1
                    : k == p->known_count
                        ? -1
                        : known_order(&n->at[i], &p->known[k]);
        ldr_known_manifest_t one = order < 0 ? n->at[i] : p->known[k];

        if (order > 0 && ++one.missed >= MISSED_MAX) {
            k++;
            continue;
        }
        if (order == 0) {
            one.missed = 0;
        }
        if (order <= 0 && one.state == LDR_KNOWN_NEW) {
            one.bytes = n->at[i].bytes;
            p->unread[news++] = one;
        }
        next[count++] = one;
        i += order <= 0;
        k += order >= 0;
    }
    ldr_free(p->known);
    p->known_capacity = p->known_count + n->count + 1;
    p->known = next;
    p->known_count = count;
    p->unread_count = news;
    p->unread_next = 0;
    return true;
}

/* ---- resets ---- */

/* Keeps the resets that are news: every space has one for ever, so a node that
 * joins may have thousands to read, and none may be left out. */
static void keep_news(ldr_volume_t *p, ldr_resets_t *list)
{
    size_t kept = 0;

    LDR_HELD(&p->tier->lock);
    for (size_t i = 0; i < list->count; i++) {
        uint32_t number = ldr_map_space_find(p->map, list->at[i].space);

        /* In the order of names: the last of a space is its highest. */
        if (number < p->space_count) {
            p->spaces[number].listed = list->at[i].epoch;
        }
        if (number == LDR_NIL ||
            ldr_map_epoch(p->map, number) < list->at[i].epoch) {
            list->at[kept++] = list->at[i];
        }
    }
    list->count = kept;
}

/* A reset that is listed and not there: the storage has lost it. Its name alone
 * proves nothing, so the epoch is not raised; but nothing of the space is used
 * until there is a higher one, or a listing lacks it. True: there are more than
 * before. */
static bool note_lost(ldr_volume_t *p, const ldr_resets_t *n)
{
    unsigned before = p->lost;
    uint32_t number;

    LDR_HELD(&p->tier->lock);
    p->lost = 0;
    for (size_t i = 0; i < p->space_count; i++) {
        p->spaces[i].lost = 0;
    }
    for (size_t i = 0; i < n->count; i++) {
        ldr_volume_space_t *s =
            n->at[i].lost != 0 ? ldr_volume_space(p, n->at[i].space, &number)
                               : NULL;

        if (s != NULL && n->at[i].lost > ldr_map_epoch(p->map, number)) {
            p->lost += s->lost == 0;
            s->lost = (uint32_t)ldr_max64(s->lost, n->at[i].lost);
        }
    }
    return p->lost > before;
}

/* With the lock, after a listing: resets that are known here and were not in it
 * are put again. The storage was emptied, or is what it was some time ago, and
 * a node that was away when the space was reset would go on with what it has.
 * Where names are cached a listing is old for a while, and to try costs calls:
 * so it is now and then. */
static void miss_resets(ldr_volume_t *p, uint32_t count)
{
    uint64_t now_ns = ldr_now_ns(p->tier->params.clock);

    LDR_HELD(&p->tier->lock);
    if (p->ready && now_ns < p->miss_at_ns) {
        return;
    }
    p->miss_at_ns = now_ns + MISS_NS;
    for (uint32_t i = 0; i < count; i++) {
        ldr_volume_space_t *s = &p->spaces[i];
        uint32_t epoch = ldr_map_epoch(p->map, i);

        if (s->listed < epoch && s->wanted == 0) {
            s->wanted = epoch;
        }
    }
}

static int poll_resets(ldr_volume_t *p, ldr_job_t *job)
{
    ldr_objects_t *t = p->tier;
    ldr_resets_t n = {.count = 0};
    uint32_t written_s;
    bool again = false;

    ldr_mutex_lock(&t->lock);
    uint32_t spaces = (uint32_t)p->space_count;
    for (uint32_t i = 0; i < spaces; i++) {
        p->spaces[i].listed = 0;
    }
    ldr_mutex_unlock(&t->lock);
    int error = ldr_reset_list(p, job, &n);
    if (error == 0) {
        ldr_mutex_lock(&t->lock);
        keep_news(p, &n);
        miss_resets(p, spaces);
        ldr_mutex_unlock(&t->lock);
    }
    for (size_t i = n.count; i-- > 0 && error == 0;) {
        bool below =
            i + 1 < n.count &&
            memcmp(n.at[i].space, n.at[i + 1].space, LDR_ID_BYTES) == 0 &&
            n.at[i + 1].epoch != 0;

        if (below) {
            n.at[i].epoch = n.at[i + 1].epoch; /* that one holds */
            continue;
        }
        error =
            ldr_reset_read(p, job, n.at[i].space, n.at[i].epoch, &written_s);
        if (error == 0 && !ldr_volume_raise(p, n.at[i].space, n.at[i].epoch)) {
            error = -ENOMEM;
        } else if (error == -ENOENT || error == -EBADMSG) {
            n.at[i].lost = error == -ENOENT ? n.at[i].epoch : 0;
            n.at[i].epoch = 0; /* the next lower one may be good */
            again = again || error == -ENOENT;
            ldr_mutex_lock(&t->lock);
            t->n.manifests_bad += error == -EBADMSG;
            ldr_mutex_unlock(&t->lock);
            error = 0;
        }
    }
    ldr_mutex_lock(&t->lock);
    p->poll_again = p->poll_again || again;
    /* One that is gone from the next listing was superseded. */
    bool last = p->ready || p->rounds + 1 >= ROUNDS_MAX;
    bool lost = error == 0 && (last || !again) && note_lost(p, &n);
    ldr_mutex_unlock(&t->lock);
    ldr_free(n.at);
    if (lost) {
        ldr_warn(&t->params.log,
                 "shared tier, tenant %s: the storage lists a reset that it "
                 "has lost: nothing of that space is used there until it is "
                 "reset again",
                 p->name);
    }
    return error;
}

/* ---- the chore ---- */

static int poll_manifests(ldr_volume_t *p, ldr_job_t *job)
{
    ldr_objects_t *t = p->tier;
    char prefix[LDR_OBJECT_NAME_MAX + 1];
    names_t n = {0};

    ldr_name_of(p->hex, "m/", prefix);
    n.skip = strlen(prefix);
    int error = ldr_call_list(job, prefix, NULL, list_one, &n);
    if (error == 0) {
        ldr_mutex_lock(&t->lock);
        if (known_compare(p, &n)) {
            call_helpers(p);
        } else {
            error = -ENOMEM;
        }
        ldr_mutex_unlock(&t->lock);
    }
    ldr_free(n.at);
    return error != 0 ? error : read_unread(p, job);
}

int ldr_poll_work(ldr_volume_t *p, ldr_job_t *job)
{
    ldr_objects_t *t = p->tier;

    ldr_mutex_lock(&t->lock);
    struct ldr_ids_item *old = forget_gone(p);
    p->readers = 1;
    p->poll_began_ns = ldr_now_ns(t->params.clock);
    p->distrusted = false;
    p->poll_error = 0;
    p->poll_again = false;
    p->unread_count = p->unread_next = 0;
    ldr_mutex_unlock(&t->lock);
    ldr_free(old);
    int error = poll_resets(p, job);
    if (error == 0) {
        error = poll_manifests(p, job);
    }
    if (error == 0) {
        ldr_volume_notify(p);
    }
    return error;
}

bool ldr_poll_old(const ldr_volume_t *p, uint64_t now_ns)
{
    const ldr_objects_t *t = p->tier;

    LDR_HELD(&p->tier->lock);
    /* Two turns of slow calls, of which the second has not ended yet. */
    return now_ns - p->polled_ns > 10 * t->poll_ns + 4 * t->timeout_ns;
}

void ldr_poll_distrust(ldr_volume_t *p)
{
    LDR_HELD(&p->tier->lock);
    p->ready = false;
    p->distrusted = true;
    p->rounds = 0;
}

void ldr_poll_ended(ldr_volume_t *p, int error)
{
    ldr_objects_t *t = p->tier;
    uint64_t now_ns = ldr_now_ns(t->params.clock);
    ldr_chore_t *c = &p->chores[LDR_CHORE_POLL];

    LDR_HELD(&p->tier->lock);
    if (p->readers == 0) {
        return; /* it was not begun */
    }
    if (p->poll_error == 0) {
        p->poll_error = error;
    }
    if (--p->readers > 0) {
        return;
    }
    /* A turn that others ended, or that was ended, reads on in the next. */
    bool whole = p->unread_next >= p->unread_count && p->poll_error == 0;
    if (!whole) {
        c->at_ns = ldr_max64(c->at_ns, now_ns + t->poll_ns);
        if (!p->ready) {
            snprintf(p->reason, sizeof(p->reason),
                     "tenant %s: its manifests cannot be read: %s", p->name,
                     strerror(-p->poll_error));
        }
        return;
    }
    ldr_ids_clear(&p->early); /* of what is gone */
    p->polled_ns = p->poll_began_ns;
    c->at_ns = now_ns + t->poll_ns;
    if (p->ready) {
        return;
    }
    if (p->distrusted || ldr_poll_old(p, now_ns) ||
        (p->poll_again && ++p->rounds < ROUNDS_MAX)) {
        c->at_ns = now_ns;
        return;
    }
    p->ready = true;
    p->reason[0] = '\0';
}
