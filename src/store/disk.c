/*
 * A directory: its lock, its superblock, and its segment files. The life of a
 * segment and the invariants are in disk.h.
 *
 * Called by the one thread that has the disk, without the node's lock; it
 * blocks. The superblock has two copies: the one that was found older or
 * damaged is written and synced first, then the other, so that one is whole at
 * any time.
 */
#include "store/disk.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "base/options.h"

#define SEGMENT_BYTES_MIN ((uint64_t)4 << 20)
#define SEGMENT_BYTES_MAX ((uint64_t)1 << 30)
#define SEGMENT_BYTES_LEAST (16 * LDR_BLOCK) /* when asked for */
/* One being filled, one being closed, one ready, one with something in it. */
#define SEGMENTS_MIN 4u

uint64_t ldr_disk_segment_bytes(uint64_t tier_bytes)
{
    uint64_t bytes = tier_bytes / 64;

    bytes = ldr_max64(bytes, SEGMENT_BYTES_MIN);
    bytes = ldr_min64(bytes, SEGMENT_BYTES_MAX);
    bytes = ldr_min64(bytes, tier_bytes / (SEGMENTS_MIN + 1));
    return bytes / LDR_BLOCK * LDR_BLOCK;
}

static bool path_of(const ldr_disk_t *d, const char *name, char *path)
{
    int n = snprintf(path, LDR_PATH_MAX, "%s/%s", d->path, name);

    return n > 0 && n < (int)LDR_PATH_MAX;
}

static bool segment_path(const ldr_disk_t *d, uint32_t segment, char *path)
{
    char name[LDR_SEGMENT_NAME_BYTES];

    ldr_segment_name(segment, name);
    return path_of(d, name, path);
}

static larder_status_t io_failed(const ldr_disk_t *d, const char *what,
                                 int error)
{
    char ssd[24];

    if (error != -ENOSPC && error != -EDQUOT) {
        return ldr_fail(LARDER_E_IO, "%s: cannot %s: %s", d->path, what,
                        strerror(-error));
    }
    ldr_size_text(d->bytes_max, ssd, sizeof(ssd));
    return ldr_fail(LARDER_E_IO,
                    "%s: cannot %s: %s (ssd=%s may need as much there)",
                    d->path, what, strerror(-error), ssd);
}

/* No disk is sick that answers so: what was asked of it cannot be. */
static bool is_mistake(int error)
{
    return error == -ENOENT || error == -ENOTDIR || error == -EISDIR ||
           error == -EACCES || error == -EPERM || error == -ENAMETOOLONG ||
           error == -ELOOP || error == -EROFS;
}

/* A file system becomes read-only when its disk fails: then a directory that
 * was in use is no mistake. */
static bool is_sick(const ldr_disk_t *d, int error)
{
    char path[LDR_PATH_MAX];

    if (error != -EROFS || !path_of(d, LDR_SUPER_NAME, path)) {
        return !is_mistake(error);
    }
    int file = d->io->ops->open(d->io, path, LDR_IO_READONLY);
    if (file >= 0) {
        d->io->ops->close(d->io, file);
    }
    return file >= 0;
}

/* The directory, or a file that must be in it, cannot be used: because of the
 * disk, or because it was never possible. */
static larder_status_t use_failed(const ldr_disk_t *d, const char *what,
                                  int error)
{
    if (is_sick(d, error)) {
        return io_failed(d, what, error);
    }
    if (error != -EACCES && error != -EPERM) {
        return ldr_fail(LARDER_E_DENIED,
                        "%s: cannot %s: %s: give a directory that can be made "
                        "and written in",
                        d->path, what, strerror(-error));
    }
    return ldr_fail(LARDER_E_DENIED,
                    "%s: cannot %s: %s: give a directory in which uid %u, gid "
                    "%u, as which this runs, may write",
                    d->path, what, strerror(-error), (unsigned)geteuid(),
                    (unsigned)getegid());
}

/* ---- superblock ---- */

/* One first and durable, then the other: a cut in either leaves one whole, and
 * once both are there damage to one undoes nothing. The one that was found
 * damaged or older goes first, so that the good one is not touched before there
 * is another. */
static int copy_of(const ldr_disk_t *d, unsigned step)
{
    return step < LDR_SUPER_STEPS / 2 ? d->super_first : 1 - d->super_first;
}

void ldr_disk_super_begin(ldr_disk_t *d)
{
    d->super->generation++;
    ldr_super_compose(d->super, d->super_bytes);
}

void ldr_disk_super_step(ldr_disk_t *d, unsigned step, ldr_io_req_t *req)
{
    d->super_iov = (struct iovec){d->super_bytes, LDR_SUPER_BYTES};
    *req = (ldr_io_req_t){
        .kind = step % 2 == 0 ? LDR_IO_WRITE : LDR_IO_SYNC,
        .file = d->super_file,
        .offset = (uint64_t)copy_of(d, step) * LDR_SUPER_BYTES,
        .iov = &d->super_iov,
        .iov_count = step % 2 == 0 ? 1 : 0,
    };
}

larder_status_t ldr_disk_super_failed(ldr_disk_t *d, unsigned step, int error)
{
    d->super_first = copy_of(d, step);
    return io_failed(d, "write larder.super", error);
}

larder_status_t ldr_disk_super_write(ldr_disk_t *d)
{
    ldr_disk_super_begin(d);
    for (unsigned step = 0; step < LDR_SUPER_STEPS; step++) {
        ldr_io_req_t req;

        ldr_disk_super_step(d, step, &req);
        int error = ldr_io_run(d->io, &req);
        if (error != 0) {
            return ldr_disk_super_failed(d, step, error);
        }
        ldr_disk_answered(d);
    }
    return LARDER_OK;
}

static larder_status_t too_small(const ldr_disk_t *d, uint64_t segment_bytes)
{
    uint64_t least = SEGMENTS_MIN * segment_bytes + 2 * LDR_SUPER_BYTES;
    char ssd[24], segment[24], enough[24];

    ldr_size_text(d->bytes_max, ssd, sizeof(ssd));
    ldr_size_text(segment_bytes, segment, sizeof(segment));
    ldr_size_text(ldr_div_up(least, 1u << 20) << 20, enough, sizeof(enough));
    return ldr_fail(LARDER_E_INVALID,
                    "%s: ssd=%s is too small for segments of %s, of which it "
                    "needs %u: set ssd=%s or more (the size of segments is "
                    "fixed when a directory is made: option segment)",
                    d->path, ssd, segment, SEGMENTS_MIN, enough);
}

/* How a directory is divided between segments and the ledger. */
typedef struct share {
    uint64_t segments;     /* files */
    uint64_t ledger_bytes; /* of each of its files */
} share_t;

/* A ledger that is there, `have` bytes a file, stays as it is, unless another
 * size was configured since. Where there are few segments, the ledger makes do
 * with what they leave; and where that is too little, with the place of one of
 * them. */
static share_t divide(uint64_t bytes_max, uint64_t segment_bytes, uint64_t have)
{
    uint64_t bytes = bytes_max - ldr_min64(bytes_max, 2 * LDR_SUPER_BYTES);
    uint64_t ledger = ldr_ledger_bytes(bytes_max);

    if (have >= ledger / 2 && LDR_LEDGERS * have <= bytes_max / 4) {
        ledger = have;
    }
    share_t s = {bytes / segment_bytes, ledger};
    if (bytes > LDR_LEDGERS * ledger &&
        (bytes - LDR_LEDGERS * ledger) / segment_bytes >= SEGMENTS_MIN) {
        s.segments = (bytes - LDR_LEDGERS * ledger) / segment_bytes;
        return s;
    }
    uint64_t left = bytes % segment_bytes / LDR_LEDGERS;
    if (left < LDR_LEDGER_BYTES_LEAST && s.segments >= SEGMENTS_MIN) {
        left += segment_bytes / LDR_LEDGERS;
        s.segments--;
    }
    s.ledger_bytes = ldr_min64(ledger, left / LDR_BLOCK * LDR_BLOCK);
    return s;
}

/* Why segments of this size are not possible. */
static larder_status_t size_check(const ldr_disk_t *d, uint64_t bytes)
{
    if (bytes < SEGMENT_BYTES_LEAST || bytes > SEGMENT_BYTES_MAX ||
        bytes % LDR_BLOCK != 0) {
        return ldr_fail(LARDER_E_INVALID,
                        "%s: a segment of %llu bytes: %u to %llu are possible",
                        d->path, (unsigned long long)bytes, SEGMENT_BYTES_LEAST,
                        (unsigned long long)SEGMENT_BYTES_MAX);
    }
    uint64_t room = d->bytes_max > 2 * LDR_SUPER_BYTES
                        ? (d->bytes_max - 2 * LDR_SUPER_BYTES) / bytes
                        : 0;
    return room < SEGMENTS_MIN ? too_small(d, bytes) : LARDER_OK;
}

/* A directory that has no superblock yet. */
static larder_status_t super_create(ldr_disk_t *d, uint64_t segment_bytes)
{
    larder_status_t st = size_check(d, segment_bytes);

    if (st != LARDER_OK) {
        return st; /* before anything is written that would stay */
    }
    int error = d->io->ops->allocate(d->io, d->super_file, 2 * LDR_SUPER_BYTES);
    if (error != 0) {
        return io_failed(d, "allocate larder.super", error);
    }
    memset(d->super, 0, sizeof(*d->super));
    for (int i = 0; i < LDR_ID_BYTES; i += 8) {
        ldr_put64(d->super->dir_id + i, ldr_rand_next(&d->rand));
    }
    d->super->segment_bytes = segment_bytes;
    st = ldr_disk_super_write(d);
    if (st == LARDER_OK) {
        error = d->io->ops->sync_dir(d->io, d->path);
        if (error != 0) {
            st = io_failed(d, "sync the directory", error);
        }
    }
    return st;
}

static int note_segment(void *arg, const char *name)
{
    bool *found = arg;
    uint32_t segment;

    *found = *found || ldr_segment_number(name, &segment);
    return *found;
}

/* Reads both copies; the valid one with the higher generation wins. A copy
 * that cannot be read, or of which the file has only a part, counts as damaged.
 * Gives the better of the two. */
static larder_status_t super_read(ldr_disk_t *d, ldr_parse_t *best_p)
{
    ldr_parse_t parsed[2];
    ldr_super_t *other = ldr_alloc(sizeof(*other));
    larder_status_t unknown = LARDER_OK;
    int failed = 0;
    bool second;

    if (other == NULL) {
        return LARDER_E_NO_MEMORY;
    }
    for (int copy = 0; copy < 2; copy++) {
        int error = ldr_io_read_at(d->io, d->super_file,
                                   (uint64_t)copy * LDR_SUPER_BYTES,
                                   d->super_bytes, LDR_SUPER_BYTES);

        ldr_disk_answered(d);
        failed = error != 0 && error != -ENODATA ? error : failed;
        parsed[copy] =
            error != 0
                ? LDR_PARSE_BAD
                : ldr_super_parse(d->super_bytes, copy == 0 ? d->super : other);
        if (parsed[copy] == LDR_PARSE_VERSION) {
            unknown = ldr_format_unknown(d->path, LDR_NIL, d->super_bytes);
        }
    }
    second =
        parsed[1] == LDR_PARSE_OK &&
        (parsed[0] != LDR_PARSE_OK || other->generation > d->super->generation);
    d->super_uneven =
        parsed[0] != parsed[1] || d->super->generation != other->generation;
    if (second) {
        *d->super = *other;
    }
    ldr_free(other);
    d->super_first = second ? 0 : 1;
    *best_p = parsed[second];
    if (unknown != LARDER_OK) {
        return unknown;
    }
    if (*best_p != LDR_PARSE_OK && failed != 0) {
        return io_failed(d, "read larder.super", failed);
    }
    if (*best_p == LDR_PARSE_OK && parsed[0] != parsed[1]) {
        ldr_warn(d->log, "%s: one copy of the superblock is damaged", d->path);
    }
    return LARDER_OK;
}

static larder_status_t no_super(const ldr_disk_t *d)
{
    return ldr_fail(LARDER_E_CORRUPT,
                    "%s: no copy of the superblock is readable; "
                    "`larder wipe` makes the directory usable again",
                    d->path);
}

/* A directory without a valid copy is fine if it was never used, or its first
 * open was cut short; otherwise resets may have been lost: refuse. */
static larder_status_t refuse_used(const ldr_disk_t *d)
{
    bool used = false;
    int error = d->io->ops->list(d->io, d->path, note_segment, &used);

    if (used) {
        return no_super(d);
    }
    return error < 0 ? io_failed(d, "list", error) : LARDER_OK;
}

static larder_status_t super_load(ldr_disk_t *d, uint64_t segment_bytes)
{
    ldr_parse_t best = LDR_PARSE_EMPTY;
    larder_status_t st = super_read(d, &best);

    if (st != LARDER_OK || best == LDR_PARSE_OK) {
        return st;
    }
    st = refuse_used(d);
    return st == LARDER_OK ? super_create(d, segment_bytes) : st;
}

larder_status_t ldr_disk_super_mend(ldr_disk_t *d)
{
    uint64_t size = 0;
    int error = d->io->ops->size(d->io, d->super_file, &size);

    if (error == 0 && size != 2 * LDR_SUPER_BYTES) {
        error = d->io->ops->allocate(d->io, d->super_file, 2 * LDR_SUPER_BYTES);
    }
    return error == 0 ? LARDER_OK
                      : io_failed(d, "set the length of larder.super", error);
}

/* ---- open and close ---- */

/* Room for every name that will be in it, before anything is made. */
static bool is_too_long(const ldr_disk_t *d)
{
    return strlen(d->path) + 1 + LDR_SEGMENT_NAME_BYTES > LDR_PATH_MAX;
}

static larder_status_t too_long(const ldr_disk_t *d)
{
    return ldr_fail(LARDER_E_INVALID, "%s: path too long", d->path);
}

static larder_status_t files_open(ldr_disk_t *d)
{
    char path[LDR_PATH_MAX];

    if (is_too_long(d)) {
        return too_long(d);
    }
    int error = d->io->ops->make_dir(d->io, d->path);

    if (error != 0) {
        return use_failed(d, "make the directory", error);
    }
    path_of(d, LDR_LOCK_NAME, path);
    d->lock_file = d->io->ops->open(d->io, path, LDR_IO_CREATE);
    if (d->lock_file < 0) {
        return use_failed(d, "open larder.lock", d->lock_file);
    }
    error = d->io->ops->lock(d->io, d->lock_file);
    if (error == -EWOULDBLOCK) {
        return ldr_fail(LARDER_E_LOCKED, LDR_IN_USE_TEXT, d->path);
    }
    if (error != 0) {
        return io_failed(d, "lock larder.lock", error);
    }
    path_of(d, LDR_SUPER_NAME, path);
    d->super_file = d->io->ops->open(d->io, path, LDR_IO_DIRECT);
    if (d->super_file == -ENOENT) {
        larder_status_t st = refuse_used(d);

        if (st != LARDER_OK) {
            return st;
        }
        d->super_file =
            d->io->ops->open(d->io, path, LDR_IO_CREATE | LDR_IO_DIRECT);
    }
    return d->super_file >= 0
               ? LARDER_OK
               : use_failed(d, "open larder.super", d->super_file);
}

static size_t table_bytes_max(const ldr_disk_t *d)
{
    return (size_t)ldr_table_blocks(d->segment_blocks) * LDR_BLOCK;
}

/* What the superblock says about sizes is taken over, then memory is sized. */
static larder_status_t tables_create(ldr_disk_t *d)
{
    uint64_t bytes = d->super->segment_bytes;
    larder_status_t st = size_check(d, bytes);

    if (st != LARDER_OK) {
        return st;
    }
    d->segment_bytes = bytes;
    d->segment_blocks = (uint32_t)(bytes / LDR_BLOCK);
    /* The directory may hold more files than are allowed now: until they are
     * reclaimed there must be room for them here. */
    d->segment_slots = LDR_SEGMENTS_MAX;
    d->segments = ldr_reserve(d->segment_slots * sizeof(*d->segments));
    d->block = ldr_alloc_blocks(LDR_BLOCK);
    d->table = ldr_reserve(table_bytes_max(d));
    for (int i = 0; i < 2; i++) {
        d->filling[i].segment = LDR_NIL;
        d->filling[i].rows = ldr_reserve(table_bytes_max(d));
    }
    if (d->segments == NULL || d->block == NULL || d->table == NULL ||
        d->filling[0].rows == NULL || d->filling[1].rows == NULL) {
        return LARDER_E_NO_MEMORY;
    }
    return LARDER_OK;
}

static larder_status_t ledger_open(ldr_disk_t *d)
{
    ldr_ledger_params_t params = {
        .io = d->io,
        .path = d->path,
        .rand = &d->rand,
        .dir_id = d->super->dir_id,
    };
    larder_status_t st = ldr_ledger_open(&d->ledger, &params);

    if (st == LARDER_OK) {
        share_t share =
            divide(d->bytes_max, d->segment_bytes, ldr_ledger_size(&d->ledger));

        ldr_disk_answered(d);
        ldr_ledger_fit(&d->ledger, share.ledger_bytes);
        d->segment_max = (uint32_t)ldr_min64(share.segments, LDR_SEGMENTS_MAX);
    }
    return st;
}

/* Nothing is open yet. Gives the size of segments of a new directory. */
static uint64_t take_params(ldr_disk_t *d, const ldr_disk_params_t *params)
{
    uint64_t segment_bytes = params->segment_bytes / LDR_BLOCK * LDR_BLOCK;

    memset(d, 0, sizeof(*d));
    d->io = params->io;
    d->log = params->log;
    d->number = params->number;
    d->bytes_max = params->bytes;
    d->files_max = params->files_max;
    d->open_max = params->open_max;
    d->lock_file = d->super_file = -1;
    d->answered = params->answered;
    d->arg = params->arg;
    ldr_rand_seed(&d->rand, params->seed);
    snprintf(d->path, sizeof(d->path), "%s", params->path);
    d->super = ldr_alloc(sizeof(*d->super));
    d->super_bytes = ldr_alloc_blocks(LDR_SUPER_BYTES);
    return segment_bytes != 0 ? segment_bytes
                              : ldr_disk_segment_bytes(params->bytes);
}

larder_status_t ldr_disk_open(ldr_disk_t *d, const ldr_disk_params_t *params)
{
    uint64_t segment_bytes = take_params(d, params);
    larder_status_t st = LARDER_E_NO_MEMORY;

    if (d->super != NULL && d->super_bytes != NULL) {
        st = files_open(d);
    }
    if (st == LARDER_OK) {
        ldr_disk_answered(d);
        st = super_load(d, segment_bytes);
    }
    if (st == LARDER_OK) {
        st = tables_create(d);
    }
    if (st == LARDER_OK) {
        st = ledger_open(d);
    }
    if (st != LARDER_OK) {
        ldr_disk_close(d);
    }
    return st;
}

/* What is there, of a directory that may be in use. */
static larder_status_t check_super(ldr_disk_t *d, uint64_t segment_bytes)
{
    ldr_parse_t best = LDR_PARSE_EMPTY;
    larder_status_t st = super_read(d, &best);

    if (st != LARDER_OK) {
        return st == LARDER_E_IO ? LARDER_OK : st;
    }
    if (best == LDR_PARSE_OK) {
        return size_check(d, d->super->segment_bytes);
    }
    st = refuse_used(d);
    if (st != LARDER_OK) {
        return st == LARDER_E_IO ? LARDER_OK : st;
    }
    return size_check(d, segment_bytes);
}

/* A directory that nobody has is locked while this looks, no longer. */
static larder_status_t check_lock(ldr_disk_t *d, const ldr_disk_params_t *p)
{
    char path[LDR_PATH_MAX];

    path_of(d, LDR_LOCK_NAME, path);
    d->lock_file = d->io->ops->open(d->io, path, 0);
    if (d->lock_file < 0) {
        return d->lock_file == -ENOENT || is_sick(d, d->lock_file)
                   ? LARDER_OK
                   : use_failed(d, "open larder.lock", d->lock_file);
    }
    if (d->io->ops->lock(d->io, d->lock_file) != -EWOULDBLOCK ||
        (p->owns != NULL && p->owns(p->owner, path))) {
        return LARDER_OK;
    }
    return ldr_fail(LARDER_E_LOCKED,
                    "%s: in use by another node than the one that is to end",
                    d->path);
}

static larder_status_t check_files(ldr_disk_t *d, const ldr_disk_params_t *p,
                                   uint64_t segment_bytes)
{
    char path[LDR_PATH_MAX];

    if (is_too_long(d)) {
        return too_long(d);
    }
    int error = d->io->ops->make_dir(d->io, d->path);
    if (error == 0) {
        larder_status_t st = check_lock(d, p);

        if (st != LARDER_OK) {
            return st;
        }
        path_of(d, LDR_SUPER_NAME, path);
        error = d->io->ops->open(d->io, path, LDR_IO_READONLY | LDR_IO_DIRECT);
        if (error == -ENOENT) {
            return size_check(d, segment_bytes);
        }
    }
    if (error >= 0) {
        d->super_file = error;
        return check_super(d, segment_bytes);
    }
    return is_sick(d, error) ? LARDER_OK
                             : use_failed(d, "use the directory", error);
}

larder_status_t ldr_disk_check(const ldr_disk_params_t *params)
{
    ldr_disk_t *d = ldr_alloc(sizeof(*d));
    larder_status_t st = LARDER_E_NO_MEMORY;

    if (d == NULL) {
        return st;
    }
    uint64_t segment_bytes = take_params(d, params);
    if (d->super != NULL && d->super_bytes != NULL) {
        st = check_files(d, params, segment_bytes);
    }
    ldr_disk_close(d);
    ldr_free(d);
    return st;
}

void ldr_disk_close(ldr_disk_t *d)
{
    if (d->io == NULL) {
        return;
    }
    for (uint32_t i = 0; d->segments != NULL && i < d->segment_count; i++) {
        if (d->segments[i].state != LDR_SEGMENT_NONE) {
            d->io->ops->close(d->io, d->segments[i].file);
        }
    }
    ldr_ledger_close(&d->ledger);
    if (d->super_file >= 0) {
        d->io->ops->close(d->io, d->super_file);
    }
    if (d->lock_file >= 0) {
        d->io->ops->close(d->io, d->lock_file);
    }
    for (int i = 0; i < 2; i++) {
        ldr_unreserve(d->filling[i].rows, table_bytes_max(d));
    }
    ldr_unreserve(d->table, table_bytes_max(d));
    ldr_unreserve(d->segments, d->segment_slots * sizeof(*d->segments));
    ldr_free(d->block);
    ldr_free(d->super_bytes);
    ldr_free(d->super);
    memset(d, 0, sizeof(*d));
}

/* ---- segments ---- */

ldr_segment_header_t ldr_disk_header(const ldr_disk_t *d, uint32_t segment)
{
    ldr_segment_header_t header = {
        .segment = segment,
        .sequence = d->segments[segment].sequence,
        .nonce = d->segments[segment].nonce,
        .segment_bytes = d->segment_bytes,
    };

    memcpy(header.dir_id, d->super->dir_id, LDR_ID_BYTES);
    return header;
}

int ldr_disk_segment_create(ldr_disk_t *d, uint32_t *segment_p)
{
    char path[LDR_PATH_MAX];
    uint32_t segment = 0;

    while (segment < d->segment_count &&
           d->segments[segment].state != LDR_SEGMENT_NONE) {
        segment++;
    }
    if (segment == d->segment_slots || !segment_path(d, segment, path)) {
        return -ENAMETOOLONG;
    }
    if (d->files_max != 0 && d->file_count >= d->files_max) {
        return -EMFILE;
    }
    int file = d->io->ops->open(d->io, path, LDR_IO_CREATE | LDR_IO_DIRECT);
    if (file < 0) {
        return file;
    }
    int error = d->io->ops->allocate(d->io, file, d->segment_bytes);
    if (error == 0) {
        error = d->io->ops->sync_dir(d->io, d->path);
    }
    if (error != 0) {
        d->io->ops->close(d->io, file);
        d->io->ops->unlink(d->io, path);
        return error;
    }
    d->segments[segment] =
        (ldr_segment_t){.file = file, .state = LDR_SEGMENT_FREE};
    if (segment == d->segment_count) {
        d->segment_count++;
    }
    d->file_count++;
    *segment_p = segment;
    return 0;
}

int ldr_disk_segment_prepare(ldr_disk_t *d, uint32_t segment)
{
    ldr_segment_t *s = &d->segments[segment];
    uint64_t before = s->sequence;
    int error = ldr_ledger_free(&d->ledger, segment);

    if (error != 0) {
        return error;
    }
    /* For a file whose making was cut short; otherwise nothing to do. */
    error = d->io->ops->allocate(d->io, s->file, d->segment_bytes);
    s->failures += s->failures < UINT8_MAX;
    if (error != 0) {
        return error;
    }
    s->sequence = ++d->sequence;
    s->nonce = ldr_rand_next(&d->rand);
    s->used_blocks = 1;
    ldr_segment_header_t header = ldr_disk_header(d, segment);
    ldr_header_compose(&header, d->block);
    error = ldr_io_write_at(d->io, s->file, 0, d->block, LDR_BLOCK);
    if (error == 0) {
        error = ldr_io_sync(d->io, s->file);
    }
    if (error == 0) {
        error = ldr_ledger_use(&d->ledger, segment,
                               (ldr_use_t){s->sequence, s->nonce, false});
    }
    if (error != 0) {
        s->state = LDR_SEGMENT_LOST;
        s->sequence = before; /* what is in it may still be of the last use */
        return error;
    }
    s->state = LDR_SEGMENT_READY;
    s->failures = 0;
    return 0;
}

int ldr_disk_segment_clear(ldr_disk_t *d, uint32_t segment)
{
    int file = d->segments[segment].file;

    memset(d->block, 0, LDR_BLOCK);
    int error = ldr_io_write_at(d->io, file, 0, d->block, LDR_BLOCK);
    return error == 0 ? ldr_io_sync(d->io, file) : error;
}

int ldr_disk_segment_delete(ldr_disk_t *d, uint32_t segment)
{
    char path[LDR_PATH_MAX];
    int error = segment_path(d, segment, path)
                    ? ldr_ledger_free(&d->ledger, segment)
                    : -ENAMETOOLONG;

    if (error == 0) {
        error = d->io->ops->unlink(d->io, path);
    }
    if (error == 0 || error == -ENOENT) {
        error = d->io->ops->sync_dir(d->io, d->path);
    }
    if (error != 0) {
        d->segments[segment].state = LDR_SEGMENT_LOST;
        return error;
    }
    d->io->ops->close(d->io, d->segments[segment].file);
    d->segments[segment] = (ldr_segment_t){.file = -1};
    d->file_count--;
    return 0;
}
