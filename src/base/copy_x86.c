/*
 * The variants for x86-64. Non-temporal stores go to whole, aligned lines of
 * 64 bytes: the bytes before the first and after the last such line of the
 * destination are copied as usual. Sources may lie anywhere.
 */
#include "base/copy_internal.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

#define LINE 64u
/* How far ahead of a copy its source is asked for. The CPU's own prefetching
 * stops at every page of 4 KiB, which costs a tenth of the speed. Non-temporal:
 * a source is not read again soon either. */
#define AHEAD 2048u
#define SSE42 __attribute__((target("sse4.2,pclmul")))
#define AVX512 __attribute__((target("sse4.2,pclmul,avx512f,vpclmulqdq")))
#define INLINE static inline __attribute__((always_inline))

/* Bytes up to the next line of the destination. */
static inline size_t head_bytes(const uint8_t *to)
{
    return (0u - (uintptr_t)to) % LINE;
}

static void stream_fence(void)
{
    _mm_sfence();
}

/* ---- SSE 4.2 and PCLMULQDQ ---------------------------------------------- */

static bool sse42_usable(void)
{
    return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
}

SSE42 static uint32_t serial_crc(uint32_t state, const uint8_t *data,
                                 size_t bytes)
{
    uint64_t wide = state;

    for (; bytes >= 8; data += 8, bytes -= 8) {
        uint64_t v;
        memcpy(&v, data, sizeof(v));
        wide = _mm_crc32_u64(wide, v);
    }
    state = (uint32_t)wide;
    for (; bytes > 0; data++, bytes--) {
        state = _mm_crc32_u8(state, *data);
    }
    return state;
}

/* acc moved on by k, and next, which lies there. */
SSE42 INLINE __m128i fold_128(__m128i acc, __m128i k, __m128i next)
{
    return _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(acc, k, 0x00),
                                       _mm_clmulepi64_si128(acc, k, 0x11)),
                         next);
}

/* Loads the 16 bytes at offset i and, with stream, copies them. */
SSE42 INLINE __m128i take_128(uint8_t *to, const uint8_t *from, size_t i,
                              bool stream)
{
    __m128i v = _mm_loadu_si128((const __m128i *)(from + i));

    if (stream) {
        _mm_stream_si128((__m128i *)(to + i), v);
    }
    return v;
}

/*
 * Whole lines, one or more. Four registers walk in steps of a line, so that
 * the multiplications of one step do not wait for each other; then they are
 * folded into one, whose CRC is that of the message.
 */
SSE42 INLINE uint32_t sse42_lines(uint32_t state, uint8_t *to,
                                  const uint8_t *from, size_t bytes,
                                  bool stream)
{
    __m128i k = _mm_loadu_si128((const __m128i *)&ldr_crc_tables.fold_64);
    __m128i a = take_128(to, from, 0, stream);
    __m128i b = take_128(to, from, 16, stream);
    __m128i c = take_128(to, from, 32, stream);
    __m128i d = take_128(to, from, 48, stream);
    uint8_t rest[16];

    a = _mm_xor_si128(a, _mm_cvtsi32_si128((int)state));
    for (size_t i = LINE; i < bytes; i += LINE) {
        a = fold_128(a, k, take_128(to, from, i, stream));
        b = fold_128(b, k, take_128(to, from, i + 16, stream));
        c = fold_128(c, k, take_128(to, from, i + 32, stream));
        d = fold_128(d, k, take_128(to, from, i + 48, stream));
    }
    k = _mm_loadu_si128((const __m128i *)&ldr_crc_tables.fold_16);
    a = fold_128(fold_128(fold_128(a, k, b), k, c), k, d);
    _mm_storeu_si128((__m128i *)rest, a);
    return serial_crc(0, rest, sizeof(rest));
}

SSE42 static uint32_t sse42_crc(uint32_t state, const uint8_t *data,
                                size_t bytes)
{
    if (bytes >= LINE) {
        size_t lines = bytes / LINE * LINE;
        state = sse42_lines(state, NULL, data, lines, false);
        data += lines;
        bytes -= lines;
    }
    return serial_crc(state, data, bytes);
}

SSE42 static void sse42_copy(uint8_t *to, const uint8_t *from, size_t bytes)
{
    size_t done = head_bytes(to);

    memcpy(to, from, done);
    for (; bytes - done >= LINE; done += LINE) {
        for (size_t i = 0; i < LINE; i += 16) {
            take_128(to, from, done + i, true);
        }
    }
    memcpy(to + done, from + done, bytes - done);
}

SSE42 static uint32_t sse42_copy_crc(uint32_t state, uint8_t *to,
                                     const uint8_t *from, size_t bytes,
                                     const uint8_t *next)
{
    size_t head = head_bytes(to);
    size_t lines = (bytes - head) / LINE * LINE;
    size_t tail = bytes - head - lines;

    (void)next;
    memcpy(to, from, head);
    state = serial_crc(state, from, head);
    state = sse42_lines(state, to + head, from + head, lines, true);
    memcpy(to + bytes - tail, from + bytes - tail, tail);
    state = serial_crc(state, from + bytes - tail, tail);
    return state;
}

const ldr_copy_ops_t ldr_copy_sse42 = {
    .name = "sse4.2",
    .usable = sse42_usable,
    .crc = sse42_crc,
    .copy = sse42_copy,
    .copy_crc = sse42_copy_crc,
    .fence = stream_fence,
};

/* ---- AVX-512 and VPCLMULQDQ --------------------------------------------- */

static bool avx512_usable(void)
{
    return __builtin_cpu_supports("sse4.2") &&
           __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("vpclmulqdq");
}

AVX512 INLINE __m512i fold_constants(const ldr_crc_fold_t *fold)
{
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)fold));
}

/* The four lanes of acc moved on by k, and next, which lies there. */
AVX512 INLINE __m512i fold_512(__m512i acc, __m512i k, __m512i next)
{
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(acc, k, 0x00),
                                     _mm512_clmulepi64_epi128(acc, k, 0x11),
                                     next, 0x96 /* a ^ b ^ c */);
}

/* Loads the line at offset i and, with to, copies it and asks for another. */
AVX512 INLINE __m512i take_512(uint8_t *to, const uint8_t *from, size_t i,
                               uintptr_t ask)
{
    __m512i v = _mm512_loadu_si512(from + i);

    if (to != NULL) {
        _mm_prefetch((const char *)ask, _MM_HINT_NTA);
        _mm512_stream_si512((void *)(to + i), v);
    }
    return v;
}

/* What to ask for at offset i of a source that goes on at next. */
INLINE uintptr_t ahead(const uint8_t *from, size_t i, size_t bytes,
                       const uint8_t *next)
{
    i += AHEAD;
    return i < bytes ? (uintptr_t)from + i : (uintptr_t)next + (i - bytes);
}

/*
 * Whole lines, 256 bytes or more; to is NULL: they are not copied. Four
 * registers walk in steps of 256 bytes, so that the multiplications of one step
 * do not wait for each other; then they are folded into one, which walks on
 * line by line; then the CRC of the 64 bytes that remain is that of the
 * message.
 */
AVX512 INLINE uint32_t avx512_lines(uint32_t state, uint8_t *to,
                                    const uint8_t *from, size_t bytes,
                                    const uint8_t *next)
{
    __m512i k = fold_constants(&ldr_crc_tables.fold_256);
    uintptr_t ask = ahead(from, 0, bytes, next);
    __m512i a = take_512(to, from, 0, ask);
    __m512i b = take_512(to, from, 64, ask + 64);
    __m512i c = take_512(to, from, 128, ask + 128);
    __m512i d = take_512(to, from, 192, ask + 192);
    uint8_t rest[LINE];
    size_t i = 256;

    a = _mm512_xor_si512(a,
                         _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)state)));
    for (; bytes - i >= 256; i += 256) {
        ask = ahead(from, i, bytes, next);
        a = fold_512(a, k, take_512(to, from, i, ask));
        b = fold_512(b, k, take_512(to, from, i + 64, ask + 64));
        c = fold_512(c, k, take_512(to, from, i + 128, ask + 128));
        d = fold_512(d, k, take_512(to, from, i + 192, ask + 192));
    }
    k = fold_constants(&ldr_crc_tables.fold_64);
    a = fold_512(fold_512(fold_512(a, k, b), k, c), k, d);
    for (; i < bytes; i += LINE) {
        a = fold_512(a, k, take_512(to, from, i, ahead(from, i, bytes, next)));
    }
    _mm512_storeu_si512(rest, a);
    return serial_crc(0, rest, sizeof(rest));
}

AVX512 static uint32_t avx512_crc(uint32_t state, const uint8_t *data,
                                  size_t bytes)
{
    if (bytes >= 256) {
        size_t lines = bytes / LINE * LINE;
        state = avx512_lines(state, NULL, data, lines, NULL);
        data += lines;
        bytes -= lines;
    }
    return serial_crc(state, data, bytes);
}

AVX512 static void avx512_copy(uint8_t *to, const uint8_t *from, size_t bytes)
{
    size_t done = head_bytes(to);

    memcpy(to, from, done);
    for (; bytes - done >= 4 * LINE; done += 4 * LINE) {
        for (size_t i = 0; i < 4 * LINE; i += LINE) {
            take_512(to, from, done + i, (uintptr_t)from + done + i + AHEAD);
        }
    }
    for (; bytes - done >= LINE; done += LINE) {
        take_512(to, from, done, (uintptr_t)from + done + AHEAD);
    }
    memcpy(to + done, from + done, bytes - done);
}

AVX512 static uint32_t avx512_copy_crc(uint32_t state, uint8_t *to,
                                       const uint8_t *from, size_t bytes,
                                       const uint8_t *next)
{
    size_t head = head_bytes(to);
    size_t lines = (bytes - head) / LINE * LINE;
    size_t tail = bytes - head - lines;

    memcpy(to, from, head);
    state = serial_crc(state, from, head);
    state = avx512_lines(state, to + head, from + head, lines,
                         next != NULL ? next : from + bytes);
    memcpy(to + bytes - tail, from + bytes - tail, tail);
    state = serial_crc(state, from + bytes - tail, tail);
    return state;
}

const ldr_copy_ops_t ldr_copy_avx512 = {
    .name = "avx512-vpclmul",
    .usable = avx512_usable,
    .crc = avx512_crc,
    .copy = avx512_copy,
    .copy_crc = avx512_copy_crc,
    .fence = stream_fence,
};

#else
typedef int ldr_copy_x86_is_empty;
#endif
