/*
 * Records and tails of objects that hold anything. The first byte of the input
 * chooses what the rest is:
 *
 *   bit 0  a tail, else a descriptor and its payload
 *   bit 1  bears a good checksum
 *   bit 2  bears a good tag, too: somebody of the tenant's made it up
 *   bit 3  encrypts
 *
 * The rest is laid over a good one, in patches: a place, a length, bytes. What
 * is taken must be in range; without a good tag, it must be the good one.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/copy.h"
#include "tier/shared/object.h"
#include "tier/shared/seal.h"

enum { PAYLOAD = 2 * LDR_BLOCK, TAIL_AT = LDR_BLOCK - 20, ROWS = 40 };
enum { TAIL = 1, CRC = 2, TAG = 4, ENCRYPTS = 8 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static ldr_seal_t keys;
static ldr_object_t object;

static void require(bool ok)
{
    if (!ok) {
        abort();
    }
}

/* True: something was changed. */
static bool patch(uint8_t *to, size_t room, const uint8_t *data, size_t bytes)
{
    bool changed = false;

    while (bytes >= 4) {
        size_t at = ldr_get16(data) % room;
        size_t n = data[2] % 64 + 1u;

        data += 3;
        bytes -= 3;
        n = n < bytes ? n : bytes;
        n = n < room - at ? n : room - at;
        changed = changed || memcmp(to + at, data, n) != 0;
        memcpy(to + at, data, n);
        data += n;
        bytes -= n;
    }
    return changed;
}

static void put_crc(uint8_t *block)
{
    ldr_put32(block + LDR_BLOCK - 4, ldr_crc32c(0, block, LDR_BLOCK - 4));
}

static ldr_record_t a_record(uint32_t block, uint32_t length)
{
    ldr_record_t r = {.kind = LDR_RECORD_SHARD,
                      .shards = 2,
                      .block = block,
                      .length = length};

    memcpy(r.space_id, object.space_id, LDR_ID_BYTES);
    r.epoch = object.epoch;
    return r;
}

static void use_record(unsigned mode, const uint8_t *data, size_t bytes)
{
    static uint8_t memory[PAYLOAD + LDR_BLOCK], plain[PAYLOAD];
    uint8_t *block = memory + PAYLOAD;
    struct iovec iov[2] = {{memory, LDR_BLOCK},
                           {memory + LDR_BLOCK, LDR_BLOCK}};
    ldr_record_t r = a_record(3, PAYLOAD - 7), out;
    ldr_gcm_t gcm;

    for (unsigned i = 0; i < PAYLOAD; i++) {
        memory[i] = plain[i] = i < r.length ? (uint8_t)i : 0;
    }
    r.payload_crc = ldr_crc32c(0, memory, r.length);
    require(ldr_object_seal(&keys, &object, &r, iov, 2, memory, block));
    bool changed = patch(block, LDR_BLOCK, data, bytes);
    if ((mode & TAG) != 0) {
        memcpy(memory, plain, PAYLOAD);
        ldr_gcm_begin(&gcm, &keys, object.id, LDR_SEALING_RECORD, 3, false);
        ldr_gcm_data(&gcm, NULL, block, TAIL_AT);
        if (keys.encrypts) {
            ldr_gcm_data(&gcm, memory, memory, PAYLOAD);
        } else {
            ldr_gcm_data(&gcm, NULL, memory, PAYLOAD);
        }
        require(ldr_gcm_tag(&gcm, block + TAIL_AT));
    }
    if ((mode & CRC) != 0) {
        put_crc(block);
    }
    ldr_unseal_t got =
        ldr_object_unseal(&keys, &object, 3, block, iov, 2, &out);
    if (got == LDR_UNSEAL_OK) {
        require(memcmp(memory, plain, PAYLOAD) == 0);
        require(out.block == 3 && ldr_record_blocks(out.length) == 3);
        /* Who has the key may seal what it likes. */
        require((mode & TAG) != 0 ||
                out.payload_crc == ldr_crc32c(0, plain, out.length));
        require((mode & TAG) != 0 || memcmp(&out, &r, sizeof(r)) == 0);
    } else {
        require(changed || got == LDR_UNSEAL_BAD);
    }
    require(changed || got == LDR_UNSEAL_OK);
}

static void check_rows(const ldr_object_t *o, const ldr_record_t *rows)
{
    uint64_t end = 0;

    for (uint32_t i = 0; i < o->rows; i++) {
        require(rows[i].block >= end && rows[i].shard < rows[i].shards);
        end = (uint64_t)rows[i].block + ldr_record_blocks(rows[i].length);
        require(end <= o->used_blocks && rows[i].epoch == o->epoch);
    }
}

static void use_tail(unsigned mode, const uint8_t *data, size_t bytes)
{
    static ldr_record_t rows[LDR_OBJECT_ROWS_MAX];
    static uint8_t tail[3 * LDR_BLOCK];
    ldr_object_t out = object;
    ldr_gcm_t gcm;

    object.rows = ROWS;
    object.used_blocks = 3 * ROWS;
    for (uint32_t i = 0; i < ROWS; i++) {
        rows[i] = a_record(3 * i, PAYLOAD);
    }
    require(ldr_object_tail_bytes(ROWS) == sizeof(tail));
    require(ldr_object_tail_compose(&keys, &object, rows, tail));
    uint8_t *footer = tail + sizeof(tail) - LDR_BLOCK;
    bool changed = patch(tail, sizeof(tail), data, bytes);
    if ((mode & TAG) != 0) {
        ldr_gcm_begin(&gcm, &keys, object.id, LDR_SEALING_TAIL,
                      ldr_get32(footer + 60), false);
        ldr_gcm_data(&gcm, NULL, tail, sizeof(tail) - 20);
        require(ldr_gcm_tag(&gcm, footer + TAIL_AT));
    }
    if ((mode & CRC) != 0) {
        put_crc(footer);
    }
    size_t found = ldr_object_tail_find(footer);
    require(found % LDR_BLOCK == 0 &&
            found <= ldr_object_tail_bytes(LDR_OBJECT_ROWS_MAX));
    bool ok = ldr_object_tail_parse(&keys, tail, sizeof(tail), &out, rows);
    require(ok || changed);
    if (ok) {
        require((mode & TAG) != 0 || memcmp(&out, &object, sizeof(out)) == 0);
        check_rows(&out, rows);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes == 0) {
        return 0;
    }
    unsigned mode = data[0];
    memset(&keys, 1, sizeof(keys));
    memset(&object, 2, sizeof(object));
    keys.encrypts = (mode & ENCRYPTS) != 0;
    if ((mode & TAIL) != 0) {
        use_tail(mode, data + 1, bytes - 1);
    } else {
        use_record(mode, data + 1, bytes - 1);
    }
    return 0;
}
