/*
 * The copy engine's part of a piece. Its copies are handed to the driver one by
 * one; or all in one call, where the driver has one for that and it was faster
 * when the GPU was opened (tune.c).
 */
#include "gpu/gpu_int.h"

void ldr_gpu_parts_add(ldr_gpu_copier_t *copier, ldr_cu_ptr_t device,
                       const void *host, size_t bytes)
{
    ldr_gpu_parts_t *p = &copier->parts;

    p->device[p->count] = device;
    p->host[p->count] = (uintptr_t)host;
    p->bytes[p->count] = bytes;
    p->count++;
}

ldr_cu_t ldr_gpu_batch(const ldr_cuda_t *cuda, ldr_gpu_parts_t *parts,
                       bool load, ldr_cu_stream_t s)
{
    ldr_cu_attributes_t all = {.order = LDR_CU_ORDER_STREAM,
                               .flags = LDR_CU_BESIDE_COMPUTE};
    size_t first = 0, failed;

    return cuda->batch(load ? parts->device : parts->host,
                       load ? parts->host : parts->device, parts->bytes,
                       parts->count, &all, &first, 1, &failed, s);
}

ldr_cu_t ldr_gpu_parts_queue(larder_gpu_t *gpu, ldr_gpu_copier_t *copier,
                             bool load)
{
    const ldr_cuda_t *cuda = gpu->cuda;
    ldr_gpu_parts_t *p = &copier->parts;
    ldr_cu_t result = 0;

    if (gpu->batch && p->count > 1) {
        return ldr_gpu_batch(cuda, p, load, copier->copy);
    }
    for (uint32_t i = 0; i < p->count && result == 0; i++) {
        void *host = (void *)(uintptr_t)p->host[i];

        result =
            load
                ? cuda->to_device(p->device[i], host, p->bytes[i], copier->copy)
                : cuda->to_host(host, p->device[i], p->bytes[i], copier->copy);
    }
    return result;
}

ldr_cu_t ldr_gpu_engine(larder_gpu_t *gpu, ldr_gpu_copier_t *copier,
                        const ldr_gpu_slot_t *slot, ldr_gpu_way_t way,
                        bool load)
{
    ldr_gpu_parts_begin(copier);
    if (way == LDR_GPU_BOUNCE) {
        ldr_gpu_parts_add(copier, slot->buffer, slot->bounce, slot->bytes);
    }
    for (uint32_t i = 0; way == LDR_GPU_PLAIN && i < slot->leaf_count; i++) {
        const ldr_gpu_leaf_t *l = &slot->leaves[i];

        ldr_gpu_parts_add(copier, l->page, slot->bounce + l->at, l->bytes);
    }
    for (uint32_t i = 0; way == LDR_GPU_STAGED && i < slot->run_count; i++) {
        const ldr_gpu_run_t *r = &slot->runs[i];

        ldr_gpu_parts_add(copier, slot->buffer + r->at, r->host, r->bytes);
    }
    return ldr_gpu_parts_queue(gpu, copier, load);
}
