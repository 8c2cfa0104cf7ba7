/*
 * Two tenants on a node without threads, and what they do: A floods, B keeps.
 */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/fault.h"
#include "support/rig.h"
#include "support/storecheck.h"

#define MIB ((uint64_t)1 << 20)
#define SEGMENT_BYTES ((uint64_t)128 * LDR_BLOCK)
#define A 0u /* spaces of the two tenants */
#define B 2u

typedef struct fixture {
    simdisk_t *disk;
    rig_t rig;
    uint32_t a_next, b_count; /* keys put so far */
    uint32_t revoked, revoked_generation;
    unsigned revokes;
} fixture_t;

static inline int setup(void **state)
{
    fixture_t *f = calloc(1, sizeof(*f));

    f->disk = simdisk_create(7, 0);
    rig_init(&f->rig, f->disk, 7, 24, SEGMENT_BYTES);
    f->rig.tenants = true;
    f->rig.options.dram = 16 * MIB;
    *state = f;
    return 0;
}

static inline int teardown(void **state)
{
    fixture_t *f = *state;

    ldr_fault_disarm_all();
    if (f->rig.node != NULL) {
        store_check(&f->rig.node->store);
        rig_close(&f->rig);
    }
    rig_free(&f->rig);
    simdisk_destroy(f->disk);
    free(f);
    return 0;
}

static inline void open_rig(fixture_t *f)
{
    assert_int_equal(rig_open(&f->rig), LARDER_OK);
}

static inline uint32_t tenant_of(const fixture_t *f, uint32_t space)
{
    return f->rig.node->store.spaces[f->rig.spaces[space]->number].tenant;
}

static inline ldr_tenant_stats_t stats_of(fixture_t *f, uint32_t space)
{
    ldr_tenant_stats_t stats;

    assert_true(
        ldr_node_tenant_stats(f->rig.node, tenant_of(f, space), &stats));
    return stats;
}

static inline larder_status_t put(fixture_t *f, uint32_t space, uint32_t key)
{
    return rig_put(&f->rig, (name_t){(uint16_t)space, 0, key}, 1);
}

/* B saves so many bytes. */
static inline void b_saves(fixture_t *f, uint64_t bytes)
{
    uint64_t before = stats_of(f, B).n.saved_bytes;

    while (stats_of(f, B).n.saved_bytes - before < bytes) {
        assert_int_equal(put(f, B, f->b_count++), LARDER_OK);
    }
}

/* B has so many bytes on disk. */
static inline void b_writes(fixture_t *f, uint64_t bytes)
{
    do {
        assert_int_equal(put(f, B, f->b_count++), LARDER_OK);
        larder_flush(f->rig.lar, LARDER_TIER_SSD, 0);
    } while (stats_of(f, B).ssd_bytes < bytes);
    assert_int_equal(stats_of(f, B).n.queue_evicted[0], 0);
}

/* A saves so many bytes, all of them new. */
static inline void a_floods(fixture_t *f, uint64_t bytes)
{
    uint64_t before = stats_of(f, A).n.saved_bytes;

    for (unsigned i = 0; stats_of(f, A).n.saved_bytes - before < bytes; i++) {
        assert_int_equal(put(f, A, f->a_next++), LARDER_OK);
        if (i % 16 == 15 && f->rig.options.dir_count > 0) {
            larder_status_t st = larder_flush(f->rig.lar, LARDER_TIER_SSD, 0);
            assert_true(st == LARDER_OK || st == LARDER_E_DROPPED);
        }
    }
    store_check(&f->rig.node->store);
}

/* Every one of B's is got, with its bytes. */
static inline void b_has_all(fixture_t *f)
{
    for (uint32_t i = 0; i < f->b_count; i++) {
        name_t name = {B, 0, i};
        size_t bytes;

        larder_status_t st = rig_get(&f->rig, name, &bytes);
        if (st != LARDER_OK) {
            fail_msg("key %u of %u: %s", i, f->b_count,
                     larder_cause_text(f->rig.cause));
        }
        assert_true(value_is(name, 1, f->rig.buffer, bytes));
    }
}

static inline void limit(fixture_t *f, const char *name, uint64_t dram,
                         uint64_t ssd)
{
    ldr_tenant_params_t p = {.name = name, .dram_max = dram, .ssd_max = ssd};
    uint32_t tenant;

    assert_int_equal(ldr_node_tenant(f->rig.node, &p, &tenant), LARDER_OK);
}
