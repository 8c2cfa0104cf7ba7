/* Pages as engines lay them out, for the figures that copy them. One thread. */
#include "bench_pages.h"

#include <string.h>

#include "base/clock.h"
#include "bench.h"

#define HEADS 8u
#define PARTS 2u
#define BLOCK ((uint32_t)LDR_BENCH_BLOCK)
#define CHUNK 256u
#define LAYERS ((uint32_t)LDR_BENCH_LAYERS_MAX)

const ldr_bench_order_t ldr_bench_orders[LDR_BENCH_ORDERS] = {
    {"tokens outermost, rows of 128", 128, false, false, false, 0, 0.85},
    {"tokens outermost, rows of 256", 256, false, false, false, 0.5, 0.95},
    {"tokens outermost, rows of 512", 512, false, false, false, 0.5, 0.95},
    {"K and V in a row, rows of 256", 256, false, true, false, 0.5, 0.95},
    {"heads outermost, rows of 256", 256, true, false, false, 0.85, 0.95},
    {"opaque by head, 4 KiB", 256, true, false, true, 0.85, 0.95},
};

static larder_status_t layout_make(ldr_bench_pages_t *w, larder_gpu_t *gpu)
{
    const ldr_bench_order_t *o = w->order;
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
    for (uint32_t i = 0; i < w->layers; i++) {
        layers[i] = (larder_layer_t){.offset = i * w->blocks * PARTS * rows,
                                     .stride = PARTS * rows,
                                     .bytes = PARTS * rows};
        memcpy(places[i], parts, sizeof(parts));
        places[i][0].layer = places[i][1].layer = i;
        pages[i] = (larder_page_t){i, PARTS, places[i]};
        all[i] = i;
    }
    larder_group_t group = {
        .block_tokens = BLOCK, .layers = layers, .layer_count = w->layers};
    larder_pages_t d = {.heads = HEADS,
                        .head_count = HEADS,
                        .row_tokens = o->opaque ? BLOCK : 1,
                        .model_layers = all,
                        .model_layer_count = w->layers,
                        .page_count = w->layers,
                        .pages = pages};
    larder_layout_params_t p = {.field_mask =
                                    LARDER_LAYOUT_PAGES |
                                    (gpu != NULL ? LARDER_LAYOUT_GPU : 0),
                                .chunk_tokens = CHUNK,
                                .block_count = w->blocks,
                                .regions = &region,
                                .region_count = 1,
                                .groups = &group,
                                .group_count = 1,
                                .gpu = gpu,
                                .pages = &d,
                                .model_layers = w->layers};
    return larder_layout_create(&p, &w->layout);
}

bool ldr_bench_pages_make(ldr_bench_pages_t *w, const ldr_bench_order_t *o,
                          uint32_t layers, void *pool, uint64_t bytes,
                          larder_gpu_t *gpu)
{
    uint64_t block = (uint64_t)BLOCK * HEADS * PARTS * layers * o->row;
    ldr_rand_t r;

    *w = (ldr_bench_pages_t){.order = o,
                             .layers = layers,
                             .chunks =
                                 (uint32_t)(bytes / (block * (CHUNK / BLOCK))),
                             .pool = pool,
                             .bytes = bytes};
    w->blocks = w->chunks * (CHUNK / BLOCK);
    w->ids = ldr_alloc(w->blocks * sizeof(*w->ids));
    if (w->ids == NULL || layout_make(w, gpu) != LARDER_OK) {
        ldr_bench_pages_free(w);
        return false;
    }
    ldr_rand_seed(&r, 1);
    for (uint32_t i = 0; i < w->blocks; i++) { /* shuffled as it is filled */
        uint32_t k = (uint32_t)ldr_rand_below(&r, i + 1);

        w->ids[i] = w->ids[k];
        w->ids[k] = i;
    }
    return true;
}

void ldr_bench_pages_free(ldr_bench_pages_t *w)
{
    larder_layout_destroy(&w->layout);
    ldr_free(w->ids);
    w->ids = NULL;
}

larder_table_t ldr_bench_pages_table(const ldr_bench_pages_t *w)
{
    return (larder_table_t){w->ids, 0, w->blocks};
}
