/*
 * Sessions over the streams of a transport.
 *
 * A pool of connections, each a session of its own and used by one caller at a
 * time, who sends requests ahead and takes replies as they come. Payload goes
 * straight from and to the caller's buffers, in pieces that are summed while
 * they are in the cache.
 *
 * What a caller leaves behind when it has to stop: replies under way are noted
 * as late and skipped by the next user; where too much would have to be
 * skipped, or a request was cut off in the middle, the connection is closed.
 *
 * The connecting thread connects them; who finds none free waits, by
 * its own deadline, for one that is given back or connected.
 *
 * Locks: pool->lock guards the pool and what leases leave to be released. A
 * connection's own state belongs to whoever has taken it.
 */
#pragma once

#include "base/gather.h"
#include "net/session.h"

#define LDR_CONN_ADDRESSES 16u
#define LDR_CONN_AHEAD 8192u /* bytes read ahead, to save small reads */
#define LDR_CONN_LATE 16u
#define LDR_CONN_PIECE ((size_t)256 << 10) /* received and summed at once */
#define LDR_CONN_SKIP_MAX ((uint64_t)4 << 20)

typedef struct ldr_conn {
    ldr_link_t link; /* first */
    struct ldr_pool *pool;

    /* Under pool->lock */
    bool busy;
    bool connecting;     /* and busy: the connecting thread's */
    uint64_t refused_ns; /* not to be connected before */
    uint64_t session;    /* counts connects: an old lease's is gone */
    uint64_t *ends;      /* leases to be released */
    uint32_t end_count, end_capacity;
    bool doomed; /* close it when it is given back */

    ldr_stream_t stream; /* fd -1: not connected */
    bool broken;         /* to be closed */
    uint64_t next_id;
    uint64_t heard_ns;
    unsigned pings;    /* not answered yet */
    unsigned silences; /* calls in a row that heard nothing */
    uint8_t ahead[LDR_CONN_AHEAD];
    uint32_t ahead_at, ahead_have;
    uint64_t skip; /* payload that nobody wants, next in the stream */
    struct {
        uint64_t id;
        uint16_t opcode;
        uint64_t payload; /* at most, in the reply */
    } late[LDR_CONN_LATE];
    unsigned late_count;
    ldr_call_t *waiting; /* sent, not answered yet */
} ldr_conn_t;

typedef struct ldr_pool {
    ldr_remote_t *remote;
    ldr_tls_t *tls;
    ldr_address_t addresses[LDR_CONN_ADDRESSES];
    unsigned address_count;
    unsigned address; /* atomic: the one that answered last */
    pthread_mutex_t lock;
    pthread_cond_t freed;
    ldr_conn_t *conns;
    unsigned conn_count;
    unsigned waiters;       /* for one that is free */
    unsigned connecting;    /* on their way */
    uint64_t connect_ns;    /* since when there are such */
    uint64_t failures;      /* counted, for who waited: the last one is */
    larder_status_t failed; /* this */
    char failed_text[512];
} ldr_pool_t;

static inline ldr_conn_t *ldr_conn_of(ldr_link_t *link)
{
    return (ldr_conn_t *)link;
}

static inline uint64_t ldr_conn_now(const ldr_conn_t *c)
{
    return ldr_now_ns(c->link.remote->clock);
}

/* ---- frames (conn.c) ---- */

/* Sends the request in the call's buffer, and payload behind it (NULL: none).
 * After a failure the connection is broken, if something was sent. */
larder_status_t ldr_conn_send(ldr_conn_t *c, ldr_call_t *call,
                              const struct iovec *payload, uint32_t count,
                              uint64_t bytes, const ldr_stop_t *stop);
/* The next reply to a call that waits: its head and body. Payload that goes
 * with it must be taken before the next. */
larder_status_t ldr_conn_recv(ldr_conn_t *c, const ldr_stop_t *stop,
                              ldr_call_t **call_p);
/* So many bytes of payload into the buffers, summed. */
larder_status_t ldr_conn_payload(ldr_conn_t *c, ldr_list_t *to, uint64_t bytes,
                                 const ldr_stop_t *stop, uint32_t *crc_p,
                                 uint64_t *left_p);
/* One call, with nothing else under way but calls without payload. */
larder_status_t ldr_conn_call(ldr_link_t *link, ldr_call_t *call,
                              const ldr_stop_t *stop);
/* Nobody waits for it any more; payload: what its reply may bring. */
void ldr_conn_forget(ldr_conn_t *c, const ldr_call_t *call, uint64_t payload);
/* Sends the releases that were left to it. */
void ldr_conn_send_ends(ldr_conn_t *c);

/* ---- the pool (pool.c) ---- */

/* Reads the certificates again, for connections that begin from here on. A
 * failure changes nothing. */
larder_status_t ldr_pool_renew(ldr_remote_t *r);

/* A lease of this connection, in that session of it, is to be released. */
void ldr_conn_release(ldr_conn_t *c, uint64_t session, const uint64_t *leases,
                      uint32_t count);
