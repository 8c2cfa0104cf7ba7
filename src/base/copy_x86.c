/*
 * The variants for x86-64: one method (copy_lines.inc) in three widths of
 * registers, the widest in two kinds. Non-temporal stores go to whole, aligned
 * lines of 64 bytes: the bytes before the first and after the last such line of
 * the destination are copied as usual. Sources may lie anywhere.
 */
#include "base/copy_internal.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

#define LINE 64u
/* How far ahead of a copy its source is asked for. The CPU's own prefetching
 * stops at every page of 4 KiB, which costs a tenth of the speed. How far, and
 * to which cache, was measured (bench/results/copies.md): asked for past the
 * caches, as what is read once might be, it comes at half the speed on Intel's
 * CPUs, and a fifth faster on AMD's with AVX-512. A piece of 4 KiB that lies
 * apart is copied in less time than its first bytes need to come from memory:
 * so much is asked for ahead, and at most that, because the piece after the
 * next is not known (LDR_COPY_NT_MIN). Copies without a checksum go on alone.
 */
#define AHEAD 4096u
#define SSE42 __attribute__((target("sse4.2,pclmul")))
#define AVX2 __attribute__((target("sse4.2,pclmul,avx2,vpclmulqdq")))
#define AVX512 __attribute__((target("sse4.2,pclmul,avx512f,vpclmulqdq")))
#define INLINE static inline __attribute__((always_inline))

/* Bytes up to the next line of the destination. */
static inline size_t head_bytes(const uint8_t *to)
{
    return (0u - (uintptr_t)to) % LINE;
}

/* What to ask for, so far ahead of offset i, of a source that goes on at next.
 */
INLINE uintptr_t ahead(const uint8_t *from, size_t i, size_t by, size_t bytes,
                       const uint8_t *next)
{
    i += by;
    return i < bytes ? (uintptr_t)from + i : (uintptr_t)next + (i - bytes);
}

static void stream_fence(void)
{
    _mm_sfence();
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

/* ---- SSE 4.2 and PCLMULQDQ ---------------------------------------------- */

typedef struct sse42_line {
    __m128i part[4];
} sse42_line_t;

typedef __m128i sse42_k_t;

static bool sse42_usable(void)
{
    return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
}

SSE42 INLINE sse42_line_t sse42_load(const uint8_t *from)
{
    const __m128i *p = (const __m128i *)from;

    return (sse42_line_t){{_mm_loadu_si128(p), _mm_loadu_si128(p + 1),
                           _mm_loadu_si128(p + 2), _mm_loadu_si128(p + 3)}};
}

SSE42 INLINE void sse42_stream(uint8_t *to, sse42_line_t v)
{
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        _mm_stream_si128((__m128i *)to + i, v.part[i]);
    }
}

SSE42 INLINE void sse42_store(uint8_t *to, sse42_line_t v)
{
    memcpy(to, v.part, sizeof(v.part));
}

SSE42 INLINE sse42_line_t sse42_begin(sse42_line_t v, uint32_t state)
{
    v.part[0] = _mm_xor_si128(v.part[0], _mm_cvtsi32_si128((int)state));
    return v;
}

SSE42 INLINE __m128i sse42_k(const ldr_crc_fold_t *fold)
{
    return _mm_loadu_si128((const __m128i *)fold);
}

SSE42 INLINE sse42_line_t sse42_fold(sse42_line_t v, __m128i k,
                                     sse42_line_t next)
{
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        next.part[i] = _mm_xor_si128(
            next.part[i],
            _mm_xor_si128(_mm_clmulepi64_si128(v.part[i], k, 0x00),
                          _mm_clmulepi64_si128(v.part[i], k, 0x11)));
    }
    return next;
}

#define AS(name) sse42_##name
#define OF(name) sse42_##name
#define CODE SSE42
#define STEP 1u
#define FOLD ldr_crc_tables.fold_64
#define PLAIN_AHEAD 256u
#define HINT _MM_HINT_T1
#include "base/copy_lines.inc"

const ldr_copy_ops_t ldr_copy_sse42 = {
    .name = "sse4.2",
    .usable = sse42_usable,
    .crc = sse42_crc,
    .copy = sse42_copy,
    .copy_crc = sse42_copy_crc,
    .fence = stream_fence,
};

/* ---- AVX2 and VPCLMULQDQ ------------------------------------------------ */

typedef struct avx2_line {
    __m256i a, b;
} avx2_line_t;

typedef __m256i avx2_k_t;

static bool avx2_usable(void)
{
    return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("avx2") &&
           __builtin_cpu_supports("vpclmulqdq");
}

AVX2 INLINE avx2_line_t avx2_load(const uint8_t *from)
{
    return (avx2_line_t){_mm256_loadu_si256((const __m256i *)from),
                         _mm256_loadu_si256((const __m256i *)(from + 32))};
}

AVX2 INLINE void avx2_stream(uint8_t *to, avx2_line_t v)
{
    _mm256_stream_si256((__m256i *)to, v.a);
    _mm256_stream_si256((__m256i *)(to + 32), v.b);
}

AVX2 INLINE void avx2_store(uint8_t *to, avx2_line_t v)
{
    _mm256_storeu_si256((__m256i *)to, v.a);
    _mm256_storeu_si256((__m256i *)(to + 32), v.b);
}

AVX2 INLINE avx2_line_t avx2_begin(avx2_line_t v, uint32_t state)
{
    v.a = _mm256_xor_si256(
        v.a, _mm256_zextsi128_si256(_mm_cvtsi32_si128((int)state)));
    return v;
}

AVX2 INLINE __m256i avx2_move(__m256i v, __m256i k, __m256i next)
{
    return _mm256_xor_si256(
        _mm256_xor_si256(_mm256_clmulepi64_epi128(v, k, 0x00),
                         _mm256_clmulepi64_epi128(v, k, 0x11)),
        next);
}

AVX2 INLINE __m256i avx2_k(const ldr_crc_fold_t *fold)
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)fold));
}

AVX2 INLINE avx2_line_t avx2_fold(avx2_line_t v, __m256i k, avx2_line_t next)
{
    return (avx2_line_t){avx2_move(v.a, k, next.a), avx2_move(v.b, k, next.b)};
}

#define AS(name) avx2_##name
#define OF(name) avx2_##name
#define CODE AVX2
#define STEP 4u
#define FOLD ldr_crc_tables.fold_256
#define PLAIN_AHEAD 256u
#define HINT _MM_HINT_T1
#include "base/copy_lines.inc"

const ldr_copy_ops_t ldr_copy_avx2 = {
    .name = "avx2-vpclmul",
    .usable = avx2_usable,
    .crc = avx2_crc,
    .copy = avx2_copy,
    .copy_crc = avx2_copy_crc,
    .fence = stream_fence,
};

/* ---- AVX-512 and VPCLMULQDQ --------------------------------------------- */

typedef __m512i avx512_line_t;
typedef __m512i avx512_k_t;

static bool avx512_usable(void)
{
    return __builtin_cpu_supports("sse4.2") &&
           __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("vpclmulqdq");
}

AVX512 INLINE avx512_line_t avx512_load(const uint8_t *from)
{
    return _mm512_loadu_si512(from);
}

AVX512 INLINE void avx512_stream(uint8_t *to, avx512_line_t v)
{
    _mm512_stream_si512((void *)to, v);
}

AVX512 INLINE void avx512_store(uint8_t *to, avx512_line_t v)
{
    _mm512_storeu_si512(to, v);
}

AVX512 INLINE avx512_line_t avx512_begin(avx512_line_t v, uint32_t state)
{
    return _mm512_xor_si512(
        v, _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)state)));
}

AVX512 INLINE __m512i avx512_k(const ldr_crc_fold_t *fold)
{
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)fold));
}

AVX512 INLINE avx512_line_t avx512_fold(avx512_line_t v, __m512i k,
                                        avx512_line_t next)
{
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(v, k, 0x00),
                                     _mm512_clmulepi64_epi128(v, k, 0x11), next,
                                     0x96 /* a ^ b ^ c */);
}

#define AS(name) avx512_##name
#define OF(name) avx512_##name
#define CODE AVX512
#define STEP 4u
#define FOLD ldr_crc_tables.fold_256
#define PLAIN_AHEAD 2048u
#define HINT _MM_HINT_T1
#include "base/copy_lines.inc"

const ldr_copy_ops_t ldr_copy_avx512 = {
    .name = "avx512-vpclmul",
    .usable = avx512_usable,
    .crc = avx512_crc,
    .copy = avx512_copy,
    .copy_crc = avx512_copy_crc,
    .fence = stream_fence,
};

/* ---- the same on AMD's CPUs --------------------------------------------- */

static bool avx512_amd_usable(void)
{
    return __builtin_cpu_is("amd") && avx512_usable();
}

#define AS(name) avx512_amd_##name
#define OF(name) avx512_##name
#define CODE AVX512
#define STEP 4u
#define FOLD ldr_crc_tables.fold_256
#define PLAIN_AHEAD 2048u
#define HINT _MM_HINT_NTA
#include "base/copy_lines.inc"

const ldr_copy_ops_t ldr_copy_avx512_amd = {
    .name = "avx512-vpclmul-amd",
    .usable = avx512_amd_usable,
    .crc = avx512_amd_crc,
    .copy = avx512_amd_copy,
    .copy_crc = avx512_amd_copy_crc,
    .fence = stream_fence,
};

#else
typedef int ldr_copy_x86_is_empty;
#endif
