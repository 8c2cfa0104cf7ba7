/*
 * Opening a directory that was in use before: which segments there are, and
 * what they hold.
 *
 * A closed segment is its header and its table: two or three reads. One that
 * was being filled when the node died has no table; it is scanned block by
 * block for descriptors written in its present use, each payload is checked,
 * and the segment is closed with a table of what was found, so that the next
 * open is quick.
 *
 * What a crash can leave, and what becomes of it:
 *   no valid header             never used, or cut while preparing: FREE
 *   header, no valid table      scanned
 *   a descriptor, payload torn  its checksum fails: left out
 *   payload, descriptor torn    not found
 *   an older use's records      another nonce: not found
 *
 * The ledger says which segments there ought to be, in which use. What is in a
 * file that is of another use counts for nothing; and if that file was damaged,
 * or put there, the tombstones that were lost with it are the ledger's.
 */
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/copy.h"
#include "base/mem.h"
#include "store/disk.h"

#define PIECE_BYTES ((size_t)1 << 20) /* read at a time */

/* More than all writes in flight can leave between two whole records: after a
 * gap like this nothing follows. */
#define SCAN_GAP_BLOCKS ((uint32_t)((uint64_t)640 << 20) / LDR_BLOCK)

/* More than any sequence that a header could have that cannot be read. */
#define SEQUENCE_JUMP ((uint64_t)1 << 32)

typedef struct scan {
    ldr_disk_t *disk;
    uint8_t *piece; /* where descriptors are looked for */
    uint8_t *check; /* where payloads are checked */
    ldr_recovery_t *found;
} scan_t;

static larder_status_t unreadable(const ldr_disk_t *d, uint32_t segment,
                                  int error)
{
    return ldr_fail(LARDER_E_IO, "%s: cannot read segment-%06u: %s", d->path,
                    segment, strerror(-error));
}

/* One bad segment spares the rest. */
static larder_status_t segment_lost(ldr_disk_t *d, uint32_t segment, int error)
{
    d->segments[segment].state = LDR_SEGMENT_LOST;
    ldr_warn(d->log, "%s: segment-%06u cannot be read and is left alone: %s",
             d->path, segment, strerror(-error));
    return LARDER_OK;
}

static int read_at(const ldr_disk_t *d, int file, uint64_t offset, void *data,
                   size_t bytes)
{
    int error = ldr_io_read_at(d->io, file, offset, data, bytes);

    ldr_disk_answered(d);
    return error;
}

/* ---- finding the files ---- */

static int note_file(void *arg, const char *name)
{
    ldr_disk_t *d = arg;
    char path[LDR_PATH_MAX];
    uint32_t segment;

    if (!ldr_segment_number(name, &segment) ||
        snprintf(path, sizeof(path), "%s/%s", d->path, name) >=
            (int)sizeof(path)) {
        return 0; /* not ours */
    }
    int file = d->io->ops->open(d->io, path, LDR_IO_DIRECT);
    ldr_disk_answered(d);
    if (file < 0) {
        return file;
    }
    d->segments[segment] =
        (ldr_segment_t){.file = file, .state = LDR_SEGMENT_FREE};
    d->file_count++;
    if (segment >= d->segment_count) {
        d->segment_count = segment + 1;
    }
    return 0;
}

static int count_file(void *arg, const char *name)
{
    uint32_t *count = arg, segment;

    *count += ldr_segment_number(name, &segment);
    return 0;
}

/* Opens them all; none, if the process could have too few files beside them:
 * whoever tries again and again would take the engine's each time. */
static larder_status_t find_files(ldr_disk_t *d)
{
    uint32_t count = 0;
    int error = d->io->ops->list(d->io, d->path, count_file, &count);

    if (error == 0 && d->open_max != 0 && count > d->open_max) {
        return ldr_fail(LARDER_E_IO,
                        "%s: %u segment files, and %u may be open: raise the "
                        "limit (ulimit -n, LimitNOFILE)",
                        d->path, count, d->open_max);
    }
    if (error == 0) {
        error = d->io->ops->list(d->io, d->path, note_file, d);
    }
    return error == 0 ? LARDER_OK
                      : ldr_fail(LARDER_E_IO, "%s: cannot list: %s", d->path,
                                 strerror(-error));
}

/* A segment whose header is not that of this directory and place, or of a use
 * that is over, is FREE. */
static larder_status_t header_load(ldr_disk_t *d, uint32_t segment)
{
    ldr_segment_t *s = &d->segments[segment];
    ldr_segment_header_t header;
    uint64_t size = 0;
    int error = d->io->ops->size(d->io, s->file, &size);

    if (error == 0 && size < LDR_BLOCK) {
        return LARDER_OK; /* cut while it was made */
    }
    if (error == 0) {
        error = read_at(d, s->file, 0, d->block, LDR_BLOCK);
    }
    if (error != 0) {
        return segment_lost(d, segment, error);
    }
    ldr_parse_t parsed = ldr_header_parse(d->block, &header);
    if (parsed == LDR_PARSE_VERSION) {
        return ldr_format_unknown(d->path, segment, d->block);
    }
    if (parsed == LDR_PARSE_EMPTY) {
        return LARDER_OK;
    }
    s->stale = parsed != LDR_PARSE_OK || header.segment != segment ||
               size < d->segment_bytes ||
               header.segment_bytes != d->segment_bytes ||
               memcmp(header.dir_id, d->super->dir_id, LDR_ID_BYTES) != 0;
    if (s->stale) {
        return LARDER_OK;
    }
    s->stale = s->older = ldr_ledger_judge(&d->ledger, segment, header.sequence,
                                           header.nonce) == LDR_VERDICT_STALE;
    if (s->stale) {
        return LARDER_OK;
    }
    s->sequence = header.sequence;
    s->nonce = header.nonce;
    s->state = LDR_SEGMENT_OPEN; /* until its table was seen */
    d->sequence = ldr_max64(d->sequence, header.sequence);
    return LARDER_OK;
}

/* ---- the ledger ---- */

/* Whether others have used the directory since the ledger was written to: an
 * older program, which has none, or it is an older copy of itself. Then what it
 * misses may be gone for good reason. */
static bool ledger_is_behind(const ldr_disk_t *d)
{
    const ldr_ledger_t *l = &d->ledger;
    uint32_t newer = 0;

    for (uint32_t i = 0; i < d->segment_count; i++) {
        const ldr_segment_t *s = &d->segments[i];

        if (s->state == LDR_SEGMENT_OPEN && s->sequence > l->sequence) {
            /* One that is not in the list was being prepared. */
            newer += 1 + (ldr_ledger_use_of(l, i).sequence != 0);
        }
    }
    return newer > 1;
}

static ldr_use_t use_found(const ldr_disk_t *d, uint32_t segment,
                           ldr_use_t known)
{
    const ldr_segment_t *s = &d->segments[segment];

    if (s->state == LDR_SEGMENT_OPEN) {
        return (ldr_use_t){s->sequence, s->nonce,
                           known.closed && known.sequence == s->sequence};
    }
    if (s->state != LDR_SEGMENT_LOST) {
        return (ldr_use_t){0};
    }
    return known.sequence != 0 ? known : LDR_USE_UNKNOWN;
}

/* All headers were seen: the ledger's list becomes what was found, and what it
 * misses is lost. */
static void ledger_compare(ldr_disk_t *d, ldr_recovery_t *found)
{
    ldr_ledger_t *l = &d->ledger;
    bool behind = !l->trusted || ledger_is_behind(d);
    uint32_t slots = (uint32_t)ldr_max64(l->use_slots, d->segment_count);

    for (uint32_t i = 0; i < slots; i++) {
        ldr_use_t known = ldr_ledger_use_of(l, i);
        ldr_use_t use = use_found(d, i, known);

        ldr_ledger_found(l, i, use);
        if (known.sequence == 0 || use.sequence != 0 || behind) {
            continue;
        }
        found->lost++;
        ldr_warn(d->log,
                 "%s: segment-%06u is lost: %s; its shards are, and no removal",
                 d->path, i,
                 d->segments[i].state == LDR_SEGMENT_NONE
                     ? "the file is gone"
                     : (d->segments[i].older
                            ? "the file is an older copy"
                            : "the file is another or damaged"));
    }
    ldr_ledger_listed(l);
}

/* Older programs, and an open without a ledger, would find what is in a use
 * that is over. One that cannot be cleared is not used either. */
static void stale_clear(ldr_disk_t *d)
{
    for (uint32_t i = 0; i < d->segment_count; i++) {
        ldr_segment_t *s = &d->segments[i];

        if (s->stale && ldr_disk_segment_clear(d, i) != 0) {
            s->state = LDR_SEGMENT_LOST;
            s->sequence = 1; /* older than all tombstones */
        }
        s->stale = false;
    }
}

/* All segments were read: what the ledger has of removals holds, whatever they
 * had; and what they had is in the ledger then. */
static larder_status_t ledger_apply(ldr_disk_t *d, bool repair, ldr_row_fn fn,
                                    void *arg)
{
    ldr_ledger_t *l = &d->ledger;

    ldr_ledger_settle(l);
    for (uint32_t i = 0; i < l->row_count; i++) {
        ldr_record_t record = ldr_ledger_tombstone(&l->rows[i]);

        if (!l->rows[i].seen && !fn(arg, LDR_NIL, &record)) {
            break;
        }
    }
    if (!repair) {
        return LARDER_OK;
    }
    stale_clear(d);
    int error = ldr_ledger_whole(l) ? 0 : ldr_ledger_write(l);
    return error == 0
               ? LARDER_OK
               : ldr_fail(LARDER_E_IO, "%s: cannot write larder.ledger: %s",
                          d->path, strerror(-error));
}

/* ---- closed segments ---- */

/* Reads the footer and, if it is valid, the rows, into d->table. *valid_p:
 * whether there is a table; a failed read is an error. */
static int table_load(ldr_disk_t *d, uint32_t segment, ldr_footer_t *footer,
                      bool *valid_p)
{
    ldr_segment_t *s = &d->segments[segment];
    ldr_segment_header_t header = ldr_disk_header(d, segment);
    uint8_t *rows = d->table;
    uint64_t last = (uint64_t)(d->segment_blocks - 1) * LDR_BLOCK;

    *valid_p = false;
    int error = read_at(d, s->file, last, d->block, LDR_BLOCK);
    if (error != 0 || !ldr_footer_parse(d->block, &header, footer)) {
        return error;
    }
    uint32_t blocks = ldr_table_blocks(footer->rows) - 1;
    if (blocks > 0) {
        error = read_at(d, s->file, last - (uint64_t)blocks * LDR_BLOCK, rows,
                        (size_t)blocks * LDR_BLOCK);
    }
    *valid_p = error == 0 &&
               ldr_crc32c(0, rows, (size_t)footer->rows * LDR_ROW_BYTES) ==
                   footer->table_crc;
    return error;
}

static void rows_walk(ldr_disk_t *d, uint32_t segment, const uint8_t *rows,
                      uint32_t count, ldr_row_fn fn, void *arg)
{
    ldr_segment_header_t header = ldr_disk_header(d, segment);
    ldr_record_t record;

    for (uint32_t i = 0; i < count; i++) {
        if (ldr_row_parse(rows + (size_t)i * LDR_ROW_BYTES, &header, &record) &&
            !fn(arg, segment, &record)) {
            return;
        }
    }
}

larder_status_t ldr_disk_rows_load(ldr_disk_t *d, uint32_t segment)
{
    ldr_footer_t footer = {0};
    bool valid;
    int error = table_load(d, segment, &footer, &valid);

    if (error != 0) {
        return unreadable(d, segment, error);
    }
    if (!valid) {
        return ldr_fail(LARDER_E_CORRUPT, "%s: segment-%06u has no valid table",
                        d->path, segment);
    }
    d->table_segment = segment;
    d->table_rows = footer.rows;
    return LARDER_OK;
}

void ldr_disk_rows(ldr_disk_t *d, ldr_row_fn fn, void *arg)
{
    rows_walk(d, d->table_segment, d->table, d->table_rows, fn, arg);
}

/* ---- scanning ---- */

/* Whether the record's payload on disk is the one its descriptor names. */
static int payload_check(scan_t *scan, uint32_t segment,
                         const ldr_record_t *record, bool *good_p)
{
    ldr_disk_t *d = scan->disk;
    uint64_t at = (uint64_t)record->block * LDR_BLOCK;
    uint32_t left = record->length;
    uint32_t crc = 0;

    *good_p = false;
    while (left > 0) {
        size_t take = (size_t)ldr_min64(left, PIECE_BYTES);
        size_t blocks = ldr_div_up(take, LDR_BLOCK);
        int error = read_at(d, d->segments[segment].file, at, scan->check,
                            blocks * LDR_BLOCK);

        if (error != 0) {
            return error;
        }
        crc = ldr_crc32c(crc, scan->check, take);
        at += take;
        left -= (uint32_t)take;
    }
    *good_p = crc == record->payload_crc;
    return 0;
}

/* Looks at one block of the piece; adds what is a whole record to f. */
static int scan_block(scan_t *scan, uint32_t segment, uint32_t block,
                      const uint8_t *bytes, ldr_filling_t *f)
{
    ldr_segment_header_t header = ldr_disk_header(scan->disk, segment);
    ldr_record_t record;
    bool good = true;

    if (!ldr_record_parse(bytes, &header, block, &record)) {
        return 0;
    }
    if (record.block < f->next_block ||
        block >=
            scan->disk->segment_blocks - ldr_table_blocks(f->row_count + 1)) {
        return 0; /* inside a record that was found: payload, not a record */
    }
    if (record.kind == LDR_RECORD_SHARD) {
        int error = payload_check(scan, segment, &record, &good);

        if (error != 0) {
            return error;
        }
    }
    if (good) {
        f->next_block = record.block;
        ldr_filling_add(f, &record);
    } else {
        scan->found->rejected++;
    }
    return 0;
}

static int scan_segment(scan_t *scan, uint32_t segment, ldr_filling_t *f)
{
    ldr_disk_t *d = scan->disk;
    uint32_t piece_blocks = (uint32_t)(PIECE_BYTES / LDR_BLOCK);

    ldr_filling_start(d, f, segment);
    for (uint32_t at = 1;
         at < d->segment_blocks && at - f->next_block < SCAN_GAP_BLOCKS;
         at += piece_blocks) {
        uint32_t count =
            (uint32_t)ldr_min64(piece_blocks, d->segment_blocks - at);
        int error =
            read_at(d, d->segments[segment].file, (uint64_t)at * LDR_BLOCK,
                    scan->piece, (size_t)count * LDR_BLOCK);

        for (uint32_t i = 0; i < count && error == 0; i++) {
            error = scan_block(scan, segment, at + i,
                               scan->piece + (size_t)i * LDR_BLOCK, f);
        }
        if (error != 0) {
            return error;
        }
    }
    d->segments[segment].used_blocks = f->next_block;
    return 0;
}

/* ---- all of it ---- */

typedef struct tally {
    ldr_disk_t *disk;
    ldr_row_fn fn;
    void *arg;
    ldr_recovery_t *found;
} tally_t;

static bool tally_row(void *arg, uint32_t segment, const ldr_record_t *record)
{
    tally_t *t = arg;

    if (record->kind == LDR_RECORD_TOMBSTONE) {
        t->found->tombstones++;
        ldr_ledger_seen(&t->disk->ledger, record,
                        t->disk->segments[segment].sequence);
    } else {
        t->found->records++;
    }
    return t->fn(t->arg, segment, record);
}

/* Closes a segment that was scanned. One whose table cannot be written stays as
 * it is: what was found in it is good, the next open scans it again, and
 * reclaim knows such segments. But what was found must be durable first: a
 * tombstone that was heeded, and then lost, would bring back what it cancels.
 */
static int repair_table(ldr_disk_t *d, ldr_filling_t *f)
{
    uint32_t segment = f->segment;
    int error = ldr_io_sync(d->io, d->segments[segment].file);

    if (error != 0) {
        return error;
    }
    error = ldr_filling_close(d, f);
    if (error != 0) {
        d->segments[segment].state = LDR_SEGMENT_CLOSED;
        ldr_warn(d->log, "%s: segment-%06u is left without a table: %s",
                 d->path, segment, strerror(-error));
    }
    return 0;
}

static larder_status_t segment_recover(scan_t *scan, uint32_t segment,
                                       bool repair, tally_t *tally)
{
    ldr_disk_t *d = scan->disk;
    ldr_segment_t *s = &d->segments[segment];
    ldr_filling_t *f = &d->filling[0];
    ldr_footer_t footer;
    bool valid;
    int error = table_load(d, segment, &footer, &valid);

    if (error == 0 && valid) {
        /* One without records was closed unused: it can be used at once. */
        s->state = footer.rows > 0 ? LDR_SEGMENT_CLOSED : LDR_SEGMENT_FREE;
        s->used_blocks = footer.used_blocks;
        rows_walk(d, segment, d->table, footer.rows, tally_row, tally);
        ldr_ledger_found(&d->ledger, segment,
                         (ldr_use_t){s->sequence, s->nonce, true});
        return LARDER_OK;
    }
    if (error == 0) {
        if (ldr_ledger_use_of(&d->ledger, segment).closed) {
            ldr_warn(d->log,
                     "%s: segment-%06u has lost its table, or is an older "
                     "copy: it is scanned",
                     d->path, segment);
        }
        scan->found->scanned++;
        error = scan_segment(scan, segment, f);
    }
    if (error != 0) {
        f->segment = LDR_NIL;
        return segment_lost(d, segment, error);
    }
    rows_walk(d, segment, f->rows, f->row_count, tally_row, tally);
    s->state = LDR_SEGMENT_CLOSED;
    if (f->row_count == 0) {
        s->state = LDR_SEGMENT_FREE;
        s->stale = true;
        f->segment = LDR_NIL;
        ldr_ledger_found(&d->ledger, segment, (ldr_use_t){0});
    } else if (repair) {
        error = repair_table(d, f);
    }
    f->segment = LDR_NIL;
    return error == 0 ? LARDER_OK
                      : ldr_fail(LARDER_E_IO,
                                 "%s: cannot sync segment-%06u: "
                                 "%s",
                                 d->path, segment, strerror(-error));
}

static larder_status_t go_on(const ldr_disk_t *d)
{
    return ldr_disk_answered(d)
               ? LARDER_OK
               : ldr_fail(LARDER_E_CANCELED, "%s: closed while it was opened",
                          d->path);
}

/* The segment in use with the lowest sequence above `above`, or LDR_NIL. */
static uint32_t next_in_order(const ldr_disk_t *d, uint64_t above)
{
    uint32_t best = LDR_NIL;

    for (uint32_t i = 0; i < d->segment_count; i++) {
        const ldr_segment_t *s = &d->segments[i];

        if (s->state == LDR_SEGMENT_OPEN && s->sequence > above &&
            (best == LDR_NIL || s->sequence < d->segments[best].sequence)) {
            best = i;
        }
    }
    return best;
}

larder_status_t ldr_disk_recover(ldr_disk_t *d, bool repair, ldr_row_fn fn,
                                 void *arg, ldr_recovery_t *found)
{
    scan_t scan = {.disk = d, .found = found};
    tally_t tally = {d, fn, arg, found};
    larder_status_t st = find_files(d);

    memset(found, 0, sizeof(*found));
    if (st != LARDER_OK) {
        return st;
    }
    size_t piece_bytes = (size_t)ldr_min64(PIECE_BYTES, d->segment_bytes);
    scan.piece = ldr_alloc_blocks(piece_bytes);
    scan.check = ldr_alloc_blocks(piece_bytes);
    if (scan.piece == NULL || scan.check == NULL) {
        st = LARDER_E_NO_MEMORY;
    }
    bool blind = false; /* a sequence is not known */
    for (uint32_t i = 0; i < d->segment_count && st == LARDER_OK; i++) {
        if (d->segments[i].state != LDR_SEGMENT_NONE) {
            st = header_load(d, i);
            blind |= d->segments[i].state == LDR_SEGMENT_LOST;
        }
    }
    if (st == LARDER_OK) {
        ledger_compare(d, found);
        st = go_on(d);
    }
    d->sequence = ldr_max64(d->sequence, d->ledger.sequence);
    /* What is written from now on is newer than what it may hold, and it may
     * be newer than all that is known: it is the last to be reclaimed. */
    d->sequence += blind ? SEQUENCE_JUMP : 0;
    for (uint32_t i = 0; i < d->segment_count; i++) {
        if (d->segments[i].state == LDR_SEGMENT_LOST) {
            d->segments[i].sequence = d->unseen = d->sequence;
        }
    }
    uint64_t above = 0;
    uint32_t segment;
    while (st == LARDER_OK && (segment = next_in_order(d, above)) != LDR_NIL) {
        above = d->segments[segment].sequence;
        found->segments++;
        st = segment_recover(&scan, segment, repair, &tally);
        if (d->segments[segment].state == LDR_SEGMENT_LOST) {
            d->unseen = ldr_max64(d->unseen, above);
        }
        st = st == LARDER_OK ? go_on(d) : st;
    }
    if (st == LARDER_OK) {
        st = ledger_apply(d, repair, fn, arg);
    }
    ldr_free(scan.piece);
    ldr_free(scan.check);
    return st;
}
