/*
 * The learned policy, and LRU, which is the same tree ranked by age alone. What
 * it does and why: docs/concepts/policy.md. Its parts:
 *
 *   policy_hazard   what classes of runs are worth, by age
 *   policy_tree     the prefix tree: runs, the ghost list, queues, slots
 *   policy_request  what a request teaches and changes
 *   policy_guard    who ranks: what was learned, or LRU
 *   policy_learned  the table of functions: places, admission, victims
 *
 * A run is an edge of the prefix tree: up to LDR_RUN_CHUNKS chunks of a chain
 * that were always used together. Where chains go on in different ways a run
 * ends. A chain that is longer goes on in the next run. What was evicted stays
 * known as a run without chunks, in the ghost list, until there are too many.
 *
 * Invariants; tests/support/policycheck.c tests them:
 *  1. A run begins right below its parent's last chunk, and is in its parent's
 *     list of children. Runs in use are found by parent and first print.
 *  2. kids is how many children have resident chunks.
 *  3. A run is in exactly one list: in the queue of its class if it has chunks,
 *     no kids, and none of its chunks is held; among the blocked if it has
 *     chunks that are not held, but is not in a queue; in the ghost list if it
 *     has none; in no list if all it has is held.
 *  4. A queue is ordered by stamp, the oldest first, unless `loose` says that
 *     a run was put near its place only. Class and stamp do not change while a
 *     run is in one.
 *  5. Slots of a run are in a list, the deepest last, as many as it has
 *     resident, each at a depth of the run.
 *  6. A victim is the deepest slot of a run in a queue: so chains go from their
 *     leaves. Only if no queue has any it is one of the blocked, as deep as
 *     can be; and one of the request at hand only if there is no other.
 *
 * Failure: when there is no room for a run, ghosts go; without any the chunk
 * belongs to LDR_RUN_STRAY, which costs its place in the order. Two chains with
 * equal prints share runs: that costs order, too, and never bytes.
 *
 * All of it is called with the lock of the policy's owner.
 */
#pragma once

#include "store/index.h"
#include "store/policy.h"
#include "store/policy_hazard.h"

enum {
    LDR_RUN_QUEUED = 0x01,
    LDR_RUN_BLOCKED = 0x02,
    LDR_RUN_GHOST = 0x04,
    LDR_RUN_LISTS = LDR_RUN_QUEUED | LDR_RUN_BLOCKED | LDR_RUN_GHOST,
    LDR_RUN_USED = 0x08,      /* not free */
    LDR_RUN_SHORT = 0x10,     /* of its first print only 16 bits are known */
    LDR_RUN_LAST = 0x20,      /* one chunk, not full */
    LDR_RUN_TEMPLATE = 0x40,  /* hinted: shared from the start */
    LDR_RUN_ANNOUNCED = 0x80, /* a request used it last, and not just a read */
};

#define LDR_RUN_CHUNKS 16u
#define LDR_RUN_STRAY 0u /* the first one made is never forgotten */
#define LDR_RUN_TOKENS_MAX (((uint32_t)1 << 24) - 1)

typedef struct ldr_run {
    uint32_t parent, child; /* child: the first of them */
    uint32_t next, prev;    /* of its parent's children */
    uint32_t bucket;        /* the next one there; + 1 */
    uint32_t older, newer;  /* in its list */
    uint32_t stamp;         /* the request that used it last */
    uint32_t used_ds;
    uint32_t tail; /* its deepest slot */
    uint32_t depth;
    uint32_t kids;
    uint32_t first;       /* print, folded */
    uint32_t tokens : 24; /* of the last request */
    uint32_t flags : 8;
    uint16_t resident, held; /* slots */
    uint16_t class;
    uint8_t length;
    uint8_t uses; /* these stay at 255 */
    uint8_t fan;  /* runs below it so far, except single last chunks */
    uint8_t turn;
    uint16_t prints[LDR_RUN_CHUNKS - 1]; /* of the others, 16 bits each */
} ldr_run_t;

_Static_assert(sizeof(ldr_run_t) == 96, "part of the memory promise");

typedef struct ldr_run_slot {
    uint32_t run;
    uint32_t up, down;
    uint32_t depth : 29;
    uint32_t present : 1;
    uint32_t held : 1;
    uint32_t again : 1; /* of the same depth as the one above it */
} ldr_run_slot_t;

_Static_assert(sizeof(ldr_run_slot_t) == 16, "part of the memory promise");

#define LDR_RUN_DEPTHS ((uint32_t)1 << 29) /* beyond: as if it were less */

typedef struct ldr_run_list {
    uint32_t oldest, newest;
} ldr_run_list_t;

enum { LDR_LIST_BLOCKED = LDR_CLASSES, LDR_LIST_GHOSTS, LDR_LISTS };

typedef struct ldr_tree {
    uint8_t *memory; /* all of the following */
    size_t memory_bytes;
    ldr_hazard_t *hazard;
    ldr_run_t *runs;
    ldr_run_slot_t *slots;
    uint32_t *buckets; /* run + 1 */
    uint32_t run_max, run_top, run_free, run_count;
    uint32_t slot_max;
    /* As many buckets as there are runs, about: those from bucket_mask + 1 on
     * have been split off from others, one after the other. */
    uint32_t bucket_max, bucket_count, bucket_mask;
    uint32_t ghost_count;
    uint64_t ghost_chunks;
    uint64_t resident; /* slots */
    uint64_t again;    /* of them, those of a depth that has another */
    uint32_t now_ds;
    uint32_t stamp;  /* of the request at hand: the clock of ages */
    uint32_t scan;   /* waits have been counted up to this one */
    uint32_t sample; /* they are counted of runs with these bits 0 */
    uint32_t busy;   /* a run that must not be forgotten now; or LDR_NIL */
    bool lru;        /* how it ranks */
    bool loose;
    uint32_t worth_stamp; /* what the oldest are worth is as of this one */
    ldr_run_list_t lists[LDR_LISTS];
    double worth[LDR_CLASSES]; /* of the oldest of a queue; INFINITY: empty */
} ldr_tree_t;

/* What LRU would have (policy_guard.c). */
#define LDR_STACK_SPANS 512u

typedef struct ldr_stack {
    uint32_t shift;          /* a span is as many stamps as two to the power */
    uint32_t oldest, newest; /* spans that are known */
    uint32_t edge;           /* the oldest that is in the cache in part */
    uint32_t since;          /* what was used from this stamp on is in it */
    uint64_t inside;         /* chunks of the spans younger than the edge's */
    uint32_t chunks[LDR_STACK_SPANS]; /* used last in a span; a ring */
} ldr_stack_t;

#define LDR_PATH_MAX 8192u    /* runs of one chain that are looked at */
#define LDR_RECENT 16u        /* requests that would be noticed again */
#define LDR_ANNOUNCED_MAX 64u /* requests whose chunks may still come */
/* A chain that was announced so lately: reads and saves of it are no news. */
#define LDR_ANNOUNCED_DS 600u
#define LDR_AGAIN_DS 10u /* the same request without an id: for so long */

typedef struct ldr_recent {
    uint64_t id;
    uint64_t print;
    uint32_t count;
    uint32_t seen_ds;
} ldr_recent_t;

/* A request, until so many others came after it. */
typedef struct ldr_announced {
    uint32_t stamp;
    uint32_t tail;    /* the last run of its chain */
    uint32_t refused; /* from that depth on; LDR_NIL: nothing was */
} ldr_announced_t;

typedef struct ldr_learned {
    ldr_policy_t base;
    ldr_tree_t t;
    ldr_stack_t stack;
    bool learns;     /* false: it is LRU, for ever */
    bool timed;      /* now_ds was set */
    uint32_t wanted; /* victims are not of the request with this stamp */
    uint32_t rebuild_left;
    uint64_t capacity; /* chunks of the real cache, smoothed; 0: not known */
    uint64_t seen;     /* resident when there last was no room; 0: not since */
    float balance;     /* hits beyond LRU's (policy_guard.c) */
    float noise;       /* the sum of squares of its steps */
    uint64_t judged, hits, hits_lru; /* since there was no room */
    uint32_t switches;
    ldr_recent_t recent[LDR_RECENT];
    ldr_announced_t announced[LDR_ANNOUNCED_MAX];
    uint64_t announced_next;
    uint32_t path_count;
    uint32_t path[LDR_PATH_MAX];
} ldr_learned_t;

static inline uint32_t ldr_print_fold(uint64_t print)
{
    return (uint32_t)(print ^ print >> 32);
}

static inline uint32_t ldr_run_age(const ldr_tree_t *t, uint32_t run)
{
    return (t->stamp - t->runs[run].stamp) * LDR_AGE_UNITS;
}

/* A chain weighs about the root of its length, all its runs together: a long
 * one says more, but not as much more as it is longer. */
static inline float ldr_run_weight(const ldr_run_t *r)
{
    float x = (float)r->depth + (float)r->length;
    uint32_t bits = 31u - (uint32_t)__builtin_clz((uint32_t)x | 1);
    float root = (float)(1u << bits / 2) * ((bits & 1) != 0 ? 1.7f : 1.2f);

    root = (root + x / root) / 2;
    return (float)r->length * 2 / (root + x / root);
}

/* ---- the tree ---- */

bool ldr_tree_init(ldr_tree_t *t, uint32_t slot_max);
void ldr_tree_destroy(ldr_tree_t *t);
uint32_t *ldr_tree_bucket(const ldr_tree_t *t, uint32_t parent, uint32_t first);
/* A new run below parent (or LDR_NIL), used now, a ghost; LDR_NIL: no room. */
uint32_t ldr_run_new(ldr_tree_t *t, uint32_t parent, uint32_t depth,
                     const uint64_t *prints, uint32_t length, uint32_t class);
/* The run that begins there with this print, or LDR_NIL. */
uint32_t ldr_run_find(const ldr_tree_t *t, uint32_t parent, uint32_t depth,
                      uint32_t first);
/* How many of its chunks have these prints. */
uint32_t ldr_run_match(const ldr_run_t *r, const uint64_t *prints,
                       uint32_t count);
/* Whether the chunk number at, which it has, has that print. */
bool ldr_run_has(const ldr_run_t *r, uint32_t at, uint32_t print);
/* Cuts a run after so many chunks, fewer than it has. Gives the upper part, or
 * LDR_NIL: no room. */
uint32_t ldr_run_split(ldr_tree_t *t, uint32_t run, uint32_t length);
/* Forgets the oldest ghosts until there are no more than that. */
void ldr_tree_trim(ldr_tree_t *t, uint64_t runs, uint64_t chunks);

/* Counts the time that a run has waited, up to now. */
void ldr_run_count_wait(ldr_tree_t *t, uint32_t run);
/* The same of all of them, or of a sample. */
void ldr_tree_count_waits(ldr_tree_t *t);
/* Puts it into a class as of that stamp. */
void ldr_run_restamp(ldr_tree_t *t, uint32_t run, uint32_t class,
                     uint32_t stamp);
/* Puts it into the list where it belongs; lift: out of its list, before class,
 * stamp or LDR_RUN_LAST change. */
void ldr_run_settle(ldr_tree_t *t, uint32_t run);
void ldr_run_lift(ldr_tree_t *t, uint32_t run);
/* The run that should lose a chunk next, none with the stamp `except`; or
 * LDR_NIL. */
uint32_t ldr_tree_worst(ldr_tree_t *t, uint32_t except);
/* Other tables, or another rule: all are worth something else. */
void ldr_tree_rank(ldr_tree_t *t, bool lru);

/* near: a slot that is perhaps right above it, or LDR_NIL. */
void ldr_slot_put(ldr_tree_t *t, uint32_t slot, uint32_t run, uint32_t depth,
                  uint32_t near);
/* The deepest slot of the run not below that depth, or LDR_NIL. */
uint32_t ldr_slot_above(const ldr_tree_t *t, uint32_t run, uint32_t depth,
                        uint32_t near);
void ldr_slot_take(ldr_tree_t *t, uint32_t slot);

/* ---- requests (policy_request.c) ---- */

void ldr_learned_request(ldr_policy_t *policy, const ldr_policy_request_t *r);
void ldr_learned_close(ldr_policy_t *policy, const ldr_policy_request_t *r);
/* The run is used by the request at hand. */
void ldr_learned_use(ldr_learned_t *d, uint32_t run, uint32_t class);

/* ---- the guard (policy_guard.c) ---- */

/* Chunks of a request that are hit, and that would be if all were LRU. */
typedef struct ldr_guard_hits {
    uint32_t real, lru;
} ldr_guard_hits_t;

/* Of the runs in the path, before they are used. */
ldr_guard_hits_t ldr_guard_look(const ldr_learned_t *d);
/* And when they have been: it is said who ranks. */
void ldr_guard_judge(ldr_learned_t *d, const ldr_guard_hits_t *hits);

/* So many chunks that were used last by the request `was` are used by the one
 * at hand, `stamp`; 0: they are new. */
void ldr_stack_use(ldr_stack_t *k, uint32_t was, uint32_t stamp,
                   uint32_t chunks);
/* The cache has so many chunks. */
void ldr_stack_resize(ldr_stack_t *k, uint64_t capacity);
bool ldr_stack_check(const ldr_stack_t *k);
