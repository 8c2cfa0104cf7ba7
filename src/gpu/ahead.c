/*
 * What comes before a copy: the event it waits for; and where pages are not
 * known yet, the first pieces of a load, as far as their buffers.
 *
 * Pieces are cut later, when there are pages, and maybe otherwise: a piece is
 * taken for sent only if it is of the same runs. Else it is sent again, behind
 * the first in the same stream.
 */
#include <time.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/iov.h"
#include "gpu/gpu_int.h"

#define NAP_NS 20000u   /* between two looks at the engine's event, */
#define NAP_MAX 200000u /* for it may take long */

larder_status_t ldr_gpu_await(larder_gpu_t *gpu, const ldr_gpu_copy_t *copy)
{
    struct timespec nap = {0, NAP_NS};
    ldr_cu_t result = 0;

    while (copy->after != NULL &&
           (result = gpu->cuda->event_query(copy->after)) == LDR_CU_NOT_READY) {
        if (ldr_now_ns(&ldr_clock_real) >= copy->deadline_ns) {
            return ldr_fail(LARDER_E_DEADLINE, "a copy was not over in time");
        }
        nanosleep(&nap, NULL);
        nap.tv_nsec = (long)ldr_min64((uint64_t)nap.tv_nsec + NAP_NS, NAP_MAX);
    }
    return ldr_cuda_status(gpu->cuda, result, "what comes before a copy");
}

/* Where a walk through all shards' memory on the host is. */
typedef struct walk {
    uint32_t shard;
    ldr_cursor_t host; /* iov is NULL: at its beginning */
} walk_t;

/* The runs of the next piece of so many bytes. False: there is none, or it has
 * too many. */
static bool gather(larder_gpu_t *gpu, const ldr_gpu_copy_t *copy, walk_t *w,
                   ldr_gpu_slot_t *slot, size_t piece)
{
    ldr_cu_ptr_t there;

    slot->ahead_bytes = 0;
    while (slot->ahead_bytes < piece && w->shard < copy->count) {
        const ldr_gpu_shard_t *s = &copy->shards[w->shard];
        if (w->host.iov == NULL) {
            w->host.iov = s->host;
        } else if (w->host.iov == s->host + s->host_count) {
            *w = (walk_t){w->shard + 1, {NULL, 0}};
            continue;
        }
        uint8_t *host = ldr_cursor_here(&w->host);
        size_t n = ldr_gpu_reach(gpu, host, ldr_cursor_left(&w->host), &there);
        n = ldr_min64(n, piece - slot->ahead_bytes);
        if (n == 0 || slot->ahead_count == LDR_GPU_AHEAD_RUNS) {
            slot->ahead_count = 0;
            return false;
        }
        slot->ahead[slot->ahead_count++] =
            (ldr_gpu_run_t){host, slot->ahead_bytes, n, w->shard};
        slot->ahead_bytes += n;
        ldr_cursor_go(&w->host, n);
    }
    return slot->ahead_count > 0;
}

ldr_cu_t ldr_gpu_ahead(larder_gpu_t *gpu, ldr_gpu_copier_t *copier,
                       const ldr_gpu_copy_t *copy, uint64_t bytes)
{
    const ldr_cuda_t *cuda = gpu->cuda;
    walk_t w = {0, {NULL, 0}};
    ldr_cu_t result = 0;

    for (unsigned i = 0; i < LDR_GPU_SLOTS && result == 0; i++) {
        ldr_gpu_slot_t *slot = &copier->slot[i];
        size_t half = bytes / 2 / 4096 * 4096;

        /* Small ones last, as all of a move. */
        if (!gather(
                gpu, copy, &w, slot,
                ldr_min64(LDR_GPU_PIECE, ldr_max64(LDR_GPU_PIECE_MIN, half)))) {
            break;
        }
        ldr_gpu_parts_begin(copier);
        for (uint32_t k = 0; k < slot->ahead_count; k++) {
            const ldr_gpu_run_t *r = &slot->ahead[k];

            ldr_gpu_parts_add(copier, slot->buffer + r->at, r->host, r->bytes);
        }
        result = ldr_gpu_parts_queue(gpu, copier, true);
        if (result == 0) {
            result = cuda->event_record(slot->half, copier->copy);
        }
        bytes -= slot->ahead_bytes;
    }
    return result;
}

bool ldr_gpu_is_ahead(ldr_gpu_slot_t *slot)
{
    bool same = slot->ahead_count > 0 && slot->ahead_count == slot->run_count;

    for (uint32_t i = 0; i < slot->run_count && same; i++) {
        const ldr_gpu_run_t *a = &slot->ahead[i], *b = &slot->runs[i];

        same = a->host == b->host && a->at == b->at && a->bytes == b->bytes;
    }
    slot->ahead_count = 0;
    return same;
}

void ldr_gpu_ahead_forget(ldr_gpu_copier_t *copier)
{
    for (unsigned i = 0; i < LDR_GPU_SLOTS; i++) {
        copier->slot[i].ahead_count = 0;
    }
}
