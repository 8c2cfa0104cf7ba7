/*
 * What copy.c and the variants for one kind of CPU share.
 *
 * Polynomials over GF(2) modulo P = x^32 + 0x1edc6f41, bit-reflected as the
 * CRC itself is: bit 31 of a word is the coefficient of x^0. A "state" is a
 * CRC without the inversion before and after, so that the state after a
 * message m of n bytes is (before * x^8n + m * x^32) mod P.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* 128 bits are moved n bytes ahead in the message by multiplying their
 * first 64 bits (low half) with low and their last 64 bits with high. */
typedef struct ldr_crc_fold {
    uint64_t low, high;
} ldr_crc_fold_t;

/* Bytes of each of the three lanes that the CRC instructions of ARM CPUs,
 * which take about three cycles but start every cycle, work on at a time. */
#define LDR_CRC_LANE 1024u

typedef struct ldr_crc_tables {
    uint32_t slice[8][256]; /* [k][b]: byte b followed by k zero bytes */
    uint32_t power[8][256]; /* [k][d]: x^(8 * d * 256^k) */
#if defined(__aarch64__)
    uint32_t lane[4][256]; /* [k][b]: byte k of a state, LDR_CRC_LANE on */
#endif
    ldr_crc_fold_t fold_64, fold_256; /* by so many bytes */
} ldr_crc_tables_t;

/* Filled before a variant's first call, constant from then on. */
extern ldr_crc_tables_t ldr_crc_tables;

/* copy and copy_crc get LDR_COPY_NT_MIN bytes or more; their stores may need a
 * fence. next: where the source is expected to go on. */
typedef struct ldr_copy_ops {
    const char *name;
    bool (*usable)(void);
    uint32_t (*crc)(uint32_t state, const uint8_t *data, size_t bytes);
    void (*copy)(uint8_t *to, const uint8_t *from, size_t bytes,
                 const uint8_t *next);
    uint32_t (*copy_crc)(uint32_t state, uint8_t *to, const uint8_t *from,
                         size_t bytes, const uint8_t *next);
    void (*fence)(void); /* NULL: none is needed */
} ldr_copy_ops_t;

#if defined(__x86_64__)
extern const ldr_copy_ops_t ldr_copy_avx512_amd;
extern const ldr_copy_ops_t ldr_copy_avx512;
extern const ldr_copy_ops_t ldr_copy_avx2;
extern const ldr_copy_ops_t ldr_copy_sse42;
#elif defined(__aarch64__)
extern const ldr_copy_ops_t ldr_copy_armv8;
#endif
