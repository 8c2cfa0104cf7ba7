/*
 * Metrics read back from Prometheus text: what `larder top` shows. Two
 * readings make rates.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

typedef struct ldr_sample {
    const char *name;
    const char *labels; /* as in the text, without braces */
    double value;
} ldr_sample_t;

typedef struct ldr_prom {
    char *text; /* what the samples point into */
    ldr_sample_t *samples;
    size_t count;
} ldr_prom_t;

/* Takes the text (from ldr_alloc) apart, and owns it from then on. False: no
 * memory, or a line is not what it should be. */
bool ldr_prom_parse(char *text, ldr_prom_t *out);
void ldr_prom_free(ldr_prom_t *p);

/* "tenant", "a", "tier", "dram", NULL: all these labels have these values. */
#define LDR_WHERE(...) ((const char *const[]){__VA_ARGS__, NULL})
#define LDR_ANYWHERE ((const char *const[]){NULL})

/* The sum of the samples with this name and these labels. */
double ldr_prom_sum(const ldr_prom_t *p, const char *name,
                    const char *const *where);

#define LDR_PROM_VALUE 256u
/* The values that the label has among the samples of this name; how many. */
size_t ldr_prom_values(const ldr_prom_t *p, const char *name, const char *label,
                       char (*values)[LDR_PROM_VALUE], size_t max);

/* The value of a sample's label, its escapes undone; what is too long is cut.
 * False: there is no such label. */
bool ldr_prom_label(const ldr_sample_t *sample, const char *label,
                    char value[LDR_PROM_VALUE]);

/* The same of the first sample with this name and these labels; "": there is
 * none. */
void ldr_prom_text(const ldr_prom_t *p, const char *name,
                   const char *const *where, const char *label,
                   char value[LDR_PROM_VALUE]);

/* A histogram: how many observations were not above each bound. */
#define LDR_PROM_BOUNDS 64u
typedef struct ldr_buckets {
    double bounds[LDR_PROM_BOUNDS]; /* rising; the last is infinity */
    double below[LDR_PROM_BOUNDS];
    size_t count;
} ldr_buckets_t;

/* What the histogram counted between the two readings. before may be empty. */
void ldr_prom_buckets(const ldr_prom_t *now, const ldr_prom_t *before,
                      const char *name, const char *const *where,
                      ldr_buckets_t *out);
/* All of them. */
double ldr_buckets_count(const ldr_buckets_t *b);
/* What a share q of them did not exceed; 0: there were none. */
double ldr_buckets_quantile(const ldr_buckets_t *b, double q);
