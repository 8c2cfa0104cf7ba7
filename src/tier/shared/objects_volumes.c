/*
 * Tenants and spaces of the tier, their chores, finding, figures.
 *
 * A volume is made by the first ldr_objects_enter() and lives as long as the
 * tier, so that its number and a pointer to it stay good without the lock. All
 * else needs tier->lock, which functions of objects.h take.
 */
#define _GNU_SOURCE
#include <openssl/crypto.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "base/thread.h"
#include "tier/shared/objects_int.h"
#include "store/index.h"

#define MS 1000000u
#define VOLUMES_MAX 1000u

/* ---- chores ---- */

static int (*const works[LDR_CHORES])(ldr_volume_t *p, ldr_job_t *job) = {
    [LDR_CHORE_CHECK] = ldr_check_work, [LDR_CHORE_RESET] = ldr_reset_work,
    [LDR_CHORE_POLL] = ldr_poll_work,   [LDR_CHORE_PUBLISH] = ldr_publish_work,
    [LDR_CHORE_CLEAN] = ldr_clean_work,
};

static int chore_work(ldr_job_t *job, ldr_backend_t *b)
{
    ldr_chore_t *c = job->arg;

    job->backend = b;
    return works[c - c->volume->chores](c->volume, job);
}

static void chore_done(ldr_job_t *job)
{
    ldr_chore_t *c = job->arg;
    ldr_volume_t *p = c->volume;
    ldr_objects_t *t = p->tier;

    ldr_mutex_lock(&t->lock);
    LDR_ASSERT(c->busy);
    c->busy = false;
    if (job->error != 0) {
        c->at_ns = ldr_now_ns(t->params.clock) +
                   ldr_min64(t->retry_ns, (uint64_t)1000 * MS);
    }
    if (c == &p->chores[LDR_CHORE_POLL]) {
        ldr_poll_ended(p, job->error);
    }
    pthread_cond_broadcast(&t->changed);
    ldr_objects_wake(t);
    ldr_mutex_unlock(&t->lock);
}

/* ---- tenants and spaces ---- */

void ldr_volume_destroy(ldr_volume_t *p)
{
    ldr_map_destroy(p->map);
    ldr_free(p->spaces);
    ldr_ids_clear(&p->gone);
    ldr_ids_clear(&p->gone_old);
    ldr_ids_clear(&p->early);
    ldr_free(p->known);
    ldr_free(p->unread);
    ldr_free(p->uses);
    ldr_manifest_clear(&p->pending);
    ldr_manifest_clear(&p->sending);
    ldr_free(p->cleaner.marks);
    ldr_ids_clear(&p->cleaner.bad);
    explicit_bzero(&p->seal, sizeof(p->seal));
    explicit_bzero(&p->next, sizeof(p->next));
    ldr_free(p);
}

ldr_volume_t *ldr_objects_volume(ldr_objects_t *t, uint32_t tenant)
{
    LDR_HELD(&t->lock);
    return tenant < t->volume_count ? t->volumes[tenant] : NULL;
}

static ldr_volume_t *volume_create(ldr_objects_t *t,
                                   const uint8_t id[LDR_ID_BYTES],
                                   const char *name, const ldr_seal_t *seal)
{
    ldr_volume_t *p = ldr_alloc(sizeof(*p));

    if (p == NULL) {
        return NULL;
    }
    p->map = ldr_map_create(t->params.seed != 0 ? ldr_rand_next(&t->rand)
                                                : ldr_rand_entropy());
    if (p->map == NULL) {
        ldr_free(p);
        return NULL;
    }
    ldr_map_guard(p->map, &t->lock);
    p->tier = t;
    memcpy(p->id, id, LDR_ID_BYTES);
    ldr_hex(id, LDR_ID_BYTES, p->hex);
    snprintf(p->name, sizeof(p->name), "%s", name);
    snprintf(p->reason, sizeof(p->reason),
             "tenant %s: its part was not looked at yet", name);
    p->seal = p->next = *seal;
    for (unsigned k = 0; k < LDR_CHORES; k++) {
        p->chores[k].volume = p;
        p->chores[k].job = (ldr_job_t){
            .kind = LDR_JOB_CHORE,
            .work = chore_work,
            .done = chore_done,
            .arg = &p->chores[k],
        };
    }
    return p;
}

static bool is_sealed_by(const ldr_seal_t *a, const ldr_seal_t *b)
{
    return a->encrypts == b->encrypts &&
           CRYPTO_memcmp(a->mac, b->mac, sizeof(a->mac)) == 0 &&
           (!a->encrypts ||
            CRYPTO_memcmp(a->cipher, b->cipher, sizeof(a->cipher)) == 0);
}

/* The volume of a tenant that is known, for whoever comes with this seal.
 * False: it is in use under another one. */
static bool volume_again(ldr_volume_t *p, const ldr_seal_t *seal, bool claims,
                         bool *resealed_p)
{
    bool same = is_sealed_by(&p->next, seal);

    LDR_HELD(&p->tier->lock);
    if (!same && (p->checked || (p->claims && !p->refused && !p->garbled))) {
        return false;
    }
    if (!same) {
        /* Nothing was done with the other one, and nobody uses it. */
        p->next = *seal;
        p->reseal = *resealed_p = true;
        p->claims = false;
    }
    if (p->refused || !same || (claims && p->vacant)) { /* look at once */
        p->refused = p->vacant = false;
        p->chores[LDR_CHORE_CHECK].at_ns = 0;
        ldr_objects_wake(p->tier);
    }
    p->claims = p->claims || claims;
    return true;
}

larder_status_t ldr_objects_enter(ldr_objects_t *t,
                                  const uint8_t id[LDR_ID_BYTES],
                                  const char *name, const ldr_seal_t *seal,
                                  bool claims, uint32_t *tenant_p,
                                  bool *resealed_p)
{
    size_t i = 0;
    bool ok = true;

    *tenant_p = LDR_NIL;
    *resealed_p = false;
    ldr_mutex_lock(&t->lock);
    while (i < t->volume_count &&
           memcmp(t->volumes[i]->id, id, LDR_ID_BYTES) != 0) {
        i++;
    }
    if (i < t->volume_count) {
        ok = volume_again(t->volumes[i], seal, claims, resealed_p);
        *tenant_p = ok ? (uint32_t)i : LDR_NIL;
    } else if (t->volume_count < VOLUMES_MAX &&
               ldr_grow(&t->volumes, &t->volume_capacity, t->volume_count + 1,
                        sizeof(t->volumes[0]))) {
        ldr_volume_t *p = volume_create(t, id, name, seal);
        t->volumes[t->volume_count] = p;
        if (p != NULL) {
            p->claims = claims;
            *tenant_p = (uint32_t)t->volume_count++;
        }
    }
    ldr_mutex_unlock(&t->lock);
    if (!ok) {
        return ldr_fail(LARDER_E_SECRET,
                        "tenant %s, shared tier %s: it is in use here under "
                        "the secret or key that the tenant had before: restart "
                        "the node",
                        name, t->kind);
    }
    return *tenant_p != LDR_NIL
               ? LARDER_OK
               : ldr_fail(LARDER_E_NO_MEMORY,
                          "tenant %s: no memory for its part of the shared "
                          "tier",
                          name);
}

void ldr_objects_claim(ldr_objects_t *t, uint32_t tenant)
{
    ldr_mutex_lock(&t->lock);
    ldr_volume_t *p = ldr_objects_volume(t, tenant);
    if (p != NULL) {
        bool resealed;

        volume_again(p, &p->next, true, &resealed);
    }
    ldr_mutex_unlock(&t->lock);
}

static bool is_looked_at(const void *arg)
{
    const ldr_volume_t *p = arg;
    const ldr_objects_t *t = p->tier;

    /* One that is off is not waited for, once that is known. */
    return p->ready || p->refused || p->garbled || p->vacant ||
           (t->looked && t->state == LDR_OBJECTS_OFF);
}

larder_status_t ldr_objects_await(ldr_objects_t *t, uint32_t tenant,
                                  uint64_t deadline_ns)
{
    ldr_mutex_lock(&t->lock);
    ldr_volume_t *p = t->volumes[tenant];
    ldr_objects_wait(t, is_looked_at, p, deadline_ns);
    char reason[sizeof(p->reason)];
    bool refused = p->refused;
    memcpy(reason, p->reason, sizeof(reason));
    ldr_mutex_unlock(&t->lock);
    return refused ? ldr_fail(LARDER_E_SECRET, "%s", reason) : LARDER_OK;
}

larder_status_t ldr_objects_tenant(ldr_objects_t *t,
                                   const uint8_t id[LDR_ID_BYTES],
                                   const char *name, const ldr_seal_t *seal,
                                   uint64_t deadline_ns, uint32_t *tenant_p)
{
    bool resealed;
    larder_status_t st =
        ldr_objects_enter(t, id, name, seal, true, tenant_p, &resealed);

    return st == LARDER_OK ? ldr_objects_await(t, *tenant_p, deadline_ns) : st;
}

bool ldr_objects_refused(ldr_objects_t *t, uint32_t tenant)
{
    ldr_mutex_lock(&t->lock);
    const ldr_volume_t *p = ldr_objects_volume(t, tenant);
    bool refused = p != NULL && p->refused;
    ldr_mutex_unlock(&t->lock);
    return refused;
}

ldr_volume_space_t *ldr_volume_space(ldr_volume_t *p,
                                     const uint8_t id[LDR_ID_BYTES],
                                     uint32_t *number_p)
{
    uint32_t number = ldr_map_space(p->map, id);

    LDR_HELD(&p->tier->lock);
    if (number == LDR_NIL || !ldr_grow(&p->spaces, &p->space_capacity,
                                       number + 1u, sizeof(p->spaces[0]))) {
        return NULL;
    }
    if (number >= p->space_count) {
        p->space_count = number + 1u;
    }
    memcpy(p->spaces[number].id, id, LDR_ID_BYTES);
    *number_p = number;
    return &p->spaces[number];
}

uint32_t ldr_objects_space(ldr_objects_t *t, uint32_t tenant,
                           const uint8_t id[LDR_ID_BYTES], uint32_t epoch)
{
    uint32_t number = LDR_NIL;

    ldr_mutex_lock(&t->lock);
    ldr_volume_t *p = ldr_objects_volume(t, tenant);
    ldr_volume_space_t *s = p != NULL ? ldr_volume_space(p, id, &number) : NULL;
    if (s != NULL) {
        s->used = true;
        s->node_epoch = epoch;
        if (epoch > ldr_map_epoch(p->map, number)) {
            ldr_map_set_epoch(p->map, number, epoch);
            s->wanted = (uint32_t)ldr_max64(s->wanted, epoch);
        } else if (epoch < ldr_map_epoch(p->map, number)) {
            p->chores[LDR_CHORE_POLL].at_ns = 0; /* it will tell */
        }
        ldr_objects_wake(t);
    } else {
        number = LDR_NIL;
    }
    ldr_mutex_unlock(&t->lock);
    return number;
}

uint32_t ldr_objects_epoch(ldr_objects_t *t, uint32_t tenant, uint32_t space)
{
    uint32_t epoch = 0;

    ldr_mutex_lock(&t->lock);
    ldr_volume_t *p = ldr_objects_volume(t, tenant);
    if (p != NULL && space < p->space_count) {
        epoch = ldr_map_epoch(p->map, space);
    }
    ldr_mutex_unlock(&t->lock);
    return epoch;
}

/* ---- finding ---- */

static bool is_usable(const ldr_volume_t *p, uint32_t space)
{
    LDR_HELD(&p->tier->lock);
    return p->tier->state != LDR_OBJECTS_OFF && p->ready &&
           space < p->space_count && !p->spaces[space].resetting &&
           ldr_map_epoch(p->map, space) >= p->spaces[space].lost;
}

static bool shard_find(ldr_objects_t *t, uint32_t tenant, uint32_t space,
                       const larder_key_t *key, uint32_t group, uint32_t shard,
                       ldr_object_place_t *place)
{
    const ldr_volume_t *p = ldr_objects_volume(t, tenant);

    return p != NULL && is_usable(p, space) && group <= UINT8_MAX &&
           shard <= UINT8_MAX &&
           ldr_map_find(p->map, space, key->hash, (uint8_t)group,
                        (uint8_t)shard, place);
}

bool ldr_objects_find(ldr_objects_t *t, uint32_t tenant, uint32_t space,
                      uint32_t epoch, const larder_key_t *key, uint32_t group,
                      uint32_t shard, ldr_object_place_t *place)
{
    ldr_mutex_lock(&t->lock);
    bool found = shard_find(t, tenant, space, key, group, shard, place) &&
                 ldr_map_epoch(t->volumes[tenant]->map, space) == epoch;
    ldr_mutex_unlock(&t->lock);
    return found;
}

void ldr_objects_used(ldr_objects_t *t, uint32_t tenant, uint32_t space,
                      const larder_key_t *key, uint32_t group, uint32_t shard,
                      uint32_t used_s)
{
    ldr_object_place_t place;

    ldr_mutex_lock(&t->lock);
    if (shard_find(t, tenant, space, key, group, shard, &place)) {
        ldr_volume_used(ldr_objects_volume(t, tenant), place.id, used_s);
    }
    ldr_mutex_unlock(&t->lock);
}

void ldr_objects_prefetch(ldr_objects_t *t, uint32_t tenant, uint32_t space,
                          const larder_key_t *keys, size_t count,
                          uint32_t group, uint32_t shards)
{
    if (group > UINT8_MAX || shards > UINT8_MAX) {
        return;
    }
    ldr_mutex_lock(&t->lock);
    const ldr_volume_t *p = ldr_objects_volume(t, tenant);
    if (p != NULL && p->ready && space < p->space_count) {
        for (size_t i = 0; i < count; i++) {
            for (uint32_t k = 0; k < shards; k++) {
                ldr_map_prefetch(p->map, space, keys[i].hash, (uint8_t)group,
                                 (uint8_t)k);
            }
        }
    }
    ldr_mutex_unlock(&t->lock);
}

bool ldr_objects_takes(ldr_objects_t *t, uint32_t tenant, uint32_t space)
{
    ldr_mutex_lock(&t->lock);
    const ldr_volume_t *p = ldr_objects_volume(t, tenant);
    bool ready = p != NULL && (space == LDR_NIL ? p->ready || p->vacant
                                                : is_usable(p, space));
    ldr_mutex_unlock(&t->lock);
    return ready && ldr_workers_writable(t->workers);
}

/* ---- figures ---- */

static void volume_stats(const ldr_volume_t *p, uint64_t now_ns,
                         ldr_objects_stats_t *out)
{
    ldr_map_stats_t m;

    LDR_HELD(&p->tier->lock);
    ldr_map_stats(p->map, &m);
    out->objects += m.objects;
    out->shards += m.shards;
    out->bytes += m.blocks * LDR_BLOCK;
    out->dead_bytes += m.dead_blocks * LDR_BLOCK;
    out->map_bytes += m.bytes;
    out->unpublished += p->pending_objects + p->sending_objects;
    out->cleaner = out->cleaner || p->cleaner.role == LDR_ROLE_HELD;
    if (p->polled_ns != 0) {
        out->polled_ms =
            ldr_max64(out->polled_ms, (now_ns - p->polled_ns) / MS);
    }
    if (!p->ready && out->reason[0] == '\0') {
        memcpy(out->reason, p->reason, sizeof(out->reason));
    }
}

void ldr_objects_stats(ldr_objects_t *t, ldr_objects_stats_t *out)
{
    ldr_objects_stats_t s;
    char reason[sizeof(s.reason)];
    ldr_workers_stats_t workers;
    ldr_objects_state_t state =
        ldr_workers_state(t->workers, reason, sizeof(reason));
    uint64_t now_ns = ldr_now_ns(t->params.clock);

    ldr_workers_stats(t->workers, &workers);
    ldr_mutex_lock(&t->lock);
    s = t->n;
    s.state = state;
    s.workers = workers;
    memcpy(s.reason, reason, sizeof(reason));
    memcpy(s.kind, t->kind, sizeof(s.kind));
    for (size_t i = 0; i < t->volume_count; i++) {
        volume_stats(t->volumes[i], now_ns, &s);
    }
    ldr_mutex_unlock(&t->lock);
    *out = s;
}
