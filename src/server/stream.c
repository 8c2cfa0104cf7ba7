/* Frames by socket, in and out; with TLS or without. In the session's loop
 * only; session.h says what holds of what is queued and read ahead. */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "server/session.h"

#define READ_BUDGET ((size_t)1 << 20) /* bytes of one session in a row */
#define FRAME_BUDGET 64u              /* and pieces of them */
#define PUT_IOV 64u
#define LOWAT_BYTES ((uint64_t)256 << 10)

static ldr_session_t *session_of(ldr_watch_t *watch)
{
    return (ldr_session_t *)((char *)watch - offsetof(ldr_session_t, watch));
}

/* The peer has left, in peace or not: nothing to tell anybody. */
static bool hung_up(ssize_t error)
{
    return error == -EPIPE || error == -ECONNRESET;
}

/* ---- out ---- */

void ldr_out_free(ldr_session_t *s, ldr_out_t *out)
{
    for (uint32_t i = 0; i < out->chunk_count; i++) {
        ldr_node_release(s->server->node, out->chunks[i]);
    }
    for (unsigned i = 0; i < out->fd_count; i++) {
        close(out->fds[i]);
    }
    ldr_free(out->head);
    ldr_free(out->pieces);
    ldr_free(out->chunks);
    ldr_free(out);
}

/* The next buffers to send, of one reply. */
static unsigned out_iov(const ldr_out_t *out, struct iovec *iov)
{
    unsigned n = 0;

    if (out->head_sent < out->head_bytes) {
        iov[n++] = (struct iovec){out->head + out->head_sent,
                                  out->head_bytes - out->head_sent};
    }
    return n +
           ldr_iov_next(&out->unsent, UINT64_MAX, iov + n, LDR_WRITE_IOV - n);
}

static void out_sent(ldr_out_t *out, size_t bytes)
{
    size_t head = ldr_min64(bytes, out->head_bytes - out->head_sent);

    if (!LDR_HOLDS(bytes <= out->left)) {
        return;
    }
    out->left -= bytes;
    out->head_sent += head;
    ldr_iov_skip(&out->unsent, bytes - head);
}

/* Bytes sent, or a negative errno. */
static ssize_t out_write(ldr_session_t *s, ldr_out_t *out)
{
    struct iovec iov[LDR_WRITE_IOV];

    if (out->fd_count > 0) {
        int error = ldr_send_fds(s->socket.stream.fd, out->head,
                                 out->head_bytes, out->fds, out->fd_count);

        if (error < 0) {
            return error;
        }
        for (unsigned i = 0; i < out->fd_count; i++) {
            close(out->fds[i]);
        }
        LDR_ASSERT(s->out_fds >= out->fd_count);
        s->out_fds -= out->fd_count;
        out->fd_count = 0;
        return (ssize_t)out->head_bytes;
    }
    return ldr_stream_write(&s->socket.stream, iov, out_iov(out, iov));
}

/* It has not taken its replies: nothing more is read from it meanwhile. */
static bool is_full(const ldr_session_t *s)
{
    return s->requests >= LDR_SESSION_REQUESTS ||
           s->socket.bytes >= s->server->config->options.window ||
           s->out_fds >= LDR_SESSION_FDS;
}

static void rewatch(ldr_session_t *s)
{
    bool more = !is_full(s) && (s->put == NULL || !s->put->parked) &&
                !s->doomed && !s->waits_turn;
    uint32_t events = more ? EPOLLIN : 0;

    if (s->socket.head != NULL ||
        (!s->shaken && s->socket.stream.wants_write)) {
        events |= EPOLLOUT;
    }
    ldr_loop_rewatch(&s->home->loop, &s->watch, events);
}

static bool send_queued(ldr_session_t *s)
{
    bool was_full = is_full(s);

    while (s->socket.head != NULL) {
        ldr_out_t *out = s->socket.head;
        ssize_t n = out->left > 0 ? out_write(s, out) : 0;

        if (n == -EAGAIN) {
            break;
        }
        if (n < 0 && hung_up(n) && s->local && !s->doomed) {
            /* What it said before it left still lies there, maybe that it has
             * unmapped all: the end comes when that is read. */
            ldr_session_unqueue(s);
            break;
        }
        if (n < 0) {
            ldr_session_end(s, hung_up(n) ? NULL : strerror((int)-n));
            return false;
        }
        out_sent(out, (size_t)n);
        LDR_ASSERT(s->socket.bytes >= (size_t)n);
        s->socket.bytes -= (size_t)n;
        ldr_metrics_level(s->server->metrics, LDR_LEVEL_REPLY_BYTES, -n);
        if (out->left == 0) {
            s->socket.head = out->next;
            if (s->socket.head == NULL) {
                s->socket.end = &s->socket.head;
            }
            ldr_out_free(s, out);
        }
    }
    if (s->doomed && s->socket.head == NULL) {
        ldr_session_end(s, NULL);
        return false;
    }
    rewatch(s);
    if (was_full && !is_full(s)) {
        ldr_loop_post(&s->home->loop, &s->again);
    }
    return true;
}

bool ldr_session_send(ldr_session_t *s)
{
    uint64_t begin_ns = ldr_server_now(s->server);
    LDR_ASSERT(ldr_session_speaks(s));
    bool lives = send_queued(s);

    ldr_turn_used(s, ldr_server_now(s->server) - begin_ns);
    return lives;
}

void ldr_session_unqueue(ldr_session_t *s)
{
    while (s->socket.head != NULL) {
        ldr_out_t *out = s->socket.head;

        s->socket.head = out->next;
        ldr_metrics_level(s->server->metrics, LDR_LEVEL_REPLY_BYTES,
                          -(int64_t)out->left);
        ldr_out_free(s, out);
    }
    s->socket.end = &s->socket.head;
    s->socket.bytes = 0;
    s->out_fds = 0;
}

void ldr_session_queue(ldr_session_t *s, ldr_channel_t *via, ldr_out_t *out)
{
    bool first = via->head == NULL;

    out->next = NULL;
    if (!ldr_session_speaks(s)) {
        ldr_out_free(s, out);
        return;
    }
    LDR_ASSERT(*via->end == NULL && out->fd_count <= LDR_FDS_MAX);
    *via->end = out;
    via->end = &out->next;
    via->bytes += out->left;
    s->out_fds += out->fd_count;
    if (via->stream.ops->messages) { /* nothing tells us when there is room */
        ldr_server_due(s->home, ldr_server_now(s->server) + LDR_PARK_NS);
        return;
    }
    ldr_metrics_level(s->server->metrics, LDR_LEVEL_REPLY_BYTES,
                      (int64_t)out->left);
    if (first) { /* sent after this round, when its caller is done with it */
        ldr_loop_post(&s->home->loop, &s->flush);
    }
}

/* Sends a frame at once if nothing is before it; otherwise gives what is left
 * of it, to be queued. */
ldr_out_t *ldr_session_out(ldr_session_t *s, ldr_channel_t *via,
                           const uint8_t *frame, size_t bytes)
{
    size_t sent = 0;

    if (via->head == NULL && ldr_session_speaks(s)) {
        struct iovec piece = {(void *)(uintptr_t)frame, bytes};
        ssize_t n = ldr_stream_write(&via->stream, &piece, 1);

        /* A failure shows again when the rest is sent. */
        sent = n > 0 ? (size_t)n : 0;
        if (sent == bytes) {
            if (s->doomed) {
                ldr_loop_post(&s->home->loop, &s->flush);
            }
            return NULL;
        }
    }
    ldr_out_t *out = ldr_alloc(sizeof(*out));
    if (out != NULL) {
        out->head_bytes = out->left = bytes - sent;
        out->head = ldr_alloc(bytes - sent);
    }
    if (out == NULL || out->head == NULL) {
        ldr_free(out);
        s->doomed = true; /* a reply is lost: the session cannot go on */
        ldr_loop_post(&s->home->loop, &s->flush);
        return NULL;
    }
    memcpy(out->head, frame + sent, bytes - sent);
    return out;
}

/* ---- in ---- */

/* Reads ahead. */
static ssize_t buffer_fill(ldr_session_t *s)
{
    struct iovec iov = {s->buffer, LDR_IN_BYTES};
    ssize_t n = ldr_stream_read(&s->socket.stream, &iov, 1);

    if (n > 0) {
        s->buffer_at = 0;
        s->buffer_have = (uint32_t)n;
    }
    return n;
}

/* Up to so many bytes: from what was read ahead, or the socket. */
static ssize_t bytes_take(ldr_session_t *s, void *to, size_t want)
{
    uint32_t ahead = s->buffer_have - s->buffer_at;

    LDR_ASSERT(s->buffer_at <= s->buffer_have &&
               s->buffer_have <= LDR_IN_BYTES);
    if (ahead == 0 && want < LDR_IN_BYTES) {
        ssize_t n = buffer_fill(s);

        if (n <= 0) {
            return n;
        }
        ahead = (uint32_t)n;
    }
    if (ahead > 0) {
        size_t n = want < ahead ? want : ahead;

        memcpy(to, s->buffer + s->buffer_at, n);
        s->buffer_at += (uint32_t)n;
        return (ssize_t)n;
    }
    struct iovec iov = {to, want};
    return ldr_stream_read(&s->socket.stream, &iov, 1);
}

/* Payload goes straight to where it belongs. */
static ssize_t take_payload(ldr_session_t *s)
{
    struct iovec iov[PUT_IOV];
    uint32_t ahead = s->buffer_have - s->buffer_at;
    /* With TLS a read goes on until all is there. */
    uint32_t n = ldr_put_iov(s->put, READ_BUDGET, iov, PUT_IOV);
    ssize_t got = 0;

    if (n == 0) {
        return 0;
    }
    if (ahead > 0) {
        ldr_iov_t to = {iov, n, 0};

        got = (ssize_t)ldr_iov_copy(&to, s->buffer + s->buffer_at, ahead, true);
        s->buffer_at += (uint32_t)got;
    } else {
        got = ldr_stream_read(&s->socket.stream, iov, n);
    }
    if (got > 0) {
        ldr_put_got(s->put, (size_t)got);
    }
    return got;
}

static const char *verdict_text(ldr_frame_verdict_t v)
{
    return v == LDR_FRAME_NOT_LARDER  ? "it does not speak Larder's protocol"
           : v == LDR_FRAME_TOO_LARGE ? "a frame that is too large"
                                      : "a malformed frame";
}

/* The head of a frame is there. False: the session ended. */
static bool frame_head(ldr_session_t *s)
{
    ldr_request_t *r = s->in;
    uint32_t max =
        s->state == LDR_SESSION_OPEN ? LDR_BODY_MAX : LDR_BODY_HELLO_MAX;
    ldr_frame_verdict_t v = ldr_frame_get(r->bytes, max, &r->frame);

    if (v != LDR_FRAME_OK ||
        (s->state != LDR_SESSION_OPEN && r->frame.payload != 0)) {
        s->in = NULL;
        ldr_request_bad(r,
                        v == LDR_FRAME_NOT_LARDER ? LDR_REFUSAL_NOT_LARDER
                                                  : LDR_REFUSAL_MALFORMED,
                        verdict_text(v));
        return false;
    }
    s->in_headed = true;
    if (!ldr_request_grow(r, LDR_FRAME_BYTES + r->frame.body)) {
        s->in = NULL;
        ldr_request_bad(r, LDR_REFUSAL_MEMORY, "not enough memory");
        return false;
    }
    return true;
}

/* Bytes read, or a negative errno; the session may have ended. */
static ssize_t take_frame(ldr_session_t *s)
{
    if (s->in == NULL) {
        /* An idle session has no request: first there must be bytes. */
        ssize_t n = s->buffer_at < s->buffer_have ? 1 : buffer_fill(s);

        if (n <= 0) {
            return n;
        }
        s->in = ldr_request_new(s);
        s->in_have = 0;
        s->in_headed = false;
        if (s->in == NULL || !ldr_request_grow(s->in, LDR_FRAME_BYTES)) {
            return -ENOMEM;
        }
    }
    ldr_request_t *r = s->in;
    size_t want =
        s->in_headed ? LDR_FRAME_BYTES + r->frame.body : LDR_FRAME_BYTES;
    ssize_t n = 0;
    LDR_ASSERT(s->in_have <= want && want <= r->capacity);
    if (s->in_have < want) {
        n = bytes_take(s, r->bytes + s->in_have, want - s->in_have);
        if (n <= 0) {
            return n;
        }
        s->in_have += (size_t)n;
    }
    if (s->in_have == LDR_FRAME_BYTES && !s->in_headed && !frame_head(s)) {
        return n;
    }
    if (s->in_headed && s->in_have == LDR_FRAME_BYTES + r->frame.body) {
        s->in = NULL;
        r->begin_ns = ldr_server_now(s->server);
        if (!ldr_frame_check(r->bytes, &r->frame)) {
            ldr_request_bad(r, LDR_REFUSAL_MALFORMED,
                            "a frame whose checksum is wrong");
        } else {
            ldr_request_begin(r);
        }
    }
    return n > 0 ? n : 1;
}

static bool handshake(ldr_session_t *s)
{
    int error = ldr_stream_handshake(&s->socket.stream);

    if (error == -EAGAIN) {
        rewatch(s);
        return false;
    }
    if (error < 0) {
        ldr_metrics_auth_fail(s->server->metrics, LDR_AUTH_FAIL_TLS);
        ldr_session_end(s, ldr_fail_text());
        return false;
    }
    s->shaken = true;
    return true;
}

/* While a payload comes we are woken once a good part of it is there: waking
 * for every packet takes the core from the one who sends it. The kernel wakes
 * us sooner if its buffer cannot hold as much, and when the peer is gone. */
static void set_lowat(ldr_session_t *s)
{
    struct iovec iov[PUT_IOV];
    uint64_t want = 1;

    if (s->local || s->server->tls != NULL) {
        return;
    }
    if (s->put != NULL && !s->put->parked) {
        uint32_t n = ldr_put_iov(s->put, LOWAT_BYTES, iov, PUT_IOV);

        want = ldr_max64(1, ldr_iov_bytes(iov, n));
    }
    if (want != s->lowat) {
        int value = (int)want;

        s->lowat = (uint32_t)want;
        (void)setsockopt(s->socket.stream.fd, SOL_SOCKET, SO_RCVLOWAT, &value,
                         sizeof(value));
    }
}

/* Reads until nothing is there, or the time is over. True: there was some, and
 * the session goes on. */
static bool read_until(ldr_session_t *s, uint64_t end_ns)
{
    size_t budget = READ_BUDGET;
    unsigned turns = 0;
    bool any = false;

    if (!s->shaken && !handshake(s)) {
        return false;
    }
    while (s->state == LDR_SESSION_NEW || s->state == LDR_SESSION_OPEN) {
        if (s->doomed || is_full(s)) {
            break; /* it goes on when replies have gone out */
        }
        if (budget == 0 || turns++ == FRAME_BUDGET ||
            ldr_server_now(s->server) >= end_ns) {
            ldr_turn_wait(s);
            break;
        }
        if (s->begun != NULL) {
            ldr_request_go_on(s);
            any = true;
            continue;
        }
        ssize_t n = s->put != NULL ? take_payload(s) : take_frame(s);

        if (n == -EAGAIN || n == 0) {
            break;
        }
        if (n < 0) {
            ldr_session_end(s, hung_up(n) ? NULL : strerror((int)-n));
            return false;
        }
        any = true;
        budget -= ldr_min64(budget, (uint64_t)n);
    }
    if (s->state == LDR_SESSION_NEW || s->state == LDR_SESSION_OPEN) {
        rewatch(s);
        set_lowat(s);
    }
    return any || s->waits_turn;
}

bool ldr_session_read(ldr_session_t *s)
{
    LDR_DEBUG_ASSERT(ldr_loop_is_here(&s->home->loop));
    LDR_ASSERT(ldr_session_speaks(s) && !s->ending);
    if (s->waits_turn) {
        return true;
    }
    int64_t left_ns = ldr_turn_left(s);
    if (left_ns <= 0) {
        ldr_turn_wait(s);
        rewatch(s);
        return true;
    }
    uint64_t begin_ns = ldr_server_now(s->server);
    bool any = read_until(s, begin_ns + (uint64_t)left_ns);

    ldr_turn_used(s, ldr_server_now(s->server) - begin_ns);
    return any;
}

void ldr_session_readable(ldr_watch_t *watch, uint32_t events)
{
    ldr_session_t *s = session_of(watch);

    if ((events & EPOLLOUT) != 0 && s->shaken && !ldr_session_send(s)) {
        return;
    }
    if ((events & (EPOLLIN | EPOLLOUT)) != 0) {
        ldr_session_read(s);
    } else if ((events & (EPOLLHUP | EPOLLERR)) != 0 && !s->waits_turn) {
        /* It was not read for its replies, and may have said that it has
         * unmapped all before it left. As long as something is read we are
         * called again: what it was asked for fills the queue again. */
        if (s->local && !s->doomed) {
            ldr_session_unqueue(s);
            if (ldr_session_read(s)) {
                return;
            }
        }
        if (s->state == LDR_SESSION_NEW || s->state == LDR_SESSION_OPEN) {
            ldr_session_end(s, NULL);
        }
    }
}
