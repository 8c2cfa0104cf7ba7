/* Names of the tier's objects, and calls of the back end from chores. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "tier/shared/objects_int.h"

/* ---- names ---- */

void ldr_name_of(const char *tenant, const char *rest,
                 char name[LDR_OBJECT_NAME_MAX + 1])
{
    snprintf(name, LDR_OBJECT_NAME_MAX + 1, "%s/%s", tenant, rest);
}

void ldr_name_object(const char *tenant, const uint8_t id[LDR_ID_BYTES],
                     char name[LDR_OBJECT_NAME_MAX + 1])
{
    char hex[2 * LDR_ID_BYTES + 1];

    ldr_hex(id, LDR_ID_BYTES, hex);
    snprintf(name, LDR_OBJECT_NAME_MAX + 1, "%s/o/%.2s/%s", tenant, hex, hex);
}

void ldr_name_manifest(const char *tenant, const ldr_known_manifest_t *k,
                       char name[LDR_OBJECT_NAME_MAX + 1])
{
    char hex[2 * LDR_NODE_BYTES + 1];

    ldr_hex(k->node, LDR_NODE_BYTES, hex);
    snprintf(name, LDR_OBJECT_NAME_MAX + 1, "%s/m/%s-%016llx", tenant, hex,
             (unsigned long long)k->sequence);
}

void ldr_name_epoch(const ldr_volume_t *p, const uint8_t space[LDR_ID_BYTES],
                    uint32_t epoch, char name[LDR_OBJECT_NAME_MAX + 1])
{
    char hex[2 * LDR_ID_BYTES + 1];

    ldr_hex(space, LDR_ID_BYTES, hex);
    snprintf(name, LDR_OBJECT_NAME_MAX + 1, "%s/e/%s-%08x", p->hex, hex, epoch);
}

/* ---- calls ---- */

static uint64_t call_deadline(ldr_job_t *job)
{
    const ldr_objects_t *t = ldr_tier_of(job);
    uint64_t deadline_ns = ldr_now_ns(t->params.clock) + t->timeout_ns;

    ldr_job_extend(job, deadline_ns);
    return deadline_ns;
}

int ldr_call_get(ldr_job_t *job, const char *name, uint64_t offset, void *data,
                 size_t bytes)
{
    struct iovec iov = {data, bytes};
    ldr_backend_t *b = job->backend;

    return b->ops->get(b, name, offset, &iov, 1, call_deadline(job));
}

int ldr_call_put(ldr_job_t *job, const char *name, const void *data,
                 size_t bytes, unsigned flags)
{
    struct iovec iov = {(void *)(uintptr_t)data, bytes};
    ldr_backend_t *b = job->backend;
    int error = b->ops->put(b, name, &iov, 1, flags, call_deadline(job));

    job->wrote = error != 0;
    return error;
}

int ldr_call_remove(ldr_job_t *job, const char *name)
{
    int error =
        job->backend->ops->remove(job->backend, name, call_deadline(job));

    if (error == -ENOENT) {
        error = 0;
    }
    job->wrote = error != 0;
    return error;
}

int ldr_call_size(ldr_job_t *job, const char *name, uint64_t *bytes_p)
{
    return job->backend->ops->size(job->backend, name, bytes_p,
                                   call_deadline(job));
}

int ldr_call_exists(ldr_job_t *job, const char *name)
{
    ldr_backend_t *b = job->backend;
    uint64_t bytes;

    return b->ops->exists != NULL ? b->ops->exists(b, name, call_deadline(job))
                                  : ldr_call_size(job, name, &bytes);
}

typedef struct listing {
    ldr_objects_t *tier;
    int (*fn)(void *arg, const char *name, uint64_t bytes);
    void *arg;
    uint64_t first_ns; /* when the first name came; 0: none has */
    bool more;         /* ended by us, after `last` */
    char last[LDR_OBJECT_NAME_MAX + 1];
} listing_t;

static int list_one(void *arg, const char *name, uint64_t bytes)
{
    listing_t *l = arg;
    uint64_t now_ns = ldr_now_ns(l->tier->params.clock);
    int answer = l->fn(l->arg, name, bytes);

    if (l->first_ns == 0) {
        l->first_ns = now_ns;
    }
    if (answer == 0 && now_ns - l->first_ns >= l->tier->timeout_ns / 2) {
        snprintf(l->last, sizeof(l->last), "%s", name);
        l->more = true;
        return 1;
    }
    return answer;
}

/* Pages may take any time together, so a call that has had names to tell for
 * half of its time is ended, and another goes on. Not by their number, nor from
 * the beginning of the call: a directory is read whole before its first name,
 * and would be again. */
int ldr_call_list(ldr_job_t *job, const char *prefix, const char *after,
                  int (*fn)(void *arg, const char *name, uint64_t bytes),
                  void *arg)
{
    ldr_backend_t *b = job->backend;
    listing_t l = {.tier = ldr_tier_of(job), .fn = fn, .arg = arg};
    int error;

    do {
        l.more = false;
        l.first_ns = 0;
        error =
            b->ops->list(b, prefix, after, list_one, &l, call_deadline(job));
        after = l.last;
    } while (l.more);
    return error;
}

int ldr_call_get_all(ldr_job_t *job, const char *name, uint8_t *data,
                     size_t size, size_t *bytes_p)
{
    uint64_t bytes = 0;
    int error = ldr_call_size(job, name, &bytes);

    if (error == 0 && (bytes == 0 || bytes > size)) {
        error = -EBADMSG;
    }
    if (error == 0) {
        error = ldr_call_get(job, name, 0, data, (size_t)bytes);
    }
    *bytes_p = (size_t)bytes;
    return error == -ENODATA ? -EBADMSG : error;
}

#define PAIR_BYTES 26u /* "0123456789abcdef 01234567\n" */

int ldr_call_get_pair(ldr_job_t *job, const char *name, uint64_t *first_p,
                      uint64_t *second_p)
{
    char text[PAIR_BYTES];
    size_t bytes;
    int error =
        ldr_call_get_all(job, name, (uint8_t *)text, sizeof(text), &bytes);

    return error != 0 || (bytes == sizeof(text) && text[16] == ' ' &&
                          text[25] == '\n' && ldr_unhex64(text, 16, first_p) &&
                          ldr_unhex64(text + 17, 8, second_p))
               ? error
               : -EBADMSG;
}

int ldr_call_put_pair(ldr_job_t *job, const char *name, uint64_t first,
                      uint32_t second, unsigned flags)
{
    char text[PAIR_BYTES + 1];

    snprintf(text, sizeof(text), "%016llx %08x\n", (unsigned long long)first,
             second);
    return ldr_call_put(job, name, text, PAIR_BYTES, flags);
}

int ldr_call_tail(ldr_volume_t *p, ldr_job_t *job, ldr_object_t *object,
                  ldr_record_t *records)
{
    char name[LDR_OBJECT_NAME_MAX + 1];
    uint64_t bytes = 0;

    ldr_name_object(p->hex, object->id, name);
    int error = ldr_call_size(job, name, &bytes);
    if (error != 0) {
        return error;
    }
    if (bytes < LDR_BLOCK || bytes % LDR_BLOCK != 0 ||
        bytes > LDR_OBJECT_BYTES_MAX) {
        return -EBADMSG;
    }
    size_t most = ldr_object_tail_bytes(LDR_OBJECT_ROWS_MAX);
    uint8_t *tail = ldr_alloc_blocks(LDR_BLOCK);
    if (tail == NULL) {
        return -ENOMEM;
    }
    error = ldr_call_get(job, name, bytes - LDR_BLOCK, tail, LDR_BLOCK);
    size_t length = error == 0 ? ldr_object_tail_find(tail) : 0;
    ldr_free(tail);
    if (error != 0) {
        return error == -ENODATA ? -EBADMSG : error;
    }
    if (length == 0 || length > bytes || length > most) {
        return -EBADMSG;
    }
    tail = ldr_alloc_blocks(length);
    if (tail == NULL) {
        return -ENOMEM;
    }
    error = ldr_call_get(job, name, bytes - length, tail, length);
    if (error == -ENODATA ||
        (error == 0 &&
         !ldr_object_tail_parse(&p->seal, tail, length, object, records))) {
        error = -EBADMSG;
    }
    ldr_free(tail);
    return error;
}

/* ---- sets of ids ---- */

static size_t slot_of(const ldr_ids_t *ids, const uint8_t id[LDR_ID_BYTES])
{
    size_t at = (size_t)(ldr_get64(id) * 0x9e3779b97f4a7c15u >> 20);

    /* Ids are random; full at most to a half. */
    for (at &= ids->capacity - 1; ids->items[at].time_s != 0;
         at = (at + 1) & (ids->capacity - 1)) {
        if (memcmp(ids->items[at].id, id, LDR_ID_BYTES) == 0) {
            break;
        }
    }
    return at;
}

uint32_t ldr_ids_find(const ldr_ids_t *ids, const uint8_t id[LDR_ID_BYTES])
{
    return ids->capacity == 0 ? 0 : ids->items[slot_of(ids, id)].time_s;
}

/* Into a table of that many places, without what is older. */
static bool ids_rebuild(ldr_ids_t *ids, size_t capacity, uint32_t before_s)
{
    ldr_ids_t next = {.capacity = capacity};

    next.items = ldr_alloc(capacity * sizeof(next.items[0]));
    if (next.items == NULL) {
        return false;
    }
    for (size_t i = 0; i < ids->capacity; i++) {
        const struct ldr_ids_item *item = &ids->items[i];

        if (item->time_s != 0 && item->time_s >= before_s) {
            next.items[slot_of(&next, item->id)] = *item;
            next.count++;
        }
    }
    ldr_free(ids->items);
    *ids = next;
    return true;
}

bool ldr_ids_add(ldr_ids_t *ids, const uint8_t id[LDR_ID_BYTES],
                 uint32_t time_s)
{
    if (2 * (ids->count + 1) > ids->capacity &&
        !ids_rebuild(ids, ids->capacity == 0 ? 64 : 2 * ids->capacity, 0)) {
        return false;
    }
    struct ldr_ids_item *item = &ids->items[slot_of(ids, id)];
    if (item->time_s == 0) {
        memcpy(item->id, id, LDR_ID_BYTES);
        item->time_s = time_s != 0 ? time_s : 1;
        ids->count++;
    }
    return true;
}

bool ldr_ids_latest(ldr_ids_t *ids, const uint8_t id[LDR_ID_BYTES],
                    uint32_t time_s)
{
    if (!ldr_ids_add(ids, id, time_s)) {
        return false;
    }
    struct ldr_ids_item *item = &ids->items[slot_of(ids, id)];
    item->time_s = (uint32_t)ldr_max64(item->time_s, time_s);
    return true;
}

void ldr_ids_prune(ldr_ids_t *ids, uint32_t before_s)
{
    if (ids->count > 0) {
        ids_rebuild(ids, ids->capacity, before_s);
    }
}

void ldr_ids_clear(ldr_ids_t *ids)
{
    ldr_free(ids->items);
    *ids = (ldr_ids_t){0};
}
