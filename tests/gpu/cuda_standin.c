/*
 * A stand-in for the CUDA driver: the symbols that Larder calls, on memory of
 * the host. For tests only; standin.h says how it is controlled.
 *
 * Kept to, as the driver's documentation has it: operations of a stream are in
 * order, those of two streams are not; an event that is waited for means its
 * latest record at that time, and none is no wait; the arguments of a kernel
 * are copied at the launch, what they point to is read when it runs; host
 * memory that is not registered is read at once, and written after a wait; a
 * copy lies in one registration; a result may be about an earlier call.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/standin_int.h"

#define X(name, symbol, parameters) ldr_cu_t symbol parameters;
LDR_CUDA_MAP(X)
LDR_CUDA_NEWER_MAP(X)
#undef X

enum {
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_REGISTERED = 713,
    NOT_SUPPORTED = 801,
};

/* What a call that is to fail does before. */
typedef enum kind {
    MAKES,  /* nothing */
    QUEUES, /* its work, or not */
    ENDS,   /* its work */
} kind_t;

struct CUmod_st {
    int loaded;
};
struct CUfunc_st {
    int unused;
};

static struct CUmod_st the_module;
static struct CUfunc_st the_function;

/* ---- every call ---- */

/* Begins a call: with the lock. False: it does nothing, and *fault says why. */
static bool begin(const char *name, kind_t kind, bool in_context,
                  ldr_cu_t *fault)
{
    bool thread_only =
        strncmp(name, "cuCtx", 5) == 0 || strncmp(name, "cuThread", 8) == 0;

    pthread_mutex_lock(&standin.lock);
    uint64_t call = ++standin.counts.calls;
    standin_hook_fn fn = standin.hook;
    void *arg = standin.hook_arg;
    pthread_mutex_unlock(&standin.lock);
    if (fn != NULL) {
        fn(arg, call, name);
    }
    pthread_mutex_lock(&standin.lock);
    *fault = 0;
    if (standin.dead && (standin.fail_how == STANDIN_TOTAL || !thread_only)) {
        *fault = standin.fail_result;
    } else if (standin.fail_in > 0 &&
               !(thread_only && standin.fail_how == STANDIN_STICKY) &&
               --standin.fail_in == 0) {
        *fault = standin.fail_result;
        standin.failed = name;
        standin.dead = standin.fail_how != STANDIN_ONCE;
        for (uint32_t i = 0; standin.dead && i < standin.live_count; i++) {
            standin_drop(&standin.streams[standin.live[i]]);
        }
    }
    if (in_context && standin_thread_depth == 0) {
        standin_error("%s: no context is current", name);
        *fault = INVALID_CONTEXT;
        return false;
    }
    return *fault == 0 || kind == ENDS ||
           (kind == QUEUES && !standin.dead && standin_random(2) == 0);
}

static ldr_cu_t end(ldr_cu_t fault, ldr_cu_t result)
{
    pthread_mutex_unlock(&standin.lock);
    return fault != 0 ? fault : result;
}

static bool is_stream(ldr_cu_stream_t s, const char *name)
{
    uintptr_t at = (uintptr_t)s - (uintptr_t)standin.streams;
    bool ok = at < sizeof(standin.streams) && at % sizeof(*s) == 0 && s->alive;

    if (!ok) {
        standin_error("%s: not a stream", name);
    }
    return ok;
}

static bool is_event(ldr_cu_event_t e, const char *name)
{
    uintptr_t at = (uintptr_t)e - (uintptr_t)standin.events;
    bool ok = at < sizeof(standin.events) && at % sizeof(*e) == 0 && e->alive;

    if (!ok) {
        standin_error("%s: not an event", name);
    }
    return ok;
}

/* ---- the device, its context ---- */

ldr_cu_t cuInit(unsigned flags)
{
    ldr_cu_t fault;
    bool go = begin("cuInit", MAKES, false, &fault);

    return end(fault, !go          ? 0
                      : flags != 0 ? INVALID_VALUE
                                   : standin.init_result);
}

ldr_cu_t cuDeviceGet(int *device, int ordinal)
{
    ldr_cu_t fault, result = INVALID_DEVICE;

    if (begin("cuDeviceGet", MAKES, false, &fault) && ordinal >= 0 &&
        ordinal < standin.devices) {
        *device = ordinal;
        result = 0;
    }
    return end(fault, result);
}

ldr_cu_t cuDeviceGetAttribute(int *value, int which, int device)
{
    ldr_cu_t fault;

    if (begin("cuDeviceGetAttribute", MAKES, false, &fault)) {
        *value = which == LDR_CU_CAPABILITY_MAJOR   ? 9
                 : which == LDR_CU_CAPABILITY_MINOR ? 0
                                                    : standin.processors;
    }
    return end(fault, device < standin.devices ? 0 : INVALID_DEVICE);
}

ldr_cu_t cuDevicePrimaryCtxRetain(ldr_cu_context_t *c, int device)
{
    ldr_cu_t fault;

    if (begin("cuDevicePrimaryCtxRetain", MAKES, false, &fault)) {
        standin_context.retained++;
        standin.counts.contexts++;
        *c = &standin_context;
    }
    return end(fault, device < standin.devices ? 0 : INVALID_DEVICE);
}

ldr_cu_t cuDevicePrimaryCtxRelease_v2(int device)
{
    ldr_cu_t fault;

    (void)device;
    begin("cuDevicePrimaryCtxRelease", ENDS, false, &fault);
    if (standin_context.retained-- <= 0) {
        standin_error("a context is released too often");
    }
    standin.counts.contexts--;
    return end(fault, 0);
}

ldr_cu_t cuCtxPushCurrent_v2(ldr_cu_context_t c)
{
    ldr_cu_t fault;

    if (begin("cuCtxPushCurrent", MAKES, false, &fault)) {
        if (c != &standin_context || c->retained == 0) {
            standin_error("cuCtxPushCurrent: not a context");
        }
        standin_thread_depth++;
    }
    return end(fault, 0);
}

ldr_cu_t cuCtxPopCurrent_v2(ldr_cu_context_t *c)
{
    ldr_cu_t fault;

    if (begin("cuCtxPopCurrent", ENDS, true, &fault)) {
        *c = &standin_context;
        standin_thread_depth--;
    }
    return end(fault, 0);
}

ldr_cu_t cuThreadExchangeStreamCaptureMode(int *mode)
{
    ldr_cu_t fault;

    if (begin("cuThreadExchangeStreamCaptureMode", MAKES, false, &fault)) {
        int was = standin_thread_mode;

        if (*mode < 0 || *mode > 2) {
            standin_error("no such capture mode: %d", *mode);
        }
        standin_thread_mode = *mode;
        *mode = was;
    }
    return end(fault, 0);
}

ldr_cu_t cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    ldr_cu_t fault;

    if (begin("cuCtxGetStreamPriorityRange", MAKES, true, &fault)) {
        *least = 0;
        *greatest = -5;
    }
    return end(fault, 0);
}

ldr_cu_t cuGetErrorName(ldr_cu_t error, const char **name)
{
    *name = error == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
            : error == 100         ? "CUDA_ERROR_NO_DEVICE"
            : error == 101         ? "CUDA_ERROR_INVALID_DEVICE"
            : error == 700         ? "CUDA_ERROR_ILLEGAL_ADDRESS"
                                   : NULL;
    return *name != NULL ? 0 : INVALID_VALUE;
}

ldr_cu_t cuGetErrorString(ldr_cu_t error, const char **text)
{
    *text = error == OUT_OF_MEMORY ? "out of memory (stand-in)" : NULL;
    return *text != NULL ? 0 : INVALID_VALUE;
}

/* ---- memory ---- */

ldr_cu_t cuMemAlloc_v2(ldr_cu_ptr_t *p, size_t bytes)
{
    ldr_cu_t fault;
    bool ok = begin("cuMemAlloc", MAKES, true, &fault) &&
              standin_device_alloc(p, bytes);

    return end(fault, ok ? 0 : OUT_OF_MEMORY);
}

ldr_cu_t cuMemFree_v2(ldr_cu_ptr_t p)
{
    ldr_cu_t fault;
    bool ok = begin("cuMemFree", ENDS, true, &fault) && standin_device_free(p);

    return end(fault, ok ? 0 : INVALID_VALUE);
}

ldr_cu_t cuMemHostAlloc(void **p, size_t bytes, unsigned flags)
{
    ldr_cu_t fault;
    bool ok = false;

    if (begin("cuMemHostAlloc", MAKES, true, &fault)) {
        size_t room = (bytes + 4095) / 4096 * 4096;

        *p = aligned_alloc(4096, room);
        memset(*p, 0xd5, bytes < 65536 ? bytes : 65536);
        if ((flags & LDR_CU_REGISTER_MAPPED) == 0) {
            standin_error("cuMemHostAlloc: it is not mapped");
        }
        ok = standin_host_add((uintptr_t)*p, bytes, false);
        standin.counts.host += ok;
    }
    return end(fault, ok ? 0 : OUT_OF_MEMORY);
}

ldr_cu_t cuMemFreeHost(void *p)
{
    ldr_cu_t fault;
    bool ok = begin("cuMemFreeHost", ENDS, true, &fault) &&
              standin_host_remove((uintptr_t)p, false);

    if (ok) {
        free(p);
        standin.counts.host--;
    } else {
        standin_error("cuMemFreeHost of what was not allocated");
    }
    return end(fault, ok ? 0 : INVALID_VALUE);
}

ldr_cu_t cuMemHostRegister_v2(void *p, size_t bytes, unsigned flags)
{
    ldr_cu_t fault;
    bool ok = false;

    if (begin("cuMemHostRegister", MAKES, true, &fault)) {
        ok = bytes > 0 && (flags & LDR_CU_REGISTER_MAPPED) != 0 &&
             standin_host_add((uintptr_t)p, bytes, true);
        standin.counts.registered += ok;
    }
    return end(fault, ok ? 0 : LDR_CU_ALREADY_REGISTERED);
}

ldr_cu_t cuMemHostUnregister(void *p)
{
    ldr_cu_t fault;
    bool ok = begin("cuMemHostUnregister", ENDS, true, &fault) &&
              standin_host_remove((uintptr_t)p, true);

    if (ok) {
        standin.counts.registered--;
    } else {
        standin_error("cuMemHostUnregister of what was not registered");
    }
    return end(fault, ok ? 0 : NOT_REGISTERED);
}

ldr_cu_t cuMemHostGetDevicePointer_v2(ldr_cu_ptr_t *d, void *p, unsigned flags)
{
    ldr_cu_t fault;
    bool ok = false;

    if (begin("cuMemHostGetDevicePointer", MAKES, true, &fault)) {
        ok = flags == 0 && standin_host_find((uintptr_t)p) != NULL;
        *d = (uintptr_t)p + STANDIN_THERE;
    }
    return end(fault, ok ? 0 : INVALID_VALUE);
}

/* ---- streams and events ---- */

ldr_cu_t cuStreamCreateWithPriority(ldr_cu_stream_t *s, unsigned flags,
                                    int priority)
{
    ldr_cu_t fault, result = OUT_OF_MEMORY;

    if (begin("cuStreamCreateWithPriority", MAKES, true, &fault) &&
        standin.live_count < 64) {
        struct CUstream_st *new;

        if (flags != LDR_CU_STREAM_OWN || priority > 0 || priority < -5) {
            standin_error("a stream's flags %u, priority %d", flags, priority);
        }
        do {
            standin.next_stream = (standin.next_stream + 1) % STANDIN_STREAMS;
            new = &standin.streams[standin.next_stream];
        } while (new->alive);
        new->alive = true;
        standin.live[standin.live_count++] = standin.next_stream;
        standin.counts.streams++;
        *s = new;
        result = 0;
    }
    return end(fault, result);
}

ldr_cu_t cuStreamDestroy_v2(ldr_cu_stream_t s)
{
    ldr_cu_t fault;

    if (begin("cuStreamDestroy", ENDS, true, &fault) &&
        is_stream(s, "cuStreamDestroy")) {
        uint32_t index = (uint32_t)(s - standin.streams);

        if (s->head != NULL) {
            standin_error("a stream is destroyed with work under way");
            standin_drop(s);
        }
        s->alive = false;
        for (uint32_t i = 0; i < standin.live_count; i++) {
            if (standin.live[i] == index) {
                standin.live[i] = standin.live[--standin.live_count];
                break;
            }
        }
        standin.counts.streams--;
    }
    return end(fault, 0);
}

ldr_cu_t cuStreamWaitEvent(ldr_cu_stream_t s, ldr_cu_event_t e, unsigned flags)
{
    ldr_cu_t fault;

    if (begin("cuStreamWaitEvent", QUEUES, true, &fault) &&
        is_stream(s, "cuStreamWaitEvent") && is_event(e, "cuStreamWaitEvent") &&
        flags == 0 && e->latest != NULL) {
        e->latest->users++;
        standin_queue(s, (op_t){.kind = OP_WAIT, .record = e->latest});
    }
    return end(fault, 0);
}

ldr_cu_t cuStreamSynchronize(ldr_cu_stream_t s)
{
    ldr_cu_t fault;

    if (begin("cuStreamSynchronize", ENDS, true, &fault) &&
        is_stream(s, "cuStreamSynchronize")) {
        standin_run_all(s);
    }
    return end(fault, 0);
}

ldr_cu_t cuEventCreate(ldr_cu_event_t *e, unsigned flags)
{
    ldr_cu_t fault, result = OUT_OF_MEMORY;

    (void)flags;
    if (begin("cuEventCreate", MAKES, true, &fault) &&
        standin.counts.events < STANDIN_EVENTS) {
        struct CUevent_st *new;

        do {
            standin.next_event = (standin.next_event + 1) % STANDIN_EVENTS;
            new = &standin.events[standin.next_event];
        } while (new->alive);
        new->alive = true;
        standin.counts.events++;
        *e = new;
        result = 0;
    }
    return end(fault, result);
}

ldr_cu_t cuEventRecord(ldr_cu_event_t e, ldr_cu_stream_t s)
{
    ldr_cu_t fault;

    if (begin("cuEventRecord", QUEUES, true, &fault) &&
        is_stream(s, "cuEventRecord") && is_event(e, "cuEventRecord")) {
        standin_forget(e->latest);
        e->latest = calloc(1, sizeof(*e->latest));
        e->latest->users = 2; /* the event, the operation */
        standin_queue(s, (op_t){.kind = OP_RECORD, .record = e->latest});
    }
    return end(fault, 0);
}

ldr_cu_t cuEventQuery(ldr_cu_event_t e)
{
    ldr_cu_t fault, result = INVALID_HANDLE;

    if (begin("cuEventQuery", QUEUES, true, &fault) &&
        is_event(e, "cuEventQuery")) {
        standin_progress();
        result = e->latest == NULL || e->latest->done ? 0 : LDR_CU_NOT_READY;
    }
    return end(fault, result);
}

ldr_cu_t cuEventDestroy_v2(ldr_cu_event_t e)
{
    ldr_cu_t fault;

    if (begin("cuEventDestroy", ENDS, true, &fault) &&
        is_event(e, "cuEventDestroy")) {
        standin_forget(e->latest);
        e->latest = NULL;
        e->alive = false;
        standin.counts.events--;
    }
    return end(fault, 0);
}

/* ---- work ---- */

/* Queues a copy; to or from is 0, the other side is here. */
static ldr_cu_t copy(ldr_cu_stream_t s, uint64_t to, uint64_t from,
                     uint8_t *here, size_t bytes)
{
    const range_t *r = standin_host_find((uintptr_t)here);
    op_t op = {
        .kind = OP_COPY, .to = to, .from = from, .here = here, .bytes = bytes};

    if (!is_stream(s, "a copy") || bytes == 0 ||
        standin_resolve(to != 0 ? to : from, bytes, false, "a copy") == NULL) {
        return INVALID_VALUE;
    }
    if (standin_is_device((uintptr_t)here)) {
        standin_error("a copy: device memory, where the host's is meant");
        return INVALID_VALUE;
    }
    standin.counts.copies++;
    if (r != NULL && (uintptr_t)here + bytes > r->at + r->bytes) {
        standin_error("a copy of %zu bytes leaves its registration", bytes);
        return INVALID_VALUE;
    }
    if (r == NULL) {
        standin.counts.pageable++;
        op.snapshot = malloc(bytes);
        memcpy(op.snapshot, here, bytes);
    }
    standin_queue(s, op);
    if (r == NULL && from != 0) {
        standin_error("a copy into memory that is not registered");
    }
    return 0;
}

ldr_cu_t cuMemcpyHtoDAsync_v2(ldr_cu_ptr_t to, const void *from, size_t bytes,
                              ldr_cu_stream_t s)
{
    ldr_cu_t fault, result = 0;

    if (begin("cuMemcpyHtoDAsync", QUEUES, true, &fault)) {
        result = copy(s, to, 0, (uint8_t *)(uintptr_t)from, bytes);
    }
    return end(fault, result);
}

ldr_cu_t cuMemcpyDtoHAsync_v2(void *to, ldr_cu_ptr_t from, size_t bytes,
                              ldr_cu_stream_t s)
{
    ldr_cu_t fault, result = 0;

    if (begin("cuMemcpyDtoHAsync", QUEUES, true, &fault)) {
        result = copy(s, 0, from, to, bytes);
    }
    return end(fault, result);
}

/* Its copies are in no order among themselves; here they are in one. */
ldr_cu_t cuMemcpyBatchAsync(ldr_cu_ptr_t *to, ldr_cu_ptr_t *from, size_t *bytes,
                            size_t count, ldr_cu_attributes_t *attributes,
                            size_t *first, size_t attributed, size_t *failed,
                            ldr_cu_stream_t s)
{
    ldr_cu_t fault, result = 0;

    *failed = SIZE_MAX;
    if (begin("cuMemcpyBatchAsync", QUEUES, true, &fault)) {
        if (standin.refuses_batches) {
            result = NOT_SUPPORTED;
        } else if (count == 0 || attributed != 1 || *first != 0 ||
                   attributes->order != LDR_CU_ORDER_STREAM) {
            standin_error("cuMemcpyBatchAsync: wrong arguments");
            result = INVALID_VALUE;
        }
        standin.counts.batches += result == 0;
        for (size_t i = 0; i < count && result == 0; i++) {
            bool load = standin_is_device(to[i]);

            result =
                copy(s, load ? to[i] : 0, load ? 0 : from[i],
                     (uint8_t *)(uintptr_t)(load ? from[i] : to[i]), bytes[i]);
        }
    }
    return end(fault, result);
}

ldr_cu_t cuMemsetD32Async(ldr_cu_ptr_t to, unsigned value, size_t count,
                          ldr_cu_stream_t s)
{
    ldr_cu_t fault, result = 0;

    if (begin("cuMemsetD32Async", QUEUES, true, &fault)) {
        if (!is_stream(s, "cuMemsetD32Async") || to % 4 != 0 ||
            standin_resolve(to, 4 * count, false, "cuMemsetD32") == NULL) {
            result = INVALID_VALUE;
        } else {
            standin_queue(s, (op_t){.kind = OP_SET,
                                    .to = to,
                                    .value = value,
                                    .bytes = 4 * count});
        }
    }
    return end(fault, result);
}

ldr_cu_t cuModuleLoadData(ldr_cu_module_t *m, const void *image)
{
    ldr_cu_t fault, result = 0;

    if (begin("cuModuleLoadData", MAKES, true, &fault)) {
        if (strncmp(image, STANDIN_IMAGE "--gpu-architecture=sm_90",
                    sizeof(STANDIN_IMAGE "--gpu-architecture=sm_90") - 1) !=
            0) {
            result = INVALID_IMAGE;
        } else {
            standin.counts.modules++;
            standin.counts.loads++;
            *m = &the_module;
        }
    }
    return end(fault, result);
}

ldr_cu_t cuModuleUnload(ldr_cu_module_t m)
{
    ldr_cu_t fault;

    begin("cuModuleUnload", ENDS, true, &fault);
    if (m != &the_module || standin.counts.modules == 0) {
        standin_error("cuModuleUnload: not a module");
    }
    standin.counts.modules--;
    return end(fault, 0);
}

ldr_cu_t cuModuleGetFunction(ldr_cu_function_t *f, ldr_cu_module_t m,
                             const char *name)
{
    ldr_cu_t fault, result = 0;

    if (begin("cuModuleGetFunction", MAKES, true, &fault)) {
        if (m != &the_module || strcmp(name, LDR_GPU_ENTRY) != 0) {
            result = NOT_FOUND;
        } else {
            *f = &the_function;
        }
    }
    return end(fault, result);
}

ldr_cu_t cuLaunchKernel(ldr_cu_function_t f, unsigned grid_x, unsigned grid_y,
                        unsigned grid_z, unsigned block_x, unsigned block_y,
                        unsigned block_z, unsigned shared, ldr_cu_stream_t s,
                        void **arguments, void **extra)
{
    ldr_cu_t fault, result = 0;

    if (begin("cuLaunchKernel", QUEUES, true, &fault)) {
        op_t op = {.kind = OP_KERNEL};

        memcpy(&op.units, arguments[0], 8);
        memcpy(&op.count, arguments[1], 4);
        memcpy(&op.tables, arguments[2], 8);
        memcpy(&op.sums, arguments[3], 8);
        memcpy(&op.flags, arguments[4], 4);
        if (f != &the_function || !is_stream(s, "cuLaunchKernel") ||
            grid_x == 0 || grid_y != 1 || grid_z != 1 ||
            block_x != LDR_GPU_THREADS || block_y != 1 || block_z != 1 ||
            shared != 0 || extra != NULL || op.count == 0 ||
            standin.counts.modules == 0) {
            standin_error("cuLaunchKernel: grid %u, block %u, %u units", grid_x,
                          block_x, op.count);
            result = INVALID_VALUE;
        } else {
            standin.counts.kernels++;
            standin_queue(s, op);
        }
    }
    return end(fault, result);
}
