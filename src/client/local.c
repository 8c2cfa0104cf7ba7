/*
 * The backend on an embedded node: requests are stepped so that no thread
 * waits for a disk unless it has nothing else to do.
 *
 * Invariant: a load in used_mask is waiting, or settled and in ready_mask
 * soon.
 */
#include <string.h>

#include "base/bytes.h"
#include "base/thread.h"
#include "client/client.h"
#include "client/local.h"
#include "node/metrics.h"
#include "node/promise.h"
#include "node/stage.h"

/* ---- loads ---- */

static larder_status_t stopped(const ldr_op_t *op)
{
    ldr_stop_t stop = ldr_op_stop(op);

    return ldr_host_stopped(&op->lar->node->host, &stop);
}

static larder_status_t check_item(const ldr_op_t *op, larder_item_t *item)
{
    return ldr_op_check(op, item);
}

static void load_ready(ldr_load_t *load)
{
    ldr_op_t *op = load->arg;

    ldr_op_ready(op, (uint64_t)1 << (load - op->loads));
}

/* Copies a settled load out and books it. */
static void load_finish(ldr_op_t *op, unsigned slot)
{
    ldr_node_t *node = op->lar->node;
    ldr_load_t *load = &op->loads[slot];
    larder_item_t *item = &op->items[op->load_item[slot]];
    ldr_stop_t stop = ldr_op_stop(op);

    if (load->status == LARDER_OK) {
        item->length = load->length;
        ldr_load_copy(node, load, &stop);
    }
    if (load->status == LARDER_OK) {
        op->tier_bytes[load->tier] += load->length;
    }
    ldr_load_end(node, load, false);
    item->status = load->status;
    item->cause = load->cause;
    op->used_mask &= ~((uint64_t)1 << slot);
}

/* Begins as many gets as LDR_LOADS_MAX allows; gives those settled at once. */
static uint64_t loads_begin(ldr_op_t *op)
{
    uint64_t settled = 0;
    bool waits = false;

    while (op->next < op->count && op->used_mask != UINT64_MAX) {
        larder_item_t *item = &op->items[op->next];
        unsigned slot = (unsigned)__builtin_ctzll(~op->used_mask);
        ldr_load_t *load = &op->loads[slot];

        item->status = check_item(op, item);
        if (item->status == LARDER_OK) {
            load->target = (ldr_target_t){op->space, op->shards, item};
            load->ready = load_ready;
            load->arg = op;
            load->asks = (op->flags & LDR_BATCH_AGAIN) == 0;
            load->own = false;
            op->load_item[slot] = op->next;
            op->used_mask |= (uint64_t)1 << slot;
            if (!ldr_load_begin(op->lar->node, load)) {
                waits = true;
            } else if (load->cause == LARDER_CAUSE_FULL &&
                       op->used_mask != (uint64_t)1 << slot) {
                /* Its own siblings hold the room: after them. */
                op->used_mask &= ~((uint64_t)1 << slot);
                break;
            } else {
                settled |= (uint64_t)1 << slot;
            }
        }
        op->next++;
    }
    if (waits) {
        ldr_node_reads_go(op->lar->node);
    }
    return settled;
}

static uint64_t take_ready(ldr_op_t *op)
{
    ldr_mutex_lock(&op->lar->lock);
    uint64_t ready = op->ready_mask;
    op->ready_mask = 0;
    ldr_mutex_unlock(&op->lar->lock);
    return ready;
}

/* A get or exists that will not be begun: canceled, or a miss for its
 * deadline, which is counted. */
static void load_refuse(ldr_op_t *op, larder_item_t *item, larder_status_t why)
{
    ldr_load_t load = {.target = {op->space, op->shards, item},
                       .status = why,
                       .shard = LDR_NIL,
                       .chunk = LDR_NIL,
                       .asks = (op->flags & LDR_BATCH_AGAIN) == 0};

    ldr_load_end(op->lar->node, &load, false);
    item->status = load.status;
    item->cause = load.cause;
}

/* Late or canceled: what waits is given up, what was not begun stays so. */
static void loads_stop(ldr_op_t *op, larder_status_t why)
{
    for (uint64_t m = op->used_mask; m != 0; m &= m - 1) {
        unsigned slot = (unsigned)__builtin_ctzll(m);

        ldr_load_abandon(op->lar->node, &op->loads[slot], why);
        load_finish(op, slot);
    }
    op->ready_mask = 0;
    for (; op->next < op->count; op->next++) {
        larder_item_t *item = &op->items[op->next];

        item->status = check_item(op, item);
        if (item->status == LARDER_OK) {
            load_refuse(op, item, why);
        }
    }
}

/* True: all items are done. False: some wait for a disk. */
static bool step_get(ldr_op_t *op)
{
    for (;;) {
        larder_status_t why = stopped(op);

        if (why != LARDER_OK) {
            loads_stop(op, why);
            return true;
        }
        uint64_t ready = loads_begin(op);
        if (op->used_mask & ~ready) {
            ready |= take_ready(op);
        }
        if (ready == 0) {
            return op->used_mask == 0 && op->next == op->count;
        }
        for (; ready != 0; ready &= ready - 1) {
            load_finish(op, (unsigned)__builtin_ctzll(ready));
        }
    }
}

static void run_put(ldr_op_t *op)
{
    ldr_stop_t stop = ldr_op_stop(op);
    bool verify = (op->flags & LARDER_VERIFY_PUT) != 0;

    for (size_t i = 0; i < op->count; i++) {
        larder_item_t *item = &op->items[i];
        ldr_target_t t = {op->space, op->shards, item};

        item->status = check_item(op, item);
        if (item->status == LARDER_OK) {
            ldr_node_put(op->lar->node, &t, verify, &stop);
        } else {
            ldr_node_count_save(op->lar->node, op->space, LARDER_E_INVALID);
        }
    }
}

static void run_exists(ldr_op_t *op)
{
    for (size_t i = 0; i < op->count; i++) {
        larder_item_t *item = &op->items[i];
        ldr_target_t t = {op->space, op->shards, item};

        item->status = check_item(op, item);
        if (item->status == LARDER_OK) {
            larder_status_t why = stopped(op);

            if (why == LARDER_OK) {
                ldr_node_exists(op->lar->node, &t,
                                (op->flags & LDR_BATCH_AGAIN) == 0);
            } else {
                load_refuse(op, item, why);
            }
        }
    }
}

/* Bad items divide the batch: what is good is removed in runs. */
static void run_remove(ldr_op_t *op)
{
    ldr_stop_t stop = ldr_op_stop(op);
    size_t begin = 0;

    for (size_t i = 0; i <= op->count; i++) {
        larder_status_t st =
            i < op->count ? check_item(op, &op->items[i]) : LARDER_E_INVALID;

        if (st == LARDER_OK) {
            st = stopped(op); /* what is not begun stays so */
        }
        if (st == LARDER_OK) {
            continue;
        }
        if (i > begin) {
            ldr_node_remove(op->lar->node, op->space, op->items + begin,
                            i - begin, &stop);
        }
        if (i < op->count) {
            op->items[i].status = st;
        }
        begin = i + 1;
    }
}

static void measure(ldr_op_t *op)
{
    ldr_node_t *node = op->lar->node;

    ldr_node_measured_loads(node, op->tier_bytes,
                            ldr_now_ns(node->clock) - op->begin_ns);
}

/* ---- the backend ---- */

static bool local_step(ldr_op_t *op)
{
    bool all = true;

    switch (op->kind) {
    case LARDER_OP_PUT:
        run_put(op);
        break;
    case LARDER_OP_GET:
        all = step_get(op);
        break;
    case LARDER_OP_EXISTS:
        run_exists(op);
        break;
    default:
        run_remove(op);
        break;
    }
    if (all) {
        measure(op);
    }
    return all;
}

/* What a get's wait is over for: a load settled, or the deadline. */
static void local_wait(ldr_op_t *op)
{
    larder_t *lar = op->lar;

    if (lar->node->manual) {
        ldr_node_step(lar->node);
        return;
    }
    ldr_mutex_lock(&lar->lock);
    while (op->ready_mask == 0) {
        if (op->deadline_ns == UINT64_MAX) {
            pthread_cond_wait(op->wake, &lar->lock);
        } else if (!ldr_cond_wait_until(op->wake, &lar->lock,
                                        op->deadline_ns)) {
            break;
        }
    }
    ldr_mutex_unlock(&lar->lock);
}

static larder_status_t local_close(larder_t *lar, uint64_t deadline_ns)
{
    return ldr_node_close(lar->node, deadline_ns);
}

static larder_status_t local_space_open(larder_t *lar, larder_space_t *space,
                                        const char *tenant)
{
    ldr_space_info_t info = {.tenant = tenant};

    memcpy(info.space_id, space->ref.id, LDR_ID_BYTES);
    memcpy(info.tenant_check, space->ref.check, LDR_ID_BYTES);
    info.has_key = true;
    memcpy(info.key, space->ref.key, sizeof(info.key));
    memcpy(info.label, space->ref.label, sizeof(info.label));
    return ldr_node_space(lar->node, &info, &space->number);
}

static larder_status_t local_reset(larder_space_t *space, uint64_t deadline_ns)
{
    return ldr_node_reset(space->lar->node, space->number, deadline_ns);
}

static larder_status_t local_match(larder_space_t *space,
                                   const ldr_prefix_t *prefix,
                                   uint64_t deadline_ns, larder_match_t *out)
{
    ldr_prefix_t p = *prefix;

    (void)deadline_ns;
    p.space = space->number;
    p.shards = space->shards;
    return ldr_prefix_match(space->lar->node, &p, out);
}

static void local_announce(larder_space_t *space, const ldr_announce_t *a,
                           uint64_t deadline_ns)
{
    (void)deadline_ns;
    ldr_node_announce(space->lar->node, space->number, a);
}

static larder_status_t local_promise(larder_space_t *space,
                                     const ldr_prefix_t *prefix,
                                     const larder_token_t *token,
                                     uint64_t deadline_ns, char *member)
{
    ldr_prefix_t p = *prefix;

    (void)deadline_ns; /* nothing here waits */
    (void)member;      /* it is in no cluster */
    p.space = space->number;
    p.shards = space->shards;
    return ldr_promise_make(space->lar->node, &p, token, (uintptr_t)space->lar);
}

static larder_status_t local_handoff(larder_space_t *space,
                                     const larder_token_t *token,
                                     larder_handoff_t what, const char *member,
                                     uint64_t deadline_ns)
{
    (void)deadline_ns;
    if (member[0] != '\0') {
        return ldr_fail(LARDER_E_INVALID,
                        "'%s' is no member: an embedded node is in no cluster",
                        member);
    }
    return ldr_promise_tell(space->lar->node, space->number, token, what);
}

static larder_status_t local_flush(larder_t *lar, larder_tier_t tier,
                                   uint64_t deadline_ns)
{
    ldr_stop_t stop = {NULL, deadline_ns};
    larder_status_t st = ldr_node_flush(lar->node, tier, &stop);

    return st == LARDER_OK ? st
                           : ldr_fail(st, "flush: %s", larder_status_text(st));
}

static larder_status_t local_stats(larder_t *lar, uint64_t deadline_ns,
                                   larder_stats_t *out)
{
    (void)deadline_ns;
    ldr_node_stats(lar->node, LDR_NIL, out);
    return LARDER_OK;
}

static larder_status_t local_metrics(larder_t *lar, uint64_t deadline_ns,
                                     char *text, size_t size, size_t *length_p)
{
    (void)deadline_ns;
    *length_p = ldr_node_metrics(lar->node, text, size);
    return LARDER_OK;
}

const ldr_handle_ops_t ldr_handle_local = {
    .close = local_close,
    .space_open = local_space_open,
    .reset = local_reset,
    .match = local_match,
    .announce = local_announce,
    .promise = local_promise,
    .handoff = local_handoff,
    .step = local_step,
    .wait = local_wait,
    .stage = ldr_local_stage,
    .flush = local_flush,
    .stats = local_stats,
    .metrics = local_metrics,
};
