/*
 * Chains of any tokens and extra bytes, against the definition hashed from one
 * flat buffer. Input: 1 byte tokens per chunk, 1 byte chunks, 1 byte extra
 * bytes per chunk, then the root, the tokens and the extra bytes; what is
 * missing is zero.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/hash.h"

enum { TOKENS_MAX = 80, CHUNKS_MAX = 8, EXTRA_MAX = 100 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Takes up to count bytes of the input. */
static void take(const uint8_t **data, size_t *bytes, void *to, size_t count)
{
    size_t n = count < *bytes ? count : *bytes;

    memcpy(to, *data, n);
    *data += n;
    *bytes -= n;
}

static void require(int ok)
{
    if (!ok) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    uint8_t shape[3] = {0}, root[32] = {0};
    uint32_t tokens[TOKENS_MAX * CHUNKS_MAX] = {0};
    uint8_t bytes_of[CHUNKS_MAX][EXTRA_MAX] = {{0}};
    larder_extra_t extra[CHUNKS_MAX];
    larder_key_t keys[CHUNKS_MAX], want;

    if (bytes == 0) {
        return 0;
    }
    take(&data, &bytes, shape, sizeof(shape));
    uint32_t per_chunk = 1 + shape[0] % TOKENS_MAX;
    size_t count = 1 + shape[1] % CHUNKS_MAX;
    take(&data, &bytes, root, sizeof(root));
    take(&data, &bytes, tokens, per_chunk * count * sizeof(tokens[0]));
    for (size_t i = 0; i < count; i++) {
        extra[i].bytes = (shape[2] + i) % EXTRA_MAX;
        extra[i].data = bytes_of[i];
        take(&data, &bytes, bytes_of[i], extra[i].bytes);
    }
    require(ldr_chain_runs(root, tokens, per_chunk, extra, 1, 0, keys, count));
    for (size_t i = 0; i < count; i++) {
        uint8_t flat[32 + 4 * TOKENS_MAX + 8 + EXTRA_MAX], *p = flat + 32;
        memcpy(flat, i == 0 ? root : keys[i - 1].hash, 32);
        for (uint32_t t = 0; t < per_chunk; t++, p += 4) {
            ldr_put32(p, tokens[i * per_chunk + t]);
        }
        ldr_put64(p, extra[i].bytes);
        memcpy(p + 8, bytes_of[i], extra[i].bytes);
        ldr_piece_t all = {flat, (size_t)(p + 8 - flat) + extra[i].bytes};
        require(ldr_sha256(&all, 1, want.hash));
        require(memcmp(&want, &keys[i], sizeof(want)) == 0);
    }
    return 0;
}
