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
 * 32 blocks are a step. There are four states s0 ... s3, one for each of four
 * blocks that lie together in a vector, so that nothing has to be summed up
 * across one: s0' = (s0 + b0) H^32 + b4 H^28 + ... + b28 H^4, and so on for b1,
 * b2 and b3, each reduced once. Only in the last step each block has a power of
 * its own, and all are one: s = (s0 + b0) H^32 + (s1 + b1) H^31 + ... + b31 H.
 * No branch and no address depends on a secret or on what is hashed.
 *
 * Where the CRC-32C of the same bytes is wanted it goes along: the CPU has an
 * instruction for it that takes nothing from the multiplications. Eight bytes
 * wait three cycles for those before them, so a piece is four streams, and
 * 32 bytes of each are taken with every 128 that are hashed; then the streams'
 * CRCs become one. Both together take hardly longer than the hash alone.
 */
#include "shared/ghash.h"

#include <openssl/crypto.h>
#include <stdatomic.h>
#include <string.h>

#include "base/bytes.h"
#include "base/copy.h"

static atomic_bool forbidden;

void ldr_ghash_allow(bool allow)
{
    atomic_store(&forbidden, !allow);
}

/* A checksum, without its inversions, and of how many bytes it is so far. */
typedef struct check {
    uint32_t crc;
    size_t bytes;
} check_t;

#if defined(__x86_64__)

#include <immintrin.h>

#define STEP_BYTES ((size_t)LDR_GHASH_POWERS * LDR_GHASH_BLOCK)
#define VECTORS (LDR_GHASH_POWERS / 4)
#define FOLD 0xc200000000000000u
/* How far ahead memory is asked for: the CPU's own way stops at every page. */
#define AHEAD 4096u
#define STREAMS 4u
#define STREAM_BYTES ((size_t)2048)
#define PIECE_BYTES (STREAMS * STREAM_BYTES)
/* x^(8 * STREAM_BYTES - 33) modulo CRC-32C's polynomial, bit-reflected as in
 * base/copy_internal.h. */
#define STREAM_POWER 0xa51b6135
#define WIDE                                                                   \
    __attribute__((target("sse4.2,ssse3,pclmul,avx512f,avx512bw,avx512vl,"     \
                          "vpclmulqdq")))
#define INLINE static inline __attribute__((always_inline))

bool ldr_ghash_usable(void)
{
    return !atomic_load_explicit(&forbidden, memory_order_relaxed) &&
           __builtin_cpu_supports("sse4.2") &&
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

/* ---- the CRC that goes along ---- */

/* The streams' CRCs, without the inversions before and after; at: where the
 * first stream is. */
typedef struct streams {
    uint64_t crc[STREAMS];
    const uint8_t *at;
} streams_t;

/* The next 32 bytes of each. */
WIDE INLINE void streams_add(streams_t *s)
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
WIDE INLINE uint64_t streams_end(const streams_t *s)
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

/* Whole steps; gives the bytes that they are. check: of the first of them; or
 * NULL. */
WIDE static size_t add_steps(ldr_ghash_t *g, const uint8_t *p, size_t bytes,
                             check_t *check)
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

/* Whole blocks. */
WIDE static void add_blocks(ldr_ghash_t *g, const uint8_t *p, size_t bytes,
                            check_t *check)
{
    size_t done = add_steps(g, p, bytes, check);
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

static void add_blocks(ldr_ghash_t *g, const uint8_t *p, size_t bytes,
                       check_t *check)
{
    (void)g;
    (void)p;
    (void)bytes;
    (void)check;
}

static void take_out(const ldr_ghash_t *g, uint8_t *hash)
{
    memcpy(hash, g->state, LDR_GHASH_BLOCK);
}

#endif

/* Any bytes; check: of the first of them, as many as it says; or NULL. */
static void add(ldr_ghash_t *g, const uint8_t *p, size_t bytes, check_t *check)
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
        add_blocks(g, g->part, LDR_GHASH_BLOCK, NULL);
    }
    size_t rest = bytes % LDR_GHASH_BLOCK;
    add_blocks(g, p, bytes - rest, check);
    memcpy(g->part, p + bytes - rest, rest);
    g->part_bytes = rest;
}

void ldr_ghash_add(ldr_ghash_t *g, const uint8_t *p, size_t bytes)
{
    add(g, p, bytes, NULL);
}

/* The CRC goes along from where blocks begin. */
uint32_t ldr_ghash_add_crc(ldr_ghash_t *g, const uint8_t *p, size_t bytes,
                           uint32_t crc)
{
    size_t head = ldr_min64(bytes, -g->part_bytes % LDR_GHASH_BLOCK);
    check_t check = {.crc = ~ldr_crc32c(crc, p, head)};

    add(g, p, bytes, &check);
    head += check.bytes;
    return ldr_crc32c(~check.crc, p + head, bytes - head);
}

void ldr_ghash_end(ldr_ghash_t *g, uint8_t hash[LDR_GHASH_BLOCK])
{
    uint8_t lengths[LDR_GHASH_BLOCK] = {0};

    for (unsigned i = 0; i < 8; i++) {
        lengths[i] = (uint8_t)((g->bytes * 8) >> (56 - 8 * i));
    }
    if (g->part_bytes > 0) {
        memset(g->part + g->part_bytes, 0, LDR_GHASH_BLOCK - g->part_bytes);
        add_blocks(g, g->part, LDR_GHASH_BLOCK, NULL);
    }
    add_blocks(g, lengths, LDR_GHASH_BLOCK, NULL);
    take_out(g, hash);
    OPENSSL_cleanse(g, sizeof(*g));
}
