/*
 * Composing and parsing what an object holds. Every offset is in one of the
 * enums below, which docs/concepts/shared.md repeats as tables. A row is that
 * of the SSD log (store/format.h).
 *
 * Descriptor and footer end with a tag and a CRC-32C over all bytes before
 * each, padding included. The checksum tells damage from a forgery and costs
 * little; it is the tag that counts. The payload's checksum is the saver's: it
 * is looked at once, when the record is sealed. What is parsed may be anything:
 * nothing is believed before its tag held, and nothing handed out leads outside
 * the object even if it did.
 */
#include "tier/shared/object.h"

#include <assert.h>
#include <string.h>

#include "base/bytes.h"
#include "base/copy.h"
#include "tier/shared/backend.h"
#include "base/iov.h"
#include "tier/shared/seal.h"

enum { MAGIC_BYTES = 8, CRC_BYTES = 4 };

static const char record_magic[MAGIC_BYTES + 1] = "LARDERSR";
static const char footer_magic[MAGIC_BYTES + 1] = "LARDERST";

/* How both begin and end. */
enum {
    AT_MAGIC = 0,
    AT_VERSION = 8, /* u32 */
    AT_CODE = 12,   /* u32 */
    AT_ID = 16,
    AT_BODY = 32,
    AT_TAG = LDR_BLOCK - CRC_BYTES - LDR_TAG_BYTES,
    AT_CRC = LDR_BLOCK - CRC_BYTES /* u32 */
};

enum { CODE_PLAIN = 0, CODE_ENCRYPTED = 1 };

enum {
    RECORD_ROW = AT_BODY,
    RECORD_PAYLOAD_CRC = RECORD_ROW + LDR_ROW_BYTES, /* u32 */
    RECORD_ZERO = RECORD_PAYLOAD_CRC + 4
};

enum {
    FOOTER_SPACE_ID = AT_BODY,
    FOOTER_EPOCH = 48, /* u32, as all from here */
    FOOTER_WRITTEN_S = 52,
    FOOTER_ROWS = 56,
    FOOTER_USED_BLOCKS = 60,
    FOOTER_ZERO = 64
};

static_assert(RECORD_PAYLOAD_CRC == 160, "format");
static_assert(AT_TAG == 4076, "format");
static_assert(AT_ID + LDR_ID_BYTES == AT_BODY, "format");
static_assert(FOOTER_SPACE_ID + LDR_ID_BYTES == FOOTER_EPOCH, "format");

#define BLOCKS_MAX ((uint32_t)(LDR_OBJECT_BYTES_MAX / LDR_BLOCK))

/* What is looked at twice is still in the second-level cache. */
#define STEP ((size_t)128 << 10)

static bool all_zero(const uint8_t *p, size_t bytes)
{
    return p[0] == 0 && memcmp(p, p + 1, bytes - 1) == 0;
}

static void mac_begin(uint8_t *block, const char *magic, const ldr_seal_t *seal,
                      const uint8_t id[LDR_ID_BYTES])
{
    memset(block, 0, LDR_BLOCK);
    memcpy(block + AT_MAGIC, magic, MAGIC_BYTES);
    ldr_put32(block + AT_VERSION, LDR_OBJECT_VERSION);
    ldr_put32(block + AT_CODE, seal->encrypts ? CODE_ENCRYPTED : CODE_PLAIN);
    memcpy(block + AT_ID, id, LDR_ID_BYTES);
}

static void put_crc(uint8_t *block)
{
    ldr_put32(block + AT_CRC, ldr_crc32c(0, block, AT_CRC));
}

/* Whether it is such a block at all. */
static bool descriptor_check(const uint8_t *block, const char *magic,
                             size_t zero_from)
{
    return memcmp(block + AT_MAGIC, magic, MAGIC_BYTES) == 0 &&
           ldr_get32(block + AT_VERSION) == LDR_OBJECT_VERSION &&
           ldr_get32(block + AT_CODE) <= CODE_ENCRYPTED &&
           ldr_get32(block + AT_CRC) == ldr_crc32c(0, block, AT_CRC) &&
           all_zero(block + zero_from, AT_TAG - zero_from);
}

static bool code_fits(const uint8_t *block, const ldr_seal_t *seal)
{
    return (ldr_get32(block + AT_CODE) == CODE_ENCRYPTED) == seal->encrypts;
}

static bool iov_fits(const struct iovec *iov, unsigned count, uint32_t length)
{
    return ldr_iov_bytes(iov, count) ==
           (uint64_t)(ldr_record_blocks(length) - 1) * LDR_BLOCK;
}

/* ---- records ---- */

/* Authenticates the payload, encrypts it to where `to` points unless that is
 * NULL, and gives the checksum of its first length bytes. All in one pass,
 * piece by piece: the checksum first, since what is encrypted may lie where it
 * was. */
static uint32_t seal_payload(ldr_gcm_t *gcm, uint8_t *to,
                             const struct iovec *iov, unsigned iov_count,
                             uint32_t length)
{
    ldr_iov_t left = {iov, iov_count, 0};
    struct iovec part;
    uint32_t crc = 0;

    while (ldr_iov_next(&left, STEP, &part, 1) > 0) {
        uint32_t of_payload = (uint32_t)ldr_min64(part.iov_len, length);

        crc = ldr_crc32c(crc, part.iov_base, of_payload);
        ldr_gcm_data(gcm, to, part.iov_base, part.iov_len);
        to = to != NULL ? to + part.iov_len : NULL;
        length -= of_payload;
        ldr_iov_skip(&left, part.iov_len);
    }
    return crc;
}

bool ldr_object_intact(const ldr_record_t *record, const struct iovec *iov,
                       unsigned iov_count)
{
    uint32_t crc = 0, left = record->length;

    for (unsigned i = 0; i < iov_count; i++) {
        uint32_t n = (uint32_t)ldr_min64(iov[i].iov_len, left);

        crc = ldr_crc32c(crc, iov[i].iov_base, n);
        left -= n;
    }
    return left == 0 && crc == record->payload_crc;
}

bool ldr_object_seal(const ldr_seal_t *seal, const ldr_object_t *object,
                     const ldr_record_t *record, const struct iovec *iov,
                     unsigned iov_count, uint8_t *sealed, uint8_t *block)
{
    ldr_record_t r = *record;
    ldr_gcm_t gcm;

    memcpy(r.space_id, object->space_id, LDR_ID_BYTES);
    r.epoch = object->epoch;
    if (r.length == 0 || r.length > LARDER_VALUE_MAX ||
        !iov_fits(iov, iov_count, r.length)) {
        return false;
    }
    mac_begin(block, record_magic, seal, object->id);
    ldr_row_compose(&r, block + RECORD_ROW);
    ldr_put32(block + RECORD_PAYLOAD_CRC, r.payload_crc);
    ldr_gcm_begin(&gcm, seal, object->id, LDR_SEALING_RECORD, r.block, false);
    ldr_gcm_data(&gcm, NULL, block, AT_TAG);
    uint32_t crc = seal_payload(&gcm, seal->encrypts ? sealed : NULL, iov,
                                iov_count, r.length);
    if (!ldr_gcm_tag(&gcm, block + AT_TAG) || crc != r.payload_crc) {
        return false;
    }
    put_crc(block);
    return true;
}

/* What can be said of a descriptor without its tag. */
static bool descriptor_parse(const uint8_t *block, const ldr_object_t *object,
                             uint32_t at, ldr_record_t *r)
{
    if (!descriptor_check(block, record_magic, RECORD_ZERO) ||
        memcmp(block + AT_ID, object->id, LDR_ID_BYTES) != 0 ||
        !ldr_row_fields(block + RECORD_ROW, r)) {
        return false;
    }
    r->payload_crc = ldr_get32(block + RECORD_PAYLOAD_CRC);
    return r->kind == LDR_RECORD_SHARD && r->block == at &&
           (uint64_t)at + ldr_record_blocks(r->length) < BLOCKS_MAX &&
           memcmp(r->space_id, object->space_id, LDR_ID_BYTES) == 0;
}

ldr_unseal_t ldr_object_unseal(const ldr_seal_t *seal, ldr_object_t *object,
                               uint32_t at, const uint8_t *block,
                               const struct iovec *iov, unsigned iov_count,
                               ldr_record_t *record)
{
    ldr_record_t r;
    ldr_gcm_t gcm;
    bool failed;

    if (!descriptor_parse(block, object, at, &r) ||
        !iov_fits(iov, iov_count, r.length)) {
        return LDR_UNSEAL_BAD;
    }
    if (!code_fits(block, seal)) {
        return LDR_UNSEAL_KEY;
    }
    ldr_gcm_begin(&gcm, seal, object->id, LDR_SEALING_RECORD, at, true);
    ldr_gcm_data(&gcm, NULL, block, AT_TAG);
    for (unsigned i = 0; i < iov_count; i++) {
        uint8_t *p = iov[i].iov_base;

        ldr_gcm_data(&gcm, seal->encrypts ? p : NULL, p, iov[i].iov_len);
    }
    if (!ldr_gcm_check(&gcm, block + AT_TAG, &failed)) {
        return failed ? LDR_UNSEAL_FAILED : LDR_UNSEAL_BAD;
    }
    object->epoch = r.epoch;
    *record = r;
    return LDR_UNSEAL_OK;
}

/* ---- the tail ---- */

size_t ldr_object_tail_bytes(uint32_t rows)
{
    return (size_t)ldr_table_blocks(rows) * LDR_BLOCK;
}

/* Whether so many records can be in so many blocks of an object. */
static bool counts_ok(uint32_t rows, uint32_t used_blocks)
{
    return rows >= 1 && rows <= LDR_OBJECT_ROWS_MAX &&
           used_blocks / 2 >= rows &&
           used_blocks <= BLOCKS_MAX - ldr_table_blocks(rows);
}

/* Whether it lies after those before it, which end at *end_p, in the object,
 * and is of the same space and epoch. */
static bool record_is_next(const ldr_object_t *object, const ldr_record_t *r,
                           uint64_t *end_p)
{
    bool ok = r->kind == LDR_RECORD_SHARD && r->block >= *end_p &&
              r->epoch == object->epoch &&
              memcmp(r->space_id, object->space_id, LDR_ID_BYTES) == 0;

    *end_p = (uint64_t)r->block + ldr_record_blocks(r->length);
    return ok && *end_p <= object->used_blocks;
}

static void tail_seal(ldr_gcm_t *gcm, const ldr_seal_t *seal,
                      const ldr_object_t *object, const uint8_t *tail,
                      size_t bytes, bool opens)
{
    ldr_gcm_begin(gcm, seal, object->id, LDR_SEALING_TAIL, object->used_blocks,
                  opens);
    ldr_gcm_data(gcm, NULL, tail, bytes - LDR_BLOCK + AT_TAG);
}

bool ldr_object_tail_compose(const ldr_seal_t *seal, const ldr_object_t *object,
                             const ldr_record_t *records, uint8_t *tail)
{
    size_t bytes = ldr_object_tail_bytes(object->rows);
    uint8_t *footer = tail + bytes - LDR_BLOCK;
    uint64_t end = 0;
    ldr_gcm_t gcm;

    if (!counts_ok(object->rows, object->used_blocks)) {
        return false;
    }
    memset(tail, 0, bytes);
    for (uint32_t i = 0; i < object->rows; i++) {
        ldr_record_t r = records[i];
        ldr_record_t same;
        uint8_t *row = tail + (size_t)i * LDR_ROW_BYTES;

        memcpy(r.space_id, object->space_id, LDR_ID_BYTES);
        r.epoch = object->epoch;
        ldr_row_compose(&r, row);
        if (!ldr_row_fields(row, &same) ||
            !record_is_next(object, &same, &end)) {
            return false;
        }
    }
    mac_begin(footer, footer_magic, seal, object->id);
    memcpy(footer + FOOTER_SPACE_ID, object->space_id, LDR_ID_BYTES);
    ldr_put32(footer + FOOTER_EPOCH, object->epoch);
    ldr_put32(footer + FOOTER_WRITTEN_S, object->written_s);
    ldr_put32(footer + FOOTER_ROWS, object->rows);
    ldr_put32(footer + FOOTER_USED_BLOCKS, object->used_blocks);
    tail_seal(&gcm, seal, object, tail, bytes, false);
    if (!ldr_gcm_tag(&gcm, footer + AT_TAG)) {
        return false;
    }
    put_crc(footer);
    return true;
}

size_t ldr_object_tail_find(const uint8_t *last_block)
{
    uint32_t rows = ldr_get32(last_block + FOOTER_ROWS);

    if (!descriptor_check(last_block, footer_magic, FOOTER_ZERO) ||
        !counts_ok(rows, ldr_get32(last_block + FOOTER_USED_BLOCKS))) {
        return 0;
    }
    return ldr_object_tail_bytes(rows);
}

bool ldr_object_tail_parse(const ldr_seal_t *seal, const uint8_t *tail,
                           size_t bytes, ldr_object_t *object,
                           ldr_record_t *records)
{
    uint64_t end = 0;
    ldr_gcm_t gcm;
    bool failed;

    if (bytes < 2 * LDR_BLOCK) {
        return false;
    }
    const uint8_t *footer = tail + bytes - LDR_BLOCK;
    if (ldr_object_tail_find(footer) != bytes || !code_fits(footer, seal) ||
        memcmp(footer + AT_ID, object->id, LDR_ID_BYTES) != 0) {
        return false;
    }
    memcpy(object->space_id, footer + FOOTER_SPACE_ID, LDR_ID_BYTES);
    object->epoch = ldr_get32(footer + FOOTER_EPOCH);
    object->written_s = ldr_get32(footer + FOOTER_WRITTEN_S);
    object->rows = ldr_get32(footer + FOOTER_ROWS);
    object->used_blocks = ldr_get32(footer + FOOTER_USED_BLOCKS);
    tail_seal(&gcm, seal, object, tail, bytes, true);
    if (!ldr_gcm_check(&gcm, footer + AT_TAG, &failed)) {
        return false;
    }
    for (uint32_t i = 0; i < object->rows; i++) {
        const uint8_t *row = tail + (size_t)i * LDR_ROW_BYTES;

        if (!ldr_row_fields(row, &records[i]) ||
            !record_is_next(object, &records[i], &end)) {
            return false;
        }
    }
    return true;
}
