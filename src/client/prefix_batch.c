/* Shards of a prefix on their way, many at a time: see prefix.h. */
#include "base/bytes.h"
#include "base/mem.h"
#include "client/prefix.h"
#include "gpu/gpu.h"

#define BATCH_ITEMS 1024u
/* Of a GPU's: the link is idle between batches, so there are few. */
#define GPU_ITEMS LARDER_BATCH_MAX
#define BATCH_SEGMENTS 32768u /* at least LARDER_IOV_MAX */

larder_status_t ldr_batch_begin(ldr_batch_t *b)
{
    const larder_move_t *m = b->move;
    uint32_t tokens = b->layout->chunk_tokens;
    uint64_t chunks = ldr_div_up(m->end, tokens) - m->begin / tokens;
    uint64_t items = 0, pages = 1, runs = 1;
    bool gpu = b->layout->gpu != NULL;

    for (uint32_t g = 0; g < b->layout->group_count; g++) {
        const ldr_group_t *group = &b->layout->group[g];

        items += chunks * (group->slice_end - group->slice);
        pages = ldr_max64(pages, group->pieces_max);
        runs = ldr_max64(runs, group->runs_max);
        b->scratch_bytes = ldr_max64(b->scratch_bytes, group->bytes_max);
    }
    b->item_max =
        (uint32_t)ldr_min64(ldr_max64(items, 1), gpu ? GPU_ITEMS : BATCH_ITEMS);
    b->later = gpu || (b->token != NULL && b->op == LARDER_OP_GET);
    if (b->later) { /* one list, of the shard that is being copied */
        b->iov_max = (uint32_t)(b->item_max + (gpu ? 0 : pages));
    } else {
        b->iov_max = (uint32_t)ldr_min64(b->item_max * pages,
                                         ldr_max64(BATCH_SEGMENTS, pages));
    }
    bool scratch = b->op == LARDER_OP_GET || gpu;
    if (scratch) { /* seldom written: zeroing it would cost */
        b->scratch = ldr_reserve(b->scratch_bytes);
    }
    b->items = ldr_alloc(b->item_max * sizeof(*b->items));
    b->iov = ldr_alloc(b->iov_max * sizeof(*b->iov));
    if (gpu) {
        ldr_gpu_list_t list = ldr_gpu_list_take(b->layout->gpu, (uint32_t)runs);

        b->rows = (ldr_page_list_t){.rows = list.rows, .max = list.capacity};
    }
    return b->items != NULL && b->iov != NULL &&
                   (b->scratch != NULL || !scratch) &&
                   (b->rows.rows != NULL || !gpu)
               ? LARDER_OK
               : ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for a move");
}

void ldr_batch_end(ldr_batch_t *b)
{
    ldr_free(b->items);
    ldr_free(b->iov);
    if (b->layout->gpu != NULL) {
        ldr_gpu_list_give(b->layout->gpu,
                          (ldr_gpu_list_t){b->rows.rows, b->rows.max});
    }
    ldr_unreserve(b->scratch, b->scratch_bytes);
}

static void note(const ldr_batch_t *b, const larder_item_t *item)
{
    ldr_shard_at_t at = ldr_move_at(b->layout, b->move, item);
    size_t bytes = b->layout->slice[at.slice].bytes;
    larder_status_t st = item->status;

    if (st == LARDER_OK && b->op == LARDER_OP_GET && item->length != bytes) {
        st = LARDER_E_SIZE; /* a load of something else */
    }
    ldr_move_note(b->move, st, item->cause, bytes);
}

ldr_span_t ldr_batch_written(const ldr_batch_t *b, uint32_t group)
{
    uint32_t tokens = b->layout->group[group].block_tokens;
    ldr_span_t blocks = ldr_layout_reads(b->layout, group, b->move->end);

    blocks.first = (uint32_t)ldr_max64(blocks.first, b->move->begin / tokens);
    return blocks;
}

/* Where a load puts what is not wanted; a save has no such place. */
static uint8_t *scratch_of(const ldr_batch_t *b)
{
    return b->op == LARDER_OP_GET ? b->scratch : NULL;
}

static ldr_span_t wanted_of(const ldr_batch_t *b, uint32_t group)
{
    return b->op == LARDER_OP_GET ? ldr_batch_written(b, group)
                                  : (ldr_span_t){0, UINT32_MAX};
}

/* The item's segments, in the room behind those of all items. */
static larder_status_t list_later(void *arg, larder_item_t *item)
{
    ldr_batch_t *b = arg;
    ldr_shard_at_t at = ldr_move_at(b->layout, b->move, item);
    ldr_segments_t segments = {.iov = b->iov + b->item_max,
                               .max = b->layout->slice[at.slice].pieces};
    larder_status_t st = ldr_layout_segments(b->layout, at, b->move->tables,
                                             wanted_of(b, item->group),
                                             scratch_of(b), &segments);

    item->iov = segments.iov;
    item->iov_count = segments.count;
    return st;
}

/* The item's pages on a GPU. */
static larder_status_t list_pages(void *arg, const larder_item_t *item,
                                  ldr_page_list_t *list_p)
{
    ldr_batch_t *b = arg;
    ldr_shard_at_t at = ldr_move_at(b->layout, b->move, item);
    larder_status_t st =
        ldr_layout_rows(b->layout, at, b->move->tables,
                        wanted_of(b, item->group), scratch_of(b), &b->rows);

    *list_p = b->rows;
    return st;
}

/* The tables are there now. What they lack is found before any page is
 * written. */
static larder_status_t await_tables(void *arg, void **after_p)
{
    ldr_batch_t *b = arg;
    larder_status_t st =
        ldr_gate_pass(b->space->lar->clock, b->gate, b->gate_ns);

    st = st == LARDER_OK ? ldr_move_check(b->layout, b->op, b->move) : st;
    for (uint32_t i = 0; i < b->item_count && st == LARDER_OK; i++) {
        const larder_item_t *item = &b->items[i];

        st = ldr_layout_places(b->layout, ldr_move_at(b->layout, b->move, item),
                               b->move->tables,
                               ldr_batch_written(b, item->group), true);
    }
    *after_p = b->move->after;
    return st;
}

/* A save whose time is over: what is left is not even begun. (A load ends with
 * its first failure.) */
static bool late(ldr_batch_t *b)
{
    b->late = b->late || (b->op == LARDER_OP_PUT &&
                          ldr_now_ns(b->space->lar->clock) >= b->deadline_ns);
    return b->late;
}

larder_status_t ldr_batch_flush(ldr_batch_t *b)
{
    larder_op_params_t params = {
        .field_mask = LARDER_OP_TIMEOUT | LARDER_OP_FLAGS,
        .timeout_ms = ldr_prefix_left_ms(b->space->lar, b->deadline_ns),
        /* A prefix is staged before it is loaded, perhaps by another process
         * of the engine. */
        .flags = b->op == LARDER_OP_GET ? LDR_BATCH_AGAIN : 0};
    ldr_op_load_t load = {
        .token = b->token,
        .list = b->later && b->layout->gpu == NULL ? list_later : NULL,
        .arg = b};
    larder_status_t st = LARDER_OK;

    if (b->item_count > 0 && late(b)) {
        for (uint32_t i = 0; i < b->item_count; i++) {
            b->items[i].status = LARDER_E_DEADLINE;
        }
    } else if (b->item_count > 0 && b->layout->gpu != NULL) {
        ldr_op_gpu_t gpu = {.gpu = b->layout->gpu,
                            .after = b->gate == NULL ? b->move->after : NULL,
                            .nowhere = scratch_of(b),
                            .nowhere_bytes = b->scratch_bytes,
                            .list = list_pages,
                            .ready = b->gate != NULL ? await_tables : NULL,
                            .arg = b};

        st = ldr_run_gpu(b->space, b->op, b->items, b->item_count, &params,
                         &gpu, &load);
    } else if (b->item_count > 0) {
        st = ldr_run(b->space, b->op, b->items, b->item_count, &params, NULL,
                     &load);
    }
    for (uint32_t i = 0; i < b->item_count && st == LARDER_OK; i++) {
        const larder_item_t *item = &b->items[i];

        note(b, item);
    }
    b->item_count = b->iov_count = 0;
    b->scratch_used = false;
    return st;
}

static bool in_scratch(const ldr_batch_t *b, const ldr_segments_t *segments)
{
    for (uint32_t i = 0; i < segments->count && b->scratch != NULL; i++) {
        const uint8_t *p = segments->iov[i].iov_base;

        if (p >= b->scratch && p < b->scratch + b->scratch_bytes) {
            return true;
        }
    }
    return false;
}

/* A GPU's lists are long: while they were made the link would be idle. What
 * the tables lack is found before anything is copied all the same. */
static larder_status_t add_later(ldr_batch_t *b, ldr_shard_at_t at,
                                 ldr_span_t wanted)
{
    const ldr_layout_slice_t *slice = &b->layout->slice[at.slice];
    struct iovec *room = b->iov + b->iov_count;
    larder_status_t st =
        b->gate != NULL ? LARDER_OK /* see await_tables() */
                        : ldr_layout_places(b->layout, at, b->move->tables,
                                            wanted, b->op == LARDER_OP_GET);

    if (st != LARDER_OK) {
        return st;
    }
    larder_item_t *item = &b->items[b->item_count++];
    *item = ldr_move_item(b->layout, b->move, at);
    *room = (struct iovec){b->scratch, slice->bytes};
    item->iov = room;
    item->iov_count = 1;
    b->iov_count++;
    return LARDER_OK;
}

larder_status_t ldr_batch_add(ldr_batch_t *b, ldr_shard_at_t at,
                              ldr_span_t wanted)
{
    const larder_move_t *m = b->move;
    uint32_t pages = b->later ? 1 : b->layout->slice[at.slice].pieces;
    larder_status_t st = LARDER_OK;

    if (b->item_count == b->item_max || b->iov_count + pages > b->iov_max) {
        st = ldr_batch_flush(b);
    }
    if (st == LARDER_OK && b->late) {
        ldr_move_note(b->move, LARDER_E_DEADLINE, LARDER_CAUSE_NONE, 0);
        return LARDER_OK;
    }
    if (st == LARDER_OK && b->later) {
        return add_later(b, at, wanted);
    }
    for (bool again = true; again && st == LARDER_OK;) {
        ldr_segments_t segments = {.iov = b->iov + b->iov_count,
                                   .max = b->iov_max - b->iov_count};

        again = false;
        st = ldr_layout_segments(b->layout, at, m->tables, wanted, b->scratch,
                                 &segments);
        if (st != LARDER_OK) {
            return st;
        }
        bool scratch = in_scratch(b, &segments);
        if (scratch && b->scratch_used) {
            st = ldr_batch_flush(b); /* it is another shard's */
            again = true;
            continue;
        }
        b->scratch_used = b->scratch_used || scratch;
        larder_item_t *item = &b->items[b->item_count++];
        *item = ldr_move_item(b->layout, m, at);
        item->iov = segments.iov;
        item->iov_count = segments.count;
        b->iov_count += segments.count;
    }
    return st;
}
