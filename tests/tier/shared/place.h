/* Where a node's shared tier has a shard, for tests that look behind it. */
#pragma once

#include "node/node.h"
#include "tier/shared/shared.h"

/* Where the tier has a shard of group 0. With the lock. */
static inline bool shared_place(const ldr_node_t *node, uint32_t space,
                                const larder_key_t *key, uint32_t number,
                                ldr_object_place_t *place)
{
    uint32_t tenant, at;

    return ldr_shared_numbers(ldr_shared_of(&node->host), space, &tenant,
                              &at) &&
           ldr_objects_find(ldr_shared_of(&node->host)->tier, tenant, at,
                            node->store.spaces[space].epoch, key, 0, number,
                            place);
}
