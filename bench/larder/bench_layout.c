/*
 * layout: shards of engines' pages, gathered from them and spread to them with
 * their checksums, in every order that pages have; beside it the best plain
 * copy of as much memory in one piece.
 *
 * The engine is one rank of a model with 8 KV heads, K and V, blocks of 16
 * tokens in random order, all of the pool. Shards lie one after the other in
 * memory of the arena's kind.
 */
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/copy.h"
#include "base/gather.h"
#include "bench.h"
#include "layout/layout.h"

#define HEADS 8u
#define PARTS 2u
#define BLOCK 16u
#define CHUNK 256u
#define LAYERS 8u
#define SECONDS 1.5

typedef struct order {
    const char *name;
    uint32_t row;  /* bytes */
    bool heads;    /* heads outermost: a head's rows of a block are one run */
    bool together; /* K and V side by side in a row */
    bool opaque;   /* a block's rows are one, of as many bytes */
    double goal;
} order_t;

static const order_t orders[] = {
    {"tokens outermost, rows of 128", 128, false, false, false, 0},
    {"tokens outermost, rows of 256", 256, false, false, false, 0.5},
    {"tokens outermost, rows of 512", 512, false, false, false, 0.5},
    {"K and V in a row, rows of 256", 256, false, true, false, 0.5},
    {"heads outermost, rows of 256", 256, true, false, false, 0.85},
    {"opaque by head, 4 KiB", 256, true, false, true, 0.85},
};

typedef struct work {
    const order_t *order;
    larder_layout_t *layout;
    uint32_t chunks, blocks, *ids;
    uint8_t *pool; /* the engine's pages */
    uint64_t bytes;
    struct iovec *iov;
} work_t;

static larder_status_t layout_make(work_t *w)
{
    const order_t *o = w->order;
    uint64_t rows = (uint64_t)BLOCK * HEADS * o->row; /* of a part, in a page */
    larder_region_t region = {"pool", w->pool, w->bytes};
    larder_layer_t layers[LAYERS];
    larder_part_t parts[PARTS];
    larder_page_t pages[LAYERS];
    uint32_t all[LAYERS];
    uint64_t side = o->together ? PARTS * o->row : o->row;

    for (uint32_t i = 0; i < PARTS; i++) {
        parts[i] =
            (larder_part_t){.offset = o->together ? i * o->row : i * rows,
                            .head_stride = o->heads ? BLOCK * side : side,
                            .row_stride = o->heads ? side : HEADS * side,
                            .bytes = o->opaque ? BLOCK * o->row : o->row};
    }
    larder_part_t places[LAYERS][PARTS];
    for (uint32_t i = 0; i < LAYERS; i++) {
        layers[i] = (larder_layer_t){.offset = i * w->blocks * PARTS * rows,
                                     .stride = PARTS * rows,
                                     .bytes = PARTS * rows};
        memcpy(places[i], parts, sizeof(parts));
        places[i][0].layer = places[i][1].layer = i;
        pages[i] = (larder_page_t){i, PARTS, places[i]};
        all[i] = i;
    }
    larder_group_t group = {
        .block_tokens = BLOCK, .layers = layers, .layer_count = LAYERS};
    larder_pages_t d = {.heads = HEADS,
                        .head_count = HEADS,
                        .row_tokens = o->opaque ? BLOCK : 1,
                        .model_layers = all,
                        .model_layer_count = LAYERS,
                        .page_count = LAYERS,
                        .pages = pages};
    larder_layout_params_t p = {.field_mask = LARDER_LAYOUT_PAGES,
                                .chunk_tokens = CHUNK,
                                .block_count = w->blocks,
                                .regions = &region,
                                .region_count = 1,
                                .groups = &group,
                                .group_count = 1,
                                .pages = &d,
                                .model_layers = LAYERS};
    return larder_layout_create(&p, &w->layout);
}

static bool work_make(work_t *w, const order_t *o, uint8_t *pool,
                      uint64_t bytes)
{
    uint64_t block = (uint64_t)BLOCK * HEADS * PARTS * LAYERS * o->row;
    ldr_rand_t r;

    *w = (work_t){.order = o,
                  .chunks = (uint32_t)(bytes / (block * (CHUNK / BLOCK))),
                  .pool = pool,
                  .bytes = bytes};
    w->blocks = w->chunks * (CHUNK / BLOCK);
    w->ids = ldr_alloc(w->blocks * sizeof(*w->ids));
    if (w->ids == NULL || layout_make(w) != LARDER_OK) {
        return false;
    }
    ldr_rand_seed(&r, 1);
    for (uint32_t i = 0; i < w->blocks; i++) { /* shuffled as it is filled */
        uint32_t k = (uint32_t)ldr_rand_below(&r, i + 1);

        w->ids[i] = w->ids[k];
        w->ids[k] = i;
    }
    w->iov = ldr_alloc(w->layout->group[0].pieces_max * sizeof(*w->iov));
    return w->iov != NULL;
}

static void work_free(work_t *w)
{
    larder_layout_destroy(&w->layout);
    ldr_free(w->ids);
    ldr_free(w->iov);
}

/* Every shard once; gives GB/s, 0: it failed. *crc_p: of all checksums. */
static double pass(work_t *w, uint8_t *store, bool save, uint32_t *crc_p)
{
    const ldr_group_t *g = &w->layout->group[0];
    larder_table_t table = {w->ids, 0, w->blocks};
    uint8_t *at = store;
    double began = ldr_bench_now();

    *crc_p = 0;
    for (uint32_t c = 0; c < w->chunks; c++) {
        for (uint32_t i = g->slice; i < g->slice_end; i++) {
            size_t bytes = w->layout->slice[i].bytes;
            ldr_segments_t s = {.iov = w->iov, .max = g->pieces_max};
            uint8_t nowhere; /* all is wanted, and here */

            if (ldr_layout_segments(w->layout, (ldr_shard_at_t){0, c, i},
                                    &table, (ldr_span_t){0, UINT32_MAX},
                                    save ? NULL : &nowhere, &s) != LARDER_OK) {
                return 0;
            }
            ldr_list_t list = ldr_list(s.iov, s.count);
            *crc_p ^= save ? ldr_gather(0, at, &list, bytes)
                           : ldr_scatter(0, &list, at, bytes, true);
            ldr_copy_fence();
            at += bytes;
        }
    }
    return (double)(at - store) * 1e-9 / (ldr_bench_now() - began);
}

static bool run_order(ldr_bench_t *b, const order_t *o, ldr_copying_t *c)
{
    static ldr_copies_t best;
    static ldr_samples_t speed[2];
    const char *copy = "";
    uint32_t saved, loaded;
    work_t w;
    bool good = work_make(&w, o, c->pool, c->bytes);

    memset(&best, 0, sizeof(best));
    speed[0].count = speed[1].count = 0;
    for (double end = ldr_bench_now() + (b->seconds > 0 ? b->seconds : SECONDS);
         good && (speed[0].count < 3 || ldr_bench_now() < end);) {
        ldr_copies_round(c, &best, LDR_MIB);
        ldr_samples_add(&speed[0], pass(&w, c->extent.base, true, &saved));
        ldr_samples_add(&speed[1], pass(&w, c->extent.base, false, &loaded));
        good = saved == loaded && ldr_samples_at(&speed[1], 0) > 0;
    }
    for (unsigned i = 0; i < 2 && good; i++) {
        char variant[80];
        ldr_figure_t f = {.name = "layout",
                          .variant = variant,
                          .bytes = o->opaque ? BLOCK * o->row : o->row,
                          .value = ldr_samples_median(&speed[i]),
                          .unit = "GB/s",
                          .limit = ldr_copies_best(&best, false, 0.5, &copy),
                          .goal_kind =
                              o->goal > 0 ? LDR_GOAL_RATIO : LDR_GOAL_NONE,
                          .goal = o->goal};

        snprintf(variant, sizeof(variant), "%s, %s", o->name,
                 i == 0 ? "saved" : "loaded");
        ldr_bench_report(b, &f);
    }
    if (w.layout != NULL) {
        work_free(&w);
    }
    return good ? true : ldr_bench_fail(b, "layout", o->name);
}

bool ldr_bench_layout(ldr_bench_t *b)
{
    ldr_copying_t c = {.threads = 1, .bytes = ldr_bench_pool_bytes()};
    bool good = true;

    c.pool = ldr_pool_create(c.bytes);
    if (c.pool == NULL || !ldr_copying_create(&c)) {
        return ldr_bench_fail(b, "layout", "not enough memory");
    }
    ldr_pool_random(c.pool, c.bytes, 1);
    for (size_t i = 0; i < sizeof(orders) / sizeof(orders[0]); i++) {
        good = run_order(b, &orders[i], &c) && good;
    }
    ldr_copying_destroy(&c);
    ldr_pool_destroy(c.pool, c.bytes);
    return good;
}
