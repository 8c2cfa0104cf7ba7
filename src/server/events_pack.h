/* KV events as msgpack: maps with the fields that vLLM's have
 * (docs/guide/routing.md). */
#pragma once

#include "server/catalog.h"
#include "server/pack.h"

/* One BlockStored or BlockRemoved. owned: with who has it. */
void ldr_event_pack(ldr_pack_t *p, const ldr_catalog_change_t *c, bool owned);
/* AllBlocksCleared */
void ldr_event_pack_cleared(ldr_pack_t *p, bool owned);
