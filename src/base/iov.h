/*
 * Walking a list of buffers. There are two ways: a cursor, which leaves the
 * list as it is, and dropping bytes off the front of a list that may be
 * changed, as for readv() and writev(). The list and its buffers stay the
 * caller's.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

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
