/*
 * A third tier, for tests only: shards in this process's memory, slow, failing
 * and hanging on demand. Linked into a program, its table takes the place of
 * the one in src: nothing there knows of it.
 *
 * What it holds outlives nodes, as a disk would, until slow_wipe(). It is there
 * while `on`; a daemon gets its control from LARDER_TEST_TIER, for example
 * "on,delay_ms=2,read_fail=7,write_fail=5,hang=/path": it hangs while that file
 * is there.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "larder/larder.h"

#define SLOW_TIER 4 /* its number: the first that src/ does not know */

_Static_assert(SLOW_TIER == LARDER_TIER_COUNT, "the first that is free");

typedef struct slow_control {
    bool on;
    bool apart;          /* what it gives is not offered to other tiers */
    bool hangs;          /* nothing is given or taken */
    bool corrupts;       /* a bit of what is given is another */
    unsigned read_fail;  /* every so manieth read fails; 0: none */
    unsigned write_fail; /* likewise */
    unsigned delay_ms;   /* for each read and write, of a thread */
    char hang[128];      /* it hangs while this file is there */
} slow_control_t;

extern slow_control_t slow_control;

void slow_wipe(void);
/* Shards that it holds, reads that it gave, and writes that it took. */
uint64_t slow_count(void);
uint64_t slow_reads(void);
uint64_t slow_writes(void);
