/*
 * Reading a record: one ranged get, in a worker. Volume, map and figures are
 * looked at with the tier's lock; the get and the check of its bytes run
 * without it. What was removed or reset meanwhile is a miss: is_current() says
 * so, with the lock.
 */
#include <errno.h>
#include <string.h>

#include "base/mem.h"
#include "base/thread.h"
#include "tier/shared/objects_int.h"
#include "store/index.h"

#define IOV_SMALL 64u

/* Gets payload and descriptor, and checks them. */
static int get_record(ldr_volume_t *p, ldr_objects_read_t *r, ldr_backend_t *b,
                      const struct iovec *iov, ldr_object_t *object)
{
    static const int errors[] = {
        [LDR_UNSEAL_OK] = 0,
        [LDR_UNSEAL_BAD] = -EBADMSG,
        [LDR_UNSEAL_KEY] = -EKEYREJECTED,
        [LDR_UNSEAL_FAILED] = -ENOMEM,
    };
    char name[LDR_OBJECT_NAME_MAX + 1];

    ldr_name_object(p->hex, r->place.id, name);
    int error = b->ops->get(b, name, (uint64_t)r->place.block * LDR_BLOCK, iov,
                            r->iov_count + 1, r->deadline_ns);
    if (error != 0) {
        return error == -ENODATA ? -EBADMSG : error;
    }
    ldr_unseal_t how =
        ldr_object_unseal(&p->seal, object, r->place.block, r->block, r->iov,
                          r->iov_count, &r->record);
    error = errors[how];
    if (error == 0 && ldr_record_blocks(r->record.length) != r->place.blocks) {
        error = -EBADMSG;
    }
    return error;
}

/* Whether what was read is still to be found, there or in a
 * copy: not removed or reset meanwhile. */
static bool is_current(const ldr_volume_t *p, const ldr_objects_read_t *r,
                       const ldr_object_t *object)
{
    const ldr_record_t *rec = &r->record;
    ldr_object_place_t place;

    LDR_HELD(&p->tier->lock);
    return object->epoch == ldr_map_epoch(p->map, r->space) &&
           !p->spaces[r->space].resetting && rec->group <= UINT8_MAX &&
           rec->shard <= UINT8_MAX &&
           ldr_map_find(p->map, r->space, rec->key.hash, (uint8_t)rec->group,
                        (uint8_t)rec->shard, &place);
}

/* Nothing of the object is found any more. One that is bad
 * counts as gone: the cleaner removes it. */
static void give_up(ldr_volume_t *p, const ldr_objects_read_t *r, int error)
{
    ldr_objects_t *t = p->tier;
    uint32_t number = ldr_map_object(p->map, r->place.id);

    LDR_HELD(&p->tier->lock);
    t->n.gone += error == -ENOENT;
    t->n.corrupt += error != -ENOENT;
    if (number != LDR_NIL) {
        ldr_map_drop(p->map, number);
    }
    if (error != -ENOENT) {
        ldr_ids_add(&p->gone, r->place.id, ldr_wall_s(t->params.clock));
    }
}

static void account(ldr_volume_t *p, ldr_objects_read_t *r,
                    const ldr_object_t *object, int *error_p)
{
    ldr_objects_t *t = p->tier;
    int error = *error_p;

    ldr_mutex_lock(&t->lock);
    if (error == 0 && !is_current(p, r, object)) {
        *error_p = -ENOENT;
        t->n.gone++;
    } else if (error == 0) {
        t->n.reads++;
        t->n.read_bytes += (uint64_t)r->place.blocks * LDR_BLOCK;
        ldr_volume_used(p, r->place.id, ldr_wall_s(t->params.clock));
    } else {
        t->n.read_errors++;
        if (error == -ENOENT || error == -EBADMSG || error == -EKEYREJECTED) {
            give_up(p, r, error);
        }
    }
    ldr_mutex_unlock(&t->lock);
}

static int read_work(ldr_job_t *job, ldr_backend_t *b)
{
    ldr_objects_read_t *r = job->arg;
    ldr_objects_t *t = r->tier;
    struct iovec small[IOV_SMALL], *iov = small;
    ldr_object_t object = {.epoch = 0};

    ldr_mutex_lock(&t->lock);
    ldr_volume_t *p = ldr_objects_volume(t, r->tenant);
    memcpy(object.space_id, p->spaces[r->space].id, LDR_ID_BYTES);
    ldr_mutex_unlock(&t->lock);
    memcpy(object.id, r->place.id, LDR_ID_BYTES);
    r->begin_ns = ldr_now_ns(t->params.clock);
    /* To have waited is not the medium's fault. */
    r->deadline_ns = r->begin_ns + t->timeout_ns;
    ldr_job_extend(job, r->deadline_ns);
    if (r->iov_count + 1 > IOV_SMALL) {
        iov = ldr_alloc((r->iov_count + 1) * sizeof(*iov));
        if (iov == NULL) {
            return -ENOMEM;
        }
    }
    memcpy(iov, r->iov, r->iov_count * sizeof(*iov));
    iov[r->iov_count] = (struct iovec){r->block, LDR_BLOCK};
    int error = get_record(p, r, b, iov, &object);
    if (error == -EBADMSG) {
        error = get_record(p, r, b, iov, &object); /* was it the way here? */
    }
    if (iov != small) {
        ldr_free(iov);
    }
    account(p, r, &object, &error);
    r->end_ns = ldr_now_ns(t->params.clock);
    return error;
}

static void read_done(ldr_job_t *job)
{
    ldr_objects_read_t *r = job->arg;

    r->error = job->error;
    if (r->begin_ns == 0) { /* it never began */
        r->begin_ns = ldr_now_ns(r->tier->params.clock);
    }
    if (r->end_ns == 0) {
        r->end_ns = r->begin_ns;
    }
    r->done(r);
}

bool ldr_objects_read(ldr_objects_t *t, ldr_objects_read_t *r)
{
    r->tier = t;
    r->begin_ns = r->end_ns = 0;
    r->job = (ldr_job_t){
        .kind = LDR_JOB_READ,
        .deadline_ns = r->deadline_ns,
        .work = read_work,
        .done = read_done,
        .arg = r,
        .bytes = (uint64_t)r->place.blocks * LDR_BLOCK,
    };
    ldr_mutex_lock(&t->lock);
    ldr_volume_t *p = ldr_objects_volume(t, r->tenant);
    bool usable = p != NULL && p->ready && r->space < p->space_count;
    ldr_mutex_unlock(&t->lock);
    if (!usable) {
        r->error = -ESHUTDOWN;
        return false;
    }
    if (!ldr_workers_add(t->workers, &r->job)) {
        r->error = r->job.error;
        return false;
    }
    return true;
}
