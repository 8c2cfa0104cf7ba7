/*
 * What calls to a daemon begin and end with: breaker, session, buffer, the
 * space's number in the session.
 *
 * A talk belongs to one thread, from begin to end. The table of a session's
 * spaces is guarded by link->space_lock, which is never held across a call.
 */
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "base/thread.h"
#include "net/session.h"
#include "wire/peer.h"

/* ---- buffers ---- */

ldr_buffer_t *ldr_buffer_take(ldr_remote_t *r)
{
    ldr_mutex_lock(&r->buffer_lock);
    ldr_buffer_t *b = r->buffers;
    if (b != NULL) {
        r->buffers = b->next;
    }
    ldr_mutex_unlock(&r->buffer_lock);
    /* Only what is touched of it becomes memory. */
    return b != NULL ? b : ldr_alloc(sizeof(*b));
}

void ldr_buffer_give(ldr_remote_t *r, ldr_buffer_t *b)
{
    if (b != NULL) {
        ldr_mutex_lock(&r->buffer_lock);
        b->next = r->buffers;
        r->buffers = b;
        ldr_mutex_unlock(&r->buffer_lock);
    }
}

/* ---- using a session ---- */

/* The session's number of a space, if it has opened it. */
static bool space_known(ldr_link_t *link, const ldr_space_ref_t *space,
                        uint32_t *number_p)
{
    ldr_mutex_lock(&link->space_lock);
    bool known = space->slot < link->space_capacity &&
                 link->spaces[space->slot].uid == space->uid;
    if (known) {
        *number_p = link->spaces[space->slot].number;
    }
    ldr_mutex_unlock(&link->space_lock);
    return known;
}

/* False: not enough memory. */
static bool space_note(ldr_link_t *link, const ldr_space_ref_t *space,
                       uint32_t number)
{
    bool ok = true;

    ldr_mutex_lock(&link->space_lock);
    if (space->slot >= link->space_capacity) {
        uint32_t capacity = 16;

        while (capacity <= space->slot) {
            capacity *= 2;
        }
        void *more = ldr_alloc(capacity * sizeof(*link->spaces));
        ok = more != NULL;
        if (ok) {
            if (link->space_capacity > 0) {
                memcpy(more, link->spaces,
                       link->space_capacity * sizeof(*link->spaces));
            }
            ldr_free(link->spaces);
            link->spaces = more;
            link->space_capacity = capacity;
        }
    }
    if (ok) {
        link->spaces[space->slot].uid = space->uid;
        link->spaces[space->slot].number = number;
    }
    ldr_mutex_unlock(&link->space_lock);
    return ok;
}

/* Every session opens a space once, when it is first used in it. */
static larder_status_t space_number(ldr_talk_t *v, const ldr_space_ref_t *space)
{
    ldr_space_msg_t m = {.shards = space->shards};

    if (space_known(v->link, space, &v->space)) {
        return LARDER_OK;
    }
    memcpy(m.id, space->id, sizeof(m.id));
    memcpy(m.check, space->check, sizeof(m.check));
    memcpy(m.key, space->key, sizeof(m.key));
    memcpy(m.label, space->label, sizeof(m.label));
    uint8_t *body = ldr_body(v->call.buffer);
    larder_status_t st =
        space->tenant == NULL
            ? ldr_talk_call(v, LDR_OP_SPACE, ldr_put_space(body, &m))
            : ldr_talk_call(v, LDR_OP_PEER_SPACE,
                            ldr_put_peer_space(body, space->tenant, &m));
    if (st != LARDER_OK) {
        return st;
    }
    if (!ldr_get_number(ldr_body(v->call.buffer), v->call.reply.body,
                        &v->space)) {
        return ldr_fail(LARDER_E_OFFLINE, "%s: a malformed answer",
                        v->remote->options.address);
    }
    return space_note(v->link, space, v->space)
               ? LARDER_OK
               : ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for a space");
}

larder_status_t ldr_talk_begin(ldr_talk_t *v, ldr_remote_t *r,
                               const ldr_space_ref_t *space,
                               const ldr_stop_t *stop)
{
    bool sick = false;

    v->remote = r;
    v->link = NULL;
    v->stop = *stop;
    v->space = 0;
    v->heard = false;
    ldr_tally(&r->calls, 1);
    larder_status_t st = ldr_breaker_enter(r, &v->trying);
    if (st != LARDER_OK) {
        ldr_tally(&r->offline, 1);
        return st;
    }
    v->call.buffer = ldr_buffer_take(r);
    if (v->call.buffer == NULL) {
        ldr_breaker_leave(r, v->trying);
        return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for a request");
    }
    st = r->links->take(r, stop, &v->link, &sick);
    if (st != LARDER_OK) {
        ldr_buffer_give(r, v->call.buffer);
        if (st == LARDER_E_CANCELED || (st == LARDER_E_DEADLINE && !sick)) {
            ldr_breaker_leave(r, v->trying);
            return st;
        }
        /* Full, on its way down, out of memory: not to be reached, whatever
         * its reason. The text says which. */
        if (st != LARDER_E_DEADLINE && st != LARDER_E_DENIED &&
            st != LARDER_E_VERSION && st != LARDER_E_INVALID &&
            st != LARDER_E_UNSUPPORTED) {
            st = LARDER_E_OFFLINE;
        }
        ldr_tally(&r->offline, 1);
        ldr_breaker_bad(r, v->trying, st, st == LARDER_E_DEADLINE);
        /* A connection that an earlier call began has had its time; this call
         * has some left, and does not wait for it: that is no deadline. */
        if (st == LARDER_E_DEADLINE &&
            ldr_stopped(r->clock, stop) == LARDER_OK) {
            st = LARDER_E_OFFLINE;
        }
        return st;
    }
    if (space != NULL) {
        st = space_number(v, space);
        if (st != LARDER_OK) {
            ldr_talk_end(v, st);
        }
    }
    return st;
}

larder_status_t ldr_talk_call(ldr_talk_t *v, uint16_t opcode, size_t bytes)
{
    v->call.opcode = opcode;
    v->call.bytes = (uint32_t)bytes;
    larder_status_t st = v->remote->links->call(v->link, &v->call, &v->stop);

    v->heard |= st == LARDER_OK;
    if (st == LARDER_OK && ldr_frame_status(&v->call.reply) < 0) {
        st = ldr_reply_failed(&v->call.reply, ldr_body(v->call.buffer));
    }
    return st;
}

void ldr_talk_end(ldr_talk_t *v, larder_status_t st)
{
    ldr_remote_t *r = v->remote;
    bool sick = __atomic_load_n(&v->link->sick, __ATOMIC_RELAXED);

    if (st == LARDER_E_OFFLINE || (st == LARDER_E_DEADLINE && sick)) {
        ldr_tally(&r->offline, 1);
    }
    if (st == LARDER_E_DEADLINE && sick) {
        __atomic_store_n(&v->link->sick, false, __ATOMIC_RELAXED);
        ldr_breaker_bad(r, v->trying, st, true);
    } else if (!v->heard &&
               (st == LARDER_E_DEADLINE || st == LARDER_E_CANCELED ||
                st == LARDER_E_OFFLINE)) {
        ldr_breaker_leave(r, v->trying);
    } else {
        ldr_breaker_good(r);
    }
    ldr_buffer_give(r, v->call.buffer);
    r->links->give(v->link);
}
