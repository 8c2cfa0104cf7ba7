/*
 * Copies with a model beside them: shards of random shape in a part of device
 * memory and in a part of the host's, and what each byte of both must be
 * afterwards.
 */
#pragma once

#include <sys/mman.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/copy.h"
#include "gpu/gpu_rig.h"

enum { SHARDS = 40, IOVS = 60000 };

#define PAGE_MAX ((size_t)1 << 20)

typedef struct world {
    rig_engine_t engine;
    larder_gpu_t *gpu;
    ldr_rand_t rand;
    size_t bytes; /* of each of the following */
    ldr_cu_ptr_t device;
    uint8_t *device_model, *arena, *arena_model;
    uint8_t *fresh; /* the engine's, registered: what it writes to the pages */
    uint8_t *nowhere;
    uint32_t shard_count, iov_count, row_count;
    size_t device_used, arena_used;
    ldr_gpu_shard_t shards[SHARDS];
    uint32_t crc[SHARDS];
    struct iovec iov[IOVS];
    ldr_page_rows_t rows[IOVS];
} world_t;

/* What a case is like. */
typedef struct shape {
    size_t bytes;      /* about, of all */
    size_t page, part; /* on the device, on the host */
    size_t odd;        /* not aligned, but to this; 0: aligned */
    bool holes;        /* some pages are nowhere */
    bool apart;        /* pages are of rows that lie apart */
    bool after;        /* the engine is not done with the pages yet */
} shape_t;

static inline size_t below(world_t *w, uint64_t bound)
{
    return (size_t)ldr_rand_below(&w->rand, bound);
}

static inline void fill(world_t *w, uint8_t *to, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t word = ldr_rand_next(&w->rand);

        memcpy(to + i, &word, ldr_min64(8, bytes - i));
    }
}

static inline uint8_t *map(size_t bytes, int protection)
{
    void *p = mmap(NULL, bytes, protection,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    return p != MAP_FAILED ? p : NULL;
}

static inline world_t *world_make(larder_gpu_t *gpu, size_t bytes,
                                  uint64_t seed)
{
    world_t *w = calloc(1, sizeof(*w));

    w->gpu = gpu;
    w->bytes = bytes;
    ldr_rand_seed(&w->rand, seed);
    rig_engine_make(&w->engine);
    w->device = rig_device(&w->engine, bytes);
    w->device_model = malloc(bytes);
    w->arena_model = malloc(bytes);
    w->arena = map(bytes, PROT_READ | PROT_WRITE);
    w->fresh = map(bytes, PROT_READ | PROT_WRITE);
    w->nowhere = map(2 * PAGE_MAX, PROT_NONE); /* nobody looks at it */
    rig_in(&w->engine);
    assert_int_equal(
        w->engine.cuda->host_register(w->fresh, bytes, LDR_CU_REGISTER_MAPPED),
        0);
    rig_out(&w->engine);
    return w;
}

/* Its memory of the host. */
static inline void world_unmap(world_t *w)
{
    free(w->device_model);
    free(w->arena_model);
    munmap(w->arena, w->bytes);
    munmap(w->fresh, w->bytes);
    munmap(w->nowhere, 2 * PAGE_MAX);
    free(w);
}

static inline void world_free(world_t *w)
{
    rig_engine_sync(&w->engine);
    rig_in(&w->engine);
    w->engine.cuda->host_unregister(w->fresh);
    rig_out(&w->engine);
    rig_device_free(&w->engine, w->device);
    rig_engine_free(&w->engine);
    world_unmap(w);
}

/* ---- cases ---- */

/* Cuts `bytes` into parts that lie one after the other from base + *used on,
 * with gaps or none, and shuffles those that are of one size. */
static inline struct iovec *parts(world_t *w, uint8_t *base, size_t *used,
                                  size_t bytes, size_t part, size_t odd,
                                  uint32_t *count_p)
{
    struct iovec *iov = w->iov + w->iov_count;
    uint32_t count = 0;
    bool gaps = below(w, 2) == 0, mixed = below(w, 2) == 0;

    for (size_t n; bytes > 0; bytes -= n) {
        n = ldr_min64(part, bytes);
        if (gaps || odd > 0) {
            *used += odd > 0 ? odd * below(w, 20) : 16 * below(w, 4);
        }
        iov[count++] = (struct iovec){base + *used, n};
        *used += n;
    }
    *used = (*used + 15) / 16 * 16;
    for (uint32_t i = count - 1; mixed && i > 1; i--) {
        uint32_t other = (uint32_t)below(w, i);
        void *at = iov[i - 1].iov_base;

        iov[i - 1].iov_base = iov[other].iov_base;
        iov[other].iov_base = at;
    }
    w->iov_count += count;
    *count_p = count;
    return iov;
}

static inline bool is_nowhere(const world_t *w, const ldr_page_rows_t *page)
{
    return page->base >= w->nowhere && page->base < w->nowhere + 2 * PAGE_MAX;
}

static inline void add_rows(world_t *w, size_t *used, size_t bytes, size_t gap,
                            uint32_t count)
{
    w->rows[w->row_count++] = (ldr_page_rows_t){
        (uint8_t *)(uintptr_t)w->device + *used, bytes, bytes + gap, count};
    *used += (bytes + gap) * count;
}

/* The shard's pages: what parts() gives; or rows apart, and of each page what
 * is left behind the last whole one, all in any order. */
static inline void pages(world_t *w, const shape_t *shape, size_t bytes,
                         ldr_gpu_shard_t *s)
{
    ldr_page_rows_t *first = w->rows + w->row_count;
    size_t grain = shape->odd > 0 ? shape->odd : 16;
    uint32_t iov_count = w->iov_count, count = 0;

    s->pages = first;
    if (!shape->apart) {
        const struct iovec *iov =
            parts(w, (uint8_t *)(uintptr_t)w->device, &w->device_used, bytes,
                  shape->page, shape->odd, &count);

        for (uint32_t i = 0; i < count; i++) {
            w->rows[w->row_count++] = (ldr_page_rows_t){
                iov[i].iov_base, iov[i].iov_len, iov[i].iov_len, 1};
        }
        w->iov_count = iov_count;
    }
    for (size_t n; bytes > 0 && shape->apart; bytes -= n) {
        size_t row = grain * (1 + below(w, 80));

        n = ldr_min64(shape->page, bytes);
        if (n / row > 0) {
            add_rows(w, &w->device_used, row, grain * below(w, 3),
                     (uint32_t)(n / row));
        }
        if (n % row > 0) {
            add_rows(w, &w->device_used, n % row, 0, 1);
        }
    }
    w->device_used = (w->device_used + 15) / 16 * 16;
    s->page_count = (uint32_t)(w->rows + w->row_count - first);
    for (uint32_t i = s->page_count; shape->apart && i > 1; i--) {
        uint32_t other = (uint32_t)below(w, i);
        ldr_page_rows_t r = first[i - 1];

        first[i - 1] = first[other];
        first[other] = r;
    }
}

/* One shard more; false: there is no room. */
static inline bool add_shard(world_t *w, const shape_t *shape, size_t bytes,
                             bool load)
{
    ldr_gpu_shard_t *s = &w->shards[w->shard_count];
    size_t count = bytes / shape->page + 1, hosts = bytes / shape->part + 1;
    size_t gap = ldr_max64(64, 20 * shape->odd);
    size_t apart = shape->apart ? 2 : 0; /* gaps are at most two rows each */

    if (w->shard_count == SHARDS || w->row_count + 2 * count > IOVS ||
        w->iov_count + count + hosts > IOVS ||
        w->device_used + bytes * (1 + apart) + gap * count > w->bytes ||
        w->arena_used + bytes + gap * hosts > w->bytes) {
        return false;
    }
    pages(w, shape, bytes, s);
    s->host = parts(w, w->arena, &w->arena_used, bytes, shape->part, shape->odd,
                    &s->host_count);
    s->crc = 0x55;
    ldr_page_rows_t *page = w->rows + (s->pages - w->rows);
    for (uint32_t i = 0; load && shape->holes && i < s->page_count; i++) {
        if (below(w, 3) == 0 && page[i].count == 1) {
            page[i].base = w->nowhere + 16 * below(w, PAGE_MAX / 16);
        }
    }
    w->shard_count++;
    return true;
}

/* What the pages hold before the copy: on the device once the engine's event
 * came, in the model at once. */
static inline void set_pages(world_t *w, bool load, bool after)
{
    rig_engine_t *e = &w->engine;
    uint8_t *seen = si.standin_see(w->device, w->bytes);

    if (!after) {
        fill(w, w->device_model, w->device_used);
        memcpy(seen, w->device_model, w->device_used);
        return;
    }
    rig_in(e);
    if (below(w, 2) == 0) { /* an older record, that is not meant */
        e->cuda->event_record(e->event, e->stream);
    }
    if (load) { /* blocks are zeroed */
        memset(w->device_model, 0, w->device_used);
        memset(seen, 0x77, w->device_used);
        e->cuda->set32(w->device, 0, w->device_used / 4, e->stream);
    } else { /* and filled */
        fill(w, w->fresh, w->device_used);
        memcpy(w->device_model, w->fresh, w->device_used);
        memset(seen, 0x77, w->device_used);
        e->cuda->to_device(w->device, w->fresh, w->device_used, e->stream);
    }
    e->cuda->event_record(e->event, e->stream);
    rig_out(e);
}

/* The model's side of a copy: pages to data, or data to pages. */
static inline size_t model_pages(world_t *w, const ldr_gpu_shard_t *s,
                                 uint8_t *data, bool load)
{
    size_t at = 0;

    for (uint32_t k = 0; k < s->page_count; k++) {
        const ldr_page_rows_t *r = &s->pages[k];
        uint8_t *row = w->device_model + ((uintptr_t)r->base - w->device);

        for (uint32_t i = 0; i < r->count; i++, row += r->stride) {
            if (!load) {
                memcpy(data + at, row, r->bytes);
            } else if (!is_nowhere(w, r)) {
                memcpy(row, data + at, r->bytes);
            }
            at += r->bytes;
        }
    }
    return at;
}

/* The model makes the copy. */
static inline void model_move(world_t *w, bool load)
{
    uint8_t *data = malloc(w->bytes);
    for (uint32_t i = 0; i < w->shard_count; i++) {
        const ldr_gpu_shard_t *s = &w->shards[i];
        size_t at = load ? 0 : model_pages(w, s, data, false), bytes = 0;

        for (uint32_t k = 0; k < s->host_count; k++) {
            const struct iovec *v = &s->host[k];

            if (load) {
                memcpy(data + bytes, v->iov_base, v->iov_len);
            } else {
                memcpy(w->arena_model + ((uint8_t *)v->iov_base - w->arena),
                       data + bytes, v->iov_len);
            }
            bytes += v->iov_len;
        }
        at = load ? model_pages(w, s, data, true) : at;
        assert_int_equal(at, bytes);
        w->crc[i] = ldr_crc32c(0, data, bytes);
    }
    free(data);
}

static inline void make_case(world_t *w, const shape_t *shape, bool load)
{
    size_t left = shape->bytes;

    w->shard_count = w->iov_count = w->row_count = 0;
    w->device_used = 16 * below(w, 10);
    w->arena_used = 16 * below(w, 10);
    while (left > 0) {
        size_t n = below(w, 3) == 0 ? left : 1 + below(w, left);

        left -= n;
        size_t grain = shape->odd > 0 ? shape->odd : 16;
        n = ldr_max64(grain, n / grain * grain);
        if (!add_shard(w, shape, n, load)) {
            break;
        }
    }
    assert_true(w->shard_count > 0);
    w->device_used += 64;
    w->arena_used += 64;
    fill(w, w->arena, w->arena_used);
    memcpy(w->arena_model, w->arena, w->arena_used);
    set_pages(w, load, shape->after);
    model_move(w, load);
}

static inline ldr_gpu_copy_t copy_of(world_t *w, const shape_t *shape,
                                     bool load)
{
    return (ldr_gpu_copy_t){
        .load = load,
        .shards = w->shards,
        .count = w->shard_count,
        .nowhere = load ? w->nowhere : NULL,
        .nowhere_bytes = load ? 2 * PAGE_MAX : 0,
        .after = shape->after ? w->engine.event : NULL,
        .deadline_ns = UINT64_MAX,
    };
}

/* Nothing of a copy is under way, whatever came of it. */
static inline void check_quiet(world_t *w)
{
    assert_int_equal(si.standin_touching((uintptr_t)w->arena, w->bytes), 0);
    assert_int_equal(si.standin_touching(w->device, w->bytes), 0);
    assert_int_equal(si.standin_depth(), 0);
    assert_no_errors();
}

/* All is as the model has it. */
static inline void check_case(world_t *w)
{
    for (uint32_t i = 0; i < w->shard_count; i++) {
        assert_int_equal(w->shards[i].crc, w->crc[i]);
    }
    assert_int_equal(memcmp(si.standin_see(w->device, w->bytes),
                            w->device_model, w->device_used),
                     0);
    assert_int_equal(memcmp(w->arena, w->arena_model, w->arena_used), 0);
}

/* Runs random cases, each with a seed of its own, with the kernel or without;
 * done, if any, looks at the GPU behind them. All that was taken is given
 * back. */
static inline void run_cases(uint64_t seed, bool kernel, uint64_t cases,
                             void (*one)(world_t *w),
                             void (*done)(larder_gpu_t *gpu, bool kernel,
                                          uint64_t cases))
{
    standin_counts_t before, after;
    larder_gpu_t *gpu = NULL;

    si.nvrtc_standin_fail(kernel ? NVRTC_NONE : NVRTC_COMPILE);
    si.standin_counts(&before);
    assert_gpu(rig_gpu_open(&gpu), LARDER_OK);
    assert_int_equal(rig_said[0] != 0, !kernel);
    world_t *w = world_make(gpu, (size_t)24 << 20, seed);
    for (uint64_t i = 0; i < cases; i++) {
        si.standin_seed(seed + i);
        one(w);
    }
    if (done != NULL) {
        done(gpu, kernel, cases);
    }
    world_free(w);
    larder_gpu_close(&gpu);
    si.standin_counts(&after);
    rig_assert_same(&before, &after);
    /* Only the kernel's tables come from memory that is not registered. */
    assert_int_equal(after.pageable - before.pageable, kernel);
    si.nvrtc_standin_fail(NVRTC_NONE);
}
