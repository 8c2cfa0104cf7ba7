/*
 * The one enumeration: what saving n tokens stored is what a load of any
 * prefix of them needs, and nothing else, for every model and every way the
 * prompt was cut into steps.
 *
 * A small engine computes prompts in steps, with a block table for each group.
 * Before a step it gives back the blocks of a window that no token to come will
 * see, as vLLM does. After each step it saves the chunks that ended in it, by
 * the layout. What a prefix needs is derived here from what a token sees, and
 * not from the code under test (principles.h).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "layout/layout.h"
#include "layout/principles.h"
#include "support/values.h"

enum {
    GROUPS = 6,
    CHUNKS = 14,
    CHUNK_TOKENS = 48,
    TOKENS = (CHUNKS + 1) * CHUNK_TOKENS,
    PAGE = 8, /* bytes; of the groups, each in a region of its own */
    NONE = 0, /* the null block */
};

typedef struct model {
    uint32_t chunk_tokens, group_count;
    larder_group_t groups[GROUPS];
    larder_layout_t *layout;
    ldr_rand_t rand;
} model_t;

static uint32_t below(model_t *m, uint32_t bound)
{
    return (uint32_t)ldr_rand_below(&m->rand, bound);
}

/* ---- random models ---- */

/* The first block's page of a group. There is no memory. */
static uint8_t *base_of(uint32_t group)
{
    return (uint8_t *)((uintptr_t)(group + 1) << 32);
}

static uint32_t random_window(model_t *m, uint32_t block)
{
    uint32_t chunk = m->chunk_tokens;
    const uint32_t special[] = {chunk - 1, chunk,     chunk + 1,     chunk + 2,
                                block,     block + 1, 2 * chunk + 1, 1u << 31};
    uint32_t window = 0;

    switch (below(m, 4)) {
    case 0:
        window = special[below(m, sizeof(special) / sizeof(special[0]))];
        break;
    case 1:
        window = below(m, chunk);
        break;
    default:
        window = below(m, 5 * chunk);
        break;
    }
    return window < 2 ? 2 : window;
}

static void model_make(model_t *m, uint64_t seed)
{
    larder_region_t regions[GROUPS];
    larder_layer_t layers[GROUPS];

    test_seed(seed);
    ldr_rand_seed(&m->rand, seed);
    m->chunk_tokens = 1 + below(m, CHUNK_TOKENS);
    m->group_count = 1 + below(m, GROUPS);
    for (uint32_t g = 0; g < m->group_count; g++) {
        uint32_t block = 1 + below(m, m->chunk_tokens);

        while (m->chunk_tokens % block != 0) {
            block--;
        }
        regions[g] = (larder_region_t){NULL, base_of(g), (TOKENS + 1) * PAGE};
        layers[g] = (larder_layer_t){NULL, g, 0, PAGE, PAGE};
        m->groups[g] = (larder_group_t){
            .rule = (larder_rule_t)below(m, 3),
            .block_tokens = block,
            .window_tokens = random_window(m, block),
            .layers = &layers[g],
            .layer_count = 1,
        };
    }
    larder_layout_params_t p = {
        .field_mask = LARDER_LAYOUT_NULL_BLOCK,
        .chunk_tokens = m->chunk_tokens,
        .block_count = TOKENS + 1,
        .regions = regions,
        .region_count = m->group_count,
        .groups = m->groups,
        .group_count = m->group_count,
        .null_block = NONE,
    };
    m->layout = NULL;
    require(larder_layout_create(&p, &m->layout) == LARDER_OK, "%s",
            larder_last_error());
}

/* ---- first principles ---- */

/* The same once more as a formula, as vLLM's own cache has it. */
static void check_principles(const model_t *m, uint32_t group, uint32_t n)
{
    const larder_group_t *g = &m->groups[group];
    uint32_t first = 0, end = n / g->block_tokens;

    if (g->rule == LARDER_RULE_LAST) {
        first = end - 1;
    } else if (g->rule == LARDER_RULE_TRAILING && n + 1 > g->window_tokens) {
        first = (n - g->window_tokens + 1) / g->block_tokens;
    }
    for (uint32_t b = 0; b < end + 2; b++) {
        require(needs_block(g, n, b) == (b >= first && b < end),
                "group %u, %u tokens, block %u", group, n, b);
    }
}

/* ---- the engine ---- */

typedef struct engine {
    model_t *model;
    uint32_t computed;
    bool align; /* keeps states only where a step ended */
    uint32_t ids[GROUPS][TOKENS];
    uint32_t count[GROUPS];         /* blocks of the table */
    uint8_t blocks[GROUPS][TOKENS]; /* how often each was saved */
    uint8_t chunks[GROUPS][CHUNKS + 1];
} engine_t;

/* Blocks that no token from the next on will see. */
static void give_back(engine_t *e, uint32_t group)
{
    const larder_group_t *g = &e->model->groups[group];

    for (uint32_t b = 0; b < e->count[group]; b++) {
        int64_t seen = (int64_t)e->computed - g->window_tokens + 1;

        if ((int64_t)(b + 1) * g->block_tokens <= seen) {
            e->ids[group][b] = NONE;
        }
    }
}

static void compute(engine_t *e, uint32_t end)
{
    const model_t *m = e->model;

    for (uint32_t i = 0; i < m->group_count; i++) {
        const larder_group_t *g = &m->groups[i];

        if (g->rule == LARDER_RULE_TRAILING) {
            give_back(e, i);
        }
        while (e->count[i] * g->block_tokens < end) {
            e->ids[i][e->count[i]] = e->count[i] + 1;
            e->count[i]++;
        }
        for (uint32_t b = 0; b < e->count[i]; b++) {
            if (e->align && g->rule == LARDER_RULE_LAST &&
                (b + 1) * g->block_tokens < end) {
                e->ids[i][b] = NONE;
            }
        }
    }
}

/* One group's shard of a chunk, by the layout. False: it cannot be had. */
static bool save(engine_t *e, uint32_t group, uint32_t chunk, uint32_t end)
{
    const larder_group_t *g = &e->model->groups[group];
    larder_table_t tables[LARDER_GROUPS_MAX] = {0};
    struct iovec iov[CHUNK_TOKENS];
    ldr_segments_t segments = {.iov = iov, .max = CHUNK_TOKENS};
    size_t bytes = 0;
    tables[group] = (larder_table_t){e->ids[group], 0, e->count[group]};
    larder_status_t st = ldr_layout_segments(
        e->model->layout, (ldr_shard_at_t){group, chunk, group}, tables,
        (ldr_span_t){0, UINT32_MAX}, NULL, &segments);

    if (st == LARDER_MISS) {
        return false;
    }
    require(st == LARDER_OK, "%s", larder_last_error());
    for (uint32_t i = 0; i < segments.count; i++) {
        for (size_t at = 0; at < iov[i].iov_len; at += PAGE) {
            size_t id =
                (size_t)((uint8_t *)iov[i].iov_base + at - base_of(group)) /
                PAGE;

            require(id >= 1 && id <= e->count[group], "block %zu", id);
            require(id * g->block_tokens <= end,
                    "group %u: block %zu of tokens not computed yet", group,
                    id - 1);
            require(
                (id - 1) * g->block_tokens / e->model->chunk_tokens == chunk,
                "group %u: block %zu is not of chunk %u", group, id - 1, chunk);
            require((id - 1) % (e->model->chunk_tokens / g->block_tokens) >=
                        larder_layout_first_block(e->model->layout,
                                                  (uint16_t)group),
                    "group %u: block %zu is read, but not said to be", group,
                    id - 1);
            e->blocks[group][id - 1]++;
        }
        bytes += iov[i].iov_len;
    }
    require(bytes == larder_layout_bytes(e->model->layout, (uint16_t)group),
            "group %u: %zu bytes", group, bytes);
    e->chunks[group][chunk]++;
    return true;
}

static void step(engine_t *e, uint32_t end)
{
    const model_t *m = e->model;
    uint32_t chunk = m->chunk_tokens;

    compute(e, end);
    for (uint32_t g = 0; g < m->group_count; g++) {
        for (uint32_t c = e->computed / chunk; c < end / chunk; c++) {
            bool state = e->align && m->groups[g].rule == LARDER_RULE_LAST;
            bool kept = save(e, g, c, end);

            require(kept || state,
                    "group %u: chunk %u is gone when tokens %u to %u are done",
                    g, c, e->computed, end);
            require(!state || kept == ((c + 1) * chunk == end),
                    "group %u: the state of chunk %u", g, c);
        }
    }
    e->computed = end;
}

/* A prompt in random steps: all at once, small ones, large ones. */
static void run(engine_t *e, model_t *m, uint32_t tokens, bool align)
{
    const uint32_t most[] = {tokens, 3, m->chunk_tokens, 3 * m->chunk_tokens};
    uint32_t kind = below(m, 4);

    memset(e, 0, sizeof(*e));
    e->model = m;
    e->align = align;
    while (e->computed < tokens) {
        uint32_t left = tokens - e->computed;
        uint32_t take = kind == 0 ? left : 1 + below(m, most[kind]);

        step(e, e->computed + (take < left ? take : left));
    }
}

/* ---- the property ---- */

/* What a prefix of so many chunks needs is there, by the enumeration and by
 * what a token sees; marks it. */
static void check_prefix(const engine_t *e, uint32_t group, uint32_t chunks,
                         uint8_t *blocks, uint8_t *seen)
{
    const model_t *m = e->model;
    const larder_group_t *g = &m->groups[group];
    uint32_t n = chunks * m->chunk_tokens,
             per = m->chunk_tokens / g->block_tokens;
    ldr_span_t needs = ldr_layout_needs(m->layout, group, chunks);
    ldr_span_t reads = ldr_layout_reads(m->layout, group, n);

    check_principles(m, group, n);
    for (uint32_t c = 0; c < CHUNKS; c++) {
        bool need = c >= needs.first && c < needs.end;

        require(need == needs_chunk(g, m->chunk_tokens, n, c),
                "group %u: chunk %u for %u chunks", group, c, chunks);
        require(!need || e->chunks[group][c] == 1,
                "group %u: chunk %u was not stored", group, c);
        seen[c] |= need;
    }
    for (uint32_t b = 0; b < CHUNKS * per; b++) {
        bool need = needs_block(g, n, b);
        ldr_span_t held = ldr_layout_blocks(m->layout, group, b / per);

        require(need == (b >= reads.first && b < reads.end),
                "group %u: block %u for %u tokens", group, b, n);
        require(!need || (b >= held.first && b < held.end),
                "group %u: block %u is in no shard", group, b);
        require(!need || e->blocks[group][b] == 1,
                "group %u: block %u for %u tokens was stored %u times", group,
                b, n, e->blocks[group][b]);
        blocks[b] |= need;
    }
}

static void check_stored(const engine_t *e, uint32_t tokens)
{
    const model_t *m = e->model;

    for (uint32_t g = 0; g < m->group_count; g++) {
        uint8_t blocks[TOKENS] = {0}, chunks[CHUNKS] = {0};

        for (uint32_t n = 1; n <= tokens / m->chunk_tokens; n++) {
            check_prefix(e, g, n, blocks, chunks);
        }
        /* And nothing else, nothing twice. */
        require(memcmp(chunks, e->chunks[g], sizeof(chunks)) == 0,
                "group %u: other chunks were stored than are needed", g);
        require(memcmp(blocks, e->blocks[g], sizeof(blocks)) == 0,
                "group %u: other blocks were stored than are needed", g);
    }
}

static void check_empty(const model_t *m)
{
    for (uint32_t g = 0; g < m->group_count; g++) {
        ldr_span_t none = ldr_layout_needs(m->layout, g, 0);

        require(none.first == 0 && none.end == 0, "group %u of nothing", g);
        none = ldr_layout_reads(m->layout, g, 0);
        require(none.first == 0 && none.end == 0, "group %u of nothing", g);
    }
}

static void test_saved_is_needed(void **state)
{
    static engine_t a, b;
    uint64_t first = test_env("LARDER_SEED", 1);
    uint64_t count = test_count("LARDER_SEEDS", 10000);

    (void)state;
    for (uint64_t seed = first; seed < first + count; seed++) {
        model_t m;

        model_make(&m, seed);
        check_empty(&m);
        uint32_t tokens = below(&m, CHUNKS * m.chunk_tokens + 1);
        run(&a, &m, tokens, false);
        check_stored(&a, tokens);
        /* Another split: the same. */
        run(&b, &m, tokens, false);
        check_stored(&b, tokens);
        require(memcmp(a.blocks, b.blocks, sizeof(a.blocks)) == 0 &&
                    memcmp(a.chunks, b.chunks, sizeof(a.chunks)) == 0,
                "another split stored something else");
        larder_layout_destroy(&m.layout);
    }
}

/* ---- the longest ---- */

/* The longest prefix whose every needed chunk is here. */
static uint32_t longest(const model_t *m, uint32_t chunks,
                        const uint8_t *const *here)
{
    for (uint32_t n = chunks; n > 0; n--) {
        bool whole = true;

        for (uint32_t g = 0; g < m->group_count && whole; g++) {
            for (uint32_t c = 0; c < n && whole && here[g] != NULL; c++) {
                whole = here[g][c] != 0 ||
                        !needs_chunk(&m->groups[g], m->chunk_tokens,
                                     n * m->chunk_tokens, c);
            }
        }
        if (whole) {
            return n;
        }
    }
    return 0;
}

static void check_longest(const model_t *m, uint32_t chunks,
                          const uint8_t *const *here)
{
    uint32_t want = longest(m, chunks, here);
    ldr_need_t needs[LARDER_GROUPS_MAX];
    uint32_t count = ldr_layout_list_needs(m->layout, needs);
    uint32_t got = ldr_needs_longest(needs, count, chunks, here);

    require(got == want, "%u of %u chunks instead of %u", got, chunks, want);
}

static void test_longest(void **state)
{
    uint64_t first = test_env("LARDER_SEED", 1);
    uint64_t count = test_count("LARDER_SEEDS", 10000);
    unsigned found = 0;

    (void)state;
    for (uint64_t seed = first; seed < first + count; seed++) {
        uint8_t bytes[GROUPS][CHUNKS];
        const uint8_t *here[GROUPS];
        model_t m;

        model_make(&m, seed);
        for (unsigned round = 0; round < 8; round++) {
            uint32_t chunks = below(&m, CHUNKS + 1);

            for (uint32_t g = 0; g < m.group_count; g++) {
                uint32_t one_in = 1 + below(&m, 12); /* is missing */

                for (uint32_t c = 0; c < CHUNKS; c++) {
                    bytes[g][c] =
                        below(&m, one_in + 1) == 0 ? 0 : 1 + below(&m, 255);
                }
                here[g] = below(&m, 5) == 0 ? NULL : bytes[g];
            }
            check_longest(&m, chunks, here);
            found += longest(&m, chunks, here) > 0;
        }
        larder_layout_destroy(&m.layout);
    }
    assert_true(count < 100 || found > count); /* it had something to find */
}

/* States that were kept where steps ended only: a prefix that ends there can
 * be loaded, and the longest of them is found. */
static void test_states(void **state)
{
    static engine_t e;
    uint64_t first = test_env("LARDER_SEED", 1);
    uint64_t count = test_count("LARDER_SEEDS", 10000);

    (void)state;
    for (uint64_t seed = first; seed < first + count; seed++) {
        const uint8_t *here[GROUPS];
        model_t m;

        model_make(&m, seed);
        run(&e, &m, below(&m, CHUNKS * m.chunk_tokens + 1), true);
        for (uint32_t g = 0; g < m.group_count; g++) {
            here[g] = e.chunks[g];
        }
        for (uint32_t n = 0; n <= CHUNKS; n++) {
            check_longest(&m, n, here);
        }
        larder_layout_destroy(&m.layout);
    }
}

/* ---- by hand ---- */

typedef struct example {
    larder_rule_t rule;
    uint32_t block, window, chunks;
    ldr_span_t needs, held, reads; /* held: of chunk 2 */
} example_t;

/* Chunks of 256 tokens. */
static void test_examples(void **state)
{
    const example_t examples[] = {
        {LARDER_RULE_ALL, 16, 0, 12, {0, 12}, {32, 48}, {0, 192}},
        /* Gemma 3: a window of 512. Token 3072 sees from 2561 on. */
        {LARDER_RULE_TRAILING, 16, 512, 12, {10, 12}, {32, 48}, {160, 192}},
        {LARDER_RULE_TRAILING, 16, 513, 12, {10, 12}, {32, 48}, {160, 192}},
        {LARDER_RULE_TRAILING, 16, 514, 12, {9, 12}, {32, 48}, {159, 192}},
        {LARDER_RULE_TRAILING, 16, 512, 1, {0, 1}, {32, 48}, {0, 16}},
        {LARDER_RULE_TRAILING, 16, 512, 2, {0, 2}, {32, 48}, {0, 32}},
        {LARDER_RULE_TRAILING, 16, 512, 3, {1, 3}, {32, 48}, {16, 48}},
        /* A window of 128, less than a chunk: its last 127 tokens. */
        {LARDER_RULE_TRAILING, 16, 128, 12, {11, 12}, {40, 48}, {184, 192}},
        {LARDER_RULE_TRAILING, 16, 129, 12, {11, 12}, {40, 48}, {184, 192}},
        {LARDER_RULE_TRAILING, 16, 130, 12, {11, 12}, {39, 48}, {183, 192}},
        {LARDER_RULE_TRAILING, 256, 2, 12, {11, 12}, {2, 3}, {11, 12}},
        {LARDER_RULE_TRAILING, 1, 2, 3, {2, 3}, {767, 768}, {767, 768}},
        {LARDER_RULE_LAST, 16, 0, 12, {11, 12}, {47, 48}, {191, 192}},
        {LARDER_RULE_LAST, 256, 0, 12, {11, 12}, {2, 3}, {11, 12}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(examples) / sizeof(examples[0]); i++) {
        const example_t *x = &examples[i];
        larder_group_t g = {x->rule, x->block, x->window, NULL, 0};
        larder_layout_params_t p = {
            .chunk_tokens = 256, .groups = &g, .group_count = 1};
        larder_layout_t *layout = NULL;

        test_seed(i);
        assert_int_equal(larder_layout_create(&p, &layout), LARDER_OK);
        ldr_span_t needs = ldr_layout_needs(layout, 0, x->chunks);
        ldr_span_t held = ldr_layout_blocks(layout, 0, 2);
        ldr_span_t reads = ldr_layout_reads(layout, 0, x->chunks * 256);
        require(memcmp(&needs, &x->needs, sizeof(needs)) == 0,
                "example %zu needs %u to %u", i, needs.first, needs.end);
        require(memcmp(&held, &x->held, sizeof(held)) == 0,
                "example %zu holds %u to %u", i, held.first, held.end);
        require(memcmp(&reads, &x->reads, sizeof(reads)) == 0,
                "example %zu reads %u to %u", i, reads.first, reads.end);
        larder_layout_destroy(&layout);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_examples),
        cmocka_unit_test(test_saved_is_needed),
        cmocka_unit_test(test_longest),
        cmocka_unit_test(test_states),
    };

    return cmocka_run_group_tests_name("layout/enumeration", tests, NULL, NULL);
}
