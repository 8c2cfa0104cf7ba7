#include "node/observe.h"

#include "base/bytes.h"
#include "base/mem.h"

#define SHARDS_MAX ((uint64_t)1 << 24)
#define MATCH_SLICE 64u /* chunks looked up before others get the lock */

/* ---- the shadow ----
 *
 * A ring of entries, oldest first, chained into buckets by fingerprint. An
 * entry of 0 bytes was forgotten, and is in no bucket. */

typedef struct entry {
    uint64_t fingerprint;
    uint32_t bytes, expires_s;
    uint32_t next; /* of its bucket: number + 1 */
} entry_t;

struct ldr_shadow {
    uint64_t bytes_max, bytes;
    uint32_t capacity, count;
    uint32_t first; /* the oldest */
    uint32_t mask;  /* of buckets */
    entry_t *ring;
    uint32_t *buckets; /* entry + 1 */
};

ldr_shadow_t *ldr_shadow_create(uint64_t bytes_max, uint64_t shards_max)
{
    ldr_shadow_t *shadow = ldr_alloc(sizeof(*shadow));

    if (shadow == NULL) {
        return NULL;
    }
    shadow->bytes_max = bytes_max;
    shadow->capacity =
        (uint32_t)ldr_max64(ldr_min64(shards_max, SHARDS_MAX), 1);
    shadow->mask = 1023;
    while (shadow->mask < shadow->capacity - 1) {
        shadow->mask = shadow->mask * 2 + 1;
    }
    shadow->ring = ldr_reserve(shadow->capacity * sizeof(*shadow->ring));
    shadow->buckets =
        ldr_reserve(((size_t)shadow->mask + 1) * sizeof(*shadow->buckets));
    if (shadow->ring == NULL || shadow->buckets == NULL) {
        ldr_shadow_destroy(shadow);
        return NULL;
    }
    return shadow;
}

void ldr_shadow_destroy(ldr_shadow_t *shadow)
{
    if (shadow != NULL) {
        ldr_unreserve(shadow->ring, shadow->capacity * sizeof(*shadow->ring));
        ldr_unreserve(shadow->buckets,
                      ((size_t)shadow->mask + 1) * sizeof(*shadow->buckets));
        ldr_free(shadow);
    }
}

/* Where the number of this entry stands; it is 0 if there is none. */
static uint32_t *place_of(const ldr_shadow_t *shadow, uint64_t fingerprint)
{
    uint32_t *at = &shadow->buckets[fingerprint & shadow->mask];

    while (*at != 0 && shadow->ring[*at - 1].fingerprint != fingerprint) {
        at = &shadow->ring[*at - 1].next;
    }
    return at;
}

void ldr_shadow_forget(ldr_shadow_t *shadow, uint64_t fingerprint)
{
    uint32_t *at = place_of(shadow, fingerprint);

    if (*at != 0) {
        entry_t *e = &shadow->ring[*at - 1];

        *at = e->next;
        shadow->bytes -= e->bytes;
        e->bytes = 0;
    }
}

static void drop_oldest(ldr_shadow_t *shadow)
{
    const entry_t *e = &shadow->ring[shadow->first];

    if (e->bytes > 0) {
        ldr_shadow_forget(shadow, e->fingerprint);
    }
    shadow->first = (shadow->first + 1) % shadow->capacity;
    shadow->count--;
}

uint32_t ldr_shadow_find(const ldr_shadow_t *shadow, uint64_t fingerprint,
                         uint32_t now_s)
{
    uint32_t at = *place_of(shadow, fingerprint);
    const entry_t *e = at != 0 ? &shadow->ring[at - 1] : NULL;

    return e != NULL && (e->expires_s == 0 || now_s < e->expires_s) ? e->bytes
                                                                    : 0;
}

void ldr_shadow_note(ldr_shadow_t *shadow, uint64_t fingerprint, uint32_t bytes,
                     uint32_t expires_s)
{
    if (bytes == 0 || bytes > shadow->bytes_max ||
        *place_of(shadow, fingerprint) != 0) {
        return;
    }
    while (shadow->count == shadow->capacity ||
           shadow->bytes + bytes > shadow->bytes_max) {
        drop_oldest(shadow);
    }
    uint32_t number = (uint32_t)(((uint64_t)shadow->first + shadow->count++) %
                                 shadow->capacity);
    uint32_t *bucket = &shadow->buckets[fingerprint & shadow->mask];
    shadow->ring[number] = (entry_t){fingerprint, bytes, expires_s, *bucket};
    *bucket = number + 1;
    shadow->bytes += bytes;
}

/* ---- what requests do ---- */

/* The name of a shard; after a reset it has another one. */
static uint64_t shard_print(const ldr_node_t *node, const ldr_name_t *name,
                            uint32_t shard)
{
    uint64_t epoch = node->store.spaces[name->space].epoch;
    uint64_t x = name->fingerprint + (epoch << 8 | shard);

    x *= 0x9e3779b97f4a7c15u;
    return x ^ x >> 29;
}

void ldr_observe_save(ldr_node_t *node, const ldr_target_t *t, size_t bytes)
{
    const larder_item_t *item = t->item;

    if (node->shadow != NULL) {
        ldr_name_t name =
            ldr_store_name(&node->store, t->space, item->group, item->key);
        uint32_t expires_s = 0;

        if (item->ttl_ms != 0) {
            expires_s = ldr_wall_s(node->clock) +
                        (uint32_t)ldr_div_up(item->ttl_ms, 1000);
        }
        ldr_shadow_note(node->shadow, shard_print(node, &name, item->shard),
                        (uint32_t)bytes, expires_s);
    }
}

void ldr_observe_remove(ldr_node_t *node, uint32_t space,
                        const larder_item_t *item)
{
    if (node->shadow != NULL) {
        ldr_name_t name =
            ldr_store_name(&node->store, space, item->group, item->key);

        ldr_shadow_forget(node->shadow, shard_print(node, &name, item->shard));
    }
}

/* The bytes of a shard that could be loaded if the node were on, or 0. */
static uint32_t would_hit(ldr_node_t *node, const ldr_name_t *name,
                          uint32_t entry, uint32_t shard, uint32_t now_s)
{
    ldr_sought_t sought = {name, entry, shard};
    uint32_t bytes = 0;
    larder_cause_t cause;
    larder_tier_t tier;

    if (entry != LDR_NIL &&
        shard < ldr_index_at(&node->store.index, entry)->shards &&
        ldr_node_usable(node, &sought, &tier, &bytes, &cause)) {
        return bytes;
    }
    return node->shadow != NULL
               ? ldr_shadow_find(node->shadow, shard_print(node, name, shard),
                                 now_s)
               : 0;
}

void ldr_observe_load(ldr_node_t *node, const ldr_target_t *t)
{
    ldr_store_t *store = &node->store;
    uint32_t now_s = ldr_wall_s(node->clock);
    larder_cause_t cause;

    if (node->mode != LDR_MODE_OBSERVE) {
        return;
    }
    ldr_name_t name =
        ldr_store_name(store, t->space, t->item->group, t->item->key);
    uint32_t entry = ldr_store_find(store, &name, LDR_NIL, now_s, &cause);
    uint32_t bytes = would_hit(node, &name, entry, t->item->shard, now_s);
    LDR_COUNT(store, t->space, observed_hits, bytes > 0);
    LDR_COUNT(store, t->space, observed_misses, bytes == 0);
    LDR_COUNT(store, t->space, observed_hit_bytes, bytes);
}

/* The bytes of a chunk all of whose shards would hit, or 0. */
static uint64_t would_match(ldr_node_t *node, const ldr_name_t *name,
                            uint32_t shards, uint32_t *entry_p, uint32_t now_s)
{
    uint64_t sum = 0;
    larder_cause_t cause;

    *entry_p = ldr_store_find(&node->store, name, *entry_p, now_s, &cause);
    for (uint32_t i = 0; i < shards; i++) {
        uint32_t bytes = would_hit(node, name, *entry_p, i, now_s);

        if (bytes == 0) {
            return 0;
        }
        sum += bytes;
    }
    return sum;
}

void ldr_observe_match(ldr_node_t *node, uint32_t space, uint32_t shards,
                       uint16_t group, const larder_key_t *keys, size_t count)
{
    ldr_store_t *store = &node->store;
    uint32_t now_s = ldr_wall_s(node->clock);
    uint32_t entry = LDR_NIL;
    uint64_t sum = 0, bytes = 1;
    size_t hits = 0;

    while (hits < count && bytes > 0) {
        size_t end = ldr_min64(count, hits + MATCH_SLICE);

        ldr_node_lock(node);
        while (hits < end && bytes > 0) {
            ldr_name_t name = ldr_store_name(store, space, group, &keys[hits]);

            bytes = would_match(node, &name, shards, &entry, now_s);
            sum += bytes;
            hits += bytes > 0;
        }
        ldr_node_unlock(node);
    }
    ldr_node_lock(node);
    LDR_COUNT(store, space, observed_hits, hits * shards);
    LDR_COUNT(store, space, observed_misses, (count - hits) * shards);
    LDR_COUNT(store, space, observed_hit_bytes, sum);
    ldr_node_unlock(node);
}

/* ---- switching ---- */

void ldr_node_set_mode(ldr_node_t *node, ldr_mode_t mode)
{
    static const char *const texts[] = {"on", "observing", "paused"};
    const ldr_options_t *o = &node->options;
    uint64_t bytes = o->dram + o->dir_count * o->ssd;
    ldr_shadow_t *spare = NULL; /* made for nothing, or not needed any more */

    if (mode == LDR_MODE_OBSERVE) {
        spare = ldr_shadow_create(bytes, node->store.index.entry_max);
        if (spare == NULL) {
            ldr_warn(&node->log, "observing without memory for names: only "
                                 "what the tiers hold is counted");
        }
    }
    ldr_node_lock(node);
    ldr_mode_t before = node->mode;
    node->mode = mode;
    if ((mode == LDR_MODE_OBSERVE) == (node->shadow == NULL)) {
        ldr_shadow_t *shadow = node->shadow;

        node->shadow = spare;
        spare = shadow;
    }
    pthread_cond_broadcast(&node->changed);
    ldr_node_unlock(node);
    ldr_shadow_destroy(spare);
    if (mode != before) {
        ldr_info(&node->log, "the node is %s, it was %s", texts[mode],
                 texts[before]);
    }
}

ldr_mode_t ldr_node_get_mode(ldr_node_t *node)
{
    ldr_node_lock(node);
    ldr_mode_t mode = node->mode;
    ldr_node_unlock(node);
    return mode;
}
