/*
 * STAGE: a request that goes on in steps (node/stage.h), in its session's loop,
 * and what comes of it: see stage.h.
 *
 * A STAGE that waits, or has done enough for one go, is one of its session's
 * `waiting`; its task `settled` takes it up again. `pending` is 1 while it
 * waits for a load: whoever takes that away posts the task, so that it is
 * posted once, and never for a request that is over.
 *
 * One that waits for what is promised (node/promise.h) has not begun: it has
 * `promised` set, holds nothing, and its task begins it.
 */
#include "server/stage.h"

#include <string.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/grow.h"
#include "base/mem.h"
#include "base/thread.h"
#include "node/promise.h"
#include "server/session.h"
#include "tier/peer/peer.h"

/* ---- what is staged ---- */

static ldr_stage_t **bucket(ldr_server_t *server, const larder_token_t *token)
{
    return &server->stages[token->bytes[0] % LDR_STAGE_BUCKETS];
}

ldr_stage_t *ldr_stage_new(uint32_t total)
{
    ldr_stage_t *stage =
        ldr_alloc(sizeof(*stage) + (size_t)total * sizeof(stage->ids[0]));

    if (stage != NULL) {
        stage->refs = 1;
    }
    return stage;
}

void ldr_stage_enter(ldr_server_t *server, ldr_stage_t *stage)
{
    ldr_stage_t **head = bucket(server, &stage->token);

    ldr_mutex_lock(&server->stage_lock);
    stage->next = *head;
    *head = stage;
    ldr_mutex_unlock(&server->stage_lock);
}

ldr_stage_t *ldr_stage_find(ldr_server_t *server, const larder_token_t *token,
                            uint32_t tenant)
{
    ldr_mutex_lock(&server->stage_lock);
    ldr_stage_t *stage = *bucket(server, token);
    while (stage != NULL &&
           (stage->tenant != tenant ||
            memcmp(&stage->token, token, sizeof(*token)) != 0)) {
        stage = stage->next;
    }
    if (stage != NULL) {
        stage->refs++;
    }
    ldr_mutex_unlock(&server->stage_lock);
    return stage;
}

void ldr_stage_unref(ldr_server_t *server, ldr_stage_t *stage)
{
    ldr_mutex_lock(&server->stage_lock);
    LDR_ASSERT(stage->refs > 0);
    bool last = --stage->refs == 0;
    ldr_stage_t **link = bucket(server, &stage->token);
    while (last && *link != NULL && *link != stage) {
        link = &(*link)->next;
    }
    if (last && *link == stage) {
        *link = stage->next;
    }
    ldr_mutex_unlock(&server->stage_lock);
    if (last) {
        ldr_staged_release(server->node, stage->ids, stage->total);
        ldr_free(stage);
    }
}

uint32_t ldr_stage_at(const ldr_stage_t *stage, const ldr_place_row_t *place)
{
    uint64_t at = 0;

    for (uint32_t i = 0; i < stage->need_count; i++) {
        ldr_span_t span = ldr_need_span(&stage->needs[i], stage->chunks);

        if (stage->needs[i].group == place->group) {
            at += (uint64_t)(place->chunk - span.first) * stage->shards +
                  place->shard;
            return place->chunk >= span.first && place->chunk < span.end &&
                           place->shard < stage->shards
                       ? stage->ids[at]
                       : LDR_NIL;
        }
        at += (uint64_t)(span.end - span.first) * stage->shards;
    }
    return LDR_NIL;
}

/* ---- the request ---- */

/* With the node's lock: one that was waited for has come. */
static void load_ready(ldr_load_t *load)
{
    ldr_request_t *r = load->arg;

    LDR_HELD(&r->home->server->node->lock);
    if (__atomic_exchange_n(&r->pending, 0, __ATOMIC_ACQ_REL) != 0) {
        ldr_loop_post(&r->home->loop, &r->settled);
    }
}

static void staging_free(ldr_request_t *r)
{
    ldr_free(r->staging);
    r->staging = NULL;
}

/* Answers. What is held is the session's from here on, if it is told. */
static void answer(ldr_request_t *r)
{
    ldr_session_t *s = r->session;
    const ldr_staging_t *g = r->staging;
    ldr_stage_t *stage = r->stage;
    ldr_staged_t reply = {.match = g->match};
    uint8_t body[LDR_STAGED_BYTES];
    larder_status_t st = LARDER_OK;

    r->stage = NULL;
    if (stage != NULL) {
        stage->total = g->total;
        stage->chunks = g->match.chunks;
    }
    if (stage != NULL && stage->total > 0) {
        ldr_hold_t hold = {
            .kind = LDR_HOLD_STAGE, .space = r->space, .stage = stage};

        ldr_put64(stage->token.bytes, ldr_rand_entropy());
        ldr_put64(stage->token.bytes + 8, ldr_rand_entropy());
        reply.token = stage->token;
        reply.lease = ldr_hold_add(s, &hold);
        if (reply.lease == UINT64_MAX) {
            st = ldr_fail(LARDER_E_LIMIT, "too many leases");
        } else {
            ldr_stage_enter(s->server, stage);
            stage = NULL;
        }
    }
    if (stage != NULL) {
        ldr_stage_unref(s->server, stage);
    }
    staging_free(r);
    if (st == LARDER_OK) {
        ldr_reply(r, st, body, ldr_put_staged(body, &reply));
    } else {
        ldr_reply_fail(r, st);
    }
}

static void step(ldr_request_t *r)
{
    ldr_staging_state_t state;

    do {
        state = ldr_staging_step(r->staging);
        if (state == LDR_STAGING_WAITS) {
            __atomic_store_n(&r->pending, 1, __ATOMIC_RELEASE);
        }
        /* It may have come in between, and found nobody waiting. */
    } while (state == LDR_STAGING_WAITS && !ldr_staging_waits(r->staging) &&
             __atomic_exchange_n(&r->pending, 0, __ATOMIC_ACQ_REL) != 0);
    if (state == LDR_STAGING_DONE) {
        answer(r);
        return;
    }
    ldr_request_wait(r);
    if (state == LDR_STAGING_MORE) {
        ldr_loop_post(&r->home->loop, &r->settled);
    }
}

/* Nobody wants it any more. */
static void give_up(ldr_request_t *r)
{
    ldr_stage_t *stage = r->stage;

    if (r->staging->promised) {
        staging_free(r);
        ldr_request_free(r);
        return;
    }
    ldr_staging_stop(r->staging, LARDER_E_CANCELED);
    while (ldr_staging_step(r->staging) != LDR_STAGING_DONE) {
    }
    if (stage != NULL) {
        stage->total = r->staging->total;
        ldr_stage_unref(r->home->server, stage);
        r->stage = NULL;
    }
    staging_free(r);
    ldr_request_free(r);
}

static void stage_begin(ldr_request_t *r);

static void settled(ldr_task_t *task)
{
    ldr_request_t *r =
        (ldr_request_t *)((char *)task - offsetof(ldr_request_t, settled));
    ldr_session_t *s = r->session;

    if (s == NULL) { /* it ended while this was posted */
        give_up(r);
        return;
    }
    uint64_t begin_ns = ldr_server_now(s->server);
    ldr_request_unwait(r);
    if (r->staging->promised) {
        stage_begin(r);
    } else {
        step(r);
    }
    ldr_turn_used(s, ldr_server_now(s->server) - begin_ns);
}

void ldr_stage_expire(ldr_request_t *r, larder_status_t why)
{
    if (r->staging->promised) { /* what is there by now is staged */
        ldr_promise_unawait(r->home->server->node, &r->staging->promise);
        r->staging->worth.field_mask &= ~(uint64_t)LARDER_STAGE_PROMISED;
    } else {
        ldr_staging_stop(r->staging, why); /* no load is ready from now on */
    }
    __atomic_store_n(&r->pending, 0, __ATOMIC_RELAXED);
    if (ldr_loop_posted(&r->home->loop, &r->settled)) {
        return; /* it comes anyway */
    }
    if (r->session == NULL) {
        give_up(r);
    } else {
        settled(&r->settled);
    }
}

/* The groups of a MATCH or a STAGE: false: they cannot be. */
static bool read_needs(const ldr_match_msg_t *m, ldr_need_t *needs)
{
    for (uint32_t i = 0; i < m->groups; i++) {
        if (!ldr_get_need(m->needs + (size_t)i * LDR_NEED_BYTES,
                          &needs[i].group, &needs[i].chunks)) {
            return false;
        }
    }
    return true;
}

/* The request's space, and what is asked for in it. False: it was answered. */
static bool read_prefix(ldr_request_t *r, const ldr_match_msg_t *m,
                        ldr_need_t *needs, ldr_prefix_t *p)
{
    if (!read_needs(m, needs)) {
        ldr_request_bad(r, LDR_REFUSAL_MALFORMED, "malformed groups");
        return false;
    }
    if (!ldr_request_space(r, m->space)) {
        return false;
    }
    *p = (ldr_prefix_t){
        .space = r->space,
        .shards = r->shards,
        .needs = needs,
        .need_count = m->groups,
        .keys = (const larder_key_t *)m->keys,
        .count = m->count,
        .asks = (m->flags & LDR_MATCH_AGAIN) == 0,
    };
    return true;
}

void ldr_handle_match(ldr_request_t *r)
{
    ldr_match_msg_t m;
    ldr_prefix_t p;
    ldr_need_t needs[LARDER_GROUPS_MAX];
    larder_match_t out = {0};
    uint8_t body[LDR_MATCHED_BYTES];

    if (!ldr_get_match(r->body, r->frame.body, &m)) {
        ldr_request_bad(r, LDR_REFUSAL_MALFORMED, "a malformed match");
    } else if (read_prefix(r, &m, needs, &p)) {
        larder_status_t st = ldr_prefix_match(r->home->server->node, &p, &out);

        if (st == LARDER_OK) {
            ldr_reply(r, st, body, ldr_put_matched(body, &out));
        } else {
            ldr_reply_fail(r, st);
        }
    }
}

/* Where what comes is kept. */
static bool make_stage(ldr_request_t *r)
{
    const ldr_prefix_t *p = &r->staging->prefix;
    ldr_stage_t *stage = ldr_stage_new(r->staging->total);

    if (stage == NULL) {
        return false;
    }
    stage->tenant = r->tenant->number;
    stage->space = r->space;
    stage->shards = r->shards;
    stage->need_count = p->need_count;
    memcpy(stage->needs, p->needs, p->need_count * sizeof(*p->needs));
    r->stage = stage;
    r->staging->ids = stage->ids;
    return true;
}

/* With the node's lock: a promised chunk has come, or will not. */
static void promise_ready(ldr_promise_wait_t *wait)
{
    ldr_staging_t *g =
        (ldr_staging_t *)((char *)wait - offsetof(ldr_staging_t, promise));
    ldr_request_t *r = g->arg;

    ldr_loop_post(&r->home->loop, &r->settled);
}

/* Begins, or waits for what is promised. */
static void stage_begin(ldr_request_t *r)
{
    ldr_staging_t *g = r->staging;

    g->promised = (g->worth.field_mask & LARDER_STAGE_PROMISED) != 0 &&
                  ldr_promise_await(g->node, &g->prefix, &g->promise);
    if (g->promised) {
        ldr_request_wait(r);
        return;
    }
    larder_status_t st = ldr_staging_begin(g);
    r->deadline_ns = g->deadline_ns;
    if (st == LARDER_OK) {
        st = ldr_staging_bound(g, ldr_holds_left(r->session));
    }
    if (st == LARDER_OK && g->total > 0 && !make_stage(r)) {
        st = ldr_fail(LARDER_E_NO_MEMORY, "not enough memory in the daemon");
    }
    if (st != LARDER_OK) {
        staging_free(r);
        ldr_reply_fail(r, st);
    } else if (g->total == 0) {
        answer(r);
    } else {
        step(r);
    }
}

static void stage_prepare(ldr_request_t *r, const ldr_prefix_t *p,
                          const larder_stage_params_t *worth)
{
    ldr_staging_t *g = r->staging;

    g->node = r->home->server->node;
    memcpy(g->needs, p->needs, p->need_count * sizeof(*p->needs));
    g->prefix = *p;
    g->prefix.needs = g->needs;
    g->worth = *worth;
    g->ready = load_ready;
    g->promise.ready = promise_ready;
    g->arg = r;
    g->deadline_ns = r->deadline_ns;
    r->settled.run = settled;
}

void ldr_handle_stage(ldr_request_t *r)
{
    larder_stage_params_t worth;
    ldr_match_msg_t m;
    ldr_prefix_t p;

    size_t head = ldr_get_worth(r->body, r->frame.body, &worth);
    if (head == 0 || !ldr_get_match(r->body + head, r->frame.body - head, &m)) {
        ldr_request_bad(r, LDR_REFUSAL_MALFORMED, "a malformed stage");
        return;
    }
    larder_status_t st =
        ldr_mask_check(worth.field_mask, LARDER_STAGE_PROMISED);
    if (st != LARDER_OK) {
        ldr_reply_fail(r, st);
        return;
    }
    ldr_need_t needs[LARDER_GROUPS_MAX];
    if (!ldr_request_may_move(r) || !read_prefix(r, &m, needs, &p)) {
        return;
    }
    r->staging = ldr_alloc(sizeof(*r->staging));
    if (r->staging == NULL) {
        ldr_reply_fail(
            r, ldr_fail(LARDER_E_NO_MEMORY, "not enough memory in the daemon"));
        return;
    }
    stage_prepare(r, &p, &worth);
    stage_begin(r);
}

/* ---- hand-offs ---- */

/* Says it to the node that has the promise: this one, or the member that the
 * request names. */
static larder_status_t tell_promiser(ldr_request_t *r,
                                     const ldr_handoff_msg_t *m)
{
    ldr_node_t *node = r->home->server->node;
    ldr_peers_t *peers = ldr_peers_of(&node->host);
    larder_handoff_t what = (larder_handoff_t)m->what;

    if (m->member[0] == '\0' ||
        (peers != NULL && strcmp(m->member, peers->self.name) == 0)) {
        return ldr_promise_tell(node, r->space, &m->token, what);
    }
    if (peers == NULL) {
        return ldr_fail(LARDER_E_INVALID,
                        "'%s' is no member: this node is in no cluster",
                        m->member);
    }
    return ldr_peers_handoff(peers, m->member, r->space, &m->token, what);
}

/* After a promise: this node's name among the members. */
static size_t put_name(ldr_request_t *r, uint8_t *body)
{
    const ldr_peers_t *peers = ldr_peers_of(&r->home->server->node->host);

    return peers != NULL ? ldr_put_promised(body, peers->self.name) : 0;
}

void ldr_handle_handoff(ldr_request_t *r)
{
    ldr_session_t *s = r->session;
    uint8_t body[LDR_WORTH_NAME];
    size_t bytes = 0;
    ldr_node_t *node = r->home->server->node;
    ldr_need_t needs[LARDER_GROUPS_MAX];
    ldr_handoff_msg_t m;
    ldr_prefix_t p;
    larder_status_t st;

    if (!ldr_get_handoff(r->body, r->frame.body, &m)) {
        ldr_request_bad(r, LDR_REFUSAL_MALFORMED, "a malformed hand-off");
        return;
    }
    if (m.what != LDR_HANDOFF_PROMISE && ldr_request_space(r, m.space)) {
        st = tell_promiser(r, &m);
    } else if (m.what == LDR_HANDOFF_PROMISE &&
               read_prefix(r, &m.chain, needs, &p)) {
        s->promises = true;
        st = ldr_promise_make(node, &p, &m.token, s->epoch);
        bytes = put_name(r, body);
    } else {
        return;
    }
    ldr_server_due(r->home, ldr_promise_expire(node));
    if (st >= 0) {
        ldr_reply(r, st, body, bytes);
    } else {
        ldr_reply_fail(r, st);
    }
}
