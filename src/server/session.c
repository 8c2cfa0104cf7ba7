/* The life of sessions; session.h says what holds of them. */
#include "server/session.h"

#include <netdb.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/log.h"
#include "base/mem.h"
#include "node/promise.h"

/* ---- in ---- */

static void name_local(ldr_session_t *s)
{
    snprintf(s->from, sizeof(s->from), "unix uid %u pid %d",
             (unsigned)s->peer.uid, (int)s->peer.pid);
}

static void name_tcp(ldr_session_t *s)
{
    struct sockaddr_storage a;
    socklen_t length = sizeof(a);
    char host[48] = "?", port[8] = "?";

    if (getpeername(s->socket.stream.fd, (struct sockaddr *)&a, &length) == 0) {
        getnameinfo((struct sockaddr *)&a, length, host, sizeof(host), port,
                    sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV);
    }
    s->loopback = strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0 ||
                  strncmp(host, "::ffff:127.", 11) == 0;
    snprintf(s->from, sizeof(s->from), "tcp %s:%s", host, port);
}

static void again(ldr_task_t *task)
{
    ldr_session_t *s =
        (ldr_session_t *)((char *)task - offsetof(ldr_session_t, again));

    if (s->state == LDR_SESSION_NEW || s->state == LDR_SESSION_OPEN) {
        ldr_session_read(s);
    }
}

static void flush(ldr_task_t *task)
{
    ldr_session_t *s =
        (ldr_session_t *)((char *)task - offsetof(ldr_session_t, flush));

    if (s->state == LDR_SESSION_NEW || s->state == LDR_SESSION_OPEN) {
        ldr_session_send(s);
    }
}

static void process_gone(ldr_watch_t *watch, uint32_t events);
static void bury(ldr_task_t *task);

static ldr_session_t *session_new(ldr_server_loop_t *home,
                                  const ldr_arrival_t *arrival)
{
    ldr_server_t *server = home->server;
    ldr_session_t *s = ldr_alloc(sizeof(*s));

    if (s == NULL) {
        return NULL;
    }
    s->buffer = ldr_alloc(LDR_IN_BYTES);
    if (s->buffer == NULL) {
        ldr_free(s);
        return NULL;
    }
    s->server = server;
    s->home = home;
    s->local = arrival->local;
    s->begin_ns = arrival->begin_ns;
    s->stranger = arrival->stranger;
    s->epoch = __atomic_add_fetch(&server->next_epoch, 1, __ATOMIC_RELAXED);
    s->watch =
        (ldr_watch_t){.fd = arrival->stream.fd, .ready = ldr_session_readable};
    s->pid_watch = (ldr_watch_t){.fd = -1, .ready = process_gone};
    s->bell.fd = -1;
    s->peer.pid_fd = -1;
    s->peer.uid = (uid_t)-1;
    s->hold_free = LDR_NIL;
    s->socket.end = &s->socket.head;
    s->rings.end = &s->rings.head;
    s->again.run = again;
    s->flush.run = flush;
    s->bury.run = bury;
    return s;
}

/* It is in, or goes: before its socket is closed. */
static void leave_lobby(ldr_server_t *server, bool local,
                        ldr_stranger_t *stranger)
{
    ldr_metrics_level(server->metrics, LDR_LEVEL_CONNECTING, -1);
    ldr_lobby_leave(server->lobbies[local], stranger);
}

bool ldr_session_accept(ldr_server_loop_t *home, const ldr_arrival_t *arrival)
{
    ldr_server_t *server = home->server;
    ldr_session_t *s = session_new(home, arrival);
    ldr_stream_t stream = arrival->stream;
    int fd = stream.fd;
    bool local = arrival->local;

    ldr_metrics_level(server->metrics, LDR_LEVEL_CONNECTING, 1);
    if (s == NULL) {
        leave_lobby(server, local, arrival->stranger);
        ldr_stream_close(&stream);
        ldr_metrics_refused(server->metrics, LDR_REFUSAL_MEMORY);
        return false;
    }
    s->next = home->sessions;
    if (s->next != NULL) {
        s->next->prev = s;
    }
    home->sessions = s;
    larder_status_t st = LARDER_OK;
    s->socket.stream = stream;
    if (local) {
        ldr_socket_bound(fd); /* what moves bytes goes by ring */
        /* Who cannot be known is nobody. */
        if (ldr_peer_of(fd, &s->peer) != 0) {
            s->peer.uid = (uid_t)-1;
            st = LARDER_E_DENIED;
        }
        s->admin = s->peer.uid == geteuid() || s->peer.uid == 0;
        s->shaken = true;
        name_local(s);
    } else {
        ldr_socket_tune(fd, server->config->options.congestion);
        s->shaken = server->tls == NULL;
        name_tcp(s);
    }
    if (s->peer.pid_fd >= 0) {
        s->pid_watch.fd = s->peer.pid_fd;
        if (!ldr_loop_watch(&home->loop, &s->pid_watch, EPOLLIN)) {
            s->pid_watch.fd = -1;
            st = LARDER_E_NO_MEMORY;
        }
    }
    if (st != LARDER_OK || !ldr_loop_watch(&home->loop, &s->watch, EPOLLIN)) {
        ldr_metrics_refused(server->metrics, LDR_REFUSAL_MEMORY);
        ldr_session_drop(s);
        return false;
    }
    if (!ldr_lobby_listen(server->lobbies[local], s->stranger, fd)) {
        ldr_session_drop(s);
        return false;
    }
    ldr_server_due(home,
                   s->begin_ns + server->config->options.hello_ms * 1000000u);
    return true;
}

ldr_transport_t ldr_session_transport(const ldr_session_t *s)
{
    if (s->local) {
        return s->strict_transport ? LDR_TRANSPORT_STRICT : LDR_TRANSPORT_SHM;
    }
    return s->server->tls != NULL ? LDR_TRANSPORT_TLS : LDR_TRANSPORT_TCP;
}

larder_status_t ldr_session_enter(ldr_session_t *s, ldr_server_tenant_t *tenant)
{
    ldr_server_metrics_t *m = s->server->metrics;
    larder_status_t st = ldr_server_tenant_enter(s->server, tenant, s->admin);

    LDR_ASSERT(s->state == LDR_SESSION_NEW && s->tenant == NULL);
    LDR_ASSERT(!s->waits_turn); /* its share becomes another */
    if (st != LARDER_OK) {
        return st;
    }
    s->tenant = tenant;
    s->state = LDR_SESSION_OPEN;
    s->strict_transport = s->local && s->server->config->options.isolation ==
                                          LDR_ISOLATION_STRICT;
    leave_lobby(s->server, s->local, s->stranger);
    s->stranger = NULL;
    ldr_metrics_session(m, ldr_session_transport(s), tenant->number, 1);
    ldr_log(&s->server->log, LARDER_LOG_DEBUG, "%s: in as tenant '%s'", s->from,
            tenant->config.name);
    return LARDER_OK;
}

/* ---- out ---- */

static void drop_requests(ldr_session_t *s)
{
    if (s->in != NULL) {
        ldr_request_free(s->in);
        s->in = NULL;
    }
    if (s->begun != NULL) { /* it has taken nothing that is to be given back */
        ldr_request_free(s->begun);
        s->begun = NULL;
    }
    if (s->put != NULL) {
        ldr_request_t *r = s->put;

        s->put = NULL;
        r->status = LARDER_E_CANCELED;
        ldr_save_undo(r);
        if (r->parked) {
            ldr_request_unwait(r);
            r->parked = false;
        }
        ldr_request_free(r);
    }
    while (s->waiting != NULL) {
        ldr_request_t *r = s->waiting;
        bool loads =
            r->frame.opcode == LDR_OP_LEASE || r->frame.opcode == LDR_OP_GET;

        ldr_request_unwait(r);
        LDR_ASSERT(s->requests > 0);
        s->requests--;
        r->session = NULL;
        if (r->ask != NULL) {
            ldr_ask_expire(r);
        } else if (r->job == NULL && loads) {
            ldr_loads_expire(r, LARDER_E_CANCELED);
        } else if (r->frame.opcode == LDR_OP_STAGE) {
            ldr_stage_expire(r, LARDER_E_CANCELED);
        } else if (r->job == NULL) {
            ldr_request_free(r); /* a RESERVE that waits has nothing yet */
        }
    }
    ldr_session_unqueue(s);
}

/* Nobody speaks any more; the process may live. */
static void hang_up(ldr_session_t *s)
{
    ldr_server_metrics_t *m = s->server->metrics;

    if (s->promises) {
        ldr_promise_owner_gone(s->server->node, s->epoch);
        ldr_server_due(s->home, ldr_promise_expire(s->server->node));
    }
    ldr_turn_quit(s);
    drop_requests(s);
    LDR_ASSERT(s->requests == 0);
    ldr_session_detach(s);
    ldr_loop_unwatch(&s->home->loop, &s->watch);
    if (s->tenant != NULL) {
        ldr_metrics_session(m, ldr_session_transport(s), s->tenant->number, -1);
    } else {
        leave_lobby(s->server, s->local, s->stranger);
        s->stranger = NULL;
    }
    if (s->awaited) {
        close(s->socket.stream
                  .fd); /* not shut down: the other descriptor answers */
    } else {
        ldr_stream_close(&s->socket.stream);
    }
    s->watch.fd = -1;
}

static void bury(ldr_task_t *task)
{
    ldr_session_t *s =
        (ldr_session_t *)((char *)task - offsetof(ldr_session_t, bury));

    /* Tasks of its own may have been posted behind this one. */
    if (ldr_loop_posted(&s->home->loop, &s->again) ||
        ldr_loop_posted(&s->home->loop, &s->flush)) {
        ldr_loop_post(&s->home->loop, &s->bury);
        return;
    }
    LDR_ASSERT(s->state == LDR_SESSION_CLOSED && s->requests == 0);
    LDR_ASSERT(s->hold_count == 0 && s->map_count == 0);
    LDR_ASSERT(!s->hot && !s->waits_turn && s->socket.head == NULL);
    ldr_free(s->buffer);
    ldr_free(s->spaces);
    ldr_free(s->holds);
    ldr_free(s->maps);
    ldr_bounce_destroy(s->bounce);
    ldr_free(s);
}

/* The end of it. */
static void close_session(ldr_session_t *s)
{
    if (s->lives_on) {
        ldr_holds_stay(s);
    }
    ldr_holds_give_all(s);
    ldr_session_unmap_all(s);
    if (s->pid_watch.fd >= 0) {
        ldr_loop_unwatch(&s->home->loop, &s->pid_watch);
        s->pid_watch.fd = -1;
    }
    if (s->peer.pid_fd >= 0) {
        close(s->peer.pid_fd);
        s->peer.pid_fd = -1;
    }
    if (s->tenant != NULL) {
        ldr_server_tenant_leave(s->server, s->tenant);
    }
    if (s->prev != NULL) {
        LDR_ASSERT(s->prev->next == s);
        s->prev->next = s->next;
    } else {
        LDR_ASSERT(s->home->sessions == s);
        s->home->sessions = s->next;
    }
    if (s->next != NULL) {
        s->next->prev = s->prev;
    }
    s->state = LDR_SESSION_CLOSED;
    ldr_loop_post(&s->home->loop, &s->bury);
}

static void quarantine(ldr_session_t *s)
{
    s->state = LDR_SESSION_QUARANTINE;
    ldr_metrics_level(s->server->metrics, LDR_LEVEL_QUARANTINED, s->hold_count);
    ldr_log(&s->server->log,
            s->hold_count > 0 ? LARDER_LOG_INFO : LARDER_LOG_DEBUG,
            "%s: hung up while its process lives on with %u leases and %u "
            "mapped extents: they stay until it ends",
            s->from, s->hold_count, s->map_count);
}

static void session_end(ldr_session_t *s, const char *why, bool process_lives)
{
    LDR_DEBUG_ASSERT(ldr_loop_is_here(&s->home->loop));
    if (s->state == LDR_SESSION_CLOSED || s->ending) {
        return;
    }
    s->ending = true; /* until this is over */
    if (s->state != LDR_SESSION_QUARANTINE) {
        if (why == NULL && s->attached) {
            ldr_session_last_words(s);
        }
        if (why != NULL) {
            ldr_warn(&s->server->log, "%s: session ended: %s", s->from, why);
        }
        hang_up(s);
        /* Without a mapping it cannot touch what it holds. With that of a
         * bounce buffer it keeps its memory, but cannot touch the arena. */
        bool mapped = ldr_bounce_mapped(s->bounce);
        if (process_lives && s->peer.pid_fd >= 0 &&
            (s->map_count > 0 || mapped)) {
            if (mapped) {
                ldr_holds_give_all(s);
            }
            quarantine(s);
            s->ending = false;
            return;
        }
    } else if (process_lives) {
        s->ending = false;
        return;
    }
    if (s->state == LDR_SESSION_QUARANTINE) {
        ldr_metrics_level(s->server->metrics, LDR_LEVEL_QUARANTINED,
                          -(int64_t)s->hold_count);
        s->state = LDR_SESSION_OPEN; /* its holds count no more as such */
    }
    close_session(s);
}

void ldr_session_end(ldr_session_t *s, const char *why)
{
    session_end(s, why, true);
}

void ldr_session_drop(ldr_session_t *s)
{
    s->lives_on = true;
    session_end(s, NULL, false);
}

/* Whatever it held is nobody's now, even if a child of its still has the
 * socket: children do not inherit the mappings. */
static void process_gone(ldr_watch_t *watch, uint32_t events)
{
    ldr_session_t *s =
        (ldr_session_t *)((char *)watch - offsetof(ldr_session_t, pid_watch));

    (void)events;
    if (s->hold_count > 0) {
        ldr_metrics_event(s->server->metrics, LDR_EVENT_LEASES_ABANDONED,
                          s->hold_count);
    }
    ldr_metrics_event(s->server->metrics, LDR_EVENT_SESSIONS_DIED, 1);
    ldr_bounce_unmapped(s->bounce);
    session_end(s, NULL, false);
}

/* ---- what must hold ---- */

static bool queue_check(const ldr_out_t *out, ldr_out_t *const *head,
                        ldr_out_t *const *end, size_t *bytes)
{
    for (; out != NULL; head = &out->next, out = out->next) {
        *bytes += out->left;
    }
    return head == end && *head == NULL;
}

static bool session_check(const ldr_session_t *s)
{
    size_t bytes = 0, ring_bytes = 0;
    uint32_t waiting = 0;
    const ldr_request_t *before = NULL;

    for (const ldr_request_t *r = s->waiting; r != NULL; r = r->next_waiting) {
        if (r->session != s || r->idle || r->prev != before ||
            waiting++ == s->requests) {
            return false;
        }
        before = r;
    }
    return s->state != LDR_SESSION_CLOSED &&
           (s->state == LDR_SESSION_NEW) == (s->tenant == NULL) &&
           s->buffer_at <= s->buffer_have && s->buffer_have <= LDR_IN_BYTES &&
           queue_check(s->socket.head, &s->socket.head, s->socket.end,
                       &bytes) &&
           bytes == s->socket.bytes &&
           queue_check(s->rings.head, &s->rings.head, s->rings.end,
                       &ring_bytes) &&
           ring_bytes == s->rings.bytes && ldr_holds_check(s);
}

bool ldr_sessions_check(const ldr_server_loop_t *home)
{
    const ldr_session_t *before = NULL;
    unsigned idle = 0, hot = 0, polled = 0;

    for (const ldr_session_t *s = home->sessions; s != NULL; s = s->next) {
        if (s->home != home || s->prev != before || !session_check(s)) {
            return false;
        }
        hot += s->hot;
        before = s;
    }
    for (const ldr_session_t *s = home->hot; s != NULL; s = s->hot_next) {
        if (!s->hot || !s->attached || polled++ == hot) {
            return false;
        }
    }
    for (const ldr_request_t *r = home->free_requests; r != NULL;
         r = r->free_next) {
        if (!r->idle || idle++ == home->free_count) {
            return false;
        }
    }
    return hot == polled && idle == home->free_count && ldr_turns_check(home);
}

/* ---- time ---- */

/* What waits for room tries again, what is late ends. */
static uint64_t tick_requests(ldr_session_t *s, uint64_t now_ns)
{
    uint64_t next_ns = UINT64_MAX;
    ldr_request_t *next;

    for (ldr_request_t *r = s->waiting; r != NULL; r = next) {
        next = r->next_waiting;
        if (r->job != NULL) {
            continue;
        }
        if (r->deadline_ns <= now_ns) {
            ldr_request_expire(r, LARDER_E_DEADLINE);
            return now_ns; /* the list has changed: look at it again */
        }
        if (r->parked) {
            uint64_t again_ns = r->parked_ns + LDR_PARK_NS;

            if (again_ns <= now_ns) {
                r->parked_ns = now_ns;
                ldr_save_again(r);
                return now_ns;
            }
            next_ns = ldr_min64(next_ns, again_ns);
        }
        next_ns = ldr_min64(next_ns, r->deadline_ns);
    }
    return next_ns;
}

uint64_t ldr_session_tick(ldr_session_t *s, uint64_t now_ns)
{
    uint64_t next_ns = UINT64_MAX;

    if (s->state == LDR_SESSION_NEW && !s->awaited) {
        uint64_t hello_ns =
            s->begin_ns + s->server->config->options.hello_ms * 1000000u;

        if (now_ns >= hello_ns) {
            ldr_metrics_auth_fail(s->server->metrics, LDR_AUTH_FAIL_TIMEOUT);
            ldr_session_end(s, "it did not authenticate in time");
            return UINT64_MAX;
        }
        next_ns = hello_ns;
    }
    if (s->rings.head != NULL) {
        ldr_session_ring_send(s);
        if (s->rings.head != NULL) {
            next_ns = ldr_min64(next_ns, now_ns + LDR_PARK_NS);
        }
    }
    if (s->put != NULL && !s->put->parked && s->put->status == LARDER_OK) {
        if (s->put->deadline_ns <= now_ns) {
            ldr_put_late(s->put);
        } else {
            next_ns = ldr_min64(next_ns, s->put->deadline_ns);
        }
    }
    return ldr_min64(next_ns, tick_requests(s, now_ns));
}
