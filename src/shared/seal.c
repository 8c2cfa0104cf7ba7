/*
 * Why GCM for the MAC alone, too: in one thread over 1 MiB in pieces of 64 KiB
 * libcrypto 3.0 authenticates 8 GB/s and encrypts 4.3, and with AVX-512 the
 * hash of our own (ghash.c) takes 16 to 18; with AVX2 it is twice as fast as
 * libcrypto's. Poly1305 (12.3 with AVX-512) takes a key for every record;
 * HMAC-SHA-256 does 1.8, BLAKE2b 0.9. One primitive for both ways keeps the
 * format small. A context made anew for every record costs nothing that can be
 * measured from 64 KiB on.
 */
#include "shared/seal.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <string.h>

#include "base/bytes.h"
#include "base/copy.h"
#include "base/hash.h"

enum { NONCE_BYTES = 12, NONCE_BLOCK = 4 };

/* What libcrypto takes at once: its lengths are ints. */
#define PIECE_MAX ((size_t)1 << 30)
/* What is looked at twice is still in the second-level cache. */
#define STEP ((size_t)128 << 10)

static bool object_key(const ldr_seal_t *seal, const uint8_t id[LDR_ID_BYTES],
                       uint8_t key[LDR_SEAL_KEY_BYTES])
{
    static const char label[] = "larder object 1";
    const ldr_piece_t pieces[] = {
        {label, sizeof(label) - 1},
        {id, LDR_ID_BYTES},
        {seal->encrypts ? "c" : "m", 1},
        {seal->mac, seal->encrypts ? LDR_SEAL_KEY_BYTES : 0},
    };

    return ldr_hmac_sha256(seal->encrypts ? seal->cipher : seal->mac,
                           LDR_SEAL_KEY_BYTES, pieces,
                           sizeof(pieces) / sizeof(*pieces), key);
}

/* The key of the hash is AES of zeros, and the tag's mask AES of the nonce with
 * a 1 after it. */
static bool begin_hash(ldr_gcm_t *g, const uint8_t key[LDR_SEAL_KEY_BYTES],
                       const uint8_t nonce[NONCE_BYTES])
{
    uint8_t blocks[2 * LDR_TAG_BYTES] = {0}, out[sizeof(blocks)];
    int got;

    memcpy(blocks + LDR_TAG_BYTES, nonce, NONCE_BYTES);
    blocks[sizeof(blocks) - 1] = 1;
    if (EVP_EncryptInit_ex2(g->ctx, EVP_aes_256_ecb(), key, NULL, NULL) != 1 ||
        EVP_EncryptUpdate(g->ctx, out, &got, blocks, sizeof(blocks)) != 1 ||
        got != (int)sizeof(out)) {
        return false;
    }
    ldr_ghash_begin(&g->hash, out);
    memcpy(g->mask, out + LDR_TAG_BYTES, LDR_TAG_BYTES);
    OPENSSL_cleanse(out, sizeof(out));
    return true;
}

void ldr_gcm_begin(ldr_gcm_t *g, const ldr_seal_t *seal,
                   const uint8_t id[LDR_ID_BYTES], ldr_sealing_t what,
                   uint32_t block, bool opens)
{
    uint8_t key[LDR_SEAL_KEY_BYTES];
    uint8_t nonce[NONCE_BYTES] = {0};

    memcpy(nonce, what == LDR_SEALING_TAIL ? "tail" : "data", NONCE_BLOCK);
    ldr_put32(nonce + NONCE_BLOCK, block);
    g->hashes = !seal->encrypts && ldr_ghash_bits() != 0;
    g->ctx = EVP_CIPHER_CTX_new();
    g->ok = g->ctx != NULL && object_key(seal, id, key);
    if (g->ok && g->hashes) {
        g->ok = begin_hash(g, key, nonce);
    } else if (g->ok) {
        g->ok = EVP_CipherInit_ex2(g->ctx, EVP_aes_256_gcm(), key, nonce,
                                   !opens, NULL) == 1;
    }
    OPENSSL_cleanse(key, sizeof(key));
}

static void update(ldr_gcm_t *g, uint8_t *to, const uint8_t *from, size_t bytes)
{
    while (g->ok && bytes > 0) {
        int n = (int)ldr_min64(bytes, PIECE_MAX), got;

        g->ok = EVP_CipherUpdate(g->ctx, to, &got, from, n) == 1 && got == n;
        to = to != NULL ? to + n : NULL;
        from += n;
        bytes -= (size_t)n;
    }
}

void ldr_gcm_data(ldr_gcm_t *g, uint8_t *to, const uint8_t *from, size_t bytes)
{
    g->ok = g->ok && !g->hashes; /* nothing is encrypted here */
    update(g, to, from, bytes);
}

/* libcrypto's way to say so is a place of NULL. */
void ldr_gcm_aad(ldr_gcm_t *g, const uint8_t *p, size_t bytes)
{
    if (!g->hashes) {
        update(g, NULL, p, bytes);
    } else if (g->ok) {
        ldr_ghash_add(&g->hash, p, bytes);
    }
}

uint32_t ldr_gcm_aad_crc(ldr_gcm_t *g, const uint8_t *p, size_t bytes,
                         uint32_t crc)
{
    if (g->ok && g->hashes) {
        return ldr_ghash_add_crc(&g->hash, p, bytes, crc);
    }
    while (bytes > 0) {
        size_t n = ldr_min64(bytes, STEP);

        ldr_gcm_aad(g, p, n);
        crc = ldr_crc32c(crc, p, n);
        p += n;
        bytes -= n;
    }
    return crc;
}

static void end(ldr_gcm_t *g)
{
    EVP_CIPHER_CTX_free(g->ctx);
    g->ctx = NULL;
}

static void hash_tag(ldr_gcm_t *g, uint8_t tag[LDR_TAG_BYTES])
{
    ldr_ghash_end(&g->hash, tag);
    for (unsigned i = 0; i < LDR_TAG_BYTES; i++) {
        tag[i] ^= g->mask[i];
    }
    OPENSSL_cleanse(g->mask, sizeof(g->mask));
}

bool ldr_gcm_tag(ldr_gcm_t *g, uint8_t tag[LDR_TAG_BYTES])
{
    uint8_t none[LDR_TAG_BYTES];
    bool ok = g->ok;
    int got;

    if (ok && g->hashes) {
        hash_tag(g, tag);
    } else if (ok) {
        ok = EVP_CipherFinal_ex(g->ctx, none, &got) == 1 &&
             EVP_CIPHER_CTX_ctrl(g->ctx, EVP_CTRL_AEAD_GET_TAG, LDR_TAG_BYTES,
                                 tag) == 1;
    }
    end(g);
    return ok;
}

bool ldr_gcm_check(ldr_gcm_t *g, const uint8_t tag[LDR_TAG_BYTES],
                   bool *failed_p)
{
    uint8_t copy[LDR_TAG_BYTES], none[LDR_TAG_BYTES];
    bool same = false;
    int got;

    *failed_p = !g->ok;
    if (g->ok && g->hashes) {
        hash_tag(g, copy);
        same = CRYPTO_memcmp(copy, tag, sizeof(copy)) == 0;
    } else if (g->ok) {
        memcpy(copy, tag, sizeof(copy));
        *failed_p = EVP_CIPHER_CTX_ctrl(g->ctx, EVP_CTRL_AEAD_SET_TAG,
                                        LDR_TAG_BYTES, copy) != 1;
        same = !*failed_p && EVP_CipherFinal_ex(g->ctx, none, &got) == 1;
    }
    end(g);
    return same;
}
