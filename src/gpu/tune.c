/*
 * Which way is faster here: measured once, when the GPU is opened, on memory of
 * our own; some milliseconds.
 *
 * Staged moves a run of s bytes in o + s / r: what a start of the copy engine
 * costs, and the link. Many runs may be handed to the driver in one call, which
 * makes o smaller, or does not. Direct moves a run at a rate of its own, d,
 * which is lower, and costs nothing to start. So staged wins for runs of more
 * than o / (1/d - 1/r).
 */
#include "base/bytes.h"
#include "base/clock.h"
#include "gpu/gpu_int.h"

#define RUN ((size_t)64 << 10)
#define TIMES 8u /* the first find the device asleep */

typedef enum trial { WHOLE, IN_RUNS, IN_BATCH, BY_KERNEL, TRIALS } trial_t;

/* What is tried, and the best of each; UINT64_MAX: it cannot be done. */
typedef struct tune {
    larder_gpu_t *gpu;
    ldr_gpu_copier_t *copier;
    ldr_cu_ptr_t buffer; /* on the device; a piece */
    uint64_t best_ns[TRIALS];
} tune_t;

static ldr_cu_t try_one(const tune_t *t, trial_t trial)
{
    larder_gpu_t *gpu = t->gpu;
    ldr_gpu_slot_t *slot = &t->copier->slot[0];
    size_t run = trial == WHOLE ? LDR_GPU_PIECE : RUN;

    if (trial == BY_KERNEL) {
        uint32_t count = LDR_GPU_PIECE / LDR_GPU_UNIT, flags = LDR_GPU_CHECK;
        void *arguments[] = {&slot->units_there, &count, &gpu->tables,
                             &t->copier->sums, &flags};

        return gpu->cuda->launch(gpu->kernel, gpu->grid, 1, 1, LDR_GPU_THREADS,
                                 1, 1, 0, t->copier->copy, arguments, NULL);
    }
    gpu->batch = trial == IN_BATCH;
    ldr_gpu_parts_begin(t->copier);
    for (size_t at = 0; at < LDR_GPU_PIECE; at += run) {
        ldr_gpu_parts_add(t->copier, t->buffer + at, slot->bounce + at, run);
    }
    return ldr_gpu_parts_queue(gpu, t->copier, true);
}

static bool possible(const tune_t *t, trial_t trial)
{
    return trial == BY_KERNEL  ? t->gpu->kernel != NULL
           : trial == IN_BATCH ? t->gpu->cuda->batch != NULL
                               : true;
}

/* All of them, in turns. A driver that has the call for many and refuses it is
 * one without. When this returns nothing is under way. */
static larder_status_t try_all(tune_t *t)
{
    const ldr_cuda_t *cuda = t->gpu->cuda;
    bool refused = false;
    ldr_cu_t result = 0;

    for (unsigned i = 0; i < TIMES * TRIALS && result == 0; i++) {
        trial_t trial = i % TRIALS;

        if (!possible(t, trial) || (trial == IN_BATCH && refused)) {
            continue;
        }
        uint64_t begin_ns = ldr_now_ns(&ldr_clock_real);
        result = try_one(t, trial);
        if (trial == IN_BATCH) {
            refused = result != 0;
            result = 0;
        }
        ldr_cu_t over = cuda->stream_sync(t->copier->copy);
        result = result != 0 ? result : over;
        uint64_t took = ldr_now_ns(&ldr_clock_real) - begin_ns;
        if (result == 0) {
            t->best_ns[trial] =
                ldr_min64(t->best_ns[trial], ldr_max64(took, 1));
        }
    }
    if (refused) {
        t->best_ns[IN_BATCH] = UINT64_MAX;
    }
    t->gpu->can_batch = result == 0 && t->best_ns[IN_BATCH] != UINT64_MAX;
    t->gpu->batch =
        t->gpu->can_batch && t->best_ns[IN_BATCH] < t->best_ns[IN_RUNS];
    return ldr_cuda_status(cuda, result, "a trial copy");
}

/* A buffer, and the kernel's units: from the host's memory to it. */
static larder_status_t prepare(tune_t *t)
{
    larder_gpu_t *gpu = t->gpu;
    ldr_gpu_slot_t *slot = &t->copier->slot[0];
    ldr_cu_ptr_t there;
    larder_status_t st = ldr_gpu_slot_bounce(gpu, slot);

    t->buffer = slot->buffer;
    if (st == LARDER_OK && t->buffer == 0) { /* copiers without a kernel */
        st = ldr_cuda_status(gpu->cuda,
                             gpu->cuda->alloc(&t->buffer, LDR_GPU_PIECE),
                             "cuMemAlloc");
    }
    if (st == LARDER_OK) {
        st = ldr_cuda_status(gpu->cuda,
                             gpu->cuda->host_device(&there, slot->bounce, 0),
                             "cuMemHostGetDevicePointer");
    }
    for (uint32_t i = 0; st == LARDER_OK && i < LDR_GPU_PIECE / LDR_GPU_UNIT;
         i++) {
        slot->units[i] = (ldr_gpu_unit_t){.from = there + i * LDR_GPU_UNIT,
                                          .to = t->buffer + i * LDR_GPU_UNIT,
                                          .words = LDR_GPU_WORDS};
    }
    return st;
}

/* From what was measured. */
static void decide(const tune_t *t)
{
    larder_gpu_t *gpu = t->gpu;
    const uint64_t *best = t->best_ns;
    uint64_t runs = ldr_min64(best[IN_RUNS], best[IN_BATCH]);
    double piece = (double)LDR_GPU_PIECE;
    double start = runs > best[WHOLE] ? (double)(runs - best[WHOLE]) /
                                            (piece / (double)RUN - 1)
                                      : 0;
    double slower = ((double)best[BY_KERNEL] - (double)best[WHOLE]) / piece;

    gpu->run_min = slower > 0 && start / slower < piece
                       ? (size_t)(start / slower)
                       : LDR_GPU_PIECE;
    ldr_info(&gpu->log,
             "GPU %d: link %.1f GB/s, by kernel %.1f GB/s, %.1f us to start a "
             "copy%s: parts of less than %zu KiB on the host go by kernel",
             gpu->device, piece / (double)best[WHOLE],
             piece / (double)best[BY_KERNEL], start / 1000,
             gpu->batch ? " of many" : "", gpu->run_min >> 10);
}

larder_status_t ldr_gpu_tune(larder_gpu_t *gpu)
{
    tune_t t = {.gpu = gpu};
    larder_status_t st = ldr_gpu_copier_take(gpu, UINT64_MAX, &t.copier);

    if (st != LARDER_OK) {
        return st;
    }
    for (unsigned i = 0; i < TRIALS; i++) {
        t.best_ns[i] = UINT64_MAX;
    }
    st = prepare(&t);
    if (st == LARDER_OK) {
        st = try_all(&t);
    }
    if (t.buffer != 0 && t.buffer != t.copier->slot[0].buffer) {
        gpu->cuda->free(t.buffer);
    }
    ldr_gpu_copier_give(gpu, t.copier);
    if (st == LARDER_OK && gpu->kernel != NULL) {
        decide(&t);
    }
    return st;
}
