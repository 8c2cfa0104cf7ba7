/* Whole prefixes by block tables: saved by one engine, found, staged and
 * loaded by another. */
#include "client/prefix_rig.h"

/* ---- what must come out ---- */

/* The longest prefix all of whose needs are here. */
static uint32_t longest(const pair_t *p, uint32_t chunks)
{
    const model_t *m = &p->model;

    for (uint32_t n = chunks; n > 0; n--) {
        bool whole = true;

        for (uint32_t i = 0; i < n * m->group_count * p->shards; i++) {
            uint32_t c = i % n, g = i / n % m->group_count;

            whole = whole && (p->here[i / n / m->group_count][g][c] ||
                              !needs_chunk(&m->groups[g], m->chunk_tokens,
                                           n * m->chunk_tokens, c));
        }
        if (whole) {
            return n;
        }
    }
    return 0;
}

/* What a match of so many chunks sums up to. */
static void check_match(const pair_t *p, const larder_match_t *m,
                        uint32_t chunks, bool sizes)
{
    const model_t *model = &p->model;
    uint64_t bytes = 0, count = 0;

    assert_int_equal(m->chunks, chunks);
    for (uint32_t g = 0; g < model->group_count; g++) {
        for (uint32_t c = 0; c < chunks; c++) {
            if (needs_chunk(&model->groups[g], model->chunk_tokens,
                            chunks * model->chunk_tokens, c)) {
                bytes += model_shard_bytes(model, g) * p->shards;
                count++;
            }
        }
    }
    assert_int_equal(m->tier_chunks[0] + m->tier_chunks[1], count);
    if (sizes) { /* on ssd only they are rounded */
        assert_int_equal(m->tier_bytes[0] + m->tier_bytes[1], bytes);
    }
    assert_int_equal(chunks == 0 ? m->load_us : 0, 0);
}

/* Match and stage of every length find what is here. */
static void check_lengths(fix_t *f, pair_t *p, bool dram)
{
    const larder_layout_t *layout = p->to[0].layout;

    for (uint32_t n = 1; n <= CHUNKS; n++) {
        larder_lease_t *lease = NULL;
        uint32_t want = longest(p, n);
        larder_match_t m = {.struct_bytes = sizeof(m)};

        assert_status(larder_prefix_match(p->space, layout, p->keys, n, 0, &m),
                      LARDER_OK);
        check_match(p, &m, want, dram);
        assert_int_equal(m.cause == LARDER_CAUSE_NONE, want == n);
        memset(&lease, 0xee, sizeof(lease));
        memset(&m, 0xee, sizeof(m));
        assert_status(larder_prefix_stage(p->space, layout, p->keys, n, NULL, 0,
                                          &lease, &m),
                      want > 0 ? LARDER_OK : LARDER_MISS);
        check_match(p, &m, want, true);
        assert_int_equal(m.cause == LARDER_CAUSE_NONE, want == n);
        assert_int_equal(lease != NULL, want > 0);
        larder_release(&lease);
    }
    /* What is being written down is held too. */
    larder_flush(f->lar, LARDER_TIER_SSD, LARDER_FOREVER);
    assert_int_equal(stats_of(f->lar).dram_leased_chunks, 0);
}

/* Loads of what is here, into other blocks, from any token on. */
static void check_loads(pair_t *p, uint32_t chunks)
{
    const model_t *m = &p->model;

    for (uint32_t i = 0; i < 6 && chunks > 0; i++) {
        engine_t *to = &p->to[i % p->shards];
        uint32_t end = (1 + below(to->rand, chunks)) * m->chunk_tokens, begin;

        if (model_is_all(m)) { /* then it need not end with a chunk */
            end = (1 + below(to->rand, end / m->step)) * m->step;
        } else if (longest(p, end / m->chunk_tokens) * m->chunk_tokens < end) {
            end = chunks * m->chunk_tokens;
        }
        begin = i < 2 ? 0 : below(to->rand, end / m->step + 1) * m->step;
        engine_load(to, p->space, p->keys, begin, end);
    }
}

/* ---- saved and loaded ---- */

static void test_random(void **state)
{
    enum { PAIRS = 20 };
    fix_t *f = fix(state);
    pair_t *pairs = calloc(PAIRS, sizeof(*pairs));
    ldr_rand_t r;

    ldr_rand_seed(&r, 42 + (unsigned char)f->engine[0]);
    fix_open(f, "dram=64M&ssd=128M");
    for (uint64_t i = 0; i < PAIRS; i++) {
        pair_t *p = &pairs[i];
        uint32_t tokens;

        pair_make(p, f->lar, &r, i, 1);
        tokens = 1 + below(&r, CHUNKS * p->model.chunk_tokens);
        tokens = i % 2 == 0 ? CHUNKS * p->model.chunk_tokens : tokens;
        engine_run(&p->from[0], p->space, p->keys, tokens);
        for (uint32_t c = 0; c < tokens / p->model.chunk_tokens; c++) {
            for (uint32_t g = 0; g < p->model.group_count; g++) {
                p->here[0][g][c] = true;
            }
        }
        assert_int_equal(longest(p, CHUNKS), tokens / p->model.chunk_tokens);
        check_lengths(f, p, true);
        check_loads(p, longest(p, CHUNKS));
    }
    /* Once more, from disk. */
    assert_status(larder_flush(f->lar, LARDER_TIER_SSD, LARDER_FOREVER), 0);
    for (uint64_t i = 0; i < PAIRS; i++) {
        larder_space_close(&pairs[i].space);
    }
    fix_close(f);
    fix_open(f, "dram=64M&ssd=128M");
    for (uint64_t i = 0; i < PAIRS; i++) {
        pair_open(&pairs[i], f->lar);
        if (i % 2 == 0) {
            check_lengths(f, &pairs[i], false);
        }
        check_loads(&pairs[i], longest(&pairs[i], CHUNKS));
        pair_free(&pairs[i]);
    }
    free(pairs);
}

static void pair_remove(pair_t *p, uint16_t shard, uint32_t group,
                        uint32_t chunk)
{
    larder_item_t item = {
        .key = &p->keys[chunk], .group = (uint16_t)group, .shard = shard};

    assert_status(larder_run(p->space, LARDER_OP_REMOVE, &item, 1, NULL), 0);
    assert_status(item.status,
                  p->here[shard][group][chunk] ? LARDER_OK : LARDER_MISS);
    p->here[shard][group][chunk] = false;
}

/* A load of more than is here is none, and touches no other block. */
static void check_no_load(pair_t *p, uint32_t chunks, larder_status_t want)
{
    larder_table_t tables[GROUPS];
    engine_t *to = &p->to[0];
    larder_move_t m = {.struct_bytes = sizeof(larder_move_t),
                       .keys = p->keys,
                       .tables = tables,
                       .end = chunks * p->model.chunk_tokens};

    engine_expect(to, 0, m.end, tables);
    assert_status(larder_prefix_load(p->space, to->layout, &m), want);
    assert_status(m.item, want);
    assert_true(m.failed > 0);
    /* The blocks may hold anything now; what is around them may not. */
    for (uint32_t g = 0; g < p->model.group_count; g++) {
        for (uint32_t b = 0; b < to->count[g]; b++) {
            if (to->ids[g][b] != NONE &&
                needs_block(&p->model.groups[g], m.end, b)) {
                page_fill(to, g, b, false, false);
                page_fill(to, g, b, true, false);
            }
        }
    }
    engine_check(to);
}

/* Chunks in the middle and states that are gone: what is left is found, and
 * can be loaded. */
static void test_removed(void **state)
{
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p));
    unsigned partly = 0;
    ldr_rand_t r;

    ldr_rand_seed(&r, 7);
    fix_open_dram(f, "dram=32M");
    for (uint64_t seed = 0; seed < 8; seed++) {
        uint32_t n = CHUNKS;

        if (seed < 3) {
            pair_fixed(p, f->lar, &r, 1000 + seed, 1);
        } else {
            pair_make(p, f->lar, &r, 1000 + seed, 1);
        }
        pair_save(p, 0);
        while (n > 0) {
            pair_remove(p, 0, below(&r, p->model.group_count),
                        below(&r, CHUNKS));
            n = longest(p, CHUNKS);
            partly += n > 0 && n < CHUNKS;
            check_lengths(f, p, true);
            check_loads(p, n);
            if (n < CHUNKS) {
                check_no_load(p, n + 1, LARDER_MISS);
            }
        }
        pair_free(p);
    }
    assert_true(partly > 8);
    free(p);
}

/* ---- ranks and writers ---- */

/* Two ranks of the model, each with two engines that hold the same bytes and
 * save every second chunk: there when all have saved. */
static void test_shards(void **state)
{
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p));
    uint32_t tokens;
    ldr_rand_t r;

    ldr_rand_seed(&r, 11);
    fix_open_dram(f, "dram=32M");
    for (uint64_t seed = 0; seed < 4; seed++) {
        pair_make(p, f->lar, &r, 2000 + seed, 2);
        tokens = CHUNKS * p->model.chunk_tokens;
        for (uint32_t i = 0; i < 2 * SHARDS_MOST; i++) {
            uint16_t shard = (uint16_t)(i % 2), writer = (uint16_t)(i / 2);
            engine_t *from = &p->from[shard];
            uint32_t saved = 0;

            assert_int_equal(longest(p, CHUNKS) == CHUNKS, false);
            for (engine_clear(from); from->computed < tokens;) {
                uint32_t begin = from->computed, end = 0;

                end = begin + 1 + below(&r, 2 * p->model.chunk_tokens);
                engine_compute(from, end < tokens ? end : tokens);
                larder_move_t m =
                    engine_save(from, p->space, p->keys, begin, 2, writer);
                assert_int_equal(m.present, 0);
                saved += m.shards;
            }
            assert_int_equal(saved, CHUNKS / 2 * p->model.group_count);
            for (uint32_t c = writer; c < CHUNKS; c += 2) {
                for (uint32_t g = 0; g < p->model.group_count; g++) {
                    p->here[shard][g][c] = true;
                }
            }
            check_lengths(f, p, true);
            check_loads(p, longest(p, CHUNKS));
        }
        assert_int_equal(longest(p, CHUNKS), CHUNKS);
        pair_remove(p, 1, p->model.group_count - 1, CHUNKS - 1);
        check_lengths(f, p, true);
        pair_free(p);
    }
    free(p);
}

/* Saved again: what is there is seen, and what is not is added. */
static void test_present(void **state)
{
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p));
    engine_t *from = &p->from[0];
    larder_table_t tables[GROUPS];
    ldr_rand_t r;

    ldr_rand_seed(&r, 13);
    fix_open_dram(f, "dram=32M");
    pair_fixed(p, f->lar, &r, 3000, 1);
    pair_save(p, 0);
    engine_clear(from);
    engine_compute(from, CHUNKS * 8);
    larder_move_t m = engine_save(from, p->space, p->keys, 0, 0, 0);
    assert_int_equal(m.present, 3 * CHUNKS);
    assert_int_equal(m.shards, 0);
    assert_int_equal(m.bytes, 0);
    pair_remove(p, 0, 1, 3);
    m = engine_save(from, p->space, p->keys, 0, 0, 0);
    assert_int_equal(m.present, 3 * CHUNKS - 1);
    assert_int_equal(m.shards, 1);
    assert_int_equal(m.bytes, model_shard_bytes(&p->model, 1));
    p->here[0][1][3] = true;
    check_lengths(f, p, true);
    check_loads(p, CHUNKS);

    /* Blocks that are not there are no reason to fail: of chunk 3, which is
     * gone again, the group's shard is left out. */
    pair_remove(p, 0, 0, 3);
    from->ids[0][13] = NONE;
    engine_tables(from, tables);
    m = (larder_move_t){.struct_bytes = sizeof(larder_move_t),
                        .keys = p->keys,
                        .tables = tables,
                        .begin = 31,
                        .end = 39};
    assert_status(larder_prefix_save(p->space, from->layout, &m), LARDER_OK);
    assert_int_equal(m.skipped, 1);
    assert_int_equal(m.present, 2);
    assert_int_equal(m.shards + m.failed, 0);
    check_lengths(f, p, true);
    /* Chunk 3 ends with token 32: after 32 it is not asked for. */
    m.begin = 32;
    assert_status(larder_prefix_save(p->space, from->layout, &m), LARDER_OK);
    assert_int_equal(m.skipped + m.present + m.shards + m.failed, 0);
    pair_free(p);
    free(p);
}

/* ---- what is wrong ---- */

/* Something of another length under the key: not a load. */
static void test_wrong_length(void **state)
{
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p));
    uint8_t data[5000] = {1};
    ldr_rand_t r;

    ldr_rand_seed(&r, 17);
    fix_open_dram(f, "dram=32M");
    for (uint32_t i = 0; i < 9; i++) {
        uint32_t group = i % 3;

        pair_fixed(p, f->lar, &r, 4000 + i, 1);
        size_t bytes = model_shard_bytes(&p->model, group);
        const size_t lengths[] = {bytes + 1, bytes - 1, 1};
        struct iovec iov = {data, lengths[i / 3]};
        larder_item_t item = {.key = &p->keys[CHUNKS - 1],
                              .group = (uint16_t)group,
                              .iov = &iov,
                              .iov_count = 1};

        pair_save(p, 0);
        pair_remove(p, 0, group, CHUNKS - 1);
        assert_status(larder_run(p->space, LARDER_OP_PUT, &item, 1, NULL), 0);
        assert_status(item.status, LARDER_OK);
        check_no_load(p, CHUNKS, LARDER_E_SIZE);
        engine_load(&p->to[0], p->space, p->keys, 0, (CHUNKS - 1) * 8);
        pair_free(p);
    }
    free(p);
}

/* Arguments that are none: refused, and nothing is set. */
static void test_refused_searches(void **state)
{
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p));
    larder_lease_t *lease = NULL;
    larder_match_t m = {.struct_bytes = sizeof(m)},
                   none = {.struct_bytes = sizeof(none)};
    ldr_rand_t r;

    ldr_rand_seed(&r, 19);
    fix_open_dram(f, "dram=32M");
    pair_fixed(p, f->lar, &r, 5000, 1);
    pair_save(p, 0);
    const larder_layout_t *layout = p->to[0].layout;
    memset(&none, 0xee, sizeof(none));
    m = none;
#define MATCH(...)                                                             \
    assert_status(larder_prefix_match(__VA_ARGS__), LARDER_E_INVALID)
#define STAGE(...)                                                             \
    assert_status(larder_prefix_stage(__VA_ARGS__), LARDER_E_INVALID)
    MATCH(p->space, NULL, p->keys, 1, 0, &m);
    MATCH(NULL, layout, p->keys, 1, 0, &m);
    MATCH(p->space, layout, NULL, 1, 0, &m);
    MATCH(p->space, layout, p->keys, 0, 0, &m);
    MATCH(p->space, layout, p->keys, SIZE_MAX, 0, &m);
    MATCH(p->space, layout, p->keys, 1, 0, NULL);
    MATCH(f->space, layout, p->keys, 1, 0, &m); /* other chunks */
    assert_non_null(strstr(larder_last_error(), "8 tokens"));
    STAGE(p->space, NULL, p->keys, 1, NULL, 0, &lease, &m);
    STAGE(p->space, layout, NULL, 1, NULL, 0, &lease, &m);
    STAGE(p->space, layout, p->keys, 0, NULL, 0, &lease, &m);
    STAGE(p->space, layout, p->keys, 1, NULL, 0, NULL, &m);
    STAGE(p->space, layout, p->keys, 1, NULL, 0, &lease, NULL);
    assert_memory_equal(&m, &none, sizeof(m));
    pair_free(p);
    free(p);
}

static void test_refused_moves(void **state)
{
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p));
    larder_table_t tables[GROUPS];
    ldr_rand_t r;

    ldr_rand_seed(&r, 21);
    fix_open_dram(f, "dram=32M");
    pair_fixed(p, f->lar, &r, 5001, 1);
    pair_save(p, 0);
    const larder_layout_t *layout = p->to[0].layout;
    engine_expect(&p->to[0], 0, CHUNKS * 8, tables);
    larder_table_t short_table = tables[0];
    larder_table_t lacks[3] = {tables[0], tables[1], tables[2]};
    const larder_move_t good = {.struct_bytes = sizeof(larder_move_t),
                                .keys = p->keys,
                                .tables = tables,
                                .end = CHUNKS * 8};
#define BOTH_REFUSED(change)                                                   \
    do {                                                                       \
        larder_move_t x = good;                                                \
        change;                                                                \
        assert_status(larder_prefix_load(p->space, layout, &x),                \
                      LARDER_E_INVALID);                                       \
        assert_status(larder_prefix_save(p->space, layout, &x),                \
                      LARDER_E_INVALID);                                       \
    } while (0)
#define LOAD_REFUSED(change)                                                   \
    do {                                                                       \
        larder_move_t x = good;                                                \
        change;                                                                \
        assert_status(larder_prefix_load(p->space, layout, &x),                \
                      LARDER_E_INVALID);                                       \
    } while (0)
    BOTH_REFUSED(x.keys = NULL);
    BOTH_REFUSED(x.tables = NULL);
    BOTH_REFUSED(x.begin = x.end + 8);
    BOTH_REFUSED((x.begin = 16, x.first_key = 3));
    BOTH_REFUSED((x.writers = 2, x.writer = 2));
    BOTH_REFUSED((lacks[1].ids = NULL, lacks[1].count = 1, x.tables = lacks));
    BOTH_REFUSED(x.end = UINT32_MAX);
    LOAD_REFUSED(x.end -= 4); /* rules other than all: whole chunks */
    LOAD_REFUSED(x.begin = 4);
    lacks[1] = tables[1];
    /* The table ends before the prefix does: nothing is taken for loaded. */
    short_table.count -= 1;
    lacks[0] = short_table;
    LOAD_REFUSED(x.tables = lacks);
    assert_non_null(strstr(larder_last_error(), "place"));
    assert_status(larder_prefix_load(p->space, layout, NULL), LARDER_E_INVALID);
    assert_status(larder_prefix_save(p->space, layout, NULL), LARDER_E_INVALID);
    larder_move_t x = good;
    assert_status(larder_prefix_save(f->space, layout, &x), LARDER_E_INVALID);
    assert_status(larder_prefix_load(p->space, NULL, &x), LARDER_E_INVALID);
    pair_free(p);
    free(p);
}

/* A layout without memory matches and stages, and does not move. */
static void test_without_layers(void **state)
{
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p));
    larder_group_t groups[GROUPS];
    larder_layout_t *layout = NULL, *real;
    larder_table_t tables[GROUPS] = {0};
    ldr_rand_t r;

    ldr_rand_seed(&r, 23);
    fix_open_dram(f, "dram=32M");
    pair_fixed(p, f->lar, &r, 6000, 1);
    pair_save(p, 0);
    memcpy(groups, p->model.groups, sizeof(groups));
    for (uint32_t g = 0; g < GROUPS; g++) {
        groups[g].layer_count = 0;
    }
    larder_layout_params_t params = {
        .chunk_tokens = 8, .groups = groups, .group_count = 3};
    assert_status(larder_layout_create(&params, &layout), LARDER_OK);
    real = p->to[0].layout;
    p->to[0].layout = layout;
    pair_remove(p, 0, 2, CHUNKS - 1);
    check_lengths(f, p, true);
    larder_move_t m = {.struct_bytes = sizeof(larder_move_t),
                       .keys = p->keys,
                       .tables = tables,
                       .end = 8};
    assert_status(larder_prefix_load(p->space, layout, &m), LARDER_E_INVALID);
    assert_non_null(strstr(larder_last_error(), "group 0 has no layers"));
    assert_status(larder_prefix_save(p->space, layout, &m), LARDER_E_INVALID);
    p->to[0].layout = real;
    larder_layout_destroy(&layout);
    pair_free(p);
    free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOTH(test_random),
        ONE(test_removed, "plain"),
        ONE(test_shards, "plain"),
        ONE(test_present, "plain"),
        ONE(test_wrong_length, "plain"),
        ONE(test_refused_searches, "plain"),
        ONE(test_refused_moves, "plain"),
        ONE(test_without_layers, "plain"),
    };

    return cmocka_run_group_tests_name("client/prefix", tests, NULL, NULL);
}
