/*
 * Steps of the hash in vectors of 256 bits: AVX2, for CPUs that have VPCLMULQDQ
 * and no AVX-512. As ghash.c says, but with two states, for two blocks that lie
 * together: s0' = (s0 + b0) H^32 + b2 H^30 + ... + b30 H^2, and so for s1.
 */
#include "shared/ghash_int.h"

#if defined(__x86_64__)

#define VECTORS (LDR_GHASH_POWERS / 2)
#define MIDDLE __attribute__((target("sse4.2,ssse3,pclmul,avx2,vpclmulqdq")))

/* The bytes of each 16 the other way round. */
MIDDLE INLINE __m256i turn_256(__m256i v)
{
    return _mm256_shuffle_epi8(v, _mm256_broadcastsi128_si256(_mm_set_epi64x(
                                      0x0001020304050607, 0x08090a0b0c0d0e0f)));
}

MIDDLE INLINE __m256i swap_256(__m256i v)
{
    return _mm256_shuffle_epi32(v, 0x4e);
}

/* A sum of products that is not reduced yet. middle is that of the sums of both
 * halves, which has low and high in it once more each: three multiplications
 * in place of four. */
typedef struct product {
    __m256i low, middle, high;
} product_t;

typedef struct power {
    __m256i whole, halves; /* in its lower half: the sum of both */
} power_t;

MIDDLE INLINE power_t power_of(__m256i whole)
{
    return (power_t){whole, _mm256_xor_si256(whole, swap_256(whole))};
}

MIDDLE INLINE void multiply_add(product_t *p, __m256i v, const power_t *power)
{
    __m256i both = _mm256_xor_si256(v, swap_256(v));

    p->low = _mm256_xor_si256(p->low,
                              _mm256_clmulepi64_epi128(v, power->whole, 0x00));
    p->high = _mm256_xor_si256(p->high,
                               _mm256_clmulepi64_epi128(v, power->whole, 0x11));
    p->middle = _mm256_xor_si256(
        p->middle, _mm256_clmulepi64_epi128(both, power->halves, 0x00));
}

/* low + middle * 2^64 + high * 2^128, reduced, of two at once. */
MIDDLE INLINE __m256i reduce_256(const product_t *p)
{
    const __m256i fold = _mm256_set1_epi64x((long long)FOLD);
    __m256i middle =
        _mm256_xor_si256(p->middle, _mm256_xor_si256(p->low, p->high));

    middle = _mm256_xor_si256(middle, swap_256(p->low));
    middle =
        _mm256_xor_si256(middle, _mm256_clmulepi64_epi128(p->low, fold, 0x00));
    return _mm256_xor_si256(_mm256_xor_si256(p->high, swap_256(middle)),
                            _mm256_clmulepi64_epi128(middle, fold, 0x00));
}

/* One step: the states' sums with its first two blocks, and the others, by
 * their powers. streams: NULL if there is no CRC to go along. */
MIDDLE INLINE __m256i add_step(__m256i states, const uint8_t *p,
                               const power_t powers[VECTORS],
                               streams_t *streams)
{
    const __m256i zero = _mm256_setzero_si256();
    const size_t ahead = streams != NULL ? PIECE_BYTES : AHEAD;
    product_t sum = {zero, zero, zero};

#pragma GCC unroll 16
    for (unsigned i = 0; i < VECTORS; i++) {
        const uint8_t *at = p + (size_t)32 * i;
        __m256i v = turn_256(_mm256_loadu_si256((const __m256i *)at));

        if (i % 2 == 0) {
            _mm_prefetch((const char *)at + ahead, _MM_HINT_T0);
        }
        if (i == 0) {
            v = _mm256_xor_si256(v, states);
        }
        multiply_add(&sum, v, &powers[i]);
        if (streams != NULL && i % 4 == 3) {
            streams_add(streams);
        }
    }
    return reduce_256(&sum);
}

MIDDLE INLINE __m256i add_piece(__m256i states, const uint8_t *p,
                                const power_t powers[VECTORS], uint32_t *crc)
{
    streams_t s = {.crc = {*crc}, .at = p};

    for (size_t done = 0; done < PIECE_BYTES; done += STEP_BYTES) {
        states = add_step(states, p + done, powers, &s);
    }
    *crc = (uint32_t)streams_end(&s);
    return states;
}

MIDDLE size_t ldr_ghash_steps_256(ldr_ghash_t *g, const uint8_t *p,
                                  size_t bytes, ldr_ghash_check_t *check)
{
    __m256i states =
        _mm256_zextsi128_si256(_mm_load_si128((const __m128i *)g->state));
    power_t powers[VECTORS];
    size_t done = 0;

    if (bytes < STEP_BYTES) {
        return 0;
    }
    for (unsigned i = 0; i < VECTORS; i++) {
        powers[i] = power_of(_mm256_broadcastsi128_si256(
            _mm_load_si128((const __m128i *)g->powers[(size_t)2 * i])));
    }
    while (check != NULL && bytes - done >= PIECE_BYTES + STEP_BYTES) {
        states = add_piece(states, p + done, powers, &check->crc);
        done += PIECE_BYTES;
        check->bytes = done;
    }
    for (; bytes - done >= 2 * STEP_BYTES; done += STEP_BYTES) {
        states = add_step(states, p + done, powers, NULL);
    }
    for (unsigned i = 0; i < VECTORS; i++) {
        powers[i] = power_of(
            _mm256_load_si256((const __m256i *)g->powers[(size_t)2 * i]));
    }
    states = add_step(states, p + done, powers, NULL);
    _mm_store_si128((__m128i *)g->state,
                    _mm_xor_si128(_mm256_castsi256_si128(states),
                                  _mm256_extracti128_si256(states, 1)));
    return done + STEP_BYTES;
}

#endif
