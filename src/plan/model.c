/* The table of models, and what a token costs. Constants and pure functions. */
#include "plan/model.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

/* Layers x (heads of keys x size x 2), or x the latent of MLA, x 2 bytes; from
 * the models' public configurations. */
static const ldr_known_model_t models[] = {
    {"llama-3.1-8b", 32 * 8 * 128 * 2 * 2, 8.0},
    {"llama-3.1-70b", 80 * 8 * 128 * 2 * 2, 70.6},
    {"llama-3.1-405b", 126 * 8 * 128 * 2 * 2, 405.9},
    {"mistral-7b", 32 * 8 * 128 * 2 * 2, 7.2},
    {"mixtral-8x7b", 32 * 8 * 128 * 2 * 2, 12.9},
    {"qwen2.5-7b", 28 * 4 * 128 * 2 * 2, 7.6},
    {"qwen2.5-72b", 80 * 8 * 128 * 2 * 2, 72.7},
    {"qwen3-0.6b", 28 * 8 * 128 * 2 * 2, 0.6},
    {"qwen3-8b", 36 * 8 * 128 * 2 * 2, 8.2},
    {"qwen3-30b-a3b", 48 * 4 * 128 * 2 * 2, 3.3},
    {"qwen3-32b", 64 * 8 * 128 * 2 * 2, 32.8},
    {"deepseek-v3", 61 * (512 + 64) * 2, 37.0},
    {"deepseek-r1", 61 * (512 + 64) * 2, 37.0},
    {"kimi-k2", 61 * (512 + 64) * 2, 32.0},
};

const ldr_known_model_t *ldr_known_model(unsigned number)
{
    return number < sizeof(models) / sizeof(models[0]) ? &models[number] : NULL;
}

const ldr_known_model_t *ldr_known_model_find(const char *name)
{
    for (unsigned i = 0; ldr_known_model(i) != NULL; i++) {
        if (strcasecmp(models[i].name, name) == 0) {
            return &models[i];
        }
    }
    return NULL;
}

double ldr_model_rate(double flops, const ldr_known_model_t *known)
{
    return flops / (2e9 * known->active);
}

double ldr_model_prefill(const ldr_model_t *m, double from, double to)
{
    double tokens = to - from;

    return (tokens + tokens * (from + to) / (2 * m->slow_tokens)) /
           m->prefill_rate;
}

double ldr_model_stage(const ldr_model_t *m, double tokens)
{
    return tokens * m->bytes_per_token / m->ssd.bytes_per_s;
}

/* Counts this choice if it can be had in time, and then if it is better than
 * what there was. */
static void consider(const ldr_model_t *m, uint32_t input,
                     const ldr_found_t *found, uint32_t blocks,
                     ldr_first_token_t *best)
{
    double held = (double)blocks * m->block_tokens;
    double most = input > 0 ? input - 1.0 : 0;
    double tokens = held < most ? held : most;
    /* Leaves go first: what is on SSD lies behind what is in DRAM. */
    uint32_t behind =
        blocks > found->before_ssd ? blocks - found->before_ssd : 0;
    uint32_t ssd_blocks =
        behind < found->ssd_blocks ? behind : found->ssd_blocks;
    double ssd =
        ssd_blocks > 0 ? fmin((double)ssd_blocks * m->block_tokens, tokens) : 0;
    double stage = ssd_blocks > 0 ? found->wait_s + m->ssd.latency_s +
                                        ldr_model_stage(m, ssd)
                                  : 0;
    double s = stage + ldr_model_prefill(m, tokens, input);

    if (m->lookup_s > 0 && stage > m->lookup_s) {
        return;
    }
    if (blocks > best->blocks) {
        best->blocks = blocks;
        best->ssd_blocks = ssd_blocks;
    }
    if (tokens > 0) {
        s += m->dram.latency_s +
             tokens * m->bytes_per_token / m->dram.bytes_per_s;
    }
    if (s < best->with_s) {
        best->with_s = s;
        best->tokens = tokens;
        best->dram_tokens = tokens - ssd;
        best->saved_s = ldr_model_prefill(m, 0, tokens);
    }
}

ldr_first_token_t ldr_model_first_token(const ldr_model_t *m,
                                        uint32_t input_tokens,
                                        const ldr_found_t *found)
{
    ldr_first_token_t t = {.without_s = ldr_model_prefill(m, 0, input_tokens)};

    t.with_s = t.without_s;
    for (uint32_t n = found->blocks; n > found->before_ssd; n /= 2) {
        consider(m, input_tokens, found, n, &t);
        if (found->ssd_blocks == 0) {
            break;
        }
    }
    if (found->before_ssd > 0) {
        consider(m, input_tokens, found, found->before_ssd, &t);
    }
    return t;
}

/* Many requests take the same time as the one before: then its bucket is
 * known. */
void ldr_times_add(ldr_times_t *t, double seconds)
{
    if (seconds != t->last_s) {
        double at = seconds > 1e-6 ? log2(seconds * 1e6) * LDR_TIMES_STEP : 0;

        t->last_s = seconds;
        t->last =
            at < LDR_TIMES_BUCKETS - 1 ? (uint32_t)at : LDR_TIMES_BUCKETS - 1;
    }
    t->count++;
    t->sum_s += seconds;
    t->buckets[t->last]++;
}

double ldr_times_mean(const ldr_times_t *t)
{
    return t->count > 0 ? t->sum_s / (double)t->count : 0;
}

double ldr_times_quantile(const ldr_times_t *t, double q)
{
    double left = q * (double)t->count;
    unsigned i = 0;

    if (t->count == 0) {
        return 0;
    }
    while (i < LDR_TIMES_BUCKETS - 1 && (double)t->buckets[i] < left) {
        left -= t->buckets[i++];
    }
    /* The middle of the bucket. */
    return exp2((i + 0.5) / LDR_TIMES_STEP) * 1e-6;
}
