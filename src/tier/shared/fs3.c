/*
 * 3fs:/PATH: a directory of a 3FS mount. Names, directories and small files go
 * through the mount, as in dir:; bytes of large ones through 3FS's rings, if
 * its library is here and takes us.
 *
 * Any thread may call. A ring belongs to the thread that took it until it is
 * given back; fs3->lock guards the list of free ones and the mount, and is held
 * over no I/O.
 */
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/iov.h"
#include "base/mem.h"
#include "base/thread.h"
#include "tier/shared/dir_int.h"
#include "tier/shared/fs3_int.h"

#define LIBRARY "libhf3fs_api_shared.so"
#define LARGE ((uint64_t)64 << 10) /* that a ring is worth */
#define END_NS ((uint64_t)1000000000)

/* ---- the library ---- */

static const char *fill_slots(void *library, ldr_hf3fs_t *api)
{
    void *at;

#define X(name, symbol, result, parameters)                                    \
    at = dlsym(library, #symbol);                                              \
    memcpy(&api->name, &at, sizeof(at));                                       \
    if (at == NULL) {                                                          \
        return #symbol;                                                        \
    }
    LDR_HF3FS_MAP(X)
#undef X
    return NULL;
}

const ldr_hf3fs_t *ldr_hf3fs(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static ldr_hf3fs_t table;
    static bool loaded;
    const ldr_hf3fs_t *found = NULL;

    ldr_mutex_lock(&lock);
    if (!loaded) {
        const char *named = getenv("LARDER_HF3FS");
        const char *path = named != NULL ? named : LIBRARY;
        /* Never closed: it starts threads of its own. */
        void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        const char *missing =
            library != NULL ? fill_slots(library, &table) : NULL;

        if (library == NULL) {
            ldr_fail(LARDER_E_UNSUPPORTED, "%s", dlerror());
        } else if (missing != NULL) {
            ldr_fail(LARDER_E_UNSUPPORTED, "%s has no %s", path, missing);
        } else {
            loaded = true;
        }
    }
    found = loaded ? &table : NULL;
    ldr_mutex_unlock(&lock);
    return found;
}

/* ---- rings, one for each thread that is in a call ---- */

typedef struct fs3 {
    const ldr_hf3fs_t *api; /* NULL: none */
    const ldr_clock_t *clock;
    ldr_log_t log;
    unsigned max;

    pthread_mutex_t lock; /* all below */
    char mount[LDR_HF3FS_MOUNT_MAX];
    unsigned generation; /* of the mount; 0: not found yet */
    bool off;            /* it does not take us */
    bool said;           /* why; once for each generation */
    ldr_fs3_ring_t *free;
    unsigned count; /* of all that there are, also of older generations */
} fs3_t;

static void log_once(fs3_t *f, const char *what, const char *why)
{
    ldr_mutex_lock(&f->lock);
    bool said = f->said;
    f->said = true;
    f->off = true;
    ldr_mutex_unlock(&f->lock);
    if (!said) {
        ldr_warn(&f->log,
                 "3fs: %s (%s): reads and writes go through the mount instead "
                 "of 3FS's rings",
                 what, why);
    }
}

/* The mount that the path lies on: the highest directory above it on the same
 * device. The library could say it too, but ends the process if there is no
 * such path. */
static bool find_mount(const char *path, char *mount, size_t size)
{
    char at[PATH_MAX], above[PATH_MAX];
    struct stat here, there;

    if (realpath(path, at) == NULL || stat(at, &here) != 0) {
        return false;
    }
    for (;;) {
        char *slash = strrchr(at, '/');

        memcpy(above, at, (size_t)(slash - at));
        above[slash - at] = '\0';
        if (slash == at ||
            (stat(above, &there) != 0 || there.st_dev != here.st_dev)) {
            break;
        }
        *slash = '\0';
    }
    if (stat("/", &there) == 0 && there.st_dev == here.st_dev) {
        at[1] = '\0';
    }
    return (size_t)snprintf(mount, size, "%s", at) < size;
}

static void fs3_attach(void *arg, const char *path)
{
    fs3_t *f = arg;
    char mount[LDR_HF3FS_MOUNT_MAX];
    bool found = find_mount(path, mount, sizeof(mount));

    if (f->api == NULL) {
        return;
    }
    ldr_mutex_lock(&f->lock);
    f->generation++;
    f->off = f->said = false;
    snprintf(f->mount, sizeof(f->mount), "%s", found ? mount : "");
    ldr_mutex_unlock(&f->lock);
    if (!found) {
        log_once(f, path,
                 "its mount point cannot be found, or has a long name");
    }
}

/* One that can be used now, or NULL. What is of an older mount is closed; what
 * has I/O in flight is left in the list. */
static ldr_fs3_ring_t *ring_take(fs3_t *f)
{
    ldr_fs3_ring_t *ring = NULL, *old = NULL, **at;
    char mount[LDR_HF3FS_MOUNT_MAX];
    bool make;
    int error = 0;

    ldr_mutex_lock(&f->lock);
    unsigned generation = f->generation;
    for (at = &f->free; *at != NULL && !f->off && ring == NULL;) {
        ldr_fs3_ring_t *r = *at;

        if (!ldr_fs3_ring_idle(r)) {
            at = &r->next;
            continue;
        }
        *at = r->next;
        if (r->generation == generation) {
            ring = r;
        } else {
            r->next = old;
            old = r;
            f->count--;
        }
    }
    make = ring == NULL && !f->off && generation != 0 && f->count < f->max;
    f->count += make;
    memcpy(mount, f->mount, sizeof(mount));
    ldr_mutex_unlock(&f->lock);
    while (old != NULL) {
        ldr_fs3_ring_t *next = old->next;

        ldr_fs3_ring_close(old);
        old = next;
    }
    if (make) {
        ring = ldr_fs3_ring_open(f->api, mount, &error);
        if (ring != NULL) {
            ring->generation = generation;
        } else {
            ldr_mutex_lock(&f->lock);
            f->count--;
            ldr_mutex_unlock(&f->lock);
            log_once(f, mount, strerror(-error));
        }
    }
    return ring;
}

static void ring_give(fs3_t *f, ldr_fs3_ring_t *ring)
{
    ldr_mutex_lock(&f->lock);
    ring->next = f->free;
    f->free = ring;
    ldr_mutex_unlock(&f->lock);
}

/* ---- what dir asks for ---- */

static bool opened(void *arg, int fd)
{
    fs3_t *f = arg;
    int error;

    if (f->api == NULL) {
        return false;
    }
    ldr_mutex_lock(&f->lock);
    bool off = f->off || f->generation == 0;
    ldr_mutex_unlock(&f->lock);
    if (off) {
        return false;
    }
    error = f->api->reg_fd(fd, 0); /* above 0: it did not work */
    if (error > 0) {
        log_once(f, "a file cannot be registered", strerror(error));
    }
    return error <= 0;
}

static void closed(void *arg, int fd)
{
    fs3_t *f = arg;

    f->api->dereg_fd(fd);
}

static int fs3_move(void *arg, int fd, bool writing, const struct iovec *iov,
                    unsigned count, uint64_t offset, uint64_t deadline_ns)
{
    fs3_t *f = arg;
    ldr_fs3_transfer_t t = {.fd = fd,
                            .writing = writing,
                            .iov = iov,
                            .count = count,
                            .offset = offset,
                            .deadline_ns = deadline_ns,
                            .total = ldr_iov_bytes(iov, count),
                            .clock = f->clock};
    ldr_fs3_ring_t *ring = t.total >= LARGE ? ring_take(f) : NULL;
    if (ring == NULL) {
        return 1;
    }
    int error = ldr_fs3_ring_move(ring, &t);
    ring_give(f, ring);
    return error;
}

/* A ring whose I/O does not come back is left behind: its memory is not ours
 * alone. */
static void fs3_destroy(void *arg)
{
    fs3_t *f = arg;
    uint64_t end = ldr_now_ns(&ldr_clock_real) + END_NS;
    unsigned left = 0;

    while (f->free != NULL) {
        ldr_fs3_ring_t *r = f->free;
        const struct timespec pause = {.tv_nsec = 1000000};

        f->free = r->next;
        while (!ldr_fs3_ring_idle(r) && ldr_now_ns(&ldr_clock_real) < end) {
            nanosleep(&pause, NULL);
        }
        if (ldr_fs3_ring_idle(r)) {
            ldr_fs3_ring_close(r);
        } else {
            left++;
        }
    }
    if (left > 0) {
        ldr_warn(&f->log, "3fs: %u rings with I/O in flight are left behind",
                 left);
    }
    pthread_mutex_destroy(&f->lock);
    ldr_free(f);
}

static const ldr_dir_via_t via = {
    .attach = fs3_attach,
    .opened = opened,
    .closed = closed,
    .move = fs3_move,
    .destroy = fs3_destroy,
};

static const ldr_backend_ops_t fs3_ops = {
    .name = "3fs",
    .makes_itself = false,
    LDR_DIR_OPS,
};

larder_status_t ldr_3fs_open(const ldr_backend_params_t *p, const char *rest,
                             ldr_backend_t **backend_p)
{
    fs3_t *f = ldr_alloc(sizeof(*f));
    ldr_dir_t *dir = NULL;

    if (f == NULL) {
        return ldr_fail(LARDER_E_NO_MEMORY, "shared=%s: out of memory", p->url);
    }
    ldr_mutex_init(&f->lock);
    f->clock = p->clock;
    f->log = p->log;
    f->max = p->threads > 0 ? p->threads : 1;
    larder_status_t st = ldr_dir_create(p, rest, &fs3_ops, &via, f, &dir);
    if (st != LARDER_OK) {
        fs3_destroy(f);
        return st;
    }
    f->api = ldr_hf3fs();
    if (f->api == NULL) {
        log_once(f, LIBRARY " cannot be loaded", ldr_fail_text());
        ldr_fail_clear();
    }
    *backend_p = &dir->backend;
    return LARDER_OK;
}
