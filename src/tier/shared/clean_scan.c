/*
 * The cleaner's walk over the names of objects, one prefix T/o/XX/ after the
 * other and, except the first two, so slowly that all 256 take about half of
 * orphan_s. It finds
 *   - objects that nobody has published, of writers that died: old enough,
 *     they are adopted by what their tail says
 *   - objects that are said to be gone and are still there: they are removed
 *   - objects that are known and not there: by not finding them (clean.c);
 *     storage that evicts lists them all the same, and each is asked for
 *   - names of which nothing else is left, there: they are removed
 *   - what does not authenticate: after a day it is removed
 * and, once a minute, resets that a later one supersedes.
 *
 * Runs in a worker. The map is looked at and changed with the tier's lock, and
 * the storage is called without it.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "base/thread.h"
#include "tier/shared/objects_int.h"
#include "store/index.h"

#define NAMES_MAX 1024u  /* looked at in one piece */
#define STRANGERS_MAX 8u /* whose tails are read in one piece */
#define BAD_S 86400u
#define QUICK 2u         /* walks of a role that do not wait */
#define EPOCHS_MAX 1024u /* resets removed in one piece */
#define EPOCHS_NS ((uint64_t)60 * 1000000000u)

typedef struct piece {
    ldr_volume_t *volume;
    size_t skip;
    uint32_t names;
    uint8_t strangers[STRANGERS_MAX][LDR_ID_BYTES];
    uint32_t stranger_count;
    uint8_t gone[LDR_VICTIMS][LDR_ID_BYTES];
    uint32_t gone_count;
    bool more;   /* after cleaner.after */
    bool evicts; /* the storage does: a name does not say that it is there */
} piece_t;

void ldr_clean_mark(ldr_cleaner_t *c, uint32_t number)
{
    if (ldr_grow(&c->marks, &c->marks_capacity, number + 1u, 1)) {
        c->marks[number] = (uint8_t)c->cycle;
    }
}

static int scan_one(void *arg, const char *name, uint64_t bytes)
{
    piece_t *s = arg;
    ldr_volume_t *p = s->volume;
    uint8_t id[LDR_ID_BYTES];
    const char *rest = name + s->skip;

    (void)bytes;
    if (s->names == NAMES_MAX || s->stranger_count == STRANGERS_MAX ||
        s->gone_count == LDR_VICTIMS) {
        s->more = true;
        return 1;
    }
    s->names++;
    snprintf(p->cleaner.after, sizeof(p->cleaner.after), "%s", name);
    if (strlen(rest) != 2 * LDR_ID_BYTES || !ldr_unhex(rest, sizeof(id), id) ||
        id[0] != p->cleaner.prefix) {
        return 0; /* nothing of ours */
    }
    ldr_mutex_lock(&p->tier->lock);
    uint32_t number = ldr_map_object(p->map, id);
    if (number != LDR_NIL) {
        if (!s->evicts) {
            ldr_clean_mark(&p->cleaner, number);
        }
    } else if (ldr_volume_gone_since(p, id) != 0) {
        memcpy(s->gone[s->gone_count++], id, LDR_ID_BYTES);
    } else {
        memcpy(s->strangers[s->stranger_count++], id, LDR_ID_BYTES);
    }
    ldr_mutex_unlock(&p->tier->lock);
    return 0;
}

/* ---- orphans ---- */

/* Takes it in as if a manifest had named it, and has one name it. */
static int adopt(ldr_volume_t *p, const ldr_object_t *object,
                 const ldr_record_t *records)
{
    ldr_objects_t *t = p->tier;
    ldr_manifest_row_t *rows =
        ldr_alloc(ldr_max64(object->rows, 1) * sizeof(*rows));
    ldr_manifest_entry_t e = {
        .kind = LDR_MANIFEST_OBJECT, .object = *object, .rows = rows};

    if (rows == NULL) {
        return -ENOMEM;
    }
    ldr_rows_of(records, object->rows, rows);
    bool ok = ldr_volume_raise(p, object->space_id, object->epoch);
    ldr_mutex_lock(&t->lock);
    if (ok && ldr_volume_gone_since(p, object->id) == 0) {
        ok = ldr_volume_add(p, &e, false);
        t->n.adopted += ok;
    }
    ldr_mutex_unlock(&t->lock);
    ldr_free(rows);
    return ok ? 0 : -ENOMEM;
}

/* An object that cannot be read is given a day. */
static void note_bad(ldr_volume_t *p, const uint8_t id[LDR_ID_BYTES],
                     uint32_t now_s)
{
    ldr_ids_t *bad = &p->cleaner.bad;
    uint32_t since_s = ldr_ids_find(bad, id);

    LDR_HELD(&p->tier->lock);
    if (since_s == 0) {
        ldr_ids_add(bad, id, now_s);
    } else if (now_s > since_s + BAD_S) {
        ldr_clean_doom(p, (const uint8_t(*)[LDR_ID_BYTES])id, 1);
    }
}

static int look_at(ldr_volume_t *p, ldr_job_t *job,
                   const uint8_t id[LDR_ID_BYTES], ldr_record_t *records)
{
    ldr_objects_t *t = p->tier;
    ldr_object_t object = {.rows = 0};
    uint32_t now_s = ldr_wall_s(t->params.clock);

    memcpy(object.id, id, LDR_ID_BYTES);
    int error = ldr_call_tail(p, job, &object, records);
    if (error == -ENOENT && job->backend->ops->exists == NULL) {
        return 0; /* somebody has removed it just now */
    }
    if (error != 0 && error != -ENOENT && error != -EBADMSG) {
        return error;
    }
    ldr_mutex_lock(&t->lock);
    if (error == -ENOENT) { /* only its name is left, and others may know it */
        ldr_clean_doom(p, (const uint8_t(*)[LDR_ID_BYTES])id, 1);
    } else if (error == -EBADMSG) {
        note_bad(p, id, now_s);
    }
    if (error != 0) {
        ldr_mutex_unlock(&t->lock);
        return 0;
    }
    uint32_t space = ldr_map_space_find(p->map, object.space_id);
    bool old = space != LDR_NIL && object.epoch < ldr_map_epoch(p->map, space);
    bool orphan = now_s > object.written_s + t->params.orphan_s &&
                  ldr_map_object(p->map, id) == LDR_NIL;
    if (old && orphan) {
        ldr_clean_doom(p, (const uint8_t(*)[LDR_ID_BYTES])id, 1);
    }
    ldr_mutex_unlock(&t->lock);
    return orphan && !old ? adopt(p, &object, records) : 0;
}

/* ---- the walk ---- */

static void next_prefix(ldr_cleaner_t *c, uint32_t now_s)
{
    c->after[0] = '\0';
    c->prefix = (c->prefix + 1) % 256;
    if (c->prefix == 0) {
        c->cycle++;
        c->cycle_s[1] = c->cycle_s[0];
        c->cycle_s[0] = now_s;
        ldr_ids_prune(&c->bad, now_s > 2 * BAD_S ? now_s - 2 * BAD_S : 0);
    }
}

int ldr_scan_work(ldr_volume_t *p, ldr_job_t *job)
{
    ldr_objects_t *t = p->tier;
    ldr_cleaner_t *c = &p->cleaner;
    char rest[8], prefix[LDR_OBJECT_NAME_MAX + 1];
    char after[LDR_OBJECT_NAME_MAX + 1];
    piece_t s = {.volume = p, .evicts = job->backend->ops->exists != NULL};
    uint64_t wait_ns =
        (uint64_t)ldr_max64(t->params.orphan_s, 1) * 1000000000u / 512;

    snprintf(rest, sizeof(rest), "o/%02x/", c->prefix);
    ldr_name_of(p->hex, rest, prefix);
    memcpy(after, c->after, sizeof(after));
    s.skip = strlen(prefix);
    int error = ldr_call_list(job, prefix, after[0] != '\0' ? after : NULL,
                              scan_one, &s);
    if (error < 0) {
        memcpy(c->after, after, sizeof(after));
        return error;
    }
    ldr_mutex_lock(&t->lock);
    ldr_clean_doom(p, s.gone, s.gone_count);
    ldr_mutex_unlock(&t->lock);
    if (s.stranger_count > 0) {
        ldr_record_t *records =
            ldr_alloc(LDR_OBJECT_ROWS_MAX * sizeof(*records));

        error = records == NULL ? -ENOMEM : 0;
        for (uint32_t i = 0; i < s.stranger_count && error == 0; i++) {
            error = look_at(p, job, s.strangers[i], records);
        }
        ldr_free(records);
        if (error < 0) {
            memcpy(c->after, after, sizeof(after));
            return error;
        }
    }
    if (!s.more) {
        /* Whoever takes the role may find that much is gone: the tenant may
         * have been nobody's for a while (clean_idle.c). */
        bool quick = c->cycle < QUICK;

        next_prefix(c, ldr_wall_s(t->params.clock));
        c->scan_at_ns = ldr_now_ns(t->params.clock) + (quick ? 0 : wait_ns);
    }
    return 0;
}

/* ---- resets ---- */

int ldr_epochs_work(ldr_volume_t *p, ldr_job_t *job)
{
    ldr_objects_t *t = p->tier;
    char name[LDR_OBJECT_NAME_MAX + 1];
    ldr_resets_t list = {.count = 0};
    uint32_t written_s, count = 0, now_s = ldr_wall_s(t->params.clock);
    int error = ldr_reset_list(p, job, &list);

    /* In the order of names: lower epochs of a space first. */
    for (size_t i = 1; i < list.count && count < EPOCHS_MAX && error == 0;
         i++) {
        const ldr_reset_t *old = &list.at[i - 1], *by = &list.at[i];

        if (memcmp(old->space, by->space, LDR_ID_BYTES) != 0) {
            continue;
        }
        /* Only by one that is real, and that all have had time to see. */
        count++;
        error = ldr_reset_read(p, job, by->space, by->epoch, &written_s);
        if (error == 0 && now_s > written_s + t->params.orphan_s) {
            ldr_name_epoch(p, old->space, old->epoch, name);
            error = ldr_call_remove(job, name);
        } else if (error == -ENOENT || error == -EBADMSG) {
            error = 0;
        }
    }
    ldr_free(list.at);
    p->cleaner.epochs_at_ns =
        ldr_now_ns(t->params.clock) + (error == 0 ? EPOCHS_NS : 0);
    return error;
}
