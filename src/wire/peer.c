/* Frames between members: see peer.h. */
#include "wire/peer.h"

#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "wire/wire_int.h"

/* ---- MEET ---- */

size_t ldr_put_meet(uint8_t *at, const ldr_meet_t *m)
{
    ldr_put32(at, m->version_major);
    ldr_put64(at + 4, m->run);
    ldr_put64(at + 12, m->have);
    ldr_put64(at + 20, m->have_run);
    ldr_put64(at + 28, m->first);
    ldr_put64(at + 36, m->last);
    ldr_put32(at + 44, m->epochs);
    ldr_put32(at + 48, m->removals);
    ldr_put32(at + 52, m->flags);
    ldr_put64(at + 56, m->view);
    ldr_put64(at + 64, m->wall_s);
    ldr_wire_put_text(at + 72, m->name, LDR_PEER_NAME);
    ldr_wire_put_text(at + 72 + LDR_PEER_NAME, m->cluster, LDR_PEER_NAME);
    return LDR_MEET_HEAD_BYTES;
}

bool ldr_get_meet(const uint8_t *at, size_t bytes, ldr_meet_t *m)
{
    if (bytes < LDR_MEET_HEAD_BYTES) {
        return false;
    }
    m->version_major = ldr_get32(at);
    m->run = ldr_get64(at + 4);
    m->have = ldr_get64(at + 12);
    m->have_run = ldr_get64(at + 20);
    m->first = ldr_get64(at + 28);
    m->last = ldr_get64(at + 36);
    m->epochs = ldr_get32(at + 44);
    m->removals = ldr_get32(at + 48);
    m->flags = ldr_get32(at + 52);
    m->view = ldr_get64(at + 56);
    m->wall_s = ldr_get64(at + 64);
    m->rows = at + LDR_MEET_HEAD_BYTES;
    return bytes == LDR_MEET_HEAD_BYTES +
                        (uint64_t)m->epochs * LDR_EPOCH_BYTES +
                        (uint64_t)m->removals * LDR_REMOVAL_BYTES &&
           ldr_wire_get_text(at + 72, LDR_PEER_NAME, m->name) &&
           ldr_wire_get_text(at + 72 + LDR_PEER_NAME, LDR_PEER_NAME,
                             m->cluster);
}

void ldr_put_epoch(uint8_t *at, const ldr_epoch_row_t *row)
{
    memcpy(at, row->space, LDR_WIRE_ID_BYTES);
    ldr_put32(at + LDR_WIRE_ID_BYTES, row->epoch);
}

void ldr_get_epoch(const uint8_t *at, ldr_epoch_row_t *row)
{
    memcpy(row->space, at, LDR_WIRE_ID_BYTES);
    row->epoch = ldr_get32(at + LDR_WIRE_ID_BYTES);
}

void ldr_put_removal(uint8_t *at, const ldr_removal_row_t *row)
{
    memcpy(at, row->space, LDR_WIRE_ID_BYTES);
    memcpy(at + 16, &row->key, sizeof(row->key));
    ldr_put16(at + 48, row->group);
    ldr_put16(at + 50, row->shard);
    ldr_put64(at + 52, row->id);
    ldr_put32(at + 60, row->age_s);
}

bool ldr_get_removal(const uint8_t *at, ldr_removal_row_t *row)
{
    memcpy(row->space, at, LDR_WIRE_ID_BYTES);
    memcpy(&row->key, at + 16, sizeof(row->key));
    row->group = ldr_get16(at + 48);
    row->shard = ldr_get16(at + 50);
    row->id = ldr_get64(at + 52);
    row->age_s = ldr_get32(at + 60);
    return row->group < LARDER_GROUPS_MAX && row->shard < LARDER_SHARDS_MAX;
}

/* ---- PEER_SPACE ---- */

size_t ldr_put_peer_space(uint8_t *at, const char *tenant,
                          const ldr_space_msg_t *m)
{
    ldr_wire_put_text(at, tenant, LDR_TENANT_MAX + 1);
    return LDR_TENANT_MAX + 1 + ldr_put_space(at + LDR_TENANT_MAX + 1, m);
}

bool ldr_get_peer_space(const uint8_t *at, size_t bytes,
                        char tenant[LDR_TENANT_MAX + 1], ldr_space_msg_t *m)
{
    return bytes > LDR_TENANT_MAX + 1 &&
           ldr_wire_get_text(at, LDR_TENANT_MAX + 1, tenant) &&
           ldr_get_space(at + LDR_TENANT_MAX + 1, bytes - LDR_TENANT_MAX - 1,
                         m);
}

/* ---- ASK, GET, PUT ---- */

size_t ldr_put_peer_head(uint8_t *at, const ldr_peer_head_t *m)
{
    ldr_put32(at, m->space);
    ldr_put32(at + 4, m->epoch);
    ldr_put32(at + 8, m->count);
    ldr_put32(at + 12, m->shards);
    return LDR_PEER_HEAD_BYTES;
}

bool ldr_get_peer_head(const uint8_t *at, size_t bytes, uint32_t row_bytes,
                       ldr_peer_head_t *m)
{
    if (bytes < LDR_PEER_HEAD_BYTES) {
        return false;
    }
    m->space = ldr_get32(at);
    m->epoch = ldr_get32(at + 4);
    m->count = ldr_get32(at + 8);
    m->shards = ldr_get32(at + 12);
    m->rows = at + LDR_PEER_HEAD_BYTES;
    uint64_t row =
        row_bytes > 0 ? row_bytes : LDR_PEER_FOUND_BYTES * (uint64_t)m->shards;
    uint64_t all = LDR_PEER_HEAD_BYTES + m->count * row;
    if (m->shards > LARDER_SHARDS_MAX || bytes < all ||
        (row_bytes > 0 && bytes > all) ||
        (bytes - all) % LDR_PEER_OTHER_BYTES != 0 ||
        (bytes - all) / LDR_PEER_OTHER_BYTES > LDR_OTHERS_MAX) {
        return false;
    }
    m->others = at + all;
    m->other_count = (uint32_t)((bytes - all) / LDR_PEER_OTHER_BYTES);
    return true;
}

void ldr_put_peer_other(uint8_t *at, uint64_t id)
{
    ldr_put64(at, id);
}

bool ldr_get_peer_other(const ldr_peer_head_t *m, uint32_t which,
                        uint64_t *id_p)
{
    if (which == 0 || which > m->other_count) {
        return false;
    }
    *id_p = ldr_get64(m->others + (size_t)(which - 1) * LDR_PEER_OTHER_BYTES);
    return true;
}

void ldr_put_peer_found(uint8_t *at, const ldr_peer_found_t *m)
{
    LDR_ASSERT(m->length <= LDR_FOUND_LENGTH && m->other <= LDR_OTHERS_MAX);
    ldr_put32(at, m->other << LDR_FOUND_BITS | m->length);
}

ldr_peer_found_t ldr_get_peer_found(const uint8_t *at)
{
    uint32_t found = ldr_get32(at);

    return (ldr_peer_found_t){found & LDR_FOUND_LENGTH,
                              found >> LDR_FOUND_BITS};
}

bool ldr_peer_found_none(const uint8_t *at)
{
    return ldr_get32(at) == 0;
}

void ldr_put_peer_name(uint8_t *at, const ldr_peer_name_t *row)
{
    memcpy(at, &row->key, sizeof(row->key));
    ldr_put16(at + 32, row->group);
    ldr_put16(at + 34, row->shard);
    ldr_put32(at + 36, row->room);
}

bool ldr_get_peer_name(const uint8_t *at, ldr_peer_name_t *row)
{
    memcpy(&row->key, at, sizeof(row->key));
    row->group = ldr_get16(at + 32);
    row->shard = ldr_get16(at + 34);
    row->room = ldr_get32(at + 36);
    return row->group < LARDER_GROUPS_MAX && row->shard < LARDER_SHARDS_MAX;
}

void ldr_put_peer_status(uint8_t *at, larder_status_t status)
{
    ldr_put32(at, (uint32_t)(int32_t)status);
}

larder_status_t ldr_get_peer_status(const uint8_t *at)
{
    int32_t status = (int32_t)ldr_get32(at);

    return ldr_wire_status_known(status) ? (larder_status_t)status
                                         : LARDER_E_OTHER;
}

void ldr_put_peer_shard(uint8_t *at, const ldr_peer_shard_t *row)
{
    memcpy(at, &row->key, sizeof(row->key));
    memcpy(at + 32, &row->parent, sizeof(row->parent));
    ldr_put16(at + 64, row->group);
    ldr_put16(at + 66, row->shard);
    ldr_put32(at + 68, row->shards);
    ldr_put32(at + 72, row->length);
    ldr_put32(at + 76, row->crc);
    ldr_put32(at + 80, row->written_s);
    ldr_put32(at + 84, row->expires_s);
    ldr_put32(at + 88, row->depth);
    ldr_put32(at + 92, row->pinned);
    ldr_put_peer_status(at + 96, row->status);
}

bool ldr_get_peer_shard(const uint8_t *at, ldr_peer_shard_t *row)
{
    memcpy(&row->key, at, sizeof(row->key));
    memcpy(&row->parent, at + 32, sizeof(row->parent));
    row->group = ldr_get16(at + 64);
    row->shard = ldr_get16(at + 66);
    row->shards = ldr_get32(at + 68);
    row->length = ldr_get32(at + 72);
    row->crc = ldr_get32(at + 76);
    row->written_s = ldr_get32(at + 80);
    row->expires_s = ldr_get32(at + 84);
    row->depth = ldr_get32(at + 88);
    row->pinned = ldr_get32(at + 92);
    row->status = ldr_get_peer_status(at + 96);
    return row->group < LARDER_GROUPS_MAX && row->shards >= 1 &&
           row->shards <= LARDER_SHARDS_MAX && row->shard < row->shards &&
           row->length <= LARDER_VALUE_MAX && row->pinned <= 1 &&
           (row->status != LARDER_OK || row->length > 0);
}

/* ---- HANDOFF ---- */

size_t ldr_put_peer_handoff(uint8_t *at, const ldr_peer_handoff_t *m)
{
    ldr_put32(at, m->what);
    ldr_put32(at + 4, m->space);
    memcpy(at + 8, m->about, sizeof(m->about));
    return LDR_PEER_HANDOFF_BYTES;
}

bool ldr_get_peer_handoff(const uint8_t *at, size_t bytes,
                          ldr_peer_handoff_t *m)
{
    if (bytes != LDR_PEER_HANDOFF_BYTES) {
        return false;
    }
    m->what = ldr_get32(at);
    m->space = ldr_get32(at + 4);
    memcpy(m->about, at + 8, sizeof(m->about));
    return m->what < LARDER_HANDOFF_COUNT;
}

/* ---- HOME ---- */

void ldr_put_peer_home(uint8_t *at, const ldr_peer_home_t *row)
{
    memcpy(at, &row->key, sizeof(row->key));
    ldr_put16(at + 32, row->group);
    ldr_put16(at + 34, row->gone);
    ldr_put64(at + 36, row->member);
}

bool ldr_get_peer_home(const uint8_t *at, ldr_peer_home_t *row)
{
    uint16_t gone = ldr_get16(at + 34);

    memcpy(&row->key, at, sizeof(row->key));
    row->group = ldr_get16(at + 32);
    row->gone = gone == 1;
    row->member = ldr_get64(at + 36);
    return row->group < LARDER_GROUPS_MAX && gone <= 1;
}
