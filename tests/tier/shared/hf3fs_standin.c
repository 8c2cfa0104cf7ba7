/*
 * Stands in for libhf3fs_api_shared.so in the tests: the same C interface over
 * plain files. It does I/O late, out of order, short or not at all when told
 * to, and counts whatever the real one would not forgive.
 */
#include "tier/shared/hf3fs_standin.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tier/shared/fs3_int.h"

#define EXPORT __attribute__((visibility("default")))

enum { FDS = 4096, ENTRIES_MAX = 1024 };

static atomic_llong knobs[STANDIN_KNOBS], counts[STANDIN_COUNTS];
static atomic_int fds[FDS]; /* the duplicate, plus one; 0: not registered */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

typedef struct entry {
    bool used, doing, done;
    bool read;
    void *at;
    int fd;
    size_t offset;
    uint64_t bytes, order;
    int64_t result;
    const void *userdata;
} entry_t;

typedef struct ring {
    pthread_t thread;
    int entries;
    bool end;
    uint64_t prepared;
    atomic_int inside; /* threads in prep or in wait: one of each at most */
    entry_t entry[ENTRIES_MAX];
} ring_t;

EXPORT standin_set_fn hf3fs_standin_set;
EXPORT standin_get_fn hf3fs_standin_get;
#define X(name, symbol, result, parameters) EXPORT result symbol parameters;
LDR_HF3FS_MAP(X)
#undef X

void hf3fs_standin_set(standin_knob_t knob, int64_t value)
{
    pthread_mutex_lock(&lock);
    atomic_store(&knobs[knob], value);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

int64_t hf3fs_standin_get(standin_count_t count)
{
    return atomic_load(&counts[count]);
}

/* A child has none of the threads that wait here. */
static void forked(void)
{
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    changed = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
}

static void __attribute__((constructor)) loaded(void)
{
    pthread_atfork(NULL, NULL, forked);
}

static void misused(void)
{
    atomic_fetch_add(&counts[STANDIN_MISUSED], 1);
}

/* ---- buffers and files ---- */

int hf3fs_iovcreate(ldr_hf3fs_iov_t *iov, const char *mount_point, size_t size,
                    size_t block_size, int numa)
{
    if (atomic_load(&knobs[STANDIN_REFUSE_IOV]) != 0) {
        return -(int)atomic_load(&knobs[STANDIN_REFUSE_IOV]);
    }
    if (mount_point[0] != '/' || strlen(mount_point) >= LDR_HF3FS_MOUNT_MAX) {
        return -EINVAL;
    }
    void *base = mmap(NULL, size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) {
        return -errno;
    }
    memset(iov, 0, sizeof(*iov));
    iov->base = base;
    iov->handle = base;
    memcpy(iov->mount_point, mount_point, strlen(mount_point));
    iov->size = size;
    iov->block_size = block_size;
    iov->numa = numa;
    atomic_fetch_add(&counts[STANDIN_IOVS], 1);
    return 0;
}

void hf3fs_iovdestroy(ldr_hf3fs_iov_t *iov)
{
    munmap(iov->base, iov->size);
    atomic_fetch_sub(&counts[STANDIN_IOVS], 1);
}

int hf3fs_reg_fd(int fd, uint64_t flags)
{
    (void)flags;
    if (atomic_load(&knobs[STANDIN_REFUSE_FD]) != 0) {
        return (int)atomic_load(&knobs[STANDIN_REFUSE_FD]);
    }
    if (fd < 0 || fd >= FDS) {
        return EBADF;
    }
    if (atomic_load(&fds[fd]) != 0) {
        misused(); /* closed and opened again, without telling */
        return EINVAL;
    }
    int copy = dup(fd);
    if (copy < 0) {
        return errno;
    }
    atomic_store(&fds[fd], copy + 1);
    atomic_fetch_add(&counts[STANDIN_FDS], 1);
    return -copy;
}

void hf3fs_dereg_fd(int fd)
{
    int copy = fd >= 0 && fd < FDS ? atomic_exchange(&fds[fd], 0) : 0;

    if (copy == 0) {
        misused();
    } else {
        close(copy - 1);
        atomic_fetch_sub(&counts[STANDIN_FDS], 1);
    }
}

/* ---- the other side of a ring ---- */

static void perform(entry_t *e)
{
    uint64_t bytes = e->bytes;
    int64_t most = atomic_load(&knobs[STANDIN_SHORT]);
    int64_t nth = atomic_load(&knobs[STANDIN_FAIL_NTH]);

    if (most > 0 && bytes > (uint64_t)most) {
        bytes = (uint64_t)most;
    }
    if (nth > 0 && atomic_fetch_sub(&knobs[STANDIN_FAIL_NTH], 1) == 1) {
        int64_t error = atomic_load(&knobs[STANDIN_FAIL_WITH]);

        e->result = error != 0 ? -error : -EIO;
    } else {
        e->result = e->read ? pread(e->fd, e->at, bytes, (off_t)e->offset)
                            : pwrite(e->fd, e->at, bytes, (off_t)e->offset);
        e->result = e->result < 0 ? -errno : e->result;
    }
    close(e->fd);
    if (e->result > 0) {
        atomic_fetch_add(&counts[STANDIN_BYTES], e->result);
    }
    atomic_fetch_add(&counts[e->read ? STANDIN_READS : STANDIN_WRITES], 1);
}

/* The next to do: the first prepared, or the last. */
static entry_t *choose(ring_t *r)
{
    bool last = atomic_load(&knobs[STANDIN_REORDER]) != 0;
    entry_t *best = NULL;
    uint64_t first = UINT64_MAX;

    if (atomic_load(&knobs[STANDIN_HOLD]) != 0) {
        return NULL;
    }
    for (int i = 0; i < r->entries; i++) {
        entry_t *e = &r->entry[i];

        if (!e->used || e->doing || e->done) {
            continue;
        }
        first = e->order < first ? e->order : first;
        if (best == NULL || (e->order > best->order) == last) {
            best = e;
        }
    }
    if (best != NULL && best->order > first) {
        atomic_fetch_add(&counts[STANDIN_OUT_OF_ORDER], 1);
    }
    return best;
}

static void *ring_main(void *arg)
{
    ring_t *r = arg;

    pthread_mutex_lock(&lock);
    while (!r->end) {
        entry_t *e = choose(r);

        if (e == NULL) {
            pthread_cond_wait(&changed, &lock);
            continue;
        }
        e->doing = true;
        pthread_mutex_unlock(&lock);
        usleep((useconds_t)atomic_load(&knobs[STANDIN_DELAY_US]));
        perform(e);
        pthread_mutex_lock(&lock);
        e->done = true;
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

int hf3fs_iorcreate4(ldr_hf3fs_ior_t *ior, const char *mount_point, int entries,
                     bool for_read, int io_depth, int timeout, int numa,
                     uint64_t flags)
{
    (void)numa;
    if (atomic_load(&knobs[STANDIN_REFUSE_IOR]) != 0) {
        return -(int)atomic_load(&knobs[STANDIN_REFUSE_IOR]);
    }
    ring_t *r = calloc(1, sizeof(*r));
    if (r == NULL || entries > ENTRIES_MAX || mount_point[0] != '/') {
        free(r);
        return -EINVAL;
    }
    r->entries = entries;
    memset(ior, 0, sizeof(*ior));
    ior->handle = r;
    ior->for_read = for_read;
    ior->io_depth = io_depth;
    ior->timeout = timeout;
    ior->flags = flags;
    if (pthread_create(&r->thread, NULL, ring_main, r) != 0) {
        free(r);
        return -EAGAIN;
    }
    atomic_fetch_add(&counts[STANDIN_IORS], 1);
    return 0;
}

void hf3fs_iordestroy(ldr_hf3fs_ior_t *ior)
{
    ring_t *r = ior->handle;

    pthread_mutex_lock(&lock);
    for (int i = 0; i < r->entries; i++) {
        if (r->entry[i].used && !r->entry[i].done) {
            misused(); /* its I/O may still write to the buffer */
        }
    }
    r->end = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    pthread_join(r->thread, NULL);
    free(r);
    atomic_fetch_sub(&counts[STANDIN_IORS], 1);
}

/* ---- our side of it ---- */

static int place(ring_t *r, const entry_t *new)
{
    int64_t full = atomic_load(&knobs[STANDIN_FULL]);
    int room = full > 0 && full < r->entries ? (int)full : r->entries;

    for (int i = 0; i < room; i++) {
        if (!r->entry[i].used) {
            r->entry[i] = *new;
            r->entry[i].order = r->prepared++;
            /* It may be done before it is submitted. */
            pthread_cond_broadcast(&changed);
            return i;
        }
    }
    return -EAGAIN;
}

int hf3fs_prep_io(const ldr_hf3fs_ior_t *ior, const ldr_hf3fs_iov_t *iov,
                  bool read, void *at, int fd, size_t offset, uint64_t bytes,
                  const void *userdata)
{
    ring_t *r = ior->handle;
    size_t from = (size_t)((uint8_t *)at - iov->base);
    entry_t new = {.used = true,
                   .read = read,
                   .at = at,
                   .offset = offset,
                   .bytes = bytes,
                   .userdata = userdata};

    if (atomic_fetch_add(&r->inside, 1) != 0) {
        misused();
    }
    int copy = fd >= 0 && fd < FDS ? atomic_load(&fds[fd]) : 0;
    int index = -EBADF;
    if (read != ior->for_read || from >= iov->size ||
        bytes > iov->size - from || bytes == 0 ||
        (iov->block_size != 0 &&
         from / iov->block_size != (from + bytes - 1) / iov->block_size)) {
        misused();
        index = -EINVAL;
    } else if (copy != 0) {
        /* Its own, so that the file may be closed meanwhile. */
        new.fd = dup(copy - 1);
        pthread_mutex_lock(&lock);
        index = place(r, &new);
        pthread_mutex_unlock(&lock);
        if (index < 0) {
            close(new.fd);
        }
    } else {
        misused();
    }
    atomic_fetch_sub(&r->inside, 1);
    return index;
}

int hf3fs_submit_ios(const ldr_hf3fs_ior_t *ior)
{
    (void)ior;
    return 0;
}

/* One that is done, or NULL. */
static entry_t *finished(ring_t *r)
{
    for (int i = 0; i < r->entries; i++) {
        if (r->entry[i].used && r->entry[i].done) {
            return &r->entry[i];
        }
    }
    return NULL;
}

int hf3fs_wait_for_ios(const ldr_hf3fs_ior_t *ior, ldr_hf3fs_cqe_t *cqes,
                       int room, int least, const struct timespec *until)
{
    ring_t *r = ior->handle;
    int n = 0, late = 0;

    if (atomic_fetch_add(&r->inside, 1) != 0) {
        misused();
    }
    pthread_mutex_lock(&lock);
    do {
        entry_t *e;

        while (n < room && (e = finished(r)) != NULL) {
            cqes[n++] = (ldr_hf3fs_cqe_t){.index = (int32_t)(e - r->entry),
                                          .result = e->result,
                                          .userdata = e->userdata};
            *e = (entry_t){0};
        }
        /* The condition waits by the wall clock, as the real one does. */
    } while (n < least && late == 0 &&
             ((late = pthread_cond_timedwait(&changed, &lock, until)) == 0 ||
              late == ETIMEDOUT));
    pthread_mutex_unlock(&lock);
    atomic_fetch_sub(&r->inside, 1);
    return n;
}
