/*
 * doctor --cluster: how many bytes a second the link to a member carries, as
 * members speak over it and by a bare socket.
 *
 * A bare socket is a connection without TLS, whose bytes are received and
 * dropped; what members do adds TLS, where they have it, and checksums. Both
 * are measured from this process, in turns, with requests that double until the
 * time is over: so it is bounded in time and in bytes, whatever the link.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/thread.h"
#include "cli/doctor.h"
#include "net/pool.h"
#include "tier/peer/peer.h"

#define FIRST_BYTES (64u << 10)
#define MOST_BYTES (32u << 20) /* of one request */
#define PIECE_BYTES ((size_t)1 << 20)
#define PIECES (MOST_BYTES / PIECE_BYTES)

typedef struct way {
    ldr_talk_t talk;
    bool bare;
    uint8_t *piece; /* whatever comes, and whatever goes */
} way_t;

static uint64_t now_ns(void)
{
    return ldr_now_ns(&ldr_clock_real);
}

/* The same piece, so often that it makes these bytes. */
static uint32_t list_of(uint8_t *piece, uint64_t bytes, struct iovec *iov)
{
    uint32_t count = 0;

    for (; bytes > 0; count++) {
        iov[count] = (struct iovec){piece, ldr_min64(bytes, PIECE_BYTES)};
        bytes -= iov[count].iov_len;
    }
    return count;
}

/* Payload by recv() alone. */
static larder_status_t take_bare(way_t *w, uint64_t bytes)
{
    ldr_conn_t *c = ldr_conn_of(w->talk.link);
    uint64_t ahead = ldr_min64(bytes, c->ahead_have - c->ahead_at);

    c->ahead_at += (uint32_t)ahead;
    bytes -= ahead;
    while (bytes > 0) {
        struct iovec iov = {w->piece, ldr_min64(bytes, PIECE_BYTES)};
        ssize_t n = ldr_stream_read(&c->stream, &iov, 1);

        if (n > 0) {
            bytes -= (uint64_t)n;
        } else if (n != -EAGAIN ||
                   ldr_stream_poll(&c->stream, POLLIN,
                                   w->talk.stop.deadline_ns) <= 0) {
            c->broken = true;
            return LARDER_E_DEADLINE;
        }
    }
    return LARDER_OK;
}

/* So many bytes there, or back. */
static larder_status_t carry(way_t *w, uint64_t bytes, bool out)
{
    ldr_talk_t *v = &w->talk;
    ldr_conn_t *c = ldr_conn_of(v->link);
    struct iovec iov[PIECES];
    uint32_t crc, count = list_of(w->piece, bytes, iov);
    ldr_call_t *got = NULL;
    uint64_t left;

    v->call.opcode = LDR_OP_PEER_MEASURE;
    v->call.bytes = (uint32_t)ldr_put_number(ldr_body(v->call.buffer),
                                             out ? 0 : (uint32_t)bytes);
    larder_status_t st = ldr_conn_send(c, &v->call, iov, out ? count : 0,
                                       out ? bytes : 0, &v->stop);
    while (st == LARDER_OK && !v->call.done) {
        st = ldr_conn_recv(c, &v->stop, &got);
    }
    if (st != LARDER_OK) {
        ldr_conn_forget(c, &v->call, bytes);
        return st;
    }
    v->heard = true;
    if (ldr_frame_status(&v->call.reply) < 0) {
        return ldr_reply_failed(&v->call.reply, ldr_body(v->call.buffer));
    }
    if (out) {
        return LARDER_OK;
    }
    if (w->bare) {
        return take_bare(w, bytes);
    }
    ldr_list_t to = ldr_list(iov, count);
    st = ldr_conn_payload(c, &to, bytes, &v->stop, &crc, &left);
    c->broken |= st != LARDER_OK;
    return st;
}

/* By the largest of requests that double, since what lies in buffers makes
 * small ones fast; bytes a second. The better of it and what is known. */
static larder_status_t measure(way_t *w, bool out, uint64_t until_ns,
                               double *speed_p)
{
    uint64_t bytes = FIRST_BYTES;
    larder_status_t st = LARDER_OK;
    double last = 0;

    do {
        uint64_t begin_ns = now_ns();

        st = carry(w, bytes, out);
        if (st == LARDER_OK) {
            last = 1e9 * (double)bytes / (double)(now_ns() - begin_ns);
        }
        bytes = ldr_min64(2 * bytes, MOST_BYTES);
    } while (st == LARDER_OK && now_ns() < until_ns);
    *speed_p = last > *speed_p ? last : *speed_p;
    return st;
}

static larder_status_t way_open(const ldr_options_t *given, const char *address,
                                bool bare, ldr_remote_t **remote_p)
{
    ldr_options_t *o = ldr_alloc(sizeof(*o));
    ldr_net_env_t env = {
        .log = {ldr_log_silent, NULL},
        .clock = &ldr_clock_real,
        .threads = &ldr_threads_real,
    };

    if (o == NULL) {
        return LARDER_E_NO_MEMORY;
    }
    *o = *given;
    ldr_peer_link_options(o, address);
    o->connections = 1;
    o->tls = bare ? LDR_TLS_OFF : o->tls;
    larder_status_t st = ldr_remote_create(o, &ldr_links_pool, &env, remote_p);
    ldr_free(o);
    return st;
}

/* One way of speaking, in both directions. */
static larder_status_t speak(const ldr_options_t *o, const char *address,
                             bool bare, uint64_t ns, uint64_t most_ns,
                             ldr_doctor_speed_t *s)
{
    way_t w = {.bare = bare, .piece = ldr_alloc(PIECE_BYTES)};
    ldr_remote_t *remote = NULL;
    uint64_t begin_ns = now_ns();
    ldr_stop_t stop = {NULL, begin_ns + most_ns};

    larder_status_t st = w.piece != NULL ? way_open(o, address, bare, &remote)
                                         : LARDER_E_NO_MEMORY;
    if (st == LARDER_OK) {
        st = ldr_talk_begin(&w.talk, remote, NULL, &stop);
        if (st == LARDER_OK) {
            st = measure(&w, false, begin_ns + ns / 2, &s->in);
            if (st == LARDER_OK) {
                w.talk.stop.deadline_ns = now_ns() + most_ns;
                st = measure(&w, true, now_ns() + ns / 2, &s->out);
            }
            ldr_talk_end(&w.talk, st);
        }
        ldr_remote_destroy(remote);
    }
    ldr_free(w.piece);
    return st;
}

larder_status_t ldr_doctor_link(const ldr_options_t *o, const char *address,
                                uint64_t ns, uint64_t most_ns,
                                ldr_doctor_link_t *link)
{
    larder_status_t st = LARDER_OK;

    for (unsigned i = 0; i < 2 && st == LARDER_OK; i++) { /* the best of two */
        st = speak(o, address, true, ns / 4, most_ns, &link->bare);
        if (st == LARDER_OK) {
            st = speak(o, address, false, ns / 4, most_ns, &link->spoken);
        }
    }
    return st;
}
