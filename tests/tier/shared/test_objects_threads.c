/* The tier with its threads and the real clock, over a simulated store. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tier/shared/objects_int.h"
#include "tier/shared/objects_rig.h"
#include "support/real.h"

#define NODES 3u
#define DEADLINE_NS (60 * RIG_SECOND)

typedef struct real_node {
    ldr_objects_t *tier;
    ldr_backend_t *backend;
    uint32_t tenant, space;
    uint32_t epoch;
} real_node_t;

static uint64_t after(uint64_t ns)
{
    return ldr_now_ns(&ldr_clock_real) + ns;
}

static void on_epoch(void *arg, const uint8_t id[LDR_ID_BYTES], uint32_t epoch)
{
    real_node_t *n = arg;

    (void)id;
    __atomic_store_n(&n->epoch, epoch, __ATOMIC_SEQ_CST);
}

static void open_node(simstore_t *store, real_node_t *n, unsigned threads)
{
    uint8_t id[LDR_ID_BYTES];
    ldr_seal_t seal = {.encrypts = false};

    n->backend = simstore_backend(store);
    n->epoch = 0;
    ldr_objects_params_t p = {
        .backend = n->backend,
        .threads = threads,
        .timeout_ms = 5000,
        .retry_ms = 50,
        .poll_ms = 5,
        .publish_ms = 2,
        .orphan_s = 600,
        .clock = &ldr_clock_real,
        .log = {.fn = rig_quiet},
        .epoch = on_epoch,
        .arg = n,
    };
    assert_int_equal(ldr_objects_open(&p, &n->tier), LARDER_OK);
    rig_tenant_id(id);
    assert_int_equal(ldr_objects_tenant(n->tier, id, "acme", &seal,
                                        after(DEADLINE_NS), &n->tenant),
                     LARDER_OK);
    rig_space_id(0, id);
    n->space = ldr_objects_space(n->tier, n->tenant, id, 0);
}

static void await_ready(real_node_t *n)
{
    uint64_t until_ms = real_now_ms() + 20000;
    ldr_objects_stats_t s;

    do {
        real_pause();
        ldr_objects_stats(n->tier, &s);
    } while (s.reason[0] != '\0' && real_now_ms() < until_ms);
    assert_string_equal(s.reason, "");
}

/* ---- one save, one load, waited for ---- */

typedef struct waiter {
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool done;
} waiter_t;

static void waiter_init(waiter_t *w)
{
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->ended, NULL);
    w->done = false;
}

static void waiter_end(waiter_t *w)
{
    pthread_mutex_lock(&w->lock);
    w->done = true;
    pthread_cond_signal(&w->ended);
    pthread_mutex_unlock(&w->lock);
}

static void waiter_wait(waiter_t *w)
{
    pthread_mutex_lock(&w->lock);
    while (!w->done) {
        pthread_cond_wait(&w->ended, &w->lock);
    }
    pthread_mutex_unlock(&w->lock);
}

typedef struct transfer {
    ldr_objects_write_t write;
    ldr_objects_read_t read;
    waiter_t waiter;
    struct iovec iov[4];
    uint8_t data[RIG_PAYLOAD_MAX] __attribute__((aligned(4096)));
    uint8_t block[LDR_BLOCK] __attribute__((aligned(4096)));
} transfer_t;

static void write_ended(ldr_objects_write_t *w)
{
    waiter_end(&((transfer_t *)w->arg)->waiter);
}

static void read_ended(ldr_objects_read_t *r)
{
    waiter_end(&((transfer_t *)r->arg)->waiter);
}

/* False: it was not taken. */
static bool begin_put(real_node_t *n, transfer_t *t, unsigned key,
                      uint64_t number)
{
    uint32_t length = rig_length(0, key);
    uint32_t epoch = ldr_objects_epoch(n->tier, n->tenant, n->space);

    rig_fill(t->data, 0, key, number);
    waiter_init(&t->waiter);
    t->write = (ldr_objects_write_t){
        .tenant = n->tenant,
        .space = n->space,
        .count = 1,
        .iov = t->iov,
        .iov_first = {0, 1},
        .deadline_ns = after(DEADLINE_NS),
        .done = write_ended,
        .arg = t,
    };
    t->write.records[0] = (ldr_record_t){
        .kind = LDR_RECORD_SHARD,
        .key = rig_key(key),
        .epoch = epoch,
        .shards = 1,
        .length = length,
        .payload_crc = ldr_crc32c(0, t->data, length),
    };
    t->iov[0] = (struct iovec){
        t->data, (size_t)(ldr_record_blocks(length) - 1) * LDR_BLOCK};
    return ldr_objects_write(n->tier, &t->write);
}

static int put_one(real_node_t *n, transfer_t *t, unsigned key, uint64_t number)
{
    if (begin_put(n, t, key, number)) {
        waiter_wait(&t->waiter);
    }
    return t->write.error;
}

/* 0: what came is right. */
static int get_one(real_node_t *n, transfer_t *t, unsigned key)
{
    static _Thread_local uint8_t expected[RIG_PAYLOAD_MAX];
    larder_key_t k = rig_key(key);

    waiter_init(&t->waiter);
    t->read = (ldr_objects_read_t){
        .tenant = n->tenant,
        .space = n->space,
        .iov = t->iov,
        .iov_count = 1,
        .block = t->block,
        .deadline_ns = after(DEADLINE_NS),
        .done = read_ended,
        .arg = t,
    };
    if (!ldr_objects_find(n->tier, n->tenant, n->space,
                          ldr_objects_epoch(n->tier, n->tenant, n->space), &k,
                          0, 0, &t->read.place)) {
        return -ENOENT;
    }
    t->iov[0] = (struct iovec){t->data,
                               (size_t)(t->read.place.blocks - 1u) * LDR_BLOCK};
    if (!ldr_objects_read(n->tier, &t->read)) {
        return t->read.error;
    }
    waiter_wait(&t->waiter);
    if (t->read.error == 0) {
        rig_fill(expected, 0, key, ldr_get64(t->data));
        RIG_CHECK(memcmp(expected, t->data, t->iov[0].iov_len) == 0);
        RIG_CHECK(memcmp(&t->read.record.key, &k, sizeof(k)) == 0);
    }
    return t->read.error;
}

/* ---- many at once ---- */

typedef struct player {
    real_node_t *node;
    unsigned number;
    uint64_t saved, loaded, until_ms;
} player_t;

static void *play(void *arg)
{
    player_t *p = arg;
    transfer_t *t = aligned_alloc(4096, (sizeof(*t) + 4095) / 4096 * 4096);
    ldr_rand_t r;

    memset(t, 0, sizeof(*t));
    ldr_rand_seed(&r, p->number + 1);
    for (uint64_t i = 0; real_now_ms() < p->until_ms || i < 50; i++) {
        unsigned key = (unsigned)ldr_rand_below(&r, RIG_KEYS);
        uint64_t what = ldr_rand_below(&r, 40);

        if (what < 15) {
            p->saved +=
                put_one(p->node, t, key, p->number << 20 | (i + 1)) == 0;
        } else if (what < 38) {
            p->loaded += get_one(p->node, t, key) == 0;
        } else if (what == 38) {
            ldr_manifest_row_t row = {.shards = 1};
            larder_key_t k = rig_key(key);
            uint64_t token = 0;

            memcpy(row.key, k.hash, sizeof(row.key));
            if (ldr_objects_remove(p->node->tier, p->node->tenant,
                                   p->node->space, &row, 1,
                                   &token) == LARDER_OK) {
                ldr_objects_removed(p->node->tier, p->node->tenant, token,
                                    after(DEADLINE_NS));
            }
        } else {
            uint32_t epoch;
            ldr_objects_stats_t s;

            if (ldr_rand_below(&r, 4) == 0) {
                ldr_objects_reset(p->node->tier, p->node->tenant,
                                  p->node->space, after(DEADLINE_NS), &epoch);
            }
            ldr_objects_stats(p->node->tier, &s);
        }
    }
    free(t);
    return NULL;
}

static void test_many(void **state)
{
    static real_node_t nodes[NODES];
    player_t players[2 * NODES];
    pthread_t threads[2 * NODES];
    simstore_t *store = simstore_create(3);
    uint64_t saved = 0, loaded = 0;

    (void)state;
    for (unsigned i = 0; i < NODES; i++) {
        open_node(store, &nodes[i], 3);
        simstore_noise(nodes[i].backend, 2);
        simstore_stale(nodes[i].backend, 20, 10);
    }
    for (unsigned i = 0; i < 2 * NODES; i++) {
        players[i] = (player_t){.node = &nodes[i % NODES],
                                .number = i,
                                .until_ms = real_now_ms() + 1500};
        assert_int_equal(pthread_create(&threads[i], NULL, play, &players[i]),
                         0);
    }
    for (unsigned i = 0; i < 2 * NODES; i++) {
        pthread_join(threads[i], NULL);
        saved += players[i].saved;
        loaded += players[i].loaded;
    }
    printf("%llu saved, %llu loaded\n", (unsigned long long)saved,
           (unsigned long long)loaded);
    assert_true(saved > 0 && loaded > 0);
    for (unsigned i = 0; i < NODES; i++) {
        assert_true(ldr_objects_close(nodes[i].tier, after(DEADLINE_NS)));
    }
    simstore_destroy(store);
}

/* A cold node finds what another has published, by its threads alone. */
static void test_cold(void **state)
{
    static real_node_t a, b;
    static transfer_t t;
    simstore_t *store = simstore_create(4);

    (void)state;
    open_node(store, &a, 4);
    await_ready(&a);
    for (unsigned k = 0; k < RIG_KEYS; k++) {
        assert_int_equal(put_one(&a, &t, k, k + 1), 0);
        assert_int_equal(ldr_objects_flush(a.tier, after(DEADLINE_NS)),
                         LARDER_OK);
    }
    assert_true(ldr_objects_close(a.tier, after(DEADLINE_NS)));
    open_node(store, &b, 4);
    await_ready(&b);
    for (unsigned k = 0; k < RIG_KEYS; k++) {
        assert_int_equal(get_one(&b, &t, k), 0);
    }
    assert_true(ldr_objects_close(b.tier, after(DEADLINE_NS)));
    simstore_destroy(store);
}

static unsigned to_seal(ldr_objects_t *t)
{
    pthread_mutex_lock(&t->lock);
    unsigned count = t->to_seal;
    pthread_mutex_unlock(&t->lock);
    return count;
}

/* Lanes wait for their turn to seal; and none keeps it while it writes, however
 * long that takes. */
static void test_turns_to_seal(void **state)
{
    enum { WRITES = 5 };
    static real_node_t a;
    static transfer_t t[WRITES];
    simstore_t *store = simstore_create(9);
    uint64_t until_ms = real_now_ms() + 20000;

    (void)state;
    open_node(store, &a, WRITES + 4); /* one for reads, some for chores */
    await_ready(&a);
    pthread_mutex_lock(&a.tier->lock);
    a.tier->cpus = a.tier->sealing = 1; /* as if somebody had it */
    pthread_mutex_unlock(&a.tier->lock);
    for (unsigned i = 0; i < WRITES; i++) {
        assert_true(begin_put(&a, &t[i], i, i + 1));
    }
    while (to_seal(a.tier) < WRITES && real_now_ms() < until_ms) {
        real_pause();
    }
    assert_int_equal(to_seal(a.tier), WRITES);
    simstore_hang(a.backend, SIMSTORE_PUT, true);
    pthread_mutex_lock(&a.tier->lock);
    a.tier->sealing = 0;
    pthread_cond_broadcast(&a.tier->sealed);
    pthread_mutex_unlock(&a.tier->lock);
    /* Two chores may be among them, but not four. */
    while (simstore_hanging(a.backend) < WRITES && real_now_ms() < until_ms) {
        real_pause();
    }
    assert_true(simstore_hanging(a.backend) >= WRITES);
    simstore_hang(a.backend, SIMSTORE_PUT, false);
    for (unsigned i = 0; i < WRITES; i++) {
        waiter_wait(&t[i].waiter);
        assert_int_equal(t[i].write.error, 0);
    }
    assert_true(ldr_objects_close(a.tier, after(DEADLINE_NS)));
    simstore_destroy(store);
}

/* Closing is bounded by its deadline, whatever hangs. */
static void test_close_hanging(void **state)
{
    static real_node_t a;
    simstore_t *store = simstore_create(5);
    simstore_kind_t kinds[] = {SIMSTORE_LIST, SIMSTORE_PUT};

    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        static transfer_t t;

        open_node(store, &a, 2);
        await_ready(&a);
        assert_int_equal(put_one(&a, &t, 1, 1), 0);
        simstore_hang(a.backend, kinds[i], true);
        uint64_t until_ms = real_now_ms() + 20000;
        while (simstore_hanging(a.backend) == 0 && real_now_ms() < until_ms) {
            (void)ldr_objects_flush(a.tier, after(RIG_MS));
            real_pause();
        }
        uint64_t begin_ms = real_now_ms();
        bool whole = ldr_objects_close(a.tier, after(100 * RIG_MS));
        assert_true(real_now_ms() - begin_ms < 20000);
        assert_false(whole);
        simstore_hang(a.backend, kinds[i], false);
        until_ms = real_now_ms() + 20000;
        while (simstore_backends(store) > 0 && real_now_ms() < until_ms) {
            real_pause();
        }
        assert_int_equal(simstore_backends(store), 0);
    }
    simstore_destroy(store);
}

static bool log_is_gone;
static unsigned said_late;

static void log_once(void *arg, larder_log_level_t level, const char *line)
{
    (void)arg;
    (void)level;
    (void)line;
    if (__atomic_load_n(&log_is_gone, __ATOMIC_SEQ_CST)) {
        __atomic_add_fetch(&said_late, 1, __ATOMIC_SEQ_CST);
    }
}

/* A call that comes back after close has something to say, and nobody to say
 * it to. */
static void test_silent_after_close(void **state)
{
    simstore_t *store = simstore_create(7);
    ldr_backend_t *b = simstore_backend(store);
    ldr_seal_t seal = {.encrypts = false};
    uint8_t id[LDR_ID_BYTES], junk[64] = {1};
    uint32_t tenant;
    ldr_objects_t *tier;

    (void)state;
    ldr_objects_params_t p = {
        .backend = b,
        .threads = 2,
        .timeout_ms = 5000,
        .retry_ms = 50,
        .clock = &ldr_clock_real,
        .log = {.fn = log_once},
    };
    simstore_write(store, RIG_TENANT "/check", junk, sizeof(junk));
    simstore_hang(b, SIMSTORE_GET, true);
    assert_int_equal(ldr_objects_open(&p, &tier), LARDER_OK);
    rig_tenant_id(id);
    assert_int_equal(
        ldr_objects_tenant(tier, id, "acme", &seal, after(RIG_MS), &tenant),
        LARDER_OK);
    uint64_t until_ms = real_now_ms() + 20000;
    while (simstore_hanging(b) == 0 && real_now_ms() < until_ms) {
        real_pause();
    }
    assert_int_equal(simstore_hanging(b), 1);
    assert_false(ldr_objects_close(tier, after(100 * RIG_MS)));
    __atomic_store_n(&log_is_gone, true, __ATOMIC_SEQ_CST);
    simstore_hang(b, SIMSTORE_GET, false);
    until_ms = real_now_ms() + 20000;
    while (simstore_backends(store) > 0 && real_now_ms() < until_ms) {
        real_pause();
    }
    assert_int_equal(simstore_backends(store), 0);
    assert_int_equal(__atomic_load_n(&said_late, __ATOMIC_SEQ_CST), 0);
    simstore_destroy(store);
}

/* A medium that is away at the start does not hold anybody up. */
static void test_away_at_start(void **state)
{
    static real_node_t a;
    simstore_t *store = simstore_create(6);
    ldr_objects_stats_t s;

    (void)state;
    simstore_away(store, true);
    uint64_t begin_ms = real_now_ms();
    open_node(store, &a, 2);
    assert_true(real_now_ms() - begin_ms < 20000); /* not DEADLINE_NS */
    ldr_objects_stats(a.tier, &s);
    assert_int_equal(s.state, LDR_OBJECTS_OFF);
    assert_true(s.reason[0] != '\0');
    simstore_away(store, false);
    await_ready(&a);
    assert_true(ldr_objects_close(a.tier, after(DEADLINE_NS)));
    simstore_destroy(store);
}

typedef struct looker {
    ldr_objects_t *tier;
    unsigned looks; /* relaxed, both: they order nothing */
    bool end;
} looker_t;

static void *look(void *arg)
{
    looker_t *l = arg;
    ldr_objects_stats_t s;

    while (!__atomic_load_n(&l->end, __ATOMIC_RELAXED)) {
        ldr_objects_stats(l->tier, &s);
        __atomic_add_fetch(&l->looks, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

static unsigned looks_of(const looker_t *l)
{
    return __atomic_load_n(&l->looks, __ATOMIC_RELAXED);
}

/* A node takes the cleaner's role while somebody looks at its figures: for the
 * thread sanitizer, which must have nothing to say. The chore is held up in its
 * call while the other looks, so that nothing orders the two by chance. */
static void test_looked_at(void **state)
{
    static real_node_t a;
    simstore_t *store = simstore_create(8);
    uint64_t until_ms = real_now_ms() + 20000;
    looker_t l = {.looks = 0};
    ldr_objects_stats_t s;
    pthread_t thread;

    (void)state;
    open_node(store, &a, 4);
    await_ready(&a);
    simstore_hang(a.backend, SIMSTORE_SIZE, true);
    /* One that probes, and the chore that looks whether the role is ours. */
    while (simstore_hanging(a.backend) < 2 && real_now_ms() < until_ms) {
        real_pause();
    }
    assert_int_equal(simstore_hanging(a.backend), 2);
    l.tier = a.tier;
    assert_int_equal(pthread_create(&thread, NULL, look, &l), 0);
    while (looks_of(&l) < 10 && real_now_ms() < until_ms) {
        real_pause();
    }
    simstore_hang(a.backend, SIMSTORE_SIZE, false);
    do {
        real_pause();
        ldr_objects_stats(a.tier, &s);
    } while (!s.cleaner && real_now_ms() < until_ms);
    __atomic_store_n(&l.end, true, __ATOMIC_RELAXED);
    pthread_join(thread, NULL);
    assert_true(s.cleaner);
    assert_true(ldr_objects_close(a.tier, after(DEADLINE_NS)));
    simstore_destroy(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_cold),
        cmocka_unit_test(test_turns_to_seal),
        cmocka_unit_test(test_close_hanging),
        cmocka_unit_test(test_silent_after_close),
        cmocka_unit_test(test_away_at_start),
        cmocka_unit_test(test_looked_at),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
