/*
 * layout: shards of engines' pages, gathered from them and spread to them with
 * their checksums, in every order that pages have; beside it the best plain
 * copy of as much memory in one piece. Shards lie one after the other in
 * memory of the arena's kind.
 */
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/copy.h"
#include "base/gather.h"
#include "bench.h"
#include "bench_pages.h"

#define LAYERS 8u
#define SECONDS 1.5

typedef struct work {
    ldr_bench_pages_t pages;
    struct iovec *iov;
} work_t;

/* Every shard once; gives GB/s, 0: it failed. *crc_p: of all checksums. */
static double pass(work_t *w, uint8_t *store, bool save, uint32_t *crc_p)
{
    const larder_layout_t *layout = w->pages.layout;
    const ldr_group_t *g = &layout->group[0];
    larder_table_t table = ldr_bench_pages_table(&w->pages);
    uint8_t *at = store;
    double began = ldr_bench_now();

    *crc_p = 0;
    for (uint32_t c = 0; c < w->pages.chunks; c++) {
        for (uint32_t i = g->slice; i < g->slice_end; i++) {
            size_t bytes = layout->slice[i].bytes;
            ldr_segments_t s = {.iov = w->iov, .max = g->pieces_max};
            uint8_t nowhere; /* all is wanted, and here */

            if (ldr_layout_segments(layout, (ldr_shard_at_t){0, c, i}, &table,
                                    (ldr_span_t){0, UINT32_MAX},
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

static bool run_order(ldr_bench_t *b, const ldr_bench_order_t *o,
                      ldr_copying_t *c)
{
    static ldr_copies_t best;
    static ldr_samples_t speed[2];
    const char *copy = "";
    uint32_t saved, loaded;
    work_t w = {.iov = NULL};
    bool good =
        ldr_bench_pages_make(&w.pages, o, LAYERS, c->pool, c->bytes, NULL);

    if (good) {
        w.iov = ldr_alloc(w.pages.layout->group[0].pieces_max * sizeof(*w.iov));
        good = w.iov != NULL;
    }
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
        ldr_figure_t f = {
            .name = "layout",
            .variant = variant,
            .bytes = o->opaque ? LDR_BENCH_BLOCK * o->row : o->row,
            .value = ldr_samples_median(&speed[i]),
            .unit = "GB/s",
            .limit = ldr_copies_best(&best, false, 0.5, &copy),
            .goal_kind = o->goal > 0 ? LDR_GOAL_RATIO : LDR_GOAL_NONE,
            .goal = o->goal};

        snprintf(variant, sizeof(variant), "%s, %s", o->name,
                 i == 0 ? "saved" : "loaded");
        ldr_bench_report(b, &f);
    }
    ldr_bench_pages_free(&w.pages);
    ldr_free(w.iov);
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
    for (unsigned i = 0; i < LDR_BENCH_ORDERS; i++) {
        good = run_order(b, &ldr_bench_orders[i], &c) && good;
    }
    ldr_copying_destroy(&c);
    ldr_pool_destroy(c.pool, c.bytes);
    return good;
}
