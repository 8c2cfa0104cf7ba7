/*
 * Tenants that no node has open.
 *
 * The cleaner of a tenant writes the file sizes/T once a minute: "BYTES WHEN\n"
 * in hex, how much the tenant holds and the time. Nobody writes that of a
 * tenant that no node has open. If WHEN is longer ago than shared_age_s,
 * nothing of the tenant was used for as long, since a use needs a node that has
 * it open. Then all its objects go, its manifests, and at last its file. Its
 * check value and its resets stay: they are small, and a node that was away may
 * still have what was reset. None of this takes the tenant's key. A node that
 * opens the tenant later finds it empty.
 *
 * One node does this for the whole tier: the one that holds the role
 * larder.cleaner, which it takes and renews once a minute. It works only if the
 * role was its own before it was renewed, so that of two nodes that take it at
 * once only one does.
 *
 * A wrong clock must not cost a tenant that is in use its data. So the same
 * content of the file must have been seen for WATCH_S, by a clock that nobody
 * sets: a node that has the tenant open would have rewritten it. Names are
 * listed, then file and T/cleaner are read once more, and only then are they
 * removed. Who opens the tenant at that moment loses some objects at most,
 * which is a miss. But a manifest that was written after WHEN stays: it may
 * tell of a removal that nobody must forget.
 *
 * A node that is killed meanwhile leaves the file, so another one goes on.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/thread.h"
#include "tier/shared/objects_int.h"

#define ROLE_FILE "larder.cleaner"
#define FOLDER "sizes/"
#define SECOND_NS ((uint64_t)1000000000u)
#define MINUTE_NS (60 * SECOND_NS)
#define WATCH_S 150u /* twice as long as a file of an open tenant is left */
#define ROLE_S 150u  /* two minutes, and a bit */
#define IDLE_S 600u  /* that a tenant is left, at least */
#define SEEN_S 3600u /* that a file's content is remembered */
#define PIECE 64u    /* names listed and removed in one piece */
#define TENANTS 32u  /* files looked at in one piece */

/* ---- the file of a tenant ---- */

int ldr_figure_work(ldr_volume_t *p, ldr_job_t *job)
{
    ldr_objects_t *t = p->tier;
    char name[LDR_OBJECT_NAME_MAX + 1];

    ldr_mutex_lock(&t->lock);
    uint64_t bytes = ldr_volume_held(p);
    ldr_mutex_unlock(&t->lock);
    snprintf(name, sizeof(name), FOLDER "%s", p->hex);
    int error =
        ldr_call_put_pair(job, name, bytes, ldr_wall_s(t->params.clock), 0);
    if (error == -ENOSPC || error == -EDQUOT || error == -EROFS ||
        error == -EACCES) {
        job->wrote = false; /* others say so, of what matters more */
        error = 0;
    }
    p->cleaner.figure_at_ns = ldr_now_ns(t->params.clock) + MINUTE_NS;
    return error;
}

/* ---- whether a tenant is to go ---- */

static bool is_open_here(ldr_objects_t *t, const char *hex)
{
    bool is = false;

    ldr_mutex_lock(&t->lock);
    for (size_t i = 0; i < t->volume_count && !is; i++) {
        is = strcmp(t->volumes[i]->hex, hex) == 0;
    }
    ldr_mutex_unlock(&t->lock);
    return is;
}

static uint32_t steady_s(const ldr_objects_t *t)
{
    return (uint32_t)(ldr_now_ns(t->params.clock) / SECOND_NS) + 1;
}

/* Whether this node has seen that content of the file for long enough. */
static bool is_unchanged(ldr_objects_t *t, const char *hex, uint32_t when_s)
{
    uint8_t key[LDR_ID_BYTES];
    uint32_t now_s = steady_s(t);

    if (!ldr_unhex(hex, LDR_ID_BYTES, key)) {
        return false;
    }
    ldr_put32(key, ldr_get32(key) ^ when_s);
    return ldr_ids_add(&t->idle.seen, key, now_s) &&
           now_s - ldr_ids_find(&t->idle.seen, key) >= WATCH_S;
}

/* Reads the tenant's file. Without one, or with junk in it, nothing is due. */
static int is_due(ldr_job_t *job, const char *hex, uint64_t *bytes_p,
                  uint64_t *when_s_p, bool *due_p)
{
    ldr_objects_t *t = ldr_tier_of(job);
    uint64_t age_s = ldr_max64(t->params.max_age_s, IDLE_S);
    char name[LDR_OBJECT_NAME_MAX + 1];

    snprintf(name, sizeof(name), FOLDER "%s", hex);
    int error = ldr_call_get_pair(job, name, bytes_p, when_s_p);
    *due_p = error == 0 && ldr_wall_s(t->params.clock) > *when_s_p + age_s &&
             !is_open_here(t, hex) && is_unchanged(t, hex, (uint32_t)*when_s_p);
    return error == -ENOENT || error == -EBADMSG ? 0 : error;
}

/* ---- removing ---- */

typedef struct page {
    size_t skip; /* bytes of the prefix */
    char names[PIECE][LDR_OBJECT_NAME_MAX + 1];
    uint32_t count, most;
    bool tenants; /* only names that are a tenant's */
} page_t;

static int list_one(void *arg, const char *name, uint64_t bytes)
{
    page_t *page = arg;
    uint8_t id[LDR_ID_BYTES];

    (void)bytes;
    if (page->count == page->most) {
        return 1;
    }
    if (!page->tenants || (strlen(name + page->skip) == 2 * sizeof(id) &&
                           ldr_unhex(name + page->skip, sizeof(id), id))) {
        snprintf(page->names[page->count++], sizeof(page->names[0]), "%s",
                 name);
    }
    return 0;
}

static int list_page(ldr_job_t *job, const char *prefix, const char *after,
                     page_t *page)
{
    page->skip = strlen(prefix);
    int error = ldr_call_list(job, prefix, after[0] != '\0' ? after : NULL,
                              list_one, page);

    return error < 0 ? error : 0;
}

/* One that somebody has written who has opened the tenant since stays. */
static int remove_manifest(ldr_job_t *job, const char *name, uint64_t when_s)
{
    uint8_t head[LDR_MANIFEST_HEAD], id[LDR_ID_BYTES];
    int error = ldr_call_get(job, name, 0, head, sizeof(head));

    if (error == 0 && ldr_unhex(ldr_tier_of(job)->idle.hex, sizeof(id), id) &&
        ldr_manifest_peek_when(head, id) > when_s + IDLE_S) {
        return 0;
    }
    return error == 0 || error == -ENODATA ? ldr_call_remove(job, name)
           : error == -ENOENT              ? 0
                                           : error;
}

static int remove_page(ldr_job_t *job, const page_t *page, uint64_t when_s)
{
    ldr_idle_t *idle = &ldr_tier_of(job)->idle;
    int error = 0;

    for (uint32_t i = 0; i < page->count && error == 0; i++) {
        const char *name = page->names[i];

        error = idle->manifests ? remove_manifest(job, name, when_s)
                                : ldr_call_remove(job, name);
        if (error == 0) {
            memcpy(idle->at, name, sizeof(idle->at));
            idle->removed += !idle->manifests;
        }
    }
    return error;
}

/* All of it is gone: the file, too. */
static int remove_last(ldr_job_t *job, uint64_t bytes)
{
    ldr_objects_t *t = ldr_tier_of(job);
    ldr_idle_t *idle = &t->idle;
    char name[LDR_OBJECT_NAME_MAX + 1];

    snprintf(name, sizeof(name), FOLDER "%s", idle->hex);
    int error = ldr_call_remove(job, name);
    if (error == 0) {
        ldr_mutex_lock(&t->lock);
        t->n.cleaned_objects += idle->removed;
        t->n.cleaned_bytes += bytes;
        ldr_mutex_unlock(&t->lock);
        ldr_info(&t->params.log,
                 "shared tier: removed all of tenant %s, %llu objects: no node "
                 "had it open for shared_age_s",
                 idle->hex, (unsigned long long)idle->removed);
        idle->hex[0] = '\0';
    }
    return error;
}

/* A piece of the objects or, once there are none, of the manifests. */
static int remove_piece(ldr_job_t *job)
{
    ldr_idle_t *idle = &ldr_tier_of(job)->idle;
    char name[LDR_OBJECT_NAME_MAX + 1];
    ldr_role_file_t role = {.there = false};
    uint64_t bytes = 0, when_s = 0;
    page_t page = {.most = PIECE};
    bool due = false;

    ldr_name_of(idle->hex, idle->manifests ? "m/" : "o/", name);
    int error = list_page(job, name, idle->at, &page);
    if (error == 0) {
        error = is_due(job, idle->hex, &bytes, &when_s, &due);
    }
    if (error == 0 && due) {
        ldr_name_of(idle->hex, "cleaner", name);
        error = ldr_role_read(job, name, &role);
    }
    if (error != 0) {
        return error;
    }
    if (!due || role.others) { /* somebody has opened it */
        idle->hex[0] = '\0';
    } else if (page.count > 0) {
        return remove_page(job, &page, when_s);
    } else if (idle->manifests) {
        return remove_last(job, bytes);
    } else {
        idle->manifests = true;
        idle->at[0] = '\0';
    }
    return 0;
}

/* ---- a round over all files ---- */

/* Looks at some of them. True: there are more. */
static bool tenant_look(ldr_job_t *job, int *error_p)
{
    ldr_idle_t *idle = &ldr_tier_of(job)->idle;
    uint64_t bytes, when_s;
    page_t page = {.most = TENANTS, .tenants = true};
    bool due = false;

    *error_p = list_page(job, FOLDER, idle->after, &page);
    for (uint32_t i = 0; i < page.count && *error_p == 0 && !due; i++) {
        const char *hex = page.names[i] + strlen(FOLDER);

        memcpy(idle->after, page.names[i], sizeof(idle->after));
        *error_p = is_due(job, hex, &bytes, &when_s, &due);
        if (due) {
            snprintf(idle->hex, sizeof(idle->hex), "%s", hex);
            idle->manifests = false;
            idle->at[0] = '\0';
            idle->removed = 0;
        }
    }
    bool more = *error_p == 0 && page.count > 0;
    if (!more) {
        idle->after[0] = '\0';
    }
    return more;
}

/* idle->mine: it was this node's before. */
static int role_take(ldr_job_t *job)
{
    ldr_objects_t *t = ldr_tier_of(job);
    ldr_idle_t *idle = &t->idle;
    ldr_role_file_t l;
    int error = ldr_role_read(job, ROLE_FILE, &l);

    idle->mine = false;
    if (error == 0 && !l.others) {
        error = ldr_role_write(job, ROLE_FILE, l.there, ROLE_S);
        idle->mine = error == 0 && l.mine;
    }
    if (error == -EEXIST || error == -ENOSPC || error == -EDQUOT ||
        error == -EROFS || error == -EACCES || error == -EPERM) {
        job->wrote = false; /* others say so, of what matters more */
        error = 0;
    }
    if (!idle->mine) {
        idle->hex[0] = idle->after[0] = '\0';
    }
    uint32_t now_s = steady_s(t);
    ldr_ids_prune(&idle->seen, now_s > SEEN_S ? now_s - SEEN_S : 0);
    return error;
}

/* ---- the work ---- */

uint64_t ldr_idle_at(const ldr_objects_t *t)
{
    LDR_HELD(&t->lock);
    return t->idle.busy || t->params.max_age_s == 0 ? UINT64_MAX
                                                    : t->idle.at_ns;
}

/* A piece; *at_ns: when the next one is due. */
static int work_once(ldr_job_t *job, uint64_t *at_ns)
{
    ldr_objects_t *t = ldr_tier_of(job);
    ldr_idle_t *idle = &t->idle;
    int error = 0;

    if (*at_ns >= idle->role_ns) {
        idle->role_ns = *at_ns + MINUTE_NS;
        error = role_take(job);
        *at_ns = error == 0 && idle->mine ? *at_ns : idle->role_ns;
    } else if (idle->hex[0] != '\0') {
        error = remove_piece(job);
    } else if (!tenant_look(job, &error)) {
        *at_ns = idle->role_ns;
    }
    if (error == -EACCES || error == -EPERM || error == -EROFS ||
        error == -ENOSPC || error == -EDQUOT) {
        /* Another user's files, maybe: that says nothing of our own. */
        ldr_info(&t->params.log,
                 "shared tier: tenant %s, which no node has open, cannot be "
                 "removed: %s",
                 idle->hex, strerror(-error));
        job->wrote = false;
        error = 0;
        idle->hex[0] = '\0';
    } else if (error != 0) {
        idle->hex[0] = idle->after[0] = '\0';
        *at_ns = idle->role_ns;
    }
    return error;
}

int ldr_idle_work(ldr_volume_t *p, ldr_job_t *job)
{
    ldr_objects_t *t = p->tier;
    uint64_t at_ns = ldr_now_ns(t->params.clock);

    ldr_mutex_lock(&t->lock);
    bool mine =
        at_ns >= ldr_idle_at(t); /* else another volume's chore has it */
    t->idle.busy = t->idle.busy || mine;
    ldr_mutex_unlock(&t->lock);
    if (!mine) {
        return 0;
    }
    int error = work_once(job, &at_ns);
    ldr_mutex_lock(&t->lock);
    t->idle.busy = false;
    t->idle.at_ns = at_ns;
    ldr_mutex_unlock(&t->lock);
    return error;
}
