/* Memory to place a prefix from that is not what a fetch of it left: refused,
 * and nothing is written. */
#include "client/fetch_rig.h"

/* ---- memory that is something else ---- */

/* Where the head's fields and the slots are, as prefix_fetch.c says. */
enum {
    AT_CHUNKS = 8,
    AT_SHARDS = 16,
    AT_COUNT = 20,
    AT_BYTES = 24,
    AT_KEY = 32,
    HEAD_BYTES = 64,
    SLOT_BYTES = 16,
};

/* Memory with one of its numbers changed. */
static void check_changed(pair_t *p, const fetched_t *got, size_t at,
                          size_t width, uint64_t value)
{
    uint8_t *memory = room(got->bytes);

    memcpy(memory, got->memory, got->bytes);
    memcpy(memory + at, &value, width); /* little-endian, as all we run on */
    if (memcmp(memory, got->memory, got->bytes) != 0) {
        check_refused(p, memory, got->bytes, CHUNKS, LARDER_E_CORRUPT);
    }
    free(memory);
}

/* Every bit of the head and of every slot. */
static void check_bits(pair_t *p, const fetched_t *got, uint32_t slots)
{
    uint8_t *memory = room(got->bytes);
    size_t table = HEAD_BYTES + (size_t)slots * SLOT_BYTES;

    memcpy(memory, got->memory, got->bytes);
    for (size_t bit = 0; bit < 8 * table; bit++) {
        size_t in_slot = (bit / 8 - HEAD_BYTES) % (2 * SLOT_BYTES);

        /* Of the other rank's lengths only what is out of bounds is seen. */
        if (bit / 8 >= HEAD_BYTES && in_slot >= SLOT_BYTES + 8) {
            continue;
        }
        memory[bit / 8] ^= (uint8_t)(1 << bit % 8);
        check_refused_as(p, p->keys, 0, memory, got->bytes, CHUNKS,
                         LARDER_E_CORRUPT);
        if (bit / 8 < AT_KEY || bit / 8 >= HEAD_BYTES) {
            check_refused(p, memory, got->bytes, CHUNKS, LARDER_E_CORRUPT);
        }
        memory[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    check_refused(p, got->memory, got->bytes, CHUNKS - 1, LARDER_E_CORRUPT);
    free(memory);
}

static void test_garbage(void **state)
{
    const uint64_t numbers[] = {0,          1,          2,
                                63,         64,         65,
                                4096,       1ull << 31, UINT32_MAX,
                                UINT64_MAX, 1ull << 63, UINT64_MAX - 4095};
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p));
    uint32_t slots = 0;
    ldr_rand_t r;

    ldr_rand_seed(&r, 101);
    fix_open_dram(f, "dram=32M");
    pair_fixed(p, f->lar, &r, 8900, 2);
    pair_save(p, 0);
    pair_save(p, 1);
    fetched_t got = fetch_all(p, CHUNKS);
    memcpy(&slots, got.memory + AT_COUNT, sizeof(slots));
    assert_in_range(slots, 2 * (CHUNKS + 2), 2 * 3 * CHUNKS);
    check_bits(p, &got, slots);
    for (size_t i = 0; i < COUNT_OF(numbers); i++) {
        check_changed(p, &got, 0, 8, numbers[i]);
        check_changed(p, &got, AT_CHUNKS, 4, numbers[i]);
        check_changed(p, &got, AT_SHARDS, 4, numbers[i]);
        check_changed(p, &got, AT_COUNT, 4, numbers[i]);
        check_changed(p, &got, AT_BYTES, 8, numbers[i]);
        for (uint32_t s = 0; s < slots; s += 5) {
            size_t at = HEAD_BYTES + (size_t)s * SLOT_BYTES;

            check_changed(p, &got, at, 8, numbers[i]);
            if (s % 2 == 0 || numbers[i] > UINT32_MAX) { /* this rank's, or
                                                            out of bounds */
                check_changed(p, &got, at + 8, 8, numbers[i]);
            }
        }
    }
    /* Cut off anywhere: read no further than it reaches. */
    for (size_t size = 0; size < got.bytes;
         size += size < 1200 ? 1 : got.bytes / 31) {
        uint8_t *memory = room(size > 0 ? size : 1);

        memcpy(memory, got.memory, size);
        check_refused(p, memory, size, CHUNKS, LARDER_E_CORRUPT);
        free(memory);
    }
    /* Anything. */
    for (uint64_t i = 0; i < 300; i++) {
        uint8_t *memory = room(got.bytes);

        content(i, memory, got.bytes);
        if (i % 2 == 0) { /* with a head that is right so far */
            memcpy(memory, got.memory, i % AT_KEY);
        }
        check_refused(p, memory, got.bytes, CHUNKS, LARDER_E_CORRUPT);
        free(memory);
    }
    /* There is more memory than it says, and it says more than there is. */
    fetched_t wide = {.bytes = got.bytes + 8192};
    wide.memory = room(wide.bytes);
    memcpy(wide.memory, got.memory, got.bytes);
    check_changed(p, &wide, AT_BYTES, 8, got.bytes - 1);
    check_changed(p, &wide, AT_BYTES, 8, got.bytes + 1);
    check_changed(p, &wide, AT_BYTES, 8, got.bytes + 4096);
    check_changed(p, &wide, AT_BYTES, 8, got.bytes + 8192);
    place(p, &wide, 0, 0, CHUNKS); /* it was the changes, after all */
    free(wide.memory);
    larder_release(&got.lease);
    free(got.memory);
    pair_free(p);
    free(p);
}

/* A rank that the memory has nothing of, though what lies behind the slots
 * would do for one. */
static void test_no_such_rank(void **state)
{
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p));
    larder_table_t tables[GROUPS];
    uint32_t slots;
    ldr_rand_t r;

    ldr_rand_seed(&r, 102);
    fix_open_dram(f, "dram=32M");
    p->shards = 1;
    model_fixed(&p->model, 8950);
    p->model.group_count = 1;
    pair_open(p, f->lar);
    pair_engines(p, &r);
    pair_save(p, 0);
    fetched_t got = fetch_all(p, CHUNKS);
    memcpy(&slots, got.memory + AT_COUNT, sizeof(slots));
    memcpy(got.memory + HEAD_BYTES + (size_t)slots * SLOT_BYTES,
           got.memory + HEAD_BYTES, SLOT_BYTES);
    engine_expect(&p->to[0], 0, FIXED, tables);
    larder_move_t m = {.struct_bytes = sizeof(larder_move_t),
                       .tables = tables,
                       .end = FIXED,
                       .shard = 1};
    assert_status(
        larder_prefix_place(p->to[0].layout, &m, got.memory, got.bytes),
        LARDER_E_CORRUPT);
    place(p, &got, 0, 0, CHUNKS);
    larder_release(&got.lease);
    free(got.memory);
    pair_free(p);
    free(p);
}

/* So many chunks and shards that their product is 0: no slots to check. */
static void test_overflow(void **state)
{
    enum { GROUP_COUNT = 4, PAGE = 8 };
    const uint64_t magic = 0x68637465662d7264ull;
    const uint32_t numbers[] = {1u << 31, GROUP_COUNT, 1u << 31, 0};
    const uint64_t bytes = 4096, slot[] = {0, PAGE};
    uint8_t page[PAGE] = {1}, *memory = room(4096);
    uint32_t id = 0;
    larder_region_t region = {"page", page, PAGE};
    larder_layer_t layer = {"layer", 0, 0, PAGE, PAGE};
    larder_group_t groups[GROUP_COUNT];
    larder_table_t tables[GROUP_COUNT];
    larder_layout_params_t params = {.chunk_tokens = 1,
                                     .block_count = 1,
                                     .regions = &region,
                                     .region_count = 1,
                                     .groups = groups,
                                     .group_count = GROUP_COUNT};
    larder_layout_t *layout = NULL;
    larder_move_t m = {.struct_bytes = sizeof(larder_move_t),
                       .tables = tables,
                       .end = 1u << 31};

    (void)state;
    for (uint32_t g = 0; g < GROUP_COUNT; g++) {
        groups[g] = (larder_group_t){LARDER_RULE_ALL, 1, 0, &layer, 1};
        tables[g] = (larder_table_t){&id, 0, 1};
    }
    assert_status(larder_layout_create(&params, &layout), LARDER_OK);
    memcpy(memory, &magic, sizeof(magic));
    memcpy(memory + AT_CHUNKS, numbers, sizeof(numbers));
    memcpy(memory + AT_BYTES, &bytes, sizeof(bytes));
    memcpy(memory + HEAD_BYTES, slot, sizeof(slot));
    assert_status(larder_prefix_place(layout, &m, memory, 4096),
                  LARDER_E_CORRUPT);
    assert_int_equal(page[0], 1);
    larder_layout_destroy(&layout);
    free(memory);
}

/* Another model's, or another length's, memory. */
static void test_another(void **state)
{
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p)), *q = calloc(1, sizeof(*q));
    ldr_rand_t r;

    ldr_rand_seed(&r, 103);
    fix_open_dram(f, "dram=32M");
    pair_fixed(p, f->lar, &r, 9000, 1);
    pair_save(p, 0);
    memset(q, 0, sizeof(*q));
    q->shards = 1;
    model_fixed(&q->model, 9001);
    q->model.bytes[1][0]++; /* one page is larger */
    pair_open(q, f->lar);
    pair_engines(q, &r);
    pair_save(q, 0);
    fetched_t got = fetch_all(p, 5), other = fetch_all(q, 5);
    check_refused(q, got.memory, got.bytes, 5, LARDER_E_CORRUPT);
    check_refused(p, other.memory, other.bytes, 5, LARDER_E_CORRUPT);
    check_refused(p, got.memory, got.bytes, 4, LARDER_E_CORRUPT);
    check_refused(p, got.memory, got.bytes, 6, LARDER_E_CORRUPT);
    place(p, &got, 0, 0, 5);
    place(q, &other, 0, 8, 5);
    larder_release(&got.lease);
    larder_release(&other.lease);
    free(got.memory);
    free(other.memory);
    pair_free(p);
    pair_free(q);
    free(p);
    free(q);
}

/* Memory of another prompt that is as long: the key of its last chunk says so,
 * whichever of them the move's keys begin with. */
static void test_another_prompt(void **state)
{
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p));
    larder_key_t other[CHUNKS];
    ldr_rand_t r;

    ldr_rand_seed(&r, 104);
    fix_open_dram(f, "dram=32M");
    pair_fixed(p, f->lar, &r, 9050, 1);
    pair_save(p, 0);
    fetched_t got = fetch_all(p, CHUNKS);
    memcpy(other, p->keys, sizeof(other));
    other[CHUNKS - 1].hash[31] ^= 1;
    check_refused_as(p, other, 0, got.memory, got.bytes, CHUNKS,
                     LARDER_E_CORRUPT);
    check_refused_as(p, other + CHUNKS - 1, CHUNKS - 1, got.memory, got.bytes,
                     CHUNKS, LARDER_E_CORRUPT);
    check_refused_as(p, p->keys, 1, got.memory, got.bytes, CHUNKS,
                     LARDER_E_CORRUPT);
    check_refused_as(p, p->keys, CHUNKS, got.memory, got.bytes, CHUNKS,
                     LARDER_E_CORRUPT); /* they begin after its end */
    place(p, &got, 0, 0, CHUNKS);
    larder_release(&got.lease);
    free(got.memory);
    pair_free(p);
    free(p);
}

/* Memory that is used again, and a fetch that does not get all: what it held
 * before is not there any more, nor what it was to hold. */
static void test_used_again(void **state)
{
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p));
    size_t need = 0;
    ldr_rand_t r;

    if (transport_is("tcp") || transport_is("tls")) {
        free(p); /* the bit would have to flip in the daemon */
        return;
    }
    ldr_rand_seed(&r, 105);
    fix_open_dram(f, "dram=32M");
    pair_fixed(p, f->lar, &r, 9060, 1);
    pair_save(p, 0);
    fetched_t got = fetch_all(p, CHUNKS);
    place(p, &got, 0, 0, CHUNKS);
    ldr_fault_arm(LDR_FAULT_copy_out, 2, 1);
    assert_status(larder_prefix_fetch(p->space, p->to[0].layout, got.lease,
                                      p->keys, CHUNKS, got.memory, got.bytes, 0,
                                      &need),
                  LARDER_MISS);
    ldr_fault_disarm_all();
    check_refused(p, got.memory, got.bytes, CHUNKS, LARDER_E_CORRUPT);
    larder_release(&got.lease);
    free(got.memory);
    pair_free(p);
    free(p);
}

/* ---- what is wrong ---- */

static void test_refused_places(void **state)
{
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p));
    larder_table_t tables[GROUPS];
    ldr_rand_t r;

    ldr_rand_seed(&r, 109);
    fix_open_dram(f, "dram=32M");
    pair_fixed(p, f->lar, &r, 9200, 1);
    pair_save(p, 0);
    engine_t *to = &p->to[0];
    fetched_t got = fetch_all(p, CHUNKS);
    larder_layout_t *rules = rules_of(&p->model);
    engine_expect(to, 0, FIXED, tables);
    for (uint32_t i = 0; i < to->region_count; i++) {
        memcpy(to->expected[i], to->regions[i].base, to->regions[i].bytes);
    }
    uint32_t wrong[PLACES + 1];
    const larder_move_t good = {
        .struct_bytes = sizeof(larder_move_t), .tables = tables, .end = FIXED};
    larder_table_t other[GROUPS];
#define REFUSED(want, layout, change)                                          \
    do {                                                                       \
        larder_move_t x = good;                                                \
        memcpy(other, tables, sizeof(other));                                  \
        change;                                                                \
        assert_status(larder_prefix_place(layout, &x, got.memory, got.bytes),  \
                      want);                                                   \
        engine_check(to);                                                      \
    } while (0)
    REFUSED(LARDER_E_INVALID, NULL, );
    REFUSED(LARDER_E_INVALID, rules, ); /* nowhere to place it */
    REFUSED(LARDER_E_INVALID, to->layout, x.tables = NULL);
    REFUSED(LARDER_E_INVALID, to->layout, x.begin = 4); /* state: 8 */
    REFUSED(LARDER_E_INVALID, to->layout, x.begin = FIXED + 8);
    REFUSED(LARDER_E_CORRUPT, to->layout, x.end = FIXED + 8);
    REFUSED(LARDER_E_CORRUPT, to->layout, x.end = FIXED - 2);
    REFUSED(LARDER_E_CORRUPT, to->layout, x.shard = 1);
    /* The last group's table, when all others would have been written. */
    REFUSED(LARDER_E_INVALID, to->layout,
            (x.tables = other, other[2].ids = NULL));
    REFUSED(LARDER_E_INVALID, to->layout,
            (x.tables = other, other[2].count = 0));
    memcpy(wrong, tables[2].ids, tables[2].count * sizeof(*wrong));
    wrong[tables[2].count - 1] = BLOCKS;
    REFUSED(LARDER_E_INVALID, to->layout,
            (x.tables = other, other[2].ids = wrong));
    assert_status(larder_prefix_place(to->layout, NULL, got.memory, got.bytes),
                  LARDER_E_INVALID);
    larder_move_t m = good;
    assert_status(larder_prefix_place(to->layout, &m, NULL, got.bytes),
                  LARDER_E_INVALID);
    for (unsigned i = 1; i < 3; i++) {
        ldr_fault_arm(LDR_FAULT_alloc, i, 1);
        assert_status(
            larder_prefix_place(to->layout, &m, got.memory, got.bytes),
            LARDER_E_NO_MEMORY);
        ldr_fault_disarm_all();
    }
    engine_check(to);
    place(p, &got, 0, 0, CHUNKS);
    place(p, &got, 0, FIXED, CHUNKS); /* nothing is left to place */
    larder_layout_destroy(&rules);
    larder_release(&got.lease);
    free(got.memory);
    pair_free(p);
    free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ONE(test_garbage, "plain"),        ONE(test_no_such_rank, "plain"),
        ONE(test_overflow, "plain"),       ONE(test_another, "plain"),
        ONE(test_refused_places, "plain"), ONE(test_another_prompt, "plain"),
        ONE(test_used_again, "plain"),
    };

    return cmocka_run_group_tests_name("client/prefix_place", tests, NULL,
                                       NULL);
}
