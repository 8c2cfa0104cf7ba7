/* Both ends of a pair of rings, for tests. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "net/ring.h"
#include "support/values.h"

#define MASK (LDR_RING_BYTES - 1)

/* A wait this long is a wake-up that was lost. */
#define WATCHDOG_NS (60ull * 1000000000u)

static inline void *map_new(void)
{
    void *map = mmap(NULL, LDR_RING_MAP_BYTES, PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    require(map != MAP_FAILED, "mmap");
    return map;
}

/* Both ends on a new map, as if so many bytes had gone through already. */
static inline void *pair_new(ldr_ring_pair_t *server, ldr_ring_pair_t *client,
                             uint32_t position)
{
    ldr_ring_shared_t *shared = map_new();

    ldr_ring_init(server, shared, true);
    ldr_ring_init(client, shared, false);
    shared->to_server.tail = shared->to_server.head = position;
    shared->to_client.tail = shared->to_client.head = position;
    server->in.position = server->out.position = position;
    client->in.position = client->out.position = position;
    return shared;
}

static inline void map_free(void *map)
{
    munmap(map, LDR_RING_MAP_BYTES);
}

static inline bool write_one(ldr_ring_t *ring, const void *data, size_t bytes)
{
    struct iovec piece = {(void *)(uintptr_t)data, bytes};

    return ldr_ring_write(ring, &piece, 1);
}

static inline uint64_t in_time(void)
{
    return ldr_now_ns(&ldr_clock_real) + WATCHDOG_NS;
}
