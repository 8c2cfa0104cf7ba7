/*
 * Batches: from rows, which name a chunk and a range of its shards, to one item
 * for each shard. Nothing after this looks at rows.
 */
#include "base/mem.h"
#include "server/session.h"
#include "server/stage.h"

/* What the rows of a batch have in common. */
typedef struct range {
    const larder_key_t *key, *parent;
    uint32_t depth;
    uint32_t group, shard, more;
    uint32_t flags, ttl_ms;
    bool good; /* its fields can be */
} range_t;

/* Makes the range's items, from number `at` on. first: what the row says of its
 * first shard; more: of the others, NULL: the same. Gives their end. */
static uint32_t add_range(ldr_request_t *r, uint32_t at, const range_t *range,
                          ldr_more_row_t first, const uint8_t *more)
{
    for (uint32_t i = 0; i <= range->more; i++, at++) {
        uint32_t shard = range->shard + i;

        if (!range->good || range->group >= LARDER_GROUPS_MAX ||
            shard >= r->shards) {
            r->results[at].status = LARDER_E_INVALID;
        } else if (range->key == NULL) { /* not staged */
            r->results[at].status = LARDER_MISS;
            r->results[at].cause = LARDER_CAUSE_ABSENT;
        } else {
            r->items[at] = (larder_item_t){.key = range->key,
                                           .parent = range->parent,
                                           .depth = range->depth,
                                           .group = (uint16_t)range->group,
                                           .shard = (uint16_t)shard,
                                           .flags = range->flags,
                                           .ttl_ms = range->ttl_ms};
        }
        r->wants[at] = first;
        if (i > 0 && more != NULL) {
            ldr_get_more(more + (size_t)(i - 1) * LDR_MORE_BYTES,
                         &r->wants[at]);
        }
    }
    return at;
}

/* A row begins with its key; a save's parent comes next. */
static range_t name_range(const uint8_t *at, ldr_more_row_t *first)
{
    ldr_name_row_t row;

    ldr_get_name(at, &row);
    first->bytes = row.room < UINT32_MAX ? (uint32_t)row.room : UINT32_MAX;
    first->crc = 0;
    return (range_t){.key = (const larder_key_t *)at,
                     .group = row.group,
                     .shard = row.shard,
                     .more = row.more,
                     .good = true};
}

static range_t save_range(const uint8_t *at, ldr_more_row_t *first)
{
    ldr_save_row_t row;
    bool good = ldr_get_save(at, &row);

    /* A row that cannot be read has no payload. */
    first->bytes = !good                     ? 0
                   : row.length < UINT32_MAX ? (uint32_t)row.length
                                             : UINT32_MAX;
    first->crc = row.crc;
    return (range_t){
        .key = (const larder_key_t *)at,
        .parent = row.has_parent ? (const larder_key_t *)(at + LARDER_KEY_BYTES)
                                 : NULL,
        .depth = row.depth,
        .group = row.group,
        .shard = row.shard,
        .more = row.more,
        .flags = row.flags,
        .ttl_ms = row.ttl_ms,
        .good = good && row.depth <= LDR_DEPTH_MAX};
}

static bool no_memory(ldr_request_t *r)
{
    ldr_reply_fail(
        r, ldr_fail(LARDER_E_NO_MEMORY, "not enough memory in the daemon"));
    return false;
}

static bool take_rows(ldr_request_t *r, uint32_t row_bytes,
                      range_t (*range_of)(const uint8_t *at,
                                          ldr_more_row_t *first))
{
    ldr_batch_msg_t batch;
    uint32_t at = 0;

    if (!ldr_get_batch(r->body, r->frame.body, row_bytes, &batch)) {
        ldr_request_bad(r, LDR_REFUSAL_MALFORMED, "a malformed batch");
        return false;
    }
    if (!ldr_request_space(r, batch.space)) {
        return false;
    }
    if (!ldr_request_batch(r, batch.count + batch.more)) {
        return no_memory(r);
    }
    const uint8_t *more = batch.rows + (size_t)batch.count * row_bytes;
    for (uint32_t i = 0; i < batch.count; i++) {
        ldr_more_row_t first;
        range_t range = range_of(batch.rows + (size_t)i * row_bytes, &first);

        at = add_range(r, at, &range, first, more);
        more += (size_t)range.more * LDR_MORE_BYTES;
    }
    r->flags = batch.flags;
    return true;
}

bool ldr_request_names(ldr_request_t *r)
{
    return take_rows(r, LDR_NAME_BYTES, name_range);
}

bool ldr_request_saves(ldr_request_t *r)
{
    return take_rows(r, LDR_SAVE_BYTES, save_range);
}

/* Gives the key of a place's chunk. False: it is not staged. */
static bool place_key(const ldr_request_t *r, const ldr_stage_t *stage,
                      const ldr_place_row_t *place, larder_key_t *key)
{
    const ldr_store_t *store = &r->home->server->node->store;
    uint32_t shard = stage != NULL && stage->space == r->space
                         ? ldr_stage_at(stage, place)
                         : LDR_NIL;

    if (shard == LDR_NIL) {
        return false;
    }
    *key = store->chunks[store->shards[shard].chunk].key;
    return true;
}

/* The keys are written behind the request, as if it had come with them: a chunk
 * that is held keeps its key. */
bool ldr_request_places(ldr_request_t *r)
{
    ldr_server_t *server = r->home->server;
    ldr_batch_msg_t batch;
    larder_token_t token;
    uint32_t at = 0;

    if (!ldr_get_redeem(r->body, r->frame.body, &batch, &token)) {
        ldr_request_bad(r, LDR_REFUSAL_MALFORMED, "a malformed lease");
        return false;
    }
    if (!ldr_request_space(r, batch.space)) {
        return false;
    }
    size_t head = LDR_FRAME_BYTES + r->frame.body;
    size_t places = (size_t)(batch.rows - r->bytes);
    if (!ldr_request_grow(r, head + (size_t)batch.count * LARDER_KEY_BYTES) ||
        !ldr_request_batch(r, batch.count + batch.more)) {
        return no_memory(r);
    }
    ldr_more_row_t first = {.bytes = (batch.flags & LDR_BATCH_STAYS) == 0};
    ldr_stage_t *stage = ldr_stage_find(server, &token, r->tenant->number);
    for (uint32_t i = 0; i < batch.count; i++) {
        larder_key_t *key =
            (larder_key_t *)(r->bytes + head + (size_t)i * LARDER_KEY_BYTES);
        ldr_place_row_t place;

        ldr_get_place(r->bytes + places + (size_t)i * LDR_PLACE_BYTES, &place);
        range_t range = {.key = place_key(r, stage, &place, key) ? key : NULL,
                         .group = place.group,
                         .shard = place.shard,
                         .more = place.more,
                         .good = true};
        at = add_range(r, at, &range, first, NULL);
    }
    if (stage != NULL) {
        ldr_stage_unref(server, stage);
    }
    r->body = r->bytes + LDR_FRAME_BYTES;
    r->flags = batch.flags;
    return true;
}

uint32_t ldr_request_run(const ldr_request_t *r, uint32_t first)
{
    const larder_item_t *items = r->items;
    uint32_t end = first + 1;

    while (end < r->count && items[end].key != NULL &&
           items[end].key == items[first].key) {
        end++;
    }
    return end - first;
}
