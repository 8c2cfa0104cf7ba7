/*
 * LEASE, GET, RELEASE: shards on their way out. LEASE names them, or places in
 * what is staged, by its token. LEASE and GET begin loads for all their names
 * and answer once every one of them is settled; a lease then keeps the hold in
 * the session's table, a GET's reply keeps it until it is sent.
 *
 * `pending` counts the loads of a request that have begun and are not settled,
 * and one more until all have begun: whoever takes the last one away has the
 * request settled, in its loop.
 */
#include "server/session.h"
#include "server/stage.h"
#include "server/bounce.h"

#define LEASE_MAX LARDER_BATCH_MAX /* names looked at in one request */

/* One load has come to its end. */
static void load_ready(ldr_load_t *load)
{
    ldr_request_t *r = load->arg;

    LDR_HELD(&r->home->server->node->lock);
    uint32_t before = __atomic_fetch_sub(&r->pending, 1, __ATOMIC_ACQ_REL);
    LDR_ASSERT(before > 0);
    if (before == 1) {
        ldr_loop_post(&r->home->loop, &r->settled);
    }
}

/* Gives the load's results to its row; the hold stays with OK. */
static void load_settle(ldr_request_t *r, uint32_t i, bool get)
{
    ldr_node_t *node = r->session->server->node;
    ldr_load_t *load = &r->loads[i];
    ldr_result_row_t *row = &r->results[i];
    ldr_name_row_t name;

    if (load->status == LARDER_OK) {
        row->length = load->length;
        if (get && ldr_get_name(r->rows + (size_t)i * LDR_NAME_BYTES, &name) &&
            name.room < load->length) {
            load->status = LARDER_E_SIZE;
        }
    }
    bool keep = load->status == LARDER_OK;
    uint32_t shard = load->shard;
    if (keep) {
        const ldr_shard_t *sh = &node->store.shards[shard];

        row->crc = sh->crc; /* it does not change while it is held */
        row->flags = __atomic_load_n(&sh->checked, __ATOMIC_RELAXED)
                         ? LDR_RESULT_CHECKED
                         : 0;
    }
    ldr_load_end(node, load, keep);
    row->status = load->status;
    row->cause = load->cause;
    if (keep) {
        r->shard_of[i] = shard;
    }
}

/* Enters what was found in the session's table. */
static void lease(ldr_request_t *r, uint32_t i)
{
    ldr_session_t *s = r->session;
    ldr_hold_t hold = {
        .kind = LDR_HOLD_LEASE,
        .shard = r->shard_of[i],
        .chunk = r->loads[i].chunk,
        .space = r->space,
        .length = (uint32_t)r->results[i].length,
    };

    if (r->shard_of[i] == LDR_NIL) {
        return;
    }
    r->results[i].lease = ldr_hold_add(s, &hold);
    if (r->results[i].lease == UINT64_MAX) {
        ldr_node_release(s->server->node, hold.chunk);
        r->shard_of[i] = LDR_NIL;
        r->results[i] = (ldr_result_row_t){.status = i > 0 ? LARDER_PENDING
                                                           : LARDER_E_LIMIT};
    }
}

static void stage_measure(ldr_request_t *r)
{
    ldr_node_t *node = r->session->server->node;
    uint64_t bytes[LARDER_TIERS_MAX] = {0};

    for (uint32_t i = 0; i < r->next; i++) {
        if (r->shard_of[i] != LDR_NIL) {
            bytes[r->loads[i].tier] += r->loads[i].length;
        }
    }
    ldr_node_measured_loads(node, bytes,
                            ldr_server_now(r->home->server) - r->begin_ns);
}

/* All loads are settled. */
static void finish(ldr_request_t *r)
{
    bool get = r->frame.opcode == LDR_OP_GET;
    bool held = false; /* by an item before: room comes when it is released */
    uint64_t payload = 0;

    for (uint32_t i = 0; i < r->next; i++) {
        if (r->items[i].key == NULL) {
            continue; /* refused for its fields */
        }
        if (get && held && r->loads[i].status == LARDER_OK &&
            payload + r->loads[i].length > LDR_PAYLOAD_MAX) {
            /* More than one frame carries: the client asks again. */
            ldr_node_release(r->session->server->node, r->loads[i].chunk);
            r->results[i].status = LARDER_PENDING;
            continue;
        }
        load_settle(r, i, get);
        payload += r->shard_of[i] != LDR_NIL ? r->results[i].length : 0;
        if (held && r->results[i].cause == LARDER_CAUSE_FULL) {
            r->results[i] = (ldr_result_row_t){.status = LARDER_PENDING};
        }
        held |= r->shard_of[i] != LDR_NIL;
    }
    for (uint32_t i = r->next; i < r->count; i++) {
        r->results[i].status = LARDER_PENDING;
    }
    stage_measure(r);
    if (!get && r->session->bounce != NULL) {
        ldr_bounce_lease(r); /* copies first, and answers then */
        return;
    }
    for (uint32_t i = 0; !get && i < r->next; i++) {
        lease(r, i);
    }
    ldr_reply_results(r, !get && r->session->attached, get);
}

static void settled(ldr_task_t *task)
{
    ldr_request_t *r =
        (ldr_request_t *)((char *)task - offsetof(ldr_request_t, settled));
    ldr_session_t *s = r->session;
    uint64_t begin_ns = ldr_server_now(r->home->server);

    if (s == NULL) { /* it ended while this was posted */
        ldr_node_t *node = r->home->server->node;

        for (uint32_t i = 0; i < r->next; i++) {
            if (r->items[i].key != NULL) {
                ldr_load_end(node, &r->loads[i], false);
            }
        }
        ldr_request_free(r);
        return;
    }
    ldr_request_unwait(r);
    finish(r);
    ldr_turn_used(s, ldr_server_now(s->server) - begin_ns);
}

void ldr_loads_expire(ldr_request_t *r, larder_status_t why)
{
    ldr_node_t *node = r->home->server->node;

    if (ldr_loop_posted(&r->home->loop, &r->settled)) {
        return; /* they were just in time */
    }
    for (uint32_t i = 0; i < r->next; i++) {
        if (r->items[i].key != NULL) {
            ldr_load_abandon(node, &r->loads[i], why);
        }
    }
    /* No ready() comes from here on; the last one may have. */
    if (!ldr_loop_posted(&r->home->loop, &r->settled)) {
        settled(&r->settled);
    }
}

static void loads_begin(ldr_request_t *r)
{
    ldr_session_t *s = r->session;
    ldr_node_t *node = s->server->node;
    uint32_t max = r->count < LEASE_MAX ? r->count : LEASE_MAX;
    bool asks = ldr_request_asks(r);

    r->settled.run = settled;
    r->pending = 1; /* until all have begun */
    for (r->next = 0; r->next < max; r->next++) {
        uint32_t i = r->next;
        const uint8_t *at = r->rows + (size_t)i * LDR_NAME_BYTES;
        larder_item_t *item = &r->items[i];
        ldr_load_t *load = &r->loads[i];
        ldr_name_row_t name;

        if (!ldr_get_name(at, &name) || name.group >= LARDER_GROUPS_MAX ||
            name.shard >= r->shards) {
            r->results[i].status = LARDER_E_INVALID;
            continue;
        }
        item->key = (const larder_key_t *)at; /* a row begins with its key */
        item->group = name.group;
        item->shard = name.shard;
        *load = (ldr_load_t){
            .target = {r->space, r->shards, item},
            .ready = load_ready,
            .arg = r,
            .asks = asks,
        };
        __atomic_add_fetch(&r->pending, 1, __ATOMIC_RELAXED);
        if (ldr_load_begin(node, load)) {
            __atomic_sub_fetch(&r->pending, 1, __ATOMIC_RELAXED);
        }
    }
    if (__atomic_load_n(&r->pending, __ATOMIC_RELAXED) > 1) {
        ldr_node_reads_go(node);
    }
    if (__atomic_sub_fetch(&r->pending, 1, __ATOMIC_ACQ_REL) == 0) {
        finish(r);
    } else {
        ldr_request_wait(r);
    }
}

bool ldr_request_may_move(ldr_request_t *r)
{
    if (ldr_server_tenant_may(r->tenant, r->begin_ns)) {
        return true;
    }
    ldr_metrics_throttled(r->session->server->metrics, r->tenant->number);
    ldr_reply_fail(r, ldr_server_tenant_busy(r->tenant));
    return false;
}

/* Writes the names of the places behind the request, as if it had come with
 * them: a shard that is held keeps its key. False: it was answered. */
static bool redeem(ldr_request_t *r)
{
    ldr_server_t *server = r->home->server;
    const ldr_store_t *store = &server->node->store;
    ldr_batch_msg_t batch;
    larder_token_t token;

    if (!ldr_get_redeem(r->body, r->frame.body, &batch, &token)) {
        ldr_request_bad(r, LDR_REFUSAL_MALFORMED, "a malformed lease");
        return false;
    }
    if (!ldr_request_space(r, batch.space)) {
        return false;
    }
    size_t head = LDR_FRAME_BYTES + r->frame.body, at = head;
    size_t places = (size_t)(batch.rows - r->bytes);
    ldr_stage_t *stage = ldr_stage_find(server, &token, r->tenant->number);
    bool made =
        ldr_request_grow(r, head + (size_t)batch.count * LDR_NAME_BYTES) &&
        ldr_request_batch(r, batch.count);
    for (uint32_t i = 0; made && i < batch.count; i++, at += LDR_NAME_BYTES) {
        ldr_place_row_t place;
        ldr_name_row_t name = {.room = (batch.flags & LDR_BATCH_STAYS) == 0};

        ldr_get_place(r->bytes + places + (size_t)i * LDR_PLACE_BYTES, &place);
        uint32_t shard = stage != NULL && stage->space == r->space
                             ? ldr_stage_at(stage, &place)
                             : LDR_NIL;
        name.group = place.group;
        name.shard = place.shard;
        if (shard != LDR_NIL) {
            name.key = store->chunks[store->shards[shard].chunk].key;
        } /* else zeros: nothing has such a key, and it is a miss */
        ldr_put_name(r->bytes + at, &name);
    }
    if (stage != NULL) {
        ldr_stage_unref(server, stage);
    }
    if (!made) {
        ldr_reply_fail(
            r, ldr_fail(LARDER_E_NO_MEMORY, "not enough memory in the daemon"));
        return false;
    }
    r->body = r->bytes + LDR_FRAME_BYTES;
    r->flags = batch.flags;
    r->rows = r->bytes + head;
    return true;
}

void ldr_handle_lease(ldr_request_t *r)
{
    bool token = r->frame.body >= LDR_BATCH_HEAD_BYTES &&
                 (ldr_get_batch_flags(r->body) & LDR_BATCH_TOKEN) != 0;

    if ((token ? redeem(r) : ldr_request_names(r, LDR_NAME_BYTES)) &&
        ldr_request_may_move(r)) {
        loads_begin(r);
    }
}

void ldr_handle_get(ldr_request_t *r)
{
    if (r->via->stream.ops->messages) {
        ldr_request_bad(r, LDR_REFUSAL_MALFORMED, "GET by ring");
    } else if (ldr_request_names(r, LDR_NAME_BYTES) &&
               ldr_request_may_move(r)) {
        loads_begin(r);
    }
}

void ldr_handle_release(ldr_request_t *r)
{
    ldr_session_t *s = r->session;
    ldr_ends_t ends;
    larder_status_t st = LARDER_OK;

    if (!ldr_get_ends(r->body, r->frame.body, &ends)) {
        ldr_request_bad(r, LDR_REFUSAL_MALFORMED, "a malformed release");
        return;
    }
    for (uint32_t i = 0; i < ends.count; i++) {
        ldr_end_row_t row;
        ldr_hold_t *hold = NULL;

        if (ldr_get_end(ends.rows + (size_t)i * LDR_END_BYTES, &row)) {
            hold = ldr_hold_find(s, row.lease, LDR_HOLD_LEASE);
            hold = hold != NULL ? hold
                                : ldr_hold_find(s, row.lease, LDR_HOLD_STAGE);
        }
        if (hold == NULL) {
            st = LARDER_E_INVALID;
            continue;
        }
        if (row.how == LDR_END_CHECKED && hold->kind == LDR_HOLD_LEASE &&
            hold->strict == NULL) {
            ldr_node_checked(s->server->node, hold->shard);
        }
        ldr_hold_give(s, hold);
    }
    ldr_reply(r, st, NULL, 0);
}
