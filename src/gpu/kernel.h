/*
 * The one kernel: moves units, each a run of bytes between a page and a buffer,
 * and sums up the CRC-32C of the shards they belong to.
 *
 * A warp moves a unit, 16 bytes a lane. The checksum is linear: the unit's is
 * that of its lanes, each shifted to its place, and the shard's that of its
 * units. So every unit comes with its factor, x^8n for the n bytes that follow
 * it in the shard, and what the warp found is multiplied by it and added (XOR)
 * to the shard's sum, in whatever order.
 */
#pragma once

#include <stdint.h>

/* As the kernel reads it. Its bytes have no gap in the buffer; in the page they
 * may be rows with a gap between two. Sizes are in words of 16 bytes. */
typedef struct ldr_gpu_unit {
    uint64_t from, to; /* device addresses; to 0: is only summed up */
    uint16_t words;    /* in all, at most LDR_GPU_WORDS */
    uint16_t row;      /* in a row */
    uint32_t shard;    /* where its sum goes */
    uint32_t factor;
    uint32_t gap;
} ldr_gpu_unit_t;

enum {
    LDR_GPU_THREADS = 256,
    LDR_GPU_WORDS = 1024, /* of a unit: the kernel divides by multiplying */
    /* For a word, for a row of 32 lanes, and one for each lane. */
    LDR_GPU_TABLES = 4 * 256 + 4 * 256 + 32,
    LDR_GPU_POWER = 1024,   /* bytes: pages of a multiple cost no product */
    LDR_GPU_POWERS = 65536, /* of them: more than a shard has */
};

/* Its source, and the name of its entry:
 *   larder_move(units, count, tables, sums, flags) */
extern const char ldr_gpu_source[];
#define LDR_GPU_ENTRY "larder_move"
enum {
    LDR_GPU_CHECK = 1, /* sums are made */
    LDR_GPU_LOAD = 2,  /* `to` is the page, otherwise `from` is */
};

/* Fills what the kernel reads from; and powers: of 16 bytes, and of
 * LDR_GPU_POWER. */
void ldr_gpu_tables(uint32_t tables[LDR_GPU_TABLES]);
typedef struct ldr_gpu_powers {
    uint32_t small[LDR_GPU_POWER / 16], large[LDR_GPU_POWERS];
} ldr_gpu_powers_t;
void ldr_gpu_powers(ldr_gpu_powers_t *powers);

uint32_t ldr_gpu_product(uint32_t a, uint32_t b);

/* The factor for so many bytes behind: a multiple of 16, of a shard. */
static inline uint32_t ldr_gpu_factor(const ldr_gpu_powers_t *powers,
                                      uint64_t bytes)
{
    uint32_t large = powers->large[bytes / LDR_GPU_POWER];
    uint32_t small = (uint32_t)(bytes % LDR_GPU_POWER) / 16;

    return small == 0 ? large : ldr_gpu_product(large, powers->small[small]);
}
/* The CRC-32C of a shard of so many bytes, from the kernel's sum. */
uint32_t ldr_gpu_crc(const ldr_gpu_powers_t *powers, uint32_t sum,
                     uint64_t bytes);
