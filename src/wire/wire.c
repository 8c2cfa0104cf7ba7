/* Frames, and the bodies that are one fixed struct. See batch.c for rows. */
#include "wire/wire.h"

#include <string.h>

#include "base/bytes.h"
#include "base/copy.h"
#include "base/text.h"
#include "wire/wire_int.h"

/*
 * The header: magic 0, opcode 4, flags 6, id 8, epoch 16, body 24, payload 28,
 * arg 32, checksum 36.
 */
#define FRAME_CRC_AT 36u
#define FRAME_FLAGS ((unsigned)LDR_FRAME_REPLY | LDR_FRAME_SILENT)

const char *ldr_opcode_text(unsigned opcode)
{
    switch (opcode) {
#define X(name, value, before, text)                                           \
    case LDR_OP_##name:                                                        \
        return text;
        LDR_OPCODE_MAP(X)
#undef X
    }
    return NULL;
}

bool ldr_wire_status_known(int32_t status)
{
    switch (status) {
#define X(name, value, text) case name:
        LARDER_STATUS_MAP(X)
#undef X
        return true;
    }
    return false;
}

larder_cause_t ldr_wire_cause(uint32_t cause)
{
    return cause < LARDER_CAUSE_COUNT ? (larder_cause_t)cause
                                      : LARDER_CAUSE_OTHER;
}

larder_status_t ldr_frame_status(const ldr_frame_t *frame)
{
    int32_t status = (int32_t)frame->arg;

    return ldr_wire_status_known(status) ? (larder_status_t)status
                                         : LARDER_E_OTHER;
}

/* Of header and body, without the checksum itself. */
static uint32_t frame_crc(const uint8_t *at, uint32_t body)
{
    uint32_t crc = ldr_crc32c(0, at, FRAME_CRC_AT);

    return ldr_crc32c(crc, at + LDR_FRAME_BYTES, body);
}

void ldr_frame_put(uint8_t *at, const ldr_frame_t *frame, bool seal)
{
    ldr_put32(at, LDR_FRAME_MAGIC);
    ldr_put16(at + 4, frame->opcode);
    ldr_put16(at + 6, frame->flags);
    ldr_put64(at + 8, frame->id);
    ldr_put64(at + 16, frame->epoch);
    ldr_put32(at + 24, frame->body);
    ldr_put32(at + 28, frame->payload);
    ldr_put32(at + 32, frame->arg);
    ldr_put32(at + FRAME_CRC_AT, seal ? frame_crc(at, frame->body) : 0);
}

/* Only a PUT, the reply to a GET, and what is only measured have a payload. */
static bool payload_allowed(const ldr_frame_t *f)
{
    bool reply = (f->flags & LDR_FRAME_REPLY) != 0;

    return f->opcode == (reply ? LDR_OP_GET : LDR_OP_PUT) ||
           f->opcode == (reply ? LDR_OP_PEER_GET : LDR_OP_PEER_PUT) ||
           f->opcode == LDR_OP_PEER_MEASURE;
}

ldr_frame_verdict_t ldr_frame_get(const uint8_t *at, uint32_t body_max,
                                  ldr_frame_t *frame)
{
    ldr_frame_t f = {
        .opcode = ldr_get16(at + 4),
        .flags = ldr_get16(at + 6),
        .id = ldr_get64(at + 8),
        .epoch = ldr_get64(at + 16),
        .body = ldr_get32(at + 24),
        .payload = ldr_get32(at + 28),
        .arg = ldr_get32(at + 32),
    };

    if (ldr_get32(at) != LDR_FRAME_MAGIC) {
        return LDR_FRAME_NOT_LARDER;
    }
    if ((f.flags & ~FRAME_FLAGS) != 0 || f.flags == FRAME_FLAGS) {
        return LDR_FRAME_MALFORMED;
    }
    if (f.payload > 0 && body_max > LDR_BODY_HELLO_MAX &&
        !payload_allowed(&f)) {
        return LDR_FRAME_MALFORMED;
    }
    if (f.body > body_max || f.payload > LDR_PAYLOAD_MAX ||
        (f.payload > 0 && body_max <= LDR_BODY_HELLO_MAX)) {
        return LDR_FRAME_TOO_LARGE;
    }
    *frame = f;
    return LDR_FRAME_OK;
}

bool ldr_frame_check(const uint8_t *at, const ldr_frame_t *frame)
{
    return ldr_get32(at + FRAME_CRC_AT) == frame_crc(at, frame->body);
}

/* ---- text of a fixed width ----
 *
 * NUL and zeros after it up to the width. No control characters: it is shown
 * in logs and metrics. */

void ldr_wire_put_text(uint8_t *at, const char *text, size_t width)
{
    size_t length = strnlen(text, width - 1);

    memcpy(at, text, length);
    memset(at + length, 0, width - length);
}

bool ldr_wire_get_text(const uint8_t *at, size_t width, char *text)
{
    size_t length = strnlen((const char *)at, width);

    for (size_t i = 0; i < length; i++) {
        if (at[i] < 0x20 || at[i] == 0x7f) {
            return false;
        }
    }
    for (size_t i = length; i < width; i++) {
        if (at[i] != 0) {
            return false;
        }
    }
    if (length == width) {
        return false;
    }
    memcpy(text, at, width);
    return true;
}

/* ---- hello ---- */

_Static_assert(sizeof((ldr_hello_t){0}.tenant) == 64, "as in LDR_HELLO_BYTES");
_Static_assert(sizeof((ldr_hello_t){0}.program) == 64, "as in LDR_HELLO_BYTES");

size_t ldr_put_hello(uint8_t *at, const ldr_hello_t *m)
{
    ldr_put16(at, m->version_min);
    ldr_put16(at + 2, m->version_max);
    ldr_put64(at + 4, m->features);
    memcpy(at + 12, m->nonce, LDR_NONCE_BYTES);
    ldr_wire_put_text(at + 44, m->tenant, sizeof(m->tenant));
    ldr_wire_put_text(at + 108, m->program, sizeof(m->program));
    return LDR_HELLO_BYTES;
}

bool ldr_get_hello(const uint8_t *at, size_t bytes, ldr_hello_t *m)
{
    if (bytes != LDR_HELLO_BYTES) {
        return false;
    }
    m->version_min = ldr_get16(at);
    m->version_max = ldr_get16(at + 2);
    m->features = ldr_get64(at + 4);
    memcpy(m->nonce, at + 12, LDR_NONCE_BYTES);
    return m->version_min >= 1 && m->version_min <= m->version_max &&
           ldr_wire_get_text(at + 44, sizeof(m->tenant), m->tenant) &&
           ldr_wire_get_text(at + 108, sizeof(m->program), m->program);
}

size_t ldr_put_welcome(uint8_t *at, const ldr_welcome_t *m)
{
    ldr_put16(at, m->version);
    ldr_put16(at + 2, m->auth);
    ldr_put64(at + 4, m->features);
    ldr_put64(at + 12, m->epoch);
    memcpy(at + 20, m->nonce, LDR_NONCE_BYTES);
    ldr_wire_put_text(at + 52, m->program, sizeof(m->program));
    return LDR_WELCOME_BYTES;
}

bool ldr_get_welcome(const uint8_t *at, size_t bytes, ldr_welcome_t *m)
{
    if (bytes != LDR_WELCOME_BYTES) {
        return false;
    }
    m->version = ldr_get16(at);
    m->auth = ldr_get16(at + 2);
    m->features = ldr_get64(at + 4);
    m->epoch = ldr_get64(at + 12);
    memcpy(m->nonce, at + 20, LDR_NONCE_BYTES);
    return m->version >= 1 && m->auth <= 1 &&
           ldr_wire_get_text(at + 52, sizeof(m->program), m->program);
}

/* ---- shared memory ---- */

size_t ldr_put_attach(uint8_t *at, const ldr_attach_t *m)
{
    ldr_put32(at, m->ring_bytes);
    ldr_put32(at + 4, m->page_bytes);
    ldr_put32(at + 8, m->strict);
    ldr_put32(at + 12, 0);
    return LDR_ATTACH_BYTES;
}

bool ldr_get_attach(const uint8_t *at, size_t bytes, ldr_attach_t *m)
{
    if (bytes != LDR_ATTACH_BYTES) {
        return false;
    }
    m->ring_bytes = ldr_get32(at);
    m->page_bytes = ldr_get32(at + 4);
    m->strict = ldr_get32(at + 8);
    return m->strict <= 1 && ldr_get32(at + 12) == 0;
}

size_t ldr_put_extent(uint8_t *at, const ldr_extent_msg_t *m)
{
    ldr_put32(at, m->extent);
    ldr_put32(at + 4, m->generation);
    ldr_put64(at + 8, m->bytes);
    ldr_put64(at + 16, m->ready_bytes);
    return LDR_EXTENT_MSG_BYTES;
}

bool ldr_get_extent(const uint8_t *at, size_t bytes, ldr_extent_msg_t *m)
{
    if (bytes != LDR_EXTENT_MSG_BYTES) {
        return false;
    }
    m->extent = ldr_get32(at);
    m->generation = ldr_get32(at + 4);
    m->bytes = ldr_get64(at + 8);
    m->ready_bytes = ldr_get64(at + 16);
    return m->ready_bytes <= m->bytes;
}

/* ---- spaces and numbers ---- */

#define SPACE_SHARDS_AT (2 * LDR_WIRE_ID_BYTES)
#define SPACE_LABEL_AT (LDR_SPACE_HEAD_BYTES - 4)

size_t ldr_put_space(uint8_t *at, const ldr_space_msg_t *m)
{
    memcpy(at, m->id, LDR_WIRE_ID_BYTES);
    memcpy(at + LDR_WIRE_ID_BYTES, m->check, LDR_WIRE_ID_BYTES);
    ldr_put32(at + SPACE_SHARDS_AT, m->shards);
    memcpy(at + SPACE_SHARDS_AT + 4, m->key, LDR_WIRE_KEY_BYTES);
    size_t label = strlen(m->label);
    ldr_put32(at + SPACE_LABEL_AT, (uint32_t)label);
    memcpy(at + LDR_SPACE_HEAD_BYTES, m->label, label);
    return LDR_SPACE_HEAD_BYTES + label;
}

bool ldr_get_space(const uint8_t *at, size_t bytes, ldr_space_msg_t *m)
{
    if (bytes < LDR_SPACE_HEAD_BYTES || bytes > LDR_SPACE_MSG_BYTES ||
        ldr_get32(at + SPACE_LABEL_AT) != bytes - LDR_SPACE_HEAD_BYTES) {
        return false;
    }
    ldr_label_clean((const char *)at + LDR_SPACE_HEAD_BYTES,
                    bytes - LDR_SPACE_HEAD_BYTES, m->label);
    memcpy(m->id, at, LDR_WIRE_ID_BYTES);
    memcpy(m->check, at + LDR_WIRE_ID_BYTES, LDR_WIRE_ID_BYTES);
    m->shards = ldr_get32(at + SPACE_SHARDS_AT);
    memcpy(m->key, at + SPACE_SHARDS_AT + 4, LDR_WIRE_KEY_BYTES);
    return true;
}

size_t ldr_put_number(uint8_t *at, uint32_t number)
{
    ldr_put32(at, number);
    return LDR_NUMBER_BYTES;
}

bool ldr_get_number(const uint8_t *at, size_t bytes, uint32_t *number_p)
{
    if (bytes != LDR_NUMBER_BYTES) {
        return false;
    }
    *number_p = ldr_get32(at);
    return true;
}
