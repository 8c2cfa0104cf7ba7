/* The forms of what members say to each other. Included by forms.h, where its
 * own helpers are known. */
#pragma once

#include "wire/peer.h"

static inline size_t form_make_peer_home(ldr_rand_t *r, uint8_t *at)
{
    ldr_peer_head_t m = {
        .space = form_u32(r),
        .epoch = form_u32(r),
        .count = (uint32_t)ldr_rand_below(r, FORM_ROWS),
        .shards = (uint32_t)ldr_rand_below(r, LARDER_SHARDS_MAX + 1),
    };
    size_t n = ldr_put_peer_head(at, &m);

    for (uint32_t i = 0; i < m.count; i++) {
        ldr_peer_home_t row = {
            .group = (uint16_t)ldr_rand_below(r, LARDER_GROUPS_MAX),
            .gone = ldr_rand_below(r, 2) == 1,
            .member = ldr_rand_next(r),
        };

        form_random(r, row.key.hash, sizeof(row.key.hash));
        ldr_put_peer_home(at + n, &row);
        n += LDR_PEER_HOME_BYTES;
    }
    return n;
}

static inline bool form_read_peer_home(const uint8_t *at, size_t bytes,
                                       uint8_t *again, size_t *again_bytes)
{
    ldr_peer_head_t m;

    if (!ldr_get_peer_head(at, bytes, LDR_PEER_HOME_BYTES, &m)) {
        return false;
    }
    form_require(m.shards <= LARDER_SHARDS_MAX);
    size_t n = ldr_put_peer_head(again, &m);
    for (uint32_t i = 0; i < m.count; i++) {
        ldr_peer_home_t row;

        if (!ldr_get_peer_home(m.rows + (size_t)i * LDR_PEER_HOME_BYTES,
                               &row)) {
            return false;
        }
        form_require(row.group < LARDER_GROUPS_MAX);
        ldr_put_peer_home(again + n, &row);
        n += LDR_PEER_HOME_BYTES;
    }
    *again_bytes = n;
    return true;
}
