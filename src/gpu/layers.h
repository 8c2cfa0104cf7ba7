/*
 * A load that an engine uses before it is over: its bytes come in the order of
 * the layers, in parts of some layers each, and the engine's stream waits for
 * a part where it needs it.
 *
 * The load's thread marks a part when all copies of it are queued, and ends the
 * whole when nothing is under way any more, with its status. Who waits for a
 * part blocks until it is marked, no longer; the rest of the way the stream
 * waits, by the part's event. An event is recorded again only by the next load,
 * which begins when this one has ended: what waits for it was queued before.
 *
 * Only a shard as a whole has a checksum: that what was used was right is known
 * at the end. Who waited asks for the status then, and undoes what it did.
 */
#pragma once

#include <pthread.h>

#include "gpu/cuda.h"

#define LDR_LAYER_PARTS_MAX 64u

struct larder_layers {
    larder_gpu_t *gpu;
    uint32_t layer_count, part_count;   /* never changed, as the next two */
    uint64_t ends[LDR_LAYER_PARTS_MAX]; /* bytes of a shard before each */
    ldr_cu_event_t event[LDR_LAYER_PARTS_MAX];
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t queued; /* parts that were marked */
    bool ended;
    larder_status_t status; /* once it has ended */
};

/* Bytes of a shard. */
static inline uint64_t ldr_layers_bytes(const larder_layers_t *l)
{
    return l->ends[l->part_count - 1];
}

/* The next part's copies are all queued in this stream. In the context. */
ldr_cu_t ldr_layers_mark(larder_layers_t *l, ldr_cu_stream_t stream);
