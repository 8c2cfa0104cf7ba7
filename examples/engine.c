/*
 * A little inference engine that keeps its KV cache in Larder.
 *
 *   engine demo [DIR]         the whole story, told in a table
 *   engine run DIR|- OUT ...  one request in this process; "-": no store
 *
 * The engine computes a long prompt with a real (if small) transformer, saves
 * the KV of every full chunk straight from its paged cache, and generates a
 * few tokens. A second process finds the chunks in the same directory, loads
 * them straight into pages of its own, and computes only what is left. The
 * demo shows that both agree on every bit of every logit, and that this means
 * something: that each token, and each saved byte, has a say in them.
 *
 * Only larder.h is used, as an engine would: chain, match, get, put, flush.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "larder/larder.h"

#include "demo.h"
#include "engine.h"
#include "transformer.h"

#define MODEL_SEED 20250101u
#define PROMPT_SEED 42u

typedef struct request {
    const char *dir;    /* NULL: no store */
    const char *shared; /* directory of a shared tier; NULL: none. Beside it
                           lies the secret of those who share it */
    bool reset, flip_kv, probe;
    int changed_token; /* -1: none */
} request_t;

typedef struct engine {
    t_model_t model;
    t_cache_t cache;
    t_step_t step;
    larder_t *lar;
    larder_space_t *space;
    uint32_t tokens[PROMPT_TOKENS + STEPS];
    larder_key_t keys[CHUNKS];
    larder_item_t items[CHUNKS];
    struct iovec iov[CHUNKS][CHUNK_PIECES];
    result_t result;
} engine_t;

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static bool larder_ok(const char *what, larder_status_t status)
{
    if (status == LARDER_OK) {
        return true;
    }
    return fail("%s: %s: %s", what, larder_status_text(status),
                larder_last_error());
}

/* ---- the store ---- */

/* Adds a path with what has a meaning in a URL escaped. */
static size_t url_add(char *url, size_t n, size_t size, const char *path)
{
    for (; *path != '\0' && n + 4 < size; path++) {
        n += (size_t)snprintf(url + n, size - n,
                              strchr("%,?&", *path) != NULL ? "%%%02X" : "%c",
                              (unsigned char)*path);
    }
    return *path == '\0' ? n : size;
}

/* "embed:DIR?..." */
static bool store_url(const request_t *q, char *url, size_t size)
{
    size_t n = (size_t)snprintf(url, size, "embed:");

    n = url_add(url, n, size, q->dir);
    if (n + 64 > size) {
        return false;
    }
    n += (size_t)snprintf(url + n, size - n, "?dram=64M&ssd=256M");
    if (q->shared != NULL) {
        n += (size_t)snprintf(url + n, size - n, "&shared=dir:");
        n = url_add(url, n, size, q->shared);
        if (n + 64 > size) {
            return false;
        }
        /* Whoever can write to the storage, and knows it, can forge KV. */
        n += (size_t)snprintf(url + n, size - n, "&secret_file=");
        n = url_add(url, n, size, q->shared);
        n = url_add(url, n, size, SECRET_SUFFIX);
    }
    return n < size;
}

/* Whatever changes what the bytes mean is named in the descriptor. */
static bool store_open(engine_t *e, const request_t *q)
{
    char url[3 * PATH_MAX + 192], descriptor[256];
    larder_space_params_t params = {
        .field_mask = LARDER_SPACE_CHUNK_TOKENS,
        .descriptor = descriptor,
        .chunk_tokens = CHUNK_TOKENS,
    };

    if (!store_url(q, url, sizeof(url))) {
        return fail("%s: the path is too long", q->dir);
    }
    params.descriptor_bytes = (size_t)snprintf(
        descriptor, sizeof(descriptor),
        "example engine; weights %016" PRIx64 "; float32; layers %d of keys "
        "and values, %d blocks of %d tokens, %d KV heads of %d",
        e->model.fingerprint, T_LAYERS, CHUNK_BLOCKS, T_BLOCK, T_KV_HEADS,
        T_HEAD_DIM);
    return larder_ok(q->dir, larder_open(url, NULL, &e->lar)) &&
           larder_ok("space", larder_space_open(e->lar, &params, &e->space));
}

/* An item per chunk, whose buffers are its blocks, wherever they lie. */
static void store_items(engine_t *e)
{
    for (uint32_t c = 0; c < CHUNKS; c++) {
        struct iovec *piece = e->iov[c];

        for (int l = 0; l < T_LAYERS; l++) {
            for (int what = T_KEYS; what <= T_VALUES; what++) {
                for (uint32_t b = 0; b < CHUNK_BLOCKS; b++, piece++) {
                    piece->iov_base =
                        t_cache_block(&e->cache, l, what, c * CHUNK_BLOCKS + b);
                    piece->iov_len = PIECE_BYTES;
                }
            }
        }
        e->items[c] = (larder_item_t){
            .key = &e->keys[c],
            .parent = c > 0 ? &e->keys[c - 1] : NULL,
            .depth = c,
            .iov = e->iov[c],
            .iov_count = CHUNK_PIECES,
        };
    }
}

/* Loads what the store has of the prompt, from its beginning on. A chunk that
 * does not come ends it: the engine computes from there, whatever the cause. */
static bool store_load(engine_t *e)
{
    result_t *r = &e->result;
    larder_match_t match = {.struct_bytes = sizeof(match)};
    size_t count = 0;

    if (!larder_ok("chain", larder_chain(e->space, e->tokens, PROMPT_TOKENS,
                                         NULL, e->keys, CHUNKS, &count)) ||
        !larder_ok("match",
                   larder_match(e->space, e->keys, count, 0, &match))) {
        return false;
    }
    r->matched_chunks = match.chunks;
    r->cause = match.cause;
    store_items(e);
    if (match.chunks == 0) {
        return true;
    }
    if (!larder_ok("get", larder_run(e->space, LARDER_OP_GET, e->items,
                                     match.chunks, NULL))) {
        return false;
    }
    for (uint32_t c = 0; c < match.chunks; c++) {
        if (e->items[c].status == LARDER_OK &&
            e->items[c].length == CHUNK_BYTES) {
            r->loaded_chunks++;
            continue;
        }
        r->cause = e->items[c].cause;
        if (e->items[c].status != LARDER_MISS) {
            fail("chunk %" PRIu32 ": %s, computing on from there", c,
                 larder_status_text(e->items[c].status));
        }
        break;
    }
    return true;
}

/* Saves the chunks that were computed. One that does not arrive costs a later
 * run some time, which is worth a word here. */
static bool store_save(engine_t *e, const request_t *q)
{
    uint32_t from = e->result.loaded_chunks;
    uint64_t began = now_ns();

    if (from == CHUNKS) {
        return true;
    }
    if (!larder_ok("put", larder_run(e->space, LARDER_OP_PUT, e->items + from,
                                     CHUNKS - from, NULL))) {
        return false;
    }
    for (uint32_t c = from; c < CHUNKS; c++) {
        if (e->items[c].status != LARDER_OK &&
            e->items[c].status != LARDER_PRESENT) {
            return fail("chunk %" PRIu32 ": not saved: %s", c,
                        larder_status_text(e->items[c].status));
        }
    }
    if (!larder_ok("flush",
                   larder_flush(e->lar, LARDER_TIER_SSD, TIMEOUT_MS)) ||
        (q->shared != NULL &&
         !larder_ok("flush to the shared tier",
                    larder_flush(e->lar, LARDER_TIER_SHARED, TIMEOUT_MS)))) {
        return false;
    }
    e->result.save_ns = now_ns() - began;
    return true;
}

static bool store_close(engine_t *e)
{
    larder_stats_t *stats = calloc(1, sizeof(*stats));
    bool ok = stats != NULL;

    if (ok) {
        stats->struct_bytes = sizeof(*stats);
        ok = larder_ok("stats", larder_stats(e->lar, stats));
        e->result.loads_ssd = stats->loads_ssd;
        e->result.loads_shared = stats->loads_shared;
        e->result.saves_stored = stats->saves_stored;
    }
    free(stats);
    larder_space_close(&e->space);
    return larder_ok("close", larder_close(&e->lar, TIMEOUT_MS)) && ok;
}

/* ---- one request ---- */

static void flip_kv_bit(engine_t *e, int layer, uint32_t position)
{
    float *value = t_cache_token(&e->cache, layer, T_VALUES, position) +
                   position * 7 % T_KV_DIM;
    uint32_t bits;

    memcpy(&bits, value, sizeof(bits));
    bits ^= 1u << FLIPPED_BIT;
    memcpy(value, &bits, sizeof(bits));
}

/* Computes the tokens from here on, and gives the logits of the last. */
static const float *compute(engine_t *e, uint32_t from, uint32_t to)
{
    const float *logits = NULL;

    e->result.computed_tokens += to - from;
    while (from < to) {
        uint32_t count = to - from < T_STEP ? to - from : T_STEP;

        logits = t_forward(&e->model, &e->cache, &e->step, e->tokens + from,
                           from, count, from + count == to);
        from += count;
    }
    return logits;
}

/* Keeps the logits of a step and appends the likeliest token. */
static void choose(engine_t *e, int step, const float *logits)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < T_VOCAB; i++) {
        best = logits[i] > logits[best] ? i : best;
    }
    memcpy(e->result.logits[step], logits, sizeof(e->result.logits[step]));
    e->result.tokens[step] = best;
    e->tokens[PROMPT_TOKENS + step] = best;
}

/* Flips one bit of each loaded token's KV in turn, and looks whether the last
 * token of the prompt notices. */
static void probe(engine_t *e)
{
    result_t *r = &e->result;
    const uint32_t last = PROMPT_TOKENS - 1;

    r->probe_least = INFINITY;
    for (uint32_t p = 0; p < r->loaded_chunks * CHUNK_TOKENS; p++) {
        int layer = (int)(p % T_LAYERS);

        flip_kv_bit(e, layer, p);
        const float *logits = t_forward(&e->model, &e->cache, &e->step,
                                        e->tokens + last, last, 1, true);
        double change = distance(logits, r->logits[0]);
        flip_kv_bit(e, layer, p);
        r->probed++;
        r->probes_seen += change > 0;
        r->probe_least = fmin(r->probe_least, change);
    }
}

static bool engine_init(engine_t *e, const request_t *q)
{
    uint64_t prompt = PROMPT_SEED;
    uint64_t shuffle = now_ns() ^ (uint64_t)getpid() << 32;
    uint32_t blocks = 4 * (PROMPT_TOKENS + STEPS) / T_BLOCK;

    if (!t_model_init(&e->model, MODEL_SEED) ||
        !t_cache_init(&e->cache, blocks, shuffle) ||
        !t_cache_grow(&e->cache, PROMPT_TOKENS + STEPS)) {
        return fail("out of memory");
    }
    for (int i = 0; i < PROMPT_TOKENS; i++) {
        e->tokens[i] = (uint32_t)(t_random(&prompt) % T_VOCAB);
    }
    if (q->changed_token >= 0) {
        e->tokens[q->changed_token] ^= 1;
    }
    memcpy(e->result.blocks, e->cache.table, sizeof(e->result.blocks));
    return true;
}

static bool serve(engine_t *e, const request_t *q)
{
    result_t *r = &e->result;
    uint64_t began = now_ns();

    if (!engine_init(e, q)) {
        return false;
    }
    if (q->dir != NULL) {
        began = now_ns();
        if (!store_open(e, q) ||
            (q->reset &&
             !larder_ok("reset", larder_space_reset(e->space, TIMEOUT_MS)))) {
            return false;
        }
        r->open_ns = now_ns() - began;
    }

    began = now_ns(); /* the request arrives */
    if (q->dir != NULL && !store_load(e)) {
        return false;
    }
    r->load_ns = now_ns() - began;
    if (q->flip_kv) {
        flip_kv_bit(e, T_LAYERS / 2, CHANGED_TOKEN);
    }
    choose(e, 0, compute(e, r->loaded_chunks * CHUNK_TOKENS, PROMPT_TOKENS));
    r->first_token_ns = now_ns() - began;

    uint32_t computed = r->computed_tokens;
    if (q->dir != NULL && !q->flip_kv && !store_save(e, q)) {
        return false;
    }
    for (uint32_t i = 1; i < STEPS; i++) {
        choose(e, (int)i, compute(e, PROMPT_TOKENS + i - 1, PROMPT_TOKENS + i));
    }
    r->computed_tokens = computed; /* of the prompt */
    memcpy(r->needle,
           t_cache_block(&e->cache, T_LAYERS / 2, T_VALUES,
                         DAMAGED_CHUNK * CHUNK_BLOCKS),
           NEEDLE_BYTES);
    if (q->probe) {
        probe(e);
    }
    return q->dir == NULL || store_close(e);
}

static int run(int argc, char **argv)
{
    request_t q = {.changed_token = -1};
    engine_t *e;

    if (argc < 4) {
        return fail("usage: engine run DIR|- OUT [OPTION...]"), 2;
    }
    q.dir = strcmp(argv[2], "-") == 0 ? NULL : argv[2];
    for (int i = 4; i < argc; i++) {
        if (strcmp(argv[i], "--reset") == 0) {
            q.reset = true;
        } else if (strcmp(argv[i], "--change-token") == 0) {
            q.changed_token = CHANGED_TOKEN;
        } else if (strcmp(argv[i], "--flip-kv") == 0) {
            q.flip_kv = true;
        } else if (strcmp(argv[i], "--probe") == 0) {
            q.probe = true;
        } else if (strcmp(argv[i], "--shared") == 0 && i + 1 < argc) {
            q.shared = argv[++i];
        } else {
            return fail("%s: unknown option", argv[i]), 2;
        }
    }
    e = t_alloc(sizeof(*e));
    if (e == NULL) {
        return fail("out of memory"), 1;
    }
    return serve(e, &q) && result_write(argv[3], &e->result) ? 0 : 1;
}

int main(int argc, char **argv)
{
    if (argc >= 2 && strcmp(argv[1], "run") == 0) {
        return run(argc, argv);
    }
    if (argc >= 2 && argc <= 3 && strcmp(argv[1], "demo") == 0) {
        return demo(argc == 3 ? argv[2] : NULL);
    }
    fprintf(stderr, "usage: engine demo [DIR]\n"
                    "       engine run DIR|- OUT [--reset] [--change-token]"
                    " [--flip-kv] [--probe] [--shared DIR]\n");
    return 2;
}
