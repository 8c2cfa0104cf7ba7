/*
 * Sessions by shared memory: connecting, watching, ending. shm.h has the
 * threads, the locks and their order.
 *
 * Invariants
 *  1. shm->session is NULL or a session that is not dead when it is handed out.
 *  2. A session is freed by whoever finds, with shm->lock, that it is old, that
 *     its watcher has ended, and that refs is 0.
 */
#include "client/shm.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "base/thread.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define LATE_LOOK_MS 20 /* how often late replies are looked for */
#define CONNECT_LOOK_NS 50000000u

/* ---- references ---- */

void ldr_shm_ref(ldr_shm_session_t *s)
{
    ldr_mutex_lock(&s->shm->lock);
    s->refs++;
    ldr_mutex_unlock(&s->shm->lock);
}

void ldr_shm_unref(ldr_shm_session_t *s)
{
    ldr_mutex_lock(&s->shm->lock);
    s->refs--; /* an old one is freed by the next connect, or by close */
    ldr_mutex_unlock(&s->shm->lock);
}

/* The session is not the current one any more. With shm->lock. */
static void retire(ldr_shm_t *shm, ldr_shm_session_t *s)
{
    if (shm->session == s) {
        shm->session = NULL;
        s->next_old = shm->old;
        shm->old = s;
    }
}

void ldr_shm_ring(ldr_shm_session_t *s)
{
    uint64_t one = 1;

    if (write(s->wake_fd, &one, sizeof(one)) < 0) {
        /* The watcher is up already. */
    }
}

void ldr_shm_die(ldr_shm_session_t *s)
{
    if (!__atomic_exchange_n(&s->dead, true, __ATOMIC_ACQ_REL)) {
        ldr_shm_ring(s);
    }
}

/* ---- the watcher ---- */

/* One frame from the socket, with the descriptors that came with it. False: it
 * is closed, or what came cannot be. */
typedef struct inbox {
    uint8_t at[LDR_FRAME_BYTES + LDR_BODY_HELLO_MAX];
    size_t have;
    int fds[LDR_FDS_MAX];
    unsigned fd_count;
} inbox_t;

static void inbox_clear(inbox_t *in)
{
    for (unsigned i = 0; i < in->fd_count; i++) {
        if (in->fds[i] >= 0) {
            close(in->fds[i]);
        }
    }
    in->have = 0;
    in->fd_count = 0;
}

/* Bytes up to want; 1: they are there; 0: not yet; -1: no more will come. */
static int inbox_fill(inbox_t *in, int fd, size_t want)
{
    while (in->have < want) {
        int fds[LDR_FDS_MAX];
        unsigned count = 0;
        ssize_t n =
            ldr_recv_fds(fd, in->at + in->have, want - in->have, fds, &count);

        for (unsigned i = 0; n > 0 && i < count; i++) {
            if (in->fd_count < LDR_FDS_MAX) {
                in->fds[in->fd_count++] = fds[i];
            } else {
                close(fds[i]);
            }
        }
        if (n == -EAGAIN) {
            return 0;
        }
        if (n <= 0) {
            return -1;
        }
        in->have += (size_t)n;
    }
    return 1;
}

/* 1: a frame is there; 0: not yet; -1: no more will come. */
static int inbox_frame(inbox_t *in, int fd, ldr_frame_t *frame)
{
    int there = inbox_fill(in, fd, LDR_FRAME_BYTES);

    if (there <= 0) {
        return there;
    }
    if (ldr_frame_get(in->at, LDR_BODY_HELLO_MAX, frame) != LDR_FRAME_OK) {
        return -1;
    }
    there = inbox_fill(in, fd, LDR_FRAME_BYTES + frame->body);
    return there == 1 && !ldr_frame_check(in->at, frame) ? -1 : there;
}

static void take_frame(ldr_shm_session_t *s, inbox_t *in,
                       const ldr_frame_t *frame)
{
    const uint8_t *body = in->at + LDR_FRAME_BYTES;
    bool reply = (frame->flags & LDR_FRAME_REPLY) != 0;
    ldr_extent_msg_t m;

    if (frame->opcode == LDR_OP_EXTENT && reply) {
        int fd = -1;

        if (in->fd_count > 0) {
            fd = in->fds[0];
            in->fds[0] = -1; /* its now */
        }
        ldr_map_arrived(s, frame, body, fd);
    } else if (frame->opcode == LDR_OP_REVOKE && !reply &&
               ldr_get_extent(body, frame->body, &m)) {
        ldr_map_revoke(s, &m);
    }
    /* Others are of a later version, which does not need an answer. */
}

static bool expects_late(ldr_shm_session_t *s)
{
    ldr_mutex_lock(&s->recv_lock);
    bool late = s->abandoned > 0;
    ldr_mutex_unlock(&s->recv_lock);
    ldr_mutex_lock(&s->send_lock);
    late |= s->unsent[0].count > 0 || s->unsent[1].count > 0;
    ldr_mutex_unlock(&s->send_lock);
    return late;
}

/* A forked child may have a copy of the descriptor: closing ours is not enough
 * for the daemon to hear of it. */
static void socket_close(ldr_shm_session_t *s)
{
    ldr_mutex_lock(&s->socket_lock);
    if (s->fd >= 0) {
        shutdown(s->fd, SHUT_RDWR);
        close(s->fd);
    }
    s->fd = -1;
    ldr_mutex_unlock(&s->socket_lock);
}

/* The end, for whatever reason: nobody is left waiting, and memory that nobody
 * uses goes back at once; what leases use, when they are released. The daemon
 * cannot see what a living process has unmapped, and would keep all that the
 * session holds: it is told, if it is there, so the socket stays until then. */
static void watcher_ends(ldr_shm_session_t *s)
{
    ldr_shm_t *shm = s->shm;

    __atomic_store_n(&s->dead, true, __ATOMIC_RELEASE);
    ldr_shm_wake_all(s);
    ldr_mutex_lock(&shm->lock);
    retire(shm, s);
    ldr_mutex_unlock(&shm->lock);
    bool left;
    while ((left = ldr_map_sweep(s)) &&
           !__atomic_load_n(&s->leave, __ATOMIC_RELAXED)) {
        struct pollfd p = {.fd = s->wake_fd, .events = POLLIN};
        uint64_t rung;

        if (poll(&p, 1, -1) > 0 && read(s->wake_fd, &rung, sizeof(rung)) < 0) {
            /* It rang for what was seen already. */
        }
    }
    if (!left) {
        ldr_map_left(s);
    }
    socket_close(s);
    ldr_mutex_lock(&shm->lock);
    s->ended = true;
    ldr_mutex_unlock(&shm->lock);
}

static void *watcher_main(void *arg)
{
    ldr_shm_session_t *s = arg;
    inbox_t in = {.have = 0};
    ldr_frame_t frame;

    while (!ldr_shm_dead(s)) {
        struct pollfd p[2] = {{.fd = s->fd, .events = POLLIN},
                              {.fd = s->wake_fd, .events = POLLIN}};
        uint64_t rung;
        bool late = expects_late(s);

        if (poll(p, 2, late ? LATE_LOOK_MS : -1) < 0 && errno != EINTR) {
            break;
        }
        if ((p[1].revents & POLLIN) != 0 &&
            read(s->wake_fd, &rung, sizeof(rung)) < 0) {
            /* It rang for what was seen already. */
        }
        if (p[0].revents != 0) {
            int there = inbox_frame(&in, s->fd, &frame);

            if (there < 0) {
                break;
            }
            if (there > 0) {
                take_frame(s, &in, &frame);
                inbox_clear(&in);
            }
        }
        if (late) {
            ldr_shm_look(s);
        }
        ldr_map_sweep(s);
    }
    inbox_clear(&in);
    watcher_ends(s);
    return NULL;
}

/* ---- life of a session ---- */

/* Ends the watcher, and waits for that. */
static void unwatch(ldr_shm_session_t *s)
{
    if (s->watched) {
        __atomic_store_n(&s->leave, true, __ATOMIC_RELAXED);
        __atomic_store_n(&s->dead, true, __ATOMIC_RELEASE);
        ldr_shm_ring(s);
        pthread_join(s->watcher, NULL);
        s->watched = false;
    }
}

static void session_free(ldr_shm_session_t *s)
{
    unwatch(s);
    socket_close(s);
    if (s->doorbell >= 0) {
        close(s->doorbell);
    }
    if (s->wake_fd >= 0) {
        close(s->wake_fd);
    }
    if (s->ring_map != NULL) {
        munmap(s->ring_map, LDR_RING_MAP_BYTES);
    }
    ldr_asks_free(s);
    ldr_free(s->message);
    ldr_free(s->unsent[0].rows);
    ldr_free(s->unsent[1].rows);
    pthread_mutex_destroy(&s->send_lock);
    pthread_mutex_destroy(&s->recv_lock);
    pthread_mutex_destroy(&s->socket_lock);
    pthread_mutex_destroy(&s->map_lock);
    pthread_cond_destroy(&s->mapped);
    ldr_link_destroy(&s->link);
    ldr_free(s);
}

static ldr_shm_session_t *session_new(ldr_shm_t *shm)
{
    ldr_shm_session_t *s = ldr_alloc(sizeof(*s));

    if (s == NULL) {
        ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for a session");
        return NULL;
    }
    s->shm = shm;
    s->fd = s->doorbell = s->wake_fd = -1;
    ldr_link_init(&s->link, shm->remote);
    ldr_mutex_init(&s->send_lock);
    ldr_mutex_init(&s->recv_lock);
    ldr_mutex_init(&s->socket_lock);
    ldr_mutex_init(&s->map_lock);
    ldr_cond_init(&s->mapped);
    s->message = ldr_alloc(LDR_FRAME_BYTES + LDR_BODY_MAX);
    s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->message == NULL || s->wake_fd < 0) {
        session_free(s);
        ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for a session");
        return NULL;
    }
    return s;
}

/* The rings came: maps them. */
static larder_status_t map_rings(ldr_shm_session_t *s, inbox_t *in,
                                 const ldr_frame_t *reply)
{
    const char *name = s->link.remote->options.address;
    ldr_attach_t m;
    struct stat st;

    if (!ldr_get_attach(in->at + LDR_FRAME_BYTES, reply->body, &m) ||
        in->fd_count < 2 || m.ring_bytes != LDR_RING_BYTES ||
        m.page_bytes < 4096 || (m.page_bytes & (m.page_bytes - 1)) != 0) {
        return ldr_fail(LARDER_E_VERSION,
                        "%s: the daemon's rings are of another kind: update "
                        "the older side",
                        name);
    }
    int seals = fcntl(in->fds[0], F_GET_SEALS);
    if (fstat(in->fds[0], &st) != 0 ||
        (uint64_t)st.st_size < LDR_RING_MAP_BYTES || seals < 0 ||
        (seals & F_SEAL_SHRINK) == 0) {
        return ldr_fail(LARDER_E_CORRUPT, "%s: the daemon's ring can shrink",
                        name);
    }
    void *map = mmap(NULL, LDR_RING_MAP_BYTES, PROT_READ | PROT_WRITE,
                     MAP_SHARED, in->fds[0], 0);
    if (map == MAP_FAILED) {
        return ldr_fail(LARDER_E_NO_MEMORY, "%s: cannot map its ring: %s", name,
                        strerror(errno));
    }
    madvise(map, LDR_RING_MAP_BYTES, MADV_DONTFORK);
    madvise(map, LDR_RING_MAP_BYTES, MADV_DONTDUMP);
    madvise(map, LDR_RING_MAP_BYTES, MADV_POPULATE_WRITE);
    s->ring_map = map;
    s->doorbell = in->fds[1];
    ldr_ring_init(&s->ring, map, false);
    ldr_ring_stream(&s->rings, &s->ring, s->doorbell);
    in->fds[1] = -1;
    s->page_bytes = m.page_bytes;
    s->strict = m.strict != 0;
    return LARDER_OK;
}

static larder_status_t attach(ldr_shm_session_t *s, ldr_stream_t *stream,
                              const ldr_stop_t *stop)
{
    ldr_attach_t m = {0};
    inbox_t in = {.have = 0};
    uint8_t body[LDR_ATTACH_BYTES];
    ldr_frame_t reply = {0};
    larder_status_t st;

    size_t bytes = ldr_put_attach(body, &m);
    int error = ldr_shm_socket_send(s, LDR_OP_ATTACH, 0, LDR_OP_ATTACH, body,
                                    bytes, stop->deadline_ns);
    while (error == 0) {
        int there = inbox_frame(&in, s->fd, &reply);

        if (there > 0) {
            break;
        }
        stream->wants_write = false;
        error =
            there < 0 ? -EPIPE : ldr_stream_wait(s->link.remote, stream, stop);
    }
    if (error < 0) {
        st = ldr_lost(s->link.remote, error == -EAGAIN ? -ETIMEDOUT : error);
    } else if (reply.opcode != LDR_OP_ATTACH) {
        st = ldr_lost(s->link.remote, -EPROTO);
    } else if (ldr_frame_status(&reply) < 0) {
        st = ldr_reply_failed(&reply, in.at + LDR_FRAME_BYTES);
    } else {
        st = map_rings(s, &in, &reply);
    }
    inbox_clear(&in);
    return st;
}

/* Connects to the socket. In pieces: to wait in its queue cannot be canceled.
 */
static int connect_socket(const ldr_remote_t *r, const ldr_stop_t *stop)
{
    int fd;

    do {
        fd =
            ldr_connect_unix(r->options.address,
                             ldr_min64(stop->deadline_ns,
                                       ldr_now_ns(r->clock) + CONNECT_LOOK_NS));
    } while (fd == -ETIMEDOUT && ldr_stopped(r->clock, stop) == LARDER_OK);
    return fd;
}

static larder_status_t session_open(ldr_shm_t *shm,
                                    ldr_shm_session_t **session_p)
{
    ldr_remote_t *r = shm->remote;
    ldr_shm_session_t *s = session_new(shm);
    ldr_stop_t stop = ldr_connect_stop(r);
    ldr_stream_t stream;

    if (s == NULL) {
        return LARDER_E_NO_MEMORY;
    }
    int fd = connect_socket(r, &stop);
    if (fd < 0) {
        session_free(s);
        /* With the text that says what is wrong with the path. */
        larder_status_t st = fd == -ETIMEDOUT                ? LARDER_E_DEADLINE
                             : fd == -EACCES || fd == -EPERM ? LARDER_E_DENIED
                                                             : LARDER_E_OFFLINE;
        return ldr_tally_refused(r, st);
    }
    s->fd = fd;
    ldr_stream_init(&stream, fd, NULL, false, NULL); /* plain: just a view */
    larder_status_t st = ldr_hello_say(r, &stream, &stop, &s->link);
    if (st == LARDER_OK) {
        st = attach(s, &stream, &stop);
    }
    if (st == LARDER_OK) {
        s->heard_ns = ldr_now_ns(r->clock);
        s->watched =
            ldr_thread_start(&s->watcher, "larder-watch", watcher_main, s);
        if (!s->watched) {
            st = ldr_fail(LARDER_E_NO_MEMORY, "cannot start a thread");
        }
    }
    if (st != LARDER_OK) {
        session_free(s);
        return ldr_tally_refused(r, st);
    }
    *session_p = s;
    return LARDER_OK;
}

/* Frees old sessions that nobody refers to: those whose watchers have ended,
 * or all, waiting for that. */
static void reap(ldr_shm_t *shm, bool all)
{
    for (;;) {
        ldr_mutex_lock(&shm->lock);
        ldr_shm_session_t **link = &shm->old;
        while (*link != NULL &&
               ((*link)->refs > 0 || !(all || (*link)->ended))) {
            link = &(*link)->next_old;
        }
        ldr_shm_session_t *s = *link;
        if (s != NULL) {
            *link = s->next_old;
        }
        ldr_mutex_unlock(&shm->lock);
        if (s == NULL) {
            return;
        }
        session_free(s);
    }
}

/* ---- the tables' rows ---- */

static larder_status_t shm_create(ldr_remote_t *r)
{
    ldr_shm_t *shm = ldr_alloc(sizeof(*shm));

    if (shm == NULL) {
        return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for a handle");
    }
    shm->remote = r;
    ldr_mutex_init(&shm->lock);
    ldr_cond_init(&shm->changed);
    r->state = shm;
    return LARDER_OK;
}

static void shm_destroy(ldr_remote_t *r)
{
    ldr_shm_t *shm = r->state;

    ldr_mutex_lock(&shm->lock);
    ldr_shm_session_t *s = shm->session;
    ldr_mutex_unlock(&shm->lock);
    if (s != NULL) {
        unwatch(s); /* its watcher puts it with the old ones */
        ldr_mutex_lock(&shm->lock);
        retire(shm, s);
        ldr_mutex_unlock(&shm->lock);
    }
    reap(shm, true);
    pthread_mutex_destroy(&shm->lock);
    pthread_cond_destroy(&shm->changed);
    ldr_free(shm);
}

/* Commits are not waited for; but a handle that is closed has made its saves.
 * A daemon that is gone or left alone is not asked. */
static larder_status_t shm_settle(ldr_remote_t *r, uint64_t deadline_ns)
{
    ldr_shm_t *shm = r->state;
    ldr_stop_t stop = {NULL, deadline_ns};
    ldr_talk_t v;

    ldr_mutex_lock(&shm->lock);
    bool loose = shm->session != NULL && !ldr_shm_dead(shm->session) &&
                 __atomic_load_n(&shm->session->loose, __ATOMIC_RELAXED);
    ldr_mutex_unlock(&shm->lock);
    if (!loose || ldr_talk_begin(&v, r, NULL, &stop) != LARDER_OK) {
        return LARDER_OK;
    }
    larder_status_t st = ldr_talk_call(&v, LDR_OP_PING, 0);
    ldr_talk_end(&v, st);
    return st == LARDER_E_DEADLINE ? st : LARDER_OK;
}

/* Connects, while callers wait for what comes of it. */
static void shm_connect(ldr_remote_t *r)
{
    ldr_shm_t *shm = r->state;
    ldr_shm_session_t *s = NULL;
    larder_status_t st = session_open(shm, &s);

    ldr_mutex_lock(&shm->lock);
    shm->connecting = false;
    if (st == LARDER_OK) {
        /* Its watcher may have seen it die already: it is then found dead. */
        shm->session = s;
    } else {
        shm->failures++;
        shm->failed = st == LARDER_E_CANCELED ? LARDER_E_OFFLINE : st;
        snprintf(shm->failed_text, sizeof(shm->failed_text), "%s",
                 ldr_fail_text());
    }
    pthread_cond_broadcast(&shm->changed);
    ldr_mutex_unlock(&shm->lock);
    reap(shm, false);
}

static larder_status_t shm_take(ldr_remote_t *r, const ldr_stop_t *stop,
                                ldr_link_t **link_p, bool *sick_p)
{
    ldr_shm_t *shm = r->state;
    larder_status_t st = LARDER_OK;

    ldr_mutex_lock(&shm->lock);
    uint64_t failures = shm->failures;
    while (st == LARDER_OK) {
        ldr_shm_session_t *s = shm->session;

        if (s != NULL && !ldr_shm_dead(s)) {
            s->refs++;
            *link_p = &s->link;
            break;
        }
        if (s != NULL) { /* dead, and its watcher is not done with it */
            retire(shm, s);
        }
        if (shm->failures != failures) {
            st = ldr_fail(shm->failed, "%s", shm->failed_text);
            break;
        }
        if (!shm->connecting) {
            st = ldr_connect_want(r);
            shm->connecting = st == LARDER_OK;
            shm->connect_ns = ldr_now_ns(r->clock);
        }
        if (st == LARDER_OK) {
            uint64_t look_ns = ldr_now_ns(r->clock) + LDR_LOOK_NS;

            ldr_cond_wait_until(&shm->changed, &shm->lock,
                                ldr_min64(stop->deadline_ns, look_ns));
            st = ldr_stopped(r->clock, stop);
        }
    }
    if (st == LARDER_E_DEADLINE) {
        *sick_p = ldr_now_ns(r->clock) - shm->connect_ns >= LDR_SICK_NS;
        ldr_lost(r, -ETIMEDOUT);
    }
    ldr_mutex_unlock(&shm->lock);
    return st;
}

static void shm_give(ldr_link_t *link)
{
    ldr_shm_unref(ldr_shm_of(link));
}

static bool shm_heard(ldr_remote_t *r, uint64_t since_ns)
{
    ldr_shm_t *shm = r->state;

    ldr_mutex_lock(&shm->lock);
    ldr_shm_session_t *s = shm->session;
    if (s != NULL) {
        s->refs++;
    }
    ldr_mutex_unlock(&shm->lock);
    if (s == NULL) {
        return false;
    }
    /* The ring is his who leads; then what he reads is heard. */
    ldr_mutex_lock(&s->recv_lock);
    bool heard = !s->leads && ldr_ring_ready(&s->ring.in);
    ldr_mutex_unlock(&s->recv_lock);
    heard |= __atomic_load_n(&s->heard_ns, __ATOMIC_RELAXED) > since_ns;
    heard &= !ldr_shm_dead(s);
    ldr_shm_unref(s);
    return heard;
}

const ldr_links_t ldr_links_shm = {
    .create = shm_create,
    .settle = shm_settle,
    .destroy = shm_destroy,
    .take = shm_take,
    .give = shm_give,
    .connect = shm_connect,
    .call = ldr_shm_call,
    .heard = shm_heard,
};
