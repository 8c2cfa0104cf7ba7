/*
 * Loading layer by layer by shared memory: all shards are leased first, however
 * many windows that takes, and then copied at once, since the first layers of
 * the last shard come before the last layers of the first. Otherwise as
 * shm_gpu.c.
 */
#include "base/bytes.h"
#include "base/fault.h"
#include "base/mem.h"
#include "client/shm_ops.h"
#include "gpu/gpu.h"

#define BOUNCE_SPEED 5u /* as shm_gpu.c: bytes a nanosecond */

/* The memory of one window's shards. */
typedef struct haul {
    struct haul *next;
    uint32_t piece_count;
    ldr_piece_map_t *pieces;
    struct iovec *host;
} haul_t;

/* What was leased. */
typedef struct whole {
    uint32_t count;
    larder_item_t **items;
    ldr_end_row_t *ends;
    uint32_t *crcs; /* as the daemon has them */
    ldr_gpu_shard_t *shards;
    haul_t *hauls;
    larder_status_t missed; /* of the first that cannot be had */
    larder_cause_t cause;
} whole_t;

static bool whole_make(whole_t *k, size_t count)
{
    *k = (whole_t){.missed = LARDER_OK};
    k->items = ldr_alloc(count * sizeof(*k->items));
    k->ends = ldr_alloc(count * sizeof(*k->ends));
    k->crcs = ldr_alloc(count * sizeof(*k->crcs));
    k->shards = ldr_alloc(count * sizeof(*k->shards));
    return k->items != NULL && k->ends != NULL && k->crcs != NULL &&
           k->shards != NULL;
}

static void whole_free(whole_t *k)
{
    ldr_free(k->items);
    ldr_free(k->ends);
    ldr_free(k->crcs);
    ldr_free(k->shards);
}

/* Room for what the rows have; NULL: there is no memory. */
static haul_t *haul_new(whole_t *k, const ldr_results_t *results)
{
    ldr_rows_t rows = {.results = results};
    ldr_result_row_t row;
    const uint8_t *segs;
    uint32_t total = 1;
    haul_t *h = ldr_alloc(sizeof(*h));

    while (ldr_rows_next(&rows, &row, &segs)) {
        total += row.seg_count;
    }
    if (h == NULL) {
        return NULL;
    }
    h->pieces = ldr_alloc(total * sizeof(*h->pieces));
    h->host = ldr_alloc(total * sizeof(*h->host));
    if (h->pieces == NULL || h->host == NULL) {
        ldr_free(h->pieces);
        ldr_free(h->host);
        ldr_free(h);
        return NULL;
    }
    h->next = k->hauls;
    k->hauls = h;
    return h;
}

static void miss(whole_t *k, const larder_item_t *item)
{
    if (k->missed == LARDER_OK) {
        k->missed = item->status;
        k->cause = item->cause;
    }
}

/* Takes a leased row in: from here on its lease ends with the others. */
static void take(ldr_shm_batch_t *b, whole_t *k, haul_t *h, larder_item_t *item,
                 const ldr_result_row_t *row, const uint8_t *segs)
{
    uint32_t n = k->count++;
    larder_status_t st =
        h != NULL ? LARDER_OK
                  : ldr_fail(LARDER_E_NO_MEMORY, "not enough memory to load");

    k->items[n] = item;
    k->ends[n] = (ldr_end_row_t){.lease = row->lease, .how = LDR_END_PLAIN};
    k->crcs[n] = row->crc;
    item->length = row->length;
    if (row->length != ldr_item_bytes(item)) {
        item->status = LARDER_E_SIZE;
        miss(k, item);
        return;
    }
    if (st == LARDER_OK && b->status == LARDER_OK) {
        st = ldr_map_segs(b->session, row, segs, &b->talk.stop,
                          h->pieces + h->piece_count);
    }
    if (st != LARDER_OK || b->status != LARDER_OK) {
        b->status = b->status == LARDER_OK ? st : b->status;
        return;
    }
    struct iovec *host = h->host + h->piece_count;
    for (uint32_t i = 0; i < row->seg_count; i++) {
        const ldr_piece_map_t *p = &h->pieces[h->piece_count++];

        host[i] = (struct iovec){p->map->write + p->offset, p->bytes};
    }
    k->shards[n] = (ldr_gpu_shard_t){.pages = item->iov,
                                     .page_count = item->iov_count,
                                     .host = host,
                                     .host_count = row->seg_count};
}

static void work(ldr_shm_batch_t *b, ldr_shm_window_t *w,
                 const ldr_results_t *results)
{
    whole_t *k = b->own;
    haul_t *h = haul_new(k, results);
    ldr_rows_t rows = {.results = results};

    for (uint32_t i = 0; i < w->count; i++) {
        larder_item_t *item = &b->op->items[w->item[i]];
        ldr_result_row_t row;
        const uint8_t *segs;

        if (!ldr_shm_row(b, item, &rows, &row, &segs)) {
            continue;
        }
        if (row.status == LARDER_PENDING) {
            ldr_todo_push(&b->todo, w->item[i]);
        } else if (row.status != LARDER_OK) {
            /* Also for want of room or of leases: those that this load has
             * are not given back before it has all. */
            item->status = row.status;
            item->cause = row.cause;
            item->length = row.status == LARDER_E_SIZE ? row.length : 0;
            miss(k, item);
            b->progress = true;
        } else {
            take(b, k, h, item, &row, segs);
            b->progress = true;
        }
    }
}

/* Memory that is being registered is waited for, as long as the CPU would need
 * for the copy. */
static void await(ldr_shm_batch_t *b, const whole_t *k)
{
    uint64_t now_ns = ldr_shm_now(b->session), bytes = 0;

    for (uint32_t i = 0; i < k->count; i++) {
        bytes += ldr_item_bytes(k->items[i]);
    }
    for (const haul_t *h = k->hauls; h != NULL; h = h->next) {
        ldr_map_await_gpu(b->session, h->pieces, h->piece_count, &b->talk.stop,
                          now_ns + bytes / BOUNCE_SPEED);
    }
}

static void copy(ldr_shm_batch_t *b, whole_t *k)
{
    const ldr_op_gpu_t *gpu = b->op->gpu;
    ldr_gpu_copy_t all = {.load = true,
                          .shards = k->shards,
                          .count = k->count,
                          .nowhere = gpu->nowhere,
                          .nowhere_bytes = gpu->nowhere_bytes,
                          .after = gpu->after,
                          .deadline_ns = b->talk.stop.deadline_ns,
                          .layers = gpu->layers};

    if (LDR_FAULT(copy_out) && k->count > 0) {
        const struct iovec *first = k->shards[0].host;

        ((uint8_t *)first->iov_base)[first->iov_len / 2] ^= 4;
    }
    await(b, k);
    b->status = ldr_talk_stopped(&b->talk);
    if (b->status == LARDER_OK) {
        b->status = ldr_gpu_move(gpu->gpu, &all);
    }
}

/* What became of one; true: it is corrupt. */
static bool settle(const ldr_shm_batch_t *b, whole_t *k, uint32_t i)
{
    larder_item_t *item = k->items[i];

    if (item->status != LARDER_OK) {
        return false; /* it has another size */
    }
    if (b->status != LARDER_OK) {
        item->length = 0;
        ldr_item_refuse(LARDER_OP_GET, item, b->status);
    } else if (k->missed != LARDER_OK) {
        item->length = 0; /* it is of no use without the other */
        item->status = k->missed;
        item->cause = k->cause;
    } else if (k->shards[i].crc != k->crcs[i]) {
        item->length = 0;
        item->status = LARDER_MISS;
        item->cause = LARDER_CAUSE_CORRUPT;
        return true;
    } else {
        item->status = LARDER_OK;
        k->ends[i].how = LDR_END_CHECKED;
    }
    return false;
}

/* All that could be leased is: copies it, and gives it back. */
static void finish(ldr_shm_batch_t *b)
{
    whole_t *k = b->own;
    larder_item_t *corrupt[LDR_SHM_ITEMS];
    uint32_t bad = 0;

    if (b->status == LARDER_OK && k->missed == LARDER_OK) {
        copy(b, k);
    }
    for (haul_t *h = k->hauls, *next; h != NULL; h = next) {
        next = h->next;
        ldr_unmap_segs(b->session, h->pieces, h->piece_count);
        ldr_free(h->pieces);
        ldr_free(h->host);
        ldr_free(h);
    }
    for (uint32_t i = 0; i < k->count; i++) {
        if (settle(b, k, i)) {
            corrupt[bad++] = k->items[i];
        }
        if (bad == LDR_SHM_ITEMS) {
            ldr_report(&b->talk, corrupt, bad);
            bad = 0;
        }
    }
    for (uint32_t i = 0; i < k->count; i += LDR_SHM_ITEMS) {
        ldr_shm_ends(b->session, LDR_OP_RELEASE, k->ends + i,
                     (uint32_t)ldr_min64(LDR_SHM_ITEMS, k->count - i));
    }
    if (bad > 0) {
        ldr_report(&b->talk, corrupt, bad);
    }
}

void ldr_shm_get_layers(ldr_op_t *op)
{
    whole_t k;

    if (whole_make(&k, op->count)) {
        ldr_shm_run_whole(op, ldr_shm_ask_lease, work, finish, &k);
    } else {
        ldr_op_refuse(
            op, ldr_fail(LARDER_E_NO_MEMORY, "not enough memory to load"));
    }
    whole_free(&k);
}
