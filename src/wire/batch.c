/* Bodies with rows: chains, batches, results, ends. */
#include <string.h>

#include "base/bytes.h"
#include "base/text.h"
#include "wire/wire.h"
#include "wire/wire_int.h"

/* ---- match ---- */

size_t ldr_put_match(uint8_t *at, const ldr_match_msg_t *m)
{
    size_t needs = (size_t)m->groups * LDR_NEED_BYTES;
    size_t keys = (size_t)m->count * LARDER_KEY_BYTES;

    ldr_put32(at, m->space);
    ldr_put32(at + 4, m->flags);
    ldr_put32(at + 8, m->count);
    ldr_put32(at + 12, m->groups);
    at += LDR_MATCH_HEAD_BYTES;
    memcpy(at, m->needs, needs);
    if (keys > 0) {
        memcpy(at + needs, m->keys, keys);
    }
    return LDR_MATCH_HEAD_BYTES + needs + keys;
}

bool ldr_get_match(const uint8_t *at, size_t bytes, ldr_match_msg_t *m)
{
    if (bytes < LDR_MATCH_HEAD_BYTES) {
        return false;
    }
    m->space = ldr_get32(at);
    m->flags = ldr_get32(at + 4);
    m->count = ldr_get32(at + 8);
    m->groups = ldr_get32(at + 12);
    m->needs = at + LDR_MATCH_HEAD_BYTES;
    if ((m->flags & ~LDR_MATCH_AGAIN) != 0 || m->groups < 1 ||
        m->groups > LARDER_GROUPS_MAX) {
        return false;
    }
    size_t needs = (size_t)m->groups * LDR_NEED_BYTES;
    m->keys = m->needs + needs;
    return (uint64_t)m->count * LARDER_KEY_BYTES + needs ==
           bytes - LDR_MATCH_HEAD_BYTES;
}

void ldr_put_need(uint8_t *at, uint16_t group, uint32_t chunks)
{
    ldr_put16(at, group);
    ldr_put16(at + 2, 0);
    ldr_put32(at + 4, chunks);
}

bool ldr_get_need(const uint8_t *at, uint16_t *group_p, uint32_t *chunks_p)
{
    *group_p = ldr_get16(at);
    *chunks_p = ldr_get32(at + 4);
    return ldr_get16(at + 2) == 0 && *group_p < LARDER_GROUPS_MAX;
}

/* ---- staging ---- */

#define WORTH_FIXED (LDR_WORTH_BYTES - LDR_WORTH_NAME)

size_t ldr_put_worth(uint8_t *at, const larder_stage_params_t *m)
{
    ldr_put64(at, m->field_mask);
    ldr_put32(at + 8, m->tiers);
    ldr_put32(at + 12, m->below_percent);
    ldr_put64(at + 16, m->bytes_max);
    ldr_put64(at + 24, m->chunk_ns);
    ldr_put64(at + 32, m->dram_speed);
    if ((m->field_mask & LARDER_STAGE_MEMBER) == 0) {
        return WORTH_FIXED;
    }
    ldr_wire_put_text(at + WORTH_FIXED, m->member, LDR_WORTH_NAME);
    return LDR_WORTH_BYTES;
}

size_t ldr_get_worth(const uint8_t *at, size_t bytes, larder_stage_params_t *m)
{
    char name[LDR_WORTH_NAME];

    if (bytes < WORTH_FIXED) {
        return 0;
    }
    *m = (larder_stage_params_t){
        .field_mask = ldr_get64(at),
        .tiers = ldr_get32(at + 8),
        .below_percent = ldr_get32(at + 12),
        .bytes_max = ldr_get64(at + 16),
        .chunk_ns = ldr_get64(at + 24),
        .dram_speed = ldr_get64(at + 32),
    };
    if ((m->field_mask & LARDER_STAGE_MEMBER) == 0) {
        return WORTH_FIXED;
    }
    if (bytes < LDR_WORTH_BYTES ||
        !ldr_wire_get_text(at + WORTH_FIXED, LDR_WORTH_NAME, name)) {
        return 0;
    }
    m->member = (const char *)at + WORTH_FIXED;
    return LDR_WORTH_BYTES;
}

size_t ldr_put_staged(uint8_t *at, const ldr_staged_t *m)
{
    ldr_put64(at, m->lease);
    memcpy(at + 8, m->token.bytes, sizeof(m->token.bytes));
    ldr_put32(at + 24, m->match.found);
    ldr_put32(at + 28, m->match.tried);
    ldr_put32(at + 32, (uint32_t)m->match.limit);
    ldr_put32(at + 36, 0);
    ldr_put64(at + 40, m->match.tried_us);
    ldr_put64(at + 48, m->match.tried_bytes);
    ldr_put64(at + 56, m->match.tried_below_bytes);
    return LDR_STAGED_HEAD_BYTES +
           ldr_put_matched(at + LDR_STAGED_HEAD_BYTES, &m->match);
}

bool ldr_get_staged(const uint8_t *at, size_t bytes, ldr_staged_t *m)
{
    if (bytes < LDR_STAGED_HEAD_BYTES ||
        !ldr_get_matched(at + LDR_STAGED_HEAD_BYTES,
                         bytes - LDR_STAGED_HEAD_BYTES, &m->match)) {
        return false;
    }
    m->lease = ldr_get64(at);
    memcpy(m->token.bytes, at + 8, sizeof(m->token.bytes));
    m->match.found = ldr_get32(at + 24);
    m->match.tried = ldr_get32(at + 28);
    m->match.limit = ldr_get32(at + 32) < LARDER_LIMIT_COUNT
                         ? (larder_limit_t)ldr_get32(at + 32)
                         : LARDER_LIMIT_OTHER;
    m->match.tried_us = ldr_get64(at + 40);
    m->match.tried_bytes = ldr_get64(at + 48);
    m->match.tried_below_bytes = ldr_get64(at + 56);
    return ldr_get32(at + 36) == 0;
}

#define LIST_LABEL_AT 72u

size_t ldr_put_list(uint8_t *at, uint32_t cursor, uint32_t count)
{
    ldr_put32(at, cursor);
    ldr_put32(at + 4, count);
    ldr_put32(at + 8, LDR_LIST_ROW_BYTES);
    ldr_put32(at + 12, 0);
    return LDR_LIST_HEAD_BYTES;
}

bool ldr_get_list(const uint8_t *at, size_t bytes, ldr_list_head_t *m)
{
    if (bytes < LDR_LIST_HEAD_BYTES) {
        return false;
    }
    m->cursor = ldr_get32(at);
    m->count = ldr_get32(at + 4);
    m->row_bytes = ldr_get32(at + 8);
    m->rows = at + LDR_LIST_HEAD_BYTES;
    return ldr_get32(at + 12) == 0 && m->row_bytes >= LDR_LIST_ROW_BYTES &&
           (uint64_t)m->count * m->row_bytes == bytes - LDR_LIST_HEAD_BYTES;
}

void ldr_put_listed(uint8_t *at, const ldr_list_row_t *row)
{
    memcpy(at, row->key.hash, LARDER_KEY_BYTES);
    memcpy(at + 32, row->space, LDR_WIRE_ID_BYTES);
    ldr_put16(at + 48, row->group);
    ldr_put16(at + 50, row->shard);
    ldr_put16(at + 52, row->shards);
    ldr_put16(at + 54, row->flags);
    ldr_put32(at + 56, row->length);
    ldr_put32(at + 60, row->age_s);
    ldr_put32(at + 64, row->expires_s);
    ldr_put32(at + 68, row->depth);
    memcpy(at + LIST_LABEL_AT, row->label, LARDER_LABEL_MAX);
}

void ldr_get_listed(const uint8_t *at, ldr_list_row_t *row)
{
    memcpy(row->key.hash, at, LARDER_KEY_BYTES);
    memcpy(row->space, at + 32, LDR_WIRE_ID_BYTES);
    row->group = ldr_get16(at + 48);
    row->shard = ldr_get16(at + 50);
    row->shards = ldr_get16(at + 52);
    row->flags = ldr_get16(at + 54) & (2 * LDR_LIST_PINNED - 1);
    row->length = ldr_get32(at + 56);
    row->age_s = ldr_get32(at + 60);
    row->expires_s = ldr_get32(at + 64);
    row->depth = ldr_get32(at + 68);
    ldr_label_clean((const char *)at + LIST_LABEL_AT, LARDER_LABEL_MAX,
                    row->label);
}

#define HANDOFF_NAMED (1u << 31) /* in `what`: a member follows */

size_t ldr_put_handoff(uint8_t *at, const ldr_handoff_msg_t *m)
{
    bool named = m->member[0] != '\0';

    ldr_put32(at, m->what | (named ? HANDOFF_NAMED : 0));
    ldr_put32(at + 4, m->space);
    memcpy(at + 8, m->token.bytes, sizeof(m->token.bytes));
    if (!named) {
        return LDR_HANDOFF_HEAD_BYTES;
    }
    ldr_wire_put_text(at + LDR_HANDOFF_HEAD_BYTES, m->member, LDR_WORTH_NAME);
    return LDR_HANDOFF_HEAD_BYTES + LDR_WORTH_NAME;
}

bool ldr_get_handoff(const uint8_t *at, size_t bytes, ldr_handoff_msg_t *m)
{
    if (bytes < LDR_HANDOFF_HEAD_BYTES) {
        return false;
    }
    bool named = (ldr_get32(at) & HANDOFF_NAMED) != 0;
    *m = (ldr_handoff_msg_t){.what = ldr_get32(at) & ~HANDOFF_NAMED,
                             .space = ldr_get32(at + 4)};
    memcpy(m->token.bytes, at + 8, sizeof(m->token.bytes));
    at += LDR_HANDOFF_HEAD_BYTES;
    bytes -= LDR_HANDOFF_HEAD_BYTES;
    if (m->what == LDR_HANDOFF_PROMISE) {
        return !named && ldr_get_match(at, bytes, &m->chain);
    }
    if (m->what >= LARDER_HANDOFF_COUNT || !named) {
        return m->what < LARDER_HANDOFF_COUNT && bytes == 0;
    }
    return bytes == LDR_WORTH_NAME &&
           ldr_wire_get_text(at, LDR_WORTH_NAME, m->member) &&
           m->member[0] != '\0';
}

size_t ldr_put_promised(uint8_t *at, const char *name)
{
    ldr_wire_put_text(at, name, LDR_WORTH_NAME);
    return LDR_WORTH_NAME;
}

bool ldr_get_promised(const uint8_t *at, size_t bytes, char *name)
{
    return bytes == LDR_WORTH_NAME &&
           ldr_wire_get_text(at, LDR_WORTH_NAME, name);
}

size_t ldr_put_announce(uint8_t *at, const ldr_announce_msg_t *m)
{
    size_t keys = (size_t)m->count * LARDER_KEY_BYTES;

    ldr_put32(at, m->space);
    ldr_put32(at + 4, m->count);
    ldr_put32(at + 8, m->chunk_tokens);
    ldr_put32(at + 12, m->tokens);
    ldr_put32(at + 16, m->hint);
    ldr_put32(at + 20, m->saves);
    ldr_put64(at + 24, m->id);
    memcpy(at + LDR_ANNOUNCE_HEAD_BYTES, m->keys, keys);
    return LDR_ANNOUNCE_HEAD_BYTES + keys;
}

bool ldr_get_announce(const uint8_t *at, size_t bytes, ldr_announce_msg_t *m)
{
    if (bytes < LDR_ANNOUNCE_HEAD_BYTES) {
        return false;
    }
    *m = (ldr_announce_msg_t){
        .space = ldr_get32(at),
        .count = ldr_get32(at + 4),
        .chunk_tokens = ldr_get32(at + 8),
        .tokens = ldr_get32(at + 12),
        .hint = ldr_get32(at + 16),
        .saves = ldr_get32(at + 20),
        .id = ldr_get64(at + 24),
        .keys = at + LDR_ANNOUNCE_HEAD_BYTES,
    };
    return m->count >= 1 && m->saves <= 1 &&
           (uint64_t)m->count * LARDER_KEY_BYTES ==
               bytes - LDR_ANNOUNCE_HEAD_BYTES;
}

size_t ldr_put_matched(uint8_t *at, const larder_match_t *m)
{
    ldr_put32(at, m->chunks);
    ldr_put32(at + 4, (uint32_t)m->cause);
    ldr_put64(at + 8, m->load_us);
    unsigned tiers = LARDER_TIERS_MAX;
    while (tiers > LARDER_TIER_COUNT && m->tier_chunks[tiers - 1] == 0 &&
           m->tier_bytes[tiers - 1] == 0) {
        tiers--;
    }
    ldr_put32(at + 16, tiers);
    ldr_put32(at + 20, 0);
    at += LDR_MATCHED_HEAD_BYTES;
    for (unsigned i = 0; i < tiers; i++) {
        ldr_put32(at, m->tier_chunks[i]);
        ldr_put32(at + 4, 0);
        ldr_put64(at + 8, m->tier_bytes[i]);
        at += LDR_MATCHED_TIER_BYTES;
    }
    return LDR_MATCHED_HEAD_BYTES + (size_t)tiers * LDR_MATCHED_TIER_BYTES;
}

bool ldr_get_matched(const uint8_t *at, size_t bytes, larder_match_t *m)
{
    if (bytes < LDR_MATCHED_HEAD_BYTES) {
        return false;
    }
    uint32_t tiers = ldr_get32(at + 16);
    if (ldr_get32(at + 20) != 0 || (uint64_t)tiers * LDR_MATCHED_TIER_BYTES !=
                                       bytes - LDR_MATCHED_HEAD_BYTES) {
        return false;
    }
    *m = (larder_match_t){
        .chunks = ldr_get32(at),
        .cause = ldr_wire_cause(ldr_get32(at + 4)),
        .load_us = ldr_get64(at + 8),
    };
    at += LDR_MATCHED_HEAD_BYTES;
    bool ok = true;
    for (uint32_t i = 0; i < tiers; i++, at += LDR_MATCHED_TIER_BYTES) {
        uint32_t tier = i < LARDER_TIER_COUNT ? i : LARDER_TIER_COUNT - 1;

        m->tier_chunks[tier] += ldr_get32(at);
        m->tier_bytes[tier] += ldr_get64(at + 8);
        ok = ok && ldr_get32(at + 4) == 0;
    }
    return ok;
}

/* ---- batches ---- */

#define NAME_MORE_AT 36u
#define SAVE_MORE_AT 94u

size_t ldr_put_batch(uint8_t *at, const ldr_batch_msg_t *m)
{
    ldr_put32(at, m->space);
    ldr_put32(at + 4, m->count);
    ldr_put32(at + 8, m->flags);
    ldr_put32(at + 12, m->more);
    return LDR_BATCH_HEAD_BYTES;
}

static uint32_t row_more(const uint8_t *at, uint32_t row_bytes)
{
    return row_bytes == LDR_NAME_BYTES   ? ldr_get32(at + NAME_MORE_AT)
           : row_bytes == LDR_SAVE_BYTES ? ldr_get16(at + SAVE_MORE_AT)
                                         : at[1];
}

/* head: bytes before the rows. */
static bool get_rows(const uint8_t *at, size_t bytes, size_t head,
                     uint32_t row_bytes, ldr_batch_msg_t *m)
{
    uint32_t more_bytes = row_bytes != LDR_PLACE_BYTES ? LDR_MORE_BYTES : 0;
    uint64_t more = 0;

    if (bytes < head) {
        return false;
    }
    m->space = ldr_get32(at);
    m->count = ldr_get32(at + 4);
    m->flags = ldr_get32(at + 8);
    m->more = ldr_get32(at + 12);
    m->rows = at + head;
    if (m->count < 1 || (uint64_t)m->count + m->more > LARDER_BATCH_MAX ||
        (uint64_t)m->count * row_bytes + (uint64_t)m->more * more_bytes !=
            bytes - head) {
        return false;
    }
    /* So that who walks the rows never runs past what follows them. */
    for (uint32_t i = 0; i < m->count; i++) {
        more += row_more(m->rows + (size_t)i * row_bytes, row_bytes);
    }
    return more == m->more;
}

bool ldr_get_batch(const uint8_t *at, size_t bytes, uint32_t row_bytes,
                   ldr_batch_msg_t *m)
{
    return get_rows(at, bytes, LDR_BATCH_HEAD_BYTES, row_bytes, m);
}

void ldr_put_row_more(uint8_t *at, uint32_t row_bytes, uint32_t more)
{
    if (row_bytes == LDR_NAME_BYTES) {
        ldr_put32(at + NAME_MORE_AT, more);
    } else if (row_bytes == LDR_SAVE_BYTES) {
        ldr_put16(at + SAVE_MORE_AT, (uint16_t)more);
    } else {
        at[1] = (uint8_t)more;
    }
}

void ldr_put_more(uint8_t *at, const ldr_more_row_t *row)
{
    ldr_put32(at, row->bytes);
    ldr_put32(at + 4, row->crc);
}

void ldr_get_more(const uint8_t *at, ldr_more_row_t *row)
{
    row->bytes = ldr_get32(at);
    row->crc = ldr_get32(at + 4);
}

void ldr_put_name(uint8_t *at, const ldr_name_row_t *row)
{
    memcpy(at, row->key.hash, LARDER_KEY_BYTES);
    ldr_put16(at + 32, row->group);
    ldr_put16(at + 34, row->shard);
    ldr_put32(at + NAME_MORE_AT, row->more);
    ldr_put64(at + 40, row->room);
}

void ldr_get_name(const uint8_t *at, ldr_name_row_t *row)
{
    memcpy(row->key.hash, at, LARDER_KEY_BYTES);
    row->group = ldr_get16(at + 32);
    row->shard = ldr_get16(at + 34);
    row->more = ldr_get32(at + NAME_MORE_AT);
    row->room = ldr_get64(at + 40);
}

size_t ldr_put_redeem(uint8_t *at, const ldr_batch_msg_t *m,
                      const larder_token_t *token)
{
    ldr_batch_msg_t batch = *m;

    batch.flags |= LDR_BATCH_TOKEN;
    size_t head = ldr_put_batch(at, &batch);
    memcpy(at + head, token->bytes, sizeof(token->bytes));
    return head + sizeof(token->bytes);
}

uint32_t ldr_get_batch_flags(const uint8_t *at)
{
    return ldr_get32(at + 8);
}

bool ldr_get_redeem(const uint8_t *at, size_t bytes, ldr_batch_msg_t *m,
                    larder_token_t *token)
{
    if (!get_rows(at, bytes, LDR_BATCH_HEAD_BYTES + sizeof(token->bytes),
                  LDR_PLACE_BYTES, m)) {
        return false;
    }
    memcpy(token->bytes, at + LDR_BATCH_HEAD_BYTES, sizeof(token->bytes));
    return (m->flags & LDR_BATCH_TOKEN) != 0;
}

void ldr_put_place(uint8_t *at, const ldr_place_row_t *row)
{
    at[0] = row->group;
    at[1] = row->more;
    ldr_put16(at + 2, row->shard);
    ldr_put32(at + 4, row->chunk);
}

void ldr_get_place(const uint8_t *at, ldr_place_row_t *row)
{
    *row = (ldr_place_row_t){
        .group = at[0],
        .more = at[1],
        .shard = ldr_get16(at + 2),
        .chunk = ldr_get32(at + 4),
    };
}

void ldr_put_save(uint8_t *at, const ldr_save_row_t *row)
{
    memcpy(at, row->key.hash, LARDER_KEY_BYTES);
    if (row->has_parent) {
        memcpy(at + 32, row->parent.hash, LARDER_KEY_BYTES);
    } else {
        memset(at + 32, 0, LARDER_KEY_BYTES);
    }
    ldr_put32(at + 64, row->depth);
    ldr_put16(at + 68, row->group);
    ldr_put16(at + 70, row->shard);
    ldr_put32(at + 72, row->flags);
    ldr_put32(at + 76, row->ttl_ms);
    ldr_put64(at + 80, row->length);
    ldr_put32(at + 88, row->crc);
    ldr_put16(at + 92, row->has_parent ? 1 : 0);
    ldr_put16(at + SAVE_MORE_AT, row->more);
}

bool ldr_get_save(const uint8_t *at, ldr_save_row_t *row)
{
    static const uint8_t none[LARDER_KEY_BYTES];
    uint16_t has_parent = ldr_get16(at + 92);

    memcpy(row->key.hash, at, LARDER_KEY_BYTES);
    memcpy(row->parent.hash, at + 32, LARDER_KEY_BYTES);
    row->depth = ldr_get32(at + 64);
    row->group = ldr_get16(at + 68);
    row->shard = ldr_get16(at + 70);
    row->flags = ldr_get32(at + 72);
    row->ttl_ms = ldr_get32(at + 76);
    row->length = ldr_get64(at + 80);
    row->crc = ldr_get32(at + 88);
    row->has_parent = has_parent == 1;
    row->more = ldr_get16(at + SAVE_MORE_AT);
    return has_parent == 1 ||
           (has_parent == 0 && memcmp(at + 32, none, sizeof(none)) == 0);
}

/* ---- results ---- */

#define RESULT_SEG_COUNT_AT 32u

size_t ldr_put_results(uint8_t *at, uint32_t count, uint32_t seg_count)
{
    ldr_put32(at, count);
    ldr_put32(at + 4, seg_count);
    return LDR_RESULTS_HEAD_BYTES;
}

bool ldr_get_results(const uint8_t *at, size_t bytes, ldr_results_t *m)
{
    uint64_t segs = 0;

    if (bytes < LDR_RESULTS_HEAD_BYTES) {
        return false;
    }
    m->count = ldr_get32(at);
    m->seg_count = ldr_get32(at + 4);
    if (m->count < 1 || m->count > LARDER_BATCH_MAX ||
        (uint64_t)m->count * LDR_RESULT_BYTES +
                (uint64_t)m->seg_count * LDR_SEG_BYTES !=
            bytes - LDR_RESULTS_HEAD_BYTES) {
        return false;
    }
    m->rows = at + LDR_RESULTS_HEAD_BYTES;
    m->segs = m->rows + (size_t)m->count * LDR_RESULT_BYTES;
    /* So that who walks the rows never runs past the segments. */
    for (uint32_t i = 0; i < m->count; i++) {
        segs += ldr_get32(m->rows + (size_t)i * LDR_RESULT_BYTES +
                          RESULT_SEG_COUNT_AT);
    }
    return segs == m->seg_count;
}

void ldr_put_result(uint8_t *at, const ldr_result_row_t *row)
{
    ldr_put32(at, (uint32_t)row->status);
    ldr_put32(at + 4, (uint32_t)row->cause);
    ldr_put64(at + 8, row->length);
    ldr_put64(at + 16, row->lease);
    ldr_put32(at + 24, row->crc);
    ldr_put32(at + 28, row->flags);
    ldr_put32(at + RESULT_SEG_COUNT_AT, row->seg_count);
    ldr_put32(at + 36, 0);
}

bool ldr_get_result(const uint8_t *at, ldr_result_row_t *row)
{
    int32_t status = (int32_t)ldr_get32(at);

    row->status = (larder_status_t)status;
    row->cause = ldr_wire_cause(ldr_get32(at + 4));
    if (!ldr_wire_status_known(status)) {
        row->status = status > 0 ? LARDER_MISS : LARDER_E_OTHER;
        row->cause =
            row->cause != LARDER_CAUSE_NONE ? row->cause : LARDER_CAUSE_OTHER;
    }
    row->length = ldr_get64(at + 8);
    row->lease = ldr_get64(at + 16);
    row->crc = ldr_get32(at + 24);
    row->flags = ldr_get32(at + 28);
    row->seg_count = ldr_get32(at + RESULT_SEG_COUNT_AT);
    return (row->flags & ~(uint32_t)LDR_RESULT_CHECKED) == 0 &&
           ldr_get32(at + 36) == 0;
}

void ldr_put_seg(uint8_t *at, const ldr_seg_t *seg)
{
    ldr_put32(at, seg->extent);
    ldr_put32(at + 4, seg->generation);
    ldr_put32(at + 8, seg->page);
    ldr_put32(at + 12, seg->bytes);
}

void ldr_get_seg(const uint8_t *at, ldr_seg_t *seg)
{
    seg->extent = ldr_get32(at);
    seg->generation = ldr_get32(at + 4);
    seg->page = ldr_get32(at + 8);
    seg->bytes = ldr_get32(at + 12);
}

/* ---- ends ---- */

size_t ldr_put_ends(uint8_t *at, uint32_t count)
{
    ldr_put32(at, count);
    ldr_put32(at + 4, 0);
    return LDR_ENDS_HEAD_BYTES;
}

bool ldr_get_ends(const uint8_t *at, size_t bytes, ldr_ends_t *m)
{
    if (bytes < LDR_ENDS_HEAD_BYTES) {
        return false;
    }
    m->count = ldr_get32(at);
    m->rows = at + LDR_ENDS_HEAD_BYTES;
    return ldr_get32(at + 4) == 0 && m->count >= 1 &&
           m->count <= LARDER_BATCH_MAX &&
           (uint64_t)m->count * LDR_END_BYTES == bytes - LDR_ENDS_HEAD_BYTES;
}

void ldr_put_end(uint8_t *at, const ldr_end_row_t *row)
{
    ldr_put64(at, row->lease);
    ldr_put32(at + 8, row->crc);
    ldr_put32(at + 12, row->how);
}

bool ldr_get_end(const uint8_t *at, ldr_end_row_t *row)
{
    row->lease = ldr_get64(at);
    row->crc = ldr_get32(at + 8);
    row->how = ldr_get32(at + 12);
    return row->how <= LDR_END_ABORT;
}
