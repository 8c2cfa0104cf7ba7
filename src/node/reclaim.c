/*
 * Reclaim: making room on a disk by using its oldest segment again.
 *
 * What the policy values in it is carried to the segment being filled, at most
 * a quarter of a segment; the rest is dropped. Carried records are durable
 * before the old segment's header is overwritten, so a cut at any point loses
 * nothing that was kept. Tombstones are carried while an older segment could
 * still hold what they cancel.
 *
 * All of it runs in the disk's thread. Locations into the segment are dropped
 * before it is reused, and a segment that is being read is passed over.
 */
#include <string.h>

#include "base/bytes.h"
#include "base/copy.h"
#include "node/ssd.h"

#define CLASSES 33 /* of value: bits in it */
#define DROP_SLICE 4096u

typedef struct reclaim {
    ldr_ssd_t *ssd;
    uint32_t segment;
    uint64_t class_bytes[CLASSES]; /* live bytes by class of value */
    int class_min;                 /* carry this class and above */
    uint64_t budget;               /* bytes that may still be carried */
    bool carry_tombs;
    bool stuck; /* something that must be carried does not fit */
    bool carried;
    int error; /* of a write */
} reclaim_t;

/* The entry that still leads to this record, or LDR_NIL. With the lock. */
static uint32_t live_entry(reclaim_t *r, const ldr_record_t *record)
{
    ldr_store_t *store = &r->ssd->node->store;
    uint32_t space = ldr_store_space(store, record->space_id);

    if (space == LDR_NIL) {
        return LDR_NIL;
    }
    ldr_name_t name = ldr_store_name(store, space, record->group, &record->key);
    uint32_t entry = ldr_index_find(&store->index, name.fingerprint, space,
                                    record->group, LDR_NIL);
    if (entry == LDR_NIL) {
        return LDR_NIL;
    }
    ldr_loc_t loc = ldr_loc(r->ssd->disk.number, r->segment, record->block,
                            ldr_record_blocks(record->length));
    return ldr_index_loc(&store->index, entry, record->shard) == loc ? entry
                                                                     : LDR_NIL;
}

/* What carrying the record is worth, as a class; 0: nothing. With the lock. */
static int value_class(reclaim_t *r, uint32_t entry, const ldr_record_t *record)
{
    ldr_store_t *store = &r->ssd->node->store;
    const ldr_entry_t *e = ldr_index_at(&store->index, entry);
    uint32_t now_s = ldr_wall_s(r->ssd->node->clock);

    if (e->epoch != store->spaces[e->space].epoch ||
        (e->expires_s != 0 && e->expires_s <= now_s)) {
        return 0;
    }
    ldr_policy_record_t p = {
        .written_s = record->written_s,
        .used_s = e->used_s,
        .now_s = now_s,
        .depth = ldr_entry_depth(e),
        .pinned = (ldr_entry_flags(e) & LDR_ENTRY_PINNED) != 0,
        .orphan = ldr_entry_depth(e) > 0 && e->parent == LDR_NIL,
    };
    uint32_t value = store->policy->ops->keep(&p);
    return value == 0 ? 0 : 32 - __builtin_clz(value);
}

static bool weigh(void *arg, uint32_t segment, const ldr_record_t *record)
{
    reclaim_t *r = arg;

    (void)segment;
    if (record->kind == LDR_RECORD_SHARD) {
        ldr_node_lock(r->ssd->node);
        uint32_t entry = live_entry(r, record);
        if (entry != LDR_NIL) {
            r->class_bytes[value_class(r, entry, record)] +=
                (uint64_t)ldr_record_blocks(record->length) * LDR_BLOCK;
        }
        ldr_node_unlock(r->ssd->node);
    }
    return true;
}

/* Reads a whole record and checks it as any load would. */
static bool carry_read(reclaim_t *r, const ldr_record_t *row,
                       ldr_record_t *record)
{
    ldr_disk_t *d = &r->ssd->disk;
    uint32_t blocks = ldr_record_blocks(row->length);
    ldr_segment_header_t header = ldr_disk_header(d, r->segment);
    const uint8_t *last = r->ssd->carry + (size_t)(blocks - 1) * LDR_BLOCK;

    return ldr_io_read_at(d->io, d->segments[r->segment].file,
                          (uint64_t)row->block * LDR_BLOCK, r->ssd->carry,
                          (size_t)blocks * LDR_BLOCK) == 0 &&
           ldr_record_parse(last, &header, row->block + blocks - 1, record) &&
           memcmp(&record->key, &row->key, sizeof(row->key)) == 0 &&
           record->length == row->length &&
           ldr_crc32c(0, r->ssd->carry, record->length) == record->payload_crc;
}

/* Appends the record whose payload lies in carry. Gives its location, or 0. */
static ldr_loc_t carry_write(reclaim_t *r, ldr_record_t *record)
{
    ldr_ssd_t *ssd = r->ssd;
    ldr_filling_t *f = &ssd->disk.filling[ssd->current];
    uint32_t blocks = record->kind == LDR_RECORD_TOMBSTONE
                          ? 1
                          : ldr_record_blocks(record->length);

    ldr_node_lock(ssd->node);
    if (f->segment == LDR_NIL || f->failed || !ssd->on ||
        !ldr_filling_fits(&ssd->disk, f, blocks)) {
        ldr_node_unlock(ssd->node);
        return 0;
    }
    ldr_segment_header_t header = ldr_disk_header(&ssd->disk, f->segment);
    ldr_filling_add(f, record);
    ldr_node_unlock(ssd->node);

    ldr_record_compose(record, &header,
                       ssd->carry + (size_t)(blocks - 1) * LDR_BLOCK);
    int error =
        ldr_io_write_at(ssd->node->io, ssd->disk.segments[f->segment].file,
                        (uint64_t)record->block * LDR_BLOCK, ssd->carry,
                        (size_t)blocks * LDR_BLOCK);
    if (error != 0) {
        r->error = error;
        return 0;
    }
    r->carried = true;
    ldr_node_lock(ssd->node);
    ssd->carried_bytes += (uint64_t)blocks * LDR_BLOCK;
    ldr_node_unlock(ssd->node);
    return ldr_loc(ssd->disk.number, f->segment, record->block, blocks);
}

static void carry_shard(reclaim_t *r, const ldr_record_t *row)
{
    ldr_store_t *store = &r->ssd->node->store;
    uint64_t bytes = (uint64_t)ldr_record_blocks(row->length) * LDR_BLOCK;
    ldr_record_t record;

    ldr_node_lock(r->ssd->node);
    uint32_t entry = live_entry(r, row);
    bool wanted = entry != LDR_NIL && bytes <= r->budget &&
                  value_class(r, entry, row) >= r->class_min;
    ldr_node_unlock(r->ssd->node);
    if (!wanted || !carry_read(r, row, &record)) {
        return;
    }
    ldr_loc_t loc = carry_write(r, &record);
    if (loc == 0) {
        return;
    }
    r->budget -= bytes;
    ldr_node_lock(r->ssd->node);
    entry = live_entry(r, row); /* it may have been removed meanwhile */
    if (entry != LDR_NIL) {
        ldr_index_set_loc(&store->index, entry, row->shard, loc);
    }
    ldr_node_unlock(r->ssd->node);
}

/* Past what was put again after the removal: so the tombstone keeps the place
 * where it stood first in the field that a record has for its parent. */
static bool carry_tomb(reclaim_t *r, const ldr_record_t *row)
{
    ldr_record_t record = *row;

    if (ldr_get64(record.parent.hash) == 0) {
        ldr_put64(record.parent.hash,
                  r->ssd->disk.segments[r->segment].sequence);
        ldr_put32(record.parent.hash + 8, row->block);
    }
    record.payload_crc = 0;
    return carry_write(r, &record) != 0;
}

static bool carry(void *arg, uint32_t segment, const ldr_record_t *row)
{
    reclaim_t *r = arg;

    (void)segment;
    if (row->kind == LDR_RECORD_SHARD) {
        carry_shard(r, row);
    } else if (r->carry_tombs) {
        r->stuck = !carry_tomb(r, row);
    }
    return !r->stuck && r->error == 0;
}

static bool drop(void *arg, uint32_t segment, const ldr_record_t *record)
{
    reclaim_t *r = arg;
    ldr_store_t *store = &r->ssd->node->store;

    (void)segment;
    if (record->kind == LDR_RECORD_SHARD) {
        ldr_node_lock(r->ssd->node);
        uint32_t entry = live_entry(r, record);
        if (entry != LDR_NIL) {
            ldr_store_drop_loc(store, entry, record->shard, true);
            store->n.reclaimed_chunks++;
        }
        ldr_node_unlock(r->ssd->node);
    }
    return true;
}

/* The segment that was filled longest ago and is not being read. A lost one is
 * used again like any other: by then nothing older is left that tombstones in
 * it could cancel. */
static uint32_t oldest_segment(const ldr_ssd_t *ssd)
{
    const ldr_disk_t *d = &ssd->disk;
    uint32_t best = LDR_NIL;

    for (uint32_t i = 0; i < d->segment_count; i++) {
        const ldr_segment_t *s = &d->segments[i];

        if ((s->state == LDR_SEGMENT_CLOSED || s->state == LDR_SEGMENT_LOST) &&
            s->readers == 0 &&
            (best == LDR_NIL || s->sequence < d->segments[best].sequence)) {
            best = i;
        }
    }
    return best;
}

/* Whether records older than the segment's may be in another: one that was
 * passed over because it is being read, or is still to be closed. */
static bool older_exists(const ldr_ssd_t *ssd, uint32_t segment)
{
    const ldr_disk_t *d = &ssd->disk;

    for (uint32_t i = 0; i < d->segment_count; i++) {
        const ldr_segment_t *s = &d->segments[i];

        if ((s->state == LDR_SEGMENT_CLOSED || s->state == LDR_SEGMENT_LOST ||
             s->state == LDR_SEGMENT_OPEN) &&
            s->sequence < d->segments[segment].sequence) {
            return true;
        }
    }
    return false;
}

/* Works out from which class of value on records are carried: as many as fit
 * a quarter of a segment. */
static void choose_class(reclaim_t *r)
{
    uint64_t bytes = 0;

    r->budget = r->ssd->disk.segment_bytes / 4;
    r->class_min = CLASSES;
    while (r->class_min > 1 && bytes < r->budget) {
        r->class_min--;
        bytes += r->class_bytes[r->class_min];
    }
}

/* Drops every location in a segment whose table cannot be read. It looks at
 * the whole index, a part at a time, which damage is rare enough for. */
static void drop_all(reclaim_t *r)
{
    ldr_node_t *node = r->ssd->node;
    ldr_index_t *index = &node->store.index;
    uint32_t at = 0;

    ldr_node_lock(node);
    for (; at < index->entry_top; at++) {
        uint32_t shards = ldr_index_at(index, at)->shards;

        for (uint32_t i = 0; i < shards; i++) {
            ldr_loc_t loc = ldr_index_loc(index, at, i);

            if (loc != 0 && ldr_loc_disk(loc) == r->ssd->disk.number &&
                ldr_loc_segment(loc) == r->segment) {
                ldr_store_drop_loc(&node->store, at, i, true);
                if (ldr_index_at(index, at)->shards == 0) {
                    break; /* that was the last of it */
                }
            }
        }
        if (at % DROP_SLICE == DROP_SLICE - 1) {
            ldr_node_unlock(node);
            ldr_node_lock(node);
        }
    }
    ldr_node_unlock(node);
}

/* Without the lock. */
static int empty_segment(reclaim_t *r)
{
    ldr_ssd_t *ssd = r->ssd;
    ldr_disk_t *d = &ssd->disk;

    if (ldr_disk_rows_load(d, r->segment) != LARDER_OK) {
        /* Lost, or damaged: what is in it cannot be carried. */
        r->stuck = r->carry_tombs;
        if (!r->stuck) {
            drop_all(r);
        }
        return 0;
    }
    ldr_disk_rows(d, weigh, r);
    choose_class(r);
    ldr_disk_rows(d, carry, r);
    if (r->error == 0 && r->carried) {
        const ldr_filling_t *f = &d->filling[ssd->current];

        r->error = ldr_io_sync(d->io, d->segments[f->segment].file);
    }
    if (r->error == 0 && !r->stuck) {
        ldr_disk_rows(d, drop, r);
    }
    return r->error;
}

bool ldr_ssd_reclaim(ldr_ssd_t *ssd)
{
    ldr_node_t *node = ssd->node;
    ldr_disk_t *d = &ssd->disk;
    reclaim_t r = {.ssd = ssd, .segment = oldest_segment(ssd)};
    bool shrink = d->file_count > d->segment_max;

    if (r.segment == LDR_NIL) {
        return false;
    }
    ldr_segment_t *s = &d->segments[r.segment];
    r.carry_tombs = older_exists(ssd, r.segment);
    ldr_node_unlock(node);
    int error = empty_segment(&r);
    ldr_node_lock(node);
    if (error != 0) {
        d->filling[ssd->current].failed = true;
        ssd->write_errors++;
        ldr_ssd_failed(ssd, &ssd->write_failures, "carry", error);
        return true;
    }
    if (r.stuck || s->readers > 0) {
        return false; /* its locations are gone; the next try finishes it */
    }
    s->state = LDR_SEGMENT_FREE;
    if (shrink) {
        return true;
    }
    ldr_node_unlock(node);
    error = ldr_disk_segment_prepare(d, r.segment);
    ldr_node_lock(node);
    if (error != 0) {
        ssd->write_errors++;
        ldr_ssd_failed(ssd, &ssd->write_failures, "reuse a segment", error);
    } else {
        ssd->ready = r.segment;
    }
    return true;
}
