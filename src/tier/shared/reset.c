/*
 * T/check, and resets: T/e/SPACE-EPOCH.
 *
 * A reset is an object of its own, sealed under the tenant's key, so that
 * nobody who can merely write to the storage makes one up. It takes an epoch
 * that nobody else has: LDR_OBJECT_NEW, and on -EEXIST the next one, since what
 * was saved under another node's new epoch may be older than this reset. The
 * cleaner removes those that are superseded, so a name that is free may be
 * below the epoch that is in force: after the put the names are listed once
 * more, and if there is a higher one the reset goes beyond that.
 *
 * Runs in a worker. Epochs are looked at and changed with the tier's lock, and
 * the storage is called without it.
 */
#include <errno.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/thread.h"
#include "tier/shared/objects_int.h"
#include "store/index.h"

#define CHECK_BYTES 64u
#define EPOCH_BYTES 48u
#define TRIES 16u
#define RESETS_MAX 1000000u
#define CHECK_AGAIN 12u /* times retry_ms */

/* ---- T/check ---- */

enum {
    CHECK_VERSION = 8, /* u32 */
    CHECK_FLAGS = 12,  /* u32; 1: encrypted */
    CHECK_TENANT = 16,
    CHECK_MAC = 32,
    CHECK_CIPHER = 48
};

static bool check_value(const uint8_t key[LDR_SEAL_KEY_BYTES], const char *what,
                        const uint8_t tenant[LDR_ID_BYTES],
                        uint8_t out[LDR_ID_BYTES])
{
    const ldr_piece_t pieces[] = {{what, strlen(what)}, {tenant, LDR_ID_BYTES}};
    uint8_t digest[32];

    if (!ldr_hmac_sha256(key, LDR_SEAL_KEY_BYTES, pieces, 2, digest)) {
        return false;
    }
    memcpy(out, digest, LDR_ID_BYTES);
    return true;
}

static bool check_compose(const ldr_volume_t *p, uint8_t out[CHECK_BYTES])
{
    memset(out, 0, CHECK_BYTES);
    memcpy(out, "LARDERCK", 8);
    ldr_put32(out + CHECK_VERSION, 1);
    ldr_put32(out + CHECK_FLAGS, p->seal.encrypts);
    memcpy(out + CHECK_TENANT, p->id, LDR_ID_BYTES);
    return check_value(p->seal.mac, "larder tier secret 1", p->id,
                       out + CHECK_MAC) &&
           (!p->seal.encrypts ||
            check_value(p->seal.cipher, "larder tier key 1", p->id,
                        out + CHECK_CIPHER));
}

/* What is wrong with it; NULL: nothing. Another secret or key is something to
 * tell whoever opens a space; what is no check value of this tenant at all says
 * nothing of its secret (anybody who can write to the storage could have put it
 * there), and only the volume is off. */
static const char *check_compare(const uint8_t *ours, const uint8_t *theirs,
                                 size_t bytes, bool *garbled_p)
{
    *garbled_p = false;
    if (bytes != CHECK_BYTES || memcmp(ours, theirs, CHECK_FLAGS) != 0 ||
        memcmp(ours + CHECK_TENANT, theirs + CHECK_TENANT, LDR_ID_BYTES) != 0) {
        *garbled_p = true;
        return "its check value is broken, or of another version: use "
               "another tier, or remove what it holds of this tenant";
    }
    if (CRYPTO_memcmp(ours + CHECK_MAC, theirs + CHECK_MAC, LDR_ID_BYTES) !=
        0) {
        return "it holds this tenant's data under another secret";
    }
    if (ldr_get32(ours + CHECK_FLAGS) != ldr_get32(theirs + CHECK_FLAGS)) {
        return ldr_get32(ours + CHECK_FLAGS) == 0
                   ? "it holds this tenant's data encrypted: give the key"
                   : "it holds this tenant's data without encryption: give no "
                     "key, or use another tier";
    }
    if (memcmp(ours + CHECK_CIPHER, theirs + CHECK_CIPHER, LDR_ID_BYTES) != 0) {
        return "it holds this tenant's data encrypted with another key";
    }
    return NULL;
}

/* Reads T/check, and puts it if there is none: unless that is to wait for a
 * claim. -ENOENT: it waits. */
static int check_fetch(ldr_volume_t *p, ldr_job_t *job, bool claims,
                       const uint8_t ours[CHECK_BYTES],
                       uint8_t theirs[CHECK_BYTES], size_t *bytes_p)
{
    char name[LDR_OBJECT_NAME_MAX + 1];

    ldr_name_of(p->hex, "check", name);
    int error = ldr_call_get_all(job, name, theirs, CHECK_BYTES, bytes_p);
    if (error != -ENOENT || !claims) {
        return error;
    }
    error = ldr_call_put(job, name, ours, CHECK_BYTES, LDR_OBJECT_NEW);
    if (error == 0) {
        memcpy(theirs, ours, CHECK_BYTES);
        *bytes_p = CHECK_BYTES;
    } else if (error == -EEXIST) {
        error = ldr_call_get_all(job, name, theirs, CHECK_BYTES, bytes_p);
    }
    return error;
}

/* Under which seal it is looked at; and whether that is claimed. */
static bool check_begin(ldr_volume_t *p)
{
    ldr_mutex_lock(&p->tier->lock);
    if (p->reseal) {
        p->seal = p->next;
        p->reseal = false;
    }
    bool claims = p->claims;
    ldr_mutex_unlock(&p->tier->lock);
    return claims;
}

/* Nothing of the tenant is there. */
static void check_vacant(ldr_volume_t *p)
{
    const ldr_objects_t *t = p->tier;

    LDR_HELD(&p->tier->lock);
    p->checked = p->refused = p->garbled = false;
    p->vacant = true;
    p->reason[0] = '\0';
    p->chores[LDR_CHORE_CHECK].at_ns =
        ldr_now_ns(t->params.clock) + t->poll_ns; /* others may be first */
}

/* What was found out; true: it is news. */
static bool check_end(ldr_volume_t *p, const char *wrong, bool garbled)
{
    const ldr_objects_t *t = p->tier;
    bool known = p->refused || p->garbled;

    LDR_HELD(&p->tier->lock);
    p->checked = wrong == NULL && !p->outdated; /* else it was another's */
    p->refused = wrong != NULL && !garbled;
    p->garbled = wrong != NULL && garbled;
    p->vacant = false;
    if (wrong != NULL) {
        /* It may be put right. */
        p->chores[LDR_CHORE_CHECK].at_ns =
            ldr_now_ns(t->params.clock) + CHECK_AGAIN * t->retry_ns;
        snprintf(p->reason, sizeof(p->reason), "tenant %s, shared tier %s: %s",
                 p->name, t->kind, wrong);
    } else {
        p->claims = true;
        snprintf(p->reason, sizeof(p->reason),
                 "tenant %s: its manifests were not read yet", p->name);
    }
    return wrong != NULL && !known;
}

int ldr_check_work(ldr_volume_t *p, ldr_job_t *job)
{
    ldr_objects_t *t = p->tier;
    uint8_t ours[CHECK_BYTES], theirs[CHECK_BYTES];
    size_t bytes = 0;
    const char *wrong = NULL;
    bool garbled = false, news = false;

    if (!ldr_volume_forget(p)) {
        return -ENOMEM;
    }
    bool claims = check_begin(p);
    if (!check_compose(p, ours)) {
        return -ENOMEM;
    }
    int error = check_fetch(p, job, claims, ours, theirs, &bytes);
    bool vacant = error == -ENOENT && !claims;
    if (error == 0 || error == -EBADMSG) {
        wrong = check_compare(ours, theirs, error == 0 ? bytes : 0, &garbled);
    } else if (!vacant) {
        return error;
    }
    ldr_mutex_lock(&t->lock);
    if (p->reseal || (vacant && p->claims)) {
        p->chores[LDR_CHORE_CHECK].at_ns = 0; /* for who came meanwhile */
    } else if (vacant) {
        check_vacant(p);
    } else {
        news = check_end(p, wrong, garbled);
    }
    ldr_mutex_unlock(&t->lock);
    if (news) {
        ldr_error(&t->params.log,
                  "tenant %s, shared tier %s: %s; this tenant's part alone is "
                  "dropped by `larder tier wipe URL --tenant %s`",
                  p->name, t->kind, wrong, p->name);
    }
    return 0;
}

/* ---- the objects of resets ---- */

enum { EPOCH_VERSION = 8, EPOCH_WRITTEN_S = 12, EPOCH_MAC = 16 };

static bool epoch_compose(const ldr_volume_t *p,
                          const uint8_t space[LDR_ID_BYTES], uint32_t epoch,
                          uint32_t written_s, uint8_t out[EPOCH_BYTES])
{
    uint8_t number[4];
    const ldr_piece_t pieces[] = {
        {"larder reset 1", 14}, {out, EPOCH_MAC},         {p->id, LDR_ID_BYTES},
        {space, LDR_ID_BYTES},  {number, sizeof(number)},
    };

    memcpy(out, "LARDEREP", 8);
    ldr_put32(out + EPOCH_VERSION, 1);
    ldr_put32(out + EPOCH_WRITTEN_S, written_s);
    ldr_put32(number, epoch);
    return ldr_hmac_sha256(p->seal.mac, sizeof(p->seal.mac), pieces, 5,
                           out + EPOCH_MAC);
}

int ldr_reset_read(ldr_volume_t *p, ldr_job_t *job,
                   const uint8_t space[LDR_ID_BYTES], uint32_t epoch,
                   uint32_t *written_s_p)
{
    char name[LDR_OBJECT_NAME_MAX + 1];
    uint8_t theirs[EPOCH_BYTES], ours[EPOCH_BYTES];

    ldr_name_epoch(p, space, epoch, name);
    int error = ldr_call_get(job, name, 0, theirs, EPOCH_BYTES);
    if (error != 0) {
        return error == -ENODATA ? -EBADMSG : error;
    }
    *written_s_p = ldr_get32(theirs + EPOCH_WRITTEN_S);
    if (!epoch_compose(p, space, epoch, *written_s_p, ours)) {
        return -ENOMEM;
    }
    return CRYPTO_memcmp(ours, theirs, EPOCH_BYTES) == 0 ? 0 : -EBADMSG;
}

static int list_one(void *arg, const char *name, uint64_t bytes)
{
    ldr_resets_t *l = arg;
    ldr_reset_t r = {.lost = 0};
    uint64_t epoch;

    (void)bytes;
    name += l->skip;
    if (strlen(name) != 2 * LDR_ID_BYTES + 9 ||
        !ldr_unhex(name, LDR_ID_BYTES, r.space) ||
        name[2 * LDR_ID_BYTES] != '-' ||
        !ldr_unhex64(name + 2 * LDR_ID_BYTES + 1, 8, &epoch)) {
        return 0; /* somebody else's */
    }
    r.epoch = (uint32_t)epoch;
    if (l->count >= RESETS_MAX ||
        !ldr_grow(&l->at, &l->capacity, l->count + 1, sizeof(r))) {
        return -ENOMEM;
    }
    l->at[l->count++] = r;
    return 0;
}

int ldr_reset_list(ldr_volume_t *p, ldr_job_t *job, ldr_resets_t *list)
{
    char prefix[LDR_OBJECT_NAME_MAX + 1];

    ldr_name_of(p->hex, "e/", prefix);
    list->skip = strlen(prefix);
    list->count = 0;
    return ldr_call_list(job, prefix, NULL, list_one, list);
}

/* ---- what this node knows ---- */

bool ldr_volume_raise(ldr_volume_t *p, const uint8_t space[LDR_ID_BYTES],
                      uint32_t epoch)
{
    ldr_objects_t *t = p->tier;
    uint32_t number;

    ldr_mutex_lock(&t->lock);
    ldr_volume_space_t *s = ldr_volume_space(p, space, &number);
    bool higher = s != NULL && epoch > ldr_map_epoch(p->map, number);
    if (higher) {
        ldr_map_set_epoch(p->map, number, epoch);
    }
    ldr_mutex_unlock(&t->lock);
    if (higher) {
        ldr_volume_notify(p);
    }
    return s != NULL;
}

void ldr_volume_notify(ldr_volume_t *p)
{
    ldr_objects_t *t = p->tier;
    uint8_t id[LDR_ID_BYTES];

    ldr_mutex_lock(&t->lock);
    for (size_t i = 0; i < p->space_count; i++) {
        ldr_volume_space_t *s = &p->spaces[i];
        uint32_t epoch = ldr_map_epoch(p->map, (uint32_t)i);

        if (s->used && s->node_epoch < epoch) {
            s->node_epoch = epoch;
            memcpy(id, s->id, LDR_ID_BYTES);
            ldr_mutex_unlock(&t->lock);
            if (t->params.epoch != NULL) {
                t->params.epoch(t->params.arg, id, epoch);
            }
            ldr_mutex_lock(&t->lock);
        }
    }
    ldr_mutex_unlock(&t->lock);
}

/* ---- writing them ---- */

/* The highest that is there. What is not under this key is nobody's reset, but
 * would be in the way. */
static int find_highest(ldr_volume_t *p, ldr_job_t *job,
                        const uint8_t space[LDR_ID_BYTES], uint32_t *epoch_p)
{
    char name[LDR_OBJECT_NAME_MAX + 1];
    ldr_resets_t list = {.count = 0};
    uint32_t written_s;
    int error = -EBADMSG;

    for (unsigned i = 0; i < TRIES && error == -EBADMSG; i++) {
        *epoch_p = 0;
        error = ldr_reset_list(p, job, &list);
        for (size_t k = 0; k < list.count; k++) {
            if (memcmp(space, list.at[k].space, LDR_ID_BYTES) == 0) {
                *epoch_p = (uint32_t)ldr_max64(*epoch_p, list.at[k].epoch);
            }
        }
        if (error != 0 || *epoch_p == 0) {
            break;
        }
        error = ldr_reset_read(p, job, space, *epoch_p, &written_s);
        if (error == -EBADMSG) {
            ldr_name_epoch(p, space, *epoch_p, name);
            int removed = ldr_call_remove(job, name);
            error = removed != 0 ? removed : error;
        }
    }
    ldr_free(list.at);
    return error == -ENOENT ? 0 : error;
}

/* Puts an epoch that is wanted or, for a reset, higher and nobody else's. */
static int write_epoch(ldr_volume_t *p, ldr_job_t *job,
                       const uint8_t space[LDR_ID_BYTES], bool own,
                       uint32_t *epoch_p)
{
    ldr_objects_t *t = p->tier;
    char name[LDR_OBJECT_NAME_MAX + 1];
    uint8_t data[EPOCH_BYTES];
    uint32_t highest;
    int error = find_highest(p, job, space, &highest);

    for (unsigned i = 0; i < TRIES && error == 0; i++) {
        if (!own && highest >= *epoch_p) {
            return 0;
        }
        if (highest >= UINT32_MAX - 1) {
            return -EOVERFLOW;
        }
        *epoch_p = (uint32_t)ldr_max64(*epoch_p, own ? highest + 1 : 0);
        ldr_name_epoch(p, space, *epoch_p, name);
        if (!epoch_compose(p, space, *epoch_p, ldr_wall_s(t->params.clock),
                           data)) {
            return -ENOMEM;
        }
        error = ldr_call_put(job, name, data, EPOCH_BYTES, LDR_OBJECT_NEW);
        bool taken = error == -EEXIST;
        if (error != 0 && !taken) {
            return error;
        }
        error = find_highest(p, job, space, &highest);
        if (error == 0 && !taken && highest <= *epoch_p) {
            return 0;
        }
        /* A listing may be too old to show it. */
        highest = (uint32_t)ldr_max64(highest, *epoch_p);
    }
    return error != 0 ? error : -EAGAIN;
}

uint32_t ldr_reset_wanted(const ldr_volume_t *p)
{
    LDR_HELD(&p->tier->lock);
    for (size_t i = 0; i < p->space_count; i++) {
        if (p->spaces[i].wanted != 0) {
            return (uint32_t)i;
        }
    }
    return LDR_NIL;
}

uint64_t ldr_reset_at(const ldr_volume_t *p)
{
    LDR_HELD(&p->tier->lock);
    return ldr_reset_wanted(p) != LDR_NIL ? 0 : UINT64_MAX;
}

int ldr_reset_work(ldr_volume_t *p, ldr_job_t *job)
{
    ldr_objects_t *t = p->tier;
    uint8_t id[LDR_ID_BYTES];

    for (;;) {
        ldr_mutex_lock(&t->lock);
        uint32_t number = ldr_reset_wanted(p);
        if (number == LDR_NIL) {
            ldr_mutex_unlock(&t->lock);
            return 0;
        }
        ldr_volume_space_t *s = &p->spaces[number];
        uint32_t before = s->wanted, epoch = before;
        bool own = s->resetting;
        memcpy(id, s->id, LDR_ID_BYTES);
        ldr_mutex_unlock(&t->lock);

        int error = write_epoch(p, job, id, own, &epoch);
        if (error != 0) {
            return error;
        }
        ldr_mutex_lock(&t->lock);
        s = &p->spaces[number];
        if (s->wanted == before && s->resetting == own) {
            s->wanted = 0;
            s->resetting = false;
        }
        if (epoch > ldr_map_epoch(p->map, number)) {
            ldr_map_set_epoch(p->map, number, epoch);
        }
        ldr_mutex_unlock(&t->lock);
        ldr_volume_notify(p);
    }
}

typedef struct waited {
    const ldr_volume_t *volume;
    uint32_t space;
} waited_t;

static bool is_reset(const void *arg)
{
    const waited_t *w = arg;

    return !w->volume->spaces[w->space].resetting ||
           w->volume->tier->state == LDR_OBJECTS_OFF || w->volume->refused ||
           w->volume->garbled; /* it is of no use to wait */
}

larder_status_t ldr_objects_reset(ldr_objects_t *t, uint32_t tenant,
                                  uint32_t space, uint64_t deadline_ns,
                                  uint32_t *epoch_p)
{
    ldr_mutex_lock(&t->lock);
    ldr_volume_t *p = ldr_objects_volume(t, tenant);
    if (p == NULL || space >= p->space_count) {
        ldr_mutex_unlock(&t->lock);
        return ldr_fail(LARDER_E_INVALID, "no such space in the shared tier");
    }
    ldr_volume_space_t *s = &p->spaces[space];
    uint32_t epoch = ldr_map_epoch(p->map, space) + 1;
    /* A reset under way took its epoch before this call: there must be another
     * one, so `wanted` changes and the chore goes round again. */
    s->wanted = (uint32_t)ldr_max64(s->wanted + 1, epoch);
    s->resetting = true;
    s->node_epoch = (uint32_t)ldr_max64(s->node_epoch, epoch);
    ldr_map_set_epoch(p->map, space, epoch);
    p->chores[LDR_CHORE_RESET].at_ns = 0;
    waited_t w = {p, space};
    ldr_objects_wait(t, is_reset, &w, deadline_ns);
    s = &p->spaces[space];
    bool done = !s->resetting;
    *epoch_p = ldr_map_epoch(p->map, space);
    if (!done) {
        *epoch_p = ldr_epoch_far(*epoch_p);
        s->wanted = (uint32_t)ldr_max64(s->wanted, *epoch_p);
        ldr_map_set_epoch(p->map, space, *epoch_p);
    }
    s->node_epoch = (uint32_t)ldr_max64(s->node_epoch, *epoch_p);
    bool off = t->state == LDR_OBJECTS_OFF || p->refused || p->garbled;
    ldr_mutex_unlock(&t->lock);
    if (done) {
        return LARDER_OK;
    }
    return ldr_fail(off ? LARDER_E_TIER_OFF : LARDER_E_DEADLINE,
                    "the reset is not in the shared tier yet: other nodes may "
                    "serve what was saved before, this one uses nothing of the "
                    "space there until it could be written");
}
