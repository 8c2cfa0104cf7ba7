/*
 * Staged prefixes: what STAGE has brought into DRAM and holds there, for its
 * session, and for any other session of the tenant that has the token.
 *
 * A stage lives while somebody has a reference to it: the hold of the session
 * that asked for it (LDR_HOLD_STAGE), and whoever is resolving its token just
 * now. The last reference gives the shards back to the node.
 */
#pragma once

#include "layout/layout.h"
#include "server/server_int.h"

#define LDR_STAGE_BUCKETS 256u

typedef struct ldr_stage {
    struct ldr_stage *next; /* of its bucket, under stage_lock */
    larder_token_t token;
    uint32_t refs; /* under stage_lock */
    uint32_t tenant, space, shards, chunks;
    uint32_t need_count;
    ldr_need_t needs[LARDER_GROUPS_MAX];
    uint32_t total;
    uint32_t ids[]; /* shards that are held, in the order of node/stage.h */
} ldr_stage_t;

/* Room for so many shards; NULL: no memory. It has one reference, and no token
 * yet. */
ldr_stage_t *ldr_stage_new(uint32_t total);
/* From here on it is found by its token. */
void ldr_stage_enter(ldr_server_t *server, ldr_stage_t *stage);
/* NULL: there is none, or it is another tenant's. A reference. */
ldr_stage_t *ldr_stage_find(ldr_server_t *server, const larder_token_t *token,
                            uint32_t tenant);
void ldr_stage_unref(ldr_server_t *server, ldr_stage_t *stage);
/* The shard at this place; LDR_NIL: it is not part of it. */
uint32_t ldr_stage_at(const ldr_stage_t *stage, const ldr_place_row_t *place);
