/* What hits are worth in time, worked out by hand. */
#include <math.h>

#include "plan/model.h"
#include "plan/plan.h"
#include "plan/engines.h"
#include "plan/rig.h"

static void assert_near(double got, double want)
{
    if (fabs(got - want) > 1e-9 + fabs(want) * 1e-6) {
        fail_msg("%.9g, not %.9g", got, want);
    }
}

/* 1000 tokens a second; 1 MB a token, 10 GB/s and 1 GB/s. */
static const ldr_model_t model = {
    .block_tokens = 100,
    .bytes_per_token = 1e6,
    .prefill_rate = 1000,
    .slow_tokens = 1e18,
    .dram = {10e9, 0.001},
    .ssd = {1e9, 0.01},
};

static void test_prefill(void **state)
{
    ldr_model_t m = model;

    (void)state;
    assert_near(ldr_model_prefill(&m, 0, 500), 0.5);
    m.slow_tokens = 1000;
    /* The integral of (1 + p / 1000) / 1000. */
    assert_near(ldr_model_prefill(&m, 0, 1000), 1.5);
    assert_near(ldr_model_prefill(&m, 1000, 2000), 2.5);
    assert_near(
        ldr_model_prefill(&m, 0, 700) + ldr_model_prefill(&m, 700, 1000), 1.5);
}

static void test_first_token(void **state)
{
    ldr_model_t m = model;
    ldr_found_t found = {0};
    ldr_first_token_t t = ldr_model_first_token(&m, 1000, &found);

    (void)state;
    assert_near(t.without_s, 1);
    assert_near(t.with_s, 1);
    assert_near(t.saved_s, 0);

    found = (ldr_found_t){.blocks = 4, .before_ssd = 4};
    t = ldr_model_first_token(&m, 1000, &found);
    assert_near(t.with_s, 0.6 + 0.001 + 0.04);
    assert_near(t.tokens, 400);
    assert_near(t.dram_tokens, 400);
    assert_near(t.saved_s, 0.4);

    /* Half of it comes up from SSD first. */
    found = (ldr_found_t){.blocks = 4, .ssd_blocks = 2, .before_ssd = 2};
    m.ssd.bytes_per_s = 2e9;
    t = ldr_model_first_token(&m, 1000, &found);
    assert_near(t.with_s, 0.6 + 0.001 + 0.04 + 0.01 + 0.1);
    assert_near(t.dram_tokens, 200);

    /* An SSD so slow that computing is faster: only what lies before it. */
    m.ssd.bytes_per_s = 0.5e9;
    t = ldr_model_first_token(&m, 1000, &found);
    assert_near(t.with_s, 0.8 + 0.001 + 0.02);
    assert_near(t.tokens, 200);

    /* And DRAM too: nothing is loaded. */
    m.dram.bytes_per_s = 0.5e9;
    t = ldr_model_first_token(&m, 1000, &found);
    assert_near(t.with_s, 1);
    assert_near(t.tokens, 0);

    /* All of it is there: one token is still computed. */
    found = (ldr_found_t){.blocks = 10, .before_ssd = 10};
    t = ldr_model_first_token(&model, 1000, &found);
    assert_near(t.tokens, 999);
    assert_near(t.with_s, 0.001 + 0.0999 + 0.001);
    t = ldr_model_first_token(&model, 0, &found);
    assert_near(t.with_s, 0);
}

static void test_known(void **state)
{
    (void)state;
    assert_int_equal(ldr_known_model_find("llama-3.1-8b")->bytes_per_token,
                     131072);
    assert_int_equal(ldr_known_model_find("Llama-3.1-70B")->bytes_per_token,
                     327680);
    assert_int_equal(ldr_known_model_find("deepseek-v3")->bytes_per_token,
                     70272);
    assert_null(ldr_known_model_find("gpt-9"));
    assert_near(ldr_model_rate(16e12, ldr_known_model_find("llama-3.1-8b")),
                1000);
}

static void test_times(void **state)
{
    static ldr_times_t t;

    (void)state;
    assert_near(ldr_times_quantile(&t, 0.5), 0);
    for (int i = 1; i <= 1000; i++) {
        ldr_times_add(&t, i * 1e-3);
    }
    assert_near(ldr_times_mean(&t), 0.5005);
    assert_true(fabs(ldr_times_quantile(&t, 0.5) / 0.500 - 1) < 0.025);
    assert_true(fabs(ldr_times_quantile(&t, 0.99) / 0.990 - 1) < 0.025);
    ldr_times_add(&t, 0);
    ldr_times_add(&t, 1e12);
    assert_int_equal(t.count, 1002);
}

static void test_queue(void **state)
{
    ldr_engines_t q;

    (void)state;
    assert_true(ldr_engines_open(&q, 0));
    assert_near(ldr_engines_wait(&q, 0, 100), 0);
    assert_near(ldr_engines_wait(&q, 0, 100), 0);
    ldr_engines_close(&q);
    assert_true(ldr_engines_open(&q, 2));
    assert_near(ldr_engines_wait(&q, 1, 10), 0); /* until 11 */
    assert_near(ldr_engines_wait(&q, 2, 3), 0);  /* until 5 */
    assert_near(ldr_engines_wait(&q, 3, 1), 2);  /* from 5 until 6 */
    assert_near(ldr_engines_wait(&q, 3, 9), 3);  /* from 6 until 15 */
    assert_near(ldr_engines_wait(&q, 4, 1), 7);  /* from 11 until 12 */
    assert_near(ldr_engines_wait(&q, 20, 1), 0);
    ldr_engines_close(&q);
    /* Many engines: the one that is free first is always found. */
    assert_true(ldr_engines_open(&q, 37));
    for (int i = 0; i < 37; i++) {
        assert_near(ldr_engines_wait(&q, 0, 1 + (i * 17) % 37), 0);
    }
    for (int i = 0; i < 37; i++) {
        assert_near(ldr_engines_wait(&q, 0, 1000), 1 + i);
    }
    ldr_engines_close(&q);
}

/* What is on SSD counts if it is up in time: half of it, or none. */
static void test_lookup(void **state)
{
    ldr_model_t m = model;
    ldr_found_t found = {.blocks = 8, .ssd_blocks = 7, .before_ssd = 1};
    ldr_first_token_t t;

    (void)state;
    m.prefill_rate = 100;
    t = ldr_model_first_token(&m, 4000, &found);
    assert_int_equal(t.blocks, 8);
    assert_int_equal(t.ssd_blocks, 7);
    assert_near(t.with_s, 32 + 0.01 + 0.7 + 0.001 + 0.08);
    m.lookup_s = 0.71;
    assert_int_equal(ldr_model_first_token(&m, 4000, &found).blocks, 8);
    m.lookup_s = 0.7;
    t = ldr_model_first_token(&m, 4000, &found);
    assert_int_equal(t.blocks, 4);
    assert_int_equal(t.ssd_blocks, 3);
    assert_near(t.with_s, 36 + 0.01 + 0.3 + 0.001 + 0.04);
    found.wait_s = 0.5; /* others read */
    t = ldr_model_first_token(&m, 4000, &found);
    assert_int_equal(t.blocks, 2);
    found.wait_s = 0.6;
    t = ldr_model_first_token(&m, 4000, &found);
    assert_int_equal(t.blocks, 1);
    assert_int_equal(t.ssd_blocks, 0);
    assert_near(t.with_s, 39 + 0.001 + 0.01);
    /* What is in DRAM is not staged. */
    found = (ldr_found_t){.blocks = 8, .before_ssd = 8, .wait_s = 9};
    assert_int_equal(ldr_model_first_token(&m, 4000, &found).blocks, 8);
}

/* Requests that want the disk at the same time wait for each other. */
static void test_late(void **state)
{
    ldr_plan_case_t what = {
        .sim = &ldr_sim_lru, .blocks = 1, .ssd_blocks = 1000};
    ldr_model_t m = model;
    ldr_plan_result_t r;
    ldr_tape_t tape;

    (void)state;
    m.prefill_rate = 10;
    m.ssd.bytes_per_s = 0.1e9; /* a block in a second, as far as requests are */
    rig_tape("1 2;3 4;1 2;3 4;1 2;3 4", &tape);
    assert_int_equal(ldr_plan_run(&tape, &m, &what, NULL, &r), LARDER_OK);
    assert_near(r.hits, 8);
    assert_near(r.late, 0);
    m.lookup_s = 2.5;
    assert_int_equal(ldr_plan_run(&tape, &m, &what, NULL, &r), LARDER_OK);
    assert_true(r.late > 0 && r.hits >= 4);
    assert_near(r.hits + r.late, 8);
    m.lookup_s = 0.5;
    assert_int_equal(ldr_plan_run(&tape, &m, &what, NULL, &r), LARDER_OK);
    assert_near(r.ssd_hits, 0);
    ldr_tape_close(&tape);
}

/* DRAM for two blocks, and an SSD for all: what goes up, what is written. */
static void test_tiers(void **state)
{
    ldr_plan_case_t what = {
        .sim = &ldr_sim_lru, .blocks = 2, .ssd_blocks = 1000};
    ldr_plan_result_t r;
    ldr_tape_t tape;

    (void)state;
    rig_tape("1 2;3 4;1 2;1 2", &tape);
    assert_int_equal(ldr_plan_run(&tape, &model, &what, NULL, &r), LARDER_OK);
    assert_near(r.hits, 4);
    assert_near(r.ssd_hits, 2);
    assert_near(r.references, 8);
    assert_near(r.share, 0.5);
    assert_near(r.ssd_written, 4);
    assert_near(r.ssd_carried, 0);
    /* 4 blocks of 100 MB in three seconds. */
    assert_near(r.ssd_bytes_a_day, 4e8 / 3 * 86400);
    assert_near(r.tokens, 4 * 1024);
    assert_near(r.hit_tokens, 400);
    what.ssd_blocks = 0;
    assert_int_equal(ldr_plan_run(&tape, &model, &what, NULL, &r), LARDER_OK);
    assert_near(r.hits, 2);
    assert_near(r.ssd_hits, 0);
    assert_near(r.saved_s, 0.2);
    assert_near(r.prefill_s, 4 * 1.024);
    assert_near(r.with.mean_s, (3 * 1.024 + 0.824 + 0.001 + 0.02) / 4);
    ldr_tape_close(&tape);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prefill), cmocka_unit_test(test_first_token),
        cmocka_unit_test(test_known),   cmocka_unit_test(test_times),
        cmocka_unit_test(test_tiers),   cmocka_unit_test(test_queue),
        cmocka_unit_test(test_lookup),  cmocka_unit_test(test_late),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
