/* One object a second, for ever: those that are a minute old become one with
 * others as soon as there are eight of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tier/shared/objects_rig.h"

#define OBJECTS RIG_TENANT "/o/"

static void test_trickle(void **state)
{
    static world_t w;
    uint64_t most = 0;

    (void)state;
    world_open(&w, 1, 1);
    w.params.poll_ms = 1000;
    w.params.publish_ms = 500;
    w.params.orphan_s = 600;
    node_open(&w.nodes[0]);
    world_pass(&w, 5 * RIG_SECOND, 50 * RIG_MS);
    for (unsigned second = 0; second < 600; second++) {
        unsigned key = second; /* each is new */

        assert_int_equal(node_put(&w.nodes[0], 0, &key, 1), 0);
        world_pass(&w, RIG_SECOND, 50 * RIG_MS);
        uint64_t objects = simstore_count(w.store, OBJECTS);
        most = objects > most ? objects : most;
        if (second % 30 == 29) {
            print_message("%3u s: %llu objects\n", second + 1,
                          (unsigned long long)objects);
        }
    }
    /* Those of the last minute, fewer than eight old ones, and one that is just
     * being made. */
    assert_in_range(most, 1, 60 + 8 + 2);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_trickle)};

    return cmocka_run_group_tests_name("shared/clean_trickle", tests, NULL,
                                       NULL);
}
