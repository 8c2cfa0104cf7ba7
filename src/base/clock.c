/*
 * The real clock and random numbers. No state of its own: any thread may call,
 * except that a generator (ldr_rand_t) belongs to one caller at a time.
 */
#include "base/clock.h"

#include <sys/random.h>
#include <time.h>

static uint64_t real_now_ns(void *arg)
{
    struct timespec t;

    (void)arg;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t real_wall_ms(void *arg)
{
    struct timespec t;

    (void)arg;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

const ldr_clock_t ldr_clock_real = {real_now_ns, real_wall_ms, NULL};

static uint64_t rotl(uint64_t x, int k)
{
    return (x << k) | (x >> (64 - k));
}

void ldr_rand_seed(ldr_rand_t *r, uint64_t seed)
{
    /* splitmix64, as the generator's authors advise. */
    for (int i = 0; i < 4; i++) {
        seed += 0x9e3779b97f4a7c15u;
        uint64_t z = seed;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        r->s[i] = z ^ (z >> 31);
    }
}

uint64_t ldr_rand_next(ldr_rand_t *r)
{
    uint64_t *s = r->s;
    uint64_t result = rotl(s[1] * 5, 7) * 9;
    uint64_t t = s[1] << 17;

    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return result;
}

uint64_t ldr_rand_below(ldr_rand_t *r, uint64_t bound)
{
    return (uint64_t)(((__uint128_t)ldr_rand_next(r) * bound) >> 64);
}

uint64_t ldr_rand_entropy(void)
{
    uint64_t seed = 0;

    if (getrandom(&seed, sizeof(seed), 0) != (ssize_t)sizeof(seed)) {
        /* Only before the kernel's pool is ready: the clock must do. */
        seed = real_now_ns(NULL) ^ (real_wall_ms(NULL) << 32);
    }
    return seed;
}
