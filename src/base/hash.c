/*
 * The SHA256_* functions are marked deprecated in favour of EVP, which
 * allocates a context for every digest and costs 15 % more on a chunk of 64
 * tokens. They are the same code underneath, with the CPU's instructions.
 */
#define OPENSSL_SUPPRESS_DEPRECATED

#include "base/hash.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <string.h>

#include "base/bytes.h"

#define HASH_BYTES 32
#define HMAC_BLOCK 64

static bool update(SHA256_CTX *ctx, const void *data, size_t bytes)
{
    return bytes == 0 || SHA256_Update(ctx, data, bytes) == 1;
}

static bool update_pieces(SHA256_CTX *ctx, const ldr_piece_t *pieces,
                          size_t count)
{
    bool ok = true;

    for (size_t i = 0; ok && i < count; i++) {
        ok = update(ctx, pieces[i].data, pieces[i].bytes);
    }
    return ok;
}

bool ldr_sha256(const ldr_piece_t *pieces, size_t count, uint8_t out[32])
{
    SHA256_CTX ctx;

    return SHA256_Init(&ctx) == 1 && update_pieces(&ctx, pieces, count) &&
           SHA256_Final(out, &ctx) == 1;
}

/* SHA-256(pad || pieces), where pad is the secret's block xor with. */
static bool hmac_half(const uint8_t block[HMAC_BLOCK], uint8_t with,
                      const ldr_piece_t *pieces, size_t count, uint8_t out[32])
{
    uint8_t pad[HMAC_BLOCK];
    SHA256_CTX ctx;
    bool ok;

    for (size_t i = 0; i < sizeof(pad); i++) {
        pad[i] = block[i] ^ with;
    }
    ok = SHA256_Init(&ctx) == 1 && update(&ctx, pad, sizeof(pad)) &&
         update_pieces(&ctx, pieces, count) && SHA256_Final(out, &ctx) == 1;
    OPENSSL_cleanse(pad, sizeof(pad));
    OPENSSL_cleanse(&ctx, sizeof(ctx));
    return ok;
}

/* RFC 2104. */
bool ldr_hmac_sha256(const void *secret, size_t secret_bytes,
                     const ldr_piece_t *pieces, size_t count, uint8_t out[32])
{
    uint8_t block[HMAC_BLOCK] = {0};
    uint8_t inner[HASH_BYTES];
    const ldr_piece_t outer = {inner, sizeof(inner)};
    bool ok = true;

    if (secret_bytes > sizeof(block)) {
        ok = ldr_sha256(&(ldr_piece_t){secret, secret_bytes}, 1, block);
    } else if (secret_bytes > 0) {
        memcpy(block, secret, secret_bytes);
    }
    ok = ok && hmac_half(block, 0x36, pieces, count, inner) &&
         hmac_half(block, 0x5c, &outer, 1, out);
    OPENSSL_cleanse(block, sizeof(block));
    OPENSSL_cleanse(inner, sizeof(inner));
    return ok;
}

/* The tokens as 32-bit little-endian numbers. */
static bool update_tokens(SHA256_CTX *ctx, const uint32_t *tokens, size_t count)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    return update(ctx, tokens, count * sizeof(*tokens));
#else
    uint8_t buffer[256];
    bool ok = true;

    while (ok && count > 0) {
        size_t step = ldr_min64(count, sizeof(buffer) / sizeof(*tokens));
        for (size_t i = 0; i < step; i++) {
            ldr_put32(buffer + i * sizeof(*tokens), tokens[i]);
        }
        ok = update(ctx, buffer, step * sizeof(*tokens));
        tokens += step;
        count -= step;
    }
    return ok;
#endif
}

#define RUN_TAG_BYTES 8u
#define RUN_SHARE 32u /* of the depth: the longest run there */

/* Beyond 16 bits a depth counts in circles. They begin at a multiple of the
 * longest run, and all runs there have their full length. */
static uint32_t depth_after(uint32_t depth)
{
    return depth < UINT16_MAX ? depth + 1 : UINT16_MAX + 1 - LDR_RUN_CHUNKS;
}

uint32_t ldr_run_set(uint64_t run)
{
    uint64_t x = run;

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((x ^ x >> 31) & (LDR_RUN_SETS - 1));
}

uint32_t ldr_run_next(const larder_key_t *key)
{
    return depth_after(ldr_get16(key->hash + RUN_TAG_BYTES));
}

/* Puts its run and its depth into a key. */
static void mark_run(uint8_t *key, const uint8_t *parent, uint32_t depth,
                     uint32_t most)
{
    uint32_t length = 1;

    while (2 * length <= most && 2 * length * RUN_SHARE <= depth) {
        length *= 2;
    }
    if (depth % length != 0) { /* in the run of the one before it */
        memcpy(key, parent, RUN_TAG_BYTES);
    }
    ldr_put16(key + RUN_TAG_BYTES, (uint16_t)depth);
}

bool ldr_chain_runs(const uint8_t root[32], const uint32_t *tokens,
                    uint32_t chunk_tokens, const larder_extra_t *extra,
                    uint32_t most, uint32_t depth, larder_key_t *keys,
                    size_t count)
{
    const uint8_t *parent = root;

    for (size_t i = 0; i < count; i++) {
        size_t extra_bytes = extra != NULL ? extra[i].bytes : 0;
        uint8_t length[8];
        SHA256_CTX ctx;

        ldr_put64(length, extra_bytes);
        if (SHA256_Init(&ctx) != 1 || !update(&ctx, parent, HASH_BYTES) ||
            !update_tokens(&ctx, tokens, chunk_tokens) ||
            !update(&ctx, length, sizeof(length)) ||
            (extra_bytes > 0 && !update(&ctx, extra[i].data, extra_bytes)) ||
            SHA256_Final(keys[i].hash, &ctx) != 1) {
            return false;
        }
        if (most > 1) {
            mark_run(keys[i].hash, parent, depth, most);
            depth = depth_after(depth);
        }
        parent = keys[i].hash;
        tokens += chunk_tokens;
    }
    return true;
}

bool ldr_chain_pages(const uint8_t *parent, const uint32_t *tokens,
                     uint32_t chunk_tokens, uint32_t page_tokens,
                     const larder_extra_t *extra, larder_key_t *keys,
                     size_t count)
{
    static const uint8_t none[HASH_BYTES];
    uint8_t hash[HASH_BYTES];
    bool begun = parent != NULL;

    memcpy(hash, begun ? parent : none, sizeof(hash));
    for (size_t i = 0; i < count; i++) {
        if (extra != NULL && extra[i].bytes > 0) {
            const ldr_piece_t apart[] = {{"larder extra 1", 14},
                                         {hash, sizeof(hash)},
                                         {extra[i].data, extra[i].bytes}};
            if (!ldr_sha256(apart, 3, hash)) {
                return false;
            }
            begun = true;
        }
        for (uint32_t at = 0; at < chunk_tokens; at += page_tokens) {
            SHA256_CTX ctx;

            if (SHA256_Init(&ctx) != 1 ||
                !update(&ctx, hash, begun ? sizeof(hash) : 0) ||
                !update_tokens(&ctx, tokens, page_tokens) ||
                SHA256_Final(hash, &ctx) != 1) {
                return false;
            }
            begun = true;
            tokens += page_tokens;
        }
        memcpy(keys[i].hash, hash, sizeof(hash));
    }
    return true;
}

bool ldr_token_digest(uint8_t digest[16], const void *tokens, size_t bytes)
{
    uint8_t whole[HASH_BYTES];
    const ldr_piece_t pieces[] = {{digest, 16}, {tokens, bytes}};

    if (!ldr_sha256(pieces, 2, whole)) {
        return false;
    }
    memcpy(digest, whole, 16);
    return true;
}
