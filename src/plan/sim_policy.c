/*
 * A cache ordered by one of the store's own policy tables: the same object
 * file that a node runs.
 */
#include "base/log.h"
#include "base/mem.h"
#include "cluster/placement.h"
#include "plan/ids.h"
#include "plan/sim.h"
#include "store/index.h"

typedef struct policy_node {
    ldr_policy_t *policy;
    uint32_t used;   /* slots handed out so far */
    uint64_t served; /* blocks that were looked for here */
} policy_node_t;

/* What is in a slot of a node. */
typedef struct policy_slot {
    uint32_t block;
    uint32_t user; /* the request that last used it */
} policy_slot_t;

typedef struct policy_sim {
    ldr_sim_t base;
    const ldr_policy_ops_t *ops;
    uint32_t nodes;
    uint32_t capacity; /* of each of them */
    uint32_t run_blocks;
    uint32_t request; /* number of the one at work */
    uint32_t distinct;
    uint32_t block_tokens;
    policy_node_t *node;
    ldr_placement_t *placement; /* NULL: there is but one node */
    uint32_t *slot_of;   /* slot + 1 of a block, on its node; 0: not here */
    policy_slot_t *held; /* [node * capacity + slot] */
    uint32_t *slots;     /* of a request's blocks, LDR_NIL for those missing */
    uint64_t *prints;    /* of its blocks */
} policy_sim_t;

/* What stands for a block towards a policy: its number tells it from all
 * others, but a policy may want bits that are spread. */
static uint64_t print_of(uint32_t block)
{
    uint64_t x = ((uint64_t)block + 1) * 0x9e3779b97f4a7c15u;

    return x ^ x >> 29;
}

static size_t all_bytes(const policy_sim_t *s)
{
    return (size_t)s->nodes * s->capacity * sizeof(*s->held);
}

static void policy_destroy(ldr_sim_t *sim)
{
    policy_sim_t *s = (policy_sim_t *)sim;

    if (s == NULL) {
        return;
    }
    for (uint32_t i = 0; s->node != NULL && i < s->nodes; i++) {
        if (s->node[i].policy != NULL) {
            s->ops->destroy(s->node[i].policy);
        }
    }
    if (s->slot_of != NULL) {
        ldr_unreserve(s->slot_of, ((size_t)s->distinct + 1) * 4);
    }
    if (s->held != NULL) {
        ldr_unreserve(s->held, all_bytes(s));
    }
    ldr_placement_destroy(s->placement);
    ldr_free(s->node);
    ldr_free(s->slots);
    ldr_free(s->prints);
    ldr_free(s);
}

static bool make_policies(policy_sim_t *s)
{
    for (uint32_t i = 0; i < s->nodes; i++) {
        s->node[i].policy = s->ops->create(s->capacity);
        if (s->node[i].policy == NULL) {
            return false;
        }
    }
    return true;
}

/* Nodes of the same weight. */
static bool make_placement(policy_sim_t *s)
{
    if (s->nodes == 1) {
        return true;
    }
    ldr_placed_t *members = ldr_alloc(s->nodes * sizeof(*members));
    if (members == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < s->nodes; i++) {
        members[i] = (ldr_placed_t){.id = i, .weight = 1};
    }
    s->placement = ldr_placement_create(members, s->nodes, 1);
    ldr_free(members);
    return s->placement != NULL;
}

static ldr_sim_t *policy_create(const ldr_sim_ops_t *ops, ldr_tape_t *tape,
                                const ldr_sim_params_t *params)
{
    policy_sim_t *s = ldr_alloc(sizeof(*s));

    if (s == NULL) {
        ldr_fail(LARDER_E_NO_MEMORY, "no memory to simulate %s", ops->name);
        return NULL;
    }
    s->nodes = params->nodes > 1 ? params->nodes : 1;
    s->run_blocks = s->nodes > 1 ? params->run_blocks : UINT32_MAX;
    /* More than the trace has would only be more to reserve. */
    s->capacity = params->capacity / s->nodes;
    s->capacity = s->capacity < tape->distinct ? s->capacity : tape->distinct;
    s->capacity = s->capacity > 0 ? s->capacity : 1;
    s->base.ops = ops;
    s->ops = ops->policy;
    s->distinct = tape->distinct;
    s->block_tokens = tape->block_tokens;
    s->node = ldr_alloc(s->nodes * sizeof(*s->node));
    s->slot_of = ldr_reserve_huge(((size_t)s->distinct + 1) * 4);
    s->held = ldr_reserve_huge(all_bytes(s));
    s->slots = ldr_alloc(((size_t)tape->longest + 1) * 4);
    s->prints = ldr_alloc(((size_t)tape->longest + 1) * 8);
    if (s->node == NULL || s->slot_of == NULL || s->held == NULL ||
        s->slots == NULL || s->prints == NULL || !make_policies(s) ||
        !make_placement(s)) {
        ldr_fail(LARDER_E_NO_MEMORY,
                 "no memory to simulate %s with %u blocks on %u nodes",
                 ops->name, params->capacity, s->nodes);
        policy_destroy(&s->base);
        return NULL;
    }
    return &s->base;
}

static uint32_t policy_prefix(ldr_sim_t *sim, const uint32_t *blocks,
                              uint32_t from, uint32_t count)
{
    const policy_sim_t *s = (policy_sim_t *)sim;
    uint32_t n = from;

    while (n < count && s->slot_of[blocks[n]] != 0) {
        n++;
    }
    return n;
}

/* The node of the run that begins with this block. */
static uint32_t node_of(const policy_sim_t *s, uint32_t block)
{
    uint32_t owner = 0;

    ldr_placement_owners(s->placement, ldr_id_map_hash(block), &owner);
    return owner;
}

/* A part of a request that one node has: the whole, if there is but one. */
typedef struct part {
    const ldr_tape_request_t *request;
    const uint32_t *blocks; /* the first of the part */
    uint32_t count;
    policy_node_t *node;
    policy_slot_t *held; /* of the node */
} part_t;

/*
 * A slot for a new block. LDR_NIL: the policy gives nothing up for it, or only
 * what the request at work uses itself, which is longer than the cache then: a
 * node would have these leased.
 */
static uint32_t make_room(policy_sim_t *s, part_t *p, uint32_t parent,
                          uint32_t depth)
{
    policy_node_t *n = p->node;

    if (n->used < s->capacity) {
        return n->used++;
    }
    if (!s->ops->admit(n->policy, parent, depth, s->prints[depth])) {
        return LDR_NIL;
    }
    uint32_t slot = s->ops->victim(n->policy);
    if (slot == LDR_NIL ||
        (p->request->count > 1 && p->held[slot].user == s->request)) {
        return LDR_NIL;
    }
    s->ops->remove(n->policy, slot);
    s->slot_of[p->held[slot].block] = 0;
    return slot;
}

/* Announces a request to the policy, as a node does when one comes. */
static void request_announce(policy_sim_t *s, part_t *p)
{
    for (uint32_t i = 0; i < p->count; i++) {
        uint32_t slot = s->slot_of[p->blocks[i]];

        s->prints[i] = print_of(p->blocks[i]);
        s->slots[i] = slot - 1; /* 0 becomes LDR_NIL */
        if (slot != 0) {
            p->held[slot - 1].user = s->request;
        }
    }
    ldr_policy_request_t r = {
        .id = s->request,
        .prints = s->prints,
        .slots = s->slots,
        .count = p->count,
        .tokens = s->nodes == 1 ? p->request->input_tokens : 0,
        .chunk_tokens = s->block_tokens,
        .hint = p->request->hint,
    };
    s->ops->time(p->node->policy, (uint32_t)(p->request->at_ms / 100));
    s->ops->request(p->node->policy, &r);
    p->node->served += p->count;
}

/* Each part is a chain of its own to its node. False: the node took not all of
 * it, so what is behind it need not be stored either. */
static bool use_part(policy_sim_t *s, part_t *p)
{
    uint32_t parent = LDR_NIL;

    request_announce(s, p);
    for (uint32_t i = 0; i < p->count; i++) {
        uint32_t slot = s->slot_of[p->blocks[i]];

        if (slot != 0) {
            parent = slot - 1;
            continue;
        }
        slot = make_room(s, p, parent, i);
        if (slot == LDR_NIL) {
            return false;
        }
        s->ops->place(p->node->policy, slot, parent, i, s->prints[i]);
        s->slot_of[p->blocks[i]] = slot + 1;
        p->held[slot] = (policy_slot_t){p->blocks[i], s->request};
        parent = slot;
    }
    return true;
}

static bool policy_use(ldr_sim_t *sim, const ldr_tape_request_t *request,
                       const uint32_t *blocks)
{
    policy_sim_t *s = (policy_sim_t *)sim;
    bool more = true;

    s->request++;
    for (uint32_t from = 0; from < request->count && more;
         from += s->run_blocks) {
        uint32_t left = request->count - from;
        uint32_t node = s->placement != NULL ? node_of(s, blocks[from]) : 0;
        size_t first = (size_t)node * s->capacity;
        part_t p = {
            .request = request,
            .blocks = blocks + from,
            .count = left < s->run_blocks ? left : s->run_blocks,
            .node = &s->node[node],
            .held = s->held + first,
        };
        more = use_part(s, &p) && left > s->run_blocks;
    }
    return true;
}

static void policy_prefetch(const ldr_sim_t *sim, uint32_t block, unsigned step)
{
    const policy_sim_t *s = (const policy_sim_t *)sim;

    if (step >= 2) {
        __builtin_prefetch(&s->slot_of[block]);
    } else if (step == 1 && s->slot_of[block] != 0) {
        __builtin_prefetch(&s->held[s->slot_of[block] - 1]);
    }
    if (s->ops->prefetch != NULL && s->nodes == 1) {
        s->ops->prefetch(s->node->policy, print_of(block), step);
    }
}

static double policy_busiest(const ldr_sim_t *sim)
{
    const policy_sim_t *s = (const policy_sim_t *)sim;
    uint64_t most = 0, all = 0;

    for (uint32_t i = 0; i < s->nodes; i++) {
        most = s->node[i].served > most ? s->node[i].served : most;
        all += s->node[i].served;
    }
    return all > 0 ? (double)most * s->nodes / (double)all : 0;
}

/* One of the store's policies, under a name that users know. */
#define POLICY_SIM(shown, what, table)                                         \
    {                                                                          \
        .name = shown, .text = what, .policy = table, .create = policy_create, \
        .destroy = policy_destroy, .prefix = policy_prefix, .use = policy_use, \
        .prefetch = policy_prefetch, .busiest = policy_busiest,                \
    }

const ldr_sim_ops_t ldr_sim_lru =
    POLICY_SIM("lru", "least recently used, leaves first", &ldr_policy_lru);
const ldr_sim_ops_t ldr_sim_default =
    POLICY_SIM("default", "what a node runs: learned", &ldr_policy_default);
