/*
 * Objects as files below a directory: what the back ends dir: and 3fs: share.
 *
 * The root is a descriptor of the directory, opened by health() and good only
 * while the path still leads to the directory that it was opened from and that
 * holds the tier's id. Everything goes through that descriptor: after an
 * unmount it leads to what was mounted, never to what lies beneath. Whoever
 * uses a root holds a reference; one that was given up is closed by the last.
 *
 * No lock is held across a call to the kernel, which may hang for ever.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>

#include "base/io.h"
#include "tier/shared/backend.h"

#define LDR_DIR_TEMP ".tmp-" /* and 16 hex digits: never listed */
#define LDR_DIR_TEMP_AGE_S 3600u
#define LDR_DIR_ID_MAX 512u
#define LDR_DIR_PATH_MAX 1024u
#define LDR_DIR_FILES 64u

/* Another way to move the bytes of an open file, next to the kernel's: 3FS's
 * rings. Called from any thread. */
typedef struct ldr_dir_via {
    /* The directory was found, or another one in its place. */
    void (*attach)(void *arg, const char *path);
    /* Whether bytes of this descriptor can go that way; then it is closed()
     * before it is closed. */
    bool (*opened)(void *arg, int fd);
    void (*closed)(void *arg, int fd);
    /* All of it: 0 or a negative errno. 1: nothing was done, take the kernel's
     * way. */
    int (*move)(void *arg, int fd, bool writing, const struct iovec *iov,
                unsigned count, uint64_t offset, uint64_t deadline_ns);
    void (*destroy)(void *arg);
} ldr_dir_via_t;

typedef struct ldr_dir_root {
    int fd;
    dev_t dev;
    ino_t ino;
    mode_t mode;
    unsigned refs;
} ldr_dir_root_t;

/* A file that is open for reading. */
#define LDR_DIR_DURABLE 512u
#define LDR_DIR_FEW 4u

typedef struct ldr_dir_file {
    char name[LDR_OBJECT_NAME_MAX + 1];
    int fd;
    bool direct;
    bool via;
    bool kept;     /* in the table, which has one of the references */
    unsigned refs; /* under dir->lock */
    uint64_t used_ns;
} ldr_dir_file_t;

typedef struct ldr_dir {
    ldr_backend_t backend;
    char url[LDR_DIR_PATH_MAX + 8]; /* as given */
    char path[LDR_DIR_PATH_MAX];
    const ldr_clock_t *clock;
    ldr_log_t log;
    const ldr_dir_via_t *via; /* NULL: none */
    void *via_arg;
    atomic_bool cached; /* the file system has no O_DIRECT */
    atomic_bool plain;  /* the kernel has no openat2() for us */

    /* Over all below. A root or a file has a reference for each call that uses
     * it, and one while it is named here; the last one out closes it. */
    pthread_mutex_t lock;
    ldr_dir_root_t *root; /* NULL: not found, or not any more */
    uint8_t id[LDR_DIR_ID_MAX];
    size_t id_bytes; /* 0: never seen */
    /* Hashes of directories whose entries are known to be durable, each among a
     * few; what falls out is synced once more. */
    uint64_t durable[LDR_DIR_DURABLE][LDR_DIR_FEW];
    ldr_dir_file_t *files[LDR_DIR_FILES];
} ldr_dir_t;

/* One call: what of it is not used is zero. */
typedef struct ldr_dir_call {
    const char *name;
    const struct iovec *iov;
    unsigned count;
    unsigned flags;
    uint64_t offset;
    uint64_t *bytes_p;
    uint64_t deadline_ns;
} ldr_dir_call_t;

larder_status_t ldr_dir_create(const ldr_backend_params_t *p, const char *path,
                               const ldr_backend_ops_t *ops,
                               const ldr_dir_via_t *via, void *via_arg,
                               ldr_dir_t **dir_p);

/* ---- the calls (dir.c) ---- */

int ldr_dir_put(ldr_backend_t *b, const char *name, const struct iovec *iov,
                unsigned count, unsigned flags, uint64_t deadline_ns);
int ldr_dir_get(ldr_backend_t *b, const char *name, uint64_t offset,
                const struct iovec *iov, unsigned count, uint64_t deadline_ns);
int ldr_dir_size(ldr_backend_t *b, const char *name, uint64_t *bytes_p,
                 uint64_t deadline_ns);
int ldr_dir_list(ldr_backend_t *b, const char *prefix, const char *after,
                 int (*fn)(void *arg, const char *name, uint64_t bytes),
                 void *arg, uint64_t deadline_ns);
int ldr_dir_remove(ldr_backend_t *b, const char *name, uint64_t deadline_ns);
int ldr_dir_health(ldr_backend_t *b, uint64_t deadline_ns);
void ldr_dir_destroy(ldr_backend_t *b);

#define LDR_DIR_OPS                                                            \
    .put = ldr_dir_put, .get = ldr_dir_get, .size = ldr_dir_size,              \
    .list = ldr_dir_list, .remove = ldr_dir_remove, .health = ldr_dir_health,  \
    .destroy = ldr_dir_destroy

/* ---- the root (dir.c) ---- */

/* Finds it if there is none. 0, or a negative errno with a text. */
int ldr_dir_enter(ldr_dir_t *dir, const char *name, uint64_t deadline_ns,
                  ldr_dir_root_t **root_p);
void ldr_dir_leave(ldr_dir_t *dir, ldr_dir_root_t *root);
/* Gives it up, if it is still the one in use. */
void ldr_dir_forget(ldr_dir_t *dir, ldr_dir_root_t *root);

/* Sets this thread's text and gives the error back. */
int ldr_dir_says(const ldr_dir_t *dir, int error, const char *what,
                 const char *name);
bool ldr_dir_late(const ldr_dir_t *dir, uint64_t deadline_ns);

/* ---- files (dir_file.c) ---- */

/* openat() that follows no symbolic link and does not leave the root. */
int ldr_dir_openat(ldr_dir_t *dir, int root, const char *name, int flags);

int ldr_dir_write(ldr_dir_t *dir, ldr_dir_root_t *root,
                  const ldr_dir_call_t *call);
int ldr_dir_read(ldr_dir_t *dir, ldr_dir_root_t *root,
                 const ldr_dir_call_t *call);

/* Closes the one of that name: the object is gone, or another one. NULL: all
 * that were not read after since_ns. */
void ldr_dir_files_close(ldr_dir_t *dir, const char *name, uint64_t since_ns);
