/*
 * A node without threads on one simulated disk, as several tests want it: made,
 * changed as the test likes, opened; checked and freed at the end.
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

#include "support/history.h"
#include "support/rig.h"
#include "support/storecheck.h"

typedef struct fixture {
    simdisk_t *disk;
    rig_t rig;
    history_t history; /* of tests that want one */
    uint64_t limit;    /* bytes that all files may have together */
} fixture_t;

/* Not open yet. */
static inline fixture_t *fixture_make(void **state, uint32_t segments,
                                      uint64_t segment_bytes)
{
    fixture_t *f = calloc(1, sizeof(*f));

    assert_non_null(f);
    f->disk = simdisk_create(7, 0);
    rig_init(&f->rig, f->disk, 7, segments, segment_bytes);
    f->limit = f->rig.options.ssd;
    *state = f;
    return f;
}

static inline int fixture_open(fixture_t *f)
{
    assert_int_equal(rig_open(&f->rig), LARDER_OK);
    return 0;
}

static inline int teardown(void **state)
{
    fixture_t *f = *state;

    store_check(&f->rig.node->store);
    rig_close(&f->rig);
    rig_free(&f->rig);
    history_free(&f->history);
    simdisk_destroy(f->disk);
    free(f);
    return 0;
}
