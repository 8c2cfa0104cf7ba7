/*
 * The row of the shared tier: opening, tenants and spaces, resets, removals,
 * flushing. shared.h has the invariants.
 *
 * The node's lock guards ldr_shared_t, except what is fixed at open and the
 * histograms. The tier's own lock (objects_int.h) is taken inside it. Calls
 * that wait for storage are made without the node's lock.
 */
#include "tier/shared/shared.h"

#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "base/text.h"
#include "base/thread.h"
#include "net/auth.h"

#define PUBLISH_MS 500u
#define ORPHAN_S 600u
#define END_NS 500000000u
#define LOOK_NS 250000000u /* a flush looks at the tier's state so often */
/* Objects written at once: each holds what it is made of in DRAM. */
#define UPLOADS_MAX 4u

/* ---- opening ---- */

static bool parse_key(const ldr_token_t *token, uint8_t *key)
{
    return token->bytes == 2 * LDR_SEAL_KEY_BYTES &&
           ldr_unhex_any((const char *)token->data, LDR_SEAL_KEY_BYTES, key);
}

/* A file like those of tokens, under the same rules, with one line. */
static larder_status_t read_key(ldr_shared_t *s, const char *path)
{
    ldr_token_t tokens[LDR_TOKENS_MAX];
    unsigned count = 0;
    larder_status_t st = ldr_tokens_read(path, tokens, &count);

    if (st == LARDER_OK && (count != 1 || !parse_key(&tokens[0], s->cipher))) {
        st = ldr_fail(LARDER_E_INVALID,
                      "shared_key=%s: it must hold 64 hexadecimal digits "
                      "(`openssl rand -hex 32` makes some)",
                      path);
    }
    explicit_bzero(tokens, sizeof(tokens));
    s->encrypts = st == LARDER_OK;
    return st;
}

/* With the lock: another node has reset a space. True: this node did not know,
 * and the disks must record it: epochs_announce(). */
static bool take_epoch(ldr_shared_t *s, const uint8_t space_id[LDR_ID_BYTES],
                       uint32_t epoch)
{
    ldr_store_t *store = &s->host->store;
    bool raised = false;

    for (uint32_t i = 0; i < store->space_count && !s->left_behind; i++) {
        if (memcmp(store->spaces[i].id, space_id, LDR_ID_BYTES) == 0 &&
            store->spaces[i].epoch < epoch) {
            ldr_store_set_epoch(store, i, epoch);
            LDR_COUNT(store, i, resets, 1);
            raised = true;
        }
    }
    s->announcing += raised;
    return raised;
}

static void epochs_announce(ldr_shared_t *s)
{
    ldr_host_t *host = s->host;

    ldr_host_epochs(host, &s->base); /* one that cannot goes off */
    ldr_host_lock(host);
    s->announcing--;
    pthread_cond_broadcast(&host->changed);
    ldr_host_unlock(host);
}

/* From a worker, no lock held. */
static void on_epoch(void *arg, const uint8_t space_id[LDR_ID_BYTES],
                     uint32_t epoch)
{
    ldr_shared_t *s = arg;

    ldr_host_lock(s->host);
    bool raised = take_epoch(s, space_id, epoch);
    ldr_host_unlock(s->host);
    if (raised) {
        epochs_announce(s);
    }
}

static bool alloc_slots(ldr_shared_t *s)
{
    s->tenants = ldr_alloc(LDR_TENANTS_MAX * sizeof(*s->tenants));
    s->spaces = ldr_alloc(LDR_SPACES_MAX * sizeof(*s->spaces));
    s->keys = ldr_reserve(LDR_SPACES_MAX * sizeof(*s->keys));
    s->uploads = ldr_alloc(s->upload_count * sizeof(*s->uploads));
    s->fetches = ldr_alloc(s->fetch_count * sizeof(*s->fetches));
    if (s->tenants == NULL || s->spaces == NULL || s->keys == NULL ||
        s->uploads == NULL || s->fetches == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < LDR_TENANTS_MAX; i++) {
        s->tenants[i].number = LDR_NIL;
    }
    memset(s->spaces, 0xff, LDR_SPACES_MAX * sizeof(*s->spaces));
    for (unsigned i = 0; i < s->upload_count; i++) {
        s->uploads[i].shared = s;
    }
    for (unsigned i = 0; i < s->fetch_count; i++) {
        ldr_fetch_t *f = &s->fetches[i];

        f->shared = s;
        f->iov = ldr_alloc(LDR_READ_IOV * sizeof(*f->iov));
        f->block = ldr_alloc_blocks(LDR_BLOCK);
        if (f->iov == NULL || f->block == NULL) {
            return false;
        }
        f->next = s->fetch_free;
        s->fetch_free = f;
    }
    return true;
}

static larder_status_t shared_open(ldr_host_t *host)
{
    const ldr_options_t *o = &host->options;
    larder_status_t st = LARDER_OK;

    if (o->shared[0] == '\0') {
        return LARDER_OK;
    }
    ldr_shared_t *s = ldr_alloc(sizeof(*s));
    if (s == NULL) {
        return LARDER_E_NO_MEMORY;
    }
    s->stop = true; /* until there is a tier: a disk may come any time */
    s->base = (ldr_tier_t){&ldr_tier_shared, host};
    ldr_host_add_tier(host, &s->base);
    s->head = s->tail = LDR_NIL;
    s->fetch_count = 2 * (unsigned)o->shared_lanes;
    s->upload_count =
        o->shared_lanes > 1
            ? (unsigned)ldr_min64(o->shared_lanes - 1, UPLOADS_MAX)
            : 1;
    if (!alloc_slots(s)) {
        return LARDER_E_NO_MEMORY;
    }
    if (o->shared_key[0] != '\0') {
        st = read_key(s, o->shared_key);
    }
    ldr_objects_params_t params = {
        .url = o->shared,
        .login = o->shared_login,
        .threads = (unsigned)o->shared_lanes,
        .timeout_ms = (uint32_t)o->shared_timeout_ms,
        .slow_ms = (uint32_t)o->shared_slow_ms,
        .retry_ms = (uint32_t)o->retry_ms,
        .poll_ms = (uint32_t)o->shared_poll_ms,
        .publish_ms = PUBLISH_MS,
        .max_bytes = o->shared_max,
        .max_age_s = (uint32_t)o->shared_age_s,
        .orphan_s = ORPHAN_S,
        /* Keys come from ids: those of a real node are the kernel's. */
        .seed = host->manual ? ldr_rand_next(&host->rand) : 0,
        .clock = host->clock,
        .log = host->log,
        .manual = host->manual,
        .epoch = on_epoch,
        .arg = s,
    };
    st = st == LARDER_OK ? ldr_objects_open(&params, &s->tier) : st;
    ldr_host_lock(host);
    s->stop = st != LARDER_OK;
    ldr_host_unlock(host);
    return st;
}

static void *shared_main(void *arg)
{
    ldr_shared_t *s = arg;
    ldr_host_t *host = s->host;

    ldr_host_lock(host);
    while (!s->stop) {
        uint64_t wake = UINT64_MAX;

        if (ldr_shared_write(s, &wake)) {
            ldr_host_unlock(host); /* whoever saves has its turn */
            ldr_host_lock(host);
            continue;
        }
        wake = ldr_min64(wake, ldr_shared_walk(s));
        s->idle = true;
        ldr_host_tell(host);
        ldr_cond_wait_until(&s->work, &host->lock, wake);
        s->idle = false;
    }
    ldr_host_unlock(host);
    return NULL;
}

static larder_status_t shared_start(ldr_tier_t *t)
{
    ldr_shared_t *s = (ldr_shared_t *)t;

    if (t->host->manual) {
        return LARDER_OK;
    }
    if (!ldr_cond_init(&s->work)) {
        return LARDER_E_NO_MEMORY;
    }
    if (!ldr_thread_start(&s->thread, "larder-shared", shared_main, s)) {
        pthread_cond_destroy(&s->work);
        return ldr_fail(LARDER_E_NO_MEMORY, "cannot start a thread");
    }
    s->thread_started = true;
    return LARDER_OK;
}

void ldr_shared_wake(ldr_shared_t *s)
{
    ldr_host_held(s->host);
    if (s->idle) {
        pthread_cond_signal(&s->work);
    }
}

static bool shared_step(ldr_tier_t *t)
{
    ldr_shared_t *s = (ldr_shared_t *)t;
    uint64_t wake;

    if (ldr_shared_write(s, &wake)) {
        return true;
    }
    ldr_shared_walk(s);
    ldr_host_unlock(s->host);
    bool did = ldr_objects_step(s->tier);
    ldr_host_lock(s->host);
    return did;
}

/* Reads end with their jobs: the tier calls back for each, or leaves it. Calls
 * under way have half a second at least: what they name could not be freed.
 * What was to be written is by now, so there are few calls to wait for, however
 * long the deadline is. */
static bool tier_end(ldr_shared_t *s, uint64_t deadline_ns)
{
    uint64_t now_ns = ldr_now_ns(s->host->clock);
    uint64_t call_ns = s->host->options.shared_timeout_ms * 1000000u;

    if (s->tier == NULL) {
        return true;
    }
    deadline_ns = ldr_max64(deadline_ns, now_ns + END_NS);
    deadline_ns = ldr_min64(deadline_ns, now_ns + 4 * call_ns + END_NS);
    bool whole = ldr_objects_close(s->tier, deadline_ns);
    if (!whole) {
        ldr_warn(&s->host->log,
                 "shared tier: calls hang; their memory is left behind");
    }
    return whole;
}

static bool shared_end(ldr_tier_t *t, uint64_t deadline_ns)
{
    ldr_shared_t *s = (ldr_shared_t *)t;
    ldr_host_t *host = s->host;

    ldr_host_lock(host);
    s->stop = true;
    if (s->thread_started) {
        pthread_cond_signal(&s->work);
    }
    ldr_host_unlock(host);
    if (s->thread_started) {
        pthread_join(s->thread, NULL);
        pthread_cond_destroy(&s->work);
    }
    if (!tier_end(s, deadline_ns)) {
        /* A call that comes back after all may hear of a reset. */
        ldr_host_lock(host);
        s->left_behind = true;
        while (s->announcing > 0) {
            pthread_cond_wait(&host->changed, &host->lock);
        }
        ldr_host_unlock(host);
        return false;
    }
    return true;
}

static void shared_destroy(ldr_tier_t *t)
{
    ldr_shared_t *s = (ldr_shared_t *)t;
    ldr_host_t *host = s->host;

    for (unsigned i = 0; s->fetches != NULL && i < s->fetch_count; i++) {
        ldr_free(s->fetches[i].iov);
        ldr_free(s->fetches[i].block);
    }
    ldr_free(s->fetches);
    ldr_free(s->uploads);
    ldr_free(s->tenants);
    ldr_free(s->spaces);
    if (s->keys != NULL) {
        explicit_bzero(s->keys, host->store.space_count * sizeof(*s->keys));
        ldr_unreserve(s->keys, LDR_SPACES_MAX * sizeof(*s->keys));
    }
    explicit_bzero(s->cipher, sizeof(s->cipher));
    ldr_free(s);
}

/* ---- tenants and spaces ---- */

static uint64_t call_deadline(const ldr_host_t *host)
{
    return ldr_now_ns(host->clock) + host->options.shared_timeout_ms * 1000000u;
}

bool ldr_shared_numbers(const ldr_shared_t *s, uint32_t space,
                        uint32_t *tenant_p, uint32_t *space_p)
{
    ldr_host_held(s->host);

    uint32_t tenant = s->host->store.spaces[space].tenant;

    *tenant_p = tenant != LDR_NIL ? s->tenants[tenant].number : LDR_NIL;
    *space_p = s->spaces[space];
    return *tenant_p != LDR_NIL && *space_p != LDR_NIL;
}

/* What the tenant has there anybody can forge who can write to the storage:
 * said once, and shown. */
static void judge_secret(ldr_shared_t *s, uint32_t space,
                         const ldr_space_info_t *info)
{
    ldr_host_t *host = s->host;
    uint8_t key[sizeof(info->key)];
    bool open = !s->encrypts &&
                ldr_tenant_key(LDR_PUBLIC_SECRET, sizeof(LDR_PUBLIC_SECRET) - 1,
                               info->tenant, key) &&
                memcmp(key, info->key, sizeof(key)) == 0;

    ldr_host_lock(host);
    ldr_shared_tenant_t *t = &s->tenants[host->store.spaces[space].tenant];
    bool news = open && !t->open_warned;
    s->open_count += (uint32_t)open - (uint32_t)t->open;
    t->open = open;
    t->open_warned = t->open_warned || open;
    ldr_host_unlock(host);
    if (news) {
        ldr_warn(&host->log,
                 "shared tier: tenant '%s' has no secret: whoever can write to "
                 "the storage can forge what it loads; give its engines the "
                 "same secret_file",
                 info->tenant);
    }
}

/* Enters the tenant with this space's key. Spaces under another one, with which
 * nothing was done, lose the tier: what is written for them would be sealed
 * with this one. With the lock. */
static larder_status_t tenant_enter(ldr_shared_t *s, uint32_t space,
                                    uint32_t *number_p, uint32_t *turn_p)
{
    const ldr_store_t *store = &s->host->store;
    uint32_t tenant = store->spaces[space].tenant;
    const ldr_tenant_t *t = &store->tenants[tenant];
    ldr_shared_tenant_t *known = &s->tenants[tenant];
    ldr_seal_t seal = {.encrypts = s->encrypts};
    bool resealed;

    memcpy(seal.mac, s->keys[space], sizeof(seal.mac));
    memcpy(seal.cipher, s->cipher, sizeof(seal.cipher));
    larder_status_t st = ldr_objects_enter(
        s->tier, t->id, t->name, &seal, t->secret_known, number_p, &resealed);
    explicit_bzero(&seal, sizeof(seal));
    if (st == LARDER_E_SECRET && !known->other_warned) {
        known->other_warned = true;
        ldr_host_say(s->host, LARDER_LOG_WARN, "%s", ldr_fail_text());
    }
    if (st != LARDER_OK) {
        return st;
    }
    known->number = *number_p;
    known->turn += resealed;
    for (uint32_t i = 0; resealed && i < store->space_count; i++) {
        if (store->spaces[i].tenant == tenant) {
            s->spaces[i] = LDR_NIL;
        }
    }
    *turn_p = known->turn;
    return LARDER_OK;
}

/* All in one go: a reset here comes before it, and the tier hears of it, or
 * after it and finds the numbers. Resets that were missed count before anything
 * is given out. With the lock; true: there were some. */
static bool enter_space(ldr_shared_t *s, uint32_t space, uint32_t turn)
{
    const ldr_space_t *sp = &s->host->store.spaces[space];
    const ldr_shared_tenant_t *t = &s->tenants[sp->tenant];

    if (t->turn != turn) {
        return false; /* somebody else came in meanwhile, with another key */
    }
    uint32_t number = ldr_objects_space(s->tier, t->number, sp->id, sp->epoch);
    bool raised =
        take_epoch(s, sp->id, ldr_objects_epoch(s->tier, t->number, number));
    s->spaces[space] = number;
    return raised;
}

static larder_status_t shared_use_space(ldr_tier_t *t, uint32_t space,
                                        const ldr_space_info_t *info)
{
    ldr_shared_t *s = (ldr_shared_t *)t;
    ldr_host_t *host = s->host;
    uint32_t known, number, turn = 0;
    larder_status_t st = LARDER_OK;

    if (!info->has_key) {
        return LARDER_OK;
    }
    judge_secret(s, space, info);
    ldr_host_lock(host);
    bool there = ldr_shared_numbers(s, space, &known, &number) &&
                 !ldr_objects_refused(s->tier, known);
    if (!there) {
        memcpy(s->keys[space], info->key, sizeof(s->keys[space]));
        st = tenant_enter(s, space, &known, &turn);
    }
    ldr_host_unlock(host);
    if (there || st == LARDER_E_SECRET) {
        return LARDER_OK;
    }
    if (st == LARDER_OK) {
        st = ldr_objects_await(s->tier, known, call_deadline(host));
    }
    /* Under another secret: anybody who can write to the storage could have
     * said so there, and must not keep engines from starting. The tenant's
     * volume is off; log and status say why. */
    if (st != LARDER_OK && st != LARDER_E_SECRET) {
        return st;
    }
    ldr_host_lock(host);
    bool raised = enter_space(s, space, turn);
    ldr_host_unlock(host);
    if (raised) {
        epochs_announce(s);
    }
    return LARDER_OK;
}

static void shared_adopt_secret(ldr_tier_t *t, uint32_t space)
{
    ldr_shared_t *s = (ldr_shared_t *)t;
    ldr_host_t *host = s->host;
    uint32_t tenant, number, turn;

    if (s->stop || !host->store.spaces[space].secret.has_key) {
        return;
    }
    if (ldr_shared_numbers(s, space, &tenant, &number)) {
        ldr_objects_claim(s->tier, tenant);
    } else if (tenant_enter(s, space, &tenant, &turn) == LARDER_OK &&
               enter_space(s, space, turn)) {
        s->announcing--; /* nobody can wait for them here */
        ldr_host_epochs_later(host, t);
    }
}

static void shared_epochs_later(ldr_tier_t *t)
{
    const ldr_shared_t *s = (const ldr_shared_t *)t;
    ldr_host_t *host = s->host;
    uint32_t tenant, number;

    for (uint32_t i = 0; !s->stop && i < host->store.space_count; i++) {
        const ldr_space_t *space = &host->store.spaces[i];

        if (ldr_shared_numbers(s, i, &tenant, &number)) {
            ldr_objects_space(s->tier, tenant, space->id, space->epoch);
        }
    }
}

/* A reset here becomes one for all nodes. */
static larder_status_t shared_epochs(ldr_tier_t *t, uint32_t space,
                                     uint64_t deadline_ns, bool *raised_p)
{
    ldr_shared_t *s = (ldr_shared_t *)t;
    ldr_host_t *host = s->host;
    uint32_t tenant, number, epoch = 0;

    *raised_p = false;
    ldr_host_lock(host);
    if (space == LDR_NIL) {
        shared_epochs_later(t);
        ldr_host_unlock(host);
        return LARDER_OK;
    }
    bool there = ldr_shared_numbers(s, space, &tenant, &number);
    if (!there) { /* the tier hears of the epoch with the space */
        ldr_store_set_epoch(&host->store, space,
                            ldr_epoch_far(host->store.spaces[space].epoch));
        *raised_p = true;
    }
    ldr_host_unlock(host);
    if (!there) {
        return LARDER_OK;
    }
    larder_status_t st =
        ldr_objects_reset(s->tier, tenant, number,
                          ldr_min64(deadline_ns, call_deadline(host)), &epoch);
    ldr_host_lock(host);
    if (epoch > host->store.spaces[space].epoch) {
        ldr_store_set_epoch(&host->store, space, epoch);
        *raised_p = true;
    }
    ldr_host_unlock(host);
    return st;
}

static uint32_t shared_find(ldr_tier_t *t, const ldr_sought_t *sought,
                            larder_cause_t *cause_p)
{
    const ldr_shared_t *s = (ldr_shared_t *)t;
    const ldr_name_t *name = sought->name;
    uint32_t tenant, at;
    ldr_object_place_t place;

    (void)cause_p;
    if (!ldr_shared_numbers(s, name->space, &tenant, &at) ||
        !ldr_objects_find(s->tier, tenant, at,
                          t->host->store.spaces[name->space].epoch, name->key,
                          (uint16_t)name->group, sought->number, &place)) {
        return 0;
    }
    return (uint32_t)(place.blocks - 1) * LDR_BLOCK;
}

static void shared_prefetch(ldr_tier_t *t, const ldr_name_t *first,
                            const larder_key_t *keys, size_t count,
                            uint32_t shards)
{
    const ldr_shared_t *s = (ldr_shared_t *)t;
    uint32_t tenant, at;

    if (ldr_shared_numbers(s, first->space, &tenant, &at)) {
        ldr_objects_prefetch(s->tier, tenant, at, keys, count,
                             (uint16_t)first->group, shards);
    }
}

static larder_status_t shared_remove(ldr_tier_t *t, uint32_t space,
                                     uint32_t entry, const larder_item_t *item,
                                     uint64_t *token_p, bool *there_p)
{
    ldr_shared_t *s = (ldr_shared_t *)t;
    ldr_name_t name = {.key = item->key, .space = space, .group = item->group};
    ldr_sought_t sought = {&name, entry, item->shard, false};
    larder_cause_t cause;
    uint32_t tenant, number;
    ldr_manifest_row_t row = {.group = (uint8_t)item->group,
                              .shard = (uint8_t)item->shard};

    if (!ldr_shared_numbers(s, space, &tenant, &number) ||
        item->group > UINT8_MAX || item->shard > UINT8_MAX) {
        return LARDER_OK; /* it has none such */
    }
    *there_p = shared_find(t, &sought, &cause) > 0;
    memcpy(row.key, item->key->hash, LDR_MANIFEST_KEY);
    return ldr_objects_remove(s->tier, tenant, number, &row, 1, token_p);
}

/* Other nodes learn of it as well. */
static larder_status_t shared_remove_wait(ldr_tier_t *t, uint32_t space,
                                          const larder_item_t *items,
                                          size_t count, uint64_t token,
                                          const ldr_stop_t *stop)
{
    const ldr_shared_t *s = (const ldr_shared_t *)t;
    ldr_host_t *host = t->host;
    uint32_t tenant, number;
    larder_status_t st = LARDER_OK;

    (void)items;
    (void)count;
    if (token != 0 && ldr_shared_numbers(s, space, &tenant, &number)) {
        ldr_host_unlock(host);
        st = ldr_objects_removed(s->tier, tenant, token, stop->deadline_ns);
        ldr_host_lock(host);
    }
    return st;
}

/* ---- flushing ---- */

/* Until nothing is left of that turn. OK too where that is of no use: the tier
 * is off, or takes nothing for as long as a call may take. With the lock. */
static larder_status_t fetches_drain(ldr_shared_t *s, uint64_t start,
                                     const ldr_stop_t *stop)
{
    ldr_host_t *host = s->host;
    const ldr_counters_t *n = &host->store.n;
    uint64_t patience_ns = call_deadline(host), before = 0;
    ldr_objects_stats_t stats;

    while (!ldr_behind_drained(&host->store, LDR_SHARED_QUEUE, start)) {
        uint64_t now_ns = ldr_now_ns(host->clock);
        uint64_t ended = n->offers_written + n->offers_present +
                         n->queue_evicted[LDR_SHARED_QUEUE];

        if (ended != before) {
            before = ended;
            patience_ns = call_deadline(host);
        }
        ldr_objects_stats(s->tier, &stats);
        if (stats.state == LDR_OBJECTS_OFF ||
            (s->uploads_flying == 0 &&
             (stats.state != LDR_OBJECTS_ON || now_ns >= patience_ns))) {
            break;
        }
        if (!ldr_host_wait_stop(host, stop)) {
            return ldr_host_gave_up(host, stop);
        }
    }
    return LARDER_OK;
}

static larder_status_t shared_flush(ldr_tier_t *t, const ldr_stop_t *stop)
{
    ldr_shared_t *s = (ldr_shared_t *)t;
    ldr_host_t *host = s->host;

    ldr_host_lock(host);
    uint64_t failed = host->store.n.offers_failed;
    uint64_t start = host->store.queues[LDR_SHARED_QUEUE].turn;
    s->hurry++;
    ldr_shared_wake(s);
    larder_status_t st = fetches_drain(s, start, stop);
    s->hurry--;
    bool left = !ldr_behind_drained(&host->store, LDR_SHARED_QUEUE, start);
    failed = host->store.n.offers_failed - failed;
    ldr_host_unlock(host);
    if (st != LARDER_OK) {
        return st;
    }
    do { /* in pieces, for whoever cancels */
        uint64_t look_ns = ldr_now_ns(host->clock) + LOOK_NS;

        st = ldr_objects_flush(s->tier, ldr_min64(look_ns, stop->deadline_ns));
    } while (st == LARDER_E_DEADLINE &&
             ldr_host_stopped(host, stop) == LARDER_OK);
    return left                        ? LARDER_E_TIER_OFF
           : failed && st == LARDER_OK ? LARDER_E_DROPPED
                                       : st;
}

const ldr_tier_ops_t ldr_tier_shared = {
    .name = "shared",
    .number = LARDER_TIER_SHARED,
    .speed = 5e8,
    .by_space = true,
    .others = true,
    .open = shared_open,
    .start = shared_start,
    .step = shared_step,
    .end = shared_end,
    .destroy = shared_destroy,
    .find = shared_find,
    .prefetch = shared_prefetch,
    .fetch = ldr_shared_fetch,
    .submit = ldr_shared_submit,
    .accepts = ldr_shared_accepts,
    .queue = ldr_shared_queue,
    .flush = shared_flush,
    .remove = shared_remove,
    .remove_wait = shared_remove_wait,
    .epochs = shared_epochs,
    .epochs_later = shared_epochs_later,
    .use_space = shared_use_space,
    .adopt_secret = shared_adopt_secret,
    .check = ldr_shared_check,
    .stats = ldr_shared_stats,
    .times = ldr_shared_times,
    .metrics = ldr_shared_metrics,
};
