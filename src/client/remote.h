/*
 * The backend on a daemon, as far as it does not matter how it is reached:
 * when to try and when not (the gate), who we are (greet.c), spaces, and the
 * requests that move no payload. A carrier (shm.c, tcp.c) has the sessions and
 * moves frames and payload.
 *
 * The gate. A call that could not connect, or was not answered in time, shuts
 * it for a while: calls are then refused at once. When the time is over one
 * call may try (half-open); what becomes of it opens the gate or shuts it
 * again. So a daemon that is down or stopped costs one deadline per pause.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "client/client.h"
#include "net/auth.h"
#include "net/socket.h"
#include "wire/wire.h"

/* The daemon answers by the deadline; its answer is on its way a bit longer. */
#define LDR_GRACE_NS 3000000u
/* How long a wait goes on before it looks for cancels and dead daemons. */
#define LDR_LOOK_NS 10000000u
/* A daemon that says nothing for so long while it is asked is not well. */
#define LDR_SICK_NS 20000000u
#define LDR_MATCH_PIECE 8192u /* keys in one request */

typedef struct ldr_remote ldr_remote_t;
typedef struct ldr_link ldr_link_t;

/* Room for one request and then its reply. */
typedef struct ldr_buffer {
    struct ldr_buffer *next;
    uint8_t data[LDR_FRAME_BYTES + LDR_BODY_MAX];
} ldr_buffer_t;

static inline uint8_t *ldr_body(ldr_buffer_t *b)
{
    return b->data + LDR_FRAME_BYTES;
}

/* A request on its way, and its reply. The body is composed in the buffer,
 * where the reply's body arrives. */
typedef struct ldr_call {
    ldr_buffer_t *buffer;
    uint16_t opcode;
    uint32_t bytes;    /* of the request's body */
    ldr_frame_t reply; /* once it is done */

    /* The carrier's */
    uint64_t id;
    uint64_t sent_ns;
    bool done;
    bool sleeps; /* its thread waits for `wake` */
    pthread_cond_t wake;
    struct ldr_call *next;
} ldr_call_t;

/* A session with the daemon; the beginning of what a carrier has for one. */
struct ldr_link {
    ldr_remote_t *remote;
    uint64_t epoch;
    uint64_t features;
    bool sick; /* atomic: somebody waited for it in vain, see LDR_SICK_NS */
    pthread_mutex_t space_lock; /* never held across a call */
    struct {
        uint64_t uid;
        uint32_t number;
    } * spaces; /* by slot */
    uint32_t space_room;
};

typedef struct ldr_carrier {
    larder_status_t (*create)(ldr_remote_t *r);
    /* Before the end: waits until what needed no answer has arrived. NULL:
     * there is no such thing. */
    larder_status_t (*settle)(ldr_remote_t *r, uint64_t deadline_ns);
    void (*destroy)(ldr_remote_t *r);
    /* A session to use, waiting for the connecting thread if need be.
     * E_OFFLINE, E_DENIED..., E_DEADLINE (*sick_p: the daemon was to be heard
     * of, and was not, see LDR_SICK_NS), E_CANCELED. */
    larder_status_t (*take)(ldr_remote_t *r, const ldr_stop_t *stop,
                            ldr_link_t **link_p, bool *sick_p);
    void (*give)(ldr_link_t *link);
    /* In the connecting thread: connects what take() wants connected. */
    void (*dial)(ldr_remote_t *r);
    /* One request and its reply. E_OFFLINE, E_DEADLINE, E_CANCELED: there is
     * none, and none will touch the buffer. */
    larder_status_t (*call)(ldr_link_t *link, ldr_call_t *call,
                            const ldr_stop_t *stop);
    void (*get)(ldr_op_t *op);
    void (*put)(ldr_op_t *op);
    larder_status_t (*stage)(larder_space_t *space, const larder_key_t *keys,
                             uint16_t group, uint64_t deadline_ns,
                             larder_lease_t *lease, larder_match_t *match);
    larder_status_t (*segments)(const larder_lease_t *lease, uint32_t at,
                                struct iovec *seg, uint32_t seg_max,
                                uint32_t *seg_count_p);
    void (*drop)(larder_lease_t *lease);
    larder_status_t (*reserve)(larder_space_t *space, larder_item_t *items,
                               size_t count, uint64_t deadline_ns,
                               larder_lease_t *lease);
    larder_status_t (*commit)(larder_lease_t *lease, const uint8_t *keep,
                              const uint32_t *crcs, uint64_t deadline_ns);
    /* Whether the daemon has been heard of since then. */
    bool (*stirs)(ldr_remote_t *r, uint64_t since_ns);
} ldr_carrier_t;

extern const ldr_carrier_t ldr_carrier_shm;
extern const ldr_carrier_t ldr_carrier_tcp;

struct ldr_remote {
    larder_t *lar;
    ldr_options_t options;
    ldr_log_t log;
    bool poisoned;
    const ldr_carrier_t *carrier;
    void *state; /* the carrier's */

    larder_gpu_t *gpu; /* atomic, set once: registers what is mapped */
    pthread_t warmer;  /* maps what is there already, for the GPU */
    bool warms, warm_stop;

    /* The gate */
    pthread_mutex_t gate_lock;
    bool shut; /* atomic; the rest is looked at with the lock */
    uint64_t shut_ns, shut_until_ns;
    uint64_t backoff_ns; /* the last pause after a refused connection */
    bool trying;         /* somebody is half-way through */
    larder_status_t why; /* what refused calls are told */
    char why_text[512];
    ldr_rand_t rand;

    /* Connecting */
    pthread_mutex_t dial_lock;
    pthread_cond_t dial_wake;
    pthread_t dialer;
    bool dial_runs;
    bool dial_wanted;
    bool dial_stop; /* atomic: the handle is being closed */

    pthread_mutex_t buffer_lock;
    ldr_buffer_t *buffers;

    /* Atomic */
    uint64_t calls, offline, breaker, connects, late, crc_failures;
    uint64_t denied, version; /* connections refused */
    bool told;                /* that the daemon lacks a feature */
};

larder_status_t ldr_remote_open(larder_t *lar, const ldr_options_t *options,
                                const ldr_log_t *log);

static inline void ldr_tally(uint64_t *counter, uint64_t n)
{
    __atomic_add_fetch(counter, n, __ATOMIC_RELAXED);
}

/* What came of a connection. */
static inline larder_status_t ldr_tally_refused(ldr_remote_t *r,
                                                larder_status_t st)
{
    if (st == LARDER_E_DENIED) {
        ldr_tally(&r->denied, 1);
    } else if (st == LARDER_E_VERSION) {
        ldr_tally(&r->version, 1);
    }
    return st;
}

/* ---- the gate (gate.c) ---- */

/* OK, or what to tell the caller at once. After OK the call must end with one
 * of the next three, with *trying_p as it was set here. */
larder_status_t ldr_gate_enter(ldr_remote_t *r, bool *trying_p);
void ldr_gate_good(ldr_remote_t *r);               /* it has answered */
void ldr_gate_leave(ldr_remote_t *r, bool trying); /* neither good nor bad */
/* It could not be reached (st, with the thread's error text), or, late, did
 * not answer in time. */
void ldr_gate_bad(ldr_remote_t *r, bool trying, larder_status_t st, bool late);

/* ---- the connecting thread (dial.c) ---- */

/* Has the carrier's dial() called soon. With the carrier's lock or without. */
larder_status_t ldr_dial_want(ldr_remote_t *r);
/* What bounds one connection: timeout_ms, and the end of the handle. */
ldr_stop_t ldr_dial_stop(const ldr_remote_t *r);
/* Before a carrier is destroyed. */
void ldr_dial_end(ldr_remote_t *r);

/* ---- greeting (greet.c) ---- */

/* Says hello and proves who we are; sets the link's epoch and features. The
 * stream is connected, and set up if it is TLS. */
larder_status_t ldr_greet(ldr_remote_t *r, ldr_stream_t *stream,
                          const ldr_stop_t *stop, ldr_link_t *link);
/* After -EAGAIN: waits for what the stream wants. 0; -ETIMEDOUT, -ECANCELED,
 * or another negative errno. */
int ldr_stream_wait(ldr_stream_t *s, const ldr_stop_t *stop);
/* Why there is no session: a status with its text, from such an errno. */
larder_status_t ldr_lost(const ldr_remote_t *r, int error);
/* Sets a failed reply's text as the thread's error text. */
larder_status_t ldr_reply_failed(const ldr_frame_t *reply, const uint8_t *body);
bool ldr_link_init(ldr_link_t *link, ldr_remote_t *r);
void ldr_link_destroy(ldr_link_t *link);

/* ---- what carriers use (visit.c) ---- */

ldr_buffer_t *ldr_buffer_take(ldr_remote_t *r);
void ldr_buffer_give(ldr_remote_t *r, ldr_buffer_t *b); /* NULL is fine */

/* LARDER_OK, or why a call has to stop now. */
larder_status_t ldr_stopped(const ldr_stop_t *stop);
/* What a frame says about the time left. */
uint32_t ldr_left_ms(uint64_t deadline_ns);
/* When to give up waiting for an answer. */
static inline uint64_t ldr_last_ns(const ldr_stop_t *stop)
{
    return stop->deadline_ns >= UINT64_MAX - LDR_GRACE_NS
               ? UINT64_MAX
               : stop->deadline_ns + LDR_GRACE_NS;
}

/* A link and a buffer for a call; the gate is entered. Ends with
 * ldr_visit_end(), whatever came of it. */
typedef struct ldr_visit {
    ldr_remote_t *remote;
    ldr_link_t *link;
    ldr_stop_t stop;
    bool trying;    /* half-open: this call decides about the gate */
    bool heard;     /* the daemon has answered something */
    uint32_t space; /* the session's number of the space */
    ldr_call_t call;
} ldr_visit_t;

larder_status_t ldr_visit_begin(ldr_visit_t *v, ldr_remote_t *r,
                                const ldr_space_ref_t *space,
                                const ldr_stop_t *stop);
/* Sends what lies in the buffer; E_...: no reply, or a failed one. */
larder_status_t ldr_visit_call(ldr_visit_t *v, uint16_t opcode, size_t bytes);
/* st: what became of the daemon, as ldr_visit_call() and the like gave it. */
void ldr_visit_end(ldr_visit_t *v, larder_status_t st);

/* An item that was not carried out: a miss with its cause, or the status. */
void ldr_item_refuse(larder_op_t kind, larder_item_t *item,
                     larder_status_t why);
/* A batch that did not get as far as its items. */
void ldr_op_refuse(ldr_op_t *op, larder_status_t why);

/* Rows of names or saves, behind a batch's head. */
void ldr_row_name(uint8_t *at, const larder_item_t *item, uint64_t room);
/* What the daemon shall know of a batch of GET, LEASE or EXISTS. */
uint32_t ldr_batch_flags(const ldr_visit_t *v, const ldr_op_t *op);
ldr_save_row_t ldr_row_save(const larder_item_t *item, size_t length);

/* What came of a stage of match's chunks: as many as `chunks` are held, with so
 * many bytes. A deadline or a daemon that died ends a prefix like any cause. */
larder_status_t ldr_staged(larder_status_t st, larder_cause_t cause,
                           uint32_t chunks, uint64_t bytes,
                           larder_match_t *match);

/* Tells the daemon that these shards' bytes were wrong. */
void ldr_report(ldr_visit_t *v, larder_item_t *const *items, uint32_t count);
