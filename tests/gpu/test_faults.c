/*
 * Every call of the driver fails in turn: once, for good, or for good with all
 * that concerns the thread too; while memory is registered, copiers are made
 * and bytes are copied, by every way, and when the GPU is closed. Whatever
 * comes of it: a status, nothing under way, nothing lost, and no byte that is
 * taken for good and is not. LARDER_SEED repeats a run.
 */
#include "gpu/move_rig.h"

enum { ILLEGAL_ADDRESS = 700, OUT_OF_MEMORY = 2 };

static uint64_t seed;

static int setup(void **state)
{
    (void)state;
    seed = real_seed();
    rig_load();
    return 0;
}

/* Shown when a test fails. */
static char doing[200];

static int teardown(void **state)
{
    (void)state;
    print_message("%s\n", doing);
    si.standin_reset();
    si.nvrtc_standin_fail(NVRTC_NONE);
    return 0;
}

/* How a case goes: by which way, whereto. */
typedef struct course {
    int way; /* LDR_GPU_WAYS: without a kernel */
    bool load;
    int how, result;
} course_t;

static shape_t shape_of(const course_t *c)
{
    shape_t small = {.bytes = 90000, .page = 16, .part = 1024, .holes = true};
    shape_t plain = {.bytes = 9000, .page = 999, .part = 300, .odd = 1};

    return c->way < LDR_GPU_PLAIN ? small : plain;
}

static larder_status_t move(world_t *w, const course_t *c)
{
    shape_t shape = shape_of(c);
    ldr_gpu_copy_t copy = copy_of(w, &shape, c->load);

    w->gpu->batch = c->load != (c->how == STANDIN_ONCE); /* both, of each */
    copy.forced = true;
    copy.way = c->way == LDR_GPU_WAYS ? LDR_GPU_STAGED : (ldr_gpu_way_t)c->way;
    return ldr_gpu_move(w->gpu, &copy);
}

/* A copy that may fail; if it does not, it is right. */
static larder_status_t try_move(world_t *w, const course_t *c)
{
    shape_t shape = shape_of(c);
    uint64_t n = 0;

    make_case(w, &shape, c->load);
    larder_status_t st = move(w, c);
    n = si.standin_touching((uintptr_t)w->arena, w->bytes) +
        si.standin_touching(w->device, w->bytes);
    assert_int_equal(n, 0);
    assert_int_equal(si.standin_depth(), 0);
    assert_no_errors();
    if (st == LARDER_OK) {
        check_case(w);
    } else {
        assert_true(st == LARDER_E_IO || st == LARDER_E_NO_MEMORY);
        assert_true(larder_last_error()[0] != 0);
    }
    return st;
}

/* The copier is made anew by the next copy. */
static void drop_copier(world_t *w)
{
    rig_in(&w->engine);
    ldr_gpu_copier_free(w->gpu, w->gpu->copiers[0]);
    rig_out(&w->engine);
}

/* Registers, makes a copier, copies and unregisters, with the n-th call of the
 * driver failing; false: there were fewer. */
static bool one_life(world_t *w, const course_t *c, uint64_t n)
{
    bool dead = c->how != STANDIN_ONCE;
    standin_counts_t before, after;

    si.standin_seed(seed + n);
    si.standin_counts(&before);
    si.standin_fail_at(n, c->result, c->how);
    ldr_gpu_register(w->gpu, w->arena, w->bytes);
    larder_status_t st = try_move(w, c);
    bool failed = si.standin_failed() != NULL;
    assert_true(failed || st == LARDER_OK);
    st = try_move(w, c);
    if (failed && dead) { /* nothing goes any more */
        assert_int_not_equal(st, LARDER_OK);
    } else if (failed) { /* it was that once */
        assert_gpu(st, LARDER_OK);
    }
    ldr_gpu_unregister(w->gpu, w->arena, w->bytes);
    failed = si.standin_failed() != NULL;
    snprintf(doing, sizeof(doing), "way %d, load %d, how %d, call %llu: %s",
             c->way, c->load, c->how, (unsigned long long)n,
             failed ? si.standin_failed() : "none");
    si.standin_fail_at(0, 0, 0);
    ldr_gpu_unregister(w->gpu, w->arena, w->bytes); /* what could not be */
    assert_true(dead || !w->gpu->broken);
    w->gpu->broken = false;
    drop_copier(w);
    assert_no_errors();
    si.standin_counts(&after);
    rig_assert_same(&before, &after);
    return failed;
}

static void all_lives(const course_t *c)
{
    larder_gpu_t *gpu = NULL;
    uint64_t n = 1;

    si.nvrtc_standin_fail(c->way == LDR_GPU_WAYS ? NVRTC_COMPILE : NVRTC_NONE);
    assert_gpu(rig_gpu_open(&gpu), LARDER_OK);
    world_t *w = world_make(gpu, (size_t)1 << 20, seed);
    assert_gpu(try_move(w, c), LARDER_OK);
    drop_copier(w);
    while (one_life(w, c, n)) {
        bool all = c->how == STANDIN_ONCE && !REAL_SANITIZED;

        n += all ? 1 + below(w, 1 + n / 60)
                 : 1 + below(w, 1 + n / (REAL_SANITIZED ? 3 : 8));
        assert_true(n < 100000);
    }
    assert_true(n > 20);
    world_free(w);
    larder_gpu_close(&gpu);
    assert_no_errors();
}

static void lives(int how, int result)
{
    for (int way = 0; way <= LDR_GPU_WAYS; way++) {
        for (int load = 0; load < 2; load++) {
            course_t c = {way, load, how, result};

            all_lives(&c);
        }
    }
}

static void test_once(void **state)
{
    (void)state;
    lives(STANDIN_ONCE, ILLEGAL_ADDRESS);
}

static void test_no_memory(void **state)
{
    course_t c = {LDR_GPU_BOUNCE, true, STANDIN_ONCE, OUT_OF_MEMORY};

    (void)state;
    all_lives(&c);
}

static void test_for_good(void **state)
{
    (void)state;
    lives(STANDIN_STICKY, ILLEGAL_ADDRESS);
}

static void test_all_of_it(void **state)
{
    (void)state;
    lives(STANDIN_TOTAL, ILLEGAL_ADDRESS);
}

/* ---- from opening to closing ---- */

static void test_closing(void **state)
{
    course_t c = {LDR_GPU_BOUNCE, true, STANDIN_ONCE, ILLEGAL_ADDRESS};
    world_t *w = world_make(NULL, (size_t)1 << 20, seed);
    const char *failed;
    uint64_t n = 1;

    (void)state;
    do {
        standin_counts_t before, after;

        si.standin_counts(&before);
        assert_gpu(rig_gpu_open(&w->gpu), LARDER_OK);
        assert_gpu(try_move(w, &c), LARDER_OK);
        si.standin_fail_at(n, c.result, n % 2 ? STANDIN_ONCE : STANDIN_STICKY);
        larder_gpu_close(&w->gpu);
        assert_null(w->gpu);
        failed = si.standin_failed();
        si.standin_fail_at(0, 0, 0);
        assert_no_errors();
        si.standin_counts(&after);
        if (n > 1) { /* without the context nothing can be given back */
            rig_assert_same(&before, &after);
        } else {
            assert_string_equal(failed, "cuCtxPushCurrent");
        }
        n += 1 + below(w, 3);
    } while (failed != NULL);
    assert_true(n > 20);
    world_free(w);
}

/* ---- memory that cannot be registered ---- */

static void test_not_registered(void **state)
{
    course_t c = {LDR_GPU_STAGED, true, STANDIN_ONCE, 0};
    larder_gpu_t *gpu = NULL;

    (void)state;
    assert_gpu(rig_gpu_open(&gpu), LARDER_OK);
    world_t *w = world_make(gpu, (size_t)1 << 20, seed);
    rig_said[0] = 0;
    rig_in(&w->engine); /* somebody else has */
    assert_int_equal(w->engine.cuda->host_register(w->arena + 8192, 4096,
                                                   LDR_CU_REGISTER_MAPPED),
                     0);
    rig_out(&w->engine);
    ldr_gpu_register(gpu, w->arena, w->bytes);
    assert_non_null(strstr(rig_said, "cannot be registered"));
    rig_said[0] = 0;
    ldr_gpu_register(gpu, w->arena, w->bytes);
    assert_string_equal(rig_said, ""); /* said once */
    assert_gpu(try_move(w, &c), LARDER_OK);
    larder_gpu_stats_t s = {.struct_bytes = sizeof(s)};
    assert_gpu(larder_gpu_stats(gpu, &s), LARDER_OK);
    assert_int_equal(s.bounced, 1);
    assert_int_equal(s.registered_bytes, 0);
    ldr_gpu_unregister(gpu, w->arena, w->bytes);
    rig_in(&w->engine);
    assert_int_equal(w->engine.cuda->host_unregister(w->arena + 8192), 0);
    rig_out(&w->engine);
    world_free(w);
    larder_gpu_close(&gpu);
    assert_no_errors();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_once, teardown),
        cmocka_unit_test_teardown(test_no_memory, teardown),
        cmocka_unit_test_teardown(test_for_good, teardown),
        cmocka_unit_test_teardown(test_all_of_it, teardown),
        cmocka_unit_test_teardown(test_closing, teardown),
        cmocka_unit_test_teardown(test_not_registered, teardown),
    };

    return cmocka_run_group_tests(tests, setup, NULL);
}
