/*
 * The guard and the ramp, on numbers for time: what others lost a cluster by
 * (leases that expire all at once, an authority that flaps) must not move who
 * owns what.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/clock.h"
#include "cluster/cluster_int.h"

#define MS UINT64_C(1000000)
#define S (1000 * MS)
#define MANY 64u

typedef struct rig {
    ldr_members_t m;
    uint64_t now_ns;
    ldr_member_t list[MANY];
} rig_t;

static void begin(rig_t *r, uint32_t ramp_s)
{
    memset(r, 0, sizeof(*r));
    r->m.ramp_s = ramp_s;
    r->now_ns = 5 * S;
}

/* Members whose bit is set. */
static bool answer(rig_t *r, uint64_t bits)
{
    uint32_t count = 0;

    for (unsigned i = 0; i < MANY; i++) {
        if ((bits >> i & 1) != 0) {
            ldr_member_t *m = &r->list[count++];

            memset(m, 0, sizeof(*m));
            snprintf(m->name, sizeof(m->name), "m%u", i);
            snprintf(m->address, sizeof(m->address), "h%u:1", i);
            m->id = ldr_member_id(m->name);
            m->weight = 1;
            m->share = LDR_SHARE_FULL;
        }
    }
    assert_true(ldr_members_answer(&r->m, r->list, count));
    return ldr_members_judge(&r->m, r->now_ns, true);
}

static uint64_t believed(const rig_t *r)
{
    uint64_t bits = 0;

    for (size_t i = 0; i < r->m.believed_count; i++) {
        unsigned n = 0;

        assert_int_equal(sscanf(r->m.believed[i].name, "m%u", &n), 1);
        bits |= UINT64_C(1) << n;
        assert_true(i == 0 || r->m.believed[i - 1].id < r->m.believed[i].id);
    }
    return bits;
}

static uint32_t share(const rig_t *r, const char *name)
{
    for (size_t i = 0; i < r->m.believed_count; i++) {
        if (strcmp(r->m.believed[i].name, name) == 0) {
            return r->m.believed[i].share;
        }
    }
    return 0;
}

/* Time passes, one look each step. */
static void pass(rig_t *r, uint64_t ns, uint64_t step_ns, bool source_ok)
{
    for (uint64_t end = r->now_ns + ns; r->now_ns < end;) {
        r->now_ns += step_ns;
        ldr_members_judge(&r->m, r->now_ns, source_ok);
    }
}

static void test_first(void **state)
{
    rig_t r;

    (void)state;
    begin(&r, 240);
    assert_false(ldr_members_judge(&r.m, r.now_ns, true)); /* nothing said */
    assert_true(answer(&r, 0xff));
    assert_int_equal(believed(&r), 0xff);
    assert_int_equal(share(&r, "m0"), LDR_SHARE_FULL); /* nobody is new */
    ldr_members_destroy(&r.m);
    begin(&r, 240);
    assert_true(answer(&r, 0)); /* empty, but the first */
    assert_true(answer(&r, 3));
    assert_int_equal(believed(&r), 3);
    ldr_members_destroy(&r.m);
}

static void test_half(void **state)
{
    rig_t r;

    (void)state;
    begin(&r, 0);
    answer(&r, 0xff);
    r.now_ns += S;
    assert_true(answer(&r, 0x0f)); /* just half of them */
    assert_int_equal(believed(&r), 0x0f);
    ldr_members_destroy(&r.m);

    begin(&r, 0);
    answer(&r, 0xff);
    r.now_ns += S;
    assert_false(answer(&r, 0x07)); /* more than half */
    assert_int_equal(r.m.held, 1);
    pass(&r, 29 * S, S, true);
    assert_int_equal(believed(&r), 0xff);
    pass(&r, 2 * S, S, true);
    assert_int_equal(believed(&r), 0x07); /* it has persisted */
    assert_false(r.m.holding);
    assert_int_equal(r.m.held, 1);
    ldr_members_destroy(&r.m);
}

/* All leases expire: an empty view, then everybody is back. */
static void test_mass_expiry(void **state)
{
    rig_t r;

    (void)state;
    begin(&r, 240);
    answer(&r, 0xff);
    r.now_ns += S;
    assert_false(answer(&r, 0));
    pass(&r, 20 * S, S, true);
    for (unsigned i = 1; i <= 8; i++) { /* one by one */
        r.now_ns += S / 2;
        answer(&r, (1u << i) - 1);
        assert_int_equal(believed(&r), i < 4 ? 0xffu : (1u << i) - 1);
    }
    assert_int_equal(share(&r, "m7"), LDR_SHARE_FULL); /* it was away */
    ldr_members_destroy(&r.m);
}

/* Those that expire one after the other are no less than all at once. */
static void test_one_by_one(void **state)
{
    rig_t r;

    (void)state;
    begin(&r, 0);
    answer(&r, 0xff);
    for (unsigned i = 1; i <= 8; i++) {
        r.now_ns += 100 * MS;
        answer(&r, 0xffu << i & 0xff);
        assert_int_equal(__builtin_popcountll(believed(&r)), i < 4 ? 8 - i : 4);
    }
    pass(&r, 31 * S, S, true);
    assert_int_equal(believed(&r), 0);
    ldr_members_destroy(&r.m);

    /* Slowly, it is believed. */
    begin(&r, 0);
    answer(&r, 0xff);
    for (unsigned i = 1; i < 8; i++) {
        pass(&r, 40 * S, S, true);
        answer(&r, 0xffu << i & 0xff);
        pass(&r, 40 * S, S, true);
        assert_int_equal(believed(&r), 0xffu << i & 0xff);
    }
    ldr_members_destroy(&r.m);
}

/* An authority that says this and that: nothing of it persists. */
static void test_flapping(void **state)
{
    rig_t r;

    (void)state;
    begin(&r, 0);
    answer(&r, 0xff);
    for (unsigned i = 0; i < 300; i++) {
        r.now_ns += S;
        answer(&r, i % 20 == 19 ? 0xff : i % 2 == 0 ? 0x01 : 0x02);
        assert_int_equal(believed(&r), 0xff);
    }
    assert_true(r.m.held > 10);
    ldr_members_destroy(&r.m);
}

/* While the source does not confirm what it said, nothing persists. */
static void test_silent(void **state)
{
    rig_t r;

    (void)state;
    begin(&r, 0);
    answer(&r, 0xff);
    r.now_ns += S;
    assert_false(answer(&r, 0x01));
    pass(&r, 3600 * S, S, false);
    assert_int_equal(believed(&r), 0xff);
    pass(&r, 32 * S, S, true);
    assert_int_equal(believed(&r), 0x01);
    ldr_members_destroy(&r.m);
}

/* A process that was stopped for an hour has not watched for an hour. */
static void test_jump(void **state)
{
    rig_t r;

    (void)state;
    begin(&r, 0);
    answer(&r, 0xff);
    r.now_ns += S;
    assert_false(answer(&r, 0x01));
    for (unsigned i = 0; i < 10; i++) {
        r.now_ns += 3600 * S;
        assert_false(ldr_members_judge(&r.m, r.now_ns, true));
    }
    pass(&r, 31 * S, S, true);
    assert_int_equal(believed(&r), 0x01);
    ldr_members_destroy(&r.m);
}

static void test_ramp(void **state)
{
    rig_t r;
    uint32_t last = 0;

    (void)state;
    begin(&r, 240);
    answer(&r, 0x0f);
    r.now_ns += 100 * S;
    assert_true(answer(&r, 0xff)); /* as many newcomers as there were */
    assert_int_equal(share(&r, "m0"), LDR_SHARE_FULL);
    assert_int_equal(share(&r, "m7"), 1);
    assert_int_equal(ldr_members_next(&r.m, r.now_ns), r.now_ns + S);
    for (unsigned s = 0; s < 240; s++) {
        uint32_t now = share(&r, "m7");

        assert_int_equal(now, 1 + s * 7 / 240);
        assert_true(now >= last && now < LDR_SHARE_FULL);
        last = now;
        pass(&r, S, S, true);
    }
    assert_int_equal(share(&r, "m7"), LDR_SHARE_FULL);
    assert_int_equal(ldr_members_next(&r.m, r.now_ns), UINT64_MAX);

    /* One that comes back within the hour has all of it, a day later not. */
    answer(&r, 0x7f);
    pass(&r, 1800 * S, 10 * S, true);
    answer(&r, 0xff);
    assert_int_equal(share(&r, "m7"), LDR_SHARE_FULL);
    answer(&r, 0x7f);
    pass(&r, 4000 * S, 10 * S, true);
    answer(&r, 0xff);
    assert_int_equal(share(&r, "m7"), 1);
    ldr_members_destroy(&r.m);
}

/* A peer's word that it leaves counts for that run, and until it takes it
 * back. */
static void test_says(void **state)
{
    rig_t r;
    uint64_t id = ldr_member_id("m1");

    (void)state;
    begin(&r, 0);
    answer(&r, 3);
    ldr_members_say(&r.m, id, 77, true);
    ldr_members_say(&r.m, 12345, 77, true); /* nobody */
    ldr_members_judge(&r.m, r.now_ns, true);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(r.m.believed[i].leaving, r.m.believed[i].id == id);
    }
    ldr_members_say(&r.m, id, 77, false);
    ldr_members_judge(&r.m, r.now_ns, true);
    assert_false(r.m.believed[0].leaving || r.m.believed[1].leaving);

    ldr_members_say(&r.m, id, 77, true);
    for (unsigned i = 0; i < 2; i++) {
        r.list[i].run = 78; /* the source knows a newer one */
    }
    assert_true(ldr_members_answer(&r.m, r.list, 2));
    ldr_members_judge(&r.m, r.now_ns, true);
    assert_false(r.m.believed[0].leaving || r.m.believed[1].leaving);
    ldr_members_destroy(&r.m);
}

/* Against first principles: whatever is listed, invariant 4 of cluster.h
 * holds, and what stands for long enough is believed. */
static void test_random(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        uint64_t missing_since[16], last[16], listed = 0xffff;
        uint64_t before = 0xffff;
        ldr_rand_t rand;
        rig_t r;

        ldr_rand_seed(&rand, seed);
        begin(&r, 0);
        answer(&r, listed);
        for (unsigned i = 0; i < 16; i++) {
            missing_since[i] = UINT64_MAX;
            last[i] = r.now_ns;
        }
        for (unsigned step = 0; step < 400; step++) {
            r.now_ns += (1 + ldr_rand_below(&rand, 1500)) * MS;
            uint64_t kind = ldr_rand_below(&rand, 10);
            if (kind == 0) {
                listed = ldr_rand_next(&rand) & 0xffff;
            } else if (kind == 1) {
                listed ^= UINT64_C(1) << ldr_rand_below(&rand, 16);
            } else if (kind == 2) {
                listed = ldr_rand_below(&rand, 2) ? 0xffff : 0;
            }
            answer(&r, listed);
            uint64_t bits = believed(&r);
            unsigned lately = 0, gone = 0, unsure = 0;
            for (unsigned i = 0; i < 16; i++) {
                bool here = (bits >> i & 1) != 0, named = listed >> i & 1;
                bool dropped = (before >> i & 1) != 0 && !here;

                if (named) {
                    missing_since[i] = UINT64_MAX;
                } else if (missing_since[i] == UINT64_MAX) {
                    missing_since[i] = r.now_ns;
                }
                if (here || dropped) {
                    last[i] = r.now_ns;
                }
                lately += here || r.now_ns - last[i] < 30 * S;
                gone += !here && !named && r.now_ns - last[i] < 30 * S;
                unsure += dropped && r.now_ns - missing_since[i] < 30 * S;
            }
            before = bits;
            if (2 * gone > lately && unsure > 0) {
                fail_msg("seed %llu step %u: %u of %u gone, %u too soon",
                         (unsigned long long)seed, step, gone, lately, unsure);
            }
        }
        for (unsigned s = 0; s < 40; s++) {
            r.now_ns += S;
            answer(&r, listed);
        }
        assert_int_equal(believed(&r), listed);
        ldr_members_destroy(&r.m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_first),       cmocka_unit_test(test_half),
        cmocka_unit_test(test_mass_expiry), cmocka_unit_test(test_one_by_one),
        cmocka_unit_test(test_flapping),    cmocka_unit_test(test_silent),
        cmocka_unit_test(test_jump),        cmocka_unit_test(test_ramp),
        cmocka_unit_test(test_says),        cmocka_unit_test(test_random),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
