/*
 * Engine memory on a GPU.
 *
 * By shared memory the GPU reads and writes the arena itself (shm_gpu.c). An
 * embedded node and one that is reached by TCP give and take memory of the
 * host: shards go one by one by way of a buffer here.
 */
#include "gpu/gpu.h"

#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "base/thread.h"
#include "client/prefix.h"
#include "client/shm.h"

#define WARM_NS 600000000000u /* nobody waits for it */

/* ---- attaching ---- */

static void say_registered(ldr_remote_t *r)
{
    const ldr_shm_t *shm = r->state;
    larder_gpu_stats_t s = {.struct_bytes = sizeof(s)};

    if (larder_gpu_stats(shm->gpu, &s) == LARDER_OK && s.registered_bytes > 0) {
        double seconds = (double)s.register_ns * 1e-9;

        ldr_info(&r->log,
                 "%.1f GB of the node's memory registered with the GPU in %.2f "
                 "s (%.1f s for 100 GB)",
                 (double)s.registered_bytes * 1e-9, seconds,
                 seconds * 100e9 / (double)s.registered_bytes);
    }
}

static void *warm_main(void *arg)
{
    ldr_remote_t *r = arg;
    const ldr_shm_t *shm = r->state;
    ldr_stop_t stop = {&shm->warm_stop, ldr_now_ns(r->clock) + WARM_NS};
    ldr_talk_t v;

    if (ldr_talk_begin(&v, r, NULL, &stop) == LARDER_OK) {
        ldr_breaker_good(r); /* it is there: nobody waits for the end of this */
        ldr_map_warm(ldr_shm_of(v.link), &stop);
        ldr_talk_end(&v, LARDER_OK);
        say_registered(r);
    }
    return NULL;
}

larder_status_t larder_gpu_attach(larder_t *lar, larder_gpu_t *gpu)
{
    larder_status_t st = ldr_handle_check(lar);

    if (st != LARDER_OK) {
        return st;
    }
    if (gpu == NULL) {
        return ldr_fail(LARDER_E_INVALID, "gpu is NULL");
    }
    if (lar->data_path != &ldr_data_path_shm) {
        return LARDER_OK; /* nothing is shared */
    }
    ldr_shm_t *shm = lar->remote->state;
    larder_gpu_t *none = NULL;
    if (!__atomic_compare_exchange_n(&shm->gpu, &none, gpu, false,
                                     __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
        return none == gpu
                   ? LARDER_OK
                   : ldr_fail(LARDER_E_INVALID, "the handle has another GPU");
    }
    shm->warms =
        ldr_thread_start(&shm->warmer, "larder-warm", warm_main, lar->remote);
    return LARDER_OK;
}

void ldr_gpu_detach(larder_t *lar)
{
    ldr_shm_t *shm = lar->remote->state;

    if (lar->data_path == &ldr_data_path_shm && shm->warms) {
        __atomic_store_n(&shm->warm_stop, true, __ATOMIC_RELAXED);
        pthread_join(shm->warmer, NULL);
        shm->warms = false;
    }
}

/* ---- by way of a buffer ---- */

typedef struct bounce {
    larder_space_t *space;
    const ldr_op_gpu_t *gpu;
    uint64_t deadline_ns;
    uint8_t *buffer;
} bounce_t;

static larder_status_t bounce_move(const bounce_t *b, const larder_item_t *item,
                                   bool load, size_t bytes)
{
    struct iovec host = {b->buffer, bytes};
    ldr_page_list_t pages = {0};
    larder_status_t st = b->gpu->list(b->gpu->arg, item, &pages);
    ldr_gpu_shard_t shard = {.pages = pages.rows,
                             .page_count = pages.count,
                             .host = &host,
                             .host_count = 1};
    ldr_gpu_copy_t copy = {.load = load,
                           .shards = &shard,
                           .count = 1,
                           .nowhere = b->gpu->nowhere,
                           .nowhere_bytes = b->gpu->nowhere_bytes,
                           .after = b->gpu->after,
                           .deadline_ns = b->deadline_ns};

    return st == LARDER_OK ? ldr_gpu_move(b->gpu->gpu, &copy) : st;
}

/* The item with the buffer in the place of its pages. */
static void bounce_run(const bounce_t *b, larder_op_t kind, larder_item_t *item,
                       size_t bytes)
{
    struct iovec host = {b->buffer, bytes};
    larder_item_t one = *item;
    larder_op_params_t params = {
        .field_mask = LARDER_OP_TIMEOUT | LARDER_OP_FLAGS,
        .timeout_ms = ldr_prefix_left_ms(b->space->lar, b->deadline_ns),
        .flags = kind == LARDER_OP_GET ? LDR_BATCH_AGAIN : 0};

    one.iov = &host;
    one.iov_count = 1;
    larder_status_t st = larder_run(b->space, kind, &one, 1, &params);
    item->status = st == LARDER_OK ? one.status : st;
    item->cause = one.cause;
    item->length = one.length;
}

static size_t item_bytes(const larder_item_t *item)
{
    size_t bytes = 0;

    for (uint32_t i = 0; i < item->iov_count; i++) {
        bytes += item->iov[i].iov_len;
    }
    return bytes;
}

static void bounce_one(const bounce_t *b, larder_op_t kind, larder_item_t *item)
{
    size_t bytes = item_bytes(item);
    larder_status_t st = LARDER_OK;

    item->cause = LARDER_CAUSE_NONE;
    if (kind == LARDER_OP_GET) {
        bounce_run(b, kind, item, bytes);
        if (item->status == LARDER_OK && item->length == bytes) {
            st = bounce_move(b, item, true, bytes);
        }
    } else {
        bounce_run(b, LARDER_OP_EXISTS, item, bytes);
        if (item->status == LARDER_OK) {
            item->status = LARDER_PRESENT;
            return;
        }
        st = bounce_move(b, item, false, bytes);
        if (st == LARDER_OK) {
            bounce_run(b, kind, item, bytes);
        }
    }
    if (st != LARDER_OK) {
        item->status = st;
    }
}

larder_status_t ldr_run_gpu(larder_space_t *space, larder_op_t kind,
                            larder_item_t *items, size_t count,
                            const larder_op_params_t *params,
                            const ldr_op_gpu_t *gpu, const ldr_op_load_t *load)
{
    size_t most = 0;

    if (space->lar->data_path == &ldr_data_path_shm) {
        return ldr_run(space, kind, items, count, params, gpu, load);
    }
    ldr_op_gpu_t own = *gpu;
    bounce_t b = {.space = space, .gpu = &own};
    if (gpu->ready != NULL) {
        larder_status_t st = gpu->ready(gpu->arg, &own.after);

        if (st != LARDER_OK) {
            return st;
        }
    }
    b.deadline_ns = ldr_deadline(space->lar, params->timeout_ms);
    for (size_t i = 0; i < count; i++) {
        most = ldr_max64(most, item_bytes(&items[i]));
    }
    b.buffer = ldr_alloc_blocks(most);
    if (b.buffer == NULL) {
        return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for a shard");
    }
    for (size_t i = 0; i < count; i++) {
        bounce_one(&b, kind, &items[i]);
    }
    ldr_free(b.buffer);
    return LARDER_OK;
}
