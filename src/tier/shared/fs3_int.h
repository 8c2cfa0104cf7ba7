/*
 * 3FS's own way to its storage: rings in memory that its FUSE process shares
 * with us (USRBIO). The library is loaded when it is first needed; this is our
 * mirror of its C interface, whose sizes are part of it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"

#define LDR_HF3FS_MOUNT_MAX 256u

typedef struct ldr_hf3fs_iov {
    uint8_t *base;
    void *handle;
    char id[16];
    char mount_point[LDR_HF3FS_MOUNT_MAX];
    size_t size, block_size;
    int numa;
} ldr_hf3fs_iov_t;

typedef struct ldr_hf3fs_ior {
    ldr_hf3fs_iov_t iov;
    void *handle;
    char mount_point[LDR_HF3FS_MOUNT_MAX];
    bool for_read;
    int io_depth, priority, timeout;
    uint64_t flags;
} ldr_hf3fs_ior_t;

typedef struct ldr_hf3fs_cqe {
    int32_t index, reserved;
    int64_t result;
    const void *userdata;
} ldr_hf3fs_cqe_t;

_Static_assert(sizeof(void *) != 8 || sizeof(ldr_hf3fs_iov_t) == 312, "ABI");
_Static_assert(sizeof(void *) != 8 || sizeof(ldr_hf3fs_ior_t) == 600, "ABI");
_Static_assert(sizeof(void *) != 8 || sizeof(ldr_hf3fs_cqe_t) == 24, "ABI");

/* X(name here, symbol, result, parameters). All give 0 or a negative errno but
 * where it says otherwise. */
#define LDR_HF3FS_MAP(X)                                                       \
    X(iov_create, hf3fs_iovcreate, int,                                        \
      (ldr_hf3fs_iov_t * iov, const char *mount_point, size_t size,            \
       size_t block_size, int numa))                                           \
    X(iov_destroy, hf3fs_iovdestroy, void, (ldr_hf3fs_iov_t * iov))            \
    X(ior_create, hf3fs_iorcreate4, int,                                       \
      (ldr_hf3fs_ior_t * ior, const char *mount_point, int entries,            \
       bool for_read, int io_depth, int timeout, int numa, uint64_t flags))    \
    X(ior_destroy, hf3fs_iordestroy, void, (ldr_hf3fs_ior_t * ior))            \
    /* 0 or below: registered; above: an errno */                              \
    X(reg_fd, hf3fs_reg_fd, int, (int fd, uint64_t flags))                     \
    X(dereg_fd, hf3fs_dereg_fd, void, (int fd))                                \
    /* an index; -EAGAIN: the ring is full */                                  \
    X(prep_io, hf3fs_prep_io, int,                                             \
      (const ldr_hf3fs_ior_t *ior, const ldr_hf3fs_iov_t *iov, bool read,      \
       void *at, int fd, size_t offset, uint64_t bytes, const void *userdata)) \
    X(submit_ios, hf3fs_submit_ios, int, (const ldr_hf3fs_ior_t *ior))         \
    /* how many; until a time of CLOCK_REALTIME */                             \
    X(wait_for_ios, hf3fs_wait_for_ios, int,                                   \
      (const ldr_hf3fs_ior_t *ior, ldr_hf3fs_cqe_t *cqes, int room, int least, \
       const struct timespec *until))

typedef struct ldr_hf3fs {
#define X(name, symbol, result, parameters) result(*name) parameters;
    LDR_HF3FS_MAP(X)
#undef X
} ldr_hf3fs_t;

/* NULL, with a text: it is not here, or lacks something. */
const ldr_hf3fs_t *ldr_hf3fs(void);

/* ---- one ring for each way and their buffer (fs3_ring.c) ---- */

#define LDR_FS3_SLOT ((size_t)1 << 20) /* no I/O crosses its end */
#define LDR_FS3_SLOTS 16u

typedef struct ldr_fs3_slot {
    bool busy;
    uint64_t at; /* in the transfer */
    uint32_t bytes, done;
} ldr_fs3_slot_t;

/* Used by one thread at a time: neither the rings nor the slots are safe for
 * more. */
typedef struct ldr_fs3_ring ldr_fs3_ring_t;
struct ldr_fs3_ring {
    const ldr_hf3fs_t *api;
    ldr_hf3fs_iov_t buffer;
    ldr_hf3fs_ior_t rings[2]; /* [1]: for reading */
    ldr_fs3_slot_t slots[LDR_FS3_SLOTS];
    unsigned flying[2]; /* I/O that has not come back, of each ring */
    unsigned generation;
    ldr_fs3_ring_t *next;
};

typedef struct ldr_fs3_transfer {
    int fd;
    bool writing;
    const struct iovec *iov;
    unsigned count;
    uint64_t offset, total;
    uint64_t deadline_ns;
    const ldr_clock_t *clock;
} ldr_fs3_transfer_t;

/* NULL: *error_p says why. */
ldr_fs3_ring_t *ldr_fs3_ring_open(const ldr_hf3fs_t *api, const char *mount,
                                  int *error_p);
void ldr_fs3_ring_close(ldr_fs3_ring_t *ring);
/* All of it: 0 or a negative errno. What has not come back by the deadline
 * stays in flight: it can touch the ring's buffer, and nothing of the
 * caller's. */
int ldr_fs3_ring_move(ldr_fs3_ring_t *ring, const ldr_fs3_transfer_t *t);
/* Whether nothing of it is in flight, after taking in what came back. */
bool ldr_fs3_ring_idle(ldr_fs3_ring_t *ring);
