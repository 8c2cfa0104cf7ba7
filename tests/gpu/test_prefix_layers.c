/*
 * Prefixes that are loaded layer by layer, by every transport: more shards than
 * a window of leases has, an engine that reads each layer as soon as it may, a
 * shard that is missing or corrupt, a daemon that is killed in the middle, and
 * a driver that fails.
 */
#include <pthread.h>

#include "gpu/prefix_memory.h"

#include "base/bytes.h"
#include "gpu/layers.h"

enum {
    CHUNKS = 150,
    TOKENS = 16, /* of a chunk, and of a block */
    LAYERS = 6,
    PAGE = 4096,
    BLOCKS = 2 * CHUNKS + 1, /* one half is saved, and loaded to the other */
    ILLEGAL_ADDRESS = 700,
    PATIENCE_MS = 60000,
};

typedef struct mini {
    larder_space_t *space;
    larder_layout_t *layout;
    larder_layers_t *layers;
    uint8_t *seen; /* the engine's memory */
    ldr_cu_ptr_t there;
    uint32_t from[CHUNKS], to[CHUNKS];
    larder_key_t keys[CHUNKS];
    uint8_t *read; /* what the engine got of the blocks it loaded */
    uint32_t begin, reached;
    larder_status_t waited;
} mini_t;

static size_t page_at(uint32_t layer, uint32_t block)
{
    return ((size_t)layer * BLOCKS + block) * PAGE;
}

static void mini_layout(mini_t *m)
{
    larder_layer_t layers[LAYERS];
    larder_region_t region = {"memory", (void *)(uintptr_t)m->there,
                              (size_t)LAYERS * BLOCKS * PAGE};
    larder_group_t group = {.rule = LARDER_RULE_ALL,
                            .block_tokens = TOKENS,
                            .layers = layers,
                            .layer_count = LAYERS};
    larder_layout_params_t p = {.field_mask = LARDER_LAYOUT_NULL_BLOCK |
                                              LARDER_LAYOUT_GPU,
                                .chunk_tokens = TOKENS,
                                .block_count = BLOCKS,
                                .regions = &region,
                                .region_count = 1,
                                .groups = &group,
                                .group_count = 1,
                                .gpu = prefix_gpu()};

    for (uint32_t i = 0; i < LAYERS; i++) {
        layers[i] = (larder_layer_t){"layer", 0, page_at(i, 0), PAGE, PAGE};
    }
    assert_status(larder_layout_create(&p, &m->layout), LARDER_OK);
}

static void mini_make(mini_t *m, fix_t *f, uint64_t seed, uint32_t parts)
{
    uint32_t tokens[CHUNKS * TOKENS];
    char name[32];
    larder_space_params_t p = {
        .field_mask = LARDER_SPACE_CHUNK_TOKENS,
        .descriptor = name,
        .descriptor_bytes = (size_t)snprintf(name, sizeof(name), "layers %llu",
                                             (unsigned long long)seed),
        .chunk_tokens = TOKENS,
    };
    void *there = NULL;
    size_t bytes = (size_t)LAYERS * BLOCKS * PAGE, count = 0;

    *m = (mini_t){0};
    m->seen = rig_memory(bytes, &there);
    m->there = (uintptr_t)there;
    content(seed, m->seen, bytes);
    mini_layout(m);
    assert_status(larder_layers_create(m->layout, parts, &m->layers),
                  LARDER_OK);
    for (uint32_t i = 0; i < CHUNKS; i++) {
        m->from[i] = 1 + i * 7 % CHUNKS;
        m->to[i] = 1 + CHUNKS + i * 11 % CHUNKS;
    }
    content(seed + 1, (uint8_t *)tokens, sizeof(tokens));
    assert_status(larder_space_open(f->lar, &p, &m->space), LARDER_OK);
    assert_status(larder_chain(m->space, tokens, CHUNKS * TOKENS, NULL, m->keys,
                               CHUNKS, &count),
                  LARDER_OK);
    m->read = ldr_alloc_blocks(bytes);
    rig_engine_t *e = &prefix_rig.engine;
    rig_in(e);
    assert_int_equal(
        e->cuda->host_register(m->read, bytes, LDR_CU_REGISTER_MAPPED), 0);
    rig_out(e);
}

static void mini_free(mini_t *m)
{
    rig_engine_t *e = &prefix_rig.engine;

    rig_engine_sync(e);
    rig_in(e);
    e->cuda->host_unregister(m->read);
    rig_out(e);
    ldr_free(m->read);
    larder_layers_destroy(&m->layers);
    larder_layout_destroy(&m->layout);
    larder_space_close(&m->space);
    rig_memory_free(m->seen);
}

/* Saves the chunks up to there. */
static void save(mini_t *m, uint32_t chunks)
{
    larder_table_t table = {m->from, 0, CHUNKS};
    larder_move_t move = {.struct_bytes = sizeof(larder_move_t),
                          .keys = m->keys,
                          .tables = &table,
                          .end = chunks * TOKENS};

    assert_status(larder_prefix_save(m->space, m->layout, &move), LARDER_OK);
    assert_int_equal(move.failed + move.skipped, 0);
}

/* The engine: waits for each layer, and reads it in its stream. */
static void *compute(void *arg)
{
    rig_engine_t *e = &prefix_rig.engine;
    mini_t *m = arg;

    for (uint32_t i = 0; i < LAYERS; i++, m->reached++) {
        ldr_cu_context_t was;

        m->waited = larder_layers_wait(m->layers, i, e->stream, PATIENCE_MS);
        if (m->waited != LARDER_OK) {
            return NULL;
        }
        bool in = e->cuda->push(e->context) == 0; /* it may be what fails */
        for (uint32_t k = m->begin; in && k < CHUNKS; k++) {
            e->cuda->to_host(m->read + page_at(i, m->to[k]),
                             m->there + page_at(i, m->to[k]), PAGE, e->stream);
        }
        if (in) {
            e->cuda->pop(&was);
        }
    }
    return NULL;
}

static larder_status_t load(mini_t *m, uint32_t begin, uint32_t timeout_ms,
                            larder_move_t *move)
{
    larder_table_t table = {m->to, 0, CHUNKS};
    size_t half = (size_t)CHUNKS * PAGE;
    pthread_t engine;

    for (uint32_t i = 0; i < LAYERS; i++) {
        memset(m->seen + page_at(i, 1 + CHUNKS), 0x77, half);
    }
    *move = (larder_move_t){.struct_bytes = sizeof(larder_move_t),
                            .keys = m->keys,
                            .tables = &table,
                            .begin = begin * TOKENS,
                            .end = CHUNKS * TOKENS,
                            .timeout_ms = timeout_ms};
    m->begin = begin;
    m->reached = 0;
    larder_layers_begin(m->layers);
    assert_int_equal(pthread_create(&engine, NULL, compute, m), 0);
    larder_status_t st =
        larder_prefix_load_layers(m->space, m->layout, move, m->layers);
    pthread_join(engine, NULL);
    rig_engine_sync(&prefix_rig.engine);
    assert_int_equal(
        si.standin_touching(m->there, (size_t)LAYERS * BLOCKS * PAGE), 0);
    return st;
}

/* All is where it belongs, and was when the engine read it. */
static void check(const mini_t *m)
{
    assert_status(m->waited, LARDER_OK);
    assert_int_equal(m->reached, LAYERS);
    for (uint32_t i = 0; i < LAYERS; i++) {
        for (uint32_t k = 0; k < CHUNKS; k++) {
            const uint8_t *is = m->seen + page_at(i, m->to[k]);

            if (k < m->begin) {
                assert_int_equal(is[0], 0x77);
                continue;
            }
            const uint8_t *want = m->seen + page_at(i, m->from[k]);
            assert_memory_equal(is, want, PAGE);
            assert_memory_equal(m->read + page_at(i, m->to[k]), want, PAGE);
        }
    }
}

/* By shared memory the arena is registered in the background. */
static void open_it(fix_t *f, const char *options)
{
    larder_gpu_stats_t s = {.struct_bytes = sizeof(s)};
    uint64_t end_ms = transport_now_ms() + PATIENCE_MS;

    fix_open_dram(f, options);
    assert_status(put_n(f->space, 1, 1000), LARDER_OK);
    do {
        transport_pause();
        assert_status(larder_gpu_stats(prefix_gpu(), &s), LARDER_OK);
    } while (transport_is("shm") && s.registered_bytes == 0 &&
             transport_now_ms() < end_ms);
}

/* ---- all well ---- */

static void test_whole(void **state)
{
    const uint32_t parts[] = {1, 2, 4, LAYERS, 100};
    fix_t *f = fix(state);
    larder_move_t move;
    mini_t m;

    prefix_gpu();
    open_it(f, "dram=64M");
    for (uint32_t i = 0; i < COUNT_OF(parts); i++) {
        mini_make(&m, f, 900 + 2 * i, parts[i]);
        assert_int_equal(m.layers->part_count, ldr_min64(parts[i], LAYERS));
        save(&m, CHUNKS);
        for (uint32_t begin = 0; begin < CHUNKS; begin += 67) {
            assert_status(load(&m, begin, 0, &move), LARDER_OK);
            check(&m);
            assert_int_equal(move.shards, CHUNKS - begin);
            assert_int_equal(move.failed, 0);
            /* Layer by layer where the GPU reads the arena. */
            bool shared = transport_is("shm") || transport_is("strict");
            assert_int_equal(m.layers->queued,
                             shared ? m.layers->part_count : 0);
        }
        mini_free(&m);
    }
    assert_no_errors();
}

/* ---- what is not there, or wrong ---- */

static void test_missing(void **state)
{
    fix_t *f = fix(state);
    larder_move_t move;
    mini_t m;

    prefix_gpu();
    open_it(f, "dram=64M");
    mini_make(&m, f, 1000, 3);
    save(&m, CHUNKS - 1);
    assert_status(load(&m, 0, 0, &move), LARDER_MISS);
    assert_int_equal(move.cause, LARDER_CAUSE_ABSENT);
    assert_status(m.waited, LARDER_MISS);
    assert_int_equal(m.reached, 0);
    if (transport_is("shm")) { /* nothing is copied in vain */
        assert_int_equal(m.seen[page_at(0, m.to[0])], 0x77);
    }
    save(&m, CHUNKS);
    assert_status(load(&m, 0, 0, &move), LARDER_OK);
    check(&m);
    mini_free(&m);
    assert_no_errors();
}

#if LDR_FAULTS
static void test_corrupt(void **state)
{
    fix_t *f = fix(state);
    larder_move_t move;
    mini_t m;

    if (!f->embedded && !transport_is("shm")) {
        skip(); /* the bit would be the daemon's */
    }
    prefix_gpu();
    open_it(f, "dram=64M");
    mini_make(&m, f, 1100, 3);
    save(&m, CHUNKS);
    ldr_fault_arm(LDR_FAULT_copy_out, 1, 1);
    assert_status(load(&m, 0, 0, &move), LARDER_MISS);
    ldr_fault_disarm_all();
    assert_int_equal(move.cause, LARDER_CAUSE_CORRUPT);
    assert_int_equal(move.failed, 1);
    /* It is gone: saved again, it can be loaded. */
    assert_status(load(&m, 0, 0, &move), LARDER_MISS);
    save(&m, CHUNKS);
    assert_status(load(&m, 0, 0, &move), LARDER_OK);
    check(&m);
    mini_free(&m);
    assert_no_errors();
}
#endif

/* ---- a driver that fails, a daemon that is killed ---- */

static void test_driver_fails(void **state)
{
    fix_t *f = fix(state);
    bool failed = true;
    larder_move_t move;
    mini_t m;

    prefix_gpu();
    open_it(f, "dram=64M");
    mini_make(&m, f, 1300, 3);
    save(&m, CHUNKS);
    for (uint64_t n = 1; failed && n < 3000; n += 1 + n / 3) {
        si.standin_seed(n);
        si.standin_fail_at(n, ILLEGAL_ADDRESS, STANDIN_ONCE);
        larder_status_t st = load(&m, 100, 0, &move);
        failed = si.standin_failed() != NULL;
        si.standin_fail_at(0, 0, 0);
        assert_true(failed || st == LARDER_OK);
        if (!failed) {
            check(&m);
        }
        assert_status(load(&m, 100, 0, &move), LARDER_OK);
        check(&m);
    }
    mini_free(&m);
    assert_no_errors();
}

static void kill_it(void *arg, uint64_t call, const char *name)
{
    uint64_t *left = arg;

    (void)call;
    (void)name;
    if (__atomic_load_n(left, __ATOMIC_RELAXED) > 0 &&
        __atomic_sub_fetch(left, 1, __ATOMIC_RELAXED) == 0) {
        daemon_stop(&the_daemon, SIGKILL);
    }
}

/* The memory stays: what had been leased is loaded all the same, and right. */
static void test_killed(void **state)
{
    fix_t *f = fix(state);

    if (f->embedded) {
        skip();
    }
    prefix_gpu();
    for (uint64_t n = 1; n < 40; n += 1 + n) {
        larder_move_t move;
        uint64_t left = n;
        mini_t m;

        open_it(f, "dram=64M&breaker_ms=50");
        mini_make(&m, f, 1400, 3);
        save(&m, CHUNKS);
        si.standin_hook(kill_it, &left);
        larder_status_t st = load(&m, 0, 2000, &move);
        si.standin_hook(NULL, NULL);
        daemon_stop(&the_daemon, SIGKILL);
        if (st == LARDER_OK) {
            check(&m);
        } else {
            assert_true(move.failed > 0 || st < 0);
        }
        assert_true(load(&m, 0, 500, &move) != LARDER_OK);
        assert_true(m.waited != LARDER_OK);
        mini_free(&m);
        larder_space_close(&f->space);
        larder_close(&the_daemon.admin, 0);
        larder_close(&f->lar, 0);
        daemon_clean(&the_daemon);
    }
    assert_no_errors();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ONE(test_whole, "plain"),
        ONE(test_missing, "plain"),
#if LDR_FAULTS
        ONE(test_corrupt, "plain"),
#endif
        ONE(test_driver_fails, "plain"),
        ONE(test_killed, "plain"),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
