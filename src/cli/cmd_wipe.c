/*
 * wipe: deletes Larder's own files in a directory, and no others; or makes it
 * forget one tenant (store/forget.h).
 *
 * The superblock goes first, durably: a wipe that is cut short leaves segments
 * without one, which nothing opens, rather than a part of the records without
 * the tombstones that cancel them. The lock file stays, since a lock is only
 * one while all lock the same file.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "cli/cli.h"
#include "node/node.h"
#include "store/forget.h"

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
        return ldr_cli_fail(w->args, "%s: is not a directory of Larder's",
                            w->dir);
    }
    if (look->version_unknown != 0 && !force) {
        return ldr_cli_fail(w->args,
                            "%s: written in format %u, and this larder knows "
                            "format %u: one that is as new as its writer can "
                            "use it; nothing was touched (--force wipes it)",
                            w->dir, look->version_unknown, LDR_FORMAT_VERSION);
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
    return ldr_cli_sure(w->args, w->dir,
                        "Delete %u segments and all that is saved",
                        look->segments);
}

static int dir_lock(const wipe_t *w, int *file_p)
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

static int delete_ours(void *arg, const char *name)
{
    uint32_t segment;

    return ldr_segment_number(name, &segment) || ldr_ledger_named(name)
               ? delete_file(arg, name)
               : 0;
}

static int delete_all(wipe_t *w)
{
    int error = delete_file(w, LDR_SUPER_NAME);
    int code =
        error == 0 ? sync_dir(w) : io_failed(w, "delete larder.super", error);

    if (code == LDR_EXIT_OK) {
        error = w->io->ops->list(w->io, w->dir, delete_ours, w);
        code = error == 0 ? sync_dir(w)
                          : io_failed(w, "delete the segments", error);
    }
    return code;
}

static void wipe_report(const wipe_t *w, const ldr_fsck_look_t *look)
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

static int wipe_dir(const ldr_args_t *args, ldr_cli_place_t *place, unsigned i)
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
        code = dir_lock(&w, &lock_file);
    }
    if (code == LDR_EXIT_OK) {
        code = confirm(&w, &look);
    }
    if (code == LDR_EXIT_OK) {
        code = delete_all(&w);
    }
    if (code == LDR_EXIT_OK) {
        wipe_report(&w, &look);
    }
    if (lock_file >= 0) {
        w.io->ops->close(w.io, lock_file);
    }
    return code;
}

/* ---- one tenant ---- */

static void report_tenant(const ldr_args_t *args, const char *dir,
                          const char *tenant, const ldr_forgotten_t *f)
{
    if (ldr_args_has(args, LDR_FLAG_JSON)) {
        printf("{\"status\":\"wiped\",\"dir\":");
        ldr_json_string(stdout, dir);
        printf(",\"tenant\":\"%s\",\"secret\":%s,\"spaces\":%u,"
               "\"records\":%llu}\n",
               tenant, f->secret ? "true" : "false", f->spaces,
               (unsigned long long)f->records);
    } else if (f->spaces == 0 && !f->secret) {
        printf("%s: holds nothing of tenant '%s'\n", dir, tenant);
    } else {
        printf("%s: tenant '%s' is forgotten: %llu record%s in %u space%s%s\n",
               dir, tenant, (unsigned long long)f->records,
               f->records == 1 ? "" : "s", f->spaces, f->spaces == 1 ? "" : "s",
               f->secret ? ", and which secret it had" : "");
    }
}

static int wipe_tenant(const ldr_args_t *args, ldr_cli_place_t *place,
                       unsigned i)
{
    const char *tenant = args->values[LDR_FLAG_WHOSE];
    const char *dir = place->options.dirs[i];
    ldr_log_t log = {NULL, NULL}; /* standard error */
    ldr_disk_params_t params = {.io = place->io,
                                .log = &log,
                                .path = dir,
                                .bytes = place->ssd_bytes,
                                .seed = ldr_rand_entropy()};
    uint8_t id[LDR_ID_BYTES];
    ldr_forgotten_t f;
    ldr_disk_t *d = ldr_alloc(sizeof(*d));
    int code = d != NULL ? ldr_cli_sure(args, dir,
                                        "Delete all that is saved of tenant "
                                        "'%s'",
                                        tenant)
                         : ldr_cli_fail(args, "not enough memory");

    if (code == LDR_EXIT_OK) {
        larder_status_t st = ldr_disk_open(d, &params);

        if (st == LARDER_OK) {
            ldr_tenant_id(tenant, id);
            st = ldr_disk_forget(d, id, &f);
            ldr_disk_close(d);
        }
        code = st == LARDER_OK ? code : ldr_cli_status(args, st);
    }
    if (code == LDR_EXIT_OK) {
        report_tenant(args, dir, tenant, &f);
    }
    ldr_free(d);
    return code;
}

static int wipe_tenants(const ldr_args_t *args)
{
    ldr_cli_place_t *place = NULL;
    int code = ldr_cli_tenant(args, args->values[LDR_FLAG_WHOSE]);

    if (code == LDR_EXIT_OK) {
        code = ldr_place_open(args, false, &place);
    }
    for (unsigned i = 0; code == LDR_EXIT_OK && i < place->options.dir_count;
         i++) {
        /* Opening would make a new one. */
        code = place->look[i].super
                   ? wipe_tenant(args, place, i)
                   : ldr_cli_fail(args,
                                  "%s: has no superblock, which would say "
                                  "what is whose: `larder fsck` says more",
                                  place->options.dirs[i]);
    }
    ldr_place_close(&place);
    return code;
}

int ldr_cmd_wipe(const ldr_args_t *args)
{
    ldr_cli_place_t *place;

    if (ldr_args_has(args, LDR_FLAG_WHOSE)) {
        return wipe_tenants(args);
    }
    int code = ldr_place_parse(args, &place);

    for (unsigned i = 0; code == LDR_EXIT_OK && i < place->options.dir_count;
         i++) {
        code = wipe_dir(args, place, i);
    }
    ldr_place_close(&place);
    return code;
}
