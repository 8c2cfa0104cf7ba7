/*
 * Opening a GPU, and registering memory with it.
 *
 * range_lock guards the registered ranges: copies read them, registering and
 * unregistering write. Ranges are sorted by address and do not overlap. Memory
 * may be unregistered only when no copy uses it, which is the caller's to know.
 */
#include "gpu/gpu.h"

#include <string.h>
#include <sys/mman.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/grow.h"
#include "base/mem.h"
#include "base/thread.h"
#include "gpu/gpu_int.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

#define SLICE_BYTES ((size_t)256 << 20)
#define BLOCKS_MAX 32u /* of the kernel, so that the engine's have the rest */

/* ---- the context ---- */

static __thread int capture_mode; /* what it was before */

larder_status_t ldr_gpu_enter(larder_gpu_t *gpu)
{
    larder_status_t st =
        ldr_cuda_status(gpu->cuda, gpu->cuda->push(gpu->context), "cuCtxPush");

    if (st == LARDER_OK) {
        /* Another thread may be capturing a graph: that is not about us. */
        capture_mode = LDR_CU_CAPTURE_RELAXED;
        if (gpu->cuda->capture_mode(&capture_mode) != 0) {
            capture_mode = -1; /* it is as it was */
        }
    }
    return st;
}

void ldr_gpu_leave(larder_gpu_t *gpu)
{
    ldr_cu_context_t was;

    if (capture_mode >= 0) {
        gpu->cuda->capture_mode(&capture_mode);
    }
    gpu->cuda->pop(&was);
}

/* ---- open and close ---- */

static larder_status_t make_kernel(larder_gpu_t *gpu, const char *nvrtc)
{
    const ldr_cuda_t *cuda = gpu->cuda;
    int major = 0, minor = 0, processors = 0;
    uint32_t *tables = ldr_alloc(LDR_GPU_TABLES * sizeof(*tables));
    void *image = NULL;
    size_t bytes = 0;

    gpu->powers = ldr_alloc(sizeof(*gpu->powers));
    if (tables == NULL || gpu->powers == NULL) {
        ldr_free(tables);
        return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for a GPU");
    }
    cuda->attribute(&major, LDR_CU_CAPABILITY_MAJOR, gpu->device);
    cuda->attribute(&minor, LDR_CU_CAPABILITY_MINOR, gpu->device);
    cuda->attribute(&processors, LDR_CU_MULTIPROCESSORS, gpu->device);
    gpu->grid =
        (unsigned)ldr_max64(1, ldr_min64(BLOCKS_MAX, (unsigned)processors / 4));
    ldr_gpu_tables(tables);
    ldr_gpu_powers(gpu->powers);
    larder_status_t st = ldr_nvrtc_compile(ldr_gpu_source, nvrtc,
                                           major * 10 + minor, &image, &bytes);
    if (st == LARDER_OK) {
        st = ldr_cuda_status(cuda, cuda->module_load(&gpu->module, image),
                             "cuModuleLoadData");
    }
    size_t size = LDR_GPU_TABLES * sizeof(*tables);
    if (st == LARDER_OK) {
        st = ldr_cuda_status(cuda, cuda->alloc(&gpu->tables, size),
                             "cuMemAlloc");
    }
    ldr_cu_stream_t stream = NULL;
    if (st == LARDER_OK) {
        st = ldr_cuda_status(
            cuda,
            cuda->stream_create(&stream, LDR_CU_STREAM_OWN, gpu->priority),
            "cuStreamCreate");
    }
    if (st == LARDER_OK) {
        ldr_cu_t result = cuda->to_device(gpu->tables, tables, size, stream);
        ldr_cu_t over = cuda->stream_sync(stream); /* even if it failed */

        result = result != 0 ? result : over;
        cuda->stream_destroy(stream);
        st = ldr_cuda_status(cuda, result, "cuMemcpyHtoD");
    }
    if (st == LARDER_OK) {
        st = ldr_cuda_status(
            cuda, cuda->function(&gpu->kernel, gpu->module, LDR_GPU_ENTRY),
            "cuModuleGetFunction");
    }
    ldr_free(image);
    ldr_free(tables);
    return st;
}

static void no_kernel(larder_gpu_t *gpu)
{
    gpu->kernel = NULL;
    ldr_warn(&gpu->log, "GPU %d: copies go page by page, and slower: %s",
             gpu->device, ldr_fail_text());
    ldr_fail_clear();
}

static larder_status_t gpu_make(larder_gpu_t *gpu, const char *nvrtc)
{
    const ldr_cuda_t *cuda = gpu->cuda;
    int device, greatest;
    larder_status_t st = ldr_cuda_status(
        cuda, cuda->device_get(&device, gpu->device), "cuDeviceGet");

    if (st == LARDER_OK) {
        gpu->device = device;
        st = ldr_cuda_status(cuda, cuda->retain(&gpu->context, device),
                             "cuDevicePrimaryCtxRetain");
    }
    if (st == LARDER_OK) {
        st = ldr_gpu_enter(gpu);
    }
    if (st != LARDER_OK) {
        return st;
    }
    cuda->priorities(&gpu->priority, &greatest);
    st = make_kernel(gpu, nvrtc);
    if (st != LARDER_OK) {
        no_kernel(gpu);
    }
    if (ldr_gpu_tune(gpu) != LARDER_OK && gpu->kernel != NULL) {
        no_kernel(gpu);
    }
    ldr_fail_clear();
    ldr_gpu_leave(gpu);
    return gpu->powers != NULL
               ? LARDER_OK
               : ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for a GPU");
}

larder_status_t larder_gpu_open(const larder_gpu_params_t *params,
                                larder_gpu_t **gpu_p)
{
    larder_gpu_params_t p = {0};

    ldr_fail_clear();
    if (gpu_p == NULL) {
        return ldr_fail(LARDER_E_INVALID, "gpu_p is NULL");
    }
    uint64_t mask = params != NULL ? params->field_mask : 0;
    larder_status_t st = ldr_mask_check(mask, LARDER_GPU_LOG);
    if (st != LARDER_OK) {
        return st;
    }
    p.device = (mask & LARDER_GPU_DEVICE) != 0 ? params->device : 0;
    p.nvrtc = (mask & LARDER_GPU_NVRTC) != 0 ? params->nvrtc : NULL;
    if ((mask & LARDER_GPU_LOG) != 0) {
        p.log = params->log;
        p.log_arg = params->log_arg;
    }
    const ldr_cuda_t *cuda = ldr_cuda();
    if (cuda == NULL) {
        return LARDER_E_UNSUPPORTED;
    }
    larder_gpu_t *gpu = ldr_alloc(sizeof(*gpu));
    if (gpu == NULL) {
        return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for a GPU");
    }
    gpu->cuda = cuda;
    gpu->device = p.device;
    gpu->log = (ldr_log_t){p.log, p.log_arg};
    ldr_mutex_init(&gpu->lock);
    ldr_cond_init(&gpu->freed);
    pthread_rwlock_init(&gpu->range_lock, NULL);
    st = gpu_make(gpu, p.nvrtc);
    if (st != LARDER_OK) {
        larder_gpu_close(&gpu);
        return st;
    }
    *gpu_p = gpu;
    return LARDER_OK;
}

void larder_gpu_close(larder_gpu_t **gpu_p)
{
    if (gpu_p == NULL || *gpu_p == NULL) {
        return;
    }
    larder_gpu_t *gpu = *gpu_p;

    *gpu_p = NULL;
    if (gpu->context != NULL && ldr_gpu_enter(gpu) == LARDER_OK) {
        for (unsigned i = 0; i < LDR_GPU_COPIERS; i++) {
            if (gpu->copiers[i] != NULL) {
                ldr_gpu_copier_free(gpu, gpu->copiers[i]);
            }
        }
        if (gpu->tables != 0) {
            gpu->cuda->free(gpu->tables);
        }
        if (gpu->module != NULL) {
            gpu->cuda->module_unload(gpu->module);
        }
        ldr_gpu_leave(gpu);
    }
    if (gpu->context != NULL) {
        gpu->cuda->release(gpu->device);
    }
    pthread_mutex_destroy(&gpu->lock);
    pthread_cond_destroy(&gpu->freed);
    pthread_rwlock_destroy(&gpu->range_lock);
    for (unsigned i = 0; i < LDR_GPU_COPIERS; i++) {
        ldr_free(gpu->copiers[i]);
    }
    for (unsigned i = 0; i < LDR_GPU_LISTS; i++) {
        ldr_free(gpu->lists[i].rows);
    }
    ldr_free(gpu->ranges);
    ldr_free(gpu->powers);
    ldr_free(gpu);
}

larder_status_t larder_gpu_stats(larder_gpu_t *gpu, larder_gpu_stats_t *out)
{
    larder_status_t st = gpu != NULL
                             ? ldr_out_check(out)
                             : ldr_fail(LARDER_E_INVALID, "gpu is NULL");
    if (st != LARDER_OK) {
        return st;
    }
    larder_gpu_stats_t all;
    const uint64_t *from = (const uint64_t *)&gpu->stats;
    uint64_t *to = (uint64_t *)&all;
    for (size_t i = 1; i < sizeof(all) / sizeof(*to); i++) {
        to[i] = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
    }
    ldr_out_fill(out, &all, sizeof(all));
    return LARDER_OK;
}

/* ---- registered memory ---- */

/* The first range that ends after this address. With range_lock. */
static uint32_t range_find(const larder_gpu_t *gpu, const uint8_t *at)
{
    uint32_t low = 0, high = gpu->range_count;

    while (low < high) {
        uint32_t middle = (low + high) / 2;
        const ldr_gpu_range_t *r = &gpu->ranges[middle];

        if (r->base + r->bytes <= at) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

size_t ldr_gpu_reach(larder_gpu_t *gpu, const uint8_t *at, size_t bytes,
                     ldr_cu_ptr_t *there_p)
{
    size_t reach = 0;

    pthread_rwlock_rdlock(&gpu->range_lock);
    uint32_t i = range_find(gpu, at);
    if (i < gpu->range_count && gpu->ranges[i].base <= at) {
        const ldr_gpu_range_t *r = &gpu->ranges[i];

        reach = ldr_min64(bytes, (size_t)(r->base + r->bytes - at));
        *there_p = r->there + (ldr_cu_ptr_t)(at - r->base);
    }
    pthread_rwlock_unlock(&gpu->range_lock);
    return reach;
}

static bool insert(larder_gpu_t *gpu, ldr_gpu_range_t range)
{
    bool ok = true;

    pthread_rwlock_wrlock(&gpu->range_lock);
    if (gpu->range_count == gpu->range_capacity) {
        uint32_t capacity =
            gpu->range_capacity == 0 ? 64 : 2 * gpu->range_capacity;
        ldr_gpu_range_t *more = ldr_alloc(capacity * sizeof(*more));

        ok = more != NULL;
        if (ok && gpu->range_count > 0) {
            memcpy(more, gpu->ranges, gpu->range_count * sizeof(*more));
        }
        if (ok) {
            ldr_free(gpu->ranges);
            gpu->ranges = more;
            gpu->range_capacity = capacity;
        }
    }
    if (ok) {
        uint32_t i = range_find(gpu, range.base);

        memmove(gpu->ranges + i + 1, gpu->ranges + i,
                (gpu->range_count - i) * sizeof(range));
        gpu->ranges[i] = range;
        gpu->range_count++;
    }
    pthread_rwlock_unlock(&gpu->range_lock);
    return ok;
}

static bool register_slice(larder_gpu_t *gpu, uint8_t *base, size_t bytes)
{
    const ldr_cuda_t *cuda = gpu->cuda;
    ldr_gpu_range_t range = {base, bytes, 0};

    /* The pages are made here, not in the driver: it has a lock that the engine
     * needs for its kernels. Huge ones where the kernel can; registered, they
     * stay as they are. What fails here fails there. */
    madvise(base, bytes, MADV_POPULATE_WRITE);
    madvise(base, bytes, MADV_COLLAPSE);
    ldr_cu_t result = cuda->host_register(
        base, bytes, LDR_CU_REGISTER_PORTABLE | LDR_CU_REGISTER_MAPPED);

    if (result == 0) {
        result = cuda->host_device(&range.there, base, 0);
        if (result != 0 || !insert(gpu, range)) {
            cuda->host_unregister(base);
            return false;
        }
        return true;
    }
    if (!__atomic_exchange_n(&gpu->logged, true, __ATOMIC_RELAXED)) {
        ldr_cuda_status(cuda, result, "cuMemHostRegister");
        ldr_warn(&gpu->log,
                 "GPU %d: %zu bytes of the node's memory cannot be registered, "
                 "and are copied twice: %s",
                 gpu->device, bytes, ldr_fail_text());
    }
    return false;
}

void ldr_gpu_register(larder_gpu_t *gpu, void *base, size_t bytes)
{
    uint64_t begin_ns = ldr_now_ns(&ldr_clock_real);
    size_t done = 0;

    if (__atomic_load_n(&gpu->broken, __ATOMIC_RELAXED) ||
        ldr_gpu_enter(gpu) != LARDER_OK) {
        return;
    }
    while (done < bytes) {
        size_t slice = ldr_min64(bytes - done, SLICE_BYTES);

        if (!register_slice(gpu, (uint8_t *)base + done, slice)) {
            break;
        }
        done += slice;
    }
    ldr_gpu_leave(gpu);
    ldr_gpu_count(&gpu->stats.registered_bytes, done);
    ldr_gpu_count(&gpu->stats.register_ns,
                  ldr_now_ns(&ldr_clock_real) - begin_ns);
}

void ldr_gpu_unregister(larder_gpu_t *gpu, void *base, size_t bytes)
{
    uint8_t *first = base, *slice = NULL;

    if (ldr_gpu_enter(gpu) != LARDER_OK) {
        return;
    }
    do {
        size_t size = 0;

        slice = NULL;
        pthread_rwlock_wrlock(&gpu->range_lock);
        uint32_t i = range_find(gpu, first);
        if (i < gpu->range_count && gpu->ranges[i].base >= first &&
            gpu->ranges[i].base < (uint8_t *)base + bytes) {
            slice = gpu->ranges[i].base;
            size = gpu->ranges[i].bytes;
            gpu->range_count--;
            memmove(gpu->ranges + i, gpu->ranges + i + 1,
                    (gpu->range_count - i) * sizeof(*gpu->ranges));
        }
        pthread_rwlock_unlock(&gpu->range_lock);
        if (slice != NULL) {
            gpu->cuda->host_unregister(slice);
            __atomic_sub_fetch(&gpu->stats.registered_bytes, size,
                               __ATOMIC_RELAXED);
            first = slice + size;
        }
    } while (slice != NULL);
    ldr_gpu_leave(gpu);
}
