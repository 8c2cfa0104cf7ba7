/* Bytes that lie scattered, and a place in them. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>

#include "base/bytes.h"

#define LDR_IOV_PARTS                                                          \
    64u /* of one call to the kernel, where that is enough                     \
         */

typedef struct ldr_iov {
    const struct iovec *at;
    unsigned count; /* from `at` on */
    size_t into;    /* bytes of *at that are used up */
} ldr_iov_t;

static inline uint64_t ldr_iov_bytes(const struct iovec *iov, unsigned count)
{
    uint64_t bytes = 0;

    for (unsigned i = 0; i < count; i++) {
        bytes += iov[i].iov_len;
    }
    return bytes;
}

/* The next pieces, so many bytes at most, and none that is empty: how many.
 * 0: nothing is left. */
static inline unsigned ldr_iov_next(const ldr_iov_t *c, uint64_t bytes,
                                    struct iovec *parts, unsigned max)
{
    unsigned n = 0;

    for (unsigned i = 0; i < c->count && n < max && bytes > 0; i++) {
        size_t into = i == 0 ? c->into : 0;
        size_t step = (size_t)ldr_min64(c->at[i].iov_len - into, bytes);

        if (step > 0) {
            parts[n++] =
                (struct iovec){(uint8_t *)c->at[i].iov_base + into, step};
            bytes -= step;
        }
    }
    return n;
}

static inline void ldr_iov_skip(ldr_iov_t *c, size_t bytes)
{
    c->into += bytes;
    while (c->count > 0 && c->into >= c->at->iov_len) {
        c->into -= c->at->iov_len;
        c->at++;
        c->count--;
    }
}

/* Copies between the pieces and `data`, so many bytes at most: how many. */
static inline size_t ldr_iov_copy(ldr_iov_t *c, void *data, size_t bytes,
                                  bool to_pieces)
{
    size_t done = 0;
    struct iovec part;

    while (ldr_iov_next(c, bytes - done, &part, 1) > 0) {
        uint8_t *at = (uint8_t *)data + done;

        memcpy(to_pieces ? part.iov_base : at, to_pieces ? at : part.iov_base,
               part.iov_len);
        ldr_iov_skip(c, part.iov_len);
        done += part.iov_len;
    }
    return done;
}
