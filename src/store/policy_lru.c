/*
 * Leaf-first LRU: one list, most recent first, in which every chunk stands
 * ahead of its children. What is used moves to the front together with its
 * ancestors, root first. Held slots are out of the list; a walk to the root
 * passes through them.
 *
 * Moving the ancestors one by one would make saving a chain, or releasing its
 * leases, quadratic in its length. So the list remembers the chains that moved
 * last as runs: stretches of it that need no walk and move as a whole.
 *
 * Invariants; ldr_policy_lru_check() tests the last two:
 *
 *  1. A slot's generation is odd if and only if it is present. A link to a
 *     parent holds while the parent's generation is the one it had when the
 *     child was added, so a slot that is used again inherits no children.
 *     Depth falls along links, so they have no cycles.
 *  2. Every listed slot is ahead of all its listed descendants.
 *  3. The list is circular through the node [capacity]; a slot that is not in
 *     it has next == LDR_NIL.
 *  4. A live run is the stretch first ... last of the list, and this stretch
 *     is exactly the listed ones among `leaf` and its ancestors, root first.
 *     leaf and all its ancestors bear the number of the run as their stamp.
 *
 * Whatever else would break the fourth ends the run, which costs a walk later
 * and nothing else: a stamped slot that is moved on another's behalf, removed,
 * or gets something put behind it.
 */
#include "store/policy.h"

#include "base/mem.h"
#include "store/index.h"

/* Chains in progress at once: those of several groups and several clients. */
#define RUNS 16

typedef struct ldr_lru_node {
    uint32_t next; /* less recent; LDR_NIL: not listed */
    uint32_t prev; /* more recent */
    uint32_t parent;
    uint32_t parent_generation;
    uint32_t generation; /* odd: present */
    uint32_t depth;
    uint64_t stamp; /* of the last move it took part in */
} ldr_lru_node_t;

_Static_assert(sizeof(ldr_lru_node_t) == 32, "two in a cache line");

typedef struct ldr_lru_run {
    uint64_t number; /* 0: dead */
    uint32_t first;  /* LDR_NIL: none of it is listed */
    uint32_t last;
    uint32_t leaf;
} ldr_lru_run_t;

typedef struct ldr_lru {
    ldr_policy_t base;
    uint32_t capacity;
    uint64_t clock;           /* the last stamp given out */
    ldr_lru_run_t runs[RUNS]; /* number n is at [n % RUNS] or is dead */
    ldr_lru_node_t *nodes;    /* capacity + 1 of them */
} ldr_lru_t;

/* The list. */

static bool is_present(const ldr_lru_t *lru, uint32_t slot)
{
    return slot < lru->capacity && (lru->nodes[slot].generation & 1) != 0;
}

static bool is_listed(const ldr_lru_t *lru, uint32_t slot)
{
    return lru->nodes[slot].next != LDR_NIL;
}

static void list_unlink(ldr_lru_t *lru, uint32_t first, uint32_t last)
{
    uint32_t before = lru->nodes[first].prev;
    uint32_t behind = lru->nodes[last].next;

    lru->nodes[before].next = behind;
    lru->nodes[behind].prev = before;
}

/* Puts the stretch first ... last behind a listed slot, or, behind the node
 * [capacity], at the front. */
static void list_link(ldr_lru_t *lru, uint32_t first, uint32_t last,
                      uint32_t before)
{
    uint32_t behind = lru->nodes[before].next;

    lru->nodes[before].next = first;
    lru->nodes[first].prev = before;
    lru->nodes[last].next = behind;
    lru->nodes[behind].prev = last;
}

static uint32_t parent_of(const ldr_lru_t *lru, uint32_t slot)
{
    const ldr_lru_node_t *n = &lru->nodes[slot];

    if (n->parent == LDR_NIL ||
        lru->nodes[n->parent].generation != n->parent_generation ||
        lru->nodes[n->parent].depth >= n->depth) {
        return LDR_NIL;
    }
    return n->parent;
}

/* Runs. */

/* The live run whose number this slot bears, or NULL. */
static ldr_lru_run_t *run_of(ldr_lru_t *lru, uint32_t slot)
{
    uint64_t stamp = lru->nodes[slot].stamp;
    ldr_lru_run_t *run = &lru->runs[stamp % RUNS];

    return stamp != 0 && run->number == stamp ? run : NULL;
}

static void run_end(ldr_lru_t *lru, uint32_t slot)
{
    ldr_lru_run_t *run = run_of(lru, slot);

    if (run != NULL) {
        run->number = 0;
    }
}

/* The slot leaves the list. */
static void run_shrink(ldr_lru_t *lru, uint32_t slot)
{
    ldr_lru_run_t *run = run_of(lru, slot);

    if (run == NULL || run->first == LDR_NIL) {
        return;
    }
    if (run->first == slot && run->last == slot) {
        run->first = LDR_NIL;
        run->last = LDR_NIL;
    } else if (run->first == slot) {
        run->first = lru->nodes[slot].next;
    } else if (run->last == slot) {
        run->last = lru->nodes[slot].prev;
    }
}

/*
 * Lists a slot at the end of a run that holds exactly its ancestors, and moves
 * the run to the front: what lift() would do, without the walk. False if
 * there is no such run.
 */
static bool run_extend(ldr_lru_t *lru, uint32_t slot)
{
    uint32_t parent = parent_of(lru, slot);
    uint32_t front = lru->capacity;
    ldr_lru_run_t *run = run_of(lru, slot);

    if (run != NULL && parent_of(lru, run->leaf) == slot) {
        /* Chains that are released from their leaves: cut the leaf off. */
        if (run->last == run->leaf) {
            run_shrink(lru, run->leaf);
        }
    } else if (run == NULL || run->leaf != slot) {
        run = parent != LDR_NIL ? run_of(lru, parent) : NULL;
        if (run == NULL || run->leaf != parent) {
            return false;
        }
        /* No other run has the slot: who bears a live number has it from its
         * parent or together with it, and the parent's going ends the run. */
    }
    if (run->first != LDR_NIL) {
        list_unlink(lru, run->first, run->last);
        list_link(lru, run->first, run->last, front);
        list_link(lru, slot, slot, run->last);
    } else {
        list_link(lru, slot, slot, front);
        run->first = slot;
    }
    run->last = slot;
    run->leaf = slot;
    lru->nodes[slot].stamp = run->number;
    return true;
}

/*
 * Moves a slot and its ancestors to the front, root first, and makes them a
 * run. Stops at a listed slot that bears a stamp above `since`: then they go
 * right behind that one, and are no run. The slot itself is unlisted, or bears
 * no such stamp.
 */
static void lift(ldr_lru_t *lru, uint32_t slot, uint64_t since)
{
    uint64_t number = ++lru->clock;
    uint32_t front = lru->capacity;
    uint32_t last = LDR_NIL; /* of those moved */
    uint32_t i = slot;

    for (; i != LDR_NIL; i = parent_of(lru, i)) {
        ldr_lru_node_t *n = &lru->nodes[i];
        bool listed = is_listed(lru, i);

        if (listed && n->stamp > since) {
            break;
        }
        run_end(lru, i);
        n->stamp = number;
        if (listed) {
            list_unlink(lru, i, i);
            list_link(lru, i, i, front);
            last = last == LDR_NIL ? i : last;
        }
    }
    uint32_t first = last == LDR_NIL ? LDR_NIL : lru->nodes[front].next;
    if (i == LDR_NIL) {
        lru->runs[number % RUNS] = (ldr_lru_run_t){number, first, last, slot};
    } else if (last != LDR_NIL) {
        run_end(lru, i);
        list_unlink(lru, first, last);
        list_link(lru, first, last, i);
    }
}

/* Lists a slot that is not, as the most recent but for its ancestors. */
static void enlist(ldr_lru_t *lru, uint32_t slot)
{
    if (!run_extend(lru, slot)) {
        list_link(lru, slot, slot, lru->nodes[lru->capacity].prev);
        lift(lru, slot, lru->clock);
    }
}

static void delist(ldr_lru_t *lru, uint32_t slot)
{
    if (is_listed(lru, slot)) {
        run_shrink(lru, slot);
        list_unlink(lru, slot, slot);
        lru->nodes[slot].next = LDR_NIL;
    }
}

/* The table. */

static ldr_policy_t *lru_create(uint32_t capacity)
{
    ldr_lru_t *lru = ldr_alloc(sizeof(*lru));

    if (lru == NULL) {
        return NULL;
    }
    lru->base.ops = &ldr_policy_lru;
    lru->capacity = capacity < LDR_NIL ? capacity : LDR_NIL - 1;
    lru->nodes =
        ldr_reserve(((size_t)lru->capacity + 1) * sizeof(ldr_lru_node_t));
    if (lru->nodes == NULL) {
        ldr_free(lru);
        return NULL;
    }
    lru->nodes[lru->capacity].next = lru->capacity;
    lru->nodes[lru->capacity].prev = lru->capacity;
    return &lru->base;
}

static void lru_destroy(ldr_policy_t *policy)
{
    ldr_lru_t *lru = (ldr_lru_t *)policy;

    if (lru != NULL) {
        ldr_unreserve(lru->nodes,
                      ((size_t)lru->capacity + 1) * sizeof(ldr_lru_node_t));
        ldr_free(lru);
    }
}

static void lru_remove(ldr_policy_t *policy, uint32_t slot)
{
    ldr_lru_t *lru = (ldr_lru_t *)policy;

    if (is_present(lru, slot)) {
        delist(lru, slot);
        run_end(lru, slot); /* its children have no parent any more */
        lru->nodes[slot].generation++;
    }
}

static void lru_add(ldr_policy_t *policy, uint32_t slot, uint32_t parent,
                    uint32_t depth)
{
    ldr_lru_t *lru = (ldr_lru_t *)policy;

    if (slot >= lru->capacity) {
        return;
    }
    lru_remove(policy, slot);
    ldr_lru_node_t *n = &lru->nodes[slot];
    n->next = LDR_NIL;
    n->parent = LDR_NIL;
    n->generation++;
    n->depth = depth;
    n->stamp = 0;
    if (is_present(lru, parent)) {
        n->parent = parent;
        n->parent_generation = lru->nodes[parent].generation;
    }
    enlist(lru, slot);
}

static void lru_hold(ldr_policy_t *policy, uint32_t slot)
{
    ldr_lru_t *lru = (ldr_lru_t *)policy;

    if (is_present(lru, slot)) {
        delist(lru, slot);
    }
}

static void lru_release(ldr_policy_t *policy, uint32_t slot)
{
    ldr_lru_t *lru = (ldr_lru_t *)policy;

    if (is_present(lru, slot) && !is_listed(lru, slot)) {
        enlist(lru, slot);
    }
}

static void lru_touch(ldr_policy_t *policy, const uint32_t *slots,
                      uint32_t count)
{
    ldr_lru_t *lru = (ldr_lru_t *)policy;
    uint64_t since = lru->clock;

    while (count > 0) { /* deepest first: its walk moves the others */
        uint32_t slot = slots[--count];

        if (is_present(lru, slot) && lru->nodes[slot].stamp <= since) {
            lift(lru, slot, since);
        }
    }
}

static uint32_t lru_victim(ldr_policy_t *policy)
{
    ldr_lru_t *lru = (ldr_lru_t *)policy;
    uint32_t least = lru->nodes[lru->capacity].prev;

    return least != lru->capacity ? least : LDR_NIL;
}

/* Of what was never used again nothing says that it will be; of the rest, the
 * longer ago the less: half as much for twice the time. */
static uint32_t lru_keep(const ldr_policy_record_t *record)
{
    if (record->pinned) {
        return UINT32_MAX;
    }
    if (record->orphan || record->used_s <= record->written_s) {
        return 0;
    }
    uint32_t age_s =
        record->now_s > record->used_s ? record->now_s - record->used_s : 0;
    return age_s < UINT32_MAX / 2 ? (UINT32_MAX - 1) / (age_s + 1) : 1;
}

/* What it makes of the calls for policies that learn. */

static void lru_time(ldr_policy_t *policy, uint32_t now_ds)
{
    (void)policy;
    (void)now_ds;
}

static void lru_request(ldr_policy_t *policy,
                        const ldr_policy_request_t *request)
{
    if (request->slots != NULL) {
        lru_touch(policy, request->slots, request->count);
    }
}

static bool lru_admit(ldr_policy_t *policy, uint32_t parent, uint32_t depth,
                      uint64_t print)
{
    (void)policy;
    (void)parent;
    (void)depth;
    (void)print;
    return true;
}

static void lru_place(ldr_policy_t *policy, uint32_t slot, uint32_t parent,
                      uint32_t depth, uint64_t print)
{
    (void)print;
    lru_add(policy, slot, parent, depth);
}

static void lru_close(ldr_policy_t *policy, const ldr_policy_request_t *request)
{
    (void)policy;
    (void)request;
}

static void lru_used(ldr_policy_t *policy, uint32_t slot)
{
    (void)policy;
    (void)slot;
}

const ldr_policy_ops_t ldr_policy_lru = {
    .name = "lru",
    .create = lru_create,
    .destroy = lru_destroy,
    .add = lru_add,
    .hold = lru_hold,
    .release = lru_release,
    .touch = lru_touch,
    .remove = lru_remove,
    .victim = lru_victim,
    .keep = lru_keep,
    .time = lru_time,
    .request = lru_request,
    .admit = lru_admit,
    .place = lru_place,
    .close = lru_close,
    .used = lru_used,
};

/* Invariant 4. */
static bool check_run(const ldr_lru_t *lru, const ldr_lru_run_t *run)
{
    uint32_t at = run->last; /* climbs the list as i climbs the tree */
    uint32_t first = LDR_NIL;

    for (uint32_t i = run->leaf; i != LDR_NIL; i = parent_of(lru, i)) {
        if (lru->nodes[i].stamp != run->number) {
            return false;
        }
        if (is_listed(lru, i)) {
            if (at != i) {
                return false;
            }
            first = i;
            at = lru->nodes[i].prev;
        }
    }
    return first == run->first;
}

bool ldr_policy_lru_check(const ldr_policy_t *policy)
{
    const ldr_lru_t *lru = (const ldr_lru_t *)policy;
    uint32_t left = lru->capacity; /* more than this many: a loop */
    uint32_t i = lru->capacity;

    do {
        uint32_t next = lru->nodes[i].next;

        if (next > lru->capacity || lru->nodes[next].prev != i ||
            (next != lru->capacity &&
             (!is_present(lru, next) || left-- == 0))) {
            return false;
        }
        i = next;
    } while (i != lru->capacity);
    for (uint32_t r = 0; r < RUNS; r++) {
        if (lru->runs[r].number != 0 && !check_run(lru, &lru->runs[r])) {
            return false;
        }
    }
    return true;
}
