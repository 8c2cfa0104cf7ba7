/*
 * Which way is faster here: measured once, when the GPU is opened, on memory of
 * our own; some milliseconds.
 *
 * Staged moves a run of s bytes in o + s / r: what a start of the copy engine
 * costs, and the link. Direct moves it at a rate of its own, d, which is lower,
 * and costs nothing to start. So staged wins for runs of more than
 * o / (1/d - 1/r).
 */
#include "base/bytes.h"
#include "base/clock.h"
#include "gpu/gpu_int.h"

#define RUN ((size_t)64 << 10)
#define TIMES 8u /* the first find the device asleep */

typedef enum trial { WHOLE, IN_RUNS, BY_KERNEL, TRIALS } trial_t;

static ldr_cu_t try_one(larder_gpu_t *gpu, ldr_gpu_lane_t *lane, trial_t trial)
{
    const ldr_cuda_t *cuda = gpu->cuda;
    ldr_gpu_slot_t *slot = &lane->slot[0];
    size_t run = trial == WHOLE ? LDR_GPU_PIECE : RUN;
    ldr_cu_t result = 0;

    if (trial == BY_KERNEL) {
        uint32_t count = LDR_GPU_PIECE / LDR_GPU_UNIT, check = 1;
        void *arguments[] = {&slot->units_there, &count, &gpu->tables,
                             &lane->sums, &check};

        return cuda->launch(gpu->kernel, gpu->grid, 1, 1, LDR_GPU_THREADS, 1, 1,
                            0, lane->copy, arguments, NULL);
    }
    for (size_t at = 0; at < LDR_GPU_PIECE && result == 0; at += run) {
        result = cuda->to_device(slot->buffer + at, slot->bounce + at, run,
                                 lane->copy);
    }
    return result;
}

/* The kernel's units: from the host's memory to the buffer. */
static larder_status_t prepare(larder_gpu_t *gpu, ldr_gpu_slot_t *slot)
{
    ldr_cu_ptr_t there;
    larder_status_t st = ldr_gpu_slot_bounce(gpu, slot);

    if (st == LARDER_OK) {
        st = ldr_cuda_status(gpu->cuda,
                             gpu->cuda->host_device(&there, slot->bounce, 0),
                             "cuMemHostGetDevicePointer");
    }
    for (uint32_t i = 0; st == LARDER_OK && i < LDR_GPU_PIECE / LDR_GPU_UNIT;
         i++) {
        slot->units[i] = (ldr_gpu_unit_t){.from = there + i * LDR_GPU_UNIT,
                                          .to = slot->buffer + i * LDR_GPU_UNIT,
                                          .bytes = LDR_GPU_UNIT};
    }
    return st;
}

larder_status_t ldr_gpu_tune(larder_gpu_t *gpu)
{
    ldr_gpu_lane_t *lane;
    uint64_t best[TRIALS] = {UINT64_MAX, UINT64_MAX, UINT64_MAX};
    larder_status_t st = ldr_gpu_lane_take(gpu, UINT64_MAX, &lane);

    if (st != LARDER_OK) {
        return st;
    }
    st = prepare(gpu, &lane->slot[0]);
    for (unsigned i = 0; i < TIMES * TRIALS && st == LARDER_OK; i++) {
        uint64_t begin_ns = ldr_now_ns(&ldr_clock_real);
        ldr_cu_t result = try_one(gpu, lane, i % TRIALS);

        result = result != 0 ? result : gpu->cuda->stream_sync(lane->copy);
        uint64_t took = ldr_now_ns(&ldr_clock_real) - begin_ns;
        best[i % TRIALS] = ldr_min64(best[i % TRIALS], ldr_max64(took, 1));
        st = ldr_cuda_status(gpu->cuda, result, "a trial copy");
    }
    if (st != LARDER_OK) {
        gpu->cuda->stream_sync(lane->copy);
    }
    ldr_gpu_lane_give(gpu, lane);
    if (st != LARDER_OK) {
        return st;
    }
    double piece = (double)LDR_GPU_PIECE;
    double start =
        best[IN_RUNS] > best[WHOLE]
            ? (double)(best[IN_RUNS] - best[WHOLE]) / (piece / (double)RUN - 1)
            : 0;
    double slower = ((double)best[BY_KERNEL] - (double)best[WHOLE]) / piece;
    gpu->run_min = slower > 0 && start / slower < piece
                       ? (size_t)(start / slower)
                       : LDR_GPU_PIECE;
    ldr_info(&gpu->log,
             "GPU %d: link %.1f GB/s, by kernel %.1f GB/s, %.1f us to start a "
             "copy: parts of less than %zu KiB on the host go by kernel",
             gpu->device, piece / (double)best[WHOLE],
             piece / (double)best[BY_KERNEL], start / 1000, gpu->run_min >> 10);
    return LARDER_OK;
}
