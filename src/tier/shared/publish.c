/*
 * Publishing: what this node has to tell goes to `pending`, entry by entry. At
 * most publish_ms after the first entry, or at once where somebody waits, it
 * becomes `sending`, sealed under the next number, and is put under that name
 * until it succeeds: the same bytes each time, so that a put that was thought
 * to have failed does no harm. Meanwhile `pending` grows up to a bound; objects
 * beyond that are published by nobody until the cleaner finds them.
 *
 * Uses are published with what is published anyway, and by themselves ten
 * seconds after the first; the use of one object at most once a minute.
 *
 * Entries are added and sealed with the tier's lock; a worker puts them without
 * it.
 */
#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "base/thread.h"
#include "tier/shared/objects_int.h"
#include "store/index.h"

#define PENDING_MAX ((size_t)16 << 20)
#define USES_MAX 65536u

/* ---- with the lock ---- */

bool ldr_volume_publish(ldr_volume_t *p, const ldr_manifest_entry_t *e,
                        bool urgent)
{
    ldr_objects_t *t = p->tier;
    bool lasting = e->kind != LDR_MANIFEST_USED;

    LDR_HELD(&p->tier->lock);
    if (p->pending.bytes > (urgent ? 2 * PENDING_MAX : PENDING_MAX) ||
        !ldr_manifest_add(&p->pending, e)) {
        return false;
    }
    if (p->pending.entries == 1) {
        p->pending_since_ns = ldr_now_ns(t->params.clock);
    }
    p->added += lasting;
    p->pending_objects += e->kind == LDR_MANIFEST_OBJECT;
    p->urgent = p->urgent || urgent;
    ldr_objects_wake(t);
    return true;
}

void ldr_volume_used(ldr_volume_t *p, const uint8_t id[LDR_ID_BYTES],
                     uint32_t used_s)
{
    ldr_objects_t *t = p->tier;
    uint32_t number = ldr_map_object(p->map, id);

    LDR_HELD(&p->tier->lock);
    if (number == LDR_NIL) {
        return;
    }
    ldr_map_object_t *o = ldr_map_at(p->map, number);
    if (used_s < o->used_s + LDR_USED_S && o->used_s != 0) {
        return;
    }
    o->used_s = used_s;
    if (o->use_waits || p->use_count >= USES_MAX ||
        !ldr_grow(&p->uses, &p->use_capacity, p->use_count + 1, LDR_ID_BYTES)) {
        return;
    }
    o->use_waits = true;
    memcpy(p->uses[p->use_count++], id, LDR_ID_BYTES);
    if (p->use_count == 1) {
        p->uses_at_ns =
            ldr_now_ns(t->params.clock) + (uint64_t)LDR_USES_S * 1000000000u;
    }
}

bool ldr_volume_add(ldr_volume_t *p, const ldr_manifest_entry_t *e, bool urgent)
{
    bool ok = ldr_map_add(p->map, &e->object, e->used_s, e->rows) &&
              ldr_volume_publish(p, e, urgent);
    uint32_t number = ldr_map_object(p->map, e->object.id);

    LDR_HELD(&p->tier->lock);
    if (!ok && number != LDR_NIL) {
        ldr_map_drop(p->map, number);
    }
    return ok;
}

bool ldr_volume_gone(ldr_volume_t *p, const uint8_t id[LDR_ID_BYTES])
{
    uint32_t number = ldr_map_object(p->map, id);
    ldr_manifest_entry_t e = {.kind = LDR_MANIFEST_GONE};

    LDR_HELD(&p->tier->lock);
    memcpy(e.object.id, id, LDR_ID_BYTES);
    if (!ldr_ids_add(&p->gone, id, ldr_wall_s(p->tier->params.clock)) ||
        !ldr_volume_publish(p, &e, true)) {
        return false;
    }
    if (number != LDR_NIL) {
        ldr_map_drop(p->map, number);
    }
    return true;
}

static void add_uses(ldr_volume_t *p)
{
    LDR_HELD(&p->tier->lock);
    for (size_t i = 0; i < p->use_count; i++) {
        uint32_t number = ldr_map_object(p->map, p->uses[i]);
        ldr_manifest_entry_t e = {.kind = LDR_MANIFEST_USED};

        if (number == LDR_NIL) {
            continue;
        }
        ldr_map_object_t *o = ldr_map_at(p->map, number);
        memcpy(e.object.id, p->uses[i], LDR_ID_BYTES);
        e.used_s = o->used_s;
        o->use_waits = false;
        ldr_volume_publish(p, &e, false);
    }
    p->use_count = 0;
}

uint64_t ldr_publish_at(const ldr_volume_t *p)
{
    const ldr_objects_t *t = p->tier;
    uint64_t at_ns = UINT64_MAX;

    LDR_HELD(&p->tier->lock);
    if (p->sending.bytes > 0) {
        return 0;
    }
    if (p->pending.bytes > 0) {
        at_ns =
            p->urgent || t->closing ? 0 : p->pending_since_ns + t->publish_ns;
    }
    if (p->use_count > 0 && !t->closing) {
        at_ns = ldr_min64(at_ns, p->uses_at_ns);
    }
    return at_ns;
}

/* ---- the chore ---- */

static void manifest_begin(ldr_volume_t *p)
{
    LDR_HELD(&p->tier->lock);
    add_uses(p);
    if (p->pending.bytes == 0) {
        return;
    }
    p->sending = p->pending;
    memset(&p->pending, 0, sizeof(p->pending));
    p->sending_added = p->added;
    p->sending_objects = p->pending_objects;
    p->pending_objects = 0;
    p->sending_sequence = p->sequence++;
    p->urgent = false;
}

/* A put that failed may be the first that is heard of another tier, which must
 * not be told what the last one had. 1: it is another. */
static int recognize(ldr_volume_t *p, ldr_job_t *job)
{
    ldr_objects_t *t = p->tier;
    uint64_t deadline_ns = ldr_now_ns(t->params.clock) + t->timeout_ns;

    if (!job->backend->ops->makes_itself) {
        return 0;
    }
    ldr_job_extend(job, deadline_ns);
    int error = ldr_objects_recognize(t, job->backend, deadline_ns);
    ldr_mutex_lock(&t->lock);
    bool outdated = p->outdated;
    ldr_mutex_unlock(&t->lock);
    return error == 0 && outdated ? 1 : error;
}

int ldr_publish_work(ldr_volume_t *p, ldr_job_t *job)
{
    ldr_objects_t *t = p->tier;
    char name[LDR_OBJECT_NAME_MAX + 1];
    ldr_known_manifest_t k = {.state = LDR_KNOWN_READ};
    ldr_manifest_head_t head = {.written_s = ldr_wall_s(t->params.clock)};
    int error = 0;

    ldr_mutex_lock(&t->lock);
    bool fresh = p->sending.bytes == 0;
    if (fresh) {
        manifest_begin(p);
    }
    bool some = p->sending.bytes > 0;
    k.sequence = head.sequence = p->sending_sequence;
    ldr_mutex_unlock(&t->lock);
    if (!some) {
        return 0;
    }
    error = fresh ? 0 : recognize(p, job);
    if (error != 0) {
        return error > 0 ? 0 : error;
    }
    /* `sending` is this chore's. */
    memcpy(k.node, t->node, LDR_NODE_BYTES);
    memcpy(head.node_id, t->node, LDR_NODE_BYTES);
    memcpy(head.tenant_id, p->id, LDR_ID_BYTES);
    if (!p->sealed && !ldr_manifest_finish(&p->sending, &head, &p->seal)) {
        return -ENOMEM;
    }
    p->sealed = true;
    ldr_name_manifest(p->hex, &k, name);
    error = ldr_call_put(job, name, p->sending.data, p->sending.bytes, 0);
    if (error != 0) {
        return error;
    }
    ldr_mutex_lock(&t->lock);
    k.bytes = p->sending.bytes;
    k.objects = p->sending_objects;
    ldr_volume_know(p, &k);
    ldr_manifest_clear(&p->sending);
    p->sealed = false;
    p->sending_objects = 0;
    LDR_ASSERT(p->published <= p->sending_added &&
               p->sending_added <= p->added);
    p->published = p->sending_added;
    t->n.manifests_written++;
    ldr_mutex_unlock(&t->lock);
    return 0;
}

/* ---- removing, flushing ---- */

typedef struct waited {
    const ldr_objects_t *tier;
    const ldr_volume_t *volume; /* NULL: all */
    uint64_t added;
} waited_t;

static bool is_out(const ldr_volume_t *p, uint64_t added)
{
    return p->refused || p->garbled || p->published >= added;
}

static bool is_published(const void *arg)
{
    const waited_t *w = arg;

    if (w->tier->state == LDR_OBJECTS_OFF) {
        return true; /* it is of no use to wait */
    }
    if (w->volume != NULL) {
        return is_out(w->volume, w->added);
    }
    for (size_t i = 0; i < w->tier->volume_count; i++) {
        if (!is_out(w->tier->volumes[i], w->tier->volumes[i]->added)) {
            return false;
        }
    }
    return true;
}

/* With the lock, which it gives up. */
static larder_status_t wait_published(ldr_objects_t *t, const ldr_volume_t *p,
                                      uint64_t added, uint64_t deadline_ns,
                                      const char *what)
{
    waited_t w = {t, p, added};
    bool done = ldr_objects_wait(t, is_published, &w, deadline_ns);
    bool off = t->state == LDR_OBJECTS_OFF ||
               (p != NULL && (p->garbled || p->refused));

    LDR_HELD(&t->lock);
    ldr_mutex_unlock(&t->lock);
    if (off) {
        return ldr_fail(LARDER_E_TIER_OFF,
                        "the shared tier is off: %s is not in it yet", what);
    }
    return done ? LARDER_OK
                : ldr_fail(LARDER_E_DEADLINE,
                           "%s is not in the shared tier yet", what);
}

larder_status_t ldr_objects_remove(ldr_objects_t *t, uint32_t tenant,
                                   uint32_t space,
                                   const ldr_manifest_row_t *rows, size_t count,
                                   uint64_t *token_p)
{
    bool ok = true;

    ldr_mutex_lock(&t->lock);
    ldr_volume_t *p = ldr_objects_volume(t, tenant);
    if (p == NULL || space >= p->space_count) {
        ldr_mutex_unlock(&t->lock);
        return ldr_fail(LARDER_E_INVALID, "no such space in the shared tier");
    }
    uint32_t when_s =
        ldr_map_remove_s(p->map, space, ldr_wall_s(t->params.clock));
    for (size_t i = 0; i < count; i++) {
        ldr_manifest_row_t row = rows[i];
        ldr_manifest_entry_t e = {.kind = LDR_MANIFEST_REMOVED, .rows = &row};

        if (row.shards <= row.shard) {
            row.shards = (uint8_t)(row.shard + 1); /* nobody looks at it */
        }
        memcpy(e.object.space_id, p->spaces[space].id, LDR_ID_BYTES);
        e.object.written_s = when_s;
        ldr_map_remove(p->map, space, &row, when_s);
        ok = ldr_volume_publish(p, &e, true) && ok;
    }
    *token_p = p->added;
    ldr_mutex_unlock(&t->lock);
    return ok ? LARDER_OK
              : ldr_fail(LARDER_E_BUSY,
                         "too much waits to be published in the shared tier: "
                         "try again");
}

larder_status_t ldr_objects_removed(ldr_objects_t *t, uint32_t tenant,
                                    uint64_t token, uint64_t deadline_ns)
{
    ldr_mutex_lock(&t->lock);
    const ldr_volume_t *p = ldr_objects_volume(t, tenant);
    if (p == NULL) {
        ldr_mutex_unlock(&t->lock);
        return ldr_fail(LARDER_E_INVALID, "no such tenant in the shared tier");
    }
    return wait_published(t, p, token, deadline_ns, "the removal");
}

larder_status_t ldr_objects_flush(ldr_objects_t *t, uint64_t deadline_ns)
{
    ldr_mutex_lock(&t->lock);
    for (size_t i = 0; i < t->volume_count; i++) {
        t->volumes[i]->urgent = true;
    }
    return wait_published(t, NULL, 0, deadline_ns, "something that was saved");
}
