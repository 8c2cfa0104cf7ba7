/*
 * Loading and saving by shared memory, between the arena and a GPU's memory:
 * the GPU copies, and sums up the checksums. As shm_ops.c and shm_put.c, but a
 * window's shards go in one copy, and windows are large, so that the link is
 * never idle for long.
 *
 * The daemon's death in the middle harms nobody: the memory stays mapped while
 * it is used; what was loaded is checked, and what was saved is not committed.
 */
#include "base/bytes.h"
#include "base/fault.h"
#include "base/mem.h"
#include "client/shm_ops.h"
#include "gpu/gpu.h"

/* Memory that is being registered with the GPU is waited for: by way of the CPU
 * a load takes so long anyway, and a save keeps the CPU from the engine. */
#define BOUNCE_SPEED 5u /* bytes a nanosecond */
#define SAVE_WAIT_NS 500000000u

/* The shards of a window that got leases or room. */
typedef struct bulk {
    const ldr_op_gpu_t *gpu;
    uint32_t count;
    larder_item_t *items[LDR_SHM_ITEMS];
    ldr_end_row_t ends[LDR_SHM_ITEMS];
    uint32_t crcs[LDR_SHM_ITEMS]; /* as the daemon has them: loads */
    uint32_t first[LDR_SHM_ITEMS], segs[LDR_SHM_ITEMS];
    ldr_gpu_shard_t shards[LDR_SHM_ITEMS];
    ldr_piece_map_t *pieces;
    struct iovec *host;
    uint32_t piece_count;
} bulk_t;

static bulk_t *bulk_new(const ldr_results_t *results)
{
    ldr_rows_t rows = {.results = results};
    ldr_result_row_t row;
    const uint8_t *segs;
    uint32_t total = 1;
    bulk_t *k = ldr_alloc(sizeof(*k));

    while (ldr_rows_next(&rows, &row, &segs)) {
        total += row.seg_count;
    }
    if (k != NULL) {
        k->pieces = ldr_alloc(total * sizeof(*k->pieces));
        k->host = ldr_alloc(total * sizeof(*k->host));
    }
    return k;
}

static bool bulk_made(const bulk_t *k)
{
    return k != NULL && k->pieces != NULL && k->host != NULL;
}

static void bulk_free(bulk_t *k)
{
    if (k != NULL) {
        ldr_free(k->pieces);
        ldr_free(k->host);
        ldr_free(k);
    }
}

/* Takes a row in: from here on its lease ends with the others. */
static void bulk_add(ldr_shm_batch_t *b, bulk_t *k, larder_item_t *item,
                     const ldr_result_row_t *row, const uint8_t *segs)
{
    uint32_t n = k->count++, first = k->piece_count;
    larder_status_t st = b->status;

    k->items[n] = item;
    k->ends[n] = (ldr_end_row_t){.lease = row->lease, .how = LDR_END_ABORT};
    k->crcs[n] = row->crc;
    k->first[n] = first;
    k->segs[n] = 0;
    if (st == LARDER_OK) {
        st = ldr_map_segs(b->session, row, segs, &b->talk.stop,
                          k->pieces + first);
    }
    if (st != LARDER_OK) {
        b->status = st;
        return;
    }
    k->segs[n] = row->seg_count;
    k->piece_count += row->seg_count;
    for (uint32_t i = 0; i < row->seg_count; i++) {
        const ldr_piece_map_t *p = &k->pieces[first + i];

        k->host[first + i] =
            (struct iovec){p->map->write + p->offset, p->bytes};
    }
    k->shards[n] = (ldr_gpu_shard_t){.pages = item->iov,
                                     .page_count = item->iov_count,
                                     .host = k->host + first,
                                     .host_count = row->seg_count};
}

static void bulk_await(ldr_shm_batch_t *b, const bulk_t *k, bool load)
{
    uint64_t now_ns = ldr_shm_now(b->session), bytes = 0;

    for (uint32_t i = 0; i < k->piece_count; i++) {
        bytes += k->pieces[i].bytes;
    }
    uint64_t left_ns =
        b->talk.stop.deadline_ns - ldr_min64(now_ns, b->talk.stop.deadline_ns);
    uint64_t wait_ns = load ? bytes / BOUNCE_SPEED : SAVE_WAIT_NS;
    ldr_map_await_gpu(b->session, k->pieces, k->piece_count, &b->talk.stop,
                      now_ns + ldr_min64(wait_ns, left_ns / 2));
}

static larder_status_t bulk_list(void *arg, uint32_t shard)
{
    bulk_t *k = arg;
    larder_item_t *item = k->items[shard];
    larder_status_t st = k->gpu->list(k->gpu->arg, item);

    k->shards[shard].pages = item->iov;
    k->shards[shard].page_count = item->iov_count;
    return st;
}

static larder_status_t bulk_ready(void *arg, void **after_p)
{
    const bulk_t *k = arg;

    return k->gpu->ready(k->gpu->arg, after_p);
}

/* Copies all of them, if nothing went wrong before, and lets go of the
 * memory. */
static void bulk_copy(ldr_shm_batch_t *b, bulk_t *k, bool load)
{
    const ldr_op_gpu_t *gpu = b->op->gpu;
    ldr_gpu_copy_t copy = {.load = load,
                           .shards = k->shards,
                           .count = k->count,
                           .nowhere = gpu->nowhere,
                           .nowhere_bytes = gpu->nowhere_bytes,
                           .after = gpu->after,
                           .deadline_ns = b->talk.stop.deadline_ns,
                           .list = gpu->list != NULL ? bulk_list : NULL,
                           .ready = gpu->ready != NULL ? bulk_ready : NULL,
                           .arg = k};

    k->gpu = gpu;
    if (b->status == LARDER_OK) {
        bulk_await(b, k, load);
        b->status = ldr_talk_stopped(&b->talk);
    }
    if (b->status == LARDER_OK) {
        b->status = ldr_gpu_move(gpu->gpu, &copy);
    }
    if (b->status == LARDER_OK && !load && ldr_shm_dead(b->session)) {
        b->status = LARDER_E_OFFLINE;
    }
    for (uint32_t i = 0; !load && i < k->count && b->status == LARDER_OK; i++) {
        ldr_pieces_pad(&k->pieces[k->first[i] + k->segs[i] - 1]);
    }
    ldr_unmap_segs(b->session, k->pieces, k->piece_count);
}

/* ---- loading ---- */

static void load_done(ldr_shm_batch_t *b, bulk_t *k)
{
    larder_item_t *corrupt[LDR_SHM_ITEMS];
    uint32_t corrupt_count = 0;

    for (uint32_t i = 0; i < k->count; i++) {
        larder_item_t *item = k->items[i];

        k->ends[i].how = LDR_END_PLAIN;
        if (b->status != LARDER_OK) {
            item->length = 0;
            ldr_item_refuse(LARDER_OP_GET, item, b->status);
        } else if (k->shards[i].crc != k->crcs[i]) {
            item->status = LARDER_MISS;
            item->cause = LARDER_CAUSE_CORRUPT;
            item->length = 0;
            corrupt[corrupt_count++] = item;
        } else {
            item->status = LARDER_OK;
            k->ends[i].how = LDR_END_CHECKED;
        }
    }
    if (k->count > 0) {
        ldr_shm_ends(b->session, LDR_OP_RELEASE, k->ends, k->count);
    }
    if (corrupt_count > 0) {
        ldr_report(&b->talk, corrupt, corrupt_count);
    }
}

/* What a leased row means for its item; true: it is to be copied. */
static bool load_row(larder_item_t *item, const ldr_result_row_t *row)
{
    item->length = row->length;
    if (row->status != LARDER_OK) {
        item->status = row->status;
        item->cause = row->cause;
        item->length = row->status == LARDER_E_SIZE ? row->length : 0;
        return false;
    }
    return true;
}

static void work_load(ldr_shm_batch_t *b, ldr_shm_window_t *w,
                      const ldr_results_t *results)
{
    ldr_rows_t rows = {.results = results};
    uint32_t ok = ldr_rows_ok(results);
    bulk_t *k = bulk_new(results);

    if (!bulk_made(k) && b->status == LARDER_OK) {
        b->status = ldr_fail(LARDER_E_NO_MEMORY, "not enough memory to load");
    }
    for (uint32_t i = 0; i < w->count; i++) {
        larder_item_t *item = &b->op->items[w->item[i]];
        ldr_result_row_t row;
        const uint8_t *segs;

        if (!ldr_shm_row(b, item, &rows, &row, &segs)) {
            continue;
        }
        if (ldr_shm_ask_again(w, &row, ok)) {
            ldr_todo_push(&b->todo, w->item[i]);
        } else if (!load_row(item, &row)) {
            b->progress = true;
        } else if (!bulk_made(k) || row.length != ldr_item_bytes(item)) {
            /* A GPU's buffers are exactly as large as what is loaded. */
            ldr_end_row_t end = {.lease = row.lease, .how = LDR_END_PLAIN};

            ldr_shm_ends(b->session, LDR_OP_RELEASE, &end, 1);
            item->status = bulk_made(k) ? LARDER_E_SIZE : b->status;
            b->progress = true;
        } else {
            b->progress = true;
            bulk_add(b, k, item, &row, segs);
        }
    }
    if (bulk_made(k)) {
        if (LDR_FAULT(copy_out) && k->piece_count > 0) {
            ((uint8_t *)k->host[0].iov_base)[k->host[0].iov_len / 2] ^= 4;
        }
        bulk_copy(b, k, true);
        load_done(b, k);
    }
    bulk_free(k);
}

/* ---- saving ---- */

static void save_done(ldr_shm_batch_t *b, bulk_t *k)
{
    for (uint32_t i = 0; i < k->count; i++) {
        if (b->status == LARDER_OK) {
            k->ends[i].how = LDR_END_PLAIN;
            k->ends[i].crc = k->shards[i].crc;
            k->items[i]->status = LARDER_OK;
        } else {
            ldr_item_refuse(LARDER_OP_PUT, k->items[i], b->status);
        }
    }
    ldr_shm_put_end(b, k->ends, k->count, k->items);
}

static void work_save(ldr_shm_batch_t *b, ldr_shm_window_t *w,
                      const ldr_results_t *results)
{
    ldr_rows_t rows = {.results = results};
    uint32_t ok = ldr_rows_ok(results);
    bulk_t *k = bulk_new(results);

    if (!bulk_made(k) && b->status == LARDER_OK) {
        b->status = ldr_fail(LARDER_E_NO_MEMORY, "not enough memory to save");
    }
    for (uint32_t i = 0; i < w->count; i++) {
        larder_item_t *item = &b->op->items[w->item[i]];
        ldr_result_row_t row;
        const uint8_t *segs;

        if (!ldr_shm_row(b, item, &rows, &row, &segs)) {
            continue;
        }
        bool full = row.status == LARDER_E_FULL || row.status == LARDER_E_LIMIT;
        if (row.status == LARDER_PENDING || (full && (!w->alone || ok > 0))) {
            ldr_todo_push(&b->todo, w->item[i]);
            continue;
        }
        b->progress = true;
        if (row.status != LARDER_OK) {
            item->status = row.status;
        } else if (!bulk_made(k) || row.length != ldr_item_bytes(item)) {
            ldr_end_row_t end = {.lease = row.lease, .how = LDR_END_ABORT};

            ldr_shm_ends(b->session, LDR_OP_COMMIT, &end, 1);
            item->status = bulk_made(k) ? LARDER_E_OFFLINE : b->status;
        } else {
            bulk_add(b, k, item, &row, segs);
        }
    }
    if (bulk_made(k)) {
        bulk_copy(b, k, false);
        save_done(b, k);
    }
    bulk_free(k);
}

void ldr_shm_get_gpu(ldr_op_t *op)
{
    ldr_shm_run(op, ldr_shm_ask_lease, work_load);
}

void ldr_shm_put_gpu(ldr_op_t *op)
{
    ldr_shm_run(op, ldr_shm_ask_reserve, work_save);
}
