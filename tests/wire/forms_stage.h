/* The forms of STAGE and of leases by its token. Included by forms.h, where its
 * own helpers are known. */
#pragma once

static inline size_t form_make_stage(ldr_rand_t *r, uint8_t *at)
{
    larder_stage_params_t m = {
        .field_mask = ldr_rand_next(r),
        .tiers = form_u32(r),
        .below_percent = form_u32(r),
        .bytes_max = ldr_rand_next(r),
        .chunk_ns = ldr_rand_next(r),
        .dram_speed = ldr_rand_next(r),
        .member = "node-7",
    };
    size_t n = ldr_put_worth(at, &m);

    return n + form_make_match(r, at + n);
}

static inline bool form_read_stage(const uint8_t *at, size_t bytes,
                                   uint8_t *again, size_t *again_bytes)
{
    larder_stage_params_t m;
    size_t head = ldr_get_worth(at, bytes, &m);

    if (head == 0 ||
        !form_read_match(at + head, bytes - head, again + head, again_bytes)) {
        return false;
    }
    *again_bytes += ldr_put_worth(again, &m);
    return true;
}

static inline size_t form_make_handoff(ldr_rand_t *r, uint8_t *at)
{
    ldr_handoff_msg_t m = {
        .what = (uint32_t)ldr_rand_below(r, LARDER_HANDOFF_COUNT),
        .space = form_u32(r),
    };

    form_random(r, m.token.bytes, sizeof(m.token.bytes));
    if (m.what != LDR_HANDOFF_PROMISE && ldr_rand_below(r, 2) == 1) {
        form_text(r, m.member, sizeof(m.member));
    }
    size_t n = ldr_put_handoff(at, &m);
    return m.what == LDR_HANDOFF_PROMISE ? n + form_make_match(r, at + n) : n;
}

static inline bool form_read_handoff(const uint8_t *at, size_t bytes,
                                     uint8_t *again, size_t *again_bytes)
{
    ldr_handoff_msg_t m;

    if (!ldr_get_handoff(at, bytes, &m)) {
        return false;
    }
    form_require(m.what < LARDER_HANDOFF_COUNT);
    *again_bytes = ldr_put_handoff(again, &m);
    if (m.what == LDR_HANDOFF_PROMISE) {
        *again_bytes += ldr_put_match(again + *again_bytes, &m.chain);
    }
    return true;
}

static inline size_t form_make_staged(ldr_rand_t *r, uint8_t *at)
{
    ldr_staged_t m = {.lease = ldr_rand_next(r), .match = form_matched(r)};

    form_random(r, m.token.bytes, sizeof(m.token.bytes));
    m.match.found = form_u32(r);
    m.match.tried = form_u32(r);
    m.match.limit = (larder_limit_t)ldr_rand_below(r, LARDER_LIMIT_COUNT);
    m.match.tried_us = ldr_rand_next(r);
    m.match.tried_bytes = ldr_rand_next(r);
    m.match.tried_below_bytes = ldr_rand_next(r);
    return ldr_put_staged(at, &m);
}

static inline bool form_read_staged(const uint8_t *at, size_t bytes,
                                    uint8_t *again, size_t *again_bytes)
{
    ldr_staged_t m;

    if (!ldr_get_staged(at, bytes, &m)) {
        return false;
    }
    form_require((unsigned)m.match.limit < LARDER_LIMIT_COUNT);
    if (ldr_get32(at + 32) >= LARDER_LIMIT_COUNT ||
        ldr_get32(at + LDR_STAGED_HEAD_BYTES + 4) >= LARDER_CAUSE_COUNT ||
        bytes != LDR_STAGED_HEAD_BYTES + FORM_MATCHED_BYTES) {
        return form_newer(at, bytes, again, again_bytes);
    }
    *again_bytes = ldr_put_staged(again, &m);
    return true;
}

/* A batch without its head: half of its rows name a few shards. */
static inline ldr_batch_msg_t form_batch(ldr_rand_t *r, uint32_t *more)
{
    ldr_batch_msg_t m = {.space = form_u32(r),
                         .count = 1 + (uint32_t)ldr_rand_below(r, FORM_ROWS),
                         .flags = form_u32(r)};

    for (uint32_t i = 0; i < m.count; i++) {
        more[i] = (uint32_t)(ldr_rand_below(r, 2) * ldr_rand_below(r, 4));
        m.more += more[i];
    }
    return m;
}

/* What follows the rows. */
static inline size_t form_more(ldr_rand_t *r, uint8_t *at, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        ldr_more_row_t row = {form_u32(r), form_u32(r)};

        ldr_put_more(at + (size_t)i * LDR_MORE_BYTES, &row);
    }
    return (size_t)count * LDR_MORE_BYTES;
}

static inline size_t form_more_again(const uint8_t *from, uint8_t *at,
                                     uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        ldr_more_row_t row;

        ldr_get_more(from + (size_t)i * LDR_MORE_BYTES, &row);
        ldr_put_more(at + (size_t)i * LDR_MORE_BYTES, &row);
    }
    return (size_t)count * LDR_MORE_BYTES;
}

static inline size_t form_make_places(ldr_rand_t *r, uint8_t *at)
{
    uint32_t more[FORM_ROWS];
    ldr_batch_msg_t m = form_batch(r, more);
    larder_token_t token;

    form_random(r, token.bytes, sizeof(token.bytes));
    size_t n = ldr_put_redeem(at, &m, &token);
    for (uint32_t i = 0; i < m.count; i++, n += LDR_PLACE_BYTES) {
        ldr_place_row_t row = {(uint8_t)form_u16(r), (uint8_t)more[i],
                               form_u16(r), form_u32(r)};

        ldr_put_place(at + n, &row);
    }
    return n;
}

static inline bool form_read_places(const uint8_t *at, size_t bytes,
                                    uint8_t *again, size_t *again_bytes)
{
    ldr_batch_msg_t m;
    larder_token_t token;

    if (!ldr_get_redeem(at, bytes, &m, &token)) {
        return false;
    }
    size_t n = ldr_put_redeem(again, &m, &token);
    for (uint32_t i = 0; i < m.count; i++, n += LDR_PLACE_BYTES) {
        ldr_place_row_t row;

        ldr_get_place(m.rows + (size_t)i * LDR_PLACE_BYTES, &row);
        ldr_put_place(again + n, &row);
    }
    *again_bytes = n;
    return true;
}
