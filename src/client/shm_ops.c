/* Batches by shared memory, and loading: lease, copy out, release. */
#include "client/shm_ops.h"

#include <time.h>

#include "base/bytes.h"
#include "base/copy.h"
#include "base/fault.h"

#define RUN_MAX                                                                \
    ((size_t)1 << 20) /* bytes copied between looks at the clock               \
                       */
#define NAP_NS 500000 /* before asking again for what had no room */
#define FIRST_BYTES ((uint64_t)512 << 10)

/* ---- rows ---- */

bool ldr_rows_next(ldr_rows_t *rows, ldr_result_row_t *row,
                   const uint8_t **segs_p)
{
    const ldr_results_t *r = rows->results;

    if (rows->at >= r->count ||
        !ldr_get_result(r->rows + (size_t)rows->at * LDR_RESULT_BYTES, row) ||
        row->seg_count > LDR_SHM_SEGS) {
        return false;
    }
    *segs_p = r->segs + (size_t)rows->seg * LDR_SEG_BYTES;
    rows->seg += row->seg_count; /* their sum was checked */
    rows->at++;
    return true;
}

bool ldr_shm_row(ldr_shm_batch_t *b, larder_item_t *item, ldr_rows_t *rows,
                 ldr_result_row_t *row, const uint8_t **segs_p)
{
    if (ldr_rows_next(rows, row, segs_p)) {
        return true;
    }
    ldr_shm_die(b->session);
    b->status = LARDER_E_OFFLINE;
    ldr_item_refuse(b->op->kind, item, b->status);
    return false;
}

uint32_t ldr_rows_ok(const ldr_results_t *results)
{
    ldr_result_row_t row;
    uint32_t ok = 0;

    for (uint32_t i = 0; i < results->count; i++) {
        ok += ldr_get_result(results->rows + (size_t)i * LDR_RESULT_BYTES,
                             &row) &&
              row.status == LARDER_OK;
    }
    return ok;
}

larder_status_t ldr_pieces_crc(const ldr_clock_t *clock,
                               const ldr_piece_map_t *pieces, uint32_t count,
                               const ldr_stop_t *stop, uint32_t *crc_p)
{
    uint32_t crc = 0;

    for (uint32_t i = 0; i < count; i++) {
        for (size_t at = 0; at < pieces[i].bytes;) {
            size_t take = ldr_min64(pieces[i].bytes - at, RUN_MAX);
            larder_status_t st = ldr_stopped(clock, stop);

            if (st != LARDER_OK) {
                return st;
            }
            crc = ldr_crc32c(crc, pieces[i].map->read + pieces[i].offset + at,
                             take);
            at += take;
        }
    }
    *crc_p = crc;
    return LARDER_OK;
}

/* ---- batches ---- */

static void refuse(ldr_shm_batch_t *b, uint32_t item)
{
    ldr_item_refuse(b->op->kind, &b->op->items[item], b->status);
}

/* While the first one is waited for nothing is copied, and the daemon takes as
 * long as it has items: so it is small, and the next, which is answered while
 * it is copied, has the rest. A GPU gets all of them in one list; and a daemon
 * that has to share this CPU answers nothing while something is copied. */
uint64_t ldr_shm_window_bytes(const ldr_shm_batch_t *b, uint64_t most)
{
    return b->begun || b->op->gpu != NULL ||
                   ldr_ring_beside(&b->session->ring.in)
               ? most
               : FIRST_BYTES;
}

static void window_send(ldr_shm_batch_t *b, ldr_shm_window_t *w,
                        ldr_shm_ask_t ask, bool alone)
{
    if (w->call.buffer == NULL) {
        w->call.buffer = ldr_buffer_take(b->talk.remote);
        if (w->call.buffer == NULL) {
            b->status =
                ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for a request");
            return;
        }
    }
    w->count = 0;
    w->alone = alone;
    ask(b, w);
    b->begun = true;
    larder_status_t st = ldr_shm_send(b->session, &w->call, &b->talk.stop);
    w->sent = st == LARDER_OK;
    if (!w->sent) {
        b->status = st;
        for (uint32_t i = 0; i < w->count; i++) {
            refuse(b, w->item[i]);
        }
    }
}

/* Waits for the window's reply and reads it. False: b->status says why not. */
static bool window_reply(ldr_shm_batch_t *b, ldr_shm_window_t *w,
                         ldr_results_t *results)
{
    larder_status_t st = ldr_shm_wait(b->session, &w->call, &b->talk.stop);

    w->sent = false;
    if (st == LARDER_OK) {
        b->talk.heard = true;
        if (ldr_frame_status(&w->call.reply) < 0) {
            st = ldr_reply_failed(&w->call.reply, ldr_body(w->call.buffer));
        } else if (!ldr_get_results(ldr_body(w->call.buffer),
                                    w->call.reply.body, results) ||
                   results->count != w->count) {
            ldr_shm_die(b->session);
            st = LARDER_E_OFFLINE;
        }
    }
    if (st != LARDER_OK) {
        b->status = st;
        for (uint32_t i = 0; i < w->count; i++) {
            refuse(b, w->item[i]);
        }
    }
    return st == LARDER_OK;
}

static void windows_run(ldr_shm_batch_t *b, ldr_shm_ask_t ask,
                        ldr_shm_work_t work)
{
    ldr_results_t results;

    while (b->todo.count > 0 || b->window[b->now].sent) {
        ldr_shm_window_t *w = &b->window[b->now];
        ldr_shm_window_t *next = &b->window[1 - b->now];

        if (b->status == LARDER_OK) {
            b->status = ldr_talk_stopped(&b->talk);
        }
        if (b->status != LARDER_OK) {
            return;
        }
        if (!w->sent) { /* nothing is held here */
            window_send(b, w, ask, true);
            if (b->status != LARDER_OK) {
                return;
            }
        }
        if (!window_reply(b, w, &results)) {
            return;
        }
        if (b->todo.count > 0) { /* while this one is worked on */
            window_send(b, next, ask, ldr_rows_ok(&results) == 0);
        }
        b->progress = false;
        work(b, w, &results);
        if (!b->progress && b->todo.count > 0 && !next->sent) {
            ldr_nap(b->talk.remote, NAP_NS);
        }
        b->now = 1 - b->now;
    }
}

void ldr_shm_run(ldr_op_t *op, ldr_shm_ask_t ask, ldr_shm_work_t work)
{
    ldr_shm_run_whole(op, ask, work, NULL, NULL);
}

void ldr_shm_run_whole(ldr_op_t *op, ldr_shm_ask_t ask, ldr_shm_work_t work,
                       void (*finish)(ldr_shm_batch_t *b), void *own)
{
    ldr_shm_batch_t b;
    ldr_remote_t *r = op->lar->remote;
    ldr_stop_t stop = ldr_op_stop(op);
    larder_status_t st = ldr_talk_begin(&b.talk, r, &op->ref, &stop);

    if (st != LARDER_OK) {
        ldr_op_refuse(op, st);
        return;
    }
    b.op = op;
    b.own = own;
    b.session = ldr_shm_of(b.talk.link);
    b.status = LARDER_OK;
    b.now = 0;
    b.begun = false;
    b.todo.head = b.todo.count = 0;
    for (unsigned i = 0; i < 2; i++) {
        b.window[i].sent = false;
        b.window[i].call.buffer = NULL;
    }
    for (size_t i = 0; i < op->count; i++) {
        larder_item_t *item = &op->items[i];

        item->status = ldr_item_check(op->kind, op->shards, item);
        if (item->status == LARDER_OK && op->kind == LARDER_OP_PUT &&
            ldr_item_bytes(item) > LARDER_VALUE_MAX) {
            item->status = LARDER_E_SIZE;
        }
        if (item->status == LARDER_OK) {
            ldr_todo_push(&b.todo, (uint32_t)i);
        }
    }
    windows_run(&b, ask, work);
    for (unsigned i = 0; i < 2; i++) {
        ldr_shm_window_t *w = &b.window[i];

        if (w->sent) {
            ldr_shm_abandon(b.session, &w->call);
            for (uint32_t k = 0; k < w->count; k++) {
                refuse(&b, w->item[k]);
            }
        }
        ldr_buffer_give(r, w->call.buffer);
    }
    while (b.todo.count > 0) {
        refuse(&b, ldr_todo_pop(&b.todo));
    }
    if (finish != NULL) {
        finish(&b);
    }
    ldr_talk_end(&b.talk, b.status);
}

/* ---- loading ---- */

/* What is staged is there: all of it is asked for at once. */
static void ask_staged(ldr_shm_batch_t *b, ldr_shm_window_t *w)
{
    uint8_t *at = ldr_body(w->call.buffer);
    size_t bytes = LDR_BATCH_HEAD_BYTES + sizeof(larder_token_t);

    while (b->todo.count > 0 && w->count < LDR_SHM_ITEMS) {
        const larder_item_t *item = &b->op->items[b->todo.item[b->todo.head]];
        ldr_place_row_t place = {
            .group = item->group, .shard = item->shard, .chunk = item->depth};

        w->item[w->count++] = (uint16_t)ldr_todo_pop(&b->todo);
        ldr_put_place(at + bytes, &place);
        bytes += LDR_PLACE_BYTES;
    }
    ldr_batch_msg_t batch = {.space = b->talk.space,
                             .count = w->count,
                             .flags = b->op->flags & LDR_BATCH_AGAIN};
    ldr_put_redeem(at, &batch, b->op->load->token);
    w->call.opcode = LDR_OP_LEASE;
    w->call.bytes = (uint32_t)bytes;
}

void ldr_shm_ask_lease(ldr_shm_batch_t *b, ldr_shm_window_t *w)
{
    if (b->op->load != NULL && b->op->load->token != NULL) {
        ask_staged(b, w);
        return;
    }
    const uint64_t most = ldr_shm_window_bytes(
        b, b->op->gpu != NULL ? LDR_SHM_GPU_LEASE_BYTES : LDR_SHM_LEASE_BYTES);
    uint8_t *at = ldr_body(w->call.buffer);
    size_t bytes = LDR_BATCH_HEAD_BYTES;
    uint64_t room = 0;

    while (b->todo.count > 0 && w->count < LDR_SHM_NAMES) {
        const larder_item_t *item = &b->op->items[b->todo.item[b->todo.head]];
        size_t one = ldr_item_bytes(item);

        if (w->count > 0 && room + one > most) {
            break;
        }
        w->item[w->count++] = (uint16_t)ldr_todo_pop(&b->todo);
        ldr_row_name(at + bytes, item, one);
        bytes += LDR_NAME_BYTES;
        room += one;
    }
    ldr_batch_msg_t batch = {.space = b->talk.space,
                             .count = w->count,
                             .flags = b->op->flags & LDR_BATCH_AGAIN};
    ldr_put_batch(at, &batch);
    w->call.opcode = LDR_OP_LEASE;
    w->call.bytes = (uint32_t)bytes;
}

/* Where a copy stands in a caller's list of buffers. */
typedef struct cursor {
    const struct iovec *iov, *end;
    size_t at; /* in the first of them */
} cursor_t;

/* Copies bytes out into the caller's next buffers; behind them the source goes
 * on at next. */
static uint32_t copy_out(cursor_t *to, const uint8_t *from, size_t bytes,
                         const uint8_t *next, bool check, uint32_t crc)
{
    while (bytes > 0) {
        size_t take = ldr_min64(bytes, to->iov->iov_len - to->at);
        uint8_t *at = (uint8_t *)to->iov->iov_base + to->at;

        if (to->at == 0 && to->iov + 1 < to->end) {
            ldr_copy_soon(to->iov[1].iov_base, to->iov[1].iov_len);
        }
        if (check) {
            crc = ldr_copy_piece(crc, at, from, take,
                                 take == bytes ? next : NULL);
        } else {
            ldr_copy_piece_plain(at, from, take, take == bytes ? next : NULL);
        }
        from += take;
        bytes -= take;
        to->at += take;
        if (to->at == to->iov->iov_len) {
            to->iov++;
            to->at = 0;
        }
    }
    return crc;
}

/* Copies a leased shard out. OK: *crc_p is that of its bytes, if checked. The
 * caller fences, whatever came of it. */
static larder_status_t copy_shard(const ldr_shm_batch_t *b,
                                  const larder_item_t *item,
                                  const ldr_piece_map_t *pieces, uint32_t count,
                                  bool check, uint32_t *crc_p)
{
    cursor_t to = {item->iov, item->iov + item->iov_count, 0};
    uint32_t crc = 0;

    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *from = pieces[i].map->read + pieces[i].offset;
        const uint8_t *next =
            i + 1 < count ? pieces[i + 1].map->read + pieces[i + 1].offset
                          : NULL;

        for (size_t at = 0; at < pieces[i].bytes;) {
            size_t take = ldr_min64(pieces[i].bytes - at, RUN_MAX);
            larder_status_t st = ldr_talk_stopped(&b->talk);

            if (st != LARDER_OK) {
                return st;
            }
            crc = copy_out(&to, from + at, take,
                           at + take == pieces[i].bytes ? next : NULL, check,
                           crc);
            at += take;
        }
    }
    *crc_p = crc;
    /* Of a daemon that is gone nobody knows what it has become. */
    return ldr_shm_dead(b->session) && !check ? LARDER_E_OFFLINE : LARDER_OK;
}

/* One item that was leased. Gives how its lease ends. */
static ldr_end_how_t load_one(ldr_shm_batch_t *b, larder_item_t *item,
                              const ldr_result_row_t *row, const uint8_t *segs)
{
    ldr_piece_map_t pieces[LDR_SHM_SEGS];
    bool check = b->talk.remote->options.verify != LDR_VERIFY_ENTRY ||
                 (row->flags & LDR_RESULT_CHECKED) == 0;
    uint32_t crc = 0;

    item->length = row->length;
    if (ldr_item_bytes(item) < row->length) {
        item->status = LARDER_E_SIZE;
        return LDR_END_PLAIN;
    }
    larder_status_t st = LARDER_OK;
    if (b->op->load != NULL && b->op->load->list != NULL) {
        st = b->op->load->list(b->op->load->arg, item);
    }
    if (st == LARDER_OK) {
        st = ldr_map_segs(b->session, row, segs, &b->talk.stop, pieces);
    }
    if (st == LARDER_OK) {
        if (LDR_FAULT(copy_out)) {
            pieces[0].map->write[pieces[0].offset + pieces[0].bytes / 2] ^= 4;
        }
        if (LDR_FAULT(shm_die)) {
            ldr_shm_die(b->session);
        }
        st = copy_shard(b, item, pieces, row->seg_count, check, &crc);
        ldr_copy_fence();
        ldr_unmap_segs(b->session, pieces, row->seg_count);
    }
    if (st != LARDER_OK) {
        b->status = st;
        item->length = 0;
        ldr_item_refuse(LARDER_OP_GET, item, st);
        return LDR_END_PLAIN;
    }
    item->status = LARDER_OK;
    if (check && crc != row->crc) {
        item->status = LARDER_MISS;
        item->cause = LARDER_CAUSE_CORRUPT;
        item->length = 0;
        return LDR_END_PLAIN;
    }
    return check ? LDR_END_CHECKED : LDR_END_PLAIN;
}

bool ldr_shm_ask_again(const ldr_shm_window_t *w, const ldr_result_row_t *row,
                       uint32_t ok)
{
    bool full = row->status == LARDER_E_LIMIT ||
                (row->status == LARDER_MISS && row->cause == LARDER_CAUSE_FULL);

    return row->status == LARDER_PENDING || (full && (!w->alone || ok > 0));
}

static void work_lease(ldr_shm_batch_t *b, ldr_shm_window_t *w,
                       const ldr_results_t *results)
{
    ldr_rows_t rows = {.results = results};
    ldr_end_row_t ends[LDR_SHM_ITEMS];
    larder_item_t *corrupt[LDR_SHM_ITEMS];
    uint32_t end_count = 0, corrupt_count = 0, ok = ldr_rows_ok(results);
    uint64_t untold = 0;

    for (uint32_t i = 0; i < w->count; i++) {
        larder_item_t *item = &b->op->items[w->item[i]];
        ldr_result_row_t row;
        const uint8_t *segs;

        if (!ldr_shm_row(b, item, &rows, &row, &segs)) {
            continue;
        }
        if (ldr_shm_ask_again(w, &row, ok)) {
            ldr_todo_push(&b->todo, w->item[i]);
            continue;
        }
        b->progress = true;
        if (row.status != LARDER_OK) {
            item->status = row.status;
            item->cause = row.cause;
            item->length = row.status == LARDER_E_SIZE ? row.length : 0;
            continue;
        }
        ldr_end_how_t how = LDR_END_PLAIN;
        if (b->status == LARDER_OK) {
            how = load_one(b, item, &row, segs);
            if (item->cause == LARDER_CAUSE_CORRUPT) {
                corrupt[corrupt_count++] = item;
            }
        } else {
            ldr_item_refuse(LARDER_OP_GET, item, b->status);
        }
        ends[end_count++] = (ldr_end_row_t){.lease = row.lease, .how = how};
        untold += row.length;
        if (untold >= LDR_SHM_END_BYTES &&
            !ldr_ring_beside(&b->session->ring.in)) {
            ldr_shm_ends(b->session, LDR_OP_RELEASE, ends, end_count);
            end_count = 0;
            untold = 0;
        }
    }
    ldr_shm_ends(b->session, LDR_OP_RELEASE, ends, end_count);
    if (corrupt_count > 0) {
        ldr_report(&b->talk, corrupt, corrupt_count);
    }
}

void ldr_shm_get(ldr_op_t *op)
{
    if (op->gpu != NULL && op->gpu->layers != NULL) {
        ldr_shm_get_layers(op);
    } else if (op->gpu != NULL) {
        ldr_shm_get_gpu(op);
    } else {
        ldr_shm_run(op, ldr_shm_ask_lease, work_lease);
    }
}
