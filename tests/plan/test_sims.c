/* Each cache against an answer worked out by hand, and against a slow one that
 * follows the rule to the letter. */
#include "plan/plan.h"
#include "plan/rig.h"
#include "plan/sim_ssd.h"

#define NEVER UINT64_MAX

static void check(const char *requests, const ldr_sim_ops_t *ops,
                  uint32_t capacity, uint64_t hits)
{
    ldr_tape_t tape;

    rig_tape(requests, &tape);
    uint64_t got = rig_hits(ops, &tape, capacity);
    if (got != hits) {
        fail_msg("%s with %u blocks of '%s': %llu hits, not %llu", ops->name,
                 capacity, requests, (unsigned long long)got,
                 (unsigned long long)hits);
    }
    ldr_tape_close(&tape);
}

static void test_by_hand(void **state)
{
    (void)state;
    /* Leaves first: of 1 2 3 the 3 goes for the 9. */
    check("1 2 3;9;1 2 3", &ldr_sim_lru, 3, 2);
    check("1 2 3;9;1 2 3", &ldr_sim_optimal, 3, 3); /* 9 is not taken in */
    check("1 2;3;1 2;4;1 2", &ldr_sim_lru, 3, 4);
    /* Longer than the cache: its beginning stays. */
    check("1 2 3 4 5;1 2 3 4 5", &ldr_sim_lru, 3, 3);
    check("1 2 3 4 5;1 2 3 4 5", &ldr_sim_optimal, 3, 3);
    /* Used once, twice, and in between a stream of others. */
    check("1;1;1;2;3;4;5;6;7;8;9;10;11;12;1", &ldr_sim_lru, 10, 2);
    /* Everything fits. */
    for (unsigned i = 0; ldr_sim_at(i) != NULL; i++) {
        check("1 2 3;1 2 4;5;1 2 3 6;5", ldr_sim_at(i), 100, 2 + 3 + 1);
        check("1 2 3;1 2 4;5;1 2 3 6;5", ldr_sim_at(i), UINT32_MAX, 6);
        check("1;1;1", ldr_sim_at(i), 1, 2);
    }
}

/* ---- slow and plain ---- */

/* score[b]: what has the least goes; NEVER: not here. */
typedef struct slow {
    uint64_t *score;
    uint32_t count, distinct;
} slow_t;

static void slow_evict(slow_t *s)
{
    uint32_t least = 0;

    for (uint32_t b = 1; b < s->distinct; b++) {
        least = s->score[b] < s->score[least] ? b : least;
    }
    s->score[least] = NEVER;
    s->count--;
}

static void slow_put(slow_t *s, uint32_t block, uint64_t score)
{
    s->count += s->score[block] == NEVER;
    s->score[block] = score;
}

enum { SLOW_LRU, SLOW_OPTIMAL };

/* The scores of a request's blocks, one after the other. */
static void slow_use(slow_t *s, int kind, const uint32_t *blocks,
                     uint32_t count, const uint32_t *next, uint32_t capacity)
{
    static uint64_t clock;

    for (uint32_t i = 0; i < count; i++) {
        /* LRU sees the deepest block first. */
        uint32_t b = blocks[kind == SLOW_LRU ? count - 1 - i : i];

        if (kind == SLOW_OPTIMAL) {
            slow_put(s, b, UINT32_MAX - (uint64_t)next[i]);
        } else {
            slow_put(s, b, ++clock);
        }
        if (s->count > capacity) {
            slow_evict(s);
        }
    }
}

static uint64_t slow_hits(const ldr_tape_t *tape, int kind, uint32_t capacity)
{
    const ldr_tape_request_t *request;
    const uint32_t *blocks;
    ldr_player_t player;
    slow_t s = {.distinct = tape->distinct};
    uint32_t *next = malloc(tape->references * 4);
    uint64_t hits = 0, place = 0;

    s.score = malloc(tape->distinct * sizeof(*s.score));
    assert_non_null(s.score);
    assert_non_null(next);
    assert_true(ldr_tape_pread(tape->future_fd, next, tape->references * 4, 0));
    memset(s.score, 0xff, tape->distinct * sizeof(*s.score));
    assert_int_equal(ldr_player_open(tape, &player), LARDER_OK);
    while (ldr_player_next(&player, &request, &blocks) > 0) {
        for (uint32_t i = 0; i < request->count && s.score[blocks[i]] != NEVER;
             i++) {
            hits++;
        }
        slow_use(&s, kind, blocks, request->count, next + place, capacity);
        place += request->count;
    }
    ldr_player_close(&player);
    free(s.score);
    free(next);
    return hits;
}

static void test_against_slow(void **state)
{
    static const struct {
        const ldr_sim_ops_t *ops;
        int kind;
    } pairs[] = {{&ldr_sim_lru, SLOW_LRU}, {&ldr_sim_optimal, SLOW_OPTIMAL}};

    (void)state;
    for (uint64_t seed = 1; seed <= 6; seed++) {
        ldr_tape_t tape;

        rig_random(seed, 150, &tape);
        assert_true(ldr_tape_future(&tape));
        for (uint32_t capacity = 1; capacity < tape.distinct + 9;
             capacity += 1 + capacity / 3) {
            for (unsigned i = 0; i < 2; i++) {
                assert_int_equal(rig_hits(pairs[i].ops, &tape, capacity),
                                 slow_hits(&tape, pairs[i].kind, capacity));
            }
        }
        ldr_tape_close(&tape);
    }
}

/* Nothing beats the optimum, and nothing is above an endless cache. */
static void test_bounds(void **state)
{
    (void)state;
    for (uint64_t seed = 11; seed <= 14; seed++) {
        ldr_tape_t tape;

        rig_random(seed, 400, &tape);
        for (uint32_t capacity = 1; capacity < tape.distinct;
             capacity += 1 + capacity / 2) {
            uint64_t most = rig_hits(&ldr_sim_optimal, &tape, capacity);

            assert_true(most <= tape.references - tape.distinct);
            for (unsigned i = 0; ldr_sim_at(i) != NULL; i++) {
                assert_true(rig_hits(ldr_sim_at(i), &tape, capacity) <= most);
            }
        }
        ldr_tape_close(&tape);
    }
}

/* ---- nodes ---- */

/* Nodes that hold all miss nothing; each has its share, and one cache among
 * many behaves as it would alone. */
static void test_nodes(void **state)
{
    const ldr_tape_request_t *request;
    const uint32_t *blocks;
    ldr_player_t player;
    ldr_tape_t tape;

    (void)state;
    rig_random(31, 300, &tape);
    for (uint32_t run = 1; run < 40; run += 6) {
        ldr_sim_params_t params = {tape.distinct * 5, 5, run};
        ldr_sim_t *sim = ldr_sim_lru.create(&ldr_sim_lru, &tape, &params);
        uint64_t hits = 0;

        assert_non_null(sim);
        assert_int_equal(ldr_player_open(&tape, &player), LARDER_OK);
        while (ldr_player_next(&player, &request, &blocks) > 0) {
            hits += ldr_sim_lru.prefix(sim, blocks, 0, request->count);
            assert_true(ldr_sim_lru.use(sim, request, blocks));
        }
        ldr_player_close(&player);
        assert_int_equal(hits, tape.references - tape.distinct);
        double busiest = ldr_sim_lru.busiest(sim);
        assert_true(busiest >= 1 && busiest <= 5);
        ldr_sim_lru.destroy(sim);
    }
    ldr_tape_close(&tape);
}

/* Ten blocks on two nodes of one block each: of those that meet on a node the
 * later one stays. */
static void test_nodes_evict(void **state)
{
    ldr_sim_params_t params = {2, 2, 1};
    ldr_tape_request_t request = {.count = 1};
    ldr_tape_t tape;
    unsigned here = 0;

    (void)state;
    rig_tape("0;1;2;3;4;5;6;7;8;9", &tape);
    ldr_sim_t *sim = ldr_sim_lru.create(&ldr_sim_lru, &tape, &params);
    assert_non_null(sim);
    for (uint32_t b = 0; b < 10; b++) {
        assert_true(ldr_sim_lru.use(sim, &request, &b));
        assert_int_equal(ldr_sim_lru.prefix(sim, &b, 0, 1), 1);
    }
    for (uint32_t b = 0; b < 10; b++) {
        here += ldr_sim_lru.prefix(sim, &b, 0, 1);
    }
    assert_int_equal(here, 2);
    ldr_sim_lru.destroy(sim);
    ldr_tape_close(&tape);
}

/* ---- odd traces ---- */

/* A block twice in a request, or below other parents, which no real trace has:
 * nothing breaks, and the rule holds. */
static void test_odd(void **state)
{
    static const char odd[] = "1 2 1 3;3 1 2;2 2 2;1 2 3;7 1;3 3";
    ldr_tape_t tape;

    (void)state;
    rig_tape(odd, &tape);
    for (unsigned i = 0; ldr_sim_at(i) != NULL; i++) {
        for (uint32_t capacity = 1; capacity < 6; capacity++) {
            uint64_t hits = rig_hits(ldr_sim_at(i), &tape, capacity);

            assert_true(hits <= tape.references);
            /* The optimum knows a block by its next use only. */
            if (capacity == 5 && ldr_sim_at(i) != &ldr_sim_optimal) {
                assert_int_equal(hits, 3 + 3 + 3 + 0 + 2);
            }
        }
    }
    ldr_tape_close(&tape);
}

/* ---- the SSD ---- */

static void ssd_use(ldr_ssd_sim_t *ssd, uint64_t at_s, uint32_t from,
                    uint32_t count)
{
    uint32_t blocks[64];
    ldr_tape_request_t request = {.at_ms = at_s * 1000, .count = count};

    for (uint32_t i = 0; i < count; i++) {
        blocks[i] = from + i;
    }
    ldr_ssd_sim_use(ssd, &request, blocks);
}

static void test_ssd(void **state)
{
    ldr_tape_t tape = {.distinct = 1000};
    /* 64 segments of 8 blocks, of which 2 may be carried. */
    ldr_ssd_sim_params_t p = {.capacity = 512, .policy = &ldr_policy_lru};
    ldr_ssd_sim_t *ssd = ldr_ssd_sim_create(&tape, &p);

    (void)state;
    assert_non_null(ssd);
    ssd_use(ssd, 0, 0, 8);
    ssd_use(ssd, 1, 0, 3); /* the first three are used again */
    for (uint32_t i = 1; i < 64; i++) {
        ssd_use(ssd, 2, 8 * i, 8);
    }
    assert_int_equal(ldr_ssd_sim_counts(ssd)->written, 512);
    assert_int_equal(ldr_ssd_sim_counts(ssd)->carried, 0);
    for (uint32_t b = 0; b < 512; b++) {
        assert_true(ldr_ssd_sim_holds(ssd, b));
    }
    assert_false(ldr_ssd_sim_holds(ssd, 512));
    ssd_use(ssd, 3, 512, 1); /* the oldest segment makes room */
    assert_int_equal(ldr_ssd_sim_counts(ssd)->written, 513);
    assert_int_equal(ldr_ssd_sim_counts(ssd)->carried, 2);
    assert_true(ldr_ssd_sim_holds(ssd, 0));
    assert_true(ldr_ssd_sim_holds(ssd, 1));
    for (uint32_t b = 2; b < 8; b++) {
        assert_false(ldr_ssd_sim_holds(ssd, b));
    }
    assert_true(ldr_ssd_sim_holds(ssd, 8));
    assert_true(ldr_ssd_sim_holds(ssd, 512));
    ldr_ssd_sim_destroy(ssd);
}

/* The disk writes two blocks a second, and four can wait. */
static void test_ssd_behind(void **state)
{
    ldr_tape_t tape = {.distinct = 1000};
    ldr_ssd_sim_params_t p = {
        .capacity = 512, .policy = &ldr_policy_lru, .a_second = 2, .queue = 4};
    ldr_ssd_sim_t *ssd = ldr_ssd_sim_create(&tape, &p);

    (void)state;
    assert_non_null(ssd);
    ssd_use(ssd, 0, 0, 10);
    assert_int_equal(ldr_ssd_sim_counts(ssd)->written, 4);
    assert_int_equal(ldr_ssd_sim_counts(ssd)->dropped, 6);
    ssd_use(ssd, 1, 10, 10); /* two are done */
    assert_int_equal(ldr_ssd_sim_counts(ssd)->written, 6);
    ssd_use(ssd, 100, 20, 3);
    assert_int_equal(ldr_ssd_sim_counts(ssd)->written, 9);
    assert_int_equal(ldr_ssd_sim_counts(ssd)->dropped, 14);
    assert_true(ldr_ssd_sim_holds(ssd, 11));
    assert_false(ldr_ssd_sim_holds(ssd, 12));
    ldr_ssd_sim_destroy(ssd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_hand), cmocka_unit_test(test_against_slow),
        cmocka_unit_test(test_bounds),  cmocka_unit_test(test_odd),
        cmocka_unit_test(test_ssd),     cmocka_unit_test(test_ssd_behind),
        cmocka_unit_test(test_nodes),   cmocka_unit_test(test_nodes_evict),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
