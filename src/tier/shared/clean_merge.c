/*
 * Few manifests instead of many, so that a node that joins has little to list
 * and those that poll read little twice: eight of about the same size become
 * one of the next size, up to a bound. Each entry is thus read again a few
 * times at most, however many are written.
 *
 * The cleaner only merges what it has read itself. Of the entries it keeps
 * objects that its map still has, once each and with their last use; that an
 * object is gone for an hour, since by then every node that polls has read it,
 * and whoever joins later finds out by a miss or from the walk over the names;
 * removals for a month, and as long as they may matter; and uses that are the
 * last. The new manifest is put, then the old ones are removed: whoever reads
 * between finds both, which say the same.
 *
 * Where manifests hold twice as many objects as there are, the largest are
 * rewritten one by one, so that what is gone goes from them too.
 *
 * Runs in a worker. The map is looked at with the tier's lock, and the storage
 * is called without it.
 */
#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "base/thread.h"
#include "tier/shared/objects_int.h"
#include "store/index.h"

#define SECOND_NS ((uint64_t)1000000000u)
#define FEW 8u /* are made one */
/* At once: on slow storage more come while a group is compacted. */
#define INPUTS_MAX 128u
#define LEVELS 4u /* of sizes, each eight times the one before */
#define LEVEL_0 ((uint64_t)64 << 10)
#define MERGED_MAX ((uint64_t)32 << 20)

typedef struct merge {
    ldr_volume_t *volume;
    ldr_known_manifest_t inputs[INPUTS_MAX];
    uint32_t count;
    uint8_t *data[INPUTS_MAX];
    size_t bytes[INPUTS_MAX];
    ldr_manifest_t out;
    ldr_ids_t seen; /* objects in `out` */
    uint32_t objects;
    unsigned pass;
    bool failed;
} merge_t;

/* LEVELS: too large to be merged. */
static unsigned level_of(uint64_t bytes)
{
    unsigned level = 0;

    for (uint64_t most = LEVEL_0; level < LEVELS && bytes > most; level++) {
        most *= FEW;
    }
    return level;
}

/* Eight or more of one size. */
static void choose_small(const ldr_volume_t *p, merge_t *m)
{
    uint32_t counts[LEVELS + 1] = {0};
    unsigned level = 0;
    uint64_t bytes = 0;

    LDR_HELD(&p->tier->lock);
    for (size_t i = 0; i < p->known_count; i++) {
        if (p->known[i].state == LDR_KNOWN_READ) {
            counts[level_of(p->known[i].bytes)]++;
        }
    }
    while (level < LEVELS && counts[level] < FEW) {
        level++;
    }
    for (size_t i = 0; level < LEVELS && i < p->known_count; i++) {
        const ldr_known_manifest_t *k = &p->known[i];

        if (k->state == LDR_KNOWN_READ && level_of(k->bytes) == level &&
            m->count < INPUTS_MAX && bytes + k->bytes <= MERGED_MAX) {
            m->inputs[m->count++] = *k;
            bytes += k->bytes;
        }
    }
}

/* The one with most objects, if much of what there is is gone. */
static void choose_full(ldr_volume_t *p, merge_t *m)
{
    ldr_map_stats_t stats;
    uint64_t objects = 0;
    const ldr_known_manifest_t *most = NULL;
    uint64_t now_ns = ldr_now_ns(p->tier->params.clock);

    LDR_HELD(&p->tier->lock);
    for (size_t i = 0; i < p->known_count; i++) {
        const ldr_known_manifest_t *k = &p->known[i];

        if (k->state == LDR_KNOWN_READ) {
            objects += k->objects;
            most = most == NULL || k->objects > most->objects ? k : most;
        }
    }
    ldr_map_stats(p->map, &stats);
    if (most != NULL && objects > 2 * stats.objects + 64 &&
        now_ns >= p->cleaner.rewrite_at_ns) {
        p->cleaner.rewrite_at_ns = now_ns + 60 * SECOND_NS;
        m->inputs[m->count++] = *most;
    }
}

/* ---- entries ---- */

static bool keep_object(merge_t *m, ldr_manifest_entry_t *e)
{
    ldr_volume_t *p = m->volume;
    uint32_t number = ldr_map_object(p->map, e->object.id);

    LDR_HELD(&m->volume->tier->lock);
    if (number == LDR_NIL || ldr_ids_find(&m->seen, e->object.id) != 0) {
        return false;
    }
    e->used_s =
        (uint32_t)ldr_max64(e->used_s, ldr_map_at(p->map, number)->used_s);
    m->failed = !ldr_ids_add(&m->seen, e->object.id, 1) || m->failed;
    m->objects++;
    return true;
}

static bool entry_keep(merge_t *m, ldr_manifest_entry_t *e)
{
    ldr_volume_t *p = m->volume;
    uint32_t now_s = ldr_wall_s(p->tier->params.clock), number;

    switch (e->kind) {
    case LDR_MANIFEST_GONE: {
        uint32_t since_s = ldr_volume_gone_since(p, e->object.id);

        if (since_s == 0 || now_s > since_s + LDR_GONE_S ||
            ldr_ids_find(&m->seen, e->object.id) != 0) {
            return false;
        }
        m->failed = !ldr_ids_add(&m->seen, e->object.id, 1) || m->failed;
        return true;
    }
    case LDR_MANIFEST_REMOVED:
        number = ldr_map_space_find(p->map, e->object.space_id);
        /* dead_s is 0 where no pass has looked yet. */
        return now_s < e->object.written_s + LDR_REMOVED_S ||
               (number < p->space_count &&
                p->spaces[number].dead_s <= e->object.written_s);
    case LDR_MANIFEST_USED:
        number = ldr_map_object(p->map, e->object.id);
        return number != LDR_NIL && ldr_ids_find(&m->seen, e->object.id) == 0 &&
               e->used_s >= ldr_map_at(p->map, number)->used_s;
    default:
        return keep_object(m, e);
    }
}

/* What is gone first, then removals, objects and uses: see clean_compact.c. */
static const ldr_manifest_kind_t order[] = {
    LDR_MANIFEST_GONE, LDR_MANIFEST_REMOVED, LDR_MANIFEST_OBJECT,
    LDR_MANIFEST_USED};

static void take_entry(void *arg, const ldr_manifest_entry_t *entry)
{
    merge_t *m = arg;
    ldr_manifest_entry_t e = *entry;

    if (e.kind != order[m->pass] || m->failed) {
        return;
    }
    ldr_mutex_lock(&m->volume->tier->lock);
    bool kept = entry_keep(m, &e);
    ldr_mutex_unlock(&m->volume->tier->lock);
    if (kept && !ldr_manifest_add(&m->out, &e)) {
        m->failed = true;
    }
}

/* It does not parse, although it did when it was polled: it is to be read
 * once more. */
static void mark_bad(ldr_volume_t *p, const ldr_known_manifest_t *input)
{
    ldr_known_manifest_t k = *input;

    k.state = LDR_KNOWN_NEW;
    ldr_mutex_lock(&p->tier->lock);
    ldr_volume_know(p, &k);
    ldr_mutex_unlock(&p->tier->lock);
}

static int merge_compose(merge_t *m)
{
    ldr_volume_t *p = m->volume;
    ldr_manifest_head_t head;

    for (m->pass = 0; m->pass < 4; m->pass++) {
        for (uint32_t i = 0; i < m->count; i++) {
            memcpy(head.tenant_id, p->id, LDR_ID_BYTES);
            if (!ldr_manifest_parse(m->data[i], m->bytes[i], &p->seal, &head,
                                    take_entry, m)) {
                mark_bad(p, &m->inputs[i]);
                return -EBADMSG;
            }
        }
    }
    return m->failed ? -ENOMEM : 0;
}

/* ---- putting it in their place ---- */

static int put_merged(merge_t *m, ldr_job_t *job)
{
    ldr_volume_t *p = m->volume;
    ldr_objects_t *t = p->tier;
    char name[LDR_OBJECT_NAME_MAX + 1];
    ldr_known_manifest_t k = {.state = LDR_KNOWN_READ, .objects = m->objects};
    ldr_manifest_head_t head = {.written_s = ldr_wall_s(t->params.clock)};

    if (m->out.entries == 0) {
        return 0;
    }
    ldr_mutex_lock(&t->lock);
    k.sequence = head.sequence = p->sequence++;
    ldr_mutex_unlock(&t->lock);
    memcpy(k.node, t->node, LDR_NODE_BYTES);
    memcpy(head.node_id, t->node, LDR_NODE_BYTES);
    memcpy(head.tenant_id, p->id, LDR_ID_BYTES);
    if (!ldr_manifest_finish(&m->out, &head, &p->seal)) {
        return -ENOMEM;
    }
    k.bytes = m->out.bytes;
    ldr_name_manifest(p->hex, &k, name);
    int error =
        ldr_call_put(job, name, m->out.data, m->out.bytes, LDR_OBJECT_NEW);
    if (error == 0) {
        ldr_mutex_lock(&t->lock);
        ldr_volume_know(p, &k);
        t->n.manifests_written++;
        ldr_mutex_unlock(&t->lock);
    }
    return error;
}

static int remove_inputs(merge_t *m, ldr_job_t *job)
{
    ldr_volume_t *p = m->volume;
    char name[LDR_OBJECT_NAME_MAX + 1];

    for (uint32_t i = 0; i < m->count; i++) {
        ldr_name_manifest(p->hex, &m->inputs[i], name);
        int error = ldr_call_remove(job, name);
        if (error != 0) {
            return error; /* what is left is merged once more */
        }
        ldr_mutex_lock(&p->tier->lock);
        ldr_volume_unknow(p, &m->inputs[i]);
        ldr_mutex_unlock(&p->tier->lock);
    }
    return 0;
}

/* Gets all inputs; those that are gone are merged already. */
static int get_inputs(merge_t *m, ldr_job_t *job)
{
    uint32_t kept = 0;
    int error = 0;

    for (uint32_t i = 0; i < m->count && error == 0; i++) {
        ldr_known_manifest_t k = m->inputs[i];

        error = ldr_manifest_get(job, m->volume->hex, &k, &m->data[kept],
                                 &m->bytes[kept]);
        if (error == 0) {
            m->inputs[kept++] = k;
        } else if (error == -ENOENT) {
            ldr_mutex_lock(&m->volume->tier->lock);
            ldr_volume_unknow(m->volume, &k);
            ldr_mutex_unlock(&m->volume->tier->lock);
            error = 0;
        } else if (error == -EBADMSG) {
            mark_bad(m->volume, &k);
            error = 0;
        }
    }
    m->count = kept;
    return error;
}

int ldr_merge_work(ldr_volume_t *p, ldr_job_t *job)
{
    ldr_objects_t *t = p->tier;
    merge_t *m = ldr_alloc(sizeof(*m));

    if (m == NULL) {
        return -ENOMEM;
    }
    m->volume = p;
    p->cleaner.merge_at_ns = ldr_now_ns(t->params.clock) + SECOND_NS;
    ldr_mutex_lock(&t->lock);
    choose_small(p, m);
    if (m->count == 0) {
        choose_full(p, m);
    }
    ldr_mutex_unlock(&t->lock);
    int error = get_inputs(m, job);
    if (error == 0 && m->count > 0) {
        error = merge_compose(m);
        if (error == 0) {
            error = put_merged(m, job);
        }
        if (error == 0) {
            error = remove_inputs(m, job);
        }
    }
    for (uint32_t i = 0; i < INPUTS_MAX; i++) {
        ldr_free(m->data[i]);
    }
    ldr_manifest_clear(&m->out);
    ldr_ids_clear(&m->seen);
    ldr_free(m);
    return error;
}
