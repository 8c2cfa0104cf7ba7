/* The one enumeration: what a prefix needs, and what a chunk's shards hold. */
#include "base/bytes.h"
#include "layout/layout.h"

/* The first block that a prefix of so many tokens, whole blocks, needs. All
 * else about who needs what follows from this. */
static uint64_t first_needed(const ldr_group_t *g, uint64_t tokens)
{
    if (g->rule == LARDER_RULE_LAST && tokens > 0) {
        return tokens / g->block_tokens - 1;
    }
    if (g->rule == LARDER_RULE_TRAILING && tokens >= g->window_tokens) {
        return (tokens - g->window_tokens + 1) / g->block_tokens;
    }
    return 0;
}

void ldr_group_rule(ldr_group_t *g, uint32_t chunk_tokens, uint32_t row_tokens,
                    uint32_t unit)
{
    uint64_t held = chunk_tokens; /* tokens of a chunk that its shards hold */

    if (g->rule == LARDER_RULE_LAST) {
        held = g->block_tokens;
    } else if (g->rule == LARDER_RULE_TRAILING) {
        held = ldr_min64(
            held, ldr_div_up((uint64_t)g->window_tokens - 1, unit) * unit);
    }
    g->chunk_blocks = chunk_tokens / g->block_tokens;
    g->block_rows = g->block_tokens / row_tokens;
    g->chunk_rows = chunk_tokens / row_tokens;
    g->first_row = (uint32_t)((chunk_tokens - held) / row_tokens);
    g->first_block = g->first_row / g->block_rows;
    g->need.chunks =
        g->rule == LARDER_RULE_ALL ? LDR_NEED_ALL
        : g->rule == LARDER_RULE_LAST
            ? 1
            : (uint32_t)ldr_div_up(g->window_tokens - 1, chunk_tokens);
}

ldr_span_t ldr_need_span(const ldr_need_t *need, uint32_t chunks)
{
    return (ldr_span_t){chunks > need->chunks ? chunks - need->chunks : 0,
                        chunks};
}

ldr_span_t ldr_layout_needs(const larder_layout_t *layout, uint32_t group,
                            uint32_t chunks)
{
    return ldr_need_span(&layout->group[group].need, chunks);
}

uint32_t ldr_layout_list_needs(const larder_layout_t *layout,
                               ldr_need_t needs[LARDER_GROUPS_MAX])
{
    for (uint32_t g = 0; g < layout->group_count; g++) {
        needs[g] = layout->group[g].need;
    }
    return layout->group_count;
}

ldr_span_t ldr_layout_reads(const larder_layout_t *layout, uint32_t group,
                            uint32_t tokens)
{
    const ldr_group_t *g = &layout->group[group];

    return (ldr_span_t){(uint32_t)first_needed(g, tokens),
                        tokens / g->block_tokens};
}

ldr_span_t ldr_layout_blocks(const larder_layout_t *layout, uint32_t group,
                             uint32_t chunk)
{
    const ldr_group_t *g = &layout->group[group];
    uint32_t begin = chunk * g->chunk_blocks;

    return (ldr_span_t){begin + g->first_block, begin + g->chunk_blocks};
}

/* What ends below the missing chunk, or the same if none is missing. */
static uint32_t without_missing(const ldr_need_t *need, uint32_t chunks,
                                const uint8_t *here)
{
    ldr_span_t span = ldr_need_span(need, chunks);

    /* The first that is missing: a prefix that does not need it ends before
     * it, with rule all and trailing; with rule last before the only one. */
    for (uint32_t i = span.first; i < span.end; i++) {
        if (here[i] == 0) {
            return i;
        }
    }
    return chunks;
}

uint32_t ldr_needs_longest(const ldr_need_t *needs, uint32_t need_count,
                           uint32_t chunks, const uint8_t *const *here)
{
    for (bool again = true; again && chunks > 0;) {
        again = false;
        for (uint32_t i = 0; i < need_count; i++) {
            if (here[i] != NULL) {
                uint32_t now = without_missing(&needs[i], chunks, here[i]);

                again = again || now < chunks;
                chunks = now;
            }
        }
    }
    return chunks;
}
