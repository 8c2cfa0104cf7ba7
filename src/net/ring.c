/*
 * The rings. A message is its length (32 bits), its bytes, and zeros or
 * whatever lay there up to the next multiple of 8; so a length never wraps.
 *
 * Positions are published with sequentially consistent stores and the sleep
 * flag is read with sequentially consistent loads, and the other way round:
 * of "publish, then look whether it sleeps" and "say that it sleeps, then look
 * for more" at least one sees the other. On x86 the store is a locked
 * exchange, the full fence that this takes. (Bare fences would do as well, but
 * the thread sanitizer does not know them.)
 */
#define _GNU_SOURCE
#include "net/ring.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"

#define MASK (LDR_RING_BYTES - 1)
#define LENGTH_BYTES 4u

_Static_assert((LDR_RING_BYTES & MASK) == 0, "positions wrap by a mask");
_Static_assert(sizeof(ldr_ring_shared_t) <= LDR_RING_HEAD, "fits its page");

/* What a message takes in the ring; bytes is at most LDR_RING_MESSAGE_MAX. */
static uint32_t record_bytes(size_t bytes)
{
    return (uint32_t)((LENGTH_BYTES + bytes + 7) & ~(size_t)7);
}

/* Stores that bypass the caches are not ordered by a release store on x86. An
 * exchange drains them too; said here so that it does not hang on how a
 * compiler stores. */
static void drain_stores(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_sfence();
#endif
}

/* What was read before is not read later. */
static void order_loads(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __asm__ volatile("" ::: "memory");
#else
    __sync_synchronize();
#endif
}

void ldr_ring_init(ldr_ring_pair_t *pair, void *map, bool server)
{
    ldr_ring_shared_t *shared = map;
    uint8_t *data = (uint8_t *)map + LDR_RING_HEAD;
    ldr_ring_t to_server = {
        .tail = &shared->to_server.tail,
        .head = &shared->to_server.head,
        .sleeps = &shared->to_server.sleeps,
        .cpu = &shared->to_server.cpu,
        .data = data,
    };
    ldr_ring_t to_client = {
        .tail = &shared->to_client.tail,
        .head = &shared->to_client.head,
        .sleeps = &shared->to_client.sleeps,
        .cpu = &shared->to_client.cpu,
        .data = data + LDR_RING_BYTES,
    };

    pair->in = server ? to_server : to_client;
    pair->out = server ? to_client : to_server;
    pair->server = server;
}

/* Plus one; 0: unknown. */
static uint32_t this_cpu(void)
{
    return (uint32_t)(sched_getcpu() + 1);
}

/* Before and after what one thread at a time does. False: it may not. */
static bool ring_enter(ldr_ring_t *ring)
{
    if (LDR_DEBUG) {
        bool before =
            __atomic_exchange_n(&ring->entered, true, __ATOMIC_RELAXED);

        LDR_ASSERT(!before && "one thread uses this end of the ring");
    }
    return LDR_HOLDS(!ring->gone && ring->position % 8 == 0);
}

static void ring_leave(ldr_ring_t *ring)
{
    if (LDR_DEBUG) {
        __atomic_store_n(&ring->entered, false, __ATOMIC_RELAXED);
    }
}

/* ---- producer ---- */

/* Bytes that may be written now; UINT32_MAX: the consumer's position cannot
 * be. Acquire: what it has read, it has read before we overwrite it. */
static uint32_t bytes_free(const ldr_ring_t *ring)
{
    uint32_t head = __atomic_load_n(ring->head, __ATOMIC_ACQUIRE);
    uint32_t used = ring->position - head;

    return used <= LDR_RING_BYTES && used % 8 == 0 ? LDR_RING_BYTES - used
                                                   : UINT32_MAX;
}

static void copy_in(ldr_ring_t *ring, uint32_t at, const uint8_t *from,
                    size_t bytes)
{
    size_t offset = at & MASK;
    size_t first = LDR_RING_BYTES - offset;

    if (first > bytes) {
        first = bytes;
    }
    memcpy(ring->data + offset, from, first);
    memcpy(ring->data, from + first, bytes - first);
}

static bool write_message(ldr_ring_t *ring, const struct iovec *pieces,
                          unsigned count)
{
    uint32_t free_bytes = bytes_free(ring);
    uint32_t at = ring->position;
    size_t bytes = 0;

    for (unsigned i = 0; i < count; i++) {
        if (pieces[i].iov_len > LDR_RING_MESSAGE_MAX - bytes) {
            return false;
        }
        bytes += pieces[i].iov_len;
    }
    if (free_bytes == UINT32_MAX) {
        ring->broken = true;
        return false;
    }
    if (bytes == 0 || record_bytes(bytes) > free_bytes) {
        return false;
    }
    __atomic_store_n((uint32_t *)(void *)(ring->data + (at & MASK)),
                     (uint32_t)bytes, __ATOMIC_RELAXED);
    at += LENGTH_BYTES;
    for (unsigned i = 0; i < count; i++) {
        if (pieces[i].iov_len > 0) {
            copy_in(ring, at, pieces[i].iov_base, pieces[i].iov_len);
            at += (uint32_t)pieces[i].iov_len;
        }
    }
    ring->position += record_bytes(bytes);
    __atomic_store_n(ring->cpu, this_cpu(), __ATOMIC_RELAXED);
    drain_stores();
    __atomic_store_n(ring->tail, ring->position, __ATOMIC_SEQ_CST);
    return true;
}

bool ldr_ring_write(ldr_ring_t *ring, const struct iovec *pieces,
                    unsigned count)
{
    bool written = ring_enter(ring) && write_message(ring, pieces, count);

    ring_leave(ring);
    return written;
}

void ldr_ring_hang_up(ldr_ring_pair_t *pair, void *map)
{
    pair->in.gone = pair->out.gone = true;
    /* No record ends there. */
    __atomic_store_n(pair->out.tail, pair->out.position + 1, __ATOMIC_SEQ_CST);
    /* If it cannot be: the client keeps two MiB. */
    (void)madvise((uint8_t *)map + LDR_RING_HEAD, (size_t)2 * LDR_RING_BYTES,
                  MADV_REMOVE);
}

bool ldr_ring_broken(const ldr_ring_t *ring)
{
    return ring->broken;
}

bool ldr_ring_fits(const ldr_ring_t *ring, size_t bytes)
{
    uint32_t free_bytes = bytes_free(ring);

    return bytes <= LDR_RING_MESSAGE_MAX && free_bytes != UINT32_MAX &&
           record_bytes(bytes) <= free_bytes;
}

bool ldr_ring_must_wake(ldr_ring_t *ring)
{
    /* Cleared here, so that a consumer that is slow to get up is woken once. */
    return __atomic_load_n(ring->sleeps, __ATOMIC_SEQ_CST) != 0 &&
           __atomic_exchange_n(ring->sleeps, 0, __ATOMIC_SEQ_CST) != 0;
}

/* ---- consumer ---- */

static void copy_out(const ldr_ring_t *ring, uint32_t at, uint8_t *to,
                     size_t bytes)
{
    size_t offset = at & MASK;
    size_t first = LDR_RING_BYTES - offset;

    if (first > bytes) {
        first = bytes;
    }
    memcpy(to, ring->data + offset, first);
    memcpy(to + first, ring->data, bytes - first);
}

static ptrdiff_t read_message(ldr_ring_t *ring, uint8_t *to, size_t max)
{
    uint32_t tail = __atomic_load_n(ring->tail, __ATOMIC_ACQUIRE);
    uint32_t there = tail - ring->position;

    if (ring->broken) {
        return -1;
    }
    if (there == 0) {
        return 0;
    }
    if (there > LDR_RING_BYTES || there % 8 != 0) {
        ring->broken = true;
        return -1;
    }
    /* Read once: what is decided about it below is about this value. */
    uint32_t bytes = __atomic_load_n(
        (const uint32_t *)(const void *)(ring->data + (ring->position & MASK)),
        __ATOMIC_RELAXED);
    if (bytes == 0 || bytes > LDR_RING_MESSAGE_MAX || bytes > max ||
        record_bytes(bytes) > there) {
        ring->broken = true;
        return -1;
    }
    copy_out(ring, ring->position + LENGTH_BYTES, to, bytes);
    /* Who hangs up says so before its memory goes: see ldr_ring_hang_up(). */
    order_loads();
    if ((__atomic_load_n(ring->tail, __ATOMIC_RELAXED) - ring->position) % 8 !=
        0) {
        ring->broken = true;
        return -1;
    }
    ring->position += record_bytes(bytes);
    /* Release: the bytes are out before they may be overwritten. */
    __atomic_store_n(ring->head, ring->position, __ATOMIC_RELEASE);
    return (ptrdiff_t)bytes;
}

ptrdiff_t ldr_ring_read(ldr_ring_t *ring, uint8_t *to, size_t max)
{
    ptrdiff_t bytes = ring_enter(ring) ? read_message(ring, to, max) : -1;

    ring_leave(ring);
    return bytes;
}

bool ldr_ring_ready(const ldr_ring_t *ring)
{
    return __atomic_load_n(ring->tail, __ATOMIC_RELAXED) != ring->position;
}

bool ldr_ring_beside(const ldr_ring_t *ring)
{
    uint32_t cpu = __atomic_load_n(ring->cpu, __ATOMIC_RELAXED);

    return cpu != 0 && cpu == this_cpu();
}

bool ldr_ring_sleep_begin(ldr_ring_t *ring)
{
    __atomic_store_n(ring->sleeps, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(ring->tail, __ATOMIC_SEQ_CST) != ring->position) {
        ldr_ring_sleep_end(ring);
        return false;
    }
    return true;
}

void ldr_ring_sleep_end(ldr_ring_t *ring)
{
    __atomic_store_n(ring->sleeps, 0, __ATOMIC_RELAXED);
}

/* ---- the client's futex ---- */

/* Not a private futex: the other side is another process. */
static long futex(uint32_t *word, int op, uint32_t value,
                  const struct timespec *until)
{
    return syscall(SYS_futex, word, op, value, until, NULL,
                   FUTEX_BITSET_MATCH_ANY);
}

void ldr_ring_futex_wait(ldr_ring_t *ring, uint64_t deadline_ns)
{
    const struct timespec until = {
        .tv_sec = (time_t)(deadline_ns / 1000000000u),
        .tv_nsec = (long)(deadline_ns % 1000000000u),
    };

    while (__atomic_load_n(ring->sleeps, __ATOMIC_SEQ_CST) == 1) {
        if (futex(ring->sleeps, FUTEX_WAIT_BITSET, 1,
                  deadline_ns == UINT64_MAX ? NULL : &until) != 0 &&
            errno != EINTR && errno != EAGAIN) {
            return;
        }
    }
}

void ldr_ring_futex_wake(ldr_ring_t *ring)
{
    __atomic_store_n(ring->sleeps, 0, __ATOMIC_SEQ_CST);
    futex(ring->sleeps, FUTEX_WAKE, INT32_MAX, NULL);
}

/* ---- the row of the transport table ---- */

static ssize_t shm_read(ldr_stream_t *s, const struct iovec *iov,
                        unsigned count)
{
    ldr_ring_pair_t *pair = s->state;
    ptrdiff_t n = ldr_ring_read(&pair->in, iov->iov_base, iov->iov_len);

    (void)count; /* a message is read in one piece */
    return n > 0 ? n : n == 0 ? -EAGAIN : -EPROTO;
}

static ssize_t shm_write(ldr_stream_t *s, const struct iovec *iov,
                         unsigned count)
{
    ldr_ring_pair_t *pair = s->state;
    uint64_t one = 1;
    ssize_t bytes = 0;

    if (!ldr_ring_write(&pair->out, iov, count)) {
        return ldr_ring_broken(&pair->out) ? -EPROTO : -EAGAIN;
    }
    if (ldr_ring_must_wake(&pair->out)) {
        if (pair->server) {
            ldr_ring_futex_wake(&pair->out);
        } else if (write(s->fd, &one, sizeof(one)) < 0) {
            /* It is full of rings that were not heard yet: one is enough. */
        }
    }
    for (unsigned i = 0; i < count; i++) {
        bytes += (ssize_t)iov[i].iov_len;
    }
    return bytes;
}

static void shm_close(ldr_stream_t *s)
{
    s->fd = -1;
}

/* Connected by the sessions' unix socket, and waited for by its own ways: the
 * daemon polls many rings at once, and of a client's threads one reads. */
const ldr_transport_ops_t ldr_transport_shm = {
    .name = "shm",
    .messages = true,
    .read = shm_read,
    .write = shm_write,
    .close = shm_close,
};

void ldr_ring_stream(ldr_stream_t *s, ldr_ring_pair_t *pair, int fd)
{
    *s = (ldr_stream_t){.ops = &ldr_transport_shm, .fd = fd, .state = pair};
}
