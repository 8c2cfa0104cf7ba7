/*
 * Hand-offs from this node to other members: see peer.h and
 * docs/guide/handoff.md.
 *
 * A member that asked for a promised chunk has a watch on it, one for each
 * member and chunk. The watch is gone when the chunk comes or fails, which
 * every promise does in the end, and the member is told.
 */
#include <string.h>

#include "base/mem.h"
#include "node/promise.h"
#include "server/peer.h"
#include "tier/peer/peer.h"

typedef struct watch {
    ldr_promise_wait_t wait; /* arg: the member */
    larder_key_t key;
} watch_t;

static void tell_closed(struct ldr_peer_node *peer, const larder_key_t *key)
{
    ldr_peer_word(peer, LDR_PEER_CLOSED, LDR_NIL, key, sizeof(*key));
}

/* With the node's lock. */
static void watch_ready(ldr_promise_wait_t *wait)
{
    watch_t *w = (watch_t *)wait;

    tell_closed(wait->arg, &w->key);
    ldr_free(w);
}

void ldr_peer_watch(ldr_peer_conn_t *c, uint32_t space,
                    const ldr_peer_name_t *name)
{
    watch_t *w = ldr_alloc(sizeof(*w));

    if (w == NULL) {
        return; /* it asks again */
    }
    w->wait.ready = watch_ready;
    w->wait.arg = c->peer;
    w->key = name->key;
    larder_status_t st = ldr_promise_watch(c->server->node, space, name->group,
                                           &name->key, &w->wait);
    if (st == LARDER_MISS) { /* closed since the row was written */
        tell_closed(c->peer, &name->key);
    }
    if (st != LARDER_OK) {
        ldr_free(w);
    }
}

bool ldr_peer_do_handoff(ldr_peer_conn_t *c)
{
    ldr_node_t *node = c->server->node;
    ldr_peer_handoff_t m;
    larder_status_t st = LARDER_OK;

    if (!ldr_get_peer_handoff(c->in + LDR_FRAME_BYTES, c->frame.body, &m)) {
        return false;
    }
    if (m.what == LDR_PEER_CLOSED) {
        ldr_node_lock(node);
        ldr_peer_closed(c->peer, (const larder_key_t *)m.about);
        ldr_node_unlock(node);
    } else if (!ldr_peer_opened(c, m.space)) {
        return false;
    } else {
        st = ldr_promise_tell(node, m.space, (const larder_token_t *)m.about,
                              (larder_handoff_t)m.what);
    }
    return ldr_peer_reply(c, st, 0, NULL, 0, 0);
}
