/*
 * A node without threads on a simulated disk, with a clock that stands still
 * until it is moved, and the public API on it.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "client/client.h"
#include "sim/simdisk.h"
#include "support/disks.h"
#include "support/values.h"

#define RIG_SPACES 3u

typedef struct rig {
    simdisk_t *disk; /* the caller's */
    ldr_options_t options;
    uint64_t seed;
    uint64_t now_ns; /* the time; the wall clock runs along */
    ldr_clock_t clock;
    ldr_node_t *node; /* NULL: not open */
    larder_t *lar;
    larder_space_t *spaces[RIG_SPACES];
    bool tenants;                  /* the last space is another tenant's */
    bool first_only;               /* opens the first space alone */
    struct ldr_handover *handover; /* what the next node takes over, or NULL */
    ldr_tenant_params_t limits[2];
    unsigned limit_count;
    uint8_t *buffer;      /* VALUE_BYTES_MAX of it, for gets and puts */
    larder_cause_t cause; /* of the last get that missed */
} rig_t;

/* What a directory of so many segments takes in all. */
uint64_t rig_ssd(uint32_t segments, uint64_t segment_bytes);

/* Options for a tier of so many segments of so many bytes in /ssd, and as
 * little DRAM as there can be. The rig must not move in memory after. */
void rig_init(rig_t *rig, simdisk_t *disk, uint64_t seed, uint32_t segments,
              uint64_t segment_bytes);
void rig_free(rig_t *rig);

/* Opens node, handle and spaces. Nothing is left open if it fails. */
larder_status_t rig_open(rig_t *rig);
larder_status_t rig_close(rig_t *rig);

/* That of the last space, where there are two. */
#define RIG_OTHER "somebody else"

/* Shards of a chunk in the space. */
uint32_t rig_shards(uint32_t space);

/* Lets the node do up to so many things; how many it did. */
unsigned rig_step(rig_t *rig, unsigned max);
/* The same for one of its disks. */
unsigned rig_step_disk(rig_t *rig, unsigned disk, unsigned max);
void rig_sleep(rig_t *rig, uint64_t ms);

/* One item. put: the value of that version; chains are of 8 keys. */
larder_item_t rig_item(rig_t *rig, name_t name, larder_key_t *key,
                       struct iovec *iov, size_t bytes);
larder_status_t rig_put(rig_t *rig, name_t name, uint32_t version);
/* The bytes come into rig->buffer. */
larder_status_t rig_get(rig_t *rig, name_t name, size_t *bytes_p);
larder_status_t rig_remove(rig_t *rig, name_t name);
bool rig_exists(rig_t *rig, name_t name);

/* Where the index says the shard lies on disk; 0: nowhere, or stale. */
ldr_loc_t rig_loc(const rig_t *rig, name_t name);

/* The number of a chain's first key, and where a key stands in its chain. */
#define RIG_CHAIN 8u
