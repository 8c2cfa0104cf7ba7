/* Loads layer by layer: what the engine's thread and the load's share. */
#include "gpu/layers.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/thread.h"
#include "gpu/gpu_int.h"
#include "layout/layout.h"

/* ---- making ---- */

static void set_ends(larder_layers_t *l, const larder_layout_t *layout)
{
    const ldr_group_t *g = &layout->group[0];
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < l->layer_count; i++) {
        bytes += layout->layers[g->layer + i].bytes * g->chunk_blocks;
        l->ends[(uint64_t)i * l->part_count / l->layer_count] = bytes;
    }
}

static larder_status_t make_events(larder_layers_t *l)
{
    const ldr_cuda_t *cuda = l->gpu->cuda;
    larder_status_t st = ldr_gpu_enter(l->gpu);

    if (st != LARDER_OK) {
        return st;
    }
    for (uint32_t i = 0; i < l->part_count && st == LARDER_OK; i++) {
        st = ldr_cuda_status(
            cuda, cuda->event_create(&l->event[i], LDR_CU_EVENT_NO_TIMING),
            "cuEventCreate");
    }
    ldr_gpu_leave(l->gpu);
    return st;
}

/* Frees it, if it cannot be made. */
static larder_status_t make(larder_layers_t *l)
{
    ldr_mutex_init(&l->lock);
    if (!ldr_cond_init(&l->changed)) {
        pthread_mutex_destroy(&l->lock);
        ldr_free(l);
        return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for layers");
    }
    larder_status_t st = make_events(l);
    if (st != LARDER_OK) {
        larder_layers_destroy(&l);
    }
    return st;
}

larder_status_t larder_layers_create(const larder_layout_t *layout,
                                     uint32_t parts, larder_layers_t **layers_p)
{
    if (layout == NULL || layers_p == NULL || parts == 0) {
        return ldr_fail(LARDER_E_INVALID, "layout, parts or layers_p");
    }
    if (layout->gpu == NULL || layout->group_count != 1 || !layout->all ||
        layout->group[0].shard_pages == 0) {
        return ldr_fail(LARDER_E_UNSUPPORTED,
                        "layer by layer only one group with rule all is "
                        "loaded, in GPU memory");
    }
    larder_layers_t *l = ldr_alloc(sizeof(*l));
    if (l == NULL) {
        return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for layers");
    }
    l->gpu = layout->gpu;
    l->layer_count = layout->group[0].layer_end - layout->group[0].layer;
    l->part_count = parts < l->layer_count ? parts : l->layer_count;
    if (l->part_count > LDR_LAYER_PARTS_MAX) {
        l->part_count = LDR_LAYER_PARTS_MAX;
    }
    l->ended = true;
    set_ends(l, layout);
    larder_status_t st = make(l);
    if (st == LARDER_OK) {
        *layers_p = l;
    }
    return st;
}

void larder_layers_destroy(larder_layers_t **layers_p)
{
    larder_layers_t *l = layers_p != NULL ? *layers_p : NULL;

    if (l == NULL) {
        return;
    }
    if (ldr_gpu_enter(l->gpu) == LARDER_OK) {
        for (uint32_t i = 0; i < l->part_count; i++) {
            if (l->event[i] != NULL) {
                l->gpu->cuda->event_destroy(l->event[i]);
            }
        }
        ldr_gpu_leave(l->gpu);
    }
    pthread_cond_destroy(&l->changed);
    pthread_mutex_destroy(&l->lock);
    ldr_free(l);
    *layers_p = NULL;
}

/* ---- the load's thread ---- */

ldr_cu_t ldr_layers_mark(larder_layers_t *l, ldr_cu_stream_t stream)
{
    ldr_cu_t result = l->gpu->cuda->event_record(l->event[l->queued], stream);

    if (result == 0) {
        ldr_mutex_lock(&l->lock);
        l->queued++;
        pthread_cond_broadcast(&l->changed);
        ldr_mutex_unlock(&l->lock);
    }
    return result;
}

void larder_layers_end(larder_layers_t *l, larder_status_t st)
{
    ldr_mutex_lock(&l->lock);
    l->status = st;
    l->ended = true;
    pthread_cond_broadcast(&l->changed);
    ldr_mutex_unlock(&l->lock);
}

/* ---- the engine's ---- */

void larder_layers_begin(larder_layers_t *l)
{
    ldr_mutex_lock(&l->lock);
    l->queued = 0;
    l->ended = false;
    l->status = LARDER_OK;
    ldr_mutex_unlock(&l->lock);
}

larder_status_t larder_layers_wait(larder_layers_t *l, uint32_t layer,
                                   void *stream, uint32_t timeout_ms)
{
    uint64_t end_ns =
        timeout_ms == LARDER_FOREVER
            ? UINT64_MAX
            : ldr_now_ns(&ldr_clock_real) + (uint64_t)timeout_ms * 1000000;
    bool in_time = true;

    if (l == NULL || layer >= l->layer_count) {
        return ldr_fail(LARDER_E_INVALID, "layers is NULL, or has no layer %u",
                        layer);
    }
    uint32_t part =
        (uint32_t)((uint64_t)layer * l->part_count / l->layer_count);
    ldr_mutex_lock(&l->lock);
    while (!l->ended && l->queued <= part && in_time) {
        in_time = ldr_cond_wait_until(&l->changed, &l->lock, end_ns);
    }
    bool ended = l->ended, queued = l->queued > part;
    larder_status_t st = l->status;
    ldr_mutex_unlock(&l->lock);
    if (ended) {
        return st == LARDER_OK
                   ? st
                   : ldr_fail(st, "the load failed before layer %u", layer);
    }
    if (!queued) {
        return ldr_fail(LARDER_E_DEADLINE, "layer %u is not there in time",
                        layer);
    }
    st = ldr_gpu_enter(l->gpu);
    if (st == LARDER_OK) {
        st = ldr_cuda_status(
            l->gpu->cuda, l->gpu->cuda->stream_wait(stream, l->event[part], 0),
            "cuStreamWaitEvent");
        ldr_gpu_leave(l->gpu);
    }
    return st;
}
