/*
 * The order of a check: lock, superblock, ledger, all headers, then segment by
 * segment; the ledger is written last. Until all headers were seen nothing is
 * written, since any of them may turn out to be of an unknown version.
 *
 * What repair may do is bounded by what an open would believe afterwards. It
 * never writes a header of a segment in use: the records of a segment without
 * one cannot be told from those of an earlier use, some of which may have been
 * removed since. And a tombstone is kept as long as its row is good, since
 * without it what was removed would come back.
 */
#include "store/fsck_int.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/options.h"

const ldr_fsck_kind_info_t ldr_fsck_kinds[LDR_FSCK_KINDS] = {
#define X(name, word, damage, text, repair) {word, text, repair, damage},
    LDR_FSCK_MAP(X)
#undef X
};

static bool path_of(const ldr_fsck_t *f, const char *name, char *path)
{
    int n = snprintf(path, LDR_PATH_MAX, "%s/%s", f->path, name);

    return n > 0 && n < (int)LDR_PATH_MAX;
}

static int file_open(ldr_fsck_t *f, const char *name, int flags)
{
    char path[LDR_PATH_MAX];

    if (!path_of(f, name, path)) {
        return -ENAMETOOLONG;
    }
    return f->io->ops->open(f->io, path, flags);
}

int ldr_fsck_segment_open(ldr_fsck_t *f, uint32_t segment)
{
    char name[LDR_SEGMENT_NAME_BYTES];

    ldr_segment_name(segment, name);
    return file_open(f, name,
                     LDR_IO_DIRECT | (f->repair ? 0 : LDR_IO_READONLY));
}

static larder_status_t io_failed(const ldr_fsck_t *f, const char *what,
                                 int error)
{
    return ldr_fail(LARDER_E_IO, "%s: cannot %s: %s", f->path, what,
                    strerror(-error));
}

void ldr_fsck_found(ldr_fsck_t *f, ldr_fsck_kind_t kind, uint32_t block,
                    const ldr_record_t *record, int error)
{
    ldr_fsck_finding_t finding = {kind, f->segment, block, record, error};

    if (!ldr_fsck_kinds[kind].damage) {
        f->report->notes++;
    } else {
        f->report->damage++;
        if (f->segment != LDR_NIL) {
            f->segments[f->segment].damage++;
        }
    }
    if (f->ops->found != NULL) {
        f->ops->found(f->ops->arg, &finding);
    }
}

void ldr_fsck_progress(ldr_fsck_t *f, uint32_t block)
{
    if (f->ops->progress != NULL) {
        f->ops->progress(f->ops->arg,
                         f->done_bytes + (uint64_t)block * LDR_BLOCK,
                         f->file_count * f->super->segment_bytes);
    }
}

bool ldr_fsck_mend(ldr_fsck_t *f, uint32_t block, const void *bytes,
                   size_t size)
{
    int error = ldr_io_write_at(f->io, f->file, (uint64_t)block * LDR_BLOCK,
                                bytes, size);

    if (error == 0) {
        error = ldr_io_sync(f->io, f->file);
    }
    if (error != 0) {
        f->failed = true;
        if (f->segment == LDR_NIL) {
            block /= LDR_SUPER_BYTES / LDR_BLOCK; /* the copy */
        }
        ldr_fsck_found(f, LDR_FSCK_UNREPAIRED, block, NULL, error);
    }
    return error == 0;
}

/* ---- the directory ---- */

static int note_name(void *arg, const char *name)
{
    ldr_fsck_t *f = arg;
    uint32_t segment;

    if (ldr_segment_number(name, &segment)) {
        f->segments[segment].state = LDR_FSCK_SEGMENT_FREE;
        f->segment_count =
            (uint32_t)ldr_max64(f->segment_count, (uint64_t)segment + 1);
        f->file_count++;
    } else if (strcmp(name, LDR_SUPER_NAME) == 0) {
        f->has_super = true;
    } else if (strcmp(name, LDR_LOCK_NAME) == 0) {
        f->has_lock = true;
    } else if (!ldr_ledger_named(name)) {
        f->strangers++;
    }
    return 0;
}

static larder_status_t names_list(ldr_fsck_t *f)
{
    f->file_count = f->strangers = 0;
    int error = f->io->ops->list(f->io, f->path, note_name, f);
    if (error == -ENOENT || error == -ENOTDIR) {
        return ldr_fail(LARDER_E_INVALID,
                        error == -ENOENT ? "%s: there is no such directory"
                                         : "%s: is not a directory",
                        f->path);
    }
    return error == 0 ? LARDER_OK : io_failed(f, "list the directory", error);
}

/* Without a lock file nobody has the directory, and only repair makes one. */
static larder_status_t dir_lock(ldr_fsck_t *f)
{
    int flags = f->repair ? LDR_IO_CREATE : LDR_IO_READONLY;
    int error;

    f->lock_file = file_open(f, LDR_LOCK_NAME, flags);
    if (f->lock_file == -ENOENT && !f->repair) {
        return LARDER_OK;
    }
    if (f->lock_file < 0) {
        return io_failed(f, "open larder.lock", f->lock_file);
    }
    error = f->io->ops->lock(f->io, f->lock_file);
    if (error == -EWOULDBLOCK) {
        return ldr_fail(LARDER_E_LOCKED, LDR_IN_USE_TEXT, f->path);
    }
    return error == 0 ? LARDER_OK : io_failed(f, "lock larder.lock", error);
}

/* ---- superblock ---- */

static larder_status_t super_open(ldr_fsck_t *f)
{
    if (f->has_super) {
        f->super_file =
            file_open(f, LDR_SUPER_NAME,
                      LDR_IO_DIRECT | (f->repair ? 0 : LDR_IO_READONLY));
        return f->super_file >= 0
                   ? LARDER_OK
                   : io_failed(f, "open larder.super", f->super_file);
    }
    if (f->file_count > 0) {
        return ldr_fail(LARDER_E_CORRUPT,
                        "%s: has segments and no larder.super; `larder wipe` "
                        "makes the directory usable again",
                        f->path);
    }
    return ldr_fail(LARDER_E_INVALID, "%s: is not a directory of Larder's",
                    f->path);
}

/* Reads both copies; super_best is the one an open would take. */
static void super_read(ldr_fsck_t *f, ldr_parse_t parsed[2])
{
    f->super_best = -1;
    for (int copy = 0; copy < 2; copy++) {
        uint64_t at = (uint64_t)copy * LDR_SUPER_BYTES;
        uint64_t before = f->super->generation;
        int error = ldr_io_read_at(f->io, f->super_file, at,
                                   f->super_bytes + at, LDR_SUPER_BYTES);

        parsed[copy] = error == 0
                           ? ldr_super_parse(f->super_bytes + at, f->super)
                           : LDR_PARSE_BAD;
        if (parsed[copy] == LDR_PARSE_OK &&
            (f->super_best < 0 || f->super->generation > before)) {
            f->super_best = copy;
        }
    }
    if (f->super_best == 0) {
        ldr_super_parse(f->super_bytes, f->super);
    }
}

static larder_status_t super_check(ldr_fsck_t *f)
{
    ldr_parse_t parsed[2];
    uint64_t size = 0;

    f->segment = LDR_NIL;
    super_read(f, parsed);
    if (parsed[0] == LDR_PARSE_VERSION || parsed[1] == LDR_PARSE_VERSION) {
        return ldr_format_unknown(
            f->path, LDR_NIL,
            f->super_bytes +
                (parsed[0] == LDR_PARSE_VERSION ? 0 : LDR_SUPER_BYTES));
    }
    if (f->super_best < 0 && f->file_count == 0) {
        ldr_fsck_found(f, LDR_FSCK_SUPER_UNMADE, 0, NULL, 0);
        return LARDER_OK;
    }
    for (uint32_t copy = 0; copy < 2; copy++) {
        if (parsed[copy] != LDR_PARSE_OK) {
            f->super_mend = true;
            ldr_fsck_found(f, LDR_FSCK_SUPER_BAD, copy, NULL, 0);
        }
    }
    if (f->super_best < 0) {
        return ldr_fail(LARDER_E_CORRUPT,
                        "%s: no copy of the superblock is good; `larder wipe` "
                        "makes the directory usable again",
                        f->path);
    }
    if (!f->super_mend &&
        memcmp(f->super_bytes, f->super_bytes + LDR_SUPER_BYTES,
               LDR_SUPER_BYTES) != 0) {
        f->super_mend = true;
        ldr_fsck_found(f, LDR_FSCK_SUPER_OLD, (uint32_t)(1 - f->super_best),
                       NULL, 0);
    }
    f->super_damage = f->report->damage;
    f->super_long = f->io->ops->size(f->io, f->super_file, &size) == 0 &&
                    size > 2 * LDR_SUPER_BYTES;
    if (f->super_long) {
        ldr_fsck_found(f, LDR_FSCK_SUPER_LONG, 1, NULL, 0);
    }
    return LARDER_OK;
}

static void super_repair(ldr_fsck_t *f)
{
    uint64_t from = (uint64_t)f->super_best * LDR_SUPER_BYTES;
    uint64_t to = LDR_SUPER_BYTES - from;

    f->file = f->super_file;
    f->segment = LDR_NIL;
    if (ldr_fsck_mend(f, (uint32_t)(to / LDR_BLOCK), f->super_bytes + from,
                      LDR_SUPER_BYTES)) {
        f->report->repaired += f->super_damage;
    }
}

static void super_cut(ldr_fsck_t *f)
{
    int error = f->io->ops->allocate(f->io, f->super_file, 2 * LDR_SUPER_BYTES);

    f->segment = LDR_NIL;
    if (error != 0) {
        ldr_fsck_found(f, LDR_FSCK_UNREPAIRED, 1, NULL, error);
    }
}

/* ---- headers ---- */

static bool header_belongs(const ldr_fsck_t *f, const ldr_segment_header_t *h,
                           uint32_t segment)
{
    return h->segment == segment &&
           h->segment_bytes == f->super->segment_bytes &&
           memcmp(h->dir_id, f->super->dir_id, LDR_ID_BYTES) == 0;
}

/* With the file open. */
static larder_status_t header_read(ldr_fsck_t *f, ldr_fsck_segment_t *s)
{
    ldr_segment_header_t header;
    ldr_parse_t parsed;
    uint64_t size = 0;
    int error = f->io->ops->size(f->io, f->file, &size);

    if (error == 0 && size >= LDR_BLOCK) {
        error = ldr_io_read_at(f->io, f->file, 0, f->piece, LDR_BLOCK);
    } else {
        memset(f->piece, 0, LDR_BLOCK);
    }
    if (error != 0) {
        s->state = LDR_FSCK_SEGMENT_LEFT;
        ldr_fsck_found(f, LDR_FSCK_UNREADABLE, 0, NULL, error);
        return LARDER_OK;
    }
    parsed = ldr_header_parse(f->piece, &header);
    if (parsed == LDR_PARSE_VERSION) {
        return ldr_format_unknown(f->path, f->segment, f->piece);
    }
    if (parsed == LDR_PARSE_EMPTY) {
        if (size < f->super->segment_bytes &&
            ldr_ledger_use_of(&f->ledger, f->segment).sequence == 0) {
            ldr_fsck_found(f, LDR_FSCK_FILE_UNMADE, 0, NULL, 0);
        }
    } else if (size < f->super->segment_bytes) {
        s->state = LDR_FSCK_SEGMENT_CLEAR;
        ldr_fsck_found(f, LDR_FSCK_FILE_SHORT, (uint32_t)(size / LDR_BLOCK),
                       NULL, 0);
    } else if (parsed != LDR_PARSE_OK ||
               !header_belongs(f, &header, f->segment)) {
        s->state = LDR_FSCK_SEGMENT_CLEAR;
        ldr_fsck_found(f, LDR_FSCK_HEADER_BAD, 0, NULL, 0);
    } else {
        s->state = LDR_FSCK_SEGMENT_USED;
        s->sequence = header.sequence;
        s->nonce = header.nonce;
    }
    return LARDER_OK;
}

static larder_status_t headers_check(ldr_fsck_t *f)
{
    larder_status_t st = LARDER_OK;

    for (uint32_t i = 0; i < f->segment_count && st == LARDER_OK; i++) {
        if (f->segments[i].state == LDR_FSCK_SEGMENT_NONE) {
            continue;
        }
        f->segment = i;
        f->file = ldr_fsck_segment_open(f, i);
        if (f->file < 0) {
            f->segments[i].state = LDR_FSCK_SEGMENT_LEFT;
            ldr_fsck_found(f, LDR_FSCK_UNREADABLE, 0, NULL, f->file);
            continue;
        }
        st = header_read(f, &f->segments[i]);
        f->io->ops->close(f->io, f->file);
    }
    return st;
}

/* ---- all of it ---- */

static larder_status_t fsck_open(ldr_fsck_t *f)
{
    f->lock_file = f->super_file = -1;
    f->super = ldr_alloc(sizeof(*f->super));
    f->super_bytes = ldr_alloc_blocks(2 * LDR_SUPER_BYTES);
    f->segments = ldr_reserve(LDR_SEGMENTS_MAX * sizeof(*f->segments));
    f->piece = ldr_alloc_blocks(LDR_FSCK_PIECE_BYTES);
    f->check = ldr_alloc_blocks(LDR_FSCK_PIECE_BYTES);
    return f->super != NULL && f->super_bytes != NULL && f->segments != NULL &&
                   f->piece != NULL && f->check != NULL
               ? LARDER_OK
               : ldr_fail(LARDER_E_NO_MEMORY, "not enough memory");
}

static void fsck_close(ldr_fsck_t *f)
{
    ldr_ledger_close(&f->ledger);
    if (f->super_file >= 0) {
        f->io->ops->close(f->io, f->super_file);
    }
    if (f->lock_file >= 0) {
        f->io->ops->close(f->io, f->lock_file);
    }
    ldr_unreserve(f->table, f->table_bytes);
    ldr_unreserve(f->segments, LDR_SEGMENTS_MAX * sizeof(*f->segments));
    ldr_free(f->super);
    ldr_free(f->super_bytes);
    ldr_free(f->piece);
    ldr_free(f->check);
}

static larder_status_t segments_check(ldr_fsck_t *f)
{
    f->segment_blocks = (uint32_t)(f->super->segment_bytes / LDR_BLOCK);
    f->table_bytes = (size_t)ldr_table_blocks(f->segment_blocks) * LDR_BLOCK;
    f->table = ldr_reserve(f->table_bytes);
    if (f->table == NULL) {
        return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory");
    }
    larder_status_t st = ldr_fsck_ledger_open(f);
    if (st == LARDER_OK) {
        st = headers_check(f);
    }
    if (st != LARDER_OK) {
        return st;
    }
    ldr_fsck_ledger_check(f);
    if (f->super_long && f->repair) {
        super_cut(f);
    }
    if (f->super_mend && f->repair) {
        super_repair(f);
    }
    for (uint32_t i = 0; i < f->segment_count; i++) {
        if (f->segments[i].state != LDR_FSCK_SEGMENT_NONE) {
            ldr_fsck_segment_check(f, i);
            f->done_bytes += f->super->segment_bytes;
            ldr_fsck_progress(f, 0);
        }
    }
    if (f->repair) {
        ldr_fsck_ledger_repair(f);
    }
    return LARDER_OK;
}

larder_status_t ldr_fsck(ldr_io_t *io, const char *path, bool repair,
                         const ldr_fsck_ops_t *ops, ldr_fsck_report_t *report)
{
    static const ldr_fsck_ops_t none;
    ldr_fsck_t f = {
        .io = io,
        .path = path,
        .repair = repair,
        .ops = ops != NULL ? ops : &none,
        .report = report,
    };

    memset(report, 0, sizeof(*report));
    larder_status_t st = fsck_open(&f);
    if (st == LARDER_OK) {
        st = names_list(&f);
    }
    if (st == LARDER_OK) {
        st = super_open(&f);
    }
    if (st == LARDER_OK) {
        st = dir_lock(&f);
    }
    if (st == LARDER_OK) {
        st = names_list(&f); /* again: what is there now stays */
    }
    if (st == LARDER_OK) {
        st = super_check(&f);
    }
    if (st == LARDER_OK && f.super_best >= 0) {
        st = segments_check(&f);
    }
    fsck_close(&f);
    return st;
}

/* ---- at a glance ---- */

/* What the headers prove. */
static void headers_look(ldr_fsck_t *f, ldr_fsck_look_t *look)
{
    ldr_segment_header_t header;

    for (uint32_t i = 0; i < f->segment_count; i++) {
        int file = f->segments[i].state == LDR_FSCK_SEGMENT_NONE
                       ? -1
                       : ldr_fsck_segment_open(f, i);

        if (file < 0) {
            continue;
        }
        if (ldr_io_read_at(f->io, file, 0, f->piece, LDR_BLOCK) == 0) {
            ldr_parse_t parsed = ldr_header_parse(f->piece, &header);

            if (parsed == LDR_PARSE_VERSION) {
                look->version_unknown = ldr_format_version(f->piece);
            }
            look->ours |= parsed == LDR_PARSE_OK || parsed == LDR_PARSE_VERSION;
        }
        f->io->ops->close(f->io, file);
    }
}

static void super_look(ldr_fsck_t *f, ldr_fsck_look_t *look)
{
    ldr_parse_t parsed[2];
    uint64_t size = 1;

    super_read(f, parsed);
    f->io->ops->size(f->io, f->super_file, &size);
    for (int copy = 0; copy < 2; copy++) {
        if (parsed[copy] == LDR_PARSE_VERSION) {
            look->version_unknown = ldr_format_version(
                f->super_bytes + (size_t)copy * LDR_SUPER_BYTES);
        }
        look->ours |= parsed[copy] != LDR_PARSE_BAD;
    }
    look->ours |= size == 0; /* its making was cut short */
    look->segment_bytes = f->super_best >= 0 ? f->super->segment_bytes : 0;
}

static uint64_t ledger_look(ldr_fsck_t *f)
{
    uint64_t bytes = 0, size;

    for (unsigned i = 0; i < LDR_LEDGERS; i++) {
        char name[LDR_LEDGER_NAME_BYTES];

        ldr_ledger_name(i, name);
        int file = file_open(f, name, LDR_IO_READONLY);
        if (file >= 0) {
            bytes += f->io->ops->size(f->io, file, &size) == 0 ? size : 0;
            f->io->ops->close(f->io, file);
        }
    }
    return bytes;
}

larder_status_t ldr_fsck_look(ldr_io_t *io, const char *path,
                              ldr_fsck_look_t *look)
{
    ldr_fsck_t f = {.io = io, .path = path};
    larder_status_t st = fsck_open(&f);

    if (st == LARDER_OK) {
        st = names_list(&f);
    }
    if (st == LARDER_OK) {
        memset(look, 0, sizeof(*look));
        look->lock = f.has_lock;
        look->super = f.has_super;
        look->segments = f.file_count;
        look->strangers = f.strangers;
        look->ledger_bytes = ledger_look(&f);
        headers_look(&f, look);
        if (f.has_super) {
            st = super_open(&f);
        }
    }
    if (st == LARDER_OK && f.has_super) {
        super_look(&f, look);
    }
    fsck_close(&f);
    return st;
}
