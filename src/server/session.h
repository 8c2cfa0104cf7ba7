/*
 * A session: one connection, who is at its other end, and what that process
 * holds of the node. It belongs to one loop and is touched by its thread only.
 *
 * Life: NEW (a peer that may say hello and nothing else) -> OPEN -> CLOSED; in
 * between QUARANTINE: the socket is closed but the process lives, so what it
 * holds stays held, charged to its tenant, until the process is gone.
 *
 * Invariants
 *  1. Nothing a peer sent is looked at twice: bodies are copied into requests
 *     before they are parsed, out of rings and sockets alike.
 *  2. Leases and reservations are in the table of holds from the moment the
 *     node gave them until they are given back, whoever asks for it: a
 *     session's end gives back what the table holds, and so gives all back.
 *  3. A shard that is only reserved is never seen by anybody: only COMMIT of
 *     the session that reserved it makes it visible.
 *  4. A session is in its loop's list from its arrival until it is CLOSED; it
 *     has a stranger while it is NEW, then a tenant. Once it is CLOSED it has
 * no requests, holds or maps, and only its task `bury` touches it.
 *  5. A request that is under way is one of its session's `requests`, and is
 *     `in`, `begun`, `put` or in the list `waiting`, or is being carried out
 *     now. One that has been given back is `idle`, in the loop's list of those.
 *  6. A channel's bytes are those of the replies from its head that are not
 *     sent yet; end leads to their last link. An attached session is polled (in
 *     the loop's list) exactly while it is hot.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/iov.h"
#include "net/auth.h"
#include "net/ring.h"
#include "net/transport.h"
#include "node/load.h"
#include "node/node.h"
#include "server/loop.h"
#include "server/server_int.h"
#include "server/bounce.h"
#include "wire/wire.h"

#define LDR_SESSION_SPACES 1024u
#define LDR_SESSION_REQUESTS 256u /* under way at once */
#define LDR_SESSION_FDS 8u        /* queued to be sent at once */
#define LDR_WRITE_IOV 64u
#define LDR_IN_BYTES 4096u
#define LDR_DUMP_BYTES 65536u /* where payload goes that nobody wants */

typedef struct ldr_session ldr_session_t;
typedef struct ldr_request ldr_request_t;

/* What a session holds: a lease or a reservation. */
typedef struct ldr_hold {
    uint32_t shard, chunk;
    uint32_t space; /* the node's number, for counting */
    uint32_t length;
    uint32_t generation;     /* makes an old lease's number invalid */
    uint32_t next;           /* of the free ones */
    uint8_t kind;            /* LDR_HOLD_* */
    void *strict;            /* what a bounce buffer needs to know of it */
    struct ldr_stage *stage; /* of a STAGE: all that it holds */
} ldr_hold_t;

enum { LDR_HOLD_FREE, LDR_HOLD_LEASE, LDR_HOLD_RESERVE, LDR_HOLD_STAGE };

/* A space that the session has opened. */
typedef struct ldr_session_space {
    uint32_t number; /* the node's */
    uint32_t shards;
} ldr_session_space_t;

/* A reply on its way out: a head (frame and body) and pieces of the arena,
 * which are held until they are sent. */
typedef struct ldr_out {
    struct ldr_out *next;
    uint8_t *head;
    size_t head_bytes;
    struct iovec *pieces;
    ldr_iov_t unsent; /* of the pieces */
    uint32_t *chunks; /* held */
    uint32_t chunk_count;
    size_t left; /* bytes of head and pieces not sent yet */
    size_t head_sent;
    int fds[LDR_FDS_MAX]; /* to go with the head; closed then */
    unsigned fd_count;
} ldr_out_t;

/* One of a session's two ways: its socket, and its rings. The transport's row
 * says what they can do. */
typedef struct ldr_channel {
    ldr_stream_t stream;
    ldr_out_t *head, **end; /* replies that wait to be sent */
    size_t bytes;           /* of those, not sent yet */
} ldr_channel_t;

typedef enum ldr_session_state {
    LDR_SESSION_NEW,
    LDR_SESSION_OPEN,
    LDR_SESSION_QUARANTINE,
    LDR_SESSION_CLOSED
} ldr_session_state_t;

struct ldr_session {
    ldr_server_t *server;
    ldr_server_loop_t *home;
    ldr_session_t *prev, *next; /* of the loop's */
    ldr_session_state_t state;
    bool local;            /* by unix socket */
    bool loopback;         /* by tcp, from this machine */
    bool shaken;           /* TLS, if any, is set up */
    bool admin;            /* the daemon's own uid, or root, by unix socket */
    bool strict_transport; /* it will get a bounce buffer of its own */
    bool ending;           /* on its way out */
    bool awaited;          /* by a daemon that takes over: see takeover.c */
    bool doomed;           /* close once what is queued has gone out */
    uint32_t lowat;        /* bytes that wake us; 0: as it was */
    bool lives_on;         /* its process may, when it ends */
    uint64_t begin_ns;
    uint64_t epoch;
    ldr_task_t bury; /* frees it, after the round that closed it */

    /* Who */
    ldr_peer_t peer; /* local */
    ldr_watch_t pid_watch;
    char from[80]; /* for the log */
    uint8_t client_nonce[LDR_NONCE_BYTES], server_nonce[LDR_NONCE_BYTES];
    char tenant_name[LDR_TENANT_MAX + 1]; /* as the hello says */
    bool greeted;
    ldr_server_tenant_t *tenant; /* the tenant, once it is open */
    ldr_stranger_t *stranger;    /* in the lobby, until then */

    /* The socket */
    ldr_watch_t watch;
    ldr_channel_t socket;
    uint8_t *buffer; /* LDR_IN_BYTES, read ahead */
    uint32_t buffer_at, buffer_have;
    ldr_request_t *in;    /* the frame being received */
    size_t in_have;       /* bytes of its head and body */
    bool in_headed;       /* its head is there and understood */
    ldr_request_t *put;   /* whose payload is being received */
    ldr_task_t again;     /* there may be more to read */
    ldr_request_t *begun; /* goes on before anything else is read */
    bool waits_turn;      /* to be read from: turn.c */
    ldr_session_t *turn_prev, *turn_next;
    ldr_task_t flush; /* there is something to send */
    unsigned out_fds; /* descriptors in what is queued */

    /* The rings */
    bool attached;
    ldr_channel_t rings;
    ldr_ring_pair_t ring;
    void *ring_map;
    ldr_watch_t bell;
    uint64_t ring_used_ns;   /* the last time something came */
    ldr_session_t *hot_next; /* of the loop's rings that are polled */
    bool hot;

    /* What it has */
    ldr_session_space_t *spaces;
    uint32_t space_count;
    ldr_hold_t *holds;
    uint32_t hold_capacity, hold_free, hold_count;
    uint64_t staged; /* leases that its stages count as */
    bool promises;   /* it has made some: its epoch is their owner */
    struct {
        uint32_t extent, generation;
        bool revoking;
    } * maps;
    uint32_t map_count, map_capacity;
    ldr_bounce_t *bounce;   /* isolation=strict */
    uint32_t requests;      /* under way */
    ldr_request_t *waiting; /* of those: that wait for the node */
};

/* A request, from its frame to its reply. */
struct ldr_request {
    ldr_session_t *session; /* NULL: it ended meanwhile; nobody wants a reply */
    bool idle;              /* given back: nobody's until it is new again */
    bool queued;            /* it is a job, until its `done` has begun */
    ldr_server_loop_t *home;
    ldr_server_tenant_t *tenant; /* its session's */
    ldr_frame_t frame;
    ldr_channel_t *via; /* it came by, and its reply goes */
    /* Payload that was handed over: counted and charged with the reply. */
    uint64_t bytes_in, bytes_out;
    uint64_t begin_ns, deadline_ns;

    uint8_t *bytes; /* frame and body, private */
    size_t capacity;
    const uint8_t *body;

    /* A batch: one of each for every shard that its rows name (batch.c) */
    uint32_t space, shards; /* the node's number */
    uint32_t count, flags;
    larder_item_t *items; /* as many as there is room for; those of a chunk have
                             the same pointer for its key. key NULL: refused */
    ldr_more_row_t *wants;
    ldr_result_row_t *results;
    ldr_load_t *loads;
    uint32_t *shard_of;   /* reserved or held, LDR_NIL: none */
    void **works;         /* isolation=strict: pages of the bounce buffer */
    ldr_bounce_t *bounce; /* while a job works in it */
    uint32_t item_capacity;
    void (*go_on)(ldr_request_t *r);
    uint32_t next; /* the first not begun, or the one being received */
    struct ldr_staging *staging; /* a STAGE, and where what comes is kept */
    struct ldr_stage *stage;
    struct ldr_query *ask; /* other members are asked first (peer_ask.c) */
    void (*ask_handler)(ldr_request_t *r);
    uint64_t ask_deadline_ns; /* the request's own */
    uint32_t pending;         /* loads that wait, atomic */
    ldr_task_t settled;       /* all loads are */

    /* The payload of a PUT */
    struct iovec *iov;  /* where the item's bytes go */
    ldr_iov_t unfilled; /* of it; empty: they go nowhere */
    uint64_t got;       /* bytes of the item received */
    uint32_t crc;
    bool parked;        /* waits for room */
    uint64_t pulse_ns;  /* when it last heard of us */
    uint64_t parked_ns; /* the last try */

    /* A job: runs in a thread of its own and must not look at the session;
     * then finish() in the loop, unless the session is gone. */
    void (*job)(ldr_request_t *r); /* not NULL: the job's, until its end */
    void (*finish)(ldr_request_t *r);
    bool ran; /* the job's thread: at the daemon's end some do not */
    ldr_space_info_t info;
    uint32_t number;        /* what the job found or was given */
    larder_status_t status; /* of the whole */
    char *text;             /* what the reply's body is, or NULL */
    size_t text_bytes;
    ldr_task_t done;
    ldr_request_t *job_next;

    ldr_request_t *prev, *next_waiting; /* of the session's that wait */
    ldr_request_t *free_next;
};

/* ---- session.c: life ---- */

/* A connection that was accepted. */
typedef struct ldr_arrival {
    ldr_stream_t stream;
    bool local;
    uint64_t begin_ns;        /* its time to authenticate begins */
    ldr_stranger_t *stranger; /* its place in the lobby */
} ldr_arrival_t;

/* Takes the stream over. False: refused, and closed. */
bool ldr_session_accept(ldr_server_loop_t *home, const ldr_arrival_t *arrival);
/* Ends the session as far as its peer is concerned; what it holds stays while
 * its process lives. why: for the log, NULL: it went in peace. */
void ldr_session_end(ldr_session_t *s, const char *why);
/* Ends it for good, its process alive or not: the daemon ends. */
void ldr_session_drop(ldr_session_t *s);
/* What is due at this time; when to look next. */
uint64_t ldr_session_tick(ldr_session_t *s, uint64_t now_ns);
ldr_transport_t ldr_session_transport(const ldr_session_t *s);
/* Whether its peer is listened to. */
static inline bool ldr_session_speaks(const ldr_session_t *s)
{
    return s->state == LDR_SESSION_NEW || s->state == LDR_SESSION_OPEN;
}
/* Whether the invariants of all sessions of a loop hold: looks at everything;
 * in the loop's thread. Every so often, in debug builds. */
bool ldr_sessions_check(const ldr_server_loop_t *home);
/* The session is let in as this tenant. */
larder_status_t ldr_session_enter(ldr_session_t *s,
                                  ldr_server_tenant_t *tenant);

/* ---- holds.c: what sessions hold ---- */

/* Whether what holds.c says of the table is so: looks at all of it. */
bool ldr_holds_check(const ldr_session_t *s);
/* UINT64_MAX: no more. */
uint64_t ldr_hold_add(ldr_session_t *s, const ldr_hold_t *hold);
/* NULL: no such lease, of this kind, in this session. */
ldr_hold_t *ldr_hold_find(ldr_session_t *s, uint64_t lease, unsigned kind);
/* Takes it out of the table; the node is the caller's to tell. */
void ldr_hold_remove(ldr_session_t *s, ldr_hold_t *hold);
/* Gives one back to the node: releases or aborts it. A save that ends so was
 * canceled, and is counted. */
void ldr_hold_give(ldr_session_t *s, ldr_hold_t *hold);
/* The same before anybody has heard of it. */
void ldr_hold_undo(ldr_session_t *s, ldr_hold_t *hold);
void ldr_holds_give_all(ldr_session_t *s);
/* How many shards it may still hold. */
uint64_t ldr_holds_left(const ldr_session_t *s);
/* What it holds cannot be handed to another daemon. */
void ldr_holds_stay(ldr_session_t *s);
/* Extents the session has mapped. */
larder_status_t ldr_session_map(ldr_session_t *s, const ldr_extent_msg_t *want,
                                ldr_extent_view_t *view);
void ldr_session_unmap(ldr_session_t *s, uint32_t extent, uint32_t generation);
void ldr_session_unmap_all(ldr_session_t *s);
/* The node wants this extent back: asks the session, if it has it. */
void ldr_session_revoke(ldr_session_t *s, uint32_t extent, uint32_t generation);
void ldr_session_revoke_all(ldr_session_t *s);

/* ---- turn.c: tenants take turns in a loop ---- */

/* What is left of its tenant's turn, in ns; 0 or less: nothing. */
int64_t ldr_turn_left(const ldr_session_t *s);
/* Whether its ring is read now: one of a tenant's in a round. */
bool ldr_turn_ring(const ldr_session_t *s);
/* The session took so long. */
void ldr_turn_used(const ldr_session_t *s, uint64_t ns);
/* It is read from when its tenant has a turn again. */
void ldr_turn_wait(ldr_session_t *s);
void ldr_turn_quit(ldr_session_t *s); /* not any more, if it was */
/* Whether what turn.c says of its lists is so: looks at all of them. */
bool ldr_turns_check(const ldr_server_loop_t *home);
/* The next round: reads from those that wait. True: some still do. */
bool ldr_turns_run(ldr_server_loop_t *home);

/* ---- stream.c: frames by socket ---- */

void ldr_session_readable(ldr_watch_t *watch, uint32_t events);
/* Sends as much as goes; false: the session ended. */
bool ldr_session_send(ldr_session_t *s);
/* Looks for more to read, after a wait for room or for replies; true: there
 * was some, and the session goes on. */
bool ldr_session_read(ldr_session_t *s);
void ldr_out_free(ldr_session_t *s, ldr_out_t *out);
/* Sends a frame if nothing is before it. NULL: it is gone; otherwise what is
 * left of it, to be queued. */
ldr_out_t *ldr_session_out(ldr_session_t *s, ldr_channel_t *via,
                           const uint8_t *frame, size_t bytes);
void ldr_session_queue(ldr_session_t *s, ldr_channel_t *via, ldr_out_t *out);
/* Drops what is queued for the socket. */
void ldr_session_unqueue(ldr_session_t *s);

/* ---- ring.c: frames by shared memory ---- */

larder_status_t ldr_session_attach(ldr_session_t *s, int fds[2]);
void ldr_session_detach(ldr_session_t *s);
/* True: something was there. */
bool ldr_session_ring(ldr_session_t *s);
/* Its peer is gone: releases and commits that lie in the ring were called done
 * by it, and are; the rest is not. */
void ldr_session_last_words(ldr_session_t *s);
/* Its ring is polled from here on, until the loop sleeps. */
void ldr_session_warm(ldr_session_t *s);
/* The loop's rings: looks at those that are polled; lets them sleep. */
ldr_loop_found_t ldr_rings_poll(ldr_server_loop_t *home);
bool ldr_rings_sleep(ldr_server_loop_t *home);
/* Sends what waits for room. */
void ldr_session_ring_send(ldr_session_t *s);

/* ---- request.c ---- */

ldr_request_t *ldr_request_new(ldr_session_t *s);
/* Room for so many bytes of frame and body. */
bool ldr_request_grow(ldr_request_t *r, size_t bytes);
bool ldr_request_batch(ldr_request_t *r, uint32_t count);
void ldr_request_free(ldr_request_t *r);
void ldr_requests_destroy(ldr_server_loop_t *home);

/* Carries out a request whose frame and body are there. Ends with a reply,
 * now or later; a malformed one ends its session. */
void ldr_request_begin(ldr_request_t *r);
/* It has done enough for one go: go_on(), which takes it up again, comes when
 * its tenant has a turn. Nothing of its session is read before. */
void ldr_request_later(ldr_request_t *r, void (*go_on)(ldr_request_t *r));
void ldr_request_go_on(ldr_session_t *s); /* the one that was begun */
/* It cannot be: ends the session, and frees the request. */
void ldr_request_bad(ldr_request_t *r, ldr_refusal_t refusal, const char *why);
/* Answers and frees the request. */
void ldr_reply(ldr_request_t *r, larder_status_t st, const void *body,
               size_t bytes);
/* The same with the error text of the thread as its body. */
void ldr_reply_fail(ldr_request_t *r, larder_status_t st);
/* The same with results, and what goes with them. */
void ldr_reply_results(ldr_request_t *r, bool segs, bool payload);
/* With descriptors, which are closed: local sessions, by socket. */
void ldr_reply_fds(ldr_request_t *r, const void *body, size_t bytes,
                   const int *fds, unsigned fd_count);
/* Says that the daemon is there, to a client whose requests are not read
 * meanwhile: the reply to a PING of id 0. */
void ldr_session_pulse(ldr_session_t *s);
/* A frame that answers nothing. */
void ldr_session_notify(ldr_session_t *s, ldr_opcode_t opcode, const void *body,
                        size_t bytes);

void ldr_request_wait(ldr_request_t *r);   /* joins the session's list */
void ldr_request_unwait(ldr_request_t *r); /* leaves it */
/* Its deadline has come, or its session ends. */
void ldr_request_expire(ldr_request_t *r, larder_status_t why);

/* ---- handlers ---- */

typedef void (*ldr_handler_t)(ldr_request_t *r);

void ldr_handle_hello(ldr_request_t *r); /* hello.c */
void ldr_handle_auth(ldr_request_t *r);
void ldr_handle_attach(ldr_request_t *r); /* ring.c */
void ldr_handle_extent(ldr_request_t *r); /* holds.c */
void ldr_handle_revoked(ldr_request_t *r);
void ldr_handle_lease(ldr_request_t *r); /* load.c */
void ldr_handle_get(ldr_request_t *r);
void ldr_handle_release(ldr_request_t *r);
void ldr_handle_reserve(ldr_request_t *r); /* save.c */
void ldr_handle_commit(ldr_request_t *r);
void ldr_handle_put(ldr_request_t *r);
void ldr_handle_match(ldr_request_t *r); /* stage.c */
void ldr_handle_stage(ldr_request_t *r);
void ldr_handle_handoff(ldr_request_t *r);
void ldr_handle_space(ldr_request_t *r); /* ops.c */
void ldr_handle_reset(ldr_request_t *r);
void ldr_handle_announce(ldr_request_t *r);
void ldr_handle_describe(ldr_request_t *r);
void ldr_handle_list(ldr_request_t *r);
void ldr_handle_exists(ldr_request_t *r);
void ldr_handle_remove(ldr_request_t *r);
void ldr_handle_report(ldr_request_t *r);
void ldr_handle_flush(ldr_request_t *r);
void ldr_handle_stats(ldr_request_t *r);
void ldr_handle_metrics(ldr_request_t *r);
void ldr_handle_ping(ldr_request_t *r);
void ldr_handle_admin(ldr_request_t *r); /* admin_verbs.c */

/* peer_ask.c: whether other members are asked before the request is carried
 * out; the handler follows then. */
bool ldr_ask_first(ldr_request_t *r, ldr_handler_t handler);
/* No more waiting for them: its time has come, or its session ends. */
void ldr_ask_expire(ldr_request_t *r);

/* batch.c: reads the batch, checks its space, and makes an item of every shard
 * that it names: false: it was answered. Rows are names, saves, or places in
 * what is staged, by its token. */
bool ldr_request_names(ldr_request_t *r);
bool ldr_request_saves(ldr_request_t *r);
bool ldr_request_places(ldr_request_t *r);
/* Items from this one on that are of the same chunk, itself included. */
uint32_t ldr_request_run(const ldr_request_t *r, uint32_t first);
/* Whether loads and EXISTS of this batch count as asking for something: they
 * are no part of what was asked for before. */
bool ldr_request_asks(const ldr_request_t *r);

/* save.c: the payload of a PUT arrives. Where the next bytes go: up to max
 * buffers, and up to so many bytes unless they are dropped; 0: it waits until
 * there is memory. */
uint32_t ldr_put_iov(ldr_request_t *r, uint64_t bytes, struct iovec *iov,
                     uint32_t max);
/* So many bytes came. True: the PUT is complete and was answered. */
bool ldr_put_got(ldr_request_t *r, size_t bytes);
/* Whether the item is there, for who would save it: no load, so nothing is
 * missed (ops.c). */
bool ldr_save_present(ldr_request_t *r, uint32_t i);
/* A request that waits for room tries again. */
void ldr_save_again(ldr_request_t *r);
/* A PUT that is late does not keep its room: what still comes is dumped. */
void ldr_put_late(ldr_request_t *r);
/* Gives back what an unfinished PUT or RESERVE has. */
void ldr_save_undo(ldr_request_t *r);
/* The session's space of this number: false: there is none, and the request
 * was answered (ops.c). */
bool ldr_request_space(ldr_request_t *r, uint32_t space);
/* Whether its tenant is within its rate; false: it was answered (load.c). */
bool ldr_request_may_move(ldr_request_t *r);
/* A STAGE ends, with what it has (stage.c). */
void ldr_stage_expire(ldr_request_t *r, larder_status_t why);
/* The loads of a request end, whatever became of them. */
void ldr_loads_expire(ldr_request_t *r, larder_status_t why);
