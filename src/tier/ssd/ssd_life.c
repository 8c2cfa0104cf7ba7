/*
 * Opening, recovering, starting and closing one disk of the SSD tier.
 *
 * The disk's thread opens it, since a disk may hang: while `opening` is set,
 * ssd->disk is that thread's alone and no one else looks at it. The index is
 * filled record by record, each with the node's lock. ldr_ssd_open(),
 * _reopen(), _stop() and _close() are called without the lock.
 */
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "base/thread.h"
#include "tier/ssd/ssd.h"

/* The entry of a record that is to be entered: found, or new. */
static uint32_t entry_for(ldr_store_t *store, const ldr_record_t *record,
                          uint32_t space)
{
    static const larder_key_t none;
    ldr_name_t name = ldr_store_name(store, space, record->group, &record->key);
    uint32_t entry = ldr_index_find(&store->index, name.fingerprint, space,
                                    record->group, LDR_NIL);
    bool root = memcmp(&record->parent, &none, sizeof(none)) == 0;

    if (entry != LDR_NIL) {
        ldr_entry_t *e = ldr_index_at(&store->index, entry);

        if (e->epoch == record->epoch && e->shards == record->shards) {
            e->expires_s = ldr_store_earlier(e->expires_s, record->expires_s);
            return entry;
        }
        ldr_store_forget(store, entry);
    }
    entry = ldr_store_enter(store, &name, root ? NULL : &record->parent,
                            record->depth, record->shards);
    if (entry != LDR_NIL) {
        ldr_entry_t *e = ldr_index_at(&store->index, entry);

        if (record->flags & LDR_RECORD_PINNED) {
            e->depth_flags |= (uint32_t)LDR_ENTRY_PINNED << 24;
        }
        e->epoch = record->epoch;
        e->used_s = record->written_s;
        e->expires_s = record->expires_s;
    }
    return entry;
}

/* A tombstone cancels what lies before it on its own disk: every disk gets
 * one. One that was carried says where it stood first, since what was put
 * again in between must stay. */
static void apply_tombstone(ldr_ssd_t *ssd, uint32_t space, uint32_t segment,
                            const ldr_record_t *record)
{
    ldr_store_t *store = &ssd->host->store;
    ldr_name_t name = ldr_store_name(store, space, record->group, &record->key);
    uint32_t entry = ldr_index_find(&store->index, name.fingerprint, space,
                                    record->group, LDR_NIL);
    uint64_t sequence = ldr_get64(record->parent.hash);
    uint32_t block = ldr_get32(record->parent.hash + 8);

    if (entry == LDR_NIL ||
        record->shard >= ldr_index_at(&store->index, entry)->shards) {
        return;
    }
    if (sequence == 0) {
        sequence = ssd->disk.segments[segment].sequence;
        block = record->block;
    }
    ldr_loc_t loc = ldr_index_loc(&store->index, entry, record->shard);
    if (loc == 0 || ldr_loc_disk(loc) != ssd->disk.number) {
        return;
    }
    uint64_t put = ssd->disk.segments[ldr_loc_segment(loc)].sequence;
    if (put < sequence || (put == sequence && ldr_loc_block(loc) < block)) {
        ldr_store_drop_loc(store, entry, record->shard, false);
    }
}

/* Whether another disk has the shard: then this one's record may be older, and
 * its tombstone come later in the walk. */
static bool is_elsewhere(const ldr_ssd_t *ssd, uint32_t entry, uint32_t shard)
{
    ldr_loc_t loc = ldr_index_loc(&ssd->host->store.index, entry, shard);

    return loc != 0 && ldr_loc_disk(loc) != ssd->disk.number &&
           ssd->tier->disks[ldr_loc_disk(loc)].opened;
}

/* The disk has a space at this epoch. If the space was reset before the disk
 * was open, that is from before the reset, and the node's has to be higher;
 * unless all that it has was met at an earlier try, since when its superblock
 * may have the node's. With the lock. */
static void meet_epoch(const ldr_ssd_t *ssd, uint32_t space, uint32_t epoch)
{
    ldr_store_t *store = &ssd->host->store;
    ldr_space_t *s = &store->spaces[space];

    if (!ssd->met && s->above != 0 && epoch >= s->above) {
        epoch = s->above = epoch + 1;
    }
    ldr_store_set_epoch(store, space, epoch);
}

static void record_apply(ldr_ssd_t *ssd, uint32_t segment,
                         const ldr_record_t *record)
{
    ldr_store_t *store = &ssd->host->store;
    uint32_t space = ldr_store_space(store, record->space_id);

    if (space == LDR_NIL) {
        return;
    }
    /* A record of a later epoch proves a reset that the superblock missed:
     * it was under way when the node died. */
    const ldr_space_t *s = &store->spaces[space];
    meet_epoch(ssd, space, record->epoch);
    if (record->kind == LDR_RECORD_TOMBSTONE) {
        apply_tombstone(ssd, space, segment, record);
        return;
    }
    if (record->epoch < s->epoch ||
        (record->expires_s != 0 &&
         record->expires_s <= ldr_wall_s(ssd->host->clock))) {
        return;
    }
    uint32_t entry = entry_for(store, record, space);
    if (entry != LDR_NIL && !is_elsewhere(ssd, entry, record->shard)) {
        ldr_store_set_loc(store, entry, record->shard,
                          ldr_loc(ssd->disk.number, segment, record->block,
                                  ldr_record_blocks(record->length)));
    }
}

bool ldr_ssd_apply(void *arg, uint32_t segment, const ldr_record_t *record)
{
    ldr_ssd_t *ssd = arg;

    ldr_host_lock(ssd->host);
    record_apply(ssd, segment, record);
    ldr_host_unlock(ssd->host);
    return true;
}

/* The tenants of the superblock become the node's, so that records are known
 * to be theirs (one for which there is no room costs its protection, no more),
 * with their secrets where none is known; and its epochs, where they are
 * higher. With the lock. */
static void take_super(ldr_ssd_t *ssd)
{
    ldr_store_t *store = &ssd->host->store;
    const ldr_super_t *super = ssd->disk.super;

    for (uint32_t i = 0; i < super->tenant_count; i++) {
        ldr_ssd_learn(ssd, &super->tenants[i]);
    }
    for (uint32_t i = 0; i < super->space_count; i++) {
        uint32_t space = ldr_store_space(store, super->spaces[i].id);

        if (space != LDR_NIL) {
            meet_epoch(ssd, space, super->spaces[i].epoch);
        }
    }
}

static larder_status_t memory_for(ldr_ssd_t *ssd)
{
    if (ssd->batches != NULL) {
        return LARDER_OK;
    }
    ssd->batches = ldr_alloc(LDR_BATCHES * sizeof(*ssd->batches));
    ssd->tombs = ldr_alloc(LDR_TOMBS * sizeof(*ssd->tombs));
    if (ssd->batches == NULL || ssd->tombs == NULL ||
        !ldr_reclaim_create(ssd)) {
        return LARDER_E_NO_MEMORY;
    }
    for (uint32_t i = 0; i < LDR_BATCHES; i++) {
        ldr_flight_t *batch = &ssd->batches[i];

        batch->ssd = ssd;
        batch->blocks = ldr_alloc_blocks(LDR_BATCH_RECORDS * LDR_BLOCK);
        if (batch->blocks == NULL) {
            return LARDER_E_NO_MEMORY;
        }
    }
    return LARDER_OK;
}

/* Opens the directory and enters what it holds. */
static larder_status_t open_and_recover(ldr_ssd_t *ssd)
{
    ldr_host_t *host = ssd->host;
    ldr_recovery_t found;
    larder_status_t st = ldr_disk_open(&ssd->disk, &ssd->params);

    if (st != LARDER_OK) {
        return st;
    }
    const uint8_t *id = ssd->disk.super->dir_id;
    ldr_host_lock(host);
    ssd->met = ssd->met && memcmp(ssd->met_id, id, LDR_ID_BYTES) == 0;
    host->store.disks_coming++;
    take_super(ssd);
    ldr_host_epochs_later(host, &ssd->tier->base);
    ldr_host_unlock(host);
    /* Others may be at work when a disk comes late. What is entered leads to a
     * disk that is off until all of it is. */
    st = ldr_disk_recover(&ssd->disk, true, ldr_ssd_apply, ssd, &found);
    ldr_host_lock(host);
    host->store.disks_coming--;
    if (st == LARDER_OK) {
        ssd->segments_lost += found.lost;
        ssd->met = true;
        memcpy(ssd->met_id, id, LDR_ID_BYTES);
        ldr_store_disk(&host->store, id);
    }
    /* Records may have raised some. */
    ldr_host_epochs_later(host, &ssd->tier->base);
    ldr_host_unlock(host);
    if (st == LARDER_OK) {
        st = ldr_disk_super_mend(&ssd->disk);
    }
    if (st == LARDER_OK) {
        /* Damage to one copy must not wait for damage to the other. */
        st = ldr_ssd_super_update(ssd, ssd->disk.super_uneven, UINT64_MAX);
    }
    if (st != LARDER_OK) {
        ldr_disk_close(&ssd->disk);
        return st;
    }
    ldr_info(&host->log,
             "%s: %llu shards in %llu segments, %llu scanned, %llu rejected",
             ssd->params.path, (unsigned long long)found.records,
             (unsigned long long)found.segments,
             (unsigned long long)found.scanned,
             (unsigned long long)found.rejected);
    return LARDER_OK;
}

/* Every answer of a disk that is being opened. */
static bool answered(void *arg)
{
    ldr_ssd_t *ssd = arg;

    ldr_host_lock(ssd->host);
    ssd->answered_ns = ldr_now_ns(ssd->host->clock);
    bool go_on = !ssd->stop;
    ldr_host_unlock(ssd->host);
    return go_on;
}

bool ldr_ssd_hangs(const ldr_ssd_t *ssd)
{
    ldr_host_held(ssd->host);
    return ssd->opening &&
           ldr_now_ns(ssd->host->clock) - ssd->answered_ns >= LDR_OPEN_NS;
}

bool ldr_ssds_on(const ldr_ssds_t *t)
{
    ldr_host_held(t->host);

    bool any = false;

    for (unsigned i = 0; i < t->count; i++) {
        any = any || t->disks[i].on;
    }
    return any;
}

larder_status_t ldr_ssd_reopen(ldr_ssd_t *ssd)
{
    ldr_host_t *host = ssd->host;

    ldr_fail_clear();
    ldr_host_lock(host);
    ssd->opening = true;
    ssd->answered_ns = ldr_now_ns(host->clock);
    ldr_host_unlock(host);
    larder_status_t st = open_and_recover(ssd);
    if (st == LARDER_OK) {
        /* From here on a reset finds the disk; what came before is made up
         * for, and only then is anything given out. */
        ldr_host_lock(host);
        ssd->opened = true;
        ssd->files = ssd->disk.file_count;
        host->store.disks_absent--;
        ldr_store_met(&host->store);
        ldr_host_unlock(host);
        st = ldr_ssd_super_update(ssd, false, UINT64_MAX);
    } else {
        ssd->disk.filling[0].segment = ssd->disk.filling[1].segment = LDR_NIL;
    }
    const char *why = ldr_fail_text();

    ldr_host_lock(host);
    ssd->opening = false;
    if (st == LARDER_OK) {
        ssd->on = true;
        ssd->reason[0] = '\0';
    } else {
        snprintf(ssd->reason, sizeof(ssd->reason), "%.120s",
                 why[0] != '\0' ? why : larder_status_text(st));
        ssd->retry_ns =
            ldr_now_ns(host->clock) + host->options.retry_ms * 1000000u;
    }
    ldr_host_unlock(host);
    return st;
}

static void *ssd_main(void *arg);

static larder_status_t thread_start(ldr_ssd_t *ssd)
{
    if (!ldr_cond_init(&ssd->work)) {
        return LARDER_E_NO_MEMORY;
    }
    if (!ldr_thread_start(&ssd->thread, "larder-ssd", ssd_main, ssd)) {
        pthread_cond_destroy(&ssd->work);
        return ldr_fail(LARDER_E_NO_MEMORY, "cannot start a thread");
    }
    ssd->thread_started = true;
    return LARDER_OK;
}

/* Until the thread has opened the disk, or that does not answer. */
static larder_status_t await_open(ldr_ssd_t *ssd)
{
    ldr_host_t *host = ssd->host;
    larder_status_t st = LARDER_E_IO;

    ldr_fail_clear();
    ldr_host_lock(host);
    while (!ssd->tried && !ldr_ssd_hangs(ssd)) {
        uint64_t since_ns =
            ssd->opening ? ssd->answered_ns : ldr_now_ns(host->clock);

        ldr_host_pause(host, since_ns + LDR_OPEN_NS);
    }
    if (ssd->tried) {
        st = ssd->tried_status;
        if (ssd->tried_text[0] != '\0') {
            ldr_fail(st, "%s", ssd->tried_text);
        }
    } else {
        ssd->late = true;
        snprintf(ssd->reason, sizeof(ssd->reason), "the disk does not answer");
    }
    ldr_host_unlock(host);
    return st;
}

/* The first opening, by the thread. */
static void first_open(ldr_ssd_t *ssd)
{
    ldr_host_t *host = ssd->host;
    larder_status_t st = ldr_ssd_reopen(ssd);

    ldr_host_lock(host);
    ssd->tried = true;
    ssd->tried_status = st;
    snprintf(ssd->tried_text, sizeof(ssd->tried_text), "%s", ldr_fail_text());
    if (ssd->late && st == LARDER_OK) {
        ldr_host_say(host, LARDER_LOG_INFO, "%s: on again", ssd->params.path);
    } else if (ssd->late) {
        ldr_host_say(host, LARDER_LOG_WARN, "%s: off: %s", ssd->params.path,
                     ssd->reason);
    }
    pthread_cond_broadcast(&host->changed);
    ldr_host_unlock(host);
}

larder_status_t ldr_ssd_open(ldr_ssd_t *ssd, ldr_ssds_t *tier, unsigned number)
{
    ldr_host_t *host = tier->host;
    const ldr_options_t *o = &host->options;
    uint32_t files = ldr_file_limit() / o->dir_count;

    ssd->host = host;
    ssd->tier = tier;
    ssd->params = (ldr_disk_params_t){
        .io = host->io,
        .log = &host->log,
        .number = number,
        .path = o->dirs[number],
        .bytes = o->ssd,
        .segment_bytes = o->segment,
        /* The engine needs files of its own: half is for all directories, and
         * three quarters for what was made when there could be more. */
        .files_max = (uint32_t)ldr_max64(files / 2, 1),
        .open_max = (uint32_t)ldr_max64(files / 4 * 3, 1),
        .seed = ldr_rand_next(&host->rand),
        .answered = answered,
        .arg = ssd,
    };
    ssd->ready = ssd->read_head = ssd->read_tail = LDR_NIL;
    ldr_budget_open(&ssd->budget, (double)o->ssd_writes,
                    ldr_now_ns(host->clock));
    larder_status_t st = memory_for(ssd);
    if (st == LARDER_OK && host->manual) {
        st = ldr_ssd_reopen(ssd);
    } else if (st == LARDER_OK) {
        st = thread_start(ssd);
        st = st == LARDER_OK ? await_open(ssd) : st;
    }
    /* Who takes over has looked before, and there would be no node without
     * it. */
    bool refused = st == LARDER_E_LOCKED || st == LARDER_E_DENIED;
    if (st == LARDER_E_IO || (refused && host->successor)) {
        ldr_warn(&host->log, "%s: starts off: %s", o->dirs[number],
                 ssd->reason);
        st = LARDER_OK;
    }
    return st;
}

/* Tables for what is open, so that the next open reads tables only. */
static void close_segments(ldr_ssd_t *ssd)
{
    ldr_disk_t *d = &ssd->disk;

    for (int i = 0; i < 2; i++) {
        ldr_filling_t *f = &d->filling[i];

        if (f->segment != LDR_NIL && !f->failed && f->flying == 0) {
            ldr_filling_close(d, f);
        }
    }
    if (ssd->ready != LDR_NIL) {
        ldr_filling_start(d, &d->filling[0], ssd->ready);
        ldr_filling_close(d, &d->filling[0]);
    }
    if (!ldr_ledger_whole(&d->ledger)) {
        ldr_ledger_write(&d->ledger);
    }
}

/* The end of the thread: what can hang in the disk is done here, where nobody
 * waits for it without a bound. With the lock. */
static void ssd_end(ldr_ssd_t *ssd)
{
    ldr_host_t *host = ssd->host;

    if (ssd->opened && ldr_ssd_land(ssd, UINT64_MAX) && ssd->on) {
        ldr_host_unlock(host);
        close_segments(ssd);
        ldr_host_lock(host);
    }
    ssd->ended = true;
    pthread_cond_broadcast(&host->changed);
}

static void *ssd_main(void *arg)
{
    ldr_ssd_t *ssd = arg;
    ldr_host_t *host = ssd->host;

    first_open(ssd);
    ldr_host_lock(host);
    while (!ssd->go && !ssd->stop) { /* for the rest of the node */
        ssd->idle = true;
        ldr_host_tell(host);
        pthread_cond_wait(&ssd->work, &host->lock);
        ssd->idle = false;
    }
    while (!ssd->stop) {
        if (ldr_ssd_step(ssd)) {
            continue;
        }
        if (host->said_count > 0) { /* before it sleeps */
            ldr_host_unlock(host);
            ldr_host_lock(host);
            continue;
        }
        uint64_t wake = ldr_now_ns(host->clock) + 3600000000000u;
        const ldr_filling_t *f = ssd->disk.filling;
        bool flying = f[0].flying > 0 || f[1].flying > 0;
        /* Only times that a step acts on; a write in flight wakes when it
         * lands. */
        if (ssd->on ? ssd->files_limit != 0 && ssd->ready == LDR_NIL
                    : !flying) {
            wake = ldr_min64(wake, ssd->retry_ns);
        }
        if (ssd->on && ssd->unsynced_ns != 0 && !f[ssd->current].failed) {
            wake = ldr_min64(wake, ssd->unsynced_ns +
                                       host->options.sync_ms * 1000000u);
        }
        ssd->idle = true;
        ldr_host_tell(host);
        ldr_cond_wait_until(&ssd->work, &host->lock, wake);
        ssd->idle = false;
    }
    ssd_end(ssd);
    ldr_host_unlock(host);
    return NULL;
}

void ldr_ssd_go(ldr_ssd_t *ssd)
{
    ldr_host_lock(ssd->host);
    ssd->go = true;
    ldr_ssd_wake(ssd);
    ldr_host_unlock(ssd->host);
}

void ldr_ssd_end(ldr_ssd_t *ssd)
{
    if (ssd->thread_started) {
        ldr_host_lock(ssd->host);
        ssd->stop = true;
        pthread_cond_signal(&ssd->work);
        ldr_host_unlock(ssd->host);
    }
}

bool ldr_ssd_stop(ldr_ssd_t *ssd, uint64_t deadline_ns)
{
    bool ended = true;

    if (!ssd->thread_started) {
        return true;
    }
    ldr_host_lock(ssd->host);
    while (!ssd->ended && ended) {
        ended = ldr_host_pause(ssd->host, deadline_ns);
    }
    ldr_host_unlock(ssd->host);
    ssd->thread_started = false;
    if (!ended) {
        pthread_detach(ssd->thread);
        return false;
    }
    pthread_join(ssd->thread, NULL);
    pthread_cond_destroy(&ssd->work);
    return true;
}

void ldr_ssd_close(ldr_ssd_t *ssd)
{
    if (ssd->opened) {
        if (ssd->on && !ssd->ended) { /* there was no thread */
            close_segments(ssd);
        }
        ldr_disk_close(&ssd->disk);
    }
    for (uint32_t i = 0; i < LDR_BATCHES && ssd->batches != NULL; i++) {
        ldr_free(ssd->batches[i].blocks);
    }
    ldr_free(ssd->batches);
    ldr_free(ssd->tombs);
    ldr_reclaim_destroy(ssd);
}
