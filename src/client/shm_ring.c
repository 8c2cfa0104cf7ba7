/*
 * Requests and replies through the rings of a session.
 *
 * Any thread may call. Only the holder of send_lock writes into the ring out;
 * only the thread that leads (recv_lock sets `leads`) reads the ring in. The
 * two locks are never held together.
 *
 * Invariants
 *  1. A call is in s->waiting from before it is sent until its reply was handed
 *     to it, or its caller gave it up (recv_lock).
 *  2. A reply without a call is late: what it leased or reserved is given back
 *     by the thread that read it.
 *  3. An end (RELEASE, COMMIT) that found no room in the ring waits in
 *     `unsent`, and goes before any later one.
 */
#include <errno.h>
#include <sched.h>
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "base/thread.h"
#include "client/shm.h"

#define ENDS_MAX 1024u /* leases ended with one message */
#define NAP_NS 50000
#define NAP_MAX_NS 3000000
#define PING_ID 0u     /* calls count from 1 */
#define SPIN_MISSES 4u /* in a row, and spinning is no use */
#define SPIN_EVERY 32u /* but it is tried again */

/* Between looks for room in a full ring, longer and longer. */
static void nap(const ldr_remote_t *r, uint64_t *ns)
{
    ldr_nap(r, *ns);
    *ns = *ns < NAP_MAX_NS ? 2 * *ns : *ns;
}

/* ---- sending ---- */

static uint16_t ends_opcode(unsigned which)
{
    return which == 0 ? LDR_OP_RELEASE : LDR_OP_COMMIT;
}

/* With send_lock. False: no room now. */
static bool write_message(ldr_shm_session_t *s, const void *data, size_t bytes)
{
    struct iovec piece = {(void *)(uintptr_t)data, bytes};

    return ldr_stream_write(&s->rings, &piece, 1) >= 0;
}

/* One message of RELEASE or COMMIT. With send_lock. */
static bool write_ends(ldr_shm_session_t *s, uint16_t opcode,
                       const ldr_end_row_t *rows, uint32_t count)
{
    uint8_t
        at[LDR_FRAME_BYTES + LDR_ENDS_HEAD_BYTES + ENDS_MAX * LDR_END_BYTES];
    ldr_frame_t frame = {
        .opcode = opcode,
        .flags = LDR_FRAME_SILENT,
        .epoch = s->link.epoch,
        .body = LDR_ENDS_HEAD_BYTES + count * LDR_END_BYTES,
        .arg = LARDER_FOREVER,
    };

    frame.id = __atomic_add_fetch(&s->next_id, 1, __ATOMIC_RELAXED);
    ldr_frame_put(at, &frame, false);
    ldr_put_ends(at + LDR_FRAME_BYTES, count);
    for (uint32_t i = 0; i < count; i++) {
        ldr_put_end(at + LDR_FRAME_BYTES + LDR_ENDS_HEAD_BYTES +
                        (size_t)i * LDR_END_BYTES,
                    &rows[i]);
    }
    return write_message(s, at, LDR_FRAME_BYTES + frame.body);
}

/* What found no room before. True: nothing is left. With send_lock. */
static bool write_unsent(ldr_shm_session_t *s)
{
    for (unsigned which = 0; which < 2; which++) {
        while (s->unsent[which].count > 0) {
            uint32_t n = (uint32_t)ldr_min64(s->unsent[which].count, ENDS_MAX);
            uint32_t left = s->unsent[which].count - n;

            if (!write_ends(s, ends_opcode(which), s->unsent[which].rows + left,
                            n)) {
                return false;
            }
            s->unsent[which].count = left;
        }
    }
    return true;
}

/* Keeps rows for later. With send_lock. False: not enough memory. */
static bool keep_unsent(ldr_shm_session_t *s, unsigned which,
                        const ldr_end_row_t *rows, uint32_t count)
{
    uint32_t need = s->unsent[which].count + count;

    if (need > s->unsent[which].capacity) {
        uint32_t capacity = need < 1024 ? 1024 : 2 * need;
        ldr_end_row_t *more = ldr_alloc(capacity * sizeof(*more));

        if (more == NULL) {
            return false;
        }
        if (s->unsent[which].count > 0) {
            memcpy(more, s->unsent[which].rows,
                   s->unsent[which].count * sizeof(*more));
        }
        ldr_free(s->unsent[which].rows);
        s->unsent[which].rows = more;
        s->unsent[which].capacity = capacity;
    }
    memcpy(s->unsent[which].rows + s->unsent[which].count, rows,
           count * sizeof(*rows));
    s->unsent[which].count = need;
    return true;
}

void ldr_shm_ends(ldr_shm_session_t *s, uint16_t opcode,
                  const ldr_end_row_t *rows, uint32_t count)
{
    unsigned which = opcode == LDR_OP_RELEASE ? 0 : 1;
    bool ok = true;

    if (count == 0 || ldr_shm_dead(s)) {
        return; /* with its session a lease is gone as well */
    }
    if (opcode == LDR_OP_COMMIT) {
        __atomic_store_n(&s->loose, true, __ATOMIC_RELAXED);
    }
    ldr_mutex_lock(&s->send_lock);
    bool room = write_unsent(s);
    while (count > 0 && ok) {
        uint32_t n = (uint32_t)ldr_min64(count, ENDS_MAX);

        room = room && write_ends(s, opcode, rows, n);
        ok = room || keep_unsent(s, which, rows, n);
        rows += n;
        count -= n;
    }
    ldr_mutex_unlock(&s->send_lock);
    if (!ok) {
        ldr_shm_die(s); /* the daemon then takes back what was held */
    } else if (!room) {
        ldr_shm_ring(s); /* the watcher sends it once there is room */
    }
}

/* The call waits from before it is sent, or its reply could come too soon. */
static void enlist(ldr_shm_session_t *s, ldr_call_t *call)
{
    call->done = call->sleeps = false;
    ldr_cond_init(&call->wake);
    call->id = __atomic_add_fetch(&s->next_id, 1, __ATOMIC_RELAXED);
    call->sent_ns = ldr_shm_now(s);
    ldr_mutex_lock(&s->recv_lock);
    call->next = s->waiting;
    s->waiting = call;
    ldr_mutex_unlock(&s->recv_lock);
}

/* With recv_lock. False: it was not there. */
static bool delist(ldr_shm_session_t *s, const ldr_call_t *call)
{
    ldr_call_t **link = &s->waiting;

    while (*link != NULL && *link != call) {
        link = &(*link)->next;
    }
    if (*link == NULL) {
        return false;
    }
    *link = call->next;
    return true;
}

larder_status_t ldr_shm_send(ldr_shm_session_t *s, ldr_call_t *call,
                             const ldr_stop_t *stop)
{
    ldr_frame_t frame = {
        .opcode = call->opcode,
        .epoch = s->link.epoch,
        .body = call->bytes,
        .arg = ldr_left_ms(s->link.remote->clock, stop->deadline_ns),
    };
    larder_status_t st = LARDER_OK;
    uint64_t nap_ns = NAP_NS;
    bool sent = false;

    enlist(s, call);
    frame.id = call->id;
    ldr_frame_put(call->buffer->data, &frame, false);
    while (!sent && st == LARDER_OK) {
        ldr_mutex_lock(&s->send_lock);
        sent =
            !ldr_shm_dead(s) && write_unsent(s) &&
            write_message(s, call->buffer->data, LDR_FRAME_BYTES + call->bytes);
        ldr_mutex_unlock(&s->send_lock);
        if (!sent) {
            if (ldr_ring_broken(&s->ring.out)) {
                ldr_shm_die(s);
            }
            st = ldr_shm_dead(s) ? LARDER_E_OFFLINE
                                 : ldr_stopped(s->link.remote->clock, stop);
            if (st == LARDER_OK) {
                nap(s->link.remote, &nap_ns); /* the daemon is behind */
            }
        }
    }
    if (!sent) {
        ldr_mutex_lock(&s->recv_lock);
        delist(s, call);
        ldr_mutex_unlock(&s->recv_lock);
        pthread_cond_destroy(&call->wake);
        if (st == LARDER_E_DEADLINE) { /* not one message was taken */
            __atomic_store_n(&s->link.sick, true, __ATOMIC_RELAXED);
        }
    }
    return st;
}

/* ---- late replies ---- */

/* Gives back what a reply that nobody waits for has brought. */
static void late_reply(ldr_shm_session_t *s, const ldr_frame_t *frame,
                       const uint8_t *body)
{
    ldr_results_t results;
    ldr_result_row_t row;
    ldr_end_row_t ends[64];
    uint32_t n = 0;
    bool lease = frame->opcode == LDR_OP_LEASE;

    ldr_staged_t staged;

    ldr_tally(&s->link.remote->late, 1);
    if (frame->opcode == LDR_OP_STAGE && ldr_frame_status(frame) >= 0 &&
        ldr_get_staged(body, frame->body, &staged) && staged.match.chunks > 0) {
        ends[0] = (ldr_end_row_t){.lease = staged.lease};
        ldr_shm_ends(s, LDR_OP_RELEASE, ends, 1);
        return;
    }
    if ((!lease && frame->opcode != LDR_OP_RESERVE) ||
        ldr_frame_status(frame) < 0 ||
        !ldr_get_results(body, frame->body, &results)) {
        return;
    }
    for (uint32_t i = 0; i < results.count; i++) {
        if (ldr_get_result(results.rows + (size_t)i * LDR_RESULT_BYTES, &row) &&
            row.status == LARDER_OK) {
            ends[n++] = (ldr_end_row_t){
                .lease = row.lease,
                .how = lease ? LDR_END_PLAIN : LDR_END_ABORT,
            };
        }
        if (n == 64 || (n > 0 && i + 1 == results.count)) {
            ldr_shm_ends(s, lease ? LDR_OP_RELEASE : LDR_OP_COMMIT, ends, n);
            n = 0;
        }
    }
}

/* ---- receiving ---- */

/* Hands one message to whom it belongs. False: it cannot be. */
static bool dispatch(ldr_shm_session_t *s, size_t bytes)
{
    ldr_frame_t frame;
    const uint8_t *body = s->message + LDR_FRAME_BYTES;

    if (bytes < LDR_FRAME_BYTES ||
        ldr_frame_get(s->message, LDR_BODY_MAX, &frame) != LDR_FRAME_OK ||
        LDR_FRAME_BYTES + (size_t)frame.body != bytes ||
        (frame.flags & LDR_FRAME_REPLY) == 0) {
        return false;
    }
    if (frame.id == PING_ID) {
        __atomic_store_n(&s->pinging, false, __ATOMIC_RELAXED);
        return true;
    }
    ldr_mutex_lock(&s->recv_lock);
    ldr_call_t *call = s->waiting;
    while (call != NULL && call->id != frame.id) {
        call = call->next;
    }
    if (call != NULL) {
        call->reply = frame;
        memcpy(ldr_body(call->buffer), body, frame.body);
        delist(s, call);
        call->done = true;
        pthread_cond_signal(&call->wake);
    } else if (s->abandoned > 0) {
        s->abandoned--;
    }
    ldr_mutex_unlock(&s->recv_lock);
    if (call == NULL) {
        late_reply(s, &frame, body);
    }
    return true;
}

/* Reads all that is there. False: nothing was. */
static bool read_ring(ldr_shm_session_t *s)
{
    bool any = false;

    for (;;) {
        struct iovec message = {s->message, LDR_FRAME_BYTES + LDR_BODY_MAX};
        ssize_t n = ldr_stream_read(&s->rings, &message, 1);

        if (n == -EAGAIN) {
            return any;
        }
        __atomic_store_n(&s->heard_ns, ldr_shm_now(s), __ATOMIC_RELAXED);
        /* Whoever sent the request is done with its buffer, or there would be
         * no reply; but that goes through another process, where neither the
         * memory model nor the thread sanitizer can follow. */
        ldr_mutex_lock(&s->send_lock);
        ldr_mutex_unlock(&s->send_lock);
        if (n < 0 || !dispatch(s, (size_t)n)) {
            ldr_error(&s->link.remote->log,
                      "%s: a message in the ring is invalid: connecting again",
                      s->link.remote->options.address);
            ldr_shm_die(s);
            return true;
        }
        any = true;
    }
}

/* How long to spin. Where that has not helped lately (the daemon needs this
 * CPU, or waits for a disk) it is only tried now and then. */
static uint64_t spin_ns(ldr_shm_session_t *s)
{
    return s->spin_misses < SPIN_MISSES || ++s->spin_skips % SPIN_EVERY == 0
               ? s->link.remote->options.spin_us * 1000u
               : 0;
}

/* Reads the ring until the call is done or the time has come; others are
 * served meanwhile. The caller leads. */
static void lead(ldr_shm_session_t *s, const ldr_call_t *call,
                 uint64_t until_ns)
{
    uint64_t now_ns = ldr_shm_now(s);
    uint64_t spin_end_ns = now_ns + spin_ns(s);
    unsigned looks = 0;

    for (;;) {
        bool any = read_ring(s);

        if (call->done || ldr_shm_dead(s)) {
            s->spin_misses = 0;
            return;
        }
        if (any || ++looks % 16 == 0) {
            now_ns = ldr_shm_now(s);
            if (now_ns >= until_ns) {
                return;
            }
        }
        if (now_ns < spin_end_ns) {
            if (looks % 16 == 0) {
                sched_yield(); /* the daemon may want this core */
            }
            ldr_relax();
            continue;
        }
        s->spin_misses++;
        if (ldr_ring_sleep_begin(&s->ring.in)) {
            if (!ldr_shm_dead(s)) {
                ldr_ring_futex_wait(&s->ring.in, until_ns);
            }
            ldr_ring_sleep_end(&s->ring.in);
        }
        read_ring(s);
        if (call->done || ldr_shm_dead(s) || ldr_shm_now(s) >= until_ns) {
            return; /* it has slept: that is no merit of the spinning */
        }
    }
}

/* Lets one of those who wait lead. With recv_lock. */
static void hand_over(ldr_shm_session_t *s)
{
    ldr_call_t *call = s->waiting;

    s->leads = false;
    while (call != NULL && !call->sleeps) {
        call = call->next; /* its thread is busy with something else */
    }
    if (call != NULL) {
        pthread_cond_signal(&call->wake);
    }
}

/* With recv_lock: it goes without its reply. */
static void give_up(ldr_shm_session_t *s, ldr_call_t *call)
{
    delist(s, call);
    if (s->abandoned == 0 ||
        __atomic_load_n(&s->heard_ns, __ATOMIC_RELAXED) > s->abandoned_ns) {
        s->abandoned_ns = call->sent_ns;
    }
    if (s->abandoned++ == 0) {
        ldr_shm_ring(s);
    }
}

/* Whether nothing was heard since then, although it is a while ago. */
static bool silent(const ldr_shm_session_t *s, uint64_t since_ns)
{
    return __atomic_load_n(&s->heard_ns, __ATOMIC_RELAXED) < since_ns &&
           ldr_shm_now(s) - since_ns >= LDR_SICK_NS;
}

/* Some requests wait for disks. A ping is answered at once by a daemon that is
 * well: it tells the one from the other. One at a time, and only if it can be
 * sent at once. */
static void ping(ldr_shm_session_t *s)
{
    uint8_t at[LDR_FRAME_BYTES];
    ldr_frame_t frame = {
        .opcode = LDR_OP_PING,
        .id = PING_ID,
        .epoch = s->link.epoch,
        .arg = LARDER_FOREVER,
    };

    if (__atomic_exchange_n(&s->pinging, true, __ATOMIC_RELAXED)) {
        return;
    }
    ldr_frame_put(at, &frame, false);
    ldr_mutex_lock(&s->send_lock);
    bool sent = !ldr_shm_dead(s) && write_message(s, at, sizeof(at));
    ldr_mutex_unlock(&s->send_lock);
    if (!sent) {
        __atomic_store_n(&s->pinging, false, __ATOMIC_RELAXED);
    }
}

larder_status_t ldr_shm_wait(ldr_shm_session_t *s, ldr_call_t *call,
                             const ldr_stop_t *stop)
{
    uint64_t last_ns = ldr_last_ns(stop);
    larder_status_t st = LARDER_OK;

    ldr_mutex_lock(&s->recv_lock);
    while (!call->done) {
        st = ldr_shm_stopped(s, stop, last_ns);
        if (st != LARDER_OK) {
            break;
        }
        uint64_t until_ns = ldr_min64(last_ns, ldr_shm_now(s) + LDR_LOOK_NS);
        if (!s->leads) {
            s->leads = true;
            ldr_mutex_unlock(&s->recv_lock);
            lead(s, call, until_ns);
            ldr_mutex_lock(&s->recv_lock);
            hand_over(s);
        } else {
            call->sleeps = true;
            ldr_cond_wait_until(&call->wake, &s->recv_lock, until_ns);
            call->sleeps = false;
        }
        if (!call->done && silent(s, call->sent_ns)) {
            ldr_mutex_unlock(&s->recv_lock);
            ping(s);
            ldr_mutex_lock(&s->recv_lock);
        }
    }
    if (call->done) {
        st = LARDER_OK;
    } else {
        give_up(s, call);
        if (st == LARDER_E_DEADLINE && silent(s, s->abandoned_ns)) {
            __atomic_store_n(&s->link.sick, true, __ATOMIC_RELAXED);
        }
    }
    ldr_mutex_unlock(&s->recv_lock);
    pthread_cond_destroy(&call->wake);
    if (st == LARDER_E_DEADLINE) {
        ping(s); /* the next one knows better */
    }
    return st;
}

void ldr_shm_abandon(ldr_shm_session_t *s, ldr_call_t *call)
{
    ldr_mutex_lock(&s->recv_lock);
    bool done = call->done;
    if (!done) {
        give_up(s, call);
    }
    ldr_mutex_unlock(&s->recv_lock);
    pthread_cond_destroy(&call->wake);
    if (done) {
        late_reply(s, &call->reply, ldr_body(call->buffer));
    }
}

larder_status_t ldr_shm_call(ldr_link_t *link, ldr_call_t *call,
                             const ldr_stop_t *stop)
{
    ldr_shm_session_t *s = ldr_shm_of(link);
    larder_status_t st = ldr_shm_send(s, call, stop);

    return st == LARDER_OK ? ldr_shm_wait(s, call, stop) : st;
}

/* ---- the watcher ---- */

void ldr_shm_look(ldr_shm_session_t *s)
{
    ldr_mutex_lock(&s->recv_lock);
    bool lead_now = !s->leads && s->waiting == NULL;
    s->leads |= lead_now;
    ldr_mutex_unlock(&s->recv_lock);
    if (lead_now) {
        read_ring(s);
        ldr_mutex_lock(&s->recv_lock);
        hand_over(s);
        ldr_mutex_unlock(&s->recv_lock);
    }
    ldr_mutex_lock(&s->send_lock);
    if (!ldr_shm_dead(s)) {
        write_unsent(s);
    }
    ldr_mutex_unlock(&s->send_lock);
}

void ldr_shm_wake_all(ldr_shm_session_t *s)
{
    ldr_mutex_lock(&s->recv_lock);
    for (ldr_call_t *call = s->waiting; call != NULL; call = call->next) {
        pthread_cond_signal(&call->wake);
    }
    ldr_mutex_unlock(&s->recv_lock);
    if (s->ring_map != NULL) {
        ldr_ring_futex_wake(&s->ring.in);
    }
}
