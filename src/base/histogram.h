/*
 * Latency counters: log-linear, four buckets an octave from 1 us to 67 s, so
 * that a percentile is known to within a fifth of itself. Fixed memory, no
 * lock: any thread adds, any thread reads; a reader may see a sum that is a
 * few adds ahead of the buckets.
 *
 * Bucket i holds what is above ldr_histogram_bound_ns(i - 1) and not above
 * ldr_histogram_bound_ns(i); the last one, all that is longer.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define LDR_HISTOGRAM_UNIT_NS 250u /* the first octave is one of 1 us */
#define LDR_HISTOGRAM_OCTAVES 26u  /* above that: up to 2^26 us */
#define LDR_HISTOGRAM_BUCKETS (4u * (LDR_HISTOGRAM_OCTAVES + 1u) + 1u)

typedef struct ldr_histogram {
    uint64_t buckets[LDR_HISTOGRAM_BUCKETS];
    uint64_t sum_ns;
} ldr_histogram_t;

static inline unsigned ldr_histogram_bucket(uint64_t ns)
{
    uint64_t v = ns > 0 ? (ns - 1) / LDR_HISTOGRAM_UNIT_NS : 0;

    if (v < 4) {
        return (unsigned)v;
    }
    unsigned octave = 63u - (unsigned)__builtin_clzll(v); /* 2 or more */
    unsigned i = (octave - 1) * 4 + (unsigned)(v >> (octave - 2) & 3);
    return i < LDR_HISTOGRAM_BUCKETS ? i : LDR_HISTOGRAM_BUCKETS - 1;
}

static inline void ldr_histogram_add(ldr_histogram_t *h, uint64_t ns)
{
    __atomic_fetch_add(&h->buckets[ldr_histogram_bucket(ns)], 1,
                       __ATOMIC_RELAXED);
    __atomic_fetch_add(&h->sum_ns, ns, __ATOMIC_RELAXED);
}

/* The longest time that bucket i holds; UINT64_MAX for the last. */
uint64_t ldr_histogram_bound_ns(unsigned i);

/* What it holds now. */
void ldr_histogram_read(const ldr_histogram_t *h, ldr_histogram_t *out);

/* The rest is for what was read, which nobody changes. */
uint64_t ldr_histogram_count(const ldr_histogram_t *h);
/* How many were not longer than this, one of the bounds. */
uint64_t ldr_histogram_below(const ldr_histogram_t *h, uint64_t bound_ns);
/* The time that a share q (0...1) of them did not exceed, placed evenly within
 * its bucket; 0 if there are none. */
uint64_t ldr_histogram_quantile_ns(const ldr_histogram_t *h, double q);
/* h += other; h -= an earlier state of it. */
void ldr_histogram_merge(ldr_histogram_t *h, const ldr_histogram_t *other);
void ldr_histogram_since(ldr_histogram_t *h, const ldr_histogram_t *earlier);
