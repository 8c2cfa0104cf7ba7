/*
 * The hash ids of a trace as small numbers, in the order in which they first
 * came. Public traces number their blocks just so; as long as that holds
 * nothing is stored at all. What comes otherwise goes into a hash table: 12
 * bytes for each, at most 0.7 full.
 */
#pragma once

#include <stdint.h>

typedef struct ldr_id_map {
    uint32_t plain; /* ids below this are their own numbers */
    uint32_t count; /* numbers given */
    uint64_t slots; /* of the table: 0 or a power of two */
    struct ldr_id *table;
} ldr_id_map_t;

/* The number of an id, a new one if it is new. LDR_NIL: no memory, or there
 * are 2^32 - 2 already. */
uint32_t ldr_id_map_get(ldr_id_map_t *ids, uint64_t id);
/* Prefetches the memory that a search for it will need. */
void ldr_id_map_prefetch(const ldr_id_map_t *ids, uint64_t id);
/* 64 bits that look random. */
uint64_t ldr_id_map_hash(uint64_t id);
void ldr_id_map_free(ldr_id_map_t *ids);
