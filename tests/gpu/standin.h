/*
 * Control of the stand-in for the CUDA driver (cuda_standin.c), and of that
 * for libnvrtc (nvrtc_standin.c). For tests only.
 *
 * The driver's stand-in does the work on memory of the host, as late as it may
 * and in an order that a seed decides: see standin_work.c. What no driver would
 * forgive is written down as an error; tests assert that there is none.
 *
 * A device address is never one that the CPU can use: device memory is seen by
 * standin_see() only, and registered memory of the host has its device address
 * STANDIN_THERE higher.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STANDIN_THERE (1ull << 60)

/* What there is, and what was done. */
typedef struct standin_counts {
    uint64_t calls, errors;
    uint64_t contexts, device, host, registered; /* that are there now */
    uint64_t streams, events, modules;
    uint64_t pending; /* operations that are not over */
    uint64_t copies, kernels, pageable, loads, batches;
} standin_counts_t;

/* How a call fails. */
enum {
    STANDIN_ONCE,   /* this one; whether its work is done is left to chance */
    STANDIN_STICKY, /* and all later ones: the device is dead. The calls that
                       only concern the thread still work */
    STANDIN_TOTAL,  /* those neither */
};

typedef void (*standin_hook_fn)(void *arg, uint64_t call, const char *name);

#define STANDIN_MAP(X)                                                         \
    /* Decides all that is left to chance. */                                  \
    X(void, standin_seed, (uint64_t seed))                                     \
    /* The n-th call from now (1: the next) fails; 0: none. */                 \
    X(void, standin_fail_at, (uint64_t n, int result, int how))                \
    /* The name of the call that failed; NULL: none did. */                    \
    X(const char *, standin_failed, (void))                                    \
    /* Is called at the begin of every call, in its thread. */                 \
    X(void, standin_hook, (standin_hook_fn fn, void *arg))                     \
    X(void, standin_counts, (standin_counts_t * out))                          \
    /* The first errors, as text; forgotten by this. */                        \
    X(const char *, standin_errors, (void))                                    \
    /* The memory of a device address; NULL: it is not all one allocation. */  \
    X(void *, standin_see, (uint64_t at, size_t bytes))                        \
    /* Operations under way that would touch this, an address of the host or   \
     * of the device. */                                                       \
    X(uint64_t, standin_touching, (uint64_t at, size_t bytes))                 \
    /* This thread: contexts that are pushed, its capture mode. */             \
    X(int, standin_depth, (void))                                              \
    X(int, standin_mode, (void))                                               \
    /* Kernels, and copies of 64 KiB and more, do nothing but end: for the     \
     * trial copies of an opening, whose bytes are nobody's. */                \
    X(void, standin_hollow, (bool hollow))                                     \
    /* Copies of many in one call are not supported. */                        \
    X(void, standin_refuse_batches, (bool refuse))                             \
    /* Forgets all that there is, and that calls fail. */                      \
    X(void, standin_reset, (void))                                             \
    /* cuInit's result, how many devices there are, multiprocessors. */        \
    X(void, standin_machine, (int init, int devices, int processors))

/* Steps of libnvrtc that can fail. */
enum { NVRTC_NONE, NVRTC_CREATE, NVRTC_COMPILE, NVRTC_SIZE, NVRTC_IMAGE };

#define NVRTC_STANDIN_MAP(X)                                                   \
    X(void, nvrtc_standin_fail, (int step))                                    \
    X(void, nvrtc_standin_version, (int major, int minor))                     \
    X(int, nvrtc_standin_compiled, (void)) /* how often */                     \
    X(int, nvrtc_standin_programs, (void)) /* there are */                     \
    X(const char *, nvrtc_standin_options, (void))

/* An image begins with this, then comes the architecture. */
#define STANDIN_IMAGE "stand-in image for "
