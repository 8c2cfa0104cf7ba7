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
/* Blocks that were written for the first time, and carried along. */
uint64_t ldr_ssd_sim_written(const ldr_ssd_sim_t *ssd);
uint64_t ldr_ssd_sim_carried(const ldr_ssd_sim_t *ssd);
/* Times that a block was not written: at its first use, for the budget, and
 * since the disk was behind by all that can wait. */
uint64_t ldr_ssd_sim_refused_first(const ldr_ssd_sim_t *ssd);
uint64_t ldr_ssd_sim_refused_budget(const ldr_ssd_sim_t *ssd);
uint64_t ldr_ssd_sim_dropped(const ldr_ssd_sim_t *ssd);
