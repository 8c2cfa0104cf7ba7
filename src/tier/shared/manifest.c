/*
 * A manifest is a head of 64 bytes, entries one after the other, and the MAC.
 * Every offset is in one of the enums below, which docs/concepts/shared.md
 * repeats as tables. Everything is little-endian, nothing is aligned, and there
 * is not one byte whose value does not matter.
 *
 * The MAC is HMAC-SHA-256 under the tenant's key; the magic at the beginning
 * keeps what it signs apart from all else that is hashed under that key. What
 * has passed it was written by somebody of the tenant's, but is parsed as if
 * it were not: all of it once, before the first entry is handed out.
 */
#include "tier/shared/manifest.h"

#include <assert.h>
#include <openssl/crypto.h>
#include <string.h>

#include "base/bytes.h"
#include "base/hash.h"
#include "base/mem.h"
#include "tier/shared/backend.h"

enum { MAGIC_BYTES = 8, MAC_BYTES = 32 };

static const char magic[MAGIC_BYTES + 1] = "LARDERMF";

enum {
    HEAD_VERSION = 8,  /* u32 */
    HEAD_ENTRIES = 12, /* u32 */
    HEAD_TENANT_ID = 16,
    HEAD_NODE_ID = 32,
    HEAD_SEQUENCE = 40,   /* u64 */
    HEAD_BODY_BYTES = 48, /* u64 */
    HEAD_WRITTEN_S = 56,  /* u32 */
    HEAD_ZERO = 60,       /* u32 */
    HEAD_BYTES = 64
};

/* Every entry begins with its kind, u8, and the id of an object, or of a space
 * if a record was removed. */
enum {
    ENTRY_ID = 1,
    GONE_BYTES = 17,
    USED_USED_S = 17, /* u32 */
    USED_BYTES = 21,
    REMOVED_WHEN_S = 17, /* u32 */
    REMOVED_ROW = 21,
    OBJECT_SPACE_ID = 17,
    OBJECT_EPOCH = 33, /* u32, as all from here */
    OBJECT_WRITTEN_S = 37,
    OBJECT_USED_S = 41,
    OBJECT_USED_BLOCKS = 45,
    OBJECT_ROW_COUNT = 49,
    OBJECT_ROWS = 53
};

enum {
    ROW_KEY = 0,
    ROW_EXPIRES_S = 16, /* u32 */
    ROW_BLOCK = 20,     /* u16 */
    ROW_BLOCKS = 22,    /* u16 */
    ROW_DEPTH = 24,     /* u24 */
    ROW_GROUP = 27,     /* u8, as all from here */
    ROW_SHARD = 28,
    ROW_SHARDS = 29,
    ROW_BYTES = 30
};

static_assert(HEAD_BYTES == LDR_MANIFEST_HEAD, "format");
static_assert(ENTRY_ID + LDR_ID_BYTES == GONE_BYTES, "format");
static_assert(LDR_MANIFEST_KEY == ROW_EXPIRES_S, "format");
static_assert(LARDER_GROUPS_MAX <= 256 && LARDER_SHARDS_MAX <= 255, "format");

#define ROOM_MIN ((size_t)4096)
#define BLOCKS_MAX ((uint32_t)(LDR_OBJECT_BYTES_MAX / LDR_BLOCK))

static_assert(LDR_OBJECT_BYTES_MAX / LDR_BLOCK <= UINT16_MAX, "format");

/* ---- composing ---- */

static bool manifest_grow(ldr_manifest_t *m, size_t more)
{
    size_t need = (m->bytes != 0 ? m->bytes : (size_t)HEAD_BYTES) + more;

    need = (size_t)ldr_max64(need + MAC_BYTES, ROOM_MIN);
    if (need > LDR_MANIFEST_BYTES_MAX ||
        !ldr_grow(&m->data, &m->capacity, need, 1)) {
        return false;
    }
    if (m->bytes == 0) {
        m->bytes = HEAD_BYTES;
    }
    return true;
}

static void put_row(uint8_t *p, const ldr_manifest_row_t *row)
{
    memcpy(p + ROW_KEY, row->key, LDR_MANIFEST_KEY);
    ldr_put32(p + ROW_EXPIRES_S, row->expires_s);
    ldr_put16(p + ROW_BLOCK, row->block);
    ldr_put16(p + ROW_BLOCKS, row->blocks);
    ldr_put16(p + ROW_DEPTH, (uint16_t)row->depth);
    p[ROW_DEPTH + 2] = (uint8_t)(row->depth >> 16);
    p[ROW_GROUP] = row->group;
    p[ROW_SHARD] = row->shard;
    p[ROW_SHARDS] = row->shards;
}

static void put_object(uint8_t *p, const ldr_manifest_entry_t *e)
{
    memcpy(p + OBJECT_SPACE_ID, e->object.space_id, LDR_ID_BYTES);
    ldr_put32(p + OBJECT_EPOCH, e->object.epoch);
    ldr_put32(p + OBJECT_WRITTEN_S, e->object.written_s);
    ldr_put32(p + OBJECT_USED_S, e->used_s);
    ldr_put32(p + OBJECT_USED_BLOCKS, e->object.used_blocks);
    ldr_put32(p + OBJECT_ROW_COUNT, e->object.rows);
    for (uint32_t i = 0; i < e->object.rows; i++) {
        put_row(p + OBJECT_ROWS + (size_t)i * ROW_BYTES, &e->rows[i]);
    }
}

/* Bytes of an entry; 0: no such kind, or more rows than there can be. */
static size_t entry_bytes(uint8_t kind, uint32_t rows)
{
    switch (kind) {
    case LDR_MANIFEST_OBJECT:
        return rows <= LDR_OBJECT_ROWS_MAX
                   ? OBJECT_ROWS + (size_t)rows * ROW_BYTES
                   : 0;
    case LDR_MANIFEST_GONE:
        return GONE_BYTES;
    case LDR_MANIFEST_REMOVED:
        return REMOVED_ROW + ROW_BYTES;
    case LDR_MANIFEST_USED:
        return USED_BYTES;
    default:
        return 0;
    }
}

static bool row_name_ok(const uint8_t *p)
{
    return p[ROW_GROUP] < LARDER_GROUPS_MAX &&
           p[ROW_SHARDS] <= LARDER_SHARDS_MAX && p[ROW_SHARD] < p[ROW_SHARDS];
}

/* All rows lie in the object: payload and descriptor each. */
static bool object_ok(const uint8_t *p, uint32_t rows)
{
    uint32_t used = ldr_get32(p + OBJECT_USED_BLOCKS);
    bool ok = used >= 2 && used <= BLOCKS_MAX;

    for (uint32_t i = 0; ok && i < rows; i++) {
        const uint8_t *row = p + OBJECT_ROWS + (size_t)i * ROW_BYTES;
        uint32_t blocks = ldr_get16(row + ROW_BLOCKS);

        ok = row_name_ok(row) && blocks >= 2 &&
             ldr_get16(row + ROW_BLOCK) + blocks <= used;
    }
    return ok;
}

/* Bytes of the entry at p, of which `left` are there; 0: it is none. */
static size_t entry_check(const uint8_t *p, size_t left)
{
    uint32_t rows = 0;

    if (left == 0) {
        return 0;
    }
    if (p[0] == LDR_MANIFEST_OBJECT && left >= OBJECT_ROWS) {
        rows = ldr_get32(p + OBJECT_ROW_COUNT);
    }
    size_t bytes = entry_bytes(p[0], rows);
    if (bytes > left ||
        (p[0] == LDR_MANIFEST_OBJECT && bytes != 0 && !object_ok(p, rows)) ||
        (p[0] == LDR_MANIFEST_REMOVED && !row_name_ok(p + REMOVED_ROW))) {
        return 0;
    }
    return bytes;
}

bool ldr_manifest_add(ldr_manifest_t *m, const ldr_manifest_entry_t *entry)
{
    size_t bytes = entry_bytes((uint8_t)entry->kind, entry->object.rows);

    if (bytes == 0 || !manifest_grow(m, bytes)) {
        return false;
    }
    uint8_t *p = m->data + m->bytes;
    p[0] = (uint8_t)entry->kind;
    memcpy(p + ENTRY_ID,
           entry->kind == LDR_MANIFEST_REMOVED ? entry->object.space_id
                                               : entry->object.id,
           LDR_ID_BYTES);
    if (entry->kind == LDR_MANIFEST_OBJECT) {
        put_object(p, entry);
    } else if (entry->kind == LDR_MANIFEST_REMOVED) {
        ldr_put32(p + REMOVED_WHEN_S, entry->object.written_s);
        put_row(p + REMOVED_ROW, &entry->rows[0]);
    } else if (entry->kind == LDR_MANIFEST_USED) {
        ldr_put32(p + USED_USED_S, entry->used_s);
    }
    if (entry_check(p, bytes) != bytes) {
        return false; /* it would make all the others unreadable */
    }
    m->bytes += bytes;
    m->entries++;
    return true;
}

bool ldr_manifest_finish(ldr_manifest_t *m, const ldr_manifest_head_t *head,
                         const ldr_seal_t *seal)
{
    if (!manifest_grow(m, 0)) {
        return false;
    }
    uint8_t *p = m->data;
    memcpy(p, magic, MAGIC_BYTES);
    ldr_put32(p + HEAD_VERSION, LDR_MANIFEST_VERSION);
    ldr_put32(p + HEAD_ENTRIES, m->entries);
    memcpy(p + HEAD_TENANT_ID, head->tenant_id, LDR_ID_BYTES);
    memcpy(p + HEAD_NODE_ID, head->node_id, sizeof(head->node_id));
    ldr_put64(p + HEAD_SEQUENCE, head->sequence);
    ldr_put64(p + HEAD_BODY_BYTES, m->bytes - HEAD_BYTES);
    ldr_put32(p + HEAD_WRITTEN_S, head->written_s);
    ldr_put32(p + HEAD_ZERO, 0);
    const ldr_piece_t all = {m->data, m->bytes};
    if (!ldr_hmac_sha256(seal->mac, LDR_SEAL_KEY_BYTES, &all, 1,
                         m->data + m->bytes)) {
        return false;
    }
    m->bytes += MAC_BYTES;
    return true;
}

void ldr_manifest_clear(ldr_manifest_t *m)
{
    ldr_free(m->data);
    memset(m, 0, sizeof(*m));
}

/* ---- parsing ---- */

static void get_row(const uint8_t *p, ldr_manifest_row_t *row)
{
    memcpy(row->key, p + ROW_KEY, LDR_MANIFEST_KEY);
    row->expires_s = ldr_get32(p + ROW_EXPIRES_S);
    row->block = ldr_get16(p + ROW_BLOCK);
    row->blocks = ldr_get16(p + ROW_BLOCKS);
    row->depth = ldr_get16(p + ROW_DEPTH) | (uint32_t)p[ROW_DEPTH + 2] << 16;
    row->group = p[ROW_GROUP];
    row->shard = p[ROW_SHARD];
    row->shards = p[ROW_SHARDS];
}

static bool body_ok(const uint8_t *p, size_t left, uint32_t entries)
{
    for (uint32_t i = 0; i < entries; i++) {
        size_t bytes = entry_check(p, left);

        if (bytes == 0) {
            return false;
        }
        p += bytes;
        left -= bytes;
    }
    return left == 0;
}

static bool is_head(const uint8_t *data, const uint8_t tenant_id[LDR_ID_BYTES])
{
    return memcmp(data, magic, MAGIC_BYTES) == 0 &&
           ldr_get32(data + HEAD_VERSION) == LDR_MANIFEST_VERSION &&
           ldr_get32(data + HEAD_ZERO) == 0 &&
           memcmp(data + HEAD_TENANT_ID, tenant_id, LDR_ID_BYTES) == 0;
}

static bool head_ok(const uint8_t *data, size_t bytes,
                    const uint8_t tenant_id[LDR_ID_BYTES])
{
    return bytes >= HEAD_BYTES + MAC_BYTES && bytes <= LDR_MANIFEST_BYTES_MAX &&
           is_head(data, tenant_id) &&
           ldr_get64(data + HEAD_BODY_BYTES) == bytes - HEAD_BYTES - MAC_BYTES;
}

static bool mac_ok(const uint8_t *data, size_t bytes, const ldr_seal_t *seal)
{
    const ldr_piece_t all = {data, bytes - MAC_BYTES};
    uint8_t mac[MAC_BYTES];

    return ldr_hmac_sha256(seal->mac, LDR_SEAL_KEY_BYTES, &all, 1, mac) &&
           CRYPTO_memcmp(mac, data + bytes - MAC_BYTES, MAC_BYTES) == 0;
}

/* The entry at p, which was checked. */
static size_t get_entry(const uint8_t *p, ldr_manifest_entry_t *e,
                        ldr_manifest_row_t *rows)
{
    memset(e, 0, sizeof(*e));
    e->kind = (ldr_manifest_kind_t)p[0];
    if (e->kind == LDR_MANIFEST_REMOVED) {
        memcpy(e->object.space_id, p + ENTRY_ID, LDR_ID_BYTES);
        e->object.written_s = ldr_get32(p + REMOVED_WHEN_S);
        get_row(p + REMOVED_ROW, rows);
        e->rows = rows;
        return REMOVED_ROW + ROW_BYTES;
    }
    memcpy(e->object.id, p + ENTRY_ID, LDR_ID_BYTES);
    if (e->kind == LDR_MANIFEST_OBJECT) {
        memcpy(e->object.space_id, p + OBJECT_SPACE_ID, LDR_ID_BYTES);
        e->object.epoch = ldr_get32(p + OBJECT_EPOCH);
        e->object.written_s = ldr_get32(p + OBJECT_WRITTEN_S);
        e->object.used_blocks = ldr_get32(p + OBJECT_USED_BLOCKS);
        e->object.rows = ldr_get32(p + OBJECT_ROW_COUNT);
        e->used_s = ldr_get32(p + OBJECT_USED_S);
        e->rows = rows;
        for (uint32_t i = 0; i < e->object.rows; i++) {
            get_row(p + OBJECT_ROWS + (size_t)i * ROW_BYTES, &rows[i]);
        }
    } else if (e->kind == LDR_MANIFEST_USED) {
        e->used_s = ldr_get32(p + USED_USED_S);
    }
    return entry_bytes(p[0], e->object.rows);
}

/* Entries that were checked. */
static void each_entry(const uint8_t *p, uint32_t entries,
                       ldr_manifest_row_t *rows,
                       void (*fn)(void *arg, const ldr_manifest_entry_t *e),
                       void *arg)
{
    ldr_manifest_entry_t e;

    for (uint32_t i = 0; i < entries; i++) {
        p += get_entry(p, &e, rows);
        fn(arg, &e);
    }
}

bool ldr_manifest_each(const ldr_manifest_t *m,
                       void (*fn)(void *arg, const ldr_manifest_entry_t *e),
                       void *arg)
{
    if (m->entries == 0) {
        return true;
    }
    ldr_manifest_row_t *rows = ldr_alloc(sizeof(*rows) * LDR_OBJECT_ROWS_MAX);
    if (rows == NULL) {
        return false;
    }
    each_entry(m->data + HEAD_BYTES, m->entries, rows, fn, arg);
    ldr_free(rows);
    return true;
}

bool ldr_manifest_parse(const uint8_t *data, size_t bytes,
                        const ldr_seal_t *seal, ldr_manifest_head_t *head,
                        void (*fn)(void *arg, const ldr_manifest_entry_t *e),
                        void *arg)
{
    if (!head_ok(data, bytes, head->tenant_id) || !mac_ok(data, bytes, seal)) {
        return false;
    }
    const uint8_t *p = data + HEAD_BYTES;
    uint32_t entries = ldr_get32(data + HEAD_ENTRIES);
    if (!body_ok(p, bytes - HEAD_BYTES - MAC_BYTES, entries)) {
        return false;
    }
    ldr_manifest_row_t *rows = ldr_alloc(sizeof(*rows) * LDR_OBJECT_ROWS_MAX);
    if (rows == NULL) {
        return false;
    }
    memcpy(head->node_id, data + HEAD_NODE_ID, sizeof(head->node_id));
    head->sequence = ldr_get64(data + HEAD_SEQUENCE);
    head->written_s = ldr_get32(data + HEAD_WRITTEN_S);
    each_entry(p, entries, rows, fn, arg);
    ldr_free(rows);
    return true;
}

uint32_t ldr_manifest_peek_when(const uint8_t data[LDR_MANIFEST_HEAD],
                                const uint8_t tenant_id[LDR_ID_BYTES])
{
    return is_head(data, tenant_id) ? ldr_get32(data + HEAD_WRITTEN_S) : 0;
}
