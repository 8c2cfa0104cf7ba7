/*
 * Connections whose peers have not said yet who they are, by their origin: an
 * IPv4 address, an IPv6 network of 64 bits, or the uid behind a unix socket.
 *
 * A lobby has room for so many, and for fewer of one origin. A newcomer always
 * finds room: the connection that has waited longest gives way, of the
 * newcomer's origin if that one has as many as it may, otherwise of the origin
 * that has most. So a client that speaks at once gets in, however many others
 * of its address connect and say nothing.
 *
 * To give way is to be shut down: the connection's owner then reads the end of
 * the stream, and leaves. Any thread may call.
 *
 * Invariants, under the lobby's lock
 *  1. A stranger is in the list of its origin, or gave way and is one of those
 *     that are leaving, until its owner leaves with it.
 *  2. An origin has a list while it has strangers, at most origin_max; all
 *     lists together have `count`, at most max. As many may be leaving.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct ldr_lobby ldr_lobby_t;
typedef struct ldr_stranger ldr_stranger_t;

typedef struct ldr_origin {
    uint64_t value;
    unsigned kind;
} ldr_origin_t;

typedef enum ldr_lobby_found {
    LDR_LOBBY_ROOM,     /* there was room */
    LDR_LOBBY_GAVE_WAY, /* another one gave way */
    LDR_LOBBY_FULL      /* no memory, or ldr_lobby_behind() */
} ldr_lobby_found_t;

/* Where the peer of a connected socket is; all whose origin cannot be had are
 * one. */
ldr_origin_t ldr_origin_of(int fd);

/* NULL: no memory. */
ldr_lobby_t *ldr_lobby_create(unsigned max, unsigned origin_max);
void ldr_lobby_destroy(ldr_lobby_t *lobby); /* NULL is fine; nobody is in it */

/* Whether too many that gave way have not left yet: accept nobody meanwhile. */
bool ldr_lobby_behind(ldr_lobby_t *lobby);
/* One more. The stranger is NULL if it is full. */
ldr_lobby_found_t ldr_lobby_enter(ldr_lobby_t *lobby, ldr_origin_t origin,
                                  ldr_stranger_t **stranger_p);
/* The socket that is shut down from here on if it must give way. False: it had
 * to already, and its owner ends it. */
bool ldr_lobby_listen(ldr_lobby_t *lobby, ldr_stranger_t *stranger, int fd);
/* Whether the invariants hold; looks at everything. */
bool ldr_lobby_check(ldr_lobby_t *lobby);
/* It is known now, or goes: before its socket is closed. NULL is fine. */
void ldr_lobby_leave(ldr_lobby_t *lobby, ldr_stranger_t *stranger);
