/*
 * The clock and randomness seam. Nothing above net/ asks the kernel for
 * the time; tests pass their own. Secrets (nonces, tokens) are the kernel's in
 * every build: one that follows from a seed could be guessed.
 */
#pragma once

#include <stdint.h>

typedef struct ldr_clock {
    uint64_t (*now_ns)(void *arg);  /* monotonic */
    uint64_t (*wall_ms)(void *arg); /* since 1970 */
    void *arg;
} ldr_clock_t;

/* CLOCK_MONOTONIC and CLOCK_REALTIME, both without a system call. */
extern const ldr_clock_t ldr_clock_real;

static inline uint64_t ldr_now_ns(const ldr_clock_t *clock)
{
    return clock->now_ns(clock->arg);
}

static inline uint64_t ldr_wall_ms(const ldr_clock_t *clock)
{
    return clock->wall_ms(clock->arg);
}

static inline uint32_t ldr_wall_s(const ldr_clock_t *clock)
{
    return (uint32_t)(ldr_wall_ms(clock) / 1000);
}

/* xoshiro256**: fast, seeded, not for secrets. */
typedef struct ldr_rand {
    uint64_t s[4];
} ldr_rand_t;

void ldr_rand_seed(ldr_rand_t *r, uint64_t seed);
uint64_t ldr_rand_next(ldr_rand_t *r);
uint64_t ldr_rand_below(ldr_rand_t *r, uint64_t bound); /* bound > 0 */

/* A seed from the kernel's entropy. */
uint64_t ldr_rand_entropy(void);
