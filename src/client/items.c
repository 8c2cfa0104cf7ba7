/* What a call to a daemon says of items. */
#include <assert.h>
#include <string.h>

#include "base/bytes.h"
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

/* ---- rows ---- */

/* What is said of the shards behind a row's first waits here, behind all that
 * rows can need, until there are no more rows. */
#define MORE_AT (LDR_BODY_MAX - LARDER_BATCH_MAX * LDR_MORE_BYTES)

ldr_rows_out_t ldr_rows_begin(const ldr_talk_t *v, uint8_t *at,
                              uint32_t row_bytes, const larder_token_t *token)
{
    static_assert(LDR_BATCH_HEAD_BYTES + LARDER_BATCH_MAX * LDR_SAVE_BYTES <=
                      MORE_AT,
                  "rows and what follows them fit a body");
    ldr_rows_out_t o = {.at = at,
                        .row_bytes = row_bytes,
                        .ranges = (v->link->features & LDR_FEATURE_RANGES) != 0,
                        .bytes = LDR_BATCH_HEAD_BYTES,
                        .batch = {.space = v->space}};

    if (token != NULL) {
        o.bytes = ldr_put_redeem(at, &o.batch, token);
        o.batch.flags = LDR_BATCH_TOKEN;
    }
    return o;
}

/* Whether the item is the next shard of the last one's chunk, and is to be kept
 * like it. */
static bool is_next(const ldr_rows_out_t *o, const larder_item_t *item)
{
    const larder_item_t *last = o->last;

    return o->ranges && last != NULL && item->key == last->key &&
           item->group == last->group && item->shard == last->shard + 1 &&
           item->depth == last->depth && item->parent == last->parent &&
           item->flags == last->flags && item->ttl_ms == last->ttl_ms;
}

static void put_row(const ldr_rows_out_t *o, uint8_t *at,
                    const larder_item_t *item, uint64_t bytes, uint32_t crc)
{
    if (o->row_bytes == LDR_NAME_BYTES) {
        ldr_put_name(at, &(ldr_name_row_t){.key = *item->key,
                                           .group = item->group,
                                           .shard = item->shard,
                                           .room = bytes});
    } else if (o->row_bytes == LDR_SAVE_BYTES) {
        ldr_save_row_t row = ldr_row_save(item, bytes);

        row.crc = crc;
        ldr_put_save(at, &row);
    } else {
        ldr_put_place(at, &(ldr_place_row_t){.group = (uint8_t)item->group,
                                             .shard = item->shard,
                                             .chunk = item->depth});
    }
}

void ldr_rows_add(ldr_rows_out_t *o, const larder_item_t *item, uint64_t bytes,
                  uint32_t crc)
{
    if (is_next(o, item)) {
        ldr_more_row_t more = {(uint32_t)ldr_min64(bytes, UINT32_MAX), crc};

        ldr_put_row_more(o->at + o->bytes - o->row_bytes, o->row_bytes,
                         ++o->row_more);
        ldr_put_more(o->at + MORE_AT + (size_t)o->batch.more++ * LDR_MORE_BYTES,
                     &more);
    } else {
        put_row(o, o->at + o->bytes, item, bytes, crc);
        o->bytes += o->row_bytes;
        o->batch.count++;
        o->row_more = 0;
    }
    o->last = item;
}

size_t ldr_rows_end(ldr_rows_out_t *o, uint32_t flags)
{
    size_t more = o->row_bytes != LDR_PLACE_BYTES
                      ? (size_t)o->batch.more * LDR_MORE_BYTES
                      : 0;

    o->batch.flags |= flags;
    ldr_put_batch(o->at, &o->batch);
    memmove(o->at + o->bytes, o->at + MORE_AT, more);
    return o->bytes + more;
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
    ldr_rows_out_t rows =
        ldr_rows_begin(v, ldr_body(v->call.buffer), LDR_NAME_BYTES, NULL);

    ldr_tally(&v->remote->crc_failures, count);
    for (uint32_t i = 0; i < count; i++) {
        ldr_rows_add(&rows, items[i], 0, 0);
    }
    /* It answers once it has looked for itself: whoever asks next finds what
     * it made of that. */
    ldr_talk_call(v, LDR_OP_REPORT, ldr_rows_end(&rows, 0));
}

size_t ldr_put_places(uint8_t *at, const ldr_talk_t *v,
                      const larder_lease_t *lease, uint16_t group,
                      uint32_t first, uint32_t count)
{
    ldr_rows_out_t rows = ldr_rows_begin(v, at, LDR_PLACE_BYTES, &lease->token);
    larder_item_t item[2]; /* this one, and the one before it */

    for (uint32_t i = first; i < first + count; i++) {
        item[i % 2] = (larder_item_t){
            .group = group,
            .shard = (uint16_t)(i % lease->shards),
            .depth = i / lease->shards,
        };
        ldr_rows_add(&rows, &item[i % 2], 0, 0);
    }
    return ldr_rows_end(&rows, LDR_BATCH_AGAIN | LDR_BATCH_STAYS);
}
