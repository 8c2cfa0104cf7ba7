/*
 * Descriptions of engine memory: what is refused and how it is named, what is
 * accepted, and the lists of buffers made from it. No memory is touched here,
 * so that most of it is none.
 */
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/fault.h"
#include "layout/layout.h"

#define A ((uint8_t *)0x100000) /* where the regions are said to be */
#define B ((uint8_t *)0x200000)
#define C ((uint8_t *)0x300000)
#define SCRATCH ((uint8_t *)0x700000)

/* A description that is good until a test spoils it: two regions, an attention
 * group with two layers in them, and a window. */
typedef struct desc {
    larder_region_t regions[3];
    larder_layer_t layers[3];
    larder_group_t groups[LARDER_GROUPS_MAX + 1];
    larder_layout_params_t p;
} desc_t;

static void good(desc_t *d)
{
    memset(d, 0, sizeof(*d));
    d->regions[0] = (larder_region_t){"keys", A, 10000};
    d->regions[1] = (larder_region_t){"values", B, 5000};
    d->layers[0] = (larder_layer_t){"k0", 0, 1000, 100, 60};
    d->layers[1] = (larder_layer_t){"v0", 1, 0, 50, 50};
    d->layers[2] = (larder_layer_t){"w0", 0, 2940, 100, 100};
    for (unsigned i = 0; i <= LARDER_GROUPS_MAX; i++) {
        d->groups[i] = (larder_group_t){LARDER_RULE_ALL, 16, 0, NULL, 0};
    }
    d->groups[0] = (larder_group_t){LARDER_RULE_ALL, 16, 0, d->layers, 2};
    d->groups[1] =
        (larder_group_t){LARDER_RULE_TRAILING, 8, 20, &d->layers[2], 1};
    d->p = (larder_layout_params_t){
        .chunk_tokens = 64,
        .block_count = 20,
        .regions = d->regions,
        .region_count = 2,
        .groups = d->groups,
        .group_count = 2,
    };
}

/* Bytes in use, what the allocator keeps for the next caller included; 0 under
 * sanitizers, which find what is left by themselves. */
static size_t in_use(void)
{
    return mallinfo2().uordblks;
}

static larder_layout_t *accept(const desc_t *d)
{
    larder_layout_t *layout = NULL;
    larder_status_t st = larder_layout_create(&d->p, &layout);

    if (st != LARDER_OK) {
        print_error("%s: %s\n", larder_status_text(st), larder_last_error());
    }
    assert_int_equal(st, LARDER_OK);
    assert_non_null(layout);
    return layout;
}

static void refuse(const desc_t *d, larder_status_t want, const char *a,
                   const char *b, const char *c)
{
    larder_layout_t *none = (larder_layout_t *)d, *layout = none;
    const char *words[] = {a, b, c};
    larder_status_t st = larder_layout_create(&d->p, &layout);
    size_t bytes = 0;

    if (st != want) {
        print_error("%s instead of %s: %s\n", larder_status_text(st),
                    larder_status_text(want), larder_last_error());
    }
    assert_int_equal(st, want);
    assert_ptr_equal(layout, none);     /* set only on success */
    for (unsigned i = 0; i < 20; i++) { /* until the allocator has enough */
        bytes = in_use();
        assert_int_equal(larder_layout_create(&d->p, &layout), want);
    }
    assert_int_equal(in_use(), bytes);
    for (unsigned i = 0; i < 3; i++) {
        if (strstr(larder_last_error(), words[i]) == NULL) {
            print_error("no \"%s\" in: %s\n", words[i], larder_last_error());
            fail();
        }
    }
}

/* Spoils one thing of a good description. */
#define REFUSED(spoil, status, a, b, c)                                        \
    do {                                                                       \
        desc_t d;                                                              \
        good(&d);                                                              \
        spoil;                                                                 \
        refuse(&d, status, a, b, c);                                           \
    } while (0)
#define ACCEPTED(change)                                                       \
    do {                                                                       \
        desc_t d;                                                              \
        good(&d);                                                              \
        change;                                                                \
        larder_layout_t *made = accept(&d);                                    \
        larder_layout_destroy(&made);                                          \
    } while (0)

/* ---- refusals ---- */

static void test_arguments(void **state)
{
    desc_t whole;
    larder_layout_t *layout = NULL;

    (void)state;
    good(&whole);
    assert_int_equal(larder_layout_create(NULL, &layout), LARDER_E_INVALID);
    assert_int_equal(larder_layout_create(&whole.p, NULL), LARDER_E_INVALID);
    assert_null(layout);
    REFUSED(d.p.chunk_tokens = 0, LARDER_E_INVALID, "token", "", "");
    REFUSED(d.p.groups = NULL, LARDER_E_INVALID, "groups", "", "");
    REFUSED(d.p.group_count = 0, LARDER_E_INVALID, "1 to 64", "groups", "");
    REFUSED(d.p.group_count = 65, LARDER_E_INVALID, "1 to 64", "groups", "");
    REFUSED(d.p.group_count = UINT32_MAX, LARDER_E_INVALID, "64", "", "");
    REFUSED(d.p.regions = NULL, LARDER_E_INVALID, "", "", "");
    ACCEPTED(d.p.group_count = LARDER_GROUPS_MAX);
    ACCEPTED((void)d);

    larder_layout_destroy(NULL);
    larder_layout_destroy(&layout);
    layout = accept(&whole);
    larder_layout_destroy(&layout);
    assert_null(layout);
    larder_layout_destroy(&layout);
}

static void test_regions(void **state)
{
    (void)state;
    REFUSED(d.regions[1].base = NULL, LARDER_E_INVALID, "region 1", "values",
            "");
    REFUSED(d.regions[0].bytes = 0, LARDER_E_INVALID, "region 0", "keys", "");
    REFUSED(d.regions[1].bytes = SIZE_MAX, LARDER_E_INVALID, "region 1",
            "values", "");
    REFUSED(d.regions[1].bytes = SIZE_MAX - (uintptr_t)B + 1, LARDER_E_INVALID,
            "region 1", "values", "");
    ACCEPTED(d.regions[1].bytes = SIZE_MAX - (uintptr_t)B);
    REFUSED((d.regions[0].bytes = 0, d.regions[0].name = NULL),
            LARDER_E_INVALID, "region 0", "(no name)", "");

    /* Together: the same, the last byte, one inside the other; both named. */
    REFUSED(d.regions[1].base = A, LARDER_E_OVERLAP, "region 1 (values)",
            "region 0 (keys)", "once");
    REFUSED(d.regions[1].base = A + 9999, LARDER_E_OVERLAP, "values", "keys",
            "");
    REFUSED(d.regions[0].base = B + 4999, LARDER_E_OVERLAP, "values", "keys",
            "");
    REFUSED(d.regions[1].base = A + 100, LARDER_E_OVERLAP, "values", "keys",
            "");
    REFUSED((d.regions[2] = (larder_region_t){"third", B + 4999, 1},
             d.p.region_count = 3),
            LARDER_E_OVERLAP, "region 2 (third)", "region 1 (values)", "");
    ACCEPTED(d.regions[1].base = A + 10000);
    ACCEPTED(d.regions[0].base = B + 5000);
    ACCEPTED(
        (d.regions[2] = (larder_region_t){NULL, C, 1}, d.p.region_count = 3));
}

static void test_layers(void **state)
{
    (void)state;
    REFUSED(d.layers[1].region = 2, LARDER_E_INVALID, "layer v0", "group 0",
            "region 2");
    REFUSED(d.layers[2].region = UINT32_MAX, LARDER_E_INVALID, "layer w0",
            "group 1", "region 4294967295");
    REFUSED((d.p.region_count = 0, d.p.regions = NULL), LARDER_E_INVALID,
            "layer k0", "group 0", "region 0");
    REFUSED(d.layers[0].bytes = 0, LARDER_E_INVALID, "layer k0", "group 0", "");
    REFUSED(d.layers[0].stride = 0, LARDER_E_INVALID, "layer k0", "group 0",
            "");
    REFUSED(d.layers[1].stride = 49, LARDER_E_INVALID, "layer v0", "group 0",
            "49 apart");
    REFUSED(d.layers[2].bytes = 101, LARDER_E_INVALID, "layer w0", "group 1",
            "101");
    REFUSED((d.layers[0].name = NULL, d.layers[0].bytes = 0), LARDER_E_INVALID,
            "layer (no name)", "group 0", "");

    /* Bounds: 20 blocks; the last byte fits, one more does not. */
    ACCEPTED(d.layers[0].offset = 10000 - 19 * 100 - 60);
    REFUSED(d.layers[0].offset = 10000 - 19 * 100 - 59, LARDER_E_SIZE,
            "layer k0 of group 0", "block 19", "region 0 (keys)");
    ACCEPTED(d.layers[2].offset = 8000);
    REFUSED(d.layers[2].offset = 8001, LARDER_E_SIZE, "layer w0 of group 1",
            "region 0 (keys)", "10000");
    ACCEPTED(d.layers[1].stride = (5000 - 50) / 19);
    REFUSED(d.layers[1].stride = (5000 - 50) / 19 + 1, LARDER_E_SIZE,
            "layer v0 of group 0", "region 1 (values)", "5000");
    ACCEPTED(d.p.block_count = 70);
    REFUSED(d.p.block_count = 71, LARDER_E_SIZE, "layer w0 of group 1",
            "block 70", "keys");
    REFUSED(d.p.block_count = UINT32_MAX, LARDER_E_SIZE, "layer k0 of group 0",
            "block 4294967294", "keys");
    REFUSED(d.regions[1].bytes = 999, LARDER_E_SIZE, "layer v0", "values",
            "999");

    /* Sums and products that come back around zero. */
    REFUSED(d.layers[0].offset = UINT64_MAX, LARDER_E_SIZE, "layer k0",
            "group 0", "keys");
    REFUSED(d.layers[0].offset = UINT64_MAX - 19 * 100 - 59, LARDER_E_SIZE,
            "layer k0", "group 0", "keys");
    REFUSED(d.layers[0].stride = UINT64_MAX, LARDER_E_SIZE, "layer k0",
            "group 0", "keys");
    REFUSED(d.layers[0].stride = (UINT64_MAX - 60) / 19 + 1, LARDER_E_SIZE,
            "layer k0", "group 0", "keys");
    REFUSED(d.layers[0].stride = (uint64_t)1 << 63, LARDER_E_SIZE, "layer k0",
            "group 0", "keys");
    REFUSED(d.layers[0].bytes = d.layers[0].stride = UINT64_MAX, LARDER_E_SIZE,
            "layer k0", "group 0", "keys");
    REFUSED((d.p.block_count = 1,
             d.layers[0].bytes = d.layers[0].stride = UINT64_MAX),
            LARDER_E_SIZE, "layer k0", "group 0", "keys");
}

static void test_groups(void **state)
{
    (void)state;
    REFUSED(d.groups[1].rule = (larder_rule_t)3, LARDER_E_INVALID, "group 1",
            "rule 3", "");
    REFUSED(d.groups[0].rule = (larder_rule_t)-1, LARDER_E_INVALID, "group 0",
            "rule", "");
    REFUSED(d.groups[0].block_tokens = 0, LARDER_E_INVALID, "group 0", "64",
            "");
    REFUSED(d.groups[1].block_tokens = 12, LARDER_E_INVALID, "group 1", "64",
            "12");
    REFUSED(d.groups[1].block_tokens = 128, LARDER_E_INVALID, "group 1", "64",
            "128");
    REFUSED(d.p.chunk_tokens = 65, LARDER_E_INVALID, "group 0", "65", "16");
    REFUSED(d.groups[1].window_tokens = 0, LARDER_E_INVALID, "group 1",
            "window", "0");
    REFUSED(d.groups[1].window_tokens = 1, LARDER_E_INVALID, "group 1",
            "window", "1");
    ACCEPTED(d.groups[1].window_tokens = 2);
    ACCEPTED(d.groups[1].window_tokens = UINT32_MAX);
    ACCEPTED(d.groups[0].window_tokens = 1); /* means nothing there */
    REFUSED(d.groups[1].layers = NULL, LARDER_E_INVALID, "group 1", "layers",
            "NULL");
    REFUSED(d.p.block_count = 0, LARDER_E_INVALID, "group 0", "no blocks", "");

    /* Without memory: for matching and staging only. */
    ACCEPTED((d.groups[0].layer_count = d.groups[1].layer_count = 0,
              d.p.block_count = 0, d.p.region_count = 0, d.p.regions = NULL,
              d.groups[0].layers = NULL));
}

/* Layers of one group that share bytes could not be loaded. */
static void test_layers_apart(void **state)
{
    (void)state;
    REFUSED((d.layers[1] = d.layers[0], d.layers[1].name = "k1"),
            LARDER_E_OVERLAP, "layer k1", "group 0", "layer k0");
    REFUSED((d.layers[1] = d.layers[0], d.layers[1].offset += 59),
            LARDER_E_OVERLAP, "layer k0", "group 0", "");
    REFUSED((d.layers[1] = d.layers[0], d.layers[1].offset -= 59),
            LARDER_E_OVERLAP, "layer k0", "group 0", "");
    REFUSED((d.layers[1] = d.layers[0], d.layers[1].offset += 541),
            LARDER_E_OVERLAP, "layer k0", "group 0", "");
    REFUSED((d.layers[1] = d.layers[0], d.layers[1].offset -= 541),
            LARDER_E_OVERLAP, "layer k0", "group 0", "");
    REFUSED((d.layers[1] = d.layers[0], d.layers[1].offset += 1900),
            LARDER_E_OVERLAP, "layer k0", "group 0", "");
    /* Between each other's pages, and behind each other. */
    ACCEPTED((d.layers[1] = d.layers[0], d.layers[1].offset += 60,
              d.layers[1].bytes = 40));
    REFUSED((d.layers[1] = d.layers[0], d.layers[1].offset += 60,
             d.layers[1].bytes = 41),
            LARDER_E_OVERLAP, "layer k0", "group 0", "");
    ACCEPTED((d.layers[1] = d.layers[0], d.layers[1].offset += 1960));
    ACCEPTED((d.layers[1] = d.layers[0], d.layers[0].offset += 2000));
    /* The same place in another region, or for another group. */
    ACCEPTED((d.layers[1] = d.layers[0], d.layers[1].region = 1));
    ACCEPTED(d.layers[2] = d.layers[0]);
}

static void test_limits(void **state)
{
    (void)state;
    /* Pages of a shard: those that it holds count, in all layers. */
    ACCEPTED((d.groups[0].block_tokens = d.groups[1].block_tokens = 1,
              d.p.chunk_tokens = LARDER_IOV_MAX / 2));
    REFUSED((d.groups[0].block_tokens = d.groups[1].block_tokens = 1,
             d.p.chunk_tokens = LARDER_IOV_MAX / 2 + 1),
            LARDER_E_SIZE, "group 0", "4098 pieces", "chunk of 2049");
    ACCEPTED((d.groups[1].block_tokens = 1, d.groups[1].window_tokens = 4097,
              d.groups[0].rule = LARDER_RULE_LAST, d.p.chunk_tokens = 1 << 20));
    REFUSED((d.groups[1].block_tokens = 1, d.groups[1].window_tokens = 4098,
             d.groups[0].rule = LARDER_RULE_LAST, d.p.chunk_tokens = 1 << 20),
            LARDER_E_SIZE, "group 1", "4097 pieces", "smaller chunks");

    /* Bytes of a shard: 60 MiB in one page of each of two layers. */
    const size_t half = LARDER_VALUE_MAX / 2, huge = (size_t)1 << 61;
#define LARGE(size)                                                            \
    (d.p.block_count = 1, d.p.group_count = 1, d.groups[0].block_tokens = 64,  \
     d.regions[0].bytes = huge, d.regions[1].bytes = half,                     \
     d.regions[1].base = A + huge, d.layers[1].bytes = half,                   \
     d.layers[1].stride = huge, d.layers[0].bytes = d.layers[0].stride = size)
    ACCEPTED(LARGE(half));
    REFUSED(LARGE(half + 1), LARDER_E_SIZE, "group 0", "62914560 bytes",
            "smaller chunks");
    REFUSED(LARGE(huge - 1000), LARDER_E_SIZE, "group 0", "62914560 bytes", "");
    /* 16 pages of 2^60 bytes are 0. */
    REFUSED((LARGE((size_t)1 << 60), d.groups[0].block_tokens = 4),
            LARDER_E_SIZE, "group 0", "62914560 bytes", "");
    REFUSED((LARGE((size_t)1 << 60), d.groups[0].block_tokens = 4,
             d.layers[1].bytes = 1),
            LARDER_E_SIZE, "group 0", "62914560 bytes", "");
#undef LARGE
}

#if LDR_FAULTS
/* Each allocation fails in turn: a status, nothing set, nothing left. */
static void test_no_memory(void **state)
{
    unsigned failures = 0;
    larder_status_t st;
    desc_t d;

    (void)state;
    good(&d);
    do {
        larder_layout_t *none = (larder_layout_t *)&d, *layout = none;
        size_t bytes = in_use();

        ldr_fault_arm(LDR_FAULT_alloc, failures + 1, 1);
        st = larder_layout_create(&d.p, &layout);
        ldr_fault_disarm_all();
        if (st == LARDER_OK) {
            larder_layout_destroy(&layout);
        } else {
            assert_int_equal(st, LARDER_E_NO_MEMORY);
            assert_ptr_equal(layout, none);
            failures++;
        }
        assert_int_equal(in_use(), bytes);
    } while (st != LARDER_OK && failures < 10);
    assert_int_equal(failures, 3);
}
#endif

/* ---- what was accepted ---- */

static void test_bytes(void **state)
{
    desc_t d;

    (void)state;
    good(&d);
    d.groups[2] = (larder_group_t){LARDER_RULE_LAST, 32, 0, d.layers, 2};
    d.p.group_count = 4;
    larder_layout_t *layout = accept(&d);
    assert_int_equal(larder_layout_bytes(layout, 0), 4 * (60 + 50));
    /* The last 19 tokens lie in the last 3 of 8 blocks. */
    assert_int_equal(larder_layout_bytes(layout, 1), 3 * 100);
    assert_int_equal(larder_layout_bytes(layout, 2), 60 + 50);
    assert_int_equal(larder_layout_bytes(layout, 3), 0);
    assert_int_equal(larder_layout_bytes(layout, 4), 0);
    assert_int_equal(larder_layout_bytes(layout, UINT16_MAX), 0);
    assert_int_equal(larder_layout_bytes(NULL, 0), 0);
    assert_int_equal(larder_layout_first_block(layout, 0), 0);
    assert_int_equal(larder_layout_first_block(layout, 1), 5);
    assert_int_equal(larder_layout_first_block(layout, 2), 1);
    assert_int_equal(larder_layout_first_block(layout, 4), 0);
    assert_int_equal(larder_layout_first_block(NULL, 0), 0);
    larder_layout_destroy(&layout);
}

/* ---- segments ---- */

enum { SEGMENTS = 64 };

typedef struct list {
    struct iovec iov[SEGMENTS];
    ldr_segments_t segments;
} list_t;

static larder_status_t segments(const larder_layout_t *layout, uint32_t group,
                                uint32_t chunk, const larder_table_t *table,
                                ldr_span_t wanted, uint8_t *scratch,
                                list_t *list)
{
    larder_table_t tables[8] = {0};

    assert_true(group < 8);
    tables[group] = *table;
    list->segments = (ldr_segments_t){.iov = list->iov, .max = SEGMENTS};
    return ldr_layout_segments(
        layout, (ldr_shard_at_t){group, chunk, layout->group[group].slice},
        tables, wanted, scratch, &list->segments);
}

static const ldr_span_t everything = {0, UINT32_MAX};

static void check_list(const list_t *list, const struct iovec *want,
                       uint32_t count)
{
    for (uint32_t i = 0; i < list->segments.count && i < count; i++) {
        assert_ptr_equal(list->iov[i].iov_base, want[i].iov_base);
        assert_int_equal(list->iov[i].iov_len, want[i].iov_len);
    }
    assert_int_equal(list->segments.count, count);
}

#define CHECK_LIST(list, ...)                                                  \
    do {                                                                       \
        const struct iovec want_[] = {__VA_ARGS__};                            \
        check_list(list, want_, sizeof(want_) / sizeof(want_[0]));             \
    } while (0)

/* Layer by layer, in each block by block; and the description is not needed
 * any more. */
static void test_order(void **state)
{
    const uint32_t ids[] = {9, 8, 7, 6, 5, 1, 3, 2};
    larder_table_t table = {ids, 0, 8};
    list_t list;
    desc_t d;

    (void)state;
    good(&d);
    larder_layout_t *layout = accept(&d);
    memset(&d, 0xff, sizeof(d));
    assert_int_equal(segments(layout, 0, 0, &table, everything, NULL, &list),
                     LARDER_OK);
    CHECK_LIST(&list, {A + 1900, 60}, {A + 1800, 60}, {A + 1700, 60},
               {A + 1600, 60}, {B + 450, 50}, {B + 400, 50}, {B + 350, 50},
               {B + 300, 50});
    assert_int_equal(segments(layout, 0, 1, &table, everything, NULL, &list),
                     LARDER_OK);
    CHECK_LIST(&list, {A + 1500, 60}, {A + 1100, 60}, {A + 1300, 60},
               {A + 1200, 60}, {B + 250, 50}, {B + 50, 50}, {B + 150, 50},
               {B + 100, 50});
    /* The window's shard begins with the sixth block of its chunk. */
    assert_int_equal(segments(layout, 1, 0, &table, everything, NULL, &list),
                     LARDER_OK);
    CHECK_LIST(&list, {A + 3040, 100}, {A + 3240, 100}, {A + 3140, 100});
    /* Without a null block, block 0 is one like any other. */
    table = (larder_table_t){(const uint32_t[]){19, 0, 19}, 13, 3};
    assert_int_equal(segments(layout, 1, 1, &table, everything, NULL, &list),
                     LARDER_OK);
    CHECK_LIST(&list, {A + 4840, 100}, {A + 2940, 100}, {A + 4840, 100});
    larder_layout_destroy(&layout);
}

static void test_merging(void **state)
{
    const uint32_t up[] = {4, 5, 6, 7}, down[] = {7, 6, 5, 4},
                   pairs[] = {2, 3, 9, 10}, last[] = {16, 17, 18, 19};
    larder_table_t table = {up, 0, 4};
    list_t list;
    desc_t d;

    (void)state;
    good(&d);
    d.layers[0] = (larder_layer_t){"k0", 0, 0, 50, 50};
    d.layers[1] = (larder_layer_t){"k1", 0, 1000, 50, 50};
    larder_layout_t *layout = accept(&d);
    assert_int_equal(segments(layout, 0, 0, &table, everything, NULL, &list),
                     LARDER_OK);
    CHECK_LIST(&list, {A + 200, 200}, {A + 1200, 200});
    table.ids = down;
    assert_int_equal(segments(layout, 0, 0, &table, everything, NULL, &list),
                     LARDER_OK);
    assert_int_equal(list.segments.count, 8);
    table.ids = pairs;
    assert_int_equal(segments(layout, 0, 0, &table, everything, NULL, &list),
                     LARDER_OK);
    CHECK_LIST(&list, {A + 100, 100}, {A + 450, 100}, {A + 1100, 100},
               {A + 1450, 100});
    larder_layout_destroy(&layout);

    /* From one layer into the next. */
    d.layers[1].offset = 200;
    d.layers[0].offset = 0;
    d.p.block_count = 4;
    d.groups[1].layer_count = 0;
    layout = accept(&d);
    table.ids = (const uint32_t[]){0, 1, 2, 3};
    assert_int_equal(segments(layout, 0, 0, &table, everything, NULL, &list),
                     LARDER_OK);
    CHECK_LIST(&list, {A, 400});
    table.ids = last;
    assert_int_equal(segments(layout, 0, 0, &table, everything, NULL, &list),
                     LARDER_E_INVALID);
    larder_layout_destroy(&layout);
}

/* Gemma 3 as vLLM has it: all groups on one tensor. */
static void test_aliases(void **state)
{
    enum { GROUPS = 6 };
    larder_region_t region = {"all", A, 100 * 2 * 512};
    larder_layer_t layers[2] = {{"even", 0, 0, 1024, 512},
                                {"odd", 0, 512, 1024, 512}};
    larder_group_t groups[GROUPS];
    larder_layout_params_t p = {.chunk_tokens = 32,
                                .block_count = 100,
                                .regions = &region,
                                .region_count = 1,
                                .groups = groups,
                                .group_count = GROUPS,
                                .field_mask = LARDER_LAYOUT_NULL_BLOCK};
    larder_layout_t *layout = NULL;

    (void)state;
    for (unsigned i = 0; i < GROUPS; i++) {
        groups[i] = (larder_group_t){LARDER_RULE_TRAILING, 16, 512, layers, 2};
    }
    groups[5].rule = LARDER_RULE_ALL;
    assert_int_equal(larder_layout_create(&p, &layout), LARDER_OK);
    for (uint32_t i = 0; i < GROUPS; i++) {
        uint32_t ids[2] = {3 * i + 1, 3 * i + 2};
        larder_table_t table = {ids, 6, 2};
        list_t list;

        assert_int_equal(larder_layout_bytes(layout, (uint16_t)i), 2048);
        assert_int_equal(
            segments(layout, i, 3, &table, everything, NULL, &list), 0);
        CHECK_LIST(&list, {A + ids[0] * 1024, 512}, {A + ids[1] * 1024, 512},
                   {A + ids[0] * 1024 + 512, 512},
                   {A + ids[1] * 1024 + 512, 512});
    }
    larder_layout_destroy(&layout);
}

/* A block that is not there: saving is off, loading goes around it. */
static void test_null_blocks(void **state)
{
    uint32_t ids[] = {3, 7, 5, 6};
    larder_table_t table = {ids, 0, 4};
    list_t list;
    desc_t d;

    (void)state;
    good(&d);
    d.p.field_mask = LARDER_LAYOUT_NULL_BLOCK;
    d.p.null_block = 7;
    larder_layout_t *layout = accept(&d);
    assert_int_equal(segments(layout, 0, 0, &table, everything, NULL, &list),
                     LARDER_MISS);
    assert_int_equal(segments(layout, 0, 0, &table, everything, SCRATCH, &list),
                     LARDER_OK);
    CHECK_LIST(&list, {A + 1300, 60}, {SCRATCH, 60}, {A + 1500, 60},
               {A + 1600, 60}, {B + 150, 50}, {SCRATCH + 60, 50},
               {B + 250, 100});
    larder_layout_destroy(&layout);

    /* It may be a number that no block has. */
    d.p.null_block = ids[1] = UINT32_MAX;
    layout = accept(&d);
    assert_int_equal(segments(layout, 0, 0, &table, everything, NULL, &list),
                     LARDER_MISS);
    assert_int_equal(segments(layout, 0, 0, &table, everything, SCRATCH, &list),
                     LARDER_OK);
    assert_int_equal(list.segments.count, 7);
    ids[1] = UINT32_MAX - 1;
    assert_int_equal(segments(layout, 0, 0, &table, everything, SCRATCH, &list),
                     LARDER_E_INVALID);
    larder_layout_destroy(&layout);

    /* All of them: one buffer, as long as the shard. */
    uint32_t none[] = {7, 7, 7, 7};
    d.p.null_block = 7;
    layout = accept(&d);
    table.ids = none;
    assert_int_equal(segments(layout, 0, 0, &table, everything, SCRATCH, &list),
                     LARDER_OK);
    CHECK_LIST(&list, {SCRATCH, 440});
    larder_layout_destroy(&layout);
}

static void test_wanted(void **state)
{
    const uint32_t ids[] = {3, 4, 5, 6};
    larder_table_t table = {ids, 4, 4};
    list_t list;
    desc_t d;

    (void)state;
    good(&d);
    larder_layout_t *layout = accept(&d);
    /* Only places 5 and 6 of 4 to 7. */
    assert_int_equal(
        segments(layout, 0, 1, &table, (ldr_span_t){5, 7}, SCRATCH, &list),
        LARDER_OK);
    CHECK_LIST(&list, {SCRATCH, 60}, {A + 1400, 60}, {A + 1500, 60},
               {SCRATCH + 60, 110}, {B + 200, 100}, {SCRATCH + 170, 50});
    /* Nothing, before it, behind it. */
    const ldr_span_t spans[] = {{5, 5}, {0, 4}, {8, 100}, {6, 5}};
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(
            segments(layout, 0, 1, &table, spans[i], SCRATCH, &list), 0);
        CHECK_LIST(&list, {SCRATCH, 440});
    }
    /* For saving all of it is, whatever else is said. */
    assert_int_equal(
        segments(layout, 0, 1, &table, (ldr_span_t){5, 5}, NULL, &list), 0);
    assert_int_equal(list.segments.count, 5);
    larder_layout_destroy(&layout);
}

/* Tables that begin late, end early, or name what is not there. */
static void test_tables(void **state)
{
    const uint32_t ids[] = {3, 4, 20, 6};
    larder_table_t table = {ids, 5, 2};
    list_t list;
    desc_t d;

    (void)state;
    good(&d);
    larder_layout_t *layout = accept(&d);
    assert_int_equal(segments(layout, 0, 1, &table, everything, NULL, &list),
                     LARDER_MISS);
    assert_int_equal(
        segments(layout, 0, 1, &table, (ldr_span_t){5, 7}, SCRATCH, &list),
        LARDER_OK);
    CHECK_LIST(&list, {SCRATCH, 60}, {A + 1300, 60}, {A + 1400, 60},
               {SCRATCH + 60, 110}, {B + 150, 100}, {SCRATCH + 170, 50});
    /* What is wanted and not in the table would be a hit that is none. */
    assert_int_equal(
        segments(layout, 0, 1, &table, (ldr_span_t){4, 7}, SCRATCH, &list),
        LARDER_E_INVALID);
    assert_non_null(strstr(larder_last_error(), "table 0"));
    assert_non_null(strstr(larder_last_error(), "place 4"));
    assert_int_equal(
        segments(layout, 0, 1, &table, (ldr_span_t){5, 8}, SCRATCH, &list),
        LARDER_E_INVALID);
    table = (larder_table_t){NULL, 0, 0};
    assert_int_equal(segments(layout, 0, 0, &table, everything, NULL, &list),
                     LARDER_MISS);
    assert_int_equal(segments(layout, 0, 0, &table, everything, SCRATCH, &list),
                     LARDER_E_INVALID);

    /* Block 20 of 20. */
    table = (larder_table_t){ids, 4, 4};
    assert_int_equal(segments(layout, 0, 1, &table, everything, NULL, &list),
                     LARDER_E_INVALID);
    assert_non_null(strstr(larder_last_error(), "block 20 of 20"));
    assert_non_null(strstr(larder_last_error(), "place 6"));
    assert_int_equal(segments(layout, 0, 1, &table, everything, SCRATCH, &list),
                     LARDER_E_INVALID);
    assert_int_equal(
        segments(layout, 0, 1, &table, (ldr_span_t){4, 6}, SCRATCH, &list),
        LARDER_OK);
    /* Room for fewer than there could be. */
    list.segments.max = 7;
    table.ids = (const uint32_t[]){1, 2, 3, 4};
    assert_int_equal(ldr_layout_segments(layout, (ldr_shard_at_t){0, 1, 0},
                                         &table, everything, NULL,
                                         &list.segments),
                     LARDER_E_SIZE);
    larder_layout_destroy(&layout);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_regions),
        cmocka_unit_test(test_layers),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_layers_apart),
        cmocka_unit_test(test_limits),
#if LDR_FAULTS
        cmocka_unit_test(test_no_memory),
#endif
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_merging),
        cmocka_unit_test(test_aliases),
        cmocka_unit_test(test_null_blocks),
        cmocka_unit_test(test_wanted),
        cmocka_unit_test(test_tables),
    };

    return cmocka_run_group_tests_name("layout/layout", tests, NULL, NULL);
}
