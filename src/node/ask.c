/* Asking other nodes before a match or a load: see node.h. */
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "node/node.h"

#define SLICE 64u /* chunks looked up before others get the lock */

/* The tier that has to ask; NULL: none does. */
static ldr_tier_t *asker(const ldr_node_t *node)
{
    for (unsigned i = 0; i < node->tier_count; i++) {
        if (node->order[i]->ops->ask != NULL) {
            return node->order[i];
        }
    }
    return NULL;
}

ldr_query_t *ldr_node_ask_begin(ldr_node_t *node, uint32_t space,
                                uint32_t shards, uint64_t deadline_ns)
{
    ldr_query_t *ask = asker(node) != NULL ? ldr_alloc(sizeof(*ask)) : NULL;

    if (ask != NULL) {
        ask->space = space;
        ask->shards = shards;
        ask->until_ns = deadline_ns;
        ask->refs = 1;
        ask->lease = true;
    }
    return ask;
}

static bool add(ldr_query_t *ask, const ldr_name_t *name)
{
    if (ask->count == ask->capacity) {
        uint32_t capacity = ask->capacity > 0 ? 2 * ask->capacity : SLICE;
        ldr_query_row_t *more = ldr_alloc(capacity * sizeof(*more));

        if (more == NULL) {
            return false;
        }
        if (ask->count > 0) {
            memcpy(more, ask->rows, ask->count * sizeof(*more));
        }
        ldr_free(ask->rows);
        ask->rows = more;
        ask->capacity = capacity;
    }
    ask->rows[ask->count++] = (ldr_query_row_t){
        .key = *name->key,
        .fingerprint = name->fingerprint,
        .group = (uint16_t)name->group,
    };
    return true;
}

/* Whether something of the chunk is not available here. With the lock. */
static bool lacks(ldr_node_t *node, const ldr_name_t *name, uint32_t entry,
                  uint32_t shards)
{
    ldr_sought_t sought = {name, entry, 0, false};
    larder_cause_t cause;
    larder_tier_t tier;
    uint32_t bytes;

    for (; sought.number < shards; sought.number++) {
        if (!ldr_node_usable(node, &sought, &tier, &bytes, &cause)) {
            return true;
        }
    }
    return false;
}

/* These will be looked for next. */
static void look_ahead(const ldr_store_t *store, ldr_tier_t *t,
                       const ldr_name_t *names, uint32_t count, uint32_t shards)
{
    uint32_t chunks[SLICE];

    ldr_store_prefetch(store, names, count, chunks);
    t->ops->prefetch(t, names, names->key, count, shards);
}

larder_status_t ldr_node_ask_add(ldr_node_t *node, ldr_query_t *ask,
                                 uint32_t group, const larder_key_t *keys,
                                 size_t count)
{
    ldr_store_t *store = &node->store;
    uint32_t now_s = ldr_wall_s(node->clock), entry = LDR_NIL;
    ldr_tier_t *t = asker(node);
    larder_cause_t cause;
    bool ok = true;

    for (size_t i = 0; i < count && ok;) {
        uint32_t n = (uint32_t)ldr_min64(count - i, SLICE);
        ldr_name_t names[SLICE];
        bool ahead = false;

        ldr_node_lock(node);
        for (uint32_t k = 0; k < n; k++) {
            names[k] = ldr_store_name(store, ask->space, group, &keys[i + k]);
        }
        for (uint32_t k = 0; k < n && ok; k++) {
            entry = ldr_store_find(store, &names[k], entry, now_s, &cause);
            if (entry == LDR_NIL && !ahead) { /* nor the next ones, probably */
                ahead = true;
                look_ahead(store, t, names + k, n - k, ask->shards);
            }
            if (lacks(node, &names[k], entry, ask->shards) &&
                t->ops->must_ask(t, ask, &names[k])) {
                ok = add(ask, &names[k]);
            }
        }
        ldr_node_unlock(node);
        i += n;
    }
    return ok ? LARDER_OK
              : ldr_fail(LARDER_E_NO_MEMORY, "not enough memory to ask peers");
}

bool ldr_node_ask(ldr_node_t *node, ldr_query_t *ask)
{
    ldr_tier_t *t = asker(node);

    ldr_node_lock(node);
    bool waits = ask->count > 0 && t->ops->ask(t, ask);
    ldr_node_unlock(node);
    if (!waits) {
        ldr_node_ask_end(node, ask);
    }
    return waits;
}

void ldr_node_ask_wait(ldr_node_t *node, ldr_query_t *ask)
{
    ldr_node_lock(node);
    while (!ask->over && ldr_now_ns(node->clock) < ask->until_ns &&
           ldr_host_wait(&node->host, ask->until_ns)) {
    }
    ldr_node_unlock(node);
}

void ldr_node_ask_end(ldr_node_t *node, ldr_query_t *ask)
{
    ldr_node_lock(node);
    ask->over = true;
    ask->ready = NULL;
    bool last = --ask->refs == 0;
    ldr_node_unlock(node);
    if (last) {
        ldr_free(ask->rows);
        ldr_free(ask);
    }
}
