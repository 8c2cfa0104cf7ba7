/*
 * Files of the back ends dir: and 3fs:, whole transfers, and the files that
 * stay open for reading.
 *
 * A put: a temporary name in the object's own directory, the bytes, fsync,
 * rename, fsync of the directory. A name that begins with a dot is no object's,
 * so nobody ever sees it; what a writer that died leaves is removed when it is
 * an hour old (dir_list.c).
 *
 * Whole blocks in whole blocks of memory go by O_DIRECT: on a local disk reads
 * are up to twice as fast as through the page cache and puts a fifth, and
 * nobody reads the same object twice, since what was read stays in DRAM.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/fault.h"
#include "base/mem.h"
#include "base/thread.h"
#include "tier/shared/dir_int.h"
#include "base/iov.h"

#define PARTS_MAX 1024u /* the kernel's IOV_MAX */
/* Of one call, so that a deadline is looked at now and then. */
#define PART_BYTES_MAX ((size_t)32 << 20)
#define STALLS_MAX 1000u
#define READS_MAX 16

/* ---- opening ---- */

/* Nothing that others could have put there leads out of the directory, and no
 * pipe holds the thread. */
int ldr_dir_openat(ldr_dir_t *dir, int root, const char *name, int flags)
{
    int fd;

    flags |= O_CLOEXEC | O_NOFOLLOW | ((flags & O_PATH) != 0 ? 0 : O_NONBLOCK);
#ifdef SYS_openat2
    if (!atomic_load_explicit(&dir->plain, memory_order_relaxed)) {
        struct open_how how = {.flags = (uint64_t)flags,
                               .mode = (flags & O_CREAT) != 0 ? 0600 : 0,
                               .resolve =
                                   RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS};

        fd = (int)syscall(SYS_openat2, root, name, &how, sizeof(how));
        if (fd >= 0) {
            return fd;
        }
        /* An old kernel, or a container that does not know the call. */
        if (errno != ENOSYS && errno != EPERM && errno != EAGAIN) {
            return -errno;
        }
        atomic_store(&dir->plain, errno != EAGAIN);
    }
#endif
    fd = openat(root, name, flags, 0600);
    return fd >= 0 ? fd : -errno;
}

/* ---- transfers ---- */

typedef struct move {
    ldr_dir_t *dir;
    const ldr_dir_call_t *call;
    int fd;
    bool writing, direct;
    uint64_t done; /* bytes */
    ldr_iov_t left;
} move_t;

/* Whether all of it is whole blocks. */
static bool aligned(const ldr_dir_call_t *call)
{
    uint64_t bits = call->offset;

    for (unsigned i = 0; i < call->count; i++) {
        bits |= (uintptr_t)call->iov[i].iov_base | call->iov[i].iov_len;
    }
    return bits % LDR_BLOCK == 0;
}

/* What to ask the kernel for next. */
static unsigned next_parts(const move_t *m, struct iovec *parts)
{
    unsigned count = ldr_iov_next(&m->left, PART_BYTES_MAX, parts, PARTS_MAX);

    if (count > 0 && LDR_FAULT(dir_short)) {
        size_t half = ldr_div_up(parts[0].iov_len, 2 * LDR_BLOCK) * LDR_BLOCK;

        parts[0].iov_len = ldr_min64(parts[0].iov_len, half);
        count = 1;
    }
    return count;
}

static ssize_t one_part(const move_t *m, const struct iovec *parts,
                        unsigned count)
{
    off_t offset = (off_t)(m->call->offset + m->done);
    ssize_t n;

    if (m->writing) {
        if (LDR_FAULT(dir_write)) {
            return -EIO;
        }
        if (LDR_FAULT(dir_full)) {
            return -ENOSPC;
        }
        n = pwritev(m->fd, parts, (int)count, offset);
    } else {
        if (LDR_FAULT(dir_read)) {
            return -EIO;
        }
        if (LDR_FAULT(dir_slow)) {
            usleep(50000);
        }
        n = preadv(m->fd, parts, (int)count, offset);
    }
    return n < 0 ? -errno : n;
}

/* The file system takes direct I/O on other terms than ours, or not at all:
 * unless a short write was what made it odd, that is so for all files. */
static bool go_cached(move_t *m)
{
    int flags = fcntl(m->fd, F_GETFL);

    m->direct = false;
    if (m->done % LDR_BLOCK == 0) {
        atomic_store(&m->dir->cached, true);
    }
    return flags >= 0 && fcntl(m->fd, F_SETFL, flags & ~O_DIRECT) == 0;
}

static int move_all(move_t *m)
{
    struct iovec parts[PARTS_MAX];
    unsigned stalls = 0, count;

    while ((count = next_parts(m, parts)) > 0) {
        if (ldr_dir_late(m->dir, m->call->deadline_ns)) {
            return -ETIMEDOUT;
        }
        ssize_t n = one_part(m, parts, count);
        if (n > 0) {
            m->done += (size_t)n;
            ldr_iov_skip(&m->left, (size_t)n);
            stalls = 0;
        } else if (n == 0) {
            return m->writing ? -EIO : -ENODATA;
        } else if (n == -EINVAL && !m->writing && m->done % LDR_BLOCK != 0) {
            return -ENODATA; /* direct, behind an end that is no block's */
        } else if (n == -EINVAL && m->direct) {
            if (!go_cached(m)) {
                return -EIO;
            }
        } else if ((n != -EINTR && n != -EAGAIN) || ++stalls > STALLS_MAX) {
            return (int)n;
        }
    }
    return 0;
}

/* ---- writing ---- */

static uint64_t path_hash(const char *path, size_t length)
{
    uint64_t h = 0xcbf29ce484222325u;

    for (size_t i = 0; i < length; i++) {
        h = (h ^ (uint8_t)path[i]) * 0x100000001b3u;
    }
    return h | 1; /* 0 is an empty place */
}

/* Whether the entry of that folder is known to be durable; set: it is now, in
 * the place of the one of its few that was set longest ago. */
static bool durable(ldr_dir_t *dir, uint64_t hash, bool set)
{
    /* Names differ in their last bytes only, which are in few bits of it. */
    uint64_t *few =
        dir->durable[(hash * 0x9e3779b97f4a7c15u >> 32) % LDR_DIR_DURABLE];
    unsigned at = 0;

    ldr_mutex_lock(&dir->lock);
    while (at < LDR_DIR_FEW && few[at] != hash) {
        at++;
    }
    bool known = at < LDR_DIR_FEW;
    if (set && !known) {
        memmove(few + 1, few, (LDR_DIR_FEW - 1) * sizeof(*few));
        few[0] = hash;
    }
    ldr_mutex_unlock(&dir->lock);
    return known;
}

static int sync_fd(int fd)
{
    if (LDR_FAULT(dir_sync)) {
        return -EIO;
    }
    return fsync(fd) == 0 ? 0 : -errno;
}

/* EINVAL: a file system whose directories need no sync. */
static int sync_folder(int fd)
{
    int error = LDR_FAULT(dir_folder) ? -EINVAL : sync_fd(fd);

    return error == -EINVAL || error == -EOPNOTSUPP ? 0 : error;
}

/* Who may use the directory may use what is in it; others never. */
static mode_t mode_of(const ldr_dir_root_t *root, mode_t mask)
{
    return root->mode & mask & 02770;
}

static void allow(int fd, mode_t mode)
{
    if (fchmod(fd, mode) != 0) {
        return; /* a file system with rules of its own */
    }
}

/* The directory `name` below `parent`, made if it is missing, with its entry
 * in the parent durable. A descriptor, or a negative errno. */
static int make_folder(ldr_dir_t *dir, const ldr_dir_root_t *root, int parent,
                       const char *name, uint64_t hash)
{
    bool known = durable(dir, hash, false);
    int fd = ldr_dir_openat(dir, parent, name, O_RDONLY | O_DIRECTORY);
    int error = 0;

    if (fd == -ENOENT) {
        known = false;
        bool made = mkdirat(parent, name, 0700) == 0;
        if (!made && errno != EEXIST) {
            return -errno;
        }
        fd = ldr_dir_openat(dir, parent, name, O_RDONLY | O_DIRECTORY);
        if (made && fd >= 0) {
            allow(fd, mode_of(root, 02770) | 0700);
        }
    }
    if (fd < 0) {
        return fd;
    }
    if (!known) {
        error = sync_folder(parent);
    }
    if (error != 0) {
        close(fd);
        return error;
    }
    durable(dir, hash, true);
    return fd;
}

/* The directory that the object lies in. *base_p: the rest of its name. */
static int open_folder(ldr_dir_t *dir, const ldr_dir_root_t *root,
                       const char *name, const char **base_p)
{
    char part[LDR_OBJECT_NAME_MAX + 1];
    int fd = ldr_dir_openat(dir, root->fd, ".", O_RDONLY | O_DIRECTORY);
    const char *at = name, *slash;

    while (fd >= 0 && (slash = strchr(at, '/')) != NULL) {
        memcpy(part, at, (size_t)(slash - at));
        part[slash - at] = '\0';
        int below = make_folder(dir, root, fd, part,
                                path_hash(name, (size_t)(slash - name)));
        close(fd);
        fd = below;
        at = slash + 1;
    }
    *base_p = at;
    return fd;
}

/* Where renameat2() cannot: a second name for the file, if that is free. An
 * answer that got lost and was asked for again (NFS) shows in its links. */
static int link_new(int folder, int fd, const char *temp, const char *base)
{
    struct stat st;
    int error = linkat(folder, temp, folder, base, 0) == 0 ? 0 : -errno;

    if (error == -EEXIST && fstat(fd, &st) == 0 && st.st_nlink == 2) {
        error = 0;
    }
    if (error == -EPERM || error == -ENOSYS || error == -EINVAL) {
        error = -EOPNOTSUPP;
    }
    if (error == 0) {
        unlinkat(folder, temp, 0);
    }
    return error;
}

static int rename_in(int folder, int fd, const char *temp, const char *base,
                     bool new)
{
    int error;

    if (LDR_FAULT(dir_rename)) {
        return -EIO;
    }
    if (!new &&LDR_FAULT(dir_kept)) {
        return unlinkat(folder, temp, 0) == 0 ? 0 : -errno;
    }
    if (!new || LDR_FAULT(dir_taken)) {
        return renameat(folder, temp, folder, base) == 0 ? 0 : -errno;
    }
    error = LDR_FAULT(dir_no_replace)
                ? -EINVAL
                : (syscall(SYS_renameat2, folder, temp, folder, base,
                           RENAME_NOREPLACE) == 0
                       ? 0
                       : -errno);
    if (error == -EINVAL || error == -ENOSYS || error == -EOPNOTSUPP) {
        error = link_new(folder, fd, temp, base);
    }
    return error;
}

static int write_whole(ldr_dir_t *dir, int fd, bool direct,
                       const ldr_dir_call_t *call)
{
    move_t m = {.dir = dir,
                .call = call,
                .fd = fd,
                .writing = true,
                .direct = direct,
                .left = {call->iov, call->count, 0}};
    int error = 1;

    if (dir->via != NULL && dir->via->opened(dir->via_arg, fd)) {
        error = dir->via->move(dir->via_arg, fd, true, call->iov, call->count,
                               0, call->deadline_ns);
        dir->via->closed(dir->via_arg, fd);
    }
    if (error == 1) {
        error = move_all(&m);
    }
    return error == 0 ? sync_fd(fd) : error;
}

/* A file of the temporary name; where the file system has no O_DIRECT,
 * without. */
static int open_temp(ldr_dir_t *dir, int folder, const char *temp, bool *direct)
{
    const int flags = O_WRONLY | O_CREAT | O_EXCL;
    int fd = -EINVAL;

    if (*direct) {
        fd = ldr_dir_openat(dir, folder, temp, flags | O_DIRECT);
    }
    if (fd == -EINVAL) {
        atomic_store(&dir->cached, atomic_load(&dir->cached) || *direct);
        unlinkat(folder, temp, 0); /* some make it before they refuse */
        *direct = false;
        fd = ldr_dir_openat(dir, folder, temp, flags);
    }
    return fd;
}

int ldr_dir_write(ldr_dir_t *dir, ldr_dir_root_t *root,
                  const ldr_dir_call_t *call)
{
    char temp[sizeof(LDR_DIR_TEMP) + 16];
    const char *base;
    bool direct = aligned(call) && ldr_iov_bytes(call->iov, call->count) > 0 &&
                  !atomic_load_explicit(&dir->cached, memory_order_relaxed);
    int error, folder = open_folder(dir, root, call->name, &base);

    if (folder < 0) {
        return folder;
    }
    snprintf(temp, sizeof(temp), LDR_DIR_TEMP "%016llx",
             (unsigned long long)ldr_rand_entropy());
    int fd = open_temp(dir, folder, temp, &direct);
    if (fd < 0) {
        close(folder);
        return fd;
    }
    if (mode_of(root, 0060) != 0) {
        allow(fd, mode_of(root, 0660) | 0600);
    }
    error = write_whole(dir, fd, direct, call);
    if (error == 0) {
        error = rename_in(folder, fd, temp, base,
                          (call->flags & LDR_OBJECT_NEW) != 0);
    }
    /* NFS says only here that the disk is full. */
    if (close(fd) != 0 && error == 0 && errno != EINTR) {
        error = -errno;
    }
    if (error == 0) {
        ldr_dir_files_close(dir, call->name, 0);
        error = sync_folder(folder);
    } else {
        unlinkat(folder, temp, 0);
    }
    close(folder);
    return error;
}

/* ---- files that stay open ---- */

/* Gives up one reference. */
static void file_leave(ldr_dir_t *dir, ldr_dir_file_t *file)
{
    ldr_mutex_lock(&dir->lock);
    LDR_ASSERT(file->refs > 0);
    bool last = --file->refs == 0;
    ldr_mutex_unlock(&dir->lock);
    if (last) {
        if (file->via) {
            dir->via->closed(dir->via_arg, file->fd);
        }
        close(file->fd);
        ldr_free(file);
    }
}

static ldr_dir_file_t *file_find(ldr_dir_t *dir, const char *name)
{
    ldr_dir_file_t *found = NULL;

    ldr_mutex_lock(&dir->lock);
    for (unsigned i = 0; i < LDR_DIR_FILES && found == NULL; i++) {
        ldr_dir_file_t *file = dir->files[i];

        if (file != NULL && strcmp(file->name, name) == 0) {
            found = file;
            found->refs++;
            found->used_ns = ldr_now_ns(dir->clock);
        }
    }
    ldr_mutex_unlock(&dir->lock);
    return found;
}

/* In the place of the one that was used longest ago. */
static void file_keep(ldr_dir_t *dir, const ldr_dir_root_t *root,
                      ldr_dir_file_t *file)
{
    ldr_dir_file_t *out = NULL;
    unsigned at = 0;

    ldr_mutex_lock(&dir->lock);
    for (unsigned i = 0; i < LDR_DIR_FILES; i++) {
        if (dir->files[i] == NULL) {
            at = i;
            break;
        }
        if (dir->files[i]->used_ns < dir->files[at]->used_ns) {
            at = i;
        }
    }
    if (dir->root == root) { /* else it is of another mount */
        out = dir->files[at];
        dir->files[at] = file;
        file->refs++;
    }
    ldr_mutex_unlock(&dir->lock);
    if (out != NULL) {
        file_leave(dir, out);
    }
}

void ldr_dir_files_close(ldr_dir_t *dir, const char *name, uint64_t since_ns)
{
    for (unsigned i = 0; i < LDR_DIR_FILES; i++) {
        ldr_mutex_lock(&dir->lock);
        ldr_dir_file_t *file = dir->files[i];
        if (file != NULL && (name != NULL ? strcmp(file->name, name) == 0
                                          : file->used_ns <= since_ns)) {
            dir->files[i] = NULL;
        } else {
            file = NULL;
        }
        ldr_mutex_unlock(&dir->lock);
        if (file != NULL) {
            file_leave(dir, file);
        }
    }
}

/* ---- reading ---- */

/* With one reference. */
static int file_open(ldr_dir_t *dir, const ldr_dir_root_t *root,
                     const char *name, bool direct, ldr_dir_file_t **file_p)
{
    struct stat st;
    int fd = -EINVAL;

    direct &= !atomic_load_explicit(&dir->cached, memory_order_relaxed);
    if (direct) {
        fd = ldr_dir_openat(dir, root->fd, name, O_RDONLY | O_DIRECT);
        direct = fd >= 0;
    }
    if (fd == -EINVAL) {
        fd = ldr_dir_openat(dir, root->fd, name, O_RDONLY);
    }
    if (fd < 0) {
        return fd == -ENOTDIR || fd == -ELOOP ? -ENOENT : fd;
    }
    int error = fstat(fd, &st) != 0 ? -errno : 0;
    if (error == 0 && !S_ISREG(st.st_mode)) {
        error = -ENOENT;
    }
    ldr_dir_file_t *file = error == 0 ? ldr_alloc(sizeof(*file)) : NULL;
    if (file == NULL) {
        close(fd);
        return error != 0 ? error : -ENOMEM;
    }
    *file = (ldr_dir_file_t){.fd = fd,
                             .direct = direct,
                             .kept = (uint64_t)st.st_size >=
                                     LDR_OBJECT_REPLACED_MAX,
                             .refs = 1,
                             .used_ns = ldr_now_ns(dir->clock)};
    snprintf(file->name, sizeof(file->name), "%s", name);
    file->via = dir->via != NULL && dir->via->opened(dir->via_arg, fd);
    *file_p = file;
    return 0;
}

static int read_once(ldr_dir_t *dir, ldr_dir_root_t *root,
                     const ldr_dir_call_t *call)
{
    bool blocks = aligned(call);
    ldr_dir_file_t *file = blocks ? file_find(dir, call->name) : NULL;
    int error = 0;

    if (file == NULL) {
        error = file_open(dir, root, call->name, blocks, &file);
        if (error != 0) {
            return error;
        }
        if (blocks && file->kept) {
            file_keep(dir, root, file);
        }
    }
    move_t m = {.dir = dir,
                .call = call,
                .fd = file->fd,
                .direct = file->direct,
                .left = {call->iov, call->count, 0}};
    error = file->via
                ? dir->via->move(dir->via_arg, file->fd, false, call->iov,
                                 call->count, call->offset, call->deadline_ns)
                : 1;
    if (error == 1) {
        error = move_all(&m);
    }
    file_leave(dir, file);
    return error;
}

/* A file that is replaced just now may be called missing by a FUSE process that
 * goes by paths: if there is one of that name, it is read again. */
int ldr_dir_read(ldr_dir_t *dir, ldr_dir_root_t *root,
                 const ldr_dir_call_t *call)
{
    struct stat st;
    int error, tries = 0;

    do {
        error = read_once(dir, root, call);
    } while (error == -ENOENT && tries++ < READS_MAX &&
             fstatat(root->fd, call->name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
             S_ISREG(st.st_mode));
    return error;
}
