/* Rows of the list; see handover.h. */
#pragma once

#include "store/handover.h"

#define LDR_HANDOVER_MAGIC 0x3144484d4152444cull /* "LDRAMHD1" */
#define LDR_HANDOVER_VERSION 2u

typedef struct ldr_ho_head {
    uint64_t magic;
    uint32_t version;
    uint32_t crc; /* of all that follows */
    uint64_t bytes;
    uint32_t page_bytes, slice_pages, extent_shift;
    uint32_t mapped;
    uint32_t tenants, spaces, extents, chunks, shards, pages, slices;
    uint32_t disks;
} ldr_ho_head_t;

/* A disk that was opened. */
typedef struct ldr_ho_disk {
    uint8_t id[LDR_ID_BYTES];
} ldr_ho_disk_t;

typedef struct ldr_ho_tenant {
    uint8_t id[LDR_ID_BYTES];
    uint8_t check[LDR_ID_BYTES];
    char name[64];
    uint32_t check_known;
} ldr_ho_tenant_t;

typedef struct ldr_ho_space {
    uint8_t id[LDR_ID_BYTES];
    uint32_t epoch;
    uint32_t above;
    uint32_t tenant; /* a row */
} ldr_ho_space_t;

typedef struct ldr_ho_extent {
    uint32_t tenant; /* a row; LDR_NIL: nobody's */
    uint32_t pages;
} ldr_ho_extent_t;

typedef struct ldr_ho_chunk {
    larder_key_t key;
    larder_key_t parent;
    uint32_t space; /* a row */
    uint32_t depth;
    uint32_t epoch;
    uint32_t written_s, used_s, expires_s;
    uint8_t group;
    uint8_t shards; /* of the space */
    uint8_t here;   /* of those, in the list */
    uint8_t pinned;
} ldr_ho_chunk_t;

/* Of a shard. A daemon of before SSD sends the first two only, and reads no
 * others. */
enum {
    LDR_HO_REFUSED = 1,
    LDR_HO_SHARED = 2, /* it waits in the queue of that tier */
    LDR_HO_SSD = 4,
    LDR_HO_PEER = 8,
    LDR_HO_GIVEN = 16, /* as of an ldr_shard_t */
    LDR_HO_ANNOUNCED = 32,
    LDR_HO_KEPT = 64,
    LDR_HO_BROUGHT = 128, /* by another member */
    LDR_HO_FOURTH = 256,  /* it waits for a tier that has no name here */
};

/* The flag of each queue. */
static const uint32_t ldr_ho_queues[LDR_QUEUES_MAX] = {
    [LARDER_TIER_SSD - 1] = LDR_HO_SSD,
    [LARDER_TIER_SHARED - 1] = LDR_HO_SHARED,
    [LARDER_TIER_PEER - 1] = LDR_HO_PEER,
    [LDR_QUEUES_MAX - 1] = LDR_HO_FOURTH,
};

_Static_assert(LDR_QUEUES_MAX == 4, "one more queue: one more flag");

typedef struct ldr_ho_shard {
    uint32_t length;
    uint32_t crc;
    uint32_t number;
    uint32_t flags;
} ldr_ho_shard_t;

/* The tables of a list, for writing or reading. */
typedef struct ldr_ho {
    ldr_ho_head_t *head;
    ldr_ho_disk_t *disks;
    ldr_ho_tenant_t *tenants;
    ldr_ho_space_t *spaces;
    ldr_ho_extent_t *extents;
    ldr_ho_chunk_t *chunks;
    ldr_ho_shard_t *shards;
    uint32_t *pages; /* row of the extent << extent_shift | page in it */
    uint8_t *slices;
} ldr_ho_t;

/* Where they are, by the numbers in the head. Gives the bytes of all. */
size_t ldr_ho_tables(uint8_t *list, ldr_ho_t *ho);

uint32_t ldr_ho_crc(const ldr_ho_head_t *head);

static inline uint32_t ldr_ho_slices(uint32_t pages)
{
    return (pages + LDR_SLICE_PAGES - 1) / LDR_SLICE_PAGES;
}
