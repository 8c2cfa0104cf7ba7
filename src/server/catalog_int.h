/* What the files of the catalogue share. */
#pragma once

#include <pthread.h>

#include "base/thread.h"
#include "server/catalog.h"

typedef struct description description_t;
typedef struct block block_t;

/* A block's place in a description. */
typedef struct use {
    block_t *block;
    description_t *of;
    struct use *prev, *next; /* of the same block */
} use_t;

/* A block of the engine's, in a scope. Its digest is that of all tokens up to
 * its end. */
struct block {
    uint32_t scope;
    uint32_t published[LDR_MEDIA]; /* descriptions with it that are */
    use_t *uses;
    block_t *next_hash, *next_digest; /* of its buckets */
    uint8_t digest[LDR_DIGEST_BYTES];
    uint8_t hash[LDR_BLOCK_HASH_MAX];
};

struct description {
    uint64_t print; /* the node's fingerprint of the chunk */
    ldr_source_t *source;
    description_t *next_print;    /* of its bucket */
    description_t *older, *newer; /* of the same tenant */
    description_t *next_dirty;
    /* In a row of the publisher's: told after it; itself: it is the last. */
    description_t *then;
    bool dirty; /* to be looked at by the publisher */
    bool gone;  /* dropped: nobody finds it, and the publisher frees it */
    bool away;  /* as the last round found, and it was not here since then */
    uint8_t published; /* bits: media */
    uint64_t asked;    /* the question that looked at it last, and found: */
    uint8_t asked_media;
    bool has_parent;
    larder_key_t key;
    uint8_t parent[LDR_BLOCK_HASH_MAX];
    uint32_t *tokens;
    use_t uses[]; /* then the tokens */
};

/* A round's chunks that are not here, and how far it is. Keys are apart: who is
 * asked gets many at once. */
typedef struct ldr_away {
    larder_key_t *keys;
    struct ldr_away_row {
        uint64_t print;
        uint32_t space, shards;
        uint16_t group;
    } * rows;
    size_t count, at;
} ldr_away_t;

/* What a tenant has described. */
typedef struct ldr_describer {
    uint32_t tenant;
    uint64_t bytes;
    description_t *oldest, *newest;
} ldr_describer_t;

struct ldr_catalog {
    ldr_node_t *node;
    uint64_t bytes_max, bytes;
    uint64_t seed[2];
    pthread_mutex_t lock;
    ldr_source_t *sources[LDR_SOURCES_MAX];
    uint32_t source_count, source_next;
    ldr_describer_t *tenants;
    size_t tenant_capacity, tenant_count;
    description_t **prints;
    block_t **hashes, **digests;
    uint32_t mask; /* of the three tables */
    uint64_t asks; /* questions so far */
    uint64_t description_count, block_count, dropped, gone_count;
    /* For a publisher: */
    bool watched, by_node;
    ldr_away_t away;        /* the publisher's thread's: needs no lock */
    ldr_changes_t *changes; /* the node's lock */
    uint64_t *copied;       /* of its prints */
    description_t *dirty, **dirty_end;
};

static inline uint32_t ldr_source_blocks(const ldr_source_t *s)
{
    return s->chunk_tokens / s->block_tokens;
}

/* All with the catalogue's lock. */
block_t *ldr_catalog_block(ldr_catalog_t *c, const ldr_source_t *source,
                           const uint8_t hash[LDR_BLOCK_HASH_MAX]);
/* One that this source has described; after NULL: the first. There are several
 * while an engine's blocks have hashes of before its restart too. */
block_t *ldr_catalog_digest(ldr_catalog_t *c, const ldr_source_t *source,
                            const uint8_t digest[LDR_DIGEST_BYTES],
                            const block_t *after);
void ldr_catalog_dirty(ldr_catalog_t *c, description_t *d);
/* Of one that is gone. */
void ldr_catalog_free(ldr_catalog_t *c, description_t *d);
description_t *ldr_catalog_first(ldr_catalog_t *c, uint64_t print);
/* Bits: the media that have the chunk now. With the node's lock as well. */
uint8_t ldr_catalog_media(ldr_catalog_t *c, const description_t *d);

/* Chunks of one group of a space. */
typedef struct ldr_keys {
    uint32_t space, shards;
    uint16_t group;
    const larder_key_t *keys;
    size_t count;
} ldr_keys_t;

/* Without any lock: asks other members for what is not here, and waits. What is
 * not NULL has to be ended with ldr_node_ask_end(). */
ldr_query_t *ldr_catalog_ask_members(ldr_node_t *node, const ldr_keys_t *of,
                                     uint64_t deadline_ns);
