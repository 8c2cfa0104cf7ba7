/*
 * A model of a node's SSD tier: a log of segments. All that enters is written
 * once; when there is no room the oldest segment is used again, and of what is
 * in it the blocks that the policy's keep() values most are carried along, at
 * most a quarter of a segment.
 *
 * Memory: 20 bytes for each block of capacity, 4 for each different one of the
 * trace.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "plan/tape.h"
#include "store/policy.h"

typedef struct ldr_ssd_sim ldr_ssd_sim_t;

/* NULL: with the text of ldr_fail(). */
ldr_ssd_sim_t *ldr_ssd_sim_create(const ldr_tape_t *tape, uint32_t capacity,
                                  const ldr_policy_ops_t *policy);
void ldr_ssd_sim_destroy(ldr_ssd_sim_t *ssd);
bool ldr_ssd_sim_holds(const ldr_ssd_sim_t *ssd, uint32_t block);
/* All blocks of a request were used: what is here is stamped, the rest is
 * written. */
void ldr_ssd_sim_use(ldr_ssd_sim_t *ssd, const ldr_tape_request_t *request,
                     const uint32_t *blocks);
/* Blocks that were written for the first time, and carried along. */
uint64_t ldr_ssd_sim_written(const ldr_ssd_sim_t *ssd);
uint64_t ldr_ssd_sim_carried(const ldr_ssd_sim_t *ssd);
