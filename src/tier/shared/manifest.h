/*
 * Manifests: what nodes tell each other about the objects of a tenant. Each
 * node publishes a sequence of them, the others poll, by listing names and
 * reading those that are new. The cleaner replaces many by few. A manifest
 * only ever says what was true: one that names an object that is gone costs a
 * miss. Pure functions; docs/concepts/shared.md describes the format.
 *
 * A manifest is composed entry by entry into a buffer that grows, sealed with
 * HMAC-SHA-256 under the tenant's key over all of it, and parsed only after
 * that was checked; parsing is strict all the same.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tier/shared/object.h"

#define LDR_MANIFEST_VERSION 1u
#define LDR_MANIFEST_BYTES_MAX ((size_t)96 << 20)
#define LDR_MANIFEST_HEAD 64u
#define LDR_MANIFEST_KEY 16u /* bytes of a chunk's key that a row holds */

/* One record of an object: enough to find and to read it. */
typedef struct ldr_manifest_row {
    uint8_t key[LDR_MANIFEST_KEY];
    uint8_t group, shard, shards;
    uint16_t block, blocks; /* with its descriptor */
    uint32_t depth;
    uint32_t expires_s;
} ldr_manifest_row_t;

typedef enum ldr_manifest_kind {
    LDR_MANIFEST_OBJECT = 1,  /* object, its rows */
    LDR_MANIFEST_GONE = 2,    /* the object was removed: id */
    LDR_MANIFEST_REMOVED = 3, /* a record was: space, when, one row */
    LDR_MANIFEST_USED = 4,    /* the object was read: id, when last */
} ldr_manifest_kind_t;

typedef struct ldr_manifest_entry {
    ldr_manifest_kind_t kind;
    /* GONE, USED: only id. REMOVED: only space_id, and as written_s when it
     * was removed: see ldr_map_remove(). */
    ldr_object_t object;
    uint32_t used_s; /* USED; OBJECT: 0, or what the cleaner knows */
    /* OBJECT: object.rows of them, those that still count; maybe none.
     * REMOVED: one. */
    const ldr_manifest_row_t *rows;
} ldr_manifest_entry_t;

typedef struct ldr_manifest {
    uint8_t *data; /* ldr_alloc'ed; grows */
    size_t bytes, capacity;
    uint32_t entries;
} ldr_manifest_t;

typedef struct ldr_manifest_head {
    uint8_t tenant_id[LDR_ID_BYTES];
    uint8_t node_id[8];
    uint64_t sequence;
    uint32_t written_s;
} ldr_manifest_head_t;

/* False: no memory, it would be longer than LDR_MANIFEST_BYTES_MAX, or an entry
 * that no parser would take; all that was added before is still there. */
bool ldr_manifest_add(ldr_manifest_t *m, const ldr_manifest_entry_t *entry);
/* Fills in head and seal: data and bytes can then be put. Nothing can be added
 * after that. */
bool ldr_manifest_finish(ldr_manifest_t *m, const ldr_manifest_head_t *head,
                         const ldr_seal_t *seal);
void ldr_manifest_clear(ldr_manifest_t *m);
/* Calls fn with each entry of one that was composed here, finished or not.
 * False: no memory, and fn was not called. */
bool ldr_manifest_each(const ldr_manifest_t *m,
                       void (*fn)(void *arg, const ldr_manifest_entry_t *e),
                       void *arg);

/* Checks seal and form, then calls fn with each entry; its rows live until fn
 * returns. head->tenant_id is given, the rest of it filled in before fn is
 * called. False: forged, broken, another tenant's, or no memory; fn was not
 * called. */
bool ldr_manifest_parse(const uint8_t *data, size_t bytes,
                        const ldr_seal_t *seal, ldr_manifest_head_t *head,
                        void (*fn)(void *arg, const ldr_manifest_entry_t *e),
                        void *arg);

/* For who has no key, and so cannot tell whether it is true: it may decide what
 * is removed and nothing else, since whoever can write to the storage can
 * remove it himself. When a manifest that begins with these bytes was written;
 * 0: it is none. */
uint32_t ldr_manifest_peek_when(const uint8_t data[LDR_MANIFEST_HEAD],
                                const uint8_t tenant_id[LDR_ID_BYTES]);
