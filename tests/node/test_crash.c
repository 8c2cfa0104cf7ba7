/*
 * Power cuts. A workload runs on a simulated disk; in the middle of each of
 * its operations the power goes on a copy of the disk, with every unsynced
 * sector kept, lost or garbled. The copy is opened and all that was ever put
 * is got: a miss or exactly the bytes, nothing that was removed or reset, and
 * everything that was flushed and not dropped since to make room.
 *
 * In some workloads two tenants share memory and disk.
 *
 * Some copies are cut again while they are recovered. Some lose nothing, as
 * when only the process is killed: then all that had reached the disk is
 * there.
 *
 * LARDER_CUTS: how many; LARDER_SEED: of the first workload.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "support/history.h"
#include "support/storecheck.h"

#define KEYS 24u
#define STEPS 160u

typedef struct crash {
    simdisk_t *disk;
    rig_t rig;
    history_t history;
    ldr_rand_t rand;
    bool *durable; /* by name: a power cut must not lose it */
    bool *written; /* by name: a kill must not */
    uint64_t cuts, kills, recovery_cuts, hits;
} crash_t;

static uint64_t env_seed(void)
{
    return test_env("LARDER_SEED", 20240501);
}

/* ---- what happens on a copy ---- */

static void copy_rig(crash_t *c, rig_t *rig, simdisk_t *copy)
{
    rig_init(rig, copy, ldr_rand_next(&c->rand), 1, 1);
    rig->options = c->rig.options;
    rig->tenants = c->rig.tenants;
    rig->now_ns = c->rig.now_ns;
}

static void copy_verify(crash_t *c, simdisk_t *copy, const bool *must)
{
    rig_t rig;

    copy_rig(c, &rig, copy);
    larder_status_t st = rig_open(&rig);
    require(st == LARDER_OK, "open: %s: %s", larder_status_text(st),
            larder_last_error());
    c->hits += history_verify(&c->history, &rig, must);
    if (rig.seed % 8 == 0) {
        store_check(&rig.node->store);
    }
    rig_close(&rig);
    rig_free(&rig);
    simdisk_destroy(copy);
}

/* The power goes once more while the copy is opened, or right after. */
static void copy_cut_again(crash_t *c, simdisk_t *copy)
{
    rig_t rig;

    copy_rig(c, &rig, copy);
    simdisk_cut_at(copy, simdisk_ops(copy) + 1 + ldr_rand_below(&c->rand, 6));
    larder_status_t st = rig_open(&rig);
    if (simdisk_is_off(copy)) {
        c->recovery_cuts++;
    } else {
        simdisk_power_cut(copy);
    }
    if (st == LARDER_OK) {
        rig_close(&rig);
    }
    simdisk_reboot(copy);
    rig_free(&rig);
}

/* ---- at every operation of the workload ---- */

static void note_musts(crash_t *c)
{
    for (uint32_t i = 0; c->rig.node != NULL && i < c->history.size; i++) {
        bool there = c->history.past[i].top > c->history.past[i].floor &&
                     rig_loc(&c->rig, history_name(&c->history, i)) != 0;

        c->written[i] = there;
        c->durable[i] = there && c->history.past[i].flushed;
    }
}

static void on_op(void *arg, simdisk_t *disk)
{
    crash_t *c = arg;
    uint64_t seed = ldr_rand_next(&c->rand);

    note_musts(c);
    c->cuts++;
    if (seed % 5 == 0) {
        c->kills++;
        copy_verify(c, simdisk_clone(disk), c->written);
        return;
    }
    simdisk_t *copy = simdisk_clone_cut(disk, seed);
    if (seed % 5 == 1) {
        copy_cut_again(c, copy);
    }
    copy_verify(c, copy, c->durable);
}

/* ---- the workload ---- */

static void reopen(crash_t *c)
{
    note_musts(c);
    rig_close(&c->rig);
    larder_status_t st = rig_open(&c->rig);
    require(st == LARDER_OK, "reopen: %s", larder_last_error());
    history_verify(&c->history, &c->rig, NULL);
}

static void flush(crash_t *c)
{
    larder_status_t st = history_flush(&c->history, &c->rig);

    require(st == LARDER_OK || st == LARDER_E_DROPPED, "flush: %s",
            larder_status_text(st));
}

/* What is written is synced when it is old enough, asked for or not. */
static void sleep_a_while(crash_t *c)
{
    uint64_t ms = ldr_rand_below(&c->rand, 3000);

    rig_step(&c->rig, 1000);
    rig_sleep(&c->rig, ms);
    rig_step(&c->rig, 1000);
    if (ms >= c->rig.options.sync_ms) {
        history_synced(&c->history, &c->rig);
    }
}

static void workload_step(crash_t *c)
{
    uint64_t draw = ldr_rand_below(&c->rand, 100);
    name_t name = history_draw(&c->history, &c->rand);
    larder_status_t st = LARDER_OK;

    if (draw < 58) {
        st = history_put(&c->history, &c->rig, name);
    } else if (draw < 70) {
        history_get(&c->history, &c->rig, name);
    } else if (draw < 75) {
        st = history_remove(&c->history, &c->rig, name);
    } else if (draw < 77) {
        st = history_reset(&c->history, &c->rig, name.space);
    } else if (draw < 83) {
        flush(c);
    } else if (draw < 93) {
        rig_step_disk(
            &c->rig,
            (unsigned)ldr_rand_below(&c->rand, c->rig.options.dir_count),
            1 + (unsigned)ldr_rand_below(&c->rand, 6));
    } else if (draw < 99) {
        sleep_a_while(c);
    } else {
        reopen(c);
    }
    require(st >= 0, "step %llu: %s", (unsigned long long)draw,
            larder_status_text(st));
}

static void workload(crash_t *c, uint64_t seed)
{
    uint64_t segment_bytes;

    test_seed(seed);
    ldr_rand_seed(&c->rand, seed);
    segment_bytes = (96 + 32 * ldr_rand_below(&c->rand, 3)) * LDR_BLOCK;
    c->disk = simdisk_create(seed, ldr_rand_below(&c->rand, 4) ? 512 : 4096);
    rig_init(&c->rig, c->disk, seed, 5, segment_bytes);
    if (seed % 4 == 3) {
        snprintf(c->rig.options.dirs[1], LDR_PATH_MAX, "/other");
        c->rig.options.dir_count = 2;
    }
    if (seed % 3 == 1) { /* two tenants: reclaim carries what is safe */
        c->rig.tenants = true;
        c->rig.options.dram = 4 << 20;
        c->rig.options.ssd += 3 * segment_bytes;
    }
    history_init(&c->history, KEYS);
    c->durable = calloc(c->history.size, sizeof(bool));
    c->written = calloc(c->history.size, sizeof(bool));
    simdisk_on_op(c->disk, on_op, c);
    require(rig_open(&c->rig) == LARDER_OK, "open: %s", larder_last_error());
    for (uint32_t i = 0; i < STEPS; i++) {
        workload_step(c);
    }
    flush(c);
    reopen(c);
    rig_close(&c->rig);
    rig_free(&c->rig);
    history_free(&c->history);
    free(c->durable);
    free(c->written);
    simdisk_destroy(c->disk);
}

static void test_cuts(void **state)
{
    static crash_t c;
    uint64_t target = test_count("LARDER_CUTS", 10000);

    (void)state;
    printf("seed=%llu\n", (unsigned long long)env_seed());
    for (uint64_t seed = env_seed(); c.cuts < target; seed++) {
        workload(&c, seed);
    }
    printf("%llu cuts, %llu of them kills, %llu cut again in recovery, "
           "%llu hits\n",
           (unsigned long long)c.cuts, (unsigned long long)c.kills,
           (unsigned long long)c.recovery_cuts, (unsigned long long)c.hits);
    /* It proves something only if there was something to find. */
    assert_true(c.hits > c.cuts);
    assert_true(target < 1000 || c.recovery_cuts > c.cuts / 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
