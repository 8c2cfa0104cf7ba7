/*
 * Frames by shared memory. In the session's loop only.
 *
 * What lies in a ring is the client's, and is refused where it cannot be. What
 * is ours: a session has rings exactly while it is attached; it is hot exactly
 * while it is in the loop's list of rings that are polled.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/mem.h"
#include "server/session.h"

/* A client that wrote so lately is at work: it copies. */
#define RECENT_NS 4000000u
#define ROUND_MAX 64u           /* messages of one session in a row */
#define ROUND_BYTES (64u << 10) /* and bytes: large ones cost more */

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* ---- who is polled ---- */

void ldr_session_warm(ldr_session_t *s)
{
    if (!s->hot && s->attached) {
        s->hot = true;
        s->hot_next = s->home->hot;
        s->home->hot = s;
    }
}

static void cool(ldr_session_t *s)
{
    ldr_session_t **link = &s->home->hot;

    while (s->hot && *link != NULL) {
        if (*link == s) {
            *link = s->hot_next;
            s->hot = false;
            return;
        }
        link = &(*link)->hot_next;
    }
    LDR_ASSERT(!s->hot && "who is hot is in the list");
}

/* It had its turn: all others come first now. */
static void last(ldr_session_t *s)
{
    ldr_session_t **link = &s->home->hot;

    if (s->hot && s->hot_next != NULL) {
        cool(s);
        while (*link != NULL) {
            link = &(*link)->hot_next;
        }
        *link = s;
        s->hot = true;
        s->hot_next = NULL;
    }
}

static void note_recent(ldr_session_t *s)
{
    ldr_server_loop_t *home = s->home;

    s->ring_used_ns = ldr_server_now(s->server);
    for (unsigned i = 0; i < LDR_LOOP_RECENT; i++) {
        if (home->recent[i] == s) {
            return;
        }
    }
    if (s->attached) {
        home->recent[home->recent_next++ % LDR_LOOP_RECENT] = s;
    }
}

static void forget_recent(ldr_session_t *s)
{
    for (unsigned i = 0; i < LDR_LOOP_RECENT; i++) {
        if (s->home->recent[i] == s) {
            s->home->recent[i] = NULL;
        }
    }
}

/* Whether one of them works where this loop runs: it cannot go on while the
 * loop polls there, for others or for itself. Where all CPUs are busy a loop is
 * woken on that of a client, and not always of the one who woke it. */
static bool is_beside(const ldr_server_loop_t *home)
{
    uint64_t now_ns = ldr_server_now(home->server);

    for (unsigned i = 0; i < LDR_LOOP_RECENT; i++) {
        const ldr_session_t *s = home->recent[i];

        if (s != NULL && now_ns - s->ring_used_ns < RECENT_NS &&
            ldr_ring_beside(&s->ring.in)) {
            return true;
        }
    }
    return false;
}

static void bell_rang(ldr_watch_t *watch, uint32_t events)
{
    ldr_session_t *s =
        (ldr_session_t *)((char *)watch - offsetof(ldr_session_t, bell));

    (void)events;
    ldr_ring_sleep_end(&s->ring.in);
    ldr_session_warm(s);
}

/* A client that does not take its replies gets no more work done. */
static bool is_full(const ldr_session_t *s)
{
    return s->rings.head != NULL || s->requests >= LDR_SESSION_REQUESTS ||
           s->begun != NULL;
}

/* Takes what its ring holds, if it is its tenant's turn. */
static ldr_loop_found_t poll_one(ldr_session_t *s)
{
    if (is_full(s) || !ldr_ring_ready(&s->ring.in)) {
        return LDR_LOOP_COLD;
    }
    if (!ldr_turn_ring(s)) {
        return LDR_LOOP_WARM;
    }
    uint64_t begin_ns = ldr_server_now(s->server);
    if (!ldr_session_ring(s)) {
        return LDR_LOOP_COLD;
    }
    note_recent(s);
    ldr_turn_used(s, s->ring_used_ns - begin_ns);
    last(s);
    return LDR_LOOP_BUSY;
}

ldr_loop_found_t ldr_rings_poll(ldr_server_loop_t *home)
{
    ldr_loop_found_t found = home->hot != NULL ? LDR_LOOP_WARM : LDR_LOOP_COLD;
    bool any = false, several = ldr_server_tenants_several(home->server);
    ldr_session_t *next;

    for (ldr_session_t *s = home->hot; s != NULL && s->hot; s = next) {
        next = s->hot_next; /* it may end and leave the list */
        if (ldr_ring_beside(&s->ring.in)) {
            found = LDR_LOOP_COLD;
        }
        ldr_loop_found_t one = poll_one(s);
        any |= one != LDR_LOOP_COLD;
        if (one == LDR_LOOP_BUSY && !several) {
            break; /* there is nobody else whose turn it could be */
        }
    }
    if (any) {
        return LDR_LOOP_BUSY;
    }
    return found == LDR_LOOP_WARM && is_beside(home) ? LDR_LOOP_COLD : found;
}

bool ldr_rings_sleep(ldr_server_loop_t *home)
{
    ldr_session_t **link = &home->hot;
    bool sleep = true;

    while (*link != NULL) {
        ldr_session_t *s = *link;

        if (is_full(s)) { /* what waits there is left until it is not */
            *link = s->hot_next;
            s->hot = false;
        } else if (ldr_ring_sleep_begin(&s->ring.in)) {
            *link = s->hot_next; /* from here on its bell rings */
            s->hot = false;
        } else {
            ldr_ring_sleep_end(&s->ring.in);
            link = &s->hot_next;
            sleep = false;
        }
    }
    return sleep;
}

/* ---- life ---- */

larder_status_t ldr_session_attach(ldr_session_t *s, int fds[2])
{
    int memory = memfd_create("larder-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    int bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    void *map = MAP_FAILED;

    fds[0] = fds[1] = -1;
    if (memory < 0 || bell < 0 || ftruncate(memory, LDR_RING_MAP_BYTES) != 0) {
        goto err;
    }
    /* Nobody may shrink it under the daemon. */
    if (fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) !=
        0) {
        goto err;
    }
    map = mmap(NULL, LDR_RING_MAP_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED,
               memory, 0);
    if (map == MAP_FAILED) {
        goto err;
    }
    if (madvise(map, LDR_RING_MAP_BYTES, MADV_POPULATE_WRITE) != 0) {
        memset(map, 0, LDR_RING_MAP_BYTES);
    }
    fds[0] = memory;
    fds[1] = fcntl(bell, F_DUPFD_CLOEXEC, 0);
    s->bell = (ldr_watch_t){.fd = bell, .ready = bell_rang};
    /* Each ring is an edge, and nobody reads it: the client, which has the same
     * open file, could make that wait. */
    if (fds[1] < 0 ||
        !ldr_loop_watch(&s->home->loop, &s->bell, EPOLLIN | EPOLLET)) {
        goto err;
    }
    LDR_ASSERT(!s->attached && s->rings.head == NULL);
    s->ring_map = map;
    ldr_ring_init(&s->ring, map, true);
    ldr_ring_stream(&s->rings.stream, &s->ring, bell);
    s->attached = true;
    ldr_session_warm(s);
    return LARDER_OK;

err:
    if (map != MAP_FAILED) {
        munmap(map, LDR_RING_MAP_BYTES);
    }
    if (memory >= 0) {
        close(memory);
    }
    if (bell >= 0) {
        close(bell);
    }
    if (fds[1] >= 0) {
        close(fds[1]);
    }
    s->bell.fd = -1;
    return ldr_fail(LARDER_E_NO_MEMORY,
                    "the daemon has no memory or descriptors left for a ring");
}

void ldr_session_detach(ldr_session_t *s)
{
    if (!s->attached) {
        return;
    }
    cool(s);
    forget_recent(s);
    ldr_loop_unwatch(&s->home->loop, &s->bell);
    close(s->bell.fd);
    s->bell.fd = -1;
    if (!s->lives_on) { /* else it may read what was answered last */
        ldr_ring_hang_up(&s->ring, s->ring_map);
    }
    ldr_stream_close(&s->rings.stream);
    munmap(s->ring_map, LDR_RING_MAP_BYTES);
    s->attached = false;
    while (s->rings.head != NULL) {
        ldr_out_t *out = s->rings.head;

        s->rings.head = out->next;
        ldr_out_free(s, out);
    }
    s->rings.end = &s->rings.head;
    s->rings.bytes = 0;
}

static void attach(ldr_request_t *r)
{
    ldr_session_t *s = r->session;
    ldr_attach_t m = {LDR_RING_BYTES, LDR_PAGE, s->strict_transport};
    uint8_t body[LDR_ATTACH_BYTES];
    int fds[2];
    larder_status_t st = ldr_session_attach(s, fds);

    if (st != LARDER_OK) {
        ldr_reply_fail(r, st);
    } else {
        ldr_reply_fds(r, body, ldr_put_attach(body, &m), fds, 2);
    }
}

/* Making a bounce buffer resident takes a while: not in the loop. */
static void job_bounce(ldr_request_t *r)
{
    r->status = ldr_bounce_create(r->home->server, r->tenant, &r->bounce);
}

static void finish_bounce(ldr_request_t *r)
{
    ldr_session_t *s = r->session;
    const ldr_options_t *o = &s->server->config->options;
    ldr_bounce_t *bounce = r->bounce;

    r->bounce = NULL;
    if (r->status == LARDER_E_LIMIT) {
        ldr_metrics_refused(s->server->metrics, LDR_REFUSAL_WINDOWS);
        ldr_reply_fail(
            r, ldr_fail(LARDER_E_LIMIT,
                        "no more bounce buffers for tenant '%s': they are "
                        "of %llu bytes each (strict_window), and "
                        "their memory is a quarter of dram",
                        r->tenant->config.name,
                        (unsigned long long)o->strict_window));
        return;
    }
    if (bounce == NULL || s->bounce != NULL) {
        ldr_bounce_destroy(bounce);
        ldr_reply_fail(r,
                       ldr_fail(LARDER_E_NO_MEMORY,
                                "no memory for a bounce buffer of %llu bytes "
                                "(strict_window)",
                                (unsigned long long)o->strict_window));
        return;
    }
    s->bounce = bounce;
    attach(r);
}

void ldr_handle_attach(ldr_request_t *r)
{
    ldr_session_t *s = r->session;
    ldr_attach_t m;

    if (!ldr_get_attach(r->body, r->frame.body, &m)) {
        ldr_request_bad(r, LDR_REFUSAL_MALFORMED, "a malformed attach");
    } else if (!s->local || s->attached || s->bounce != NULL) {
        ldr_reply_fail(r, ldr_fail(LARDER_E_UNSUPPORTED,
                                   "rings are handed out once, by unix "
                                   "socket"));
    } else if (!s->strict_transport && s->peer.pid_fd < 0) {
        /* Without it nobody could say when its memory is free again. */
        ldr_reply_fail(
            r, ldr_fail(LARDER_E_UNSUPPORTED,
                        "the daemon cannot see this process, and so not its "
                        "end: let it share the pid namespace (hostPID), use "
                        "Linux 6.5 or later, or isolation=strict"));
    } else if (!s->strict_transport) {
        attach(r);
    } else {
        r->job = job_bounce;
        r->finish = finish_bounce;
        if (!ldr_job(r)) {
            ldr_job_refuse(r);
        }
    }
}

/* ---- messages ---- */

/* One message. False: there is none, or the session ended. ends: only a
 * release or a commit is carried out. */
static bool ring_one(ldr_session_t *s, bool ends)
{
    uint8_t *in = s->home->in;
    struct iovec message = {in, LDR_FRAME_BYTES + LDR_BODY_MAX};
    LDR_ASSERT(s->attached);
    ssize_t n = ldr_stream_read(&s->rings.stream, &message, 1);

    if (n == -EAGAIN) {
        return false;
    }
    ldr_request_t *r = n < 0 ? NULL : ldr_request_new(s);
    if (n < (ssize_t)LDR_FRAME_BYTES || r == NULL ||
        ldr_frame_get(in, LDR_BODY_MAX, &r->frame) != LDR_FRAME_OK ||
        LDR_FRAME_BYTES + (size_t)r->frame.body != (size_t)n ||
        !ldr_request_grow(r, (size_t)n)) {
        if (r != NULL) {
            ldr_request_free(r);
        }
        ldr_metrics_refused(s->server->metrics, LDR_REFUSAL_RING);
        ldr_session_end(s, "a message in its ring is invalid");
        return false;
    }
    if (ends && r->frame.opcode != LDR_OP_RELEASE &&
        r->frame.opcode != LDR_OP_COMMIT) {
        ldr_request_free(r);
        return true;
    }
    memcpy(r->bytes, in, (size_t)n);
    r->via = &s->rings;
    ldr_request_begin(r);
    return s->attached;
}

bool ldr_session_ring(ldr_session_t *s)
{
    uint32_t begin = s->ring.in.position;
    bool any = false;

    for (unsigned i = 0;
         i < ROUND_MAX && s->ring.in.position - begin < ROUND_BYTES &&
         !is_full(s) && s->attached && ring_one(s, false);
         i++) {
        any = true;
    }
    return any;
}

void ldr_session_last_words(ldr_session_t *s)
{
    uint32_t begin = s->ring.in.position;

    /* As much as a ring holds: nobody may keep the daemon at it. */
    while (s->ring.in.position - begin < LDR_RING_BYTES && ring_one(s, true)) {
    }
}

void ldr_session_ring_send(ldr_session_t *s)
{
    LDR_ASSERT(s->attached);
    while (s->rings.head != NULL) {
        ldr_out_t *out = s->rings.head;
        struct iovec piece = {out->head, out->head_bytes};
        ssize_t n = ldr_stream_write(&s->rings.stream, &piece, 1);

        if (n == -EAGAIN) {
            ldr_server_due(s->home, ldr_server_now(s->server) + LDR_PARK_NS);
            return;
        }
        if (n < 0) {
            ldr_metrics_refused(s->server->metrics, LDR_REFUSAL_RING);
            ldr_session_end(s, "a message in its ring is invalid");
            return;
        }
        s->rings.head = out->next;
        s->rings.bytes -= out->left;
        ldr_out_free(s, out);
    }
    s->rings.end = &s->rings.head;
    ldr_session_warm(s); /* what it sent meanwhile was left where it is */
}
