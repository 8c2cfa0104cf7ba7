/* Lanes and lists: what a copy needs, made once and used again. */
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

static larder_status_t lane_make(larder_gpu_t *gpu, ldr_gpu_lane_t *lane)
{
    const ldr_cuda_t *cuda = gpu->cuda;
    size_t sums = LDR_GPU_SHARDS_MAX * sizeof(uint32_t);
    larder_status_t st = ldr_cuda_status(
        cuda,
        cuda->stream_create(&lane->copy, LDR_CU_STREAM_OWN, gpu->priority),
        "cuStreamCreate");

    if (st == LARDER_OK) {
        st = ldr_cuda_status(cuda,
                             cuda->stream_create(&lane->kernel,
                                                 LDR_CU_STREAM_OWN,
                                                 gpu->priority),
                             "cuStreamCreate");
    }
    if (st == LARDER_OK) {
        st =
            ldr_cuda_status(cuda, cuda->alloc(&lane->sums, sums), "cuMemAlloc");
    }
    if (st == LARDER_OK) {
        st = host_alloc(gpu, sums, (void **)&lane->sums_here, NULL);
    }
    for (unsigned i = 0; i < LDR_GPU_SLOTS && st == LARDER_OK; i++) {
        st = slot_make(gpu, &lane->slot[i]);
    }
    if (st != LARDER_OK) {
        ldr_gpu_lane_free(gpu, lane);
    }
    lane->made = st == LARDER_OK;
    return st;
}

void ldr_gpu_lane_free(larder_gpu_t *gpu, ldr_gpu_lane_t *lane)
{
    const ldr_cuda_t *cuda = gpu->cuda;

    for (unsigned i = 0; i < LDR_GPU_SLOTS; i++) {
        ldr_gpu_slot_t *slot = &lane->slot[i];

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
    if (lane->sums != 0) {
        cuda->free(lane->sums);
    }
    if (lane->sums_here != NULL) {
        cuda->host_free(lane->sums_here);
    }
    if (lane->copy != NULL) {
        cuda->stream_destroy(lane->copy);
    }
    if (lane->kernel != NULL) {
        cuda->stream_destroy(lane->kernel);
    }
    lane->sums = 0;
    lane->sums_here = NULL;
    lane->copy = lane->kernel = NULL;
    lane->made = false;
}

/* One that nobody has; NULL: all are taken, or there is no memory. With
 * gpu->lock. */
static ldr_gpu_lane_t *find(larder_gpu_t *gpu, bool *full_p)
{
    *full_p = true;
    for (unsigned i = 0; i < LDR_GPU_LANES; i++) {
        ldr_gpu_lane_t **lane = &gpu->lanes[i];

        if (*lane == NULL) {
            *full_p = false;
            *lane = ldr_alloc(sizeof(**lane));
        }
        if (*lane != NULL && !(*lane)->taken) {
            (*lane)->taken = true;
            return *lane;
        }
    }
    return NULL;
}

larder_status_t ldr_gpu_lane_take(larder_gpu_t *gpu, uint64_t deadline_ns,
                                  ldr_gpu_lane_t **lane_p)
{
    bool full, in_time = true;
    ldr_gpu_lane_t *lane;

    ldr_mutex_lock(&gpu->lock);
    while ((lane = find(gpu, &full)) == NULL && full && in_time) {
        in_time = ldr_cond_wait_until(&gpu->freed, &gpu->lock, deadline_ns);
    }
    ldr_mutex_unlock(&gpu->lock);
    if (lane == NULL) {
        return full ? ldr_fail(LARDER_E_DEADLINE, "all lanes of the GPU are "
                                                  "taken")
                    : ldr_fail(LARDER_E_NO_MEMORY,
                               "not enough memory for a lane");
    }
    larder_status_t st = lane->made ? LARDER_OK : lane_make(gpu, lane);
    if (st != LARDER_OK) {
        ldr_gpu_lane_give(gpu, lane);
        return st;
    }
    *lane_p = lane;
    return LARDER_OK;
}

void ldr_gpu_lane_give(larder_gpu_t *gpu, ldr_gpu_lane_t *lane)
{
    ldr_mutex_lock(&gpu->lock);
    lane->taken = false;
    pthread_cond_signal(&gpu->freed);
    ldr_mutex_unlock(&gpu->lock);
}

ldr_cu_t ldr_gpu_lane_sync(larder_gpu_t *gpu, ldr_gpu_lane_t *lane)
{
    ldr_cu_t copy = gpu->cuda->stream_sync(lane->copy);
    ldr_cu_t kern = gpu->cuda->stream_sync(lane->kernel);

    for (unsigned i = 0; i < LDR_GPU_SLOTS; i++) {
        lane->slot[i].busy = false;
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
