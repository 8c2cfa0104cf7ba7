/*
 * Loads layer by layer, on a driver that does everything as late as it may and
 * in an order of its own. Beside the load an engine waits for each layer and
 * reads it at once, in its own stream: what it reads must be there. Then every
 * call of the driver fails in turn, deadlines come in the middle, and nobody
 * loads at all: who waits is told, nothing hangs, and nothing is under way
 * afterwards. LARDER_SEED repeats a run.
 */
#include <pthread.h>

#include "base/mem.h"
#include "gpu/layers.h"
#include "gpu/move_rig.h"

enum {
    LAYERS_MOST = 12,
    ILLEGAL_ADDRESS = 700,
    PATIENCE_MS = 60000,
};

static uint64_t seed;

static int setup(void **state)
{
    (void)state;
    seed = real_seed();
    rig_load();
    return 0;
}

/* ---- a case ---- */

/* Shards of some layers each, and what their parts are. */
typedef struct scene {
    world_t *w;
    larder_layout_t *layout;
    larder_layers_t *layers;
    uint32_t layer_count;
    uint64_t page[LAYERS_MOST]; /* bytes of a layer's pages, in one shard */
    uint64_t bytes;             /* of a shard */
    uint8_t *read;              /* registered: what the engine has read */
    size_t read_bytes, read_used;
    larder_status_t waited; /* the first that was not OK */
    uint32_t reached;       /* layers that the engine came to */
} scene_t;

/* One group, a block in a chunk. */
static larder_layout_t *layout_of(scene_t *s)
{
    larder_layer_t layers[LAYERS_MOST];
    larder_region_t region = {"memory", (void *)(uintptr_t)s->w->device,
                              s->w->bytes};
    larder_group_t group = {.rule = LARDER_RULE_ALL,
                            .block_tokens = 16,
                            .layers = layers,
                            .layer_count = s->layer_count};
    larder_layout_params_t p = {.field_mask = LARDER_LAYOUT_GPU,
                                .chunk_tokens = 16,
                                .block_count = 1,
                                .regions = &region,
                                .region_count = 1,
                                .groups = &group,
                                .group_count = 1,
                                .gpu = s->w->gpu};
    larder_layout_t *layout = NULL;

    for (uint32_t i = 0; i < s->layer_count; i++) {
        layers[i] =
            (larder_layer_t){"layer", 0, s->bytes, s->page[i], s->page[i]};
        s->bytes += s->page[i];
    }
    assert_gpu(larder_layout_create(&p, &layout), LARDER_OK);
    return layout;
}

static void scene_make(scene_t *s, world_t *w, size_t bytes, uint32_t shards,
                       size_t grain)
{
    uint64_t sum = 0;

    *s = (scene_t){.w = w, .layer_count = 1 + (uint32_t)below(w, LAYERS_MOST)};
    for (uint32_t i = 0; i < s->layer_count; i++) {
        s->page[i] =
            grain * (1 + below(w, bytes / shards / s->layer_count / grain + 1));
        sum += s->page[i];
    }
    /* The kernel's units: a shard is whole ones, though its parts are not. */
    s->page[0] += grain == 8 ? sum % 16 : 0;
    s->layout = layout_of(s);
    assert_gpu(larder_layers_create(s->layout,
                                    1 + (uint32_t)below(w, LAYERS_MOST + 2),
                                    &s->layers),
               LARDER_OK);
    assert_true(s->layers->part_count <= s->layer_count);
    assert_int_equal(ldr_layers_bytes(s->layers), s->bytes);
    s->read_bytes = w->bytes;
    s->read = map(s->read_bytes, PROT_READ | PROT_WRITE);
    rig_in(&w->engine);
    assert_int_equal(w->engine.cuda->host_register(s->read, s->read_bytes,
                                                   LDR_CU_REGISTER_MAPPED),
                     0);
    rig_out(&w->engine);
}

static void scene_free(scene_t *s)
{
    rig_engine_sync(&s->w->engine);
    rig_in(&s->w->engine);
    s->w->engine.cuda->host_unregister(s->read);
    rig_out(&s->w->engine);
    munmap(s->read, s->read_bytes);
    larder_layers_destroy(&s->layers);
    larder_layout_destroy(&s->layout);
}

/* As make_case(), but all shards have the layers' bytes. */
static void fill_scene(scene_t *s, const shape_t *shape, uint32_t shards)
{
    world_t *w = s->w;

    w->shard_count = w->iov_count = 0;
    w->device_used = 16 * below(w, 10);
    w->arena_used = 16 * below(w, 10);
    while (w->shard_count < shards && add_shard(w, shape, s->bytes, true)) {
    }
    assert_true(w->shard_count > 0);
    w->device_used += 64;
    w->arena_used += 64;
    fill(w, w->arena, w->arena_used);
    memcpy(w->arena_model, w->arena, w->arena_used);
    set_pages(w, true, shape->after);
    model_move(w, true);
    s->waited = LARDER_OK;
    s->reached = 0;
    s->read_used = 0;
}

/* ---- the engine ---- */

/* Goes through the parts of a shard's pages that are a layer's: reads them in
 * the engine's stream, or compares what was read with the model. */
static void layer_of(scene_t *s, uint32_t shard, uint32_t layer, bool check)
{
    world_t *w = s->w;
    const ldr_gpu_shard_t *k = &w->shards[shard];
    uint64_t at = 0, begin = 0;

    for (uint32_t i = 0; i < layer; i++) {
        begin += s->page[i];
    }
    for (uint32_t i = 0; i < k->page_count; at += k->pages[i++].iov_len) {
        const struct iovec *page = &k->pages[i];
        uint64_t from = ldr_max64(at, begin) - at;
        uint64_t end = begin + s->page[layer];

        if (at >= end || at + page->iov_len <= begin || is_nowhere(w, page)) {
            continue;
        }
        uint64_t n = ldr_min64(page->iov_len, end - at) - from;
        if (check) {
            assert_memory_equal(s->read + s->read_used,
                                page_model(w, page) + from, n);
        } else {
            w->engine.cuda->to_host(s->read + s->read_used,
                                    (uintptr_t)page->iov_base + from, n,
                                    w->engine.stream);
        }
        s->read_used += n;
    }
}

/* The engine's thread: layer after layer, up to one that does not come. */
static void *compute(void *arg)
{
    scene_t *s = arg;
    rig_engine_t *e = &s->w->engine;

    for (uint32_t i = 0; i < s->layer_count; i++) {
        s->waited = larder_layers_wait(s->layers, i, e->stream, PATIENCE_MS);
        if (s->waited != LARDER_OK) {
            return NULL;
        }
        ldr_cu_context_t was;
        bool in = e->cuda->push(e->context) == 0; /* it may be what fails */
        for (uint32_t k = 0; k < s->w->shard_count && in; k++) {
            layer_of(s, k, i, false);
        }
        if (in) {
            e->cuda->pop(&was);
        }
        s->reached++;
    }
    return NULL;
}

/* What the engine has read is what it would have computed with. */
static void check_read(scene_t *s)
{
    rig_engine_sync(&s->w->engine);
    s->read_used = 0;
    for (uint32_t i = 0; i < s->reached; i++) {
        for (uint32_t k = 0; k < s->w->shard_count; k++) {
            layer_of(s, k, i, true);
        }
    }
}

static larder_status_t load(scene_t *s, const shape_t *shape, int forced,
                            uint64_t deadline_ns)
{
    ldr_gpu_copy_t copy = copy_of(s->w, shape, true);
    pthread_t engine;

    copy.layers = s->layers;
    copy.deadline_ns = deadline_ns;
    copy.forced = forced >= 0;
    copy.way = copy.forced ? (ldr_gpu_way_t)forced : 0;
    larder_layers_begin(s->layers);
    assert_int_equal(pthread_create(&engine, NULL, compute, s), 0);
    larder_status_t st = ldr_gpu_move(s->w->gpu, &copy);
    larder_layers_end(s->layers, st);
    pthread_join(engine, NULL);
    assert_int_equal(si.standin_touching((uintptr_t)s->w->arena, s->w->bytes),
                     0);
    return st;
}

/* ---- what is read is there ---- */

static shape_t any_shape(world_t *w)
{
    return (shape_t){
        .page = (size_t)64 << below(w, 12),
        .part =
            below(w, 2) == 0 ? (size_t)64 << 10 : (size_t)256 << below(w, 8),
        .odd = below(w, 8) == 0 ? (size_t)1 << below(w, 4) : 0,
        .holes = below(w, 4) == 0,
        .after = below(w, 2) == 0,
    };
}

static void one_case(world_t *w)
{
    shape_t shape = any_shape(w);
    size_t least = shape.page < shape.part ? shape.page : shape.part;
    size_t most = ldr_min64(least * 4000, w->bytes / 3);
    uint32_t shards = 1 + (uint32_t)below(w, 12);
    size_t grain = shape.odd > 0 ? shape.odd : below(w, 4) == 0 ? 8 : 16;
    scene_t s;

    scene_make(&s, w, grain * 16 + below(w, most), shards, grain);
    fill_scene(&s, &shape, shards);
    if (below(w, 8) > 0) {
        ldr_gpu_register(w->gpu, w->arena, w->bytes);
    }
    assert_gpu(load(&s, &shape, (int)below(w, 2 * LDR_GPU_WAYS) - LDR_GPU_WAYS,
                    UINT64_MAX),
               LARDER_OK);
    assert_gpu(s.waited, LARDER_OK);
    assert_int_equal(s.reached, s.layer_count);
    assert_int_equal(s.layers->queued, s.layers->part_count);
    check_read(&s);
    check_quiet(w);
    check_case(w);
    ldr_gpu_unregister(w->gpu, w->arena, w->bytes);
    scene_free(&s);
}

static void test_any(void **state)
{
    (void)state;
    run_cases(seed, true,
              real_number("LARDER_CASES", REAL_SANITIZED ? 20 : 120), one_case,
              NULL);
}

static void test_without_kernel(void **state)
{
    (void)state;
    run_cases(seed, false, REAL_SANITIZED ? 8 : 25, one_case, NULL);
}

/* ---- the first layers come first ---- */

typedef struct order {
    const larder_layers_t *layers;
    uint32_t copies[LAYERS_MOST + 1]; /* by parts that were marked before */
} order_t;

static void note_copy(void *arg, uint64_t call, const char *name)
{
    order_t *o = arg;

    (void)call;
    if (strcmp(name, "cuMemcpyHtoDAsync") == 0) {
        o->copies[__atomic_load_n(&o->layers->queued, __ATOMIC_RELAXED)]++;
    }
}

/* A part is marked when its bytes are on their way, not the whole's; the
 * pieces are as large as ever. */
static void test_order(void **state)
{
    const shape_t shape = {.page = 16384, .part = (size_t)1 << 20};
    larder_gpu_t *gpu = NULL;
    scene_t s;

    (void)state;
    assert_gpu(rig_gpu_open(&gpu), LARDER_OK);
    world_t *w = world_make(gpu, (size_t)48 << 20, seed);
    s = (scene_t){.w = w, .layer_count = 8};
    for (uint32_t i = 0; i < s.layer_count; i++) {
        s.page[i] = (size_t)1 << 20;
    }
    s.layout = layout_of(&s);
    assert_gpu(larder_layers_create(s.layout, 4, &s.layers), LARDER_OK);
    s.read_bytes = w->bytes;
    s.read = map(s.read_bytes, PROT_READ | PROT_WRITE);
    rig_in(&w->engine);
    w->engine.cuda->host_register(s.read, s.read_bytes, LDR_CU_REGISTER_MAPPED);
    rig_out(&w->engine);
    fill_scene(&s, &shape, 4);
    ldr_gpu_register(gpu, w->arena, w->bytes);
    order_t order = {.layers = s.layers};
    si.standin_hook(note_copy, &order);
    assert_gpu(load(&s, &shape, -1, UINT64_MAX), LARDER_OK);
    si.standin_hook(NULL, NULL);
    check_read(&s);
    check_case(w);
    for (uint32_t i = 0; i < 4; i++) { /* copies of every part, in turn */
        assert_true(order.copies[i] > 0);
        assert_true(order.copies[i] <= 40);
    }
    assert_int_equal(order.copies[4], 0);
    ldr_gpu_unregister(gpu, w->arena, w->bytes);
    scene_free(&s);
    world_free(w);
    larder_gpu_close(&gpu);
}

/* ---- failures ---- */

/* Every call of the driver fails once, also the engine's own waits. */
static void fail_calls(world_t *w, int way, int how)
{
    bool failed = true;

    for (uint64_t n = 1; failed; n += 1 + n / 24) {
        shape_t shape = {.page = 1024, .part = 16384, .after = n % 2 == 0};
        scene_t s;

        scene_make(&s, w, 300000, 4, 16);
        fill_scene(&s, &shape, 4);
        ldr_gpu_register(w->gpu, w->arena, w->bytes);
        si.standin_seed(seed + n);
        si.standin_fail_at(n, ILLEGAL_ADDRESS, how);
        larder_status_t st = load(&s, &shape, way, UINT64_MAX);
        failed = si.standin_failed() != NULL;
        si.standin_fail_at(0, 0, 0);
        assert_true(failed || (st == LARDER_OK && s.waited == LARDER_OK));
        if (st == LARDER_OK && s.waited == LARDER_OK && !failed) {
            check_read(&s);
            check_case(w);
        } else if (s.waited == LARDER_OK) { /* its end says so */
            assert_int_equal(s.reached, s.layer_count);
        }
        if (st != LARDER_OK && how == STANDIN_ONCE) { /* and again */
            fill_scene(&s, &shape, 4);
            assert_gpu(load(&s, &shape, way, UINT64_MAX), LARDER_OK);
            assert_gpu(s.waited, LARDER_OK);
            check_read(&s);
            check_case(w);
        }
        rig_engine_sync(&w->engine);
        check_quiet(w);
        ldr_gpu_unregister(w->gpu, w->arena, w->bytes);
        scene_free(&s);
        w->gpu->broken = false;
    }
}

static void test_driver_fails(void **state)
{
    larder_gpu_t *gpu = NULL;

    (void)state;
    assert_gpu(rig_gpu_open(&gpu), LARDER_OK);
    world_t *w = world_make(gpu, (size_t)4 << 20, seed);
    for (int way = 0; way < LDR_GPU_WAYS; way++) {
        fail_calls(w, way, STANDIN_ONCE);
    }
    world_free(w);
    larder_gpu_close(&gpu);
    assert_no_errors();
}

/* In the middle: what was marked before may be used, and counts for nothing. */
static void test_deadline(void **state)
{
    const shape_t shape = {.page = 4096, .part = 65536};
    larder_gpu_t *gpu = NULL;
    uint32_t late = 0;

    (void)state;
    assert_gpu(rig_gpu_open(&gpu), LARDER_OK);
    world_t *w = world_make(gpu, (size_t)24 << 20, seed);
    for (uint64_t i = 0; i < 12; i++) {
        scene_t s;

        scene_make(&s, w, (size_t)12 << 20, 6, 4096);
        fill_scene(&s, &shape, 6);
        ldr_gpu_register(gpu, w->arena, w->bytes);
        si.standin_seed(seed + i);
        larder_status_t st =
            load(&s, &shape, -1,
                 ldr_now_ns(&ldr_clock_real) + (i == 0 ? 0 : i * 300000));
        assert_true(st == LARDER_OK || st == LARDER_E_DEADLINE);
        late += st == LARDER_E_DEADLINE;
        assert_true(s.waited == st || s.reached == s.layer_count);
        rig_engine_sync(&w->engine);
        check_quiet(w);
        ldr_gpu_unregister(gpu, w->arena, w->bytes);
        scene_free(&s);
    }
    assert_true(late > 0);
    world_free(w);
    larder_gpu_close(&gpu);
}

/* Nobody loads: who waits is told when its time is over. */
static void test_nobody(void **state)
{
    larder_gpu_t *gpu = NULL;
    larder_layers_t *none = NULL;
    scene_t s;

    (void)state;
    assert_gpu(rig_gpu_open(&gpu), LARDER_OK);
    world_t *w = world_make(gpu, (size_t)1 << 20, seed);
    scene_make(&s, w, 10000, 1, 16);
    assert_gpu(larder_layers_wait(s.layers, 0, w->engine.stream, PATIENCE_MS),
               LARDER_OK); /* nothing was begun */
    larder_layers_begin(s.layers);
    assert_gpu(larder_layers_wait(s.layers, 0, w->engine.stream, 20),
               LARDER_E_DEADLINE);
    larder_layers_end(s.layers, LARDER_E_OFFLINE);
    assert_gpu(larder_layers_wait(s.layers, 0, w->engine.stream, PATIENCE_MS),
               LARDER_E_OFFLINE);
    assert_gpu(larder_layers_wait(s.layers, s.layer_count, w->engine.stream, 1),
               LARDER_E_INVALID);
    assert_gpu(larder_layers_wait(NULL, 0, w->engine.stream, 1),
               LARDER_E_INVALID);
    assert_gpu(larder_layers_create(s.layout, 0, &none), LARDER_E_INVALID);
    assert_gpu(larder_layers_create(NULL, 1, &none), LARDER_E_INVALID);
    assert_null(none);
    larder_layers_destroy(&none);
    scene_free(&s);
    world_free(w);
    larder_gpu_close(&gpu);
    assert_no_errors();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any),      cmocka_unit_test(test_without_kernel),
        cmocka_unit_test(test_order),    cmocka_unit_test(test_driver_fails),
        cmocka_unit_test(test_deadline), cmocka_unit_test(test_nobody),
    };

    return cmocka_run_group_tests(tests, setup, NULL);
}
