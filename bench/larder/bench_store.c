/*
 * evict: what taking one chunk out of DRAM costs in a store of many, through
 * the same calls as a save that finds the arena full. The arena has no memory
 * behind it here: only the metadata is at work, and it is all there.
 *
 * hash: tokens into keys.
 */
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/mem.h"
#include "bench.h"
#include "store/store.h"

#define CHAIN 100u
#define ROUNDS 5u
#define EVICT_MAX 1000000u /* timed at a time */

typedef struct crowd {
    ldr_store_t store;
    uint32_t space, tenant;
    uint64_t keys; /* given so far */
    bool chains;
} crowd_t;

static bool crowd_open(crowd_t *c, uint64_t entries)
{
    static const uint8_t id[LDR_ID_BYTES] = {1};
    ldr_store_params_t params = {
        .dram_bytes = entries * LDR_PAGE,
        .dram_backed = false,
        .entry_max = (uint32_t)(entries + entries / 4 + 1000),
        .seed = 1,
        .policy = &ldr_policy_lru,
    };
    ldr_slice_t slice;

    if (ldr_store_init(&c->store, &params) != LARDER_OK) {
        return false;
    }
    while (ldr_arena_slice_take(&c->store.arena, LDR_NIL, &slice)) {
        ldr_arena_slice_give(&c->store.arena, &slice, true);
    }
    c->tenant = ldr_store_tenant(&c->store, id);
    c->space = ldr_store_space(&c->store, id);
    return c->tenant != LDR_NIL;
}

/* Saves one more chunk, without its bytes. */
static bool crowd_add(crowd_t *c)
{
    uint64_t n = c->keys++;
    uint32_t depth = c->chains ? (uint32_t)(n % CHAIN) : 0;
    larder_key_t key, parent;
    uint32_t shard;

    ldr_bench_key(n, &key);
    ldr_reserve_t r = {
        .name = ldr_store_name(&c->store, c->space, 0, &key),
        .depth = depth,
        .shards = 1,
        .length = LDR_PAGE,
        .state = LDR_SHARD_FILLING,
    };
    if (depth > 0) {
        ldr_bench_key(n - 1, &parent);
        r.parent = &parent;
    }
    if (ldr_store_reserve(&c->store, LDR_NIL, &r, &shard) != LARDER_OK ||
        !ldr_store_commit(&c->store, shard, 0, true)) {
        return false;
    }
    ldr_store_release(&c->store, c->store.shards[shard].chunk);
    return true;
}

/* Uses chunks in random order, so that what is evicted in turn lies anywhere
 * in memory; a chain is used as a whole, from its last chunk up. */
static void crowd_shuffle(crowd_t *c, uint64_t entries)
{
    uint32_t step = c->chains ? CHAIN : 1;
    ldr_rand_t r;

    ldr_rand_seed(&r, 11);
    for (uint64_t i = 0; i < entries / step; i++) {
        uint32_t at = (uint32_t)ldr_rand_below(&r, entries / step) * step;

        for (uint32_t k = step; k-- > 0;) {
            ldr_store_hold(&c->store, at + k);
            ldr_store_release(&c->store, at + k);
        }
    }
}

static bool evict_rounds(crowd_t *c, uint64_t entries, ldr_samples_t *us)
{
    uint64_t each = ldr_min64(entries / 10, EVICT_MAX);
    bool ok = true;

    for (unsigned round = 0; round < ROUNDS && ok; round++) {
        double begin = ldr_bench_now();

        for (uint64_t i = 0; i < each && ok; i++) {
            ok = ldr_store_evict(&c->store, c->tenant);
        }
        ldr_samples_add(us, (ldr_bench_now() - begin) * 1e6 / (double)each);
        for (uint64_t i = 0; i < each && ok; i++) {
            ok = crowd_add(c);
        }
    }
    return ok;
}

static bool evict_one(ldr_bench_t *b, uint64_t entries, bool chains)
{
    static ldr_samples_t us; /* large */
    crowd_t c = {.chains = chains};
    bool ok = crowd_open(&c, entries);

    if (!ok) {
        return ldr_bench_fail(b, "evict", "not enough memory");
    }
    us.count = 0;
    for (uint64_t i = 0; i < entries && ok; i++) {
        ok = crowd_add(&c);
    }
    crowd_shuffle(&c, entries);
    ok = ok && evict_rounds(&c, entries, &us);
    ldr_store_destroy(&c.store);
    if (!ok) {
        return ldr_bench_fail(b, "evict", "nothing to evict");
    }
    ldr_figure_t f = {
        .name = "evict",
        .variant = chains ? "chains of 100" : "single chunks, random",
        .bytes = entries,
        .value = ldr_samples_median(&us),
        .unit = "us",
        .goal_kind = LDR_GOAL_MAX,
        .goal = 2,
    };
    ldr_bench_report(b, &f);
    return true;
}

bool ldr_bench_evict(ldr_bench_t *b)
{
    bool ok = true;

    /* Chunks of no chain only when asked: it takes as long again. */
    for (int chains = 1; chains >= (b->named ? 0 : 1) && ok; chains--) {
        for (uint64_t n = 10000; n <= 10000000 && ok; n *= 10) {
            if (n * 400 > ldr_memory_limit()) {
                return ldr_bench_fail(b, "evict", "too little memory");
            }
            if (n > 1000000) {
                ldr_bench_progress(b, "evict", "filling the store");
            }
            ok = evict_one(b, n, chains != 0);
        }
    }
    return ok;
}

/* ---- hash ---- */

#define HASH_TOKENS (1u << 20)

static bool hash_one(ldr_bench_t *b, larder_t *lar, uint32_t chunk,
                     const uint32_t *tokens, larder_key_t *keys)
{
    static ldr_samples_t rate; /* large */
    larder_space_params_t params = {
        .field_mask = LARDER_SPACE_CHUNK_TOKENS,
        .descriptor = "hash",
        .descriptor_bytes = 4,
        .chunk_tokens = chunk,
    };
    larder_space_t *space = NULL;
    size_t count = 0;
    char variant[40];
    bool ok = larder_space_open(lar, &params, &space) == LARDER_OK;
    double end = ldr_bench_now() + (b->seconds > 0 ? b->seconds : 0.5);

    rate.count = 0;
    while (ok && (rate.count < ROUNDS || ldr_bench_now() < end)) {
        double begin = ldr_bench_now();

        ok = larder_chain(space, tokens, HASH_TOKENS, NULL, keys,
                          HASH_TOKENS / chunk, &count) == LARDER_OK;
        ldr_samples_add(&rate, HASH_TOKENS / (ldr_bench_now() - begin) * 1e-6);
    }
    larder_space_close(&space);
    if (!ok) {
        return ldr_bench_fail(b, "hash", "hashing failed");
    }
    snprintf(variant, sizeof(variant), "%u tokens per chunk", chunk);
    ldr_figure_t f = {
        .name = "hash",
        .variant = variant,
        .bytes = (uint64_t)chunk * sizeof(*tokens),
        .value = ldr_samples_median(&rate),
        .unit = "Mtoken/s",
        .goal_kind = LDR_GOAL_MIN,
        .goal = 100,
    };
    ldr_bench_report(b, &f);
    return true;
}

bool ldr_bench_hash(ldr_bench_t *b)
{
    uint32_t *tokens = ldr_alloc(HASH_TOKENS * sizeof(*tokens));
    larder_key_t *keys = ldr_alloc(HASH_TOKENS / 64 * sizeof(*keys));
    larder_t *lar = NULL;
    bool ok = tokens != NULL && keys != NULL &&
              larder_open("embed:?dram=2M", NULL, &lar) == LARDER_OK;

    for (uint32_t i = 0; i < HASH_TOKENS && ok; i++) {
        tokens[i] = i * 2654435761u >> 15;
    }
    ok = ok ? hash_one(b, lar, 64, tokens, keys) &&
                  hash_one(b, lar, 256, tokens, keys)
            : ldr_bench_fail(b, "hash", "not enough memory");
    larder_close(&lar, LARDER_FOREVER);
    ldr_free(tokens);
    ldr_free(keys);
    return ok;
}
