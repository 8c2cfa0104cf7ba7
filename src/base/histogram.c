/*
 * Bounds, reading and arithmetic of histograms.
 *
 * The only state is the caller's histogram. Those that threads add to are read
 * by ldr_histogram_read() alone, with relaxed loads and no lock: it gives a
 * copy of the caller's own, and all other functions work on such copies.
 */
#include "base/histogram.h"

uint64_t ldr_histogram_bound_ns(unsigned i)
{
    if (i + 1 >= LDR_HISTOGRAM_BUCKETS) {
        return UINT64_MAX;
    }
    if (i < 4) {
        return (i + 1) * (uint64_t)LDR_HISTOGRAM_UNIT_NS;
    }
    /* The next bucket's first value, in units. */
    unsigned octave = i / 4 + 1;
    uint64_t units = (uint64_t)(4 + i % 4 + 1) << (octave - 2);
    return units * LDR_HISTOGRAM_UNIT_NS;
}

void ldr_histogram_read(const ldr_histogram_t *h, ldr_histogram_t *out)
{
    for (unsigned i = 0; i < LDR_HISTOGRAM_BUCKETS; i++) {
        out->buckets[i] = __atomic_load_n(&h->buckets[i], __ATOMIC_RELAXED);
    }
    out->sum_ns = __atomic_load_n(&h->sum_ns, __ATOMIC_RELAXED);
}

uint64_t ldr_histogram_count(const ldr_histogram_t *h)
{
    return ldr_histogram_below(h, UINT64_MAX);
}

uint64_t ldr_histogram_below(const ldr_histogram_t *h, uint64_t bound_ns)
{
    uint64_t count = 0;

    for (unsigned i = 0;
         i < LDR_HISTOGRAM_BUCKETS && ldr_histogram_bound_ns(i) <= bound_ns;
         i++) {
        count += h->buckets[i];
    }
    return count;
}

uint64_t ldr_histogram_quantile_ns(const ldr_histogram_t *h, double q)
{
    uint64_t count = ldr_histogram_count(h), seen = 0, low = 0;

    if (count == 0) {
        return 0;
    }
    double want = q * (double)count;
    for (unsigned i = 0; i < LDR_HISTOGRAM_BUCKETS - 1; i++) {
        uint64_t bound = ldr_histogram_bound_ns(i), n = h->buckets[i];

        if (n > 0 && (double)(seen + n) >= want) {
            double part = (want - (double)seen) / (double)n;
            part = part < 0 ? 0 : part;
            return low + (uint64_t)((double)(bound - low) * part);
        }
        seen += n;
        low = bound;
    }
    return low; /* longer than the last bound: that is all we know */
}

void ldr_histogram_merge(ldr_histogram_t *h, const ldr_histogram_t *other)
{
    for (unsigned i = 0; i < LDR_HISTOGRAM_BUCKETS; i++) {
        h->buckets[i] += other->buckets[i];
    }
    h->sum_ns += other->sum_ns;
}

void ldr_histogram_since(ldr_histogram_t *h, const ldr_histogram_t *earlier)
{
    for (unsigned i = 0; i < LDR_HISTOGRAM_BUCKETS; i++) {
        h->buckets[i] -= earlier->buckets[i];
    }
    h->sum_ns -= earlier->sum_ns;
}
