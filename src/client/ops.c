/*
 * Requests: one way of carrying them out, whoever does it. A blocking call
 * steps its request itself; tickets are stepped by the workers. What a step
 * does is the backend's.
 *
 * Invariants
 *  1. One thread at a time steps a request: the caller, or the worker that
 *     took it from the queue (state RUNNING); with a daemon also the thread
 *     that ends those whose time came in the queue.
 *  2. ldr_op_ready() only sets a bit and wakes the one who steps; `again`
 *     tells a worker that has it in its hands.
 *  3. A ticket's items are not touched after its state is DONE.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/grow.h"
#include "base/mem.h"
#include "base/thread.h"
#include "client/client.h"

/* ---- checking items ---- */

/* Whether buffers overlap. All pairs of a few; of many, only whether they come
 * in ascending order or not can be seen cheaply, so only neighbours. */
static bool overlaps(const struct iovec *iov, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++) {
        const uint8_t *a = iov[i].iov_base;

        for (uint32_t k = count <= 32 ? 0 : i - 1; k < i; k++) {
            const uint8_t *b = iov[k].iov_base;

            if (a < b + iov[k].iov_len && b < a + iov[i].iov_len) {
                return true;
            }
        }
    }
    return false;
}

static larder_status_t check_buffers(const larder_item_t *item, bool written,
                                     uint32_t most)
{
    size_t bytes = 0;

    if (item->iov == NULL || item->iov_count == 0 || item->iov_count > most) {
        return ldr_fail(LARDER_E_INVALID, "an item has 1 to %u buffers",
                        LARDER_IOV_MAX);
    }
    for (uint32_t i = 0; i < item->iov_count; i++) {
        uintptr_t end;

        if (item->iov[i].iov_len == 0 || item->iov[i].iov_base == NULL) {
            return ldr_fail(LARDER_E_INVALID, "buffer %u is empty", i);
        }
        if (__builtin_add_overflow((uintptr_t)item->iov[i].iov_base,
                                   item->iov[i].iov_len, &end) ||
            __builtin_add_overflow(bytes, item->iov[i].iov_len, &bytes)) {
            return ldr_fail(LARDER_E_SIZE, "buffers beyond all memory");
        }
    }
    return written && overlaps(item->iov, item->iov_count)
               ? ldr_fail(LARDER_E_OVERLAP, "buffers of an item overlap")
               : LARDER_OK;
}

static larder_status_t check_item(larder_op_t kind, uint32_t shards,
                                  larder_item_t *item, uint32_t most)
{
    item->cause = LARDER_CAUSE_NONE;
    item->length = 0;
    if (item->key == NULL || item->group >= LARDER_GROUPS_MAX ||
        item->shard >= shards || item->depth > LDR_DEPTH_MAX) {
        return ldr_fail(LARDER_E_INVALID,
                        "key, group %u, shard %u of %u, or depth %u",
                        item->group, item->shard, shards, item->depth);
    }
    if (kind == LARDER_OP_PUT || kind == LARDER_OP_GET) {
        return check_buffers(item, kind == LARDER_OP_GET, most);
    }
    return LARDER_OK;
}

larder_status_t ldr_item_check(larder_op_t kind, uint32_t shards,
                               larder_item_t *item)
{
    return check_item(kind, shards, item, LARDER_IOV_MAX);
}

larder_status_t ldr_op_check(const ldr_op_t *op, larder_item_t *item)
{
    return check_item(op->kind, op->shards, item,
                      op->load != NULL ? UINT32_MAX : LARDER_IOV_MAX);
}

/* ---- lists of tickets ---- */

static void list_push(ldr_op_list_t *list, ldr_op_t *op)
{
    op->link = NULL;
    if (list->tail != NULL) {
        list->tail->link = op;
    } else {
        list->head = op;
    }
    list->tail = op;
}

static ldr_op_t *list_pop(ldr_op_list_t *list)
{
    ldr_op_t *op = list->head;

    if (op != NULL) {
        list->head = op->link;
        if (list->head == NULL) {
            list->tail = NULL;
        }
    }
    return op;
}

/* The first of those whose time has come, taken out; NULL: none. *next_p: when
 * the next of the others has to stop. */
static ldr_op_t *list_pop_late(ldr_op_list_t *list, uint64_t now_ns,
                               uint64_t *next_p)
{
    ldr_op_t *before = NULL;

    *next_p = UINT64_MAX;
    for (ldr_op_t *op = list->head; op != NULL; op = op->link) {
        if (op->canceled || op->deadline_ns <= now_ns) {
            if (before != NULL) {
                before->link = op->link;
            } else {
                list->head = op->link;
            }
            list->tail = list->tail == op ? before : list->tail;
            return op;
        }
        *next_p = ldr_min64(*next_p, op->deadline_ns);
        before = op;
    }
    return NULL;
}

/* With lar->lock. */
static void op_queue(larder_t *lar, ldr_op_t *op)
{
    op->state = LDR_OP_QUEUED;
    list_push(&lar->queue, op);
    pthread_cond_signal(&lar->work);
    if (lar->late_runs && op->deadline_ns < lar->late_ns) {
        pthread_cond_signal(&lar->late_wake);
    }
}

void ldr_op_ready(ldr_op_t *op, uint64_t bit)
{
    larder_t *lar = op->lar;

    ldr_mutex_lock(&lar->lock);
    op->ready_mask |= bit;
    if (op->wake != NULL) {
        pthread_cond_signal(op->wake);
    } else if (op->state == LDR_OP_WAITING) {
        op_queue(lar, op);
    } else {
        op->again = true;
    }
    ldr_mutex_unlock(&lar->lock);
}

/* ---- blocking ---- */

static larder_status_t op_prepare(ldr_op_t *op, larder_space_t *space,
                                  larder_op_t kind, larder_item_t *items,
                                  size_t count, const larder_op_params_t *p)
{
    larder_status_t st = ldr_space_check(space);
    uint32_t timeout_ms = 0;

    if (st != LARDER_OK) {
        return st;
    }
    if (items == NULL || count == 0 || count > LARDER_BATCH_MAX ||
        (unsigned)kind >= LARDER_OP_COUNT) {
        return ldr_fail(LARDER_E_INVALID, "a batch has 1 to %u items",
                        LARDER_BATCH_MAX);
    }
    uint64_t mask = p != NULL ? p->field_mask : 0;
    st = ldr_mask_check(mask, LARDER_OP_USER);
    if (st != LARDER_OK) {
        return st;
    }
    if ((mask & LARDER_OP_TIMEOUT) != 0) {
        timeout_ms = p->timeout_ms;
    }
    op->lar = space->lar;
    op->kind = kind;
    op->space = space->number;
    op->shards = space->shards;
    op->ref = space->ref;
    op->items = items;
    op->count = count;
    op->flags = (mask & LARDER_OP_FLAGS) != 0 ? p->flags : 0;
    if ((kind == LARDER_OP_GET || kind == LARDER_OP_EXISTS) &&
        (op->flags & LDR_BATCH_AGAIN) == 0 &&
        ldr_asked_items(space, kind, items, count)) {
        op->flags |= LDR_BATCH_AGAIN;
    }
    op->user = (mask & LARDER_OP_USER) != 0 ? p->user : NULL;
    op->deadline_ns = ldr_deadline(op->lar, timeout_ms);
    op->canceled = false;
    op->next = 0;
    op->used_mask = op->ready_mask = 0;
    memset(op->tier_bytes, 0, sizeof(op->tier_bytes));
    op->begin_ns = ldr_now_ns(op->lar->clock);
    op->wake = NULL;
    op->again = false;
    op->gpu = NULL;
    op->load = NULL;
    return LARDER_OK;
}

larder_status_t ldr_run(larder_space_t *space, larder_op_t kind,
                        larder_item_t *items, size_t count,
                        const larder_op_params_t *params,
                        const ldr_op_gpu_t *gpu, const ldr_op_load_t *load)
{
    ldr_op_t op;
    pthread_cond_t wake;
    larder_status_t st = op_prepare(&op, space, kind, items, count, params);

    if (st != LARDER_OK) {
        return st;
    }
    ldr_cond_init(&wake);
    op.wake = &wake;
    op.gpu = gpu;
    op.load = load;
    while (!op.lar->backend->step(&op)) {
        op.lar->backend->wait(&op);
    }
    pthread_cond_destroy(&wake);
    if (kind == LARDER_OP_EXISTS && (op.flags & LDR_BATCH_AGAIN) == 0) {
        ldr_asked_existed(space, items, count);
    }
    return LARDER_OK;
}

larder_status_t larder_run(larder_space_t *space, larder_op_t kind,
                           larder_item_t *items, size_t count,
                           const larder_op_params_t *params)
{
    return ldr_run(space, kind, items, count, params, NULL, NULL);
}

/* ---- tickets ---- */

/* With lar->lock: the ticket waits to be drained. */
static void op_done(larder_t *lar, ldr_op_t *op)
{
    bool first = lar->done.head == NULL;
    uint64_t one = 1;

    op->state = LDR_OP_DONE;
    op->status = LARDER_OK;
    list_push(&lar->done, op);
    pthread_cond_broadcast(&lar->drained);
    /* The descriptor is readable exactly while the list is not empty. */
    if (first && write(lar->event_fd, &one, sizeof(one)) < 0) {
        ldr_warn(lar->log, "cannot signal the event descriptor");
    }
}

/* Requests whose deadline has come while they wait for a disk are stepped
 * again. Gives when to look next. With lar->lock. */
static uint64_t wake_late(larder_t *lar)
{
    uint64_t now_ns = ldr_now_ns(lar->clock);
    uint64_t next = now_ns + 3600000000000u;

    for (uint64_t i = 0; i < lar->options->tickets; i++) {
        ldr_op_t *op = &lar->ops[i];

        if (op->state != LDR_OP_WAITING) {
            continue;
        }
        if (op->canceled || op->deadline_ns <= now_ns) {
            op_queue(lar, op);
        } else {
            next = ldr_min64(next, op->deadline_ns);
        }
    }
    return next;
}

static void *worker_main(void *arg)
{
    larder_t *lar = arg;
    bool watched = false; /* the deadlines of tickets that wait */

    ldr_mutex_lock(&lar->lock);
    for (;;) {
        ldr_op_t *op = list_pop(&lar->queue);

        if (op == NULL) {
            uint64_t next = wake_late(lar);

            if (lar->queue.head == NULL) {
                if (lar->stop) {
                    break;
                }
                ldr_cond_wait_until(&lar->work, &lar->lock, next);
                watched = true;
            }
            continue;
        }
        op->state = LDR_OP_RUNNING;
        op->again = false;
        if (watched) { /* another does, while this one works */
            pthread_cond_signal(&lar->work);
            watched = false;
        }
        ldr_mutex_unlock(&lar->lock);
        bool all = lar->backend->step(op);
        ldr_mutex_lock(&lar->lock);
        if (all) {
            op_done(lar, op);
        } else if (op->again || op->ready_mask != 0) {
            op_queue(lar, op);
        } else {
            op->state = LDR_OP_WAITING;
        }
    }
    ldr_mutex_unlock(&lar->lock);
    return NULL;
}

/* A daemon that does not answer keeps the workers until the deadlines of what
 * they have in their hands. Those that are still queued must not wait for that:
 * here they are ended when their own time comes. A step of theirs says so to
 * every item and asks nobody. */
static void *late_main(void *arg)
{
    larder_t *lar = arg;

    ldr_mutex_lock(&lar->lock);
    for (;;) {
        ldr_op_t *op =
            list_pop_late(&lar->queue, ldr_now_ns(lar->clock), &lar->late_ns);

        if (op != NULL) {
            op->state = LDR_OP_RUNNING;
            ldr_mutex_unlock(&lar->lock);
            lar->backend->step(op);
            ldr_mutex_lock(&lar->lock);
            op_done(lar, op);
        } else if (lar->stop) {
            break;
        } else if (lar->late_ns == UINT64_MAX) {
            pthread_cond_wait(&lar->late_wake, &lar->lock);
        } else {
            ldr_cond_wait_until(&lar->late_wake, &lar->lock, lar->late_ns);
        }
    }
    ldr_mutex_unlock(&lar->lock);
    return NULL;
}

larder_status_t larder_submit(larder_space_t *space, larder_op_t kind,
                              larder_item_t *items, size_t count,
                              const larder_op_params_t *params,
                              larder_ticket_t *ticket_p)
{
    larder_status_t st = ldr_space_check(space);

    if (st != LARDER_OK) {
        return st;
    }
    if (ticket_p == NULL) {
        return ldr_fail(LARDER_E_INVALID, "ticket_p is NULL");
    }
    larder_t *lar = space->lar;
    ldr_mutex_lock(&lar->lock);
    ldr_op_t *op = lar->op_free;
    if (op != NULL) {
        lar->op_free = op->link;
    }
    ldr_mutex_unlock(&lar->lock);
    if (op == NULL) {
        return ldr_fail(LARDER_E_BUSY,
                        "all %llu tickets are in use: drain "
                        "completions, or raise tickets",
                        (unsigned long long)lar->options->tickets);
    }
    st = op_prepare(op, space, kind, items, count, params);
    ldr_mutex_lock(&lar->lock);
    if (st == LARDER_OK) {
        for (size_t i = 0; i < count; i++) {
            items[i].status = LARDER_PENDING;
        }
        /* The slot's number, and how often it was used. */
        op->ticket += lar->options->tickets;
        *ticket_p = op->ticket;
        op_queue(lar, op);
    } else {
        op->link = lar->op_free;
        lar->op_free = op;
    }
    ldr_mutex_unlock(&lar->lock);
    return st;
}

int larder_event_fd(const larder_t *lar)
{
    return ldr_handle_check((larder_t *)lar) == LARDER_OK ? lar->event_fd : -1;
}

larder_status_t larder_drain(larder_t *lar, larder_completion_t *out,
                             size_t max, uint32_t timeout_ms, size_t *count_p)
{
    larder_status_t st = ldr_handle_check(lar);
    size_t count = 0;
    uint64_t ignored;

    if (st != LARDER_OK) {
        return st;
    }
    if (out == NULL || max == 0 || count_p == NULL) {
        return ldr_fail(LARDER_E_INVALID, "out, max or count_p");
    }
    uint64_t deadline_ns = timeout_ms == 0 ? 0 : ldr_deadline(lar, timeout_ms);
    ldr_mutex_lock(&lar->lock);
    while (lar->done.head == NULL && timeout_ms != 0) {
        if (deadline_ns == UINT64_MAX) {
            pthread_cond_wait(&lar->drained, &lar->lock);
        } else if (!ldr_cond_wait_until(&lar->drained, &lar->lock,
                                        deadline_ns)) {
            break;
        }
    }
    while (count < max && lar->done.head != NULL) {
        ldr_op_t *op = list_pop(&lar->done);

        out[count++] = (larder_completion_t){
            .ticket = op->ticket, .status = op->status, .user = op->user};
        op->state = LDR_OP_FREE;
        op->link = lar->op_free;
        lar->op_free = op;
    }
    if (count > 0 && lar->done.head == NULL &&
        read(lar->event_fd, &ignored, sizeof(ignored)) < 0) {
        ldr_warn(lar->log, "cannot clear the event descriptor");
    }
    ldr_mutex_unlock(&lar->lock);
    *count_p = count;
    return LARDER_OK;
}

larder_status_t larder_cancel(larder_t *lar, larder_ticket_t ticket)
{
    larder_status_t st = ldr_handle_check(lar);

    if (st != LARDER_OK) {
        return st;
    }
    ldr_op_t *op = &lar->ops[ticket % lar->options->tickets];
    st = LARDER_MISS;
    ldr_mutex_lock(&lar->lock);
    if (op->ticket == ticket && op->state != LDR_OP_FREE &&
        op->state != LDR_OP_DONE) {
        __atomic_store_n(&op->canceled, true, __ATOMIC_RELAXED);
        if (op->state == LDR_OP_WAITING) {
            op_queue(lar, op);
        } else if (op->state == LDR_OP_QUEUED && lar->late_runs) {
            pthread_cond_signal(&lar->late_wake);
        }
        st = LARDER_OK;
    }
    ldr_mutex_unlock(&lar->lock);
    return st;
}

/* ---- life ---- */

larder_status_t ldr_ops_create(larder_t *lar)
{
    const ldr_options_t *o = lar->options;

    ldr_mutex_init(&lar->lock);
    ldr_cond_init(&lar->work);
    ldr_cond_init(&lar->drained);
    ldr_cond_init(&lar->late_wake);
    lar->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    lar->ops = ldr_alloc(o->tickets * sizeof(*lar->ops));
    lar->workers = ldr_alloc(o->workers * sizeof(*lar->workers));
    if (lar->event_fd < 0 || lar->ops == NULL || lar->workers == NULL) {
        ldr_ops_destroy(lar);
        return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for tickets");
    }
    for (uint64_t i = o->tickets; i-- > 0;) {
        lar->ops[i].ticket = i;
        lar->ops[i].link = lar->op_free;
        lar->op_free = &lar->ops[i];
    }
    for (unsigned i = 0; i < o->workers && !lar->manual; i++) {
        if (!ldr_thread_start(&lar->workers[i], "larder-worker", worker_main,
                              lar)) {
            ldr_ops_destroy(lar);
            return ldr_fail(LARDER_E_NO_MEMORY, "cannot start a thread");
        }
        lar->worker_count++;
    }
    lar->late_ns = UINT64_MAX;
    if (lar->remote != NULL) {
        lar->late_runs =
            ldr_thread_start(&lar->late, "larder-late", late_main, lar);
        if (!lar->late_runs) {
            ldr_ops_destroy(lar);
            return ldr_fail(LARDER_E_NO_MEMORY, "cannot start a thread");
        }
    }
    return LARDER_OK;
}

void ldr_ops_destroy(larder_t *lar)
{
    ldr_mutex_lock(&lar->lock);
    lar->stop = true;
    for (uint64_t i = 0; lar->ops != NULL && i < lar->options->tickets; i++) {
        /* Free and done ones do not mind. Workers end when none is left that
         * is queued or running; those that wait are queued by wake_late(). */
        __atomic_store_n(&lar->ops[i].canceled, true, __ATOMIC_RELAXED);
    }
    pthread_cond_broadcast(&lar->work);
    pthread_cond_signal(&lar->late_wake);
    ldr_mutex_unlock(&lar->lock);
    for (unsigned i = 0; i < lar->worker_count; i++) {
        pthread_join(lar->workers[i], NULL);
    }
    if (lar->late_runs) {
        pthread_join(lar->late, NULL);
    }
    if (lar->event_fd >= 0) {
        close(lar->event_fd);
    }
    ldr_free(lar->ops);
    ldr_free(lar->workers);
    pthread_cond_destroy(&lar->work);
    pthread_cond_destroy(&lar->drained);
    pthread_cond_destroy(&lar->late_wake);
    pthread_mutex_destroy(&lar->lock);
}
