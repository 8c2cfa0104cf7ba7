/*
 * Frames on a connection of the pool.
 *
 * A connection belongs to whoever has taken it from the pool; nothing here
 * takes a lock.
 *
 * Invariants
 *  1. The stream is at the beginning of a frame, or `skip` bytes of payload
 *     before one, whenever a call begins; else `broken` is set.
 *  2. Every request that was sent is in `waiting` or in `late`, once, until its
 *     reply has come: in `waiting` while its caller is there. So a call in
 *     `waiting` is not done.
 *  3. ahead_at <= ahead_have <= what `ahead` has room for, and `late` has
 *     late_count of its places in use.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/copy.h"
#include "base/thread.h"
#include "net/pool.h"

#define PING_ID 0u /* calls count from 1 */
#define SEND_IOV 64u
#define SKIP_BYTES 65536u

/* ---- lists of buffers ---- */

/* Up to max of the next buffers, of so many bytes in all; gives their number.
 * Does not advance. */
static uint32_t list_look(const ldr_list_t *list, size_t bytes,
                          struct iovec *out, uint32_t max)
{
    ldr_cursor_t c = list->at;
    uint32_t n = 0;

    for (; c.iov < list->end && n < max && bytes > 0; n++) {
        size_t left = ldr_cursor_left(&c), take = ldr_min64(bytes, left);

        out[n] = (struct iovec){ldr_cursor_here(&c), take};
        bytes -= take;
        ldr_cursor_go(&c, left);
    }
    return n;
}

/* Advances; with crc_p, adds what was passed to the checksum. */
static void list_pass(ldr_list_t *list, size_t bytes, uint32_t *crc_p)
{
    while (bytes > 0) {
        size_t take = ldr_min64(bytes, ldr_cursor_left(&list->at));

        if (crc_p != NULL) {
            *crc_p = ldr_crc32c(*crc_p, ldr_cursor_here(&list->at), take);
        }
        bytes -= take;
        ldr_cursor_go(&list->at, take);
    }
}

/* ---- what holds ---- */

/* Invariants 2 and 3. */
static bool is_whole(const ldr_conn_t *c)
{
    unsigned found = 0;

    if (c->ahead_at > c->ahead_have || c->ahead_have > sizeof(c->ahead) ||
        c->late_count > LDR_CONN_LATE) {
        return false;
    }
    for (const ldr_call_t *w = c->waiting; w != NULL; w = w->next) {
        if (w->done || w->id == PING_ID || w->id > c->next_id) {
            return false;
        }
        for (unsigned i = 0; i < c->late_count; i++) {
            found += c->late[i].id == w->id;
        }
    }
    return found == 0;
}

/* Whether it is in `waiting`. */
static bool waits(const ldr_conn_t *c, const ldr_call_t *call)
{
    const ldr_call_t *w = c->waiting;

    while (w != NULL && w != call) {
        w = w->next;
    }
    return w != NULL;
}

/* ---- waiting ---- */

static larder_status_t stopped_by(ldr_conn_t *c, int error)
{
    if (error == -ETIMEDOUT) {
        return LARDER_E_DEADLINE;
    }
    if (error == -ECANCELED) {
        return LARDER_E_CANCELED;
    }
    c->broken = true;
    if (error == -EPROTO || error == -EPIPE) { /* it was let in before */
        return ldr_fail(LARDER_E_OFFLINE, "%s: %s",
                        c->link.remote->options.address,
                        error == -EPROTO ? "a malformed answer"
                                         : "the connection broke: closed by "
                                           "the other side");
    }
    return ldr_lost(c->link.remote, error);
}

/* Whether nothing was heard since then, although it is a while ago. */
static bool is_silent(const ldr_conn_t *c, uint64_t since_ns)
{
    return c->heard_ns < since_ns && ldr_conn_now(c) - since_ns >= LDR_SICK_NS;
}

/* Some requests wait for disks. A ping is answered at once by a daemon that is
 * well: it tells the one from the other. */
static void ping_send(ldr_conn_t *c)
{
    uint8_t at[LDR_FRAME_BYTES];
    struct iovec iov = {at, sizeof(at)};
    ldr_frame_t frame = {
        .opcode = LDR_OP_PING,
        .id = PING_ID,
        .epoch = c->link.epoch,
        .arg = LARDER_FOREVER,
    };

    ldr_frame_put(at, &frame, true);
    ssize_t n = ldr_stream_write(&c->stream, &iov, 1);
    if ((n > 0 && n < (ssize_t)sizeof(at)) ||
        (n == -EAGAIN && c->stream.ops->holds)) {
        /* Half a frame cannot be taken back, nor what TLS made a record of. */
        c->broken = true;
    }
    c->pings += n == (ssize_t)sizeof(at) ? 1 : 0;
}

/* After -EAGAIN of a read: waits for more, until the last moment. *pinged_p:
 * whether a ping is under way. */
static larder_status_t wait_more(ldr_conn_t *c, const ldr_stop_t *stop,
                                 uint64_t since_ns, bool *pinged_p)
{
    uint64_t last_ns = ldr_last_ns(stop);
    uint64_t now_ns = ldr_conn_now(c);
    ldr_stop_t slice = {
        stop->canceled,
        ldr_min64(last_ns, now_ns + LDR_SICK_NS),
    };
    int error = ldr_stream_wait(c->link.remote, &c->stream, &slice);

    if (error == -ETIMEDOUT && slice.deadline_ns < last_ns) {
        if (!*pinged_p && is_silent(c, since_ns)) {
            *pinged_p = true;
            ping_send(c);
        }
        return LARDER_OK;
    }
    if (error == -ETIMEDOUT && is_silent(c, since_ns)) {
        __atomic_store_n(&c->link.sick, true, __ATOMIC_RELAXED);
        /* What was asked may still be answered: then it is known to be well.
         * The second time a new connection will know more. */
        c->broken |= c->silences++ > 0;
        if (!*pinged_p) {
            ping_send(c);
        }
    }
    return error == 0 ? LARDER_OK : stopped_by(c, error);
}

/* ---- sending ---- */

/* Whether nothing was heard for a while, up to now. */
static bool quiet(const ldr_conn_t *c, uint64_t since_ns)
{
    return ldr_conn_now(c) - ldr_max64(c->heard_ns, since_ns) >= LDR_SICK_NS;
}

/* Drops answers to pings from what was read ahead; other replies stay. */
static void drop_pings(ldr_conn_t *c)
{
    uint32_t at = c->ahead_at;
    ldr_frame_t frame;

    while (c->skip == 0 && c->ahead_have - at >= LDR_FRAME_BYTES &&
           ldr_frame_get(c->ahead + at, LDR_BODY_MAX, &frame) == LDR_FRAME_OK) {
        uint64_t bytes = LDR_FRAME_BYTES + (uint64_t)frame.body + frame.payload;

        if (bytes > c->ahead_have - at) {
            return;
        }
        if (frame.id == PING_ID && frame.opcode == LDR_OP_PING &&
            ldr_frame_check(c->ahead + at, &frame)) {
            c->ahead_have -= (uint32_t)bytes;
            memmove(c->ahead + at, c->ahead + at + bytes, c->ahead_have - at);
            c->pings -= c->pings > 0 ? 1 : 0;
        } else {
            at += (uint32_t)bytes;
        }
    }
}

/* Reads what is there, as far as there is room for it. 0 or a negative errno.
 * Nothing is lost: it is where replies are looked for. */
static int read_aside(ldr_conn_t *c)
{
    for (;;) {
        memmove(c->ahead, c->ahead + c->ahead_at, c->ahead_have - c->ahead_at);
        c->ahead_have -= c->ahead_at;
        c->ahead_at = 0;
        struct iovec iov = {c->ahead + c->ahead_have,
                            sizeof(c->ahead) - c->ahead_have};
        if (iov.iov_len == 0) {
            return 0;
        }
        ssize_t n = ldr_stream_read(&c->stream, &iov, 1);
        if (n <= 0) {
            return n == -EAGAIN ? 0 : (int)n;
        }
        c->ahead_have += (uint32_t)n;
        c->heard_ns = ldr_conn_now(c);
        c->silences = 0;
        drop_pings(c);
    }
}

/* After -EAGAIN of a write: waits until it is worth another. A daemon that has
 * no room for a save takes nothing, but says now and then that it is well. 0 or
 * a negative errno. */
static int wait_room(ldr_conn_t *c, const ldr_stop_t *stop)
{
    bool wants_read = !c->stream.wants_write; /* TLS */

    for (;;) {
        int error = read_aside(c);

        if (error < 0) {
            return error;
        }
        larder_status_t st = ldr_stopped(c->link.remote->clock, stop);
        if (st != LARDER_OK) {
            return st == LARDER_E_CANCELED ? -ECANCELED : -ETIMEDOUT;
        }
        short reads =
            wants_read || c->ahead_have < sizeof(c->ahead) ? POLLIN : 0;
        int ready = ldr_stream_poll(
            &c->stream, (short)(POLLOUT | reads),
            ldr_min64(stop->deadline_ns, ldr_conn_now(c) + LDR_LOOK_NS));
        if (ready < 0) {
            return ready;
        }
        if ((ready & ~POLLIN) != 0 || (wants_read && ready != 0)) {
            return 0; /* what is wrong the write will say */
        }
    }
}

larder_status_t ldr_conn_send(ldr_conn_t *c, ldr_call_t *call,
                              const struct iovec *payload, uint32_t count,
                              uint64_t bytes, const ldr_stop_t *stop)
{
    ldr_frame_t frame = {
        .opcode = call->opcode,
        .id = ++c->next_id,
        .epoch = c->link.epoch,
        .body = call->bytes,
        .payload = (uint32_t)bytes,
        .arg = ldr_left_ms(c->link.remote->clock, stop->deadline_ns),
    };
    struct iovec head = {call->buffer->data, LDR_FRAME_BYTES + call->bytes};
    ldr_list_t heads = ldr_list(&head, 1),
               rest = ldr_list(count > 0 ? payload : &head, count);
    size_t left = head.iov_len + bytes, all = left;

    LDR_ASSERT(c->busy && c->stream.fd >= 0);
    LDR_DEBUG_ASSERT(!waits(c, call) && is_whole(c));
    ldr_frame_put(call->buffer->data, &frame, true);
    call->id = frame.id;
    call->done = false;
    call->sent_ns = ldr_conn_now(c);
    while (left > 0) {
        struct iovec iov[SEND_IOV];
        uint32_t n = list_look(&heads, SIZE_MAX, iov, SEND_IOV);

        n += list_look(&rest, SIZE_MAX, iov + n, SEND_IOV - n);
        ssize_t sent = ldr_stream_write(&c->stream, iov, n);
        if (sent == -EAGAIN) {
            int error = wait_room(c, stop);

            if (error < 0) {
                c->broken |= left < all || c->stream.ops->holds;
                if (error == -ETIMEDOUT && quiet(c, call->sent_ns)) {
                    __atomic_store_n(&c->link.sick, true, __ATOMIC_RELAXED);
                }
                return stopped_by(c, error);
            }
            continue;
        }
        if (sent < 0) {
            return stopped_by(c, (int)sent);
        }
        size_t first = heads.at.iov < heads.end
                           ? ldr_min64((size_t)sent, ldr_cursor_left(&heads.at))
                           : 0;
        list_pass(&heads, first, NULL);
        list_pass(&rest, (size_t)sent - first, NULL);
        left -= (size_t)sent;
    }
    call->next = c->waiting;
    c->waiting = call;
    return LARDER_OK;
}

/* ---- receiving ---- */

/* Reads something into the buffer that is read ahead. */
static larder_status_t read_ahead(ldr_conn_t *c, const ldr_stop_t *stop,
                                  uint64_t since_ns)
{
    struct iovec iov = {c->ahead, sizeof(c->ahead)};
    uint64_t spin_ns =
        ldr_conn_now(c) + c->link.remote->options.spin_us * 1000u;
    bool pinged = false;

    for (;;) {
        ssize_t n = ldr_stream_read(&c->stream, &iov, 1);

        if (n > 0) {
            c->ahead_at = 0;
            c->ahead_have = (uint32_t)n;
            c->heard_ns = ldr_conn_now(c);
            c->silences = 0;
            return LARDER_OK;
        }
        if (n != -EAGAIN) {
            return stopped_by(c, (int)n);
        }
        if (ldr_conn_now(c) < spin_ns) {
            continue;
        }
        larder_status_t st = wait_more(c, stop, since_ns, &pinged);
        if (st != LARDER_OK) {
            return st;
        }
    }
}

/* Whole bytes, by way of what was read ahead. */
static larder_status_t conn_read(ldr_conn_t *c, uint8_t *to, size_t bytes,
                                 const ldr_stop_t *stop, uint64_t since_ns)
{
    size_t all = bytes;

    while (bytes > 0) {
        size_t n = ldr_min64(bytes, c->ahead_have - c->ahead_at);

        if (n == 0) {
            larder_status_t st = read_ahead(c, stop, since_ns);

            if (st != LARDER_OK) { /* half of it cannot be put back */
                c->broken |= bytes < all;
                return st;
            }
            continue;
        }
        memcpy(to, c->ahead + c->ahead_at, n);
        c->ahead_at += (uint32_t)n;
        to += n;
        bytes -= n;
    }
    return LARDER_OK;
}

/* Drops what nobody wants. What is left stays noted. */
static larder_status_t skip(ldr_conn_t *c, const ldr_stop_t *stop,
                            uint64_t since_ns)
{
    uint8_t dump[SKIP_BYTES];

    while (c->skip > 0) {
        size_t n = ldr_min64(c->skip, c->ahead_have - c->ahead_at);

        if (n > 0) {
            c->ahead_at += (uint32_t)n;
            c->skip -= n;
            continue;
        }
        struct iovec iov = {dump, ldr_min64(c->skip, sizeof(dump))};
        ssize_t got = ldr_stream_read(&c->stream, &iov, 1);
        bool pinged = true;
        if (got == -EAGAIN) {
            larder_status_t st = wait_more(c, stop, since_ns, &pinged);

            if (st != LARDER_OK) {
                return st;
            }
        } else if (got < 0) {
            return stopped_by(c, (int)got);
        } else {
            c->skip -= (uint64_t)got;
            c->heard_ns = ldr_conn_now(c);
        }
    }
    return LARDER_OK;
}

/* A reply to a call that nobody waits for: leases in it are released. */
static void late_reply(ldr_conn_t *c, unsigned at, const ldr_frame_t *frame,
                       const uint8_t *body)
{
    ldr_results_t results;
    ldr_result_row_t row;

    if (!LDR_HOLDS(at < c->late_count)) {
        return;
    }
    c->late[at] = c->late[--c->late_count];
    c->skip = frame->payload;
    ldr_tally(&c->link.remote->late, 1);
    ldr_staged_t staged;
    if (frame->opcode == LDR_OP_STAGE && ldr_frame_status(frame) >= 0 &&
        ldr_get_staged(body, frame->body, &staged) && staged.match.chunks > 0) {
        ldr_conn_release(c, c->session, &staged.lease, 1);
        return;
    }
    if (frame->opcode != LDR_OP_LEASE || ldr_frame_status(frame) < 0 ||
        !ldr_get_results(body, frame->body, &results)) {
        return;
    }
    for (uint32_t i = 0; i < results.count; i++) {
        if (ldr_get_result(results.rows + (size_t)i * LDR_RESULT_BYTES, &row) &&
            row.status == LARDER_OK) {
            ldr_conn_release(c, c->session, &row.lease, 1);
        }
    }
}

/* The rest of a frame whose head is there; *call_p is NULL if it is nobody's.
 * False: it cannot be. */
static larder_status_t take_body(ldr_conn_t *c, uint8_t *head,
                                 const ldr_frame_t *frame,
                                 const ldr_stop_t *stop, uint64_t since_ns,
                                 ldr_call_t **call_p)
{
    ldr_call_t **link = &c->waiting;
    ldr_buffer_t *b = NULL;
    unsigned late = 0;

    while (*link != NULL && (*link)->id != frame->id) {
        link = &(*link)->next;
    }
    while (late < c->late_count && c->late[late].id != frame->id) {
        late++;
    }
    ldr_call_t *call = *call_p = *link;
    b = call != NULL ? call->buffer : ldr_buffer_take(c->link.remote);
    if (b == NULL || (frame->flags & LDR_FRAME_REPLY) == 0 ||
        (call == NULL && late == c->late_count && frame->id != PING_ID)) {
        if (call == NULL) {
            ldr_buffer_give(c->link.remote, b);
        }
        return stopped_by(c, -EPROTO);
    }
    memcpy(b->data, head, LDR_FRAME_BYTES);
    larder_status_t st = conn_read(c, ldr_body(b), frame->body, stop, since_ns);
    if (st != LARDER_OK) {
        c->broken = true; /* in the middle of a frame */
    } else if (!ldr_frame_check(b->data, frame)) {
        st = stopped_by(c, -EPROTO);
    } else if (call != NULL) {
        LDR_ASSERT(!call->done);
        *link = call->next;
        call->reply = *frame;
        call->done = true;
    } else if (frame->id == PING_ID) { /* the daemon sends them unasked, too */
        c->pings -= c->pings > 0 ? 1 : 0;
    } else {
        late_reply(c, late, frame, ldr_body(b));
    }
    if (call == NULL) {
        ldr_buffer_give(c->link.remote, b);
    }
    return st;
}

larder_status_t ldr_conn_recv(ldr_conn_t *c, const ldr_stop_t *stop,
                              ldr_call_t **call_p)
{
    uint64_t since_ns = UINT64_MAX;

    LDR_ASSERT(c->busy);
    LDR_DEBUG_ASSERT(is_whole(c));
    for (const ldr_call_t *w = c->waiting; w != NULL; w = w->next) {
        since_ns = ldr_min64(since_ns, w->sent_ns);
    }
    for (;;) {
        uint8_t head[LDR_FRAME_BYTES];
        ldr_frame_t frame;
        larder_status_t st = skip(c, stop, since_ns);

        if (st == LARDER_OK) {
            st = conn_read(c, head, sizeof(head), stop, since_ns);
        }
        if (st != LARDER_OK) {
            return st;
        }
        if (ldr_frame_get(head, LDR_BODY_MAX, &frame) != LDR_FRAME_OK) {
            return stopped_by(c, -EPROTO);
        }
        st = take_body(c, head, &frame, stop, since_ns, call_p);
        if (st != LARDER_OK || *call_p != NULL) {
            return st;
        }
    }
}

larder_status_t ldr_conn_payload(ldr_conn_t *c, ldr_list_t *to, uint64_t bytes,
                                 const ldr_stop_t *stop, uint32_t *crc_p,
                                 uint64_t *left_p)
{
    uint64_t since_ns = ldr_conn_now(c);
    bool pinged = true; /* it is talking */
    larder_status_t st = LARDER_OK;

    *crc_p = 0;
    while (bytes > 0 && st == LARDER_OK) {
        size_t ahead = ldr_min64(bytes, c->ahead_have - c->ahead_at);
        struct iovec iov[SEND_IOV];

        if (ahead > 0) {
            ahead = ldr_min64(ahead, ldr_cursor_left(&to->at));
            memcpy(ldr_cursor_here(&to->at), c->ahead + c->ahead_at, ahead);
            c->ahead_at += (uint32_t)ahead;
            list_pass(to, ahead, crc_p);
            bytes -= ahead;
            continue;
        }
        uint32_t n =
            list_look(to, ldr_min64(bytes, LDR_CONN_PIECE), iov, SEND_IOV);
        ssize_t got = ldr_stream_read(&c->stream, iov, n);
        if (got > 0) {
            list_pass(to, (size_t)got, crc_p);
            bytes -= (uint64_t)got;
            c->heard_ns = ldr_conn_now(c);
            st = ldr_stopped(c->link.remote->clock, stop);
        } else if (got == -EAGAIN) {
            st = wait_more(c, stop, since_ns, &pinged);
        } else {
            st = stopped_by(c, (int)got);
        }
    }
    *left_p = bytes;
    return bytes == 0 ? LARDER_OK : st;
}

/* ---- calls ---- */

void ldr_conn_forget(ldr_conn_t *c, const ldr_call_t *call, uint64_t payload)
{
    ldr_call_t **link = &c->waiting;

    while (*link != NULL && *link != call) {
        link = &(*link)->next;
    }
    if (*link == NULL) {
        return;
    }
    *link = call->next;
    uint64_t sum = payload + c->skip;
    for (unsigned i = 0; i < c->late_count; i++) {
        sum += c->late[i].payload;
    }
    if (c->late_count == LDR_CONN_LATE || sum > LDR_CONN_SKIP_MAX) {
        c->broken = true; /* a new connection costs less */
        return;
    }
    c->late[c->late_count].id = call->id;
    c->late[c->late_count].opcode = call->opcode;
    c->late[c->late_count++].payload = payload;
    LDR_DEBUG_ASSERT(is_whole(c));
}

larder_status_t ldr_conn_call(ldr_link_t *link, ldr_call_t *call,
                              const ldr_stop_t *stop)
{
    ldr_conn_t *c = ldr_conn_of(link);
    ldr_call_t *got;
    larder_status_t st = ldr_conn_send(c, call, NULL, 0, 0, stop);

    while (st == LARDER_OK && !call->done) {
        st = ldr_conn_recv(c, stop, &got);
    }
    if (st != LARDER_OK) {
        ldr_conn_forget(c, call, 0);
    }
    return st;
}

/* Without a reply, and only if it goes at once: otherwise with the next. */
void ldr_conn_send_ends(ldr_conn_t *c)
{
    uint8_t at[LDR_FRAME_BYTES + LDR_ENDS_HEAD_BYTES + 256 * LDR_END_BYTES];
    ldr_pool_t *pool = c->pool;

    for (;;) {
        uint32_t n = 0;

        ldr_mutex_lock(&pool->lock);
        for (; n < 256 && c->end_count > 0; n++) {
            ldr_end_row_t row = {.lease = c->ends[--c->end_count]};

            ldr_put_end(at + LDR_FRAME_BYTES + LDR_ENDS_HEAD_BYTES +
                            (size_t)n * LDR_END_BYTES,
                        &row);
        }
        ldr_mutex_unlock(&pool->lock);
        if (n == 0 || c->broken || c->stream.fd < 0) {
            return; /* a session that ends releases all it holds */
        }
        ldr_frame_t frame = {
            .opcode = LDR_OP_RELEASE,
            .flags = LDR_FRAME_SILENT,
            .id = ++c->next_id,
            .epoch = c->link.epoch,
            .body = LDR_ENDS_HEAD_BYTES + n * LDR_END_BYTES,
            .arg = LARDER_FOREVER,
        };
        ldr_put_ends(at + LDR_FRAME_BYTES, n);
        ldr_frame_put(at, &frame, true);
        struct iovec iov = {at, LDR_FRAME_BYTES + frame.body};
        if (ldr_stream_write(&c->stream, &iov, 1) != (ssize_t)iov.iov_len) {
            c->broken = true;
            return;
        }
    }
}
