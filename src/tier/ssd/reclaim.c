/*
 * Reclaim: making room on a disk by using its oldest segment again.
 *
 * What the policy values in it is carried to the segment being filled, at most
 * a quarter of a segment; the rest is dropped. Carried records are durable
 * before the old segment's header is overwritten, so a cut at any point loses
 * nothing that was kept. Tombstones are carried while an older segment could
 * still hold what they cancel.
 *
 * Where several tenants share the disks, what belongs to one within its share
 * is safe: it is carried, whatever it is worth, and the others make room. So
 * that this does not become copying without end, the oldest segment is passed
 * over for one with less in it that is safe; what can be safe is at most three
 * quarters of what the disk holds (ldr_store_protect()), so there is one; and
 * each turn frees at least an eighth of a segment. Every fourth turn takes the
 * oldest in any case, and all that is safe in it with it: so tombstones come
 * to their end.
 *
 * All of it runs in the disk's thread. Locations into the segment are dropped
 * before it is reused, and a segment that is being read is passed over.
 */
#include <string.h>

#include "base/bytes.h"
#include "base/copy.h"
#include "base/iov.h"
#include "base/mem.h"
#include "tier/ssd/ssd.h"

#define CLASSES 33 /* of value: bits in it */
#define OLDEST_EVERY 4u
#define CHOOSE_SLICE 256u /* segments looked at before others get the lock */
#define DROP_SLICE 4096u
/* In hand at a time: at least one record of any size. */
#define CARRY_BYTES (LARDER_VALUE_MAX + 2 * LDR_BLOCK)

typedef struct reclaim {
    ldr_ssd_t *ssd;
    uint32_t segment;
    uint64_t class_bytes[CLASSES]; /* live bytes by class of value */
    int class_min;                 /* carry this class and above */
    uint64_t budget;               /* bytes that may still be carried */
    bool tenants;                  /* there are several */
    bool whole;                    /* all that is safe goes along */
    uint64_t safe_bytes;           /* live bytes that are safe */
    uint64_t safe_budget;          /* of them, that may still be carried */
    bool carry_tombs;
    bool stuck; /* something that must be carried does not fit */
    bool carried;
    int error;      /* of a write */
    unsigned count; /* records in hand */
    size_t bytes;   /* of them */
} reclaim_t;

/* The entry that still leads to this record, or LDR_NIL. With the lock. */
static uint32_t live_entry(reclaim_t *r, const ldr_record_t *record)
{
    ldr_store_t *store = &r->ssd->host->store;
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

/* Reset or expired. With the lock. */
static bool is_stale(const reclaim_t *r, const ldr_entry_t *e)
{
    return e->epoch != r->ssd->host->store.spaces[e->space].epoch ||
           (e->expires_s != 0 &&
            e->expires_s <= ldr_wall_s(r->ssd->host->clock));
}

/* Whether its tenant is within its share. With the lock. */
static bool is_safe(const reclaim_t *r, uint32_t entry)
{
    const ldr_store_t *store = &r->ssd->host->store;
    const ldr_entry_t *e = ldr_index_at(&store->index, entry);
    const ldr_space_t *space = &store->spaces[e->space];

    return r->tenants && space->counted &&
           (store->tenants[space->tenant].ssd_safe >> r->ssd->disk.number &
            1) != 0 &&
           !is_stale(r, e);
}

/* What carrying the record is worth, as a class; 0: nothing. With the lock. */
static int value_class(reclaim_t *r, uint32_t entry, const ldr_record_t *record)
{
    ldr_store_t *store = &r->ssd->host->store;
    const ldr_entry_t *e = ldr_index_at(&store->index, entry);
    uint32_t now_s = ldr_wall_s(r->ssd->host->clock);

    if (is_stale(r, e)) {
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
    uint32_t value = store->policy->keep(&p);
    return value == 0 ? 0 : 32 - __builtin_clz(value);
}

static bool weigh(void *arg, uint32_t segment, const ldr_record_t *record)
{
    reclaim_t *r = arg;

    (void)segment;
    if (record->kind == LDR_RECORD_SHARD) {
        ldr_host_lock(r->ssd->host);
        uint32_t entry = live_entry(r, record);
        if (entry != LDR_NIL) {
            uint64_t *sum =
                is_safe(r, entry)
                    ? &r->safe_bytes
                    : &r->class_bytes[value_class(r, entry, record)];

            *sum += (uint64_t)ldr_record_blocks(record->length) * LDR_BLOCK;
        }
        ldr_host_unlock(r->ssd->host);
    }
    return true;
}

/* ---- carrying ---- */

/* What reclaim has in hand: read together, written together. */
typedef struct ldr_carried {
    ldr_record_t row;    /* as the table has it */
    ldr_record_t record; /* as its descriptor has it */
    ldr_loc_t loc;       /* where it goes; 0: nowhere */
    ldr_io_req_t req;
    struct iovec iov;
} carried_t;

bool ldr_reclaim_create(ldr_ssd_t *ssd)
{
    ssd->carry = ldr_reserve(CARRY_BYTES);
    ssd->rows = ldr_alloc(LDR_CARRY_RECORDS * sizeof(*ssd->rows));
    return ssd->carry != NULL && ssd->rows != NULL;
}

void ldr_reclaim_destroy(ldr_ssd_t *ssd)
{
    ldr_unreserve(ssd->carry, CARRY_BYTES);
    ldr_free(ssd->rows);
}

static size_t record_bytes(const ldr_record_t *record)
{
    return record->kind == LDR_RECORD_TOMBSTONE
               ? LDR_BLOCK
               : (size_t)ldr_record_blocks(record->length) * LDR_BLOCK;
}

/* Reads the records in hand, all at once. */
static void carry_read(reclaim_t *r)
{
    ldr_disk_t *d = &r->ssd->disk;
    ldr_io_req_t *reqs[LDR_CARRY_RECORDS];
    uint8_t *at = r->ssd->carry;

    for (unsigned i = 0; i < r->count; i++) {
        carried_t *c = &r->ssd->rows[i];

        c->iov = (struct iovec){at, record_bytes(&c->row)};
        at += c->iov.iov_len;
        c->req = (ldr_io_req_t){
            .kind = LDR_IO_READ,
            .file = d->segments[r->segment].file,
            .offset = (uint64_t)c->row.block * LDR_BLOCK,
            .iov = &c->iov,
            .iov_count = 1,
        };
        reqs[i] = &c->req;
    }
    ldr_io_run_all(d->io, reqs, r->count);
}

/* Whether what was read is the record, checked as any load would. */
static bool carry_check(reclaim_t *r, carried_t *c, const uint8_t *bytes)
{
    ldr_segment_header_t header = ldr_disk_header(&r->ssd->disk, r->segment);
    uint32_t last = ldr_record_blocks(c->row.length) - 1;

    return c->req.error == 0 &&
           ldr_record_parse(bytes + (size_t)last * LDR_BLOCK, &header,
                            c->row.block + last, &c->record) &&
           memcmp(&c->record.key, &c->row.key, sizeof(c->row.key)) == 0 &&
           c->record.length == c->row.length &&
           ldr_crc32c(0, bytes, c->record.length) == c->record.payload_crc;
}

/* Gives the record a place in the segment being filled, and composes its
 * descriptor behind its payload. Gives the place, or 0: there is no room. */
static ldr_loc_t carry_place(reclaim_t *r, ldr_record_t *record, uint8_t *bytes)
{
    ldr_ssd_t *ssd = r->ssd;
    ldr_filling_t *f = &ssd->disk.filling[ssd->current];
    size_t size = record_bytes(record);
    uint32_t blocks = (uint32_t)(size / LDR_BLOCK);

    ldr_host_lock(ssd->host);
    bool fits = f->segment != LDR_NIL && !f->failed && ssd->on &&
                ldr_filling_fits(&ssd->disk, f, blocks);
    if (fits) {
        ldr_filling_add(f, record);
    }
    ldr_host_unlock(ssd->host);
    if (!fits) {
        return 0;
    }
    ldr_segment_header_t header = ldr_disk_header(&ssd->disk, f->segment);
    ldr_record_compose(record, &header, bytes + size - LDR_BLOCK);
    return ldr_loc(ssd->disk.number, f->segment, record->block, blocks);
}

/* Writes records that got places one behind the other, with one request. */
static bool carry_write(reclaim_t *r, struct iovec *iov, unsigned count,
                        uint32_t block)
{
    ldr_ssd_t *ssd = r->ssd;
    const ldr_filling_t *f = &ssd->disk.filling[ssd->current];
    ldr_io_req_t req = {
        .kind = LDR_IO_WRITE,
        .file = ssd->disk.segments[f->segment].file,
        .offset = (uint64_t)block * LDR_BLOCK,
        .iov = iov,
        .iov_count = count,
    };
    uint64_t bytes = ldr_iov_bytes(iov, count);

    r->error = ldr_io_run(ssd->host->io, &req);
    if (r->error != 0) {
        return false;
    }
    r->carried = true;
    ldr_host_lock(ssd->host);
    ssd->carried_bytes += bytes;
    ldr_budget_spend(&ssd->budget, (double)bytes);
    ldr_host_unlock(ssd->host);
    return true;
}

/* Enters the new places of the records in hand. */
static void carry_enter(reclaim_t *r)
{
    ldr_store_t *store = &r->ssd->host->store;

    ldr_host_lock(r->ssd->host);
    for (unsigned i = 0; i < r->count; i++) {
        const carried_t *c = &r->ssd->rows[i];
        /* It may have been removed meanwhile. */
        uint32_t entry = c->loc != 0 ? live_entry(r, &c->row) : LDR_NIL;

        if (entry != LDR_NIL) {
            ldr_store_set_loc(store, entry, c->row.shard, c->loc);
        }
    }
    ldr_host_unlock(r->ssd->host);
}

/* Carries the records in hand: they have places one behind the other, since
 * nobody else gives any out. */
static void carry_all(reclaim_t *r)
{
    struct iovec iov[LDR_CARRY_RECORDS];
    uint8_t *at = r->ssd->carry;
    uint32_t first = 0;
    unsigned n = 0;

    if (r->count == 0) {
        return;
    }
    carry_read(r);
    for (unsigned i = 0; i < r->count; i++) {
        carried_t *c = &r->ssd->rows[i];
        size_t bytes = record_bytes(&c->row);

        c->loc = carry_check(r, c, at) ? carry_place(r, &c->record, at) : 0;
        if (c->loc != 0) {
            first = n == 0 ? c->record.block : first;
            iov[n++] = (struct iovec){at, bytes};
        }
        at += bytes;
    }
    if (n > 0 && carry_write(r, iov, n, first)) {
        carry_enter(r);
    }
    r->count = 0;
    r->bytes = 0;
}

/* Takes a shard that is worth it in hand. */
static void carry_shard(reclaim_t *r, const ldr_record_t *row)
{
    size_t bytes = record_bytes(row);

    ldr_host_lock(r->ssd->host);
    uint32_t entry = live_entry(r, row);
    bool safe = entry != LDR_NIL && is_safe(r, entry);
    bool wanted = entry != LDR_NIL &&
                  (safe || value_class(r, entry, row) >= r->class_min);
    ldr_host_unlock(r->ssd->host);
    uint64_t *budget = safe ? &r->safe_budget : &r->budget;
    if (!wanted || bytes > *budget) {
        return;
    }
    if (r->count == LDR_CARRY_RECORDS || r->bytes + bytes > CARRY_BYTES) {
        carry_all(r);
    }
    r->ssd->rows[r->count++].row = *row;
    r->bytes += bytes;
    *budget -= bytes;
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
    /* A block of the descriptor alone; what is in hand is on disk by then. */
    struct iovec iov = {r->ssd->carry, LDR_BLOCK};
    carry_all(r);
    return r->error == 0 && carry_place(r, &record, r->ssd->carry) != 0 &&
           carry_write(r, &iov, 1, record.block);
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

static bool record_drop(void *arg, uint32_t segment, const ldr_record_t *record)
{
    reclaim_t *r = arg;
    ldr_store_t *store = &r->ssd->host->store;

    (void)segment;
    if (record->kind == LDR_RECORD_SHARD) {
        ldr_host_lock(r->ssd->host);
        uint32_t entry = live_entry(r, record);
        if (entry != LDR_NIL) {
            LDR_COUNT(store, ldr_index_at(&store->index, entry)->space,
                      reclaimed_chunks, 1);
            ldr_store_drop_loc(store, entry, record->shard, true);
        }
        ldr_host_unlock(r->ssd->host);
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

/* What a disk can keep for tenants within their shares. With the lock. */
static uint64_t keepable(const ldr_ssd_t *ssd)
{
    uint64_t segments = ssd->opened ? ssd->disk.segment_max : 0;

    if (ssd->files_limit != 0) {
        segments = ldr_min64(segments, ssd->files_limit);
    }
    /* One is being filled, one closed, one prepared; and three quarters of the
     * rest, so that there is something to drop. */
    return segments > 3 ? (segments - 3) * ssd->disk.segment_bytes / 4 * 3 : 0;
}

bool ldr_ssd_shared(ldr_ssd_t *ssd)
{
    const ldr_ssds_t *t = ssd->tier;
    uint64_t all = 0;

    for (unsigned i = 0; i < t->count; i++) {
        all += keepable(&t->disks[i]);
    }
    return ldr_store_protect(&ssd->host->store, ssd->disk.number, keepable(ssd),
                             all);
}

/* Blocks of a segment that are safe. With the lock. */
static uint64_t safe_blocks(const ldr_ssd_t *ssd, uint32_t segment)
{
    const ldr_store_t *store = &ssd->host->store;
    size_t at = ldr_store_segment(ssd->disk.number, segment);
    uint64_t blocks = 0;

    for (uint32_t i = 0; i < store->tenant_count; i++) {
        if ((store->tenants[i].ssd_safe >> ssd->disk.number & 1) != 0) {
            blocks += store->tenants[i].ssd_blocks[at];
        }
    }
    return blocks;
}

/* The segment with the least in it that is safe, and the oldest of those where
 * it is no more than so many blocks; LDR_NIL: none. With the lock, which it
 * drops now and then. */
static uint32_t cheapest_segment(ldr_ssd_t *ssd, uint64_t little)
{
    const ldr_disk_t *d = &ssd->disk;
    uint64_t least = UINT64_MAX;
    uint32_t best = LDR_NIL;

    for (uint32_t i = 0; i < d->segment_count; i++) {
        const ldr_segment_t *s = &d->segments[i];

        if (s->state == LDR_SEGMENT_CLOSED && s->readers == 0 && !s->blind) {
            uint64_t safe = ldr_max64(safe_blocks(ssd, i), little);

            if (safe < least ||
                (safe == least && s->sequence < d->segments[best].sequence)) {
                least = safe;
                best = i;
            }
        }
        if (i % CHOOSE_SLICE == CHOOSE_SLICE - 1) {
            ldr_host_unlock(ssd->host);
            ldr_host_lock(ssd->host);
        }
    }
    return best;
}

/* With the lock, which it may drop. */
static uint32_t choose_segment(reclaim_t *r)
{
    ldr_ssd_t *ssd = r->ssd;
    uint32_t oldest = oldest_segment(ssd);

    r->tenants = ldr_ssd_shared(ssd);
    if (!r->tenants || oldest == LDR_NIL || ssd->reclaim_stuck ||
        ssd->disk.segments[oldest].state != LDR_SEGMENT_CLOSED) {
        return oldest;
    }
    /* After an open there may be nothing to carry to. */
    const ldr_filling_t *f = &ssd->disk.filling[ssd->current];
    bool carries = f->segment != LDR_NIL && !f->failed;
    if (carries && ssd->reclaims++ % OLDEST_EVERY == OLDEST_EVERY - 1) {
        r->whole = true;
        return oldest;
    }
    uint32_t cheapest =
        cheapest_segment(ssd, carries ? ssd->disk.segment_blocks / 4 : 0);
    return cheapest != LDR_NIL ? cheapest : oldest_segment(ssd);
}

/* Whether records older than the segment's may be in another: one that was
 * passed over, because it is being read or for what is safe in it, or one that
 * is still to be closed. */
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
    const ldr_disk_t *d = &r->ssd->disk;
    uint64_t bytes = 0;

    /* Carried past tombstones that could not be read, what they cancel would
     * be back for good. */
    if (d->segments[r->segment].sequence >= d->unseen) {
        uint64_t quarter = d->segment_bytes / 4;

        r->budget = quarter > r->safe_bytes ? quarter - r->safe_bytes : 0;
        r->safe_budget = r->whole ? d->segment_bytes : d->segment_bytes / 8 * 7;
    }
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
    ldr_host_t *host = r->ssd->host;
    ldr_index_t *index = &host->store.index;
    uint32_t at = 0;

    ldr_host_lock(host);
    for (; at < index->entry_top; at++) {
        uint32_t shards = ldr_index_at(index, at)->shards;

        for (uint32_t i = 0; i < shards; i++) {
            ldr_loc_t loc = ldr_index_loc(index, at, i);

            if (loc != 0 && ldr_loc_disk(loc) == r->ssd->disk.number &&
                ldr_loc_segment(loc) == r->segment) {
                ldr_store_drop_loc(&host->store, at, i, true);
                if (ldr_index_at(index, at)->shards == 0) {
                    break; /* that was the last of it */
                }
            }
        }
        if (at % DROP_SLICE == DROP_SLICE - 1) {
            ldr_host_unlock(host);
            ldr_host_lock(host);
        }
    }
    ldr_host_unlock(host);
}

/* Without the lock. */
static int empty_segment(reclaim_t *r)
{
    ldr_ssd_t *ssd = r->ssd;
    ldr_disk_t *d = &ssd->disk;

    if (ldr_disk_rows_load(d, r->segment) != LARDER_OK) {
        /* Lost, or damaged: what is in it cannot be carried. */
        r->stuck = r->carry_tombs;
        d->segments[r->segment].blind = true; /* until it is the oldest */
        if (!r->stuck) {
            drop_all(r);
        }
        return 0;
    }
    ldr_disk_rows(d, weigh, r);
    choose_class(r);
    ldr_disk_rows(d, carry, r);
    if (r->error == 0 && !r->stuck) {
        carry_all(r);
    }
    if (r->error == 0 && r->carried) {
        const ldr_filling_t *f = &d->filling[ssd->current];

        r->error = ldr_io_sync(d->io, d->segments[f->segment].file);
    }
    if (r->error == 0 && !r->stuck) {
        ldr_disk_rows(d, record_drop, r);
    }
    return r->error;
}

/* Carries or drops what is in the segment: FREE, or an answer for whoever asked
 * for it. With the lock, which it drops. */
typedef enum outcome { EMPTIED, FAILED, STUCK, READ } outcome_t;

static outcome_t reclaim_segment(reclaim_t *r)
{
    ldr_ssd_t *ssd = r->ssd;
    ldr_segment_t *s = &ssd->disk.segments[r->segment];

    ldr_host_unlock(ssd->host);
    int error = empty_segment(r);
    ldr_host_lock(ssd->host);
    if (error != 0) {
        ssd->disk.filling[ssd->current].failed = true;
        ssd->write_errors++;
        ldr_ssd_failed(ssd, &ssd->write_failures, "carry", error);
        return FAILED;
    }
    if (r->stuck) {
        return STUCK;
    }
    ssd->reclaim_stuck = false;
    if (s->readers > 0) {
        return READ; /* its locations are gone; the next try finishes it */
    }
    s->state = LDR_SEGMENT_FREE;
    s->blind = false;
    return EMPTIED;
}

bool ldr_ssd_reclaim(ldr_ssd_t *ssd)
{
    ldr_host_t *host = ssd->host;
    ldr_disk_t *d = &ssd->disk;
    reclaim_t r = {.ssd = ssd};
    bool shrink = d->file_count > d->segment_max;

    r.segment = choose_segment(&r);
    if (r.segment == LDR_NIL) {
        return false;
    }
    r.carry_tombs = older_exists(ssd, r.segment);
    outcome_t outcome = reclaim_segment(&r);
    if (outcome == STUCK) {
        /* There was no room for its tombstones: the oldest needs none. If it
         * is that one, something older is still to be read or closed. */
        ssd->reclaim_stuck = r.segment != oldest_segment(ssd);
        return ssd->reclaim_stuck;
    }
    if (outcome != EMPTIED || shrink) {
        return outcome != READ;
    }
    ldr_host_unlock(host);
    int error = ldr_disk_segment_prepare(d, r.segment);
    ldr_host_lock(host);
    if (error != 0) {
        ldr_ssd_unready(ssd, r.segment, error);
    } else {
        ssd->ready = r.segment;
    }
    return true;
}

bool ldr_ssd_relieve(ldr_ssd_t *ssd)
{
    ldr_disk_t *d = &ssd->disk;
    /* Nothing older is left that its tombstones could cancel. */
    reclaim_t r = {.ssd = ssd, .segment = ldr_ledger_oldest(&d->ledger)};

    if (r.segment == LDR_NIL) {
        return false;
    }
    ldr_segment_t *s = &d->segments[r.segment];
    bool filled =
        s->state == LDR_SEGMENT_CLOSED || s->state == LDR_SEGMENT_LOST;
    if (s->readers > 0 || (!filled && s->state != LDR_SEGMENT_FREE)) {
        return false;
    }
    outcome_t outcome = filled ? reclaim_segment(&r) : EMPTIED;
    if (outcome != EMPTIED) {
        return outcome != READ;
    }
    ldr_host_unlock(ssd->host);
    /* Before any tombstone goes that cancels what is in it. */
    int error = ldr_ledger_free(&d->ledger, r.segment);
    if (error == 0) {
        error = ldr_disk_segment_clear(d, r.segment);
    }
    ldr_host_lock(ssd->host);
    if (error != 0) {
        s->state = LDR_SEGMENT_LOST;
        ssd->write_errors++;
        ldr_ssd_failed(ssd, &ssd->write_failures, "give up a segment", error);
    }
    return true;
}
