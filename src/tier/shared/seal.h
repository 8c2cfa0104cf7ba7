/*
 * The seal of records and tails: AES-256-GCM by libcrypto, one pass over bytes
 * that lie scattered. Used by object.c only.
 *
 * The key belongs to one object: HMAC-SHA-256 over its random id, under the
 * tenant's MAC key, or with encryption under its cipher key and with the MAC
 * key among what is hashed, so that it takes both to make such a record. The
 * nonce is the place in the object, and what lies there. An id is never used
 * for two objects, so no pair of key and nonce seals two different things.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tier/shared/object.h"

typedef enum ldr_sealing { LDR_SEALING_RECORD, LDR_SEALING_TAIL } ldr_sealing_t;

typedef struct ldr_gcm {
    void *ctx;
    bool ok; /* nothing has failed so far */
} ldr_gcm_t;

/* Begins to seal, or to open what was sealed. Ends with one of the last two
 * functions in any case, whatever fails on the way. */
void ldr_gcm_begin(ldr_gcm_t *g, const ldr_seal_t *seal,
                   const uint8_t id[LDR_ID_BYTES], ldr_sealing_t what,
                   uint32_t block, bool opens);
/* Bytes that are encrypted or decrypted; `to` may be `from`. NULL: they are
 * only authenticated, and all of those come before the first of the others. */
void ldr_gcm_data(ldr_gcm_t *g, uint8_t *to, const uint8_t *from, size_t bytes);
/* False: libcrypto failed. */
bool ldr_gcm_tag(ldr_gcm_t *g, uint8_t tag[LDR_TAG_BYTES]);
/* Whether it was sealed with this tag; compared in constant time. *failed_p:
 * libcrypto failed, and it is not known. */
bool ldr_gcm_check(ldr_gcm_t *g, const uint8_t tag[LDR_TAG_BYTES],
                   bool *failed_p);
