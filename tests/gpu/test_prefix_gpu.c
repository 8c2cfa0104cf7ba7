/*
 * Prefixes in a GPU's memory: what only a GPU has. Engines that are not done
 * with their pages, engines of both kinds on one space, bits that flip in the
 * arena, a daemon that is killed in the middle of a copy, and a driver that
 * fails.
 */
#include "gpu/prefix_memory.h"

#include "client/fetch_rig.h"

#include "client/remote.h"
#include "gpu/registered.h"

enum {
    ILLEGAL_ADDRESS = 700,
    STEPS = SANITIZED ? 1 : 8,
};

/* A pair whose pages are as large as one likes; where its engines are. */
static void pair_scaled(pair_t *p, fix_t *f, ldr_rand_t *r, uint64_t seed,
                        uint32_t scale, bool host_from, bool host_to)
{
    memset(p, 0, sizeof(*p));
    p->shards = 1;
    model_fixed(&p->model, seed);
    for (uint32_t i = 0; i < GROUPS * LAYERS; i++) {
        p->model.bytes[i / LAYERS][i % LAYERS] *= scale;
    }
    pair_open(p, f->lar);
    prefix_rig.host = host_from;
    engine_make(&p->from[0], &p->model, r, 0);
    prefix_rig.host = host_to;
    engine_make(&p->to[0], &p->model, r, 0);
    prefix_rig.host = false;
}

/* ---- both kinds ---- */

static void test_mixed(void **state)
{
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p));
    larder_gpu_stats_t before = gpu_stats();
    ldr_rand_t r;

    ldr_rand_seed(&r, 501);
    fix_open_dram(f, "dram=64M");
    wait_registered(f);
    for (uint64_t i = 0; i < 8; i++) {
        pair_scaled(p, f, &r, 30000 + i, i < 4 ? 1 : 8, i % 2 == 0, i % 2 == 1);
        pair_save(p, 0);
        for (uint32_t begin = 0; begin < FIXED; begin += 24) {
            engine_load(&p->to[0], p->space, p->keys, begin, FIXED);
        }
        pair_free(p);
    }
    larder_gpu_stats_t after = gpu_stats();
    assert_true(after.loaded_bytes > before.loaded_bytes);
    assert_true(after.saved_bytes > before.saved_bytes);
    assert_int_equal(after.failures, before.failures);
    assert_no_errors();
    free(p);
}

/* The way that the memory allows. */
static void test_ways(void **state)
{
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p));
    ldr_rand_t r;

    ldr_rand_seed(&r, 503);
    fix_open_dram(f, "dram=256M");
    wait_registered(f);
    prefix_gpu()->run_min = 32 << 10;
    for (uint32_t large = 0; large < 2; large++) {
        larder_gpu_stats_t a = gpu_stats();

        pair_scaled(p, f, &r, 30100 + large, large ? 100 : 1, false, false);
        pair_save(p, 0);
        engine_load(&p->to[0], p->space, p->keys, 0, FIXED);
        pair_free(p);
        larder_gpu_stats_t b = gpu_stats();
        assert_int_equal(b.plain, a.plain);
        if (transport_is("shm")) { /* the GPU reads and writes the arena */
            assert_int_equal(b.bounced, a.bounced);
            assert_true(large ? b.staged > a.staged : b.direct > a.direct);
        } else if (!transport_is("strict")) {
            assert_true(b.bounced > a.bounced);
        }
    }
    assert_no_errors();
    free(p);
}

/* The first save of a node: its memory is registered meanwhile, and waited
 * for. */
static void test_first(void **state)
{
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p));
    larder_gpu_stats_t a = gpu_stats(), b;
    ldr_rand_t r;

    ldr_rand_seed(&r, 504);
    fix_open_dram(f, "dram=256M");
    pair_scaled(p, f, &r, 30200, 8, false, false);
    pair_save(p, 0);
    b = gpu_stats();
    if (transport_is("shm")) {
        assert_int_equal(b.bounced, a.bounced);
        assert_true(b.staged + b.direct > a.staged + a.direct);
    }
    engine_load(&p->to[0], p->space, p->keys, 0, FIXED);
    pair_free(p);
    assert_no_errors();
    free(p);
}

/* ---- an engine that is not done ---- */

/* What the regions hold comes there later, by the engine's stream; what is
 * there until then is nobody's. */
static uint8_t *put_off(engine_t *e)
{
    rig_engine_t *g = &prefix_rig.engine;
    size_t all = 0, at = 0;

    for (uint32_t i = 0; i < e->region_count; i++) {
        all += e->regions[i].bytes;
    }
    uint8_t *later = ldr_alloc_blocks(all);
    rig_in(g);
    assert_int_equal(g->cuda->host_register(later, all, LDR_CU_REGISTER_MAPPED),
                     0);
    for (uint32_t i = 0; i < e->region_count; i++) {
        size_t bytes = e->regions[i].bytes;

        memcpy(later + at, e->regions[i].base, bytes);
        memset(e->regions[i].base, 0x77, bytes);
        assert_int_equal(g->cuda->to_device((uintptr_t)e->there[i].base,
                                            later + at, bytes, g->stream),
                         0);
        at += bytes;
    }
    assert_int_equal(g->cuda->event_record(g->event, g->stream), 0);
    rig_out(g);
    return later;
}

static void put_end(uint8_t *later)
{
    rig_engine_t *g = &prefix_rig.engine;

    rig_engine_sync(g);
    rig_in(g);
    assert_int_equal(g->cuda->host_unregister(later), 0);
    rig_out(g);
    ldr_free(later);
}

static void test_after(void **state)
{
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p));
    larder_table_t tables[GROUPS];
    ldr_rand_t r;

    ldr_rand_seed(&r, 509);
    fix_open_dram(f, "dram=64M");
    for (uint64_t i = 0; i < 12; i++) {
        pair_scaled(p, f, &r, 30200 + i, 1 + below(&r, 4), false, false);
        engine_t *from = &p->from[0], *to = &p->to[0];
        larder_move_t move = {.struct_bytes = sizeof(larder_move_t),
                              .keys = p->keys,
                              .tables = tables,
                              .end = FIXED,
                              .after = prefix_rig.engine.event};

        engine_compute(from, FIXED); /* in one step: nothing is given back */
        engine_tables(from, tables);
        uint8_t *later = put_off(from);
        assert_status(larder_prefix_save(p->space, from->layout, &move), 0);
        assert_int_equal(move.shards, 3 * CHUNKS);
        put_end(later);

        engine_expect(to, 0, FIXED, tables);
        later = put_off(to); /* over what is loaded too early */
        assert_status(larder_prefix_load(p->space, to->layout, &move), 0);
        engine_check(to);
        put_end(later);

        fetched_t got = fetch_all(p, CHUNKS);
        engine_expect(to, 0, FIXED, tables);
        later = put_off(to);
        assert_status(
            larder_prefix_place(to->layout, &move, got.memory, got.bytes), 0);
        engine_check(to);
        put_end(later);
        larder_release(&got.lease);
        free(got.memory);
        pair_free(p);
    }
    assert_no_errors();
    free(p);
}

/* ---- bits that flip ---- */

#if LDR_FAULTS
static void test_corrupt(void **state)
{
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p));
    larder_table_t tables[GROUPS];
    ldr_rand_t r;

    if (!f->embedded && !transport_is("shm")) {
        free(p);
        skip(); /* the bit would be the daemon's */
    }
    ldr_rand_seed(&r, 521);
    fix_open_dram(f, "dram=256M");
    wait_registered(f);
    for (uint64_t i = 0; i < 6; i++) {
        larder_move_t move = {.struct_bytes = sizeof(larder_move_t),
                              .keys = p->keys,
                              .tables = tables,
                              .end = FIXED};

        pair_scaled(p, f, &r, 30300 + i, i == 5 ? 100 : 1, false, false);
        pair_save(p, 0);
        engine_expect(&p->to[0], 0, FIXED, tables);
        ldr_fault_arm(LDR_FAULT_copy_out, 1, 1);
        assert_status(larder_prefix_load(p->space, p->to[0].layout, &move),
                      LARDER_MISS);
        ldr_fault_disarm_all();
        assert_int_equal(move.failed, 1);
        assert_status(move.item, LARDER_MISS);
        assert_int_equal(move.cause, LARDER_CAUSE_CORRUPT);
        assert_int_equal(stats_of(f->lar).misses[LARDER_CAUSE_CORRUPT], i + 1);
        /* It is gone: saved again, it can be loaded. */
        engine_expect(&p->to[0], 0, FIXED, tables);
        assert_status(larder_prefix_load(p->space, p->to[0].layout, &move),
                      LARDER_MISS);
        engine_clear(&p->from[0]);
        engine_compute(&p->from[0], FIXED);
        larder_move_t save =
            engine_save(&p->from[0], p->space, p->keys, 0, 0, 0);
        assert_int_equal(save.shards, 1);
        assert_int_equal(save.present, 3 * CHUNKS - 1);
        engine_load(&p->to[0], p->space, p->keys, 0, FIXED);
        pair_free(p);
    }
    assert_no_errors();
    free(p);
}
#endif

/* ---- tables that name no block ---- */

/* That is found when its shard is to be copied, while those before it move. */
static void test_bad_tables(void **state)
{
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p));
    larder_table_t tables[GROUPS];
    ldr_rand_t r;

    ldr_rand_seed(&r, 522);
    fix_open_dram(f, "dram=256M");
    wait_registered(f);
    for (uint64_t i = 0; i < 6; i++) {
        larder_move_t move = {.struct_bytes = sizeof(larder_move_t),
                              .keys = p->keys,
                              .tables = tables,
                              .end = FIXED};

        pair_scaled(p, f, &r, 30400 + i, 1, false, false);
        pair_save(p, 0);
        engine_expect(&p->to[0], 0, FIXED, tables);
        uint32_t count = tables[0].count;
        uint32_t *ids = calloc(count, sizeof(*ids));
        memcpy(ids, tables[0].ids, count * sizeof(*ids));
        ids[i % 2 == 0 ? count - 1 : ldr_rand_below(&r, count)] =
            UINT32_MAX / 2;
        tables[0].ids = ids;
        assert_status(larder_prefix_load(p->space, p->to[0].layout, &move),
                      LARDER_E_INVALID);
        free(ids);
        engine_load(&p->to[0], p->space, p->keys, 0, FIXED);
        pair_free(p);
    }
    assert_no_errors();
    free(p);
}

/* ---- a driver that fails ---- */

/* One save and one load, either of which may fail. */
static void try_both(pair_t *p, uint64_t seed, uint64_t n, bool load, int how,
                     bool *failed_p)
{
    engine_t *from = &p->from[0], *to = &p->to[0];
    larder_table_t tables[GROUPS];
    larder_move_t move = {.struct_bytes = sizeof(larder_move_t),
                          .keys = p->keys,
                          .tables = tables,
                          .end = FIXED};

    si.standin_seed(seed);
    if (load) {
        engine_expect(to, 0, FIXED, tables);
    } else {
        engine_clear(from);
        engine_compute(from, FIXED);
        engine_tables(from, tables);
    }
    si.standin_fail_at(n, ILLEGAL_ADDRESS, how);
    larder_status_t st =
        load ? larder_prefix_load(p->space, to->layout, &move)
             : larder_prefix_save(p->space, from->layout, &move);
    *failed_p = si.standin_failed() != NULL;
    si.standin_fail_at(0, 0, 0);
    assert_int_equal(si.standin_depth(), 0);
    assert_no_errors();
    if (load && st == LARDER_OK) {
        engine_check(to);
        assert_int_equal(move.failed, 0);
    } else if (load) { /* it is said that it failed */
        assert_true(move.failed > 0 || st < 0);
    } else { /* what was not saved is not there */
        assert_status(st, LARDER_OK);
        assert_int_equal(move.shards + move.present + move.failed, 3 * CHUNKS);
        assert_true(move.failed == 0 || move.item < 0);
    }
}

/* Everything can be had after it: what is there is right. */
static void all_well(pair_t *p)
{
    engine_clear(&p->from[0]);
    engine_compute(&p->from[0], FIXED);
    engine_save(&p->from[0], p->space, p->keys, 0, 0, 0);
    engine_load(&p->to[0], p->space, p->keys, 0, FIXED);
}

static void test_driver_fails(void **state)
{
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p));
    uint64_t seed = 30400;
    ldr_rand_t r;

    ldr_rand_seed(&r, 523);
    fix_open_dram(f, "dram=256M");
    wait_registered(f);
    for (uint32_t load = 0; load < 2; load++) {
        bool failed = true;

        for (uint64_t n = 1; failed; n += 1 + below(&r, 1 + n / STEPS)) {
            uint32_t scale = 1 + 30 * below(&r, 2);

            pair_scaled(p, f, &r, seed++, scale, false, false);
            if (load) {
                pair_save(p, 0);
            }
            try_both(p, seed, n, load, STANDIN_ONCE, &failed);
            all_well(p);
            assert_status(larder_space_reset(p->space, 0), LARDER_OK);
            pair_free(p);
        }
    }
    free(p);
}

/* A device that is dead: nothing is loaded or saved, and nothing hangs. */
static void test_driver_dead(void **state)
{
    fix_t *f = fix(state);
    pair_t *p = calloc(1, sizeof(*p));
    larder_table_t tables[GROUPS];
    larder_move_t move = {.struct_bytes = sizeof(larder_move_t),
                          .keys = p->keys,
                          .tables = tables,
                          .end = FIXED};
    bool failed;
    ldr_rand_t r;

    ldr_rand_seed(&r, 541);
    fix_open_dram(f, "dram=64M");
    wait_registered(f);
    pair_scaled(p, f, &r, 30600, 1, false, false);
    pair_save(p, 0);
    try_both(p, 1, 5, true, STANDIN_STICKY, &failed);
    assert_true(failed);
    /* It stays so, even if the driver should answer again. */
    engine_expect(&p->to[0], 0, FIXED, tables);
    assert_true(larder_prefix_load(p->space, p->to[0].layout, &move) != 0);
    assert_status(larder_space_reset(p->space, 0), LARDER_OK);
    engine_clear(&p->from[0]);
    engine_compute(&p->from[0], FIXED);
    engine_tables(&p->from[0], tables);
    assert_status(larder_prefix_save(p->space, p->from[0].layout, &move), 0);
    assert_int_equal(move.failed, 3 * CHUNKS);
    assert_true(move.item < 0);
    larder_match_t m = {.struct_bytes = sizeof(m)};
    assert_status(
        larder_prefix_match(p->space, p->to[0].layout, p->keys, CHUNKS, 0, &m),
        LARDER_OK);
    assert_int_equal(m.chunks, 0);
    pair_free(p);
    free(p);
    assert_no_errors();
}

/* ---- a daemon that is killed ---- */

static void kill_it(void *arg, uint64_t call, const char *name)
{
    uint64_t *left = arg;

    (void)call;
    (void)name;
    if (*left > 0 && --*left == 0) {
        daemon_stop(&the_daemon, SIGKILL);
    }
}

/* In the middle of a load or of a save, at the n-th call of the driver. */
static void killed_at(fix_t *f, ldr_rand_t *r, uint64_t n, bool load)
{
    pair_t *p = calloc(1, sizeof(*p));
    larder_table_t tables[GROUPS];
    larder_move_t move = {.struct_bytes = sizeof(larder_move_t),
                          .keys = p->keys,
                          .tables = tables,
                          .end = FIXED,
                          .timeout_ms = 2000};
    uint64_t left = n;

    fix_open_dram(f, "dram=64M&breaker_ms=50");
    wait_registered(f);
    pair_scaled(p, f, r, 30700, 8, false, false);
    engine_t *from = &p->from[0], *to = &p->to[0];
    if (load) {
        pair_save(p, 0);
        engine_expect(to, 0, FIXED, tables);
    } else {
        engine_compute(from, FIXED);
        engine_tables(from, tables);
    }
    si.standin_hook(kill_it, &left);
    larder_status_t st =
        load ? larder_prefix_load(p->space, to->layout, &move)
             : larder_prefix_save(p->space, from->layout, &move);
    si.standin_hook(NULL, NULL);
    assert_true(left == 0 || n > 6); /* it was in the middle */
    daemon_stop(&the_daemon, SIGKILL);
    if (load && st == LARDER_OK) {
        engine_check(to);
    } else if (load) {
        assert_true(move.failed > 0 || st < 0);
    } else {
        assert_status(st, LARDER_OK);
        assert_int_equal(move.shards + move.present + move.failed, 3 * CHUNKS);
    }
    engine_expect(to, 0, FIXED, tables);
    assert_status(larder_prefix_load(p->space, to->layout, &move), LARDER_MISS);
    assert_int_equal(move.cause, LARDER_CAUSE_OFFLINE);
    assert_no_errors();
    pair_free(p);
    free(p);
    larder_space_close(&f->space);
    larder_close(&the_daemon.admin, 0);
    larder_close(&f->lar, 0);
    daemon_clean(&the_daemon);
    assert_int_equal(gpu_stats().registered_bytes, 0);
}

static void test_killed(void **state)
{
    const uint64_t calls[] = {1, 3, 5, 6, 12, 30};
    fix_t *f = fix(state);
    ldr_rand_t r;

    if (f->embedded) {
        skip();
    }
    ldr_rand_seed(&r, 547);
    for (size_t i = 0; i < COUNT_OF(calls); i++) {
        killed_at(f, &r, calls[i], i % 2 == 0);
        killed_at(f, &r, calls[i], i % 2 == 1);
    }
}

/* ---- memory that takes long to register ---- */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool begun, end;
} slow = {.lock = PTHREAD_MUTEX_INITIALIZER,
          .changed = PTHREAD_COND_INITIALIZER};

static void be_stuck(void *arg, uint64_t call, const char *name)
{
    (void)arg;
    (void)call;
    if (strcmp(name, "cuMemHostRegister") == 0) {
        pthread_mutex_lock(&slow.lock);
        slow.begun = true;
        while (!slow.end) {
            pthread_cond_wait(&slow.changed, &slow.lock);
        }
        pthread_mutex_unlock(&slow.lock);
    }
}

static bool is_stuck(void)
{
    pthread_mutex_lock(&slow.lock);
    bool begun = slow.begun;
    pthread_mutex_unlock(&slow.lock);
    return begun;
}

static void unstick(void)
{
    pthread_mutex_lock(&slow.lock);
    slow.end = true;
    pthread_cond_broadcast(&slow.changed);
    pthread_mutex_unlock(&slow.lock);
}

/* Its gate is shut, and the next one may try; or nobody has shut it: who found
 * the session dead may have left it as it was. */
static bool may_try(ldr_remote_t *r)
{
    pthread_mutex_lock(&r->breaker_lock);
    bool may = !r->open ||
               (!r->trying && ldr_now_ns(&ldr_clock_real) >= r->open_until_ns);
    pthread_mutex_unlock(&r->breaker_lock);
    return may;
}

/* A daemon was away, and the first who finds it back is the thread that
 * registers its memory, which may take long: others find it back too. */
static void test_gate(void **state)
{
    test_daemon_t *d = &the_daemon;
    larder_t *one = NULL, *other = NULL;
    larder_key_t key = key_of(1);
    larder_item_t item = {.key = &key};

    fix(state);
    if (!transport_is("shm")) {
        skip();
    }
    prefix_gpu();
    assert_true(daemon_prepare(d, "embed:?dram=64M&breaker_ms=20"));
    assert_true(daemon_start(d));
    assert_status((larder_open)(d->url, NULL, &one), LARDER_OK);
    larder_space_t *space = open_space(one, "model", 1);
    daemon_stop(d, SIGKILL);
    assert_status(larder_run(space, LARDER_OP_EXISTS, &item, 1, NULL), 0);
    assert_int_equal(item.cause, LARDER_CAUSE_OFFLINE);
    assert_true(daemon_start(d));
    assert_status((larder_open)(d->url, NULL, &other), LARDER_OK);
    larder_space_t *others = open_space(other, "model", 1);
    assert_status(put_n(others, 1, 1000), LARDER_OK); /* there is memory */
    uint64_t end_ms = transport_now_ms() + REGISTERED_MS;
    while (!may_try(one->remote)) {
        assert_true(transport_now_ms() < end_ms);
        transport_pause();
    }
    si.standin_hook(be_stuck, NULL);
    assert_status(larder_gpu_attach(one, prefix_gpu()), LARDER_OK);
    while (!is_stuck()) {
        assert_true(transport_now_ms() < end_ms);
        transport_pause();
    }
    larder_run(space, LARDER_OP_EXISTS, &item, 1, NULL);
    unstick(); /* first: what is stuck would keep the test from its end */
    si.standin_hook(NULL, NULL);
    assert_status(item.status, LARDER_OK);
    larder_space_close(&space);
    larder_space_close(&others);
    assert_status(larder_close(&one, LARDER_FOREVER), LARDER_OK);
    assert_status(larder_close(&other, LARDER_FOREVER), LARDER_OK);
    assert_int_equal(daemon_stop(d, SIGTERM), 0);
    daemon_clean(d);
    assert_no_errors();
}

/* ---- a handle that was used before ---- */

/* What it has mapped already is registered too. */
static void test_attached_late(void **state)
{
    test_daemon_t *d = &the_daemon;
    larder_t *late = NULL;

    fix(state);
    if (!transport_is("shm")) {
        skip();
    }
    prefix_gpu();
    assert_true(daemon_prepare(d, "embed:?dram=64M"));
    assert_true(daemon_start(d));
    assert_status((larder_open)(d->url, NULL, &late), LARDER_OK);
    larder_space_t *space = open_space(late, "late", 1);
    assert_status(put_n(space, 1, 1000), LARDER_OK);
    assert_int_equal(gpu_stats().registered_bytes, 0);
    assert_status(larder_gpu_attach(late, prefix_gpu()), LARDER_OK);
    uint64_t end_ms = transport_now_ms() + REGISTERED_MS;
    while (gpu_stats().registered_bytes == 0) {
        assert_true(transport_now_ms() < end_ms);
        transport_pause();
    }
    larder_space_close(&space);
    assert_status(larder_close(&late, LARDER_FOREVER), LARDER_OK);
    assert_int_equal(daemon_stop(d, SIGTERM), 0);
    daemon_clean(d);
    assert_int_equal(gpu_stats().registered_bytes, 0);
    assert_no_errors();
}

/* ---- a handle that is closed at once ---- */

static void be_slow(void *arg, uint64_t call, const char *name)
{
    const struct timespec nap = {0, 30000000};

    (void)arg;
    (void)call;
    if (strcmp(name, "cuMemHostRegister") == 0) {
        nanosleep(&nap, NULL); /* as with a large arena */
    }
}

/* While its memory is still being registered: nothing stays so. */
static void test_closed_early(void **state)
{
    fix_t *f = fix(state);
    standin_counts_t c;

    if (f->embedded) {
        skip();
    }
    prefix_gpu();
    si.standin_hook(be_slow, NULL);
    for (unsigned i = 0; i < 3; i++) {
        fix_open_dram(f, "dram=64M");
        assert_status(put_n(f->space, 1, 1000), LARDER_OK);
        fix_close(f);
        si.standin_counts(&c);
        assert_int_equal(c.registered, 0);
        assert_int_equal(gpu_stats().registered_bytes, 0);
    }
    si.standin_hook(NULL, NULL);
    assert_no_errors();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ONE(test_mixed, "plain"),
        ONE(test_ways, "plain"),
        ONE(test_first, "plain"),
        ONE(test_after, "plain"),
#if LDR_FAULTS
        ONE(test_corrupt, "plain"),
#endif
        ONE(test_bad_tables, "plain"),
        ONE(test_driver_fails, "plain"),
        ONE(test_killed, "plain"),
        ONE(test_gate, "plain"),
        ONE(test_attached_late, "plain"),
        ONE(test_closed_early, "plain"),
        ONE(test_driver_dead, "plain"), /* last: it stays dead */
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
