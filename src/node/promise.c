/* Promises and hand-off leases: see promise.h. */
#include "node/promise.h"

#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "base/thread.h"

#define BUCKETS 4096u

typedef struct ldr_promise_slot {
    larder_key_t key;
    struct ldr_promise_slot *next; /* of its bucket */
    struct ldr_promise *promise;
    ldr_promise_wait_t *waits;
    uint32_t chunk; /* that is held, or LDR_NIL */
    uint32_t pages; /* of it */
    uint16_t group;
    bool open;
} slot_t;

typedef struct ldr_promise {
    struct ldr_promise *next;
    larder_token_t token;
    uint64_t owner; /* 0: nobody fills it any more */
    uint64_t expires_ns;
    uint64_t late_ns; /* open slots are closed then */
    uint32_t tenant, space, shards;
    bool answered;
    uint32_t slot_count;
    slot_t slots[];
} promise_t;

struct ldr_promises {
    promise_t *first;
    uint64_t due_ns; /* nothing has to be ended before */
    slot_t *table[BUCKETS];
};

static slot_t **slot_bucket(struct ldr_promises *all, const larder_key_t *key)
{
    return &all->table[ldr_get32(key->hash) % BUCKETS];
}

static ldr_tenant_t *tenant_of(ldr_node_t *node, const promise_t *p)
{
    return &node->store.tenants[p->tenant];
}

/* ---- slots ---- */

static void close_slot(ldr_node_t *node, slot_t *slot)
{
    ldr_promise_wait_t *wait = slot->waits;

    slot->open = false;
    slot->waits = NULL;
    while (wait != NULL) {
        ldr_promise_wait_t *next = wait->next; /* ready() may end it */

        wait->on = NULL;
        if (wait->ready != NULL) {
            wait->ready(wait);
        }
        wait = next;
    }
    pthread_cond_broadcast(&node->changed);
}

/* A tenant's promises hold a part of its memory at most. */
static bool may_hold(ldr_node_t *node, const promise_t *p, uint32_t pages)
{
    const ldr_arena_t *arena = &node->store.arena;
    uint32_t most = arena->owners[p->tenant].pages_max;

    most = most != 0 ? most : arena->page_count;
    return tenant_of(node, p)->promised_pages + pages <=
           most / LDR_PROMISE_DRAM_PART;
}

/* The chunk is there: holds it, if there is room for that, and closes the
 * slot. */
static void fill_slot(ldr_node_t *node, slot_t *slot, uint32_t chunk)
{
    ldr_store_t *store = &node->store;
    promise_t *p = slot->promise;

    if (chunk != LDR_NIL && slot->chunk == LDR_NIL) {
        uint32_t pages = ldr_store_pages(store, chunk);

        if (may_hold(node, p, pages)) {
            ldr_store_hold(store, chunk);
            slot->chunk = chunk;
            slot->pages = pages;
            tenant_of(node, p)->promised_pages += pages;
        } else {
            LDR_COUNT(store, p->space, handoff_unheld, 1);
        }
    }
    if (slot->open) {
        LDR_COUNT(store, p->space, handoff_kept, 1);
        close_slot(node, slot);
    }
}

static void fail_slot(ldr_node_t *node, slot_t *slot)
{
    if (slot->open) {
        LDR_COUNT(&node->store, slot->promise->space, handoff_failed, 1);
        close_slot(node, slot);
    }
}

/* Of an attached chunk: whether all its shards are ready. */
static bool is_whole(const ldr_store_t *store, uint32_t chunk, uint32_t shards)
{
    uint32_t ready = 0;

    for (uint32_t i = store->chunks[chunk].shards; i != LDR_NIL;
         i = store->shards[i].next) {
        ready += store->shards[i].state == LDR_SHARD_READY;
    }
    return ready == shards;
}

/* Whether every shard could be loaded now. *chunk_p: the chunk in DRAM, if all
 * of it is there, else LDR_NIL. */
static bool is_there(ldr_node_t *node, const slot_t *slot, uint32_t *chunk_p)
{
    ldr_store_t *store = &node->store;
    const promise_t *p = slot->promise;
    ldr_name_t name = ldr_store_name(store, p->space, slot->group, &slot->key);
    larder_cause_t cause;
    uint32_t entry =
        ldr_store_find(store, &name, LDR_NIL, ldr_wall_s(node->clock), &cause);
    ldr_sought_t sought = {&name, entry, 0, false};

    *chunk_p = LDR_NIL;
    for (; sought.number < p->shards; sought.number++) {
        larder_tier_t tier;
        uint32_t bytes;

        if (!ldr_node_usable(node, &sought, &tier, &bytes, &cause)) {
            return false;
        }
    }
    if (entry != LDR_NIL) {
        uint32_t chunk = ldr_index_at(&store->index, entry)->resident;

        if (chunk != LDR_NIL && is_whole(store, chunk, p->shards)) {
            *chunk_p = chunk;
        }
    }
    return true;
}

static bool names(const slot_t *slot, uint32_t space, uint32_t group,
                  const larder_key_t *key)
{
    return slot->promise->space == space && slot->group == group &&
           memcmp(&slot->key, key, sizeof(*key)) == 0;
}

/* ---- promises ---- */

/* Its times were set. */
static void note_due(ldr_node_t *node, const promise_t *p)
{
    node->promises->due_ns =
        ldr_min64(node->promises->due_ns, ldr_min64(p->expires_ns, p->late_ns));
}

static promise_t **promise_find(ldr_node_t *node, uint32_t tenant,
                                const larder_token_t *token)
{
    promise_t **link = &node->promises->first;

    while (*link != NULL &&
           ((*link)->tenant != tenant ||
            memcmp(&(*link)->token, token, sizeof(*token)) != 0)) {
        link = &(*link)->next;
    }
    return link;
}

/* Ends the promise and its lease. */
static void end_promise(ldr_node_t *node, promise_t **link)
{
    promise_t *p = *link;
    ldr_store_t *store = &node->store;
    ldr_tenant_t *tenant = tenant_of(node, p);

    *link = p->next;
    for (uint32_t i = 0; i < p->slot_count; i++) {
        slot_t *slot = &p->slots[i],
               **at = slot_bucket(node->promises, &slot->key);

        fail_slot(node, slot);
        while (*at != slot) {
            at = &(*at)->next;
        }
        *at = slot->next;
        if (slot->chunk != LDR_NIL) {
            tenant->promised_pages -= slot->pages;
            ldr_store_release(store, slot->chunk);
        }
    }
    tenant->promised_slots -= p->slot_count;
    ldr_free(p);
}

static void fail_open(ldr_node_t *node, promise_t *p)
{
    p->owner = 0;
    p->late_ns = UINT64_MAX;
    for (uint32_t i = 0; i < p->slot_count; i++) {
        fail_slot(node, &p->slots[i]);
    }
}

static uint32_t count_slots(const ldr_prefix_t *p)
{
    uint64_t count = 0;

    for (uint32_t i = 0; i < p->need_count; i++) {
        ldr_span_t span = ldr_need_span(&p->needs[i], p->count);

        count += span.end - span.first;
    }
    return (uint32_t)ldr_min64(count, UINT32_MAX);
}

static void make_slots(ldr_node_t *node, promise_t *made, const ldr_prefix_t *p)
{
    for (uint32_t i = 0; i < p->need_count; i++) {
        ldr_span_t span = ldr_need_span(&p->needs[i], p->count);

        for (uint32_t k = span.first; k < span.end; k++) {
            slot_t *slot = &made->slots[made->slot_count++];
            slot_t **head = slot_bucket(node->promises, &p->keys[k]);
            uint32_t chunk;

            *slot = (slot_t){.key = p->keys[k],
                             .next = *head,
                             .promise = made,
                             .chunk = LDR_NIL,
                             .group = p->needs[i].group,
                             .open = true};
            *head = slot;
            if (is_there(node, slot, &chunk)) {
                fill_slot(node, slot, chunk);
            }
        }
    }
}

/* With the lock. made: its memory. */
static larder_status_t promise_enter(ldr_node_t *node, promise_t *made,
                                     const ldr_prefix_t *p, uint32_t count)
{
    uint32_t tenant = node->store.spaces[p->space].tenant;

    if (tenant == LDR_NIL) {
        return ldr_fail(LARDER_E_SPACE, "the space belongs to no tenant");
    }
    ldr_promise_due(node);
    if (node->promises == NULL) {
        node->promises = ldr_alloc(sizeof(*node->promises));
    }
    if (node->promises == NULL) {
        return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for promises");
    }
    if (*promise_find(node, tenant, &made->token) != NULL) {
        return ldr_fail(LARDER_E_INVALID, "the token stands for a promise");
    }
    made->tenant = tenant;
    if (count > LDR_PROMISE_SLOTS_MAX - tenant_of(node, made)->promised_slots) {
        return ldr_fail(LARDER_E_LIMIT,
                        "%u chunks to promise: a tenant may promise %u at a "
                        "time",
                        count, LDR_PROMISE_SLOTS_MAX);
    }
    tenant_of(node, made)->promised_slots += count;
    made->next = node->promises->first;
    node->promises->first = made;
    note_due(node, made);
    LDR_COUNT(&node->store, p->space, handoffs, 1);
    make_slots(node, made, p);
    return LARDER_OK;
}

larder_status_t ldr_promise_make(ldr_node_t *node, const ldr_prefix_t *p,
                                 const larder_token_t *token, uint64_t owner)
{
    uint32_t count = count_slots(p);

    if (count > LDR_PROMISE_SLOTS_MAX) {
        return ldr_fail(LARDER_E_LIMIT, "%u chunks in one promise, of %u",
                        count, LDR_PROMISE_SLOTS_MAX);
    }
    promise_t *made =
        ldr_alloc(sizeof(*made) + (size_t)count * sizeof(made->slots[0]));
    if (made == NULL) {
        return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for a promise");
    }
    made->token = *token;
    made->owner = owner;
    made->space = p->space;
    made->shards = p->shards;
    made->late_ns = UINT64_MAX;
    made->expires_ns = ldr_now_ns(node->clock) + LDR_PROMISE_LIFE_NS;
    ldr_node_lock(node);
    larder_status_t st = promise_enter(node, made, p, count);
    ldr_node_unlock(node);
    if (st != LARDER_OK) {
        ldr_free(made);
    }
    return st;
}

larder_status_t ldr_promise_tell(ldr_node_t *node, uint32_t space,
                                 const larder_token_t *token,
                                 larder_handoff_t what)
{
    uint64_t now_ns = ldr_now_ns(node->clock);
    larder_status_t st = LARDER_MISS;

    ldr_node_lock(node);
    promise_t **link =
        node->promises != NULL
            ? promise_find(node, node->store.spaces[space].tenant, token)
            : NULL;
    promise_t *p = link != NULL ? *link : NULL;
    if (p != NULL && now_ns >= p->expires_ns) {
        LDR_COUNT(&node->store, p->space, handoffs_expired, 1);
        end_promise(node, link);
        p = NULL;
    }
    if (p == NULL && what == LARDER_HANDOFF_RENEW) {
        LDR_COUNT(&node->store, space, handoffs_late, 1);
    }
    if (p != NULL) {
        st = LARDER_OK;
        switch (what) {
        case LARDER_HANDOFF_ANSWERED:
            p->answered = true;
            p->late_ns = now_ns + LDR_PROMISE_LATE_NS;
            p->expires_ns = now_ns + LDR_PROMISE_LEASE_NS;
            break;
        case LARDER_HANDOFF_RENEW:
            p->expires_ns =
                ldr_max64(p->expires_ns, now_ns + LDR_PROMISE_LEASE_NS);
            break;
        case LARDER_HANDOFF_FAILED:
            fail_open(node, p);
            p->expires_ns =
                ldr_min64(p->expires_ns, now_ns + LDR_PROMISE_LEASE_NS);
            break;
        default:
            end_promise(node, link);
            p = NULL;
        }
    }
    if (p != NULL) {
        note_due(node, p);
    }
    ldr_node_unlock(node);
    return st;
}

void ldr_promise_owner_gone(ldr_node_t *node, uint64_t owner)
{
    uint64_t now_ns = ldr_now_ns(node->clock);

    ldr_node_lock(node);
    promise_t **link = node->promises != NULL ? &node->promises->first : NULL;
    while (link != NULL && *link != NULL) {
        promise_t *p = *link;

        if (p->owner == owner && !p->answered) {
            end_promise(node, link);
            continue;
        }
        if (p->owner == owner) {
            p->owner = 0;
            p->late_ns = ldr_min64(p->late_ns, now_ns + LDR_PROMISE_GONE_NS);
            note_due(node, p);
        }
        link = &p->next;
    }
    ldr_node_unlock(node);
}

uint64_t ldr_promise_due(ldr_node_t *node)
{
    uint64_t now_ns = ldr_now_ns(node->clock);

    ldr_node_held(node);
    if (node->promises == NULL || now_ns < node->promises->due_ns) {
        return node->promises != NULL ? node->promises->due_ns : UINT64_MAX;
    }
    node->promises->due_ns = UINT64_MAX;
    for (promise_t **link = &node->promises->first; *link != NULL;) {
        promise_t *p = *link;

        if (now_ns >= p->expires_ns) {
            LDR_COUNT(&node->store, p->space, handoffs_expired, 1);
            end_promise(node, link);
            continue;
        }
        if (now_ns >= p->late_ns) {
            fail_open(node, p);
        }
        note_due(node, p);
        link = &p->next;
    }
    return node->promises->due_ns;
}

uint64_t ldr_promise_expire(ldr_node_t *node)
{
    ldr_node_lock(node);
    uint64_t next_ns = ldr_promise_due(node);
    ldr_node_unlock(node);
    return next_ns;
}

void ldr_promises_destroy(ldr_node_t *node)
{
    ldr_node_lock(node);
    while (node->promises != NULL && node->promises->first != NULL) {
        end_promise(node, &node->promises->first);
    }
    ldr_free(node->promises);
    node->promises = NULL;
    ldr_node_unlock(node);
}

/* ---- waiting ---- */

/* An open slot of this chunk; NULL: there is none. */
static slot_t *open_slot(ldr_node_t *node, uint32_t space, uint32_t group,
                         const larder_key_t *key)
{
    slot_t *slot = *slot_bucket(node->promises, key);

    for (; slot != NULL; slot = slot->next) {
        uint32_t chunk;

        if (!slot->open || !names(slot, space, group, key)) {
            continue;
        }
        if (!is_there(node, slot, &chunk)) {
            return slot;
        }
        fill_slot(node, slot, chunk); /* it came by another way */
    }
    return NULL;
}

static void add_wait(slot_t *slot, ldr_promise_wait_t *wait)
{
    wait->on = slot;
    wait->next = slot->waits;
    slot->waits = wait;
}

bool ldr_promise_await(ldr_node_t *node, const ldr_prefix_t *p,
                       ldr_promise_wait_t *wait)
{
    slot_t *slot = NULL;

    ldr_promise_expire(node);
    ldr_node_lock(node);
    LDR_ASSERT(wait->on == NULL);
    for (uint32_t i = 0; node->promises != NULL && i < p->need_count; i++) {
        ldr_span_t span = ldr_need_span(&p->needs[i], p->count);

        /* The last first: engines compute in order, so it is the last to come,
         * and the wait is over when it is there. */
        for (uint32_t k = span.end; slot == NULL && k > span.first; k--) {
            slot =
                open_slot(node, p->space, p->needs[i].group, &p->keys[k - 1]);
        }
    }
    if (slot != NULL) {
        add_wait(slot, wait);
    }
    ldr_node_unlock(node);
    return slot != NULL;
}

bool ldr_promise_open(ldr_node_t *node, uint32_t space, uint32_t group,
                      const larder_key_t *key)
{
    ldr_node_held(node);
    return node->promises != NULL && open_slot(node, space, group, key) != NULL;
}

larder_status_t ldr_promise_watch(ldr_node_t *node, uint32_t space,
                                  uint32_t group, const larder_key_t *key,
                                  ldr_promise_wait_t *wait)
{
    ldr_node_held(node);
    slot_t *slot =
        node->promises != NULL ? open_slot(node, space, group, key) : NULL;
    if (slot == NULL) {
        return LARDER_MISS;
    }
    for (const ldr_promise_wait_t *w = slot->waits; w != NULL; w = w->next) {
        if (w->ready == wait->ready && w->arg == wait->arg) {
            return LARDER_PRESENT;
        }
    }
    add_wait(slot, wait);
    return LARDER_OK;
}

void ldr_promise_unawait(ldr_node_t *node, ldr_promise_wait_t *wait)
{
    ldr_node_lock(node);
    if (wait->on != NULL) {
        ldr_promise_wait_t **link = &wait->on->waits;

        while (*link != wait) {
            link = &(*link)->next;
        }
        *link = wait->next;
        wait->on = NULL;
    }
    ldr_node_unlock(node);
}

void ldr_promise_wait_all(ldr_node_t *node, const ldr_prefix_t *p,
                          uint64_t deadline_ns)
{
    ldr_promise_wait_t wait = {.ready = NULL};
    bool in_time = true;

    while (in_time && ldr_promise_await(node, p, &wait)) {
        ldr_node_lock(node);
        uint64_t next_ns = ldr_promise_due(node);
        while (wait.on != NULL && in_time) {
            in_time =
                ldr_host_wait(&node->host, ldr_min64(next_ns, deadline_ns)) ||
                ldr_now_ns(node->clock) >= next_ns;
            next_ns = ldr_promise_due(node);
        }
        ldr_node_unlock(node);
    }
    ldr_promise_unawait(node, &wait);
}

/* ---- saves ---- */

bool ldr_promise_wants(const ldr_node_t *node, uint32_t space, uint32_t group,
                       const larder_key_t *key)
{
    const slot_t *slot =
        node->promises != NULL ? *slot_bucket(node->promises, key) : NULL;

    while (slot != NULL && !names(slot, space, group, key)) {
        slot = slot->next;
    }
    return slot != NULL;
}

void ldr_promise_committed(ldr_node_t *node, uint32_t chunk)
{
    const ldr_chunk_t *c = &node->store.chunks[chunk];

    ldr_node_held(node);
    if (node->promises == NULL) {
        return;
    }
    for (slot_t *slot = *slot_bucket(node->promises, &c->key); slot != NULL;
         slot = slot->next) {
        if (names(slot, c->space, c->group, &c->key) &&
            is_whole(&node->store, chunk, slot->promise->shards)) {
            fill_slot(node, slot, chunk);
        }
    }
}

void ldr_promise_failed(ldr_node_t *node, uint32_t space, uint32_t group,
                        const larder_key_t *key)
{
    ldr_node_held(node);
    if (node->promises == NULL) {
        return;
    }
    for (slot_t *slot = *slot_bucket(node->promises, key); slot != NULL;
         slot = slot->next) {
        if (names(slot, space, group, key)) {
            fail_slot(node, slot);
        }
    }
}
