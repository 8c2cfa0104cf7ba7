/*
 * What a tenant has, for people who look: shards in DRAM and on disks, in
 * pages.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "node/node.h"

typedef struct ldr_listed {
    larder_key_t key;
    bool has_key; /* false: its record cannot be read */
    uint8_t space_id[LDR_ID_BYTES];
    uint16_t group, shard, shards;
    uint32_t length;    /* without has_key: of a whole number of blocks */
    uint32_t written_s; /* wall clock of the save; 0: not known */
    uint32_t expires_s; /* 0: never */
    uint32_t depth;
    bool pinned, dram, ssd;           /* where it is */
    char label[LARDER_LABEL_MAX + 1]; /* the space's */
} ldr_listed_t;

#define LDR_LIST_ROWS                                                          \
    256u /* at most, in one page; more than a chunk's shards */

/*
 * The next page of a tenant's shards, from *cursor_p on (0: the first); sets it
 * to where to go on, LDR_NIL: that was all. Rows may be none before the end.
 * What comes or goes while somebody lists may be missed. Keys of what is only
 * on a disk are read from there: this may wait for one, so one lists at a time
 * (E_BUSY).
 */
larder_status_t ldr_node_list(ldr_node_t *node, uint32_t tenant,
                              uint32_t *cursor_p,
                              ldr_listed_t rows[LDR_LIST_ROWS],
                              uint32_t *count_p, const ldr_stop_t *stop);
