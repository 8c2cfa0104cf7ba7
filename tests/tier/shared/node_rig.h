/*
 * A node without threads over a simulated disk and a shared tier in a directory
 * of its own, which goes with it.
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

#include "support/real.h"
#include "support/rig.h"
#include "tier/shared/shared.h"

#define NODE_RIG_STEPS_MAX 100000u

typedef struct node_rig {
    simdisk_t *disk;
    rig_t rig;
    char path[256], url[300];
} node_rig_t;

/* Makes the tier and sets up the node, with neither a disk nor the tier in its
 * options; rig_open() opens it. */
static inline void node_rig_init(node_rig_t *r, const char *name)
{
    assert_true(real_dir_make(r->path, sizeof(r->path), name));
    snprintf(r->url, sizeof(r->url), "dir:%s", r->path);
    assert_int_equal(ldr_objects_make(r->url, "", LARDER_FOREVER), LARDER_OK);
    r->disk = simdisk_create(7, 0);
    rig_init(&r->rig, r->disk, 7, 8, 256 * LDR_BLOCK);
    r->rig.options.dir_count = 0;
}

static inline void node_rig_use_tier(node_rig_t *r, bool use)
{
    snprintf(r->rig.options.shared, sizeof(r->rig.options.shared), "%.255s",
             use ? r->url : "");
}

static inline void node_rig_free(node_rig_t *r)
{
    char command[400];

    assert_int_equal(rig_close(&r->rig), LARDER_OK);
    rig_free(&r->rig);
    simdisk_destroy(r->disk);
    snprintf(command, sizeof(command), "rm -rf '%s'", r->path);
    assert_int_equal(system(command), 0);
}

/* Time passes, in steps that are small enough for everything that is due. */
static inline void node_rig_pass(node_rig_t *r, uint64_t ms, uint64_t step_ms)
{
    for (uint64_t t = 0; t < ms; t += step_ms) {
        rig_sleep(&r->rig, step_ms);
        for (unsigned i = 0; rig_step(&r->rig, 1) > 0; i++) {
            assert_true(i < NODE_RIG_STEPS_MAX);
        }
    }
}
