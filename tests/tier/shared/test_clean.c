/*
 * The cleaner, and thousands of schedules of nodes that save, load, reset,
 * remove and die, over storage that fails and lists what was, against a model:
 *
 *   - what is read is what was saved under that name, whole, and not reset or
 *     removed as far as the reader has to know
 *   - in the end, when the storage is well again: all nodes find the same;
 *     every object is known and every object that is known is there; nothing
 *     is there that is dead, or dead to a quarter; the budget is kept
 *
 * LARDER_SCHEDULES sets how many; LARDER_SEED the first.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/fault.h"
#include "tier/shared/objects_rig.h"
#include "support/real.h"

#define OBJECTS RIG_TENANT "/o/"
#define MANIFESTS RIG_TENANT "/m/"

/* Long enough for every rule of the cleaner to have had its turn. */
static void settle(world_t *w)
{
    world_pass(w, 80 * RIG_SECOND, RIG_SECOND);
    world_pass(w, 12 * RIG_SECOND, 20 * RIG_MS); /* two walks and more */
    world_pass(w, 80 * RIG_SECOND, RIG_SECOND);
}

static node_t *cleaner_of(world_t *w)
{
    for (unsigned i = 0; i < w->node_count; i++) {
        if (w->nodes[i].tier != NULL && stats_of(&w->nodes[i]).cleaner) {
            return &w->nodes[i];
        }
    }
    return NULL;
}

static unsigned cleaners_of(world_t *w)
{
    unsigned n = 0;

    for (unsigned i = 0; i < w->node_count; i++) {
        n += w->nodes[i].tier != NULL && stats_of(&w->nodes[i]).cleaner;
    }
    return n;
}

/* ---- one thing at a time ---- */

static void test_lease(void **state)
{
    world_t w;

    (void)state;
    world_open(&w, 1, 3);
    nodes_open(&w, 3);
    world_pass(&w, 5 * RIG_SECOND, 100 * RIG_MS);
    assert_int_equal(cleaners_of(&w), 1);
    /* It is kept up. */
    node_t *first = cleaner_of(&w);
    world_pass(&w, 200 * RIG_SECOND, RIG_SECOND);
    assert_ptr_equal(cleaner_of(&w), first);
    assert_int_equal(cleaners_of(&w), 1);
    /* Given up at close, it is taken soon; from one that died, later. */
    node_close(first);
    world_pass(&w, 20 * RIG_SECOND, RIG_SECOND);
    node_t *second = cleaner_of(&w);
    assert_non_null(second);
    assert_int_equal(cleaners_of(&w), 1);
    simstore_crash_at(second->backend, 1);
    world_pass(&w, 40 * RIG_SECOND, RIG_SECOND);
    node_close(second);
    assert_null(cleaner_of(&w));
    world_pass(&w, 60 * RIG_SECOND, RIG_SECOND);
    assert_int_equal(cleaners_of(&w), 1);
    world_close(&w);
}

static void test_budget(void **state)
{
    world_t w;

    (void)state;
    world_open(&w, 1, 2);
    w.params.max_bytes = 40 * LDR_BLOCK;
    nodes_open(&w, 2);
    for (unsigned k = 0; k < RIG_KEYS; k++) {
        assert_int_equal(node_put(&w.nodes[k % 2], 0, &k, 1), 0);
        world_pass(&w, 20 * RIG_SECOND, 500 * RIG_MS);
        /* The first is used all the time. */
        assert_int_not_equal(node_get(&w.nodes[1], 0, 0, NULL), 0);
    }
    world_pass(&w, 10 * RIG_SECOND, 100 * RIG_MS);
    assert_true(simstore_bytes(w.store, OBJECTS) <= w.params.max_bytes);
    assert_true(simstore_bytes(w.store, OBJECTS) >= w.params.max_bytes / 2);
    unsigned found = 0;
    for (unsigned k = 1; k < RIG_KEYS; k++) {
        unsigned here = node_get(&w.nodes[0], 0, k, NULL) != 0;

        assert_true(here || found == 0); /* the oldest went first */
        found += here;
    }
    assert_true(found > 0 && found < RIG_KEYS - 2);
    assert_int_equal(stats_of(&w.nodes[0]).gone, 0); /* all were told before */
    assert_int_equal(stats_of(&w.nodes[1]).gone, 0);
    world_close(&w);
}

static void test_age(void **state)
{
    world_t w;

    (void)state;
    world_open(&w, 1, 2);
    w.params.max_age_s = 100;
    nodes_open(&w, 2);
    for (unsigned k = 0; k < 2; k++) {
        assert_int_equal(node_put(&w.nodes[0], 0, &k, 1), 0);
    }
    for (unsigned i = 0; i < 20; i++) {
        world_pass(&w, 20 * RIG_SECOND, RIG_SECOND);
        /* A use on one node keeps it for the cleaner, whoever that is. */
        assert_int_not_equal(node_get(&w.nodes[1], 0, 1, NULL), 0);
    }
    assert_int_equal(node_get(&w.nodes[0], 0, 0, NULL), 0);
    assert_int_equal(simstore_count(w.store, OBJECTS), 1);
    world_pass(&w, 200 * RIG_SECOND, RIG_SECOND);
    assert_int_equal(simstore_count(w.store, OBJECTS), 0);
    world_close(&w);
}

/* The writer dies before it has told anybody. */
static void test_orphan(void **state)
{
    world_t w;
    const unsigned keys[] = {3, 4, 5};

    (void)state;
    world_open(&w, 1, 2);
    nodes_open(&w, 2);
    node_t *a = &w.nodes[0], *b = &w.nodes[1];
    assert_int_equal(node_put(a, 0, keys, 3), 0);
    simstore_crash_at(a->backend, 1);
    world_pass(&w, RIG_SECOND, 10 * RIG_MS);
    node_close(a);
    assert_int_equal(node_get(b, 0, 3, NULL), 0);
    world_pass(&w, 5 * RIG_SECOND, 20 * RIG_MS);
    assert_int_equal(node_get(b, 0, 3, NULL), 0); /* too young */
    settle(&w);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_not_equal(node_get(b, 0, keys[i], NULL), 0);
    }
    assert_int_equal(stats_of(b).adopted, 1);
    node_open(a);
    world_run(&w);
    assert_int_not_equal(node_get(a, 0, 4, NULL), 0);
    world_close(&w);
}

/* Both save the same: both succeed, and one copy is kept. */
static void test_duplicates(void **state)
{
    world_t w;
    const unsigned keys[] = {1, 2, 3, 4};

    (void)state;
    world_open(&w, 1, 2);
    nodes_open(&w, 2);
    assert_int_equal(node_put(&w.nodes[0], 0, keys, 4), 0);
    assert_int_equal(node_put(&w.nodes[1], 0, keys, 4), 0);
    assert_int_equal(simstore_count(w.store, OBJECTS), 2);
    settle(&w);
    assert_int_equal(simstore_count(w.store, OBJECTS), 1);
    for (unsigned i = 0; i < 8; i++) {
        assert_int_not_equal(node_get(&w.nodes[i % 2], 0, keys[i / 2], NULL),
                             0);
    }
    world_close(&w);
}

static void compact(bool encrypts)
{
    world_t w;

    world_open(&w, 1, 2);
    w.seal.encrypts = encrypts;
    nodes_open(&w, 2);
    /* Small objects become one. */
    for (unsigned k = 0; k < 16; k++) {
        assert_int_equal(node_put(&w.nodes[k % 2], 0, &k, 1), 0);
    }
    assert_int_equal(simstore_count(w.store, OBJECTS), 16);
    settle(&w);
    assert_true(simstore_count(w.store, OBJECTS) < 8);
    for (unsigned k = 0; k < 16; k++) {
        assert_int_not_equal(node_get(&w.nodes[0], 0, k, NULL), 0);
        assert_int_not_equal(node_get(&w.nodes[1], 0, k, NULL), 0);
    }
    /* What is removed leaves, and takes no room any more. */
    uint64_t before = simstore_bytes(w.store, OBJECTS);
    for (unsigned k = 0; k < 12; k++) {
        assert_int_equal(node_remove(&w.nodes[0], 0, k), LARDER_OK);
    }
    settle(&w);
    assert_true(simstore_bytes(w.store, OBJECTS) < before / 2);
    for (unsigned k = 0; k < 16; k++) {
        assert_true((node_get(&w.nodes[1], 0, k, NULL) != 0) == (k >= 12));
    }
    node_t *c = cleaner_of(&w);
    assert_true(stats_of(c).compacted >= 16);
    node_close(&w.nodes[1]);
    node_open(&w.nodes[1]);
    world_run(&w);
    for (unsigned k = 0; k < 16; k++) {
        assert_true((node_get(&w.nodes[1], 0, k, NULL) != 0) == (k >= 12));
    }
    world_close(&w);
}

static void test_compact(void **state)
{
    (void)state;
    compact(false);
    compact(true);
}

static void test_reset_frees(void **state)
{
    world_t w;

    (void)state;
    world_open(&w, 1, 2);
    nodes_open(&w, 2);
    for (unsigned i = 0; i < 5; i++) {
        for (unsigned k = 0; k < 8; k++) {
            assert_int_equal(node_put(&w.nodes[0], 0, &k, 1), 0);
        }
        world_pass(&w, RIG_SECOND, 100 * RIG_MS);
        assert_int_equal(node_reset(&w.nodes[1], 0), LARDER_OK);
        world_pass(&w, RIG_SECOND, 100 * RIG_MS);
    }
    settle(&w);
    assert_int_equal(simstore_count(w.store, OBJECTS), 0);
    /* Of five resets the last is what there is to know. */
    assert_int_equal(simstore_count(w.store, RIG_TENANT "/e/"), 1);
    node_close(&w.nodes[0]);
    node_open(&w.nodes[0]);
    world_run(&w);
    assert_int_equal(w.nodes[0].epoch[0], 5);
    world_close(&w);
}

static void test_merge(void **state)
{
    world_t w;

    (void)state;
    world_open(&w, 1, 3);
    nodes_open(&w, 2);
    for (unsigned i = 0; i < 200; i++) {
        unsigned k = i % RIG_KEYS;

        node_put(&w.nodes[i % 2], i % 2, &k, 1);
        world_pass(&w, 100 * RIG_MS, 100 * RIG_MS);
    }
    settle(&w);
    assert_true(stats_of(&w.nodes[0]).manifests_written +
                    stats_of(&w.nodes[1]).manifests_written >
                200);
    assert_true(simstore_count(w.store, MANIFESTS) <= 8);
    node_open(&w.nodes[2]);
    world_run(&w);
    for (unsigned k = 0; k < RIG_KEYS; k++) {
        for (unsigned s = 0; s < 2; s++) {
            bool here = node_get(&w.nodes[0], s, k, NULL) != 0;

            assert_true((node_get(&w.nodes[2], s, k, NULL) != 0) == here);
        }
    }
    assert_int_equal(stats_of(&w.nodes[2]).gone, 0);
    world_close(&w);
}

/* Nothing is removed before all can know. */
static void test_published_before_removed(void **state)
{
    world_t w;
    unsigned k = 1;

    (void)state;
    world_open(&w, 1, 1);
    w.params.max_age_s = 5;
    nodes_open(&w, 1);
    world_pass(&w, 3 * RIG_SECOND, 100 * RIG_MS);
    assert_true(stats_of(&w.nodes[0]).cleaner);
    assert_int_equal(node_put(&w.nodes[0], 0, &k, 1), 0);
    world_pass(&w, RIG_SECOND, 100 * RIG_MS);
    /* An error that says nothing of the medium. */
    simstore_fail(w.nodes[0].backend, SIMSTORE_PUT, 1, 0, -ENOENT);
    world_pass(&w, 15 * RIG_SECOND, 100 * RIG_MS);
    assert_int_equal(node_get(&w.nodes[0], 0, 1, NULL), 0);
    assert_int_equal(simstore_count(w.store, OBJECTS), 1);
    simstore_fail(w.nodes[0].backend, SIMSTORE_PUT, 0, 0, 0);
    world_pass(&w, 5 * RIG_SECOND, 100 * RIG_MS);
    assert_int_equal(simstore_count(w.store, OBJECTS), 0);
    world_close(&w);
}

/* Whatever is read first: that it was there, or that it is gone. */
static void test_join(void **state)
{
    world_t w;

    (void)state;
    for (uint64_t seed = 1; seed <= 8; seed++) {
        world_open(&w, seed, 3);
        w.params.max_age_s = 5;
        nodes_open(&w, 2);
        world_pass(&w, 3 * RIG_SECOND, 100 * RIG_MS);
        for (unsigned k = 0; k < 4; k++) {
            assert_int_equal(node_put(&w.nodes[0], 0, &k, 1), 0);
            assert_int_equal(node_put(&w.nodes[1], 1, &k, 1), 0);
        }
        world_pass(&w, 10 * RIG_SECOND, 100 * RIG_MS);
        assert_int_equal(simstore_count(w.store, OBJECTS), 0);
        node_open(&w.nodes[2]);
        world_run(&w);
        assert_string_equal(stats_of(&w.nodes[2]).reason, "");
        assert_true(stats_of(&w.nodes[2]).manifests_read >= 3);
        assert_int_equal(stats_of(&w.nodes[2]).objects, 0);
        world_close(&w);
    }
}

/* Objects that somebody else has removed are found out without a reader. */
static void test_lost(void **state)
{
    world_t w;

    (void)state;
    world_open(&w, 1, 2);
    nodes_open(&w, 2);
    for (unsigned k = 0; k < 4; k++) {
        assert_int_equal(node_put(&w.nodes[0], 0, &k, 1), 0);
    }
    world_pass(&w, RIG_SECOND, 100 * RIG_MS);
    simstore_lose(w.store, simstore_name(w.store, OBJECTS, 0));
    world_pass(&w, 80 * RIG_SECOND, RIG_SECOND);
    world_pass(&w, 40 * RIG_SECOND, 20 * RIG_MS);
    assert_int_equal(stats_of(&w.nodes[0]).objects, 3);
    assert_int_equal(stats_of(&w.nodes[1]).objects, 3);
    assert_int_equal(stats_of(&w.nodes[0]).gone, 0);
    world_close(&w);
}

/* On a full medium the cleaner still makes room. */
static void test_full(void **state)
{
    world_t w;
    unsigned k;

    (void)state;
    world_open(&w, 1, 1);
    w.params.max_bytes = 30 * LDR_BLOCK;
    nodes_open(&w, 1);
    node_t *a = &w.nodes[0];
    world_pass(&w, 5 * RIG_SECOND, 100 * RIG_MS);
    assert_true(stats_of(a).cleaner);
    for (k = 0; k < RIG_KEYS && simstore_bytes(w.store, OBJECTS) <
                                    w.params.max_bytes + 8 * LDR_BLOCK;
         k++) {
        assert_int_equal(node_put(a, 0, &k, 1), 0);
    }
    /* Not a byte more. */
    simstore_capacity(w.store, simstore_bytes(w.store, ""));
    assert_int_equal(node_put(a, 0, &k, 1), -ENOSPC);
    assert_int_equal(stats_of(a).state, LDR_OBJECTS_READONLY);
    world_pass(&w, 10 * RIG_SECOND, 100 * RIG_MS);
    assert_true(simstore_bytes(w.store, OBJECTS) <= w.params.max_bytes);
    assert_int_equal(node_put(a, 0, &k, 1), 0);
    assert_int_equal(stats_of(a).state, LDR_OBJECTS_ON);
    world_close(&w);
}

/* Every allocation fails once, while all of it goes on: nothing wrong is read,
 * and in the end everything is as it should be. */
static void test_no_memory(void **state)
{
    static const unsigned keys[] = {1, 2, 3, 4};
    world_t w;
    bool fired = true;

    (void)state;
    for (uint64_t nth = 1; fired; nth += REAL_SANITIZED ? 7 : 1) {
        world_open(&w, nth, 2);
        nodes_open(&w, 2);
        ldr_fault_arm(LDR_FAULT_alloc, nth, 1);
        for (unsigned i = 0; i < 12; i++) {
            node_put(&w.nodes[i % 2], i % 3 == 0, keys, 1 + i % 4);
            world_pass(&w, 100 * RIG_MS, 50 * RIG_MS);
            node_get(&w.nodes[0], 0, 1 + i % 4, NULL);
        }
        node_remove(&w.nodes[0], 0, 4);
        node_reset(&w.nodes[1], 1);
        world_pass(&w, 70 * RIG_SECOND, RIG_SECOND);
        node_get(&w.nodes[0], 0, 1, NULL);
        fired = ldr_fault_fired(LDR_FAULT_alloc) > 0;
        ldr_fault_disarm_all();
        settle(&w);
        for (unsigned i = 0; i < 2; i++) {
            ldr_objects_stats_t s = stats_of(&w.nodes[i]);

            assert_int_equal(s.state, LDR_OBJECTS_ON);
            assert_string_equal(s.reason, "");
            assert_int_equal(s.objects, simstore_count(w.store, OBJECTS));
            assert_int_equal(s.unpublished, 0);
        }
        world_close(&w);
    }
}

/* ---- schedules ---- */

typedef struct past {
    uint64_t floor[RIG_SPACES]; /* saves that were reset, in the whole world */
    uint64_t kfloor[RIG_SPACES][RIG_KEYS];
    bool removed[RIG_SPACES][RIG_KEYS]; /* ever */
    uint64_t crashes;
} past_t;

/* Who has polled since must know. */
static void synced(world_t *w, const past_t *past)
{
    for (unsigned i = 0; i < w->node_count; i++) {
        memcpy(w->nodes[i].floor, past->floor, sizeof(past->floor));
        memcpy(w->nodes[i].kfloor, past->kfloor, sizeof(past->kfloor));
    }
}

/* What happened at all: a schedule in which nothing does proves nothing. */
typedef struct sums {
    uint64_t hits, crashes, adopted, compacted, cleaned, gone, bad;
} sums_t;

static void count_up(const node_t *n, sums_t *sums)
{
    ldr_objects_stats_t s = stats_of(n);

    sums->adopted += s.adopted;
    sums->compacted += s.compacted;
    sums->cleaned += s.cleaned_objects;
    sums->gone += s.gone;
    sums->bad += s.corrupt + s.manifests_bad;
}

static void restart(node_t *n, past_t *past)
{
    past->crashes++;
    node_close(n);
    node_open(n);
}

static void act(world_t *w, past_t *past, unsigned faults)
{
    node_t *n = &w->nodes[ldr_rand_below(&w->rand, w->node_count)];
    unsigned space = (unsigned)ldr_rand_below(&w->rand, RIG_SPACES);
    unsigned first = (unsigned)ldr_rand_below(&w->rand, RIG_KEYS);
    unsigned keys[4], count = 1 + (unsigned)ldr_rand_below(&w->rand, 4);
    uint64_t upto = w->save_count, gone = removed_upto(w);

    for (unsigned i = 0; i < count; i++) {
        keys[i] = (first + i) % RIG_KEYS;
    }
    switch (ldr_rand_below(&w->rand, 16)) {
    case 0:
    case 1:
    case 2:
    case 3:
    case 4:
        node_put(n, space, keys, count);
        break;
    case 5:
    case 6:
    case 7:
    case 8:
        node_get(n, space, first, NULL);
        break;
    case 9:
        if (ldr_rand_below(&w->rand, 4) == 0 &&
            node_reset(n, space) == LARDER_OK) {
            past->floor[space] = upto;
        }
        break;
    case 10:
        past->removed[space][first] = true;
        if (node_remove(n, space, first) == LARDER_OK) {
            past->kfloor[space][first] =
                ldr_max64(past->kfloor[space][first], gone);
        }
        break;
    case 11:
        if (faults > 0 && ldr_rand_below(&w->rand, 3) == 0) {
            simstore_crash_at(n->backend, 1 + ldr_rand_below(&w->rand, 40));
        }
        break;
    case 12:
        w->now_ns += ldr_rand_below(&w->rand, 20) * RIG_SECOND;
        break;
    default:
        w->now_ns += ldr_rand_below(&w->rand, 200) * RIG_MS;
        break;
    }
    for (unsigned i = 0; i < 6; i++) {
        node_step(&w->nodes[ldr_rand_below(&w->rand, w->node_count)]);
    }
    for (unsigned i = 0; i < w->node_count; i++) {
        if (simstore_crashed(w->nodes[i].backend) &&
            ldr_rand_below(&w->rand, 8) == 0) {
            restart(&w->nodes[i], past);
            simstore_noise(w->nodes[i].backend, faults);
            simstore_stale(w->nodes[i].backend, 10 * faults, 20);
        }
    }
}

/* All nodes are well, and hear everything. */
static void heal(world_t *w, past_t *past)
{
    w->nests = false;
    for (unsigned i = 0; i < w->node_count; i++) {
        node_t *n = &w->nodes[i];

        if (simstore_crashed(n->backend)) {
            restart(n, past);
        }
        simstore_crash_at(n->backend, UINT32_MAX);
        simstore_noise(n->backend, 0);
        simstore_stale(n->backend, 0, 0);
    }
    world_pass(w, 5 * RIG_SECOND, 50 * RIG_MS);
}

/* Which copy of a shard is left where another was taken away is for each node
 * to find out: those that knew of both may miss it. */
static void check_same(node_t *a, node_t *b, const past_t *past)
{
    bool strict =
        a->world->params.max_bytes == 0 && a->world->params.max_age_s == 0;

    for (unsigned s = 0; s < RIG_SPACES; s++) {
        RIG_CHECK(a->epoch[s] == b->epoch[s]);
        for (unsigned k = 0; k < RIG_KEYS; k++) {
            uint64_t one = node_get(a, s, k, NULL);
            uint64_t other = node_get(b, s, k, NULL);

            if (one != other && strict && !past->removed[s][k]) {
                fprintf(stderr, "space %u key %u: %llu %llu\n", s, k,
                        (unsigned long long)one, (unsigned long long)other);
            }
            RIG_CHECK(one == other || !strict || past->removed[s][k]);
        }
    }
}

static void check_end(world_t *w, const past_t *past)
{
    uint64_t bytes = simstore_bytes(w->store, OBJECTS);
    unsigned objects = simstore_count(w->store, OBJECTS);

    RIG_CHECK(w->params.max_bytes == 0 || bytes <= w->params.max_bytes);
    RIG_CHECK(cleaners_of(w) == 1);
    RIG_CHECK(simstore_count(w->store, RIG_TENANT "/e/") <= RIG_SPACES);
    RIG_CHECK(simstore_count(w->store, MANIFESTS) <= 16);
    for (unsigned i = 0; i < w->node_count; i++) {
        node_t *n = &w->nodes[i];
        ldr_objects_stats_t s = stats_of(n);

        RIG_CHECK(s.state == LDR_OBJECTS_ON && s.reason[0] == '\0');
        RIG_CHECK(s.unpublished == 0);
        RIG_CHECK(s.objects == objects);
        RIG_CHECK(!s.cleaner || s.dead_bytes * 4 <= s.bytes);
        check_same(&w->nodes[0], n, past);
        RIG_CHECK(stats_of(n).gone == s.gone);
    }
}

static void schedule(uint64_t seed, sums_t *sums)
{
    static world_t w;
    past_t past;
    unsigned faults;

    memset(&past, 0, sizeof(past));
    world_open(&w, seed, 2 + (unsigned)(seed % 3));
    faults = seed % 4 == 0 ? 0 : 5 * (unsigned)(seed % 7);
    w.params.max_bytes = seed % 5 == 0 ? 60 * LDR_BLOCK : 0;
    w.params.max_age_s = seed % 11 == 0 ? 40 : 0;
    w.seal.encrypts = seed % 6 == 0;
    nodes_open(&w, w.node_count);
    w.nests = true;
    for (unsigned i = 0; i < w.node_count; i++) {
        simstore_noise(w.nodes[i].backend, faults);
        simstore_stale(w.nodes[i].backend, 10 * faults, 20);
    }
    for (unsigned i = 0; i < 120; i++) {
        act(&w, &past, faults);
    }
    heal(&w, &past);
    synced(&w, &past);
    for (unsigned i = 0; i < w.node_count; i++) {
        for (unsigned k = 0; k < RIG_KEYS; k++) {
            node_get(&w.nodes[i], k % RIG_SPACES, k, NULL);
        }
    }
    settle(&w);
    check_end(&w, &past);
    sums->hits += w.hits;
    for (unsigned i = 0; i < w.node_count; i++) {
        count_up(&w.nodes[i], sums);
    }
    sums->crashes += past.crashes;
    world_close(&w);
}

static void test_schedules(void **state)
{
    uint64_t first = real_number("LARDER_SEED", 1);
    sums_t sums = {0};
    uint64_t count =
        real_number("LARDER_SCHEDULES", REAL_SANITIZED ? 200 : 2000);

    (void)state;
    for (uint64_t i = 0; i < count; i++) {
        if (getenv("RIG_VERBOSE") != NULL) {
            fprintf(stderr, "seed %llu\n", (unsigned long long)(first + i));
        }
        schedule(first + i, &sums);
    }
    printf("%llu schedules: %llu hits, %llu crashes, %llu adopted, "
           "%llu compacted, %llu removed, %llu gone\n",
           (unsigned long long)count, (unsigned long long)sums.hits,
           (unsigned long long)sums.crashes, (unsigned long long)sums.adopted,
           (unsigned long long)sums.compacted, (unsigned long long)sums.cleaned,
           (unsigned long long)sums.gone);
    assert_int_equal(sums.bad, 0);
    if (count >= 100) {
        assert_true(sums.hits > count && sums.crashes > count / 2);
        assert_true(sums.adopted > 0 && sums.compacted > 0 && sums.cleaned > 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lease),
        cmocka_unit_test(test_budget),
        cmocka_unit_test(test_age),
        cmocka_unit_test(test_orphan),
        cmocka_unit_test(test_duplicates),
        cmocka_unit_test(test_compact),
        cmocka_unit_test(test_reset_frees),
        cmocka_unit_test(test_merge),
        cmocka_unit_test(test_join),
        cmocka_unit_test(test_published_before_removed),
        cmocka_unit_test(test_lost),
        cmocka_unit_test(test_full),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_schedules),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
