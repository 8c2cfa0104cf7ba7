/* What the parts of the daemon know of each other. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/config.h"
#include "base/log.h"
#include "net/auth.h"
#include "net/transport.h"
#include "node/handover.h"
#include "node/node.h"
#include "server/admin.h"
#include "server/lobby.h"
#include "server/loop.h"
#include "server/metrics.h"
#include "server/server.h"
#include "server/monitor.h"
#include "wire/wire.h"

#define LDR_LISTENERS_MAX 17u /* all of option listen, and the unix socket */
#define LDR_REVOKES 256u

struct ldr_session;
struct ldr_request;
typedef struct ldr_server_loop ldr_server_loop_t;

/* A tenant as sessions see it: who may be it, and what it may use. Never
 * freed while the server runs; one that is gone from the configuration lets
 * nobody in any more. Under server->tenant_lock, except the atomics. The
 * server's session_count is the sum of all sessions, its bounce_bytes of
 * theirs. */
typedef struct ldr_server_tenant {
    ldr_tenant_config_t config;
    bool enabled;
    uint32_t number; /* the node's; LDR_NIL: not yet */
    unsigned index;  /* for the metrics */
    ldr_token_t tokens[LDR_TOKENS_MAX];
    unsigned token_count;
    uint64_t sessions;     /* let in, and not gone; tenant_lock */
    uint64_t bounce_bytes; /* atomic: of its sessions' bounce buffers */
    /* Under job_lock; waiting: under way, and may wait for a disk. */
    uint64_t jobs_queued;
    unsigned jobs_waiting;
    uint64_t job_turn; /* when one of its began: see the server's */
    /* Bytes that may move now, filled with time; below zero: wait. */
    int64_t bucket; /* atomic */
    uint64_t bucket_ns;
} ldr_server_tenant_t;

#define LDR_SERVER_TENANTS_MAX 1024u

/* Both may change at a reload. */
static inline uint64_t ldr_server_tenant_rate(const ldr_server_tenant_t *tenant)
{
    return __atomic_load_n(&tenant->config.rate, __ATOMIC_RELAXED);
}

static inline uint64_t ldr_server_tenant_connections(
    const ldr_server_tenant_t *tenant)
{
    return __atomic_load_n(&tenant->config.connections, __ATOMIC_RELAXED);
}

typedef struct ldr_listener {
    ldr_watch_t watch; /* of its fd, which is from's too */
    ldr_listening_t from;
    ldr_server_loop_t *home;
    bool local;
    bool unlinked;     /* its socket's file is gone */
    uint64_t pause_ns; /* not watched until then; 0: it is */
    char text[320];
} ldr_listener_t;

#define LDR_LOOP_RECENT 4u

/* A tenant's share of a loop: turn.c. */
typedef struct ldr_share {
    uint64_t round;                   /* that used_ns is of */
    int64_t used_ns;                  /* of its turn, and beyond it */
    uint64_t ring_round;              /* in which a ring of its was read */
    struct ldr_session *first, *last; /* that wait for it */
    struct ldr_share *next;           /* of those with such sessions */
    bool listed;
} ldr_share_t;

struct ldr_server_loop {
    ldr_loop_t loop; /* first: the hooks find the rest by it */
    ldr_server_t *server;
    struct ldr_session *sessions;
    struct ldr_session *hot; /* whose rings are polled */
    struct ldr_session
        *recent[LDR_LOOP_RECENT]; /* who wrote to a ring lately */
    unsigned recent_next;
    uint64_t round;      /* of its turns */
    ldr_share_t *shares; /* by the tenant's index, then who is none yet */
    ldr_share_t *turns;  /* for which sessions wait */
    struct ldr_request *free_requests;
    unsigned free_count;
    uint8_t *reply;    /* LDR_FRAME_BYTES + LDR_BODY_MAX: being composed */
    uint8_t *in;       /* as much: a message just read from a ring */
    uint8_t *dump;     /* payload that nobody wants */
    uint64_t due_ns;   /* the next time something is due */
    uint64_t check_ns; /* debug builds: the next ldr_sessions_check() */
    uint64_t asked_ns; /* atomic: when a request or a session came last */
    uint64_t revoke_seen;
    bool drop;       /* all sessions, at the end */
    ldr_task_t look; /* the server's revocations, or its end */
};

struct ldr_server {
    ldr_config_t *config;        /* as it was at open: what loops look at */
    ldr_config_t *latest;        /* with what was reloaded; the main thread's */
    pthread_mutex_t config_lock; /* for others who look at the latest */
    bool paused; /* by an operator, until one resumes it. config_lock */
    ldr_log_t log;
    const ldr_clock_t *clock;
    ldr_node_t *node;
    struct ldr_cluster *cluster;   /* NULL: the node is alone */
    struct ldr_peer_server *peers; /* likewise */
    ldr_tls_t *peer_tls;           /* NULL: members come without */
    ldr_server_metrics_t *metrics;
    ldr_monitor_t *monitor;
    ldr_admin_t *admin;
    ldr_tls_t *tls;
    struct ldr_trace *trace;     /* NULL: none */
    struct ldr_events *events;   /* NULL: none are published */
    struct ldr_catalog *catalog; /* NULL: nobody wants descriptions */
    uint64_t begin_ns;

    pthread_mutex_t tenant_lock;
    ldr_server_tenant_t *tenants[LDR_SERVER_TENANTS_MAX];
    unsigned tenant_count; /* jobs look at it without the lock */

    pthread_mutex_t stage_lock;
    struct ldr_stage *stages[256]; /* by token: stage.h */

    ldr_listener_t listeners[LDR_LISTENERS_MAX];
    unsigned listener_count;
    int ports[LDR_LISTENERS_MAX]; /* bound: of option listen, in its order */
    unsigned port_count;
    int admin_fd;                        /* likewise; -1: none */
    bool open_logged;                    /* the main thread's */
    char socket_path[LDR_UNIX_PATH_MAX]; /* "": none */

    ldr_server_loop_t *loops;
    unsigned loop_count;
    ldr_lobby_t *lobbies[2]; /* who is not authenticated: tcp, unix socket */
    uint64_t sessions_max;   /* option sessions, or what files allow */
    uint64_t session_count;  /* let in; tenant_lock */
    uint64_t opened_seen;    /* the program's: see ldr_server_is_idle() */
    uint64_t bounce_bytes;   /* atomic: of all bounce buffers */
    uint64_t request_count;  /* atomic: under way */
    uint64_t next_epoch;     /* atomic; begins at random */
    bool draining;           /* atomic: nobody new comes in */

    /* Extents the node wants back: a ring of the last ones. */
    pthread_mutex_t revoke_lock;
    struct {
        uint32_t extent, generation;
    } revokes[LDR_REVOKES];
    uint64_t revoke_count;

    /* Jobs */
    pthread_mutex_t job_lock;
    pthread_cond_t job_wake;
    struct ldr_request *job_head, **job_end;
    uint64_t job_queued;
    uint64_t job_turn;                 /* jobs that began so far */
    unsigned job_waiting, job_flushes; /* under way: that may wait for a disk */
    bool job_stop;
    pthread_t job_threads[64];
    unsigned job_count, job_ended;

    int end_fd; /* readable: it wants to end */
    ldr_task_t unlisten;
    bool takeover_asked; /* atomic */
    int takeover_fd;     /* who waits for the end; -1: nobody */
    bool hands_over;     /* and takes the memory */
    ldr_frame_t takeover_frame;
    bool took_over;          /* from a daemon that was there */
    ldr_handover_t handover; /* what came from the daemon before, until open */
};

/* tenants.c */
larder_status_t ldr_server_tenants_load(ldr_server_t *server,
                                        const ldr_config_t *config);
/* Whether their files can be read. */
larder_status_t ldr_server_tenants_check(const ldr_config_t *config);
/* NULL: there is none of this name. */
ldr_server_tenant_t *ldr_server_tenant_find(ldr_server_t *server,
                                            const char *name);
/* Whether every user of this host may be tenant default by TCP, as long as that
 * has no token: where it is the only tenant, or the configuration says so.
 * Under tenant_lock. */
bool ldr_server_tenants_open(const ldr_server_t *server);
/* Whether there is more than one that could be kept out by another. */
static inline bool ldr_server_tenants_several(const ldr_server_t *server)
{
    return __atomic_load_n(&server->tenant_count, __ATOMIC_RELAXED) > 1;
}
/* One session more, or LARDER_E_LIMIT with its text. admin: of the operator's,
 * for whom there are some more. */
larder_status_t ldr_server_tenant_enter(ldr_server_t *server,
                                        ldr_server_tenant_t *tenant,
                                        bool admin);
void ldr_server_tenant_leave(ldr_server_t *server, ldr_server_tenant_t *tenant);
/* A bounce buffer of so many bytes more for one of its sessions, and one less;
 * false: there are as many as there may be. */
bool ldr_server_tenant_bounce(ldr_server_t *server, ldr_server_tenant_t *tenant,
                              uint64_t bytes);
void ldr_server_tenant_bounce_gone(ldr_server_t *server,
                                   ldr_server_tenant_t *tenant, uint64_t bytes);
/* Whether it may move bytes now, and that it did. */
bool ldr_server_tenant_may(ldr_server_tenant_t *tenant, uint64_t now_ns);
larder_status_t ldr_server_tenant_busy(
    const ldr_server_tenant_t *tenant); /* with its text */
void ldr_server_tenant_moved(ldr_server_tenant_t *tenant, uint64_t bytes);

/* jobs.c: what waits for disks, in threads of its own. */
larder_status_t ldr_jobs_start(ldr_server_t *server, unsigned count);
/* False: some hang in a disk until the deadline; all that they can touch must
 * stay. */
bool ldr_jobs_stop(ldr_server_t *server, uint64_t deadline_ns);
/* False: too many wait, or the daemon is ending. Else the request's done task
 * follows in its loop. */
bool ldr_job(struct ldr_request *r);
/* With job_lock: whether what jobs.c says of its list and counts is so. */
bool ldr_jobs_check(const ldr_server_t *server);
/* Answers a request whose job was not taken, or not run. */
void ldr_job_refuse(struct ldr_request *r);

/* server.c */
/* An operator says so; resumed, the node is as the configuration has it. */
void ldr_server_pause(ldr_server_t *server, bool paused);
bool ldr_server_paused(ldr_server_t *server);

/* verbs.c */
#define LDR_PAUSED_TEXT "paused" /* what a paused daemon answers to a ping */
/* Says a verb to the daemon behind a fresh connection, which stays open. */
larder_status_t ldr_admin_ask(int fd, const char *socket_path, const char *verb,
                              char *text, size_t size, uint64_t deadline_ns);

/* takeover.c */
/* Asks the daemon on the same socket to hand over, and waits for it. */
larder_status_t ldr_server_take_over(ldr_server_t *server);
/* What can be seen to be wrong before the daemon at the other end of fd is
 * asked to end (takeover_check.c). */
larder_status_t ldr_takeover_check(const ldr_config_t *config, int fd);
/* Somebody asks this one. */
void ldr_takeover_begin(struct ldr_request *r, bool hands_over);
/* The node is closed: tells who asked for it, and gives it what it left. */
void ldr_server_handed_over(ldr_server_t *server, const larder_stats_t *stats,
                            const ldr_handover_t *h, larder_status_t st);

/* ports.c */
/* Binds all of them, before anything else is opened. E_LOCKED: one is in use.
 */
larder_status_t ldr_ports_bind(ldr_server_t *server);
/* Lets connections come at the i-th address of option listen; the caller's
 * descriptor, or -errno. */
int ldr_ports_listen(ldr_server_t *server, unsigned i);
/* Says why nothing answers at the admin address, which nobody asked for. */
void ldr_ports_no_admin(ldr_server_t *server, int error);
/* What is wrong with an address that cannot be listened on, as a failure. */
larder_status_t ldr_ports_refuse(const char *option, const char *address,
                                 int error);
/* Those that are still nobody's. */
void ldr_ports_close(ldr_server_t *server);

/* peer_listen.c */
larder_status_t ldr_peers_listen(ldr_server_t *server);
void ldr_peers_unlisten(ldr_server_t *server);

/* listen.c */
larder_status_t ldr_listen_all(ldr_server_t *server);
/* What of it can be wrong whoever listens there now. */
larder_status_t ldr_listen_check(const ldr_config_t *config);
/* LARDER_E_LOCKED: another daemon listens on the unix socket. */
larder_status_t ldr_listen_probe(const ldr_server_t *server);
/* Warns, once, if every user of this host gets in and nobody chose that. */
void ldr_listen_judge(ldr_server_t *server);
void ldr_listen_stop(ldr_server_t *server);
uint64_t ldr_listen_tick(ldr_server_loop_t *home, uint64_t now_ns);

/* The loops (loops.c). Open makes as many as the options say, start begins
 * their threads, close ends their sessions and joins them; what was not made or
 * begun is left out. */
larder_status_t ldr_server_loops_open(ldr_server_t *server);
larder_status_t ldr_server_loops_start(ldr_server_t *server);
void ldr_server_loops_close(ldr_server_t *server);
/* The node wants an extent back: every session that has it mapped is asked.
 * With the node's lock; the server may not know the node yet. */
void ldr_server_revoke(void *arg, uint32_t extent, uint32_t generation);

/* Verbs about the cluster (cluster.c): whether this is one; what came of it in
 * *st_p, with a text. Waits for nobody. */
bool ldr_cluster_verb(ldr_server_t *server, const char *verb, char *text,
                      size_t size, larder_status_t *st_p);

/* The certificates that members show each other, as they are now (cluster.c).
 * *tls_p NULL: none. */
larder_status_t ldr_cluster_tls(const ldr_options_t *o, ldr_tls_t **tls_p);
/* ... read again. */
void ldr_cluster_tls_renew(ldr_server_t *server);

/* The end of a member (cluster.c). First it leaves: the source and the other
 * members are told, so that they neither ask it nor save to it. Once no request
 * is under way it hands on what only it has. */
void ldr_cluster_depart(ldr_server_t *server, uint64_t deadline_ns);
void ldr_cluster_hand_on(ldr_server_t *server, uint64_t deadline_ns);

static inline uint64_t ldr_server_now(const ldr_server_t *server)
{
    return ldr_now_ns(server->clock);
}

#define LDR_PARK_NS 1000000u /* between two tries of what waits for room */

/* Something of the loop is due then. */
static inline void ldr_server_due(ldr_server_loop_t *home, uint64_t at_ns)
{
    if (at_ns < home->due_ns) {
        home->due_ns = at_ns;
    }
}
