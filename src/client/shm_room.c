/*
 * Saving in place by shared memory: reserve, hand out the segments, commit.
 *
 * A reservation belongs to its lease, and one thread at a time uses it. Its
 * mappings are users of their extents from reserve to commit or drop. After a
 * commit was sent nothing of the room may be written.
 */
#include "client/shm_path.h"

#define TRIES_MAX 3u /* for what had no room, with nothing coming of it */

/* ---- reserving ---- */

typedef struct rooms {
    const larder_item_t *items;
    larder_lease_t *lease;
    unsigned tries;
} rooms_t;

static void rooms_ask(ldr_transfer_t *t, ldr_ask_t *q)
{
    const rooms_t *r = t->own;
    ldr_rows_out_t rows = ldr_rows_begin(&t->talk, ldr_body(q->call.buffer),
                                         LDR_SAVE_BYTES, NULL);
    /* A bounce buffer is small. */
    uint32_t most = t->answers ? LDR_ASK_FEW : LDR_ASK_ITEMS;

    while (t->unasked.count > 0 && q->count < most) {
        uint32_t i = ldr_unasked_pop(&t->unasked);

        ldr_rows_add(&rows, &r->items[i], r->lease->rooms[i].length, 0);
        q->item[q->count++] = (uint16_t)i;
    }
    q->call.opcode = LDR_OP_RESERVE;
    q->call.bytes = (uint32_t)ldr_rows_end(&rows, 0);
}

/* Takes an answer that is final. */
static void room_take(ldr_transfer_t *t, ldr_held_t *h, ldr_room_t *room,
                      const ldr_result_row_t *row, const uint8_t *segs)
{
    room->status = row->status;
    if (row->status != LARDER_OK) {
        return;
    }
    room->lease = row->lease;
    room->seg_count = row->seg_count;
    room->status = row->length == room->length
                       ? ldr_held_map(h, row, segs, &t->talk.stop, &room->seg)
                       : LARDER_E_OFFLINE;
    if (room->status != LARDER_OK) {
        ldr_end_row_t end = {.lease = row->lease, .how = LDR_END_ABORT};

        ldr_shm_ends(h->session, LDR_OP_COMMIT, &end, 1);
    }
}

static void rooms_take(ldr_transfer_t *t, ldr_ask_t *q,
                       const ldr_results_t *results)
{
    rooms_t *r = t->own;
    ldr_rows_t rows = {.results = results};

    for (uint32_t i = 0; i < q->count; i++) {
        ldr_result_row_t row;
        const uint8_t *segs;

        if (!ldr_transfer_row(t, NULL, &rows, &row, &segs)) {
            return;
        }
        if (row.status == LARDER_PENDING) {
            ldr_unasked_push(&t->unasked, q->item[i]);
        } else {
            room_take(t, r->lease->held, &r->lease->rooms[q->item[i]], &row,
                      segs);
            t->progress = true;
        }
    }
    r->tries = t->progress ? 0 : r->tries + 1;
    t->over = r->tries == TRIES_MAX;
}

/* Every room that waits gets this for an answer. */
static uint32_t rooms_settle(larder_lease_t *lease, larder_status_t why)
{
    uint32_t ok = 0;

    for (uint32_t i = 0; i < lease->room_count; i++) {
        if (lease->rooms[i].status == LARDER_PENDING) {
            lease->rooms[i].status = why;
        }
        ok += lease->rooms[i].status == LARDER_OK;
    }
    return ok;
}

larder_status_t ldr_shm_reserve(larder_space_t *space, larder_item_t *items,
                                size_t count, uint64_t deadline_ns,
                                larder_lease_t *lease)
{
    static const ldr_transfer_ops_t ops = {.ask = rooms_ask,
                                           .take = rooms_take};
    ldr_stop_t stop = {NULL, deadline_ns};
    rooms_t r = {.items = items, .lease = lease};
    ldr_transfer_t t;
    larder_status_t st =
        ldr_transfer_begin(&t, space->lar, NULL, &space->ref, &stop, &ops);

    for (size_t i = 0; i < count; i++) {
        if (lease->rooms[i].status == LARDER_OK) {
            lease->rooms[i].status = LARDER_PENDING;
        }
        if (st == LARDER_OK && lease->rooms[i].status == LARDER_PENDING) {
            ldr_unasked_push(&t.unasked, (uint32_t)i);
        }
    }
    if (st != LARDER_OK) {
        rooms_settle(lease, st);
        return LARDER_OK;
    }
    t.own = &r;
    lease->held = ldr_held_new(ldr_transfer_shm(&t), 1);
    if (lease->held == NULL) {
        ldr_transfer_end(&t, LARDER_OK);
        return LARDER_E_NO_MEMORY;
    }
    ldr_transfer_run(&t);
    st = t.status;
    ldr_transfer_end(&t, st);
    if (rooms_settle(lease, st != LARDER_OK ? st : LARDER_E_FULL) == 0) {
        ldr_held_free(lease->held);
        lease->held = NULL;
    }
    return LARDER_OK;
}

/* ---- committing ---- */

/* How a room ends; sets its status if it is not kept. */
static ldr_end_row_t room_end(larder_lease_t *lease, uint32_t i,
                              const uint8_t *keep, const uint32_t *crcs,
                              const ldr_stop_t *stop)
{
    const ldr_held_t *h = lease->held;
    ldr_room_t *room = &lease->rooms[i];
    const ldr_piece_map_t *pieces = h->pieces + room->seg;
    ldr_end_row_t end = {.lease = room->lease, .how = LDR_END_ABORT};

    if (keep != NULL && keep[i] == 0) {
        room->status = LARDER_E_CANCELED;
        return end;
    }
    if (crcs != NULL) {
        end.crc = crcs[i];
    } else if (!h->session->strict) {
        room->status = LARDER_E_INVALID; /* see larder_commit() */
    } else {
        room->status = ldr_pieces_crc(lease->lar->clock, pieces,
                                      room->seg_count, stop, &end.crc);
    }
    if (room->status == LARDER_OK) {
        ldr_pieces_pad(&pieces[room->seg_count - 1]);
        end.how = LDR_END_PLAIN;
    }
    return end;
}

/* Fills in how each room ends; gives their number. */
static uint32_t commit_rows(larder_lease_t *lease, const uint8_t *keep,
                            const uint32_t *crcs, const ldr_stop_t *stop,
                            uint8_t *at, uint32_t *index)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < lease->room_count; i++) {
        if (lease->rooms[i].status != LARDER_OK) {
            continue;
        }
        ldr_end_row_t end = room_end(lease, i, keep, crcs, stop);
        ldr_put_end(at + LDR_ENDS_HEAD_BYTES + (size_t)n * LDR_END_BYTES, &end);
        index[n++] = i;
    }
    if (n > 0) {
        ldr_put_ends(at, n);
    }
    return n;
}

/* Nobody waits for an answer, nor for a daemon that is not there. What it made
 * of it (the space was reset meanwhile) nobody hears. */
static larder_status_t commit_silently(larder_lease_t *lease,
                                       const uint8_t *keep,
                                       const uint32_t *crcs,
                                       const ldr_stop_t *stop)
{
    const ldr_held_t *h = lease->held;
    ldr_end_row_t ends[LDR_ASK_ITEMS];
    uint32_t n = 0;

    for (uint32_t i = 0; i < lease->room_count; i++) {
        if (lease->rooms[i].status == LARDER_OK) {
            ends[n++] = room_end(lease, i, keep, crcs, stop);
        }
        if (n == LDR_ASK_ITEMS || i + 1 == lease->room_count) {
            ldr_shm_ends(h->session, LDR_OP_COMMIT, ends, n);
            n = 0;
        }
    }
    if (!ldr_shm_dead(h->session)) {
        return LARDER_OK;
    }
    for (uint32_t i = 0; i < lease->room_count; i++) {
        if (lease->rooms[i].status == LARDER_OK) {
            lease->rooms[i].status = LARDER_E_OFFLINE;
        }
    }
    return ldr_fail(LARDER_E_OFFLINE,
                    "the daemon that had the reservation is gone");
}

/* Nobody knows whether it was committed: what was not is given back; the
 * daemon does not mind the rest. */
static void commit_failed(larder_lease_t *lease, larder_status_t st)
{
    const ldr_held_t *h = lease->held;

    for (uint32_t i = 0; i < lease->room_count; i++) {
        ldr_room_t *room = &lease->rooms[i];
        ldr_end_row_t end = {.lease = room->lease, .how = LDR_END_ABORT};

        if (room->lease != 0) {
            ldr_shm_ends(h->session, LDR_OP_COMMIT, &end, 1);
        }
        if (room->status == LARDER_OK) {
            room->status = st;
        }
    }
}

static larder_status_t commit_call(larder_lease_t *lease, ldr_talk_t *v,
                                   const uint32_t *index, uint32_t count)
{
    uint8_t *at = ldr_body(v->call.buffer);
    ldr_results_t results;
    larder_status_t st = ldr_talk_call(
        v, LDR_OP_COMMIT, LDR_ENDS_HEAD_BYTES + (size_t)count * LDR_END_BYTES);

    if (st == LARDER_OK &&
        (!ldr_get_results(at, v->call.reply.body, &results) ||
         results.count != count)) {
        st = LARDER_E_OFFLINE;
    }
    for (uint32_t i = 0; st == LARDER_OK && i < count; i++) {
        ldr_room_t *room = &lease->rooms[index[i]];
        ldr_result_row_t row;

        if (room->status == LARDER_OK &&
            ldr_get_result(results.rows + (size_t)i * LDR_RESULT_BYTES, &row)) {
            room->status = row.status;
        }
    }
    return st;
}

larder_status_t ldr_shm_commit(larder_lease_t *lease, const uint8_t *keep,
                               const uint32_t *crcs, uint64_t deadline_ns)
{
    const ldr_held_t *h = lease->held;
    ldr_stop_t stop = {NULL, deadline_ns};
    ldr_talk_t v;
    uint32_t index[LARDER_BATCH_MAX];

    /* From a bounce buffer the daemon still has to copy: it is waited for. */
    if (lease->silent && !h->session->strict) {
        return commit_silently(lease, keep, crcs, &stop);
    }
    bool unsafe = crcs == NULL && !h->session->strict;
    larder_status_t st = ldr_talk_begin(&v, lease->lar->remote, NULL, &stop);
    if (st == LARDER_OK && v.link != &h->session->link) {
        ldr_talk_end(&v, st); /* another session: that one is gone */
        st = ldr_fail(LARDER_E_OFFLINE,
                      "the daemon that had the reservation is gone");
    } else if (st == LARDER_OK) {
        uint32_t n = commit_rows(lease, keep, crcs, &stop,
                                 ldr_body(v.call.buffer), index);

        st = n > 0 ? commit_call(lease, &v, index, n) : LARDER_OK;
        ldr_talk_end(&v, st);
    }
    if (st != LARDER_OK) {
        commit_failed(lease, st);
    }
    return st == LARDER_OK && unsafe
               ? ldr_fail(LARDER_E_INVALID,
                          "other processes can write to this memory: give the "
                          "checksums of what was written, by larder_crc32c()")
               : st;
}
