/*
 * The ledger: its rows in memory, and writing them. Reading is in
 * ledger_load.c; the invariants are in ledger.h. One thread: the disk's.
 *
 * In memory: rows[0..sorted) are in order and differ, rows[0..written) are in
 * the file that is current; uses[] has one row for each segment, and use_count
 * of them are in use. A rewrite goes to the file that is not current and is
 * synced before that one becomes current.
 */
#include "store/ledger.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "store/index.h"
#include "store/ledger_int.h"

/* A share of the directory: one removal for every 16 KiB of a small one. */
#define DIR_SHARE 160u

uint64_t ldr_ledger_bytes(uint64_t dir_bytes)
{
    uint64_t bytes = dir_bytes / DIR_SHARE / LDR_BLOCK * LDR_BLOCK;

    return ldr_min64(ldr_max64(bytes, LDR_LEDGER_BYTES_MIN),
                     LDR_LEDGER_BYTES_MAX);
}

/* ---- in memory ---- */

void ldr_ledger_set_use(ldr_ledger_t *l, uint32_t segment, ldr_use_t use)
{
    ldr_use_t *u = &l->uses[segment];

    l->use_count += (use.sequence != 0) - (u->sequence != 0);
    *u = use;
    l->use_slots = (uint32_t)ldr_max64(l->use_slots, (uint64_t)segment + 1);
    l->sequence = ldr_max64(l->sequence, use.sequence);
}

uint32_t ldr_ledger_oldest(const ldr_ledger_t *l)
{
    uint32_t oldest = LDR_NIL;

    for (uint32_t i = 0; i < l->use_slots; i++) {
        if (l->uses[i].sequence != 0 &&
            (oldest == LDR_NIL ||
             l->uses[i].sequence < l->uses[oldest].sequence)) {
            oldest = i;
        }
    }
    return oldest;
}

/* The lowest sequence in use; UINT64_MAX: none. */
static uint64_t oldest_use(const ldr_ledger_t *l)
{
    uint32_t oldest = ldr_ledger_oldest(l);

    return oldest == LDR_NIL ? UINT64_MAX : l->uses[oldest].sequence;
}

/* Drops what no segment needs any more: nothing is left that it removed. */
static void prune(ldr_ledger_t *l)
{
    uint64_t oldest = oldest_use(l);
    uint32_t kept = 0, sorted = 0, written = 0;

    for (uint32_t i = 0; i < l->row_count; i++) {
        if (l->rows[i].entry.sequence < oldest) {
            continue;
        }
        sorted += i < l->sorted;
        written += i < l->written;
        l->rows[kept++] = l->rows[i];
    }
    l->row_count = kept;
    l->sorted = sorted;
    l->written = written;
    l->lone_at = 0;
}

static int by_place(const ldr_ledger_entry_t *a, const ldr_ledger_entry_t *b)
{
    int order = (a->sequence > b->sequence) - (a->sequence < b->sequence);

    if (order == 0) {
        order = (a->block > b->block) - (a->block < b->block);
    }
    if (order == 0) {
        order = memcmp(a->key.hash, b->key.hash, LARDER_KEY_BYTES);
    }
    return order;
}

static int compare_rows(const void *left, const void *right)
{
    const ldr_removal_t *a = left, *b = right;

    return by_place(&a->entry, &b->entry);
}

void ldr_ledger_sort(ldr_ledger_t *l)
{
    uint32_t kept = 0;

    if (l->row_count > 0) {
        qsort(l->rows, l->row_count, sizeof(*l->rows), compare_rows);
    }
    for (uint32_t i = 0; i < l->row_count; i++) {
        if (kept > 0 && compare_rows(&l->rows[kept - 1], &l->rows[i]) == 0) {
            l->rows[kept - 1].seen |= l->rows[i].seen;
        } else {
            l->rows[kept++] = l->rows[i];
        }
    }
    l->row_count = l->sorted = kept;
}

bool ldr_ledger_add_row(ldr_ledger_t *l, const ldr_ledger_entry_t *entry,
                        bool seen)
{
    if (l->row_count == LDR_LEDGER_ROWS_MAX) {
        return false;
    }
    l->rows[l->row_count++] = (ldr_removal_t){*entry, seen};
    return true;
}

/* ---- writing all of it ---- */

typedef struct writer {
    ldr_ledger_t *l;
    int file;
    ldr_ledger_header_t header;
    ldr_ledger_block_t block; /* that is being filled */
    uint32_t in_piece;        /* blocks that wait in the piece */
    int error;
} writer_t;

static void piece_write(writer_t *w)
{
    uint64_t at = (uint64_t)(w->block.number - w->in_piece) * LDR_BLOCK;

    if (w->in_piece > 0 && w->error == 0) {
        w->error = ldr_io_write_at(w->l->io, w->file, at, w->l->piece,
                                   (size_t)w->in_piece * LDR_BLOCK);
    }
    w->in_piece = 0;
}

static void block_end(writer_t *w)
{
    if (w->block.count == 0) {
        return;
    }
    ldr_entries_compose(&w->block, &w->header,
                        w->l->piece + (size_t)w->in_piece++ * LDR_BLOCK);
    w->block.number++;
    w->block.unsynced++;
    w->block.count = 0;
    if (w->in_piece == LDR_LEDGER_PIECE) {
        piece_write(w);
    }
}

static void entry_add(writer_t *w, const ldr_ledger_entry_t *entry)
{
    w->block.entries[w->block.count++] = *entry;
    if (w->block.count == LDR_LEDGER_ENTRIES) {
        block_end(w);
    }
}

static void rows_add(writer_t *w, uint32_t from)
{
    for (uint32_t i = from; i < w->l->row_count; i++) {
        entry_add(w, &w->l->rows[i].entry);
    }
    block_end(w);
    piece_write(w);
}

static uint32_t blocks_for(uint64_t entries)
{
    return (uint32_t)ldr_div_up(entries, LDR_LEDGER_ENTRIES);
}

/* Both files are there, with the size that they should have, or more where
 * what is known needs it. */
static int files_make(ldr_ledger_t *l, int target, uint32_t *blocks_p)
{
    uint32_t need = blocks_for((uint64_t)l->row_count + l->use_count) + 2;
    uint64_t size = 0;
    bool made = false;
    int error = 0;

    *blocks_p = (uint32_t)ldr_max64(l->want, need);
    for (int i = 0; i < LDR_LEDGERS && error == 0; i++) {
        bool is_new = l->files[i] < 0;

        if (is_new) {
            error = ldr_ledger_file_open(l, i, LDR_IO_CREATE);
            l->files[i] = error < 0 ? -1 : error;
            error = error < 0 ? error : 0;
            made = made || error == 0;
        }
        if (error == 0 && (is_new || i == target)) {
            error = l->io->ops->allocate(l->io, l->files[i],
                                         (uint64_t)*blocks_p * LDR_BLOCK);
        }
    }
    /* A disk that is full: what the file has may do. */
    if (error == -ENOSPC && l->files[target] >= 0 &&
        l->io->ops->size(l->io, l->files[target], &size) == 0 &&
        size / LDR_BLOCK >= need) {
        *blocks_p = (uint32_t)ldr_min64(size / LDR_BLOCK, *blocks_p);
        error = 0;
    }
    if (error == 0 && made) {
        error = l->io->ops->sync_dir(l->io, l->path);
    }
    return error;
}

static ldr_ledger_entry_t entry_of_use(const ldr_ledger_t *l, uint32_t segment)
{
    const ldr_use_t *use = &l->uses[segment];

    return (ldr_ledger_entry_t){
        .kind = use->closed ? LDR_LEDGER_CLOSED : LDR_LEDGER_USED,
        .segment = segment,
        .sequence = use->sequence,
        .nonce = use->nonce,
    };
}

static void all_add(writer_t *w)
{
    const ldr_ledger_t *l = w->l;

    for (uint32_t i = 0; i < l->use_slots; i++) {
        if (l->uses[i].sequence != 0) {
            ldr_ledger_entry_t entry = entry_of_use(l, i);

            entry_add(w, &entry);
        }
    }
    rows_add(w, 0);
}

/* To the file that is not active, which is so then. */
static int write_other(ldr_ledger_t *l)
{
    int target = l->active < 0 ? 0 : 1 - l->active;
    writer_t w = {.l = l, .header = l->header, .block.number = 1};

    l->states[target] = LDR_LEDGER_BAD;
    w.header.generation++;
    w.header.nonce = ldr_rand_next(l->rand);
    w.header.sequence = l->sequence;
    w.error = files_make(l, target, &w.header.blocks);
    w.file = l->files[target];
    if (w.error == 0) {
        all_add(&w);
    }
    if (w.error == 0) {
        w.error = ldr_io_sync(l->io, w.file);
    }
    /* From here on this one counts. */
    w.header.first = w.block.number - 1;
    if (w.error == 0) {
        ldr_ledger_compose(&w.header, l->piece);
        w.error = ldr_io_write_at(l->io, w.file, 0, l->piece, LDR_BLOCK);
    }
    if (w.error == 0) {
        w.error = ldr_io_sync(l->io, w.file);
    }
    l->stale = w.error != 0;
    if (w.error == 0) {
        l->header = w.header;
        l->active = target;
        l->states[target] = LDR_LEDGER_GOOD;
        l->next = w.block.number;
        l->unsynced = 0;
        l->written = l->row_count;
        l->trusted = true;
    }
    return w.error;
}

int ldr_ledger_write(ldr_ledger_t *l)
{
    prune(l);
    int error = write_other(l);

    /* A file that was damaged, or is new, is written as well: if the one that
     * counts is lost, there is another. */
    if (error == 0 && l->states[1 - l->active] != LDR_LEDGER_GOOD) {
        write_other(l);
        l->stale = false; /* the first one holds */
    }
    return error;
}

bool ldr_ledger_whole(const ldr_ledger_t *l)
{
    return !l->stale && l->written == l->row_count;
}

/* ---- adding to it ---- */

/* Where the active file goes on, for so many entries. */
static writer_t append_begin(ldr_ledger_t *l, uint32_t entries)
{
    writer_t w = {
        .l = l,
        .header = l->header,
        .block = {.number = l->next, .unsynced = l->unsynced},
    };

    if (l->stale || l->next + blocks_for(entries) > l->header.blocks) {
        w.error = -ENOSPC;
    } else {
        w.file = l->files[l->active];
    }
    return w;
}

/* One entry, which is in memory already; not synced. */
static int append(ldr_ledger_t *l, const ldr_ledger_entry_t *entry)
{
    writer_t w = append_begin(l, 1);

    if (w.error == 0) {
        entry_add(&w, entry);
        block_end(&w);
        piece_write(&w);
    }
    if (w.error == 0) {
        l->next++;
        l->unsynced++;
    }
    return w.error;
}

/* The same, synced; else all of it, to the other file. */
static int append_synced(ldr_ledger_t *l, const ldr_ledger_entry_t *entry)
{
    int error = append(l, entry);

    if (error == 0) {
        error = ldr_io_sync(l->io, l->files[l->active]);
    }
    if (error != 0) {
        return ldr_ledger_write(l);
    }
    l->unsynced = 0;
    return 0;
}

int ldr_ledger_use(ldr_ledger_t *l, uint32_t segment, ldr_use_t use)
{
    ldr_ledger_set_use(l, segment, use);
    ldr_ledger_entry_t entry = entry_of_use(l, segment);
    int error = append_synced(l, &entry);
    if (error != 0) {
        ldr_ledger_set_use(l, segment, (ldr_use_t){0});
    }
    return error;
}

void ldr_ledger_closed(ldr_ledger_t *l, uint32_t segment)
{
    l->uses[segment].closed = l->uses[segment].sequence != 0;
    if (l->uses[segment].closed) {
        ldr_ledger_entry_t entry = entry_of_use(l, segment);

        l->stale |= append(l, &entry) != 0;
    }
}

int ldr_ledger_free(ldr_ledger_t *l, uint32_t segment)
{
    ldr_ledger_entry_t entry = {.kind = LDR_LEDGER_FREE, .segment = segment};
    ldr_use_t before = l->uses[segment];

    if (before.sequence == 0) {
        return 0;
    }
    ldr_ledger_set_use(l, segment, (ldr_use_t){0});
    int error = append_synced(l, &entry);
    if (error != 0) {
        ldr_ledger_set_use(l, segment, before);
    }
    return error;
}

/* ---- segments, while a directory is opened ---- */

ldr_use_t ldr_ledger_use_of(const ldr_ledger_t *l, uint32_t segment)
{
    return l->uses[segment];
}

ldr_verdict_t ldr_ledger_judge(const ldr_ledger_t *l, uint32_t segment,
                               uint64_t sequence, uint64_t nonce)
{
    const ldr_use_t *use = &l->uses[segment];

    if (use->sequence == sequence && use->nonce == nonce) {
        return LDR_VERDICT_SAME;
    }
    if (use->sequence == LDR_USE_UNKNOWN.sequence &&
        use->nonce == LDR_USE_UNKNOWN.nonce) {
        return LDR_VERDICT_NEWER;
    }
    return l->trusted && sequence <= l->sequence ? LDR_VERDICT_STALE
                                                 : LDR_VERDICT_NEWER;
}

void ldr_ledger_listed(ldr_ledger_t *l)
{
    l->floor = oldest_use(l);
}

void ldr_ledger_found(ldr_ledger_t *l, uint32_t segment, ldr_use_t use)
{
    const ldr_use_t *known = &l->uses[segment];

    if (known->sequence != use.sequence || known->nonce != use.nonce ||
        known->closed != use.closed) {
        ldr_ledger_set_use(l, segment, use);
        l->stale = true;
    }
}

/* ---- removals ---- */

static ldr_ledger_entry_t entry_of(const ldr_record_t *tombstone,
                                   uint64_t sequence)
{
    ldr_ledger_entry_t entry = {
        .kind = LDR_LEDGER_REMOVED,
        .sequence = sequence,
        .block = tombstone->block,
        .epoch = tombstone->epoch,
        .group = tombstone->group,
        .shard = tombstone->shard,
        .key = tombstone->key,
    };
    uint64_t first = ldr_get64(tombstone->parent.hash);

    memcpy(entry.space_id, tombstone->space_id, LDR_ID_BYTES);
    if (first != 0) { /* it was carried */
        entry.sequence = first;
        entry.block = ldr_get32(tombstone->parent.hash + 8);
    }
    return entry;
}

ldr_record_t ldr_ledger_tombstone(const ldr_removal_t *removal)
{
    const ldr_ledger_entry_t *e = &removal->entry;
    ldr_record_t record = {
        .kind = LDR_RECORD_TOMBSTONE,
        .key = e->key,
        .epoch = e->epoch,
        .group = e->group,
        .shard = e->shard,
        .shards = LARDER_SHARDS_MAX,
    };

    memcpy(record.space_id, e->space_id, LDR_ID_BYTES);
    ldr_put64(record.parent.hash, e->sequence);
    ldr_put32(record.parent.hash + 8, e->block);
    return record;
}

/* Half of a file is for what there is, so that it does not have to be
 * rewritten for every few removals. */
static bool is_full(const ldr_ledger_t *l)
{
    uint64_t entries = (uint64_t)l->row_count + l->use_count;

    return l->row_count == LDR_LEDGER_ROWS_MAX ||
           blocks_for(entries + 1) > (l->want - 1) / 2;
}

bool ldr_ledger_full(ldr_ledger_t *l)
{
    if (is_full(l)) {
        prune(l);
    }
    return is_full(l);
}

void ldr_ledger_removed(ldr_ledger_t *l, const ldr_record_t *tombstone,
                        uint64_t sequence)
{
    ldr_ledger_entry_t entry = entry_of(tombstone, sequence);

    ldr_ledger_add_row(l, &entry, true);
}

int ldr_ledger_sync(ldr_ledger_t *l, int file, int *file_error_p)
{
    ldr_io_req_t requests[2] = {{.kind = LDR_IO_SYNC, .file = file},
                                {.kind = LDR_IO_SYNC}};
    ldr_io_req_t *reqs[2];
    unsigned count = 0;
    int error = 0;

    if (file >= 0) {
        reqs[count++] = &requests[0];
    }
    if (l->written < l->row_count) {
        writer_t w = append_begin(l, l->row_count - l->written);

        if (w.error == 0) {
            rows_add(&w, l->written);
            l->next = w.block.number;
            l->unsynced = w.block.unsynced;
        }
        if (w.error == 0) {
            requests[1].file = w.file;
            reqs[count++] = &requests[1];
        }
        error = w.error;
    }
    if (count > 0) {
        ldr_io_run_all(l->io, reqs, count);
    }
    *file_error_p = requests[0].error;
    if (error != 0 || requests[1].error != 0) {
        return ldr_ledger_write(l);
    }
    if (l->written < l->row_count) {
        l->unsynced = 0;
    }
    l->written = l->row_count;
    return 0;
}

/* ---- removals, while a directory is opened ---- */

void ldr_ledger_seen(ldr_ledger_t *l, const ldr_record_t *tombstone,
                     uint64_t sequence)
{
    ldr_removal_t key = {.entry = entry_of(tombstone, sequence)};
    ldr_removal_t *known =
        l->sorted == 0
            ? NULL
            : bsearch(&key, l->rows, l->sorted, sizeof(*l->rows), compare_rows);

    if (known != NULL) {
        known->seen = true;
    } else if (key.entry.sequence >= l->floor &&
               ldr_ledger_add_row(l, &key.entry, true)) {
        l->stale = true;
    }
}

void ldr_ledger_settle(ldr_ledger_t *l)
{
    prune(l);
    ldr_ledger_sort(l);
    l->written = l->stale ? 0 : l->row_count;
}

bool ldr_ledger_lone(ldr_ledger_t *l, ldr_record_t *tombstone)
{
    while (l->lone_at < l->row_count) {
        ldr_removal_t *row = &l->rows[l->lone_at++];

        if (!row->seen) {
            row->seen = true;
            *tombstone = ldr_ledger_tombstone(row);
            return true;
        }
    }
    return false;
}
