/*
 * What the two halves of the example share: the shape of a request, and the
 * result that the process which served it leaves to the one that started it.
 */
#pragma once

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "larder/larder.h"
#include "transformer.h"

enum {
    CHUNK_TOKENS = 64,
    CHUNKS = 32,
    PROMPT_TOKENS = CHUNKS * CHUNK_TOKENS + 12, /* the rest fills no chunk */
    STEPS = 9, /* the first token and eight more */
    CHUNK_BLOCKS = CHUNK_TOKENS / T_BLOCK,
    CHUNK_PIECES = T_LAYERS * 2 * CHUNK_BLOCKS,
    PIECE_BYTES = T_BLOCK_FLOATS * sizeof(float),
    CHUNK_BYTES = CHUNK_PIECES * PIECE_BYTES,

    CHANGED_TOKEN = 10 * CHUNK_TOKENS + 5, /* in the demo */
    DAMAGED_CHUNK = 20,
    FLIPPED_BIT = 26, /* of a float: 256 times as much, or as little */
    NEEDLE_BYTES = 256,
    TIMEOUT_MS = 60000
};

/* What a process that served a request tells the one that started it. */
typedef struct result {
    uint32_t matched_chunks, loaded_chunks, computed_tokens;
    larder_cause_t cause; /* why the chunk after the last was not loaded */
    uint64_t open_ns, load_ns, first_token_ns, save_ns;
    uint64_t loads_ssd, loads_shared, saves_stored;
    uint32_t blocks[4]; /* where the first blocks of the prompt lie */
    uint32_t probed, probes_seen;
    double probe_least;           /* change of a logit, the least seen */
    uint8_t needle[NEEDLE_BYTES]; /* some KV of DAMAGED_CHUNK */
    uint32_t tokens[STEPS];       /* generated */
    float logits[STEPS][T_VOCAB];
} result_t;

__attribute__((format(printf, 1, 2))) static inline bool fail(
    const char *format, ...)
{
    va_list args;

    va_start(args, format);
    fprintf(stderr, "engine: ");
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    va_end(args);
    return false;
}

static inline double distance(const float *a, const float *b)
{
    double most = 0;

    for (int i = 0; i < T_VOCAB; i++) {
        double apart = fabs((double)a[i] - (double)b[i]);

        most = apart > most ? apart : most;
    }
    return most;
}

static inline bool result_write(const char *path, const result_t *r)
{
    FILE *file = fopen(path, "wb");
    bool ok = file != NULL && fwrite(r, sizeof(*r), 1, file) == 1;

    ok = file != NULL && fclose(file) == 0 && ok;
    return ok || fail("%s: cannot be written: %s", path, strerror(errno));
}

static inline bool result_read(const char *path, result_t *r)
{
    FILE *file = fopen(path, "rb");
    bool ok = file != NULL && fread(r, sizeof(*r), 1, file) == 1;

    if (file != NULL) {
        fclose(file);
    }
    return ok || fail("%s: cannot be read", path);
}
