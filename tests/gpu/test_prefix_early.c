/*
 * Loads that begin before their blocks are known, by every transport: what is
 * sent ahead ends in the right pages, nothing is written before the gate is
 * open, and nothing is held by a load whose blocks never come.
 */
#include <pthread.h>

#include "gpu/prefix_memory.h"

#include "client/fetch_rig.h"

#include "gpu/registered.h"

enum {
    PATIENCE_MS = 60000,
    ILLEGAL_ADDRESS = 700,
    LONG_MS = 60000,
};

typedef struct early {
    pair_t *p;
    larder_move_t move;
    larder_table_t tables[GROUPS]; /* the load's */
    uint32_t gate;
    uint32_t wait_ms;
    larder_status_t st;
    pthread_t thread;
} early_t;

static void *early_main(void *arg)
{
    early_t *e = arg;

    e->st = larder_prefix_load_early(e->p->space, e->p->to[0].layout, &e->move,
                                     &e->gate, e->wait_ms);
    return NULL;
}

static void early_begin(early_t *e, pair_t *p, uint32_t begin, uint32_t wait_ms)
{
    memset(e, 0, sizeof(*e));
    e->p = p;
    e->wait_ms = wait_ms;
    e->move = (larder_move_t){.struct_bytes = sizeof(larder_move_t),
                              .keys = p->keys,
                              .tables = e->tables,
                              .begin = begin,
                              .end = FIXED};
    assert_int_equal(pthread_create(&e->thread, NULL, early_main, e), 0);
}

static larder_status_t early_end(early_t *e)
{
    assert_int_equal(pthread_join(e->thread, NULL), 0);
    return e->st;
}

/* Pages that are so many times as large as usual. */
static void pair_large(pair_t *p, fix_t *f, ldr_rand_t *r, uint64_t seed,
                       uint32_t scale)
{
    memset(p, 0, sizeof(*p));
    p->shards = 1;
    model_fixed(&p->model, seed);
    for (uint32_t i = 0; i < GROUPS * LAYERS; i++) {
        p->model.bytes[i / LAYERS][i % LAYERS] *= scale;
    }
    pair_open(p, f->lar);
    engine_make(&p->from[0], &p->model, r, 0);
    engine_make(&p->to[0], &p->model, r, 0);
    pair_save(p, 0);
}

static uint64_t copies(void)
{
    standin_counts_t c;

    si.standin_counts(&c);
    return c.copies;
}

/* Where bytes can be sent ahead they are. */
static void wait_ahead(uint64_t before)
{
    uint64_t end_ms = transport_now_ms() + PATIENCE_MS;

    while (transport_is("shm") && copies() == before &&
           transport_now_ms() < end_ms) {
        transport_pause();
    }
    assert_true(!transport_is("shm") || copies() > before);
}

static void test_opened(void **state)
{
    const uint32_t scales[] = {1, 31, 100, 8};
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p));
    larder_table_t tables[GROUPS];
    early_t e;
    ldr_rand_t r;

    ldr_rand_seed(&r, 601);
    fix_open_dram(f, "dram=256M");
    wait_registered(f);
    prefix_gpu()->run_min = 1; /* staged, however small */
    for (uint64_t i = 0; i < COUNT_OF(scales); i++) {
        pair_large(p, f, &r, 31000 + i, scales[i]);
        for (uint32_t begin = 0; begin < FIXED; begin += 24) {
            uint32_t shards = engine_expect(&p->to[0], begin, FIXED, tables);
            uint64_t before = copies();

            early_begin(&e, p, begin, LONG_MS);
            if (begin % 48 == 0) {
                wait_ahead(before);
            }
            memcpy(e.tables, tables, sizeof(tables));
            assert_status(larder_gate_open(&e.gate), LARDER_OK);
            assert_status(early_end(&e), LARDER_OK);
            assert_int_equal(e.move.shards, shards);
            engine_check(&p->to[0]);
            assert_status(larder_gate_open(&e.gate), LARDER_OK);
        }
        pair_free(p);
    }
    assert_no_errors();
    free(p);
}

/* Closed, or forgotten: no block is written, and the copier's next load, of
 * other bytes, takes nothing of this one for its own. */
static void test_given_up(void **state)
{
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p));
    larder_table_t tables[GROUPS];
    larder_gpu_stats_t a = gpu_stats();
    early_t e;
    ldr_rand_t r;

    ldr_rand_seed(&r, 607);
    fix_open_dram(f, "dram=256M");
    wait_registered(f);
    prefix_gpu()->run_min = 1;
    for (uint64_t i = 0; i < 4; i++) {
        uint64_t before = copies();

        pair_large(p, f, &r, 31100 + i, 31);
        engine_clear(&p->to[0]);
        early_begin(&e, p, 0, i % 2 == 0 ? LONG_MS : 20);
        if (i % 2 == 0) {
            wait_ahead(before);
            larder_gate_close(&e.gate);
        }
        assert_status(early_end(&e), LARDER_E_CANCELED);
        assert_status(larder_gate_open(&e.gate), LARDER_MISS);
        engine_check(&p->to[0]);
        /* Nothing of it is leased: all can be dropped, and saved anew. */
        assert_status(larder_space_reset(p->space, 0), LARDER_OK);
        engine_clear(&p->from[0]);
        pair_save(p, 0);
        engine_expect(&p->to[0], 0, FIXED, tables);
        early_begin(&e, p, 0, LONG_MS);
        memcpy(e.tables, tables, sizeof(tables));
        assert_status(larder_gate_open(&e.gate), LARDER_OK);
        assert_status(early_end(&e), LARDER_OK);
        engine_check(&p->to[0]);
        pair_free(p);
    }
    assert_int_equal(gpu_stats().failures, a.failures);
    assert_no_errors();
    free(p);
}

/* Tables that lack a block, or are none. */
static void test_bad_tables(void **state)
{
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p));
    early_t e;
    ldr_rand_t r;

    ldr_rand_seed(&r, 613);
    fix_open_dram(f, "dram=64M");
    wait_registered(f);
    pair_large(p, f, &r, 31200, 8);
    for (uint32_t i = 0; i < 2; i++) {
        engine_clear(&p->to[0]);
        early_begin(&e, p, 0, LONG_MS);
        e.tables[0].count = i; /* empty; or without ids */
        assert_status(larder_gate_open(&e.gate), LARDER_OK);
        assert_status(early_end(&e), LARDER_E_INVALID);
        engine_check(&p->to[0]);
    }
    assert_status(
        larder_prefix_load_early(p->space, p->to[0].layout, &e.move, NULL, 1),
        LARDER_E_INVALID);
    assert_status(larder_gate_open(NULL), LARDER_E_INVALID);
    pair_free(p);
    assert_no_errors();
    free(p);
}

/* Nothing is there: it fails before anybody opens the gate. */
static void test_missing(void **state)
{
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p));
    early_t e;
    ldr_rand_t r;

    ldr_rand_seed(&r, 617);
    fix_open_dram(f, "dram=64M");
    wait_registered(f);
    pair_large(p, f, &r, 31300, 8);
    assert_status(larder_space_reset(p->space, 0), LARDER_OK);
    engine_clear(&p->to[0]);
    early_begin(&e, p, 0, 200);
    assert_true(early_end(&e) != LARDER_OK);
    assert_status(larder_gate_open(&e.gate), LARDER_MISS);
    engine_check(&p->to[0]);
    pair_free(p);
    assert_no_errors();
    free(p);
}

/* A call of the driver fails, before the gate or behind it. */
static void test_driver_fails(void **state)
{
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p));
    larder_table_t tables[GROUPS];
    bool failed = true;
    early_t e;
    ldr_rand_t r;

    ldr_rand_seed(&r, 619);
    fix_open_dram(f, "dram=256M");
    wait_registered(f);
    prefix_gpu()->run_min = 1;
    pair_large(p, f, &r, 31400, 31);
    for (uint64_t n = 1; failed; n += 1 + below(&r, 2 + n / 8)) {
        engine_expect(&p->to[0], 0, FIXED, tables);
        si.standin_seed(n);
        si.standin_fail_at(n, ILLEGAL_ADDRESS, STANDIN_ONCE);
        early_begin(&e, p, 0, LONG_MS);
        memcpy(e.tables, tables, sizeof(tables));
        larder_gate_open(&e.gate);
        larder_status_t st = early_end(&e);
        failed = si.standin_failed() != NULL;
        si.standin_fail_at(0, 0, 0);
        assert_true(st == LARDER_OK || failed);
        if (st == LARDER_OK) {
            engine_check(&p->to[0]);
        }
        assert_int_equal(si.standin_depth(), 0);
        assert_no_errors();
        engine_load(&p->to[0], p->space, p->keys, 0, FIXED);
    }
    pair_free(p);
    free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ONE(test_opened, "plain"),       ONE(test_given_up, "plain"),
        ONE(test_bad_tables, "plain"),   ONE(test_missing, "plain"),
        ONE(test_driver_fails, "plain"),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
