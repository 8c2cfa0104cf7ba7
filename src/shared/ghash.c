/*
 * A block is a polynomial over GF(2) whose first bit is the coefficient of x^0.
 * With its bytes the other way round it is an integer whose highest bit is that
 * of x^0; the product of two such integers without carries is the polynomials'
 * product times 1/x, which is why the powers of the key are kept times x.
 *
 * A product of 256 bits is reduced modulo x^128 + x^7 + x^2 + x + 1 in two
 * steps of 64 bits, from the lowest, which is the highest power of x: FOLD is
 * what x^128 is there, its highest bit again being x^0. The upper half of a
 * step's result takes the lower half of what it reduces as it is, for the 1.
 *
 * 32 blocks at a time: s' = (s + b0) H^32 + b1 H^31 + ... + b31 H, reduced
 * once. No branch and no address depends on a secret or on what is hashed.
 */
#include "shared/ghash.h"

#include <openssl/crypto.h>
#include <stdatomic.h>
#include <string.h>

#include "base/bytes.h"

static atomic_bool forbidden;

void ldr_ghash_allow(bool allow)
{
    atomic_store(&forbidden, !allow);
}

#if defined(__x86_64__)

#include <immintrin.h>

#define STEP_BYTES ((size_t)LDR_GHASH_POWERS * LDR_GHASH_BLOCK)
#define VECTORS (LDR_GHASH_POWERS / 4)
#define FOLD 0xc200000000000000u
/* How far ahead memory is asked for: the CPU's own way stops at every page. */
#define AHEAD 2048u
#define WIDE                                                                   \
    __attribute__((target("sse4.1,ssse3,pclmul,avx512f,avx512bw,avx512vl,"     \
                          "vpclmulqdq")))
#define INLINE static inline __attribute__((always_inline))

bool ldr_ghash_usable(void)
{
    return !atomic_load_explicit(&forbidden, memory_order_relaxed) &&
           __builtin_cpu_supports("pclmul") &&
           __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("vpclmulqdq");
}

/* The bytes of each 16 the other way round. */
WIDE INLINE __m128i turn_128(__m128i v)
{
    return _mm_shuffle_epi8(
        v, _mm_set_epi64x(0x0001020304050607, 0x08090a0b0c0d0e0f));
}

WIDE INLINE __m512i turn_512(__m512i v)
{
    return _mm512_shuffle_epi8(v, _mm512_broadcast_i32x4(_mm_set_epi64x(
                                      0x0001020304050607, 0x08090a0b0c0d0e0f)));
}

WIDE INLINE __m128i swap_128(__m128i v)
{
    return _mm_shuffle_epi32(v, 0x4e);
}

/* low + middle * 2^64 + high * 2^128, reduced. */
WIDE INLINE __m128i reduce(__m128i low, __m128i middle, __m128i high)
{
    const __m128i fold = _mm_set_epi64x(0, (long long)FOLD);

    middle = _mm_xor_si128(middle, swap_128(low));
    middle = _mm_xor_si128(middle, _mm_clmulepi64_si128(low, fold, 0x00));
    high = _mm_xor_si128(high, swap_128(middle));
    return _mm_xor_si128(high, _mm_clmulepi64_si128(middle, fold, 0x00));
}

WIDE static __m128i multiply(__m128i a, __m128i b)
{
    __m128i middle = _mm_xor_si128(_mm_clmulepi64_si128(a, b, 0x01),
                                   _mm_clmulepi64_si128(a, b, 0x10));

    return reduce(_mm_clmulepi64_si128(a, b, 0x00), middle,
                  _mm_clmulepi64_si128(a, b, 0x11));
}

/* The key times x: shifted towards higher powers, which is to the left here,
 * and reduced. */
WIDE static __m128i times_x(__m128i h)
{
    __m128i carry = _mm_srli_epi64(h, 63);
    __m128i top = _mm_shuffle_epi32(carry, 0xaa); /* bit 127, in each */
    __m128i shifted =
        _mm_or_si128(_mm_slli_epi64(h, 1), _mm_slli_si128(carry, 8));
    __m128i all = _mm_sub_epi32(_mm_setzero_si128(), top);

    return _mm_xor_si128(
        shifted, _mm_and_si128(all, _mm_set_epi64x((long long)FOLD, 1)));
}

WIDE void ldr_ghash_begin(ldr_ghash_t *g, const uint8_t key[LDR_GHASH_BLOCK])
{
    __m128i h = times_x(turn_128(_mm_loadu_si128((const __m128i *)key)));
    __m128i power = h;

    for (unsigned i = LDR_GHASH_POWERS; i-- > 0;) {
        _mm_store_si128((__m128i *)g->powers[i], power);
        power = multiply(power, h);
    }
    memset(g->state, 0, sizeof(g->state));
    g->part_bytes = 0;
    g->bytes = 0;
}

/* What one vector of four blocks adds to a product not yet reduced. */
typedef struct product {
    __m512i low, middle, high;
} product_t;

WIDE INLINE void multiply_add(product_t *p, __m512i v, __m512i power)
{
    p->low = _mm512_xor_si512(p->low, _mm512_clmulepi64_epi128(v, power, 0x00));
    p->high =
        _mm512_xor_si512(p->high, _mm512_clmulepi64_epi128(v, power, 0x11));
    p->middle = _mm512_ternarylogic_epi64(
        p->middle, _mm512_clmulepi64_epi128(v, power, 0x01),
        _mm512_clmulepi64_epi128(v, power, 0x10), 0x96);
}

WIDE INLINE __m128i sum_of_four(__m512i v)
{
    __m256i half = _mm256_xor_si256(_mm512_castsi512_si256(v),
                                    _mm512_extracti64x4_epi64(v, 1));

    return _mm_xor_si128(_mm256_castsi256_si128(half),
                         _mm256_extracti128_si256(half, 1));
}

/* Whole steps; gives the bytes that they are. */
WIDE static size_t add_steps(ldr_ghash_t *g, const uint8_t *p, size_t bytes)
{
    __m128i state = _mm_load_si128((const __m128i *)g->state);
    __m512i powers[VECTORS];
    size_t done = 0;

#pragma GCC unroll 8
    for (unsigned i = 0; i < VECTORS; i++) {
        powers[i] = _mm512_load_si512(g->powers[(size_t)4 * i]);
    }
    for (; bytes - done >= STEP_BYTES; done += STEP_BYTES) {
        const __m512i zero = _mm512_setzero_si512();
        product_t sum = {zero, zero, zero};

#pragma GCC unroll 8
        for (unsigned i = 0; i < VECTORS; i++) {
            const uint8_t *at = p + done + (size_t)64 * i;
            __m512i v = turn_512(_mm512_loadu_si512(at));

            _mm_prefetch((const char *)at + AHEAD, _MM_HINT_T0);
            if (i == 0) {
                v = _mm512_xor_si512(v, _mm512_zextsi128_si512(state));
            }
            multiply_add(&sum, v, powers[i]);
        }
        state = reduce(sum_of_four(sum.low), sum_of_four(sum.middle),
                       sum_of_four(sum.high));
    }
    _mm_store_si128((__m128i *)g->state, state);
    return done;
}

/* Whole blocks. */
WIDE static void add_blocks(ldr_ghash_t *g, const uint8_t *p, size_t bytes)
{
    size_t done = add_steps(g, p, bytes);
    __m128i state = _mm_load_si128((const __m128i *)g->state);
    __m128i h =
        _mm_load_si128((const __m128i *)g->powers[LDR_GHASH_POWERS - 1]);

    for (; done < bytes; done += LDR_GHASH_BLOCK) {
        __m128i v = turn_128(_mm_loadu_si128((const __m128i *)(p + done)));

        state = multiply(_mm_xor_si128(state, v), h);
    }
    _mm_store_si128((__m128i *)g->state, state);
}

WIDE static void take_out(const ldr_ghash_t *g, uint8_t *hash)
{
    __m128i state = _mm_load_si128((const __m128i *)g->state);

    _mm_storeu_si128((__m128i *)hash, turn_128(state));
}

#else /* another CPU: libcrypto has a good one for those that matter */

bool ldr_ghash_usable(void)
{
    return false;
}

void ldr_ghash_begin(ldr_ghash_t *g, const uint8_t key[LDR_GHASH_BLOCK])
{
    (void)key;
    memset(g, 0, sizeof(*g));
}

static void add_blocks(ldr_ghash_t *g, const uint8_t *p, size_t bytes)
{
    (void)g;
    (void)p;
    (void)bytes;
}

static void take_out(const ldr_ghash_t *g, uint8_t *hash)
{
    memcpy(hash, g->state, LDR_GHASH_BLOCK);
}

#endif

void ldr_ghash_add(ldr_ghash_t *g, const uint8_t *p, size_t bytes)
{
    g->bytes += bytes;
    if (g->part_bytes > 0) {
        size_t n = ldr_min64(bytes, LDR_GHASH_BLOCK - g->part_bytes);

        memcpy(g->part + g->part_bytes, p, n);
        g->part_bytes += n;
        p += n;
        bytes -= n;
        if (g->part_bytes < LDR_GHASH_BLOCK) {
            return;
        }
        add_blocks(g, g->part, LDR_GHASH_BLOCK);
    }
    size_t rest = bytes % LDR_GHASH_BLOCK;
    add_blocks(g, p, bytes - rest);
    memcpy(g->part, p + bytes - rest, rest);
    g->part_bytes = rest;
}

void ldr_ghash_end(ldr_ghash_t *g, uint8_t hash[LDR_GHASH_BLOCK])
{
    uint8_t lengths[LDR_GHASH_BLOCK] = {0};

    for (unsigned i = 0; i < 8; i++) {
        lengths[i] = (uint8_t)((g->bytes * 8) >> (56 - 8 * i));
    }
    if (g->part_bytes > 0) {
        memset(g->part + g->part_bytes, 0, LDR_GHASH_BLOCK - g->part_bytes);
        add_blocks(g, g->part, LDR_GHASH_BLOCK);
    }
    add_blocks(g, lengths, LDR_GHASH_BLOCK);
    take_out(g, hash);
    OPENSSL_cleanse(g, sizeof(*g));
}
