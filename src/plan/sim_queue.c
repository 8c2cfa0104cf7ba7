/* Caches made of queues: FIFO and S3-FIFO. */

#include "base/log.h"
#include "base/mem.h"
#include "plan/sim.h"
#include "store/index.h"

/* ---- FIFO: a ring of blocks, the oldest at `at` ---- */

typedef struct fifo_sim {
    ldr_sim_t base;
    uint32_t capacity;
    uint32_t distinct;
    uint32_t used;
    uint32_t at;
    uint32_t *ring;
    uint8_t *here; /* of a block */
} fifo_sim_t;

static void fifo_destroy(ldr_sim_t *sim)
{
    fifo_sim_t *s = (fifo_sim_t *)sim;

    if (s == NULL) {
        return;
    }
    if (s->ring != NULL) {
        ldr_unreserve(s->ring, (size_t)s->capacity * 4);
    }
    if (s->here != NULL) {
        ldr_unreserve(s->here, (size_t)s->distinct + 1);
    }
    ldr_free(s);
}

static uint32_t capacity_of(const ldr_tape_t *tape, uint32_t capacity)
{
    capacity = capacity < tape->distinct ? capacity : tape->distinct;
    return capacity > 0 ? capacity : 1;
}

static ldr_sim_t *fifo_create(const ldr_sim_ops_t *ops, ldr_tape_t *tape,
                              const ldr_sim_params_t *params)
{
    uint32_t capacity = params->capacity;

    fifo_sim_t *s = ldr_alloc(sizeof(*s));

    if (s != NULL) {
        s->base.ops = ops;
        s->capacity = capacity_of(tape, capacity);
        s->distinct = tape->distinct;
        s->ring = ldr_reserve((size_t)s->capacity * 4);
        s->here = ldr_reserve((size_t)s->distinct + 1);
        if (s->ring != NULL && s->here != NULL) {
            return &s->base;
        }
    }
    fifo_destroy(s != NULL ? &s->base : NULL);
    ldr_fail(LARDER_E_NO_MEMORY, "no memory to simulate fifo with %u blocks",
             capacity);
    return NULL;
}

static uint32_t fifo_prefix(ldr_sim_t *sim, const uint32_t *blocks,
                            uint32_t from, uint32_t count)
{
    const fifo_sim_t *s = (fifo_sim_t *)sim;
    uint32_t n = from;

    while (n < count && s->here[blocks[n]] != 0) {
        n++;
    }
    return n;
}

static bool fifo_use(ldr_sim_t *sim, const ldr_tape_request_t *request,
                     const uint32_t *blocks)
{
    fifo_sim_t *s = (fifo_sim_t *)sim;

    for (uint32_t i = 0; i < request->count; i++) {
        if (s->here[blocks[i]] != 0) {
            continue;
        }
        if (s->used == s->capacity) {
            s->here[s->ring[s->at]] = 0;
        } else {
            s->used++;
        }
        s->here[blocks[i]] = 1;
        s->ring[s->at] = blocks[i];
        s->at = s->at + 1 < s->capacity ? s->at + 1 : 0;
    }
    return true;
}

const ldr_sim_ops_t ldr_sim_fifo = {
    .name = "fifo",
    .text = "first in, first out",
    .create = fifo_create,
    .destroy = fifo_destroy,
    .prefix = fifo_prefix,
    .use = fifo_use,
};

/*
 * ---- S3-FIFO ----
 *
 * A small queue of a tenth of the capacity, a main queue of the rest, and a
 * history of as many blocks as main may have, without their contents. A new
 * block enters small, or main if the history has it. What leaves small enters
 * main if it was used twice or more meanwhile, else the history; what leaves
 * main and was used goes round again with a use less. Uses count to three.
 *
 * Nodes are taken from one pool and lie in exactly one of the three lists.
 */
enum { SMALL, MAIN, HISTORY, LISTS };

#define USES_MAX 3u
#define USES_TO_STAY 2u

typedef struct s3_node {
    uint32_t block;
    uint32_t next, prev; /* next is newer */
    uint8_t list;
    uint8_t uses;
} s3_node_t;

typedef struct s3_list {
    uint32_t oldest, newest;
    uint32_t count, max;
} s3_list_t;

typedef struct s3_sim {
    ldr_sim_t base;
    uint32_t capacity;
    uint32_t distinct;
    uint32_t fresh; /* nodes below were handed out */
    uint32_t pool;  /* nodes in all */
    uint32_t spare; /* list of nodes that came back, by next */
    s3_list_t lists[LISTS];
    uint32_t *node_of; /* node + 1 of a block; 0: none */
    s3_node_t *nodes;
} s3_sim_t;

static void s3_destroy(ldr_sim_t *sim)
{
    s3_sim_t *s = (s3_sim_t *)sim;

    if (s == NULL) {
        return;
    }
    if (s->node_of != NULL) {
        ldr_unreserve(s->node_of, ((size_t)s->distinct + 1) * 4);
    }
    if (s->nodes != NULL) {
        ldr_unreserve(s->nodes, (size_t)s->pool * sizeof(*s->nodes));
    }
    ldr_free(s);
}

static ldr_sim_t *s3_create(const ldr_sim_ops_t *ops, ldr_tape_t *tape,
                            const ldr_sim_params_t *params)
{
    uint32_t capacity = params->capacity;

    s3_sim_t *s = ldr_alloc(sizeof(*s));

    if (s != NULL) {
        uint32_t all = capacity_of(tape, capacity);
        uint32_t small = all / 10 > 0 ? all / 10 : 1;

        s->base.ops = ops;
        s->capacity = all;
        s->distinct = tape->distinct;
        s->spare = LDR_NIL;
        for (unsigned i = 0; i < LISTS; i++) {
            s->lists[i] = (s3_list_t){.oldest = LDR_NIL, .newest = LDR_NIL};
        }
        s->lists[SMALL].max = small;
        s->lists[MAIN].max = all - small;
        s->lists[HISTORY].max = all - small;
        s->pool = all > (UINT32_MAX - 2) / 2 ? UINT32_MAX - 1 : 2 * all + 1;
        s->node_of = ldr_reserve(((size_t)s->distinct + 1) * 4);
        s->nodes = ldr_reserve((size_t)s->pool * sizeof(*s->nodes));
        if (s->node_of != NULL && s->nodes != NULL) {
            return &s->base;
        }
    }
    s3_destroy(s != NULL ? &s->base : NULL);
    ldr_fail(LARDER_E_NO_MEMORY, "no memory to simulate s3fifo with %u blocks",
             capacity);
    return NULL;
}

static uint32_t s3_prefix(ldr_sim_t *sim, const uint32_t *blocks, uint32_t from,
                          uint32_t count)
{
    const s3_sim_t *s = (s3_sim_t *)sim;
    uint32_t n = from;

    while (n < count && s->node_of[blocks[n]] != 0 &&
           s->nodes[s->node_of[blocks[n]] - 1].list != HISTORY) {
        n++;
    }
    return n;
}

static void s3_unlink(s3_sim_t *s, uint32_t node)
{
    s3_node_t *n = &s->nodes[node];
    s3_list_t *list = &s->lists[n->list];

    if (n->prev == LDR_NIL) {
        list->oldest = n->next;
    } else {
        s->nodes[n->prev].next = n->next;
    }
    if (n->next == LDR_NIL) {
        list->newest = n->prev;
    } else {
        s->nodes[n->next].prev = n->prev;
    }
    list->count--;
}

static void s3_link(s3_sim_t *s, uint32_t node, uint8_t number)
{
    s3_node_t *n = &s->nodes[node];
    s3_list_t *list = &s->lists[number];

    n->list = number;
    n->prev = list->newest;
    n->next = LDR_NIL;
    if (list->newest == LDR_NIL) {
        list->oldest = node;
    } else {
        s->nodes[list->newest].next = node;
    }
    list->newest = node;
    list->count++;
}

static void s3_forget(s3_sim_t *s, uint32_t node)
{
    s3_unlink(s, node);
    s->node_of[s->nodes[node].block] = 0;
    s->nodes[node].next = s->spare;
    s->spare = node;
}

static void s3_evict_small(s3_sim_t *s)
{
    while (s->lists[SMALL].count > 0) {
        uint32_t node = s->lists[SMALL].oldest;
        s3_node_t *n = &s->nodes[node];

        s3_unlink(s, node);
        if (n->uses >= USES_TO_STAY) {
            n->uses = 0;
            s3_link(s, node, MAIN);
            continue;
        }
        s3_link(s, node, HISTORY);
        if (s->lists[HISTORY].count > s->lists[HISTORY].max) {
            s3_forget(s, s->lists[HISTORY].oldest);
        }
        return;
    }
}

static void s3_evict_main(s3_sim_t *s)
{
    while (s->lists[MAIN].count > 0) {
        uint32_t node = s->lists[MAIN].oldest;

        if (s->nodes[node].uses == 0) {
            s3_forget(s, node);
            return;
        }
        s->nodes[node].uses--;
        s3_unlink(s, node);
        s3_link(s, node, MAIN);
    }
}

static void s3_insert(s3_sim_t *s, uint32_t block)
{
    while (s->lists[SMALL].count + s->lists[MAIN].count >= s->capacity) {
        if (s->lists[MAIN].count > s->lists[MAIN].max ||
            s->lists[SMALL].count == 0) {
            s3_evict_main(s);
        } else {
            s3_evict_small(s);
        }
    }
    uint8_t list = SMALL;
    uint32_t node = s->node_of[block];
    if (node != 0) { /* the history still had it after all this */
        node--;
        s3_unlink(s, node);
        list = MAIN;
    } else if (s->spare != LDR_NIL) {
        node = s->spare;
        s->spare = s->nodes[node].next;
    } else {
        node = s->fresh++;
    }
    s->nodes[node].block = block;
    s->nodes[node].uses = 0;
    s->node_of[block] = node + 1;
    s3_link(s, node, list);
}

static bool s3_use(ldr_sim_t *sim, const ldr_tape_request_t *request,
                   const uint32_t *blocks)
{
    s3_sim_t *s = (s3_sim_t *)sim;

    for (uint32_t i = 0; i < request->count; i++) {
        uint32_t node = s->node_of[blocks[i]];

        if (node == 0 || s->nodes[node - 1].list == HISTORY) {
            s3_insert(s, blocks[i]);
        } else if (s->nodes[node - 1].uses < USES_MAX) {
            s->nodes[node - 1].uses++;
        }
    }
    return true;
}

const ldr_sim_ops_t ldr_sim_s3fifo = {
    .name = "s3fifo",
    .text = "S3-FIFO: small, main and history",
    .create = s3_create,
    .destroy = s3_destroy,
    .prefix = s3_prefix,
    .use = s3_use,
};
