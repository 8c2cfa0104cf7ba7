/*
 * An engine's memory is the host's, unless a test has put it elsewhere
 * (tests/gpu/prefix_memory.h): what the engine sees of it, and what its layout
 * is told; and what all sizes and places in it are multiples of.
 */
#pragma once

#include <stdint.h>
#include <stdlib.h>

#include "larder/larder.h"

#ifdef RIG_ELSEWHERE
#define RIG_WHOLE true /* no room is reserved before a save */
#else
#define RIG_WHOLE false

static inline uint8_t *rig_memory(uint64_t bytes, void **there)
{
    *there = malloc(bytes);
    return *there;
}

static inline void rig_memory_free(void *memory)
{
    free(memory);
}

static inline void rig_layout(larder_layout_params_t *params)
{
    (void)params;
}

static inline uint32_t rig_grain(uint64_t seed)
{
    (void)seed;
    return 1;
}
#endif
