/*
 * Write-behind of one disk: batches, the segments that they fill, syncs, and
 * going off and on again. ssd.h has the invariants.
 *
 * The disk's thread (in a manual node, whoever steps) does all of this through
 * ldr_ssd_step(), with the node's lock, which it drops around every call that
 * waits for the disk. The fillings and `ready` are its own; the states and
 * readers of segments change with the lock, since loads look at them.
 * batch_done() runs in a thread of the I/O and takes the lock. Any thread with
 * the lock may wake the disk, count a failure or turn it off.
 */
#include "tier/ssd/ssd.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "store/arena.h"

#define FAILURES_MAX 3u /* in a row: then the disk is off */
#define TOMB_SLACK_MAX 64u
#define HANG_NS 5000000000u /* without an answer: then the disk is off */

static uint64_t retry_time(const ldr_ssd_t *ssd)
{
    return ldr_now_ns(ssd->host->clock) +
           ssd->host->options.retry_ms * 1000000u;
}

static ldr_filling_t *current(ldr_ssd_t *ssd)
{
    return &ssd->disk.filling[ssd->current];
}

/* The oldest save that is to be written, or LDR_NIL. */
static uint32_t first_queued(const ldr_store_t *store)
{
    const ldr_behind_t *q = &store->queues[LDR_SSD_QUEUE];

    return q->count > 0 ? q->subqueues[0].head : LDR_NIL;
}

static ldr_filling_t *other(ldr_ssd_t *ssd)
{
    return &ssd->disk.filling[1 - ssd->current];
}

void ldr_ssd_wake(ldr_ssd_t *ssd)
{
    ldr_host_held(ssd->host);
    if (ssd->idle) {
        pthread_cond_signal(&ssd->work);
    }
}

/* ---- off and on ---- */

/* Requests to sync that wait will not be met. */
static void sync_give_up(ldr_ssd_t *ssd)
{
    ssd->sync_failed = ssd->sync_done = ssd->sync_wanted;
    pthread_cond_broadcast(&ssd->host->changed);
}

void ldr_ssd_off(ldr_ssd_t *ssd, const char *what, int error)
{
    ldr_host_held(ssd->host);
    snprintf(ssd->reason, sizeof(ssd->reason), "%s: %s", what,
             strerror(-error));
    if (ssd->on) {
        ldr_host_say(ssd->host, LARDER_LOG_ERROR, "%s: off: %s",
                     ssd->params.path, ssd->reason);
    }
    ssd->on = false;
    ssd->write_failures = ssd->read_failures = 0;
    ssd->tomb_count = 0;
    ssd->retry_ns = retry_time(ssd);
    current(ssd)->failed = true;
    sync_give_up(ssd);
    ldr_ssd_wake(ssd);        /* who tries again may be asleep for long */
    ldr_ssds_wake(ssd->tier); /* what it leaves, the others write */
    ldr_reads_off(ssd->tier, ssd);
}

void ldr_ssd_failed(ldr_ssd_t *ssd, unsigned *failures, const char *what,
                    int error)
{
    ldr_host_held(ssd->host);
    if (++*failures >= FAILURES_MAX) {
        ldr_ssd_off(ssd, what, error);
    } else {
        ldr_host_say(ssd->host, LARDER_LOG_WARN, "%s: %s: %s", ssd->params.path,
                     what, strerror(-error));
    }
}

void ldr_ssd_waited(ldr_ssd_t *ssd)
{
    ldr_host_held(ssd->host);
    if (ssd->on && ssd->reads_flying > 0 &&
        ldr_now_ns(ssd->host->clock) - ssd->silent_ns >= HANG_NS) {
        ssd->read_errors++;
        ldr_ssd_off(ssd, "the disk does not answer", -ETIMEDOUT);
    }
}

static void write_failed(ldr_ssd_t *ssd, const char *what, int error)
{
    ssd->write_errors++;
    ldr_ssd_failed(ssd, &ssd->write_failures, what, error);
}

void ldr_ssd_lose(ldr_ssd_t *ssd, ldr_filling_t *f)
{
    ldr_host_held(ssd->host);

    ldr_store_t *store = &ssd->host->store;
    ldr_segment_header_t header = ldr_disk_header(&ssd->disk, f->segment);
    ldr_record_t record;

    for (uint32_t i = 0; i < f->row_count; i++) {
        if (!ldr_row_parse(f->rows + (size_t)i * LDR_ROW_BYTES, &header,
                           &record) ||
            record.kind != LDR_RECORD_SHARD) {
            continue;
        }
        uint32_t space = ldr_store_space(store, record.space_id);
        ldr_name_t name =
            ldr_store_name(store, space, record.group, &record.key);
        uint32_t entry = ldr_index_find(&store->index, name.fingerprint, space,
                                        record.group, LDR_NIL);
        ldr_loc_t loc = ldr_loc(ssd->disk.number, f->segment, record.block,
                                ldr_record_blocks(record.length));
        if (entry != LDR_NIL &&
            ldr_index_loc(&store->index, entry, record.shard) == loc) {
            ldr_store_drop_loc(store, entry, record.shard, false);
            /* The next flush says so. */
            LDR_COUNT(store, space, saves_dropped_io, 1);
        }
    }
    ssd->disk.segments[f->segment].state = LDR_SEGMENT_LOST;
    ssd->segments_lost++;
    f->segment = LDR_NIL;
    sync_give_up(ssd);
}

/* Makes a segment ready: *segment_p, or a new file if that is LDR_NIL. A file
 * for which there is no space is deleted, or it would be tried for ever.
 * Without the lock. */
static int make_ready(ldr_ssd_t *ssd, uint32_t *segment_p)
{
    ldr_disk_t *d = &ssd->disk;
    int error = 0;

    if (*segment_p == LDR_NIL) {
        error = ldr_disk_segment_create(d, segment_p);
    }
    if (error == 0) {
        error = ldr_disk_segment_prepare(d, *segment_p);
        if (error == -ENOSPC &&
            d->segments[*segment_p].state == LDR_SEGMENT_FREE) {
            ldr_disk_segment_delete(d, *segment_p);
        }
    }
    return error;
}

/* Whether the disk takes writes again: its superblock, and a first file where
 * it could not have one. Without the lock. */
static int try_write(ldr_ssd_t *ssd, uint32_t *ready_p)
{
    ldr_disk_t *d = &ssd->disk;
    int error = 0;

    if (ldr_ssd_super_update(ssd, true, UINT64_MAX) != LARDER_OK) {
        return -EIO;
    }
    if (!ldr_ledger_whole(&d->ledger)) {
        error = ldr_ledger_write(&d->ledger);
    }
    if (error == 0 && *ready_p == LDR_NIL && d->file_count == 0) {
        error = make_ready(ssd, ready_p);
    }
    return error;
}

/* Opens what could not be opened, or goes on after a failure. */
static bool try_on(ldr_ssd_t *ssd)
{
    ldr_host_t *host = ssd->host;
    bool flying = current(ssd)->flying > 0 || other(ssd)->flying > 0;
    uint32_t ready = ssd->ready;
    int error = 0;

    if (ssd->stop || flying || ldr_now_ns(host->clock) < ssd->retry_ns) {
        return false;
    }
    ssd->retry_ns = retry_time(ssd);
    for (int i = 0; i < 2 && ssd->opened; i++) {
        if (ssd->disk.filling[i].segment != LDR_NIL) {
            ldr_ssd_lose(ssd, &ssd->disk.filling[i]);
        }
    }
    bool opened = ssd->opened;
    ldr_host_unlock(host);
    if (!opened) {
        error = ldr_ssd_reopen(ssd) == LARDER_OK ? 0 : -EIO;
    } else {
        error = try_write(ssd, &ready);
    }
    ldr_host_lock(host);
    if (error != 0) {
        return true; /* still off, for the reason that is there */
    }
    ssd->ready = ready;
    ssd->files = ssd->disk.file_count;
    ssd->files_limit = 0; /* what kept it from more may be over, too */
    ssd->on = true;
    ssd->reason[0] = '\0';
    ldr_host_say(host, LARDER_LOG_INFO, "%s: on again", ssd->params.path);
    pthread_cond_broadcast(&host->changed);
    return true;
}

/* ---- batches ---- */

static void batch_done(ldr_io_req_t *req)
{
    ldr_flight_t *batch = req->arg;
    ldr_ssd_t *ssd = batch->ssd;

    ldr_histogram_add(&ssd->write_times,
                      ldr_now_ns(ssd->host->clock) - batch->begin_ns);
    if (ssd->host->manual) {
        batch->landed = true;
        return;
    }
    ldr_host_lock(ssd->host);
    batch->landed = true;
    ldr_ssd_wake(ssd);
    if (ssd->stop) { /* ldr_ssd_land() waits */
        pthread_cond_broadcast(&ssd->host->changed);
    }
    ldr_host_unlock(ssd->host);
}

/* Enters the locations of a batch that landed, and lets its shards go. */
static void batch_finish(ldr_ssd_t *ssd, ldr_flight_t *batch)
{
    ldr_store_t *store = &ssd->host->store;
    ldr_filling_t *f = &ssd->disk.filling[batch->filling];
    int error = batch->req.error;

    LDR_ASSERT(batch->flying && batch->landed && f->flying > 0);
    batch->flying = batch->landed = false;
    f->flying--;
    if (error != 0) {
        f->failed = true;
        write_failed(ssd, "write", error);
    } else {
        ssd->write_failures = 0;
        ssd->written_bytes += batch->bytes;
        if (ssd->unsynced_ns == 0) {
            ssd->unsynced_ns = ldr_now_ns(ssd->host->clock);
        }
    }
    for (uint32_t i = 0; i < batch->count; i++) {
        ldr_batch_record_t *r = &batch->records[i];

        if (r->shard == LDR_NIL) {
            continue;
        }
        ldr_shard_t *sh = &store->shards[r->shard];
        uint32_t chunk = sh->chunk;

        LDR_ASSERT(store->chunks[chunk].holds > 0); /* invariant 1 */
        if (f->failed) {
            LDR_COUNT(store, store->chunks[chunk].space, saves_dropped_io, 1);
        } else if (store->chunks[chunk].entry != LDR_NIL) {
            ldr_store_set_loc(store, store->chunks[chunk].entry, sh->number,
                              r->loc);
        }
        ldr_behind_done(store, LDR_SSD_QUEUE, r->shard, false);
    }
    batch->count = 0;
    pthread_cond_broadcast(&ssd->host->changed);
}

static bool batches_reap(ldr_ssd_t *ssd)
{
    bool any = false;

    for (uint32_t i = 0; i < LDR_BATCHES && ssd->batches != NULL; i++) {
        if (ssd->batches[i].flying && ssd->batches[i].landed) {
            batch_finish(ssd, &ssd->batches[i]);
            any = true;
        }
    }
    return any;
}

bool ldr_ssd_land(ldr_ssd_t *ssd, uint64_t deadline_ns)
{
    ldr_host_held(ssd->host);

    bool whole = true;

    while (whole && (current(ssd)->flying > 0 || other(ssd)->flying > 0 ||
                     ssd->super_busy)) {
        whole = batches_reap(ssd) || ldr_host_pause(ssd->host, deadline_ns);
    }
    return whole;
}

bool ldr_ssd_drain(ldr_ssd_t *ssd, uint64_t deadline_ns)
{
    if (!ssd->opened) {
        return true;
    }
    ldr_host_lock(ssd->host);
    bool whole = ldr_ssd_land(ssd, deadline_ns);
    ldr_host_unlock(ssd->host);
    return whole;
}

/* Gives the record its place behind what the batch holds already. */
static void batch_add(ldr_ssd_t *ssd, ldr_flight_t *batch, ldr_record_t *record,
                      uint32_t shard)
{
    ldr_store_t *store = &ssd->host->store;
    ldr_filling_t *f = current(ssd);
    ldr_segment_header_t header = ldr_disk_header(&ssd->disk, f->segment);
    uint8_t *block = batch->blocks + (size_t)batch->count * LDR_BLOCK;
    ldr_batch_record_t *r = &batch->records[batch->count++];
    uint32_t blocks = 1;

    LDR_ASSERT(batch->count <= LDR_BATCH_RECORDS && !f->failed); /* 2 */
    ldr_filling_add(f, record);
    ldr_record_compose(record, &header, block);
    if (ldr_tomb_is_new(record)) {
        ldr_ledger_removed(&ssd->disk.ledger, record, header.sequence);
    }
    *r = (ldr_batch_record_t){.shard = shard};
    if (shard != LDR_NIL) {
        blocks = ldr_record_blocks(record->length);
        r->loc = ldr_loc(ssd->disk.number, f->segment, record->block, blocks);
        batch->req.iov_count += ldr_arena_iov(
            &store->arena, store->shards[shard].page,
            (size_t)(blocks - 1) * LDR_BLOCK, batch->iov + batch->req.iov_count,
            LDR_BATCH_IOV - batch->req.iov_count);
    }
    batch->iov[batch->req.iov_count++] = (struct iovec){block, LDR_BLOCK};
    batch->bytes += blocks * LDR_BLOCK;
    ldr_budget_spend(&ssd->budget, (double)blocks * LDR_BLOCK);
}

/* Begins to fill the segment that is ready; the one before is to be closed. */
static bool begin_next(ldr_ssd_t *ssd)
{
    if (ssd->ready == LDR_NIL) {
        return false;
    }
    if (current(ssd)->segment != LDR_NIL) {
        if (other(ssd)->segment != LDR_NIL) {
            return false;
        }
        ssd->current = 1 - ssd->current;
    }
    ldr_filling_start(&ssd->disk, current(ssd), ssd->ready);
    ssd->ready = LDR_NIL;
    return true;
}

/* Whether the segment has room for it; if it has none a new one is begun, if
 * there is one. */
static bool make_room(ldr_ssd_t *ssd, ldr_flight_t *batch, uint32_t blocks)
{
    ldr_filling_t *f = current(ssd);

    if (f->segment != LDR_NIL && !f->failed &&
        ldr_filling_fits(&ssd->disk, f, blocks)) {
        return true;
    }
    /* A batch is one write: what it holds is in the segment before. */
    if (batch->count > 0 || !begin_next(ssd)) {
        return false;
    }
    /* Where reclaim may have to carry most of a segment it comes first, while
     * all of this one is empty. */
    return !ldr_ssd_shared(ssd);
}

/* Shards leave some room, so that tombstones that a reclaim must carry find
 * it: reclaim is what makes the next segment. */
static uint32_t slack_blocks(const ldr_ssd_t *ssd)
{
    return (uint32_t)ldr_min64(ssd->disk.segment_blocks / 64, TOMB_SLACK_MAX);
}

/* Whether something is to be written that has no room in the segment being
 * filled. */
static bool lacks_room(ldr_ssd_t *ssd)
{
    const ldr_store_t *store = &ssd->host->store;
    const ldr_filling_t *f = current(ssd);
    uint32_t first = first_queued(store);
    uint32_t blocks = 1;

    if (ssd->crowded) {
        return true;
    }
    if (ssd->tomb_count == 0) {
        if (first == LDR_NIL) {
            return false;
        }
        blocks =
            ldr_record_blocks(store->shards[first].length) + slack_blocks(ssd);
    }
    return f->segment == LDR_NIL || !ldr_filling_fits(&ssd->disk, f, blocks);
}

static void batch_fill(ldr_ssd_t *ssd, ldr_flight_t *batch)
{
    ldr_store_t *store = &ssd->host->store;
    ldr_filling_t fresh = {.next_block = 1};
    uint32_t slack = slack_blocks(ssd);

    while (ssd->tomb_count > 0 && batch->count < LDR_BATCH_RECORDS &&
           ldr_tombs_have_word(ssd) && make_room(ssd, batch, 1)) {
        batch_add(ssd, batch, &ssd->tombs[ssd->tomb_head], LDR_NIL);
        ssd->tomb_head = (ssd->tomb_head + 1) % LDR_TOMBS;
        ssd->tomb_count--;
    }
    /* Writes in flight hold a quarter of a small arena at most. */
    uint64_t bytes_max =
        ldr_min64(LDR_BATCH_BYTES, ssd->host->options.dram / 4 / LDR_BATCHES);

    uint32_t shard;
    while ((shard = first_queued(store)) != LDR_NIL && ssd->tomb_count == 0 &&
           batch->count < LDR_BATCH_RECORDS && batch->bytes < bytes_max) {
        uint32_t length = store->shards[shard].length;
        uint32_t blocks = ldr_record_blocks(length);

        if (!ldr_filling_fits(&ssd->disk, &fresh, blocks + slack)) {
            ldr_behind_remove(store, LDR_SSD_QUEUE, shard);
            LDR_COUNT(store, store->chunks[store->shards[shard].chunk].space,
                      saves_dropped_size, 1);
            continue;
        }
        if (!ldr_ssd_may_write(ssd, shard)) {
            if (first_queued(store) == shard) {
                break; /* another disk takes it */
            }
            continue;
        }
        if (batch->req.iov_count + ldr_arena_pages(length) + 1 >
                LDR_BATCH_IOV ||
            !make_room(ssd, batch, blocks + slack)) {
            break;
        }
        ldr_record_t record = ldr_store_record(store, shard);
        ldr_behind_take(store, LDR_SSD_QUEUE, shard);
        batch_add(ssd, batch, &record, shard);
    }
}

static bool write_batch(ldr_ssd_t *ssd)
{
    ldr_flight_t *batch = NULL;

    ldr_tombs_restore(ssd);
    const ldr_behind_t *queue = &ssd->host->store.queues[LDR_SSD_QUEUE];
    if (queue->count == 0 && ssd->tomb_count == 0) {
        return false;
    }
    for (uint32_t i = 0; i < LDR_BATCHES && batch == NULL; i++) {
        if (!ssd->batches[i].flying) {
            batch = &ssd->batches[i];
        }
    }
    if (batch == NULL) {
        return false;
    }
    batch->count = batch->bytes = 0;
    batch->req = (ldr_io_req_t){.kind = LDR_IO_WRITE,
                                .iov = batch->iov,
                                .done = batch_done,
                                .arg = batch};
    uint32_t before = current(ssd)->segment;
    uint64_t queued = queue->count;
    bool crowded = ssd->crowded;
    batch_fill(ssd, batch);
    if (batch->count == 0) {
        return current(ssd)->segment != before ||
               queue->count != queued ||   /* some were refused */
               (ssd->crowded && !crowded); /* which the next step sees to */
    }
    ldr_filling_t *f = current(ssd);
    ldr_io_req_t *req = &batch->req;
    batch->filling = ssd->current;
    batch->flying = true;
    batch->begin_ns = ldr_now_ns(ssd->host->clock);
    f->flying++;
    req->file = ssd->disk.segments[f->segment].file;
    req->offset = (uint64_t)f->next_block * LDR_BLOCK - batch->bytes;
    ldr_host_unlock(ssd->host);
    ldr_io_submit(ssd->host->io, &req, 1);
    ldr_host_lock(ssd->host);
    return true;
}

/* ---- segments ---- */

/* Closes a filling none of whose writes is in flight. */
static bool close_filling(ldr_ssd_t *ssd, ldr_filling_t *f)
{
    if (f->segment == LDR_NIL || f->flying > 0) {
        return false;
    }
    if (f->failed) {
        ldr_ssd_lose(ssd, f);
        return true;
    }
    /* The lock is dropped: nobody else looks at the filling, but loads read the
     * segment. */
    ldr_host_unlock(ssd->host);
    int error = ldr_filling_finish(&ssd->disk, f);
    ldr_host_lock(ssd->host);
    if (error == 0) {
        ldr_filling_finished(&ssd->disk, f, 0);
    } else {
        ldr_ssd_lose(ssd, f);
        write_failed(ssd, "close a segment", error);
    }
    return true;
}

static bool delete_surplus(ldr_ssd_t *ssd)
{
    ldr_disk_t *d = &ssd->disk;

    for (uint32_t i = 0; i < d->segment_count; i++) {
        if (d->segments[i].state == LDR_SEGMENT_FREE) {
            ldr_host_unlock(ssd->host);
            int error = ldr_disk_segment_delete(d, i);
            ldr_host_lock(ssd->host);
            ssd->files = d->file_count;
            if (error != 0) {
                write_failed(ssd, "delete a segment", error);
            }
            return true;
        }
    }
    return false;
}

/* Makes do with the files there are, and looks again then. */
static void limit_files(ldr_ssd_t *ssd, const char *why, uint64_t retry_ns)
{
    const ldr_disk_t *d = &ssd->disk;
    bool news = ssd->reason[0] == '\0';
    char size[24];

    ldr_size_text(d->segment_bytes, size, sizeof(size));
    snprintf(ssd->reason, sizeof(ssd->reason),
             "%s: using %u of %u segments of %s", why, d->file_count,
             d->segment_max, size);
    if (news) {
        ldr_host_say(ssd->host, LARDER_LOG_WARN, "%s: %s", ssd->params.path,
                     ssd->reason);
    }
    ssd->files_limit = d->file_count;
    ssd->retry_ns = retry_ns;
}

void ldr_ssd_unready(ldr_ssd_t *ssd, uint32_t segment, int error)
{
    ldr_host_held(ssd->host);

    ldr_disk_t *d = &ssd->disk;

    write_failed(ssd, "make a segment ready", error);
    if (!ssd->on || d->segments[segment].failures < 2 || d->file_count < 2) {
        return;
    }
    ldr_host_unlock(ssd->host);
    error = ldr_disk_segment_delete(d, segment);
    ldr_host_lock(ssd->host);
    ssd->files = d->file_count;
    if (error != 0) {
        write_failed(ssd, "delete a segment", error);
    } else if (ssd->on) {
        limit_files(ssd, "a segment file took no writes", UINT64_MAX);
    }
}

/* There is not even room for one: how much it would be. */
static void off_without_any(ldr_ssd_t *ssd, int error)
{
    char what[96], segment[24], all[24];

    ldr_size_text(ssd->disk.segment_bytes, segment, sizeof(segment));
    ldr_size_text(ssd->disk.bytes_max, all, sizeof(all));
    snprintf(what, sizeof(what),
             error == -ENOSPC ? "the first segment needs %s, all of ssd %s"
                              : "make a segment",
             segment, all);
    ldr_ssd_off(ssd, what, error);
}

/* Another file, if the configuration and the disk allow one. */
static bool create_ready(ldr_ssd_t *ssd)
{
    ldr_disk_t *d = &ssd->disk;
    uint32_t segment = LDR_NIL;

    if (ssd->files_limit != 0 &&
        ldr_now_ns(ssd->host->clock) >= ssd->retry_ns) {
        ssd->files_limit = 0; /* perhaps there is space again */
    }
    for (uint32_t i = 0; i < d->segment_count && segment == LDR_NIL; i++) {
        if (d->segments[i].state == LDR_SEGMENT_FREE) {
            segment = i;
        }
    }
    if (segment == LDR_NIL &&
        (d->file_count >= d->segment_max ||
         (ssd->files_limit != 0 && d->file_count >= ssd->files_limit))) {
        return false;
    }
    ldr_host_unlock(ssd->host);
    int error = make_ready(ssd, &segment);
    ldr_host_lock(ssd->host);
    ssd->files = d->file_count;
    if (error == 0) {
        ssd->ready = segment;
        if (ssd->on && ssd->files_limit == 0) {
            ssd->reason[0] = '\0';
        }
        return true;
    }
    bool full = error == -ENOSPC || error == -EMFILE || error == -ENFILE;
    if (full && d->file_count > 0) {
        limit_files(ssd,
                    error == -ENOSPC ? "disk full"
                                     : "too many open files (ulimit -n)",
                    retry_time(ssd));
    } else if (full) {
        off_without_any(ssd, error);
    } else if (segment != LDR_NIL) {
        ldr_ssd_unready(ssd, segment, error);
    } else {
        write_failed(ssd, "make a segment", error);
    }
    return true;
}

/* Keeps one segment prepared ahead. But while none is being filled, what there
 * is goes only for something that is to be written. */
static bool segment_prepare(ldr_ssd_t *ssd)
{
    if (ssd->disk.file_count > ssd->disk.segment_max) {
        return delete_surplus(ssd) || ldr_ssd_reclaim(ssd);
    }
    if (ssd->ready != LDR_NIL) {
        return false;
    }
    return create_ready(ssd) ||
           ((current(ssd)->segment != LDR_NIL || lacks_room(ssd)) &&
            ldr_ssd_reclaim(ssd));
}

/* The only segment there is room for is full: closed, it can be reclaimed. */
static bool close_only(ldr_ssd_t *ssd)
{
    return ssd->disk.file_count == 1 && ssd->ready == LDR_NIL &&
           lacks_room(ssd) && close_filling(ssd, current(ssd));
}

/* Room in the ledger: the oldest segment goes. If that is the one being filled,
 * the next one is begun, so that it can go. */
static bool relieve(ldr_ssd_t *ssd)
{
    const ldr_ledger_t *ledger = &ssd->disk.ledger;

    ssd->crowded = ssd->tomb_count > 0 && ldr_ledger_full(&ssd->disk.ledger);
    return ssd->crowded &&
           (ldr_ssd_relieve(ssd) ||
            (ldr_ledger_oldest(ledger) == current(ssd)->segment &&
             begin_next(ssd)));
}

uint64_t ldr_ssd_want_sync(ldr_ssd_t *ssd)
{
    ldr_host_held(ssd->host);
    ssd->sync_wanted++;
    ldr_ssd_wake(ssd);
    return ssd->sync_wanted;
}

/* Syncs when somebody waits for it and all is written, or when what was
 * written is old enough. */
static bool sync_step(ldr_ssd_t *ssd)
{
    ldr_host_t *host = ssd->host;
    ldr_filling_t *f = current(ssd);
    uint64_t wanted = ssd->sync_wanted;
    bool asked = ssd->sync_done < wanted && ssd->tomb_count == 0 &&
                 f->flying == 0 && other(ssd)->segment == LDR_NIL;
    bool due =
        ssd->unsynced_ns != 0 && ldr_now_ns(host->clock) - ssd->unsynced_ns >=
                                     host->options.sync_ms * 1000000u;
    int error = 0;

    if (!asked && !due) {
        return false;
    }
    if (f->segment != LDR_NIL && f->failed) {
        return f->flying == 0 && close_filling(ssd, f);
    }
    ssd->unsynced_ns = 0;
    int file = f->segment != LDR_NIL ? ssd->disk.segments[f->segment].file : -1;
    ldr_host_unlock(host);
    int ledger_error = ldr_ledger_sync(&ssd->disk.ledger, file, &error);
    ldr_host_lock(host);
    if (error != 0) {
        f->failed = true;
        write_failed(ssd, "sync", error);
        return true;
    }
    if (ledger_error != 0) {
        sync_give_up(ssd);
        write_failed(ssd, "write the ledger", ledger_error);
        return true;
    }
    if (asked) {
        LDR_ASSERT(wanted <= ssd->sync_wanted);
        ssd->sync_done = ldr_max64(ssd->sync_done, wanted);
        pthread_cond_broadcast(&host->changed);
    }
    return true;
}

bool ldr_ssd_step(ldr_ssd_t *ssd)
{
    ldr_host_held(ssd->host);
    if (batches_reap(ssd)) {
        return true;
    }
    if (ssd->super_missed && !ssd->super_busy && ssd->opened) {
        ssd->super_missed = false;
        ldr_host_unlock(ssd->host);
        ldr_ssd_super_update(ssd, true, UINT64_MAX); /* or it goes off */
        ldr_host_lock(ssd->host);
        return true;
    }
    if (!ssd->on) {
        return try_on(ssd);
    }
    /* Whoever waits for a sync waits for what is in flight, not for more. */
    bool drain = ssd->sync_done < ssd->sync_wanted && ssd->tomb_count == 0;
    /* The next segment is prepared before this one is full: reclaim needs
     * room for what it carries. */
    return (current(ssd)->failed && close_filling(ssd, current(ssd))) ||
           (ssd->crowded && relieve(ssd)) ||
           (ssd->ready == LDR_NIL && segment_prepare(ssd)) ||
           (!drain && write_batch(ssd)) || close_filling(ssd, other(ssd)) ||
           segment_prepare(ssd) || sync_step(ssd) || close_only(ssd);
}
