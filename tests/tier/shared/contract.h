/*
 * What every back end of the shared tier promises (shared/backend.h), as one
 * test that each is put to. All objects that it makes lie below "contract/",
 * and it removes them before it ends; what else is there is left alone.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tier/shared/backend.h"

typedef struct contract {
    /* A back end of its own on the same storage, which is a tier already.
     * Called by several threads and by child processes. */
    ldr_backend_t *(*open)(void *arg);
    void *arg;
    unsigned many;  /* names of a long listing; 0: 1100, more than a page */
    size_t large;   /* bytes of the largest object; 0: 20 MiB and a bit */
    unsigned kills; /* children that are killed while they write; 0: 10 */
    bool blinks;    /* what is being replaced may be missing for a moment */
} contract_t;

/* All of it, in this order; each fails by cmocka's asserts. */
void contract_run(const contract_t *c);

void contract_bytes(const contract_t *c);   /* what is put can be got */
void contract_errors(const contract_t *c);  /* and what cannot, says why */
void contract_replace(const contract_t *c); /* put over, and LDR_OBJECT_NEW */
void contract_list(const contract_t *c);
void contract_race(const contract_t *c); /* many put the same name at once */
void contract_kill(const contract_t *c); /* writers that are killed */

/* ---- for tests of one back end ---- */

/* Bytes that say which object they belong to, and where in it they lie. */
void contract_fill(const char *name, uint64_t offset, uint8_t *data,
                   size_t bytes);
/* One object as a whole; 0 or a negative errno. */
int contract_put(ldr_backend_t *b, const char *name, size_t bytes,
                 unsigned flags);
/* The same, and asserts that it has these bytes. */
void contract_check(ldr_backend_t *b, const char *name, uint64_t offset,
                    size_t bytes);
/* Removes all below the prefix. */
void contract_clear(ldr_backend_t *b, const char *prefix);
uint64_t contract_deadline(void); /* half a minute from now */
