/*
 * What a node does that is paused or only observes. Observing, it keeps a
 * shadow: the names and sizes of what was to be saved, as many bytes as its
 * tiers could hold, the oldest go first. From that, and from what it holds
 * itself, it counts what would have hit.
 */
#pragma once

#include "node/node.h"

/* NULL: no memory. */
ldr_shadow_t *ldr_shadow_create(uint64_t bytes_max, uint64_t shards_max);
void ldr_shadow_destroy(ldr_shadow_t *shadow);

/* A shard by the fingerprint of its name; one that is known stays as it is. */
void ldr_shadow_note(ldr_shadow_t *shadow, uint64_t fingerprint, uint32_t bytes,
                     uint32_t expires_s);
/* Its bytes; 0: not known, or expired. */
uint32_t ldr_shadow_find(const ldr_shadow_t *shadow, uint64_t fingerprint,
                         uint32_t now_s);
void ldr_shadow_forget(ldr_shadow_t *shadow, uint64_t fingerprint);

/* Of a node that is not on, with its lock: a save, a removal, a load, a match
 * of `count` chunks. They do nothing but note and count. */
void ldr_observe_save(ldr_node_t *node, const ldr_target_t *t, size_t bytes);
void ldr_observe_remove(ldr_node_t *node, uint32_t space,
                        const larder_item_t *item);
void ldr_observe_load(ldr_node_t *node, const ldr_target_t *t);
/* Without the lock. */
void ldr_observe_match(ldr_node_t *node, uint32_t space, uint32_t shards,
                       uint16_t group, const larder_key_t *keys, size_t count);
