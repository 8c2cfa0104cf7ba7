/*
 * Before a MATCH, a STAGE, an EXISTS, a GET or a LEASE is carried out, other
 * members are asked for what is not here. The request waits meanwhile like one
 * that waits for a disk, and its loop serves others: for peer_match_ms at most,
 * or by its own deadline if the member that it names has promised the rest;
 * one that needs nothing of peers does not notice.
 *
 * A request that waits so has an `ask`. Its end posts `settled`, in which the
 * request is carried out; whoever takes the ask away before (ldr_ask_expire)
 * carries it out itself, or drops it with its session.
 */
#include <stdio.h>

#include "base/bytes.h"
#include "server/session.h"

/* It is over: the request goes on as if it had just come. */
static void go_on(ldr_request_t *r)
{
    ldr_session_t *s = r->session;

    ldr_node_ask_end(r->home->server->node, r->ask);
    r->ask = NULL;
    if (s == NULL) {
        ldr_request_free(r);
        return;
    }
    uint64_t begin_ns = ldr_server_now(s->server);
    ldr_request_unwait(r);
    r->deadline_ns = r->ask_deadline_ns;
    r->ask_handler(r);
    ldr_turn_used(s, ldr_server_now(s->server) - begin_ns);
}

static void settled(ldr_task_t *task)
{
    go_on((ldr_request_t *)((char *)task - offsetof(ldr_request_t, settled)));
}

/* With the node's lock. */
static void ask_ready(ldr_query_t *ask)
{
    ldr_request_t *r = ask->arg;

    ldr_loop_post(&r->home->loop, &r->settled);
}

void ldr_ask_expire(ldr_request_t *r)
{
    if (!ldr_loop_posted(&r->home->loop, &r->settled)) {
        ldr_node_t *node = r->home->server->node;

        ldr_node_lock(node);
        r->ask->ready = NULL; /* it is not called from here on */
        ldr_node_unlock(node);
        if (!ldr_loop_posted(&r->home->loop, &r->settled)) {
            go_on(r);
        }
    }
}

/* The chunks that the request names. False: it names none that peers are asked
 * for, or it is malformed, which its handler says. */
static bool add_chain(ldr_request_t *r, const ldr_match_msg_t *m)
{
    ldr_node_t *node = r->home->server->node;
    bool ok = m->count > 0;

    for (uint32_t i = 0; i < m->groups && ok; i++) {
        uint16_t group;
        uint32_t chunks;

        ok =
            ldr_get_need(m->needs + (size_t)i * LDR_NEED_BYTES, &group,
                         &chunks) &&
            ldr_node_ask_add(node, r->ask, group, (const larder_key_t *)m->keys,
                             m->count) == LARDER_OK;
    }
    return ok;
}

static bool add_names(ldr_request_t *r, const ldr_batch_msg_t *m)
{
    ldr_node_t *node = r->home->server->node;
    bool ok = true;

    for (uint32_t i = 0; i < m->count && ok; i++) {
        const uint8_t *at = m->rows + (size_t)i * LDR_NAME_BYTES;
        ldr_name_row_t name;

        ldr_get_name(at, &name);
        ok = name.group < LARDER_GROUPS_MAX &&
             ldr_node_ask_add(node, r->ask, name.group,
                              (const larder_key_t *)at, 1) == LARDER_OK;
    }
    return ok;
}

/* Which of the two it is, and its space. *member_p: the one that a stage names;
 * *promised_p: it waits for what that member has promised. */
static bool look_at(ldr_request_t *r, ldr_match_msg_t *chain,
                    ldr_batch_msg_t *names, uint32_t *space_p,
                    const char **member_p, bool *promised_p)
{
    bool stage = r->frame.opcode == LDR_OP_STAGE;
    larder_stage_params_t worth = {0};
    size_t head = stage ? ldr_get_worth(r->body, r->frame.body, &worth) : 0;

    *member_p = worth.member;
    *promised_p = (worth.field_mask & LARDER_STAGE_PROMISED) != 0;
    switch (r->frame.opcode) {
    case LDR_OP_STAGE:
    case LDR_OP_MATCH:
        if ((stage && head == 0) ||
            !ldr_get_match(r->body + head, r->frame.body - head, chain)) {
            return false;
        }
        *space_p = chain->space;
        return true;
    case LDR_OP_EXISTS:
    case LDR_OP_GET:
    case LDR_OP_LEASE:
        if (r->frame.body < LDR_BATCH_HEAD_BYTES ||
            (ldr_get_batch_flags(r->body) &
             (LDR_BATCH_TOKEN | LDR_BATCH_QUIET)) != 0 ||
            !ldr_get_batch(r->body, r->frame.body, LDR_NAME_BYTES, names)) {
            return false;
        }
        *space_p = names->space;
        return true;
    default:
        return false;
    }
}

bool ldr_ask_first(ldr_request_t *r, ldr_handler_t handler)
{
    ldr_session_t *s = r->session;
    ldr_node_t *node = r->home->server->node;
    ldr_match_msg_t chain = {0};
    ldr_batch_msg_t names = {0};
    const char *member;
    bool promised;
    uint32_t space;

    if (r->home->server->cluster == NULL || s->state != LDR_SESSION_OPEN ||
        !look_at(r, &chain, &names, &space, &member, &promised) ||
        space >= s->space_count) {
        return false;
    }
    r->ask = ldr_node_ask_begin(node, s->spaces[space].number,
                                s->spaces[space].shards, r->deadline_ns);
    if (r->ask == NULL) {
        return false;
    }
    if (member != NULL) {
        snprintf(r->ask->member, sizeof(r->ask->member), "%s", member);
    }
    bool good = chain.count > 0 ? add_chain(r, &chain) : add_names(r, &names);
    r->ask->lease = r->frame.opcode != LDR_OP_EXISTS; /* which loads nothing */
    r->ask->promised = promised;
    r->ask->ready = ask_ready;
    r->ask->arg = r;
    r->settled.run = settled;
    if (!good) {
        ldr_node_ask_end(node, r->ask);
    }
    if (!good || !ldr_node_ask(node, r->ask)) {
        r->ask = NULL;
        return false;
    }
    r->ask_handler = handler;
    r->ask_deadline_ns = r->deadline_ns;
    r->deadline_ns = ldr_min64(r->deadline_ns, r->ask->until_ns);
    ldr_request_wait(r);
    return true;
}
