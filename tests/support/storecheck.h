/* The invariants of store.h and arena.h, by walking all tables. */
#pragma once

#include "store/store.h"

/* Ends the test with what is wrong. Nothing may be in progress. */
void store_check(const ldr_store_t *store);
