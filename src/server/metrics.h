/*
 * What the daemon counts. Any thread records, with relaxed atomic adds and no
 * lock; only one of the slowest operations takes a lock, briefly. Everything
 * is shown by way of the one table in base/figures.h.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/histogram.h"
#include "larder/larder.h"
#include "wire/wire.h"

#define LDR_METRICS_OPCODES 80u   /* 0 counts what is no opcode */
#define LDR_METRICS_TENANTS 4096u /* as many as a node has */
#define LDR_METRICS_SLOW 32u
#define LDR_METRICS_SLOW_S 600u /* how long a slow operation is remembered */
#define LDR_METRICS_STATUSES 128u

#define X(name, value, before, text)                                           \
    _Static_assert((value) < LDR_METRICS_OPCODES, "opcodes are counted");
LDR_OPCODE_MAP(X)
#undef X

/* How a session came: X(NAME, label) */
#define LDR_TRANSPORT_MAP(X)                                                   \
    X(SHM, "shm")                                                              \
    X(STRICT, "strict")                                                        \
    X(TCP, "tcp")                                                              \
    X(TLS, "tls")

/* Why a peer was not let in: X(NAME, label) */
#define LDR_AUTH_FAIL_MAP(X)                                                   \
    X(TOKEN, "token")             /* the proof was wrong */                    \
    X(TENANT, "tenant")           /* no such tenant */                         \
    X(UID, "uid")                 /* its uid may not be this tenant */         \
    X(CERTIFICATE, "certificate") /* none, or of nobody we know */             \
    X(TLS, "tls")                 /* the handshake failed */                   \
    X(TIMEOUT, "timeout")         /* said nothing in time */                   \
    X(BEFORE, "before")           /* asked for something before it was in */

/* Why a connection was refused or ended by us: X(NAME, label) */
#define LDR_REFUSAL_MAP(X)                                                     \
    X(SESSIONS, "sessions")         /* as many as there may be */              \
    X(STRANGERS, "unauthenticated") /* too many have not said who they are */  \
    X(QUOTA, "quota")               /* the tenant's connections */             \
    X(WINDOWS, "windows")           /* its bounce buffers, or all of them */   \
    X(DRAINING, "draining")         /* on the way down */                      \
    X(VERSION, "version")           /* no protocol version in common */        \
    X(NOT_LARDER, "not_larder")     /* the first bytes were something else */  \
    X(MALFORMED, "malformed")       /* a frame that cannot be */               \
    X(RING, "ring")                 /* a position or length that cannot be */  \
    X(SLOW, "slow")                 /* does not take its replies */            \
    X(MEMORY, "memory")             /* no memory or descriptors left */

/* How a request ended: X(NAME, label) */
#define LDR_OUTCOME_MAP(X)                                                     \
    X(OK, "ok")                                                                \
    X(MISS, "miss")                                                            \
    X(BUSY, "busy")     /* a limit or a queue was full */                      \
    X(LATE, "late")     /* deadline or cancel */                               \
    X(DENIED, "denied") /* not allowed, or not let in */                       \
    X(FAILED, "failed") /* everything else */

#define X(name, label) LDR_TRANSPORT_##name,
typedef enum ldr_transport {
    LDR_TRANSPORT_MAP(X) LDR_TRANSPORT_COUNT
} ldr_transport_t;
#undef X
#define X(name, label) LDR_AUTH_FAIL_##name,
typedef enum ldr_auth_fail {
    LDR_AUTH_FAIL_MAP(X) LDR_AUTH_FAIL_COUNT
} ldr_auth_fail_t;
#undef X
#define X(name, label) LDR_REFUSAL_##name,
typedef enum ldr_refusal { LDR_REFUSAL_MAP(X) LDR_REFUSAL_COUNT } ldr_refusal_t;
#undef X
#define X(name, label) LDR_OUTCOME_##name,
typedef enum ldr_outcome { LDR_OUTCOME_MAP(X) LDR_OUTCOME_COUNT } ldr_outcome_t;
#undef X

/* Levels that go up and down. */
typedef enum ldr_level {
    LDR_LEVEL_CONNECTING,   /* connections that are not authenticated yet */
    LDR_LEVEL_LEASES,       /* held by sessions */
    LDR_LEVEL_RESERVATIONS, /* held by sessions */
    LDR_LEVEL_QUARANTINED,  /* leases and reservations whose session is gone
                               while its process lives */
    LDR_LEVEL_JOBS_QUEUED,  /* operations that wait for a thread */
    LDR_LEVEL_JOBS_RUNNING,
    LDR_LEVEL_REPLY_BYTES,     /* in replies that peers did not take yet */
    LDR_LEVEL_REVOKES_PENDING, /* extents that sessions were asked to unmap */
    LDR_LEVEL_TRACE_ON,        /* 1 while requests are traced */
    LDR_LEVEL_SUBSCRIPTIONS,   /* to KV events */
    LDR_LEVEL_COUNT
} ldr_level_t;

typedef enum ldr_event {
    LDR_EVENT_SESSIONS_DIED,     /* sessions whose process was found gone */
    LDR_EVENT_LEASES_ABANDONED,  /* taken back from those; reservations too */
    LDR_EVENT_EXTENTS_RECLAIMED, /* extents that changed their tenant */
    LDR_EVENT_RELOADS,
    LDR_EVENT_RELOADS_FAILED,
    LDR_EVENT_CHECKSUM_MISMATCH, /* payload that did not match on arrival */
    LDR_EVENT_REPORTS,           /* shards that a client found wrong */
    LDR_EVENT_TRACE_WRITTEN,     /* requests: lines in the trace */
    LDR_EVENT_TRACE_REPEATED,    /* announced again */
    LDR_EVENT_TRACE_DROPPED,     /* left out */
    LDR_EVENT_KV_PUBLISHED,      /* KV events for routers */
    LDR_EVENT_KV_REPLAYED,       /* sent again, on request */
    LDR_EVENT_KV_DROPPED,        /* not published */
    LDR_EVENT_COUNT
} ldr_event_t;

/* One request that was answered. */
typedef struct ldr_request_note {
    uint16_t opcode;
    uint8_t transport;      /* ldr_transport_t */
    uint32_t tenant;        /* the node's number of it; LDR_NIL: none yet */
    uint32_t space;         /* the same; LDR_NIL: of none */
    larder_status_t status; /* of the reply */
    uint64_t bytes_in;      /* payload that came with it, or was committed */
    uint64_t bytes_out; /* payload that went with the reply, or was leased in
                           shared memory */
    uint64_t ns;        /* from its arrival to its reply */
} ldr_request_note_t;

typedef struct ldr_slow {
    uint64_t ns, bytes;
    uint64_t when_ms; /* since 1970 */
    uint16_t opcode;
    uint8_t transport;
    uint32_t tenant, space; /* the node's numbers; LDR_NIL: none */
    larder_status_t status;
} ldr_slow_t;

typedef struct ldr_tenant_count {
    uint64_t requests[LDR_OUTCOME_COUNT];
    uint64_t bytes_in, bytes_out;
    uint64_t throttled; /* requests made to wait by its rate */
    int64_t sessions;
} ldr_tenant_count_t;

typedef struct ldr_op_count {
    uint64_t outcomes[LDR_OUTCOME_COUNT];
    ldr_histogram_t latency;
} ldr_op_count_t;

typedef struct ldr_transport_count {
    uint64_t bytes_in, bytes_out;
    uint64_t opened;
    int64_t sessions;
} ldr_transport_count_t;

typedef struct ldr_server_metrics {
    const ldr_clock_t *clock;
    uint64_t start_ms;   /* since 1970 */
    char admin_url[320]; /* "": none. These two are set before it serves */
    bool admin_on;       /* it answers there */
    struct ldr_cluster *cluster; /* NULL: the node is alone. As these two */
    struct ldr_catalog *catalog; /* NULL: there is none. The same */
    ldr_op_count_t ops[LDR_METRICS_OPCODES];
    uint64_t statuses[LDR_METRICS_STATUSES]; /* [-status] of failed ones */
    ldr_transport_count_t transports[LDR_TRANSPORT_COUNT];
    uint64_t auth_fails[LDR_AUTH_FAIL_COUNT];
    uint64_t refusals[LDR_REFUSAL_COUNT];
    int64_t levels[LDR_LEVEL_COUNT];
    uint64_t events[LDR_EVENT_COUNT];
    /* By the node's number of the tenant; the last row is nobody's. */
    ldr_tenant_count_t tenants[LDR_METRICS_TENANTS + 1];

    uint64_t slow_floor_ns; /* what is quicker is none of the slowest */
    pthread_mutex_t slow_lock;
    ldr_slow_t slow[LDR_METRICS_SLOW]; /* the slowest first */
    unsigned slow_count;
} ldr_server_metrics_t;

/* False: no memory. */
bool ldr_metrics_create(const ldr_clock_t *clock,
                        ldr_server_metrics_t **metrics_p);
void ldr_metrics_destroy(ldr_server_metrics_t *m); /* NULL is fine */

static inline void ldr_count(uint64_t *counter, uint64_t n)
{
    __atomic_fetch_add(counter, n, __ATOMIC_RELAXED);
}

static inline ldr_tenant_count_t *ldr_metrics_tenant(ldr_server_metrics_t *m,
                                                     uint32_t tenant)
{
    return &m->tenants[tenant < LDR_METRICS_TENANTS ? tenant
                                                    : LDR_METRICS_TENANTS];
}

ldr_outcome_t ldr_metrics_outcome(larder_status_t status);
/* Enters it among the slowest, if it is. */
void ldr_metrics_slow(ldr_server_metrics_t *m, const ldr_request_note_t *r);

static inline void ldr_metrics_request(ldr_server_metrics_t *m,
                                       const ldr_request_note_t *r)
{
    ldr_op_count_t *op =
        &m->ops[r->opcode < LDR_METRICS_OPCODES ? r->opcode : 0];
    ldr_tenant_count_t *t = ldr_metrics_tenant(m, r->tenant);
    ldr_outcome_t outcome = r->status == LARDER_OK
                                ? LDR_OUTCOME_OK
                                : ldr_metrics_outcome(r->status);

    ldr_count(&op->outcomes[outcome], 1);
    ldr_histogram_add(&op->latency, r->ns);
    ldr_count(&t->requests[outcome], 1);
    if (r->status < 0 && -r->status < (int)LDR_METRICS_STATUSES) {
        ldr_count(&m->statuses[-r->status], 1);
    }
    if (r->bytes_in != 0) {
        ldr_count(&t->bytes_in, r->bytes_in);
        ldr_count(&m->transports[r->transport].bytes_in, r->bytes_in);
    }
    if (r->bytes_out != 0) {
        ldr_count(&t->bytes_out, r->bytes_out);
        ldr_count(&m->transports[r->transport].bytes_out, r->bytes_out);
    }
    if (r->ns > __atomic_load_n(&m->slow_floor_ns, __ATOMIC_RELAXED)) {
        ldr_metrics_slow(m, r);
    }
}

/* A session was let in (by = 1) or ended (by = -1). */
static inline void ldr_metrics_session(ldr_server_metrics_t *m,
                                       ldr_transport_t transport,
                                       uint32_t tenant, int by)
{
    __atomic_fetch_add(&m->transports[transport].sessions, by,
                       __ATOMIC_RELAXED);
    __atomic_fetch_add(&ldr_metrics_tenant(m, tenant)->sessions, by,
                       __ATOMIC_RELAXED);
    if (by > 0) {
        ldr_count(&m->transports[transport].opened, 1);
    }
}

/* The tenant's rate made a request wait. */
static inline void ldr_metrics_throttled(ldr_server_metrics_t *m,
                                         uint32_t tenant)
{
    ldr_count(&ldr_metrics_tenant(m, tenant)->throttled, 1);
}

static inline void ldr_metrics_auth_fail(ldr_server_metrics_t *m,
                                         ldr_auth_fail_t why)
{
    ldr_count(&m->auth_fails[why], 1);
}

static inline void ldr_metrics_refused(ldr_server_metrics_t *m,
                                       ldr_refusal_t why)
{
    ldr_count(&m->refusals[why], 1);
}

static inline void ldr_metrics_event(ldr_server_metrics_t *m, ldr_event_t event,
                                     uint64_t n)
{
    ldr_count(&m->events[event], n);
}

static inline void ldr_metrics_level(ldr_server_metrics_t *m, ldr_level_t level,
                                     int64_t by)
{
    __atomic_fetch_add(&m->levels[level], by, __ATOMIC_RELAXED);
}

/* Those of the last LDR_METRICS_SLOW_S seconds, slowest first; forgets older
 * ones. Gives their number. */
unsigned ldr_metrics_slowest(ldr_server_metrics_t *m,
                             ldr_slow_t out[LDR_METRICS_SLOW]);
