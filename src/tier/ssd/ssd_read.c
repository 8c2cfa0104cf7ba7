/*
 * Reads from the disks of the SSD tier: slots that all disks share.
 *
 * With the node's lock, except read_done(), which a thread of the I/O calls
 * and which takes it. A shard waits in its disk's list (read_head to read_tail)
 * until a slot is free; reads get slots in the order in which they were asked
 * for. While a read is in flight, its segment's `readers` keeps that from being
 * used again.
 */

#include "base/mem.h"
#include "tier/ssd/ssd.h"

#define GO_MAX 32u /* reads sent off with one submit */

static void read_queue(ldr_ssds_t *t, ldr_ssd_t *ssd, uint32_t shard)
{
    ldr_shard_t *shards = t->host->store.shards;

    shards[shard].fetch_seq = ++t->read_seq;
    shards[shard].fetch_next = LDR_NIL;
    if (ssd->read_tail != LDR_NIL) {
        shards[ssd->read_tail].fetch_next = shard;
    } else {
        ssd->read_head = shard;
    }
    ssd->read_tail = shard;
    t->reads_waiting++;
}

void ldr_ssd_fetch(ldr_tier_t *tier, uint32_t shard)
{
    ldr_ssds_t *t = (ldr_ssds_t *)tier;
    const ldr_store_t *store = &t->host->store;
    const ldr_shard_t *sh = &store->shards[shard];
    ldr_loc_t loc = ldr_index_loc(&store->index, store->chunks[sh->chunk].entry,
                                  sh->number);

    read_queue(t, &t->disks[ldr_loc_disk(loc)], shard);
}

/* With the lock: the read is back, as good or bad as it is. */
static void read_settle(ldr_ssds_t *t, ldr_read_t *read, bool parsed,
                        const ldr_record_t *record)
{
    ldr_store_t *store = &t->host->store;
    ldr_ssd_t *ssd = &t->disks[ldr_loc_disk(read->loc)];
    uint32_t shard = read->shard;
    ldr_chunk_t *c = &store->chunks[store->shards[shard].chunk];
    uint32_t entry = c->entry;
    uint32_t number = store->shards[shard].number;
    int error = read->req.error;

    if (error == 0 && parsed && record->block == ldr_loc_block(read->loc) &&
        ldr_load_fits(store, shard, record, ldr_loc_blocks(read->loc))) {
        ssd->read_failures = 0;
        ssd->read_bytes += (uint64_t)ldr_loc_blocks(read->loc) * LDR_BLOCK;
        c->parent = record->parent;
        c->written_s = record->written_s;
        ldr_store_set_length(store, shard, record->length);
        if (ldr_store_commit(store, shard, record->payload_crc, false)) {
            ldr_load_came(t->host, shard);
        } else {
            ldr_load_failed(t->host, shard, LARDER_CAUSE_STALE);
        }
        return;
    }
    if (error != 0) {
        ssd->read_errors++;
        ldr_ssd_failed(ssd, &ssd->read_failures, "read", error);
    }
    ldr_load_failed(t->host, shard,
                    error != 0 ? LARDER_CAUSE_IO : LARDER_CAUSE_CORRUPT);
    if (entry != LDR_NIL &&
        ldr_index_loc(&store->index, entry, number) == read->loc) {
        ldr_store_drop_loc(store, entry, number, false);
    }
}

static void read_done(ldr_io_req_t *req);

/* Takes the next shard that waits into a slot. False: there was a reason not
 * to read it. With the lock. */
static bool read_setup(ldr_ssds_t *t, ldr_read_t *read, uint32_t shard)
{
    ldr_store_t *store = &t->host->store;
    ldr_shard_t *sh = &store->shards[shard];
    uint32_t entry = store->chunks[sh->chunk].entry;
    ldr_loc_t loc = 0;

    if (entry != LDR_NIL) {
        loc = ldr_index_loc(&store->index, entry, sh->number);
    }
    ldr_ssd_t *ssd = ldr_ssds_disk(t, loc);
    if (ssd == NULL) {
        ldr_load_failed(t->host, shard,
                        entry == LDR_NIL ? LARDER_CAUSE_STALE
                        : loc == 0       ? LARDER_CAUSE_EVICTED
                                         : LARDER_CAUSE_TIER_OFF);
        return false;
    }
    ldr_segment_t *segment = &ssd->disk.segments[ldr_loc_segment(loc)];
    LDR_ASSERT(segment->state == LDR_SEGMENT_OPEN ||
               segment->state == LDR_SEGMENT_CLOSED); /* ssd.h, 4 */
    LDR_ASSERT(!read->flying);
    segment->readers++;
    read->shard = shard;
    read->loc = loc;
    read->begin_ns = ldr_now_ns(t->host->clock);
    read->flying = true;
    if (ssd->reads_flying++ == 0) {
        ssd->silent_ns = read->begin_ns;
    }
    read->header = ldr_disk_header(&ssd->disk, ldr_loc_segment(loc));
    uint32_t n = ldr_arena_iov(&store->arena, sh->page, sh->length, read->iov,
                               LDR_READ_IOV - 1);
    read->iov[n++] = (struct iovec){read->block, LDR_BLOCK};
    read->req = (ldr_io_req_t){
        .kind = LDR_IO_READ,
        .file = segment->file,
        .offset = (uint64_t)ldr_loc_block(loc) * LDR_BLOCK,
        .iov = read->iov,
        .iov_count = n,
        .done = read_done,
        .arg = read,
    };
    return true;
}

/* The first of those that wait for the disk. With the lock. */
static uint32_t read_take(ldr_ssds_t *t, ldr_ssd_t *ssd)
{
    uint32_t shard = ssd->read_head;

    ssd->read_head = t->host->store.shards[shard].fetch_next;
    if (ssd->read_head == LDR_NIL) {
        ssd->read_tail = LDR_NIL;
    }
    LDR_ASSERT(t->reads_waiting > 0);
    t->reads_waiting--;
    return shard;
}

/* Whether the disk has half of the slots already, and there are others: one
 * that hangs must not take all of them. */
static bool is_crowded(const ldr_ssds_t *t, const ldr_ssd_t *ssd)
{
    return t->count > 1 && ssd->reads_flying >= (t->read_count + 1) / 2;
}

/* The disk whose turn it is: its first read was queued before those of the
 * others. NULL: none. With the lock. */
static ldr_ssd_t *read_next(const ldr_ssds_t *t)
{
    const ldr_shard_t *shards = t->host->store.shards;
    ldr_ssd_t *next = NULL;

    for (unsigned i = 0; i < t->count; i++) {
        ldr_ssd_t *ssd = &t->disks[i];

        if (ssd->read_head != LDR_NIL && !is_crowded(t, ssd) &&
            (next == NULL || shards[ssd->read_head].fetch_seq <
                                 shards[next->read_head].fetch_seq)) {
            next = ssd;
        }
    }
    return next;
}

/* As many of the waiting reads as there are slots for. With the lock; the
 * caller submits them without it. */
static unsigned reads_collect(ldr_ssds_t *t, ldr_io_req_t **reqs)
{
    unsigned count = 0;
    ldr_ssd_t *ssd;

    while (count < GO_MAX && t->read_free != NULL &&
           (ssd = read_next(t)) != NULL) {
        ldr_read_t *read = t->read_free;

        if (read_setup(t, read, read_take(t, ssd))) {
            t->read_free = read->next;
            t->reads_flying++;
            reqs[count++] = &read->req;
        }
    }
    return count;
}

static void read_done(ldr_io_req_t *req)
{
    ldr_read_t *read = req->arg;
    ldr_ssds_t *t = read->tier;
    ldr_ssd_t *ssd = &t->disks[ldr_loc_disk(read->loc)];
    uint32_t descriptor =
        ldr_loc_block(read->loc) + ldr_loc_blocks(read->loc) - 1;
    ldr_io_req_t *reqs[GO_MAX];
    ldr_record_t record = {0};
    bool parsed =
        req->error == 0 &&
        ldr_record_parse(read->block, &read->header, descriptor, &record);

    uint64_t now_ns = ldr_now_ns(t->host->clock);

    ldr_histogram_add(&ssd->read_times, now_ns - read->begin_ns);
    ldr_host_lock(t->host);
    LDR_ASSERT(read->flying && ssd->reads_flying > 0 && t->reads_flying > 0);
    read->flying = false;
    ssd->reads_flying--;
    ssd->silent_ns = now_ns;
    read_settle(t, read, parsed, &record);
    ldr_segment_t *segment = &ssd->disk.segments[ldr_loc_segment(read->loc)];
    LDR_ASSERT(segment->readers > 0);
    segment->readers--;
    if (segment->readers == 0) {
        ldr_ssd_wake(ssd);
    }
    read->next = t->read_free;
    t->read_free = read;
    t->reads_flying--;
    unsigned count = reads_collect(t, reqs);
    ldr_io_t *io = t->host->io;
    pthread_cond_broadcast(&t->host->changed);
    ldr_host_unlock(t->host);
    /* The node may be gone by now, unless there are reads in flight. */
    if (count > 0) {
        ldr_io_submit(io, reqs, count);
    }
}

void ldr_ssd_submit_reads(ldr_tier_t *tier)
{
    ldr_ssds_t *t = (ldr_ssds_t *)tier;
    ldr_io_req_t *reqs[GO_MAX];
    unsigned count;

    do {
        ldr_host_lock(t->host);
        count = reads_collect(t, reqs);
        ldr_host_unlock(t->host);
        if (count > 0) {
            ldr_io_submit(t->host->io, reqs, count);
        }
    } while (count == GO_MAX);
}

void ldr_ssd_timed_out(ldr_tier_t *tier, uint32_t shard)
{
    ldr_ssds_t *t = (ldr_ssds_t *)tier;
    const ldr_shard_t *sh = &t->host->store.shards[shard];
    uint32_t entry = t->host->store.chunks[sh->chunk].entry;
    ldr_ssd_t *ssd = entry == LDR_NIL
                         ? NULL
                         : ldr_ssds_disk(t, ldr_index_loc(&t->host->store.index,
                                                          entry, sh->number));

    if (ssd != NULL) {
        ldr_ssd_waited(ssd);
    }
}

larder_status_t ldr_reads_create(ldr_ssds_t *t)
{
    size_t count = t->host->options.io_depth;

    t->reads = ldr_alloc(count * sizeof(*t->reads));
    if (t->reads == NULL) {
        return LARDER_E_NO_MEMORY;
    }
    for (size_t i = 0; i < count; i++) {
        ldr_read_t *read = &t->reads[i];

        read->tier = t;
        read->iov = ldr_alloc(LDR_READ_IOV * sizeof(*read->iov));
        read->block = ldr_alloc_blocks(LDR_BLOCK);
        if (read->iov == NULL || read->block == NULL) {
            return LARDER_E_NO_MEMORY;
        }
        read->next = t->read_free;
        t->read_free = read;
        t->read_count++;
    }
    return LARDER_OK;
}

/* None of those that wait for the disk is read. With the lock. */
static void reads_fail(ldr_ssds_t *t, ldr_ssd_t *ssd, larder_cause_t cause)
{
    while (ssd->read_head != LDR_NIL) {
        ldr_load_failed(t->host, read_take(t, ssd), cause);
    }
}

void ldr_reads_off(ldr_ssds_t *t, ldr_ssd_t *ssd)
{
    ldr_host_held(t->host);
    reads_fail(t, ssd, LARDER_CAUSE_TIER_OFF);
    for (size_t i = 0; i < t->read_count; i++) {
        const ldr_read_t *read = &t->reads[i];

        if (read->flying && &t->disks[ldr_loc_disk(read->loc)] == ssd) {
            ldr_load_lost(t->host, read->shard, LARDER_CAUSE_TIER_OFF);
        }
    }
}

bool ldr_reads_drain(ldr_ssds_t *t, uint64_t deadline_ns)
{
    bool whole = true;

    if (t->reads == NULL) {
        return true;
    }
    ldr_host_lock(t->host);
    for (unsigned i = 0; i < t->count; i++) {
        reads_fail(t, &t->disks[i], LARDER_CAUSE_DEADLINE);
    }
    while (whole && t->reads_flying > 0) {
        whole = ldr_host_pause(t->host, deadline_ns);
    }
    ldr_host_unlock(t->host);
    return whole;
}

void ldr_reads_destroy(ldr_ssds_t *t)
{
    for (size_t i = 0; t->reads != NULL && i < t->host->options.io_depth; i++) {
        ldr_free(t->reads[i].iov);
        ldr_free(t->reads[i].block);
    }
    ldr_free(t->reads);
}
