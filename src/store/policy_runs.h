/*
 * Runs for the default policy: a forest of stretches of chunks.
 *
 * A run is a piece of a chain whose chunks were always used together; chains
 * that go on in different ways after some chunk make it end there, and go on in
 * runs below it. What was evicted stays known as a run without chunks (a ghost)
 * until there are too many of those.
 *
 * The same forest is seen by three caches: the real one, whose chunks have
 * slots, and two shadows that only count, one that always ranks by what was
 * learned and one that is always LRU. In each of them a run has some chunks
 * resident, and stands in a queue if it may lose one: it is not empty, and
 * nothing below it is resident. The shadows see all runs while they are small,
 * and then a half of them, a quarter, and so on: those whose lot has so many
 * zeros. A session's runs have the same lot. What is not in the sample is to
 * them as if it were no part of a chain.
 *
 * Invariants; ldr_runs_check() tests them:
 *  0. A run without a limb is one chunk, with nothing above or below it.
 *  1. A run's depth is its parent's plus its parent's length. Parents have
 *     lists of their children; those without a parent are in no such list. A
 *     run has as many prints as it is long, or, of one or two, only the first
 *     and the last. Runs in use can be found by the print of their first chunk.
 *  2. kids is how many children have chunks resident in that view.
 *  3. A run is in a queue of a view, that of its class, exactly if it has
 *     chunks there, no kids, and, in the real view, none of its chunks is held.
 *     With chunks that are not held, but in no queue, it is in the list of the
 *     blocked.
 *  4. A run without chunks in all views is in the list of ghosts, and no other.
 *     Those whose chunk was not full come to its beginning: they go first.
 *     Others become ghosts at rest after a while, and are no runs any more.
 *  5. A queue is a list ordered by stamp, unless `loose` says that one was put
 *     near its place only; class, stamp and time of use of a run do not change
 *     while it is in one.
 *  6. A run has a record in the shadows exactly if it has chunks there, in one
 *     of them at least; then it is in their sample.
 *  7. Slots of a run are in a list, the deepest last, as many as view REAL has
 *     resident; depth within the run's.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "store/index.h"
#include "store/policy_learn.h"

enum { LDR_VIEW_REAL, LDR_VIEW_LEARNED, LDR_VIEW_LRU, LDR_VIEWS };

enum {
    LDR_RUN_QUEUED = 0x01, /* in the real view */
    LDR_RUN_SHADE = 0x02,  /* has a record there */
    LDR_RUN_SHORT = 0x04,  /* of its first print only 16 bits are known */
    LDR_RUN_BLOCKED = 0x08,
    LDR_RUN_GHOST = 0x10,
    LDR_RUN_USED = 0x20,     /* not free */
    LDR_RUN_LAST = 0x40,     /* one chunk, not full */
    LDR_RUN_TEMPLATE = 0x80, /* hinted: shared from the start */
    /* Where it is in the real view; no two of them. */
    LDR_RUN_PLACES = LDR_RUN_QUEUED | LDR_RUN_BLOCKED | LDR_RUN_GHOST,
};

#define LDR_RUN_LENGTH_MAX 16383u
#define LDR_RUN_STRAY 0u /* the first one made is never forgotten */
#define LDR_RUN_TOKENS_MAX (((uint32_t)1 << 20) - 1)

/* A run of one chunk that stands alone has this and no more. */
typedef struct ldr_run {
    uint32_t first; /* print, folded */
    uint32_t limb;  /* what it has beyond that; 0: nothing */
    uint32_t used_ds;
    uint32_t stamp;       /* the request that used it last */
    uint32_t tokens : 20; /* of that request */
    uint32_t lot : 12;    /* whether shadows see it */
    uint32_t tail;        /* its deepest slot */
    uint32_t left, right; /* in the queue, the older one left; or next, prev in
                           * a list */
    uint32_t link;        /* the next of its bucket */
    uint16_t resident;    /* chunks, in the real view */
    uint16_t length;
    uint16_t held;
    uint16_t class : 12;
    uint16_t skip : 3; /* prints of the first node that are not its own */
    uint16_t told : 1; /* a request used it last, and not just a read */
    uint8_t uses;
    uint8_t fan; /* runs below it so far, but for single last chunks */
    uint8_t turn;
    uint8_t flags;
} ldr_run_t;

_Static_assert(sizeof(ldr_run_t) == 48, "part of the memory promise");

/* Of a run that is longer, or has others above or below it. The first one is
 * what all others have, and is never written. */
typedef struct ldr_limb {
    uint32_t parent;
    uint32_t child;      /* first of its children */
    uint32_t next, prev; /* of its parent's children */
    uint32_t prints;     /* all of them: its first node; or LDR_NIL */
    uint32_t last;       /* print, folded, if it is longer than one */
    uint32_t depth;
    uint32_t kids;
} ldr_limb_t;

_Static_assert(sizeof(ldr_limb_t) == 32, "part of the memory promise");

/* What the shadows have of a run. */
typedef struct ldr_shade {
    uint32_t run;
    uint32_t next; /* of its bucket, or of those free; + 1 */
    struct {
        uint32_t left, right;
        uint32_t kids;
    } views[LDR_VIEWS - 1];
    uint16_t resident[LDR_VIEWS - 1];
    bool queued[LDR_VIEWS - 1];
} ldr_shade_t;

#define LDR_SHADE_ROOM 4096u /* chunks in each of them, at most */
#define LDR_SHADE_MAX (2 * LDR_SHADE_ROOM + 2)
#define LDR_SHADE_BUCKETS 8192u
#define LDR_LOT_MAX 4095u

typedef struct ldr_run_slot {
    uint32_t run;
    uint32_t up, down;
    uint32_t depth : 29;
    uint32_t present : 1;
    uint32_t held : 1;
    uint32_t twin : 1; /* of the same depth as the one before it */
} ldr_run_slot_t;

_Static_assert(sizeof(ldr_run_slot_t) == 16, "part of the memory promise");

#define LDR_RUN_DEPTHS ((uint32_t)1 << 29) /* beyond: as if it were less */

#define LDR_PRINTS 6u
#define LDR_PRINTS_OWN 2u /* a run that is no longer has no nodes */

/* 16 bits of each: they tell where a chain leaves a run, and are compared with
 * those of one other chunk at a time. */
typedef struct ldr_prints {
    uint32_t next;
    uint16_t print[LDR_PRINTS];
} ldr_prints_t;

/* Of items, of which there are some. */
typedef struct ldr_run_queue {
    uint32_t first;          /* the oldest */
    uint32_t last;           /* the youngest */
    uint32_t stamp, used_ds; /* of the first one's run */
    float worth;             /* of it, unless by LRU, or `stale` */
} ldr_run_queue_t;

typedef struct ldr_run_queues {
    ldr_run_queue_t classes[LDR_CLASSES];
    uint64_t filled[(LDR_CLASSES + 63) / 64];
    /* Those that are filled, the one whose first goes next on top; in order
     * unless `stale`. */
    uint16_t heap[LDR_CLASSES];
    uint16_t place[LDR_CLASSES]; /* where a class is in it, + 1; 0: nowhere */
    uint32_t heap_count;
    uint32_t worth_ds; /* what the first ones are worth is of that time */
    bool stale;
    bool lru;          /* how it ranks */
    uint64_t resident; /* chunks */
} ldr_run_queues_t;

/* A ghost at rest (policy_ghosts.c). */
typedef struct ldr_ghost {
    uint32_t key;  /* of its first print and the one before */
    uint32_t next; /* of its bucket; + 1 */
    uint32_t used_ds;
    uint32_t more; /* of a single chunk tokens and lot, else a node of prints */
    uint32_t class : 10;
    uint32_t uses : 7;
    uint32_t turn : 7;
    uint32_t fan : 4;
    uint32_t told : 1;
    uint32_t is_short : 1; /* LDR_RUN_SHORT */
    uint32_t is_long : 1;  /* more than a chunk */
    uint32_t used : 1;     /* not free */
} ldr_ghost_t;

_Static_assert(sizeof(ldr_ghost_t) == 20, "part of the memory promise");

/* A ring, in the order in which they came to rest. Those that are runs again
 * leave holes. */
typedef struct ldr_ghosts {
    ldr_ghost_t *all;
    uint32_t *buckets; /* ghost + 1 */
    uint32_t max, size;
    uint32_t oldest, span; /* from the oldest on, with the holes */
    uint32_t count;
    uint32_t bucket_count, bucket_mask; /* as those of runs */
    uint32_t sample; /* waits are told of ghosts with these bits 0 */
    uint32_t shorts; /* how many are short */
} ldr_ghosts_t;

/* What LRU would have (policy_stack.c). */
#define LDR_STACK_SPANS 512u

typedef struct ldr_span {
    uint32_t chunks;  /* used last in this span of requests */
    uint32_t from_ds; /* when it began */
} ldr_span_t;

typedef struct ldr_stack {
    uint32_t shift;          /* a span is as many stamps as two to the power */
    uint32_t oldest, newest; /* spans that are known */
    uint32_t edge;           /* the oldest that is in the cache in part */
    uint32_t since;          /* what was used from this stamp on is in it */
    uint64_t inside;         /* chunks of the spans younger than the edge's */
    ldr_span_t spans[LDR_STACK_SPANS]; /* a ring */
} ldr_stack_t;

typedef struct ldr_runs {
    uint8_t *memory; /* all of the following */
    size_t memory_bytes;
    ldr_run_t *runs;
    ldr_limb_t *limbs;
    ldr_run_slot_t *slots;
    ldr_prints_t *nodes;
    /* Run + 1, and in the bits above what fits of its hash. So hardly any
     * others of the bucket are looked at. */
    uint32_t *buckets;
    uint32_t link_mask;
    uint32_t run_max, run_top, run_free, run_count;
    uint32_t limb_top, limb_free; /* there may be one for each run */
    uint32_t node_max, node_top, node_free, node_count;
    uint32_t slot_max;
    /* As many buckets as there are runs, about: those from bucket_mask + 1 on
     * have been split off from others, one after the other. */
    uint32_t bucket_max, bucket_count, bucket_mask;
    uint32_t blocked, ghost_head, ghost_tail;
    uint32_t busy;        /* that must not go to rest now; 0 or LDR_NIL: none */
    uint32_t ghost_count; /* in the list */
    uint64_t ghost_chunks; /* and of those at rest */
    ldr_ghosts_t ghosts;
    uint32_t twins;
    uint32_t now_ds;  /* of the policy's own clock */
    uint32_t scan_ds; /* until then waits have been told */
    uint32_t stamp;   /* of the request at hand */
    uint32_t sample;  /* waits are told of runs with these bits 0 */
    bool loose;       /* a queue is not quite in order */
    ldr_run_queues_t queues[LDR_VIEWS];
    ldr_learn_t *learn;
    ldr_shade_t *shades;
    uint32_t *shade_buckets; /* record + 1 */
    uint32_t shade_top, shade_free, shade_count;
    uint32_t shade_room; /* LDR_SHADE_ROOM; less in tests */
    uint32_t lot_mask;   /* these bits of a lot are 0 in the sample */
    ldr_stack_t stack;
} ldr_runs_t;

bool ldr_runs_init(ldr_runs_t *t, uint32_t slot_max);
void ldr_runs_destroy(ldr_runs_t *t);

static inline uint32_t ldr_runs_fold(uint64_t print)
{
    return (uint32_t)(print ^ print >> 32);
}

/* A run that was cut off from another's end has a parent, and there is but one
 * such below it: so 16 bits are enough there to tell it from all others. */
static inline uint32_t ldr_runs_hash(uint32_t parent, uint32_t first)
{
    uint32_t key = parent == LDR_NIL
                       ? first
                       : (first & 0xffff) + (parent + 1) * 0x85ebca6bu;
    uint32_t hash = (key ^ key >> 15) * 0x2c1b3c6du;

    return (hash ^ hash >> 12) * 0x9e3779b1u;
}

/* Where runs of that hash are listed. */
static inline uint32_t *ldr_runs_bucket(const ldr_runs_t *t, uint32_t hash)
{
    uint32_t at = hash >> 4 & (t->bucket_mask * 2 + 1);

    return &t->buckets[at < t->bucket_count ? at : at & t->bucket_mask];
}

/* The run in a link of a bucket's list, which is not empty. */
static inline uint32_t ldr_runs_linked(const ldr_runs_t *t, uint32_t link)
{
    return (link & t->link_mask) - 1;
}

/* To be read: it may be what all have that stand alone. */
static inline ldr_limb_t *ldr_limb(const ldr_runs_t *t, uint32_t run)
{
    return &t->limbs[t->runs[run].limb];
}

/* To be written. There is always room. */
ldr_limb_t *ldr_limb_need(ldr_runs_t *t, uint32_t run);

/* The print of its last chunk, folded. */
static inline uint32_t ldr_runs_last(const ldr_runs_t *t, uint32_t run)
{
    return t->runs[run].length > 1 ? ldr_limb(t, run)->last
                                   : t->runs[run].first;
}

/* Whether the shadows see it. */
static inline bool ldr_runs_sampled(const ldr_runs_t *t, uint32_t run)
{
    return (t->runs[run].lot & t->lot_mask) == 0;
}

/* Whether the run is in use and begins there with this print. */
static inline bool ldr_runs_is_at(const ldr_runs_t *t, uint32_t run,
                                  uint32_t parent, uint32_t depth,
                                  uint32_t first)
{
    const ldr_run_t *r = &t->runs[run];
    uint32_t known = (r->flags & LDR_RUN_SHORT) != 0 ? 0xffff : UINT32_MAX;

    return ((r->first ^ first) & known) == 0 &&
           ldr_limb(t, run)->depth == depth &&
           ldr_limb(t, run)->parent == parent && (r->flags & LDR_RUN_USED) != 0;
}

/* Queues: who is older. */
static inline bool ldr_runs_before(const ldr_runs_t *t, uint32_t a, uint32_t b)
{
    int32_t by = (int32_t)(t->runs[a].stamp - t->runs[b].stamp);

    return by != 0 ? by < 0 : a < b;
}

/* The root of the length, roughly: a long run says more, but not as much more
 * as it is longer. */
static inline float ldr_runs_weight(uint32_t length)
{
    if (length <= 1) {
        return 1;
    }
    float x = (float)length;
    uint32_t bits = 31u - (uint32_t)__builtin_clz((uint32_t)x);
    float w = (float)(1u << (bits / 2)) * ((bits & 1) != 0 ? 1.7f : 1.2f);

    w = (w + x / w) / 2;
    return (w + x / w) / 2;
}

/* Asks for a run's memory, which will be needed soon. */
static inline void ldr_runs_fetch(const ldr_runs_t *t, uint32_t run)
{
    __builtin_prefetch(&t->runs[run]);
    __builtin_prefetch((const char *)(&t->runs[run] + 1) - 1);
}

/* ---- the forest ---- */

/* A new run below parent (or LDR_NIL), used now, a ghost; LDR_NIL: no room. */
uint32_t ldr_runs_new(ldr_runs_t *t, uint32_t parent, uint32_t depth,
                      const uint64_t *prints, uint32_t length, uint32_t class);
/* The run that begins there with this print, or LDR_NIL. */
uint32_t ldr_runs_find(const ldr_runs_t *t, uint32_t parent, uint32_t depth,
                       uint32_t first);
/* A run takes over the only one below it, if nothing tells them apart by now.
 * False: it is not so. */
bool ldr_runs_join(ldr_runs_t *t, uint32_t run, uint32_t below);
/* Cuts a run after so many chunks, fewer than it has, the last of which has
 * that print. Gives the upper part, or LDR_NIL: no room. */
uint32_t ldr_runs_split(ldr_runs_t *t, uint32_t run, uint32_t length,
                        uint32_t last);
/* An old ghost is no run any more, but at rest; false: there is none. */
bool ldr_runs_rest(ldr_runs_t *t);
/* The ghost at rest that begins below that parent is a run again; LDR_NIL:
 * there is none, or no room. before: the print right above it, 0 without. */
uint32_t ldr_runs_wake(ldr_runs_t *t, uint32_t parent, uint32_t depth,
                       uint32_t before, uint32_t first);
/* Forgets the oldest ghosts until there are no more than that. */
void ldr_runs_trim(ldr_runs_t *t, uint32_t runs, uint64_t chunks);

/* ---- ghosts at rest (policy_ghosts.c) ---- */

/* Keeps what the run has, with its prints. False: it cannot be. */
bool ldr_ghost_keep(ldr_runs_t *t, uint32_t run);
/* Finds one, and hands what it had to a run, but for its place; prints and
 * last: for its limb, if it is longer than one. */
bool ldr_ghost_take(ldr_runs_t *t, uint32_t before, uint32_t first,
                    ldr_run_t *to, uint32_t *prints, uint32_t *last);
/* Forgets an old one; false: none was found. */
bool ldr_ghost_drop(ldr_runs_t *t);
void ldr_ghost_tell_all(ldr_runs_t *t);
void ldr_ghost_resample(ldr_runs_t *t);
/* Asks for the memory of one that begins a chain. */
void ldr_ghost_soon(const ldr_runs_t *t, uint32_t first, unsigned step);
/* For so many at most. */
void ldr_ghost_init(ldr_runs_t *t, uint32_t max);
size_t ldr_ghost_bytes(const ldr_runs_t *t);
/* Adds their chunks. */
bool ldr_ghost_check(const ldr_runs_t *t, uint64_t *chunks);

/* ---- prints (policy_prints.c) ---- */

/* Gives the run its prints. False: no room. */
bool ldr_prints_make(ldr_runs_t *t, uint32_t run, const uint64_t *prints,
                     uint32_t count);
void ldr_prints_free(ldr_runs_t *t, uint32_t run);
/* Gives back nodes, from that one on. */
void ldr_prints_give(ldr_runs_t *t, uint32_t node);
/* A node with other contents in front of those, or LDR_NIL: no room. */
uint32_t ldr_prints_head(ldr_runs_t *t, uint32_t node, const void *contents,
                         size_t bytes);
/* Gives it back. What was behind it. */
uint32_t ldr_prints_behead(ldr_runs_t *t, uint32_t head);
/* How many of the run's are the same as these. */
uint32_t ldr_prints_match(const ldr_runs_t *t, uint32_t run,
                          const uint64_t *prints, uint32_t count);
/* Hands the first ones to another run, that has none; the last of them is
 * that. False: no room. */
bool ldr_prints_split(ldr_runs_t *t, uint32_t run, uint32_t upper,
                      uint32_t count, uint32_t last);
/* Hands all of a run's to the one above it, which becomes longer. False: no
 * room; then both are as they were. */
bool ldr_prints_join(ldr_runs_t *t, uint32_t run, uint32_t below);
/* One more for the run, which becomes longer. False: no room. */
bool ldr_prints_append(ldr_runs_t *t, uint32_t run, uint32_t print);
/* Whether the chunk number at, which it has, has that print. */
bool ldr_prints_is(const ldr_runs_t *t, uint32_t run, uint32_t at,
                   uint32_t print);

/* ---- class and time ---- */

/* Tells what was learned of the time a run has waited, up to now. */
void ldr_runs_tell(ldr_runs_t *t, uint32_t run);
/* The same of all of them. */
void ldr_runs_tell_all(ldr_runs_t *t);
/* Puts it into a class as of now. */
void ldr_runs_restamp(ldr_runs_t *t, uint32_t run, uint32_t class,
                      uint32_t stamp);

/* ---- what is resident ---- */

/* A run's number of resident chunks in the real view changes by this many. */
void ldr_runs_count(ldr_runs_t *t, uint32_t run, int by);
/* A ghost is the last to be forgotten from now on. */
void ldr_runs_ghost_last(ldr_runs_t *t, uint32_t run);
/* Takes it out of all queues and lists, before class or stamp change. */
void ldr_runs_lift(ldr_runs_t *t, uint32_t run);
/* Puts it into that queue or list of the real view, one of LDR_RUN_PLACES or
 * none. */
void ldr_runs_move(ldr_runs_t *t, uint32_t run, uint32_t place);

/* Puts it where it belongs in the real view. */
static inline void ldr_runs_settle(ldr_runs_t *t, uint32_t run)
{
    const ldr_run_t *r = &t->runs[run];
    uint32_t place = 0;

    if (r->resident == 0) {
        place = (r->flags & LDR_RUN_SHADE) == 0 ? LDR_RUN_GHOST : 0;
    } else if (r->held == 0 && ldr_limb(t, run)->kids == 0) {
        place = LDR_RUN_QUEUED;
    } else if (r->resident > r->held) {
        place = LDR_RUN_BLOCKED;
    }
    if ((r->flags & LDR_RUN_PLACES) != place) {
        ldr_runs_move(t, run, place);
    }
}
/* The run that should lose a chunk next, none with the stamp `except`; or
 * LDR_NIL. */
uint32_t ldr_runs_best(ldr_runs_t *t, uint32_t except);
/* Its worth in what the real view ranks by; more is better. */
double ldr_runs_worth(const ldr_runs_t *t, uint32_t run);

/* ---- queues (policy_queue.c) ----
 *
 * Of items: runs in the real view, records in the others. */

/* These two are for the shadows; ldr_runs_move() is for the real view. */
void ldr_queue_add(ldr_runs_t *t, uint32_t view, uint32_t item);
void ldr_queue_remove(ldr_runs_t *t, uint32_t view, uint32_t item);
/* The item that should lose a chunk next, none with the stamp `except`; or
 * LDR_NIL. */
uint32_t ldr_queue_best(ldr_runs_t *t, uint32_t view, uint32_t except);
/* The tables or the rule have changed: all are worth something else. */
static inline void ldr_queue_stale(ldr_run_queues_t *q)
{
    q->stale = true;
}
double ldr_queue_worth(const ldr_runs_t *t, uint32_t view, uint32_t item);

/* ---- shadows (policy_shade.c) ---- */

uint32_t ldr_shade_look(const ldr_runs_t *t, uint32_t run);

/* The run's record, or LDR_NIL. */
static inline uint32_t ldr_shade_find(const ldr_runs_t *t, uint32_t run)
{
    return (t->runs[run].flags & LDR_RUN_SHADE) != 0 ? ldr_shade_look(t, run)
                                                     : LDR_NIL;
}

/* Chunks of a run in the sample that a shadow has. */
static inline uint32_t ldr_shade_resident(const ldr_runs_t *t, uint32_t view,
                                          uint32_t run)
{
    uint32_t shade = ldr_shade_find(t, run);

    return shade != LDR_NIL ? t->shades[shade].resident[view - 1] : 0;
}

/* The run's record, a new one if it has none; LDR_NIL: no room. */
uint32_t ldr_shade_need(ldr_runs_t *t, uint32_t run);
/* A record's number of chunks in that view changes by this many. Without any
 * in both it goes. */
void ldr_shade_change(ldr_runs_t *t, uint32_t view, uint32_t shade, int by);
void ldr_shade_lift(ldr_runs_t *t, uint32_t run);
void ldr_shade_settle(ldr_runs_t *t, uint32_t run);
/* The run, which is in none of their queues, has lost its end to another. */
void ldr_shade_split(ldr_runs_t *t, uint32_t run, uint32_t upper);
/* The run, which has as many chunks now as before and one below it has had,
 * takes over that one, and both are in no queue. */
void ldr_shade_join(ldr_runs_t *t, uint32_t run, uint32_t below);
/* Half of the sample goes. */
void ldr_shade_halve(ldr_runs_t *t);

/* ---- LRU without a cache (policy_stack.c) ---- */

/* So many chunks that were used last by the request `was` are used by the one
 * at hand, `stamp`; 0: they are new. */
void ldr_stack_use(ldr_stack_t *k, uint32_t was, uint32_t stamp,
                   uint32_t now_ds, uint32_t chunks);
/* It has room for so many. */
void ldr_stack_room(ldr_stack_t *k, uint64_t room);
/* A request of that time, about, before the one at hand. */
uint32_t ldr_stack_stamp(const ldr_stack_t *k, uint32_t stamp,
                         uint32_t used_ds);
bool ldr_stack_check(const ldr_stack_t *k);

/* ---- slots ---- */

/* near: a slot that is perhaps right above it, or LDR_NIL. */
void ldr_runs_put(ldr_runs_t *t, uint32_t slot, uint32_t run, uint32_t depth,
                  uint32_t near);
/* The deepest slot of the run not below that depth, or LDR_NIL. */
uint32_t ldr_runs_above(const ldr_runs_t *t, uint32_t run, uint32_t depth,
                        uint32_t near);
void ldr_runs_take(ldr_runs_t *t, uint32_t slot);

bool ldr_runs_check(const ldr_runs_t *t);
