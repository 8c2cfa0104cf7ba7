/*
 * RESERVE, COMMIT, PUT: shards on their way in.
 *
 * A PUT's payload goes from the socket into the arena's pages; an item that
 * was refused goes to the loop's dump. One whose room is still to come (writes
 * under way will free it) parks: its connection is not read meanwhile.
 *
 * Of a PUT: the items before `next` are done; `unfilled` is what of the arena
 * takes the bytes of that one that have not come yet, and `got`
 * of its bytes came. What is parked is in the session's list `waiting`.
 */
#include <string.h>

#include "base/copy.h"
#include "base/mem.h"
#include "server/session.h"
#include "server/bounce.h"

#define PULSE_NS 5000000u /* clients think a silent daemon sick after 10 ms */

/* Reserves room for as many shards of one chunk. Gives how many have their
 * answer in results: OK, shard_of is reserved; behind those room is to come. */
static uint32_t reserve_some(ldr_request_t *r, uint32_t first, uint32_t count)
{
    ldr_target_t target = {r->space, r->shards, &r->items[first]};
    ldr_reserving_t of[LARDER_SHARDS_MAX];

    if (target.item->key == NULL) {
        return 1; /* refused for its fields */
    }
    for (uint32_t i = 0; i < count; i++) {
        of[i].bytes = r->wants[first + i].bytes;
        r->results[first + i].length = of[i].bytes;
    }
    ldr_node_reserve_run(r->home->server->node, &target, of, count);
    for (uint32_t i = 0; i < count; i++) {
        larder_status_t st = of[i].status;

        if (st == LARDER_PENDING && r->status == LARDER_OK) {
            return i;
        }
        r->results[first + i].status =
            st == LARDER_PENDING ? LARDER_E_FULL : st;
        r->shard_of[first + i] = st == LARDER_OK ? of[i].shard : LDR_NIL;
    }
    return count;
}

static void park(ldr_request_t *r)
{
    r->parked_ns = ldr_server_now(r->home->server);
    if (!r->parked) {
        r->pulse_ns = r->parked_ns;
        r->parked = true;
        ldr_request_wait(r);
    } else {
        ldr_server_due(r->home, r->parked_ns + LDR_PARK_NS);
        /* Who does not take what it has been sent needs no more of it. */
        if (!r->via->stream.ops->messages && r->via->head == NULL &&
            r->parked_ns - r->pulse_ns >= PULSE_NS) {
            r->pulse_ns = r->parked_ns;
            ldr_session_pulse(r->session);
        }
    }
}

static void unpark(ldr_request_t *r)
{
    if (r->parked) {
        ldr_request_unwait(r);
        r->parked = false;
    }
}

/* ---- RESERVE ---- */

/* isolation=strict: whether the bounce buffer has room for the item as well. It
 * is asked first: room that the arena makes in vain costs somebody's shard.
 * False: it has its answer. */
static bool has_pages(ldr_request_t *r, uint32_t i)
{
    ldr_session_t *s = r->session;
    uint32_t bytes = r->wants[i].bytes;

    if (s->bounce == NULL || r->items[i].key == NULL ||
        bytes > LARDER_VALUE_MAX || ldr_bounce_fits(s->bounce, bytes)) {
        return true;
    }
    r->results[i].status = ldr_save_present(r, i) ? LARDER_PRESENT
                           : s->hold_count > 0    ? LARDER_PENDING
                                                  : LARDER_E_FULL;
    if (r->results[i].status != LARDER_PENDING) {
        ldr_node_count_save(s->server->node, r->space, r->results[i].status);
    }
    return false;
}

/* Enters what was reserved in the session's table. False: it holds too much,
 * and so nothing of it was reserved. */
static bool item_enter(ldr_request_t *r, uint32_t i)
{
    ldr_session_t *s = r->session;
    ldr_node_t *node = s->server->node;
    ldr_hold_t hold = {
        .kind = LDR_HOLD_RESERVE,
        .shard = r->shard_of[i],
        .space = r->space,
        .length = (uint32_t)r->results[i].length,
    };

    r->results[i].lease = s->bounce == NULL || ldr_bounce_take(s->bounce, &hold)
                              ? ldr_hold_add(s, &hold)
                              : UINT64_MAX;
    if (r->results[i].lease != UINT64_MAX) {
        return true;
    }
    if (hold.strict != NULL) {
        ldr_bounce_give(s->bounce, &hold);
    }
    ldr_node_abort(node, hold.shard);
    r->shard_of[i] = LDR_NIL;
    r->results[i] =
        (ldr_result_row_t){.status = i > 0 ? LARDER_PENDING : LARDER_E_LIMIT};
    if (i == 0) {
        ldr_node_count_save(node, r->space, LARDER_E_LIMIT);
    }
    return false;
}

/* Enters what of these shards was reserved. False: the session holds too much,
 * and r->next is the first without an answer. */
static bool enter_some(ldr_request_t *r, uint32_t end)
{
    ldr_node_t *node = r->home->server->node;

    for (; r->next < end; r->next++) {
        uint32_t i = r->next;

        if (r->results[i].status != LARDER_OK) {
            ldr_node_count_save(node, r->space, r->results[i].status);
        } else if (!item_enter(r, i)) {
            for (uint32_t k = i + 1; k < end; k++) {
                if (r->shard_of[k] != LDR_NIL) {
                    ldr_node_abort(node, r->shard_of[k]);
                    r->shard_of[k] = LDR_NIL;
                }
                r->results[k].status = LARDER_OK; /* and asked for again */
            }
            return false;
        }
    }
    return true;
}

static void reserve_on(ldr_request_t *r)
{
    bool strict = r->session->bounce != NULL, more = true;

    while (more && r->next < r->count) {
        uint32_t i = r->next;

        if (!has_pages(r, i)) {
            r->next++;
            continue;
        }
        uint32_t run = strict ? 1 : ldr_request_run(r, i);
        uint32_t done = reserve_some(r, i, run);
        if (done == 0 && i == 0) {
            park(r);
            return;
        }
        /* Else the client has work: it asks again for the rest. */
        more = enter_some(r, i + done) && done == run;
    }
    for (uint32_t i = r->next; i < r->count; i++) {
        if (r->results[i].status == LARDER_OK) {
            r->results[i].status = LARDER_PENDING;
        }
    }
    unpark(r);
    ldr_reply_results(r, true, false);
}

/* False: it is over its rate. All items are counted, and nothing is answered:
 * the payload of a PUT still comes. */
static bool may_move(ldr_request_t *r)
{
    if (ldr_server_tenant_may(r->tenant, r->begin_ns)) {
        return true;
    }
    ldr_metrics_throttled(r->session->server->metrics, r->tenant->number);
    for (uint32_t i = 0; i < r->count; i++) {
        ldr_node_count_save(r->home->server->node, r->space, LARDER_E_BUSY);
    }
    return false;
}

void ldr_handle_reserve(ldr_request_t *r)
{
    if (!r->session->attached) {
        ldr_request_bad(r, LDR_REFUSAL_MALFORMED, "RESERVE without rings");
        return;
    }
    if (!ldr_request_saves(r)) {
        return;
    }
    if (may_move(r)) {
        reserve_on(r);
    } else {
        ldr_reply_fail(r, ldr_server_tenant_busy(r->tenant));
    }
}

/* Shards of a COMMIT that are there already, on their way to the node. */
typedef struct commits {
    ldr_committing_t of[LARDER_SHARDS_MAX];
    uint32_t row[LARDER_SHARDS_MAX]; /* whose they are */
    uint32_t count;
} commits_t;

static void commits_flush(ldr_request_t *r, commits_t *c)
{
    ldr_node_commit_all(r->home->server->node, c->of, c->count);
    for (uint32_t i = 0; i < c->count; i++) {
        r->results[c->row[i]].status = c->of[i].status;
    }
    c->count = 0;
}

/* How long the copy took only the client knows: it may hold its room for a
 * while before it fills it. */
static void commits_add(ldr_request_t *r, commits_t *c, uint32_t row,
                        const ldr_hold_t *hold, uint32_t crc)
{
    c->of[c->count] = (ldr_committing_t){
        .shard = hold->shard, .crc = crc, .space = hold->space};
    c->row[c->count++] = row;
    if (c->count == LARDER_SHARDS_MAX) {
        commits_flush(r, c);
    }
}

void ldr_handle_commit(ldr_request_t *r)
{
    ldr_session_t *s = r->session;
    commits_t commits;
    ldr_ends_t ends;

    commits.count = 0;
    if (!ldr_get_ends(r->body, r->frame.body, &ends)) {
        ldr_request_bad(r, LDR_REFUSAL_MALFORMED, "a malformed commit");
        return;
    }
    if (!ldr_request_batch(r, ends.count)) {
        ldr_reply_fail(
            r, ldr_fail(LARDER_E_NO_MEMORY, "not enough memory in the daemon"));
        return;
    }
    bool copies = false; /* a job does, out of the session's bounce buffer */
    for (uint32_t i = 0; i < ends.count; i++) {
        ldr_end_row_t row;
        ldr_hold_t *hold = NULL;

        if (ldr_get_end(ends.rows + (size_t)i * LDR_END_BYTES, &row)) {
            hold = ldr_hold_find(s, row.lease, LDR_HOLD_RESERVE);
        }
        if (hold == NULL) {
            r->results[i].status = LARDER_E_INVALID;
        } else if (row.how == LDR_END_ABORT) {
            ldr_hold_give(s, hold);
        } else if (s->bounce != NULL) {
            r->works[i] = hold->strict; /* the request's from here on */
            r->shard_of[i] = hold->shard;
            r->results[i].crc = row.crc;
            ldr_hold_remove(s, hold);
            copies = true;
        } else {
            commits_add(r, &commits, i, hold, row.crc);
            ldr_hold_remove(s, hold);
        }
    }
    commits_flush(r, &commits);
    if (copies) {
        ldr_bounce_commit(r);
    } else {
        ldr_reply_results(r, false, false);
    }
}

/* ---- PUT ---- */

/* Begins with the item at r->next. False: it parks. */
static bool item_begin(ldr_request_t *r)
{
    ldr_node_t *node = r->home->server->node;
    uint32_t i = r->next;
    LDR_ASSERT(i < r->count && r->shard_of[i] == LDR_NIL);
    larder_status_t st = r->results[i].status;

    if (st == LARDER_OK && r->status != LARDER_OK) {
        st = r->status;
    } else if (st == LARDER_OK) {
        if (reserve_some(r, i, 1) == 0) {
            park(r);
            return false;
        }
        st = r->results[i].status;
    }
    unpark(r);
    r->results[i].status = st;
    r->got = 0;
    r->unfilled = (ldr_iov_t){.at = r->iov};
    r->crc = 0;
    if (st == LARDER_OK) {
        r->unfilled.count =
            ldr_node_iov(node, r->shard_of[i], r->iov, LDR_READ_IOV);
    }
    return true;
}

static uint64_t item_bytes(const ldr_request_t *r, uint32_t i)
{
    return r->wants[i].bytes;
}

/* All bytes of the item are there. */
static void item_end(ldr_request_t *r)
{
    ldr_node_t *node = r->home->server->node;
    uint32_t i = r->next;
    LDR_ASSERT(i < r->count);
    larder_status_t st = r->results[i].status;

    if (r->shard_of[i] != LDR_NIL) {
        if (r->crc == r->wants[i].crc) {
            st = ldr_node_commit(node, r->shard_of[i], r->crc, 0);
            r->bytes_in += r->wants[i].bytes;
        } else {
            ldr_metrics_event(r->home->server->metrics,
                              LDR_EVENT_CHECKSUM_MISMATCH, 1);
            ldr_node_abort(node, r->shard_of[i]);
            st = LARDER_E_CORRUPT;
        }
        r->shard_of[i] = LDR_NIL;
        r->results[i].status = st;
    }
    if (r->status != LARDER_E_BUSY) { /* may_move() has counted all of those */
        ldr_node_count_save(node, r->space, st);
    }
    r->next++;
    r->unfilled.count = 0;
    r->got = 0;
}

static void put_reply(ldr_request_t *r)
{
    if (r->status == LARDER_E_BUSY) {
        ldr_reply_fail(r, ldr_server_tenant_busy(r->tenant));
    } else {
        ldr_reply_results(r, false, false);
    }
}

void ldr_handle_put(ldr_request_t *r)
{
    ldr_session_t *s = r->session;
    uint64_t payload = 0;

    if (!ldr_request_saves(r)) {
        if (s->state == LDR_SESSION_OPEN) {
            /* It was answered, but its payload still comes. */
            ldr_session_end(s, "a save into a space that is not open");
        }
        return;
    }
    for (uint32_t i = 0; i < r->count; i++) {
        uint64_t bytes = item_bytes(r, i);

        if (bytes > LDR_PAYLOAD_MAX) { /* and the sum cannot wrap */
            payload = UINT64_MAX;
            break;
        }
        payload += bytes;
        if (bytes == 0 || bytes > LARDER_VALUE_MAX) {
            r->results[i].status = LARDER_E_SIZE;
        }
    }
    if (payload != r->frame.payload) {
        ldr_request_bad(r, LDR_REFUSAL_MALFORMED,
                        "payload of another length than its items");
        return;
    }
    if (r->iov == NULL) {
        r->iov = ldr_alloc(LDR_READ_IOV * sizeof(*r->iov));
    }
    if (r->iov == NULL) {
        ldr_request_bad(r, LDR_REFUSAL_MEMORY, "not enough memory");
        return;
    }
    if (!may_move(r)) {
        r->status = LARDER_E_BUSY; /* every item; the payload is dumped */
    }
    r->unfilled.count = 0;
    r->got = 0;
    if (payload == 0) {
        put_reply(r);
    } else {
        s->put = r;
        ldr_server_due(r->home, r->deadline_ns);
    }
}

uint32_t ldr_put_iov(ldr_request_t *r, uint64_t bytes, struct iovec *iov,
                     uint32_t max)
{
    while (r->got == 0 && r->unfilled.count == 0) {
        if (item_bytes(r, r->next) == 0) {
            item_end(r); /* nothing comes for it */
            continue;
        }
        if (!item_begin(r)) {
            return 0;
        }
        break;
    }
    LDR_ASSERT(r->next < r->count && r->got < item_bytes(r, r->next));
    uint64_t left = item_bytes(r, r->next) - r->got;
    if (r->unfilled.count == 0) {
        iov[0].iov_base = r->home->dump;
        iov[0].iov_len = left < LDR_DUMP_BYTES ? left : LDR_DUMP_BYTES;
        return 1;
    }
    return ldr_iov_next(&r->unfilled, bytes, iov, max);
}

bool ldr_put_got(ldr_request_t *r, size_t bytes)
{
    struct iovec part;

    r->got += bytes;
    LDR_ASSERT(r->next < r->count && r->got <= item_bytes(r, r->next));
    while (ldr_iov_next(&r->unfilled, bytes, &part, 1) > 0) {
        r->crc = ldr_crc32c(r->crc, part.iov_base, part.iov_len);
        ldr_iov_skip(&r->unfilled, part.iov_len);
        bytes -= part.iov_len;
    }
    if (r->got == item_bytes(r, r->next)) {
        item_end(r);
    }
    while (r->next < r->count && item_bytes(r, r->next) == 0 && r->got == 0) {
        item_end(r);
    }
    if (r->next < r->count) {
        return false;
    }
    r->session->put = NULL;
    put_reply(r);
    return true;
}

void ldr_save_undo(ldr_request_t *r)
{
    ldr_node_t *node = r->home->server->node;

    if (r->frame.opcode == LDR_OP_PUT && r->next < r->count &&
        r->shard_of[r->next] != LDR_NIL) {
        ldr_node_abort(node, r->shard_of[r->next]);
        r->shard_of[r->next] = LDR_NIL;
        r->results[r->next].status = r->status;
        r->unfilled.count = 0;
    }
}

void ldr_put_late(ldr_request_t *r)
{
    if (r->status == LARDER_OK) {
        r->status = LARDER_E_DEADLINE;
        ldr_save_undo(r);
    }
}

void ldr_save_again(ldr_request_t *r)
{
    if (r->frame.opcode != LDR_OP_PUT) {
        reserve_on(r);
        return;
    }
    ldr_session_t *s = r->session;
    if (item_begin(r)) {
        ldr_session_read(s);
    }
}
