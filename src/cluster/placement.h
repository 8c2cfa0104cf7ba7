/*
 * Who keeps a run of consecutive chunks: weighted rendezvous hashing. Every
 * member has a clock of its own for each run, that rings after a random time
 * with the member's weight as its rate; the one that rings first is the owner,
 * the next one the second owner, and so on. So a member gets its share by
 * weight, and one that joins, leaves or changes its weight moves only what it
 * gains or loses: the clocks of the others stay as they are. Everybody who
 * knows the same members comes to the same answer, in whatever order they were
 * given, on any machine: times are made of integers.
 *
 * To look at all clocks for each run would be slow for thousands of members,
 * so it is done once for each of LDR_PARTITIONS sets of runs, when it is first
 * asked for, and kept: 2 ns for each member then, and a look into a table after
 * that. The sets do not depend on the members, so what is said above holds. A
 * member's share differs from that of its weight as if its part of the sets had
 * been thrown with dice: with 100 equal members by 1 % (standard deviation),
 * with 10,000 by 10 %.
 *
 * Memory: 2 bytes for each set and owner, as they are asked for.
 * Any number of threads may ask.
 */
#pragma once

#include <stdint.h>

#include "base/hash.h"

#define LDR_PARTITIONS LDR_RUN_SETS
#define LDR_OWNERS_MAX 8u
#define LDR_MEMBERS_MAX 65535u

typedef struct ldr_placed {
    uint64_t id;     /* of the node; no two have the same */
    uint32_t weight; /* its share, over the sum of all; not 0 */
} ldr_placed_t;

typedef struct ldr_placement ldr_placement_t;

/* owners: how many of each run will be asked for, up to LDR_OWNERS_MAX. NULL:
 * with the text of ldr_fail(). */
ldr_placement_t *ldr_placement_create(const ldr_placed_t *members,
                                      uint32_t count, uint32_t owners);
void ldr_placement_destroy(ldr_placement_t *p);

/* Loads what ldr_placement_owners() will read into the CPU's cache. */
void ldr_placement_prefetch(const ldr_placement_t *p, uint64_t run);
/* The owners of the run with this hash, the first one first, as places in what
 * was given to create. Gives how many: as many as create was told, or all
 * members where they are fewer. */
uint32_t ldr_placement_owners(const ldr_placement_t *p, uint64_t run,
                              uint32_t *owners);
/* The same of a set of runs: ldr_run_set(). */
uint32_t ldr_placement_set_owners(const ldr_placement_t *p, uint32_t set,
                                  uint32_t *owners);
