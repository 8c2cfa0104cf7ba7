/*
 * larder_move on the CPU: one unit, lane by lane and row by row as the kernel's
 * source does it (src/gpu/kernel.c), with the tables that the kernel is given.
 * test_kernel.c compares it with that source itself.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "gpu/kernel.h"

static inline uint32_t emulate_times(const uint32_t *t, uint32_t x)
{
    return t[x & 255] ^ t[256 + ((x >> 8) & 255)] ^ t[512 + ((x >> 16) & 255)] ^
           t[768 + (x >> 24)];
}

static inline uint32_t emulate_product(uint32_t a, uint32_t b)
{
    uint32_t p = 0;

    for (int i = 0; i < 32 && a != 0; i++) {
        p ^= (a >> 31) != 0 ? b : 0;
        a <<= 1;
        b = (b >> 1) ^ ((b & 1) != 0 ? 0x82f63b78u : 0u);
    }
    return p;
}

/* Where word i of a unit lies on its page's side: behind i / row gaps. */
static inline size_t emulate_word(const ldr_gpu_unit_t *u, bool page, int i)
{
    return 16 * ((size_t)i +
                 (page && u->gap != 0 ? (size_t)i / u->row * u->gap : 0));
}

/* The bytes from its first to its last, on the page's side or the buffer's. */
static inline size_t emulate_reach(const ldr_gpu_unit_t *u, bool page)
{
    return u->words == 0 ? 0 : emulate_word(u, page, u->words - 1) + 16;
}

/* What one lane moves and finds. */
static inline uint32_t emulate_lane(const uint32_t *t, int lane, uint8_t *to,
                                    const uint8_t *from,
                                    const ldr_gpu_unit_t *u, uint32_t flags)
{
    int words = u->words;
    bool load = (flags & LDR_GPU_LOAD) != 0;
    uint32_t sum = 0;

    for (int at = lane - ((32 - (words & 31)) & 31); at < words; at += 32) {
        uint32_t v[4] = {0};

        if (at >= 0) {
            memcpy(v, from + emulate_word(u, !load, at), 16);
        }
        if (at >= 0 && to != NULL) {
            memcpy(to + emulate_word(u, load, at), v, 16);
        }
        if ((flags & LDR_GPU_CHECK) != 0) {
            uint32_t c = emulate_times(t, v[0]);

            c = emulate_times(t, c ^ v[1]);
            c = emulate_times(t, c ^ v[2]);
            c = emulate_times(t, c ^ v[3]);
            sum = emulate_times(t + 1024, sum) ^ c;
        }
    }
    return sum;
}

/* Moves a unit, from and to being its addresses here; what is to be added to
 * its shard's sum. */
static inline uint32_t emulate_unit(const uint32_t *t, uint8_t *to,
                                    const uint8_t *from,
                                    const ldr_gpu_unit_t *u, uint32_t flags)
{
    uint32_t sum = 0;

    for (int lane = 0; lane < 32; lane++) {
        sum ^= emulate_product(emulate_lane(t, lane, to, from, u, flags),
                               t[2048 + lane]);
    }
    return (flags & LDR_GPU_CHECK) != 0 ? emulate_product(sum, u->factor) : 0;
}
