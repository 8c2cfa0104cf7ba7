/*
 * The backend on a daemon: what does not depend on how its bytes travel.
 */
#include "client/remote.h"
#include "client/transfer.h"

#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "base/thread.h"
#include "node/stage.h"
#include "wire/describe.h"

/* ---- batches of names ---- */

/* EXISTS and REMOVE: all good items in one request. */
static void run_names(ldr_op_t *op, uint16_t opcode)
{
    const larder_item_t *good[LARDER_BATCH_MAX];
    ldr_talk_t v;
    ldr_stop_t stop = ldr_op_stop(op);
    ldr_results_t results;
    ldr_result_row_t row;
    uint32_t count = 0;
    larder_status_t st = ldr_talk_begin(&v, op->lar->remote, &op->ref, &stop);

    if (st != LARDER_OK) {
        ldr_op_refuse(op, st);
        return;
    }
    for (size_t i = 0; i < op->count; i++) {
        larder_item_t *item = &op->items[i];

        item->status = ldr_op_check(op, item);
        if (item->status == LARDER_OK) {
            good[count++] = item;
        }
    }
    if (count > 0) {
        st = ldr_ask_names(&v, opcode, op->flags & LDR_BATCH_AGAIN, good, count,
                           &results);
    }
    for (uint32_t i = 0; i < count; i++) {
        larder_item_t *item = &op->items[good[i] - op->items];

        if (st == LARDER_OK &&
            ldr_get_result(results.rows + (size_t)i * LDR_RESULT_BYTES, &row)) {
            item->status = row.status;
            item->cause = row.cause;
            item->length = row.length;
        } else {
            ldr_item_refuse(op->kind, item,
                            st == LARDER_OK ? LARDER_E_OFFLINE : st);
        }
    }
    ldr_talk_end(&v, st);
}

static bool remote_step(ldr_op_t *op)
{
    ldr_stop_t stop = ldr_op_stop(op);
    larder_status_t st = ldr_stopped(op->lar->clock, &stop);

    if (st != LARDER_OK) {
        ldr_op_refuse(op, st);
        return true;
    }
    switch (op->kind) {
    case LARDER_OP_PUT:
        ldr_remote_put(op);
        break;
    case LARDER_OP_GET:
        ldr_remote_get(op);
        break;
    case LARDER_OP_EXISTS:
        run_names(op, LDR_OP_EXISTS);
        break;
    default:
        run_names(op, LDR_OP_REMOVE);
        break;
    }
    return true;
}

static void remote_wait(ldr_op_t *op)
{
    (void)op; /* a step ends all of it */
}

/* ---- one request each ---- */

/* A request whose body is one number, or nothing. */
static larder_status_t call_number(ldr_remote_t *r,
                                   const ldr_space_ref_t *space,
                                   uint16_t opcode, uint32_t number,
                                   uint64_t deadline_ns)
{
    ldr_talk_t v;
    ldr_stop_t stop = {NULL, deadline_ns};
    larder_status_t st = ldr_talk_begin(&v, r, space, &stop);

    if (st != LARDER_OK) {
        return st;
    }
    uint8_t *at = ldr_body(v.call.buffer);
    st = ldr_talk_call(&v, opcode,
                       ldr_put_number(at, space != NULL ? v.space : number));
    larder_status_t said =
        st == LARDER_OK ? ldr_frame_status(&v.call.reply) : st;
    if (said == LARDER_PARTIAL) { /* the text names the members */
        ldr_reply_failed(&v.call.reply, at);
    }
    ldr_talk_end(&v, st);
    return said;
}

static larder_status_t remote_space_open(larder_t *lar, larder_space_t *space,
                                         const char *tenant)
{
    ldr_talk_t v;
    ldr_stop_t stop = {NULL, ldr_deadline(lar, 0)};
    larder_status_t st = ldr_talk_begin(&v, lar->remote, &space->ref, &stop);

    (void)tenant; /* the session's */
    if (st == LARDER_OK) {
        ldr_talk_end(&v, st);
    } else if (lar->options->connect == LDR_CONNECT_LAZY &&
               (st == LARDER_E_OFFLINE || st == LARDER_E_DEADLINE ||
                st == LARDER_E_BUSY)) {
        st = LARDER_OK; /* the first session to use it opens it */
    }
    return st;
}

static larder_status_t remote_reset(larder_space_t *space, uint64_t deadline_ns)
{
    return call_number(space->lar->remote, &space->ref, LDR_OP_RESET, 0,
                       deadline_ns);
}

static larder_status_t remote_flush(larder_t *lar, larder_tier_t tier,
                                    uint64_t deadline_ns)
{
    return call_number(lar->remote, NULL, LDR_OP_FLUSH, (uint32_t)tier,
                       deadline_ns);
}

static larder_status_t malformed(const ldr_remote_t *r)
{
    return ldr_fail(LARDER_E_OFFLINE, "%s: a malformed answer",
                    r->options.address);
}

/* As a MATCH: what is asked for, of the chunks from `first` on. */
static size_t put_prefix(uint8_t *at, const ldr_talk_t *v,
                         const ldr_prefix_t *p, uint32_t first, uint32_t count)
{
    uint8_t needs[LARDER_GROUPS_MAX * LDR_NEED_BYTES];
    ldr_match_msg_t m = {
        .space = v->space,
        .flags = p->asks ? 0 : LDR_MATCH_AGAIN,
        .count = count,
        .groups = p->need_count,
        .needs = needs,
        .keys = p->keys[first].hash,
    };

    for (uint32_t i = 0; i < p->need_count; i++) {
        ldr_put_need(needs + (size_t)i * LDR_NEED_BYTES, p->needs[i].group,
                     p->needs[i].chunks);
    }
    return ldr_put_match(at, &m);
}

/* A node that cannot be asked has nothing, for that cause. */
static larder_status_t could_not_ask(larder_status_t st, larder_match_t *out)
{
    if (st != LARDER_E_OFFLINE && st != LARDER_E_DEADLINE) {
        return st;
    }
    *out = (larder_match_t){.cause = st == LARDER_E_OFFLINE
                                         ? LARDER_CAUSE_OFFLINE
                                         : LARDER_CAUSE_DEADLINE};
    return LARDER_OK;
}

/* A chain of which all is needed may be longer than a request: it goes in
 * pieces. */
static larder_status_t remote_match(larder_space_t *space,
                                    const ldr_prefix_t *prefix,
                                    uint64_t deadline_ns, larder_match_t *out)
{
    ldr_talk_t v;
    ldr_stop_t stop = {NULL, deadline_ns};
    bool one =
        prefix->need_count == 1 && prefix->needs[0].chunks == LDR_NEED_ALL;
    larder_status_t st =
        ldr_talk_begin(&v, space->lar->remote, &space->ref, &stop);

    *out = (larder_match_t){.cause = LARDER_CAUSE_NONE};
    if (st != LARDER_OK) {
        return could_not_ask(st, out);
    }
    for (uint32_t at = 0; st == LARDER_OK && at < prefix->count;) {
        uint32_t take = (uint32_t)ldr_min64(prefix->count - at, LDR_MATCH_KEYS);
        uint8_t *body = ldr_body(v.call.buffer);
        larder_match_t m = {0};

        st = ldr_talk_call(&v, LDR_OP_MATCH,
                           put_prefix(body, &v, prefix, at, take));
        if (st == LARDER_OK && !ldr_get_matched(body, v.call.reply.body, &m)) {
            st = malformed(v.remote);
        }
        out->chunks += m.chunks;
        for (int i = 0; i < LARDER_TIERS_MAX; i++) {
            out->tier_chunks[i] += m.tier_chunks[i];
            out->tier_bytes[i] += m.tier_bytes[i];
        }
        out->load_us += m.load_us;
        out->cause = m.cause;
        at = one && m.chunks == take ? at + take : prefix->count;
    }
    ldr_talk_end(&v, st);
    return could_not_ask(st, out);
}

static void remote_announce(larder_space_t *space, const ldr_announce_t *a,
                            uint64_t deadline_ns)
{
    ldr_talk_t v;
    ldr_stop_t stop = {NULL, deadline_ns};
    larder_status_t st =
        ldr_talk_begin(&v, space->lar->remote, &space->ref, &stop);

    if (st != LARDER_OK) {
        return;
    }
    ldr_announce_msg_t m = {
        .space = v.space,
        .count = (uint32_t)ldr_min64(a->count, LDR_ANNOUNCE_KEYS),
        .chunk_tokens = a->chunk_tokens,
        .tokens = a->tokens,
        .hint = a->hint,
        .saves = a->saves,
        .id = a->id,
        .keys = a->keys->hash,
    };
    st = ldr_talk_call(&v, LDR_OP_ANNOUNCE,
                       ldr_put_announce(ldr_body(v.call.buffer), &m));
    ldr_talk_end(&v, st);
}

/* The HANDOFF in the buffer. */
static larder_status_t say_handoff(ldr_talk_t *v, size_t bytes)
{
    if ((v->link->features & LDR_FEATURE_HANDOFF) == 0) {
        return ldr_fail(LARDER_E_UNSUPPORTED,
                        "%s: the daemon knows no hand-offs: update it",
                        v->remote->options.address);
    }
    larder_status_t st = ldr_talk_call(v, LDR_OP_HANDOFF, bytes);

    return st == LARDER_OK ? ldr_frame_status(&v->call.reply) : st;
}

static larder_status_t remote_promise(larder_space_t *space,
                                      const ldr_prefix_t *prefix,
                                      const larder_token_t *token,
                                      uint64_t deadline_ns, char *member)
{
    ldr_talk_t v;
    ldr_stop_t stop = {NULL, deadline_ns};
    larder_status_t st =
        ldr_talk_begin(&v, space->lar->remote, &space->ref, &stop);

    if (st != LARDER_OK) {
        return st;
    }
    uint8_t *at = ldr_body(v.call.buffer);
    ldr_handoff_msg_t m = {
        .what = LDR_HANDOFF_PROMISE, .space = v.space, .token = *token};
    size_t bytes = ldr_put_handoff(at, &m);
    bytes += put_prefix(at + bytes, &v, prefix, 0, prefix->count);
    st = say_handoff(&v, bytes);
    if (st == LARDER_OK && v.call.reply.body > 0 &&
        !ldr_get_promised(at, v.call.reply.body, member)) {
        st = ldr_fail(LARDER_E_OFFLINE, "%s: a malformed answer",
                      v.remote->options.address);
    }
    ldr_talk_end(&v, st);
    return st;
}

static larder_status_t remote_handoff(larder_space_t *space,
                                      const larder_token_t *token,
                                      larder_handoff_t what, const char *member,
                                      uint64_t deadline_ns)
{
    ldr_talk_t v;
    ldr_stop_t stop = {NULL, deadline_ns};
    larder_status_t st =
        ldr_talk_begin(&v, space->lar->remote, &space->ref, &stop);

    if (st == LARDER_OK) {
        ldr_handoff_msg_t m = {.what = what, .space = v.space, .token = *token};

        snprintf(m.member, sizeof(m.member), "%s", member);
        st = say_handoff(&v, ldr_put_handoff(ldr_body(v.call.buffer), &m));
        ldr_talk_end(&v, st);
    }
    return st;
}

static larder_status_t remote_describe(larder_space_t *space,
                                       ldr_describe_msg_t *m,
                                       uint64_t deadline_ns)
{
    ldr_talk_t v;
    ldr_stop_t stop = {NULL, deadline_ns};
    larder_status_t st =
        ldr_talk_begin(&v, space->lar->remote, &space->ref, &stop);

    if (st != LARDER_OK) {
        return st;
    }
    if ((v.link->features & LDR_FEATURE_DESCRIBE) == 0) {
        ldr_talk_end(&v, LARDER_OK);
        return LARDER_DECLINED;
    }
    m->space = v.space;
    st = ldr_talk_call(&v, LDR_OP_DESCRIBE,
                       ldr_put_describe(ldr_body(v.call.buffer), m));
    ldr_talk_end(&v, st);
    return st;
}

static larder_status_t remote_stats(larder_t *lar, uint64_t deadline_ns,
                                    larder_stats_t *out)
{
    ldr_remote_t *r = lar->remote;
    ldr_talk_t v;
    ldr_stop_t stop = {NULL, deadline_ns};
    larder_status_t st = ldr_talk_begin(&v, r, NULL, &stop);

    if (st == LARDER_OK) {
        st = ldr_talk_call(&v, LDR_OP_STATS, 0);
        if (st == LARDER_OK &&
            !ldr_get_stats(ldr_body(v.call.buffer), v.call.reply.body, out)) {
            st = malformed(r);
        }
        ldr_talk_end(&v, st);
    }
    /* Also, and above all, while the daemon refuses this client. */
    out->client_calls = __atomic_load_n(&r->calls, __ATOMIC_RELAXED);
    out->client_offline = __atomic_load_n(&r->offline, __ATOMIC_RELAXED);
    out->client_breaker = __atomic_load_n(&r->breaker, __ATOMIC_RELAXED);
    out->client_connects = __atomic_load_n(&r->connects, __ATOMIC_RELAXED);
    out->client_late_replies = __atomic_load_n(&r->late, __ATOMIC_RELAXED);
    out->client_crc_failures =
        __atomic_load_n(&r->crc_failures, __ATOMIC_RELAXED);
    out->client_denied = __atomic_load_n(&r->denied, __ATOMIC_RELAXED);
    out->client_version = __atomic_load_n(&r->version, __ATOMIC_RELAXED);
    return st;
}

larder_status_t ldr_remote_list(larder_t *lar, uint32_t *cursor_p,
                                ldr_list_row_t *rows, uint32_t max,
                                uint32_t *count_p)
{
    ldr_talk_t v;
    ldr_stop_t stop = {NULL, ldr_deadline(lar, 0)};
    ldr_list_head_t head;
    larder_status_t st = ldr_talk_begin(&v, lar->remote, NULL, &stop);

    *count_p = 0;
    if (st != LARDER_OK) {
        return st;
    }
    uint8_t *at = ldr_body(v.call.buffer);
    st = ldr_talk_call(&v, LDR_OP_LIST, ldr_put_number(at, *cursor_p));
    if (st == LARDER_OK &&
        (!ldr_get_list(at, v.call.reply.body, &head) || head.count > max ||
         (head.cursor != LDR_LIST_END && head.cursor < *cursor_p))) {
        st = malformed(v.remote);
    }
    for (uint32_t i = 0; st == LARDER_OK && i < head.count; i++) {
        ldr_get_listed(head.rows + (size_t)i * head.row_bytes,
                       &rows[(*count_p)++]);
    }
    if (st == LARDER_OK) {
        *cursor_p = head.cursor;
    }
    ldr_talk_end(&v, st);
    return st;
}

static larder_status_t remote_metrics(larder_t *lar, uint64_t deadline_ns,
                                      char *text, size_t size, size_t *length_p)
{
    ldr_talk_t v;
    ldr_stop_t stop = {NULL, deadline_ns};
    larder_status_t st = ldr_talk_begin(&v, lar->remote, NULL, &stop);

    if (st != LARDER_OK) {
        return st;
    }
    st = ldr_talk_call(&v, LDR_OP_METRICS, 0);
    if (st == LARDER_OK) {
        size_t bytes = v.call.reply.body;

        *length_p = bytes;
        if (size > 0) {
            size_t take = ldr_min64(bytes, size - 1);

            memcpy(text, ldr_body(v.call.buffer), take);
            text[take] = '\0';
        }
    }
    ldr_talk_end(&v, st);
    return st;
}

/* ---- what the data path does ---- */

static larder_status_t remote_stage(larder_space_t *space,
                                    const ldr_prefix_t *prefix,
                                    const larder_stage_params_t *worth,
                                    uint64_t deadline_ns,
                                    larder_lease_t **lease_p,
                                    larder_match_t *match)
{
    larder_t *lar = space->lar;
    ldr_talk_t v;
    ldr_stop_t stop = {NULL, deadline_ns};
    ldr_staged_t staged = {.lease = 0};
    larder_status_t st = ldr_talk_begin(&v, lar->remote, &space->ref, &stop);

    if (st != LARDER_OK) {
        return could_not_ask(st, match);
    }
    uint8_t *at = ldr_body(v.call.buffer);
    larder_stage_params_t said = *worth;
    if ((v.link->features & LDR_FEATURE_HANDOFF) == 0) { /* it is advice */
        said.field_mask &= ~(uint64_t)LARDER_STAGE_MEMBER;
    }
    size_t bytes = ldr_put_worth(at, &said);
    bytes += put_prefix(at + bytes, &v, prefix, 0,
                        (uint32_t)ldr_min64(prefix->count, LDR_MATCH_KEYS));
    st = ldr_talk_call(&v, LDR_OP_STAGE, bytes);
    if (st == LARDER_OK && !ldr_get_staged(at, v.call.reply.body, &staged)) {
        st = malformed(v.remote);
    }
    if (st == LARDER_OK && staged.match.chunks > 0) {
        larder_lease_t *lease = ldr_lease_new(lar, 0);

        st = lease != NULL ? lar->data_path->keep(&v, lease, staged.lease)
                           : LARDER_E_NO_MEMORY;
        if (st == LARDER_OK) {
            uint32_t chunks = staged.match.chunks;

            lease->chunks = chunks;
            lease->token = staged.token;
            for (uint32_t i = 0; i < prefix->need_count; i++) {
                ldr_span_t span = ldr_need_span(&prefix->needs[i], chunks);

                lease->total += (span.end - span.first) * space->shards;
            }
            *lease_p = lease;
        } else if (lease != NULL) {
            ldr_lease_unused(lar, lease);
        }
    }
    ldr_talk_end(&v, st == LARDER_E_NO_MEMORY ? LARDER_OK : st);
    *match = staged.match;
    return could_not_ask(st, match);
}

/* ---- life ---- */

static larder_status_t remote_close(larder_t *lar, uint64_t deadline_ns)
{
    const ldr_links_t *links = lar->remote->links;
    /* The daemon writes down what it has by itself. */
    larder_status_t st = links->settle != NULL
                             ? links->settle(lar->remote, deadline_ns)
                             : LARDER_OK;

    ldr_gpu_detach(lar);
    ldr_remote_destroy(lar->remote);
    return st;
}

/* Connects for the first time, to say now what is wrong. */
static larder_status_t first_talk(larder_t *lar)
{
    ldr_talk_t v;
    ldr_stop_t stop = {NULL, ldr_deadline(lar, 0)};
    larder_status_t st = ldr_talk_begin(&v, lar->remote, NULL, &stop);

    if (st == LARDER_OK) {
        ldr_talk_end(&v, st);
        return st;
    }
    if (st == LARDER_E_DEADLINE) {
        st = LARDER_E_OFFLINE; /* with the text that says so */
    }
    bool refused = st == LARDER_E_DENIED || st == LARDER_E_VERSION ||
                   st == LARDER_E_INVALID || st == LARDER_E_UNSUPPORTED;
    return lar->options->connect == LDR_CONNECT_LAZY && !refused ? LARDER_OK
                                                                 : st;
}

larder_status_t ldr_remote_open(larder_t *lar, const ldr_options_t *options,
                                const ldr_net_env_t *env)
{
    lar->data_path = options->scheme == LDR_SCHEME_UNIX ? &ldr_data_path_shm
                                                        : &ldr_data_path_tcp;
    larder_status_t st =
        ldr_remote_create(options, lar->data_path->links, env, &lar->remote);

    if (st != LARDER_OK) {
        return st;
    }
    lar->backend = &ldr_handle_remote;
    lar->leasing = lar->data_path->leasing;
    lar->options = &lar->remote->options;
    lar->clock = lar->remote->clock;
    lar->log = &lar->remote->log;
    st = first_talk(lar);
    if (st != LARDER_OK) {
        ldr_remote_destroy(lar->remote);
        lar->remote = NULL;
    }
    return st;
}

const ldr_handle_ops_t ldr_handle_remote = {
    .close = remote_close,
    .space_open = remote_space_open,
    .reset = remote_reset,
    .match = remote_match,
    .announce = remote_announce,
    .describe = remote_describe,
    .promise = remote_promise,
    .handoff = remote_handoff,
    .step = remote_step,
    .wait = remote_wait,
    .stage = remote_stage,
    .flush = remote_flush,
    .stats = remote_stats,
    .metrics = remote_metrics,
};
