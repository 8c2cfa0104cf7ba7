/*
 * GHASH, the hash of AES-GCM, over bytes that come in pieces, on CPUs that
 * multiply 256 or 512 bits without carries at once (VPCLMULQDQ). What is only
 * authenticated needs no more than this and one block of AES; libcrypto 3.0
 * hashes such bytes 128 bits at a time, at less than half the speed. Used by
 * seal.c only.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LDR_GHASH_BLOCK 16u
#define LDR_GHASH_POWERS 32u

typedef struct ldr_ghash {
    /* H^32 ... H^1, each times x, with their bytes the other way round. */
    uint8_t powers[LDR_GHASH_POWERS][LDR_GHASH_BLOCK]
        __attribute__((aligned(64)));
    uint8_t state[LDR_GHASH_BLOCK] __attribute__((aligned(16)));
    uint8_t part[LDR_GHASH_BLOCK]; /* of a block that is not whole yet */
    size_t part_bytes;
    uint64_t bytes; /* in all */
    unsigned bits;  /* of its vectors */
} ldr_ghash_t;

/* Of the vectors that are used: 512, 256, or 0: this CPU has none, and the four
 * below must not be called. */
unsigned ldr_ghash_bits(void);

/* key: AES of a block of zeros. */
void ldr_ghash_begin(ldr_ghash_t *g, const uint8_t key[LDR_GHASH_BLOCK]);
void ldr_ghash_add(ldr_ghash_t *g, const uint8_t *p, size_t bytes);
/* The same; and gives their CRC-32C, following bytes with this crc, in the same
 * pass. */
uint32_t ldr_ghash_add_crc(ldr_ghash_t *g, const uint8_t *p, size_t bytes,
                           uint32_t crc);
/* Pads, adds the lengths (all of it was authenticated, nothing encrypted) and
 * wipes what is secret. */
void ldr_ghash_end(ldr_ghash_t *g, uint8_t hash[LDR_GHASH_BLOCK]);

/* For tests and benchmarks: no wider vectors than this; 1: none, 0: any. Not
 * safe beside seals under way. */
void ldr_ghash_allow(unsigned bits);
