#include "sim/simdisk_int.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"

simtear_t simtear_draw(simdisk_t *disk)
{
    return (simtear_t)ldr_rand_below(&disk->medium.rand, 4);
}

void simdisk_put(simdisk_t *disk, simfile_t *file, uint64_t offset,
                 const ldr_io_req_t *req, simtear_t tear)
{
    size_t step =
        tear == SIMTEAR_ALL ? SIM_PAGE_BYTES : disk->medium.sector_bytes;
    uint64_t bytes = 0, done = 0, limit;

    for (unsigned i = 0; i < req->iov_count; i++) {
        bytes += req->iov[i].iov_len;
    }
    if (tear == SIMTEAR_NONE || bytes == 0) {
        return;
    }
    limit = ldr_rand_below(&disk->medium.rand, bytes);
    for (unsigned i = 0; i < req->iov_count; i++) {
        const uint8_t *data = req->iov[i].iov_base;
        size_t left = req->iov[i].iov_len;

        while (left > 0) {
            size_t part =
                (size_t)ldr_min64(left, step - (offset + done) % step);
            if (tear == SIMTEAR_ALL ||
                (tear == SIMTEAR_PREFIX && done < limit) ||
                (tear == SIMTEAR_SOME && simmedium_coin(&disk->medium))) {
                simfile_write(&disk->medium, file, offset + done, data, part);
            }
            done += part;
            data += part;
            left -= part;
        }
    }
}

/* What of an operation got to the disk before the power went. What is only
 * unsynced after it has its fate drawn by simdisk_power_cut(). */
static void op_tear(simdisk_t *disk, const simop_t *op, simfile_t *file)
{
    simentry_t *entry;

    switch (op->kind) {
    case SIMDISK_WRITE:
        if (file != NULL) {
            simdisk_put(disk, file, op->req->offset, op->req,
                        simtear_draw(disk));
        }
        break;
    case SIMDISK_ALLOCATE:
        if (file != NULL) {
            simfile_resize(&disk->medium, file, op->bytes);
        }
        break;
    case SIMDISK_OPEN:
        simtree_create(&disk->tree, op->path);
        break;
    case SIMDISK_UNLINK:
        entry = simtree_entry(&disk->tree, op->path);
        if (entry != NULL) {
            simentry_mean(&disk->tree, entry, NULL);
        }
        break;
    case SIMDISK_MAKE_DIR:
        if (simmedium_coin(&disk->medium)) {
            simtree_make_dirs(&disk->tree, op->path);
        }
        break;
    default: /* a sync: it has not happened */
        break;
    }
}

void simdisk_close_all(simdisk_t *disk)
{
    for (size_t i = 0; i < disk->handle_count; i++) {
        disk->handles[i].file->opens--;
        disk->handles[i].file->lock_holder = -1;
        simtree_put(&disk->tree, disk->handles[i].file);
    }
    disk->handle_count = 0;
}

void simdisk_power_cut(simdisk_t *disk)
{
    simfate_t fate = simfate_draw(&disk->medium);

    simdisk_close_all(disk);
    for (size_t i = 0; i < disk->tree.entry_count; i++) {
        simentry_t *entry = &disk->tree.entries[i];
        if (entry->now != entry->durable && simmedium_coin(&disk->medium)) {
            simentry_mean(&disk->tree, entry, entry->durable);
        }
        simentry_settle(&disk->tree, entry);
    }
    for (simfile_t *file = disk->tree.files; file != NULL; file = file->next) {
        simfile_power_cut(&disk->medium, file, fate);
    }
    disk->off = true;
    disk->cut_at = 0;
}

void simdisk_reboot(simdisk_t *disk)
{
    disk->off = false;
}

bool simdisk_is_off(const simdisk_t *disk)
{
    return disk->off;
}

bool simdisk_op_begin(simdisk_t *disk, const simop_t *op)
{
    disk->op_count++;
    disk->op = op;
    if (disk->on_op != NULL) {
        disk->on_op(disk->on_op_arg, disk);
    }
    disk->op = NULL;
    if (disk->op_count == disk->cut_at) {
        op_tear(disk, op, op->file);
        simdisk_power_cut(disk);
        return false;
    }
    return true;
}

int simdisk_fails(simdisk_t *disk, simdisk_kind_t kind)
{
    simrule_t *rule = &disk->rules[kind];

    if (disk->off) {
        return -EIO;
    }
    if (rule->first == 0) {
        return 0;
    }
    rule->passes++;
    if (rule->passes < rule->first || rule->passes >= rule->end) {
        return 0;
    }
    rule->fired++;
    return rule->error;
}

int simdisk_file_fails(simdisk_t *disk, simdisk_kind_t kind,
                       const simfile_t *file)
{
    simrule_t *rule = &disk->rules[kind];
    int error = simdisk_fails(disk, kind);

    if (error == 0 && rule->path != NULL &&
        simtree_file(&disk->tree, rule->path) == file) {
        rule->fired++;
        error = rule->path_error;
    }
    return error;
}

uint64_t simdisk_used(const simdisk_t *disk)
{
    uint64_t bytes = 0;

    for (const simfile_t *f = disk->tree.files; f != NULL; f = f->next) {
        bytes += f->links > 0 || f->opens > 0 ? f->size : 0;
    }
    return bytes;
}

void (*simdisk_fresh)(void);

simdisk_t *simdisk_create(uint64_t seed, unsigned sector_bytes)
{
    simdisk_t *disk = simgrown(NULL, sizeof(*disk));

    if (seed != 0 && simdisk_fresh != NULL) {
        simdisk_fresh();
    }
    memset(disk, 0, sizeof(*disk));
    disk->io.ops = &simdisk_io_ops;
    disk->medium.sector_bytes = sector_bytes != 0 ? sector_bytes : 512;
    disk->capacity = UINT64_MAX;
    disk->next_number = 100;
    ldr_io_list_init(&disk->queue);
    simdisk_seed(disk, seed);
    return disk;
}

void simdisk_destroy(simdisk_t *disk)
{
    simdisk_close_all(disk);
    simtree_clear(&disk->tree);
    free(disk->handles);
    free(disk);
}

ldr_io_t *simdisk_io(simdisk_t *disk)
{
    return &disk->io;
}

void simdisk_seed(simdisk_t *disk, uint64_t seed)
{
    ldr_rand_seed(&disk->medium.rand, seed);
}

simdisk_t *simdisk_clone(const simdisk_t *disk)
{
    simdisk_t *copy = simdisk_create(0, disk->medium.sector_bytes);

    copy->medium = disk->medium;
    copy->capacity = disk->capacity;
    copy->off = disk->off;
    copy->op_count = disk->op_count;
    copy->next_number = disk->next_number;
    simtree_clone(&copy->tree, &disk->tree);
    return copy;
}

simdisk_t *simdisk_clone_cut(const simdisk_t *disk, uint64_t seed)
{
    simdisk_t *copy = simdisk_clone(disk);
    const simop_t *op = disk->op;

    simdisk_seed(copy, seed);
    if (op != NULL) {
        /* A file without a name now and later has no twin any more. */
        bool named = op->file != NULL && op->file->refs > op->file->opens;
        op_tear(copy, op, named ? op->file->twin : NULL);
    }
    simdisk_power_cut(copy);
    simdisk_reboot(copy);
    return copy;
}

uint64_t simdisk_ops(const simdisk_t *disk)
{
    return disk->op_count;
}

void simdisk_cut_at(simdisk_t *disk, uint64_t op)
{
    disk->cut_at = op;
}

void simdisk_on_op(simdisk_t *disk, void (*fn)(void *arg, simdisk_t *disk),
                   void *arg)
{
    disk->on_op = fn;
    disk->on_op_arg = arg;
}

uint64_t simdisk_unsynced(const simdisk_t *disk)
{
    uint64_t count = 0;

    for (const simfile_t *f = disk->tree.files; f != NULL; f = f->next) {
        count += simfile_unsynced(f);
    }
    return count;
}

void simdisk_fail(simdisk_t *disk, simdisk_kind_t kind, uint64_t nth,
                  uint64_t times, int error)
{
    disk->rules[kind] = (simrule_t){
        .first = nth,
        .end = times == 0 ? UINT64_MAX : nth + times,
        .error = error < 0 ? error : -EIO,
    };
}

void simdisk_fail_file(simdisk_t *disk, simdisk_kind_t kind, const char *path,
                       int error)
{
    disk->rules[kind].path = path;
    disk->rules[kind].path_error = error;
}

void simdisk_fail_none(simdisk_t *disk)
{
    memset(disk->rules, 0, sizeof(disk->rules));
}

uint64_t simdisk_failed(const simdisk_t *disk, simdisk_kind_t kind)
{
    return disk->rules[kind].fired;
}

void simdisk_set_capacity(simdisk_t *disk, uint64_t bytes)
{
    disk->capacity = bytes;
}

bool simdisk_flip(simdisk_t *disk, const char *path, uint64_t bit)
{
    simfile_t *file = simtree_file(&disk->tree, path);
    uint8_t byte;

    if (file == NULL || bit / 8 >= file->size) {
        return false;
    }
    simfile_read(file, bit / 8, &byte, 1);
    byte ^= (uint8_t)(1u << bit % 8);
    simfile_damage(file, bit / 8, &byte, 1);
    return true;
}

bool simdisk_truncate(simdisk_t *disk, const char *path, uint64_t bytes)
{
    simfile_t *file = simtree_file(&disk->tree, path);

    if (file == NULL || bytes > file->size) {
        return false;
    }
    simfile_trim(file, bytes);
    return true;
}

bool simdisk_write_raw(simdisk_t *disk, const char *path, uint64_t offset,
                       const void *data, size_t bytes)
{
    simfile_t *file = simtree_file(&disk->tree, path);

    if (file == NULL || offset > file->size || bytes > file->size - offset) {
        return false;
    }
    simfile_damage(file, offset, data, bytes);
    return true;
}

bool simdisk_read_raw(const simdisk_t *disk, const char *path, uint64_t offset,
                      void *data, size_t bytes)
{
    const simfile_t *file = simtree_file(&disk->tree, path);

    if (file == NULL || offset > file->size || bytes > file->size - offset) {
        return false;
    }
    simfile_read(file, offset, data, bytes);
    return true;
}

uint64_t simdisk_size(const simdisk_t *disk, const char *path)
{
    const simfile_t *file = simtree_file(&disk->tree, path);
    return file != NULL ? file->size : UINT64_MAX;
}

const char *simdisk_path(const simdisk_t *disk, unsigned i)
{
    for (size_t at = 0; at < disk->tree.entry_count; at++) {
        if (disk->tree.entries[at].now != NULL && i-- == 0) {
            return disk->tree.entries[at].path;
        }
    }
    return NULL;
}
