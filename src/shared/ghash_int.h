/*
 * Inside the hash: what ghash.c (the bytes that come, blocks one by one) and
 * its vectors of 256 and 512 bits (ghash_256.c, ghash_512.c) share. What is
 * inlined here asks for the least of a CPU, so that all three may have it.
 */
#pragma once

#include "shared/ghash.h"

/* A checksum, without its inversions, and of how many bytes it is so far. */
typedef struct ldr_ghash_check {
    uint32_t crc;
    size_t bytes;
} ldr_ghash_check_t;

#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

#define STEP_BYTES ((size_t)LDR_GHASH_POWERS * LDR_GHASH_BLOCK)
#define FOLD 0xc200000000000000u
/* How far ahead memory is asked for: the CPU's own way stops at every page. */
#define AHEAD 4096u
#define STREAMS 4u
#define STREAM_BYTES ((size_t)2048)
#define PIECE_BYTES (STREAMS * STREAM_BYTES)
/* x^(8 * STREAM_BYTES - 33) modulo CRC-32C's polynomial, bit-reflected as in
 * base/copy_internal.h. */
#define STREAM_POWER 0xa51b6135
#define NARROW __attribute__((target("sse4.2,ssse3,pclmul")))
#define INLINE static inline __attribute__((always_inline))

/* Whole steps; gives the bytes that they are. check: of the first of them; or
 * NULL. The CPU must have VPCLMULQDQ, and AVX2 or AVX-512. */
size_t ldr_ghash_steps_256(ldr_ghash_t *g, const uint8_t *p, size_t bytes,
                           ldr_ghash_check_t *check);
size_t ldr_ghash_steps_512(ldr_ghash_t *g, const uint8_t *p, size_t bytes,
                           ldr_ghash_check_t *check);

/* ---- the CRC that goes along ---- */

/* The streams' CRCs, without the inversions before and after; at: where the
 * first stream is. */
typedef struct streams {
    uint64_t crc[STREAMS];
    const uint8_t *at;
} streams_t;

/* The next 32 bytes of each. */
NARROW INLINE void streams_add(streams_t *s)
{
#pragma GCC unroll 4
    for (unsigned i = 0; i < 4; i++) {
#pragma GCC unroll 4
        for (unsigned k = 0; k < STREAMS; k++) {
            uint64_t v;

            memcpy(&v, s->at + k * STREAM_BYTES, sizeof(v));
            s->crc[k] = _mm_crc32_u64(s->crc[k], v);
        }
        s->at += sizeof(uint64_t);
    }
}

/* One after the other: what comes before is moved on by a stream's bytes. A
 * product of 32 by 32 bits stands in 64 for itself times x, whose CRC is that
 * times x^32. */
NARROW INLINE uint64_t streams_end(const streams_t *s)
{
    const __m128i power = _mm_cvtsi32_si128((int)STREAM_POWER);
    uint64_t crc = s->crc[0];

#pragma GCC unroll 4
    for (unsigned k = 1; k < STREAMS; k++) {
        __m128i moved = _mm_clmulepi64_si128(_mm_cvtsi64_si128((long long)crc),
                                             power, 0x00);

        crc = _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(moved)) ^ s->crc[k];
    }
    return crc;
}

#endif
