/*
 * Marks of evicted chunks, so that a miss can say why. With the node's lock.
 * Two chunks may share a mark: then a cause is wrong, and nothing else.
 */
#include "store/store.h"

static uint32_t ghost_tag(uint64_t fingerprint)
{
    return (uint32_t)(fingerprint >> 32) | 1; /* 0 is an empty slot */
}

void ldr_store_ghost_mark(ldr_store_t *s, uint64_t fingerprint)
{
    s->ghosts[fingerprint & (LDR_GHOSTS - 1)] = ghost_tag(fingerprint);
}

bool ldr_store_ghost_find(const ldr_store_t *s, uint64_t fingerprint)
{
    return s->ghosts[fingerprint & (LDR_GHOSTS - 1)] == ghost_tag(fingerprint);
}
