/*
 * Copies between a GPU's memory and memory of the host: scattered pages there,
 * a shard's few segments here.
 *
 * A copy is made of pieces of some MiB, each by way of a buffer on the device:
 * the copy engine moves the piece in one go, or a few, between the host and
 * the buffer, and a small kernel moves it between the buffer and the pages and
 * sums up the checksum. So the link runs at the speed of contiguous copies,
 * whatever the pages' size, and the kernel needs few multiprocessors, briefly.
 * Where a page's rows lie apart, the kernel steps from row to row: a list has
 * an entry for rows of equal size that are equally far apart, not for each row.
 *
 *   load   host ==copy engine==> buffer ==kernel==> pages
 *   save   pages ==kernel==> buffer ==copy engine==> host
 *
 * Other ways, by what the memory is like:
 *   direct   the host's segments are small: the kernel itself reads or writes
 *            the host's memory
 *   bounce   the host's memory is not registered: the CPU copies, with the
 *            checksum, through registered memory of ours
 *   plain    no kernel can be had (no libnvrtc), or something is not aligned
 *            to 16 bytes: bounce, and the copy engine moves row by row
 *
 * A copier is what one copy needs: two streams, the pieces' buffers, and
 * events. A call takes a copier, and another one that comes meanwhile takes the
 * next.
 *
 * Order against the engine: a copy begins after the event it was given. When
 * the call returns nothing of it is under way, whatever it returns: so pages
 * and segments can be used again. Streams are of the lowest priority, and
 * belong to nobody else; nothing here waits for the whole device.
 *
 * Failures: what the driver reports ends the copy with a status. A device that
 * does not answer any more is not asked again (broken).
 *
 * Threads: every function may be called from any thread, also while the engine
 * captures a graph in another.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "larder/larder.h"
#include "layout/layout.h"

/* One shard: the same bytes in two places. */
typedef struct ldr_gpu_shard {
    const ldr_page_rows_t *pages; /* on the device, in order */
    uint32_t page_count;
    const struct iovec *host; /* the same number of bytes, in order */
    uint32_t host_count;
    uint32_t crc; /* result: CRC-32C of the bytes that were moved */
} ldr_gpu_shard_t;

typedef enum ldr_gpu_way {
    LDR_GPU_STAGED,
    LDR_GPU_DIRECT,
    LDR_GPU_BOUNCE,
    LDR_GPU_PLAIN,
    LDR_GPU_WAYS
} ldr_gpu_way_t;

typedef struct ldr_gpu_copy {
    bool load; /* host to device */
    ldr_gpu_shard_t *shards;
    uint32_t count; /* at most LDR_GPU_SHARDS_MAX */
    /* load: pages in this range of addresses are not there: their bytes are
     * summed up, and written nowhere */
    const uint8_t *nowhere;
    size_t nowhere_bytes;
    void *after;          /* a CUevent; NULL: at once */
    uint64_t deadline_ns; /* E_DEADLINE: some was copied, or nothing */
    /* Sets a shard's pages when it is begun, while those before it move. NULL:
     * they are set */
    larder_status_t (*list)(void *arg, uint32_t shard);
    /* load, with list: waits until pages can be listed, and sets after. Asked
     * once, when as much is on its way to the buffers as they hold; nothing is
     * written to pages before. NULL: they can */
    larder_status_t (*ready)(void *arg, void **after_p);
    void *arg;
    /* for measuring only; ways that cannot be are not taken */
    bool forced;
    ldr_gpu_way_t way;
} ldr_gpu_copy_t;

#define LDR_GPU_SHARDS_MAX 4096u

/* A list of pages, for a copy. It is long, and memory that is new or given back
 * takes longer than filling it: so a few are kept. */
typedef struct ldr_gpu_list {
    ldr_page_rows_t *rows; /* NULL: there is not enough memory */
    uint32_t capacity;     /* at least as many as were asked for */
} ldr_gpu_list_t;
ldr_gpu_list_t ldr_gpu_list_take(larder_gpu_t *gpu, uint32_t capacity);
void ldr_gpu_list_give(larder_gpu_t *gpu, ldr_gpu_list_t list);

/* Moves all of it. LARDER_OK: every shard's crc is set. E_SIZE: the lists of a
 * shard are not of the same bytes; some of those before it was copied. */
larder_status_t ldr_gpu_move(larder_gpu_t *gpu, ldr_gpu_copy_t *copy);

/* Registers memory with the driver, slice by slice, so that the device reaches
 * it. What cannot be registered is copied by way of bounces: that is said once,
 * and is no failure. The memory stays mapped until it is unregistered. */
void ldr_gpu_register(larder_gpu_t *gpu, void *base, size_t bytes);
/* No copy of it is under way. */
void ldr_gpu_unregister(larder_gpu_t *gpu, void *base, size_t bytes);
