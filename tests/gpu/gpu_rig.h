/*
 * A GPU that is none: the stand-ins, loaded in place of the driver and of
 * libnvrtc, and short forms for tests.
 */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dlfcn.h>

#include "base/log.h"
#include "gpu/cuda.h"
#include "gpu/gpu.h"
#include "gpu/gpu_int.h"
#include "gpu/standin.h"
#include "larder/larder.h"
#include "support/real.h"

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))

/* Their control functions: si.standin_seed(1). */
typedef struct standins {
#define X(type, name, parameters) type(*name) parameters;
    STANDIN_MAP(X)
    NVRTC_STANDIN_MAP(X)
#undef X
} standins_t;

static standins_t si;

static inline void *rig_symbol(void *library, const char *name)
{
    void *at = dlsym(library, name);

    if (at == NULL) {
        fprintf(stderr, "%s: %s\n", name, dlerror());
        abort();
    }
    return at;
}

/* Loads both, by the paths that the library will use. */
static inline void rig_load(void)
{
    void *library = dlopen(STANDIN_CUDA, RTLD_NOW | RTLD_LOCAL), *at;

    setenv("LARDER_CUDA", STANDIN_CUDA, 1);
    setenv("LARDER_NVRTC", STANDIN_NVRTC, 1);
    unsetenv("XDG_CACHE_HOME"); /* compiled every time */
    unsetenv("HOME");
#define X(type, name, parameters)                                              \
    at = rig_symbol(library, #name);                                           \
    memcpy(&si.name, &at, sizeof(at));
    STANDIN_MAP(X)
    library = dlopen(STANDIN_NVRTC, RTLD_NOW | RTLD_LOCAL);
    NVRTC_STANDIN_MAP(X)
#undef X
}

static inline standins_t *rig_check(const char *file, int line)
{
    standin_counts_t c;

    si.standin_counts(&c);
    if (c.errors > 0) {
        print_error("%s:%d: the stand-in: %llu errors:\n%s", file, line,
                    (unsigned long long)c.errors, si.standin_errors());
        fail();
    }
    return &si;
}

/* The driver had nothing to complain about. */
#define assert_no_errors() ((void)rig_check(__FILE__, __LINE__))

static inline void rig_assert_status(larder_status_t st, larder_status_t want,
                                     const char *file, int line)
{
    if (st != want) {
        print_error("%s:%d: status %d, not %d: %s\n", file, line, st, want,
                    larder_last_error());
        fail();
    }
}

#define assert_gpu(st, want) rig_assert_status(st, want, __FILE__, __LINE__)

/* Nothing is there that was not there before. */
static inline void rig_assert_same(const standin_counts_t *a,
                                   const standin_counts_t *b)
{
    assert_int_equal(a->contexts, b->contexts);
    assert_int_equal(a->device, b->device);
    assert_int_equal(a->host, b->host);
    assert_int_equal(a->registered, b->registered);
    assert_int_equal(a->streams, b->streams);
    assert_int_equal(a->events, b->events);
    assert_int_equal(a->modules, b->modules);
    assert_int_equal(a->pending, b->pending);
}

/* ---- the engine's side ---- */

/* The engine of a test calls the driver too, in its own context, and stays in
 * it: from the thread that called this. */
typedef struct rig_engine {
    const ldr_cuda_t *cuda;
    ldr_cu_context_t context;
    ldr_cu_stream_t stream;
    ldr_cu_event_t event;
} rig_engine_t;

static inline void rig_in(rig_engine_t *e)
{
    if (e->cuda->push(e->context) != 0) {
        abort();
    }
}

static inline void rig_out(rig_engine_t *e)
{
    ldr_cu_context_t was;

    e->cuda->pop(&was);
}

static inline void rig_engine_make(rig_engine_t *e)
{
    e->cuda = ldr_cuda();
    if (e->cuda == NULL || e->cuda->retain(&e->context, 0) != 0) {
        abort();
    }
    rig_in(e);
    e->cuda->stream_create(&e->stream, LDR_CU_STREAM_OWN, -5);
    e->cuda->event_create(&e->event, LDR_CU_EVENT_NO_TIMING);
    rig_out(e);
}

static inline void rig_engine_free(rig_engine_t *e)
{
    rig_in(e);
    e->cuda->stream_sync(e->stream);
    e->cuda->stream_destroy(e->stream);
    e->cuda->event_destroy(e->event);
    rig_out(e);
    e->cuda->release(0);
}

/* All that the engine had queued is done. */
static inline void rig_engine_sync(rig_engine_t *e)
{
    rig_in(e);
    e->cuda->stream_sync(e->stream);
    rig_out(e);
}

static inline ldr_cu_ptr_t rig_device(rig_engine_t *e, size_t bytes)
{
    ldr_cu_ptr_t at = 0;

    rig_in(e);
    if (e->cuda->alloc(&at, bytes) != 0) {
        abort();
    }
    rig_out(e);
    return at;
}

static inline void rig_device_free(rig_engine_t *e, ldr_cu_ptr_t at)
{
    rig_in(e);
    e->cuda->free(at);
    rig_out(e);
}

/* What the library warned of last. */
static __thread char rig_said[600];

static inline void rig_log(void *arg, larder_log_level_t level,
                           const char *line)
{
    (void)arg;
    if (level <= LARDER_LOG_WARN) {
        snprintf(rig_said, sizeof(rig_said), "%s", line);
    }
}

static inline larder_status_t rig_gpu_open(larder_gpu_t **gpu_p)
{
    larder_gpu_params_t params = {
        .field_mask = LARDER_GPU_LOG,
        .log = rig_log,
    };

    rig_said[0] = 0;
    si.standin_hollow(true);
    larder_status_t st = larder_gpu_open(&params, gpu_p);
    si.standin_hollow(false);
    if (st == LARDER_OK) { /* not as it was measured, then */
        (*gpu_p)->run_min = (size_t)192 << 10;
        (*gpu_p)->batch = false;
    }
    return st;
}
