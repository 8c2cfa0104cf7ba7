/*
 * Files, and one transfer's progress, for both real engines.
 *
 * State: a request's own fields behind "the engine's own" in io.h. They are
 * changed by the thread that carries the request out, between ldr_posix_begin()
 * and its end; the engine sees to it that this is one thread at a time. No lock
 * is taken. moved_bytes + what is left in iov[iov_at..] is always the whole
 * request, and iov[iov_at] is not empty unless the list is at its end.
 */
#define _GNU_SOURCE
#include "base/io_posix.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/fault.h"
#include "base/iov.h"

/* How often in a row the kernel may say EINTR or EAGAIN to one request before
 * that counts as a failed disk: nothing here waits for ever. */
#define STALLS_MAX 1000u

/* Less than the kernel's own limit for one transfer, and a round number. */
#define PART_BYTES_MAX (1u << 30)

#define ZEROS_BYTES 65536u

int ldr_posix_open(ldr_io_t *io, const char *path, int flags)
{
    int mode = (flags & LDR_IO_READONLY) ? O_RDONLY : O_RDWR;
    int fd = -1;

    (void)io;
    if (LDR_FAULT(io_open)) {
        return -EIO;
    }
    mode |= O_CLOEXEC | ((flags & LDR_IO_CREATE) ? O_CREAT : 0);
    if (flags & LDR_IO_DIRECT) {
        fd = open(path, mode | O_DIRECT, 0600);
    }
    if (fd < 0 && (!(flags & LDR_IO_DIRECT) || errno == EINVAL)) {
        fd = open(path, mode, 0600);
    }
    return fd >= 0 ? fd : -errno;
}

void ldr_posix_close(ldr_io_t *io, int file)
{
    (void)io;
    /* A child that the process forked has the file too, and would keep its
     * lock. Closing is the end of the lock for all. */
    flock(file, LOCK_UN);
    close(file);
}

int ldr_posix_size(ldr_io_t *io, int file, uint64_t *bytes_p)
{
    struct stat st;

    (void)io;
    if (fstat(file, &st) != 0) {
        return -errno;
    }
    *bytes_p = (uint64_t)st.st_size;
    return 0;
}

/* Where the file system cannot reserve: writes what is missing. Whole blocks,
 * since the file may be open for direct I/O; the caller sets the length. */
static int fill_with_zeros(int file, uint64_t from, uint64_t to)
{
    static const uint8_t zeros[ZEROS_BYTES] __attribute__((aligned(LDR_BLOCK)));
    unsigned stalls = 0;

    from = ldr_div_up(from, LDR_BLOCK) * LDR_BLOCK;
    to = ldr_div_up(to, LDR_BLOCK) * LDR_BLOCK;
    while (from < to) {
        size_t bytes = (size_t)ldr_min64(to - from, ZEROS_BYTES);
        ssize_t result = pwrite(file, zeros, bytes, (off_t)from);

        if (result >= (ssize_t)LDR_BLOCK) {
            from += (uint64_t)result / LDR_BLOCK * LDR_BLOCK;
            stalls = 0;
        } else if (result < 0 && errno != EINTR) {
            return -errno;
        } else if (++stalls > STALLS_MAX) {
            return -EIO;
        }
    }
    return 0;
}

static int file_reserve(int file, uint64_t old_bytes, uint64_t bytes)
{
    int result;
    unsigned stalls = 0;

    if (bytes > INT64_MAX) {
        return -EFBIG;
    }
    do {
        result = fallocate(file, 0, 0, (off_t)bytes) == 0 ? 0 : -errno;
    } while (result == -EINTR && ++stalls < STALLS_MAX);
    if (result == -EOPNOTSUPP || result == -ENOSYS) {
        result = fill_with_zeros(file, old_bytes, bytes);
    }
    if (result == 0 && LDR_FAULT(io_allocate)) {
        return -ENOSPC; /* the last bytes of it, the worst case */
    }
    return result == -EDQUOT ? -ENOSPC : result;
}

int ldr_posix_allocate(ldr_io_t *io, int file, uint64_t bytes)
{
    uint64_t old_bytes = 0;
    int result = ldr_posix_size(io, file, &old_bytes);

    if (result != 0) {
        return result;
    }
    if (bytes > 0) {
        result = file_reserve(file, old_bytes, bytes);
    }
    if (result == 0 && ftruncate(file, (off_t)bytes) != 0) {
        result = -errno;
    }
    if (result != 0 && bytes > old_bytes) {
        /* A part of it may be reserved: give that back. */
        if (ftruncate(file, (off_t)old_bytes) != 0) {
            return -EIO;
        }
    }
    return result;
}

int ldr_posix_lock(ldr_io_t *io, int file)
{
    (void)io;
    if (LDR_FAULT(io_lock)) {
        return -ENOLCK;
    }
    /* flock, unlike a POSIX record lock, belongs to the open file: it holds
     * also against a second opener in this process. */
    return flock(file, LOCK_EX | LOCK_NB) == 0 ? 0 : -errno;
}

/* The entry of path in its parent becomes durable. */
static int sync_parent(ldr_io_t *io, const char *path)
{
    char parent[PATH_MAX];
    size_t length = strlen(path);

    while (length > 0 && path[length - 1] == '/') {
        length--;
    }
    while (length > 0 && path[length - 1] != '/') {
        length--;
    }
    if (length == 0) {
        return ldr_posix_sync_dir(io, ".");
    }
    memcpy(parent, path, length);
    parent[length] = '\0';
    return ldr_posix_sync_dir(io, parent);
}

static int make_one_dir(ldr_io_t *io, const char *path)
{
    struct stat st;

    if (mkdir(path, 0700) == 0) {
        return sync_parent(io, path);
    }
    /* What is there already need not say EEXIST: a read-only file system or
     * a parent of somebody else's comes first. */
    int error = errno;
    if (stat(path, &st) != 0) {
        return error == EEXIST ? -errno : -error; /* a link to nowhere */
    }
    return S_ISDIR(st.st_mode) ? 0 : -ENOTDIR;
}

int ldr_posix_make_dir(ldr_io_t *io, const char *path)
{
    char part[PATH_MAX];
    size_t length = strlen(path);

    if (length == 0) {
        return -ENOENT;
    }
    if (length >= sizeof(part)) {
        return -ENAMETOOLONG;
    }
    for (size_t i = 1; i < length; i++) {
        if (path[i] == '/' && path[i - 1] != '/') {
            memcpy(part, path, i);
            part[i] = '\0';
            int result = make_one_dir(io, part);
            if (result != 0) {
                return result;
            }
        }
    }
    return make_one_dir(io, path);
}

int ldr_posix_sync_dir(ldr_io_t *io, const char *path)
{
    int result = 0;

    (void)io;
    if (LDR_FAULT(io_sync)) {
        return -EIO;
    }
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return -errno;
    }
    /* EINVAL: a file system whose directories need no sync. */
    if (fsync(fd) != 0 && errno != EINVAL) {
        result = -errno;
    }
    close(fd);
    return result;
}

int ldr_posix_unlink(ldr_io_t *io, const char *path)
{
    (void)io;
    return unlink(path) == 0 ? 0 : -errno;
}

int ldr_posix_list(ldr_io_t *io, const char *path,
                   int (*fn)(void *arg, const char *name), void *arg)
{
    struct dirent *entry;
    int result = 0;
    DIR *dir = opendir(path);

    (void)io;
    if (dir == NULL) {
        return -errno;
    }
    while (result == 0) {
        errno = 0;
        entry = readdir(dir);
        if (entry == NULL) {
            result = -errno;
            break;
        }
        if (strcmp(entry->d_name, ".") != 0 &&
            strcmp(entry->d_name, "..") != 0) {
            result = fn(arg, entry->d_name);
        }
    }
    closedir(dir);
    return result;
}

int ldr_posix_thread(pthread_t *thread_p, const char *name,
                     void *(*run)(void *arg), void *arg)
{
    sigset_t all, old;

    if (LDR_FAULT(thread_create)) {
        return -EAGAIN;
    }
    /* The new thread inherits the mask: there is no moment without it. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int error = pthread_create(thread_p, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (error == 0) {
        pthread_setname_np(*thread_p, name);
    }
    return -error;
}

void ldr_posix_begin(ldr_io_req_t *req)
{
    req->error = 0;
    req->moved_bytes = 0;
    req->stalls = 0;
    req->next = NULL;
    if (req->kind == LDR_IO_SYNC) {
        req->iov_count = 0;
    }
    req->iov_at = ldr_iov_drop(req->iov, req->iov_count, 0);
}

void ldr_posix_next(const ldr_io_req_t *req, ldr_posix_part_t *part)
{
    static struct iovec nothing;
    unsigned left = req->iov_count - req->iov_at;

    part->iov = left > 0 ? &req->iov[req->iov_at] : &nothing;
    part->count = left == 0 ? 1 : (unsigned)ldr_min64(left, IOV_MAX);
    part->bytes = ldr_min64(part->iov->iov_len, PART_BYTES_MAX);
    part->offset = req->offset + req->moved_bytes;
    if (req->kind == LDR_IO_READ ? LDR_FAULT(io_read_short)
                                 : LDR_FAULT(io_write_short)) {
        part->count = 1;
        part->bytes = ldr_min64(part->bytes, LDR_BLOCK);
    }
}

/* Takes n bytes off the front of what is still to be moved. */
static void iov_advance(ldr_io_req_t *req, size_t bytes)
{
    req->moved_bytes += bytes;
    if (req->iov_at < req->iov_count) {
        req->iov_at += ldr_iov_drop(&req->iov[req->iov_at],
                                    req->iov_count - req->iov_at, bytes);
    }
}

static ssize_t inject(const ldr_io_req_t *req, ssize_t result)
{
    if (req->kind == LDR_IO_READ    ? LDR_FAULT(io_read)
        : req->kind == LDR_IO_WRITE ? LDR_FAULT(io_write)
                                    : LDR_FAULT(io_sync)) {
        return -EIO;
    }
    if (LDR_FAULT(io_intr)) {
        return req->stalls % 2 == 0 ? -EINTR : -EAGAIN;
    }
    return result;
}

bool ldr_posix_again(ldr_io_req_t *req, ssize_t result)
{
    result = inject(req, result);
    if (result == -EINTR || result == -EAGAIN || result == -ECANCELED) {
        /* ECANCELED: the thread that submitted to the ring has ended. */
        req->error = -EIO;
        return ++req->stalls < STALLS_MAX;
    }
    if (result < 0) {
        /* Direct I/O cannot go on from within a block: a read got there
         * because the file ended. */
        bool ragged = req->moved_bytes % LDR_BLOCK != 0;
        req->error = (int)result;
        if (result == -EINVAL && ragged) {
            req->error = req->kind == LDR_IO_READ ? -ENODATA : -EIO;
        }
        return false;
    }
    req->stalls = 0;
    req->error = 0;
    iov_advance(req, (size_t)result);
    if (req->iov_at == req->iov_count) {
        return false;
    }
    if (result == 0) {
        req->error = req->kind == LDR_IO_READ ? -ENODATA : -EIO;
        return false;
    }
    return true;
}
