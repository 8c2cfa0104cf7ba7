/*
 * Tokens: their files, and the proofs of a session. No state: keys are the
 * caller's, who wipes them.
 */
#define _GNU_SOURCE
#include "net/auth.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/hash.h"
#include "base/log.h"

/* ---- the file ---- */

/* Two tokens, and blank lines around them. */
#define FILE_MAX (4u * LDR_TOKEN_MAX)

static larder_status_t check_mode(const char *path, const char *what, int fd,
                                  bool secret)
{
    struct stat st;

    if (fstat(fd, &st) != 0) {
        return ldr_fail(LARDER_E_IO, "%s: %s", path, strerror(errno));
    }
    if (!S_ISREG(st.st_mode)) {
        return ldr_fail(LARDER_E_INVALID, "%s: a %s is a plain file", path,
                        what);
    }
    if (secret && (st.st_mode & S_IRWXO) != 0) {
        return ldr_fail(LARDER_E_INVALID,
                        "%s: everybody may read or change it (mode %03o): "
                        "chmod o-rwx %s",
                        path, (unsigned)st.st_mode & 0777u, path);
    }
    return LARDER_OK;
}

static larder_status_t read_file(const char *path, const char *what,
                                 bool secret, char *text, size_t size,
                                 size_t *bytes_p)
{
    /* Not blocking: the path may be a pipe, which is refused only then. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    size_t have = 0;
    ssize_t got = 0;

    if (fd < 0) {
        return ldr_fail(LARDER_E_INVALID, "%s: cannot read the %s: %s", path,
                        what, strerror(errno));
    }
    larder_status_t st = check_mode(path, what, fd, secret);
    while (st == LARDER_OK && have < size) {
        got = read(fd, text + have, size - have);
        if (got > 0) {
            have += (size_t)got;
        } else if (got == 0 || errno != EINTR) {
            break;
        }
    }
    if (st == LARDER_OK && got < 0) {
        st = ldr_fail(LARDER_E_IO, "%s: %s", path, strerror(errno));
    }
    close(fd);
    *bytes_p = have;
    return st;
}

larder_status_t ldr_secret_read(const char *path, const char *what, char *text,
                                size_t size, size_t *bytes_p)
{
    return read_file(path, what, true, text, size, bytes_p);
}

larder_status_t ldr_list_read(const char *path, const char *what, char *text,
                              size_t size, size_t *bytes_p)
{
    return read_file(path, what, false, text, size, bytes_p);
}

larder_status_t ldr_tenant_secret_read(const char *path,
                                       uint8_t secret[LDR_SECRET_MAX + 2],
                                       size_t *bytes_p)
{
    size_t bytes = 0;
    larder_status_t st = ldr_secret_read(path, "secret file", (char *)secret,
                                         LDR_SECRET_MAX + 2, &bytes);

    if (st == LARDER_OK && bytes > 0 && secret[bytes - 1] == '\n') {
        bytes--;
    }
    /* Whoever can read the storage can try short ones. */
    if (st == LARDER_OK && (bytes < LDR_SECRET_MIN || bytes > LDR_SECRET_MAX)) {
        st = ldr_fail(LARDER_E_INVALID,
                      "%s: %s: a secret has %u to %u bytes "
                      "(`openssl rand -hex 32` makes one)",
                      path,
                      bytes == 0               ? "no secret in it"
                      : bytes < LDR_SECRET_MIN ? "too short"
                                               : "too long",
                      LDR_SECRET_MIN, LDR_SECRET_MAX);
    }
    *bytes_p = st == LARDER_OK ? bytes : 0;
    if (st != LARDER_OK) {
        OPENSSL_cleanse(secret, LDR_SECRET_MAX + 2);
    }
    return st;
}

static larder_status_t take_line(const char *path, unsigned number,
                                 const char *line, size_t bytes,
                                 ldr_token_t tokens[LDR_TOKENS_MAX],
                                 unsigned *count)
{
    if (bytes > 0 && line[bytes - 1] == '\r') {
        bytes--;
    }
    if (bytes == 0) {
        return LARDER_OK;
    }
    /* Never the token itself in a message. */
    for (size_t i = 0; i < bytes; i++) {
        if (line[i] <= ' ' || line[i] > '~') {
            return ldr_fail(LARDER_E_INVALID,
                            "%s: line %u: a token has no spaces, control "
                            "characters or bytes beyond ASCII",
                            path, number);
        }
    }
    if (bytes < LDR_TOKEN_MIN || bytes > LDR_TOKEN_MAX) {
        return ldr_fail(LARDER_E_INVALID,
                        "%s: line %u: a token has %u to %u characters, not %zu "
                        "(`openssl rand -hex 32` makes one)",
                        path, number, LDR_TOKEN_MIN, LDR_TOKEN_MAX, bytes);
    }
    if (*count == LDR_TOKENS_MAX) {
        return ldr_fail(LARDER_E_INVALID,
                        "%s: line %u: more than %u tokens: the old one and the "
                        "new one",
                        path, number, LDR_TOKENS_MAX);
    }
    tokens[*count].bytes = bytes;
    memcpy(tokens[*count].data, line, bytes);
    (*count)++;
    return LARDER_OK;
}

larder_status_t ldr_tokens_read(const char *path,
                                ldr_token_t tokens[LDR_TOKENS_MAX],
                                unsigned *count_p)
{
    ldr_token_t found[LDR_TOKENS_MAX] = {0};
    char text[FILE_MAX + 1];
    unsigned count = 0, number = 1;
    size_t bytes = 0;
    larder_status_t st =
        ldr_secret_read(path, "token file", text, sizeof(text), &bytes);

    if (st == LARDER_OK && bytes > FILE_MAX) {
        st = ldr_fail(LARDER_E_INVALID,
                      "%s: too long for a token file: one or two lines of "
                      "%u to %u characters",
                      path, LDR_TOKEN_MIN, LDR_TOKEN_MAX);
    }

    for (size_t at = 0; st == LARDER_OK && at < bytes; number++) {
        const char *end = memchr(text + at, '\n', bytes - at);
        size_t length = end != NULL ? (size_t)(end - text) - at : bytes - at;

        st = take_line(path, number, text + at, length, found, &count);
        at += length + 1;
    }
    if (st == LARDER_OK && count == 0) {
        st = ldr_fail(LARDER_E_INVALID,
                      "%s: no token in it (`openssl rand -hex 32` makes one)",
                      path);
    }
    if (st == LARDER_OK) {
        memcpy(tokens, found, sizeof(found));
        *count_p = count;
    }
    OPENSSL_cleanse(found, sizeof(found));
    OPENSSL_cleanse(text, sizeof(text));
    return st;
}

/* ---- proofs ---- */

/*
 * HMAC(token, label || client nonce || server nonce || epoch || length of
 * tenant || tenant): all but the last of a fixed length, so that no two
 * different sets of values give the same bytes.
 */
#define LABEL_BYTES 16u
static const char client_label[LABEL_BYTES + 1] = "larder-1 client ";
static const char server_label[LABEL_BYTES + 1] = "larder-1 server ";

bool ldr_proof_make(const ldr_token_t *token, const ldr_proof_t *proof,
                    bool server, uint8_t mac[LDR_MAC_BYTES])
{
    size_t tenant_bytes = strlen(proof->tenant);
    uint8_t numbers[16];
    const ldr_piece_t pieces[] = {
        {server ? server_label : client_label, LABEL_BYTES},
        {proof->client_nonce, LDR_NONCE_BYTES},
        {proof->server_nonce, LDR_NONCE_BYTES},
        {numbers, sizeof(numbers)},
        {proof->tenant, tenant_bytes},
    };

    ldr_put64(numbers, proof->epoch);
    ldr_put64(numbers + 8, tenant_bytes);
    return ldr_hmac_sha256(token->data, token->bytes, pieces,
                           sizeof(pieces) / sizeof(pieces[0]), mac);
}

bool ldr_proof_check(const ldr_token_t *tokens, unsigned count,
                     const ldr_proof_t *proof, bool server,
                     const uint8_t mac[LDR_MAC_BYTES], unsigned *which_p)
{
    /* In the place of tokens that are not there, so that their number does not
     * show in time. A match with it does not count. */
    static const ldr_token_t nobody = {.bytes = LDR_TOKEN_MIN};
    uint8_t expected[LDR_MAC_BYTES];
    unsigned which = LDR_TOKENS_MAX;

    for (unsigned i = 0; i < LDR_TOKENS_MAX; i++) {
        const ldr_token_t *token = i < count ? &tokens[i] : &nobody;
        bool made = ldr_proof_make(token, proof, server, expected);
        bool same = CRYPTO_memcmp(expected, mac, LDR_MAC_BYTES) == 0;

        if (made & same & (i < count)) {
            which = i;
        }
    }
    OPENSSL_cleanse(expected, sizeof(expected));
    if (which == LDR_TOKENS_MAX) {
        return false;
    }
    if (which_p != NULL) {
        *which_p = which;
    }
    return true;
}

bool ldr_nonce(void *out, size_t bytes)
{
    uint8_t *at = out;

    while (bytes > 0) {
        ssize_t got = getrandom(at, bytes, 0);
        if (got < 0) {
            if (errno == EINTR) {
                continue;
            }
            return false;
        }
        at += got;
        bytes -= (size_t)got;
    }
    return true;
}
