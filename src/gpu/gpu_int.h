/* What the files of src/gpu share. */
#pragma once

#include <pthread.h>

#include "base/log.h"
#include "gpu/cuda.h"
#include "gpu/gpu.h"
#include "gpu/kernel.h"

#define LDR_GPU_COPIERS 6u
#define LDR_GPU_LISTS 3u
#define LDR_GPU_SLOTS 3u
#define LDR_GPU_PIECE ((size_t)16 << 20)
#define LDR_GPU_PIECE_MIN ((size_t)1 << 20)
#define LDR_GPU_UNITS 4096u /* of a piece */
#define LDR_GPU_UNIT ((size_t)16 * LDR_GPU_WORDS)
#define LDR_GPU_RUNS 256u /* of a piece: contiguous parts on the host */
#define LDR_GPU_AHEAD_RUNS 64u

/* A contiguous part of a piece, on the host. */
typedef struct ldr_gpu_run {
    uint8_t *host;
    size_t at; /* in the piece's buffer */
    size_t bytes;
    uint32_t shard;
} ldr_gpu_run_t;

/* A part of a piece on the device, where no kernel moves it. */
typedef struct ldr_gpu_leaf {
    uint64_t page;
    size_t at, bytes;
} ldr_gpu_leaf_t;

/* Copies that are handed to the copy engine together. */
typedef struct ldr_gpu_parts {
    uint32_t count;
    ldr_cu_ptr_t device[LDR_GPU_UNITS];
    ldr_cu_ptr_t host[LDR_GPU_UNITS]; /* registered; its address here */
    size_t bytes[LDR_GPU_UNITS];
} ldr_gpu_parts_t;

/* A piece's place: its buffers, and what is under way in them. */
typedef struct ldr_gpu_slot {
    ldr_cu_ptr_t buffer;      /* on the device */
    uint8_t *bounce;          /* registered memory; made when first needed */
    ldr_gpu_unit_t *units;    /* registered memory, for the kernel */
    ldr_cu_ptr_t units_there; /* its address on the device */
    ldr_cu_event_t half;      /* the first of the two moves is over */
    ldr_cu_event_t done;
    bool busy;
    uint32_t unit_count, run_count, leaf_count;
    size_t bytes;
    ldr_gpu_run_t runs[LDR_GPU_RUNS];
    ldr_gpu_leaf_t leaves[LDR_GPU_UNITS];
    /* What was sent to the buffer before the pages were known: half is recorded
     * behind it (ahead.c). 0: nothing */
    uint32_t ahead_count;
    size_t ahead_bytes;
    ldr_gpu_run_t ahead[LDR_GPU_AHEAD_RUNS];
} ldr_gpu_slot_t;

typedef struct ldr_gpu_copier {
    bool taken;                   /* under gpu->lock */
    bool made;                    /* its owner's, as is all below */
    ldr_cu_stream_t copy, kernel; /* streams */
    ldr_cu_ptr_t sums;            /* on the device, one for each shard */
    uint32_t *sums_here;          /* registered memory */
    ldr_gpu_slot_t slot[LDR_GPU_SLOTS];
    ldr_gpu_parts_t parts; /* of the copy that is being handed over */
} ldr_gpu_copier_t;

/* Memory that is registered: [base, base + bytes), as one. */
typedef struct ldr_gpu_range {
    uint8_t *base;
    size_t bytes;
    ldr_cu_ptr_t there;
} ldr_gpu_range_t;

struct larder_gpu {
    const ldr_cuda_t *cuda;
    ldr_log_t log;
    int device;
    ldr_cu_context_t context; /* the device's primary one, as PyTorch's */
    int priority;             /* the least */
    unsigned grid;            /* thread blocks of the kernel */
    ldr_cu_module_t module;
    ldr_cu_function_t kernel; /* NULL: none could be had */
    ldr_cu_ptr_t tables;
    ldr_gpu_powers_t *powers;
    bool can_batch; /* the driver takes many copies in one call, */
    bool batch;     /* and that is how they are handed over */
    size_t run_min; /* staged, if the host's parts are as large on average */

    pthread_mutex_t lock;
    pthread_cond_t freed; /* a copier */
    ldr_gpu_copier_t *copiers[LDR_GPU_COPIERS];
    ldr_gpu_list_t lists[LDR_GPU_LISTS]; /* that nobody has */
    bool broken; /* atomic: the device does not answer */
    bool logged; /* that memory could not be registered */

    pthread_rwlock_t range_lock;
    ldr_gpu_range_t *ranges; /* by address */
    uint32_t range_count, range_capacity;

    larder_gpu_stats_t stats; /* atomic */
};

/* The context is this thread's until ldr_gpu_leave(). */
larder_status_t ldr_gpu_enter(larder_gpu_t *gpu);
void ldr_gpu_leave(larder_gpu_t *gpu);

/* How many bytes from here on are registered as one, at most `bytes`; 0: this
 * one is not. *there_p: its address on the device. */
size_t ldr_gpu_reach(larder_gpu_t *gpu, const uint8_t *at, size_t bytes,
                     ldr_cu_ptr_t *there_p);

static inline void ldr_gpu_count(uint64_t *counter, uint64_t n)
{
    __atomic_add_fetch(counter, n, __ATOMIC_RELAXED);
}

/* Sets can_batch, batch and, where there is a kernel, run_min (tune.c). In the
 * context. */
larder_status_t ldr_gpu_tune(larder_gpu_t *gpu);

/* ---- the copy engine's part of a piece (engine.c) ---- */

/* Between the host's memory and the buffer; plain: and the pages. Queued in the
 * copier's stream for that. */
ldr_cu_t ldr_gpu_engine(larder_gpu_t *gpu, ldr_gpu_copier_t *copier,
                        const ldr_gpu_slot_t *slot, ldr_gpu_way_t way,
                        bool load);
/* In one call. */
ldr_cu_t ldr_gpu_batch(const ldr_cuda_t *cuda, ldr_gpu_parts_t *parts,
                       bool load, ldr_cu_stream_t s);
/* Parts: none; one more; all are queued. */
static inline void ldr_gpu_parts_begin(ldr_gpu_copier_t *copier)
{
    copier->parts.count = 0;
}
void ldr_gpu_parts_add(ldr_gpu_copier_t *copier, ldr_cu_ptr_t device,
                       const void *host, size_t bytes);
ldr_cu_t ldr_gpu_parts_queue(larder_gpu_t *gpu, ldr_gpu_copier_t *copier,
                             bool load);

/* ---- before a copy (ahead.c) ---- */

/* Waits for the event that comes first, here and not on the device: what is
 * queued there cannot be taken back at the deadline. In the context. */
larder_status_t ldr_gpu_await(larder_gpu_t *gpu, const ldr_gpu_copy_t *copy);
/* Sets the first pieces of a staged load of so many bytes going, as far as the
 * buffers of a copier where nothing is under way. */
ldr_cu_t ldr_gpu_ahead(larder_gpu_t *gpu, ldr_gpu_copier_t *copier,
                       const ldr_gpu_copy_t *copy, uint64_t bytes);
/* Whether the slot's piece, as it was cut, is in its buffer or on the way. What
 * was sent ahead is forgotten. */
bool ldr_gpu_is_ahead(ldr_gpu_slot_t *slot);
/* The copier is new to its owner. */
void ldr_gpu_ahead_forget(ldr_gpu_copier_t *copier);

/* ---- copiers (copier.c) ---- */

/* A copier, made if need be; waits for one until the deadline. In the context.
 */
larder_status_t ldr_gpu_copier_take(larder_gpu_t *gpu, uint64_t deadline_ns,
                                    ldr_gpu_copier_t **copier_p);
void ldr_gpu_copier_give(larder_gpu_t *gpu, ldr_gpu_copier_t *copier);
/* Gives back all that it has. In the context. */
void ldr_gpu_copier_free(larder_gpu_t *gpu, ldr_gpu_copier_t *copier);
/* Waits for all that is under way in it; gives what came of that. */
ldr_cu_t ldr_gpu_copier_sync(larder_gpu_t *gpu, ldr_gpu_copier_t *copier);
/* The slot's bounce buffer is there. */
larder_status_t ldr_gpu_slot_bounce(larder_gpu_t *gpu, ldr_gpu_slot_t *slot);
