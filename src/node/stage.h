/*
 * Prefixes: the longest that could be loaded, over all groups of a layout, and
 * staging it: bringing it into DRAM and holding it there.
 *
 * Staging is one piece of work in steps, so that an embedded node can do it in
 * a caller's thread and a daemon in a loop that has others to serve:
 *
 *   ldr_staging_begin()   matches, and decides how much is worth it
 *   ldr_staging_step()    again and again, until it is done
 *   ldr_staging_stop()    no more waiting: what has come by now is taken
 *
 * Shards are taken in one order: by group, by chunk, by number. A shard that
 * does not come ends the prefix where one group needs all its chunks; else a
 * shorter prefix may need others, and it begins again with that.
 *
 * One thread at a time uses a staging. Invariants:
 *  1. ids[0...at) are held by this staging until it is done; then the caller
 *     holds them.
 *  2. The loads at...begun have been begun and not ended, each in a slot of its
 *     own: at most LDR_STAGE_LOADS. begun <= end <= total.
 */
#pragma once

#include "base/bytes.h"
#include "layout/layout.h"
#include "node/load.h"
#include "node/node.h"

#define LDR_STAGE_LOADS 64u /* loads under way at once */

/* What a staged prefix counts as, where leases are bounded: a chunk is one,
 * however it is cut; with more shards than that it is several. */
#define LDR_LEASE_SHARDS (LDR_HEAD_SLICES_MAX * LARDER_GROUPS_MAX)

static inline uint64_t ldr_staged_leases(uint32_t chunks, uint64_t shards)
{
    return ldr_max64(chunks, ldr_div_up(shards, LDR_LEASE_SHARDS));
}

_Static_assert(LARDER_SHARDS_MAX <= LDR_LEASE_SHARDS, "one group's chunk");

/* A chain that somebody asks for. */
typedef struct ldr_prefix {
    uint32_t space, shards;
    const ldr_need_t *needs;
    uint32_t need_count;
    const larder_key_t *keys;
    uint32_t count;
    bool asks; /* nobody has asked for it before: it counts as asked for */
} ldr_prefix_t;

/* The longest prefix that could be loaded now; *out sums it up over the groups.
 * E_NO_MEMORY, or LARDER_OK. */
larder_status_t ldr_prefix_match(ldr_node_t *node, const ldr_prefix_t *p,
                                 larder_match_t *out);

typedef struct ldr_staging {
    /* Given */
    ldr_node_t *node;
    ldr_prefix_t prefix; /* what it points to stays until it is done */
    ldr_need_t needs[LARDER_GROUPS_MAX]; /* room for what it points to */
    larder_stage_params_t worth;
    bool check; /* bytes are checked in place */
    /* As of a load: it is called when one that was waited for has come. NULL:
     * see ldr_staging_wait() */
    void (*ready)(ldr_load_t *load);
    void *arg;
    uint64_t deadline_ns; /* begin brings it forward where patience is less */
    /* Before begin, in a daemon: it waits for what is promised (promise.h). */
    bool promised;
    ldr_promise_wait_t promise;
    uint32_t *ids; /* room for `total`, set after begin */

    /* What comes of it */
    larder_match_t match;
    uint32_t total; /* shards of what is being staged; at the end: held */

    /* Under way */
    uint32_t chunks; /* of the prefix that is being staged */
    uint32_t at, begun, end;
    struct {
        uint32_t need, chunk, shard;
    } next; /* to begin */
    unsigned attempts;
    bool stopped;
    uint64_t begin_ns;
    uint64_t part[LARDER_TIERS_MAX]; /* bytes of a chunk that is not whole */
    bool waits[LDR_STAGE_LOADS];     /* it did, when it was begun */
    larder_item_t items[LDR_STAGE_LOADS];
    ldr_load_t loads[LDR_STAGE_LOADS];
} ldr_staging_t;

/* Matches. LARDER_OK: `total` shards are to be staged (0: none, it is done).
 * E_NO_MEMORY. */
larder_status_t ldr_staging_begin(ldr_staging_t *s);

typedef enum ldr_staging_state {
    LDR_STAGING_DONE,
    LDR_STAGING_WAITS, /* for a load; ready() will be called */
    LDR_STAGING_MORE   /* it has done enough for one go */
} ldr_staging_state_t;

/* After begin: no more than so many leases. LARDER_OK, or E_LIMIT: a part of it
 * would be of no use. */
larder_status_t ldr_staging_bound(ldr_staging_t *s, uint64_t leases);

ldr_staging_state_t ldr_staging_step(ldr_staging_t *s);
/* Whether the load that comes next is still on its way. */
bool ldr_staging_waits(ldr_staging_t *s);
/* After WAITS, where ready is NULL: until it is worth a step. */
void ldr_staging_wait(ldr_staging_t *s);
/* Its deadline has come, or nobody wants it (E_CANCELED): the next steps take
 * what is there, and it is done. ready() is not called from here on. */
void ldr_staging_stop(ldr_staging_t *s, larder_status_t why);

/* Gives up what was staged. */
void ldr_staged_release(ldr_node_t *node, const uint32_t *ids, uint32_t count);
