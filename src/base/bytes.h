/* Explicit little-endian access, and arithmetic helpers. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline void ldr_put16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

static inline void ldr_put32(uint8_t *p, uint32_t v)
{
    ldr_put16(p, (uint16_t)v);
    ldr_put16(p + 2, (uint16_t)(v >> 16));
}

static inline void ldr_put64(uint8_t *p, uint64_t v)
{
    ldr_put32(p, (uint32_t)v);
    ldr_put32(p + 4, (uint32_t)(v >> 32));
}

static inline uint16_t ldr_get16(const uint8_t *p)
{
    return (uint16_t)(p[0] | (unsigned)p[1] << 8);
}

static inline uint32_t ldr_get32(const uint8_t *p)
{
    return ldr_get16(p) | (uint32_t)ldr_get16(p + 2) << 16;
}

static inline uint64_t ldr_get64(const uint8_t *p)
{
    return ldr_get32(p) | (uint64_t)ldr_get32(p + 4) << 32;
}

static inline uint64_t ldr_min64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t ldr_max64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* How many units of unit bytes hold n bytes. */
static inline uint64_t ldr_div_up(uint64_t n, uint64_t unit)
{
    return n / unit + (n % unit != 0);
}
