/*
 * Listing what lies below a directory, in the order of the names' bytes.
 *
 * A directory is read whole and sorted before anything in it is told; nothing
 * is open meanwhile. The directory a comes where its names do: its name with a
 * '/' behind it. By the way, what writers that died have left is removed.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/fault.h"
#include "base/mem.h"
#include "tier/shared/dir_int.h"

#define TEMPS_MAX 64u                 /* removed in one call */
#define NAMES_MAX ((size_t)128 << 20) /* bytes of one directory's names */
#define NAMES_FIRST ((size_t)16 << 10)

typedef struct walk {
    ldr_dir_t *dir;
    int root;
    const char *after; /* NULL: all */
    char *last;        /* that was told, or "" */
    int (*fn)(void *arg, const char *name, uint64_t bytes);
    void *arg;
    uint64_t deadline_ns;
    unsigned temps;
    bool ended; /* by fn, or by an error in fn's place */
} walk_t;

/* Names one after the other, each with its NUL; a directory's ends with '/'. */
typedef struct names {
    char *text;
    size_t bytes, capacity;
    size_t count;
} names_t;

static bool names_add(names_t *n, const char *name, bool folder)
{
    size_t length = strlen(name);
    size_t need = n->bytes + length + 2;

    if (need > NAMES_MAX ||
        !ldr_grow(&n->text, &n->capacity, ldr_max64(need, NAMES_FIRST), 1)) {
        return false;
    }
    memcpy(n->text + n->bytes, name, length);
    n->bytes += length;
    if (folder) {
        n->text[n->bytes++] = '/';
    }
    n->text[n->bytes++] = '\0';
    n->count++;
    return true;
}

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Pointers to them in order; NULL: no memory. */
static const char **names_sort(const names_t *n)
{
    const char **sorted = ldr_alloc((n->count + 1) * sizeof(*sorted));
    const char *at = n->text;

    if (sorted != NULL) {
        for (size_t i = 0; i < n->count; i++) {
            sorted[i] = at;
            at += strlen(at) + 1;
        }
        qsort(sorted, n->count, sizeof(*sorted), by_bytes);
    }
    return sorted;
}

/* A temporary file that nobody writes to any more. By the server's times and
 * our clock: whoever loses one that is in use fails to put, nothing worse. */
static void temp_remove(walk_t *w, int folder, const char *name)
{
    struct stat st;

    if (strncmp(name, LDR_DIR_TEMP, strlen(LDR_DIR_TEMP)) == 0 &&
        w->temps < TEMPS_MAX &&
        fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
        st.st_mtime + (time_t)LDR_DIR_TEMP_AGE_S <
            (time_t)ldr_wall_s(w->dir->clock) &&
        unlinkat(folder, name, 0) == 0) {
        w->temps++;
    }
}

/* What kind of entry it is: 'f' a file, 'd' a directory, 0 neither. */
static char kind_of(int folder, const struct dirent *entry)
{
    struct stat st;
    mode_t type = DTTOIF(entry->d_type);

    if (entry->d_type == DT_UNKNOWN) {
        type = fstatat(folder, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0
                   ? st.st_mode & S_IFMT
                   : 0;
    }
    return type == S_IFREG ? 'f' : type == S_IFDIR ? 'd' : 0;
}

static int folder_read(walk_t *w, DIR *folder, names_t *names)
{
    const struct dirent *entry;
    int fd = dirfd(folder);

    for (;;) {
        errno = 0;
        entry = readdir(folder);
        if (entry == NULL) {
            return -errno;
        }
        if (entry->d_name[0] == '.') {
            temp_remove(w, fd, entry->d_name);
            continue;
        }
        char kind = kind_of(fd, entry);
        if (kind != 0 && !names_add(names, entry->d_name, kind == 'd')) {
            return -ENOMEM;
        }
        if (ldr_dir_late(w->dir, w->deadline_ns)) {
            return -ETIMEDOUT;
        }
    }
}

/* All names of one directory. One that is gone has none. */
static int folder_names(walk_t *w, const char *path, names_t *names)
{
    int fd = ldr_dir_openat(w->dir, w->root, path[0] != '\0' ? path : ".",
                            O_RDONLY | O_DIRECTORY);

    if (fd < 0) {
        return fd == -ENOENT || fd == -ENOTDIR || fd == -ELOOP ? 0 : fd;
    }
    DIR *folder = fdopendir(fd);
    if (folder == NULL) {
        close(fd);
        return -errno;
    }
    int error = folder_read(w, folder, names);
    closedir(folder);
    return error;
}

/* Whether nothing below the directory (its path ends with '/') comes after. */
static bool all_before(const walk_t *w, const char *path)
{
    return w->after != NULL && strcmp(path, w->after) < 0 &&
           strncmp(path, w->after, strlen(path)) != 0;
}

/* prefix: "" or with a '/' at its end. Deep enough for every name there can
 * be, and no deeper. */
static int folder_walk(walk_t *w, const char *prefix)
{
    char path[LDR_OBJECT_NAME_MAX + 2];
    names_t names = {0};
    size_t length = strlen(prefix);
    int error = 0;

    snprintf(path, sizeof(path), "%.*s", (int)(length > 0 ? length - 1 : 0),
             prefix);
    error = folder_names(w, path, &names);
    const char **sorted = error == 0 ? names_sort(&names) : NULL;
    if (error == 0 && sorted == NULL) {
        error = -ENOMEM;
    }
    for (size_t i = 0; error == 0 && i < names.count; i++) {
        size_t n = strlen(sorted[i]);

        if (length + n > LDR_OBJECT_NAME_MAX) {
            continue;
        }
        memcpy(path, prefix, length);
        memcpy(path + length, sorted[i], n + 1);
        if (path[length + n - 1] == '/') {
            error = all_before(w, path) ? 0 : folder_walk(w, path);
        } else if (ldr_object_name_ok(path) &&
                   (w->after == NULL || strcmp(path, w->after) > 0)) {
            memcpy(w->last, path, length + n + 1);
            error = w->fn(w->arg, path, 0);
            w->ended = error != 0;
        }
        if (error == 0 && ldr_dir_late(w->dir, w->deadline_ns)) {
            error = -ETIMEDOUT;
        }
    }
    ldr_free(sorted);
    ldr_free(names.text);
    return error;
}

int ldr_dir_list(ldr_backend_t *b, const char *prefix, const char *after,
                 int (*fn)(void *arg, const char *name, uint64_t bytes),
                 void *arg, uint64_t deadline_ns)
{
    ldr_dir_t *dir = (ldr_dir_t *)b;
    ldr_dir_root_t *root;
    char last[LDR_OBJECT_NAME_MAX + 1] = "", from[sizeof(last)];

    if (!ldr_object_prefix_ok(prefix)) {
        return ldr_dir_says(dir, -EINVAL, "list", prefix);
    }
    if (LDR_FAULT(dir_behind)) {
        return 0;
    }
    for (int stale = 0;; stale++) {
        int error = ldr_dir_enter(dir, prefix, deadline_ns, &root);

        if (error != 0) {
            return error;
        }
        memcpy(from, last, sizeof(from));
        walk_t w = {.dir = dir,
                    .root = root->fd,
                    .after = from[0] != '\0' ? from : after,
                    .last = last,
                    .fn = fn,
                    .arg = arg,
                    .deadline_ns = deadline_ns};
        error = folder_walk(&w, prefix);
        if (error == -ESTALE && !w.ended) {
            ldr_dir_forget(dir, root);
        }
        ldr_dir_leave(dir, root);
        if (w.ended) {
            return error;
        }
        if (error != -ESTALE || stale == 1) {
            return ldr_dir_says(dir, error, "list", prefix);
        }
    }
}
