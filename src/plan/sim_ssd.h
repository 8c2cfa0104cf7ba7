/*
 * A model of a node's SSD tier: a log of segments. All that may be is written
 * once (store/admit.h, the node's own code, says what may); when there is no
 * room the oldest segment is used again, and of what is in it the blocks that
 * the policy's keep() values most are carried along, at most a quarter of a
 * segment.
 *
 * Memory: 20 bytes for each block of capacity, 8 more for admission by the
 * second use, 4 for each different block of the trace.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "plan/tape.h"
#include "store/policy.h"

typedef struct ldr_ssd_sim ldr_ssd_sim_t;

/* Blocks. */
typedef struct ldr_ssd_sim_counts {
    uint64_t written; /* for the first time */
    uint64_t carried;
    /* Times that one was not written: at its first use, for the budget, and
     * because the disk was behind by all that can wait. */
    uint64_t refused_first, refused_budget, dropped;
} ldr_ssd_sim_counts_t;

typedef struct ldr_ssd_sim_params {
    uint32_t capacity; /* blocks */
    const ldr_policy_ops_t *policy;
    bool second;  /* only what is used a second time is written */
    double a_day; /* blocks that may be written; 0: no limit */
    /* Write-behind: blocks that the disk writes a second, 0: all at once, and
     * how many can wait for it: those that DRAM holds. */
    double a_second;
    double queue;
} ldr_ssd_sim_params_t;

/* NULL: with the text of ldr_fail(). */
ldr_ssd_sim_t *ldr_ssd_sim_create(const ldr_tape_t *tape,
                                  const ldr_ssd_sim_params_t *params);
void ldr_ssd_sim_destroy(ldr_ssd_sim_t *ssd);
bool ldr_ssd_sim_holds(const ldr_ssd_sim_t *ssd, uint32_t block);
/* All blocks of a request were used: what is here is stamped, the rest is
 * written. */
void ldr_ssd_sim_use(ldr_ssd_sim_t *ssd, const ldr_tape_request_t *request,
                     const uint32_t *blocks);
const ldr_ssd_sim_counts_t *ldr_ssd_sim_counts(const ldr_ssd_sim_t *ssd);
