/*
 * What a prefix needs, from what a token sees: the measure for the code under
 * test, which does not use it.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "larder/larder.h"

/* Whether the token after a prefix of n tokens, which sees the last window
 * tokens with itself, sees this one. */
static inline bool sees(const larder_group_t *g, uint32_t n, uint32_t token)
{
    return token < n && (uint64_t)token + g->window_tokens > n;
}

/* Whether a prefix of n tokens needs a block, given as its place. */
static inline bool needs_block(const larder_group_t *g, uint32_t n,
                               uint32_t block)
{
    uint32_t first = block * g->block_tokens, end = first + g->block_tokens;

    if (end > n) {
        return false;
    }
    switch (g->rule) {
    case LARDER_RULE_ALL:
        return true;
    case LARDER_RULE_LAST:
        return end == n;
    default:
        for (uint32_t t = first; t < end; t++) {
            if (sees(g, n, t)) {
                return true;
            }
        }
        return false;
    }
}

/* Whether a prefix of n tokens needs something of a chunk. */
static inline bool needs_chunk(const larder_group_t *g, uint32_t chunk_tokens,
                               uint32_t n, uint32_t chunk)
{
    uint32_t per = chunk_tokens / g->block_tokens;

    for (uint32_t b = chunk * per; b < (chunk + 1) * per; b++) {
        if (needs_block(g, n, b)) {
            return true;
        }
    }
    return false;
}
