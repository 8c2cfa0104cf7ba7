/*
 * Copies and checksums: CRC-32C, and both in one pass.
 *
 * The best variant for the CPU is chosen once, at the first call. Copies use
 * non-temporal stores from LDR_COPY_NT_MIN bytes on, since what is copied here
 * is larger than the caches and is not read again soon; every function but
 * those of pieces ends with a fence, so that a later release store orders
 * them.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define LDR_COPY_NT_MIN 4096u

/* CRC-32C (Castagnoli) of data that follows data with this crc; 0 to begin.
 * ldr_crc32c(ldr_crc32c(0, a), b) is the CRC of a followed by b. */
uint32_t ldr_crc32c(uint32_t crc, const void *data, size_t bytes);

/* The CRC of a followed by b, from those of each and b's length. */
uint32_t ldr_crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t b_bytes);

/* Copies, without and with the checksum of what was copied. No overlap. */
void ldr_copy(void *to, const void *from, size_t bytes);
uint32_t ldr_copy_crc32c(uint32_t crc, void *to, const void *from,
                         size_t bytes);

/*
 * ldr_copy_crc32c() of one of many pieces that lie apart. The source goes on at
 * next, which is asked for while this piece ends; NULL: nobody knows where.
 * After the last piece comes ldr_copy_fence(): waiting for every piece's stores
 * costs a third of the speed with pieces of 4 KiB.
 */
uint32_t ldr_copy_piece(uint32_t crc, void *to, const void *from, size_t bytes,
                        const void *next);
/* The same without the checksum. */
void ldr_copy_piece_plain(void *to, const void *from, size_t bytes,
                          const void *next);
/* The same of a row of 128 bytes or more that begins at a line's begin, past
 * the caches however small it is. */
void ldr_copy_row(void *to, const void *from, size_t bytes);
void ldr_copy_fence(void);

/* Of a piece that is copied from, or to, after this one: its pages are looked
 * up meanwhile. Asked for too early it costs little, too late it does not
 * help. */
void ldr_copy_prefetch(const void *at, size_t bytes);

/* "avx512-vpclmul-amd", "avx512-vpclmul", "avx2-vpclmul", "sse4.2",
 * "armv8-crc", "portable" */
const char *ldr_copy_variant(void);

/* For tests and benchmarks: variants usable on this CPU, best first; NULL
 * after the last. Selecting one is not safe beside running copies. */
const char *ldr_copy_variant_at(unsigned index);
void ldr_copy_select(unsigned index);
