/*
 * Sessions with another node: who we are (hello.c), when to try and when not
 * (breaker.c), who connects (connect.c), and calls (call.c). A row of the table
 * ldr_links_t has the sessions and moves frames: pool.c over a transport's
 * streams, the client's shm.c through shared memory.
 *
 * Nothing here knows a handle or a node, so that a handle can hold a session to
 * a daemon, and a node one to another node.
 *
 * The breaker. A call that could not connect, or was not answered in time,
 * opens it for a while: calls are then refused at once. When the time is over
 * one call may try (half-open); what becomes of it closes the breaker or opens
 * it again. So a node that is down or stopped costs one deadline per pause.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/log.h"
#include "base/options.h"
#include "base/wait.h"
#include "larder/larder.h"
#include "net/auth.h"
#include "net/transport.h"
#include "wire/wire.h"

/* The daemon answers by the deadline; its answer is on its way a bit longer. */
#define LDR_GRACE_NS 3000000u
/* How long a wait goes on before it looks for cancels and dead daemons. */
#define LDR_LOOK_NS 10000000u
/* A daemon that says nothing for so long while it is asked is not well. */
#define LDR_SICK_NS 20000000u

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

    /* The links' */
    uint64_t id;
    uint64_t sent_ns;
    bool done;
    bool sleeps; /* its thread waits for `wake` */
    pthread_cond_t wake;
    struct ldr_call *next;
} ldr_call_t;

/* A session with the daemon; the beginning of what a row has for one. */
struct ldr_link {
    ldr_remote_t *remote;
    uint64_t epoch;
    uint64_t features; /* that both sides have */
    bool sick; /* atomic: somebody waited for it in vain, see LDR_SICK_NS */
    pthread_mutex_t space_lock; /* never held across a call */
    struct {
        uint64_t uid;
        uint32_t number;
    } * spaces; /* by slot */
    uint32_t space_capacity;
};

/* How a daemon knows a space, kept by value: requests and leases may outlive
 * the space's handle. */
typedef struct ldr_space_ref {
    uint64_t uid;  /* of this space alone, for ever */
    uint32_t slot; /* its place in a session's table */
    uint32_t shards;
    const char *tenant; /* between nodes: whose it is; NULL: the session's */
    uint8_t id[LDR_WIRE_ID_BYTES], check[LDR_WIRE_ID_BYTES];
    uint8_t key[LDR_WIRE_KEY_BYTES]; /* the tenant's, for the shared tier */
    char label[LARDER_LABEL_MAX + 1];
} ldr_space_ref_t;

/* A way to have sessions. */
typedef struct ldr_links {
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
    void (*connect)(ldr_remote_t *r);
    /* One request and its reply. E_OFFLINE, E_DEADLINE, E_CANCELED: there is
     * none, and none will touch the buffer. */
    larder_status_t (*call)(ldr_link_t *link, ldr_call_t *call,
                            const ldr_stop_t *stop);
    /* Whether the daemon has been heard of since then. */
    bool (*heard)(ldr_remote_t *r, uint64_t since_ns);
} ldr_links_t;

extern const ldr_links_t ldr_links_pool; /* pool.c */

/* What sessions have of the world around them. */
typedef struct ldr_net_env {
    ldr_log_t log;
    const ldr_clock_t *clock;
    const ldr_threads_t *threads;
    const ldr_transport_ops_t *transport; /* NULL: as the options say */
    uint64_t seed;                        /* of chance */
    /* What is said on each new session after the hello; NULL: nothing. In the
     * connecting thread; without OK the session is closed. */
    larder_status_t (*meet)(void *arg, ldr_link_t *link,
                            const ldr_stop_t *stop);
    void *meet_arg;
} ldr_net_env_t;

struct ldr_remote {
    ldr_options_t options;
    ldr_log_t log;
    const ldr_clock_t *clock;
    const ldr_threads_t *threads;
    const ldr_transport_ops_t *transport; /* the pool's */
    const ldr_links_t *links;
    void *state; /* the links' */
    larder_status_t (*meet)(void *arg, ldr_link_t *link,
                            const ldr_stop_t *stop);
    void *meet_arg;

    /* The breaker */
    pthread_mutex_t breaker_lock;
    bool open; /* atomic; the rest is looked at with the lock */
    uint64_t open_ns, open_until_ns;
    uint64_t backoff_ns; /* the last pause after a refused connection */
    bool trying;         /* somebody is half-way through */
    larder_status_t why; /* what refused calls are told */
    char why_text[512];
    ldr_rand_t rand;

    /* Connecting */
    pthread_mutex_t connect_lock;
    pthread_cond_t connect_wake;
    pthread_t connector;
    bool connect_runs;
    bool connect_wanted;
    bool connect_stop; /* atomic: the handle is being closed */

    pthread_mutex_t buffer_lock;
    ldr_buffer_t *buffers;

    /* Atomic */
    uint64_t calls, offline, breaker, connects, late, crc_failures;
    uint64_t denied, version; /* connections refused */
};

/* Makes what is needed to have sessions; nothing is connected yet. options are
 * copied. The end: waits for what is under way, and frees it. */
larder_status_t ldr_remote_create(const ldr_options_t *options,
                                  const ldr_links_t *links,
                                  const ldr_net_env_t *env,
                                  ldr_remote_t **remote_p);
void ldr_remote_destroy(ldr_remote_t *r);

/* Before asking again for what had no room. */
static inline void ldr_nap(const ldr_remote_t *r, uint64_t ns)
{
    r->threads->sleep(r->threads->arg, ns);
}

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

/* ---- the breaker (breaker.c) ---- */

/* OK, or what to tell the caller at once. After OK the call must end with one
 * of the next three, with *trying_p as it was set here. */
larder_status_t ldr_breaker_enter(ldr_remote_t *r, bool *trying_p);
/* Whether a call would be let through now. */
bool ldr_breaker_shut(ldr_remote_t *r);
void ldr_breaker_good(ldr_remote_t *r);               /* it has answered */
void ldr_breaker_leave(ldr_remote_t *r, bool trying); /* neither good nor bad */
/* It could not be reached (st, with the thread's error text), or, late, did
 * not answer in time. */
void ldr_breaker_bad(ldr_remote_t *r, bool trying, larder_status_t st,
                     bool late);

/* ---- the connecting thread (connect.c) ---- */

/* Has the row's connect() called soon. With the row's lock or without. */
larder_status_t ldr_connect_want(ldr_remote_t *r);
/* What bounds one connection: timeout_ms, and the end of the handle. */
ldr_stop_t ldr_connect_stop(const ldr_remote_t *r);

/* ---- hello (hello.c) ---- */

/* Says hello and proves who we are; sets the link's epoch. The
 * stream is connected, and set up if it is TLS. */
larder_status_t ldr_hello_say(ldr_remote_t *r, ldr_stream_t *stream,
                              const ldr_stop_t *stop, ldr_link_t *link);
/* After -EAGAIN: waits for what the stream wants. 0; -ETIMEDOUT, -ECANCELED,
 * or another negative errno. */
int ldr_stream_wait(const ldr_remote_t *r, ldr_stream_t *s,
                    const ldr_stop_t *stop);
/* Why there is no session: a status with its text, from such an errno. */
larder_status_t ldr_lost(const ldr_remote_t *r, int error);
/* Sets a failed reply's text as the thread's error text. */
larder_status_t ldr_reply_failed(const ldr_frame_t *reply, const uint8_t *body);
void ldr_link_init(ldr_link_t *link, ldr_remote_t *r);
void ldr_link_destroy(ldr_link_t *link);

/* ---- using a session (call.c) ---- */

ldr_buffer_t *ldr_buffer_take(ldr_remote_t *r);
void ldr_buffer_give(ldr_remote_t *r, ldr_buffer_t *b); /* NULL is fine */

/* When to give up waiting for an answer. */
static inline uint64_t ldr_last_ns(const ldr_stop_t *stop)
{
    return stop->deadline_ns >= UINT64_MAX - LDR_GRACE_NS
               ? UINT64_MAX
               : stop->deadline_ns + LDR_GRACE_NS;
}

/* A link and a buffer for a call; the breaker is entered. Ends with
 * ldr_talk_end(), whatever came of it. */
typedef struct ldr_talk {
    ldr_remote_t *remote;
    ldr_link_t *link;
    ldr_stop_t stop;
    bool trying;    /* half-open: this call decides about the breaker */
    bool heard;     /* the daemon has answered something */
    uint32_t space; /* the session's number of the space */
    ldr_call_t call;
} ldr_talk_t;

/* LARDER_OK, or why it has to stop now. */
static inline larder_status_t ldr_talk_stopped(const ldr_talk_t *v)
{
    return ldr_stopped(v->remote->clock, &v->stop);
}

larder_status_t ldr_talk_begin(ldr_talk_t *v, ldr_remote_t *r,
                               const ldr_space_ref_t *space,
                               const ldr_stop_t *stop);
/* Sends what lies in the buffer; E_...: no reply, or a failed one. */
larder_status_t ldr_talk_call(ldr_talk_t *v, uint16_t opcode, size_t bytes);
/* st: what became of the daemon, as ldr_talk_call() and the like gave it. */
void ldr_talk_end(ldr_talk_t *v, larder_status_t st);
