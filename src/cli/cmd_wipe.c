/*
 * wipe: deletes Larder's own files in a directory, and no others.
 *
 * The superblock goes first, durably: a wipe that is cut short leaves segments
 * without one, which nothing opens, rather than a part of the records without
 * the tombstones that cancel them. The lock file stays, since a lock is only
 * one while all lock the same file.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "cli/cli.h"

typedef struct wipe {
    const ldr_args_t *args;
    ldr_io_t *io;
    const char *dir;
    uint64_t files;
} wipe_t;

static bool path_of(const wipe_t *w, const char *name, char *path)
{
    return (size_t)snprintf(path, LDR_PATH_MAX, "%s/%s", w->dir, name) <
           LDR_PATH_MAX;
}

static int io_failed(const wipe_t *w, const char *what, int error)
{
    return ldr_cli_fail(w->args, "%s: cannot %s: %s", w->dir, what,
                        strerror(-error));
}

/* ---- whether it may be done ---- */

static int may_wipe(const wipe_t *w, const ldr_fsck_look_t *look)
{
    bool force = ldr_args_has(w->args, LDR_FLAG_FORCE);

    if (!look->super && look->segments == 0) {
        return ldr_cli_fail(w->args, "%s: is no directory of Larder's", w->dir);
    }
    if (look->version_unknown && !force) {
        return ldr_cli_fail(w->args,
                            "%s: written in a format this version does not "
                            "know; nothing was touched (--force wipes it)",
                            w->dir);
    }
    if (!look->ours && !force) {
        return ldr_cli_fail(w->args,
                            "%s: has files named like Larder's, but nothing "
                            "in them proves it; nothing was touched (--force "
                            "wipes them)",
                            w->dir);
    }
    return LDR_EXIT_OK;
}

static int confirm(const wipe_t *w, const ldr_fsck_look_t *look)
{
    char answer[16] = "";

    if (ldr_args_has(w->args, LDR_FLAG_YES)) {
        return LDR_EXIT_OK;
    }
    if (!isatty(STDIN_FILENO)) {
        return ldr_cli_usage(w->args,
                             "%s: not wiped: there is no terminal to ask at; "
                             "give --yes",
                             w->dir);
    }
    fprintf(stderr,
            "Delete %u segments and all that is saved in %s? "
            "Type yes: ",
            look->segments, w->dir);
    if (fgets(answer, sizeof(answer), stdin) == NULL ||
        strcmp(answer, "yes\n") != 0) {
        return ldr_cli_fail(w->args, "%s: not wiped", w->dir);
    }
    return LDR_EXIT_OK;
}

static int lock(const wipe_t *w, int *file_p)
{
    char path[LDR_PATH_MAX];
    int error = -ENAMETOOLONG;

    *file_p = -1;
    if (path_of(w, LDR_LOCK_NAME, path)) {
        error = *file_p = w->io->ops->open(w->io, path, LDR_IO_CREATE);
    }
    if (*file_p >= 0) {
        error = w->io->ops->lock(w->io, *file_p);
    }
    if (error == -EWOULDBLOCK) {
        return ldr_cli_in_use(w->args, w->dir);
    }
    return error < 0 ? io_failed(w, "lock larder.lock", error) : LDR_EXIT_OK;
}

/* ---- doing it ---- */

static int sync_dir(const wipe_t *w)
{
    int error = w->io->ops->sync_dir(w->io, w->dir);

    return error == 0 ? LDR_EXIT_OK : io_failed(w, "sync it", error);
}

static int delete_file(void *arg, const char *name)
{
    wipe_t *w = arg;
    char path[LDR_PATH_MAX];
    int error = path_of(w, name, path) ? w->io->ops->unlink(w->io, path)
                                       : -ENAMETOOLONG;

    w->files += error == 0;
    return error == -ENOENT ? 0 : error;
}

static int delete_segment(void *arg, const char *name)
{
    uint32_t segment;

    return ldr_segment_number(name, &segment) ? delete_file(arg, name) : 0;
}

static int delete_all(wipe_t *w)
{
    int error = delete_file(w, LDR_SUPER_NAME);
    int code =
        error == 0 ? sync_dir(w) : io_failed(w, "delete larder.super", error);

    if (code == LDR_EXIT_OK) {
        error = w->io->ops->list(w->io, w->dir, delete_segment, w);
        code = error == 0 ? sync_dir(w)
                          : io_failed(w, "delete the segments", error);
    }
    return code;
}

static void report(const wipe_t *w, const ldr_fsck_look_t *look)
{
    if (ldr_args_has(w->args, LDR_FLAG_JSON)) {
        printf("{\"status\":\"wiped\",\"dir\":");
        ldr_json_string(stdout, w->dir);
        printf(",\"files\":%llu,\"others\":%u}\n", (unsigned long long)w->files,
               look->strangers);
        return;
    }
    printf("%s: %llu files deleted", w->dir, (unsigned long long)w->files);
    if (look->strangers > 0) {
        printf(", %u others left alone", look->strangers);
    }
    printf("\n");
}

static int wipe_dir(const ldr_args_t *args, ldr_place_t *place, unsigned i)
{
    wipe_t w = {args, place->io, place->options.dirs[i], 0};
    ldr_fsck_look_t look;
    int lock_file = -1;
    larder_status_t st = ldr_fsck_look(w.io, w.dir, &look);

    if (st != LARDER_OK) {
        return ldr_cli_status(args, st);
    }
    int code = may_wipe(&w, &look);
    if (code == LDR_EXIT_OK) {
        code = lock(&w, &lock_file);
    }
    if (code == LDR_EXIT_OK) {
        code = confirm(&w, &look);
    }
    if (code == LDR_EXIT_OK) {
        code = delete_all(&w);
    }
    if (code == LDR_EXIT_OK) {
        report(&w, &look);
    }
    if (lock_file >= 0) {
        w.io->ops->close(w.io, lock_file);
    }
    return code;
}

int ldr_cmd_wipe(const ldr_args_t *args)
{
    ldr_place_t *place;
    int code = ldr_place_parse(args, &place);

    for (unsigned i = 0; code == LDR_EXIT_OK && i < place->options.dir_count;
         i++) {
        code = wipe_dir(args, place, i);
    }
    ldr_place_close(&place);
    return code;
}
