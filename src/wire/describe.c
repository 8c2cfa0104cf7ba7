/* Bodies of DESCRIBE: parse and compose. Pure functions. */
#include "wire/describe.h"

#include <string.h>

#include "base/bytes.h"
#include "wire/wire_int.h"

#define TEXTS_AT 28u
#define MODEL_AT (TEXTS_AT + LDR_DESCRIBE_POD)
#define KIND_AT (MODEL_AT + LDR_DESCRIBE_MODEL)
#define DIGEST_AT (KIND_AT + LDR_DESCRIBE_KIND)
#define PARENT_AT (DIGEST_AT + LDR_DIGEST_BYTES)

_Static_assert(PARENT_AT + LDR_BLOCK_HASH_MAX == LDR_DESCRIBE_HEAD_BYTES,
               "the head's fields");

size_t ldr_describe_bytes(const ldr_describe_msg_t *m)
{
    if (m->count < 1 || m->count > LDR_DESCRIBE_CHUNKS || m->block_tokens < 1 ||
        m->chunk_tokens > LDR_BODY_MAX || m->chunk_tokens < m->block_tokens ||
        m->chunk_tokens % m->block_tokens != 0 ||
        m->chunk_tokens / m->block_tokens > LDR_DESCRIBE_BLOCKS ||
        m->hash_bytes < 1 || m->hash_bytes > LDR_BLOCK_HASH_MAX) {
        return 0;
    }
    uint64_t chunk =
        LARDER_KEY_BYTES + (uint64_t)m->chunk_tokens * 4 +
        (uint64_t)(m->chunk_tokens / m->block_tokens) * m->hash_bytes;
    uint64_t all = LDR_DESCRIBE_HEAD_BYTES + m->count * chunk;
    return all <= LDR_BODY_MAX ? (size_t)all : 0;
}

static void place(const uint8_t *rows, ldr_describe_msg_t *m)
{
    m->keys = rows;
    m->tokens = m->keys + (size_t)m->count * LARDER_KEY_BYTES;
    m->hashes = m->tokens + (size_t)m->count * m->chunk_tokens * 4;
}

size_t ldr_put_describe(uint8_t *at, const ldr_describe_msg_t *m)
{
    size_t bytes = ldr_describe_bytes(m);
    ldr_describe_msg_t to = *m;

    if (bytes == 0) {
        return 0;
    }
    ldr_put32(at, m->space);
    ldr_put32(at + 4, m->count);
    ldr_put32(at + 8, m->chunk_tokens);
    ldr_put32(at + 12, m->block_tokens);
    ldr_put32(at + 16, m->group_idx);
    ldr_put32(at + 20, m->window);
    ldr_put16(at + 24, m->group);
    at[26] = m->hash_bytes;
    at[27] = m->flags;
    ldr_wire_put_text(at + TEXTS_AT, m->pod, LDR_DESCRIBE_POD);
    ldr_wire_put_text(at + MODEL_AT, m->model, LDR_DESCRIBE_MODEL);
    ldr_wire_put_text(at + KIND_AT, m->kind, LDR_DESCRIBE_KIND);
    memcpy(at + DIGEST_AT, m->digest, LDR_DIGEST_BYTES);
    memset(at + PARENT_AT, 0, LDR_BLOCK_HASH_MAX);
    memcpy(at + PARENT_AT, m->parent, m->hash_bytes);
    place(at + LDR_DESCRIBE_HEAD_BYTES, &to);
    memcpy((uint8_t *)to.keys, m->keys, (size_t)(to.tokens - to.keys));
    memcpy((uint8_t *)to.tokens, m->tokens, (size_t)(to.hashes - to.tokens));
    memcpy((uint8_t *)to.hashes, m->hashes, bytes - (size_t)(to.hashes - at));
    return bytes;
}

bool ldr_get_describe(const uint8_t *at, size_t bytes, ldr_describe_msg_t *m)
{
    if (bytes < LDR_DESCRIBE_HEAD_BYTES) {
        return false;
    }
    m->space = ldr_get32(at);
    m->count = ldr_get32(at + 4);
    m->chunk_tokens = ldr_get32(at + 8);
    m->block_tokens = ldr_get32(at + 12);
    m->group_idx = ldr_get32(at + 16);
    m->window = ldr_get32(at + 20);
    m->group = ldr_get16(at + 24);
    m->hash_bytes = at[26];
    m->flags = at[27];
    memcpy(m->digest, at + DIGEST_AT, LDR_DIGEST_BYTES);
    memcpy(m->parent, at + PARENT_AT, LDR_BLOCK_HASH_MAX);
    if (ldr_describe_bytes(m) != bytes || m->group >= LARDER_GROUPS_MAX ||
        (m->flags & ~(LDR_DESCRIBE_PARENT | LDR_DESCRIBE_NUMBERS)) != 0 ||
        ((m->flags & LDR_DESCRIBE_NUMBERS) != 0 && m->hash_bytes != 8)) {
        return false;
    }
    /* Without a parent all of it is zero. */
    uint32_t from = (m->flags & LDR_DESCRIBE_PARENT) != 0 ? m->hash_bytes : 0;
    for (uint32_t i = from; i < LDR_BLOCK_HASH_MAX; i++) {
        if (m->parent[i] != 0) {
            return false;
        }
    }
    place(at + LDR_DESCRIBE_HEAD_BYTES, m);
    return ldr_wire_get_text(at + TEXTS_AT, LDR_DESCRIBE_POD, m->pod) &&
           ldr_wire_get_text(at + MODEL_AT, LDR_DESCRIBE_MODEL, m->model) &&
           ldr_wire_get_text(at + KIND_AT, LDR_DESCRIBE_KIND, m->kind) &&
           m->pod[0] != '\0' && m->model[0] != '\0' &&
           strchr(m->pod, '@') == NULL;
}
