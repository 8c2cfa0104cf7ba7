/*
 * Two rings of bytes in shared memory, one each way, between one client and
 * the daemon. A ring has one producer and one consumer at a time.
 *
 * Everything in the shared memory is writable by the client, so the daemon
 * believes none of it: it keeps its own positions, reads the peer's once per
 * call, and copies a message out once before it looks at it. A position or a
 * length that cannot be ends the session.
 *
 * Sleeping. The daemon is woken by a doorbell (an eventfd) and the client by a
 * futex in the ring's header. Each side says that it is about to sleep, then
 * fences, then looks once more; the other publishes, fences, then looks
 * whether it must wake: so one of the two always sees the other.
 *
 * A producer says on which CPU it runs: a hint, for who would poll there.
 *
 * Invariants of an end, which are checked: its own position is a multiple of 8;
 * one thread at a time writes, or reads (debug builds); nothing is written or
 * read after ldr_ring_hang_up(). What the other end has written is no
 * invariant.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "net/transport.h"

#define LDR_RING_BYTES (1u << 20) /* of each direction; a power of two */
#define LDR_RING_HEAD 4096u
#define LDR_RING_MAP_BYTES (LDR_RING_HEAD + 2u * LDR_RING_BYTES)
#define LDR_RING_MESSAGE_MAX (LDR_RING_BYTES - 64u)

/* At the start of the shared memory. Positions count bytes and wrap at 2^32. */
typedef struct ldr_ring_shared {
    struct {
        _Alignas(64) uint32_t tail; /* the producer's */
        uint32_t cpu; /* where it wrote last, plus one; 0: unknown */
        _Alignas(64) uint32_t head;   /* the consumer's */
        _Alignas(64) uint32_t sleeps; /* 1: the consumer sleeps, or is about
                                         to; the client's is its futex */
    } to_server, to_client;
} ldr_ring_shared_t;

/* One end of one ring. */
typedef struct ldr_ring {
    uint32_t *tail, *head, *sleeps, *cpu; /* in shared memory */
    uint8_t *data;
    uint32_t position; /* this side's own, which it believes */
    bool broken;       /* the other side's was seen to be impossible */
    bool gone;         /* hung up */
    bool entered;      /* atomic, debug builds: somebody writes, or reads */
} ldr_ring_t;

typedef struct ldr_ring_pair {
    ldr_ring_t out, in;
    bool server;
} ldr_ring_pair_t;

/* map: LDR_RING_MAP_BYTES of shared memory, zeroed by its maker. */
void ldr_ring_init(ldr_ring_pair_t *pair, void *map, bool server);

/* The pair as a stream of the transport table's row for shared memory, whose
 * writes wake the other end. fd: the doorbell, which stays its owner's. */
extern const ldr_transport_ops_t ldr_transport_shm;
void ldr_ring_stream(ldr_stream_t *s, ldr_ring_pair_t *pair, int fd);

/* The daemon will neither read nor write any more: gives back the memory of the
 * messages, which a client could keep. One that is reading sees that the ring
 * is broken, not zeros. */
void ldr_ring_hang_up(ldr_ring_pair_t *pair, void *map);

/* Appends a message of these pieces, 1 to LDR_RING_MESSAGE_MAX bytes together
 * (others are refused). False: no room now, or the peer's position is
 * impossible (ldr_ring_broken() then says so). Orders all stores before it,
 * also those that bypass the caches. */
bool ldr_ring_write(ldr_ring_t *ring, const struct iovec *pieces,
                    unsigned count);

/* Copies the next message out. Its length; 0: there is none; -1: the ring is
 * broken (a length or a position that cannot be). At most max bytes, which is
 * a limit and not a request: a longer message is -1. */
ptrdiff_t ldr_ring_read(ldr_ring_t *ring, uint8_t *to, size_t max);

/* Whether something seems to be there: a hint, for spinning. */
bool ldr_ring_ready(const ldr_ring_t *ring);
/* Whether its producer wrote last on the CPU that the caller runs on: polling
 * would keep it from writing more. A hint. */
bool ldr_ring_beside(const ldr_ring_t *ring);

/* Whether a write or a read failed because of what cannot be. For good. */
bool ldr_ring_broken(const ldr_ring_t *ring);
/* Whether a message of so many bytes would fit now. */
bool ldr_ring_fits(const ldr_ring_t *ring, size_t bytes);

/* Consumer: about to sleep. False: something came, do not. Who slept calls
 * sleep_end() before it reads on. */
bool ldr_ring_sleep_begin(ldr_ring_t *ring);
void ldr_ring_sleep_end(ldr_ring_t *ring);

/* Producer, after a write: whether the consumer must be woken. True once for
 * each time that it lay down: who gets it rings the doorbell, or calls
 * futex_wake(). */
bool ldr_ring_must_wake(ldr_ring_t *ring);

/* The client's futex: waits while it sleeps, at most until the time (monotonic,
 * ns; UINT64_MAX: for ever). The daemon wakes it, or another thread of the
 * client that wants it to look around. */
void ldr_ring_futex_wait(ldr_ring_t *ring, uint64_t deadline_ns);
void ldr_ring_futex_wake(ldr_ring_t *ring);
