/* What the parts of the store share. */
#pragma once

#include "base/check.h"
#include "store/store.h"

static inline ldr_tenant_t *ldr_tenant_of(const ldr_store_t *s,
                                          const ldr_chunk_t *c)
{
    return &s->tenants[s->spaces[c->space].tenant];
}

/* Pins within the tenant's budget; over it the chunk is simply not pinned. */
void ldr_pin(ldr_store_t *s, uint32_t chunk, uint32_t bytes);
/* The chunk is held, or about to leave the policy: which stays as it is. */
void ldr_unpin(ldr_store_t *s, ldr_chunk_t *c);
/* The same for chunks on their way to the disk. */
void ldr_transient_add(ldr_store_t *s, uint32_t chunk);
void ldr_transient_remove(ldr_store_t *s, ldr_chunk_t *c);
/* Whether there is room for so many pages more of them. */
bool ldr_transient_fits(const ldr_store_t *s, uint32_t tenant, uint32_t pages);
/* Frees a chunk of the tenant that a reset made void. False: none was seen. */
bool ldr_void_free(ldr_store_t *s, uint32_t tenant);
