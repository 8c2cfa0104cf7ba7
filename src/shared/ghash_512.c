/* Steps of the hash in vectors of 512 bits: AVX-512. See ghash.c. */
#include "shared/ghash_int.h"

#if defined(__x86_64__)

#define VECTORS (LDR_GHASH_POWERS / 4)
#define WIDE                                                                   \
    __attribute__((target("sse4.2,ssse3,pclmul,avx512f,avx512bw,avx512vl,"     \
                          "vpclmulqdq")))

/* The bytes of each 16 the other way round. */
WIDE INLINE __m512i turn_512(__m512i v)
{
    return _mm512_shuffle_epi8(v, _mm512_broadcast_i32x4(_mm_set_epi64x(
                                      0x0001020304050607, 0x08090a0b0c0d0e0f)));
}

/* A sum of products that is not reduced yet. middle is that of the sums of both
 * halves, which has low and high in it once more each: three multiplications
 * in place of four. */
typedef struct product {
    __m512i low, middle, high;
} product_t;

typedef struct power {
    __m512i whole, halves; /* in its lower half: the sum of both */
} power_t;

WIDE INLINE __m512i swap_512(__m512i v)
{
    return _mm512_shuffle_epi32(v, _MM_PERM_BADC);
}

WIDE INLINE power_t power_of(__m512i whole)
{
    return (power_t){whole, _mm512_xor_si512(whole, swap_512(whole))};
}

WIDE INLINE __m512i sum_of_three(__m512i a, __m512i b, __m512i c)
{
    return _mm512_ternarylogic_epi64(a, b, c, 0x96);
}

/* Of two vectors, since three are summed up as fast as two. */
WIDE INLINE void multiply_add(product_t *p, const __m512i v[2],
                              const power_t power[2])
{
    __m512i a = _mm512_xor_si512(v[0], swap_512(v[0]));
    __m512i b = _mm512_xor_si512(v[1], swap_512(v[1]));

    p->low = sum_of_three(p->low,
                          _mm512_clmulepi64_epi128(v[0], power[0].whole, 0x00),
                          _mm512_clmulepi64_epi128(v[1], power[1].whole, 0x00));
    p->high = sum_of_three(
        p->high, _mm512_clmulepi64_epi128(v[0], power[0].whole, 0x11),
        _mm512_clmulepi64_epi128(v[1], power[1].whole, 0x11));
    p->middle = sum_of_three(
        p->middle, _mm512_clmulepi64_epi128(a, power[0].halves, 0x00),
        _mm512_clmulepi64_epi128(b, power[1].halves, 0x00));
}

/* As reduce(), of four at once. */
WIDE INLINE __m512i reduce_512(const product_t *p)
{
    const __m512i fold = _mm512_set1_epi64((long long)FOLD);
    __m512i middle = sum_of_three(p->middle, p->low, p->high);

    middle = sum_of_three(middle, swap_512(p->low),
                          _mm512_clmulepi64_epi128(p->low, fold, 0x00));
    return sum_of_three(p->high, swap_512(middle),
                        _mm512_clmulepi64_epi128(middle, fold, 0x00));
}

WIDE INLINE __m128i sum_of_four(__m512i v)
{
    __m256i half = _mm256_xor_si256(_mm512_castsi512_si256(v),
                                    _mm512_extracti64x4_epi64(v, 1));

    return _mm_xor_si128(_mm256_castsi256_si128(half),
                         _mm256_extracti128_si256(half, 1));
}

/* ---- steps ---- */

/* One step: the states' sums with its first four blocks, and the others, by
 * their powers. streams: NULL if there is no CRC to go along. */
WIDE INLINE __m512i add_step(__m512i states, const uint8_t *p,
                             const power_t powers[VECTORS], streams_t *streams)
{
    const __m512i zero = _mm512_setzero_si512();
    const size_t ahead = streams != NULL ? PIECE_BYTES : AHEAD;
    product_t sum = {zero, zero, zero};

#pragma GCC unroll 8
    for (unsigned i = 0; i < VECTORS; i += 2) {
        const uint8_t *at = p + (size_t)64 * i;
        __m512i v[2] = {turn_512(_mm512_loadu_si512(at)),
                        turn_512(_mm512_loadu_si512(at + 64))};

        _mm_prefetch((const char *)at + ahead, _MM_HINT_T0);
        _mm_prefetch((const char *)at + ahead + 64, _MM_HINT_T0);
        if (i == 0) {
            v[0] = _mm512_xor_si512(v[0], states);
        }
        multiply_add(&sum, v, &powers[i]);
        if (streams != NULL) {
            streams_add(streams);
        }
    }
    return reduce_512(&sum);
}

WIDE INLINE __m512i add_piece(__m512i states, const uint8_t *p,
                              const power_t powers[VECTORS], uint32_t *crc)
{
    streams_t s = {.crc = {*crc}, .at = p};

    for (size_t done = 0; done < PIECE_BYTES; done += STEP_BYTES) {
        states = add_step(states, p + done, powers, &s);
    }
    *crc = (uint32_t)streams_end(&s);
    return states;
}

WIDE size_t ldr_ghash_steps_512(ldr_ghash_t *g, const uint8_t *p, size_t bytes,
                                ldr_ghash_check_t *check)
{
    __m512i states =
        _mm512_zextsi128_si512(_mm_load_si128((const __m128i *)g->state));
    power_t powers[VECTORS];
    size_t done = 0;

    if (bytes < STEP_BYTES) {
        return 0;
    }
#pragma GCC unroll 8
    for (unsigned i = 0; i < VECTORS; i++) {
        powers[i] = power_of(_mm512_broadcast_i32x4(
            _mm_load_si128((const __m128i *)g->powers[(size_t)4 * i])));
    }
    while (check != NULL && bytes - done >= PIECE_BYTES + STEP_BYTES) {
        states = add_piece(states, p + done, powers, &check->crc);
        done += PIECE_BYTES;
        check->bytes = done;
    }
    for (; bytes - done >= 2 * STEP_BYTES; done += STEP_BYTES) {
        states = add_step(states, p + done, powers, NULL);
    }
#pragma GCC unroll 8
    for (unsigned i = 0; i < VECTORS; i++) {
        powers[i] = power_of(_mm512_load_si512(g->powers[(size_t)4 * i]));
    }
    states = add_step(states, p + done, powers, NULL);
    _mm_store_si128((__m128i *)g->state, sum_of_four(states));
    return done + STEP_BYTES;
}

#endif
