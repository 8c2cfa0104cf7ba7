/* Saves in two halves that are long, for which there is no room, or that
 * several threads fill. */
#include <pthread.h>

#include "client/prefix_rig.h"

/* An engine of one layer: a page for each token and group, full. */
typedef struct flat {
    uint32_t pages;
    size_t bytes; /* of a page */
    uint8_t *memory;
    uint32_t *ids;
    larder_key_t *keys;
    larder_table_t tables[2];
    larder_layout_t *layout;
    larder_space_t *space;
    larder_move_t move; /* of all */
} flat_t;

static void flat_make(flat_t *e, larder_t *lar, uint64_t seed, uint32_t tokens,
                      uint32_t groups, size_t bytes)
{
    const model_t model = {.seed = seed, .chunk_tokens = 1};
    larder_layer_t layer = {"layer", 0, 0, bytes, bytes};
    larder_group_t group = {
        .block_tokens = 1, .layers = &layer, .layer_count = 1};
    larder_group_t both[2] = {group, group};
    uint32_t pages = groups * tokens;

    *e = (flat_t){.pages = pages, .bytes = bytes};
    e->memory = malloc(pages * bytes);
    e->ids = malloc(pages * sizeof(*e->ids));
    e->keys = malloc(tokens * sizeof(*e->keys));
    larder_region_t region = {"memory", e->memory, pages * bytes};
    larder_layout_params_t params = {.chunk_tokens = 1,
                                     .block_count = pages,
                                     .regions = &region,
                                     .region_count = 1,
                                     .groups = both,
                                     .group_count = groups};
    assert_status(larder_layout_create(&params, &e->layout), LARDER_OK);
    e->space = model_space(lar, &model, 1);
    model_keys(&model, e->space, e->keys, tokens);
    for (uint32_t i = 0; i < pages; i++) {
        e->ids[i] = pages - 1 - i;
        content(i, e->memory + e->ids[i] * bytes, bytes);
    }
    e->tables[0] = (larder_table_t){e->ids, 0, tokens};
    e->tables[1] = (larder_table_t){e->ids + tokens, 0, tokens};
    e->move = (larder_move_t){.struct_bytes = sizeof(larder_move_t),
                              .keys = e->keys,
                              .tables = e->tables,
                              .end = tokens};
}

/* Loads into memory that was overwritten; pages from this one on are right. */
static void flat_load(flat_t *e, uint32_t first)
{
    memset(e->memory, 0, e->pages * e->bytes);
    e->move.begin = first;
    assert_status(larder_prefix_load(e->space, e->layout, &e->move), LARDER_OK);
    for (uint32_t i = first; i < e->pages; i++) {
        assert_true(content_is(i, e->memory + e->ids[i] * e->bytes, e->bytes));
    }
}

static void flat_free(flat_t *e)
{
    larder_layout_destroy(&e->layout);
    larder_space_close(&e->space);
    free(e->memory);
    free(e->ids);
    free(e->keys);
}

/* Saves all of it; gives how many got no room at first. */
static uint32_t flat_save(flat_t *e)
{
    larder_rooms_t *rooms = NULL;

    assert_status(larder_prefix_reserve(e->space, e->layout, &e->move, &rooms),
                  0);
    assert_int_equal(e->move.present + e->move.skipped, 0);
    uint32_t roomless = e->move.failed;
    assert_int_equal(e->move.shards + roomless, e->pages);
    assert_status(larder_prefix_fill(&rooms, &e->move), LARDER_OK);
    assert_int_equal(e->move.shards, e->pages);
    assert_int_equal(e->move.failed + e->move.present + e->move.skipped, 0);
    assert_int_equal(e->move.bytes, e->pages * e->bytes);
    return roomless;
}

/* More shards than one reservation has. */
static void test_many(void **state)
{
    fix_t *f = fix(state);
    flat_t e;

    fix_open_dram(f, "dram=320M");
    flat_make(&e, f->lar, 20200, 1100, 2, 9);
    flat_save(&e);
    flat_load(&e, 0);
    assert_int_equal(stats_of(f->lar).dram_leased_chunks, 0);
    flat_free(&e);
}

/* More than there is: what was saved last is there. */
static void test_no_room(void **state)
{
    enum { PAGES = 40 };
    fix_t *f = fix(state);
    flat_t e;

    fix_open_dram(f, "dram=8M&policy=lru");
    flat_make(&e, f->lar, 20600, PAGES, 1, 512 << 10);
    uint32_t roomless = flat_save(&e);
    /* By TCP and in a bounce buffer it is room for the bytes alone. */
    assert_true(roomless > 0 || !(f->embedded || transport_is("shm")));
    flat_load(&e, PAGES - 1);
    assert_int_equal(stats_of(f->lar).dram_leased_chunks, 0);
    flat_free(&e);
}

/* The same with a policy that knows that they belong together: its beginning is
 * kept, which is of use without the rest. */
static void test_too_long(void **state)
{
    enum { PAGES = 40 };
    fix_t *f = fix(state);
    larder_rooms_t *rooms = NULL;
    flat_t e;

    fix_open_dram(f, "dram=8M");
    flat_make(&e, f->lar, 20600, PAGES, 1, 512 << 10);
    assert_status(larder_prefix_reserve(e.space, e.layout, &e.move, &rooms), 0);
    assert_status(larder_prefix_fill(&rooms, &e.move), LARDER_OK);
    assert_int_equal(e.move.shards + e.move.skipped, PAGES);
    assert_true(e.move.shards > 4 && e.move.skipped > 4);
    assert_status(e.move.item, LARDER_DECLINED);
    e.move.end = e.move.shards;
    memset(e.memory, 0, e.pages * e.bytes);
    assert_status(larder_prefix_load(e.space, e.layout, &e.move), LARDER_OK);
    for (uint32_t i = 0; i < e.move.end; i++) {
        assert_true(content_is(i, e.memory + e.ids[i] * e.bytes, e.bytes));
    }
    flat_free(&e);
}

/* More shards than a handle may hold. */
static void test_lease_limit(void **state)
{
    fix_t *f = fix(state);

    fix_open_dram(f, "dram=32M&leases=20");
    for (uint32_t pages = 12; pages < 30; pages += 9) {
        flat_t e;

        flat_make(&e, f->lar, 20700 + pages, pages, 1, 5000);
        assert_int_equal(flat_save(&e), pages > 20 ? pages : 0);
        flat_load(&e, 0);
        flat_free(&e);
    }
    assert_int_equal(stats_of(f->lar).dram_leased_chunks, 0);
}

/* ---- threads of the engine's ---- */

enum { TEAM_MOST = 20 }; /* more than share the work */

typedef struct call {
    void (*work)(void *);
    void *arg;
} call_t;

static uint32_t team_size, team_calls;

static void *work_main(void *arg)
{
    call_t *call = arg;

    call->work(call->arg);
    return NULL;
}

/* As OpenMP calls it: by the caller and team_size - 1 others. 0: by nobody. */
static void team(void (*work)(void *), void *arg, unsigned threads,
                 unsigned flags)
{
    pthread_t thread[TEAM_MOST];
    call_t call = {work, arg};

    assert_int_equal(threads + flags, 0);
    team_calls++;
    for (uint32_t i = 1; i < team_size; i++) {
        assert_int_equal(pthread_create(&thread[i], NULL, work_main, &call), 0);
    }
    if (team_size > 0) {
        work(arg);
    }
    for (uint32_t i = 1; i < team_size; i++) {
        pthread_join(thread[i], NULL);
    }
}

static larder_status_t save_by_team(flat_t *e, uint32_t timeout_ms)
{
    larder_rooms_t *rooms = NULL;

    assert_status(larder_prefix_reserve(e->space, e->layout, &e->move, &rooms),
                  LARDER_OK);
    team_calls = 0;
    e->move.timeout_ms = timeout_ms;
    larder_status_t st = larder_prefix_fill_by(&rooms, &e->move, team);
    assert_null(rooms);
    e->move.timeout_ms = 0;
    return st;
}

/* However many there are, every shard is copied once and as it is. */
static void test_team(void **state)
{
    const uint32_t sizes[] = {0, 1, 2, 3, TEAM_MOST};
    fix_t *f = fix(state);

    fix_open_dram(f, "dram=64M");
    for (uint32_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        flat_t e;

        team_size = sizes[i];
        flat_make(&e, f->lar, 20800 + i, 40, 2, 40000 + i);
        assert_status(save_by_team(&e, 0), LARDER_OK);
        assert_int_equal(team_calls, 1);
        assert_int_equal(e.move.shards, e.pages);
        assert_int_equal(e.move.bytes, e.pages * e.bytes);
        flat_load(&e, 0);
        flat_free(&e);
    }
    assert_int_equal(stats_of(f->lar).dram_leased_chunks, 0);
}

/* What is little is copied by the caller. */
static void test_team_little(void **state)
{
    fix_t *f = fix(state);
    flat_t e;

    fix_open_dram(f, "dram=64M");
    team_size = 3;
    flat_make(&e, f->lar, 20900, 16, 1, 60000);
    assert_status(save_by_team(&e, 0), LARDER_OK);
    assert_int_equal(team_calls, 0);
    assert_int_equal(e.move.shards, 16);
    flat_load(&e, 0);
    flat_free(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ONE(test_many, "plain"),     ONE(test_no_room, "plain"),
        ONE(test_too_long, "plain"), ONE(test_lease_limit, "plain"),
        ONE(test_team, "plain"),     ONE(test_team_little, "plain"),
    };

    return cmocka_run_group_tests_name("client/prefix_rooms_many", tests, NULL,
                                       NULL);
}
