/*
 * Loading: finding a shard, bringing it up from disk if need be, holding it,
 * and copying it out.
 *
 * A load goes begin -> (waits) -> settled -> copy -> end. It waits while its
 * shard is being read from disk; any number of loads wait for one read. ready()
 * is called once when the wait is over, with the node's lock held: it must only
 * note the fact and wake somebody.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/io.h"
#include "node/node.h"

struct ldr_load {
    /* Given */
    ldr_target_t target;
    void (*ready)(ldr_load_t *load);
    void *arg;
    bool asks; /* nobody has asked for it before: this counts as asking */
    bool own;  /* another node asks: from own tiers, and not counted */

    /* What came of it, once settled */
    larder_status_t status; /* OK: held; MISS; PENDING: it waits */
    larder_cause_t cause;
    uint32_t shard; /* held while OK */
    uint32_t chunk;
    uint32_t length;
    larder_tier_t tier; /* that it had to come from */
    bool checked;       /* its bytes were found right by this load */

    ldr_load_t *next; /* of those that wait for the same read */
};

/* True: settled. False: it waits, and ready() will be called. After a few
 * begins call ldr_node_reads_go() to send the reads off together. */
bool ldr_load_begin(ldr_node_t *node, ldr_load_t *load);
/* Begins loads of shards of one chunk whose numbers follow each other, as many
 * from the first on as are ready in DRAM: with one lookup. They are settled;
 * gives their number. The others are not begun. */
uint32_t ldr_loads_begin_held(ldr_node_t *node, ldr_load_t *loads,
                              uint32_t count);
void ldr_node_reads_go(ldr_node_t *node);

/* Waits for a load whose ready is NULL; late: E_DEADLINE. */
void ldr_load_wait(ldr_node_t *node, ldr_load_t *load, uint64_t deadline_ns);

/* Ends the wait of a load, with E_CANCELED or E_DEADLINE: a late load is a miss
 * once it has ended. If it was settled already nothing changes. After it
 * ready() will not be called. */
void ldr_load_abandon(ldr_node_t *node, ldr_load_t *load, larder_status_t why);

/* Copies the held shard into the item's buffers and checks it; sets load's
 * status to MISS when the check fails, E_SIZE when the buffers are too small,
 * E_CANCELED or E_DEADLINE when it had to stop: a late load is a miss once it
 * has ended. */
void ldr_load_copy(ldr_node_t *node, ldr_load_t *load, const ldr_stop_t *stop);

/* Checks the held shard in place, if it was not yet: for leases. */
void ldr_load_check(ldr_node_t *node, ldr_load_t *load);

/* Counts the load and, unless keep is set, gives up its hold; a kept one is
 * given up with ldr_store_release(). */
void ldr_load_end(ldr_node_t *node, ldr_load_t *load, bool keep);

/* Matches a chain: see larder_match(). asks: nobody has asked for it before, so
 * it counts as asked for, and found or not. */
void ldr_node_match(ldr_node_t *node, uint32_t space, uint32_t shards,
                    uint16_t group, const larder_key_t *keys, size_t count,
                    bool asks, larder_match_t *out);
/* Counts what was asked for and found; the first with the lock. */
void ldr_node_count_asked(ldr_node_t *node, uint32_t space, uint64_t asked,
                          uint64_t found);
void ldr_node_asked(ldr_node_t *node, uint32_t space, uint64_t asked,
                    uint64_t found);
