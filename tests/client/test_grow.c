/* Programs built with another header of the same LARDER_ABI: their structs are
 * shorter or longer. What a call must not touch lies in a page that has no
 * access, or has a pattern. */
#include <sys/mman.h>

#include "client/prefix_rig.h"

/* `bytes` of memory; what is behind it cannot be read. */
static void *at_the_edge(size_t bytes)
{
    enum { PAGE = 4096 };
    uint8_t *map = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    assert_true(map != MAP_FAILED && bytes <= PAGE);
    assert_int_equal(mprotect(map + PAGE, PAGE, PROT_NONE), 0);
    return map + PAGE - bytes;
}

static void edge_free(void *at)
{
    uintptr_t map = (uintptr_t)at & ~(uintptr_t)4095;

    assert_int_equal(munmap((void *)map, 8192), 0);
}

static void test_match(void **state)
{
    fix_t *f = fix(state);
    const size_t small = offsetof(larder_match_t, load_us);
    larder_key_t key = key_of(1);
    larder_lease_t *lease = NULL;

    fix_open_dram(f, "dram=8M");
    assert_status(put_n(f->space, 1, 100), LARDER_OK);
    larder_match_t *m = at_the_edge(small);
    m->struct_bytes = small;
    assert_status(larder_match(f->space, &key, 1, 0, m), LARDER_OK);
    assert_true(m->struct_bytes == small && m->chunks == 1);
    m->chunks = 0;
    assert_status(larder_stage(f->space, &key, 1, 0, 0, &lease, m), LARDER_OK);
    assert_true(m->struct_bytes == small && m->chunks == 1);
    larder_release(&lease);
    m->struct_bytes = 0;
    assert_status(larder_match(f->space, &key, 1, 0, m), LARDER_E_INVALID);
    assert_status(larder_stage(f->space, &key, 1, 0, 0, &lease, m),
                  LARDER_E_INVALID);
    edge_free(m);

    struct {
        larder_match_t m;
        uint64_t future;
    } large = {.m = {.struct_bytes = sizeof(large)}, .future = 42};
    assert_status(larder_match(f->space, &key, 1, 0, &large.m), LARDER_OK);
    assert_int_equal(large.m.struct_bytes, sizeof(larder_match_t));
    assert_true(large.m.tier_chunks[LARDER_TIER_DRAM] == 1 &&
                large.future == 42);
}

/* An older program's parameters end before the fields that have bits. */
static void test_short_params(void **state)
{
    fix_t *f = fix(state);
    larder_space_t *space = NULL;
    larder_key_t key = key_of(1);
    uint32_t tokens[256] = {0};
    size_t count = 0;

    fix_open_dram(f, "dram=8M");
    larder_space_params_t *p =
        at_the_edge(offsetof(larder_space_params_t, tenant));
    p->field_mask = 0;
    p->descriptor = "model";
    p->descriptor_bytes = 5;
    assert_status(larder_space_open(f->lar, p, &space), LARDER_OK);
    uint64_t *mask = at_the_edge(sizeof(*mask));
    *mask = 0;
    assert_status(
        larder_chain(space, tokens, 256, (void *)mask, &key, 1, &count),
        LARDER_OK);
    assert_int_equal(count, 1);
    assert_status(larder_announce(space, &key, 1, (void *)mask, 0), LARDER_OK);
    larder_item_t item = {.key = &key};
    assert_status(larder_run(space, LARDER_OP_EXISTS, &item, 1, (void *)mask),
                  LARDER_OK);
    larder_space_close(&space);
    edge_free(mask);
    edge_free(p);
}

/* A newer program asks for what this library does not know. */
static void test_unknown_bits(void **state)
{
    const uint64_t mask = (uint64_t)1 << 40;
    const larder_status_t no = LARDER_E_UNSUPPORTED;
    fix_t *f = fix(state);
    larder_space_t *space = NULL;
    larder_layout_t *layout = NULL;
    larder_t *lar = NULL;
    larder_key_t key = key_of(1);
    larder_item_t item = {.key = &key};
    larder_ticket_t ticket;
    uint32_t tokens[256] = {0};
    size_t count = 0;

    fix_open_dram(f, "dram=8M");
    assert_status(
        larder_open("embed:", &(larder_open_params_t){.field_mask = mask},
                    &lar),
        no);
    assert_non_null(strstr(larder_last_error(), "update the library"));
    assert_status(
        larder_space_open(f->lar,
                          &(larder_space_params_t){.field_mask = mask,
                                                   .descriptor = "model",
                                                   .descriptor_bytes = 5},
                          &space),
        no);
    assert_status(larder_chain(f->space, tokens, 256,
                               &(larder_chain_params_t){.field_mask = mask},
                               &key, 1, &count),
                  no);
    assert_status(
        larder_announce(f->space, &key, 1,
                        &(larder_announce_params_t){.field_mask = mask}, 0),
        no);
    larder_op_params_t op = {.field_mask = mask};
    assert_status(larder_run(f->space, LARDER_OP_EXISTS, &item, 1, &op), no);
    assert_status(
        larder_submit(f->space, LARDER_OP_EXISTS, &item, 1, &op, &ticket), no);
    assert_status(larder_layout_create(
                      &(larder_layout_params_t){.field_mask = mask}, &layout),
                  no);
    assert_true(lar == NULL && space == NULL && layout == NULL);
}

static void test_moves(void **state)
{
    enum { TOKENS = 8 };
    fix_t *f = fix(state);
    uint8_t memory[4096] = {0};
    uint32_t ids[2] = {0, 1};
    larder_region_t region = {"memory", memory, sizeof(memory)};
    larder_layer_t layer = {"layer", 0, 0, 64, 64};
    larder_group_t group = {.rule = LARDER_RULE_ALL,
                            .block_tokens = 4,
                            .layers = &layer,
                            .layer_count = 1};
    larder_layout_params_t params = {.chunk_tokens = TOKENS,
                                     .block_count = 2,
                                     .regions = &region,
                                     .region_count = 1,
                                     .groups = &group,
                                     .group_count = 1};
    larder_space_params_t space_params = {.field_mask =
                                              LARDER_SPACE_CHUNK_TOKENS,
                                          .descriptor = "moves",
                                          .descriptor_bytes = 5,
                                          .chunk_tokens = TOKENS};
    larder_table_t table = {ids, 0, 2};
    larder_key_t key = key_of(1);
    larder_space_t *space = NULL;
    larder_layout_t *layout = NULL;
    larder_rooms_t *rooms = NULL;
    struct {
        larder_move_t m;
        uint64_t future;
    } large = {.m = {.struct_bytes = sizeof(large),
                     .keys = &key,
                     .tables = &table,
                     .end = TOKENS}};

    fix_open_dram(f, "dram=8M");
    assert_status(larder_space_open(f->lar, &space_params, &space), LARDER_OK);
    assert_status(larder_layout_create(&params, &layout), LARDER_OK);
    assert_status(larder_prefix_save(space, layout, &large.m), LARDER_OK);
    assert_int_equal(large.m.shards, 1);
    assert_status(larder_prefix_load(space, layout, &large.m), LARDER_OK);
    large.future = 1;
    assert_status(larder_prefix_save(space, layout, &large.m),
                  LARDER_E_UNSUPPORTED);
    assert_status(larder_prefix_load(space, layout, &large.m),
                  LARDER_E_UNSUPPORTED);
    assert_status(larder_prefix_reserve(space, layout, &large.m, &rooms),
                  LARDER_E_UNSUPPORTED);
    assert_status(larder_prefix_place(layout, &large.m, memory, 1),
                  LARDER_E_UNSUPPORTED);
    large.m.struct_bytes = sizeof(large.m) - 1;
    assert_status(larder_prefix_save(space, layout, &large.m),
                  LARDER_E_INVALID);
    larder_layout_destroy(&layout);
    larder_space_close(&space);
}

static void test_constants(void **state)
{
    (void)state;
    assert_int_equal(larder_constant("LARDER_TIERS_MAX"), LARDER_TIERS_MAX);
    assert_int_equal(larder_constant("LARDER_CAUSE_COUNT"), LARDER_CAUSE_COUNT);
    assert_int_equal(larder_constant("LARDER_VALUE_MAX"), LARDER_VALUE_MAX);
    assert_int_equal(larder_constant("LARDER_NONSENSE"), 0);
    assert_int_equal(larder_constant(NULL), 0);
    assert_true(LARDER_TIER_COUNT <= LARDER_TIERS_MAX &&
                LARDER_CAUSE_COUNT <= LARDER_CAUSES_MAX);
    for (int i = 0; i < LARDER_TIER_COUNT; i++) {
        assert_string_not_equal(larder_tier_text((larder_tier_t)i),
                                "unknown tier");
    }
    assert_string_equal(larder_tier_text(LARDER_TIER_COUNT), "unknown tier");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ONE(test_match, "plain"),         ONE(test_short_params, "plain"),
        ONE(test_unknown_bits, "plain"),  ONE(test_moves, "plain"),
        cmocka_unit_test(test_constants),
    };

    return cmocka_run_group_tests_name("client/grow", tests, NULL, NULL);
}
