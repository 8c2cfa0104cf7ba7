/*
 * A back end of the shared tier: named objects in storage that the user
 * already runs. It knows nothing of chunks, tenants or keys.
 *
 * Calls block, and end by their deadline as far as the medium lets them (a
 * hung mount does not: the workers that call notice, see workers.h). Any number
 * of threads may call at once. They give 0 or a negative errno, with a text
 * (ldr_fail()) that names the object and says what to do:
 *
 *   -ENOENT     no such object
 *   -EEXIST     it exists and LDR_OBJECT_NEW was given
 *   -ENODATA    it is shorter than what was asked for
 *   -EINVAL     no such name is allowed
 *   -ENODEV     not a tier: no id file, not mounted, or another tier's id
 *   -EACCES, -EROFS, -ENOSPC, -ETIMEDOUT, -ECONNREFUSED, ..., -EIO
 *
 * An object is visible whole or not at all, and once put() has answered 0 it
 * survives what the medium survives: on a file system the file is synced,
 * renamed into place and its directory synced. Objects do not change except
 * those that are put over again without LDR_OBJECT_NEW (the files of roles),
 * which are smaller than LDR_OBJECT_REPLACED_MAX: of larger ones a back end may
 * give bytes that it has seen before.
 *
 * Names have 1 to LDR_OBJECT_NAME_MAX bytes of a-z 0-9 . - and '/' between
 * parts; no part is empty or begins with a dot. list() gives them in the order
 * of their bytes.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/clock.h"
#include "base/log.h"
#include "larder/larder.h"

#define LDR_OBJECT_NAME_MAX 120u
#define LDR_OBJECT_BYTES_MAX ((uint64_t)128 << 20)
#define LDR_OBJECT_REPLACED_MAX ((uint64_t)1 << 20)
#define LDR_OBJECTS_ID_NAME                                                    \
    "larder.tier" /* the object that makes it a tier                           \
                   */

typedef struct ldr_backend ldr_backend_t;

enum { LDR_OBJECT_NEW = 1 }; /* put: only if there is none of that name */

typedef struct ldr_backend_ops {
    const char *name; /* "dir", "3fs", "s3", "valkey" */
    /* Whether an empty place may be made a tier without being asked: not where
     * it could be a mount point without its mount. */
    bool makes_itself;
    int (*put)(ldr_backend_t *b, const char *name, const struct iovec *iov,
               unsigned count, unsigned flags, uint64_t deadline_ns);
    /* Exactly the bytes that iov asks for, from offset on. */
    int (*get)(ldr_backend_t *b, const char *name, uint64_t offset,
               const struct iovec *iov, unsigned count, uint64_t deadline_ns);
    int (*size)(ldr_backend_t *b, const char *name, uint64_t *bytes_p,
                uint64_t deadline_ns);
    /* Names that begin with prefix (which ends with '/', or is empty) and come
     * after `after` (NULL: from the first on), with their sizes where they
     * come for nothing (else 0). None: 0. A nonzero answer of fn ends it and
     * is handed on. */
    int (*list)(ldr_backend_t *b, const char *prefix, const char *after,
                int (*fn)(void *arg, const char *name, uint64_t bytes),
                void *arg, uint64_t deadline_ns);
    int (*remove)(ldr_backend_t *b, const char *name, uint64_t deadline_ns);
    /* Only where the storage may take an object away by itself and still list
     * its name: whether it is there, asked so that it is no use of it. */
    int (*exists)(ldr_backend_t *b, const char *name, uint64_t deadline_ns);
    /* Whether it is there and can be used: cheap, asked for every few
     * seconds while it is on, and before it is used again. */
    int (*health)(ldr_backend_t *b, uint64_t deadline_ns);
    void (*destroy)(ldr_backend_t *b);
} ldr_backend_ops_t;

struct ldr_backend {
    const ldr_backend_ops_t *ops;
};

typedef struct ldr_backend_params {
    const char *url; /* the option shared: "dir:/mnt/kv", ... */
    /* File with secrets of the back end; "" or NULL: the environment. */
    const char *login;
    unsigned threads; /* threads that will call at once */
    ldr_log_t log;
    const ldr_clock_t *clock;
} ldr_backend_params_t;

/* What the url says; E_INVALID with a text that shows the right form. Does not
 * touch the storage: that is health(), which may be tried again. */
larder_status_t ldr_backend_open(const ldr_backend_params_t *params,
                                 ldr_backend_t **backend_p);

/* The four, each called with what follows its scheme. */
larder_status_t ldr_dir_open(const ldr_backend_params_t *p, const char *rest,
                             ldr_backend_t **backend_p);
larder_status_t ldr_3fs_open(const ldr_backend_params_t *p, const char *rest,
                             ldr_backend_t **backend_p);
larder_status_t ldr_s3_open(const ldr_backend_params_t *p, const char *rest,
                            ldr_backend_t **backend_p);
larder_status_t ldr_valkey_open(const ldr_backend_params_t *p, const char *rest,
                                ldr_backend_t **backend_p);

/* Whether a name is one; or a prefix to list: "", or with a '/' at its end. */
bool ldr_object_name_ok(const char *name);
bool ldr_object_prefix_ok(const char *prefix);
/* Says that it is none, or that what is to be put is too large: -EINVAL. */
int ldr_object_wrong(const char *name);
