/*
 * A simulated back end of the shared tier: objects in memory, shared by as many
 * back ends (nodes) as one likes, able to fail in every way that storage does.
 * With one thread the same seed and the same calls give the same store.
 *
 * Reads, puts and removals are seen by all at once, as with any storage that a
 * tier may lie on; listings may be old: see simstore_stale().
 *
 * Any number of threads may call. Crashes and what runs before calls are set
 * before a back end is used, or while nobody calls it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tier/shared/backend.h"

typedef struct simstore simstore_t;

typedef enum simstore_kind {
    SIMSTORE_PUT,
    SIMSTORE_GET,
    SIMSTORE_SIZE,
    SIMSTORE_LIST,
    SIMSTORE_REMOVE,
    SIMSTORE_HEALTH,
    SIMSTORE_KINDS
} simstore_kind_t;

/* With a larder.tier in it. Outlives its back ends. */
simstore_t *simstore_create(uint64_t seed);
void simstore_destroy(simstore_t *store);

/* A node's view; destroyed by its user (ops->destroy). */
ldr_backend_t *simstore_backend(simstore_t *store);
unsigned simstore_backends(simstore_t *store); /* that are not destroyed */

/* ---- of one back end ---- */

uint64_t simstore_calls(const ldr_backend_t *b);
/* The node dies at call number nth from now (1: the next): that call takes
 * place or not, by chance, and all later ones give -EIO and do nothing. */
void simstore_crash_at(ldr_backend_t *b, uint64_t nth);
bool simstore_crashed(const ldr_backend_t *b);
/* The nth call of the kind from now and the times-1 after it (0: all) give
 * this error; a put takes place all the same by chance if it is -ETIMEDOUT. */
void simstore_fail(ldr_backend_t *b, simstore_kind_t kind, uint64_t nth,
                   uint64_t times, int error);
/* So many of a thousand calls fail, with -EIO or -ETIMEDOUT. */
void simstore_noise(ldr_backend_t *b, unsigned per_mille);
/* So many of a thousand listings are what they were up to `changes` changes of
 * the store before (all of a thousand: just as many): names that are new are
 * missing, names that are gone are still there. */
void simstore_stale(ldr_backend_t *b, unsigned per_mille, unsigned changes);
/* Called before each call, no lock held: other nodes may run in it. */
void simstore_before(ldr_backend_t *b, void (*fn)(void *arg), void *arg);
/* So many gets of the object from its beginning give a bit that is wrong. */
void simstore_garble(ldr_backend_t *b, const char *name, uint64_t times);
/* Listings come in pages of so many names: what runs before calls runs before
 * each, and the clock says whether the deadline has passed. */
void simstore_pages(ldr_backend_t *b, size_t names, const ldr_clock_t *clock);
/* Calls of this kind wait from now on, until they may go on. */
void simstore_hang(ldr_backend_t *b, simstore_kind_t kind, bool hangs);
/* How many wait now. */
unsigned simstore_hanging(const ldr_backend_t *b);

/* ---- of the store ---- */

void simstore_capacity(simstore_t *store, uint64_t bytes); /* 0: no bound */
void simstore_read_only(simstore_t *store, bool yes);
/* Back ends that are made from now on say that it may evict. */
void simstore_evicts(simstore_t *store, bool yes);
void simstore_away(simstore_t *store, bool yes); /* -ENODEV for everything */

uint64_t simstore_bytes(simstore_t *store, const char *prefix);
unsigned simstore_count(simstore_t *store, const char *prefix);
/* The name of object number i below the prefix, as long as it is there. */
const char *simstore_name(simstore_t *store, const char *prefix, unsigned i);
bool simstore_flip(simstore_t *store, const char *name, uint64_t bit);
/* Behind everybody's back. */
bool simstore_lose(simstore_t *store, const char *name);
/* ... but it stays listed, as in Valkey. */
bool simstore_evict(simstore_t *store, const char *name);
bool simstore_rename(simstore_t *store, const char *from, const char *to);
bool simstore_write(simstore_t *store, const char *name, const void *data,
                    size_t bytes);
