/*
 * Writes msgpack. A buffer belongs to one caller; once it has failed nothing
 * more is added.
 */
#include "server/pack.h"

#include <string.h>

#include "base/mem.h"

static uint8_t *room_take(ldr_pack_t *p, size_t bytes)
{
    if (p->failed || !ldr_grow(&p->at, &p->capacity, p->bytes + bytes, 1)) {
        p->failed = true;
        return NULL;
    }
    p->bytes += bytes;
    return p->at + p->bytes - bytes;
}

/* A byte that says which form it is, and a big-endian number behind it. */
static void number_put(ldr_pack_t *p, uint8_t form, uint64_t value,
                       unsigned bytes)
{
    uint8_t *at = room_take(p, 1 + bytes);

    if (at != NULL) {
        *at++ = form;
        while (bytes-- > 0) {
            *at++ = (uint8_t)(value >> 8 * bytes);
        }
    }
}

void ldr_pack_nil(ldr_pack_t *p)
{
    number_put(p, 0xc0, 0, 0);
}

void ldr_pack_uint(ldr_pack_t *p, uint64_t value)
{
    if (value < 0x80) {
        number_put(p, (uint8_t)value, 0, 0);
    } else if (value <= UINT8_MAX) {
        number_put(p, 0xcc, value, 1);
    } else if (value <= UINT16_MAX) {
        number_put(p, 0xcd, value, 2);
    } else if (value <= UINT32_MAX) {
        number_put(p, 0xce, value, 4);
    } else {
        number_put(p, 0xcf, value, 8);
    }
}

void ldr_pack_double(ldr_pack_t *p, double value)
{
    uint64_t bits;

    memcpy(&bits, &value, sizeof(bits));
    number_put(p, 0xcb, bits, 8);
}

void ldr_pack_text(ldr_pack_t *p, const char *text)
{
    size_t bytes = strnlen(text, UINT16_MAX);

    if (bytes < 32) {
        number_put(p, (uint8_t)(0xa0 | bytes), 0, 0);
    } else {
        number_put(p, 0xda, bytes, 2);
    }
    ldr_pack_add(p, text, bytes);
}

void ldr_pack_bytes(ldr_pack_t *p, const void *data, size_t bytes)
{
    number_put(p, 0xc4, bytes, 1);
    ldr_pack_add(p, data, bytes);
}

void ldr_pack_array(ldr_pack_t *p, uint32_t count)
{
    if (count < 16) {
        number_put(p, (uint8_t)(0x90 | count), 0, 0);
    } else if (count <= UINT16_MAX) {
        number_put(p, 0xdc, count, 2);
    } else {
        number_put(p, 0xdd, count, 4);
    }
}

void ldr_pack_map(ldr_pack_t *p, uint32_t count)
{
    if (count < 16) {
        number_put(p, (uint8_t)(0x80 | count), 0, 0);
    } else {
        number_put(p, 0xde, count, 2);
    }
}

void ldr_pack_add(ldr_pack_t *p, const void *data, size_t bytes)
{
    uint8_t *at = room_take(p, bytes);

    if (at != NULL && bytes > 0) {
        memcpy(at, data, bytes);
    }
}
