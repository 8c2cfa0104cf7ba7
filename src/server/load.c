/*
 * LEASE, GET, RELEASE: shards on their way out. LEASE names them, or places in
 * what is staged, by its token. LEASE and GET begin loads for all their names
 * and answer once every one of them is settled; a lease then keeps the hold in
 * the session's table, a GET's reply keeps it until it is sent.
 *
 * `pending` counts the loads of a request that have begun and are not settled,
 * and one more until all have begun: whoever takes the last one away has the
 * request settled, in its loop.
 *
 * Handlers run in the session's loop; a load is settled in any thread, with the
 * node's lock.
 */
#include "server/session.h"
#include "server/stage.h"
#include "server/bounce.h"

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

    if (load->status == LARDER_OK) {
        row->length = load->length;
        if (get && r->wants[i].bytes < load->length) {
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

/* Loads of one chunk's shards. */
static void begin_run(ldr_request_t *r, ldr_load_t *loads, uint32_t count)
{
    ldr_node_t *node = r->session->server->node;
    uint32_t i = count > 1 ? ldr_loads_begin_held(node, loads, count) : 0;

    for (; i < count; i++) {
        __atomic_add_fetch(&r->pending, 1, __ATOMIC_RELAXED);
        if (ldr_load_begin(node, &loads[i])) {
            __atomic_sub_fetch(&r->pending, 1, __ATOMIC_RELAXED);
        }
    }
}

static void loads_begin(ldr_request_t *r)
{
    ldr_session_t *s = r->session;
    ldr_node_t *node = s->server->node;
    bool asks = ldr_request_asks(r);

    r->settled.run = settled;
    r->pending = 1; /* until all have begun */
    for (r->next = 0; r->next < r->count;) {
        uint32_t run = ldr_request_run(r, r->next);
        ldr_load_t *loads = &r->loads[r->next];

        for (uint32_t i = 0; i < run; i++) {
            loads[i] = (ldr_load_t){
                .target = {r->space, r->shards, &r->items[r->next + i]},
                .ready = load_ready,
                .arg = r,
                .asks = asks,
            };
        }
        if (r->items[r->next].key != NULL) {
            begin_run(r, loads, run);
        }
        r->next += run;
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

void ldr_handle_lease(ldr_request_t *r)
{
    bool token = r->frame.body >= LDR_BATCH_HEAD_BYTES &&
                 (ldr_get_batch_flags(r->body) & LDR_BATCH_TOKEN) != 0;

    if ((token ? ldr_request_places(r) : ldr_request_names(r)) &&
        ldr_request_may_move(r)) {
        loads_begin(r);
    }
}

void ldr_handle_get(ldr_request_t *r)
{
    if (r->via->stream.ops->messages) {
        ldr_request_bad(r, LDR_REFUSAL_MALFORMED, "GET by ring");
    } else if (ldr_request_names(r) && ldr_request_may_move(r)) {
        loads_begin(r);
    }
}

void ldr_handle_release(ldr_request_t *r)
{
    ldr_session_t *s = r->session;
    ldr_ends_t ends;
    ldr_releasing_t of[LARDER_SHARDS_MAX];
    uint32_t n = 0;
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
        if (hold->kind != LDR_HOLD_LEASE || hold->strict != NULL) {
            ldr_hold_give(s, hold);
            continue;
        }
        of[n++] = (ldr_releasing_t){
            hold->chunk, row.how == LDR_END_CHECKED ? hold->shard : LDR_NIL};
        ldr_hold_remove(s, hold);
        if (n == LARDER_SHARDS_MAX) {
            ldr_node_release_all(s->server->node, of, n);
            n = 0;
        }
    }
    ldr_node_release_all(s->server->node, of, n);
    ldr_reply(r, st, NULL, 0);
}
