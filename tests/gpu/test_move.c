/*
 * Copies between a device and the host against a model, on a driver that does
 * everything as late as it may and in an order of its own: all ways, both
 * directions, shards of any shape, several threads, an engine that is not done
 * with its pages yet, deadlines that come in the middle. LARDER_SEED repeats a
 * run.
 */
#include <pthread.h>

#include "gpu/move_rig.h"

enum {
    THREADS = 8, /* more than there are copiers */
    STEPS = REAL_SANITIZED ? 2 : 5,
};

static uint64_t seed;

static int setup(void **state)
{
    (void)state;
    seed = real_seed();
    rig_load();
    return 0;
}

/* ---- any copy ---- */

static size_t page_of(world_t *w)
{
    return (size_t)16 << below(w, 17); /* 16 bytes to 1 MiB */
}

static shape_t any_shape(world_t *w)
{
    shape_t s = {
        .page = below(w, 3) == 0 ? page_of(w) + 16 * below(w, 64) : page_of(w),
        .part = below(w, 2) == 0 ? (size_t)64 << 10 : page_of(w) * 4,
        .odd = below(w, 8) == 0 ? (size_t)1 << below(w, 4) : 0,
        .holes = below(w, 2) == 0,
        .apart = below(w, 2) == 0,
        .after = below(w, 2) == 0,
    };
    size_t least = s.page < s.part ? s.page : s.part;
    size_t most = ldr_min64(least * 8000, w->bytes * 2 / 3);

    s.page = ldr_min64(s.page, PAGE_MAX);
    s.bytes = 1 + below(w, below(w, 4) == 0 ? most : most / 20 + 64);
    s.bytes = s.apart ? s.bytes / 4 + 1 : s.bytes; /* gaps need room too */
    if (s.odd > 0) {
        s.page += s.odd * below(w, 16);
        s.part += s.odd * below(w, 16);
    }
    return s;
}

/* Registers the arena, or a part of it, or nothing, as one or two. */
static void register_some(world_t *w, size_t *bytes)
{
    size_t half = 4096 * (1 + below(w, w->bytes / 4096 - 2));

    *bytes = below(w, 8) == 0 ? 0 : below(w, 8) == 0 ? half : w->bytes;
    if (*bytes > 0) {
        ldr_gpu_register(w->gpu, w->arena, half);
    }
    if (*bytes > half) {
        ldr_gpu_register(w->gpu, w->arena + half, *bytes - half);
    }
}

static void one_case(world_t *w, const shape_t *shape, int forced)
{
    bool load = below(w, 2) == 0;
    size_t registered;

    make_case(w, shape, load);
    ldr_gpu_copy_t copy = copy_of(w, shape, load);
    copy.forced = forced >= 0;
    copy.way = copy.forced ? (ldr_gpu_way_t)forced : 0;
    register_some(w, &registered);
    assert_gpu(ldr_gpu_move(w->gpu, &copy), LARDER_OK);
    assert_int_equal(si.standin_mode(), 0);
    check_quiet(w);
    check_case(w);
    ldr_gpu_unregister(w->gpu, w->arena, w->bytes);
    assert_no_errors();
}

static larder_gpu_stats_t stats_of(larder_gpu_t *gpu)
{
    larder_gpu_stats_t s = {.struct_bytes = sizeof(s)};

    assert_gpu(larder_gpu_stats(gpu, &s), LARDER_OK);
    return s;
}

static uint64_t batches_before;

static void any_case(world_t *w)
{
    shape_t shape = any_shape(w);
    standin_counts_t counts;

    if (batches_before == 0) { /* those of the opening */
        si.standin_counts(&counts);
        batches_before = counts.batches;
    }
    w->gpu->batch = below(w, 2) == 0;
    one_case(w, &shape, (int)below(w, 2 * LDR_GPU_WAYS) - LDR_GPU_WAYS);
}

static void all_ways(larder_gpu_t *gpu, bool kernel, uint64_t cases)
{
    larder_gpu_stats_t s = stats_of(gpu);
    standin_counts_t counts;

    si.standin_counts(&counts);
    assert_int_equal(s.failures, 0);
    assert_int_equal(s.registered_bytes, 0);
    assert_true(batches_before > 0 && counts.batches > batches_before);
    batches_before = 0;
    assert_int_equal(s.staged + s.direct + s.bounced + s.plain, cases);
    if (!kernel) {
        assert_int_equal(s.plain, cases);
    } else if (cases >= 100) { /* one in eight is forced to go each way */
        assert_true(s.staged > 0 && s.direct > 0 && s.bounced > 0);
    }
    assert_true(s.plain > 0 && s.loaded_bytes > 0 && s.saved_bytes > 0);
}

static void test_any(void **state)
{
    (void)state;
    run_cases(seed, true,
              real_number("LARDER_CASES", REAL_SANITIZED ? 25 : 250), any_case,
              all_ways);
}

static void test_without_kernel(void **state)
{
    (void)state;
    run_cases(seed, false, REAL_SANITIZED ? 12 : 40, any_case, all_ways);
}

/* ---- which way ---- */

static void check_way(world_t *w, shape_t shape, bool registered,
                      ldr_gpu_way_t way)
{
    larder_gpu_stats_t a = stats_of(w->gpu);

    if (registered) {
        ldr_gpu_register(w->gpu, w->arena, w->bytes);
    }
    for (int load = 0; load < 2; load++) {
        make_case(w, &shape, load);
        ldr_gpu_copy_t copy = copy_of(w, &shape, load);
        assert_gpu(ldr_gpu_move(w->gpu, &copy), LARDER_OK);
        check_case(w);
    }
    larder_gpu_stats_t b = stats_of(w->gpu);
    uint64_t n[] = {b.staged - a.staged, b.direct - a.direct,
                    b.bounced - a.bounced, b.plain - a.plain};
    for (int i = 0; i < LDR_GPU_WAYS; i++) {
        assert_int_equal(n[i], i == (int)way ? 2 : 0);
    }
    ldr_gpu_unregister(w->gpu, w->arena, w->bytes);
    assert_no_errors();
}

static void test_ways(void **state)
{
    const shape_t large = {.bytes = 3 << 20, .page = 65536, .part = 1 << 20};
    const shape_t small = {.bytes = 3 << 20, .page = 65536, .part = 65536};
    const shape_t odd = {
        .bytes = 1 << 20, .page = 65537, .part = 65536, .odd = 1};
    larder_gpu_t *gpu = NULL;

    (void)state;
    assert_gpu(rig_gpu_open(&gpu), LARDER_OK);
    world_t *w = world_make(gpu, (size_t)8 << 20, seed);
    check_way(w, large, true, LDR_GPU_STAGED);
    check_way(w, small, true, LDR_GPU_DIRECT);
    check_way(w, large, false, LDR_GPU_BOUNCE);
    check_way(w, odd, true, LDR_GPU_PLAIN);
    check_way(w, odd, false, LDR_GPU_PLAIN);
    world_free(w);
    larder_gpu_close(&gpu);
}

static void test_refused(void **state)
{
    shape_t shape = {.bytes = 4096, .page = 256, .part = 4096};
    larder_gpu_t *gpu = NULL;
    standin_counts_t before, after;

    (void)state;
    assert_gpu(rig_gpu_open(&gpu), LARDER_OK);
    world_t *w = world_make(gpu, (size_t)8 << 20, seed);
    make_case(w, &shape, true);
    ldr_gpu_copy_t copy = copy_of(w, &shape, true);
    si.standin_counts(&before);
    copy.count = LDR_GPU_SHARDS_MAX + 1;
    assert_gpu(ldr_gpu_move(gpu, &copy), LARDER_E_INVALID);
    copy.count = 1;
    w->rows[0].bytes += 16; /* not the same here and there */
    assert_gpu(ldr_gpu_move(gpu, &copy), LARDER_E_SIZE);
    w->rows[0].bytes -= 16;
    w->shards[0].page_count = w->shards[0].host_count = 0;
    assert_gpu(ldr_gpu_move(gpu, &copy), LARDER_E_SIZE);
    copy.count = 0;
    assert_gpu(ldr_gpu_move(gpu, &copy), LARDER_OK);
    si.standin_counts(&after);
    assert_int_equal(after.pending + after.copies + after.kernels,
                     before.pending + before.copies + before.kernels);
    world_free(w);
    larder_gpu_close(&gpu);
    assert_no_errors();
}

/* What is wrong with a shard's pages is found when those before it move: pages
 * that no kernel can move are moved by another way, all of them; lists of
 * different lengths end it. */
static void test_found_late(void **state)
{
    enum { COUNT = 4, BYTES = 3 << 20 };
    ldr_page_rows_t page[COUNT][2];
    struct iovec host[COUNT];
    ldr_gpu_shard_t shards[COUNT];
    larder_gpu_t *gpu = NULL;

    (void)state;
    assert_gpu(rig_gpu_open(&gpu), LARDER_OK);
    world_t *w = world_make(gpu, (size_t)16 << 20, seed);
    uint8_t *seen = si.standin_see(w->device, w->bytes);
    ldr_gpu_register(gpu, w->arena, w->bytes);
    for (int round = 0; round < 4 * COUNT; round++) {
        bool load = round % 2 == 0, size = round / 2 % 2 == 0;
        int wrong = round / 4;
        larder_gpu_stats_t a = stats_of(gpu);

        for (int i = 0; i < COUNT; i++) {
            size_t at = (size_t)i * (BYTES + 4096);
            uint8_t *there = (uint8_t *)(uintptr_t)w->device + at;
            size_t first = i != wrong ? BYTES : size ? BYTES - 16 : 7;

            host[i] = (struct iovec){w->arena + at, BYTES};
            page[i][0] = (ldr_page_rows_t){there, first, first, 1};
            page[i][1] = (ldr_page_rows_t){there + first, BYTES - first, 0, 1};
            shards[i] =
                (ldr_gpu_shard_t){page[i], first == 7 ? 2 : 1, &host[i], 1, 0};
        }
        fill(w, load ? w->arena : seen, w->bytes);
        memset(load ? seen : w->arena, 0, w->bytes);
        ldr_gpu_copy_t copy = {.load = load,
                               .shards = shards,
                               .count = COUNT,
                               .deadline_ns = UINT64_MAX};
        assert_gpu(ldr_gpu_move(gpu, &copy), size ? LARDER_E_SIZE : LARDER_OK);
        check_quiet(w);
        for (int i = 0; i < COUNT && !size; i++) {
            assert_memory_equal(seen + (size_t)i * (BYTES + 4096),
                                host[i].iov_base, BYTES);
            assert_int_equal(shards[i].crc,
                             ldr_crc32c(0, host[i].iov_base, BYTES));
        }
        larder_gpu_stats_t b = stats_of(gpu);
        assert_int_equal(b.plain - a.plain, !size);
    }
    ldr_gpu_unregister(gpu, w->arena, w->bytes);
    world_free(w);
    larder_gpu_close(&gpu);
    assert_no_errors();
}

/* As many shards as there may be, and they end anywhere in the pieces. */
static void test_many_shards(void **state)
{
    static ldr_gpu_shard_t shards[LDR_GPU_SHARDS_MAX];
    static struct iovec iov[LDR_GPU_SHARDS_MAX];
    static ldr_page_rows_t rows[LDR_GPU_SHARDS_MAX];
    larder_gpu_t *gpu = NULL;

    (void)state;
    assert_gpu(rig_gpu_open(&gpu), LARDER_OK);
    world_t *w = world_make(gpu, (size_t)8 << 20, seed);
    uint8_t *seen = si.standin_see(w->device, w->bytes);
    size_t at = 0;
    fill(w, seen, w->bytes);
    for (uint32_t i = 0; i < LDR_GPU_SHARDS_MAX; i++) {
        size_t n = 16 * (1 + below(w, 60));

        rows[i] =
            (ldr_page_rows_t){(uint8_t *)(uintptr_t)w->device + at, n, n, 1};
        iov[i] = (struct iovec){w->arena + at, n};
        shards[i] = (ldr_gpu_shard_t){&rows[i], 1, &iov[i], 1, 0};
        at += n;
    }
    for (int way = LDR_GPU_STAGED; way < LDR_GPU_WAYS; way++) {
        ldr_gpu_copy_t copy = {.shards = shards,
                               .count = LDR_GPU_SHARDS_MAX,
                               .deadline_ns = UINT64_MAX,
                               .forced = true,
                               .way = (ldr_gpu_way_t)way};

        ldr_gpu_register(gpu, w->arena, w->bytes);
        memset(w->arena, 0, w->bytes);
        assert_gpu(ldr_gpu_move(gpu, &copy), LARDER_OK);
        assert_int_equal(memcmp(seen, w->arena, at), 0);
        for (uint32_t i = 0; i < LDR_GPU_SHARDS_MAX; i++) {
            assert_int_equal(shards[i].crc,
                             ldr_crc32c(0, iov[i].iov_base, iov[i].iov_len));
        }
        ldr_gpu_unregister(gpu, w->arena, w->bytes);
    }
    world_free(w);
    larder_gpu_close(&gpu);
    assert_no_errors();
}

/* ---- threads ---- */

typedef struct worker {
    pthread_t thread;
    world_t *world;
    uint64_t cases;
} worker_t;

static void *work(void *arg)
{
    worker_t *k = arg;

    for (uint64_t i = 0; i < k->cases; i++) {
        shape_t shape = any_shape(k->world);

        one_case(k->world, &shape,
                 (int)below(k->world, 2 * LDR_GPU_WAYS) - LDR_GPU_WAYS);
        stats_of(k->world->gpu);
    }
    return NULL;
}

static void test_threads(void **state)
{
    standin_counts_t before, after;
    worker_t workers[THREADS];
    larder_gpu_t *gpu = NULL;

    (void)state;
    si.standin_seed(seed);
    si.standin_counts(&before);
    assert_gpu(rig_gpu_open(&gpu), LARDER_OK);
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i].world = world_make(gpu, (size_t)4 << 20, seed + i);
        workers[i].cases = REAL_SANITIZED ? 6 : 30;
    }
    for (unsigned i = 0; i < THREADS; i++) {
        assert_int_equal(
            pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        world_free(workers[i].world);
    }
    larder_gpu_close(&gpu);
    si.standin_counts(&after);
    rig_assert_same(&before, &after);
    assert_no_errors();
}

/* ---- deadlines ---- */

/* The deadline comes in the middle: at the n-th call of the driver. */
typedef struct ending {
    ldr_gpu_copy_t *copy;
    uint64_t left;
} ending_t;

static void end_it(void *arg, uint64_t call, const char *name)
{
    ending_t *e = arg;

    (void)call;
    (void)name;
    if (e->left > 0 && --e->left == 0) {
        e->copy->deadline_ns = 1;
    }
}

static void deadlines(world_t *w, const shape_t *shape, int way)
{
    larder_status_t st = LARDER_E_DEADLINE;
    uint32_t late = 0;

    for (uint64_t n = 1; st != LARDER_OK; n += 1 + below(w, 1 + n / STEPS)) {
        bool load = below(w, 2) == 0;

        si.standin_seed(seed + n);
        make_case(w, shape, load);
        ldr_gpu_copy_t copy = copy_of(w, shape, load);
        ending_t ending = {&copy, n};

        copy.forced = true;
        copy.way = (ldr_gpu_way_t)way;
        si.standin_hook(end_it, &ending);
        st = ldr_gpu_move(w->gpu, &copy);
        si.standin_hook(NULL, NULL);
        if (shape->after) { /* the engine's own work goes on */
            assert_int_equal(si.standin_touching((uintptr_t)w->arena, w->bytes),
                             0);
            rig_engine_sync(&w->engine);
        }
        check_quiet(w);
        if (st == LARDER_OK) {
            check_case(w);
            st = ending.left > 0 ? LARDER_OK : LARDER_E_DEADLINE;
        } else {
            assert_gpu(st, LARDER_E_DEADLINE);
            assert_true(larder_last_error()[0] != 0);
            late++;
        }
        assert_true(n < 100000);
    }
    assert_true(late > 3);
}

static void test_deadlines(void **state)
{
    standin_counts_t before, after;
    shape_t shape = {.bytes = 600000, .page = 16, .part = 4096};
    larder_gpu_t *gpu = NULL;

    (void)state;
    si.standin_counts(&before);
    assert_gpu(rig_gpu_open(&gpu), LARDER_OK);
    world_t *w = world_make(gpu, (size_t)2 << 20, seed);
    ldr_gpu_register(gpu, w->arena, w->bytes);
    for (int way = 0; way < LDR_GPU_WAYS; way++) {
        shape.bytes = way == LDR_GPU_PLAIN ? 100000 : 300000;
        shape.page = way == LDR_GPU_PLAIN ? 1000 : 16;
        shape.part = way == LDR_GPU_PLAIN ? 350 : 4096;
        shape.odd = way == LDR_GPU_PLAIN ? 1 : 0;
        shape.after = false;
        deadlines(w, &shape, way);
        shape.after = true;
        deadlines(w, &shape, way);
    }
    /* And before it began. */
    ldr_gpu_copy_t copy = copy_of(w, &shape, true);
    copy.after = NULL;
    copy.deadline_ns = 0;
    assert_gpu(ldr_gpu_move(gpu, &copy), LARDER_E_DEADLINE);
    check_quiet(w);
    ldr_gpu_unregister(gpu, w->arena, w->bytes);
    world_free(w);
    larder_gpu_close(&gpu);
    si.standin_counts(&after);
    rig_assert_same(&before, &after);
}

/* ---- lists ---- */

static void test_lists(void **state)
{
    larder_gpu_t *gpu = NULL;
    ldr_gpu_list_t list[4];

    (void)state;
    assert_gpu(rig_gpu_open(&gpu), LARDER_OK);
    for (uint32_t i = 0; i < 4; i++) {
        list[i] = ldr_gpu_list_take(gpu, 100 + 10 * i);
        assert_non_null(list[i].rows);
        assert_int_equal(list[i].capacity, 100 + 10 * i);
        list[i].rows[99 + 10 * i].bytes = 1;
    }
    for (uint32_t i = 0; i < 4; i++) {
        ldr_gpu_list_give(gpu, list[i]); /* the smallest is not kept */
    }
    ldr_gpu_list_give(gpu, (ldr_gpu_list_t){NULL, 1000});
    ldr_gpu_list_t again = ldr_gpu_list_take(gpu, 121);
    assert_ptr_equal(again.rows, list[3].rows);
    assert_int_equal(again.capacity, 130);
    ldr_gpu_list_t fresh = ldr_gpu_list_take(gpu, 121);
    assert_int_equal(fresh.capacity, 121);
    ldr_gpu_list_give(gpu, fresh);
    ldr_gpu_list_give(gpu, again);
    larder_gpu_close(&gpu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any),
        cmocka_unit_test(test_without_kernel),
        cmocka_unit_test(test_ways),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_many_shards),
        cmocka_unit_test(test_found_late),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_deadlines),
        cmocka_unit_test(test_lists),
    };

    return cmocka_run_group_tests(tests, setup, NULL);
}
