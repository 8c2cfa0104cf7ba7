/*
 * The variant for AArch64 with the CRC instructions of ARMv8.1. Copies are
 * the C library's: its stores are as good as any here.
 */
#include "base/copy_internal.h"

#if defined(__aarch64__)

#include <string.h>
#include <sys/auxv.h>

#include "base/bytes.h"

#ifndef HWCAP_CRC32
#define HWCAP_CRC32 (1 << 7)
#endif

#define BLOCK (3 * LDR_CRC_LANE)

static bool armv8_usable(void)
{
    return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
}

/* Written as assembly, since compilers differ in when they offer these. */
static inline uint32_t step_64(uint32_t state, const uint8_t *p)
{
    uint64_t v = ldr_get64(p);

    __asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1"
            : "+r"(state)
            : "r"(v));
    return state;
}

static inline uint32_t step_8(uint32_t state, uint8_t v)
{
    __asm__(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1"
            : "+r"(state)
            : "r"((uint32_t)v));
    return state;
}

/* The state, a lane of zero bytes on. */
static inline uint32_t skip_lane(uint32_t state)
{
    const uint32_t(*t)[256] = ldr_crc_tables.lane;

    return t[0][state & 255] ^ t[1][state >> 8 & 255] ^
           t[2][state >> 16 & 255] ^ t[3][state >> 24];
}

/* The lanes' states are put together by moving each on past the next. */
static uint32_t block_crc(uint32_t state, const uint8_t *p)
{
    const size_t lane = LDR_CRC_LANE;
    uint32_t a = state, b = 0, c = 0;

    for (const uint8_t *end = p + lane; p < end; p += 8) {
        a = step_64(a, p);
        b = step_64(b, p + lane);
        c = step_64(c, p + 2 * lane);
    }
    return skip_lane(skip_lane(a) ^ b) ^ c;
}

static uint32_t armv8_crc(uint32_t state, const uint8_t *data, size_t bytes)
{
    for (; bytes >= BLOCK; data += BLOCK, bytes -= BLOCK) {
        state = block_crc(state, data);
    }
    for (; bytes >= 8; data += 8, bytes -= 8) {
        state = step_64(state, data);
    }
    for (; bytes > 0; data++, bytes--) {
        state = step_8(state, *data);
    }
    return state;
}

static void armv8_copy(uint8_t *to, const uint8_t *from, size_t bytes,
                       const uint8_t *next)
{
    (void)next;
    memcpy(to, from, bytes);
}

/* Block by block, so that the second reading finds it in the cache. */
static uint32_t armv8_copy_crc(uint32_t state, uint8_t *to, const uint8_t *from,
                               size_t bytes, const uint8_t *next)
{
    (void)next; /* the CPU's own prefetching does as well */
    while (bytes > 0) {
        size_t step = bytes < BLOCK ? bytes : BLOCK;
        memcpy(to, from, step);
        state = armv8_crc(state, from, step);
        to += step;
        from += step;
        bytes -= step;
    }
    return state;
}

const ldr_copy_ops_t ldr_copy_armv8 = {
    .name = "armv8-crc",
    .usable = armv8_usable,
    .crc = armv8_crc,
    .copy = armv8_copy,
    .copy_crc = armv8_copy_crc,
};

#else
typedef int ldr_copy_arm_is_empty;
#endif
