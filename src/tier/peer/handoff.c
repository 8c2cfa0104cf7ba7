/*
 * Hand-offs between members (docs/guide/handoff.md). Two things are said in the
 * first lane of a member, in the order in which they were queued (words):
 *
 *   - by the node of the decode side: RENEW and OVER of a promise that the
 *     member has;
 *   - by the node of the prefill side: that a chunk which the member waits for
 *     has come or failed.
 *
 * A part of an ask that waits for promised chunks is in `awaiting` of its
 * member between its calls. It is asked again when the member says that one of
 * its chunks is closed, and once a second, so that a word that was lost costs
 * no more than that and leases do not end.
 */
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "tier/peer/peer.h"

#define WORDS_MAX 4096u /* of one member, that were not said yet */
#define AGAIN_NS UINT64_C(1000000000)

struct ldr_peer_word {
    struct ldr_peer_word *next;
    uint32_t space; /* this node's number; LDR_NIL: of none */
    ldr_peer_handoff_t msg;
};

/* ---- words ---- */

void ldr_peer_word(ldr_peer_node_t *n, uint32_t what, uint32_t space,
                   const void *about, size_t bytes)
{
    ldr_peers_t *p = n->tier;
    struct ldr_peer_word *w =
        n->word_count < WORDS_MAX && n->address[0] != '\0' && !p->stop
            ? ldr_alloc(sizeof(*w))
            : NULL;

    ldr_host_held(p->host);
    if (w == NULL) {
        return; /* its receiver asks again; a lease ends by time */
    }
    w->space = space;
    w->msg.what = what;
    memcpy(w->msg.about, about, bytes);
    *n->words_end = w;
    n->words_end = &w->next;
    n->word_count++;
    ldr_lane_wake(n, false);
}

static struct ldr_peer_word *take_word(ldr_peer_node_t *n)
{
    struct ldr_peer_word *w = n->words;

    if (w != NULL) {
        n->words = w->next;
        n->words_end = n->words == NULL ? &n->words : n->words_end;
        n->word_count--;
    }
    return w;
}

bool ldr_peer_say_word(ldr_peer_node_t *n)
{
    ldr_peers_t *p = n->tier;
    struct ldr_peer_word *w = n->address[0] != '\0' ? take_word(n) : NULL;

    ldr_host_held(p->host);
    if (w == NULL) {
        return false;
    }
    const ldr_peer_space_t *space =
        w->space != LDR_NIL ? p->spaces[w->space] : NULL;
    ldr_stop_t stop = {&p->stop,
                       ldr_peers_now(p) +
                           p->host->options.peer_timeout_ms * 1000000u};
    ldr_host_unlock(p->host);
    ldr_talk_t v = {0};
    larder_status_t st = ldr_peer_talk_begin(n, &v, space, &stop);
    if (st == LARDER_OK) {
        w->msg.space = v.space;
        st = ldr_talk_call(
            &v, LDR_OP_PEER_HANDOFF,
            ldr_put_peer_handoff(ldr_body(v.call.buffer), &w->msg));
        ldr_peer_talk_end(&v, st);
    }
    ldr_free(w);
    ldr_host_lock(p->host);
    return true;
}

larder_status_t ldr_peers_handoff(ldr_peers_t *p, const char *name,
                                  uint32_t space, const larder_token_t *token,
                                  larder_handoff_t what)
{
    ldr_host_lock(p->host);
    ldr_peers_look(p);
    ldr_peer_node_t *n = ldr_peers_named(p, name);
    if (n != NULL && p->spaces[space] != NULL) {
        ldr_peer_word(n, (uint32_t)what, space, token, sizeof(*token));
    }
    ldr_host_unlock(p->host);
    return n != NULL ? LARDER_OK
                     : ldr_fail(LARDER_E_INVALID,
                                "'%s' is no member of this node's cluster, so "
                                "nothing can be handed off from there",
                                name);
}

/* ---- parts that wait ---- */

void ldr_peer_await(ldr_peer_node_t *n, ldr_query_part_t *part, uint64_t closed)
{
    ldr_host_held(n->tier->host);
    /* Something was closed after the answer was made: it may be this. */
    part->again_ns =
        closed == n->closed ? ldr_peers_now(n->tier) + AGAIN_NS : 0;
    part->next = n->awaiting;
    n->awaiting = part;
    if (part->again_ns == 0) {
        ldr_lane_wake(n, false);
    }
}

void ldr_peer_closed(ldr_peer_node_t *n, const larder_key_t *key)
{
    bool any = false;

    ldr_host_held(n->tier->host);
    n->closed++;
    for (ldr_query_part_t *part = n->awaiting; part != NULL;
         part = part->next) {
        if (memcmp(&part->awaited, key, sizeof(*key)) == 0) {
            part->again_ns = 0;
            any = true;
        }
    }
    if (any) {
        ldr_lane_wake(n, false);
    }
}

uint64_t ldr_peer_awaited(ldr_peer_node_t *n, uint64_t now_ns)
{
    ldr_query_part_t **link = &n->awaiting;
    uint64_t next_ns = UINT64_MAX;

    ldr_host_held(n->tier->host);
    while (*link != NULL) {
        ldr_query_part_t *part = *link;

        if (part->again_ns > now_ns) {
            next_ns = ldr_min64(next_ns, part->again_ns);
            link = &part->next;
            continue;
        }
        *link = part->next;
        part->next = NULL;
        *n->asks_end = part;
        n->asks_end = &part->next;
    }
    return next_ns;
}

void ldr_peer_words_end(ldr_peer_node_t *n)
{
    struct ldr_peer_word *w;

    ldr_host_held(n->tier->host);
    while ((w = take_word(n)) != NULL) {
        ldr_free(w);
    }
    ldr_peer_awaited(n, UINT64_MAX);
}
