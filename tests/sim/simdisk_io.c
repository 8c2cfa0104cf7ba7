/* The simulated disk behind the I/O seam: files by number, and requests. */
#include "sim/simdisk_int.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"

static simdisk_t *disk_of(ldr_io_t *io)
{
    return (simdisk_t *)io;
}

static simhandle_t *handle_find(simdisk_t *disk, int number)
{
    for (size_t i = 0; i < disk->handle_count; i++) {
        if (disk->handles[i].number == number) {
            return &disk->handles[i];
        }
    }
    return NULL;
}

static int handle_add(simdisk_t *disk, simfile_t *file, int flags)
{
    disk->handles = simgrown(disk->handles, (disk->handle_count + 1) *
                                                sizeof(disk->handles[0]));
    simhandle_t *handle = &disk->handles[disk->handle_count++];
    *handle = (simhandle_t){disk->next_number++, flags, file};
    file->refs++;
    file->opens++;
    return handle->number;
}

static int sim_open(ldr_io_t *io, const char *path, int flags)
{
    simdisk_t *disk = disk_of(io);
    int error = simdisk_fails(disk, SIMDISK_OPEN);
    char buffer[SIM_PATH_BYTES];

    if (error != 0) {
        return error;
    }
    path = simtree_normal(path, buffer);
    if (path == NULL) {
        return -ENAMETOOLONG;
    }
    if (simtree_has_dir(&disk->tree, path, strlen(path))) {
        return -EISDIR;
    }
    simfile_t *file = simtree_file(&disk->tree, path);
    if (file == NULL) {
        simop_t op = {.kind = SIMDISK_OPEN, .path = path};
        if (!(flags & LDR_IO_CREATE) ||
            !simtree_has_dir(&disk->tree, path, simtree_parent_length(path))) {
            return -ENOENT;
        }
        if (!simdisk_op_begin(disk, &op)) {
            return -EIO;
        }
        file = simtree_create(&disk->tree, path);
    }
    return handle_add(disk, file, flags);
}

static void sim_close(ldr_io_t *io, int number)
{
    simdisk_t *disk = disk_of(io);
    simhandle_t *handle = handle_find(disk, number);

    if (handle == NULL) {
        return; /* the power cut closed it */
    }
    simfile_t *file = handle->file;
    *handle = disk->handles[--disk->handle_count];
    if (file->lock_holder == number) {
        file->lock_holder = -1;
    }
    file->opens--;
    simtree_put(&disk->tree, file);
}

static int sim_size(ldr_io_t *io, int number, uint64_t *bytes_p)
{
    simhandle_t *handle = handle_find(disk_of(io), number);

    if (disk_of(io)->off) {
        return -EIO;
    }
    if (handle == NULL) {
        return -EBADF;
    }
    *bytes_p = handle->file->size;
    return 0;
}

static bool has_room(const simdisk_t *disk, const simfile_t *file,
                     uint64_t bytes)
{
    uint64_t others = simdisk_used(disk) - file->size;

    return bytes <= file->size ||
           (others <= disk->capacity && bytes <= disk->capacity - others);
}

static int sim_allocate(ldr_io_t *io, int number, uint64_t bytes)
{
    simdisk_t *disk = disk_of(io);
    simhandle_t *handle = handle_find(disk, number);
    int error = simdisk_file_fails(disk, SIMDISK_ALLOCATE,
                                   handle != NULL ? handle->file : NULL);
    simop_t op = {.kind = SIMDISK_ALLOCATE, .bytes = bytes};

    if (error != 0) {
        return error;
    }
    if (handle == NULL || handle->flags & LDR_IO_READONLY) {
        return -EBADF;
    }
    if (!has_room(disk, handle->file, bytes)) {
        return -ENOSPC;
    }
    op.file = handle->file;
    if (!simdisk_op_begin(disk, &op)) {
        return -EIO;
    }
    simfile_resize(&disk->medium, op.file, bytes);
    return 0;
}

static int sim_lock(ldr_io_t *io, int number)
{
    simdisk_t *disk = disk_of(io);
    int error = simdisk_fails(disk, SIMDISK_LOCK);
    simhandle_t *handle = handle_find(disk, number);

    if (error != 0) {
        return error;
    }
    if (handle == NULL) {
        return -EBADF;
    }
    if (handle->file->lock_holder >= 0 && handle->file->lock_holder != number) {
        return -EWOULDBLOCK;
    }
    handle->file->lock_holder = number;
    return 0;
}

static int sim_make_dir(ldr_io_t *io, const char *path)
{
    simdisk_t *disk = disk_of(io);
    int error = simdisk_fails(disk, SIMDISK_MAKE_DIR);
    char buffer[SIM_PATH_BYTES];
    simop_t op = {.kind = SIMDISK_MAKE_DIR};

    if (error != 0) {
        return error;
    }
    op.path = simtree_normal(path, buffer);
    if (op.path == NULL) {
        return -ENAMETOOLONG;
    }
    if (simtree_file(&disk->tree, op.path) != NULL) {
        return -ENOTDIR;
    }
    if (simtree_has_dir(&disk->tree, op.path, strlen(op.path))) {
        return 0;
    }
    if (!simdisk_op_begin(disk, &op)) {
        return -EIO;
    }
    simtree_make_dirs(&disk->tree, op.path);
    return 0;
}

static int sim_sync_dir(ldr_io_t *io, const char *path)
{
    simdisk_t *disk = disk_of(io);
    int error = simdisk_fails(disk, SIMDISK_SYNC_DIR);
    char buffer[SIM_PATH_BYTES];
    simop_t op = {.kind = SIMDISK_SYNC_DIR};

    if (error != 0) {
        return error;
    }
    op.path = simtree_normal(path, buffer);
    if (op.path == NULL ||
        !simtree_has_dir(&disk->tree, op.path, strlen(op.path))) {
        return -ENOENT;
    }
    if (!simdisk_op_begin(disk, &op)) {
        return -EIO;
    }
    for (size_t i = 0; i < disk->tree.entry_count; i++) {
        if (simtree_is_in(disk->tree.entries[i].path, op.path)) {
            simentry_settle(&disk->tree, &disk->tree.entries[i]);
        }
    }
    return 0;
}

static int sim_unlink(ldr_io_t *io, const char *path)
{
    simdisk_t *disk = disk_of(io);
    int error = simdisk_fails(disk, SIMDISK_UNLINK);
    char buffer[SIM_PATH_BYTES];
    simop_t op = {.kind = SIMDISK_UNLINK};

    if (error != 0) {
        return error;
    }
    op.path = simtree_normal(path, buffer);
    if (op.path == NULL || simtree_file(&disk->tree, op.path) == NULL) {
        return -ENOENT;
    }
    if (!simdisk_op_begin(disk, &op)) {
        return -EIO;
    }
    simentry_mean(&disk->tree, simtree_entry(&disk->tree, op.path), NULL);
    return 0;
}

static const char *name_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}

static int sim_list(ldr_io_t *io, const char *path,
                    int (*fn)(void *arg, const char *name), void *arg)
{
    simdisk_t *disk = disk_of(io);
    int result = simdisk_fails(disk, SIMDISK_LIST);
    char buffer[SIM_PATH_BYTES];

    if (result != 0) {
        return result;
    }
    path = simtree_normal(path, buffer);
    if (path == NULL || !simtree_has_dir(&disk->tree, path, strlen(path))) {
        return -ENOENT;
    }
    for (size_t i = 0; i < disk->tree.dir_count && result == 0; i++) {
        if (simtree_is_in(disk->tree.dirs[i], path)) {
            result = fn(arg, name_of(disk->tree.dirs[i]));
        }
    }
    for (size_t i = 0; i < disk->tree.entry_count && result == 0; i++) {
        if (disk->tree.entries[i].now != NULL &&
            simtree_is_in(disk->tree.entries[i].path, path)) {
            result = fn(arg, name_of(disk->tree.entries[i].path));
        }
    }
    return result;
}

/* ---------------------------------------------------------- requests */

static bool is_aligned(const ldr_io_req_t *req)
{
    uint64_t bits = req->offset;

    for (unsigned i = 0; i < req->iov_count; i++) {
        bits |= (uintptr_t)req->iov[i].iov_base | req->iov[i].iov_len;
    }
    return bits % LDR_BLOCK == 0;
}

static int request_read(const simfile_t *file, const ldr_io_req_t *req)
{
    uint64_t offset = req->offset;

    for (unsigned i = 0; i < req->iov_count; i++) {
        uint64_t there = file->size > offset ? file->size - offset : 0;
        size_t bytes = (size_t)ldr_min64(req->iov[i].iov_len, there);

        simfile_read(file, offset, req->iov[i].iov_base, bytes);
        if (bytes < req->iov[i].iov_len) {
            return -ENODATA;
        }
        offset += bytes;
    }
    return 0;
}

/* A block of some file, not the one that was meant. */
static void misdirect(simdisk_t *disk, const ldr_io_req_t *req, uint64_t bytes)
{
    size_t at = ldr_rand_below(&disk->medium.rand, disk->tree.entry_count);
    simfile_t *file = disk->tree.entries[at].now;

    if (file == NULL || file->size < bytes) {
        return; /* it fell off the disk */
    }
    uint64_t blocks = (file->size - bytes) / LDR_BLOCK + 1;
    uint64_t offset = ldr_rand_below(&disk->medium.rand, blocks) * LDR_BLOCK;
    if (offset == req->offset) {
        offset = (offset / LDR_BLOCK + 1) % blocks * LDR_BLOCK;
    }
    simdisk_put(disk, file, offset, req, SIMTEAR_ALL);
}

static int do_write(simdisk_t *disk, simfile_t *file, ldr_io_req_t *req)
{
    simop_t op = {.kind = SIMDISK_WRITE, .file = file, .req = req};
    int error = simdisk_file_fails(disk, SIMDISK_WRITE, file);
    uint64_t bytes = 0;

    for (unsigned i = 0; i < req->iov_count; i++) {
        bytes += req->iov[i].iov_len;
    }
    if (!has_room(disk, file, req->offset + bytes)) {
        return -ENOSPC;
    }
    if (!simdisk_op_begin(disk, &op)) {
        return -EIO;
    }
    if (error != 0) {
        simdisk_put(disk, file, req->offset, req, simtear_draw(disk));
        return error;
    }
    if (simdisk_fails(disk, SIMDISK_WRITE_LOST) != 0) {
        return 0;
    }
    if (simdisk_fails(disk, SIMDISK_WRITE_MISDIRECTED) != 0) {
        misdirect(disk, req, bytes);
        return 0;
    }
    simdisk_put(disk, file, req->offset, req, SIMTEAR_ALL);
    return 0;
}

static int do_sync(simdisk_t *disk, simfile_t *file)
{
    simop_t op = {.kind = SIMDISK_SYNC, .file = file};
    int error = simdisk_fails(disk, SIMDISK_SYNC);

    if (!simdisk_op_begin(disk, &op)) {
        return -EIO;
    }
    if (error != 0) {
        simfile_sync_failed(&disk->medium, file);
        return error;
    }
    simfile_sync(file);
    return 0;
}

static int do_request(simdisk_t *disk, ldr_io_req_t *req)
{
    simhandle_t *handle = handle_find(disk, req->file);
    int error;

    if (disk->off) {
        return -EIO;
    }
    if (handle == NULL) {
        return -EBADF;
    }
    if (req->kind == LDR_IO_SYNC) {
        return do_sync(disk, handle->file);
    }
    if (handle->flags & LDR_IO_DIRECT && !is_aligned(req)) {
        return -EINVAL;
    }
    if (req->kind == LDR_IO_READ) {
        error = simdisk_fails(disk, SIMDISK_READ);
        return error != 0 ? error : request_read(handle->file, req);
    }
    if (handle->flags & LDR_IO_READONLY) {
        return -EBADF;
    }
    return do_write(disk, handle->file, req);
}

static void sim_submit(ldr_io_t *io, ldr_io_req_t **reqs, unsigned count)
{
    simdisk_t *disk = disk_of(io);
    ldr_io_req_t *req, **order;

    if (count == 0) {
        return;
    }
    order = simgrown(NULL, count * sizeof(*order));
    memcpy(order, reqs, count * sizeof(*order));
    for (unsigned i = 0; i < count; i++) {
        uint64_t at = i + ldr_rand_below(&disk->medium.rand, count - i);
        req = order[at];
        order[at] = order[i];
        ldr_io_list_append(&disk->queue, req);
    }
    free(order);
    if (disk->draining) {
        return; /* we are inside a done(): the outermost submit goes on */
    }
    disk->draining = true;
    while ((req = ldr_io_list_take(&disk->queue)) != NULL) {
        req->error = do_request(disk, req);
        req->done(req);
    }
    disk->draining = false;
}

static void sim_destroy(ldr_io_t *io)
{
    simdisk_close_all(disk_of(io));
}

const ldr_io_ops_t simdisk_io_ops = {
    .name = "simulated",
    .open = sim_open,
    .close = sim_close,
    .size = sim_size,
    .allocate = sim_allocate,
    .lock = sim_lock,
    .make_dir = sim_make_dir,
    .sync_dir = sim_sync_dir,
    .unlink = sim_unlink,
    .list = sim_list,
    .submit = sim_submit,
    .destroy = sim_destroy,
};
