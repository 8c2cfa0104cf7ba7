/*
 * Copiers and lists: what a copy needs, made once and used again.
 *
 * gpu->lock guards who has a copier (`taken`) and the lists that nobody has.
 * All else of a copier belongs to its owner, from take to give. A copier is
 * given back only when nothing of it is under way on the device.
 */
#include "base/clock.h"
#include "base/mem.h"
#include "base/thread.h"
#include "gpu/gpu_int.h"

/* Registered memory of our own, and its address on the device. */
static larder_status_t host_alloc(larder_gpu_t *gpu, size_t bytes, void **p,
                                  ldr_cu_ptr_t *there_p)
{
    const ldr_cuda_t *cuda = gpu->cuda;
    larder_status_t st = ldr_cuda_status(
        cuda,
        cuda->host_alloc(p, bytes,
                         LDR_CU_REGISTER_PORTABLE | LDR_CU_REGISTER_MAPPED),
        "cuMemHostAlloc");

    if (st == LARDER_OK && there_p != NULL) {
        st = ldr_cuda_status(cuda, cuda->host_device(there_p, *p, 0),
                             "cuMemHostGetDevicePointer");
    }
    return st;
}

static larder_status_t slot_make(larder_gpu_t *gpu, ldr_gpu_slot_t *slot)
{
    const ldr_cuda_t *cuda = gpu->cuda;
    unsigned flags = LDR_CU_EVENT_NO_TIMING;
    larder_status_t st = LARDER_OK;

    if (gpu->kernel != NULL) {
        st = ldr_cuda_status(cuda, cuda->alloc(&slot->buffer, LDR_GPU_PIECE),
                             "cuMemAlloc");
    }
    if (st == LARDER_OK) {
        st = host_alloc(gpu, LDR_GPU_UNITS * sizeof(*slot->units),
                        (void **)&slot->units, &slot->units_there);
    }
    if (st == LARDER_OK) {
        st = ldr_cuda_status(cuda, cuda->event_create(&slot->half, flags),
                             "cuEventCreate");
    }
    if (st == LARDER_OK) {
        st = ldr_cuda_status(cuda, cuda->event_create(&slot->done, flags),
                             "cuEventCreate");
    }
    return st;
}

larder_status_t ldr_gpu_slot_bounce(larder_gpu_t *gpu, ldr_gpu_slot_t *slot)
{
    return slot->bounce != NULL
               ? LARDER_OK
               : host_alloc(gpu, LDR_GPU_PIECE, (void **)&slot->bounce, NULL);
}

static larder_status_t copier_make(larder_gpu_t *gpu, ldr_gpu_copier_t *copier)
{
    const ldr_cuda_t *cuda = gpu->cuda;
    size_t sums = LDR_GPU_SHARDS_MAX * sizeof(uint32_t);
    larder_status_t st = ldr_cuda_status(
        cuda,
        cuda->stream_create(&copier->copy, LDR_CU_STREAM_OWN, gpu->priority),
        "cuStreamCreate");

    if (st == LARDER_OK) {
        st = ldr_cuda_status(cuda,
                             cuda->stream_create(&copier->kernel,
                                                 LDR_CU_STREAM_OWN,
                                                 gpu->priority),
                             "cuStreamCreate");
    }
    if (st == LARDER_OK) {
        st = ldr_cuda_status(cuda, cuda->alloc(&copier->sums, sums),
                             "cuMemAlloc");
    }
    if (st == LARDER_OK) {
        st = host_alloc(gpu, sums, (void **)&copier->sums_here, NULL);
    }
    for (unsigned i = 0; i < LDR_GPU_SLOTS && st == LARDER_OK; i++) {
        st = slot_make(gpu, &copier->slot[i]);
    }
    if (st != LARDER_OK) {
        ldr_gpu_copier_free(gpu, copier);
    }
    copier->made = st == LARDER_OK;
    return st;
}

void ldr_gpu_copier_free(larder_gpu_t *gpu, ldr_gpu_copier_t *copier)
{
    const ldr_cuda_t *cuda = gpu->cuda;

    for (unsigned i = 0; i < LDR_GPU_SLOTS; i++) {
        ldr_gpu_slot_t *slot = &copier->slot[i];

        if (slot->buffer != 0) {
            cuda->free(slot->buffer);
        }
        if (slot->bounce != NULL) {
            cuda->host_free(slot->bounce);
        }
        if (slot->units != NULL) {
            cuda->host_free(slot->units);
        }
        if (slot->half != NULL) {
            cuda->event_destroy(slot->half);
        }
        if (slot->done != NULL) {
            cuda->event_destroy(slot->done);
        }
        slot->buffer = 0;
        slot->bounce = NULL;
        slot->units = NULL;
        slot->half = slot->done = NULL;
    }
    if (copier->sums != 0) {
        cuda->free(copier->sums);
    }
    if (copier->sums_here != NULL) {
        cuda->host_free(copier->sums_here);
    }
    if (copier->copy != NULL) {
        cuda->stream_destroy(copier->copy);
    }
    if (copier->kernel != NULL) {
        cuda->stream_destroy(copier->kernel);
    }
    copier->sums = 0;
    copier->sums_here = NULL;
    copier->copy = copier->kernel = NULL;
    copier->made = false;
}

/* One that nobody has; NULL: all are taken, or there is no memory. With
 * gpu->lock. */
static ldr_gpu_copier_t *copier_find(larder_gpu_t *gpu, bool *full_p)
{
    *full_p = true;
    for (unsigned i = 0; i < LDR_GPU_COPIERS; i++) {
        ldr_gpu_copier_t **copier = &gpu->copiers[i];

        if (*copier == NULL) {
            *full_p = false;
            *copier = ldr_alloc(sizeof(**copier));
        }
        if (*copier != NULL && !(*copier)->taken) {
            (*copier)->taken = true;
            return *copier;
        }
    }
    return NULL;
}

larder_status_t ldr_gpu_copier_take(larder_gpu_t *gpu, uint64_t deadline_ns,
                                    ldr_gpu_copier_t **copier_p)
{
    bool full, in_time = true;
    ldr_gpu_copier_t *copier;

    ldr_mutex_lock(&gpu->lock);
    while ((copier = copier_find(gpu, &full)) == NULL && full && in_time) {
        in_time = ldr_cond_wait_until(&gpu->freed, &gpu->lock, deadline_ns);
    }
    ldr_mutex_unlock(&gpu->lock);
    if (copier == NULL) {
        return full ? ldr_fail(LARDER_E_DEADLINE, "all copiers of the GPU are "
                                                  "taken")
                    : ldr_fail(LARDER_E_NO_MEMORY,
                               "not enough memory for a copier");
    }
    larder_status_t st = copier->made ? LARDER_OK : copier_make(gpu, copier);
    if (st != LARDER_OK) {
        ldr_gpu_copier_give(gpu, copier);
        return st;
    }
    *copier_p = copier;
    return LARDER_OK;
}

void ldr_gpu_copier_give(larder_gpu_t *gpu, ldr_gpu_copier_t *copier)
{
    ldr_mutex_lock(&gpu->lock);
    copier->taken = false;
    pthread_cond_signal(&gpu->freed);
    ldr_mutex_unlock(&gpu->lock);
}

ldr_cu_t ldr_gpu_copier_sync(larder_gpu_t *gpu, ldr_gpu_copier_t *copier)
{
    ldr_cu_t copy = gpu->cuda->stream_sync(copier->copy);
    ldr_cu_t kern = gpu->cuda->stream_sync(copier->kernel);

    for (unsigned i = 0; i < LDR_GPU_SLOTS; i++) {
        copier->slot[i].busy = false;
    }
    return copy != 0 ? copy : kern;
}

/* ---- lists ---- */

ldr_gpu_list_t ldr_gpu_list_take(larder_gpu_t *gpu, uint32_t capacity)
{
    ldr_gpu_list_t found = {NULL, 0};

    ldr_mutex_lock(&gpu->lock);
    for (unsigned i = 0; i < LDR_GPU_LISTS && found.rows == NULL; i++) {
        if (gpu->lists[i].rows != NULL && gpu->lists[i].capacity >= capacity) {
            found = gpu->lists[i];
            gpu->lists[i] = (ldr_gpu_list_t){NULL, 0};
        }
    }
    ldr_mutex_unlock(&gpu->lock);
    if (found.rows == NULL) {
        found = (ldr_gpu_list_t){ldr_alloc(capacity * sizeof(*found.rows)),
                                 capacity};
    }
    return found;
}

/* Kept in the place of the smallest. */
void ldr_gpu_list_give(larder_gpu_t *gpu, ldr_gpu_list_t list)
{
    unsigned least = 0;

    ldr_mutex_lock(&gpu->lock);
    for (unsigned i = 1; i < LDR_GPU_LISTS; i++) {
        least = gpu->lists[i].capacity < gpu->lists[least].capacity ? i : least;
    }
    if (list.rows != NULL && gpu->lists[least].capacity < list.capacity) {
        ldr_gpu_list_t other = gpu->lists[least];

        gpu->lists[least] = list;
        list = other;
    }
    ldr_mutex_unlock(&gpu->lock);
    ldr_free(list.rows);
}
