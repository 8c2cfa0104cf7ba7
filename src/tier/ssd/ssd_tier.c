/*
 * The row of the SSD tier: all disks together. See tier.h for which functions
 * have the node's lock; ssd.h for the invariants.
 *
 * A removal is durable once each disk that could hold the shard has synced its
 * tombstone, and the ledger's word of it.
 */
#include <errno.h>
#include <openssl/crypto.h>
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "tier/ssd/ssd.h"

#define END_NS 2000000000u /* for I/O that is under way at the end */

/* ---- life ---- */

/* Reads and writes of all disks, unless the node was given one. */
static larder_status_t io_open(ldr_ssds_t *t)
{
    ldr_host_t *host = t->host;
    const ldr_options_t *o = &host->options;
    /* A disk that hangs takes nobody else's: it has half of the loads at most
     * (ssd_read.c), and its own requests. */
    unsigned most = (unsigned)(o->io_depth + 1) / 2 + LDR_SSD_REQUESTS;
    unsigned depth = (unsigned)o->io_depth + LDR_SSD_REQUESTS * o->dir_count;
    unsigned threads = (unsigned)o->io_threads * o->dir_count;
    int error = -ENOSYS;

    if (host->io != NULL) {
        return LARDER_OK;
    }
    if (o->dir_count > 1) {
        threads = (unsigned)ldr_max64(threads, most + o->io_threads);
    }
    t->io_owned = true;
    if (o->io != LDR_IO_PLAIN) {
        error = ldr_io_uring_create(depth, &host->io);
        if (error == 0) {
            return LARDER_OK;
        }
        if (o->io == LDR_IO_URING) {
            bool memory = error == -ENOMEM || error == -EAGAIN;

            return ldr_ssd_no_uring(memory ? LARDER_E_NO_MEMORY : LARDER_E_IO,
                                    error);
        }
        ldr_warn(&host->log,
                 "io_uring is not available here (%s): using %u threads",
                 strerror(-error), threads);
    }
    error = ldr_io_plain_create(threads, &host->io);
    return error == 0 ? LARDER_OK
                      : ldr_fail(LARDER_E_NO_MEMORY,
                                 "cannot start threads for "
                                 "reading and writing: %s",
                                 strerror(-error));
}

static larder_status_t ssd_open(ldr_host_t *host)
{
    const ldr_options_t *o = &host->options;
    unsigned count = o->dir_count;
    bool second = o->ssd_admit == LDR_ADMIT_SECOND;

    if (count == 0) {
        return LARDER_OK;
    }
    ldr_ssds_t *t = ldr_alloc(sizeof(*t));
    if (t == NULL) {
        return LARDER_E_NO_MEMORY;
    }
    t->base = (ldr_tier_t){&ldr_tier_ssd, host};
    ldr_host_add_tier(host, &t->base);
    larder_status_t st = io_open(t);
    if (st != LARDER_OK) {
        return st;
    }
    t->disks = ldr_alloc(count * sizeof(*t->disks));
    if (t->disks == NULL || ldr_reads_create(t) != LARDER_OK ||
        !ldr_admit_open(&t->admit,
                        second ? ldr_admit_remembered(count * o->ssd) : 0)) {
        return LARDER_E_NO_MEMORY;
    }
    host->store.disks_absent = count;
    for (unsigned i = 0; i < count && st == LARDER_OK; i++) {
        st = ldr_ssd_open(&t->disks[i], t, i);
        ldr_host_lock(host); /* another's thread may be at work already */
        t->count++;
        ldr_host_unlock(host);
    }
    return st;
}

/* The epochs of the others, and of the node before, reach every disk: one may
 * have missed a reset. */
static void disks_agree(ldr_ssds_t *t)
{
    ldr_host_t *host = t->host;

    for (unsigned i = 0; i < t->count; i++) {
        ldr_ssd_t *ssd = &t->disks[i];
        larder_status_t st = LARDER_OK;

        ldr_host_lock(host);
        bool on = ssd->on;
        /* It may be coming on just now. */
        ssd->super_missed = ssd->super_missed || (ssd->opened && !on);
        ldr_host_unlock(host);
        if (on) {
            st = ldr_ssd_super_update(ssd, false,
                                      ldr_now_ns(host->clock) + LDR_OPEN_NS);
        }
        if (st != LARDER_OK) {
            ldr_host_lock(host);
            ldr_ssd_off(ssd, "write the superblock",
                        st == LARDER_E_DEADLINE ? -ETIMEDOUT : -EIO);
            ldr_host_unlock(host);
        }
    }
}

static larder_status_t ssd_start(ldr_tier_t *tier)
{
    ldr_ssds_t *t = (ldr_ssds_t *)tier;

    disks_agree(t);
    for (unsigned i = 0; i < t->count && !t->host->manual; i++) {
        ldr_ssd_go(&t->disks[i]);
    }
    return LARDER_OK;
}

static bool ssd_step(ldr_tier_t *tier)
{
    ldr_ssds_t *t = (ldr_ssds_t *)tier;

    for (unsigned i = 0; i < t->count; i++) {
        if (ldr_ssd_step(&t->disks[i])) {
            return true;
        }
    }
    return false;
}

/* Ends the disks' threads and waits for what is in flight: a little longer than
 * the deadline, for what is left behind is left for good. */
static bool ssd_end(ldr_tier_t *tier, uint64_t deadline_ns)
{
    ldr_ssds_t *t = (ldr_ssds_t *)tier;
    uint64_t now_ns = ldr_now_ns(t->host->clock);
    bool whole = true;

    if (deadline_ns < UINT64_MAX - END_NS) {
        deadline_ns = ldr_max64(deadline_ns, now_ns) + END_NS;
    }
    for (unsigned i = 0; i < t->count; i++) {
        ldr_ssd_end(&t->disks[i]);
    }
    for (unsigned i = 0; i < t->count; i++) {
        ldr_ssd_t *ssd = &t->disks[i];
        bool ended =
            ldr_ssd_stop(ssd, deadline_ns) && ldr_ssd_drain(ssd, deadline_ns);

        if (!ended) {
            ldr_error(&t->host->log,
                      "%s: the disk does not answer: closed without it, and "
                      "what it was asked for is left behind",
                      ssd->params.path);
        }
        whole = whole && ended;
    }
    return ldr_reads_drain(t, deadline_ns) && whole;
}

static void ssd_destroy(ldr_tier_t *tier)
{
    ldr_ssds_t *t = (ldr_ssds_t *)tier;

    for (unsigned i = 0; i < t->count; i++) {
        ldr_ssd_close(&t->disks[i]);
    }
    ldr_free(t->disks);
    ldr_admit_close(&t->admit);
    ldr_reads_destroy(t);
    if (t->io_owned && t->host->io != NULL) {
        t->host->io->ops->destroy(t->host->io);
    }
    ldr_free(t);
}

/* ---- finding ---- */

ldr_ssd_t *ldr_ssds_disk(const ldr_ssds_t *t, ldr_loc_t loc)
{
    ldr_host_held(t->host);
    if (loc == 0) {
        return NULL;
    }
    ldr_ssd_t *ssd = &t->disks[ldr_loc_disk(loc)];
    return ssd->on ? ssd : NULL;
}

static uint32_t ssd_find(ldr_tier_t *tier, const ldr_sought_t *s,
                         larder_cause_t *cause_p)
{
    const ldr_ssds_t *t = (const ldr_ssds_t *)tier;

    if (s->entry == LDR_NIL) {
        return 0;
    }
    ldr_loc_t loc = ldr_index_loc(&t->host->store.index, s->entry, s->number);
    if (loc == 0) {
        return 0;
    }
    if (ldr_ssds_disk(t, loc) == NULL) {
        *cause_p = LARDER_CAUSE_TIER_OFF;
        return 0;
    }
    return (ldr_loc_blocks(loc) - 1) * LDR_BLOCK;
}

/* ---- what was saved ---- */

void ldr_ssds_wake(ldr_ssds_t *t)
{
    ldr_host_held(t->host);
    for (unsigned i = 0; i < t->count; i++) {
        if (t->disks[i].on) {
            ldr_ssd_wake(&t->disks[i]);
        }
    }
}

static bool ssd_accepts(ldr_tier_t *tier, uint32_t space)
{
    (void)space;
    return ldr_ssds_on((const ldr_ssds_t *)tier);
}

static uint64_t drops(const ldr_counters_t *n)
{
    return n->queue_evicted[LDR_SSD_QUEUE] + n->saves_dropped_size +
           n->saves_dropped_io;
}

/* With the lock. What is saved meanwhile is not waited for. */
static larder_status_t disks_flush(ldr_ssds_t *t, const ldr_stop_t *stop)
{
    ldr_host_t *host = t->host;
    uint64_t start = host->store.queues[LDR_SSD_QUEUE].turn;
    bool failed = false;

    ldr_ssds_wake(t);
    while (ldr_ssds_on(t) &&
           !ldr_behind_drained(&host->store, LDR_SSD_QUEUE, start)) {
        if (!ldr_host_wait_stop(host, stop)) {
            return ldr_host_gave_up(host, stop);
        }
    }
    for (unsigned i = 0; i < t->count; i++) {
        ldr_ssd_t *ssd = &t->disks[i];

        if (!ssd->on) {
            /* It went off with saves that may not be synced. */
            failed |= ssd->opened && (ssd->disk.filling[0].segment != LDR_NIL ||
                                      ssd->disk.filling[1].segment != LDR_NIL);
            continue;
        }
        uint64_t want = ldr_ssd_want_sync(ssd);
        while (ssd->on && ssd->sync_done < want) {
            if (!ldr_host_wait_stop(host, stop)) {
                return ldr_host_gave_up(host, stop);
            }
        }
        failed |= ssd->sync_failed >= want;
    }
    if (!ldr_ssds_on(t)) {
        return LARDER_E_TIER_OFF;
    }
    /* What was dropped since the last flush had been accepted before this. */
    failed |= drops(&host->store.n) > t->drops_reported;
    t->drops_reported = drops(&host->store.n);
    return failed ? LARDER_E_DROPPED : LARDER_OK;
}

static larder_status_t ssd_flush(ldr_tier_t *t, const ldr_stop_t *stop)
{
    ldr_host_lock(t->host);
    larder_status_t st = disks_flush((ldr_ssds_t *)t, stop);
    ldr_host_unlock(t->host);
    return st;
}

/* ---- removing and resetting ---- */

static larder_status_t ssd_remove(ldr_tier_t *t, uint32_t space, uint32_t entry,
                                  const larder_item_t *item, uint64_t *token_p,
                                  bool *there_p)
{
    ldr_store_t *store = &t->host->store;

    (void)space;
    (void)token_p;
    if (entry != LDR_NIL &&
        ldr_index_loc(&store->index, entry, item->shard) != 0) {
        ldr_store_set_loc(store, entry, item->shard, 0);
        *there_p = true;
    }
    return LARDER_OK;
}

static ldr_record_t tombstone(const ldr_host_t *host, uint32_t space,
                              const larder_item_t *item)
{
    const ldr_space_t *s = &host->store.spaces[space];
    ldr_record_t record = {
        .kind = LDR_RECORD_TOMBSTONE,
        .key = *item->key,
        .epoch = s->epoch,
        .group = item->group,
        .shard = item->shard,
        .shards = LARDER_SHARDS_MAX,
        .written_s = ldr_wall_s(host->clock),
    };

    memcpy(record.space_id, s->id, LDR_ID_BYTES);
    return record;
}

/* Queues tombstones for some items on one disk; gives how many. A disk that
 * is off cannot: the items say so. */
static size_t queue_tombs(ldr_ssd_t *ssd, uint32_t space,
                          const larder_item_t *items, size_t count)
{
    size_t n = 0;

    while (n < count && ssd->tomb_count < LDR_TOMBS) {
        uint32_t at = (ssd->tomb_head + ssd->tomb_count) % LDR_TOMBS;

        ssd->tombs[at] = tombstone(ssd->host, space, &items[n++]);
        ssd->tomb_count++;
    }
    return n;
}

/* All items on one disk, synced. With the lock. */
static larder_status_t remove_on(ldr_ssd_t *ssd, uint32_t space,
                                 const larder_item_t *items, size_t count,
                                 const ldr_stop_t *stop)
{
    ldr_host_t *host = ssd->host;
    size_t queued = 0;

    while (ssd->on) {
        queued += queue_tombs(ssd, space, items + queued, count - queued);
        uint64_t want = ldr_ssd_want_sync(ssd);
        while (ssd->on && ssd->sync_done < want) {
            if (!ldr_host_wait_stop(host, stop)) {
                return ldr_host_gave_up(host, stop);
            }
        }
        if (ssd->sync_failed >= want) {
            return LARDER_E_IO;
        }
        if (queued == count) {
            return LARDER_OK;
        }
    }
    return LARDER_E_TIER_OFF;
}

static larder_status_t ssd_remove_wait(ldr_tier_t *tier, uint32_t space,
                                       const larder_item_t *items, size_t count,
                                       uint64_t token, const ldr_stop_t *stop)
{
    ldr_ssds_t *t = (ldr_ssds_t *)tier;
    larder_status_t st = LARDER_OK;

    (void)token;
    for (unsigned i = 0; i < t->count; i++) {
        larder_status_t one =
            remove_on(&t->disks[i], space, items, count, stop);

        st = one != LARDER_OK ? one : st;
    }
    return st;
}

static void ssd_epochs_later(ldr_tier_t *tier)
{
    ldr_ssds_t *t = (ldr_ssds_t *)tier;

    for (unsigned i = 0; i < t->count; i++) {
        t->disks[i].super_missed = true;
        ldr_ssd_wake(&t->disks[i]);
    }
}

/* ---- tenants ---- */

static larder_status_t secret_refuse(const ldr_ssd_t *ssd, ldr_tenant_t *t)
{
    const char *path = ssd->params.path;

    ldr_secret_tell_refused(ssd->host, t);
    return ldr_fail(LARDER_E_SECRET,
                    "%.128s: holds data of tenant '%s' under another secret: "
                    "use that one, or say which counts in the daemon's "
                    "configuration ([tenant %s], secret_file), or drop this "
                    "tenant's data alone, with no node on it: larder wipe "
                    "--tenant %s %.128s",
                    path, t->name, t->name, t->name, path);
}

static larder_status_t ssd_check_secret(ldr_tier_t *tier, uint32_t tenant,
                                        const ldr_secret_check_t *secret)
{
    const ldr_ssds_t *ssds = (const ldr_ssds_t *)tier;
    ldr_tenant_t *t = &tier->host->store.tenants[tenant];

    for (unsigned i = 0; i < ssds->count; i++) {
        const ldr_ssd_t *ssd = &ssds->disks[i];

        if (!ssd->opened || !ssd->on) {
            continue;
        }
        const ldr_super_tenant_t *row = ldr_super_tenant(ssd, t->id);
        if (row == NULL &&
            ssd->disk.super->tenant_count == LDR_SUPER_TENANTS_MAX) {
            return ldr_fail(LARDER_E_LIMIT, "%s: more than %u tenants",
                            ssd->params.path, LDR_SUPER_TENANTS_MAX);
        }
        if (row != NULL && !t->secret_given &&
            CRYPTO_memcmp(row->check, secret->check, LDR_ID_BYTES) != 0) {
            return secret_refuse(ssd, t);
        }
    }
    return LARDER_OK;
}

/* Disks that have not recorded it do so next. */
static void ssd_adopt_secret(ldr_tier_t *tier, uint32_t space)
{
    const ldr_ssds_t *ssds = (const ldr_ssds_t *)tier;
    const ldr_store_t *store = &tier->host->store;
    const ldr_tenant_t *t = &store->tenants[store->spaces[space].tenant];

    for (unsigned i = 0; i < ssds->count; i++) {
        ldr_ssd_t *ssd = &ssds->disks[i];
        const ldr_super_tenant_t *row =
            ssd->opened ? ldr_super_tenant(ssd, t->id) : NULL;

        if (row == NULL ||
            memcmp(row->check, t->secret.check, LDR_ID_BYTES) != 0) {
            ssd->super_missed = true;
            ldr_ssd_wake(ssd);
        }
    }
}

void ldr_ssd_learn(const ldr_ssd_t *ssd, const ldr_super_tenant_t *row)
{
    ldr_host_t *host = ssd->host;
    uint32_t tenant = ldr_store_tenant(&host->store, row->id);
    const ldr_tenant_t *t = &host->store.tenants[tenant];

    if (tenant == LDR_NIL || ldr_secret_learn(host, tenant, row->check)) {
        return;
    }
    if (t->secret_given &&
        CRYPTO_memcmp(row->check, t->secret.check, LDR_ID_BYTES) != 0) {
        ldr_host_say(host, LARDER_LOG_WARN,
                     "%s: recorded another secret of tenant '%s' than the "
                     "configured one, which counts: what lies there under the "
                     "other is not found, and makes room with time",
                     ssd->params.path, t->name);
    }
}

static void ssd_replace_secret(ldr_tier_t *tier, uint32_t tenant)
{
    const ldr_ssds_t *t = (const ldr_ssds_t *)tier;

    for (unsigned i = 0; i < t->count; i++) {
        const ldr_ssd_t *ssd = &t->disks[i];
        const ldr_super_tenant_t *row =
            ssd->opened
                ? ldr_super_tenant(ssd, t->host->store.tenants[tenant].id)
                : NULL;

        if (row != NULL) {
            ldr_ssd_learn(ssd, row);
        }
    }
}

const ldr_tier_ops_t ldr_tier_ssd = {
    .name = "ssd",
    .number = LARDER_TIER_SSD,
    .speed = 1e9,
    .keeps = true,
    .open = ssd_open,
    .start = ssd_start,
    .step = ssd_step,
    .end = ssd_end,
    .destroy = ssd_destroy,
    .find = ssd_find,
    .fetch = ldr_ssd_fetch,
    .submit = ldr_ssd_submit_reads,
    .timed_out = ldr_ssd_timed_out,
    .accepts = ssd_accepts,
    .queue = ldr_ssd_queue,
    .used = ldr_ssd_used,
    .flush = ssd_flush,
    .remove = ssd_remove,
    .remove_wait = ssd_remove_wait,
    .can_reset = ldr_ssd_can_reset,
    .epochs = ldr_ssd_epochs,
    .epochs_later = ssd_epochs_later,
    .check_secret = ssd_check_secret,
    .adopt_secret = ssd_adopt_secret,
    .replace_secret = ssd_replace_secret,
    .check = ldr_ssd_check,
    .stats = ldr_ssd_stats,
    .queue_lengths = ldr_ssd_queue_lengths,
    .times = ldr_ssd_times,
    .metrics = ldr_ssd_metrics,
    .read_records = ldr_ssd_records,
};
