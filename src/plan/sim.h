/*
 * Caches that are driven by a tape, in virtual time. Each holds a number of
 * blocks and follows the prefix rule: a block hits only if every earlier block
 * of its request hit. After the lookup all blocks of the request are touched or
 * inserted.
 *
 *   prefix  the first of a request's blocks, from `from` on, that is not here
 *   use     all blocks of a request, once, in the order of the tape
 *   prefetch a request that begins with this block is expected: asks for
 *           memory, in steps 2, 1, 0, some requests apart. NULL: not needed
 *
 * Memory: at most 4 bytes for each different block of the trace, and what the
 * table below says for each block of capacity; nothing grows with the length of
 * the trace.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "plan/tape.h"
#include "store/policy.h"

typedef struct ldr_sim ldr_sim_t;

typedef struct ldr_sim_params {
    uint32_t capacity; /* blocks, of all nodes together */
    /* 0 and 1: one cache. More: that many, each with a policy of its own. The
     * node of a block is that of its run, by cluster/placement.h and the hash
     * of the block with which the run begins: runs of run_blocks along the
     * chain, which stay together. */
    uint32_t nodes;
    uint32_t run_blocks;
} ldr_sim_params_t;

typedef struct ldr_sim_ops {
    const char *name;
    const char *text;
    /* The policy table of the store that it drives, or NULL. */
    const ldr_policy_ops_t *policy;
    /* NULL: with the text of ldr_fail(). */
    ldr_sim_t *(*create)(const struct ldr_sim_ops *ops, ldr_tape_t *tape,
                         const ldr_sim_params_t *params);
    void (*destroy)(ldr_sim_t *sim);
    uint32_t (*prefix)(ldr_sim_t *sim, const uint32_t *blocks, uint32_t from,
                       uint32_t count);
    /* False: it cannot go on, with the text of ldr_fail(). */
    bool (*use)(ldr_sim_t *sim, const ldr_tape_request_t *request,
                const uint32_t *blocks);
    void (*prefetch)(const ldr_sim_t *sim, uint32_t block, unsigned step);
    /* How many times as much as the mean the busiest node had to do. NULL:
     * it knows no nodes. */
    double (*busiest)(const ldr_sim_t *sim);
} ldr_sim_ops_t;

struct ldr_sim {
    const ldr_sim_ops_t *ops;
};

/* lru      the store's own leaf-first LRU          30 to 125 bytes a block
 * default  what a node runs: `learned`             40 to 150
 * optimal  Belady's, which knows the future: 1/8 of a byte a reference, and 4
 *          in a temporary file */
const ldr_sim_ops_t *ldr_sim_find(const char *name);
/* By number, from 0; NULL behind the last. */
const ldr_sim_ops_t *ldr_sim_at(unsigned number);

extern const ldr_sim_ops_t ldr_sim_lru;
extern const ldr_sim_ops_t ldr_sim_default;
extern const ldr_sim_ops_t ldr_sim_optimal;
