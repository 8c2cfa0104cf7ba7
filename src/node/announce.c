/*
 * Announces requests to the eviction policy of their tenant: once each, and
 * whole. Any thread may call; fingerprints are computed before the node's lock
 * is taken.
 */
#include "base/bytes.h"
#include "base/mem.h"
#include "node/node.h"

#define PRINTS 2048u /* of most chains */

_Static_assert((int)LARDER_HINT_CLASS == (int)LDR_HINT_APP &&
                   (int)LARDER_HINT_CLOSED == (int)LDR_HINT_CLOSED &&
                   (int)LARDER_HINT_TEMPLATE == (int)LDR_HINT_TEMPLATE,
               "the policy's hints are the API's");

void ldr_node_announce(ldr_node_t *node, uint32_t space,
                       const ldr_announce_t *a)
{
    uint64_t some[PRINTS];
    uint64_t *more = NULL, *prints = some;
    uint32_t count = a->count;

    if (count > PRINTS) {
        more = ldr_alloc(count * sizeof(*more));
        if (more != NULL) {
            prints = more;
        } else {
            count = PRINTS; /* better than nothing */
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        prints[i] = ldr_store_print(&node->store, space, &a->keys[i]);
    }
    ldr_policy_request_t request = {
        .id = a->id,
        .prints = prints,
        .count = count,
        .tokens = a->tokens,
        .chunk_tokens = a->chunk_tokens,
        .hint = a->hint & (LDR_HINT_APP | LDR_HINT_CLOSED | LDR_HINT_TEMPLATE),
        .saves = a->saves,
    };
    ldr_node_lock(node);
    if (node->mode == LDR_MODE_ON) {
        ldr_node_tick(node);
        ldr_store_request(&node->store, space, &request,
                          (a->hint & LARDER_HINT_OVER) != 0);
    }
    ldr_node_unlock(node);
    ldr_free(more);
}
