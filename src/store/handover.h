/*
 * What one process hands over to the next: the extents of the arena, which are
 * files, and a list of what lies in them. The new one finds in DRAM what the
 * old one had there, without a copy.
 *
 * The list is made of tables, in this order, each of rows of one size:
 *
 *   head      sizes that must be the same on both sides, how many rows each
 *             table has, and a checksum over all of it
 *   tenants   ids, names, check values of their secrets
 *   spaces    ids and epochs
 *   extents   whose each is; their descriptors go along in the same order
 *   chunks    parents before their children
 *   shards    those of the first chunk, those of the second...
 *   pages     likewise
 *   slices    a byte for each slice of the extents: whether it is resident
 *
 * Numbers are the machine's own, for the list never leaves it. It comes from a
 * process of the same user; it is checked all the same, and one that is not
 * right is refused as a whole.
 *
 * What stays behind: shards that are not ready, stale chunks, and extents that
 * a process may still read or write in on somebody's behalf (stays): there is
 * no telling when it ends, and the new daemon would give the room to others.
 * What the policy has learned stays behind too; who was used last does not.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "store/store.h"

/* A chunk, and what its place in an order depends on. */
typedef struct ldr_handover_chunk {
    uint32_t chunk;
    uint32_t depth;
    uint32_t used_s;
} ldr_handover_chunk_t;

/* What is to go along. */
typedef struct ldr_handover_plan {
    uint32_t *extent_row; /* of each extent; LDR_NIL: it stays */
    uint32_t *extents;    /* by row */
    ldr_handover_chunk_t *chunks;
    uint32_t extent_count, slice_count;
    uint32_t chunk_count, shard_count, page_count;
    uint64_t left_bytes; /* of what was ready and stays */
    size_t bytes;        /* of the list */
} ldr_handover_plan_t;

/* Nobody may use the store any more. False: no memory. */
bool ldr_handover_plan(const ldr_store_t *s, ldr_handover_plan_t *plan);
void ldr_handover_unplan(ldr_handover_plan_t *plan);
/* Writes the list; to has room for plan->bytes, zeroed. mapped: clients could
 * map the extents. */
void ldr_handover_write(const ldr_store_t *s, const ldr_handover_plan_t *plan,
                        bool mapped, uint8_t *to);

/* What became of it. */
typedef struct ldr_handover_sum {
    uint32_t chunks;
    uint64_t bytes;      /* of their shards */
    uint64_t left_bytes; /* in the list, but not available here */
} ldr_handover_sum_t;

/* Why a list cannot be used, or NULL. The store's sizes count. */
const char *ldr_handover_check(const ldr_store_t *s, const uint8_t *list,
                               size_t bytes);
/* Of a list that was checked: how many extents, and whether clients could map
 * them. */
uint32_t ldr_handover_extents(const uint8_t *list);
bool ldr_handover_mapped(const uint8_t *list);

/*
 * Takes over what a list names that was checked: into a store whose memory
 * nobody has used yet, but that knows what is on its disks. fds: a descriptor
 * for each extent; those that are used become -1. Shards will be compared with
 * their checksums when they are first used.
 */
void ldr_handover_take(ldr_store_t *s, const uint8_t *list, int *fds,
                       uint32_t now_s, ldr_handover_sum_t *sum);
