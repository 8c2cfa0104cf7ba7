/*
 * Walking a list of buffers. There are three ways: a cursor, which leaves the
 * list as it is and does not know its end; ldr_iov_t, which knows it and gives
 * the pieces of the next bytes; and dropping bytes off the front of a list that
 * may be changed, as for readv() and writev(). The list and its buffers stay
 * the caller's.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>

#include "base/bytes.h"

/* A place in a list whose length the caller knows: it may stand behind the last
 * buffer, where it must not be looked at. */
typedef struct ldr_cursor {
    const struct iovec *iov;
    size_t at; /* in *iov */
} ldr_cursor_t;

static inline uint8_t *ldr_cursor_here(const ldr_cursor_t *c)
{
    return (uint8_t *)c->iov->iov_base + c->at;
}

/* Bytes up to the end of this buffer; 0 only if it is empty. */
static inline size_t ldr_cursor_left(const ldr_cursor_t *c)
{
    return c->iov->iov_len - c->at;
}

/* Goes on by at most ldr_cursor_left(); at the end of a buffer, to the next. */
static inline void ldr_cursor_go(ldr_cursor_t *c, size_t bytes)
{
    c->at += bytes;
    if (c->at == c->iov->iov_len) {
        c->iov++;
        c->at = 0;
    }
}

/* Takes so many bytes off the front. Gives how many buffers have nothing left,
 * those that had nothing included: the rest of the list begins behind them. */
static inline unsigned ldr_iov_drop(struct iovec *iov, unsigned count,
                                    size_t bytes)
{
    unsigned gone = 0;

    while (gone < count && bytes >= iov[gone].iov_len) {
        bytes -= iov[gone++].iov_len;
    }
    if (gone < count) {
        iov[gone].iov_base = (uint8_t *)iov[gone].iov_base + bytes;
        iov[gone].iov_len -= bytes;
    }
    return gone;
}

/* Of one call to the kernel, where that is enough. */
#define LDR_IOV_PARTS 64u

/* Bytes that lie scattered, and a place in them. */
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
