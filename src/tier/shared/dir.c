/*
 * dir:/PATH: the root, and the calls but listing. dir_int.h says what holds.
 *
 * Any worker calls it, several at once. dir->lock guards the root, the id and
 * the tables, for bookkeeping only: no call to the kernel is made with it.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/mem.h"
#include "base/thread.h"
#include "tier/shared/dir_int.h"

#define IDLE_NS ((uint64_t)5 * 1000000000) /* that a file stays open */

/* ---- texts ---- */

static const char *error_advice(int error)
{
    switch (error) {
    case -EACCES:
    case -EPERM:
        return "; let this user read and write there (`larder doctor` looks)";
    case -EROFS:
        return "; mount it for writing";
    case -ENOSPC:
        return "; free some space, or set a budget for the tier";
    case -ENOTCONN:
    case -ESTALE:
    case -ESHUTDOWN:
        return "; mount it again";
    case -EMFILE:
    case -ENFILE:
        return "; raise the limit of open files";
    case -EOPNOTSUPP:
        return "; the file system has neither renameat2() nor link()";
    default:
        return "";
    }
}

int ldr_dir_says(const ldr_dir_t *dir, int error, const char *what,
                 const char *name)
{
    if (error < 0) {
        ldr_fail(LARDER_E_IO, "%s: cannot %s %s: %s%s", dir->url, what, name,
                 error == -ENODATA ? "it is shorter than that"
                                   : strerror(-error),
                 error_advice(error));
    }
    return error;
}

bool ldr_dir_late(const ldr_dir_t *dir, uint64_t deadline_ns)
{
    return ldr_now_ns(dir->clock) >= deadline_ns;
}

/* ---- the root ---- */

static void root_free(ldr_dir_root_t *root)
{
    close(root->fd);
    ldr_free(root);
}

void ldr_dir_leave(ldr_dir_t *dir, ldr_dir_root_t *root)
{
    ldr_mutex_lock(&dir->lock);
    LDR_ASSERT(root->refs > 0);
    bool last = --root->refs == 0;
    ldr_mutex_unlock(&dir->lock);
    if (last) {
        root_free(root);
    }
}

/* Puts another in its place, or NULL, if `old` is what is there. */
static void root_set(ldr_dir_t *dir, const ldr_dir_root_t *old,
                     ldr_dir_root_t *root)
{
    ldr_dir_root_t *was = NULL;

    ldr_mutex_lock(&dir->lock);
    if (dir->root == old) {
        was = dir->root;
        dir->root = root;
        memset(dir->durable, 0, sizeof(dir->durable));
        root = NULL;
    }
    ldr_mutex_unlock(&dir->lock);
    ldr_dir_files_close(dir, NULL, UINT64_MAX);
    if (was != NULL) {
        ldr_dir_leave(dir, was);
    }
    if (root != NULL) {
        root_free(root); /* somebody else was faster */
    }
}

void ldr_dir_forget(ldr_dir_t *dir, ldr_dir_root_t *root)
{
    root_set(dir, root, NULL);
}

/* The directory that the path leads to now. */
static int root_open(ldr_dir_t *dir, ldr_dir_root_t **root_p)
{
    struct stat st;
    int error = 0;
    int fd = open(dir->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0 || fstat(fd, &st) != 0) {
        error = errno;
    }
    if (error == ENOENT || error == ENOTDIR) {
        ldr_fail(LARDER_E_IO,
                 "%s: no such directory: is it mounted? (For a new tier: make "
                 "it, then `larder tier create %s`)",
                 dir->url, dir->url);
        error = ENODEV;
    } else if (error != 0) {
        ldr_dir_says(dir, -error, "open", "it");
    }
    ldr_dir_root_t *root = error == 0 ? ldr_alloc(sizeof(*root)) : NULL;
    if (root == NULL) {
        if (fd >= 0) {
            close(fd);
        }
        return error != 0 ? -error : ldr_dir_says(dir, -ENOMEM, "open", "it");
    }
    *root = (ldr_dir_root_t){.fd = fd,
                             .dev = st.st_dev,
                             .ino = st.st_ino,
                             .mode = st.st_mode,
                             .refs = 1};
    *root_p = root;
    return 0;
}

/* What is in the id file, at most LDR_DIR_ID_MAX bytes. */
static int id_read(ldr_dir_t *dir, const ldr_dir_root_t *root, uint8_t *id,
                   size_t *bytes_p)
{
    int fd = ldr_dir_openat(dir, root->fd, LDR_OBJECTS_ID_NAME, O_RDONLY);
    ssize_t n = -1;
    int error = fd < 0 ? fd : 0;

    if (fd >= 0) {
        n = pread(fd, id, LDR_DIR_ID_MAX, 0);
        error = n < 0 ? -errno : 0;
        close(fd);
    }
    if (error == -ENOENT || (error == 0 && n == 0)) {
        ldr_fail(LARDER_E_IO,
                 "no %s in %s: is it mounted? (For a new tier: `larder tier "
                 "create %s`)",
                 LDR_OBJECTS_ID_NAME, dir->path, dir->url);
        return -ENODEV;
    }
    *bytes_p = n > 0 ? (size_t)n : 0;
    return ldr_dir_says(dir, error, "read", LDR_OBJECTS_ID_NAME);
}

/* Whether it is the tier that was seen first. */
static int id_check(ldr_dir_t *dir, const uint8_t *id, size_t bytes)
{
    bool same;

    ldr_mutex_lock(&dir->lock);
    if (dir->id_bytes == 0) {
        memcpy(dir->id, id, bytes);
        dir->id_bytes = bytes;
    }
    same = dir->id_bytes == bytes && memcmp(dir->id, id, bytes) == 0;
    ldr_mutex_unlock(&dir->lock);
    if (same) {
        return 0;
    }
    ldr_fail(LARDER_E_IO,
             "%s has the id of another tier than before: mount the first one "
             "again, or restart the node to use this one",
             dir->path);
    return -ENODEV;
}

/* Whether the root in use is that directory, and alive: a file system that was
 * mounted again may have the numbers of the one that died. */
static bool root_same(ldr_dir_t *dir, const ldr_dir_root_t *fresh,
                      ldr_dir_root_t **old_p)
{
    struct stat st;
    bool same = false;

    ldr_mutex_lock(&dir->lock);
    ldr_dir_root_t *old = dir->root;
    if (old != NULL) {
        old->refs++;
    }
    ldr_mutex_unlock(&dir->lock);
    *old_p = old;
    if (old != NULL) {
        same = old->dev == fresh->dev && old->ino == fresh->ino &&
               fstat(old->fd, &st) == 0 && st.st_nlink > 0;
        ldr_dir_leave(dir, old); /* compared by address only from here on */
    }
    return same;
}

int ldr_dir_health(ldr_backend_t *b, uint64_t deadline_ns)
{
    ldr_dir_t *dir = (ldr_dir_t *)b;
    ldr_dir_root_t *fresh = NULL, *old = NULL;
    uint8_t id[LDR_DIR_ID_MAX];
    size_t id_bytes = 0;
    int error;

    (void)deadline_ns; /* nothing here can be given up */
    uint64_t now_ns = ldr_now_ns(dir->clock);
    ldr_dir_files_close(dir, NULL, now_ns > IDLE_NS ? now_ns - IDLE_NS : 0);
    error = root_open(dir, &fresh);
    if (error == 0) {
        error = id_read(dir, fresh, id, &id_bytes);
    }
    if (error == 0) {
        error = id_check(dir, id, id_bytes);
    }
    bool same = fresh != NULL && root_same(dir, fresh, &old);
    if (error == 0 && same) {
        root_free(fresh);
        return 0;
    }
    if (error != 0) {
        if (fresh != NULL) {
            root_free(fresh);
        } else {
            ldr_mutex_lock(&dir->lock);
            old = dir->root;
            ldr_mutex_unlock(&dir->lock);
        }
        ldr_dir_forget(dir, old);
        return error;
    }
    atomic_store(&dir->cached, false);
    root_set(dir, old, fresh);
    if (dir->via != NULL) {
        dir->via->attach(dir->via_arg, dir->path);
    }
    return 0;
}

int ldr_dir_enter(ldr_dir_t *dir, const char *name, uint64_t deadline_ns,
                  ldr_dir_root_t **root_p)
{
    for (int found = 0;; found++) {
        ldr_mutex_lock(&dir->lock);
        *root_p = dir->root;
        if (dir->root != NULL) {
            dir->root->refs++;
        }
        ldr_mutex_unlock(&dir->lock);
        if (*root_p != NULL) {
            return 0;
        }
        /* Whoever makes a tier looks for the id before there is one. */
        if (strcmp(name, LDR_OBJECTS_ID_NAME) == 0) {
            return root_open(dir, root_p);
        }
        int error = found < 2 ? ldr_dir_health(&dir->backend, deadline_ns)
                              : ldr_dir_says(dir, -EAGAIN, "use", name);
        if (error != 0) {
            return error;
        }
    }
}

/* ---- the calls ---- */

typedef int (*call_fn)(ldr_dir_t *dir, ldr_dir_root_t *root,
                       const ldr_dir_call_t *call);

/* A server that has forgotten a descriptor (NFS) is asked for a new one. */
static int carry_out(ldr_backend_t *b, call_fn fn, const char *what,
                     const ldr_dir_call_t *call)
{
    ldr_dir_t *dir = (ldr_dir_t *)b;
    ldr_dir_root_t *root;

    if (!ldr_object_name_ok(call->name)) {
        return ldr_dir_says(dir, -EINVAL, what, call->name);
    }
    for (int stale = 0;; stale++) {
        int error = ldr_dir_enter(dir, call->name, call->deadline_ns, &root);

        if (error != 0) {
            return error;
        }
        error = LDR_FAULT(dir_stale) ? -ESTALE : fn(dir, root, call);
        if (error == -ESTALE) {
            ldr_dir_forget(dir, root);
        }
        ldr_dir_leave(dir, root);
        if (error != -ESTALE || stale == 1) {
            error = error == -EDQUOT ? -ENOSPC : error;
            return ldr_dir_says(dir, error, what, call->name);
        }
    }
}

int ldr_dir_put(ldr_backend_t *b, const char *name, const struct iovec *iov,
                unsigned count, unsigned flags, uint64_t deadline_ns)
{
    ldr_dir_call_t call = {.name = name,
                           .iov = iov,
                           .count = count,
                           .flags = flags,
                           .deadline_ns = deadline_ns};

    return carry_out(b, ldr_dir_write, "put", &call);
}

int ldr_dir_get(ldr_backend_t *b, const char *name, uint64_t offset,
                const struct iovec *iov, unsigned count, uint64_t deadline_ns)
{
    ldr_dir_call_t call = {.name = name,
                           .iov = iov,
                           .count = count,
                           .offset = offset,
                           .deadline_ns = deadline_ns};

    return carry_out(b, ldr_dir_read, "get", &call);
}

static int size_of(ldr_dir_t *dir, ldr_dir_root_t *root,
                   const ldr_dir_call_t *call)
{
    int fd = ldr_dir_openat(dir, root->fd, call->name, O_PATH);
    struct stat st;
    int error = fd < 0 ? fd : 0;

    if (fd >= 0) {
        error = fstat(fd, &st) != 0 ? -errno : 0;
        close(fd);
    }
    if (error == 0) {
        *call->bytes_p = (uint64_t)st.st_size;
    }
    return error == 0 && !S_ISREG(st.st_mode) ? -ENOENT : error;
}

int ldr_dir_size(ldr_backend_t *b, const char *name, uint64_t *bytes_p,
                 uint64_t deadline_ns)
{
    ldr_dir_call_t call = {
        .name = name, .bytes_p = bytes_p, .deadline_ns = deadline_ns};

    return carry_out(b, size_of, "look at", &call);
}

static int remove_one(ldr_dir_t *dir, ldr_dir_root_t *root,
                      const ldr_dir_call_t *call)
{
    const char *slash = strrchr(call->name, '/');
    char folder[LDR_OBJECT_NAME_MAX + 1] = ".";
    int error;

    ldr_dir_files_close(dir, call->name, 0);
    if (slash != NULL) {
        snprintf(folder, sizeof(folder), "%.*s", (int)(slash - call->name),
                 call->name);
    }
    int fd = ldr_dir_openat(dir, root->fd, folder, O_PATH | O_DIRECTORY);
    if (fd < 0) {
        return fd;
    }
    error = unlinkat(fd, slash != NULL ? slash + 1 : call->name, 0) == 0
                ? 0
                : -errno;
    close(fd);
    return error == -EISDIR ? -ENOENT : error;
}

int ldr_dir_remove(ldr_backend_t *b, const char *name, uint64_t deadline_ns)
{
    ldr_dir_call_t call = {.name = name, .deadline_ns = deadline_ns};

    return carry_out(b, remove_one, "remove", &call);
}

/* ---- opening ---- */

void ldr_dir_destroy(ldr_backend_t *b)
{
    ldr_dir_t *dir = (ldr_dir_t *)b;

    ldr_dir_files_close(dir, NULL, UINT64_MAX);
    if (dir->root != NULL) {
        ldr_dir_leave(dir, dir->root);
    }
    if (dir->via != NULL) {
        dir->via->destroy(dir->via_arg);
    }
    pthread_mutex_destroy(&dir->lock);
    ldr_free(dir);
}

larder_status_t ldr_dir_create(const ldr_backend_params_t *p, const char *path,
                               const ldr_backend_ops_t *ops,
                               const ldr_dir_via_t *via, void *via_arg,
                               ldr_dir_t **dir_p)
{
    size_t length = strlen(path);

    if (path[0] != '/' || length >= LDR_DIR_PATH_MAX) {
        return ldr_fail(LARDER_E_INVALID,
                        "shared=%s: give the whole path of a directory, as in "
                        "%s:/mnt/kv",
                        p->url, ops->name);
    }
    ldr_dir_t *dir = ldr_alloc(sizeof(*dir));
    if (dir == NULL) {
        return ldr_fail(LARDER_E_NO_MEMORY, "shared=%s: out of memory", p->url);
    }
    ldr_mutex_init(&dir->lock);
    dir->backend.ops = ops;
    dir->clock = p->clock;
    dir->log = p->log;
    dir->via = via;
    dir->via_arg = via_arg;
    memcpy(dir->path, path, length + 1);
    snprintf(dir->url, sizeof(dir->url), "%s:%s", ops->name, path);
    *dir_p = dir;
    return LARDER_OK;
}

static const ldr_backend_ops_t dir_ops = {
    .name = "dir",
    .makes_itself = false,
    LDR_DIR_OPS,
};

larder_status_t ldr_dir_open(const ldr_backend_params_t *p, const char *rest,
                             ldr_backend_t **backend_p)
{
    ldr_dir_t *dir = NULL;
    larder_status_t st = ldr_dir_create(p, rest, &dir_ops, NULL, NULL, &dir);

    if (st == LARDER_OK) {
        *backend_p = &dir->backend;
    }
    return st;
}
