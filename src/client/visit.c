/* What a call to a daemon begins and ends with, and what it says of items. */
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "client/remote.h"

/* ---- buffers ---- */

ldr_buffer_t *ldr_buffer_take(ldr_remote_t *r)
{
    pthread_mutex_lock(&r->buffer_lock);
    ldr_buffer_t *b = r->buffers;
    if (b != NULL) {
        r->buffers = b->next;
    }
    pthread_mutex_unlock(&r->buffer_lock);
    /* Only what is touched of it becomes memory. */
    return b != NULL ? b : ldr_alloc(sizeof(*b));
}

void ldr_buffer_give(ldr_remote_t *r, ldr_buffer_t *b)
{
    if (b != NULL) {
        pthread_mutex_lock(&r->buffer_lock);
        b->next = r->buffers;
        r->buffers = b;
        pthread_mutex_unlock(&r->buffer_lock);
    }
}

/* ---- time ---- */

larder_status_t ldr_stopped(const ldr_stop_t *stop)
{
    if (stop->canceled != NULL &&
        __atomic_load_n(stop->canceled, __ATOMIC_RELAXED)) {
        return LARDER_E_CANCELED;
    }
    return stop->deadline_ns != UINT64_MAX &&
                   ldr_now_ns(&ldr_clock_real) >= stop->deadline_ns
               ? LARDER_E_DEADLINE
               : LARDER_OK;
}

uint32_t ldr_left_ms(uint64_t deadline_ns)
{
    uint64_t now_ns = ldr_now_ns(&ldr_clock_real);

    if (deadline_ns == UINT64_MAX) {
        return LARDER_FOREVER;
    }
    uint64_t ms =
        deadline_ns > now_ns ? ldr_div_up(deadline_ns - now_ns, 1000000u) : 0;
    return ms < LARDER_FOREVER ? (uint32_t)ms : LARDER_FOREVER - 1;
}

/* ---- visits ---- */

/* The session's number of a space, if it has opened it. */
static bool space_known(ldr_link_t *link, const ldr_space_ref_t *space,
                        uint32_t *number_p)
{
    pthread_mutex_lock(&link->space_lock);
    bool known = space->slot < link->space_room &&
                 link->spaces[space->slot].uid == space->uid;
    if (known) {
        *number_p = link->spaces[space->slot].number;
    }
    pthread_mutex_unlock(&link->space_lock);
    return known;
}

/* False: not enough memory. */
static bool space_note(ldr_link_t *link, const ldr_space_ref_t *space,
                       uint32_t number)
{
    bool ok = true;

    pthread_mutex_lock(&link->space_lock);
    if (space->slot >= link->space_room) {
        uint32_t room = 16;

        while (room <= space->slot) {
            room *= 2;
        }
        void *more = ldr_alloc(room * sizeof(*link->spaces));
        ok = more != NULL;
        if (ok) {
            if (link->space_room > 0) {
                memcpy(more, link->spaces,
                       link->space_room * sizeof(*link->spaces));
            }
            ldr_free(link->spaces);
            link->spaces = more;
            link->space_room = room;
        }
    }
    if (ok) {
        link->spaces[space->slot].uid = space->uid;
        link->spaces[space->slot].number = number;
    }
    pthread_mutex_unlock(&link->space_lock);
    return ok;
}

/* Every session opens a space once, when it is first used in it. */
static larder_status_t space_number(ldr_visit_t *v,
                                    const ldr_space_ref_t *space)
{
    ldr_space_msg_t m = {.shards = space->shards};

    if (space_known(v->link, space, &v->space)) {
        return LARDER_OK;
    }
    memcpy(m.id, space->id, sizeof(m.id));
    memcpy(m.check, space->check, sizeof(m.check));
    m.has_key = (v->link->features & LDR_FEATURE_SHARED) != 0;
    if (m.has_key) {
        memcpy(m.key, space->key, sizeof(m.key));
    }
    larder_status_t st = ldr_visit_call(
        v, LDR_OP_SPACE, ldr_put_space(ldr_body(v->call.buffer), &m));
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

larder_status_t ldr_visit_begin(ldr_visit_t *v, ldr_remote_t *r,
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
    larder_status_t st = ldr_gate_enter(r, &v->trying);
    if (st != LARDER_OK) {
        ldr_tally(&r->offline, 1);
        return st;
    }
    v->call.buffer = ldr_buffer_take(r);
    if (v->call.buffer == NULL) {
        ldr_gate_leave(r, v->trying);
        return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for a request");
    }
    st = r->carrier->take(r, stop, &v->link, &sick);
    if (st != LARDER_OK) {
        ldr_buffer_give(r, v->call.buffer);
        if (st == LARDER_E_CANCELED || (st == LARDER_E_DEADLINE && !sick)) {
            ldr_gate_leave(r, v->trying);
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
        ldr_gate_bad(r, v->trying, st, st == LARDER_E_DEADLINE);
        /* A connection that an earlier call began has had its time; this call
         * has some left, and does not wait for it: that is no deadline. */
        if (st == LARDER_E_DEADLINE && ldr_stopped(stop) == LARDER_OK) {
            st = LARDER_E_OFFLINE;
        }
        return st;
    }
    if (space != NULL) {
        st = space_number(v, space);
        if (st != LARDER_OK) {
            ldr_visit_end(v, st);
        }
    }
    return st;
}

larder_status_t ldr_visit_call(ldr_visit_t *v, uint16_t opcode, size_t bytes)
{
    v->call.opcode = opcode;
    v->call.bytes = (uint32_t)bytes;
    larder_status_t st = v->remote->carrier->call(v->link, &v->call, &v->stop);

    v->heard |= st == LARDER_OK;
    if (st == LARDER_OK && ldr_frame_status(&v->call.reply) < 0) {
        st = ldr_reply_failed(&v->call.reply, ldr_body(v->call.buffer));
    }
    return st;
}

void ldr_visit_end(ldr_visit_t *v, larder_status_t st)
{
    ldr_remote_t *r = v->remote;
    bool sick = __atomic_load_n(&v->link->sick, __ATOMIC_RELAXED);

    if (st == LARDER_E_OFFLINE || (st == LARDER_E_DEADLINE && sick)) {
        ldr_tally(&r->offline, 1);
    }
    if (st == LARDER_E_DEADLINE && sick) {
        __atomic_store_n(&v->link->sick, false, __ATOMIC_RELAXED);
        ldr_gate_bad(r, v->trying, st, true);
    } else if (!v->heard &&
               (st == LARDER_E_DEADLINE || st == LARDER_E_CANCELED ||
                st == LARDER_E_OFFLINE)) {
        ldr_gate_leave(r, v->trying);
    } else {
        ldr_gate_good(r);
    }
    ldr_buffer_give(r, v->call.buffer);
    r->carrier->give(v->link);
}

/* ---- items ---- */

void ldr_item_refuse(larder_op_t kind, larder_item_t *item, larder_status_t why)
{
    bool load = kind == LARDER_OP_GET || kind == LARDER_OP_EXISTS;

    item->status = why;
    if (load && (why == LARDER_E_OFFLINE || why == LARDER_E_DEADLINE)) {
        item->status = LARDER_MISS;
        item->cause = why == LARDER_E_OFFLINE ? LARDER_CAUSE_OFFLINE
                                              : LARDER_CAUSE_DEADLINE;
    }
}

void ldr_op_refuse(ldr_op_t *op, larder_status_t why)
{
    for (size_t i = 0; i < op->count; i++) {
        larder_item_t *item = &op->items[i];

        item->status = ldr_item_check(op->kind, op->shards, item);
        if (item->status == LARDER_OK) {
            ldr_item_refuse(op->kind, item, why);
        }
    }
}

void ldr_row_name(uint8_t *at, const larder_item_t *item, uint64_t room)
{
    ldr_name_row_t row = {
        .key = *item->key,
        .group = item->group,
        .shard = item->shard,
        .room = room,
    };

    ldr_put_name(at, &row);
}

ldr_save_row_t ldr_row_save(const larder_item_t *item, size_t length)
{
    ldr_save_row_t row = {
        .key = *item->key,
        .has_parent = item->parent != NULL,
        .depth = item->depth,
        .group = item->group,
        .shard = item->shard,
        .flags = item->flags,
        .ttl_ms = item->ttl_ms,
        .length = length,
    };

    if (item->parent != NULL) {
        row.parent = *item->parent;
    }
    return row;
}

larder_status_t ldr_staged(larder_status_t st, larder_cause_t cause,
                           uint32_t chunks, uint64_t bytes, larder_match_t *m)
{
    uint32_t all = m->chunks;
    uint32_t below = 0; /* chunks and bytes of the tiers below DRAM */
    uint64_t below_bytes = 0;

    if (st == LARDER_E_DEADLINE || st == LARDER_E_OFFLINE) {
        cause = st == LARDER_E_DEADLINE ? LARDER_CAUSE_DEADLINE
                                        : LARDER_CAUSE_OFFLINE;
        st = LARDER_OK;
    }
    if (st != LARDER_OK) {
        return st;
    }
    if (chunks == 0) {
        *m = (larder_match_t){.cause = cause};
        return st;
    }
    /* The match knows how all of it lay before; of a part, about. */
    if (chunks < all) {
        m->load_us = m->load_us * chunks / all;
        m->cause = cause;
    }
    m->chunks = chunks;
    for (int i = LARDER_TIER_SSD; i < LARDER_TIER_COUNT; i++) {
        if (chunks < all) {
            m->tier_chunks[i] =
                (uint32_t)((uint64_t)m->tier_chunks[i] * chunks / all);
        }
        m->tier_bytes[i] = bytes * m->tier_chunks[i] / chunks;
        below += m->tier_chunks[i];
        below_bytes += m->tier_bytes[i];
    }
    m->tier_chunks[LARDER_TIER_DRAM] = chunks - below;
    m->tier_bytes[LARDER_TIER_DRAM] = bytes - below_bytes;
    return st;
}

void ldr_report(ldr_visit_t *v, larder_item_t *const *items, uint32_t count)
{
    uint8_t *at = ldr_body(v->call.buffer);
    ldr_batch_msg_t batch = {.space = v->space, .count = count};

    ldr_tally(&v->remote->crc_failures, count);
    size_t bytes = ldr_put_batch(at, &batch);
    for (uint32_t i = 0; i < count; i++, bytes += LDR_NAME_BYTES) {
        ldr_row_name(at + bytes, items[i], 0);
    }
    /* It answers once it has looked for itself: whoever asks next finds what
     * it made of that. */
    ldr_visit_call(v, LDR_OP_REPORT, bytes);
}
