/*
 * The load generator for bench/peers: one loop, one set of buffers and one
 * check for all stores, and a small table of functions for each.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#define BATCH_MAX 64u
#define KEY_MAX 48u

/* One value of a batch. It has a number among all values, and a generation:
 * the same number in another generation is another key. */
typedef struct value {
    uint32_t number, generation;
    uint8_t *data;
} value_t;

typedef struct peer peer_t;

/* A batch of at most BATCH_MAX values, all of the same size. Each function
 * returns when all of them are done, and ends the program with a message if
 * one of them is not. */
typedef struct peer_ops {
    const char *name;
    peer_t *(*open)(const char *where, size_t size);
    void (*put)(peer_t *peer, const value_t *values, unsigned count);
    void (*get)(peer_t *peer, const value_t *values, unsigned count);
    /* Not timed. */
    void (*remove)(peer_t *peer, const value_t *values, unsigned count);
    void (*close)(peer_t *peer);
} peer_ops_t;

extern const peer_ops_t peer_larder, peer_redis, peer_memcached;

/* Says so on stderr and ends the program. */
void fail(const char *format, ...)
    __attribute__((noreturn, format(printf, 1, 2)));

void *must_alloc(size_t bytes);

/* ---- contents: aligned to 8 bytes, a multiple of 8 long ---- */

void content_make(void *data, size_t size, uint32_t number,
                  uint32_t generation);
bool content_is(const void *data, size_t size, uint32_t number,
                uint32_t generation);

/* ---- a connection: what the wire costs and nothing more ---- */

#define SMALL_BYTES 4096u

/* Lines go through `small`; what was asked for is received where it shall
 * lie, but for the few bytes that came along with the line before. */
typedef struct conn {
    int fd;
    size_t at, have; /* of small: looked at, and received */
    char small[SMALL_BYTES];
} conn_t;

/* where: "unix:PATH" or "tcp:PORT" (loopback, congestion control cubic, the
 * same as all others in the run). */
void conn_open(conn_t *c, const char *where);
void conn_close(conn_t *c);
/* Sends all of it, at most 3 * BATCH_MAX pieces; they are changed. */
void conn_send(conn_t *c, struct iovec *pieces, unsigned count);
/* The next line without its end, valid until the next call. */
const char *conn_line(conn_t *c);
void conn_receive(conn_t *c, void *to, size_t bytes);
