/*
 * Making one object of several: their live records are read, authenticated,
 * sealed again for the new object and put; then one manifest says that the old
 * ones are gone, and after that, that the new one is there, in this order: of
 * two copies of a shard the map keeps one, and it must not be one that goes.
 *
 * The new object counts as written when the oldest of its sources was, so that
 * a removal that is not known here yet still applies to what it was about. So
 * an object with a record that was removed and saved again is not made one with
 * any from before that removal.
 *
 * Runs in a worker. The map is looked at and changed with the tier's lock, and
 * the storage is called without it.
 */
#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "base/thread.h"
#include "tier/shared/objects_int.h"
#include "store/index.h"

#define BLOCKS_MOST ((LDR_OBJECT_BYTES_MAX / 2) / LDR_BLOCK)

typedef struct source {
    uint8_t id[LDR_ID_BYTES];
    uint32_t block; /* there */
} source_t;

typedef struct work {
    ldr_volume_t *volume;
    ldr_job_t *job;
    ldr_object_t object; /* the new one */
    uint32_t used_s;
    uint32_t removed_s;    /* the latest removal of a name in it */
    bool holes;            /* some records were left out */
    ldr_record_t *records; /* of it; before it was read, as they were */
    source_t *from;
    uint32_t count;
    uint32_t blocks;
    uint32_t bad; /* records that are lost with their object */
    uint8_t *data;
    /* Those that were read, or whose records are all dead. */
    uint8_t done[LDR_COMPACT_MAX][LDR_ID_BYTES];
    uint32_t done_count;
} work_t;

/* Whether the record is what is found under its name. */
static bool is_live(const ldr_volume_t *p, uint32_t space,
                    const uint8_t id[LDR_ID_BYTES], const ldr_record_t *r,
                    uint32_t now_s)
{
    ldr_object_place_t place;

    LDR_HELD(&p->tier->lock);
    return (r->expires_s == 0 || r->expires_s > now_s) &&
           r->group <= UINT8_MAX && r->shard <= UINT8_MAX &&
           ldr_map_find(p->map, space, r->key.hash, (uint8_t)r->group,
                        (uint8_t)r->shard, &place) &&
           place.block == r->block && memcmp(place.id, id, LDR_ID_BYTES) == 0;
}

static uint32_t removed_at(const ldr_volume_t *p, uint32_t space,
                           const ldr_record_t *r)
{
    LDR_HELD(&p->tier->lock);
    return ldr_map_removed_s(p->map, space, r->key.hash, (uint8_t)r->group,
                             (uint8_t)r->shard);
}

/* Adds what is live in one object. 1: it does not fit. */
static int object_gather(work_t *w, const uint8_t id[LDR_ID_BYTES],
                         ldr_record_t *table)
{
    ldr_volume_t *p = w->volume;
    ldr_objects_t *t = p->tier;
    ldr_object_t object = {.rows = 0};
    uint32_t now_s = ldr_wall_s(t->params.clock);

    memcpy(object.id, id, LDR_ID_BYTES);
    int error = ldr_call_tail(p, w->job, &object, table);
    if (error != 0) {
        return error;
    }
    ldr_mutex_lock(&t->lock);
    uint32_t number = ldr_map_object(p->map, id);
    uint32_t count = w->count, blocks = w->blocks;
    uint32_t oldest_s =
        (uint32_t)ldr_min64(w->object.written_s, object.written_s);
    uint32_t removed_s = w->removed_s;
    bool fits = number != LDR_NIL &&
                object.epoch == ldr_map_epoch(p->map, p->cleaner.compact_space);
    for (uint32_t i = 0; i < object.rows && fits; i++) {
        if (!is_live(p, p->cleaner.compact_space, id, &table[i], now_s)) {
            continue;
        }
        fits = count < LDR_OBJECT_ROWS_MAX;
        if (fits) {
            removed_s = (uint32_t)ldr_max64(
                removed_s, removed_at(p, p->cleaner.compact_space, &table[i]));
            w->records[count] = table[i];
            memcpy(w->from[count].id, id, LDR_ID_BYTES);
            w->from[count++].block = table[i].block;
            blocks += ldr_record_blocks(table[i].length);
        }
    }
    fits = fits && blocks <= BLOCKS_MOST && oldest_s > removed_s;
    if (fits) {
        const ldr_map_object_t *o = ldr_map_at(p->map, number);

        w->holes = w->holes || count - w->count < object.rows;
        w->count = count;
        w->blocks = blocks;
        w->removed_s = removed_s;
        w->used_s = (uint32_t)ldr_max64(
            w->used_s,
            ldr_max64(o->used_s, w->done_count > 0 ? o->written_s : 0));
        w->object.written_s = oldest_s;
        memcpy(w->done[w->done_count++], id, LDR_ID_BYTES);
    }
    ldr_mutex_unlock(&t->lock);
    return fits ? 0 : 1;
}

/* Reads one record to its new place and seals it there. 1: it is bad. */
static int record_move(work_t *w, const source_t *from, ldr_record_t *r,
                       uint32_t at)
{
    ldr_volume_t *p = w->volume;
    char name[LDR_OBJECT_NAME_MAX + 1];
    uint8_t *data = w->data + (size_t)at * LDR_BLOCK;
    size_t payload = (size_t)(ldr_record_blocks(r->length) - 1) * LDR_BLOCK;
    struct iovec iov = {data, payload};
    ldr_object_t source = w->object;
    ldr_record_t came;

    ldr_name_object(p->hex, from->id, name);
    int error = ldr_call_get(w->job, name, (uint64_t)from->block * LDR_BLOCK,
                             data, payload + LDR_BLOCK);
    if (error != 0) {
        return error;
    }
    memcpy(source.id, from->id, LDR_ID_BYTES);
    ldr_unseal_t how = ldr_object_unseal(&p->seal, &source, from->block,
                                         data + payload, &iov, 1, &came);
    if (how == LDR_UNSEAL_FAILED) {
        return -ENOMEM;
    }
    /* Which of two reasons there are not to seal it could not be told after it
     * was encrypted where it lies. */
    if (how != LDR_UNSEAL_OK || source.epoch != w->object.epoch ||
        came.length != r->length || !ldr_object_intact(&came, &iov, 1) ||
        memcmp(&came.key, &r->key, sizeof(came.key)) != 0) {
        return 1;
    }
    *r = came;
    r->block = at;
    /* In place: what is sealed may lie where it was. */
    return ldr_object_seal(&p->seal, &w->object, r, &iov, 1, data,
                           data + payload)
               ? 0
               : -ENOMEM;
}

static int records_move(work_t *w)
{
    uint32_t at = 0, count = 0;

    for (uint32_t i = 0; i < w->count; i++) {
        ldr_record_t r = w->records[i];
        source_t from = w->from[i];
        int error = record_move(w, &from, &r, at);

        if (error == 1) {
            error = record_move(w, &from, &r, at); /* was it the way here? */
        }
        if (error < 0) {
            return error;
        }
        if (error == 0) {
            w->records[count++] = r;
            at += ldr_record_blocks(r.length);
        }
    }
    w->bad = w->count - count;
    w->count = w->object.rows = count;
    w->object.used_blocks = at;
    return 0;
}

/* The new object, if there is anything left to put in it. */
static int put_new(work_t *w)
{
    ldr_volume_t *p = w->volume;
    char name[LDR_OBJECT_NAME_MAX + 1];
    size_t used = (size_t)w->object.used_blocks * LDR_BLOCK;
    size_t tail = ldr_object_tail_bytes(w->count);

    if (w->count == 0) {
        return 0;
    }
    if (!ldr_object_tail_compose(&p->seal, &w->object, w->records,
                                 w->data + used)) {
        return -ENOMEM;
    }
    ldr_name_object(p->hex, w->object.id, name);
    return ldr_call_put(w->job, name, w->data, used + tail, LDR_OBJECT_NEW);
}

static int compact_commit(work_t *w)
{
    ldr_volume_t *p = w->volume;
    ldr_objects_t *t = p->tier;
    ldr_manifest_row_t *rows =
        ldr_alloc(ldr_max64(w->count, 1) * sizeof(*rows));
    ldr_manifest_entry_t e = {.kind = LDR_MANIFEST_OBJECT,
                              .object = w->object,
                              .used_s = w->used_s,
                              .rows = rows};

    if (rows == NULL) {
        return -ENOMEM; /* the new one is an orphan, then */
    }
    ldr_rows_of(w->records, w->count, rows);
    ldr_mutex_lock(&t->lock);
    ldr_clean_doom(p, w->done, w->done_count);
    if (w->count > 0) {
        ldr_volume_add(p, &e, true); /* else it is an orphan for a while */
    }
    p->cleaner.victims_after = p->added; /* not before the new one is known */
    p->cleaner.compact_start = 0;
    t->n.compacted += w->done_count;
    t->n.corrupt += w->bad;
    ldr_mutex_unlock(&t->lock);
    ldr_free(rows);
    if (w->bad > 0) {
        ldr_warn(&t->params.log,
                 "shared tier, tenant %s: %u records are not what was saved: "
                 "they are left out of the object that takes their place",
                 p->name, (unsigned)w->bad);
    }
    return 0;
}

static int compact(work_t *w)
{
    ldr_volume_t *p = w->volume;
    const ldr_pass_t *pass = &p->cleaner.pass;
    ldr_record_t *table = ldr_alloc(LDR_OBJECT_ROWS_MAX * sizeof(*table));
    int error = table == NULL ? -ENOMEM : 0;

    for (uint32_t i = 0; i < pass->sum.count && error == 0; i++) {
        error = object_gather(w, pass->inputs[i], table);
        if (error == 1 || error == -ENOENT || error == -EBADMSG) {
            error = 0; /* that one is left as it is */
        }
    }
    ldr_free(table);
    if (error != 0 || w->done_count == 0 || (w->done_count == 1 && !w->holes)) {
        return error;
    }
    unsigned age = 0;
    for (uint32_t i = 0; i < w->done_count; i++) {
        age = (unsigned)ldr_max64(age, ldr_id_age(w->done[i]) + 1);
    }
    ldr_objects_new_id(p->tier, age, w->object.id);
    w->data = ldr_alloc_blocks((size_t)w->blocks * LDR_BLOCK +
                               ldr_object_tail_bytes(w->count));
    if (w->data == NULL) {
        return -ENOMEM;
    }
    error = records_move(w);
    if (error == 0) {
        error = put_new(w);
    }
    return error == 0 ? compact_commit(w) : error;
}

int ldr_compact_work(ldr_volume_t *p, ldr_job_t *job)
{
    ldr_objects_t *t = p->tier;
    const ldr_pass_t *pass = &p->cleaner.pass;
    work_t w = {.volume = p, .job = job};

    ldr_mutex_lock(&t->lock);
    bool busy = t->compacting;
    t->compacting = true;
    w.object.epoch = pass->input_epoch;
    memcpy(w.object.space_id, p->spaces[p->cleaner.compact_space].id,
           LDR_ID_BYTES);
    ldr_mutex_unlock(&t->lock);
    if (busy) {
        return 0;
    }
    w.object.written_s = UINT32_MAX;
    w.records = ldr_alloc(LDR_OBJECT_ROWS_MAX * sizeof(*w.records));
    w.from = ldr_alloc(LDR_OBJECT_ROWS_MAX * sizeof(*w.from));
    int error = w.records == NULL || w.from == NULL ? -ENOMEM : compact(&w);
    ldr_free(w.records);
    ldr_free(w.from);
    ldr_free(w.data);
    ldr_mutex_lock(&t->lock);
    t->compacting = false;
    ldr_mutex_unlock(&t->lock);
    return error == -ENOENT || error == -EBADMSG ? 0 : error;
}
