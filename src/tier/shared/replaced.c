/*
 * A tier that is another than it was: a server that keeps nothing and was
 * restarted, a bucket that was emptied. Storage of that kind becomes a tier by
 * itself (backend.h: makes_itself), so it is one again by the next probe, with
 * another id. A node that knows the old one's objects would find them for ever,
 * and not write them again. So the id is remembered, and compared at each
 * probe. A directory compares for itself, and is off while it is another's: it
 * may be another mount.
 *
 * All that is known is then forgotten, volume by volume, except the epochs of
 * spaces and removals that were not published yet. The resets that the new tier
 * lacks are put again by polling (poll.c). What is there is read as by
 * a node that joins.
 *
 * What is remembered changes under the lock of ldr_objects_t; no call to
 * storage is made with it.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/thread.h"
#include "tier/shared/objects_int.h"
#include "store/index.h"

/* ---- which tier it is ---- */

static void replace(ldr_objects_t *t)
{
    LDR_HELD(&t->lock);
    t->replaced++;
    for (size_t i = 0; i < t->volume_count; i++) {
        ldr_volume_t *p = t->volumes[i];

        p->outdated = true;
        p->checked = false;
        ldr_poll_distrust(p);
        for (unsigned k = 0; k < LDR_CHORES; k++) {
            p->chores[k].at_ns = 0;
        }
        snprintf(p->reason, sizeof(p->reason),
                 "tenant %s: the tier is another than before, and was not "
                 "looked at yet",
                 p->name);
    }
    pthread_cond_broadcast(&t->changed);
    ldr_objects_wake(t);
}

int ldr_objects_recognize(ldr_objects_t *t, ldr_backend_t *b,
                          uint64_t deadline_ns)
{
    uint8_t id[LDR_OBJECTS_ID_MAX] = {0};
    uint64_t bytes = 0;
    int error = b->ops->size(b, LDR_OBJECTS_ID_NAME, &bytes, deadline_ns);

    struct iovec iov = {id, (size_t)ldr_min64(bytes, sizeof(id))};
    if (error == 0 && bytes > 0) {
        error = b->ops->get(b, LDR_OBJECTS_ID_NAME, 0, &iov, 1, deadline_ns);
    }
    if (error != 0) {
        /* It went just now: the next probe makes another one. */
        return error == -ENOENT || error == -ENODATA ? -ENODEV : error;
    }
    ldr_mutex_lock(&t->lock);
    bool same = !t->has_id || (t->id_bytes == iov.iov_len &&
                               memcmp(t->id, id, sizeof(id)) == 0);
    memcpy(t->id, id, sizeof(id));
    t->id_bytes = iov.iov_len;
    t->has_id = true;
    if (!same) {
        replace(t);
    }
    ldr_mutex_unlock(&t->lock);
    if (!same) {
        ldr_warn(&t->params.log,
                 "shared tier: it is another than before, or was emptied: "
                 "what was known of it is forgotten");
    }
    return 0;
}

/* ---- a volume of it ---- */

bool ldr_volume_idle(const ldr_volume_t *p)
{
    LDR_HELD(&p->tier->lock);
    for (unsigned k = 0; k < LDR_CHORES; k++) {
        if (k != LDR_CHORE_CHECK && p->chores[k].busy) {
            return false;
        }
    }
    return p->readers == 0;
}

typedef struct rest {
    ldr_volume_t *volume;
    ldr_map_t *map; /* the new one */
    ldr_manifest_t pending;
    bool failed;
} rest_t;

/* Of what was to be published only removals are kept: somebody may wait for
 * one, of what was saved in the new tier. Objects that are there and were not
 * told of the cleaner finds. */
static void keep_removal(void *arg, const ldr_manifest_entry_t *e)
{
    rest_t *r = arg;

    if (e->kind != LDR_MANIFEST_REMOVED) {
        return;
    }
    uint32_t space = ldr_map_space_find(r->map, e->object.space_id);
    if (space == LDR_NIL || !ldr_manifest_add(&r->pending, e)) {
        r->failed = true;
    } else {
        ldr_map_remove(r->map, space, e->rows, e->object.written_s);
    }
}

/* An empty map with the same spaces under the same numbers. */
static bool begin_map(rest_t *r)
{
    ldr_volume_t *p = r->volume;
    ldr_objects_t *t = p->tier;
    bool ok = true;

    r->map = ldr_map_create(t->params.seed != 0 ? ldr_rand_next(&t->rand)
                                                : ldr_rand_entropy());
    if (r->map != NULL) {
        ldr_map_guard(r->map, &t->lock);
    }
    for (size_t i = 0; r->map != NULL && ok && i < p->space_count; i++) {
        ok = ldr_map_space(r->map, p->spaces[i].id) == i;
        if (ok) {
            ldr_map_set_epoch(r->map, (uint32_t)i,
                              ldr_map_epoch(p->map, (uint32_t)i));
        }
    }
    return r->map != NULL && ok &&
           ldr_manifest_each(&p->sending, keep_removal, r) &&
           ldr_manifest_each(&p->pending, keep_removal, r) && !r->failed;
}

/* Keeps what the cleaner has allocated, and when it forgets. */
static void end_role(ldr_volume_t *p)
{
    ldr_cleaner_t *c = &p->cleaner;

    LDR_HELD(&p->tier->lock);
    c->role = LDR_ROLE_NONE;
    c->role_at_ns = 0;
    c->victim_count = 0;
    c->victims_after = 0;
    c->compact_space = c->compact_start = c->suspect_start = 0;
    if (c->marks_capacity > 0) {
        memset(c->marks, 0, c->marks_capacity);
    }
    ldr_ids_clear(&c->bad);
}

/* What replaces it is `r`, which gets what is to be freed. */
static void swap(ldr_volume_t *p, rest_t *r)
{
    ldr_map_t *map = p->map;

    LDR_HELD(&p->tier->lock);
    p->map = r->map;
    r->map = map;
    ldr_manifest_clear(&p->sending);
    ldr_manifest_clear(&p->pending);
    p->pending = r->pending;
    r->pending = (ldr_manifest_t){0};
    p->sealed = false;
    p->sending_objects = p->pending_objects = 0;
    p->pending_since_ns = ldr_now_ns(p->tier->params.clock);
    if (p->pending.entries == 0) {
        p->published = p->added; /* there is nothing left to wait for */
        p->urgent = false;
    }
    p->use_count = 0;
    ldr_ids_clear(&p->early);
    p->known_count = 0;
    p->unread_count = p->unread_next = 0;
    p->lost = 0;
    for (size_t i = 0; i < p->space_count; i++) {
        p->spaces[i].lost = 0;
        p->spaces[i].dead_s = p->spaces[i].dead_next_s = 0;
    }
    end_role(p);
    p->refused = p->garbled = p->outdated = false;
}

bool ldr_volume_forget(ldr_volume_t *p)
{
    ldr_objects_t *t = p->tier;
    rest_t r = {.volume = p};
    bool ok = true;

    ldr_mutex_lock(&t->lock);
    if (p->outdated) {
        ok = begin_map(&r);
        if (ok) {
            swap(p, &r);
        }
    }
    ldr_mutex_unlock(&t->lock);
    ldr_manifest_clear(&r.pending);
    ldr_map_destroy(r.map);
    return ok;
}
