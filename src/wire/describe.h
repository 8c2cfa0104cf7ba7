/*
 * DESCRIBE: what an engine calls chunks that it saves or has found: their
 * tokens, and its own hashes of its blocks, for routers. A node takes it only
 * if its welcome has LDR_FEATURE_DESCRIBE. Rules as in wire.h.
 */
#pragma once

#include "wire/wire.h"

#define LDR_DESCRIBE_POD 64u
#define LDR_DESCRIBE_MODEL 128u
#define LDR_DESCRIBE_KIND 32u
#define LDR_BLOCK_HASH_MAX 32u
#define LDR_DIGEST_BYTES 16u

/* Consecutive chunks of one prompt, of one group, as one engine knows them. */
typedef struct ldr_describe_msg {
    uint32_t space;
    uint32_t count; /* chunks, 1...LDR_DESCRIBE_CHUNKS */
    uint32_t chunk_tokens;
    uint32_t block_tokens; /* divides it */
    uint32_t group_idx;    /* the engine's number of the group */
    uint32_t window;       /* tokens; 0: none */
    uint16_t group;        /* the store's number of it */
    uint8_t hash_bytes;    /* 1...LDR_BLOCK_HASH_MAX */
    uint8_t flags;         /* LDR_DESCRIBE_* */
    char pod[LDR_DESCRIBE_POD], model[LDR_DESCRIBE_MODEL];
    char kind[LDR_DESCRIBE_KIND];
    uint8_t digest[LDR_DIGEST_BYTES];   /* ldr_token_digest() of all before */
    uint8_t parent[LDR_BLOCK_HASH_MAX]; /* the hash before; zeros behind it */
    const uint8_t *keys;                /* count * LARDER_KEY_BYTES */
    const uint8_t *tokens;              /* count * chunk_tokens * 4 */
    const uint8_t *hashes;              /* of all blocks, hash_bytes each */
} ldr_describe_msg_t;

enum {
    LDR_DESCRIBE_PARENT = 1u << 0,  /* there is one: not the first chunk */
    LDR_DESCRIBE_NUMBERS = 1u << 1, /* hashes are big-endian numbers */
};

#define LDR_DESCRIBE_CHUNKS 64u
#define LDR_DESCRIBE_BLOCKS 1024u /* of one chunk */
#define LDR_DESCRIBE_HEAD_BYTES                                                \
    (28u + LDR_DESCRIBE_POD + LDR_DESCRIBE_MODEL + LDR_DESCRIBE_KIND +         \
     LDR_DIGEST_BYTES + LDR_BLOCK_HASH_MAX)

/* Bytes of a whole body; 0: it cannot be, or is more than LDR_BODY_MAX. */
size_t ldr_describe_bytes(const ldr_describe_msg_t *m);
size_t ldr_put_describe(uint8_t *at, const ldr_describe_msg_t *m);
bool ldr_get_describe(const uint8_t *at, size_t bytes, ldr_describe_msg_t *m);
