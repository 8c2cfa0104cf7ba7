/* What a call to a daemon says of items. */
#include "client/remote.h"

void ldr_item_refuse(larder_op_t kind, larder_item_t *item, larder_status_t why)
{
    bool load = kind == LARDER_OP_GET || kind == LARDER_OP_EXISTS;

    item->status = why;
    if (load && (why == LARDER_E_OFFLINE || why == LARDER_E_DEADLINE)) {
        item->status = LARDER_MISS;
        item->cause = why == LARDER_E_OFFLINE ? LARDER_CAUSE_OFFLINE
                                              : LARDER_CAUSE_DEADLINE;
    }
}

void ldr_op_refuse(ldr_op_t *op, larder_status_t why)
{
    for (size_t i = 0; i < op->count; i++) {
        larder_item_t *item = &op->items[i];

        item->status = ldr_op_check(op, item);
        if (item->status == LARDER_OK) {
            ldr_item_refuse(op->kind, item, why);
        }
    }
}

void ldr_row_name(uint8_t *at, const larder_item_t *item, uint64_t room)
{
    ldr_name_row_t row = {
        .key = *item->key,
        .group = item->group,
        .shard = item->shard,
        .room = room,
    };

    ldr_put_name(at, &row);
}

ldr_save_row_t ldr_row_save(const larder_item_t *item, size_t length)
{
    ldr_save_row_t row = {
        .key = *item->key,
        .has_parent = item->parent != NULL,
        .depth = item->depth,
        .group = item->group,
        .shard = item->shard,
        .flags = item->flags,
        .ttl_ms = item->ttl_ms,
        .length = length,
    };

    if (item->parent != NULL) {
        row.parent = *item->parent;
    }
    return row;
}

larder_status_t ldr_mapped(larder_status_t st, larder_cause_t cause,
                           uint32_t chunks, uint64_t bytes, larder_match_t *m)
{
    uint32_t all = m->chunks;
    uint32_t below = 0; /* chunks and bytes of the tiers below DRAM */
    uint64_t below_bytes = 0;

    if (st == LARDER_E_DEADLINE || st == LARDER_E_OFFLINE) {
        cause = st == LARDER_E_DEADLINE ? LARDER_CAUSE_DEADLINE
                                        : LARDER_CAUSE_OFFLINE;
        st = LARDER_OK;
    }
    if (st != LARDER_OK) {
        return st;
    }
    if (chunks == 0) {
        *m = (larder_match_t){.cause = cause};
        return st;
    }
    if (chunks == all) {
        return st;
    }
    /* The match knows how all of it lay before; of a part, about. */
    m->load_us = m->load_us * chunks / all;
    m->cause = cause;
    m->chunks = chunks;
    for (int i = LARDER_TIER_SSD; i < LARDER_TIERS_MAX; i++) {
        m->tier_chunks[i] =
            (uint32_t)((uint64_t)m->tier_chunks[i] * chunks / all);
        m->tier_bytes[i] = bytes * m->tier_chunks[i] / chunks;
        below += m->tier_chunks[i];
        below_bytes += m->tier_bytes[i];
    }
    m->tier_chunks[LARDER_TIER_DRAM] = chunks - below;
    m->tier_bytes[LARDER_TIER_DRAM] = bytes - below_bytes;
    return st;
}

void ldr_report(ldr_talk_t *v, larder_item_t *const *items, uint32_t count)
{
    uint8_t *at = ldr_body(v->call.buffer);
    ldr_batch_msg_t batch = {.space = v->space, .count = count};

    ldr_tally(&v->remote->crc_failures, count);
    size_t bytes = ldr_put_batch(at, &batch);
    for (uint32_t i = 0; i < count; i++, bytes += LDR_NAME_BYTES) {
        ldr_row_name(at + bytes, items[i], 0);
    }
    /* It answers once it has looked for itself: whoever asks next finds what
     * it made of that. */
    ldr_talk_call(v, LDR_OP_REPORT, bytes);
}

size_t ldr_put_places(uint8_t *at, const ldr_talk_t *v,
                      const larder_lease_t *lease, uint16_t group,
                      uint32_t first, uint32_t count)
{
    ldr_batch_msg_t batch = {.space = v->space,
                             .count = count,
                             .flags = LDR_BATCH_AGAIN | LDR_BATCH_STAYS};
    size_t bytes = ldr_put_redeem(at, &batch, &lease->token);

    for (uint32_t i = first; i < first + count; i++) {
        ldr_place_row_t place = {
            .group = group,
            .shard = (uint16_t)(i % lease->shards),
            .chunk = i / lease->shards,
        };

        ldr_put_place(at + bytes, &place);
        bytes += LDR_PLACE_BYTES;
    }
    return bytes;
}
