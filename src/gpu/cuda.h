/*
 * The CUDA driver and its run-time compiler, loaded when they are first
 * needed: a machine without them builds, installs and runs Larder, and is told
 * what is missing only when somebody opens a GPU.
 *
 * Declared here is what Larder calls, by the driver's documented interface; no
 * header of CUDA is needed. A call that fails becomes a status with the
 * driver's own words in the error text.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "larder/larder.h"

typedef int ldr_cu_t; /* CUresult: 0 is success */
typedef uint64_t ldr_cu_ptr_t;
typedef struct CUctx_st *ldr_cu_context_t;
typedef struct CUstream_st *ldr_cu_stream_t;
typedef struct CUevent_st *ldr_cu_event_t;
typedef struct CUmod_st *ldr_cu_module_t;
typedef struct CUfunc_st *ldr_cu_function_t;

enum {
    LDR_CU_NOT_READY = 600,
    LDR_CU_ALREADY_REGISTERED = 712,
    LDR_CU_EVENT_NO_TIMING = 2,   /* cuEventCreate */
    LDR_CU_EVENT_BLOCKING = 1,    /* waits without the CPU */
    LDR_CU_STREAM_OWN = 1,        /* not ordered by the default stream */
    LDR_CU_REGISTER_PORTABLE = 1, /* cuMemHostRegister: in every context, */
    LDR_CU_REGISTER_MAPPED = 2,   /* and with an address on the device */
    LDR_CU_CAPABILITY_MAJOR = 75, /* cuDeviceGetAttribute */
    LDR_CU_CAPABILITY_MINOR = 76,
    LDR_CU_MULTIPROCESSORS = 16,
    LDR_CU_CAPTURE_RELAXED = 2, /* cuThreadExchangeStreamCaptureMode */
    LDR_CU_ORDER_STREAM = 1,    /* cuMemcpyBatchAsync: sources are read then */
    LDR_CU_BESIDE_COMPUTE = 1,
};

/* CUmemcpyAttributes. Where memory is need not be said: 0. */
typedef struct ldr_cu_attributes {
    int order;
    int from_type, from_id, to_type, to_id;
    unsigned flags;
} ldr_cu_attributes_t;

/* name, its symbol in libcuda.so.1, its parameters */
#define LDR_CUDA_MAP(X)                                                        \
    X(init, cuInit, (unsigned flags))                                          \
    X(device_get, cuDeviceGet, (int *device, int ordinal))                     \
    X(attribute, cuDeviceGetAttribute, (int *value, int which, int device))    \
    X(retain, cuDevicePrimaryCtxRetain, (ldr_cu_context_t * c, int device))    \
    X(release, cuDevicePrimaryCtxRelease_v2, (int device))                     \
    X(push, cuCtxPushCurrent_v2, (ldr_cu_context_t c))                         \
    X(pop, cuCtxPopCurrent_v2, (ldr_cu_context_t * c))                         \
    X(capture_mode, cuThreadExchangeStreamCaptureMode, (int *mode))            \
    X(priorities, cuCtxGetStreamPriorityRange, (int *least, int *greatest))    \
    X(error_name, cuGetErrorName, (ldr_cu_t error, const char **name))         \
    X(error_text, cuGetErrorString, (ldr_cu_t error, const char **text))       \
    X(alloc, cuMemAlloc_v2, (ldr_cu_ptr_t * p, size_t bytes))                  \
    X(free, cuMemFree_v2, (ldr_cu_ptr_t p))                                    \
    X(host_alloc, cuMemHostAlloc, (void **p, size_t bytes, unsigned flags))    \
    X(host_free, cuMemFreeHost, (void *p))                                     \
    X(host_register, cuMemHostRegister_v2,                                     \
      (void *p, size_t bytes, unsigned flags))                                 \
    X(host_unregister, cuMemHostUnregister, (void *p))                         \
    X(host_device, cuMemHostGetDevicePointer_v2,                               \
      (ldr_cu_ptr_t * d, void *p, unsigned flags))                             \
    X(to_device, cuMemcpyHtoDAsync_v2,                                         \
      (ldr_cu_ptr_t to, const void *from, size_t bytes, ldr_cu_stream_t s))    \
    X(to_host, cuMemcpyDtoHAsync_v2,                                           \
      (void *to, ldr_cu_ptr_t from, size_t bytes, ldr_cu_stream_t s))          \
    X(set32, cuMemsetD32Async,                                                 \
      (ldr_cu_ptr_t to, unsigned value, size_t count, ldr_cu_stream_t s))      \
    X(stream_create, cuStreamCreateWithPriority,                               \
      (ldr_cu_stream_t * s, unsigned flags, int priority))                     \
    X(stream_destroy, cuStreamDestroy_v2, (ldr_cu_stream_t s))                 \
    X(stream_wait, cuStreamWaitEvent,                                          \
      (ldr_cu_stream_t s, ldr_cu_event_t e, unsigned flags))                   \
    X(stream_sync, cuStreamSynchronize, (ldr_cu_stream_t s))                   \
    X(event_create, cuEventCreate, (ldr_cu_event_t * e, unsigned flags))       \
    X(event_record, cuEventRecord, (ldr_cu_event_t e, ldr_cu_stream_t s))      \
    X(event_query, cuEventQuery, (ldr_cu_event_t e))                           \
    X(event_destroy, cuEventDestroy_v2, (ldr_cu_event_t e))                    \
    X(module_load, cuModuleLoadData, (ldr_cu_module_t * m, const void *image)) \
    X(module_unload, cuModuleUnload, (ldr_cu_module_t m))                      \
    X(function, cuModuleGetFunction,                                           \
      (ldr_cu_function_t * f, ldr_cu_module_t m, const char *name))            \
    X(launch, cuLaunchKernel,                                                  \
      (ldr_cu_function_t f, unsigned grid_x, unsigned grid_y, unsigned grid_z, \
       unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,  \
       ldr_cu_stream_t s, void **arguments, void **extra))

/* The same, of newer drivers only (12.8); NULL: this one has it not. */
#define LDR_CUDA_NEWER_MAP(X)                                                  \
    X(batch, cuMemcpyBatchAsync,                                               \
      (ldr_cu_ptr_t * to, ldr_cu_ptr_t * from, size_t * bytes, size_t count,   \
       ldr_cu_attributes_t * attributes, size_t * first, size_t attributed,    \
       size_t * failed, ldr_cu_stream_t s))

typedef struct ldr_cuda {
#define X(name, symbol, parameters) ldr_cu_t(*name) parameters;
    LDR_CUDA_MAP(X)
    LDR_CUDA_NEWER_MAP(X)
#undef X
} ldr_cuda_t;

/* The driver, loaded and initialised once; NULL: there is none, and the error
 * text says why. LARDER_CUDA names another library than libcuda.so.1. */
const ldr_cuda_t *ldr_cuda(void);

/* LARDER_OK, or what a result means: E_NO_MEMORY for want of memory, else
 * E_IO. `what` begins the error text. */
larder_status_t ldr_cuda_status(const ldr_cuda_t *cuda, ldr_cu_t result,
                                const char *what);

/*
 * Compiles a kernel for an architecture (90: sm_90). *image_p is to be freed.
 * Kept in a file of the user's cache folder, named by the source, the compiler
 * and the architecture; a file that is damaged, or that somebody else owns, is
 * not used. library: a path of libnvrtc, or NULL to look where the loader does.
 * E_UNSUPPORTED: there is no compiler.
 */
larder_status_t ldr_nvrtc_compile(const char *source, const char *library,
                                  int architecture, void **image_p,
                                  size_t *bytes_p);
