/* The invariants of store.h and arena.h, by walking all tables. */
#pragma once

#include "store/store.h"

/* Ends the test with what is wrong. Nothing may be in progress. */
void store_check(const ldr_store_t *store);

/* A save ends: the shard becomes visible, and joins the first queue. */
static inline bool store_commit(ldr_store_t *s, uint32_t shard, uint32_t crc)
{
    bool ok = ldr_store_commit(s, shard, crc, true);

    if (ok) {
        ldr_behind_push(s, 0, shard);
    }
    return ok;
}
