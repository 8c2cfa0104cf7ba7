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
#include "shared/ghash_int.h"

#include <openssl/crypto.h>
#include <stdatomic.h>
#include <string.h>

#include "base/bytes.h"
#include "base/copy.h"

/* 0: as many as there are. */
static atomic_uint allowed;

void ldr_ghash_allow(unsigned bits)
{
    atomic_store(&allowed, bits);
}

#if defined(__x86_64__)

static unsigned bits_here(void)
{
    if (!__builtin_cpu_supports("sse4.2") ||
        !__builtin_cpu_supports("pclmul") ||
        !__builtin_cpu_supports("vpclmulqdq")) {
        return 0;
    }
    if (__builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl")) {
        return 512;
    }
    return __builtin_cpu_supports("avx2") ? 256 : 0;
}

/* The bytes of each 16 the other way round. */
NARROW INLINE __m128i turn_128(__m128i v)
{
    return _mm_shuffle_epi8(
        v, _mm_set_epi64x(0x0001020304050607, 0x08090a0b0c0d0e0f));
}

NARROW INLINE __m128i swap_128(__m128i v)
{
    return _mm_shuffle_epi32(v, 0x4e);
}

/* low + middle * 2^64 + high * 2^128, reduced. */
NARROW INLINE __m128i reduce(__m128i low, __m128i middle, __m128i high)
{
    const __m128i fold = _mm_set_epi64x(0, (long long)FOLD);

    middle = _mm_xor_si128(middle, swap_128(low));
    middle = _mm_xor_si128(middle, _mm_clmulepi64_si128(low, fold, 0x00));
    high = _mm_xor_si128(high, swap_128(middle));
    return _mm_xor_si128(high, _mm_clmulepi64_si128(middle, fold, 0x00));
}

NARROW static __m128i multiply(__m128i a, __m128i b)
{
    __m128i middle = _mm_xor_si128(_mm_clmulepi64_si128(a, b, 0x01),
                                   _mm_clmulepi64_si128(a, b, 0x10));

    return reduce(_mm_clmulepi64_si128(a, b, 0x00), middle,
                  _mm_clmulepi64_si128(a, b, 0x11));
}

/* The key times x: shifted towards higher powers, which is to the left here,
 * and reduced. */
NARROW static __m128i times_x(__m128i h)
{
    __m128i carry = _mm_srli_epi64(h, 63);
    __m128i top = _mm_shuffle_epi32(carry, 0xaa); /* bit 127, in each */
    __m128i shifted =
        _mm_or_si128(_mm_slli_epi64(h, 1), _mm_slli_si128(carry, 8));
    __m128i all = _mm_sub_epi32(_mm_setzero_si128(), top);

    return _mm_xor_si128(
        shifted, _mm_and_si128(all, _mm_set_epi64x((long long)FOLD, 1)));
}

NARROW void ldr_ghash_begin(ldr_ghash_t *g, const uint8_t key[LDR_GHASH_BLOCK])
{
    __m128i h = times_x(turn_128(_mm_loadu_si128((const __m128i *)key)));
    __m128i power = h;

    for (unsigned i = LDR_GHASH_POWERS; i-- > 0;) {
        _mm_store_si128((__m128i *)g->powers[i], power);
        power = multiply(power, h);
    }
    memset(g->state, 0, sizeof(g->state));
    g->bits = ldr_ghash_bits();
    g->part_bytes = 0;
    g->bytes = 0;
}

/* Whole blocks. */
NARROW static void add_blocks(ldr_ghash_t *g, const uint8_t *p, size_t bytes,
                              ldr_ghash_check_t *check)
{
    size_t done = g->bits == 512 ? ldr_ghash_steps_512(g, p, bytes, check)
                                 : ldr_ghash_steps_256(g, p, bytes, check);
    __m128i state = _mm_load_si128((const __m128i *)g->state);
    __m128i h =
        _mm_load_si128((const __m128i *)g->powers[LDR_GHASH_POWERS - 1]);

    for (; done < bytes; done += LDR_GHASH_BLOCK) {
        __m128i v = turn_128(_mm_loadu_si128((const __m128i *)(p + done)));

        state = multiply(_mm_xor_si128(state, v), h);
    }
    _mm_store_si128((__m128i *)g->state, state);
}

NARROW static void take_out(const ldr_ghash_t *g, uint8_t *hash)
{
    __m128i state = _mm_load_si128((const __m128i *)g->state);

    _mm_storeu_si128((__m128i *)hash, turn_128(state));
}

#else /* another CPU: libcrypto has a good one for those that matter */

static unsigned bits_here(void)
{
    return 0;
}

void ldr_ghash_begin(ldr_ghash_t *g, const uint8_t key[LDR_GHASH_BLOCK])
{
    (void)key;
    memset(g, 0, sizeof(*g));
}

static void add_blocks(ldr_ghash_t *g, const uint8_t *p, size_t bytes,
                       ldr_ghash_check_t *check)
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

unsigned ldr_ghash_bits(void)
{
    unsigned here = bits_here();
    unsigned most = atomic_load_explicit(&allowed, memory_order_relaxed);

    return most == 0 || here <= most    ? here
           : here >= 256 && most >= 256 ? 256
                                        : 0;
}

/* Any bytes; check: of the first of them, as many as it says; or NULL. */
static void add(ldr_ghash_t *g, const uint8_t *p, size_t bytes,
                ldr_ghash_check_t *check)
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
    ldr_ghash_check_t check = {.crc = ~ldr_crc32c(crc, p, head)};

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
