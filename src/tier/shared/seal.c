/*
 * Why GCM for the MAC alone, too: over 1 MiB in pieces of 64 KiB libcrypto 3.0
 * authenticates 8 GB/s in one thread, and encrypts 4.3. Poly1305 (12.3 with
 * AVX-512) takes a key for every record; HMAC-SHA-256 does 1.8, BLAKE2b 0.9.
 * One primitive for both ways keeps the format small. A new context for every
 * record costs nothing that can be measured from 64 KiB on.
 */
#include "tier/shared/seal.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <string.h>

#include "base/bytes.h"
#include "base/hash.h"

enum { NONCE_BYTES = 12, NONCE_BLOCK = 4 };

/* What libcrypto takes at once: its lengths are ints. */
#define PIECE_MAX ((size_t)1 << 30)

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

void ldr_gcm_begin(ldr_gcm_t *g, const ldr_seal_t *seal,
                   const uint8_t id[LDR_ID_BYTES], ldr_sealing_t what,
                   uint32_t block, bool opens)
{
    uint8_t key[LDR_SEAL_KEY_BYTES];
    uint8_t nonce[NONCE_BYTES] = {0};

    memcpy(nonce, what == LDR_SEALING_TAIL ? "tail" : "data", NONCE_BLOCK);
    ldr_put32(nonce + NONCE_BLOCK, block);
    g->ctx = EVP_CIPHER_CTX_new();
    g->ok = g->ctx != NULL && object_key(seal, id, key) &&
            EVP_CipherInit_ex2(g->ctx, EVP_aes_256_gcm(), key, nonce, !opens,
                               NULL) == 1;
    OPENSSL_cleanse(key, sizeof(key));
}

void ldr_gcm_data(ldr_gcm_t *g, uint8_t *to, const uint8_t *from, size_t bytes)
{
    while (g->ok && bytes > 0) {
        int n = (int)ldr_min64(bytes, PIECE_MAX), got;

        g->ok = EVP_CipherUpdate(g->ctx, to, &got, from, n) == 1 && got == n;
        to = to != NULL ? to + n : NULL;
        from += n;
        bytes -= (size_t)n;
    }
}

static void cipher_end(ldr_gcm_t *g)
{
    EVP_CIPHER_CTX_free(g->ctx);
    g->ctx = NULL;
}

bool ldr_gcm_tag(ldr_gcm_t *g, uint8_t tag[LDR_TAG_BYTES])
{
    uint8_t none[LDR_TAG_BYTES];
    int got;
    bool ok = g->ok && EVP_CipherFinal_ex(g->ctx, none, &got) == 1 &&
              EVP_CIPHER_CTX_ctrl(g->ctx, EVP_CTRL_AEAD_GET_TAG, LDR_TAG_BYTES,
                                  tag) == 1;

    cipher_end(g);
    return ok;
}

bool ldr_gcm_check(ldr_gcm_t *g, const uint8_t tag[LDR_TAG_BYTES],
                   bool *failed_p)
{
    uint8_t copy[LDR_TAG_BYTES], none[LDR_TAG_BYTES];
    bool same = false;
    int got;

    *failed_p = !g->ok;
    if (g->ok) {
        memcpy(copy, tag, sizeof(copy));
        *failed_p = EVP_CIPHER_CTX_ctrl(g->ctx, EVP_CTRL_AEAD_SET_TAG,
                                        LDR_TAG_BYTES, copy) != 1;
        same = !*failed_p && EVP_CipherFinal_ex(g->ctx, none, &got) == 1;
    }
    cipher_end(g);
    return same;
}
