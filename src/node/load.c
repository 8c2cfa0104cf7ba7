#include "node/load.h"

#include <string.h>

#include "base/bytes.h"
#include "base/copy.h"
#include "base/fault.h"
#include "base/mem.h"
#include "node/observe.h"
#include "node/shared.h"
#include "node/ssd.h"

#define GO_MAX 32u /* reads sent off with one submit */

/* ---- beginning ---- */

static bool settle(ldr_load_t *load, larder_status_t st, larder_cause_t cause)
{
    load->status = st;
    load->cause = cause;
    return true;
}

/* The load holds a ready shard from here on. */
static bool settle_held(ldr_node_t *node, ldr_load_t *load, uint32_t shard)
{
    ldr_store_t *store = &node->store;

    load->shard = shard;
    load->chunk = store->shards[shard].chunk;
    load->length = store->shards[shard].length;
    ldr_store_hold(store, load->chunk);
    ldr_store_used(store, load->chunk);
    ldr_ssd_used(node, shard);
    return settle(load, LARDER_OK, LARDER_CAUSE_NONE);
}

static void wait_for(ldr_node_t *node, ldr_load_t *load, uint32_t shard)
{
    ldr_shard_t *sh = &node->store.shards[shard];

    load->status = LARDER_PENDING;
    load->tier = (larder_tier_t)sh->tier;
    load->shard = shard;
    load->next = sh->waiters;
    sh->waiters = load;
}

/* A shard that is being read is not dirty: the link is free for the queue of
 * its disk, and the ordinal for who was first. */
static void read_queue(ldr_node_t *node, ldr_ssd_t *ssd, uint32_t shard)
{
    ldr_shard_t *shards = node->store.shards;

    shards[shard].save_seq = ++node->read_seq;
    shards[shard].dirty_next = LDR_NIL;
    if (ssd->read_tail != LDR_NIL) {
        shards[ssd->read_tail].dirty_next = shard;
    } else {
        ssd->read_head = shard;
    }
    ssd->read_tail = shard;
    node->reads_waiting++;
}

static bool begin(ldr_node_t *node, ldr_load_t *load);

/* The shard is on disk only: reserves room for it and queues the read. */
static bool begin_read(ldr_node_t *node, ldr_load_t *load, uint32_t entry,
                       ldr_loc_t loc, uint32_t now_s)
{
    ldr_store_t *store = &node->store;
    const ldr_target_t *t = &load->target;
    ldr_reserve_t r = {
        .name = ldr_store_name(store, t->space, t->item->group, t->item->key),
        .shards = t->shards,
        .number = t->item->shard,
        .length = (ldr_loc_blocks(loc) - 1) * LDR_BLOCK,
        .now_s = now_s,
        .state = LDR_SHARD_READING,
    };
    uint32_t shard;

    ldr_node_populate(node, store->spaces[t->space].tenant, r.length);
    /* The lock may have been dropped: what was found is found again. */
    larder_cause_t cause;
    entry = ldr_store_find(store, &r.name, LDR_NIL, now_s, &cause);
    if (entry == LDR_NIL ||
        ldr_store_resident(store, entry, r.number) != LDR_NIL ||
        ldr_index_loc(&store->index, entry, r.number) != loc ||
        ldr_node_disk(node, loc) == NULL) {
        return begin(node, load);
    }
    r.pin = (ldr_entry_flags(ldr_index_at(&store->index, entry)) &
             LDR_ENTRY_PINNED) != 0;
    if (ldr_store_reserve(store, entry, &r, &shard) != LARDER_OK) {
        return settle(load, LARDER_MISS, LARDER_CAUSE_FULL);
    }
    store->shards[shard].tier = LARDER_TIER_SSD;
    wait_for(node, load, shard);
    read_queue(node, &node->ssds[ldr_loc_disk(loc)], shard);
    return false;
}

/* Neither DRAM nor a disk that is on has the shard: perhaps the shared tier
 * does. why: the cause of the miss if it does not. */
static bool begin_fetch(ldr_node_t *node, ldr_load_t *load, larder_cause_t why)
{
    ldr_store_t *store = &node->store;
    const ldr_target_t *t = &load->target;
    const larder_item_t *item = t->item;
    uint32_t now_s = ldr_wall_s(node->clock);
    larder_cause_t cause;
    ldr_place_t place;
    uint32_t shard;

    if (!ldr_shared_find(node, t->space, item->group, item->key, item->shard,
                         &place)) {
        return settle(load, LARDER_MISS, why);
    }
    ldr_reserve_t r = {
        .name = ldr_store_name(store, t->space, item->group, item->key),
        .parent = item->parent,
        .depth = item->depth,
        .shards = t->shards,
        .number = item->shard,
        .length = (uint32_t)(place.blocks - 1) * LDR_BLOCK,
        .now_s = now_s,
        .state = LDR_SHARD_READING,
    };
    bool dropped =
        ldr_node_populate(node, store->spaces[t->space].tenant, r.length);
    uint32_t entry = ldr_store_find(store, &r.name, LDR_NIL, now_s, &cause);
    if (dropped && entry != LDR_NIL &&
        ldr_store_resident(store, entry, r.number) != LDR_NIL) {
        return begin(node, load); /* somebody else has it by now */
    }
    if (ldr_store_reserve(store, entry, &r, &shard) != LARDER_OK) {
        return settle(load, LARDER_MISS, LARDER_CAUSE_FULL);
    }
    store->shards[shard].tier = LARDER_TIER_SHARED;
    wait_for(node, load, shard);
    ldr_shared_fetch(node, shard);
    return false;
}

static bool begin(ldr_node_t *node, ldr_load_t *load)
{
    ldr_store_t *store = &node->store;
    const larder_item_t *item = load->target.item;
    uint32_t now_s = ldr_wall_s(node->clock);
    larder_cause_t cause;

    if (node->mode != LDR_MODE_ON) {
        ldr_observe_load(node, &load->target);
        return settle(load, LARDER_MISS, LARDER_CAUSE_PAUSED);
    }
    ldr_name_t name =
        ldr_store_name(store, load->target.space, item->group, item->key);
    uint32_t entry = ldr_store_find(store, &name, LDR_NIL, now_s, &cause);
    if (entry == LDR_NIL) {
        return begin_fetch(node, load, cause);
    }
    ldr_index_at(&store->index, entry)->used_s = now_s;
    uint32_t shard = ldr_store_resident(store, entry, item->shard);
    if (shard != LDR_NIL) {
        switch (store->shards[shard].state) {
        case LDR_SHARD_READY:
            return settle_held(node, load, shard);
        case LDR_SHARD_READING:
            wait_for(node, load, shard);
            return false;
        default: /* being filled: nobody has seen it yet */
            return settle(load, LARDER_MISS, LARDER_CAUSE_ABSENT);
        }
    }
    ldr_loc_t loc = ldr_index_loc(&store->index, entry, item->shard);
    if (loc == 0) {
        return begin_fetch(node, load, LARDER_CAUSE_ABSENT);
    }
    if (ldr_node_disk(node, loc) == NULL) {
        return begin_fetch(node, load, LARDER_CAUSE_TIER_OFF);
    }
    return begin_read(node, load, entry, loc, now_s);
}

bool ldr_load_begin(ldr_node_t *node, ldr_load_t *load)
{
    load->shard = load->chunk = LDR_NIL;
    load->tier = LARDER_TIER_DRAM;
    load->checked = false;
    ldr_node_lock(node);
    ldr_node_tick(node);
    bool settled = begin(node, load);
    ldr_node_unlock(node);
    return settled;
}

/* ---- reading ---- */

/* Ends the wait of every load on the shard. With the lock. */
static void wake_waiters(ldr_node_t *node, uint32_t shard, larder_status_t st,
                         larder_cause_t cause)
{
    ldr_load_t *load = node->store.shards[shard].waiters;

    node->store.shards[shard].waiters = NULL;
    while (load != NULL) {
        ldr_load_t *next = load->next; /* ready() may end the load */

        if (st == LARDER_OK) {
            settle_held(node, load, shard);
        } else {
            load->shard = LDR_NIL;
            settle(load, st, cause);
        }
        if (load->ready != NULL) {
            load->ready(load);
        }
        load = next;
    }
    pthread_cond_broadcast(&node->changed);
}

void ldr_load_failed(ldr_node_t *node, uint32_t shard, larder_cause_t cause)
{
    wake_waiters(node, shard, LARDER_MISS, cause);
    ldr_store_abort(&node->store, shard);
}

void ldr_load_came(ldr_node_t *node, uint32_t shard)
{
    wake_waiters(node, shard, LARDER_OK, LARDER_CAUSE_NONE);
    ldr_store_release(&node->store, node->store.shards[shard].chunk);
}

bool ldr_load_fits(const ldr_store_t *store, uint32_t shard,
                   const ldr_record_t *record, uint32_t blocks)
{
    const ldr_shard_t *sh = &store->shards[shard];
    const ldr_chunk_t *c = &store->chunks[sh->chunk];

    return record->kind == LDR_RECORD_SHARD &&
           memcmp(&record->key, &c->key, sizeof(c->key)) == 0 &&
           memcmp(record->space_id, store->spaces[c->space].id, LDR_ID_BYTES) ==
               0 &&
           record->group == c->group && record->shard == sh->number &&
           record->epoch == c->epoch && record->codec == LDR_CODEC_RAW &&
           record->length > 0 && ldr_record_blocks(record->length) == blocks;
}

/* With the lock: the read is back, as good or bad as it is. */
static void read_settle(ldr_node_t *node, ldr_read_t *read, bool parsed,
                        const ldr_record_t *record)
{
    ldr_store_t *store = &node->store;
    ldr_ssd_t *ssd = &node->ssds[ldr_loc_disk(read->loc)];
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
        if (ldr_store_commit(store, shard, record->payload_crc, false, false)) {
            ldr_load_came(node, shard);
        } else {
            ldr_load_failed(node, shard, LARDER_CAUSE_STALE);
        }
        return;
    }
    if (error != 0) {
        ssd->read_errors++;
        ldr_ssd_failed(ssd, &ssd->read_failures, "read", error);
    }
    ldr_load_failed(node, shard,
                    error != 0 ? LARDER_CAUSE_IO : LARDER_CAUSE_CORRUPT);
    if (entry != LDR_NIL &&
        ldr_index_loc(&store->index, entry, number) == read->loc) {
        ldr_store_drop_loc(store, entry, number, false);
    }
}

static void read_done(ldr_io_req_t *req);

/* Takes the next shard that waits into a slot. False: there was a reason not
 * to read it. With the lock. */
static bool read_setup(ldr_node_t *node, ldr_read_t *read, uint32_t shard)
{
    ldr_store_t *store = &node->store;
    ldr_shard_t *sh = &store->shards[shard];
    uint32_t entry = store->chunks[sh->chunk].entry;
    ldr_loc_t loc = 0;

    if (entry != LDR_NIL) {
        loc = ldr_index_loc(&store->index, entry, sh->number);
    }
    ldr_ssd_t *ssd = ldr_node_disk(node, loc);
    if (ssd == NULL) {
        ldr_load_failed(node, shard,
                        entry == LDR_NIL ? LARDER_CAUSE_STALE
                        : loc == 0       ? LARDER_CAUSE_EVICTED
                                         : LARDER_CAUSE_TIER_OFF);
        return false;
    }
    ldr_segment_t *segment = &ssd->disk.segments[ldr_loc_segment(loc)];
    segment->readers++;
    read->shard = shard;
    read->loc = loc;
    read->begin_ns = ldr_now_ns(node->clock);
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
static uint32_t read_take(ldr_node_t *node, ldr_ssd_t *ssd)
{
    uint32_t shard = ssd->read_head;

    ssd->read_head = node->store.shards[shard].dirty_next;
    if (ssd->read_head == LDR_NIL) {
        ssd->read_tail = LDR_NIL;
    }
    node->reads_waiting--;
    return shard;
}

/* Whether the disk has half of the slots already, and there are others: one
 * that hangs must not take all of them. */
static bool is_crowded(const ldr_node_t *node, const ldr_ssd_t *ssd)
{
    return node->ssd_count > 1 &&
           ssd->reads_flying >= (node->read_count + 1) / 2;
}

/* The disk whose turn it is: its first read was queued before those of the
 * others. NULL: none. With the lock. */
static ldr_ssd_t *read_next(const ldr_node_t *node)
{
    const ldr_shard_t *shards = node->store.shards;
    ldr_ssd_t *next = NULL;

    for (unsigned i = 0; i < node->ssd_count; i++) {
        ldr_ssd_t *ssd = &node->ssds[i];

        if (ssd->read_head != LDR_NIL && !is_crowded(node, ssd) &&
            (next == NULL || shards[ssd->read_head].save_seq <
                                 shards[next->read_head].save_seq)) {
            next = ssd;
        }
    }
    return next;
}

/* As many of the waiting reads as there are slots for. With the lock; the
 * caller submits them without it. */
static unsigned reads_collect(ldr_node_t *node, ldr_io_req_t **reqs)
{
    unsigned count = 0;
    ldr_ssd_t *ssd;

    while (count < GO_MAX && node->read_free != NULL &&
           (ssd = read_next(node)) != NULL) {
        ldr_read_t *read = node->read_free;

        if (read_setup(node, read, read_take(node, ssd))) {
            node->read_free = read->next;
            node->reads_flying++;
            reqs[count++] = &read->req;
        }
    }
    return count;
}

static void read_done(ldr_io_req_t *req)
{
    ldr_read_t *read = req->arg;
    ldr_node_t *node = read->node;
    ldr_ssd_t *ssd = &node->ssds[ldr_loc_disk(read->loc)];
    uint32_t descriptor =
        ldr_loc_block(read->loc) + ldr_loc_blocks(read->loc) - 1;
    ldr_io_req_t *reqs[GO_MAX];
    ldr_record_t record = {0};
    bool parsed =
        req->error == 0 &&
        ldr_record_parse(read->block, &read->header, descriptor, &record);

    uint64_t now_ns = ldr_now_ns(node->clock);

    ldr_histogram_add(&ssd->read_times, now_ns - read->begin_ns);
    ldr_node_lock(node);
    read->flying = false;
    ssd->reads_flying--;
    ssd->silent_ns = now_ns;
    read_settle(node, read, parsed, &record);
    ldr_segment_t *segment = &ssd->disk.segments[ldr_loc_segment(read->loc)];
    segment->readers--;
    if (segment->readers == 0) {
        ldr_ssd_wake(ssd);
    }
    read->next = node->read_free;
    node->read_free = read;
    node->reads_flying--;
    unsigned count = reads_collect(node, reqs);
    ldr_io_t *io = node->io;
    pthread_cond_broadcast(&node->changed);
    ldr_node_unlock(node);
    /* The node may be gone by now, unless there are reads in flight. */
    if (count > 0) {
        ldr_io_submit(io, reqs, count);
    }
}

void ldr_node_reads_go(ldr_node_t *node)
{
    ldr_io_req_t *reqs[GO_MAX];
    unsigned count;

    do {
        ldr_node_lock(node);
        ldr_shared_go(node);
        count = reads_collect(node, reqs);
        ldr_node_unlock(node);
        if (count > 0) {
            ldr_io_submit(node->io, reqs, count);
        }
    } while (count == GO_MAX);
}

void ldr_load_wait(ldr_node_t *node, ldr_load_t *load, uint64_t deadline_ns)
{
    ldr_node_lock(node);
    while (load->status == LARDER_PENDING && ldr_node_wait(node, deadline_ns)) {
    }
    ldr_node_unlock(node);
    ldr_load_abandon(node, load, LARDER_E_DEADLINE);
}

/* A load gave this shard up. With the lock. */
static void waited(ldr_node_t *node, uint32_t shard)
{
    const ldr_shard_t *sh = &node->store.shards[shard];
    uint32_t entry = node->store.chunks[sh->chunk].entry;
    ldr_ssd_t *ssd =
        entry == LDR_NIL
            ? NULL
            : ldr_node_disk(
                  node, ldr_index_loc(&node->store.index, entry, sh->number));

    if (ssd != NULL) {
        ldr_ssd_waited(ssd);
    }
}

void ldr_load_abandon(ldr_node_t *node, ldr_load_t *load, larder_status_t why)
{
    ldr_node_lock(node);
    if (load->status == LARDER_PENDING) {
        ldr_load_t **link = &node->store.shards[load->shard].waiters;

        while (*link != load) {
            link = &(*link)->next;
        }
        *link = load->next;
        if (why == LARDER_E_DEADLINE && load->tier == LARDER_TIER_SSD) {
            waited(node, load->shard);
        }
        load->shard = LDR_NIL;
        settle(load, why, LARDER_CAUSE_NONE);
    }
    ldr_node_unlock(node);
}

larder_status_t ldr_reads_create(ldr_node_t *node)
{
    size_t count = node->options.io_depth;

    node->reads = ldr_alloc(count * sizeof(*node->reads));
    if (node->reads == NULL) {
        return LARDER_E_NO_MEMORY;
    }
    for (size_t i = 0; i < count; i++) {
        ldr_read_t *read = &node->reads[i];

        read->node = node;
        read->iov = ldr_alloc(LDR_READ_IOV * sizeof(*read->iov));
        read->block = ldr_alloc_blocks(LDR_BLOCK);
        if (read->iov == NULL || read->block == NULL) {
            return LARDER_E_NO_MEMORY;
        }
        read->next = node->read_free;
        node->read_free = read;
        node->read_count++;
    }
    return LARDER_OK;
}

/* None of those that wait for the disk is read. With the lock. */
static void reads_fail(ldr_node_t *node, ldr_ssd_t *ssd, larder_cause_t cause)
{
    while (ssd->read_head != LDR_NIL) {
        ldr_load_failed(node, read_take(node, ssd), cause);
    }
}

void ldr_reads_off(ldr_node_t *node, ldr_ssd_t *ssd)
{
    ldr_store_t *store = &node->store;

    reads_fail(node, ssd, LARDER_CAUSE_TIER_OFF);
    for (size_t i = 0; i < node->read_count; i++) {
        const ldr_read_t *read = &node->reads[i];

        if (read->flying && &node->ssds[ldr_loc_disk(read->loc)] == ssd) {
            /* Detached, its chunk is the read's alone, until that is back. */
            wake_waiters(node, read->shard, LARDER_MISS, LARDER_CAUSE_TIER_OFF);
            ldr_store_discard(store, store->shards[read->shard].chunk);
        }
    }
}

bool ldr_reads_drain(ldr_node_t *node, uint64_t deadline_ns)
{
    bool whole = true;

    if (node->reads == NULL) {
        return true;
    }
    ldr_node_lock(node);
    for (unsigned i = 0; i < node->ssd_count; i++) {
        reads_fail(node, &node->ssds[i], LARDER_CAUSE_DEADLINE);
    }
    while (whole && node->reads_flying > 0) {
        whole = ldr_node_pause(node, deadline_ns);
    }
    ldr_node_unlock(node);
    return whole;
}

void ldr_reads_destroy(ldr_node_t *node)
{
    for (size_t i = 0; node->reads != NULL && i < node->options.io_depth; i++) {
        ldr_free(node->reads[i].iov);
        ldr_free(node->reads[i].block);
    }
    ldr_free(node->reads);
}
