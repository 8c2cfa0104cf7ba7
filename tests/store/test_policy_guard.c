/* What LRU would have, without a cache: beside one that is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "store/policy_learned.h"

enum { THINGS = 4000 };

static uint64_t seed_base;

/* Things of some chunks each, by when they were used last. */
typedef struct shelf {
    ldr_stack_t stack;
    uint32_t stamp;
    uint32_t used[THINGS]; /* stamp; 0: never */
    uint32_t chunks[THINGS];
} shelf_t;

static void shelf_use(shelf_t *s, uint32_t thing)
{
    ldr_stack_use(&s->stack, s->used[thing], s->stamp, s->chunks[thing]);
    s->used[thing] = s->stamp;
}

/* Chunks used since, the thing's own not counted. */
static uint64_t distance(const shelf_t *s, uint32_t thing)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < THINGS; i++) {
        sum += s->used[i] > s->used[thing] ? s->chunks[i] : 0;
    }
    return sum;
}

/* It says of each thing what LRU would, but for those near the edge. */
static void test_is_lru(void **state)
{
    static const uint64_t rooms[] = {50, 1000, 10000, 1000000};
    static shelf_t s;
    ldr_rand_t rand;

    (void)state;
    for (size_t k = 0; k < sizeof(rooms) / sizeof(rooms[0]); k++) {
        uint64_t room = rooms[k];
        uint32_t seen = 0, in = 0;

        memset(&s, 0, sizeof(s));
        ldr_rand_seed(&rand, seed_base + k);
        for (uint32_t i = 0; i < THINGS; i++) {
            s.chunks[i] = 1 + (uint32_t)ldr_rand_below(&rand, 9);
        }
        for (uint32_t i = 0; i < 20000; i++) {
            uint32_t thing = (uint32_t)ldr_rand_below(
                &rand, 1 + ldr_rand_below(&rand, THINGS));

            s.stamp++;
            if (s.used[thing] != 0 && i % 16 == 0) {
                uint64_t d = distance(&s, thing);
                bool has = s.used[thing] >= s.stack.since;

                /* A span is about a five-hundredth, and its edge is drawn as
                 * if all its requests were alike. */
                if (d + 20 < room - room / 50) {
                    assert_true(has);
                } else if (d > room + room / 50 + 20) {
                    assert_false(has);
                }
                seen++;
                in += has;
            }
            shelf_use(&s, thing);
            ldr_stack_resize(&s.stack, room);
            assert_true(s.stack.inside <= room);
        }
        assert_true(ldr_stack_check(&s.stack));
        print_message("room %llu: %u of %u\n", (unsigned long long)room, in,
                      seen);
        assert_true(room > 100000 ? in == seen : in > 0 && in < seen);
    }
}

/* Stamps of another request than the last, as of what was superseded, break
 * nothing; nor do stamps that begin anew. */
static void test_odd(void **state)
{
    static shelf_t s;

    (void)state;
    memset(&s, 0, sizeof(s));
    for (uint32_t i = 0; i < 5000; i++) {
        s.stamp++;
        s.chunks[i % 100] = 3;
        s.used[i % 100] = s.stamp - 1;
        shelf_use(&s, i % 100);
        ldr_stack_resize(&s.stack, 150);
        assert_true(ldr_stack_check(&s.stack));
    }
    s.stamp = UINT32_MAX - 2000;
    for (uint32_t i = 0; i < 5000; i++) {
        s.stamp += 1 + (s.stamp == UINT32_MAX);
        shelf_use(&s, i % 100);
        ldr_stack_resize(&s.stack, 150);
        assert_true(ldr_stack_check(&s.stack));
    }
    /* The last half of those used in turn. */
    assert_true(s.stack.since > s.stamp - 52 && s.stack.since < s.stamp - 48);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_is_lru),
        cmocka_unit_test(test_odd),
    };
    const char *text = getenv("LARDER_SEED");

    seed_base = text != NULL ? strtoull(text, NULL, 0) : 1;
    print_message("LARDER_SEED=%llu\n", (unsigned long long)seed_base);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
