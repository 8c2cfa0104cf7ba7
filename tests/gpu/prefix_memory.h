/*
 * The tests of whole prefixes with the engine's memory on a GPU that is none:
 * included before client/prefix_rig.h, or before a test that includes it. What
 * an engine writes and reads is the stand-in's memory; its layout has only the
 * device's addresses.
 *
 * One GPU for the process; when it ends the driver must have nothing to
 * complain about, and must have got back all that it gave.
 */
#pragma once

#include "gpu/gpu_rig.h"

#define RIG_ELSEWHERE

enum { PREFIX_MEMORIES = 512 };

static struct {
    larder_gpu_t *gpu;
    rig_engine_t engine;
    standin_counts_t before;
    bool host; /* engines that are made now have memory of the host */
    struct {
        void *seen;
        ldr_cu_ptr_t at;
    } memory[PREFIX_MEMORIES];
} prefix_rig;

static inline void prefix_gpu_close(void)
{
    standin_counts_t c;

    larder_gpu_close(&prefix_rig.gpu);
    rig_engine_free(&prefix_rig.engine);
    si.standin_counts(&c);
    if (c.errors > 0 || c.pending + c.registered + c.host + c.streams > 0 ||
        c.contexts > 0) {
        fprintf(stderr, "the stand-in: %llu errors, %llu registered\n%s\n",
                (unsigned long long)c.errors, (unsigned long long)c.registered,
                si.standin_errors());
        fflush(stdout);
        _exit(1);
    }
}

static inline larder_gpu_t *prefix_gpu(void)
{
    if (prefix_rig.gpu == NULL) {
        rig_load();
        si.standin_seed(real_seed());
        rig_engine_make(&prefix_rig.engine);
        if (rig_gpu_open(&prefix_rig.gpu) != LARDER_OK) {
            fprintf(stderr, "%s\n", larder_last_error());
            abort();
        }
        atexit(prefix_gpu_close);
    }
    return prefix_rig.gpu;
}

static inline uint8_t *rig_memory(uint64_t bytes, void **there)
{
    for (unsigned i = 0; i < PREFIX_MEMORIES && !prefix_rig.host; i++) {
        if (prefix_rig.memory[i].seen == NULL) {
            prefix_gpu();
            ldr_cu_ptr_t at = rig_device(&prefix_rig.engine, bytes);

            *there = (void *)(uintptr_t)at;
            prefix_rig.memory[i].at = at;
            return prefix_rig.memory[i].seen = si.standin_see(at, bytes);
        }
    }
    return *there = malloc(bytes);
}

static inline void rig_memory_free(void *memory)
{
    for (unsigned i = 0; i < PREFIX_MEMORIES; i++) {
        if (prefix_rig.memory[i].seen == memory) {
            rig_device_free(&prefix_rig.engine, prefix_rig.memory[i].at);
            prefix_rig.memory[i].seen = NULL;
            return;
        }
    }
    free(memory);
}

static inline void rig_layout(larder_layout_params_t *params)
{
    if (!prefix_rig.host) {
        params->field_mask |= LARDER_LAYOUT_GPU;
        params->gpu = prefix_gpu();
    }
}

/* Mostly aligned, as models are. */
static inline uint32_t rig_grain(uint64_t seed)
{
    return seed % 4 == 3 ? 1 : 16;
}

/* Every handle knows the GPU. */
static inline larder_status_t prefix_open(const char *url,
                                          const larder_open_params_t *params,
                                          larder_t **lar_p)
{
    larder_status_t st = larder_open(url, params, lar_p);

    return st == LARDER_OK ? larder_gpu_attach(*lar_p, prefix_gpu()) : st;
}

#define larder_open(url, params, lar_p) prefix_open(url, params, lar_p)

#include "client/support.h"

/* A node on a clock of the test's own: the GPU knows only the real one. */
#define fix_open_sim(f, options)                                               \
    do {                                                                       \
        free(p);                                                               \
        skip();                                                                \
        return;                                                                \
    } while (0)
