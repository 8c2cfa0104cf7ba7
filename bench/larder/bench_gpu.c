/*
 * gpu-copy: scattered pages in a GPU's memory to and from a shard's segments in
 * memory of the arena's kind, by each of the ways there are, against the
 * driver's own copy of the same bytes, contiguous and registered. Pages whose
 * inside is known are in every order that they have; their shards are slices
 * of the model, and each one's list is made when it is copied, as in a load.
 *
 * A machine without a GPU says so; that is no failure unless the figure was
 * asked for by name.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/copy.h"
#include "bench.h"
#include "bench_pages.h"
#include "gpu/gpu_int.h"

#define POOL ((uint64_t)1 << 30)
#define SHARD ((uint64_t)32 << 20)
#define SHARDS (POOL / SHARD)
#define GOAL 0.95
#define BATCHED LDR_GPU_WAYS /* none of ours */

typedef struct rig {
    ldr_bench_t *bench;
    larder_gpu_t *gpu;
    ldr_cu_ptr_t pages;      /* POOL bytes */
    ldr_extent_t from, back; /* what is loaded, and what is saved again */
    ldr_cu_stream_t stream;
    ldr_page_rows_t *page;
    struct iovec *host;
    ldr_gpu_parts_t *parts;
    uint64_t bytes;             /* that are moved, of the pool */
    ldr_bench_pages_t pages_in; /* of an order */
    uint32_t count;             /* shards */
    ldr_gpu_shard_t shards[LDR_GPU_SHARDS_MAX];
} rig_t;

/* What is measured. */
typedef struct trial {
    const char *name;
    ldr_gpu_way_t way;
    uint64_t size, segment;         /* of pages, of parts on the host; or */
    const ldr_bench_order_t *order; /* of pages whose inside is known */
} trial_t;

static bool rig_extent(rig_t *r, ldr_extent_t *e)
{
    if (!ldr_bench_extent(e, POOL)) {
        return false;
    }
    ldr_gpu_register(r->gpu, e->base, POOL);
    return true;
}

static bool rig_make(rig_t *r)
{
    const ldr_cuda_t *cuda = r->gpu->cuda;

    r->page = ldr_alloc(POOL / 2048 * sizeof(*r->page));
    r->host = ldr_alloc(POOL / 65536 * sizeof(*r->host));
    r->parts = ldr_alloc(sizeof(*r->parts));
    if (r->page == NULL || r->host == NULL || r->parts == NULL ||
        !rig_extent(r, &r->from) || !rig_extent(r, &r->back) ||
        ldr_gpu_enter(r->gpu) != LARDER_OK) {
        return false;
    }
    bool ok = ldr_cuda_status(cuda, cuda->alloc(&r->pages, POOL),
                              "cuMemAlloc") == LARDER_OK &&
              cuda->stream_create(&r->stream, LDR_CU_STREAM_OWN, 0) == 0;
    ldr_gpu_leave(r->gpu);
    return ok;
}

static void rig_free(rig_t *r)
{
    ldr_gpu_unregister(r->gpu, r->from.base, POOL);
    ldr_gpu_unregister(r->gpu, r->back.base, POOL);
    if (ldr_gpu_enter(r->gpu) == LARDER_OK) {
        r->gpu->cuda->stream_destroy(r->stream);
        r->gpu->cuda->free(r->pages);
        ldr_gpu_leave(r->gpu);
    }
    ldr_extent_destroy(&r->from);
    ldr_extent_destroy(&r->back);
    ldr_free(r->page);
    ldr_free(r->host);
    ldr_free(r->parts);
}

/* The pages of all shards lie in random order; the host's segments in order,
 * each of so many bytes. */
static void rig_cut(rig_t *r, uint64_t size, uint64_t segment,
                    const ldr_extent_t *host)
{
    uint64_t count = POOL / size, segments = POOL / segment;
    ldr_rand_t rand;

    ldr_rand_seed(&rand, size);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t other = ldr_rand_below(&rand, i + 1);

        r->page[i] = r->page[other];
        r->page[other] = (ldr_page_rows_t){
            (void *)(uintptr_t)(r->pages + i * size), size, size, 1};
    }
    for (uint64_t i = 0; i < segments; i++) {
        /* Of small ones every second comes first: neighbours are none. */
        uint64_t at = segment == SHARD   ? i
                      : i < segments / 2 ? 2 * i
                                         : 2 * (i - segments / 2) + 1;

        r->host[i] = (struct iovec){host->base + at * segment, segment};
    }
    r->bytes = POOL;
    r->count = SHARDS;
    for (uint64_t i = 0; i < SHARDS; i++) {
        r->shards[i] = (ldr_gpu_shard_t){
            .pages = r->page + i * (count / SHARDS),
            .page_count = (uint32_t)(count / SHARDS),
            .host = r->host + i * (segments / SHARDS),
            .host_count = (uint32_t)(segments / SHARDS),
        };
    }
}

/* The shards of an order, one after the other on the host. */
static void rig_cut_order(rig_t *r, const ldr_extent_t *host)
{
    const larder_layout_t *layout = r->pages_in.layout;
    uint8_t *at = host->base;

    r->count = r->pages_in.chunks * layout->slices;
    for (uint32_t i = 0; i < r->count; i++) {
        size_t bytes = layout->slice[i % layout->slices].bytes;

        r->host[i] = (struct iovec){at, bytes};
        r->shards[i] = (ldr_gpu_shard_t){.host = &r->host[i], .host_count = 1};
        at += bytes;
    }
    r->bytes = (uint64_t)(at - host->base);
}

static larder_status_t list_shard(void *arg, uint32_t shard)
{
    rig_t *r = arg;
    const larder_layout_t *layout = r->pages_in.layout;
    larder_table_t table = ldr_bench_pages_table(&r->pages_in);
    ldr_page_list_t list = {.rows = r->page, .max = POOL / 2048};
    ldr_shard_at_t at = {0, shard / layout->slices, shard % layout->slices};
    larder_status_t st = ldr_layout_rows(
        layout, at, &table, (ldr_span_t){0, UINT32_MAX}, NULL, &list);

    r->shards[shard].pages = list.rows;
    r->shards[shard].page_count = list.count;
    return st;
}

/* GB/s of the driver's contiguous copy. */
static double contiguous(rig_t *r, bool load)
{
    const ldr_cuda_t *cuda = r->gpu->cuda;
    const uint64_t slice = (uint64_t)256 << 20;
    ldr_cu_t result = 0;

    if (ldr_gpu_enter(r->gpu) != LARDER_OK) {
        return 0;
    }
    double begin = ldr_bench_now();
    for (uint64_t at = 0; at < POOL && result == 0; at += slice) {
        result = load ? cuda->to_device(r->pages + at, r->from.base + at, slice,
                                        r->stream)
                      : cuda->to_host(r->from.base + at, r->pages + at, slice,
                                      r->stream);
    }
    result = result != 0 ? result : cuda->stream_sync(r->stream);
    double seconds = ldr_bench_now() - begin;
    ldr_gpu_leave(r->gpu);
    return result == 0 ? (double)POOL * 1e-9 / seconds : 0;
}

/* GB/s of the driver's own copy of many, pages to and from the host's memory,
 * of which nobody makes a checksum: what Larder could use in place of staging.
 * 0: it failed. */
static double batched(rig_t *r, bool load)
{
    const ldr_cuda_t *cuda = r->gpu->cuda;
    ldr_gpu_parts_t *p = r->parts;
    uint64_t size = r->page[0].bytes, at = 0;
    uint8_t *host = r->host[0].iov_base;
    ldr_cu_t result = 0;

    if (ldr_gpu_enter(r->gpu) != LARDER_OK) {
        return 0;
    }
    double begin = ldr_bench_now();
    while (at < POOL && result == 0) {
        for (p->count = 0; at < POOL && p->count < LDR_GPU_UNITS; at += size) {
            p->device[p->count] = (uintptr_t)r->page[at / size].base;
            p->host[p->count] = (uintptr_t)host + at;
            p->bytes[p->count++] = size;
        }
        result = ldr_gpu_batch(cuda, p, load, r->stream);
    }
    ldr_cu_t over = cuda->stream_sync(r->stream);
    double seconds = ldr_bench_now() - begin;
    ldr_gpu_leave(r->gpu);
    return result == 0 && over == 0 ? (double)POOL * 1e-9 / seconds : 0;
}

static double scattered(rig_t *r, bool load, const trial_t *t)
{
    if (t->way == BATCHED) {
        return batched(r, load);
    }
    ldr_gpu_copy_t copy = {.load = load,
                           .shards = r->shards,
                           .count = r->count,
                           .deadline_ns = UINT64_MAX,
                           .list = t->order != NULL ? list_shard : NULL,
                           .arg = r,
                           .forced = true,
                           .way = t->way};
    double begin = ldr_bench_now();

    if (ldr_gpu_move(r->gpu, &copy) != LARDER_OK) {
        return 0;
    }
    return (double)r->bytes * 1e-9 / (ldr_bench_now() - begin);
}

/* Every shard's checksum, and after a way there and back every byte. */
static bool verified(rig_t *r, bool load, ldr_gpu_way_t way)
{
    for (uint64_t i = 0; i < r->count && way != BATCHED; i++) {
        uint32_t crc = 0;

        for (uint32_t k = 0; k < r->shards[i].host_count; k++) {
            crc = ldr_crc32c(crc, r->shards[i].host[k].iov_base,
                             r->shards[i].host[k].iov_len);
        }
        if (crc != r->shards[i].crc) {
            return false;
        }
    }
    return load || memcmp(r->from.base, r->back.base, r->bytes) == 0;
}

static double goal_of(const trial_t *t)
{
    return t->order != NULL ? t->order->gpu_goal
           : t->size >= 4096 && t->segment == SHARD && t->way == LDR_GPU_STAGED
               ? GOAL
               : 0;
}

static void report(rig_t *r, const trial_t *t, bool save, double value,
                   double limit)
{
    char variant[80];
    ldr_figure_t f = {.name = "gpu-copy",
                      .variant = variant,
                      .bytes = t->order != NULL ? t->order->row : t->size,
                      .value = value,
                      .unit = "GB/s",
                      .limit = limit,
                      .goal_kind =
                          goal_of(t) > 0 ? LDR_GOAL_RATIO : LDR_GOAL_NONE,
                      .goal = goal_of(t)};

    snprintf(variant, sizeof(variant), "%s %s%s", save ? "save" : "load",
             t->name, t->segment == SHARD ? "" : ", arena in 64K");
    ldr_bench_report(r->bench, &f);
}

static void cut(rig_t *r, const trial_t *t, const ldr_extent_t *host)
{
    if (t->order != NULL) {
        rig_cut_order(r, host);
    } else {
        rig_cut(r, t->size, t->segment, host);
    }
}

static bool measure_trial(rig_t *r, const trial_t *t)
{
    ldr_samples_t here[2] = {0}, limit[2] = {0};
    double end = ldr_bench_now() +
                 (r->bench->seconds > 0 ? r->bench->seconds / 8 : 0.25);

    do {
        for (unsigned save = 0; save < 2; save++) {
            cut(r, t, save ? &r->back : &r->from);
            if (save) {
                ldr_pool_stamp(r->back.base, POOL, here[0].count);
            }
            double gbs = scattered(r, !save, t);
            if (gbs == 0 || !verified(r, !save, t->way)) {
                return ldr_bench_fail(r->bench, "gpu-copy",
                                      gbs == 0 ? "the copy failed"
                                               : "wrong bytes or checksum");
            }
            if (here[save].count == 0 && limit[save].count == 0) {
                contiguous(r, !save); /* warm, as the other is now */
                gbs = scattered(r, !save, t);
            }
            ldr_samples_add(&here[save], gbs);
        }
        /* The pages' contents are spoilt only after they were saved. */
        ldr_samples_add(&limit[1], contiguous(r, false));
        ldr_pool_random(r->from.base, POOL, here[0].count);
        ldr_samples_add(&limit[0], contiguous(r, true));
    } while (ldr_bench_now() < end);
    for (unsigned save = 0; save < 2; save++) {
        report(r, t, save != 0, ldr_samples_median(&here[save]),
               ldr_samples_median(&limit[save]));
    }
    return true;
}

static bool measure(rig_t *r, uint64_t size, uint64_t segment,
                    ldr_gpu_way_t way, const char *name)
{
    return measure_trial(
        r,
        &(trial_t){.name = name, .way = way, .size = size, .segment = segment});
}

static bool measure_order(rig_t *r, const ldr_bench_order_t *o)
{
    trial_t t = {
        .name = o->name, .way = LDR_GPU_STAGED, .segment = SHARD, .order = o};
    bool ok = ldr_bench_pages_make(&r->pages_in, o, LDR_BENCH_LAYERS_MAX,
                                   (void *)(uintptr_t)r->pages, POOL, r->gpu);

    ok = ok ? measure_trial(r, &t)
            : ldr_bench_fail(r->bench, "gpu-copy", larder_last_error());
    ldr_bench_pages_free(&r->pages_in);
    return ok;
}

bool ldr_bench_gpu_copy(ldr_bench_t *b)
{
    static const uint64_t sizes[] = {2048,  4096,   8192,   16384,
                                     65536, 262144, 1048576};
    rig_t *r = ldr_alloc(sizeof(*r));
    bool ok = true;

    if (r == NULL) {
        return ldr_bench_fail(b, "gpu-copy", "no memory");
    }
    r->bench = b;
    if (larder_gpu_open(NULL, &r->gpu) != LARDER_OK) {
        ldr_free(r);
        if (b->named) {
            return ldr_bench_fail(b, "gpu-copy", "no GPU");
        }
        fprintf(stderr, "gpu-copy: left out: %s\n", larder_last_error());
        return true;
    }
    ok = rig_make(r) || ldr_bench_fail(b, "gpu-copy", "no memory");
    if (ok) {
        ldr_pool_random(r->from.base, POOL, 1);
    }
    for (size_t i = 0; ok && i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        bool all = b->size == sizes[i] || (b->size == 0 && sizes[i] == 65536);

        if (b->size == 0 || all) {
            ok = measure(r, sizes[i], SHARD, LDR_GPU_STAGED, "staged") &&
                 measure(r, sizes[i], SHARD, LDR_GPU_DIRECT, "direct") &&
                 measure(r, sizes[i], 65536, LDR_GPU_DIRECT, "direct") &&
                 measure(r, sizes[i], 65536, LDR_GPU_STAGED, "staged") &&
                 (!r->gpu->can_batch ||
                  measure(r, sizes[i], SHARD, BATCHED,
                          "by the driver's batch, unchecked"));
        }
        if (ok && all) { /* those that are slower, whatever the size */
            bool batch = r->gpu->batch;

            ok = measure(r, sizes[i], SHARD, LDR_GPU_BOUNCE, "bounce") &&
                 measure(r, sizes[i], SHARD, LDR_GPU_PLAIN, "plain");
            r->gpu->batch = !batch && r->gpu->can_batch;
            ok =
                ok && (r->gpu->batch == batch ||
                       (measure(r, sizes[i], 65536, LDR_GPU_STAGED,
                                batch ? "staged, no batch" : "staged, batch") &&
                        measure(r, sizes[i], SHARD, LDR_GPU_PLAIN,
                                batch ? "plain, no batch" : "plain, batch")));
            r->gpu->batch = batch;
        }
    }
    for (unsigned i = 0; ok && i < LDR_BENCH_ORDERS; i++) {
        const ldr_bench_order_t *o = &ldr_bench_orders[i];

        ok = (b->size != 0 && b->size != o->row) || measure_order(r, o);
    }
    rig_free(r);
    larder_gpu_close(&r->gpu);
    ldr_free(r);
    return ok;
}
