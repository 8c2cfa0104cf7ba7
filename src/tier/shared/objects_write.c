/*
 * Writing an object, in a worker: seal each record, put all of it under a new
 * name, enter it in the map, have it published. A record is in the map only
 * once its object is stored. The tier's lock is held to enter and to count,
 * never across a put.
 */
#include <errno.h>
#include <string.h>

#include "base/mem.h"
#include "base/thread.h"
#include "tier/shared/objects_int.h"

/* ---- composing ---- */

/* Places the records, and gives the bytes that the tier adds: with encryption
 * the whole object, else descriptors and tail. 0: it would be too large. */
static size_t lay_out(ldr_objects_write_t *w, bool encrypts)
{
    uint32_t at = 0;

    for (uint32_t i = 0; i < w->count; i++) {
        ldr_record_t *r = &w->records[i];

        memcpy(r->space_id, w->object.space_id, LDR_ID_BYTES);
        r->block = at;
        r->written_s = w->object.written_s;
        at += ldr_record_blocks(r->length);
        if (at > LDR_OBJECT_BYTES_MAX / LDR_BLOCK) {
            return 0;
        }
    }
    size_t tail = ldr_object_tail_bytes(w->count);
    w->object.rows = w->count;
    w->object.used_blocks = at;
    w->bytes = (uint64_t)at * LDR_BLOCK + tail;
    if (w->bytes > LDR_OBJECT_BYTES_MAX) {
        return 0;
    }
    return encrypts ? (size_t)w->bytes : (size_t)w->count * LDR_BLOCK + tail;
}

/* Encrypted: the object as it will lie there, in one piece. */
static unsigned compose_sealed(ldr_objects_write_t *w, const ldr_seal_t *seal)
{
    uint8_t *at = w->blocks;

    for (uint32_t i = 0; i < w->count; i++) {
        size_t payload =
            (size_t)(ldr_record_blocks(w->records[i].length) - 1) * LDR_BLOCK;

        if (!ldr_object_seal(
                seal, &w->object, &w->records[i], w->iov + w->iov_first[i],
                w->iov_first[i + 1] - w->iov_first[i], at, at + payload)) {
            return 0;
        }
        at += payload + LDR_BLOCK;
    }
    if (!ldr_object_tail_compose(seal, &w->object, w->records, at)) {
        return 0;
    }
    w->iov[0] = (struct iovec){w->blocks, (size_t)w->bytes};
    return 1;
}

/* Else payloads stay where they are: each is followed by its descriptor. */
static unsigned compose_plain(ldr_objects_write_t *w, const ldr_seal_t *seal)
{
    uint8_t *tail = w->blocks + (size_t)w->count * LDR_BLOCK;
    unsigned to = w->iov_first[w->count] + w->count + 1;
    unsigned total = to;

    for (uint32_t i = 0; i < w->count; i++) {
        if (!ldr_object_seal(seal, &w->object, &w->records[i],
                             w->iov + w->iov_first[i],
                             w->iov_first[i + 1] - w->iov_first[i], NULL,
                             w->blocks + (size_t)i * LDR_BLOCK)) {
            return 0;
        }
    }
    if (!ldr_object_tail_compose(seal, &w->object, w->records, tail)) {
        return 0;
    }
    w->iov[--to] = (struct iovec){tail, ldr_object_tail_bytes(w->count)};
    for (uint32_t i = w->count; i-- > 0;) {
        uint32_t first = w->iov_first[i], count = w->iov_first[i + 1] - first;

        w->iov[--to] =
            (struct iovec){w->blocks + (size_t)i * LDR_BLOCK, LDR_BLOCK};
        to -= count;
        memmove(&w->iov[to], &w->iov[first], count * sizeof(w->iov[0]));
    }
    return total;
}

/* Takes a record out of what is to be written; w is as it was before it was
 * composed. */
static void leave_out(ldr_objects_write_t *w, uint32_t i)
{
    uint32_t first = w->iov_first[i], pieces = w->iov_first[i + 1] - first;
    uint32_t at = 0, before = 0;

    while (w->damaged[at] || before < i) { /* its place in the beginning */
        before += !w->damaged[at++];
    }
    w->damaged[at] = true;
    memmove(&w->iov[first], &w->iov[first + pieces],
            (w->iov_first[w->count] - first - pieces) * sizeof(w->iov[0]));
    w->count--;
    for (; i < w->count; i++) {
        w->records[i] = w->records[i + 1];
        w->iov_first[i + 1] = w->iov_first[i + 2] - pieces;
    }
}

/* Leaves out what is not any more what was saved. False: there was nothing
 * such, or nothing is left. */
static bool leave_out_damaged(ldr_objects_write_t *w)
{
    uint32_t count = w->count;

    for (uint32_t i = w->count; i-- > 0;) {
        if (!ldr_object_intact(&w->records[i], w->iov + w->iov_first[i],
                               w->iov_first[i + 1] - w->iov_first[i])) {
            leave_out(w, i);
        }
    }
    return w->count < count && w->count > 0;
}

/* The object's parts in w->iov, how many of them; 0: it cannot be sealed,
 * whatever is left out. */
static unsigned object_compose(ldr_objects_write_t *w, const ldr_seal_t *seal)
{
    unsigned count;

    do {
        count = lay_out(w, seal->encrypts) == 0 ? 0
                : seal->encrypts                ? compose_sealed(w, seal)
                                                : compose_plain(w, seal);
    } while (count == 0 && leave_out_damaged(w));
    return count;
}

/* ---- the turn to seal ---- */

/*
 * Sealing is work for a CPU only, and workers that seal side by side are all
 * done late, while the storage has nothing to do. So half as many seal at once
 * as there are CPUs: the first object is being written while the next is
 * sealed. With encryption, three times the work, it is as many as there are
 * CPUs, since storage may take more than half of them can encrypt. Nobody waits
 * for I/O while it has its turn, so a medium that hangs holds up nobody else.
 */
static void seal_begin(ldr_objects_t *t, bool encrypts)
{
    unsigned most = encrypts ? t->cpus : (t->cpus + 1) / 2;

    ldr_mutex_lock(&t->lock);
    t->to_seal++;
    while (t->sealing >= most) {
        pthread_cond_wait(&t->sealed, &t->lock);
    }
    t->to_seal--;
    t->sealing++;
    ldr_mutex_unlock(&t->lock);
}

static void seal_end(ldr_objects_t *t)
{
    ldr_mutex_lock(&t->lock);
    LDR_ASSERT(t->sealing > 0 && t->sealing <= t->cpus);
    t->sealing--;
    pthread_cond_broadcast(&t->sealed); /* not all have the same bound */
    ldr_mutex_unlock(&t->lock);
}

/* ---- the job ---- */

void ldr_rows_of(const ldr_record_t *records, uint32_t count,
                 ldr_manifest_row_t *rows)
{
    for (uint32_t i = 0; i < count; i++) {
        const ldr_record_t *r = &records[i];

        rows[i] = (ldr_manifest_row_t){
            .group = (uint8_t)r->group,
            .shard = (uint8_t)r->shard,
            .shards = (uint8_t)r->shards,
            .block = (uint16_t)r->block,
            .blocks = (uint16_t)ldr_record_blocks(r->length),
            .depth = r->depth,
            .expires_s = r->expires_s,
        };
        memcpy(rows[i].key, r->key.hash, LDR_MANIFEST_KEY);
    }
}

/* It is there: everybody may know, unless the space was reset meanwhile, or the
 * tier is another now. */
static int write_commit(ldr_volume_t *p, ldr_objects_write_t *w)
{
    ldr_objects_t *t = p->tier;
    ldr_manifest_row_t rows[LDR_OBJECTS_RECORDS];
    ldr_manifest_entry_t e = {
        .kind = LDR_MANIFEST_OBJECT, .object = w->object, .rows = rows};
    int error = 0;

    ldr_rows_of(w->records, w->count, rows);
    ldr_mutex_lock(&t->lock);
    if (ldr_map_epoch(p->map, w->space) != w->object.epoch ||
        p->spaces[w->space].resetting || t->replaced != w->replaced) {
        error = -ECANCELED;
    } else if (!ldr_volume_add(p, &e, false)) {
        error = -ENOMEM;
    }
    if (error == 0) {
        t->n.writes++;
        t->n.written_bytes += w->bytes;
    }
    ldr_mutex_unlock(&t->lock);
    return error;
}

static void note_damaged(ldr_volume_t *p, uint32_t count)
{
    ldr_objects_t *t = p->tier;

    ldr_mutex_lock(&t->lock);
    t->n.corrupt += count;
    ldr_mutex_unlock(&t->lock);
    ldr_error(&t->params.log,
              "tenant %s, shared tier: %u records were not written: their "
              "bytes have changed since they were saved; test this host's "
              "memory",
              p->name, count);
}

/* From now on the medium has its time; to have waited is not its fault. */
static void begin_call(ldr_objects_write_t *w)
{
    ldr_objects_t *t = w->tier;

    w->deadline_ns = ldr_now_ns(t->params.clock) + t->timeout_ns;
    ldr_job_extend(&w->job, w->deadline_ns);
}

static int write_object(ldr_volume_t *p, ldr_objects_write_t *w,
                        ldr_backend_t *b)
{
    char name[LDR_OBJECT_NAME_MAX + 1];
    size_t more = lay_out(w, p->seal.encrypts);

    w->unfit = more == 0;
    if (w->unfit) {
        return -ECANCELED;
    }
    w->blocks = ldr_alloc_blocks(more);
    if (w->blocks == NULL) {
        return -ENOMEM;
    }
    uint32_t records = w->count;
    seal_begin(p->tier, p->seal.encrypts);
    unsigned count = object_compose(w, &p->seal);
    seal_end(p->tier);
    begin_call(w);
    if (w->count < records) {
        note_damaged(p, records - w->count);
    }
    w->unfit = count == 0;
    if (w->unfit) {
        return -ECANCELED;
    }
    ldr_name_object(p->hex, w->object.id, name);
    int error =
        b->ops->put(b, name, w->iov, count, LDR_OBJECT_NEW, w->deadline_ns);
    if (error == 0) {
        error = write_commit(p, w);
        if (error != 0) {
            b->ops->remove(b, name, w->deadline_ns); /* nobody knows it */
        }
    }
    return error;
}

static int write_work(ldr_job_t *job, ldr_backend_t *b)
{
    ldr_objects_write_t *w = job->arg;
    ldr_objects_t *t = w->tier;

    ldr_mutex_lock(&t->lock);
    ldr_volume_t *p = ldr_objects_volume(t, w->tenant);
    w->replaced = t->replaced;
    ldr_mutex_unlock(&t->lock);
    ldr_objects_new_id(t, 0, w->object.id);
    w->begin_ns = ldr_now_ns(t->params.clock);
    begin_call(w);
    int error = write_object(p, w, b);
    w->end_ns = ldr_now_ns(t->params.clock);
    if (w->unfit && w->count > 0) {
        /* Not the medium's fault. */
        ldr_error(&t->params.log,
                  "shared tier: an object of %u records could not be sealed",
                  w->count);
    }
    if (error != 0) {
        ldr_mutex_lock(&t->lock);
        t->n.write_errors++;
        ldr_mutex_unlock(&t->lock);
    }
    return error;
}

static void write_done(ldr_job_t *job)
{
    ldr_objects_write_t *w = job->arg;

    w->error = w->unfit ? -EINVAL : job->error;
    if (w->begin_ns == 0) {
        w->begin_ns = w->end_ns = ldr_now_ns(w->tier->params.clock);
    }
    ldr_free(w->blocks);
    w->blocks = NULL;
    w->done(w);
}

/* 0, or why it is not taken. */
static int write_prepare(ldr_objects_t *t, ldr_objects_write_t *w)
{
    ldr_volume_t *p = ldr_objects_volume(t, w->tenant);

    LDR_HELD(&t->lock);
    if (p == NULL || w->space >= p->space_count || w->count == 0 ||
        w->count > LDR_OBJECTS_RECORDS) {
        return -EINVAL;
    }
    if (!p->ready || p->spaces[w->space].resetting) {
        return -ESHUTDOWN;
    }
    w->object = (ldr_object_t){
        .epoch = ldr_map_epoch(p->map, w->space),
        .written_s =
            ldr_map_write_s(p->map, w->space, ldr_wall_s(t->params.clock)),
    };
    memcpy(w->object.space_id, p->spaces[w->space].id, LDR_ID_BYTES);
    for (uint32_t i = 0; i < w->count; i++) {
        if (w->records[i].epoch != w->object.epoch) {
            return -ECANCELED;
        }
    }
    return 0;
}

bool ldr_objects_write(ldr_objects_t *t, ldr_objects_write_t *w)
{
    w->tier = t;
    w->blocks = NULL;
    w->unfit = false;
    w->begin_ns = w->end_ns = 0;
    w->job = (ldr_job_t){
        .kind = LDR_JOB_WRITE,
        .deadline_ns = w->deadline_ns,
        .work = write_work,
        .done = write_done,
        .arg = w,
    };
    ldr_mutex_lock(&t->lock);
    w->error = write_prepare(t, w);
    ldr_mutex_unlock(&t->lock);
    if (w->error != 0) {
        return false;
    }
    if (!ldr_workers_add(t->workers, &w->job)) {
        w->error = w->job.error;
        return false;
    }
    return true;
}
