/*
 * Transfers through shared memory, between the arena and a GPU's memory: the
 * GPU copies, and sums up the checksums. The shards of a reply go in one copy,
 * and requests are large, so that the link is never idle for long.
 *
 * The daemon's death in the middle harms nobody: the memory stays mapped while
 * it is used; what was loaded is checked, and what was saved is not committed.
 */
#include "base/bytes.h"
#include "base/fault.h"
#include "base/mem.h"
#include "client/shm_path.h"
#include "gpu/gpu.h"

/* Memory that is being registered with the GPU is waited for: by way of the CPU
 * a load takes so long anyway, and a save keeps the CPU from the engine. */
#define BOUNCE_SPEED 5u /* bytes a nanosecond */
#define SAVE_WAIT_NS 500000000u

/* The shards of a reply that got leases or room. */
typedef struct ldr_bulk {
    const ldr_op_gpu_t *gpu;
    uint32_t count;
    larder_item_t *items[LDR_ASK_ITEMS];
    ldr_result_row_t rows[LDR_ASK_ITEMS];
    uint32_t first[LDR_ASK_ITEMS]; /* of its pieces */
    ldr_gpu_shard_t shards[LDR_ASK_ITEMS];
    ldr_piece_map_t *pieces;
    struct iovec *host;
    uint32_t piece_count;
} ldr_bulk_t;

static void bulk_free(ldr_bulk_t *k)
{
    if (k != NULL) {
        ldr_free(k->pieces);
        ldr_free(k->host);
        ldr_free(k);
    }
}

/* Room for all of a reply; NULL: there is no memory. */
static ldr_bulk_t *bulk_new(const ldr_results_t *results)
{
    size_t total = (size_t)results->seg_count + 1;
    ldr_bulk_t *k = ldr_alloc(sizeof(*k));

    if (k != NULL) {
        k->pieces = ldr_alloc(total * sizeof(*k->pieces));
        k->host = ldr_alloc(total * sizeof(*k->host));
    }
    if (k != NULL && (k->pieces == NULL || k->host == NULL)) {
        bulk_free(k);
        k = NULL;
    }
    return k;
}

/* Takes a row in: from here on its lease ends with the others. */
static void bulk_map(ldr_transfer_t *t, ldr_bulk_t *k, larder_item_t *item,
                     const ldr_result_row_t *row, const uint8_t *segs)
{
    uint32_t n = k->count++, first = k->piece_count;

    k->items[n] = item;
    k->rows[n] = *row;
    k->first[n] = first;
    if (t->status == LARDER_OK) {
        t->status = ldr_map_segs(ldr_transfer_shm(t), row, segs, &t->talk.stop,
                                 k->pieces + first);
    }
    if (t->status != LARDER_OK) {
        return;
    }
    k->piece_count += row->seg_count;
    for (uint32_t i = 0; i < row->seg_count; i++) {
        const ldr_piece_map_t *p = &k->pieces[first + i];

        k->host[first + i] =
            (struct iovec){p->map->write + p->offset, p->bytes};
    }
    k->shards[n] = (ldr_gpu_shard_t){.host = k->host + first,
                                     .host_count = row->seg_count};
}

void ldr_bulk_add(ldr_transfer_t *t, const ldr_results_t *results,
                  larder_item_t *item, const ldr_result_row_t *row,
                  const uint8_t *segs)
{
    bool load = t->op->kind == LARDER_OP_GET;

    if (t->bulk == NULL) {
        t->bulk = bulk_new(results);
    }
    /* A GPU's buffers are exactly as large as what is moved. */
    if (t->bulk != NULL && row->length == ldr_item_bytes(item)) {
        item->length = load ? row->length : 0;
        bulk_map(t, t->bulk, item, row, segs);
        return;
    }
    ldr_end_row_t end = {.lease = row->lease,
                         .how = load ? LDR_END_PLAIN : LDR_END_ABORT};
    if (t->bulk == NULL && t->status == LARDER_OK) {
        t->status = ldr_fail(LARDER_E_NO_MEMORY, "not enough memory to move");
    }
    item->length = load ? row->length : 0;
    item->status = t->bulk == NULL ? t->status
                   : load          ? LARDER_E_SIZE
                                   : LARDER_E_OFFLINE;
    ldr_transfer_ends(t, item, 0, &end);
}

/* ---- the copy ---- */

static void bulk_await(ldr_transfer_t *t, const ldr_bulk_t *k, bool load)
{
    ldr_shm_session_t *s = ldr_transfer_shm(t);
    uint64_t now_ns = ldr_shm_now(s), bytes = 0;

    for (uint32_t i = 0; i < k->piece_count; i++) {
        bytes += k->pieces[i].bytes;
    }
    uint64_t left_ns =
        t->talk.stop.deadline_ns - ldr_min64(now_ns, t->talk.stop.deadline_ns);
    uint64_t wait_ns = load ? bytes / BOUNCE_SPEED : SAVE_WAIT_NS;
    ldr_map_await_gpu(s, k->pieces, k->piece_count, &t->talk.stop,
                      now_ns + ldr_min64(wait_ns, left_ns / 2));
}

static larder_status_t bulk_list(void *arg, uint32_t shard)
{
    ldr_bulk_t *k = arg;
    ldr_page_list_t pages = {0};
    larder_status_t st = k->gpu->list(k->gpu->arg, k->items[shard], &pages);

    k->shards[shard].pages = pages.rows;
    k->shards[shard].page_count = pages.count;
    return st;
}

static larder_status_t bulk_ready(void *arg, void **after_p)
{
    const ldr_bulk_t *k = arg;

    return k->gpu->ready(k->gpu->arg, after_p);
}

/* Copies all of them, if nothing went wrong before. */
static larder_status_t bulk_copy(ldr_transfer_t *t, ldr_bulk_t *k, bool load)
{
    const ldr_op_gpu_t *gpu = t->op->gpu;
    ldr_gpu_copy_t copy = {.load = load,
                           .shards = k->shards,
                           .count = k->count,
                           .nowhere = gpu->nowhere,
                           .nowhere_bytes = gpu->nowhere_bytes,
                           .after = gpu->after,
                           .deadline_ns = t->talk.stop.deadline_ns,
                           .list = bulk_list,
                           .ready = gpu->ready != NULL ? bulk_ready : NULL,
                           .arg = k};
    larder_status_t st = t->status;

    k->gpu = gpu;
    if (load && LDR_FAULT(copy_out) && k->piece_count > 0) {
        ((uint8_t *)k->host[0].iov_base)[k->host[0].iov_len / 2] ^= 4;
    }
    if (st == LARDER_OK) {
        bulk_await(t, k, load);
        st = ldr_talk_stopped(&t->talk);
    }
    if (st == LARDER_OK) {
        st = ldr_gpu_move(gpu->gpu, &copy);
    }
    if (st == LARDER_OK && !load && ldr_shm_dead(ldr_transfer_shm(t))) {
        st = LARDER_E_OFFLINE;
    }
    for (uint32_t i = 0; !load && i < k->count && st == LARDER_OK; i++) {
        ldr_pieces_pad(&k->pieces[k->first[i] + k->rows[i].seg_count - 1]);
    }
    return st;
}

void ldr_bulk_finish(ldr_transfer_t *t)
{
    bool load = t->op->kind == LARDER_OP_GET;
    ldr_bulk_t *k = t->bulk;

    if (k == NULL) {
        return;
    }
    larder_status_t st = bulk_copy(t, k, load);
    ldr_unmap_segs(ldr_transfer_shm(t), k->pieces, k->piece_count);
    for (uint32_t i = 0; i < k->count; i++) {
        uint32_t crc = k->shards[i].crc;
        ldr_end_row_t end = {.lease = k->rows[i].lease, .crc = crc};

        end.how = load ? ldr_get_settle(t, k->items[i], st, true,
                                        crc == k->rows[i].crc)
                       : ldr_put_settle(t, k->items[i], st);
        ldr_transfer_ends(t, k->items[i], 0, &end);
    }
    bulk_free(k);
    t->bulk = NULL;
}
