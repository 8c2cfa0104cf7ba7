/*
 * An engine's pages in every order that pages have: one rank of a model with 8
 * KV heads, K and V, blocks of 16 tokens in random order, all of the pool.
 */
#pragma once

#include "layout/layout.h"

typedef struct ldr_bench_order {
    const char *name;
    uint32_t row;  /* bytes */
    bool heads;    /* heads outermost: a head's rows of a block are one run */
    bool together; /* K and V side by side in a row */
    bool opaque;   /* a block's rows are one, of as many bytes */
    double goal, gpu_goal;
} ldr_bench_order_t;

enum {
    LDR_BENCH_ORDERS = 6,
    LDR_BENCH_BLOCK = 16,
    LDR_BENCH_LAYERS_MAX = 32,
};

extern const ldr_bench_order_t ldr_bench_orders[LDR_BENCH_ORDERS];

typedef struct ldr_bench_pages {
    const ldr_bench_order_t *order;
    larder_layout_t *layout;
    uint32_t layers, chunks, blocks, *ids;
    uint8_t *pool;
    uint64_t bytes;
} ldr_bench_pages_t;

/* gpu: whose memory the pool is; NULL: the host's. Its pages are the pool's as
 * far as whole chunks go. */
bool ldr_bench_pages_make(ldr_bench_pages_t *p, const ldr_bench_order_t *o,
                          uint32_t layers, void *pool, uint64_t bytes,
                          larder_gpu_t *gpu);
void ldr_bench_pages_free(ldr_bench_pages_t *p);
larder_table_t ldr_bench_pages_table(const ldr_bench_pages_t *p);
