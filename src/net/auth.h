/*
 * Tokens: proving that one knows it without saying it. Both sides have sent a
 * nonce; the client proves first, then the daemon, each over its own label, so
 * that neither proof can be sent back as the other.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "larder/larder.h"
#include "wire/wire.h"

#define LDR_TOKEN_MIN 16u /* bytes */
#define LDR_TOKEN_MAX 256u
#define LDR_TOKENS_MAX 2u /* live at once: the old and the new one */

#define LDR_SECRET_MIN 16u
#define LDR_SECRET_MAX 1024u

typedef struct ldr_token {
    size_t bytes;
    uint8_t data[LDR_TOKEN_MAX];
} ldr_token_t;

/* A file that holds a secret: at most size bytes of it; as many as that: there
 * may be more. what it is, for the texts: missing, no plain file, readable by
 * others than its owner's group. */
larder_status_t ldr_secret_read(const char *path, const char *what, char *text,
                                size_t size, size_t *bytes_p);

/* The same of a file that everybody may read. */
larder_status_t ldr_list_read(const char *path, const char *what, char *text,
                              size_t size, size_t *bytes_p);

/* Reads a tenant's secret: the bytes of the file, less one newline at the end.
 * As for what it may be, see ldr_tokens_read(); of any bytes. Wherever it fails
 * *bytes_p is 0. The caller wipes it. */
larder_status_t ldr_tenant_secret_read(const char *path,
                                       uint8_t secret[LDR_SECRET_MAX + 2],
                                       size_t *bytes_p);

/* Reads a file of one or two tokens, one a line. Fails with a text: missing,
 * readable by others than its owner's group, too short, too many. */
larder_status_t ldr_tokens_read(const char *path,
                                ldr_token_t tokens[LDR_TOKENS_MAX],
                                unsigned *count_p);

typedef struct ldr_proof {
    const uint8_t *client_nonce, *server_nonce; /* LDR_NONCE_BYTES each */
    const char *tenant;
    uint64_t epoch;
} ldr_proof_t;

/* False: libcrypto failed. */
bool ldr_proof_make(const ldr_token_t *token, const ldr_proof_t *proof,
                    bool server, uint8_t mac[LDR_MAC_BYTES]);

/* Whether the MAC is that of one of the tokens; which one in *which_p. Takes
 * the same time whatever is wrong: all tokens are tried, and with count 0 one
 * that nobody has is. */
bool ldr_proof_check(const ldr_token_t *tokens, unsigned count,
                     const ldr_proof_t *proof, bool server,
                     const uint8_t mac[LDR_MAC_BYTES], unsigned *which_p);

/* Nonces and session numbers: from the kernel. */
bool ldr_nonce(void *out, size_t bytes);
