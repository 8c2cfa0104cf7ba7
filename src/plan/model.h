/*
 * What a hit is worth in time: how fast an engine computes, how fast the tiers
 * give, and what a token weighs.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct ldr_known_model {
    const char *name;
    uint32_t bytes_per_token; /* keys and values of all layers, 16 bits */
    double active;            /* parameters used for a token, in 10^9 */
} ldr_known_model_t;

/* By number, from 0; NULL behind the last. */
const ldr_known_model_t *ldr_known_model(unsigned number);
const ldr_known_model_t *ldr_known_model_find(const char *name);

typedef struct ldr_speed {
    double bytes_per_s;
    double latency_s;
} ldr_speed_t;

typedef struct ldr_model {
    uint32_t block_tokens;
    double bytes_per_token;
    /* A token at position p takes (1 + p / slow_tokens) / prefill_rate. */
    double prefill_rate; /* tokens a second at the start of a prompt */
    double slow_tokens;
    ldr_speed_t dram, ssd;
    double ssd_write_bytes_per_s; /* 0: as fast as it must be */
    double lookup_s;  /* what is on SSD must be up in DRAM by then, after the
                       * request came; 0: whenever */
    uint32_t engines; /* 0: no request waits for another */
} ldr_model_t;

/* The prefill rate of an engine with so many operations a second: two for each
 * parameter that a token uses. */
double ldr_model_rate(double flops, const ldr_known_model_t *known);

/* Seconds to compute the tokens [from, to) of a prompt. */
double ldr_model_prefill(const ldr_model_t *m, double from, double to);

/* Seconds that the SSD is busy with reading them. */
double ldr_model_stage(const ldr_model_t *m, double tokens);

/* What a lookup found of a request. */
typedef struct ldr_found {
    uint32_t blocks;     /* that hit, in any tier */
    uint32_t ssd_blocks; /* of them, only on SSD */
    uint32_t before_ssd; /* blocks before the first of these */
    double wait_s;       /* until the SSD has done what others want of it */
} ldr_found_t;

typedef struct ldr_first_token {
    double without_s; /* all of the prompt computed */
    double with_s;
    double tokens;      /* that were loaded */
    double saved_s;     /* prefill that was not done */
    double dram_tokens; /* of tokens */
    /* Blocks that could be had in time, whether it pays or not, and those of
     * them on SSD. */
    uint32_t blocks, ssd_blocks;
} ldr_first_token_t;

/* Takes as much of what was found as pays, and is there in time: all, half of
 * it, half of that and so on, what comes before the first block that only the
 * SSD has, or nothing. The last token is always computed, since its output is
 * what is wanted. */
ldr_first_token_t ldr_model_first_token(const ldr_model_t *m,
                                        uint32_t input_tokens,
                                        const ldr_found_t *found);

/* ---- times, to within 1 % ---- */

#define LDR_TIMES_STEP 32 /* buckets an octave */
#define LDR_TIMES_BUCKETS (40 * LDR_TIMES_STEP)

typedef struct ldr_times {
    uint64_t count;
    double sum_s;
    double last_s; /* the last one, and its bucket; 0 is in the first */
    uint32_t last;
    uint32_t buckets[LDR_TIMES_BUCKETS]; /* from 1 us on */
} ldr_times_t;

void ldr_times_add(ldr_times_t *t, double seconds);
double ldr_times_mean(const ldr_times_t *t);
double ldr_times_quantile(const ldr_times_t *t, double q);
