/*
 * The whole curve of hits against capacity for leaf-first LRU, in one pass.
 *
 * Leaf-first LRU is LRU over a stream in which each request's blocks come
 * deepest first: so it is a stack, in which a cache of C blocks is the upper C.
 * Parents lie above their children, so a block that is in the upper C has all
 * its ancestors there: the prefix rule takes nothing away, and the curve is
 * exact. (It would not be for a policy that is no stack, or that lets parents
 * go first.) A block's depth in the stack is the number of blocks used since:
 * bits set along a line of time, counted by a tree of sums.
 *
 * Memory: 12 bytes for each different block of the trace, and 1/3 of one.
 */
#pragma once

#include <stdint.h>

#include "plan/tape.h"

typedef struct ldr_curve {
    uint32_t distinct;
    uint64_t references;
    uint64_t *hits; /* [c]: of a cache of c blocks */
} ldr_curve_t;

larder_status_t ldr_curve_run(const ldr_tape_t *tape, ldr_curve_t *curve);
uint64_t ldr_curve_hits(const ldr_curve_t *curve, uint64_t capacity);
void ldr_curve_free(ldr_curve_t *curve);
