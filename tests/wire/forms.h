/*
 * Every body of the protocol: one of random values, and a reader that takes
 * any bytes and, if it accepts them, writes them again from what it read. Since
 * there is one way only to write a thing, the two must be the same: unless it
 * says more than this side knows, which is read and cannot be written.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "wire/describe.h"
#include "wire/wire.h"

typedef struct form {
    const char *name;
    /* Random and valid; at most FORM_BYTES_MAX. */
    size_t (*make)(ldr_rand_t *r, uint8_t *at);
    /* False: refused. again has room for bytes. */
    bool (*read)(const uint8_t *at, size_t bytes, uint8_t *again,
                 size_t *again_bytes);
} form_t;

#define FORM_BYTES_MAX 4096u
#define FORM_ROWS 5u

static inline void form_require(bool ok)
{
    if (!ok) {
        abort();
    }
}

/* Of what only a newer side could have written. */
static inline bool form_newer(const uint8_t *at, size_t bytes, uint8_t *again,
                              size_t *again_bytes)
{
    memcpy(again, at, bytes);
    *again_bytes = bytes;
    return true;
}

static inline void form_random(ldr_rand_t *r, void *to, size_t bytes)
{
    uint8_t *at = to;

    for (size_t i = 0; i < bytes; i++) {
        at[i] = (uint8_t)ldr_rand_next(r);
    }
}

static inline uint32_t form_u32(ldr_rand_t *r)
{
    return (uint32_t)ldr_rand_next(r);
}

static inline uint16_t form_u16(ldr_rand_t *r)
{
    return (uint16_t)ldr_rand_next(r);
}

static inline void form_text(ldr_rand_t *r, char *to, size_t width)
{
    size_t length = ldr_rand_below(r, width);

    memset(to, 0, width);
    for (size_t i = 0; i < length; i++) {
        to[i] = (char)(0x20 + ldr_rand_below(r, 0x5f));
    }
}

static inline larder_status_t form_status(ldr_rand_t *r)
{
    static const larder_status_t all[] = {
#define X(name, value, text) name,
        LARDER_STATUS_MAP(X)
#undef X
    };

    return all[ldr_rand_below(r, sizeof(all) / sizeof(all[0]))];
}

static inline larder_cause_t form_cause(ldr_rand_t *r)
{
    return (larder_cause_t)ldr_rand_below(r, LARDER_CAUSE_COUNT);
}

static inline bool form_text_ok(const char *text, size_t width)
{
    size_t length = strnlen(text, width);

    for (size_t i = 0; i < length; i++) {
        if ((uint8_t)text[i] < 0x20 || text[i] == 0x7f) {
            return false;
        }
    }
    return length < width;
}

static inline bool form_label_ok(const char *label)
{
    size_t length = strnlen(label, LARDER_LABEL_MAX + 1);

    for (size_t i = 0; i < length; i++) {
        if (label[i] < ' ' || label[i] > '~') {
            return false;
        }
    }
    return length <= LARDER_LABEL_MAX;
}

/* ---- one struct each ---- */

static inline ldr_hello_t form_hello(ldr_rand_t *r)
{
    ldr_hello_t m = {.features = ldr_rand_next(r)};

    m.version_min = (uint16_t)(1 + ldr_rand_below(r, UINT16_MAX));
    m.version_max =
        (uint16_t)(m.version_min +
                   ldr_rand_below(r, UINT16_MAX - m.version_min + 1u));
    form_random(r, m.nonce, sizeof(m.nonce));
    form_text(r, m.tenant, sizeof(m.tenant));
    form_text(r, m.program, sizeof(m.program));
    return m;
}

static inline size_t form_make_hello(ldr_rand_t *r, uint8_t *at)
{
    ldr_hello_t m = form_hello(r);

    return ldr_put_hello(at, &m);
}

static inline bool form_read_hello(const uint8_t *at, size_t bytes,
                                   uint8_t *again, size_t *again_bytes)
{
    ldr_hello_t m;

    if (!ldr_get_hello(at, bytes, &m)) {
        return false;
    }
    form_require(m.version_min >= 1 && m.version_min <= m.version_max);
    form_require(form_text_ok(m.tenant, sizeof(m.tenant)));
    form_require(form_text_ok(m.program, sizeof(m.program)));
    *again_bytes = ldr_put_hello(again, &m);
    return true;
}

static inline ldr_welcome_t form_welcome(ldr_rand_t *r)
{
    ldr_welcome_t m = {.version = (uint16_t)(1 + ldr_rand_below(r, 9)),
                       .auth = (uint16_t)ldr_rand_below(r, 2),
                       .features = ldr_rand_next(r),
                       .epoch = ldr_rand_next(r)};

    form_random(r, m.nonce, sizeof(m.nonce));
    form_text(r, m.program, sizeof(m.program));
    return m;
}

static inline size_t form_make_welcome(ldr_rand_t *r, uint8_t *at)
{
    ldr_welcome_t m = form_welcome(r);

    return ldr_put_welcome(at, &m);
}

static inline bool form_read_welcome(const uint8_t *at, size_t bytes,
                                     uint8_t *again, size_t *again_bytes)
{
    ldr_welcome_t m;

    if (!ldr_get_welcome(at, bytes, &m)) {
        return false;
    }
    form_require(m.version >= 1 && m.auth <= 1);
    form_require(form_text_ok(m.program, sizeof(m.program)));
    *again_bytes = ldr_put_welcome(again, &m);
    return true;
}

static inline ldr_attach_t form_attach(ldr_rand_t *r)
{
    return (ldr_attach_t){form_u32(r), form_u32(r),
                          (uint32_t)ldr_rand_below(r, 2)};
}

static inline size_t form_make_attach(ldr_rand_t *r, uint8_t *at)
{
    ldr_attach_t m = form_attach(r);

    return ldr_put_attach(at, &m);
}

static inline bool form_read_attach(const uint8_t *at, size_t bytes,
                                    uint8_t *again, size_t *again_bytes)
{
    ldr_attach_t m;

    if (!ldr_get_attach(at, bytes, &m)) {
        return false;
    }
    form_require(m.strict <= 1);
    *again_bytes = ldr_put_attach(again, &m);
    return true;
}

static inline ldr_extent_msg_t form_extent(ldr_rand_t *r)
{
    ldr_extent_msg_t m = {form_u32(r), form_u32(r), ldr_rand_next(r), 0};

    m.ready_bytes = m.bytes == 0 ? 0 : ldr_rand_below(r, m.bytes);
    return m;
}

static inline size_t form_make_extent(ldr_rand_t *r, uint8_t *at)
{
    ldr_extent_msg_t m = form_extent(r);

    return ldr_put_extent(at, &m);
}

static inline bool form_read_extent(const uint8_t *at, size_t bytes,
                                    uint8_t *again, size_t *again_bytes)
{
    ldr_extent_msg_t m;

    if (!ldr_get_extent(at, bytes, &m)) {
        return false;
    }
    form_require(m.ready_bytes <= m.bytes);
    *again_bytes = ldr_put_extent(again, &m);
    return true;
}

static inline ldr_space_msg_t form_space(ldr_rand_t *r)
{
    ldr_space_msg_t m = {.shards = form_u32(r)};

    form_random(r, m.id, sizeof(m.id));
    form_random(r, m.check, sizeof(m.check));
    form_random(r, m.key, sizeof(m.key));
    form_text(r, m.label, sizeof(m.label));
    return m;
}

static inline size_t form_make_space(ldr_rand_t *r, uint8_t *at)
{
    ldr_space_msg_t m = form_space(r);

    return ldr_put_space(at, &m);
}

static inline bool form_read_space(const uint8_t *at, size_t bytes,
                                   uint8_t *again, size_t *again_bytes)
{
    ldr_space_msg_t m;

    if (!ldr_get_space(at, bytes, &m)) {
        return false;
    }
    form_require(form_label_ok(m.label));
    size_t label = bytes - LDR_SPACE_HEAD_BYTES;
    if (strlen(m.label) != label ||
        memcmp(m.label, at + LDR_SPACE_HEAD_BYTES, label) != 0) {
        return form_newer(at, bytes, again, again_bytes); /* was not clean */
    }
    *again_bytes = ldr_put_space(again, &m);
    return true;
}

static inline size_t form_make_number(ldr_rand_t *r, uint8_t *at)
{
    return ldr_put_number(at, form_u32(r));
}

static inline bool form_read_number(const uint8_t *at, size_t bytes,
                                    uint8_t *again, size_t *again_bytes)
{
    uint32_t number;

    if (!ldr_get_number(at, bytes, &number)) {
        return false;
    }
    *again_bytes = ldr_put_number(again, number);
    return true;
}

/* With the tiers that this side knows. */
#define FORM_MATCHED_BYTES                                                     \
    (LDR_MATCHED_HEAD_BYTES + LARDER_TIER_COUNT * LDR_MATCHED_TIER_BYTES)

static inline larder_match_t form_matched(ldr_rand_t *r)
{
    larder_match_t m = {
        .chunks = form_u32(r),
        .cause = form_cause(r),
        .load_us = ldr_rand_next(r),
    };

    for (unsigned i = 0; i < LARDER_TIER_COUNT; i++) {
        m.tier_chunks[i] = form_u32(r);
        m.tier_bytes[i] = ldr_rand_next(r);
    }
    return m;
}

static inline size_t form_make_matched(ldr_rand_t *r, uint8_t *at)
{
    larder_match_t m = form_matched(r);

    return ldr_put_matched(at, &m);
}

static inline bool form_read_matched(const uint8_t *at, size_t bytes,
                                     uint8_t *again, size_t *again_bytes)
{
    larder_match_t m;

    if (!ldr_get_matched(at, bytes, &m)) {
        return false;
    }
    form_require((unsigned)m.cause < LARDER_CAUSE_COUNT);
    for (unsigned i = LARDER_TIER_COUNT; i < LARDER_TIERS_MAX; i++) {
        form_require(m.tier_chunks[i] == 0 && m.tier_bytes[i] == 0);
    }
    if (ldr_get32(at + 4) >= LARDER_CAUSE_COUNT ||
        bytes != FORM_MATCHED_BYTES) {
        return form_newer(at, bytes, again, again_bytes);
    }
    *again_bytes = ldr_put_matched(again, &m);
    return true;
}

static inline void form_disk(ldr_rand_t *r, larder_disk_stats_t *d)
{
    for (uint64_t *n = &d->bytes_max; n < d->reserved; n++) {
        *n = ldr_rand_next(r);
    }
    d->on = (uint32_t)ldr_rand_below(r, 2);
    form_text(r, d->path, sizeof(d->path));
    form_text(r, d->reason, sizeof(d->reason));
}

static inline larder_stats_t form_stats(ldr_rand_t *r)
{
    larder_stats_t m = {.disks = ldr_rand_below(r, 3),
                        .shared = ldr_rand_below(r, 2)};
    larder_shared_stats_t *s = &m.shared_tier;

    for (uint64_t *n = &m.saves_stored; n < m.misses; n++) {
        *n = ldr_rand_next(r);
    }
    for (unsigned i = 0; i < LARDER_CAUSE_COUNT; i++) {
        m.misses[i] = ldr_rand_next(r);
    }
    for (uint64_t *n = &m.evicted_chunks; n < &m.disks; n++) {
        *n = ldr_rand_next(r);
    }
    for (uint64_t *n = &m.dram_max_bytes; n < &m.shared; n++) {
        *n = ldr_rand_next(r);
    }
    m.asked_chunks = ldr_rand_next(r);
    m.found_chunks = ldr_rand_next(r);
    m.loads_peer = ldr_rand_next(r);
    for (uint64_t i = 0; i < m.disks; i++) {
        form_disk(r, &m.disk[i]);
    }
    if (m.shared != 0) {
        for (uint64_t *n = &s->objects; n < s->reserved; n++) {
            *n = ldr_rand_next(r);
        }
        s->on = (uint32_t)ldr_rand_below(r, 2);
        s->writable = (uint32_t)ldr_rand_below(r, 2);
        form_text(r, s->url, sizeof(s->url));
        form_text(r, s->reason, sizeof(s->reason));
    }
    return m;
}

static inline size_t form_make_stats(ldr_rand_t *r, uint8_t *at)
{
    larder_stats_t m = form_stats(r);

    return ldr_put_stats(at, &m);
}

static inline bool form_read_stats(const uint8_t *at, size_t bytes,
                                   uint8_t *again, size_t *again_bytes)
{
    static uint8_t own[LDR_STATS_BYTES_MAX];
    larder_stats_t m = {.client_calls = 7};

    if (!ldr_get_stats(at, bytes, &m)) {
        return false;
    }
    form_require(m.client_calls == 7 && m.disks <= LARDER_STATS_DISKS_MAX);
    for (unsigned i = LARDER_CAUSE_COUNT; i < LARDER_CAUSES_MAX; i++) {
        form_require(m.misses[i] == 0);
    }
    for (uint64_t i = 0; i < m.disks; i++) {
        form_require(form_text_ok(m.disk[i].path, sizeof(m.disk[i].path)));
        form_require(form_text_ok(m.disk[i].reason, sizeof(m.disk[i].reason)));
    }
    /* Flags, texts and counters that this side would not write. */
    size_t n = ldr_put_stats(own, &m);
    if (n != bytes || memcmp(own, at, bytes) != 0) {
        return form_newer(at, bytes, again, again_bytes);
    }
    memcpy(again, own, n);
    *again_bytes = n;
    return true;
}

/* ---- rows ---- */

static inline size_t form_make_match(ldr_rand_t *r, uint8_t *at)
{
    uint8_t keys[FORM_ROWS * LARDER_KEY_BYTES];
    uint8_t needs[FORM_ROWS * LDR_NEED_BYTES];
    ldr_match_msg_t m = {.space = form_u32(r),
                         .flags =
                             (uint32_t)ldr_rand_below(r, LDR_MATCH_AGAIN + 1),
                         .count = (uint32_t)ldr_rand_below(r, FORM_ROWS + 1),
                         .groups = 1 + (uint32_t)ldr_rand_below(r, FORM_ROWS),
                         .needs = needs,
                         .keys = keys};

    form_random(r, keys, sizeof(keys));
    for (uint32_t i = 0; i < m.groups; i++) {
        ldr_put_need(needs + (size_t)i * LDR_NEED_BYTES,
                     (uint16_t)ldr_rand_below(r, LARDER_GROUPS_MAX),
                     form_u32(r));
    }
    return ldr_put_match(at, &m);
}

static inline bool form_read_match(const uint8_t *at, size_t bytes,
                                   uint8_t *again, size_t *again_bytes)
{
    ldr_match_msg_t m;
    uint16_t group;
    uint32_t chunks;

    if (!ldr_get_match(at, bytes, &m)) {
        return false;
    }
    for (uint32_t i = 0; i < m.groups; i++) {
        ldr_get_need(m.needs + (size_t)i * LDR_NEED_BYTES, &group, &chunks);
    }
    *again_bytes = ldr_put_match(again, &m);
    return true;
}

#include "wire/forms_peer.h"
#include "wire/forms_stage.h"

static inline size_t form_make_list(ldr_rand_t *r, uint8_t *at)
{
    uint32_t count = (uint32_t)ldr_rand_below(r, FORM_ROWS + 1);
    size_t n = ldr_put_list(at, form_u32(r), count);

    for (uint32_t i = 0; i < count; i++, n += LDR_LIST_ROW_BYTES) {
        ldr_list_row_t row = {
            .group = form_u16(r),
            .shard = form_u16(r),
            .shards = form_u16(r),
            .flags = (uint16_t)ldr_rand_below(r, 2 * LDR_LIST_PINNED),
            .length = form_u32(r),
            .age_s = form_u32(r),
            .expires_s = form_u32(r),
            .depth = form_u32(r),
        };

        form_random(r, row.key.hash, sizeof(row.key.hash));
        form_random(r, row.space, sizeof(row.space));
        form_text(r, row.label, sizeof(row.label));
        ldr_put_listed(at + n, &row);
    }
    return n;
}

static inline bool form_read_list(const uint8_t *at, size_t bytes,
                                  uint8_t *again, size_t *again_bytes)
{
    ldr_list_head_t m;

    if (!ldr_get_list(at, bytes, &m)) {
        return false;
    }
    if (m.row_bytes != LDR_LIST_ROW_BYTES) {
        return form_newer(at, bytes, again, again_bytes);
    }
    *again_bytes = ldr_put_list(again, m.cursor, m.count);
    for (uint32_t i = 0; i < m.count; i++) {
        const uint8_t *from = m.rows + (size_t)i * m.row_bytes;
        ldr_list_row_t row;

        ldr_get_listed(from, &row);
        form_require(row.flags < 2 * LDR_LIST_PINNED);
        form_require(form_label_ok(row.label));
        row.flags = ldr_get16(from + 54);
        memcpy(row.label, from + 72, LARDER_LABEL_MAX); /* clean or not */
        ldr_put_listed(again + *again_bytes, &row);
        *again_bytes += LDR_LIST_ROW_BYTES;
    }
    return true;
}

static inline size_t form_make_announce(ldr_rand_t *r, uint8_t *at)
{
    uint8_t keys[FORM_ROWS * LARDER_KEY_BYTES];
    ldr_announce_msg_t m = {
        .space = form_u32(r),
        .count = 1 + (uint32_t)ldr_rand_below(r, FORM_ROWS),
        .chunk_tokens = form_u32(r),
        .tokens = form_u32(r),
        .hint = form_u32(r),
        .saves = (uint32_t)ldr_rand_below(r, 2),
        .id = ldr_rand_next(r),
        .keys = keys,
    };

    form_random(r, keys, sizeof(keys));
    return ldr_put_announce(at, &m);
}

static inline bool form_read_announce(const uint8_t *at, size_t bytes,
                                      uint8_t *again, size_t *again_bytes)
{
    ldr_announce_msg_t m;

    if (!ldr_get_announce(at, bytes, &m)) {
        return false;
    }
    form_require(m.count >= 1 && m.saves <= 1);
    *again_bytes = ldr_put_announce(again, &m);
    return true;
}

static inline void form_word(ldr_rand_t *r, char *text, size_t size)
{
    size_t length = 1 + ldr_rand_below(r, size - 1);

    memset(text, 0, size);
    for (size_t i = 0; i < length; i++) {
        text[i] = (char)('a' + ldr_rand_below(r, 26));
    }
}

static inline size_t form_make_describe(ldr_rand_t *r, uint8_t *at)
{
    uint8_t bytes[4096];
    ldr_describe_msg_t m = {
        .space = form_u32(r),
        .count = 1 + (uint32_t)ldr_rand_below(r, 3),
        .block_tokens = 1 + (uint32_t)ldr_rand_below(r, 8),
        .group_idx = form_u32(r),
        .window = form_u32(r),
        .group = (uint16_t)ldr_rand_below(r, LARDER_GROUPS_MAX),
        .hash_bytes = (uint8_t)(1 + ldr_rand_below(r, LDR_BLOCK_HASH_MAX)),
        .flags = (uint8_t)ldr_rand_below(r, 2),
        .keys = bytes,
        .tokens = bytes,
        .hashes = bytes,
    };

    m.chunk_tokens = m.block_tokens * (1 + (uint32_t)ldr_rand_below(r, 4));
    form_random(r, bytes, sizeof(bytes));
    form_random(r, m.digest, sizeof(m.digest));
    if (m.hash_bytes == 8 && ldr_rand_below(r, 2) == 1) {
        m.flags |= LDR_DESCRIBE_NUMBERS;
    }
    if ((m.flags & LDR_DESCRIBE_PARENT) != 0) {
        form_random(r, m.parent, m.hash_bytes);
    }
    form_word(r, m.pod, sizeof(m.pod));
    form_word(r, m.model, sizeof(m.model));
    form_word(r, m.kind, sizeof(m.kind));
    return ldr_put_describe(at, &m);
}

static inline bool form_read_describe(const uint8_t *at, size_t bytes,
                                      uint8_t *again, size_t *again_bytes)
{
    ldr_describe_msg_t m;

    if (!ldr_get_describe(at, bytes, &m)) {
        return false;
    }
    form_require(m.count >= 1 && m.count <= LDR_DESCRIBE_CHUNKS);
    form_require(m.chunk_tokens % m.block_tokens == 0);
    form_require(m.hash_bytes <= LDR_BLOCK_HASH_MAX);
    form_require(m.group < LARDER_GROUPS_MAX);
    form_require(m.pod[0] != '\0' && strchr(m.pod, '@') == NULL);
    *again_bytes = ldr_put_describe(again, &m);
    return true;
}

static inline ldr_name_row_t form_name(ldr_rand_t *r)
{
    ldr_name_row_t row = {
        .group = form_u16(r), .shard = form_u16(r), .room = ldr_rand_next(r)};

    form_random(r, &row.key, sizeof(row.key));
    return row;
}

static inline size_t form_make_names(ldr_rand_t *r, uint8_t *at)
{
    uint32_t more[FORM_ROWS];
    ldr_batch_msg_t m = form_batch(r, more);
    size_t n = ldr_put_batch(at, &m);

    for (uint32_t i = 0; i < m.count; i++, n += LDR_NAME_BYTES) {
        ldr_name_row_t row = form_name(r);

        row.more = more[i];
        ldr_put_name(at + n, &row);
    }
    return n + form_more(r, at + n, m.more);
}

static inline bool form_read_names(const uint8_t *at, size_t bytes,
                                   uint8_t *again, size_t *again_bytes)
{
    ldr_batch_msg_t m;
    ldr_name_row_t row;

    if (!ldr_get_batch(at, bytes, LDR_NAME_BYTES, &m)) {
        return false;
    }
    form_require(m.count >= 1 && m.count + m.more <= LARDER_BATCH_MAX);
    *again_bytes = ldr_put_batch(again, &m);
    for (uint32_t i = 0; i < m.count; i++) {
        ldr_get_name(m.rows + i * LDR_NAME_BYTES, &row);
        ldr_put_name(again + *again_bytes, &row);
        *again_bytes += LDR_NAME_BYTES;
    }
    *again_bytes += form_more_again(m.rows + m.count * LDR_NAME_BYTES,
                                    again + *again_bytes, m.more);
    return true;
}

static inline ldr_save_row_t form_save(ldr_rand_t *r)
{
    ldr_save_row_t row = {
        .has_parent = ldr_rand_below(r, 2) == 1,
        .depth = form_u32(r),
        .group = form_u16(r),
        .shard = form_u16(r),
        .flags = form_u32(r),
        .ttl_ms = form_u32(r),
        .length = ldr_rand_next(r),
        .crc = form_u32(r),
    };

    form_random(r, &row.key, sizeof(row.key));
    if (row.has_parent) {
        form_random(r, &row.parent, sizeof(row.parent));
    }
    return row;
}

static inline size_t form_make_saves(ldr_rand_t *r, uint8_t *at)
{
    uint32_t more[FORM_ROWS];
    ldr_batch_msg_t m = form_batch(r, more);
    size_t n = ldr_put_batch(at, &m);

    for (uint32_t i = 0; i < m.count; i++, n += LDR_SAVE_BYTES) {
        ldr_save_row_t row = form_save(r);

        row.more = (uint16_t)more[i];
        ldr_put_save(at + n, &row);
    }
    return n + form_more(r, at + n, m.more);
}

static inline bool form_read_saves(const uint8_t *at, size_t bytes,
                                   uint8_t *again, size_t *again_bytes)
{
    ldr_batch_msg_t m;
    ldr_save_row_t row;

    if (!ldr_get_batch(at, bytes, LDR_SAVE_BYTES, &m)) {
        return false;
    }
    *again_bytes = ldr_put_batch(again, &m);
    for (uint32_t i = 0; i < m.count; i++) {
        if (!ldr_get_save(m.rows + i * LDR_SAVE_BYTES, &row)) {
            return false;
        }
        ldr_put_save(again + *again_bytes, &row);
        *again_bytes += LDR_SAVE_BYTES;
    }
    *again_bytes += form_more_again(m.rows + m.count * LDR_SAVE_BYTES,
                                    again + *again_bytes, m.more);
    return true;
}

static inline ldr_result_row_t form_result(ldr_rand_t *r)
{
    return (ldr_result_row_t){
        .status = form_status(r),
        .cause = form_cause(r),
        .length = ldr_rand_next(r),
        .lease = ldr_rand_next(r),
        .crc = form_u32(r),
        .flags = (uint32_t)ldr_rand_below(r, 2),
        .seg_count = (uint32_t)ldr_rand_below(r, 4),
    };
}

static inline size_t form_make_results(ldr_rand_t *r, uint8_t *at)
{
    ldr_result_row_t rows[FORM_ROWS];
    uint32_t count = (uint32_t)(1 + ldr_rand_below(r, FORM_ROWS)), segs = 0;

    for (uint32_t i = 0; i < count; i++) {
        rows[i] = form_result(r);
        segs += rows[i].seg_count;
    }
    size_t n = ldr_put_results(at, count, segs);
    for (uint32_t i = 0; i < count; i++, n += LDR_RESULT_BYTES) {
        ldr_put_result(at + n, &rows[i]);
    }
    for (uint32_t i = 0; i < segs; i++, n += LDR_SEG_BYTES) {
        ldr_seg_t seg = {form_u32(r), form_u32(r), form_u32(r), form_u32(r)};
        ldr_put_seg(at + n, &seg);
    }
    return n;
}

/* What was said is written again, if it is what the row says it is. */
static inline void form_result_again(const uint8_t *at, ldr_result_row_t *row)
{
    int32_t status = (int32_t)ldr_get32(at);
    uint32_t cause = ldr_get32(at + 4);

    if (row->status != (larder_status_t)status) {
        form_require(row->status ==
                     (status > 0 ? LARDER_MISS : LARDER_E_OTHER));
        form_require(row->cause != LARDER_CAUSE_NONE);
        row->status = (larder_status_t)status;
        row->cause = (larder_cause_t)cause;
    } else if (row->cause != (larder_cause_t)cause) {
        form_require(row->cause == LARDER_CAUSE_OTHER);
        row->cause = (larder_cause_t)cause;
    }
}

static inline bool form_read_results(const uint8_t *at, size_t bytes,
                                     uint8_t *again, size_t *again_bytes)
{
    ldr_results_t m;
    ldr_result_row_t row;
    ldr_seg_t seg;
    uint64_t segs = 0;

    if (!ldr_get_results(at, bytes, &m)) {
        return false;
    }
    form_require(m.count >= 1 && m.count <= LARDER_BATCH_MAX);
    *again_bytes = ldr_put_results(again, m.count, m.seg_count);
    for (uint32_t i = 0; i < m.count; i++) {
        if (!ldr_get_result(m.rows + i * LDR_RESULT_BYTES, &row)) {
            return false;
        }
        form_require((unsigned)row.cause < LARDER_CAUSE_COUNT);
        form_require(strcmp(larder_status_text(row.status), "unknown status") !=
                     0);
        segs += row.seg_count;
        form_result_again(m.rows + i * LDR_RESULT_BYTES, &row);
        ldr_put_result(again + *again_bytes, &row);
        *again_bytes += LDR_RESULT_BYTES;
    }
    form_require(segs == m.seg_count);
    for (uint32_t i = 0; i < m.seg_count; i++) {
        ldr_get_seg(m.segs + i * LDR_SEG_BYTES, &seg);
        ldr_put_seg(again + *again_bytes, &seg);
        *again_bytes += LDR_SEG_BYTES;
    }
    return true;
}

static inline size_t form_make_ends(ldr_rand_t *r, uint8_t *at)
{
    uint32_t count = (uint32_t)(1 + ldr_rand_below(r, FORM_ROWS));
    size_t n = ldr_put_ends(at, count);

    for (uint32_t i = 0; i < count; i++, n += LDR_END_BYTES) {
        ldr_end_row_t row = {ldr_rand_next(r), form_u32(r),
                             (uint32_t)ldr_rand_below(r, LDR_END_ABORT + 1)};
        ldr_put_end(at + n, &row);
    }
    return n;
}

static inline bool form_read_ends(const uint8_t *at, size_t bytes,
                                  uint8_t *again, size_t *again_bytes)
{
    ldr_ends_t m;
    ldr_end_row_t row;

    if (!ldr_get_ends(at, bytes, &m)) {
        return false;
    }
    form_require(m.count >= 1 && m.count <= LARDER_BATCH_MAX);
    *again_bytes = ldr_put_ends(again, m.count);
    for (uint32_t i = 0; i < m.count; i++) {
        if (!ldr_get_end(m.rows + i * LDR_END_BYTES, &row)) {
            return false;
        }
        form_require(row.how <= LDR_END_ABORT);
        ldr_put_end(again + *again_bytes, &row);
        *again_bytes += LDR_END_BYTES;
    }
    return true;
}

#define FORM_MAP(X)                                                            \
    X(hello)                                                                   \
    X(welcome)                                                                 \
    X(attach)                                                                  \
    X(extent)                                                                  \
    X(space)                                                                   \
    X(number)                                                                  \
    X(match)                                                                   \
    X(matched)                                                                 \
    X(names)                                                                   \
    X(saves)                                                                   \
    X(results)                                                                 \
    X(ends)                                                                    \
    X(announce)                                                                \
    X(describe)                                                                \
    X(stage)                                                                   \
    X(handoff)                                                                 \
    X(peer_home)                                                               \
    X(staged)                                                                  \
    X(places)                                                                  \
    X(list)                                                                    \
    X(stats)

static const form_t forms[] = {
#define X(name) {#name, form_make_##name, form_read_##name},
    FORM_MAP(X)
#undef X
};

#define FORM_COUNT (sizeof(forms) / sizeof(forms[0]))

/* Reads these bytes from a buffer of exactly that size. Whether they were
 * accepted; if so, they were the only way to write what was read. */
static inline bool form_try(const form_t *form, const uint8_t *bytes, size_t n)
{
    uint8_t *exact = malloc(n > 0 ? n : 1);
    uint8_t *again = malloc(n > 0 ? n : 1);
    size_t again_bytes = 0;
    bool accepted;

    form_require(exact != NULL && again != NULL);
    if (n > 0) {
        memcpy(exact, bytes, n);
    }
    /* n == 0: a pointer to one byte that must not be read would be accepted
     * by a sanitizer, so the end of the buffer is passed. */
    accepted = form->read(n > 0 ? exact : exact + 1, n, again, &again_bytes);
    if (accepted) {
        form_require(again_bytes == n && memcmp(exact, again, n) == 0);
    }
    free(exact);
    free(again);
    return accepted;
}
