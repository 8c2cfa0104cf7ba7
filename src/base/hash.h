/* SHA-256 and HMAC-SHA-256 over libcrypto, and the chain of keys. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "larder/larder.h"

typedef struct ldr_piece {
    const void *data;
    size_t bytes;
} ldr_piece_t;

/* Digest of the pieces one after the other. False: libcrypto failed. */
bool ldr_sha256(const ldr_piece_t *pieces, size_t count, uint8_t out[32]);
bool ldr_hmac_sha256(const void *secret, size_t secret_bytes,
                     const ldr_piece_t *pieces, size_t count, uint8_t out[32]);

/* A chain of tokens alone, without space, secret or extra bytes: digest becomes
 * that of the block that follows those before it; zeros before the first. The
 * first 16 bytes of SHA-256(digest || tokens, 32-bit little-endian). bytes: of
 * the tokens. */
bool ldr_token_digest(uint8_t digest[16], const void *tokens, size_t bytes);

/*
 * keys[i] = SHA-256(keys[i-1] || tokens of chunk i, 32-bit little-endian ||
 *                   length of extra i, 64-bit || extra i)
 * with root in the place of keys[-1]. extra may be NULL: all empty. The length
 * stands between tokens and extra so that neither can pass for the other.
 *
 * most: 0 or 1: these keys. Otherwise chunks are placed in runs: a key alone
 * then says where a cluster keeps its chunk, without the rest of the chain.
 * Only the one who makes a key knows the chunk's place in the chain, so it goes
 * into the key:
 *  - bytes 0 to 7: those of the hash of the first chunk of its run
 *  - bytes 8 and 9: its depth in the chain, 16 bits, little-endian, so that a
 *    chain can be continued from a key
 *  - the rest: of its own hash
 * A run begins at a multiple of its length, a power of two. It has at most
 * `most` chunks, and at most a 32nd of the depth at which it begins: chains
 * that part from each other inside a run go on with the same name until its
 * end, so one prompt with 10,000 continuations would otherwise have them all on
 * one member.
 *
 * depth: of the first chunk; beyond 0 root is the key before it.
 */
#define LDR_RUN_CHUNKS 256u
bool ldr_chain_runs(const uint8_t root[32], const uint32_t *tokens,
                    uint32_t chunk_tokens, const larder_extra_t *extra,
                    uint32_t most, uint32_t depth, larder_key_t *keys,
                    size_t count);
/* The set of runs that the chunk's is in: all of a set have the same owners, in
 * whatever view (cluster/placement.h). */
#define LDR_RUN_SETS ((uint32_t)1 << 20)
uint32_t ldr_run_set(uint64_t run);
/* The depth of the chunk after this one, whose key was made with runs. */
uint32_t ldr_run_next(const larder_key_t *key);

/*
 * Keys that SGLang can make as well, which knows its page hashes and no tokens:
 * of each page of page_tokens tokens
 *     SHA-256(hash of the page before || tokens, 32-bit little-endian)
 * and nothing before the first page of a prompt. keys[i] is the hash of chunk
 * i's last page; page_tokens divides chunk_tokens. parent: the key before
 * keys[0]; NULL: there is none. If chunk i has extra bytes, what stands before
 * its first page is SHA-256("larder extra 1" || hash of the page before, or
 * zeros || extra i), which is no page's hash.
 */
bool ldr_chain_pages(const uint8_t *parent, const uint32_t *tokens,
                     uint32_t chunk_tokens, uint32_t page_tokens,
                     const larder_extra_t *extra, larder_key_t *keys,
                     size_t count);
