/*
 * Nobody waits for a wake-up that does not come. Each test would hang, and be
 * ended by the watchdog, if it did.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/fault.h"
#include "client/client.h"
#include "support/disks.h"
#include "support/real.h"

enum { SHARDS = 40, BYTES = 1 << 20, WATCHDOG_S = 120 };

static uint8_t value[BYTES];

static bool all_idle(ldr_node_t *node)
{
    bool idle = true;

    ldr_node_lock(node);
    for (unsigned i = 0; i < ssds_of(node)->count; i++) {
        idle = idle && disks_of(node)[i].idle;
    }
    ldr_node_unlock(node);
    return idle;
}

/* Two disks asleep. One is woken by a put, fails and goes off: the other has
 * to write what is left, though nobody puts anything more. */
static void one_fails(const char *io)
{
    char first[256], second[256], url[700];
    larder_t *lar = NULL;
    larder_space_t *space = NULL;
    larder_stats_t stats;

    assert_true(real_dir_make(first, sizeof(first), "wake-a"));
    assert_true(real_dir_make(second, sizeof(second), "wake-b"));
    snprintf(url, sizeof(url),
             "embed:%s,%s?dram=64M&ssd=64M&segment=4M&retry_ms=3600000&io=%s",
             first, second, io);
    alarm(WATCHDOG_S);
    assert_int_equal(real_open(url, &lar), LARDER_OK);
    assert_int_equal(real_space(lar, "wake", &space), LARDER_OK);
    /* With the first save the disks learn of the tenant. */
    assert_int_equal(real_put(space, SHARDS, 1, value, BYTES), LARDER_OK);
    assert_int_equal(larder_flush(lar, LARDER_TIER_SSD, LARDER_FOREVER),
                     LARDER_OK);
    while (!all_idle(lar->node)) {
        real_pause();
    }
    ldr_fault_arm(LDR_FAULT_io_write, 1, 3);
    for (uint64_t id = 0; id < SHARDS; id++) {
        assert_int_equal(real_put(space, id, 1, value, BYTES), LARDER_OK);
    }
    larder_status_t st = larder_flush(lar, LARDER_TIER_SSD, LARDER_FOREVER);
    assert_true(st == LARDER_OK || st == LARDER_E_DROPPED);
    assert_int_equal(ldr_fault_fired(LDR_FAULT_io_write), 3);
    ldr_fault_disarm_all();
    assert_true(real_stats(lar, &stats));
    assert_true(stats.disk[0].on || stats.disk[1].on);
    assert_int_equal(larder_close(&lar, LARDER_FOREVER), LARDER_OK);
    larder_space_close(&space);
    alarm(0);
    real_dir_remove(first);
    real_dir_remove(second);
}

static void test_one_of_two_fails(void **state)
{
    (void)state;
    one_fails("plain");
    one_fails("auto");
}

/* A shard that no segment can take leaves the queue: a flush that waits for it
 * must hear of that, round after round, whoever sleeps first. */
static void test_too_large_for_a_segment(void **state)
{
    char dir[256], url[400];
    larder_t *lar = NULL;
    larder_space_t *space = NULL;

    (void)state;
    assert_true(real_dir_make(dir, sizeof(dir), "wake-c"));
    snprintf(url, sizeof(url), "embed:%s?dram=16M&ssd=8M&segment=512K", dir);
    alarm(WATCHDOG_S);
    assert_int_equal(real_open(url, &lar), LARDER_OK);
    assert_int_equal(real_space(lar, "wake", &space), LARDER_OK);
    for (uint64_t id = 0; id < 200; id++) {
        assert_int_equal(real_put(space, id, 1, value, BYTES), LARDER_OK);
        assert_int_equal(larder_flush(lar, LARDER_TIER_SSD, LARDER_FOREVER),
                         LARDER_E_DROPPED);
    }
    assert_int_equal(larder_close(&lar, LARDER_FOREVER), LARDER_OK);
    larder_space_close(&space);
    alarm(0);
    real_dir_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_of_two_fails),
        cmocka_unit_test(test_too_large_for_a_segment),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
