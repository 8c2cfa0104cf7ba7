/*
 * Copies between one piece of memory and a list of buffers, with the checksum
 * in the same pass. The buffers may be rows of some hundred bytes that lie
 * apart, or many MiB.
 *
 * Large buffers are copied as they are, past the caches. Small ones would cost
 * a checksum and a call each: a gather collects them in STAGE bytes that stay
 * in the first-level cache, and copies those out at once; a scatter sums up
 * STAGE bytes of its source, which brings them into the cache, and spreads them
 * from there. Both ask for buffers that come later.
 *
 * The caller fences (ldr_copy_fence()) before what was copied is published.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/iov.h"

/* A list with its end. */
typedef struct ldr_list {
    ldr_cursor_t at;
    const struct iovec *end;
} ldr_list_t;

static inline ldr_list_t ldr_list(const struct iovec *iov, uint32_t count)
{
    return (ldr_list_t){{iov, 0}, iov + count};
}

/* The next bytes of the list, which has as many, to one place. Gives the CRC of
 * all that is behind crc and these. */
uint32_t ldr_gather(uint32_t crc, void *to, ldr_list_t *from, size_t bytes);

/* From one place to the next buffers of the list. check false: without the
 * checksum, and crc comes back as it was. */
uint32_t ldr_scatter(uint32_t crc, ldr_list_t *to, const void *from,
                     size_t bytes, bool check);
