/*
 * Composing and parsing the on-disk structures. Every offset is in one of the
 * enums below, which docs/concepts/format.md repeats as tables.
 *
 * Every structure ends with its seal: the CRC-32C of all bytes before it,
 * padding included, so that no bit of it can change unnoticed. The seals of
 * descriptors and footers are seeded with the identity of the segment's
 * header: a block left over from an earlier use of the file, or that belongs
 * into another file or directory, has the right bytes and the wrong seal. The
 * sequence and the nonce also stand in the block itself, so that it takes more
 * than a collision of 32 bits to mistake one use for another.
 *
 * What is parsed may be anything: nothing is believed before its seal held,
 * and nothing handed out leads outside the segment even if it did. Outputs
 * are written only on success.
 */
#include "store/format.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/copy.h"
#include "base/log.h"
#include "store/format_int.h"
#include "store/index.h"

static const char super_magic[MAGIC_BYTES + 1] = "LARDERSB";
static const char header_magic[MAGIC_BYTES + 1] = "LARDERSG";
static const char record_magic[MAGIC_BYTES + 1] = "LARDERRC";
static const char footer_magic[MAGIC_BYTES + 1] = "LARDERTB";

enum {
    SUPER_DIR_ID = AT_BODY,
    SUPER_GENERATION = 32,    /* u64 */
    SUPER_SEGMENT_BYTES = 40, /* u64 */
    SUPER_SPACE_COUNT = 48,   /* u32 */
    SUPER_TENANT_COUNT = 52,  /* u32, then 8 bytes zero */
    SUPER_SPACES = 64,
    SPACE_ID = 0,
    SPACE_EPOCH = 16, /* u32 */
    SPACE_BYTES = 20,
    SUPER_TENANTS = SUPER_SPACES + LDR_SUPER_SPACES_MAX * SPACE_BYTES,
    TENANT_ID = 0,
    TENANT_CHECK = 16,
    TENANT_BYTES = 32,
    SUPER_END = SUPER_TENANTS + LDR_SUPER_TENANTS_MAX * TENANT_BYTES
};

/* The identity of a segment's use: the body of its header, and the first bytes
 * under every seal within. */
enum {
    IDENTITY_DIR_ID = 0,
    IDENTITY_SEQUENCE = 16,      /* u64 */
    IDENTITY_NONCE = 24,         /* u64 */
    IDENTITY_SEGMENT_BYTES = 32, /* u64 */
    IDENTITY_SEGMENT = 40,       /* u32, then 4 bytes zero */
    IDENTITY_BYTES = 48
};

enum {
    ROW_KEY = 0,
    ROW_PARENT = 32,
    ROW_SPACE_ID = 64,
    ROW_EPOCH = 80, /* u32, as all up to ROW_GROUP */
    ROW_BLOCK = 84,
    ROW_LENGTH = 88,
    ROW_DEPTH = 92,
    ROW_FLAGS = 96,
    ROW_WRITTEN_S = 100,
    ROW_EXPIRES_S = 104,
    ROW_GROUP = 108, /* u16, as all from here */
    ROW_SHARD = 110,
    ROW_SHARDS = 112,
    ROW_CODEC = 114,
    ROW_KIND = 116,
    ROW_ZERO = 118
};

enum {
    RECORD_SEQUENCE = AT_BODY, /* u64 */
    RECORD_NONCE = 24,         /* u64 */
    RECORD_ROW = 32,
    RECORD_PAYLOAD_CRC = RECORD_ROW + LDR_ROW_BYTES, /* u32 */
    RECORD_END = RECORD_PAYLOAD_CRC + 4
};

enum {
    FOOTER_SEQUENCE = AT_BODY, /* u64 */
    FOOTER_NONCE = 24,         /* u64 */
    FOOTER_ROWS = 32,          /* u32 */
    FOOTER_USED_BLOCKS = 36,   /* u32 */
    FOOTER_TABLE_CRC = 40,     /* u32 */
    FOOTER_END = 44
};

/* A segment holds at least a header, a tombstone, a block of rows and the
 * footer, and at most what a location in the index can name. */
enum { SEGMENT_BLOCKS_MIN = 4, SEGMENT_BLOCKS_MAX = 1 << 20 };

static_assert(LDR_SUPER_BYTES % LDR_BLOCK == 0, "on-disk");
static_assert(SUPER_TENANTS == 40064, "on-disk");
static_assert(SUPER_END == 72064, "on-disk");
static_assert(SUPER_END + SEAL_BYTES <= LDR_SUPER_BYTES, "on-disk");
static_assert(AT_BODY + IDENTITY_BYTES == 64, "on-disk");
static_assert(LDR_ROW_BYTES == 128, "on-disk");
static_assert(LDR_BLOCK % LDR_ROW_BYTES == 0, "on-disk");
static_assert(ROW_ZERO + 10 == LDR_ROW_BYTES, "on-disk");
static_assert(RECORD_PAYLOAD_CRC == 160, "on-disk");
static_assert(RECORD_END + SEAL_BYTES <= LDR_BLOCK, "on-disk");
static_assert(FOOTER_END + SEAL_BYTES <= LDR_BLOCK, "on-disk");
static_assert(sizeof(larder_key_t) == ROW_PARENT - ROW_KEY, "on-disk");
static_assert(sizeof(larder_key_t) == ROW_SPACE_ID - ROW_PARENT, "on-disk");
static_assert(LDR_ID_BYTES == ROW_EPOCH - ROW_SPACE_ID, "on-disk");
static_assert(LDR_ID_BYTES == TENANT_CHECK - TENANT_ID, "on-disk");

static bool all_zero(const uint8_t *p, size_t bytes)
{
    return p[0] == 0 && memcmp(p, p + 1, bytes - 1) == 0;
}

void ldr_format_begin(uint8_t *block, size_t bytes, const char *magic)
{
    memset(block, 0, bytes);
    memcpy(block + AT_MAGIC, magic, MAGIC_BYTES);
    ldr_put32(block + AT_VERSION, LDR_FORMAT_VERSION);
}

void ldr_format_seal(uint8_t *block, size_t bytes, uint32_t seed)
{
    ldr_put32(block + bytes - SEAL_BYTES,
              ldr_crc32c(seed, block, bytes - SEAL_BYTES));
}

/* Another version may have its seal elsewhere, so that the magic alone says
 * whose it is. */
ldr_parse_t ldr_format_check(const uint8_t *block, size_t bytes,
                             const char *magic, uint32_t seed)
{
    if (memcmp(block + AT_MAGIC, magic, MAGIC_BYTES) != 0) {
        return all_zero(block, bytes) ? LDR_PARSE_EMPTY : LDR_PARSE_BAD;
    }
    uint32_t version = ldr_get32(block + AT_VERSION);
    if (version != LDR_FORMAT_VERSION) {
        /* There is no version 0: a first write that was cut short. */
        return version == 0 ? LDR_PARSE_BAD : LDR_PARSE_VERSION;
    }
    if (ldr_get32(block + bytes - SEAL_BYTES) !=
        ldr_crc32c(seed, block, bytes - SEAL_BYTES)) {
        return LDR_PARSE_BAD;
    }
    return LDR_PARSE_OK;
}

uint32_t ldr_format_version(const uint8_t *block)
{
    return ldr_get32(block + AT_VERSION);
}

larder_status_t ldr_format_unknown(const char *dir, uint32_t segment,
                                   const uint8_t *block)
{
    char name[LDR_SEGMENT_NAME_BYTES + 1] = "";

    if (segment != LDR_NIL) {
        ldr_segment_name(segment, name);
        memcpy(name + strlen(name), " ", 2);
    }
    return ldr_fail(LARDER_E_VERSION,
                    "%s: %swritten in format %u, and this larder knows format "
                    "%u: use one that is as new as its writer, or another "
                    "directory; nothing was touched",
                    dir, name, ldr_format_version(block), LDR_FORMAT_VERSION);
}

static bool segment_bytes_ok(uint64_t bytes)
{
    return bytes % LDR_BLOCK == 0 && bytes / LDR_BLOCK >= SEGMENT_BLOCKS_MIN &&
           bytes / LDR_BLOCK <= SEGMENT_BLOCKS_MAX;
}

/* ---- superblock ---- */

void ldr_segment_name(uint32_t segment, char name[LDR_SEGMENT_NAME_BYTES])
{
    snprintf(name, LDR_SEGMENT_NAME_BYTES, "segment-%06u",
             segment % (LDR_SEGMENTS_MAX + 1));
}

bool ldr_segment_number(const char *name, uint32_t *segment_p)
{
    char same[LDR_SEGMENT_NAME_BYTES];
    unsigned segment;

    if (sscanf(name, "segment-%7u", &segment) != 1 ||
        segment >= LDR_SEGMENTS_MAX) {
        return false;
    }
    ldr_segment_name(segment, same);
    *segment_p = segment;
    return strcmp(name, same) == 0;
}

void ldr_super_compose(const ldr_super_t *super, uint8_t *block)
{
    ldr_format_begin(block, LDR_SUPER_BYTES, super_magic);
    memcpy(block + SUPER_DIR_ID, super->dir_id, LDR_ID_BYTES);
    ldr_put64(block + SUPER_GENERATION, super->generation);
    ldr_put64(block + SUPER_SEGMENT_BYTES, super->segment_bytes);
    ldr_put32(block + SUPER_SPACE_COUNT, super->space_count);
    ldr_put32(block + SUPER_TENANT_COUNT, super->tenant_count);
    for (uint32_t i = 0; i < super->space_count; i++) {
        uint8_t *p = block + SUPER_SPACES + i * SPACE_BYTES;

        memcpy(p + SPACE_ID, super->spaces[i].id, LDR_ID_BYTES);
        ldr_put32(p + SPACE_EPOCH, super->spaces[i].epoch);
    }
    for (uint32_t i = 0; i < super->tenant_count; i++) {
        uint8_t *p = block + SUPER_TENANTS + i * TENANT_BYTES;

        memcpy(p + TENANT_ID, super->tenants[i].id, LDR_ID_BYTES);
        memcpy(p + TENANT_CHECK, super->tenants[i].check, LDR_ID_BYTES);
    }
    ldr_format_seal(block, LDR_SUPER_BYTES, 0);
}

/* The counts and the size, which others rely on. */
static bool super_fields_ok(const uint8_t *block)
{
    uint32_t spaces = ldr_get32(block + SUPER_SPACE_COUNT);

    if (spaces > LDR_SUPER_SPACES_MAX ||
        ldr_get32(block + SUPER_TENANT_COUNT) > LDR_SUPER_TENANTS_MAX ||
        !segment_bytes_ok(ldr_get64(block + SUPER_SEGMENT_BYTES))) {
        return false;
    }
    for (uint32_t i = 0; i < spaces; i++) {
        const uint8_t *p = block + SUPER_SPACES + i * SPACE_BYTES;

        if (ldr_get32(p + SPACE_EPOCH) == 0) {
            return false;
        }
    }
    return true;
}

ldr_parse_t ldr_super_parse(const uint8_t *block, ldr_super_t *super)
{
    ldr_parse_t parse =
        ldr_format_check(block, LDR_SUPER_BYTES, super_magic, 0);

    if (parse != LDR_PARSE_OK) {
        return parse;
    }
    if (!super_fields_ok(block)) {
        return LDR_PARSE_BAD;
    }
    memset(super, 0, sizeof(*super));
    memcpy(super->dir_id, block + SUPER_DIR_ID, LDR_ID_BYTES);
    super->generation = ldr_get64(block + SUPER_GENERATION);
    super->segment_bytes = ldr_get64(block + SUPER_SEGMENT_BYTES);
    super->space_count = ldr_get32(block + SUPER_SPACE_COUNT);
    super->tenant_count = ldr_get32(block + SUPER_TENANT_COUNT);
    for (uint32_t i = 0; i < super->space_count; i++) {
        const uint8_t *p = block + SUPER_SPACES + i * SPACE_BYTES;

        memcpy(super->spaces[i].id, p + SPACE_ID, LDR_ID_BYTES);
        super->spaces[i].epoch = ldr_get32(p + SPACE_EPOCH);
    }
    for (uint32_t i = 0; i < super->tenant_count; i++) {
        const uint8_t *p = block + SUPER_TENANTS + i * TENANT_BYTES;

        memcpy(super->tenants[i].id, p + TENANT_ID, LDR_ID_BYTES);
        memcpy(super->tenants[i].check, p + TENANT_CHECK, LDR_ID_BYTES);
    }
    return LDR_PARSE_OK;
}

/* ---- segment header ---- */

static void identity_put(const ldr_segment_header_t *header, uint8_t *p)
{
    memset(p, 0, IDENTITY_BYTES);
    memcpy(p + IDENTITY_DIR_ID, header->dir_id, LDR_ID_BYTES);
    ldr_put64(p + IDENTITY_SEQUENCE, header->sequence);
    ldr_put64(p + IDENTITY_NONCE, header->nonce);
    ldr_put64(p + IDENTITY_SEGMENT_BYTES, header->segment_bytes);
    ldr_put32(p + IDENTITY_SEGMENT, header->segment);
}

/* What every seal within this use of the segment starts from. */
static uint32_t identity_seed(const ldr_segment_header_t *header)
{
    uint8_t identity[IDENTITY_BYTES];

    identity_put(header, identity);
    return ldr_crc32c(0, identity, sizeof(identity));
}

void ldr_header_compose(const ldr_segment_header_t *header, uint8_t *block)
{
    ldr_format_begin(block, LDR_BLOCK, header_magic);
    identity_put(header, block + AT_BODY);
    ldr_format_seal(block, LDR_BLOCK, 0);
}

ldr_parse_t ldr_header_parse(const uint8_t *block, ldr_segment_header_t *header)
{
    ldr_parse_t parse = ldr_format_check(block, LDR_BLOCK, header_magic, 0);
    const uint8_t *p = block + AT_BODY;

    if (parse != LDR_PARSE_OK) {
        return parse;
    }
    if (ldr_get64(p + IDENTITY_SEQUENCE) == 0 ||
        !segment_bytes_ok(ldr_get64(p + IDENTITY_SEGMENT_BYTES))) {
        return LDR_PARSE_BAD;
    }
    memset(header, 0, sizeof(*header));
    memcpy(header->dir_id, p + IDENTITY_DIR_ID, LDR_ID_BYTES);
    header->sequence = ldr_get64(p + IDENTITY_SEQUENCE);
    header->nonce = ldr_get64(p + IDENTITY_NONCE);
    header->segment_bytes = ldr_get64(p + IDENTITY_SEGMENT_BYTES);
    header->segment = ldr_get32(p + IDENTITY_SEGMENT);
    return LDR_PARSE_OK;
}

static uint32_t segment_blocks(const ldr_segment_header_t *header)
{
    return (uint32_t)(header->segment_bytes / LDR_BLOCK);
}

/* ---- rows, also the body of a descriptor ---- */

void ldr_row_compose(const ldr_record_t *record, uint8_t *row)
{
    memset(row, 0, LDR_ROW_BYTES);
    memcpy(row + ROW_KEY, record->key.hash, LARDER_KEY_BYTES);
    memcpy(row + ROW_PARENT, record->parent.hash, LARDER_KEY_BYTES);
    memcpy(row + ROW_SPACE_ID, record->space_id, LDR_ID_BYTES);
    ldr_put32(row + ROW_EPOCH, record->epoch);
    ldr_put32(row + ROW_BLOCK, record->block);
    ldr_put32(row + ROW_LENGTH, record->length);
    ldr_put32(row + ROW_DEPTH, record->depth);
    ldr_put32(row + ROW_FLAGS, record->flags);
    ldr_put32(row + ROW_WRITTEN_S, record->written_s);
    ldr_put32(row + ROW_EXPIRES_S, record->expires_s);
    ldr_put16(row + ROW_GROUP, record->group);
    ldr_put16(row + ROW_SHARD, record->shard);
    ldr_put16(row + ROW_SHARDS, record->shards);
    ldr_put16(row + ROW_CODEC, record->codec);
    ldr_put16(row + ROW_KIND, (uint16_t)record->kind);
}

/* The place of the record: after the header, before the footer. The length was
 * checked, so that the blocks cannot overflow. */
static bool row_place_ok(const ldr_record_t *r,
                         const ldr_segment_header_t *header)
{
    return r->block >= 1 && (uint64_t)r->block + ldr_record_blocks(r->length) <
                                segment_blocks(header);
}

static bool row_fields_ok(const ldr_record_t *r)
{
    bool kind_ok = r->kind == LDR_RECORD_SHARD
                       ? r->length > 0
                       : r->kind == LDR_RECORD_TOMBSTONE && r->length == 0;

    return kind_ok && r->length <= LARDER_VALUE_MAX &&
           r->codec == LDR_CODEC_RAW &&
           (r->flags & ~(uint32_t)LDR_RECORD_PINNED) == 0 &&
           r->shards <= LARDER_SHARDS_MAX && r->shard < r->shards &&
           r->group < LARDER_GROUPS_MAX && r->depth <= LDR_DEPTH_MAX;
}

bool ldr_row_fields(const uint8_t *row, ldr_record_t *record)
{
    ldr_record_t r = {.kind = (ldr_record_kind_t)ldr_get16(row + ROW_KIND)};

    memcpy(r.key.hash, row + ROW_KEY, LARDER_KEY_BYTES);
    memcpy(r.parent.hash, row + ROW_PARENT, LARDER_KEY_BYTES);
    memcpy(r.space_id, row + ROW_SPACE_ID, LDR_ID_BYTES);
    r.epoch = ldr_get32(row + ROW_EPOCH);
    r.block = ldr_get32(row + ROW_BLOCK);
    r.length = ldr_get32(row + ROW_LENGTH);
    r.depth = ldr_get32(row + ROW_DEPTH);
    r.flags = ldr_get32(row + ROW_FLAGS);
    r.written_s = ldr_get32(row + ROW_WRITTEN_S);
    r.expires_s = ldr_get32(row + ROW_EXPIRES_S);
    r.group = ldr_get16(row + ROW_GROUP);
    r.shard = ldr_get16(row + ROW_SHARD);
    r.shards = ldr_get16(row + ROW_SHARDS);
    r.codec = ldr_get16(row + ROW_CODEC);
    if (!row_fields_ok(&r) ||
        !all_zero(row + ROW_ZERO, LDR_ROW_BYTES - ROW_ZERO)) {
        return false;
    }
    *record = r;
    return true;
}

bool ldr_row_parse(const uint8_t *row, const ldr_segment_header_t *header,
                   ldr_record_t *record)
{
    ldr_record_t r;

    if (!ldr_row_fields(row, &r) || !row_place_ok(&r, header)) {
        return false;
    }
    *record = r;
    return true;
}

/* ---- descriptors ---- */

/*
 * The stored payload checksum is the CRC-32C of identity || descriptor up to
 * that field || payload: one checksum over the record as a whole, which any
 * tool can recompute in one pass. (The plain one XORed with the descriptor's
 * would bind them as well, but be the checksum of nothing.) CRCs are linear,
 *
 *     stored = combine(prefix, plain, length)
 *            = combine(prefix, 0, length) ^ plain
 *
 * so the plain checksum of the payload, which is what travels with it through
 * the arena, makes the stored one without the payload, and comes back out of
 * it by the same XOR.
 */
static uint32_t payload_mask(const uint8_t *block, uint32_t seed,
                             uint32_t length)
{
    uint32_t prefix = ldr_crc32c(seed, block, RECORD_PAYLOAD_CRC);

    return ldr_crc32c_combine(prefix, 0, length);
}

void ldr_record_compose(const ldr_record_t *record,
                        const ldr_segment_header_t *header, uint8_t *block)
{
    uint32_t seed = identity_seed(header);

    ldr_format_begin(block, LDR_BLOCK, record_magic);
    ldr_put64(block + RECORD_SEQUENCE, header->sequence);
    ldr_put64(block + RECORD_NONCE, header->nonce);
    ldr_row_compose(record, block + RECORD_ROW);
    ldr_put32(block + RECORD_PAYLOAD_CRC,
              record->payload_crc ^ payload_mask(block, seed, record->length));
    ldr_format_seal(block, LDR_BLOCK, seed);
}

bool ldr_record_parse(const uint8_t *block, const ldr_segment_header_t *header,
                      uint32_t descriptor_block, ldr_record_t *record)
{
    uint32_t seed = identity_seed(header);
    ldr_record_t r;

    if (ldr_format_check(block, LDR_BLOCK, record_magic, seed) !=
            LDR_PARSE_OK ||
        ldr_get64(block + RECORD_SEQUENCE) != header->sequence ||
        ldr_get64(block + RECORD_NONCE) != header->nonce ||
        !ldr_row_parse(block + RECORD_ROW, header, &r)) {
        return false;
    }
    if (r.block + ldr_record_blocks(r.length) - 1 != descriptor_block) {
        return false; /* right bytes in the wrong place */
    }
    r.payload_crc = ldr_get32(block + RECORD_PAYLOAD_CRC) ^
                    payload_mask(block, seed, r.length);
    *record = r;
    return true;
}

/* ---- table ---- */

uint32_t ldr_table_blocks(uint32_t rows)
{
    return (uint32_t)ldr_div_up((uint64_t)rows * LDR_ROW_BYTES, LDR_BLOCK) + 1;
}

void ldr_footer_compose(const ldr_footer_t *footer,
                        const ldr_segment_header_t *header, uint8_t *block)
{
    ldr_format_begin(block, LDR_BLOCK, footer_magic);
    ldr_put64(block + FOOTER_SEQUENCE, header->sequence);
    ldr_put64(block + FOOTER_NONCE, header->nonce);
    ldr_put32(block + FOOTER_ROWS, footer->rows);
    ldr_put32(block + FOOTER_USED_BLOCKS, footer->used_blocks);
    ldr_put32(block + FOOTER_TABLE_CRC, footer->table_crc);
    ldr_format_seal(block, LDR_BLOCK, identity_seed(header));
}

/* Header, records and table fit one after the other, and every record has a
 * block of its own. */
static bool footer_fields_ok(const ldr_footer_t *f,
                             const ldr_segment_header_t *header)
{
    return f->used_blocks >= 1 && f->rows <= f->used_blocks - 1 &&
           (uint64_t)f->used_blocks + ldr_table_blocks(f->rows) <=
               segment_blocks(header);
}

bool ldr_footer_parse(const uint8_t *block, const ldr_segment_header_t *header,
                      ldr_footer_t *footer)
{
    ldr_footer_t f;

    if (ldr_format_check(block, LDR_BLOCK, footer_magic,
                         identity_seed(header)) != LDR_PARSE_OK ||
        ldr_get64(block + FOOTER_SEQUENCE) != header->sequence ||
        ldr_get64(block + FOOTER_NONCE) != header->nonce) {
        return false;
    }
    f.rows = ldr_get32(block + FOOTER_ROWS);
    f.used_blocks = ldr_get32(block + FOOTER_USED_BLOCKS);
    f.table_crc = ldr_get32(block + FOOTER_TABLE_CRC);
    if (!footer_fields_ok(&f, header)) {
        return false;
    }
    *footer = f;
    return true;
}
